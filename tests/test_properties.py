"""What holds for every input: attention sets, loaders, generation and files, on inputs that hypothesis draws.

Small, and the same in every run: `derandomize` fixes the examples, and no deadline measures the machine."""
import gzip
import random
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import and_masks, or_masks

from transformer_family.attention import attention, causal, full, in_pieces, shift_span, span_mask, window
from transformer_family.data import (
    Images,
    LMLoader,
    Streams,
    corpus,
    fingerprint,
    from_bytes,
    lm_dls,
    pairs,
    read_cifar,
    read_idx,
    to_bytes,
)
from transformer_family.generation import (
    beam_step,
    best_possible,
    filter_logits,
    generate,
    keep_best,
    length_penalty,
    no_hypotheses,
    sample,
    window_start,
)
from transformer_family.image_transformer import ImageTransformer, LocalAttention1D, LocalAttention2D
from transformer_family.images import ImageLoader, draw_logistics, logistics, shrink
from transformer_family.positions import Relations, ShawAttention, relative_index, sinusoidal, sinusoids
from transformer_family.reformer import lsh_attention, lsh_step, unit
from transformer_family.sparse_transformer import fixed_span, strided_span
from transformer_family.training import load, save, write_atomic
from transformer_family.transformer import TransformerLM
from transformer_family.translation import PairLoader, bucketed, collate, encode_pairs, word_vocabulary

settings.register_profile('fixed', derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile('fixed')

few, seeds = st.integers(1, 9), st.integers(0, 999)


def floats(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a, b, tol=1e-10):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


# Attention sets: each with its definition, a Python predicate of i and j

@st.composite
def spans(draw):
    "A span and what it should say."
    n = draw(few)
    c = draw(st.integers(1, n))
    return draw(st.sampled_from([
        (full, lambda i, j: True),
        (causal, lambda i, j: j <= i),
        (window(n), lambda i, j: i - n < j <= i),
        (strided_span(n), lambda i, j: j <= i and (i - j < n or (i - j) % n == 0)),
        (fixed_span(n, c), lambda i, j: j <= i and (j//n == i//n or j % n in range(n - c, n))),
        (and_masks(window(n), strided_span(c)), lambda i, j: i - n < j <= i and (i - j < c or (i - j) % c == 0)),
        (or_masks(window(c), fixed_span(n, c)),
         lambda i, j: j <= i and (i - j < c or j//n == i//n or j % n >= n - c))]))


def dense(allowed, t, s):
    return torch.tensor([[allowed(i, j) for j in range(s)] for i in range(s - t, s)])


@given(spans(), few, few, few)
def test_a_span_is_its_definition(span, t, before, dropped):
    span, allowed = span
    s = t + before
    mask = span_mask(span, t, s)[0, 0].expand(t, s)
    assert torch.equal(mask, dense(allowed, t, s))
    assert torch.equal(mask, span_mask(span, s)[0, 0].expand(s, s)[-t:])        # queries are the last t
    cut = span_mask(shift_span(span, dropped), t, s)[0, 0].expand(t, s)
    assert torch.equal(cut, dense(allowed, t, s + dropped)[:, dropped:])


@given(spans(), few, few, st.booleans(), seeds)
def test_attention_is_a_softmax_over_its_set(span, t, before, biased, seed):
    span, allowed = span
    s = t + before
    q, (k, v), mask = floats(2, 2, t, 4, seed=seed), floats(2, 2, 2, s, 4, seed=seed + 1), dense(allowed, t, s)
    bias = floats(2, 1, t, s, seed=seed + 2) if biased else None
    scores = q @ k.mT/2 + (bias if biased else 0)
    weights = scores.exp()*mask
    want = weights/weights.sum(-1, keepdim=True) @ v
    for p in (0., 1e-12):
        close(attention(q, k, v, span, bias, dropout_p=p), want)
    close(attention(q, k, v, span, (lambda x, b, h, i, j: x + bias[b, 0, i - before, j]) if biased else None), want)


@given(spans(), few, few, st.integers(0, 99), seeds)
def test_a_key_outside_the_set_changes_nothing(span, t, before, at, seed):
    span, allowed = span
    s = t + before
    j = at % s
    q, (k, v) = floats(1, 1, t, 4, seed=seed), floats(2, 1, 1, s, 4, seed=seed + 1)
    k2, v2 = k.clone(), v.clone()
    k2[:, :, j], v2[:, :, j] = 50., -50.
    same = torch.tensor([not allowed(i, j) for i in range(s - t, s)])
    a, b = (attention(q, *kv, span)[0, 0] for kv in ((k, v), (k2, v2)))
    assert torch.equal(a[same], b[same]) and (a[~same] != b[~same]).any(-1).all()


@st.composite
def local_patterns(draw):
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3])))
    if draw(st.booleans()):
        return LocalAttention1D(size, draw(st.integers(1, 9)), draw(st.integers(0, 9)))
    block = draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    return LocalAttention2D(size, block, draw(st.tuples(st.integers(0, 3), st.integers(0, 4))))


@given(local_patterns(), st.integers(1, 99), st.integers(1, 99), seeds)
def test_local_attention_is_attention_under_its_span(local, s, t, seed):
    s = min(s, len(local.order))
    t = min(t, s)
    q, (k, v) = floats(2, 2, t, 4, seed=seed), floats(2, 2, 2, s, 4, seed=seed + 1)
    want = attention(q, k, v, span_mask(local.span, t, s))
    for p in (0., 1e-12):
        close(local(q, k, v, dropout_p=p), want)


@given(few, few, st.integers(0, 4), st.booleans(), st.booleans(), seeds)
def test_relations_are_their_equations(t, before, clip, own, dropped, seed):
    s = t + before
    torch.manual_seed(seed)
    rel = Relations(4, clip, n_heads=2 if own else None).double()
    q, (k, v), bias = floats(2, 2, t, 4), floats(2, 2, 2, s, 4), -.1*floats(t, s)**2
    a_K, a_V = (w[:, relative_index(t, s, clip)] for w in (rel.w_K, rel.w_V))            # [h,t,s,k]
    e = (q[..., None, :]*(k[:, :, None] + a_K)).sum(-1)/2 + bias
    A = e.masked_fill(~span_mask(causal, t, s), -torch.inf).softmax(-1)
    want = (A[..., None]*(v[:, :, None] + a_V)).sum(-2)
    close(rel(q, k, v, causal, bias, dropout_p=1e-12 if dropped else 0.), want)


@given(st.lists(few, min_size=1, max_size=4), st.integers(0, 4), st.booleans())
def test_relations_in_segments(sizes, clip, own):
    torch.manual_seed(0)
    layer, x = ShawAttention(8, 2, clip, per_head=own).double(), floats(2, sum(sizes), 8)
    close(in_pieces(layer, x, sizes, mask=causal), layer(x, mask=causal)[0])


@given(st.lists(st.integers(-2000, 2000), min_size=1, max_size=9), st.integers(1, 9))
def test_sinusoids_at_any_place(places, d):
    at = torch.tensor(places)
    rows = sinusoidal(2001, d, dtype=torch.float64)[at.abs()]
    rows[:, ::2] *= at.sign()[:, None]
    close(sinusoids(at, d, torch.float64), rows)


@st.composite
def hashings(draw):
    "Sizes, and whether a pair meets in a round, by definition."
    t, m = draw(st.integers(1, 17)), draw(st.integers(1, 6))
    causal_, within = draw(st.booleans()), draw(st.sampled_from(['window', 'chunks']))

    def meets(i, j, bucket):
        order = sorted(range(t), key=lambda p: (bucket[p], p))
        i_, j_ = order.index(i), order.index(j)
        back, far = (i_ - j_, m) if within == 'window' else (i_//m - j_//m, 1)
        return bucket[i] == bucket[j] and i != j and (0 <= back <= far and j < i if causal_ else abs(back) <= far)
    return t, dict(chunk=m, causal=causal_, within=within), meets


@given(hashings(), st.integers(1, 3), st.integers(1, 5), st.sampled_from(['paper', 'trax']), seeds)
def test_hashed_attention_is_its_definition(how, rounds, n, duplicates, seed):
    t, args, meets = how
    q, v = (floats(2, 2, t, 3, seed=seed + i).requires_grad_() for i in range(2))
    buckets = torch.randint(n, (2, 2, rounds, t), generator=torch.Generator().manual_seed(seed))
    met = torch.tensor([[[[sum(meets(i, j, r) for r in head) for j in range(t)] for i in range(t)]
                         for head in row] for row in buckets.tolist()])
    met = met + ((met.sum(-1, keepdim=True) == 0) & torch.eye(t).bool())
    bias = met.clamp(min=1).double().log() if duplicates == 'trax' else None
    want = attention(q, unit(q), v, met > 0, bias)
    got = lsh_attention(q, v, buckets, duplicates=duplicates, **args)
    close(got, want)
    for a, b in zip(*(torch.autograd.grad((y*y).sum(), (q, v)) for y in (got, want)), strict=True):
        close(a, b, 1e-9)
    if args['causal']:
        close(lsh_step(q[:, :, t//2:], unit(q), v, buckets, duplicates=duplicates, **args), want[:, :, t//2:])


# Loaders

@st.composite
def streams(draw):
    "A text that holds its own positions, and how it is cut."
    bs, seq_len, ranks = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 3))
    n = draw(st.integers(bs*ranks*(seq_len + 1), 160))
    return torch.arange(n), dict(bs=bs*ranks, seq_len=seq_len, jitter=draw(st.booleans()), seed=draw(seeds)), ranks


@given(streams())
def test_streams_are_read_on(how):
    x, config, W = how
    B, L, S = config['bs'], config['seq_len'], len(x)//config['bs']
    ranks = [Streams(x, **config, rank=r, world_size=W) for r in range(W)]
    k = ranks[0].per_pass
    for p in range(3):
        rows = [torch.cat([s[p*k + j] for s in ranks]) for j in range(k)]       # [B,L+1], all ranks together
        for a, b in zip(rows, rows[1:]):
            assert torch.equal(a[:, -1], b[:, 0])                               # no token between two segments
        seen = torch.cat([r[:, :-1] for r in rows], 1)
        start = seen[0, 0].item()
        assert torch.equal(seen, torch.arange(B)[:, None]*S + start + torch.arange(k*L))
        assert start < (L if config['jitter'] else 1) and rows[-1][0, -1] < S
        assert S - 1 - k*L < (2*L if config['jitter'] else L)                   # the tail


@given(streams(), st.sampled_from([None, 1, 5]), st.integers(0, 25))
def test_a_text_loader_resumes_anywhere(how, n, stop):
    x, config, W = how
    dl = LMLoader(x, **config, n=n, rank=W - 1, world_size=W)
    resumes(dl, stop)


def read(dl, k):
    "The next k batches with their flags, through as many epochs as that takes."
    got = []
    while len(got) < k:
        for batch in dl:
            got.append((batch, dl.fresh, dl.pos))
            if len(got) == k:
                break
    return got


def same(a, b):
    assert [o[1:] for o in a] == [o[1:] for o in b]
    for (x, *_), (y, *_) in zip(a, b):
        assert all(map(torch.equal, x, y))


def resumes(dl, stop, k=30):
    "Thirty batches are the same in one go and from any position on; passes begin where they should."
    want = read(dl.new(), k)
    assert [o[1] for o in want] == [i % dl.per_pass == 0 for i in range(k)]
    assert [o[2] for o in want] == list(range(1, k + 1))
    random.seed(stop)
    torch.manual_seed(stop)                             # the order does not depend on them
    late = dl.new()
    late.pos = stop
    look = late.one_batch()
    same(read(late, k - stop), want[stop:])
    assert all(map(torch.equal, look, want[stop][0]))


@st.composite
def sentences(draw):
    "Numbered pairs of token lists."
    lengths = draw(st.lists(st.tuples(few, few), min_size=1, max_size=40))
    return [([100 + i]*a, [1] + [100 + i]*b + [2]) for i, (a, b) in enumerate(lengths)]


@given(sentences(), st.integers(1, 6), st.one_of(st.none(), st.text(max_size=3)), st.integers(1, 3))
def test_batches_hold_every_pair_once(items, bs, seed, pool):
    cut = bucketed(items, bs, seed, pool)
    assert sorted(i for b in cut for i in b) == list(range(len(items)))
    assert sorted(map(len, cut))[1:] == [bs]*(len(cut) - 1) and len(cut[0]) <= bs
    assert cut == bucketed(items, bs, seed, pool)
    for batch in cut:
        src, tgt, real, nxt = collate([items[i] for i in batch])
        assert [s[m].tolist() for s, m in zip(src, real)] == [items[i][0] for i in batch]
        assert (src[~real] == 0).all() and src.shape[1] == max(len(items[i][0]) for i in batch)
        for y, z, i in zip(tgt.tolist(), nxt.tolist(), batch):
            n = len(items[i][1]) - 1
            assert y[:n] + [2] == items[i][1] and z[:n] == items[i][1][1:]
            assert not any(y[n:]) and set(z[n:]) <= {-100}
    if seed is None:
        lengths = [len(items[i][1]) for b in cut for i in b]
        assert lengths == sorted(lengths)


@given(sentences(), st.integers(1, 6), st.booleans(), seeds, st.sampled_from([None, 1, 5]), st.integers(0, 25))
def test_a_pair_loader_resumes_anywhere(items, bs, shuffle, seed, n, stop):
    dl = PairLoader(items, bs, shuffle, seed, n)
    resumes(dl, stop)
    for p in range(2):
        batches = [dl.batch_at(b)[0] for b in dl.plan(p)]
        assert sorted(s[0].item() for b in batches for s in b) == [100 + i for i in range(len(items))]


@given(st.integers(1, 40), st.integers(1, 6), st.booleans(), seeds, st.sampled_from([None, 1, 5]), st.integers(0, 25))
def test_a_picture_loader_resumes_anywhere(count, bs, shuffle, seed, n, stop):
    data = Images(torch.arange(count).view(-1, 1, 1), torch.arange(count))
    dl = ImageLoader(data, bs, lambda x, y: (x, y), shuffle, seed, n)
    resumes(dl, stop)
    for p in range(2):
        xs, ys = map(torch.cat, zip(*(dl.batch_at(b) for b in dl.plan(p))))
        assert torch.equal(xs.flatten(), ys) and torch.equal(ys.sort()[0], torch.arange(count))
        assert shuffle or torch.equal(ys, torch.arange(count))


@given(st.integers(2, 80), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3))
def test_every_validation_text_is_read(n, bs, seq_len, ranks):
    assume(n >= 2*ranks)
    x, train = torch.arange(n), torch.arange(200)
    dls = [lm_dls((train, x), bs*ranks, seq_len, device='cpu', rank=r, world_size=ranks).valid for r in range(ranks)]
    read = torch.cat([xs.flatten() for dl in dls for xs, _ in dl])
    assert len(read.unique()) == len(read) and 2*len(read) >= n - 2*ranks       # most of it, nothing twice
    assert len({(dl.bs, dl.seq_len, len(dl)) for dl in dls}) == 1               # no process waits for another


# Generation

powers = st.lists(st.integers(0, 5), min_size=1, max_size=9)


@given(st.integers(0, 4), st.integers(1, 16), st.lists(st.integers(0, 16), max_size=3))
def test_a_nucleus_ends_exactly_at_its_limit(n, j, ruled_out):
    "Of 2ⁿ equal tokens each has exactly its share, so that j of them have exactly j shares."
    total = 2**n
    j, z = min(j, total), torch.zeros(1, total + len(ruled_out))
    z[0, sorted(i % z.size(1) for i in range(len(ruled_out)))] = -torch.inf
    alive = z[0].isfinite().nonzero().flatten().tolist()
    assert filter_logits(z, None, j/total)[0].isfinite().nonzero().flatten().tolist() == alive[:j]


@given(powers, st.integers(1, 12), st.floats(.01, 1), st.integers(-9, 9))
def test_candidates(powers, k, p, shift):
    "The k best, and of those the fewest with mass p; of equals the first; whatever is added to all."
    z = torch.tensor([powers]).double() + shift
    order = sorted(range(len(powers)), key=lambda i: -powers[i])[:k]
    shares = z[0, order].softmax(0)
    n = int((shares.cumsum(0) - shares < p).sum())
    assume((shares.cumsum(0) - p).abs().min() > 1e-6 or p == 1)
    assert set(filter_logits(z, k)[0].isfinite().nonzero().flatten().tolist()) == set(order)
    assert set(filter_logits(z, k, p)[0].isfinite().nonzero().flatten().tolist()) == set(order[:n])


@given(st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_a_window_holds_half_to_all(m, steps):
    n, start = 0, 0
    for step in steps:
        n += step
        before, start = start, window_start(n, start, m)
        assert before <= start and n - start <= m
        assert start == before or n - start == max(1, m//2)


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 12), st.sampled_from([0, 1., 2.5]),
       st.one_of(st.none(), st.integers(1, 9)), st.sampled_from([None, .5, 1.]), seeds)
def test_a_cache_changes_no_token(max_len, t, n, temperature, k, p, seed):
    torch.manual_seed(seed)
    lm = TransformerLM(7, 8, n_layers=1, n_heads=2, max_len=max_len, dropout=.5).double()
    prompt = torch.randint(7, (2, t))
    a, b = (generate(lm, prompt, n, temperature, k, p, torch.Generator().manual_seed(seed), cache)
            for cache in (True, False))
    assert torch.equal(a, b) and torch.equal(a[:, :t], prompt) and a.shape == (2, t + n) and lm.training


@given(powers, seeds)
def test_a_draw_is_a_candidate(powers, seed):
    z = torch.tensor([powers]).double()
    drawn = sample(z.expand(50, -1), .5, 3, .75, torch.Generator().manual_seed(seed))
    assert filter_logits(2*z, 3, .75)[0].isfinite()[drawn].all()


@given(few, few, st.integers(1, 30), seeds)
def test_a_beam_keeps_the_best(w, v, k, seed):
    logp, scores = floats(2, w, v, seed=seed), floats(2, w, seed=seed + 1)
    got, parent, token = beam_step(logp, scores, k)
    every = (scores[..., None] + logp).flatten(1).sort(1, descending=True)[0][:, :k]
    assert torch.equal(got, every)
    for b in range(2):
        close(got[b], scores[b, parent[b]] + logp[b, parent[b], token[b]])


@given(st.lists(st.lists(st.integers(-4, 0), min_size=2, max_size=2), min_size=1, max_size=6), few)
def test_the_best_hypotheses_stay(rounds, k):
    "In order of their scores; of equals, the one that was there first."
    kept, every = no_hypotheses(1, k), []
    for t, scores in enumerate(rounds, 1):
        tokens = torch.full((1, 2, t), t)
        tokens[..., -1] = torch.tensor([[10*t, 10*t + 1]])
        kept = keep_best(kept, tokens, torch.tensor([scores]).float())
        every += [(s, t, 10*t + i) for i, s in enumerate(scores)]
    want = sorted(every, key=lambda x: -x[0])[:k]
    n = len(want)
    assert kept.scores[0, :n].tolist() == [s for s, *_ in want] and (kept.scores[0, n:] == -torch.inf).all()
    assert kept.lengths[0, :n].tolist() == [t for _, t, _ in want]
    assert [y[t - 1].item() for y, (_, t, _) in zip(kept.tokens[0], want)] == [last for *_, last in want]


@given(st.floats(-2, 2), st.integers(1, 9), st.integers(1, 9), st.lists(st.floats(0, 3), max_size=9))
def test_no_completion_exceeds_the_bound(alpha, t, more, costs):
    score = torch.tensor([[-1.]]).double()
    top = best_possible(score, t, torch.tensor([t + more]), alpha)
    for i in range(1, more + 1):
        done = (-1 - sum(costs[:i]))/length_penalty(t + i, alpha)
        assert done <= top.item() + 1e-12


# Pictures

@given(st.integers(2, 40), st.integers(1, 4), seeds)
def test_a_mixture_is_a_distribution(v, m, seed):
    pi, mu, s = floats(3, 5, m, seed=seed)
    logp = logistics(pi.log_softmax(-1), mu, s, v)
    close(logp.exp().sum(-1), torch.ones(5).double())
    drawn = draw_logistics(pi.log_softmax(-1), mu, s, v, torch.Generator().manual_seed(seed))
    assert drawn.shape == (5,) and 0 <= drawn.min() and drawn.max() < v
    back = logistics(pi.log_softmax(-1), -mu, s, v)             # mirrored
    close(back.flip(-1), logp)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), seeds)
def test_averages_of_rectangles(a, b, down, right, seed):
    x = torch.randint(256, (2, a*down, b*right, 3), generator=torch.Generator().manual_seed(seed)).byte()
    small = shrink(x, (a, b))
    for i in range(a):
        for j in range(b):
            part = x[:, i*down:(i + 1)*down, j*right:(j + 1)*right].float().mean((1, 2))
            assert torch.equal(small[:, i, j], part.round().byte())


@settings(max_examples=15)
@given(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3])), st.integers(1, 3), st.integers(1, 5),
       st.booleans(), st.sampled_from([torch.uint8, torch.int32, torch.int64]))
def test_a_picture_becomes_a_stream_and_back(size, rows, columns, flat, dtype):
    block = rows*columns if flat else (rows, columns)
    model = ImageTransformer(256, 8, 1, 2, size=size, n_classes=3, attention='1d' if flat else '2d', block=block,
                             memory=1 if flat else (1, 1))
    x = torch.randint(256, (2, *size)).to(dtype)
    x = x if size[2] > 1 else x[..., 0]
    stream = model.to_stream(x, torch.tensor([2, 0]))
    assert stream[:, 0].tolist() == [258, 256]
    assert torch.equal(model.to_images(stream[:, 1:]), x.byte())


# Files

anything = st.binary(max_size=200)


@given(st.text(), anything)
def test_texts_are_bytes(text, raw):
    assume(not any('\ud800' <= c <= '\udfff' for c in text))
    assert from_bytes(to_bytes(text)) == text
    assert bytes(to_bytes(raw).tolist()) == raw and to_bytes(raw).dtype == torch.uint8


@given(st.binary(min_size=6, max_size=300))
def test_a_corpus_is_its_file(raw):
    with tempfile.TemporaryDirectory() as d:
        path = write_atomic(Path(d)/'a.txt', raw)
        parts = corpus(path)
        assert [p.name for p in Path(d).iterdir()] == ['a.txt']
    assert bytes(torch.cat(parts).tolist()) == raw
    assert len(parts.valid) == len(parts.test) == max(2, len(raw)//20)
    assert fingerprint(parts) == fingerprint(to_bytes(raw))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), anything, st.integers(0, 30))
def test_idx_files(shape, raw, cut):
    n = torch.Size(shape).numel()
    numbers = (raw*300)[:n] if raw else bytes(n)
    data = bytes([0, 0, 8, len(shape)]) + b''.join(k.to_bytes(4, 'big') for k in shape) + numbers
    x = read_idx(data)
    assert list(x.shape) == shape and bytes(x.flatten().tolist()) == numbers
    if cut:
        with pytest.raises(ValueError, match='idx file|announces'):
            read_idx(data[:-cut] if cut < len(data) else b'')


@given(anything)
def test_no_idx_file_is_taken_for_one(raw):
    for read in (read_idx, read_cifar):
        with pytest.raises(ValueError, match='expected|announces'):
            read(b'\1' + raw)


words = st.text(st.characters(exclude_categories=['C', 'Z']), min_size=1, max_size=4)
lines = st.lists(words, min_size=1, max_size=4).map(' '.join)


@given(st.lists(st.tuples(lines, lines), min_size=3, max_size=30), st.booleans(), st.sampled_from(['\n', '\r\n']))
def test_files_of_pairs(rows, packed, newline):
    pack = gzip.compress if packed else bytes
    with tempfile.TemporaryDirectory() as d:
        one, src, tgt = (Path(d)/name for name in ('both.tsv', 'x.en', 'x.de'))
        one.write_bytes(pack(''.join(f'{s}\t{t}{newline}' for s, t in rows).encode()))
        for path, side in zip((src, tgt), zip(*rows)):
            path.write_bytes(pack(newline.join(side).encode('utf-8-sig')))
        got = pairs(one)
        assert pairs((src, tgt)) == got
    assert sorted(got.train + got.valid + got.test) == sorted(rows)
    assert len(got.valid) == len(got.test) == max(1, len(rows)//20)


@given(anything)
def test_any_bytes_are_pairs_or_an_error(raw):
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)/'a.tsv'
        path.write_bytes(raw)
        try:
            assert sum(map(len, pairs(path))) >= 3
        except ValueError as e:
            assert 'line' in str(e) or 'pairs' in str(e) or 'gzip' in str(e)


@given(st.lists(st.tuples(lines, lines), min_size=1, max_size=9), st.integers(1, 9))
def test_sentences_as_tokens_and_back(rows, limit):
    vocab = word_vocabulary(text for row in rows for text in row)
    coded = encode_pairs(rows, vocab)
    assert [(vocab.decode(s), vocab.decode(t)) for s, t in coded] == rows
    longest = max(max(len(s), len(t) - 1) for s, t in coded)
    if longest <= limit:
        assert encode_pairs(rows, vocab, limit) == coded
    else:
        with pytest.raises(ValueError, match=f'max_len={limit} positions'):
            encode_pairs(rows, vocab, limit)


@settings(max_examples=10)
@given(few, st.integers(1, 2), st.integers(1, 2000))
def test_a_folder_gives_the_model_back_or_an_error(v, n_layers, cut):
    torch.manual_seed(v)
    lm = TransformerLM(v, 8, n_layers=n_layers, n_heads=2, max_len=8).eval()
    x = torch.randint(v, (2, 5))
    with tempfile.TemporaryDirectory() as d:
        folder = save(lm, Path(d)/'m')
        assert torch.equal(load(folder)(x).logits, lm(x).logits)
        path = folder/'model.safetensors'
        path.write_bytes(path.read_bytes()[:-cut])
        with pytest.raises(ValueError):
            load(folder)
