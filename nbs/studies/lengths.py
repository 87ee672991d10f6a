"""False positives by length and by key, for two presets: human film reviews, joined and cut to length.

    python nbs/studies/lengths.py --out nbs/studies/data

Writes NAME.parquet (preset, length, key, text, z, effective length) and NAME.json (settings, machine). 50 keys; on a GPU a few minutes.
Other keys and more texts, for long texts above all, are in lengths_fresh:

    python nbs/studies/lengths.py --tokens 240000 --seed 900 --name lengths_fresh --out nbs/studies/data
"""
import argparse, json
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.corpora import movie_reviews
from dew_nb.evaluation.schemes.base import seed_key

LENGTHS = 25, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800


def cut_texts(tok, reviews, length, n):
    "n texts of about `length` tokens, reviews joined"
    ids = tok.encode(' '.join(reviews[:max(300, 3*n*length//200)]), add_special_tokens=False).ids
    return [tok.decode(ids[i*length:(i+1)*length]).strip() for i in range(min(n, len(ids)//length))]


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
        wm = DEW.build(host, enc, keys[0], DEWConfig.preset(preset), progress=False)
        for length in a.lengths:
            texts = cut_texts(tok, reviews, length, int(np.clip(a.tokens//length, 6, a.most)))
            r = scores_over_keys(wm, keys, texts, progress=False, reading='raw')
            z = r['z']
            k, t = np.indices(z.shape)
            rows.append(pd.DataFrame(dict(preset=preset, length=length, key=k.ravel(), text=t.ravel(),
                                          z=z.ravel().astype(np.float32), l_eff=r['l_eff'].ravel().astype(np.float32))))
            print(preset, length, z.shape, f'{(z > 2.3263).mean():.4f}', flush=True)
    d = pd.concat(rows).astype(dict(preset='category', length='int16', key='int8', text='int16'))
    a.out.mkdir(parents=True, exist_ok=True)
    d.to_parquet(a.out/f'{a.name}.parquet', index=False, compression='zstd')
    said = {k: v if isinstance(v, (int, str, list, tuple, type(None))) else str(v) for k,v in vars(a).items() if k != 'out'}
    (a.out/f'{a.name}.json').write_text(json.dumps(dict(settings=said, made=machine(host, enc)), indent=1)+'\n')


if __name__ == '__main__': main()
