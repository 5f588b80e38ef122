"""Columns of shape (rows, 1), as MATLAB and Keras write labels, choose rows as those of shape (rows,) do."""

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import Shuffle, Sidecar, Windows, balance, ragged, row_mask
from ray_h5.cli import main
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.torch_data import H5Dataset, OrderSampler, between, kfold, loader, where

ROWS = 40


@pytest.fixture
def paths(tmp_path):
    """Return a file with labels of one axis, and one with one or three more axes of one."""
    rng = np.random.default_rng(3)
    columns = {
        "label": rng.integers(0, 4, ROWS).astype("u1"),
        "group": np.array([f"p{i // 5}" for i in range(ROWS)], "S"),
        "weight": rng.random(ROWS).astype("f4"),
        "ok": rng.random(ROWS) < 0.5,
    }
    paths = [str(tmp_path / f"{name}.h5") for name in ("flat", "axes")]
    for path, more in zip(paths, ([()] * 4, [(1,), (1, 1, 1)] * 2), strict=True):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(ROWS)
            for (name, values), axes in zip(columns.items(), more, strict=True):
                file[name] = values.reshape(ROWS, *axes)
    return paths


def chosen(path, predicate, **options):
    return H5Dataset(path, ["x"], predicate, **options)[:]["x"].tolist()


PREDICATES = {
    "a value": where(label=1),
    "several": where(label=[1, 3]),
    "a range": where(weight=between(0.2, 0.7)),
    "text": where(group=["p1", "p4"]),
    "a boolean": ~where(ok=True),
    "two": where(label=2, group="p3") | where(weight=between(0.9, None)),
}


@pytest.mark.parametrize("predicate", PREDICATES.values(), ids=PREDICATES)
def test_predicates(paths, predicate, tmp_path):
    flat, axes = (chosen(path, predicate) for path in paths)
    assert flat == axes
    for _ in range(2):
        MEMORY.clear()
        assert chosen(paths[1], predicate, index_dir=str(tmp_path / "index")) == flat


@pytest.mark.parametrize("options", [{"group": "group", "stratify": "label"}, {"stratify": "label"}], ids=str)
def test_folds(paths, options):
    folds = [[chosen(path, rows) for pair in kfold(path, 4, **options) for rows in pair] for path in paths]
    assert folds[0] == folds[1]


@pytest.mark.parametrize(
    "shuffle", [Shuffle(weights="weight"), Shuffle(weights=balance("label")), Shuffle(by_length="label")], ids=str
)
def test_draws(paths, shuffle):
    orders = [list(OrderSampler(H5Dataset(path), shuffle=shuffle)) for path in paths]
    assert orders[0] == orders[1]
    assert next(iter(loader(paths[1], 4, shuffle=shuffle)))["label"].shape[0] == 4


def test_tables_and_classes(paths, tmp_path):
    (tmp_path / "a.csv").write_text("group,age\n" + "\n".join(f"p{i},{i + 30}" for i in range(8)))
    table = Sidecar(tmp_path / "a.csv", on="group")
    flat, axes = (H5Dataset(path, sidecar=table, labels={"label": "auto"})[:] for path in paths)
    assert flat["age"].tolist() == axes["age"].tolist()
    assert flat["label"].tolist() == axes["label"].flatten().tolist()
    assert axes["label"].ndim > 1


def test_the_index_is_made_ahead(paths, tmp_path):
    assert main(["index", paths[1], "--dir", str(tmp_path / "index"), "--values", "label", "group"]) == 0
    MEMORY.clear()
    assert chosen(paths[1], where(label=1), index_dir=str(tmp_path / "index")) == chosen(paths[0], where(label=1))


def test_episodes_bounds_masks_and_attributes(tmp_path):
    steps = np.arange(ROWS)
    columns = {"episode": steps // 10, "done": steps % 10 == 9, "train": steps < 20}
    for name, axes in (("flat", ()), ("axes", (1,))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["obs"] = np.arange(ROWS)
            for column, values in columns.items():
                file[column] = values.reshape(ROWS, *axes)
            for column, values in (("ends", [7, 30, 40]), ("offsets", [0, 7, 30, 40])):
                file[column] = np.array(values).reshape(-1, *axes)
            file.attrs["rate"] = np.full((1,) * (2 * len(axes)), 250.0)
    ways = [{"episode": "episode"}, {"episode_flags": "done"}, {"episode_ends": "ends"}]
    options = [{"windows": Windows({"obs": range(4)}, pad="drop", **way)} for way in ways]
    options += [{"predicate": where(train=row_mask())}, {"attrs": ["rate"]}]
    for given in options:
        flat, axes = (H5Dataset(tmp_path / f"{name}.h5", ["obs"], **given)[:] for name in ("flat", "axes"))
        assert flat["obs"].tolist() == axes["obs"].tolist()
    assert H5Dataset(tmp_path / "axes.h5", ["obs", "rate"], attrs=["rate"])[0]["rate"] == 250
    flat, axes = (
        H5Dataset(tmp_path / f"{name}.h5", [ragged("obs", offsets="offsets")])[:] for name in ("flat", "axes")
    )
    assert [row.tolist() for row in flat["obs"]] == [row.tolist() for row in axes["obs"]]


@pytest.mark.usefixtures("ray_local")
def test_in_ray(paths):
    wanted = chosen(paths[0], where(label=1))
    rows = ray_h5.read_h5(paths[1])
    for each in (rows, rows.map_batches(lambda batch: batch)):
        assert sorted(row["x"] for row in each.filter(expr=ray_h5.where(label=1)).take_all()) == wanted
