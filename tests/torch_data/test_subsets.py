"""Loaders over a Subset have the samples of a DataLoader over it. Several datasets are for DataLoaders alone."""

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
