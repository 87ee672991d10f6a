"""A real vLLM server with the mark, from start to stop: `make serve-test`.

    .venv-serve/bin/python tools/serve_test.py [--texts 32] [--tokens 80] [--keep-log server.log]

Builds three schemes for the embedded host, starts `vllm serve` on the loopback address with their detectors' files, asks it with the
`openai` client, detects the answers with the files, compares them with what transformers writes, and stops it. The server has
so little room for its cache that requests are stopped and taken up again in mid-text, and reads long prompts in pieces."""
import argparse, os, re, signal, socket, statistics, subprocess, sys, tempfile, time, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai, torch
from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.models.assets import asset_path
from dew_nb.serving.vllm_rows import find_cut, sorted_cut
from dew_nb.mark.sources import reference_texts

MODEL = 'smollm2'
SAMPLING = dict(temperature=.9, top_p=.95)
START = 600                                             # seconds that a server may take to start
ROOM = 40                                               # blocks of 32 tokens: too few for 32 requests at once
PROMPTS = ['The old harbour was', 'In the middle of the night, the telephone', 'A good soup needs', 'The museum opened a new wing',
           'Rain fell over the northern hills', 'The committee met on Tuesday to', 'She had never seen a ship like', 'The price of bread']

class Checks:
    "What was checked; a failure is told at once and remembered"
    def __init__(self): self.done, self.failed, self.start = 0, 0, time.time()
    def __call__(self, name:str, good:bool, detail=''):
        self.done, self.failed = self.done + 1, self.failed + (not good)
        print(f'{"ok  " if good else "FAIL"} {time.time()-self.start:5.0f} s  {name}{": " if detail else ""}{detail}', flush=True)

# ---------------------------------------------------------------- the server
CHAT = """{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"""

def command(port:int, *more) -> list:
    "How it is started"
    return [str(Path(sys.executable).with_name('vllm')), 'serve', str(asset_path('smollm2-135m')), '--served-model-name', MODEL, '--host', '127.0.0.1',
            '--port', str(port), '--enforce-eager', '--dtype', 'float32', '--max-model-len', '512', '--max-num-batched-tokens', '128',
            '--max-num-seqs', '64', '--enable-chunked-prefill', '--block-size', '32', '--num-gpu-blocks-override', str(ROOM), '--chat-template', CHAT, '--logits-processors', 'dew_nb.serving.vllm:DEW', *more]

def free_port() -> int:
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def environment(files:dict) -> dict:
    default, *others = files
    return os.environ | dict(DEW_SCHEME=str(files[default]), DEW_SCHEMES=','.join(f'{n}={files[n]}' for n in others), DEW_ALLOW_OPT_OUT='1', DEW_ALLOW_TEXT_NAME='1',
                             VLLM_CPU_KVCACHE_SPACE='1', VLLM_NO_USAGE_STATS='1', DO_NOT_TRACK='1', HF_HUB_OFFLINE='1')

def get(port:int, path:str) -> str:
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/{path}', timeout=10) as r: return r.read().decode()

def closed(port:int) -> bool:
    "Whether nobody listens there any more"
    with socket.socket() as s: return s.connect_ex(('127.0.0.1', port)) != 0

def wait_for(server, port:int):
    "Until it answers"
    end = time.time() + START
    while time.time() < end and server.poll() is None:
        try: return get(port, 'health')
        except (urllib.error.URLError, OSError): time.sleep(1)
    raise RuntimeError(f'the server did not start (exit status {server.poll()})')

def stop(server):
    "Ask it to end, with all of its processes; insist after a while"
    if server.poll() is None: os.killpg(server.pid, signal.SIGINT)
    try: server.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

@contextmanager
def serving(files:dict, log:Path):
    "A server, and its port"
    port = free_port()
    with log.open('w') as out:
        server = subprocess.Popen(command(port), env=environment(files), stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_for(server, port)
            yield port
        finally: stop(server)

def refusal(files:dict, log:Path) -> str:
    "What a server says that is to start with speculative decoding"
    draft = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}'
    with log.open('w') as out:
        server = subprocess.Popen(command(free_port(), '--speculative-config', draft), env=environment(files), stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try: status = server.wait(START)
        except subprocess.TimeoutExpired: status = 0
        finally: stop(server)
    said = re.findall(r'ValueError: (.*)', log.read_text(errors='replace'))
    return said[-1] if status and said else ''

# ---------------------------------------------------------------- the client
class Client:
    "Asks for texts"
    def __init__(self, port:int, tokens:int): self.api, self.tokens = openai.OpenAI(base_url=f'http://127.0.0.1:{port}/v1', api_key='none', timeout=300, max_retries=0), tokens
    def ask(self, prompt=PROMPTS[0], dew=None, dew_text=None, **more):
        "The answer to a prompt; a list if several were asked for"
        said = {k: v for k,v in dict(dew=dew, dew_text=dew_text).items() if v is not None}
        extra = dict(min_tokens=self.tokens) | (dict(vllm_xargs=said) if said else {})
        r = self.api.completions.create(model=MODEL, prompt=prompt, max_tokens=self.tokens, extra_body=extra, **SAMPLING | more)
        if more.get('stream'): return ''.join(c.choices[0].text for c in r)
        texts = [c.text for c in r.choices]
        return texts if more.get('n', 1) > 1 else texts[0]
    def chat(self, question, **more):
        r = self.api.chat.completions.create(model=MODEL, messages=[dict(role='user', content=question)], max_tokens=self.tokens,
                                             extra_body=dict(min_tokens=self.tokens), **SAMPLING | more)
        return r.choices[0].message.content
    def refused(self, **more) -> str:
        "The answer to a bad request: its text if the status is 400"
        try: self.ask(**more)
        except openai.BadRequestError as e: return e.message
        return ''

# ---------------------------------------------------------------- what is checked
def check_single(check, client, det):
    "One request at a time"
    z = lambda text, who='default': det[who].detect(text).z
    for name,text in dict(plain=client.ask(), streamed=client.ask(stream=True), chat=client.chat('What is a harbour?', temperature=1.2)).items():
        check(f'{name}: marked', z(text) > 4, f'z = {z(text):.1f}')
    two = client.ask(n=2, seed=5)
    check('n=2: two texts, both marked', len(set(two)) == 2 and min(map(z, two)) > 4, f'z = {z(two[0]):.1f}, {z(two[1]):.1f}')
    bobs = client.ask(dew='bob')
    check("Bob's key: Bob's mark alone", z(bobs, 'bob') > 4 and abs(z(bobs)) < 4, f"z = {z(bobs, 'bob'):.1f} with Bob's file, {z(bobs):.1f} with the other")
    for what in (False, 'off'): check(f'dew={what!r}: no mark', abs(z(t := client.ask(dew=what))) < 4, f'z = {z(t):.1f}')
    greedy = client.ask(temperature=0)
    check('greedy: no mark, and the same as without', greedy == client.ask(temperature=0, dew=False))
    long = client.ask(reference_texts()[0][:1200])                             # more than a step reads
    check('a long prompt, read in pieces: marked', z(long) > 4, f'z = {z(long):.1f}')

def check_subkeys(check, client, det, scheme):
    """Carol's scheme has sub-keys: a text keeps the one that its name draws. One of eight may be weak: z of such short texts scatters by a good unit, and
    where the host was sure of its words it falls below 4 now and then, with one key and without a server too"""
    names = [f'order {i}' for i in range(4)]
    with ThreadPoolExecutor(8) as threads:
        named = list(threads.map(lambda n: client.ask(dew='carol', dew_text=n), names))
        free = list(threads.map(lambda _: client.ask(dew='carol'), names))
    found = det['carol'].detect(named + free, progress=False)
    weak = [(round(r.z, 1), r.n_scored, t) for r,t in zip(found, named + free) if r.z <= 4]         # told, to be looked at
    check('sub-keys: at least seven of eight clearly marked', len(weak) <= 1, 'z = ' + ', '.join(f'{r.z:.1f}' for r in found) + (f'; {weak}' if weak else ''))
    drawn, got = scheme.rule.draw([f'{n}/0' for n in names]), [r.subkey for r in found[:4]]
    check('sub-keys: those that the names draw', all(a == b for a,b,r in zip(drawn, got, found) if r.z > 4), f'{drawn} and {got}; without names {[r.subkey for r in found[4:]]}')

def check_refusals(check, client):
    for name,more,said in (('an unknown name', dict(dew='eve'), 'default, bob'), ('a number that is no answer', dict(dew=7), 'default, bob'),
                           ('a mark for greedy text', dict(dew=True, temperature=0), 'no token is drawn')):
        answer = client.refused(**more)
        check(f'{name}: 400', said in answer, answer)

def check_switches(check, files):
    "What a server without switches answers, with vLLM's own requests and class; the server that is asked below has them on"
    from vllm import SamplingParams
    from dew_nb.serving.vllm import DEW as Served
    os.environ['DEW_SCHEME'] = str(files['default'])
    for switch,args in dict(DEW_ALLOW_OPT_OUT=dict(dew=False), DEW_ALLOW_TEXT_NAME=dict(dew_text='one name')).items():
        os.environ.pop(switch, None)
        try: Served.validate_params(SamplingParams(extra_args=args))
        except ValueError as e: check(f'{args}: refused, and {switch} named', f'{switch}=1' in str(e), str(e))
        else: check(f'{args}: refused', False)
        os.environ[switch] = '1'
        Served.validate_params(SamplingParams(extra_args=args))
        del os.environ[switch]
    del os.environ['DEW_SCHEME']

def preemptions(port:int) -> float:
    "How often requests were stopped and taken up again"
    return sum(float(x) for x in re.findall(r'^vllm:num_preemptions_total\S* (\S+)$', get(port, 'metrics'), re.M))

def check_many(check, client, port, det, texts:int) -> tuple:
    "Marked and unmarked requests, 32 at a time; z of the marked, z of the unmarked"
    alone = [client.ask(PROMPTS[i], seed=i) for i in range(4)]
    jobs = [dict(prompt=PROMPTS[i % 8], dew=None if i < texts else False, seed=i if i < 4 else None) for i in range(2*texts)]
    jobs = [jobs[i//2 + texts*(i % 2)] for i in range(2*texts)]                 # one of each kind in turn
    start = time.time()
    with ThreadPoolExecutor(32) as threads: answers = list(threads.map(lambda j: client.ask(**j), jobs))
    print(f'     {len(jobs)} texts of {client.tokens} tokens, 32 at a time: {len(jobs)*client.tokens/(time.time()-start):.0f} tokens a second', flush=True)
    marked, bare = answers[::2], answers[1::2]
    same = sum(a == b for a,b in zip(alone, marked))
    check('the same seed, alone and among others: the same text', same >= 3, f'{same} of 4')      # rounding may turn one
    check('some were stopped and taken up again', preemptions(port) > 0, f'{preemptions(port):.0f} times')
    return [[r.z for r in det['default'].detect(x, progress=False)] for x in (marked, bare)]

def compare(check, name, a, b):
    "Whether two samples of z have the same mean, within four standard errors"
    va, vb = (statistics.variance(x)/len(x) for x in (a, b))
    gap, se = statistics.mean(a) - statistics.mean(b), (va + vb)**.5
    check(name, abs(gap) < 4*se, f'mean z {statistics.mean(a):.2f} and {statistics.mean(b):.2f}, apart by {gap/se:+.1f} standard errors')

def check_cuts(check):
    "Our top-k and top-p against vLLM's"
    x = torch.randn(6, 5000, generator=torch.Generator().manual_seed(0))*3
    k, p = torch.tensor([5000, 20, 300, 5000, 1, 50], dtype=torch.int32), torch.tensor([1., 1., .9, .5, .9, .99])
    check("top-k and top-p are vLLM's", find_cut() is not sorted_cut and torch.equal(find_cut()(x.clone(), k, p).isfinite(), sorted_cut(x, k, p).isfinite()))

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=32)
    ap.add_argument('--tokens', type=int, default=80)
    ap.add_argument('--keep-log', type=Path)
    a = ap.parse_args()
    check, folder = Checks(), tempfile.TemporaryDirectory()
    log = a.keep_log or Path(folder.name)/'server.log'
    host, enc = load_host(), load_encoder()
    wm = DEW.build(host, enc, SecretKey(b'an example key: never use this one'), progress=False)
    schemes = dict(default=wm, bob=wm.rekey(SecretKey(b'another example: never use this one')))
    schemes['carol'] = DEW.build(host, enc, SecretKey(b'a third example: never use this one'), DEWConfig.preset('tournament', keys=4), progress=False)
    files = {n: s.detector().save(Path(folder.name)/f'{n}.dew') for n,s in schemes.items()}
    det = {n: Detector.load(f) for n,f in files.items()}
    check_cuts(check)
    check_switches(check, files)
    own = wm.generate([PROMPTS[i % 8] for i in range(a.texts)], max_new_tokens=a.tokens, min_new_tokens=a.tokens, no_repeat_ngram_size=0, seed=1, **SAMPLING)
    own = [r.z for r in det['default'].detect(own, progress=False)]
    print(f'     {time.time()-check.start:.0f} s: {a.texts} texts by transformers, mean z {statistics.mean(own):.2f}', flush=True)
    try:
        said = refusal(files, log)
        check('speculative decoding: refused at the start', 'speculative' in said, said)
        with serving(files, log) as port:
            print(f'     {time.time()-check.start:.0f} s: the server has started', flush=True)
            client = Client(port, a.tokens)
            check_single(check, client, det)
            check_subkeys(check, client, det, schemes['carol'])
            check_refusals(check, client)
            marked, bare = check_many(check, client, port, det, a.texts)
            compare(check, 'marked texts of vLLM and of transformers', marked, own)
            compare(check, 'unmarked texts of the same batch and no mark', bare, [-1., 1.]*50)
        check('the server has stopped', closed(port))
    except Exception as e:
        check(f'{type(e).__name__}', False, str(e))
    if check.failed: print('\n'.join(['', 'The end of what the server said:', *log.read_text(errors='replace').splitlines()[-60:]]))
    print(f'vLLM, {time.time()-check.start:.0f} s: {check.done-check.failed} checks passed, {check.failed} failed', flush=True)
    sys.exit(bool(check.failed))

if __name__ == '__main__': main()
