"""Rows of shape (n, 1) in one file and (n,) in another: one column, and one warning."""

import h5py
import numpy as np
import pytest
import torch

import ray_h5
from ray_h5 import Files, Groups, H5Dataset, Shuffle, Windows, balance, loader, where
from ray_h5.errors import SchemaMismatchError
from tests.kit.files import save

ROWS = [4, 3, 5]


@pytest.fixture
def folder(tmp_path):
    for i, rows in enumerate(ROWS):
        label, x = np.arange(rows) + 10 * i, np.random.default_rng(i).random((rows, 3))
        name = np.array([f"{i}-{k}" for k in range(rows)], "S4")
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["label"] = label[:, None] if i == 1 else label
            file["name"] = name[:, None, None] if i == 2 else name
            file.create_dataset("x", data=x[:, :, None] if i == 0 else x, chunks=(2, 3, 1)[: 3 if i == 0 else 2])
    return tmp_path


def stored(folder, name):
    found = []
    for i, rows in enumerate(ROWS):
        with h5py.File(folder / f"{i}.h5") as file:
            found.append(file[name][...].reshape(rows, *([3] if name == "x" else [])))
    return np.concatenate(found)


def test_files_with_and_without_the_axis(folder, caplog):
    dataset = H5Dataset(folder, ["label", "name", "x"])
    assert caplog.text.splitlines()[0].endswith(
        f"column 'label' has rows of shape () in {folder}/0.h5, (1,) in {folder}/1.h5: they are read without the last "
        "axes of one"
    )
    assert len(caplog.records) == 3
    rows = np.array([11, 5, 0, 4, 8])
    found = dataset.read(rows)
    for name in ("label", "x"):
        assert np.array_equal(found[name], stored(folder, name)[rows])
    assert found["name"].tolist() == stored(folder, "name")[rows].tolist()
    assert [dataset[i]["label"] for i in range(12)] == stored(folder, "label").tolist()
    batches = list(loader(folder, 5, columns=["label", "name", "x"], shuffle=False))
    assert np.array_equal(np.concatenate([each["x"] for each in batches]), stored(folder, "x"))
    assert [n for each in batches for n in each["name"]] == [n.decode() for n in stored(folder, "name")]


def test_in_predicates_labels_weights_and_windows(folder):
    labels = stored(folder, "label")
    chosen = H5Dataset(folder, ["label"], where(label=[2, 11, 24], name=["1-1", "0-2"]))
    assert chosen[:]["label"].tolist() == [2, 11]
    classes = H5Dataset(folder, ["label"], labels={"label": {int(each): i for i, each in enumerate(labels)}})
    assert classes[:]["label"].tolist() == list(range(12))
    order = H5Dataset(folder, ["label"]).epoch_order(Shuffle(weights=balance("label"), rows_per_epoch=20))
    assert len(order.selected_indices(np.arange(20), 0)) == 20
    windows = H5Dataset(folder, ["x"], windows=Windows({"x": [0, 1]}, pad="drop"))
    assert np.array_equal(windows.read(np.array([3]))["x"][0], stored(folder, "x")[4:6])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_local")
def test_in_ray(folder, tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    for _ in range(2):
        ds = ray_h5.read_h5([str(folder / f"{i}.h5") for i in range(3)], columns=["label", "x"], index_dir=index)
        rows = ds.take_all()
        assert [row["label"] for row in rows] == stored(folder, "label").tolist()
        assert np.array_equal(np.stack([row["x"] for row in rows]), stored(folder, "x"))
        assert ds.filter(expr=where(label=[11])).count() == 1
    rows = ray_h5.read_h5(str(folder / "*.h5"), columns=["label", "x"], rows=Files()).take_all()
    assert np.concatenate([row["label"] for row in rows]).tolist() == stored(folder, "label").tolist()
    assert np.array_equal(np.concatenate([row["x"] for row in rows]), stored(folder, "x"))


@pytest.mark.parametrize("kind", [Files(), Groups("g", name="g")])
def test_rows_of_varying_length(tmp_path, caplog, kind):
    lengths, expected = [3, 5, 4], []
    for i, length in enumerate(lengths):
        expected.append(np.arange(length) + 10 * i)
        save(tmp_path / f"{i}.h5", {"g": expected[-1][:, None] if i != 1 else expected[-1]})
    dataset = H5Dataset(tmp_path, rows=kind)
    assert "rows of shape (5,) in" in caplog.text
    assert all(torch.equal(row["g"], torch.from_numpy(each)) for row, each in zip(dataset, expected, strict=True))
    (batch,) = loader(tmp_path, 3, rows=kind, pad=0, shuffle=False)
    assert batch["g_length"].tolist() == lengths
    assert batch["g"].tolist() == [[*each, *[0] * (5 - len(each))] for each in expected]


def test_other_axes_are_still_told_apart(folder):
    with h5py.File(folder / "0.h5", "a") as file:
        del file["x"]
        file["x"] = np.zeros((4, 1, 3))
    with pytest.raises(SchemaMismatchError, match=r"column 'x': expected float64 \(3,\), found float64 \(1, 3\)"):
        H5Dataset(folder, ["x"])


def test_groups_of_one_value_beside_longer_ones(tmp_path):
    for i, lengths in enumerate([(1, 2, 3), (1,)]):
        save(tmp_path / f"{i}.h5", {f"g{k}/x": np.arange(length) + 10.0 * i for k, length in enumerate(lengths)})
    dataset = H5Dataset(tmp_path, rows=Groups("g*"))
    assert [row["x"].tolist() for row in map(dataset.__getitem__, range(4))] == [[0], [0, 1], [0, 1, 2], [10]]
