"""What the mark costs in vLLM: seconds per step with and without it, in one interleaved run.

    .venv-serve/bin/python nbs/studies/serving.py --out nbs/studies/data/serving_cpu.json
    python nbs/studies/serving.py --shape llama-3b --bare --batches 1 16 64 256 --tokens 128 --out nbs/studies/data/serving_gpu_3b.json
    python nbs/studies/serving.py --batches 64 --texts 64 --out nbs/studies/data/serving_gpu.json

Each round asks for every batch once marked and once unmarked (`{"dew": false}`), in random order; reported are medians over
rounds of the seconds per step and of the ratio within the round, with a 95% interval of the latter by drawing rounds again: of whole calls (`ratio`: seconds of a call
over its tokens, with all that happens when requests come and go) and of the median time between two steps of a call (`step_ratio`). On the CPU the seconds are those of work (user and system, of all of
the engine's processes), which a busy machine does not change; on a GPU those of the clock. With --bare a second engine, which has no
processor at all, takes part in each round: `over_bare` is the ratio to it. A detector file made for the model is given with --scheme; without it
one is made for the embedded host (--make makes it and nothing else). --shape takes a model of that many layers, widths and tokens with random weights and the embedded
host's tokenizer, its scheme's tables made as long as the vocabulary: a step takes as long as with real ones. With --texts the engine
also writes so many texts with the mark and without, which are then detected. What is finished is in --out at any time.
"""
import argparse, gc, json, os, random, shlex, statistics, sys, tempfile, time
from pathlib import Path

import numpy as np
import psutil, torch
from scipy.stats import bootstrap

SHAPES = {'llama-3b': dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
                           num_key_value_heads=8, head_dim=128, max_position_embeddings=8192),
          'toy': dict(vocab_size=60000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=64, max_position_embeddings=8192)}
PROMPT = 'The old harbour was quiet in the early morning, and'

def work() -> float:
    "Seconds of work of this process and of all that it started"
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)

def embedded_scheme(path:str) -> str:
    "A detector file for the embedded host"
    from dew_nb import DEW, load_encoder, load_host
    from dew_nb.evaluation.texts.content import study_key
    return str(DEW.build(load_host(device='cpu'), load_encoder(device='cpu'), study_key(0), progress=False).detector().save(path))

def shaped(folder:str, shape:str, scheme:str) -> tuple:
    "A folder with a model of a shape and no weights, and a detector file as wide as its vocabulary"
    from dew_nb.models.artefacts import load_artefact, save_artefact
    from dew_nb.models.assets import asset_path
    own, new = Path(asset_path('smollm2-135m')), Path(folder)/shape
    new.mkdir()
    for f in own.glob('*.json'): (new/f.name).write_bytes(f.read_bytes())
    config = json.loads((own/'config.json').read_text()) | SHAPES[shape] | dict(dtype='bfloat16')
    (new/'config.json').write_text(json.dumps(config))
    tensors, meta = load_artefact(scheme, 'detector')
    again = torch.arange(SHAPES[shape]['vocab_size']) % len(tensors['rows'])
    tensors |= {k: tensors[k][again] for k in ('rows', 'contexts')}
    return str(new), str(save_artefact(f'{folder}/{shape}.dew', 'detector', tensors, meta))

def engine(model:str, marked:bool, gpu:bool, a):
    "vLLM's engine, with the processor or without"
    from vllm import LLM
    more = dict(logits_processors=['dew_nb.serving.vllm:DEW']) if marked else {}
    if a.shape: more |= dict(load_format='dummy')
    if not gpu: more |= dict(dtype='float32', enforce_eager=True)
    else:
        graphs = dict(cudagraph_capture_sizes=sorted({*a.batches, 64}), **(dict(mode=0, cudagraph_mode='FULL_DECODE_ONLY') if a.no_compile else {}))
        more |= dict(dtype='bfloat16', gpu_memory_utilization=a.memory, max_num_seqs=256, compilation_config=graphs)
    if a.attention: more |= dict(attention_config=dict(backend=a.attention))
    return LLM(model, max_model_len=1024, disable_log_stats=True, **more)

def close(llm):
    "End an engine and its processes"
    llm.llm_engine.engine_core.shutdown()
    gc.collect()

def once(llm, batch:int, tokens:int, mark:bool|None, clock, **sampling) -> tuple:
    "Seconds of a call per step, and the median time between two steps of it (of work: the same again)"
    from vllm import SamplingParams
    args = {} if mark is None else dict(extra_args=dict(dew=mark))
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **sampling, **args) for _ in range(batch)]
    ends, step = [clock()], type(llm.llm_engine).step
    def timed():
        out = step(llm.llm_engine)
        ends.append(clock())
        return out
    if clock is not work: llm.llm_engine.step = timed
    llm.generate([PROMPT]*batch, params, use_tqdm=False)
    mean = (clock() - ends[0])/tokens
    return mean, mean if clock is work else statistics.median(y - x for x,y in zip(ends[1:], ends[2:]))

SAMPLINGS = {'plain': {}, 'top-p 0.95': dict(temperature=.9, top_p=.95)}

def bench(variants:dict, a, clock, rows:list, save):
    "Medians and ranges over rounds, for each batch, way of sampling and variant: an engine and whether it marks"
    for how in a.samplings:
        for batch in a.batches:
            run = lambda v: once(variants[v][0], batch, a.tokens, variants[v][1], clock, **SAMPLINGS[how])
            for v in variants: run(v)                                   # warm up
            times = {v: [] for v in variants}
            for r in range(a.rounds):
                for v in random.Random(r).sample(list(variants), len(variants)): times[v].append(run(v))
            rows += [summary(how, batch, v, times) for v in variants]
            save()

def interval(ratio:list) -> list:
    "95% interval of the median of rounds drawn again; of one round: nothing but itself"
    if len(ratio) < 2: return ratio*2
    return [float(x) for x in bootstrap((ratio,), np.median, n_resamples=10_000, method='percentile', rng=0).confidence_interval]

def summary(how:str, batch:int, v:str, times:dict) -> dict:
    "One row: a variant at a batch size"
    row = dict(sampling=how, batch=batch, variant=v)
    for j,name in enumerate(('ratio', 'step_ratio')):
        ratio = [x[j]/y[j] for x,y in zip(times[v], times['no mark'])]
        row |= {name: statistics.median(ratio)} | dict(zip((f'{name}_low', f'{name}_high'), interval(ratio)))
        if not j: row |= dict(low=min(ratio), high=max(ratio))
    row |= {k: 1e3*statistics.median(x[j] for x in times[v]) for j,k in enumerate(('ms_per_step', 'ms_median_step'))}
    if 'bare' in times: row |= {k: statistics.median(x[j]/y[j] for x,y in zip(times[v], times['bare'])) for j,k in enumerate(('over_bare', 'step_over_bare'))}
    print(f"{how:10} batch {batch:3} {v:8} {row['ms_per_step']:7.2f} ms/step, ratio {row['ratio']:.3f} (95%: {row['ratio_low']:.3f}-{row['ratio_high']:.3f}); median step {row['ms_median_step']:7.2f} ms, "
          f"ratio {row['step_ratio']:.3f} ({row['step_ratio_low']:.3f}-{row['step_ratio_high']:.3f}); to a bare engine {row.get('over_bare', float('nan')):.3f}, {row.get('step_over_bare', float('nan')):.3f}", flush=True)
    return row

def marking(llm, n:int=8, tokens:int=64) -> dict:
    """Mean z of ids that the engine writes marked and unmarked, straight from the rule's scores: also where weights are random, so that
    all tokens are about equally likely; a tournament of the 256 likeliest would have nothing to decide then, so 64 are left to draw from"""
    from dew_nb import Detector
    from vllm import SamplingParams
    scheme = Detector.load(os.environ['DEW_SCHEME'], device='cpu').scheme
    ask = lambda mark: SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, top_k=64, extra_args=dict(dew=mark))
    outs = llm.generate([PROMPT]*(2*n), [ask(i % 2 == 0) for i in range(2*n)], use_tqdm=False)
    def z(o):
        ids = torch.tensor(o.outputs[0].token_ids)
        x = scheme.rule.score(scheme.project(ids.unfold(0, scheme.config.k, 1)[:-1]), ids[scheme.config.k:, None])[:, 0]
        return float(x.mean()/scheme.rule.sd)*len(x)**.5
    told = {name: statistics.mean(map(z, outs[i::2])) for i,name in enumerate(('DEW', 'no mark'))}
    print(f'mean z of {n} rows of {tokens} ids each', told, flush=True)
    return told

def detected(llm, a, tokens:int=200) -> dict:
    "Medians of -log10 p of texts that the engine writes in one batch, marked and unmarked, and how many are found at 1%"
    from dew_nb import Detector
    from vllm import SamplingParams
    ask = lambda mark: SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=.9, top_p=.95, extra_args=dict(dew=mark))
    outs = llm.generate([PROMPT]*(2*a.texts), [ask(i % 2 == 0) for i in range(2*a.texts)], use_tqdm=False)
    p = Detector.load(os.environ['DEW_SCHEME'], device='cpu').detect([o.outputs[0].text for o in outs], progress=False)
    p = np.array([max(float(r.p_value), 1e-300) for r in p])
    told = {n: dict(median=float(np.median(-np.log10(x))), found=int((x < .01).sum())) for n,x in (('DEW', p[::2]), ('no mark', p[1::2]))}
    print(f'{a.texts} texts of {tokens} tokens each: -log10 p and p < 0.01', told, flush=True)
    return dict(texts=a.texts, tokens=tokens) | told

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--model', help='folder or hub id; the embedded host unless given')
    ap.add_argument('--scheme', help='a detector file for it; made for the embedded host unless given')
    ap.add_argument('--shape', choices=list(SHAPES), help='random weights of this shape, in place of --model')
    ap.add_argument('--attention', help="vLLM's attention backend, e.g. TRITON_ATTN; its own choice unless given")
    ap.add_argument('--no-compile', action='store_true', help='CUDA graphs without torch.compile: starts sooner')
    ap.add_argument('--texts', type=int, default=0, help='also write and detect so many texts, marked and unmarked')
    ap.add_argument('--batches', type=int, nargs='+', default=[1, 8, 32])
    ap.add_argument('--tokens', type=int, default=48)
    ap.add_argument('--rounds', type=int, default=5)
    ap.add_argument('--samplings', nargs='+', choices=list(SAMPLINGS), default=list(SAMPLINGS))
    ap.add_argument('--memory', type=float, default=.25, help="share of a GPU's memory for each engine")
    ap.add_argument('--bare', action='store_true', help='also an engine without the processor')
    ap.add_argument('--patience', type=float, default=1e9, help='seconds after which that one is no longer started')
    ap.add_argument('--make', type=Path, metavar='FILE', help='make the detector file for the embedded host, and nothing else')
    ap.add_argument('--out', type=Path, default=Path('serving.json'))
    return ap.parse_args()

def main():
    a, gpu = arguments(), torch.cuda.is_available()
    if a.make: return embedded_scheme(a.make)
    for name,value in dict(VLLM_CPU_KVCACHE_SPACE='1', VLLM_NO_USAGE_STATS='1', HF_HUB_OFFLINE='1',
                           VLLM_WORKER_MULTIPROC_METHOD='spawn', DEW_ALLOW_OPT_OUT='1').items(): os.environ.setdefault(name, value)
    from dew_nb.models.assets import asset_path
    from dew_nb.evaluation.texts.content import machine
    from vllm import __version__
    model, clock = a.model or str(asset_path('smollm2-135m')), time.perf_counter if gpu else work
    said = [f'nbs/studies/data/{a.out.name}' if x == str(a.out) else Path(x).name if x == a.scheme else x for x in sys.argv[1:]]
    command = shlex.join(['python', 'nbs/studies/serving.py', *said])
    res = dict(command=command, vllm=__version__, model=a.shape or a.model or 'smollm2-135m', rounds=a.rounds, tokens=a.tokens,
               seconds='of the clock' if gpu else 'of work', runner=os.environ.get('VLLM_USE_V2_MODEL_RUNNER', ''),
               compiled=gpu and not a.no_compile, **machine(device='cuda' if gpu else 'cpu'), marked=[])
    a.out.parent.mkdir(parents=True, exist_ok=True)
    save = lambda: a.out.write_text(json.dumps(res, indent=1) + '\n')
    with tempfile.TemporaryDirectory() as folder:
        scheme = a.scheme or embedded_scheme(f'{folder}/study.dew')
        if a.shape: model, scheme = shaped(folder, a.shape, scheme)
        os.environ['DEW_SCHEME'], engines, begun = scheme, {}, time.perf_counter()
        for name in ['marked'] + ['bare']*a.bare:
            start = time.perf_counter()
            if start - begun > a.patience: continue
            engines[name] = engine(model, name == 'marked', gpu, a)
            res[f'{name}_start'] = time.perf_counter() - start
            print(f'engine {name!r} after {res[f"{name}_start"]:.0f} s', flush=True)
        variants = {'no mark': (engines['marked'], False), 'DEW': (engines['marked'], True)}
        if 'bare' in engines: variants['bare'] = engines['bare'], None
        res['z'] = marking(engines['marked'])
        if a.texts and not a.shape: res['detected'] = detected(engines['marked'], a)
        bench(variants, a, clock, res['marked'], save)
        for llm in engines.values(): close(llm)
    save()

if __name__ == '__main__': main()
