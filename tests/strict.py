"""Comparisons that look at sizes as well.

fastcore's pad with None (`test_eq([None], [])` passes), cut off (`test_close([], [1])` passes) and broadcast. Here
lengths and shapes must agree; one number may stand for every value that should be near it."""
from functools import wraps

import fastcore.test


def sizes_agree(a, b):
    "Have two values the same shape, or as lists the same length, and so have their items?"
    shapes = [tuple(x.shape) if hasattr(x, 'shape') else None for x in (a, b)]
    if None not in shapes:
        return shapes[0] == shapes[1]
    listed = [isinstance(x, (list, tuple)) for x in (a, b)]
    if all(listed):
        return len(a) == len(b) and all(map(sizes_agree, a, b))
    if any(listed) and shapes != [None, None]:
        return len(a) == len(b)
    return True


def strictly(compare):
    @wraps(compare)
    def _compare(a, b, *args, **kwargs):
        return sizes_agree(a, b) and compare(a, b, *args, **kwargs)
    return _compare


def be_strict():
    "From now on `test_eq` and `test_close` compare sizes as well."
    for name in ('equals', 'is_close'):
        compare = getattr(fastcore.test, name)
        if not hasattr(compare, '__wrapped__'):
            setattr(fastcore.test, name, strictly(compare))
