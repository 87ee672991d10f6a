"""The preset `standard`: screened keys, hashed pieces, and texts that cannot be judged."""
from dataclasses import replace

import numpy as np
import pytest

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.mark.screening import ScreeningSample, choose_signs, screening_texts
from dew_nb.read.scan import Positions, window_laws
from dew_nb.read.verdicts import Judgement

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

# ---- texts in languages that keys are not screened on

GREEK = ('Το παλιό λιμάνι ήταν ήσυχο εκείνο το πρωί και οι βάρκες δεν είχαν γυρίσει ακόμη από το ψάρεμα. Ο άντρας στεκόταν στην ακτή και κοίταζε '
         'τη γκρίζα θάλασσα. Σκεφτόταν τι του είχε πει η κόρη του και το γράμμα που έμενε κλειστό επάνω στο τραπέζι του σπιτιού. ')
ENGLISH = ('The old harbour was quiet that morning, and the boats had not come back from the fishing grounds. A man stood on the shore and looked at the '
           'grey sea. He thought of what his daughter had told him, and of the letter that lay unopened on the table at home.')

def lenient(wm): return replace(wm, familiar=None, blueprint=replace(wm.blueprint, familiar=None))

def test_another_language_needs_a_higher_score(wm):
    "The same mean score, a larger p-value; in familiar text of this length nothing changes"
    for text,unfamiliar in ((ENGLISH, False), (RUSSIAN, False), (GREEK, True)):
        new, old = wm.detector().detect(text), lenient(wm).detector().detect(text)
        assert new.score == old.score and new.sd == old.sd and new.unfamiliar == unfamiliar and not old.unfamiliar
        if unfamiliar: assert new.expected > 3*old.expected and new.p_value > old.p_value
        else: assert new.p_value == pytest.approx(old.p_value, rel=.1)

def test_scans_judge_each_window(wm):
    "English beside Greek is scanned as English alone, Greek is not"
    P = [Positions.of(s, d, s.contexts.encode(d.windows)) for s in (wm, lenient(wm)) for d in wm.detector().reader.read([ENGLISH + '\n\n' + GREEK])]
    (new, _), (old, _) = (window_laws(p, wm.rule, [5, 12]) for p in P)
    ratio = (new[0]/old[0]).numpy()
    assert ratio[0] == pytest.approx(1, abs=.01) and ratio[-1] > 2

def test_familiarity_is_in_the_file(wm, tmp_path):
    "It is saved and loaded; a file without it is read as before"
    wm.detector().save(tmp_path/'new.dew')
    lenient(wm).detector().save(tmp_path/'old.dew')
    new, old = (Detector.load(tmp_path/f'{x}.dew') for x in ('new', 'old'))
    assert old.scheme.familiar is None and (new.scheme.familiar.ratio == wm.familiar.ratio).all()
    assert new.detect(GREEK).p_value == pytest.approx(wm.detector().detect(GREEK).p_value, rel=1e-3)
    assert old.detect(GREEK).p_value < new.detect(GREEK).p_value

def test_the_verdict_says_so(wm):
    "A reader is told why only a strong mark would show"
    said = Judgement.of_text('greek.txt', wm.detector().detect(GREEK*3)).says()
    assert 'not screened on' in said and said.startswith('not marked')
    assert 'screened' not in Judgement.of_text('english.txt', wm.detector().detect(ENGLISH)).says()
