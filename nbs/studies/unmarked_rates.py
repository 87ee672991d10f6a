"""False positives: p-values of unmarked texts, by the host and by people, under many keys, for every scheme.

    python nbs/studies/unmarked_rates.py --unmarked nbs/studies/data/evaluation --out results/unmarked_rates
    python nbs/studies/unmarked_rates.py --unmarked results/schemes --only ATW "Unbiased delta" --out results/unmarked_rates
    python nbs/studies/unmarked_rates.py --unmarked results/schemes --out results/unmarked_rates --join nbs/studies/data/unmarked_rates.parquet

The rows are those of schemes.toml and schemes_few.toml; the texts the first of a folder of dew_eval (written by the host without a mark) and as many that people wrote. Each scheme has a file of its own,
OUT/NAME.parquet with a row for each text and key; a scheme whose file is there is left out. Schemes that must read a text again for every key have fewer keys. With --join FILE.parquet all files of OUT
become one, with the stamp of each beside it in FILE.json.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.schemes.base import loop_over_keys, scores_under
from dew_nb.evaluation.studies.store import load_results
from times import all_rows

KEYS = {'KGW': 3, 'MorphMark': 10, 'Unbiased gamma statistic=ratio': 5, 'Unbiased delta': 5, 'DEW tournament': 20, 'SynthID': 20}

def innocent_texts(host, folder, n):
    "Source and text: by the host, and by people"
    t = load_results(folder).texts.query("source == 'none' and attack == 'none' and seed == 0").sort_values('i').text.tolist()[:n]
    people = list(build_corpus(host, n=n).human)
    return ['none']*len(t) + ['human']*len(people), t + people

def one_scheme(row, host, enc, source, texts, keys):
    "A row for each text and key"
    t = time.perf_counter()
    s = find_scheme(row.kind)(host, enc, 0, name=row.label, **row.params)
    way = loop_over_keys if row.kind == 'dew' else scores_under   # DEW shares its work between keys, but not its p-values
    m = way(s, range(1000, 1000 + keys), texts)
    d = pd.DataFrame(dict(scheme=row.label, source=np.tile(source, keys), key=np.repeat(np.arange(keys), len(texts)), i=np.tile(np.arange(len(texts)), keys),
                          score=m['score'].ravel().astype(np.float32), p_value=m['p_value'].ravel().astype(np.float32), n_scored=m['n_scored'].ravel().astype(np.int32)))
    return d, dict(keys=keys, texts=len(texts), seconds=round(time.perf_counter() - t, 1))

def join(folder, out):
    "All files of a folder as one"
    files = sorted(folder.glob('*.parquet'))
    d = pd.concat([pd.read_parquet(f) for f in files], ignore_index=True)
    write_frame(out, d[['scheme', 'source', 'key', 'i', 'p_value']], dict(p_value=4))    # what the page reads; no p-value crosses a level
    stamps = {f.stem: json.loads((folder/f'{f.stem}.json').read_text()) for f in files}
    out.with_suffix('.json').write_text(json.dumps(stamps, indent=1) + '\n')

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--unmarked', type=Path, required=True, help='folder or pack of dew_eval with unmarked texts of seed 0')
    ap.add_argument('--texts', type=int, default=100, help='of each source')
    ap.add_argument('--keys', type=int, default=40)
    ap.add_argument('--only', nargs='+', help='names of rows')
    ap.add_argument('--skip', nargs='+', default=[], help='names of rows')
    ap.add_argument('--join', type=Path, metavar='FILE', help='only join what is there')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    if a.join: return join(a.out, a.join)
    dev = a.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    host, enc = load_host(device=dev), load_encoder(device=dev)
    a.out.mkdir(parents=True, exist_ok=True)
    source, texts = innocent_texts(host, a.unmarked, a.texts)
    for name,row in all_rows().items():
        path = a.out/f'{name}.parquet'
        if (a.only and name not in a.only) or name in a.skip or path.exists(): continue
        d, stamp = one_scheme(row, host, enc, source, texts, min(a.keys, KEYS.get(name, a.keys)))
        (a.out/f'{name}.json').write_text(json.dumps(stamp | machine(host, enc), indent=1) + '\n')
        d.to_parquet(path, index=False)
        print(f'{name}: {stamp["seconds"]} s, p <= 0.01: {(d.p_value <= .01).mean():.4f}, p <= 0.1: {(d.p_value <= .1).mean():.3f}', flush=True)

if __name__ == '__main__': main()
