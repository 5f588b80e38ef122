"""Types that no reader can hand out are said to be so, and the other columns stay readable."""

import h5py
import numpy as np
import pytest

from ray_h5 import Groups, H5Dataset, RowReader
from ray_h5.errors import UnsupportedColumnError
from tests.hdf5.h5kit import assert_same, by_h5py, dataset_with, plist_with, replace_once
from tests.kit.files import save


def test_a_field_without_a_name(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.zeros(5, [("unusual", "<i4"), ("b", "<f4")]), "y": np.arange(5)})
    replace_once(path, b"unusual\0", bytes(8))
    reader = RowReader(path)
    assert list(reader.columns) == ["y"]
    assert_same(reader.read(["y"])["y"], np.arange(5))
    with pytest.raises(UnsupportedColumnError, match=r"column 'x' has a field without a name"):
        reader.read(["x"])


LETTERS = h5py.string_dtype("utf-8", 3)
ALIGNED = np.dtype([("a", "u1"), ("b", "<i8"), ("c", ">f2"), ("s", "S3"), ("ok", "?")], align=True)
PLAIN = {
    "letters": np.array([b"", b"a", b"abc", "é".encode()], LETTERS),
    "aligned": np.array([(i, -i, i / 2, b"ab"[:i], i % 2 == 0) for i in range(4)], ALIGNED),
    "opaque": np.array([b"\0\0a", b"abc", b"\0bc", b"a\0\0"], "V3"),
    "times": np.array(["2024-01-01", "NaT", "1969-12-31", "2000-02-29"], "M8[D]").astype(h5py.opaque_dtype("M8[D]")),
    "spans": np.array([3, "NaT", -1, 2**40], "m8[ms]").astype(h5py.opaque_dtype("m8[ms]")),
}


@pytest.mark.parametrize("storage", [{}, {"chunks": (3,)}, {"chunks": (2,), "compression": "gzip", "shuffle": True}])
def test_types_that_are_read_without_libhdf5(tmp_path, storage):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in PLAIN.items():
            file.create_dataset(name, data=values, **storage)
            if storage and name not in {"times", "spans"}:  # h5py sets no fill value of a time
                # Half of it was never written.
                file.create_dataset(f"filled {name}", (8,), values.dtype, fillvalue=values[2], **storage)[:4] = values
    reader = RowReader(tmp_path / "a.h5")
    assert not reader.layout.refused
    for name, layout in reader.columns.items():
        assert layout.direct, name
        for rows in (slice(None), [3, 0, 0, 2], slice(None, None, -1)):
            found, expected = reader.read([name], rows)[name], by_h5py(tmp_path / "a.h5", name, rows)
            for part in expected.dtype.names or [...]:  # what lies between fields is nobody's
                assert_same(np.ascontiguousarray(found[part]), np.ascontiguousarray(expected[part]))


@pytest.mark.parametrize("padding", [h5py.h5t.STR_NULLTERM, h5py.h5t.STR_SPACEPAD])
def test_strings_that_libhdf5_changes_are_left_to_it(tmp_path, padding):
    type_id = h5py.h5t.C_S1.copy()
    type_id.set_size(4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        type_id.set_strpad(padding)
        raw = np.array([b"a\0bc", b"ab  ", b"abcd"], "S4")
        dataset = dataset_with(file, "x", (3,), plist_with((3,)), type_id)
        dataset.id.write_direct_chunk((0,), raw.tobytes())
    reader = RowReader(tmp_path / "a.h5")
    assert not reader.columns["x"].direct
    expected = by_h5py(tmp_path / "a.h5", "x")
    assert expected.tobytes() != raw.tobytes()
    assert_same(reader.read(["x"])["x"], expected)


def test_fields_of_fields_are_named_by_their_way(tmp_path):
    inner = np.dtype([("lists", h5py.vlen_dtype("f4"))])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3,), np.dtype([("inner", inner)]))
    with pytest.raises(UnsupportedColumnError, match="column 'x', field 'inner', field 'lists', has arrays of varying"):
        RowReader(tmp_path / "a.h5").read(["x"])


def brain_float():
    """bfloat16, which is float32 in numpy."""
    made = h5py.h5t.IEEE_F32LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_size(2)
    return made


@pytest.mark.parametrize("axes", [(), (4,), (2, 2)])
def test_groups_of_values_that_are_smaller_in_the_file(tmp_path, axes):
    """They lie beside each other, and do not overlap; arrays of them, too."""
    words = np.random.default_rng(0).integers(0, 30_000, (3, 4, *axes), dtype="<u2")
    type_id = h5py.h5t.array_create(brain_float(), axes) if axes else brain_float()
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for group in range(3):
            file.require_group(f"g{group}")
        for group, of_group in enumerate(words):
            dataset = dataset_with(file, f"g{group}/x", (4,), plist_with(None), type_id)
            dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, of_group, type_id)
    dataset = H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("g*"))
    for group, of_group in enumerate(words):
        np.testing.assert_array_equal(dataset[group]["x"], (of_group.astype("<u4") << 16).view("<f4"))


@pytest.mark.parametrize("chunks", [None, (3,)])
@pytest.mark.parametrize("has_reference", [False, True])
def test_fields_of_floats_that_numpy_lacks(tmp_path, chunks, has_reference):
    """bfloat16 is float32 in numpy: with the places of the file, it would reach into the next field."""
    brain = brain_float()
    fields = [("f", brain), ("i", h5py.h5t.STD_U16LE), ("pair", h5py.h5t.array_create(brain, (2,))), ("j", None)]
    inner = h5py.h5t.create(h5py.h5t.COMPOUND, 4)
    inner.insert(b"f", 0, brain)
    inner.insert(b"i", 2, h5py.h5t.STD_U16LE)
    made, at = h5py.h5t.create(h5py.h5t.COMPOUND, 20 if has_reference else 12), 0
    for name, type_id in fields:
        made.insert(name.encode(), at, type_id or inner)
        at += (type_id or inner).get_size()
    if has_reference:
        made.insert(b"r", 12, h5py.h5t.STD_REF_OBJ)
    raw = np.zeros((7, made.get_size()), "u1")
    raw[:, :12] = np.random.default_rng(0).integers(0, 120, (7, 12))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = dataset_with(file, "x", (7,), plist_with(chunks), made)
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw.view(f"V{raw.shape[1]}").ravel(), made)
    rows = [5, 0, 0, 3]
    words = raw[rows][:, :12].copy().view("<u2")
    floats = (words.astype("<u4") << 16).view("<f4")
    expected = np.zeros(4, [("f", "<f4"), ("i", "<u2"), ("pair", "<f4", (2,)), ("j", [("f", "<f4"), ("i", "<u2")])])
    expected["f"], expected["i"], expected["pair"] = floats[:, 0], words[:, 1], floats[:, 2:4]
    expected["j"]["f"], expected["j"]["i"] = floats[:, 4], words[:, 5]
    assert_same(RowReader(tmp_path / "a.h5").read(["x"], rows)["x"], expected)
    found = H5Dataset(tmp_path / "a.h5", ["x/i", "x/j/f", "x/pair"]).read(np.array(rows))
    for name, values in (("x/i", expected["i"]), ("x/j/f", expected["j"]["f"]), ("x/pair", expected["pair"])):
        assert_same(found[name], values)
