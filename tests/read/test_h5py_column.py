"""Columns of types, filters and storages that few have: what they deliver is what h5py delivers."""

import tracemalloc

import h5py
import hdf5plugin
import numpy as np
import pytest

import ray_h5
from ray_h5 import Grid, RowReader
from ray_h5.errors import CorruptChunkError, CorruptFileError, UnsupportedColumnError
from tests.hdf5.h5kit import (
    assert_same,
    by_h5py,
    dataset_with,
    flip,
    in_fork,
    layout_of,
    plist_with,
    random_rows,
    stored_chunks,
)
from tests.kit.files import save

ROWS = 3000


def words_of_c(path):
    type_id = h5py.h5t.C_S1.copy()
    type_id.set_size(6)
    type_id.set_strpad(h5py.h5t.STR_NULLTERM)
    with h5py.File(path, "w") as file:
        dataset = dataset_with(file, "x", (ROWS,), plist_with(), type_id)
        dataset[:] = np.array([b"%d" % i for i in range(ROWS)], "S6")
        dataset_with(file, "chunked", (ROWS,), plist_with((64,), (1,)), type_id)[: ROWS // 2] = dataset[: ROWS // 2]


def user_block(path):
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = random_rows((ROWS, 3), ">f8")
        file["wide"] = random_rows((300, 3000), "u1")
        file.create_dataset("chunked", data=random_rows((ROWS, 3), "i2"), chunks=(50, 2), compression="gzip")
        file.create_dataset("partly", (ROWS, 3), "i2", chunks=(50, 3), fillvalue=7)[100:1000] = 1
        file.create_dataset("pairs", (ROWS,), np.dtype(("f4", (2,))))[:] = random_rows((ROWS, 2))


def varying(path):
    with h5py.File(path, "w") as file:
        file["x"] = [f"row {i}" for i in range(ROWS)]
        for name, chunks in (("lists", None), ("chunked lists", (128,))):
            made = file.create_dataset(name, (ROWS,), h5py.vlen_dtype("i4"), chunks=chunks)
            made[: ROWS - 500] = np.array([np.arange(i % 4 + 1) for i in range(ROWS - 500)], object)
        named = file.create_dataset("named", (ROWS,), np.dtype([("n", "i4"), ("s", h5py.string_dtype())]))
        named[:] = np.array([(i, f"{i}") for i in range(ROWS)], named.dtype)


def packed(path):
    with h5py.File(path, "w") as file:
        for name, chunks in (("x", (100, 4)), ("split", (100, 3)), ("one a row", (1, 4))):
            rows = 300 if chunks[0] == 1 else ROWS
            values = np.arange(rows * 4, dtype="i4").reshape(rows, 4)
            file.create_dataset(name, data=values, chunks=chunks, scaleoffset=0)


def virtual(path):
    layout = h5py.VirtualLayout((ROWS, 3), "f4", maxshape=(None, 3))
    with h5py.File(path, "w") as file:
        for i in range(6):
            file.create_dataset(f"part{i}", data=random_rows((400, 3), seed=i), chunks=(64, 3) if i % 2 else None)
            layout[i * 500 : i * 500 + 400] = h5py.VirtualSource(file[f"part{i}"])
        file.create_virtual_dataset("x", layout, fillvalue=5)


WRITERS = {each.__name__: each for each in (words_of_c, user_block, varying, packed, virtual)}


def row_choices(count):
    rng = np.random.default_rng(0)
    few, many = rng.choice(count, 64), rng.choice(count, count // 2, replace=False)
    return {
        "few": few, "few, in order": np.unique(few), "many": many, "many, in order": np.sort(many), "one": few[:1],
        "with repeats": np.sort(rng.integers(0, count, 2 * count)), "every third": slice(1, None, 3),
        "two runs": np.r_[5:90, 200:260], "all": slice(None), "a part": slice(77, 277),
        "backwards": slice(None, None, -1),
    }  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_they_are_what_h5py_delivers(tmp_path, writer):
    path = tmp_path / "a.h5"
    WRITERS[writer](path)
    reader = RowReader(path)
    for name, layout in reader.columns.items():
        whole = by_h5py(path, name)
        for choice, rows in row_choices(layout.num_rows).items():
            found, expected = reader.read([name], rows)[name], whole[rows]
            if layout.kind == "list":
                assert [each.tolist() for each in found] == [each.tolist() for each in expected], choice
            else:
                assert_same(found, expected)


@pytest.mark.parametrize("row_bytes", [2000, 400_000])
def test_large_rows_are_read_by_themselves(tmp_path, row_bytes):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["x"] = random_rows((40, row_bytes), "u1")
    reader = RowReader(tmp_path / "a.h5")
    rows = [39, 3, 20, 3]
    assert_same(reader.read(["x"], rows)["x"], by_h5py(tmp_path / "a.h5", "x", rows))


def test_the_message_names_the_rows_that_are_damaged(tmp_path):
    # A filter that h5py decodes, so that nothing checks its chunks before; read through a virtual column.
    source = save(tmp_path / "b.h5", {"x": random_rows((400, 8))}, chunks=(20, 8), **hdf5plugin.BZip2())
    flip(source, stored_chunks(source, "x")[5].byte_offset)
    save(tmp_path / "a.h5", {"x": layout_of(source, "x", (400, 8), "f4")})
    reader = RowReader(tmp_path / "a.h5", allow_external=[tmp_path])
    with pytest.raises(
        CorruptChunkError, match=rf"column 'x' leads to {source}: column 'x', chunk 5 \(rows 100 to 119"
    ):
        reader.read(["x"], [350, 7, 113, 3])


def test_the_message_names_the_file_behind_a_link_that_is_damaged(tmp_path):
    source = save(tmp_path / "b.h5", {"x": random_rows((400, 8))}, chunks=(20, 8), fletcher32=True)
    flip(source, stored_chunks(source, "x")[5].byte_offset)
    save(tmp_path / "a.h5", {"x": h5py.ExternalLink("b.h5", "/x")})
    reader = RowReader(tmp_path / "a.h5", allow_external=[tmp_path])
    with pytest.raises(CorruptChunkError, match=r"b\.h5: column 'x', chunk 5 .*the checksum is wrong"):
        reader.read(["x"], [350, 7, 113, 3])


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        (np.arange(3), CorruptFileError, r"b\.h5: .*another shape than the virtual dataset says, \(3,\)"),
        (np.array([b"a"] * 5), UnsupportedColumnError, r"b\.h5: .*another type: expected int64, found \|S1"),
    ],
)
def test_sources_that_are_not_what_a_virtual_column_says_are_named(tmp_path, values, error, says):
    source = save(tmp_path / "b.h5", {"x": values})
    save(tmp_path / "a.h5", {"x": layout_of(source, "x")})
    with pytest.raises(error, match=says):
        RowReader(tmp_path / "a.h5", allow_external=[tmp_path]).read(["x"])


@pytest.mark.parametrize("kind", ["chunked", "virtual"])
def test_rows_far_apart(tmp_path, kind):
    """libhdf5 walks through all chunks between the rows of one selection: here a day or so."""
    rows = 10**15
    with h5py.File(tmp_path / "a.h5", "w") as file:
        column = file.create_dataset("x", (rows,), "i4", chunks=(1000,), scaleoffset=4)
        column[0], column[rows - 1] = 3, 5
        file.create_virtual_dataset("y", layout_of(".", "x", (rows,), "i4"))
    reader = RowReader(tmp_path / "a.h5")
    name = {"chunked": "x", "virtual": "y"}[kind]
    found = in_fork(lambda: reader.read([name], [0, 1, rows // 2, rows - 1]))
    assert found[name].tolist() == [3, 0, 0, 5]


@pytest.mark.parametrize("axes", [2, 3])
def test_grid_rows_of_virtual_datasets(tmp_path, axes):
    values = np.arange(3 * 5 * 4 * 2, dtype="f4").reshape(3, 5, 4, 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("there", data=values, chunks=(2, 3, 1, 2), compression="gzip")
        file.create_virtual_dataset("x", layout_of(".", "there", values.shape, "f4"))
    expected = values.reshape(-1, *values.shape[axes:])
    reader = ray_h5.RowReader(tmp_path / "a.h5", rows=Grid(axes))
    for rows in (slice(None), [len(expected) - 1, 0, 7, 7, 3], slice(2, None, 3)):
        np.testing.assert_array_equal(reader.read(["x"], rows)["x"], expected[rows])


def test_few_grid_rows_take_little_memory(tmp_path):
    values = np.arange(4e6, dtype="f4").reshape(2, 1_000_000, 2)
    save(tmp_path / "a.h5", {"there": values, "x": layout_of(".", "there", values.shape, "f4")})
    reader = ray_h5.RowReader(tmp_path / "a.h5", rows=Grid(2))
    reader.read(["x"], [0])
    tracemalloc.start()
    try:
        found = reader.read(["x"], [1_999_999, 5, 999_999])["x"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, [[3_999_998, 3_999_999], [10, 11], [1_999_998, 1_999_999]])
    assert peak < 2 << 20, "an index of the first axis has 8 MB"
