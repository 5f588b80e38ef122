"""Rows of sparse matrices made dense: the compiled loop and the steps in NumPy do the same."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import RowIndexError
from ray_h5.read.native import dense_rows as module
from ray_h5.read.native.dense_rows import dense_rows
from tests.hdf5.h5kit import assert_same

DTYPES = ["?", "i1", "<u2", "<f2", "<f4", ">f4", "<f8", "<i8", "<c8", "<c16"]


@given(st.data())
def test_rows_are_made_dense_alike(data):
    width = data.draw(st.integers(1, 9))
    dtype, of_indices = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(["<i4", "<i8"]))
    outside = data.draw(st.sampled_from([0, 0, 0, 3]))
    ascending = data.draw(st.booleans())
    positions = st.lists(st.integers(-outside, width - 1 + outside), max_size=6, unique=ascending)
    rows = data.draw(st.lists(positions.map(sorted) if ascending else positions, max_size=6))
    stops = np.cumsum([0, *map(len, rows)])
    indices = np.array([each for row in rows for each in row], of_indices)
    values = (np.arange(len(indices)) - 2).astype(dtype)
    values[values == 0] = np.array(-0.0).astype(dtype)
    order = data.draw(st.permutations(range(len(rows))))
    bounds = stops[:-1][order], stops[1:][order]
    found = []
    for loop, written in ((True, 1 << 20), (True, 0), (False, 0)):
        with (
            mock.patch.object(module, "compiled_loop", module.compiled_loop if loop else lambda: None),
            mock.patch.object(module, "_WRITTEN_BYTES", written),
        ):
            try:
                found.append(dense_rows(*bounds, indices, values, width))
            except RowIndexError as exc:
                found.append(str(exc))
    if isinstance(found[0], str):
        assert found == [found[0]] * 3
        assert ((indices < 0) | (indices >= width)).any()
        return
    expected = np.zeros((len(rows), width), dtype)
    for row, number in zip(expected, order, strict=True):
        part = slice(stops[number], stops[number + 1])
        if sorted({*rows[number]}) == rows[number]:
            row[indices[part]] = values[part]
        else:
            np.add.at(row, indices[part], values[part])
    for each in found:
        assert_same(each, expected)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_position_outside_names_it(request, compiled):
    if not compiled:
        request.getfixturevalue("steps_in_python")
    starts, stops, values = np.array([0, 2]), np.array([2, 3]), np.ones(3, "f4")
    for wrong in (5, -1, 1 << 30):
        with pytest.raises(RowIndexError, match=f"expected positions from 0 to 4, found {wrong}"):
            dense_rows(starts, stops, np.array([0, 4, wrong], np.int32), values, 5)
