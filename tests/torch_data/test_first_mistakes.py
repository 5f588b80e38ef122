"""What people write on a first day, and what they are told: the option, the file and the row, what to write instead."""

import logging
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from ray_h5 import RowReader, Shuffle, Windows, balance, between, loader, where
from ray_h5.errors import NotFoundError, OptionError, PredicateError, UnknownOptionError
from ray_h5.torch_data import H5Dataset, OrderBatchSampler, OrderSampler, kfold


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"], file["label"] = np.arange(16.0).reshape(8, 2), np.arange(8) % 2
        file["quality"], file["episode"] = np.linspace(0, 1, 8), [0, 0, 0, 0, 0, 0, 1, 1]
    return str(tmp_path / "a.h5")


@pytest.mark.parametrize("names", [["image"], ("image", "label"), "image"])
def test_columns_in_the_place_of_the_batch_size(path, names):
    with pytest.raises(OptionError, match=r"batch_size=.*expected an integer of 1 or more. Columns .* columns="):
        loader(path, names)
    with pytest.raises(OptionError, match=r"batch_size=0: expected an integer of 1 or more$"):
        loader(path, 0)


@pytest.mark.parametrize("pair", [(0.5, 1.0), (0, 0.5)])
def test_a_pair_of_numbers_is_no_range(path, pair):
    with pytest.raises(PredicateError, match=r"Write between\(.*\) for values from one to the other, or the list"):
        where(quality=pair)
    assert len(H5Dataset(path, predicate=where(quality=between(*pair)))) > 0
    assert len(H5Dataset(path, predicate=where(quality=list(pair)))) < 2
    assert len(H5Dataset(path, predicate=where(label=(0, 1)))) == 8


def test_a_pair_of_folds_is_no_predicate(path):
    with pytest.raises(OptionError, match=r"found tuple. Of a pair of kfold, pass one: pair\[0\] are the rows"):
        H5Dataset(path, predicate=kfold(path, 2)[0])
    with pytest.raises(OptionError, match=r"found tuple$"):
        H5Dataset(path, predicate=(1, 2))


@pytest.mark.parametrize("index", [1.0, None, np.float64(2), torch.tensor(1.0)])
def test_an_index_that_is_no_integer(path, index):
    with pytest.raises(UnknownOptionError, match=r"H5Dataset: index .*: expected the number of a sample, an integer"):
        H5Dataset(path)[index]
    assert [H5Dataset(path)[each]["quality"] for each in (np.int8(0), torch.tensor(7), True)][:2] == [0, 1]


def test_weights_of_a_subset(path):
    with pytest.raises(OptionError, match=r"Choose its rows with predicate=, .* in place of a Subset"):
        loader(Subset(H5Dataset(path), range(4)), 2, shuffle=Shuffle(weights=balance("label")))


def fails(sample):
    if sample["quality"] == 0:
        raise ValueError("no such file")
    return sample


def place_of(read):
    with pytest.raises(ValueError, match="no such file") as caught:
        read()
    return getattr(caught.value, "__notes__", ["not before Python 3.11"])[0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("threads", [0, 1])
def test_an_error_of_a_transform_names_the_row(path, tmp_path, threads, workers):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["quality"] = [1.0, 1.0, 0.0]
    files = [path, str(tmp_path / "b.h5")]
    with h5py.File(path, "a") as file:
        file["quality"][0] = 1
    batches = loader(files, 2, columns=["quality"], transform=fails, threads=threads, workers=workers, shuffle=False)
    said = place_of(lambda: list(batches))
    if hasattr(ValueError, "add_note"):
        assert "raised by the transform of " in said
        assert f"{tmp_path}/b.h5, row 2" in said


def test_a_transform_that_returns_nothing(path, caplog):
    def forgets(sample):
        sample["image"] += 1

    with caplog.at_level(logging.WARNING), pytest.raises(TypeError):
        next(iter(loader(path, 4, transform=forgets, threads=0, shuffle=False)))
    (said,) = [each.getMessage() for each in caplog.records if "returned None" in each.getMessage()]
    assert f"the transform of {path}, row 0 returned None: expected the sample" in said

    def filled(batch):
        return default_collate([each for each in batch if each is not None])

    odd = {"transform": lambda each: each if each["label"] else None, "collate_fn": filled}
    dropped = loader(path, 4, threads=0, shuffle=False, **odd)
    assert [len(batch["label"]) for batch in dropped] == [2, 2]


def test_what_is_said_of_labels_and_windows_is_said_once(path, caplog):
    windows = Windows({"image": range(4)}, episode="episode", pad="drop")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            H5Dataset(path, ["label"], labels={"label": "auto"})
            H5Dataset(path, ["image"], windows=windows)
    said = [each.getMessage() for each in caplog.records]
    assert len([each for each in said if each.startswith("labels: label")]) == 1
    assert len([each for each in said if "are shorter than the 4 steps" in each]) == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("num_workers", r"Threads .*, pass workers="),
        ("sampler", r"Write DataLoader\(H5Dataset\(\.\.\.\)"),
    ],
)
def test_options_of_a_dataloader_that_a_loader_lacks(path, option, said):
    with pytest.raises(UnknownOptionError, match=rf"loader: there is no option '{option}'\. {said}"):
        loader(path, 4, **{option: 2})


def test_a_column_that_a_batch_lacks(path):
    batch = next(iter(loader(path, 4)))
    with pytest.raises(KeyError, match="this sample has no 'lable'; it has episode, image, label, quality"):
        batch["lable"]
    assert batch.get("lable") is None
    assert not hasattr(batch, "lable")


@pytest.mark.parametrize(("option", "call"), [("batch_size", "batch_size=64"), ("shuffle", "batch_size=64, shuffle=")])
def test_options_of_a_loader_for_a_dataset(path, option, call):
    with pytest.raises(UnknownOptionError, match=rf"no option '{option}'. .* Write loader\(paths, {call}"):
        H5Dataset(path, **{option: 4})


def test_a_reader_of_many_files(path):
    with pytest.raises(NotFoundError, match=r"A RowReader reads one file; H5Dataset\('.*/\*\.h5'\) and loader"):
        RowReader(path.replace("a.h5", "*.h5"))


def test_a_sampler_of_rows_in_the_place_of_one_of_batches(path):
    dataset = H5Dataset(path)
    with pytest.raises(OptionError, match="pass a sampler of rows, as OrderSampler, as sampler="):
        next(iter(DataLoader(dataset, batch_sampler=OrderSampler(dataset))))


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(
    "make", [partial(OrderBatchSampler, batch_size=3), lambda rows: [[*range(len(rows))[:3]], [3]]]
)
def test_a_sampler_of_batches_in_the_place_of_one_of_rows(path, make, batch_size):
    """The last of them has fewer rows, of which no array is made."""
    dataset = H5Dataset(path)
    with pytest.raises(OptionError, match="pass a sampler of batches, as OrderBatchSampler, as batch_sampler="):
        list(DataLoader(dataset, batch_size, sampler=make(dataset)))
