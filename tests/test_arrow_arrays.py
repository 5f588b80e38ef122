"""Arrow arrays that are made of numpy arrays."""

import numpy as np
import pyarrow as pa
import pytest

from ray_h5.arrow_arrays import arrow_type, to_arrow


@pytest.mark.parametrize("shape", [(), (2,), (0,), (2, 0), (0, 2), (0, 0)])
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("dtype", ["O", "f4", "c8", "V3", [("a", "i4"), ("b", "f8", (2,))]])
def test_lists_of_fixed_length_may_have_no_values(dtype, shape, rows):
    # pyarrow's own function divides by the length of a list: the process ended.
    array = np.zeros((rows, *shape), dtype)
    array[...] = b"a" if dtype == "O" else array
    type_ = arrow_type(np.dtype((array.dtype, shape)))
    found = to_arrow(array, type_)
    found.validate(full=True)
    assert found.type == type_
    assert len(found) == rows
    assert pa.concat_arrays([found, found]).to_pylist() == found.to_pylist() * 2
    if not np.dtype(dtype).names and dtype not in ("O", "c8"):
        assert found.to_pylist() == array.tolist()
    if dtype == "O":
        assert found.to_pylist() == np.full((rows, *shape), "a", object).tolist()
