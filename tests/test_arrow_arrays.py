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


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_texts_of_a_fixed_length_may_hold_nuls(type_, size):
    texts = np.array([b"cat\0xyz", b"dog", b"", b"\0a", b"caf\xc3\xa9"], "S8").astype(f"S{size}")
    texts[-1] = b"" if size == 1 else texts[-1]
    compound = np.zeros((5, 2), [("i", "i4"), ("t", texts.dtype)])
    compound["t"] = texts[:, None]
    lists = np.empty(2, object)
    lists[:] = [texts[:2], texts[2:]]
    for array, of in (
        (texts, type_),
        (texts[::-2], type_),
        (lists, pa.large_list(type_)),
        (compound["t"], pa.list_(type_, 2)),
    ):
        found = to_arrow(array, of)
        found.validate(full=True)
        expected = [row.tolist() if isinstance(row, np.ndarray) else row for row in array]
        assert found.cast(pa.binary() if of == type_ else pa.large_list(pa.binary())).to_pylist() == expected
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        to_arrow(np.array([b"\xff"]), type_)
