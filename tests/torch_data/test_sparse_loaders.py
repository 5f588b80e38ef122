"""Loaders of sparse and ragged columns: windows are read at once, resume, workers, samples, padding."""

import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ray_h5.errors import CastError, SchemaMismatchError
from ray_h5.plan import row_source
from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset, OrderSampler, Shuffle, csr, loader, where
from tests.rows.test_ranges_equal_numpy import random_matrix, write_matrix

ROWS, WIDTH, CHUNK = 640, 40, 64


@pytest.fixture
def path(tmp_path):
    matrix = random_matrix(ROWS, WIDTH)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_matrix(file.create_group("X"), matrix, {"chunks": (CHUNK,), "compression": "gzip"})
        file["label"] = np.arange(ROWS)
        file["offsets"] = matrix.indptr
        file.create_dataset("x", data=matrix.data, chunks=(CHUNK,), compression="gzip")
    return tmp_path / "a.h5"


def dense():
    return random_matrix(ROWS, WIDTH).toarray()


@pytest.mark.parametrize("is_small", [False, True])
def test_a_window_decodes_its_chunks_once(path, monkeypatch, decoded, is_small):
    if not is_small:
        monkeypatch.setattr(row_source, "_SHARED_BYTES", 0)
    dataset = H5Dataset(path, [csr("X", dense=False)], kept_bytes=0)
    made = loader(dataset, 8, shuffle=Shuffle("chunks", window_rows=128), threads=0)
    order = made.sampler.order
    assert order.range_chunks == 4
    for _ in made:
        pass
    with h5py.File(path) as file:
        indptr = file["X/indptr"][:]
        total = 2 * -(-len(file["X/data"]) // CHUNK)
    needed = 0
    indices = order.selected_indices(np.arange(ROWS), 0)
    for window in np.split(indices, ROWS // 128):
        chunks = {c for r in window for c in range(indptr[r] // CHUNK, (indptr[r + 1] - 1) // CHUNK + 1)}
        needed += 2 * len(chunks)
    assert (count := decoded()) == (total if is_small else needed)
    assert count < 1.6 * total


def test_rows_of_a_group_begin_in_the_same_chunks(path):
    dataset = H5Dataset(path, [csr("X")])
    order = dataset.epoch_order(Shuffle("chunks"))
    with h5py.File(path) as file:
        group = file["X/indptr"][:-1] // (4 * CHUNK)
    starts = order.chunk_groups.starts
    np.testing.assert_array_equal(starts[:-1], np.flatnonzero(np.diff(group, prepend=-1)))
    assert starts[-1] == ROWS
    selected = H5Dataset(path, [csr("X")], where(label=list(range(5, 300))))
    chosen = selected.epoch_order(Shuffle("chunks"))
    assert sorted(chosen.selected_indices(np.arange(295), 4).tolist()) == list(range(295))
    np.testing.assert_array_equal(group[selected.selection[chosen.chunk_groups.starts[1:-1]]],
                                  np.unique(group[5:300])[1:])  # fmt: skip


def test_a_data_loader_with_workers(path):
    for is_dense in (True, False):
        dataset = H5Dataset(path, [csr("X", dense=is_dense), "label"])
        for batch in DataLoader(dataset, 100, sampler=OrderSampler(dataset), num_workers=1):
            assert (batch["X"].layout == torch.strided) == is_dense
            np.testing.assert_array_equal(batch["X"].to_dense(), dense()[batch["label"].numpy()])


def test_samples_transforms_and_caches(path):
    dataset = CombinedHDF5Dataset(path, [csr("X"), "label"], cache_size=50)
    for index in (3, 7, 3):
        np.testing.assert_array_equal(dataset[index]["X"], dense()[index])
    doubled = H5Dataset(path, [csr("X")], transform=lambda sample: {"y": sample["X"] * 2})
    np.testing.assert_array_equal(next(iter(loader(doubled, 5, shuffle=False)))["y"], dense()[:5] * 2)
    same = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(same[9]["X"], dense()[9])
    sparse = H5Dataset(path, [csr("X", dense=False)])
    np.testing.assert_array_equal(sparse[3]["X"].to_dense(), dense()[3])


def test_files_that_differ_in_the_type_of_values(path, tmp_path):
    matrix = random_matrix(10, WIDTH, dtype=np.int64)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        write_matrix(file.create_group("X"), matrix)
    with pytest.raises(SchemaMismatchError, match=r"(?s)expected sparse float32 \(40,\).*pass dtypes={'X': 'float64'}"):
        H5Dataset([path, tmp_path / "b.h5"], ["X"])
    both = H5Dataset([path, tmp_path / "b.h5"], ["X"], dtypes={"X": "float64"})
    np.testing.assert_array_equal(both[:]["X"], np.vstack([dense(), matrix.toarray()]))


@pytest.mark.parametrize("is_dense", [True, False])
def test_values_that_a_cast_would_lose_are_named(path, is_dense):
    with h5py.File(path, "r+") as file:
        row = int(np.searchsorted(file["X/indptr"][:], 100, side="right")) - 1
        file["X/data"][...] = np.round(file["X/data"][...])
        file["X/data"][100] = 300
    with pytest.raises(CastError, match=rf"a\.h5.*row {row}\b"):
        list(loader(path, 64, columns=[csr("X", dense=is_dense)], dtypes={"X": "int8"}))
