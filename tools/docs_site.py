"""Build the docs site from the notebooks with Sphinx and MyST-NB.

Pages are made from the outputs stored in the notebooks: nothing is executed or imported here, so the build takes a minute or two.
The notebooks stay plain nbdev notebooks; the differences to MyST (callouts, options, links) are translated on a copy.

    python tools/docs_site.py [--dest _docs]"""
import argparse, base64, copy, json, os, posixpath, re, shutil, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory

import api
from nbpages import (FOLDERS, ROOT, Notebook, callouts, directives, find_notebooks, is_external, link_notebooks, map_links, map_prose,
                     settings, text)

HERE = Path(__file__).resolve().parent
MATHJAX = HERE/'vendor'/'mathjax'/'tex-svg-full.js'
ASSETS = {'.png', '.jpg', '.jpeg', '.gif', '.svg', '.webp', '.html', '.csv', '.json'}
KINDS = dict(note='note', tip='tip', warning='warning', important='important', caution='caution')
START = ['quick_start', 'which_preset', 'is_this_text_marked', 'what_the_p_value_means', 'how_it_works', 'glossary']   # the tutorials for everybody
DEVELOPMENT = {'contributing': 'CONTRIBUTING.md', 'changelog': 'CHANGELOG.md'}          # pages that are no notebooks
EXPORT, HIDDEN = {'export', 'exports'}, {'hide', 'exporti', 'default_exp'}
WIDE = 760                                              # pixels across from which a figure is unreadable when shrunk to a phone

# ---------------------------------------------------------------- what the notebooks export
class Index:
    "Every public symbol of the package, and the page that documents it"
    def __init__(self, notebooks:list, lib:str):
        self.lib, self.pages, self.symbols, self.names = lib, {n.rel: n.doc for n in notebooks}, {}, {}
        for n in notebooks:
            if n.module: self.symbols[n.rel] = self._collect(n)
        for n in notebooks:
            if n.module: self.names[self.module(n)] = self.module(n)
            for s in self.walk(n.rel): self.names.setdefault(s.name, f'{self.module(n)}.{s.name}')

    def _collect(self, n:Notebook) -> dict:
        "cell number -> symbols that are first defined there"
        found, seen = {}, set()
        for i, c in enumerate(n.cells):
            if c['cell_type'] != 'code': continue
            opts, code = directives(text(c['source']))
            if not opts.keys() & EXPORT: continue
            new = [s for s in api.symbols(code) if s.name not in seen]
            seen.update(s.name for s in new)
            found[i] = new
        return found

    def module(self, n:Notebook) -> str: return f'{self.lib}.{n.module}'
    def walk(self, rel:str):
        "All symbols of a notebook, members after their class"
        for s in (s for ss in self.symbols.get(rel, {}).values() for s in ss): yield s; yield from s.members

    def full_name(self, name:str, n:Notebook) -> str|None:
        "The qualified name of `name` as written in notebook `n`; its own module comes first"
        if any(s.name == name for s in self.walk(n.rel)): return f'{self.module(n)}.{name}'
        return self.names.get(name)

# ---------------------------------------------------------------- markdown
def _admonition(kind:str, title:str, body:str) -> str:
    "A MyST admonition"
    cls = KINDS.get(kind, 'note')
    if title: return f'::::{{admonition}} {title.strip()}\n:class: {cls}\n\n{body}\n::::'
    return f'::::{{{cls}}}\n{body}\n::::'

_code_span = re.compile(r'(?<![\[`\\}])`([A-Za-z_][\w.]*)(\(\))?`(?!`|\]\()')

def _symbol_links(md:str, n:Notebook, ix:Index) -> str:
    "Link `name` in prose to the place that documents it"
    def link(m):
        full = ix.full_name(m[1], n)
        return f'{{py:obj}}`{m[1]}{m[2] or ""} <{full}>`' if full else m[0]
    def line(s): return s if s.startswith(('#', '    ')) else _code_span.sub(link, s)
    return map_prose(md, lambda s: ''.join(map(line, s.splitlines(keepends=True))))

def _page_link(target:str, n:Notebook, ix:Index, cfg:dict) -> str:
    "A link between notebooks as a link between pages; one to another file of the repository as a link to its host"
    host = (cfg['doc_host'] + cfg['doc_baseurl']).rstrip('/') + '/'
    if target.startswith(host): target = posixpath.relpath(target[len(host):], n.group or '.')
    if is_external(target): return target
    path, _, anchor = target.partition('#')
    inside = posixpath.normpath(posixpath.join(n.group, path))
    anchor = f'#{anchor}' if anchor else ''
    pages = {**ix.pages, **{d+'.html': d for d in ix.pages.values()}}
    if inside in pages: return posixpath.relpath(pages[inside], posixpath.dirname(n.doc) or '.') + '.ipynb' + anchor
    if inside.startswith('../') or not (n.nbs/inside).exists() or (n.nbs/inside).is_dir():
        if not (n.nbs/inside).exists(): raise ValueError(f'{n.rel} links to {target}, which does not exist.')
        repo = posixpath.normpath(posixpath.join(n.nbs.name, inside))
        return f"{cfg['git_url']}/blob/{cfg['branch']}/{repo}{anchor}"
    return target

def markdown(src:str, n:Notebook, ix:Index, cfg:dict) -> str:
    "A notebook's markdown in MyST"
    md = map_prose(src, lambda s: callouts(s, _admonition))
    md = re.sub(r'(\$\$\s*)\{#(eq-[\w-]+)\}', r'\1(\2)', md)     # Quarto's equation labels and references
    md = map_prose(md, lambda s: re.sub(r'(?<![\w`])@(eq-[\w-]+)', r'{eq}`\1`', s))
    md = link_notebooks(md, lambda rel: posixpath.relpath(rel, n.group or '.') if rel in ix.pages else None)
    md = map_links(md, lambda t: _page_link(t, n, ix, cfg))
    return _symbol_links(map_prose(md, _unbroken_rows), n, ix)

# ---------------------------------------------------------------- API entries
def _cell(x:str) -> str:
    "Text for one cell of a markdown table"
    return ' '.join(x.replace('|', '\\|').split())

def _doc(x:str) -> str:
    "A docstring as markdown: `a*b` and `2**63` mean a product and a power, not emphasis"
    return re.sub(r'(?<=[\w)\]])\*{1,2}(?=[\w(\[])', lambda m: m[0].replace('*', '\\*'), x)

def param_table(s:api.Symbol) -> str:
    "The parameters of a symbol as a markdown table"
    rows = s.params + ([s.returns] if s.returns and s.returns.doc and s.kind != 'property' else [])
    code = lambda x: f'`{_cell(x)}`' if x else ''
    cols = {'Parameter': [p.name if p is s.returns else code(p.name) for p in rows], 'Type': [code(p.type.replace(' | ', '|')) for p in rows],
            'Default': [code(p.default) for p in rows], 'Meaning': [_cell(_doc(p.doc)) for p in rows]}
    if not any(cols['Meaning']): return ''                  # the signature says as much
    cols = {k: v for k, v in cols.items() if any(v)}
    line = lambda xs: '| ' + ' | '.join(xs) + ' |'
    return '\n'.join([line(cols), line(['---']*len(cols)), *map(line, zip(*cols.values()))])

def api_entry(s:api.Symbol, depth:int=0) -> str:
    "A symbol as an entry of Sphinx's Python domain: found by search, index, links and the page's contents"
    kind = 'method' if s.kind in ('classmethod', 'staticmethod') else s.kind
    opts = [f':{s.kind}:'] if kind != s.kind else []
    sig = s.sig if s.kind not in ('data', 'property') else ''
    if s.kind == 'data' and s.sig: opts.append(f':value: {json.dumps(s.sig, ensure_ascii=False)}')      # options are YAML: a value may begin with a quote
    if s.kind == 'property' and s.sig: opts.append(f':type: {s.sig.removeprefix(" -> ")}')
    bases = ', '.join(f'`{b}`' for b in s.bases if b not in ('object', 'NamedTuple'))
    body = [_doc(s.doc), f'Extends {bases}.' if bases else '', param_table(s)] + [api_entry(m, depth+1) for m in s.members]
    fence = ':' * (8 - depth)
    inner = '\n\n'.join(o for o in body if o)
    return f'{fence}{{py:{kind}}} {s.name}{sig}\n' + ''.join(o+'\n' for o in opts) + f'\n{inner}\n{fence}'

def api_page(notebooks:list, ix:Index) -> str:
    "One table a module with every public symbol"
    out = ['# API at a glance', '> Every public name, by module. `make export` writes the modules from the notebooks.']
    for n in notebooks:
        rows = [f'| {{py:obj}}`{s.name} <{ix.module(n)}.{s.name}>` | {_cell(_doc(s.summary))} |' for s in ix.walk(n.rel)]
        if rows: out.append(f'## {{doc}}`{ix.module(n)} <{n.doc}>`\n\n| Name | What it is |\n|---|---|\n' + '\n'.join(rows))
    return '\n\n'.join(out) + '\n'

# ---------------------------------------------------------------- cells
def _md_cell(src:str) -> dict: return dict(cell_type='markdown', metadata={}, source=src)

_ansi = re.compile(r'\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])')
_mimes = ('text/html', 'text/markdown', 'text/latex', 'text/plain', 'image/png', 'image/jpeg', 'image/svg+xml')

def _outputs(cell:dict) -> list:
    "The stored outputs that a page can show"
    res = []
    for o in copy.deepcopy(cell.get('outputs', [])):
        if 'text' in o: o['text'] = _ansi.sub('', text(o['text']))
        if 'data' in o:
            if 'application/vnd.jupyter.widget-view+json' in o['data']: continue
            o['data'] = {k: v for k, v in o['data'].items() if k in _mimes}
            if not o['data']: continue
        if 'execution_count' in o: o['execution_count'] = None
        res.append(o)
    return res

def _tags(opts:dict) -> list:
    "Quarto's cell options as MyST-NB's tags"
    off = lambda k: opts.get(k, '').lower() == 'false'
    rules = [(off('echo'), 'remove-input'), (off('output'), 'remove-output'), (off('include'), 'remove-cell'),
             (opts.get('code-fold', 'false') not in ('false', 'show'), 'hide-input')]
    return [tag for on, tag in rules if on]

def _printed(outputs:list) -> str:
    "All that a cell prints, as one text"
    return ''.join(text(o['text']) for o in outputs if 'text' in o) or '\n'.join(
        text(o['data']['text/plain']) for o in outputs if set(o.get('data', {})) == {'text/plain'})

def has_columns(printed:str) -> bool:
    "Whether a printed text has columns: two lines or more with a gap of blanks"
    return sum(bool(re.search(r'\S {2,}\S', o)) for o in printed.splitlines()) > 1

def is_aligned(printed:str) -> bool:
    "Whether a printed text has columns and no long lines, so that it must not be wrapped"
    return has_columns(printed) and max(map(len, printed.splitlines())) <= 160

def is_report(printed:str) -> bool:
    "Whether a printed text has columns and, beside them, sentences that must be wrapped"
    lines = [o for o in printed.splitlines() if re.search(r'\S {3,}\S', o)]
    return not is_aligned(printed) and has_columns(printed) and 60 < max(map(len, lines), default=0) <= 140

def png_width(data:str) -> int:
    "Pixels across of a picture in base64"
    return int.from_bytes(base64.b64decode(data[:32])[16:20], 'big')

def _looks(outputs:list, code:str) -> list:
    "Tags that say how a cell is laid out on a narrow screen, see dew.css"
    pictures = [text(o['data']['image/png']) for o in outputs if 'image/png' in o.get('data', {})]
    rules = [(is_aligned(_printed(outputs)), 'aligned'), (is_report(_printed(outputs)), 'columns'), (any(png_width(p) > WIDE for p in pictures), 'wide-figure'),
             (re.match(r'%%writefile \S+\.txt', code), 'prose-input')]
    return [tag for on, tag in rules if on]

_interval = re.compile(r'(?<!<small>)(\[[+−-]?\d*\.\d+%?,) (?=[+−-]?\d*\.\d+%?\])')
_span = re.compile(r'(\(\d*\.\d+–)(?=\d*\.\d+\))')

def unbroken(x:str) -> str:
    "A table's text, whose intervals like [0.1, 0.2] or (0.1–0.2) and dates do not break over lines; small ones may, in tables of many columns"
    x = _span.sub('\\1\u2060', _interval.sub('\\1\u00a0', x))
    return re.sub(r'\b(20\d\d)-(\d\d)-(\d\d)(?=\s*[|,;])', '\\1\u2011\\2\u2011\\3', x)

def _unbroken_rows(md:str) -> str:
    "Markdown, with the rows of its tables unbroken"
    return ''.join(unbroken(o) if o.startswith('|') else o for o in md.splitlines(keepends=True))

def linked(outputs:list, n:Notebook, ix:Index, cfg:dict) -> list:
    "The outputs, with links to pages in those that are markdown, and tables that break well"
    for o in outputs:
        if '<table' in (html := text(o.get('data', {}).get('text/html', ''))): o['data']['text/html'] = unbroken(html)
        if md := o.get('data', {}).get('text/markdown'): o['data']['text/markdown'] = _unbroken_rows(map_links(text(md), lambda t: _page_link(t, n, ix, cfg)))
    return outputs

def code_cell(cell:dict, opts:dict, code:str) -> dict:
    "A code cell with its outputs, its options as metadata"
    code = re.sub(r'^.*#\|\s*hide_line\s*$\n?', '', code, flags=re.M)
    tags = _tags(opts) + _looks(_outputs(cell), code)
    meta = dict(tags=tags) if tags else {}
    render = {}
    if cap := opts.get('fig-cap'): render['figure'] = dict(caption=cap, **(dict(name=opts['label']) if 'label' in opts else {}))
    if alt := opts.get('fig-alt'): render['image'] = dict(alt=alt)
    if render: meta['mystnb'] = render
    return dict(cell_type='code', metadata=meta, source=code.strip('\n'), execution_count=None, outputs=_outputs(cell))

def _source_cell(code:str) -> dict:
    "Exported source, folded"
    meta = dict(tags=['hide-input', 'api-source'], mystnb=dict(code_prompt_show='Source', code_prompt_hide='Source'))
    return dict(cell_type='code', metadata=meta, source=code.strip('\n'), execution_count=None, outputs=[])

_show_doc = re.compile(r'^\s*show_doc\(\s*([\w.]+)[^)]*\)\s*;?\s*$', re.M)

def _shown(n:Notebook) -> set:
    "The symbols that the notebook itself places with `show_doc`"
    code = (directives(text(c['source']))[1] for c in n.cells if c['cell_type'] == 'code')
    return {m[1] for src in code for m in _show_doc.finditer(src)}

def page_cells(n:Notebook, ix:Index, cfg:dict):
    "The cells of a notebook's page"
    placed, by_name = _shown(n), {s.name: s for s in ix.walk(n.rel)}
    def shown(c, opts, code):
        cell = code_cell(c, opts, code)
        return {**cell, 'outputs': linked(cell['outputs'], n, ix, cfg)}
    for i, c in enumerate(n.cells):
        src = text(c['source'])
        if not src.strip() or c['cell_type'] == 'raw': continue
        if c['cell_type'] == 'markdown': yield _md_cell(markdown(src, n, ix, cfg)); continue
        opts, code = directives(src)
        if opts.keys() & HIDDEN or 'nbdev_export(' in code: continue
        names = [m[1] for m in _show_doc.finditer(code)]
        if names and all(o in by_name for o in names):
            yield from (_md_cell(api_entry(by_name[o])) for o in names)
        elif opts.keys() & EXPORT:
            symbols = ix.symbols[n.rel].get(i, []) if n.module else []
            yield from (_md_cell(api_entry(s)) for s in symbols if s.name not in placed)
            if 'exports' in opts: yield shown(c, opts, code)
            elif re.search(r'^\s*(@|def |class |async def )', code, re.M) or symbols: yield _source_cell(code)
        else: yield shown(c, opts, code)

def _with_header(cells:list, n:Notebook, ix:Index, cfg:dict) -> list:
    "The title cell first, followed by a line that names the module and the notebook"
    at = next((i for i, c in enumerate(cells) if c['cell_type'] == 'markdown' and re.match(r'\s*# ', c['source'])), None)
    head = _md_cell(f'# {n.title}') if at is None else cells.pop(at)
    if n.rel == 'index.ipynb': return [head] + cells
    url = f"{cfg['git_url']}/blob/{cfg['branch']}/{n.nbs.name}/{n.rel}"
    line = (f'Module `{ix.module(n)}` · ' if n.module else '') + f'[notebook `{n.rel}`]({url})'
    title, _, rest = head['source'].strip().partition('\n')
    quote = re.match(r'\s*((?:>.*(?:\n|\Z))+)', rest)
    lead, rest = (quote[1], rest[quote.end():]) if quote else ('', rest)
    module = f'```{{py:module}} {ix.module(n)}\n```\n' if n.module else ''
    return [_md_cell(f'{title}\n\n{lead}\n\n{{.page-info}}\n{line}\n\n{module}\n{rest}')] + cells

def page(n:Notebook, ix:Index, cfg:dict) -> dict:
    "A notebook's page as a MyST notebook"
    kernel = dict(display_name='Python 3', language='python', name='python3')
    cells = _with_header(list(page_cells(n, ix, cfg)), n, ix, cfg)
    for i, c in enumerate(cells): c['id'] = f'c{i}'
    meta = dict(kernelspec=kernel, language_info=dict(name='python', pygments_lexer='ipython3'))
    return dict(cells=cells, metadata=meta, nbformat=4, nbformat_minor=5)

# ---------------------------------------------------------------- the site
def section(n:Notebook) -> str:
    "The section of the sidebar that a notebook stands in"
    if n.group == 'tutorials': return 'Start here' if posixpath.basename(n.doc) in START else 'Guides'
    return 'Results' if n.group == 'studies' else f'Reference: {FOLDERS[n.group]}'

def toctrees(notebooks:list, pages=()) -> str:
    "The sidebar: what to begin with, guides, results, one group a folder of modules, and development"
    groups = {'Start here': [], 'Guides': [], 'Results': [], 'Reference': ['api', 'Index <genindex>'], **{f'Reference: {o}': [] for o in FOLDERS.values()}}
    for n in notebooks:
        if n.rel != 'index.ipynb': groups[section(n)].append(n.doc)
    groups['Start here'].sort(key=lambda d: START.index(posixpath.basename(d)))
    groups['Development'] = list(pages)
    tree = lambda k, docs: '\n'.join(['```{toctree}', ':hidden:', f':caption: {k}', '', *docs, '```'])
    return '\n\n'.join(tree(k, docs) for k, docs in groups.items() if docs)

def write_pages(src:Path, root:Path=ROOT) -> list[Notebook]:
    "Write all pages and their assets to `src`"
    cfg, nbs = settings(root), root/settings(root)['nbs_path']
    notebooks = find_notebooks(nbs)
    ix = Index(notebooks, cfg['lib_name'])
    development = {k: root/f for k,f in DEVELOPMENT.items() if (root/f).exists()}
    for k,f in development.items(): (src/f'{k}.md').write_text(f.read_text(encoding='utf-8'), encoding='utf-8')
    for n in notebooks:
        nb = page(n, ix, cfg)
        if n.rel == 'index.ipynb': nb['cells'].append(dict(_md_cell(toctrees(notebooks, development)), id='toc'))
        dest = src/f'{n.doc}.ipynb'
        if dest.exists(): raise ValueError(f'Two notebooks make the page {n.doc}; rename {n.rel}.')
        dest.parent.mkdir(parents=True, exist_ok=True)
        dest.write_text(json.dumps(nb), encoding='utf-8')
    (src/'api.md').write_text(api_page(notebooks, ix), encoding='utf-8')
    for f in nbs.rglob('*'):
        if f.suffix.lower() in ASSETS and f.is_file() and not any(o.startswith(('.', '_')) for o in f.relative_to(nbs).parts):
            (src/f.relative_to(nbs)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f, src/f.relative_to(nbs))
    return notebooks

def sphinx_conf(cfg:dict) -> dict:
    "Sphinx's configuration"
    theme = dict(repository_url=cfg['git_url'], use_repository_button=True, use_download_button=False, use_fullscreen_button=False,
                 show_navbar_depth=1, max_navbar_depth=1, show_toc_level=2, home_page_in_toc=True, navbar_persistent=[], logo=dict(text=cfg['title']),
                 collapse_navbar=True)        # the sidebar shows pages alone: else Sphinx copies all headings of all pages for every page
    return dict(
        project=cfg['title'], author=cfg['author'], copyright=cfg['copyright'], version=cfg['version'], release=cfg['version'],
        html_title=cfg['title'], language='en', smartquotes=False, extensions=['myst_nb', 'sphinx_copybutton'],
        suppress_warnings=['ref.python'],             # two classes are called Scheme: a mark's parts, and a row of a comparison
        nb_execution_mode='off', nb_render_markdown_format='myst', nb_ipywidgets_js={}, nb_merge_streams=True, nb_number_source_lines=False,
        myst_enable_extensions=['dollarmath', 'amsmath', 'colon_fence', 'attrs_inline', 'attrs_block', 'deflist'],
        myst_heading_anchors=4, myst_dmath_double_inline=True, mathjax_path='tex-svg-full.js',
        mathjax3_config=dict(options=dict(enableMenu=False), svg=dict(fontCache='global')),
        add_module_names=False, python_maximum_signature_line_length=76, python_use_unqualified_type_names=True,
        toc_object_entries_show_parents='hide', copybutton_exclude='.linenos, .gp, .go',
        html_theme='sphinx_book_theme', html_theme_options=theme, html_static_path=['_static'], html_css_files=['dew.css'],
        html_search_scorer=str(HERE/'docs_static'/'scorer.js'),
        html_show_sourcelink=False, html_copy_source=False, html_show_sphinx=False, html_last_updated_fmt=None,
        html_domain_indices=False)

def run_sphinx(src:Path, dest:Path, conf:dict, verbose:bool=False, jobs:int=1) -> int:
    "Build the HTML as `sphinx-build -W --keep-going` does; its exit code, after the warnings"
    from sphinx.cmd.build import build_main
    static = src/'_static'
    static.mkdir()
    for f in [MATHJAX, *(HERE/'docs_static').iterdir()]: shutil.copy(f, static)
    (src/'conf.py').write_text('\n'.join(f'{k} = {v!r}' for k, v in conf.items()) + '\n', encoding='utf-8')
    options = ['-W', '--keep-going', '--fresh-env', '-j', str(jobs), *([] if verbose else ['-q'])]
    return build_main([*options, '-d', str(src.parent/'doctrees'), str(src), str(dest)])

_remote = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc=["\']?(?:https?:)?//[^"\'> ]+'
                     r'|<link\b(?![^>]*rel=["\']?(?:canonical|author|license))[^>]*\bhref=["\']?(?:https?:)?//[^"\'> ]+'
                     r'|url\(["\']?(?:https?:)?//[^)]+|@import\s+["\']?(?:https?:)?//\S+', re.I)

def remote_references(dest:Path) -> list[str]:
    "What the pages would fetch from the network: it should be nothing"
    files = [f for f in dest.rglob('*') if f.suffix in ('.html', '.css')]
    return [f'{f.relative_to(dest)}: {m[0]}' for f in files for m in _remote.finditer(f.read_text(encoding='utf-8'))]

def build(dest:Path, root:Path=ROOT, verbose:bool=False, jobs:int=1) -> list[str]:
    "Build the site into `dest`; the problems found"
    with TemporaryDirectory(prefix='dew_nb-docs-') as tmp:
        src, html = Path(tmp).resolve()/'src', Path(tmp).resolve()/'html'
        src.mkdir()
        notebooks = write_pages(src, root)
        code = run_sphinx(src, html, sphinx_conf(settings(root)), verbose, jobs)
        if not (html/'index.html').exists(): return ['Sphinx failed, as said above; the site is left as it was']
        shutil.rmtree(dest, ignore_errors=True)
        shutil.copytree(html, dest, ignore=shutil.ignore_patterns('.buildinfo', '_sources'))
    missing = [f'no page for {o.rel}' for o in notebooks if not (dest/f'{o.doc}.html').exists()]
    return (['warnings or errors of Sphinx, listed above'] if code else []) + missing + remote_references(dest)

def main():
    p = argparse.ArgumentParser(description='Build the docs site from the notebooks\' stored outputs')
    p.add_argument('--dest', type=Path, default=ROOT/settings()['doc_path'], help='where to write the site')
    p.add_argument('--verbose', action='store_true', help="show Sphinx's progress")
    p.add_argument('--jobs', type=int, default=1, help='processes that Sphinx may use')
    args, start = p.parse_args(), time.time()
    problems = build(args.dest.resolve(), verbose=args.verbose, jobs=args.jobs)
    for o in problems: print(f'docs: {o}', file=sys.stderr)
    if not problems: print(f'Docs built in {time.time()-start:.0f} s: {os.path.relpath(args.dest)}/index.html')
    sys.exit(bool(problems))

if __name__ == '__main__': main()
