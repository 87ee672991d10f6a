"The tournament rule with compiled contexts from end to end, with an encoder that is quick because it means nothing"
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.mark.processor import DEWWatermarkingConfig
from dew_nb.mark.tournament import layer_weights, tournament
from quick import Letters, toy_host

KEY = SecretKey(b'an example key: never use this one')
CONFIG = dict(m=64, n=64, layers=12, k=3, context_decay=1., context_damping=None, context_width=None)


@pytest.fixture(scope='module')
def wm():
    return DEW.build(toy_host(), Letters(), KEY, DEWConfig(**CONFIG), progress=False)


@pytest.fixture(scope='module')
def texts(wm):
    prompts = ['The old harbour', 'To bake a good loaf of bread']
    return [wm.generate(prompts, max_new_tokens=48, seed=1, mark=m, temperature=.9) for m in (True, False)]


def test_marked_and_unmarked(wm, texts):
    marked, plain = (wm.detector().detect(t) for t in texts)
    assert all(r.p_value < 1e-3 for r in marked) and not any(r.p_value < 1e-2 for r in plain)
    assert all(-1 <= np.nanmin(r.token_scores) and np.nanmax(r.token_scores) <= 1 for r in marked)


def test_what_is_not_said_twice_is_read_as_before(wm, texts):
    "token_repeat changes what is written, and the detector of the scheme without it finds the mark"
    c = wm.contexts
    sparing = replace(wm, contexts=type(c)(c.table, c.units, c.k, c.decay, token_repeat=.05))
    new = sparing.generate(['The old harbour', 'To bake a good loaf of bread'], max_new_tokens=48, seed=1, temperature=.9)
    assert new != texts[0] and all(r.p_value < 1e-3 for r in wm.detector().detect(new))


def gain(p, leaves):
    "Expected score of one token in standard deviations, over drawn bits"
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (4000, 30, len(p)), generator=g).float()*2 - 1
    return (tournament(p.expand(4000, -1), bits, leaves)*torch.einsum('blm,l->bm', bits, layer_weights(30, leaves))/layer_weights(30, leaves).norm()).sum(1).mean().item()


def test_leaves_help_where_there_is_little_to_choose_from():
    "Of two tokens with .9 and .1 six leaves score half as much again as two; of sixty equal ones twelve score less, for the first layers use up the choice"
    few, many = torch.tensor([.9, .1]), torch.full((60,), 1/60)
    assert gain(few, 6.) > 1.5*gain(few, 2.) > 0 and gain(many, 12.) < gain(many, 2.)


def test_leaves_are_kept_and_read(wm, texts, tmp_path):
    "The same detector reads it, a file keeps the choice, and the digest of two leaves is that of a scheme without the choice"
    strong = DEW.build(wm.host, Letters(), KEY, DEWConfig(**CONFIG, leaves=6.), progress=False)
    assert not strong.rule.unbiased and wm.rule.unbiased and strong.config.rule.leaves == 6
    new = strong.generate(['The old harbour', 'To bake a good loaf of bread'], max_new_tokens=48, seed=1, temperature=.9)
    assert all(r.p_value < 1e-3 for r in wm.detector().detect(new)) and new != texts[0]
    again = Detector.load(strong.detector().save(tmp_path/'leaves.dew'))
    assert again.config.rule.leaves == 6 and [r.z for r in again.detect(new)] == pytest.approx([r.z for r in strong.detector().detect(new)], abs=1e-6)
    assert DEWConfig(**CONFIG, leaves=2.) == DEWConfig(**CONFIG)
    for bad in (.5, 65, 'many'):
        with pytest.raises((ValueError, TypeError), match='leaves'): DEWConfig(**CONFIG, leaves=bad)


def test_file_needs_no_encoder(wm, texts, tmp_path):
    "Saved and loaded without an encoder, the detector gives the same verdicts"
    det = wm.detector()
    again = Detector.load(det.save(tmp_path/'t.dew'))
    for x,y in zip(det.detect(texts[0]), again.detect(texts[0])):
        assert x.n_scored == y.n_scored and x.z == pytest.approx(y.z, abs=1e-6)
    assert KEY._raw not in (tmp_path/'t.dew').read_bytes()


ALONE = """
import sys
absent = 'transformers', 'sentence_transformers', 'accelerate', 'gguf', 'sklearn'
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in absent: raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from dew_nb import Detector
print(Detector.load(sys.argv[1]).detect(sys.argv[2]).z)
"""


def test_detects_where_there_is_no_model_library(wm, texts, tmp_path):
    "torch, tokenizers and numpy are enough: transformers and sentence-transformers are not there"
    path = wm.detector().save(tmp_path/'t.dew')
    done = subprocess.run([sys.executable, '-c', ALONE, path, texts[0][0]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(wm.detector().detect(texts[0][0]).z, abs=1e-4)


def test_plain_transformers(wm):
    "The same door for those who call generate themselves: after temperature and top-p"
    tok, model = wm.host.tokenizer, wm.host.model
    inp = tok('The old harbour', return_tensors='pt')
    seen = []
    class Look(DEWWatermarkingConfig):
        def construct_processor(self, vocab_size, device):
            mark = super().construct_processor(vocab_size, device)
            def step(ids, scores): seen.append(scores); return mark(ids, scores)
            return step
    torch.manual_seed(0)
    out = model.generate(**inp, watermarking_config=Look(wm), max_new_tokens=8, do_sample=True, top_k=5, pad_token_id=tok.pad_token_id)
    assert out.shape[1] <= inp['input_ids'].shape[1] + 8
    assert all(torch.isfinite(s).sum() <= 5 for s in seen) and len(seen) > 4


def test_decoding_that_draws_nothing_is_refused(wm):
    with pytest.raises(ValueError, match='do_sample=True'): wm.generate('Bread', do_sample=False)
    with pytest.raises(ValueError, match='do_sample=True'): wm.generate('Bread', num_beams=2)
    for how in (dict(do_sample=False), dict(num_beams=2)): assert wm.generate('Bread', max_new_tokens=1, mark=False, **how)


def test_long_text_in_pieces(wm, monkeypatch):
    "Of a long text the sum over pairs is estimated, a little on the large side; about the same z, also piece by piece"
    import dew_nb.read.evidence as d, dew_nb.stats.keynull as k, dew_nb.read.text as t
    rng = np.random.default_rng(0)
    words = [''.join(chr(97+c) for c in rng.integers(0, 26, 4)) for _ in range(300)]
    text = ' '.join(rng.choice(words, 900))
    whole = wm.detector().detect(text)
    monkeypatch.setattr(k, 'EXACT', 400)
    sampled = wm.detector().detect(text)
    assert sampled.score == pytest.approx(whole.score) and sampled.z == pytest.approx(whole.z, rel=.15, abs=.15)
    for m in (d, t): monkeypatch.setattr(m, 'LONG', 500)
    pieces = wm.detector().detect(text)
    assert pieces.score == pytest.approx(whole.score, abs=1e-5) and pieces.z == pytest.approx(whole.z, rel=.2, abs=.2)


@pytest.mark.parametrize('bad,what', [(dict(layers=0), 'layers'), (dict(order=0), 'order'), (dict(context_decay=0), 'context_decay'),
                                      (dict(rule='tournamnt'), "rule must be one of")])
def test_bad_choices(wm, bad, what):
    with pytest.raises(ValueError, match=what): DEW.build(wm.host, Letters(), KEY, DEWConfig(**(CONFIG | bad)))


def test_nothing_leaves_the_device_and_the_marks_are_the_same(wm, monkeypatch):
    "By table or by windows on the CPU: the same probabilities, row by row; short texts, special tokens and repeats are left alone"
    g = torch.Generator().manual_seed(0)
    ids, scores = torch.randint(300, 900, (6, 20), generator=g), torch.randn(6, wm.host.vocab_size, generator=g)
    ids[1, -2] = int(wm.contexts.special[0])
    ids[2, -6:-3] = ids[2, -3:]
    slow, fast = wm.processor(4, drawn=True), wm.processor(4, drawn=True)
    monkeypatch.setattr(type(wm.contexts), 'needs_encoder', True)
    want = slow(ids, scores).softmax(-1)
    monkeypatch.setattr(type(wm.contexts), 'needs_encoder', False)
    new = fast(ids, scores).softmax(-1)
    assert torch.allclose(new, want, atol=1e-7)
    changed = (new - scores.softmax(-1)).abs().amax(1) > 1e-6
    assert changed.tolist() == [True, False, False, True, True, True]
    assert torch.equal(wm.processor(18, drawn=True)(ids, scores), scores)


@pytest.mark.parametrize('config', [dict(candidates='all'), dict(candidates='top_m', m=64), dict(rule='bias', candidates='all'), dict(rule='bias', candidates='nucleus')], ids=str)
def test_logits_of_any_width_with_repeats_left_alone(config):
    "Gemma, Qwen and Falcon pad their logits; `token_repeat` decides token by token"
    one = DEW.build(toy_host(), Letters(), KEY, DEWConfig(contexts='compiled', n=32, **config), progress=False)
    V = len(one.host.embeddings)
    ids = torch.randint(300, 330, (2, 40), generator=torch.Generator().manual_seed(0))
    for W in (V + 64, V, V - 100):
        s = torch.randn(2, W, generator=torch.Generator().manual_seed(1))
        out = one.processor(prompt_length=0, drawn=True)(ids, s)
        assert out.shape == s.shape and not out.isnan().any()
        assert (out.softmax(-1) - s.softmax(-1)).abs().sum() > .01
