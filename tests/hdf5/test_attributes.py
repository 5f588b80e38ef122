"""What attributes say of values, and attributes that say nothing of use."""

import random

import h5py
import numpy as np
import pytest

from ray_h5 import Groups, H5Dataset, RowReader, Windows
from ray_h5.errors import CorruptFileError, RayH5Error
from ray_h5.hdf5.tree.attributes import notes_of
from ray_h5.manifest.layout import ColumnNotes
from ray_h5.read import open_file_base


def notes(path, **attributes):
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(5, "i2")
        for name, value in attributes.items():
            file["x"].attrs[name] = value
    with RowReader(path) as reader:
        return reader.notes(["x"])["x"]


def test_packing(tmp_path):
    attributes = {"add_offset": np.float32(0.1), "scale_factor": np.array([2.0]), "missing_value": np.int16(-1)}
    assert notes(tmp_path / "a.h5", **attributes) == ColumnNotes(
        {"scale_factor": "2.0", "add_offset": "0.1", "missing_value": "-1"}
    )


@pytest.mark.parametrize("name", ["scale_factor", "NAME", "_FillValue"])
@pytest.mark.parametrize(
    "value",
    [np.zeros(3), "text", b"text", h5py.Empty("f4"), np.zeros((), [("a", "i4")]), np.bytes_(b"x" * 4000), np.nan],
    ids=["several", "text", "bytes", "empty", "compound", "long", "nan"],
)
def test_attributes_of_another_kind(tmp_path, name, value):
    assert notes(tmp_path / "a.h5", **{name: value}) == ColumnNotes()


@pytest.mark.parametrize("kind", ["<i8", ">f4", "bool", "enum", "compound", "text", "noted"])
def test_libhdf5_is_not_asked_for_the_notes_of_numbers_without_attributes(tmp_path, monkeypatch, kind):
    own = {"enum": h5py.enum_dtype({"a": 0, "b": 1}, "i2"), "compound": [("a", "i4")], "text": h5py.string_dtype()}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3,), dtype=own.get(kind, "f4" if kind == "noted" else kind))
        file["x"].attrs.update({"units": "days since 2000-01-01"} if kind == "noted" else {})
    asked = []
    monkeypatch.setattr(open_file_base, "notes_of", lambda dataset: asked.append(dataset.name) or notes_of(dataset))
    with RowReader(tmp_path / "a.h5") as reader, h5py.File(tmp_path / "a.h5") as file:
        assert reader.notes(["x"])["x"] == notes_of(file["x"])
    assert len(asked) == (kind not in {"<i8", ">f4"})


def test_damaged_attributes(tmp_path):
    """Datasets with known headers are described without a look at attributes: they are read for the notes alone."""
    paths = [tmp_path / f"{n}.h5" for n in range(2)]
    for path in paths:
        notes(path, units="mm since then")
        with RowReader(path) as reader:
            reader.layout  # noqa: B018
    data = bytearray(paths[1].read_bytes())
    data[data.index(b"units\0") - 4] ^= 255  # the size of the type
    paths[1].write_bytes(data)
    with RowReader(paths[1]) as reader, pytest.raises(CorruptFileError, match=r"1\.h5.*attributes of column 'x'"):
        reader.notes(["x"])


def test_a_reference_to_the_dimension_of_netcdf(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["time"], file["x"] = np.arange(5), np.zeros(5)
        file["time"].make_scale("This is a netCDF dimension but not a netCDF variable.         5")
        file["x"].dims[0].attach_scale(file["time"])
    with RowReader(tmp_path / "a.h5") as reader:
        assert {name: each.bare_dimension for name, each in reader.notes(["time", "x"]).items()} == {
            "time": True,
            "x": False,
        }


LENGTHS = {
    "one": lambda _: (3,),
    "several": lambda i: (i + 1,),
    "empty": lambda i: (i % 3,),
    "tables": lambda _: (2, 3),
}


@pytest.mark.parametrize("index_dir", [None, "index"])
@pytest.mark.parametrize("missing", [0, 1], ids=["all have it", "some lack it"])
@pytest.mark.parametrize("shape", LENGTHS.values(), ids=LENGTHS)
def test_attributes_that_are_arrays_equal_those_of_h5py(tmp_path, shape, missing, index_dir):
    drawn = random.Random(f"{missing}{shape(2)}")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(9):
            event = file.create_group(f"e{i}")
            event.attrs.update({"magnitude": 1.5 + i, "site": f"s{i}", "both": -1})
            trace = event.create_dataset("BK.HH", data=np.full((3, 5), i, "f4"))
            if not (missing and i % 4 == 1):
                dtype = drawn.choice(["i1", ">i4", "f4", "u2"])
                trace.attrs["picks"] = np.arange(np.prod(shape(i))).reshape(shape(i)).astype(dtype) + i
            trace.attrs["both"] = i
    names = ["picks", "../magnitude", "site", "both"] if not missing else ["picks", "../magnitude"]
    kind = Groups("*/*", attrs=names, key="key", missing="null" if missing else "error")
    folder = None if index_dir is None else str(tmp_path / index_dir)
    if missing and len(shape(0)) > 1:
        with pytest.raises(RayH5Error, match="arrays of one axis alone may differ"):
            H5Dataset(tmp_path / "a.h5", rows=kind)
        return
    for _ in range(1 if folder is None else 2):
        rows = H5Dataset(tmp_path / "a.h5", rows=kind, index_dir=folder)
        with h5py.File(tmp_path / "a.h5") as file:
            for i in range(9):
                row, trace = rows[i], file[rows[i]["key"]]
                found = None if row["picks"] is None else np.asarray(row["picks"]).tolist()
                assert found == (trace.attrs["picks"].tolist() if "picks" in trace.attrs else None)
                assert row["../magnitude"] == trace.parent.attrs["magnitude"]
                if not missing:
                    assert (row["site"], row["both"]) == (trace.parent.attrs["site"], trace.attrs["both"])
    steps = H5Dataset(tmp_path / "a.h5", rows=kind, windows=Windows({"value": [0]}))
    assert np.asarray(steps[7]["picks"]).tolist() == np.asarray(rows[2]["picks"]).tolist()


def test_attributes_above_that_are_not_there(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            file[f"e{i}/x"] = np.arange(3)
            file[f"e{i}"].attrs["n"] = i
        file["e2/x"].attrs["n"] = 7
    for name, says in {
        "../../../n": "no group is so far above 'e0/x'",
        "../m": "has no attribute '../m'",
        "n": "attribute 'n' is one of 'e2/x', which groups before it lack, .* write '../n'",
    }.items():
        with pytest.raises(RayH5Error, match=says):
            H5Dataset(tmp_path / "a.h5", rows=Groups("*/x", attrs=[name]))
    assert H5Dataset(tmp_path / "a.h5", rows=Groups("*/x", attrs=["../n"]))[2]["../n"] == 2
