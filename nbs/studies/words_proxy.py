"""What a translation keeps of a mark on words, foreseen from stored texts and their translations, without writing any.

    python nbs/studies/words_proxy.py --out nbs/studies/data

Scores of a text under a random key have covariances K (the rule's kernel). Suppose that every unit of the English text was given a
score of 1.2 standard deviations. Then a translated unit's expected score is k K⁻¹ 1.2, as for jointly normal scores, and the
translation's z follows. `similar` is the mean over units of the largest kernel value with an earlier window and the same word: what asks for loops.
"""
import argparse, json
from pathlib import Path

import numpy as np
import torch

from dew_nb import load_encoder
from dew_nb.evaluation.store import load_results
from dew_nb.tournament import SignKernel
from dew_nb.whitening import unit_rows
from dew_nb.wordspace import Lexicon, WordContexts, WordProjection, packaged_projection

PRESET = dict(order=2, k=4, decay=.7, n=24, width=64)
CHOICES = [{}, *[dict(order=o) for o in (1, 3)], *[dict(k=k) for k in (2, 6)], *[dict(decay=d) for d in (.35, .5, 1.)],
           *[dict(n=n) for n in (12, 64)], *[dict(width=w) for w in (16, 32)],
           dict(order=3, width=16), dict(n=512, width=512)]
SCORE, NUGGET = 1.2, .05


def pairs(folder, texts):
    "Unmarked texts and their translations"
    t = load_results(folder).texts
    t = t[t['source'].isin(['none', 'human']) & t['attack'].isin(['none', 'French'])]
    t = t.pivot_table(index=['source', 'seed', 'i'], columns='attack', values='text', aggfunc='first').dropna()
    return t[['none', 'French']].to_numpy()[:texts]


def rows_of(space, text, n):
    "Units and contexts of a text"
    ids = np.array(space.tok.encode_batch([text])[0].ids)
    at = np.arange(space.k, len(ids))
    c = space.encode(ids[at[:,None] + np.arange(-space.k, 0)])
    return unit_rows(space.tok.rows[torch.from_numpy(ids[at])][:, :n]), c


def foresee(space, kernel, n, english, french):
    "z of the translation, and how similar windows are"
    (t, c), (u, d) = (rows_of(space, x, n) for x in (english, french))
    K = kernel(t @ t.T, c @ c.T) + NUGGET*torch.eye(len(t))
    gain = kernel(u @ t.T, d @ c.T) @ torch.linalg.solve(K, torch.full((len(t),), SCORE))
    rho = torch.tril(c @ c.T, -1).clamp_min(0)
    z = gain.sum()/kernel(u @ u.T, d @ d.T).sum().sqrt()
    return float(z), float(kernel(torch.ones_like(rho), rho).amax(1).mean())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, default=Path(__file__).parent/'data'/'evaluation')
    ap.add_argument('--texts', type=int, default=60)
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    torch.set_num_threads(1)
    encoder = load_encoder('use-multilingual')
    P, both, found = packaged_projection(encoder), pairs(a.results, a.texts), []
    lexica = {64: Lexicon(encoder, P), 512: Lexicon(encoder, WordProjection(P.mean, torch.eye(512)))}
    for change in CHOICES:
        c = PRESET | change
        space = WordContexts(lexica[512 if c['width'] > 64 else 64], c['k'], c['width'], c['decay'])
        x = np.array([foresee(space, SignKernel(c['order']), c['n'], *p) for p in both])
        found.append(dict(change=change, z=x[:,0].mean(), sd=x[:,0].std(), similar=x[:,1].mean()))
        print(change or 'the preset', np.round(x.mean(0), 3), flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out/'words_proxy.json').write_text(json.dumps(dict(texts=len(both), preset=PRESET, rows=found), indent=1))


if __name__ == '__main__': main()
