"""What layers and stacks promise beyond one chapter: numbers that stay, sources, gradients, recording."""
import json
from pathlib import Path

import pytest
import torch

from tests import contract
from transformer_family import zoo
from transformer_family.core import arguments
from transformer_family.image_transformer import ImageToImage
from transformer_family.transformer import MaskedLM

ORDER = Path(__file__).parent/'data/order.json'
FIXED = {**zoo.models, 'masked_lm': MaskedLM, 'image_to_image': ImageToImage}
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


if __name__ == '__main__':
    ORDER.write_text(json.dumps({n: fingerprint(n) for n in FIXED}, indent=0) + '\n')
