"""Donor tables: native tokens, a donor's, and the host-agnostic detector, before and after deletion and translation.

    python tools/study_donors.py texts attacks scores table --out nbs/studies/data

Stages, each of which goes on where it stopped; name one or several:
  texts    unmarked and marked texts of every host, table and encoder            -> donors_texts.jsonl.gz
  attacks  30% word deletion, French, English-French-English of all of them      -> donors_attacked.jsonl.gz
  scores   every text under its key, read by the host's and the donor's tokenizer -> donors_scores.parquet, donors.json
  table    the paper's layout, with AUROC against unmarked text after the same attack -> donors_table.csv

Translation needs the folders opus-mt-en-fr-int8 and opus-mt-fr-en-int8 in the folder that DEW_MODELS names. With the defaults
(3 seeds, 300 texts, two hosts, two encoders) it generates 9,000 texts and wants a data-centre GPU.
"""
import argparse, dataclasses, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.calibration import auroc, leave_one_seed_out
from dew_nb.donors import agnostic_scheme, coverage, donor_scheme
from dew_nb.evaluation.attacks import RoundTrip, Translate, WordDeletion
from dew_nb.evaluation.corpora import build_corpus, complete
from dew_nb.evaluation.quality import perplexity
from study_common import machine, read_texts, study_key, write_texts

ATTACKS = ('none', 'deletion30', 'french', 'round_trip')
CELL = ['host', 'table', 'encoder', 'seed']

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('stages', nargs='+', choices=['texts', 'attacks', 'scores', 'table'])
    ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--hosts', nargs='+', default=['smollm2-135m', 'gemma3-270m'], help='each is the donor of the one before it')
    ap.add_argument('--write', nargs='+', help='which of the hosts write; default: all of them')
    ap.add_argument('--encoders', nargs='+', default=['minilm', 'use-multilingual'])
    ap.add_argument('--attacks', nargs='+', default=ATTACKS, choices=ATTACKS)
    ap.add_argument('--texts', type=int, default=300); ap.add_argument('--seeds', type=int, default=3)
    ap.add_argument('--tokens', type=int, default=200); ap.add_argument('--batch', type=int, default=100)
    ap.add_argument('--preset', default='calibrated'); ap.add_argument('--lam', type=float, default=2.5)
    ap.add_argument('--fprs', nargs='+', type=float, default=[.01, .05]); ap.add_argument('--device')
    return ap.parse_args()

class Study:
    "Models, schemes and files of one run"
    def __init__(self, a):
        self.a, self.t0, self.cache = a, time.time(), {}
        self.config = DEWConfig.preset(a.preset, lam=a.lam)
        self.writers, self.donor = a.write or a.hosts, dict(zip(a.hosts, a.hosts[1:]+a.hosts[:1]))
        a.out.mkdir(parents=True, exist_ok=True)
    def say(self, *x): print(f'{time.time()-self.t0:.0f} s:', *x, flush=True)
    def once(self, key, make):
        if key not in self.cache: self.cache[key] = make()
        return self.cache[key]
    def host(self, name): return self.once(('host', name), lambda: load_host(name, device=self.a.device))
    def encoder(self, name): return self.once(('encoder', name), lambda: load_encoder(name, device=self.a.device))
    def prompts(self): return self.once('prompts', lambda: build_corpus(self.host(self.a.hosts[0]), split='evaluation', n=self.a.texts).prompts)
    def key(self, seed): return study_key(seed, 'donors')
    def file(self, name): return self.a.out/f'donors{name}'
    def rows(self, name): return read_texts(self.file(name)) if self.file(name).exists() else []
    def scheme(self, h, table, e):
        "The scheme of one cell under the first key, 'reader' for the host-agnostic one; only the last one is kept"
        def make():
            args = (self.encoder(e), self.key(0), self.config)
            if table == 'native': return DEW.build(self.host(h), *args, progress=False)
            if table == 'reader': return agnostic_scheme(self.host(self.donor[h]), *args, progress=False)
            return donor_scheme(self.host(h), self.host(self.donor[h]), *args, progress=False)
        if self.cache.get('scheme', (None,))[0] != (h, table, e): self.cache['scheme'] = ((h, table, e), make())
        return self.cache['scheme'][1]

def texts(s):
    "Unmarked texts of every host and seed, then the marked ones"
    a, rows = s.a, s.rows('_texts.jsonl.gz')
    done = {tuple(r[c] for c in CELL) for r in rows}
    def add(make, **cell):
        if tuple(cell.values()) in done: return
        out = make()
        p = perplexity(s.host(cell['host']), out, s.prompts(), batch_size=min(a.batch, 50)).values
        rows.extend(dict(cell, i=i, text=t, ppl=None if np.isnan(q) else round(float(q), 3)) for i,(t,q) in enumerate(zip(out, p)))
        write_texts(s.file('_texts.jsonl.gz'), rows)
        s.say('texts', *cell.values(), f'PPL {np.nanmedian(p):.1f}')
    for h in s.writers:
        run = lambda seed,**k: complete(s.host(h), s.prompts(), a.tokens, seed=seed, batch_size=a.batch, **k)
        for seed in range(a.seeds): add(lambda: run(1000+seed), host=h, table='none', encoder='none', seed=seed)
        for e in a.encoders:
            for table in ('native', 'donor'):
                for seed in range(a.seeds):
                    add(lambda: run(seed, processor=s.scheme(h, table, e).rekey(s.key(seed)).processor), host=h, table=table, encoder=e, seed=seed)

def attacks(s):
    "Every text under every attack"
    rows, out = s.rows('_texts.jsonl.gz'), s.rows('_attacked.jsonl.gz')
    done = {(*(r[c] for c in CELL), r['attack']) for r in out}
    there = lambda: s.once('fr', lambda: Translate('opus-mt-en-fr-int8', cache=s.file('_fr.cache')))
    back = lambda: s.once('en', lambda: Translate('opus-mt-fr-en-int8', cache=s.file('_en.cache')))
    make = dict(deletion30=lambda: WordDeletion(.3), french=there, round_trip=lambda: RoundTrip(there(), back()))
    for cell,group in pd.DataFrame(rows).groupby(CELL, sort=False):
        for n in s.a.attacks:
            if n == 'none' or (*cell, n) in done: continue
            new = make[n]()(group.text.tolist(), seed=int(cell[-1]))
            out.extend(dict(zip(CELL, cell), attack=n, i=int(i), text=t) for i,t in zip(group.i, new))
            write_texts(s.file('_attacked.jsonl.gz'), [r | dict(seed=int(r['seed'])) for r in out])
            s.say('attacked', *cell, n)

def scores(s):
    "Marked and unmarked texts under each key, by the detector of the scheme and by the host-agnostic one"
    T = pd.concat([pd.DataFrame(s.rows('_texts.jsonl.gz')).assign(attack='none'), pd.DataFrame(s.rows('_attacked.jsonl.gz'))])
    T = T[T.attack.isin(s.a.attacks)]
    path, out, cover = s.file('_scores.parquet'), [], {}
    if path.exists(): out.append(pd.read_parquet(path))
    done = set(out[0].groupby(['host', 'table', 'encoder', 'seed', 'reader']).groups) if out else set()
    for e in s.a.encoders:
        for h in s.writers:
            for table,reader in (('native', 'host'), ('donor', 'host'), ('donor', 'donor')):
                for seed in range(s.a.seeds):
                    if (h, table, e, seed, reader) in done: continue
                    t = T[(T.host == h) & (T.seed == seed) & (((T.table == table) & (T.encoder == e)) | (T.table == 'none'))]
                    det = s.scheme(h, table if reader == 'host' else 'reader', e).rekey(s.key(seed)).detector()
                    r = det.detect(t.text.tolist(), progress=False)
                    out.append(pd.DataFrame(dict(host=h, table=table, encoder=e, seed=np.int8(seed), reader=reader, attack=t.attack, marked=t.table != 'none',
                        i=t.i.astype('int16'), score=np.float32([x.score for x in r]), z=np.float32([x.z for x in r]), p=np.float32([x.p_value for x in r]),
                        n_scored=np.int16([x.n_scored for x in r]))).reset_index(drop=True))
                    pd.concat(out).to_parquet(path, compression='zstd', index=False)
                    plain = out[-1][(out[-1].attack == 'none') & out[-1].marked]
                    s.say('scores', h, table, e, seed, reader, f'mean z of the marked {plain.z.mean():.2f}')
                if table == 'donor' and reader == 'host':
                    rep = s.scheme(h, table, e).parts['report']
                    cover[h] = dict(donor=s.donor[h], counts=rep.counts(), **coverage(rep, s.host(h).tokenizer))
    old = json.loads(s.file('.json').read_text())['coverage'] if s.file('.json').exists() else {}
    s.file('.json').write_text(json.dumps(dict(settings={k: v for k,v in vars(s.a).items() if k not in ('out', 'stages')}, coverage=old | cover,
        config=dataclasses.asdict(s.config), donors=s.donor, **machine()), indent=1)+'\n')

def table(s):
    "TPR at English thresholds of the other seeds, and AUROC against unmarked text after the same attack"
    D, T, rows = pd.read_parquet(s.file('_scores.parquet')), pd.DataFrame(s.rows('_texts.jsonl.gz')), []
    half = lambda x: (max(x)-min(x))/2
    for (h,tab,e,reader),g in D.groupby(['host', 'table', 'encoder', 'reader'], sort=False):
        by = lambda m,n: {k: v.z.to_numpy() for k,v in g[(g.marked == m) & (g.attack == n)].groupby('seed')}
        names = [n for n in ATTACKS if n in set(g.attack)]
        L = leave_one_seed_out(by(True, 'none'), by(False, 'none'), s.a.fprs, {n: by(True, n) for n in names if n != 'none'},
                               {n: by(False, n) for n in names if n != 'none'})
        ppl = T[(T.host == h) & (T.table == tab) & (T.encoder == e)].groupby('seed').ppl.median().tolist()
        for n in names:
            A = [auroc(by(True, n)[k], by(False, n)[k]).value for k in by(True, n)]
            row = dict(host=h, table=tab, encoder=e, reader=reader, attack=n, auroc=np.mean(A), auroc_half=half(A), ppl=np.mean(ppl), ppl_half=half(ppl))
            for f in s.a.fprs:
                x = L[(L.attack == n) & (L.nominal == f) & (L.null == 'unattacked')]
                row |= {f'tpr{100*f:g}': x.tpr.mean(), f'tpr{100*f:g}_half': half(x.tpr), f'fpr{100*f:g}': x.fpr.mean()}
            rows.append(row)
    out = pd.DataFrame(rows).round(4)
    out.to_csv(s.file('_table.csv'), index=False)
    print(out.to_string(index=False))

def main():
    s = Study(arguments())
    for stage in s.a.stages: globals()[stage](s)

if __name__ == '__main__': main()
