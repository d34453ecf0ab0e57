"""What several tests share: where things are, and copies of the working tree to work on."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIP = {'.git', '__pycache__', '_proc', '_docs', '.ipynb_checkpoints', 'runs', 'build', 'dist'}


def notebooks(root=ROOT):
    "The notebooks of the project at `root`, in reading order."
    found = sorted((Path(root)/'nbs').glob('**/*.ipynb'))
    return [p for p in found if not SKIP & set(p.relative_to(root).parts)]


def tracked(root=ROOT):
    "Files git knows, and those it does not know and does not ignore; all files where there is no git."
    try:
        out = subprocess.run(['git', 'ls-files', '-z', '-c', '-o', '--exclude-standard'], cwd=root,
                             check=True, capture_output=True).stdout
        files = [root/f for f in out.decode().split('\0') if f]
    except (OSError, subprocess.CalledProcessError):
        files = [p for p in root.rglob('*') if not SKIP & set(p.relative_to(root).parts)
                 and not any(q.startswith('.venv') or q.endswith('.egg-info')
                             for q in p.relative_to(root).parts)]
    return sorted(f for f in files if f.is_symlink() or f.is_file())


def copy_tree(dst, root=ROOT):
    "Copy the working tree as it is now, without what git ignores, to `dst`."
    for f in tracked(root):
        to = dst/f.relative_to(root)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(f, to, follow_symlinks=False)
    return dst


def python(code, cwd, timeout=600, path=None, **env):
    "Run `code` in a fresh interpreter in `cwd`, with `path` first in its search path; return its output."
    args = [sys.executable, '-c', code]
    return command(args, cwd, timeout, PYTHONPATH=str(path or cwd), **env)


def command(args, cwd, timeout=600, **env):
    """Run `args` in `cwd`; fail with its whole output.

    Files rather than pipes: a grandchild that outlives `args` cannot hold the test up."""
    with tempfile.TemporaryFile() as out:
        res = subprocess.run([str(a) for a in args], cwd=cwd, stdin=subprocess.DEVNULL, stdout=out,
                             stderr=subprocess.STDOUT, timeout=timeout,
                             env={**os.environ, 'MPLBACKEND': 'Agg', **env})
        out.seek(0)
        text = out.read().decode(errors='replace')
    shown = ' '.join(str(a) for a in args)
    assert res.returncode == 0, f'exit status {res.returncode} from: {shown}\n{text}'
    return text
