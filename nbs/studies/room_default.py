"""What room weights would do to the default: every text of the preset `standard` on the larger host, read with all positions alike and with each packaged table of room.

    dew_eval nbs/studies/real.toml --out results/real                                                          # both on a GPU
    dew_eval nbs/studies/contexts_chat.toml nbs/studies/contexts_rewriting.toml --out results/contexts_chat
    python nbs/studies/room_default.py --results results/real results/contexts_chat --out nbs/studies/data     # minutes on a CPU

How soft `everyday` is was chosen on the texts of the first key alone, by a rule: of 0, .1, .2, .3 and .5 added to the weights of `chat`, the least with which no column loses more than .01:

    python nbs/studies/room_default.py --results results/real results/contexts_chat --soft 0 .1 .2 .3 .5 --out nbs/studies/data      # writes room_soft.parquet and room_soft.json

Marked texts and unmarked ones, edited alike, under their three keys. Writes room_default.parquet (the share with p ≤ 5%, 1% and 0.1% for each study, key, edit and reader, and for pairs of readers how many texts the one detects
and the other does not) and room_default.json (settings, machine).
"""
import argparse, json, time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.texts.content import machine
from dew_nb.mark.room import RoomTable
from dew_nb.models.tokenization import TokenUnits

NAME, TABLES, LEVELS = 'DEW standard', ('packaged', 'chat', 'everyday'), (.05, .01, .001)

def p_values(wm, texts:list) -> np.ndarray:
    "P-values of texts as they are"
    return np.array([r.p_value for r in wm.detector(reading='raw').detect(texts, progress=False)])

def counts(p:dict) -> dict:
    "Shares by reader and level; and at 1% how many texts only one of two readers detects"
    out = {f'{r} {a:g}': float((x <= a).mean()) for r,x in p.items() for a in LEVELS}
    for t in TABLES: out |= {f'only {t}': int(((p[t] <= .01) & (p['alike'] > .01)).sum()), f'not {t}': int(((p[t] > .01) & (p['alike'] <= .01)).sum())}
    return out

def stamp(a, name, options='', **more):
    "What a file of figures was made with, beside it"
    command = f'python nbs/studies/room_default.py --results results/real results/contexts_chat {options}--out nbs/studies/data'
    (a.out/f'{name}.json').write_text(json.dumps(dict(command=command, **more), indent=1) + '\n')

def choose(a, s, chat, host, enc):
    "TPR of the first key's marked texts by how soft the weights are"
    readers, rows = {'alike': s.watermark.with_room(None)} | {f'{c:g}': s.watermark.with_room(replace(chat, soft=c)) for c in a.soft}, []
    for folder in a.results:
        r = load_results(folder)
        t = r.texts[(r.texts['seed'] == 0) & (r.texts['source'] == NAME)]
        for attack,d in t.groupby('attack', observed=True):
            p = {k: p_values(w, d.sort_values('i')['text'].tolist()) for k,w in readers.items()}
            rows.append(dict(study=r.study['name'], attack=attack, texts=len(d), **{k: float((x <= .01).mean()) for k,x in p.items()}))
            print(rows[-1], flush=True)
    pd.DataFrame(rows).to_parquet(a.out/'room_soft.parquet', index=False, compression='zstd')
    stamp(a, 'room_soft', f'--soft {" ".join(f"{c:g}" for c in a.soft)} ', table=repr(chat), **machine(host, enc))

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, nargs='+', required=True, help='folders of dew_eval')
    ap.add_argument('--host', default='qwen2.5-coder-1.5b-instruct', help='an asset')
    ap.add_argument('--soft', type=float, nargs='+', default=(), help='only choose among these, on the first key')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    t0, rows = time.time(), []
    host, enc = load_host(a.host, device='cpu'), load_encoder(device='cpu')
    tables = {t: RoomTable.packaged(TokenUnits(host.tokenizer), t) for t in TABLES}
    first = None
    for seed in (0, 1, 2):
        s = first = find_scheme('dew')(host, enc, seed, name=NAME, preset='standard') if first is None else first.rekey(seed)
        if a.soft: return choose(a, s, tables['chat'], host, enc)
        readers = dict(alike=s.watermark.with_room(None)) | {t: s.watermark.with_room(x) for t,x in tables.items()}
        for folder in a.results:
            r = load_results(folder)
            t = r.texts[(r.texts['seed'] == seed) & r.texts['source'].isin([NAME, 'none'])]
            for (source,attack),d in t.groupby(['source', 'attack'], observed=True):
                texts = d.sort_values('i')['text'].tolist()
                rows.append(dict(study=r.study['name'], seed=seed, source='unmarked' if source == 'none' else 'marked', attack=attack, texts=len(texts), **counts({k: p_values(w, texts) for k,w in readers.items()})))
            print(f'{time.time()-t0:5.0f} s: {folder.name}, key {seed}', flush=True)
    d = pd.DataFrame(rows)
    d.to_parquet(a.out/'room_default.parquet', index=False, compression='zstd')
    stamp(a, 'room_default', tables={k: repr(x) for k,x in tables.items()}, **machine(host, enc))
    print(d.groupby(['study', 'source', 'attack'])[[f'{r} 0.01' for r in ('alike', *TABLES)]].mean().round(3).to_string())

if __name__ == '__main__': main()
