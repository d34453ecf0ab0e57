"""Attention calls of the library against itself before there was one engine.

Each pattern's call takes gradients (train) and runs without them (infer), old and new in turns, in one process and on
one thread. What counts is processor time, which other work on the machine disturbs little; of_old is the median of the
ratios over three passes through all calls. The sizes include those at which the engine is slowest: many tiles of a
batch of one."""
import importlib
import math
import sys
import time
from functools import partial
from statistics import median

import torch

from benchmarks.versions import old_package

RUNS, PASSES = 5, 3
WINDOWS = (1, 4, 4096, 32, 64), (8, 4, 4096, 32, 64), (1, 8, 16_384, 64, 256)            # b, h, t, k, n
STRIDES = [(*size, n) for size in ((1, 8, 4096, 64), (8, 4, 1024, 64), (1, 4, 4096, 32)) for n in (32, 64, 128)]
IMAGES = (('2d', (28, 28), (4, 4), (4, 4), 1), ('2d', (28, 28), (4, 4), (4, 4), 8), ('2d', (28, 28), (8, 8), (4, 4), 1),
          ('2d', (32, 32, 3), (4, 4), (4, 4), 1), ('1d', (28, 28), 16, 16, 1), ('1d', (28, 28), 56, 84, 1),
          ('1d', (28, 28), 56, 84, 8), ('1d', (32, 32, 3), None, None, 1))
XL = (16, 8, 256, 512, 64), (1, 8, 256, 512, 64), (4, 4, 128, 256, 32), (1, 8, 512, 4312, 64)      # b, h, t, s, k
SPANS = (1, 8, 2048, 64, 2048, 96), (4, 4, 512, 64, 1024, 64), (4, 4, 512, 64, 1024, 400)          # b, h, t, k, S, n


def qkv(b, h, t, k, s=None):
    return [torch.randn(b, h, n, k) for n in (t, s or t, s or t)]


def by_rows(attend, **kwargs):
    "An older function of rows [N,t,k] as one of [b,h,t,k]."
    return lambda q, k, v: attend(*(x.flatten(0, 1) for x in (q, k, v)), **kwargs)[0].unflatten(0, q.shape[:2])


def first(part):
    return lambda *x: part(*x)[0]


def cases(old, new):
    "Name -> old call, new call, their inputs."
    for b, h, t, k, n in WINDOWS:
        yield f'window {n}, {b}x{h}x{t}x{k}', partial(old('blocks').local_attention, n=n), \
            partial(new('blocks').local_attention, n=n), qkv(b, h, t, k)
    o, m = old('sparse_transformer'), new('sparse_transformer')
    for b, h, t, k, n in STRIDES:
        size = f'{n}, {b}x{h}x{t}x{k}'
        yield f'block {size}', by_rows(o.block_attention, l=n), first(m.fixed_block(n).part), qkv(b, h, t, k)
        yield f'column {size}', by_rows(o.column_attention, l=n), first(m.strided_column(n).part), qkv(b, h, t, k)
        yield f'summaries {size}', by_rows(o.summary_attention, l=n, c=8), first(m.fixed_summary(n, 8).part), \
            qkv(b, h, t, k)
    o, m = old('image_transformer'), new('image_transformer')
    for kind, size, block, memory, b in IMAGES:
        args = kind, size, block, memory
        yield f'image {kind} {size} {block}, batch {b}', o.local_pattern(*args), m.local_pattern(*args), \
            qkv(b, 4, math.prod(size), 64)
    o, m = old('transformer_xl'), new('transformer_xl')
    for b, h, t, s, k in XL:
        yield f'shifted, {b}x{h}x{t}x{s}x{k}', o.shifted_attention, \
            lambda q, k, v, r, u, w, m=m: m.shifted_attention(q, k, v, r, (u, w)), \
            [*qkv(b, h, t, k, s), torch.randn(h, s+1, k), torch.randn(h, k), torch.randn(h, k)]
    o, m = old('adaptive_span'), new('adaptive_span')
    for b, h, t, k, S, n in SPANS:
        yield f'span {n} of {S}, {b}x{h}x{t}x{k}', \
            lambda *x, n=n, o=o: o.span_attention(*x, 32, reach=n), \
            lambda *x, n=n, m=m: m.span_attention(*x, 32, n_keys=n), \
            [*qkv(b, h, t, k, t+S), torch.randn(k, S), torch.full((1, h, 1, 1), n - 32.)]


def seconds(call, xs, train):
    start = time.process_time()
    if train:
        torch.autograd.grad(call(*xs).square().mean(), xs)
    else:
        with torch.no_grad():
            call(*xs)
    return time.process_time() - start


def run(device):
    if device != 'cpu':
        raise SystemExit('old and new calls are compared on the CPU: there both tile')
    sys.path.insert(0, str(old_package()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    versions = [lambda m, p=p: importlib.import_module(f'{p}.{m}') for p in ('old_family', 'transformer_family')]
    times = {}
    for n in range(PASSES):                 # what the allocator still holds from other sizes makes a difference
        for name, *calls, xs in [*cases(*versions)][::(-1)**n]:
            for train in (True, False):
                xs = [x.requires_grad_(train) for x in xs]
                pairs = [[seconds(f, xs, train) for f in calls] for _ in range(RUNS)]
                times.setdefault(name, {}).setdefault('train' if train else 'infer', []).extend(pairs[1:])
    torch.set_num_threads(threads)
    return {name: {kind: figures(pairs) for kind, pairs in kinds.items()} for name, kinds in times.items()}


def figures(pairs):
    old, new = (round(1e3*median(t), 2) for t in zip(*pairs))
    return dict(old_milliseconds=old, new_milliseconds=new, of_old=round(median(b/a for a, b in pairs), 3))
