"""A real vLLM server with the mark, from start to stop: `make serve-test`.

    .venv-serve/bin/python tools/serve_test.py [--texts 32] [--tokens 80] [--keep-log server.log]

Builds three schemes for the embedded host, starts `vllm serve` on the loopback address with their detectors' files, asks it with the
`openai` client, detects the answers with the files, compares them with what transformers writes, and stops it. The server has
so little room for its cache that requests are stopped and taken up again in mid-text, and reads long prompts in pieces. A second server
has a policy: ways around the mark are tried on it, its file is changed, and its log is verified; a third has a policy that lifts. Last, vLLM's own classes for watermarks hold the tournament."""
import argparse, hashlib, json, os, re, signal, socket, statistics, subprocess, sys, tempfile, time, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai, torch
from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.models.assets import asset_path
from dew_nb.serving.audit import verify_log
from dew_nb.serving.policy import Policy, server_policy
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
def serving(env:dict, log:Path, *more):
    "A server, and its port"
    port = free_port()
    with log.open('w') as out:
        server = subprocess.Popen(command(port, *more), env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
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
    def __init__(self, port:int, tokens:int, key='none'):
        # the client's own retries: the server closes a connection that was idle for seconds, perhaps just when the client takes it up
        self.api, self.tokens = openai.OpenAI(base_url=f'http://127.0.0.1:{port}/v1', api_key=key, timeout=600), tokens
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

# ---------------------------------------------------------------- with a policy
TENANT = 'the key of a tenant whose texts are exempt'
POLICY = """name = "serve-test"
log = "marks.jsonl"
[[epoch]]
name = "old"
scheme = "bob.dew"
starts = 2000-01-01T00:00:00Z
[[epoch]]
name = "now"
scheme = "default.dew"
starts = 2020-01-01T00:00:00Z
[exempt]
tenants = {tests = "%s"}
"""

def policy_environment(folder:Path, policy:str=POLICY) -> dict:
    (folder/'policy.toml').write_text(policy % hashlib.sha256(TENANT.encode()).hexdigest())
    left = {k: v for k,v in os.environ.items() if not k.startswith('DEW_')}
    return left | dict(DEW_POLICY=str(folder/'policy.toml'), VLLM_CPU_KVCACHE_SPACE='1', VLLM_NO_USAGE_STATS='1', DO_NOT_TRACK='1', HF_HUB_OFFLINE='1')

def extra_refused(client, **body) -> str:
    "The answer to a request with more in its body: its text if the status is 400"
    try: client.api.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=20, extra_body=body, **SAMPLING)
    except openai.BadRequestError as e: return e.message
    return ''

def tokens_refused(client, **params) -> tuple:
    "Status and answer of vLLM's route that takes tokens and its own parameters for sampling"
    body = dict(token_ids=list(range(300, 310)), sampling_params=SAMPLING | dict(max_tokens=20) | params)
    request = urllib.request.Request(str(client.api.base_url.copy_with(path='/inference/v1/generate')), json.dumps(body).encode(), {'Content-Type': 'application/json'})
    try:
        with urllib.request.urlopen(request, timeout=600) as r: return r.status, r.read().decode()
    except urllib.error.HTTPError as e: return e.code, e.read().decode()

def check_bypasses(check, client, det):
    "Ways around the mark: each is refused, or the text is marked"
    z = lambda text, who='default': det[who].detect(text).z
    for name,more,said in (('dew=False', dict(dew=False), 'leave {"dew": false} out'), ("dew='off'", dict(dew='off'), 'leave {"dew": false} out'),
                           ('the key of another epoch', dict(dew='old'), 'in force'), ('temperature 0', dict(temperature=0), 'in the draw'),
                           ('temperature .01', dict(temperature=.01), 'in the draw'), ('top-p .001', dict(top_p=.001), 'in the draw'), ('log-probabilities', dict(logprobs=5), 'no probabilities'),
                           ('echo with log-probabilities', dict(logprobs=5, echo=True), 'no probabilities')):
        answer = client.refused(**more)
        check(f'policy, {name}: 400', said in answer, answer)
    for name,more,said in (('presence_penalty -1', dict(presence_penalty=-1.), 'presence_penalty'), ('frequency_penalty -1', dict(frequency_penalty=-1.), 'frequency_penalty')):
        answer = client.refused(**more)
        check(f'policy, {name}: 400', said in answer, answer)
    try: answer = str(client.api.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=4, **SAMPLING))
    except openai.BadRequestError as e: answer = e.message
    check('policy, four tokens: 400', 'max_tokens >= 16' in answer, answer)
    for name,body in (('repetition_penalty .02', dict(repetition_penalty=.02)), ('repetition_penalty 50', dict(repetition_penalty=50.)),
                      ('prompt log-probabilities', dict(prompt_logprobs=5)), ('top-k 1', dict(top_k=1)), ('min-p 1', dict(min_p=1.)), ('dew_cut', dict(vllm_xargs=dict(dew_cut=[1, 1, 0]))),
                      ('dew_request', dict(vllm_xargs=dict(dew_request='mine'))), ('beam search', dict(use_beam_search=True, n=2))):
        answer = extra_refused(client, **body)
        check(f'policy, {name}: 400', bool(answer), answer)
    status, answer = tokens_refused(client, trace_decode_token_ids=[5]*20)
    check('policy, a list of tokens in place of the answer: 400', status == 400 and 'in place of the model' in answer, f'{status} {answer}')
    two = client.ask(n=2, seed=5)
    check('policy, n=2: both marked', min(map(z, two)) > 4, f'z = {z(two[0]):.1f}, {z(two[1]):.1f}')
    r = client.api.completions.create(model=MODEL, prompt=PROMPTS, max_tokens=client.tokens, extra_body=dict(min_tokens=client.tokens), **SAMPLING)
    many = [z(c.text) for c in r.choices]
    check('policy, eight prompts in one request: at least seven of eight clearly marked', sorted(many)[1] > 4, 'z = ' + ', '.join(f'{x:.1f}' for x in many))   # see check_subkeys
    forged = [dict(role='user', content='What is a harbour?'), dict(role='assistant', content='I will say it in a block:\n```\nA harbour is')]
    r = client.api.chat.completions.create(model=MODEL, messages=forged, max_tokens=client.tokens, temperature=1.2,
        extra_body=dict(min_tokens=client.tokens, continue_final_message=True, add_generation_prompt=False))
    check('policy, a forged turn that opens a fence, continued: marked', z(r.choices[0].message.content) > 4, f'z = {z(r.choices[0].message.content):.1f}')
    text = client.ask(logit_bias={'260': 3.})
    check('policy, a small logit_bias: marked', z(text) > 4, f'z = {z(text):.1f}')
    stopped = ''.join(client.ask(PROMPTS[i], stop=['.']) + '. ' for i in range(8))
    check('policy, stop: pieces together are marked', z(stopped) > 4, f'z = {z(stopped):.1f}, {len(stopped)} characters')

def check_exempt(check, client, tenant, det):
    "What is exempt, and what only looks so"
    z = lambda text: det['default'].detect(text).z
    text = tenant.ask(temperature=.9)
    check('policy, an exempt tenant: no mark', abs(z(text)) < 4, f'z = {z(text):.1f}')
    schema = dict(type='object', properties={k: dict(type='string', maxLength=12) for k in ('name', 'town', 'trade', 'street', 'hobby', 'friend')}, required=['name', 'town', 'trade', 'street', 'hobby', 'friend'])
    said = dict(type='json_schema', json_schema=dict(name='person', schema=schema))
    ask = dict(model=MODEL, messages=[dict(role='user', content='Describe a person.')], max_tokens=300, **SAMPLING)
    r = client.api.chat.completions.create(**ask, response_format=said)
    try: found = sorted(json.loads(r.choices[0].message.content))
    except ValueError: found = r.choices[0].message.content
    check('policy, structured output: JSON as asked for', found == sorted(schema['required']), found)
    tool = dict(type='function', function=dict(name='describe', description='Describe a person', parameters=schema, strict=True))
    r = client.api.chat.completions.create(**ask, tools=[tool], tool_choice=dict(type='function', function=dict(name='describe')))
    try: found = sorted(json.loads(r.choices[0].message.tool_calls[0].function.arguments))
    except (ValueError, TypeError): found = r.choices[0].message
    check('policy, a tool call: arguments as asked for', found == sorted(schema['required']), found)

def check_abort(check, client, path):
    "A stream that is left after a few tokens has its line in the log"
    before = verify_log(path).events['written']
    stream = client.api.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=300, stream=True, extra_body=dict(min_tokens=300), **SAMPLING)
    for _,chunk in zip(range(5), stream): pass
    stream.close()
    for _ in range(20):
        client.api.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=16, **SAMPLING)     # the engine tells of removed requests at its next step
        if verify_log(path).events['written'] > before + 1: break
        time.sleep(.2)
    rows = [json.loads(x) for x in path.read_text().splitlines()]
    found = [r['tokens'] for r in rows if r['event'] == 'written'][before:]
    check('policy, a stream that is aborted: its tokens are in the log', any(4 < n < 300 for n in found), found)

def check_change(check, client, det, folder):
    "The file of the policy is changed under a running server: what is in force stays, and a server that starts with the noted digest refuses the file"
    path = folder/'policy.toml'
    before, digest = path.read_text(), Policy.read(path).digest
    path.write_text(before.replace('name = "serve-test"', 'name = "serve-test"\nenforce = false'))
    try:
        answer = client.refused(dew=False)
        check('policy, its file changed meanwhile: {"dew": false} is refused as before', 'leave {"dew": false} out' in answer, answer)
        text = client.ask()
        check('policy, its file changed meanwhile: marked', det['default'].detect(text).z > 4, f'z = {det["default"].detect(text).z:.1f}')
        lines = [json.loads(x) for x in (folder/'marks.jsonl').read_text().splitlines()]
        check('policy, its file changed meanwhile: the log names the policy in force', {r['policy'] for r in lines if 'policy' in r} == {digest}, digest)
        try: said = str(server_policy(dict(DEW_POLICY=str(path), DEW_POLICY_DIGEST=digest)))
        except ValueError as e: said = str(e)
        check('policy, its file changed meanwhile: another process of the server refuses it', 'was changed' in said, said)
    finally: path.write_text(before)

def check_lift(check, folder, det, tokens, log):
    "A server whose policy lifts what leaves no room, in place of refusing it"
    own = folder/'lift'
    own.mkdir()
    for f in folder.glob('*.dew'): (own/f.name).write_bytes(f.read_bytes())
    env = policy_environment(own, POLICY + '[sampling]\nbelow = "lift"\n')
    with serving(env, log, '--middleware', 'dew_nb.serving.policy.PolicyMiddleware') as port:
        print(f'     {time.time()-check.start:.0f} s: the server whose policy lifts has started', flush=True)
        client = Client(port, 3*tokens)                           # what is lifted has just enough to draw from: a short text is weak
        for name,more in (('temperature 0', dict(temperature=0)), ('top-p .001', dict(top_p=.001)), ('frequency_penalty -2', dict(frequency_penalty=-2.))):
            with ThreadPoolExecutor(8) as threads: texts = list(threads.map(lambda p: client.ask(p, **more), PROMPTS))
            z = [r.z for r in det['default'].detect(texts, progress=False)]
            check(f'policy that lifts, {name}: answered, and marked together', sum(z)/len(z)**.5 > 3, 'z = ' + ', '.join(f'{x:.1f}' for x in z))
        answer = client.refused(dew=False)
        check('policy that lifts: {"dew": false} is refused all the same', 'leave {"dew": false} out' in answer, answer)
    rows = [json.loads(x) for x in (own/'marks.jsonl').read_text().splitlines()]
    lifted = sum('lifted' in r.get('decision', '') for r in rows)
    check('policy that lifts, the log: says so', lifted == 3*len(PROMPTS) and verify_log(own/'marks.jsonl').open == 0, f'{lifted} of {len(rows)} lines')

def check_policy(check, folder, det, tokens, log):
    "A server with a policy, from start to stop"
    with serving(policy_environment(folder), log, '--middleware', 'dew_nb.serving.policy.PolicyMiddleware', '--enable-scale-out', '--enable-auto-tool-choice', '--tool-call-parser', 'hermes') as port:
        print(f'     {time.time()-check.start:.0f} s: the server with a policy has started', flush=True)
        client, path = Client(port, tokens), folder/'marks.jsonl'
        check_bypasses(check, client, det)
        check_exempt(check, client, Client(port, tokens, TENANT), det)
        check_abort(check, client, path)
        check_change(check, client, det, folder)
        with ThreadPoolExecutor(32) as threads: answers = list(threads.map(lambda i: client.ask(PROMPTS[i % 8]), range(32)))
        marked = sum(r.z > 3 for r in det['default'].detect(answers, progress=False))
        check('policy, 32 at a time: nearly all marked', marked >= 29, f'{marked} of 32; {preemptions(port):.0f} times stopped and taken up again')
    found = verify_log(path)
    check('policy, the log: its chain holds, and every accepted request was written', found.open == 0, f'{found.lines} lines, {found.open} open')
    check('policy, the log: tokens marked and exempt', found.marked > 40*tokens and 60 < found.exempt < 1500, f'{found.tokens} tokens, {found.marked} marked, {found.exempt} exempt')
    check('policy, the log: refusals by reason', all(found.reasons[r] for r in ('opt-out', 'other key', 'sampling', 'logprobs', 'own arguments')), dict(found.reasons))
    check('policy, the log: no text', not any(w in path.read_text() for w in ('harbour', 'person')))

# ---------------------------------------------------------------- vLLM's own watermarker
def torch_draw(logits, slots, temperature, seed, pos, apply_temperature, is_drafting, logits_cache=None, logits_cache_col=None, use_fp64=False, logits_cache_source=None):
    "In place of vLLM's kernel for drawing, which needs Triton: the CPU build has none"
    if logits_cache is not None: logits_cache[slots.long(), logits_cache_col.long(), :logits.shape[1]] = logits if logits_cache_source is None else logits_cache_source
    return torch.multinomial(logits.float().softmax(-1), 1)[:, 0]

def torch_rejection(target, draft, fed, cu, pos, idx, slots, local, temperature, seed, steps, *args, **kwargs):
    "In place of vLLM's kernel for one draft a request: tokens and how many, the last of them arbitrary"
    first = cu[:-1].long()
    x = fed[first + 1].long()
    ratio = (target[first].softmax(-1)/(draft[slots[first].long(), 0]/temperature[slots[first].long()][:, None]).softmax(-1)).gather(1, x[:, None])[:, 0]
    accepted = torch.rand(len(x)) < ratio
    return torch.stack([torch.where(accepted, x, 0), torch.zeros_like(x)], 1), torch.where(accepted, 2, 1)

def check_native(check, host, enc, folder):
    "vLLM's classes with the tournament in them, on CPU tensors: the law over keys, and scores under the two sub-keys"
    from dew_nb.serving.native import native_rejection, register, watermarker_classes
    import vllm.v1.watermarking.watermarker as base
    from vllm.v1 import watermarking as own
    from vllm.v1.watermarking import spec_decode
    base.gumbel_sample = torch_draw
    built = DEW.build(host, enc, SecretKey(b'an example key: never use this one'), DEWConfig.preset('standard', keys=2, m=16, token_repeat=1., screen=False), progress=False)
    os.environ['DEW_NATIVE'] = str(built.detector().save(folder/'native.dew'))
    register()
    mark = own.create_watermarker(None)
    check('native: a watermarker of vLLM, for speculative decoding too', isinstance(mark, own.Watermarker) and isinstance(mark, own.SupportsSpeculativeDecoding), repr(mark))
    check("native: vLLM's factories give it everywhere", spec_decode.create_watermarker(None) is mark and spec_decode.speculative_target_watermark_key(object()) == 0)
    os.environ.pop('DEW_NATIVE')
    few, V, N, K, T = torch.tensor([310, 320, 335, 350, 380, 395]), 400, 100, 150, .8
    p, q = (torch.full((V,), -1e4).scatter(0, few, torch.tensor(x).log()) for x in ([.3, .25, .2, .1, .1, .05], [.1, .4, .1, .2, .15, .05]))
    built, dual, shares, rows, k = built.narrow(few.numpy()), watermarker_classes()[1], [], [], mark.context_width
    torch.manual_seed(0)
    for i in range(K):
        mark = dual(built.rekey(SecretKey(f'key number {i}: never use this one'.encode())))
        draft = spec_decode.create_speculative_draft_watermarker(mark, N, torch.device('cpu'), False, 1, 'single_turn')
        contexts, slots = torch.randint(300, 20_000, (N, k)), torch.arange(N)
        ids = torch.cat([torch.zeros(N, 2, dtype=torch.long), contexts], 1)                       # two tokens of a prompt, then the answer
        draft.prepare(contexts.clone(), torch.ones(N, dtype=torch.bool), ids, torch.full((N,), 2, dtype=torch.int32), torch.full((N,), 2 + k, dtype=torch.int32))
        cache, T_all, seeds, pos = torch.zeros(N, 1, V), torch.full((N,), T), torch.zeros(N, dtype=torch.long), torch.full((N,), 2 + k)
        x = draft.sample((q*T).expand(N, -1).contiguous(), slots, T_all, seeds, pos, True, True, cache, torch.zeros(N, dtype=torch.long))
        fed, slots2, then = torch.stack([torch.zeros_like(x), x], 1).flatten(), slots.repeat_interleave(2), torch.cat([contexts[:, 1:], x[:, None]], 1)
        sampled, n = native_rejection(torch_rejection, lambda: mark)(p.expand(2*N, -1).contiguous(), cache, fed, torch.arange(N + 1)*2, pos.repeat_interleave(2), slots, slots2, torch.arange(2).repeat(N),
            T_all, seeds, 1, contexts=torch.stack([contexts, then], 1).flatten(0, 1), watermarking=torch.ones(N, dtype=torch.bool), watermark_key=0)
        accepted, y, s = n == 2, sampled[:, 0].contiguous(), mark.scheme
        shares.append(torch.bincount(torch.searchsorted(few, y), minlength=6)/N)
        scores, bonus = s.rule.score_all(s.contexts.encode(contexts), y), s.rule.score_all(s.contexts.encode(then), sampled[:, 1])
        rows.append([scores[accepted, 0].mean(), scores[~accepted, 1].mean(), bonus[accepted, 1].mean(), scores[accepted, 1].mean(), accepted.float().mean()])
    shares, found = torch.stack(shares), torch.tensor(rows).mean(0).tolist()
    off = (shares.mean(0) - p[few].exp())/(shares.std(0)/K**.5)
    check("native: over 150 keys, accepted and replaced drafts have the host's distribution", off.abs().max() < 4, f'{shares.mean(0).numpy().round(3)}, in standard errors off by {off.numpy().round(1)}')
    check('native: drafts are marked under A, replacements and the tokens after drafts under B', found[0] > .1 and found[1] > .04 and found[2] > .1 and abs(found[3]) < .03,
          'mean scores {:.3f}; {:.3f}, {:.3f}; drafts under B {:+.3f}; {:.0%} accepted'.format(*found))

def check_cuts(check):
    "Our top-k and top-p against vLLM's"
    x = torch.randn(6, 5000, generator=torch.Generator().manual_seed(0))*3
    k, p = torch.tensor([5000, 20, 300, 5000, 1, 50], dtype=torch.int32), torch.tensor([1., 1., .9, .5, .9, .99])
    check("top-k and top-p are vLLM's", find_cut() is not sorted_cut and torch.equal(find_cut()(x.clone(), k, p).isfinite(), sorted_cut(x, k, p).isfinite()))

def done(check, log, parts):
    "Run the parts, say how it went and leave"
    try: parts()
    except Exception as e: check(f'{type(e).__name__}', False, str(e))
    if check.failed and log.exists(): print('\n'.join(['', 'The end of what the server said:', *log.read_text(errors='replace').splitlines()[-60:]]))
    print(f'vLLM, {time.time()-check.start:.0f} s: {check.done-check.failed} checks passed, {check.failed} failed', flush=True)
    sys.exit(bool(check.failed))

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=32)
    ap.add_argument('--tokens', type=int, default=80)
    ap.add_argument('--keep-log', type=Path)
    ap.add_argument('--only', choices=['policy', 'native'], help='only this part')
    a = ap.parse_args()
    check, folder = Checks(), tempfile.TemporaryDirectory()
    log = a.keep_log or Path(folder.name)/'server.log'
    host, enc = load_host(), load_encoder()
    wm = DEW.build(host, enc, SecretKey(b'an example key: never use this one'), progress=False)
    schemes = dict(default=wm, bob=wm.rekey(SecretKey(b'another example: never use this one')))
    schemes['carol'] = DEW.build(host, enc, SecretKey(b'a third example: never use this one'), DEWConfig.preset('tournament', keys=4), progress=False)
    files = {n: s.detector().save(Path(folder.name)/f'{n}.dew') for n,s in schemes.items()}
    det = {n: Detector.load(f) for n,f in files.items()}
    native = lambda: check_native(check, host, enc, Path(folder.name))
    def policies():
        for part in (check_policy, check_lift): part(check, Path(folder.name), det, a.tokens, log)
    if a.only: return done(check, log, native if a.only == 'native' else policies)
    check_cuts(check)
    check_switches(check, files)
    own = wm.generate([PROMPTS[i % 8] for i in range(a.texts)], max_new_tokens=a.tokens, min_new_tokens=a.tokens, no_repeat_ngram_size=0, seed=1, **SAMPLING)
    own = [r.z for r in det['default'].detect(own, progress=False)]
    print(f'     {time.time()-check.start:.0f} s: {a.texts} texts by transformers, mean z {statistics.mean(own):.2f}', flush=True)
    def all_parts():
        said = refusal(files, log)
        check('speculative decoding: refused at the start', 'speculative' in said, said)
        with serving(environment(files), log) as port:
            print(f'     {time.time()-check.start:.0f} s: the server has started', flush=True)
            client = Client(port, a.tokens)
            check_single(check, client, det)
            check_subkeys(check, client, det, schemes['carol'])
            check_refusals(check, client)
            marked, bare = check_many(check, client, port, det, a.texts)
            compare(check, 'marked texts of vLLM and of transformers', marked, own)
            compare(check, 'unmarked texts of the same batch and no mark', bare, [-1., 1.]*50)
        check('the server has stopped', closed(port))
        policies()
        native()
    done(check, log, all_parts)

if __name__ == '__main__': main()
