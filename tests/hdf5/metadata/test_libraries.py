"""Files that libraries write: what their readers return, or refused by name."""

import h5py
import numpy as np
import pytest

from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.torch_data import H5Dataset

ROWS = 300


@pytest.fixture
def tables():
    return pytest.importorskip("tables", reason="PyTables writes the files")


@pytest.fixture
def pandas():
    pytest.importorskip("tables", reason="PyTables writes the files of pandas")
    return pytest.importorskip("pandas")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", [None, "zlib", "blosc"])
def test_a_table_of_pytables_is_read_without_its_times(tables, tmp_path, library, caplog):
    class Row(tables.IsDescription):
        x = tables.Float32Col()
        at = tables.Time64Col()
        n = tables.Int64Col(shape=(2,))
        name = tables.StringCol(5)
        flag = tables.BoolCol()

    path = str(tmp_path / "a.h5")
    filters = None if library is None else tables.Filters(5, library, shuffle=True)
    with tables.open_file(path, "w") as file:
        table = file.create_table("/", "runs", Row, filters=filters)
        for i in range(ROWS):
            for name, value in {"x": i, "at": i + 0.5, "n": (i, -i), "name": f"s{i}", "flag": i % 2}.items():
                table.row[name] = value
            table.row.append()
        table.flush()
        expected = table.read()
    samples = H5Dataset(path)
    assert "left out 1 of 2 columns: runs/at (is a field of HDF5's own time" in caplog.text
    found = samples.read(np.arange(ROWS))["runs"]
    assert set(found.dtype.names) == {"x", "n", "name", "flag"}
    assert all(np.array_equal(found[name], expected[name]) for name in found.dtype.names)


@pytest.mark.filterwarnings("ignore")
def test_arrays_of_pytables(tables, tmp_path, caplog):
    path = str(tmp_path / "a.h5")
    with tables.open_file(path, "w") as file:
        expected = {"plain": np.arange(10.0).reshape(5, 2), "chunked": np.arange(5), "growing": np.arange(5) * 2}
        file.create_array("/", "plain", expected["plain"])
        file.create_carray("/", "chunked", obj=expected["chunked"], filters=tables.Filters(5, "blosc"))
        file.create_earray("/", "growing", obj=expected["growing"])
        varying = file.create_vlarray("/", "varying", tables.Int32Atom())
        pickled = file.create_vlarray("/", "pickled", tables.ObjectAtom())
        for i in range(5):
            varying.append(np.arange(i))
            pickled.append({"a": i})
    samples = H5Dataset(path)
    assert "pickled (holds Python objects that PyTables pickled, which are never loaded)" in caplog.text
    found = samples.read(np.arange(5))
    assert found.keys() == {*expected, "varying"}
    assert all(np.array_equal(found[name], values) for name, values in expected.items())
    assert [each.tolist() for each in found["varying"]] == [list(range(i)) for i in range(5)]


@pytest.mark.filterwarnings("ignore")
def test_a_table_of_pandas_has_no_columns_of_its_indexes(pandas, tmp_path):
    frame = pandas.DataFrame({"a": np.arange(ROWS), "b": np.arange(ROWS) / 2, "s": [f"s{i}" for i in range(ROWS)]})
    path = str(tmp_path / "a.h5")
    frame.to_hdf(path, key="df", format="table", data_columns=True)
    samples = H5Dataset(path)
    assert samples.columns == ["df/table"]
    found = samples.read(np.arange(ROWS))["df/table"]
    expected = pandas.read_hdf(path)
    assert np.array_equal(found["a"], expected["a"])
    assert np.array_equal(found["b"], expected["b"])
    assert [each.decode() for each in found["s"]] == list(expected["s"])


@pytest.mark.filterwarnings("ignore")
def test_a_frame_of_pandas_in_the_fixed_format_is_refused_by_name(pandas, tmp_path):
    path = str(tmp_path / "a.h5")
    pandas.DataFrame({"a": np.arange(5.0), "b": np.arange(5.0), "s": list("abcde")}).to_hdf(path, key="df")
    with pytest.raises(SchemaMismatchError, match=r"df \(is a DataFrame that pandas wrote in the fixed format"):
        H5Dataset(path)
    assert H5Dataset(path, ["df/block0_values"])[2]["df/block0_values"].tolist() == [2, 2]
    with h5py.File(path, "a") as file:
        file["x"] = np.arange(5)
    assert H5Dataset(path).columns == ["x"]
    path = str(tmp_path / "series.h5")
    pandas.Series(np.arange(5.0)).to_hdf(path, key="s")
    assert H5Dataset(path)[2]["s/values"] == 2


def test_datasets_that_are_called_as_those_of_pandas_are_columns(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["block0_values"] = np.arange(5)
        file["axis0"] = np.arange(5)
        file["_i_table/a"] = np.arange(5)
    assert sorted(H5Dataset(str(tmp_path / "a.h5")).columns) == ["_i_table/a", "axis0", "block0_values"]


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_dimension_scales_of_other_axes_are_no_columns(tmp_path, engine):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    values = np.random.default_rng(0).random((5, 3, 4)).astype("f4")
    data = xarray.Dataset(
        {"temp": (("time", "lat", "lon"), values), "flag": (("time",), np.arange(5))},
        {"time": np.arange(5) * 6, "lat": np.arange(3.0), "lon": np.arange(4.0)},
    )
    path = str(tmp_path / "a.nc")
    data.to_netcdf(path, engine=engine)
    samples = H5Dataset(path)
    assert samples.columns == ["temp", "flag", "time"] or sorted(samples.columns) == ["flag", "temp", "time"]
    assert np.array_equal(samples.read(np.arange(5))["temp"], values)
    assert H5Dataset(path, ["lat"])[2]["lat"] == 2


def test_a_bare_dimension_of_netcdf_is_no_column(tmp_path):
    netcdf = pytest.importorskip("netCDF4")
    path = str(tmp_path / "a.nc")
    with netcdf.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createDimension("unused", 2)
        file.createVariable("u", "f4", ("time", "x"))[:] = np.ones((5, 3))
    assert H5Dataset(path).columns == ["u"]


def test_objects_that_are_pickled_are_refused_when_they_are_all(tables, tmp_path):
    path = str(tmp_path / "a.h5")
    with tables.open_file(path, "w") as file:
        file.create_vlarray("/", "pickled", tables.ObjectAtom()).append([1])
    with pytest.raises((SchemaMismatchError, UnsupportedColumnError), match="pickled"):
        H5Dataset(path)
