"""One way from rows to batches: whatever delivers them."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import ray_h5
from ray_h5 import Groups, Shuffle, Windows, errors, ragged, where
from ray_h5.loading import rank_shares
from ray_h5.loading.read_calls import Task
from ray_h5.torch_data import H5DataLoader, H5Dataset, OrderBatchSampler, OrderSampler, loader
from ray_h5.torch_data.batches import processes
from tests.kit.files import save

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


def of_loader(**options):
    return lambda data: H5DataLoader(data, 16, OrderSampler(data, run_length=16), prefetch_factor=1, **options)


# What users write adds the module that makes samples. Workers begin with the dataset, which a DataLoader asks.
WAYS = {
    "plain": ({}, of_loader(), 10, 0),
    "transform": ({"transform": dict}, of_loader(), 11, 0),
    "collate_fn": ({}, of_loader(collate_fn=list), 11, 0),
    "DataLoader": ({"transform": dict}, lambda data: DataLoader(data, 16, sampler=OrderSampler(data)), 10, 1),
    "worker": (
        {},
        lambda data: (processes._made(data, list, Task(range(at, at + 16))) for at in range(0, 64, 16)),
        10,
        1,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_passes_few_modules_and_enters_its_dataset_once(path, way):
    options, made, most, times = WAYS[way]
    batches = iter(made(H5Dataset(path, kept_bytes=0, **options)))
    next(batches)
    next(batches)
    passed = modules_of(lambda: next(batches))
    assert len(passed) <= most, passed
    assert passed.get("torch_data/dataset.py", 0) == times


class Halves(H5Dataset):
    """Halves what a loader makes of arrays."""

    def collate(self, arrays):
        batch = super().collate(arrays)
        batch["x"] = batch["x"] / 2
        return batch


class Rounds(H5Dataset):
    """Makes samples of arrays itself."""

    def samples(self, arrays):
        return [{**sample, "x": sample["x"].round()} for sample in super().samples(arrays)]


def test_a_subclass_that_collates_itself_is_asked(path):
    plain, halved = (next(iter(loader(made, 8))) for made in (H5Dataset(path), Halves(path)))
    assert np.array_equal(plain.x / 2, halved.x)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 2}, {"workers": 1}])
def test_a_subclass_that_makes_samples_of_arrays_is_asked(path, options):
    (expected, *_), (batch, *_) = DataLoader(Rounds(path), 8), loader(Rounds(path), 8, shuffle=False, **options)
    assert torch.equal(batch["x"], expected["x"])
    assert torch.equal(batch["x"], H5Dataset(path)[:8]["x"].round())


def test_a_dataset_that_is_closed_while_it_is_read_ends_the_epoch(path):
    dataset = H5Dataset(path)
    batches = iter(H5DataLoader(dataset, 16, prefetch_factor=1))
    next(batches)
    dataset.close()
    with pytest.raises(errors.OptionError, match="H5Dataset: this dataset is closed"):
        next(batches)


# The same batches on each way ----------------------------------------------------------------------

KINDS = {
    "rows": {},
    "selected": {"predicate": ray_h5.where(y=ray_h5.between(40, 300))},
    "ragged": {"columns": [ragged("v", offsets="o")], "pad": -1},
    "windows": {"columns": ["x"], "windows": Windows({"x": [-1, 0]}), "include_steps": True},
    "named": {"columns": ["x", "y"], "pad": {"x": 2.0}},
    "groups": {"group": "g", "rows": Groups("*"), "columns": ["a"], "pad": True},
    "episodes": {"rows": Groups("g/*"), "columns": ["a"], "windows": Windows({"a": [0, 1]}), "include_steps": True},
}
SHUFFLES = {
    "chunks": Shuffle("chunks", 3, window_rows=64),
    "weights": Shuffle("rows", 3, weights={"*b.h5": 0.7, "*a.h5": 0.3}),
    "half": Shuffle("rows", 5, rows_per_epoch=100),
    "none": False,
}
ADDED = {"include_paths": True, "include_row_ids": True, "include_row_keys": True}
RANKS, SIZE = 3, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_kinds(tmp_path_factory.mktemp("files"))


def write_kinds(folder):
    """Write two files that each of `KINDS` reads."""
    rng = np.random.default_rng(0)
    for name, rows in (("a", 203), ("b", 150)):
        ends = np.cumsum(rng.integers(0, 5, rows))
        arrays = {"x": rng.random((rows, 3)), "y": np.arange(rows), "o": np.r_[0, ends], "v": np.arange(ends[-1])}
        groups = {f"g/{number}/a": rng.random((1 + number % 4, 2)) for number in range(rows // 8)}
        save(folder / f"{name}.h5", {**arrays, **groups})
    return folder


def same(values, others):
    """Return whether columns of two batches are equal: tensors, arrays, or lists of text and tensors."""
    if isinstance(values, torch.Tensor) and isinstance(others, torch.Tensor):
        return values.dtype == others.dtype and values.numpy().tobytes() == others.numpy().tobytes()
    return len(values) == len(others) and all(
        torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        for value, other in zip(values, others, strict=True)
    )


def check_same(batches, expected, names=None):
    batches = list(batches)
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        for name in names or other:
            assert same(batch[name], other[name]), name


def epochs_of(made, epoch):
    made.set_epoch(epoch)
    return list(made)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_way_has_the_same_batches(folder, kind, shuffle):
    """The keys of rows differ from epoch to epoch, and where a row is drawn twice; padding is marked alone."""
    options = {"columns": ["x", "y"], **KINDS[kind], **ADDED, "include_padding": True}
    how = {"shuffle": SHUFFLES[shuffle], "seed": 0, "world_size": RANKS}
    dataset = H5Dataset(f"{folder}/*.h5", **options)
    seen, keys = [], []
    for rank in range(RANKS):
        made = loader(dataset, SIZE, rank=rank, **how)
        expected = epochs_of(made, 1)
        seen += expected
        own = {**how, "rank": rank}
        sampler, batches = OrderSampler(dataset, run_length=SIZE, **own), OrderBatchSampler(dataset, SIZE, **own)
        for each in (sampler, batches):
            each.set_epoch(1)
        check_same(DataLoader(dataset, SIZE, sampler=sampler), expected)
        check_same(DataLoader(dataset, batch_sampler=batches), expected)
        if rank == 1 and shuffle in ("weights", "none"):
            check_same(DataLoader(dataset, batch_sampler=batches, num_workers=1), expected)
            check_same(epochs_of(loader(dataset, SIZE, workers=1, **own), 1), expected)
        check_same(epochs_of(loader(dataset, SIZE, threads=0, **own), 1), expected)
        keys += [key for batch in epochs_of(made, 2) for key in batch["row_key"].tolist()]
    padding = np.concatenate([batch["is_padding"].numpy() for batch in seen])
    now = np.concatenate([batch["row_key"].numpy() for batch in seen])
    assert padding.sum() == len(padding) - (100 if shuffle == "half" else len(dataset))
    assert len({*now[~padding].tolist()}) == len(now[~padding])
    assert not {*now.tolist()} & {*keys}
    assert {*now[padding].tolist()} <= {*now[~padding].tolist()}


@pytest.mark.parametrize("kind", [DataLoader, H5DataLoader])
def test_indices_without_an_epoch_have_keys_of_epoch_0(folder, kind, caplog):
    column = "x" if kind is DataLoader else "y"  # it is said once of a dataset
    dataset = H5Dataset(f"{folder}/*.h5", [column], **ADDED, include_padding=True)
    order = loader(dataset, 64, shuffle=False)
    expected = torch.cat([batch["row_key"] for batch in order])
    assert torch.equal(dataset[:]["row_key"], expected)
    assert not dataset[5]["is_padding"]
    [*kind(H5Dataset(f"{folder}/*.h5", [column], include_padding=True), 64)]
    assert not caplog.text
    plain = torch.cat([batch["row_key"] for batch in kind(dataset, 64)])
    assert torch.equal(plain, expected)
    assert "values of 'row_key' are drawn, the same in each epoch" in caplog.text
    with pytest.raises(errors.PredicateError, match="'row_key' changes every epoch; filter by it after reading"):
        H5Dataset(f"{folder}/*.h5", [column], where(row_key=3), **ADDED)


def test_keys_of_a_batch_are_made_at_once(path, monkeypatch):
    dataset = H5Dataset(path, include_row_keys=True, include_padding=True)
    sampler = OrderSampler(dataset, shuffle=SHUFFLES["half"], run_length=16, rank=1, world_size=3)
    expected = list(DataLoader(dataset, 16, sampler=sampler))  # it passes indices one by one
    monkeypatch.setattr(rank_shares, "Placed", None)
    check_same(loader(dataset, 16, shuffle=SHUFFLES["half"], rank=1, world_size=3), expected)


class Doubled(H5Dataset):
    """Changes samples one by one."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sample["x"] = 2 * sample["x"]
        return sample


def test_subclasses_and_subsets_know_where_samples_are(folder):
    options = {"columns": ["x", "y"], **ADDED, "include_padding": True}
    plain, doubled = H5Dataset(f"{folder}/*.h5", **options), Doubled(f"{folder}/*.h5", **options)
    chosen = [5, 3, 200, 17]
    for some in (lambda dataset: dataset, lambda dataset: Subset(dataset, chosen)):
        expected = epochs_of(loader(some(plain), 2), 1)
        check_same(epochs_of(loader(some(doubled), 2), 1), expected, ["row_key", "row_id", "y", "is_padding"])
