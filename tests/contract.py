"""The contract of the language models, one function for each promise in `zoo.contract`.

Each takes the name of a model and builds small ones as it needs them. Comparisons are in float64, since batched and
single rows round differently."""
import weakref
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.registry import lookup_backend

from transformer_family import zoo
from transformer_family.attention import Heads, recorded
from transformer_family.core import Output, arguments, tree_map, uncached
from transformer_family.generation import generate
from transformer_family.images import Logistics
from transformer_family.training import costs, load, save

VOCAB, LEN, BATCH = 50, 24, 3
SMALL = dict(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_len=LEN)
OWN = {    # model -> further arguments that make it small, or show what it is about
    'act_rnn': dict(max_steps=3, epsilon=.26),                           # so that some positions halt after one step,
    'universal_transformer': dict(n_layers=3, epsilon=.26),              # the others after two
    'image_transformer': dict(size=[4, 6], block=7, memory=5),
    'reformer': dict(chunk=4, n_hashes=2, window=5)}

STRUCTURED = {    # model -> arguments with which its head computes costs without all scores
    'transformer': dict(loss_chunk=7),
    'transformer_xl': dict(cutoffs=[10, 30], div_val=2),
    'image_transformer': dict(output=Logistics)}

LENGTHS = LEN, 23, 5, 7, 9, 12, 13, 17, 19, 20, 21, 22


def small(name, seed=0, **overrides):
    "A small model in float64 and evaluation mode, the same for the same seed."
    torch.manual_seed(seed)
    takes = arguments(zoo.entry(name)[0])
    args = {k: v for k, v in SMALL.items() if k in takes}
    return zoo.build(name, **{**args, **OWN.get(name, {}), **overrides}).double().eval()


def some_tokens(b=BATCH, t=LEN, seed=1):
    return torch.randint(VOCAB, (b, t), generator=torch.Generator().manual_seed(seed))


def close(a, b, tol=1e-9):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def total_loss(model, x, y):
    "As in training: cross-entropy and the weighted auxiliary losses."
    out = model(x, None, y)
    return costs(out, y).mean() + sum(model.loss_weights.get(n, 0.)*loss for n, loss in out.losses.items())


def batch():
    tokens = some_tokens(t=LEN + 1)
    return tokens[:, :-1], tokens[:, 1:]


def causality(name):
    model, tokens = small(name), some_tokens()
    base = model(tokens).logits
    for i in range(LEN):
        changed = tokens.clone()
        changed[:, i] = (changed[:, i] + 1) % VOCAB
        out = model(changed).logits
        close(out[:, :i], base[:, :i], 1e-12)
        assert (out[:, i] != base[:, i]).any(-1).all(), f'token {i} does not reach its own output'


def in_pieces(model, tokens, sizes):
    past, logits = None, []
    for piece in tokens.split(sizes, 1):
        out = model(piece, past)
        past = out.past
        logits.append(out.logits)
    return torch.cat(logits, 1), past


def pieces(name):
    model, tokens = small(name), some_tokens()
    whole = model(tokens).logits
    for sizes in ([1]*LEN, [7, 1, 9, 7], [LEN - 1, 1], [1, LEN - 1], [8]*3):
        close(in_pieces(model, tokens, sizes)[0], whole)


def generation(name):
    model, prompt = small(name), some_tokens(t=5)
    for kw in (dict(temperature=0), dict(top_k=20, top_p=.9)):
        def draw(cache):
            return generate(model, prompt, LEN - 5, cache=cache, generator=torch.Generator().manual_seed(0), **kw)
        out = draw(True)
        assert out.shape == (BATCH, LEN) and (out[:, :5] == prompt).all()
        assert (out == draw(False)).all()


def reordering(name):
    model, tokens, rows = small(name), some_tokens(), torch.tensor([2, 0, 0, 1])
    past = model(tokens[:, :9]).past
    assert past is not None, 'nothing is left behind to continue from'
    sizes = []
    tree_map(lambda x: sizes.append(x.size(0)), past)
    assert set(sizes) == {BATCH}, 'the tensors of a past are batch-first'
    picked = tree_map(lambda x: x[rows], past)
    close(model(tokens[rows, 9:], picked).logits, model(tokens[rows]).logits[:, 9:])
    close(model(tokens[:, 9:], past).logits, model(tokens).logits[:, 9:])       # a past is not used up


def batch_rows(name):
    model, tokens = small(name), some_tokens()
    whole = model(tokens).logits
    for i in range(BATCH):
        close(model(tokens[i:i+1]).logits[0], whole[i])


def lengths(name):
    model, tokens = small(name), some_tokens()
    whole = model(tokens).logits
    for t in range(1, LEN + 1):
        out = model(tokens[:, :t]).logits
        assert out.shape == (BATCH, t, VOCAB) and out.isfinite().all()
        close(out, whole[:, :t])


def stateless(name):
    model, tokens = small(name), some_tokens()
    before = deepcopy(model.state_dict())
    first = model(tokens)
    model(some_tokens(5, 7, seed=2))
    again = model(tokens)
    assert isinstance(first, Output)
    assert torch.equal(first.logits, again.logits)
    for n, t in model.state_dict().items():
        assert torch.equal(t, before[n]), n


def learning(name):
    model, (x, y) = small(name).train(), batch()
    torch.manual_seed(3)
    before = total_loss(model, x, y)
    before.backward()
    size = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
    with torch.no_grad():
        for p in model.parameters():
            p -= .01*p.grad/size
        torch.manual_seed(3)
        assert total_loss(model, x, y) < before


def gradients(name):
    model = small(name).train()
    total_loss(model, *batch()).backward()
    for n, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0, n


def losses(name):
    model, (x, y) = small(name).train(), batch()
    out = model(x, None, y)
    assert out.losses.keys() == model.loss_weights.keys()      # none where there are none, and each has its weight
    for n, loss in out.losses.items():
        assert loss.ndim == 0 and loss.isfinite() and loss.requires_grad, n
    assert (out.past is not None) == model.carries_past
    assert model.eval()(x, None, y).logits.shape == (BATCH, LEN, VOCAB)


def saving(name, tmp_path):
    model, tokens = small(name).float(), some_tokens()
    back = load(save(model, tmp_path/'saved'))
    want = {**model.config, **getattr(model, 'inference', {})}
    assert type(back) is type(model) and back.config == want and not back.training
    assert torch.equal(back(tokens).logits, model(tokens).logits)


def copies(name):
    model, tokens = small(name), some_tokens()
    want, twin, other = model(tokens).logits, deepcopy(model), small(name, seed=5)
    assert not torch.equal(other(tokens).logits, want)
    other.load_state_dict(model.state_dict())
    assert torch.equal(twin(tokens).logits, want) and torch.equal(other(tokens).logits, want)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(twin(tokens).logits, want), 'the copy shares parameters with its model'


def counting(backend):
    "A backend that counts what it is asked to compile, and its list."
    graphs, real = [], lookup_backend(backend)

    def _count(graph, inputs, **kwargs):
        graphs.append(graph)
        return real(graph, inputs, **kwargs)
    return _count, graphs


def compiled(model, backend):
    "The model under `fullgraph`, and a list that grows by one for each compilation."
    torch._dynamo.reset()
    count, graphs = counting(backend)
    return torch.compile(model, backend=count, fullgraph=True), graphs


def one_graph(name, backend='eager', train=False, tol=1e-9):
    "Twelve lengths of one model: outputs, in training also gradients, and two compilations."
    model = small(name).train(train)
    whole, graphs = compiled(model, backend)

    def run(f, x, y):
        torch.manual_seed(3)
        if not train:
            with torch.no_grad():
                return f(x).logits
        return torch.autograd.grad(total_loss(f, x, y), [*model.parameters()])
    for t in LENGTHS:
        xy = some_tokens(t=t), some_tokens(t=t, seed=2)
        for a, b in zip(run(whole, *xy), run(model, *xy), strict=True):
            close(a, b, tol)
    assert len(graphs) <= 2, f'{len(graphs)} compilations for {len(LENGTHS)} lengths'


def one_graph_decoding(name, backend='eager'):
    "A stream in pieces, most of them single tokens, its past handed on: few compilations."
    model, tokens = small(name), some_tokens()
    whole, graphs = compiled(model, backend)
    with torch.no_grad():
        close(in_pieces(whole, tokens, [6] + [1]*12 + [3, 2, 1])[0], model(tokens).logits)
    assert len(graphs) <= 4, f'{len(graphs)} compilations for 16 steps'


def compiling(name):
    model, tokens = small(name), some_tokens()
    whole = torch.compile(model, backend='eager', fullgraph=True)
    close(whole(tokens).logits, model(tokens).logits)
    if 'generation' not in zoo.exempt(name):
        compiled = torch.compile(model, backend='eager')
        assert torch.equal(generate(compiled, tokens[:, :5], 3, 0), generate(model, tokens[:, :5], 3, 0))
    one_graph(name)
    one_graph(name, train=True)
    one_graph_decoding(name)


def exporting(name):
    "One exported program for every length."
    model, tokens = small(name), some_tokens()
    t = torch.export.Dim('t', min=2, max=LEN)
    program = torch.export.export(model, (tokens,), dynamic_shapes=({1: t},), strict=True).module()
    for n in (2, 5, LEN):
        close(program(tokens[:, :n]).logits, model(tokens[:, :n]).logits)


def dropout_in_evaluation(name):
    "A rate above 0 changes training and nothing else."
    tokens = some_tokens()
    dropping, plain = small(name, dropout=.5), small(name, dropout=0.)
    assert torch.equal(dropping(tokens).logits, plain(tokens).logits)
    assert not torch.equal(dropping.train()(tokens).logits, plain.train()(tokens).logits)


def past_memory(name):
    "A past holds what it shows: no tensor of it is a window into a larger one."
    model, tokens, past = small(name), some_tokens(), None
    for piece in tokens.split([9, 1, 1, 5, 8], 1):
        past = model(piece, past).past

        def check(x):
            held, shown = x.untyped_storage().nbytes(), x.numel()*x.element_size()
            assert held <= shown, f'{list(x.shape)} shows {shown} bytes and holds {held}'
        tree_map(check, past)


def precision(name):
    out = small(name)(some_tokens())
    assert out.logits.dtype == torch.float64

    def check(x):
        assert not x.is_floating_point() or x.dtype == torch.float64
    tree_map(check, (out.past, out.losses))


def refusals(name):
    model, tokens = small(name), some_tokens()
    bad = {'tokens must be integers': tokens.float(), 'must lie in': tokens + VOCAB,
           'got values from -': tokens - VOCAB,
           r'must be \[batch, length\]': tokens[0], r'got shape \[3, 0\]': tokens[:, :0],
           r'got shape \[0, 24\]': tokens[:0]}
    if getattr(model, 'max_len', None):
        bad['max_len=24'] = torch.cat([tokens, tokens[:, :1]], 1)
    for message, x in bad.items():
        with pytest.raises(ValueError, match=message):
            model(x)
    with pytest.raises(ValueError, match='n_heads'):
        small(name, n_heads=0)
    assert model(tokens).logits.isfinite().all()        # nothing was lost by it


def padded(rows, side, filler):
    "Rows of unequal length in one batch, and which of its tokens are real."
    n = max(map(len, rows))
    x, real = torch.full((len(rows), n), filler), torch.zeros(len(rows), n, dtype=torch.bool)
    for i, row in enumerate(rows):
        at = slice(n - len(row), None) if side == 'left' else slice(len(row))
        x[i, at], real[i, at] = row, True
    return x, real


def padding(name):
    model, tokens = small(name), some_tokens()
    rows = tokens[0], tokens[1, :9], tokens[2, :1]
    for train in (True, False):                       # there is no dropout
        alone = [model.train(train)(row[None]).logits[0] for row in rows]
        for side in ('left', 'right'):
            for filler in (0, VOCAB - 1):
                x, real = padded(rows, side, filler)
                for out, ok, want in zip(model(x, mask=real).logits, real, alone):
                    close(out[ok], want)
    starts = [row[:n] for row, n in zip(tokens, (9, 4, 1))]
    for side in ('left', 'right'):
        x, real = padded(starts, side, 0)
        past = model(x, mask=real).past
        for i in range(5):
            out = model(tokens[:, 9+i:10+i], past)
            past = out.past
            for r, start in enumerate(starts):
                want = model(torch.cat([start, tokens[r, 9:10+i]])[None]).logits[0, -1]
                close(out.logits[r, -1], want)


def looked(model, tokens):
    "What was recorded of a call, and the inputs and outputs of each attention, by name, one for each time."
    calls, hooks = {}, []
    for n, m in model.named_modules():
        if isinstance(m, Heads):
            def note(m, args, out, n=n):
                calls.setdefault(n, []).append((m, args, out))
            hooks.append(m.register_forward_hook(note))
    with recorded(model) as seen:
        out = model(tokens)
    for hook in hooks:
        hook.remove()
    return seen, calls, out


def weights(name):
    model, tokens = small(name), some_tokens()
    seen, calls, out = looked(model, tokens)
    close(out.logits, model(tokens).logits)
    maps, states = (sum(kept.values(), []) for kept in seen)
    assert len(maps) == len(states) == OWN.get(name, SMALL).get('n_layers', SMALL['n_layers'])
    for A in maps:
        assert A.shape == (BATCH, SMALL['n_heads'], LEN, LEN) and not A.requires_grad
        assert (A >= 0).all() and not A.triu(1).any()
        close(A.sum(-1), A.any(-1).double())          # of a row: 1, or 0 where it sees nothing
    for n, made in calls.items():
        for (m, (x, *_), (y, *_)), A in zip(made, seen.weights[n], strict=True):
            close(m.out(A @ m.keys_values(x).v), y)
    for state in states:
        assert state.shape[:2] == (BATCH, LEN)
    with pytest.raises(ValueError, match='tokens'), recorded(model):
        model(tokens + VOCAB)
    assert not any(m._forward_hooks for m in model.modules()), 'a hook is left behind'


def uncached_logits(name):
    model, tokens, live, most = small(name), some_tokens(), weakref.WeakSet(), []
    assert uncached(model) == {'cache': False}, 'it does not take cache=False'

    def count(layer, args, out):
        most.append(len(live))                  # of the layers before
        tree_map(live.add, out[1])
    hooks = [m.register_forward_hook(count) for m in model.modules() if hasattr(m, 'state') and hasattr(m, 'sub')]
    with torch.no_grad():
        out = model(tokens, cache=False)
    for hook in hooks:
        hook.remove()
    close(out.logits, model(tokens).logits)
    assert out.past is None, 'something is left behind'
    assert most or not any(isinstance(m, Heads) for m in model.modules()), 'no layer was seen'
    assert not any(most), f'tensors of earlier layers that live: {most}'


def nll(name):
    (x, y), kinds = batch(), [{}, *([STRUCTURED[name]] if name in STRUCTURED else [])]
    for overrides in kinds:
        model = small(name, **overrides)
        assert model.structured_output or not overrides
        want = F.cross_entropy(model(x).logits.mT, y, reduction='none')
        out = model(x, None, y)
        assert (out.logits is None) == (out.nll is not None) == model.structured_output
        close(costs(out, y), want)


CHECKS = dict(causality=causality, pieces=pieces, generation=generation, reordering=reordering, batch=batch_rows,
              lengths=lengths, stateless=stateless, learning=learning, gradients=gradients, losses=losses,
              saving=saving, copies=copies, compiling=compiling, precision=precision, refusals=refusals,
              padding=padding, weights=weights,
              uncached=uncached_logits, nll=nll)
