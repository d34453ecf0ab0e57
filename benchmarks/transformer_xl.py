"""Transformer-XL: its attention by three algorithms, and its evaluation against re-reading a window.

`step` times forward and backward of the plain padded-reshape form (as autograd sees it), of the form in tiles
("shifted") and of the one plain dot product ("fused"), at d 512, 8 heads and segment = memory = 256, on the same
tensors in alternating runs: the attention proper (scores, shift, mask, softmax, sum), with its projections, and as
a whole layer. `algorithms` does the same for other lengths and widths and adds the peak of live tensors.

`evaluation` is Table 9 of the paper: the vanilla model reads its whole window for every token, Transformer-XL
reads a segment and caches what it has read; every token attends to as many keys in both (`same_length`, as
the authors evaluate). Same width, depth and heads, one process, alternating runs.

`adaptive` is the loss of the head of 267,735 words, from all scores and from what the targets cost."""
import time
import weakref
from statistics import median

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transformer_family import blocks, transformer_xl
from transformer_family.transformer import TransformerLM
from transformer_family.transformer_xl import AdaptiveSoftmax, TransformerXL, XLLayer, shifted_attention

BODIES = {op._opoverload: op._init_fn for op in (
    blocks._tiled, blocks._tiled_backward, transformer_xl._softmax_costs, transformer_xl._softmax_backward)}
PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def plain(q, k, val, r, u, v):
    "Relative attention as it is usually written, for autograd; r without the unused row."
    t, s = q.size(-2), k.size(-2)
    bd = F.pad((q + v[:, None]) @ r.mT, (1, 0)).view(*q.shape[:2], s + 1, t)[:, :, 1:].reshape(*q.shape[:3], s)
    future = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(s - t + 1)
    scores = ((q + u[:, None]) @ k.mT + bd) * q.size(-1)**-.5
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ val


def make_plain(attn):
    "Let a RelativeAttention use the plain form."
    def attend_to(q, k, val, cached, span):
        return plain(q, k, val, attn.relative_keys(k.size(-2))[:, :-1], attn.u, attn.v), None
    attn.attend_to = attend_to


def sync(device):
    if device == 'cuda':
        torch.cuda.synchronize()


def timed(f, device):
    sync(device)
    start = time.perf_counter()
    f()
    sync(device)
    return time.perf_counter() - start


def alternating(fs, device, runs):
    "name -> seconds of each run, all taking turns; a first round warms up."
    times = {n: [] for n in fs}
    for i in range(runs + 1):
        for n, f in fs.items():
            seconds = timed(f, device)
            if i:
                times[n].append(seconds)
    return times


class Peak(TorchDispatchMode):
    "The largest number of bytes in tensors that live at one time, those made before left out."
    def __init__(self):
        super().__init__()
        self.live, self.peak, self.known = 0, 0, set()

    def freed(self, key, n):
        self.live -= n
        self.known.discard(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in BODIES:                  # what the engine makes on the way counts too
            with self:
                return BODIES[func](*args, **(kwargs or {}))
        before = {x.untyped_storage()._cdata for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if not isinstance(x, torch.Tensor):
                continue
            st = x.untyped_storage()
            key = st._cdata
            if key in before or key in self.known:
                continue
            self.known.add(key)
            self.live += st.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(st, self.freed, key, st.nbytes())
        return out


def peak_mb(f):
    with Peak() as p:
        f()
    return round(p.peak / 2**20, 1)


def layers(device, d, h, names):
    "One layer for each algorithm, with the same weights."
    made = {n: XLLayer(d, h, 4*d, attention='fused' if n == 'fused' else 'shifted').to(device) for n in names}
    for layer in made.values():
        layer.load_state_dict(made[names[0]].state_dict())
    if 'plain' in made:
        make_plain(made['plain'].attn)
    return made


def backward(f, g):
    def go():
        f().backward(g)
    return go


def ratios(times, name, base='plain'):
    return round(median(a/b for a, b in zip(times[base], times[name])), 2)


def step(device, b=16, t=256, d=512, h=8, runs=5):
    "The training step at d 512 and segment = memory = 256."
    made = layers(device, d, h, ['plain', 'shifted', 'fused'])
    x = torch.randn(b, t, d, device=device, requires_grad=True)
    memory, g = torch.randn(b, t, d, device=device), torch.randn(b, t, d, device=device)
    q, k, val, r, u, v = (torch.randn(n, device=device, requires_grad=True) for n in (
        (b, h, t, d//h), (b, h, 2*t, d//h), (b, h, 2*t, d//h), (h, 2*t + 1, d//h), (h, d//h), (h, d//h)))
    go = torch.randn_like(q)
    out = dict(batch=b, segment=t, memory=t, d_model=d, n_heads=h, runs=runs)
    parts = {'proper': {'plain': backward(lambda: plain(q, k, val, r[:, :-1], u, v), go),
                        'shifted': backward(lambda: shifted_attention(q, k, val, r, (u, v)), go)},
             'attention': {n: backward(lambda m=m: m.attn(x, memory)[0], g) for n, m in made.items()},
             'layer': {n: backward(lambda m=m: m(x, memory)[0], g) for n, m in made.items()}}
    for part, fs in parts.items():
        times = alternating(fs, device, runs)
        out[part] = {n: dict(ms=round(1e3*median(ts), 1), speedup=ratios(times, n), peak_mb=peak_mb(fs[n]))
                     for n, ts in times.items()}
    return out


def algorithms(device, lengths=(256, 512, 1024, 2048), runs=3):
    "Attention with projections at batch 1, without memory: wide and narrow R."
    out = {}
    for d, h in ((512, 8), (64, 1)):
        made = layers(device, d, h, ['plain', 'shifted', 'fused'])
        rows = {n: dict(ms=[], peak_mb=[]) for n in made}
        for t in lengths:
            x, g = torch.randn(1, t, d, device=device, requires_grad=True), torch.randn(1, t, d, device=device)
            fs = {n: backward(lambda m=m, x=x: m.attn(x)[0], g) for n, m in made.items()}
            for n, ts in alternating(fs, device, runs).items():
                rows[n]['ms'].append(round(1e3*min(ts), 2))
                rows[n]['peak_mb'].append(peak_mb(fs[n]))
        out[f'd{d}_h{h}'] = dict(lengths=list(lengths), **rows)
    return out


@torch.no_grad()
def evaluation(device, n_layers=4, segment=512, runs=5):
    "Seconds for one token: the vanilla window read anew, and a segment of Transformer-XL divided by its length."
    size = dict(vocab_size=204, d_model=512, n_layers=n_layers, n_heads=8, d_ff=2048)
    out = dict(**size, segment=segment, runs=runs)
    for length, published in PUBLISHED.items():
        vanilla = TransformerLM(**size, max_len=length).to(device).eval()
        xl = TransformerXL(**size, mem_len=length, same_length=True).to(device).eval()
        tokens = torch.randint(204, (1, length + segment), device=device)
        past = None
        for part in tokens[:, :length].split(segment, 1):
            past = xl(part, past).past
        past = xl(tokens[:, length:], past).past                 # as long as it will ever be
        fs = dict(vanilla=lambda: vanilla(tokens[:, -length:]), xl=lambda: xl(tokens[:, length:], past))
        times = alternating(fs, device, runs)
        out[str(length)] = dict(
            vanilla_ms_per_token=round(1e3*median(times['vanilla']), 2),
            xl_ms_per_token=round(1e3*median(times['xl'])/segment, 4),
            ratio=round(median(a/b for a, b in zip(times['vanilla'], times['xl']))*segment),
            published=published)
    return out


WORDS, CUTOFFS = 267_735, [20_000, 40_000, 200_000]


def adaptive(device, b=2, t=150, d=410, runs=3, published=60):
    """The published words' head: forward and backward of the loss from all scores, and from the targets' clusters.

    Targets of rank r are drawn in proportion to 1/(r+2.7). The published batch is thirty times as large; there
    the scores alone are `scores_gb`, and only the second form is run."""
    head = AdaptiveSoftmax(WORDS, d, CUTOFFS).to(device)

    def batch(b):
        p = 1/(torch.arange(WORDS, dtype=torch.float64) + 2.7)
        y = torch.multinomial(p, b*t, replacement=True).view(b, t).to(device)
        return torch.randn(b, t, d, device=device, requires_grad=True), y

    def forms(x, y):
        return dict(scores=lambda: F.cross_entropy(head.logits(x).flatten(0, 1), y.flatten()).backward(),
                    targets=lambda: head.nll(x, y).mean().backward())
    x, y = batch(b)
    times = alternating(forms(x, y), device, runs)
    out = dict(words=WORDS, d_model=d, batch=[b, t], in_head=round((y < CUTOFFS[0]).double().mean().item(), 3))
    for n, f in forms(x, y).items():
        out[n] = dict(ms=round(1e3*median(times[n])), peak_mb=peak_mb(f))
    out['speedup'] = ratios(times, 'targets', 'scores')
    x, y = batch(published)
    f = forms(x, y)['targets']
    out['published'] = dict(batch=[published, t], scores_gb=round(published*t*WORDS*4/1e9, 2),
                            targets=dict(ms=round(1e3*timed(f, device)), peak_mb=peak_mb(f)))
    return out


def run(device):
    torch.manual_seed(0)
    return dict(step=step(device), algorithms=algorithms(device), evaluation=evaluation(device),
                adaptive=adaptive(device))
