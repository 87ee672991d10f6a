"tools/run_studies.py with toy jobs: order, limits, the time limit, going on after a kill, failures, packing and restoring"
import json, os, signal, subprocess, sys, time
from pathlib import Path

import pytest
import run_studies
from run_studies import Job, Runner, restore, save_raw, shrink

TOOL = Path(run_studies.__file__)
# A job that writes when it began and ended, and counts how many run beside it
WORKER = '''import os, sys, time
name, seconds = sys.argv[1], float(sys.argv[2])
with open('events', 'a') as f: f.write(f'+{name}\\n')
time.sleep(seconds)
with open('events', 'a') as f: f.write(f'-{name}\\n')
'''
# One that goes on where it stopped: ten steps of a tenth of a second
STEPS = '''import time
from pathlib import Path
p = Path('steps')
while (n := len(p.read_text()) if p.exists() else 0) < 10:
    time.sleep(.1)
    p.write_text('x'*(n + 1))
'''

def job(name, seconds=.2, **kw): return Job(name, ['{python}', '-S', '-c', WORKER, name, str(seconds)], **kw)
def events(work): return (work/'events').read_text().split()
def runner(jobs, work, workers=2, minutes=.5, **kw): return Runner(jobs, work, workers, minutes, grace=1., **kw)
def alive(pid):
    try: return 'Z' not in Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
    except OSError: return False
def until(f, seconds=5.):
    end = time.time() + seconds
    while not f() and time.time() < end: time.sleep(.02)
    return f()

def test_order_needs_and_limits(tmp_path):
    jobs = [job('a', .5, copies=2), job('b', needs=['a']), job('c'), job('d')]
    assert runner(jobs, tmp_path, workers=3).run() == 0
    ev = events(tmp_path)
    assert sorted([e for e in ev if e[0] == '+'][:3]) == ['+a', '+a', '+c']                 # two copies of the first, then the next that may start
    assert ev.index('+b') > ev.index('-a') and ev.count('+b') == ev.count('+d') == 1
    now, most = 0, 0
    for e in ev: now += 1 if e[0] == '+' else -1; most = max(most, now)
    assert 2 <= most <= 3

def test_what_is_done_is_not_done_again_unless_its_input_changes(tmp_path):
    (tmp_path/'study.toml').write_text('n = 1')
    j = job('a', 0, inputs=['study.toml'])
    for text,times in (('n = 1', 1), ('n = 1', 1), ('n = 2', 2)):
        (tmp_path/'study.toml').write_text(text)
        assert runner([j], tmp_path).run() == 0
        assert events(tmp_path).count('+a') == times

def test_the_time_limit_stops_children_even_deaf_ones(tmp_path):
    deaf = Job('deaf', ['{python}', '-S', '-c', 'import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '
                        'open("pid", "w").write(str(os.getpid())); time.sleep(60)'])
    t = time.time()
    assert runner([deaf, job('next', needs=['deaf'])], tmp_path, minutes=.7/60).run() == 3
    assert time.time() - t < 5 and not alive((tmp_path/'pid').read_text())
    assert not (tmp_path/'events').exists()

def test_a_failure_is_reported_and_tried_again_at_the_next_start(tmp_path, capsys):
    bad = Job('bad', ['{python}', '-S', '-c', 'import os, sys; print("no such model"); sys.exit(0 if os.path.exists("fixed") else 7)'])
    jobs = [bad, job('after', 0, needs=['bad']), job('other', 0)]
    assert runner(jobs, tmp_path).run() == 1
    said = capsys.readouterr().out
    assert 'FAILED bad (status 7)' in said and 'no such model' in said and 'left to do: after' in said
    assert events(tmp_path) == ['+other', '-other']
    (tmp_path/'fixed').touch()
    assert runner(jobs, tmp_path).run() == 0
    assert events(tmp_path)[2:] == ['+after', '-after']

def test_a_copy_that_fails_leaves_the_work_to_the_others(tmp_path):
    code = 'import os, sys, time\ntry: os.mkdir("first")\nexcept FileExistsError: sys.exit(1)\ntime.sleep(.5)'
    assert runner([Job('a', ['{python}', '-S', '-c', code], copies=2)], tmp_path).run() == 0

def test_a_full_gpu_is_waited_for(tmp_path, capsys):
    code = ('import os, sys\nif not os.path.exists("third"):\n'
            '    os.rename("second", "third") if os.path.exists("second") else open("second", "w")\n'
            '    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 MiB.")')
    jobs = [Job('a', ['{python}', '-S', '-c', code]), job('b', 0, needs=['a'])]
    assert runner(jobs, tmp_path, pause=.3).run() == 0
    assert capsys.readouterr().out.count('the GPU was full for a') == 2 and events(tmp_path) == ['+b', '-b']
    (tmp_path/'third').unlink()
    r = runner([Job('a', [*jobs[0].argv, 'other'])], tmp_path, pause=0, again=1)
    assert r.run() == 1 and r.failed == {'a'}                                               # not for ever

def test_a_share_of_the_gpu(tmp_path, monkeypatch):
    (tmp_path/'torch').mkdir()
    (tmp_path/'torch'/'__init__.py').write_text('from types import SimpleNamespace as N\ndef f(x): open("share", "a").write(f"{x} ")\n'
                                                'cuda = N(set_per_process_memory_fraction=f)')
    (tmp_path/'own.py').write_text('from near import x\nimport sys\nassert __name__ == "__main__" and x == 3\nopen("args", "a").write(str(sys.argv[1:]))')
    (tmp_path/'near.py').write_text('x = 3')
    monkeypatch.setattr(run_studies, 'gpu', lambda: '; GPU'); monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    jobs = [Job('script', ['{python}', str(tmp_path/'own.py'), '1', '2']),
            Job('code', ['{python}', '-c', 'import sys\ndef f(): return sys.argv\nopen("args", "a").write(str(f()[1:]))', '3'], ['script'])]
    assert Runner(jobs, tmp_path/'w', 5).run() == 0
    assert (tmp_path/'w'/'args').read_text() == "['1', '2']['3']" and (tmp_path/'w'/'share').read_text() == '0.19 0.19 '

@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='children end with a killed parent on Linux only')
def test_it_goes_on_after_a_kill(tmp_path):
    code = f'import os\nopen("pid", "w").write(str(os.getpid()))\n{STEPS}'
    (tmp_path/'jobs.json').write_text(json.dumps([dict(name='steps', argv=['{python}', '-S', '-c', code])]))
    work = tmp_path/'work'
    cmd = [sys.executable, '-S', str(TOOL), '--work', str(work), '--jobs', str(tmp_path/'jobs.json')]
    p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL)
    assert until(lambda: (work/'steps').exists() and len((work/'steps').read_text()) >= 2)
    r = subprocess.run(cmd, capture_output=True, text=True)
    assert r.returncode == 1 and 'another run_studies.py is at work' in r.stderr
    p.send_signal(signal.SIGKILL); p.wait()
    pid = (work/'pid').read_text()
    assert until(lambda: not alive(pid)), 'a child outlived its parent'
    before = len((work/'steps').read_text())
    r = subprocess.run(cmd, capture_output=True, text=True)
    assert r.returncode == 0 and 'done steps' in r.stdout and 2 <= before < 10 == len((work/'steps').read_text())

def test_pack_and_restore(tmp_path):
    work, out, new = (tmp_path/n for n in ('work', 'out', 'new'))
    write = Job('w', ['{python}', '-S', '-c', 'import os\nfor i in range(3): os.makedirs(f"e/units/texts-{i}"); '
                      'open(f"e/units/texts-{i}/unit.json", "wb").write(os.urandom(400))\nopen("data/w.json", "w").write("1")'],
                gives=['data/w*'])
    half = Job('h', ['{python}', '-S', '-c', 'open("data/h.json", "w").write("1"); raise SystemExit(1)'], gives=['data/h*'])
    r = runner([write, half], work)
    assert r.run() == 1
    assert run_studies.pack(r, out) == 0 and [p.name for p in out.iterdir()] == ['w.json']     # nothing half finished
    for p in ('e/units/.tmp-texts-9-1/a', 'e/.locks/b', 'e/attacks.sqlite', 'donors/en-fr.cache', 'state/prepare.done'):
        (work/p).parent.mkdir(parents=True, exist_ok=True); (work/p).write_text('x')
    n, parts = save_raw(work, out/'raw', size=500)
    assert parts > 2 and max(p.stat().st_size for p in (out/'raw').iterdir()) == 500
    assert restore([out/'raw'], new) == (n, 0) and restore(sorted((out/'raw').iterdir()), new) == (0, n)
    files = lambda top: {p.relative_to(top).as_posix(): p.read_bytes() for p in top.rglob('*') if p.is_file()}
    was, now = files(work), files(new)
    assert all(was[k] == v for k,v in now.items()) and len(now) == n
    assert {k.split('/')[0] for k in was.keys() - now.keys()} == {'log', 'e', 'donors', 'state'}
    assert sum('unit.json' in k for k in now) == 3 and runner([write], new).done == {'w'}
    with pytest.raises(SystemExit, match='expected all parts'): restore(sorted((out/'raw').iterdir())[1:], new)

def test_the_studies_as_jobs(tmp_path, capsys):
    args = lambda *x: run_studies.arguments(['--work', str(tmp_path), *x])
    jobs = {j.name: j for j in run_studies.study_jobs(args('--scale', 'tiny'))}
    run_studies.check_jobs(list(jobs.values()))
    assert 'domains: left out' in capsys.readouterr().out
    assert list(jobs)[:4] == ['prepare', 'prepare-rewriting', 'prepare-more', 'main'] and list(jobs)[-1] == 'null'
    assert jobs['donors-scores-gemma3-270m-minilm'].needs == ['donors-gemma3-270m-none', 'donors-gemma3-270m-minilm']
    assert {j.name for j in run_studies.study_jobs(args('--only', 'main'))} == {'prepare', 'main'}
    tomllib = pytest.importorskip('tomllib')
    files = list((tmp_path/'studies').glob('*.toml'))
    assert len(files) == 6
    for f in files:
        s = tomllib.loads(f.read_text(encoding='utf-8'))
        assert (s['corpus']['n'], s['generation']['tokens'], s['seeds']) == (2, 16, [0, 1])
    with pytest.raises(SystemExit): args('--only', 'mian')
    assert shrink('tokens = 200\nlam = [2.0, 2.5]') == 'tokens = 16\nlam = [2.0]'
