"A third rule in one notebook, and no other file knows of it. (That it works wherever a rule is used: test_protocols.py)"
from pathlib import Path

import pytest
from quick import Letters, toy_host

from dew_nb import DEW, DEWConfig, SecretKey
from dew_nb.mark.sources import reference_texts
from dew_nb.read.over_keys import scores_over_keys

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


def test_scan(wm, marked):
    human = [t for t in reference_texts() if len(t.split()) > 80][:2]
    found = wm.detector().scan(' '.join([human[0], marked[0], human[1]]), replicates=199)
    assert found.p_value < .01 and found.spans


def test_p_value_is_true_over_keys(wm):
    texts = [t for t in reference_texts() if len(t.split()) > 60][:12]
    keys = [SecretKey(i.to_bytes(16, 'big')) for i in range(60)]
    z = scores_over_keys(wm, keys, texts, progress=False)['z']
    assert abs(z.mean() + .1) < .15 and .85 < z.std(0).mean() < 1.15    # a little below 0: the allowance
    assert (z > 2.326).mean() < .02
