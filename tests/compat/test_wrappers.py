import copy
import pickle
import random

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from ray_h5 import GaussianNoise, H5Dataset, SpecAugment
from ray_h5.errors import NonFiniteError, OptionError, SchemaMismatchError
from ray_h5.order.epoch_order import row_keys
from ray_h5.torch_data import (
    H5LazyDataset,
    WorkerSafeAugmentedDataset,
    WorkerSafeStandardizedDataset,
    where,
    worker_init_fn,
)

MASKS = {"time_mask_param": 60, "freq_mask_param": 40, "num_time_masks": 2, "num_freq_masks": 2, "p": 1.0}


class Ones(torch.utils.data.Dataset):
    """Spectrograms of ones: what is masked shows."""

    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.ones(1, 100, 150), index


def epoch_of(dataset, workers=0, **options):
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, worker_init_fn=worker_init_fn, **options)
    return torch.cat([inputs for inputs, _ in loader])


def test_standardised(pairs):
    base = H5LazyDataset(pairs, "images", "labels")
    dataset = WorkerSafeStandardizedDataset(base, range(10, 20), mean=np.float32(3), std=np.float64(2))
    assert (type(dataset.mean), type(dataset.std), dataset.indices) == (float, float, list(range(10, 20)))
    assert len(dataset) == 10
    x, y = dataset[4]
    assert x[0, 0] == pytest.approx((14 - 3) / (2 + 1e-8))
    assert y == 2
    inputs, targets = next(iter(DataLoader(dataset, batch_size=10)))
    assert torch.equal(inputs[4], x)
    assert targets.tolist() == [i % 4 for i in range(10, 20)]
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[4][0], x)
    with pytest.raises(IndexError):
        dataset[10]


def test_statistics_come_from_training_samples_only(pairs):
    """A sketch of this took them from all samples: validation then knows what it is to be tested with."""
    base = H5LazyDataset(pairs, "images", "labels")
    train, valid = range(30), range(30, 50)
    dataset = WorkerSafeStandardizedDataset.from_indices(base, valid, statistics_from=train)
    assert dataset.mean == pytest.approx(np.mean(range(30)))
    assert dataset.std == pytest.approx(np.std(range(30)))
    with pytest.raises(OptionError, match="at least one sample"):
        WorkerSafeStandardizedDataset.from_indices(base, valid, statistics_from=[])


def test_augmentation_is_a_function_of_seed_epoch_and_row():
    dataset = WorkerSafeAugmentedDataset(Ones(), MASKS, training=True, seed=3)
    dataset.set_epoch(1)
    first = epoch_of(dataset)
    assert 0 < float(first.mean()) < 1
    assert len({each.numpy().tobytes() for each in first}) == 24
    assert torch.equal(epoch_of(dataset), first)
    assert torch.equal(epoch_of(pickle.loads(pickle.dumps(dataset))), first)
    assert torch.equal(dataset[5][0], first[5])
    dataset.set_epoch(2)
    assert not torch.equal(epoch_of(dataset), first)
    other = WorkerSafeAugmentedDataset(Ones(), MASKS, seed=4)
    other.set_epoch(1)
    assert not torch.equal(epoch_of(other), first)


@pytest.mark.parametrize("wrap", ["nothing", "subset", "standardised", "both"])
def test_a_row_is_augmented_the_same_whatever_else_is_chosen(tmp_path, wrap):
    """And as in Ray: a row of a fold keeps the augmentation that it has among all rows."""
    inputs = np.ones((30, 20, 30), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["label"] = inputs, np.arange(30) % 3
    base = H5Dataset(tmp_path / "a.h5", ["x", "label"], where(label=[1, 2]), _input_and_label)
    chosen = list(range(19, 3, -2))
    rows = base.row_ids(chosen if wrap != "nothing" else range(20))
    if wrap in ("subset", "both"):
        base = Subset(base, chosen)
    if wrap == "standardised":
        base = WorkerSafeStandardizedDataset(base, chosen, 0, 1 - 1e-8)
    if wrap == "both":
        base = WorkerSafeStandardizedDataset(base, range(len(chosen)), 0, 1 - 1e-8)
    dataset = WorkerSafeAugmentedDataset(base, {"time_mask_param": 20, "freq_mask_param": 9}, seed=1)
    dataset.set_epoch(2)
    batch = {"x": inputs[rows], "row_key": row_keys(rows, 1, 2)}
    wanted = SpecAugment("x", time_mask_param=20, freq_mask_param=9)(batch)["x"]
    assert 0 < wanted.mean() < 1
    assert np.array_equal(epoch_of(dataset), wanted)
    assert np.array_equal(torch.stack([dataset[i][0] for i in range(len(dataset))]), wanted)


@pytest.mark.parametrize("column", ["x", "fhr_st"])
def test_a_column_is_augmented_as_in_ray(column):
    params = {**MASKS, "column": column, "noise_std": 0.5}
    dataset = WorkerSafeAugmentedDataset(Ones(6), params, seed=3)
    dataset.set_epoch(1)
    keys = row_keys(np.arange(6), 3, 1)
    wanted = SpecAugment(column, **MASKS).apply_batch(torch.ones(6, 1, 100, 150), keys)
    assert torch.equal(epoch_of(dataset), GaussianNoise(column, std=0.5).apply_batch(wanted, keys))


def test_an_index_stands_for_a_row_that_is_not_known():
    whole = WorkerSafeAugmentedDataset(Ones(), MASKS, seed=3)
    part = WorkerSafeAugmentedDataset(Subset(Ones(), [7, -1]), MASKS, seed=3)
    assert part[0][0].shape == (1, 100, 150)  # also before an epoch is chosen
    for each in (whole, part):
        each.set_epoch(1)
    assert torch.equal(epoch_of(part), torch.stack([whole[7][0], whole[23][0]]))


def _input_and_label(sample):
    return sample.x, sample.label


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_who_never_calls_set_epoch_gets_other_ones_all_the_same(options):
    loader = DataLoader(WorkerSafeAugmentedDataset(Ones(), MASKS), batch_size=4, **options)
    epochs = [torch.cat([inputs for inputs, _ in loader]) for _ in range(3)]
    assert len({each.numpy().tobytes() for epoch in epochs for each in epoch}) == 72


def test_noise_and_options_of_nothing():
    dataset = WorkerSafeAugmentedDataset(Ones(), {"noise_std": 0.5, "noise_p": 1.0})
    dataset.set_epoch(0)
    assert float(epoch_of(dataset).std()) == pytest.approx(0.5, rel=0.1)
    with pytest.raises(OptionError, match="nonsense"):
        WorkerSafeAugmentedDataset(Ones(), {"nonsense": 1})
    with pytest.raises(OptionError, match="set_epoch"):
        dataset.set_epoch(-1)


class Draws(torch.utils.data.Dataset):
    """A transform of a user that draws from all three generators."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])  # noqa: NPY002


def test_workers_draw_different_numbers_in_each_epoch():
    loader = DataLoader(Draws(), num_workers=2, worker_init_fn=worker_init_fn)
    drawn = torch.cat([*loader, *loader])
    for column in drawn.T.tolist():
        assert len(set(column)) == 16


def test_seeds_of_workers_do_not_meet():
    """With seed + worker, worker 1 of one epoch draws what worker 0 of another does."""
    states = set()
    for seed in range(5):
        for worker in range(5):
            torch.manual_seed(seed + worker)  # what a loader gives its worker
            worker_init_fn(worker)
            states.add((random.random(), np.random.rand(), torch.rand(()).item()))  # noqa: NPY002
    assert len(states) == 25


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_workers_that_live_on_see_the_epoch_of_a_copy(copied):
    dataset = copied(WorkerSafeAugmentedDataset(Ones(8), MASKS))
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = DataLoader(dataset, batch_size=4, **options)
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs.append(torch.cat([inputs for inputs, _ in loader]))
    assert torch.equal(epochs[0], epochs[2])
    assert not torch.equal(epochs[0], epochs[1])


class Named(Ones):
    """Samples that are no pairs."""

    def __getitem__(self, index):
        return {"x": torch.ones(1, 100, 150), "y": index}


def test_samples_that_are_no_pairs_say_so():
    triples = torch.utils.data.TensorDataset(*[torch.ones(4)] * 3)
    with pytest.raises(SchemaMismatchError, match=r"StandardizedDataset: expected .* pairs, found dict of 'x', 'y'"):
        WorkerSafeStandardizedDataset(Named(), [0], 0, 1)[0]
    with pytest.raises(SchemaMismatchError, match=r"AugmentedDataset: expected .* pairs, found dict of 'x', 'y'"):
        WorkerSafeAugmentedDataset(Named(), MASKS)[0]
    with pytest.raises(SchemaMismatchError, match="found tuple of 3"):
        WorkerSafeStandardizedDataset.from_indices(triples, [0], [1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_large_means_keep_their_digits(dtype):
    large = 2.0**30 if dtype in (torch.int64, torch.float64) else 1e7
    counts = np.rint(large + np.random.default_rng(0).normal(0.5, 3, (50, 40)))
    base = TensorDataset(torch.from_numpy(counts).to(dtype), torch.arange(50))
    dataset = WorkerSafeStandardizedDataset.from_indices(base, range(50), range(50))
    found = torch.stack([dataset[i][0] for i in range(50)])
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_allclose(found.numpy(), (counts - counts.mean()) / counts.std(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        (np.zeros(3), 1.0, "mean=.*one finite number"),
        (0.0, torch.ones(2), "std=.*one finite number"),
        (None, 1.0, "mean=None"),
        ("3", 1.0, "mean='3'"),
        (float("nan"), 1.0, "mean=nan"),
        (0, float("inf"), "std=inf"),
        (0, -1, "std=-1"),
        (0.0, -5e-9, "std=-5e-09: expected 0 or more"),
    ],
)
def test_moments_that_are_none(mean, std, words):
    with pytest.raises(OptionError, match=words):
        WorkerSafeStandardizedDataset(Ones(), range(3), mean, std)


def test_which_sample_is_not_finite_is_said():
    inputs = torch.zeros(50, 3)
    inputs[37, 1] = float("nan")
    with pytest.raises(NonFiniteError, match="sample 37: "):
        WorkerSafeStandardizedDataset.from_indices(TensorDataset(inputs, torch.arange(50)), range(50), range(50))


def test_seeds():
    dataset = WorkerSafeAugmentedDataset(Ones(), MASKS, seed=np.int64(3))
    dataset.set_epoch(0)
    assert dataset[0][0].shape == (1, 100, 150)
    for seed in (1.5, None, True, -1):
        with pytest.raises(OptionError, match="seed="):
            WorkerSafeAugmentedDataset(Ones(), MASKS, seed=seed)
