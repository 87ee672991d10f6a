"The detection service as a process and in threads: load, limits, bad bodies, clients that go away, and a real browser"
import asyncio, csv, gc, hashlib, io, json, os, re, shutil, signal, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from browser import CHROMIUM, Browser
from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.read.identification import identify
from dew_nb.read.verdicts import CLAIMS
from dew_nb.serving.documents import read_again
from dew_nb.serving.live import read_events
from dew_nb.serving.pages import TABLE_JS
from dew_nb.serving.report import file_entry
from dew_nb.serving.reportcheck import (Check, check_again, check_facts, check_file, check_page, check_page_again, check_words,
    judge_again, read_report)
from dew_nb.shell.arguments import call_command
from dew_nb.shell.commands import dew_detect
from dew_nb.shell.reporting import dew_report
from dew_nb.shell.serve import dew_serve
from dew_nb.serving import service
from dew_nb.serving.service import Limits, Question, ReportQuestion, make_app
from dew_nb.mark.sources import reference_texts
from quick import Letters, ends_within, toy_host

ROOT = Path(__file__).resolve().parent.parent
CONFIG = dict(m=64, n=64, layers=12, k=3, context_decay=1., context_damping=None, context_width=None)
TOKEN = 'a-token-of-some-length'
AUTH = {'Authorization': f'Bearer {TOKEN}'}
SECRET = 'Xyzzyfrotz'                                       # a word that must not be seen in any log


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "Two detector files, a marked text, and texts nobody marked"
    d = tmp_path_factory.mktemp('service')
    wm = DEW.build(toy_host(), Letters(), SecretKey(b'an example key: never use this one'), DEWConfig(**CONFIG), progress=False)
    marked = wm.generate('The old harbour', max_new_tokens=44, seed=1, temperature=.9).strip()
    wm.detector().save(d/'harbour.dew')
    wm.rekey(SecretKey(b'a second example key')).detector().save(d/'mill.dew')
    plain = [' '.join(t.split()[i:i+40]) + f' {SECRET}' for i,t in enumerate(reference_texts()[:30])]
    return dict(dir=d, files=[d/'harbour.dew', d/'mill.dew'], texts=[marked, *plain, '', 'short'],
                dets={n: Detector.load(d/f'{n}.dew') for n in ('harbour', 'mill')})


@contextmanager
def process(*args, **env):
    "dew_serve in a process of its own: (process, address, log file)"
    args = ['--port', '0', *map(str, args)]
    log = Path(args[-1]).parent/f'log-{time.monotonic_ns()}.txt'
    code = 'import sys; from dew_nb.shell.serve import dew_serve; sys.exit(dew_serve())'
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'OMP_WAIT_POLICY': 'PASSIVE', **env}
    with open(log, 'wb') as f: p = subprocess.Popen([sys.executable, '-c', code, *args], env=env, stdout=f, stderr=f)
    try:
        until = time.monotonic() + 120
        while not (found := re.search(r'http://\S+', log.read_text())):
            assert p.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(.05)
        wait_until(lambda: httpx.get(f'{found[0]}/health').status_code == 200, errors=httpx.TransportError)
        yield p, found[0], log
    finally:
        p.kill()
        p.wait()


@contextmanager
def threaded(app, small=False):
    "The application behind uvicorn in a thread: its address; with small buffers to send from"
    sock = socket.create_server(('127.0.0.1', 0))
    if small: sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    server = uvicorn.Server(uvicorn.Config(app, log_level='error', timeout_graceful_shutdown=2))
    t = threading.Thread(target=server.run, kwargs=dict(sockets=[sock]), daemon=True)
    t.start()
    wait_until(lambda: server.started)
    try: yield f'http://127.0.0.1:{sock.getsockname()[1]}'
    finally:
        server.should_exit = True
        t.join(20)
        sock.close()


def wait_until(f, seconds=30, errors=()):
    until = time.monotonic() + seconds
    while True:
        try:
            if f(): return
        except errors: pass
        assert time.monotonic() < until, 'waited too long'
        time.sleep(.02)


@pytest.fixture(scope='module')
def server(made):
    "The service in a process of its own"
    with process(*sum((['--detector', f] for f in made['files']), []), DEW_TOKEN=TOKEN) as (p, url, log):
        client = httpx.Client(base_url=url, headers=AUTH, timeout=60)
        yield SimpleNamespace(url=url, process=p, log=log, post=client.post, get=client.get)


# ---------------------------------------------------------------- the same answers, under load
def same(row, direct, p=None):
    assert row['n_scored'] == direct.n_scored and row['z'] == pytest.approx(direct.z, abs=1e-5)
    assert row['p_value'] == pytest.approx(direct.p_value if p is None else p, rel=1e-4)


@pytest.mark.parametrize('n', [300, pytest.param(1000, marks=pytest.mark.long)])
def test_hundreds_of_questions(server, made, n):
    "32 at once: one detector, both, many texts, scans; each answer is that of a direct call"
    texts, dets = made['texts'], made['dets']
    alone = {n: [d.detect(t) for t in texts] for n,d in dets.items()}
    both = identify(texts, dets)
    scans = [dets['mill'].scan(t) for t in texts[:4]]

    async def one(client, room, i):
        k, kind = i % len(texts), i % 50
        async with room:
            if kind == 7: return 'scan', i % 4, await client.post('/scan', json=dict(text=texts[i % 4], detector='mill'))
            if kind == 9: return 'many', k, await client.post('/detect', json=dict(texts=texts, detector='harbour'))
            if kind % 2: return 'both', k, await client.post('/detect', json=dict(text=texts[k]))
            return 'one', k, await client.post('/detect', json=dict(text=texts[k], detector='mill'))

    async def all_of_them():
        room = asyncio.Semaphore(32)
        async with httpx.AsyncClient(base_url=server.url, headers=AUTH, timeout=60, limits=httpx.Limits(max_connections=32)) as client:
            return await asyncio.gather(*(one(client, room, i) for i in range(n)))

    got = asyncio.run(all_of_them())
    assert {r.status_code for _,_,r in got} == {200}
    for kind,k,r in got:
        rows = r.json()['results']
        if kind == 'one': same(rows[0], alone['mill'][k])
        if kind == 'both': same(rows[0], both[k].results[list(dets).index(rows[0]['detector'])], both[k].p_value)
        if kind == 'scan': assert rows[0]['p_value'] == pytest.approx(scans[k].p_value, rel=1e-4) and rows[0]['n_scored'] == scans[k].n_scored
        if kind == 'many':
            for row,direct in zip(rows, alone['harbour'], strict=True): same(row, direct)
    assert both[0].key == 'harbour'                         # the marked text is found, and not by chance
    assert server.get('/health').json()['in_flight'] == 0


def test_many_texts(server, made):
    "How many were examined is told, and verdicts are corrected for their number where that is asked"
    ask = lambda **more: server.post('/detect', json=dict(texts=made['texts'], detector='harbour', **more)).json()
    plain, holm = ask(), ask(many='holm')
    n = sum(r['n_scored'] > 0 for r in plain['results'])
    assert plain['summary']['texts'] == n and plain['summary']['left_out'] == len(made['texts']) - n and plain['summary']['expected_false_positives'] == pytest.approx(.01*n) and f'{n} texts examined' in plain['summary']['words']
    assert holm['summary']['many'] == 'holm' and holm['results'][0]['p_adjusted'] == pytest.approx(n*holm['results'][0]['p_value'])
    assert holm['summary']['marked'] == sum(r.get('p_adjusted', 1) <= .01 for r in holm['results']) <= plain['summary']['marked']
    assert server.post('/detect', json=dict(text='x', many='sidak')).status_code == 422


TABLE = [['id', 'answer; or so'], ['1', 'Yes, "so"\nit is'], ['2', ''], ['', 'tab\there | pipe'], ['3', 'caf\u00e9 \u201cquoted\u201d']]

@pytest.mark.skipif(shutil.which('node') is None, reason='no Node.js found')
@pytest.mark.parametrize('delimiter, end', [(',', '\r\n'), (',', '\n'), ('\t', '\n')])
def test_tables_of_the_page(delimiter, end):
    "The page's script reads a table as Python's csv does"
    f = io.StringIO(newline='')
    csv.writer(f, delimiter=delimiter, lineterminator=end).writerows(TABLE)
    code = f'{TABLE_JS}; console.log(JSON.stringify(csvRows({json.dumps(f.getvalue() + end)})))'
    assert json.loads(subprocess.run(['node', '-e', code], capture_output=True, text=True, check=True).stdout) == TABLE


# ---------------------------------------------------------------- bodies
@pytest.mark.parametrize('body', [b'', b'\xff\xfe\x00\x01'*50, b'{"text": ', b'[1, 2]', b'"x"', b'{"text": 1}', b'[' * 200_000, b'{"texts": ["a", null]}',
                                  b'{"text": "a", "alpha": NaN}', b'{"text": "a", "alpha": "1e-400"}', '{"text": "caf\u00e9"}'.encode('latin-1')])
def test_malformed_bodies(server, body):
    r = server.post('/detect', content=body, headers={'Content-Type': 'application/json'})
    assert r.status_code == 422 and r.json()['detail'] and 'Traceback' not in r.text
    assert len(r.text) < 400


def test_half_an_emoji_and_nul_are_texts(server):
    "They are valid JSON; the answer is valid too"
    r = server.post('/detect', content=b'{"text": "half \\ud83d of it, and \\u0000 too, in a text of some length", "html": true}',
                    headers={'Content-Type': 'application/json'})
    assert r.status_code == 200 and r.json()['results'][0]['n_scored'] > 0


def test_too_large(server):
    def parts():
        for _ in range(50): yield b'x'*100_000
    for kw in (dict(content=b'x'*5_000_000), dict(content=parts())):
        try: r = server.post('/detect', **kw)
        except httpx.TransportError: continue               # refused while it was still being sent
        assert r.status_code == 413 and '4,000,000 bytes' in r.json()['detail']
    r = server.post('/detect', json=dict(texts=['x']*1001))
    assert r.status_code == 413 and '1,000 texts' in r.json()['detail']


def talk(url, *parts, pause=0., read=True):
    "A client that is no library: parts of a request over a socket, and what comes back"
    host, port = url.removeprefix('http://').split(':')
    with socket.create_connection((host, int(port)), 20) as s:
        for p in parts:
            s.sendall(p)
            time.sleep(pause)
        if not read: return b''
        return b''.join(iter(lambda: s.recv(65536), b''))


def head(length, path='/detect', close=True):
    more = b'Connection: close\r\n' if close else b''
    return f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nAuthorization: Bearer {TOKEN}\r\n'.encode() + more + b'\r\n'


def test_refused_before_the_body_is_sent(server):
    assert b' 413 ' in talk(server.url, head(10**12)).split(b'\r\n')[0]
    assert talk(server.url, head(-5)).split(b'\r\n')[0].split()[1] in (b'400', b'413')


def test_slow_bodies(made):
    with threaded(make_app(made['dets'], Limits(patience=.3, in_flight=4))) as url:
        with ends_within(60), ThreadPoolExecutor(4) as pool:                 # four of them hold all places, for a moment
            got = list(pool.map(lambda _: talk(url, head(100), b'{"text"'), range(4)))
        assert all(b' 408 ' in g.split(b'\r\n')[0] and b'within 0.3 seconds' in g for g in got)
        assert httpx.post(f'{url}/detect', json=dict(text='x')).status_code == 200


# ---------------------------------------------------------------- too much at once, too long, gone away
class Slow:
    "A detector that waits for a word between texts"
    key, meta, config, p_kind, reading = 'slow', {}, DEWConfig(), 'analytic', 'auto'
    def __init__(self, det): self.det, self.go, self.seen = det, threading.Event(), 0
    def detect_iter(self, texts):
        for t in texts:
            self.seen += 1
            self.go.wait(20)
            yield self.det.detect(t)


def test_too_many_at_once(made):
    slow = Slow(made['dets']['mill'])
    ask = lambda url: httpx.post(f'{url}/detect', json=dict(text='x'), timeout=60)
    app = make_app(dict(slow=slow), Limits(in_flight=3, threads=2))
    with threaded(app) as url, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, url) for _ in range(3)]
        wait_until(lambda: app.n == 3 and slow.seen == 2)
        r = ask(url)
        assert r.status_code == 429
        assert r.headers['retry-after'] == '1' and '3 questions are in flight' in r.json()['detail']
        assert slow.seen == 2                               # two threads, and the third waits
        slow.go.set()
        assert {w.result().status_code for w in waiting} == {200}
        assert ask(url).status_code == 200


def test_an_answer_in_time_or_none(made):
    slow, app = Slow(made['dets']['mill']), None
    app = make_app(dict(slow=slow), Limits(seconds=.2, in_flight=2))
    with threaded(app) as url:
        r = httpx.post(f'{url}/detect', json=dict(texts=['x']*50))
        assert r.status_code == 503 and 'fewer or shorter texts' in r.json()['detail']
        wait_until(lambda: app.n == 1)                      # its thread still holds a place
        slow.go.set()
        wait_until(lambda: app.n == 0)
        assert slow.seen < 50                               # and stops early


class Watched:
    "A detector that counts the texts it was given and the results it has"
    def __init__(self, det): self.det, self.begun, self.done = det, 0, 0
    def __getattr__(self, name): return getattr(self.det, name)
    def _each(self, found):
        self.begun += 1
        for r in found:
            self.done += 1
            yield r
    def detect_iter(self, texts): return self._each(self.det.detect_iter(texts))
    def scan_iter(self, texts, alpha): return self._each(self.det.scan_iter(texts, alpha))


@pytest.mark.parametrize('path', ['/detect', '/scan'])
@pytest.mark.parametrize('name', ['zero width', 'nests', 'numbers'])
def test_work_ends_inside_a_text(made, path, name):
    "One text that would take much longer than the limit: its thread is free again without a result, and the next question is answered"
    text = dict(zip(('zero width', 'nests', 'numbers'), ('a\u200b '*200_000, '*a '*60_000 + ' c*'*60_000, ' '.join(map(str, range(80_000))))))[name]
    det = Watched(made['dets']['mill'])
    app = make_app(dict(mill=det), Limits(seconds=.2, threads=1))
    with threaded(app) as url:
        r = httpx.post(f'{url}{path}', json=dict(text=text), timeout=60)
        assert r.status_code == 503 and 'shorter texts' in r.json()['detail']
        wait_until(lambda: app.n == 0)
        assert (det.begun, det.done) == (1, 0)
        r = httpx.post(f'{url}{path}', json=dict(text='x'), timeout=60)
        assert r.status_code in (200, 503) and det.begun == 2                   # the one thread is there


def test_what_waited_too_long_is_not_begun(made):
    "A question that waited for a thread until its time was over costs nothing then"
    slow = Slow(made['dets']['mill'])
    app = make_app(dict(slow=slow), Limits(seconds=.3, threads=1))
    with threaded(app) as url, ThreadPoolExecutor(4) as pool:
        got = [pool.submit(httpx.post, f'{url}/detect', json=dict(text='x'), timeout=60) for _ in range(4)]
        assert {g.result().status_code for g in got} == {503}
        slow.go.set()
        wait_until(lambda: app.n == 0)
        assert slow.seen == 1


def test_a_client_that_goes_away(made):
    slow = Slow(made['dets']['mill'])
    app = make_app(dict(slow=slow), Limits())
    body = b'{"texts": [' + b', '.join([b'"x"']*200) + b']}'
    with threaded(app) as url:
        talk(url, head(len(body), close=False), body, pause=.2, read=False)
        wait_until(lambda: slow.seen == 1)
        time.sleep(.3)
        slow.go.set()
        wait_until(lambda: app.n == 0)
        assert slow.seen < 200
        talk(url, head(len(body)), body[:40], read=False)   # gone in the middle of the question
        wait_until(lambda: app.n == 0)
        assert httpx.post(f'{url}/detect', json=dict(text='x')).status_code == 200


def test_nothing_of_a_question_stays(made):
    "After an answer, or an error, nothing holds the question any more, without Python's search for cycles too"
    text = made['texts'][1]
    app = make_app(made['dets'], Limits(answer=5000), hosts=None)
    held = Question(text='x')
    assert any(o is held for o in gc.get_objects())                             # what is held is seen
    del held
    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url='http://localhost') as client:
            for path,q,status in (('/detect', dict(text=text), 200), ('/detect', dict(texts=[text]*3, tokens=True), 413), ('/detect', dict(text=text, evil=1), 422), ('/report', dict(text=text), 413)):
                gc.collect()
                gc.disable()
                assert (await client.post(path, content=json.dumps(q), headers={'Content-Type': 'application/json'})).status_code == status
                await asyncio.sleep(.1)
                found = [type(o).__name__ for o in gc.get_objects() if type(o) in (Question, ReportQuestion)]
                gc.enable()
                assert not found, (path, found)
    try: asyncio.run(ask())
    finally: gc.enable()


def test_memory_is_given_back(made, monkeypatch):
    "Soon after large questions, once for all of them; not after small ones"
    given = []
    monkeypatch.setattr(service, 'give_back', lambda: given.append(time.monotonic()))
    monkeypatch.setattr(service, 'SOON', .3)
    with threaded(make_app(made['dets'], Limits())) as url:
        assert httpx.post(f'{url}/detect', json=dict(text='x')).status_code == 200
        time.sleep(.5)
        assert not given
        large, kind = b'{"text": "x"' + b' '*300_000 + b'}', {'Content-Type': 'application/json'}
        with ThreadPoolExecutor(4) as pool: assert [r.status_code for r in pool.map(lambda _: httpx.post(f'{url}/detect', content=large, headers=kind, timeout=60), range(4))] == [200]*4
        wait_until(lambda: given)
        assert len(given) < 4
    service.give_back()


def test_a_detector_that_fails_says_no_text(made, caplog):
    class Broken(Slow):
        def detect_iter(self, texts): raise RuntimeError(f'could not read {texts[0]}')
    with threaded(make_app(dict(b=Broken(None)))) as url:
        r = httpx.post(f'{url}/detect', json=dict(text=SECRET))
        assert r.status_code == 500 and 'RuntimeError' in r.json()['detail'] and SECRET not in r.text
        assert httpx.get(f'{url}/health').status_code == 200
    assert 'RuntimeError while judging' in caplog.text and SECRET not in caplog.text


LIVE = {'Content-Type': 'application/octet-stream'}


def test_a_text_that_arrives(server, made):
    "Events come while the text is still being sent, in portions that cut characters, with the headers of all answers"
    text = made['texts'][0] + ' – é'
    data, address = text.encode(), server.url.removeprefix('http://').split(':')
    cut = len(data)//2
    with socket.create_connection((address[0], int(address[1])), timeout=60) as s:
        def portion(b): s.sendall(f'{len(b):x}\r\n'.encode() + b + b'\r\n')
        def until(what, got=b''):
            while what not in got:
                more = s.recv(65536)
                assert more, got
                got += more
            return got
        auth = ''.join(f'{k}: {v}\r\n' for k,v in (LIVE | AUTH).items())
        s.sendall(f'POST /stream?detector=harbour HTTP/1.1\r\nHost: {address[0]}\r\nTransfer-Encoding: chunked\r\n{auth}\r\n'.encode())
        portion(data[:cut])
        first = until(b'event: running')
        assert b"default-src 'none'" in first and b'text/event-stream' in first and b'event: end' not in first
        for b in (data[cut:-3], data[-3:-1], data[-1:]): portion(b)                # the last character comes in halves
        s.sendall(b'0\r\n\r\n')
        body = until(b'event: end')
        body = until(b'\n\n', body[body.index(b'event: end'):])
    last = json.loads(re.search(rb'data: (.*)', body)[1])
    assert last['characters'] == len(text) and last['verdict']['z'] == pytest.approx(made['dets']['harbour'].detect(text).z, abs=1e-4)


def ask_stream(app, data, ask='?detector=harbour', **headers):
    "Status and events of a stream, or what is said of a mistake"
    async def go():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url='http://localhost') as c:
            return await c.post(f'/stream{ask}', content=data, headers=LIVE | headers)
    r = asyncio.run(go())
    return r.status_code, read_events(r.text) if r.status_code == 200 else r.json()['detail']


def test_limits_of_a_stream(made):
    "Size, time, a sender who falls silent, what is no text, a detector that fails: an event says it, and no place is lost"
    app = make_app(made['dets'], Limits(body=3000, seconds=20, patience=.3))
    async def portions(*parts):
        for p in parts:
            if isinstance(p, float): await asyncio.sleep(p)
            else: yield p
    assert ask_stream(app, b'x'*4000)[0] == 413                                                    # by its length, before anything is read
    code, events = ask_stream(app, portions(b'a word '*100, b'a word '*400))
    assert code == 200 and events[-1][0] == 'error' and events[-1][1]['status'] == 413 and events[0][0] == 'running'
    for data,status in ((portions(b'ok ', b'\xff\xfe'), 422), (b'\xc3', 422), (portions(b'ok ', 3., b'late'), 408)):
        name, said = ask_stream(app, data)[1][-1]
        assert (name, said['status']) == ('error', status)
    assert ask_stream(app, b'')[1][-1][1]['verdict']['n_scored'] == 0
    assert ask_stream(app, b'x', ask='')[0] == 422 and ask_stream(app, b'x', ask='?detector=who')[0] == 422
    assert ask_stream(app, b'x', **{'Content-Type': 'text/plain'})[0] == 415
    guarded = make_app(made['dets'], token=TOKEN)
    assert ask_stream(guarded, b'x')[0] == 401 and ask_stream(guarded, b'x', **AUTH)[0] == 200
    assert app.n == guarded.n == 0


def test_a_sender_who_goes_away(made):
    "In the middle of a stream: its place is given back"
    app = make_app(made['dets'])
    with threaded(app) as url:
        address = url.removeprefix('http://').split(':')
        with socket.create_connection((address[0], int(address[1])), timeout=60) as s:
            s.sendall(f'POST /stream?detector=harbour HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: {LIVE["Content-Type"]}\r\n\r\n5\r\nhello\r\n'.encode())
            wait_until(lambda: app.n == 1)
        wait_until(lambda: app.n == 0)
        assert httpx.get(f'{url}/health').status_code == 200


def test_a_stream_has_its_time(made, caplog):
    app = make_app(made['dets'], Limits(seconds=.001))
    name, said = ask_stream(app, made['texts'][0].encode())[1][-1]
    assert (name, said['status']) == ('error', 503)
    class Broken(Slow):
        def stream(self): raise RuntimeError(SECRET)
    name, said = ask_stream(make_app(dict(harbour=Broken(None))), SECRET.encode())[1][-1]
    assert (name, said['status']) == ('error', 500) and 'RuntimeError' in said['detail'] and SECRET not in said['detail'] + caplog.text


# ---------------------------------------------------------------- with the host
def test_reading_with_the_host(made):
    "The e-value of the library, the ordinary verdict beside it; what a question may not say"
    host, det, text = toy_host(), made['dets']['harbour'], made['texts'][0]
    app = make_app(made['dets'], Limits(read_tokens=120), read_host=host)
    with threaded(app) as url:
        ask = lambda **q: httpx.post(f'{url}/read', json=dict(detector='harbour') | q, timeout=60)
        for q in (dict(prompt='The old harbour', temperature=.9), dict(), dict(prompt=[dict(role='user', content='Hello')], top_p=.95), dict(guesses=1, temperature=.9)):
            got = ask(text=text, **q).json()['results'][0]
            want, read = det.with_host(host, **q).detect(text), got['host_reading']
            assert read['log_e'] == pytest.approx(want.log_e, abs=.02) and read['p_value'] == pytest.approx(want.p_value, rel=.05)
            assert read['log_e_both'] == pytest.approx(want.log_e_both, abs=.02) and read['marked'] and read['name'] == host.name
            same(got, det.detect(text))
        none = ask(text='one two').json()['results'][0]
        assert none['verdict'] == 'too short to say' and none['host_reading']['p_value'] == 1 and not none['host_reading']['marked']
        for q,status,why in ((dict(text=text, detector=None), 422, 'name it, one of'), (dict(text=text, detector='who'), 422, 'no detector of this name'),
                (dict(text=text*9), 413, 'the host reads 120'), (dict(text=text, prompt=f'{SECRET} '*60), 413, 'the host reads 120'), (dict(text=text, temperature=0), 422, 'temperature'),
                (dict(text=text, prompt=[]), 422, 'cannot take this prompt'), (dict(text=text, guesses=5), 422, 'guesses'), (dict(text=text, prompt=SECRET, guesses=1), 422, 'whose prompt is not known'),
                (dict(text=text, prompt=[dict(role='user', content=SECRET, more=1)]), 422, 'prompt'), (dict(texts=[text]), 422, 'text')):
            r = ask(**q)
            assert r.status_code == status and why in r.json()['detail'] and SECRET not in r.text, r.text
        assert httpx.get(f'{url}/health').json()['read_host'] == host.name
    with threaded(make_app(made['dets'])) as url: assert 'start it with --read-host' in httpx.post(f'{url}/read', json=dict(text=text, detector='mill')).json()['detail']
    plain = toy_host()
    plain.tokenizer = copy(plain.tokenizer)
    plain.tokenizer.chat_template = None
    with threaded(make_app(made['dets'], read_host=plain)) as url:
        r = httpx.post(f'{url}/read', json=dict(text=text, detector='mill', guesses=1), timeout=60)
        assert r.status_code == 422 and 'has no chat template' in r.json()['detail']
    other = toy_host()
    other.tokenizer_digest = 'f'*64
    with pytest.raises(ValueError, match='has digest ffff'): make_app(made['dets'], read_host=other)


def test_the_host_reads_one_text_at_a_time(made):
    "Readings wait in a line of their own; other questions are answered meanwhile, and what nobody waits for is not begun"
    host, text, at_work, most = toy_host(), made['texts'][0], [], []
    go = threading.Event()
    def begin(*_):
        at_work.append(1)
        most.append(len(at_work))
        go.wait(20)
    def end(*_): at_work.clear()
    hooks = host.model.register_forward_pre_hook(begin), host.model.register_forward_hook(end)
    app = make_app(made['dets'], Limits(threads=1, seconds=20), read_host=host)
    ask = lambda url, **kw: httpx.post(f'{url}/read', json=dict(text=text, detector='mill'), **kw)
    try:
        with threaded(app) as url, ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(ask, url, timeout=60) for _ in range(3)]
            wait_until(lambda: app.n == 3 and at_work)
            assert httpx.post(f'{url}/detect', json=dict(text=text), timeout=60).status_code == 200
            with pytest.raises(httpx.ReadTimeout): ask(url, timeout=.3)           # gone before its turn
            go.set()
            assert {w.result().status_code for w in waiting} == {200}
            wait_until(lambda: app.n == 0)
            passes = len(most)
            assert max(most) == 1 and passes % 3 == 0
            ask(url, timeout=60)
            assert len(most) == passes//3*4                                       # the one that went away had none
    finally:
        for h in hooks: h.remove()


def test_a_host_that_fails_says_no_text(made, caplog):
    host = toy_host()
    def fail(*_): raise RuntimeError(SECRET)
    hook = host.model.register_forward_pre_hook(fail)
    try:
        with threaded(make_app(made['dets'], read_host=host)) as url:
            r = httpx.post(f'{url}/read', json=dict(text=made['texts'][0], detector='mill'))
            assert r.status_code == 500 and 'RuntimeError' in r.json()['detail'] and SECRET not in r.text + caplog.text
    finally: hook.remove()


def test_a_report_to_keep(server, made):
    "The page and the JSON of a report belong together, and name the detector's file; nothing of a text is cut off"
    text = ' '.join(made['texts'])
    got = server.post('/report', json=dict(text=text, detector='harbour', name='a & b.txt', encoding='utf-8')).json()
    record = json.loads(got['json'])
    assert record['html']['sha256'] == hashlib.sha256(got['html'].encode()).hexdigest() and record['signature'] is None
    assert record['detectors'][0]['file']['sha256'] == hashlib.sha256(Path(made['files'][0]).read_bytes()).hexdigest()
    assert record['texts'][0]['text'] == text and record['texts'][0]['name'] == 'a & b.txt' and 'a &amp; b.txt' in got['html']
    assert 'more tokens' not in got['html'] and 'overflow:auto' not in got['html']
    case = server.post('/report', json=dict(texts=made['texts'][:3], detector='harbour', case='4711', examiner='E. Xaminer')).json()
    record = json.loads(case['json'])
    assert (record['case'], record['examiner']) == ('4711', 'E. Xaminer') and [t['name'] for t in record['texts']] == ['text 1', 'text 2', 'text 3'] and 'E. Xaminer' in case['html']
    for bad in (dict(), dict(text='a', texts=['b']), dict(text='a', case='x'*201)): assert server.post('/report', json=bad).status_code == 422


def test_metrics(server):
    "Counts by path and status, and memory; random paths are one path; nothing of a text"
    assert server.post('/detect', json=dict(text=f'a text with the word {SECRET}')).status_code == 200
    for path in ('/health', '/a', '/b'): server.get(path)
    said = server.get('/metrics').text
    assert 'dew_requests_total{path="/detect",status="200"}' in said and 'dew_request_seconds_bucket' in said and 'process_resident_memory_bytes' in said
    assert 'path="other",status="404"' in said and '/a"' not in said and SECRET not in said
    assert httpx.get(f'{server.url}/metrics').status_code == 401


def test_case_and_examiner_of_a_report(server, made):
    "As with the command; both are only text"
    got = server.post('/report', json=dict(text=made['texts'][1], case='2026/17 <script>', examiner='A. <img src=x>')).json()
    record = json.loads(got['json'])
    assert (record['case'], record['examiner']) == ('2026/17 <script>', 'A. <img src=x>')
    assert '2026/17 &lt;script&gt;' in got['html'] and 'A. &lt;img src=x&gt;' in got['html'] and '<script' not in got['html'] and '<img' not in got['html']
    assert server.post('/report', json=dict(text='x', case='a'*201)).status_code == 422


def test_keys_are_claims(server, made, tmp_path):
    "Page, answers and reports say once that key and scheme are a file's own words, if nobody checked its signature"
    said = server.post('/detect', json=dict(texts=made['texts'][:3]))
    assert said.text.count('own claims') == 1 and said.json()['summary']['claims'] == CLAIMS
    assert server.get('/').text.replace('&#x27;', "'").count(CLAIMS) == 1
    assert json.loads(server.post('/report', json=dict(text=made['texts'][0])).json()['json'])['claims'] == CLAIMS
    with threaded(make_app(made['dets'], files=dict(zip(('harbour', 'mill'), made['files'])), verified=True)) as url:
        assert httpx.post(f'{url}/detect', json=dict(text='x')).json()['summary']['claims'] is None and 'own claims' not in httpx.get(url).text
        assert json.loads(httpx.post(f'{url}/report', json=dict(text='x')).json()['json'])['detectors'][0]['verified'] is True


# ---------------------------------------------------------------- bodies that are not read, answers that are not
def opened(url, *parts, small=False):
    "A socket to the service with these bytes sent; it is left open"
    host, port = url.removeprefix('http://').split(':')
    s = socket.socket()
    if small: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60)
    s.connect((host, int(port)))
    for p in parts: s.sendall(p)
    return s


@pytest.mark.parametrize('path', ['/', '/health', '/docs', '/openapi.json', '/page.js', '/page.css'])
def test_open_pages_hold_no_place(made, path):
    "What needs no token reads no body and counts for nothing: unfinished bodies to it keep nobody out"
    app = make_app(made['dets'], Limits(in_flight=2), token=TOKEN)
    with threaded(app) as url:
        held = [opened(url, f'{verb} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx'.encode()) for verb in ('POST', 'GET')*4]
        answers = [s.recv(65536) for s in held]
        assert all(a.startswith((b'HTTP/1.1 200', b'HTTP/1.1 405')) and b'connection: close' in a.lower() for a in answers), answers
        assert app.n == 0
        r = httpx.post(f'{url}/detect', json=dict(text='x'), headers=AUTH)
        assert r.status_code == 200, r.text
        for s in held: s.close()


def test_no_names_before_the_token(made):
    "Without the token nothing tells which detectors there are; with it, the page has them from /health"
    guarded = make_app(made['dets'], token=TOKEN)
    with threaded(guarded) as url:
        for path in ('/', '/health', '/docs', '/openapi.json', '/page.js', '/metrics', '/detect', '/nowhere'):
            r = httpx.get(f'{url}{path}')
            assert not re.search('harbour|mill', r.text), path
        assert [d['name'] for d in httpx.get(f'{url}/health', headers=AUTH).json()['detectors']] == ['harbour', 'mill']
    with threaded(make_app(made['dets'])) as url: assert 'harbour' in httpx.get(url).text


def test_paths_are_nobodys_business(made, tmp_path):
    "Detectors of one name in two folders, and reports: no answer has a path"
    for d in 'ab':
        (tmp_path/d).mkdir()
        shutil.copy(made['files'][0], tmp_path/d/'x.dew')
    with process('--detector', tmp_path/'a'/'x.dew', '--detector', tmp_path/'b'/'x.dew', DEW_TOKEN=TOKEN) as (p, url, log), httpx.Client(base_url=url, headers=AUTH, timeout=60) as c:
        said = [c.get('/health').text, c.get('/').text, c.post('/detect', json=dict(text='a text')).text, c.post('/report', json=dict(text='a text')).text,
                c.post('/scan', json=dict(text='a text')).text, c.post('/detect', json=dict(text='x', detector='who')).text]
        assert '"x-1"' in said[0] and '"x-2"' in said[0] and 'x.dew' in said[3]
        assert not any(str(tmp_path) in t or 'a/x' in t for t in said)


def test_answers_have_a_size(made):
    "An answer that would be much larger than its question is refused with the limit, before it is made"
    text, few = ' '.join(made['texts']), made['texts'][:20]
    with threaded(make_app(dict(mill=made['dets']['mill']), Limits(answer=15_000))) as url:
        ask = lambda path, **kw: httpx.post(f'{url}{path}', json=kw, timeout=60)
        assert ask('/detect', text=text).status_code == ask('/detect', texts=few[:5]).status_code == 200
        for path,kw in (('/detect', dict(text=text, tokens=True)), ('/detect', dict(texts=few, html=True)), ('/detect', dict(texts=made['texts']*5)), ('/report', dict(text=text)), ('/report', dict(texts=few)),
                        ('/report', dict(texts=few[:6], scan=True)), ('/scan', dict(texts=few, html=True))):
            r = ask(path, **kw)
            assert r.status_code == 413 and '15,000 bytes' in r.json()['detail'], (path, kw, r.status_code, len(r.content))


@pytest.mark.parametrize('path', ['/stream?detector=harbour', '/detect', '/report'])
def test_a_reader_who_falls_asleep(made, path):
    "Nothing is read of an answer: after the seconds of patience the place is free, and the connection is gone"
    class Quick(Slow):
        def stream(self): return SimpleNamespace(feed=lambda piece: None, close=lambda: None, to_dict=lambda alpha: dict(said='x'*1000))
    app = make_app(dict(harbour=Quick(None)) if 'stream' in path else made['dets'], Limits(patience=.5, seconds=30))
    text = ' '.join(made['texts'][:-1])
    body = (text.encode()*500 if 'stream' in path else json.dumps(dict(texts=[text]*20, tokens=True, detector='harbour')).encode() if path == '/detect' else
            json.dumps(dict(text=text*10, detector='harbour')).encode())
    kind = LIVE['Content-Type'] if 'stream' in path else 'application/json'
    with threaded(app, small=True) as url:
        s = opened(url, f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n'.encode(), small=True)
        with ThreadPoolExecutor(1) as pool:
            def send():
                with suppress(OSError): s.sendall(body)
            sent = pool.submit(send)
            wait_until(lambda: app.n == 1)
            wait_until(lambda: app.n == 0, seconds=25)
            assert 'dew_requests_total{path="%s",status="499"} 1.0' % path.partition('?')[0] in httpx.get(f'{url}/metrics').text
            s.close()
            sent.result()
        assert httpx.get(f'{url}/health').json()['in_flight'] == 0


def test_events_are_thinned(made):
    "A text in thousands of portions has some events, not thousands, and the last one has all of it"
    app = make_app(made['dets'])
    async def portions():
        for c in 'The old harbour lies still. '*40: yield c.encode()
    code, events = ask_stream(app, portions())
    assert code == 200 and events[-1][0] == 'end' and events[-1][1]['characters'] == 28*40 and 1 <= len(events) < 300


def test_idle_connections_are_closed(made):
    "Who sends nothing, half a head, or a body to a page that reads none, is let go; the service ends at once in spite of them"
    with process('--patience', '1', '--detector', made['files'][0]) as (p, url, log):
        idle = [opened(url), opened(url, b'POST /detect HTTP/1.1\r\nHost:'), opened(url, b'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx')]
        with ends_within(60):
            for s in idle:
                while s.recv(65536): pass
        more = [opened(url) for _ in range(5)]
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 0
        for s in more: s.close()


def test_a_reader_who_sleeps_does_not_hold_up_the_end(made):
    "A signal while somebody does not read an answer: the process ends after the seconds of patience"
    text = ' '.join(made['texts'][:-1])
    body = json.dumps(dict(texts=[text]*30, tokens=True, html=True)).encode()
    with process('--patience', '1', '--detector', made['files'][0]) as (p, url, log):
        s = opened(url, f'POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n'.encode(), body, small=True)
        time.sleep(.2)
        p.send_signal(signal.SIGTERM)
        assert p.wait(30) == 0
        s.close()


def test_too_many_connections(made):
    with process('--connections', '8', '--detector', made['files'][0]) as (p, url, log):
        held = [opened(url) for _ in range(8)]
        assert httpx.get(f'{url}/health').status_code == 503
        for s in held: s.close()
        wait_until(lambda: httpx.get(f'{url}/health').status_code == 200)


# ---------------------------------------------------------------- reports are checked
def other(x):
    "A value of the same kind that is another one"
    if x is None: return 'x'
    if isinstance(x, bool): return not x
    if isinstance(x, (int, float)): return x + 1 if isinstance(x, int) else .9*x + .2
    if isinstance(x, str): return x + 'x'
    if isinstance(x, list): return x[:-1] or ['x']
    return {**x, 'x': 'x'}


def changes(x, at=()):
    "(place, another value) for every field of a report, the first and the last of a long list; the value itself, and what is in it"
    if at: yield at, other(x)
    keys = list(x) if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ()
    for k in [*keys][:3] + [*keys][-1:] if isinstance(x, list) and len(x) > 4 else keys: yield from changes(x[k], (*at, k))


def change(x, at, value):
    "The same value with another one in a place"
    if not at: return value
    new = dict(x) if isinstance(x, dict) else list(x)
    new[at[0]] = change(x[at[0]], at[1:], value)
    return new


def without(x, at):
    "The same value without what is in a place"
    if len(at) > 1: return change(x, at[:1], without(x[at[0]], at[1:]))
    return {k: v for k,v in x.items() if k != at[0]} if isinstance(x, dict) else x[:at[0]] + x[at[0]+1:]


def checks(data, page, det, path, files=()):
    "What `dew_report verify --again` checks, one after the other, with a detector that is loaded once"
    try: record = read_report(data)
    except ValueError as e: return (yield Check(False, str(e)))
    yield check_page(record, page)
    yield check_words(record)
    yield from (check_file(record, f, read_again) for f in files)
    if len(record['detectors']) != 1: return (yield Check(False, 'another number of detectors'))
    found = judge_again(record, {record['detectors'][0]['name']: det})
    yield from check_again(record, found)
    yield check_page_again(record, page, found)
    yield check_facts(record, dict(one=det), [path])


def refuses_every_change(folder, path, files=()):
    "A report is accepted, and refused after any one field was changed or taken away; how many changes there were"
    record, det, n = json.loads((folder/'case.json').read_text()), Detector.load(path), 0
    assert all(c.ok is not False for c in checks(folder/'case.json', folder/'case.html', det, path, files))
    for at,value in changes(record):
        for new in (change(record, at, value), without(record, at)):
            (folder/'other.json').write_text(json.dumps(new))
            assert any(c.ok is False for c in checks(folder/'other.json', folder/'case.html', det, path, files)), (at, value)
            n += 1
    return n


@pytest.fixture(scope='module')
def one(tmp_path_factory):
    "A detector whose file is read in no time, and a text that it marks"
    d = tmp_path_factory.mktemp('one')
    wm = DEW.build(toy_host(), Letters(), SecretKey(b'an example key: never use this one'), DEWConfig(**CONFIG), progress=False)
    return SimpleNamespace(det=wm.detector().save(d/'one.dew'), text=wm.generate('The old harbour', max_new_tokens=30, seed=1, temperature=.9).strip())


@pytest.mark.parametrize('scan', [False, True])
def test_a_report_of_the_service_is_checked(one, tmp_path, scan):
    "What POST /report made is accepted, and refused after any change"
    det = Detector.load(one.det)
    with threaded(make_app(dict(one=det), files=dict(one=one.det), case='17', examiner='E.')) as url:
        got = httpx.post(f'{url}/report', json=dict(texts=[one.text, 'The mill.'], name='essay', encoding='utf-8', scan=scan), timeout=60).json()
    for name in ('html', 'json'): (tmp_path/f'case.{name}').write_text(got[name])
    ask = lambda name: call_command(dew_report, 'verify', str(tmp_path/name), '--html', str(tmp_path/'case.html'), '--again', '--detector', str(one.det))
    code, out, err = ask('case.json')
    assert code == 0 and out.count('good:') == 5 and 'WRONG' not in out, out + err
    assert refuses_every_change(tmp_path, one.det) > 200
    (tmp_path/'other.json').write_text((tmp_path/'case.json').read_text().replace('"case": "17"', '"case": "18"'))
    assert ask('other.json')[0] == 1


@pytest.mark.parametrize('many', [[], ['--many', 'holm']])
def test_a_report_of_a_folder_is_checked(one, tmp_path, many, monkeypatch):
    "Texts of a folder, a table and a page, one of them unreadable: all files are named, and every change is refused"
    monkeypatch.chdir(tmp_path)
    (tmp_path/'in').mkdir()
    for name,b in {'a.txt': one.text.encode(), 'b.html': f'<p>{one.text}<p hidden>no'.encode(), 'c.txt': 'Das alte Schloß'.encode('cp1252'), 'd.odt': b'PK'}.items(): (tmp_path/'in'/name).write_bytes(b)
    code, out, err = call_command(dew_detect, 'in', '--detector', str(one.det), '--report', 'case.html', '--quiet', *many)
    record = json.loads(Path('case.json').read_text())
    assert [f['name'] for f in record['files']] == [f'in/{n}' for n in ('a.txt', 'b.html', 'c.txt', 'd.odt')] and record['texts'][3]['verdict'] == 'error', err
    files = [f['name'] for f in record['files']]
    code, out, err = call_command(dew_report, 'verify', 'case.json', '--again', '--detector', str(one.det), *(x for f in files for x in ('--file', f)))
    assert code == 0 and out.count('good: file') == 4 and 'WRONG' not in out, out + err
    assert refuses_every_change(tmp_path, one.det, files) > 300


def test_files_of_a_report_are_read_again(one, tmp_path, monkeypatch):
    "As they were read, under whatever name; nobody's file goes for another's"
    monkeypatch.chdir(tmp_path)
    Path('a.jsonl').write_text('{"t": "one"}\n' + json.dumps(dict(t=one.text)) + '\n{"u": 1}\n')
    Path('b.csv').write_text(f'who,answer\nAnna,"{one.text}"\nBert,No\n')
    Path('c.txt').write_bytes('Das alte Schloß am Hafen\r\n'.encode('latin-1'))
    for name,more in (('a.jsonl', ['--jsonl', 't']), ('b.csv', ['--column', 'answer', '--id-column', 'who']), ('c.txt', ['--encoding', 'latin-1'])):
        code, out, err = call_command(dew_detect, name, '--detector', str(one.det), '--report', f'{name[0]}.html', '--quiet', *more)
        shutil.copy(name, 'copy')
        verify = lambda data, f: call_command(dew_report, 'verify', data, '--html', f'{name[0]}.html', '--file', f)
        code, out, err = verify(f'{name[0]}.json', 'copy')
        assert code == 0 and 'good: file copy' in out and 'read again' in out, out + err
        Path('victim').write_bytes(Path(name).read_bytes().replace(b'a', b'o'))
        record, entry = json.loads(Path(f'{name[0]}.json').read_text()), file_entry('victim')
        for files in ([record['files'][0] | entry | dict(name=name)], [*record['files'], record['files'][0] | entry]):
            Path('other.json').write_text(json.dumps(record | dict(files=files)))
            code, out, err = verify('other.json', 'victim')
            assert code == 1 and 'WRONG: file victim' in out, out + err


# ---------------------------------------------------------------- a browser
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium found')
def test_page_in_a_browser(server, made, tmp_path):
    "Paste, ask, see; drop a file; scan; a mistake; nothing is loaded from elsewhere"
    b, shots = Browser(), Path(os.environ.get('DEW_SHOTS') or tmp_path)
    try:
        b.look(1100)
        b.open(f'{server.url}/')
        type_in = lambda t: b.js(f'document.getElementById("text").value = {t!r}; document.getElementById("answer").replaceChildren()')
        press = lambda name: (b.js(f'document.getElementById("{name}").click()'), b.wait('document.querySelector("#answer *") !== null'))
        shown = lambda s: b.js(f'document.querySelector("#answer {s}")?.textContent')
        type_in(made['texts'][0])
        press('detect')
        assert 'Authorization: Bearer' in shown('[role=alert]')
        b.js(f'document.getElementById("token").value = "{TOKEN}"')
        type_in(made['texts'][0])
        press('detect')
        assert shown('h2') == 'marked by harbour' and 'without the mark scores this high' in shown('.card')
        assert b.js('document.querySelectorAll("#answer .text span[title]").length') > 35
        assert b.js('document.querySelector("#answer svg polyline") !== null')
        for name,width,dark in (('wide', 1100, False), ('wide-dark', 1100, True), ('phone', 390, False), ('phone-dark', 390, True)):
            b.look(width, dark=dark)
            assert b.js('document.documentElement.scrollWidth <= innerWidth'), f'the page scrolls sideways: {name}'
            b.screenshot(shots/f'{name}.png')
        b.look(1100)
        path = tmp_path/'essay.txt'
        path.write_text('<img src=x onerror="document.title=1"> ' + made['texts'][1] + '\n', encoding='utf-16')
        b.choose_file('#file', path)
        b.wait('document.getElementById("text").value.startsWith("<img")')
        assert not b.js('document.getElementById("text").value.endsWith("\\n")')
        assert b.js('document.getElementById("read").textContent') == 'essay.txt, read as UTF-16LE'
        assert b.js('document.getElementById("save").hidden')
        press('detect')
        assert shown('h2').startswith(('not marked', 'too short')) and '<img' in shown('.text')
        assert b.js('document.querySelector("#answer img") === null && document.title == "Is this text marked?"')
        path.write_bytes(b'PK\x03\x04\x00\x00\xff')
        b.choose_file('#file', path)
        b.wait('document.querySelector("#answer [role=alert]") !== null')
        assert 'not plain text' in shown('[role=alert]')
        type_in('one two')
        press('scan')
        assert 'name one of' in shown('[role=alert]')
        b.js('document.getElementById("detector").value = "harbour"')
        type_in(' '.join(made['texts'][1:8]) + ' ' + made['texts'][0])
        press('scan')
        assert b.js('document.querySelector("#answer .dew-scan") !== null')
        b.screenshot(shots/'scan.png')
        b.js('document.getElementById("report").click()')
        b.wait('document.querySelectorAll("#files a").length == 2')
        assert b.js('[...document.querySelectorAll("#files a")].map(a => a.download + a.href.slice(0, 5)).join()') == 'case.htmlblob:,case.jsonblob:'
        b.screenshot(shots/'report.png')
        b.js('document.getElementById("text").dispatchEvent(new Event("input"))')
        assert b.js('document.getElementById("read").textContent') == ''
        b.open(f'{server.url}/docs')
        assert b.js('document.body.textContent.includes("POST /detect")')
        b.screenshot(shots/'docs.png')
        asked = [e['params']['request']['url'] for e in b.events if e.get('method') == 'Network.requestWillBeSent']
        assert len(asked) > 5 and all(u.startswith((server.url, 'data:', 'about:')) for u in asked), asked
        bad = [e['params']['entry']['text'] for e in b.events if e.get('method') == 'Log.entryAdded' and not re.search('422|401', e['params']['entry']['text'])]
        assert not bad and not [e for e in b.events if e.get('method') == 'Runtime.exceptionThrown'], bad
    finally: b.close()


# ---------------------------------------------------------------- the end of the process
def test_token(server):
    for headers in ({}, {'Authorization': f'Bearer {TOKEN}x'}, {'Authorization': TOKEN}, {'Authorization': 'Bearer \xe9'.encode('latin-1')}):
        r = httpx.post(f'{server.url}/detect', json=dict(text='x'), headers=headers)
        assert r.status_code == 401 and r.headers['www-authenticate'] == 'Bearer'
    assert 'detectors' in server.get('/health').json() and 'detectors' not in httpx.get(f'{server.url}/health').json()


def test_a_signal_ends_it(server, made):
    "TERM: what is in flight is answered, the exit code is 0, the port is free at once, and the log has nothing of the texts"
    many = dict(texts=made['texts']*8)
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(lambda: server.post('/detect', json=many))
        wait_until(lambda: httpx.get(f'{server.url}/health').json()['in_flight'] == 1)
        server.process.send_signal(signal.SIGTERM)
        assert last.result().status_code == 200 and len(last.result().json()['results']) == len(many['texts'])
    assert server.process.wait(20) == 0
    socket.create_server(('127.0.0.1', int(server.url.rpartition(':')[2]))).close()
    said = server.log.read_text()
    assert said.count('\n') == 1 and said.startswith('serving harbour, mill on http://127.0.0.1:'), said
