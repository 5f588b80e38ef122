"""Values of files in stores that are cast, turned or decoded after they have arrived, against h5py."""

import fsspec
import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ray_h5 import H5Dataset, fields, part

ROWS, WIDTH = 24, 300
STORED = {"f8": ">f8", "f4": "<f4", "i2": ">i2", "text": h5py.string_dtype(), "bytes": "S6"}
SCATTERED = tuple(range(0, WIDTH, 2))
LAYOUTS = {"chunks": {"chunks": (5, 64), "compression": "gzip"}, "whole": {}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("staged") / "a.h5"
    numbers = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    texts = np.array([[f"{number}" for number in row] for row in numbers], object)
    table = np.zeros(ROWS, [("p", ">f4"), ("q", "<i2"), ("r", ">f8")])
    for name in table.dtype.names:
        table[name] = np.arange(1, ROWS + 1)
    with h5py.File(path, "w") as file:
        for layout, options in LAYOUTS.items():
            for name, dtype in STORED.items():
                values = texts if name == "text" else texts.astype("S6") if name == "bytes" else numbers
                file.create_dataset(f"{layout}/{name}", data=values, dtype=dtype, **options)
            file.create_dataset(f"{layout}/t", data=table, chunks=(5,) if options else None)
    fsspec.filesystem("memory").pipe("/staged/a.h5", path.read_bytes())
    return path


PARTS = st.tuples(
    st.sampled_from([f"{layout}/{name}" for layout in LAYOUTS for name in STORED]),
    st.sampled_from([(0, 5), (7, 9, 8), (299,), SCATTERED, SCATTERED[::-1]]),
)
FIELDS = st.tuples(
    st.sampled_from([f"{layout}/t" for layout in LAYOUTS]), st.sampled_from([("p",), ("p", "r"), ("r",), ("q",)])
)


@given(
    wanted=st.lists(st.one_of(PARTS, FIELDS), min_size=1, max_size=3),
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS).map(np.array),
    cast=st.sampled_from([None, "float64"]),
)
@example(wanted=[("chunks/t", ("p",)), ("chunks/t", ("r",))], rows=np.arange(5, 20), cast=None)
@example(wanted=[("chunks/f8", (0, 5)), ("chunks/f8", (7, 9))], rows=np.arange(5, 20), cast=None)
@example(wanted=[("chunks/text", SCATTERED[::-1])], rows=np.array([1, 2, 6]), cast=None)
def test_parts_of_arrays_in_a_store_equal_h5py(path, wanted, rows, cast):
    columns = {
        f"c{at}": (fields if name[-1] == "t" and name[-2] == "/" else _part)(name, keys)
        for at, (name, keys) in enumerate(wanted)
    }
    numbers = [f"c{at}" for at, (name, _) in enumerate(wanted) if not name.endswith(("text", "bytes"))]
    casts = {} if cast is None else dict.fromkeys(numbers, cast)
    for where, options in ((path, {}), ("staged/a.h5", {"filesystem": fsspec.filesystem("memory")})):
        batch = H5Dataset(where, columns=columns, dtypes=casts, kept_bytes=0, **options).read(rows)
        with h5py.File(path) as file:
            for at, (name, keys) in enumerate(wanted):
                stored = file[name][()]
                expected = (
                    [stored[key][rows] for key in keys]
                    if stored.dtype.names
                    else [stored[rows][:, key] for key in keys]
                )
                values = np.stack(expected, axis=1)
                found = batch[f"c{at}"]
                if f"c{at}" in numbers:
                    assert found.dtype == (cast or values.dtype.newbyteorder("="))
                assert found.reshape(values.shape).astype(values.dtype).tolist() == values.tolist(), (where, name)


def test_chunks_that_arrive_by_several_requests(tmp_path):
    values = np.random.default_rng(0).random((2000, 1000))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(50, 1000), compression="gzip", compression_opts=1)
    memory = fsspec.filesystem("memory")
    memory.pipe("/apart/a.h5", (tmp_path / "a.h5").read_bytes())
    for rows in ([3, 60, 1900], [1900, 3, 60, 110], [3, 1800, 1900]):
        dataset = H5Dataset("apart/a.h5", ["x"], filesystem=memory)
        assert (dataset.read(np.array(rows))["x"] == values[rows]).all()


def _part(name, positions):
    return part(name, {0: list(positions)})
