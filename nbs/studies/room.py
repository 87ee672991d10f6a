"""Room weights on low-entropy text: TPR and FPR with and without them. Makes the packaged table too. Read by "Room weights".

    python nbs/studies/room.py write --what marked --batches 4 --out room        # answers under four keys, 32 each
    python nbs/studies/room.py write --what unmarked --batches 1 --out room      # to learn from: after other prompts
    python nbs/studies/room.py note --texts 100 --out room                       # the host notes room, on these and on stored texts
    python nbs/studies/room.py table --out room                                  # writes dew_nb/data/room.safetensors
    python nbs/studies/room.py fpr --out room                                    # writes nbs/studies/data/room_fpr.parquet
    python nbs/studies/room.py rates --out room                                  # writes the rest of nbs/studies/data/room*
    python nbs/studies/room.py chat --out room                                   # the same texts with room='chat': nbs/studies/data/room_chat*.parquet

Every step takes up what is there, and can be interrupted. Learnt from: `unmarked-*` (SmolLM2-135M, temperature 0.7, top-p 0.9) and unmarked
texts of the study "cool" (temperature 0.7, continuations of reviews). Tested on answers (preset 'standard') and on the tournament's texts of the
study "cool" after prompts that the table has not seen. Writes room.parquet (a row a text, attack and reading), room_fpr.parquet (a row an unmarked text, key and reading), room.json, room_texts.jsonl.xz.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.evaluation.attacks.base import delete_words
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.texts.content import content_seed, machine, read_texts, study_key, write_texts
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.mark.room import RoomTable
from dew_nb.models.tokenization import TokenUnits
from dew_nb.read.host_view import Sampler
from dew_nb.read.room_learning import RoomNotes, note_room, room_table

HERE = Path(__file__).parent
SAMPLER = dict(temperature=.7, top_p=.9, no_repeat_ngram_size=0, min_new_tokens=50)
BATCH, TOKENS = 32, 150                       # texts of a batch, tokens of a text
ATTACKS = {'none': 0., 'deletion-0.1': .1, 'deletion-0.3': .3, 'first half': 0.}
KINDS = 'questions', 'movie-reviews', 'questions', 'topics'          # to learn from, in turn, after two batches of questions

def batch_prompts(host, what, i):
    "Prompts of one batch: a kind, a split and 32 strings; no prompt is in two batches"
    if what == 'marked' or i < 2: kind, split, place = 'questions', 'evaluation', i if what == 'marked' else i + 5
    else:
        kind, split = KINDS[(i-2) % len(KINDS)], 'calibration'
        place = [j for j in range(2, i+1) if KINDS[(j-2) % len(KINDS)] == kind].index(i)
    corpus = build_corpus(host, kind, split, n=(place+1)*BATCH)
    return kind, split, list(corpus.prompts[-BATCH:])

def standard(host, enc, **kw): return DEW.build(host, enc, study_key(0, 'room'), DEWConfig.preset('standard', **dict(room=None) | kw), progress=False)

def write(a):
    "Texts of each batch that is not there yet, one file a batch"
    host = load_host()
    wm = standard(host, load_encoder())
    for i in range(a.batches):
        path = a.out/f'{a.what}-{i:02}.jsonl.gz'
        if path.is_file(): continue
        kind, split, prompts = batch_prompts(host, a.what, i)
        own = wm.rekey(study_key(i, 'room')) if a.what == 'marked' else wm
        texts = own.generate(prompts, TOKENS, seed=1000*(a.what == 'marked') + i, mark=a.what == 'marked', batch_size=BATCH, **SAMPLER)
        write_texts(path, [dict(kind=kind, split=split, key=i if a.what == 'marked' else -1, prompt=p, text=t) for p,t in zip(prompts, texts)])

def cool_texts(source):
    "Texts of one scheme in the study `cool`, as they were written"
    t = load_results(HERE/'data'/'cool').texts
    return t[(t['source'] == source) & (t['attack'] == 'none')].sort_values(['seed', 'i'])

def note(a, step=10):
    "What the host notes, ten texts a file"
    from dew_nb.mark.generation import ChatPrompt
    host, rows = load_host(), []
    for f in sorted(a.out.glob('unmarked-*.jsonl.gz')):
        rows += [(ChatPrompt(r['prompt']) if r['kind'] == 'questions' else r['prompt'], r['text']) for r in read_texts(f)]
    cool = cool_texts('none')
    cool = cool[cool['seed'] == 0]                                          # the prompts of other seeds are kept for the test
    rows = [(f'own-{i:03}', rows[i:i+step]) for i in range(0, len(rows), step)] + [
        (f'cool-{i:03}', list(zip(cool['prompt'], cool['text']))[i:i+step]) for i in range(0, min(len(cool), a.texts), step)]
    for name,some in rows:
        path = a.out/f'notes-{name}.npz'
        if path.is_file(): continue
        prompts, texts = zip(*some)
        n = note_room(host, list(texts), list(prompts), Sampler(.7, .9), batch_size=5, progress=False)
        np.savez(path, lengths=[len(x) for x in n.ids], ids=np.concatenate(n.ids), room=np.concatenate(n.room), own=np.concatenate(n.own))

def read_notes(folder, which='*'):
    "All notes of a folder as one"
    out = RoomNotes([], [], [])
    for f in sorted(folder.glob(f'notes-{which}.npz')):
        x = np.load(f)
        out += RoomNotes(*(np.split(x[k], np.cumsum(x['lengths'])[:-1]) for k in ('ids', 'room', 'own')))
    return out

def table(a):
    "Fit and store the packaged table"
    host, notes = load_host(), read_notes(a.out)
    files = {k: len(list(a.out.glob(f'notes-{k}-*.npz'))) for k in ('own', 'cool')}
    about = dict(temperature=.7, top_p=.9, texts=len(notes.ids), command='python nbs/studies/room.py table', files=files, **machine(host))
    t = room_table(host, TokenUnits(host.tokenizer), notes, {k: v for k,v in about.items() if k not in ('host', 'host_digest')})
    print(t, t.save(a.table))

def both(wm, texts, table, **columns):
    "A row for each text and reading: without and with weights"
    out = []
    for name,w in (('plain', wm), ('room', wm.with_room(table))):
        for i,r in enumerate(w.detector(reading='raw').detect_iter(texts)):
            out.append(dict(columns, i=i, reading=name, z=r.z, p_value=r.p_value, l_eff=r.l_eff, n_scored=r.n_scored, judged=r.judged))
    return out

def marked_sets(a, host, enc):
    "(set, key, watermark, texts) of all marked texts"
    wm = standard(host, enc)
    for f in sorted(a.out.glob('marked-*.jsonl.gz')):
        rows = read_texts(f)
        yield 'answers', rows[0]['key'], wm.rekey(study_key(rows[0]['key'], 'room')), [r['text'] for r in rows]
    kind, params = load_results(HERE/'data'/'cool').study['schemes']['DEW tournament']
    t = cool_texts('DEW tournament')
    learnt = set(cool_texts('none').query('seed == 0')['prompt'])
    t = t[~t['prompt'].isin(learnt)]
    for seed,some in t.groupby('seed'):
        yield 'reviews', int(seed), find_scheme(kind)(host, enc, int(seed), **params).watermark, some['text'].tolist()

def unmarked_sets(a, host):
    "Unmarked texts by kind"
    human = build_corpus(host, 'movie-reviews', 'evaluation', n=60, n_text=TOKENS).human
    own = [r['text'] for f in sorted(a.out.glob('unmarked-*.jsonl.gz')) for r in read_texts(f)]
    cool = cool_texts('none').query('seed == 2')['text'].tolist()
    return {'human reviews': list(human), 'reviews of the host': cool[:60], 'answers of the host': own[:60]}

def fpr(a):
    "Unmarked texts under many keys"
    t0, host, out = time.time(), load_host(), []
    wm, table, sets = standard(host, load_encoder()), RoomTable.packaged(TokenUnits(host.tokenizer)), unmarked_sets(a, host)
    few = wm.narrow(np.concatenate(wm.contexts.units.cut(sum(sets.values(), []))[0]))
    for k in range(a.keys):
        own = few.rekey(study_key(k, 'room fpr'))
        for kind,texts in sets.items(): out += [dict(r, kind=kind) for r in both(own, texts, table, key=k)]
        print(f'{time.time()-t0:.0f} s: key {k}', flush=True)
        write_frame(HERE/'data'/'room_fpr.parquet', pd.DataFrame(out))

def edited(text, attack, rate):
    "A text after an attack"
    if attack == 'first half': return text[:len(text)//2]
    return delete_words(text, rate, content_seed('room', attack, text)) if rate else text

def rates(a):
    "Marked texts under their keys"
    t0, host, enc = time.time(), load_host(), load_encoder()
    table = RoomTable.packaged(TokenUnits(host.tokenizer))
    rows, kept = [], []
    for name,key,wm,texts in marked_sets(a, host, enc):
        for attack,rate in ATTACKS.items():
            new = [edited(t, attack, rate) for t in texts]
            rows += both(wm, new, table, set=name, key=key, attack=attack)
        kept += [dict(set=name, key=key, i=i, text=t) for i,t in enumerate(texts)] if name == 'answers' else []
        print(f'{time.time()-t0:.0f} s: {name} {key}', flush=True)
    out = HERE/'data'
    write_frame(out/'room.parquet', pd.DataFrame(rows))
    write_texts(out/'room_texts.jsonl.xz', kept)
    stamp = dict(command='python nbs/studies/room.py rates --out room', sampler=SAMPLER, tokens=TOKENS, keys=a.keys, table=table.digest, about=table.about,
                 config=DEWConfig.preset('standard', room=None).to_flat(), seconds=round(time.time()-t0), **machine(host, enc))
    (out/'room.json').write_text(json.dumps(stamp, indent=1) + '\n')

def with_chat(wm, texts, table, **columns): return [dict(r, reading='chat') for r in both(wm, texts, table, **columns) if r['reading'] == 'room']

def chat(a):
    "The stored answers, the reviews and the unmarked texts, read with the table of a chat model"
    t0, host, enc = time.time(), load_host(), load_encoder()
    table, wm, rows = RoomTable.packaged(TokenUnits(host.tokenizer), 'chat'), standard(host, enc), []
    stored = pd.DataFrame(read_texts(HERE/'data'/'room_texts.jsonl.xz'))
    sets = [('answers', k, wm.rekey(study_key(k, 'room')), d.sort_values('i')['text'].tolist()) for k,d in stored.groupby('key')]
    sets += [x for x in marked_sets(a, host, enc) if x[0] == 'reviews']
    for name,key,own,texts in sets:
        for attack,rate in ATTACKS.items(): rows += with_chat(own, [edited(t, attack, rate) for t in texts], table, set=name, key=int(key), attack=attack)
        print(f'{time.time()-t0:.0f} s: {name} {key}', flush=True)
    write_frame(HERE/'data'/'room_chat.parquet', pd.DataFrame(rows))
    sets, out = {k: v for k,v in unmarked_sets(a, host).items() if v}, []
    few = wm.narrow(np.concatenate(wm.contexts.units.cut(sum(sets.values(), []))[0]))
    for k in range(a.keys):
        for kind,texts in sets.items(): out += [dict(r, kind=kind) for r in with_chat(few.rekey(study_key(k, 'room fpr')), texts, table, key=k)]
        print(f'{time.time()-t0:.0f} s: key {k}', flush=True)
        write_frame(HERE/'data'/'room_chat_fpr.parquet', pd.DataFrame(out))

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('do', choices=['write', 'note', 'table', 'fpr', 'rates', 'chat'])
    ap.add_argument('--what', choices=['marked', 'unmarked'])
    ap.add_argument('--batches', type=int, default=5)
    ap.add_argument('--texts', type=int, default=100, help='texts of the study "cool" to note room on')
    ap.add_argument('--keys', type=int, default=20)
    ap.add_argument('--table', type=Path, default=HERE.parents[1]/'dew_nb'/'data'/'room.safetensors')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

if __name__ == '__main__':
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    dict(write=write, note=note, table=table, fpr=fpr, rates=rates, chat=chat)[a.do](a)
