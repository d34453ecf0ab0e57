"""What does GTrXL's memory cost while acting, and which joins learn to act?

Acting: steps of 64 environments in a second at 8 layers, keys of the memory cached, against computing the window of the
memory again at every step. Training: frames in a second, forward and backward, against the package `gtrxl-torch` where
it is installed, at the same sizes. Curves: RepeatPrevious(4) and T-mazes by join and seed, scores over frames.

    python -m benchmarks.gated_transformer_xl acting|package|repeat|maze [NAME SEED]    one part, printed"""
import json
import math
import subprocess
import sys
import time
from functools import partial

import torch

from transformer_family.core import count_params
from transformer_family.gated_transformer_xl import (
    GRUGate,
    GTrXL,
    HighwayGate,
    InputGate,
    OutputGate,
    ResidualGate,
    SigTanhGate,
)
from transformer_family.reinforcement_learning import (
    VMPO,
    FollowAgent,
    LSTMCore,
    Memoryless,
    RepeatPrevious,
    TMaze,
    agent_for,
    ppo,
    rl_learner,
)
from transformer_family.training import evaluating

ENVS, STEPS, LAYERS = 64, 12, 8
SEEDS, FRAMES = 3, 80_000
SIGHT = dict(gamma=.5, lam=.9)        # in both tasks an action is rewarded at once, or never
GATES = {'TrXL': None, 'TrXL-I': ResidualGate, 'input': InputGate, 'output': OutputGate, 'highway': HighwayGate,
         'sigtanh': SigTanhGate, 'GRU': GRUGate, 'GRU, b_g=0': partial(GRUGate, bias=0.)}


def cores(n_layers=8, mem_len=32):
    "Name -> core; a core is called with d_model."
    made = {n: partial(GTrXL, n_layers=n_layers, n_heads=2, mem_len=mem_len, gate=g) for n, g in GATES.items()}
    return made | {'LSTM': LSTMCore, 'memoryless': Memoryless}


def acting(device, d_model=64, mem_len=64):
    "Environment steps in a second, cached and computed again."
    model = GTrXL(d_model, LAYERS, 4, mem_len=mem_len).to(device)
    stream = torch.randn(ENVS, mem_len+STEPS, d_model, device=device)
    out = {}
    with evaluating(model):
        for name in ('recomputed', 'cached'):
            past = model(stream[:, :mem_len])[1]
            start = time.perf_counter()
            for i in range(mem_len, mem_len+STEPS):
                if name == 'cached':
                    past = model(stream[:, i:i+1], past)[1]
                else:
                    model(stream[:, i-mem_len:i+1])
            out[name] = ENVS*STEPS/(time.perf_counter() - start)
    return out


def package(device, d_model=64, t=64, n=3):
    "Frames in a second of training, here and in gtrxl-torch."
    models = {'here': GTrXL(d_model, LAYERS, 4, d_ff=256, mem_len=t)}
    try:
        from gtrxl_torch import GTrXL as Theirs
        models['gtrxl-torch'] = Theirs(d_model, 4, LAYERS, hidden_dims=256, batch_first=True)
    except ImportError:
        pass
    x, out = torch.randn(ENVS, t, d_model, device=device), {}
    for name, model in models.items():
        model.to(device).train()
        for k in range(n+1):
            if k == 1:
                start = time.perf_counter()
            y = model(x)
            (y[0] if isinstance(y, tuple) else y).square().mean().backward()
        out[name] = n*ENVS*t/(time.perf_counter() - start)
    return out


def learn(env, core, seed, frames, loss=None, lr=2e-3, d_model=32, **kwargs):
    "One run: the score at each rollout, seconds, parameters."
    torch.manual_seed(seed)
    agent = agent_for(env, core, d_model)
    learn = rl_learner(env, agent, loss or ppo, lr, seed=seed, **SIGHT, **kwargs)
    start, n = time.process_time(), math.ceil(frames/env.num_envs/learn.dls.train.t)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(n, lr, pct_start=.1)
    scores = [(f, None if math.isnan(s) else round(s, 4)) for f, s in learn.dls.train.scores]
    return dict(scores=scores, seconds=round(time.process_time() - start, 1), params=count_params(agent))


def repeat(name, seed, frames=FRAMES):
    "RepeatPrevious(4), 64 environments, segments and memory of 32 steps; 'GRU, V-MPO' takes the other loss."
    core, _, loss = name.partition(', V')
    extra = dict(loss=VMPO(), cbs=FollowAgent()) if loss else {}
    return learn(RepeatPrevious(4, num_envs=ENVS, seed=seed), cores()[core], seed, frames, **extra)


def maze(mem_len, seed, frames=60_000):
    "A T-maze of 40 places in segments of 8 steps, 2 layers, by length of the memory."
    core = cores(2, mem_len)['GRU']
    return learn(TMaze(40, ENVS, seed), core, seed, frames, t=8, lr=3e-3)


def alone(*args):
    "A part in a process of its own."
    cmd = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.gated_transformer_xl', *map(str, args)]
    res = subprocess.run(cmd, capture_output=True, text=True, check=True)
    return json.loads(res.stdout.splitlines()[-1])


def run(device):
    "Every part; the curves take about an hour on one core."
    names = [*cores(), 'GRU, V-MPO']
    return dict(acting=alone('acting'), package=alone('package'),
                repeat={n: [alone('repeat', n, s) for s in range(SEEDS)] for n in names},
                maze={m: [alone('maze', m, s) for s in range(SEEDS)] for m in (48, 24)})


PARTS = dict(acting=acting, package=package)


def main(part, *args):
    if part in PARTS:
        return PARTS[part]('cpu')
    name, seed, *frames = args
    return dict(repeat=repeat, maze=maze)[part](int(name) if part == 'maze' else name, int(seed), *map(int, frames))


if __name__ == '__main__':
    torch.set_num_threads(1)
    print(json.dumps(main(*sys.argv[1:])))
