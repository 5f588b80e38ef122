"""Rows of 16 KiB and more that are stored as they are: each is read by a call of its own."""

from __future__ import annotations

import os
import tempfile

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.errors import RayH5Error
from tests.hdf5.h5kit import assert_same, by_h5py, random_rows
from tests.kit.files import save

ROWS = 24
LARGE_READ_BYTES = 16 << 10
VALUES = LARGE_READ_BYTES // 4
STORAGES = [{}, {"chunks": (1, VALUES)}, {"chunks": (5, VALUES)}]


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), max_size=2 * ROWS),
    storage=st.sampled_from(STORAGES),
    values=st.sampled_from([VALUES - 1, VALUES, VALUES + 3]),
    dtype=st.sampled_from(["<f4", ">f4"]),
    threads=st.sampled_from([1, 3]),
)
def test_any_rows_equal_h5py(rows, storage, values, dtype, threads) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chunks = {"chunks": (storage["chunks"][0], values)} if storage else {}
        path = save(os.path.join(folder, "a.h5"), {"x": random_rows((ROWS, values), dtype)}, **chunks)
        found = RowReader(path, threads=threads).read(["x"], rows)["x"]
        assert_same(found, by_h5py(path, "x", rows))


@pytest.mark.parametrize("rows", [[0, 2, 4], [20, 3, 11], [5, 5, 9], [3, 4, 5], slice(None, None, 3)])
def test_requests_and_bytes_are_those_of_the_rows(tmp_path, rows) -> None:
    path = save(tmp_path / "a.h5", {"x": random_rows((ROWS, VALUES))})
    reader = RowReader(path)
    assert_same(reader.read(["x"], rows)["x"], by_h5py(path, "x", rows))
    wanted = np.unique(np.arange(ROWS)[rows])
    apart = 1 + int((np.diff(wanted) > 1).sum())
    assert reader.stats.bytes_read == len(wanted) * LARGE_READ_BYTES
    assert reader.stats.requests == apart


def test_a_file_cut_off_within_a_row_is_an_error(tmp_path) -> None:
    path = save(tmp_path / "a.h5", {"x": random_rows((ROWS, VALUES))})
    with h5py.File(path) as file:
        start = file["x"].id.get_offset()
    reader = RowReader(path)
    assert reader.layout.columns["x"].num_rows == ROWS
    os.truncate(path, start + 7 * LARGE_READ_BYTES + 100)
    with pytest.raises(RayH5Error, match=r"a\.h5"):
        reader.read(["x"], [1, 3, 7])
