"""Runs of rows of one dataset: each chunk is decoded once, and each value is that of h5py."""

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.manifest.row_requests import Request
from ray_h5.read.read_parts import FileRead, Part
from ray_h5.read.reader import RowReader

_LAYOUTS = [
    {},
    {"chunks": (7,)},
    {"chunks": (7,), "compression": "gzip"},
    {"chunks": (1,), "compression": "gzip"},
    {"chunks": (64,), "compression": "lzf", "shuffle": True},
    {"chunks": (5,), "compression": "gzip", "scaleoffset": 0},  # through h5py
]


def run_reads(path, name, runs, out, threads=1):
    """Read runs of a dataset into `out`; return what it cost."""
    with RowReader(path, threads=threads) as reader:
        request = Request(*(np.array(part, np.int64) for part in zip(*runs, strict=True)))
        reader.run(FileRead(reader, [Part(name, request, out)]))
        return reader.stats


@given(data=st.data())
def test_runs_equal_slices_of_h5py(tmp_path_factory, data):
    layout = data.draw(st.sampled_from(_LAYOUTS))
    row_shape = data.draw(st.sampled_from([(), (3,)])) if layout.get("chunks") is None else ()
    length = data.draw(st.integers(1, 60))
    if layout.get("chunks"):
        layout = {**layout, "chunks": (min(layout["chunks"][0], length), *row_shape)}
    values = np.arange(length * int(np.prod(row_shape, dtype=int)), dtype=np.int32).reshape(length, *row_shape)
    path = tmp_path_factory.mktemp("runs") / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **layout)
    bounds = data.draw(st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, length)), min_size=1, max_size=12))
    bounds = [(first, min(first + count, length)) for first, count in bounds]
    counts = np.array([stop - first for first, stop in bounds])
    order = data.draw(st.permutations(range(len(bounds))))
    places = np.empty(len(bounds), np.int64)
    at = 0
    for i in order:
        places[i] = at
        at += counts[i]
    dtype = data.draw(st.sampled_from([np.int32, np.float64]))
    out = np.full((at, *row_shape), -1, dtype)
    stats = run_reads(path, "x", [(f, p, c) for (f, _), p, c in zip(bounds, places, counts, strict=True)], out)
    for (first, stop), place in zip(bounds, places, strict=True):
        np.testing.assert_array_equal(out[place : place + stop - first], values[first:stop])
    if layout.get("compression") and "scaleoffset" not in layout:
        chunk = layout["chunks"][0]
        touched = {row // chunk for first, stop in bounds for row in range(first, stop)}
        assert stats.chunks_decoded <= len(touched)  # lzf may store a chunk as it is


def test_each_chunk_is_decoded_once_and_only_touched_ones(tmp_path):
    path = tmp_path / "a.h5"
    values = np.arange(10_000)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(100,), compression="gzip")
    out = np.empty(700, np.int64)
    stats = run_reads(path, "x", [(950, 0, 100), (990, 100, 300), (50, 400, 300)], out, threads=2)
    np.testing.assert_array_equal(out, np.concatenate([values[950:1050], values[990:1290], values[50:350]]))
    assert stats.chunks_decoded == 4 + 4


def test_neighbouring_runs_that_are_stored_as_they_are_take_one_request(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(10_000), chunks=(100,))
    out = np.empty(300, np.int64)
    stats = run_reads(path, "x", [(100, 0, 100), (200, 100, 50), (250, 150, 150)], out)
    np.testing.assert_array_equal(out, np.arange(100, 400))
    assert (stats.requests, stats.bytes_read) == (1, 2400)
