"""What is a cache worth? Time to generate so many tokens without one over the time with one.

Both take turns in one process, so that whatever else the machine does meets both; the best of the runs counts."""
import time

import torch

from transformer_family.generation import generate
from transformer_family.transformer import TransformerLM

LENGTHS = 32, 64, 128, 256, 512


def seconds(model, n, cache):
    "Time to add `n` tokens to one, and the tokens."
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    start = time.perf_counter()
    tokens = generate(model, torch.zeros(1, 1, dtype=torch.long), n, generator=generator, cache=cache)
    if device.type == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start, tokens


def run(device, runs=3):
    torch.manual_seed(0)
    model = TransformerLM(vocab_size=256, d_model=128, n_layers=4, n_heads=4, max_len=1024).to(device)
    seconds(model, 8, True), seconds(model, 8, False)
    figures = dict(model='d_model 128, 4 layers', batch=1)
    for n in LENGTHS:
        pairs = [(seconds(model, n, False), seconds(model, n, True)) for _ in range(runs)]
        uncached, cached = (min(p[i][0] for p in pairs) for i in (0, 1))
        figures[f'tokens_per_second_cached_{n}'] = round(n/cached)
        figures[f'tokens_per_second_uncached_{n}'] = round(n/uncached)
        figures[f'speedup_{n}'] = round(uncached/cached, 2)
    return figures
