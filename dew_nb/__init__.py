"Dual-Embedding Watermarking: a keyed mark in generated text, and a detector with p-values one can trust"
__version__ = "0.1.0"

import os as _os
_os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # before torch: its idle threads would spin, ten times as slow on a busy machine


_HOME = dict(DEW='dew', Scheme='mark.scheme', DEWConfig='mark.config', Detector='read.detection', DetectionResult='read.results', SecretKey='mark.keys', TokenTable='mark.tables',
             load_host='models.hosts', load_encoder='models.encoders', wrap_host='models.hosts', wrap_encoder='models.encoders', NullCalibration='stats.calibration',
             identify='read.identification', ScanResult='read.scan',
             register_rule='mark.protocols', register_contexts='mark.protocols')
__all__ = sorted(_HOME)

def __getattr__(name):
    "Import the public names when they are first used, so that `import dew_nb` itself loads neither torch nor transformers"
    if name not in _HOME: raise AttributeError(f"module 'dew_nb' has no attribute {name!r}")
    from importlib import import_module
    found = globals()[name] = getattr(import_module(f'dew_nb.{_HOME[name]}'), name)
    return found

def __dir__(): return sorted([*globals(), *_HOME])
