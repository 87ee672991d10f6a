"""Texts, bytes, questions and files that nobody thought of: what must hold for all of them.

Hypothesis makes them up. `DEW_FUZZ` says how many examples each property gets (default: 60, the same ones every time); `python tests/fuzz.py --minutes 60`
looks for new ones as long as it is told to."""
import json, logging, os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

pytest.importorskip('hypothesis')
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_host
from dew_nb.models.artefacts import load_artefact
from dew_nb.serving.documents import read_again
from dew_nb.serving.inputs import Shard, UsageError, as_text, cut_lines, encoding_of, named_texts, shard_texts, shorten
from dew_nb.read.normalization import NORMALISATIONS, PASSES, normalise, undo_all, where
from dew_nb.models.signing import Ed25519PrivateKey, canonical, check_signature, sign_record, verify_bytes
from dew_nb.models.stopping import Stopped, stop_when
from dew_nb.read.text import READINGS, clean, ordinary
from dew_nb.read.verdicts import NOT_JUDGED, judge_with, printable
from dew_nb.serving.report import detector_entry, file_entry, make_report, write_report
from dew_nb.serving.reportcheck import (Check, check_again, check_facts, check_file, check_page, check_page_again, check_words,
    judge_again, read_report)
from dew_nb.mark.words import LONGEST, word_spans
from dew_nb.mark.wordspace import Lexicon, WordProjection
from hard_texts import HARD
from quick import Letters, toy_host
from test_files import build, forge

EXAMPLES = int(os.environ.get('DEW_FUZZ', '60'))
settings.register_profile('dew', max_examples=EXAMPLES, deadline=None, derandomize='DEW_FUZZ' not in os.environ, database=None,
                          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large])
settings.load_profile('dew')
few = settings(max_examples=max(5, EXAMPLES//4))

PIECES = [*'abc eEоес ,.;:!?"\'*_~`<>&|#-\n\t\r', '  ', '**', '***', '__', '~~', '```', '<b>', '</b>', '<span ', '<i', '&amp;', '&nbsp;', '&lt;', '&gt;', '&semi;', '&ampamp;', 'amp;', '&#96;',
          '&#42;', '&#8203;', '&#x0;', '&#xd800;', '&#9999999;', '\u200b', '\u200d', '\u200c', '\u00ad', '\u00a0', '\ufeff', '\ufe0f', '\u20e3', '\u2060', '🙂', '👩', '❶', '\U0001f3fb', 'Ａ', '\u3000', '𝐛',
          'ﬁ', 'ﬃ', 'е\u0301', '\u0301', '\u0323', '東', '’', '“', 'мир', 'word', ' word ', '\x00', '\x1b', '\u202e', 'x²', '\ufdfa', '\r\n', '\r\r\n', '\n- ', '\n1. ', '\n    ', '>>>', 'ß', 'İ', "'s", "l'", '\x85', '\u2028']
letters = st.characters(codec=None) | st.characters(categories=['Cs', 'Mn', 'Cf', 'So', 'Zs', 'Lo'])      # halves of characters too
piece = st.sampled_from(PIECES)
texts = st.lists(piece | st.text(letters, max_size=4) | st.builds(str.__mul__, piece, st.integers(2, 80)), max_size=40).map(''.join)


# ---------------------------------------------------------------- plain text
def in_order(spans, length):
    "Spans lie in a text and go forward"
    i, j = np.asarray(spans).reshape(-1, 2).T
    assert (i <= j).all() and (np.diff(i) >= 0).all() and (np.diff(j) >= 0).all()
    assert not len(i) or (i[0] >= 0 and j[-1] <= length)


@pytest.mark.parametrize('read', [normalise, undo_all])
@given(text=texts)
@example(text='a\ufe0f\ufe0f\r\r\n')
def test_plain(read, text):
    p = read(text)
    assert p.original == text and len(p.offsets) == len(p.text) <= 3*len(text)
    in_order(p.offsets, len(text))
    assert (p.offsets[:,0] < p.offsets[:,1]).all() and set(p.kinds) <= set(NORMALISATIONS) and 1 <= p.passes <= PASSES
    if p.passes < PASSES: assert read(p.text).text == p.text
    if not p.kinds: assert p.text == text
    spans = np.sort(np.random.default_rng(len(text)).integers(0, len(p.text)+1, (9, 2)), 1)
    i, j = where(p, spans).T
    assert (0 <= i).all() and (i <= j).all() and (j <= len(text)).all()


@given(texts)
def test_what_is_ordinary_stays(text):
    if ordinary(text): assert all(read(text).text == text for read in READINGS.values())
    assert len(clean(text)) == len(text) and clean(clean(text)) == clean(text)
    clean(text).encode()


def work(f):
    "Checkpoints that a function passes"
    seen = []
    with stop_when(lambda: seen.append(1)): f()
    return len(seen)


@pytest.mark.parametrize('name', HARD)
def test_work_grows_as_the_length(name):
    "Twice the text, twice the work; that it ends at all is the other half of the test"
    a, b = (work(lambda: undo_all(HARD[name](n))) for n in (8000, 16_000))
    assert b <= 2.2*a + 50 and a <= 2*PASSES*8000
    for f in (normalise, undo_all): assert f(HARD[name](16_000)).passes <= PASSES
    word_spans(HARD[name](16_000))


# ---------------------------------------------------------------- words and their lexicon
class Hashed:
    "A vector for each word"
    def encode(self, words): return np.stack([np.random.default_rng(list(w.encode('utf-8', 'surrogatepass'))).normal(size=4) for w in words])


def lexicon(capacity): return Lexicon(Hashed(), WordProjection(torch.zeros(4), torch.eye(4)), capacity=capacity)


@given(texts)
def test_words(text):
    spans = word_spans(text)
    in_order([(i, j) for _,i,j in spans], len(text))
    assert all(0 < len(w) <= LONGEST for w,_,_ in spans)


@few
@given(st.lists(st.lists(st.integers(0, 60).map(str), max_size=12), max_size=30), st.integers(1, 20), st.randoms(use_true_random=False))
def test_a_lexicon_that_forgets(reads, capacity, draw):
    "What is held keeps its vectors, and there are never more words than the capacity and those held at one time"
    small, held, most, vectors = lexicon(capacity), [], 0, Hashed()
    for words in reads:
        (ids,), lease = small.numbered([words])
        held.append((words, ids, lease))
        if len(held) > 3 or draw.random() < .4: held.pop(draw.randrange(len(held)))
        del lease
        most = max(most, sum(len(set(x[0])) for x in held) + len(set(words)))
        for w,i in [x[:2] for x in held]:
            if w: np.testing.assert_allclose(small.rows[i], small.projection.apply(torch.from_numpy(vectors.encode(w))), rtol=1e-5)
        assert len(small.numbers) <= capacity + most and sorted(small.numbers) == sorted(w for w in small.names if w is not None)


# ---------------------------------------------------------------- a detector
@pytest.fixture(scope='module')
def det(tmp_path_factory):
    "A detector that needs no encoder, from a file"
    config = DEWConfig(m=64, n=32, layers=4)
    made = DEW.build(toy_host(), Letters(), SecretKey(b'an example key: never use this one'), config, progress=False).detector()
    return Detector.load(made.save(tmp_path_factory.mktemp('fuzz')/'d.dew'))


@given(text=texts)
def test_documents(det, text):
    for reading in READINGS:
        for tok in (None, 'words'):
            reader = det.read_as(reading).reader
            if tok: reader.tok = lexicon(50)
            doc, = reader.read([text])
            in_order(doc.offsets, len(text))
            assert len(doc.offsets) == len(doc.ids) and len(doc.windows) == len(doc.pos) == len(doc.first)
            assert (doc.pos >= reader.k).all() and (doc.pos < len(doc.ids)).all()


@few
@given(many=st.lists(texts, min_size=1, max_size=4))
def test_results(det, many):
    for r in det.detect(many):
        assert 0 <= r.p_value <= 1 and np.isfinite([r.z, r.score, r.sd]).all() and r.n_scored <= r.n_tokens
        json.dumps(r.to_dict(tokens=True), allow_nan=False)
        r.to_html().encode()
    for r in det.scan(many[:1], replicates=99):
        assert 0 <= r.p_value <= 1 and all(0 <= s.start < s.end <= len(many[0]) for s in r.spans)
        json.dumps(r.to_dict(), allow_nan=False)
        r.to_html().encode()


class Late:
    "Says stop when it has been asked n times"
    def __init__(self, n): self.n = n
    def __call__(self):
        self.n -= 1
        return self.n < 0


@pytest.mark.parametrize('name', ['entities in entities', 'zero width', 'words', 'invented words', 'ligatures', 'emphasis in a line'])
@pytest.mark.parametrize('verb', ['detect', 'scan'])
def test_work_stops_wherever_it_is(det, name, verb):
    "At each checkpoint of a whole detection, and nothing is left behind that would change the next one"
    text, more = HARD[name](3000), dict(replicates=99) if verb == 'scan' else {}
    run = lambda t: getattr(det, verb)(t, **more)
    n, want = work(lambda: run(text)), run(text).p_value
    assert n >= 2
    for i in sorted({0, 1, n//3, n//2, n-2, n-1}):
        with pytest.raises(Stopped), stop_when(Late(i)): run(text)
    assert run(text).p_value == want
    with stop_when(Late(n)): run(text)


# ---------------------------------------------------------------- files
values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(letters, max_size=8),
                      lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=6)


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    "A small file and its metadata"
    path = build(load_host()).detector().save(tmp_path_factory.mktemp('fuzz')/'s.dew')
    return path, load_artefact(path, 'detector')[1]


@few
@given(changes=st.data())
def test_forged_metadata(small, changes):
    "A file with anything in its metadata is read, or refused with a ValueError"
    path, meta = small
    inside = changes.draw(st.booleans())
    names = st.sampled_from(sorted(meta['config'] if inside else meta) + ['more', 'calibration', 'anchor', 'transform'])
    new = changes.draw(st.dictionaries(names, values, min_size=1, max_size=3))
    if inside: new = dict(config=meta['config'] | new)
    with TemporaryDirectory() as d:
        try: found = Detector.load(forge(path, Path(d)/'f.dew', **new), encoder=Letters())
        except ValueError as e: assert len(str(e)) > 10
        else: assert isinstance(found.key, str)


@few
@given(st.binary(max_size=300) | st.builds(lambda n, b: n.to_bytes(8, 'little') + b, st.integers(0, 2**64-1), st.binary(max_size=200)))
def test_files_of_bytes(b):
    with TemporaryDirectory() as d:
        (Path(d)/'f.dew').write_bytes(b)
        with pytest.raises(ValueError): Detector.load(Path(d)/'f.dew')


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
records = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(letters, max_size=8),
                       lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=6)


@given(records, records, values)
def test_signatures(one, other, stored):
    good = sign_record(KEY, one, 'example')
    check_signature(KEY.public_key(), json.loads(json.dumps(one)), json.loads(json.dumps(good)), 'example')
    if canonical(one) != canonical(other):
        with pytest.raises(ValueError, match='is refused'): check_signature(KEY.public_key(), other, good, 'example')
    with pytest.raises(ValueError, match='is refused'): check_signature(KEY.public_key(), one, stored, 'example')
    assert not verify_bytes(KEY.public_key(), b'', stored, 'example')


# ---------------------------------------------------------------- evidence reports
@pytest.fixture(scope='module')
def report(det, tmp_path_factory):
    "A report about a file and a text, and what checks one"
    d = tmp_path_factory.mktemp('report')
    (d/'a.txt').write_text('The old house by a river and its quiet garden, where nobody ever walks in the evening.')
    judged = list(judge_with(dict(one=det))(['a.txt', 'note'], [(d/'a.txt').read_text(), 'A note.']))
    record = make_report(judged, [detector_entry('one', det)], .01, [file_entry(d/'a.txt', 'utf-8') | dict(name='a.txt')], ['a.txt'])
    page, data = write_report(d/'case.html', record, judged)
    def checks(path):
        try: said = read_report(path)
        except ValueError as e: return [Check(False, str(e))]
        found = judge_again(said, {r['name']: det for r in said['detectors']} or dict(one=det))
        return [check_page(said, page), check_words(said), check_file(said, d/'a.txt', read_again), *check_again(said, found), check_page_again(said, page, found),
                check_facts(said, dict(one=det), [None])]
    assert [c.ok for c in checks(data)] == [None, True, True, True, True, True, True]
    return json.loads(data.read_text()), checks


def places(x, at=()): return [at] + [p for k in (x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ()) for p in places(x[k], (*at, k))]


@settings(max_examples=2*EXAMPLES)
@given(change=st.data())
def test_forged_reports(report, change):
    "Anything in the place of anything: a check says that it is wrong, and nothing else happens"
    record, checks = report
    at = change.draw(st.sampled_from(places(record)[1:]))
    new, into = change.draw(values), json.loads(json.dumps(record))
    inside = into
    for k in at[:-1]: inside = inside[k]
    old, inside[at[-1]] = inside[at[-1]], new
    with TemporaryDirectory() as d:
        (Path(d)/'case.json').write_text(json.dumps(into))
        said = checks(Path(d)/'case.json')
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
    close = isinstance(old, float) and number(new) and abs(new) < 1e300 and abs(new - old) <= .5*max(1, abs(old))       # may be a matter of digits
    assert close or type(old) is type(new) and old == new or any(c.ok is False for c in said)
    assert all(str(c).isprintable() for c in said)


# ---------------------------------------------------------------- texts from files
marks = st.sampled_from([b'', b'\xef\xbb\xbf', b'\xff\xfe', b'\xfe\xff', b'\xff\xfe\0\0', b'\0\0\xfe\xff'])
lines = st.lists(st.binary(max_size=30) | texts.map(lambda t: json.dumps(dict(text=t)).encode()) | values.map(lambda v: json.dumps(v).encode())
                 | st.sampled_from([b'[' * 50_000, b'1' * 6000, b'{"text": "\\ud800"}', b'{"text": 1}', b'{"a":' * 3000]), max_size=6)
files = st.builds(lambda m, ls, end: m + end.join(ls), marks, lines, st.sampled_from([b'\n', b'\r\n', b'\n\n', b'\r']))


@given(files, st.sampled_from([None, 'utf-8', 'utf-16', 'utf-16-le', 'utf-32', 'latin-1', 'cp1252', 'shift_jis', 'utf-7']))
def test_files_of_texts(b, encoding):
    "Every line is a text or a mistake with a sentence; shards have the same lines as the file"
    with TemporaryDirectory() as d:
        path = str(Path(d)/'log.jsonl')
        Path(path).write_bytes(b)
        for field in ('text', None):
            for name,t in named_texts([path], [], field, encoding):
                assert isinstance(t, (str, UsageError)) and (isinstance(t, str) or str(t))
        whole = [(n, str(t), type(t)) for n,t in shard_texts(Shard(path), 'text', encoding)]
        parts = [(n, str(t), type(t)) for s in cut_lines(path, 64, encoding) for n,t in shard_texts(s, 'text', encoding)]
        assert whole == parts


@given(st.binary(max_size=60), st.sampled_from(['utf-8', 'utf-16', 'utf-32', 'cp1252']))
def test_bytes_as_text(b, encoding):
    try: assert '\0' not in as_text(b, encoding_of(b, encoding))
    except UsageError as e: assert str(e)


@given(texts, st.integers(2, 40))
def test_one_line(text, n):
    assert len(shorten(text, n)) <= n and printable(text).isprintable() and shorten(text, n).isprintable()


# ---------------------------------------------------------------- the service
@pytest.fixture(scope='module')
def client(det):
    pytest.importorskip('fastapi')
    from dew_nb.serving.service import Limits, make_app
    from starlette.testclient import TestClient
    logging.getLogger('httpx').setLevel(logging.WARNING)
    return TestClient(make_app(dict(one=det, two=det), Limits(body=60_000)), base_url='http://localhost')


fields = st.fixed_dictionaries({}, optional=dict(text=texts | values, texts=st.lists(texts, max_size=3) | values, alpha=st.floats(0, 1) | values,
                                                 detector=st.sampled_from(['one', 'two', '']) | values, tokens=st.booleans() | values, html=st.booleans(), more=values))
bodies = st.binary(max_size=60) | values.map(lambda v: json.dumps(v).encode()) | fields.map(lambda v: json.dumps(v).encode()) | st.sampled_from([b'[' * 30_000, b'{"text": ' + b'1' * 6000 + b'}'])


@given(path=st.sampled_from(['/detect', '/scan', '/', '/health', '/docs', '/nowhere', '//', '/detect/']), body=bodies,
       kind=st.sampled_from(['application/json', 'text/plain', '', 'application/x-www-form-urlencoded', 'application/json; charset=utf-16']))
@example(path='/detect', body=b'{"text": "\\ud800 half", "html": true, "tokens": true}', kind='application/json')
@example(path='/detect', body=b'{"text": "a", "alpha": 1e-320}', kind='application/json')
def test_questions(client, caplog, path, body, kind):
    "200 or a mistake of who asks, never one of ours; in JSON, with the headers"
    caplog.clear()
    r = client.post(path, content=body, headers={'Content-Type': kind})
    assert r.status_code in (200, 404, 405, 413, 422), (r.status_code, r.text)
    assert "default-src 'none'" in r.headers['content-security-policy'] and not caplog.records
    if r.status_code != 200: assert isinstance(r.json()['detail'], str) and len(r.text) < 2000


@few
@example(text=' '.join(f'word {i}' for i in range(60)), alpha=1e-300, scan=True, tokens=False)
@example(text=' '.join(f'word {i}' for i in range(60)), alpha=5e-324, scan=True, tokens=False)
@example(text='\ud800', alpha=.5, scan=False, tokens=False)
@given(text=texts, alpha=st.floats(1e-300, .999), scan=st.booleans(), tokens=st.booleans())
def test_good_questions(client, text, alpha, scan, tokens):
    r = client.post('/scan' if scan else '/detect', headers={'Content-Type': 'application/json'},
                    content=json.dumps(dict(text=text, alpha=alpha, html=True, tokens=tokens, detector='one')))       # ASCII: halves of characters too
    row = r.json()['results'][0]
    assert r.status_code == 200 and 0 <= row['p_value'] <= 1 and row['verdict'] in ('marked', 'not marked', 'too short to say', NOT_JUDGED)
