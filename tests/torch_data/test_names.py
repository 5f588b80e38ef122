import inspect
import subprocess
import sys

import numpy as np
import torch

import ray_h5
from ray_h5 import torch_data

# Ray Train puts another one in its place, once a trainer ran in this process.
PRINT = print


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("self", "options", "kwargs", "dataset_kwargs")}


def test_every_public_name_is_there_and_sorted():
    assert torch_data.__all__ == sorted(torch_data.__all__)
    assert all(getattr(torch_data, name).__name__ == name for name in torch_data.__all__)
    assert dir(torch_data) == [name for name in torch_data.__all__ if not name.startswith("_")]


def test_all_names_that_need_no_ray_are_here():
    of_ray = {name for name, home in ray_h5._HOMES.items() if home.startswith("ray_h5.ray_data.")}
    assert set(torch_data.__all__) == {*ray_h5._HOMES, "RayH5Error"} - (
        of_ray - {"where", "kfold", "DecodeImage", "Standardize"}
    )
    assert {*ray_h5.__all__} - {*torch_data.__all__} <= of_ray
    assert torch_data.CastError is ray_h5.CastError


IMPORTS = """
import copyreg, importlib, pkgutil, sys, types
from multiprocessing.reduction import ForkingPickler
import numpy

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ray":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())

def registered():
    return dict(ForkingPickler._extra_reducers), dict(copyreg.dispatch_table)

before = registered()
from ray_h5 import torch_data
assert "torch" not in sys.modules
assert registered() == before

from torch.utils.data._utils.collate import default_collate_fn_map
before = registered(), dict(default_collate_fn_map)
for name in torch_data.__all__:
    getattr(torch_data, name)
assert (registered(), default_collate_fn_map) == before, "an import changes nothing of torch"

for found in pkgutil.walk_packages(torch_data.__path__, "ray_h5.torch_data."):
    importlib.import_module(found.name)
# An import of a submodule sets an attribute of its package: a module named as a function would hide the function.
assert not [name for name in torch_data.__all__ if isinstance(getattr(torch_data, name), types.ModuleType)]
assert "ray" not in sys.modules
"""


def test_imports_bring_no_ray_and_change_nothing_of_torch_and_hide_no_name():
    """In one process: to import torch takes seconds."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORTS], check=True, timeout=100)


EMPTY = inspect.Parameter.empty


def test_combined_has_the_parameters_of_its_table():
    expected = {
        "paths": EMPTY,
        "load_fields": None,
        "allowed_guids": None,
        "cs_label": None,
        "bg_label": None,
        "epoch_min": None,
        "epoch_max": None,
        "label": None,
        "cache_size": 1000,
        "pin_memory": True,
        "dtype": torch.float32,
    }
    found = defaults(torch_data.CombinedHDF5Dataset)
    assert expected.items() <= found.items()
    assert list(defaults(torch_data.create_optimized_dataloader))[:5] == [
        "hdf5_files",
        "batch_size",
        "num_workers",
        "rank",
        "world_size",
    ]


CHUNK_CACHE = {"rdcc_nbytes": 256 * 1024**2, "rdcc_nslots": 1_000_003, "rdcc_w0": 0.75, "swmr": True}


def test_lazy_has_the_signature_of_its_document():
    expected = {
        "path": EMPTY,
        "x_key": EMPTY,
        "y_key": None,
        "x_dtype": None,
        "y_dtype": None,
        "transform": None,
        "target_transform": None,
        **CHUNK_CACHE,
    }
    found = defaults(torch_data.H5LazyDataset)
    assert expected.items() <= found.items()
    assert list(found)[: len(expected)] == list(expected)  # all of them can be given by position
    assert list(inspect.signature(torch_data.h5_worker_init_fn).parameters) == ["_worker_id"]


def test_rank_cached_has_the_signature_of_its_document():
    found = inspect.signature(torch_data.RankMemCachedH5Dataset).parameters
    assert {name: each.default for name, each in found.items()}.items() >= {
        "path": EMPTY,
        "x_key": EMPTY,
        "y_key": None,
        "mode": "contiguous",
        "dtype_x": np.float32,
        "dtype_y": None,
        "transform": None,
        "target_transform": None,
        "pin_host_memory": True,
        "share_memory": False,
        **CHUNK_CACHE,
        "log_fn": PRINT,
    }.items()
    by_position = [name for name, each in found.items() if each.kind is not each.KEYWORD_ONLY]
    assert by_position == ["path", "x_key", "y_key"]
    assert defaults(torch_data.EpochShuffleSampler) == {"data_len": EMPTY, "seed": 0, "shuffle": True}
    for shard in (torch_data._balanced_contiguous_shard, torch_data._interleaved_indices):
        assert list(inspect.signature(shard).parameters) == ["total", "world_size", "rank"]


def test_the_worker_safe_ones_have_the_signatures_of_their_document():
    standardized = inspect.signature(torch_data.WorkerSafeStandardizedDataset)
    assert list(standardized.parameters) == ["base_dataset", "indices", "mean", "std"]
    augmented = inspect.signature(torch_data.WorkerSafeAugmentedDataset)
    assert list(augmented.parameters)[:3] == ["base_dataset", "augment_params", "training"]
    assert augmented.parameters["training"].default is True
    factory = torch_data.OptimalDataLoaderFactory
    config = list(inspect.signature(factory.get_optimal_config).parameters)
    assert config[:3] == ["dataset_size", "has_augmentation", "has_standardization"]
    for create in (factory.create_training_loader, factory.create_validation_loader):
        assert list(inspect.signature(create).parameters) == ["dataset", "batch_size", "kwargs"]
    monitor = torch_data.DataLoaderPerformanceMonitor()
    assert sorted(monitor.metrics) == ["batch_loading_times", "gpu_utilization", "memory_usage"]
    assert inspect.signature(monitor.time_batch_loading).parameters["num_batches"].default == 10
