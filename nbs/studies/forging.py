"""Learning a key by the rule's own kernel: what it tells, what can be forged with it, what can be washed out.

    python nbs/studies/forging.py --out nbs/studies/data

The attacker has the host, the rule, the table of contexts and the vectors of all tokens, n texts that the victim marked with
one key, and as many unmarked ones; only the key is missing. Two pairs of token and context are alike as far as their scores
covary over keys, so the learnt score of a pair is its mean likeness to the marked pairs, less that to the unmarked ones:

  tournament   s(rho_T rho_C) s(rho_C)^(r-1), the kernel of 26_tournament
  bias         rho_T rho_C after whitening both sides: the bilinear form of secrecy.py
  KGW, SynthID the same window and the same token (their hashes know no other likeness), counted
  Unigram      the same token, counted

For every victim and n: how well the learnt score tells other texts of this key from those of another key; how many texts
that a forger writes with lam*tanh(learnt/deviation) on the host's 64 likeliest tokens are accepted by the true detector; and
what is left of marked texts when their best 30% of tokens, by the learnt score, are replaced with likely tokens that score low
(beside as many replaced at random). The victim 'tournament, host known' is the tournament once more, for a learner who weights
each pair with 1 - the host's probability of its token.

One GPU, alone: some two minutes a victim. Goes on where it stopped, victim by victim.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.content import machine
from dew_nb.evaluation.corpora import build_corpus
from dew_nb.evaluation.likelihood import perplexity
from dew_nb.evaluation.registry import SCHEMES
from dew_nb.evaluation.sampling import complete
from dew_nb.rates import auroc
from dew_nb.tables import unit_vectors
from dew_nb.tournament import SignKernel
from dew_nb.windows import last_windows, special_mask, text_windows

VICTIMS = {
    'tournament': ('dew', dict(preset='tournament')),
    'tournament, host known': ('dew', dict(preset='tournament')),
    'order 1': ('dew', dict(preset='tournament', order=1)),
    'order 3': ('dew', dict(preset='tournament', order=3)),
    'bias': ('dew', dict(preset='calibrated', lam=2.5)),
    'SynthID': ('synthid', {}),
    'KGW': ('kgw', dict(width=3, gamma=.5, delta=2.)),
    'Unigram': ('unigram', dict(gamma=.5, delta=2.))}
CANDIDATES, RIDGE, SHARE = 64, 10., .3

# ---------------------------------------------------------------- what an attacker sees
class Pairs:
    "Windows, tokens and text numbers of some texts"
    def __init__(self, s, texts, weights=None):
        ids = s.host.tokenizer(list(texts), add_special_tokens=False)['input_ids']
        w, at = zip(*(text_windows(np.asarray(x), s.k, s.special) for x in ids))
        self.w = torch.from_numpy(np.concatenate(w)).to(s.device)
        self.x = torch.from_numpy(np.concatenate([np.asarray(x)[p] for x,p in zip(ids, at)])).to(s.device)
        self.i = np.repeat(np.arange(len(ids)), [len(p) for p in at])
        self.ids, self.at, self.weight = ids, at, torch.ones(len(self.x), device=s.device)
    def first(self, n):
        new, keep = object.__new__(Pairs), int((self.i < n).sum())
        new.w, new.x, new.i, new.weight = (v[:keep] for v in (self.w, self.x, self.i, self.weight))
        return new
    def by_text(self, v): return np.bincount(self.i, v)/np.maximum(np.bincount(self.i), 1)

# ---------------------------------------------------------------- learners: score(windows, tokens (N, m)) -> (N, m)
class ByKernel:
    "Mean likeness to marked pairs, less that to unmarked ones, by the tournament's kernel"
    def __init__(self, s, own, other):
        self.s, self.kernel = s, SignKernel(s.scheme.config.order)
        self.c = s.contexts(torch.cat([own.w, other.w]))
        self.x, self.y = torch.cat([own.x, other.x]), torch.cat(
            [own.weight/own.weight.sum(), -other.weight/other.weight.sum()])
    def __call__(self, w, ids, cells=3e8):
        c, out = self.s.contexts(w), []
        rows = max(1, int(cells//(ids.shape[1]*len(self.x))))
        for a in range(0, len(w), rows):
            cc, tt = c[a:a+rows] @ self.c.T, self.s.tokens[ids[a:a+rows]]
            part = tt @ self.s.tokens[self.x].T                             # (rows, m, pairs)
            out.append((self.kernel(part, cc[:, None].expand_as(part)) @ self.y))
        return torch.cat(out)

class ByForm:
    "t'Mc, with M the difference of mean outer products, whitened on both sides"
    def __init__(self, s, own, other):
        self.s = s
        t = [s.tokens[p.x] for p in (own, other)]
        c = [s.contexts(p.w) for p in (own, other)]
        D = t[0].T @ c[0]/len(t[0]) - t[1].T @ c[1]/len(t[1])
        def inverse(v):
            S = v.T @ v/len(v)
            return torch.linalg.inv(S + RIDGE*S.trace()/len(S)*torch.eye(len(S), device=S.device))
        self.m = inverse(torch.cat(t)) @ D @ inverse(torch.cat(c))
    def __call__(self, w, ids):
        return torch.einsum('nmd,nd->nm', self.s.tokens[ids], self.s.contexts(w) @ self.m.T)

class ByCount:
    "How much oftener a pair stood in marked texts; without a window, how much oftener a token did"
    def __init__(self, s, own, other, width):
        self.s, self.width = s, width
        a, b = (self.names(p.w, p.x[:, None])[:, 0] for p in (own, other))
        self.known, at = torch.unique(torch.cat([a, b]), return_inverse=True)
        n = [torch.bincount(v, minlength=len(self.known)).float() for v in (at[:len(a)], at[len(a):])]
        self.value = (n[0]/len(a) - n[1]/len(b))/(n[0]/len(a) + n[1]/len(b) + 1/len(a))
    def names(self, w, ids):
        h = torch.zeros(len(w), dtype=torch.int64, device=w.device)
        for j in range(self.width): h = (h*1_000_003 + w[:, -1-j] + 1) % (1 << 44)
        return h[:, None]*(1 << 18) + ids
    def __call__(self, w, ids):
        k = self.names(w, ids)
        at = torch.searchsorted(self.known, k).clamp_max(len(self.known) - 1)
        return torch.where(self.known[at] == k, self.value[at], 0.)

def learner(s, own, other):
    "The learner that knows a victim's rule"
    if s.kind == 'dew': return (ByForm if s.scheme.config.rule == 'bias' else ByKernel)(s, own, other)
    return ByCount(s, own, other, 0 if s.kind == 'unigram' else 3)

# ---------------------------------------------------------------- a victim
class Victim:
    "One scheme under one key, its texts and what an attacker can compute"
    def __init__(self, a, host, enc, name, key):
        self.a, self.host, self.name, self.device = a, host, name, host.model.device
        self.kind, params = VICTIMS[name]
        cls = SCHEMES[self.kind]
        self.scheme = cls(host, enc, key, **params)
        self.rival = self.scheme.rekey(key + 100)
        self.k = 3
        self.special = np.array(sorted(set(host.tokenizer.all_special_ids)))
        self.mask = special_mask(self.special).to(self.device)
        if self.kind == 'dew':
            wm = self.scheme.watermark
            self.k, self.encode = wm.contexts.k, wm.contexts
            tokens = wm.blueprint.tokens
            self.tokens = unit_vectors(tokens.embeddings, tokens.whitening).float().to(self.device)
    def contexts(self, w):
        if self.kind != 'dew': return w
        if not getattr(self.encode, 'needs_encoder', True): return self.encode.encode(w).to(self.device)
        return self.encode.encode(w.cpu().numpy()).to(self.device).float()
    def write(self, prompts, seed, processor):
        a = self.a
        return complete(self.host, prompts, a.tokens, seed=seed, processor=processor, batch_size=a.batch,
                        min_new_tokens=a.tokens, no_repeat_ngram_size=0)
    def marked(self, scheme, prompts, seed):
        if getattr(scheme, 'warped', False):
            from dew_nb.evaluation.bench import Bench
            how = dict(tokens=self.a.tokens, temperature=1., top_p=1., top_k=0, no_repeat_ngram=0,
                       min_tokens=self.a.tokens)
            return Bench(str(self.device), self.a.batch).generate(scheme, self.host, prompts, seed, how)
        return self.write(prompts, seed, scheme.processor)

def probabilities(s, texts, prompts):
    "The host's probability of every scored token, beside the pairs of the same texts"
    p, out = Pairs(s, texts), []
    with torch.no_grad():
        for ids,at,prompt in zip(p.ids, p.at, prompts):
            left = s.host.tokenizer(prompt)['input_ids']
            x = torch.tensor([left + list(ids)], device=s.device)
            q = s.host.model(x).logits[0].float().softmax(-1)
            where = torch.as_tensor(np.asarray(at) + len(left), device=s.device)
            out.append(q[where - 1, x[0, where]])
    p.weight = 1 - torch.cat(out)
    return p

# ---------------------------------------------------------------- what is done with it
def tell(s, f, A, B):
    "AUROC of the learnt score: other texts of the key against another key's"
    x, y = (p.by_text(f(p.w, p.x[:, None])[:, 0].float().cpu().numpy()) for p in (A, B))
    return auroc(x, y).value

def forger(s, f, sigma, lam):
    "Adds lam*tanh(learnt/sigma) to the likeliest tokens"
    def make(width):
        def go(ids, scores):
            w, full = last_windows(ids, width, s.k, s.mask)
            if not bool(full.any()): return scores
            few = scores.topk(CANDIDATES, 1).indices
            b = lam*torch.tanh(f(w.to(ids.device), few).to(scores)/sigma)
            return scores.scatter_add(1, few, b*full[:, None].to(scores))
        return go
    return make

def wash(s, f, texts, prompts, rng):
    "Texts with their best-scoring 30% of tokens replaced by low-scoring likely ones; f None: at random"
    out, tok = [], s.host.tokenizer
    with torch.no_grad():
        for text,prompt in zip(texts, prompts):
            p, left = Pairs(s, [text]), tok(prompt)['input_ids']
            ids, at = list(p.ids[0]), torch.as_tensor(p.at[0])
            x = torch.tensor([left + ids], device=s.device)
            few = s.host.model(x).logits[0, at.to(s.device) + len(left) - 1].topk(8, 1).indices
            n = int(SHARE*len(at))
            if f is None:
                best = torch.as_tensor(rng.permutation(len(at))[:n])
                pick = few[best.to(s.device), torch.as_tensor(rng.integers(0, 8, n)).to(s.device)]
            else:
                best = f(p.w, p.x[:, None])[:, 0].topk(n).indices.cpu()
                low = f(p.w[best.to(s.device)], few[best.to(s.device)])
                pick = few[best.to(s.device)].gather(1, low.argmin(1, keepdim=True))[:, 0]
            for j,v in zip(at[best].tolist(), pick.tolist()): ids[j] = v
            out.append(tok.decode(ids))
    return out

def read(scheme, texts):
    "Share accepted at 1%, and the mean score"
    m = scheme.measure(texts)
    return dict(found=float((m['p_value'] <= .01).mean()), score=float(np.mean(m['score'])))

def study(s, key):
    "All figures of one victim under one key"
    a, rows, t0 = s.a, [], time.time()
    P = list(build_corpus(s.host, n=max(a.n) + a.held + a.forged, seed=77).prompts)
    learn, held, fresh = P[:max(a.n)], P[max(a.n):max(a.n)+a.held], P[-a.forged:]
    mine, plain = s.marked(s.scheme, learn, 11), s.write(learn, 12, None)
    more, theirs = s.marked(s.scheme, held, 13), s.marked(s.rival, held, 14)
    known = 'host known' in s.name
    own = probabilities(s, mine, learn) if known else Pairs(s, mine)
    other = probabilities(s, plain, learn) if known else Pairs(s, plain)
    A, B, rng = Pairs(s, more), Pairs(s, theirs), np.random.default_rng(0)
    some = more[:a.washed]
    base = dict(victim=s.name, key=key, n=0)
    rows.append(base | dict(what='marked') | read(s.scheme, more))
    rows.append(base | dict(what='random wash') | read(s.scheme, wash(s, None, some, held, rng)))
    free = s.write(fresh, 15, None)
    ppl = lambda t: float(np.median(perplexity(s.host, t, fresh, batch_size=64).values))
    rows.append(base | dict(what='unmarked', ppl=ppl(free)) | read(s.scheme, free))
    for n in a.n:
        f = learner(s, own.first(n), other.first(n))
        base = dict(victim=s.name, key=key, n=n)
        rows.append(base | dict(what='tell', auroc=tell(s, f, A, B)))
        U = other.first(min(n, 25))
        sigma = float(f(U.w, U.x[:, None]).std())
        for lam in a.lam if n in a.forge_n else ():
            t = s.write(fresh, 15, forger(s, f, sigma, lam))
            rows.append(base | dict(what='forged', lam=lam, ppl=ppl(t)) | read(s.scheme, t)
                        | {f'rival_{k}': v for k,v in read(s.rival, t).items()})
        if n in a.forge_n: rows.append(base | dict(what='washed') | read(s.scheme, wash(s, f, some, held, rng)))
        print(s.name, key, n, f'{time.time()-t0:.0f} s', rows[-1], flush=True)
    return rows

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--victims', nargs='+', default=list(VICTIMS), choices=list(VICTIMS))
    ap.add_argument('--keys', type=int, nargs='+', default=[900])
    ap.add_argument('--n', type=int, nargs='+', default=[25, 100, 250, 1000])
    ap.add_argument('--forge-n', type=int, nargs='+', default=[25, 250, 1000])
    ap.add_argument('--lam', type=float, nargs='+', default=[2.5, 5.])
    ap.add_argument('--held', type=int, default=100)
    ap.add_argument('--forged', type=int, default=64)
    ap.add_argument('--washed', type=int, default=32)
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=500)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    host, enc = load_host(), load_encoder()
    f = a.out/'forging.parquet'
    done = pd.read_parquet(f).to_dict('records') if f.exists() else []
    for key in a.keys:
        for v in a.victims:
            if any((r['victim'], r['key']) == (v, key) for r in done): continue
            done += study(Victim(a, host, enc, v, key), key)
            pd.DataFrame(done).to_parquet(f, index=False)
            torch.cuda.empty_cache()
    (a.out/'forging.json').write_text(json.dumps(dict(
        command='python nbs/studies/forging.py --out nbs/studies/data', candidates=CANDIDATES, ridge=RIDGE, share=SHARE,
        settings={k: v for k,v in vars(a).items() if not isinstance(v, Path)}, **machine(host, enc)), indent=1) + '\n')

if __name__ == '__main__': main()
