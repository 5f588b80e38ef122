"""Files that libraries write: what their readers return, or refused by name."""

import json
import time
import warnings

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import CastError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.measure import inspect_files
from ray_h5.torch_data import H5Dataset
from tests.kit.files import save

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
    report = inspect_files(FileOptions.of(path))
    assert [each.name for each in report.files[0].refused] == ["runs/at"]
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
    assert samples.columns == ["df/index", "df/a", "df/b", "df/s"]
    found = H5Dataset(path, ["df/table"]).read(np.arange(ROWS))["df/table"]
    expected = pandas.read_hdf(path)
    assert np.array_equal(found["a"], expected["a"])
    assert np.array_equal(found["b"], expected["b"])
    assert [each.decode() for each in found["s"]] == list(expected["s"])


@pytest.mark.filterwarnings("ignore")
def test_text_of_a_frame_of_pandas_in_the_fixed_format_is_left_out_by_name(pandas, tmp_path, caplog):
    path = str(tmp_path / "a.h5")
    pandas.DataFrame({"a": np.arange(5.0), "b": np.arange(5.0), "s": list("abcde")}).to_hdf(path, key="df")
    assert H5Dataset(path).columns == ["df/index", "df/a", "df/b"]
    assert "df/s (is in a block of pandas' fixed format" in caplog.text
    assert H5Dataset(path, ["df/block0_values"])[2]["df/block0_values"].tolist() == [2, 2]
    with h5py.File(path, "a") as file:
        file["x"] = np.arange(5)
    assert H5Dataset(path, ["x"]).columns == ["x"]
    path = str(tmp_path / "series.h5")
    pandas.Series(np.arange(5.0)).to_hdf(path, key="s")
    assert H5Dataset(path)[2]["s/values"] == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["fixed", "table"])
def test_the_names_of_a_wide_frame_are_parsed_once(pandas, tmp_path, monkeypatch, kind):
    path, parsed = str(tmp_path / "a.h5"), []
    pandas.DataFrame(np.arange(600.0).reshape(3, 200)).to_hdf(path, key="wide", format=kind)
    decode = json.JSONDecoder.decode
    monkeypatch.setattr(json.JSONDecoder, "decode", lambda *text: parsed.append(len(text[1])) or decode(*text))
    assert H5Dataset(path)[2]["wide/199"] == 599
    assert len(parsed) < 10


@pytest.mark.filterwarnings("ignore")
def test_an_empty_frame_of_pandas_has_no_row(pandas, tmp_path):
    path = str(tmp_path / "a.h5")  # pandas writes an array of one value for it
    pandas.DataFrame({"a": [], "b": []}, index=pandas.DatetimeIndex([])).to_hdf(path, key="df")
    with pytest.raises(UnsupportedColumnError, match="that holds no values"):
        H5Dataset(path, ["df/a"])
    with pytest.raises((SchemaMismatchError, UnsupportedColumnError), match="that holds no values"):
        H5Dataset(path)


def test_datasets_that_are_called_as_those_of_pandas_are_columns(tmp_path):
    save(tmp_path / "a.h5", {"block0_values": np.arange(5), "axis0": np.arange(5), "_i_table/a": np.arange(5)})
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


PACKED = {
    "int16, both": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -999},
    "int16, scale": {"dtype": "i2", "scale_factor": np.float32(0.5), "_FillValue": -1},
    "int16, offset": {"dtype": "i2", "add_offset": 10.0},
    "int32, both": {"dtype": "i4", "scale_factor": np.float32(0.5), "add_offset": np.float32(1), "_FillValue": -999},
    "uint8": {"dtype": "u1", "scale_factor": 2.0, "_FillValue": 255},
    "fill": {"dtype": "i4", "_FillValue": -999},
    "short fill": {"dtype": "i2", "_FillValue": -999},
    "float32 fill": {"dtype": "f4", "_FillValue": -999.0},
    "float64": {"dtype": "f8", "scale_factor": 2.0},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize("name", PACKED)
def test_packed_numbers_are_those_of_xarray(tmp_path, name, engine):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    values = np.random.default_rng(0).integers(0, 100, (20, 3)).astype("f8")
    values[3, 1] = np.nan if "_FillValue" in PACKED[name] else 5
    path = str(tmp_path / "a.nc")
    xarray.Dataset({"v": (("t", "x"), values)}).to_netcdf(path, engine=engine, encoding={"v": PACKED[name]})
    with xarray.open_dataset(path, engine=engine) as opened:
        expected = opened["v"].values
    samples = H5Dataset(path, ["v"], decode_cf=True)
    found = samples.read(np.arange(20))["v"]
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(samples.read(np.array([7, 3, 3]))["v"], expected[[7, 3, 3]], equal_nan=True)


UNITS = ["days", "hour", "minutes", "Seconds", "milliseconds", "microseconds", "nanoseconds", "hrs", "sec", "d"]
ORIGINS = ["1970-01-01", "1800-01-01 00:00:00", "2200-06-01T12:30:15.123456Z", "2000-2-3 4:5:6 +02:30"]
DTYPES = ["i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"]


@given(st.data())
def test_any_times_equal_those_of_xarray(tmp_path_factory, data):
    """Integers and floats of each size, in each unit, also packed, are those of xarray to the nanosecond."""
    xarray = pytest.importorskip("xarray")
    dtype, unit = np.dtype(data.draw(st.sampled_from(DTYPES))), data.draw(st.sampled_from(UNITS))
    span = data.draw(st.sampled_from([1e2, 1e5, 1e9, 1e14, 1e18]))
    floats = data.draw(st.lists(st.floats(-span, span), min_size=2, max_size=8))
    with np.errstate(all="ignore"):
        limits = (-span, span) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        values = np.clip(floats, *limits).astype(dtype)
    attributes = {"units": f"{unit} since {data.draw(st.sampled_from(ORIGINS))}"}
    if data.draw(st.integers(0, 3)) == 0:
        kind = data.draw(st.sampled_from([np.float32, np.float64]))
        attributes |= {"scale_factor": kind(data.draw(st.sampled_from([0.1, 3])))}
        attributes |= {"add_offset": kind(0.3)} if data.draw(st.booleans()) else {}
    elif unit not in {"hrs", "sec", "d"} and span == 1e2 and data.draw(st.booleans()):
        # cftime fails for missing values; beside them, xarray does not see times that are too large.
        attributes["_FillValue"] = values[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = xarray.conventions.decode_cf_variable("at", xarray.Variable(("t",), values, attributes)).values
        except (ValueError, OverflowError):
            found = np.empty(0, object)  # cftime has limits of its own
    path = str(tmp_path_factory.getbasetemp() / "times.nc")
    with h5py.File(path, "w") as file:
        file["at"] = values
        file["at"].attrs.update(attributes)
    if found.dtype == object:
        with pytest.raises(CastError, match="not in the years 1678 to 2262"):
            H5Dataset(path, ["at"], decode_cf=True).read(np.arange(len(values)))
        return
    ours = H5Dataset(path, ["at"], decode_cf=True).read(np.arange(len(values)))["at"]
    assert found.dtype == ours.dtype == "M8[ns]"
    np.testing.assert_array_equal(ours, found)


def test_missing_times_and_flags(tmp_path):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["at"] = np.array([0, -999, 2])
        file["at"].attrs.update(units="days since 2000-01-01", _FillValue=-999)
        file["flag"] = np.array([0, 1, 1], "i1")
        file["flag"].attrs["dtype"] = "bool"
        file["byte"] = np.array([0, -1, -128], "i1")
        file["byte"].attrs["_Unsigned"] = "true"
        file["signed"] = np.array([0, 255, 128], "u1")
        file["signed"].attrs["_Unsigned"] = "false"
        file["gaps"] = np.array([0, 255, 128], "u1")
        file["gaps"].attrs.update(_Unsigned="false", _FillValue=np.uint8(128))
        file["plain"] = np.arange(3)
    found = H5Dataset(str(tmp_path / "a.nc"), decode_cf=True).read(np.arange(3))
    assert found["at"].tolist() == np.array(["2000-01-01", "NaT", "2000-01-03"], "M8[ns]").tolist()
    assert found["flag"].tolist() == [False, True, True]
    assert (found["byte"].tolist(), found["byte"].dtype) == ([0, 255, 128], np.uint8)
    assert (found["signed"].tolist(), found["signed"].dtype) == ([0, -1, -128], np.int8)
    assert found["gaps"].tolist()[:2] == [0, -1]
    assert np.isnan(found["gaps"][2])
    assert found["plain"].dtype == np.int64


REFUSED = {
    "days since 2000-01-01|noleap": "calendar 'noleap'",
    "months since 2000-01-01|standard": "times in 'months since 2000-01-01'",
    "days since 2000-13-01|standard": "cannot be parsed",
    "days since 20000-01-01|standard": "more than four digits",
    "days since 2000-01-01 1:2:3:4|standard": "cannot be parsed: expected hours, minutes and seconds",
    f"days since 2000-01-01 {'9' * 400}|standard": "cannot be parsed: cannot convert float infinity",
    f"days since {'9' * 5000}-01-01|standard": "cannot be parsed",
    f"days since 2000-01-01 1:2{'0' * 400}:3|standard": "cannot be parsed",
    "days since 0001-01-01|standard": "Julian",
}


@pytest.mark.parametrize("what", REFUSED)
def test_times_that_cannot_be_decoded_are_refused_by_name(tmp_path, what, caplog):
    units, calendar = what.split("|")
    path = str(tmp_path / "a.nc")
    with h5py.File(path, "w") as file:
        file["at"] = np.arange(3)
        file["at"].attrs.update(units=units, calendar=calendar)
        file["x"] = np.arange(3)
    with pytest.raises(UnsupportedColumnError, match=REFUSED[what]):
        H5Dataset(path, ["at"], decode_cf=True)
    assert H5Dataset(path, decode_cf=True).columns == ["x"]
    assert "left out 1 of 2 columns: at" in caplog.text
    assert H5Dataset(path, ["at"])[2]["at"] == 2


@pytest.mark.parametrize(
    "text", ["{0}days since 2000-01-01{0}", "days{0}since{0}2000-01-01{0}12:00{0}Z{0}x", "d since 1-1-1{0}x"]
)
def test_units_of_many_spaces_take_no_time(tmp_path, text):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["at"] = [0]
        file["at"].attrs["units"] = text.format(" " * 60_000)
    begin = time.process_time()
    if text.endswith("x"):
        with pytest.raises(UnsupportedColumnError, match="cannot be parsed"):
            H5Dataset(tmp_path / "a.h5", ["at"], decode_cf=True)
    else:
        found = H5Dataset(tmp_path / "a.h5", decode_cf=True)[0]["at"]
        assert found == np.datetime64("2000-01-01", "ns")
    assert time.process_time() - begin < 5


def test_a_time_outside_of_nanoseconds_names_its_row(tmp_path):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["at"] = np.array([0, 10**9])
        file["at"].attrs["units"] = "days since 2000-01-01"
    with pytest.raises(CastError, match=r"column 'at', row 1: the time is not in the years 1678 to 2262"):
        H5Dataset(str(tmp_path / "a.nc"), decode_cf=True)[1]


def test_decoded_columns_are_filtered_cast_and_kept(tmp_path):
    from ray_h5.torch_data import where

    path = str(tmp_path / "a.nc")
    with h5py.File(path, "w") as file:
        file["v"] = np.array([0, 10, -1, 30], "i2")
        file["v"].attrs.update(scale_factor=0.5, _FillValue=np.int16(-1))
        file["at"] = np.arange(4)
        file["at"].attrs["units"] = "days since 2000-01-01"
    options = {"decode_cf": True, "index_dir": tmp_path / "index"}
    for _ in range(2):
        assert H5Dataset(path, ["v"], where(v=15.0), **options)[0]["v"] == 15
        assert H5Dataset(path, ["v"], where(at="2000-01-02"), **options)[0]["v"] == 5
    assert H5Dataset(path, ["v"], dtypes={"v": "float64"}, decode_cf=True).read(np.arange(4))["v"].dtype == "f8"
    assert H5Dataset(path, ["v"], index_dir=tmp_path / "index")[1]["v"] == 10


@pytest.mark.parametrize("chunks", [None, (4,)])
def test_compound_values_with_arrays_of_varying_length_are_read_without_these(tmp_path, chunks, caplog):
    """Write acquisitions as ISMRMRD has them: a header, and arrays of varying length beside it."""
    head = np.dtype([("counter", "u4"), ("position", "f4", (3,)), ("idx", [("slice", "u2")])])
    values = np.zeros(ROWS, [("head", head), ("traj", h5py.vlen_dtype("f4")), ("data", h5py.vlen_dtype("f4"))])
    values["head"]["counter"], values["head"]["idx"]["slice"] = np.arange(ROWS), np.arange(ROWS) % 3
    for i in range(ROWS):
        values[i]["traj"], values[i]["data"] = np.zeros(0, "f4"), np.arange(i, dtype="f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=values, chunks=chunks)
        expected = file["data"]["head"]
    path = str(tmp_path / "a.h5")
    found = H5Dataset(path).read(np.arange(ROWS))["data"]
    assert found.dtype.names == ("head",)
    np.testing.assert_array_equal(found["head"], expected)
    assert "left out 2 of 3 columns: data/traj" in caplog.text
    rows = H5Dataset(path, ["data/head/counter", "data/head/idx/slice"])[:]
    np.testing.assert_array_equal(rows["data/head/counter"], expected["counter"])
    np.testing.assert_array_equal(rows["data/head/idx/slice"], expected["idx"]["slice"])
    with pytest.raises(UnsupportedColumnError, match=r"column 'data/data' is a field of .* arrays of varying length"):
        H5Dataset(path, ["data/data"])


def test_a_field_of_a_column_that_cannot_be_read_has_its_error(tmp_path):
    outer = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    inner = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    inner.insert(b"begin", 0, h5py.h5t.UNIX_D64LE)
    outer.insert(b"n", 0, h5py.h5t.STD_I64LE)
    outer.insert(b"when", 8, inner)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(file.id, b"bad", outer, h5py.h5s.create_simple((5,)))
        h5py.h5d.create(file.id, b"worse", inner, h5py.h5s.create_simple((5,)))
    assert H5Dataset(tmp_path / "a.h5", ["bad/n"])[:]["bad/n"].tolist() == [0] * 5
    for name, message in (
        ("bad/when/begin", "column 'bad/when' is a field of HDF5's own time"),
        ("worse/begin", "column 'worse', field 'begin', has a type that numpy lacks"),
    ):
        with pytest.raises(UnsupportedColumnError, match=message):
            H5Dataset(tmp_path / "a.h5", [name])
