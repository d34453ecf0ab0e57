"""Run the benchmarks and keep their results.

    python -m benchmarks.run [NAME ...] [--device cpu|cuda] [--out benchmarks/results]

A benchmark is a module of this folder with a function `run(device) -> dict`. What it returns goes to
NAME-DEVICE.json, together with a description of the machine that says what matters and not which it is."""
import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def names():
    "The modules of this folder that define a benchmark."
    found = sorted(p.stem for p in HERE.glob('*.py') if p.stem not in ('__init__', 'run'))
    return [n for n in found if hasattr(module(n), 'run')]


def module(name):
    return importlib.import_module(f'benchmarks.{name}')


def machine(device):
    "What a reader needs to judge the figures by: no host name, no paths."
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    d = dict(system=platform.system(), processor=platform.machine(), cpus=cpus,
             threads=torch.get_num_threads(), python=platform.python_version(), torch=torch.__version__)
    if hasattr(os, 'getloadavg'):       # a busy machine makes every figure worse
        d['load'] = round(os.getloadavg()[0], 1)
    if device == 'cuda':
        d.update(device=torch.cuda.get_device_name(), cuda=torch.version.cuda)
    return d


def write(path, result):
    "Write json under a temporary name, then rename: the file is whole or not there."
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + '.part')
    part.write_text(json.dumps(result, indent=1) + '\n')
    os.replace(part, path)


def main(argv=None):
    p = argparse.ArgumentParser(prog='python -m benchmarks.run', description=__doc__.splitlines()[0])
    p.add_argument('names', nargs='*', metavar='NAME', help=f'any of {", ".join(names())}; default: all')
    p.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    p.add_argument('--out', type=Path, default=HERE/'results', help='folder of the results')
    args = p.parse_args(argv)
    if unknown := set(args.names) - set(names()):
        p.error(f'no benchmark {", ".join(sorted(unknown))}: there are {", ".join(names())}')
    if args.device == 'cuda' and not torch.cuda.is_available():
        p.error('no CUDA device here: use --device cpu')
    for name in args.names or names():
        start, here = time.time(), machine(args.device)
        figures = module(name).run(args.device)
        path = args.out/f'{name}-{args.device}.json'
        write(path, dict(benchmark=name, machine=here, figures=figures))
        print(f'{name}-{args.device} ({time.time() - start:.0f} s)', file=sys.stderr)
        for k, v in figures.items():
            print(f'  {k}: {v:,.4g}' if isinstance(v, float) else f'  {k}: {v:,}' if isinstance(v, int)
                  else f'  {k}: {v}')


if __name__ == '__main__':
    main()
