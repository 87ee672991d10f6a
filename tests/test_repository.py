"What is committed: in sync, and free of what belongs to one machine"
import gzip, lzma, json, re, subprocess
from pathlib import Path

import check, readme
import pytest
from nbpages import FOLDERS, ROOT, find_notebooks, settings, text

def tracked():
    "The files of the project; from git where there is one, else all that are not ignored by name"
    r = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True)
    if r.returncode == 0: return [ROOT/o for o in r.stdout.split('\0') if o and (ROOT/o).is_file()]
    skip = {'.venv', '.venv-serve', '.git', '_docs', 'build', 'dist', '__pycache__', '.pytest_cache'}
    return [p for p in ROOT.rglob('*') if p.is_file() and not skip & set(p.relative_to(ROOT).parts)]

def readable(p:Path) -> str:
    "The text of a file, of a notebook without its images; nothing for binary files and vendored code"
    if 'vendor' in p.parts or {*p.suffixes} & {'.png', '.jpg', '.safetensors', '.parquet'}: return ''
    if p.suffix in ('.gz', '.xz'): return {'.gz': gzip, '.xz': lzma}[p.suffix].decompress(p.read_bytes()).decode()
    s = p.read_text(encoding='utf-8')
    if p.suffix != '.ipynb': return s
    cells = json.loads(s)['cells']
    outs = [o for c in cells for o in c.get('outputs', [])]
    said = [text(o.get('text', '')) for o in outs] + [text(v) for o in outs for k, v in o.get('data', {}).items() if k.startswith('text/')]
    return '\n'.join([text(c['source']) for c in cells] + said)

def test_no_private_path():
    "No tracked file names a folder of somebody's machine"
    texts = {str(p.relative_to(ROOT)): readable(p) for p in tracked() if p != Path(__file__).resolve()}
    bad = [f'{f}: {m[0]}' for f, s in texts.items() for m in check.PRIVATE.finditer(s)]
    home = str(Path.home()) + '/'
    assert bad + [f'{f}: {home}' for f, s in texts.items() if len(home) > 3 and home in s] == []

def test_private_path_is_noticed():
    for o in ('/home/ann/x.txt', 'File "/root/.cache/y"', '/Users/ann/z', "'/tmp/abc'"): assert check.PRIVATE.search(o), o
    for o in ('https://a.b/home/ann/x', 'nbs/tmp/x', '/usr/bin/env', 'and/or', '~/work/x'): assert not check.PRIVATE.search(o), o

UNLISTED = re.compile(r"""pip install ['"]?dew_nb""")

def test_nobody_is_sent_to_an_index():
    "The package is on none: pages and messages name a clone, or the repository"
    texts = {str(p.relative_to(ROOT)): readable(p) for p in tracked() if p.suffix in ('.ipynb', '.py', '.md') and p != Path(__file__).resolve()}
    assert [f for f,s in texts.items() if UNLISTED.search(s)] == []
    assert UNLISTED.search("pip install 'dew_nb[eval]'") and not UNLISTED.search('pip install ".[eval]"')

def test_readme_in_sync(): assert readme.differences() == []

def test_readme_is_short():
    "Read in two minutes: at most 1,000 words, one table, and on the first screen the picture and both commands"
    s = (ROOT/'README.md').read_text(encoding='utf-8')
    assert len(s.split()) <= 1000 and len(re.findall(r'^\|---', s, re.M)) == 1
    top = '\n'.join(s.splitlines()[:25])
    for o in ('images/readme-1.png', 'make demo', 'make test'): assert o in top, o
    assert [name for name in settings() if name.endswith('_requirements') and f"`{name.removesuffix('_requirements')}`" not in s] == []

def test_notebook_pages_are_distinct():
    docs = [n.doc for n in find_notebooks(ROOT/settings()['nbs_path'])]
    assert len(docs) == len(set(docs))

@pytest.mark.parametrize('name', ['LICENSE', 'CHANGELOG.md', 'CONTRIBUTING.md', 'CITATION.cff', '.ci/run'])
def test_files_stand(name): assert (ROOT/name).stat().st_size > 0

def test_versions_agree():
    v = settings()['version']
    assert f'version: {v}\n' in (ROOT/'CITATION.cff').read_text(encoding='utf-8')
    assert f'__version__ = "{v}"' in (ROOT/'dew_nb/__init__.py').read_text(encoding='utf-8')
    assert v in (ROOT/'CHANGELOG.md').read_text(encoding='utf-8')

def test_continuous_integration_names_files_that_are_there():
    "What the workflows hash, run or read; a gone name would only make a stale cache"
    for f in (ROOT/'.github'/'workflows').glob('*.yml'):
        text = f.read_text(encoding='utf-8')
        named = re.findall(r"hashFiles\('([^']+)'\)", text) + re.findall(r'cache-dependency-path: (\S+)', text) + re.findall(r'run: (\.\S+)', text)
        for name in named: assert any(p.is_file() for p in ROOT.glob(name)), f'{f.name}: {name}'
    assert "hashFiles('nbs/" in (ROOT/'.github/workflows/ci.yml').read_text(encoding='utf-8')

COMMAND = re.compile(r'\bpython3? ((?:nbs|tools|tests)/[\w/]+\.py)')

def test_commands_name_scripts_that_are_there():
    "On pages, in the code, and in what studies have stored"
    kept = '.ipynb', '.py', '.md', '.json', '.toml', '.yml'
    texts = {str(p.relative_to(ROOT)): readable(p) for p in tracked() if p.suffix in kept or p.name == 'Makefile'}
    named = {(f, m[1]) for f,s in texts.items() for m in COMMAND.finditer(s)}
    assert len(named) > 100 and [o for o in named if not (ROOT/o[1]).is_file()] == []
    assert [f for f,s in texts.items() if 'tools/study_' in s and ROOT/f != Path(__file__).resolve()] == []

def test_contributing_knows_every_folder():
    "Each folder of modules stands in the table, in the order in which they may use each other, and no other"
    said = re.findall(r'^\| `(\w+|dew\.ipynb)` \|', (ROOT/'CONTRIBUTING.md').read_text(encoding='utf-8'), re.M)
    there = {p.name for p in (ROOT/'nbs').iterdir() if p.is_dir() and p.name[0] not in '_.'} - {'tutorials', 'studies'}
    assert set(said) == there | {'dew.ipynb'} and len(said) == len(set(said))
    assert said == list(dict.fromkeys(g.partition('/')[0] or 'dew.ipynb' for g in FOLDERS))

# The glossary of our style: words of our own on the left of it, for which the field has words
OURS = re.compile(r"\b(found|accus\w*|innocen\w*|surer|everyday sampler|shy|timid|safe side|blanks|doors?|lumps?|said alike|dear(?:er)?|prices?|thie(?:f|ves)"
                  r"|(?<!Zipf's )laws?)\b", re.I)
LABEL = re.compile(r"""\b(?:title|suptitle|xlabel|ylabel|label|colorbar_label)\s*[=(]\s*f?(['"])(.*?)\1""")
QUOTED = re.compile(r'`[^`]*`|\]\([^)]*\)')               # names of things, and where links lead

def rows(md:str) -> list[str]:
    "The rows of markdown tables"
    return [l for l in md.splitlines() if l.startswith('|')]

def said_on(cells:list) -> list[str]:
    "Headings, the line below the title, tables, and titles, axes, legends and captions of figures of a page"
    found = []
    for c in cells:
        s = text(c['source'])
        if c['cell_type'] == 'markdown': found += rows(s) + re.findall(r'^(?:#+|>) .*', s, re.M); continue
        found += [m[2] for m in LABEL.finditer(s)] + re.findall(r'#\|\s*fig-(?:cap|alt):(.*)', s)
        for o in c.get('outputs', []):
            data = o.get('data', {})
            found += rows(text(data.get('text/markdown', '')))
            found += re.findall(r'<t[hd]\b[^>]*>(.*?)</t[hd]>', text(data.get('text/html', '')), re.S)
    return [QUOTED.sub('', s) for s in found]

PAGES = find_notebooks(ROOT/settings()['nbs_path'])

@pytest.mark.parametrize('n', PAGES, ids=lambda n: n.rel)
def test_tables_and_figures_use_the_words_of_the_field(n):
    assert [(m[0], s) for s in said_on(n.cells) for m in OURS.finditer(s)] == []

def test_own_words_are_noticed():
    md = lambda s: dict(cell_type='markdown', source=s)
    code = lambda s, **data: dict(cell_type='code', source=s, outputs=[dict(data=data)])
    for c in (md('## Who is accused'), md('# Title\n\n> Against the law'), md('| scheme | innocents |\n|---|---|'), md('| scheme |\n|---|\n| timid |'), code("ax.set(ylabel='found at 1%')"),
              code("ax.plot(x, label='Beta law')"), code('#| fig-alt: a dear mark'), code('t', **{'text/html': '<table><thead><tr><th>price</th></tr></thead></table>'}),
              code('t', **{'text/html': '<tbody><tr><td>thief</td></tr></tbody>'}), code('t', **{'text/markdown': '| blanks |\n|---|'})):
        assert any(OURS.search(s) for s in said_on([c])), c
    for c in (md("found in prose, `| found |`"), md("## Zipf's law"), md('| `found` | [here](found.ipynb) |\n|---|---|'), code("x = d['found']", **{'text/html': '<tr><th class="blank"> </th></tr>'})):
        assert not any(OURS.search(s) for s in said_on([c])), c
