"What a tutorial shows runs when it is copied: no visible cell uses a name that only a hidden one defines"
import ast, builtins, importlib, json
from pathlib import Path

import pytest
from nbpages import ROOT, directives, text

PAGES = sorted((ROOT/'nbs'/'tutorials').glob('*.ipynb'))

def shown(cell:dict) -> bool:
    "Whether a reader of the page sees the code of a cell"
    opts = directives(text(cell['source']))[0]
    return cell['cell_type'] == 'code' and not (opts.keys() & {'hide', 'default_exp'}
        or opts.get('echo') == 'false' or opts.get('include') == 'false')

def starred(node:ast.ImportFrom) -> list[str]:
    "What `from module import *` brings"
    m = importlib.import_module(node.module)
    return list(getattr(m, '__all__', [n for n in dir(m) if not n.startswith('_')]))

def bound(tree) -> set[str]:
    "Names that code defines or imports, wherever"
    found = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store): found.add(n.id)
        elif isinstance(n, ast.arg): found.add(n.arg)
        elif isinstance(n, (ast.FunctionDef, ast.ClassDef)): found.add(n.name)
        elif isinstance(n, ast.ExceptHandler) and n.name: found.add(n.name)
        elif isinstance(n, ast.ImportFrom) and n.names[0].name == '*': found.update(starred(n))
        elif isinstance(n, (ast.Import, ast.ImportFrom)): found.update((a.asname or a.name).split('.')[0] for a in n.names)
    return found

def python_of(source:str) -> str:
    "The Python of a cell: no cell that is written to a file or run by a shell, no line for a shell or a magic"
    code = directives(source)[1]
    if code.lstrip().startswith('%%'): return ''
    return '\n'.join(l for l in code.split('\n') if not l.startswith(('!', '%')))

def undefined(cells:list) -> list[str]:
    "Names that visible cells use before a visible cell defines them"
    known, missing = set(dir(builtins)) | {'__name__', 'display'}, []
    for tree in (ast.parse(python_of(text(c['source']))) for c in cells if shown(c)):
        known |= bound(tree)
        missing += [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id not in known]
    return sorted(set(missing))

def cells(*sources): return [dict(cell_type='code', source=s) for s in sources]

@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.stem)
def test_visible_cells_stand_alone(page):
    assert undefined(json.loads(page.read_text(encoding='utf-8'))['cells']) == []

def test_the_check_can_fail():
    hidden = '#| hide\nimport tempfile\nkey = 1'
    assert undefined(cells(hidden, 'tempfile.mkdtemp()\nprint(key)')) == ['key', 'tempfile']
    assert undefined(cells('#| echo: false\nx = 1', 'x')) == ['x'] and undefined(cells('x', 'x = 1')) == ['x']
    assert undefined(cells('import os.path as p\nfrom fastcore.test import *', 'test_eq(p.join("a"), [q for q in "a"])')) == []
    assert undefined(cells('def f(a, *b, c=1, **d): return a, b, c, d', 'f(lambda z: z)\ntry: pass\nexcept OSError as e: print(e)')) == []

def test_lines_for_a_shell_are_no_python():
    assert undefined(cells('!dew_detect letter.txt', '%%writefile mine.py\nx = y', '%time z')) == []
    assert undefined(cells('!ls\nprint(key)')) == ['key']

def test_there_are_tutorials(): assert len(PAGES) >= 4
