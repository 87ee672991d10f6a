"A server's policy: ways around it, its log, and what is left alone; `make serve-test` tries it with a real server"
import json
import random
import subprocess
import sys
from enum import Enum
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

import dew_nb.serving.vllm as served
from dew_nb import DEW, DEWConfig, SecretKey
from dew_nb.mark.structured import ALONE, Follower, LeaveAlone, StructuredText, all_states, next_state
from dew_nb.models.assets import asset_path
from dew_nb.serving.audit import PolicyLog, verify_log
from dew_nb.serving.policy import Origin, Policy, PolicyMiddleware, PolicyRefusal, _origin
from dew_nb.serving.vllm import processor_class
from quick import Letters, toy_host

CONFIG = DEWConfig(m=64, n=32, layers=12, k=3, context_width=32, context_decay=1., context_damping=None)
Move = Enum('Move', 'UNIDIRECTIONAL SWAP')
TEXT = 'name = "test"\nlog = "marks.jsonl"\n[[epoch]]\nname = "now"\nscheme = "now.dew"\n[exempt]\nroutes = ["/internal"]\n'


class Params(SimpleNamespace):
    "What is used of vLLM's SamplingParams"
    def __init__(self, **kw): super().__init__(**dict(temperature=1., top_k=0, top_p=1., min_p=0., max_tokens=64, n=1, logprobs=None, prompt_logprobs=None, extra_args=None) | kw)


@pytest.fixture(scope='module')
def wm(): return DEW.build(toy_host(), Letters(), SecretKey(b'an example key: never use this one'), CONFIG, progress=False)


@pytest.fixture(scope='module')
def tok(wm): return wm.host.tokenizer


@pytest.fixture(scope='module')
def automaton(tok): return StructuredText(tok)


@pytest.fixture
def server(wm, tmp_path, monkeypatch):
    "A server's class, with a policy; `text` says another one"
    wm.detector().save(tmp_path/'now.dew')
    def start(text=TEXT):
        (tmp_path/'policy.toml').write_text(text)
        monkeypatch.setenv('DEW_POLICY', str(tmp_path/'policy.toml'))
        for cached in (served.served_policy, served._policy_log): cached.cache_clear()
        return processor_class()
    yield start
    for cached in (served.served_policy, served._policy_log): cached.cache_clear()


def config(): return SimpleNamespace(speculative_config=None, model_config=SimpleNamespace(tokenizer=str(asset_path('smollm2-135m')), tokenizer_revision=None, trust_remote_code=False))


def change(removed=(), added=(), moved=()): return SimpleNamespace(removed=removed, added=added, moved=moved)


# ---------------------------------------------------------------- ways around
@pytest.mark.parametrize('bad', [dict(extra_args=dict(dew=x)) for x in (False, 0, 0., 'off', 'FALSE', 'no', 'old', 2, None, [], {})]
    + [dict(temperature=x) for x in (0, 0., 1e-6, .29)] + [dict(top_k=1), dict(top_k=9), dict(top_p=1e-6), dict(min_p=1.), dict(logprobs=0), dict(logprobs=20), dict(prompt_logprobs=0),
       dict(logprob_token_ids=[5]), dict(prompt_logprob_token_ids=[[5]])]
    + [dict(extra_args=dict(x)) for x in (dict(dew_cut=[1, 1., 0.]), dict(dew_name='a'), dict(dew_request='a'), dict(dew_seal='a'), dict(dew_cut=[0, 1., 0.], dew_seal=''), dict(dew_anything=1))])
def test_ways_around_are_refused(server, tmp_path, bad):
    "And each refusal has its line in the log, without what was asked"
    cls = server()
    with pytest.raises(ValueError): cls.validate_params(Params(**bad))
    found = verify_log(tmp_path/'marks.jsonl')
    assert found.events['refused'] == found.lines == 1


def test_a_seal_of_another_process_does_not_fit(server):
    "Nobody can make one who does not have this process's secret"
    cls = server()
    code = 'from dew_nb.serving.policy import seal; print(seal(dict(dew_cut=[1, 1., 0.])))'
    other = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip()
    with pytest.raises(ValueError, match='server itself'): cls.validate_params(Params(extra_args=dict(dew_cut=[1, 1., 0.], dew_seal=other)))


def test_several_prompts_share_their_parameters(server, tmp_path):
    "vLLM checks one object for each prompt of a request: each is accepted, under a name of its own, with its cuts"
    cls, p, names = server(), Params(top_p=.8, top_k=50), set()
    for _ in range(4):
        cls.validate_params(p)
        names.add(p.extra_args['dew_request'])
        assert p.extra_args['dew_cut'] == [50, .8, 0.] and p.extra_args['dew'] == 'now' and (p.top_k, p.top_p) == (0, 1.)
    assert len(names) == 4 and verify_log(tmp_path/'marks.jsonl').decisions == dict(marked=4)


def test_several_answers_stop_and_abort(server, wm, tok, tmp_path):
    "n = 3, a forged turn as the prompt, one answer that stops early and one that is aborted: all are marked from the first full window on, and all are in the log"
    cls = server()
    p = Params(n=3, stop=['.'])
    cls.validate_params(p)
    proc, g = cls(config(), torch.device('cpu'), False), torch.Generator().manual_seed(0)
    logits = 4*torch.randn(3, wm.host.vocab_size, generator=g)
    forged = tok('Of course:\n```python\n# ')['input_ids']                      # a prompt that opens a fence
    lists = [[], [], []]
    proc.update_state(change(added=[(i, p, forged, t) for i,t in enumerate(lists)]))
    for step in range(12):
        got = proc.apply(logits.clone())
        moved = (got.softmax(-1) - logits.softmax(-1)).abs().sum(1)
        assert ((moved > .01) == torch.tensor([len(t) >= 3 for t in lists])).all()
        for t in lists: t.append(int(torch.randint(5000, 9000, (), generator=g)))
        proc.update_state(change(removed=[1], moved=[(2, 1, Move.UNIDIRECTIONAL)]) if step == 5 else None)   # the second has met its stop
        if step == 5: lists.pop(1); logits = logits[:2]
    proc.update_state(change(removed=[0, 1]))                                   # the client has gone
    rows = [json.loads(x) for x in (tmp_path/'marks.jsonl').read_text().splitlines()]
    written = [(r['tokens'], r['marked'], r['exempt']) for r in rows if r['event'] == 'written']
    assert written == [(6, 3, 0), (12, 9, 0), (12, 9, 0)]
    assert len({r['request'] for r in rows if r['event'] == 'written'}) == 3
    assert verify_log(tmp_path/'marks.jsonl').open == 0


def test_a_stopped_answer_keeps_its_name(server, tmp_path):
    "vLLM stops an answer for lack of memory and takes it up again: one answer in the sums"
    cls, p, tokens = server(), Params(), list(range(5000, 5010))
    cls.validate_params(p)
    proc = cls(config(), torch.device('cpu'), False)
    for n in range(3):
        proc.update_state(change(added=[(0, p, [1], tokens)]))
        proc.apply(torch.randn(1, 49152))
        tokens += range(6000, 6005)
        proc.update_state(change(removed=[0]))
    found = verify_log(tmp_path/'marks.jsonl')
    assert found.events['written'] == 3 and found.tokens == 25 and found.open == 0


@pytest.mark.parametrize('ask', [dict(logprobs=0), dict(prompt_logprobs=1), dict(logprob_token_ids=[5]), dict(prompt_logprob_token_ids=[[5]])])
def test_no_probabilities_whatever_the_rule(ask):
    "Also under a rule that marks greedy text, whose sampling is not looked at"
    policy = Policy.parse(TEXT)
    policy.admit(Params(temperature=0.), None, dict(now='x'), marks_greedy=True)
    for greedy in (True, False):
        with pytest.raises(PolicyRefusal, match='no probabilities'): policy.admit(Params(**ask), None, dict(now='x'), marks_greedy=greedy)


def test_exempt_by_route_alone(server, tmp_path):
    "What a body says of routes and tenants is not heard"
    cls = server()
    for args in (dict(route='/internal'), dict(tenant='tests')):
        p = Params(extra_args=args)
        cls.validate_params(p)
        assert p.extra_args['dew'] == 'now'
    token = _origin.set(Origin('/internal'))
    try:
        p = Params(temperature=0., logprobs=5)
        cls.validate_params(p)
    finally: _origin.reset(token)
    assert p.extra_args['dew'] is False
    proc = cls(config(), torch.device('cpu'), False)
    proc.update_state(change(added=[(0, p, [1], t := [5000]*8)]))
    x = torch.randn(1, 49152)
    assert torch.equal(proc.apply(x.clone()), x)
    proc.update_state(change(removed=[0]))
    assert verify_log(tmp_path/'marks.jsonl').exempt == len(t)


def test_lift_and_log(server, tmp_path):
    "A policy that lifts and logs instead of refusing marks the same requests"
    cls = server('opt_out = "log"\n' + TEXT + '[sampling]\nbelow = "lift"\nlogprobs = true\n')
    p = Params(temperature=0., top_k=1, min_p=1., logprobs=3, extra_args=dict(dew=False))
    cls.validate_params(p)
    assert p.temperature == .3 and p.extra_args['dew_cut'] == [10, 1., .2] and p.extra_args['dew'] == 'now'
    assert verify_log(tmp_path/'marks.jsonl').decisions == {'marked: opt-out overruled': 1}


def test_no_log_no_answer(server, tmp_path):
    "Where the log can't be written, a request fails before anything is drawn"
    cls = server()
    (tmp_path/'marks.jsonl').mkdir()
    with pytest.raises(OSError): cls.validate_params(Params())


@pytest.mark.parametrize('both', ['DEW_SCHEME', 'DEW_SCHEMES', 'DEW_ALLOW_OPT_OUT'])
def test_policy_and_switches_exclude_each_other(server, monkeypatch, both):
    cls = server()
    monkeypatch.setenv(both, '1')
    with pytest.raises(ValueError, match=f'{both} beside DEW_POLICY'): cls.validate_params(Params())


def test_middleware_leaves_no_trace():
    "Two requests at once don't see each other's path or key"
    import asyncio
    seen = {}
    async def app(scope, receive, send):
        await asyncio.sleep(.01)
        seen[scope['path']] = _origin.get().route
    async def both(): await asyncio.gather(*(PolicyMiddleware(app)(dict(type='http', path=p, headers=[]), None, None) for p in ('/a', '/b')))
    asyncio.run(both())
    assert seen == {'/a': '/a', '/b': '/b'} and _origin.get() == Origin()


# ---------------------------------------------------------------- the automaton
def by_characters(text, leave):
    "The state after a text, character by character"
    state = ('start',)
    for ch in text: state = next_state(leave, state, ch)
    return state


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet='`~\n {}[]"\\:,1aé<tool_call>/x', max_size=60))
def test_tokens_and_characters_agree(text):
    "Whatever the text, the table of tokens leads where its characters lead"
    tok, automaton = test_tokens_and_characters_agree.parts
    ids = tok(text, add_special_tokens=False)['input_ids']
    f = Follower(automaton, 1)
    for i in ids: f.advance(torch.tensor([i]))
    pieces = ''.join(tok.decode([i]) for i in ids)                # as the table reads them: half of a letter is another one, and neither is of interest
    assert automaton.states[int(f.counts[0, 0])] == by_characters(pieces, automaton.leave)
    assert by_characters(pieces, automaton.leave) in automaton.states


@pytest.fixture(autouse=True, scope='module')
def parts(tok, automaton):
    "hypothesis wants no fixtures"
    test_tokens_and_characters_agree.parts = tok, automaton


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
                    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3), max_leaves=12).filter(lambda x: isinstance(x, (list, dict))))
def test_json_is_left_alone(value):
    "Any JSON of moderate depth is left alone from its first bracket to its last"
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, ensure_ascii=False)):
        states = [by_characters(text[:i], LeaveAlone()) for i in range(1, len(text) + 1)]
        assert all(s[0] in ALONE for s in states[:-1]) and states[-1] == ('start',)


def test_prose_is_marked(tok, automaton):
    "No sentence of the reference sample is left alone"
    from dew_nb.mark.sources import reference_texts
    for text in reference_texts()[:40]:
        if '```' in text or text.lstrip()[:1] in ('{', '['): continue
        f = Follower(automaton, 1)
        for i in tok(text[:600], add_special_tokens=False)['input_ids']: f.advance(torch.tensor([i]))
        assert f.counts[0, 3] == 0


def test_states_are_few():
    "Also with tags of one's own; and the table fits bytes"
    states, after = all_states(LeaveAlone(tools=(('<a>', '</a>'), ('<ab>', '</ab>'), ('<<x', '>>'))))
    assert len(states) < 256 and all((x < len(states)).all() for x in after.values())
    assert by_characters('x <<x y', LeaveAlone(tools=(('<<x', '>>'),))) == ('tool', '>>', '')


# ---------------------------------------------------------------- the log
def test_many_processes_write_one_chain(tmp_path):
    code = f'from dew_nb.serving.audit import PolicyLog; log = PolicyLog({str(tmp_path/"m.jsonl")!r}); [log.append("refused", reason="opt-out") for _ in range(25)]'
    jobs = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(3)]
    assert [j.wait() for j in jobs] == [0]*3
    assert verify_log(tmp_path/'m.jsonl').events == dict(refused=75)


def test_every_changed_byte_is_found(tmp_path):
    "Any byte of any line but the last; of the last, the noted head tells"
    path, rng = tmp_path/'m.jsonl', random.Random(0)
    log = PolicyLog(path)
    for i in range(6): log.append('written', request=f'r{i}', tokens=10 + i, marked=7, exempt=0)
    good, head = path.read_bytes(), verify_log(path).head
    for _ in range(150):
        at = rng.randrange(len(good) - 1)
        path.write_bytes(good[:at] + bytes([good[at] ^ rng.choice([1, 2, 4, 8, 16, 32])]) + good[at+1:])
        with pytest.raises(ValueError): verify_log(path, head)
