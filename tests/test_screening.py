"""The preset `standard`: screened keys, hashed pieces, and texts that cannot be judged."""
import numpy as np
import pytest

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.mark.screening import ScreeningSample, choose_signs, screening_texts

KEY = SecretKey(bytes(range(32)))
RUSSIAN = ('Старая гавань была тихой в то утро, и лодки ещё не вернулись с промысла. Человек стоял на берегу и смотрел на серое море. '
           'Он думал о том, что вчера сказала ему дочь, и о письме, которое лежало дома на столе нераспечатанным. ')

@pytest.fixture(scope='module')
def wm(): return DEW.build(load_host(), load_encoder(), KEY, DEWConfig.preset('standard'), progress=False)

def test_marks_and_reads(wm, tmp_path):
    "Generate, detect, save, load"
    text = wm.generate('The old harbour', max_new_tokens=60)
    r = wm.detector().detect(text)
    wm.detector().save(tmp_path/'a.dew')
    again = Detector.load(tmp_path/'a.dew')
    assert r.z > 4 and r.judged
    assert again.detect(text).z == pytest.approx(r.z, abs=1e-3)
    assert again.meta['screening']['counter'] == list(wm.meta['screening']['counter'])
    assert again.scheme.rule.allowance_short == wm.rule.allowance_short < .009

def test_signs_take_leans_away(wm):
    "Measured again with the chosen signs, no kind of the sample leans much; without them some kind does"
    said = wm.meta['screening']
    leans = wm.rule.layer_leans(wm.blueprint.sample_contexts, wm.blueprint.sample).sum(1)
    assert np.abs(leans).max() == pytest.approx(said['worst_after'], abs=1e-4)
    assert said['worst_after'] < .02 < said['worst_before']

def test_signs_are_the_same_in_any_precision(wm):
    "Embeddings of float32 and bfloat16 give one key the same signs"
    host = load_host()
    from copy import copy
    half = copy(host)
    object.__setattr__(half, 'embeddings', host.embeddings.bfloat16())
    other = DEW.build(half, load_encoder(), KEY, DEWConfig.preset('standard'), progress=False)
    assert other.meta['screening']['counter'] == wm.meta['screening']['counter']

def test_each_subkey_is_screened(wm):
    few = DEW.build(wm.host, load_encoder(), KEY, DEWConfig.preset('standard', keys=2), progress=False)
    assert len(few.meta['screening']['counter']) == 2

def test_other_scripts_do_not_collapse(wm):
    "Scores of a Russian text are nearly independent; with the older preset they are not, and a long text is not judged"
    old = DEW.build(wm.host, load_encoder(), KEY, DEWConfig.preset('tournament'), progress=False).detector().detect(RUSSIAN)
    new = wm.detector().detect(RUSSIAN)
    assert new.l_eff > .6*new.n_scored and old.l_eff < .25*old.n_scored
    assert new.judged and not old.judged and old.p_value == 1

def test_own_reference_is_one_kind_more(wm):
    texts = ['A short note on the tides. They turn twice a day, and the boats turn with them.']*3
    own = DEW.build(wm.host, load_encoder(), KEY, DEWConfig.preset('standard'), reference=texts, progress=False)
    assert own.meta['screening']['kinds'][-1] == 'own'

def test_sample():
    texts = screening_texts()
    assert len(texts) == 13 and all(sum(map(len, v)) > 60_000 for v in texts.values())
    sample = ScreeningSample.read({'en': texts['en'][:2]}, load_host().tokenizer, 3, 49152)
    assert sample.windows.shape == (len(sample), 3) and len(sample) > 200
    signs, _ = choose_signs(KEY, np.zeros((1, 30)))
    assert set(np.abs(signs)) == {1.}
