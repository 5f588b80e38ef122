"""What samples are asked for by, and columns that do not fit into a tensor."""

import h5py
import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader

from ray_h5.errors import OptionError, RowIndexError, SchemaMismatchError
from ray_h5.torch_data import CombinedHDF5Dataset, H5DataLoader, H5Dataset, H5LazyDataset, OrderBatchSampler, loader


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(90, dtype="f4").reshape(30, 3)
        file["y"] = np.arange(30)
        file["long"] = np.arange(30, dtype=np.longdouble)
        varying = file.create_dataset("varying", (30,), h5py.vlen_dtype("f4"))
        for row in range(30):
            varying[row] = np.full(1 + row % 3, row)
    return path


KINDS = [
    lambda path: H5Dataset(path, ["x", "y"]),
    lambda path: CombinedHDF5Dataset(path, ["x", "y"], kept_bytes=0, cache_size=30),
    lambda path: H5LazyDataset(path, "x", "y"),
]


def targets(batch):
    return (batch["y"] if isinstance(batch, dict) else batch[1]).tolist()


@pytest.mark.parametrize("make", KINDS)
def test_an_index_that_int64_does_not_have_is_out_of_range(path, make):
    for indices in ([2**64 - 1], [3, 2**63]):
        with pytest.raises(RowIndexError, match=f"index {indices[-1]} is not among its 30 samples"):
            make(path)[np.array(indices, np.uint64)]


@pytest.mark.parametrize("make", KINDS)
def test_indices_have_one_axis(path, make):
    with pytest.raises(OptionError, match=r"one axis of indices, found shape \(2, 2\)"):
        make(path)[np.zeros((2, 2), int)]


@pytest.mark.parametrize("make", KINDS)
def test_no_indices_are_an_empty_batch(path, make):
    dataset = make(path)
    for none in ([], slice(0, 0), np.empty(0, np.int64)):
        batch = dataset[none]
        assert targets(batch) == []
        assert (batch["x"] if isinstance(batch, dict) else batch[0]).shape == (0, 3)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_sampler_of_batches_in_place_of_a_batch_size(path, threads):
    dataset = H5Dataset(path, ["y"])
    batches = OrderBatchSampler(dataset, 8)
    ours = [targets(batch) for batch in H5DataLoader(dataset, None, sampler=batches, threads=threads)]
    assert ours == [targets(batch) for batch in DataLoader(dataset, None, sampler=batches)]
    assert [sample["y"] for sample in H5DataLoader(dataset, None, threads=threads)] == list(range(30))


def unchanged(sample):
    return sample


def test_samples_of_varying_length_that_cannot_be_stacked_are_named(path):
    dataset = H5Dataset(path, ["y", "varying"])
    whole = next(iter(DataLoader(dataset, 4)))
    assert [len(values) for values in whole["varying"]] == [1, 2, 3, 1]
    for touched in (H5Dataset(path, ["y", "varying"], transform=unchanged), ConcatDataset([dataset])):
        with pytest.raises(SchemaMismatchError, match=r"'varying': samples of shapes \(1,\), \(2,\), \(3,\) do not"):
            next(iter(DataLoader(touched, 4)))


@pytest.mark.parametrize("threads", [0, 1])
def test_what_no_tensor_holds_stays_a_list_after_a_transform(tmp_path, threads):
    """`default_collate` raised for these, or made a list of the first texts, one of the second ones, and so on."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(
            "texts", data=np.array([["a", "b"], ["c", "d"], ["e", "f"]], object), dtype=h5py.string_dtype()
        )
        file.create_dataset("lists", (3, 2), h5py.vlen_dtype("f4"))
        for i, j in np.ndindex(3, 2):
            file["lists"][i, j] = np.arange(i)
        file["compound"] = np.zeros(3, [("a", "i4"), ("b", "f8")])
        file["opaque"] = np.array([b"abc"] * 3, "V3")
        file["when"] = np.arange(3).astype("M8[s]").astype(h5py.opaque_dtype("M8[s]"))
        group = file.create_group("maybe")
        group.attrs.update({"encoding-type": "nullable-integer", "encoding-version": "0.1.0"})
        group["values"], group["mask"] = [1, 2, 3], [False, True, False]
        file["y"] = np.arange(3)
    columns = ["texts", "lists", "compound", "opaque", "when", "maybe", "y"]

    def changed(sample):
        return {**sample, "y": sample["y"] + 1, "two": [sample["y"], -sample["y"]]}

    (plain,) = loader(tmp_path / "a.h5", 3, columns=columns, shuffle=False, threads=threads)
    (batch,) = loader(tmp_path / "a.h5", 3, columns=columns, shuffle=False, threads=threads, transform=changed)
    assert batch["y"].tolist() == [1, 2, 3]
    assert [each.tolist() for each in batch["two"]] == [[0, 1, 2], [0, -1, -2]], "a list of a transform is PyTorch's"
    for name in columns[:-1]:
        assert repr(batch[name]) == repr(plain[name]), name
