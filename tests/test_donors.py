"""Donor tables on real tokenizers: every token of SmolLM2 and of Gemma, and the odd ones of tokenizers of other families."""
import dataclasses, json, time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dew_nb.transfer import borrowed, donors, neighbours
from dew_nb.mark import scheme
from dew_nb.models.assets import ASSETS, asset_path, cache_dir
from dew_nb.transfer.borrowed import agnostic_scheme, donor_scheme
from dew_nb.transfer.donors import TOKEN_KINDS, donor_embeddings, donor_map, donor_tokenizer, explain_tokens, token_texts
from dew_nb.models.hosts import Host, load_host
from dew_nb.mark.sources import reference_texts

HAS_GEMMA = (cache_dir()/ASSETS['gemma3-270m'].folder/'manifest.json').is_file()
needs_gemma = pytest.mark.skipif(not HAS_GEMMA, reason="gemma3-270m is not in the cache; load_host('gemma3-270m') puts it there")


@pytest.fixture(scope='module')
def smol(): return load_host('smollm2-135m', device='cpu')

@pytest.fixture(scope='module')
def gemma(): return load_host('gemma3-270m', device='cpu')

@pytest.fixture(scope='module')
def words(): return Host('minilm-words', asset_path('minilm'), device='cpu')

@pytest.fixture(scope='module')
def both(smol, gemma):
    "Maps in both directions, and the seconds each took"
    out = {}
    for h,d in ((smol, gemma), (gemma, smol)):
        h.tokenizer, d.tokenizer, d.embeddings
        t = time.time(); M, rep = donor_map(h.tokenizer, d); out[h.name] = (M, rep, time.time()-t)
    return out

def kind_of(host, donor, names):
    ids = host.tokenizer.convert_tokens_to_ids(names)
    assert [host.tokenizer.convert_ids_to_tokens(i) for i in ids] == names, 'a name is not a token of this tokenizer'
    return {o['token']: o for o in explain_tokens(host.tokenizer, donor, ids)}


# --- SmolLM2 with its own tokens and with MiniLM's

def test_own_tokens_come_back_to_themselves(smol):
    M, rep = donor_map(smol.tokenizer, smol)
    one = rep.ids('one')
    assert (M.indices[M.indptr[one]] == one).mean() > .999 and rep.one_to_one > .98
    assert rep.counts()['special'] == 17 and rep.counts()['unknown'] == 0

def test_rows_past_the_tokenizer_are_unused(smol, words):
    n = len(smol.tokenizer)
    X, rep = donor_embeddings(smol.tokenizer, words, [n-1, n, n+100])
    assert [TOKEN_KINDS[k] for k in rep.kind[1:]] == ['unused', 'unused'] and not X[1:].any()

def test_the_replacement_character_itself_is_a_character(smol, words):
    i = smol.tokenizer.convert_tokens_to_ids('ï¿½')
    if smol.tokenizer.convert_ids_to_tokens(i) != 'ï¿½': pytest.skip('SmolLM2 has no token for U+FFFD')
    assert explain_tokens(smol.tokenizer, smol, [i])[0]['kind'] == 'one'

def test_bytes_special_and_white_space_of_smollm2(smol):
    o = kind_of(smol, smol, ['Ã', 'Ĳ', 'Ãī', 'ĠĠĠĠ', 'Ċ', 'ĊĊ', 'ĉ', '<|im_end|>', 'Ġthe', 'the'])
    assert {k: v['kind'] for k,v in o.items()} == {'Ã': 'bytes', 'Ĳ': 'bytes', 'Ãī': 'one', 'ĠĠĠĠ': 'one', 'Ċ': 'one', 'ĊĊ': 'one',
                                                  'ĉ': 'one', '<|im_end|>': 'special', 'Ġthe': 'one', 'the': 'one'}
    assert (o['Ġthe']['text'], o['the']['text']) == (' the', 'the')

def test_the_donors_model_is_not_loaded(smol, words):
    donor_embeddings(smol.tokenizer, words, [500])
    assert 'model' not in words.__dict__ and 'model' not in smol.__dict__


# --- SmolLM2 and Gemma

@needs_gemma
@pytest.mark.long
@pytest.mark.parametrize('name', ['smollm2-135m', 'gemma3-270m'])
def test_every_token_has_the_kind_that_the_study_stored(both, name):
    file = Path(__file__).parent.parent/'nbs'/'studies'/'data'/'donors_calibrated.json'
    want, rep = json.loads(file.read_text())['coverage'][name]['counts'], both[name][1]
    print(f'{name}: {len(rep):,} tokens in {both[name][2]:.1f} s')
    assert rep.counts() == want and len(rep) == dict(zip(both, (49_152, 262_144)))[name]

@needs_gemma
@pytest.mark.long
@pytest.mark.parametrize('name', ['smollm2-135m', 'gemma3-270m'])
def test_pieces_spell_the_token(both, smol, gemma, name):
    "The donor's pieces of every represented token, joined, are its text: spaces neither lost nor added"
    host, donor = (smol, gemma) if name == smol.name else (gemma, smol)
    M, rep, _ = both[name]
    has, texts = np.flatnonzero(rep.pieces), token_texts(host.tokenizer)
    first = donor.tokenizer.encode('a', add_special_tokens=False)
    rows = [first + M.indices[M.indptr[i]:M.indptr[i+1]].tolist() for i in has]
    spelt = donor_tokenizer(donor.tokenizer).decode_batch(rows, skip_special_tokens=False)
    wrong = [(texts[i], s) for i,s in zip(has, spelt) if s != 'a' + texts[i]]
    assert not wrong, wrong[:20]

@needs_gemma
@pytest.mark.long
def test_no_special_token_is_ever_a_piece(both, smol, gemma):
    for name,donor in ((smol.name, gemma), (gemma.name, smol)):
        assert not np.isin(both[name][0].indices, donor.tokenizer.all_special_ids).any()

@needs_gemma
@pytest.mark.long
def test_means_are_means(both, smol, gemma):
    M, rep, _ = both[smol.name]
    i = int(np.argmax(rep.pieces))
    X = M @ gemma.embeddings.numpy()
    p = M.indices[M.indptr[i]:M.indptr[i+1]]
    assert len(p) == rep.pieces[i] > 3
    np.testing.assert_allclose(X[i], gemma.embeddings[p].mean(0).numpy(), atol=1e-6)
    np.testing.assert_allclose(donor_embeddings(smol.tokenizer, gemma, [i, 0])[0], X[[i, 0]], atol=1e-7)
    assert X.dtype == np.float32 and X.shape == (49_152, 640) and not X[rep.pieces == 0].any()

@needs_gemma
def test_odd_tokens_of_gemma(smol, gemma):
    o = kind_of(gemma, smol, ['▁the', 'the', '▁▁▁▁', '▁'*31, '\n\n', '\t', '<0x41>', '<0x0A>', '<0xC3>', '<unused7>', '<unused6241>',
                              '<start_of_turn>', '<pad>', '<h1>', '東京'])
    k = {t: v['kind'] for t,v in o.items()}
    assert [k[t] for t in ('▁the', 'the', '▁▁▁▁', '\n\n', '\t', '<0x41>', '<0x0A>')] == ['one']*7
    assert (o['▁the']['pieces'], o['the']['pieces']) == (['Ġthe'], ['the'])
    assert [k[t] for t in ('<0xC3>', '<unused7>', '<unused6241>', '<start_of_turn>', '<pad>')] == ['bytes', 'unused', 'unused', 'special', 'special']
    assert k['▁'*31] == k['<h1>'] == k['東京'] == 'several' and len(o['東京']['pieces']) == 4

@needs_gemma
def test_a_character_with_a_byte_that_smollm2_lacks_is_unknown(smol, gemma):
    o = kind_of(gemma, smol, ['\U000bfaba', '\x13', '<0x04>'])       # no F2, 13, 04 among SmolLM2's bytes
    assert {v['kind'] for v in o.values()} == {'unknown'} and not any(v['pieces'] for v in o.values())

@needs_gemma
def test_gemma_as_donor_prepends_nothing(smol, gemma):
    o = kind_of(smol, gemma, ['Ġharbor', 'ĠĠĠĠ', 'Ãī', '</', 'Ċ'])
    assert o['Ġharbor']['pieces'] == ['▁harbor'] and o['ĠĠĠĠ']['pieces'] == ['▁▁▁▁'] and o['Ãī']['pieces'] == ['É']
    assert gemma.tokenizer('x')['input_ids'][0] == gemma.tokenizer.bos_token_id       # it does prepend otherwise


# --- tokenizers of other families, in small

def test_a_token_keeps_its_space_and_loses_its_hashes(words):
    "Decoded alone, WordPiece's `house` has no space and `##ing` has its hashes: the letter before it tells them apart"
    ids = words.tokenizer.convert_tokens_to_ids(['house', '##ing', '##s'])
    assert token_texts(words.tokenizer, ids) == [' house', 'ing', 's']
    assert [words.tokenizer.decode([i]) for i in ids] != [' house', 'ing', 's']

@pytest.mark.parametrize('name', ['smol', 'words', pytest.param('gemma', marks=needs_gemma)])
def test_a_donor_reads_its_special_tokens_as_text(request, name):
    donor = request.getfixturevalue(name)
    special = [t for t in donor.tokenizer.all_special_tokens if len(t) > 2]
    host = word_level(['<unk>', 'a', *[t for t in special if t != '<unk>']])     # there they are words like others
    M, rep = donor_map(host, donor)
    assert len(special) > 2 and {TOKEN_KINDS[k] for k in rep.kind[2:]} == {'several'}
    assert donor_tokenizer(donor.tokenizer).decode(M[len(rep)-1].indices.tolist()).replace(' ', '').lower() == special[-1].lower()

def small_donor(tok, rows=None, width=4):
    E = torch.from_numpy(np.random.default_rng(0).normal(size=(rows or tok.get_vocab_size(), width)).astype(np.float32))
    return SimpleNamespace(tokenizer=tok, embeddings=E, name='small')

def word_level(tokens, **kwargs):
    t = Tokenizer(models.WordLevel({x: i for i,x in enumerate(tokens)}, unk_token='<unk>'))
    t.pre_tokenizer = pre_tokenizers.Split('', 'isolated')
    t.decoder = decoders.Fuse()
    t.add_special_tokens([AddedToken('<unk>', special=True)])
    return t

def test_what_the_donor_cannot_read_is_unknown():
    host, donor = word_level(['<unk>', 'a', 'z', 'az']), small_donor(word_level(['<unk>', 'a', 'b']))
    X, rep = donor_embeddings(host, donor)
    assert [TOKEN_KINDS[k] for k in rep.kind] == ['special', 'one', 'unknown', 'unknown'] and not X[2:].any()

def test_a_token_that_decodes_to_nothing_is_empty():
    host = word_level(['<unk>', 'a', '¤'])
    host.decoder = decoders.Sequence([decoders.Replace('¤', ''), decoders.Fuse()])
    assert TOKEN_KINDS[donor_embeddings(host, small_donor(word_level(['<unk>', 'a'])))[1].kind[2]] == 'empty'

def test_pieces_without_a_vector_are_unknown():
    host, tok = word_level(['<unk>', 'a', 'b', 'c']), word_level(['<unk>', 'a', 'b', 'c'])
    donor = small_donor(tok, rows=3)                        # no row for c …
    donor.embeddings[2] = 0                                 # … and an untrained one for b
    X, rep = donor_embeddings(host, donor)
    assert [TOKEN_KINDS[k] for k in rep.kind] == ['special', 'one', 'unknown', 'unknown']

def test_what_a_donor_would_drop_is_unknown():
    "A BPE without an unknown token leaves out what it can't read: the rest is not the token"
    def bpe(chars, **kwargs):
        t = Tokenizer(models.BPE({x: i for i,x in enumerate(['<s>', *chars])}, [], **kwargs))
        t.add_special_tokens([AddedToken('<s>', special=True)])
        return t
    host, donor = word_level(['<unk>', 'a', 'z', 'az']), bpe('ab')
    assert donor.encode('az').tokens == ['a']
    rep = donor_embeddings(host, small_donor(donor))[1]
    assert [TOKEN_KINDS[k] for k in rep.kind] == ['special', 'one', 'unknown', 'unknown']
    assert donor.encode('az').tokens == ['a']               # the donor's own tokenizer is as it was
    rep = donor_embeddings(host, small_donor(bpe('?ab', unk_token='?')))[1]    # unknown, but not a special token
    assert [TOKEN_KINDS[k] for k in rep.kind] == ['special', 'one', 'unknown', 'unknown']

def test_prefix_space_of_byte_level_donors_is_off():
    v = {x: i for i,x in enumerate(['h', 'i', 'Ġ', 'hi', 'Ġhi'])}
    t = Tokenizer(models.BPE(v, [('h', 'i'), ('Ġ', 'hi')]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    assert t.encode('hi').tokens == ['Ġhi']
    p = donor_tokenizer(t)
    assert p.encode('hi').tokens == ['hi'] and p.encode(' hi').tokens == ['Ġhi']
    assert t.encode('hi').tokens == ['Ġhi']                 # the donor's own tokenizer is as it was

def test_a_slow_tokenizer_is_refused(smol):
    with pytest.raises(TypeError, match='not a fast tokenizer'): donor_embeddings(object(), smol)

def test_broken_bytes_beside_a_real_replacement_character():
    names, texts = ['ï¿½', 'ï¿½Ã', '\ufffd', '<0xC3>'], ['\ufffd', '\ufffd\ufffd', '\ufffd', '\ufffd']
    tok = SimpleNamespace(id_to_token=names.__getitem__)
    kind = donors.host_kinds(tok, np.array([], np.int64), texts, np.arange(4))
    assert kind.tolist() == [-1, TOKEN_KINDS.index('bytes'), -1, TOKEN_KINDS.index('bytes')]


# --- what is refused, and what the message says

def table_with(donor, host='smollm2-135m', **meta):
    from dew_nb.mark.tables import TokenTable
    return TokenTable(torch.zeros(2, 2), torch.eye(2), 2, True, dict(host=host, **(borrowed._donor_meta(donor) if donor else {}), **meta))

@pytest.fixture
def nothing_slow(monkeypatch):
    "What takes long must not be reached"
    def slow(*a, **k): raise AssertionError('slow work was begun')
    for f in ('joined_ids', 'fit_whitening'): monkeypatch.setattr(donors, f, slow)
    monkeypatch.setattr(borrowed.DEW, 'build', slow)
    monkeypatch.setattr(borrowed.Blueprint, 'prepare', slow)

KEY = '0a'*32
CALLS = dict(
    donor_map=lambda h,d,k: donors.donor_map(h.tokenizer, d),
    donor_embeddings=lambda h,d,k: donors.donor_embeddings(h.tokenizer, d),
    explain_tokens=lambda h,d,k: donors.explain_tokens(h.tokenizer, d, [5]),
    donor_whitening=lambda h,d,k: donors.donor_whitening(d, donors.DEWConfig.preset('calibrated')),
    donor_tokens=lambda h,d,k: borrowed.donor_tokens(h, d),
    token_space=lambda h,d,k: neighbours.token_space(h, d),
    check_donor=lambda h,d,k: borrowed.check_donor(table_with(h), d),
    donor_table=lambda h,d,k: borrowed.donor_table(h, d, Letters(), k),
    donor_scheme=lambda h,d,k: borrowed.donor_scheme(h, d, Letters(), k),
    agnostic_scheme=lambda h,d,k: borrowed.agnostic_scheme(d, Letters(), k),
    donor_detector=lambda h,d,k: borrowed.donor_detector(d, Letters(), k))

@pytest.mark.parametrize('name', CALLS)
def test_a_donor_by_name_is_refused_at_once(smol, nothing_slow, name):
    from dew_nb import SecretKey
    key = SecretKey.from_hex(KEY)
    with pytest.raises(TypeError, match=r"donor must be a Host, got the name 'gemma3-270m': .*load_host\('gemma3-270m'\)"):
        CALLS[name](smol, 'gemma3-270m', key)
    with pytest.raises(TypeError, match=r'donor must be a Host, got .*, which has no \.tokenizer: load_host'):
        CALLS[name](smol, smol.tokenizer, key)

@pytest.mark.parametrize('name', ['donor_tokens', 'token_space', 'donor_table', 'donor_scheme'])
def test_a_host_by_name_is_refused_at_once(words, nothing_slow, name):
    from dew_nb import SecretKey
    with pytest.raises(TypeError, match=r"host must be a Host, got the name 'smollm2-135m': .*load_host\('smollm2-135m'\)"):
        CALLS[name]('smollm2-135m', words, SecretKey.from_hex(KEY))

@pytest.mark.parametrize('call', [lambda t,w: donors.token_texts(t), lambda t,w: donor_tokenizer(t), lambda t,w: donor_map(t, w),
                                  lambda t,w: explain_tokens(t, w, [5]), lambda t,w: neighbours.neighbours(np.eye(3), t, ' house'),
                                  lambda t,w: neighbours.word_vectors(np.eye(3), t, ['house']),
                                  lambda t,w: donors.coverage(donors.DonorReport('x', np.zeros(3), np.ones(3)), t)])
def test_a_tokenizer_is_not_a_name_nor_a_host(smol, words, call):
    with pytest.raises(TypeError, match=r"got the name 'smollm2-135m': give load_host\('smollm2-135m'\)\.tokenizer"): call('smollm2-135m', words)
    with pytest.raises(TypeError, match=r"got Host\('smollm2-135m'.*: give its \.tokenizer"): call(smol, words)

@pytest.mark.parametrize('name', ['donor_table', 'donor_scheme', 'agnostic_scheme', 'donor_detector'])
def test_a_key_that_is_a_string_is_refused_at_once(smol, words, nothing_slow, name):
    with pytest.raises(TypeError, match='key must be a SecretKey, got str: use SecretKey.from_env'): CALLS[name](smol, words, KEY)

def test_other_arguments_are_checked_first_too(smol, words, nothing_slow):
    from dew_nb import SecretKey
    key = SecretKey.from_hex(KEY)
    for f in (borrowed.donor_table, borrowed.donor_scheme):
        with pytest.raises(TypeError, match="write DEWConfig.preset\\('paper'\\)"): f(smol, words, Letters(), key, 'paper')
        with pytest.raises(TypeError, match='reference must be a list of texts, got one str'): f(smol, words, Letters(), key, reference='one text')
        with pytest.raises(TypeError, match=r"load_encoder\('minilm'\)"): f(smol, words, 'minilm', key)
    with pytest.raises(TypeError, match="write DEWConfig.preset"): agnostic_scheme(words, Letters(), key, 'paper')

def test_coverage_wants_the_report(smol):
    with pytest.raises(TypeError, match='report must be a DonorReport, got tuple: it is the second'): donors.coverage((1, 2), smol.tokenizer)

def test_tokens_are_explained_by_id_or_by_text(smol, words):
    tok = smol.tokenizer
    i, j = tok.convert_tokens_to_ids(['Ġhouse', '<|im_end|>'])
    by_id = explain_tokens(tok, words, [i, j])
    assert [o['token'] for o in by_id] == ['Ġhouse', '<|im_end|>'] and by_id[1]['kind'] == 'special'
    assert explain_tokens(tok, words, [' house', '<|im_end|>']) == explain_tokens(tok, words, np.array([i, j])) == by_id
    assert explain_tokens(tok, words, torch.tensor([i, j])) == by_id and explain_tokens(tok, words, [i, '<|im_end|>']) == by_id
    assert explain_tokens(tok, words, ' house') == explain_tokens(tok, words, i) == by_id[:1]

@pytest.mark.parametrize('tokens,error,message', [
    ([' waterproofing'], ValueError, r"' waterproofing' is 2 tokens \(Ġwaterproof ing\) of the host, and must be one"),
    ([''], ValueError, "'' is no token of the host"),
    (['Ġharbor'], ValueError, r"It is the name of a token: give its text ' harbor' or its id \d+"),
    ([-1], ValueError, '-1 is not a token of the host: its ids are 0 to 49,151'),
    ([49_152], ValueError, 'its ids are 0 to 49,151'), ([2**40], ValueError, 'its ids are 0 to 49,151'),
    ([1.5], TypeError, 'ids .whole numbers. or texts, got float')])
def test_what_is_not_a_token_is_said(smol, words, tokens, error, message):
    with pytest.raises(error, match=message): explain_tokens(smol.tokenizer, words, tokens)

def test_a_text_unknown_to_the_host_is_said(words):
    with pytest.raises(ValueError, match="'😀' is unknown to the host"): explain_tokens(words.tokenizer, words, ['😀'])
    assert explain_tokens(words.tokenizer, words, ['[UNK]'])[0]['kind'] == 'special'

def test_tokens_of_a_map_below_zero_are_refused(smol, words):
    with pytest.raises(ValueError, match='-1 is not a token of the host'): donor_map(smol.tokenizer, words, [3, -1])

def test_another_donor_is_refused_with_what_to_do(smol, words):
    from dew_nb import DEW, DEWConfig
    from dew_nb.read.detection import Detector
    from dew_nb.mark.bias import BiasRule
    from dew_nb.mark.hashed import HashedContexts
    config = DEWConfig.preset('calibrated', null='iid')
    contexts = HashedContexts(bytes(32), 2, smol.tokenizer, config.k)
    detector = lambda t: Detector(DEW(config, BiasRule(config.rule, t), contexts))
    a, b = words.digest[:12], smol.digest[:12]
    said = f"has the token space of 'minilm-words' .digest {a}….*'smollm2-135m', has digest {b}….*give 'minilm-words', which it was built with"
    for x,what,how in ((table_with(words), 'table', "donor_table(load_host('smollm2-135m'), donor, ...)"),
                       (detector(table_with(words)), 'detector', "donor_scheme(load_host('smollm2-135m'), donor, ...).detector()"),
                       (detector(table_with(words, 'any')), 'detector', 'donor_detector(donor, ...)')):
        borrowed.check_donor(x, words)
        with pytest.raises(ValueError, match=f'This {what} {said}') as e: borrowed.check_donor(x, smol)
        assert str(e.value).endswith(f'or build a {what} with this donor: {how}.')
    for x,what,how in ((table_with(None), 'table', 'donor_table'), (detector(table_with(None)), 'detector', 'donor_scheme')):
        with pytest.raises(ValueError, match=f'not a donor {what}: it has the vectors of smollm2-135m itself.*build one with {how}'):
            borrowed.check_donor(x, words)
    with pytest.raises(TypeError, match='got str: read a file with Detector.load'): borrowed.check_donor('t.dew', words)

def test_a_word_without_a_token_has_no_neighbours(smol, words):
    with pytest.raises(ValueError, match="'' has no token: give a word, such as ' house'"): neighbours.neighbours(np.eye(3), smol.tokenizer, '')
    with pytest.raises(ValueError, match=r"\[''\] have no token"): neighbours.word_vectors(np.eye(3), words.tokenizer, ['house', '', 'tree'])


# --- schemes

class Letters:
    "A fast encoder: letter counts"
    name = 'letters'
    def encode(self, texts): return np.array([[1 + t.count(c) for c in 'abcdefghijklmnopqrst'] for t in texts], np.float32)

@pytest.mark.parametrize('mode,whitening', [('context_only', None), ('token_only', 'uniform')])
def test_modes_and_whitenings(smol, words, mode, whitening):
    from dew_nb import DEWConfig, SecretKey
    c, few = DEWConfig.preset('calibrated', mode=mode, token_whitening=whitening, n=32), ['the old harbour was quiet at night '*9]*5
    wm = donor_scheme(smol, words, Letters(), SecretKey.from_hex('0a'*32), c, reference=few, progress=False)
    r = wm.detector().detect('The harbor was quiet and the boats were back before it was dark.')
    assert r.n_scored > 5 and np.isfinite(r.z) and wm.table.meta['donor'] == 'minilm-words'
    assert (wm.blueprint.tokens.whitening is None) == (whitening is None)

def test_a_donor_scheme_is_a_build_with_its_tokens(smol, words):
    from dew_nb import DEW, DEWConfig, SecretKey
    few, key, kw = ['the old harbour was quiet at night '*9]*5, SecretKey.from_hex('0a'*32), dict(config=DEWConfig.preset('calibrated', n=32), progress=False)
    tokens = borrowed.donor_tokens(smol, words, reference=few)
    wm = donor_scheme(smol, words, Letters(), key, reference=iter(few), **kw)      # texts that can be read but once
    same = DEW.build(smol, Letters(), key, reference=few, tokens=tokens, **kw)
    assert torch.equal(wm.table.rows, same.table.rows) and wm.table.meta == same.table.meta
    assert torch.equal(wm.table.rows, borrowed.donor_table(smol, words, Letters(), key, reference=few, **kw).rows)
    assert not wm.table.rows[tokens.excluded].any() and wm.blueprint.tokens.report.counts() == tokens.report.counts()
    assert wm.table.meta['config']['token_whitening'] == 'frequency'
    for change in (dict(embeddings=tokens.embeddings[:-1]), dict(excluded=tokens.excluded[:-1])):
        with pytest.raises(ValueError, match='49,151 rows, but smollm2-135m has 49,152'):
            DEW.build(smol, Letters(), key, reference=few, tokens=dataclasses.replace(tokens, **change))

def test_the_agnostic_scheme_does_not_generate(words):
    from dew_nb import DEWConfig, SecretKey
    wm = agnostic_scheme(words, Letters(), SecretKey.from_hex('0a'*32), DEWConfig.preset('calibrated', n=32), reference=['the old harbour '*60]*5, progress=False)
    with pytest.raises(ValueError, match='no host model'): wm.generate('The')
    assert wm.rekey(SecretKey.from_hex('0b'*32)).table.meta['host'] == 'any'

def test_detectors_say_whose_tokens_they_have(smol, words, tmp_path):
    from dew_nb import DEWConfig, SecretKey
    from dew_nb.read.detection import Detector
    few, key = ['the old harbour was quiet at night '*9]*5, SecretKey.from_hex('0a'*32)
    one = donor_scheme(smol, words, Letters(), key, DEWConfig.preset('calibrated', n=32), reference=few, progress=False).detector()
    any_host = borrowed.donor_detector(words, Letters(), key, reference=few, progress=False)
    for det,host,tok in ((one, 'smollm2-135m', smol), (any_host, 'any', words)):
        back = Detector.load(det.save(tmp_path/f'{host}.dew'), encoder=Letters(), check=False)
        for d in (det, back):
            assert f"host='{host}', donor='minilm-words'" in repr(d)
            assert (d.meta['tokenizer_digest'], d.meta['donor_tokenizer_digest']) == (tok.tokenizer_digest, words.tokenizer_digest)
