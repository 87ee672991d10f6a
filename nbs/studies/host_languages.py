"""Unmarked texts in many languages, read with a language model that did not write them: false positives by key. Read by "Reading with the host".

    python nbs/studies/kinds.py --out kinds                                   # makes test.jsonl from packages
    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --out pieces.jsonl.gz
    python nbs/studies/host_languages.py --pieces pieces.jsonl.gz --out nbs/studies/data

The embedded host reads pieces of 200 tokens at temperature 0.7 and top-p 0.9, without a prompt, under screened keys. Writes host_languages.parquet (a row for each kind and key: texts, shares of texts with E >= 100, with a
p-value of file and host of at most 1%, with one of the file, and the logarithm of the largest E at any token) and host_languages.json. About a fifth of a second for each text and key on one core."""
import argparse, json, shlex, sys, time
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from dew_nb import DEW, load_encoder, load_host
from dew_nb.evaluation.texts.content import machine, read_texts, study_key
from dew_nb.models.stopping import no_bar
from dew_nb.stats.evalues import average_e, bound_p

def read(reader, schemes, text):
    "For each key: logarithm of E at the end, and of the largest at any token; p-value of the file"
    docs, views = reader.views([text])
    for s in schemes:
        factors = reader.evidence(docs[0], views[0], scheme=s, others=[])[1]
        running = average_e(np.cumsum(factors, 1)) if factors.size else np.zeros(1)
        yield float(running[-1]), float(running.max()), s.detector().detect(text).p_value

def rates(rows):
    "Shares of texts by key"
    last, top, p = (np.array(x) for x in zip(*rows))
    return dict(texts=len(p), e_100=(last >= np.log(100)).mean(), both=(2*np.minimum(p, bound_p(last)) <= .01).mean(), file=(p <= .01).mean(), top=top.max())

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--pieces', type=Path, required=True)
    ap.add_argument('--kinds', nargs='+', help='None: all')
    ap.add_argument('--texts', type=int, default=4, help='of each kind')
    ap.add_argument('--keys', type=int, default=30)
    ap.add_argument('--name', default='screened again', help='of the keys')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    t0, T, host, enc = time.time(), pd.DataFrame(read_texts(a.pieces)).query('length == 200'), load_host(), load_encoder()
    if a.kinds: T = T[T.kind.isin(a.kinds)]
    keys = [study_key(i, a.name) for i in range(a.keys)]
    wm = DEW.build(host, enc, keys[0], progress=False)
    schemes, reader, out = [wm.rekey(k) for k in keys], wm.detector().with_host(host, temperature=.7, top_p=.9), []
    for kind,texts in (bar := tqdm(T.groupby('kind', sort=False).text, disable=no_bar(True))):
        bar.set_description(kind)
        by_text = [list(read(reader, schemes, t)) for t in texts.head(a.texts)]
        out += [dict(kind=kind, key=i, **rates(rows)) for i,rows in enumerate(zip(*by_text))]
    R = pd.DataFrame(out)
    R.to_parquet(a.out/'host_languages.parquet', index=False, compression='zstd')
    said = dict(command=shlex.join(['python', 'nbs/studies/host_languages.py', *(x if '/' not in x else Path(x).name if x.endswith('.gz') else 'nbs/studies/data' for x in sys.argv[1:])]),
                texts=int(R.groupby('kind').texts.first().sum()), keys=a.keys, seconds=round(time.time()-t0), **machine(host, enc))
    (a.out/'host_languages.json').write_text(json.dumps(said, indent=1) + '\n')
    print(R.groupby('kind')[['e_100', 'both', 'file']].mean().join(R.groupby('kind').top.max()).round(4).to_string())

if __name__ == '__main__': main()
