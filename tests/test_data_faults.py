"""Downloads under what a notebook cannot show: `kill -9` in the middle, and several processes at once."""
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.util import ROOT

BODY = random.Random(0).randbytes(2_000_000)
SHA = hashlib.sha256(BODY).hexdigest()
CODE = 'import sys; from transformer_family.data import download; print(download(*sys.argv[1:]))'


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


def client(server, folder):
    "A process that downloads the server's file."
    url = f'http://127.0.0.1:{server.server_port}/file.bin'
    env = {**os.environ, 'TRANSFORMER_FAMILY_DATA': str(folder), 'no_proxy': '127.0.0.1',
           'PYTHONPATH': str(ROOT), 'PYTHONWARNINGS': 'ignore'}
    return subprocess.Popen([sys.executable, '-c', CODE, url, SHA], env=env, cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(true, seconds=60):
    "Wait until `true()`."
    end = time.time() + seconds
    while not true():
        assert time.time() < end, 'it did not happen'
        time.sleep(.02)


def finish(p, folder):
    "Wait for a client; what it downloaded is right."
    out, err = p.communicate(timeout=120)
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


def test_several_at_once(server, tmp_path):
    clients = [client(server, tmp_path) for _ in range(3)]
    until(lambda: part_size(tmp_path) > 0)
    time.sleep(1)
    server.go.set()
    for p in clients:
        finish(p, tmp_path)
    if sys.platform != 'win32':
        assert server.asked == [0]      # one asked, the others waited for it
    assert [p.name for p in tmp_path.iterdir()] == ['file.bin']
