"""Repetition, variety, perplexity by a second model, and whether a small model can tell marked from unmarked texts, for every
scheme of the stored studies.

    python nbs/studies/text_quality.py --data results --judge qwen2.5-coder-1.5b-instruct --out nbs/studies/data

Reads the texts of the main table, of the other schemes and of temperature 0.7 (the first 100 of each seed; --pieces FILE
keeps them in a file, or reads them from there) from the folders of their runs, which --data has: packs keep two texts of most
units. --results adds those of other folders. Writes text_quality.parquet (a row for each text), text_quality.json (the
classifier's AUROC for each scheme, settings, machine) and, with --judge, second_model.parquet (perplexity of each text by these
models: the host, and a stranger to it) and second_model.json. The classifier is a logistic regression on the encoder's vectors of whole
texts, with prompts kept together in five folds. Twelve minutes on two cores without a judge, which wants a GPU (--only judge).
What was judged, with the results of the other schemes and of token_repeat as `dew_eval` had left them:

    python nbs/studies/text_quality.py --only judge --judge qwen2.5-coder-1.5b-instruct smollm2-135m --results results/schemes \
        results/schemes_few results/token_repeat results/token_repeat_cool --out nbs/studies/data

Repetition alone, of every unattacked text of one study's results (before they are packed), in seconds:

    python nbs/studies/text_quality.py --repeats results/token_repeat --out nbs/studies/data

writes token_repeat_quality.parquet.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.texts.content import machine, read_texts, write_texts
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.evaluation.texts.likelihood import perplexity
from dew_nb.evaluation.studies.store import load_results
from dew_nb.stats.rates import auroc

HERE = Path(__file__).parent
DIGITS = dict.fromkeys(('rep_2', 'rep_3', 'distinct_1', 'distinct_2'), 11)           # binary ones; means of hundreds are read
STUDIES = ('evaluation', 'schemes', 'schemes_few', 'token_repeat', 'cool', 'token_repeat_cool')
# of the main table; of the other schemes all that is stored
ROWS = ('none', 'human', 'DEW tournament', 'DEW multilingual', 'DEW paper lam=2.0', 'DEW calibrated lam=2.5', 'KGW', 'Unigram', 'SynthID')


def written(folder, n):
    "Unattacked texts of a study, packed or not, the first n of each seed"
    r = load_results(folder)
    d = r.texts[lambda d: (d['attack'] == 'none') & (d['i'] < n)]
    if r.study['name'] in ('evaluation', 'cool'): d = d[d['source'].isin(ROWS)]
    d = d[(d['encoder'] != 'use-multilingual') | (d['source'] == 'DEW multilingual')]
    few = d.groupby(['source', 'seed']).size()
    if few.min() < min(n, 20): raise SystemExit(f'{folder} keeps {few.min()} texts of {few.idxmin()}: give the folder of a run with --results '
                                                '(and --data a folder of such folders), not a pack')
    return d[['source', 'seed', 'i', 'prompt', 'text']].assign(T=r.study['generation'].get('temperature', 1.0))


def find_pieces(a):
    "The texts, from the studies or from a file that has them, and from results"
    if a.pieces and a.pieces.exists(): first = [pd.DataFrame(read_texts(a.pieces))]
    else: first = [written(a.data/name, a.texts) for name in STUDIES]
    d = pd.concat(first + [written(r, a.texts) for r in a.results])
    d = d.drop_duplicates(['T', 'source', 'seed', 'i']).reset_index(drop=True)
    if a.pieces and not a.pieces.exists(): write_texts(a.pieces, d.to_dict('records'))
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


def vectors(a, d, enc):
    "The encoder's vectors of the texts, kept in a file if one is named"
    key, have = d[['T', 'source', 'seed', 'i']].astype(str).agg(' '.join, axis=1).to_numpy(), {}
    if a.vectors and a.vectors.exists():
        with np.load(a.vectors) as z: have = dict(zip(z['key'], z['X']))
    new = np.array([k not in have for k in key])
    if new.any(): have |= dict(zip(key[new], np.asarray(enc.encode(d['text'][new].tolist()))))
    if a.vectors and new.any(): np.savez(a.vectors, key=np.array(list(have)), X=np.stack(list(have.values())))
    return np.stack([have[k] for k in key])


def tell(a, d):
    "Repetition of each text, and the classifier for each scheme"
    enc, told = load_encoder(device=a.device), {}
    X = vectors(a, d, enc)
    if a.only == 'encode': return
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
    write_frame(a.out/'text_quality.parquet', out, DIGITS)
    (a.out/'text_quality.json').write_text(json.dumps(dict(told_apart=told, texts=a.texts, **machine(None, enc)), indent=1) + '\n')


def repeats(a):
    "Repetition of each unattacked text of a study's results"
    d = load_results(a.repeats).texts.query("attack == 'none'").reset_index(drop=True)
    out = pd.DataFrame(map(measures, d['text'])).join(d[['source', 'seed', 'i']])
    write_frame(a.out/f'{a.repeats.name}_quality.parquet', out, DIGITS)
    print(out.groupby(['source', 'seed'])[['rep_2', 'rep_3', 'longest', 'distinct_1']].mean().round(4))


def judge(a, d, name):
    "Perplexity of each text by a model; what a run that was cut short left is taken up again"
    t0, file = time.time(), a.out/'second_model.parquet'
    rows = [pd.read_parquet(file)] if file.exists() else []
    done = {k for r in rows for k in zip(r['judge'], r['T'], r['source'], r['seed'])}
    left = [t for k,t in d.assign(judge=name).groupby(['judge', 'T', 'source', 'seed'], sort=False) if k not in done]
    host = load_host(name, device=a.device) if left else None
    for t in left:
        ppl = perplexity(host, t['text'].tolist(), t['prompt'].tolist(), a.batch).values
        rows.append(t[['judge', 'T', 'source', 'seed', 'i']].assign(ppl=ppl.astype('float32')))
        write_frame(file, pd.concat(rows))
        print(f'{time.time() - t0:.0f} s', *t.iloc[0][['judge', 'T', 'source', 'seed']], round(float(np.median(ppl)), 2), flush=True)
    return dict(seconds=round(time.time() - t0), **machine(host)) if left else {}


def judges(a, d):
    "Perplexity by each of the models, and a card of what was done"
    command = ('python nbs/studies/text_quality.py --only judge --judge qwen2.5-coder-1.5b-instruct smollm2-135m --results results/schemes '
               'results/schemes_few results/token_repeat results/token_repeat_cool --out nbs/studies/data')
    file = a.out/'second_model.json'
    for name in a.judge:
        card = judge(a, d, name)
        old = json.loads(file.read_text())['judges'] if file.exists() else {}
        if card: card['seconds'] += old.get(name, {}).get('seconds', 0)
        file.write_text(json.dumps(dict(command=command, texts=a.texts, judges=old | ({name: card} if card else {})), indent=1) + '\n')


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=100, help='of each seed')
    ap.add_argument('--data', type=Path, default=HERE/'data')
    ap.add_argument('--pieces', type=Path, help='a file for the texts')
    ap.add_argument('--results', type=Path, nargs='+', default=(), help='results of studies, for texts that packs have not')
    ap.add_argument('--judge', nargs='+', default=(), help='models that give perplexities')
    ap.add_argument('--only', choices=('tell', 'judge', 'encode'), help='one of the two, or no more than the vectors')
    ap.add_argument('--vectors', type=Path, help='a file for the vectors of texts, which a GPU makes in seconds')
    ap.add_argument('--repeats', type=Path, help='results of a study: repetition of its texts, and nothing else')
    ap.add_argument('--batch', type=int, default=16, help='texts at a time for the judge')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.repeats: return repeats(a)
    d = find_pieces(a)
    if a.judge and a.only not in ('tell', 'encode'): judges(a, d)
    if a.only != 'judge': tell(a, d)


if __name__ == '__main__': main()
