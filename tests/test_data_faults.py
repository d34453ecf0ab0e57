"""Downloads under what a notebook cannot show: `kill -9` in the middle, several processes at once, a set of files
of which each arrives in pieces or damaged."""
import gzip
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.util import ROOT
from transformer_family import data, sentence_pairs

BODY = random.Random(0).randbytes(2_000_000)
SHA = hashlib.sha256(BODY).hexdigest()
CODE = 'import sys; from transformer_family.data import download; print(download(*sys.argv[1:3]))'
NOTED = """
import fcntl, os, sys
from pathlib import Path
from transformer_family.data import download
lock = fcntl.flock
def flock(*args):
    Path(sys.argv[3], str(os.getpid())).touch()
    return lock(*args)
fcntl.flock = flock
print(download(*sys.argv[1:3]))
"""     # says when it is about to wait for the others


class Handler(BaseHTTPRequestHandler):
    "Sends half of what is asked for, waits until the server's `go` is set, sends the rest."
    def log_message(self, *args):
        pass

    def do_GET(self):
        start = int((self.headers['Range'] or 'bytes=0-')[6:-1])
        data = BODY[start:]
        self.server.asked.append(start)
        self.send_response(206 if start else 200)
        if start:
            self.send_header('Content-Range', f'bytes {start}-{len(BODY) - 1}/{len(BODY)}')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data[:len(data)//2])
            self.server.go.wait(60)
            self.wfile.write(data[len(data)//2:])
        except OSError:     # the client is dead
            pass


@pytest.fixture
def server():
    s = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    s.asked, s.go = [], threading.Event()
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.go.set()
    s.shutdown()


def client(server, folder, code=CODE, *args):
    "A process that downloads the server's file."
    url = f'http://127.0.0.1:{server.server_port}/file.bin'
    env = {**os.environ, 'TRANSFORMER_FAMILY_DATA': str(folder), 'no_proxy': '127.0.0.1',
           'PYTHONPATH': str(ROOT), 'PYTHONWARNINGS': 'ignore'}
    return subprocess.Popen([sys.executable, '-c', code, url, SHA, *args], env=env, cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(true, seconds=60):
    "Wait until `true()`."
    end = time.time() + seconds
    while not true():
        assert time.time() < end, 'it did not happen'
        time.sleep(.02)


def finish(p, folder):
    "Wait for a client; what it downloaded is right."
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert out.strip() == str(folder/'file.bin')
    assert (folder/'file.bin').read_bytes() == BODY


def part_size(folder):
    part = folder/'file.bin.part'
    return part.stat().st_size if part.exists() else 0


@pytest.mark.skipif(not hasattr(signal, 'SIGKILL'), reason='no kill -9 on this system')
def test_killed_in_the_middle(server, tmp_path):
    first = client(server, tmp_path)
    until(lambda: part_size(tmp_path) > 0)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (tmp_path/'file.bin').exists()       # never a part under the final name
    have = part_size(tmp_path)
    server.go.set()
    finish(client(server, tmp_path), tmp_path)
    assert server.asked == [0, have] and 0 < have < len(BODY)
    assert [p.name for p in tmp_path.iterdir()] == ['file.bin']


@pytest.mark.skipif(sys.platform == 'win32', reason='no locks of files on this system')
def test_several_at_once(server, tmp_path):
    "All three stand at the lock while one of them downloads; one asks, and the others take what it got."
    at_the_lock, cache = tmp_path/'at_the_lock', tmp_path/'cache'
    at_the_lock.mkdir()
    cache.mkdir()
    clients = [client(server, cache, NOTED, str(at_the_lock)) for _ in range(3)]
    until(lambda: part_size(cache) > 0 and len(list(at_the_lock.iterdir())) == 3)
    server.go.set()
    for p in clients:
        finish(p, cache)
    assert server.asked == [0]
    assert [p.name for p in cache.iterdir()] == ['file.bin']


class Captions(BaseHTTPRequestHandler):
    "Breaks off in the middle of every first answer; one file can be damaged for good, one be missing."
    def log_message(self, *args):
        pass

    def do_GET(self):
        s = self.server
        name, start = self.path.split('/')[-1], int((self.headers['Range'] or 'bytes=0-')[6:-1])
        first = name not in s.asked
        s.asked.append(name)
        if name == s.missing:
            return self.send_error(404)
        body = s.files[name][:-1] + b'?' if name == s.damaged else s.files[name]
        self.send_response(206 if start else 200)
        if start:
            self.send_header('Content-Range', f'bytes {start}-{len(body) - 1}/{len(body)}')
        self.send_header('Content-Length', str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start:start + (len(body) - start)//2] if first else body[start:])


@pytest.fixture
def captions(monkeypatch, tmp_path):
    "A server of nine small files under Multi30k's names, and an empty cache folder."
    s = ThreadingHTTPServer(('127.0.0.1', 0), Captions)
    lines = {name: f'{name}: Männer\n{name}: café\n' for name in sentence_pairs._MULTI30K}
    s.files = {f'{name}.gz': gzip.compress(text.encode(), mtime=0) for name, text in lines.items()}
    s.asked, s.missing, s.damaged = [], None, None
    threading.Thread(target=s.serve_forever, daemon=True).start()
    monkeypatch.setattr(sentence_pairs, '_FLICKR', f'http://127.0.0.1:{s.server_port}/raw/')
    sums = {name: hashlib.sha256(s.files[f'{name}.gz']).hexdigest() for name in lines}
    monkeypatch.setattr(sentence_pairs, '_MULTI30K', sums)
    monkeypatch.setenv('TRANSFORMER_FAMILY_DATA', str(tmp_path/'cache'))
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    yield s
    s.shutdown()


def test_captions_arrive_in_pieces(captions, tmp_path):
    got = data.pairs('multi30k', src='fr', tgt='de')
    assert got.valid == [('val.fr: Männer', 'val.de: Männer'), ('val.fr: café', 'val.de: café')]
    names = sorted(f'{part}.{lang}.gz' for part in ('train', 'val', 'test_2016_flickr') for lang in ('fr', 'de'))
    assert sorted(captions.asked) == sorted(names*2)        # each broken off once, then continued
    raw = tmp_path/'cache'/'multi30k'/'raw'
    assert sorted(p.name for p in raw.iterdir()) == names
    before = [(p.name, p.stat().st_mtime_ns) for p in sorted((tmp_path/'cache').rglob('*'))]
    captions.shutdown()
    assert data.pairs('multi30k', src='fr', tgt='de') == got        # nothing asked, nothing written
    assert before == [(p.name, p.stat().st_mtime_ns) for p in sorted((tmp_path/'cache').rglob('*'))]
    assert len(captions.asked) == 12


@pytest.mark.parametrize('how,why', [('missing', 'the server answered 404'), ('damaged', 'it arrived damaged')])
def test_captions_that_fail(captions, tmp_path, how, why):
    setattr(captions, how, 'val.de.gz')
    with pytest.raises(data.DownloadError, match=why) as e:
        data.pairs('multi30k')
    assert str(tmp_path/'cache'/'multi30k'/'raw'/'val.de.gz') in str(e.value)
    setattr(captions, how, None)
    assert data.pairs('multi30k').valid[0] == ('val.en: Männer', 'val.de: Männer')      # goes on from there
    assert captions.asked.count('train.en.gz') == 2


def test_captions_in_the_folder_that_went_bad(captions, tmp_path):
    want = data.pairs('multi30k')
    path = tmp_path/'cache'/'multi30k'/'raw'/'train.en.gz'
    path.write_bytes(b'not a gzip file')
    with pytest.warns(UserWarning, match='train.en.gz: it is damaged'):
        assert data.pairs('multi30k') == want


class Zips(BaseHTTPRequestHandler):
    "One small zip file, slowly."
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.asked.append(self.headers['Range'])
        time.sleep(.3)
        self.send_response(200)
        self.send_header('Content-Length', str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)


FIRST = """
import sys, time
from pathlib import Path
from transformer_family import data
source = data._Source(*sys.argv[1:3], (200_000, 60_000, 40_000), 'enwik8', sys.argv[3])
Path(sys.argv[4], str(__import__('os').getpid())).touch()
while len(list(Path(sys.argv[4]).iterdir())) < 4: time.sleep(.01)
print([len(part) for part in data._published('enwik8', source)])
"""


@pytest.mark.skipif(sys.platform == 'win32', reason='no locks of files on this system')
def test_a_corpus_used_first_by_four_at_once(tmp_path):
    "All four ask at the same moment; one of them fetches and extracts it, and all read it."
    text, packed = BODY[:300_000], io.BytesIO()
    with zipfile.ZipFile(packed, 'w') as z:
        z.writestr('enwik8', text)
    s = ThreadingHTTPServer(('127.0.0.1', 0), Zips)
    s.asked, s.body = [], packed.getvalue()
    threading.Thread(target=s.serve_forever, daemon=True).start()
    cache, here = tmp_path/'cache', tmp_path/'here'
    here.mkdir()
    env = {**os.environ, 'TRANSFORMER_FAMILY_DATA': str(cache), 'no_proxy': '127.0.0.1', 'PYTHONPATH': str(ROOT),
           'PYTHONWARNINGS': 'ignore'}
    args = [sys.executable, '-c', FIRST, f'http://127.0.0.1:{s.server_port}/enwik8.zip',
            hashlib.sha256(s.body).hexdigest(), hashlib.md5(text).hexdigest(), str(here)]
    four = [subprocess.Popen(args, env=env, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(4)]
    for p in four:
        out, err = p.communicate(timeout=300)
        assert (p.returncode, out) == (0, '[200000, 60000, 40000]\n'), err
    s.shutdown()
    assert s.asked == [None]
    assert [p.name for p in (cache/'enwik8').iterdir()] == ['enwik8']
