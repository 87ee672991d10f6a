"Reading the project's notebooks: where they are, their order, their directives, their markdown"
import json, posixpath, re
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

def settings(root:Path=ROOT) -> dict:
    "The project's settings.ini"
    cfg = ConfigParser(delimiters=['='])
    if not cfg.read(root/'settings.ini', encoding='utf-8'): raise FileNotFoundError(f'No settings.ini in {root}')
    return dict(cfg['DEFAULT'])

# ---------------------------------------------------------------- cells
_directive = re.compile(r'^[ \t]*#[ \t]*\|[ \t]*([\w-]+)(:?)[ \t]*(.*?)[ \t]*$')

def text(x) -> str:
    "A notebook's text field, which may be a string or a list of lines"
    return x if isinstance(x, str) else ''.join(x)

def directives(src:str) -> tuple[dict, str]:
    "The `#|` lines at the top of a code cell, and the code below them"
    found, lines = {}, src.splitlines(keepends=True)
    for i, line in enumerate(lines):
        m = _directive.match(line.rstrip('\n'))
        if m: found[m[1]] = m[3].strip('"\'') if m[2] else m[3]
        elif line.strip(): return found, ''.join(lines[i:])
    return found, ''

# ---------------------------------------------------------------- notebooks
@dataclass(frozen=True)
class Notebook:
    "One notebook of the project"
    path: Path # the file
    nbs: Path  # the folder of all notebooks

    @cached_property
    def nb(self) -> dict: return json.loads(self.path.read_text(encoding='utf-8'))
    @property
    def cells(self) -> list: return self.nb['cells']
    @property
    def rel(self) -> str: return self.path.relative_to(self.nbs).as_posix()
    @property
    def group(self) -> str: return posixpath.dirname(self.rel)
    @property
    def number(self) -> str:
        m = re.match(r'(\d+)_', self.path.name)
        return m[1] if m else ''
    @property
    def doc(self) -> str:
        "The page's name: the path without number and suffix, as nbdev has it"
        stem = re.sub(r'^\d+_', '', self.path.stem.lower())
        return posixpath.join(self.group, stem)
    @cached_property
    def module(self) -> str:
        "What the notebook exports to, or nothing"
        for c in self.cells:
            if c['cell_type'] == 'code' and (m := directives(text(c['source']))[0].get('default_exp')): return m
        return ''
    @cached_property
    def title(self) -> str:
        for c in self.cells:
            if c['cell_type'] == 'markdown' and (m := re.search(r'^# +(.+?)\s*$', text(c['source']), re.M)): return m[1]
        return self.path.stem

# Of notebooks with a module, in the order in which they may use each other; '' is where DEW itself stands
FOLDERS = {'models': 'Models', 'stats': 'Statistics', 'mark': 'Marking', 'read': 'Detection', '': 'DEW', 'transfer': 'Transfer',
           'evaluation/texts': 'Evaluation: texts', 'evaluation/attacks': 'Evaluation: attacks', 'evaluation/schemes': 'Evaluation: schemes',
           'evaluation/studies': 'Evaluation: studies', 'serving': 'Serving', 'shell': 'Commands'}
FIRST = ['quick_start', 'which_preset', 'bring_your_own_model', 'at_a_glance', 'evaluation', 'real', 'contexts', 'null_over_keys', 'calibrated_preset']   # of those without a number

def find_notebooks(nbs:Path) -> list[Notebook]:
    "All notebooks, the index first, then by folder in their order and by number; names that begin with `_` or `.` are left out"
    hidden = lambda p: any(o.startswith(('_', '.')) for o in p.relative_to(nbs).parts)
    found = [Notebook(p, nbs) for p in nbs.rglob('*.ipynb') if not hidden(p)]
    rank = lambda g: list(FOLDERS).index(g) if g in FOLDERS else len(FOLDERS)
    def order(n): return n.rel != 'index.ipynb', rank(n.group), n.group, not n.number, FIRST.index(n.path.stem) if n.path.stem in FIRST else len(FIRST), n.path.name
    return sorted(found, key=order)

# ---------------------------------------------------------------- markdown
_fence = re.compile(r'^ {0,3}(`{3,}|~{3,})')

def map_prose(md:str, f) -> str:
    "Apply `f` to the stretches of `md` that are not in a code fence"
    out, buf, close = [], [], None
    def flush():
        if buf: out.append(f(''.join(buf))); buf.clear()
    for line in md.splitlines(keepends=True):
        m = _fence.match(line)
        if close is None and m: flush(); close = m[1]; out.append(line)
        elif close is not None:
            out.append(line)
            if m and m[1].startswith(close) and not line.strip(' `~\n'): close = None
        else: buf.append(line)
    flush()
    return ''.join(out)

_callout = re.compile(r'^(:::+)[ \t]*\{\.callout-(\w+)([^}\n]*)\}[ \t]*\n(?:\s*##+[ \t]*([^\n]+)\n)?(.*?)^\1[ \t]*$', re.M|re.S)
_alert = re.compile(r'^> \[!(\w+)\][ \t]*\n((?:>.*(?:\n|\Z))*)', re.M)

def callouts(md:str, render) -> str:
    "Replace Quarto's `::: {.callout-note}` and GitHub's `> [!NOTE]` by `render(kind, title, body)`"
    def quarto(m):
        t = re.search(r'title="([^"]*)"', m[3])
        return render(m[2].lower(), m[4] or (t[1] if t else ''), m[5].strip())
    def github(m): return render(m[1].lower(), '', re.sub(r'^> ?', '', m[2], flags=re.M).strip()) + '\n'
    return _alert.sub(github, _callout.sub(quarto, md))

_link = re.compile(r'(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)((?:\s+"[^"]*")?\))(\{[^}\n]*\})?')

def map_links(md:str, f) -> str:
    "Replace the target of every markdown link by `f(target)`, and drop Quarto's link attributes"
    return map_prose(md, lambda s: _link.sub(lambda m: m[1] + f(m[2]) + m[3], s))

def is_external(target:str) -> bool: return bool(re.match(r'[a-z][a-z0-9+.-]*:|#', target, re.I))

_stem = re.compile(r'(?<![\[`\\])`((?:[\w-]+/)?\d+_\w+)(?:\.ipynb)?`(?!`|\]\()')

def link_notebooks(md:str, f) -> str:
    "Link a notebook's name, such as `00_keys`, to `f(its path)`, unless that is None"
    def link(m): return f'[`{m[1]}`]({to})' if (to := f(m[1] + '.ipynb')) else m[0]
    return map_prose(md, lambda s: _stem.sub(link, s))
