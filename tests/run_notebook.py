"""Run the cells of one notebook as nbdev-test does, but with stricter comparisons, and say exactly which cell failed.

    python -m tests.run_notebook nbs/01_attention.ipynb [--flags slow cuda]

Exit status 0: all cells ran; 1: one failed, and the report names it; 2: the notebook cannot be read."""
import argparse
import os
import sys
import time
import traceback
from pathlib import Path


def report(name, cell, n, k):
    "What a reader needs to mend the cell: which one, its source, its output so far, its traceback."
    e = k.exc
    tb = e.__traceback__
    while tb is not None and not is_cell_frame(tb):     # drop the machinery's own frames
        tb = tb.tb_next
    lines = traceback.format_exception(type(e), e, tb or e.__traceback__)
    src = '\n'.join(f'    {line}' for line in cell.source.splitlines())
    return (f'{name}: cell {cell.idx_ + 1} of {n} (id {cell.get("id")}) raised {type(e).__name__}\n\n'
            f'{src}\n\n' + ''.join(lines))


def is_cell_frame(tb):
    "Does this step of the traceback stand in the notebook's own code?"
    return tb.tb_frame.f_globals.get('__name__') == '__main__'


def run(path, flags=()):
    "Run the notebook at `path`, also the cells with these `flags`; the report of the first failure, or None."
    from execnb.shell import CaptureShell
    from nbdev.config import get_config
    from nbdev.test import nb_test_cells

    from tests.strict import be_strict

    path = Path(path).resolve()
    cfg = get_config(path.parent)
    skip = cfg.tst_flags
    skip = skip.split() if isinstance(skip, str) else skip
    cells = nb_test_cells(path, skip, list(flags))
    n = len(read_cells(path))
    sys.path.insert(0, str(cfg.config_path))
    os.environ['IN_TEST'] = '1'
    os.chdir(path.parent)
    be_strict()
    k = CaptureShell(path, profile=False)
    for cell in cells:
        k.cell(cell, timeout=cfg.cell_timeout or None)
        if k.exc:
            return report(path.name, cell, n, k)


def read_cells(path):
    import json
    return json.loads(Path(path).read_text(encoding='utf-8'))['cells']


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('notebook')
    p.add_argument('--flags', nargs='*', default=[], help='run the cells with these flags too')
    args = p.parse_args()
    start = time.time()
    try:
        failure = run(args.notebook, args.flags)
    except Exception:
        traceback.print_exc(file=sys.__stderr__)
        status = 2
    else:
        if failure:
            sys.__stderr__.write(failure)
        else:
            sys.__stdout__.write(f'{args.notebook}: {time.time() - start:.1f} s\n')
        status = int(bool(failure))
    sys.__stderr__.flush()
    sys.__stdout__.flush()
    os._exit(status)    # threads that cells left behind must not hold the process


if __name__ == '__main__':
    main()
