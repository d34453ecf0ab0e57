"""What a call without arguments means: published numbers, and those that the results of the chapters rest on."""
import importlib
import inspect

import pytest

PUBLISHED = {
    'transformer.Transformer': dict(d_model=512, n_layers=6, n_heads=8, dropout=.1),    # Vaswani et al., Table 3
    'training.inverse_sqrt': dict(warmup=4000),                                         # 5.3
    'training.SmoothLabels': dict(smoothing=.1),                                        # 5.4
    'training.seq2seq_learner': dict(smoothing=.1, lr=1e-3),
    'generation.length_penalty': dict(alpha=.6),                                        # 6.1
    'generation.beam_search': dict(beam=4, alpha=.6, keep=1, cache=True),
    'transformer.hide_tokens': dict(p=.15, mask=256),                                   # Devlin et al., 3.1
    'translation.HideTokens': dict(p=.15, mask=256),
    'translation.fill_in': dict(mask=256),
    'images.Logistics': dict(n_mixtures=10, least=-7.),                                 # Salimans et al.
    'character_transformer.predictions': dict(n_targets=2),                             # Al-Rfou et al., 2.3
    'character_transformer.CharacterTransformer': dict(n_targets=2, auxiliary=True, dropout=0.),
    'adaptive_computation.ACT': dict(max_steps=100, epsilon=.01, halt_bias=1.),         # Graves, 2 and 3
    'universal_transformer.Recurrence': dict(act=None, epsilon=.01),                    # tensor2tensor
    'universal_transformer.UniversalTransformerLM': dict(act='mean_field', penalty=.01, n_layers=6),
    'universal_transformer.UniversalTransformer': dict(act='mean_field', penalty=.01, n_layers=6, dropout=.1),
}
OURS = {
    'transformer.TransformerLM': dict(vocab_size=256, d_model=128, n_layers=4, n_heads=4, dropout=0., max_len=512),
    'transformer.MaskedLM': dict(vocab_size=257, d_model=128, n_layers=4, n_heads=4, dropout=0., max_len=512),
    'attention.MultiHeadAttention': dict(dropout=0.),
    'training.adamw': dict(wd=.01, betas=(.9, .99), eps=1e-8),
    'training.lm_learner': dict(lr=3e-3, clip=1.),
    'training.one_cycle': dict(warmup=.1, end=.01),
    'training.Budget': dict(every=100),
    'training.Checkpoint': dict(every=50),
    'data.lm_dls': dict(bs=32, seq_len=128, seed=0, rank=None, world_size=None),
    'generation.sample': dict(temperature=1., top_k=None, top_p=None),
    'generation.generate': dict(temperature=1., top_k=None, top_p=None, cache=True),
    'generation.translate': dict(beam=1, alpha=.6),
    'translation.bpe_vocabulary': dict(size=8000),
    'translation.learn_vocabulary': dict(size=8000, few=1000),
    'translation.bucketed': dict(pool=50),
    'translation.PairLoader': dict(shuffle=True, seed=0),
    'translation.pair_dls': dict(bs=64, seed=0),
    'translation.translate_text': dict(beam=1),
    'character_transformer.sliding_bits': dict(step=1),
}


@pytest.mark.parametrize('name, want', [*PUBLISHED.items(), *OURS.items()], ids=[*PUBLISHED, *OURS])
def test_defaults(name, want):
    module, name = name.split('.')
    part = getattr(importlib.import_module(f'transformer_family.{module}'), name)
    takes = inspect.signature(part.__init__ if isinstance(part, type) else part).parameters
    assert {k: takes[k].default for k in want} == want
