"""The preset `standard`: screened keys, hashed pieces, and texts that cannot be judged."""
from dataclasses import replace

import numpy as np
import pytest

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.mark.screening import ScreeningSample, choose_signs, screening_texts
from dew_nb.read.scan import CountedPositions, ScanOptions, ScoredWindows, window_laws
from dew_nb.read.verdicts import NOT_JUDGED, Judgement, detector_info, info_text

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

@pytest.fixture(scope='module')
def old(wm): return DEW.build(wm.host, load_encoder(), KEY, DEWConfig.preset('tournament'), progress=False)

def test_scans_do_not_judge_what_detect_does_not(wm, old):
    "A long Arabic text, to the older preset: no verdict from `detect`, and none from `scan`, whatever its best window has"
    text = '\n\n'.join(screening_texts()['ar'][:4])
    keys = [SecretKey(bytes([i])*32) for i in range(3)]
    for s in [old, *(old.rekey(k) for k in keys)]:
        r, j = s.detector().scan(text, alpha=.5, replicates=99), s.detector().detect(text)
        assert not j.judged and not r.judged and (r.p_value, r.spans) == (1., []) and r.l_eff == pytest.approx(j.l_eff, rel=.01) and r.z_text == pytest.approx(j.z, abs=.01)
        assert Judgement.of_scan('arabic.txt', r).verdict == NOT_JUDGED and r.to_dict()['judged'] is False and 'cannot be judged' in r.to_html()
    r = wm.detector().scan(text, replicates=99)
    assert r.judged and r.l_eff > 200

def test_collapsed_windows_are_left_out(old):
    "Arabic in the midst of an English text: windows of English are judged, windows of Arabic are not"
    text = '\n\n'.join([*screening_texts()['en'][:3], screening_texts()['ar'][0], *screening_texts()['en'][3:6]])
    doc, = old.detector().reader.read([text])
    P = CountedPositions.of(old, doc, old.contexts.encode(doc.windows))
    w = ScoredWindows.of(old, P, doc.ids, ScanOptions(replicates=0))
    a, b = text.index(screening_texts()['ar'][0]), text.index(screening_texts()['en'][3])
    at = doc.offsets[doc.pos[doc.first]]
    starts, ends = at[w.first, 0], at[w.end-1, 1]
    arabic, english = (starts >= a) & (ends <= b), (ends <= a) | (starts >= b)
    assert arabic.any() and not w.judged[arabic & (w.end - w.first >= 140)].any() and w.judged[english].all() and (w.t[~w.judged] == -np.inf).all()
    assert (w.p_value[~w.judged] == 1).all()

def test_short_texts_in_other_scripts_are_not_judged(wm, old):
    "Fifty tokens of Tamil: to the older preset its scores are nearly all one; English of twenty tokens and more is judged as before"
    tamil = 'அனைத்து மனிதர்களும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும் உரிமைகளிலும் சமமானவர்கள்'
    r = old.detector().detect(tamil[:24])
    assert 20 <= r.n_scored < 50 and r.l_eff < .25*r.n_scored and not r.judged and r.p_value == 1
    assert wm.detector().detect(tamil[:24]).judged
    for s in (wm, old):
        for text in (ENGLISH, *screening_texts()['en'][:8]):
            words = text.split()
            assert all(s.detector().detect(' '.join(words[:n])).judged for n in (18, 30, 45))

def test_dicts_say_unfamiliar(wm):
    for text,told in ((ENGLISH, False), (GREEK, True)):
        both = wm.detector().detect(text), wm.detector().scan(text, replicates=99)
        assert [r.to_dict()['unfamiliar'] for r in both] == [told]*2
    assert 'not screened on' in Judgement.of_scan('greek.txt', both[1]).says()

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

def without_near(wm):
    table = replace(wm.familiar, near=None)
    return replace(wm, familiar=table, blueprint=replace(wm.blueprint, familiar=table))

def test_arabic_needs_a_little_more(wm, tmp_path):
    "The same score, up to .28 less of z in Arabic and Hindi, in a scan, too; other kinds are judged as before, and so are files from before"
    texts = {k: '\n'.join(v[:2])[:700] for k,v in screening_texts().items()}
    without_near(wm).detector().save(tmp_path/'old.dew')
    wm.detector().save(tmp_path/'new.dew')
    old, new, now = Detector.load(tmp_path/'old.dew'), Detector.load(tmp_path/'new.dew'), wm.detector()
    assert old.scheme.familiar.near is None and (new.scheme.familiar.near == wm.familiar.near).all()
    for kind,text in texts.items():
        a, b, c = (x.detect(text) for x in (old, new, now))
        assert a.score == b.score and b.z == pytest.approx(c.z, abs=1e-3) and a.unfamiliar == b.unfamiliar
        if kind in ('ar', 'hi'): assert .1 < a.z - b.z < .28 and b.p_value > a.p_value
        else: assert b.z == a.z and b.p_value == a.p_value
    for kind in ('ar', 'en'):
        a, b = (x.scan(texts[kind], replicates=99).z_text for x in (old, new))
        assert (.1 < a - b < .28) if kind == 'ar' else a == b

def test_scans_judge_each_window(wm):
    "English beside Greek is scanned as English alone, Greek is not"
    P = [CountedPositions.of(s, d, s.contexts.encode(d.windows)) for s in (wm, lenient(wm)) for d in wm.detector().reader.read([ENGLISH + '\n\n' + GREEK])]
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

def test_screening_can_be_switched_off(wm, capsys, monkeypatch):
    "`screen=None` is False, as the signature of a config says it elsewhere; whoever wants a bar has one"
    assert DEWConfig.preset('standard', screen=None) == DEWConfig.preset('standard', screen=False)
    assert DEWConfig.preset('standard', screen=None).digest == DEWConfig.preset('standard', screen=False).digest
    monkeypatch.delenv('TQDM_DISABLE', raising=False)
    for progress in (None, True):
        again = wm.blueprint.with_key(KEY).rule if progress is None else replace(wm.blueprint, progress=True).with_key(KEY).rule
        assert again.table.meta['screening']['counter'] == wm.meta['screening']['counter'] and ('screening' in capsys.readouterr().err) == bool(progress)

def test_info_tells_what_was_measured(wm, tmp_path):
    "A detector file says whether its key was screened, and what its weights were learnt from"
    wm.detector().save(tmp_path/'a.dew')
    d = detector_info(tmp_path/'a.dew')
    said = info_text(d)
    assert d['screening']['counter'] == list(wm.meta['screening']['counter']) and d['room_table']['positions'] == 65_609
    assert 'on 13 kinds of text, signs from proposal' in said and 'room (table everyday, learnt from 65,609 positions' in said

def test_words_are_screened(wm):
    "Signs of layers are chosen for a space of words, too; they follow from key and encoder, also when the lexicon has forgotten the sample's words"
    enc = load_encoder('use-multilingual')
    build = lambda **kw: DEW.build(wm.host, enc, KEY, DEWConfig.preset('multilingual', **kw), progress=False)
    new, plain = build(), build(screen=False)
    said, bp = new.meta['screening'], new.blueprint
    leans = bp.sample.weights*np.abs(new.rule.layer_leans(bp.sample_contexts, bp.sample).sum(1))
    assert leans.max() == pytest.approx(said['worst_after'], abs=1e-4)
    assert said['worst_after'] < .03 < said['worst_before']
    assert list(said['kinds']) == [*screening_texts(), 'Greek', 'Georgian, Armenian', 'other scripts'] and bp.sample.weights.tolist() == 13*[1.] + 3*[.25]
    signs = (new.rule.M*plain.rule.M).flatten(1).sum(1).sign()
    assert (new.rule.M == signs[:,None,None]*plain.rule.M).all() and 0 < (signs < 0).sum() < len(signs)
    assert plain.meta.get('screening') is None and new.familiar is None
    assert (new.rule.allowance_short, new.rule.allowance_long) == (plain.rule.allowance_short, plain.rule.allowance_long)
    assert not new.contexts.units.numbers                       # vectors of the sample are not in the lexicon
    assert (new.rekey(KEY).rule.M == new.rule.M).all()
