"A server's policy: ways around it, its log, and what is left alone; `make serve-test` tries it with a real server"
import copy
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

import dew_nb.serving.vllm as served
from dew_nb import DEW, DEWConfig, SecretKey
from dew_nb.serving import native
from dew_nb.mark.structured import ALONE, Follower, LeaveAlone, StructuredText, all_states, next_state
from dew_nb.models.assets import asset_path
from dew_nb.serving.audit import PolicyLog, verify_log
from dew_nb.serving.policy import Origin, Policy, PolicyMiddleware, PolicyRefusal, _origin
from dew_nb.serving.vllm import processor_class
from quick import Letters, ends_within, toy_host

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
        monkeypatch.setenv('DEW_POLICY_DIGEST', '')
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


def test_greedy_prompts_share_their_parameters(server, tmp_path):
    "Where nothing is enforced, greedy text is written without a mark, for each prompt of a request"
    cls, p = server('enforce = false\n' + TEXT), Params(temperature=0.)
    for _ in range(2): cls.validate_params(p)
    with pytest.raises(ValueError, match='no token is drawn'): cls.validate_params(Params(temperature=0., extra_args=dict(dew=True)))
    assert verify_log(tmp_path/'marks.jsonl').events == dict(accepted=2, refused=1)


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
    assert verify_log(tmp_path/'marks.jsonl').decisions == {'marked: opt-out overruled, lifted': 1}


def test_no_log_no_answer(server, tmp_path):
    "Where the log can't be written, a request fails before anything is drawn"
    cls = server()
    (tmp_path/'marks.jsonl').mkdir()
    with pytest.raises(OSError): cls.validate_params(Params())


@pytest.mark.parametrize('both', ['DEW_SCHEME', 'DEW_SCHEMES', 'DEW_ALLOW_OPT_OUT', 'DEW_NATIVE'])
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


# ---------------------------------------------------------------- what sharpens or forces
@pytest.mark.parametrize('bad', [dict(repetition_penalty=r) for r in (.02, .5, .99, 1.51, 1e6, float('nan'), 0.)]
    + [dict(presence_penalty=-.1), dict(frequency_penalty=-2.), dict(presence_penalty=float('nan')), dict(temperature=float('nan')), dict(top_p=float('nan')), dict(min_p=float('nan'))])
def test_what_sharpens_is_a_temperature(server, tmp_path, bad):
    "A penalty below 1 multiplies logits before temperature, and so does one above 1 where they are negative"
    cls = server()
    with pytest.raises(PolicyRefusal, match='in the draw'): cls.validate_params(Params(**bad))
    assert verify_log(tmp_path/'marks.jsonl').reasons == dict(sampling=1)


def test_what_sharpens_and_why():
    "A penalty of .02 leaves nothing to draw where temperature 1 left much, and one of .5 next to nothing but words said before; those that are let through do not"
    g = torch.Generator().manual_seed(0)
    z, said = 3*torch.randn(2000, generator=g) + 8, torch.rand(2000, generator=g) < .1
    def drawn(r, seen=None):
        p = torch.where(said if seen is None else seen, torch.where(z > 0, z/r, z*r), z).softmax(-1)
        return float(-(p*p.clamp_min(1e-30).log()).sum()), float(p[said].sum())
    everything = torch.ones_like(said)
    assert drawn(1.)[0] > 2 and drawn(.02, everything)[0] < .01 and drawn(.5)[1] > .95
    assert drawn(1.5, everything)[0] > drawn(1.)[0]
    policy = Policy.parse(TEXT)
    for good in (dict(repetition_penalty=1.), dict(repetition_penalty=1.3), dict(temperature=.3, repetition_penalty=1.05), dict(presence_penalty=1.5, frequency_penalty=2.)):
        policy.admit(Params(**good), None, dict(now='x'))


def test_sharpening_is_lifted(server):
    cls = server(TEXT + '[sampling]\nbelow = "lift"\n')
    p = Params(temperature=.6, repetition_penalty=.02, presence_penalty=-2., frequency_penalty=-.5)
    cls.validate_params(p)
    assert (p.temperature, p.repetition_penalty, p.presence_penalty, p.frequency_penalty) == (.6, 1., 0., 0.)
    p = Params(temperature=float('nan'), repetition_penalty=float('nan'), top_p=float('nan'), min_p=float('nan'))
    cls.validate_params(p)
    assert (p.temperature, p.repetition_penalty, p.extra_args['dew_cut']) == (.3, 1., [0, .5, .2])


def test_few_tokens_are_refused_or_counted(server, tmp_path):
    "The first k tokens of an answer have no window: a request that asks for little more would carry no mark"
    cls = server()
    for n in (1, 3, 15):
        with pytest.raises(PolicyRefusal, match='max_tokens >= 16'): cls.validate_params(Params(max_tokens=n))
    for n in (16, 4000, None): cls.validate_params(Params(max_tokens=n))
    cls = server(TEXT + '[sampling]\nleast_tokens = 0\n')
    cls.validate_params(Params(max_tokens=1))
    cls = server(TEXT + '[sampling]\nbelow = "lift"\n')
    p = Params(max_tokens=3)
    cls.validate_params(p)
    assert p.max_tokens == 3                                                    # no one is given more than was asked for
    assert verify_log(tmp_path/'marks.jsonl').decisions == {'marked': 4, 'marked: short': 1}


FORCED = [dict(allowed_token_ids=[5, 6]), dict(logit_bias={5: 100.}), dict(structured_outputs=SimpleNamespace(regex='```x[^`]*')), dict(structured_outputs=SimpleNamespace(choice=['yes', 'no'])),
          dict(structured_outputs=SimpleNamespace(grammar='root ::= "a"')), dict(structured_outputs=SimpleNamespace(json={}, whitespace_pattern='[a-z ]*')),
          dict(structured_outputs=SimpleNamespace(structural_tag=json.dumps(dict(format=dict(type='tag', begin='``', content=dict(type='any_text'))))))]


@pytest.mark.parametrize('ask', FORCED)
def test_what_forces_words(server, tmp_path, ask):
    "Said in the log or refused, as the policy says; and nothing that is forced into a fence or JSON is left alone"
    cls, p = server(), Params(**ask)
    cls.validate_params(p)
    found = verify_log(tmp_path/'marks.jsonl')
    assert found.decisions == {'marked: forced': 1}
    if 'structured_outputs' in ask: assert p.extra_args['dew_all'] is True
    with pytest.raises(ValueError, match='server itself'): cls.validate_params(Params(extra_args=dict(dew_all=True)))
    cls = server(TEXT + '[sampling]\nforced = "refuse"\n')
    with pytest.raises(PolicyRefusal, match='leave .* out'): cls.validate_params(Params(**ask))


def test_json_is_not_forced(server, tmp_path):
    "JSON by a schema, tool calls of vLLM, and words that are made a little more or less likely are ordinary requests"
    tools = dict(format=dict(type='triggered_tags', triggers=['<tool_call>'], tags=[dict(begin='<tool_call>', content=dict(type='json_schema', json_schema={}), end='</tool_call>')]))
    cls = server(TEXT + '[sampling]\nforced = "refuse"\n')
    for ask in (dict(structured_outputs=SimpleNamespace(json=dict(type='object'))), dict(structured_outputs=SimpleNamespace(json_object=True)), dict(structured_outputs=SimpleNamespace(structural_tag=json.dumps(tools))),
                dict(logit_bias={5: -100., 6: 2.}), dict(allowed_token_ids=list(range(500))), dict(logit_bias={i: 100. for i in range(20)})):
        cls.validate_params(p := Params(**ask))
        assert 'dew_all' not in p.extra_args
    with pytest.raises(PolicyRefusal): cls.validate_params(Params(trace_decode_token_ids=[5, 6, 7]))


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
    leave = LeaveAlone(tools=(('<a>', '</a>'), ('<ab>', '</ab>'), ('[TOOL_CALLS]', '')))
    states, after = all_states(leave)
    assert len(states) < 256 and all((x < len(states)).all() for x in after.values())
    assert next_state(leave, ('text',), '<ab>') == ('tool', '</ab>', '') and by_characters('x <ab> y', leave) == ('text',)


def left_alone(tok, text, leave=None):
    "How many tokens of a text are left alone, and how many it has"
    f = Follower(StructuredText(tok, leave), 1)
    ids = tok(text, add_special_tokens=False)['input_ids']
    for i in ids: f.advance(torch.tensor([i]))
    return int(f.counts[0, 3]), len(ids)


@pytest.fixture(scope='module')
def tagged(tok):
    "The tokenizer with tokens that models with tools and reasoning have"
    own = copy.deepcopy(tok)
    own.add_tokens(['<tool_call>', '</tool_call>', '</think>', '<|python_tag|>', '[TOOL_CALLS]'])
    return own


SENTENCE = 'The old harbour was quiet in the evening. '


@pytest.mark.parametrize('text', [json.dumps([SENTENCE.strip()]*30), json.dumps({f'line {i}': SENTENCE.strip() for i in range(30)}), json.dumps(SENTENCE.split()*25), json.dumps({f'k{i}': 'The old harbour' for i in range(60)})])
def test_prose_in_pieces_of_json_is_marked(tok, text):
    "Sentences, or words, that are each short enough: of one answer at most 100 tokens of strings are left alone, and what stands between them"
    alone, n = left_alone(tok, text)
    between = len([c for c in text if c in '[]{},: "'])
    words = sum(len(tok(s, add_special_tokens=False)['input_ids']) for s in re.findall('"([^"]*)"', text))
    assert words > 200 and alone < 100 + between
    assert left_alone(tok, text, LeaveAlone(words=10**6))[0] > .9*n


def test_tags_are_tokens(tok, tagged):
    "A tag that is spelled out is words like any others, and one that a tokenizer has not got counts nowhere"
    for own in (tok, tagged):
        spelled = ' '.join('<|python_tag|>') + SENTENCE*20
        assert left_alone(own, spelled)[0] == 0
    for tag in ('<tool_call>', '<|python_tag|>', '[TOOL_CALLS]', '<function='): assert left_alone(tok, tag + SENTENCE*20)[0] <= 1    # a bracket might be JSON
    call = '<tool_call>{"name": "find", "arguments": {"town": "Cork"}}</tool_call>'
    alone, n = left_alone(tagged, call + SENTENCE)
    assert alone == len(tagged(call, add_special_tokens=False)['input_ids']) - 1 and n > alone + 8


@pytest.mark.parametrize('open, close', [('<tool_call>', '</tool_call>'), ('<|python_tag|>', ''), ('[TOOL_CALLS]', '')])
def test_prose_in_a_tool_call_is_marked(tagged, open, close):
    "In quotes or without, in lines or in one"
    for text in (SENTENCE*20, json.dumps(dict(name='write', arguments=dict(text=SENTENCE*20))), (SENTENCE + '\n')*20, f'<parameter=text>{SENTENCE*20}</parameter>'):
        alone, n = left_alone(tagged, open + text + close)
        assert n > 150 and alone < 130
    assert left_alone(tagged, open + SENTENCE*20 + close, LeaveAlone(prose=10**6, words=10**6))[0] > 150


def test_prose_in_the_line_that_opens_a_fence_is_marked(tok):
    alone, n = left_alone(tok, '```' + SENTENCE*20)
    assert n > 150 and alone < 40


def test_json_after_reasoning(tok, tagged):
    "What a model has thought does not keep its JSON from being JSON; an unclosed fence in its thoughts does not go on"
    data = json.dumps(dict(town='Cork', boats=[3, 5, 8]))
    for thought in ('I must say it as JSON.\n', 'Perhaps so:\n```\nx = 1\n'):
        alone, _ = left_alone(tagged, f'{thought}</think>\n\n{data}')
        assert left_alone(tagged, thought)[0] + len(tok(data, add_special_tokens=False)['input_ids']) - 2 <= alone
    assert left_alone(tagged, f'{thought}</think>\n\n{SENTENCE*5}')[0] == left_alone(tagged, thought)[0] + 1
    assert left_alone(tok, 'I must say it as JSON.\n</think>\n\n' + data)[0] == 0                      # no such token


def test_limits_of_an_enforced_policy():
    "Of an answer at most 200 tokens are left alone unless the file says more; a policy that is not enforced leaves 1000"
    assert (Policy.parse(TEXT).exempt.most, Policy.parse('enforce = false\n' + TEXT).exempt.most, Policy.parse(TEXT + 'most = 700').exempt.most) == (200, 1000, 700)
    assert Policy.parse(TEXT).exempt.words == 100 and Policy.parse(TEXT + 'words = 5').exempt.leave.words == 5


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


def lines_of(path): return [json.loads(x) for x in path.read_bytes().splitlines()]


def test_a_cut_of_a_living_log_is_in_the_log(tmp_path):
    "Cut, deleted, put back as it was, or written anew with a good chain: the process that wrote more says so in its next line"
    path = tmp_path/'m.jsonl'
    log = PolicyLog(path)
    def fill():
        for i in range(4): log.append('refused', reason='opt-out')
    fill()
    kept = path.read_bytes().splitlines(keepends=True)
    other = tmp_path/'other.jsonl'
    for i in range(9): PolicyLog(other).append('refused', reason='opt-out')
    for i,damage in enumerate((lambda: path.write_bytes(b''.join(kept[:2])), path.unlink, lambda: path.write_bytes(b''.join(kept)), lambda: path.write_bytes(other.read_bytes()), lambda: path.write_bytes(b''))):
        n, head = len(lines_of(path)), verify_log(path).head
        damage()
        log.append('refused', reason='opt-out')
        alarm = lines_of(path)[-2]
        assert (alarm['event'], alarm['reason'], alarm['lines'], alarm['head']) == ('alarm', 'cut', n, head)
        assert verify_log(path).alarms == dict(cut=1)
        fill()


def test_lines_of_others_are_no_cut(tmp_path):
    "Another process appends to the same file, and one that was stopped leaves half a line"
    path = tmp_path/'m.jsonl'
    a, b = PolicyLog(path), PolicyLog(path)
    for i in range(5): a.append('refused', reason='opt-out'); b.append('refused', reason='opt-out')
    with path.open('ab') as f: f.write(b'{"n": 10, "ti')
    a.append('refused', reason='opt-out'); b.append('refused', reason='opt-out')
    assert verify_log(path).events == dict(refused=12, resumed=1)


class Full(io.FileIO):
    "A disk that takes some bytes at a time, and then no more"
    room = 0
    def write(self, data):
        if Full.room <= 0: raise OSError(28, 'No space left on device')
        n = super().write(bytes(data[:min(len(data), 50, Full.room)]))
        Full.room -= n
        return n


@pytest.fixture
def disk(monkeypatch):
    "Files that are appended to are on such a disk"
    monkeypatch.setattr(Path, 'open', lambda path, mode='r', *a, **k: Full(path, 'a') if mode == 'ab' else open(path, mode, *a, **k))
    Full.room = 10**6
    return Full


def test_all_of_a_line_is_written(tmp_path, disk):
    "A file may take fewer bytes than it was given"
    log = PolicyLog(tmp_path/'m.jsonl')
    for i in range(3): log.append('written', request=f'r{i}/0', tokens=9, marked=6, exempt=0)
    assert verify_log(log.path).tokens == 27


def test_a_full_disk_ends_no_answer_and_loses_no_line(tmp_path, disk, caplog):
    "What could not be written is said, kept, and written when there is room; half a line is taken back; meanwhile no request is accepted"
    from dew_nb.serving.ledger import Ledger
    log = PolicyLog(tmp_path/'m.jsonl')
    ledger = Ledger(None, log)
    log.append('started', policy='p', key='k')
    for i in range(3): ledger.open(i, f'r{i}', True, k=3)
    disk.room = 70
    good = log.path.read_bytes()
    for i in range(3): ledger.close(i, 20 + i)
    assert 'could not be written' in caplog.text and len(log.waiting) == 3
    assert log.path.read_bytes() == good and verify_log(log.path).lines == 1
    with pytest.raises(OSError): log.append('accepted', request='r9', policy='p', decision='marked')
    disk.room = 10**6
    log.append('accepted', request='r9', policy='p', decision='marked')
    found = verify_log(log.path)
    assert found.events == dict(started=1, written=3, accepted=1) and found.tokens == 63 and not log.waiting


def test_a_lock_that_is_held_ends_no_answer(tmp_path, caplog):
    "The same for a lock that another process does not give back; one does not wait for it at each answer"
    from filelock import FileLock
    from dew_nb.serving.ledger import Ledger
    log = PolicyLog(tmp_path/'m.jsonl')
    ledger = Ledger(None, log)
    for i in range(100): ledger.open(i, f'r{i}', True, k=3)
    with FileLock(f'{log.path}.lock'), ends_within(50):                # a wait at each answer is 100 seconds
        for i in range(100): ledger.close(i, 9)
    assert len(log.waiting) == 100
    log.flush()
    assert verify_log(log.path).tokens == 900


def test_a_refusal_is_a_refusal_without_a_log(server, tmp_path):
    "What is refused stays refused where the log can't be written, and is not forgotten"
    cls = server()
    (tmp_path/'marks.jsonl').mkdir()
    with pytest.raises(PolicyRefusal): cls.validate_params(Params(temperature=0.))
    with pytest.raises(OSError): cls.validate_params(Params())
    (tmp_path/'marks.jsonl').rmdir()
    cls.validate_params(Params())
    assert verify_log(tmp_path/'marks.jsonl').events == dict(refused=1, accepted=1)


@pytest.mark.parametrize('bad', [dict(tokens=5, marked=9999, exempt=-4), dict(tokens=5, marked=4, exempt=2), dict(tokens=-1, marked=0, exempt=0), dict(tokens=5), dict(tokens=5, marked=5)])
def test_counts_that_cannot_be(tmp_path, bad):
    "Neither written nor read"
    log = PolicyLog(tmp_path/'m.jsonl')
    with pytest.raises(ValueError, match='tokens, marked.* exempt'): log.append('written', request='a/0', **bad)
    line = json.dumps(dict(n=0, time='2026', event='written', request='a/0', **bad, previous='0'*64))
    log.path.write_text(line + '\n')
    with pytest.raises(ValueError, match='line 1: .*tokens, marked.* exempt'): verify_log(log.path)


@pytest.mark.parametrize('bad', [b'['*100_000, b'{"n": 0, "n": 0}', b'9'*5000, b'{"event":  "refused"}', b'\xff\xfe', b'x'*10**6, b'{"n": 0, "time": "2026", "event": "accepted", "previous": "' + b'0'*64 + b'"}'])
def test_bad_lines_are_told(tmp_path, bad):
    "By their number, whatever they are; and the command ends with 1 and one line"
    path = tmp_path/'m.jsonl'
    path.write_bytes(bad + b'\n')
    with pytest.raises(ValueError, match='line 1'): verify_log(path)


def test_a_long_log_needs_little_memory(tmp_path):
    "A line at a time"
    import tracemalloc
    path, before = tmp_path/'m.jsonl', '0'*64
    with path.open('w') as f:
        for n in range(30_000):
            line = json.dumps(dict(n=n, time='2026-11-18T00:00:00.000+00:00', event='refused', reason='opt-out', previous=before))
            before = hashlib.sha256(line.encode()).hexdigest()
            f.write(line + '\n')
    tracemalloc.start()
    found = verify_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.lines == 30_000 and found.head == before and peak < path.stat().st_size/5


def test_accepted_is_what_was_accepted(server, tmp_path):
    "A request that one of the later checks refuses is in the log as refused, and nothing stays open"
    cls = server()
    with pytest.raises(ValueError, match='DEW_ALLOW_TEXT_NAME=1'): cls.validate_params(Params(extra_args=dict(dew_text='one name')))
    found = verify_log(tmp_path/'marks.jsonl')
    assert (found.events, found.reasons, found.open) == (dict(refused=1), dict(arguments=1), 0)


def test_signed_heads(tmp_path):
    "Say what a log held, whoever can write the log"
    from dew_nb.models.signing import make_key_pair
    from dew_nb.serving.audit import read_heads, sign_head
    private, public = make_key_pair(tmp_path/'auditor.pem')
    log = PolicyLog(tmp_path/'m.jsonl')
    for i in range(6):
        log.append('written', request=f'r{i}/0', tokens=10 + i, marked=7, exempt=0)
        if i in (2, 4): sign_head(log.path, private)
    heads = read_heads(f'{log.path}.heads', public)
    assert [h['lines'] for h in heads] == [3, 5] and verify_log(log.path, heads=heads).lines == 6
    good = log.path.read_bytes()
    log.path.write_bytes(b''.join(good.splitlines(keepends=True)[:4]))
    with pytest.raises(ValueError, match='cut off'): verify_log(log.path, heads=heads)
    log.path.unlink()
    for i in range(6): PolicyLog(log.path).append('written', request=f'r{i}/0', tokens=10 + i, marked=6, exempt=0)
    with pytest.raises(ValueError, match='written anew'): verify_log(log.path, heads=heads)
    with pytest.raises(ValueError, match='another key'): read_heads(f'{log.path}.heads', make_key_pair(tmp_path/'other.pem')[1])
    said = (tmp_path/'m.jsonl.heads').read_text()
    for bad in (said.replace('"lines": 5', '"lines": 4'), said + '[]\n', said + '['*10**5 + '\n', said[:-1] + ' x\n'):
        (tmp_path/'m.jsonl.heads').write_text(bad)
        with pytest.raises(ValueError): read_heads(f'{log.path}.heads', public)


# ---------------------------------------------------------------- one policy in all processes
def test_a_policy_that_was_changed_is_not_served(server, tmp_path, monkeypatch):
    "The digest is noted when vLLM starts; processes that begin later refuse another one, and the one that began keeps what it has read"
    cls = server()
    native.register()
    assert os.environ['DEW_POLICY_DIGEST'] == Policy.parse(TEXT).digest
    (tmp_path/'policy.toml').write_text(TEXT + 'most = 5000')
    cls.validate_params(Params())
    served.served_policy.cache_clear()
    with pytest.raises(ValueError, match='was changed'): cls.validate_params(Params())
    with pytest.raises(ValueError, match='was changed'): cls(config(), torch.device('cpu'), False)


def test_an_engine_with_another_policy_leaves_nothing_alone(server, tmp_path, caplog):
    "Where the digest was not noted: each request brings the digest it was accepted under"
    cls, p = server(), Params()
    proc = server(TEXT + 'most = 5000')(config(), torch.device('cpu'), False)
    (tmp_path/'policy.toml').write_text(TEXT)
    served.served_policy.cache_clear()
    cls.validate_params(p)
    code = proc.batch.markers['now'].scheme
    tokens = toy_host().tokenizer('Here:\n```python\nx = 1 + y + z + 3', add_special_tokens=False)['input_ids']
    proc.update_state(change(added=[(0, p, [1], tokens)]))
    x = torch.randn(1, 49152)
    assert not torch.equal(proc.apply(x.clone()).softmax(-1), x.softmax(-1))
    proc.update_state(change(added=[(1, p, [1], list(tokens))], removed=[0]))
    proc.update_state(change(removed=[1]))
    found = verify_log(tmp_path/'marks.jsonl')
    assert found.alarms == {'another policy': 1} and found.exempt == 0 and 'another policy' in caplog.text
