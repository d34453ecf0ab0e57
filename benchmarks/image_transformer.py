"""What does attention in a neighbourhood save, and how fast are pictures generated?

Time of attention proper (scores, mask, softmax, sum), forward and backward, for one picture of n × n pixels in three
colours with 4 heads of 64, in the published blocks, against two that compute the full matrix: the 1D span as a mask
('dense'), and full causal attention by PyTorch's kernel, which is given no mask and leaves out the future
('is_causal'). The contenders take turns in one process; a time is the median over the rounds. On CUDA FlexAttention
under the same spans joins, its block masks made beforehand. Generation: pictures of 28 × 28, value by value, with the
cache; one of them also without."""
import time
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.sparse import flex
from transformer_family.attention import attention, span_mask
from transformer_family.image_transformer import ImageTransformer, local_pattern, sample_images
from transformer_family.transformer import PreNorm

SIDES, HEADS, D_HEAD, RUNS, PICTURES = (8, 16, 32), 4, 64, 5, 16


def sync(device):
    if device == 'cuda':
        torch.cuda.synchronize()


def contenders(side, device):
    "Attention over a picture: both patterns, the first of them on the full matrix, full causal; FlexAttention on CUDA."
    local = {name: local_pattern(name, (side, side, 3)).to(device) for name in ('1d', '2d')}
    mask = span_mask(local['1d'].span, 3*side*side, device=device)
    dense = {'dense': lambda q, k, v: attention(q, k, v, mask),
             'is_causal': lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)}
    kernels = {f'flex {name}': flex(x.span, 3*side*side) for name, x in local.items()} if device == 'cuda' else {}
    return {**local, **dense, **kernels}


def attention_times(side, device):
    "Milliseconds of a forward and a backward pass, by contender."
    xs = [torch.randn(1, HEADS, 3*side*side, D_HEAD, device=device, requires_grad=True) for _ in range(3)]
    fs = contenders(side, device)
    times = {name: [] for name in fs}
    for i in range(RUNS + 1):
        for name, f in fs.items():
            for x in xs:
                x.grad = None
            start = time.perf_counter()
            f(*xs).square().mean().backward()
            sync(device)
            if i:                       # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: round(1e3*median(t), 2) for name, t in times.items()}


def seconds(model, n, device, **kw):
    start = time.perf_counter()
    sample_images(model, n, **kw)
    sync(device)
    return time.perf_counter() - start


def generation(device):
    model = ImageTransformer(d_model=128, n_layers=4, n_heads=4, wiring=PreNorm, size=(28, 28), block=56, memory=84)
    model = model.to(device).eval()
    cached = seconds(model, PICTURES, device)
    return dict(pictures=PICTURES, values=model.max_len, d_model=128, n_layers=4, block=56, memory=84,
                cached_s=round(cached, 2), one_s=round(median(seconds(model, 1, device) for _ in range(3)), 2),
                uncached_s=round(seconds(model, 1, device, cache=False), 1))


def run(device):
    torch.manual_seed(0)
    by_side = {side: attention_times(side, device) for side in SIDES}
    last = by_side[SIDES[-1]]
    ms = {name: {str(side): by_side[side][name] for side in SIDES} for name in last}
    ratios = {f'{a}_over_{b}_at_{SIDES[-1]}': round(last[full]/last[b], 2)
              for b in ('1d', '2d') for a, full in (('dense', 'dense'), ('causal', 'is_causal'))}
    out = dict(heads=HEADS, d_head=D_HEAD, runs=RUNS, milliseconds_by_side=ms, **ratios)
    if device == 'cuda':
        out['of_flex'] = {name: round(last[name]/last[f'flex {name}'], 2) for name in ('1d', '2d')}
    return dict(out, generation=generation(device))
