"""Tables that pandas wrote: their columns under their names, equal to what pandas reads."""

import os
import pickle
import warnings

import h5py
import numpy as np
import pytest

from ray_h5 import H5Dataset, RayH5Error, Windows, between, where
from ray_h5.hdf5.tree.encodings import pickled_names

pd = pytest.importorskip("pandas")
pytest.importorskip("tables")


def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.random(20),
            "b": rng.random(20),
            "n": rng.integers(0, 9, 20),
            "flag": rng.random(20) < 0.5,
            "when": pd.date_range("2024-01-01", periods=20, freq="h").where(rng.random(20) < 0.8),
            "text": [f"é{i}" for i in range(20)],
            "kind": pd.Categorical.from_codes(rng.integers(-1, 3, 20), ["x", "y", "zz"]),
        }
    )


def columns_of(dataset, group="df/"):
    found = [dataset[i] for i in range(len(dataset))]
    return {name.removeprefix(group): [row[name] for row in found] for name in found[0]}


def plain(value):
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else pd.Timestamp(value)
    return None if value is None or value is pd.NaT or value != value else getattr(value, "item", lambda: value)()


@pytest.mark.parametrize(("data_columns", "group"), [(None, "/"), (["n", "text", "when"], "df"), (True, "/")])
def test_a_table(tmp_path, data_columns, group):
    expected = frame()
    expected.to_hdf(tmp_path / "a.h5", key="df", format="table", data_columns=data_columns)
    found = columns_of(H5Dataset(tmp_path / "a.h5", group=group))
    assert set(found) == {*expected.columns, "index"}
    for name in expected.columns:
        values = expected[name].astype(object).tolist()
        assert [plain(each) for each in found[name]] == [plain(each) for each in values], name
    assert [int(each) for each in found["index"]] == list(range(20))


def test_a_frame_of_numbers(tmp_path):
    expected = frame()[["a", "n", "b", "flag"]]
    expected.to_hdf(tmp_path / "a.h5", key="df", format="fixed")
    found = columns_of(H5Dataset(tmp_path / "a.h5"))
    assert {name: [plain(each) for each in values] for name, values in found.items()} == {
        "index": list(range(20)),
        **{name: expected[name].tolist() for name in expected.columns},
    }


LEVELS = [["a", "b", "a", None, "é"], [30, 40, 30, 60, 60], pd.timedelta_range("1h", periods=5)]
INDEXES = {
    "numbers": pd.Index([5, 3, 8, 1, 9], name="stay"),
    "floats": pd.Index([0.5, 3, 8, 1, 9]),
    "text": pd.Index(["a", "é", "ccc", "", "e"], name="stay"),
    "levels": pd.MultiIndex.from_arrays(LEVELS[:2], names=["subject_id", None]),
    "truth values": pd.Index([True, False, True, False, True]),
    "periods": pd.period_range("2020", periods=5, freq="D"),
    "objects": pd.Index([1, "a", None, 2.5, "b"], dtype=object),
    "a level of spans": pd.MultiIndex.from_arrays(LEVELS[1:]),
}


@pytest.mark.filterwarnings("ignore")  # pandas pickles objects
@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_the_index_of_a_fixed_frame_is_a_column_or_said_to_be_left_out(tmp_path, caplog, index):
    frame = pd.DataFrame({"rate": np.arange(5.0)}, index=index)
    frame.to_hdf(tmp_path / "a.h5", key="df", format="fixed")
    found = columns_of(H5Dataset(tmp_path / "a.h5"))
    read = pd.read_hdf(tmp_path / "a.h5", "df").index
    levels = {name or f"level_{i}": read.get_level_values(i) for i, name in enumerate(read.names)}
    levels = levels if read.nlevels > 1 else {"index": read}
    left = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    for name, values in levels.items():
        if name in found:
            assert [plain(each) for each in found[name]] == [plain(each) for each in values]
        else:
            assert f"df/{name} (is the index of pandas' fixed format" in left[0]
    assert {*found} - {*levels} == {"rate"}
    names = {"truth values": [], "periods": [], "objects": [], "a level of spans": ["level_0"]}
    title = next(title for title, one in INDEXES.items() if one is index)
    assert {*found} == {"rate", *names.get(title, levels)}


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_of_a_fixed_frame(tmp_path, zone):
    """Blocks of times, and an index of times, as those of METR-LA."""
    when = pd.date_range("2024-03-30", periods=9, freq="5h", tz=zone)
    expected = pd.DataFrame({"a": np.arange(9.0), "at": when, "until": when + pd.Timedelta("1h")}, index=when)
    expected.loc[expected.index[4], "at"] = pd.NaT
    expected.to_hdf(tmp_path / "a.h5", key="df", format="fixed")
    rows = H5Dataset(tmp_path / "a.h5")
    assert [*rows.columns] == ["df/index", "df/a", "df/at", "df/until"]
    read = pd.read_hdf(tmp_path / "a.h5", "df").reset_index()
    for name in ("index", "at", "until"):
        wanted = read[name].dt.tz_convert(None) if zone else read[name]
        np.testing.assert_array_equal(np.array(rows[:][f"df/{name}"]), wanted.values)
    chosen = H5Dataset(tmp_path / "a.h5", ["df/a"], where(**{"df/until": between("2024-03-31", None)}))
    until = read["until"].dt.tz_convert(None) if zone else read["until"]
    assert chosen[:]["df/a"].tolist() == read["a"][until >= "2024-03-31"].tolist()
    steps = H5Dataset(tmp_path / "a.h5", ["df/until"], windows=Windows({"df/until": [-1, 0]}, pad="zero"))
    assert np.isnat(steps[0]["df/until"][0])


def test_parts_of_it(tmp_path):
    expected = frame()
    expected.to_hdf(tmp_path / "a.h5", key="deep/df", format="table")
    names = ["deep/df/b", "deep/df/when"]
    chosen = H5Dataset(tmp_path / "a.h5", names, where(**{"deep/df/kind": ["x"]}))
    rows = expected[expected["kind"] == "x"]
    assert [float(chosen[i]["deep/df/b"]) for i in range(len(chosen))] == rows["b"].tolist()
    with pytest.raises(RayH5Error, match=r"no column 'bb' in the table 'deep/df'.*Did you mean 'b'"):
        H5Dataset(tmp_path / "a.h5", ["deep/df/bb"])


def test_text_in_a_fixed_frame_is_named(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas says that it will be pickled
        frame()[["a", "text"]].astype({"text": object}).to_hdf(tmp_path / "a.h5", key="df", format="fixed")
    assert H5Dataset(tmp_path / "a.h5").columns == ["df/index", "df/a"]


def test_names_that_are_no_list_of_names(tmp_path):
    assert pickled_names("(lp0\nVa\np1\naVb\np2\na.") == ["a", "b"]
    for bad in ("cos\nsystem\n(S'true'\ntR.", "(lp0\nVa", "", "x"):
        assert not pickled_names(bad)
    frame().to_hdf(tmp_path / "a.h5", key="df", format="table")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["df/table"].attrs["values_block_0_kind"] = np.bytes_(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(RayH5Error, match="names of the columns in field 'values_block_0' are damaged"):
        H5Dataset(tmp_path / "a.h5", ["df/a"])


@pytest.mark.parametrize("kind", ["table", "fixed"])
def test_columns_of_several_levels(tmp_path, kind):
    """As DeepLabCut writes them: scorer, body part, coordinate."""
    levels = pd.MultiIndex.from_product([["net"], ["nose", "tail"], ["x", "y", "p"]], names=["scorer", "part", "of"])
    expected = pd.DataFrame(np.arange(54.0).reshape(9, 6), columns=levels)
    expected.to_hdf(tmp_path / "a.h5", key="df", format=kind)
    found = columns_of(H5Dataset(tmp_path / "a.h5"))
    assert {*found} - {"index"} == {"/".join(each) for each in levels}
    for name in levels:
        assert [float(each) for each in found["/".join(name)]] == expected[name].tolist()


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", 3], [("a", "b"), ("a", "c")], [("n", "x", "y", "z")] * 2])
def test_pickled_names(protocol, names):
    text = pickle.dumps(names, protocol).decode("latin-1")
    assert pickled_names(text) == [
        each if isinstance(each, str) else "/".join(map(str, np.ravel(each))) for each in names
    ]


@pytest.mark.parametrize("value", [{"a": 1}, "a", [["a", ["b"]]], [os.getcwd], ("a",), [("a" * 2000,) * 1000]])
def test_pickles_of_other_things_are_no_names(value):
    assert pickled_names(pickle.dumps(value, 2).decode("latin-1")) is None
