"""Detection and robustness of both presets: 500 texts x 3 keys, unattacked and after word deletion, with perplexity.

    python tools/study_detect.py --out nbs/studies/data

Writes detect_texts.jsonl.gz (every marked and unmarked text), detect_scores.parquet (score, z, p of each text under each
attack; unmarked texts at lam = 1) and detect.json (settings and machine). About six minutes on one data-centre GPU.
"""
import argparse, dataclasses, json, time
from pathlib import Path

import numpy as np
import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.detection import scores_over_keys
from dew_nb.evaluation.attacks import WordDeletion
from dew_nb.evaluation.corpora import build_corpus
from dew_nb.evaluation.sampling import complete
from dew_nb.evaluation.likelihood import perplexity
from study_common import machine, study_key, write_texts

GRID = [('paper', 2.0), ('paper', 2.5), ('calibrated', 2.4), ('calibrated', 2.6)]

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=500); ap.add_argument('--seeds', type=int, default=3)
    ap.add_argument('--tokens', type=int, default=200); ap.add_argument('--batch', type=int, default=500)
    ap.add_argument('--quality', type=int, default=250, help='texts whose perplexity is measured'); ap.add_argument('--device'); ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    t0, texts, rows, say = time.time(), [], [], lambda *x: print(f'{time.time()-t0:.0f} s:', *x, flush=True)
    host, enc = load_host(device=a.device), load_encoder(device=a.device)
    prompts = build_corpus(host, split='evaluation', n=a.texts).prompts
    attacks = dict(none=None, deletion30=WordDeletion(.3), deletion50=WordDeletion(.5))
    plain = {s: complete(host, prompts, a.tokens, seed=1000+s, batch_size=a.batch) for s in range(a.seeds)}
    say('unmarked done')
    attacked = {(s,n): f(plain[s], seed=s) if f else plain[s] for s in plain for n,f in attacks.items()}
    def score(wm, ts, **cols):
        r = wm.detector().detect(ts, progress=False)
        rows.append(pd.DataFrame(dict(text=np.arange(len(ts), dtype='int16'), score=np.float32([x.score for x in r]), z=np.float32([x.z for x in r]),
            p=[x.p_value for x in r], n_scored=np.int16([x.n_scored for x in r]), **cols)))
        return r
    ppl = {}
    def quality(ts, *key):
        q = perplexity(host, ts[:a.quality], prompts[:a.quality], batch_size=100)
        ppl['/'.join(map(str, key))] = dict(median=q.median, low=q.interval[0], high=q.interval[1])
        return q.median
    for s,ts in plain.items():
        texts += [dict(preset='none', lam=0, seed=s, i=i, text=t) for i,t in enumerate(ts)]; quality(ts, 'none', 0, s)
    keys = [study_key(s, 'detect') for s in range(a.seeds)]
    flat = [(o,n,t) for (o,n),ts in attacked.items() for t in ts]
    for preset in ('paper', 'calibrated'):                         # unmarked texts of every seed and attack under every key
        cfg = DEWConfig.preset(preset, lam=1.0)
        r = scores_over_keys(DEW.build(host, enc, keys[0], cfg, progress=False), keys, [t for _,_,t in flat], progress=False)
        for s in range(a.seeds): rows.append(pd.DataFrame(dict(text=np.int16([i % a.texts for i in range(len(flat))]), score=np.float32(r['score'][s]),
            z=np.float32((r['z'] if cfg.null == 'key' else r['z_iid'])[s]), n_scored=np.int16(r['n_scored']), attack=[n for _,n,_ in flat], other=np.int16([o for o,_,_ in flat]),
            marked=False, preset=preset, lam=1.0, seed=s)))
        say('unmarked scored,', preset)
    for s in range(a.seeds):
        for preset,lam in GRID:
            wm = DEW.build(host, enc, keys[s], DEWConfig.preset(preset, lam=lam), progress=False)
            marked = complete(host, prompts, a.tokens, seed=s, processor=wm.processor, batch_size=a.batch)
            texts += [dict(preset=preset, lam=lam, seed=s, i=i, text=t) for i,t in enumerate(marked)]
            p = quality(marked, preset, lam, s)
            cols = dict(preset=preset, lam=lam, seed=s)
            msg = []
            for n,f in attacks.items():
                r = score(wm, f(marked, seed=s) if f else marked, attack=n, marked=True, **cols)
                msg.append(f'{n} {np.mean([x.p_value <= .01 for x in r]):.3f}')
            say(preset, lam, 'key', s, f'PPL {p:.1f}; share with p <= 1%:', ', '.join(msg))
            write_texts(a.out/'detect_texts.jsonl.gz', texts)
            pd.concat(rows).to_parquet(a.out/'detect_scores.parquet', compression='zstd', index=False)
            (a.out/'detect.json').write_text(json.dumps(dict(command='python tools/study_detect.py --out nbs/studies/data',
                settings={k: v for k,v in vars(a).items() if k != 'out'}, perplexity=ppl, configs={f'{p}/{l}': dataclasses.asdict(DEWConfig.preset(p, lam=l)) for p,l in GRID},
                seconds=round(time.time()-t0), **machine(host, enc)), indent=1)+'\n')

if __name__ == '__main__': main()
