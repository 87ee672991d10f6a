"""Who imports whom. Imports of modules, notebooks and scripts are read, nothing is executed.

    python tools/imports.py      the table of dependencies, then what breaks a rule

The rules: modules make no circle; a notebook uses only modules of lower numbers, in hidden and example cells too; a method may
pass on to a later module if that is all it does (a one-line delegate); private names stay in their module; nothing is imported
for its side effects; a class is completed in its own module only; one notebook makes one module."""
import ast, re, sys
from collections import deque
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from nbpages import ROOT, Notebook, directives, find_notebooks, settings, text

FREE = 'studies', 'tutorials'                       # folders of notebooks that may import everything
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef

# ---------------------------------------------------------------- reading
@dataclass(frozen=True, eq=False)
class Piece:
    "A stretch of code: a cell, or a whole file"
    place: str         # where it stands, for messages
    tree: ast.Module
    exported: bool     # whether it is part of a module
    @cached_property
    def nodes(self) -> list: return list(ast.walk(self.tree))

@dataclass(frozen=True, eq=False)
class Source:
    "A notebook, a module or a script"
    module: str        # the module it makes, without the package's name, or nothing
    number: int|None   # of the notebook
    pieces: tuple
    free: bool=False   # may import everything

@dataclass(frozen=True)
class Arrow:
    "One import from the package"
    place: str
    target: str        # module, without the package's name
    name: str          # what is taken from it; nothing: the module itself
    bound: str         # how it is called afterwards; nothing: it has no name
    delegate: bool     # all that a method does is to pass on to it
    exported: bool

def parse(code:str) -> ast.Module:
    "Code of a cell; its magics and shell lines are left out, and cells that are not Python"
    if re.match(r'\s*%%(writefile|sh|bash|html)\b', code): code = ''
    code = re.sub(r'(?m)^(\s*)[%!].*$', r'\1pass', code)
    return compile(code, '<cell>', 'exec', ast.PyCF_ONLY_AST|ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

def read_notebook(n:Notebook, prefix:str) -> Source:
    "The code cells of a notebook"
    pieces = []
    for i,c in enumerate(n.cells):
        if c['cell_type'] != 'code': continue
        opts, code = directives(text(c['source']))
        exported = bool(opts.keys() & {'export', 'exporti', 'exports'})
        pieces.append(Piece(f'{prefix}/{n.rel}, cell {i}', parse(code), exported))
    free = not n.module or n.group in FREE
    return Source(n.module, int(n.number) if n.number else None, tuple(pieces), free)

def read_file(path:Path, root:Path, module:str='') -> Source:
    "A Python file"
    place = path.relative_to(root).as_posix()
    return Source(module, None, (Piece(place, ast.parse(path.read_text(encoding='utf-8')), True),), True)

@dataclass(frozen=True, eq=False)
class Project:
    "What there is to read"
    package: str
    notebooks: list    # sources
    modules: dict      # name -> source
    scripts: list      # sources
    exports: list      # (module, notebook)
    homes: dict        # package -> {public name -> module}

    @cached_property
    def numbers(self) -> dict: return {s.module: -1 if s.number is None else s.number for s in self.notebooks if s.module}
    @cached_property
    def known(self) -> set: return set(self.numbers) | set(self.modules)

def read_homes(tree:ast.Module, package:str) -> dict:
    "Public name -> module, from the `_HOME = dict(...)` of a package's `__init__`"
    for o in tree.body:
        if isinstance(o, ast.Assign) and getattr(o.targets[0], 'id', '') == '_HOME' and isinstance(o.value, ast.Call):
            return {k.arg: package + ast.literal_eval(k.value) for k in o.value.keywords}
    return {}

def exports_of(n:Notebook) -> set:
    "The modules to which a notebook writes"
    opts = [directives(text(c['source']))[0] for c in n.cells if c['cell_type'] == 'code']
    return {o.get(k) for o in opts for k in ('default_exp', 'export', 'exporti', 'exports')} - {None, ''}

def read_project(root:Path=ROOT) -> Project:
    "Read notebooks, modules and scripts"
    cfg = settings(root)
    nbs, lib = root/cfg['nbs_path'], root/cfg['lib_path']
    found = find_notebooks(nbs)
    modules, homes = {}, {}
    for p in sorted(lib.rglob('*.py')):
        name = '.'.join(p.relative_to(lib).with_suffix('').parts)
        src = read_file(p, root, name)
        if p.name != '__init__.py': modules[name] = src; continue
        package = name.removesuffix('__init__')
        homes[package.rstrip('.')] = read_homes(src.pieces[0].tree, package)
    scripts = [*sorted((root/'tools').glob('*.py')), *sorted(nbs.rglob('*.py'))]
    return Project(cfg['lib_path'], [read_notebook(n, cfg['nbs_path']) for n in found], modules,
                   [read_file(p, root) for p in scripts], [(m, n.rel) for n in found for m in sorted(exports_of(n))], homes)

# ---------------------------------------------------------------- imports
def without_docstring(body:list) -> list:
    "Statements of a function after its docstring"
    return body[1:] if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else body

def names_in(node) -> set: return {o.id for o in ast.walk(node) if isinstance(o, ast.Name)}

def is_delegate(f) -> bool:
    "Whether a method is a docstring, one import, and the return of what was imported"
    if not isinstance(f, FUNCTIONS) or not f.args.args: return False
    body = without_docstring(f.body)
    if len(body) != 2 or not isinstance(body[0], (ast.Import, ast.ImportFrom)) or not isinstance(body[1], ast.Return): return False
    bound = {(a.asname or a.name).split('.')[0] for a in body[0].names}
    return isinstance(body[1].value, ast.Call) and bound <= names_in(body[1].value)

def methods(p:Piece) -> list:
    "The functions of classes, and those that are patched into one"
    inside = [f for c in p.nodes if isinstance(c, ast.ClassDef) for f in c.body if isinstance(f, FUNCTIONS)]
    return inside + [f for f in p.tree.body if isinstance(f, FUNCTIONS) and patched(f)]

def split_target(dotted:str, name:str, project:Project) -> tuple[str, str]:
    "(module, name in it) of `from dotted import name`, where dotted has no package's name"
    sub = f'{dotted}.{name}'.strip('.')
    if sub in project.known or sub in project.homes: return sub, ''
    home = project.homes.get(dotted, {}).get(name)
    return (home, name) if home else (dotted, name)

def arrows_of(node, place:str, source:Source, project:Project, delegate:bool, exported:bool) -> list[Arrow]:
    "What one import statement takes from the package"
    pkg = project.package
    own = lambda s: s == pkg or s.startswith(pkg + '.')
    make = lambda target, name, bound: Arrow(place, target, name, bound, delegate, exported)
    if isinstance(node, ast.Import):
        return [make(a.name[len(pkg)+1:], '', a.asname or a.name) for a in node.names if own(a.name)]
    base = node.module or ''
    if node.level:
        parents = [pkg, *source.module.split('.')][:-node.level]
        base = '.'.join([*parents, *filter(None, [base])])
    if not own(base): return []
    return [make(*split_target(base[len(pkg)+1:], a.name, project), a.asname or a.name) for a in node.names]

def called_imports(p:Piece, project:Project) -> list[Arrow]:
    "`import_module('package.module')`; one whose result is dropped has no name"
    dropped = {id(o.value) for o in p.nodes if isinstance(o, ast.Expr)}
    calls = [o for o in p.nodes if isinstance(o, ast.Call) and (dotted(o.func) or '').endswith(('import_module', '__import__'))]
    calls = [o for o in calls if o.args and isinstance(o.args[0], ast.Constant) and str(o.args[0].value).startswith(project.package + '.')]
    return [Arrow(p.place, o.args[0].value[len(project.package)+1:], '', '' if id(o) in dropped else '*', False, p.exported) for o in calls]

@cache
def arrows(source:Source, project:Project) -> list[Arrow]:
    "All imports of a source from the package"
    found = []
    for p in source.pieces:
        short = {id(f.body[-2]) for f in methods(p) if is_delegate(f)} if p.exported else set()
        for o in p.nodes:
            if isinstance(o, (ast.Import, ast.ImportFrom)):
                found += arrows_of(o, p.place, source, project, id(o) in short, p.exported)
        found += called_imports(p, project)
    return found

# ---------------------------------------------------------------- the rules
def graph(project:Project) -> dict:
    "Module -> the modules that it needs, delegates apart"
    need = {m: {a.target for a in arrows(s, project) if not a.delegate} for m,s in project.modules.items()}
    return {m: sorted((t & set(need)) - {m}) for m,t in need.items()}

def way(need:dict, start:str, goal:str) -> list:
    "The shortest way from one module to another, or nothing"
    queue, seen = deque([[start]]), {start}
    while queue:
        path = queue.popleft()
        for o in need[path[-1]]:
            if o == goal: return [*path, o]
            if o not in seen: seen.add(o); queue.append([*path, o])
    return []

def circles(project:Project) -> list[str]:
    "Modules that need each other; each circle once"
    need, found = graph(project), {}
    for m in sorted(need):
        if path := way(need, m, m): found.setdefault(frozenset(path), path)
    return ['a circle: ' + ' → '.join(p) for p in found.values()]

def upward(source:Source, project:Project) -> list[str]:
    "Imports of a notebook from its own number or a higher one"
    if source.free or source.number is None: return []
    high = lambda a: a.target != source.module and project.numbers.get(a.target, -1) >= source.number
    return [f'{a.place}: imports {a.name or "the module"} of {a.target}, which is number {project.numbers[a.target]}'
            for a in arrows(source, project) if high(a) and not a.delegate]

def dotted(node) -> str|None:
    "`a.b.c` as a string; None for anything else"
    if isinstance(node, ast.Name): return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)): return f'{base}.{node.attr}'

def is_private(name:str) -> bool: return name.startswith('_') and not name.startswith('__')

def private(source:Source, project:Project) -> list[str]:
    "Private names of other modules, imported or reached through the module"
    found = [a for a in arrows(source, project) if a.target != source.module]
    bad = [f'{a.place}: imports the private {a.name} of {a.target or project.package}' for a in found if is_private(a.name)]
    modules = {a.bound: a.target for a in found if not a.name and a.bound}
    for p in source.pieces:
        for o in p.nodes:
            if not isinstance(o, ast.Attribute) or not is_private(o.attr): continue
            if (base := dotted(o.value)) in modules: bad.append(f'{p.place}: uses the private {o.attr} of {modules[base]}')
    return bad

def annotations(p:Piece) -> set:
    "Names in annotations that are written as strings"
    held = [getattr(o, k, None) for o in p.nodes for k in ('annotation', 'returns')]
    strings = [c.value for h in held if h for c in ast.walk(h) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
    return {m for s in strings for m in re.findall(r'\w+', s)}

def listed(p:Piece) -> set:
    "Names in `__all__` and in nbdev's `_all_`"
    held = [o.value for o in p.nodes if isinstance(o, ast.Assign) and getattr(o.targets[0], 'id', '') in ('__all__', '_all_')]
    return {c.value for h in held for c in ast.walk(h) if isinstance(c, ast.Constant)}

def unused(source:Source, project:Project) -> list[str]:
    "Imports from the package whose names are never used: they can only be there for a side effect"
    used = set()
    for p in source.pieces:
        used |= annotations(p) | listed(p) | {s for o in p.nodes if (s := dotted(o))}
    idle = lambda a: a.bound not in ('*', *used)
    return [f'{a.place}: {a.name or a.target} is imported and never used, so for a side effect or for nothing'
            for a in arrows(source, project) if idle(a)]

def patched(f) -> list:
    "The classes into which fastcore's `patch` puts a function"
    found = []
    for d in f.decorator_list:
        name = (dotted(d.func if isinstance(d, ast.Call) else d) or '').split('.')[-1]
        if name == 'patch_to' and d.args: found += names_in(d.args[0])
        if name in ('patch', 'patch_property') and f.args.args:
            kind = f.args.args[0].annotation
            if isinstance(kind, ast.Constant): kind = ast.parse(kind.value, mode='eval')
            if kind is not None: found += names_in(kind)
    return found

def completed(source:Source, project:Project) -> list[str]:
    "Classes of other modules that get methods here"
    here = [p for p in source.pieces if p.exported]
    own = {o.name for p in here for o in p.tree.body if isinstance(o, ast.ClassDef)}
    other = {a.bound for a in arrows(source, project) if a.name}
    bad = []
    for p in here:
        for o in p.tree.body:
            kinds = patched(o) if isinstance(o, FUNCTIONS) else []
            bad += [f'{p.place}: patches {o.name} into {k}, which is not defined here' for k in kinds if k not in own]
            targets = o.targets if isinstance(o, ast.Assign) else []
            bad += [f'{p.place}: sets {dotted(t)} of another module' for t in targets
                    if isinstance(t, ast.Attribute) and (dotted(t.value) or '') in other]
    return bad

def shared(project:Project) -> list[str]:
    "Modules that two notebooks write"
    by = {}
    for module,notebook in project.exports: by.setdefault(module, []).append(notebook)
    return [f'{", ".join(n)}: all export {m}; one notebook makes one module' for m,n in by.items() if len(n) > 1]

def breaches(p:Project) -> list[str]:
    "All that breaks a rule"
    rooms = [s for s in p.notebooks if s.module]
    by_hand = [s for m,s in p.modules.items() if m not in p.numbers and m != '_modidx']
    bad = circles(p) + shared(p)
    for s in rooms: bad += upward(s, p)
    for s in [*rooms, *by_hand]: bad += completed(s, p)
    for s in [*p.notebooks, *by_hand, *p.scripts]: bad += private(s, p) + unused(s, p)
    return list(dict.fromkeys(bad))

def problems(root:Path=ROOT) -> list[str]:
    "Read a project; all that breaks a rule in it"
    return breaches(read_project(root))

# ---------------------------------------------------------------- the table
def table(project:Project) -> str:
    "Number, module, what it needs; ↑ before what a delegate passes on to"
    need = graph(project)
    up = {m: sorted({a.target for a in arrows(s, project) if a.delegate}) for m,s in project.modules.items()}
    rows = sorted((n, m) for m,n in project.numbers.items() if m in need)
    say = lambda m: ', '.join([*sorted(need[m], key=lambda o: project.numbers.get(o, -1)), *(f'↑{o}' for o in up[m])])
    return '\n'.join(f'{n:02d}  {m:24} {say(m)}' for n,m in rows)

def main():
    project = read_project()
    print(table(project))
    bad = breaches(project)
    for o in bad: print(o, file=sys.stderr)
    sys.exit(f'{len(bad)} breaches of the rules' if bad else 0)

if __name__ == '__main__': main()
