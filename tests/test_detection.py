"What the detection notebook tests badly: very long texts, with an encoder that is quick because it means nothing"
import math

import numpy as np
import pytest

from dew_nb import DEW, DEWConfig, SecretKey, identify, load_host
from dew_nb.read.evidence import measure
from dew_nb.read.scan import ScanOptions, scan_document
from quick import Letters, toy_host

KEY, OTHER = SecretKey(b'an example key: never use this one'), SecretKey(b'another key, also only for show')


def no_model(*a, **k): raise AssertionError('a language model was loaded')


@pytest.fixture(scope='module')
def scheme():
    "Built without the language model, which is never needed here"
    with pytest.MonkeyPatch.context() as m:
        m.setattr('dew_nb.models.hosts._read_model', no_model)
        return DEW.build(load_host(), Letters(), KEY, DEWConfig.preset('calibrated', k=3), progress=False)


@pytest.fixture(scope='module')
def detector(scheme): return scheme.detector()


@pytest.fixture(scope='module')
def few(scheme, detector):
    "The same scheme with rows for the tokens of some texts alone: quick to build again"
    docs = detector.reader.read([*TEXTS, long_text(2), long_text(3)])
    return scheme.narrow(np.concatenate([d.ids for d in docs]))


@pytest.fixture(scope='module')
def pair(few):
    "Two keys"
    return [few.rekey(k) for k in (KEY, OTHER)]


@pytest.fixture
def encoded(monkeypatch):
    "How many windows each call of the encoder gets"
    import dew_nb.read.evidence as e
    sizes, old = [], e.positions
    monkeypatch.setattr(e, 'positions', lambda s, w, *a: (sizes.append(len(w)), old(s, w, *a))[1])
    return sizes


def set_long(monkeypatch, n):
    "Texts of more than n positions go in pieces of n"
    import dew_nb.read.evidence, dew_nb.read.text
    for m in (dew_nb.read.evidence, dew_nb.read.text): monkeypatch.setattr(m, 'LONG', n)


def long_text(seed=2):
    "4,000 words of 500"
    rng = np.random.default_rng(seed)
    words = [''.join(chr(97+c) for c in rng.integers(0, 26, 4)) for _ in range(500)]
    return ' '.join(rng.choice(words, 4000))


def test_megabyte(detector, encoded):
    from dew_nb.read.text import LONG
    rng = np.random.default_rng(0)
    words = ['harbour', 'river', 'old', 'the', 'of', 'a', 'morning', 'paper', 'was', 'blue', 'seven', 'and', 'city', 'never', 'bread']
    text = ' '.join(rng.choice(words, 185_000))
    assert len(text) > 900_000
    r = detector.detect(text)
    assert sum(encoded) > 150_000 and max(encoded) <= LONG        # vectors are held for a piece at a time
    assert r.n_tokens > 150_000 and 0 < r.n_scored <= r.n_tokens and math.isfinite(r.z) and 0 < r.p_value <= 1
    assert r.n_scored < 60_000                                  # repeated pairs count once: 15 words make 15**4 pairs at most
    assert '<span' in r.to_html() and len(r.to_html()) < 2_000_000


def test_long_and_short_form_agree(detector, monkeypatch):
    "Above a length the pairwise sum takes a linear form; near the border both give about the same z"
    import dew_nb.stats.keynull as k
    rng = np.random.default_rng(1)
    text = ' '.join(''.join(chr(97+c) for c in rng.integers(0, 26, 5)) for _ in range(400))
    exact = detector.detect(text)
    monkeypatch.setattr(k, 'EXACT', 10)
    linear = detector.detect(text)
    assert exact.score == pytest.approx(linear.score) and exact.z == pytest.approx(linear.z, rel=.05, abs=.05)


def test_very_long_text_in_pieces(detector, encoded, monkeypatch):
    "A text that goes in pieces gets the numbers of one that goes at once, also between others"
    import dew_nb.stats.keynull as k
    texts = [TEXTS[0], long_text(), '', TEXTS[4]]
    monkeypatch.setattr(k, 'EXACT', 4000)
    whole = detector.detect(texts)
    assert whole[1].n_scored > 4000
    set_long(monkeypatch, 1000)
    encoded.clear()
    agree(detector.detect(texts), whole, eps=1e-4)
    assert len(encoded) > 4 and max(encoded) <= 1000


def test_measure_in_pieces(pair, encoded, monkeypatch):
    "Several schemes on shared contexts: a long text in pieces, at once, and each scheme alone"
    import dew_nb.stats.keynull as k
    monkeypatch.setattr(k, 'EXACT', 4000)
    docs = list(pair[0].detector().reader.read([long_text(3)]))
    whole = [m.evidence() for m in measure(pair, docs)]
    alone = [measure([s], docs)[0].evidence() for s in pair]
    set_long(monkeypatch, 1000)
    encoded.clear()
    pieces = [m.evidence() for m in measure(pair, docs)]
    assert len(encoded) > 4 and max(encoded) <= 1000 and sum(encoded) == len(docs[0])   # once for both
    for x,y,z in zip(whole, alone, pieces):
        for o in (y, z):
            np.testing.assert_allclose(o.scores, x.scores, atol=1e-5)
            np.testing.assert_allclose(o.cov, x.cov, atol=1e-3)
            assert o.mean == pytest.approx(x.mean, abs=1e-6) and o.pairs == pytest.approx(x.pairs, rel=1e-4)


def test_identify_counts_as_each_rule_does():
    "Detectors of two rules over the same contexts: what one counts once by pairs, the other counts once by windows"
    dets = {r: DEW.build(toy_host(), Letters(), SecretKey(bytes(32)), DEWConfig(rule=r, contexts='encoder'), progress=False).detector() for r in ('bias', 'tournament')}
    text = 'The sea was quiet and the boats were home. The sea was quiet and the men were home. '*6
    alone = [d.detect(text) for d in dets.values()]
    assert alone[0].n_scored > alone[1].n_scored
    assert [(r.n_scored, r.z) for r in identify(text, dets).results] == [(r.n_scored, pytest.approx(r.z)) for r in alone]

def test_identify_very_long_text(pair, encoded, monkeypatch):
    "identify goes through a very long text in pieces, too, and encodes them once for all keys"
    import dew_nb.stats.keynull as k
    monkeypatch.setattr(k, 'EXACT', 4000)
    dets = [s.detector() for s in pair]
    texts = [TEXTS[0], long_text(), '']
    whole = identify(texts, dets)
    set_long(monkeypatch, 1000)
    encoded.clear()
    pieces = identify(texts, dets)
    assert max(encoded) <= 1000 and sum(encoded) == sum(len(d) for d in dets[0].reader.stream(texts))
    for x,y in zip(pieces, whole): agree(x.results, y.results, eps=1e-4)


@pytest.mark.long
def test_scans_of_human_texts(scheme):
    "Movie reviews, and keys that have nothing to do with them: p-values of scans are uniform"
    from scipy import stats
    from dew_nb.evaluation.texts.corpora import movie_reviews
    reader = scheme.detector().reader
    docs = list(reader.stream([' '.join(t.split()[:150]) for t in movie_reviews()[100:112]]))
    contexts = [scheme.contexts.encode(d.windows) for d in docs]
    few, p, alarms = scheme.narrow(np.concatenate([d.ids for d in docs])), [], []
    for i in range(10):
        det = few.rekey(SecretKey((1000+i).to_bytes(16, 'big'))).detector()
        scans = [scan_document(det, d, c, ScanOptions(.1, replicates=199, seed=i)) for d,c in zip(docs, contexts)]
        p += [r.p_value for r in scans]
        alarms += [len(r.spans) > 0 for r in scans]
    ci = stats.binomtest(int(sum(alarms)), len(p)).proportion_ci(.999)
    assert np.mean(alarms) == np.mean(np.array(p) <= .1) and ci.low <= .1 <= ci.high
    assert stats.kstest(p, 'uniform').statistic < .18               # 0.1% point for 120 independent ones


def test_no_language_model(few, tmp_path, monkeypatch):
    "Building a detector, saving, loading and detecting: the host model is never loaded, nor is the host when loading"
    import dew_nb.models.hosts as h
    monkeypatch.setattr(h, '_read_model', no_model)
    det = DEW.build(load_host(), Letters(), KEY, DEWConfig.preset('paper'), tokens=few.blueprint.tokens, progress=False).detector()
    path = det.save(tmp_path/'d.dew')
    for f in ('load_host', '_read_tokenizer', '_read_table'): monkeypatch.setattr(h, f, no_model)
    again = type(det).load(path, encoder=Letters())
    agree(again.detect(TEXTS), det.detect(TEXTS))
    assert again.scheme.host is None and again.scheme.blueprint is None


def test_stream_is_lazy(detector):
    "detect_iter asks for texts as it goes, and gives results in order"
    seen = []
    def texts():
        for i in range(300):
            seen.append(i)
            yield f'text number {i} of a long stream of little texts'
    it = detector.detect_iter(texts())
    reader = detector.reader
    reader.max_windows, old = 100, reader.max_windows
    first = next(it)
    reader.max_windows = old
    assert first.text.startswith('text number 0') and len(seen) < 300


TEXTS = ['The old harbour was quiet when the fishermen came home, and nobody spoke of the storm.', '', ' \n\t ', 'Hi',
         '🙂🎉 façade — 東京 🙂🎉 the café was naïve 🏴‍☠️ and half of 🙂 is missing', 'a <|im_start|> b c d e <|im_end|> f g h i j',
         'again and again and again and again and again and again and again', 'broken \udc80 surrogate \ud83d in the text',
         'Add 3 grams of salt [PAD] [MASK] and antidisestablishmentarianism \x1f\u200b twice.\r\n\r\nThen wait.']


def agree(a, b, eps=1e-5):
    assert [r.text for r in a] == [r.text for r in b]
    for x,y in zip(a, b):
        assert (x.n_tokens, x.n_scored) == (y.n_tokens, y.n_scored)
        assert [x.z, x.score, x.p_value, x.expected, x.sd] == pytest.approx([y.z, y.score, y.p_value, y.expected, y.sd], abs=eps)
        assert x.l_eff == pytest.approx(y.l_eff, rel=1e-4)
        np.testing.assert_allclose(x.token_scores, y.token_scores, atol=eps)
        assert (x.counted == y.counted).all() and (x.offsets == y.offsets).all()


def one_and_many(det):
    "One call, single calls, another order, repeated texts, small groups"
    singles = {t: det.detect(t) for t in TEXTS}
    rng = np.random.default_rng(0)
    for order in (range(len(TEXTS)), rng.permutation(len(TEXTS)), rng.integers(0, len(TEXTS), 40)):
        texts = [TEXTS[i] for i in order]
        agree(det.detect(texts), [singles[t] for t in texts])
    old, det.reader.max_windows = det.reader.max_windows, 7
    agree(det.detect(TEXTS), list(singles.values()))
    det.reader.max_windows = old
    return list(singles.values())


def test_one_call_and_single_calls_agree(detector):
    rs = one_and_many(detector)
    assert [r.n_scored > 0 for r in rs] == [True, False, False, False, True, True, True, True, True]


def test_recorded_shapes_and_plain_encoder_agree(few):
    "The path that a GPU takes, run on the CPU: the same numbers as the plain encoder's"
    from dew_nb import load_encoder
    from dew_nb.models.graphs import FixedShapeEncoder
    enc = load_encoder(device='cpu')
    det = DEW.build(load_host(), enc, KEY, DEWConfig.preset('calibrated', k=3), max_reference_windows=300, tokens=few.blueprint.tokens, device='cpu',
                    progress=False).detector()
    plain, ce = det.detect(TEXTS), det.scheme.contexts
    old = ce.fast
    ce.fast = FixedShapeEncoder(enc, max_batch=8, piece=100)
    assert ce.fast.words.local
    try: agree(one_and_many(det), plain, eps=1e-4)
    finally: ce.fast = old


def test_windows_are_those_of_each_text(detector):
    "Found on joined ids, but as for each text alone"
    from dew_nb.mark.windows import text_windows
    c = detector.scheme.contexts
    for d in detector.reader.stream(TEXTS):
        w, pos = text_windows(d.ids, 3, c.special)
        live = detector.reader.alive[d.ids[pos]]
        assert (d.windows == w[live]).all() and (d.pos == pos[live]).all()
        pairs = [(*a, b) for a,b in zip(d.windows.tolist(), d.ids[d.pos].tolist())]
        assert d.first.tolist() == [p not in pairs[:i] for i,p in enumerate(pairs)]


def test_not_finite(detector, monkeypatch):
    "An encoder that fails on a text is not taken for a score"
    enc = detector.scheme.contexts.encoder
    old = enc.encode
    monkeypatch.setattr(enc, 'encode', lambda texts: old(texts)*float('nan'))
    with pytest.raises(ValueError, match='not finite'): detector.detect('a window that no other test has, with a zebra in it')


def test_memory_is_bounded(detector):
    "Four times as many texts from a generator need no more memory"
    import tracemalloc
    rng = np.random.default_rng(0)
    words = np.array([''.join(chr(97+c) for c in rng.integers(0, 26, 5)) for _ in range(3000)])
    old, detector.reader.max_windows = detector.reader.max_windows, 2000
    peak = {}
    for n in (1, 500, 2000):                                    # the first fills the memo of token texts
        tracemalloc.start()
        for r in detector.detect_iter(' '.join(rng.choice(words, 10 if n > 1 else 3000)) for _ in range(n)): assert r.n_scored
        peak[n] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    detector.reader.max_windows = old
    assert peak[2000] < 1.25*peak[500] < 50e6


def wide_bytes(width):
    "Bytes in tensors that are alive and have rows of a width"
    import gc, torch
    alive = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.ndim == 2 and t.shape[1] == width]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())


@pytest.mark.parametrize('rule', ['bias', 'tournament'])
def test_memory_of_naming_is_bounded(scheme, monkeypatch, rule):
    "Several keys, a text in many pieces: what is kept of the contexts grows neither with its length nor with the keys"
    import dew_nb.read.evidence as e, dew_nb.stats.keynull as k
    if rule == 'tournament':
        ids = scheme.host.tokenizer(long_text())['input_ids']
        scheme = DEW.build(scheme.host, Letters(), SecretKey(bytes(16)), DEWConfig(rule=rule, contexts='encoder', layers=2),
                           tokens=scheme.blueprint.tokens.narrow(ids))
    dets = [scheme.detector() for _ in range(3)]
    set_long(monkeypatch, 500)
    monkeypatch.setattr(k, 'EXACT', 200)
    at_piece, old = [], e.positions
    monkeypatch.setattr(e, 'positions', lambda *a: (at_piece.append(wide_bytes(32)), old(*a))[1])
    identify(long_text(), dict(zip('abc', dets)))
    assert len(at_piece) > 10
    sample, piece = 200*32*4, 500*32*4
    assert max(at_piece) - at_piece[0] <= 4*piece + 2*sample      # the last piece may still be there


def test_steep_slopes_of_long_repetitive_texts(scheme):
    "The estimate for long texts keeps what the linear form leaves out, and lies a little above the truth"
    import torch
    import dew_nb.stats.keynull as k
    from dew_nb.stats.tanh_kernel import TanhKernel
    from dew_nb.models.vectors import unit_rows
    text = ' '.join(f'The {a} {b} was in the {c} when the {b} of the {c} was {a}.' for a in 'old new big red'.split()
                    for b in 'house city river road'.split() for c in 'north south west east'.split())
    doc, = scheme.detector().reader.read([text])
    u = unit_rows(scheme.contexts.encode(doc.windows[doc.first]))
    r = unit_rows(scheme.rule.rows(torch.from_numpy(doc.tokens[doc.first])).float())
    for gamma,above in ((.5, .02), (2., .1), (5., .15)):
        exact, estimate = (k.pair_sum(TanhKernel(gamma), r, u, exact=n).item() for n in (len(r), len(r)*2//3))
        assert .995*exact < estimate < (1 + above)*exact
    assert k.linear_sum(TanhKernel(5.), r.T @ u, len(r)).item() < .95*exact
