"""What can be learnt of a key from marked and unmarked texts: scores for pairs of a window and a token.

A learner is made from the pairs of marked texts, those of unmarked ones, and what its scheme says of a pair; called with
windows (N, k) and tokens (N, m) it gives learnt scores (N, m), high where a token is likely to be favoured. `ByKernel`,
`ByForm` and `BySame` know the victim's rule and lack only its key; `ByRatio` knows no rule: it is the stealing attack of
Jovanović, Staab and Vechev (2024), which counts what follows whole, partial and empty contexts.
"""
import math

import numpy as np
import torch

from dew_nb.stats.sign_kernel import SignKernel, sign_correlation
from dew_nb.mark.windows import text_windows

TERMS, PIECE, RIDGE = 5, 16, 10.

class Pairs:
    "Windows, tokens and text numbers of some texts"
    def __init__(self, ids, k, special, device='cpu'):
        w, at = zip(*(text_windows(np.asarray(x), k, special) for x in ids))
        x = [np.asarray(x, np.int64)[p] for x,p in zip(ids, at)]
        self.w, self.x = (torch.from_numpy(np.concatenate(v)).to(device) for v in (w, x))
        self.i = np.repeat(np.arange(len(ids)), [len(p) for p in at])
        self.texts, self.at, self.c = len(ids), at, None
        self.weight = torch.ones(len(self.x), device=device)
    def first(self, n):
        "Those of the first n texts"
        new, keep = object.__new__(Pairs), int((self.i < n).sum())
        new.w, new.x, new.i, new.weight = (v[:keep] for v in (self.w, self.x, self.i, self.weight))
        new.texts, new.at = min(n, self.texts), self.at[:n]
        new.c = None if self.c is None else self.c[:keep]
        return new
    def some(self, keep):
        "Those of the texts that `keep` (booleans, one a text) names"
        new, at = object.__new__(Pairs), np.asarray(keep)[self.i]
        t = torch.from_numpy(at).to(self.x.device)
        new.w, new.x, new.weight = (v[t] for v in (self.w, self.x, self.weight))
        new.i, new.texts = (np.cumsum(keep) - 1)[self.i[at]], int(np.sum(keep))
        new.at, new.c = [a for a,k in zip(self.at, keep) if k], None if self.c is None else self.c[t]
        return new
    def join(self, other):
        "Those of both"
        new = object.__new__(Pairs)
        new.w, new.x, new.weight, new.c = (torch.cat([a, b]) for a,b in zip((self.w, self.x, self.weight, self.c), (other.w, other.x, other.weight, other.c)))
        new.i, new.texts, new.at = np.r_[self.i, other.i + self.texts], self.texts + other.texts, [*self.at, *other.at]
        return new
    def by_text(self, v):
        "The mean of a number a pair, for each text"
        n = np.bincount(self.i, minlength=self.texts)
        return np.bincount(self.i, v, minlength=self.texts)/np.maximum(n, 1)

def odd_polynomial(terms=TERMS, end=.97):
    "Coefficients of x, x^3, … that are nearest to s(x) = (2/π) asin x up to `end`"
    x = np.sin(np.linspace(0, math.asin(end), 2000))
    A = x[:, None]**(2*np.arange(terms) + 1)
    return np.linalg.lstsq(A, 2/math.pi*np.arcsin(x), rcond=None)[0].tolist()

class ByKernel:
    """Mean likeness to marked pairs, less that to unmarked ones, by the tournament's kernel s(ρ_T ρ_C) s(ρ_C)^(r-1)

    For many tokens after one window, pairs of one token are summed first: s(ρ_T ρ_C) is an odd polynomial in both (exact
    where the token is the same), so that the work is windows × pairs, not windows × tokens × pairs."""
    def __init__(self, own, other, tokens, contexts, order, cells=2e8):
        self.tokens, self.contexts, self.order, self.cells = tokens, contexts, order, cells
        c, x = torch.cat([own.c, other.c]), torch.cat([own.x, other.x])
        y = torch.cat([own.weight/own.weight.sum(), -other.weight/other.weight.sum()])
        x, by = torch.sort(x, stable=True)
        self.u, n = torch.unique_consecutive(x, return_counts=True)
        pieces = (n + PIECE - 1)//PIECE                       # each token's pairs in pieces of one size, the last one filled up
        self.piece = torch.repeat_interleave(torch.arange(len(n), device=x.device), pieces)
        start = (torch.cumsum(pieces, 0) - pieces)*PIECE
        rank = torch.arange(len(x), device=x.device) - torch.repeat_interleave(torch.cumsum(n, 0) - n, n)
        place = torch.repeat_interleave(start, n) + rank
        self.c = c.new_zeros(len(self.piece)*PIECE, c.shape[1])
        self.y = y.new_zeros(len(self.c))
        self.c[place], self.y[place] = c[by], y[by]
        self.pairs = c[by], y[by], torch.repeat_interleave(torch.arange(len(n), device=x.device), n)   # without the filling
        self.t, self.a = tokens[self.u], odd_polynomial()
    def __call__(self, w, ids):
        c, m, out = self.contexts(w), ids.shape[1], []
        rows = max(1, int(self.cells//(len(self.pairs[0]) if m == 1 else max(len(self.c), m*len(self.u)))))
        f = self.one if m == 1 else self.many
        for i in range(0, len(w), rows): out.append(f(c[i:i+rows], ids[i:i+rows]))
        return torch.cat(out)
    def alike(self, c, known, y):
        "Cosines of contexts, and what the hyperplanes leave of each pair"
        cc = (c @ known.T).clamp(-1, 1)
        return cc, y*sign_correlation(cc)**(self.order - 1) if self.order > 1 else y.expand_as(cc)
    def one(self, c, ids):
        known, y, of = self.pairs
        cc, base = self.alike(c, known, y)
        rho = (self.tokens[ids[:, 0]] @ self.t.T)[:, of]
        return (sign_correlation((rho*cc).clamp(-1, 1))*base).sum(1, keepdim=True)
    def by_token(self, v):
        out = v.new_zeros(len(v), len(self.u))
        return out.index_add_(1, self.piece, v.unflatten(1, (-1, PIECE)).sum(-1))
    def many(self, c, ids):
        cc, base = self.alike(c, self.c, self.y)
        same, square, W = self.by_token(base*sign_correlation(cc)), cc*cc, []
        power = base*cc
        for a in self.a:
            W.append(a*self.by_token(power))
            power = power*square
        rho = self.tokens[ids] @ self.t.T                     # (rows, m, distinct tokens)
        square, total = rho*rho, W[-1][:, None].expand_as(rho)
        for v in W[-2::-1]: total = v[:, None] + square*total
        out = (rho*total).sum(-1)
        at = torch.searchsorted(self.u, ids).clamp_max(len(self.u) - 1)
        return out + torch.where(self.u[at] == ids, (same - sum(W)).gather(1, at), 0.)

class ByForm:
    "t'Mc, with M the difference of mean outer products, whitened on both sides: for the bias rule"
    def __init__(self, own, other, tokens, contexts, ridge=RIDGE):
        self.tokens, self.contexts = tokens, contexts
        t, c = [tokens[p.x] for p in (own, other)], [p.c for p in (own, other)]
        D = t[0].T @ c[0]/len(t[0]) - t[1].T @ c[1]/len(t[1])
        def inverse(v):
            S = v.T @ v/len(v)
            return torch.linalg.inv(S + ridge*S.trace()/len(S)*torch.eye(len(S), device=S.device))
        self.m = inverse(torch.cat(t)) @ D @ inverse(torch.cat(c))
    def __call__(self, w, ids):
        return torch.einsum('nmd,nd->nm', self.tokens[ids], self.contexts(w) @ self.m.T)

@torch.no_grad()
def likeness(pairs, tokens, order, cells=2e6):
    "(texts, texts) mean of the tournament's kernel over all pairs of one text with all of another"
    at = torch.from_numpy(pairs.i).to(pairs.x.device)
    u, x = torch.unique(pairs.x, return_inverse=True)
    rho, total, kernel = tokens[u] @ tokens[u].T, pairs.c.new_zeros(pairs.texts, pairs.texts), SignKernel(order)
    for i in torch.arange(len(at), device=at.device).split(max(1, int(cells//len(at)))):
        K = kernel(rho[x[i]][:, x], pairs.c[i] @ pairs.c.T)
        by = K.new_zeros(len(i), pairs.texts).index_add_(1, at, K)
        total.index_add_(0, at[i], by)
    n = torch.bincount(at, minlength=pairs.texts).clamp_min(1).float()
    return (total/(n[:, None]*n)).double().cpu().numpy()

def beside_unmarked(K, n, ridge=.003):
    "Likeness of the first n texts: cosines, in units of what the others, unmarked ones, vary among themselves; no text leans to all"
    u = K[:, n:].mean(1)
    K = K - u[:, None] - u + u[n:].mean()
    M, A, U = K[:n, :n], K[:n, n:], K[n:, n:]
    S = M - A @ np.linalg.solve(U + ridge*np.trace(U)*np.eye(len(U)), A.T)
    S = S/np.sqrt(np.outer(np.diag(S), np.diag(S)))
    np.fill_diagonal(S, 0)
    r = S.sum(1)/(n - 1)
    S = S - r[:, None] - r + r.mean()
    np.fill_diagonal(S, 0)
    return S

def sorted_texts(S, k, seed=0):
    "Texts in k heaps, by k-means on the leading directions of a likeness"
    from sklearn.cluster import KMeans
    k, (v, e) = min(k, len(S)), np.linalg.eigh(S)
    return KMeans(k, n_init=20, random_state=seed).fit_predict(e[:, -k:]*np.sqrt(np.maximum(v[-k:], 0)))

def tightest(S, heap):
    "The heap whose texts are most alike among themselves, of those that are not too small"
    n = np.bincount(heap)
    def mean(h): return S[np.ix_(heap == h, heap == h)].sum()/(n[h]*(n[h] - 1)) if n[h] > 1 else -np.inf
    return max((h for h in range(len(n)) if n[h] >= n.mean()/2), key=mean)

def named(w, ids, width, code=None):
    "One number for each pair of the last `width` tokens (or what `code` makes of them) and a token"
    h = torch.zeros(len(w), dtype=torch.int64, device=w.device) if code is None else code(w)
    if code is None:
        for j in range(width): h = (h*1_000_003 + w[:, -1-j] + 1) % (1 << 44)
    return h[:, None]*(1 << 18) + ids

class Counted:
    "How often each name stood in marked and in unmarked texts"
    def __init__(self, a, b):
        self.known, at = torch.unique(torch.cat([a, b]), return_inverse=True)
        self.n = [torch.bincount(v, minlength=len(self.known)).float() for v in (at[:len(a)], at[len(a):])]
    def look_up(self, names, values):
        at = torch.searchsorted(self.known, names).clamp_max(len(self.known) - 1)
        return torch.where(self.known[at] == names, values[at], torch.zeros_like(values[:1]))

class BySame:
    "How much oftener a pair stood in marked texts: for rules that hash the window, or know none"
    def __init__(self, own, other, width, code=None):
        self.width, self.code = width, code
        a, b = (named(p.w, p.x[:, None], width, code)[:, 0] for p in (own, other))
        self.counted = Counted(a, b)
        n = [v/len(x) for v,x in zip(self.counted.n, (a, b))]
        self.value = (n[0] - n[1])/(n[0] + n[1] + 1/len(a))
    def __call__(self, w, ids):
        return self.counted.look_up(named(w, ids, self.width, self.code), self.value)

class ByRatio:
    """min(r, 2)/2 where r >= 1, with r the frequency of a token in marked over that in unmarked texts, after the whole window
    (weight 2), after its last two and its last token (1 in all) and anywhere (1/2): the stealing attack's score and weights"""
    def __init__(self, own, other, width=3, least=2, mass=7e-5):
        self.parts = [(width, 2.), (2, .5), (1, .5), (0, .5)]
        self.found = [self.ratios(own, other, k, least, mass) for k,_ in self.parts]
    @staticmethod
    def ratios(own, other, k, least, mass):
        "Counted pairs and the score of each"
        pairs = [named(p.w, p.x[:, None], k)[:, 0] for p in (own, other)]
        both, after = Counted(*pairs), Counted(*(v >> 18 for v in pairs))
        room = [after.look_up(both.known >> 18, n).clamp_min(1) for n in after.n]
        p = [n/r for n,r in zip(both.n, room)]
        r = torch.where(both.n[1] > 0, p[0]/p[1].clamp_min(1e-30), torch.full_like(p[0], 2.))
        often = both.n[0] >= (least if k else max(least, mass*len(own.x)))
        return both, torch.where((r >= 1) & often, r.clamp_max(2.)/2, torch.zeros_like(r))
    def __call__(self, w, ids):
        total = 0.
        for (k,weight),(counted,value) in zip(self.parts, self.found):
            total = total + weight*counted.look_up(named(w, ids, k), value)
        return total/sum(v for _,v in self.parts)
