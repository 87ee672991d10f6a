"""The table of room that ships as room='assistant': learnt from many answers of a chat model, with stages that look at the next token

    python nbs/studies/room_assistant.py write --work results/room_assistant                     # on a GPU, six minutes: requests, answers, what the host noted
    python nbs/studies/room_assistant.py learn --work results/room_assistant                     # writes dew_nb/data/room_assistant.safetensors; a CPU will do
    python nbs/studies/room_assistant.py rates --texts results/host_prompts --out nbs/studies/data   # what it detects, for the default and peers; a CPU will do
    python nbs/studies/room_assistant.py write --host smollm2-135m --topics 4 --most 2 --tokens 60 --batch 4 --work WORK

The host first writes requests itself, each about a word of its vocabulary (a question, a short text, a programming task, something at work), and answers each of them twice. Then it answers the prompts of the splits `calibration`
and `reference` of "questions" and "code", twice and three times. Temperature 0.7, top-p 0.9, at most 200 tokens. At each position it notes 1 - p of the token that came. The prompts of the split `evaluation`, which `rates` and the other
studies read, are other prompts, but of the same templates and topics: so `rates` also has a table that was learnt from the host's own requests alone.
`rates` reads texts that host_prompts.py has left (texts_SCHEME_SEED_KIND.jsonl), marked under three keys and unmarked, with several tables: room_assistant.parquet has a p-value for each.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd

import peers_help as P
from dew_nb.evaluation.attacks.base import delete_words
from dew_nb.evaluation.attacks.localchat import LocalChat
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.texts.content import content_seed, machine, read_texts
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.mark.generation import chat_prompt, prompt_ids
from dew_nb.mark.room import AROUND, RoomTable
from dew_nb.models.tokenization import TokenUnits, special_ids

KINDS = ('Write one question that somebody might ask an AI assistant and that has to do with "{}". Reply with the question only.',
         'Write one request for a short text (a story, a letter, an explanation, an article, a speech or advice) that somebody might type to an AI assistant, about "{}". Reply with the request only.',
         'Write one small programming task for Python that has to do with "{}", as somebody might type it to an AI assistant, without the solution. Reply with the task only.',
         'Write one request that somebody might type to an AI assistant at work, about "{}". Reply with the request only.')
COPIES = dict(answers=2, programs=3)

# ---------------------------------------------------------------- on a GPU
def requests_of(shop, n, seed=0):
    "Requests that the host writes, about words of its vocabulary"
    tok = shop.host.tokenizer
    words = sorted((i, t[1:]) for t,i in tok.get_vocab().items() if t.startswith('Ġ') and len(t) >= 6 and t[1:].isascii() and t[1:].isalpha() and t[1:].islower() and 1500 <= i <= 30000)
    some = [words[i][1] for i in np.random.default_rng(seed).permutation(len(words))[:n]]
    said = LocalChat(shop.host, 500, 60, 1., .95).ask([KINDS[i % len(KINDS)].format(w) for i,w in enumerate(some)], seeds=list(range(len(some))))
    return [s.strip().strip('"') for s in said if s and len(s) > 15]

def write(a):
    a.work.mkdir(parents=True, exist_ok=True)
    shop = P.Shop(a)
    own = requests_of(shop, a.topics)
    prompts = [chat_prompt(shop.host.tokenizer, [dict(role='user', content=x)]) for x in own]*2
    kinds = ['new']*len(prompts)
    for kind,source in P.KINDS.items():
        for split in ('calibration', 'reference'):
            some = list(P.build_corpus(shop.host, source, split, a.most).prompts)*COPIES[kind]
            prompts, kinds = prompts + some, kinds + [kind]*len(some)
    times, copy = {}, []
    for p in prompts: copy.append(times.setdefault(p, 0)); times[p] += 1
    texts, none = [None]*len(prompts), find_scheme('none')(shop.host)
    for c in range(max(copy) + 1):                              # a prompt's copies have random numbers of their own
        some = [i for i,x in enumerate(copy) if x == c]
        for i,t in zip(some, shop.bench.generate(none, a.host, [prompts[i] for i in some], 5000 + c, dict(tokens=a.tokens, temperature=P.T, top_p=P.TOP_P, top_k=0, no_repeat_ngram=0, min_tokens=min(50, a.tokens)))): texts[i] = t
        print(f'{time.time()-a.t0:5.0f} s: wrote {len(some)}', flush=True)
    ids, p = P.ids_of(shop.host, texts), []
    for k in range(0, len(ids), 400):
        look = P.Look(ids[k:k+400], [prompt_ids(shop.host.tokenizer, [x])['input_ids'][0].tolist() for x in prompts[k:k+400]], shop.host)
        came = P.torch.as_tensor(np.concatenate(ids[k:k+400]), device=shop.dev)
        p.append(look.nucleus(P.torch.arange(len(came), device=shop.dev), came)[2].exp().cpu().numpy())
    np.savez_compressed(a.work/'train.npz', n=np.array([len(x) for x in ids]), ids=np.concatenate(ids).astype(np.uint32), own=np.concatenate(p).astype(np.float16))
    (a.work/'train_prompts.json').write_text(json.dumps(dict(own=own, kinds=kinds)))

# ---------------------------------------------------------------- what follows needs no host
def noted(a, kind=None):
    "Ids of texts and 1 - p at their positions; kind: of these prompts alone"
    z, kinds = np.load(a.work/'train.npz'), np.array(json.loads((a.work/'train_prompts.json').read_text())['kinds'])
    cut, keep = np.cumsum(z['n'])[:-1], np.ones(len(kinds), bool) if kind is None else kinds == kind
    pick = lambda x: [y for y,k in zip(np.split(x, cut), keep) if k]
    return pick(z['ids'].astype(np.int64)), [1. - y for y in pick(z['own'].astype(float))], {k: int((kinds[keep] == k).sum()) for k in np.unique(kinds[keep])}

def table_of(a, units, host, kind=None):
    ids, room, count = noted(a, kind)
    about = dict(host=host.name, host_digest=host.digest, temperature=P.T, top_p=P.TOP_P, texts=len(ids), prompts=count, command='python nbs/studies/room_assistant.py write')
    return RoomTable.fit(units, ids, [np.arange(len(x)) for x in ids], room, about=about, stages=AROUND, rounds=2)

def learn(a):
    from dew_nb import load_host
    host = load_host(a.host, 'cpu')
    for kind,f in ((None, Path(P.__file__).parents[2]/'dew_nb/data/room_assistant.safetensors'), ('new', a.work/'room_new.safetensors')):
        t = table_of(a, TokenUnits(host.tokenizer), host, kind)
        t.save(f)
        print(f.name, t, t.about['prompts'], f'uneven {t.uneven:.1f}')

def rates(a):
    from dew_nb import load_encoder, load_host
    host = load_host(a.host, 'cpu')
    units, special, rows = TokenUnits(host.tokenizer), special_ids(host.tokenizer), []
    t, meta = P.load_artefact(a.work/'room_new.safetensors', 'room')
    tables = dict(chat=RoomTable.packaged(units, 'chat'), assistant=RoomTable.packaged(units, 'assistant'), new=RoomTable.from_state(t, meta, units))
    stored = lambda name, seed, kind: [r['text'] for r in read_texts(a.texts/f'texts_{name}_{seed}_{kind}.jsonl')]
    enc = load_encoder(device='cpu')
    for name in P.SCHEMES:
        if not (a.texts/f'texts_{name}_0_answers.jsonl').exists(): continue
        first = find_scheme(P.SCHEMES[name][0])(host, enc, 0, name=name, **P.SCHEMES[name][1])
        for seed in P.SEEDS:
            s = first.rekey(seed)
            for kind in P.KINDS:
                marked = stored(name, seed, kind)
                sets = {('marked', 'none'): marked, ('unmarked', 'none'): [x for k in P.SEEDS for x in stored('none', k, kind)]}
                sets |= {('marked', f'del{r}'): [delete_words(x, r/100, content_seed('deleted', kind, seed, i) % 2**31) for i,x in enumerate(marked)] for r in (10, 30)}
                if kind == 'answers' and (f := a.texts/f'para_{name}_{seed}.json').exists(): sets['marked', 'para'] = json.loads(f.read_text())
                for (source, attack),texts in sets.items():
                    r = reader_of(s, name, texts)
                    ids = P.ids_of(host, texts)
                    for which,table in tables.items():
                        for reader,x in r.read(ids, table, special, 'cpu'):
                            if reader == 'weights' or which == 'chat': rows.append(pd.DataFrame(dict(i=np.arange(len(texts)), p_value=x['p_value'])).assign(scheme=name, source=source, kind=kind, attack=attack, seed=seed, reader=reader if reader != 'weights' else which))
            print(f'{time.time()-a.t0:5.0f} s: {name}, key {seed}', flush=True)
    d = pd.concat(rows, ignore_index=True)
    write_frame(a.out/'room_assistant.parquet', d, dict(p_value=4), dict(p_value=[.01]))
    (a.out/'room_assistant.json').write_text(json.dumps(dict(command='python nbs/studies/room_assistant.py rates --texts results/host_prompts --out nbs/studies/data', tables={k: dict(t.about, digest=t.digest, uneven=round(t.uneven, 2)) for k,t in tables.items()}, **machine(host)), indent=1) + '\n')
    print(d.assign(hit=d.p_value <= .01).pivot_table(index=['scheme', 'reader'], columns=['kind', 'source', 'attack'], values='hit').round(3).to_string())

def reader_of(s, name, texts):
    r = dict(dew=P.Dew, synthid=P.Synth, exp=P.Exp).get(P.SCHEMES[name][0], lambda s: P.Lists(s, None))(s)
    r.texts = texts
    return r

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('command', choices=['write', 'learn', 'rates'])
    ap.add_argument('--host', default='qwen2.5-coder-1.5b-instruct', help='an asset')
    ap.add_argument('--topics', type=int, default=3600, help='requests that the host writes')
    ap.add_argument('--most', type=int, help='prompts of each split; all unless given')
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=700, help='texts written at a time')
    ap.add_argument('--device')
    ap.add_argument('--work', type=Path, default=Path('results/room_assistant'), help='where finished parts are kept')
    ap.add_argument('--texts', type=Path, help='of host_prompts.py, for `rates`')
    ap.add_argument('--out', type=Path, help='for `rates`')
    return ap.parse_args()

def main():
    a = arguments()
    a.t0 = time.time()
    dict(write=write, learn=learn, rates=rates)[a.command](a)

if __name__ == '__main__': main()
