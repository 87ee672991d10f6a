"""What the mark costs in vLLM: seconds per step with and without it, in one interleaved run of one engine.

    .venv-serve/bin/python nbs/studies/serving.py --out nbs/studies/data/serving_cpu.json
    python nbs/studies/serving.py --model FOLDER --batches 1 16 64 256 --tokens 128 --out nbs/studies/data/serving_gpu.json

Each round asks for every batch once marked and once unmarked (`{"dew": false}`), in random order; reported are medians over
rounds of the seconds per step and of the ratio within the round. On the CPU the seconds are those of work (user and system, of all of
the engine's processes), which a busy machine does not change; on a GPU those of the clock. With --bare another engine, without the
processor, is timed before: what it costs to have it loaded. A detector file made for the model is given with --scheme; without it
one is made for the embedded host.
"""
import argparse, gc, json, os, random, shlex, statistics, sys, tempfile, time
from pathlib import Path

import psutil, torch

PROMPT = 'The old harbour was quiet in the early morning, and'

def work() -> float:
    "Seconds of work of this process and of all that it started"
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)

def embedded_scheme(folder:str) -> str:
    "A detector file for the embedded host"
    from dew_nb import DEW, load_encoder, load_host
    from dew_nb.evaluation.content import study_key
    return str(DEW.build(load_host(device='cpu'), load_encoder(device='cpu'), study_key(0), progress=False).detector().save(f'{folder}/study.dew'))

def engine(model:str, marked:bool, gpu:bool):
    "vLLM's engine, with the processor or without"
    from vllm import LLM
    more = dict(logits_processors=['dew_nb.vllm:DEW']) if marked else {}
    if not gpu: more |= dict(dtype='float32', enforce_eager=True)
    return LLM(model, max_model_len=1024, disable_log_stats=True, **more)

def once(llm, batch:int, tokens:int, mark:bool|None, clock, **sampling) -> float:
    "Seconds per step of one call"
    from vllm import SamplingParams
    args = {} if mark is None else dict(extra_args=dict(dew=mark))
    params = [SamplingParams(max_tokens=tokens, min_tokens=tokens, **sampling, **args) for _ in range(batch)]
    start = clock()
    llm.generate([PROMPT]*batch, params, use_tqdm=False)
    return (clock() - start)/tokens

def bench(llm, a, variants:dict, clock) -> list:
    "Medians and ranges over rounds, for each batch, way of sampling and variant"
    rows = []
    for how,sampling in {'plain': {}, 'top-p 0.95': dict(temperature=.9, top_p=.95)}.items():
        for batch in a.batches:
            run = lambda v: once(llm, batch, a.tokens, variants[v], clock, **sampling)
            for v in variants: run(v)                                   # warm up
            times = {v: [] for v in variants}
            for r in range(a.rounds):
                for v in random.Random(r).sample(list(variants), len(variants)): times[v].append(run(v))
            for v in variants:
                ratio = [x/y for x,y in zip(times[v], times['no mark'])]
                rows.append(dict(sampling=how, batch=batch, variant=v, ms_per_step=1e3*statistics.median(times[v]),
                                 ratio=statistics.median(ratio), low=min(ratio), high=max(ratio)))
                print(f"{how:10} batch {batch:3} {v:8} {rows[-1]['ms_per_step']:8.2f} ms/step  ratio {rows[-1]['ratio']:.3f} "
                      f"({min(ratio):.3f}-{max(ratio):.3f})", flush=True)
    return rows

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--model', help='folder or hub id; the embedded host unless given')
    ap.add_argument('--scheme', help='a detector file for it; made for the embedded host unless given')
    ap.add_argument('--batches', type=int, nargs='+', default=[1, 8, 32])
    ap.add_argument('--tokens', type=int, default=48)
    ap.add_argument('--rounds', type=int, default=5)
    ap.add_argument('--bare', action='store_true', help='also an engine without the processor')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def main():
    a, gpu = arguments(), torch.cuda.is_available()
    os.environ.setdefault('VLLM_CPU_KVCACHE_SPACE', '1')
    from dew_nb.assets import asset_path
    from dew_nb.evaluation.content import machine
    model, clock = a.model or str(asset_path('smollm2-135m')), time.perf_counter if gpu else work
    res = dict(model=a.model or 'smollm2-135m', rounds=a.rounds, tokens=a.tokens, seconds='of the clock' if gpu else 'of work',
               **machine(device='cuda' if gpu else 'cpu'))
    with tempfile.TemporaryDirectory() as folder:
        os.environ['DEW_SCHEME'] = a.scheme or embedded_scheme(folder)
        if a.bare:
            llm = engine(model, False, gpu)
            res['bare'] = bench(llm, a, {'no mark': None}, clock)
            del llm
            gc.collect()
        res['marked'] = bench(engine(model, True, gpu), a, {'no mark': False, 'DEW': True}, clock)
    from vllm import __version__
    a.out.parent.mkdir(parents=True, exist_ok=True)
    command = 'python nbs/studies/serving.py ' + shlex.join(sys.argv[1:])
    a.out.write_text(json.dumps(dict(command=command, vllm=__version__) | res, indent=1) + '\n')

if __name__ == '__main__': main()
