"The docs builder, the README writer and the checks"
import base64, json, re, shutil, subprocess, sys
from pathlib import Path
from textwrap import dedent

import api, cells, check, docs_site, readme, run_notebook, run_tests
import pytest
from nbpages import ROOT, Notebook, callouts, directives, find_notebooks, map_links, map_prose

# ---------------------------------------------------------------- a small project to work on
def md(s): return dict(cell_type='markdown', id=f'm{abs(hash(s)) % 10**6}', metadata={}, source=s.splitlines(True))
def code(s, *outputs):
    return dict(cell_type='code', execution_count=None, id=f'c{abs(hash(s)) % 10**6}', metadata={}, outputs=list(outputs), source=s.splitlines(True))
def result(**data): return dict(output_type='execute_result', execution_count=None, metadata={}, data=data)
def plain(s): return result(**{'text/plain': [s]})

def save(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    kernel = dict(display_name='python3', language='python', name='python3')
    nb = dict(cells=list(cells), metadata=dict(kernelspec=kernel), nbformat=4, nbformat_minor=5)
    path.write_text(json.dumps(nb, sort_keys=True, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')

PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
SRC = '''#| export
def double(
    x:int|None, # what is doubled
    times:int=1 # how often
) -> int: # the result
    "Twice x, so 2*x*1"
    return x*2**times

class Box:
    "Holds a thing"
    def __init__(self,
        thing # what is held
    ): self.thing = thing
    @property
    def size(self) -> int:
        "How big"
        return 1
    def _hidden(self): pass
'''
PATCH = '''#| export
from fastcore.basics import patch
@patch(cls_method=True)
def empty(cls:Box) -> Box:
    "A box with nothing"
    return cls(None)
LIMIT = 3 # the most
'''

@pytest.fixture(scope='module')
def template(tmp_path_factory):
    "A project with two modules, a tutorial and an index, exported once"
    tmp_path = tmp_path_factory.mktemp('template')
    for f in ('settings.ini', 'pyproject.toml'): shutil.copy(ROOT/f, tmp_path)
    nbs = tmp_path/'nbs'
    save(nbs/'index.ipynb', md('# small\n> A project'), md('See `00_boxes` and [how](tutorials/01_start.ipynb#a-start).\n'),
         code('#| hide\nsecret = 1'), code('1+1', plain('2')), code('#| echo: false\ntable()', result(**{'text/markdown': ['| [b](00_boxes.ipynb) |']})),
         code('#| echo: false\n#| fig-cap: "A dot"\ndot()', result(**{'image/png': PNG, 'text/plain': ['<Figure>']})))
    save(nbs/'00_boxes.ipynb', code('#| default_exp boxes'), md('# Boxes\n> Things to put things in'),
         md('Use `double` or `Box.empty()`, but not `nothing`.\n\n::: {.callout-note}\n## Mind\nthe gap\n:::\n\n$$a = b$$'),
         code(SRC), code('double(2)', plain('4')), code(PATCH), code('#| hide\nimport nbdev; nbdev.nbdev_export()'))
    save(nbs/'tutorials'/'glossary.ipynb', md('# Words'), code('#| echo: false\ntable()', result(**{'text/markdown': ['[boxes](../00_boxes.ipynb)']})))
    save(nbs/'tutorials'/'01_start.ipynb', md('# A start'), md('Back to [boxes](../00_boxes.ipynb).'),
         code('print(1)', dict(output_type='stream', name='stdout', text=['1\n'])))
    (tmp_path/'CONTRIBUTING.md').write_text('# Contributing\n\nOne row\n')
    (tmp_path/'dew_nb').mkdir()
    (tmp_path/'dew_nb'/'__init__.py').write_text('__version__ = "0.1.0"\n')
    (tmp_path/'dew_nb'/'byhand.py').write_text('x = 1\n')
    cmd = [sys.executable, '-c', 'from nbdev.doclinks import nbdev_export; nbdev_export.__wrapped__()']
    subprocess.run(cmd, cwd=tmp_path, check=True)
    readme.write(tmp_path)
    return tmp_path

@pytest.fixture
def project(template, tmp_path):
    "A copy of it, to be changed"
    return shutil.copytree(template, tmp_path, dirs_exist_ok=True)

# ---------------------------------------------------------------- reading
def test_directives():
    opts, rest = directives('#| export\n#|eval: false\n\n#| fig-cap: "A: b"\nx = 1 #| hide_line\n')
    assert opts == {'export': '', 'eval': 'false', 'fig-cap': 'A: b'} and rest == 'x = 1 #| hide_line\n'
    assert directives('x = 1') == ({}, 'x = 1')

def test_prose_is_not_code():
    s = 'a b\n```python\na b\n```\na b\n~~~\na b\n~~~'
    assert map_prose(s, lambda o: o.replace('a', 'X')).count('X') == 2
    assert map_links('[t](a.ipynb){.x} `[t](a)`\n```\n[t](a)\n```', str.upper).startswith('[t](A.IPYNB) ')

def test_callouts():
    show = lambda k, t, b: f'<{k}|{t}|{b}>'
    assert callouts('::: {.callout-tip}\nx\n:::', show) == '<tip||x>'
    assert callouts('::: {.callout-warning title="T"}\nx\n:::', show) == '<warning|T|x>'
    assert callouts('> [!NOTE]\n> x\n> y\n\nz', show) == '<note||x\ny>\n\nz'

def test_order(project):
    assert [n.rel for n in find_notebooks(project/'nbs')] == ['index.ipynb', '00_boxes.ipynb', 'tutorials/01_start.ipynb', 'tutorials/glossary.ipynb']
    assert [n.doc for n in find_notebooks(project/'nbs')] == ['index', 'boxes', 'tutorials/start', 'tutorials/glossary']

# ---------------------------------------------------------------- API
def test_function():
    f = api.symbols(directives(SRC)[1])[0]
    assert (f.name, f.kind, f.sig) == ('double', 'function', '(x: int | None, times: int=1) -> int')
    assert [(p.name, p.type, p.default, p.doc) for p in f.params] == [
        ('x', 'int | None', '', 'what is doubled'), ('times', 'int', '1', 'how often')]
    assert f.returns.doc == 'the result'

def test_class_and_patches():
    box = api.symbols(directives(SRC)[1])[1]
    assert (box.kind, box.sig, box.params[0].doc) == ('class', '(thing)', 'what is held')
    assert [(m.name, m.kind) for m in box.members] == [('Box.size', 'property')]
    empty, limit = api.symbols(directives(PATCH)[1])
    assert (empty.name, empty.kind, empty.sig) == ('Box.empty', 'classmethod', '() -> Box')
    assert (limit.name, limit.kind, limit.sig, limit.doc) == ('LIMIT', 'data', '3', 'the most')

def test_dataclass_and_odd_signatures():
    d, f, g = api.symbols(dedent('''
        @dataclass(frozen=True)
        class D:
            "Doc"
            # above
            a: int
            b: list = field(default_factory=list) # beside
            _c: int = 0
        def f(a, /, b, *args:int, c:'D|None'=None, # last
              **kw): return 1 # not a parameter's comment
        def g(x): return x # nor this
        def _private(): pass'''))
    assert d.sig == '(a: int, b: list = list())' and [p.doc for p in d.params] == ['above', 'beside']
    assert [(p.name, p.type, p.doc) for p in f.params] == [('a', '', ''), ('b', '', ''), ('*args', 'int', ''), ('c', 'D|None', 'last'), ('**kw', '', '')]
    assert g.params[0].doc == '' and g.returns is None

def test_whole_package_is_documented():
    "Every public name of the exported modules has an entry in the docs"
    import ast
    nbs = find_notebooks(ROOT/'nbs')
    ix = docs_site.Index(nbs, 'dew_nb')
    for n in (n for n in nbs if n.module and n.rel in ix.symbols):
        path = ROOT/'dew_nb'/(n.module.replace('.', '/') + '.py')
        if not path.exists(): continue
        names = {s.name for s in ix.walk(n.rel)}
        body = ast.parse(path.read_text(encoding='utf-8')).body
        exported = next((ast.literal_eval(o.value) for o in body if isinstance(o, ast.Assign) and o.targets[0].id == '__all__'), [])
        assert set(exported) - names == set(), n.rel

# ---------------------------------------------------------------- docs
def test_site(project, tmp_path):
    dest = tmp_path/'site'
    assert docs_site.build(dest, project) == []
    boxes, index = (dest/'boxes.html').read_text(), (dest/'index.html').read_text()
    for o in ('id="dew_nb.boxes.double"', 'id="dew_nb.boxes.Box.empty"', 'what is doubled', 'note admonition', 'class="math',
              'tex-svg-full.js', 'href="#dew_nb.boxes.Box.empty"', '2*x*1'): assert o in boxes, o
    assert 'nbdev_export' not in boxes and 'secret' not in index
    captions = re.findall(r'role="heading"><span class="caption-text">([^<]+)<', index)
    assert captions == ['Start here', 'Guides', 'Reference', 'Reference: DEW', 'Development'], captions
    assert 'One row' in (dest/'contributing.html').read_text()
    assert 'href="tutorials/start.html#a-start"' in index and 'href="boxes.html"' in index
    for page in ('start', 'glossary'): assert 'href="../boxes.html"' in (dest/'tutorials'/f'{page}.html').read_text()
    assert (dest/'_static'/'tex-svg-full.js').exists() and list((dest/'_images').glob('*.png'))
    assert 'objNameMatch: 60' in (dest/'_static'/'language_data.js').read_text()      # scorer.js
    assert 'double' in (dest/'searchindex.js').read_text() and 'double' in (dest/'api.html').read_text()

def test_bad_link_is_an_error(project, tmp_path):
    save(project/'nbs'/'01_lost.ipynb', md('# Lost'), md('[x](99_nowhere.ipynb)'))
    with pytest.raises(ValueError, match='99_nowhere'): docs_site.build(tmp_path/'site', project)

def test_warning_is_a_problem(project, tmp_path, capsys):
    save(project/'nbs'/'01_warn.ipynb', md('# Warn'), md('{py:nonsense}`x`'))
    assert any('warning' in o for o in docs_site.build(tmp_path/'site', project))

def test_remote_reference_is_noticed(tmp_path):
    (tmp_path/'a.html').write_text('<a href="https://x.y">fine</a><link rel="canonical" href="https://x.y/">')
    assert docs_site.remote_references(tmp_path) == []
    (tmp_path/'a.html').write_text('<script async src="https://cdn.x/y.js"></script><link rel="stylesheet" href="//fonts.x/y.css">')
    assert len(docs_site.remote_references(tmp_path)) == 2

# ---------------------------------------------------------------- README
def test_readme(project):
    s = (project/'README.md').read_text()
    for o in ('# small', readme.NOTICE, '> A project', '[`00_boxes`](nbs/00_boxes.ipynb)', '(nbs/tutorials/01_start.ipynb#a-start)',
              '```python\n1+1\n```\n\n```\n2\n```', '![A dot](images/readme-1.png)',
              '| [b](nbs/00_boxes.ipynb) |', '/actions/workflows/ci.yml/badge.svg)', 'licence-Apache_2.0-blue', 'python-3.10+-blue'): assert o in s, o
    assert 'secret' not in s and 'dot()' not in s
    assert (project/'images'/'readme-1.png').read_bytes() == base64.b64decode(PNG)
    assert readme.differences(project) == []

def test_readme_differences(project):
    (project/'README.md').write_text('other')
    (project/'images'/'readme-9.png').write_bytes(b'')
    assert readme.differences(project) == ['README.md', 'images/readme-9.png']
    readme.write(project)
    assert readme.differences(project) == []

def test_dead_link_is_noticed(project):
    assert readme.dead_links(project) == []
    (project/'nbs'/'tutorials'/'01_start.ipynb').unlink()
    assert readme.dead_links(project) == ['nbs/tutorials/01_start.ipynb']

# ---------------------------------------------------------------- checks
def test_clean_project_passes(project):
    assert check.clean(project) == [] and check.export(project) == [] and check.in_readme(project) == []

def test_unclean_notebook_is_noticed(project):
    f = project/'nbs'/'tutorials'/'01_start.ipynb'
    nb = json.loads(f.read_text())
    nb['cells'][2]['execution_count'] = 7
    nb['cells'][2]['outputs'].append(dict(output_type='stream', name='stderr', text=['careful\n']))
    f.write_text(json.dumps(nb, sort_keys=True, indent=1) + '\n')
    was = f.read_bytes()
    assert [o.split(':')[1].split('.')[0] for o in check.clean(project)] == [' not clean', ' a stored warning or progress bar']
    assert f.read_bytes() == was

def test_stored_widgets_are_noticed(project):
    "An output that is a widget, and the state of widgets, which nbdev_clean leaves in the metadata"
    f = project/'nbs'/'tutorials'/'01_start.ipynb'
    nb = json.loads(f.read_text())
    nb['cells'][2]['outputs'].append(dict(output_type='display_data', metadata={}, data={'application/vnd.jupyter.widget-view+json': {}}))
    nb['metadata']['widgets'] = {'application/vnd.jupyter.widget-state+json': {}}
    f.write_text(json.dumps(nb, sort_keys=True, indent=1) + '\n')
    said = ' '.join(check.clean(project))
    assert 'a stored widget' in said and 'in its metadata' in said

def test_module_out_of_sync_is_noticed(project):
    lib = project/'dew_nb'
    (lib/'boxes.py').write_text((lib/'boxes.py').read_text() + '# edited\n')
    (lib/'gone.py').write_text('# AUTOGENERATED! DO NOT EDIT! File to edit: ../nbs/07_gone.ipynb.\n')
    was = {p: p.read_bytes() for p in project.rglob('*') if p.is_file()}
    assert [' '.join(o.split()[:3]) for o in check.export(project)] == ['dew_nb/boxes.py differs from', 'dew_nb/gone.py has no']
    assert {p: p.read_bytes() for p in project.rglob('*') if p.is_file()} == was

# ---------------------------------------------------------------- how notebooks are cut
def test_cut(project):
    "Lines without directives, definitions of exported cells, and whether an example comes next"
    cut = cells.measure(Notebook(project/'nbs'/'00_boxes.ipynb', project/'nbs'))
    assert (cut.code, cut.exported, cut.definitions, cut.followed) == ([17, 1, 6], [17, 6], [2, 1], [True, False])
    assert cut.row('boxes').split() == ['boxes', '3', '6', '11.5', '1.50', '0', '50%', f'{100*cut.prose/(cut.prose+cut.letters):.0f}%']

def test_long_cells_are_noticed(project, capsys):
    "By the table with --check, and by the check that `make test` runs"
    with pytest.raises(SystemExit) as e: cells.main(['--check'], project)
    assert e.value.code == 0
    lines = lambda n: code('#| slow\n\n' + '\n'.join(f'x{i} = {i}' for i in range(n)) + '\n')
    save(project/'nbs'/'01_long.ipynb', code('#| default_exp long'), md('# Long\n' + 'a line\n'*40), lines(30), lines(31), code('1+1', plain('2')))
    said = 'cell 3 has 31 lines, at most 30 are wanted: split it'
    assert cells.too_long(Notebook(project/'nbs'/'01_long.ipynb', project/'nbs')) == [said]
    with pytest.raises(SystemExit) as e: cells.main(['--check'], project)
    assert e.value.code == 1 and capsys.readouterr().err == f'01_long.ipynb: {said}\n'
    assert [o for o in check.clean(project) if 'lines' in o] == [f'01_long.ipynb: {said}']

# ---------------------------------------------------------------- the runner of all checks
def test_steps(monkeypatch, capsys):
    "Commands one after the other, each with what it says; a failure does not stop the rest and decides the exit code"
    busy = 'import subprocess, sys; subprocess.run([sys.executable, "-c", "sum(range(10**7))"]); print("out"); print("err", file=sys.stderr)'
    say = lambda code: ('What it does', [sys.executable, '-c', code])
    monkeypatch.setattr(run_tests, 'STEPS', dict(good=say(busy), bad=say('import sys; sys.exit(3)'), ill=say('import os; os.kill(os.getpid(), 9)'),
                                                 pytest=say('print("..\\n7 passed, 2 skipped in 3.10s")'), docs=say('import sys; print("beside"); sys.exit(1)')))
    monkeypatch.setattr(sys, 'argv', ['run_tests.py'])
    with pytest.raises(SystemExit) as e: run_tests.main()
    out = capsys.readouterr().out
    assert e.value.code and {'out', 'err', 'beside'} <= set(out.split()) and out.endswith('\n8 passed, 3 failed, 2 skipped\n')
    rows = [o.split() for o in out.splitlines() if 's of work' in o]
    assert [r[:2] for r in rows] == [['ok', 'good'], ['FAIL', 'bad'], ['FAIL', 'ill'], ['ok', 'pytest'], ['FAIL', 'docs']]
    monkeypatch.setattr(sys, 'argv', ['run_tests.py', 'good'])
    with pytest.raises(SystemExit) as e: run_tests.main()
    assert not e.value.code and capsys.readouterr().out.endswith('\n1 passed, 0 failed\n')
    monkeypatch.setattr(sys, 'argv', ['run_tests.py', 'nothing'])
    with pytest.raises(SystemExit, match='Unknown step: nothing'): run_tests.main()

def test_tests_are_counted():
    "By what pytest says in its last line; one that ends badly without a failed test has failed"
    assert run_tests.counted(True, '12 passed, 2 skipped in 3.10s') == dict(passed=12, failed=0, skipped=2)
    assert run_tests.counted(False, '1 failed, 3 passed, 1 error in 3.1s') == run_tests.counted(False, '3 passed, 2 errors in 1s') == dict(passed=3, failed=2, skipped=0)
    assert run_tests.counted(False, '3 passed in 1s') == run_tests.counted(False, 'Fatal') == dict(passed=0, failed=1)

def test_notebooks_are_tests(tmp_path):
    "Slow and long cells are left out, and run when asked for; a cell that fails is shown, and the next notebook has nothing of the last one"
    for o in ('settings.ini', 'pyproject.toml'): shutil.copy(ROOT/o, tmp_path)
    for o in ('tests/test_notebooks.py', 'tools/nbpages.py'):
        (tmp_path/o).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/o, tmp_path/o)
    save(tmp_path/'nbs'/'00_good.ipynb', code('import os\nx = 1\nos.environ["LEFT"] = "1"'),
         code('class Big:\n    path = os.path.abspath("gone")\n    def __del__(self): open(self.path, "w").close()\nbig = Big()'), code('#| slow\n1/0'), code('#| eval: false\n1/0'), code('#| hide\n#| long\n1/0'))
    save(tmp_path/'nbs'/'01_bad.ipynb', code('import os\nassert "x" not in globals() and "LEFT" not in os.environ and os.path.exists("gone")'), code('y = "#| long"'), code('y/0'))
    def run(*args): return subprocess.run([sys.executable, '-m', 'pytest', '-q', '-rA', *args], cwd=tmp_path, capture_output=True, text=True).stdout
    quick, long = run(), run('-m', 'long')
    assert 'PASSED tests/test_notebooks.py::test_notebook[00_good.ipynb]' in quick and 'FAILED tests/test_notebooks.py::test_notebook[01_bad.ipynb]' in quick, quick
    assert 'TypeError: unsupported operand' in quick and '1 failed, 1 passed' in quick
    assert '1 failed, 2 deselected' in long and 'ZeroDivisionError' in long and 'test_long_cells[00_good.ipynb]' in long, long

def test_tables_do_not_break_within_intervals_and_dates():
    from docs_site import unbroken
    assert unbroken('<td>.83 [.80, +.85]</td><td>1.00 (0.98–1.08)</td>') == '<td>.83 [.80,\u00a0+.85]</td><td>1.00 (0.98–\u20601.08)</td>'
    assert unbroken('<small>[.80, .85]</small>') == '<small>[.80, .85]</small>'
    assert unbroken('| a [1, 2] | 2026-11-17 |') == '| a [1, 2] | 2026\u201111\u201117 |'

def test_layout_of_a_cell():
    "Columns and wide pictures are known, so that a phone scrolls them; prose is wrapped"
    import base64, struct
    from docs_site import code_cell, is_aligned, is_report, png_width
    table = 'text        verdict\na.txt       marked\n'
    assert is_aligned(table) and not is_aligned('The old harbour.  It was quiet.') and not is_aligned('') and not is_aligned(table + 'x'*200)
    report = f"{'text':40}{'verdict':30}p\n{'a.txt':40}{'marked':30}6e-19\n"
    assert is_report(report + 'Words '*40) and not is_report(report) and not is_report(table + 'x'*200)
    png = lambda w: base64.b64encode(b'\x89PNG\r\n\x1a\n' + struct.pack('>I4sII', 13, b'IHDR', w, 9)).decode()
    assert [png_width(png(w)) for w in (600, 1300)] == [600, 1300]
    cell = lambda *outputs, code='x': code_cell(dict(outputs=list(outputs)), {}, code)['metadata'].get('tags')
    picture = lambda w: dict(output_type='display_data', data={'image/png': png(w)}, metadata={})
    assert (cell(picture(600)), cell(picture(1300))) == (None, ['wide-figure'])
    assert cell(dict(output_type='stream', name='stdout', text=table)) == ['aligned']
    assert cell(code='%%writefile letter.txt\nDear all') == ['prose-input'] and cell(code='%%writefile log.jsonl\n{}') is None

def test_styled_tables_are_numbered():
    "pandas names a styled table at random: two runs of one page give the same file, and nothing else changes"
    def page(*names):
        table = '<style>#T_{0}_row0_col0 {{}}</style>\n<table id="T_{0}"><td id="T_{0}_row0_col0">T_abcdex</td></table>'
        nb = dict(cells=[md('T_abcde stays'), *(code('x', result(**{'text/html': table.format(n).splitlines(True)})) for n in names)])
        run_notebook.number_tables(nb)
        return nb['cells']
    one = page('fd4bb', '1d380')
    html = [''.join(c['outputs'][0]['data']['text/html']) for c in one[1:]]
    assert html[0] == '<style>#T_00000_row0_col0 {}</style>\n<table id="T_00000"><td id="T_00000_row0_col0">T_abcdex</td></table>'
    assert html[1] == html[0].replace('T_00000', 'T_00001') and one[0]['source'] == ['T_abcde stays']
    assert one == page('00001', 'abcde') == page('00000', '00001')

def test_figures_are_stored_small():
    "A figure keeps its size and its look in a third of the bytes; one with transparency stays as it is"
    import base64, io
    from matplotlib.figure import Figure
    from PIL import Image, ImageChops
    def drawn(**how):
        fig, file = Figure(figsize=(5, 4)), io.BytesIO()
        fig.subplots().plot([1, 3, 2], 'o-')
        fig.savefig(file, **how)
        return file.getvalue()
    nb = dict(cells=[code('x', result(**{'image/png': base64.b64encode(drawn()).decode()})), md('prose')])
    run_notebook.shrink_figures(nb)
    small = base64.b64decode(nb['cells'][0]['outputs'][0]['data']['image/png'])
    a, b = (Image.open(io.BytesIO(x)).convert('RGB') for x in (drawn(), small))
    assert len(small) < len(drawn())/2 and a.size == b.size and max(hi for _,hi in ImageChops.difference(a, b).getextrema()) < 24
    assert run_notebook.smaller(small) == small
    assert run_notebook.smaller(drawn(transparent=True)) == drawn(transparent=True)
