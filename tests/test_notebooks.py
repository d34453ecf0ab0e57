"""Each notebook is one test; where there is CUDA, its cells with the flag `cuda` are another."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.strict import be_strict
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


@pytest.mark.parametrize('test', [
    'test_eq([None], [])', 'test_eq((1, [2, None]), (1, [2]))', 'test_close([], [1.])', 'test_close([1., 2.], [1.])',
    'test_eq(torch.ones(2), torch.ones(1))', 'test_eq([torch.ones(2, 1)], [torch.ones(2)])',
    'test_eq(torch.ones(0), torch.ones(1))', 'test_close(torch.ones(3), torch.ones(2, 3))',
    'test_eq(torch.ones(1), [])', 'test_eq(np.ones(2), np.ones((1, 2)))'])
def test_sizes_must_agree(test, monkeypatch):
    "fastcore accepts each of these but for the sizes."
    import fastcore.test
    import numpy as np
    import torch
    names = dict(torch=torch, np=np, test_eq=fastcore.test.test_eq, test_close=fastcore.test.test_close)
    for name in ('equals', 'is_close'):
        monkeypatch.setattr(fastcore.test, name, getattr(fastcore.test, name))
    be_strict()
    with pytest.raises(AssertionError):
        eval(test, names)
    for good in ('test_eq([None, 1], (None, 1))', 'test_eq(torch.tensor(2), 2)',
                 'test_close(torch.ones(3), 1.)', 'test_close([1., 2.], (1., 2.))', 'test_eq({1: [2]}, {1: [2]})'):
        eval(good, names)


def test_runner_is_strict(tmp_path):
    path = notebook(tmp_path, 'from fastcore.test import test_eq', 'test_eq([], [])', 'test_eq([None], [])')
    status, text = run_notebook(path)
    assert status == 1 and 'cell 4 of 4' in text


def running(pid):
    "Is there such a process, and is it no zombie?"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f'/proc/{pid}/stat')
    return not stat.exists() or stat.read_text().rpartition(')')[2].split()[0] != 'Z'


def until(true, seconds=120):
    "Wait until `true()`."
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, 'it did not happen'
        time.sleep(.05)


def test_runner_stops_what_hangs(tmp_path, monkeypatch):
    "The time is up once the cell hangs: it ends, and so does the process that it started."
    pids, wait = tmp_path/'pids', subprocess.Popen.wait
    cell = (f'import os, subprocess, sys, time\nchild = subprocess.Popen(["sleep", "600"])\n'
            f'open({str(pids) + ".part"!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")\n'
            f'os.rename({str(pids) + ".part"!r}, {str(pids)!r})\ntime.sleep(600)')

    def time_is_up(self, timeout=None):
        if timeout is None:
            return wait(self)
        until(pids.exists)
        raise subprocess.TimeoutExpired(self.args, timeout)
    monkeypatch.setattr(subprocess.Popen, 'wait', time_is_up)
    status, _ = run_notebook(notebook(tmp_path, cell), limit=6)
    assert status == 'killed after 6 s'
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not running(pid), 20)


def test_runner_reports_an_unreadable_notebook(tmp_path):
    path = notebook(tmp_path)
    path.write_text('{"cells": [')
    status, text = run_notebook(path)
    assert status == 2 and 'JSON' in text
