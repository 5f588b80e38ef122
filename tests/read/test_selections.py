"""Selections of arrays equal what numpy takes of whole arrays; only the chunks that hold them are read."""

import math

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from ray_h5 import Grid, H5Dataset, Patches, RowReader
from ray_h5.manifest.indices import Along
from ray_h5.manifest.row_requests import request_of
from ray_h5.manifest.takes import Take
from ray_h5.read.arrays import plan_boxes
from ray_h5.read.native import job_table as steps
from ray_h5.read.read_parts import FileRead, Part
from tests.kit.files import save
from tests.properties import few

COMPOUND = np.dtype([("a", "<f4"), ("b", ">i8"), ("c", "<f4"), ("v", "<i2", (3,)), ("s", "S5"), ("d", "<f4")])


def taken_of(taken, fields, dtype):
    """Return a part of each row: indices along its axes, and the first byte and the size of fields."""
    return Take("x", dtype=dtype, of_value=Along.of_runs(np.array(fields))).part(taken, len(taken))


def read(path, parts):
    """Return the parts of rows: for each an address, rows, dtype and row shape."""
    with RowReader(path) as reader:
        outs = [np.empty((len(rows), *shape), dtype) for _, rows, dtype, shape in parts]
        reads = []
        for (address, rows, _, _), out in zip(parts, outs, strict=True):
            order = np.argsort(rows, kind="stable")
            reads.append(Part(address, request_of(rows[order], order), out))
        reader.run(FileRead(reader, reads))
        return outs, reader.stats


@st.composite
def positions(draw, length):
    """Positions along an axis: all, a slice, or any."""
    kind = draw(st.sampled_from(["all", "slice", "any"]))
    if kind == "all":
        return np.arange(length)
    if kind == "slice":
        first = draw(st.integers(0, length - 1))
        return np.arange(first, draw(st.integers(first + 1, length)))
    return np.array(draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=2 * length)), np.int64)


@pytest.mark.parametrize("is_compiled", [True, False])
@few(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equal_to_numpy(tmp_path_factory, monkeypatch, is_compiled, data):
    if not is_compiled:
        monkeypatch.setattr(steps, "compiled_loop", lambda: None)
    path = tmp_path_factory.mktemp("t") / "a.h5"
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    if data.draw(st.booleans()):
        shape = (*shape, data.draw(st.integers(100, 300)))  # many parts of a row
    dtype = data.draw(st.sampled_from([np.dtype("<f8"), np.dtype(">u2"), COMPOUND]))
    chunks = data.draw(st.one_of(st.none(), st.tuples(*(st.integers(1, n) for n in shape))))
    filters = {} if chunks is None else {"compression": data.draw(st.sampled_from([None, "gzip", "lzf"]))}
    fill = np.frombuffer(rng.bytes(dtype.itemsize), dtype)[0] if data.draw(st.booleans()) else None
    values = np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", shape, dtype, chunks=chunks, fillvalue=fill, **filters)
        if data.draw(st.booleans()):
            dataset[...] = values
        elif data.draw(st.booleans()):
            dataset[: shape[0] // 2] = values[: shape[0] // 2]
        stored = dataset[()]
    parts, expected = [], []
    rows = np.array(data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=8)), np.int64)
    for _ in range(data.draw(st.integers(1, 3))):
        taken = [data.draw(positions(n)) for n in shape[1:]]
        whole, of_value, kind = stored[rows], ((0, dtype.itemsize),), dtype
        for axis, at in enumerate(taken):
            whole = whole.take(at, axis=1 + axis)
        if dtype.names is not None:
            names = data.draw(st.sampled_from([["a"], ["b"], ["v"], ["s"], ["a", "c"], ["d", "a"]]))
            of_value = tuple((dtype.fields[name][1], dtype[name].itemsize) for name in names)
            whole = np.stack([whole[name] for name in names], axis=-1) if len(names) > 1 else whole[names[0]]
            kind = dtype[names[0]].base
        address = taken_of([*map(Along.of, taken)], of_value, kind)
        wanted = data.draw(st.sampled_from([kind, kind.newbyteorder("=")]))
        parts.append((address, rows, wanted, whole.shape[1:]))
        expected.append(whole)
    found, _ = read(path, parts)
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.astype(one.dtype).tobytes()


def boxes_by_numpy(values, selection, rows):
    """Return the boxes of an array that a selection has as its rows."""
    lengths = selection.shape or (1,) * len(selection.axes)
    found = []
    for corner in zip(*np.unravel_index(rows, [values.shape[axis] for axis in selection.axes]), strict=True):
        box = np.pad(values, [(0, length) for length in values.shape])  # with zeros after the end of each axis
        for axis, length in enumerate(values.shape):
            at = np.arange(length)
            if axis in selection.axes:
                begin = corner[selection.axes.index(axis)]
                at = np.arange(begin, begin + lengths[selection.axes.index(axis)])
            elif axis < len(selection.taken) and selection.taken[axis] is not None:
                at = selection.taken[axis].indices
            box = box.take(at, axis=axis)
        box = box if selection.shape else box.squeeze(selection.axes)
        found.append(box.transpose() if selection.is_reversed else box)
    return np.stack(found)


@pytest.mark.parametrize("is_compiled", [True, False])
@few(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_boxes_equal_numpy(tmp_path_factory, monkeypatch, is_compiled, data):
    if not is_compiled:
        monkeypatch.setattr(steps, "compiled_loop", lambda: None)
    path = tmp_path_factory.mktemp("t") / "a.h5"
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    dtype = data.draw(st.sampled_from([np.dtype("<f4"), np.dtype(">u2"), np.dtype("u1")]))
    chunks = data.draw(st.one_of(st.none(), st.tuples(*(st.integers(1, n) for n in shape))))
    filters = {} if chunks is None else {"compression": data.draw(st.sampled_from([None, "gzip", "lzf"]))}
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", shape, dtype, chunks=chunks, fillvalue=7, **filters)
        part = tuple(slice(0, data.draw(st.integers(0, n))) for n in shape)
        dataset[part] = rng.integers(0, 99, dataset[part].shape)
        values = dataset[()]
    if data.draw(st.booleans()):
        axes = tuple(data.draw(st.permutations(range(len(shape)))))[: data.draw(st.integers(1, len(shape)))]
        box = tuple(data.draw(st.integers(1, shape[axis] + 1)) for axis in axes)
        taken = tuple(
            None if axis in axes or data.draw(st.booleans()) else Along.of(data.draw(positions(n)))
            for axis, n in enumerate(shape)
        )
        selection = Take("x", axes, box, taken)
    else:
        count, is_reversed = data.draw(st.integers(1, len(shape))), data.draw(st.booleans())
        axes = tuple(len(shape) - 1 - at if is_reversed else at for at in range(count))
        selection = Take("x", axes, is_reversed=is_reversed)
    most = math.prod(shape[axis] for axis in selection.axes)
    rows = np.array(data.draw(st.lists(st.integers(0, most - 1), min_size=1, max_size=12)), np.int64)
    if data.draw(st.booleans()):
        rows = np.arange(rows.min(), rows.max() + 1)
    expected = boxes_by_numpy(values, selection, rows)
    wanted = data.draw(st.sampled_from([dtype, np.dtype("f8")]))
    (found,), _ = read(path, [(selection, rows, wanted, expected.shape[1:])])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("chunks", [None, (2, 1)])
def test_arrays_in_fields_that_were_never_written(tmp_path, chunks):
    path, dtype = tmp_path / "a.h5", np.dtype([("a", "?"), ("m", "<f8", (2, 2)), ("n", "<f8", (2, 2))])
    fill = np.frombuffer(np.random.default_rng(0).random(9).tobytes()[-dtype.itemsize :], dtype)[0]
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("x", (5, 2), dtype, chunks=chunks, fillvalue=fill)[()]
    rows = np.arange(5)
    one = taken_of([Along.range(0, 2)], [(1, 32)], np.dtype("<f8"))
    two = taken_of([Along.range(1, 1)], [(33, 32), (1, 32)], np.dtype("<f8"))
    found, _ = read(path, [(one, rows, "<f8", (2, 2, 2)), (two, rows, "<f8", (1, 2, 2, 2))])
    assert found[0].tobytes() == stored["m"].tobytes()
    assert found[1].tobytes() == np.stack([stored["n"], stored["m"]], axis=2)[:, 1:].tobytes()


def test_only_their_chunks_are_read(tmp_path):
    path = tmp_path / "a.h5"
    values = np.random.default_rng(0).random((6, 73, 32, 32)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 1, 32, 32), compression="gzip")
        sizes = [file["x"].id.get_chunk_info(i).size for i in range(6 * 73)]
    channels = np.random.default_rng(1).permutation(73)[:20]
    address = taken_of([Along.of(channels), None, None], [(0, 4)], np.dtype("<f4"))
    (found,), stats = read(path, [(address, np.arange(6), "f4", (20, 32, 32))])
    assert np.array_equal(found, values[:, channels])
    assert stats.bytes_read <= 1.05 * np.array(sizes).reshape(6, 73)[:, channels].sum()
    assert stats.chunks_decoded == 120


def test_of_contiguous_rows_only_their_bytes_are_read(tmp_path):
    path = tmp_path / "a.h5"
    values = np.random.default_rng(0).random((6, 73, 4096)).astype("f4")
    save(path, {"x": values})
    address = taken_of([Along.of_runs(np.array([(3, 10), (40, 10)])), None], [(0, 4)], np.dtype("<f4"))
    (found,), stats = read(path, [(address, np.array([4, 1]), "f4", (20, 4096))])
    assert np.array_equal(found, values[[4, 1]][:, [*range(3, 13), *range(40, 50)]])
    assert stats.bytes_read == 2 * 20 * 4096 * 4


def test_a_chunk_is_decoded_once_for_several_fields(tmp_path):
    path = tmp_path / "a.h5"
    values = np.frombuffer(np.random.default_rng(0).bytes(100 * 4 * COMPOUND.itemsize), COMPOUND).reshape(100, 4)
    save(path, {"x": values}, chunks=(10, 4), compression="gzip")
    rows, parts = np.array([99, 3, 51, 3]), []
    for name in ("a", "c", "d"):
        address = taken_of([None], [(COMPOUND.fields[name][1], 4)], np.dtype("<f4"))
        parts.append((address, rows, "f4", (4,)))
    found, stats = read(path, parts)
    assert [one.tobytes() for one in found] == [values[rows][name].tobytes() for name in ("a", "c", "d")]
    assert stats.chunks_decoded == 3


@pytest.mark.parametrize(("dtype", "fill"), [("u1", 7), (">f4", np.nan), ("i2", None), ("c8", 1 + 2j)])
@pytest.mark.parametrize("written", [0, 1, 5])
def test_blocks_with_chunks_that_were_never_written(tmp_path, monkeypatch, dtype, fill, written):
    """A block of unwritten chunks is filled at once, not a chunk at a time; the others are written afterwards."""
    rng, shape = np.random.default_rng(written), (21, 18, 16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", shape, dtype, chunks=(4, 3, 5), compression="lzf", fillvalue=fill)
        for _ in range(written):
            low = [int(rng.integers(0, n - 4)) for n in shape]
            data[tuple(slice(at, at + 4) for at in low)] = rng.integers(0, 99, (4, 4, 4)).astype(dtype)
        values = data[()]
    fills = []
    monkeypatch.setattr(plan_boxes, "as_strided", lambda *box: fills.append(1) or as_strided(*box))
    for stride, pad, most in ((5, "inside", 0), (6, "zero", None)):
        dataset = H5Dataset(
            tmp_path / "a.h5", ["x", "corner"], rows=Patches({"x": (12, 9, 11)}, stride=stride, pad=pad)
        )
        found = dataset.read(np.arange(len(dataset)))
        for corner, block in zip(found["corner"].tolist(), found["x"], strict=True):
            expected, part = (
                np.zeros(block.shape, dtype),
                values[tuple(slice(at, at + n) for at, n in zip(corner, (12, 9, 11), strict=True))],
            )
            expected[tuple(map(slice, part.shape))] = part
            np.testing.assert_array_equal(block, expected)
        assert most is None or len(fills) <= most
    for rows, expected in ((Grid(2), values.reshape(-1, 16)), (Grid(3), values.ravel()), (None, values)):
        dataset = H5Dataset(tmp_path / "a.h5", ["x"], rows=rows)
        some = rng.integers(0, len(expected), 9)
        np.testing.assert_array_equal(dataset.read(some)["x"], expected[some])
