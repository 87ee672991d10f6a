"""Repetition, variety, perplexity by a second model, and whether a small model can tell marked from unmarked texts, for every
scheme of the stored studies.

    python nbs/studies/text_quality.py --judge qwen2.5-coder-1.5b-instruct --out nbs/studies/data

Reads the stored texts of the main table, of the other schemes and of temperature 0.7 (the first 100 of each seed; --pieces FILE
keeps them in a file, or reads them from there). Writes text_quality.parquet (a row for each text), text_quality.json (the
classifier's AUROC for each scheme, settings, machine) and, with --judge, second_model.parquet (perplexity of each text by that
model, a stranger to the host) and second_model.json. The classifier is a logistic regression on the encoder's vectors of whole
texts, with prompts kept together in five folds. Twelve minutes on two cores without a judge, which wants a GPU (--only judge).
Repetition alone, of every unattacked text of one study's results (before they are packed), in seconds:

    python nbs/studies/text_quality.py --repeats results/token_repeat --out nbs/studies/data

writes token_repeat_quality.parquet.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.content import machine, read_texts, write_texts
from dew_nb.evaluation.likelihood import perplexity
from dew_nb.evaluation.store import load_results
from dew_nb.rates import auroc

HERE = Path(__file__).parent
STUDIES = dict(evaluation=1.0, schemes=1.0, cool=0.7)
# of the main table; of the other schemes all that is stored
ROWS = ('none', 'DEW tournament', 'DEW multilingual', 'DEW paper lam=2.0', 'DEW calibrated lam=2.5', 'KGW', 'Unigram', 'SynthID')


def stored(data, n):
    "Unattacked texts of the studies, the first n of each seed"
    def one(name, T):
        d = load_results(data/name).texts
        d = d[(d['attack'] == 'none') & (d['i'] < n) & (d['source'] != 'human')]
        if name != 'schemes': d = d[d['source'].isin(ROWS)]
        d = d[(d['encoder'] != 'use-multilingual') | (d['source'] == 'DEW multilingual')]
        return d[['source', 'seed', 'i', 'prompt', 'text']].assign(T=T)
    d = pd.concat([one(n,T) for n,T in STUDIES.items()])
    return d.drop_duplicates(['T', 'source', 'seed', 'i']).reset_index(drop=True)


def find_pieces(a):
    "The texts, from the studies or from a file that has them"
    if a.pieces and a.pieces.exists(): return pd.DataFrame(read_texts(a.pieces))
    d = stored(a.data, a.texts)
    if a.pieces: write_texts(a.pieces, d.to_dict('records'))
    return d


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
    from sklearn.linear_model import LogisticRegression           # a judge does without
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    model = make_pipeline(StandardScaler(), LogisticRegression(C=.01, max_iter=1000))
    p = cross_val_predict(model, X, marked, groups=prompt, cv=GroupKFold(5, shuffle=True, random_state=seed),
                          method='predict_proba')[:, 1]
    return float(auroc(p[marked], p[~marked]))


def tell(a, d):
    "Repetition of each text, and the classifier for each scheme"
    enc, told = load_encoder(), {}
    X = np.asarray(enc.encode(d['text'].tolist()))
    group = pd.factorize(d['prompt'])[0]
    for T,t in d.groupby('T'):
        plain = ((d['T'] == T) & (d['source'] == 'none')).to_numpy()
        for s in t['source'].unique():
            mine = ((d['T'] == T) & (d['source'] == s)).to_numpy()
            if s == 'none' or mine.sum() < 100: continue                       # too few to learn from
            at = mine | plain & d['seed'].isin(d['seed'][mine].unique()).to_numpy()      # seeds that both have
            told[f'{T} {s}'] = told_apart(X[at], mine[at], group[at])
            print(T, s, round(told[f'{T} {s}'], 3), flush=True)
        first = (d['seed'] == d['seed'][plain].min()).to_numpy()             # unmarked seeds against each other: chance
        told[f'{T} chance'] = told_apart(X[plain], first[plain], group[plain])
    out = pd.DataFrame(map(measures, d['text'])).join(d[['T', 'source', 'seed', 'i']])
    out.to_parquet(a.out/'text_quality.parquet', index=False, compression='zstd')
    (a.out/'text_quality.json').write_text(json.dumps(dict(told_apart=told, texts=a.texts, **machine(None, enc)), indent=1) + '\n')


def repeats(a):
    "Repetition of each unattacked text of a study's results"
    d = load_results(a.repeats).texts.query("attack == 'none'").reset_index(drop=True)
    out = pd.DataFrame(map(measures, d['text'])).join(d[['source', 'seed', 'i']])
    out.to_parquet(a.out/f'{a.repeats.name}_quality.parquet', index=False, compression='zstd')
    print(out.groupby(['source', 'seed'])[['rep_2', 'rep_3', 'longest', 'distinct_1']].mean().round(4))


def judge(a, d):
    "Perplexity of each text by a second model; what a run that was cut short left is taken up again"
    t0, host, file = time.time(), load_host(a.judge, device=a.device), a.out/'second_model.parquet'
    rows = [pd.read_parquet(file)] if file.exists() else []
    done = {(T, s) for r in rows for T,s in zip(r['T'], r['source'])}
    command = f'python nbs/studies/text_quality.py --only judge --judge {a.judge} --out nbs/studies/data'
    for (T,s),t in d.groupby(['T', 'source'], sort=False):
        if (T, s) in done: continue
        ppl = perplexity(host, t['text'].tolist(), t['prompt'].tolist(), a.batch).values
        rows.append(t[['T', 'source', 'seed', 'i']].assign(ppl=ppl.astype('float32')))
        pd.concat(rows).to_parquet(file, index=False, compression='zstd')
        print(T, s, round(float(np.median(ppl)), 2), flush=True)
    (a.out/'second_model.json').write_text(json.dumps(dict(command=command, judge=a.judge, texts=a.texts,
        seconds=round(time.time() - t0), **machine(host)), indent=1) + '\n')


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=100, help='of each seed')
    ap.add_argument('--data', type=Path, default=HERE/'data')
    ap.add_argument('--pieces', type=Path, help='a file for the texts')
    ap.add_argument('--judge', help='a model that gives perplexities')
    ap.add_argument('--only', choices=('tell', 'judge'), help='one of the two')
    ap.add_argument('--repeats', type=Path, help='results of a study: repetition of its texts, and nothing else')
    ap.add_argument('--batch', type=int, default=16, help='texts at a time for the judge')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.repeats: return repeats(a)
    d = find_pieces(a)
    if a.judge and a.only != 'tell': judge(a, d)
    if a.only != 'judge': tell(a, d)


if __name__ == '__main__': main()
