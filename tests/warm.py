"""Console scripts without their seconds of start-up: forked from a process that has imported the package.

    with Warm() as warm: status, out, err = warm(['bin/tfam-models'], cwd)

A child is a process of its own, with files for its three streams, that runs the installed script as the interpreter
would. Where forking is unsafe or unknown, a new interpreter runs it."""
import atexit
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

CAN_FORK = sys.platform == 'linux'


def environment():
    "One thread each, streams unbuffered, and the warnings that a user sees."
    env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONUNBUFFERED='1')
    env.pop('PYTHONWARNINGS', None)
    return env


class Warm:
    "Runs scripts one after the other; the process to fork from starts with the first."
    server = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.server:
            self.server.stdin.close()
            self.server.wait(60)
            self.server.stdout.close()

    def line(self, timeout):
        "The server's next number; without one in time, None."
        if not select.select([self.server.stdout], [], [], timeout)[0]:
            return None
        text = self.server.stdout.readline()
        assert text, f'the process to fork from ended with {self.server.wait()}'
        return int(text)

    def __call__(self, args, cwd, input=b'', timeout=300, during=None):
        "Exit status (minus the signal that ended it), stdout and stderr of a script; `during` gets its process id."
        args = list(map(str, args))
        if not CAN_FORK:
            p = subprocess.run([sys.executable, *args], cwd=cwd, env=environment(), input=input, capture_output=True,
                               timeout=timeout)
            return p.returncode, p.stdout.decode(), p.stderr.decode()
        if self.server is None:
            self.server = subprocess.Popen([sys.executable, '-m', 'tests.warm'], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, env=environment(), bufsize=0,
                                           cwd=Path(__file__).resolve().parent.parent)
        with tempfile.TemporaryDirectory() as streams:
            streams = Path(streams)
            (streams/'0').write_bytes(input)
            job = dict(args=args, cwd=str(cwd), streams=str(streams))
            self.server.stdin.write(json.dumps(job).encode() + b'\n')
            pid = self.line(300)
            if during:
                during(pid)
            status = self.line(timeout)
            if status is None:
                with suppress(ProcessLookupError):             # it may just have ended
                    os.kill(pid, signal.SIGKILL)
                self.line(60)
                raise subprocess.TimeoutExpired(args, timeout)
            return status, *((streams/fd).read_bytes().decode() for fd in '12')


def become(args, cwd, streams):
    "Turn this process into one that runs the script `args[0]`, and end it with the status of that."
    sys.stdin.close()
    for fd, flags in enumerate((os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT]*2)):
        f = os.open(f'{streams}/{fd}', flags)
        os.dup2(f, fd)
        os.close(f)
    sys.stdin = open(0, closefd=False)
    os.chdir(cwd)
    sys.argv, sys.path[0] = args, str(Path(args[0]).parent)
    status = 1
    try:
        runpy.run_path(args[0], run_name='__main__')
        status = 0
    except SystemExit as e:
        status = int(e.code or 0)                     # what the console scripts give is a number or None
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)                              # tidying up all that was imported takes another second


def serve():
    "For each job on stdin: its process's id, then its exit status."
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        import fastai.basics  # noqa: F401
        import fastai.callback.all  # noqa: F401
        import matplotlib.pyplot  # noqa: F401
        import torch.nn.attention.flex_attention  # noqa: F401

        import transformer_family.run_tasks  # noqa: F401
    gc.collect()
    gc.freeze()                                       # a child that collects would copy every page
    while line := sys.stdin.buffer.raw.readline():
        pid = os.fork()
        if not pid:
            become(**json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == '__main__':
    serve()
