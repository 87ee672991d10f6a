"Shards with Ray: the lines of a single process, also when a worker is killed; `make scale-test` installs Ray"
import json, os, signal, threading, time
from pathlib import Path

import pytest

from dew_nb import DEW, DEWConfig, SecretKey, load_host
from dew_nb.shell.commands import dew_detect
from dew_nb.serving.ray import Job, Run, judge_dataset, run_job, verdict_rows
from dew_nb.shell.arguments import call_command
from dew_nb.mark.sources import reference_texts
from quick import Letters

ray = pytest.importorskip('ray', reason='Ray is not installed; make scale-test does it')
CONFIG = dict(m=64, n=64, layers=12, k=3, context_decay=1., context_damping=None, context_width=None)
N = 1500


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    d = tmp_path_factory.mktemp('ray')
    wm = DEW.build(load_host(), Letters(), SecretKey(b'an example key: never use this one'), DEWConfig(**CONFIG), progress=False)
    wm.detector().save(d/'harbour.dew')
    plain = reference_texts()
    texts = [' '.join(plain[i % len(plain)].split()[i//len(plain):][:60]) for i in range(N)]
    lines = [json.dumps(dict(id=i, text=t)) for i,t in enumerate(texts)]
    lines[777] = '{"text": 5}'
    (d/'log.jsonl').write_text('\n'.join(lines) + '\n')
    return dict(dir=d, texts=texts, job=Job((str(d/'log.jsonl'),), (str(d/'harbour.dew'),), size=40_000))


@pytest.fixture(scope='module')
def alone(made):
    "The verdicts of one process"
    run_job(made['job'], made['dir']/'alone')
    return list(verdict_rows(made['dir']/'alone'))


@pytest.fixture(scope='module', autouse=True)
def cluster():
    ray.init(num_cpus=3, include_dashboard=False, logging_level='error', log_to_driver=False)
    yield
    ray.shutdown()


def same(rows, others):
    for a,b in zip(rows, others, strict=True):
        assert (a['name'], a['verdict']) == (b['name'], b['verdict'])
        if 'z' in a: assert [a['z'], a['p_value']] == pytest.approx([b['z'], b['p_value']], abs=1e-4) and a['n_scored'] == b['n_scored']


def test_two_workers_and_a_killed_one(made, alone):
    "A worker is killed while it writes; Ray gives its shard to another; every line is that of a single process"
    out, killed = made['dir']/'killed', []
    def kill():
        until = time.monotonic() + 120
        while not killed and time.monotonic() < until:
            done, busy = list(out.glob('part-*.jsonl')), list(out.glob('part-*.tmp'))
            if len(done) >= 2 and busy:
                try: os.kill(int(busy[0].name.split('.')[-2]), signal.SIGKILL)
                except ProcessLookupError: continue
                killed.append(busy[0])
            time.sleep(.005)
    t = threading.Thread(target=kill)
    t.start()
    counts = run_job(made['job'], out, workers=2)
    t.join()
    assert killed and killed[0].exists(), 'no worker was killed in the middle of a shard'
    assert counts['error'] == 1 and sum(counts.values()) == N
    same(verdict_rows(out), alone)


def test_goes_on_where_it_stopped(made, alone):
    out = made['dir']/'again'
    run = Run.begin(made['job'], out)
    assert len(run.left) > 10
    from dew_nb.serving.ray import serial
    for _ in serial(run, run.left[::2]): pass
    times = {p: p.stat().st_mtime_ns for p in out.glob('part-*.jsonl')}
    run_job(made['job'], out, workers=2)
    assert all(p.stat().st_mtime_ns == t for p,t in times.items())
    same(verdict_rows(out), alone)


def test_a_shard_that_fails_is_told(made, tmp_path):
    log = tmp_path/'gone.jsonl'
    log.write_text(json.dumps(dict(text='x'))*1 + '\n')
    job = Job((str(log),), made['job'].detectors)
    Run.begin(job, tmp_path/'out')
    shards = json.loads((tmp_path/'out'/'job.json').read_text())
    shards['shards'][0]['path'] = str(tmp_path/'no-such-file')
    (tmp_path/'out'/'job.json').write_text(json.dumps(shards))
    with pytest.raises(ValueError, match='1 of 1 shards failed'): run_job(job, tmp_path/'out', workers=1)


def test_dataset(made, alone):
    "The same verdicts from a pipeline of ray.data, over Parquet"
    import pyarrow as pa, pyarrow.parquet as pq
    import ray.data
    some = made['texts'][:600]
    pq.write_table(pa.table(dict(id=range(600), text=some)), made['dir']/'texts.parquet', row_group_size=100)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ds = judge_dataset(ray.data.read_parquet(str(made['dir']/'texts.parquet')), made['job'].detectors, workers=2, batch_size=64)
    rows = sorted(ds.take_all(), key=lambda r: r['id'])
    assert [r['text'] for r in rows] == some
    for r,a in zip(rows, alone):
        assert r['dew_verdict'] == a['verdict'] and r['dew_z'] == pytest.approx(a['z'], abs=1e-4)


def test_command(made, alone):
    "dew_detect --out --ray, over the log and over Parquet in shards"
    args = ['--detector', made['job'].detectors[0], '--jsonl', 'text', '--quiet']
    out = made['dir']/'command'
    code, said, err = call_command(dew_detect, *args, '--out', str(out), '--ray', '--workers', '2', made['job'].files[0])
    assert code == 2 and f'{N:,} texts' in said and f'1 of {N} texts could not be read' in err
    same(verdict_rows(out), alone)
    path = made['dir']/'texts.parquet'
    code, said, err = call_command(dew_detect, *args, '--out', str(made['dir']/'pq'), '--ray', '--workers', '2', str(path))
    assert code == 1 and '600 texts' in said, err
    for r,a in zip(verdict_rows(made['dir']/'pq'), alone): assert r['z'] == pytest.approx(a['z'], abs=1e-4)


@pytest.fixture(scope='module')
def study(tmp_path_factory):
    "A study that takes seconds: a random model with the embedded host's tokenizer"
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    d, tok = tmp_path_factory.mktemp('study'), load_host().tokenizer
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                                 num_key_value_heads=2, bos_token_id=1, eos_token_id=2)).save_pretrained(d/'host')
    tok.save_pretrained(d/'host')
    (d/'small.toml').write_text(f"""name = "small"
hosts = ['{d/'host'}']
encoders = []
seeds = [0, 1]
unit = 1
[corpus]
source = "topics"
n = 4
[generation]
tokens = 12
[[schemes]]
kind = "unigram"
[[attacks]]
kind = "deletion"
rate = 0.3
""")
    return d


def content(out):
    "All that was computed, without times"
    from dew_nb.evaluation.studies.store import load_results
    r, by = load_results(out), ['source', 'seed', 'attack', 'i']
    return [f.sort_values(by).reset_index(drop=True) for f in (r.texts, r.scores)]


def working():
    "Processes of Ray that work on a study"
    for p in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            if p.read_bytes().startswith(b'ray::study_run'): yield int(p.parent.name)
        except OSError: pass


def test_study(study):
    "Two workers, one killed with a unit in hand: every result of a single process, and none that was finished is made again"
    pd = pytest.importorskip('pandas')
    from dew_nb.evaluation.studies.runner import run_study
    from dew_nb.serving.ray import study_on_ray
    whole, out, killed = study/'whole', study/'spread', []
    run_study(study/'small.toml', whole, progress=False, device='cpu')
    finished = lambda: {p: p.stat().st_mtime_ns for p in out.glob('units/*/unit.json') if p.parent.name[0] != '.'}
    def kill():
        until = time.monotonic() + 200
        while not killed and time.monotonic() < until:
            held = [p for p in (out/'.locks').glob('*') if not p.name.startswith('run-')]
            pids, done = list(working()), finished()
            if len(done) >= 3 and held and pids:
                os.kill(pids[0], signal.SIGKILL)
                killed.append(done)
            time.sleep(.002)
    t = threading.Thread(target=kill)
    t.start()
    results = study_on_ray(study/'small.toml', out, workers=2, device='cpu')
    t.join()
    after = finished()
    assert killed and len(killed[0]) < len(after) == len(list(whole.glob('units/*/unit.json')))
    assert all(after[p] == when for p,when in killed[0].items())
    assert len(results.scores)
    for a,b in zip(content(out), content(whole)): pd.testing.assert_frame_equal(a, b)


def test_study_command(study):
    "dew_eval --ray goes on in a folder; a study that fails says why"
    from dew_nb.shell.commands import dew_eval
    from dew_nb.serving.ray import study_on_ray
    code, said, err = call_command(dew_eval, str(study/'small.toml'), '--out', str(study/'whole'), '--ray', '--workers', '1', '--device', 'cpu')
    assert code == 0 and 'unigram' in said, err
    code, said, err = call_command(dew_eval, str(study/'small.toml'), '--workers', '2')
    assert code == 2 and '--workers N needs --ray' in err
    with pytest.raises(ValueError, match='no worker could finish.*No scheme matches'):
        study_on_ray(study/'small.toml', study/'none', workers=1, only='scheme=nothing', device='cpu')
