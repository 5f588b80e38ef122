"""Windows of columns that tables beside the files have: the same steps as windows of datasets with the same values."""

import pickle

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ray_h5 import (
    Files,
    Grid,
    Groups,
    H5Dataset,
    RayH5Error,
    Shuffle,
    Sidecar,
    Windows,
    any_equal,
    loader,
    read_h5,
    where,
)
from ray_h5.torch_data import Standardize

NAMES = ["num", "txt", "flag", "count"]


def steps_of(rng, count):
    """Return columns with a value a step, and an id of each."""
    return {
        "x": rng.integers(0, 99, count),
        "id": rng.permutation(count),
        "num": rng.normal(size=count).round(3),
        "txt": np.array([f"w{i}".encode() for i in rng.integers(0, 9, count)], object),
        "flag": rng.integers(0, 2, count) > 0,
        "count": rng.integers(1, 5, count),
    }


def write(path, kind, rng, first):
    """Write steps in episodes of a kind; return the columns of the file, step after step, with ids from `first` on."""
    lengths = np.append(rng.integers(1, 9, rng.integers(1, 4)), 6) if kind != "grid" else np.full(3, 6)
    lengths = lengths[-1:] if kind == "files" else lengths
    made = steps_of(rng, int(lengths.sum()))
    made["id"] += first
    ends = np.cumsum(lengths)
    with h5py.File(path, "w") as file:
        for name, values in made.items():
            if kind == "groups":
                for number, part in enumerate(np.split(values, ends[:-1])):
                    file[f"demo_{number}/{name}"] = part
            else:
                file[name] = values.reshape(3, 6) if kind == "grid" else values
        if kind == "column":
            file["ep"] = np.repeat(np.arange(len(lengths)), lengths)
        if kind == "bounds":
            file["bounds"] = np.stack([ends - lengths + (lengths > 2), ends], 1)
    return made


KINDS = {
    "one": ({}, {}),
    "column": ({}, {"episode": "ep"}),
    "bounds": ({}, {"episode_bounds": "bounds"}),
    "groups": ({"rows": Groups("demo_*")}, {}),
    "grid": ({"rows": Grid(2)}, {}),
    "files": ({"rows": Files()}, {}),
}


def plain(values):
    return (
        [plain(each) for each in values]
        if isinstance(values, (list, tuple))
        else getattr(values, "tolist", lambda: values)()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_windows_of_tables_equal_those_of_datasets(kind, seed, tmp_path):
    rng = np.random.default_rng([seed, len(kind)])
    made, folder = [], tmp_path / "files"
    folder.mkdir()
    for number in range(3):
        made.append(write(folder / f"f{number}.h5", kind, rng, sum(len(each["x"]) for each in made)))
    whole = {name: np.concatenate([each[name] for each in made]) for name in made[0]}
    steps = [(f"f{number}", step) for number, each in enumerate(made) for step in range(len(each["x"]))]
    frame = pd.DataFrame({f"t_{name}": whole[name] for name in NAMES})
    frame["t_txt"] = [text.decode() for text in frame["t_txt"]]
    by_id, by_step = frame.assign(id=whole["id"]), frame.assign(path=[p for p, _ in steps], step=[s for _, s in steps])
    by_id.sample(frac=1, random_state=seed).to_csv(tmp_path / "table.csv", index=False)
    by_step.sample(frac=1, random_state=seed).to_parquet(tmp_path / "table.parquet")
    with h5py.File(tmp_path / "table.hdf5", "w") as file:
        for name, values in by_id.sample(frac=1, random_state=seed).items():
            file[name] = values.to_numpy().astype("S") if name == "t_txt" else values.to_numpy()
    sidecars = [
        Sidecar(tmp_path / "table.csv", on="id"),
        Sidecar(tmp_path / "table.parquet", on=["path", "step"]),
        Sidecar(by_id, on="id"),
        Sidecar(tmp_path / "table.hdf5", on="id"),
    ]
    options, of_windows = KINDS[kind]
    offsets = {name: sorted(rng.choice(np.arange(-2, 3), rng.integers(1, 4), replace=False).tolist()) for name in NAMES}
    pad = ("edge", "zero", "drop", ("zero", "edge"), ("drop", "zero"))[rng.integers(5)]
    how = {"stride": int(rng.integers(1, 3)), "pad": pad, **of_windows}
    if kind == "groups" or kind == "files":
        how["per_step"] = ["x"]
    stored = H5Dataset(folder, windows=Windows(offsets, **how), **options)
    expected = [{name: plain(value) for name, value in row.items()} for row in stored]
    renamed = {f"w_{name}": (f"t_{name}", steps) for name, steps in offsets.items()}
    for sidecar in sidecars:
        columns = ["x", *(f"w_{name}" for name in NAMES)]
        columns += [f"w_{name}_is_pad" for name in NAMES if f"{name}_is_pad" in stored.columns]
        found = H5Dataset(folder, columns, windows=Windows(renamed, **how), sidecar=sidecar, **options)
        rows = [{name.removeprefix("w_"): plain(value) for name, value in row.items()} for row in found]
        assert rows == [{name: row[name] for name in rows[0]} for row in expected], sidecar
        wanted = int(whole["count"][rng.integers(len(whole["x"]))])
        kept = H5Dataset(
            folder,
            ["x"],
            windows=Windows(renamed, **how),
            sidecar=sidecar,
            predicate=where(w_count=any_equal(wanted)),
            **options,
        )
        assert [plain(row["x"]) for row in kept] == [row["x"] for row in expected if wanted in row["count"]]


@pytest.fixture
def episodes(tmp_path):
    """Return a file of two episodes of four steps, and the lines that its steps have."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"], file["id"], file["ep"] = np.arange(8), np.arange(8), np.repeat([0, 1], 4)
        file["f"] = np.arange(8) * 1.5
        file.attrs["site"] = "A"
    when = pd.date_range("2020-01-01", periods=8)
    lines = {"id": range(8), "i": range(8), "g": np.arange(8) * 1.5, "s": list("abcdefgh"), "when": when}
    table = pa.table({name: pa.array(values) for name, values in lines.items()})
    arrays = pa.array([[k, k + 1] for k in range(8)], pa.list_(pa.int64(), 2))
    lists = pa.array([[*range(k % 3)] for k in range(8)])
    return tmp_path / "f.h5", table.append_column("v", arrays).append_column("l", lists)


def read(path, table, name, *, pad="edge", missing="error", **options):
    """Return the windows of the step before and of each step, of a column of a table."""
    windows = Windows({"w": (name, [-1, 0])}, episode="ep", pad=pad)
    return H5Dataset(path, ["x", "w"], windows=windows, sidecar=Sidecar(table, on="id", missing=missing), **options)


@pytest.mark.parametrize("kind", ["table", "HDF5"])
def test_steps_without_a_line_follow_the_rules_of_the_table(kind, episodes, tmp_path):
    path, table = episodes
    table = table.filter(pc.not_equal(table["id"], 5))
    if kind == "HDF5":
        with h5py.File(tmp_path / "table.hdf5", "w") as file:
            for name in ("id", "i", "g", "v"):
                file[name] = np.array(table[name].to_pylist())
        table = tmp_path / "table.hdf5"
    found = read(path, table, "g", missing="null")
    expected = [[0, 0], [0, 1.5], [1.5, 3], [3, 4.5], [6, 6], [6, np.nan], [np.nan, 9], [9, 10.5]]
    np.testing.assert_array_equal(found[range(8)]["w"], expected)
    for name in ("i", "v"):
        with pytest.raises(RayH5Error, match=r"row 5: column 'w' .* cannot say so"):
            read(path, table, name, missing="null")
        dropped = read(path, table, name, missing="drop")
        assert [plain(row["x"]) for row in dropped] == [0, 1, 2, 3, 4, 7]
        with pytest.raises(RayH5Error, match=r"1 of 8 rows have no line; their keys: 5; the first is .*row 5"):
            read(path, table, name)
    with_nan = read(path, table, "i", missing="null", dtypes={"w": "float32"})
    np.testing.assert_array_equal(with_nan[5]["w"], [4, np.nan])
    # A step that no window reaches needs no line.
    windows = Windows({"w": ("i", [0])}, episode="ep", stride=2)
    assert len(H5Dataset(path, ["x", "w"], windows=windows, sidecar=Sidecar(table, on="id"))) == 4


def test_kinds_of_values(episodes):
    path, table = episodes
    windows = Windows({name: [-1, 0] for name in ("i", "s", "when", "v", "l")}, episode="ep", pad="zero")
    row = H5Dataset(path, windows=windows, sidecar=Sidecar(table, on="id"))[4]
    assert (plain(row["i"]), row["s"], plain(row["v"])) == ([0, 4], ["", "e"], [[0, 0], [4, 5]])
    assert np.isnat(row["when"]).tolist() == [True, False]
    assert plain(row["l"]) == [[], [0]]
    assert row["i_is_pad"].tolist() == [True, False]
    numbered = read(path, table, "s", labels={"w": [*"hgfedcba"]})
    assert numbered[3]["w"].tolist() == [5, 4]
    assert read(path, table, "s", labels={"w": "auto"})[3]["w"].tolist() == [2, 3]
    (batch,) = loader(read(path, table, "g"), 8, shuffle=False)
    assert batch["w"][:, 1].tolist() == (np.arange(8) * 1.5).tolist()


def test_predicates_and_moments(episodes):
    path, table = episodes
    kept = read(path, table, "i", pad="zero", predicate=where(w=any_equal(0)))
    assert [plain(row["x"]) for row in kept] == [0, 1, 4]  # the last one begins with a zero
    without = table.set_column(1, "i", pc.if_else(pc.equal(table["i"], 4), None, table["i"]))
    for lines in (table, without):
        of_rows = H5Dataset(path, ["x"], where(i=any_equal(4)), sidecar=Sidecar(table, on="id"))
        assert [plain(row["x"]) for row in of_rows] == [4]
        kept = read(path, lines, "i", predicate=where(w=any_equal(0)))
        assert [plain(row["x"]) for row in kept] == [0, 1]  # an empty entry is no zero
    by_step = Sidecar(table.drop_columns("id"), on="step")
    assert len(H5Dataset(path, ["i"], windows=Windows({"i": [-1, 0]}), sidecar=by_step)) == 8
    with pytest.raises(RayH5Error, match=r"write where\(\*\*{'w': any_equal\(value\)}\)"):
        read(path, table, "i", predicate=where(w=2))
    with pytest.raises(RayH5Error, match="holds an array"):
        loader(read(path, table, "i"), 2, shuffle=Shuffle(weights="w"))
    both = Windows({"f": [-1, 0], "g": [-1, 0]}, episode="ep", stride=2)
    scaler = Standardize(["f", "g"]).fit(H5Dataset(path, ["f", "g"], windows=both, sidecar=Sidecar(table, on="id")))
    once = np.mean([0, 1, 2, 4, 5, 6]) * 1.5  # each step that windows reach counts once
    assert scaler.stats_["f"].mean == scaler.stats_["g"].mean == once


def test_a_plan_is_as_long_as_the_steps(episodes):
    path, table = episodes
    sizes = []
    for width in (2, 2000):
        windows = Windows({"w": ("i", range(-width, 0))}, episode="ep")
        found = H5Dataset(path, ["x", "w"], windows=windows, sidecar=Sidecar(table, on="id"))
        sizes.append(found.source.plan.beside.columns["w"].lines.numbers.nbytes)
        assert pickle.loads(pickle.dumps(found))[7]["w"].tolist() == found[7]["w"].tolist()
    assert sizes == [8, 8]


def test_what_is_the_same_at_each_step_has_no_windows(episodes):
    path, table = episodes
    of_file = pa.table({"path": ["f"], "g": [1.0]})
    for sidecar, said in (
        (Sidecar(of_file, on="path"), r"joined by 'path', which has one value for each episode: it is the same .*on="),
        (Sidecar(table.rename_columns(["key", *table.column_names[1:]]), on="ep", key="key"), "joined by 'ep'"),
    ):
        with pytest.raises(RayH5Error, match=said):
            H5Dataset(path, windows=Windows({"x": [0], "g": [-1, 0]}, episode="ep"), sidecar=sidecar)
    with pytest.raises(RayH5Error, match="'site' is an attribute of the files, which is the same at each step"):
        H5Dataset(path, windows=Windows({"x": [0], "site": [-1, 0]}, episode="ep"), attrs=["site"])
    by_row = Sidecar(table.drop_columns("id"), on="row_id")
    assert len(H5Dataset(path, ["g"], windows=Windows({"x": [0], "g": [-1, 0]}), sidecar=by_row)) == 8
    with pytest.raises(RayH5Error, match="numbers of windows, and not each step has one"):
        H5Dataset(path, ["g"], windows=Windows({"x": [0], "g": [-1, 0]}, pad="drop"), sidecar=by_row)
    with pytest.raises(RayH5Error, match="'g' is a column of a table or an attribute, which has no times of its own"):
        H5Dataset(path, ["g"], windows=Windows({"x": [0.0], "g": [0.0]}, at="f"), sidecar=Sidecar(table, on="id"))


def test_files_that_are_steps(tmp_path):
    for number in range(5):
        with h5py.File(tmp_path / f"{'ab'[number // 3]}_{number}.h5", "w") as file:
            file["x"], file.attrs["wind"] = np.full(2, number), number * 10
    table = pa.table({"path": ["a_0", "a_1", "a_2", "b_3", "b_4"], "stage": [5, 6, 7, 8, 9]})
    windows = Windows(
        {"x": [0], "stage": [-1, 0], "wind": [1]}, episode={f"{e}_{n}": e for n, e in enumerate("aaabb")}, pad="zero"
    )
    options = {"rows": Files(), "windows": windows, "sidecar": Sidecar(table, on="path"), "attrs": ["wind"]}
    found = H5Dataset(tmp_path, **options)
    assert [row["stage"].tolist() for row in found] == [[0, 5], [5, 6], [6, 7], [0, 8], [8, 9]]
    assert [row["wind"].tolist() for row in found] == [[10], [20], [0], [40], [0]]
    assert [row["stage_is_pad"].tolist() for row in found] == [[n in (0, 3), False] for n in range(5)]


@pytest.mark.usefixtures("ray_local")
def test_in_ray(episodes, tmp_path):
    path, table = episodes
    with h5py.File(tmp_path / "table.hdf5", "w") as file:
        file["id"], file["h"] = np.arange(8)[::-1], np.arange(8)[::-1] * 2
    names = ["i", "s", "v", "h", "h_is_pad"]
    windows = Windows({name: [-1, 0] for name in names[:-1]}, episode="ep", pad="zero")
    sidecar = [Sidecar(table, on="id"), Sidecar(tmp_path / "table.hdf5", on="id")]
    ds = read_h5(path, columns=["x", *names], windows=windows, sidecar=sidecar)
    rows = ds.filter(expr=where(i=any_equal(4))).take_all()
    assert [row["x"] for row in rows] == [4, 5]
    expected = H5Dataset(path, ["x", *names], where(i=any_equal(4)), windows=windows, sidecar=sidecar)
    for name in names:
        assert str([plain(row[name]) for row in rows]) == str([plain(row[name]) for row in expected]), name
