import gc

import pytest


def pytest_collection_modifyitems(items):
    "A file's tests stay on one worker (`--dist loadgroup`), for they share what its fixtures made; notebooks go one by one"
    for o in items:
        if o.path.name != 'test_notebooks.py': o.add_marker(pytest.mark.xdist_group(o.path.stem))


def pytest_collection_finish():
    "What has been imported by now stays: the garbage collector need not go through half a million objects again and again"
    gc.collect()
    gc.freeze()
