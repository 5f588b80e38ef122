"""The chunks of many arrays as those of one, of any files: what a table says, and the rows that are read by it."""

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ray_h5 import Groups, H5Dataset, RowReader, Windows, part
from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import request_of
from ray_h5.manifest.value_type import ValueType
from ray_h5.read.arrays.chunk_table import ChunkTable, partitions
from ray_h5.storage.byte_source import ByteSource
from tests.properties import few


class Nothing(ByteSource):
    """A file that is not read."""

    path, size, identity, read_into = "", 0, None, None


def layout_of(rows, chunk_shape=None, offset=None):
    """An array of f4 with rows of 5 values."""
    storage = "contiguous" if chunk_shape is None else "chunked"
    type_ = ValueType("number", np.dtype("<f4"), (5,))
    return ColumnLayout("x", type_, rows, chunk_shape, direct=True, storage=storage, offset=offset)


@few(100)
@given(st.data())
def test_a_table_of_many_arrays_says_of_each_chunk_what_its_array_says(data):
    """Of arrays of any lengths, 0 too, with any chunks there; listed before, or where they are needed."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    chunk_shape = data.draw(st.sampled_from([(1, 5), (2, 5), (3, 2), (4, 1)]))
    files = [Nothing() for _ in range(3)]
    tables, expected, array_of_row = [], [], []
    for number, rows in enumerate(lengths):
        along, across = -(-rows // chunk_shape[0]), -(-5 // chunk_shape[1])
        there = np.flatnonzero(rng.random(along * across) < data.draw(st.sampled_from([0.5, 1])))
        index = ChunkIndex(there, *rng.integers(1, 9999, (2, len(there))), rng.integers(0, 9, len(there)).astype("u4"))
        file = int(rng.integers(3))
        tables.append(ChunkTable.one(layout_of(rows, chunk_shape), files[file], index))
        found = dict(zip(there.tolist(), zip(*(of.tolist() for of in index.locate(there)), strict=True), strict=True))
        expected += [(file, *found.get(own, (UNALLOCATED,))) for own in range(along * across)]
        array_of_row += [(number, row) for row in range(along * chunk_shape[0])]
    like = layout_of(0, chunk_shape)
    known = ChunkTable.joined(like, tables, lambda array: (str(array), like))
    asked = []

    def listing(arrays):
        asked.extend(arrays.tolist())
        return [tables[array].index for array in arrays.tolist()]

    listed = ChunkTable(*partitions(like, np.array(lengths)), (files[0],), list_chunks=listing)
    numbers = np.flatnonzero(rng.random(len(expected)) < 0.7)
    for table in (known, listed):
        assert table.chunks.num_units == len(expected)
        arrays, rows = table.rows.local(np.arange(len(array_of_row)))
        assert list(zip(arrays.tolist(), rows.tolist(), strict=True)) == array_of_row
        offsets, sizes, masks = table.locate(numbers)
        of_file = np.broadcast_to(known.files_of(known.chunks.part_of(numbers)), len(numbers))
        for at, number in enumerate(numbers.tolist()):
            file, offset, *rest = expected[number]
            assert offsets[at] == offset
            assert not rest or rest == [sizes[at], masks[at]]
            assert known.files[of_file[at]] is files[file]
    touched = {*listed.chunks.part_of(numbers).tolist()}
    assert sorted(asked) == sorted(touched)  # each once, and no other
    listed.list_now(np.array(sorted(touched), np.int64))
    assert sorted(asked) == sorted(touched)


def test_a_contiguous_array_is_one_chunk():
    files = [Nothing() for _ in range(2)]
    offsets, lengths = [400, None, 80], [3, 2, 4]
    tables = [
        ChunkTable.one(layout_of(rows, offset=offset), files[number % 2])
        for number, (rows, offset) in enumerate(zip(lengths, offsets, strict=True))
    ]
    table = ChunkTable.joined(layout_of(0), tables, lambda array: ("", layout_of(lengths[array])))
    runs, arrays = table.cut(request_of(np.array([1, 2, 4, 5, 8])))
    assert arrays.tolist() == [0, 0, 1, 2, 2]
    assert table.are_written(arrays).tolist() == [True, True, False, True, True]
    assert table.files_of(arrays).tolist() == [0, 0, 1, 0, 0]
    begins = table.begins(arrays, 20) + runs.firsts * 20
    assert begins[[0, 1, 3, 4]].tolist() == [420, 440, 80, 140]
    found, sizes, _ = table.locate(np.arange(3))
    assert found.tolist() == [400, UNALLOCATED, 80]
    assert sizes.tolist() == [60, 40, 80]


STORAGES = [{}, {"chunks": (2, 3)}, {"chunks": (3, 2), "compression": "lzf"}, {"chunks": (1, 6), "compression": "gzip"}]


@pytest.mark.parametrize("how", ["files", "groups", "stack"])
@few(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_of_many_arrays_equal_h5py(tmp_path_factory, how, data):
    """The same arrays, partly written, as a column of files, as datasets of groups, and as a virtual stack."""
    folder = tmp_path_factory.mktemp("t")
    lengths = data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=5))
    storages = data.draw(st.lists(st.sampled_from(STORAGES), min_size=1, max_size=2))
    paths, values, stack = [], [], h5py.VirtualLayout((sum(lengths), 6), "<f4")
    for number, rows in enumerate(lengths):
        paths.append(folder / ("all.h5" if how == "groups" else f"{number}.h5"))
        with h5py.File(paths[-1], "a") as file:
            options = storages[number % len(storages)]
            options = {**options, "maxshape": (None, 6)} if options else {}
            name = f"{number}/x" if how == "groups" else "x"
            x = file.create_dataset(name, (rows, 6), "<f4", fillvalue=data.draw(st.sampled_from([0, 7])), **options)
            written = data.draw(st.integers(0, rows))
            x[:written] = np.arange(written * 6).reshape(-1, 6) + 100 * number
            values.append(x[()])
            stack[sum(lengths[:number]) : sum(lengths[: number + 1])] = h5py.VirtualSource(x)
    if how == "stack":
        with h5py.File(folder / "v.h5", "w") as file:
            file.create_virtual_dataset("x", stack)
    whole = np.concatenate(values)
    taken = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    columns = {"x": "x", "some": part("x", {0: taken})}
    if how == "groups":
        rows = {"rows": Groups("*"), "windows": Windows({"x": [0], "some": [0]})}
    else:
        rows = {"allow_external": [folder]}
    dataset = H5Dataset(folder / "v.h5" if how == "stack" else sorted(set(paths)), columns, kept_bytes=0, **rows)
    for _ in range(2):
        wanted = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=12)))
        found = dataset.read(wanted)
        assert found["x"].tobytes() == whole[wanted].tobytes()
        assert found["some"].tobytes() == np.ascontiguousarray(whole[wanted][:, taken]).tobytes()
    dataset.close()
    if how == "stack":
        with RowReader(folder / "v.h5", allow_external=[folder]) as reader:
            assert reader.read(["x"])["x"].tobytes() == whole.tobytes()
