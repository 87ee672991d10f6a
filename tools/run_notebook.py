"""Run notebooks from top to bottom, keep their outputs, clean them.

    python tools/run_notebook.py nbs/stats/00_null.ipynb [...] [--slow]

Cells marked `#| slow` or `#| eval: false` keep the outputs they have; --slow runs the slow ones too. Those marked
`#| long` always run. A notebook in which a cell fails is left as it was."""
import argparse, base64, io, os, re, sys, time
from pathlib import Path

from nbpages import ROOT, directives

# No progress bars in outputs, nor tqdm's wish for widgets to draw them with
ENV = dict(TQDM_DISABLE='1', OMP_WAIT_POLICY='PASSIVE', TOKENIZERS_PARALLELISM='false', PYTHONWARNINGS='ignore:IProgress not found')

def skipped(cell, slow:bool) -> bool:
    "Whether a cell is left alone"
    if cell.cell_type != 'code': return True
    opts = directives(cell.source)[0]
    return opts.get('eval', '').lower() == 'false' or ('slow' in opts and not slow)

def number_tables(nb):
    "Tables that pandas styles have a random name; give them numbers, so that the same tables are the same file"
    names = {}
    def numbered(m): return f'T_{names.setdefault(m[1], len(names)):05d}'
    for o in (o for c in nb['cells'] for o in c.get('outputs', [])):
        html = o.get('data', {}).get('text/html')
        if html is None: continue
        new = re.sub(r'\bT_([0-9a-f]{5})(?=[_" ])', numbered, ''.join(html))
        o['data']['text/html'] = new if isinstance(html, str) else new.splitlines(keepends=True)

def smaller(png:bytes) -> bytes:
    "A figure in at most 256 colours: a third of the bytes, and the same to the eye; as it is where that gains nothing"
    from PIL import Image
    picture, out = Image.open(io.BytesIO(png)), io.BytesIO()
    if picture.mode == 'P' or (picture.mode == 'RGBA' and picture.getextrema()[3][0] < 255): return png    # has a palette, or lets a page shine through
    picture.convert('RGB').quantize(256, dither=Image.Dither.NONE).save(out, 'PNG', optimize=True, dpi=picture.info.get('dpi', (100, 100)))
    return min(png, out.getvalue(), key=len)

def shrink_figures(nb):
    "Store the figures of a notebook with fewer bytes"
    for o in (o for c in nb['cells'] for o in c.get('outputs', [])):
        png = o.get('data', {}).get('image/png')
        if png is not None: o['data']['image/png'] = base64.b64encode(smaller(base64.b64decode(''.join(png)))).decode()

def execute(path:Path, slow:bool=False):
    "Run one notebook in a fresh kernel and write it back"
    import nbformat
    from nbclient import NotebookClient
    nb = nbformat.read(path, 4)
    client = NotebookClient(nb, timeout=None, kernel_name='python3', resources=dict(metadata=dict(path=str(path.parent))))
    with client.setup_kernel():
        for i, cell in enumerate(nb.cells):
            if not skipped(cell, slow): client.execute_cell(cell, i)
    number_tables(nb)
    shrink_figures(nb)
    nbformat.write(nb, path)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('notebooks', nargs='+', type=Path)
    ap.add_argument('--slow', action='store_true', help='run the cells marked slow as well')
    a = ap.parse_args()
    os.environ.update({k: v for k, v in ENV.items() if k not in os.environ})
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    from nbclient.exceptions import CellExecutionError
    from nbdev.clean import nbdev_clean
    failed = []
    for p in a.notebooks:
        start = time.time()
        try: execute(p, a.slow)
        except CellExecutionError as e: print(f'{p}: {e}', file=sys.stderr); failed.append(str(p)); continue
        nbdev_clean(str(p))
        print(f'{p}: {time.time()-start:.0f} s', flush=True)
    if failed: sys.exit('failed: ' + ', '.join(failed))

if __name__ == '__main__': main()
