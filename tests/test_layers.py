"""What layers and stacks promise beyond one chapter: numbers that stay, sources, gradients, recording."""
import json
from pathlib import Path

import pytest
import torch

from tests import contract
from transformer_family import zoo
from transformer_family.attention import recorded
from transformer_family.core import arguments
from transformer_family.image_transformer import ImageToImage
from transformer_family.sparse_transformer import Recomputed
from transformer_family.transformer import Encoder, EncoderLayer, FeedForward, MaskedLM, nothing

ORDER = Path(__file__).parent/'data/order.json'
FIXED = {**zoo.models, 'masked_lm': MaskedLM, 'image_to_image': ImageToImage}
FIXED.pop('gtrxl')                    # features in, features out: no tokens
OWN = {'transformer_seq2seq': dict(src_vocab=contract.VOCAB), 'image_to_image': dict(size=[4, 6], source=[2, 3])}


def fixed_model(name):
    "A small model of seed 0, in float64 and evaluation."
    torch.manual_seed(0)
    args = {k: v for k, v in contract.SMALL.items() if k in arguments(FIXED[name])}
    return FIXED[name](**{**args, **contract.OWN.get(name, {}), **OWN.get(name, {})}).double().eval()


def checksum(x):
    "One number that depends on every value and its place."
    x = x.detach().double().flatten()
    return float(x @ torch.arange(1, len(x) + 1).double().sin())


def fingerprint(name):
    "Parameters in order, a checksum of each tensor at seed 0, and of the logits."
    model, x = fixed_model(name), contract.some_tokens()
    inputs = {'transformer_seq2seq': [x[:, :9], x], 'image_to_image': [x[:, :6], x]}.get(name, [x])
    sums = {n: round(checksum(t), 8) for n, t in model.state_dict().items()}
    return dict(order=[n for n, _ in model.named_parameters()], state=sums, logits=checksum(model(*inputs).logits))


@pytest.mark.parametrize('name', json.loads(ORDER.read_text()) if ORDER.exists() else FIXED)
def test_same_numbers(name):
    "Folders and optimiser states of 0.1.0 fit, and a seed gives what it gave."
    want, got = json.loads(ORDER.read_text())[name], fingerprint(name)
    assert got['order'] == want['order']
    assert list(got['state']) == list(want['state'])
    assert got['state'] == pytest.approx(want['state'], rel=1e-5, abs=1e-6)
    assert got['logits'] == pytest.approx(want['logits'], rel=1e-6)


@pytest.mark.parametrize('side', ['left', 'right'])
@pytest.mark.parametrize('train', [True, False], ids=['training', 'evaluation'])
def test_padding_of_models_with_an_encoder(side, train):
    "Each row gives what it gives alone, and what stands in the padding does not matter."
    tokens = contract.some_tokens()
    rows = tokens[0], tokens[1, :9], tokens[2, :1]
    bert, pair = (fixed_model(n).train(train) for n in ('masked_lm', 'transformer_seq2seq'))
    pair.apply(lambda m: setattr(m, 'p', 0.) if isinstance(m, torch.nn.Dropout) else None)
    for filler in (0, 49):
        x, real = contract.padded(rows, side, filler)
        filled, translated = bert(x, mask=real).logits, pair(x, tokens, real).logits
        for i, row in enumerate(rows):
            contract.close(filled[i][real[i]], bert(row[None]).logits[0])
            contract.close(translated[i], pair(row[None], tokens[i:i+1]).logits[0])


@pytest.mark.parametrize('side', ['left', 'right'])
def test_a_padded_source_is_in_the_past(side):
    "Cached steps of a decoder see of each source what is real, and rows may be picked."
    tokens, pair = contract.some_tokens(), fixed_model('transformer_seq2seq')
    x, real = contract.padded([tokens[0, :9], tokens[1, :4], tokens[2, :1]], side, 0)
    want, past, rows = pair(x, tokens, real).logits, None, torch.tensor([2, 0])
    out = pair(x, tokens[:, :5], real)
    contract.close(out.logits, want[:, :5])
    past = contract.tree_map(lambda t: t[rows], out.past)
    contract.close(pair(None, tokens[rows, 5:], past=past).logits, want[rows, 5:])


class Sized(EncoderLayer):
    "A layer that reports the mean square of its stream."
    def forward(self, *args, **kwargs):
        x, past, aux = super().forward(*args, **kwargs)
        return x, past, {**aux, 'size': x.square().mean()}


class Telling(FeedForward):
    "Says besides how large its output is."
    def forward(self, x):
        y = super().forward(x)
        return y, None, {'size': y.square().mean()}


def test_aux_keeps_its_gradient_through_recomputed_sub_layers():
    x, grads = torch.randn(2, 5, 8).double(), []
    for layer in (EncoderLayer, Recomputed):
        torch.manual_seed(0)
        stack = Encoder(8, 3, 2, dropout=.2, ff=Telling, layer=layer).double().train()
        y, _, aux = stack(x, keep=nothing)
        loss = y.sin().sum() + sum(n*a for n, a in enumerate(aux['size'], 1))
        grads.append([loss, *torch.autograd.grad(loss, [*stack.parameters()])])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert a.any()


def test_aux_of_layers_has_its_gradient():
    torch.manual_seed(0)
    stack, x = Encoder(16, 3, 4, layer=Sized).double(), torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    y, _, aux = stack(x)
    z, sizes = x, []
    for layer in stack.layers:
        z = layer(z)[0]
        sizes.append(z.square().mean())
    contract.close(y, stack.norm(z))
    assert len(aux['size']) == 3
    for a, b in zip(aux['size'], sizes):
        contract.close(torch.autograd.grad(a, x, retain_graph=True)[0],
                       torch.autograd.grad(b, x, retain_graph=True)[0])


def test_a_span_is_worked_out_once():
    asked = []

    def span(b, h, i, j):
        asked.append(1)
        return j <= i
    Encoder(16, 6, 4)(torch.randn(2, 5, 16), mask=span)
    assert len(asked) == 1


def test_nothing_of_a_recording_stays_after_an_error():
    model = fixed_model('transformer')
    with pytest.raises(RuntimeError, match='stop'), recorded(model):
        model(contract.some_tokens())
        raise RuntimeError('stop')
    assert not any(m._forward_hooks for m in model.modules())


if __name__ == '__main__':
    ORDER.write_text(json.dumps({n: fingerprint(n) for n in FIXED}, indent=0) + '\n')
