"""A dial for strength: what a mark is worth and what it costs, in expectation over keys, from a host's own distributions

    python nbs/studies/dial.py --host smollm2-135m --texts 24                            # a few minutes on a CPU
    python nbs/studies/dial.py --host qwen2.5-coder-1.5b-instruct --texts 16 --batch 16 --add

The host writes answers to questions and continuations of film reviews without a mark, at temperature 0.7 and top-p 0.9, and notes what it expected at each position: the logarithms of its 64 likeliest tokens at temperature 1.
Everything else is computed from these on the page: a mark changes such a distribution, and over random keys its bits are fair coins. No text is marked, so no draw of texts and no key is in the figures.
Writes data/dial.safetensors.xz (half precision; `read` has the arrays) and data/dial.json.
"""
import argparse, json, lzma, sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save

from dew_nb import load_host
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.mark.generation import prompt_ids

TOP, T, TOP_P = 64, .7, .9
KINDS = dict(answers='questions', reviews='movie-reviews')

def narrow(logits, temperature=T, top_p=TOP_P):
    "(N, m) probabilities of what the sampler draws from, for logits in any order"
    s, i = (logits/temperature).softmax(-1).sort(-1, descending=True)
    s = torch.where(s.cumsum(-1) - s < top_p, s, 0.)
    return torch.zeros_like(s).scatter(-1, i, s/s.sum(-1, keepdim=True))

def read(path):
    "What `keep` wrote: arrays by name"
    arrays = load(lzma.decompress(path.read_bytes()))
    return {k: x if k.endswith('text') else torch.from_numpy(x.numpy().cumsum(1, dtype=np.int16)).view(torch.half) for k,x in sorted(arrays.items())}

def keep(path, arrays):
    "Write arrays by name: rows of logarithms fall, and so the bits of each are stored as what they add to those before"
    steps = lambda x: torch.from_numpy(np.diff(x.view(torch.int16).numpy(), axis=1, prepend=np.int16(0)))
    path.write_bytes(lzma.compress(save({k: x if k.endswith('text') else steps(x) for k,x in arrays.items()}), preset=9))

@torch.no_grad()
def write(host, prompts, tokens, seed=0):
    "Of each text: (n, TOP) logarithms of probabilities"
    tok, model = host.tokenizer, host.model
    x = prompt_ids(tok, list(prompts))
    mask, now, past, g = x['attention_mask'], x['input_ids'], None, torch.Generator().manual_seed(seed)
    seen, ended, live = [], [], torch.ones(len(now), dtype=torch.bool)
    stop = torch.as_tensor(sorted({*np.atleast_1d(model.generation_config.eos_token_id or tok.eos_token_id).tolist(), tok.eos_token_id}))
    for _ in range(tokens):
        out = model(input_ids=now, attention_mask=mask, past_key_values=past, use_cache=True)
        logp, ids = out.logits[:,-1].float().log_softmax(-1).topk(TOP)
        now, past = ids.gather(1, torch.multinomial(narrow(logp), 1, generator=g)), out.past_key_values
        seen.append(logp.clamp_min(-14)); ended.append(live.clone())
        live &= ~torch.isin(now[:,0], stop)
        mask = torch.cat([mask, torch.ones_like(now)], 1)
        if not live.any(): break
    seen, ended = torch.stack(seen, 1), torch.stack(ended, 1)
    return [seen[i][ended[i]] for i in range(len(seen))]

def main(argv=None):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument('--host', default='smollm2-135m')
    a.add_argument('--texts', type=int, default=24)
    a.add_argument('--tokens', type=int, default=120)
    a.add_argument('--batch', type=int, default=24)
    a.add_argument('--add', action='store_true', help='keep what other hosts have')
    a.add_argument('--out', type=Path, default=Path('nbs/studies/data'))
    a = a.parse_args(argv)
    host, arrays, info = load_host(a.host), {}, {}
    if a.add: arrays, info = read(a.out/'dial.safetensors.xz'), json.loads((a.out/'dial.json').read_text())
    for kind,source in KINDS.items():
        prompts = list(build_corpus(host, source, 'evaluation', a.texts, 30, 200, 0).prompts)
        texts = [t for i in range(0, len(prompts), a.batch) for t in write(host, prompts[i:i+a.batch], a.tokens, i)]
        arrays[f'{a.host}/{kind}'] = torch.cat(texts).half()
        arrays[f'{a.host}/{kind}/text'] = torch.arange(len(texts), dtype=torch.int16).repeat_interleave(torch.tensor([len(t) for t in texts]))
        print(kind, len(texts), 'texts', len(arrays[f'{a.host}/{kind}']), 'positions', flush=True)
    info[a.host] = dict(command=' '.join(['python', 'nbs/studies/dial.py', *(argv or sys.argv[1:])]), temperature=T, top_p=TOP_P, machine=machine(host))
    keep(a.out/'dial.safetensors.xz', arrays)
    (a.out/'dial.json').write_text(json.dumps(info, indent=1) + '\n')

if __name__ == '__main__': main()
