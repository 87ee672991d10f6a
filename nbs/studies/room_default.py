"""What room weights do to the default: every text of the preset `standard`, read with all positions alike and with each packaged table of room.

    dew_eval nbs/studies/real.toml --out results/real                                                          # all on a GPU
    dew_eval nbs/studies/contexts_chat.toml nbs/studies/contexts_rewriting.toml --out results/contexts_chat
    dew_eval nbs/studies/schemes.toml --out results/schemes
    python nbs/studies/room_default.py --results results/real results/contexts_chat results/schemes --out nbs/studies/data     # half an hour on a CPU

Marked texts and unmarked ones, edited alike, under their three keys. `soft` is what `everyday` was before: the weights of `chat` with .3 added to each. Writes room_default.parquet (the share with p ≤ 5%, 1% and 0.1% for each study,
key, edit and reader, and for pairs of readers how many texts the one detects and the other does not), room_known.parquet (for each text of the first key the share of its pairs of tokens that the table `chat` knows) and room_default.json
(settings, machine).
"""
import argparse, hashlib, json, time
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.texts.content import machine
from dew_nb.mark.room import STAGES, RoomTable
from dew_nb.models.tokenization import TokenUnits

NAME, TABLES, LEVELS = 'DEW standard', ('packaged', 'chat', 'soft', 'everyday'), (.05, .01, .001)
EDITS = 'none', 'deletion-0.1', 'deletion-0.3', 'deletion-0.5', 'paraphrase', 'round trip', 'copy_paste-0.1', 'copy_paste-0.25', 'copy_paste-0.5', 'German', 'French'

def p_values(wm, texts:list) -> np.ndarray:
    "P-values of texts as they are"
    return np.array([r.p_value for r in wm.detector(reading='raw').detect(texts, progress=False)])

def counts(p:dict) -> dict:
    "Shares by reader and level; and at 1% how many texts only one of two readers detects"
    out = {f'{r} {a:g}': float((x <= a).mean()) for r,x in p.items() for a in LEVELS}
    for t in TABLES: out |= {f'only {t}': int(((p[t] <= .01) & (p['alike'] > .01)).sum()), f'not {t}': int(((p[t] > .01) & (p['alike'] <= .01)).sum())}
    return out

class SoftTable(RoomTable):
    "A table with .3 added to every weight: positions differ less"
    def expected(self, ids, pos): return super().expected(ids, pos) + .3
    @cached_property
    def digest(self): return hashlib.sha256(b''.join([repr(self.base).encode(), *(self.deltas[s].tobytes() for s in STAGES), b'0.3'])).hexdigest()[:16]

def tables(host) -> dict:
    "Tables by the name of the reader"
    named = {t: RoomTable.packaged(TokenUnits(host.tokenizer), t) for t in TABLES if t != 'soft'}
    chat = named['chat']
    return named | dict(soft=SoftTable(chat.base, chat.deltas, chat.codes, chat.about))

def known(table:RoomTable, tok, text:str) -> float:
    "Share of known pairs of a text"
    ids = np.array(tok(text, add_special_tokens=False)['input_ids'])
    return table.known(ids, np.arange(len(ids))) if len(ids) else 0.

def read_study(folder:Path, enc) -> tuple:
    "Rows of both files for one folder"
    r = load_results(folder)
    host, t = load_host(r.study['hosts'][0], device='cpu'), r.texts[r.texts['source'].isin([NAME, 'none', 'human']) & r.texts['attack'].isin(EDITS)]
    of, first, rows, shares = tables(host), None, [], []
    for seed in (0, 1, 2):
        s = first = find_scheme('dew')(host, enc, seed, name=NAME, preset='standard') if first is None else first.rekey(seed)
        readers = dict(alike=s.watermark.with_room(None)) | {n: s.watermark.with_room(x) for n,x in of.items()}
        for (source,attack),d in t[t['seed'] == seed].groupby(['source', 'attack'], observed=True):
            texts, at = d.sort_values('i')['text'].tolist(), dict(study=r.study['name'], attack=attack, seed=seed)
            if seed == 0: shares += [at | dict(source=source, i=i, share=known(of['chat'], host.tokenizer, x)) for i,x in enumerate(texts)]
            if source != 'human': rows.append(at | dict(source='unmarked' if source == 'none' else 'marked', texts=len(texts), **counts({k: p_values(w, texts) for k,w in readers.items()})))
        print(f'{folder.name}, key {seed}', flush=True)
    return rows, shares, {n: repr(x) for n,x in of.items()}

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, nargs='+', required=True, help='folders of dew_eval')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    t0, enc = time.time(), load_encoder(device='cpu')
    rows, shares, said = (list(x) for x in zip(*(read_study(f, enc) for f in a.results)))
    d, k = (pd.DataFrame(sum(x, [])) for x in (rows, shares))
    d.to_parquet(a.out/'room_default.parquet', index=False, compression='zstd')
    k.astype(dict(share='float32')).to_parquet(a.out/'room_known.parquet', index=False, compression='zstd')
    command = f'python nbs/studies/room_default.py --results {" ".join(f"results/{f.name}" for f in a.results)} --out nbs/studies/data'
    (a.out/'room_default.json').write_text(json.dumps(dict(command=command, tables=said[0], seconds=round(time.time()-t0), **machine(encoder=enc)), indent=1) + '\n')
    print(d.groupby(['study', 'source', 'attack'])[[f'{r} 0.01' for r in ('alike', *TABLES)]].mean().round(3).to_string())

if __name__ == '__main__': main()
