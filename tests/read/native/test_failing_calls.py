"""The n-th call for memory, or read, of the compiled loop fails: no wrong value, no leak, and the next is right."""

import ctypes
import gc
import itertools
import shutil
import subprocess
import threading
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5 import H5Dataset, RayH5Error, RowReader, Windows, loader
from ray_h5.read.native import build, library
from ray_h5.read.open_file import forget_all

MEMORY, READS = range(2)
ROWS = 60
LAYOUTS = {
    "contiguous": {},
    "chunks": {"chunks": (7, 5)},
    "gzip": {"chunks": (7, 5), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunks": (7, 5), "compression": "lzf"},
    "zstd": {"chunks": (7, 5), **hdf5plugin.Zstd()},
    "lz4": {"chunks": (7, 5), **hdf5plugin.LZ4()},
    "blosc": {"chunks": (7, 5), **hdf5plugin.Blosc()},
    "parts of rows": {"chunks": (7, 2), "compression": "gzip", "shuffle": True},
    "one row a chunk": {"chunks": (1, 5), "compression": "gzip"},
}
REQUESTS = {
    "all": slice(None),
    "a range": slice(9, 33),
    "some": [2, 3, 4, 20, 41, 59],
    "one many times": [5, 5, 5, 5],
    "another order": [59, 0, 30],
}
WHOLE = ("loader", "loader of two files", "windows", "items", "another thread")
PLANS = [*itertools.product(LAYOUTS, REQUESTS), *((name, "all") for name in WHOLE)]

USUAL = {0, 12, 28}


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    compiler, target = shutil.which("cc"), tmp_path_factory.mktemp("loop") / "failing.lib"
    if compiler is None or library.compiled_loop() is None:
        pytest.skip("no C compiler")
    source = Path(__file__).with_name("failing_loop.c")
    subprocess.run([compiler, *build.FLAGS, "-o", str(target), str(source)], check=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(library, "compiled_path", lambda: target)
        library.compiled_loop.cache_clear()
        yield library.compiled_loop().library
    library.compiled_loop.cache_clear()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    found = [tmp_path_factory.mktemp("files") / f"{number}.h5" for number in range(2)]
    for path in found:
        with h5py.File(path, "w") as file:
            for name, options in LAYOUTS.items():
                file.create_dataset(name, data=np.arange(ROWS * 5, dtype="<i4").reshape(ROWS, 5), **options)
    return [str(path) for path in found]


def read(paths, plan):
    """Return the values of a plan, of files that are opened for it."""
    name, request = plan
    forget_all()
    if name in LAYOUTS:
        return RowReader(paths[0]).read([name], REQUESTS[request])[name].tobytes()
    columns = [*LAYOUTS]
    if name == "windows":
        dataset = H5Dataset(paths[0], columns=columns, windows=Windows({column: [0, 1, 2] for column in columns}))
        return b"".join(np.asarray(each).tobytes() for each in dataset[10:30].values())
    if name == "items":
        return b"".join(np.asarray(each).tobytes() for each in H5Dataset(paths, columns=columns)[17].values())
    if name == "another thread":
        return RowReader(paths[0], threads=3).read(columns)["gzip"].tobytes()
    batches = loader(paths if "two" in name else paths[:1], 16, columns=columns, shuffle=True, kept_bytes=0)
    return b"".join(np.asarray(each).tobytes() for batch in batches for each in batch.values())


def in_thread(action):
    """Return what an action returns or raises, in a thread: it has a context of its own, which ends with it."""
    found = []

    def run():
        try:
            found.append(action())
        except RayH5Error as exc:
            found.append(exc.with_traceback(None))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found, "it raised something else"
    return found[0]


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("kind", [MEMORY, READS])
@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=() if at in USUAL else pytest.mark.nightly) for at, plan in enumerate(PLANS)],
    ids=str,
)
def test_a_call_that_fails(failing, paths, plan, kind, forever):
    failing.pieces_held.restype = ctypes.c_int64
    expected = in_thread(lambda: read(paths, plan))
    assert isinstance(expected, bytes)
    gc.collect()
    gc.freeze()  # what other tests left would be looked at again after each call
    held = failing.pieces_held()
    for calls in range(1000):
        failing.fail_after(kind, ctypes.c_int64(calls), forever)
        found = in_thread(lambda: read(paths, plan))
        did = failing.heal(kind)
        assert found == expected or isinstance(found, RayH5Error), f"call {calls}"
        assert in_thread(lambda: read(paths, plan)) == expected, f"after call {calls}"
        gc.collect()
        assert failing.pieces_held() <= held, f"call {calls}"
        if not did:
            gc.unfreeze()
            return
    raise AssertionError("it does not end")
