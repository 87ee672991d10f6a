"""Unmarked texts in many languages, read with a language model that did not write them: false positives by key. Read by "Reading with the host".

    python nbs/studies/kinds.py --out kinds                                   # makes test.jsonl from packages
    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --out pieces.jsonl.gz
    python nbs/studies/host_languages.py --pieces pieces.jsonl.gz --out nbs/studies/data
    python nbs/studies/host_languages.py --pieces pieces.jsonl.gz --kinds en code fr ja ar hi fa mr --texts 6 --tried --out nbs/studies/data   # as `with_host` reads now

The embedded host reads pieces of 200 tokens at temperature 0.7 and top-p 0.9, from the beginning of a text and with half of each factor bet, under screened keys; with --tried after the prompts that are tried where none is known, and
by trust (host_languages_tried.*). Writes host_languages.parquet (a row for each kind and key: texts, shares of texts with E >= 100, with a
p-value of file and host of at most 1%, with one of the file, and the logarithm of the largest E at any token) and host_languages.json. About a fifth of a second for each text and key on one core."""
import argparse, json, shlex, sys, time
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from dew_nb import DEW, load_encoder, load_host
from dew_nb.evaluation.texts.content import machine, read_texts, study_key
from dew_nb.models.stopping import no_bar
from dew_nb.read.host_reader import HostResult, running_e
from dew_nb.stats.evalues import calibrate_p

def read(reader, detectors, text):
    "A `HostResult` for each key; the host reads the text once"
    (doc,), (views,) = reader.views([text])
    for det in detectors:
        at, factors, n = reader.evidence(doc, views, scheme=det.scheme, others=[])
        running, score = running_e(at, factors, len(doc.ids)), det.detect(text)
        yield HostResult(float(running[-1]), float(calibrate_p(score.p_value)), running, n, len(doc.ids), score)

def rates(results):
    "Shares of texts by key, and the largest logarithm of E at any token"
    share = lambda good: float(np.mean([good(r) for r in results]))
    return dict(texts=len(results), e_100=share(lambda r: r.log_e >= np.log(100)), both=share(lambda r: r.p_value <= .01), file=share(lambda r: r.score.p_value <= .01), top=max(r.running.max() for r in results))

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--pieces', type=Path, required=True)
    ap.add_argument('--kinds', nargs='+', help='None: all')
    ap.add_argument('--texts', type=int, default=4, help='of each kind')
    ap.add_argument('--keys', type=int, default=30)
    ap.add_argument('--name', default='screened again', help='of the keys')
    ap.add_argument('--tried', action='store_true', help='read as with_host does by itself')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    t0, T, host, enc = time.time(), pd.DataFrame(read_texts(a.pieces)).query('length == 200'), load_host(), load_encoder()
    if a.kinds: T = T[T.kind.isin(a.kinds)]
    keys = [study_key(i, a.name) for i in range(a.keys)]
    wm = DEW.build(host, enc, keys[0], progress=False)
    detectors, out = [wm.rekey(k).detector() for k in keys], []
    reader, name = detectors[0].with_host(host, *((None, .7, .9) if a.tried else ('', .7, .9)), eps=None if a.tried else .5), 'host_languages_tried' if a.tried else 'host_languages'
    for kind,texts in (bar := tqdm(T.groupby('kind', sort=False).text, disable=no_bar(True))):
        bar.set_description(kind)
        by_text = [list(read(reader, detectors, t)) for t in texts.head(a.texts)]
        out += [dict(kind=kind, key=i, **rates(rows)) for i,rows in enumerate(zip(*by_text))]
    R = pd.DataFrame(out)
    R.to_parquet(a.out/f'{name}.parquet', index=False, compression='zstd')
    said = dict(command=shlex.join(['python', 'nbs/studies/host_languages.py', *sys.argv[1:]]), texts=int(R.groupby('kind').texts.first().sum()), keys=a.keys, seconds=round(time.time()-t0), **machine(host, enc))
    (a.out/f'{name}.json').write_text(json.dumps(said, indent=1) + '\n')
    print(R.groupby('kind')[['e_100', 'both', 'file']].mean().join(R.groupby('kind').top.max()).round(4).to_string())

if __name__ == '__main__': main()
