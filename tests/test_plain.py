"Properties of plain text, and what a detector makes of formatted texts"
import random, re, textwrap
from pathlib import Path

import numpy as np
import pytest

from dew_nb import DEW, DEWConfig, SecretKey, load_host
from dew_nb.read.detection import Detector
from dew_nb.evaluation.attacks.characters import EDITS, CharacterEdit
from dew_nb.evaluation.studies.store import load_results
from dew_nb.read.layout import why_hidden
from dew_nb.read.normalization import NORMALISATIONS, normalise, undo_all
from quick import Letters, ends_within

DATA = Path(__file__).parents[1]/'nbs/studies/data'
PIECES = [*'abc eEоес ,.;:!?"\'*_~`<>&|#-\n\t\r', '  ', '**', '__', '```', '<b>', '</b>', '&amp;', '&nbsp;',
          '&#8203;', '\u200b', '\u200d', '\u00ad', '\u00a0', '\ufeff', '\ufe0f', '🙂', '👩', 'Ａ', '𝐛', 'ﬁ', 'е\u0301',
          '東', '’', '“', 'мир', 'word', ' word ', '\x00', '\u202e', 'x²']

def soups(n=400, seed=0):
    "Texts made of everything that plain text is about"
    draw = random.Random(seed)
    return [''.join(draw.choices(PIECES, k=draw.randint(0, 60))) for _ in range(n)]

@pytest.fixture(scope='module')
def stored():
    "Marked and unmarked completions of the host"
    t = load_results(DATA/'evaluation').texts
    return t[(t['attack'] == 'none') & (t['source'] != 'human')]['text'].drop_duplicates().tolist()

@pytest.mark.parametrize('read', [normalise, undo_all])
def test_plain_text_is_a_fixed_point(read, stored):
    for t in [*soups(), *stored[:300]]: assert read(read(t).text).text == read(t).text, repr(t)

@pytest.mark.parametrize('read', [normalise, undo_all])
def test_offsets_go_forward_and_stay_inside(read, stored):
    for t in [*soups(), *stored[:300]]:
        p = read(t)
        i, j = p.offsets.reshape(-1, 2).T
        assert len(i) == len(p.text) and p.original == t
        assert (i < j).all() and (np.diff(i) >= 0).all() and (np.diff(j) >= 0).all()
        assert not len(i) or (i[0] >= 0 and j[-1] <= len(t))

def test_characters_that_stay_know_their_place():
    for t in soups(seed=1):
        p = normalise(t)
        same = [c for c,(i,j) in zip(p.text, p.offsets) if t[i:j] == c]
        if not p.kinds: assert len(same) == len(t)

def test_hosts_are_mostly_read_as_they_write(stored):
    changed = [t for t in stored if normalise(t).kinds]
    assert 0 < len(changed) < .07*len(stored)

@pytest.mark.parametrize('text', [
    'def f(a,  b):\n    return a ** b  *  __name__\n', '1. **Title**: one thing\n2. **Other**: another thing to say\n' * 2,
    '```\nx  =  1\ny   =  2\n```\n', '| a  | b  |\n|----|----|\n', 'She said “it’s so”… — and left.', 'snake_case and other_name_s',
    'Он сказал «да».', 'Η τιμή του π είναι 3.', '東京は、ＡＢＣ。', 'می\u200cخواهم', '👩\u200d🚀 and ❤\ufe0f', 'x² + y² = ½ ™ ℝ',
    'Two blanks.  After every.  Full stop.'])
def test_what_hosts_write_stays(text): assert normalise(text).text == text

def test_kinds_do_what_they_say():
    for kind in NORMALISATIONS: assert undo_all('plain words, nothing else').kinds == (), kind
    assert normalise('a\u200b b').kinds == ('invisible',)

# ---------------------------------------------------------------- whole texts
def titled(t): return re.sub(r"[^\W\d_]+(?:['’][^\W\d_]+)*", lambda m: m[0][0].upper() + m[0][1:], t)
def zigzag(t): return ''.join(c.upper() if i%2 else c.lower() for i,c in enumerate(t))
def at_72(t): return '\n'.join(textwrap.fill(o, 72) for o in t.split('\n'))
def apart(t): return ' '.join(t.replace(' ', '  '))
def stacked(t): return '\n'.join(t.split())
def at_20(t): return '\n'.join(textwrap.fill(o, 20, break_long_words=False, break_on_hyphens=False) for o in t.split('\n'))
def underscores(t): return t.replace(' ', '_')
def hyphens(t): return t.replace(' ', '-')
def acute(t): return ''.join(c + '\u0301' if c.isalpha() else c for c in t)
WHOLE = dict(case=[str.upper, titled, zigzag], wrapped=[at_72, at_20], spaced=[apart], stacked=[stacked], joined=[underscores], accents=[acute])

@pytest.mark.parametrize('kind,edit', [(k, f) for k,fs in WHOLE.items() for f in fs], ids=lambda o: getattr(o, '__name__', o))
def test_whole_texts(kind, edit, stored):
    "What was done to a whole text is undone in most texts, plain text is a fixed point, and characters know their place"
    texts = [t for t in stored[:400] if not normalise(t).kinds and len(t.split()) > 80][:60]
    read = [normalise(edit(t)) for t in texts]
    for t,p in zip(texts, read):
        i, j = p.offsets.reshape(-1, 2).T
        assert normalise(p.text).text == p.text and len(i) == len(p.text) and (i < j).all() and (np.diff(i) >= 0).all() and j[-1] <= len(edit(t))
    assert sum(kind in p.kinds for p in read) > (.75 if kind == 'wrapped' else .9)*len(texts)     # lists in lines look like no wrapped text
    lost = lambda x, t: sum(a != b for a,b in zip(x.lower().split(), t.lower().split()))
    assert sum(lost(p.text, t) == 0 for p,t in zip(read, texts)) > .8*len(texts)

def leet(t): return t.translate(str.maketrans('aeioAEIO', '43104310'))
def no_blanks(t): return re.sub(r'\s', '', t)
def reversed_(t): return t[::-1]
def letters_alone(t): return ' '.join(no_blanks(t))

@pytest.mark.parametrize('edit', [leet, no_blanks, reversed_, letters_alone])
def test_what_is_not_undone_is_told(edit, stored):
    "Of whole texts, and of a passage among others; texts as they were written have no such note"
    texts = [t for t in stored[:400] if not normalise(t).kinds and not why_hidden(t) and len(t.split()) > 80][:60]
    others = ' '.join(texts[-1].split()[:60])
    for f in (edit, lambda t: f'{others}\n\n{edit(t)}\n\n{others}'):
        said = [why_hidden(f(t), normalise(f(t)).kinds) for t in texts]
        assert sum(s.endswith('a mark may be hidden') for s in said) > .9*len(texts), said

@pytest.mark.parametrize('edit,kind', [(apart, 'spaced'), (underscores, 'joined'), (hyphens, 'joined'), (acute, 'accents')])
def test_passages_among_others(edit, kind, stored):
    "What was done to one passage is undone there, and the rest stays"
    texts = [' '.join(t.replace('-', ' ').split()) for t in stored[:400] if not normalise(t).kinds and len(t.split()) > 80][:40]
    around = [f'{a}\n\n{edit(b)}\n\n{a}' for a,b in zip(texts, texts[1:])]
    read = [normalise(t) for t in around]
    good = [p.text == f'{a}\n\n{b}\n\n{a}' for p,a,b in zip(read, texts, texts[1:])]
    assert sum(kind in p.kinds for p in read) > .95*len(read) and all(p.text.startswith(a) and p.text.endswith(a) for p,a in zip(read, texts))
    assert sum(good) > .8*len(good)

def test_few_stored_texts_are_noted(stored):
    assert sum('hidden' in why_hidden(t) for t in stored[:2000]) < .005*2000

@pytest.mark.parametrize('layer', ['amp;', '#38;', '#x26;', 'amp;#x26;'])
def test_layers_of_entities_are_one_match(layer):
    "At most three passes, however deep"
    p = normalise('&' + layer*(4_000_000//len(layer)))
    assert p.text == '&' and p.passes <= 3

def test_long_texts_are_gone_through_less_often():
    "Layers of other kinds: at most three passes of 4 million characters"
    text = ('<b'*12 + '>'*12 + ' word ')*9
    assert normalise(text).passes == 12 and normalise(text*(4_000_000//len(text))).passes == 3

@pytest.mark.parametrize('unit', ['a_', 'ab', '.a ', 'l33t ', 'a\u0301 ', ',b C ', '-'])
def test_notes_of_long_texts_end(unit):
    "Half a second each; who looks at all pairs of characters needs minutes"
    with ends_within(60): why_hidden(unit*(400_000//len(unit)))

@pytest.mark.parametrize('unit', ['. ', 'I ', 'A\n', ' \n', 'THE OLD HARBOUR, ', 'T h  e ', 'The Old Harbour ', '"\'.', 'a' + ' '*50])
def test_long_texts_end(unit):
    with ends_within(60): normalise(unit*(400_000//len(unit)))

# ---------------------------------------------------------------- a detector
@pytest.fixture(scope='module')
def marked(stored):
    "A scheme, and two texts of the host"
    wm = DEW.build(load_host(), Letters(), SecretKey(b'an example key: never use this one'), DEWConfig.preset('calibrated', k=3),
                   max_reference_windows=300, progress=False)
    return wm, stored[:2]

@pytest.fixture(scope='module')
def clean(marked):
    "The texts with single blanks and without signs of emphasis, so that edits give them back exactly"
    return [' '.join(undo_all(t).text.replace('*', '').split()) for t in marked[1]]

@pytest.mark.parametrize('edit,rate', [(e, .25 if 'emphasis' in e else 1.) for e in EDITS if e != 'curly_quotes'])
def test_edits_of_characters_leave_the_mark(marked, clean, edit, rate):
    det, bad = Detector(marked[0]), CharacterEdit(edit, rate)(clean)
    raw = Detector(marked[0], reading='raw').detect(bad)
    for a,b,r,t in zip(det.detect(clean), det.detect(bad), raw, bad):
        assert (b.z, b.p_value, b.n_tokens) == pytest.approx((a.z, a.p_value, a.n_tokens), rel=1e-4)
        assert b.undone and not a.undone and not r.undone
        assert b.text == t and r.n_tokens > b.n_tokens            # today's code, and what is read now
        assert [t[i:j] for i,j in b.offsets[:1]] and b.offsets.max() <= len(t)

def test_readings(marked, tmp_path):
    wm, texts = marked
    det = Detector(wm, reading='raw')
    again = Detector.load(det.save(tmp_path/'raw.dew'), encoder=Letters())
    assert (det.reading, again.reading, Detector(wm).reading) == ('raw', 'raw', 'auto')
    with pytest.raises(ValueError, match='raw, auto, plain'): Detector(wm, reading='cooked')

def test_nothing_to_undo_nothing_changes(marked, clean):
    a, b = (Detector(marked[0], reading=r).detect(clean) for r in ('raw', 'auto'))
    for x,y in zip(a, b):
        assert (x.score, x.z, x.p_value) == (y.score, y.z, y.p_value)
        assert (x.offsets == y.offsets).all()
