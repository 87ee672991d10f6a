"Packaging for dew_nb: everything is read from settings.ini"
import re, shlex
from configparser import ConfigParser
from pathlib import Path

import setuptools

here = Path(__file__).parent
cfg = ConfigParser(delimiters=['='])
cfg.read(here/'settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
extras = {o: shlex.split(cfg[f'{o}_requirements']) for o in ('offline', 'eval', 'serve', 'files', 'c2pa', 'docs', 'dev')}
extras['all'] = sorted({r for rs in extras.values() for r in rs})
extras['ray'] = shlex.split(cfg['ray_requirements'])                        # heavy: not part of all
extras['vllm'] = shlex.split(cfg['vllm_requirements'])           # not of 'all': it has pins of its own for torch and transformers

def description() -> str:
    "The README for a package index: links and pictures, which are relative there, lead to the repository"
    base = lambda picture: f"{cfg['git_url']}/{'raw' if picture else 'blob'}/{cfg['branch']}/"
    text = (here/'README.md').read_text(encoding='utf-8')
    return re.sub(r'(!?)(\[[^\]]*\]\()(?![a-z]+:|#)', lambda m: m[1] + m[2] + base(m[1]), text)

setuptools.setup(
    name=cfg['lib_name'], version=cfg['version'], license='Apache-2.0', description=cfg['description'],
    long_description=description(), long_description_content_type='text/markdown',
    author=cfg['author'], author_email=cfg['author_email'], url=cfg['git_url'], keywords=cfg['keywords'].split(),
    classifiers=['Development Status :: 3 - Alpha', 'Intended Audience :: Developers', 'Intended Audience :: Science/Research',
                 'Programming Language :: Python :: 3', 'Topic :: Scientific/Engineering :: Artificial Intelligence'],
    project_urls={'Documentation': cfg['doc_host'] + cfg['doc_baseurl'], 'Source': cfg['git_url']},
    packages=setuptools.find_packages(include=['dew_nb', 'dew_nb.*']), include_package_data=True,
    package_data={'dew_nb': ['data/**']},
    python_requires=f">={cfg['min_python']}", install_requires=shlex.split(cfg['requirements']), extras_require=extras,
    entry_points={'console_scripts': cfg.get('console_scripts', '').split(), 'nbdev': [f"{cfg['lib_name']}={cfg['lib_name']}._modidx:d"],
                  'vllm.general_plugins': ['dew_nb=dew_nb.serving.native:register']},                # does nothing unless DEW_NATIVE is set
    zip_safe=False)
