"""Each notebook is one test; where there is CUDA, its cells with the flag `cuda` are another."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tests.util import ROOT, notebooks

LIMIT = 900     # seconds for one notebook


def run_notebook(path, *flags, limit=LIMIT):
    "Run a notebook in a process of its own; exit status and output."
    args = [sys.executable, '-m', 'tests.run_notebook', str(path), '--flags', *flags]
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen(args, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
                             stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = p.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            status = f'killed after {limit} s'
        out.seek(0)
        return status, out.read().decode(errors='replace')


def check(path, *flags):
    status, text = run_notebook(path, *flags)
    if status != 0:
        pytest.fail(f'{path.name} failed ({status})\n\n{text}', pytrace=False)


def has_flag(path, flag):
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    pat = re.compile(rf'^#\|\s*{flag}\b', re.M)
    return any(c['cell_type'] == 'code' and pat.search(''.join(c['source'])) for c in cells)


def params(paths):
    return [pytest.param(p, id=p.stem) for p in paths]


@pytest.mark.parametrize('path', params(notebooks()))
def test_notebook(path):
    check(path)


@pytest.mark.cuda
@pytest.mark.parametrize('path', params(p for p in notebooks() if has_flag(p, 'cuda')))
def test_cuda_cells(path):
    check(path, 'cuda')


# The runner itself

def notebook(tmp_path, *sources):
    "A project in `tmp_path` with one notebook of these code cells."
    (tmp_path/'pyproject.toml').write_text('[project]\nname = "p"\n[tool.nbdev]\ntst_flags = "slow cuda"\n')
    cells = [dict(cell_type='markdown', id='top', metadata={}, source='# Title')]
    cells += [dict(cell_type='code', id=f'c{i}', metadata={}, source=s, outputs=[], execution_count=None)
              for i, s in enumerate(sources)]
    path = tmp_path/'nbs'/'nb.ipynb'
    path.parent.mkdir()
    path.write_text(json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)))
    return path


def test_runner_passes(tmp_path):
    status, text = run_notebook(notebook(tmp_path, 'x = 1', 'assert x == 1'))
    assert status == 0, text


def test_runner_names_the_failing_cell(tmp_path):
    path = notebook(tmp_path, 'x = 1', 'def halve(n):\n    return 1 / n', 'y = 2\nhalve(0)', 'late = 1/0')
    status, text = run_notebook(path)
    assert status == 1
    assert 'nb.ipynb: cell 4 of 5 (id c2) raised ZeroDivisionError' in text
    assert '    halve(0)' in text and 'return 1 / n' in text     # its source, and the traceback's lines
    assert 'late' not in text and 'run_notebook.py' not in text


def test_runner_reports_syntax_errors(tmp_path):
    status, text = run_notebook(notebook(tmp_path, 'x = = 1'))
    assert status != 0 and 'SyntaxError' in text and 'x = = 1' in text


@pytest.mark.parametrize('flags,status', [((), 0), (('cuda',), 1)])
def test_runner_flags(tmp_path, flags, status):
    path = notebook(tmp_path, 'x = 1', '#| cuda\nraise RuntimeError("on the device")', '#| slow\n1/0')
    got, text = run_notebook(path, *flags)
    assert got == status, text
    assert ('on the device' in text) == bool(flags)


HANGS = """import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
open('pids', 'w').write(f'{os.getpid()} {child.pid}')
time.sleep(600)"""


def runs(pid):
    "Is there such a process, and is it more than an entry in the table?"
    out = subprocess.run(['ps', '-o', 'stat=', '-p', str(pid)], capture_output=True, text=True).stdout
    return bool(out.strip()) and not out.startswith('Z')


@pytest.mark.skipif(shutil.which('ps') is None, reason='no ps on this system')
def test_runner_stops_what_hangs(tmp_path):
    "The notebook's process and what it started are gone; a machine too slow to reach the cell gets more time."
    pids = tmp_path/'nbs'/'pids'
    path = notebook(tmp_path, HANGS)
    for limit in (6, 30, 120):
        status, text = run_notebook(path, limit=limit)
        assert status == f'killed after {limit} s', text
        if pids.exists():
            break
    assert len(pids.read_text().split()) == 2
    end = time.monotonic() + 30
    while any(map(runs, pids.read_text().split())):
        assert time.monotonic() < end, 'something still runs'
        time.sleep(.1)


def test_runner_reports_an_unreadable_notebook(tmp_path):
    path = notebook(tmp_path)
    path.write_text('{"cells": [')
    status, text = run_notebook(path)
    assert status == 2 and 'JSON' in text
