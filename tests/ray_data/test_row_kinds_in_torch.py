"""Groups and windows in Ray and in plain PyTorch: the same rows in the same order, resumed, filtered and cut alike."""

import h5py
import numpy as np
import pytest
import torch

import ray_h5
from ray_h5 import Groups, Shuffle, Windows, between, set_epoch, where
from ray_h5.torch_data import H5Dataset, loader
from tests.ray_data.kit import position_at

pytestmark = pytest.mark.usefixtures("ray_local")

DEMOS = Groups("data/demo_*", attrs=("level",), key="demo")
WINDOWS = Windows({"actions": range(-1, 4), "image": [0, -1]}, stride=2, pad=("edge", "zero"))
LENGTHS = [5, 11, 1, 8, 3, 14, 6]


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(3):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            for k, length in enumerate(LENGTHS[i:] + LENGTHS[:i]):
                group = file.create_group(f"data/demo_{k}")
                group["actions"] = rng.normal(size=(length, 3)).astype("f4")
                image = rng.integers(0, 255, (length, 4, 4), "u1")
                group.create_dataset("image", data=image, chunks=(3, 4, 4), maxshape=(None, 4, 4), compression="gzip")
                group.attrs["level"] = (i + k) % 3
    return [str(tmp_path / f"{i}.h5") for i in range(3)]


def in_torch(paths, unit, columns, predicate, options, epoch):
    """Return the samples of an epoch of a loader, one after the other, and their row ids."""
    dataset = H5Dataset(paths, columns, predicate, rows=DEMOS, **options)
    made = loader(dataset, batch_size=4, shuffle=Shuffle(unit, 7))
    made.set_epoch(epoch)
    samples = []
    for batch in made:
        count = len(batch["level"])
        samples += [{name: values[i] for name, values in batch.items()} for i in range(count)]
    order = dataset.epoch_order(Shuffle(unit, 7)).selected_indices(np.arange(len(dataset)), epoch)
    return samples, dataset.row_ids(order).tolist()


def rows_of(ds):
    found = []
    for batch in ds.iter_batches(batch_size=None):
        count = len(batch["row_id"])
        found += [{name: values[i] for name, values in batch.items()} for i in range(count)]
    return found


def assert_alike(rows, samples):
    assert len(rows) == len(samples)
    for row, sample in zip(rows, samples, strict=True):
        for name, value in sample.items():
            if isinstance(value, torch.Tensor):
                np.testing.assert_array_equal(row[name], value.numpy(), err_msg=name)
            else:
                assert row[name] == value, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["groups", "windows"])
def test_the_same_rows_in_the_same_order(paths, kind):
    options = {"windows": WINDOWS} if kind == "windows" else {}
    columns = ["actions", "image", "level", "demo", *(["actions_is_pad"] if options else [])]
    predicate = where(level=between(1, None))
    for unit in ("rows", "chunks", "files"):
        ds = ray_h5.read_h5(
            paths, columns=columns, rows=DEMOS, shuffle=Shuffle(unit, 7), block_rows=4,
            include_row_ids=True, include_row_keys=True, **options,
        ).filter(expr=predicate)  # fmt: skip
        samples, order = in_torch(paths, unit, columns, predicate, options, 2)
        set_epoch(ds, 2)
        whole = rows_of(ds)
        assert [int(row["row_id"]) for row in whole] == order
        assert_alike(whole, samples)
        assert len({int(row["row_key"]) for row in whole}) == len(whole)
        if unit == "rows":
            check_parts_of_it(ds, whole, order)


def check_parts_of_it(ds, whole, order):
    set_epoch(ds, 2)
    set_epoch(ds, 2, position=position_at(ds, 2, 8))
    assert [int(row["row_id"]) for row in rows_of(ds)] == order[8:]
    set_epoch(ds, 2)
    few = ds.select_columns(["demo", "row_id", "row_key"]).limit(5)
    assert [row["row_id"] for row in few.take_all()] == order[:5]
    set_epoch(ds, 2)
    keys = rows_of(ds.select_columns(["row_key", "row_id"]))
    assert [int(row["row_key"]) for row in keys] == [int(row["row_key"]) for row in whole]
