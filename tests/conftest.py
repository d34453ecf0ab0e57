import os

import pytest

from tests.util import copy_tree

if 'PYTEST_XDIST_WORKER' in os.environ:     # several processes at work: one thread each
    os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('MPLBACKEND', 'Agg')


def pytest_collection_modifyitems(items):
    "Tests marked `cuda` are skipped where there is no CUDA device."
    marked = [i for i in items if i.get_closest_marker('cuda')]
    if not marked:
        return
    import torch
    if not torch.cuda.is_available():
        for i in marked:
            i.add_marker(pytest.mark.skip(reason='needs a CUDA device'))


@pytest.fixture
def tree(tmp_path):
    "A copy of the working tree that a test may change."
    return copy_tree(tmp_path/'tree')


@pytest.fixture(scope='session')
def shared_tree(tmp_path_factory):
    "A copy of the working tree to read and to build in; its own files stay as they are."
    return copy_tree(tmp_path_factory.mktemp('shared')/'tree')
