"""Repetition, variety, and whether a small model can tell marked from unmarked texts, for every scheme of two studies.

    python nbs/studies/text_quality.py --out nbs/studies/data

Reads the stored texts of the main table and of temperature 0.7 (the first 100 of each seed). Writes text_quality.parquet (a row
for each text) and text_quality.json (the classifier's AUROC for each scheme, settings, machine). The classifier is a
logistic regression on the encoder's vectors of whole texts, with prompts kept together in five folds. Ten minutes on two cores.
"""
import argparse, json
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dew_nb import load_encoder
from dew_nb.evaluation.content import machine
from dew_nb.evaluation.store import load_results
from dew_nb.rates import auroc

HERE = Path(__file__).parent
STUDIES = dict(evaluation=1.0, cool=0.7)
ROWS = ('none', 'DEW tournament', 'DEW calibrated lam=2.5', 'KGW', 'Unigram', 'SynthID')


def repeated(words, n):
    "Share of n-grams of words that have stood in the text before"
    grams = list(zip(*(words[i:] for i in range(n))))
    return 1 - len(set(grams))/len(grams) if grams else 0.


def longest_repeat(words):
    "Words in the longest passage that stands twice"
    low, high = 0, len(words)
    while low < high:
        n = (low + high + 1)//2
        if repeated(words, n) > 0: low = n
        else: high = n - 1
    return low


def measures(text):
    w = text.lower().split()
    return dict(words=len(w), rep_2=repeated(w, 2), rep_3=repeated(w, 3), longest=longest_repeat(w),
                distinct_1=1 - repeated(w, 1), distinct_2=1 - repeated(w, 2))


def told_apart(X, marked, prompt, seed=0):
    "AUROC of a cross-validated logistic regression"
    model = make_pipeline(StandardScaler(), LogisticRegression(C=.01, max_iter=1000))
    p = cross_val_predict(model, X, marked, groups=prompt, cv=GroupKFold(5, shuffle=True, random_state=seed),
                          method='predict_proba')[:, 1]
    return float(auroc(p[marked], p[~marked]))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=100, help='of each seed')
    ap.add_argument('--data', type=Path, default=HERE/'data')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    enc, rows, told = load_encoder(), [], {}
    for name,T in STUDIES.items():
        d = load_results(a.data/name).texts
        d = d[(d['attack'] == 'none') & d['source'].isin(ROWS) & (d['i'] < a.texts) & (d['encoder'] != 'use-multilingual')]
        d = d.drop_duplicates(['source', 'seed', 'i']).reset_index(drop=True)
        X = np.asarray(enc.encode(d['text'].tolist()))
        group = pd.factorize(d['prompt'])[0]
        for s in ROWS[1:]:
            at = d['source'].isin(['none', s]).to_numpy()
            told[f'{T} {s}'] = told_apart(X[at], (d['source'] == s).to_numpy()[at], group[at])
            print(T, s, round(told[f'{T} {s}'], 3), flush=True)
        two = d[d['source'] == 'none']                                     # seeds of unmarked text against each other: chance
        at = (d['source'] == 'none').to_numpy()
        told[f'{T} chance'] = told_apart(X[at], (two['seed'] == two['seed'].min()).to_numpy(), group[at])
        m = pd.DataFrame(map(measures, d['text'])).assign(T=T, source=d['source'], seed=d['seed'], i=d['i'])
        rows.append(m)
    out = pd.concat(rows, ignore_index=True)
    out.to_parquet(a.out/'text_quality.parquet', index=False, compression='zstd')
    (a.out/'text_quality.json').write_text(json.dumps(dict(told_apart=told, texts=a.texts, **machine(None, enc)), indent=1) + '\n')


if __name__ == '__main__': main()
