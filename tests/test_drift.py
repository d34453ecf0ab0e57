"""What is generated agrees with its source: modules, clean notebooks, README, picture. All on copies."""
import importlib.util
import json
import subprocess
import sys

import pytest

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
        if f.name not in ('__init__.py', '__main__.py'):          # these two are written by hand
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


# The README's maker itself

def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT/'tools'/f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def project(tmp_path, *cells):
    "A project in `tmp_path` whose index has these cells: text is markdown, a pair is code and its outputs."
    (tmp_path/'pyproject.toml').write_text(
        '[project]\nname = "p"\n[project.urls]\nDocumentation = "https://x.org/p/"\n[tool.nbdev]\n')
    (tmp_path/'nbs'/'images').mkdir(parents=True)
    for f in ('nbs/01_first.ipynb', 'nbs/images/a.svg', 'NOTES.md'):
        (tmp_path/f).write_text('x')
    cells = [{'cell_type': 'markdown', 'source': c} if isinstance(c, str) else
             {'cell_type': 'code', 'id': f'c{i}', 'source': c[0], 'outputs': c[1]} for i, c in enumerate(cells)]
    (tmp_path/'nbs'/'index.ipynb').write_text(json.dumps({'cells': cells}))
    return load_tool('readme').readme(tmp_path)


def test_readme_rewrites_links(tmp_path):
    text, _ = project(tmp_path, '# T\n[a](01_first.ipynb#b), [home](index.ipynb), [out](https://y.org)',
                      '![cap](images/a.svg){#fig-a fig-alt="alt"} and `[c](01_first.ipynb)`, `NOTES.md`, `OTHER.md`')
    assert '[a](https://x.org/p/first.html#b), [home](https://x.org/p/), [out](https://y.org)' in text
    assert '![alt](nbs/images/a.svg) and `[c](01_first.ipynb)`, [`NOTES.md`](NOTES.md), `OTHER.md`' in text


def test_readme_shows_what_the_page_shows(tmp_path):
    out = [{'output_type': 'stream', 'name': 'stdout', 'text': ['said\n']},
           {'output_type': 'display_data', 'data': {'image/svg+xml': ['<svg/>']}, 'metadata': {}}]
    text, images = project(tmp_path, ('#| hide\nsecret', out), ('#| label: fig-p\n#| fig-alt: An alt\nplot()', out))
    assert 'secret' not in text and '#|' not in text
    assert '```python\nplot()\n```\n\n```text\nsaid\n```\n\n![An alt](nbs/images/index-fig-p.svg)' in text
    assert images == {'images/index-fig-p.svg': b'<svg/>'}


def test_readme_refuses_dead_links(tmp_path):
    with pytest.raises(FileNotFoundError, match='02_second.ipynb'):
        project(tmp_path, '[a](02_second.ipynb)')
