"""How the notebooks are cut: lines of cells, definitions, examples, prose. Nothing is executed.

    python tools/cells.py [nbs/stats/00_null.ipynb ...] [--check]      all notebooks with a module when none is named

With --check the answer is an error when a code cell is too long."""
import argparse, ast, sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from nbpages import ROOT, Notebook, directives, find_notebooks, settings, text

LONG = 30                                           # lines; a longer cell wants splitting

@dataclass
class Cut:
    "What was counted in one notebook, or in several"
    code: list = field(default_factory=list)        # lines of each code cell
    exported: list = field(default_factory=list)    # lines of each exported cell that defines something
    definitions: list = field(default_factory=list) # functions and classes in each of these
    followed: list = field(default_factory=list)    # whether an example comes next
    prose: int = 0                                  # characters of prose
    letters: int = 0                                # characters of code
    def __add__(self, o):
        return Cut(*(getattr(self, f)+getattr(o, f) for f in ('code', 'exported', 'definitions', 'followed', 'prose', 'letters')))
    def row(self, name:str) -> str:
        "One line of the table"
        med = lambda x: f'{median(x):g}' if x else '-'
        share = lambda x: f'{100*sum(x)/len(x):.0f}%' if x else '-'
        mean = f'{sum(self.definitions)/len(self.definitions):.2f}' if self.definitions else '-'
        over = sum(n > LONG for n in self.code)
        prose = f'{100*self.prose/max(1, self.prose+self.letters):.0f}%'
        return f'{name:32} {len(self.code):5} {med(self.code):>5} {med(self.exported):>8} {mean:>5} {over:>5} {share(self.followed):>8} {prose:>6}'

HEAD = f'{"notebook":32} {"cells":>5} {"lines":>5} {"exported":>8} {"defs":>5} {">30":>5} {"example":>8} {"prose":>6}'

def lines(code:str) -> int:
    "Lines of a cell, from the first that says something to the last"
    return len(code.strip('\n').split('\n')) if code.strip() else 0

def defined(code:str) -> int:
    "Functions and classes that a cell defines"
    return sum(isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) for o in ast.parse(code).body)

def measure(n:Notebook) -> Cut:
    "Count one notebook"
    cut, kinds = Cut(), []
    for c in n.cells:
        src = text(c['source'])
        if c['cell_type'] == 'markdown': cut.prose += len(src); continue
        opts, code = directives(src)
        if not lines(code) or 'nbdev_export()' in code: continue
        cut.code.append(lines(code)); cut.letters += len(code)
        d = defined(code) if 'export' in opts else 0
        if d: cut.exported.append(lines(code)); cut.definitions.append(d)
        kinds.append('definition' if d else 'import' if 'export' in opts else 'example')
    cut.followed = [b == 'example' for a, b in zip(kinds, [*kinds[1:], '']) if a == 'definition']
    return cut

def too_long(n:Notebook) -> list[str]:
    "Code cells of a notebook that are longer than they may be, directives apart"
    bad = []
    for i,c in enumerate(n.cells):
        size = lines(directives(text(c['source']))[1]) if c['cell_type'] == 'code' else 0
        if size > LONG: bad.append(f'cell {i} has {size} lines, at most {LONG} are wanted: split it')
    return bad

def main(argv=None, root:Path=ROOT):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('notebooks', nargs='*', type=Path)
    ap.add_argument('--check', action='store_true', help='fail when a cell is too long')
    args = ap.parse_args(argv)
    named = [p.resolve() for p in args.notebooks]
    nbs = (root/settings(root)['nbs_path']).resolve()
    found = [n for n in find_notebooks(nbs) if (n.path in named if named else n.module)]
    if missing := [str(p) for p in named if p not in {n.path for n in found}]: sys.exit(f'no notebook of the project: {missing[0]}')
    cuts = {n.rel: measure(n) for n in found}
    print(HEAD, *[c.row(k) for k,c in cuts.items()], sum(cuts.values(), Cut()).row('all'), sep='\n')
    bad = [f'{n.rel}: {o}' for n in found for o in too_long(n)] if args.check else []
    for o in bad: print(o, file=sys.stderr)
    sys.exit(bool(bad))

if __name__ == '__main__': main()
