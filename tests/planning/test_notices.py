"""Warnings about what files hold, each once a process and set of files."""

import h5py
import numpy as np
import pytest

from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset


def warnings_of(caplog):
    found = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    caplog.clear()
    return found


@pytest.fixture
def traces(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(5):
            file[f"data/trace_{i}"] = np.zeros(100)
    return str(tmp_path / "a.h5")


def test_samples_that_become_columns_are_told_once(traces, caplog):
    for dataset in (H5Dataset, CombinedHDF5Dataset, H5Dataset):
        dataset(traces)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"{traces}: data/trace_0 ... trace_4: 5 columns alike. They are read as columns")
    assert "100 rows" in warning
    assert "pass rows=ray_h5.Groups('" in warning
    H5Dataset(traces, group="data")
    assert len(warnings_of(caplog)) == 1


def test_columns_that_are_named_are_columns(traces, caplog):
    H5Dataset(traces, ["data/trace_0", "data/trace_1"])
    assert warnings_of(caplog) == []


def packed(path, scale=0.01, **attributes):
    with h5py.File(path, "w") as file:
        file["t2m"] = np.arange(4, dtype="i2")
        file["t2m"].attrs.update(
            {"scale_factor": scale, "add_offset": 273.15, "_FillValue": np.int16(-32767)} | attributes
        )
        file["plain"] = np.arange(4.0)
        file["plain"].attrs["_FillValue"] = np.nan
    return str(path)


def test_packed_values_are_told_once_with_what_to_compute(tmp_path, caplog):
    path = packed(tmp_path / "a.nc")
    H5Dataset(path)
    H5Dataset(path)
    (warning,) = warnings_of(caplog)
    assert "values are delivered as stored" in warning
    assert "t2m: compute value * 0.01 + 273.15, and take -32767 for missing." in warning
    assert "plain" not in warning
    assert "differ" not in warning
    H5Dataset(path, ["plain"])
    assert warnings_of(caplog) == []
    H5Dataset(path, ["t2m"])
    assert len(warnings_of(caplog)) == 1


def test_packing_that_differs_between_files_is_told(tmp_path, caplog):
    paths = [packed(tmp_path / "a.nc", 0.01), packed(tmp_path / "b.nc", 0.02)]
    H5Dataset(paths)
    (warning,) = warnings_of(caplog)
    assert "The attributes differ from file to file" in warning
