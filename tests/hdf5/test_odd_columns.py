"""One column that cannot be read does not hide the others, and no file is called damaged for it."""

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

import ray_h5
from ray_h5 import Groups, H5Dataset
from ray_h5.cli import main
from ray_h5.errors import CorruptChunkError, SchemaMismatchError, UnsupportedColumnError
from tests.kit.files import save


def quad():
    kind = h5t.IEEE_F64LE.copy()
    kind.set_size(16), kind.set_precision(128), kind.set_fields(127, 112, 15, 0, 112), kind.set_ebias(16383)
    return kind


def write(file, name, kind, plist=None, shape=(3,)):
    return h5py.Dataset(h5d.create(file.id, name.encode(), kind, h5s.create_simple(shape), plist))


def test_floats_that_libhdf5_does_not_convert(tmp_path):
    kind = h5t.IEEE_F64LE.copy()
    kind.set_norm(h5t.NORM_MSBSET)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write(file, "x", kind).id.write(h5s.ALL, h5s.ALL, np.array([0.0, 1.0, 0.0]), mtype=kind)
    dataset = H5Dataset(tmp_path / "a.h5")
    assert dataset[0]["x"] == 0
    with pytest.raises(CorruptChunkError, match=r"row 1: the value cannot be read: .*normalization"):
        dataset[:]


def test_floats_that_numpy_lacks(tmp_path, caplog):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3.0)
        write(file, "quad", quad())
    assert H5Dataset(tmp_path / "a.h5").columns == ["x"]
    assert "left out 1 of 2 columns: quad (has floats of 128 bits, which numpy lacks)" in caplog.text
    with pytest.raises(UnsupportedColumnError, match="column 'quad' has floats of 128 bits, which numpy lacks"):
        H5Dataset(tmp_path / "a.h5", ["quad"])


def test_attributes_of_floats_that_numpy_lacks(tmp_path):
    """They are no attributes that columns are made of, and nothing else is refused for them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3.0)
        for place in (file, file["x"]):
            for name in ("scale_factor", "units", "encoding-type"):
                h5py.h5a.create(place.id, name.encode(), quad(), h5s.create(h5s.SCALAR))
        file["groups/0/x"], file["groups/1/x"] = np.arange(2), np.arange(2)
        for i in range(2):
            h5py.h5a.create(file[f"groups/{i}"].id, b"q", quad(), h5s.create(h5s.SCALAR))
    path = str(tmp_path / "a.h5")
    assert H5Dataset(path, ["x"])[:]["x"].tolist() == [0, 1, 2]
    assert len(H5Dataset(path, ["x"], rows=Groups("groups/*"))) == 2
    with pytest.raises(UnsupportedColumnError, match="attribute 'units' of '/' has floats of 128 bits"):
        H5Dataset(path, ["x"], attrs=["units"])
    with pytest.raises(UnsupportedColumnError, match="attribute 'q' of 'groups/0' has floats of 128 bits"):
        H5Dataset(path, ["x"], rows=Groups("groups/*", attrs=["q"]))
    for file in (path, str(tmp_path / "quad.h5")):
        with h5py.File(tmp_path / "quad.h5", "w") as out:
            out["x"] = np.arange(3.0)
            write(out, "quad", quad())
        assert main(["inspect", file]) == 0
        with pytest.raises(UnsupportedColumnError, match="type h5py cannot read"):
            ray_h5.repack(file, tmp_path / "out")


def test_a_matlab_cell_array_of_empty_cells(tmp_path, caplog):
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=512) as file:
        refs = []
        for number in range(3):
            empty = file.create_dataset(f"#refs#/{'bcd'[number]}", data=np.zeros(2, "u8"))
            empty.attrs["MATLAB_empty"], empty.attrs["MATLAB_class"] = np.uint8(1), np.bytes_("double")
            refs.append(empty.ref)
        notes = file.create_dataset("notes", data=np.array([refs], h5py.ref_dtype), dtype=h5py.ref_dtype)
        notes.attrs["MATLAB_class"] = np.bytes_("cell")
        file["y"] = np.arange(3.0)[None]
        file["y"].attrs["MATLAB_class"] = np.bytes_("double")
    dataset = H5Dataset(tmp_path / "a.mat", axes="reversed")
    assert dataset[:]["y"].tolist() == [0, 1, 2]
    assert "left out 1 of 2 columns: notes (has empty arrays alone, of no type)" in caplog.text
    with pytest.raises(UnsupportedColumnError, match="column 'notes' has empty arrays alone"):
        H5Dataset(tmp_path / "a.mat", ["notes"], axes="reversed")


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_arrays_of_arrays(tmp_path, chunks):
    kind = h5t.array_create(h5t.array_create(h5t.STD_I32LE, (3,)), (2,))
    plist = h5p.create(h5p.DATASET_CREATE)
    if chunks:
        plist.set_chunk(chunks)
    expected = np.arange(24, dtype="<i4").reshape(4, 2, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = write(file, "n", kind, plist=plist, shape=(4,))
        made.id.write(h5s.ALL, h5s.ALL, expected, kind)
        assert np.array_equal(file["n"][()], expected)
    dataset = H5Dataset(tmp_path / "a.h5")
    assert np.array_equal(dataset.read(np.array([2, 0, 3]))["n"], expected[[2, 0, 3]])


def odd_table(file, name, plist=None):
    """Numbers and text beside a reference, HDF5's own time, a list and a float of 128 bits."""
    text, items = h5t.py_create(h5py.string_dtype(), logical=True), h5t.vlen_create(h5t.STD_I16LE)
    fields = (b"n", h5t.STD_I32BE), (b"to", h5t.STD_REF_OBJ), (b"text", text), (b"when", h5t.UNIX_D64LE.copy())
    fields = (*fields, (b"list", items), (b"quad", quad()), (b"fixed", h5t.py_create(np.dtype("S3"))))
    kind, at = h5t.create(h5t.COMPOUND, sum(each.get_size() for _, each in fields)), 0
    for field, type_id in fields:
        kind.insert(field, at, type_id)
        at += type_id.get_size()
    values = np.array([(i, f"row {i}", b"%03d" % i) for i in range(5)], TABLE)
    write(file, name, kind, plist=plist, shape=(5,)).id.write(h5s.ALL, h5s.ALL, values)
    return values


TABLE = np.dtype([("n", "i4"), ("text", h5py.string_dtype()), ("fixed", "S3")])


@pytest.mark.parametrize("filters", [None, "gzip", "fletcher32"])
def test_compound_values_without_the_fields_that_no_row_has(tmp_path, filters, caplog):
    plist = h5p.create(h5p.DATASET_CREATE)
    if filters:
        plist.set_chunk((2,))
        plist.set_deflate(1) if filters == "gzip" else plist.set_fletcher32()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5)
        values = odd_table(file, "t", plist)
        odd_table(file.create_group("group"), "t", plist)
    for name in ("t", "group/t"):
        dataset = H5Dataset(tmp_path / "a.h5", [name])
        found = dataset.read(np.array([4, 1, 1]))[name]
        assert found.dtype.names == ("n", "text", "fixed")
        for field in found.dtype.names:
            expected = values[[4, 1, 1]][field].tolist()
            assert [each.decode() if isinstance(each, bytes) else each for each in found[field].tolist()] == [
                each.decode() if isinstance(each, bytes) else each for each in expected
            ]
        field = H5Dataset(tmp_path / "a.h5", [f"{name}/n", f"{name}/text"])
        assert field[:][f"{name}/n"].tolist() == list(range(5))
        assert field[2][f"{name}/text"] == "row 2"
        for lost in ("to", "when", "list", "quad"):
            with pytest.raises(UnsupportedColumnError, match=rf"column '{name}/{lost}' is a field of HDF5's own time"):
                H5Dataset(tmp_path / "a.h5", [f"{name}/{lost}"])
    everything = H5Dataset(tmp_path / "a.h5")
    assert set(everything.columns) == {"x", "t", "group/t"}
    assert "left out 8 of" in caplog.text
    (grouped,) = H5Dataset(tmp_path / "a.h5", ["t"], rows=Groups("group"))[:]["t"]
    assert grouped["n"].tolist() == list(range(5))


@pytest.mark.parametrize(
    ("padding", "stored"), [(h5t.STR_SPACEPAD, b"ab   "), (h5t.STR_NULLTERM, b"ab\0xy"), (h5t.STR_NULLPAD, b"ab\0xy")]
)
def test_texts_beside_fields_that_no_row_has_end_where_their_type_says(tmp_path, padding, stored):
    text = h5t.C_S1.copy()
    text.set_size(len(stored))
    text.set_strpad(padding)
    kind = h5t.create(h5t.COMPOUND, len(stored) + 8)
    kind.insert(b"text", 0, text)
    kind.insert(b"to", len(stored), h5t.STD_REF_OBJ)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = write(file, "t", kind, shape=(3,))
        made.id.write(h5s.ALL, h5s.ALL, np.array([stored + bytes(8)] * 3, f"V{len(stored) + 8}"), kind)
        expected = made.fields("text")[()]
    np.testing.assert_array_equal(H5Dataset(tmp_path / "a.h5", ["t"]).read(np.array([2, 0]))["t"]["text"], expected[:2])
    np.testing.assert_array_equal(ray_h5.RowReader(tmp_path / "a.h5").read(["t"])["t"]["text"], expected)


def test_a_compound_value_in_a_group_that_no_row_has(tmp_path):
    """The error is of the column, not of the group that it is in."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        rows = np.zeros(3, [("inner", [("to", h5py.ref_dtype)]), ("n", "i4")])
        rows["inner"]["to"], rows["n"] = file["x"].ref, [1, 2, 3]
        file["group/t"], file["group/with n"] = rows[["inner"]], rows
    assert H5Dataset(tmp_path / "a.h5", ["group/with n/n"])[:]["group/with n/n"].tolist() == [1, 2, 3]
    with pytest.raises(UnsupportedColumnError, match=r"column 'group/t', field 'inner', field 'to', has references"):
        H5Dataset(tmp_path / "a.h5", ["group/t"])


def test_several_enums_in_one_compound_value(tmp_path):
    kind, quality = (h5py.enum_dtype(each, "i1") for each in ({"ELECTRON": 0, "MUON": 1}, {"LOOSE": 0, "TIGHT": 1}))
    rows = np.zeros(3, [("pt", "f4"), ("kind", kind), ("quality", quality)])
    rows["pt"], rows["kind"] = [1, 2, 3], [0, 1, 1]
    for i in range(2):
        save(tmp_path / f"{i}.h5", {"leptons": rows})
    found = H5Dataset(tmp_path)[:]["leptons"]
    assert [each["kind"] for each in found] == [0, 1, 1] * 2
    other = h5py.enum_dtype({"TIGHT": 0, "LOOSE": 1}, "i1")
    save(tmp_path / "2.h5", {"leptons": np.zeros(3, [("pt", "f4"), ("kind", kind), ("quality", other)])})
    with pytest.raises(SchemaMismatchError, match=r"column 'leptons': the files disagree .*\n.*quality\.LOOSE=0"):
        H5Dataset(tmp_path)
