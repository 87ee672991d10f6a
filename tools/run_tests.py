"""Every check of the project, one ordinary command after the other, with a summary.

    python tools/run_tests.py [STEP ...]      all of them when none is named
    python tools/run_tests.py --long          what the first leaves out: cells marked `#| long`, tests marked `long`

WORKERS processes (two by default) run notebooks and tests side by side; each may hold a language model. The docs are built beside the tests, and the models are looked for beside the checks of notebooks."""
import os, re, resource, subprocess, sys, tempfile, time
from collections import Counter

from nbpages import ROOT

PY, CPUS = sys.executable, os.cpu_count() or 1
WORKERS = int(os.environ.get('WORKERS', min(2, CPUS)))
PYTEST = [PY, '-m', 'pytest', '-q', '-n', str(WORKERS), '--durations', '15', '--dist']
ONE_BY_ONE = ['load', '--maxschedchunk', '1']           # a notebook goes to the worker that is free; a file's tests stay on one, for they share fixtures
STEPS = {
    'clean':  ('Notebooks are clean, executed and well cut', [PY, 'tools/check.py', 'clean']),
    'export': ('Modules are as the notebooks export them', [PY, 'tools/check.py', 'export']),
    'readme': ('README is as the index notebook has it', [PY, 'tools/check.py', 'readme']),
    'models': ('The embedded models are in the cache', [PY, 'tools/models.py']),
    'nbs':    ('Notebooks pass', [*PYTEST, *ONE_BY_ONE, 'tests/test_notebooks.py']),
    'pytest': ('Tests pass', [*PYTEST, 'loadfile', 'tests', '--ignore', 'tests/test_notebooks.py']),
    'docs':   ('Docs build without a warning', [PY, 'tools/docs_site.py'])}
TESTS = ['nbs', 'pytest']
BESIDE = dict(models='clean', docs='pytest')              # begins with this one, if that is asked for before it
# Workers share the cores instead of fighting for them; no progress bars in the log
ENV = dict(OMP_NUM_THREADS=str(max(1, CPUS//WORKERS)), OMP_WAIT_POLICY='PASSIVE', TOKENIZERS_PARALLELISM='false', TQDM_DISABLE='1')

def work() -> float:
    "Seconds of work of all processes that have ended"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

def begin(cmd:list, env:dict, out=subprocess.PIPE) -> subprocess.Popen:
    "A command that goes on, and what it says"
    return subprocess.Popen(cmd, cwd=ROOT, env=env, text=True, errors='replace', stdout=out, stderr=subprocess.STDOUT)

def run(cmd:list, env:dict) -> tuple[bool, str]:
    "Run a command and show what it says; whether it went well, and its last line"
    last = ''
    with begin(cmd, env) as p:
        for line in p.stdout:
            print(line, end='', flush=True)
            last = line
    return p.returncode == 0, last

class Beside:
    "A step that goes on while others run; what it says is shown when it is waited for"
    def __init__(self, cmd:list, env:dict):
        self.said = tempfile.NamedTemporaryFile('w', suffix='.log')
        self.process = begin(cmd, env, self.said)
    def end(self) -> tuple[bool, str]:
        "As `run`"
        said, ended = '', False
        with open(self.said.name, errors='replace') as f:
            while not ended:
                ended = self.process.poll() is not None
                said += (more := f.read())
                print(more, end='', flush=True)
                if not ended: time.sleep(.2)
        return self.process.returncode == 0, said

def counted(ok:bool, last:str) -> Counter:
    "Passed, failed and skipped tests by the line with which pytest ends, or the step itself"
    n = Counter({what.removesuffix('s'): int(k) for k,what in re.findall(r'(\d+) (passed|failed|skipped|errors?)\b', last)})
    passed, failed = n['passed'], n['failed'] + n['error']
    if ok == bool(failed) or not passed + failed: return Counter(passed=ok, failed=not ok)
    return Counter(passed=passed, failed=failed, skipped=n['skipped'])

def main():
    names = [o for o in sys.argv[1:] if o != '--long']
    steps = {k: STEPS[k] for k in ('models', *TESTS)} if '--long' in sys.argv else STEPS
    if unknown := set(names) - set(steps): sys.exit(f'Unknown step: {", ".join(sorted(unknown))}. Known: {", ".join(steps)}')
    env, rows, total = {**ENV, **os.environ, 'PYTHONPATH': str(ROOT)}, [], Counter()
    names, begun = names or list(steps), {}
    for i,name in enumerate(names):
        what, cmd = steps[name]
        for o in names[i+1:]:
            if BESIDE.get(o) == name: begun[o] = Beside(steps[o][1], env)
        if name in TESTS and '--long' in sys.argv: cmd = [*cmd, '-m', 'long']
        print(f'\n=== {name}: {what}', flush=True)
        start, before = time.time(), work()
        ok, last = begun[name].end() if name in begun else run(cmd, env)
        total += counted(ok, last) if name in TESTS else Counter(passed=ok, failed=not ok)
        rows.append((ok, f'{name:7} {time.time()-start:5.0f} s {work()-before:6.0f} s of work   {what}'))
    print('\n=== Summary', *(f'{"ok  " if ok else "FAIL"}  {row}' for ok,row in rows), sep='\n')
    print(f'\n{total["passed"]} passed, {total["failed"]} failed' + f', {total["skipped"]} skipped'*bool(total['skipped']))
    sys.exit(not all(ok for ok,_ in rows))

if __name__ == '__main__': main()
