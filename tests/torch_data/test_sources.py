"""Columns of other files, which change after the dataset was made: plain PyTorch."""

import os
import pickle

import h5py
import numpy as np
import pytest

from ray_h5.errors import StaleIndexError
from ray_h5.torch_data import H5Dataset, where
from tests.hdf5.h5kit import layout_of
from tests.kit.files import save

LABELS = np.arange(40) % 4


def put(path, values):
    os.replace(save(f"{path}.new", {"label": values}), path)


@pytest.fixture
def world(tmp_path):
    """Return two files whose labels are in one other file each, and those."""
    mains, sources = [], []
    for i in range(2):
        sources.append(str(tmp_path / f"labels{i}.h5"))
        put(sources[-1], LABELS)
        mains.append(str(tmp_path / f"a{i}.h5"))
        link, stack = h5py.ExternalLink("labels0.h5", "label"), layout_of("labels1.h5", "label", (40,))
        save(mains[-1], {"x": np.arange(40) + 40 * i, "label": stack if i else link})
    return mains, sources


def dataset_of(world, columns=("x", "label"), **options):
    return H5Dataset(world[0], list(columns), allow_external=os.path.dirname(world[0][0]), **options)


@pytest.mark.parametrize("kept_bytes", [None, 0])
@pytest.mark.parametrize(("columns", "selected"), [(("x", "label"), False), (("x",), True), (("x",), False)])
def test_a_source_that_changes(world, kept_bytes, columns, selected):
    predicate = where(label=2) if selected else None
    dataset = dataset_of(world, columns, predicate=predicate, kept_bytes=kept_bytes)
    for _ in range(2):
        assert len(dataset[:]["x"]) == len(dataset) == (20 if selected else 80)
    put(world[1][1], LABELS[::-1].copy())
    half = len(dataset) // 2
    assert len(dataset[:half]["x"]) == half, "the first file is as it was"
    for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
        if not selected and "label" not in columns:
            assert dataset[:]["x"].tolist() == list(range(80))
            continue
        for _ in range(2):
            with pytest.raises(StaleIndexError) as caught:
                copy[half:]
            for part in (world[0][1], "column 'label'", world[1][1]):
                assert part in str(caught.value)
    again = dataset_of(world, predicate=where(label=1))
    assert again[:]["label"].tolist() == [1] * 20
    assert again[10:]["x"].tolist() == [40 + row for row in range(40) if LABELS[::-1][row] == 1]


def test_each_source_is_looked_at_once_a_batch(tmp_path, monkeypatch):
    """However many files lead to it, and columns."""
    put(tmp_path / "labels.h5", LABELS)
    for i in range(8):
        with h5py.File(tmp_path / f"a{i}.h5", "w") as file:
            file["x"] = np.arange(40)
            file["label"] = file["other"] = h5py.ExternalLink("labels.h5", "label")
    dataset = H5Dataset(f"{tmp_path}/a*.h5", allow_external=tmp_path, predicate=where(label=2))
    dataset[:]
    stat, looked = os.stat, []
    monkeypatch.setattr(os, "stat", lambda path, *args, **options: looked.append(path) or stat(path, *args, **options))
    dataset[:]
    assert looked.count(str(tmp_path / "labels.h5")) == 1
    assert len(dataset._source.plan.sources.of_files()) == 1


def test_columns_in_raw_files_are_read_from_their_own(tmp_path):
    def raw(name, first, count):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for column in "xy":
                path = tmp_path / f"{name}.{column}"
                dataset = file.create_dataset(column, (count,), "i8", external=[(str(path), 0, h5py.h5f.UNLIMITED)])
                dataset[...] = np.arange(first, first + count) * (-1 if column == "y" else 1)

    raw("a", 1, 1)
    raw("b", 2, 9)
    dataset = H5Dataset([tmp_path / "a.h5", tmp_path / "b.h5"], allow_external=tmp_path, kept_bytes=0)
    for rows in ([3], [0, 1, 9, 4], [5, 0, 0, 7, 1], [9, 0], range(10)):
        values = dataset.read(np.array(rows))
        assert values["x"].tolist() == [row + 1 for row in rows]
        assert values["y"].tolist() == [-row - 1 for row in rows]
