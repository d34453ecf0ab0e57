"""The library against itself before there was one engine for attention: whole training steps and peaks of memory.

The older modules are taken out of the project's history under another package name, so that both versions run in one
process. Every language model takes training steps (forward and backward, with the past it carries) in alternating
runs, old and new. Peaks of memory are measured in a process of their own for each model and version."""
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
OLD = '685033a'                     # the last commit with five engines
BATCH, LENGTH, RUNS = 4, 512, 9
SIZE = dict(d_model=256, n_layers=4, n_heads=4)
OWN = dict(transformer=dict(max_len=LENGTH), character_transformer=dict(max_len=LENGTH),
           transformer_xl=dict(mem_len=LENGTH), adaptive_span=dict(max_span=1024), dynamic_span=dict(max_span=1024),
           image_transformer=dict(size=(28, 28)),
           sparse_transformer=dict(max_len=4*LENGTH, stride=32))
LONGER = dict(image_transformer=784, sparse_transformer=4*LENGTH)        # where sparse attention pays


def old_package():
    "The older modules as a package `old_family` in a folder of their own; its path."
    folder = Path(tempfile.mkdtemp())
    packed = subprocess.run(['git', 'archive', OLD, 'transformer_family'], cwd=ROOT, capture_output=True)
    if packed.returncode:
        raise RuntimeError(f'commit {OLD} is not in this checkout: fetch the whole history first')
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
        tar.extractall(folder)
    (folder/'transformer_family').rename(folder/'old_family')
    for path in (folder/'old_family').glob('*.py'):
        path.write_text(path.read_text().replace('transformer_family', 'old_family'))
    return folder


def stepper(package, name, device):
    "A function that takes one training step of a model of a version and returns its seconds."
    torch.manual_seed(0)
    zoo = importlib.import_module(f'{package}.zoo')
    model = zoo.build(name, device, **SIZE, **OWN[name]).train()
    tokens = torch.randint(256, (BATCH, LONGER.get(name, LENGTH) + 1), device=device)
    x, y = (tokens[:, :-1], tokens[:, 1:]) if name != 'image_transformer' else (
        F.pad(tokens[:, 1:-1], (1, 0), value=256), tokens[:, 1:])
    past = model(x, None, y).past if model.carries_past else None

    def step():
        model.zero_grad()
        start = time.perf_counter()
        out = model(x, past, y)
        loss = F.cross_entropy(out.logits.flatten(0, 1), y.flatten())
        (loss + sum(model.loss_weights[n]*v for n, v in out.losses.items())).backward()
        if device == 'cuda':
            torch.cuda.synchronize()
        return time.perf_counter() - start
    return step


def peak(package, name):
    "MiB that training steps add, in this process."
    from benchmarks.sparse import added
    step = stepper(package, name, 'cpu')
    step()
    return added(step)


def alone(folder, package, name, tries=3):
    "The median of `peak` in processes of their own."
    env = {**os.environ, 'MALLOC_MMAP_THRESHOLD_': '500000',
           'PYTHONPATH': os.pathsep.join([str(ROOT), str(folder)])}
    command = [sys.executable, '-m', 'benchmarks.versions', package, name]
    outs = (subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout
            for _ in range(tries))
    return round(median(map(float, outs)), 1)


def run(device):
    folder = old_package()
    sys.path.insert(0, str(folder))
    out = {}
    for name in OWN:
        steps = {p: stepper(p, name, device) for p in ('old_family', 'transformer_family')}
        for step in steps.values():
            step()
        times = {p: [] for p in steps}
        for _ in range(RUNS):
            for p, step in steps.items():
                times[p].append(step())
        old, new = (1e3*median(t) for t in times.values())
        out[name] = dict(old_milliseconds=round(old, 1), new_milliseconds=round(new, 1),
                         of_old=round(median(b/a for a, b in zip(*times.values())), 3))
        if device == 'cpu':
            out[name] |= {f'{p.split("_")[0].replace("transformer", "new")}_peak_mib': alone(folder, p, name)
                          for p in steps}
    return out


if __name__ == '__main__':
    print(peak(*sys.argv[1:]))
