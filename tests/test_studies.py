"nbs/studies: the Makefile with toy commands (order, limits, going on, failures, packing), and files that scripts make of results"
import json, os, signal, subprocess, sys, time
from pathlib import Path

import pytest

STUDIES = Path(__file__).parent.parent/'nbs'/'studies'
# Stands for Python and dew_eval: writes when it began and ended, what it was asked, and a file under --out
STUB = '''#!{python} -S
import os, sys, time
from pathlib import Path
args = sys.argv[1:]
what = Path(args[0]).stem
def say(x):
    with open('events', 'a') as f: f.write(f'{{x}}{{what}}\\n')
say('+')
time.sleep(float(os.environ.get('STUB_SECONDS', 0)))
if what in os.environ.get('STUB_FAILS', '').split(): sys.exit('no such model')
if '--out' in args and args[0].endswith('.py'):
    out = Path(args[args.index('--out') + 1])
    out.mkdir(parents=True, exist_ok=True)
    (out/f'{{what}}.json').write_text(' '.join(args[1:]))
say('-')
'''

@pytest.fixture
def make(tmp_path):
    "A call of make with the stub in place of all commands"
    stub = tmp_path/'stub'
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    for x in ('en-fr', 'fr-en'): (tmp_path/'models'/f'opus-mt-{x}-int8').mkdir(parents=True)
    def run(*args, start=False, **env):
        cmd = ['make', '-f', str(STUDIES/'Makefile'), f'WORK={tmp_path/"work"}', f'PYTHON={stub}', f'EVAL={stub}', 'COPIES=1 2', *args]
        env = {k: v for k, v in os.environ.items() if not k.startswith('MAKE')} | dict(DEW_MODELS=str(tmp_path/'models')) | env
        kw = dict(cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return subprocess.Popen(cmd, **kw) if start else subprocess.run(cmd, **kw)
    run.events = lambda: (tmp_path/'events').read_text().split() if (tmp_path/'events').exists() else []
    run.work = tmp_path/'work'
    return run

def test_order_needs_and_limits(make):
    r = make('-j3', STUB_SECONDS='.05')
    assert r.returncode == 0, r.stdout
    ev = make.events()
    first = {x: ev.index(f'+{x}') for x in ('main', 'donors', 'scan')}
    assert ev[0] == '+models' and ev.index('-models') < min(first.values())
    assert ev.count('+main') == ev.count('+strength') == 2                          # two processes share a study
    assert ev.count('+donors') == 3 and ev[::-1].index('-donors') == min(ev[::-1].index(f'-{x}') for x in ('donors',))
    now, most = 0, 0
    for e in ev:
        now += 1 if e[0] == '+' else -1
        most = max(most, now)
    assert 2 <= most <= 3
    asked = (make.work/'data'/'donors.json').read_text()
    assert asked == f'--results {make.work/"donors"} --out {make.work/"part"/"donors"}'

def test_what_is_done_is_not_done_again_unless_its_file_changes(make):
    assert make('main', 'TINY=1').returncode == 0
    n = len(make.events())
    assert make('main', 'TINY=1').returncode == 0 and len(make.events()) == n
    toml = make.work/'toml'/'main.toml'
    later = time.time() + 10
    os.utime(toml, (later, later))
    assert make('main', 'TINY=1').returncode == 0 and make.events()[n:] == ['+main', '-main']

def test_a_failure_is_said_and_tried_again_and_the_others_go_on(make):
    r = make('-k', 'main', 'donors', 'scan', STUB_FAILS='donors')
    assert r.returncode == 2 and 'no such model' in r.stdout
    assert '-scan' in make.events() and not (make.work/'data'/'donors.json').exists()
    assert make('donors').returncode == 0 and (make.work/'data'/'donors.json').exists()

def test_translation_is_asked_for_first(make, tmp_path):
    r = make('-k', 'ablation', 'main', DEW_MODELS=str(tmp_path/'nowhere'))
    assert r.returncode == 2 and 'opus-mt-en-fr-int8' in r.stdout
    assert '+ablation' not in make.events() and make.events().count('-main') == 2

def test_it_stops_and_goes_on(make):
    p = make('-j2', 'main', start=True, STUB_SECONDS='5')
    end = time.time() + 5
    while make.events().count('+models') < 1 and time.time() < end: time.sleep(.02)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=4)
    assert p.returncode and not list((make.work/'done').glob('*'))
    assert make('main').returncode == 0 and make.events().count('-main') == 2

def test_finished_files_are_packed(make, tmp_path):
    assert make('-k', 'scan', 'null_over_keys', STUB_FAILS='null_over_keys').returncode == 2
    out = tmp_path/'out'
    out.mkdir()
    assert make('pack', f'OUT={out}').returncode == 0
    assert [p.name for p in out.glob('*.json')] == ['scan.json'] or {p.name for p in out.glob('*.json')} == {'scan.json', 'pack.json'}

def test_toy_sizes(make):
    tomllib = pytest.importorskip('tomllib')
    assert make('TINY=1').returncode == 0
    files = list((make.work/'toml').glob('*.toml'))
    assert len(files) == 9
    for f in files:
        s = tomllib.loads(f.read_text(encoding='utf-8'))
        assert (s['corpus']['n'], s['generation']['tokens'], s['seeds']) == (2, 16, [0, 1])
        assert all(len(x['lam']) == 1 for x in s['schemes'] if isinstance(x.get('lam'), list))
    assert '--replicates 99' in (make.work/'data'/'scan.json').read_text()
