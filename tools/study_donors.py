"""Donor tables: native tokens, a donor's, and the host-agnostic detector, before and after attacks.

    python tools/study_donors.py texts attacks scores merge --work WORK --out nbs/studies/data

Stages, each of which goes on where it stopped; name one or several:
  texts    unmarked and marked texts, with perplexity under the host that wrote them
  attacks  30% word deletion, French, English-French-English of all of them
  scores   each text read by the host's tokenizer and by the donor's; unmarked texts under every key
  merge    joins the parts into donors_PRESET_scores.parquet, donors_PRESET_texts.jsonl.gz,
           donors_unmarked_texts.jsonl.gz and donors_PRESET.json under OUT, and prints the table

A part is one host and one encoder, or one host and 'none': its unmarked texts. It has files of its own
in WORK, so that parts can be made by processes of their own (--write HOST --encoders E), one each.
'scores' of a part also reads the unmarked part of its host, and 'merge' wants all parts.

Translation needs the folders opus-mt-en-fr-int8 and opus-mt-fr-en-int8 in the folder that DEW_MODELS
names. The defaults (3 seeds, 300 texts, two hosts, two encoders) make 9,000 texts, and 36,000 with the
attacks, and want a data-centre GPU.
"""
import argparse, dataclasses, itertools, json, os, time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.rates import auroc, leave_one_seed_out, nulls_needed
from dew_nb.detection import scores_over_keys
from dew_nb.borrowed import agnostic_scheme, donor_scheme
from dew_nb.donors import coverage
from dew_nb.evaluation.attacks import WordDeletion
from dew_nb.evaluation.translation import RoundTrip, Translate
from dew_nb.evaluation.corpora import build_corpus
from dew_nb.evaluation.sampling import complete
from dew_nb.evaluation.likelihood import perplexity
from study_common import machine, read_texts, study_key, write_texts

ATTACKS = ('none', 'deletion30', 'french', 'round_trip')
HOSTS = ('smollm2-135m', 'gemma3-270m')
ENCODERS = ('minilm', 'use-multilingual')
CELL = ['host', 'table', 'encoder', 'seed']
MARKS = ('native', 'donor')
VIEWS = (('native', 'host'), ('donor', 'host'), ('donor', 'donor'))  # the mark, and who reads it

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('stages', nargs='+', choices=['texts', 'attacks', 'scores', 'merge'])
    ap.add_argument('--work', type=Path, required=True, help='folder of the parts')
    ap.add_argument('--out', type=Path, help='folder of the joined files, for merge')
    ap.add_argument('--hosts', nargs='+', default=HOSTS, help='each is the donor of the one before it')
    ap.add_argument('--write', nargs='+', help='which hosts this process is about; default: all')
    ap.add_argument('--encoders', nargs='+', default=['none', *ENCODERS],
                    help="which encoders this process is about; 'none': unmarked texts")
    ap.add_argument('--attacks', nargs='+', default=ATTACKS, choices=ATTACKS)
    ap.add_argument('--texts', type=int, default=300); ap.add_argument('--seeds', type=int, default=3)
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=300, help='texts that are written at a time')
    ap.add_argument('--preset', default='calibrated'); ap.add_argument('--lam', type=float, default=2.5)
    ap.add_argument('--keep', type=int, default=20, help='attacked texts of each kind that merge keeps')
    ap.add_argument('--device')
    a = ap.parse_args()
    if 'merge' in a.stages and a.out is None: ap.error('merge needs --out')
    return a

class Study:
    "Models, schemes and files of one process"
    def __init__(self, a):
        self.a, self.t0, self.cache = a, time.time(), {}
        self.config = DEWConfig.preset(a.preset, lam=a.lam)
        self.donor = dict(zip(a.hosts, [*a.hosts[1:], a.hosts[0]]))
        self.keys = [study_key(i, 'donors') for i in range(a.seeds)]
        a.work.mkdir(parents=True, exist_ok=True)
        torch.backends.cudnn.allow_tf32 = False    # convolutions of an encoder as exact as on a CPU
    def say(self, *x): print(f'{time.time()-self.t0:.0f} s:', *x, flush=True)
    def once(self, key, make):
        if key not in self.cache: self.cache[key] = make()
        return self.cache[key]
    def host(self, name):
        return self.once(('host', name), lambda: load_host(name, device=self.a.device))
    def encoder(self, name):
        return self.once(('encoder', name), lambda: load_encoder(name, device=self.a.device))
    def prompts(self):
        "The same texts for all hosts, cut by the tokenizer of the first"
        make = lambda: build_corpus(self.host(self.a.hosts[0]), split='evaluation', n=self.a.texts)
        return self.once('prompts', make).prompts
    def parts(self):
        "Hosts and encoders that this process is about"
        return itertools.product(self.a.write or self.a.hosts, self.a.encoders)
    def file(self, kind, h, e, ext='jsonl.gz'):
        preset = 'unmarked' if e == 'none' else self.a.preset
        return self.a.work/f'{kind}-{preset}-{h}-{e}.{ext}'
    def rows(self, kind, h, e):
        p = self.file(kind, h, e)
        return read_texts(p) if p.exists() else []
    def write(self, path, put):
        "Replace a file at once, so that an interrupted process leaves a whole one"
        part = path.with_name(path.name + '.part')
        put(part); os.replace(part, path)
    def scheme(self, h, table, e):
        "The scheme of a cell under the first key, 'reader' for the host-agnostic one; one is kept"
        def make():
            args = (self.encoder(e), self.keys[0], self.config)
            if table == 'native': return DEW.build(self.host(h), *args, progress=False)
            d = self.host(self.donor[h])
            if table == 'reader': return agnostic_scheme(d, *args, progress=False)
            return donor_scheme(self.host(h), d, *args, progress=False)
        if self.cache.get('scheme', (None,))[0] != (h, table, e):
            self.cache.pop('scheme', None)
            self.cache['scheme'] = ((h, table, e), make())
            self.say('scheme', h, table, e)
        return self.cache['scheme'][1]

def texts(s):
    "Unmarked texts of every host and seed, and the marked ones"
    a = s.a
    for h,e in s.parts():
        host, rows = s.host(h), s.rows('texts', h, e)
        done = {(r['table'], r['seed']) for r in rows}
        n = max(4, (1 << 29)//(a.tokens*len(host.embeddings)))     # 2 GiB of logits
        for table,seed in itertools.product(MARKS if e != 'none' else ('none',), range(a.seeds)):
            if (table, seed) in done: continue
            mark = None if e == 'none' else s.scheme(h, table, e).rekey(s.keys[seed]).processor
            out = complete(host, s.prompts(), a.tokens, seed=seed + 1000*(e == 'none'), processor=mark,
                           batch_size=a.batch, min_new_tokens=a.tokens)
            s.say('written', h, table, e, seed)
            p = perplexity(host, out, s.prompts(), batch_size=n).values
            rows += [dict(host=h, table=table, encoder=e, seed=seed, i=i, text=t,
                          ppl=None if np.isnan(q) else round(float(q), 3))
                     for i,(t,q) in enumerate(zip(out, p))]
            s.write(s.file('texts', h, e), lambda p: write_texts(p, rows))
            s.say('texts', h, table, e, seed, f'PPL {np.nanmedian(p):.1f}')

def attacks(s):
    "Every text under every attack"
    def model(name):                           # a cache for each process: parts don't wait for each other
        tag = '-'.join([*(s.a.write or s.a.hosts), *s.a.encoders, s.a.preset])
        return s.once(name, lambda: Translate(f'opus-mt-{name}-int8', device=s.a.device or 'auto',
                                              cache=s.a.work/f'{name}-{tag}.cache'))
    make = dict(deletion30=lambda: WordDeletion(.3), french=lambda: model('en-fr'),
                round_trip=lambda: RoundTrip(model('en-fr'), model('fr-en')))
    for h,e in s.parts():
        rows, out = s.rows('texts', h, e), s.rows('attacked', h, e)
        done = {(r['table'], r['seed'], r['attack']) for r in out}
        for n,seed in itertools.product(s.a.attacks, range(s.a.seeds)):
            group = [r for r in rows if r['seed'] == seed and (r['table'], seed, n) not in done]
            if n == 'none' or not group: continue
            new = make[n]()([r['text'] for r in group], seed=seed)
            out += [{c: r[c] for c in (*CELL, 'i')} | dict(attack=n, text=t) for r,t in zip(group, new)]
            s.write(s.file('attacked', h, e), lambda p: write_texts(p, out))
            s.say('attacked', h, e, seed, n)

def _frame(s, h, e):
    "All texts of a part, which has to be finished: scores are made once"
    t = [r | dict(attack='none') for r in s.rows('texts', h, e)] + s.rows('attacked', h, e)
    t = pd.DataFrame(t, columns=[*CELL, 'i', 'text', 'attack'])
    t = t[t['attack'].isin(s.a.attacks)]
    want = itertools.product(MARKS if e != 'none' else ('none',), range(s.a.seeds), s.a.attacks)
    has = t.groupby(['table', 'seed', 'attack'])['i'].nunique()
    if less := [(*k, int(has.get(k, 0))) for k in want if has.get(k, 0) != s.a.texts]:
        raise SystemExit(f"{h} {e}: {s.a.texts} texts each are expected, but this is there: {less}. "
                         "Run 'texts attacks' of this part first, with the same options.")
    return t

def _score(s, wm, keys, t, **cols):
    "Scores of the texts of a frame under keys"
    r = scores_over_keys(wm, [s.keys[k] for k in keys], t['text'].tolist(), progress=False)
    z = r['z'] if s.config.null == 'key' else r['z_iid']
    return pd.concat([pd.DataFrame(dict(cols, key=np.int8(k), seed=t['seed'].to_numpy(np.int8),
        attack=t['attack'].to_numpy(), i=t['i'].to_numpy(np.int16), score=np.float32(r['score'][j]),
        z=np.float32(z[j]), n_scored=np.int16(r['n_scored']))) for j,k in enumerate(keys)])

def scores(s):
    "Marked texts under their key, unmarked ones under all, by the scheme's detector and the host-agnostic one"
    for h,e in s.parts():
        if e == 'none': continue
        path, note = s.file('scores', h, e, 'parquet'), s.file('info', h, e, 'json')
        out = [pd.read_parquet(path)] if path.exists() else []
        done = set(zip(out[0]['table'], out[0]['reader'])) if out else set()
        T, U = _frame(s, h, e), _frame(s, h, 'none')
        for table,reader in VIEWS:
            if (table, reader) in done: continue
            wm = s.scheme(h, table if reader == 'host' else 'reader', e)
            cols = dict(host=h, table=table, encoder=e, reader=reader)
            new = [_score(s, wm, range(s.a.seeds), U, marked=False, **cols)]
            for k in range(s.a.seeds):
                new.append(_score(s, wm, [k], T[(T['table'] == table) & (T['seed'] == k)], marked=True, **cols))
            out.append(pd.concat(new, ignore_index=True))
            if (table, reader) == ('donor', 'host'):
                rep, m = wm.parts['report'], wm.parts['meta']
                note.write_text(json.dumps(dict(donor=m['donor'], counts=rep.counts(),
                    **coverage(rep, s.host(h).tokenizer), digests={k: v for k,v in m.items() if 'digest' in k})))
            s.write(path, lambda p: pd.concat(out).to_parquet(p, compression='zstd', index=False))
            z = out[-1].query("attack == 'none'").groupby('marked')['z'].mean()
            s.say('scores', h, table, e, reader, f'mean z, marked {z[True]:.2f}, unmarked {z[False]:.2f}')

def merge(s):
    "The parts as four files; of attacked texts the first few"
    a = s.a
    a.out.mkdir(parents=True, exist_ok=True)
    es = [e for e in a.encoders if e != 'none']
    def text(h, e): return [r | dict(attack='none') for r in s.rows('texts', h, e)] + [
        r for r in s.rows('attacked', h, e) if r['i'] < a.keep]
    D = pd.concat([pd.read_parquet(s.file('scores', h, e, 'parquet')) for h in a.hosts for e in es])
    n = D.groupby(['host', 'encoder', 'table', 'reader']).size()       # unmarked under all keys, marked under one
    if (n != len(a.attacks)*a.texts*a.seeds*(a.seeds + 1)).any() or len(n) != len(a.hosts)*len(es)*len(VIEWS):
        raise SystemExit(f"Scores are missing, or of other options; run 'scores' in a new folder:\n{n.to_string()}")
    write_texts(a.out/f'donors_{a.preset}_texts.jsonl.gz', [r for h in a.hosts for e in es for r in text(h, e)])
    write_texts(a.out/'donors_unmarked_texts.jsonl.gz', [r for h in a.hosts for r in text(h, 'none')])
    D.to_parquet(a.out/f'donors_{a.preset}_scores.parquet', compression='zstd', index=False)
    notes = {(h, e): json.loads(s.file('info', h, e, 'json').read_text()) for h in a.hosts for e in es}
    info = {h: notes[h, es[0]] for h in a.hosts}                       # all encoders have the same tokens …
    digests = {e: notes[a.hosts[0], e]['digests'].get('encoder_digest') for e in es}
    for v in info.values(): v['digests'].pop('encoder_digest', None)   # … but not the same digest
    own = ('work', 'out', 'stages', 'write', 'device')
    (a.out/f'donors_{a.preset}.json').write_text(json.dumps(dict(
        command='python tools/study_donors.py texts attacks scores merge --work WORK --out nbs/studies/data'
                + (f' --preset {a.preset}' if a.preset != 'calibrated' else ''),
        settings={k: v for k,v in vars(a).items() if k not in own}, config=dataclasses.asdict(s.config),
        coverage=info, encoders=digests, **machine()), indent=1)+'\n')
    T = pd.DataFrame([r for h in a.hosts for e in es for r in s.rows('texts', h, e)])
    print(table(D, T).to_string(index=False))

def table(D, T, fprs=(.01, .05)):
    "TPR at English thresholds of the other seeds; AUROC against unmarked text after the same attack"
    rows, half = [], lambda x: (max(x)-min(x))/2
    for (h,tab,e,reader),g in D.groupby(['host', 'table', 'encoder', 'reader'], sort=False):
        g = g[g['marked'] | (g['key'] == g['seed'])]
        by = lambda m,n: {k: v['z'].to_numpy() for k,v in
                          g[(g['marked'] == m) & (g['attack'] == n)].groupby('key')}
        names = [n for n in ATTACKS if n in set(g['attack'])]
        hit, U = [n for n in names if n != 'none'], by(False, 'none')
        few = sum(map(len, U.values())) - max(map(len, U.values()))
        fs = [f for f in fprs if few >= nulls_needed(f)]               # a small trial run has no 1% threshold
        L = leave_one_seed_out(by(True, 'none'), U, fs,
                               {n: by(True, n) for n in hit}, {n: by(False, n) for n in hit})
        own = (T['host'] == h) & (T['table'] == tab) & (T['encoder'] == e)
        ppl = T[own].groupby('seed')['ppl'].median().tolist()
        for n in names:
            A = [auroc(by(True, n)[k], by(False, n)[k]).value for k in by(True, n)]
            row = dict(host=h, table=tab, encoder=e, reader=reader, attack=n, auroc=np.mean(A),
                       auroc_half=half(A), ppl=np.mean(ppl), ppl_half=half(ppl))
            for f in fs:
                x = L[(L['attack'] == n) & (L['nominal'] == f) & (L['null'] == 'unattacked')]
                row |= {f'tpr{100*f:g}': x['tpr'].mean(), f'tpr{100*f:g}_half': half(x['tpr']),
                        f'fpr{100*f:g}': x['fpr'].mean()}
            rows.append(row)
    return pd.DataFrame(rows).round(4)

def main():
    s = Study(arguments())
    for stage in s.a.stages: globals()[stage](s)

if __name__ == '__main__': main()
