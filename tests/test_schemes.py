"""What stored studies depend on: the same seed gives the same key, lists and bits, and the donor kinds are made from a study's options."""
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.schemes.lists import KGW, Unigram
from dew_nb.evaluation.schemes.registry import SCHEMES, scheme_params
from dew_nb.evaluation.schemes.base import DonorScheme, loop_over_keys, seed_key
from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.studies.plan import Study
from dew_nb.evaluation.schemes.synthid import SynthID
from dew_nb.models.assets import asset_path
from dew_nb.models.encoders import load_encoder
from dew_nb.models.hosts import Host, load_host
from dew_nb.mark.sources import reference_texts


def digest(x): return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]


@pytest.fixture(scope='module')
def host(): return load_host('smollm2-135m', device='cpu')


STUDIES = Path(__file__).parents[1]/'nbs'/'studies'
# Read with a network in float32, on a GPU then and here on a CPU: a sum may differ a little, and a token at a threshold fall on the other side (δ: at the edge of its interval, log 1/p at once)
NETWORKS = {'SIR': .05, 'X-SIR': .05, 'ATW': .3, 'TS': .05, 'Unbiased gamma statistic=ratio': .05, 'Unbiased delta': 8.}


@pytest.mark.long
@pytest.mark.parametrize('study', ['schemes', 'schemes_few'])
def test_stored_scores_are_found_again(host, study):
    "Half of a stored text of every scheme that is read nowhere else, under the key of its seed"
    r, enc = load_results(STUDIES/'data'/study), load_encoder()
    s, by = r.scores.query("attack == 'truncate-0.5' and seed == 0 and source == scheme"), ['source', 'seed', 'attack', 'i']
    s = s.merge(r.texts.drop_duplicates(by)[[*by, 'text']], on=by).sort_values('i').drop_duplicates('scheme')
    rows = {row.label: row for row in Study.load(STUDIES/f'{study}.toml').rows if row.kind not in ('none', 'kgw', 'unigram', 'dew')}
    s = s[s.scheme.isin(rows)]
    for name, d in s.groupby('scheme'):
        m = find_scheme(rows[name].kind)(host, enc, 0, name=name, **rows[name].params).measure(d.text.tolist())
        for c in ('score', 'n_scored'): assert np.allclose(m[c], d[c], atol=NETWORKS.get(name, 1e-4) * (1 if c == 'score' else 10)), (name, c, m[c], d[c].tolist())
    assert set(s.scheme) == set(rows)


@pytest.fixture(scope='module')
def texts(): return [' '.join(t.split()[:45]) for t in reference_texts()[:3]]


def test_seeds_name_the_same_keys():
    assert [seed_key(s).fingerprint for s in (0, 7)] == ['8e42f96b69d4f0e3', '61ebbb519a41769a']


def test_green_lists_are_the_same(host):
    w = np.array([[11, 22, 33], [44, 55, 66]])
    three, one, none = KGW(host, seed=1).green, KGW(host, seed=1, width=1).green, Unigram(host, seed=1).green
    assert digest(three.bits(three.codes(w))) == '024fb6acb73db3bd'
    assert digest(one.bits(w[:, 0])) == '02eccf8018f6c007'
    assert digest(none.bits(none.codes(w)[:1])) == 'de65a7291397b8a4'


def test_bits_of_the_tournament_are_the_same(host, texts):
    s = SynthID(host, seed=1)
    assert s.keys[:4] == [24560, 30726, 61348, 16457] and s.table_seed == 1955921038
    assert digest(np.packbits(s.cpu.sampling_table.numpy().astype(np.uint8))) == 'be069ef758a1505a'
    assert digest(np.packbits(s.g_values(texts)[1].astype(np.uint8))) == 'dadad9ffcccc517b'


def test_kinds_of_donors_from_options(host):
    words = Host('minilm-words', asset_path('minilm'), device='cpu')
    enc = load_encoder('minilm', device='cpu')
    for kind, read in (('donor', 'host'), ('agnostic', 'donor')):
        s = SCHEMES[kind](host, enc, 3, name='a row', donor=words, preset='paper', lam=2.5)
        assert (s.name, s.read, s.config.rule.lam, s.config.null) == ('a row', read, 2.5, 'iid')
        assert s.rekey(4).donor is words and s.rekey(4).read == read and s.rekey(4).config == s.config
        assert {'donor', 'preset', 'statistic', 'lam', 'mode'} <= set(scheme_params(type(s)))
    assert DonorScheme.reading == ('read',) and DonorScheme.needs_encoder
    with pytest.raises(TypeError, match='donor'): SCHEMES['donor'](host, enc)


def test_a_donor_may_be_named(host):
    s = SCHEMES['donor'](host, load_encoder('minilm', device='cpu'), donor='smollm2-135m', read='donor', preset='paper')
    assert s.donor.name == 'smollm2-135m' and s.wm is None


def test_the_plain_way_over_keys_is_a_row_each(host, texts):
    s = KGW(host)
    r = loop_over_keys(s, [0, 5], texts)
    assert r['score'].shape == (2, 3) and (r['score'][0] == s.score(texts)).all()
    assert (r['p_value'][1] == s.rekey(5).p_values(texts)).all()


def test_every_kind_has_a_class_with_options():
    for kind in SCHEMES:
        cls = find_scheme(kind)
        assert isinstance(cls, type) and hasattr(cls, 'measure'), kind
    assert scheme_params(find_scheme('dipmark')) == ['alpha', 'gamma', 'width', 'skip', 'dedup']
    assert {'delta', 'chunk'} == set(scheme_params(find_scheme('xsir')))
    assert 'statistic' in find_scheme('unbiased').reading


def test_keyed_numbers_are_the_same():
    from dew_nb.evaluation.schemes.exp import context_seeds, token_uniform
    w = torch.tensor([[11, 22, 33], [44, 55, 66]])
    assert context_seeds(w, 5).tolist() == [4360491428271025917, 7065981407927704476]
    assert np.allclose(token_uniform(context_seeds(w, 5), torch.tensor([7, 49_000])), [0.9691170029109344, 0.983646446489729], atol=1e-9)


def test_trained_schemes_have_their_options():
    assert scheme_params(find_scheme('ts')) == ['dedup'] and find_scheme('ts').reading == ('dedup',)
    assert scheme_params(find_scheme('atw')) == ['alpha', 'first', 'delta_0', 'delta', 'secret']
    assert find_scheme('atw').needs_encoder and not find_scheme('ts').needs_encoder


def test_what_is_trained_is_packaged(host):
    from dew_nb.evaluation.schemes.atw import load_mapping
    from dew_nb.evaluation.schemes.ts import load_tables
    share, strength = load_tables(host)
    assert len(share) == len(strength) == host.vocab_size
    assert .1 <= share.min() < .2 < share.max() <= .9 and .5 < strength.min() < strength.max() < 6
    net = load_mapping(load_encoder('minilm', device='cpu'))
    bits = net(torch.nn.functional.normalize(torch.randn(64, 384, generator=torch.Generator().manual_seed(0)))) > 0
    assert bits.shape == (64, 384) and .4 < bits.float().mean() < .6


@pytest.mark.parametrize('module, load, command', [
    ('ts', 'load_tables', 'make_tables(host)'), ('atw', 'load_mapping', 'make_mapping(encoder)'),
    ('sir', 'load_network', 'make_network(encoder)'), ('sir', 'load_clusters', 'make_clusters(host)')])
def test_without_weights_the_command_is_said(module, load, command):
    from importlib import import_module
    from types import SimpleNamespace
    f = getattr(import_module(f'dew_nb.evaluation.schemes.{module}'), load)
    with pytest.raises(FileNotFoundError) as e: f(SimpleNamespace(name='another', digest='0'*64, tokenizer_digest='0'*64))
    assert command in str(e.value) and 'another' in str(e.value)


def test_contexts_of_a_batch_are_those_of_its_texts():
    from dew_nb.evaluation.schemes.sir import context_ends, next_ends
    rng = np.random.default_rng(0)
    starts = np.array([False, True, True])
    ids = rng.integers(0, 3, (40, 25))
    for t in (1, 2, 7, 25):
        for chunk in (1, 3, 10):
            want = [[context_ends(np.append(row[:t], x), starts, chunk)[-1] for x in (0, 1)] for row in ids]
            assert (next_ends(ids[:, :t], starts, chunk) == want).all()


def test_law_of_coins_is_the_poisson_binomial():
    from itertools import product
    from dew_nb.evaluation.schemes.ts import coins_sf
    g = np.array([.2, .5, .35, .9])
    law = np.zeros(5)
    for c in product((0, 1), repeat=4): law[sum(c)] += np.prod(np.where(c, g, 1 - g))
    assert np.allclose([coins_sf(np.zeros(4, int), g, np.array([h]))[0] for h in range(6)], [*law[::-1].cumsum()[::-1], 0])
    assert coins_sf(np.zeros(0, int), np.zeros(0), np.zeros(2)).tolist() == [1, 1]


def test_token_specific_reads_what_it_writes(host):
    from dew_nb.evaluation.schemes.ts import TS
    s = TS(host, seed=2)
    text = ' The old harbour was full of boats that nobody had used for years.'
    ids = np.array(s.tok.encode(text, add_special_tokens=False).ids)
    p = s.processor(0)
    green = [bool(p(torch.from_numpy(ids[None, :i]), torch.zeros(1, host.vocab_size))[0, ids[i]] > 0) for i in range(1, len(ids))]
    m, g = s.measure([text]), s.share[ids[:-1]].numpy().astype(float)
    assert m['n_scored'][0] == len(green)
    assert np.isclose(m['score'][0], (sum(green) - g.sum())/np.sqrt((g*(1 - g)).sum()), atol=1e-4)


def stand_ins(folder, tok):
    "A T5 of DIPPER's architecture and a BERT, a few thousand random weights each, in folders as the hub has them"
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration
    ids = dict(decoder_start_token_id=tok.eos_token_id, pad_token_id=tok.eos_token_id, eos_token_id=tok.eos_token_id)
    t5 = T5Config(vocab_size=len(tok), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, feed_forward_proj='gated-gelu', **ids)
    pieces = AutoTokenizer.from_pretrained(asset_path('minilm'))
    bert = BertConfig(vocab_size=len(pieces), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name, model, t in (('dipper', T5ForConditionalGeneration(t5), tok), ('bert', BertForMaskedLM(bert), pieces)):
            model.save_pretrained(folder/name)
            t.save_pretrained(folder/name)


def test_attacks_whose_weights_are_elsewhere_run_with_stand_ins(host, tmp_path):
    "The study file as it is, with folders in the place of names: all four settings of DIPPER, and BERT-large"
    from pathlib import Path
    from dew_nb.evaluation.studies.kinds import make_attack
    from dew_nb.evaluation.studies.plan import Study
    tomllib = pytest.importorskip('tomllib')
    file = Path(__file__).parents[1]/'nbs/studies/schemes_weights.toml'
    Study.load(file)
    attacks = tomllib.loads(file.read_text())['attacks']
    assert [(a['lexical'], a['order']) for a in attacks[:4]] == [(40, 0), (40, 100), (60, 20), (60, 60)]
    stand_ins(tmp_path, host.tokenizer)
    where = dict(dipper=dict(model=str(tmp_path/'dipper'), tokenizer=str(tmp_path/'dipper'), max_new_tokens=8),
                 synonyms=dict(masked_lm=str(tmp_path/'bert')))
    texts = ['The old harbour was full of boats. Nobody had used them for years. A dog slept.', 'A good cook knows every market.']
    for a in attacks:
        options = {k: v for k, v in a.items() if k not in ('kind', 'name')} | where[a['kind']]
        after = make_attack(a['kind'], options, host)(texts, 0)
        assert len(after) == 2 and all(t.strip() and t != x for t, x in zip(after, texts)), a['name']


def script(name):
    "A script of the studies as a module"
    import importlib.util, sys
    from pathlib import Path
    folder = Path(__file__).parents[1]/'nbs/studies'
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f'study_{name}', folder/f'{name}.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally: sys.path.remove(str(folder))
    return module


def test_times_are_ratios_within_a_round():
    times = dict(none=[dict(round=r, write=w) for r, w in enumerate((1., 2., 4.))],
                 slow=[dict(round=r, write=w, read=.5) for r, w in enumerate((3., 4., 8.))], last=[dict(round=2, write=40., read=4.)])
    found = script('times').summary(times)
    assert found['slow']['write'] == dict(ratio=2., low=2., high=3.) and found['slow']['read'] == dict(ratio=.25, low=.125, high=.5)
    assert found['last']['write']['ratio'] == 10 and found['last']['rounds'] == 1
    assert found['none']['write']['ratio'] == 1 and 'read' not in found['none']


def test_times_and_unmarked_rates_have_the_rows_of_both_studies(tmp_path):
    import pandas as pd
    from types import SimpleNamespace
    m = script('unmarked_rates')
    rows = m.all_rows()
    assert len(rows) == 16 and {'DEW standard', 'k-SemStamp', 'ATW', 'TS', 'Unbiased gamma statistic=ratio'} <= set(rows) and set(m.KEYS) <= set(rows)
    class Even:                                        # not a watermark: the key is what is said
        def __init__(self, host, encoder, seed, name): self.name, self.seed = name, seed
        def score(self, texts): return np.full(len(texts), float(self.seed))
        def measure(self, texts): return dict(score=self.score(texts), p_value=np.full(len(texts), .5), n_scored=np.ones(len(texts), int))
        def rekey(self, seed): return Even(None, None, seed, self.name)
    m.find_scheme = lambda kind: Even
    d, stamp = m.one_scheme(SimpleNamespace(kind='even', label='even', params={}), None, None, ['none', 'human'], ['a', 'b'], 3)
    assert d.score.tolist() == [1000, 1000, 1001, 1001, 1002, 1002] and d.source.tolist() == ['none', 'human']*3 and d.key.tolist() == [0, 0, 1, 1, 2, 2]
    d.to_parquet(tmp_path/'even.parquet')
    (tmp_path/'even.json').write_text('{"keys": 3}')
    m.join(tmp_path, tmp_path/'all.parquet')
    assert len(pd.read_parquet(tmp_path/'all.parquet')) == 6 and '"keys": 3' in (tmp_path/'all.json').read_text()


def test_semstamp_fills_its_batch(host):
    from dew_nb.evaluation.schemes.semstamp import KSemStamp
    asked = []
    class Same(KSemStamp):
        def drafts(self, prompts, seeds, batch_size=32, **sampling):
            asked.append(len(prompts))
            assert len(set(seeds)) == len(seeds)
            return ['It rained all day long.']*len(prompts)
    s = Same(host, load_encoder('minilm', device='cpu'), tries=6)
    for batch, first in ((2, 2), (8, 8), (400, 64)):
        asked.clear()
        out = s.complete(['One', 'Two'], 12, batch_size=batch)
        assert asked[0] == first and all(t.count('rained') == 2 for t in out)
    assert s.stats['tries'] <= 6*s.stats['sentences']
