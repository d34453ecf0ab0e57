"""What evaluation without a cache, and a loss in chunks, save: peaks of memory, seconds; a process for each.

The cache is that of the published character model of 64 layers; the loss that of a plain head over 50,000 words."""
import os
import subprocess
import sys
import time

import torch

from benchmarks.sparse import added
from benchmarks.versions import ROOT
from transformer_family import zoo
from transformer_family.training import asked, costs
from transformer_family.transformer import TransformerLM

BATCH, LENGTH = 4, 512


def evaluation(cache):
    "A pass over a batch by the 64 layers, with the keys and values of all layers left or of none."
    torch.manual_seed(0)
    model = zoo.build('character_transformer/t64', auxiliary=False).eval()
    tokens = torch.randint(256, (BATCH, LENGTH))
    with torch.no_grad():
        model(tokens[:1, :8])
    return lambda: model(tokens, cache=cache == 'on')


def loss(chunk):
    "A training step's loss over many words, all scores at once or some positions at a time."
    torch.manual_seed(0)
    model = TransformerLM(50_000, d_model=256, n_layers=1, n_heads=4, max_len=LENGTH,
                          loss_chunk=None if chunk == 'whole' else int(chunk))
    tokens = torch.randint(50_000, (BATCH, LENGTH))

    def step():
        costs(model(tokens, **asked(model, tokens)), tokens).mean().backward()
    step()
    model.zero_grad()
    return step


def measured(kind, how):
    "MiB that it adds, and seconds."
    f = dict(evaluation=evaluation, loss=loss)[kind](how)
    with torch.set_grad_enabled(kind == 'loss'):
        start = time.perf_counter()
        mib = added(f)
    return mib, time.perf_counter() - start


def alone(kind, how):
    "`measured` in a process of its own."
    env = {**os.environ, 'MALLOC_MMAP_THRESHOLD_': '500000', 'PYTHONPATH': str(ROOT)}
    out = subprocess.run([sys.executable, '-m', 'benchmarks.evaluation', kind, how], cwd=ROOT, env=env, check=True,
                         capture_output=True, text=True)
    mib, seconds = map(float, out.stdout.split())
    return dict(mib=round(mib, 1), seconds=round(seconds, 2))


def run(device):
    if device != 'cpu':
        raise SystemExit('the peaks are those of a process: run it with --device cpu')
    return dict(batch=BATCH, length=LENGTH,
                cache={how: alone('evaluation', how) for how in ('on', 'off')},
                loss={how: alone('loss', how) for how in ('whole', '256')})


if __name__ == '__main__':
    print(*measured(*sys.argv[1:]))
