"""How often texts say the same again: the share of triples of words that have stood in the text before, by source.

    python nbs/studies/repetition.py results/real --out nbs/studies/data/real_repetition.json

Of the first --texts unattacked texts of each unit of a study's results, before they are packed: a pack keeps two of each.
"""
import argparse, json
from pathlib import Path

from dew_nb.evaluation.studies.store import load_results
from dew_nb.mark.words import words

def rep_3(text):
    "Share of triples of words that have stood in the text before"
    w = words(text)
    t = list(zip(w, w[1:], w[2:]))
    return 1 - len(set(t))/max(1, len(t))

def count(folder, n, out):
    "Mean over the first n texts of each unit, by source"
    d = load_results(folder).texts.query("attack == 'none'")
    d = d[d['i'] < n]
    few = d.groupby(['source', 'encoder', 'seed']).size()
    if few.min() < n: raise SystemExit(f'{folder} has {few.min()} texts of {few.idxmin()}, and {n} are asked for: give the folder of the run, not a pack')
    said = d.assign(rep_3=d['text'].map(rep_3)).groupby('source')['rep_3'].agg(['mean', 'size'])
    out.write_text(json.dumps(dict(texts=n, rep_3={s: dict(mean=float(r['mean']), texts=int(r['size'])) for s,r in said.iterrows()}), indent=1) + '\n')

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('results', type=Path, help='a folder of dew_eval')
    ap.add_argument('--texts', type=int, default=100, help='of each source and seed')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    count(a.results, a.texts, a.out)

if __name__ == '__main__': main()
