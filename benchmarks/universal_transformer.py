"""What does halting save? A pass of the recurrence, against the same model forced to the largest number of steps.

8 rows of 256 positions of 256 features, at most twelve steps. Which positions halt when is set by hand: a share takes
all twelve steps, the others two. Forms take turns in one process; each time is the smallest of the rounds, which a busy
machine disturbs least. `ratio` is that of the batch in which a tenth of the positions takes all steps, in evaluation;
`ratio_training` with a backward pass."""
import time

import torch

from transformer_family.attention import causal
from transformer_family.positions import sinusoidal
from transformer_family.transformer import nothing
from transformer_family.universal_transformer import Halting, Recurrence

ROWS, LENGTH, WIDTH, HEADS, STEPS, ROUNDS = 8, 256, 256, 4, 12, 9
SHARES = (0., .1, .25, .5, 1.)         # of the positions, that take all steps


class Planned(Halting):
    "Positions halt at the step that the plan says."
    fields = *Halting.fields, 'plan'        # what moves with the positions
    plan = None

    def add(self, h, x):
        super().add((self.plan <= self.n + 1).to(h.dtype), x)


def plan(share, device):
    "How many steps each position takes: the same share in every row."
    order = torch.rand(ROWS, LENGTH, device=device).argsort(1)
    return torch.where(order < round(share*LENGTH), STEPS, 2)


def seconds(stack, x, S, device, train):
    start = time.perf_counter()
    with torch.set_grad_enabled(train):
        y = stack(x, S, mask=causal, keep=nothing)[0]
        if train:
            y.square().mean().backward()
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start


def run(device):
    torch.manual_seed(0)
    stack = Recurrence(WIDTH, STEPS, HEADS, act='mean_field').to(device)
    stack.halting = Planned
    forced = Recurrence(WIDTH, STEPS, HEADS).to(device)
    x, S = torch.randn(ROWS, LENGTH, WIDTH, device=device), sinusoidal(LENGTH, WIDTH, device=device)
    plans, times = {s: plan(s, device) for s in SHARES}, {}
    for i in range(ROUNDS + 1):
        for key in [*((s, False) for s in SHARES), ('forced', False), (.1, True), ('forced', True)]:
            share, train = key
            Planned.plan = plans.get(share)
            t = seconds(forced if share == 'forced' else stack, x, S, device, train)
            if i:                       # the first round warms up
                times.setdefault(key, []).append(t)
    ms = {k: 1e3*min(t) for k, t in times.items()}
    return dict(rows=ROWS, length=LENGTH, width=WIDTH, heads=HEADS, most_steps=STEPS, rounds=ROUNDS,
                milliseconds={str(s): round(ms[s, False], 1) for s in SHARES},
                milliseconds_forced=round(ms['forced', False], 1),
                ratio=round(ms['forced', False]/ms[.1, False], 2),
                ratio_training=round(ms['forced', True]/ms[.1, True], 2))
