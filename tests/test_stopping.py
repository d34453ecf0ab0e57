"""A loss that is no number on one of two processes stops both, at the same step; a signal asks a training to stop."""
import itertools
import math
import multiprocessing
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from fastai.callback.core import Callback

from transformer_family.core import rank
from transformer_family.data import lm_dls
from transformer_family.ranks import joined
from transformer_family.runs import stop_gently
from transformer_family.training import StopOnNaN, lm_learner
from transformer_family.transformer import TransformerLM

pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='forks processes')


class Broken(Callback):
    "A loss of the last process alone is no number: at the second step, its own or an auxiliary one."
    def __init__(self, order):
        self.order = order                      # before Distributed adds up the loss, or after auxiliary losses

    def after_loss(self):
        if self.training and self.iter == 1 and rank() == 1:
            self.learn.loss_grad = self.loss_grad*math.nan
            if self.order < -5.5:
                self.learn.loss = self.loss*math.nan


def stopped(order, every):
    "What ended the training, and how far it came; the parameters."
    torch.manual_seed(0)
    text = torch.arange(400).remainder(7).byte()
    learn = lm_learner(lm_dls((text, text), 4, 8, device='cpu', n=6), TransformerLM(d_model=16, n_layers=1),
                       cbs=[Broken(order)])
    next(cb for cb in learn.cbs if isinstance(cb, StopOnNaN)).every = every
    with learn.no_bar(), learn.no_logging():
        try:
            learn.fit(1)
        except FloatingPointError as e:
            return str(e), learn.iter, all(p.isfinite().all() for p in learn.model.parameters())


CASES = list(itertools.product([-6, 5], [(1, 1), (3, 2)]))       # order; looked at every so many steps, found at


def work(r, port, got):
    os.environ.update(RANK=str(r), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    with joined():
        got.put([stopped(order, every) for order, (every, _) in CASES])


@pytest.fixture(scope='module')
def ends():
    "How each case ended in each of two processes."
    assert stopped(0, 1) is None                # one process has no broken one; what is imported is forked
    ctx = multiprocessing.get_context('fork')
    got = ctx.Queue()
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    both = [ctx.Process(target=work, args=(r, port, got), daemon=True) for r in range(2)]
    for p in both:
        p.start()
    try:
        return [got.get(timeout=300) for _ in both]
    finally:
        for p in both:
            p.kill()
            p.join()


@pytest.mark.parametrize('case', range(len(CASES)))
def test_all_stop_where_one_must(ends, case):
    (why, step, whole), other = (end[case] for end in ends)
    every, at = CASES[case][1]
    assert other == (why, step, whole)
    assert step == at and 'the loss became nan' in why
    assert whole == (every == 1)                # seen at once, nothing is lost


@pytest.mark.parametrize('first', [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_the_second_interrupts(first):
    "Afterwards all is as it was; a training in another thread leaves signals alone."
    def get(*signals):
        with stop_gently(checkpoint):
            for x in signals:
                signal.raise_signal(x)
    checkpoint, both = SimpleNamespace(stop=False), (signal.SIGINT, signal.SIGTERM)
    usual = lambda *_: None                                                                     # noqa: E731
    before = [signal.signal(x, usual) for x in both]
    try:
        get(first)
        assert checkpoint.stop
        with pytest.raises(KeyboardInterrupt):
            get(first, signal.SIGINT)
        with ThreadPoolExecutor() as other:
            other.submit(get).result()
        assert [signal.getsignal(x) for x in both] == [usual]*2
    finally:
        for x, was in zip(both, before):
            signal.signal(x, was)
