"""Environments of gymnasium, minigrid and popgym through the same rollouts; skipped where a package is missing."""
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch

from transformer_family.console import mendable, sentence
from transformer_family.gated_transformer_xl import GTrXL
from transformer_family.reinforcement_learning import (
    EnvironmentFailed,
    LSTMCore,
    Rollouts,
    agent_for,
    gym_envs,
    log_prob,
    rl_learner,
    spaces,
)

pytest.importorskip('gymnasium', minversion='1.1')
CORE = partial(GTrXL, n_layers=1, n_heads=2, mem_len=8)


def test_every_episode_begins_with_its_first_observation():
    "No dummy step stands between two episodes: with a limit of 5 steps every fifth begins one."
    env = gym_envs('CartPole-v1', 3, max_episode_steps=5)
    dl = Rollouts(env, agent_for(env, LSTMCore, 8), t=16, bs=3, passes=1)
    starts = next(iter(dl))[2]
    assert starts.nonzero()[:, 1].view(3, -1).tolist() == [[0, 5, 10, 15]]*3
    assert [round(s) for _, s in dl.scores] == [5]


@pytest.mark.parametrize('package,name,want', [
    ('gymnasium', 'CartPole-v1', ([4], 2)),
    ('minigrid', 'MiniGrid-MemoryS7-v0', ([7, 7, 20], 7)),
    ('popgym', 'popgym:popgym-RepeatPreviousEasy-v0', (4, 4))])
def test_first_ratio_is_one(package, name, want):
    pytest.importorskip(package)
    env = gym_envs(name, 4)
    assert spaces(env) == want
    agent = agent_for(env, CORE, 16)
    torch.nn.init.normal_(agent.policy.weight)
    dl = Rollouts(env, agent, t=9, bs=2, passes=1)
    for _ in range(3):
        for obs, past, starts, actions, logits, _, _ in dl:
            ratio = (log_prob(agent(obs, past, starts).logits, actions) - log_prob(logits, actions)).exp()
            assert (ratio - 1).abs().max() < 1e-4


def test_learner_trains():
    env = gym_envs('CartPole-v1', 4)
    learn = rl_learner(env, agent_for(env, CORE, 8), t=8, bs=2, passes=1)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(2)
    assert learn.dls.train.frames == 64


@pytest.mark.parametrize('name,words', [('Pendulum-v1', 'actions are Box'), ('Blackjack-v1', 'observations are Tuple')])
def test_spaces_that_do_not_fit(name, words):
    with pytest.raises(ValueError, match=words):
        agent_for(gym_envs(name, 2), CORE)


def test_an_environment_that_raises_is_a_sentence():
    "What it said is what a command says, though its words are those of an allocator."
    import gymnasium

    class Broken(gymnasium.Wrapper):
        def step(self, action):
            self.at = getattr(self, 'at', 0) + 1
            if self.at == 3:
                raise RuntimeError('the simulator ran out of memory')
            return super().step(action)

    gymnasium.register('Broken-v0', lambda: Broken(gymnasium.make('CartPole-v1')))
    env = gym_envs('Broken-v0', 2)
    dl = Rollouts(env, agent_for(env, LSTMCore, 8), t=8, bs=2)
    with pytest.raises(EnvironmentFailed) as e:
        next(iter(dl))
    said = 'SyncVectorEnv raised RuntimeError after 0 frames: the simulator ran out of memory'
    assert mendable(e.value) and sentence(e.value) == said


def test_the_opening_table_is_what_the_runs_gave():
    "The worst and the best seed of each core, and the two T-mazes, as the stored outputs say."
    path = Path(__file__).parents[1]/'nbs/51_reinforcement_learning.ipynb'
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    opening = next(''.join(c['source']) for c in cells if '| RepeatPrevious' in ''.join(c['source']))
    shown = [o for c in cells for o in c.get('outputs', [])]
    text = ''.join(''.join(o.get('text') or o['data'].get('text/markdown', '')) + '\n' for o in shown)

    def seeds(name):
        last = re.search(rf'^\| {name} \|.*\| ([\d. ·-]+) \|$', text, re.M)[1]
        return [float(x) for x in last.split(' · ')]

    def row(head):
        row = opening[opening.index(f'| {head}'):].splitlines()[0]
        return [float(x) for x in re.findall(r'(?<=\| )-?\d\.\d+', row)]

    cores = [seeds(n) for n in ('GTrXL', 'TrXL-I', 'TrXL', 'LSTM', 'memoryless')]
    assert all(len(s) == 3 for s in cores)
    assert row('RepeatPrevious(4), worst seed')[:5] == [min(s) for s in cores]
    assert row('RepeatPrevious(4), best seed')[:5] == [max(s) for s in cores]
    assert row('T-maze of 40')[:2] == [min(seeds('memory 48')), max(seeds('memory 24'))]
    small = re.search(r'GTrXL ([\d.]+), without memory ([\d.]+)', text)
    assert row('T-maze of 10')[:2] == [float(x) for x in small.groups()]
