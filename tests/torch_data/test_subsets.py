"""Loaders over a Subset have the samples of a DataLoader over it. Several datasets are for DataLoaders alone."""

import gc
import multiprocessing
import pickle
import threading
import time
import weakref

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset, random_split

from ray_h5 import Groups, H5DataLoader, H5Dataset, OrderSampler, Patches, Shuffle, loader
from ray_h5.errors import OptionError, PositionError
from ray_h5.torch_data import CombinedHDF5Dataset, H5LazyDataset

from .conftest import ids_of


class Doubled(H5Dataset):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sample.fhr_st = sample.fhr_st * 2
        return sample


CHOSEN = {
    "ascending": lambda files: Subset(H5Dataset(files), range(2, 60, 3)),
    "in any order, some twice": lambda files: Subset(H5Dataset(files), [59, 3, 3, -1, 20, 19, 0]),
    "of a subset": lambda files: Subset(Subset(H5Dataset(files), range(0, 60, 2)), range(20, 0, -3)),
    "random split": lambda files: random_split(H5Dataset(files), [40, 20], torch.Generator().manual_seed(1))[0],
    "of a subclass": lambda files: Subset(Doubled(files), [4, 1, 30]),
    "combined": lambda files: Subset(CombinedHDF5Dataset(files, dtype=torch.bfloat16, cs_label=True), [5, 0, 19]),
}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("how", CHOSEN)
def test_batches_are_those_of_a_dataloader(files, how, threads):
    dataset = CHOSEN[how](files)
    for shuffle in (True, False):
        batches = loader(dataset, 7, shuffle=shuffle, threads=threads, seed=3)
        sampler = OrderSampler(dataset, shuffle=shuffle, seed=3)
        assert len(batches.dataset) == len(dataset)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            expected = list(DataLoader(dataset, 7, sampler=sampler))
            found = list(batches)
            assert len(found) == len(batches) == len(expected)
            for mine, theirs in zip(found, expected, strict=True):
                assert list(mine) == list(theirs)
                for name, values in theirs.items():
                    same = torch.equal if isinstance(values, torch.Tensor) else list.__eq__
                    assert same(mine[name], values)
                    assert getattr(mine[name], "dtype", None) == getattr(values, "dtype", None)


def test_ranks_and_resume(files):
    def make(rank):
        return loader(Subset(H5Dataset(files, ["fhr_st"]), range(59, -1, -1)), 4, rank=rank, world_size=2, seed=1)

    ranks = [[ids_of(batch) for batch in make(rank)] for rank in (0, 1)]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(60))
    running = iter(batches := make(1))
    head = [ids_of(next(running)) for _ in range(3)]
    resumed = make(1)
    resumed.load_state_dict(batches.state_dict())
    assert head + [ids_of(batch) for batch in resumed] == ranks[1]
    other = loader(Subset(H5Dataset(files, ["fhr_st"]), range(60)), 4, rank=1, world_size=2, seed=1)
    with pytest.raises(PositionError, match="What differs"):
        other.load_state_dict(batches.state_dict())


def test_blocks_that_are_drawn_differ_in_each_epoch(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = np.arange(40.0)
    drawn = H5Dataset(tmp_path / "a.h5", rows=Patches({"raw": (4,)}, per_file=8))
    batches = loader(Subset(drawn, [6, 1, 3]), 3, shuffle=False)
    first, second = ([batch["raw"] for batch in batches] for _ in range(2))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[0], drawn[[6, 1, 3]]["raw"])


class Wrapper(torch.utils.data.Dataset):
    """What people write around a dataset."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return dict(self.rows[index])


INSIDE = {
    "a list": lambda data: Subset(data, [59, 3, 3, -1, 20, 19, 0]),
    "a range": lambda data: Subset(data, range(2, 60, 3)),
    "an array": lambda data: Subset(data, np.arange(40)[::-2]),
    "a tensor": lambda data: Subset(data, torch.arange(9)),
    "of a subset": lambda data: Subset(Subset(data, range(0, 60, 2)), range(20, 0, -3)),
    "random split": lambda data: random_split(data, [40, 20], torch.Generator().manual_seed(1))[1],
    "several": lambda data: ConcatDataset([Subset(data, range(5)), data, Subset(data, [7, 9])]),
    "of several": lambda data: Subset(ConcatDataset([data, data]), range(119, 50, -2)),
    "a wrapper": lambda data: Wrapper(Subset(data, range(12, 30))),
}


@pytest.mark.parametrize("how", INSIDE)
def test_samples_inside_other_datasets_are_drawn_for_their_epoch(tmp_path, how, caplog):
    """As those of a `loader` of all rows: their keys, and blocks at corners that are drawn."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = np.arange(4000.0)
    drawn = H5Dataset(
        tmp_path / "a.h5", rows=Patches({"raw": (4,)}, per_file=60), include_row_keys=True, include_row_ids=True
    )
    some = INSIDE[how](drawn)
    sampler, whole = OrderSampler(some, seed=3), loader(drawn, 60, seed=3)
    read = DataLoader(some, 7, sampler=sampler, num_workers=int(how in ("random split", "several")))
    for epoch in (0, 2):
        sampler.set_epoch(epoch)
        whole.set_epoch(epoch)
        (expected,) = whole
        by_row = dict(
            zip(expected["row_id"].tolist(), zip(expected["row_key"], expected["raw"], strict=True), strict=True)
        )
        count = 0
        for batch in read:
            for row, key, block in zip(batch["row_id"].tolist(), batch["row_key"], batch["raw"], strict=True):
                assert torch.equal(key, by_row[row][0])
                assert torch.equal(block, by_row[row][1])
                count += 1
        assert count == len(some)
    assert not caplog.text
    again = Subset(drawn, [3, 1])
    OrderSampler(again)
    assert again.indices == [3, 1]
    assert repr(again.indices) == "[3, 1]"
    assert len({*torch.cat([batch["row_key"] for batch in _draws_of(some)]).tolist()}) == 50


def _draws_of(some):
    """Batches of an epoch that has rows several times: each of its draws has a key."""
    return DataLoader(
        some, 7, sampler=OrderSampler(some, shuffle=Shuffle("rows", 1, rows_per_epoch=50, weights=np.ones(len(some))))
    )


class Flipped(Subset):
    def __getitem__(self, index):
        return self.dataset[self.indices[-1 - index]]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


@pytest.mark.parametrize("make", [loader, H5DataLoader])
def test_other_datasets_are_refused_with_what_to_write(files, pairs, make):
    lazy = H5LazyDataset(pairs, "images")
    one = H5Dataset(files)
    for other in (TensorDataset(torch.arange(5)), lazy, Subset(lazy, [0]), Flipped(one, [0, 1])):
        with pytest.raises(OptionError, match=r"expected an H5Dataset, or a Subset .* found \w+.*DataLoader\(dataset"):
            make(other, 4)
    with pytest.raises(OptionError, match=r"write DataLoader\(dataset, batch_size\)$"):
        make(Stream(), 2)
    for several in (ConcatDataset([one, one]), Subset(ConcatDataset([one]), [1]), [one, one]):
        with pytest.raises(OptionError, match=r"all paths to one H5Dataset.*Shuffle\(weights=.*DataLoader\(Concat"):
            make(several, 4)
    with pytest.raises(OptionError, match=r"found a DataLoader; pass its dataset$"):
        make(DataLoader(one), 4)


def test_options_for_paths_and_units_are_refused(files):
    part = Subset(H5Dataset(files), [0, 1])
    with pytest.raises(OptionError, match="columns: the dataset is made already"):
        loader(part, 4, columns=["fhr"])
    with pytest.raises(OptionError, match="only an H5Dataset knows its chunks"):
        loader(part, 4, shuffle="chunks")


def test_what_the_error_for_several_datasets_says_is_possible(files):
    parts = [H5Dataset(files[0], ["fhr_st", "epoch"]), H5Dataset(files[2:], ["fhr_st", "epoch"])]
    found = [i for batch in DataLoader(ConcatDataset(parts), 8, shuffle=True) for i in ids_of(batch)]
    assert sorted(found) == list(range(60))
    shares = {"*/f0.h5": 0.75, "*/f[123].h5": 0.25}
    drawn = [i for batch in loader(files, 8, shuffle=Shuffle(weights=shares, rows_per_epoch=60)) for i in ids_of(batch)]
    assert 35 < sum(i < 20 for i in drawn) < 55  # drawn independently


@pytest.mark.parametrize("lengths", [[(4, 4), (2, 7)], [(2, 7), (4, 4)]])
def test_a_plain_dataloader_pads_rows_of_a_dataset_of_one_length_too(tmp_path, lengths):
    for number, of_part in enumerate(lengths):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for demo, length in enumerate(of_part):
                file[f"demo_{demo}/x"] = np.full((length, 2), length, "f4")
    options = {"columns": ["x"], "rows": Groups("demo_*"), "pad": True}
    parts = [H5Dataset(path, **options) for path in sorted(tmp_path.iterdir())]
    (batch,) = DataLoader(ConcatDataset(parts), 8)
    assert batch["x_length"].tolist() == [length for of_part in lengths for length in of_part]


# Subclasses that make samples themselves -------------------------------------------------------


class WithAge(H5Dataset):
    """Adds a value of its own, which belongs to the index of a sample."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "age": 1000 + index}

    def number_of_classes(self):
        return 7


class InBatches(H5Dataset):
    def __getitems__(self, indices):
        return [{**sample, "age": 1000 + i} for i, sample in zip(indices, super().__getitems__(indices), strict=True)]


class Twice(WithAge):
    """Each row twice, as for two augmentations."""

    def __len__(self):
        return 2 * super().__len__()

    def __getitem__(self, index):
        return {**H5Dataset.__getitem__(self, index % super().__len__()), "age": 1000 + index}


class Few(H5Dataset):
    """The first rows."""

    def __len__(self):
        return 17


OWN = {
    "samples": (WithAge, lambda data: data),
    "batches": (InBatches, lambda data: data),
    "length": (Twice, lambda data: data),
    "length alone": (Few, lambda data: data),
    "subset of samples": (WithAge, lambda data: Subset(data, [5, 9, 13, 2])),
    "subset of a subset": (WithAge, lambda data: Subset(Subset(data, range(59, 0, -2)), [3, 1, 7, 4])),
    "random split": (InBatches, lambda data: random_split(data, [40, 20], torch.Generator().manual_seed(1))[1]),
    "subset of a length": (Twice, lambda data: Subset(data, [70, 3, 119, 64])),
    "subset of a short length": (Few, lambda data: Subset(data, [16, 3, 2, 1])),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", OWN)
def test_a_subclass_is_asked_with_the_index_that_torch_passes(files, how, workers):
    kind, part = OWN[how]
    dataset = part(kind(files, ["fhr_st"]))

    def found(batches):
        return [(ids_of(batch), batch["age"].tolist() if "age" in batch else None) for batch in batches]

    expected = found(DataLoader(dataset, 3))
    assert found(loader(dataset, 3, shuffle=False, workers=workers)) == expected
    assert found(H5DataLoader(dataset, 3, workers=workers)) == expected
    shuffled, running = loader(dataset, 3, seed=1, workers=workers), OrderSampler(dataset, seed=1, run_length=3)
    epoch = found(shuffled)
    assert epoch == found(DataLoader(dataset, 3, sampler=running))
    assert len(shuffled) == len(epoch) == len(expected)
    iterator = iter(batches := loader(dataset, 3, seed=1, workers=workers))
    next(iterator)
    resumed = loader(dataset, 3, seed=1)
    resumed.load_state_dict(batches.state_dict())
    assert found(resumed) == epoch[1:]


def test_a_loader_of_a_subset_has_what_the_subclass_has(files):
    found = loader(Subset(WithAge(files, ["fhr_st"]), [5, 9, 13]), 2).dataset
    assert found.number_of_classes() == 7
    assert found.row_ids([0, 2]).tolist() == [5, 13]
    assert [found[i]["age"] for i in (0, -1, np.int64(1))] == [1005, 1013, 1009]
    assert found[1:]["age"].tolist() == [1009, 1013]
    assert pickle.loads(pickle.dumps(found))[[2, 0]]["age"].tolist() == [1013, 1005]
    with pytest.raises(AttributeError):
        _ = found.number_of_rows


def test_threads_may_share_a_loader(files):
    """Each thread has passes of its own, whole, whatever the others do."""
    batches, passes, errors = loader(files, 7, columns=["fhr_st"]), [], []

    def use():
        try:
            passes.extend(sorted(i for batch in batches for i in ids_of(batch)) for _ in range(12))
        except BaseException as exc:  # noqa: BLE001  of a thread
            errors.append(exc)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert passes == [[*range(60)]] * 96


class Trainer:
    """A class of a user: it has an iterator, and a method that changes samples."""

    def __init__(self, files, **options):
        self.batches = iter(loader(H5Dataset(files, ["fhr_st"], transform=self.augment), 4, **options))
        next(self.batches)

    def augment(self, sample):
        return sample


@pytest.mark.parametrize("options", [{"threads": 2}, {"threads": 1, "transforms_ahead": True}, {"workers": 1}])
def test_an_iterator_that_is_left_ends_also_where_its_transform_leads_back_to_it(files, options):
    left = [weakref.ref(Trainer(files, **options)) for _ in range(3)]
    for _ in range(100):  # threads end what they have begun
        gc.collect()
        if not any(trainer() for trainer in left):
            break
        time.sleep(0.05)
    assert [trainer() for trainer in left] == [None] * 3
    assert multiprocessing.active_children() == []
