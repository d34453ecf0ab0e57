"""What do sparse patterns save? Time of attention proper, forward and backward, float32, 8 heads of 64.

At 16,384 positions: a causal window of 256 keys, and the strided and fixed patterns with a stride of 128, against
`F.scaled_dot_product_attention` in both of its dense forms, `is_causal` and a mask. All forms take turns in
one process, so that whatever else the machine does meets all of them. "In turns" is what the model does by default:
two layers, one for each subset, against two dense ones. Then by length: the window at 4K to 32K positions, with the
peak of memory of each length in a process of its own; both patterns in one head, with a stride of √L; and short
sequences, where the whole matrix is faster. On CUDA the comparison is with FlexAttention under the same spans. The
package `local-attention` joins where it is installed."""
import math
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

from transformer_family.attention import block_mask, open_rows, span_mask, window
from transformer_family.blocks import count_pairs, local_attention
from transformer_family.sparse_transformer import SparseAttend, SparseTransformer, by_head, patterns

L, HEADS, D_HEAD, WINDOW, STRIDE, RUNS = 16384, 8, 64, 256, 128, 5
LENGTHS, SQUARES = (4096, 8192, 16384, 32768), (1024, 4096, 16384)
SHORT, BLOCKS = (64, 128, 256, 512, 1024), (32, 64, 128, 256)


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


def tiles(span):
    "The algorithm of a mask as a function of queries, keys and values."
    return lambda *x: span.part(*x)[0]


def sparse_forms():
    "name -> (function, predicate)"
    forms = {'window 256': (partial(local_attention, n=WINDOW), window(WINDOW))}
    named = dict(zip(('strided: window', 'strided: column', 'strided: in one head'), patterns['strided'](STRIDE, 1)))
    for c in (8, 32):
        named['fixed: block'], summaries, both = patterns['fixed'](STRIDE, c)
        named |= {f'fixed, c = {c}: summaries': summaries, f'fixed, c = {c}: in one head': both}
    return forms | {name: (tiles(span), span) for name, span in named.items()}


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
    from torch.nn.attention.flex_attention import flex_attention
    block = block_mask(span, t, device='cuda')
    def attend(q, k, v):
        return flex_attention(q, k, v, block_mask=block)
    attend.__code__ = attend.__code__.replace()             # eight variants of one function are all that is compiled
    return torch.compile(attend, dynamic=False)


def in_turns_of(figure):
    "What two layers, one for each subset, have of a figure together."
    pairs = {'strided': ('strided: window', 'strided: column')}
    pairs |= {f'fixed, c = {c}': ('fixed: block', f'fixed, c = {c}: summaries') for c in (8, 32)}
    return {f'{n}: in turns': figure[a] + figure[b] for n, (a, b) in pairs.items()}


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
    model(torch.zeros(1, 1024).long()).logits.sum().backward()      # loads what tiles need
    return added(lambda: model(torch.zeros(1, 4096).long()).logits.sum().backward())


def alone(*args):
    "A figure measured in a process of its own."
    root = Path(__file__).resolve().parent.parent
    cmd = [sys.executable, '-m', 'benchmarks.sparse', *map(str, args)]
    env = {**os.environ, 'MALLOC_MMAP_THRESHOLD_': '500000'}    # what is freed is given back
    return round(float(subprocess.run(cmd, cwd=root, env=env, check=True, capture_output=True, text=True).stdout), 1)


def by_size(forms, runs=RUNS):
    "Milliseconds of (function, inputs) by name; all take turns."
    times = {n: [] for n in forms}
    for _ in range(runs + 1):
        for n, (f, xs) in forms.items():
            times[n].append(seconds(f, xs))
    return {str(n): round(1e3*median(t[1:]), 2) for n, t in times.items()}


def growth(device):
    "The window by length, and by the size of its blocks."
    xs = {t: inputs(t, device) for t in LENGTHS}
    lengths = by_size({t: (partial(local_attention, n=WINDOW), xs[t]) for t in LENGTHS})
    return lengths, by_size({B: (partial(local_attention, n=WINDOW, block=B), xs[LENGTHS[1]]) for B in BLOCKS})


def squares(device):
    "Both patterns in one head with a stride of √L, and dense attention, by length."
    kinds = {'strided': lambda t: tiles(patterns['strided'](math.isqrt(t), 1)[2]),
             'fixed, c = 8': lambda t: tiles(patterns['fixed'](math.isqrt(t), 8)[2]),
             'is_causal': lambda t: partial(F.scaled_dot_product_attention, is_causal=True)}
    xs = {t: inputs(t, device) for t in SQUARES}
    ms = by_size({(n, t): (f(t), xs[t]) for n, f in kinds.items() for t in SQUARES}, 3)
    return {n: {str(t): ms[str((n, t))] for t in SQUARES} for n in kinds}


def short(device):
    "Each mask in tiles and as a whole matrix, a batch of 8 with 4 heads of 32, a stride of √L."
    out = {}
    for t in SHORT:
        l = math.isqrt(t)
        named = dict(zip(('window', 'column', 'strided in one head', 'block', 'summaries', 'fixed in one head'),
                         (*patterns['strided'](l, 1), *patterns['fixed'](l, max(1, l//4)))))
        xs = [torch.randn(8, 4, t, 32, device=device, requires_grad=True) for _ in range(3)]
        for n, span in named.items():
            mask, _ = open_rows(span_mask(span, t, device=device))
            whole = partial(F.scaled_dot_product_attention, attn_mask=mask)
            ms = by_size({'whole': (whole, xs), 'tiles': (tiles(span), xs)}, 9)
            out.setdefault(n, {})[str(t)] = round(ms['whole']/ms['tiles'], 2)
    return out


def run(device):
    torch.manual_seed(0)
    xs, forms = inputs(L, device), sparse_forms()
    fast, dense = {n: f for n, (f, _) in forms.items()}, rivals(device)
    if device == 'cuda':                # the path that the model takes there
        fast = {n: SparseAttend(by_head((span,), (HEADS,)), False) for n, (_, span) in forms.items()} | {
            'window 256': fast['window 256']}
    if attend := package() if device == 'cpu' else None:
        fast['package local-attention'] = attend
    ms = in_turns({**fast, **dense}, xs, RUNS, warm=fast if device == 'cpu' else None)
    best = min(ms[n] for n in dense)
    turns = in_turns_of(ms)
    pairs = {n: count_pairs(span, L) for n, (_, span) in forms.items()}
    out = dict(length=L, heads=HEADS, d_head=D_HEAD, window=WINDOW, stride=STRIDE, runs=RUNS,
               milliseconds={**ms, **turns},
               speedup={n: round(best/ms[n], 2) for n in forms} | {n: round(2*best/t, 2) for n, t in turns.items()},
               pairs=pairs | in_turns_of(pairs))
    if attend:
        out['against_package'] = round(ms['package local-attention']/ms['window 256'], 2)
    if device == 'cuda':
        names = ('window 256', 'strided: in one head', 'fixed, c = 8: in one head', 'fixed, c = 32: in one head')
        kernels = in_turns({n: flex(forms[n][1]) for n in names}, xs, RUNS)
        return dict(out, flex_milliseconds=kernels, of_flex={n: round(ms[n]/kernels[n], 2) for n in names})
    by_length, by_block = growth(device)
    steps = list(by_length.values())
    return dict(out, window_milliseconds_by_length=by_length, window_milliseconds_by_block_at_8192=by_block,
                factor_per_doubling=[round(b/a, 2) for a, b in zip(steps, steps[1:])],
                milliseconds_by_length_at_stride_sqrt=squares(device), whole_over_pieces=short(device),
                window_peak_mib_by_length={str(t): alone('window', t) for t in LENGTHS},
                training_peak_mib={n: alone('training', n) for n in ('kept', 'recomputed')})


if __name__ == '__main__':
    what, arg = sys.argv[1:]
    print(peak(int(arg)) if what == 'window' else training_peak(arg == 'recomputed'))
