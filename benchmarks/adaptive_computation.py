"""Does time follow the mean number of steps, and not the largest? Forward and backward passes of one position.

256 rows of a GRU cell of 512 units. How many steps each row needs is set by hand: some rows take all 20, the others
one, so that the largest number is the same in every batch and the mean is not. Rows that have halted are left out of
the work (`packed`, what eager mode does), or take part in all steps under a mask (`masked`, what is compiled). Batches
and forms take turns in one process; each time is the median over the rounds."""
import time
from statistics import median

import torch
from torch import nn

from transformer_family.adaptive_computation import ACT

ROWS, WIDTH, MOST, ROUNDS = 256, 512, 20, 7
SHARES = (0., .05, .1, .25, .5, 1.)         # of the rows, that take all steps


class Needing(ACT):
    "Rows halt after the number of steps that stands in the first place of their input."
    def step(self, x, state, n):
        new, h = super().step(x, state, n)
        return new, h*0 + (x[:, 0] <= n).to(h.dtype)


def inputs(share, device):
    "A batch in which a share of the rows needs all steps."
    x = torch.randn(ROWS, WIDTH, device=device)
    x[:, 0] = 1
    x[torch.randperm(ROWS)[:round(share*ROWS)], 0] = MOST
    return x


def seconds(act, form, x, device):
    "Time of a forward and a backward pass."
    act.zero_grad()
    start = time.perf_counter()
    (means, ponder), _ = getattr(act, form)(x)
    means[0].square().mean().backward()
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start, ponder.steps.double().mean().item()


def run(device):
    torch.manual_seed(0)
    act = Needing(nn.GRUCell(WIDTH + 1, WIDTH), max_steps=MOST).to(device)
    batches = {s: inputs(s, device) for s in SHARES}
    times, means = {(s, f): [] for s in SHARES for f in ('packed', 'masked')}, {}
    for i in range(ROUNDS + 1):
        for s, form in times:
            t, means[s] = seconds(act, form, batches[s], device)
            if i:                       # the first round warms up
                times[s, form].append(t)
    ms = {k: round(1e3*median(t), 2) for k, t in times.items()}
    mixed = .1
    return dict(rows=ROWS, width=WIDTH, most_steps=MOST, rounds=ROUNDS,
                mean_steps={str(s): round(m, 2) for s, m in means.items()},
                milliseconds_packed={str(s): ms[s, 'packed'] for s in SHARES},
                milliseconds_masked={str(s): ms[s, 'masked'] for s in SHARES},
                ratio=round(ms[mixed, 'masked']/ms[mixed, 'packed'], 2))
