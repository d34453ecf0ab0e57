"""Input that does not fit raises one sentence that says what came and what was expected, and does no harm."""
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.contract import some_tokens
from transformer_family import zoo
from transformer_family.adaptive_computation import ACT, ACTRNN
from transformer_family.attention import KV, CrossAttention, MultiHeadAttention, Source, recorded
from transformer_family.core import Output
from transformer_family.positions import ShawAttention
from transformer_family.transformer import (
    Decoder,
    Encoder,
    EncoderLayer,
    MaskedLM,
    Past,
    PreNorm,
    TiedEmbedding,
    Transformer,
    TransformerLM,
)
from transformer_family.universal_transformer import UniversalTransformer, UniversalTransformerLM

torch.manual_seed(0)
SIZES = dict(d_model=32, n_layers=2, n_heads=4)
LM = TransformerLM(50, **SIZES, max_len=24).eval()
BERT = MaskedLM(50, **SIZES, max_len=24).eval()
PAIR = Transformer(50, **SIZES, max_len=24).eval()
TOKENS, X = some_tokens(), torch.randn(3, 9, 32)
PAST = LM(TOKENS[:, :9]).past
STACK, LAYER, ATT = LM.layers, LM.layers.layers[0], LM.layers.layers[0].attn
CROSS, DEC = CrossAttention(32, 4), Decoder(32, 2, 4)


def left(**kw):
    "What another model leaves behind."
    return TransformerLM(50, **{**SIZES, **kw}).eval()(TOKENS[:, :9]).past


def go_on(past):
    return LM(TOKENS[:, 9:12], past)


def rows(mask):
    return LM(TOKENS, mask=mask)


class Clipped(MultiHeadAttention):
    def __init__(self, d_model, n_heads, clip):
        super().__init__(d_model, n_heads)


RNN = ACTRNN(50, 32, 2, max_steps=3).eval()
UT = UniversalTransformerLM(50, **SIZES, max_len=24).eval()
UT_PAIR = UniversalTransformer(50, **SIZES, max_len=24).eval()


def growing(x, state):
    "A cell that gives a larger state every time."
    return x if state is None else torch.cat([state, x], 1)


REAL = torch.ones(3, 24, dtype=torch.bool)
EMPTY = REAL.clone()
EMPTY[1] = False

BAD = {    # id -> call, words of its sentence
    'past, other layers': (lambda: go_on(left(n_layers=3)), 'past has 3 layers, the model has 2'),
    'past, other heads': (lambda: go_on(left(n_heads=2)), 'past has 2 heads of width 16, the layer 4 of 8'),
    'past, other head width': (lambda: go_on(left(d_head=6)), 'past has 4 heads of width 6, the layer 4 of 8'),
    'past, other batch': (lambda: LM(TOKENS[:2, :3], PAST), 'past belongs to a batch of 3, the tokens to one of 2'),
    'past, a tensor': (lambda: go_on(X), 'past is a Tensor that this model cannot have left'),
    'past, a number': (lambda: go_on(3), 'past is a int that this model cannot have left'),
    'past, a list': (lambda: go_on([1, 2, 3, 4]), 'past is a list that this model cannot have left'),
    'past, an output': (lambda: go_on(LM(TOKENS[:, :9])), 'past is a Output that this model cannot have left'),
    'past, layers of a tensor': (lambda: go_on(Past(9, X)), 'past has no layers'),
    'past, of an encoder-decoder': (lambda: go_on(PAIR(TOKENS, TOKENS[:, :9]).past), "not hold this layer's"),
    'past, of a language model': (lambda: PAIR(None, TOKENS[:, 9:], past=PAST),
                                  'feed a past back to the model it came from'),
    'past, memory of another family': (lambda: go_on(Past(9, (X, X))), 'past is a Tensor that does not hold'),
    'past, three tensors': (lambda: go_on(Past(9, ((X[None],)*3,)*2)), "not hold this layer's keys and values"),
    'past, of both sides': (lambda: BERT(TOKENS, PAST), 'reads both sides has no past'),
    'past, too long': (lambda: LM(TOKENS, PAST), 'reaches position 33, but the model has max_len=24'),
    'mask, a size': (lambda: ATT(X, mask=torch.ones(10, 9).bool()), r'mask of shape [10, 9] does not broadcast to [b,'),
    'mask, other batch': (lambda: ATT(X, mask=torch.ones(4, 1, 9, 9).bool()), 'a mask of shape [4, 1, 9, 9]'),
    'mask, floats': (lambda: ATT(X, mask=torch.ones(9, 9)), 'a mask is bool, True = may attend; got torch.float32'),
    'mask, a word': (lambda: STACK(X, mask='causal'), 'a mask is a span or a bool tensor [b,h,t,s]'),
    'mask, of the source': (lambda: DEC(X, mask=torch.ones(9, 5).bool(), source=X[:, :5]), 'a mask of shape [9, 5]'),
    'padding, floats': (lambda: rows(REAL.float()), 'mask is bool [3, 24] like the tokens, True for a real one'),
    'padding, a list': (lambda: rows([True]*24), 'mask is bool [3, 24] like the tokens'),
    'padding, shorter': (lambda: rows(REAL[:, 1:]), 'got [3, 23]'),
    'padding, a row of nothing else': (lambda: rows(EMPTY), 'row 1 of the batch is all padding'),
    'padding, both sides': (lambda: BERT(TOKENS, mask=EMPTY), 'row 1 of the batch is all padding'),
    'padding, a source of nothing else': (lambda: PAIR(TOKENS, TOKENS, EMPTY), 'row 1 of the batch is all padding'),
    'padding, of a source of another size': (lambda: PAIR(TOKENS, TOKENS, REAL[:2]), 'got [2, 24]'),
    'source, not looked at': (lambda: STACK(X, source=X), 'looks at no source'),
    'source, with relations': (lambda: ShawAttention(32, 4, 2)(X, source=X), 'ShawAttention attends to its own'),
    'source, none': (lambda: DEC(X), 'attention to a source needs one: give source='),
    'source, twice': (lambda: DEC(X, DEC(X, source=X)[1], source=X), 'with the first tokens only'),
    'source, other batch': (lambda: CROSS(X, source=X[:2]), 'past belongs to a batch of 2, the tokens to one of 3'),
    'source, a list': (lambda: CROSS(X, source=[X, X, X]), 'a source is a tensor [b,s,d] or a Source'),
    'source, a mask of another size': (lambda: CROSS(X, source=Source(X, REAL)), "a source's mask is bool [3, 9]"),
    'tokens, None': (lambda: LM(None), 'tokens must be a tensor [batch, length], got NoneType'),
    'tokens, a list': (lambda: LM([1, 2]), 'must be a tensor [batch, length], got list: use torch.tensor'),
    'tokens, a text': (lambda: BERT('text'), 'must be a tensor [batch, length], got str'),
    'tokens, an output': (lambda: LM(Output(None, None, {})), 'got Output'),
    'tokens, of a target': (lambda: PAIR(TOKENS, None), 'target tokens must be a tensor'),
    'tokens, of a source': (lambda: PAIR(None, TOKENS), 'source tokens must be a tensor'),
    'build, a width below 0': (lambda: zoo.build('transformer', d_model=-8),
                               'd_model must be an integer of at least 1'),
    'build, no width': (lambda: zoo.build('transformer', d_model=0), 'at least 1, got 0'),
    'build, half a width': (lambda: zoo.build('transformer', d_model=3.5), 'd_model must be an integer'),
    'build, a truth as a width': (lambda: zoo.build('transformer', d_model=True), 'd_model must be an integer'),
    'build, a word as a width': (lambda: zoo.build('transformer', d_model='8'), "got '8'"),
    'build, layers None': (lambda: zoo.build('transformer', n_layers=None), 'n_layers must be an integer'),
    'build, a vocabulary missing': (lambda: zoo.build('transformer_seq2seq'), 'Transformer needs src_vocab'),
    'build, a misspelt argument': (lambda: zoo.build('transformer', n_layer=2), '(did you mean n_layers?)'),
    'build, memory below 0': (lambda: zoo.build('transformer_xl', mem_len=-1), 'mem_len must be an integer of at lea'),
    'build, no span': (lambda: zoo.build('adaptive_span', max_span=0), 'max_span must be an integer of at least 1'),
    'build, no hashes': (lambda: zoo.build('reformer', n_hashes=0), 'n_hashes must be an integer of at least 1'),
    'build, a window of words': (lambda: zoo.build('reformer', chunk='8'), 'chunk must be an integer'),
    'parts, a module': (lambda: Encoder(32, 6, 4, attn=ATT), 'called once for each layer, got a MultiHeadAttention'),
    'parts, in a partial': (lambda: Encoder(32, 6, 4, attn=partial(ATT)), 'called once for each layer, got'),
    'parts, of a model': (lambda: TransformerLM(attn=ATT), "attn must be of kind 'attention'"),
    'parts, a number': (lambda: TransformerLM(attn=3), "attn must be of kind 'attention', a class"),
    'parts, a name': (lambda: TransformerLM(attn='ShawAttention'), "got 'ShawAttention'"),
    'parts, none': (lambda: TransformerLM(attn=[]), 'got []'),
    'parts, a wiring': (lambda: TransformerLM(wiring=PreNorm(32)), 'got a PreNorm'),
    'parts, positions': (lambda: TransformerLM(positions='none'), "positions must be of kind 'positions'"),
    'parts, something missing': (lambda: TransformerLM(attn=Clipped), 'Clipped needs clip'),
    'parts, something too much': (lambda: TransformerLM(attn=partial(ShawAttention, clip=2), bias=1),
                                  'bias must be True'),
    'parts, unknown': (lambda: EncoderLayer(32, 4, 64, bogus=1), "has no argument 'bogus'"),
    'parts, unknown in a partial': (lambda: TransformerLM(attn=partial(MultiHeadAttention, bogus=1)),
                                    "argument 'bogus'"),
    'parts, a word to attend': (lambda: TransformerLM(attend='fast'), "attend must be of kind 'attend'"),
    'targets, another shape': (lambda: LM.head.nll(X, TOKENS), 'targets are integers [3, 9], one for each position'),
    'targets, floats': (lambda: LM.head.nll(X, TOKENS[:, :9].float()), 'got torch.float32'),
    'targets, None': (lambda: LM.head.nll(X, None), 'got NoneType'),
    'targets, out of range': (lambda: LM.head.nll(X, TOKENS[:, :9] + 50), 'targets must lie in 0…49, or be −100'),
    'targets, in parts': (lambda: TiedEmbedding(50, 32, chunk=4).nll(X, TOKENS[:, :9] - 50), 'targets must lie in'),
    'halting, an ε of 0': (lambda: ACT(nn.GRUCell(3, 4), epsilon=0), 'epsilon must lie between 0 and 1, got 0'),
    'halting, an ε of 1': (lambda: zoo.build('universal_transformer', epsilon=1), 'between 0 and 1, got 1'),
    'halting, an ε below 0': (lambda: zoo.build('act_rnn', epsilon=-.1), 'between 0 and 1, got -0.1'),
    'halting, no number as ε': (lambda: zoo.build('act_rnn', epsilon=float('nan')), 'between 0 and 1, got nan'),
    'halting, no step': (lambda: ACT(nn.GRUCell(3, 4), max_steps=0),
                         'max_steps must be an integer of at least 1, got 0'),
    'halting, no step of a model': (lambda: zoo.build('act_rnn', max_steps=-1), 'max_steps must be an integer'),
    'halting, no step of a layer': (lambda: zoo.build('universal_transformer', n_layers=0),
                                    'n_layers must be an integ'),
    'halting, half a step': (lambda: UniversalTransformer(50, n_layers=2.5), 'n_layers must be an integer of at least'),
    'halting, a price below 0': (lambda: zoo.build('act_rnn', penalty=-1), 'must be 0 or above, got -1'),
    'halting, a price below 0 per step': (lambda: UniversalTransformerLM(penalty=-.1), 'must be 0 or above, got -0.1'),
    'halting, a price below 0 on both sides': (lambda: UniversalTransformer(50, penalty=-2), 'must be 0 or above'),
    'halting, an unknown rule': (lambda: UniversalTransformerLM(act='mean'),
                                 "act is 'mean_field', 'interpolate' or None"),
    'halting, a growing state': (lambda: ACT(growing, d_state=4, halt_bias=-9.)(torch.ones(2, 3)),
                                 'must return a state of the shape that it was given, got [[2, 8]] for [[2, 4]]'),
    'halting, a state of no known size': (lambda: ACT(growing), 'a function has no hidden_size: give d_state'),
    'halting, beyond the positions': (lambda: UT(TOKENS, UT(TOKENS[:, :9]).past), 'but the model has max_len=24'),
    'halting, a source beyond them': (lambda: UT_PAIR(TOKENS.repeat(1, 2), TOKENS), 'but the model has max_len=24'),
    'halting, a target beyond them': (lambda: UT_PAIR(TOKENS, TOKENS.repeat(1, 2)), 'but the model has max_len=24'),
    'halting, a past of other steps': (lambda: UT(TOKENS[:, :3], left(n_layers=3)),
                                       'past has 3 steps, the model has 2'),
    'halting, a past of other heads': (lambda: UT(TOKENS[:, :3], left(n_heads=2)), 'past has 2 heads of width 16'),
    'halting, a past of another batch': (lambda: UT(TOKENS[:2, :3], PAST), 'past belongs to a batch of 3'),
    'halting, a past of tensors': (lambda: UT(TOKENS[:, :3], Past(9, (X, X))), 'past is a Tensor that does not hold'),
    'halting, a past of both sides': (lambda: UT(TOKENS[:, :3], PAIR(TOKENS, TOKENS[:, :9]).past),
                                      "not hold this layer's"),
    'halting, states of other layers': (lambda: RNN(TOKENS, (3, (X[:, 0],))), 'past has 1 layers, the model has 2'),
    'halting, states of another batch': (lambda: RNN(TOKENS[:2], RNN(TOKENS).past), 'past belongs to a batch of 3'),
    'halting, states that are a tensor': (lambda: RNN(TOKENS, X), 'past is a Tensor that this model cannot have left'),
    'halting, padding of floats': (lambda: RNN(TOKENS, mask=REAL.float()), 'mask is bool [3, 24] like the tokens'),
    'recording, in training': (lambda: recorded(TransformerLM()).__enter__(), 'a model is recorded in evaluation'),
    'recording, compiled': (lambda: recorded(torch.compile(LM)).__enter__(), 'record unwrap(model) and call that'),
}


@pytest.mark.parametrize('call, words', BAD.values(), ids=BAD)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError) as e:
        call()
    said = str(e.value)
    assert words in said and 10 <= len(said) <= 300 and '\n' not in said, said


def test_nothing_was_lost_by_it():
    fresh = LM(TOKENS)
    assert fresh.logits.isfinite().all() and isinstance(fresh.past.layers[0], KV)
    assert isinstance(go_on(PAST).logits, Tensor) and BERT(TOKENS).past is None
