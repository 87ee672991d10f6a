"""What edits of characters do to the mark, read raw and read plain.

    python nbs/studies/formatting.py --out nbs/studies/data

The marked texts are those that the main table has stored (calibrated preset, λ = 2.5, three keys).
Two files come of it: formatting.parquet and formatting.json. Parts:
  edited     marked texts as written and after each edit of characters, by a detector that reads raw
             and by one that lets the text decide
  host       marked texts as written, wherever the reading differs from the raw one, and some
             with curly quotes read both ways
  innocent   human and unmarked texts after an edit, read as the text suggests, under many keys
  writes     how many texts of hosts and people have curly quotes, or are read otherwise than raw, and how
             many have an odd layout: of the first hundred of every unit, with --writes results (the folders
             of the runs of main.toml, cool.toml and donors.toml); without, the stored counts stay
One core takes a quarter of an hour.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.evaluation.attacks.characters import EDITS, CharacterEdit
from dew_nb.evaluation.texts.content import machine, study_key
from dew_nb.evaluation.schemes.base import seed_key
from dew_nb.evaluation.studies.store import load_results
from dew_nb.read.layout import LAYOUTS, odd_case
from dew_nb.read.normalization import NORMALISATIONS, normalise, quotes

SOURCE = 'DEW calibrated lam=2.5'
SPARSE = dict(emphasis=.25, html_emphasis=.25, full_width=.25)  # one word in four; others hit all
ORDER = sorted(EDITS, key=lambda e: e in ('full_width', 'homoglyphs'))   # the long ones last

def attack(edit): return CharacterEdit(edit, SPARSE.get(edit, 1.))

class Bench:
    "Stored texts, and a detector for each of their keys that scores a text once"
    def __init__(self, a):
        self.a, self.t0, self.known, self.rows = a, time.time(), {}, []
        t = load_results(a.data/'evaluation').texts
        self.texts = t[(t['attack'] == 'none') & t['encoder'].isin(['', 'minilm'])]
        self.host, self.enc = load_host(), load_encoder()
        config = DEWConfig.preset('calibrated', lam=2.5)
        self.wm = DEW.build(self.host, self.enc, seed_key(0), config, progress=False)
        self.raw = [self.wm.rekey(seed_key(s)).detector(reading='raw') for s in range(3)]
    def say(self, *x): print(f'{time.time()-self.t0:.0f} s:', *x, flush=True)
    def of(self, source, n):
        "The first n texts of a source, in turn over the keys"
        t = self.texts[self.texts['source'] == source].drop_duplicates(['seed', 'i'])
        return t.sort_values(['i', 'seed']).head(n)
    def score(self, texts, seeds):
        "Results of texts as they are, each under its key"
        for s in sorted(set(seeds)):
            new = [t for t,k in zip(texts, seeds) if k == s and (t, s) not in self.known]
            new = list(dict.fromkeys(new))
            for t,r in zip(new, self.raw[s].detect(new, progress=False)): self.known[t, s] = r
        return [self.known[t, s] for t,s in zip(texts, seeds)]
    def add(self, part, edit, reading, frame, texts):
        "Rows for texts in one reading: plain texts are read as they are"
        read = [normalise(t) if reading == 'auto' else None for t in texts]
        seeds = frame['seed'].tolist()
        found = self.score([p.text if p else t for p,t in zip(read, texts)], seeds)
        for r,p,s,i in zip(found, read, seeds, frame['i']):
            self.rows.append(dict(part=part, edit=edit, reading=reading, seed=s, i=i, z=r.z, p_value=r.p_value,
                                  n_scored=r.n_scored, undone=' '.join(p.kinds) if p else ''))
        self.say(part, edit, reading, 'mean z', round(float(np.mean([r.z for r in found])), 2))
        self.save()
    def save(self):
        "What there is so far"
        rows = pd.DataFrame(self.rows).astype(dict(z='float32', p_value='float32'))
        rows.to_parquet(self.a.out/'formatting.parquet', index=False)

def edited(b):
    "As written, and after each edit"
    f = b.of(SOURCE, b.a.marked)
    texts = f['text'].tolist()
    for edit in ('none', *ORDER):
        now = texts if edit == 'none' else attack(edit)(texts)
        for reading in ('raw', 'auto'): b.add('edited', edit, reading, f, now)

def host(b):
    "Texts as written whose reading differs, and some with curly quotes, raw and straightened"
    f = b.of(SOURCE, 300)
    changed = f[[bool(normalise(t).kinds) for t in f['text']]].head(b.a.changed)
    for reading in ('raw', 'auto'): b.add('host', 'none', reading, changed, changed['text'].tolist())
    curly = f[[bool(quotes(t)) for t in f['text']]].head(b.a.changed)
    b.add('host', 'curly', 'raw', curly, curly['text'].tolist())
    straight = [normalise(t, dict(quotes=0.)).text for t in curly['text']]
    b.add('host', 'curly', 'straight', curly, straight)
    counts = dict(texts=len(f), changed=sum(bool(normalise(t).kinds) for t in f['text']),
                  curly=sum(bool(quotes(t)) for t in f['text']))
    return counts

def innocent(b):
    "Unmarked texts after an edit, read as each suggests, under many keys"
    n = b.a.innocent//2
    f = pd.concat([b.of('human', n), b.of('none', n)])
    edits = [list(EDITS)[k % len(EDITS)] for k in range(len(f))]
    texts = [normalise(attack(e)(t)).text for e,t in zip(edits, f['text'])]
    keys = [study_key(k, 'formatting') for k in range(b.a.keys)]
    z = scores_over_keys(b.wm, keys, texts, progress=False)['z']
    b.say('innocent', z.shape, 'mean z', z.mean().round(3), 'sd', z.std().round(3))
    for k,row in enumerate(z):
        for s,i,e,v in zip(f['source'], f['i'], edits, row):
            b.rows.append(dict(part='innocent', edit=e, reading='auto', seed=k, i=i, z=v, source=s))

def share(texts):
    "Percentage of texts with curly quotes, and of those read otherwise than raw, by kind"
    undone = [normalise(x).kinds for x in texts]
    each = {k: 100*float(np.mean([k in u for u in undone])) for k in NORMALISATIONS if k != 'quotes'}
    return dict(texts=len(texts), curly=100*float(np.mean([bool(quotes(x)) for x in texts])),
                changed=100*float(np.mean([bool(u) for u in undone]))) | each

def who_writes(t, gemma):
    "The shares of what hosts and people write: unattacked texts of the main table, and of the other host"
    who = {w: t['text'][(t['source'] == 'human') == (w == 'human')].drop_duplicates().tolist() for w in ('SmolLM2', 'human')}
    return {'SmolLM2': share(who['SmolLM2']), 'Gemma 3': share(gemma), 'human': share(who['human'])}

def layouts(t):
    "How many unattacked texts of hosts and of people have an odd layout, by kind"
    t = t.drop_duplicates('text')
    of = dict(hosts=t['text'][t['source'] != 'human'], human=t['text'][t['source'] == 'human'])
    kinds = LAYOUTS | dict(lower=lambda x: odd_case(x) == 'lower')
    return {w: dict(texts=len(x)) | {k: sum(bool(f(y)) for y in x) for k,f in kinds.items()} for w,x in of.items()}

def writes(a):
    "Counted now, or what was counted before"
    if not a.writes:
        old = json.loads((a.data/'formatting.json').read_text())
        return {k: old[k] for k in ('writes', 'layouts')}
    def texts(name): return load_results(a.writes/name).texts.query("attack == 'none'")
    d, t = texts('donors'), [texts(n).query('i < 100') for n in ('evaluation', 'cool')]
    gemma = d['text'][d['host'].str.contains('gemma') & (d['source'] != 'none')].tolist()
    return dict(writes=who_writes(t[0], gemma), layouts=layouts(pd.concat(t)))

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--data', type=Path, default=Path(__file__).parent/'data', help='stored texts')
    ap.add_argument('--writes', type=Path, metavar='FOLDER', help='count quotes, kinds and layouts in the texts of FOLDER/evaluation, FOLDER/cool and FOLDER/donors, too')
    ap.add_argument('--marked', type=int, default=12, help='marked texts for each edit')
    ap.add_argument('--changed', type=int, default=12, help='texts of the host, read both ways')
    ap.add_argument('--innocent', type=int, default=22)
    ap.add_argument('--keys', type=int, default=100)
    return ap.parse_args()

def main():
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    b = Bench(a)
    counts = host(b)
    innocent(b)
    edited(b)
    (a.out/'formatting.json').write_text(json.dumps(dict(
        command='python nbs/studies/formatting.py --out nbs/studies/data', source=SOURCE, rates=SPARSE,
        settings={k: v for k,v in vars(a).items() if not isinstance(v, Path)}, host_texts=counts, **writes(a),
        tokenizer_digest=b.host.tokenizer_digest, **machine(b.host, b.enc)), indent=1) + '\n')

if __name__ == '__main__': main()
