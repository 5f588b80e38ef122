"""Takes of takes, as they are read, equal what NumPy takes of arrays."""

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ray_h5 import H5Dataset, RowReader, part
from ray_h5.manifest.indices import Along, composed, lengths_of, picked
from ray_h5.manifest.row_requests import request_of
from ray_h5.manifest.takes import Take
from ray_h5.read.read_parts import FileRead, Part
from tests.manifest.test_indices import along
from tests.properties import few
from tests.read.test_selections import read


@pytest.mark.parametrize("chunks", [None, (2, 3, 2, 2)])
@few(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parts_of_parts_equal_numpy(tmp_path_factory, chunks, data):
    """Rows along several axes, reversed or not, of which parts are taken, and of these parts: all are read at once."""
    path, shape = tmp_path_factory.mktemp("t") / "a.h5", (3, 5, 4, 6)
    values = np.arange(np.prod(shape), dtype="<i4").reshape(shape)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=chunks, compression=None if chunks is None else "lzf")
    is_reversed, axes = data.draw(st.booleans()), data.draw(st.integers(1, 3))
    take = Take("x", (3,), is_reversed=True) if is_reversed else Take("x")
    whole = values.transpose() if is_reversed else values
    take, whole = take.over(axes, 4), whole.reshape(-1, *whole.shape[axes:])
    kept = ()
    for _ in range(data.draw(st.integers(0, 3))):
        some = [data.draw(st.one_of(st.none(), along(n))) if n else None for n in whole.shape[1:]]
        taken = tuple(None if of is None else of[0] for of in some)
        take, kept = take.part(taken, 4 - axes), composed(kept, taken)
        for axis, of in enumerate(some):
            whole = whole if of is None else whole.take(of[1], axis=1 + axis)
    rows = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=6)))
    (found,), _ = read(path, [(take, rows, "<i4", whole.shape[1:])])
    assert np.array_equal(found, whole[rows])
    of_rows = (values.transpose() if is_reversed else values).reshape(
        -1, *(shape[::-1] if is_reversed else shape)[axes:]
    )
    assert np.array_equal(picked(of_rows, kept), whole)
    assert tuple(lengths_of(of_rows.shape[1:], kept)) == whole.shape[1:]


def test_of_a_virtual_dataset_the_part_alone_is_read(tmp_path):
    values = np.arange(4 * 2000, dtype="<f8").reshape(4, 2000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
    stack = h5py.VirtualLayout((4, 4000), "<f8")
    stack[:, ::2] = stack[:, 1::2] = h5py.VirtualSource(tmp_path / "a.h5", "x", values.shape)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("v", stack)
    dataset = H5Dataset(tmp_path / "v.h5", [part("v", {0: slice(10, 14)})], allow_external=[tmp_path], kept_bytes=0)
    dataset[0]
    with RowReader(tmp_path / "v.h5", allow_external=[tmp_path]) as reader:
        address = Take("v").part((Along.range(10, 4),), 1)
        out = np.empty((2, 4))
        reader.run(FileRead(reader, [Part(address, request_of(np.array([0, 3]), np.array([1, 0])), out)]))
        assert reader.stats.bytes_read == 2 * 2 * 2 * 8
    assert np.array_equal(out, dataset.read(np.array([3, 0]))["v"])
    assert np.array_equal(out, values[[3, 0]][:, [5, 5, 6, 6]])


VALUES = {
    "text": h5py.string_dtype(),
    "lists": h5py.vlen_dtype("<i2"),
    "bytes": np.dtype("S5"),
    "arrays": np.dtype(("<f4", (3,))),
    "arrays of text": np.dtype((h5py.string_dtype(), (3,))),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("chunks", [None, (2, 50)])
@pytest.mark.parametrize("is_virtual", [False, True])
def test_parts_of_any_values_equal_numpy(tmp_path, kind, chunks, is_virtual):
    rng, shape = np.random.default_rng(len(kind)), (5, 150)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", shape, VALUES[kind], chunks=chunks)
        for at in np.ndindex(*data.shape):
            made = {"lists": np.arange(rng.integers(3)), "arrays": rng.random(3), "arrays of text": [b"a", b"", b"cd"]}
            data[at] = made.get(kind, str(rng.integers(1000)))
        whole = data[()]
        if is_virtual:
            stack = h5py.VirtualLayout((5, 300), VALUES[kind])
            stack[:, :150] = stack[:, 150:] = h5py.VirtualSource(data)
            file.create_virtual_dataset("x2", stack)
            whole = np.concatenate([whole, whole], axis=1)
    name, rows = "x2" if is_virtual else "x", np.array([4, 0, 2])
    some = [(rng.permutation(whole.shape[1])[:90], [0, 2]), (np.arange(20, 130), [1]), (np.array([7, 3]), [2, 0])]
    for at, of_items in some:
        expected, taken = whole[rows][:, at], {0: at.tolist()}
        if "arrays" in kind:
            expected, taken = expected[..., of_items], {**taken, 1: of_items}
        found = H5Dataset(tmp_path / "a.h5", [part(name, taken)], kept_bytes=0).read(rows)[name]
        assert found.shape == expected.shape
        assert all(np.array_equal(*pair) for pair in zip(found.ravel(), expected.ravel(), strict=True))
