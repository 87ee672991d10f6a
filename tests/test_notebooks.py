"Every notebook, run as `nbdev_test` runs it"
import importlib, os, pkgutil, sys

import dew_nb
import pytest
from IPython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from nbdev.test import test_nb as run_notebook
from nbpages import ROOT, directives, find_notebooks, settings, text

run_notebook.__test__ = False                       # its name begins like a test's
FLAGS = settings()['tst_flags'].split()


# A class that a notebook were the first to load would keep its patches: `tidy` had not seen it before
for module in pkgutil.walk_packages(dew_nb.__path__, 'dew_nb.'): importlib.import_module(module.name)


def is_quick(n): return not any(o in text(c['source']) for c in n.cells for o in ('load_host', 'load_results'))


NOTEBOOKS = sorted(find_notebooks(ROOT/settings()['nbs_path']), key=is_quick)      # quick ones last, so that no worker waits long for another


def has_long_cells(n): return any('long' in directives(text(c['source']))[0] for c in n.cells if c['cell_type'] == 'code')


def own_classes():
    "Classes of the package that are loaded"
    modules = [m for n,m in list(sys.modules.items()) if n.startswith('dew_nb.') and m]
    return {c for m in modules for c in list(vars(m).values()) if isinstance(c, type) and c.__module__ == m.__name__}


def forget_the_notebook(before):
    "What a notebook put into the package, by `@patch` or a registry, would outlive its variables"
    from dew_nb.mark import protocols
    for c,old in before.items():
        for k in [k for k,v in vars(c).items() if k not in old or v is not old[k]]:
            if k in old: setattr(c, k, old[k])
            elif not k.startswith('__'): delattr(c, k)
    for known in (protocols._rules, protocols._spaces):
        for k in [k for k,c in known.items() if c.__module__ == '__main__']: del known[k]


def left_by_notebooks():
    "Attributes of the package's classes that are a notebook's functions"
    return [f'{c.__name__}.{k}' for c in own_classes() for k,v in vars(c).items()
            if getattr(getattr(v, '__func__', v), '__module__', None) == '__main__']


@pytest.fixture
def tidy():
    "nbdev keeps a notebook's variables as long as its process lives, and many hold a language model: let go of them"
    env, path, before = dict(os.environ), sys.path[:], {c: dict(vars(c)) for c in own_classes()}
    yield
    forget_the_notebook(before)
    if shell := get_ipython(): shell.reset(new_session=False)
    InteractiveShell.clear_instance()
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = path
    assert not left_by_notebooks()


@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda n: n.rel)
def test_notebook(notebook, tidy):
    assert run_notebook(notebook.path, skip_flags=FLAGS, basepath=ROOT)[0]


@pytest.mark.long
@pytest.mark.parametrize('notebook', [n for n in NOTEBOOKS if has_long_cells(n)], ids=lambda n: n.rel)
def test_long_cells(notebook, tidy):
    "From top to bottom, with the cells marked long"
    assert run_notebook(notebook.path, skip_flags=FLAGS, force_flags=['long'], basepath=ROOT)[0]
