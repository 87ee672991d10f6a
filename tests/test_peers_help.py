"""Readers of the study "The same help for everybody": as the schemes' own detectors, as the whole vocabulary has it, and with ratios of mean 1."""
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip('pandas')
sys.path.insert(0, str(Path(__file__).parents[1]/'nbs'/'studies'))
import peers_help as ph                                             # noqa: E402

from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.texts.sampling import keep_nucleus
from dew_nb.mark.room import RoomTable
from dew_nb.models.hosts import load_host
from dew_nb.models.tokenization import TokenUnits, special_ids

TEXTS = [' The old harbour was quiet in the morning, and the boats came home one by one with the tide.', ' A list: one, two, one, two, one, two.', '']


@pytest.fixture(scope='module')
def host(): return load_host('smollm2-135m', device='cpu')

@pytest.fixture(scope='module')
def look(host): return ph.Look(ph.ids_of(host, TEXTS), [host.tokenizer('Tell me more.')['input_ids']]*len(TEXTS), host)


def reader(host, look, name, seed=0):
    "A reader, and what it says without the host"
    kind, params = ph.SCHEMES[name]
    s = find_scheme(kind)(host, None, seed, **params)
    r = dict(synthid=ph.Synth, exp=ph.Exp).get(kind, lambda s: ph.Lists(s, dict(prompt=.5)))(s)
    return s, r, dict(r.read(look.ids, RoomTable.packaged(TokenUnits(host.tokenizer)), special_ids(host.tokenizer), 'cpu'))


@pytest.mark.parametrize('name', [n for n in ph.SCHEMES if not n.startswith('DEW')])
def test_own_detector(host, look, name):
    "The first reader is the scheme's own; all give a number for every text, and 1 for an empty one"
    s, r, said = reader(host, look, name)
    assert said['own']['p_value'] == pytest.approx(s.measure(TEXTS)['p_value'])
    said |= dict(r.host(look, 'prompt'))
    for x in said.values():
        assert all(len(v) == len(TEXTS) and np.isfinite(v).all() for v in x.values())
        assert x.get('p_value', [1])[-1] == 1 and x.get('log_e', [0])[-1] == 0


def test_lists_as_the_whole_vocabulary(host, look):
    "q of KGW is what processor and sampler make of all logits, but for what is beyond the 256 likeliest tokens"
    s, r, _ = reader(host, look, 'KGW 1')
    before, ids = host.tokenizer('Tell me more.')['input_ids'], look.ids[0]
    with torch.no_grad(): logits = host.model(torch.tensor([[*before, *ids]])).logits[0].float()
    doc, pos, _, came = r.at
    q, _ = ph.biased(look, look.flat(doc, pos), r.green, r.came)
    for t in np.flatnonzero(doc == 0):
        whole = s.processor(0)(torch.tensor(ids[:pos[t]])[None], logits[len(before) + pos[t] - 1][None])
        assert float(q[t]) == pytest.approx(float(keep_nucleus(whole/ph.T, ph.TOP_P).softmax(-1)[0, came[t]]), rel=.1, abs=1e-4)


def test_synthid_as_its_processor(host, look):
    "q/p of SynthID is what its processor makes of what is drawn from"
    s, r, _ = reader(host, look, 'SynthID 3')
    values, ids, own, _ = look.nucleus(look.flat(*r.at[:2]), r.came)
    ratio, proc = r.ratios(look), s.make('cpu')
    for t in (own > -torch.inf).nonzero()[:6, 0].tolist():
        scores = torch.full((1, host.vocab_size), -torch.inf)
        scores[0, ids[t]] = values[t]
        g = proc.sample_g_values(proc._compute_keys(r.ctx[t:t+1], torch.arange(scores.shape[1])[None])[0])
        assert float(ratio[t]) == pytest.approx(float((proc.update_scores(scores, g)[0, r.came[t]] - own[t]).exp()), rel=1e-4)


@pytest.mark.parametrize('name', ['SynthID 3', 'EXP'])
def test_ratios_have_mean_one(host, look, name):
    "Over keys, for tokens that did not meet them"
    every = [reader(host, look, name, seed)[1].ratios(look).numpy() for seed in range(24)]
    mean = np.mean(every)
    assert abs(mean - 1) < 4*np.std(np.mean(every, 1))/np.sqrt(len(every)) + .01


def test_bayesian_model():
    "The log-odds are those of transformers' model, and those of fair bits have a mean ratio of 1"
    from transformers.generation.watermarking import BayesianDetectorWatermarkedLikelihood
    model, g = BayesianDetectorWatermarkedLikelihood(30), torch.randint(0, 2, (4, 7, 30), generator=torch.Generator().manual_seed(0)).float()
    with torch.no_grad():
        model.beta += 2
        model.delta += .3*torch.randn(model.delta.shape, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(ph.log_odds(model.beta[0, 0], model.delta[0, 0], g), (model(g)/.5).log().sum(-1), atol=1e-4)
        fair = torch.randint(0, 2, (1 << 16, 30), generator=torch.Generator().manual_seed(2)).float()
        assert float(ph.log_odds(model.beta[0, 0] - 3, model.delta[0, 0], fair).exp().mean()) == pytest.approx(1, abs=.05)


def test_claims(tmp_path):
    "A unit has one owner; what a process that is gone had claimed is free again"
    from types import SimpleNamespace
    a = SimpleNamespace(work=tmp_path)
    (tmp_path/'claims').mkdir()
    assert ph.claim(a, 'one') and not ph.claim(a, 'one')
    (tmp_path/'claims'/'two').write_text('999999999 0')
    assert not ph.claim(a, 'two') and ph.claim(a, 'two')


@pytest.mark.long
@pytest.mark.parametrize('name', ['SynthID 3', 'EXP', 'KGW 1', 'Unigram'])
def test_stored_readings_of_answers(name):
    "What the page has of answers under three keys, from the answers that are kept"
    import pandas as pd
    from types import SimpleNamespace
    from dew_nb.evaluation.studies.store import load_results
    from dew_nb.models import assets
    big, data = 'qwen2.5-coder-1.5b-instruct', Path(ph.__file__).parent/'data'
    if not (assets.cache_dir()/assets.ASSETS[big].folder/'manifest.json').is_file(): pytest.skip(f'{big} is not in the cache; load_host of it puts it there')
    host, t = load_host(big, device='cpu'), load_results(data/'contexts_chat').texts
    stored = pd.read_parquet(data/'peers_answers.parquet').query('scheme == @name and source == "marked" and seed == 1').set_index(['attack', 'reader', 'i'])['p_value'].astype(float)
    table, (kind, params) = RoomTable.packaged(TokenUnits(host.tokenizer), 'chat'), ph.SCHEMES[name]
    s, source = find_scheme(kind)(host, None, 1, name=name, **params), name + ' weighted'*name.startswith('SynthID')
    for attack in ('none', 'paraphrase'):
        d = t[(t['source'] == source) & (t['seed'] == 1) & (t['attack'] == attack)].sort_values('i').head(2)
        assert len(d)
        r = ph.reader_of(SimpleNamespace(scheme=lambda *_: s, table=lambda: (table, None)), name, 1, d['text'].tolist())
        for reader,x in r.read(ph.ids_of(host, r.texts), table, special_ids(host.tokenizer), 'cpu'):
            np.testing.assert_allclose(x['p_value'], stored.loc[[(attack, reader, i) for i in d['i']]], rtol=.07, atol=1e-6, err_msg=f'{attack}, {reader}')      # few digits are kept
