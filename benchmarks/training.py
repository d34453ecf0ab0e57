"""What does the training loop cost? Tokens per second of the Learner and of a bare loop.

Both train the command line's default model on the embedded corpus, on the same batches, in alternating
runs of one process. The ratio is what fastai and the callbacks add to a step; the checkpoint's time is
that of one write, of which a run does one every 50 steps."""
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from transformer_family.data import corpus, lm_dls
from transformer_family.training import Budget, Checkpoint, lm_learner
from transformer_family.transformer import PreNorm, TransformerLM

BS, SEQ_LEN, STEPS, RUNS = 16, 128, 40, 5


def model(device):
    torch.manual_seed(0)
    return TransformerLM(d_model=128, n_layers=4, n_heads=4, max_len=SEQ_LEN, wiring=PreNorm).to(device)


def timed(f, device):
    start = time.perf_counter()
    f()
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start


def bare(net, dl, device):
    "The loop without a Learner: the same optimiser, clipping and precision."
    opt = torch.optim.AdamW(net.parameters(), 1e-3, betas=(.9, .99), weight_decay=.01)

    def go():
        dl.n = STEPS
        for x, y in dl:
            with torch.autocast('cuda', torch.bfloat16, enabled=device == 'cuda'):
                loss = F.cross_entropy(net(x).logits.flatten(0, 1).float(), y.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.)
            opt.step()
            opt.zero_grad()
            loss.item()
    return go


def learner(net, dls):
    "The same steps as one epoch of the Learner, validation left out."
    learn = lm_learner(dls, net, metrics=[])
    learn._do_epoch_validate = lambda *args: None

    def go():
        dls.train.n = STEPS
        with learn.no_bar(), learn.no_logging():
            learn.fit(1, 1e-3)
    return go


def checkpoint_seconds(net, dls):
    "Median time of writing a checkpoint, after two steps."
    with tempfile.TemporaryDirectory() as d:
        learn = lm_learner(dls, net, cbs=[Budget(1e-3, steps=2, every=2), Checkpoint(Path(d)/'run')])
        with learn.no_bar(), learn.no_logging():
            learn.fit(1)
        return median(timed(learn.checkpoint.write, 'cpu') for _ in range(5))


def run(device):
    dls = lm_dls(corpus('pydoc'), bs=BS, seq_len=SEQ_LEN, device=device)
    loops = dict(bare=bare(model(device).train(), dls.train, device), learner=learner(model(device), dls))
    times = {n: [] for n in loops}
    for i in range(RUNS + 1):
        for name, go in loops.items():
            seconds = timed(go, device)
            if i:                       # the first round warms up
                times[name].append(seconds)
    ratio = median(a/b for a, b in zip(times['learner'], times['bare']))
    return dict(batch=[BS, SEQ_LEN], steps=STEPS, runs=RUNS, learner_over_bare=round(ratio, 3),
                **{f'{n}_tokens_per_second': round(BS*SEQ_LEN*STEPS/median(t)) for n, t in times.items()},
                checkpoint_seconds=round(checkpoint_seconds(model(device), dls), 4))
