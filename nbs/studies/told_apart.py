"""Can a small model tell a scheme's texts from unmarked ones? For every scheme of the table of schemes, with repetition beside it.

    python nbs/studies/told_apart.py results/schemes results/schemes_few results/evaluation --out nbs/studies/data/told_apart.json
    python nbs/studies/told_apart.py results/schemes_real results/real --also "Unbiased gamma" "DEW multilingual" "DEW calibrated lam=2.5" --out nbs/studies/data/told_apart_real.json

The classifier is that of text_quality.py: a logistic regression on the encoder's vectors of whole texts, prompts kept together in five folds. Unattacked texts of seed 0, at most --texts of each
scheme, against as many unmarked ones after the same prompts; 0.5: it can't tell. With 100 texts, as many as all studies have, the standard error is about 0.04. Rows that OUT has already are kept: a folder
that has grown adds what is new.
"""
import argparse, json
from pathlib import Path

import numpy as np

from dew_nb import load_encoder
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.studies.store import load_results
from text_quality import measures, told_apart
from times import all_rows

def one_study(folder, enc, n, names, have):
    "Name of a scheme: AUROC of the classifier, number of texts, repetition"
    d = load_results(folder).texts.query("attack == 'none' and seed == 0").sort_values('i')
    new = d['source'].isin(names - set(have))
    if not new.any(): return
    d = d[(new | (d['source'] == 'none')) & (d['i'] < n)].drop_duplicates(['source', 'i']).reset_index(drop=True)
    few = d.groupby('source').size()
    if few.min() < min(n, 20): raise SystemExit(f'{folder} keeps {few.min()} texts of {few.idxmin()!r}, too few to learn from: give the folder of a run, not a pack')
    X, plain = np.asarray(enc.encode(d['text'].tolist())), (d['source'] == 'none').to_numpy()
    for s in d['source'].unique():
        this = (d['source'] == s).to_numpy()
        at = this | plain
        rep = float(np.mean([measures(t)['rep_3'] for t in d['text'][this]]))
        auc = None if s == 'none' else told_apart(X[at], this[at], d['i'].to_numpy()[at])
        yield s, dict(told_apart=auc, texts=int(this.sum()), rep_3=rep)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('results', nargs='+', type=Path, help='folders of dew_eval')
    ap.add_argument('--texts', type=int, default=100, help='of each scheme')
    ap.add_argument('--also', nargs='+', default=(), help='rows that are not of schemes.toml or schemes_few.toml')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    enc, names = load_encoder(), {*all_rows(), 'human', *a.also}
    rows = json.loads(a.out.read_text())['rows'] if a.out.exists() else {}
    for folder in a.results:
        for s,row in one_study(folder, enc, a.texts, names, rows):
            rows.setdefault(s, row | dict(study=folder.name))
            print(s, row, flush=True)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(json.dumps(dict(rows=rows, **machine(None, enc)), indent=1) + '\n')

if __name__ == '__main__': main()
