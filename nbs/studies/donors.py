"""Donor tables: what the runner found, as the files that "Another model's token space" reads.

    dew_eval nbs/studies/donors.toml nbs/studies/donors_gemma.toml --out results/donors
    python nbs/studies/donors.py --results results/donors --out nbs/studies/data

Writes donors_calibrated_scores.parquet (z of every text by each of three ways to mark and read; unmarked
texts under the keys of all seeds), donors_ppl.parquet (perplexity of every unattacked text),
donors_calibrated_texts.jsonl.xz and donors_unmarked_texts.jsonl.xz (the first --keep of each kind and
seed) and donors_calibrated.json (settings, what the donors cover, machine). The first command makes 12,600 texts, 50,400 with the attacks, and wants a data-centre
GPU and the translation models that DEW_MODELS names (donors.toml says how to make them). Start it several times: the runs share the work.
"""
import argparse, json
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from scipy.stats import norm

from dew_nb import DEWConfig, load_host
from dew_nb.transfer.borrowed import donor_tokens
from dew_nb.transfer.donors import coverage
from dew_nb.evaluation.texts.content import machine, write_texts
from dew_nb.evaluation.texts.frames import rounded_scores, write_frame
from dew_nb.evaluation.studies.store import load_results

def views(results):
    "Label of each mark: whose table, and who reads"
    for label,(kind,params,*_) in results.study['schemes'].items():
        if kind == 'dew': yield label, ('native', 'host')
        if kind == 'donor': yield label, ('donor', params['read'])

def columns(x, of, marked, key):
    "Scores in small types"
    small = dict(seed='int8', i='int16', z='float32', n_scored='int16')
    d = pd.DataFrame(dict(marked=marked, host=x['host'], encoder=x['encoder'], key=key.astype('int8'),
        table=[of[s][0] for s in x['scheme']], reader=[of[s][1] for s in x['scheme']],
        attack=x['attack']))
    return d.assign(**{k: x[k].astype(v) for k,v in small.items()})

def fewer_digits(d):
    "z to one part in 4,096, on the same side of what may be a threshold: 1%, and high scores of unmarked texts"
    u = d[~d['marked']]
    low = u.groupby(['key', 'seed', 'attack'])['z'].quantile(.85).min()
    return rounded_scores(d['z'], 2.**-12, [*u['z'][u['z'] >= low], *norm.isf([.05, .01, .001])])

def all_fewer_digits(d):
    "The same for every host, encoder, table and reader"
    for at in d.groupby(['host', 'encoder', 'table', 'reader']).groups.values(): d.loc[at, 'z'] = fewer_digits(d.loc[at])
    return d

def scores(results):
    "Unmarked texts under every key and marked ones under their own"
    of, own, under = dict(views(results)), results.scores, results.under_keys
    under = under[(under['source'] == 'none') & under['scheme'].isin(of)]
    own = own[(own['source'] == own['scheme']) & own['scheme'].isin(of)]
    by = ['host', 'encoder', 'table', 'reader', 'marked', 'key', 'seed', 'attack', 'i']
    d = pd.concat([columns(under, of, False, under['key']), columns(own, of, True, own['seed'])])
    rank = {m: n for n,m in enumerate([*results.study['hosts'], *results.study['encoders']])}
    def order(c): return c.map(rank) if c.name in ('host', 'encoder') else c
    return all_fewer_digits(d.sort_values(by, key=order, ignore_index=True))

def texts(results, keep):
    "Texts with their perplexity; of attacked ones the first `keep`. Each table once, whoever reads"
    of = {l: t for l,(t,reader) in views(results) if reader == 'host'} | dict(none='none')
    by = ['source', 'host', 'encoder', 'seed', 'i']
    t = results.texts.merge(results.quality[[*by, 'ppl']], on=by, how='left')
    t = t[t['source'].isin(of) & ((t['attack'] == 'none') | (t['i'] < keep))]
    for r in t.sort_values(['host', 'encoder', 'source', 'attack', 'seed', 'i']).to_dict('records'):
        row = dict(host=r['host'], table=of[r['source']], encoder=r['encoder'] or 'none',
                   seed=int(r['seed']), i=int(r['i']), text=r['text'], attack=r['attack'])
        if r['attack'] == 'none': row['ppl'] = None if pd.isna(r['ppl']) else round(r['ppl'], 3)
        yield row

def covered(host, donor):
    "What a donor covers of a host's tokens, and which models they were"
    host, donor = load_host(host), load_host(donor)
    t = donor_tokens(host, donor)
    digests = dict(host_digest=host.digest, tokenizer_digest=host.tokenizer_digest)
    digests |= {k: v for k,v in t.meta.items() if k.endswith('digest')}
    return host.name, dict(donor=donor.name, counts=t.report.counts(),
                           **coverage(t.report, host.tokenizer), digests=digests)

def donors_of(results):
    "Each host that has written in a donor's space, and that donor"
    donor = {l: p['donor'] for l,(kind,p,*_) in results.study['schemes'].items() if kind == 'donor'}
    where = {Path(h).name: h for h in results.study['hosts']}         # of a folder, where it is
    for host,label in set(zip(results.scores['host'], results.scores['scheme'])):
        if label in donor: yield where[host], donor[label]

def settings(results):
    "What the page wants to know of the study"
    s = results.study
    lam = next(p['lam'] for kind,p,*_ in s['schemes'].values() if kind == 'dew')
    return dict(texts=s['corpus']['n'], seeds=len(s['seeds']), tokens=s['generation']['tokens'], lam=lam)

def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, required=True, help='folder of dew_eval')
    ap.add_argument('--keep', type=int, default=2, help='texts of each kind and key that are stored')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    r, rows = load_results(a.results), {True: [], False: []}
    every = list(texts(r, a.keep))
    ppl = pd.DataFrame([{k: t[k] for k in ('host', 'table', 'encoder', 'seed', 'i', 'ppl')} for t in every if t['attack'] == 'none'])
    for t in every:
        if t['i'] < a.keep: rows[t['table'] != 'none'].append(t)
    write_texts(a.out/'donors_calibrated_texts.jsonl.xz', rows[True])
    write_texts(a.out/'donors_unmarked_texts.jsonl.xz', rows[False])
    write_frame(a.out/'donors_calibrated_scores.parquet', scores(r))
    write_frame(a.out/'donors_ppl.parquet', ppl)
    made, s = sorted({m['versions']['device'] for m in r.metas}), settings(r)
    (a.out/'donors_calibrated.json').write_text(json.dumps(dict(
        command='dew_eval nbs/studies/donors.toml nbs/studies/donors_gemma.toml --out results/donors',
        settings=s | dict(keep=a.keep), config=asdict(DEWConfig.preset('calibrated', lam=s['lam'])),
        coverage=dict(covered(*x) for x in sorted(set(donors_of(r)))),
        **machine() | dict(device=', '.join(made))), indent=1) + '\n')

if __name__ == '__main__': main()
