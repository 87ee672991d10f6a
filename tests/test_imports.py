"Who may import whom: the project itself, and small projects in which each rule is broken once"
import gc, shutil

import imports
import pytest
from nbpages import ROOT
from test_tools import code, save

# ---------------------------------------------------------------- this project
@pytest.fixture(scope='module')
def p():
    gc.disable()                                    # hundreds of thousands of nodes, all of which are kept
    yield imports.read_project()
    gc.enable()

def test_the_project_keeps_the_rules(p):
    assert imports.breaches(p) == []

def test_the_project_is_read(p):
    "All rooms are seen, with arrows between them: an empty answer would pass every rule"
    need = imports.graph(p)
    assert len(p.numbers) >= 28 and set(p.numbers) <= set(need)
    assert 'keys' in need['projection'] and sum(map(len, need.values())) > 50

# ---------------------------------------------------------------- small projects
KEYS = 'def make(): return 1\ndef _hidden(): return 2\nclass Key: pass\n'
SCHEME = 'from dew_nb.mark.keys import make\nclass DEW:\n    def detector(self): return make()\n'
DETECTION = 'from dew_nb.mark.scheme import DEW\ndef detect(x): return DEW()\n'

def project(tmp, nbs=None, files=None):
    "Three rooms, one above the other, with changes; their modules hold what the notebooks export"
    shutil.copy(ROOT/'settings.ini', tmp)
    rooms = {'00_keys': [KEYS], '27_scheme': [SCHEME], '31_detection': [DETECTION], **(nbs or {})}
    (tmp/'dew_nb').mkdir()
    (tmp/'tools').mkdir()
    (tmp/'dew_nb'/'__init__.py').write_text("_HOME = dict(DEW='scheme', Detector='detection')\n")
    for name,(exported, *shown) in rooms.items():
        module = name.split('_', 1)[1] if name[0].isdigit() else ''
        head = [code(f'#| default_exp {module}'), code('#| export\n' + exported)] if module else [code(exported)]
        save(tmp/'nbs'/f'{name}.ipynb', *head, *map(code, shown))
        if module: (tmp/'dew_nb'/f'{module}.py').write_text(exported)
    for name,s in (files or {}).items():
        (tmp/name).parent.mkdir(parents=True, exist_ok=True)
        (tmp/name).write_text(s)
    return imports.problems(tmp)

def test_small_project_is_in_order(tmp_path):
    studies = {'studies/law': ['from dew_nb.read.detection import detect\ndetect(1)'], 'tutorials/start': ['from dew_nb import DEW\nDEW()', '%%writefile a.txt\n no Python: the sea']}
    assert project(tmp_path, studies, {'tools/one.py': 'from dew_nb.read.detection import detect\ndetect(1)\n'}) == []

CIRCLE = 'from dew_nb.read.detection import detect\ndef make(): return detect\n'
UP = 'from dew_nb.mark.scheme import DEW\nDEW()'

@pytest.mark.parametrize('nbs, says', [
    ({'00_keys': [CIRCLE]}, 'a circle: detection → scheme → keys → detection'),
    ({'00_keys': [KEYS, UP]}, 'cell 2: imports DEW of scheme, which is number 27'),
    ({'00_keys': [KEYS, '#| hide\n' + UP]}, 'cell 2: imports DEW of scheme, which is number 27'),
    ({'00_keys': [KEYS, 'from dew_nb import DEW\nDEW()']}, 'imports DEW of scheme, which is number 27'),
    ({'00_keys': [KEYS, 'import dew_nb.mark.scheme as s\ns.DEW()']}, 'imports the module of scheme, which is number 27'),
    ({'00_keys': [KEYS, '%time 1\n' + UP]}, 'imports DEW of scheme'),
    ({'00_keys': [KEYS + 'def up():\n    from dew_nb.mark.scheme import DEW\n    x = DEW()\n    return x\n']}, 'imports DEW of scheme'),
    ({'00_keys': [KEYS + 'class A:\n    def up(self):\n        from dew_nb.mark.scheme import DEW\n        print(1)\n        return DEW()\n']},
     'imports DEW of scheme'),
    ({'31_detection': ['from dew_nb.mark.keys import _hidden\ndef detect(x): return _hidden()\n']}, 'imports the private _hidden of keys'),
    ({'31_detection': ['import dew_nb.mark.keys\ndef detect(x): return dew_nb.mark.keys._hidden()\n']}, 'uses the private _hidden of keys'),
    ({'31_detection': ['from dew_nb import keys as k\ndef detect(x): return k._hidden()\n']}, 'uses the private _hidden of keys'),
    ({'studies/law': ['from dew_nb.mark.keys import _hidden\n_hidden()']}, 'imports the private _hidden of keys'),
    ({'31_detection': ['import dew_nb.mark.scheme\n']}, 'scheme is imported and never used'),
    ({'31_detection': ['from dew_nb.mark.scheme import DEW # adds a method\n']}, 'DEW is imported and never used'),
    ({'31_detection': ['from importlib import import_module\nimport_module("dew_nb.mark.scheme")\n']}, 'scheme is imported and never used'),
    ({'31_detection': ['from dew_nb.mark.scheme import DEW\nfrom fastcore.basics import patch\n@patch\ndef scan(self:DEW): pass\n']},
     'patches scan into DEW, which is not defined here'),
    ({'31_detection': ['from dew_nb.mark.scheme import DEW\ndef scan(self): pass\nDEW.scan = scan\n']}, 'sets DEW.scan of another module'),
    ({'32_keys': ['def make(): return 3\n']}, '00_keys.ipynb, 32_keys.ipynb: all export keys'),
    ({'32_more': ['x = 1\n', '#| export keys\ny = 1']}, '00_keys.ipynb, 32_more.ipynb: all export keys')])
def test_a_broken_rule_is_noticed(nbs, says, tmp_path):
    found = project(tmp_path, nbs)
    assert any(says in o for o in found), found

def test_relative_imports_are_followed(tmp_path):
    "As nbdev writes them, also in a folder"
    files = {'dew_nb/evaluation/__init__.py': '', 'dew_nb/evaluation/a.py': 'from ..keys import make\nfrom .b import f\ng = f(make)\n',
             'dew_nb/evaluation/b.py': 'from dew_nb.evaluation import a\ndef f(x): return a\n'}
    assert project(tmp_path, {}, files) == ['a circle: evaluation.a → evaluation.b → evaluation.a']

@pytest.mark.parametrize('file', ['tools/one.py', 'nbs/studies/law.py'])
def test_scripts_are_read(file, tmp_path):
    assert project(tmp_path, {}, {file: 'from dew_nb.mark.keys import _hidden\n_hidden()\n'}) == [f'{file}: imports the private _hidden of keys']

DELEGATE = '''class DEW:
    def detector(self, x=1):
        "A detector of this scheme"
        from dew_nb.read.detection import detect
        return detect(self, x)
'''
def test_a_delegate_may_point_upward(tmp_path):
    "And makes no circle; it is seen in the table"
    assert project(tmp_path, {'27_scheme': [DELEGATE]}) == []
    table = imports.table(imports.read_project(tmp_path))
    assert [o.split() for o in table.splitlines()] == [['00', 'keys'], ['27', 'scheme', '↑detection'], ['31', 'detection', 'scheme']]

@pytest.mark.parametrize('change', [('return detect(self, x)', 'y = detect(self, x); return y'), ('return detect(self, x)', 'return detect or 1'),
                                    ('class DEW:\n', 'class DEW: pass\nif True:\n')])
def test_more_than_a_delegate_may_not(change, tmp_path):
    assert len(project(tmp_path, {'27_scheme': [DELEGATE.replace(*change)]})) == 2     # upward, and a circle

def test_a_patched_delegate_and_an_own_class(tmp_path):
    "`patch` inside the notebook of the class is the way to write it over several cells"
    patched = 'from fastcore.basics import patch\nclass DEW: pass\n@patch\n' + DELEGATE.split('\n', 1)[1].replace('\n    ', '\n').replace(
        '    def detector(self', 'def detector(self:DEW')
    assert project(tmp_path, {'27_scheme': [patched]}) == []
