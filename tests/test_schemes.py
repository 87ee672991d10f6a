"""What stored studies depend on: the same seed gives the same key, lists and bits, and the donor kinds are made from a study's options."""
import hashlib

import numpy as np
import pytest
import torch

from dew_nb.evaluation.kinds import find_scheme
from dew_nb.evaluation.lists import KGW, Unigram
from dew_nb.evaluation.registry import SCHEMES, scheme_params
from dew_nb.evaluation.schemes import DonorScheme, loop_over_keys, seed_key
from dew_nb.evaluation.synthid import SynthID
from dew_nb.assets import asset_path
from dew_nb.encoders import load_encoder
from dew_nb.hosts import Host, load_host
from dew_nb.sources import reference_texts


def digest(x): return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]


@pytest.fixture(scope='module')
def host(): return load_host('smollm2-135m', device='cpu')


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
        assert (s.name, s.read, s.config.lam, s.config.null) == ('a row', read, 2.5, 'iid')
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
    from dew_nb.evaluation.gumbel import context_seeds, token_uniform
    w = torch.tensor([[11, 22, 33], [44, 55, 66]])
    assert context_seeds(w, 5).tolist() == [4360491428271025917, 7065981407927704476]
    assert np.allclose(token_uniform(context_seeds(w, 5), torch.tensor([7, 49_000])), [0.9691170029109344, 0.983646446489729], atol=1e-9)
