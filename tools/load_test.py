"""The detection service under load and faults: many questions at once, hostile ones, clients that go away, and a signal in the middle of it.

    python tools/load_test.py [--requests 10000] [--at-once 64] [--hostile 200] [--save nbs/studies/data/load.json]

Builds a detector for the embedded host, starts `dew_serve` on the loopback address, and asks: short questions, many at once; clients that go away,
that send slowly, that do not read their answer; hostile bodies; bodies as large as the service takes, alone and in rounds, of which a later one must need no more
memory than the first; a service that is killed and started again; a signal while questions are in flight. Good questions go on through all of it.
Fails if a question is lost, an answer is wrong, the service ends or its memory grows. `--save` keeps what was measured, with the machine.
`--full 0` leaves out the large bodies, which take most of the time."""
import argparse, asyncio, json, os, platform, random, re, signal, socket, statistics, subprocess, sys, tempfile, time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import httpx
from dew_nb import DEW, SecretKey, load_encoder, load_host
from dew_nb.mark.sources import reference_texts

TOKEN = 'a-token-of-some-length'
AUTH = {'Authorization': f'Bearer {TOKEN}', 'Content-Type': 'application/json'}
GROWTH = 600e6                                          # bytes that the service may need beyond what it has after the first questions
ROUND = 150e6                                           # bytes by which later rounds of the largest bodies may be above the first
PATIENCE = 5                                            # seconds that the service waits for a body, or for a reader

def start(folder:Path, *more) -> tuple:
    "The service as a process, and its address"
    log, code = folder/'log.txt', 'import sys; from dew_nb.shell.serve import dew_serve; sys.exit(dew_serve())'
    with log.open('wb') as f: p = subprocess.Popen([sys.executable, '-c', code, '--port', '0', '--detector', str(folder/'harbour.dew'), '--in-flight', '128', '--patience', str(PATIENCE), *more],
                                                   env=os.environ | dict(DEW_TOKEN=TOKEN, OMP_NUM_THREADS='1'), stdout=f, stderr=f)
    end = time.time() + 180
    while not (found := re.search(r'http://\S+', log.read_text())):
        if p.poll() is not None or time.time() > end: raise RuntimeError(f'the service did not start: {log.read_text()}')
        time.sleep(.1)
    return p, found[0]

def metric(url:str, name:str) -> float:
    "What the process says of itself"
    return float(re.search(rf'^{name} (\S+)', httpx.get(f'{url}/metrics', headers=AUTH, timeout=60).text, re.M)[1])

def memory(url:str) -> float: return metric(url, 'process_resident_memory_bytes')

# ---------------------------------------------------------------- bodies nobody should send
def hostile(rng) -> dict:
    "A request that should be refused or answered, and must not hurt"
    say = lambda x: json.dumps(x).encode()
    kinds = dict(not_json=b'{', not_utf8=b'{"text": "\xff\xfe"}', deep=b'['*100_000, deep_object=b'{"a":'*50_000, number=say(dict(text=7)), null=say(dict(text=None)), both=say(dict(text='a', texts=['b'])),
        unknown=say(dict(text='a', evil=1)), nan=b'{"text": "a", "alpha": NaN}', infinite=b'{"text": "a", "alpha": 1e999}', negative=say(dict(text='a', alpha=-1)), many=say(dict(texts=['a']*1001)),
        nul=say(dict(text='a\0b'*500)), surrogate=b'{"text": "\\ud800 half of an emoji"}', one_word=say(dict(text='a'*50_000)), marks=say(dict(text='e' + '\u0301'*20_000)),
        invisible=say(dict(text='\u200b'*20_000)), html=say(dict(text='<script>alert(1)</script>'*50, html=True)), bidi=say(dict(text='\u202e' + 'abc '*500)), backslashes=say(dict(text='\\'*30_000)),
        too_big=b'{"text": "' + b'x'*4_100_000 + b'"}', empty=b'', array=b'[]', string=b'"text"', big_number=b'{"text": "a", "alpha": ' + b'9'*5000 + b'}', keys=say({f'k{i}': i for i in range(5000)}))
    name = rng.choice(sorted(kinds))
    return dict(name=name, content=kinds[name], path=rng.choice(['/detect', '/scan', '/report']), headers=AUTH if rng.random() < .9 else {})

def request(url, body, path='/detect', length=None):
    "A request as bytes"
    host = url.removeprefix('http://')
    return f'POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {length or len(body)}\r\n\r\n'.encode() + body

async def connection(url):
    host, _, port = url.removeprefix('http://').partition(':')
    return await asyncio.open_connection(host, int(port), limit=1000)

async def let_go(writer, begin, most=120):
    "Seconds until the service has closed a connection; None: it has not"
    while time.perf_counter() - begin < most:
        try:
            writer.write(b'x')
            await writer.drain()
        except OSError: return time.perf_counter() - begin
        await asyncio.sleep(.5)

async def send_slowly(url):
    "A client that sends a byte a second of a body that would be 1,000: what it is told, and after how many seconds"
    reader, writer = await connection(url)
    begin = time.perf_counter()
    writer.write(request(url, b'{"text": "', length=1000))
    async def drip():
        while True:
            writer.write(b'a')
            await writer.drain()
            await asyncio.sleep(1)
    job = asyncio.create_task(drip())
    try: line = await asyncio.wait_for(reader.readline(), 60)
    finally: job.cancel()
    writer.transport.abort()
    return line.split()[1].decode() if line else 'closed', time.perf_counter() - begin

async def read_nothing(url, text):
    "A client that asks for the score of every token and does not read the answer: seconds until the service has let go"
    reader, writer = await connection(url)
    writer.transport.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.transport.pause_reading()
    writer.write(request(url, json.dumps(dict(text=text, tokens=True)).encode()))
    await writer.drain()
    try: return await let_go(writer, time.perf_counter())
    finally: writer.transport.abort()

async def leave_early(url, body):
    "A client that goes away in the middle of its question, or before its answer"
    _, writer = await connection(url)
    writer.write(request(url, body[:random.choice([0, len(body)//2, len(body)])], length=len(body)))
    await writer.drain()
    await asyncio.sleep(.02)
    writer.transport.abort()

# ---------------------------------------------------------------- phases
async def load(client, texts, n, at_once, wrong_share, seed=0):
    "Questions, of which a share is hostile; statuses, seconds of good ones, what went wrong"
    rng, gate, statuses, seconds, wrong, bad = random.Random(seed), asyncio.Semaphore(at_once), Counter(), [], [], Counter()
    async def good(i):
        begin = time.perf_counter()
        r = await client.post('/detect', json=dict(text=texts[i % len(texts)]), headers=AUTH)
        seconds.append(time.perf_counter() - begin)
        statuses[r.status_code] += 1
        if r.status_code != 200 or r.json()['results'][0]['marked'] != (i % len(texts) == 0): wrong.append(f'question {i}: {r.status_code}')
    async def evil():
        h = hostile(rng)
        try: r = await client.post(h['path'], content=h['content'], headers=h['headers'])
        except httpx.TransportError: bad['connection closed'] += 1; return
        bad[r.status_code] += 1
        if r.status_code >= 500: wrong.append(f'{h["name"]} at {h["path"]}: {r.status_code} {r.text[:200]}')
    async def one(i):
        async with gate: await (evil() if i in hurt else good(i))
    hurt = set(rng.sample(range(n), int(n*wrong_share)))
    await asyncio.gather(*(one(i) for i in range(n)))
    return statuses, seconds, wrong, bad

async def stopped(client, url, process, texts, n=32):
    "A signal while n questions are in flight: how many were answered"
    jobs = [asyncio.create_task(client.post('/detect', json=dict(texts=texts*10), headers=AUTH)) for _ in range(n)]
    for _ in range(2000):
        waiting = (await client.get('/health', headers=AUTH)).json()['in_flight']
        if waiting + sum(j.done() for j in jobs) >= n: break                   # all have been accepted
        await asyncio.sleep(.02)
    else: raise RuntimeError('the questions were not accepted')
    process.send_signal(signal.SIGTERM)
    answers = await asyncio.gather(*jobs, return_exceptions=True)
    return sum(getattr(r, 'status_code', 0) == 200 and len(r.json()['results']) == 10*len(texts) for r in answers), waiting

async def largest(client, url, text, n, at_once=2):
    "Questions as large as the service takes: statuses, seconds of the clock and of the CPU for each, memory at its highest and afterwards"
    body, gate, statuses, seconds, peak, over = json.dumps(dict(text=text)).encode(), asyncio.Semaphore(at_once), Counter(), [], [0.], asyncio.Event()
    async def one():
        async with gate:
            begin = time.perf_counter()
            statuses[(await client.post('/detect', content=body, headers=AUTH)).status_code] += 1
            seconds.append(time.perf_counter() - begin)
    async def watch():
        while not over.is_set():
            peak[0] = max(peak[0], await asyncio.to_thread(memory, url))
            await asyncio.sleep(.3)
    looking, cpu = asyncio.create_task(watch()), metric(url, 'process_cpu_seconds_total')
    await asyncio.gather(*(one() for _ in range(n)))
    over.set()
    await looking
    await asyncio.sleep(5)                                            # abandoned work ends, and memory is given back
    cpu = metric(url, 'process_cpu_seconds_total') - cpu
    return dict(statuses={str(k): v for k,v in statuses.items()}, slowest_s=round(max(seconds), 1), cpu_s=round(cpu/n, 1), peak_mb=round(peak[0]/1e6), after_mb=round(await asyncio.to_thread(memory, url)/1e6))

async def killed(process, url, texts, n=16):
    "`kill -9` while n questions are in flight: how many were told so, by a closed connection"
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        jobs = [asyncio.create_task(client.post('/detect', json=dict(texts=texts*10), headers=AUTH)) for _ in range(n)]
        while (await client.get('/health', headers=AUTH)).json()['in_flight'] == 0: await asyncio.sleep(.01)
        process.kill()
        answers = await asyncio.gather(*jobs, return_exceptions=True)
    return sum(isinstance(r, httpx.TransportError) or r.status_code == 200 for r in answers)

async def run(a, process, url, texts) -> dict:
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await load(client, texts, 50, 8, 0)
        before, begin = memory(url), time.perf_counter()
        statuses, seconds, wrong, _ = await load(client, texts, a.requests, a.at_once, 0)
        took, busy = time.perf_counter() - begin, os.getloadavg()[0]
        await asyncio.gather(*(leave_early(url, json.dumps(dict(text=texts[1])).encode()) for _ in range(100)))
        long = ' '.join(texts)*40                                   # a hundred thousand characters
        slow, sleeping, (_, _, more, bad) = await asyncio.gather(asyncio.gather(*(send_slowly(url) for _ in range(20))), asyncio.gather(*(read_nothing(url, long) for _ in range(8))),
                                                                 load(client, texts, 5*a.hostile, 32, .2, seed=1))
        after = memory(url)
        words = ' '.join(texts[1:]) + ' '
        size = int(.95*4_000_000)
        full = (words*(size//len(words.encode()) + 1)).encode()[:size].decode(errors='ignore')
        alone = await largest(client, url, full, 1) if a.full else None
        rounds = [await largest(client, url, full, a.full) for _ in range(3)] if a.full else []
        answered, waiting = await stopped(client, url, process, texts)
    q = statistics.quantiles(seconds, n=100)
    return dict(requests=a.requests, at_once=a.at_once, per_second=round(a.requests/took, 1), load_at_questions=round(busy, 1), p50_ms=round(1e3*q[49], 1), p99_ms=round(1e3*q[98], 1), statuses=dict(statuses),
                hostile={str(k): v for k,v in sorted(bad.items(), key=str)}, wrong=wrong + more, left_early=100,
                slow_senders=dict(Counter(s for s,_ in slow)), slow_senders_s=round(max(x for _,x in slow), 1), sleeping_readers=len(sleeping), sleeping_readers_s=None if None in sleeping else round(max(sleeping), 1),
                largest_bytes=size, largest_alone=alone, largest=rounds, largest_in_round=a.full, memory_before_mb=round(before/1e6), memory_after_mb=round(after/1e6),
                in_flight_at_signal=waiting, accepted_before_signal=32, answered=answered)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--requests', type=int, default=10_000)
    ap.add_argument('--at-once', type=int, default=64)
    ap.add_argument('--hostile', type=int, default=200)
    ap.add_argument('--full', type=int, default=8, help='bodies of nearly 4 MB in each of three rounds')
    ap.add_argument('--save', type=Path)
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        wm = DEW.build(load_host(), load_encoder(), SecretKey(b'an example key: never use this one'), progress=False)
        wm.detector().save(Path(tmp)/'harbour.dew')
        marked = wm.generate('The old harbour', max_new_tokens=120, seed=1, temperature=.9)
        texts = [marked, *(' '.join(t.split()[:80]) for t in reference_texts()[:7])]
        texts = [t for i,t in enumerate(texts) if not i or wm.detector().detect(t).p_value > .01]
        del wm
        process, url = start(Path(tmp))
        try:
            ended = asyncio.run(killed(process, url, texts))
            process.wait()
            process, url = start(Path(tmp))
            found = dict(in_flight_when_killed=16, told_or_answered=ended) | asyncio.run(run(a, process, url, texts))
            found['exit_code'] = process.wait(120)
        finally:
            process.kill()
            process.wait()
    found |= dict(cores=os.cpu_count(), load_average=round(os.getloadavg()[0], 1), python=platform.python_version(), dew_nb=version('dew_nb'), made=time.strftime('%Y-%m-%d', time.gmtime()))
    print(json.dumps(found, indent=1))
    if a.save: a.save.write_text(json.dumps(found, indent=1) + '\n')
    calm = all((r['after_mb'] - found['largest'][0]['after_mb'])*1e6 < ROUND and set(r['statuses']) <= {'200', '503'} for r in found['largest'])
    good = not found['wrong'] and calm and found['told_or_answered'] == 16 and found['sleeping_readers_s'] is not None and set(found['slow_senders']) <= {'408', 'closed'} and found['exit_code'] == 0 and found['answered'] == 32 and found['in_flight_at_signal'] > 0 and (found['memory_after_mb'] - found['memory_before_mb'])*1e6 < GROWTH
    sys.exit(not good)

if __name__ == '__main__': main()
