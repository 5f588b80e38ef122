"""Batches of rows of varying shape are padded on request; samples are not."""

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ray_h5 import Groups, H5Dataset
from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.torch_data import loader

ROWS = Groups("g*")
LENGTHS = [3, 1, 5, 2]


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, length in enumerate(LENGTHS):
            file[f"g{i}/x"] = np.arange(2 * length).reshape(length, 2)
            file[f"g{i}/text"] = np.full(8, i)
            file[f"g{i}/text_length"] = 2  # a column of the user's own
            file.create_dataset(f"g{i}/words", data=np.array(["a"] * (length - 1), object), dtype=h5py.string_dtype())
    return tmp_path / "a.h5"


def check(batches):
    rows = [(batch["x"][i], int(batch["x_length"][i])) for batch in batches for i in range(len(batch["x"]))]
    for (padded, found), length in zip(rows, LENGTHS, strict=True):
        assert found == length
        assert torch.equal(padded[:length], torch.arange(2 * length).reshape(length, 2))
        assert (padded[length:] == -1).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_samples(path, workers):
    dataset = H5Dataset(path, ["x", "text", "text_length"], rows=ROWS, pad=-1)
    for sample, length in zip(dataset, LENGTHS, strict=True):
        assert sample["x"].shape == (length, 2)
        assert sample["x_length"] == length
        assert sample["text"].shape == (8,)  # it has a length of the user's own
    check(DataLoader(dataset, batch_size=3, num_workers=workers))


def test_a_loader(path):
    check(loader(path, batch_size=3, shuffle=False, columns=["x"], rows=ROWS, pad={"x": -1}))


@pytest.mark.parametrize("pad", [True, {"x": 0}])
def test_texts_stay_lists(path, pad):
    dataset = H5Dataset(path, ["x", "words"], rows=ROWS, pad=pad)
    assert [len(sample["words"]) for sample in dataset] == [length - 1 for length in LENGTHS]


@pytest.mark.parametrize(
    ("columns", "pad", "error", "said"),
    [
        (["x"], {"xx": 0}, UnknownColumnError, "pad: no column xx|pad: no column 'xx'"),
        (["x", "x_length"], True, UnsupportedColumnError, "'x_length', which there is already"),
        (["x"], "edge", OptionError, "expected True, a number, or a number for each column"),
    ],
)
def test_what_cannot_be_padded(path, columns, pad, error, said):
    with h5py.File(path, "a") as file:
        for i in range(len(LENGTHS)):
            file[f"g{i}/x_length"] = i
    with pytest.raises(error, match=said):
        H5Dataset(path, columns, rows=ROWS, pad=pad)
