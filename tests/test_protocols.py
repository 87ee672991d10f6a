"Rules and context spaces work wherever one is used, also those from outside the package, which have only the members that the protocols declare"
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import Letters, toy_host

from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.mark import protocols
from dew_nb.mark.processor import DEWLogitsProcessor
from dew_nb.mark.protocols import ContextSpace, Part, Rule, register_contexts, register_rule
from dew_nb.mark.sources import reference_texts
from dew_nb.read.identification import identify
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.serving.vllm import RowMarker

KEY, OTHER = SecretKey(b'an example key: never use this one'), SecretKey(b'another key that nobody should use')
PAGE = Path(__file__).parent.parent/'nbs/mark/04_protocols.ipynb'


@pytest.fixture(scope='module')
def page():
    "The names of the page's own examples, run as a reader would"
    cells = [''.join(c['source']) for c in json.loads(PAGE.read_text())['cells'] if c['cell_type'] == 'code']
    names = dict(vars(protocols), __name__='reader')
    for c in cells:
        if not c.startswith(('#| export', '#| default_exp')) and 'nbdev_export()' not in c: exec(c, names)
    return names


@pytest.fixture(scope='module')
def host():
    host = toy_host()
    host.embeddings = host.embeddings[:, :48]                   # narrow ones are quicker
    return host


PARTS = dict(coin=dict(rule='coin', contexts='remainder', strength=3.), remainder=dict(contexts='remainder', m=64, n=32),      # from outside
             gumbel=dict(rule='gumbel', m=64, n=32, k=3, context_width=None), ngram=dict(contexts='ngram', m=64, n=32))


@pytest.fixture(scope='module', params=PARTS)
def wm(page, host, request): return DEW.build(host, Letters(), KEY, DEWConfig(**PARTS[request.param]), progress=False)


@pytest.fixture(scope='module')
def marked(wm): return wm.generate(['The old harbour', 'Bread'], max_new_tokens=60, seed=1)


def test_generate_and_detect(wm, marked):
    plain = wm.generate(['The old harbour', 'Bread'], max_new_tokens=60, seed=1, mark=False)
    assert all(r.p_value < 1e-4 for r in wm.detector().detect(marked)) and all(r.p_value > .001 for r in wm.detector().detect(plain))


def test_file(wm, marked, tmp_path):
    again = Detector.load(wm.detector().save(tmp_path/'c.dew'))
    assert [r.z for r in again.detect(marked)] == pytest.approx([r.z for r in wm.detector().detect(marked)], abs=.01)
    assert again.config == wm.config


def test_scan_identification_and_other_keys(wm, marked):
    human = [t for t in reference_texts() if len(t.split()) > 80][:2]
    assert wm.detector().scan(' '.join([human[0], marked[0], human[1]]), replicates=99).p_value < .05
    assert identify(marked[0], [wm.rekey(OTHER).detector(), wm.detector()]).key == wm.detector().key
    assert np.isfinite(scores_over_keys(wm, [KEY, OTHER], human, progress=False)['z']).all()


def test_server(wm):
    "Rows of a server's batch get what the processor gives each text alone"
    g = torch.Generator().manual_seed(0)
    ids, s = torch.randint(300, 400, (3, 20), generator=g), torch.randn(3, wm.host.vocab_size, generator=g)
    start, end = torch.tensor([2, 0, 5]), torch.tensor([20, 12, 9])
    out = RowMarker(wm).mark_rows(s, ids, torch.arange(3), start, end, 20)
    for i in range(3):
        one = DEWLogitsProcessor(wm, int(start[i]), drawn=True)(ids[i:i+1, :end[i]], s[i:i+1])
        assert torch.allclose(out[i].softmax(-1), one[0].softmax(-1), atol=1e-6)


def test_iid_null_has_a_default(page, host):
    wm = DEW.build(host, Letters(), KEY, DEWConfig(rule='coin', contexts='remainder', strength=3., null='iid'), progress=False)
    assert wm.detector().detect(wm.generate('The old harbour', max_new_tokens=60)).p_value < 1e-3


class Half(Rule):
    @dataclass(frozen=True)
    class Config(Part): pass
    def project(self, c, subkeys=None): return c


class Empty(ContextSpace):
    @dataclass(frozen=True)
    class Config(Part): k: int = 1


def test_what_is_missing_is_named(host):
    register_rule('half', Half), register_contexts('empty', Empty)
    with pytest.raises(NotImplementedError, match='Half lacks state, from_state, make, rows, candidates, play, put, score: see Rule'):
        DEW.build(host, Letters(), KEY, DEWConfig(rule='half'))
    with pytest.raises(NotImplementedError, match='Empty lacks state, from_state, prepare, encode, to: see ContextSpace'):
        DEW.build(host, Letters(), KEY, DEWConfig(contexts='empty'))


def test_attributes_are_missed_too(page, host):
    class Bare(page['Coin']):
        class Config(page['Coin'].Config): pass
        def __init__(self, config, table, M): self.config, self.M = config, M
    register_rule('bare', Bare)
    with pytest.raises(NotImplementedError, match='Bare lacks table: see Rule'):
        DEW.build(host, Letters(), KEY, DEWConfig(rule='bare', contexts='ngram'))
