"""TPR by length on everyday text: answers of contexts_chat.toml, cut to their first tokens, by each scheme's own test.

    dew_eval nbs/studies/contexts_chat.toml --out results/contexts_chat                                        # on a GPU
    python nbs/studies/answer_lengths.py --results results/contexts_chat --out nbs/studies/data                # minutes on a CPU

Of each scheme's answers, and of the unmarked ones (and of the default's once more, read with all positions alike), those with at least so many tokens of the host are cut to that many and read under their key. Writes answer_lengths.parquet (a p-value for each scheme, key, length
and answer) and answer_lengths.json (settings, machine). What is finished is kept in --out, so that a run that was cut goes on.
"""
import argparse, json, time
from pathlib import Path

import pandas as pd

from dew_nb import load_encoder, load_host
from dew_nb.evaluation.schemes.lists import shared_backend
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.frames import write_frame

SCHEMES = 'DEW standard', 'SynthID 3 weighted', 'SynthID 4 weighted', 'DEW ngram 2', 'EXP', 'Unigram', 'KGW 1'
LENGTHS = 25, 50, 100, 150, 200
READ = {'DEW standard, all alike': ('DEW standard', dict(room=None))}     # texts of another row, read otherwise

def cut(host, texts:pd.Series, n:int) -> pd.Series:
    "The first n tokens of the texts that have as many"
    tok = shared_backend(host)
    ids = [e.ids for e in tok.encode_batch(texts.tolist(), add_special_tokens=False)]
    return pd.Series({i: tok.decode(x[:n]) for i,x in zip(texts.index, ids) if len(x) >= n})

def read(host, scheme, texts:pd.Series, lengths=LENGTHS) -> pd.DataFrame:
    "P-values of texts at each length"
    some = {n: cut(host, texts, n) for n in lengths}
    return pd.concat([pd.DataFrame(dict(i=x.index, length=n, p_value=scheme.p_values(x.tolist()))) for n,x in some.items() if len(x)], ignore_index=True)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--results', type=Path, required=True, help='folder of dew_eval')
    ap.add_argument('--host', default='qwen2.5-coder-1.5b-instruct', help='an asset')
    ap.add_argument('--schemes', nargs='+', default=[*SCHEMES, *READ])
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    t0, path, r = time.time(), a.out/'answer_lengths.parquet', load_results(a.results)
    host, enc, t = load_host(a.host, device='cpu'), load_encoder(device='cpu'), r.texts.query("attack == 'none'")
    done = pd.read_parquet(path) if path.exists() else pd.DataFrame(dict(scheme=[], seed=[]))
    for name in a.schemes:
        of, more = READ.get(name, (name, {}))
        kind, params, *_ = r.study['schemes'][of]
        for seed in sorted(t[t['source'] == of]['seed'].unique()):
            if ((done.scheme == name) & (done.seed == seed)).any(): continue
            s = find_scheme(kind)(host, enc, int(seed), name=name, **params | more)
            own = {said: t[(t['seed'] == seed) & (t['source'] == source)].set_index('i')['text'].sort_index() for said,source in (('marked', of), ('unmarked', 'none'))}
            new = pd.concat([read(host, s, x).assign(scheme=name, seed=seed, source=said) for said,x in own.items()])
            done = pd.concat([done, new], ignore_index=True).astype(dict(seed=int, i=int, length=int))
            write_frame(path, done[['scheme', 'source', 'seed', 'length', 'i', 'p_value']], dict(p_value=6), dict(p_value=[.001, .01, .05]))
            print(f'{time.time()-t0:5.0f} s: {name}, key {seed}', flush=True)
    (a.out/'answer_lengths.json').write_text(json.dumps(dict(command='python nbs/studies/answer_lengths.py --results results/contexts_chat --out nbs/studies/data', texts='dew_eval nbs/studies/contexts_chat.toml --out results/contexts_chat',
        lengths=LENGTHS, schemes={n: r.study['schemes'][READ.get(n, (n,))[0]] for n in [*SCHEMES, *READ]}, read=READ, **machine(host, enc)), indent=1) + '\n')
    print(done.assign(hit=done.p_value <= .01).pivot_table(index='scheme', columns=['source', 'length'], values='hit').round(3).to_string())

if __name__ == '__main__': main()
