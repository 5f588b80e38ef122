"""One way from rows to batches: whatever delivers them."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import errors
from ray_h5.torch_data import H5DataLoader, H5Dataset, OrderSampler, loader

ABOVE = {"compat", "loading", "order", "plan", "torch_data"}


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.random.default_rng(0).random((640, 3)), np.arange(640)
    return str(tmp_path / "a.h5")


def modules_of(work):
    """Return the modules above the reading that calls pass, and how often they enter each."""
    root, entered, last = Path(ray_h5.__file__).parent, {}, None

    def look(frame, event, _):
        nonlocal last
        name = Path(frame.f_code.co_filename)
        if event == "call" and name.is_relative_to(root) and name != last:
            last, known = name, name.relative_to(root)
            entered[str(known)] = entered.get(str(known), 0) + 1

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {name: count for name, count in entered.items() if name.split("/")[0] in ABOVE}


def test_a_batch_passes_few_modules_and_enters_its_dataset_once(path):
    for options, most in (({}, 10), ({"transform": lambda sample: sample}, 14)):
        dataset = H5Dataset(path, kept_bytes=0, **options)
        batches = iter(H5DataLoader(dataset, 16, OrderSampler(dataset, run_length=16), prefetch_factor=1))
        next(batches)
        next(batches)
        passed = modules_of(lambda batches=batches: next(batches))
        assert len(passed) <= most, passed
        assert passed.get("torch_data/dataset.py", 0) <= 1


class Halves(H5Dataset):
    """Halves what a loader makes of arrays."""

    def collate(self, arrays):
        batch = super().collate(arrays)
        batch["x"] = batch["x"] / 2
        return batch


def test_a_subclass_that_collates_itself_is_asked(path):
    plain, halved = (next(iter(loader(made, 8))) for made in (H5Dataset(path), Halves(path)))
    assert np.array_equal(plain.x / 2, halved.x)


def test_a_dataset_that_is_closed_while_it_is_read_ends_the_epoch(path):
    dataset = H5Dataset(path)
    batches = iter(H5DataLoader(dataset, 16, prefetch_factor=1))
    next(batches)
    dataset.close()
    with pytest.raises(errors.OptionError, match="H5Dataset: this dataset is closed"):
        next(batches)
