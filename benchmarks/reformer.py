"""What do hashing and reversible layers save? Time of attention and memory of training steps, float32.

Time: 32,768 tokens in all, from 32 sequences of 1,024 to one of 32,768 (Fig. 5 of the paper), 4 heads of 64, chunks
of 64: full attention with the whole matrix of scores, the fused `F.scaled_dot_product_attention`, and LSH attention
with 1 to 8 rounds, hashing and sorting included; forward and backward, all forms in turns in one process. The number of
buckets is the paper's, 2·length/64, as two factors where there are many. The whole matrix is one sequence's at a time,
and stops at the longest length at which it takes less than 16 GiB. Packages: `reformer-pytorch` and the LSH layer of
`transformers` on the same queries and values, with their length/64 buckets, where they are installed.

Memory, each number in a process of its own: what a training step adds by depth, with reversible and with ordinary
layers; a feed-forward network in chunks; and one step on 32,768 bytes of one file of the standard library's source.

    python -m benchmarks.reformer short|long|across|packages|memory|document    one part, printed"""
import json
import math
import os
import resource
import subprocess
import sys
import sysconfig
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.sparse import added, seconds
from transformer_family.reformer import Reformer, _n_buckets, chunked, lsh_attention, lsh_buckets, lsh_rotations
from transformer_family.transformer import FeedForward, PostNorm, PreNorm, TransformerLM, nothing

TOKENS, HEADS, D_HEAD, CHUNK, RUNS = 32768, 4, 64, 64, 2
LENGTHS, ROUNDS, MOST = (1024, 2048, 4096, 8192, 16384, 32768), (1, 2, 4, 8), 16 * 2**30
DEPTHS, PARTS, FULL = (6, 12, 24), (1, 2, 4, 8, 16), (1024, 2048, 4096)
DOCUMENT = dict(d_model=256, n_layers=6, n_heads=4, max_len=TOKENS)


def inputs(t, n, device, tokens=TOKENS):
    return [torch.randn(tokens//t, HEADS, t, D_HEAD, device=device, requires_grad=True) for _ in range(n)]


def lsh(q, v, rounds, n=None):
    "Hashing with new rotations, and attention."
    n = n or _n_buckets(q.size(2), CHUNK)
    R = lsh_rotations(HEADS, D_HEAD, rounds, n, device=q.device)
    return lsh_attention(q, v, lsh_buckets(q.detach(), R, n), CHUNK)


def plain(q, k, v, future):
    "The whole matrix; a step holds at most three of its size."
    S = (q @ k.mT * D_HEAD**-.5).masked_fill_(future, -math.inf)
    return S.softmax(-1) @ v


def plain_bytes(t):
    "Of one sequence: three matrices of scores, and the mask."
    return 3*4*HEADS*t*t + t*t


def forms(t, device):
    "name -> (function, inputs)"
    q, k, v = inputs(t, 3, device)
    out = {f'LSH-{r}': (partial(lsh, rounds=r), (q, v)) for r in ROUNDS}
    out['fused'] = partial(F.scaled_dot_product_attention, is_causal=True), (q, k, v)
    if plain_bytes(t) <= MOST:
        future = torch.ones(t, t, dtype=torch.bool, device=device).triu(1)
        out['plain'] = partial(plain, future=future), (q, k, v)
    return out


def by_sequence(f, xs):
    "Seconds of a step that takes one sequence after the other, so that the matrix is one sequence's."
    rows = zip(*(x.detach().split(1) for x in xs), strict=True)
    return sum(seconds(f, [x.requires_grad_() for x in row]) for row in rows)


def in_turns(forms, runs=RUNS):
    "Milliseconds: the least of runs that take turns."
    times = {n: [] for n in forms}
    for _ in range(runs):
        for n, (f, xs) in forms.items():
            times[n].append(1e3*(by_sequence if n == 'plain' else seconds)(f, xs))
    return {n: round(min(t), 1) for n, t in times.items()}


def by_length(lengths, device='cpu'):
    torch.manual_seed(0)
    out = {}
    for t in lengths:
        out[str(t)] = in_turns(forms(t, device))
        print(t, out[str(t)], file=sys.stderr, flush=True)
    return out


def across(device='cpu'):
    "LSH-4 from 4,096 on, the lengths in turns."
    torch.manual_seed(0)
    return in_turns({str(t): (partial(lsh, rounds=4), inputs(t, 2, device)) for t in LENGTHS if t >= 4096}, 3)


def reformer_pytorch(t):
    "The package's layer, or None."
    try:
        from reformer_pytorch.reformer_pytorch import LSHAttention
    except ImportError:
        return None
    attend = LSHAttention(bucket_size=CHUNK, n_hashes=4, causal=True)
    q, v = inputs(t, 2, 'cpu')
    return lambda q, v: attend(q.flatten(0, 1), v.flatten(0, 1))[0], (q, v)


def transformers(t):
    "The layer of `transformers`, of which version 4 is the last that has it; its projections left out."
    try:
        from transformers import ReformerConfig
        from transformers.models.reformer.modeling_reformer import LSHSelfAttention
    except ImportError:
        return None
    layer = LSHSelfAttention(ReformerConfig(
        hidden_size=HEADS*D_HEAD, num_attention_heads=HEADS, attention_head_size=D_HEAD, num_hashes=4,
        num_buckets=_n_buckets(t, 2*CHUNK), lsh_attn_chunk_length=CHUNK, lsh_attention_probs_dropout_prob=0.,
        is_decoder=True, hash_seed=None))
    layer.query_key = layer.value = torch.nn.Identity()
    x = torch.randn(TOKENS//t, t, HEADS*D_HEAD, requires_grad=True)
    return lambda x: layer(x).hidden_states, (x,)


def packages(lengths=(4096, 32768)):
    "Milliseconds of a step with 4 rounds, by length, or what is not installed."
    torch.manual_seed(0)
    out = {}
    for t in lengths:
        others = {'reformer-pytorch': reformer_pytorch(t), 'transformers': transformers(t)}
        if missing := [n for n, f in others.items() if f is None]:
            out['not installed'] = missing
        ours = {'LSH-4': (partial(lsh, rounds=4, n=_n_buckets(t, 2*CHUNK)), inputs(t, 2, 'cpu'))}
        there = {n: f for n, f in others.items() if f}
        ms = in_turns({**ours, **there})
        out[str(t)] = ms | ({'of_faster': round(min(ms[n] for n in there)/ms['LSH-4'], 2)} if there else {})
    return out


def stacked(model, tokens):
    "The same model with ordinary layers."
    x, stack, none = model.positions(model.embed(tokens)), model.layers, [None]*len(model.layers.layers)
    x = PostNorm.run(stack.wiring, stack.layers, (x, x), none, none, None, nothing)[0]
    return model.out(stack.norm(torch.cat(x, -1)))


def step(model, ordinary, tokens):
    logits = stacked(model, tokens) if ordinary else model(tokens).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()


def measured(f, small):
    "Seconds of a step, and the MiB that it adds at its peak; `small` loads the libraries."
    small()
    start = time.perf_counter()
    mib = added(f)
    return round(time.perf_counter() - start, 1), round(mib, 1)


def depth_peak(n, kind):
    torch.manual_seed(0)
    model = Reformer(d_model=128, n_layers=n, n_heads=4, max_len=4096).train()
    tokens = torch.randint(256, (1, 4096))
    go = partial(step, model, kind == 'ordinary')
    return measured(lambda: go(tokens), lambda: go(tokens[:, :256]))


def chunks_peak(n):
    ff, x = FeedForward(256, 4096), torch.randn(1, TOKENS, 256, requires_grad=True)
    go = lambda x: chunked(ff, x, n).square().mean().backward()
    return measured(lambda: go(x), lambda: go(x[:, :512]))


def text(t):
    "The first bytes of one file of the standard library."
    source = Path(sysconfig.get_paths()['stdlib'], 'argparse.py').read_bytes()
    return torch.tensor([*source[:t]])[None]


def document_step(kind, t):
    "A training step on one document: of a Reformer, or of ordinary layers with full attention."
    torch.manual_seed(0)
    t, sizes = int(t), DOCUMENT
    if kind == 'reformer':
        model = Reformer(**sizes, layers=['lsh'], ff_chunks=8)
    else:
        attend = fused_attend if kind == 'fused' else plain_attend
        model = TransformerLM(**sizes, wiring=PreNorm, attend=attend)
    go = partial(step, model.train(), False)
    return measured(lambda: go(text(t)), lambda: go(text(256)))


def fused_attend(q, k, v, span=None, bias=None, dropout_p=0.):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def plain_attend(q, k, v, span=None, bias=None, dropout_p=0.):
    future = torch.ones(q.size(2), q.size(2), dtype=torch.bool).triu(1)
    return (q @ k.mT * q.size(-1)**-.5).masked_fill_(future, -math.inf).softmax(-1) @ v


def alone(*args, limit=None, exact=True):
    """Numbers measured in a process of its own; 'out of memory' if it needs more than `limit` MiB above its start.
    `exact`: what is freed is given back at once, which takes time."""
    root = Path(__file__).resolve().parent.parent
    cmd = [sys.executable, '-m', 'benchmarks.reformer', 'alone', str(limit or 0), *map(str, args)]
    env = {**os.environ, **({'MALLOC_MMAP_THRESHOLD_': '500000'} if exact else {})}
    done = subprocess.run(cmd, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode and ("can't allocate memory" in done.stderr or 'MemoryError' in done.stderr):
        return 'out of memory'
    if done.returncode:
        raise RuntimeError(f'{" ".join(cmd[2:])}: {done.stderr[-2000:]}')
    return json.loads(done.stdout)


def limited(mib):
    "Let this process grow by so much and no more."
    if mib:
        now = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + mib*2**20,)*2)


def memory():
    "MiB by depth and by chunks of the feed-forward network."
    depth = {kind: {str(n): alone('depth', n, kind)[1] for n in DEPTHS} for kind in ('reversible', 'ordinary')}
    return dict(step_peak_mib_by_depth=depth,
                deepest_over_shallowest={k: round(d[str(DEPTHS[-1])]/d[str(DEPTHS[0])], 2) for k, d in depth.items()},
                feed_forward_peak_mib_by_chunks={str(n): alone('chunks', n)[1] for n in PARTS})


def document():
    "One step on 32,768 bytes; full attention by length, and whether it fits where the Reformer does."
    mib = alone('document', 'reformer', TOKENS)[1]
    s = alone('document', 'reformer', TOKENS, exact=False)[0]
    room = math.ceil(1.25*mib) + 512                            # the libraries' own, and threads
    fits = alone('document', 'reformer', TOKENS, limit=room) != 'out of memory'
    out = dict(reformer=dict(seconds=s, mib=mib, fits=fits), limit_mib=room)
    for kind in ('plain', 'fused'):
        peaks = {str(t): alone('document', kind, t)[1] for t in FULL}
        out[kind] = dict(mib_by_length=peaks,
                         at_32768_within_limit=alone('document', kind, TOKENS, limit=room))
    return out


def goals(ms, lsh):
    "The ratios that matter."
    longest = max((t for t in ms if 'plain' in ms[t]), key=int)
    return dict(plain_over_lsh4=dict(length=int(longest), ratio=round(ms[longest]['plain']/ms[longest]['LSH-4'], 2)),
                fused_over_lsh4_at_32768=round(ms['32768']['fused']/ms['32768']['LSH-4'], 2),
                lsh4_milliseconds_in_turns=lsh,
                lsh4_slowest_over_fastest_from_4096=round(max(lsh.values())/min(lsh.values()), 2))


def together(ms, lsh, **more):
    sizes = dict(tokens=TOKENS, heads=HEADS, d_head=D_HEAD, chunk=CHUNK, runs=RUNS)
    return dict(sizes, milliseconds=ms, **goals(ms, lsh), **more)


def run(device):
    ms = by_length(LENGTHS, device), across(device)
    if device == 'cuda':
        return together(*ms)
    return together(*ms, packages=packages(), **memory(), document=document())


single = dict(depth=lambda n, kind: depth_peak(int(n), kind), chunks=lambda n: chunks_peak(int(n)),
              document=document_step)
parts = dict(short=partial(by_length, LENGTHS[:3]), long=partial(by_length, LENGTHS[3:]), across=across,
             packages=packages, memory=memory, document=document)

if __name__ == '__main__':
    what, *args = sys.argv[1:]
    if what == 'alone':
        limited(int(args[0]))
        print(json.dumps(single[args[1]](*args[2:])))
    else:
        print(json.dumps(parts[what](), indent=1))
