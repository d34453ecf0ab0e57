"""What do sparse patterns save? Time of attention proper, forward and backward, float32, 8 heads of 64.

At 16,384 positions: a causal window of 256 keys, and the strided and fixed patterns with a stride of 128, against
`F.scaled_dot_product_attention` in both of its dense forms, `is_causal` and a mask. All forms take turns in
one process, so that whatever else the machine does meets all of them. `interleaved` is what the model does by default:
two layers, one for each subset, against two dense ones. Then the window at 4K to 32K positions: the
factor for each doubling, and the peak of memory, each length in a process of its own. On CUDA the comparison is with
FlexAttention under the same spans. The package `local-attention` joins where it is installed."""
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from transformer_family.attention import span_mask, window
from transformer_family.blocks import count_pairs, local_attention
from transformer_family.sparse_transformer import Part, SparseAttend, SparseTransformer, fixed_parts, strided_parts

L, HEADS, D_HEAD, WINDOW, STRIDE, RUNS = 16384, 8, 64, 256, 128, 5
LENGTHS = (4096, 8192, 16384, 32768)


def inputs(t, device):
    return [torch.randn(1, HEADS, t, D_HEAD, device=device, requires_grad=True) for _ in range(3)]


def seconds(f, xs):
    "Time of a forward and a backward pass."
    for x in xs:
        x.grad = None
    start = time.perf_counter()
    f(*xs).square().mean().backward()
    if xs[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def flat(part):
    "A part of a pattern as a function of [b,h,t,k]."
    return lambda *x: part.attend(*(a.flatten(0, 1) for a in x))[0].view_as(x[0])


def sparse_forms():
    "name -> (function, predicate)"
    forms = {'window 256': (partial(local_attention, n=WINDOW), window(WINDOW))}
    patterns = {'strided': strided_parts(STRIDE), 'fixed, c = 8': fixed_parts(STRIDE, 8),
                'fixed, c = 32': fixed_parts(STRIDE, 32)}
    for name, parts in patterns.items():
        for which, part in zip(('first', 'second', 'merged'), parts):
            if name == 'fixed, c = 32' or which != 'first' or name == 'strided':    # the fixed block has no c
                forms[f'{name}, {which}'] = flat(part), part.span
    return forms


def package():
    "The package `local-attention` on the same window, or None."
    try:
        from local_attention import LocalAttention
    except ImportError:
        return None
    attend = LocalAttention(dim=D_HEAD, window_size=WINDOW-1, causal=True, look_backward=1, look_forward=0,
                            exact_windowsize=True, use_rotary_pos_emb=False, autopad=True)
    q, k, v = (x.detach()[:, :, :1000] for x in inputs(1000, 'cpu'))
    torch.testing.assert_close(attend(q, k, v), local_attention(q, k, v, WINDOW), rtol=1e-4, atol=1e-4)
    return attend


def rivals(device):
    "name -> dense or flexible form"
    causal = partial(F.scaled_dot_product_attention, is_causal=True)
    mask = span_mask(window(WINDOW), L, device=device)
    return {'is_causal': causal, 'mask': partial(F.scaled_dot_product_attention, attn_mask=mask)}


def in_turns(forms, xs, runs, warm=None):
    "Milliseconds of each form: medians of runs that take turns."
    times = {n: [] for n in forms}
    for f in (warm or forms).values():
        seconds(f, xs)
    for _ in range(runs):
        for n, f in forms.items():
            times[n].append(seconds(f, xs))
    return {n: round(1e3*median(t), 1) for n, t in times.items()}


def flex(span, t=L):
    "FlexAttention with its block mask made beforehand, written without the library."
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    moved = lambda b, h, i, j: span(b, h, i, j)             # a method is not accepted
    block, kernel = create_block_mask(moved, None, None, t, t), torch.compile(flex_attention, dynamic=False)
    return lambda *x: kernel(*x, block_mask=block)


def interleaved(ms):
    "Times of the two subsets of each pattern, one layer after the other."
    block = 'fixed, c = 32, first'                          # which has no c
    first = {'strided': 'strided, first', 'fixed, c = 8': block, 'fixed, c = 32': block}
    return {n: ms[f] + ms[f'{n}, second'] for n, f in first.items()}


def memory(field):
    "Memory of this process in MiB: VmRSS, or its peak VmHWM. (`ru_maxrss` would count the parent's.)"
    return int(re.search(field + r':\s+(\d+)', Path('/proc/self/status').read_text())[1]) / 1024


def added(f):
    "Memory that `f` adds at its peak."
    Path('/proc/self/clear_refs').write_text('5')           # starts VmHWM anew
    before = memory('VmRSS')
    f()
    return memory('VmHWM') - before


def peak(t):
    "Memory that a forward and a backward pass over the window add."
    f = partial(local_attention, n=WINDOW)
    seconds(f, inputs(512, 'cpu'))                          # the libraries' own buffers
    xs = inputs(t, 'cpu')
    return added(lambda: seconds(f, xs))


def training_peak(recompute):
    "Memory that a training step of 16 layers adds, with or without recomputation."
    model = SparseTransformer(d_model=128, n_layers=16, max_len=4096, stride=64, recompute=recompute).train()
    model(torch.zeros(1, 64).long()).logits.sum().backward()
    return added(lambda: model(torch.zeros(1, 4096).long()).logits.sum().backward())


def alone(*args):
    "A figure measured in a process of its own."
    root = Path(__file__).resolve().parent.parent
    cmd = [sys.executable, '-m', 'benchmarks.sparse', *map(str, args)]
    env = {**os.environ, 'MALLOC_MMAP_THRESHOLD_': '500000'}    # what is freed is given back
    return round(float(subprocess.run(cmd, cwd=root, env=env, check=True, capture_output=True, text=True).stdout), 1)


def growth(device):
    "Milliseconds of the window by length."
    xs, f = {t: inputs(t, device) for t in LENGTHS}, partial(local_attention, n=WINDOW)
    times = {t: [] for t in LENGTHS}
    for i in range(RUNS + 1):
        for t in LENGTHS:
            times[t].append(seconds(f, xs[t]))
    return {str(t): round(1e3*median(x[1:]), 1) for t, x in times.items()}


def run(device):
    torch.manual_seed(0)
    xs, forms = inputs(L, device), sparse_forms()
    fast, dense = {n: f for n, (f, _) in forms.items()}, rivals(device)
    if device == 'cuda':                # the path that the model takes there
        fast = {n: SparseAttend(HEADS, Part(span, f)) for n, (f, span) in forms.items()} | {
            'window 256': fast['window 256']}
    if attend := package() if device == 'cpu' else None:
        fast['package local-attention'] = attend
    ms = in_turns({**fast, **dense}, xs, RUNS, warm=fast if device == 'cpu' else None)
    best = min(ms[n] for n in dense)
    out = dict(length=L, heads=HEADS, d_head=D_HEAD, window=WINDOW, stride=STRIDE, runs=RUNS, milliseconds=ms,
               speedup={n: round(best/ms[n], 2) for n in forms},
               interleaved={n: round(2*best/t, 2) for n, t in interleaved(ms).items()},
               pairs={n: count_pairs(span, L) for n, (_, span) in forms.items()})
    if attend:
        out['against_package'] = round(ms['package local-attention']/ms['window 256'], 2)
    if device == 'cuda':
        names = ('window 256', 'strided, merged', 'fixed, c = 8, merged', 'fixed, c = 32, merged')
        kernels = in_turns({n: flex(forms[n][1]) for n in names}, xs, RUNS)
        return dict(out, flex_milliseconds=kernels, of_flex={n: round(ms[n]/kernels[n], 2) for n in names})
    by_length = growth(device)
    steps = list(by_length.values())
    return dict(out, window_milliseconds_by_length=by_length,
                factor_per_doubling=[round(b/a, 2) for a, b in zip(steps, steps[1:])],
                window_peak_mib_by_length={str(t): alone('window', t) for t in LENGTHS},
                training_peak_mib={n: alone('training', n) for n in ('kept', 'recomputed')})


if __name__ == '__main__':
    what, arg = sys.argv[1:]
    print(peak(int(arg)) if what == 'window' else training_peak(arg == 'recomputed'))
