"""Several texts for one prompt and one key, for every scheme: how alike are they?

    python nbs/studies/diversity.py --out nbs/studies/data

A mark that always prefers the same words makes the answers to one question alike. For 40 prompts of film reviews eight
continuations each, under one key, at temperatures 1 and 0.7. Writes diversity.parquet (a row for each scheme, temperature and
prompt) and diversity.json. What is in these files is not computed again.
"""
import argparse, itertools, json, shlex, sys, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.texts.content import content_seed, machine
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.schemes.registry import SCHEMES
from dew_nb.evaluation.texts.sampling import SeededSampler, continue_ids
from dew_nb.evaluation.schemes.base import Chain, NgramBlock, said_by

ROWS = {'none': ('none', {}), 'DEW tournament': ('dew', dict(preset='tournament')),
        'DEW tournament keys=64': ('dew', dict(preset='tournament', keys=64)),
        'DEW calibrated lam=2.5': ('dew', dict(preset='calibrated', lam=2.5)),
        'Unigram': ('unigram', {}), 'KGW': ('kgw', {}), 'SynthID': ('synthid', {})}


class Warp(SeededSampler):
    "Temperature without the draw, for schemes that come after it"
    def __call__(self, input_ids, scores): return self.warp(scores)


def texts_of(host, scheme, prompts, draws, T, tokens, seed):
    "Continuations, all draws of one prompt after the other"
    ids = [host.tokenizer(p)['input_ids'] for p in prompts for _ in range(draws)]
    seeds = [content_seed('diversity', seed, d, p) for p in prompts for d in range(draws)]
    late = said_by(scheme, 'warped')
    def processor(width): return Chain(NgramBlock(4), Warp([], T) if late else None, scheme.processor(width))
    sampler = SeededSampler(seeds, 1. if late else T)
    return continue_ids(host, ids, processor, sampler, max_new_tokens=tokens, min_new_tokens=tokens, no_repeat_ngram_size=0)


def grams(text, n):
    w = text.lower().split()
    return set(zip(*(w[i:] for i in range(n))))


def alike(texts, vectors):
    "Of texts for one prompt: n-grams that two have in common, distinct ones of all, cosine"
    out, pairs = {}, list(itertools.combinations(range(len(texts)), 2))
    for n in (1, 2, 3):
        g = [grams(t, n) for t in texts]
        out[f'shared_{n}'] = np.mean([len(g[i] & g[j])/max(1, min(len(g[i]), len(g[j]))) for i,j in pairs])
        out[f'distinct_{n}'] = len(set().union(*g))/max(1, sum(map(len, g)))
    v = vectors/np.linalg.norm(vectors, axis=1, keepdims=True)
    return out | dict(cosine=np.mean([v[i] @ v[j] for i,j in pairs]))


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--prompts', type=int, default=40)
    ap.add_argument('--draws', type=int, default=8)
    ap.add_argument('--tokens', type=int, default=100)
    ap.add_argument('--temperatures', type=float, nargs='+', default=[1., .7])
    ap.add_argument('--schemes', nargs='+', default=list(ROWS), choices=list(ROWS))
    ap.add_argument('--seed', type=int, default=11, help='names the key')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()


def main():
    a, t0 = arguments(), time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    file = a.out/'diversity.parquet'
    done = pd.read_parquet(file) if file.exists() else pd.DataFrame()
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    prompts = build_corpus(host, split='evaluation', n=a.prompts).prompts
    for name,T in itertools.product(a.schemes, a.temperatures):
        if len(done) and ((done['source'] == name) & (done['T'] == T)).any(): continue
        kind, options = ROWS[name]
        scheme = SCHEMES[kind](host, enc, a.seed, **options)
        t = texts_of(host, scheme, prompts, a.draws, T, a.tokens, a.seed)
        V = np.asarray(enc.encode(t)).reshape(len(prompts), a.draws, -1)
        p = np.mean(scheme.p_values(t) <= .01) if name != 'none' else np.nan
        rows = [alike(t[i*a.draws:(i+1)*a.draws], v) for i,v in enumerate(V)]
        done = pd.concat([done, pd.DataFrame(rows).assign(T=T, source=name, found=p, prompt=range(len(prompts)))], ignore_index=True)
        done.to_parquet(file, index=False, compression='zstd')
        print(f'{time.time()-t0:.0f} s: {name} {T}: found {p:.3f}, shared pairs {np.mean([r["shared_2"] for r in rows]):.3f}', flush=True)
    settings = {k: v for k,v in vars(a).items() if k not in ('out', 'device')}
    (a.out/'diversity.json').write_text(json.dumps(dict(command='python nbs/studies/diversity.py ' + shlex.join(sys.argv[1:]).replace(str(a.out), 'nbs/studies/data'),
        settings=settings, seconds=round(time.time()-t0), **machine(host, enc)), indent=1) + '\n')


if __name__ == '__main__': main()
