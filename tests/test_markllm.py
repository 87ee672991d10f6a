"DEW inside the real MarkLLM, and MarkLLM's algorithms as schemes; `make scale-test` installs the package"
import json

import pytest

from dew_nb import load_host
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.texts.sampling import complete
from dew_nb.evaluation.schemes.base import WatermarkScheme
from dew_nb.serving.markllm import MarkLLMScheme, load_algorithm, register
from dew_nb.mark.sources import reference_texts

pytest.importorskip('markllm', reason='MarkLLM is not installed; make scale-test does it')


@pytest.fixture(scope='module')
def host(): return load_host(device='cpu')


@pytest.fixture(scope='module')
def innocent(): return [' '.join(t.split()[:30]) for t in reference_texts()[:6]]


def test_dew_by_name(host, tmp_path):
    "Through MarkLLM's own loader, from a JSON file; plain values; a figure's data"
    from markllm.utils.transformers_config import TransformersConfig
    from markllm.watermark.auto_watermark import AutoWatermark
    register()
    (tmp_path/'DEW.json').write_text(json.dumps(dict(algorithm_name='DEW', hash_key=7, seed=1, alpha=.001)))
    conf = TransformersConfig(host.model, host.tokenizer, device='cpu', max_new_tokens=40, do_sample=True)
    dew = AutoWatermark.load('DEW', str(tmp_path/'DEW.json'), conf)
    marked, plain = dew.generate_watermarked_text('The old harbour'), dew.generate_unwatermarked_text('The old harbour')
    assert marked != plain and marked.startswith('The old harbour') and plain.startswith('The old harbour')
    yes, no = dew.detect_watermark(marked), dew.detect_watermark(plain)
    assert yes['is_watermarked'] is True and no['is_watermarked'] is False and yes['score'] > 4
    assert json.loads(json.dumps(yes)) == yes and dew.detect_watermark(marked, return_dict=False) == (True, yes['score'])
    shown = dew.get_data_for_visualization(marked)
    assert len(shown.decoded_tokens) == len(shown.highlight_values)


@pytest.mark.parametrize('algorithm', ['KGW', 'Unigram'])
def test_their_algorithms_as_schemes(host, innocent, algorithm):
    s = find_scheme('dew_nb.serving.markllm:MarkLLMScheme')(host, seed=3, algorithm=algorithm, delta=6.)
    assert isinstance(s, WatermarkScheme) and s.name == f'MarkLLM {algorithm}'
    marked = complete(host, ['The old harbour', 'In winter, the village'], 25, 1, s.processor)
    own, other = s.score(marked), s.rekey(4).score(marked)
    assert own.min() > 3 and own.min() > other.max() and own.min() > s.score(innocent).max()
    assert s.measure(['', 'x'])['p_value'][0] == 1. and len(s.score([])) == 0
    assert s.measure(marked)['p_value'] == pytest.approx(s.p_values(marked))


def test_exp_completes_by_itself(host, innocent):
    s, prompt = MarkLLMScheme(host, seed=3, algorithm='EXP'), 'The old harbour was full'
    assert s.processor(3) is None
    out = s.complete([prompt], 25, seed=0, batch_size=4)
    assert out == s.complete([prompt], 25) and s.p_values(out)[0] < 1e-4 < s.p_values(innocent[:2]).min()
    with pytest.raises(ValueError, match='temperature and top_p must be 1'): s.complete([prompt], 5, temperature=.7)
    with pytest.raises(ValueError, match='at least 4 tokens'): s.complete(['one'], 5)


def test_mistakes_are_named(host):
    with pytest.raises(ValueError, match="no algorithm 'KWG'; it has KGW"): load_algorithm('KWG', host)
    with pytest.raises(ValueError, match="no option 'deltta'; it has algorithm_name, gamma"): load_algorithm('KGW', host, deltta=1)


def test_both_exp_have_one_law(host, innocent):
    "MarkLLM's numbers under our Gamma law give MarkLLM's p-value"
    import numpy as np
    import torch
    from dew_nb.evaluation.schemes.exp import sum_of_logs
    s, k = MarkLLMScheme(host, seed=3, algorithm='EXP'), 4
    utils = s.algorithm.utils
    for text in innocent[:2]:
        ids, u = host.tokenizer(text)['input_ids'], []
        for i in range(k, len(ids)):
            utils.seed_rng(torch.tensor(ids[:i]))
            u.append(1 - torch.rand(host.vocab_size, generator=utils.rng)[ids[i]].item())
        assert sum_of_logs(np.zeros(len(u), int), np.array(u), 1)['p_value'][0] == pytest.approx(s.p_values([text])[0], rel=1e-3)
