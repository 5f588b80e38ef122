"""What people do with batches, samples and classes besides reading them: nothing of it is lost or overwritten."""

import threading
import time

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, default_collate

from ray_h5.errors import OptionError
from ray_h5.loading import prefetch_threads as ahead_module
from ray_h5.torch_data import H5DataLoader, H5Dataset, H5LazyDataset, create_optimized_dataloader, loader
from ray_h5.torch_data.batches.tensors import tensor_over

ROWS = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("hands") / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(float(ROWS), dtype="f4")[:, None].repeat(3, 1)
        file["y"] = np.arange(ROWS)
    return str(path)


# A collate_fn -------------------------------------------------------------------------------------


def negate(batch):
    for sample in batch:
        sample["x"] = -sample["x"]
        sample["n"] = 1
        del sample["y"]
    return default_collate(batch)


def by_attribute(batch):
    for sample in batch:
        sample.x = -sample.x
    return default_collate(batch)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", ["DataLoader", "loader"])
def test_changes_to_samples_count(path, make, workers):
    if make == "loader":
        batches = loader(path, 4, shuffle=False, threads=workers, collate_fn=negate)
    else:
        batches = DataLoader(H5Dataset(path), 4, num_workers=workers, collate_fn=negate)
    for i, batch in enumerate(batches):
        assert batch["x"][:, 0].tolist() == [-4 * i - k for k in range(4)]
        assert batch["n"].tolist() == [1] * 4
        assert "y" not in batch


class FailsOnce:
    """Fails at a call, as what users write may."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def __call__(self, given):
        self.calls += 1
        if self.calls == self.at:
            raise ZeroDivisionError(f"at {self.at}")
        return given

    def of_samples(self, samples):
        return default_collate(self(samples))


class OwnBatches(H5Dataset):
    fails = None

    def __getitems__(self, indices):
        return self.fails(super().__getitems__(indices))


def fails_in(what, path, threads):
    """A loader of batches of 4 in whose third batch what users write fails."""
    once, options = FailsOnce(10 if what == "transform" else 3), {"shuffle": False, "threads": threads}
    if what == "transform":
        return loader(path, 4, transform=once, **options)
    if what == "collate_fn":
        return loader(path, 4, collate_fn=once.of_samples, **options)
    dataset = OwnBatches(path)
    dataset.fails = once
    return loader(dataset, 4, **options)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("what", ["transform", "collate_fn", "subclass"])
def test_a_batch_that_failed_is_not_done(path, what, threads):
    batches, seen = fails_in(what, path, threads), []
    with pytest.raises(ZeroDivisionError, match="at "):
        seen.extend(y for batch in batches for y in batch["y"].tolist())
    assert seen == list(range(8))
    again = loader(path, 4, shuffle=False)
    again.load_state_dict(batches.state_dict())
    assert seen + [y for batch in again for y in batch["y"].tolist()] == list(range(ROWS))


def test_attributes_of_a_sample_are_its_entries(path):
    batch = next(iter(DataLoader(H5Dataset(path), 4, collate_fn=by_attribute)))
    assert batch.x[3].tolist() == [-3, -3, -3]
    sample = H5Dataset(path)[1].copy()
    assert (sample.y, sample["x"][0]) == (1, 1)


# Batches that stay in a worker -------------------------------------------------------------------


class Mixing:
    """A collate_fn that returns the batch and the one before it."""

    def __init__(self, keep):
        self.kept, self.keep = [], keep

    def __call__(self, batch):
        self.kept.append(default_collate(batch))
        del self.kept[: -self.keep]
        return [self.kept[-1][0], *(each[0].clone() for each in self.kept[:-1])]


def test_a_worker_may_keep_batches(path):
    keep = 5
    batches = DataLoader(H5LazyDataset(path, "x", "y"), 2, num_workers=1, prefetch_factor=2, collate_fn=Mixing(keep))
    for i, (_, *earlier) in enumerate(batches):
        time.sleep(0.002)
        expected = range(max(0, i - keep + 1), i)
        assert [int(each[0, 0]) // 2 for each in earlier] == list(expected)


class Kept(Dataset):
    """A dataset of batches, which it makes once."""

    def __init__(self, base):
        self.base, self.made = base, {}

    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i not in self.made:
            self.made[i] = default_collate(self.base.__getitems__(list(range(4 * i, 4 * i + 4))))
        return self.made[i]


def test_a_dataset_that_keeps_its_batches(path):
    kept = Kept(H5LazyDataset(path, "x", "y"))
    batches = DataLoader(kept, batch_size=None, num_workers=1, persistent_workers=True)
    for _ in range(3):
        assert [int(value) for batch in batches for value in batch[0][:, 0]] == list(range(16))


# Subclasses and transforms -----------------------------------------------------------------------


class Negative(H5LazyDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return -x, y, i


class NegativeBatches(H5LazyDataset):
    def __getitems__(self, indices):
        return [(-x, y, i) for (x, y), i in zip(super().__getitems__(indices), indices, strict=True)]


class Both(NegativeBatches):
    def __getitem__(self, i):
        return self.__getitems__([i])[0]


class NegativeSamples(H5Dataset):
    def __getitem__(self, i):
        return {"x": -super().__getitem__(i)["x"]}


class OtherBatches(H5Dataset):
    def __getitems__(self, indices):
        return [{"x": -each["x"]} for each in super().__getitems__(indices)]


@pytest.mark.parametrize("kind", [Negative, NegativeBatches, Both])
def test_what_a_subclass_does_to_samples_counts(path, kind):
    dataset = kind(path, "x", "y")
    assert [int(part.sum()) if torch.is_tensor(part) else part for part in dataset[5]] == [-15, 5, 5]
    x, _, i = next(iter(DataLoader(dataset, 4)))
    assert x[:, 0].tolist() == [0, -1, -2, -3]
    assert i.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [NegativeSamples, OtherBatches])
@pytest.mark.parametrize("threads", [0, 2])
def test_loaders_use_what_a_subclass_does(path, kind, threads):
    dataset = kind(path)
    assert dataset[3]["x"].tolist() == [-3, -3, -3]
    for batch in loader(dataset, 8, shuffle=False, threads=threads):
        assert set(batch) == {"x"}
        assert (batch["x"] <= 0).all()


def test_transforms_and_collate_functions_run_ahead_on_request(path):
    seen, ahead = [], threading.Event()

    def note(sample):
        seen.append(int(sample["y"]))
        if len(seen) == 12:
            ahead.set()
        return sample

    options = {"collate_fn": lambda samples: [int(s["y"]) for s in samples], "transforms_ahead": True}
    batches = loader(path, 4, shuffle=False, transform=note, **options)
    running = iter(batches)
    assert next(running) == [0, 1, 2, 3]
    assert ahead.wait(60)
    assert batches.state_dict()["rows"] == 4
    assert [next(running) for _ in range(2)] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    running.close()
    resumed = loader(path, 4, shuffle=False, collate_fn=lambda samples: [int(s["y"]) for s in samples])
    resumed.load_state_dict(batches.state_dict())
    assert next(iter(resumed)) == [12, 13, 14, 15]


@pytest.mark.parametrize("bound", ["AHEAD_ITEMS", "AHEAD_BYTES"])
def test_what_waits_is_bounded(path, bound, monkeypatch):
    monkeypatch.setattr(ahead_module, bound, 2 if bound == "AHEAD_ITEMS" else 2 * 4 * 1000)
    seen = []

    def large(_sample):
        seen.append(1)
        return {"x": torch.zeros(1000, dtype=torch.uint8)}

    batches = iter(loader(path, 4, shuffle=False, transform=large, transforms_ahead=True))
    for count in range(3):
        next(batches)
        deadline = time.monotonic() + 60
        while len(seen) < 4 * (count + 3) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert len(seen) == 4 * (count + 3)


# Loaders -----------------------------------------------------------------------------------------


def test_reads_that_hang_are_not_waited_for(path, monkeypatch):
    dataset = H5Dataset(path)
    goes_on = threading.Event()
    monkeypatch.setattr(dataset.source, "read_into", lambda *_: goes_on.wait(60))
    batches = H5DataLoader(dataset, 4, threads=1, timeout=0.2)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"nothing was read in 0\.2 seconds"):
        next(iter(batches))
    assert time.monotonic() - start < 30
    goes_on.set()


def test_frameworks_give_samplers_of_their_own(path):
    dataset = H5Dataset(path)
    wanted = BatchSampler(SequentialSampler(dataset), 16, drop_last=False)
    batches = H5DataLoader(dataset, batch_sampler=wanted, shuffle=False, threads=2)
    assert [batch["y"].tolist() for batch in batches] == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    shuffled = H5DataLoader(dataset, 8, shuffle=True, generator=torch.Generator().manual_seed(0), threads=1)
    assert sorted(int(i) for batch in shuffled for i in batch["y"]) == list(range(ROWS))


def test_frameworks_make_a_loader_again_of_its_attributes(path):
    """ignite's DeterministicEngine passes all of them that it does not replace by a batch sampler of its own."""
    made = loader(path, 6, columns=["y"], seed=3, threads=1)
    replaced = {"batch_size", "sampler", "drop_last", "batch_sampler"}
    options = {name: value for name, value in vars(made).items() if not name.startswith("_") and name not in replaced}
    again = type(made)(**options, batch_sampler=BatchSampler(made.sampler, 6, drop_last=False))
    assert (again.threads, again.num_workers, again.in_order) == (1, 0, True)
    rows = [batch.y.tolist() for batch in again]
    made.set_epoch(0)
    assert rows == [batch.y.tolist() for batch in made]


def test_none_is_an_option_not_given(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.zeros((8, 2))
    made = create_optimized_dataloader(
        str(tmp_path / "b.h5"), 4, 2, worker_init_fn=None, multiprocessing_context=None, prefetch_factor=None
    )
    assert isinstance(made, H5DataLoader)
    assert len(create_optimized_dataloader(str(tmp_path / "b.h5"), 4, 0, sampler=[])) == 0
    with pytest.raises(OptionError, match="num_workers=-1: expected an integer of 0 or more"):
        create_optimized_dataloader(str(tmp_path / "b.h5"), 4, -1)


def test_tensors_over_the_memory_of_a_tensor():
    # torch learns from the tensor that memory was pinned for when a copy of it to a GPU has ended.
    owner = torch.arange(24, dtype=torch.float32).reshape(8, 3)
    part = owner.numpy()[2:5]
    made = tensor_over(part)
    assert made.untyped_storage().data_ptr() == owner.untyped_storage().data_ptr()
    assert torch.equal(made, owner[2:5])
    for array in (np.arange(3), part[:, :2], owner.numpy().view("i4"), part[:0]):
        assert np.array_equal(tensor_over(array).numpy(), array)


def test_an_error_of_a_transform_comes_after_the_batches_before_it(path):
    def fail(sample):
        if sample["y"] == 13:
            raise ZeroDivisionError("at 13")
        return sample

    batches = loader(path, 4, shuffle=False, transform=fail)
    running = iter(batches)
    assert [next(running)["y"].tolist() for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    with pytest.raises(ZeroDivisionError, match="at 13"):
        next(running)
    assert batches.state_dict()["rows"] == 12
