"""`decode_cf`: times with a zone, arrays of characters, and what cannot be decoded and is said."""

import pickle

import cftime
import h5py
import numpy as np
import pytest
import xarray

from ray_h5 import Files, Grid, Groups, H5Dataset, Patches, Windows, joined, where
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.read.open_file import forget_all

NAMES = [b"Oslo", b"Bergen", b"", b"T", b"Stavanger"]


@pytest.mark.parametrize(
    "zone", ["", " 0:00", " 00:00", " 0", " 00", " 0000", " 0:0", "Z", " UTC", " +00:00", "+05:30", " -7", " -0730"]
)
def test_times_with_a_zone(tmp_path, zone):
    units = f"seconds since 2021-09-22 15:00:06{zone}"
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["time"] = np.array([0.5, 1.5])
        file["time"].attrs["units"] = units
    found = H5Dataset(tmp_path / "a.nc", ["time"], decode_cf=True).read(np.arange(2))["time"]
    # cftime knows zones of two digits alone.
    known = {" -7": "-07:00", " -0730": "-07:30"}.get(zone, zone)
    expected = cftime.num2date([0.5, 1.5], f"seconds since 2021-09-22 15:00:06{known}")
    assert found.tolist() == [np.datetime64(each.isoformat(), "ns").astype(int) for each in expected]


@pytest.mark.parametrize("date", ["2021-09-22 15:00:06 5:00", "2021-09-22 15:00:06 EST", "2021/09/22", "2021", "noon"])
def test_units_that_cannot_be_parsed_are_named(tmp_path, date, caplog):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["time"], file["x"] = np.arange(2), np.arange(2)
        file["time"].attrs["units"], file["x"].attrs["units"] = f"hours since {date}", "mm since noon"
    with pytest.raises(UnsupportedColumnError, match=rf"column 'time' has times in 'hours since {date}', which cannot"):
        H5Dataset(tmp_path / "a.nc", ["time"], decode_cf=True)
    dataset = H5Dataset(tmp_path / "a.nc", decode_cf=True)
    assert list(dataset.columns) == ["x"]
    assert f"time (has times in 'hours since {date}'" in caplog.text
    assert dataset.read(np.arange(2))["x"].tolist() == [0, 1]


@pytest.mark.parametrize("rows", [None, Groups("*")])
def test_several_missing_values(tmp_path, rows):
    values = np.array([[-9, 1, 2], [-8, -9, 7]], "i2")
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["g/x"], file["g/none"] = values, values
        file["g/x"].attrs["missing_value"] = np.array([-9, 7], ">i2")
        file["g/none"].attrs["missing_value"] = np.array([], "i2")
    opened = H5Dataset(tmp_path / "a.nc", group="/" if rows else "g", rows=rows, decode_cf=True)
    read = [opened[0]] if rows else [opened.read(np.arange(2))]
    expected = np.where(np.isin(values, [-9, 7]), np.nan, values)
    np.testing.assert_array_equal(np.asarray(read[0]["x"]), expected)
    np.testing.assert_array_equal(np.asarray(read[0]["none"]), values)


@pytest.mark.parametrize("scale", ["0.1", np.array([0.1, 0.2]), np.array([[0.1, 0.2]])])
def test_a_scale_that_is_no_number_is_named(tmp_path, scale):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["x"] = np.arange(2)
        file["x"].attrs["scale_factor"] = scale
    with pytest.raises(UnsupportedColumnError, match="attribute 'scale_factor' that is no number"):
        H5Dataset(tmp_path / "a.nc", ["x"], decode_cf=True)


@pytest.fixture
def path(tmp_path):
    texts = np.array(NAMES, "S10")
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["name"] = texts.view("S1").reshape(5, 10)
        file["pair"] = np.stack([texts, texts[::-1]], axis=1).view("S1").reshape(5, 2, 10)
        file["none"], file["x"], file["one"] = np.zeros((5, 0), "S1"), np.arange(5), np.array([b"a", b"b"] * 2 + [b""])
        file.create_dataset("gzip", data=file["name"][:], chunks=(2, 4), compression="gzip")
        for i in range(2):
            file[f"groups/{i}/name"] = file["name"][: i + 1]
            file[f"groups/{i}/other"] = file["name"][:, : i + 1]
    return tmp_path / "a.nc"


def test_arrays_of_characters_are_texts(path):
    names = ["name", "pair", "none", "one", "gzip"]
    dataset = H5Dataset(path, names, decode_cf=True)
    found = dataset.read(np.array([3, 0, 4]))
    with xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort") as expected:
        for name in ("name", "pair", "gzip"):
            assert found[name].tolist() == expected[name].values[[3, 0, 4]].tolist(), name
    assert found["none"].tolist() == [b""] * 3
    assert found["one"].tolist() == [b"b", b"a", b""]
    assert dataset[1]["name"] == "Bergen"
    assert dataset[1]["pair"] == ["Bergen", "T"]
    assert H5Dataset(path, ["name"]).read(np.arange(5))["name"].shape == (5, 10)


def test_arrays_of_characters_in_predicates_labels_and_windows(path):
    chosen = H5Dataset(path, ["x"], where(name=["Oslo", "T"]), decode_cf=True)
    assert [chosen[i]["x"] for i in range(len(chosen))] == [0, 3]
    labelled = H5Dataset(path, ["x", "name"], labels={"name": "auto"}, decode_cf=True)
    assert len({int(labelled[i]["name"]) for i in range(5)}) == 5
    windows = H5Dataset(path, ["name"], windows=Windows({"name": [0, 1]}, pad="drop"), decode_cf=True)
    assert windows[0]["name"] == ["Oslo", "Bergen"]


@pytest.mark.parametrize("rows", [Groups("groups/*"), Groups({"city": "groups/*/city"}), Files()])
def test_characters_along_one_axis_are_a_text_of_a_row(tmp_path, rows):
    for number in range(len(NAMES) if isinstance(rows, Files) else 1):
        with h5py.File(tmp_path / f"{number}.nc", "w") as file:
            for i, name in enumerate(NAMES):
                city = np.array([name], "S14").view("S1")[: 14 - i]
                if not isinstance(rows, Files):
                    file.create_dataset(f"groups/{i}/city", data=city, chunks=(4,) if i % 2 else None)
                elif i == number:
                    file["city"], file["t"] = city, np.arange(i + 2)
    paths = f"{tmp_path}/*.nc"
    cities = [name.decode() for name in NAMES]
    assert [row["city"] for row in H5Dataset(paths, ["city"], rows=rows, decode_cf=True)] == cities
    assert [row["city"] for row in H5Dataset(paths, ["city"], where(city="Oslo"), rows=rows, decode_cf=True)] == [
        "Oslo"
    ]
    assert H5Dataset(paths, ["city"], rows=rows)[0]["city"][:4] == ["O", "s", "l", "o"]
    if isinstance(rows, Files):
        steps = H5Dataset(paths, ["city", "t"], rows=rows, windows=Windows({"t": [0]}), decode_cf=True)
        assert [steps[i]["city"] for i in (0, 1, 2)] == [cities[0], cities[0], cities[1]]


def test_arrays_of_characters_in_other_rows(path):
    dataset = H5Dataset(path, ["name"], rows=Groups("groups/*"), decode_cf=True)
    assert [dataset[i]["name"] for i in range(2)] == [["Oslo"], ["Oslo", "Bergen"]]
    with pytest.raises(UnsupportedColumnError, match="arrays of characters, of another length in other groups"):
        H5Dataset(path, ["other"], rows=Groups("groups/*"), decode_cf=True)
    assert H5Dataset(path, ["name"], rows=Files(), decode_cf=True)[0]["name"] == [each.decode() for each in NAMES]
    grid = H5Dataset(path, ["pair"], rows=Grid(2), decode_cf=True)
    assert [grid[i]["pair"] for i in (0, 1, 2)] == ["Oslo", "Stavanger", "Bergen"]


@pytest.mark.parametrize(
    "options",
    [
        {"rows": Files()},
        {"rows": Files(), "windows": Windows({"x": [0]})},
        {"rows": Grid(2)},
        {"rows": Patches({"x": (1, 2)})},
        {"rows": Patches({"x": (1, 2)}, groups="g")},
        {"windows": Windows({"x": [0]}, at={"x": "time"})},
    ],
    ids=["files", "windows", "grid", "patches", "patches of groups", "times"],
)
def test_single_values_are_decoded(tmp_path, options):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["g/x"], file["g/scale"], file["g/time"] = np.arange(4).reshape(2, 2), np.int16(7), np.arange(2)
        file["g/scale"].attrs.update({"scale_factor": 0.5, "add_offset": 10.0})
        file["g/start"] = np.int32(3)
        file["g/start"].attrs["units"] = "days since 2000-01-01"
    group = "/" if "groups='g'" in repr(options) else "g"
    chosen = where(scale=13.5, start="2000-01-04")
    found = H5Dataset(tmp_path / "a.nc", ["x", "scale", "start"], chosen, group=group, decode_cf=True, **options)
    rows = found.read(np.arange(len(found)))
    assert set(rows["scale"].tolist()) == {13.5}
    assert set(rows["start"].astype("M8[D]").tolist()) == {np.datetime64("2000-01-04").item()}


def test_datasets_end_to_end_are_decoded_by_the_attributes_of_each(tmp_path):
    scales, expected = [0.5, None, 2.0, 0.5], []
    with h5py.File(tmp_path / "a.nc", "w") as file:
        for number, scale in enumerate(scales):
            x = file.create_dataset(f"data/x_{number}", data=np.arange(number + 1, dtype="i2"))
            x.attrs.update({} if scale is None else {"scale_factor": scale})
            expected += [(scale or 1) * value for value in range(number + 1)]
    found = H5Dataset(tmp_path / "a.nc", [joined("data/x_*")], decode_cf=True)
    order = np.random.default_rng(0).permutation(len(found))
    assert found.read(order)["data/x"].tolist() == [expected[i] for i in order]
    chosen = H5Dataset(tmp_path / "a.nc", [joined("data/x_*")], where(**{"data/x": 4}), decode_cf=True)
    assert chosen.read(np.arange(len(chosen)))["data/x"].tolist() == [4.0]


def test_a_plan_has_the_attributes_of_all_groups(tmp_path, monkeypatch):
    scales = [0.1, 0.1, np.float32(0.3), None, 0.1, 7]
    path, expected = tmp_path / "a.h5", []
    with h5py.File(path, "w") as file:
        for number, scale in enumerate(scales):
            x = file.create_dataset(f"g{number}/x", data=np.arange(3, dtype="i2") + number)
            if scale is not None:
                x.attrs["scale_factor"] = scale
            expected.append(x[()].astype("f8") * (1 if scale is None else scale))
    looked, exists = [], h5py.h5a.exists
    for _ in range(2):  # the second reads the index file
        dataset = H5Dataset(path, rows=Groups("g*"), decode_cf=True, index_dir=tmp_path / "index")
        there = pickle.loads(pickle.dumps(dataset))
        forget_all()
        looked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(h5py.h5a, "exists", lambda *args: looked.append(args) or exists(*args))
            found = [row["x"].numpy() for row in there]
        assert not looked
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("units", [["days since 2000-01-01", None, ""], [None, "", "days since 2000-01-01"]])
def test_groups_whose_attributes_make_values_of_two_kinds_are_named(tmp_path, units):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, of_group in enumerate(units):
            file[f"g{number}/y"] = np.arange(3)
            if of_group is not None:
                file[f"g{number}/x"] = np.arange(3)
                file[f"g{number}/x"].attrs["units"] = of_group
    number, time = units.index(""), units.index("days since 2000-01-01")
    said = rf"'x': its attributes make number values of g{number}/x, time values of g{time}/x\. Choose groups"
    with pytest.raises(SchemaMismatchError, match=said):
        H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("g*", missing="null"), decode_cf=True)
