import gc


def freeze():
    "What has been imported stays: the garbage collector need not go through half a million objects again and again"
    gc.collect()
    gc.freeze()


def pytest_collection_finish(): freeze()
