"""What is a cache worth? Time to generate so many tokens without one over the time with one.

Both take turns in one process, so that whatever else the machine does meets both; the best of the runs counts.
`buffers` compares, at 1,000 tokens, a cache that is written into with one that grows by concatenation."""
import time
from statistics import median
from unittest import mock

import torch

from transformer_family import generation
from transformer_family.generation import generate
from transformer_family.transformer import TransformerLM

LENGTHS = 32, 64, 128, 256, 512


def seconds(model, n, cache, batch=1):
    "Time to add `n` tokens to one, and the tokens."
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    start = time.perf_counter()
    tokens = generate(model, torch.zeros(batch, 1, dtype=torch.long), n, generator=generator, cache=cache)
    if device.type == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start, tokens


def growing(model, n, batch):
    "The same with a cache that is copied in every step."
    with mock.patch.object(generation, 'roomy', lambda past, limit: past):
        return seconds(model, n, True, batch)


def buffers(device, n=1000, runs=3):
    "Seconds for n tokens with either cache, in alternating runs; the tokens are the same."
    out = dict(tokens=n, runs=runs)
    for d, layers, batch in ((128, 4, 1), (128, 4, 16), (512, 6, 1)):
        torch.manual_seed(0)
        model = TransformerLM(vocab_size=256, d_model=d, n_layers=layers, n_heads=d//32, max_len=1024).to(device)
        growing(model, 8, batch), seconds(model, 8, True, batch)
        pairs = [(growing(model, n, batch), seconds(model, n, True, batch)) for _ in range(runs)]
        out[f'd{d}_layers{layers}_batch{batch}'] = dict(
            growing_s=round(median(a[0] for a, b in pairs), 2), written_s=round(median(b[0] for a, b in pairs), 2),
            ratio=round(median(a[0]/b[0] for a, b in pairs), 2),
            equal_tokens=round(min((a[1] == b[1]).double().mean().item() for a, b in pairs), 3))
    return out


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
    figures['buffers'] = buffers(device)
    return figures
