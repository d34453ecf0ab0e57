"""Names: two things do not share one across modules, and nothing is imported that is not used."""
import ast
import subprocess
import sys
from collections import defaultdict

from tests.util import ROOT

MODULES = sorted(p for p in (ROOT/'transformer_family').glob('[a-z]*.py'))


def defined(path):
    "Names that a module defines at its top level: functions, classes, constants; patched methods are not."
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if not any('patch' in ast.unparse(d) or 'register_fake' in ast.unparse(d) for d in node.decorator_list):
                yield node.name
        elif isinstance(node, ast.Assign):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name) and t.id != '__all__')


def test_no_name_is_taken_twice():
    places = defaultdict(list)
    for path in MODULES:
        for name in set(defined(path)):
            places[name].append(path.stem)
    assert len(places) > 300                                    # it reads what is there
    assert not {n: where for n, where in places.items() if len(where) > 1}


def test_no_import_is_unused():
    run = subprocess.run([sys.executable, '-m', 'ruff', 'check', '--isolated', '--select', 'F401', *map(str, MODULES)],
                         capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout
