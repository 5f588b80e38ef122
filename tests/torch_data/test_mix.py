"""Mixtures: exact shares of several datasets in one order, on any number of ranks, resumed at every step."""

import pickle
from collections import Counter
from itertools import chain, islice

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import ray_h5
from ray_h5 import Groups
from ray_h5.errors import OptionError, PositionError, SchemaMismatchError, UnknownColumnError
from ray_h5.torch_data import H5Dataset, OrderBatchSampler, OrderSampler, Shuffle, balance, loader, mix, where

SIZES = {"a": 90, "b": 30, "c": 7}
FIRST = {"a": 0, "b": 90, "c": 120}


def write(path, first, rows, dtype="f4"):
    ids = np.arange(first, first + rows)
    with h5py.File(path, "w") as file:
        data = np.repeat(ids[:, None], 4, axis=1).astype(dtype)
        file.create_dataset("x", data=data, chunks=(8, 4), maxshape=(None, 4), compression="gzip")
        file["label"] = ids % 3
        file["n_frames"] = 1 + ids * 37 % 101
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    return {name: write(folder / f"{name}.h5", FIRST[name], rows) for name, rows in SIZES.items()}


@pytest.fixture(scope="module")
def datasets(paths):
    return {name: H5Dataset(path) for name, path in paths.items()}


def source_of(rows):
    return np.searchsorted([90, 120], rows, side="right")


def epoch_of(dataset, epoch=0, **options):
    sampler = OrderSampler(dataset, **options)
    sampler.set_epoch(epoch)
    return np.array(list(sampler))


@pytest.mark.parametrize("unit", ["rows", "chunks", "files", "auto"])
def test_shares_are_exact_and_each_dataset_has_all_rows_before_one_comes_again(datasets, unit):
    mixed = mix(datasets, {"a": 3, "b": 1, "c": 1})
    assert len(mixed) == 127
    rows = np.concatenate([epoch_of(mixed, epoch, shuffle=Shuffle(unit, 7, rows_per_epoch=50)) for epoch in range(12)])
    assert np.bincount(source_of(rows)).tolist() == [360, 120, 120]
    for start in range(0, 600, 50):
        assert np.bincount(source_of(rows[start : start + 50])).tolist() == [30, 10, 10]
        few = np.bincount(source_of(rows[start : start + 9]), minlength=3)
        assert (np.abs(few - np.array([5.4, 1.8, 1.8])) < 2).all()
    for number, (name, size) in enumerate(SIZES.items()):
        drawn = rows[source_of(rows) == number]
        for passed in drawn[: len(drawn) // size * size].reshape(-1, size):
            assert sorted(passed) == list(range(FIRST[name], FIRST[name] + size))


def test_equal_shares_have_each_dataset_in_each_window(datasets):
    rows = epoch_of(mix(datasets), seed=3)
    assert len(rows) == 127
    assert all(len(set(source_of(rows[i : i + 3]))) == 3 for i in range(0, 126, 3))
    assert len({tuple(source_of(rows[i : i + 3])) for i in range(0, 126, 3)}) == 6
    assert epoch_of(mix(datasets), 1, seed=3).tolist() != rows.tolist()
    assert epoch_of(mix(datasets), seed=4).tolist() != rows.tolist()


def test_chunks_are_drawn_as_in_each_dataset(datasets):
    shuffle = Shuffle("chunks", 7, 16)
    rows = epoch_of(mix({"a": datasets["a"], "b": datasets["b"]}), shuffle=shuffle)
    first = rows[rows < 90]
    for start in range(0, len(first) - 16, 16):
        assert len(set(first[start : start + 16] // 8)) <= 3  # a window is of two chunks, and one may be short


def test_without_a_shuffle_each_dataset_comes_in_path_order(datasets):
    rows = epoch_of(mix(datasets, {"a": 2, "b": 1, "c": 1}), shuffle=False)
    for number, name in enumerate(SIZES):
        drawn = rows[source_of(rows) == number]
        assert drawn.tolist() == [FIRST[name] + i % SIZES[name] for i in range(len(drawn))]
    assert np.bincount(source_of(rows[:124])).tolist() == [62, 31, 31]


GOLDEN = [39, 117, 28, 97, 79, 124, 104, 61, 81, 70, 125, 99]


def test_golden_order(datasets):
    rows = epoch_of(mix(datasets, {"a": 0.5, "b": 0.3, "c": 0.2}), 2, shuffle=Shuffle("rows", 7))
    assert rows[:12].tolist() == GOLDEN


@pytest.mark.parametrize("threads", [0, 2])
def test_loaders_and_samplers_have_one_order(datasets, threads):
    mixed, shuffle = mix(datasets, {"a": 1, "b": 2, "c": 1}), Shuffle("rows", 7, rows_per_epoch=60)
    expected = [epoch_of(mixed, epoch, shuffle=shuffle).tolist() for epoch in range(2)]
    batches = loader(mixed, 8, shuffle=shuffle, threads=threads)
    assert len(batches) == 8
    for epoch in range(2):
        assert [int(row) for batch in batches for row in batch["x"][:, 0]] == expected[epoch]
    sampled = OrderBatchSampler(mixed, 8, shuffle=shuffle)
    assert list(chain(*sampled)) == expected[0]
    plain = DataLoader(mixed, batch_sampler=sampled)
    assert [int(row) for batch in plain for row in batch["x"][:, 0]] == expected[0]
    copied = pickle.loads(pickle.dumps(mixed))
    assert epoch_of(copied, shuffle=shuffle).tolist() == expected[0]
    assert repr(mixed).startswith("mix(127 samples: 0.25 'a' H5Dataset(90 samples")


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("run_length", [1, 4])
@pytest.mark.parametrize("shuffle", [False, Shuffle("rows", 7, rows_per_epoch=61)])
def test_ranks_share_the_order_and_resume_at_every_step(datasets, world_size, run_length, shuffle):
    mixed = mix(datasets, {"a": 1, "b": 2, "c": 1})

    def samplers(ranks):
        options = {"shuffle": shuffle, "world_size": ranks, "run_length": run_length, "drop_last": True}
        made = [OrderSampler(mixed, rank=rank, **options) for rank in range(ranks)]
        for sampler in made:
            sampler.set_epoch(2)
        return made

    whole = list(samplers(1)[0])
    shares = [list(sampler) for sampler in samplers(world_size)]
    assert len({len(share) for share in shares}) == 1
    assert Counter(chain(*shares)) <= Counter(whole)
    for step in range(len(shares[0]) + 1):
        running = samplers(world_size)
        heads = [list(islice(sampler, step)) for sampler in running]
        states = [sampler.state_dict() for sampler in running]
        resumed = samplers(world_size)
        for sampler, state in zip(resumed, states, strict=True):
            sampler.load_state_dict(state)
        assert [head + list(sampler) for head, sampler in zip(heads, resumed, strict=True)] == shares
        if step % run_length == 0 and step < len(shares[0]):
            others = samplers(2)
            for sampler in others:
                sampler.load_state_dict(states[0])
            assert Counter(chain(*map(list, others))) + Counter(chain(*heads)) <= Counter(whole)


def test_a_state_of_another_mixture_is_refused(datasets):
    state = OrderSampler(mix(datasets), seed=7).state_dict()
    for other in (
        OrderSampler(mix(datasets, {"a": 2, "b": 1, "c": 1}), seed=7),
        OrderSampler(ConcatDataset(list(datasets.values())), seed=7),
        OrderSampler(mix(datasets), shuffle=False),
    ):
        with pytest.raises(PositionError, match=r"What differs: .*(weights|shuffle)"):
            other.load_state_dict(state)
        with pytest.raises(PositionError, match=r"What differs: .*(weights|shuffle)"):
            OrderSampler(mix(datasets), seed=7).load_state_dict(other.state_dict())


def test_a_drawn_seed_is_taken_over(datasets):
    first, second = (OrderSampler(mix(datasets), shuffle=Shuffle(seed=None)) for _ in range(2))
    whole = list(first)
    next(iter(first))
    second.load_state_dict(first.state_dict())
    assert [whole[0], *second] == whole


def test_weights_and_lengths_go_with_it(datasets):
    mixed = mix(datasets, {"a": 1, "b": 1, "c": 1})
    balanced = epoch_of(mixed, shuffle=Shuffle(seed=7, weights=balance("label"), rows_per_epoch=90))
    for number in range(3):  # classes are drawn equally often in each dataset
        counts = np.bincount(balanced[source_of(balanced) == number] % 3)
        assert (np.abs(counts - 10) <= 1).all()
    by_length = epoch_of(mixed, shuffle=Shuffle("rows", 7, by_length="n_frames", run_rows=10))
    frames = 1 + by_length * 37 % 101
    assert np.ptp(frames[:120].reshape(-1, 10), axis=1).mean() < 12
    assert Counter(source_of(by_length)) == Counter(source_of(epoch_of(mixed, shuffle=Shuffle("rows", 7))))
    with pytest.raises(UnknownColumnError, match="wight"):
        epoch_of(mixed, shuffle=Shuffle("rows", weights="wight"))
    for option in ("weights", "by_length"):
        with pytest.raises(OptionError, match=rf"mix: Shuffle\({option}=<127 numbers>\): an array .* name a column"):
            epoch_of(mixed, shuffle=Shuffle("rows", **{option: np.ones(127)}))


def test_parts_may_be_chosen(paths, datasets):
    chosen = {
        "some": H5Dataset(paths["a"], None, where(label=1)),
        "subset": Subset(datasets["b"], range(5)),
        "two": ConcatDataset([datasets["b"], datasets["c"]]),
    }
    mixed = mix(chosen)
    assert len(mixed) == 30 + 5 + 37
    rows = [int(row) for batch in loader(mixed, 8, seed=3) for row in batch["x"][:, 0]]
    assert len(rows) == 72
    assert {row % 3 for row in rows if row < 90} == {1}


def test_rows_of_varying_shape_are_padded_to_the_longest_of_a_batch(tmp_path):
    for name, lengths in (("a", [1, 2, 3, 4]), ("b", [7, 8, 9])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for i, length in enumerate(lengths):
                file[f"g{i}/x"] = np.full((length, 2), length, "f4")
    parts = {name: H5Dataset(tmp_path / f"{name}.h5", rows=Groups("g*")) for name in "ab"}
    for source in (mix(parts), ConcatDataset(list(parts.values()))):
        for batch in loader(source, 4, pad=-1.0, shuffle=Shuffle(seed=0)):
            lengths = batch["x_length"].tolist()
            assert batch["x"].shape == (len(lengths), max(lengths), 2)
            for row, length in zip(batch["x"], lengths, strict=True):
                assert (row[:length] == length).all()
                assert (row[length:] == -1).all()
        (lists,) = loader(source, 16, shuffle=False)
        assert all(isinstance(row, torch.Tensor) for row in lists["x"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": ["x"]}, r"datasets 'a' and 'b' of the mixture .* column 'label' is int64 \(\) in .*missing"),
        ({"dtypes": {"x": "f8"}}, r"column 'x' is float32 \(4,\) in .*, and float64 \(4,\) in"),
    ],
)
def test_datasets_that_differ_are_refused(paths, datasets, change, said):
    with pytest.raises(SchemaMismatchError, match=said):
        mix({"a": datasets["a"], "b": H5Dataset(paths["b"], **change)})


def test_rows_of_varying_shape_that_differ_are_refused(tmp_path):
    for name, dtype in (("a", "f4"), ("b", "f8")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for i in range(3):
                file[f"g{i}/x"] = np.ones((i + 1, 2), dtype)
    parts = {name: H5Dataset(tmp_path / f"{name}.h5", rows=Groups("g*")) for name in "ab"}
    with pytest.raises(SchemaMismatchError, match=r"is a list of float32 arrays of 2 axes in .* list of float64"):
        mix(parts)


def test_transforms_may_make_datasets_alike(paths):
    other = H5Dataset(paths["b"], ["x"], dtypes={"x": "f8"}, transform=lambda sample: {"x": sample["x"].float()})
    same = H5Dataset(paths["a"], ["x"], transform=lambda sample: sample)
    rows = [row for batch in loader(mix({"a": same, "b": other}), 8) for row in batch["x"][:, 0].tolist()]
    assert len(rows) == 120


@pytest.mark.parametrize(
    ("names", "weights", "said"),
    [
        ([], None, r"expected datasets by name, .* found \{\}"),
        (["a", "b"], {"a": 1}, "weights: expected a number for each of 'a', 'b', found 'a'"),
        (["a", "b"], [1, 2], r"weights: expected a number for each of 'a', 'b', found \[1, 2\]"),
        (["a", "b"], {"a": 1, "b": 0}, "'b': 0: expected a number above 0; or leave the dataset out"),
        (["a", "b"], {"a": 1, "b": -1}, "'b': -1"),
        (["a", "b"], {"a": 1, "b": float("nan")}, "'b': nan"),
        (["a", "b"], {"a": 1, "b": "1"}, "'b': '1'"),
        (["a", "b"], {"a": 1, "b": 1e-9}, "'b' has less than one of 1000000 parts"),
    ],
)
def test_weights_that_cannot_be_used(datasets, names, weights, said):
    with pytest.raises(OptionError, match=said):
        mix({name: datasets[name] for name in names}, weights)


def test_what_cannot_be_mixed(datasets):
    with pytest.raises(OptionError, match=r"mix: expected datasets by name, .* found a list"):
        mix(list(datasets.values()))
    with pytest.raises(OptionError, match="mix: 'a': expected an H5Dataset, found a list"):
        mix({"a": [1, 2]})
    with pytest.raises(OptionError, match="'b' has no samples, so that it cannot have a share"):
        mix({"a": datasets["a"], "b": Subset(datasets["b"], [])})
    with pytest.raises(OptionError, match="expected an H5Dataset, or a ConcatDataset or Subset"):
        mix({"a": datasets["a"], "b": torch.utils.data.TensorDataset(torch.ones(3))})
    mixed = mix(datasets)
    for other in (ConcatDataset([mixed, datasets["a"]]), Subset(mixed, range(3))):
        with pytest.raises(OptionError, match="does not know its shares: name all datasets in one mix"):
            loader(other)
    with pytest.raises(OptionError, match="name all datasets in one mix"):
        mix({"both": mixed, "a": datasets["a"]})
    assert ray_h5.mix is mix


def test_a_mixture_of_one_dataset_is_its_order_with_other_seeds(datasets):
    rows = epoch_of(mix({"a": datasets["a"]}), seed=3)
    assert sorted(rows) == list(range(90))
