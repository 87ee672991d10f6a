"""What a translation keeps of a mark on words, foreseen from texts and their translations, without writing any.

    for p in debian-faq debian-faq-de debian-faq-fr debian-faq-it; do apt-get download $p; done
    for d in *.deb; do dpkg -x $d unpacked; done
    python nbs/studies/words_proxy.py --pages unpacked/usr/share/doc/debian/FAQ --out nbs/studies/data

Scores of a text under a random key have covariances K (the rule's kernel). Suppose that every unit of the English text was given a
score of 1.2 standard deviations. Then a translated unit's expected score is k K⁻¹ 1.2, as for jointly normal scores, and the
translation's z follows. What asks for loops: kernel values of a unit's window with earlier ones and the same word. `similar` is the mean over units of the
largest, `pull` of the sum of their squares. With `word`, a word that was marked is passed over after windows with a kernel of so much: such
units have no score of their own, and such windows ask for nothing.

Rows that OUT/words_proxy.json has already are not made again (their texts must be the same). The texts: stored ones without a mark and their French by OPUS-MT, and, with --pages, a handbook that people have translated.
"""
import argparse, html, json, re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from dew_nb import load_encoder
from dew_nb.evaluation.studies.store import load_results
from dew_nb.stats.sign_kernel import SignKernel
from dew_nb.models.vectors import unit_rows
from dew_nb.mark.words import words
from dew_nb.mark.wordspace import Lexicon, WordContexts, WordProjection, packaged_projection

PLAIN = dict(order=2, k=4, decay=.5, n=24, width=48, word=1., equal=False)      # nothing is passed over
CHOICES = [{}, *[dict(order=o) for o in (1, 3)], dict(order=(1, 2)), *[dict(k=k) for k in (2, 6)], *[dict(decay=d) for d in (.35, .7, 1.)],
           *[dict(n=n) for n in (12, 64)], *[dict(width=w) for w in (16, 32, 64)],
           dict(order=3, width=16), dict(n=512, width=512), dict(equal=True), *[dict(word=w) for w in (.3, .1, .03)],
           dict(order=1, word=.1), dict(order=1, word=.03), dict(width=16, word=.1)]
SCORE, NUGGET, SIZE = 1.2, .05, 200


class Equal(WordProjection):
    "Vectors of words, all of one length"
    def apply(self, e): return unit_rows(super().apply(e))


def stored_pairs(folder, texts):
    "Unmarked texts and their translations"
    t = load_results(folder).texts
    t = t[t['source'].isin(['none', 'human']) & t['attack'].isin(['none', 'French'])]
    t = t.pivot_table(index=['source', 'seed', 'i'], columns='attack', values='text', aggfunc='first').dropna()
    return t[['none', 'French']].to_numpy()[:texts].tolist()


def paragraphs(path):
    "The paragraphs of a page"
    found = re.findall(r'<p[^>]*>(.*?)</p>', path.read_text(encoding='utf8', errors='replace'), re.S)
    return [' '.join(html.unescape(re.sub('<[^>]*>', '', x)).split()) for x in found]


def page_pairs(folder, language, texts):
    "English texts of 200 units and their translations, from pages with as many paragraphs in both languages"
    found = []
    for page in sorted((folder/language).glob(f'*.{language}.html')):
        there = folder/page.name.replace(f'.{language}.', '.en.')
        if not there.exists() or len(e := paragraphs(there)) != len(f := paragraphs(page)): continue
        text = ['', '']
        for a,b in zip(e, f):
            if len(a.split()) < 12 or a == b or not .5 < len(a)/max(1, len(b)) < 1.6: continue
            text = [f'{text[0]} {a}', f'{text[1]} {b}']
            if len(words(text[0])) >= SIZE: found, text = [*found, text], ['', '']
    return found[:texts]


def kernel_of(order):
    "The kernel of an order, or of layers of several in equal shares"
    ks = [SignKernel(o) for o in (order if isinstance(order, tuple) else (order,))]
    return lambda rho_T, rho_C: sum(k(rho_T, rho_C) for k in ks)/len(ks)


def rows_of(space, text, n):
    "Units and contexts of a text"
    ids = np.array(space.tok.encode_batch([text])[0].ids)
    at = np.arange(space.k, len(ids))
    c = space.encode(ids[at[:,None] + np.arange(-space.k, 0)])
    return unit_rows(space.tok.rows[torch.from_numpy(ids[at])][:, :n]), c


def foresee(space, kernel, n, english, other, word):
    "z of the translation, and how similar windows are, at most and in all"
    (t, c), (u, d) = (rows_of(space, x, n) for x in (english, other))
    K = kernel(t @ t.T, c @ c.T)
    marked = ((torch.tril(K, -1) <= word) | (t @ t.T < .999)).all(1)
    t_m, c_m = t[marked], c[marked]
    K = K[marked][:, marked] + NUGGET*torch.eye(len(t_m))
    gain = kernel(u @ t_m.T, d @ c_m.T) @ torch.linalg.solve(K, torch.full((len(t_m),), SCORE))
    rho = torch.tril(c @ c.T, -1).clamp_min(0)
    z = gain.sum()/kernel(u @ u.T, d @ d.T).sum().sqrt()
    same = kernel(torch.ones_like(rho), rho)
    same = same*(same <= word)
    return float(z), float(same.amax(1).mean()), float(same.square().sum(1).mean()), float(marked.float().mean())


def row(lexicon, c, both):
    "What a choice is expected to give, for each set of texts"
    space, out = WordContexts(lexicon, c['k'], c['width'], c['decay']), {}
    for name,pairs in both.items():
        x = np.array([foresee(space, kernel_of(c['order']), c['n'], *p, c['word']) for p in pairs])
        out |= {f'z {name}': x[:,0].mean()}
        if name == 'French': out |= dict(sd=x[:,0].std(), similar=x[:,1].mean(), pull=x[:,2].mean(), marked=x[:,3].mean())
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, default=Path(__file__).parent/'data'/'evaluation')
    ap.add_argument('--pages', type=Path, help='folder of the handbook')
    ap.add_argument('--other', type=Path, help='another words.safetensors, to compare')
    ap.add_argument('--texts', type=int, default=60)
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    torch.set_num_threads(1)
    encoder = load_encoder('use-multilingual')
    P, both = packaged_projection(encoder), dict(French=stored_pairs(a.results, a.texts))
    if a.pages: both |= {f'{l} by people': page_pairs(a.pages, l, a.texts//5) for l in ('de', 'fr', 'it')}
    lexica = {64: Lexicon(encoder, P), 512: Lexicon(encoder, WordProjection(P.mean, torch.eye(512))), 'equal': Lexicon(encoder, Equal(P.mean, P.P))}
    a.out.mkdir(parents=True, exist_ok=True)
    file, texts = a.out/'words_proxy.json', {k: len(v) for k,v in both.items()}
    kept = json.loads(file.read_text()) if file.exists() else dict(texts=texts, rows=[])
    found = kept['rows'] if kept['texts'] == texts else []
    todo = [(c, None) for c in CHOICES]
    if a.other:
        o = load_file(a.other)
        other = Lexicon(encoder, WordProjection(o['mean'].float(), o['P'].float()))
        todo += [(dict(c, projection='other'), other) for c in ({}, dict(decay=.7))]
    for change,lex in todo:
        c = PLAIN | change
        if json.loads(json.dumps(change)) in [r['change'] for r in found]: continue
        lex = lex or lexica['equal' if c['equal'] else 512 if c['width'] > 64 else 64]
        found.append(dict(change=change, **row(lex, c, both)))
        print(found[-1], flush=True)
    file.write_text(json.dumps(dict(texts=texts, preset=PLAIN, rows=found), indent=1))


if __name__ == '__main__': main()
