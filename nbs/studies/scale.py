"""What it costs to judge many texts: processor seconds of a text, memory of a worker, one worker against two.

    python nbs/studies/scale.py --texts 2000 --out nbs/studies/data/scale.json

The texts are the packaged reference sample, cut and joined to pieces of about 200 tokens, in shards as `dew_detect --out`
makes them. Each setting is timed in turn, --rounds times, and medians are reported. Where Ray is not installed, one process alone is measured.
Processor seconds are those of the workers while they judge; the time to load a detector stands apart.
"""
import argparse, json, os, resource, shlex, statistics, sys, tempfile, time
from pathlib import Path

from dew_nb import DEW, DEWConfig, Detector, load_encoder, load_host
from dew_nb.evaluation.texts.content import machine, study_key
from dew_nb.serving.ray import Job, Run, judge_shard, load_detectors
from dew_nb.mark.sources import reference_texts

def pieces(n, words=150):
    "n texts of so many words, none twice"
    all_ = ' '.join(reference_texts()).split()
    step = max(1, (len(all_) - words)//n)
    return [' '.join(all_[i*step:i*step+words]) for i in range(n)]

def timed(job, shard, path):
    "Judge a shard: processor seconds, start and end by the clock, and the largest memory of this process"
    load_detectors(job.detectors)
    cpu, start = time.process_time(), time.time()
    judge_shard(job, shard, path)
    return time.process_time() - cpu, start, time.time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024

def with_ray(run, folder, workers):
    "All shards with so many workers, each of which has judged one before"
    import ray
    ray.init(num_cpus=workers, include_dashboard=False, logging_level='error', log_to_driver=False)
    task = ray.remote(num_cpus=1)(timed)
    todo = [(run.job, s, str(folder/f'{workers}-{i}')) for i,s in enumerate(run.shards)]
    ray.get([task.remote(*t) for t in todo[:2*workers]])
    got = ray.get([task.remote(*t) for t in todo])
    ray.shutdown()
    return got

def summary(got, n):
    "Of the shards of one round"
    return dict(cpu_seconds_a_text=sum(g[0] for g in got)/n, texts_per_second=n/(max(g[2] for g in got) - min(g[1] for g in got)),
                bytes_of_a_worker=max(g[3] for g in got))

def middle(rounds): return {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--texts', type=int, default=2000)
    ap.add_argument('--shards', type=int, default=16)
    ap.add_argument('--rounds', type=int, default=3)
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    texts, found = pieces(a.texts), {}
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)
        log, det = d/'log.jsonl', d/'harbour.dew'
        log.write_text(''.join(json.dumps(dict(text=t)) + '\n' for t in texts))
        DEW.build(load_host(), load_encoder(), study_key(0), DEWConfig.preset('tournament'), progress=False).detector().save(det)
        start = time.process_time()
        tokens = sum(r.n_tokens for r in Detector.load(det).detect(texts[:50], progress=False))/50
        load = time.process_time() - start
        run = Run.begin(Job((str(log),), (str(det),), size=log.stat().st_size//a.shards), d/'verdicts')
        for name,workers in (('one process', 0), ('ray, 1 worker', 1), ('ray, 2 workers', 2)):
            rounds = []
            for _ in range(a.rounds):
                try: got = with_ray(run, d, workers) if workers else [timed(run.job, s, str(d/f'0-{i}')) for i,s in enumerate(run.shards)]
                except ModuleNotFoundError: break
                rounds.append(summary(got, a.texts))
            if rounds: found[name] = middle(rounds)
        sizes = dict(input=log.stat().st_size/a.texts, detector=det.stat().st_size,
                     output=sum((d/f'0-{i}').stat().st_size for i in range(len(run.shards)))/a.texts)
    said = [f'nbs/studies/data/{a.out.name}' if x == str(a.out) else x for x in sys.argv[1:]]
    out = dict(command=shlex.join(['python', 'nbs/studies/scale.py', *said]), texts=a.texts, tokens=tokens, shards=len(run.shards), rounds=a.rounds,
               seconds_to_load=load, bytes=sizes, runs=found, cores=os.cpu_count(), load_average=os.getloadavg()[1], **machine())
    a.out.write_text(json.dumps(out, indent=1) + '\n')

if __name__ == '__main__': main()
