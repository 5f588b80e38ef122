"""Rows by length in plain PyTorch: little padding, each row once, on any number of ranks, resumed at every step."""

from collections import Counter
from itertools import chain

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Files, Groups, H5Dataset, OrderBatchSampler, OrderSampler, Shuffle, Windows, loader, part, ragged
from ray_h5.errors import OptionError
from ray_h5.order.draws.length_runs import cuts_of
from ray_h5.order.epoch_order import Order
from ray_h5.torch_data import CombinedHDF5Dataset, where
from tests.kit.files import save

N = 600
LENGTHS = np.random.default_rng(0).integers(5, 200, N)
DEMOS = Groups("data/demo_*", attrs=["num_samples"])
BY_ATTRIBUTE = Shuffle(seed=7, by_length="num_samples")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Groups whose `actions` differ in length: those of demo i are i."""
    path = str(tmp_path_factory.mktemp("lengths") / "demos.h5")
    with h5py.File(path, "w") as file:
        for i, length in enumerate(LENGTHS.tolist()):
            file[f"data/demo_{i}/actions"] = np.full((length, 1), i, "f4")
            file[f"data/demo_{i}/label"] = i % 3
            file[f"data/demo_{i}"].attrs["num_samples"] = length
    return path


@pytest.fixture(scope="module")
def dataset(path):
    return H5Dataset(path, ["actions"], rows=DEMOS)


def padding_of(batches):
    """The part of padded batches that is padding, and the rows of the batches."""
    held = [(batch["actions"].shape[:2].numel(), int(batch["actions_length"].sum())) for batch in batches]
    rows = [int(row) for batch in batches for row in batch["actions"][:, 0, 0]]
    return 1 - sum(length for _, length in held) / sum(size for size, _ in held), rows


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("shuffle", [BY_ATTRIBUTE, Shuffle(seed=7, by_length="actions")])
def test_ranks_have_batches_with_little_padding(dataset, shuffle, world_size):
    def epoch(shuffle):
        options = {"world_size": world_size, "drop_last": True, "pad": True, "threads": 1}
        found = [list(loader(dataset, 8, shuffle=shuffle, rank=rank, **options)) for rank in range(world_size)]
        assert len({len(batches) for batches in found}) == 1
        padding, rows = padding_of(list(chain(*found)))
        assert max(Counter(rows).values()) == 1
        assert len(rows) >= N // (8 * world_size) * 8 * world_size
        return padding

    assert epoch(Shuffle(seed=7)) >= 0.3
    assert epoch(shuffle) <= 0.05


def test_a_column_of_varying_shape_need_not_be_read(path, tmp_path):
    found = H5Dataset(path, ["label"], rows=DEMOS).epoch_order(Shuffle(seed=7, by_length="actions")).runs
    assert found.lengths.tolist() == LENGTHS.tolist()
    with h5py.File(tmp_path / "null.h5", "w") as file:
        for i in range(20):
            file[f"g{i}/x"] = i
            if i % 3:
                file[f"g{i}/y"] = np.ones(i)
    for columns in (["x"], ["y"], None):
        dataset = H5Dataset(tmp_path / "null.h5", columns, rows=Groups("g*", missing="null"))
        found = dataset.epoch_order(Shuffle(by_length="y")).runs
        assert found.lengths.tolist() == [i if i % 3 else 0 for i in range(20)]


def test_lengths_of_rows_that_differ_from_file_to_file(tmp_path):
    for i, width in enumerate((3, 5, 4)):
        save(tmp_path / f"{i}.h5", {"x": np.zeros((10, width, 2))})
    runs = H5Dataset(tmp_path).epoch_order(Shuffle(by_length="x")).runs
    assert runs.lengths.tolist() == np.repeat([3, 5, 4], 10).tolist()


@pytest.mark.parametrize("index_dir", [None, "index"])
def test_lengths_of_ranges_and_lists(tmp_path, index_dir):
    counts = np.random.default_rng(1).integers(0, 30, (2, 40))
    for number, own in enumerate(counts):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("values", data=np.zeros((own.sum(), 3)), chunks=(16, 3))
            file["counts"], file["times"], file["label"] = own, np.zeros(own.sum()), np.arange(40) % 2
            lists = file.create_dataset("lists", 40, dtype=h5py.vlen_dtype("f4"))
            for row, count in enumerate(own.tolist()):
                lists[row] = np.ones(count)
    rows = ragged("values", counts="counts")
    cases = [
        ("values", [rows], counts.ravel()),
        ("values", [part(rows, random=7)], np.minimum(counts, 7).ravel()),
        ("lists", ["lists"], counts.ravel()),
        ("lists", ["label"], counts.ravel()),
        ("lists", [rows, "lists"], counts.ravel()),
    ]
    options = {"index_dir": index_dir and tmp_path / index_dir}
    for name, columns, expected in [*cases, *cases]:
        for predicate in (None, where(label=1)):
            dataset = H5Dataset(f"{tmp_path}/?.h5", columns, predicate, **options)
            found = dataset.epoch_order(Shuffle(seed=1, by_length=name, run_rows=4)).runs.lengths
            assert found.tolist() == (expected if predicate is None else expected[dataset.selection]).tolist()
        batches = list(
            loader(dataset, 4, shuffle=Shuffle(seed=1, by_length=name, run_rows=4), pad=columns != ["label"])
        )
        assert sum(len(next(iter(batch.values()))) for batch in batches) == 40


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_lengths_are_not_cast_as_values_are(tmp_path, dtype):
    """A CombinedHDF5Dataset casts all numbers, also those of lists."""
    rng = np.random.default_rng(3)
    lists = [[np.arange(count) for count in rng.integers(0, 9, 15)] for _ in range(2)]
    for name, rows in zip("ab", lists, strict=True):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            stored = file.create_dataset("lists", 15, h5py.vlen_dtype("i2"))
            for i, row in enumerate(rows):
                stored[i] = row
    dataset = CombinedHDF5Dataset(tmp_path, ["lists"], dtype=dtype, pad=True)
    shuffle = Shuffle(seed=1, by_length="lists", run_rows=4)
    assert dataset.epoch_order(shuffle).runs.lengths.tolist() == [len(row) for row in chain(*lists)]
    batches = list(loader(dataset, 4, shuffle=shuffle))
    assert {batch.lists.dtype for batch in batches} == {dtype}
    assert sorted(chain(*(batch.lists_length.tolist() for batch in batches))) == sorted(map(len, chain(*lists)))


def test_lengths_of_spans_of_time(tmp_path):
    events = np.sort(np.random.default_rng(2).uniform(0, 20, 100))
    save(tmp_path / "a.h5", {"x": np.arange(20.0), "t": np.arange(20.0), "events": events})
    windows = Windows({"x": [0.0], "events": slice(-1.0, 1.0)}, at={"x": "t", "events": "events"})
    dataset = H5Dataset(tmp_path / "a.h5", ["x", "events"], windows=windows)
    found = dataset.epoch_order(Shuffle(by_length="events")).runs.lengths
    assert found.tolist() == [int(((events >= t - 1) & (events < t + 1)).sum()) for t in range(20)]


@pytest.fixture
def bags(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 50)
    for i, length in enumerate(lengths.tolist()):
        save(tmp_path / f"{i}.h5", {"features": np.full((length, 2), i, "f4")})
    return tmp_path, lengths


def test_batches_have_a_bound_of_values(bags):
    folder, lengths = bags
    shuffle = Shuffle("rows", 7, by_length="features", run_rows=16, batch_values=200)
    dataset = H5Dataset(folder, ["features"], rows=Files())
    for world_size in (1, 2):
        samplers = [
            OrderBatchSampler(dataset, 16, shuffle=shuffle, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for epoch in range(2):
            for each in samplers:
                each.set_epoch(epoch)
            batches = [list(each) for each in samplers]
            assert len({tuple(map(len, of)) for of in batches}) == 1  # as many steps and rows on each rank
            assert len(samplers[0]) == len(batches[0])
            assert max(lengths[batch].sum() for of in batches for batch in of) <= 200
            assert {row for of in batches for batch in of for row in batch} == {*range(50)}
            # Few batches: most are nearly full.
            assert len(batches[0]) <= 2 * lengths.sum() / 200 / world_size + 1
    batches = loader(dataset, 16, shuffle=shuffle, pad=True)
    count, found = len(batches), list(batches)
    assert count == len(found)
    assert sum(len(each["features"]) for each in found) == 50
    assert max(int(each["features_length"].sum()) for each in found) <= 200


def test_batches_of_values_resume_at_each(bags):
    folder, _ = bags
    shuffle = Shuffle("rows", 7, by_length="features", run_rows=16, batch_values=150)
    dataset = H5Dataset(folder, ["features"], rows=Files())
    options = {"shuffle": shuffle, "world_size": 2}
    whole = [list(OrderBatchSampler(dataset, 16, rank=rank, **options)) for rank in range(2)]
    for step in range(len(whole[0])):
        sampler = OrderBatchSampler(dataset, 16, rank=0, **options)
        batches = iter(sampler)
        for _ in range(step):
            next(batches)
        state = sampler.state_dict()
        for rank in range(2):
            other = OrderBatchSampler(dataset, 16, rank=rank, **options)
            other.load_state_dict(state)
            assert list(other) == whole[rank][step:] or not step


def test_a_bound_of_values_needs_lengths_and_batches(bags):
    folder, _ = bags
    dataset = H5Dataset(folder, ["features"], rows=Files())
    shuffle = Shuffle(by_length="features", batch_values=150)
    with pytest.raises(OptionError, match="only with by_length"):
        Shuffle(batch_values=3)
    with pytest.raises(OptionError, match="number above 0"):
        Shuffle(by_length="features", batch_values=-1)
    with pytest.raises(OptionError, match="OrderBatchSampler"):
        iter(OrderSampler(dataset, shuffle=shuffle))
    bounded = loader(dataset, 16, shuffle=shuffle, pad=True)
    count = len(bounded)  # of the next epoch
    found = [int(batch["features_length"].sum()) for batch in bounded]
    assert max(found) <= 150
    assert len(found) == count


def test_batches_of_many_rows_end_where_runs_end():
    shuffle = Shuffle("rows", 7, by_length=np.arange(4000), run_rows=10, batch_values=1e9)
    for world_size in (1, 2):
        batches = list(OrderBatchSampler(range(4000), 10, shuffle=shuffle, rank=0, world_size=world_size))
        assert [len(batch) for batch in batches] == [10] * (400 // world_size)


def cut_one_by_one(lengths, most):
    """Where the rows of one run are cut: as few parts as the bound allows, by the lowest such bound tried."""

    def cut(bound):
        ends = [0]
        while ends[-1] < lengths.shape[1]:
            at = end = ends[-1]
            while end < lengths.shape[1] and (end == at or (sums[:, end + 1] <= sums[:, at] + bound).all()):
                end += 1
            ends.append(end)
        return ends[1:]

    sums = np.cumsum(np.pad(lengths.astype("f8"), [(0, 0), (1, 0)]), axis=1)
    cuts, low, high = cut(most), most / 2, most
    for _ in range(8):
        tried, middle = cut((low + high) / 2), (low + high) / 2
        cuts, low, high = (tried, low, middle) if len(tried) == len(cuts) else (cuts, middle, high)
    return cuts


@given(st.integers(0, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_all_runs_are_cut_as_each_alone(runs, ranks, rows, most, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.choice([rng.integers(0, 30, (runs, ranks, rows)), 30 * rng.random((runs, ranks, rows))])
    expected = [run * rows + end for run in range(runs) for end in cut_one_by_one(lengths[run], most)]
    assert cuts_of(lengths, most).tolist() == expected


def test_the_epoch_of_all_ranks_is_cut_once(monkeypatch):
    asked, selected_indices = [], Order.selected_indices
    monkeypatch.setattr(
        Order, "selected_indices", lambda *given: asked.append(len(given[1])) or selected_indices(*given)
    )
    shuffle = Shuffle("rows", 7, by_length=np.arange(4000), run_rows=10, batch_values=9000)
    sampler = OrderBatchSampler(range(4000), 10, shuffle=shuffle, rank=3, world_size=8)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in range(2):
            assert len(sampler) > 50
        assert sum(asked) == 4000
        assert sum(map(len, sampler)) == 500
        assert sum(asked) == 4500  # its own rows
        asked.clear()
