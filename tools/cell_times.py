"""Where a notebook's time goes: seconds of work of its cells, in a fork of a warm process as in run_tests.py.

    python tools/cell_times.py nbs/read/05_scan.ipynb [...] [--least SECONDS] [--profile ROWS]

--profile adds the functions of the project and of its libraries in which most of the time is spent."""
import argparse, cProfile, os, pstats, resource, sys
from pathlib import Path

import run_tests

def work() -> float:
    "Seconds of work of this process and of those it has waited for"
    both = [resource.getrusage(o) for o in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(o.ru_utime + o.ru_stime for o in both)

def timed(times:list):
    "Let the shell that runs the cells note what each costs"
    from execnb.shell import CaptureShell
    real = CaptureShell.run
    def run(self, code, *args, **kw):
        start = work()
        try: return real(self, code, *args, **kw)
        finally: times.append((work() - start, code))
    CaptureShell.run = run

def first_line(code:str) -> str:
    "What a cell begins with, without its directives"
    lines = [o for o in code.splitlines() if o.strip() and not o.startswith('#|')]
    return lines[0][:110] if lines else ''

def measure(name:str, least:float, rows:int) -> int:
    "Run a notebook and say what its cells cost; the exit code"
    times, profile = [], cProfile.Profile()
    timed(times)
    code = profile.runcall(run_tests.perform, name) if rows else run_tests.perform(name)
    print(f'\n=== {name}: {sum(t for t,_ in times):.1f} s in {len(times)} cells' + ', FAILED'*bool(code))
    for i,(t,source) in enumerate(times):
        if t >= least: print(f'{t:7.1f}  cell {i:3}  {first_line(source)}')
    if rows: pstats.Stats(profile).sort_stats('tottime').print_stats(rows)
    sys.stdout.flush()
    return code

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('notebooks', nargs='+')
    ap.add_argument('--least', type=float, default=.5, help='cells that cost less are not shown')
    ap.add_argument('--profile', type=int, default=0, metavar='ROWS')
    a = ap.parse_args()
    if not run_tests.FORK: sys.exit('This needs a fork that is safe, as on Linux')
    os.environ.update({k: v for k,v in run_tests.ENV.items() if k not in os.environ})
    os.chdir(run_tests.ROOT)
    sys.path.insert(0, str(run_tests.ROOT))
    run_tests.warm()
    run_tests.preload()
    codes = []
    for name in a.notebooks:
        sys.stdout.flush()
        pid = os.fork()
        if not pid: os._exit(measure(name, a.least, a.profile))
        codes.append(os.waitpid(pid, 0)[1])
    sys.exit(any(codes))

if __name__ == '__main__': main()
