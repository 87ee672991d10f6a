"""vLLM for a GPU machine that can install nothing: one folder for PYTHONPATH, packed in parts.

    python tools/serve_bundle.py OUT --have pip_list.txt [--vllm 0.26.0] [--python 3.12] [--part 45]
    cat vllm.tgz.* | tar xz -C vl && PYTHONPATH=.:vl python nbs/studies/serving.py ...       (there)

Takes the x86-64 wheel of a release, which must be the one for the torch of that machine (0.26 for torch 2.11, 0.27 and later for 2.13), without what a
dense model in bfloat16 on Hopper does not use (FlashAttention 2, experts, MLA, FP4 and FP8 kernels, the Rust front end), and the packages it imports that
`pip list` of the machine's Python, given with --have, does not name. Set VLLM_USE_DEEP_GEMM=0 and VLLM_USE_FLASHINFER_SAMPLER=0 there. Releases before
0.31 run custom processors in the V1 model runner only."""
import argparse, gzip, re, shutil, subprocess, sys, tarfile
from pathlib import Path

TAGS = [f'manylinux_2_{n}_x86_64' for n in (35, 34, 31, 28, 27, 26, 24, 17, 12, 5)] + ['manylinux2014_x86_64', 'manylinux1_x86_64', 'linux_x86_64', 'any']
WANTED = """regex cachetools psutil sentencepiece requests tqdm blake3 py-cpuinfo protobuf fastapi<0.137 uvicorn uvloop httptools websockets python-multipart
email-validator starlette aiohttp openai pydantic prometheus_client pillow prometheus-fastapi-instrumentator tiktoken lm-format-enforcer==0.11.3
llguidance<1.8 outlines_core==0.2.14 lark==1.2.2 partial-json-parser jsonschema pyzmq msgspec pyyaml six einops depyf==0.20.0 cloudpickle watchfiles
python-json-logger pybase64 cbor2 ijson setproctitle mcp apache-tvm-ffi==0.1.10 opentelemetry-sdk opentelemetry-api opentelemetry-exporter-otlp
opentelemetry-semantic-conventions-ai nvtx pydantic-extra-types pycountry""".split()
ALONE = ['xgrammar==0.2.1', 'mistral_common', 'compressed-tensors==0.17.0', 'openai-harmony', 'loguru', 'nvidia-ml-py']     # without what they require
UNUSED = '_vllm_fa2_C', '_moe_C', '_qutlass_C', '_flashmla', 'vllm-rs', 'fmha_sm100/', 'libxgrammar.a', 'pycountry/locales/', 'mistral_common/data/', '/include/'

def pip(*args): subprocess.run([sys.executable, '-m', 'pip', '--disable-pip-version-check', '--quiet', *args], check=True)

def plain(name:str) -> str: return re.sub(r'[-_.]+', '-', name).lower()

def needless(path:str) -> bool:
    "Whether a file of the folder is not used by a dense model"
    native = path.endswith('.so') or not path.endswith('.py')
    return any(u in path for u in UNUSED) and native or 'deep_gemm/' in path and native or '__pycache__' in path or path.endswith('.pyi')

def leave_to(machine:set, folder:Path):
    "Remove packages that the machine has"
    for info in folder.glob('*.dist-info'):
        if plain(re.sub(r'-[^-]*\.dist-info$', '', info.name)) not in machine: continue
        for line in (info/'RECORD').read_text().splitlines():
            f = folder/line.split(',')[0]
            if '..' not in line and f.is_file(): f.unlink()
        shutil.rmtree(info, ignore_errors=True)

class Parts:
    "A file that is cut into parts as it is written"
    def __init__(self, path:Path, size:int): self.path, self.size, self.n, self.room, self.f = path, size, 0, 0, None
    def write(self, b:bytes):
        b = memoryview(b)
        while b:
            if not self.room:
                if self.f: self.f.close()
                self.f, self.room, self.n = open(f'{self.path}.{self.n:02d}', 'wb'), self.size, self.n + 1
            done = self.f.write(b[:self.room])
            self.room, b = self.room - done, b[done:]
    def flush(self): pass
    def close(self): self.f.close()

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('out', type=Path, help='folder for the parts')
    ap.add_argument('--have', type=Path, required=True, help="what `pip list` says on the machine")
    ap.add_argument('--vllm', default='0.26.0')
    ap.add_argument('--python', default='3.12', help='of the machine')
    ap.add_argument('--part', type=int, default=45, help='megabytes of a part')
    a = ap.parse_args()
    folder = a.out/'folder'
    shutil.rmtree(folder, ignore_errors=True)
    target = ['--target', folder, '--only-binary', ':all:', '--python-version', a.python, *(x for t in TAGS for x in ('--platform', t))]
    pip('install', *target, *WANTED)
    pip('install', *target, '--no-deps', '--upgrade', f'vllm=={a.vllm}', *ALONE)
    leave_to({plain(line.split()[0]) for line in a.have.read_text().splitlines() if line.strip()}, folder)
    packed = Parts(a.out/'vllm.tgz', a.part*10**6)
    with gzip.GzipFile(fileobj=packed, mode='wb', compresslevel=4) as f, tarfile.open(fileobj=f, mode='w|') as tar:
        for path in sorted(p for p in folder.rglob('*') if p.is_file()):
            name = str(path.relative_to(folder))
            if not needless(name) and not name.startswith('bin/'): tar.add(path, name)
    packed.close()
    print(f'{packed.n} parts in {a.out}')

if __name__ == '__main__': main()
