"The study of strength: its script, and a sample of what is stored"
import sys
from pathlib import Path

import torch

from dew_nb import load_host
from dew_nb.evaluation.texts.corpora import build_corpus

STUDIES = Path(__file__).parents[1]/'nbs'/'studies'
sys.path.insert(0, str(STUDIES))
import dial


def test_narrow():
    "What the sampler draws from: temperature, then the smallest set of likely tokens that reaches top-p"
    p = dial.narrow(torch.tensor([[.5, .3, .15, .05]]).log(), temperature=1., top_p=.9)
    assert torch.allclose(p, torch.tensor([[.5, .3, .15, 0]])/.95)


def test_arrays_are_kept_as_they_are(tmp_path):
    "To the last bit, from 0 and -0 to the least that is noted"
    x = torch.randn(50, 64).abs().neg().cumsum(1).clamp_min(-14).half()
    x[0, 0], x[1, 0] = 0., -0.
    dial.keep(tmp_path/'x.xz', a := {'host/answers': x, 'host/answers/text': torch.arange(50, dtype=torch.int16)})
    b = dial.read(tmp_path/'x.xz')
    assert sorted(a) == list(b) and all(a[k].dtype == b[k].dtype and torch.equal(a[k].view(torch.int16), b[k].view(torch.int16)) for k in a)


def test_stored_distributions_are_those_of_the_host():
    "The first position of the first texts is computed again"
    host, stored = load_host(), dial.read(STUDIES/'data'/'dial.safetensors.xz')
    for kind,source in dial.KINDS.items():
        prompts = list(build_corpus(host, source, 'evaluation', 24, 30, 200, 0).prompts)[:2]
        text = stored[f'{host.name}/{kind}/text']
        for i,x in enumerate(dial.write(host, prompts, 2)):
            assert x.shape[1] == dial.TOP and torch.allclose(x[0], stored[f'{host.name}/{kind}'][text == i][0].float(), atol=.02)
