"""Every language model of the zoo keeps the contract; a new one joins by being listed."""
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests import contract
from tests.contract import CHECKS
from transformer_family import zoo
from transformer_family.attention import MultiHeadAttention

IN_A_GRAPH = [n for n in zoo.language_models if 'compiling' not in zoo.exempt(n)]


@pytest.mark.parametrize('check', zoo.contract)
@pytest.mark.parametrize('name', zoo.language_models)
def test_contract(name, check, tmp_path):
    if check in zoo.exempt(name):
        pytest.skip(f'{name} declares that this does not apply to it')
    if check == 'saving':
        CHECKS[check](name, tmp_path)
    else:
        CHECKS[check](name)


def test_every_promise_is_checked():
    assert list(CHECKS) == list(zoo.contract)


@pytest.mark.parametrize('train', [False, True], ids=['evaluation', 'training'])
@pytest.mark.parametrize('name', IN_A_GRAPH)
def test_one_graph_for_every_length(name, train):
    contract.one_graph(name, 'aot_eager', train)


@pytest.mark.parametrize('train', [False, True], ids=['evaluation', 'training'])
def test_one_graph_of_inductor(train):
    contract.one_graph('transformer', 'inductor', train)


@pytest.mark.parametrize('name', IN_A_GRAPH)
def test_export_with_a_dynamic_length(name):
    contract.exporting(name)


HALTING = [n for n in zoo.language_models if hasattr(zoo.entry(n)[0], 'ponder_times')]


@pytest.mark.parametrize('name', HALTING)
def test_what_has_halted_is_skipped_by_eager_mode_alone(name, monkeypatch):
    "In a graph all steps run under masks: more work, equal logits, losses and gradients."
    model, (x, y) = contract.small(name).train(), (t[:, :6] for t in contract.batch())
    N = model.ponder_times(x)
    assert len(N.unique()) > 1 and N.max() < 3                               # the limit of both

    def worked(f):
        with FlopCounterMode(display=False) as counter:
            logits = f(x).logits
        loss = contract.total_loss(f, x, y)
        return counter.get_total_flops(), [logits, loss, *torch.autograd.grad(loss, [*model.parameters()])]
    less, want = worked(model)
    whole, graphs = contract.compiled(model, 'eager')
    loss = contract.total_loss(whole, x, y)
    for a, b in zip([loss, *torch.autograd.grad(loss, [*model.parameters()])], want[1:], strict=True):
        contract.close(a, b)
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: True)        # the graph's form, to count its work
    more, same = worked(model)
    for a, b in zip(same, want, strict=True):
        contract.close(a, b)
    assert graphs and less < .75*more


@pytest.mark.parametrize('name', zoo.language_models)
def test_dropout_does_nothing_in_evaluation(name):
    contract.dropout_in_evaluation(name)


@pytest.mark.parametrize('name', zoo.language_models)
def test_a_past_holds_what_it_shows(name):
    contract.past_memory(name)


@pytest.mark.parametrize('name', zoo.language_models)
def test_a_past_may_become_a_plain_tuple(name):
    "As fastai and torch's own tree functions may hand it on."
    model, tokens = contract.small(name), contract.some_tokens()
    past = model(tokens[:, :9]).past

    def plain(x):
        return tuple(map(plain, x)) if isinstance(x, tuple) else x
    again = model(tokens[:, 9:], plain(past)).logits
    assert torch.equal(again, model(tokens[:, 9:], past).logits)


def test_character_transformer_without_targets_under_ddp(tmp_path):
    "Its auxiliary heads stay in the graph, so that no step waits for their gradient."
    torch.distributed.init_process_group('gloo', store=torch.distributed.FileStore(str(tmp_path/'store'), 1),
                                         rank=0, world_size=1)
    try:
        model = contract.small('character_transformer').train()
        parallel, tokens = torch.nn.parallel.DistributedDataParallel(model), contract.some_tokens()
        for _ in range(3):
            model.zero_grad()
            parallel(tokens).logits.square().sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in model.heads.parameters())
        assert model.out.weight.grad.any()
    finally:
        torch.distributed.destroy_process_group()


class Leaky(zoo.TransformerLM):
    "Looks one token ahead."
    def forward(self, tokens, past=None, targets=None):
        return super().forward(tokens.roll(-1, 1), past, targets)


class Forgetful(zoo.TransformerLM):
    "Reads every piece as if it were the first."
    def forward(self, tokens, past=None, targets=None):
        return super().forward(tokens, None, targets)


class Specialised(zoo.TransformerLM):
    "Loops over the positions, so that a graph serves one length only."
    def forward(self, tokens, past=None, targets=None):
        tokens = torch.cat([tokens[:, i:i+1] for i in range(tokens.size(1))], 1)
        return super().forward(tokens, past, targets)


class Pinning(zoo.TransformerLM):
    "Its past is a window into something larger."
    def forward(self, tokens, past=None, targets=None):
        out = super().forward(tokens, past, targets)
        return out._replace(past=contract.tree_map(lambda x: torch.cat([x, x], -2)[:, :, :x.size(-2)], out.past))


class Dropping(zoo.TransformerLM):
    "Drops in evaluation too."
    def forward(self, tokens, past=None, targets=None):
        self.dropout.train()
        return super().forward(tokens, past, targets)


class Keeping(zoo.TransformerLM):
    "Takes a rate of dropout and drops nothing."
    def __init__(self, vocab_size, d_model, n_layers, n_heads, max_len, dropout):
        super().__init__(vocab_size, d_model, n_layers, n_heads, max_len=max_len, dropout=0.)


class Unused(zoo.TransformerLM):
    "Has a parameter that nothing depends on."
    def __init__(self, vocab_size, d_model, n_layers, n_heads, max_len):
        super().__init__(vocab_size, d_model, n_layers, n_heads, max_len=max_len)
        self.extra = zoo.nn.Linear(2, 2)


class Unweighed(zoo.TransformerLM):
    "Has a loss that has no weight."
    def forward(self, tokens, past=None, targets=None):
        out = super().forward(tokens, past, targets)
        return out._replace(losses={'size': self.embed.weight.square().mean()})


class Promised(zoo.TransformerLM):
    "Has the weight of a loss that is never there."
    loss_weights = {'size': 1.}


class Constant(Unweighed):
    "Has a loss that trains nothing."
    loss_weights = {'size': 1.}

    def forward(self, tokens, past=None, targets=None):
        out = super().forward(tokens, past, targets)
        return out._replace(losses={'size': out.losses['size'].detach()})


class Unpadded(zoo.TransformerLM):
    "Takes a mask and does not look at it."
    def forward(self, tokens, past=None, targets=None, mask=None, cache=True):
        return super().forward(tokens, past, targets, None, cache)


class Shifted(MultiHeadAttention):
    "Reports the weights of other keys."
    def weights(self, *args, **kwargs):
        return super().weights(*args, **kwargs).roll(1, -1)


class Misreporting(zoo.TransformerLM):
    "Has attention that reports other weights than it sums by."
    def __init__(self, vocab_size, d_model, n_layers, n_heads, max_len):
        super().__init__(vocab_size, d_model, n_layers, n_heads, max_len=max_len, attn=Shifted)


class Hoarding(zoo.TransformerLM):
    "Keeps everything, whatever it is told."
    def forward(self, tokens, past=None, targets=None, mask=None, cache=True):
        return super().forward(tokens, past, targets, mask)


class HoardingInside(zoo.TransformerLM):
    "Leaves nothing behind, but only at the end."
    def forward(self, tokens, past=None, targets=None, mask=None, cache=True):
        return super().forward(tokens, past, targets, mask)._replace(past=None)


class Cheap(zoo.TransformerLM):
    "Costs of the wrong targets."
    structured_output = True

    def forward(self, tokens, past=None, targets=None):
        out = super().forward(tokens, past)
        return out if targets is None else out._replace(
            logits=None, nll=contract.costs(out, targets.roll(1, 1)))


@pytest.mark.parametrize('cls, check', [
    (Unpadded, 'padding'), (Misreporting, 'weights'), (Hoarding, 'uncached'), (HoardingInside, 'uncached'),
    (Cheap, 'nll'), (Unweighed, 'losses'), (Promised, 'losses'), (Constant, 'losses'), (Leaky, 'causality'),
    (Forgetful, 'pieces'), (Forgetful, 'generation'), (Forgetful, 'reordering'), (Unused, 'gradients')])
def test_a_breach_is_found(cls, check, monkeypatch):
    monkeypatch.setitem(zoo.models, 'broken', cls)
    with pytest.raises(AssertionError):
        CHECKS[check]('broken')


@pytest.mark.parametrize('cls, check, message', [
    (Specialised, contract.one_graph, '(?i)recompile.?limit|compilations for 12|Hard failure due to fullgraph'),
    (Pinning, contract.past_memory, 'shows .* bytes and holds')])
def test_a_breach_of_what_is_checked_beside_is_found(cls, check, message, monkeypatch):
    monkeypatch.setitem(zoo.models, 'broken', cls)
    with pytest.raises(Exception, match=message):
        check('broken')


def test_dropout_in_evaluation_is_found(monkeypatch):
    "By the assertion that compares two models in evaluation, the first of the check."
    monkeypatch.setitem(zoo.models, 'broken', Dropping)
    with pytest.raises(AssertionError) as e:
        contract.dropout_in_evaluation('broken')
    assert e.traceback[-1].name == 'dropout_in_evaluation'
    assert 'dropping(tokens)' in str(e.traceback[-1].statement)


def test_dropout_that_does_nothing_is_found(monkeypatch):
    "By the assertion that compares them in training, the second."
    monkeypatch.setitem(zoo.models, 'broken', Keeping)
    with pytest.raises(AssertionError) as e:
        contract.dropout_in_evaluation('broken')
    assert e.traceback[-1].name == 'dropout_in_evaluation'
    assert 'dropping.train()' in str(e.traceback[-1].statement)
