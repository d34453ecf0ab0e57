"""The Universal Transformer with a transition that looks back keeps the contract; bad files of bAbI raise."""
import io
import json
import re
import tarfile

import pytest

from tests import contract
from tests.contract import CHECKS
from tests.util import ROOT
from transformer_family import zoo
from transformer_family.universal_transformer import SeparableConv, UniversalTransformerLM, babi, parse_babi

NAME = 'universal_transformer'


@pytest.mark.parametrize('check', [c for c in zoo.contract if c not in zoo.exempt(NAME)])
def test_contract_with_a_convolution(check, tmp_path, monkeypatch):
    plain = contract.small
    monkeypatch.setattr(contract, 'small', lambda name, seed=0, **kw: plain(name, seed, **{'ff': SeparableConv, **kw}))
    assert isinstance(contract.small(NAME).layers.layer.ff, SeparableConv)
    CHECKS[check](*(NAME, tmp_path) if check == 'saving' else (NAME,))


@pytest.mark.parametrize('kernels', [3, (3,), (3, 5, 7), (3, 0), (3, -1), (3., 5), None, '35'])
def test_kernels(kernels):
    with pytest.raises(ValueError, match='kernels are two numbers of positions, at least 1 each, got'):
        SeparableConv(8, 16, kernels)


@pytest.mark.parametrize('ff', [SeparableConv(8, 16), 3, None, 'SeparableConv', [SeparableConv]])
def test_a_transition_is_a_factory(ff):
    with pytest.raises(ValueError, match='ff must be'):
        UniversalTransformerLM(ff=ff)


LINES = ['1 Mary took the ball.', '2 Where is the ball? \thome\t1', '3 Mary left.']
BAD = {    # what stands in the place of the last line -> words of its sentence
    '': 'line 3 is not a number and a sentence',
    'Mary left.': 'line 3 is not a number and a sentence',
    '3': 'line 3 is not a number and a sentence',
    '3 ': 'line 3 is not a number and a sentence',
    '-3 Mary left.': 'line 3 is not a number and a sentence',
    '4 Mary left.': 'line 3 is number 4 of its story, expected 3, or 1',
    '2 Mary left.': 'line 3 is number 2 of its story, expected 3, or 1',
    '3 Who left?\tMary': 'line 3 is no question, its answer and the numbers',
    '3 Who left?\tMary\t1\t2': 'line 3 is no question, its answer and the numbers',
    '3 Who left?\t\t1': 'line 3 is no question, its answer and the numbers',
    '3 Who left?\tMary\t': 'line 3 is no question, its answer and the numbers',
    '3 Who left?\tMary\t2': 'line 3 names line 2 of its story as a support, which is no sentence',
    '3 Who left?\tMary\t1 9': 'line 3 names line 9 of its story',
    '3 Who left?\tMary\tx': 'line 3 names line x of its story',
    '1 Who left?\tMary\t1': 'line 3 names line 1 of its story'}


@pytest.mark.parametrize('line', BAD)
def test_lines_of_babi(line):
    with pytest.raises(ValueError, match=BAD[line]):
        parse_babi([*LINES[:2], line])


def test_a_story_belongs_to_its_question():
    "What comes later changes no story that was read."
    early, late = parse_babi([*LINES, '4 Is it late?\tyes\t1 3'])
    assert (len(early.story), len(late.story), late.support) == (1, 2, [0, 1])


def test_files_of_babi(tmp_path):
    with pytest.raises(FileNotFoundError, match="give bAbI's archive or its folder"):
        babi(tmp_path/'none.tgz', 1)
    (tmp_path/'qa1_a_test.txt').write_text('\n'.join(LINES))
    assert len(babi(tmp_path, 1, 'test')) == 1
    for task, part in (1, 'train'), (2, 'test'), (11, 'test'):
        with pytest.raises(ValueError, match='has 0 files'):
            babi(tmp_path, task, part)
    (tmp_path/'en').mkdir()
    (tmp_path/'en'/'qa1_b_test.txt').write_text('\n'.join(LINES))
    with pytest.raises(ValueError, match='has 2 files'):
        babi(tmp_path, 1, 'test')
    (tmp_path/'qa5_a_test.txt').write_text('one line')
    with pytest.raises(ValueError, match='qa5_a_test.txt: line 1 is not a number'):
        babi(tmp_path, 5, 'test')
    (tmp_path/'qa6_a_test.txt').write_bytes(b'1 \xff.')
    with pytest.raises(ValueError, match='qa6_a_test.txt: .*utf-8'):
        babi(tmp_path, 6, 'test')


@pytest.mark.parametrize('content', [b'', b'no archive', b'\x1f\x8bdamaged'])
def test_no_archive(tmp_path, content):
    (tmp_path/'babi.tgz').write_bytes(content)
    with pytest.raises(ValueError, match='babi.tgz is no tar archive, or damaged'):
        babi(tmp_path/'babi.tgz', 1)


def test_a_cut_archive(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w:gz') as tar:
        info = tarfile.TarInfo('qa1_a_train.txt')
        data = '\n'.join(LINES * 500).encode() + bytes(range(256))*200
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    (tmp_path/'babi.tgz').write_bytes(out.getvalue()[:-40])
    with pytest.raises(ValueError, match='babi.tgz'):
        babi(tmp_path/'babi.tgz', 1)


STORED = json.loads((ROOT/'nbs'/'40_universal_transformer.ipynb').read_text())['cells']


def rows(text):
    "A table of markdown: first column -> the others."
    lines = [[x.strip() for x in line.strip('| ').split('|')] for line in text.splitlines() if line.startswith('|')]
    return {first: rest for first, *rest in lines}


def printed(part):
    "What the cell stored in whose source a part stands."
    cell = next(c for c in STORED if c['cell_type'] == 'code' and part in ''.join(c['source']))
    return ''.join(''.join(o.get('text', '') or o['data']['text/markdown']) for o in cell['outputs'])


def test_the_table_at_the_beginning():
    "What the chapter says first is what its cells printed."
    says = rows(next(''.join(c['source']) for c in STORED if 'What the chapter measures' in ''.join(c['source'])))
    tables = [rows(printed(f"table(('{t}',)")) for t in ('copy', 'reverse', 'sums')]
    for label, table, place, which in (('copies of 11 to 20', 0, 2, 1), ('symbols of copies', 0, 3, 0),
                                       ('reversing up to 10', 1, 1, 1), ('symbols of 11 to 20', 1, 2, 0),
                                       ('digits of sums', 2, 3, 0)):
        said = next(v for k, v in says.items() if k.startswith(label))
        for name, text in zip(('Universal', 'Transformer', 'LSTM'), said, strict=True):
            assert text.split()[0] == tables[table][name][place].split(' · ')[which], (label, name)
    scan = re.findall(r'right: (.*?%) of trained lengths, (.*?%) of longer', printed("follow('Transformer'"))
    for label, shares in zip(('SCAN, trained', 'SCAN, longer'), zip(*scan, strict=True), strict=True):
        said = next(v for k, v in says.items() if k.startswith(label))
        assert tuple(x.split()[0] + '%' for x in said[:2]) == shares
    tasks = dict(re.findall(r'^(\d) +([\d.]+%)', printed('tested(reader'), re.M))
    for label, task in ('stories with one', '1'), ('stories with two', '2'):
        assert next(v for k, v in says.items() if k.startswith(label))[0].split()[0] + '%' == tasks[task]
    timed = json.loads((ROOT/'benchmarks'/'results'/'universal_transformer-cpu.json').read_text())['figures']
    said = next(v for k, v in says.items() if k.startswith('time,'))[0]
    assert re.findall(r'1 / ([\d.]+)', said) == [f'{timed[k]:.1f}' for k in ('ratio', 'ratio_training')]
