"""The wheel: what is in it, what it asks for, and that it works where the source tree is not."""
import ast
import json
import os
import re
import shutil
import sys
import zipfile
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path

import pytest

from tests.util import ROOT, command, copy_tree, python

PACKAGE = ROOT/'transformer_family'
TINY = ('--steps', 2, '--d-model', 16, '--n-layers', 1, '--n-heads', 2, '--seq-len', 16, '--batch-size', 2)
DISTRIBUTION = {'sklearn': 'scikit-learn', 'PIL': 'pillow'}     # where the name of the import is another
HEAVY = ['fastai', 'torchvision', 'spacy', 'matplotlib']


@pytest.fixture(scope='session')
def settings():
    cfg = ConfigParser(delimiters=['='])
    cfg.read(ROOT/'settings.ini', encoding='utf-8')
    return cfg['DEFAULT']


@pytest.fixture(scope='session')
def wheel(tmp_path_factory):
    "The wheel, built from the source distribution as package indexes get it."
    tmp = tmp_path_factory.mktemp('wheel')
    tree = copy_tree(tmp/'tree')
    command([sys.executable, '-m', 'build', '--no-isolation', '--outdir', tmp/'dist', tree], tmp)
    built, = (tmp/'dist').glob('*.whl')
    return built


@pytest.fixture(scope='session')
def metadata(wheel):
    return message_from_string(read(wheel, 'METADATA'))


def read(wheel, name):
    with zipfile.ZipFile(wheel) as z:
        path, = (n for n in z.namelist() if n.endswith(f'.dist-info/{name}'))
        return z.read(path).decode()


def text_of(path):
    return path.read_text(encoding='utf-8')


def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as z:
        files = {n for n in z.namelist() if '.dist-info/' not in n}
        licences = [n for n in z.namelist() if n.endswith('LICENSE')]
    assert files == {f'transformer_family/{p.name}' for p in PACKAGE.glob('*.py')}
    assert len(licences) == 1


def test_metadata_says_what_the_settings_say(wheel, metadata, settings):
    version = re.search(r'__version__ = "(.+)"', text_of(PACKAGE/'__init__.py'))[1]
    assert metadata['Version'] == version
    assert metadata['License-Expression'] == 'Apache-2.0'
    assert metadata['Requires-Python'] == re.search(r'requires-python = "(.+)"', text_of(ROOT/'pyproject.toml'))[1]
    required = metadata.get_all('Requires-Dist')
    assert [r for r in required if 'extra ==' not in r] == settings['requirements'].split()
    extras = metadata.get_all('Provides-Extra')
    assert extras == ['dev', 'rl', 'distributed']
    for extra in extras:
        of = [r.split(';')[0] for r in required if f'extra == "{extra}"' in r.replace("'", '"')]
        want = settings[f'{extra}_requirements'] + (' ' + settings['rl_requirements'])*(extra == 'dev')
        assert of == want.split()
    points = read(wheel, 'entry_points.txt')
    for script in settings['console_scripts'].split():
        assert script.replace('=', ' = ') in points.split('[nbdev]')[0]
    assert 'transformer_family = transformer_family._modidx:d' in points


def test_description_has_no_relative_links(metadata):
    "A package index shows the README without the files beside it."
    body = metadata.get_payload()
    assert body.count('# The Transformer Family') >= 1
    prose = re.sub(r'^```.*?^```', '', body, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r'\]\((?!https?://|#)[^)]*\)', prose)


# Imports against requirements

def imported(path):
    "Top-level names of all modules that a file imports, at its top or inside functions, with their full names."
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f'{node.module}.{a.name}' for a in node.names)


def normal(name):
    return re.sub(r'[-_.]+', '-', name).lower()


def test_imports_and_requirements_agree(settings):
    names = {n for p in PACKAGE.glob('*.py') for n in imported(p)}
    tops = {n.partition('.')[0] for n in names} - set(sys.stdlib_module_names) - {'transformer_family'}
    asked = {DISTRIBUTION.get(t, normal(t)) for t in tops}
    required, agents = ({normal(re.match(r'[\w.-]+', r)[0]) for r in settings[k].split()}
                        for k in ('requirements', 'rl_requirements'))
    assert not asked - required - agents, f'imported but not in settings.ini: {asked - required - agents}'
    assert not required - asked, f'required in settings.ini but never imported: {required - asked}'


def test_no_module_imports_what_is_banned():
    banned = ('torchvision', 'spacy', 'fastai.vision', 'fastai.text')
    found = [(p.name, n) for p in PACKAGE.glob('*.py') for n in imported(p)
             if any(n == b or n.startswith(b + '.') for b in banned)]
    assert not found


def test_models_import_without_fastai_or_matplotlib(tmp_path):
    code = f'import sys, transformer_family.transformer\nprint([m for m in {HEAVY} if m in sys.modules])'
    assert python(code, tmp_path, path=ROOT).splitlines()[-1] == '[]'


def test_nothing_imports_torchvision_or_spacy(tmp_path):
    "Not even by way of fastai."
    modules = sorted(p.stem for p in PACKAGE.glob('*.py') if not p.stem.startswith('_'))
    code = 'import sys, importlib\n' + ''.join(f'importlib.import_module("transformer_family.{m}")\n' for m in modules)
    code += 'print([m for m in ("torchvision", "spacy", "fastai.vision.all") if m in sys.modules])'
    assert python(code, tmp_path, path=ROOT).splitlines()[-1] == '[]'


def test_lower_bounds_are_the_tried_ones(settings):
    "settings.ini's bounds are those that tests/oldest.txt pins, and so the oldest job tries."
    pins = dict(line.split('==') for line in text_of(ROOT/'tests'/'oldest.txt').splitlines() if '==' in line)
    every = ' '.join(x for k, x in settings.items() if k.endswith('requirements'))
    for r in every.split():
        name, bound = re.fullmatch(r'([\w.-]+)>=([\d.]+)', r).groups()
        assert (pins[name] + '.').startswith(bound + '.'), f'{r}, but tests/oldest.txt tries {pins[name]}'


# The wheel at work

@pytest.fixture
def elsewhere(wheel, tmp_path):
    """An environment with the wheel and this environment's other packages, but not its editable installs.

    A directory that a .pth file names is searched, but its own .pth files are not read."""
    env = tmp_path/'env'
    command([sys.executable, '-m', 'venv', '--without-pip', env], tmp_path)
    site, = env.glob('lib/python*/site-packages')
    there = [p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))]
    (site/'around.pth').write_text('\n'.join(there) + '\n')
    command([sys.executable, '-m', 'pip', '--python', env/'bin'/'python', 'install', '--no-deps', '--no-index',
             '--quiet', wheel], tmp_path)
    return env


def clean_env(env):
    return {'PYTHONPATH': '', 'PATH': f'{env/"bin"}{os.pathsep}{os.environ["PATH"]}', 'PYTHONSAFEPATH': '1'}


def check_run(folder):
    "What a run of tfam-train leaves behind."
    for name in ('model.safetensors', 'config.json', 'history.csv', 'loss.png', 'sample.txt'):
        assert (folder/name).stat().st_size > 0, name
    assert list(folder.glob('model.safetensors')) and json.loads(text_of(folder/'config.json'))


def test_wheel_trains_elsewhere(elsewhere, tmp_path):
    work = tmp_path/'work'
    work.mkdir()
    where = command([elsewhere/'bin'/'python', '-c', 'import transformer_family as t; print(t.__file__)'], work,
                    **clean_env(elsewhere))
    assert Path(where.strip()).is_relative_to(elsewhere), 'the source tree is in the way'
    (work/'text.txt').write_text('the quick brown fox jumps over the lazy dog\n' * 200)
    command(['tfam-train', 'transformer', *TINY, '--data', 'text.txt', '--out', 'run'], work, **clean_env(elsewhere))
    check_run(work/'run')
    out = command(['tfam-models'], work, **clean_env(elsewhere))
    assert 'transformer' in out


def test_working_copies_have_what_makes_pages(tmp_path):
    "`pip install -e` lets nbdev import tools.page, which no wheel has."
    env, tree = tmp_path/'env', copy_tree(tmp_path/'tree')
    command([sys.executable, '-m', 'venv', '--without-pip', env], tmp_path)
    site, = env.glob('lib/python*/site-packages')
    (site/'around.pth').write_text('\n'.join(p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))))
    command([sys.executable, '-m', 'pip', '--python', env/'bin'/'python', 'install', '--no-deps', '--no-index',
             '--no-build-isolation', '--quiet', '-e', tree], tmp_path)
    code = 'import tools.page, transformer_family as t; print(tools.page.__file__, t.__file__)'
    where = command([env/'bin'/'python', '-c', code], tmp_path, **clean_env(env)).split()
    assert all(Path(f).is_relative_to(tree) for f in where), where
    named = re.findall(r'^(?:renderer|doc_procs) = "(.+)"$', text_of(tree/'pyproject.toml'), flags=re.MULTILINE)
    assert len(named) == 2 and all(n.startswith('tools.page') for n in named)


# What .ci/run adds: an environment of its own, with the requirements that a newcomer gets

def readme_command():
    "The README's first command, and the part of it that trains."
    line, = re.findall(r'^pip install -e \. && (tfam-train .+)$', text_of(ROOT/'README.md'), flags=re.MULTILINE)
    return line.split()


def test_readme_names_both_commands():
    text = text_of(ROOT/'README.md')
    assert readme_command() == ['tfam-train', 'transformer']
    assert re.findall(r"^pip install -e '\.\[dev\]' && pytest -n 2$", text, flags=re.MULTILINE)


@pytest.mark.skipif(os.environ.get('TFAM_FULL') != '1', reason='a fresh environment with all requirements: TFAM_FULL=1')
def test_first_command_in_a_fresh_environment(wheel, tmp_path):
    env, work = tmp_path/'env', tmp_path/'work'
    work.mkdir()
    try:
        command([sys.executable, '-m', 'venv', env], tmp_path)
        command([env/'bin'/'python', '-m', 'pip', 'install', '--quiet', wheel], tmp_path, timeout=1500, PYTHONPATH='')
        command([*readme_command(), *TINY], work, timeout=300, **clean_env(env))
        run, = (work/'runs').iterdir()
        check_run(run)
    finally:
        shutil.rmtree(env, ignore_errors=True)      # it holds gigabytes
