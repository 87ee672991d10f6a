"Every notebook, run as `nbdev_test` runs it"
import os, sys

import dew_nb                                       # noqa: F401  sets the environment that every notebook begins with
import pytest
from IPython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from nbdev.test import test_nb as run_notebook
from nbpages import ROOT, directives, find_notebooks, settings, text

run_notebook.__test__ = False                       # its name begins like a test's
FLAGS = settings()['tst_flags'].split()
NOTEBOOKS = find_notebooks(ROOT/settings()['nbs_path'])


def has_long_cells(n): return any('long' in directives(text(c['source']))[0] for c in n.cells if c['cell_type'] == 'code')


@pytest.fixture
def tidy():
    "nbdev keeps a notebook's variables as long as its process lives, and many hold a language model: let go of them"
    env, path = dict(os.environ), sys.path[:]
    yield
    if shell := get_ipython(): shell.reset(new_session=False)
    InteractiveShell.clear_instance()
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = path


@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda n: n.rel)
def test_notebook(notebook, tidy):
    assert run_notebook(notebook.path, skip_flags=FLAGS, basepath=ROOT)[0]


@pytest.mark.long
@pytest.mark.parametrize('notebook', [n for n in NOTEBOOKS if has_long_cells(n)], ids=lambda n: n.rel)
def test_long_cells(notebook, tidy):
    "From top to bottom, with the cells marked long"
    assert run_notebook(notebook.path, skip_flags=FLAGS, force_flags=['long'], basepath=ROOT)[0]
