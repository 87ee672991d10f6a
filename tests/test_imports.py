"Who may import whom: small projects in which the rule is kept or broken once, and this project"
import shutil, subprocess, sys
from pathlib import Path

import cell_imports
import pytest
from nbpages import ROOT
from test_tools import code, md, save

ROOMS = {'models/00_files': ['def make(): return 1'], 'mark/00_keys': ['from dew_nb.models.files import make'],
         'mark/01_scheme': ['import dew_nb.mark.keys as k'], 'dew': ['from dew_nb.mark import scheme'],
         'evaluation/texts/00_corpora': ['from dew_nb.dew import DEW'], 'shell/00_commands': ['import dew_nb.evaluation.texts.corpora']}

def project(tmp, **changed):
    "Rooms in folders, with changes; what breaks the rule"
    shutil.copy(ROOT/'settings.ini', tmp)
    for name,(exported, *shown) in (ROOMS | {k.replace('__', '/'): v for k,v in changed.items()}).items():
        folder, _, stem = name.rpartition('/')
        module = '.'.join(filter(None, [folder.replace('/', '.'), stem.lstrip('0123456789_')]))
        free = folder in ('studies', 'tutorials')
        head = [code(exported)] if free else [code(f'#| default_exp {module}'), code(f'#| export\n{exported}')]
        save(tmp/'nbs'/f'{name}.ipynb', md(f'# {stem}'), *head, *map(code, shown))
    return cell_imports.problems(tmp, dict(DEW='dew', SecretKey='mark.keys'))

def test_what_comes_before_may_be_imported(tmp_path):
    "Also from the package itself; tutorials and studies import what they like, and a cell need not be Python"
    studies = ['from dew_nb.shell.arguments.commands import dew_mark', '%%writefile a.txt\n no Python: the sea']
    assert project(tmp_path, studies__law=studies, tutorials__start=['from dew_nb import DEW'],
                   mark__02_more=['from dew_nb import SecretKey', '%time x = 1\nawait y\n!ls']) == []

@pytest.mark.parametrize('name, cells, says', [
    ('mark__00_keys', ['x = 1', '#| hide\nfrom dew_nb.mark.scheme import Scheme'], 'mark/00_keys.ipynb, cell 3: imports from mark/01_scheme.ipynb'),
    ('mark__00_keys', ['def up():\n    import dew_nb.mark.scheme'], 'mark/00_keys.ipynb, cell 2: imports from mark/01_scheme.ipynb'),
    ('models__09_late', ['x = 1', '%time 1\nfrom dew_nb.mark import keys'], 'models/09_late.ipynb, cell 3: imports from mark/00_keys.ipynb'),
    ('mark__01_scheme', ['from dew_nb import DEW'], 'mark/01_scheme.ipynb, cell 2: imports from dew.ipynb'),
    ('mark__01_other', ['from dew_nb.mark.scheme import Scheme'], 'mark/01_other.ipynb, cell 2: imports from mark/01_scheme.ipynb'),
    ('dew', ['import dew_nb.evaluation.texts.corpora'], 'dew.ipynb, cell 2: imports from evaluation/texts/00_corpora.ipynb')])
def test_what_comes_later_may_not(name, cells, says, tmp_path):
    assert project(tmp_path, **{name: cells}) == [f'{says}, which comes later']

def test_this_project_keeps_the_rule():
    "Cells by cell_imports, modules by the contracts of pyproject.toml; all notebooks with a module are seen"
    from dew_nb import _HOME
    assert cell_imports.problems(ROOT, _HOME) == []
    done = subprocess.run([Path(sys.executable).with_name('lint-imports'), '--no-cache'], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and '0 broken' in done.stdout, done.stdout + done.stderr
