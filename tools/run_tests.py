"""Every check of the project, one after another, with a summary.

    python tools/run_tests.py [STEP ...]      all of them when none is named"""
import os, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PY, BIN = sys.executable, Path(sys.executable).parent
CPUS = os.cpu_count() or 1
WORKERS = int(os.environ.get('NBDEV_WORKERS', min(2, CPUS)))  # notebooks at a time; each may hold a language model
# Notebooks share the cores instead of fighting for them; no progress bars in the log
ENV = {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': str(max(1, CPUS//WORKERS)), 'OMP_WAIT_POLICY': 'PASSIVE', 'TOKENIZERS_PARALLELISM': 'false', 'TQDM_DISABLE': '1', 'MPLBACKEND': 'agg', **os.environ}

STEPS = {
    'clean':  ('Notebooks are clean and executed', [PY, 'tools/check.py', 'clean']),
    'export': ('Modules are as the notebooks export them', [PY, 'tools/check.py', 'export']),
    'readme': ('README is as the index notebook has it', [PY, 'tools/check.py', 'readme']),
    'models': ('The embedded models are in the cache', [PY, 'tools/models.py']),
    'nbs':    ('Notebooks run and their tests pass', [BIN/'nbdev_test', '--n_workers', WORKERS, '--timing']),
    'pytest': ('Tests outside the notebooks', [PY, '-m', 'pytest', '-q', '-n', WORKERS, '--dist', 'loadfile', 'tests']),
    'docs':   ('Docs build without a warning', [PY, 'tools/docs_site.py'])}

def clock(s:float) -> str: return f'{int(s)//60}:{int(s)%60:02d}'

def run(name:str) -> tuple[bool, float]:
    "Run one step under a banner"
    title, cmd = STEPS[name]
    print(f'\n=== {name}: {title}', flush=True)
    start = time.time()
    ok = subprocess.run([str(o) for o in cmd], cwd=ROOT, env=ENV).returncode == 0
    took = time.time() - start
    print(f'--- {name} {"passed" if ok else "FAILED"} in {clock(took)}', flush=True)
    return ok, took

def main():
    names = sys.argv[1:] or list(STEPS)
    if unknown := [n for n in names if n not in STEPS]: sys.exit(f'Unknown step: {unknown[0]}. Known: {", ".join(STEPS)}')
    res = {n: run(n) for n in names}
    print('\n=== Summary')
    for n, (ok, took) in res.items(): print(f'  {"ok  " if ok else "FAIL"}  {n:7} {clock(took):>6}   {STEPS[n][0]}')
    print(f'  total {clock(sum(t for _, t in res.values())):>12}')
    sys.exit(not all(ok for ok, _ in res.values()))

if __name__ == '__main__': main()
