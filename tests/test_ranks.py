"""Several processes against one: the same curves, validations, memories, also broken off and gone on with; parameters
that are shared out; the commands under torchrun. What the processes do is in tests/rank_worker.py."""
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import rank_worker
from tests.util import ROOT
from transformer_family.core import rank, world_size

pytestmark = pytest.mark.skipif(sys.platform == 'win32', reason='no gloo between processes on this system')
NEAR = dict(rel=1e-5, abs=1e-8)


def start(*args, cwd=ROOT, n=2):
    "A command in n processes."
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT), 'PYTHONWARNINGS': 'ignore',
           'MPLBACKEND': 'Agg'}
    launch = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', str(n), '-m']
    return subprocess.Popen([*launch, *map(str, args)], cwd=cwd, env=env, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def finish(p, limit=400):
    try:
        return p.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        raise


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    "What one process does, and what each of two does."
    assert (rank(), world_size()) == (0, 1)
    folder = tmp_path_factory.mktemp('ranks')
    (folder/'one').mkdir()
    (folder/'two').mkdir()
    p = start('tests.rank_worker', folder/'two')
    try:
        one = rank_worker.everything(folder/'one')
    finally:
        out = finish(p)
    assert p.returncode == 0, out
    return one, json.loads((folder/'two'/'all.json').read_text())


def rows(read):
    "The rows that each process read, as one list for each of its first batches."
    return [[tuple(r) for r in batch] for batch in read]


@pytest.mark.parametrize('name', ['text', 'memory', 'auxiliary', 'pairs', 'pictures'])
def test_two_processes_give_one_processs_curve(runs, name):
    one, two = runs[0][name], [r[name] for r in runs[1]]
    assert len(one['losses']) == 50 and one['losses'][-1] < .9*one['losses'][0]       # it learns
    for got in two:
        assert got['losses'] == pytest.approx(one['losses'], **NEAR)
        assert got['total'] == pytest.approx(one['total'], **NEAR)              # the parameters in the end
        for a, b in zip(got['values'], one['values'], strict=True):
            assert a == pytest.approx(b, **NEAR)                                # validations


@pytest.mark.parametrize('name', ['text', 'memory', 'auxiliary', 'pairs', 'pictures'])
def test_each_process_reads_its_half(runs, name):
    (whole,), halves = runs[0][name]['read'], [rows(r) for r in runs[1][0][name]['read']]
    assert len(halves) == 2
    for i, batch in enumerate(rows(whole)):
        parts = [h[i] for h in halves]
        if len(batch) == 1:         # fewer than processes: one that does not count
            assert name == 'pairs' and parts == [batch, batch]
            continue
        assert [len(p) for p in parts] == [len(batch)//2]*2
        cut = lambda rs: sorted(tuple(x for x in r if x != -100) for r in rs)           # noqa: E731
        assert cut(parts[0] + parts[1]) == cut(batch)
        if name not in ('pairs', 'pictures'):                   # streams by stream, not by time
            assert parts[0] + parts[1] == batch


shares = pytest.mark.skipif(not rank_worker.SHARES, reason='this torch cannot share out parameters on the CPU')


@pytest.mark.parametrize('name', ['memory', 'pairs', 'pictures', pytest.param('parted', marks=shares)])
def test_stopped_by_one_process_and_gone_on_with(runs, name):
    "The last rank alone is asked to stop; all stop behind step 17, and go on as if nothing had been."
    want = runs[0]['text' if name == 'parted' else name]['losses']
    for got in runs[1]:
        assert got['broken off'][name]['step'] == 17
        assert got['broken off'][name]['losses'] == pytest.approx(want, **NEAR)
        assert got['broken off'][name]['random'] == dict(restored=True, own=True)
        assert (got['broken off'][name]['left'], got['broken off'][name]['rows']) == ([], 50)


def test_minutes_end_at_one_step(runs):
    "Each process has a clock of its own; that of rank 0 counts."
    two = runs[1][0]['clock']
    assert len(set(two['steps'])) == 1 and two['steps'][0] > 5
    assert two['rates'][0] == two['rates'][1] and len(two['rates'][0]) == two['steps'][0]


def test_what_the_first_meets_all_hear(runs):
    assert [(r['refused'], r['first']) for r in runs[1]] == [('not here', 0)]*2


@shares
def test_parameters_that_are_shared_out(runs):
    one, two = runs[0]['text'], [r['parted'] for r in runs[1]]
    for got in two:
        assert got['kinds'] == ['DTensor']
        assert got['losses'] == pytest.approx(one['losses'], **NEAR)
        assert got['total'] == pytest.approx(one['total'], **NEAR)
    assert sum(got['own'] for got in two) == two[0]['n'] and max(got['own'] for got in two) < .6*two[0]['n']
    assert two[0]['cls'] == 'TransformerLM'                                     # what is saved is whole
    assert two[0]['saved'] == pytest.approx(one['total'], rel=1e-5)


def flat(x):
    if isinstance(x, dict):
        x = [x[k] for k in sorted(x)]
    return [z for y in x for z in flat(y)] if isinstance(x, list) else [x]


def test_numbers_and_figures_of_a_wrapped_model(runs):
    one, two = runs[0]['wrapped'], [r['wrapped'] for r in runs[1]]
    for got in two:
        assert sorted(got) == sorted(one)
        for a, b in zip(flat(got), flat(one), strict=True):
            assert a == (pytest.approx(b, **NEAR) if isinstance(b, float) else b)


TINY = ('--d-model 16 --n-layers 1 --n-heads 2 --dropout 0 --seq-len 16 --device cpu --eval-tokens 500 --steps 60 '
        '--lr 1e-3').split()


def history(folder):
    with open(folder/'history.csv') as f:
        return {int(r['step']): float(r['loss']) for r in csv.DictReader(f)}


def test_a_batch_that_cannot_be_shared(tmp_path):
    p = start('transformer_family', 'train', 'transformer', *TINY, '--batch-size', 3, '--out', 'run', cwd=tmp_path)
    out = finish(p)
    assert p.returncode != 0
    assert out.count('batch size of 3 cannot be shared by 2 processes equally') == 1, out     # rank 0 says it
    assert 'Traceback' not in out.split('torch/distributed')[0]
    assert not list(tmp_path.iterdir())                                         # no folder, no lock


def until(condition, p, seconds=200):
    end = time.time() + seconds
    while not condition():
        assert p.poll() is None and time.time() < end, finish(p)
        time.sleep(.05)


def workers(p):
    "The processes that a launcher has started."
    return [int(pid) for f in Path(f'/proc/{p.pid}/task').glob('*/children') for pid in f.read_text().split()]


def kill(p):
    "End a launcher and what it has started, as a machine that fails would."
    for pid in [*workers(p), p.pid]:
        os.kill(pid, signal.SIGKILL)
    finish(p)


@shares
def test_parameters_shared_out_at_a_prompt(tmp_path):
    "Two processes share them out, judge what they have together and write; one goes on, since a checkpoint is whole."
    from transformer_family.cli import tfam_eval, tfam_generate, tfam_train
    args = ['transformer_family', 'train', 'transformer', *TINY, '--batch-size', 4]
    p = start(*args, '--shard', '--out', 'run', cwd=tmp_path)
    run, alone = tmp_path/'run', tmp_path/'alone'
    want = tfam_train('transformer', d_model=16, n_layers=1, n_heads=2, dropout=0., seq_len=16, device='cpu',
                      eval_tokens=500, steps=60, lr=1e-3, batch_size=4, out=alone)
    out = finish(p)
    assert p.returncode == 0, out
    assert [*history(run).values()] == pytest.approx([*history(alone).values()], rel=1e-3)
    got = json.loads((run/'report.json').read_text())['bits per character']
    assert got == pytest.approx(want.results['bits per character'], rel=1e-3)
    assert tfam_eval(run)['bits per character'] == pytest.approx(got, rel=1e-5)
    assert tfam_generate(run, n=9, temperature=0.) == tfam_generate(alone, n=9, temperature=0.)
    done = tfam_train(resume=run, device='cpu', steps=62)
    assert done.run['shard'] is True and list(history(run)) == list(range(1, 63))


@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
def test_killed_under_torchrun_and_resumed(tmp_path):
    "In single precision, so the curves part slowly; what was killed goes on in step."
    from transformer_family.cli import tfam_eval, tfam_train
    args = ['transformer_family', 'train']
    p = start(*args, 'transformer-xl', *TINY, '--batch-size', 4, '--out', 'run', cwd=tmp_path)
    run = tmp_path/'run'
    until(lambda: (run/'history.csv').exists() and len(history(run)) >= 50, p)
    kill(p)
    again = start(*args, '--resume', 'run', '--device', 'cpu', cwd=tmp_path)
    out = finish(again)
    assert again.returncode == 0, out
    assert out.count('is resumed') == 1 and out.count('is done') == 1, out              # one process speaks
    want = tfam_train(model='transformer-xl', d_model=16, n_layers=1, n_heads=2, dropout=0., seq_len=16, device='cpu',
                      eval_tokens=500, steps=60, lr=1e-3, batch_size=4, out=tmp_path/'alone')
    got, alone = history(run), history(tmp_path/'alone')
    assert list(got) == list(alone) == list(range(1, 61))
    assert [*got.values()] == pytest.approx([*alone.values()], rel=1e-3)
    assert math.isfinite(want.results['bits per character'])
    asked = start('transformer_family', 'eval', 'run', '--json', 'n.json', cwd=tmp_path)
    p = start('transformer_family', 'generate', 'run', '--temperature', 0, cwd=tmp_path)
    out = finish(p)
    assert p.returncode == 0 and sum(line.startswith('The ') for line in out.splitlines()) == 1, out
    assert (finish(asked), asked.returncode)[1] == 0
    assert json.loads((tmp_path/'n.json').read_text()) == tfam_eval(run)
