"""What does attention in a neighbourhood save, and how fast are pictures generated?

Time of attention proper (scores, mask, softmax, sum), forward and backward, for one picture of n × n pixels in three
colours with 4 heads of 64, in the published blocks, against two that compute the full matrix: the 1D span as a mask
('dense'), and full causal attention by PyTorch's kernel, which is given no mask and leaves out the future
('is_causal'). The contenders take turns in one process; a time is the median over the rounds. On CUDA FlexAttention
under the same spans joins, its block masks made beforehand. Generation: pictures of 28 × 28, value by value, with the
cache; one of them also without.

The mixture of logistics: a training step of the head alone, forward and backward, on the positions of a picture of
32 × 32 in colour, 512 wide, 256 values, 10 components. `scores` are all log-probabilities and their cross-entropy,
`costs` the probability of the target alone. `joint` is the mixture over three channels, on 1,024 positions. Seconds,
and the MiB that a step adds at its peak, in a process of its own (`python -m benchmarks.image_transformer KIND`)."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.sparse import added, flex
from transformer_family.attention import attention, span_mask
from transformer_family.image_transformer import ImageTransformer, local_pattern, sample_images
from transformer_family.images import JointLogistics, Logistics
from transformer_family.transformer import PreNorm

SIDES, HEADS, D_HEAD, RUNS, PICTURES = (8, 16, 32), 4, 64, 5, 16
WIDTH, PIXELS, KINDS = 512, 1024, ('scores', 'costs', 'joint')


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


def mixture_step(kind, pixels, device='cpu'):
    "A training step of a head on some pixels in colour."
    b, v = 1, 256
    rgb = torch.randint(v, (b, pixels, 3), device=device)
    if kind == 'joint':
        head, x = JointLogistics(WIDTH, v), torch.randn(b, pixels, WIDTH, device=device)
        return lambda: head.nll(x, rgb).mean().backward()
    head, x, y = Logistics(WIDTH, v), torch.randn(b, 3*pixels, WIDTH, device=device), rgb.flatten(1)
    if kind == 'costs':
        return lambda: head.nll(x, y).mean().backward()
    return lambda: F.cross_entropy(head.logits(x).flatten(0, 1), y.flatten()).backward()


def mixture_figures(kind):
    "Seconds of a step, median, and the MiB that it adds at its peak."
    mixture_step(kind, 8)()                                 # the libraries' own buffers
    step, times = mixture_step(kind, PIXELS), []
    mib = added(step)
    for _ in range(RUNS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return dict(seconds=round(median(times), 4), mib=round(mib, 1))


def alone(kind):
    "The same in a process of its own."
    root = Path(__file__).resolve().parent.parent
    env = {**os.environ, 'MALLOC_MMAP_THRESHOLD_': '500000'}    # what is freed is given back
    cmd = [sys.executable, '-m', 'benchmarks.image_transformer', kind]
    return json.loads(subprocess.run(cmd, cwd=root, env=env, check=True, capture_output=True, text=True).stdout)


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
    else:
        out['mixture'] = {kind: alone(kind) for kind in KINDS}
    return dict(out, generation=generation(device))


if __name__ == '__main__':
    print(json.dumps(mixture_figures(sys.argv[1])))
