"""Who imports whom, also in hidden and example cells: a notebook uses only modules whose notebook comes before it.

    python tools/cell_imports.py      what breaks the rule

Notebooks come in the order of their folders, then by number. Those without a module (tutorials, studies) may import everything.
Modules themselves are checked by import-linter: `lint-imports`."""
import ast, sys
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager
from nbpages import FOLDERS, ROOT, Notebook, find_notebooks, settings, text

def place(n:Notebook) -> tuple: return list(FOLDERS).index(n.group), int(n.number or 0)

def imported(code:str) -> set:
    "What a cell imports, with dots: `a.b` for `import a.b` and for `from a import b`"
    code = TransformerManager().transform_cell(code)                # magics become calls
    tree = compile(code, '<cell>', 'exec', ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {f'{o.module}.{a.name}' for o in ast.walk(tree) if isinstance(o, ast.ImportFrom) for a in o.names}
    return names | {a.name for o in ast.walk(tree) if isinstance(o, ast.Import) for a in o.names}

def problems(root:Path=ROOT, public:dict={}) -> list[str]:
    "Cells that import what comes later; `public` names the module of what the package itself offers"
    cfg = settings(root)
    lib, rooms = cfg['lib_name'], [n for n in find_notebooks(root/cfg['nbs_path']) if n.module]
    where, bad = {f'{lib}.{n.module}': n for n in rooms}, []
    homes = {f'{lib}.{k}': f'{lib}.{v}' for k,v in public.items()}
    for n in rooms:
        for i,c in enumerate(n.cells):
            names = [homes.get(o, o) for o in imported(text(c['source']))] if c['cell_type'] == 'code' else []
            found = {where.get(o) or where.get(o.rpartition('.')[0]) for o in names} - {None, n}
            bad += sorted(f'{n.rel}, cell {i}: imports from {o.rel}, which comes later' for o in found if place(o) >= place(n))
    return bad

if __name__ == '__main__':
    from dew_nb import _HOME
    sys.exit('\n'.join(problems(public=_HOME)) or 0)
