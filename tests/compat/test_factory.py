import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from ray_h5.compat import optimal_dataloader
from ray_h5.compat.optimal_dataloader import Machine
from ray_h5.errors import OptionError
from ray_h5.torch_data import DataLoaderPerformanceMonitor, OptimalDataLoaderFactory, OrderSampler

config = OptimalDataLoaderFactory.get_optimal_config
DATA = TensorDataset(torch.arange(103.0), torch.arange(103))


@pytest.mark.parametrize(
    ("cpus", "samples", "works", "workers"),
    [
        (1, 5000, False, 0),
        (2, 5000, False, 1),
        (2, 20_000, False, 4),
        (8, 5000, False, 7),
        (8, 500, False, 4),
        (8, 5000, True, 3),
        (8, 20_000, False, 10),
        (32, 5000, False, 16),
        (32, 20_000, True, 15),
        (32, 20_000, False, 16),
    ],
)
def test_workers_follow_the_machine_and_the_samples(cpus, samples, works, workers):
    found = config(samples, has_augmentation=works, machine=Machine(cpus, False))
    assert found["num_workers"] == workers
    assert found == config(samples, has_standardization=works, machine=Machine(cpus, False))
    if workers:
        assert found["persistent_workers"] is True
        assert found["prefetch_factor"] == (4 if works else 6)
    else:
        assert found.keys() == {"num_workers", "pin_memory", "drop_last"}
    DataLoader(DATA, **{**found, "num_workers": min(workers, 2)})


def test_pinning_needs_a_gpu():
    assert config(10, machine=Machine(4, True))["pin_memory"] is True
    assert config(10, machine=Machine(4, False))["pin_memory"] is False
    with pytest.raises(OptionError, match="dataset_size=-1"):
        config(-1)


@pytest.fixture
def one_cpu(monkeypatch):
    monkeypatch.setattr(optimal_dataloader, "Machine", lambda *_: Machine(1, False))


@pytest.mark.usefixtures("one_cpu")
class TestLoaders:
    def test_the_users_options_come_first(self):
        sampler = torch.utils.data.SequentialSampler(DATA)
        loader = OptimalDataLoaderFactory.create_training_loader(DATA, 10, sampler=sampler, drop_last=False)
        assert loader.sampler is sampler
        assert len(list(loader)) == 11
        batched = torch.utils.data.BatchSampler(sampler, 4, False)
        assert len(OptimalDataLoaderFactory.create_training_loader(DATA, 10, batch_sampler=batched)) == 26
        with pytest.raises(TypeError, match="nonsense"):
            OptimalDataLoaderFactory.create_training_loader(DATA, 10, nonsense=1)

    def test_without_a_batch_size_as_in_a_dataloader(self):
        batched = torch.utils.data.BatchSampler(SequentialSampler(DATA), 4, False)
        for make in (
            OptimalDataLoaderFactory.create_training_loader,
            OptimalDataLoaderFactory.create_validation_loader,
        ):
            assert len(list(make(DATA, None, batch_sampler=batched))) == 26
            samples = list(make(DATA, None))
            assert sorted(int(y) for _, y in samples) == list(range(103))
            assert samples[0][0].shape == ()

    def test_a_dataset_smaller_than_a_batch_gives_one(self):
        small = TensorDataset(torch.arange(3), torch.arange(3))
        assert len(list(OptimalDataLoaderFactory.create_training_loader(small, 10))) == 1

    def test_tuning_says_what_measures(self):
        with pytest.raises(OptionError, match="benchmark_configurations"):
            OptimalDataLoaderFactory.create_training_loader(DATA, 10, tune=True)


@pytest.mark.parametrize("workers", [None, -1, 1.5, "2"])
def test_workers_that_are_no_number(workers):
    for make in (OptimalDataLoaderFactory.create_training_loader, OptimalDataLoaderFactory.create_validation_loader):
        with pytest.raises(OptionError, match=r"num_workers=.*expected an integer of 0 or more; leave it out"):
            make(DATA, 10, num_workers=workers)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        import time

        time.sleep(0.01)
        return torch.zeros(3), index


def test_the_monitor_measures_the_wait_for_a_batch():
    """A sketch of this timed what happens after a batch has come, which is nothing."""
    monitor = DataLoaderPerformanceMonitor()
    found = monitor.time_batch_loading(DataLoader(Slow(), batch_size=4), num_batches=3)
    assert found["batches"] == 3
    assert found["mean_batch_time"] >= 0.04
    assert found["total_time"] == pytest.approx(3 * found["mean_batch_time"])
    assert found["std_batch_time"] == pytest.approx(np.std(monitor.metrics["batch_loading_times"]))
    assert len(monitor.metrics["memory_usage"]) == 3
    assert found["memory_mb"] > 10
    assert torch.cuda.is_available() or monitor.metrics["gpu_utilization"] == []


@pytest.mark.slow
def test_the_monitor_compares_configurations():
    monitor = DataLoaderPerformanceMonitor()
    configurations = [{"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 3}]
    found = monitor.benchmark_configurations(DATA, 10, configurations, num_batches=3)
    assert list(found) == ["config_1", "config_2"]
    assert found["config_2"]["prefetch_factor"] == 3
    assert all({"mean_batch_time", "std_batch_time", "total_time"} <= each.keys() for each in found.values())


def test_the_monitor_of_nothing():
    monitor = DataLoaderPerformanceMonitor()
    with pytest.raises(OptionError, match="no batch"):
        monitor.time_batch_loading([])
    with pytest.raises(OptionError, match="num_batches=0"):
        monitor.time_batch_loading([1], 0)
    assert monitor.time_batch_loading([1, 2], 10)["batches"] == 2


def test_a_rank_whose_samples_do_not_fill_a_batch_gets_one():
    sampler = OrderSampler(DATA, rank=1, world_size=4)
    batches = OptimalDataLoaderFactory.create_training_loader(DATA, 64, sampler=sampler, num_workers=0)
    assert [len(batch[0]) for batch in batches] == [26]
