"""Is a p-value of one in a million true? A text's score under ten million random keys and more.

    python nbs/studies/tail.py --out nbs/studies/data

Texts: human film reviews and unmarked continuations by the host (null_unmarked.jsonl.xz), cut to length. The text is fixed and the
key is random, as the key null has it. Of each text the token rows under a few real keys are taken (the p-value holds for the table at
hand, so this is no approximation), and for each of them the layers of very many keys are drawn. A layer's alignments are normal with
covariances cos(token)·cos(context), so they are drawn with these and not through matrices and the key's cipher: the same law, a
thousand times faster. What is drawn and what real keys give is compared (`real`). Counts are of scores above the library's own
thresholds, with its allowance for a key's lean and without.

Writes tail.parquet (one row a preset, text and table: the number of keys, what was counted, the kurtosis of one layer) and tail.json
(settings, the check with real keys, machine). About two minutes on one data-centre GPU; the parts in OUT/.tail are not made twice.
"""
import argparse, json, time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.evaluation.texts.content import machine, read_texts, study_key
from dew_nb.evaluation.texts.corpora import movie_reviews
from dew_nb.stats.keynull import key_null, pair_sum
from dew_nb.stats.null import NormalNull
from dew_nb.models.vectors import unit_rows

LEVELS = 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7
DATA = Path(__file__).parent/'data'

def cut_texts(tok, texts, length, n):
    "n texts of about `length` tokens, from texts joined"
    ids = tok.encode(' '.join(texts), add_special_tokens=False).ids
    return [tok.decode(ids[i*length:(i+1)*length]).strip() for i in range(min(n, len(ids)//length))]

def build(preset, host, encoders, key):
    "The scheme of a preset"
    name = 'use-multilingual' if preset == 'multilingual' else 'minilm'
    if name not in encoders: encoders[name] = load_encoder(name, device=host.device)
    return DEW.build(host, encoders[name], key, DEWConfig.preset(preset), progress=False)

def positions(wm, doc):
    "Tokens and contexts of the positions of a text that count"
    some = np.flatnonzero(doc.first)
    c = wm.contexts.encode(doc.windows)[torch.from_numpy(some)]
    return doc.tokens[some], unit_rows(c.float().to(wm.table.device))

def root(K):
    "F with F Fᵀ = K, for a covariance that may be singular"
    values, vectors = torch.linalg.eigh(K.double())
    F = vectors*values.clamp_min(0).sqrt()
    return F[:, values > 1e-7].float()

def signs(F, c, live, order, B, g):
    "(B, L) bits of random layers"
    x = torch.randn(B, F.shape[1], device=F.device, generator=g) @ F.T
    for _ in range(order-1): x *= torch.randn(B, c.shape[1], device=F.device, generator=g) @ c.T
    return torch.sign(x)*live

class Tally:
    "Counts of scores above thresholds, and moments of one layer's mean"
    def __init__(self, device, *thresholds):
        self.at = [torch.as_tensor(t, device=device, dtype=torch.float32) for t in thresholds]
        self.counts = [torch.zeros(len(t), dtype=torch.long, device=device) for t in self.at]
        self.moments, self.keys = torch.zeros(3, dtype=torch.double, device=device), 0
    def add(self, scores, layer):
        "One more batch of keys"
        top = scores[scores > min(t.min() for t in self.at)]
        for c,t in zip(self.counts, self.at): c += (top[:, None] >= t).sum(0)
        s2 = layer.double().square()
        self.moments += torch.stack([s2.sum(), s2.square().sum(), (s2**3).sum()])/s2.numel()*len(scores)
        self.keys += len(scores)

def tournament_keys(wm, ids, c, keys, tally, step, g):
    "Scores of a text under random layers"
    r = unit_rows(wm.rule.rows(torch.as_tensor(ids, device=c.device)).float())
    live, weights = (r.abs().amax(1) > 0).float(), wm.rule.weights
    F, m = root((r @ r.T)*(c @ c.T)), len(weights)
    for i in range(0, keys, step):
        n = min(step, keys - i)
        S = signs(F, c, live, wm.config.rule.order, n*m, g).sum(1)/len(ids)
        tally.add(S.view(n, m) @ weights, S)

def bias_keys(wm, ids, c, keys, tally, step, g):
    "Scores of a text under random projections of contexts; the tokens' is real"
    n, gamma, lam = wm.table.n, wm.config.rule.gamma, wm.config.rule.lam
    few = wm.blueprint.tokens.narrow(np.unique(ids), c.device)
    place = torch.searchsorted(few.some[0].to(c.device), torch.as_tensor(ids, device=c.device))
    e = few.some[1].to(c.device).float()[place]
    a, F = unit_rows(e @ torch.randn(e.shape[1], n, device=c.device, generator=g)), root(c @ c.T)
    for i in range(0, keys, step):
        k = min(step, keys - i)
        p = torch.einsum('lr,krn->kln', F, torch.randn(k, F.shape[1], n, device=c.device, generator=g))
        z = (p*a).sum(-1)/p.norm(dim=-1)
        s = lam*torch.tanh(gamma*n**.5*z).mean(1)
        tally.add(s, s)

def one_text(wm, text, keys, tables, budget, g):
    "A row for each table"
    doc = next(iter(wm.detector(reading='raw').reader.stream([text])))
    ids, c = positions(wm, doc)
    for t in range(tables):
        few = wm.narrow(ids).rekey(study_key(t, 'tail'))
        r = unit_rows(few.rule.rows(torch.as_tensor(ids, device=c.device)).float())
        pairs = pair_sum(few.rule.kernel, r, c).double().cpu().numpy()[None]
        null = key_null(few.rule, np.array([len(ids)]), pairs)
        plain = NormalNull(null.mean*0, null.sd, null.l_eff)
        at = [np.array([float(x.threshold(a)[0]) for a in LEVELS]) for x in (null, plain)]
        tally = Tally(c.device, *at)
        bias = wm.config.rule.name == 'bias'
        size = len(ids)*(few.table.n if bias else len(few.rule.weights))
        torch.set_float32_matmul_precision('high')                        # for drawing alone: thresholds want all digits
        (bias_keys if bias else tournament_keys)(few, ids, c, keys//tables, tally, max(1, budget//size), g)
        torch.set_float32_matmul_precision('highest')
        m2, m4, m6 = (tally.moments/tally.keys).tolist()
        sd = float(plain.sd[0])/(1 if bias else few.rule.sd)              # of one layer's mean
        yield dict(table=t, n_scored=len(ids), l_eff=float(null.l_eff[0]), keys=tally.keys,
                   kurtosis=m4/m2**2 - 3, sixth=m6/m2**3, spread=m2**.5/sd,
                   **{f'{n}_{a:g}': int(x) for n,cs in zip(('with', 'without'), tally.counts) for a,x in zip(LEVELS, cs.tolist())})

def real_keys(wm, cuts, keys):
    "z of texts under real keys, without the allowance, by length: what the drawn ones are compared with"
    texts, length = [t for c in cuts.values() for t in c], np.array([n for n,c in cuts.items() for _ in c])
    r = scores_over_keys(wm, [study_key(i, 'tail real') for i in range(keys)], texts, progress=False, reading='raw')
    z, one = r['score']/wm.rule.sd*np.sqrt(r['l_eff']), NormalNull(0., 1., 1.)
    def of(z): return dict(scores=z.size, spread=float(z.std()), kurtosis=float((z**4).mean()/(z**2).mean()**2 - 3),
                           **{f'{a:g}': float((z > one.isf(a)).mean()) for a in LEVELS[:4]})
    return {n: of(z[:, length == n]) for n in cuts}

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--presets', nargs='+', default=['tournament', 'multilingual', 'calibrated'])
    ap.add_argument('--lengths', nargs='+', type=int, default=[25, 50, 200, 800])
    ap.add_argument('--texts', type=int, default=5, help='of people, and as many of the host')
    ap.add_argument('--keys', type=float, default=2e7, help='for each text; fewer for long ones and for the bias rule')
    ap.add_argument('--tables', type=int, default=4, help='real keys whose token rows are taken')
    ap.add_argument('--real', type=int, default=1000, help='real keys for the check')
    ap.add_argument('--budget', type=float, default=5e8, help='numbers at a time')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def keys_for(a, preset, length):
    "How many keys a text is worth: the cost grows with its length"
    few = 1/100 if preset == 'calibrated' else min(1, 200/length)
    return max(1000, int(a.keys*few))

def main():
    a, t0 = arguments(), time.time()
    (a.out/'.tail').mkdir(parents=True, exist_ok=True)
    host, encoders, real = load_host(device=a.device), {}, {}
    tok = host.tokenizer.backend_tokenizer
    plain = [r['text'] for r in read_texts(DATA/'null_unmarked.jsonl.xz')]
    sources = dict(human=movie_reviews()[-4000:][:300], host=plain[:300])
    cuts = {(s, n): cut_texts(tok, x, n, a.texts) for s,x in sources.items() for n in a.lengths}
    for preset in a.presets:
        wm = build(preset, host, encoders, study_key(0, 'tail'))
        for length in a.lengths:
            part = a.out/'.tail'/f'{preset}-{length}.parquet'
            if part.exists(): continue
            rows, g = [], torch.Generator(wm.table.device).manual_seed(length)
            for s in sources:
                for i,text in enumerate(cuts[s, length]):
                    rows += [dict(preset=preset, source=s, length=length, text=i, **r) for r in
                             one_text(wm, text, keys_for(a, preset, length), a.tables, int(a.budget), g)]
            d = pd.DataFrame(rows)
            d.to_parquet(part, index=False)
            print(f'{time.time()-t0:.0f} s: {preset} {length}: {d["keys"].sum():.1e} keys, kurtosis of a layer {d["kurtosis"].mean():+.3f}',
                  *(f'{x:g}: {d[f"without_{x:g}"].sum()/d["keys"].sum()/x:.3f}' for x in LEVELS), flush=True)
        if preset == 'tournament' and a.real:
            real = real_keys(wm, {n: cuts['human', n] + cuts['host', n] for n in a.lengths if n <= 200}, a.real)
            print(f'{time.time()-t0:.0f} s: real keys', json.dumps(real), flush=True)
    d = pd.concat([pd.read_parquet(p) for p in sorted((a.out/'.tail').glob('*.parquet'))])
    d.to_parquet(a.out/'tail.parquet', index=False, compression='zstd')
    said = {k: v for k,v in vars(a).items() if k != 'out'}
    (a.out/'tail.json').write_text(json.dumps(dict(command='python nbs/studies/tail.py --out nbs/studies/data', settings=said,
        levels=LEVELS, real=real, seconds=round(time.time()-t0), **machine(host, *encoders.values())), indent=1) + '\n')

if __name__ == '__main__': main()
