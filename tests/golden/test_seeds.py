"""What the documents name that this package began with: imports, options, defaults and methods, in small programs."""

import inspect

import h5py
import numpy as np
import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader, Subset

import ray_h5
from ray_h5 import torch_data
from ray_h5.torch_data import (
    CombinedHDF5Dataset,
    DataLoaderPerformanceMonitor,
    EpochShuffleSampler,
    H5LazyDataset,
    OptimalDataLoaderFactory,
    RankMemCachedH5Dataset,
    WorkerSafeAugmentedDataset,
    WorkerSafeStandardizedDataset,
    _balanced_contiguous_shard,
    _interleaved_indices,
    create_optimized_dataloader,
    h5_worker_init_fn,
    worker_init_fn,
)

CHUNK_CACHE = {"rdcc_nbytes": 256 << 20, "rdcc_nslots": 1_000_003, "rdcc_w0": 0.75, "swmr": True}
PAIR = {"transform": None, "target_transform": None}
EMPTY = inspect.Parameter.empty

OPTIONS = {
    "CombinedHDF5Dataset": {
        "paths": EMPTY, "load_fields": None, "allowed_guids": None, "cs_label": None, "bg_label": None,
        "epoch_min": None, "epoch_max": None, "label": None, "cache_size": 1000, "pin_memory": True,
        "dtype": torch.float32,
    },
    "H5LazyDataset": {
        "path": EMPTY, "x_key": EMPTY, "y_key": None, "x_dtype": None, "y_dtype": None, **PAIR, **CHUNK_CACHE,
    },
    "RankMemCachedH5Dataset": {
        "path": EMPTY, "x_key": EMPTY, "y_key": None, "mode": "contiguous", "dtype_x": np.float32, "dtype_y": None,
        **PAIR, "pin_host_memory": True, "share_memory": False, **CHUNK_CACHE,
    },
    "EpochShuffleSampler": {"data_len": EMPTY, "seed": 0, "shuffle": True},
    "WorkerSafeStandardizedDataset": {"base_dataset": EMPTY, "indices": EMPTY, "mean": EMPTY, "std": EMPTY},
    "_balanced_contiguous_shard": {"total": EMPTY, "world_size": EMPTY, "rank": EMPTY},
    "_interleaved_indices": {"total": EMPTY, "world_size": EMPTY, "rank": EMPTY},
}  # fmt: skip
"""Options and their defaults."""


@pytest.mark.parametrize("name", OPTIONS)
def test_options_and_defaults(name):
    found = inspect.signature(getattr(torch_data, name)).parameters
    assert {option: found[option].default for option in OPTIONS[name] if option != "log_fn"} == OPTIONS[name]
    assert getattr(ray_h5, name) is getattr(torch_data, name)


def test_log_fn_prints():
    assert inspect.signature(RankMemCachedH5Dataset).parameters["log_fn"].default.__name__ == "print"


@pytest.fixture
def patients(tmp_path):
    """Two files of windows of signals: 40 rows, as the filters of the documents name their columns."""
    paths = []
    for number in range(2):
        rows = np.arange(20) + 20 * number
        with h5py.File(tmp_path / f"train{number + 1}.h5", "w") as file:
            file["fhr_st"] = np.repeat(rows[:, None, None], 12, 1).repeat(3, 2).astype("f4")
            file["fhr_ph"] = rows[:, None, None] * np.ones((1, 12, 4), "f4")
            file["target"] = np.eye(3, dtype="f4")[rows % 3][:, None].repeat(12, 1)
            file["weight"] = np.ones((20, 12), "f4")
            file["guid"] = np.array([f"patient_{row // 5:03}" for row in rows], h5py.string_dtype())
            file["epoch"] = rows.astype("f4") * 2
            file["cs_label"] = rows % 2 == 0
            file["bg_label"] = rows % 4 == 0
        paths.append(str(tmp_path / f"train{number + 1}.h5"))
    return paths


def test_filters_of_the_combined_dataset(patients):
    rows = np.arange(40)
    plain = CombinedHDF5Dataset(paths=patients, cs_label=True, bg_label=False, label=1, cache_size=20, pin_memory=True)
    expected = rows[(rows % 2 == 0) & (rows % 4 != 0) & (rows % 3 == 1)]
    assert [int(sample["fhr_st"][0, 0]) for sample in map(plain.__getitem__, range(len(plain)))] == expected.tolist()
    advanced = CombinedHDF5Dataset(
        paths=patients,
        allowed_guids=["patient_001", "patient_002"],
        cs_label=True,
        epoch_min=10.0,
        epoch_max=24.0,
        label=2,
        load_fields=["fhr_st", "fhr_ph", "target", "weight"],
        dtype=torch.float16,
    )
    kept = (rows // 5 >= 1) & (rows // 5 <= 2) & (rows % 2 == 0) & (rows * 2 >= 10) & (rows * 2 <= 24) & (rows % 3 == 2)
    (batch,) = DataLoader(advanced, batch_size=64)
    assert batch["fhr_st"][:, 0, 0].tolist() == rows[kept].tolist()
    assert {name: batch[name].dtype for name in batch} == dict.fromkeys(
        ["fhr_st", "fhr_ph", "target", "weight"], torch.float16
    )


def test_statistics_and_cache_of_the_combined_dataset(patients):
    dataset = CombinedHDF5Dataset(patients, cache_size=8)
    for _ in range(2):
        dataset[3]
    stats = dataset.get_stats()
    assert stats["total_samples"] == 40
    assert stats["access_count"] == 2
    assert stats["dtype"] == torch.float32
    assert stats["cache_size"] == len(dataset._cache) > 0
    dataset.clear_cache()
    assert len(dataset._cache) == 0
    assert dataset.get_stats()["cache_size"] == 0


def test_one_file_by_its_name(patients):
    assert len(CombinedHDF5Dataset(patients[0])) == 20


def test_create_optimized_dataloader(patients):
    options = {"hdf5_files": patients, "batch_size": 4, "num_workers": 0, "cs_label": True, "cache_size": 10}
    ranks = [create_optimized_dataloader(**options, rank=rank, world_size=2) for rank in range(2)]
    rows = []
    for loader in ranks:
        loader.sampler.set_epoch(1)
        rows += [int(row) for batch in loader for row in batch["fhr_st"][:, 0, 0]]
    assert len(set(rows)) == len(rows) == 20
    alone = create_optimized_dataloader(hdf5_files=patients, batch_size=8, num_workers=0)
    assert sum(len(batch["weight"]) for batch in alone) == 40


@pytest.fixture
def pairs(tmp_path):
    """A file of 11 inputs and targets."""
    with h5py.File(tmp_path / "my_dataset.h5", "w") as file:
        file["images"] = np.arange(22, dtype="f8").reshape(11, 2)
        file["labels"] = np.arange(11, dtype="i4")
    return str(tmp_path / "my_dataset.h5")


def test_lazy_dataset(pairs):
    dataset = H5LazyDataset(path=pairs, x_key="images", y_key="labels", x_dtype=np.float32, y_dtype=np.int64)
    batches = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=0, worker_init_fn=h5_worker_init_fn)
    found = [(x, y) for x, y in batches]
    assert [x.dtype for x, _ in found] == [torch.float32] * 3
    assert sorted(int(label) for _, y in found for label in y) == list(range(11))
    assert all(torch.equal(x[:, 0].long(), 2 * y) for x, y in found)
    dataset.close()
    assert len(dataset) == 11


def test_lazy_dataset_with_transforms_and_inputs_alone(pairs):
    changed = H5LazyDataset(
        path=pairs, x_key="images", y_key="labels", transform=lambda x: x + 1, target_transform=lambda y: int(y) * 10
    )
    x, y = changed[3]
    assert np.asarray(x).tolist() == [7, 8]
    assert y == 30
    alone = H5LazyDataset(path=pairs, x_key="images", y_key=None, x_dtype=np.float32)
    assert sum(len(each) for each in DataLoader(alone, batch_size=4, worker_init_fn=h5_worker_init_fn)) == 11


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("mode", ["contiguous", "interleave"])
def test_rank_cached_dataset(pairs, mode):
    lines = []
    dataset = RankMemCachedH5Dataset(
        path=pairs,
        x_key="images",
        y_key="labels",
        mode=mode,
        dtype_y=np.int64,
        pin_host_memory=True,
        log_fn=lines.append,
    )
    sampler = EpochShuffleSampler(data_len=len(dataset), seed=42, shuffle=True)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=0, pin_memory=False)
        orders.append([int(label) for x, y in batches for label in y])
        assert sorted(orders[-1]) == list(range(11))
    assert orders[0] != orders[1]
    assert lines


def test_rank_cached_dataset_needs_torch_distributed(pairs):
    with pytest.raises(torch_data.DistributedError):
        RankMemCachedH5Dataset(path=pairs, x_key="images")


def test_shuffle_of_an_epoch():
    plain = EpochShuffleSampler(data_len=7, shuffle=False)
    assert list(plain) == list(range(7))
    assert len(plain) == 7
    assert sorted(EpochShuffleSampler(7)) == list(range(7))


def test_shards():
    bounds = [_balanced_contiguous_shard(11, 3, rank) for rank in range(3)]
    assert bounds == [(0, 4), (4, 8), (8, 11)]
    assert [_interleaved_indices(11, 3, rank).tolist() for rank in range(3)] == [
        [0, 3, 6, 9],
        [1, 4, 7, 10],
        [2, 5, 8],
    ]


def test_worker_safe_datasets(pairs):
    base = H5LazyDataset(path=pairs, x_key="images", y_key="labels", x_dtype=np.float32)
    standard = WorkerSafeStandardizedDataset(base, indices=[4, 2], mean=10.0, std=2.0)
    assert len(standard) == 2
    assert torch.allclose(torch.as_tensor(standard[0][0]), torch.tensor([-1.0, -0.5]))
    with h5py.File(pairs, "r+") as file:
        file["spectra"] = np.ones((11, 1, 32, 64), "f4")
    base = H5LazyDataset(path=pairs, x_key="spectra", y_key="labels")
    params = {"time_mask_param": 10, "freq_mask_param": 5, "p": 1.0}
    training = WorkerSafeAugmentedDataset(base, augment_params=params, training=True)
    plain = WorkerSafeAugmentedDataset(base, augment_params=params, training=False)
    assert np.asarray(plain[1][0]).all()
    assert not all(np.asarray(training[i][0]).all() for i in range(11))
    worker_init_fn(1)


def test_factory_and_monitor(pairs):
    assert {"num_workers", "pin_memory", "drop_last"} <= set(
        OptimalDataLoaderFactory.get_optimal_config(11, has_augmentation=True, has_standardization=False)
    )
    base = H5LazyDataset(path=pairs, x_key="images", y_key="labels")
    training = OptimalDataLoaderFactory.create_training_loader(
        Subset(base, range(8)), batch_size=4, has_augmentation=True, has_standardization=True, num_workers=0
    )
    valid = OptimalDataLoaderFactory.create_validation_loader(
        Subset(base, range(8, 11)), batch_size=2, has_standardization=False, num_workers=0
    )
    assert sorted(int(label) for _, y in training for label in y) == list(range(8))
    # drop_last is set for training and validation alike, as it is there.
    assert len(valid) in (1, 2)
    monitor = DataLoaderPerformanceMonitor()
    assert {"batch_loading_times", "gpu_utilization", "memory_usage"} <= monitor.metrics.keys()
    found = monitor.time_batch_loading(training, num_batches=2)
    assert {"mean_batch_time", "std_batch_time", "total_time"} <= found.keys()
    assert callable(monitor.benchmark_configurations)
