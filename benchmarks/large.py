"""A text of 10 GB: seconds until it can be read, the memory that takes, and tokens per second.

The file is almost all hole, so what is measured is the library and the system's cache, not a disk."""
import tempfile
import time
from pathlib import Path

from transformer_family.data import LMLoader, corpus, fingerprint

SIZE, BS, SEQ_LEN, BATCHES = 10_000_000_000, 64, 256, 500


def anonymous():
    "MiB of memory that no file stands behind; None where the system does not say."
    try:
        text = Path('/proc/self/status').read_text()
    except OSError:
        return None
    return next((int(line.split()[1])/1024 for line in text.splitlines() if line.startswith('RssAnon')), None)


def timed(f):
    start = time.perf_counter()
    out = f()
    return out, time.perf_counter() - start


def run(device):
    before = anonymous()
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)/'text'
        with open(path, 'wb') as f:
            f.truncate(SIZE)
        text, opened = timed(lambda: corpus(path))
        _, known = timed(lambda: fingerprint(text))
        dl, made = timed(lambda: LMLoader(text.train, BS, SEQ_LEN, n=BATCHES, jitter=True, device=device))
        _, first = timed(dl.one_batch)
        _, seconds = timed(lambda: [None for _ in dl])
        figures = dict(bytes=SIZE, seconds_to_open=opened, seconds_of_fingerprint=known,
                       seconds_to_first_batch=made+first, tokens_per_second=BATCHES*BS*SEQ_LEN/seconds)
        if before is not None:
            figures['anonymous_mib'] = anonymous() - before
    return figures
