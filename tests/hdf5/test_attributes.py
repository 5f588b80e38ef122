"""What attributes say of values, and attributes that say nothing of use."""

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import CorruptFileError
from ray_h5.manifest.layout import ColumnNotes


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
