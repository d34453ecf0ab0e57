"""What does GTrXL's memory cost while acting, and how fast is it trained?

Acting: steps of 64 environments in a second at 8 layers, keys of the memory cached, against computing the window of the
memory again at every step. Training: frames in a second, forward and backward, against the stack of the package
`DI-engine` (Apache-2.0), where it is installed, at the same sizes, segments and memory. (`gtrxl-torch` 0.1.7 does not
run with torch 2.) Every part runs in a process of its own; the best of three.

    python -m benchmarks.gated_transformer_xl acting|package     one part, printed"""
import json
import subprocess
import sys
import time

import torch

from transformer_family.core import count_params
from transformer_family.gated_transformer_xl import GTrXL
from transformer_family.training import evaluating

ENVS, LAYERS, D, HEADS, FF, MEMORY, STEPS, TIMES = 64, 8, 64, 4, 256, 64, 16, 3


def model_here(d_ff=FF):
    return GTrXL(D, LAYERS, HEADS, d_ff=d_ff, mem_len=MEMORY)


def best(f, frames):
    "Frames in a second: the best of some calls, after one that does not count."
    f()
    took = []
    for _ in range(TIMES):
        start = time.perf_counter()
        f()
        took.append(time.perf_counter() - start)
    return round(frames/min(took), 1)


def acting(device):
    "Environment steps in a second, cached and recomputed."
    model = model_here().to(device)
    stream = torch.randn(ENVS, MEMORY+STEPS, D, device=device)

    def cached():
        past = model(stream[:, :MEMORY])[1]
        start = time.perf_counter()
        for i in range(MEMORY, MEMORY+STEPS):
            past = model(stream[:, i:i+1], past)[1]
        return time.perf_counter() - start

    def recomputed():
        start = time.perf_counter()
        for i in range(MEMORY, MEMORY+4):
            model(stream[:, i-MEMORY:i+1])
        return time.perf_counter() - start

    with evaluating(model):
        out = {f.__name__: ENVS*n/min(f() for _ in range(TIMES)) for f, n in ((recomputed, 4), (cached, STEPS))}
    return out | {'ratio': out['cached']/out['recomputed']}


def di_engine():
    "The package's stack: Transformer-XL's attention, a memory that is always full, GRU gates."
    from ding.torch_utils.network.gtrxl import GTrXL as Theirs
    return Theirs(D, D//HEADS, D, HEADS, layer_num=LAYERS, memory_len=MEMORY, use_embedding_layer=False)


def package(device, t=64):
    "Frames in a second of training; inner size d_model, as DI-engine has it."
    x, out = torch.randn(ENVS, t, D, device=device), {}
    model = model_here(D).to(device).train()
    past = model(x)[1]
    calls = {'here': (model, lambda: model(x, past)[0])}
    try:
        other = di_engine().to(device).train()
        calls['DI-engine 0.5.3'] = other, lambda: other(x.transpose(0, 1))['logit']
    except ImportError:
        pass
    for name, (model, call) in calls.items():
        fps = best(lambda: call().square().mean().backward(), ENVS*t)
        out[name] = dict(frames_per_second=fps, params=count_params(model))
    return out


def alone(*args):
    "A part in a process of its own."
    cmd = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.gated_transformer_xl', *map(str, args)]
    res = subprocess.run(cmd, capture_output=True, text=True, check=True)
    return json.loads(res.stdout.splitlines()[-1])


def run(device):
    "Both parts."
    return dict(sizes=dict(environments=ENVS, d_model=D, n_layers=LAYERS, n_heads=HEADS, d_ff=FF, mem_len=MEMORY),
                acting=alone('acting', device), package=alone('package', device))


if __name__ == '__main__':
    torch.set_num_threads(1)
    print(json.dumps(dict(acting=acting, package=package)[sys.argv[1]](*(sys.argv[2:] or ['cpu']))))
