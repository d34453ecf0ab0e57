"""What do short spans save? Time of attention proper (scores, mask, softmax, sum), forward and backward.

2,048 queries of 8 heads of 64 with as many keys before them, S = 2,048, R = 32. All heads have the same span; the
computation is cut to what it reaches. Spans take turns in one process, so that whatever else the machine does meets
all of them; the ratio is the median over the rounds. The dense form with its full matrix, under autograd, is there
for comparison."""
import time
from statistics import median

import torch

from transformer_family.adaptive_span import AdaptiveSpan, soft_attention, span_attention

S, T, HEADS, D_HEAD, RAMP = 2048, 2048, 8, 64, 32
SPANS, RUNS = (16, 64, 128, 256, 512, 1024, 2048), 7


def inputs(device):
    def make(*shape):
        return torch.randn(*shape, device=device, requires_grad=True)
    q = make(1, HEADS, T, D_HEAD)
    k, v = (make(1, HEADS, S + T, D_HEAD) for _ in range(2))
    return q, k, v, make(D_HEAD, S)


def seconds(f, xs, device):
    "Time of a forward and a backward pass."
    for x in xs:
        x.grad = None
    start = time.perf_counter()
    f(*xs).square().mean().backward()
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cut(z, **kw):
    "Attention within spans of `z` tokens."
    span = AdaptiveSpan(HEADS, S, RAMP, init=z)

    def f(q, k, v, table, param):
        tokens = S*param.view(1, -1, 1, 1)
        return span_attention(q, k, v, table, tokens, RAMP, n_keys=max(span.n_keys(tokens)), **kw)
    return f, span.z


def dense(q, k, v, table, param):
    return soft_attention(q, k, v, table, S*param.view(1, -1, 1, 1), RAMP)


def run(device):
    torch.manual_seed(0)
    xs, forms = inputs(device), {z: cut(z) for z in SPANS}
    forms = {z: (f, [*xs, p.detach().to(device).requires_grad_()]) for z, (f, p) in forms.items()}
    times = {z: [] for z in SPANS}
    for i in range(RUNS + 1):
        for z, (f, args) in forms.items():
            t = seconds(f, args, device)
            if i:                       # the first round warms up
                times[z].append(t)
    whole = forms[64][1]
    slow = min(seconds(dense, whole, device) for _ in range(2))
    ms = {str(z): round(1e3*median(t), 2) for z, t in times.items()}
    ratio = median(a/b for a, b in zip(times[S], times[64]))
    return dict(queries=T, max_span=S, heads=HEADS, d_head=D_HEAD, ramp=RAMP, runs=RUNS, milliseconds_by_span=ms,
                milliseconds_short=ms['64'], milliseconds_full=ms[str(S)], ratio=round(ratio, 2),
                milliseconds_dense=round(1e3*slow, 1))
