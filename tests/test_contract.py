"""Every language model of the zoo keeps the contract; a new one joins by being listed."""
import pytest

from tests.contract import CHECKS
from transformer_family import zoo


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


class Leaky(zoo.TransformerLM):
    "Looks one token ahead."
    def forward(self, tokens, past=None, targets=None):
        return super().forward(tokens.roll(-1, 1), past, targets)


class Forgetful(zoo.TransformerLM):
    "Reads every piece as if it were the first."
    def forward(self, tokens, past=None, targets=None):
        return super().forward(tokens, None, targets)


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


@pytest.mark.parametrize('cls, check', [
    (Unweighed, 'losses'), (Promised, 'losses'), (Constant, 'losses'), (Leaky, 'causality'), (Forgetful, 'pieces'),
    (Forgetful, 'generation'), (Forgetful, 'reordering'), (Unused, 'gradients')])
def test_a_breach_is_found(cls, check, monkeypatch):
    monkeypatch.setitem(zoo.models, 'broken', cls)
    with pytest.raises(AssertionError):
        CHECKS[check]('broken')
