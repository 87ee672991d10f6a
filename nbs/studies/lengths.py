"""False positives by length and by key, for two presets: human film reviews, joined and cut to length.

    python nbs/studies/lengths.py --out nbs/studies/data

Writes NAME.parquet (by preset, length and key: rates of false positives, mean and spread of z, and of what an allowance for leaning
keys is made of) and NAME.json (settings, machine). 50 keys; on a GPU a few minutes.
Other keys and more texts, for long texts above all, are in lengths_fresh:

    python nbs/studies/lengths.py --tokens 240000 --seed 900 --name lengths_fresh --out nbs/studies/data

The default, at one length, is in lengths_standard (minutes on a CPU):

    python nbs/studies/lengths.py --presets standard --lengths 200 --name lengths_standard --out nbs/studies/data
"""
import argparse, json, shlex, sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.corpora import movie_reviews
from dew_nb.evaluation.schemes.base import seed_key
from dew_nb.mark.bias import BiasRule
from dew_nb.mark.tournament import TournamentRule
from dew_nb.stats.keynull import allowance

LENGTHS = 25, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800


def cut_texts(tok, reviews, length, n):
    "n texts of about `length` tokens, reviews joined"
    ids = tok.encode(' '.join(reviews[:max(300, 3*n*length//200)]), add_special_tokens=False).ids
    return [tok.decode(ids[i*length:(i+1)*length]).strip() for i in range(min(n, len(ids)//length))]


RULE = dict(tournament=TournamentRule, standard=TournamentRule)              # other presets: the bias rule

def by_key(d):
    "Of the scores of texts what pages read: rates and moments, by preset, length and key"
    z = d['z'].astype(float)
    d = d[['preset', 'length', 'key']].astype(dict(preset=str)).assign(z=z, **{f'fpr_{a:g}': z > norm.isf(a) for a in (.1, .05, .01, .001)}, **allowed(d))
    g = d.groupby(['preset', 'length', 'key'], sort=False)
    out = pd.concat([g.size().rename('texts'), g['z'].agg(mean_z='mean', sd_z='std'), g[[c for c in d if c.startswith('fpr')]].mean()], axis=1)
    if 'root' in d:
        C = g[['z', 'root', 'allowed']].cov().unstack()
        out = out.join(g[['root', 'allowed']].mean().add_prefix('mean_'))
        for a,b in (('root', 'root'), ('allowed', 'allowed'), ('z', 'root'), ('z', 'allowed'), ('root', 'allowed')): out[f'cov_{a}_{b}'] = C[a, b]
    return out.reset_index()

def allowed(d):
    "The root of the effective length, and the part of z that the allowance of the preset's rule takes"
    if 'l_eff' not in d: return {}
    n, out = d['l_eff'].astype(float), pd.Series(0., d.index)
    for preset in d['preset'].unique():
        at, r = d['preset'] == preset, RULE.get(preset, BiasRule)
        out[at] = allowance(n[at], r.allowance_short, r.allowance_long)*np.sqrt(n[at])
    return dict(root=np.sqrt(n), allowed=out)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--presets', nargs='+', default=['tournament', 'calibrated'])
    ap.add_argument('--lengths', nargs='+', type=int, default=LENGTHS)
    ap.add_argument('--keys', type=int, default=50)
    ap.add_argument('--tokens', type=int, default=80_000, help='in all texts of one length')
    ap.add_argument('--most', type=int, default=400, help='texts of one length')
    ap.add_argument('--seed', type=int, default=500, help='of the first key')
    ap.add_argument('--name', default='lengths', help='of the files')
    ap.add_argument('--device', default=None)
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    tok, reviews = host.tokenizer.backend_tokenizer, movie_reviews()[-8000:]
    keys, rows = [seed_key(a.seed + i) for i in range(a.keys)], []
    for preset in a.presets:
        wm = DEW.build(host, enc, keys[0], DEWConfig.preset(preset, room=None), progress=False)
        for length in a.lengths:
            texts = cut_texts(tok, reviews, length, int(np.clip(a.tokens//length, 6, a.most)))
            r = scores_over_keys(wm, keys, texts, progress=False, reading='raw')
            z = r['z']
            k, t = np.indices(z.shape)
            rows.append(pd.DataFrame(dict(preset=preset, length=length, key=k.ravel(), text=t.ravel(),
                                          z=z.ravel().astype(np.float32), l_eff=r['l_eff'].ravel().astype(np.float32))))
            print(preset, length, z.shape, f'{(z > 2.3263).mean():.4f}', flush=True)
    d = by_key(pd.concat(rows, ignore_index=True))
    a.out.mkdir(parents=True, exist_ok=True)
    d.to_parquet(a.out/f'{a.name}.parquet', index=False, compression='zstd')
    said = {k: v if isinstance(v, (int, str, list, tuple, type(None))) else str(v) for k,v in vars(a).items() if k != 'out'}
    (a.out/f'{a.name}.json').write_text(json.dumps(dict(command='python nbs/studies/lengths.py ' + shlex.join(sys.argv[1:]), settings=said, made=machine(host, enc)), indent=1)+'\n')


if __name__ == '__main__': main()
