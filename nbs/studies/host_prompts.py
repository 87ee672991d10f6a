"""Reading with the host when nobody knows the prompt: which prompts to try, and how far to trust the host

    for s in 0 1 2; do python nbs/studies/host_prompts.py read --seeds $s --work results/host_prompts & done; wait                       # on a GPU, about seven minutes side by side
    for s in 0 1 2; do python nbs/studies/host_prompts.py read --seeds $s --scheme 'SynthID 4' --work results/host_prompts & done; wait   # four minutes more
    python nbs/studies/host_prompts.py fit --work results/host_prompts                                                                    # the trust, from the marked texts of key 0; a CPU will do
    python nbs/studies/host_prompts.py collect --work results/host_prompts --out nbs/studies/data
    python nbs/studies/host_prompts.py read --host smollm2-135m --answers 2 --programs 1 --tokens 24 --seeds 0 --work WORK

The texts are made as those of peers_help.py: answers and programs of the 1.5B host at temperature 0.7 and top-p 0.9, marked under three keys and unmarked. Marked texts of the default are read as they are, rewritten by the host
(answers), and with 10% and 30% of their words deleted. The host reads each after several prompts: none (empty), a general request (chat), requests that it guesses from the text itself (guess1 the likeliest, guess2 drawn), and the
true one. What is kept are the logarithms of q/p of every position under each prompt: all that a choice of trust and of prompts needs. Unmarked texts are read under six keys (SynthID: four).

Readers, in host_prompts.parquet: 'empty' and 'prompt', the beginning of a text and the true prompt, with half of each factor bet (eps=.5), as peers_help.py has them; with the trust: 'tried' (empty and chat, what with_host does
by itself), 'guessed' (these and both guesses; of edited texts one guess was made), 'likeliest' (of the same prompts
the one under which the text is likeliest, instead of their mean), 'prompt, trust'.
"""
import argparse, json, time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

import peers_help as P
from dew_nb.evaluation.attacks.base import delete_words
from dew_nb.evaluation.attacks.localchat import LocalChat
from dew_nb.evaluation.attacks.rewriting import ChatParaphrase
from dew_nb.evaluation.texts.content import content_seed, machine
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.mark.generation import chat_prompt, prompt_ids
from dew_nb.read.host_reader import ANYTHING, ASK, TRUST
from dew_nb.read.host_view import LOOK_BACK

MAIN, VERSIONS, DRAWN = 'DEW standard', ('whole', 'para', 'del10', 'del30'), {0: 100, 1: 101, 2: 102}

# ---------------------------------------------------------------- on a GPU
def guesses(shop, texts, again):
    "The likeliest request of each text, and one that is drawn"
    asked = [ASK.format(t) for t in texts]
    return LocalChat(shop.host, 400, 48).ask(asked), LocalChat(shop.host, 400, 48, .7, .9).ask(asked, seeds=list(range(len(asked)))) if again else None

def prompts_of(shop, name, seed, kind, version, texts):
    "Possible prompts of each text, by name"
    f, tok = shop.a.work/f'guess_{name}_{seed}_{kind}_{version}.json', shop.host.tokenizer
    if not f.exists(): f.write_text(json.dumps(guesses(shop, texts, version == 'whole')))
    chat = lambda said: [chat_prompt(tok, [dict(role='user', content=x or ' ')]) for x in said]
    one, two = json.loads(f.read_text())
    v = dict(empty=['']*len(texts), chat=chat([ANYTHING]*len(texts)), guess1=chat(one), true=shop.prompts(kind, seed))
    return v | (dict(guess2=chat(two)) if two else {})

def looks_of(shop, ids, prompts):
    tok = shop.host.tokenizer
    return {v: P.Look(ids, [prompt_ids(tok, [p])['input_ids'][0].tolist() for p in ps], shop.host) for v,ps in prompts.items()}

def views_of(wm, ids, looks, device):
    "Where texts may be marked, which pairs are nearly an earlier one, and a view for each prompt"
    doc, pos, near, contexts, parts = [], [], [], [], {v: [] for v in looks}
    for d,x in enumerate(ids):
        x, k = torch.as_tensor(x, device=device), wm.contexts.k
        if len(x) <= k: continue
        at = torch.arange(k, len(x), device=device)
        nucleus = {v: l.nucleus(int(l.start[d]) + at, x[at]) for v,l in looks.items()}
        c, on = P.place_rows(wm, x, at, torch.cat([n[1] for n in nucleus.values()], 1))
        on = on.expand(-1, sum(n[1].shape[1] for n in nucleus.values()))
        keep = on.any(1)
        if not keep.any(): continue
        near.append(P.Pairs().nearest(wm, x[at[keep]], c[keep]).cpu().numpy())
        doc.append(np.full(len(near[-1]), d))
        pos.append(at[keep].cpu().numpy())
        contexts.append(c[keep])
        for v,o in zip(looks, on.split([n[1].shape[1] for n in nucleus.values()], 1)):
            values, cand, own, column = nucleus[v]
            parts[v].append(P.HostView(at[keep], values[keep], cand[keep], own[keep], column[keep], c[keep], (o & (values > -torch.inf))[keep]))
    return np.concatenate(doc), np.concatenate(pos), np.concatenate(near) <= P.NEAR, {v: P.join_views(x) for v,x in parts.items()}

@torch.no_grad()
def read_dew(shop, name, seed, kind, version, texts, keys):
    "Ratios of one set of texts under some keys, after each possible prompt"
    f = shop.a.work/f'read_{name}_{seed}_{kind}_{version}.npz'
    if f.exists(): return
    ids = P.ids_of(shop.host, texts)
    looks, wm = looks_of(shop, ids, prompts_of(shop, name, seed, kind, version, texts)), {k: shop.scheme(MAIN, k).watermark for k in keys}
    doc, pos, near, views = views_of(wm[keys[0]], ids, looks, shop.dev)
    a = dict(doc=doc.astype(np.int16), pos=pos.astype(np.int16), near=near, keys=np.array(keys), n=np.array([len(x) for x in ids]))
    for v,view in views.items():
        a |= {f'own_{v}': half(view.own), f'raw_{v}': half(looks[v].own)} | {f'r_{v}_{k}': half(P.log_ratios(wm[k].rule, view)) for k in keys}
    np.savez_compressed(f, **a)
    print(f'{time.time()-shop.a.t0:5.0f} s: {f.stem}', flush=True)

@torch.no_grad()
def read_synthid(shop, name, source, seed, kind, keys):
    "The same of SynthID, at first occurrences of its contexts"
    f = shop.a.work/f'peer_{name}_{source}_{seed}_{kind}.npz'
    if f.exists(): return
    texts = shop.texts(source, seed, kind)
    ids = P.ids_of(shop.host, texts)
    looks, a = looks_of(shop, ids, prompts_of(shop, source, seed, kind, 'whole', texts)), dict(keys=np.array(keys), n=np.array([len(x) for x in ids]))
    for k in keys:
        r = P.Synth(shop.scheme(name, k))
        next(r.read(ids, None, shop.special, shop.dev))
        a['doc'], a['pos'] = (x.astype(np.int16) for x in r.at[:2])
        for v,l in looks.items(): a |= {f'own_{v}': half(l.nucleus(l.flat(*r.at[:2]), r.came)[2]), f'r_{v}_{k}': half(r.ratios(l).clamp_min(0).log())}
    np.savez_compressed(f, **a, **{f'raw_{v}': half(l.own) for v,l in looks.items()})
    print(f'{time.time()-shop.a.t0:5.0f} s: {f.stem}', flush=True)

def half(x): return x.float().cpu().numpy().astype(np.float16)

def paraphrases(shop, name, seed):
    f = shop.a.work/f'para_{name}_{seed}.json'
    if not f.exists(): f.write_text(json.dumps(ChatParaphrase(LocalChat(shop.host, 300, 400), progress=False)(shop.texts(name, seed, 'answers'), seed)))
    return json.loads(f.read_text())

def read(a):
    a.work.mkdir(parents=True, exist_ok=True)
    shop = P.Shop(a)
    for seed in a.seeds:
        for name in ('none', a.scheme):
            for kind in P.KINDS:
                if not (a.work/f'texts_{name}_{seed}_{kind}.jsonl').exists(): P.write(shop, name, seed, kind, name != 'none')
        for kind in P.KINDS:
            if a.scheme != MAIN:
                read_synthid(shop, a.scheme, a.scheme, seed, kind, [seed])
                read_synthid(shop, a.scheme, 'none', seed, kind, [0, 1, 2, 100+seed])
                continue
            own = shop.texts(MAIN, seed, kind)
            read_dew(shop, MAIN, seed, kind, 'whole', own, [seed])
            read_dew(shop, 'none', seed, kind, 'whole', shop.texts('none', seed, kind), [0, 1, 2, 100+seed, 200+seed, 300+seed])
            if kind == 'answers': read_dew(shop, MAIN, seed, kind, 'para', paraphrases(shop, MAIN, seed), [seed])
            for rate in (10, 30): read_dew(shop, MAIN, seed, kind, f'del{rate}', [delete_words(t, rate/100, content_seed('deleted', kind, seed, i) % 2**31) for i,t in enumerate(own)], [seed])
    (a.work/'machine.json').write_text(json.dumps(machine(shop.host)))

# ---------------------------------------------------------------- what follows needs no host
def load(f):
    z = dict(np.load(f))
    z.setdefault('near', np.ones(len(z['doc']), bool))
    for k in z:
        if k.startswith('r_'): z[k] = np.nan_to_num(z[k].astype(np.float32), nan=-np.inf, neginf=-np.inf, posinf=60.)
    return z

def features(z, v):
    "(P, 3) what the trust looks at: 1, log p of the token that came, odd tokens among those before. The candidates were not kept: a token outside of the nucleus is odd, and where nothing can be marked one below 3%"
    start, n = np.cumsum(z['n']) - z['n'], z['n']
    at, own = start[z['doc']] + z['pos'], z[f'own_{v}'].astype(float)
    odd = z[f'raw_{v}'] < np.log(.03)
    odd[at] = own == -np.inf
    c = np.append(0, np.cumsum(odd))
    return np.column_stack([np.ones(len(own)), own.clip(-12), c[at] - c[np.maximum(at - LOOK_BACK, start[z['doc']])]])

def log_e(z, prompts, key, trust=None, likeliest=False):
    "(texts,) logarithm of the mean e-value over some prompts, or of that after the likeliest; trust None: half of each factor is bet"
    some, out = [v for v in prompts if f'own_{v}' in z], []
    for v in some:
        share = .5 if trust is None else expit(features(z, v) @ np.array(trust))
        e = np.log1p(share*np.expm1(z[f'r_{v}_{key}'].astype(float)))*z['near']
        out.append(np.bincount(z['doc'], e, len(z['n'])))
    if not likeliest: return logsumexp(out, axis=0) - np.log(len(some))
    doc = np.repeat(np.arange(len(z['n'])), z['n'])
    best = np.argmax([np.bincount(doc, z[f'raw_{v}'].astype(float).clip(-25), len(z['n'])) for v in some], axis=0)
    return np.array(out)[best, np.arange(len(best))]

READERS = {'empty': (['empty'], None), 'chat': (['chat'], None), 'prompt': (['true'], None), 'tried': (['empty', 'chat'], TRUST), 'guessed': (['empty', 'chat', 'guess1', 'guess2'], TRUST), 'likeliest': (['empty', 'chat', 'guess1', 'guess2'], TRUST), 'prompt, trust': (['true'], TRUST)}

def sets(a):
    "Scheme, source, seed, kind, version and arrays of all that was read"
    for f in sorted(a.work.glob('read_*.npz')):
        _, name, seed, kind, version = f.stem.split('_')
        yield MAIN, 'unmarked' if name == 'none' else 'marked', int(seed), kind, version, load(f)
    for f in sorted(a.work.glob('peer_*.npz')):
        _, name, source, seed, kind = f.stem.split('_')
        yield name, 'unmarked' if source == 'none' else 'marked', int(seed), kind, 'whole', load(f)

def fit(a, key=0):
    "Trust that makes the expected evidence of a position largest, over the marked texts of one key and the prompts that a reader may have to try"
    X, R = [], []
    for scheme,source,seed,_,_,z in sets(a):
        if (scheme, source, seed) != (a.scheme, 'marked', key): continue
        for v in ('empty', 'chat', 'guess1'):
            X.append(features(z, v)[z['near']])
            R.append(np.expm1(z[f'r_{v}_{key}'].astype(float))[z['near']])
    X, R = np.concatenate(X), np.concatenate(R)
    def loss(w):
        s = expit(X @ w)
        return -np.log1p(s*R).mean(), -((s*(1-s)*R/(1 + s*R)) @ X)/len(R)
    with np.errstate(divide='ignore'): best = minimize(loss, np.zeros(3), jac=True)
    got = dict(key=key, trust=[round(float(x), 3) for x in best.x], gain=round(-float(best.fun), 4), half=round(float(np.log1p(.5*R).mean()), 4), packaged=round(-float(loss(np.array(TRUST))[0]), 4), positions=len(R))
    print(json.dumps(got))
    return got

def collect(a):
    "Each key's marked texts are read with a trust that was fitted to another key's: key 0's with that of key 1, the others with the package's, which is that of key 0"
    rows, fits = [], [fit(a), fit(a, 1)]
    for scheme,source,seed,kind,version,z in sets(a):
        for key in z['keys'].tolist():
            for reader,(prompts,trust) in READERS.items():
                rows.append(pd.DataFrame(dict(i=np.arange(len(z['n'])), log_e=log_e(z, prompts, key, fits[1]['trust'] if trust and source == 'marked' and key == 0 else trust, reader == 'likeliest'))).assign(scheme=scheme, source=source, kind=kind, version=version, reader=reader, seed=seed, key=key))
    d = pd.concat(rows, ignore_index=True)
    a.out.mkdir(parents=True, exist_ok=True)
    write_frame(a.out/'host_prompts.parquet', d, dict(log_e=10), dict(log_e=[float(np.log(100))]))
    said = dict(command=f'python nbs/studies/host_prompts.py read --seeds 0 1 2 --work WORK; … --scheme "{a.peer}"; fit; collect', trust=TRUST, fits=fits, temperature=P.T, top_p=P.TOP_P, near=P.NEAR, examples=examples(a), **json.loads((a.work/'machine.json').read_text()))
    (a.out/'host_prompts.json').write_text(json.dumps(said, indent=1) + '\n')
    print(len(d), (a.out/'host_prompts.parquet').stat().st_size)

def examples(a, n=4):
    "Some guesses beside what was asked"
    from dew_nb import load_host
    tok, out = load_host(a.host, 'cpu').tokenizer, {}
    for kind,source in P.KINDS.items():
        asked = P.build_corpus(tok, source, 'evaluation', n, 30, 200, 0).prompts
        one, two = json.loads((a.work/f'guess_{MAIN}_0_{kind}_whole.json').read_text())
        out[kind] = [dict(asked=p.split('user\n')[-1].split('<|im_end|>')[0], guess1=x, guess2=y) for p,x,y in zip(asked, one, two)]
    return out

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('command', choices=['read', 'fit', 'collect'])
    ap.add_argument('--host', default='qwen2.5-coder-1.5b-instruct', help='an asset')
    ap.add_argument('--scheme', default=MAIN, choices=[MAIN, *(n for n in P.SCHEMES if n.startswith('SynthID'))])
    ap.add_argument('--peer', default='SynthID 4', help='named in the command that is stored')
    ap.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    ap.add_argument('--answers', type=int, default=300, help='prompts')
    ap.add_argument('--programs', type=int, default=100, help='prompts')
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=500, help='texts written at a time')
    ap.add_argument('--device')
    ap.add_argument('--work', type=Path, required=True, help='where texts and finished parts are kept')
    ap.add_argument('--out', type=Path, help='for `collect`')
    return ap.parse_args()

def main():
    a = arguments()
    a.t0 = time.time()
    dict(read=read, fit=fit, collect=collect)[a.command](a)

if __name__ == '__main__': main()
