"""What the mark costs: time per generation step, as a ratio to unmarked generation in the same
interleaved run.

    python nbs/studies/speed.py --shape llama-3.2-3b --out nbs/studies/data/speed_gpu.json
    python nbs/studies/speed.py --shape embedded --batches 1 16 --out nbs/studies/data/speed_cpu.json
    python nbs/studies/speed.py --only-detect 1000 --singles 200 --out nbs/studies/data/speed_detect.json
    python nbs/studies/speed.py --shape llama-3.2-3b --rule tournament --rounds 20 --others 3 --tokens 64 --out nbs/studies/data/speed_tournament_gpu.json
    python nbs/studies/speed.py --shape llama-3.2-3b --rule tournament --rounds 20 --others 0 --tokens 64 --static --out nbs/studies/data/speed_static_gpu.json
    python nbs/studies/speed.py --rule tournament --preset standard --batches 1 16 --rounds 8 --others 0 --tokens 12 --out nbs/studies/data/speed_standard_cpu.json
    python nbs/studies/speed.py --rule tournament --only-detect 1000 --out nbs/studies/data/speed_tournament_detect_gpu.json
    python nbs/studies/speed.py --rule tournament --preset standard --only-weights 400 --singles 40 --rounds 30 --out nbs/studies/data/speed_weights_cpu.json

Each round times every variant once, in random order; reported are medians over rounds of the seconds
per step and of the ratio within the round, with a 95% interval of that median (from order statistics) and the whole range. With --others the
schemes that are there for comparison have fewer rounds, or none. The file is written anew after each batch size, so a run that is cut short leaves what it had. The shape of Llama-3.2-3B has random weights; its encoder has
XLM-R-base's shape and a Unigram tokenizer of XLM-R's size, made of the vocabularies at hand. With
--detect, also how much faster many texts are in one call than one call each; with --only-detect that
alone. The tournament needs no encoder: at the shape of Llama-3.2-3B its tables are random too, since only their size counts. With
--static the host has a static cache, and on a GPU transformers compiles its step: the host is no longer bound by launches, and a mark
can't hide behind it. For the tournament the time of the mark's own kernels is measured beside, by CUDA events: `ms` on an idle GPU, where launches count,
`queued_ms` behind other work, where only the kernels do, and `launch_ms`, what it takes the CPU to launch them. Detection is measured in seconds of the clock and in
seconds of the CPU (all threads), which others on the machine disturb less. --only-weights times reading with the preset's position weights against reading
with all positions alike, in turns.
"""
import argparse, json, random, shlex, statistics, sys, tempfile, time
from dataclasses import replace
from pathlib import Path

import torch
from scipy.stats import binom

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.models.assets import asset_path
from dew_nb.models.encoders import wrap_encoder
from dew_nb.evaluation.texts.content import machine, study_key
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.models.hosts import wrap_host
from dew_nb.mark.compiled import CompiledContexts
from dew_nb.mark.tables import TokenTable
from dew_nb.mark.tournament import TournamentRule, layer_normals
from dew_nb.models.vectors import unit_rows

class Folded:
    "Contexts whose ids are brought into a tokenizer's range: random weights give random ids"
    def __init__(self, contexts, size): self.contexts, self.size = contexts, size
    def __getattr__(self, name): return getattr(self.contexts, name)
    def encode(self, windows, **kwargs): return self.contexts.encode(windows % self.size, **kwargs)

LLAMA = dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
             num_attention_heads=24, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
             bos_token_id=1, eos_token_id=None, pad_token_id=0)
XLM_R = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
             max_position_embeddings=514, type_vocab_size=1)

def shaped_host(device):
    "A host of Llama-3.2-3B's shape with random weights"
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device): model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    finally: torch.set_default_dtype(torch.float32)
    return wrap_host(model, load_host(device='cpu').tokenizer, 'llama-3.2-3b shape')

def xlmr_pieces(size):
    "Pieces and scores of a Unigram vocabulary: those of the multilingual encoder, then Gemma's below them"
    from sentencepiece import SentencePieceProcessor
    sp = SentencePieceProcessor(model_file=str(asset_path('use-multilingual')/'sp.model'))
    pieces = dict.fromkeys(('<s>', '<pad>', '</s>', '<unk>'), 0.)
    for i in range(6, sp.get_piece_size()): pieces.setdefault(sp.id_to_piece(i), sp.get_score(i))
    least = min(pieces.values())
    more = json.loads((asset_path('gemma3-270m')/'tokenizer.json').read_text())['model']['vocab']
    for i,p in enumerate(sorted(more, key=more.get)):
        if len(pieces) < size - 1 and not p.startswith('<'): pieces.setdefault(p, least - i*1e-6)
    return [*pieces.items(), ('<mask>', 0.)]

def shaped_tokenizer(size=250_002):
    "A tokenizer of XLM-R's kind and size: SentencePiece's Unigram over 250,002 pieces, no memo of words applies to it"
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    tok = Tokenizer(models.Unigram(xlmr_pieces(size), unk_id=3))
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tok.post_processor = processors.TemplateProcessing('<s> $A </s>', special_tokens=[('<s>', 0), ('</s>', 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tok, model_max_length=512, bos_token='<s>', eos_token='</s>',
        cls_token='<s>', sep_token='</s>', pad_token='<pad>', unk_token='<unk>', mask_token='<mask>')

def shaped_encoder(device):
    "An encoder of XLM-R-base's shape with random weights, and a tokenizer of its kind"
    from sentence_transformers import SentenceTransformer
    try: from sentence_transformers.models import Pooling, Transformer
    except ImportError: from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import XLMRobertaConfig, XLMRobertaModel
    tok = shaped_tokenizer()
    with tempfile.TemporaryDirectory() as d:
        config = XLMRobertaConfig(vocab_size=len(tok), pad_token_id=tok.pad_token_id, **XLM_R)
        XLMRobertaModel(config).save_pretrained(d)
        tok.save_pretrained(d)
        model = SentenceTransformer(modules=[Transformer(d), Pooling(768)], device=device)
    return wrap_encoder(model, name='xlm-r-base shape')

def shaped_tournament(host):
    "The preset `tournament` with random tables of the host's size"
    V, dev, config = host.model.config.vocab_size, host.model.device, DEWConfig.preset('tournament')
    n, d = config.rule.n or 64, config.contexts.width
    g = torch.Generator().manual_seed(0)
    rows, S = (unit_rows(torch.randn(V, w, generator=g)).to(dev) for w in (n, d))
    M, a = (x.to(dev) for x in layer_normals(study_key(0), config.rule.layers, config.rule.order, d, n))
    rule = TournamentRule(config, TokenTable(rows, torch.empty(d, 0), n, False, {}), M, a)
    return DEW(config, rule, CompiledContexts(S.half(), host.tokenizer, config.k, config.contexts.decay))

def tournament_variants(host, enc, preset='tournament'):
    "Name: function that makes the arguments of one call of `generate`"
    from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig
    V, dev = host.model.config.vocab_size, host.model.device
    wm = shaped_tournament(host) if enc is None else DEW.build(host, enc, study_key(0), DEWConfig.preset(preset), progress=False)
    synthid = SynthIDTextWatermarkingConfig(keys=list(range(1, 31)), ngram_len=4)
    return wm, {'no mark': dict, f'DEW {preset}': lambda: dict(watermarking_config=wm.watermarking_config()),
        'KGW (transformers)': lambda: dict(logits_processor=[WatermarkingConfig().construct_processor(V, dev)]),
        'SynthID (transformers)': lambda: dict(logits_processor=[synthid.construct_processor(V, dev)])}

def timed(f, calls, queued):
    "Milliseconds of calls, by CUDA events, and of the CPU; `queued`: behind work of some milliseconds"
    kernels, launches = [], []
    for _ in range(calls):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if queued: torch.cuda._sleep(8_000_000)
        a.record()
        t = time.perf_counter()
        f()
        launches.append(1e3*(time.perf_counter()-t))
        b.record()
        torch.cuda.synchronize()
        kernels.append(a.elapsed_time(b))
    return statistics.median(kernels), statistics.median(launches)

def kernel_time(wm, V, batches, tokens=64, calls=200):
    "Milliseconds of the mark alone on random logits: medians of `calls`"
    rows, dev = [], wm.table.device
    for B in batches:
        ids, logits = torch.randint(10, 40_000, (B, tokens), device=dev), torch.randn(B, V, device=dev)
        mark = wm.processor(0)
        mark.begin(ids)
        def f(): return mark.by_table(ids, logits)
        for _ in range(3): f()                         # record the step
        (ms, _), (queued, launch) = timed(f, calls, False), timed(f, calls, True)
        rows.append(dict(batch=B, ms=ms, queued_ms=queued, launch_ms=launch))
        print('kernels', rows[-1], flush=True)
    return rows

def variants(host, enc):
    "Name: function that makes the arguments of one call of `generate`"
    from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig
    V, dev = host.model.config.vocab_size, host.model.device
    wm = DEW.build(host, enc, study_key(0), DEWConfig.preset('paper'), dtype=torch.float16, device=dev)
    contexts = wm.contexts                             # the encoder's own, folded or not
    if V > len(host.tokenizer): wm = replace(wm, contexts=Folded(contexts, len(host.tokenizer)-100))
    graph = contexts.fast
    def dew(fast, capacity):
        contexts.fast, contexts.recent.capacity = fast, capacity
        return dict(logits_processor=[wm.processor()])
    synthid = SynthIDTextWatermarkingConfig(keys=list(range(1, 31)), ngram_len=4)
    out = {'no mark': dict,
           'KGW (transformers)': lambda: dict(logits_processor=[WatermarkingConfig().construct_processor(V, dev)]),
           'SynthID (transformers)': lambda: dict(logits_processor=[synthid.construct_processor(V, dev)]),
           'DEW': lambda: dew(graph, 4096)}
    if graph is not None: out['DEW, plain encoder call'] = lambda: dew(None, 0)
    return out

def wait(device):
    "Until a GPU has done what it was asked"
    if device.type == 'cuda': torch.cuda.synchronize()

def seconds_per_step(model, x, tokens, how):
    "One call of `generate`: seconds of the clock and of the CPU, all threads"
    wait(model.device)
    t, c = time.perf_counter(), time.process_time()
    with torch.no_grad():
        model.generate(**x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0,
                       pad_token_id=0, **how)
    wait(model.device)
    return (time.perf_counter()-t)/tokens, (time.process_time()-c)/tokens

def median_interval(x):
    "A 95% interval of the median, from order statistics; the range, where there are few"
    x, k = sorted(x), int(binom.ppf(.025, len(x), .5))
    return x[max(k-1, 0)], x[min(len(x)-k, len(x)-1)]

def bench(host, vs, batches, rounds, tokens, others=None, prompt=30, **more):
    "For each batch, the rows of all variants: medians, intervals and ranges over rounds"
    model, ours = host.model, [v for v in vs if v == 'no mark' or v.startswith('DEW')]
    if others == 0: vs = {v: vs[v] for v in ours}
    for B in batches:
        ids = torch.randint(10, 40_000, (B, prompt), device=model.device)
        x = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        def once(v): return seconds_per_step(model, x, tokens, vs[v]() | more)
        for v in vs: once(v)                           # warm up, record graphs
        times = {v: {} for v in vs}
        for r in range(rounds):
            now = list(vs) if others is None or r < others else ours
            for v in random.Random(r).sample(now, len(now)): times[v][r] = once(v)
        yield [summary(B, v, times[v], times['no mark']) for v in vs]

def summary(B, v, times, base):
    "One row: a variant at a batch size"
    ratio, work = ([t[i]/base[r][i] for r,t in times.items()] for i in (0, 1))
    low, high = median_interval(ratio)
    ms, cpu = (1e3*statistics.median(t[i] for t in times.values()) for i in (0, 1))
    row = dict(batch=B, variant=v, ms_per_step=ms, cpu_ms_per_step=cpu, cpu_ratio=statistics.median(work),
               cpu_interval=median_interval(work), rounds=len(ratio), ratio=statistics.median(ratio), interval=(low, high), low=min(ratio), high=max(ratio))
    print(f"batch {B:3} {v:24} {row['ms_per_step']:8.2f} ms/step  ratio {row['ratio']:.3f} "
          f"({low:.3f}-{high:.3f}, range {min(ratio):.3f}-{max(ratio):.3f}, "
          f"of the CPU {row['cpu_ratio']:.3f}, {len(ratio)} rounds)", flush=True)
    return row

def detection(host, enc, texts, singles, rounds, config):
    "One call for many texts against one call a text, in turns; medians and ranges over rounds"
    det = DEW.build(host, enc, study_key(0), config, progress=False).detector()
    ts = list(build_corpus(host, n=texts).human)
    if len(ts) < texts: print(f'the corpus has {len(ts)} texts', flush=True)
    singles, device = min(singles, len(ts)), det.scheme.table.device
    recent = getattr(det.scheme.contexts, 'recent', None)
    if recent is not None: recent.capacity = 0         # rounds repeat texts: no window from memory
    def many(r):
        det.detect(ts, progress=False)
        return len(ts)
    def one(r):                                        # other texts in each round
        for i in range(singles): det.detect(ts[(r*singles + i) % len(ts)])
        return singles
    det.detect(ts[:32], progress=False)                # warm up, record graphs
    for t in ts[:32]: det.detect(t)
    speed, cpu = dict(one_call=[], single_calls=[]), dict(one_call=[], single_calls=[])
    for r in range(rounds):
        for name,f in sorted(dict(one_call=many, single_calls=one).items(), reverse=bool(r % 2)):
            wait(device)
            t, c = time.perf_counter(), time.process_time()
            n = f(r)
            speed[name].append(n/(time.perf_counter()-t))
            cpu[name].append(n/(time.process_time()-c))
    ratio = [a/b for a,b in zip(speed['one_call'], speed['single_calls'])]
    tokens = statistics.median(r.n_tokens for r in det.detect(ts[:100], progress=False))
    d = dict(texts=len(ts), tokens=tokens, singles=singles,
             texts_per_second_one_call=statistics.median(speed['one_call']),
             texts_per_second_single_calls=statistics.median(speed['single_calls']),
             texts_per_cpu_second=statistics.median(cpu['one_call']), threads=torch.get_num_threads(),
             ratio=statistics.median(ratio), low=min(ratio), high=max(ratio), rounds=speed, cpu_rounds=cpu)
    print(json.dumps(d), flush=True)
    return d

def weights(host, enc, texts, singles, rounds, config):
    "Reading with the weights of a preset against reading with all positions alike: ratios of seconds within a round"
    det = DEW.build(host, enc, study_key(0), config, progress=False).detector()
    readers, ts = dict(weights=det, alike=det.unweighted()), list(build_corpus(host, n=texts).human)
    if det.scheme.room is None: sys.exit('the preset has no weights: take --preset standard')
    ways = dict(one_call=lambda d, r: d.detect(ts, progress=False), single_calls=lambda d, r: [d.detect(ts[(r*singles + i) % len(ts)]) for i in range(singles)])
    work, out = [(w, name) for w in ways for name in readers], {}
    for w,name in work: ways[w](readers[name], 0)      # warm up
    for r in range(rounds):
        for w,name in random.Random(r).sample(work, len(work)):
            wait(det.scheme.table.device)
            t, c = time.perf_counter(), time.process_time()
            ways[w](readers[name], r)
            wait(det.scheme.table.device)
            out.setdefault((w, name), []).append((time.perf_counter() - t, time.process_time() - c))
    found = dict(texts=len(ts), tokens=statistics.median(x.n_tokens for x in det.detect(ts[:100], progress=False)), singles=singles, rounds=rounds, threads=torch.get_num_threads(), table=det.scheme.room.digest)
    for w in ways: found[w] = {of: speed_kept(out[w, 'alike'], out[w, 'weights'], i) for i,of in enumerate(('clock', 'cpu'))}
    print(json.dumps(found, indent=1), flush=True)
    return found

def speed_kept(alike, weighted, i):
    "Share of the speed that is kept with weights: the median over rounds, its interval, and the median seconds of both"
    x = [a[i]/b[i] for a,b in zip(alike, weighted)]
    return dict(speed=statistics.median(x), interval=median_interval(x), low=min(x), high=max(x), seconds={n: statistics.median(t[i] for t in ts) for n,ts in (('alike', alike), ('weights', weighted))})

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--shape', choices=('embedded', 'llama-3.2-3b'), default='embedded')
    ap.add_argument('--rule', choices=('bias', 'tournament'), default='bias')
    ap.add_argument('--preset', choices=('tournament', 'standard'), default='tournament', help='of the tournament; the larger shape has the first alone')
    ap.add_argument('--static', action='store_true', help='static cache, and on a GPU a compiled step')
    ap.add_argument('--batches', type=int, nargs='+', default=[1, 16, 64])
    ap.add_argument('--rounds', type=int, default=5)
    ap.add_argument('--others', type=int, help='rounds of the schemes for comparison; 0: none of them, by default all rounds')
    ap.add_argument('--tokens', type=int, default=40)
    ap.add_argument('--detect', type=int, default=0, metavar='TEXTS',
                    help='the detection benchmark, after that of insertion')
    ap.add_argument('--only-detect', type=int, default=0, metavar='TEXTS',
                    help='the detection benchmark, and nothing else')
    ap.add_argument('--only-weights', type=int, default=0, metavar='TEXTS',
                    help='detection with position weights against detection without, and nothing else')
    ap.add_argument('--singles', type=int, default=100, help='single calls in each round of it')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def main():
    a = arguments()
    dev = a.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    def small(): return load_host(device=dev), load_encoder(device=dev)
    config = DEWConfig.preset(a.preset) if a.rule == 'tournament' else DEWConfig.preset('calibrated')
    said = [f'nbs/studies/data/{a.out.name}' if x == str(a.out) else x for x in sys.argv[1:]]
    command = 'python nbs/studies/speed.py ' + shlex.join(said)
    def keep(res):
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps(dict(command=command) | res, indent=1) + '\n')
    if a.only_detect:                                  # its own file, with its figures at the top
        host, enc = small()
        return keep(detection(host, enc, a.only_detect, a.singles, a.rounds, config) | machine(host, enc))
    if a.only_weights:
        host, enc = small()
        return keep(weights(host, enc, a.only_weights, a.singles, a.rounds, config) | machine(host, enc))
    if a.shape != 'embedded' and a.preset != 'tournament': sys.exit('the larger shape has no encoder: --preset standard is for --shape embedded')
    host, enc = small() if a.shape == 'embedded' else (shaped_host(dev), None)
    if a.rule == 'tournament': wm, vs = tournament_variants(host, enc, a.preset)
    else: vs = variants(host, enc or shaped_encoder(dev))
    more = dict(cache_implementation='static') if a.static else {}
    res = dict(shape=a.shape, rounds=a.rounds, tokens=a.tokens, static=a.static, **machine(device=dev), insertion=[])
    if a.rule == 'tournament' and dev.startswith('cuda') and not a.static:
        res['kernels'] = kernel_time(wm, host.model.config.vocab_size, a.batches)
    for rows in bench(host, vs, a.batches, a.rounds, a.tokens, a.others, **more):
        res['insertion'] += rows
        keep(res)
    if a.detect: keep(res | dict(detection=detection(*small(), a.detect, a.singles, a.rounds, config)))

if __name__ == '__main__': main()
