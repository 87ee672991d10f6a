"The package as others get it: built, installed into an empty environment, imported"
import ast, os, re, shlex, shutil, subprocess, sys, sysconfig, tarfile, venv, zipfile
from pathlib import Path

import pytest
from nbpages import ROOT, settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CFG = settings()
EXTRAS = 'offline', 'eval', 'serve', 'c2pa', 'docs', 'dev'
HEAVY = {'torch', 'transformers', 'sentence_transformers', 'scipy', 'pandas', 'matplotlib', 'sklearn', 'statsmodels', 'nbdev', 'IPython'}

def requirements(key): return [Requirement(o) for o in shlex.split(CFG[key])]
def sh(*cmd, **kw):
    r = subprocess.run([str(o) for o in cmd], capture_output=True, text=True, **kw)
    assert r.returncode == 0, f'{cmd}\n{r.stdout[-2000:]}\n{r.stderr[-3000:]}'
    return r.stdout

@pytest.fixture(scope='module')
def source(tmp_path_factory):
    "A copy of what packaging reads, so that building leaves nothing behind"
    dest = tmp_path_factory.mktemp('src')/'dew_nb'
    dest.mkdir()
    for f in ('settings.ini', 'setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE', 'CHANGELOG.md', 'CONTRIBUTING.md',
              'CITATION.cff', 'constraints.txt'): shutil.copy(ROOT/f, dest)
    shutil.copytree(ROOT/CFG['lib_path'], dest/CFG['lib_path'], ignore=shutil.ignore_patterns('__pycache__'))
    return dest

@pytest.fixture(scope='module')
def built(source, tmp_path_factory):
    "The wheel and the sdist; the sdist first, as a release makes them"
    out = tmp_path_factory.mktemp('dist')
    for hook in ('build_sdist', 'build_wheel'):
        sh(sys.executable, '-c', f'from setuptools import build_meta; build_meta.{hook}({str(out)!r})', cwd=source)
    return dict(wheel=next(out.glob('*.whl')), sdist=next(out.glob('*.tar.gz')))

@pytest.fixture(scope='module', params=['wheel', 'sdist'])
def installed(request, built, tmp_path_factory):
    "The python of an empty environment into which only the package was put; its dependencies come from this environment"
    env = tmp_path_factory.mktemp(request.param)/'env'
    venv.create(env, with_pip=False, symlinks=os.name != 'nt')
    py = env/('Scripts' if os.name == 'nt' else 'bin')/'python'
    site = Path(sh(py, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))').strip())
    (site/'outer.pth').write_text(sysconfig.get_path('purelib') + '\n')
    sh(sys.executable, '-m', 'pip', '--python', py, 'install', '--no-deps', '--no-build-isolation', '--no-index',
       '--disable-pip-version-check', '--ignore-installed', '--no-compile', built[request.param])
    return py, site

def run_in(installed, code, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    return sh(installed[0], '-c', code, cwd=tmp_path, env=env)

def test_installs_and_imports(installed, tmp_path):
    out = run_in(installed, 'import dew_nb; print(dew_nb.__version__); print(dew_nb.__file__)', tmp_path).split('\n')
    assert out[0] == CFG['version']
    assert Path(out[1]).resolve().is_relative_to(installed[1].resolve())

def test_every_module_is_installed(installed):
    lib = ROOT/CFG['lib_path']
    want = {p.relative_to(lib) for p in lib.rglob('*') if p.is_file() and (p.suffix == '.py' or 'data' in p.relative_to(lib).parts)
            and '__pycache__' not in p.parts}
    have = installed[1]/'dew_nb'
    assert [str(p) for p in sorted(want) if not (have/p).exists()] == []

def test_light_modules_import(installed, tmp_path):
    "A module that knows nothing of models works in the installed package, without torch"
    run_in(installed, 'import sys, dew_nb.mark.keys as k; k.SecretKey.generate(); assert "torch" not in sys.modules', tmp_path)

def test_import_is_lazy(installed, tmp_path):
    "`import dew_nb` costs milliseconds because it loads nothing heavy"
    out = run_in(installed, 'import sys; before = set(sys.modules); import dew_nb; print(*(set(sys.modules) - before))', tmp_path).split()
    assert HEAVY & {o.split('.')[0] for o in out} == set()
    assert len(out) < 100, f'import dew_nb loads {len(out)} modules'

def test_wheel_and_sdist_hold_what_they_should(built):
    names = zipfile.ZipFile(built['wheel']).namelist()
    assert not [o for o in names if o.startswith(('tests/', 'tools/', 'nbs/'))]
    assert any(o.endswith('LICENSE') for o in names)
    files = {o.partition('/')[2] for o in tarfile.open(built['sdist']).getnames()}
    assert {'settings.ini', 'README.md', 'LICENSE', 'setup.py', 'CITATION.cff'} <= files

def test_description_stands_alone(built):
    "On a package index nothing is beside the README: its links and its picture lead to the repository"
    z = zipfile.ZipFile(built['wheel'])
    meta = z.read(next(o for o in z.namelist() if o.endswith('METADATA'))).decode()
    links = re.findall(r'\]\(([^)\s]+)\)', meta)
    here = re.findall(r'\]\(([^)\s]+)\)', (ROOT/'README.md').read_text(encoding='utf-8'))
    assert len(links) == len(here) > 25 and all(o.startswith('https://') for o in links), [o for o in links if not o.startswith('https://')]
    assert f"]({CFG['git_url']}/raw/{CFG['branch']}/images/readme-1.png)" in meta

def test_extras_and_scripts(built):
    z = zipfile.ZipFile(built['wheel'])
    meta = z.read(next(o for o in z.namelist() if o.endswith('METADATA'))).decode()
    for o in EXTRAS: assert f'Provides-Extra: {o}' in meta
    eps = z.read(next(o for o in z.namelist() if o.endswith('entry_points.txt'))).decode()
    for o in CFG['console_scripts'].split(): assert o.split('=')[0] in eps

def test_console_scripts_exist():
    for o in CFG['console_scripts'].split():
        mod, fn = o.split('=')[1].split(':')
        tree = ast.parse((ROOT/(mod.replace('.', '/') + '.py')).read_text(encoding='utf-8'))
        assert fn in {getattr(n, 'name', None) for n in tree.body}, o

# ---------------------------------------------------------------- pins
def pins(python):
    "name -> version of constraints.txt for a Python version"
    rows = [Requirement(o) for o in (ROOT/'constraints.txt').read_text().splitlines() if o and not o.startswith('#')]
    env = {'python_version': python, 'python_full_version': python + '.0'}
    rows = [r for r in rows if r.marker is None or r.marker.evaluate(env)]
    names = [canonicalize_name(r.name) for r in rows]
    assert len(names) == len(set(names)), 'pinned twice'
    assert all(len(r.specifier) == 1 and next(iter(r.specifier)).operator == '==' for r in rows)
    return {n: Version(next(iter(r.specifier)).version) for n, r in zip(names, rows)}

@pytest.mark.parametrize('python', ['3.10', '3.11', '3.13'])
def test_every_requirement_is_pinned(python):
    have = pins(python)
    for r in [o for k in ('requirements', *(f'{e}_requirements' for e in EXTRAS)) for o in requirements(k)]:
        v = have.get(canonicalize_name(r.name))
        assert v is not None, f'{r.name} is not in constraints.txt'
        assert r.specifier.contains(v), f'{r.name}=={v} is not {r.specifier}'
        assert v.local is None, f'{r.name}=={v} exists on one index only'
