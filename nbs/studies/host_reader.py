"""Reading with the host: who is detected, and is the e-value one?

    python nbs/studies/host_reader.py --host qwen2.5-coder-1.5b-instruct --work results/host_reader --out nbs/studies/data
    python nbs/studies/host_reader.py --host smollm2-135m --answers 3 --programs 2 --humans 2 --keys 1 --null-keys 2 --draws 9 --tokens 40 --work WORK --out OUT
    python nbs/studies/host_reader.py --host smollm2-135m --answers 260 --programs 160 --humans 560 --keys 0 --null-keys 100 --draws 0 --tokens 48 --readers 'no prompt' prompt --work WORK --out nbs/studies/data

The host answers questions and writes programs (chat prompts, temperature 0.7, top-p 0.9) with the tournament under a few keys, and without a mark. Marked texts are read as they are and with 10% and 30% of their words
deleted. Readers: the ordinary detector; the likelihood ratio with the host (`dew_nb.read.host_reader`) without the prompt, with it, at temperatures 1 and 0.5 instead of 0.7, and with an unknown sampler. Unmarked texts (the
host's answers and programs, reviews that people wrote, lists and other texts that repeat themselves) are read under many other keys, by every reader: the mean of E and its tail are those of an e-value or they are not.
Every e-value is computed for several shares ε and several bounds on the kernel of pairs (near).

Writes host_reader_NAME.parquet (a row for each text, attack, reader, key, ε and bound: log_e; for the ordinary detector p_value; not if no key marks), host_reader_NAME_keys.parquet (E of unmarked texts by key) and host_reader_NAME.json
(settings, machine, a summary). Texts and finished
parts are kept in WORK and not made again: start it again where it was cut off. About ten to fifteen minutes on one data-centre GPU.
"""
import argparse, json, shlex, sys, time
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.evaluation.attacks.base import delete_words
from dew_nb.evaluation.texts.content import content_seed, machine, read_texts, study_key
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.read.host_reader import SAMPLERS, HostReader, drawn_rules, log_ratios
from dew_nb.read.host_view import Pairs, Sampler, join_views
from dew_nb.stats.evalues import average_e, calibrate_p

EPS, NEAR, MAIN = (0., .1, .3, .5, .7, .9), (1., .5, .3, .15), (.5, .3)
TRUE = Sampler(.7, .9)
READERS = {'no prompt': (False, [TRUE]), 'prompt': (True, [TRUE]), 'no prompt, unknown sampler': (False, list(SAMPLERS)),
           'prompt, unknown sampler': (True, list(SAMPLERS)), 'prompt, 1.0': (True, [Sampler(1., .9)]), 'prompt, 0.5': (True, [Sampler(.5, .9)])}
FEW = 'no prompt', 'prompt', 'no prompt, unknown sampler'          # of attacked texts
ATTACKS = {'none': 0., '10% deleted': .1, '30% deleted': .3}

# ---------------------------------------------------------------- texts
def repetitive():
    "Texts without a mark that say the same again and again: lists, tables, refrains"
    rng, out = np.random.default_rng(0), []
    names = 'harbour market garden station library museum bridge tower river school church beach'.split()
    for _ in range(6):
        some = rng.permutation(names)
        out += ['\n'.join(f'- {n}: open from {rng.integers(7, 11)} to {rng.integers(16, 22)}, entrance {rng.integers(2, 20)} euros' for n in some),
                ' '.join(f'He went to the {a} and then he went to the {b}.' for a,b in zip(some, some[::-1])),
                '\n'.join(f'| {n} | {rng.integers(100)} | {rng.integers(100)} | {rng.integers(100)} |' for n in some),
                '\n'.join(f'    self.{n} = kwargs.get("{n}", None)' for n in some)]
    return out

def write_all(a, wm, prompts):
    "Texts by source: 'unmarked' and one for each key; kept in a file"
    file = a.work/f'texts_{a.host}.jsonl'
    have = {(r['kind'], r['source'], r['i']): r['text'] for r in (read_texts(file) if file.exists() else [])}
    for source in ['unmarked', *range(a.keys)]:
        mine = wm if source == 'unmarked' else wm.rekey(study_key(source, 'host reader'))
        for kind,ps in prompts.items():
            todo = [i for i in range(len(ps)) if (kind, source, i) not in have]
            if not todo: continue
            texts = mine.generate([ps[i] for i in todo], a.tokens, content_seed('host reader', str(source), kind) % 2**31, mark=source != 'unmarked',
                batch_size=a.batch, no_repeat_ngram_size=0, temperature=TRUE.temperature, top_p=TRUE.top_p, progress=False)
            with file.open('a') as f:
                for i,t in zip(todo, texts):
                    have[kind, source, i] = t
                    f.write(json.dumps(dict(kind=kind, source=source, i=i, text=t)) + '\n')
            print(f'{time.time()-a.t0:5.0f} s: wrote {len(todo)} {kind}, {source}', flush=True)
    return have

# ---------------------------------------------------------------- reading
class Pack:
    "Texts that went through the host once, ready for any number of keys"
    def __init__(self, a, wm, texts, prompts, samplers):
        self.samplers = list(dict.fromkeys(samplers))
        reader = HostReader(wm.detector(), wm.host, samplers=self.samplers, batch_size=a.rows)
        self.docs, views = reader.views(texts, ['']*len(texts) if prompts is None else prompts)
        some = [i for i,v in enumerate(views) if v[0] is not None and len(v[0])]
        self.views = [join_views([views[i][s] for i in some]) for s in range(len(self.samplers))]
        self.size = [len(views[i][0]) for i in some]
        self.text = np.repeat(some, self.size)
        self.own = [torch.as_tensor(self.docs[i].ids, device=self.views[0].c.device)[views[i][0].at] for i in some]
    def ids(self): return np.unique(np.concatenate([torch.cat([v.ids.unique() for v in self.views]).cpu().numpy(), *(d.ids for d in self.docs)]))
    def nearest(self, scheme):
        "(P,) the largest kernel of each pair with an earlier one of its text"
        parts = zip(self.own, self.views[0].c.split(self.size))
        return torch.cat([Pairs().nearest(scheme, ids, c) for ids,c in parts]).cpu().numpy()
    def log_e(self, rule, nearest, grid):
        "(samplers, texts, grid) logarithms of e-values; 0 for a text without positions"
        out = []
        for v in self.views:
            r = log_ratios(rule, v).exp().cpu().numpy()
            out.append([np.bincount(self.text, np.log(np.maximum(eps + (1-eps)*r, 1e-300))*(nearest <= near), len(self.docs)) for eps,near in grid])
        return np.array(out).swapaxes(1, 2)
    def of(self, log_e, samplers):
        "The mean over the samplers of a reader"
        return average_e(log_e[[self.samplers.index(s) for s in samplers]])

def packs_of(a, wm, texts, prompts, names):
    "What readers need, by whether they know the prompt: one pass of the host for each"
    wanted = {known: [s for n in names if READERS[n][0] == known for s in READERS[n][1]] for known in (False, True)}
    return {known: Pack(a, wm, texts, prompts if known else None, some) for known,some in wanted.items() if some and (prompts or not known)}

def read_all(packs, names, scheme, near, grid, **said):
    "Rows of all readers under one key"
    each = {known: p.log_e(scheme.rule, near, grid) for known,p in packs.items()}
    for n in names:
        known, samplers = READERS[n]
        if known in packs: yield frame(packs[known].of(each[known], samplers), grid, reader=n, **said)

def frame(x, grid, **said):
    "Rows of an array (texts, grid)"
    n, g = x.shape
    d = pd.DataFrame(dict(i=np.repeat(np.arange(n), g), eps=np.tile([e for e,_ in grid], n), near=np.tile([b for _,b in grid], n), log_e=x.ravel()))
    return d.assign(**said)

def ordinary(scheme, texts, **said):
    "Rows of the ordinary detector"
    res = scheme.detector().detect(texts, progress=False)
    return pd.DataFrame(dict(i=range(len(texts)), z=[r.z for r in res], p_value=[r.p_value for r in res], n_scored=[r.n_scored for r in res])).assign(reader='ordinary', **said)

def marked_rows(a, wm, have, prompts, grid, key):
    "All readers of the texts that a key has marked, under that key"
    mine = wm.rekey(study_key(key, 'host reader'))
    for kind,ps in prompts.items():
        for attack,rate in ATTACKS.items():
            texts = [delete_words(have[kind, key, i], rate, content_seed('deleted', kind, key, i) % 2**31) for i in range(len(ps))]
            said = dict(kind=kind, source='marked', attack=attack, key=key)
            names = [r for r in a.readers if r in FEW or not rate]
            packs = packs_of(a, mine, texts, ps, names)
            near = packs[False].nearest(mine)
            yield ordinary(mine, texts, **said)
            yield from read_all(packs, names, mine, near, grid, **said)
            if rate or not a.draws: continue
            for n in ('no prompt', 'prompt'):
                p = packs[READERS[n][0]]
                one = replace_views(p, [TRUE])
                own, *drawn = (one.log_e(r, near, [MAIN])[0, :, 0] for r in [mine.rule, *drawn_rules(mine.rule, a.draws)])
                rank = (1 + (np.array(drawn) >= own).sum(0))/(1 + a.draws)
                yield pd.DataFrame(dict(i=range(len(texts)), p_value=rank, eps=MAIN[0], near=MAIN[1])).assign(reader=f'{n}, drawn keys', **said)

def replace_views(pack, samplers):
    "The same texts under fewer samplers"
    new = copy(pack)
    new.samplers, new.views = samplers, [pack.views[pack.samplers.index(s)] for s in samplers]
    return new

def unmarked_rows(a, wm, texts, ps, grid, kind):
    "All readers of unmarked texts under other keys"
    packs = packs_of(a, wm, texts, ps, a.readers)
    few = wm.narrow(np.unique(np.concatenate([p.ids() for p in packs.values()])))
    for k in range(a.null_keys):
        other = few.rekey(study_key(1000 + k, 'host reader'))
        said = dict(kind=kind, source='unmarked', attack='none', key=1000 + k)
        yield ordinary(other, texts, **said)
        yield from read_all(packs, a.readers, other, packs[False].nearest(other), grid, **said)

def part(a, name, rows):
    "A part of the figures, from its file if it is there"
    file = a.work/f'{a.host}-{name}.parquet'
    if not file.exists():
        pd.concat(list(rows()), ignore_index=True).to_parquet(file, index=False)
        print(f'{time.time()-a.t0:5.0f} s: read {name}', flush=True)
    return pd.read_parquet(file)

# ---------------------------------------------------------------- what came of it
def summary(d):
    "TPR at E ≥ 100 and at the 1% quantile of unmarked texts, mean and tail of E without a mark; for the main ε and bound"
    out, main = [], d[(d.eps == MAIN[0]) & (d.near == MAIN[1]) & d.log_e.notna()]
    score = d[d.reader == 'ordinary'].set_index(['kind', 'source', 'attack', 'key', 'i']).p_value
    index = pd.MultiIndex.from_frame(main[['kind', 'source', 'attack', 'key', 'i']])
    main = main.assign(both=average_e([main.log_e.to_numpy(), calibrate_p(score.reindex(index).to_numpy())]))
    for (kind, reader),g in main[main.source == 'unmarked'].groupby(['kind', 'reader']):
        by_key = (g.both >= np.log(100)).groupby(g.key).mean()
        out.append(dict(kind=kind, reader=reader, attack='unmarked', mean=float(np.exp(g.log_e).mean()), E100=float((g.log_e >= np.log(100)).mean()), E20=float((g.log_e >= np.log(20)).mean()),
                        both100=float(by_key.mean()), worst_key=float(by_key.max()), n=len(g)))
    for (kind, reader, attack),g in main[main.source == 'marked'].groupby(['kind', 'reader', 'attack']):
        null = main[(main.source == 'unmarked') & (main.kind == kind) & (main.reader == reader)]
        out.append(dict(kind=kind, reader=reader, attack=attack, at_1pct=float((g.log_e > null.log_e.quantile(.99)).mean()), E100=float((g.log_e >= np.log(100)).mean()),
                        both_at_1pct=float((g.both > null.both.quantile(.99)).mean()), both100=float((g.both >= np.log(100)).mean()), n=len(g)))
    for (kind, source, attack, reader),g in d[d.p_value.notna()].groupby(['kind', 'source', 'attack', 'reader']):
        out.append(dict(kind=kind, reader=reader, attack=attack if source == 'marked' else 'unmarked', p01=float((g.p_value <= .01).mean()), n=len(g)))
    return out

def by_key(d):
    "Of unmarked texts, for each key: mean of E and its tail, for the main ε with every bound and the main bound with every ε"
    d = d[(d.source == 'unmarked') & d.log_e.notna() & ((d.eps == MAIN[0]) | (d.near == MAIN[1]))]
    d = d.assign(E=np.exp(d.log_e), E20=d.log_e >= np.log(20), E100=d.log_e >= np.log(100), E1000=d.log_e >= np.log(1000))
    return d.groupby(['kind', 'reader', 'eps', 'near', 'key']).agg(mean=('E', 'mean'), E20=('E20', 'sum'), E100=('E100', 'sum'), E1000=('E1000', 'sum'), n=('E', 'size')).reset_index()

def shown(d):
    "What the page reads: of unmarked texts the main ε and bound, of marked ones all; the whole grid stays in --work"
    return d[(d.source == 'marked') | d.eps.isna() | (d.eps == MAIN[0]) & (d.near == MAIN[1])].reset_index(drop=True)

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--host', default='qwen2.5-coder-1.5b-instruct', help='an asset')
    ap.add_argument('--answers', type=int, default=150, help='prompts')
    ap.add_argument('--programs', type=int, default=60, help='prompts')
    ap.add_argument('--humans', type=int, default=150, help='reviews that people wrote')
    ap.add_argument('--keys', type=int, default=3, help='that texts are marked with')
    ap.add_argument('--null-keys', type=int, default=60, help='that unmarked texts are read under')
    ap.add_argument('--draws', type=int, default=99, help='keys to draw for p-values by rank')
    ap.add_argument('--readers', nargs='+', default=list(READERS), choices=list(READERS), metavar='READER', help='all unless named')
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=64, help='texts written at a time')
    ap.add_argument('--rows', type=int, default=16, help='texts read at a time')
    ap.add_argument('--device')
    ap.add_argument('--work', type=Path, required=True, help='where texts are kept')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def main():
    a = arguments()
    a.t0 = time.time()
    for d in (a.work, a.out): d.mkdir(parents=True, exist_ok=True)
    host, enc = load_host(a.host, a.device), load_encoder(device=a.device)
    wm = DEW.build(host, enc, study_key(0, 'host reader'), DEWConfig(room=None), progress=False)
    print(f'{time.time()-a.t0:5.0f} s: {wm}', flush=True)
    prompts = {k: list(build_corpus(host, s, split=None, n=n).prompts) for k,s,n in (('answers', 'questions', a.answers), ('programs', 'code', a.programs))}
    humans = list(build_corpus(host, n=a.humans, n_text=a.tokens).human)
    have, grid = write_all(a, wm, prompts), [(e, b) for e in EPS for b in NEAR]
    parts = [part(a, f'key {k}', lambda: marked_rows(a, wm, have, prompts, grid, k)) for k in range(a.keys)]
    kinds = {k: ([have[k, 'unmarked', i] for i in range(len(ps))], ps) for k,ps in prompts.items()} | dict(humans=(humans, None), repetitive=(repetitive(), None))
    parts += [part(a, f'unmarked {k}', lambda: unmarked_rows(a, wm, *x, grid, k)) for k,x in kinds.items()]
    d = pd.concat(parts, ignore_index=True)
    short = 'real' if a.host.startswith('qwen') else a.host.split('-')[0]
    if a.keys: write_frame(a.out/f'host_reader_{short}.parquet', shown(d), dict(log_e=12, p_value=12, z=12))
    by_key(d).to_parquet(a.out/f'host_reader_{short}_keys.parquet', index=False)
    rows = summary(d)
    said = {k: v for k,v in vars(a).items() if k not in ('out', 'work', 't0')}
    (a.out/f'host_reader_{short}.json').write_text(json.dumps(dict(command=shlex.join(['python', 'nbs/studies/host_reader.py', *sys.argv[1:]]), settings=said, eps=EPS, near=NEAR, main=MAIN,
        summary=rows, seconds=round(time.time()-a.t0), **machine(host, enc)), indent=1) + '\n')
    for r in rows: print('  '.join(f'{k} {v:.3f}' if isinstance(v, float) else str(v) for k,v in r.items()))

if __name__ == '__main__': main()
