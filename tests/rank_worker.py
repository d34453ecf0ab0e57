"""What each of several processes does in tests/test_ranks.py; with one process, the numbers to compare with.

    python -m torch.distributed.run --nproc_per_node 2 -m tests.rank_worker FOLDER"""
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

warnings.simplefilter('ignore', FutureWarning)

import torch  # noqa: E402
from fastai.callback.core import Callback  # noqa: E402
from torch import nn  # noqa: E402

from transformer_family import schedules  # noqa: E402
from transformer_family.adaptive_span import AdaptiveSpanTransformer, plot_spans, spans  # noqa: E402
from transformer_family.core import rank, world_size  # noqa: E402
from transformer_family.data import Images, lm_dls  # noqa: E402
from transformer_family.generation import generate  # noqa: E402
from transformer_family.image_transformer import (  # noqa: E402
    ImageTransformer,
    image_dls,
    image_learner,
    sample_images,
)
from transformer_family.images import bits_per_dim  # noqa: E402
from transformer_family.ranks import Distributed, all_told, joined, together, whole  # noqa: E402
from transformer_family.runs import Checkpoint, on_first, read_history, resume  # noqa: E402
from transformer_family.saving import load  # noqa: E402
from transformer_family.schedules import Budget  # noqa: E402
from transformer_family.training import BitsPerToken, bits_per_character, lm_learner, seq2seq_learner  # noqa: E402
from transformer_family.transformer import PreNorm, Transformer, TransformerLM  # noqa: E402
from transformer_family.transformer_xl import TransformerXL  # noqa: E402
from transformer_family.translation import (  # noqa: E402
    bits_per_token,
    cross_attention,
    pair_dls,
    translate_text,
    word_vocabulary,
)

STEPS = 50
SMALL = dict(d_model=16, n_layers=2, n_heads=2, dropout=0.)
place = dict(device='cpu')
SHARES = hasattr(torch.cpu.Stream, 'record_event')      # can this torch share out parameters on the CPU?


def text(n=2000, seed=0):
    "Letters of which each follows from the one before, mostly."
    g = torch.Generator().manual_seed(seed)
    return ((torch.randint(0, 3, (n,), generator=g).cumsum(0) % 11) + 97).byte()


def sentences(n=45):
    "Pairs of unequal lengths; a pass of 6 at a time ends with fewer pairs than there are processes."
    words = 'ab cde f ghi jk'.split()
    rows = [[words[(i*i + j) % 5] for j in range(1 + i % 4)] for i in range(n)]
    return [(' '.join(r), ' '.join(r[::-1]*(1 + len(r) % 2))) for r in rows]


def pictures(n=33):
    x = torch.arange(16).view(1, 4, 4) + torch.arange(n).view(-1, 1, 1)
    return Images((x % 5).byte(), torch.arange(n) % 3)


class Note(Callback):
    "Losses and rates of all steps, and what this process reads."
    order = 65

    def before_fit(self):
        self.losses, self.rates, self.rows_read = [], [], []

    def before_batch(self):
        if self.training and len(self.rows_read) < 3:
            self.rows_read.append(self.y.tolist())

    def after_batch(self):
        if self.training:
            self.losses.append(self.loss.item())
            self.rates.append(self.opt.hypers[-1]['lr'])


def a_text(cls=TransformerLM, cbs=(), **kwargs):
    torch.manual_seed(0)
    model = cls(**{**SMALL, **kwargs}).double()
    dls = lm_dls((text(), text(301, 1)), 4, 8, jitter=True, **place)
    return lm_learner(dls, model, cbs=[Note(), *cbs])


def some_pairs(cbs=()):
    torch.manual_seed(0)
    rows = sentences()
    vocab = word_vocabulary(s for row in rows for s in row)
    model = Transformer(vocab.get_vocab_size(), wiring=PreNorm, **SMALL).double()
    dls = pair_dls((rows[:43], rows[40:]), vocab, 6, **place)         # 7·6 + 1 pairs
    learn = seq2seq_learner(dls, model, metrics=[BitsPerToken()], cbs=[Note(), *cbs])
    learn.vocab = vocab
    return learn


def some_pictures(cbs=()):
    torch.manual_seed(0)
    model = ImageTransformer(vocab_size=5, size=(4, 4), block=4, memory=8, wiring=PreNorm, **SMALL).double()
    return image_learner(image_dls((pictures(), pictures(7)), model, 8, **place), model, cbs=[Note(), *cbs])


LEARNERS = {
    'text': partial(a_text, wiring=PreNorm, max_len=8),
    'memory': partial(a_text, TransformerXL, mem_len=8),
    'auxiliary': partial(a_text, AdaptiveSpanTransformer, max_span=16),
    'pairs': some_pairs,
    'pictures': some_pictures,
}


def summary(learn):
    note = next(cb for cb in learn.cbs if isinstance(cb, Note))
    values = [[float(x) for x in row] for row in learn.recorder.values]
    total = sum(p.double().abs().sum().item() for p in whole(dict(learn.model.named_parameters())).values())
    return dict(losses=note.losses, values=[v[1:] for v in values], read=all_told(note.rows_read), total=total,
                rates=all_told(note.rates))


def fit(learn, steps=STEPS, **kwargs):
    with learn.no_logging():
        budget = Budget(1e-2, **{**dict(steps=steps, every=25), **kwargs})
        if hasattr(learn, 'progress'):
            learn.remove_cb(learn.progress)
        budget.run(learn)
    return learn


class AskToStop(Callback):
    "Ask one process, the last one, to stop; all of them must, behind the same step."
    order = 60

    def after_batch(self):
        if self.training and self.learn.checkpoint.step == 17 and rank() == world_size() - 1:
            self.learn.checkpoint.stop = True


def broken_off(make, folder):
    "Stopped after 17 steps, and gone on with by a new Learner."
    learn = make(cbs=[Checkpoint(folder, every=10), AskToStop()])
    try:
        fit(learn)
        raise AssertionError('it was not stopped')
    except KeyboardInterrupt:
        first, drawn = summary(learn)['losses'], torch.get_rng_state()
    if learn.checkpoint.hold:                       # as the end of a process would
        learn.checkpoint.hold.release()
    learn = make(cbs=[Checkpoint(folder, every=10)])
    budget = Budget(1e-2, steps=STEPS, every=25)
    learn.add_cb(budget)
    torch.manual_seed(99)
    step, again = resume(learn, folder), torch.get_rng_state()
    random = dict(restored=again.equal(drawn), own=sum(x.equal(drawn) for x in all_told(drawn)) == 1)
    if hasattr(learn, 'progress'):
        learn.remove_cb(learn.progress)
    with learn.no_logging():
        learn.fit(budget.epochs, budget.lr)
    losses = first + summary(learn)['losses']
    left = [p.name for p in folder.parent.glob('.*.part')]                  # one process writes
    return dict(step=step, losses=losses, random=random, left=left, rows=len(read_history(folder/'history.csv')))


def refused():
    "What this process hears of an error that only the first one meets."
    def fails():
        raise ValueError('not here')
    try:
        on_first(fails)
    except ValueError as e:
        return str(e)


def shared_out(cbs=()):
    return LEARNERS['text'](cbs=[Distributed(shard=True), *cbs])


def by_the_clock():
    "A moment, on clocks that disagree: steps and rates of all processes."
    clock = iter(i*.01*(1 + 3*rank()) for i in range(10**6))
    with mock.patch.object(schedules.time, 'monotonic', lambda: next(clock)):
        learn = fit(LEARNERS['text'](), steps=None, minutes=.01)
    return dict(steps=all_told(learn.budget.step), rates=summary(learn)['rates'])


def parted(folder):
    "Parameters that are shared out: the curve, their type, and a checkpoint that is whole."
    learn = fit(shared_out([Checkpoint(folder, every=10)]))
    kinds = sorted({type(p).__name__ for p in learn.model.parameters()})
    own = sum(p.to_local().numel() if together() else p.numel() for p in learn.model.parameters())
    got = summary(learn)
    saved = {}
    if not rank():
        model = load(folder).double()
        saved = dict(cls=type(model).__name__, saved=sum(p.abs().sum().item() for p in model.parameters()))
    return dict(kinds=kinds, own=own, n=sum(p.numel() for p in learn.model.parameters()), **saved, **got)


def wrapped(folder):
    "Numbers and figures of models as training wraps them."
    def wrap(model):
        return nn.parallel.DistributedDataParallel(model) if together() else model
    out = {}
    lm, span, seq, pix = (LEARNERS[k]() for k in ('text', 'auxiliary', 'pairs', 'pictures'))
    for name, learn in dict(text=lm, span=span).items():
        out[name] = bits_per_character(wrap(learn.model), text(200, 3), size=8)
    prompt = text(5)[None].long()
    out['generated'] = generate(wrap(lm.model), prompt, 3, temperature=0.)[0].tolist()
    out['spans'] = spans(wrap(span.model), prompt).tolist()
    plot_spans(wrap(span.model), prompt)
    rows = sentences()[:5]
    out['bits per token'] = bits_per_token(wrap(seq.model), seq.vocab, rows)
    out['translated'] = translate_text(wrap(seq.model), seq.vocab, [s for s, _ in rows], n=4)
    x = seq.dls.valid.new(bs=2, rank=0, world_size=1).one_batch()
    out['cross'] = cross_attention(wrap(seq.model), *x[:3]).sum().item()
    out['bits per dim'] = bits_per_dim(wrap(pix.model), pictures(5))
    out['pixels'] = sample_images(wrap(pix.model), 2, temperature=0.).tolist()
    return out


def everything(folder):
    "All of the above, by name; of one process what there is to compare with."
    out = {name: summary(fit(make())) for name, make in LEARNERS.items()} | {'wrapped': wrapped(folder)}
    if not together():
        return out
    halves = {name: LEARNERS[name] for name in ('memory', 'pairs', 'pictures')}
    if SHARES:
        halves['parted'], out['parted'] = shared_out, parted(folder/'whole')
    return out | {'broken off': {name: broken_off(make, folder/name) for name, make in halves.items()},
                  'clock': by_the_clock(), 'refused': refused(), 'first': on_first(rank)}


if __name__ == '__main__':
    torch.set_num_threads(1)
    with joined():
        every = all_told(everything(Path(sys.argv[1])))
        if rank() == 0:
            Path(sys.argv[1], 'all.json').write_text(json.dumps(every))
