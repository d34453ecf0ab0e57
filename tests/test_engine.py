"""The engine against loops: random shapes, patterns, offsets and dtypes; outputs and gradients."""
import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from benchmarks.transformer_xl import peak_mb
from transformer_family import blocks
from transformer_family.attention import attention, causal, full, span_mask, window
from transformer_family.blocks import (
    Dot,
    Listed,
    Lists,
    Score,
    Tiling,
    Window,
    join,
    listed,
    local_attention,
    tiled_attention,
    tiled_part,
)


def by_loops(q, k, v, allowed):
    "Attention pair by pair: no matrix product, no softmax. allowed: bool [b,h,t,s]."
    out = torch.zeros(*q.shape[:3], v.size(-1), dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        keys = allowed[b, h, i].nonzero().flatten().tolist()
        e = [(q[b, h, i]*k[b, h, j]).sum().div(math.sqrt(q.size(-1))).exp() for j in keys]
        for j, x in zip(keys, e):
            out[b, h, i] = out[b, h, i] + x/sum(e)*v[b, h, j]
    return out


def draw(rnd, dtype=torch.float64):
    "Random sizes, and tensors of them."
    b, h, t, k, w = (rnd.randint(1, n) for n in (2, 3, 9, 4, 4))
    s = t + rnd.choice([0, 0, 1, 5])
    g = torch.Generator().manual_seed(rnd.randint(0, 10**6))
    return [torch.randn(b, h, n, d, generator=g).to(dtype).requires_grad_() for n, d in ((t, k), (s, k), (s, w))]


def agree(ours, theirs, xs, tol=1e-9):
    torch.testing.assert_close(ours.double(), theirs, rtol=tol, atol=tol)
    g = torch.randn_like(theirs)
    wide = torch.autograd.grad((theirs*g).sum(), xs, allow_unused=True, materialize_grads=True, retain_graph=True)
    for a, b in zip(torch.autograd.grad((ours.double()*g).sum(), xs), wide):
        torch.testing.assert_close(a.double(), b.double(), rtol=tol, atol=tol)


def expand(mask, q, k):
    return mask.expand(*q.shape[:3], k.size(2))


@pytest.mark.parametrize('seed', range(40))
def test_windows(seed):
    rnd = random.Random(seed)
    q, k, v = xs = draw(rnd)
    n, block, keep = rnd.randint(1, 12), rnd.randint(1, 12), rnd.choice([0, 10**9])
    allowed = expand(span_mask(window(n), q.size(2), k.size(2)), q, k)
    data = []
    if rnd.random() < .5:
        g = torch.Generator().manual_seed(seed)
        data = [torch.rand(rnd.choice([1, len(q)]), rnd.choice([1, q.size(1)]), *allowed.shape[2:], generator=g) < .6]
        allowed = allowed & data[0]
    agree(tiled_attention(*xs, Window(n, 0, block), data=data, keep=keep), by_loops(*xs, allowed), xs)


@pytest.mark.parametrize('seed', range(20))
def test_lists(seed):
    rnd = random.Random(seed)
    q, k, v = xs = draw(rnd)
    t, s = q.size(2), k.size(2)
    places = [*range(s-t, s)] + [-1]*rnd.randint(0, 3)
    rnd.shuffle(places)
    places += [-1]*(-len(places) % (B := rnd.randint(1, 5)))
    rows = torch.tensor(places).view(-1, B)
    span = rnd.choice([causal, full, window(3), lambda b, h, i, j: (i + j + b + h) % 2 == 0])
    data = listed(rows, torch.arange(s).expand(len(rows), s), t, s, span, n_heads=q.size(1), batch=len(q))
    allowed = expand(span_mask(span, t, s, q.size(1), len(q)), q, k)
    agree(tiled_attention(*xs, Listed(), data=data), by_loops(*xs, allowed), xs)


@pytest.mark.parametrize('seed', range(10))
def test_parts(seed):
    rnd = random.Random(seed)
    q, k, v = xs = draw(rnd)
    n = rnd.randint(1, 6)
    y, lse = join(tiled_part(*xs, Window(n, 0, 3)), tiled_part(*xs, Window(near=n, block=4)))
    allowed = expand(span_mask(causal, q.size(2), k.size(2)), q, k)
    agree(y, by_loops(*xs, allowed), xs)
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(lse[..., 0], scores.logsumexp(-1))


@dataclass(frozen=True)
class Twice(Tiling):
    "A window whose tiles are cut in two; the second half meets the queries again."
    n: int
    block: int

    def tiles(self, q, k, mask=None):
        for p in Window(self.n, 0, self.block).tiles(q, k, mask):
            a, b = p.keys.start, p.keys.stop
            m = (a + b)//2
            if a < m:
                yield p._replace(keys=slice(a, m))
            yield p._replace(keys=slice(m, b), lo=p.lo+m-a, hi=p.hi+m-a, again=a < m)


class ListsAgain(Lists):
    "Lists of queries that other lists have met."
    again = True


@dataclass(frozen=True)
class Rounds(Tiling):
    "The same queries against one half of the keys, then the other."
    def tiles(self, q, k, rows, keys, mask):
        half = keys.size(-1)//2
        for cls, at in ((Lists, slice(half)), (ListsAgain, slice(half, None))):
            yield cls(*(x[None, None] for x in (rows, keys[:, at], mask[..., at])))


class Bare:
    "A tile of a reader's own: all queries against all keys, what the engine asks of a tile and no more."
    def __init__(self, q, k): self.shape = 1, q.size(2), k.size(2)
    def of(self, at): return self
    def queries(self, x): return x[:, :, None]
    windows = queries
    def put(self, out, y): out.copy_(y[:, :, 0])
    def add(self, out, g): out.add_(g[:, :, 0])
    def hide(self, S, cache): pass


@dataclass(frozen=True)
class Whole(Tiling):
    def tiles(self, q, k): yield Bare(q, k)


@dataclass(frozen=True)
class Scaled(Score):
    "A dot product plus a bias of distances, by `terms`."
    def part(self, tile, at, m): return [m[at[1], None, None, None]]

    def terms(self, q, tile, m):
        r, c = (torch.arange(n, dtype=q.dtype) for n in tile.shape[1:])
        return q, -m*(r[:, None] - c - tile.lo) + q[..., :1]*0


@pytest.mark.parametrize('seed', range(12))
@pytest.mark.parametrize('kind', ['slices', 'lists'])
def test_queries_that_are_met_again(kind, seed):
    "With and without gradients, whatever is asked to be cached."
    rnd = random.Random(seed)
    q, k, v = xs = draw(rnd)
    t, s, n = q.size(2), k.size(2), rnd.randint(1, 9)
    tiling, data = Twice(n, rnd.randint(1, 9)), []
    allowed = expand(span_mask(window(n), t, s), q, k)
    if kind == 'lists':
        tiling, data = Rounds(), listed(torch.arange(s-t, s)[:, None], torch.arange(s).expand(t, s), t, s, window(n))
    elif seed % 2:
        data = [torch.rand(1, 1, t, s, generator=torch.Generator().manual_seed(seed)) < .6]
        allowed = allowed & data[0]
    want = by_loops(*xs, allowed)
    with torch.no_grad():
        torch.testing.assert_close(tiled_attention(*xs, tiling, data=data), want, rtol=1e-9, atol=1e-9)
    for keep in (0, 10**9):
        agree(tiled_attention(*xs, tiling, data=data, keep=keep), want, xs)
        agree(tiled_attention(*xs, tiling, data=data, keep=keep, dropout_p=1e-12), want, xs)
    y, lse = tiled_part(*xs, tiling, data=data)
    agree(y, want, xs)
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(lse[..., 0].clamp(min=-1e30), scores.logsumexp(-1).clamp(min=-1e30))


@pytest.mark.parametrize('keep', [0, 10**9])
def test_dropout_of_queries_that_are_met_again(keep):
    "Both passes drop the same weights, and the mean survives."
    def seeded(*xs, p=.4):
        torch.manual_seed(5)
        return tiled_attention(*xs, Twice(4, 3), dropout_p=p, keep=keep)
    torch.manual_seed(0)
    xs = [torch.randn(1, 2, 7, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    torch.autograd.gradcheck(seeded, xs)
    q, k = torch.randn(2, 8, 4, 50, 8)
    assert .9 < seeded(q, k, torch.ones_like(q), p=.5).mean() < 1.1


def test_a_tile_of_ones_own_needs_no_again():
    xs = [torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7)]
    everything = torch.ones(2, 3, 5, 7, dtype=torch.bool)
    want = by_loops(*xs, everything)
    with torch.no_grad():
        torch.testing.assert_close(tiled_attention(*xs, Whole()), want)
    for keep in (0, 10**9):
        agree(tiled_attention(*xs, Whole(), keep=keep), want, xs)


@pytest.mark.parametrize('train', [False, True], ids=['no gradients', 'gradients'])
@pytest.mark.parametrize('wide', [False, True], ids=['one width', 'wider values'])
def test_long_windows(train, wide):
    "More keys than the fused kernel takes at a time, rows without any of them, values it does not take."
    q, k, v = xs = [torch.randn(1, 2, n, w, dtype=torch.float64, requires_grad=True)
                    for n, w in ((300, 4), (1300, 4), (1300, 6 if wide else 4))]
    mask = torch.ones(1, 2, 300, 1300, dtype=torch.bool)
    mask[..., :900], mask[:, 1, 7], mask[:, 0, 70:80] = False, False, False
    with torch.set_grad_enabled(train):
        for form in (tiled_attention, tiled_part):
            y = form(*xs, Window(1200), data=[mask])
            y, lse = y if form is tiled_part else (y, None)
            want = attention(*xs, mask & span_mask(window(1200), 300, 1300))
            torch.testing.assert_close(y, want, rtol=1e-10, atol=1e-10)
            assert lse is None or (lse[0, 1, 7] < -1e30).all() and (lse[0, 0, 80:] > -1e3).all()
            if train:
                agree(y, want, xs)


def test_a_score_of_terms():
    "A product and a bias, the same fused, in training, with cached weights, and from `torch.func`."
    rnd = random.Random(0)
    for _ in range(5):
        q, k, v = draw(rnd)
        xs = q, k, k + 0, torch.rand(q.size(1), dtype=torch.float64, requires_grad=True)
        t, s = q.size(2), k.size(2)
        distance = torch.arange(s-t, s)[:, None] - torch.arange(s)
        want = attention(*xs[:3], window(4), -xs[3].view(1, -1, 1, 1)*distance)
        def run(more, f=tiled_attention):
            return f(*xs[:3], Window(4, 0, 3), Scaled(), [xs[3]], **more)
        with torch.no_grad():
            torch.testing.assert_close(run({}), want)
        for keep in ({}, dict(keep=10**9)):
            agree(run(keep), want, xs)
        agree(run({}, tiled_part)[0], want, xs)


@pytest.mark.parametrize('dtype, tol', [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_dtypes(dtype, tol):
    for seed in range(5):
        xs = draw(random.Random(seed), dtype)
        q, k, v = xs
        y = tiled_attention(*xs, Window(4, 0, 3))
        assert y.dtype == dtype
        t, s = q.size(2), k.size(2)
        data = listed(torch.arange(s-t, s)[:, None], torch.arange(s).expand(t, s), t, s, window(4))
        lists = tiled_attention(*xs, Listed(), data=data)
        assert lists.dtype == dtype
        torch.testing.assert_close(lists, y, rtol=tol, atol=tol)
        wide = [x.detach().double().requires_grad_() for x in xs]
        ref = by_loops(*wide, expand(span_mask(window(4), q.size(2), k.size(2)), q, k))
        torch.testing.assert_close(y.double(), ref, rtol=tol, atol=tol)
        got, want = (torch.autograd.grad(o.sum(), z) for o, z in ((y, xs), (ref, wide)))
        for a, b in zip(got, want):
            torch.testing.assert_close(a.double(), b, rtol=3*tol, atol=3*tol)


class Layer(torch.nn.Module):
    "Projections, laid out as a model's are, and a window."
    def __init__(self):
        super().__init__()
        self.W = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.W(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return local_attention(q, k, v, 5, 4).transpose(1, 2).flatten(2)


def step(f, x, layer):
    "Output of a layer, and the gradients of its weight and input."
    y = f(x)
    return [y, *torch.autograd.grad(y.square().sum(), [layer.W.weight, x])] if y.requires_grad else [y]


@pytest.mark.parametrize('train', [False, True], ids=['evaluation', 'training'])
def test_one_graph_of_inductor(train):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend('inductor')
    layer = Layer()
    whole = torch.compile(layer, backend=counter, fullgraph=True)
    for t in (7, 9, 12, 20, 33, 40, 61):
        x = torch.randn(2, t, 16, requires_grad=train)
        with torch.set_grad_enabled(train):
            for a, b in zip(step(whole, x, layer), step(layer, x, layer), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
    assert counter.frame_count <= 2


def test_wrapped_for_distributed_training(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path/'store'), 1)
    torch.distributed.init_process_group('gloo', store=store, rank=0, world_size=1)
    try:
        layer, x = Layer(), torch.randn(2, 19, 16, requires_grad=True)
        parallel = torch.nn.parallel.DistributedDataParallel(layer)
        for _ in range(2):
            layer.zero_grad()
            parallel(x).square().sum().backward()
        torch.testing.assert_close(layer.W.weight.grad, step(layer, x, layer)[1])
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize('turned', [False, True], ids=['contiguous', 'transposed'])
def test_the_operator_is_what_it_claims(turned):
    "Schema, sizes and strides of the fake operator, registration of the gradient, dynamic shapes."
    xs = [torch.randn(2, 9, 3, 4).transpose(1, 2) if turned else torch.randn(2, 3, 9, 4) for _ in range(3)]
    specs = Window(4, 0, 3).spec(), Dot().spec()
    args = *(x.requires_grad_() for x in xs), [], [], *specs, .5, 0., torch.randint(9, (0,)), 'lse'
    torch.library.opcheck(blocks._tiled, args)
    y, lse, _ = blocks._tiled(*args)
    back = torch.ones_like(y), torch.ones_like(lse), *xs, y, lse, [], [], [], *specs, .5, 0., torch.randint(9, (0,))
    back = [x.detach() if isinstance(x, torch.Tensor) else x for x in back]
    torch.library.opcheck(blocks._tiled_backward, back, test_utils=('test_schema', 'test_faketensor'))


@pytest.mark.parametrize('kind', ['window', 'lists'])
def test_memory_is_linear(kind):
    "Four times as long a sequence takes four times the memory, far less than its matrix of scores."
    def peak(t):
        xs = [torch.randn(1, 2, t, 8, requires_grad=True) for _ in range(3)]
        at = torch.arange(t).view(-1, 16)
        keys = torch.cat([at.roll(1, 0), at], 1)
        data = at, keys, (keys[:, None] <= at[:, :, None]) & (at[:, :, None] - keys[:, None] < 16)
        f = {'window': lambda *x: local_attention(*x, 16),
             'lists': lambda *x: tiled_attention(*x, Listed(), data=data)}[kind]
        return peak_mb(lambda: f(*xs).sum().backward())
    short, long = peak(4096), peak(16384)
    assert long/short < 4.5 and long < .02 * 2*16384**2*4/2**20
