"The space of words from end to end, with an encoder that is quick because it means nothing"
import gzip, importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pandas as pd
import pytest
import torch

from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.mark import wordspace
from dew_nb.models.tokenization import backend
from dew_nb.models.vectors import unit_rows
from dew_nb.mark.words import words
from dew_nb.mark.wordspace import Lexicon, WordMemory, WordProjection
from quick import Letters, toy_host

KEY = SecretKey(b'an example key: never use this one')
CONFIG = dict(m=64, n=16, layers=12, context_width=24, k=2)
COMMON = words('the old house by a river and its quiet garden, where nobody ever walks in the evening; it was not mine.')
MEAN = unit_rows(torch.from_numpy(Letters().encode(COMMON))).mean(0)
PROJECTION = WordProjection(MEAN, torch.randn(32, 24, generator=torch.Generator().manual_seed(0)))


@pytest.fixture(scope='module', autouse=True)
def projection():
    "Letters mean nothing in any language: any projection will do"
    with pytest.MonkeyPatch.context() as m:
        m.setattr(wordspace, 'packaged_projection', lambda encoder: PROJECTION)
        yield


@pytest.fixture(scope='module')
def wm(projection):
    return DEW.build(toy_host(), Letters(), KEY, DEWConfig.preset('multilingual', **CONFIG), progress=False)


@pytest.fixture(scope='module')
def texts(wm):
    prompts = ['The old harbour', 'To bake a good loaf of bread']
    return [wm.generate(prompts, max_new_tokens=70, seed=1, mark=m) for m in (True, False)]


def test_marked_and_unmarked(wm, texts):
    marked, plain = (wm.detector().detect(t) for t in texts)
    assert all(r.p_value < 1e-2 for r in marked) and all(r.p_value > 1e-2 for r in plain)
    assert [r.n_tokens for r in marked] == [len(words(t)) for t in texts[0]]


def test_file_has_no_table_and_no_tokenizer(wm, texts, tmp_path):
    det = wm.detector()
    path = det.save(tmp_path/'w.dew')
    again = Detector.load(path, encoder=Letters())
    assert path.stat().st_size < 100_000 and isinstance(again.reader.units, Lexicon) and not again.reader.units.reserved
    for x,y in zip(det.detect(texts[0]), again.detect(texts[0])): assert x.z == pytest.approx(y.z, abs=1e-4)
    assert KEY._raw not in path.read_bytes()
    with pytest.raises(ValueError, match='only read'): again.scheme.contexts.begin(again.scheme.rule, 1)


def test_no_host_reads_words(wm):
    from types import SimpleNamespace
    from dew_nb.shell.beside import host_reading
    args = SimpleNamespace(host=None, device=None, prompt=None, prompt_file=None, temperature=None, top_p=None, guesses=None, alpha=.01)
    with pytest.raises(ValueError, match='marks words, not the tokens of a host'): host_reading(args, {'': wm.detector()})


def test_same_text_same_score(wm, texts):
    "Whatever else was read before, and in whatever batch"
    det = wm.rekey(KEY).detector()
    alone = [det.detect(t).z for t in texts[0][::-1]][::-1]
    assert [r.z for r in det.detect(texts[0] + texts[1])][:2] == pytest.approx(alone, abs=1e-4)


def test_invented_words_are_forgotten(wm, texts, tmp_path):
    "Thousands of words that nobody uses, read by four threads at once: few stay, and every score is as if they had all been kept"
    det = Detector.load(wm.detector().save(tmp_path/'w.dew'), encoder=Letters())
    small = Detector.load(tmp_path/'w.dew', encoder=Letters())
    small.reader.units.capacity = 100
    many = [' '.join(f'{t.split()[i % 20]} invented{j}' for i,j in enumerate(range(60*n, 60*n + 60))) + ' ' + t
            for n,t in enumerate((texts[0] + texts[1])*8)]
    want = [det.detect(t).z for t in many]
    with ThreadPoolExecutor(4) as pool: got = list(pool.map(lambda t: small.detect(t).z, many))
    assert got == pytest.approx(want, abs=1e-4)
    assert small.detect(many[0]).z == pytest.approx(want[0], abs=1e-4)
    full, few = det.reader.units, small.reader.units
    assert len(full.numbers) > 60*len(many) and len(few.numbers) <= 100 + 4*250 and len(few.rows) <= 2*(100 + 4*250)


def test_a_lexicon_is_not_locked_while_it_asks(wm):
    "One asks the encoder for long, another reads known words meanwhile"
    class Slow(Letters):
        go, asked = Event(), Event()
        def encode(self, words):
            if 'slow' in words:
                self.asked.set()
                assert self.go.wait(30)
            return super().encode(words)
    lex = Lexicon(Slow(), PROJECTION)
    lex.look_up([['quick']])
    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(lex.look_up, [['quick', 'slow']])
        assert Slow.asked.wait(30)
        assert lex.look_up([['quick', 'new']]) == [[0, 1]]
        Slow.go.set()
        assert one.result() == [[0, 2]]


def test_another_key_finds_nothing(wm, texts):
    other = wm.rekey(SecretKey(b'another key, of no other use at all')).detector().detect(texts[0])
    assert all(r.p_value > 1e-2 for r in other)


def test_nothing_to_score(wm):
    for text in ('', 'one two', '水は甘い。とても'):
        r = wm.detector().detect(text)
        assert (r.n_scored, r.p_value) == (0, 1.)


def test_only_tokens_that_begin_a_word_are_marked(wm):
    tok, processor = backend(wm.host.tokenizer), wm.processor(prompt_length=0, drawn=True)
    ids = torch.tensor([tok.encode(' The quiet old house', add_special_tokens=False).ids])
    logits = torch.randn(1, wm.host.vocab_size, generator=torch.Generator().manual_seed(0))
    change = (processor(ids, logits).log_softmax(-1) - logits.log_softmax(-1))[0]
    going_on = [tok.encode(t, add_special_tokens=False).ids[0] for t in ('ing', 'es', 'hold', '-', '\n')]
    mask = processor.memory.mask[0]
    mask = mask[:wm.host.vocab_size]                           # it has a place more, for what is beyond the table
    begins = logits[0, :len(mask)].masked_fill(~mask, -torch.inf).topk(20).indices
    assert change[going_on].std() < 1e-4 < 1e-2 < change[begins].std()


def test_a_similar_window_is_left_alone(wm):
    m = WordMemory(1, 3, wm.table)
    m.past = torch.eye(3)[None, :2]
    c = torch.tensor([[.9, .1, .1]])
    assert not m.repeats(c, .95) and m.repeats(c, .85)


def test_a_word_is_passed_over_after_a_window_like_that_it_was_marked_after(wm):
    tok = backend(wm.host.tokenizer)
    at = torch.tensor([[tok.encode(t, add_special_tokens=False).ids[0] for t in (' house', ' dog')]])
    m = wm.contexts.begin(wm.rule, 1)
    m.c, m.said = torch.eye(24)[:1], wm.table.rows[at][:, :1]       # house was marked
    for past,word,want in ((m.c, .5, [True, False]), (torch.eye(24)[1:2], .5, [False, False]), (m.c, 1.01, [False, False])):
        m.past = past[None]
        assert m.spent(at, wm.rule.kernel, dict(pair=1.01, word=word))[0].tolist() == want
    m.past = m.c[None]
    assert m.spent(at, wm.rule.kernel, dict(pair=-1., word=-1.))[0].tolist() == [True, True]


@pytest.mark.parametrize('changes,message', [
    (dict(rule='bias'), "rule='tournament'"), (dict(n=64), 'at most 24'), (dict(context_width=32), 'at most 24')])
def test_choices_that_do_not_go_together(wm, changes, message):
    with pytest.raises(ValueError, match=message):
        DEW.build(wm.host, Letters(), KEY, DEWConfig.preset('multilingual', **(CONFIG | changes)), progress=False)


ENGLISH = {'house': 'house /haus/\nHaus <neut>, Gebäude\n     "build a house" - ein Haus bauen\n', 'big': 'big /big/\n1. groß\n2. sehr weit\n'}
GERMAN = {'haus': 'Haus /haus/ <neut>\nhouse\n', 'gross': 'groß\nbig, great\n', 'gebäude': 'Gebäude\nbuilding\n'}


def dictionary(folder, name, entries):
    "A dictionary as dictd keeps it"
    digits, at, lines, data = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/', 0, [], b''
    number = lambda n: (number(n//64) if n > 63 else '') + digits[n % 64]
    for head,entry in entries.items():
        b = entry.encode()
        lines.append(f'{head}\t{number(len(data))}\t{number(len(b))}')
        data += b
    (folder/f'freedict-{name}.index').write_text('\n'.join(lines) + '\n', encoding='utf8')
    (folder/f'freedict-{name}.dict.dz').write_bytes(gzip.compress(data))


def module(*path):
    "A script of the repository"
    spec = importlib.util.spec_from_file_location(path[-1], Path(__file__).parent.parent.joinpath(*path).with_suffix('.py'))
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m


def test_pairs_that_both_dictionaries_know(tmp_path):
    make = module('tools', 'words')
    dictionary(tmp_path, 'eng-deu', ENGLISH)
    dictionary(tmp_path, 'deu-eng', GERMAN | {'groß': GERMAN['gross']})
    assert make.languages(tmp_path) == ['deu']
    assert make.read_dictionary(tmp_path/'freedict-eng-deu.index', {'house', 'big'}) == {'house': ['haus', 'gebäude'], 'big': ['groß']}
    assert list(make.pairs_of(tmp_path, 'deu', {'house', 'big'})) == [('house', 'haus', 1), ('big', 'groß', 1)]


def test_the_rule_of_the_choice():
    choose = module('nbs', 'studies', 'words_choose').choose
    row = lambda order, auroc, ppl, rep, se=.01: dict(order=order, auroc=auroc, ppl=ppl, ppl_se=se, rep=rep)
    rows = dict(good=row(2, .95, 1.01, .004), dull=row(2, .99, .85, .004), again=row(2, .99, 1.01, .03), smooth=row(1, .965, 1., .002))
    assert choose(rows) == ('good', True)
    assert choose(rows | dict(smooth=row(1, .98, 1., .002))) == ('smooth', True)
    assert choose(rows | dict(noisy=row(2, .99, .94, .002, se=.04))) == ('noisy', True)
    assert choose({k: rows[k] for k in ('dull', 'again')}) == ('again', False)      # three times the limit, not five
    assert choose(dict(weak=row(2, .9, .95, .002), dull=rows['dull'])) == ('dull', False)


def test_a_study_with_another_choice():
    make = module('nbs', 'studies', 'words_choose')
    old = (make.HERE/'multilingual.toml').read_text()
    new = make.with_choice(old, dict(order=1, word_repeat=.3))
    assert 'order = 1\nword_repeat = 0.3\n' in new and 'context_width' not in new and new.count('[[schemes]]') == old.count('[[schemes]]')
    said = {f: DEWConfig.preset('multilingual').to_flat()[f] for f in make.FIELDS}
    assert make.with_choice(old, said) == old                                    # what is measured is the preset


class Units:
    "As much of results as `pack.joined` looks at"
    def __init__(self, schemes, *units):
        self.study = dict(schemes=schemes, attacks={'none': []}, hosts=['h'], encoders=[], seeds=[0])
        self.units = pd.DataFrame(units, columns=['id', 'source', 'scheme'])
        self.metas = [dict(id=i) for i in self.units['id']]
    def join(self, other):
        new = Units(self.study['schemes'] | other.study['schemes'])
        new.metas = self.metas + [m for m in other.metas if m not in self.metas]
        return new


def test_a_pack_without_the_old_units_of_a_scheme():
    joined = module('nbs', 'studies', 'pack').joined
    old = lambda: Units(dict(none=0, words=1, other=2), ('a', 'none', 'words'), ('b', 'none', 'other'), ('c', 'words', None), ('d', 'none', None))
    new = Units(dict(none=0, words=9), ('d', 'none', None), ('e', 'words', None), ('f', 'none', 'words'))
    for renew in (False, True):
        both = joined(old(), new, renew, ['words'])
        assert {m['id'] for m in both.metas} == set('bdef')
        assert list(both.study['schemes'].items()) == [('none', 0), ('words', 9), ('other', 2)]
    assert {m['id'] for m in joined(old(), Units(dict(none=0)), False, ()).metas} == set('abcd')


def test_seeds_of_long_texts_are_secret(wm):
    "Rows of words are known to everybody, so a seed must come from the key as well"
    assert len(wm.rule.secret()) > 100 and wm.rule.secret() == wm.detector().scheme.rule.secret()
    assert wm.rekey(SecretKey(bytes(16))).rule.secret() != wm.rule.secret()
