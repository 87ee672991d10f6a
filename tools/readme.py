"""Write README.md from nbs/index.ipynb: its prose, its code and its stored outputs. Nothing is executed.

    python tools/readme.py           write README.md and the figures in images/
    python tools/readme.py --check   write nothing, fail when they differ"""
import argparse, base64, posixpath, re, sys
from pathlib import Path

from nbpages import ROOT, Notebook, callouts, directives, is_external, link_notebooks, map_links, map_prose, settings, text

NOTICE = '<!-- Written from nbs/index.ipynb by tools/readme.py: edit the notebook, not this file. -->'
IMAGES = 'images'
HIDDEN = {'hide', 'export', 'exporti', 'default_exp'}

LICENCES = {'apache2': 'Apache_2.0'}

def badges(cfg:dict) -> str:
    "Whether the tests pass, the licence and the Python; for the code host alone, since pages fetch nothing from elsewhere"
    url, shield = cfg['git_url'], 'https://img.shields.io/badge'
    return ' '.join([f'[![CI]({url}/actions/workflows/ci.yml/badge.svg)]({url}/actions/workflows/ci.yml)',
        f"[![Licence]({shield}/licence-{LICENCES.get(cfg['license'], cfg['license'])}-blue)]({url}/blob/{cfg['branch']}/LICENSE)",
        f"[![Python]({shield}/python-{cfg['min_python']}+-blue)]({url}/blob/{cfg['branch']}/settings.ini)"])

def _alert(kind:str, title:str, body:str) -> str:
    "A callout as the code host shows it"
    kind = kind.upper() if kind in ('note', 'tip', 'warning', 'important', 'caution') else 'NOTE'
    lines = ([f'**{title.strip()}**', ''] if title else []) + body.splitlines()
    return '\n'.join([f'> [!{kind}]', *(f'> {o}'.rstrip() for o in lines)])

def markdown(src:str, nbs:str) -> str:
    "The notebook's markdown, with links that hold from the repository's root"
    md = link_notebooks(map_prose(src, lambda s: callouts(s, _alert)), lambda rel: rel)
    return map_links(md, lambda t: t if is_external(t) else posixpath.normpath(posixpath.join(nbs, t)))

def _fenced(s:str, lang:str='') -> str:
    fence = '`' * max(3, 1 + max((len(m) for m in re.findall(r'`{3,}', s)), default=0))
    return f'{fence}{lang}\n{s.rstrip()}\n{fence}'

def output(o:dict, figures:dict, nbs:str) -> str:
    "A stored output as markdown; a figure goes to `figures` (name -> bytes)"
    data = o.get('data', {})
    if png := data.get('image/png'):
        name = f'{IMAGES}/readme-{len(figures)+1}.png'
        figures[name] = base64.b64decode(text(png))
        return f'![Figure]({name})'
    if 'text/markdown' in data: return markdown(text(data['text/markdown']), nbs)
    plain = text(o.get('text') or data.get('text/plain') or '')
    return _fenced(plain) if plain.strip() and o.get('name') != 'stderr' else ''

def code(cell:dict, figures:dict, nbs:str):
    "A code cell and its outputs as pieces of markdown"
    opts, src = directives(text(cell['source']))
    if opts.keys() & HIDDEN or opts.get('include') == 'false': return
    if opts.get('echo') != 'false' and src.strip(): yield _fenced(src.strip('\n'), 'python')
    if opts.get('output') == 'false': return
    for o in cell.get('outputs', []):
        piece = output(o, figures, nbs)
        if cap := opts.get('fig-alt') or opts.get('fig-cap'): piece = piece.replace('![Figure]', f'![{cap}]')
        if piece: yield piece

def render(root:Path=ROOT) -> dict:
    "What the README and its figures should hold: path -> bytes"
    cfg, figures = settings(root), {}
    n = Notebook(root/cfg['nbs_path']/cfg['readme_nb'], root/cfg['nbs_path'])
    out = []
    for c in n.cells:
        src = text(c['source'])
        if c['cell_type'] == 'markdown': out.append(markdown(src, cfg['nbs_path']).strip())
        elif c['cell_type'] == 'code': out += code(c, figures, cfg['nbs_path'])
    title, _, rest = out[0].partition('\n')
    out[0] = f'{title}\n\n{NOTICE}\n\n{badges(cfg)}\n\n{rest.strip()}'.strip()
    return {'README.md': ('\n\n'.join(o for o in out if o) + '\n').encode(), **figures}

def differences(root:Path=ROOT) -> list[str]:
    "Files that are not as the notebook has them"
    want = render(root)
    bad = [f for f, b in want.items() if not (root/f).exists() or (root/f).read_bytes() != b]
    stale = [f'{IMAGES}/{f.name}' for f in sorted((root/IMAGES).glob('readme-*.png')) if f'{IMAGES}/{f.name}' not in want]
    return bad + stale

def dead_links(root:Path=ROOT) -> list[str]:
    "Links of the README to files that are not there"
    found = []
    map_links(render(root)['README.md'].decode(), lambda t: found.append(t) or t)
    files = {t.partition('#')[0] for t in found if not is_external(t)} - {f for f in render(root)}
    return sorted(f for f in files if not (root/f).exists())

def write(root:Path=ROOT):
    "Write the README and its figures, remove figures that are no longer used"
    want = render(root)
    for f in differences(root):
        if f not in want: (root/f).unlink(); continue
        (root/f).parent.mkdir(exist_ok=True)
        (root/f).write_bytes(want[f])

def main():
    p = argparse.ArgumentParser(description='Write README.md from the index notebook')
    p.add_argument('--check', action='store_true', help='write nothing; fail when README.md differs from the notebook')
    if not p.parse_args().check: write()
    elif bad := differences(): sys.exit(f'Not as nbs/index.ipynb has them: {", ".join(bad)}. Run: make readme')

if __name__ == '__main__': main()
