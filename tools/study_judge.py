"""Perplexity of stored texts under another model than the one that wrote them.

    python tools/study_judge.py nbs/studies/data/evaluation --sources none "DEW paper lam=2.?" "DEW calibrated lam=2.?" \\
        --judge gemma3-270m --texts 40 --out nbs/studies/data/judge.parquet

Reads the unattacked texts of packed (or unpacked) results of `dew_eval` and judges the first --texts of each unit, ten at a
time, writing after each round; half an hour on two busy CPU cores, seconds on a GPU.
"""
import argparse, fnmatch, json, shlex, sys
from pathlib import Path

import pandas as pd

from dew_nb import load_host
from dew_nb.evaluation.quality import perplexity
from dew_nb.evaluation.results import load_results
from study_common import machine

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('results', type=Path); ap.add_argument('--judge', default='gemma3-270m')
    ap.add_argument('--texts', type=int, default=40); ap.add_argument('--sources', nargs='+', default=['*'], help='patterns of sources')
    ap.add_argument('--encoder', default='minilm', help='of those marked with one')
    ap.add_argument('--batch', type=int, default=5); ap.add_argument('--device'); ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    t = load_results(a.results).texts
    t = t[(t['attack'] == 'none') & t['encoder'].isin(['', a.encoder])]
    t = t[[any(fnmatch.fnmatchcase(s, p) for p in a.sources) for s in t['source']]]
    host, rows = load_host(a.judge, device=a.device), []
    for lo in range(0, a.texts, 10):
        for (source,seed),g in t.groupby(['source', 'seed']):
            g = g.sort_values('i').iloc[lo:min(lo+10, a.texts)]
            p = perplexity(host, g['text'].tolist(), g['prompt'].tolist(), batch_size=a.batch).values
            rows += [dict(source=source, seed=int(seed), i=int(i), ppl=float(x)) for i,x in zip(g['i'], p)]
        d = pd.DataFrame(rows)
        d.to_parquet(a.out, compression='zstd', index=False)
        print(lo+10, d.groupby('source')['ppl'].median().round(1).to_dict(), flush=True)
    a.out.with_suffix('.json').write_text(json.dumps(dict(command='python tools/study_judge.py '+shlex.join(sys.argv[1:]),
        **machine(host)), indent=1)+'\n')

if __name__ == '__main__': main()
