"""Study data as the repository keeps them, from the larger files of earlier revisions (55 MB; those of revision e4b7e21).

    git archive e4b7e21 nbs/studies/data | tar -x -C before
    python nbs/studies/smaller.py before/nbs/studies/data --out nbs/studies/data

Done once. Every script beside this one writes the small form now, and whoever runs a study anew needs only its own command. What
is kept: all that pages read and a sample of texts that are scored again; how much of each study stands in KEEP of pack.py. Scores
have fewer binary digits and are on the same side of every threshold, p-values cross no level; so every rate is as it was, and an
AUROC within 1.5e-4. Where a page counted something in texts that are not kept, the counts are stored: lengths.parquet, donors_ppl.parquet,
real_repetition.json, and "writes" and "layouts" in formatting.json. Three minutes.
"""
import argparse, json, shutil
from pathlib import Path

import pandas as pd

import donors, formatting, lengths, null_over_keys, repetition, text_quality
from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.texts.content import read_texts, write_texts
from dew_nb.evaluation.texts.frames import LEVELS, write_frame
from pack import KEEP, USUAL

def frames(a):
    "Parquet files that are no packs"
    def small(name, bits=None, levels=None, change=lambda d: d): write_frame(a.out/f'{name}.parquet', change(pd.read_parquet(a.data/f'{name}.parquet')), bits, levels)
    small('detect_scores', dict(p=4), dict(p=LEVELS))
    small('donors_calibrated_scores', change=lambda d: donors.all_fewer_digits(d.drop(columns='score')))
    small('forging_scores', dict(p_value=4, score=7))
    small('unmarked_rates', dict(p_value=4), change=lambda d: d[['scheme', 'source', 'key', 'i', 'p_value']])
    for name in ('lengths', 'lengths_fresh'): lengths.by_key(pd.read_parquet(a.data/f'{name}.parquet')).to_parquet(a.out/f'{name}.parquet', index=False, compression='zstd')
    small('null_scores', change=null_over_keys.read_by_the_page)
    for name in ('text_quality', 'token_repeat_quality', 'token_repeat_cool_quality'): small(name, text_quality.DIGITS)
    for name in ('donors_tournament', 'second_model'): small(name)

def texts(a):
    "Texts that are in no pack: the first ones"
    old = {n: read_texts(a.data/f'{n}.jsonl.gz') for n in ('detect_texts', 'donors_calibrated_texts', 'donors_unmarked_texts', 'null_unmarked',
                                                          'donors_tournament_texts', 'forging_texts', 'secrecy_forge')}
    ppl = [{k: r[k] for k in ('host', 'table', 'encoder', 'seed', 'i', 'ppl')} for n in ('donors_calibrated_texts', 'donors_unmarked_texts')
           for r in old[n] if r['attack'] == 'none']
    write_frame(a.out/'donors_ppl.parquet', pd.DataFrame(ppl))
    for n,rows in old.items():
        if n in ('detect_texts', 'donors_calibrated_texts', 'donors_unmarked_texts'): rows = [r for r in rows if r['i'] < 2]
        if n == 'null_unmarked': rows = rows[:100]
        write_texts(a.out/f'{n}.jsonl.xz', rows)
    return [r['text'] for r in old['donors_calibrated_texts'] if r['attack'] == 'none' and 'gemma' in r['host']]

def counts(a, gemma):
    "What pages say of texts that are not kept"
    t = [load_results(a.data/n).texts.query("attack == 'none'") for n in ('evaluation', 'cool')]
    card = json.loads((a.data/'formatting.json').read_text())
    card |= dict(writes=formatting.who_writes(t[0], gemma), layouts=formatting.layouts(pd.concat(t)))
    (a.out/'formatting.json').write_text(json.dumps(card, indent=1) + '\n')
    repetition.count(a.data/'real', 100, a.out/'real_repetition.json')

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('data', type=Path, help='the larger files')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    frames(a)
    counts(a, texts(a))
    for p in sorted(a.data.iterdir()):
        new = a.out/p.name
        if p.is_dir(): load_results(p).pack(new, **KEEP.get(p.name, USUAL))
        elif not new.exists() and not new.with_suffix('.xz').exists(): shutil.copy(p, new)
        print(p.name, flush=True)

if __name__ == '__main__': main()
