"Many keys from one secret: each text draws one, the detector tries all and counts its looks"
import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.stats.calibration import NullCalibration
from dew_nb.read.detection import measure
from dew_nb.read.identification import identify
from dew_nb.mark.generation import prompt_names
from dew_nb.mark.marking import draw_subkeys
from dew_nb.mark.processor import DEWLogitsProcessor
from dew_nb.mark.protocols import insert
from dew_nb.mark.sources import reference_texts
from dew_nb.read.verdicts import detector_info, info_text
from quick import Letters, toy_host

KEY = SecretKey(b'an example key: never use this one')
CONFIG = dict(m=64, n=32, layers=12, k=3, context_decay=1., context_damping=None, context_width=None,
              token_repeat=1., context_separate=False, screen=False)         # an earlier default, whose numbers are held
PROMPTS = ['The old harbour', 'To bake a good loaf of bread', 'Bread', 'Yesterday the city council decided']


@pytest.fixture(scope='module')
def wm():
    return DEW.build(toy_host(), Letters(), KEY, DEWConfig(**CONFIG, keys=16), progress=False)


@pytest.fixture(scope='module')
def marked(wm):
    return wm.generate(PROMPTS, max_new_tokens=40, seed=1)


def test_one_key_is_what_it_was(wm):
    "The numbers of a single key, held as a digest; sub-keys share its table and nothing else"
    one = DEW.build(wm.host, Letters(), KEY, DEWConfig(**CONFIG), progress=False)
    assert hashlib.sha256(one.rule.M.numpy().tobytes()).hexdigest()[:16] == 'ec2c92b4b63c5b3f'
    assert torch.equal(one.table.rows, wm.table.rows)
    parts = wm.rule.M.unflatten(0, (16, -1))
    assert not any(torch.equal(p, one.rule.M) for p in parts) and len({p.sum().item() for p in parts}) == 16
    assert draw_subkeys(one, 3) is None and one.config.digest == DEWConfig(**CONFIG).digest != wm.config.digest


def test_the_detector_finds_what_was_drawn(wm, marked):
    drawn = draw_subkeys(wm, 4, prompt_names(PROMPTS, 1)).tolist()
    found = wm.detector().detect(marked)
    assert [r.subkey for r in found] == drawn and len(set(drawn)) > 1
    assert all(r.p_value < 1e-3 and r.keys == 16 for r in found)
    plain = wm.detector().detect(wm.generate(PROMPTS, max_new_tokens=32, seed=1, mark=False))
    assert not any(r.marked(.01) for r in plain)
    other = wm.rekey(SecretKey(b'another key: never use this one')).detector().detect(marked)
    assert not any(r.marked(.01) for r in other)


def test_p_value_counts_all_looks(wm, marked):
    r = wm.detector().detect(marked[0])
    assert r.p_value == pytest.approx(1 - (1 - stats.norm.sf(r.z))**16, rel=1e-6)
    shown = r.token_scores[r.counted]
    assert shown.mean() == pytest.approx(r.score, abs=1e-6) and r.z == pytest.approx((r.score - r.expected)/r.sd, abs=1e-9)
    assert 'sub-key' in r.to_html() and r.to_dict()['subkey'] == r.subkey
    empty = wm.detector().detect('')
    assert (empty.p_value, empty.z, empty.subkey) == (1, 0, None)


def test_generation_is_reproducible_whatever_the_batch(wm, marked, monkeypatch):
    "A text's sub-key goes by seed and prompt: not by batch size, order or padding"
    assert wm.generate(PROMPTS, max_new_tokens=40, seed=1) == marked
    seen = []
    draw = type(wm.rule).draw
    monkeypatch.setattr(type(wm.rule), 'draw', lambda self, names: seen.append(draw(self, names)) or seen[-1])
    kw = dict(max_new_tokens=1, progress=False)
    for prompts,size in ((PROMPTS, 4), (PROMPTS, 1), (PROMPTS[::-1], 2)):
        seen.clear()
        wm.generate(prompts, seed=1, batch_size=size, **kw)
        rows = [k for s in seen for k in s]
        assert (rows if prompts is PROMPTS else rows[::-1]) == draw(wm.rule, [f'{n}/0' for n in prompt_names(PROMPTS, 1)])
    seen.clear()
    wm.generate(['Bread', 'Bread'], seed=1, num_return_sequences=8, **kw)
    assert len(seen) == 1 and len(seen[0]) == 16 and len(set(seen[0])) > 5         # each text its own
    seen.clear()
    for _ in range(8): wm.generate('Bread', seed=None, **kw)
    assert len({s[0] for s in seen}) > 2


def test_several_texts_of_a_prompt(wm):
    texts = wm.generate(PROMPTS[:2], max_new_tokens=32, seed=3, num_return_sequences=3)
    drawn = draw_subkeys(wm, 6, prompt_names(PROMPTS[:2], 3)).tolist()
    found = wm.detector().detect([t for x in texts for t in x])
    right = [r.subkey == k for r,k in zip(found, drawn) if r.n_scored > 20]
    assert len(right) > 3 and all(right)


def test_plain_transformers(wm):
    "torch's seed governs the draw; each generation draws anew; names make it certain"
    tok, model = wm.host.tokenizer, wm.host.model
    inp = tok(PROMPTS, return_tensors='pt', padding=True, padding_side='left')
    made = []
    class Note(DEWLogitsProcessor):
        def begin(self, ids):
            super().begin(ids)
            made.append(self.subkeys.tolist())
    def run(seed, p):
        made.clear()
        torch.manual_seed(seed)
        model.generate(**inp, logits_processor=[p], max_new_tokens=3, do_sample=True, top_k=0,
                       pad_token_id=tok.pad_token_id)
        assert len(made) == 3 and made[0] == made[1] == made[2]                     # one draw a row and call
        return made[0]
    p, P = Note(wm), inp['input_ids'].shape[1]
    first = run(0, p)
    assert run(0, p) == first == run(0, Note(wm, P)) and run(1, p) != first and len(set(first)) > 1
    fixed = Note(wm, P)
    assert run(0, fixed) == first and run(1, fixed) != first                        # a new generation, with a known length too
    assert run(1, Note(wm, P, list('abcd'))) == run(2, Note(wm, None, list('abcd')))
    with pytest.raises(ValueError, match='3 names for a batch of 4 rows'): run(0, Note(wm, P, list('abc')))


def test_rows_are_marked_as_if_alone(wm, monkeypatch):
    "By table or by windows on the CPU, in a batch or alone: the same probabilities"
    g = torch.Generator().manual_seed(0)
    ids, scores = torch.randint(300, 900, (6, 20), generator=g), torch.randn(6, wm.host.vocab_size, generator=g)
    ids[1, -2] = int(wm.contexts.special[0])
    names = list('uvwxyz')
    fast = wm.processor(4, names)(ids, scores)
    alone = torch.cat([wm.processor(4, [n])(ids[i:i+1], scores[i:i+1]) for i,n in enumerate(names)])
    assert torch.allclose(fast.softmax(-1), alone.softmax(-1), atol=1e-6)
    monkeypatch.setattr(wm.contexts, 'needs_encoder', True, raising=False)
    slow = wm.processor(4, names)(ids, scores)
    assert torch.allclose(fast.softmax(-1), slow.softmax(-1), atol=1e-6)


def test_a_step_waits_for_nothing(wm):
    "Gathering and inserting on a device without numbers: whatever looked at one would fail"
    rule, empty = wm.rule, lambda *shape, **kw: torch.empty(*shape, device='meta', **kw)
    far = replace(rule, M=rule.M.to('meta'), a=rule.a.to('meta'), table=replace(wm.table, rows=wm.table.rows.to('meta')))
    q = far.project(empty(3, rule.M.shape[1]), empty(3, dtype=torch.long))
    assert insert(far, empty(3, 1000), q, empty(3, dtype=torch.bool)).shape == (3, 1000)


@pytest.mark.long
def test_p_values_are_true_over_keys(wm):
    "Fixed texts, random secrets: the share accused at 5%, and scores of sub-keys that have nothing to do with each other"
    texts = [' '.join(t.split()[:60]) for t in reference_texts() if len(t.split()) > 60][:6]
    docs = list(wm.detector().reader.read(texts))
    few, c = wm.narrow(np.concatenate([d.ids for d in docs])), wm.contexts.encode(np.concatenate([d.windows for d in docs]))
    p, z = [], []
    for i in range(80):
        s = few.rekey(SecretKey(i.to_bytes(16, 'big')))
        x = measure([s], docs, c)[0].evidence()
        p.append(s.null(x.L, x.pairs, x.cov).p_value(x.mean))
        all_ = s.rule.score_all(c, torch.from_numpy(np.concatenate([d.tokens for d in docs]))).double().numpy()
        mean = np.stack([x.sums.total(k) for k in all_.T], 1)/x.L[:,None]
        z.append(s.null(x.L, x.pairs).one.z(mean.T))
    p, z = np.array(p), np.array(z)                                                 # (secrets, texts), (secrets, keys, texts)
    assert .015 < (p <= .05).mean() < .08 and .10 < (p <= .2).mean() < .26           # the allowance for leans keeps it below
    assert .9 < z.std() < 1.1
    pairs = (z.sum(1)**2 - (z**2).sum(1)).mean()/(16*15)                            # mean product of two sub-keys
    assert abs(pairs) < .04


def test_files(wm, marked, tmp_path):
    det = wm.detector()
    path = det.save(tmp_path/'s.dew')
    again = Detector.load(path)
    for x,y in zip(det.detect(marked), again.detect(marked)): assert x.subkey == y.subkey and x.z == pytest.approx(y.z, abs=1e-6)
    assert 'keys=16' in repr(again) and '16 sub-keys' in info_text(detector_info(path))
    assert wm.rule.draw(['a']) == again.scheme.rule.draw(['a'])
    assert KEY._raw not in path.read_bytes() and not any(k._raw in path.read_bytes() for k in KEY.split(16))


def test_scan_finds_passages_of_different_subkeys(wm):
    words = ' '.join(reference_texts()[:40]).split()
    text = [' '.join(words[i:i+200]) for i in (0, 300, 600)]
    a, b = wm.generate(PROMPTS[:2], max_new_tokens=80, min_new_tokens=80, seed=5)
    essay = '\n\n'.join([text[0], a.strip(), text[1], b.strip()])
    r = wm.detector().scan(essay, replicates=99)
    assert [s.subkey for s in r.spans] == draw_subkeys(wm, 2, prompt_names(PROMPTS[:2], 5)).tolist()
    assert r.null.keys == 16 and r.p_value < .01 and r.to_html() and r.to_dict()['spans'][0]['subkey'] == r.spans[0].subkey
    assert not wm.detector().scan(text[2], replicates=99).spans


def test_identify(wm, marked):
    other = wm.rekey(SecretKey(bytes(16)))
    who = identify(marked[0], [other.detector(), wm.detector()])
    assert who.key == KEY.fingerprint and who.results[1].subkey is not None


def test_long_text_in_pieces(wm, monkeypatch):
    import dew_nb.read.evidence as d, dew_nb.read.text as t
    words = [''.join(chr(97+c) for c in x) for x in np.random.default_rng(0).integers(0, 26, (700, 4))]
    text = ' '.join(words)
    whole = wm.detector().detect(text)
    for m in (d, t): monkeypatch.setattr(m, 'LONG', 500)
    pieces = wm.detector().detect(text)
    assert pieces.subkey == whole.subkey and pieces.score == pytest.approx(whole.score, abs=1e-5)
    assert pieces.z == pytest.approx(whole.z, rel=1e-4)          # so few positions: all pairs, in pieces as well


def test_refusals(wm):
    with pytest.raises(ValueError, match="know no field 'keys' .rule='tournament' has it"): DEWConfig.preset('calibrated', keys=64)
    for bad in (0, 1.5, 5000):
        with pytest.raises(ValueError, match='keys must be'): DEWConfig(**CONFIG, keys=bad)
    with pytest.raises(ValueError, match='16 sub-keys'): wm.project(np.array([[5, 6, 7]]))
    cal = NullCalibration.fit(np.random.default_rng(0).normal(size=50)/5, [30]*50)
    with pytest.raises(NotImplementedError, match='tries 16'): wm.detector().calibrated(cal)


def test_order_one_has_no_anchor(wm, caplog):
    one = DEW.build(wm.host, Letters(), KEY, DEWConfig(**CONFIG, keys=4, order=1), progress=False)
    assert one.anchor is None and not caplog.records
    text = one.generate('The old harbour', max_new_tokens=48, seed=2)
    assert one.detector().detect(text).marked(.01)
