"What the full-size studies share: keys, provenance, text files"
import gzip, hashlib, json, platform
from pathlib import Path

def study_key(i, name='study'):
    "The i-th key of a study: public by design, so that anyone can repeat it"
    from dew_nb import SecretKey
    return SecretKey(hashlib.sha256(f'dew_nb {name} key {i}'.encode()).digest())

def machine(host=None, enc=None):
    "Versions and hardware, to stand beside results"
    import torch, transformers, numpy, dew_nb
    d = dict(dew_nb=dew_nb.__version__, python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__,
             numpy=numpy.__version__, device=torch.cuda.get_device_name() if torch.cuda.is_available() else f'{platform.machine()} CPU')
    if host is not None: d |= dict(host=host.name, host_digest=host.digest)
    if enc is not None: d |= dict(encoder=enc.name, encoder_digest=enc.digest)
    return d

def write_texts(path, rows):
    "Rows as gzipped JSON lines, the same bytes for the same rows"
    with open(path, 'wb') as f, gzip.GzipFile(filename='', mode='wb', fileobj=f, mtime=0) as z:
        for r in rows: z.write((json.dumps(r)+'\n').encode())

def read_texts(path):
    "Rows of a file that `write_texts` made"
    with gzip.open(path, 'rt', encoding='utf-8') as f: return [json.loads(l) for l in f]
