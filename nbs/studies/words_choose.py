"""Choose among the word spaces of words.toml, by a rule that was written down before any of them was tried.

    dew_eval nbs/studies/words.toml --out results/words
    python nbs/studies/words_choose.py results/words --studies results --out results/data

A line for each choice, then the winner; in --out the figures (words_choices.json), in --studies multilingual.toml and real_words.toml with the winner.

The rule. (1) Repeated triples of words at most .01 above those of unmarked texts, and perplexity within 3% of theirs, or nearer to that than one
standard error. (2) Of these the largest AUROC in French; a choice of order 1 counts .02 less, since fewer texts give its key away.
(3) If none passes (1): of those with an AUROC of .93 or more the one that exceeds the two limits least, and it is said.
"""
import argparse, json, re
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.studies.plan import Study
from dew_nb.mark.words import words

HERE = Path(__file__).parent
FIELDS = 'order', 'context_width', 'pair_repeat', 'word_repeat'
REP, PPL, AUROC, FIRST_ORDER = .01, .03, .93, .02


def rep_3(text):
    "Share of triples of words that have stood in the text before"
    w = words(text)
    t = list(zip(w, w[1:], w[2:]))
    return 1 - len(set(t))/max(1, len(t))


def row(R, s):
    "Figures of a choice; None: not all are there"
    S = R.scores[R.scores['scheme'] == s]
    pick = lambda source, attack: S[(S['source'] == source) & (S['attack'] == attack)]
    T = R.texts[R.texts['attack'] == 'none'].set_index(['source', 'i'])['text']
    Q = np.log(R.quality.set_index(['source', 'i'])['ppl'])
    parts = [pick(a, b) for b in ('none', 'French') for a in (s, 'none')]
    if min(map(len, parts)) == 0 or not all(x in f.index.get_level_values(0) for f in (T, Q) for x in (s, 'none')): return None
    own, clean, french, clean_french = parts
    d, rep = (Q[s] - Q['none']).dropna(), {x: T[x].map(rep_3) for x in (s, 'none')}
    diff = (rep[s] - rep['none']).dropna()
    return dict(found=(own['p_value'] <= .01).mean(), french=(french['p_value'] <= .01).mean(),
        auroc=roc_auc_score(np.r_[np.ones(len(french)), np.zeros(len(clean_french))], np.r_[french['z'], clean_french['z']]),
        ppl=np.exp(d.mean()), ppl_se=d.std()/len(d)**.5, rep=diff.mean(), rep_se=diff.std()/len(diff)**.5,
        accused=(pd.concat([clean, clean_french])['p_value'] <= .01).mean(), texts=len(own))


def choose(rows):
    "The winner's name, and whether it keeps both limits"
    over_rep = lambda r: r['rep']/REP
    over_ppl = lambda r: max(0, abs(np.log(r['ppl'])) - r['ppl_se'])/PPL
    keeps = {n: r for n,r in rows.items() if max(over_rep(r), over_ppl(r)) <= 1}
    if keeps: return max(keeps, key=lambda n: keeps[n]['auroc'] - FIRST_ORDER*(rows[n]['order'] == 1)), True
    good = {n: r for n,r in rows.items() if r['auroc'] >= AUROC} or rows
    return min(good, key=lambda n: max(over_rep(good[n]), over_ppl(good[n]))), False


def with_choice(toml, fields):
    "A study whose word space has these fields"
    known = re.compile(rf'^(?:{"|".join(FIELDS)}) = .*\n', re.M)
    said = ''.join(f'{k} = {v}\n' for k,v in fields.items())
    return known.sub('', toml).replace('preset = "multilingual"\n', f'preset = "multilingual"\n{said}')


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('results', type=Path, help='folder of words.toml')
    ap.add_argument('--studies', type=Path, help='folder for the studies with the winner')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    R, rows = load_results(a.results), {}
    for s in Study.load(HERE/'words.toml').schemes:
        if s['kind'] != 'dew' or (r := row(R, s['name'])) is None: continue
        rows[s['name']] = r = {f: s[f] for f in FIELDS} | r
        print('{:30} found {found:.3f} French {french:.3f} AUROC {auroc:.3f} PPL {ppl:.3f} ± {ppl_se:.3f} rep-3 {rep:+.4f} ± {rep_se:.4f} accused {accused:.4f}'
              .format(s['name'], **r), flush=True)
    if not rows: raise SystemExit(f'no finished choice in {a.results}')
    name, keeps = choose(rows)
    print(f'winner: {name}' + ('' if keeps else ' (none keeps both limits)'))
    for folder in filter(None, (a.out, a.studies)): folder.mkdir(parents=True, exist_ok=True)
    plain = {n: {k: float(v) for k,v in r.items()} for n,r in rows.items()}
    (a.out/'words_choices.json').write_text(json.dumps(dict(winner=name, keeps=bool(keeps), rows=plain), indent=1) + '\n')
    for f in ('multilingual.toml', 'real_words.toml') if a.studies else ():
        (a.studies/f).write_text(with_choice((HERE/f).read_text(), {k: rows[name][k] for k in FIELDS}))


if __name__ == '__main__': main()
