"""Does the loader keep up? Tokens per second from a text of 100 MB, and its share of a training step.

The text is noise, written to a file and read back as any corpus is. A share is the loader's time for a
batch over the time of a training step of a small Transformer on such a batch (d_model 128, 4 layers)."""
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from transformer_family.data import LMLoader, corpus, fingerprint
from transformer_family.transformer import TransformerLM

BS, SEQ_LEN, SIZE = 32, 128, 100_000_000
TARGET = 20e6       # tokens per second on two cores


def sync(device):
    if device == 'cuda':
        torch.cuda.synchronize()


def timed(f, device):
    sync(device)
    start = time.perf_counter()
    res = f()
    sync(device)
    return time.perf_counter() - start, res


def text():
    "A corpus of 100 MB through a file, and the seconds that reading and its fingerprint take."
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)/'noise'
        path.write_bytes(torch.randint(256, (SIZE,), dtype=torch.uint8).numpy().tobytes())
        read, c = timed(lambda: corpus(path), 'cpu')
    return c, read, timed(lambda: fingerprint(c), 'cpu')[0]


def tokens_per_second(tokens, device, jitter, n=2000, runs=7):
    "Median over the runs of `n` batches each."
    dl = LMLoader(tokens, BS, SEQ_LEN, n=n, jitter=jitter, device=device)

    def read():
        for _ in dl:
            pass
    read()
    return n*BS*SEQ_LEN/median(timed(read, device)[0] for _ in range(runs))


def step_seconds(tokens, device, runs=9):
    "Median time of one training step, the batch in hand."
    model = TransformerLM(vocab_size=256, d_model=128, n_layers=4, n_heads=4, d_ff=512,
                          max_len=SEQ_LEN).to(device)
    opt = torch.optim.AdamW(model.parameters())
    x, y = LMLoader(tokens, BS, SEQ_LEN, device=device).one_batch()

    def step():
        F.cross_entropy(model(x).logits.flatten(0, 1), y.flatten()).backward()
        opt.step()
        opt.zero_grad()
    for _ in range(2):
        step()
    return median(timed(step, device)[0] for _ in range(runs))


def run(device):
    torch.manual_seed(0)
    c, read, digest = text()
    plain, jitter = (tokens_per_second(c.train, device, j) for j in (False, True))
    batch, step = BS*SEQ_LEN/plain, step_seconds(c.train, device)
    return dict(batch=f'{BS}x{SEQ_LEN}', text_bytes=SIZE, read_seconds=round(read, 3),
                fingerprint_seconds=round(digest, 3), tokens_per_second=round(plain),
                tokens_per_second_jitter=round(jitter), target=round(TARGET),
                ratio_to_target=round(min(plain, jitter)/TARGET, 2), batch_seconds=batch,
                step_seconds=round(step, 4), share_of_step=batch/step)
