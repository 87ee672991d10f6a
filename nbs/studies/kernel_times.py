"""Microseconds of a GPU for a marking step, by tensor operations and by kernels, at the shapes of a server with Llama-3.2-3B's vocabulary.

    python nbs/studies/serving.py --make study.dew                       # a detector file of the embedded host; a CPU will do
    python nbs/studies/kernel_times.py --scheme study.dew --out nbs/studies/data/kernel_times.json

The file's tables are repeated to 128,256 tokens, logits are random and in 16 bits as a model's are (so that many are equal), answers have 100 tokens. Each function is recorded as a CUDA graph and replayed 50 times between two events.
`step` is a whole step as vLLM's V1 runner starts it, from the last tokens to the changed logits; `likeliest`, `contexts` (with their layers) and `play` are its parts alone. `cpu` is what the processor needs to start a step, replays not waited for:
kernel by kernel, and (`cpu_recorded`) as one record, with the lists of tokens read (`gather`: that alone). `error` is the largest difference of a probability between both ways, for logits in 32 bits.
"""
import argparse, json, tempfile, time
from pathlib import Path

import numpy as np
import torch

from dew_nb.evaluation.texts.content import machine
from dew_nb.mark import kernels as K
from dew_nb.mark.compiled import TURN
from dew_nb.mark.marking import mark_step
from dew_nb.models.artefacts import load_artefact, save_artefact
from dew_nb.serving.vllm import RowMarker, load_scheme
from dew_nb.serving.vllm_rows import Texts

V, TOKENS = 128_256, 100

def widened(path:str, folder:str):
    "The scheme of a file with tables as long as the vocabulary, on the GPU"
    tensors, meta = load_artefact(path, 'detector')
    n = len(tensors['rows'])
    long = {k: x[torch.arange(V) % n] for k,x in tensors.items() if x.ndim and len(x) == n}
    return load_scheme(save_artefact(f'{folder}/wide.dew', 'detector', tensors | long, meta), 'cuda')

def gpu_time(f, n:int=50) -> float:
    "Microseconds of a recorded function"
    for _ in range(3): f()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side): f()
    torch.cuda.current_stream().wait_stream(side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): f()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    g.replay()
    a.record()
    for _ in range(n): g.replay()
    b.record()
    torch.cuda.synchronize()
    return round(1e3*a.elapsed_time(b)/n, 1)

def cpu_time(f, n:int=100) -> float:
    "Microseconds in which a step is started"
    for _ in range(10): f()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n): f()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return round(1e6*spent/n)

def recorded_time(m, logits, n:int=100) -> tuple:
    "Microseconds in which vLLM's V1 runner starts a step, and of these to read the lists"
    texts = Texts('cuda', len(logits), 1024)
    rows = np.array([texts.open() for _ in logits])
    lists = [(1000 + np.arange(TOKENS)*37 + row).tolist() for row in rows]
    def step():
        for tokens in lists: tokens.append(1234)
        torch.cuda.synchronize()
        start = time.perf_counter()
        last = texts.last_tokens(rows, lists)
        read = time.perf_counter() - start
        m.mark_texts(logits, texts, last)
        return time.perf_counter() - start, read
    with torch.inference_mode(): spent = [step() for _ in range(n + 10)]
    return tuple(round(1e6*float(x)) for x in np.median(spent[10:], 0))

def measure(m, B:int) -> dict:
    "A row: one batch"
    torch.manual_seed(0)
    scheme, rule, dev = m.scheme, m.scheme.rule, 'cuda'
    logits, ids = torch.randn(B, V, device=dev)*3, torch.randint(1000, V//3, (256, 1024), device=dev)
    rows, start, end = torch.arange(B, device=dev), torch.zeros(B, dtype=torch.long, device=dev), torch.full((B,), TOKENS, device=dev)
    text, state = ids[:B, :256].contiguous(), m.state(start, end)
    K.kernels.works = False
    want, old = mark_step(scheme, text, logits, state).softmax(-1), gpu_time(lambda: m._mark(logits, text, start, end))
    K.kernels.works = True
    step = torch.stack([rows, end, end-1, ids[:B, TOKENS-1], end-1, ids[:B, TOKENS-1]])
    whole, by_parts = logits.clone(), m.mark_rows(logits.clone(), ids, rows, start, end, TOKENS)
    m._step(whole, ids, step, width=256)
    error = max(float((x.softmax(-1) - want).abs().max()) for x in (whole, by_parts))
    logits = logits.bfloat16().float()
    values, at = K.likeliest(logits, 256)
    c, on = K.next_contexts(text, at, state, scheme.contexts, rule, TURN)
    q = rule.project(c)
    parts = dict(step=lambda: m._step(logits, ids, step, width=256), likeliest=lambda: K.likeliest(logits, 256), play=lambda: K.play_candidates(values, at, q, on, rule.table.rows),
                 contexts=lambda: K.project_contexts(K.last_contexts(text, state, scheme.contexts, rule, TURN)[0], rule.M, rule.a))
    recorded, gather = recorded_time(m, logits)
    return dict(batch=B, tensor_operations=old, **{k: gpu_time(f) for k,f in parts.items()}, cpu=cpu_time(lambda: m.mark_rows(logits, ids, rows, start, end, TOKENS)),
                cpu_recorded=recorded, gather=gather, error=error)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--scheme', required=True, help='a detector file')
    ap.add_argument('--batches', type=int, nargs='+', default=[1, 16, 64, 256])
    ap.add_argument('--out', type=Path, default=Path('kernel_times.json'))
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        m = RowMarker(widened(a.scheme, folder))
        rows = [measure(m, B) for B in a.batches]
    a.out.write_text(json.dumps(dict(command=f'python nbs/studies/kernel_times.py --scheme study.dew --out nbs/studies/data/{a.out.name}', vocabulary=V, rows=rows, **machine(device='cuda')), indent=1) + '\n')
    for r in rows: print(r)

if __name__ == '__main__': main()
