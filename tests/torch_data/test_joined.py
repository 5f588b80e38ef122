"""Loaders over a ConcatDataset, a Subset, or both: the samples are those of a plain DataLoader over the same thing."""

import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset, random_split

from ray_h5 import Groups
from ray_h5.errors import OptionError, SchemaMismatchError
from ray_h5.torch_data import (
    CombinedHDF5Dataset,
    H5DataLoader,
    H5Dataset,
    H5LazyDataset,
    OrderSampler,
    loader,
    where,
)

from .conftest import ids_of


def each(paths, **options):
    return [H5Dataset(path, **options) for path in paths]


PUT_TOGETHER = {
    "concat": lambda files: ConcatDataset(each(files)),
    "of several files": lambda files: ConcatDataset(
        [H5Dataset(files[:3]), H5Dataset(files[3], None, where(cs_label=True))]
    ),
    "nested": lambda files: ConcatDataset([ConcatDataset(each([files[2], files[0]])), H5Dataset(files)]),
    "twice": lambda files: ConcatDataset([one := H5Dataset(files[0]), one]),
    "subset": lambda files: Subset(H5Dataset(files), [59, 3, 3, -1, 20, 19, 0]),
    "subset of concat": lambda files: Subset(ConcatDataset(each([files[3], files[0]])), range(44, 0, -3)),
    "concat of subsets": lambda files: ConcatDataset(
        [Subset(dataset, range(0, 15, 2)) for dataset in each([files[0], *files[2:]])]
    ),
    "random split": lambda files: random_split(H5Dataset(files), [40, 20], torch.Generator().manual_seed(1))[0],
    "combined": lambda files: ConcatDataset(
        [CombinedHDF5Dataset(path, dtype=torch.bfloat16) for path in (files[0], files[2])]
    ),
}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("how", PUT_TOGETHER)
def test_batches_are_those_of_a_dataloader(files, how, threads):
    dataset = PUT_TOGETHER[how](files)
    batches = loader(dataset, 7, threads=threads, seed=3)
    sampler = OrderSampler(dataset, seed=3)
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
            assert mine.to("meta").fhr_st.device.type == "meta"


def test_without_shuffle_the_order_is_that_of_the_parts(files):
    parts = [H5Dataset(path, ["fhr_st"]) for path in reversed(files)]
    expected = [i for part in parts for i in range(len(part)) for i in [int(part[i].fhr_st[0, 0])]]
    assert [i for batch in loader(ConcatDataset(parts), 8, shuffle=False) for i in ids_of(batch)] == expected


def test_each_part_has_its_own_transform(files):
    parts = [
        H5Dataset(files[0], ["fhr_st"], transform=lambda sample: (sample.fhr_st[0, 0], torch.tensor(0))),
        H5Dataset(files[3], ["fhr_st", "epoch"], transform=lambda sample: (sample.fhr_st[0, 0], torch.tensor(1))),
    ]
    rows, numbers = [], []
    for row, number in loader(ConcatDataset(parts), 8):
        rows += row.int().tolist()
        numbers += number.tolist()
    assert sorted(rows) == [*range(20), *range(35, 60)]
    assert [row >= 35 for row in rows] == [number == 1 for number in numbers]


def test_a_collate_function_gets_samples_in_order(files):
    dataset = ConcatDataset([H5Dataset(files[0], ["fhr_st"]), H5Dataset(files[3], ["fhr_st", "guid"])])
    batches = loader(
        dataset, 45, collate_fn=lambda samples: [int(each.fhr_st[0, 0]) for each in samples], shuffle=False
    )
    assert list(batches) == [[*range(20), *range(35, 60)]]


class Doubled(H5Dataset):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sample.fhr_st = sample.fhr_st * 2
        return sample


def test_a_subclass_makes_its_own_samples(files):
    dataset = ConcatDataset([H5Dataset(files[0], ["fhr_st"]), Doubled(files[2], ["fhr_st"])])
    found = [i for batch in loader(dataset, 8) for i in ids_of(batch)]
    assert sorted(found) == [*range(20), *range(40, 70, 2)]


def test_ranks_resume_and_one_batch_size_each(files):
    def make(rank):
        dataset = ConcatDataset([H5Dataset(path, ["fhr_st"]) for path in files])
        return loader(dataset, 4, rank=rank, world_size=2, seed=1)

    ranks = [[ids_of(batch) for batch in make(rank)] for rank in (0, 1)]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(60))
    running = iter(batches := make(1))
    head = [ids_of(next(running)) for _ in range(3)]
    resumed = make(1)
    resumed.load_state_dict(batches.state_dict())
    assert head + [ids_of(batch) for batch in resumed] == ranks[1]


def test_a_batch_is_one_read_of_each_part(files, monkeypatch):
    calls = []
    plain = H5Dataset.read
    monkeypatch.setattr(
        H5Dataset, "read", lambda self, rows, out=None: calls.append(len(rows)) or plain(self, rows, out)
    )
    batches = loader(ConcatDataset([H5Dataset(path, ["fhr_st"]) for path in files]), 60, threads=0)
    calls.clear()
    next(iter(batches))
    assert sorted(calls) == [15, 20, 25]


def test_what_makes_no_batch_is_refused_when_the_loader_is_made(files, tmp_path):
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file["fhr_st"] = np.zeros((4, 3, 12), "f8")
        file["fhr"] = np.zeros((4, 41), "f8")
    wide = tmp_path / "wide.h5"
    for columns, said in (
        (
            ["fhr_st"],
            r"datasets 0 and 1 of the ConcatDataset .* column 'fhr_st' is float32 \(3, 12\) in .*, and float64",
        ),
        (["fhr"], r"column 'fhr' is float64 \(40,\) in .*, and float64 \(41,\)"),
    ):
        with pytest.raises(SchemaMismatchError, match=said):
            loader(ConcatDataset([H5Dataset(files[0], columns), H5Dataset(wide, columns)]), 4)
    with pytest.raises(SchemaMismatchError, match=r"column 'epoch' is missing in .*, and float32"):
        loader(ConcatDataset([H5Dataset(files[2], ["fhr"]), H5Dataset(files[0], ["fhr", "epoch"])]), 4)
    assert loader(ConcatDataset([H5Dataset(files[0], ["fhr_st"]), H5Dataset(wide, ["fhr_st"])]), 4, collate_fn=list)
    cast = ConcatDataset([H5Dataset(files[0], ["fhr_st"]), H5Dataset(wide, ["fhr_st"], dtypes={"fhr_st": "f4"})])
    assert sum(len(batch.fhr_st) for batch in loader(cast, 5)) == 24


class Flipped(Subset):
    def __getitem__(self, index):
        return self.dataset[self.indices[-1 - index]]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize("make", [loader, H5DataLoader])
def test_other_datasets_are_refused_with_what_to_write(files, pairs, make):
    tensors = TensorDataset(torch.arange(5))
    lazy = H5LazyDataset(pairs, "images")
    one = H5Dataset(files)
    for other in (tensors, lazy, ConcatDataset([one, tensors]), Subset(lazy, [0]), Flipped(one, [0, 1])):
        with pytest.raises(
            OptionError, match=r"expected an H5Dataset, or a ConcatDataset .* found \w+.*DataLoader\(dataset"
        ):
            make(other, 4)
    with pytest.raises(OptionError, match="columns: the dataset is made already"):
        loader(ConcatDataset([one]), 4, columns=["fhr"])
    with pytest.raises(OptionError, match="only an H5Dataset knows its chunks"):
        loader(ConcatDataset([one, one]), 4, shuffle="chunks")


def test_it_is_pickled_and_says_what_it_is(files):
    batches = loader(Subset(ConcatDataset([H5Dataset(path, ["fhr_st"]) for path in files[2:]]), range(5)), 4, threads=1)
    assert repr(batches) == (
        "H5DataLoader(5 rows, batch_size=4, shuffle='rows', seed=0, threads=1: Subset(5 samples of "
        "H5Dataset(15 samples of 1 file: fhr_st), H5Dataset(25 samples of 1 file: fhr_st)))"
    )
    again = pickle.loads(pickle.dumps(batches.dataset))
    assert again[4].fhr_st[0, 0] == batches.dataset[4].fhr_st[0, 0]
    assert again[[1, 2]].fhr_st.shape == (2, 3, 12)


@pytest.mark.parametrize("lengths", [[(4, 4), (2, 7)], [(2, 7), (4, 4)], [(4, 4), (3,)], [(5,), (5,)]])
@pytest.mark.parametrize("transform", [None, dict])
def test_pad_where_rows_differ_in_length_only_in_some_datasets_or_between_them(tmp_path, lengths, transform):
    for number, of_part in enumerate(lengths):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for demo, length in enumerate(of_part):
                file[f"demo_{demo}/x"] = np.full((length, 2), length, "f4")
    paths = sorted(tmp_path.iterdir())
    expected = [length for of_part in lengths for length in of_part]
    options = {"columns": ["x"], "rows": Groups("demo_*")}
    (batch,) = loader(ConcatDataset(each(paths, **options, transform=transform)), 8, pad=-1, shuffle=False)
    assert batch["x"].shape == (len(expected), max(expected), 2)
    for row, length in zip(batch["x"], expected, strict=True):
        assert (row[:length] == length).all()
        assert (row[length:] == -1).all()
    if len(set(expected)) > 1:
        assert batch["x_length"].tolist() == expected
        with pytest.raises(SchemaMismatchError, match="or pad=True for rows that differ in length"):
            loader(ConcatDataset(each(paths, **options)), 8)


@pytest.mark.parametrize("lengths", [[(4, 4), (2, 7)], [(2, 7), (4, 4)]])
def test_a_plain_dataloader_pads_rows_of_a_dataset_of_one_length_too(tmp_path, lengths):
    for number, of_part in enumerate(lengths):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for demo, length in enumerate(of_part):
                file[f"demo_{demo}/x"] = np.full((length, 2), length, "f4")
    parts = each(sorted(tmp_path.iterdir()), columns=["x"], rows=Groups("demo_*"), pad=True)
    (batch,) = DataLoader(ConcatDataset(parts), 8)
    assert batch["x_length"].tolist() == [length for of_part in lengths for length in of_part]


def test_the_advice_for_a_dataset_with_its_own_order_names_no_sampler():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    with pytest.raises(OptionError, match=r"write DataLoader\(dataset, batch_size\)$"):
        loader(Stream())
    assert len(list(DataLoader(Stream(), 2))) == 3


def test_complex_values_and_text_of_joined_datasets_are_padded_as_far_as_they_can_be(tmp_path):
    for number, lengths in enumerate([(3, 3), (2, 5)]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for demo, length in enumerate(lengths):
                file[f"demo_{demo}/z"] = np.full(length, 1 + 1j * length)
                file[f"demo_{demo}/c"] = 1j * length
                file[f"demo_{demo}/name"] = f"{length}"
    options = {"columns": ["z", "c", "name"], "rows": Groups("demo_*")}
    (batch,) = loader(ConcatDataset(each(sorted(tmp_path.iterdir()), **options)), 8, pad=True, shuffle=False)
    assert batch["z"].shape == (4, 5)
    assert batch["z_length"].tolist() == [3, 3, 2, 5]
    assert torch.equal(batch["c"], torch.tensor([3j, 3j, 2j, 5j], dtype=torch.complex128))
    assert batch["name"] == ["3", "3", "2", "5"]
