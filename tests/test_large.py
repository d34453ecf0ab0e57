"""Texts larger than the memory that may be spent on them, and paths that are no text."""
import json
import os
import subprocess
import sys

import pytest

from tests.util import ROOT

SIZE = 10_000_000_000       # bytes of a file that is almost all hole
TRAIN = """
import sys, time
from unittest import mock

def anonymous():
    "Bytes of memory that no file stands behind, now."
    with open('/proc/self/status') as f:
        return next(int(line.split()[1])*1024 for line in f if line.startswith('RssAnon'))

from transformer_family import runs, training
from transformer_family.core import count_params
from transformer_family.cli import tfam_train
seen, start = {}, time.monotonic()
before = anonymous()

def step(self):
    seen.setdefault('first step', time.monotonic() - start)
    seen['most'] = max(seen.get('most', 0), anonymous())
    count(self)

count = runs.Checkpoint.after_step
runs.Checkpoint.after_step = step
run = tfam_train(data=sys.argv[1], steps=8, batch_size=4, seq_len=64, d_model=32, n_layers=1, device='cpu',
                 out='run')
import json
print(json.dumps(dict(seen, before=before, after=anonymous(), results=run.results,
                      seconds=time.monotonic() - start)))
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_ten_gigabytes(tmp_path):
    "The first step comes soon, and memory stays small, up to the report."
    text = tmp_path/'large.txt'
    with open(text, 'wb') as f:
        for at in range(0, SIZE, SIZE//50):
            f.seek(at)
            f.write(b'Here and there a line of text, in a sea of zeros.\n'*20)
        f.truncate(SIZE)
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'PYTHONWARNINGS': 'ignore'}
    p = subprocess.run([sys.executable, '-c', TRAIN, str(text)], cwd=tmp_path, env=env, text=True, timeout=300,
                       capture_output=True)
    assert p.returncode == 0, p.stderr
    got = json.loads(p.stdout.splitlines()[-1])
    assert got['first step'] < 10
    assert max(got['most'], got['after']) - got['before'] < 1e9
    assert got['results']['characters'] <= 10_000               # of half a billion
    assert f"on {got['results']['characters']:,} of 500,000,000 characters" in p.stdout
