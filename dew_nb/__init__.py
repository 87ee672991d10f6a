"Dual-Embedding Watermarking: a keyed mark in generated text, and a detector with p-values one can trust"
__version__ = "0.1.0"

_HOME = dict(DEW='insertion', DEWConfig='scheme', Detector='detection', DetectionResult='detection', SecretKey='keys', TokenTable='tables',
             load_host='hosts', load_encoder='hosts', wrap_host='hosts', wrap_encoder='hosts', NullCalibration='calibration', identify='scan', ScanResult='scan')
__all__ = sorted(_HOME)

def __getattr__(name):
    "Import the public names when they are first used, so that `import dew_nb` itself loads neither torch nor transformers"
    if name not in _HOME: raise AttributeError(f"module 'dew_nb' has no attribute {name!r}")
    from importlib import import_module
    if name in ('DEW', 'Detector'):                            # what later notebooks add to them: .detector, .scan, .calibrated
        for m in ('detection', 'scan', 'calibration'): import_module(f'dew_nb.{m}')
    return getattr(import_module(f'dew_nb.{_HOME[name]}'), name)

def __dir__(): return sorted([*globals(), *_HOME])
