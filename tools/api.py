"The public symbols of an exported cell, read from its source without importing anything"
import ast, io, re, tokenize
from dataclasses import dataclass, field

@dataclass
class Param:
    "One row of a parameter table"
    name: str
    type: str = ''
    default: str = ''
    doc: str = ''

@dataclass
class Symbol:
    "A public function, class, method, property or constant"
    name: str                # as one writes it: `f`, `Cls`, `Cls.method`
    kind: str                # function, class, method, classmethod, staticmethod, property, data
    sig: str = ''            # '(a, b=1) -> int'; for data, the value
    doc: str = ''
    params: list = field(default_factory=list)
    returns: Param = None
    bases: list = field(default_factory=list)
    members: list = field(default_factory=list)

    @property
    def summary(self) -> str: return re.split(r'\n\s*\n', self.doc.strip())[0].replace('\n', ' ')

_defs = ast.FunctionDef, ast.AsyncFunctionDef

# ---------------------------------------------------------------- comments
def _comments(src:str) -> dict:
    "line number -> (comment, whether it has the line to itself)"
    out = {}
    for t in tokenize.generate_tokens(io.StringIO(src).readline):
        if t.type == tokenize.COMMENT: out[t.start[0]] = t.string.lstrip('#').strip(), not t.line[:t.start[1]].strip()
    return out

def _comment_for(last:int, prev:int, comments:dict) -> str:
    "The comment of an item that ends on line `last`, its predecessor having ended on line `prev`"
    above = [comments[i][0] for i in range(prev+1, last) if i in comments and comments[i][1]]
    here = [comments[last][0]] if last in comments and not comments[last][1] else []
    return ' '.join(here or above)

# ---------------------------------------------------------------- signatures
def _src(node) -> str: return '' if node is None else ast.unparse(node)

def _type(node) -> str:
    "An annotation as the reader wants it: quotes of forward references dropped"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _src(node)

def _default(node) -> str:
    "A default as the reader wants it: the value inside `field(...)`"
    if isinstance(node, ast.Call) and _src(node.func).split('.')[-1] == 'field':
        kw = {k.arg: _src(k.value) for k in node.keywords}
        return kw.get('default') or (f"{kw['default_factory']}()" if 'default_factory' in kw else '')
    return _src(node)

def _args(fn):
    "(prefix, arg, default) for every argument of `fn`, in order"
    a = fn.args
    pos = a.posonlyargs + a.args
    defaults = [None]*(len(pos)-len(a.defaults)) + a.defaults
    yield from (('', o, d) for o, d in zip(pos, defaults))
    if a.vararg: yield '*', a.vararg, None
    yield from (('', o, d) for o, d in zip(a.kwonlyargs, a.kw_defaults))
    if a.kwarg: yield '**', a.kwarg, None

def _params(fn, comments, skip_first=False) -> list:
    "The parameter table of `fn`, with the comments beside its arguments"
    rows = list(_args(fn))
    ends = [max(x.end_lineno for x in (o, d) if x is not None) for _, o, d in rows]
    comments = {i: c for i, c in comments.items() if i < fn.body[0].lineno}
    res = []
    for i, (pre, o, d) in enumerate(rows):
        alone = i+1 == len(rows) or ends[i+1] != ends[i]  # a comment belongs to the last argument of its line
        doc = _comment_for(ends[i], ends[i-1] if i else fn.lineno, comments) if alone else ''
        res.append(Param(pre+o.arg, _type(o.annotation), _src(d), doc))
    return res[1:] if skip_first else res

def _returns(fn, comments):
    if fn.returns is None: return None
    end = fn.returns.end_lineno
    doc = comments[end][0] if end in comments and end < fn.body[0].lineno else ''
    return Param('**Returns**', _type(fn.returns), '', doc)

def _signature(fn, skip_first=False) -> str:
    a = ast.parse(ast.unparse(fn)).body[0].args
    if skip_first: (a.posonlyargs or a.args).pop(0)
    over = len(a.defaults) - len(a.posonlyargs + a.args)
    if over > 0: a.defaults = a.defaults[over:]
    ret = f' -> {_type(fn.returns)}' if fn.returns is not None else ''
    return f'({ast.unparse(a)}){ret}'

# ---------------------------------------------------------------- symbols
def _decorators(node) -> dict:
    "decorator name -> its call (or None)"
    out = {}
    for d in node.decorator_list:
        call = d if isinstance(d, ast.Call) else None
        out[_src(call.func if call else d).split('.')[-1]] = call
    return out

def _true(call, name) -> bool:
    return call is not None and any(k.arg == name and getattr(k.value, 'value', None) is True for k in call.keywords)

def _classes(node) -> list:
    "The class names in an annotation or decorator argument: `A`, `'A'`, `A|B`, `(A, B)`"
    if isinstance(node, ast.BinOp): return _classes(node.left) + _classes(node.right)
    if isinstance(node, (ast.Tuple, ast.List)): return [c for o in node.elts for c in _classes(o)]
    if isinstance(node, ast.Constant): return [str(node.value)]
    return [_src(node)] if node is not None else []

def _function(fn, comments, owner='') -> list:
    "The symbols that a `def` makes: one, or one per class for a patch"
    decs, owners, kind = _decorators(fn), [owner], 'function'
    if 'overload' in decs or 'setter' in decs: return []
    if decs.keys() & {"patch", "patch_to"}:
        call = decs.get('patch') or decs.get('patch_to')
        first = call.args[0] if 'patch_to' in decs else (fn.args.posonlyargs + fn.args.args)[0].annotation
        owners = _classes(first)
        kind = 'property' if _true(call, 'as_prop') else 'classmethod' if _true(call, 'cls_method') else 'method'
    elif owner:
        kind = next((k for k in ('classmethod', 'staticmethod') if k in decs), 'method')
        if decs.keys() & {'property', 'cached_property'}: kind = 'property'
    skip = kind in ('method', 'classmethod', 'property')
    sig = f' -> {_type(fn.returns)}' if kind == 'property' and fn.returns else '' if kind == 'property' else _signature(fn, skip)
    return [Symbol(f'{o}.{fn.name}' if o else fn.name, kind, sig, ast.get_docstring(fn) or '',
                   _params(fn, comments, skip), _returns(fn, comments)) for o in owners]

def _fields(cls, comments) -> list:
    "The annotated fields of a class body, as parameters"
    res, prev = [], cls.lineno
    for o in cls.body:
        if isinstance(o, ast.AnnAssign) and isinstance(o.target, ast.Name) and not o.target.id.startswith('_') \
                and 'ClassVar' not in _src(o.annotation):
            res.append(Param(o.target.id, _type(o.annotation), _default(o.value), _comment_for(o.end_lineno, prev, comments)))
        prev = o.end_lineno
    return res

def _public(name:str) -> bool: return not name.startswith('_') or name == '__call__'

def _class(cls, comments) -> Symbol:
    init = next((o for o in cls.body if isinstance(o, _defs) and o.name == '__init__'), None)
    is_data = 'dataclass' in _decorators(cls) or any(_src(b).split('.')[-1] == 'NamedTuple' for b in cls.bases)
    params = _params(init, comments, True) if init else _fields(cls, comments)
    sig = _signature(init, True) if init else ''
    if is_data: sig = '(' + ', '.join(p.name + (f': {p.type}' if p.type else '') + (f' = {p.default}' if p.default else '') for p in params) + ')'
    sig = sig.removesuffix(' -> None')
    members = [s for o in cls.body if isinstance(o, _defs) and _public(o.name) for s in _function(o, comments, cls.name)]
    return Symbol(cls.name, 'class', sig, ast.get_docstring(cls) or '', params, bases=[_src(b) for b in cls.bases], members=members)

def _data(node, comments) -> list:
    "Module-level names"
    doc, own_line = comments.get(node.end_lineno, ('', True))
    pairs = []
    for t in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if not isinstance(t, ast.Tuple): pairs.append((t, node.value))
        elif isinstance(node.value, ast.Tuple) and len(node.value.elts) == len(t.elts): pairs += zip(t.elts, node.value.elts)
        else: pairs += [(o, None) for o in t.elts]
    value = lambda v: s if len(s := _src(v)) <= 60 else ''
    return [Symbol(t.id, 'data', value(v), '' if own_line else doc) for t, v in pairs
            if isinstance(t, ast.Name) and not t.id.startswith('_')]

def symbols(src:str) -> list[Symbol]:
    "The public symbols defined in `src`, the code of one exported cell"
    comments, out = _comments(src), []
    for node in ast.parse(src).body:
        if isinstance(node, _defs):
            out += [s for s in _function(node, comments) if _public(s.name.split('.')[-1]) and _public(s.name)]
        elif isinstance(node, ast.ClassDef) and _public(node.name): out.append(_class(node, comments))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)): out += _data(node, comments)
    return out
