"The study of strength: its script, and a sample of what is stored"
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from dew_nb import load_host
from dew_nb.evaluation.texts.corpora import build_corpus

STUDIES = Path(__file__).parents[1]/'nbs'/'studies'
sys.path.insert(0, str(STUDIES))
import dial


def test_narrow():
    "What the sampler draws from: temperature, then the smallest set of likely tokens that reaches top-p"
    p = dial.narrow(torch.tensor([[.5, .3, .15, .05]]).log(), temperature=1., top_p=.9)
    assert torch.allclose(p, torch.tensor([[.5, .3, .15, 0]])/.95)


def test_stored_distributions_are_those_of_the_host():
    "The first position of the first texts is computed again"
    host, stored = load_host(), load_file(STUDIES/'data'/'dial.safetensors')
    for kind,source in dial.KINDS.items():
        prompts = list(build_corpus(host, source, 'evaluation', 24, 30, 200, 0).prompts)[:2]
        text = stored[f'{host.name}/{kind}/text']
        for i,x in enumerate(dial.write(host, prompts, 2)):
            assert x.shape[1] == dial.TOP and torch.allclose(x[0], stored[f'{host.name}/{kind}'][text == i][0].float(), atol=.02)
