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
from dew_nb.mark.ngram import window_signs
from dew_nb.mark.processor import DEWLogitsProcessor
from dew_nb.mark.protocols import ContextSpace, Kernel, Part, Rule, register_contexts, register_rule
from dew_nb.mark.sources import reference_texts
from dew_nb.models.vectors import unit_rows
from dew_nb.read.identification import identify
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.serving.vllm import RowMarker
from dew_nb.stats.keynull import block_sum, pair_sum
from dew_nb.stats.sign_kernel import SignKernel

KEY, OTHER = SecretKey(b'an example key: never use this one'), SecretKey(b'another key that nobody should use')
PAGE = Path(__file__).parent.parent/'nbs/mark/04_protocols.ipynb'


@pytest.fixture(scope='module', autouse=True)
def names():
    "What these tests register is forgotten after them, whatever test comes next"
    before = [dict(known) for known in (protocols._rules, protocols._spaces)]
    yield
    for known,old in zip((protocols._rules, protocols._spaces), before):
        for k in set(known) - set(old):
            if not known[k].__module__.startswith('dew_nb.mark.'): known.pop(k)        # modules register once, when they are imported


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
             compiled=dict(rule='coin', contexts='compiled', context_width=32, strength=3.),
             gumbel=dict(rule='gumbel', m=64, n=32, k=3, context_width=None), ngram=dict(contexts='ngram', m=64, n=32),
             hashed=dict(contexts='hashed', k=2, m=64, n=32), hashed_bias=dict(rule='bias', contexts='hashed', k=2, m=64, lam=6., n=48), hashed_gumbel=dict(rule='gumbel', contexts='hashed', m=64, n=32))


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


def test_a_table_or_a_kernel_is_looked_at_too(page, host):
    class Short(page['Coin']):
        class Config(page['Coin'].Config): pass
        def kernel(self, rho_T, rho_C): return rho_T*rho_C
    register_rule('short', Short)
    with pytest.raises(NotImplementedError, match='method lacks .*layer_scores.*: see Kernel'):
        DEW.build(host, Letters(), KEY, DEWConfig(rule='short', contexts='ngram'))


def halves(c): return [unit_rows(x) for x in c.chunk(2, -1)]


class HalvesDraws:
    def __init__(self, w, w_C, B, generator, M): self.each = [SignKernel(1).draw(w, w_C//2, B, generator, M) for _ in range(2)]
    def scores(self, r, c): return sum(d.scores(r, x) for d,x in zip(self.each, halves(c)))/2**.5


class HalvesKernel(Kernel):
    "Signs of two layers: each reads its half of a context"
    slope, planes, one = None, 0, SignKernel(1)
    def context_cosines(self, a, b): return torch.stack([x @ y.transpose(-1, -2) for x,y in zip(halves(a), halves(b))], -1)
    def __call__(self, rho_T, rho_C): return (self.one(rho_T, rho_C[..., 0]) + self.one(rho_T, rho_C[..., 1]))/2
    def layer_scores(self, X, c, a): return torch.sign(X)
    def layer_parts(self, M, a):
        half, M = M.shape[1]//2, M.clone()
        M[:, half:, ::2] = M[:, :half, 1::2] = 0
        return M, a
    def draw(self, w, w_C, B, generator, M=2048): return HalvesDraws(w, w_C, B, generator, M)


@pytest.fixture(scope='module')
def parted(page, host):
    "A mark of two layers over a smooth space and a hashed one, put one beside the other"
    class Halved(page['Coin']):
        class Config(page['Coin'].Config): pass
        sd, kernel = .5**.5, HalvesKernel()
        def project(self, c, subkeys=None): return torch.stack([x.to(self.M) @ m for x,m in zip(c.chunk(2, -1), self.M.chunk(2))], 1)
        def score(self, q, ids=None):
            if ids is None: return torch.sign(q @ self.table.rows.T).mean(1)
            return torch.sign(q @ self.rows(ids).transpose(-1, -2)).mean(1)
    class Beside(page['Remainder']):
        class Config(page['Remainder'].Config): k: int = 2
        def __init__(self, *args):
            super().__init__(*args)
            self.dim = 128
        def encode(self, windows, check=True): return torch.cat([super().encode(windows), window_signs(torch.as_tensor(windows).long())], 1)/2**.5
    register_rule('halved', Halved), register_contexts('beside', Beside)
    return DEW.build(host, Letters(), KEY, DEWConfig(rule='halved', contexts='beside', k=2, strength=3.), progress=False)


def test_layers_that_read_different_spaces(parted):
    "The mark is detected, and z of unmarked text has mean 0 and deviation 1 over keys"
    marked, human = parted.generate('The old harbour', max_new_tokens=60, seed=1), [t for t in reference_texts() if len(t.split()) > 60][:12]
    assert parted.detector().detect(marked).p_value < 1e-4 and parted.detector().scan(marked, replicates=99).p_value < .02
    z = scores_over_keys(parted, [SecretKey(i.to_bytes(16, 'big')) for i in range(60)], human, progress=False)['z']
    assert abs(z.mean()) < .15 and .9 < z.std(0).mean() < 1.1, (z.mean(), z.std(0).mean())


def test_sums_over_pairs_of_parts(parted):
    "All at once, in blocks, and by simulated layers; a kernel of whole contexts has other correlations"
    doc, = parted.detector().reader.read([' '.join(reference_texts()[:4])])
    ids = torch.as_tensor(doc.tokens[doc.first])
    r, c, kernel = unit_rows(parted.rule.rows(ids).float()), parted.contexts.encode(doc.windows[doc.first]), parted.rule.kernel
    whole, by_layers = float(pair_sum(kernel, r, c)), float(pair_sum(kernel, r, c, exact=10))
    assert float(block_sum(kernel, r, c, step=50)) == pytest.approx(whole, rel=1e-3) and whole < by_layers < 1.6*whole
    same_token = torch.ones(len(c), len(c))
    K, wrong = kernel(same_token, kernel.context_cosines(c, c)), SignKernel(1)(same_token, c @ c.T)
    assert (K - wrong).abs().max() > .15 and abs(float(pair_sum(SignKernel(1), r, c)) - whole) > .005*whole
