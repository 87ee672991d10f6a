"A third rule in one notebook: it works wherever a rule is used, and no other file knows of it"
from pathlib import Path

import pytest
import torch
from quick import Letters, toy_host

from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.mark.processor import DEWLogitsProcessor
from dew_nb.mark.sources import reference_texts
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.serving.vllm import RowMarker

KEY = SecretKey(b'an example key: never use this one')


@pytest.fixture(scope='module')
def wm(): return DEW.build(toy_host(), Letters(), KEY, DEWConfig(rule='gumbel', m=64, n=32, k=3, context_width=None), progress=False)


@pytest.fixture(scope='module')
def marked(wm): return wm.generate(['The old harbour', 'Bread'], max_new_tokens=60, seed=1)


def test_no_other_file_knows_it():
    root = Path(__file__).parent.parent
    code = [*root.glob('dew_nb/**/*.py')]
    assert [p.name for p in code if 'gumbel' in p.read_text().lower() and p.name not in ('_modidx.py', 'exp.py')
            and 'evaluation' not in p.parts] == ['gumbel.py']


def test_generate_and_detect(wm, marked):
    found = wm.detector().detect(marked)
    plain = wm.detector().detect(wm.generate(['The old harbour', 'Bread'], max_new_tokens=60, seed=1, mark=False))
    assert all(r.p_value < 1e-4 for r in found) and all(r.p_value > .001 for r in plain)


def test_file(wm, marked, tmp_path):
    again = Detector.load(wm.detector().save(tmp_path/'g.dew'))
    for a, b in zip(again.detect(marked), wm.detector().detect(marked)): assert a.z == pytest.approx(b.z, abs=.01)
    assert again.config == wm.config


def test_scan(wm, marked):
    human = [t for t in reference_texts() if len(t.split()) > 80][:2]
    found = wm.detector().scan(' '.join([human[0], marked[0], human[1]]), replicates=199)
    assert found.p_value < .01 and found.spans


def test_server(wm, marked):
    "Rows of a server's batch get what the processor gives each text alone"
    g = torch.Generator().manual_seed(0)
    ids, s = torch.randint(300, 400, (3, 20), generator=g), torch.randn(3, wm.host.vocab_size, generator=g)
    start, end = torch.tensor([2, 0, 5]), torch.tensor([20, 12, 9])
    out = RowMarker(wm).mark_rows(s, ids, torch.arange(3), start, end, 20)
    for i in range(3):
        one = DEWLogitsProcessor(wm, int(start[i]), drawn=True)(ids[i:i+1, :end[i]], s[i:i+1])
        assert torch.allclose(out[i].softmax(-1), one[0].softmax(-1), atol=1e-6)


def test_p_value_is_true_over_keys(wm):
    texts = [t for t in reference_texts() if len(t.split()) > 60][:12]
    keys = [SecretKey(i.to_bytes(16, 'big')) for i in range(60)]
    z = scores_over_keys(wm, keys, texts, progress=False)['z']
    assert abs(z.mean() + .1) < .15 and .85 < z.std(0).mean() < 1.15    # a little below 0: the allowance
    assert (z > 2.326).mean() < .02
