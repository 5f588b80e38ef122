"""Rows of varying shape in Arrow: the values, shapes and dtypes that were read, from one array or from several."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.columns.schema import ColumnSpec
from ray_h5.ray_data.arrow.ragged_blocks import ragged_array

DTYPES = ["i1", "u2", "i4", "u8", "f2", "f4", "f8", "?", "c8", "c16"]


@given(st.data())
def test_arrays_are_those_that_were_read(data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    unit = data.draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=8))
    rng = np.random.default_rng(0)
    flat = (rng.random((sum(lengths), *unit)) * 3).astype(dtype)
    ends = np.cumsum(lengths)
    parts = [flat[end - length : end] for end, length in zip(ends.tolist(), lengths, strict=True)]
    how = data.draw(st.sampled_from(["one array", "shuffled", "copies", "a cast"]))
    if how == "shuffled":
        parts = [parts[i] for i in rng.permutation(len(parts))]
    elif how == "copies":
        parts = [part.copy() for part in parts]
    rows = np.empty(len(parts), object)
    for i, part in enumerate(parts):
        rows[i] = part
    element = np.dtype("f8") if how == "a cast" and dtype.kind != "c" else dtype
    spec = ColumnSpec("x", "ragged", np.dtype(object), (), element, ragged_shape=(None, *unit))
    found = ragged_array(rows, spec)
    assert len(found) == len(parts)
    for value, part in zip(found.to_numpy(zero_copy_only=False), parts, strict=True):
        expected = part.astype(element)
        if element.kind == "c":
            expected = expected.view(expected.real.dtype).reshape(*part.shape, 2)
        assert value.shape == expected.shape
        assert value.dtype == expected.dtype
        assert value.tobytes() == expected.tobytes()
