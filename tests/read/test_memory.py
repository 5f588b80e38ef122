"""A read takes little more memory than what it returns."""

import tracemalloc

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5 import RowReader
from tests.hdf5.h5kit import assert_same, by_h5py, run_python

CHUNK_ROWS, CHUNKS = 128, 16
ROW_SHAPE = (3, 64, 64)

PIPELINES = {
    "none": {},
    "gzip, shuffle": {"compression": "gzip", "compression_opts": 1, "shuffle": True},
    "lzf, shuffle, fletcher32": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    "blosc": hdf5plugin.Blosc(clevel=1),
    "bitshuffle": hdf5plugin.Bitshuffle(),
    "szip": {"compression": "szip", "compression_opts": ("nn", 8)},
    "blosc2, through h5py": hdf5plugin.Blosc2(clevel=1),
}

MEASURE = r"""
import os, re, sys
import numpy as np
import pyarrow  # whose memory pool large reads use
from ray_h5 import RowReader

def resident(key):
    return 1024 * int(re.search(key + r":\s+(\d+)", open("/proc/self/status").read())[1])

for rows, threads in ((range(2048), 2), (np.random.default_rng(0).permutation(2048), 1)):
    child = os.fork()  # what one read leaves in memory does not help the next
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    reader = RowReader(sys.argv[1], threads=threads)
    reader.read(["small"], rows[:20])  # libraries and code are loaded
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
    before = resident("VmRSS")
    found = reader.read(["x"], rows)["x"]
    print(resident("VmHWM") - before, found.nbytes, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).integers(0, 9, (CHUNK_ROWS * CHUNKS, *ROW_SHAPE)).astype("f4")


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_peak_of_a_read(tmp_path, values, pipeline):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(CHUNK_ROWS, *ROW_SHAPE), **PIPELINES[pipeline])
        file.create_dataset("small", data=values[:, 0, 0], chunks=(CHUNK_ROWS, 64), **PIPELINES[pipeline])
    done = run_python(MEASURE, path)
    assert done.returncode == 0, done.stderr
    found = [[int(each) for each in line.split()] for line in done.stdout.splitlines()]
    assert len(found) == 2  # rows in their order, and in any
    for peak, returned in found:
        assert returned == values.nbytes
        # What is fetched, what passes between two steps, and the chunk that rows are taken from, in each thread.
        assert peak <= 1.5 * returned


NARROW = {
    "big-endian": lambda file, n: file.create_dataset("x", data=np.ones(n, ">f4")),
    "big-endian, chunks": lambda file, n: file.create_dataset("x", data=np.ones(n, ">f4"), chunks=(65536,)),
    "mostly unwritten": lambda file, n: file.create_dataset("x", (n,), "u1", chunks=(65536,), fillvalue=3),
    "a hole": lambda file, n: with_hole(file.create_dataset("x", (n,), "u1", chunks=(65536,))),
    "a hole, gzip": lambda file, n: with_hole(file.create_dataset("x", (n,), "u1", chunks=(65536,), compression=1)),
    "parts of rows": lambda file, n: file.create_dataset("x", data=np.ones((n // 2, 2), "f4"), chunks=(8192, 1)),
    "parts of rows, lzf": lambda file, n: file.create_dataset(
        "x", data=np.ones((n // 2, 2), "f4"), chunks=(8192, 1), compression="lzf"
    ),
    "as it is": lambda file, n: file.create_dataset("x", data=np.ones(n, "f4"), chunks=(65536,)),
}


def with_hole(dataset):
    dataset[: 4 * 65536] = dataset[5 * 65536 :] = 7
    return dataset


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("layout", NARROW)
def test_a_range_of_narrow_rows_is_not_listed_row_by_row(tmp_path, layout, cast):
    path, rows = tmp_path / "a.h5", 2_000_000
    with h5py.File(path, "w") as file:
        NARROW[layout](file, rows)
        expected = file["x"][()].astype("f8" if cast else file["x"].dtype.newbyteorder("="))
    with RowReader(path) as reader:
        reader.read(["x"], slice(0, 1))
        out = {"x": np.empty_like(expected)}
        tracemalloc.start()
        try:
            reader.read_into(out, slice(None))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert_same(out["x"], expected)
    assert peak <= 4 << 20  # a mebibyte is read at once, and a chunk decoded


DTYPES = ["<f4", "?", "S8", h5py.string_dtype("utf-8", 8), h5py.enum_dtype({"no": 0, "yes": 1}, "u1")]


@pytest.mark.parametrize("dtype", DTYPES, ids=["f4", "bool", "S8", "UTF-8", "enum"])
def test_what_libhdf5_decodes_goes_where_it_belongs(tmp_path, dtype):
    """Chunks that contain all rows are not split: an intermediate copy would be one of the whole column."""
    path, shape = tmp_path / "a.h5", (100_000, 16)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", shape, dtype, chunks=(100_000, 1), **hdf5plugin.Blosc2(clevel=1))
        values = np.zeros(shape, dataset.dtype.newbyteorder("="))
        values[::3] = np.tile(np.array([0, 1, 1, 0], "S8" if dataset.dtype.kind == "S" else "u1"), 4)
        dataset[:] = values
    with RowReader(path) as reader:
        assert reader.columns["x"].direct
        reader.read(["x"], slice(0, 1))
        tracemalloc.start()
        try:
            found = reader.read(["x"], slice(10, None))["x"]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert_same(found, by_h5py(path, "x", slice(10, None)))
    assert peak <= found.nbytes // 4 + (4 << 20)  # the output itself may be from another pool
