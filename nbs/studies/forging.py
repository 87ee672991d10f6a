"""Forging and washing with what marked texts give away, for every scheme.

    python nbs/studies/forging.py --work WORK --out nbs/studies/data

The attacker has the host, n texts that the victim marked with one key, and as many unmarked ones. Learners (see
stealing.py): 'rule' knows everything but the key; 'host' also weights each pair with 1 - the host's probability of its token;
'counts' knows no rule and is the stealing attack of the literature. Against sub-keys there is 'sorted' beside them: it puts the
marked texts in as many heaps as there are sub-keys, by how alike they are, and learns from one. For each victim and key:

  tell     AUROC of the learnt score of fresh marked texts against unmarked texts, and against another key's
  forged   texts written with lam*tanh(learnt/deviation) on the host's 64 likeliest tokens ('counts': lam*learnt), and how many
           of them the true detector accepts at p <= 1%, beside a detector of another key
  washed   marked texts with 30% of their tokens replaced by likely ones that score low, and how many are still found,
           beside as many tokens replaced at random
  short    beginnings of marked texts of so many tokens, as they are and after half of their words were deleted, and how many are
           found: what sub-keys cost (the tournament and the bias rule)

The first key has all numbers of texts, the others those up to --others (three victims have 2,000 texts of a second key, by
another run: see WHOLE). Each victim first has its first two keys with up to
--first texts; when all victims have them, the rest follows. Texts and finished figures are kept in WORK, so that it goes on
where it stopped; several processes may share WORK: each victim is one process's at a time, and unmarked texts are written once,
by the one that comes first. It wants a GPU: most of the time goes into writing the texts to learn from.
"""
import argparse, json, shlex, time, traceback
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock, Timeout
from scipy.stats import binomtest
from sklearn.metrics import adjusted_rand_score

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.attacks.base import delete_words
from dew_nb.evaluation.studies.bench import is_full
from dew_nb.evaluation.texts.content import content_seed, machine, write_texts
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.schemes.base import Scheme
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.texts.likelihood import perplexity
from dew_nb.evaluation.texts.sampling import SeededSampler, continue_ids, pad_ids
from dew_nb.stats.rates import auroc
from dew_nb.mark.tables import unit_vectors
from dew_nb.mark.windows import last_windows, special_mask

from stealing import ByForm, ByKernel, ByRatio, BySame, Pairs, beside_unmarked, likeness, sorted_texts, tightest

VICTIMS = {
    'tournament': ('dew', dict(preset='tournament')),
    'SynthID': ('synthid', {}),
    'bias': ('dew', dict(preset='calibrated', lam=2.5)),
    'KGW': ('kgw', dict(width=3, gamma=.5, delta=2.)),
    'Unigram': ('unigram', dict(gamma=.5, delta=2.)),
    'sub-keys': ('dew', dict(preset='tournament', keys=64)),
    'sub-keys 2': ('dew', dict(preset='tournament', keys=2)),
    'sub-keys 4': ('dew', dict(preset='tournament', keys=4)),
    'sub-keys 8': ('dew', dict(preset='tournament', keys=8)),
    'sub-keys 16': ('dew', dict(preset='tournament', keys=16)),
    'order 1': ('dew', dict(preset='tournament', order=1)),
    'order 3': ('dew', dict(preset='tournament', order=3)),
    'standard': ('dew', dict(preset='standard', room=None)),
    'standard, sub-keys 8': ('dew', dict(preset='standard', keys=8, room=None)),
    **{f'ngram {k}': ('dew', dict(preset='tournament', contexts='ngram', k=k)) for k in (1, 2, 3, 4)},
    'ngram 2, sub-keys 8': ('dew', dict(preset='tournament', contexts='ngram', k=2, keys=8)),
    **{f'SynthID {n}': ('synthid', dict(ngram_len=n)) for n in (2, 3, 4, 5)},
    'KGW 1': ('kgw', dict(width=1, gamma=.5, delta=2.)),
    'words': ('dew', dict(preset='multilingual', screen=False)),
    'EXP': ('exp', {}),
    'DiPmark': ('dipmark', {}),
    'Unbiased': ('unbiased', {}),
    'Unbiased delta': ('unbiased', dict(reweight='delta')),
    'MorphMark': ('morphmark', {}),
    'SIR': ('sir', {}),
    'X-SIR': ('xsir', {}),
    'TS': ('ts', {}),
    'ATW': ('atw', {}),
    'k-SemStamp': ('semstamp', {})}
FRONT = ['standard', 'standard, sub-keys 8', *(f'ngram {k}' for k in (1, 2, 3, 4)), 'ngram 2, sub-keys 8', *(f'SynthID {n}' for n in (2, 3, 4, 5)), 'KGW 1']
WIDTHS = dict(kgw=3, unigram=0, synthid=3, exp=4, dipmark=3, unbiased=3, morphmark=1)   # of the window that a rule hashes
CANDIDATES, SHARE, LIKELY, PLAIN = 64, .3, 8, 600
COMMAND = 'python nbs/studies/forging.py --work WORK --out nbs/studies/data'
WHOLE = f"{COMMAND} && {COMMAND} --keys 901 900 --n 250 2000 --attackers rule counts --victims tournament 'sub-keys 8' sub-keys"
FRONT_RUN = ' --victims front --attackers rule counts --stages tell forge --keys 900 901 --n 250 2000'   # the hashed widths and the default, for contexts.ipynb
SHORT = {0.: (8, 12, 16, 20, 24, 32), .5: (20, 30, 40, 60, 80, 120)}     # tokens, by the share of words deleted

def slug(name): return ''.join(ch if ch.isalnum() else '-' for ch in name.lower())

# ---------------------------------------------------------------- a host that writes, and what is kept of it
class Bench:
    "The host, its prompts, and files"
    def __init__(self, a):
        self.a, self.host, self.enc = a, load_host(), load_encoder()
        self.device, self.tok = self.host.model.device, self.host.tokenizer
        self.special = np.array(sorted(set(self.tok.all_special_ids)))
        P = list(build_corpus(self.host, n=a.held + a.forged + max(a.n), seed=77).prompts)
        self.prompts = dict(held=P[:a.held], fresh=P[a.held:a.held+a.forged], learn=P[a.held+a.forged:])
        for part,n in (('held', a.use_held), ('fresh', a.use_forged)): self.prompts[part] = self.prompts[part][:n]
        for d in ('texts', 'rows'): (a.work/d).mkdir(parents=True, exist_ok=True)
        self.stamp, self.t0, self.noted = machine(self.host, self.enc), time.time(), False
    def note(self):
        "Name this run and its machine, once a figure came of it"
        if not self.noted: note(self.a.work/'runs.jsonl', dict(settings=settings_of(self.a), machine=self.stamp))
        self.noted = True
    def say(self, *what): print(f'{time.time()-self.t0:6.0f} s', *what, flush=True)
    def ids(self, texts): return self.tok(list(texts), add_special_tokens=False)['input_ids'] if len(texts) else []
    def pairs(self, texts, k): return Pairs(self.ids(texts), k, self.special, self.device)
    @torch.no_grad()
    def batch(self, parts, seed):
        "Texts of one batch; parts: (function of width and prompts to a processor or None, prompts)"
        prompts, sizes = [p for _,ps in parts for p in ps], [len(ps) for _,ps in parts]
        def make(width):
            steps = [f and f(width, ps) for f,ps in parts]
            def go(ids, scores):
                cut = zip(steps, ids.split(sizes), scores.split(sizes))
                return torch.cat([f(i, s).to(scores) if f else s for f,i,s in cut])
            return go
        seeds = [content_seed('forging', seed, p) for p in prompts]
        out = iter(continue_ids(self.host, [self.tok(p)['input_ids'] for p in prompts], make, SeededSampler(seeds),
                   max_new_tokens=self.a.tokens, min_new_tokens=self.a.tokens, no_repeat_ngram_size=0))
        return [[next(out) for _ in ps] for _,ps in parts]
    def write(self, jobs, seed, done):
        "Texts of jobs (name, function, prompts) in batches across jobs; done(name, prompts, texts) after each batch"
        alone = [j for j in jobs if isinstance(j[1], Scheme)]             # a scheme that samples by itself
        for n,f,ps in alone: self.write_alone(n, f, ps, seed, done)
        rows, i = [(n, f, p) for n,f,ps in jobs for p in ps if not isinstance(f, Scheme)], 0
        while i < len(rows):
            some, parts, names = rows[i:i+self.a.batch], {}, {}
            for j,(n,f,p) in enumerate(some):                 # rows of one function go through it together
                parts.setdefault(f, []).append(j)
                names.setdefault(n, []).append(j)
            try: out = self.batch([(f, [some[j][2] for j in at]) for f,at in parts.items()], seed)
            except RuntimeError as e:
                if self.a.batch == 1 or not is_full(e): raise
                out, self.a.batch = None, self.a.batch//2
            if out is None:
                torch.cuda.empty_cache()
                continue
            text = {j: t for at,ts in zip(parts.values(), out) for j,t in zip(at, ts)}
            for n,at in names.items(): done(n, [some[j][2] for j in at], [text[j] for j in at])
            i += len(some)
            self.say('wrote', i, 'of', len(rows), 'texts:', ', '.join(map(str, names))[:60])
    def write_alone(self, name, scheme, prompts, seed, done, step=100):
        "Texts of a scheme that samples by itself, whole sentences say"
        for i in range(0, len(prompts), step):
            some = prompts[i:i+step]
            done(name, some, scheme.complete(some, self.a.tokens, seed, batch_size=self.a.batch, no_repeat_ngram_size=0))
            self.say('wrote', i + len(some), 'of', len(prompts), 'texts:', name)
    def kept(self, wanted, seed):
        "Texts of (name, function, prompts), from their files as far as they are there; the others are written"
        have, files = {}, {n: self.a.work/'texts'/f'{n}.jsonl' for n,_,_ in wanted}
        for n,f in files.items():
            have[n] = {r['prompt']: r['text'] for r in whole_lines(f)}
        def done(n, prompts, texts):
            have[n] |= dict(zip(prompts, texts))
            note(self.a.work/'texts_by.jsonl', self.stamp)
            append(files[n], [dict(prompt=p, text=t) for p,t in zip(prompts, texts)])
        self.write([(n, f, [p for p in ps if p not in have[n]]) for n,f,ps in wanted], seed, done)
        return {n: [have[n][p] for p in ps] for n,_,ps in wanted}
    def unmarked(self, wait=True):
        "Texts without a mark, written once by whoever holds the lock"
        try:
            with FileLock(self.a.work/'unmarked.lock', timeout=-1 if wait else 0):
                return self.kept([(f'unmarked-{n}', None, p) for n,p in self.prompts.items()], 12)
        except Timeout: return None
    @torch.no_grad()
    def views(self, texts, prompts, rows=32):
        "For each text: the host's probability of its tokens, and its likeliest tokens with their logarithms"
        left, ids = [self.tok(p)['input_ids'] for p in prompts], self.ids(texts)
        out, order = [None]*len(ids), sorted(range(len(ids)), key=lambda i: len(left[i]) + len(ids[i]))
        for j in range(0, len(order), rows):
            some = order[j:j+rows]
            x, mask = pad_ids([left[i] + list(ids[i]) for i in some], side='right', device=self.device)
            y = self.host.model(input_ids=x, attention_mask=mask).logits
            for r,i in enumerate(some):
                a, b = len(left[i]), len(left[i]) + len(ids[i])
                z = y[r, a-1:b-1].float().log_softmax(-1)
                top = z.topk(LIKELY, 1)
                out[i] = z.gather(1, x[r, a:b, None])[:, 0].exp(), top.indices, top.values
        return out
    def ppl(self, texts, prompts):
        n = self.a.use_ppl
        return perplexity(self.host, texts[:n], prompts[:n], batch_size=32).values

def append(file, rows):
    with open(file, 'a') as f: f.write(''.join(json.dumps(r) + '\n' for r in rows))

def note(file, what):
    "Keep something once in a JSONL file"
    with FileLock(f'{file}.lock'):
        if what not in whole_lines(file): append(file, [what])

def whole_lines(file):
    "Rows of a JSONL file; a last line that was cut off counts for nothing"
    out = []
    if not file.exists(): return out
    for line in file.read_text().split('\n')[:-1]:
        try: out.append(json.loads(line))
        except json.JSONDecodeError: pass
    return out

# ---------------------------------------------------------------- a victim
class Victim:
    "One scheme under one key, and what an attacker can compute"
    def __init__(self, bench, name, key, first=None):
        self.bench, self.name, self.key, self.device = bench, name, key, bench.device
        self.kind, params = VICTIMS[name] if name in VICTIMS else (name, {})
        enc = load_encoder('use-multilingual') if params.get('preset') == 'multilingual' and not first else bench.enc
        if first is None: self.scheme = find_scheme(self.kind)(bench.host, enc, key, **params)
        else: self.scheme = first.scheme.rekey(key)
        self.width = params.get('width', params.get('ngram_len', 0) - 1 if 'ngram_len' in params else WIDTHS.get(self.kind))
        if params.get('contexts') == 'ngram': self.width = params['k']
        self.k, self.mask = max(3, self.width or 3), special_mask(bench.special).to(self.device)
        self.geometric = self.kind == 'dew' and self.scheme.config.contexts.name not in ('words', 'ngram')
        self.keys, self.knows = params.get('keys', 1), self.width is not None        # whether there is a learner of its rule
        if not self.geometric: return
        self.knows = True
        wm = self.scheme.watermark
        self.encode, tokens = wm.contexts, wm.blueprint.tokens
        if not getattr(self.encode, 'needs_encoder', True): self.encode = self.encode.to(self.device)
        said = self.scheme.config.to_flat()                   # a bias has one key, too
        self.k, self.order, self.keys = self.encode.k, said['order'], said['keys']
        self.tokens = first.tokens if first else unit_vectors(tokens.embeddings, tokens.whitening).float().to(self.device)
    def processor(self, width, prompts):
        if self.kind == 'dew': return self.scheme.watermark.processor(width, [f'{self.key}/{p}' for p in prompts], drawn=True)
        return self.scheme.processor(width)
    @property
    def writer(self): return self.scheme if self.scheme.complete else self.processor
    def contexts(self, w):
        if not getattr(self.encode, 'needs_encoder', True): return self.encode.encode(w).to(self.device).float()
        distinct, at = torch.unique(w, dim=0, return_inverse=True)
        return self.encode.encode(distinct.cpu().numpy()).to(self.device).float()[at]
    def code(self, w):
        "What names KGW's list, before the secret shuffle"
        V, h = self.scheme.green.vocab, w[:, -self.width]
        for j in range(1 - self.width, 0): h = h*w[:, j] % V
        return h
    def pairs(self, texts):
        p = self.bench.pairs(texts, self.k)
        if self.geometric: p.c = self.contexts(p.w)
        return p
    def learner(self, attacker, own, other):
        "What an attacker makes of pairs"
        if attacker == 'counts': return ByRatio(own, other)
        if not self.geometric: return BySame(own, other, self.width, self.code if self.kind == 'kgw' else None)
        if self.scheme.config.rule.name == 'bias': return ByForm(own, other, self.tokens, self.contexts)
        return ByKernel(own, other, self.tokens, self.contexts, self.order, 2e8 if self.device.type == 'cuda' else 2e6)

def learners(a, victim, first, n):
    "(attacker, n) of one key: what is learnt"
    n = [x for x in n if first or x <= a.others]
    out = [('rule', x) for x in n] if victim.knows and 'rule' in a.attackers else []
    return list(dict.fromkeys(out + [x[:2] for x in arms(a, victim, first, n)]))

def arms(a, victim, first, n):
    "(attacker, n, lam) of one key: with what it forges, and with which strength; the other keys only after most texts"
    n = [x for x in n if (first or x <= a.others) and (not a.forge_n or x in a.forge_n)]
    if not n: return []
    out = [('rule', x, a.lam[0]) for x in (n if first else n[-1:])] if victim.knows and 'rule' in a.attackers else []
    if not first: return out + ([('counts', n[-1], a.steal[0])] if 'counts' in a.attackers else [])
    strong = sorted({x for x in n if x == 250} | {max(n)})
    if out: out += [('rule', x, l) for l in a.lam[1:] for x in strong]
    if 'sorted' in a.attackers and victim.keys > 1: out += [('sorted', x, a.lam[0]) for x in strong]
    if 'host' in a.attackers and victim.name in a.host_for: out += [('host', x, a.lam[0]) for x in strong]
    if 'counts' in a.attackers: out += [('counts', x, l) for l in a.steal for x in strong]
    return out

# ---------------------------------------------------------------- what is done with what was learnt
def forger(s, f, shape):
    "Adds what was learnt to the likeliest tokens; shape: from scores to logits"
    def make(width, prompts):
        def go(ids, scores):
            w, full = last_windows(ids, width, s.k, s.mask)
            if ids.shape[1] - width < s.k: return scores
            few = scores.topk(CANDIDATES, 1).indices
            return scores.scatter_add(1, few, shape(f(w, few)).to(scores)*full[:, None].to(scores))
        return go
    return make

def wash(s, f, shape, texts, views, rng=None):
    "Texts with 30% of their tokens replaced by likely ones of a low score, where most is gained; f None: at random"
    bench, out = s.bench, []
    ids = bench.ids(texts)
    p = Pairs(ids, s.k, bench.special, s.device)
    few = torch.cat([v[1][torch.as_tensor(a, device=s.device)] for v,a in zip(views, p.at)])
    logp = torch.cat([v[2][torch.as_tensor(a, device=s.device)] for v,a in zip(views, p.at)])
    if f is None: gain, new = torch.from_numpy(rng.random(len(p.x))).to(s.device), few.gather(1,
        (logp + torch.from_numpy(rng.gumbel(size=tuple(logp.shape))).to(logp)).argmax(1, keepdim=True))
    else:
        b = shape(f(p.w, torch.cat([p.x[:, None], few], 1)))
        best = (logp - b[:, 1:]).argmax(1, keepdim=True)
        new, gain = few.gather(1, best), b[:, 0] - b[:, 1:].gather(1, best)[:, 0]
    new, gain = new[:, 0].cpu().numpy(), gain.cpu().numpy()
    for t,(x,at) in enumerate(zip(ids, p.at)):
        g, n, x = gain[p.i == t], new[p.i == t], np.array(x)
        best = np.argsort(-g)[:int(SHARE*len(at))]
        x[np.asarray(at)[best]] = n[best]
        out.append(bench.tok.decode(x.tolist()))
    return out

def share(hits, n):
    "A share with Wilson's interval"
    r = binomtest(int(hits), int(n)).proportion_ci(method='wilson')
    return dict(found=hits/n, low=r.low, high=r.high, texts=int(n))

def read(scheme, texts):
    "Share accepted at 1%, the mean score; and scores and p-values"
    m = scheme.measure(texts)
    hit = int((m['p_value'] <= .01).sum())
    return share(hit, len(texts)) | dict(score=float(np.mean(m['score']))), m

def how_sorted(S, heap, of, best):
    "How well likeness tells two texts of one sub-key from two of different ones, and what the heaps are worth"
    i, j = np.triu_indices(len(of), 1)
    same, picked = of[i] == of[j], of[heap == best]
    x, y = S[i, j][same], S[i, j][~same]
    return dict(auroc=auroc(x, y).value if min(len(x), len(y)) > 1 else None, rand=float(adjusted_rand_score(of, heap)),
        texts=len(of), picked=len(picked), purity=float(np.bincount(picked).max()/len(picked)))

class Study:
    "All figures of one victim under its keys"
    def __init__(self, bench, name):
        self.bench, self.a, self.name = bench, bench.a, name
        self.file = self.a.work/'rows'/f'{slug(name)}.jsonl'
        self.forgeries = self.a.work/'rows'/f'{slug(name)}-texts.jsonl'
        self.have, self.of = set(), {}
    def label(self, r): return tuple(r[k] for k in ('key', 'what', 'attacker', 'n', 'lam'))
    def keep(self, key, what, attacker='', n=0, lam=0., **figures):
        r = dict(victim=self.name, key=key, what=what, attacker=attacker, n=n, lam=lam) | figures
        self.bench.note()
        append(self.file, [r])
        self.have.add(self.label(r))
        self.bench.say(*(f'{v:.3f}' if isinstance(v, float) else v for v in r.values() if v == v))
    def lacks(self, *label): return label not in self.have
    def run(self, most, wait=True):
        "Figures after up to `most` texts, unless another process is at this victim and we do not `wait`"
        with FileLock(self.a.work/'rows'/f'{slug(self.name)}.lock', timeout=-1 if wait else 0):
            self.have = {self.label(r) for r in whole_lines(self.file)}
            self.attack(most)
    def attack(self, most):
        "Figures after up to `most` texts, of the first two keys until `most` is all"
        a, b = self.a, self.bench
        self.n = [x for x in a.n if x <= most]
        self.keys = a.keys if most == max(a.n) else a.keys[:2]
        for k in self.keys: self.of[k] = self.of.get(k) or Victim(b, self.name, k, self.of.get(a.keys[0]))
        if all(self.done(k) for k in self.keys): return b.say(self.name, 'is done')
        n = {k: max([x for x in self.n if self.is_first(k) or x <= a.others], default=0) for k in self.keys}
        jobs = [(f'{slug(self.name)}-{k}-{part}', self.of[k].writer, b.prompts[part][:n[k] if part == 'learn' else None])
                for k in self.keys for part in ('held', 'learn')]
        self.texts = b.kept(jobs, 11)
        self.plain = b.unmarked()
        of = {k: Attack(self, k, self.keys[(i + 1) % len(self.keys)]) for i,k in enumerate(self.keys) if not self.done(k)}
        if 'tell' in a.stages:
            for x in of.values(): x.tell()
        if 'short' in a.stages:
            for x in of.values(): x.short()
        if 'forge' not in a.stages: return
        for x in of.values(): x.controls()
        self.forge(of)
        for x in of.values(): x.wash()
    def is_first(self, key): return key == self.a.keys[0]
    def plan(self, key): return arms(self.a, self.of[key], self.is_first(key), self.n)
    def wanted(self, key): return learners(self.a, self.of[key], self.is_first(key), self.n)
    def to_wash(self, key):
        plan = self.plan(key)
        few = [250, max((x[1] for x in plan), default=0)]
        return [x for x in plan if x[1] in few and x[2] in (self.a.lam[0], *self.a.steal[:1])]
    def done(self, k):
        a, lacks = self.a, []
        if 'tell' in a.stages: lacks += [self.lacks(k, 'tell', *x, 0.) for x in self.wanted(k)]
        if 'short' in a.stages and self.of[k].geometric: lacks += [self.lacks(k, 'short', '', n, r) for r,ns in SHORT.items() for n in ns]
        if 'forge' in a.stages:
            lacks += [self.lacks(k, 'forged', *x) for x in self.plan(k)] + [self.lacks(k, 'unmarked', '', 0, 0.)]
            if a.washed: lacks += [self.lacks(k, 'washed', *x) for x in self.to_wash(k)]
        return not any(lacks)
    def of_key(self, k, part): return self.texts[f'{slug(self.name)}-{k}-{part}']
    def forge(self, of):
        "Forgeries of all keys and arms, in common batches"
        b, got, jobs = self.bench, {}, []
        for k,y in of.items(): jobs += [((k, x), forger(self.of[k], y.learn(*x[:2])[0], y.shape(*x)), b.prompts['fresh'])
                                        for x in self.plan(k) if self.lacks(k, 'forged', *x)]
        def done(at, prompts, texts):
            got.setdefault(at, []).extend(texts)
            if len(got[at]) == len(b.prompts['fresh']): of[at[0]].forged(at[1], got.pop(at))
        b.write(jobs, 15, done)

class Attack:
    "One key of a victim: what is learnt, and what is made of it"
    def __init__(self, study, key, rival):
        self.study, self.key, self.rival, self.learnt = study, key, rival, {}
        self.a, self.bench, self.victim = study.a, study.bench, study.of[key]
        self.held, self.mine = study.of_key(key, 'held'), study.of_key(key, 'learn')
        self.plain, self.pairs = study.plain['unmarked-learn'][:len(self.mine)], None
        self.views = None
    def keep(self, *label, **figures): self.study.keep(self.key, *label, **figures)
    def lacks(self, *label): return self.study.lacks(self.key, *label)
    def learn(self, attacker, n):
        "Scores, their deviation over unmarked pairs, and the mean of each unmarked text"
        if (attacker, n) in self.learnt: return self.learnt[attacker, n]
        s = self.victim
        if self.pairs is None: self.pairs = [s.pairs(t) for t in (self.mine, self.plain, self.study.plain['unmarked-held'])]
        own, other, none = self.pairs
        own, other = own.first(n), other.first(n)
        if attacker == 'sorted': own = self.heap(own, other.join(none))
        if attacker == 'host': self.weigh(own, self.mine[:n]), self.weigh(other, self.plain[:n])
        f = s.learner(attacker, own, other)
        u = f(none.w, none.x[:, None])[:, 0].float()
        self.learnt[attacker, n] = f, max(float(u.std()), 1e-12), none.by_text(u.cpu().numpy())
        return self.learnt[attacker, n]
    def heap(self, own, plain):
        "Pairs of the texts of one heap, and a row on how well they were sorted"
        s, n = self.victim, own.texts
        of = s.scheme.watermark.rule.draw([f'{self.key}/{p}/0' for p in self.bench.prompts['learn'][:n]])
        S = beside_unmarked(likeness(own.join(plain.first(PLAIN)), s.tokens, s.order, 1e8 if s.device.type == 'cuda' else 2e6), n)
        h = sorted_texts(S, s.keys)
        best, of = tightest(S, h), np.array(of)
        if self.lacks('sorted', 'sorted', n, 0.): self.keep('sorted', 'sorted', n, **how_sorted(S, h, of, best))
        return own.some(h == best)
    def shape(self, attacker, n, lam):
        "From learnt scores to logits"
        sigma = self.learn(attacker, n)[1]
        return (lambda v: lam*v) if attacker == 'counts' else (lambda v: lam*torch.tanh(v/sigma))
    def weigh(self, pairs, texts):
        "Make pairs count as much as the host doubted their token"
        p = self.bench.views(texts, self.bench.prompts['learn'][:len(texts)])
        pairs.weight = 1 - torch.cat([v[0][torch.as_tensor(at, device=v[0].device)] for v,at in zip(p, pairs.at)])
    def tell(self):
        "How well each learner's score tells fresh marked texts from unmarked ones, and from another key's"
        s, fresh, theirs = self.victim, None, None
        for attacker,n in self.study.wanted(self.key):
            if not self.lacks('tell', attacker, n, 0.): continue
            if fresh is None:
                fresh = s.pairs(self.held)
                if self.rival != self.key: theirs = s.pairs(self.study.of_key(self.rival, 'held'))
            f, _, y = self.learn(attacker, n)
            of = lambda p: p.by_text(f(p.w, p.x[:, None])[:, 0].float().cpu().numpy())
            x = of(fresh)
            e, r = auroc(x, y), auroc(x, of(theirs)) if theirs is not None else None
            more = dict(rival=r.value, rival_low=r.low, rival_high=r.high) if r else {}
            self.keep('tell', attacker, n, auroc=e.value, auroc_low=e.low, auroc_high=e.high, texts=len(x), **more)
    def short(self):
        "Beginnings of marked texts, whole and thinned out"
        if not self.victim.geometric: return
        for rate,lengths in SHORT.items():
            todo = [n for n in lengths if self.lacks('short', '', n, rate)]
            ids = self.bench.ids([delete_words(t, rate, i) for i,t in enumerate(self.held)] if todo and rate else self.held)
            for n in todo: self.keep('short', '', n, rate, **read(self.victim.scheme, [self.bench.tok.decode(x[:n]) for x in ids])[0])
    def controls(self):
        b, s = self.bench, self.victim.scheme
        for what,texts,prompts in (('marked', self.held, 'held'), ('unmarked', self.study.plain['unmarked-fresh'], 'fresh')):
            if not self.lacks(what, '', 0, 0.): continue
            p = b.ppl(texts, b.prompts[prompts])
            self.keep(what, **read(s, texts)[0], ppl=float(np.nanmedian(p)))
    def wash(self):
        "Marked texts with tokens replaced: at random, and by what was learnt"
        some, at = self.held[:self.a.washed], self.bench.prompts['held'][:self.a.washed]
        todo = [x for x in self.study.to_wash(self.key) if self.lacks('washed', *x)]
        if not some or not todo: return
        views = self.bench.views(some, at)
        if self.lacks('random wash', '', 0, 0.): self.washed(some, at, views, 'random wash')
        for x in todo: self.washed(some, at, views, 'washed', x, self.learn(*x[:2])[0], self.shape(*x))
    def washed(self, texts, prompts, views, what, x=('', 0, 0.), f=None, shape=None):
        out = wash(self.victim, f, shape, texts, views, np.random.default_rng(0))
        p = self.bench.ppl(out, prompts)
        self.keep(what, *x, **read(self.victim.scheme, out)[0], ppl=float(np.nanmedian(p)))
    def forged(self, x, texts):
        b, r = self.bench, {}
        r, m = read(self.victim.scheme, texts)
        p, other = b.ppl(texts, b.prompts['fresh'][:len(texts)]), self.study.of[self.rival].scheme
        if self.rival != self.key: r['rival_found'] = read(other, texts)[0]['found']
        append(self.study.forgeries, [dict(victim=self.study.name, key=self.key, attacker=x[0], n=x[1], lam=x[2], i=i, text=t,
            score=round(float(m['score'][i]), 4), p_value=float(f"{m['p_value'][i]:.4g}"), ppl=round(float(p[i]), 2) if i < len(p) else None)
            for i,t in enumerate(texts)])
        self.keep('forged', *x, **r, ppl=float(np.nanmedian(p)))

# ---------------------------------------------------------------- what is stored
def settings_of(a):
    "What a run was asked for, to stand beside its figures"
    return {k: v for k,v in vars(a).items() if not isinstance(v, Path) and v is not None and k not in ('collect', 'name')}

def command_of(settings):
    "The command of a run, from its settings; what does not change a figure is left out"
    usual, more = vars(options().parse_args(['--out', '.'])), []
    for k,v in settings.items():
        if k != 'batch' and v != usual[k]: more += [f'--{k.replace("_", "-")}', *map(str, v if isinstance(v, list) else [v])]
    return ' '.join([COMMAND, *([shlex.join(more)] if more else [])])

def machines(work):
    "The machines that made figures (the first one in full, others beside it), and those that wrote texts to learn from"
    runs, texts = whole_lines(work/'runs.jsonl'), whole_lines(work/'texts_by.jsonl')
    by = [m for i,m in enumerate(r['machine'] for r in runs) if m not in [r['machine'] for r in runs[:i]]]
    out = dict(runs=[dict(command=command_of(r['settings']), **r['settings']) for r in runs], **(by[0] if by else {}))
    if len(by) > 1: out |= dict(device=' and '.join(dict.fromkeys(m['device'] for m in by)), others=by[1:])
    return out | dict(texts_device=sorted({t['device'] for t in texts}))

def collect(a, sample=2):
    "A table of all victims so far, the scores of all forgeries, and a few of the forgeries of each arm"
    with FileLock(a.work/'collect.lock'):
        files = sorted((a.work/'rows').glob('*.jsonl'))
        rows = [r for f in files if not f.stem.endswith('-texts') for r in whole_lines(f)]
        forged = [r for f in files if f.stem.endswith('-texts') for r in whole_lines(f)]
        if not rows: return
        order = {v: i for i,v in enumerate(VICTIMS)}
        d = pd.DataFrame(rows)
        d = d.assign(o=d['victim'].map(order).fillna(99)).sort_values(['o', 'victim', 'key', 'what', 'attacker', 'n', 'lam'])
        label = ['victim', 'key', 'what', 'attacker', 'n', 'lam']
        d = d.drop(columns='o').drop_duplicates(label, keep='last').reset_index(drop=True)
        d.to_parquet(a.out/f'{a.name}.parquet', index=False)
        write_frame(a.out/f'{a.name}_scores.parquet', pd.DataFrame(forged).drop(columns='text', errors='ignore'), dict(p_value=4, score=7))
        write_texts(a.out/f'{a.name}_texts.jsonl.xz', [r for r in forged if r['i'] < sample])
        (a.out/f'{a.name}.json').write_text(json.dumps(dict(
            command=WHOLE if a.name == 'forging' else f'{COMMAND} --name {a.name}' + FRONT_RUN*(a.name == 'forging_front'), candidates=CANDIDATES, share=SHARE,
            victims={v: VICTIMS.get(v, (v, {})) for v in dict.fromkeys(d['victim'])},
            **machines(a.work)), indent=1) + '\n')

def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--work', type=Path, help='for texts and finished figures; a folder of --out if not given')
    ap.add_argument('--name', default='forging', help='of the files in OUT')
    ap.add_argument('--collect', action='store_true', help='gather what is finished in WORK, and no more')
    ap.add_argument('--victims', nargs='+', default=list(VICTIMS), help='names of VICTIMS, or kinds of the registry; front: the default, hashed widths, and peers at each width')
    ap.add_argument('--attackers', nargs='+', default=['rule', 'host', 'counts', 'sorted'],
        choices=['rule', 'host', 'counts', 'sorted'])
    ap.add_argument('--stages', nargs='+', default=['tell', 'forge', 'short'], choices=['tell', 'forge', 'short'])
    ap.add_argument('--host-for', nargs='+', default=['tournament'], help='victims of the learner with the host')
    ap.add_argument('--keys', type=int, nargs='+', default=[900, 901, 902])
    ap.add_argument('--n', type=int, nargs='+', default=[25, 100, 250, 1000, 2000])
    ap.add_argument('--first', type=int, default=250, help='up to so many texts for every victim, before more for any')
    ap.add_argument('--others', type=int, default=250, help='most texts of the other keys')
    ap.add_argument('--lam', type=float, nargs='+', default=[2.5, 5.])
    ap.add_argument('--steal', type=float, nargs='+', default=[7.5], help="strengths of the attacker 'counts'")
    ap.add_argument('--held', type=int, default=100)
    ap.add_argument('--forged', type=int, default=100)
    ap.add_argument('--use-held', type=int, help='on a slow machine: only so many of the held texts')
    ap.add_argument('--use-forged', type=int, help='likewise, of the prompts to forge after')
    ap.add_argument('--use-ppl', type=int, help='likewise, of the texts whose perplexity is taken')
    ap.add_argument('--forge-n', type=int, nargs='+', help='forge and wash only after so many texts; all if not given')
    ap.add_argument('--washed', type=int, default=100)
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=700 if torch.cuda.is_available() else 16)
    return ap

def arguments():
    a = options().parse_args()
    a.work, a.n = a.work or a.out/'forging', sorted(a.n)
    a.victims = list(dict.fromkeys(v for x in a.victims for v in (FRONT if x == 'front' else [x])))
    for d in (a.out, a.work): d.mkdir(parents=True, exist_ok=True)
    for v in a.victims:
        if v not in VICTIMS: find_scheme(v)
    return a

def main():
    a = arguments()
    if a.collect: return collect(a)
    torch.set_float32_matmul_precision('high')
    bench = Bench(a)
    bench.unmarked(wait=False)
    studies, failed = [Study(bench, v) for v in a.victims], {}
    for most in sorted({max([x for x in a.n if x <= a.first] or a.n), max(a.n)}):
        todo = [(s, False) for s in studies]
        while todo:
            s, wait = todo.pop(0)
            try:
                with torch.no_grad(): s.run(most, wait)
            except Timeout:
                bench.say(s.name, 'is in other hands')
                todo.append((s, True))
                continue
            except Exception:                                 # the others go on
                traceback.print_exc()
                failed[s.name] = True
            collect(a)
            if torch.cuda.is_available(): torch.cuda.empty_cache()
    if failed: raise SystemExit(f'no figures of {", ".join(failed)}: see the traceback above')

if __name__ == '__main__': main()
