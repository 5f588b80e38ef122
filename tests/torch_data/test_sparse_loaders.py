"""Loaders of sparse and ragged columns: windows are read at once, resume, workers, samples, padding."""

import copy
import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ray_h5 import Shuffle, csr, ragged
from ray_h5.errors import CastError, CorruptFileError, SchemaMismatchError
from ray_h5.loading import row_source
from ray_h5.order.read_plan import make_plan
from ray_h5.order.shuffle_cost import shuffle_effect
from ray_h5.read.jobs import ReadStats
from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset, OrderSampler, loader, where
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


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("is_dense", [True, False])
def test_an_epoch_has_each_row_once(path, threads, is_dense):
    columns = [csr("X", dense=is_dense), "label"]
    made = loader(path, 10, shuffle="chunks", columns=columns, threads=threads, kept_bytes=0)
    for _ in range(2):
        found = [(batch["X"].to_dense(), batch["label"]) for batch in made]
        labels = torch.cat([each for _, each in found])
        assert sorted(labels.tolist()) == list(range(ROWS))
        np.testing.assert_array_equal(torch.cat([each for each, _ in found]), dense()[labels])


@pytest.mark.parametrize("is_small", [False, True])
def test_a_window_decodes_its_chunks_once(path, monkeypatch, is_small):
    if not is_small:
        monkeypatch.setattr(row_source, "_SHARED_BYTES", 0)
    stats, run_reads = ReadStats(), row_source.run_reads
    monkeypatch.setattr(row_source, "run_reads", lambda *given, **more: stats.add(run_reads(*given, **more)))
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
    assert stats.chunks_decoded == (total if is_small else needed)
    assert stats.chunks_decoded < 1.6 * total


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


def test_the_cost_of_a_shuffle_is_said(path):
    dataset = H5Dataset(path, [csr("X")])
    index = dataset.index
    plan = make_plan(index, list(index.columns.values()), shuffle=Shuffle("chunks", window_rows=256))
    effect = shuffle_effect(plan, index.chunk_group_rows)
    assert effect.unit == "chunks"
    assert 1.2 < effect.reads_per_byte < 1.35  # 5 chunks are decoded for the rows of 4
    assert 20 < effect.chunks_mixed < 40
    rows = shuffle_effect(
        make_plan(index, list(index.columns.values()), shuffle=Shuffle("rows")), index.chunk_group_rows
    )
    assert rows.reads_per_byte >= 1


def test_resume_from_every_batch(path):
    made = loader(path, 64, shuffle=Shuffle("chunks", seed=1, window_rows=128), columns=["label", csr("X")], threads=0)
    batches, states = [], [copy.deepcopy(made.state_dict())]
    for batch in made:
        batches.append(batch)
        states.append(copy.deepcopy(made.state_dict()))
    for done, state in enumerate(states[:-1]):
        again = loader(
            path, 64, shuffle=Shuffle("chunks", seed=1, window_rows=128), columns=["label", csr("X")], threads=0
        )
        again.load_state_dict(state)
        rest = list(again)
        assert [each["label"].tolist() for each in rest] == [each["label"].tolist() for each in batches[done:]]
        assert all(torch.equal(one["X"], other["X"]) for one, other in zip(rest, batches[done:], strict=True))


@pytest.mark.parametrize("world_size", [2, 5])
def test_ranks_share_the_rows(path, world_size):
    found = []
    for rank in range(world_size):
        made = loader(
            path,
            16,
            shuffle="chunks",
            columns=["label", "X"],
            rank=rank,
            world_size=world_size,
            threads=0,
            drop_last=True,
        )
        found += [label for batch in made for label in batch["label"].tolist()]
    assert len(set(found)) == len(found) == ROWS // (16 * world_size) * 16 * world_size


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


def test_ragged_rows_are_padded_on_request(path):
    columns = [ragged("x", offsets="offsets"), "label"]
    batch = next(iter(loader(path, 32, columns=columns, pad=True, shuffle=False)))
    matrix = random_matrix(ROWS, WIDTH)
    lengths = np.diff(matrix.indptr)[:32]
    np.testing.assert_array_equal(batch["x_length"], lengths)
    assert batch["x"].shape == (32, lengths.max())
    for row in range(32):
        np.testing.assert_array_equal(
            batch["x"][row, : lengths[row]], matrix.data[matrix.indptr[row] :][: lengths[row]]
        )
    assert not batch["x"][lengths == 0].any()


def test_values_of_a_position_that_repeats_are_added(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": (2, 4)})
        group["indptr"], group["indices"], group["data"] = [0, 3, 4], [2, 0, 2, 3], np.float32([1, 2, 3, 4])
    expected = [[2, 0, 4, 0], [0, 0, 0, 4]]
    assert H5Dataset(tmp_path, [csr("X")])[:]["X"].tolist() == expected
    found = H5Dataset(tmp_path, [csr("X", dense=False)])[:]["X"]
    assert found.to_dense().tolist() == expected
    assert found.col_indices().tolist() == [0, 2, 3]


def test_files_that_differ_in_the_type_of_values(path, tmp_path):
    matrix = random_matrix(10, WIDTH, dtype=np.int64)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        write_matrix(file.create_group("X"), matrix)
    with pytest.raises(SchemaMismatchError, match=r"(?s)expected sparse float32 \(40,\).*pass dtypes={'X': 'float64'}"):
        H5Dataset([path, tmp_path / "b.h5"], ["X"])
    both = H5Dataset([path, tmp_path / "b.h5"], ["X"], dtypes={"X": "float64"})
    np.testing.assert_array_equal(both[:]["X"], np.vstack([dense(), matrix.toarray()]))


def test_a_damaged_row_is_named_by_a_loader(path):
    with h5py.File(path, "r+") as file:
        file["X/indices"][100] = WIDTH
    with pytest.raises(CorruptFileError, match=rf"'X/indices' has {WIDTH}; expected positions from 0 to {WIDTH - 1}"):
        list(loader(path, 64, columns=["X"]))


@pytest.mark.parametrize("is_dense", [True, False])
def test_values_that_a_cast_would_lose_are_named(path, is_dense):
    with h5py.File(path, "r+") as file:
        row = int(np.searchsorted(file["X/indptr"][:], 100, side="right")) - 1
        file["X/data"][...] = np.round(file["X/data"][...])
        file["X/data"][100] = 300
    with pytest.raises(CastError, match=rf"a\.h5.*row {row}\b"):
        list(loader(path, 64, columns=[csr("X", dense=is_dense)], dtypes={"X": "int8"}))
