"""The tournament in another model's token space: smollm2-135m with the tokens of gemma3-270m.

    python nbs/studies/donors_tournament.py --out nbs/studies/data

The host writes with the donor's vectors after the first 60 prompts of the main table, under the keys of two seeds, on any
machine (a few minutes of a processor). What is written so is read with the host's tokenizer and, unless --readers says host
alone, with the donor's by a detector that does not know who wrote. Its table of contexts is the encoder's work on the donor's
262,144 tokens, which wants a GPU; here it is made for the tokens that occur, in these texts or in the reference sample, and the
others, with a twentieth of the weight in the table's mean, stay 0. Unmarked, human and natively marked texts of the same prompts are the stored ones. Each text is read
as it is, with 30% and 50% of its words deleted, and, the first 30 of each seed, in French (--french 0: without; DEW_MODELS names
the folder of the translation model; words.toml says how to make it). Writes donors_tournament_texts.jsonl.xz (the new texts, which are not written again),
donors_tournament.parquet (a row for each reading) and donors_tournament.json.
"""
import argparse, json, time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb.mark import compiled
from dew_nb.evaluation.studies.bench import Bench
from dew_nb.evaluation.texts.content import machine, read_texts, write_texts
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.evaluation.studies.kinds import make_attack
from dew_nb.evaluation.schemes.registry import SCHEMES
from dew_nb.evaluation.studies.store import load_results
from dew_nb.models.hosts import load_host
from dew_nb.mark.sources import reference_texts

HERE = Path(__file__).parent
HOST, DONOR = 'smollm2-135m', 'gemma3-270m'
STORED = {'none': 'unmarked', 'human': 'human', 'DEW tournament': 'native'}


def stored(data, seeds, n):
    "Texts of the main table: source, seed, i, prompt, text"
    r = load_results(data/'evaluation')
    d = r.texts
    d = d[d['source'].isin(STORED) & (d['attack'] == 'none') & d['seed'].isin(seeds) & (d['i'] < n)]
    d = d[['source', 'seed', 'i', 'prompt', 'text']].assign(source=d['source'].map(STORED))
    return d.reset_index(drop=True), r.study['generation']


def written(a, d, how, bench, schemes):
    "The texts in the donor's space, from the file or written now"
    file = a.out/'donors_tournament_texts.jsonl.xz'
    rows = read_texts(file) if file.exists() else []
    for s in a.seeds:
        if any(r['seed'] == s for r in rows): continue
        x = d[(d['source'] == 'unmarked') & (d['seed'] == s)]
        texts = bench.generate(schemes['donor', 'host', s], HOST, x['prompt'].tolist(), s, how)
        rows += [dict(source='donor', seed=s, i=int(i), prompt=p, text=t) for i,p,t in zip(x['i'], x['prompt'], texts)]
        write_texts(file, rows)
        print('seed', s, 'written', flush=True)
    return pd.DataFrame(rows)


def attacks(a, host):
    "Name to a function of texts and a seed, and how many texts of a seed"
    out = {'none': (lambda t,s: t, a.texts)}
    for rate in (.3, .5): out[f'deletion-{rate}'] = (make_attack('deletion', dict(rate=rate), host, None), a.texts)
    if a.french: out['French'] = (make_attack('translate', dict(model='opus-mt-en-fr-int8'), host, None), a.french)
    return out


def attacked(a, d, host):
    "Texts of each source and seed after each attack"
    for name,(attack,n) in attacks(a, host).items():
        for (source,s),x in d[d['i'] < n].groupby(['source', 'seed']):
            yield dict(attack=name, source=source, seed=s, i=x['i'].to_numpy()), attack(x['text'].tolist(), s)
        print(name, flush=True)


def only_tokens_of(texts, donor):
    "From here on token vectors are those of tokens that occur in the texts or in the reference sample"
    read = donor.tokenizer([*texts, *reference_texts()], add_special_tokens=False)['input_ids']
    ids = np.unique(np.concatenate(read).astype(np.int64))
    @lru_cache
    def few(encoder, host, progress=None): return compiled.token_vectors(encoder, host.tokenizer, len(host.embeddings), ids, progress)
    compiled.cached_token_vectors = few                    # made once for all keys
    print(len(ids), 'tokens of the donor', flush=True)


def readings(labels, texts, schemes):
    "Texts of a source and a seed, by every reader that has a say"
    for (table,reader,s),scheme in schemes.items():
        if s != labels['seed'] or labels['source'] in ('native', 'donor') and labels['source'] != table: continue
        m = scheme.measure(texts)
        yield pd.DataFrame(dict(table=table, reader=reader, **labels, z=m['score'], p_value=m['p_value'], n_scored=m['n_scored']))


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=60, help='of each seed')
    ap.add_argument('--french', type=int, default=30, help='of them')
    ap.add_argument('--seeds', type=int, nargs='+', default=[0, 1])
    ap.add_argument('--readers', nargs='+', default=['host', 'donor'], choices=['host', 'donor'])
    ap.add_argument('--batch', type=int, default=30)
    ap.add_argument('--tokens', type=int, help='to write; as the main table')
    ap.add_argument('--data', type=Path, default=HERE/'data')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()


def main():
    a, t0 = arguments(), time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    d, how = stored(a.data, a.seeds, a.texts)
    if a.tokens: how = how | dict(tokens=a.tokens, min_tokens=a.tokens)
    bench = Bench(a.device, a.batch)
    host, enc, donor = bench.host(HOST), bench.encoder('minilm'), load_host(DONOR, a.device)
    schemes = {}
    for (table,reader),(kind,more) in {('native', 'host'): ('dew', {}), ('donor', 'host'): ('donor', dict(donor=donor)),
                                       ('donor', 'donor'): ('donor', dict(donor=donor, read='donor'))}.items():
        if reader not in a.readers: continue
        first = SCHEMES[kind](host, enc, a.seeds[0], preset='tournament', **more)
        for s in a.seeds: schemes[table,reader,s] = first if s == a.seeds[0] else first.rekey(s)
    d = pd.concat([d, written(a, d, how, bench, schemes)], ignore_index=True)
    pieces = list(attacked(a, d, host))
    if 'donor' in a.readers: only_tokens_of([t for _,texts in pieces for t in texts], donor)
    out = pd.concat([r for x in pieces for r in readings(*x, schemes)], ignore_index=True)
    out = out[['table', 'reader', 'source', 'seed', 'i', 'z', 'p_value', 'n_scored', 'attack']]
    write_frame(a.out/'donors_tournament.parquet', out)
    (a.out/'donors_tournament.json').write_text(json.dumps(dict(command=f'python nbs/studies/donors_tournament.py --readers {" ".join(a.readers)} --french {a.french} --out nbs/studies/data',
        settings={k: v for k,v in vars(a).items() if k in ('texts', 'french', 'seeds', 'readers')}, donor=DONOR, generation=how,
        seconds=round(time.time() - t0), **machine(host, enc)), indent=1) + '\n')
    print(out.assign(hit=out['p_value'] <= .01).groupby(['table', 'reader', 'source', 'attack'])['hit'].mean().unstack().round(3))


if __name__ == '__main__': main()
