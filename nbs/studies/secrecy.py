"""What someone who knows the scheme, but not the key, learns from marked texts, and whether they can forge.

    python nbs/studies/secrecy.py learn forge --work WORK --donors results/donors --out nbs/studies/data

Stages, each of which goes on where it stopped; name one or several:
  learn    how well n texts of a key tell its other texts from another key's, for texts that the main
           table has stored (secrecy_learn.parquet)
  forge    what was learnt from n texts of a key is added to the host's logits, and the texts are scored by
           the true detector of that key and of another (secrecy_forge.jsonl.xz)

The attacker has the host, the encoder and this library, hence the vector of every token and of every
context; only the two secret matrices are missing. DEW's score is nearly bilinear in those vectors,
t'Mc with M unknown. The mean of tc' over marked texts, less that over others, points to M.

Stored texts are read from --data, which has all that learn asks for. The 250 texts that forge learns from are not stored: --donors
results/donors has them, after dew_eval nbs/studies/donors.toml --out results/donors. WORK keeps encoded contexts. Two cores take half an hour.
"""
import argparse, itertools, json, time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.mark.bias import BiasRule
from dew_nb.evaluation.texts.content import machine, read_texts, study_key, write_texts
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.texts.sampling import complete
from dew_nb.evaluation.texts.likelihood import perplexity
from dew_nb.evaluation.studies.store import load_results
from dew_nb.stats.rates import auroc
from dew_nb.mark.tables import TokenTable, unit_vectors
from dew_nb.mark.windows import text_windows
from donors import texts as donor_texts

ROWS = ('DEW paper lam=2.5', 'DEW calibrated lam=2.5', 'DEW calibrated lam=2.5 mode=context_only',
        'Unigram', 'KGW', 'SynthID', 'none')
# chosen on keys 0 and 1 of the donor study, from which nothing that is stored was learnt
RIDGE, PRIOR = 10., 100.

# ---------------------------------------------------------------- the learner
def pairs(ids, k=3, special=()):
    "Windows of k tokens and the token after each, of several texts: (N, k), (N,), text number (N,)"
    ids = [np.asarray(x) for x in ids]
    w, at = zip(*(text_windows(x, k, special) for x in ids))
    return (np.concatenate(w), np.concatenate([x[p] for x,p in zip(ids, at)]),
            np.repeat(np.arange(len(ids)), [len(p) for p in at]))

class Texts:
    "Texts as an attacker sees them: token ids, context vectors, text numbers"
    def __init__(self, x, c, i): self.x, self.c, self.i = x, c.astype(np.float32), i
    def first(self, n): return self[self.i < n]
    def __getitem__(self, at): return Texts(self.x[at], self.c[at], self.i[at])
    def by_text(self, v):
        n = np.bincount(self.i)
        return (np.bincount(self.i, v)/np.maximum(n, 1))[n > 0]

def learn_vectors(own, other, e, ridge=RIDGE):
    "M for the score t'Mc, with tokens known by their vectors `e`"
    mean = lambda s: e[s.x].T @ s.c/len(s.x)
    def inverse(v):
        S = v.T @ v/len(v)
        return np.linalg.inv(S + ridge*np.trace(S)/len(S)*np.eye(len(S), dtype=S.dtype))
    t, c = (np.concatenate([f(own), f(other)]) for f in (lambda s: e[s.x], lambda s: s.c))
    return (inverse(t) @ (mean(own) - mean(other)) @ inverse(c)).astype(np.float32)

def learn_tokens(own, other, V, prior=PRIOR):
    "A vector for each token, for the score m_x'c: nothing is known of a token but its number"
    m, n = np.zeros((V, own.c.shape[1]), np.float32), np.zeros(V)
    for s,sign in ((own, 1), (other, -len(own.x)/len(other.x))):
        np.add.at(m, s.x, np.float32(sign)*s.c)
        n += np.bincount(s.x, minlength=V)
    return (m/(n + prior)[:, None]).astype(np.float32)

def learnt_scores(s, m, e=None):
    "The learnt score of every token of some texts"
    return ((e[s.x] @ m if e is not None else m[s.x])*s.c).sum(1)

def tell_apart(A, B, n, held, draw, e, known='vectors'):
    "AUROC on `held` texts of each key, after learning from `n` others; another `draw`, other texts"
    rng = np.random.default_rng(draw)
    a, b = (rng.permutation(s.i.max() + 1) for s in (A, B))
    take = lambda s, of: s[np.isin(s.i, of)]
    own, other = take(A, a[:n]), take(B, b[:n])
    m = learn_vectors(own, other, e) if known == 'vectors' else learn_tokens(own, other, len(e))
    x, y = (s.by_text(learnt_scores(s, m, e if known == 'vectors' else None))
            for s in (take(A, a[-held:]), take(B, b[-held:])))
    return auroc(x, y).value, len(x) + len(y)

# ---------------------------------------------------------------- the forger
def forger(wm, own, other, n, e, lam):
    "DEW with a table learnt from n texts for the keyed one; its alignments have a deviation of 1"
    m, config = learn_vectors(own.first(n), other.first(n), e), replace(wm.config, lam=lam)
    spread = learnt_scores(other, m, e).std()          # over all unmarked ones: they cost nothing
    table = TokenTable(torch.from_numpy(e @ m)/float(spread), torch.eye(len(m[0])), 1)
    return DEW(config, BiasRule(config, table), wm.contexts)

# ---------------------------------------------------------------- stages
class Shelf:
    "Models, and texts with their contexts, kept in WORK"
    def __init__(self, a):
        self.a, self.t0, self.marks = a, time.time(), {}
        for folder in (a.work, a.out): folder.mkdir(parents=True, exist_ok=True)
        self.host, self.enc = load_host(), load_encoder()
    def say(self, *x): print(f'{time.time()-self.t0:.0f} s:', *x, flush=True)
    def watermark(self, preset):
        if preset not in self.marks:
            self.marks[preset] = DEW.build(self.host, self.enc, study_key(0, 'donors'),
                                           DEWConfig.preset(preset, lam=2.5), progress=False)
        return self.marks[preset]
    def vectors(self, preset):
        tokens = self.watermark(preset).blueprint.tokens
        return unit_vectors(tokens.embeddings, tokens.whitening).numpy().astype(np.float32)
    def seen(self, name, preset, texts):
        "Texts as an attacker sees them, encoded once"
        f = self.a.work/f'{name}.npz'.replace(' ', '_')
        if not f.exists():
            contexts = self.watermark(preset).contexts
            ids = self.host.tokenizer(list(texts), add_special_tokens=False)['input_ids']
            w, x, i = pairs(ids, contexts.k, contexts.special)
            part = f.with_suffix('.part.npz')
            np.savez(part, x=x, c=contexts.encode(w).numpy().astype(np.float16), i=i)
            part.replace(f)
            self.say('encoded', name, len(x))
        z = np.load(f)
        return Texts(z['x'], z['c'], z['i'])

def learn(s):
    "Which of two keys wrote a text, after n texts of each: every pair of keys"
    t, out = load_results(s.a.data/'evaluation').texts, []
    t = t[(t['attack'] == 'none') & t['encoder'].isin(['', 'minilm'])]
    for row in ROWS:
        preset = 'paper' if 'paper' in row else 'calibrated'
        of = [t[(t['source'] == row) & (t['seed'] == k)].sort_values('i') for k in range(3)]
        T = [s.seen(f'{row} {k}', preset, g['text'].head(s.a.stored)) for k,g in enumerate(of)]
        e, two = s.vectors(preset), list(itertools.combinations(range(3), 2))
        for known in ('vectors', 'tokens'):
            for n,(a,b),draw in itertools.product(s.a.n, two, range(s.a.draws)):
                au, held = tell_apart(T[a], T[b], n, s.a.held, draw, e, known)
                out.append(dict(row=row, known=known, n=n, one=a, two=b, draw=draw, auroc=au, held=held))
            now = pd.DataFrame(out).query('row == @row and known == @known')
            s.say(row, known, now.groupby('n')['auroc'].mean().round(3).to_dict())
    pd.DataFrame(out).to_parquet(s.a.out/'secrecy_learn.parquet', index=False)

def victims(s):
    "What the forger has: texts of the key and unmarked ones, encoded"
    a, host = s.a, s.host.name
    rows = [r for n in ('calibrated', 'unmarked') for r in read_texts(a.data/f'donors_{n}_texts.jsonl.xz')]
    if a.donors: rows = list(donor_texts(load_results(a.donors), 0))
    rows = [r for r in rows if r['attack'] == 'none' and r['host'] == host]
    own = [r for r in rows if (r['table'], r['encoder'], r['seed']) == ('native', 'minilm', a.key)]
    plain = [r for r in rows if (r['table'], r['seed']) == ('none', (a.key + 1) % 3)]
    for name,rows in (('own', own), ('plain', plain)):
        if len(rows) < max(a.forge_n): raise SystemExit(f'{len(rows)} texts are there, and a forger asks for {max(a.forge_n)}: make them with\n'
            '  dew_eval nbs/studies/donors.toml --out results/donors\nand say --donors results/donors')
        rows = sorted(rows, key=lambda r: r['i'])[:max(a.forge_n)]
        yield s.seen(f'forge {name} {a.key}', 'calibrated', [r['text'] for r in rows])

def forge(s):
    "Texts of a forger who learnt from n texts of a key, scored under that key and another"
    a, f, other = s.a, s.a.out/'secrecy_forge.jsonl.xz', (s.a.key + 2) % 3
    rows = read_texts(f) if f.exists() else []
    wm, e, (A, B) = s.watermark('calibrated'), s.vectors('calibrated'), victims(s)
    prompts = build_corpus(s.host, n=300 + a.texts).prompts[300:] # none of those learnt from
    detectors = [wm.rekey(study_key(k, 'donors')).detector(reading='raw') for k in (a.key, other)]
    for n,lam in [(0, 0.), *itertools.product(a.forge_n, a.lam)]:
        if any((r['n'], r['lam']) == (n, lam) for r in rows): continue
        mark = forger(wm, A, B, n, e, lam).processor if n else None
        out = complete(s.host, prompts, a.tokens, seed=1, processor=mark, batch_size=a.batch,
                       min_new_tokens=a.tokens)
        p = perplexity(s.host, out, prompts, batch_size=8).values
        z = [[x.z for x in d.detect(out)] for d in detectors]
        rows += [dict(n=n, lam=lam, i=i, z=round(float(x), 3), z_other=round(float(y), 3),
                      ppl=round(float(q), 3), text=t) for i,(x,y,q,t) in enumerate(zip(*z, p, out))]
        write_texts(f, rows)
        s.say('forged', n, lam, 'mean z', np.mean(z, axis=1).round(2), 'PPL', np.median(p).round(1))

STAGES = dict(learn=learn, forge=forge)

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('stages', nargs='+', choices=list(STAGES))
    ap.add_argument('--work', type=Path, required=True)
    ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--data', type=Path, default=Path(__file__).parent/'data', help='stored texts')
    ap.add_argument('--donors', type=Path, help='results of donors.toml, for the texts that a forger learns from')
    ap.add_argument('--n', type=int, nargs='+', default=[5, 10, 25, 50, 75])
    ap.add_argument('--stored', type=int, default=100)
    ap.add_argument('--held', type=int, default=25, help='texts of each key that are told apart')
    ap.add_argument('--draws', type=int, default=4, help='for each pair of keys')
    ap.add_argument('--key', type=int, default=2, help="the victim's, of the donor study")
    ap.add_argument('--forge-n', type=int, nargs='+', default=[25, 100, 250])
    ap.add_argument('--lam', type=float, nargs='+', default=[2.5, 5.])
    ap.add_argument('--texts', type=int, default=32)
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--batch', type=int, default=32)
    return ap.parse_args()

def main():
    a = arguments()
    s = Shelf(a)
    for x in dict.fromkeys(a.stages): STAGES[x](s)
    (a.out/'secrecy.json').write_text(json.dumps(dict(
        command='python nbs/studies/secrecy.py learn forge --work WORK --out nbs/studies/data',
        settings={k: v for k,v in vars(a).items() if not isinstance(v, Path)}, ridge=RIDGE,
        prior=PRIOR, tokenizer_digest=s.host.tokenizer_digest, **machine(s.host, s.enc)),
        indent=1) + '\n')

if __name__ == '__main__': main()
