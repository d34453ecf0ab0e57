"""What is generated agrees with its source: modules, clean notebooks, README, picture. All on copies."""
import subprocess
import sys

from tests.util import ROOT, notebooks, python

EXPORT = 'from nbdev.doclinks import nbdev_export; nbdev_export()'
CLEAN = 'from nbdev.clean import nbdev_clean; nbdev_clean()'


def generated(root):
    "Everything that nbdev-export writes."
    files = [*(root/'transformer_family').glob('**/*.py'), root/'nbs'/'llms.txt', root/'pyproject.toml']
    return {str(f.relative_to(root)): f.read_text(encoding='utf-8') for f in files if f.exists()}


def differing(a, b):
    return sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))


def test_exported_modules_are_current(tree):
    before = generated(tree)
    for f in (tree/'transformer_family').glob('**/*.py'):   # a module whose notebook is gone must go too
        if f.name != '__init__.py':
            f.unlink()
    python(EXPORT, tree)
    stale = differing(before, generated(tree))
    assert not stale, f'run nbdev-export and commit what it writes: {stale}'


def test_notebooks_are_clean(tree):
    before = {p.name: p.read_bytes() for p in notebooks(tree)}
    python(CLEAN, tree)
    dirty = [p.name for p in notebooks(tree) if p.read_bytes() != before[p.name]]
    assert not dirty, f'run nbdev-clean on {dirty}'


def check_tool(name):
    res = subprocess.run([sys.executable, ROOT/'tools'/name, '--check'], cwd=ROOT, text=True,
                         capture_output=True, timeout=300)
    assert res.returncode == 0, res.stdout + res.stderr


def test_readme_is_current():
    check_tool('readme.py')


def test_family_picture_is_current():
    check_tool('family.py')
