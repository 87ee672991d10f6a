"Reading with the host: the same probabilities as when a text was written, an e-value, and the same answer however the text comes in"
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from quick import Letters, toy_host

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_host
from dew_nb.mark.generation import prompt_ids
from dew_nb.read.host_reader import HostReader, drawn_rules, guess_requests, log_ratios, trust_of
from dew_nb.read.host_view import Sampler, host_views
from dew_nb.stats.evalues import average_e

KEY = SecretKey(b'an example key: never use this one')
PROMPTS = ['The old harbour', 'Bread is best when']
HOW = dict(max_new_tokens=32, seed=3, temperature=.9, top_p=.95, no_repeat_ngram_size=0)
SAMPLER = Sampler(.9, .95)


@pytest.fixture(scope='module')
def host(): return load_host()

def build(host, **how): return DEW.build(host, Letters(), KEY, DEWConfig(**dict(k=3, context_width=None) | how), progress=False)

@pytest.fixture(scope='module')
def wm(host): return build(host)

@pytest.fixture(scope='module')
def texts(wm): return [wm.generate(PROMPTS, mark=m, **HOW) for m in (True, False)]

@pytest.fixture(scope='module')
def reader(wm, host): return wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95)


def test_the_probabilities_are_those_of_the_processor(wm, host, texts):
    "Step by step, as transformers calls the processor, and all at once"
    before, ids = (host.tokenizer(t, add_special_tokens=a)['input_ids'] for t,a in ((PROMPTS[0], True), (texts[0][0], False)))
    view, = host_views(wm, host, [before], [np.array(ids)], [SAMPLER])[0]
    mine = (log_ratios(wm.rule, view) + view.own).exp()
    whole, processor = torch.tensor([before + ids]), wm.processor(len(before), drawn=True)
    with torch.no_grad(): logits = host.model(input_ids=whole).logits[0]
    theirs = []
    for t in range(len(ids)):
        at = len(before) + t
        out = processor(whole[:, :at], SAMPLER.warp(logits[at-1:at].clone()))
        theirs.append(float(out.log_softmax(-1)[0, ids[t]].exp()))
    assert np.allclose(np.array(theirs)[view.at.numpy()], mine.numpy(), atol=2e-4)
    unmarked = sorted(set(range(3, len(ids))) - set(view.at.tolist()))
    assert all(abs(theirs[t] - float(SAMPLER.warp(logits[len(before)+t-1:len(before)+t]).softmax(-1)[0, ids[t]])) < 1e-5 for t in unmarked)

def test_marked_and_unmarked(reader, texts):
    found, none = (reader.detect(t, PROMPTS) for t in texts)
    assert all(r.log_e > np.log(1000) and r.marked() for r in found)
    assert all(r.log_e < np.log(20) and not r.marked() for r in none)
    assert all(len(r.running) == r.n_tokens and r.running[-1] == pytest.approx(r.log_e) for r in found + none)
    d = found[0].to_dict()
    assert d['p_value'] == pytest.approx(min(1, 2*min(d['score']['p_value'], np.exp(-d['log_e'])))) and d['score']['p_value'] == found[0].score.p_value
    for r in found + none: assert r.p_value == min(1, 2*min(r.score.p_value, min(1, np.exp(-r.log_e)))) and r.marked(.02) == (r.p_value <= .02)
    assert max(r.log_e for r in none) < found[0].log_e_both < found[0].log_e
    kept = reader.record(found[0], .001)
    assert kept['name'] == reader.host.name and kept['marked'] == (found[0].p_value <= .001) and kept['log_e_both'] == d['log_e_both'] and 'score' not in kept

@pytest.mark.long
def test_the_way_in_does_not_matter(reader, wm, host, texts, tmp_path):
    "Alone, in a batch, in small blocks, from a file"
    want = [r.log_e for r in reader.detect(texts[0], PROMPTS)]
    assert reader.detect(texts[0][1], PROMPTS[1]).log_e == pytest.approx(want[1], abs=.02)
    small = HostReader(reader.detector, host, temperature=.9, top_p=.95, room=9*host.vocab_size, batch_size=1)
    assert [r.log_e for r in small.detect(texts[0], PROMPTS)] == pytest.approx(want, abs=.02)
    again = Detector.load(reader.detector.save(tmp_path/'a.dew')).with_host(host, temperature=.9, top_p=.95)
    assert [r.log_e for r in again.detect(texts[0], PROMPTS)] == pytest.approx(want, abs=.05)

def test_the_stream_says_the_same(reader, texts):
    want, flow = reader.detect(texts[0][0], PROMPTS[0]), reader.stream(PROMPTS[0])
    for i in range(0, len(texts[0][0]), 7): flow.feed(texts[0][0][i:i+7])
    flow.close()
    assert flow.running == pytest.approx(want.running, abs=.02) and flow.first(.01) == want.first(.01)
    assert flow.marked(.01) and flow.p_value <= np.exp(-flow.running.max()) + 1e-12
    flow.begin(PROMPTS[1])                                         # the next turn
    flow.feed(texts[0][1])
    flow.close()
    assert flow.log_e == pytest.approx(reader.join(texts[0], PROMPTS)[1], abs=.03)

def test_a_short_turn_stays_in_its_turn():
    "Of 'Yes.' all is held back when the next turn begins: it is read under its own prompt, and not with what follows"
    host = toy_host()
    wm = build(host)
    reader = wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95)
    long = wm.generate(PROMPTS[1], **HOW).strip()
    for turns in (['Yes.', long], [long, 'Yes.', long[:60]], ['', 'Yes.', '', long]):
        asked = [PROMPTS[i % 2] for i in range(len(turns))]
        flow = reader.stream(asked[0])
        for i,(p,t) in enumerate(zip(asked, turns)):
            if i: flow.begin(p)
            assert flow.ids == reader.contexts_before([p])[0]           # of the turn before nothing is left
            flow.feed(t)
        flow.close()
        docs = list(reader.detector.reader.read(turns))
        assert len(flow.running) == sum(len(d.ids) for d in docs) and flow.ids[flow.start:] == docs[-1].ids.tolist()
        assert flow.log_e == pytest.approx(reader.join(turns, asked)[-1], abs=.02)

def test_strings_and_tokens_may_be_mixed(wm, reader):
    "What was held back of a string comes before the tokens that follow"
    for flow in (wm.detector(reading='raw').stream(), reader.stream()):
        tok = reader.host.tokenizer
        flow.feed('The old harbour had been')
        flow.feed(tok(' quiet for years', add_special_tokens=False)['input_ids'])
        flow.feed(', until')
        flow.close()
        ids = flow.ids[getattr(flow, 'start', 0):]
        assert tok.decode(ids) == 'The old harbour had been quiet for years, until' and len(flow.running) == len(ids)

def test_a_text_counts_once(reader, texts):
    once, twice = reader.join([texts[0][0]]*2, [PROMPTS[0]]*2)
    assert once == twice and once == pytest.approx(reader.detect(texts[0][0], PROMPTS[0]).log_e, abs=.02)

def test_stream_without_host(wm, texts):
    det = wm.detector(reading='raw')
    flows = [det.stream() for _ in texts]
    for f, t in zip(flows, texts):
        f.feed(' '.join(t))
        f.close()
    assert flows[0].log_e > flows[1].log_e and not flows[1].marked(.01)

@pytest.mark.long
def test_unknown_sampler_costs_little(reader, wm, host, texts):
    best = reader.detect(texts[0], PROMPTS)
    any_ = wm.detector(reading='raw').with_host(host, samplers=[Sampler(.5), SAMPLER, Sampler(1.)]).detect(texts[0], PROMPTS)
    for a, b in zip(best, any_): assert b.log_e >= a.log_e - np.log(3) - .02

@pytest.mark.long
def test_sub_keys_are_averaged(host):
    wm = build(host, keys=4)
    text = wm.generate(PROMPTS[0], **HOW)
    reader = wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95)
    (doc,), (views,) = reader.views([text], [PROMPTS[0]])
    each = reader.evidence(doc, views)[1].sum(1)
    assert len(each) == 4 and sorted(each)[-1] > np.log(1000) > sorted(each)[-2]
    assert reader.detect(text, PROMPTS[0]).log_e == pytest.approx(float(average_e(each)), abs=1e-6)

@pytest.mark.long
def test_gumbel(host):
    "A rule that is not unbiased: its ratios are divided by what drawn keys give"
    wm = build(host, rule='gumbel')
    reader = wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95)
    marked, plain = (reader.detect(wm.generate(PROMPTS[0], mark=m, **HOW), PROMPTS[0]) for m in (True, False))
    assert marked.log_e > np.log(100) > plain.log_e

@pytest.mark.long
def test_more_leaves(host):
    "Three candidates a toss change the distribution: ratios are divided by what drawn keys give"
    wm = build(host, leaves=3.)
    reader = wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95)
    marked, plain = (reader.detect(wm.generate(PROMPTS[0], mark=m, **HOW), PROMPTS[0]) for m in (True, False))
    assert marked.log_e > np.log(100) > plain.log_e

def test_refused_by_name(wm, host):
    bias = DEW.build(host, Letters(), KEY, DEWConfig.preset('paper', n=32), progress=False)
    with pytest.raises(ValueError, match="rule='bias' changes the host's distribution"): bias.detector().with_host(host)
    other = copy(host)
    other.name, other.tokenizer_digest = 'another host', 'f'*64
    with pytest.raises(ValueError, match="'another host' has digest ffff"): wm.detector().with_host(other)
    with pytest.raises(ValueError, match='1 prompts for 2 texts'): wm.detector().with_host(host).detect(['a', 'b'], ['c'])
    with pytest.raises(TypeError, match='detect takes a string'): wm.detector().with_host(host).detect(b'bytes')
    with pytest.raises(ValueError, match='temperature must be above 0'): wm.detector().with_host(host, temperature=0.)

def test_nothing_to_read(reader):
    for text in ('', 'Hi', ' \n'):
        r = reader.detect(text)
        assert (r.log_e, r.n_counted, r.p_value) == (0., 0, 1.)
    assert reader.detect([]) == []

@pytest.mark.long
def test_a_wrong_host_costs_power_and_no_level(reader, wm, texts):
    "Unmarked texts under drawn keys, with prompts that are not theirs: the tail is that of an e-value"
    docs, views = reader.views(texts[1] + ['The sea was calm. The sea was wide. '*4], [PROMPTS[1], PROMPTS[0], None])
    tops = [np.cumsum(reader.evidence(d, v, scheme=replace(wm, rule=k))[1], 1).max() for k in drawn_rules(wm.rule, 60) for d, v in zip(docs, views)]
    assert np.mean(np.array(tops) >= np.log(20)) <= .05 and np.mean(np.array(tops) >= np.log(100)) <= .02

@pytest.mark.long
def test_p_value_by_drawn_keys(wm, host, texts):
    reader = wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95, draws=19)
    marked, plain = reader.detect([t[0] for t in texts], [PROMPTS[0]]*2)
    assert marked.p_drawn == .05 < plain.p_drawn

def test_a_prompt_that_is_not_known(wm, host, reader, texts):
    "Several are tried, and their e-values averaged; a stream does the same"
    empty, chat = reader.possible(None)
    assert empty == '' and chat[0]['role'] == 'user' and reader.possible('x') == ['x'] and reader.possible('') == ['']
    text = texts[0][0]
    each = [reader.detect(text, p).log_e for p in (empty, chat)]
    whole, flow = reader.detect(text), reader.stream()
    assert whole.log_e == pytest.approx(float(average_e(each)), abs=.02) and whole.log_e > np.log(100)
    for i in range(0, len(text), 9): flow.feed(text[i:i+9])
    flow.close()
    assert flow.running == pytest.approx(whole.running, abs=.02)
    assert reader.join([text, texts[0][1]])[0] == pytest.approx(whole.log_e, abs=.02)

def test_guessed_prompts(wm, host, texts):
    "A guess is one more prompt; it is the same each time"
    text, how = texts[0][0], dict(temperature=.9, top_p=.95)
    guess, = guess_requests(host, [text], 2, max_new_tokens=48)
    assert len(guess) == 2 and guess == guess_requests(host, [text], 2, max_new_tokens=48)[0]
    guessing = wm.detector(reading='raw').with_host(host, guesses=2, **how)
    each = [guessing.detect(text, p).log_e for p in guessing.possible(None, guess)]
    found = guessing.detect([text, 'Hi', text], [None, None, PROMPTS[0]])
    assert len(each) == 4 and found[0].log_e == pytest.approx(float(average_e(each)), abs=.02) and found[1].p_value == 1
    assert found[2].log_e == pytest.approx(guessing.detect(text, PROMPTS[0]).log_e, abs=.02)          # a known prompt is not guessed
    plain = copy(host)
    plain.tokenizer = copy(host.tokenizer)
    plain.tokenizer.chat_template = None
    with pytest.raises(ValueError, match='no chat template'): wm.detector().with_host(plain, guesses=1)
    assert wm.detector().with_host(plain).possible(None) == ['']
    for bad in (-1, 17, 1.5, True):
        with pytest.raises(ValueError, match='guesses must be a whole number'): wm.detector().with_host(host, guesses=bad)

def test_trust(wm, host, texts):
    "It follows from the text, not from the key; less of it after odd tokens; a given share is the same everywhere"
    fixed = wm.detector(reading='raw').with_host(host, temperature=.9, top_p=.95, eps=.3)
    own = replace(fixed.detector.scheme, rule=drawn_rules(wm.rule, 1)[0])
    _, (views,) = fixed.views([texts[0][0] + ' zebra Monday violin. ' + texts[0][1]], [PROMPTS[0]])
    v, r = views[0], log_ratios(own.rule, views[0]).exp().numpy()
    e = fixed.log_factors(own.rule, views, torch.ones(len(v), dtype=torch.bool))[0]
    assert np.allclose(e, np.log(.3 + .7*r), atol=1e-6)
    t = trust_of(v)
    assert ((0 < t) & (t < 1)).all() and v.odd.max() > 0 and t[v.odd > 0].mean() < t[v.odd == 0].mean()

def test_an_empty_prompt_is_the_beginning_of_a_text(reader, host):
    assert reader.contexts_before([None, '']) == [prompt_ids(host.tokenizer, [''])['input_ids'][0].tolist()]*2
