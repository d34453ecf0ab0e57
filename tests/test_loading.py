"""A folder from a stranger is data: it names what is registered, and nothing that it says is called.

`data/0.1.0` was written by version 0.1.0: its models, the logits that they had, and a run that was killed."""
import cProfile
import importlib
import inspect
import json
import pkgutil
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import transformer_family
from transformer_family.attention import MultiHeadAttention
from transformer_family.core import HOMES, register
from transformer_family.data import lm_dls
from transformer_family.positions import ShawAttention
from transformer_family.reformer import LSHAttention
from transformer_family.runs import Checkpoint, read_history, resume
from transformer_family.saving import load, pack, save, unpack
from transformer_family.schedules import Budget
from transformer_family.training import lm_learner
from transformer_family.transformer import PostNorm, PreNorm, TransformerLM
from transformer_family.transformer_xl import TransformerXL

OLD = Path(__file__).parent/'data'/'0.1.0'
SMALL = dict(vocab_size=11, d_model=8, n_layers=1, n_heads=2)


# What version 0.1.0 wrote

@pytest.mark.parametrize('name', sorted(p.name for p in OLD.iterdir() if (p/'model.safetensors').exists()))
def test_models_of_0_1_0(name):
    "Loaded through the translation of names, they have the logits that they had."
    if name == 'run':
        return
    model, saved = load(OLD/name), load_file(OLD/'logits.safetensors')
    x, want = saved[f'{name}.tokens'], saved[f'{name}.logits']
    first = [torch.cat([model.start(2), x], 1)] if getattr(model, 'size', None) else [x]
    args = {'seq2seq': [x, x[:, :4]], 'upscaled': [x[:, :4], *first]}.get(name, first)
    with torch.no_grad():
        torch.testing.assert_close(model(*args).logits, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('attn', [
    MultiHeadAttention, partial(ShawAttention, clip=2), partial(ShawAttention, clip=3, per_head=True),
    partial(LSHAttention, n_buckets=4, chunk=4, n_hashes=2)])
def test_an_attention_is_part_of_the_config(tmp_path, attn):
    torch.manual_seed(0)
    model, x = TransformerLM(**SMALL, max_len=12, attn=attn).eval(), torch.randint(11, (2, 9))
    save(model, tmp_path/'lm')
    again = load(tmp_path/'lm').eval()
    assert type(again.layers.layers[0].attn) is type(model.layers.layers[0].attn)
    args = [getattr(m.config['attn'], 'keywords', {}) for m in (again, model)]
    assert args[0] == args[1]
    with torch.no_grad():
        torch.testing.assert_close(again(x).logits, model(x).logits)


def test_every_model_has_a_folder_of_0_1_0():
    kept = {json.loads(p.read_text())['model'].split('.')[-1] for p in OLD.glob('*/config.json')}
    assert kept >= {'TransformerLM', 'Transformer', 'MaskedLM', 'CharacterTransformer', 'TransformerXL',
                    'AdaptiveSpanTransformer', 'DynamicSpanTransformer', 'ImageTransformer', 'ImageToImage',
                    'SparseTransformer'}
    configs = ' '.join(p.read_text() for p in OLD.glob('*/config.json'))
    assert '"with"' in configs and '"part": "images.Logistics"' in configs


def xl_learner(folder):
    "The Learner of the run that 0.1.0 began."
    text = torch.randint(11, (300,), generator=torch.Generator().manual_seed(0)).byte()
    torch.manual_seed(0)
    cbs = [Budget(1e-2, steps=20, every=6), Checkpoint(folder, every=4)]
    dls = lm_dls((text[:250], text[250:]), bs=2, seq_len=8, device='cpu', jitter=True)
    return lm_learner(dls, TransformerXL(**SMALL, mem_len=5), cbs=cbs)


def test_run_of_0_1_0_goes_on(tmp_path):
    "Killed at step 9 with its memory, resumed here, it ends where the run that was not interrupted ended."
    shutil.copytree(OLD/'run', tmp_path/'run')
    learn = xl_learner(tmp_path/'run')
    assert resume(learn, tmp_path/'run') == 8
    past = learn.follow_contract.past[True]
    assert type(past).__name__ == 'Past' and past.position == 64
    with learn.no_bar(), learn.no_logging():
        learn.fit(learn.budget.epochs, learn.budget.lr)
    one, two = (read_history(tmp_path/'run'/f'{n}.csv') for n in ('history', 'whole'))
    assert [r[0] for r in one] == list(range(1, 21))
    for a, b in zip(one, two):
        assert a[2:5] == pytest.approx(b[2:5], rel=1e-3) and (a[5] is None) == (b[5] is None)


# Every public callable, planted

def callables():
    "Name by name, every class and function that the modules of the package define."
    found = {}
    for info in pkgutil.iter_modules(transformer_family.__path__):
        module = importlib.import_module(f'transformer_family.{info.name}')
        for name, x in vars(module).items():
            if callable(x) and getattr(x, '__module__', '') == module.__name__ and not name.startswith('__'):
                found[f'{info.name}.{name}'] = x
    return found


def code_of(x):
    "The code objects that run when `x` is called."
    if isinstance(x, type):
        codes = [getattr(getattr(x, n, None), '__code__', None) for n in ('__init__', '__new__', '__post_init__')]
    else:
        codes = [getattr(f, '__code__', None) for f in (x, inspect.unwrap(x))]
        codes.append(getattr(type(x).__call__, '__code__', None))
    return {c for c in codes if c is not None}


def entered_by(f, refused=True):
    "The code objects of the Python functions that a call enters; it raises an error of one sentence."
    profile = cProfile.Profile(builtins=False)
    try:
        profile.enable()
        f()
    except (ValueError, FileNotFoundError):
        assert refused
    else:
        assert not refused
    finally:
        profile.disable()
    return {entry.code for entry in profile.getstats()}


SAVED = dict(model='transformer.TransformerLM', args=dict(SMALL, max_len=12))
PLANTS = {    # where a name goes into a config
    'model': lambda name, spec: dict(model=name, args={}),
    'model with arguments': lambda name, spec: dict(model=name, args=dict(path='/tmp/planted', text='x', d_model=8)),
    'layer': lambda name, spec: dict(model='transformer.EncoderLayer', args=dict(
        d_model='/tmp/planted', n_heads=1, d_ff=1, wiring=spec, attn=spec, ff=spec)),
    **{arg: lambda name, spec, arg=arg: dict(SAVED, args=dict(SAVED['args'], **{arg: spec}))
       for arg in ('wiring', 'attend', 'positions', 'd_model', 'max_len')},
    'output': lambda name, spec: dict(
        model='image_transformer.ImageTransformer', args=dict(SMALL, size=[4, 4], output=spec, block=spec)),
    'nested': lambda name, spec: dict(SAVED, args=dict(SAVED['args'], wiring={
        'part': 'transformer.PreNorm', 'with': {'dropout': spec, 'd_model': spec}})),
    'in a list': lambda name, spec: dict(SAVED, args=dict(SAVED['args'], d_ff=[spec], wiring=[spec])),
}
TREES = {     # and into the tree of a checkpoint
    'empty': lambda name: {'items': [], 'as': name},
    'two': lambda name: {'items': ['/tmp/planted', 'x'], 'as': name},
    'nested': lambda name: {'dict': [['past', {'items': [{'items': [8], 'as': name}], 'as': 'list'}]]},
}
BELONGS = dict(wiring='wiring', attend='attend', positions='positions', output='output')


def folder_with(tmp_path, config):
    "A folder with a config and with weights of no model."
    (tmp_path/'config.json').write_text(json.dumps(config))
    if not (tmp_path/'model.safetensors').exists():
        save_file({'w': torch.zeros(1)}, tmp_path/'model.safetensors')
    return tmp_path


@pytest.fixture
def no_hints(monkeypatch):
    "Looking for names that are near takes longer than all the rest."
    monkeypatch.setattr('transformer_family.core.did_you_mean', lambda *args: '')


def harmless(name):
    "The kind of a registered name: where that kind belongs, it may be built."
    return HOMES.get(name.split('.')[-1], (None,))[0]


def test_the_callables_are_there():
    found = callables()
    assert len(found) > 350 and {'saving.write_atomic', 'downloads.download', 'cli.tfam_train'} <= set(found)
    assert all(code_of(found[n]) for n in ('saving.write_atomic', 'transformer.PreNorm', 'transformer.Past'))


@pytest.mark.parametrize('place', PLANTS)
def test_nothing_in_a_config_is_called(tmp_path, place, no_hints):
    "Neither by its name nor by that of 0.1.0, with arguments or without: no more is entered than by no name at all."
    def run(name, given):
        spec = {'part': name, **({'with': dict(path='/tmp/planted')} if given else {})}
        return entered_by(lambda folder=folder_with(tmp_path, PLANTS[place](name, spec)): load(folder))
    base, wrong = [run('module.NoSuchName', given) for given in (False, True)], []
    own = 'model' if place.startswith('model') else BELONGS.get(place)
    for full, x in callables().items():
        if harmless(full) != own or own is None:            # a model as a model, a wiring as a wiring
            for given, name in enumerate((full, full.split('.')[-1])):
                entered = run(name, given)
                wrong += [name for c in code_of(x) & entered - base[given]]
    assert not wrong, f'{len(wrong)} were entered: {", ".join(sorted(set(wrong)))}'


@pytest.mark.parametrize('tree', TREES)
def test_nothing_in_a_checkpoint_is_called(tmp_path, tree, no_hints):
    learn, path = xl_learner(tmp_path/'run'), tmp_path/'checkpoint.safetensors'

    def run(name):
        save_file({'w': torch.zeros(1)}, path, dict(metadata=json.dumps({'state': TREES[tree](name)})))
        return entered_by(lambda: resume(learn, tmp_path))
    base, wrong = run('module.NoSuchName'), []
    for full, x in callables().items():
        if harmless(full) == 'past':
            continue
        for name in (full, full.split('.')[-1]):
            entered = run(name)
            wrong += [name for c in code_of(x) & entered - base]
    assert not wrong, f'{len(wrong)} were entered: {", ".join(sorted(set(wrong)))}'


@pytest.mark.parametrize('args', [
    dict(wiring={'part': 'PreNorm', 'with': {'dropout': 'x'}}), dict(wiring={'part': 'PreNorm', 'with': {'p': 1}}),
    dict(wiring={'part': 'PreNorm', 'with': {'d_model': '/tmp/planted'}}), dict(d_model='/tmp/planted'),
    dict(d_model=-8), dict(dropout='x'), dict(n_layer=1), dict(wiring={'part': 'LearnedPositions'})], ids=str)
def test_arguments_are_checked_before_anything_is_called(tmp_path, args):
    "Neither the model begins to build nor one of its parts, though both are registered."
    folder = folder_with(tmp_path, dict(model='TransformerLM', args={**SMALL, 'wiring': {'part': 'PreNorm'}, **args}))
    entered = entered_by(lambda: load(folder))
    assert not {inspect.unwrap(cls.__init__).__code__ for cls in (TransformerLM, PreNorm, PostNorm)} & entered
    fine = folder_with(tmp_path, dict(model='TransformerLM', args={**SMALL, 'wiring': {'part': 'PreNorm'}}))
    assert inspect.unwrap(TransformerLM.__init__).__code__ in entered_by(lambda: load(fine))


def test_recording_sees_a_call():
    "The measurement itself: what is called is seen."
    assert code_of(TransformerLM) <= entered_by(lambda: TransformerLM(**SMALL), refused=False)
    assert code_of(load) <= entered_by(lambda: load('no such folder'))


def test_a_name_imports_its_own_module_only(tmp_path):
    "A folder cannot choose what is imported: a module beside the package, a submodule, one on the path."
    (tmp_path/'evil.py').write_text('raise SystemExit("imported")')
    sys.path.insert(0, str(tmp_path))
    try:
        for name in ('evil.Evil', 'evil', 'transformer_family.evil', '..evil.Evil', 'cli.evil', 'os.path.join'):
            with pytest.raises(ValueError, match='nothing is registered'):
                load(folder_with(tmp_path, dict(model=name, args={})))
    finally:
        sys.path.remove(str(tmp_path))
    assert 'evil' not in sys.modules


# Folders that are damaged

GOOD = dict(model='TransformerLM', args=dict(SMALL, max_len=12, wiring={'part': 'PreNorm'}))
DEEP = '['*100_000


def with_args(**args):
    return json.dumps(dict(GOOD, args=dict(GOOD['args'], **args)))


def deep(n):
    "Nested lists in the place of an argument."
    return with_args(d_ff=0).replace('"d_ff": 0', '"d_ff": ' + '['*n + ']'*n)


CONFIGS = {
    'empty': '', 'no json': 'x', 'cut short': '{"model": "Tr', 'deep': DEEP, 'deep objects': '{"a":'*50_000,
    'number': '3', 'null': 'null', 'string': '"x"', 'list': '[]',
    'no model': '{"args": {}}', 'no args': '{"model": "x"}',
    'not utf-8': b'\xff\xfe{}', 'huge number': '9'*5000, 'nan': 'NaN',
    **{f'args {a!r}': json.dumps(dict(GOOD, args=a)) for a in (None, [], [1], 'x', 3, True)},
    **{f'model {m!r}': json.dumps(dict(GOOD, model=m)) for m in (None, 3, [], {}, '', 'x', True, 'training.load')},
    **{f'part {p!r}': with_args(wiring={'part': p}) for p in (None, 3, [], {}, '', {'part': 'PreNorm'})},
    **{f'with {w!r}': with_args(wiring={'part': 'PreNorm', 'with': w})
       for w in (3, [], 'x', {'dropout': 'x'}, {'d_model': 8}, {'dropout': None}, {'x': 1}, {'dropout': [1]})},
    **{f'{n}={x!r}': with_args(**{n: x}) for n, x in [
        ('d_model', '8'), ('d_model', '/tmp/x'), ('d_model', None), ('d_model', -8), ('d_model', 0), ('d_model', 8.),
        ('d_model', True), ('d_model', [8]), ('d_model', {}), ('d_model', 10**7), ('d_model', 10**10),
        ('d_model', 10**30), ('n_layers', 10**9), ('n_layers', -1), ('n_heads', 10**12), ('n_heads', 3),
        ('vocab_size', 10**12), ('max_len', 'x'), ('d_ff', -1), ('dropout', 'x'), ('dropout', None), ('dropout', 2),
        ('wiring', 'PreNorm'), ('wiring', None), ('wiring', 3), ('wiring', []), ('wiring', {}), ('positions', 'x'),
        ('attend', 3), ('bias', 'yes'), ('d_head', '8'), ('self', 1), ('', 1), ('n_layer', 1)]},
    **{f'attn {a!r}': with_args(attn=a) for a in (
        3, [], {}, 'ShawAttention', {'part': 'PreNorm'}, {'part': 'KV'}, {'part': 'attention'}, {'part': 'ShawAttention'},
        {'part': 'ShawAttention', 'with': {'clip': 'x'}}, {'part': 'ShawAttention', 'with': {'n': 2}},
        {'part': 'LSHAttention', 'with': {'n_buckets': 0}}, {'part': 'LSHAttention', 'with': {'within': 'all'}})},
    'wiring with a width': with_args(wiring={'part': 'PreNorm', 'with': {'dropout': .1}}),
    **{f'picture {a}': json.dumps(dict(model='ImageTransformer', args=dict(SMALL, **a))) for a in [
        dict(size=[10**6, 10**6]), dict(size=[4, 4], block=10**12), dict(size=[4, 4], output='Logistics'),
        dict(size=[4, 4], output={'part': 'Logistics', 'with': {'n_mixtures': 'x'}}), dict(size='x'),
        dict(size=[4, 'x']), dict(size=[[4], 4]), dict(size={}), dict(size=[4, 4], attention='3d'),
        dict(size=[4, 4], attention=None)]},
    'deep argument': deep(900), 'deeper argument': deep(20_000),
    'deep part': with_args(wiring={'part': 'PreNorm'}).replace(
        '{"part": "PreNorm"}', '{"part": "PreNorm", "with": {"dropout": '*300 + '0' + '}}'*300),
}


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    "The folder of a model, and of its run."
    from transformer_family.saving import save
    folder = tmp_path_factory.mktemp('good')
    shutil.copytree(OLD/'run', folder/'run')
    save(TransformerLM(**SMALL, max_len=12), folder/'lm')
    return folder


def one_sentence(f):
    with pytest.raises(ValueError) as e:
        f()
    assert type(e.value) is ValueError and 10 < len(str(e.value)) < 1000
    return str(e.value)


@pytest.mark.parametrize('what', CONFIGS)
def test_damaged_config(good, tmp_path, what):
    text = CONFIGS[what]
    shutil.copy(good/'lm'/'model.safetensors', tmp_path)
    (tmp_path/'config.json').write_bytes(text if isinstance(text, bytes) else text.encode())
    one_sentence(lambda: load(tmp_path))


HEADER = {'no header': b'', 'short': b'\x08', 'absurd length': b'\xff'*8 + b'{}',
          'no json': (2).to_bytes(8, 'little') + b'[x'}


@pytest.mark.parametrize('name', ['model', 'checkpoint'])
@pytest.mark.parametrize('what', [*HEADER, 'no metadata', 'metadata is no json', 'deep metadata', 'metadata is a list',
                                  'wrong checksum', 'other tensors', 'a folder'])
def test_damaged_tensors(good, tmp_path, what, name):
    folder = tmp_path/'run'
    shutil.copytree(good/'run', folder)
    path = folder/f'{name}.safetensors'
    tensors = load_file(path)
    if what in HEADER:
        path.write_bytes(HEADER[what])
    elif what == 'a folder':
        path.unlink()
        path.mkdir()
    else:
        meta = {'no metadata': None, 'metadata is no json': dict(metadata='{"a'), 'deep metadata': dict(metadata=DEEP),
                'metadata is a list': dict(metadata='[1]'), 'wrong checksum': dict(sha256='0', metadata='{}')}.get(what)
        save_file({'w': torch.zeros(2)} if what == 'other tensors' else tensors, path, meta)

    def read():
        return load(folder) if name == 'model' else resume(xl_learner(folder), folder)
    if name == 'model' and what in ('no metadata', 'metadata is a list'):
        read()                                       # weights need none: other libraries write them without
    elif what == 'a folder':
        with pytest.raises((FileNotFoundError, ValueError)):
            read()
    else:
        one_sentence(read)


STATE = ('model', 'opt', 'rng', 'step', 'seconds', 'pos', 'past')
BAD = [None, 3, -1, 'x', [], {}, {'items': 3, 'as': 'list'}, {'items': []}, {'as': 'list'}, {'items': [], 'as': 3},
       {'tensor': 'none'}, {'tensor': 3}, {'dict': 3}, {'dict': [3]}, {'dict': [[[], 1]]}, {'dict': [['a']]},
       {'items': [], 'as': 'Past'}, {'items': [1]*9, 'as': 'Past'}, {'items': [1], 'as': 'PreNorm'},
       {'items': [1], 'as': 'training.write_atomic'}, {'items': ['x'], 'as': 'list', 'more': 1}]
FINE = {('step', 3), ('seconds', 3), ('pos', 3), *(('past', x) for x in (None, 3, -1, 'x'))}


@pytest.mark.parametrize('key', STATE)
def test_damaged_state(good, tmp_path, key):
    "A tree with anything else in the place of one of its parts, or without it."
    tensors = load_file(good/'run'/'checkpoint.safetensors')
    learn, path = xl_learner(tmp_path/'run'), tmp_path/'checkpoint.safetensors'
    from transformer_family.saving import read_tensors
    state = dict(read_tensors(good/'run'/'checkpoint.safetensors')[1]['state']['dict'])

    def write(state):
        save_file(tensors, path, dict(metadata=json.dumps({'state': {'dict': [[k, v] for k, v in state.items()]}})))
    write({k: v for k, v in state.items() if k != key})
    one_sentence(lambda: resume(learn, tmp_path))
    for x in BAD:
        if isinstance(x, (dict, list)) or (key, x) not in FINE:
            write({**state, key: x})
            one_sentence(lambda: resume(learn, tmp_path))
    write(state)
    assert resume(learn, tmp_path) == 8


@pytest.mark.parametrize('text', [
    '', '\n', 'x', 'step,seconds\n', '{HEAD}\nx,1,1,1,1,\n', '{HEAD}\n1,1,1,1,1\n', '{HEAD}\n1,1,1,1,1,1,1\n',
    '{HEAD}\n1,,1,1,1,\n', '{HEAD}\n1.5,1,1,1,1,\n', '{HEAD}\n\n1,1,1,1,1,\n', '{HEAD}\n1,1,1,one,1,\n', '\xff'])
def test_damaged_history(good, tmp_path, text):
    shutil.copytree(good/'run', tmp_path/'run')
    head = 'step,seconds,lr,loss,bpc,valid_bpc'
    (tmp_path/'run'/'history.csv').write_bytes(text.replace('{HEAD}', head).encode('latin-1'))
    assert 'history.csv' in one_sentence(lambda: resume(xl_learner(tmp_path/'run'), tmp_path/'run'))


RUN = dict(name='transformer_xl', data='no such file', fingerprint='', batch_size=2, seq_len=8, steps=20, minutes=None,
           lr=1e-2, seed=0, split=None, by_class=False, untrained=4.)


@pytest.mark.parametrize('changes', [
    dict(run=None), dict(run=[]), dict(run='x'), dict(run={}), dict(run={'name': 'transformer_xl'}), dict(args=None),
    dict(model=3), *({k: x} for k, x in [
        ('lr', 'x'), ('lr', -1), ('lr', None), ('data', []), ('data', None), ('steps', 0), ('steps', '20'), ('name', 3),
        ('name', 'lstm'), ('name', 'image_transformer'), ('minutes', -1), ('minutes', 'x'), ('seq_len', 8.),
        ('seed', 'x'), ('batch_size', None), ('batch_size', -2), ('split', 3), ('by_class', 'x'),
        ('fingerprint', None), ('task', 'PreNorm'), ('task', 'training.load'), ('eval_tokens', 0),
        ('seed', 10**31)])], ids=str)
def test_damaged_run(tmp_path, changes):
    "What a config says of the run it belongs to."
    from transformer_family.runs import Run

    def opened():
        with Run(tmp_path/'run') as run:
            run.open()
    shutil.copytree(OLD/'run', tmp_path/'run')
    config = dict(json.loads((OLD/'run'/'config.json').read_text()), run=RUN)
    whole = {k: x for k, x in changes.items() if k in config}
    config.update(whole or dict(run={**RUN, **changes}))
    (tmp_path/'run'/'config.json').write_text(json.dumps(config))
    assert 'no such file' not in one_sentence(opened)
    config['run'] = RUN
    (tmp_path/'run'/'config.json').write_text(json.dumps(config))
    if not whole:                                    # the rest is as it should be: next comes the data
        with pytest.raises(FileNotFoundError, match='no such file'):
            opened()


# Anything that json can say

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(sorted(HOMES)) | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(
        st.sampled_from(['part', 'with', 'items', 'as', 'dict', 'tensor', 'd_model']) | st.text(max_size=3), x,
        max_size=3),
    max_leaves=6)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(model=st.sampled_from(sorted(HOMES)) | values, args=st.dictionaries(
    st.sampled_from(['wiring', 'positions', 'attend', 'output', 'd_model', 'n_layers', 'size', 'dropout', 'block']),
    values, max_size=3) | values)
def test_any_config_is_read_or_refused(tmp_path_factory, model, args):
    folder = folder_with(tmp_path_factory.getbasetemp(), dict(model=model, args=args))
    with pytest.raises(ValueError):
        load(folder)                                         # no model has a single weight called w


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
    | st.integers(0, 3).map(lambda n: torch.arange(n)),
    lambda x: st.lists(x, max_size=3) | st.lists(x, max_size=3).map(tuple)
    | st.dictionaries(st.integers() | st.text(max_size=3), x, max_size=3)
    | st.tuples(x, x, x).map(lambda t: importlib.import_module('transformer_family.transformer').Past(*t)),
    max_leaves=8)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.equal(b)
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=150, deadline=None, derandomize=True)
@given(tree=trees)
def test_any_tree_comes_back(tree):
    tensors = {}
    spec = json.loads(json.dumps(pack(tree, tensors, 't')))
    assert same(tree, unpack(spec, tensors))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(spec=values)
def test_any_tree_is_read_or_refused(spec):
    try:
        unpack(spec, {'a': torch.zeros(1)})
    except ValueError:
        pass


# A model of one's own

def test_own_parts(tmp_path):
    "Registered, they are saved and loaded; without their module the error names both ways out."
    from transformer_family import core
    from transformer_family.saving import save

    @register('wiring', 'Halved')
    class Halved(PreNorm):
        def leave(self, x, y):
            return x + .5*self.dropout(y)

    class Unnamed(PreNorm):
        pass
    model = TransformerLM(**SMALL, wiring=Halved).eval()
    back, x = load(save(model, tmp_path/'own')), torch.arange(10)[None]
    assert back.config['wiring'] is Halved and back(x).logits.equal(model(x).logits)
    del core._own['Halved']
    said = one_sentence(lambda: load(tmp_path/'own'))
    assert 'import the module that registers it' in said and 'load(…, model=)' in said
    assert load(tmp_path/'own', model=TransformerLM(**SMALL, wiring=Halved))(x).logits.equal(model(x).logits)
    with pytest.raises(ValueError, match='core.register'):
        save(TransformerLM(**SMALL, wiring=Unnamed), tmp_path/'none')
    assert not (tmp_path/'none').exists()
