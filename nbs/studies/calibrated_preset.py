"""Stronger marks: what the runner found, as the files that "A preset whose p-value is true" reads.

    dew_eval nbs/studies/calibrated_preset.toml --out results/calibrated_preset
    python nbs/studies/calibrated_preset.py --results results/calibrated_preset --out nbs/studies/data

Writes detect_texts.jsonl.xz (the first --keep of each key), detect_scores.parquet (score, z, p of each text
under each attack; unmarked texts under the keys of all seeds, at lam = 1) and detect.json (settings,
perplexity and machine). Minutes of one data-centre GPU for the first command, seconds for the second.
"""
import argparse, json
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from dew_nb import DEWConfig
from dew_nb.evaluation.texts.content import machine, write_texts
from dew_nb.evaluation.texts.frames import LEVELS, write_frame
from dew_nb.evaluation.texts.likelihood import bootstrap_interval
from dew_nb.evaluation.studies.store import load_results

ATTACKS = {'none': 'none', 'deletion-0.3': 'deletion30', 'deletion-0.5': 'deletion50'}

def marks(results):
    "Label of each mark: preset and lam"
    schemes = results.study['schemes'].items()
    return {label: (p['preset'], p['lam']) for label,(kind,p,*_) in schemes if kind == 'dew'}

def columns(x, scale=1., **cols):
    "Scores in small types"
    return pd.DataFrame(dict(text=x['i'].astype('int16'),
        score=(x['mean_score']/scale).astype('float32'), z=x['z'].astype('float32'),
        n_scored=x['n_scored'].astype('int16'), attack=x['attack'].map(ATTACKS), **cols))

def scores(results):
    "Unmarked texts under every key, once a preset; then the marked ones under their own"
    of, own, under, seen = marks(results), results.scores, results.under_keys, set()
    for label,(preset,lam) in of.items():
        if preset in seen: continue
        seen.add(preset)
        x = under[(under['scheme'] == label) & (under['source'] == 'none')]
        yield columns(x, lam, other=x['seed'], marked=False, preset=preset, lam=1., seed=x['key'])
    for label,(preset,lam) in of.items():
        x = own[(own['scheme'] == label) & (own['source'] == label)]
        yield columns(x, marked=True, preset=preset, lam=lam, seed=x['seed'], p=x['p_value'])

def texts(results, keep):
    "The first unattacked texts of each key, unmarked ones first"
    of = {'none': ('none', 0)} | marks(results)
    t = results.texts
    for label,(preset,lam) in of.items():
        x = t[(t['source'] == label) & (t['attack'] == 'none') & (t['i'] < keep)].sort_values(['seed', 'i'])
        for s,i,text in zip(x['seed'], x['i'], x['text']):
            yield dict(preset=preset, lam=lam, seed=int(s), i=int(i), text=text)

def perplexities(results):
    "Median perplexity of each preset, lam and seed, with its interval"
    of = {'none': ('none', 0)} | marks(results)
    for (label,seed),g in results.quality.groupby(['source', 'seed']):
        low, high = bootstrap_interval(g['ppl'])
        preset, lam = of[label]
        yield f'{preset}/{lam}/{seed}', dict(median=float(g['ppl'].median()), low=low, high=high)

def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, required=True, help='folder of dew_eval')
    ap.add_argument('--keep', type=int, default=2, help='texts of each key that are stored')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    r = load_results(a.results)
    write_texts(a.out/'detect_texts.jsonl.xz', texts(r, a.keep))
    write_frame(a.out/'detect_scores.parquet', pd.concat(scores(r)), dict(p=4), dict(p=LEVELS))     # no p-value crosses a level
    made = sorted({m['versions']['device'] for m in r.metas})
    (a.out/'detect.json').write_text(json.dumps(dict(
        command='dew_eval nbs/studies/calibrated_preset.toml --out results/calibrated_preset',
        perplexity=dict(perplexities(r)),
        configs={f'{p}/{l}': asdict(DEWConfig.preset(p, lam=l)) for p,l in marks(r).values()},
        **machine() | dict(device=', '.join(made))), indent=1) + '\n')

if __name__ == '__main__': main()
