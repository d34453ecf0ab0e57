"""The commands as a user types them: in a shell, in an empty folder, and sometimes killed.

Most run in processes forked from one that has the package imported; `cold` ones start an interpreter, as a shell
does."""
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from tests.warm import Warm, environment

BIN = Path(sys.executable).parent
FULL = os.environ.get('TFAM_FULL')      # every moment at which a run is killed, as .ci/run has it
SMALL = ('--d-model 16 --n-layers 1 --n-heads 2 --seq-len 16 --batch-size 4 --device cpu '
         '--data book.txt').split()
TEXT = ''.join(f'{i} green bottles hanging on the wall, and the wall said {i * i}. '
               for i in range(600))


def start(cwd, name, *args):
    "Start an installed console script, as a shell would."
    return subprocess.Popen([str(BIN/name), *map(str, args)], cwd=cwd, env=environment(), text=True,
                            preexec_fn=hears_ctrl_c, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def hears_ctrl_c():
    "As at a prompt, also where the tests run in the background."
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def cold(cwd, name, *args):
    "Run a command in an interpreter of its own: exit status, stdout, stderr."
    p = start(cwd, name, *args)
    out, err = p.communicate(timeout=300)
    return p.returncode, out, err


def ran(cwd, name, *args, input=b''):
    "Run a command in a forked process: exit status, stdout, stderr."
    return ran.warm([BIN/name, *args], cwd, input)


@pytest.fixture(scope='module', autouse=True)
def warm():
    with Warm() as ran.warm:
        yield


def typed(cwd, name, *args, rc=0, run=ran):
    "Run a command to its end; its stdout, or its stderr where it is meant to fail."
    status, out, err = run(cwd, name, *args)
    assert status == rc, f'{name} {args} ended with {status}\n{out}\n{err}'
    return out if rc == 0 else err


def wait_for(condition, process, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, 'waited too long'
        time.sleep(.02)


def sound(run):
    "Every file of a run can be read, and nothing else lies there under a final name."
    for name in ('model', 'checkpoint'):
        with safe_open(run / f'{name}.safetensors', 'pt') as f:
            assert len([f.get_tensor(k) for k in f.keys()])
    assert json.loads((run / 'config.json').read_text())['run']
    return (run / 'history.csv').read_text().splitlines()


@pytest.fixture
def cwd(tmp_path):
    (tmp_path / 'book.txt').write_text(TEXT)
    return tmp_path


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "One finished run, for the tests that only look at it."
    cwd = tmp_path_factory.mktemp('cli')
    (cwd / 'book.txt').write_text(TEXT)
    out = typed(cwd, 'tfam-train', 'transformer', '--steps', 30, '--seed', 5, *SMALL, run=cold)
    return cwd, out


@pytest.mark.parametrize('args', [
    'tfam-models', 'tfam-train lstm', 'tfam-eval', 'tfam-generate runs/transformer --n 20 --seed 1',
    'tfam-eval runs/transformer --data book.txt --eval-tokens 2000',
    'tfam-train --resume runs/transformer --device cpu'])
def test_cold_and_warm_are_the_same(run, args):
    "A process that is forked and one that starts: status, stdout and stderr, to the letter."
    assert ran(run[0], *args.split()) == cold(run[0], *args.split())


def test_warm_processes_end_as_they_should(tmp_path):
    "Status, stdin, the folder, a kill and a limit in time."
    script = tmp_path/'s.py'

    def result(code, **kw):
        script.write_text(code)
        return ran.warm([script, 'a'], tmp_path, **kw)
    assert result('import sys; print(sys.argv[1:], sys.stdin.read(), __name__)', input=b'x\n') == \
        (0, "['a'] x\n __main__\n", '')
    assert result('import os, sys; print(os.getcwd(), file=sys.stderr); sys.exit(3)') == (3, '', f'{tmp_path}\n')
    status, out, err = result('print(1); 1/0')
    assert (status, out) == (1, '1\n') and err.endswith('ZeroDivisionError: division by zero\n')
    assert result('import os; os.kill(os.getpid(), 9)')[0] == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        result('import time; time.sleep(60)', timeout=1)
    assert result('import warnings, os; print(os.environ.get("PYTHONWARNINGS")); warnings.warn("so")')[1] == 'None\n'


@pytest.mark.parametrize('name', ['transformer-shaw', 'transformer-xl', 'adaptive-span', 'sparse-transformer',
                                  'reformer', 'act-rnn', 'universal-transformer'])
def test_other_models_of_texts(cwd, name):
    "Trains, reports, writes and is judged."
    sizes = [x for x in zip(SMALL[::2], SMALL[1::2]) if name != 'act-rnn' or x[0] != '--n-heads']
    out = typed(cwd, 'tfam-train', name, *sum(sizes, ()), '--steps', 4, '--out', 'r')
    assert 'trained:' in out and (cwd/'r'/'loss.png').exists()
    assert ('how far each head sees' in out) == (cwd/'r'/'spans.png').exists() == (name == 'adaptive-span')
    if name == 'adaptive-span':
        layers = [line.split() for line in out.splitlines() if line.startswith('  layer')]
        assert layers == [['layer', '1:', '32', '32']]
    assert ('mean steps by position' in out) == (cwd/'r'/'ponder.png').exists() == (
        name in ('act-rnn', 'universal-transformer'))
    assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 'r', '--device', 'cpu')
    written = typed(cwd, 'tfam-generate', 'r', '--prompt', 'wall', '--n', 40)
    assert written.startswith('wall') and len(written.encode()) > 40         # bytes, some of them letters
    assert typed(cwd, 'tfam-eval', 'r', '--data', 'book.txt').splitlines()[-1].startswith('bits per character: ')


def test_train_reports_and_fills_the_folder(run):
    cwd, out = run
    for word in ('untrained', 'unigram entropy', 'bz2', 'trained', 'parameters'):
        assert word in out
    names = {p.name for p in (cwd / 'runs' / 'transformer').iterdir()}
    assert names == {'checkpoint.safetensors', 'config.json', 'history.csv', 'loss.png',
                     'model.safetensors', 'report.json', 'sample.txt'}
    rows = (cwd / 'runs' / 'transformer' / 'history.csv').read_text().splitlines()
    assert rows[0] == 'step,seconds,lr,loss,bpc,valid_bpc' and len(rows) == 31
    assert float(rows[-1].split(',')[3]) < float(rows[1].split(',')[3])
    assert (cwd / 'runs' / 'transformer' / 'loss.png').read_bytes()[:4] == b'\x89PNG'


def test_generate_and_eval(run):
    cwd, _ = run
    out = typed(cwd, 'tfam-generate', 'runs/transformer', '--prompt', 'green ', '--n', 40,
                '--seed', 1)
    assert out.startswith('green ') and len(out) >= 40
    assert out == typed(cwd, 'tfam-generate', 'runs/transformer', '--prompt', 'green ', '--n', 40,
                        '--seed', 1)
    last = typed(cwd, 'tfam-eval', 'runs/transformer', '--data', 'book.txt').splitlines()[-1]
    assert last.startswith('bits per character: ') and 0 < float(last.split(': ')[1]) < 8
    assert 'transformer' in typed(cwd, 'tfam-models')


@pytest.mark.parametrize('args, sentence', [
    ('tfam-generate runs/transformer --seed 1234567890123456789012345678901', 'seed must be in'),
    ('tfam-generate ""', "needs a name, got ''"),
    ('tfam-eval ""', "needs a name, got ''"),
    ('tfam-eval runs/transformer --json .', "a file needs a name, got '.'"),
    ('tfam-train --resume runs/transformer --json none/n.json', 'could not write none/n.json'),
])
def test_what_else_is_mistyped(run, args, sentence):
    err = typed(run[0], *shlex.split(args), rc=1)
    assert sentence in err and len(err.splitlines()) == 1


def test_files_are_as_open_as_any_other(run, tmp_path):
    "What the umask allows, weights too."
    (tmp_path/'any').touch()
    modes = {p.stat().st_mode for p in (run[0]/'runs'/'transformer').iterdir()}
    assert modes == {(tmp_path/'any').stat().st_mode}


def test_nobody_listens(run):
    "A shell that has closed standard output or standard error."
    for closing in ('>&-', '2>&-'):
        p = subprocess.run(['bash', '-c', f'{BIN}/tfam-eval runs/transformer {closing}'], cwd=run[0],
                           env=environment(), capture_output=True)
        assert p.returncode == 0 and p.stderr == b'', p


def test_same_seed_same_curve(run, cwd):
    typed(cwd, 'tfam-train', '--steps', 30, '--seed', 5, *SMALL)
    one, two = ([line.split(',')[2:] for line in
                 (c / 'runs' / 'transformer' / 'history.csv').read_text().splitlines()]
                for c in (run[0], cwd))
    assert one == two


def test_killed_and_resumed_equals_uninterrupted(cwd):
    "`kill -9` at several moments, the first within the first steps; the curve does not notice."
    args = ['--steps', 260, '--seed', 3, '--dropout', .1, *SMALL]
    typed(cwd, 'tfam-train', *args, '--out', 'whole')
    p = start(cwd, 'tfam-train', *args, '--out', 'killed')
    for steps in (0, 60, 160):
        wait_for(lambda n=steps: (cwd / 'killed').exists()
                 and len((cwd / 'killed' / 'history.csv').read_text().splitlines()) > n, p)
        time.sleep(.05)
        p.send_signal(signal.SIGKILL)
        p.communicate()
        rows = sound(cwd / 'killed')
        typed(cwd, 'tfam-eval', 'killed')
        p = start(cwd, 'tfam-train', '--resume', 'killed', '--device', 'cpu')
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert f'resumed at step {len(rows) - 1 - (len(rows) - 1) % 50}' in out
    one, two = ([line.split(',')[2:] for line in sound(cwd / n)] for n in ('whole', 'killed'))
    assert one == two
    one, two = (load_file(cwd / n / 'model.safetensors') for n in ('whole', 'killed'))
    assert one.keys() == two.keys() and all(one[k].equal(two[k]) for k in one)
    assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 'killed', '--device', 'cpu')


def test_ctrl_c_keeps_the_step(cwd):
    p = start(cwd, 'tfam-train', '--steps', 100000, '--out', 'run', *SMALL)
    wait_for(lambda: (cwd / 'run').exists()
             and len((cwd / 'run' / 'history.csv').read_text().splitlines()) > 50, p)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and 'go on with --resume run' in err and 'Traceback' not in err
    assert len(sound(cwd / 'run')) > 50


def as_others(cwd, name, *args):
    "Run a command as root without what root may do to the files of others, or to closed ones."
    if not shutil.which('setpriv'):
        pytest.skip('nothing is closed to root')
    cmd = ['setpriv', '--bounding-set=-dac_override,-dac_read_search', BIN/name, *map(str, args)]
    p = subprocess.run(cmd, cwd=cwd, env=environment(), text=True, capture_output=True, timeout=300)
    return p.returncode, p.stdout, p.stderr


@pytest.mark.parametrize('args, sentence', [
    ('--data empty.txt', 'byte'),
    ('--data one.txt', 'byte'),
    ('--data short.txt', 'too few for a batch'),
    ('--data missing.txt', 'missing.txt'),
    ('--data .', 'a folder'),
    ('--data book.txt --d-model 30', 'not divisible by n_heads=4'),
    ('--data book.txt --n-layers 0', 'n_layers must be an integer of at least 1'),
    ('--data book.txt --batch-size -2', 'batch_size must be an integer of at least 1'),
    ('--data book.txt --steps 0', 'steps must be an integer of at least 1'),
    ('--data book.txt --lr -1', 'lr must be above 0'),
    ('--data book.txt --dropout 1', 'dropout must be in [0, 1)'),
    ('--data book.txt --device abacus', 'not available here'),
    ('--data book.txt --out taken', 'taken exists already'),
    ('lstm', 'choose from transformer'),
    ('trasnformer --data book.txt', 'did you mean transformer?'),
    ('--data ""', "got ''"),
    ('--out "" --data book.txt', "needs a name, got ''"),
    ('""', "no model ''"),
    ('--resume ""', "needs the folder of a run, got ''"),
    ('--data book.txt --seed 1234567890123456789012345678901', 'seed must be'),
    ('--data book.txt --device meta', 'not available here'),
    ('--data book.txt --d-model 4000000 --device cpu', 'out of memory: to train'),
    ('--data book.txt --args bias=maybe', 'bias must be True or False'),
    ('--data pydocc', 'did you mean pydoc?'),
    ('--data book.txt --steps 5 --minutes 1', 'not both'),
    ('--data locked.txt', 'locked.txt cannot be read: permission denied'),
    ('--data loop.txt', 'loop'),
    ('--data pipe', 'pipe'),
    ('--data /dev/zero', 'device'),
    ('--data book.txt --out closed/r', 'closed/r cannot be made: Permission denied'),
    ('--data book.txt --out book.txt/r', 'book.txt/r cannot be made: a file is in the way'),
    ('--data book.txt --out /', "needs a name, got '/'"),
    ('--data book.txt --n-layers 100000000', 'n_layers must be at most 10,000'),
    ('--data book.txt --json ""', "a file needs a name, got '.'"),
    ('--data book.txt --json none/n.json', 'could not write none/n.json'),
    ('gtrxl --env ""', "env needs a name, got ''"),
    ('gtrxl --env t-mzae', 'did you mean t-maze?'),
    ('--resume nowhere', 'has no config.json'),
])
def test_bad_input_is_one_sentence(cwd, args, sentence):
    for name, text in (('empty.txt', ''), ('one.txt', 'x'), ('short.txt', 'too short')):
        (cwd / name).write_text(text)
    (cwd / 'taken').mkdir()
    (cwd / 'loop.txt').symlink_to('loop.txt')
    os.mkfifo(cwd / 'pipe')
    run = ran
    if os.geteuid() == 0 and ('locked' in args or 'closed' in args):
        run = as_others
    (cwd / 'locked.txt').touch(0)
    (cwd / 'closed').mkdir(0o500)
    before = sorted(cwd.rglob('*'))
    err = typed(cwd, 'tfam-train', *shlex.split(args), rc=1, run=run)
    assert sentence in err and err.startswith('tfam-train: ') and len(err.splitlines()) == 1
    assert sorted(cwd.rglob('*')) == before


@pytest.mark.parametrize('damage, sentence', [
    (lambda b: b[:-100], 'model.safetensors'),
    (lambda b: b[:-1] + bytes([b[-1] ^ 1]), 'was changed after it was written'),
    (lambda b: b'', 'is damaged'),
])
def test_damaged_model_is_refused(run, tmp_path, damage, sentence):
    src = run[0] / 'runs' / 'transformer'
    for name in ('config.json', 'model.safetensors'):
        (tmp_path / name).write_bytes((src / name).read_bytes())
    f = tmp_path / 'model.safetensors'
    f.write_bytes(damage(f.read_bytes()))
    for name in ('tfam-generate', 'tfam-eval'):
        err = typed(tmp_path, name, tmp_path, rc=1)
        assert sentence in err and len(err.splitlines()) == 1


def test_other_text_is_not_resumed(run, tmp_path):
    "Neither by another text in its place nor by one given; the same text elsewhere is the same."
    shutil.copytree(run[0], tmp_path / 'copy')
    cwd, other = tmp_path / 'copy', tmp_path / 'copy' / 'book.txt'
    for args in ([], ['--data', 'book.txt']):
        assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 'runs/transformer', *args)
    assert json.loads((cwd / 'runs/transformer/config.json').read_text())['run']['data'] == str(other)
    other.write_text(TEXT + 'one more')
    for args in (['tfam-train', '--resume', 'runs/transformer'], ['tfam-eval', 'runs/transformer']):
        err = typed(cwd, *args, rc=1)
        assert 'its bytes differ' in err and len(err.splitlines()) == 1


def test_binary_data_is_fine(cwd):
    (cwd / 'bytes.bin').write_bytes(bytes(range(256)) * 40)
    out = typed(cwd, 'tfam-train', '--steps', 2, *SMALL, '--data', 'bytes.bin')
    assert 'trained' in out


def test_divergence_and_full_disk_keep_the_last_checkpoint(cwd):
    "A loss that explodes, and files that may not grow: one sentence, and the run is still whole."
    err = typed(cwd, 'tfam-train', '--steps', 200, '--out', 'nan', *SMALL, '--lr', 1e38, rc=1)
    assert 'the loss became' in err and len(err.splitlines()) == 1
    sound(cwd / 'nan')
    typed(cwd, 'tfam-train', '--steps', 60, '--out', 'full', *SMALL)
    cmd = ['bash', '-c', 'ulimit -f 2; exec "$@"', '-', str(BIN/'tfam-train'), '--steps', '60',
           '--out', 'fuller', *SMALL]
    env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONWARNINGS='ignore')
    p = subprocess.run(cmd, cwd=cwd, env=env, text=True, capture_output=True)
    assert p.returncode == 1 and 'could not write' in p.stderr
    assert len(p.stderr.splitlines()) == 1 and not (cwd / 'fuller').exists()
    sound(cwd / 'full')


def test_minutes_are_a_budget_too(cwd):
    "A run of three seconds ends by itself: no step begins after them, the last one is validated, the rest is nothing."
    out = typed(cwd, 'tfam-train', '--minutes', .05, '--out', 'timed', *SMALL)
    assert 'trained' in out
    rows = [line.split(',') for line in sound(cwd / 'timed')[1:]]
    assert all(float(r[1]) < 3 for r in rows[:-1]) and rows[-1][-1]
    with safe_open(cwd / 'timed' / 'checkpoint.safetensors', 'pt') as f:
        state = dict(json.loads(f.metadata()['metadata'])['state']['dict'])
    budget = dict(dict(state['parts']['dict'])['budget']['dict'])
    assert budget['seconds'] >= 3 and budget['step'] == len(rows)
    assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 'timed', '--device', 'cpu')


TINY = '--d-model 16 --n-layers 1 --n-heads 2 --batch-size 8 --device cpu'.split()
DIGITS = 'zero one two three four five six seven eight nine'.split()


@pytest.fixture
def numbers(tmp_path):
    "A folder with numbers in words and in digits, tab-separated."
    lines = [f'{" ".join(DIGITS[int(c)] for c in str(n))}\t{" ".join(str(n))}' for n in range(100, 400)]
    (tmp_path / 'numbers.tsv').write_text('\n'.join(lines) + '\n')
    return tmp_path


def test_translator_from_scan_to_standard_input(cwd):
    "Commands without a download; lines in, lines out, in their order; the vocabulary stands beside the model."
    out = typed(cwd, 'tfam-train', 'transformer-seq2seq', '--data', 'scan', '--split', 'length',
                '--steps', 3, *TINY)
    assert '16,990 pairs of scan' in out and 'exact' in out and 'BLEU' in out
    run = cwd / 'runs' / 'transformer_seq2seq'
    assert {'vocabulary.json', 'model.safetensors', 'checkpoint.safetensors'} <= {p.name for p in run.iterdir()}
    p = subprocess.run([str(BIN/'tfam-generate'), str(run), '--n', '5'], input=b'jump twice\nturn left\n',
                       capture_output=True, cwd=cwd, env=environment())
    assert p.returncode == 0 and p.stdout.decode().count('\n') == 2, p.stderr
    status, out, err = ran(cwd, 'tfam-generate', run, '--n', 5, input=b'walk')
    assert status == 0 and out.count('\n') == 1, err
    status, out, err = ran(cwd, 'tfam-generate', run, '--n', 5, input=b'jump\n\nwalk\n')
    assert status == 0 and [bool(line) for line in out.split('\n')[1::2]] == [False, False], err
    status, out, err = ran(cwd, 'tfam-generate', run, input=b'w\xe4lk\n')
    assert status == 1 and 'line 1 is not UTF-8' in err and out == '' and err.count('\n') == 1
    for flag in ('--temperature', '--seed', '--top-k'):
        assert f'a translation has no {flag}' in typed(cwd, 'tfam-generate', run, flag, 3, '--prompt', 'x', rc=1)
    (run / 'vocabulary.json').unlink()
    assert 'vocabulary' in typed(cwd, 'tfam-generate', run, '--prompt', 'jump', rc=1)


def test_translator_that_halts(numbers):
    "The other encoder-decoder, from training to a file of pairs."
    out = typed(numbers, 'tfam-train', 'universal-transformer-seq2seq', '--data', 'numbers.tsv', '--steps', 3, '--args',
                'act=interpolate', *TINY, '--n-layers', 3)
    assert f'270 pairs of {numbers / "numbers.tsv"}' in out and 'BLEU' in out
    run = numbers/'runs'/'universal_transformer_seq2seq'
    assert 'mean steps by position' in out and (run/'ponder.png').exists()
    args = json.loads((run/'config.json').read_text())['args']
    assert (args['act'], args['n_layers']) == ('interpolate', 3)
    typed(numbers, 'tfam-generate', run, '--prompt', 'one two', '--n', 5)
    assert typed(numbers, 'tfam-eval', run, '--data', 'numbers.tsv').splitlines()[-1].startswith('bits per token: ')


def test_translator_killed_and_resumed_equals_uninterrupted(numbers):
    args = ['transformer-seq2seq', '--data', 'numbers.tsv', '--steps', 230, '--dropout', .1, *TINY]
    typed(numbers, 'tfam-train', *args, '--out', 'whole')
    p = start(numbers, 'tfam-train', *args, '--out', 'killed')
    wait_for(lambda: (numbers / 'killed').exists()
             and len((numbers / 'killed' / 'history.csv').read_text().splitlines()) > 60, p)
    p.send_signal(signal.SIGKILL)
    p.communicate()
    typed(numbers, 'tfam-train', '--resume', 'killed', '--device', 'cpu')
    one, two = ([line.split(',')[2:] for line in sound(numbers / n)] for n in ('whole', 'killed'))
    assert one == two
    last = typed(numbers, 'tfam-eval', 'killed', '--data', 'numbers.tsv').splitlines()[-1]
    assert last.startswith('bits per token: ')


@pytest.mark.parametrize('text, sentence', [
    (b'one\t1\ntwo\n', 'line 2'),
    (b'one\t1\n\t2\n', 'line 2'),
    (b'one\t1\ntw\xf6\t2\n', 'line 2'),
    (b'', 'pairs'),
])
def test_bad_pairs_are_one_sentence(cwd, text, sentence):
    (cwd / 'bad.tsv').write_bytes(text)
    err = typed(cwd, 'tfam-train', 'transformer-seq2seq', '--data', 'bad.tsv', *TINY, rc=1)
    assert sentence in err and err.startswith('tfam-train: ') and len(err.splitlines()) == 1
    assert not (cwd / 'runs').exists()


def test_pictures(cwd):
    "Trained, drawn from and measured from a shell; a text is no set of pictures."
    small = '--steps 30 --d-model 16 --n-layers 1 --n-heads 2 --device cpu'.split()
    out = typed(cwd, 'tfam-train', 'image-transformer', *small)
    assert 'bits per dim' in out and 'pictures of digits' in out
    run = cwd / 'runs' / 'image_transformer'
    assert (run / 'samples.png').read_bytes()[:4] == b'\x89PNG'
    assert '4 pictures in a.png' in typed(cwd, 'tfam-generate', run, '--n', 4, '--seed', 1, '--out', 'a.png')
    typed(cwd, 'tfam-generate', run, '--n', 4, '--seed', 1, '--out', 'b.png')
    assert (cwd / 'a.png').read_bytes() == (cwd / 'b.png').read_bytes()
    last = typed(cwd, 'tfam-eval', run).splitlines()[-1]
    assert last.startswith('bits per dim: ') and 0 < float(last.split(': ')[1]) < 4.1
    assert 'choose from digits' in typed(cwd, 'tfam-train', 'image-transformer', '--data', 'book.txt', rc=1)
    typed(cwd, 'tfam-train', 'image-transformer', '--by-class', '--out', 'told', *small)
    assert '2 pictures in c.png' in typed(cwd, 'tfam-generate', 'told', '--n', 2, '--y', 7, '--out', 'c.png')
    assert 'no classes to choose from' in typed(cwd, 'tfam-generate', run, '--y', 7, rc=1)


@pytest.mark.parametrize('args', ['pixel-transformer', 'image-to-image', 'image-to-image --args output=Logistics',
                                  'sparse-transformer --data digits', 'sparse-transformer --data digits --by-class'])
def test_other_models_of_pictures(cwd, args):
    "Trained, resumed, drawn from twice alike, measured; pictures given to a model are the run's own or named."
    import numpy as np
    from PIL import Image
    small = '--steps 2 --d-model 16 --n-layers 1 --n-heads 2 --device cpu --out r'.split()
    out = typed(cwd, 'tfam-train', *args.split(), *small)
    assert 'bits per dim' in out and 'pictures of digits' in out
    assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 'r', '--device', 'cpu')
    for name in ('a', 'b'):
        assert '4 pictures in' in typed(cwd, 'tfam-generate', 'r', '--n', 4, '--seed', 1, '--out', f'{name}.png')
    assert (cwd / 'a.png').read_bytes() == (cwd / 'b.png').read_bytes()
    rows, columns = (4, 3) if 'to-image' in args else (2, 2)           # source, sample, original: a row each
    assert np.array(Image.open(cwd / 'a.png')).shape == ((rows*9 - 1)*4, (columns*9 - 1)*4)
    last = typed(cwd, 'tfam-eval', 'r').splitlines()[-1]
    assert last.startswith('bits per dim: ') and 0 < float(last.split(': ')[1]) < 8
    if 'to-image' in args:
        typed(cwd, 'tfam-generate', 'r', '--n', 4, '--seed', 1, '--out', 'c.png', '--data', 'digits')
        assert (cwd / 'a.png').read_bytes() == (cwd / 'c.png').read_bytes()
    else:
        assert 'is given pictures' in typed(cwd, 'tfam-generate', 'r', '--data', 'digits', rc=1)
    if 'by-class' in args:
        assert '2 pictures in' in typed(cwd, 'tfam-generate', 'r', '--n', 2, '--y', 7)
        err = typed(cwd, 'tfam-train', 'sparse-transformer', '--by-class', *small[:-2], rc=1)
        assert 'a text has no by_class' in err


def test_args_reach_the_model(cwd):
    "Arguments without a flag of their own: in the config, kept by --resume, refused in a sentence."
    sizes = '--steps 3 --d-model 16 --n-layers 1 --n-heads 2 --device cpu'.split()
    text = [*sizes, '--seq-len', 32, '--batch-size', 4, '--data', 'book.txt']
    typed(cwd, 'tfam-train', 'sparse-transformer', *text, '--out', 's',
          '--args', 'pattern=fixed heads=merged stride=16')
    args = json.loads((cwd / 's' / 'config.json').read_text())['args']
    assert (args['pattern'], args['heads'], args['stride'], args['max_len']) == ('fixed', 'merged', 16, 32)
    assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 's', '--device', 'cpu')
    assert typed(cwd, 'tfam-generate', 's', '--n', 5, '--prompt', 'wall').startswith('wall')
    for bad, sentence in (('patern=fixed', 'did you mean pattern?'), ('fixed', 'NAME=VALUE'),
                          ('wiring=os.system', "wiring must be of kind 'wiring'")):
        err = typed(cwd, 'tfam-train', 'sparse-transformer', *text, '--args', bad, rc=1)
        assert sentence in err and len(err.splitlines()) == 1
    assert not (cwd / 'runs').exists()


@pytest.mark.parametrize('given, kept', [
    ('attention=2d', dict(attention='2d', block=None, memory=None)),
    ('attention=2d block=(4,4) memory=(4,2) output=Logistics',
     dict(attention='2d', block=[4, 4], memory=[4, 2], output={'part': 'Logistics'})),
])
def test_args_of_pictures(cwd, given, kept):
    "Two dimensions take the place of the command's own blocks; a class is named."
    sizes = '--steps 3 --d-model 16 --n-layers 1 --n-heads 2 --device cpu'.split()
    typed(cwd, 'tfam-train', 'image-transformer', *sizes, '--out', 'r', '--args', given)
    args = json.loads((cwd / 'r' / 'config.json').read_text())['args']
    assert {k: args[k] for k in kept} == kept
    assert 'is finished' in typed(cwd, 'tfam-train', '--resume', 'r', '--device', 'cpu')
    assert '2 pictures' in typed(cwd, 'tfam-generate', 'r', '--n', 2)


def test_a_part_with_arguments_is_loaded(tmp_path):
    "A mixture of five, saved from Python, draws from a shell and has the same logits."
    from functools import partial

    import torch

    from transformer_family.image_transformer import ImageTransformer
    from transformer_family.images import Logistics
    from transformer_family.training import load, save
    model = ImageTransformer(17, 16, 1, 2, size=(4, 4), output=partial(Logistics, n_mixtures=5)).eval()
    again, x = load(save(model, tmp_path / 'm')), model.start(2)
    assert again.out.W.out_features == 15 and again.config['size'] == model.config['size'] == [4, 4]
    with torch.no_grad():
        assert again(x).logits.equal(model(x).logits)
    assert '2 pictures' in typed(tmp_path, 'tfam-generate', 'm', '--n', 2, '--device', 'cpu')


def planted(folder, victim):
    "A folder of a stranger whose config names a function that writes a file."
    part = {'part': 'training.write_atomic'}
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(dict(model='transformer.EncoderLayer', args=dict(
        d_model=str(victim), n_heads=1, d_ff=1, dropout='planted', wiring=part, attn=part, ff=part))))
    return folder


def test_a_folder_of_a_stranger_calls_nothing(run, tmp_path):
    "As a config, and as the tree of a checkpoint: one sentence, and no file."
    from safetensors.torch import save_file
    victim, source = tmp_path / 'victim', run[0] / 'runs' / 'transformer'
    folder = planted(tmp_path / 'config', victim)
    shutil.copy(source / 'model.safetensors', folder)
    for name in ('tfam-generate', 'tfam-eval'):
        err = typed(tmp_path, name, folder, '--device', 'cpu', rc=1)
        assert 'nothing is registered as' in err and len(err.splitlines()) == 1
    shutil.copytree(run[0], tmp_path / 'copy')
    folder = tmp_path / 'copy' / 'runs' / 'transformer'
    tree = {'items': [str(victim), 'x'], 'as': 'training.write_atomic'}
    save_file(load_file(folder / 'checkpoint.safetensors'), folder / 'checkpoint.safetensors',
              dict(metadata=json.dumps({'state': tree})))
    err = typed(tmp_path / 'copy', 'tfam-train', '--resume', 'runs/transformer', '--device', 'cpu', rc=1)
    assert 'nothing is registered as' in err and len(err.splitlines()) == 1
    assert not victim.exists()


# Two processes, and none

def test_two_starts_in_one_folder(cwd):
    "Together: one trains, the other gets a sentence, and neither harms the other."
    both = [start(cwd, 'tfam-train', '--steps', 60, '--out', 'r', '--seed', i, *SMALL) for i in (1, 2)]
    done = sorted((p.communicate(timeout=300)[1], p.returncode) for p in both)
    assert [rc for _, rc in done] == [0, 1], done
    assert 'another process is at work in r' in done[1][0] or 'r exists already' in done[1][0]
    assert len(sound(cwd / 'r')) == 61 and hidden(cwd) == []


def hidden(folder):
    return sorted(p.name for p in folder.rglob('.*'))


def test_a_folder_that_is_trained_in(cwd):
    "Neither started nor resumed nor trained another model in; a name is chosen beside it."
    p = start(cwd, 'tfam-train', '--steps', 100000, *SMALL)
    wait_for(lambda: (cwd / 'runs' / 'transformer' / 'history.csv').exists(), p)
    for args in (['--resume', 'runs/transformer'], ['reformer', *SMALL, '--out', 'runs/transformer']):
        err = typed(cwd, 'tfam-train', *args, rc=1)
        assert 'another process is at work in runs/transformer' in err and len(err.splitlines()) == 1
    typed(cwd, 'tfam-train', '--steps', 2, *SMALL)
    assert json.loads((cwd / 'runs' / 'transformer-2' / 'report.json').read_text())['step'] == 2
    p.send_signal(signal.SIGTERM)                              # as Ctrl-C
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and 'go on with --resume runs/transformer' in err and 'Traceback' not in err
    assert len(sound(cwd / 'runs' / 'transformer')) > 1 and hidden(cwd) == []


KILLER = """
import os, signal, sys
left = int(sys.argv.pop(1))
def counted(f):
    def _f(*args, **kwargs):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return f(*args, **kwargs)
    return _f
os.replace, os.rename = map(counted, (os.replace, os.rename))
sys.argv[0] = 'tfam-train'
from transformer_family.cli import tfam_train
tfam_train()
"""


def same_run(one, two):
    "The same parameters, history but for the clock, numbers and sample; nothing half written beside them."
    a, b = ([line.split(',')[2:] for line in sound(r)] for r in (one, two))
    assert a == b
    a, b = (load_file(r / 'model.safetensors') for r in (one, two))
    assert all(a[k].equal(b[k]) for k in a)
    for name in ('report.json', 'sample.txt'):
        assert (one / name).read_text() == (two / name).read_text()
    assert hidden(two.parent) == []


QUICK = '--d-model 8 --n-layers 1 --n-heads 1 --seq-len 8 --batch-size 2 --device cpu --data book.txt'.split()


def test_killed_before_every_write(tmp_path):
    "Between any two writes of a checkpoint, in the start and in the report: the next start or resume makes it whole."
    (tmp_path / 'book.txt').write_text(TEXT[:4000])
    (tmp_path / 'killer.py').write_text(KILLER)
    args = ['--steps', 70, '--seed', 3, '--dropout', .1, *QUICK]
    whole, run = tmp_path / 'a' / 'whole', tmp_path / 'b' / 'r'
    assert ran.warm([BIN/'tfam-train', *args, '--out', whole], tmp_path)[0] == 0
    kills = 0
    for n in range(1, 100, 1 if FULL else 4):
        shutil.rmtree(run.parent, ignore_errors=True)
        status, _, err = ran.warm([tmp_path / 'killer.py', n, *args, '--out', run], tmp_path)
        if status == 0:
            break
        assert status == -signal.SIGKILL, err
        kills += 1
        again = ['--resume', run, '--device', 'cpu'] if run.exists() else [*args, '--out', run]
        status, out, err = ran.warm([BIN/'tfam-train', *again], tmp_path)
        assert status == 0 and 'nothing to do' not in out, (n, out, err)
        same_run(whole, run)
    assert kills > (10 if FULL else 2)


def test_killed_at_twenty_random_moments(tmp_path):
    "Up to two seconds after it took its folder, whatever it is doing then."
    (tmp_path / 'book.txt').write_text(TEXT[:4000])
    args = ['--steps', 400, '--seed', 3, '--dropout', .1, *QUICK]
    whole, run, r, killed = tmp_path / 'a' / 'whole', tmp_path / 'b' / 'r', random.Random(0), 0
    assert ran.warm([BIN/'tfam-train', *args, '--out', whole], tmp_path)[0] == 0

    def soon(pid):
        (run.parent / '.r.lock').unlink(missing_ok=True)           # of the process before, which is dead
        for _ in range(3000):
            if (run.parent / '.r.lock').exists():
                break
            time.sleep(.01)
        time.sleep(r.uniform(0, 2))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def train(**kw):
        again = ['--resume', run, '--device', 'cpu'] if run.exists() else [*args, '--out', run]
        status, _, err = ran.warm([BIN/'tfam-train', *again], tmp_path, **kw)
        assert status in (0, -signal.SIGKILL), err
        return status
    for _ in range(20 if FULL else 5):
        killed += train(during=soon) != 0
    assert killed > (4 if FULL else 1) and train() == 0
    same_run(whole, run)


# Resume, with changes and without

def test_a_finished_run_is_extended(run, tmp_path):
    "More steps, from another folder; what does not belong beside --resume is refused; a stale model is none."
    from transformer_family.saving import write_tensors
    shutil.copytree(run[0], tmp_path / 'copy')
    cwd, folder = tmp_path / 'copy', tmp_path / 'copy' / 'runs' / 'transformer'
    for args in (['--steps', 10], ['--lr', 1e-3]):
        assert typed(cwd, 'tfam-train', '--resume', folder, *args, rc=1).startswith('tfam-train: 30 steps and')
    for flag, value in (('--seed', 1), ('--out', 'x'), ('--batch-size', 3), ('--d-model', 32), ('--args', 'bias=True')):
        err = typed(cwd, 'tfam-train', '--resume', folder, flag, value, rc=1)
        assert f'leave out {flag} {value}' in err and len(err.splitlines()) == 1
    assert 'trains transformer, not reformer' in typed(cwd, 'tfam-train', 'reformer', '--resume', folder, rc=1)
    (folder / 'report.json').unlink()                       # as if it had been killed before its end
    weights = load_file(folder / 'model.safetensors')
    write_tensors(folder / 'model.safetensors', {n: 0*t for n, t in weights.items()})
    out = typed(tmp_path, 'tfam-train', 'Transformer', '--resume', folder, '--device', 'cpu')
    again = load_file(folder / 'model.safetensors')
    assert 'is done' in out and all(again[n].equal(t) for n, t in weights.items())
    out = typed(tmp_path, 'tfam-train', '--resume', folder, '--steps', 50, '--device', 'cpu', '--json', 'n.json')
    assert 'is resumed at step 30' in out and len(sound(folder)) == 51
    lrs = [float(line.split(',')[2]) for line in sound(folder)[1:]]
    assert max(lrs[30:]) > 10*lrs[29] and lrs[-1] < lrs[35]                     # a schedule of its own
    numbers = json.loads((tmp_path / 'n.json').read_text())
    assert numbers['step'] == 50 and numbers == json.loads((folder / 'report.json').read_text())
    assert json.loads(typed(tmp_path, 'tfam-eval', folder, '--json', '-'))['bits per character'] == \
        numbers['bits per character']


def test_interrupted_early_and_late(cwd):
    "Ctrl-C in the first seconds is quiet; --debug shows where an error arises; flags get a hint."
    for seconds in (.3, 1.):
        p = start(cwd, 'tfam-train', '--steps', 100000, '--out', f'r{seconds}', *SMALL)
        time.sleep(seconds)
        p.send_signal(signal.SIGINT)
        try:
            _, err = p.communicate(timeout=60)
        finally:
            p.kill()
        assert p.returncode in (130, -2) and 'Traceback' not in err, err
    assert 'Traceback' in typed(cwd, 'tfam-train', '--data', 'none', '--debug', rc=1)
    assert 'did you mean --steps?' in typed(cwd, 'tfam-train', '--stpes', 3, rc=2)


STUBBORN = """
import os, signal, time
try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
except KeyboardInterrupt: pass
"""


def test_an_import_that_swallows_an_interruption(tmp_path):
    "Some libraries catch Ctrl-C while they are imported and go on, or fail in their own words."
    (tmp_path / 'stubborn.py').write_text(STUBBORN)
    code = ("from transformer_family.console import one_sentence\n"
            "one_sentence(lambda: __import__('stubborn'))(); print(1)")
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130 and 'interrupted' in done.stderr and not done.stdout, done


BROKEN = """
import sys
from transformer_family import reinforcement_learning as rl
class Broken(rl.RepeatPrevious):
    def step(self, actions): raise OSError("the simulator has no memory of this")
rl.own_envs['broken'] = Broken
sys.argv[0] = 'tfam-train'
from transformer_family.cli import tfam_train
tfam_train()
"""


def test_an_environment_that_fails(tmp_path):
    "One sentence, its own."
    (tmp_path / 'broken.py').write_text(BROKEN)
    args = '--env broken --d-model 8 --n-layers 1 --n-heads 2 --batch-size 4 --steps 4 --device cpu --out r'.split()
    status, _, err = ran.warm([tmp_path / 'broken.py', 'gtrxl', *args], tmp_path)
    assert status == 1 and err.startswith('tfam-train: Broken raised OSError after'), err
    assert 'the simulator has no memory of this' in err and len(err.splitlines()) == 1


# What a machine lacks

def test_listing_needs_little(cwd):
    "tfam-models and --help import neither torch nor fastai nor scikit-learn; a reader may go away."
    code = ('import runpy, sys\nsys.argv[:] = sys.argv[1:]\n'
            'try: runpy.run_path(sys.argv[0], run_name="__main__")\nexcept SystemExit: pass\n'
            'print({"torch", "fastai", "sklearn"} & set(sys.modules), file=sys.stderr)')
    for args in (['tfam-models'], ['tfam-train', '--help']):
        p = subprocess.run([sys.executable, '-c', code, BIN/args[0], *args[1:]], cwd=cwd, text=True,
                           capture_output=True)
        assert p.stderr == 'set()\n' and p.stdout, p.stderr
    p = subprocess.run(['bash', '-c', f'set -o pipefail; {BIN}/tfam-models | head -1'], cwd=cwd, text=True,
                       capture_output=True)
    assert p.returncode == 0 and p.stderr == '' and p.stdout.startswith('transformer ')


def test_a_stdout_of_few_characters(cwd):
    (cwd / 'book.txt').write_text('größer als µ, sagt sie — so… ' * 200)
    env = dict(environment(), PYTHONIOENCODING='ascii')
    p = subprocess.run([BIN/'tfam-train', '--steps', '3', '--out', 'my run', *SMALL], cwd=cwd, env=env,
                       capture_output=True)
    assert p.returncode == 0, p.stderr
    assert b"tfam-generate 'my run' --prompt" in p.stdout                              # as a shell wants it
    assert 'exists already: continue it with --resume \'my run\'' in typed(
        cwd, 'tfam-train', '--out', 'my run', *SMALL, rc=1)


def test_as_a_module(cwd):
    "What a launcher runs."
    p = subprocess.run([sys.executable, '-m', 'transformer_family', 'models'], cwd=cwd, text=True, capture_output=True)
    assert p.stdout == typed(cwd, 'tfam-models')
    p = subprocess.run([sys.executable, '-m', 'transformer_family', 'modles'], cwd=cwd, text=True, capture_output=True)
    assert p.returncode == 1 and 'takes models, train, generate, eval' in p.stderr
