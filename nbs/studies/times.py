"""What every scheme costs in time: seconds to write and to read texts, as ratios to writing without a mark, in one interleaved run.

    python nbs/studies/times.py --out nbs/studies/data/times.json
    python nbs/studies/times.py --texts 4 --tokens 32 --rounds 2 --device cpu --out nbs/studies/data/times_cpu.json
    python nbs/studies/times.py --only k-SemStamp --texts 4 --tokens 100 --rounds 0 --device cpu --out nbs/studies/data/times_semstamp.json

The rows are those of schemes.toml and schemes_few.toml. In each round every scheme continues the same prompts with the harness's own sampling, in random order, and reads the texts that
were written without a mark, which no scheme has read before. Every round has other prompts, and schemes that keep the lists they have drawn get another key, so that nothing comes from memory. Writing
without a mark is timed before and after the others of a round; ratios are taken within the round. k-SemStamp, which writes many candidates, comes last and has as many rounds as --slow
says; on a GPU it writes --candidates for each text at once, since a batch of 500 rows takes hardly longer than one of 16. On a CPU seconds are those that its cores have worked, which others on the machine disturb less. The file is written anew after each round, so a run that is cut short leaves what it had.
"""
import argparse, json, random, shlex, statistics, sys, time
from pathlib import Path

import torch

from dew_nb.evaluation.studies.bench import Bench
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.schemes.base import NoMark, measured
from dew_nb.evaluation.studies.plan import Study

STUDIES = [Path(__file__).with_name(n) for n in ('schemes.toml', 'schemes_few.toml')]
SLOW = 'k-SemStamp',
SAMPLING = dict(temperature=1., top_p=1., top_k=0, no_repeat_ngram=4)

def all_rows():
    "Rows of both studies by their names, without those that have no mark"
    return {r.label: r for p in STUDIES for r in Study.load(p).rows if r.kind not in ('none', 'human')}

def seconds(f, device):
    "Seconds of one call, with what the device still has to do, and what it returns; on a CPU, seconds of the CPU"
    gpu = device.type == 'cuda'
    wait, clock = (torch.cuda.synchronize, time.perf_counter) if gpu else (lambda: None, time.process_time)
    wait()
    t = clock()
    out = f()
    wait()
    return clock() - t, out

def one_round(bench, schemes, prompts, r, tokens, times):
    "Every scheme writes and reads once"
    g = SAMPLING | dict(tokens=tokens, min_tokens=tokens)
    def write(s): return seconds(lambda: bench.generate(s, 'smollm2-135m', prompts, r, g), bench.device)
    plain = NoMark(bench.host('smollm2-135m'))
    before, texts = write(plain)
    for name in random.Random(r).sample(sorted(schemes), len(schemes)):
        s = schemes[name]
        if hasattr(s, 'green'): s = s.rekey(r + 1)     # draws its lists anew
        row = dict(round=r, write=write(s)[0], read=seconds(lambda: measured(s, texts), bench.device)[0])
        times.setdefault(name, []).append(row | getattr(s, 'stats', {}))     # k-SemStamp counts its tries, over all rounds
    after = write(plain)[0]
    times.setdefault('none', []).append(dict(round=r, write=(before + after)/2, first=before, last=after))

def summary(times):
    "Medians over rounds of the ratios to unmarked writing, and their range"
    base, out = {t['round']: t['write'] for t in times['none']}, {}
    for name,ts in times.items():
        ratio = {k: [t[k]/base[t['round']] for t in ts if k in t] for k in ('write', 'read')}
        out[name] = dict(rounds=len(ts), seconds=statistics.median(t['write'] for t in ts)) | {
            k: dict(ratio=statistics.median(x), low=min(x), high=max(x)) for k,x in ratio.items() if x}
    return out

def warm_up(bench, schemes, prompts):
    "A few tokens by each, so that nothing is loaded or recorded later"
    g = SAMPLING | dict(tokens=6, min_tokens=6)
    for name,s in schemes.items():
        if name not in SLOW: bench.generate(s, 'smollm2-135m', prompts, 0, g)
        measured(s, ['The old harbour was full of boats that nobody had used for years. Why?']*2)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=16, help='in a batch')
    ap.add_argument('--tokens', type=int, default=64)
    ap.add_argument('--rounds', type=int, default=3)
    ap.add_argument('--slow', type=int, default=1, help='rounds of k-SemStamp, which come last')
    ap.add_argument('--only', nargs='+', help='names of rows')
    ap.add_argument('--candidates', type=int, help='of k-SemStamp at once, for each text; default: 32 on a GPU, 1 else')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    bench = Bench(a.device, a.texts)
    host, enc = bench.host('smollm2-135m'), bench.encoder('minilm')
    schemes = {k: find_scheme(r.kind)(host, enc, 0, name=k, **r.params) for k,r in all_rows().items() if not a.only or k in a.only}
    prompts = build_corpus(host, n=a.texts*(a.rounds + a.slow + 1)).prompts
    part = lambda r: list(prompts[r*a.texts:(r + 1)*a.texts])
    warm_up(bench, schemes, part(a.rounds + a.slow))
    quick = {k: s for k,s in schemes.items() if k not in SLOW}
    res, times = dict(command='python nbs/studies/times.py ' + shlex.join(sys.argv[1:]), texts=a.texts, tokens=a.tokens, **machine(host, enc)), {}
    many = a.texts * (a.candidates or (32 if bench.device.type == 'cuda' else 1))
    for r in range(a.rounds + a.slow):
        bench.batch_size = a.texts if r < a.rounds else many
        some = quick if r < a.rounds else {k: s for k,s in schemes.items() if k in SLOW}
        one_round(bench, some, part(r), r, a.tokens, times)
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps(res | dict(rows=summary(times), rounds=times), indent=1) + '\n')
        print(f'round {r}:', ', '.join(f'{k} {v["write"]["ratio"]:.2f}' for k,v in summary(times).items()), flush=True)

if __name__ == '__main__': main()
