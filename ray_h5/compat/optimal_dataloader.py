"""DataLoaders whose options are chosen for the machine and the dataset."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from joblib import cpu_count
from torch.utils.data import DataLoader, Dataset

from ray_h5.compat.combined_dataset import CombinedHDF5Dataset
from ray_h5.compat.dataset_wrappers import worker_init_fn
from ray_h5.errors import OptionError
from ray_h5.options import as_integer, names_options, require
from ray_h5.storage.find_files import PathLike
from ray_h5.torch_data.batched_dataset import datasets_in
from ray_h5.torch_data.batches.processes import start_method
from ray_h5.torch_data.h5_data_loader import H5DataLoader
from ray_h5.torch_data.samplers import OrderSampler

logger = logging.getLogger(__name__)

_FEW_SAMPLES, _MANY_SAMPLES = 1000, 10_000
_MOST_WORKERS = 16

_PROCESS_OPTIONS = frozenset({"multiprocessing_context", "worker_init_fn"})
_LOADER_OPTIONS = frozenset({"collate_fn", "prefetch_factor", "sampler", "timeout"}) | _PROCESS_OPTIONS

_OF_WORKERS = frozenset({"prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"})
"""Options that `DataLoader` refuses without workers."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as far as a choice depends on it: CPUs of this process, and whether it has a CUDA device."""

    cpus: int
    has_gpu: bool


class OptimalDataLoaderFactory:
    """Makes DataLoaders for training and validation.

    The log of this module says what was chosen, and why.
    """

    @staticmethod
    def get_optimal_config(
        dataset_size: int,
        has_augmentation: bool = False,
        has_standardization: bool = False,
        *,
        machine: Machine | None = None,
    ) -> dict[str, Any]:
        """Return options for `DataLoader`.

        One CPU is for the training process; each of the others has a worker, or half of them if samples are
        augmented or standardised. Less than 1000 samples get at most four workers; more than 10,000 that are
        only read get two more than CPUs; never more than 16. Each worker prefetches four batches of samples
        that are augmented or standardised, six of others.

        Parameters
        ----------
        dataset_size : int
            Samples.
        has_augmentation, has_standardization : bool
            Whether each sample is augmented, or standardised.
        machine : Machine, optional
            By default this machine.

        Returns
        -------
        dict
            ``num_workers``, ``pin_memory``, ``drop_last``; with workers also ``persistent_workers``
            and ``prefetch_factor``.
        """
        require(not (isinstance(dataset_size, bool) or dataset_size < 0), "dataset_size", dataset_size, "0 or more")
        # Affinity and container limits count, not the CPUs of the host.
        machine = machine or Machine(cpu_count(), torch.cuda.is_available())
        works = has_augmentation or has_standardization
        workers = machine.cpus - 1  # with one CPU, a worker would take turns with the training process
        if works:
            workers = max(1, workers // 2)
        elif dataset_size > _MANY_SAMPLES:
            workers = machine.cpus + 2
        most = 0 if machine.cpus == 1 else 4 if dataset_size < _FEW_SAMPLES else _MOST_WORKERS
        workers = min(workers, most)
        config: dict[str, Any] = {"num_workers": workers, "pin_memory": machine.has_gpu, "drop_last": True}
        if workers:
            config |= {"persistent_workers": True, "prefetch_factor": 4 if works else 6}
        logger.info(
            "%d workers for %d samples, %s, on %d CPUs; memory is %spinned: %s CUDA device",
            workers,
            dataset_size,
            "each worked on" if works else "only read",
            machine.cpus,
            *(("", "there is a") if machine.has_gpu else ("not ", "there is no")),
        )
        return config

    @staticmethod
    def create_training_loader(dataset: Dataset[Any], batch_size: int | None, **kwargs: Any) -> DataLoader[Any]:
        """Return a loader for training: shuffled, each batch of the same size, workers seeded.

        Parameters
        ----------
        dataset : Dataset
            The samples.
        batch_size : int, optional
            Samples of a batch. None, as in a `DataLoader`, for single samples, and beside a ``batch_sampler``.
        **kwargs
            ``has_augmentation`` and ``has_standardization`` of `get_optimal_config`. Other options are passed to
            `DataLoader`, and replace what would be chosen here.
        """
        return _loader(dataset, batch_size, kwargs, trains=True)

    @staticmethod
    def create_validation_loader(dataset: Dataset[Any], batch_size: int | None, **kwargs: Any) -> DataLoader[Any]:
        """Return a loader for validation: in order, and nothing left out.

        Arguments as for `create_training_loader`; ``has_augmentation`` has no effect.
        """
        return _loader(dataset, batch_size, kwargs, trains=False)


def _loader(dataset: Dataset[Any], batch_size: int | None, kwargs: dict[str, Any], *, trains: bool) -> DataLoader[Any]:
    """Return a loader with options that are chosen, and those of the user in place of them."""
    augments, standardizes = kwargs.pop("has_augmentation", False), kwargs.pop("has_standardization", False)
    count = len(cast("Sized", dataset))
    chosen = OptimalDataLoaderFactory.get_optimal_config(count, bool(trains and augments), bool(standardizes))
    config = chosen | {"drop_last": trains} | kwargs
    # Scripts without a sampler pass ``sampler=None``.
    if all(kwargs.get(name) is None for name in ("shuffle", "sampler", "batch_sampler")):
        config["shuffle"] = trains
    if trains:
        config.setdefault("worker_init_fn", worker_init_fn)
        drawn = kwargs.get("sampler")  # a sampler of one of several ranks draws only its share
        count = len(drawn) if isinstance(drawn, Sized) else count
        if batch_size is not None and count < batch_size and "drop_last" not in kwargs:
            config["drop_last"] = False  # otherwise there would be no batch
    workers = as_integer("num_workers", config["num_workers"], 0, instead="; leave it out to have it chosen")
    if "tune" in config:
        raise OptionError(
            "tune: expected num_workers=. DataLoaderPerformanceMonitor().benchmark_configurations(...) measures "
            "several numbers of workers"
        )
    options = {**with_start_method(dataset, config), "num_workers": workers, "batch_size": batch_size}
    # Without those that others exclude, or that need workers.
    dropped: set[str] = set() if workers else set(_OF_WORKERS)
    if options.get("batch_sampler") is not None:
        dropped |= {"batch_size", "shuffle", "sampler", "drop_last"}
    elif batch_size is None:
        dropped.add("drop_last")
    return DataLoader(dataset, **{name: value for name, value in options.items() if name not in dropped})


def with_start_method(dataset: Dataset[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a loader, with a way to start workers that may read from stores."""
    chosen = options.get("multiprocessing_context")
    from_store = any(getattr(member, "call_bytes", 0) for member in datasets_in(dataset))
    method = start_method(from_store=from_store) if chosen is None else None
    return dict(options) if method is None else {**options, "multiprocessing_context": method}


@names_options
def create_optimized_dataloader(
    hdf5_files: PathLike | Sequence[PathLike],
    batch_size: int = 64,
    num_workers: int = 4,
    rank: int | None = None,
    world_size: int | None = None,
    **dataset_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of a `CombinedHDF5Dataset` for one of several training processes.

    Each iteration is the next epoch, in another order. ``.sampler.set_epoch(epoch)`` chooses the epoch of the next
    iteration, also with one process. All ranks have equally many batches: if the samples do not divide, the first few
    of the epoch's order are repeated, or with ``drop_last=True`` the last few are left out.

    Parameters
    ----------
    hdf5_files : str or sequence of str
        The files.
    batch_size : int
        Samples of a batch, on each rank.
    num_workers : int
        Threads that read ahead, at most one for each CPU; 0 reads when a batch is
        asked for. With ``worker_init_fn`` or ``multiprocessing_context`` they are processes. For files in stores
        they are started by ``forkserver``, unless another way is given.
    rank, world_size : int, optional
        By default those of torch.distributed, or 0 of 1.
    **dataset_kwargs
        Other options of `CombinedHDF5Dataset`, and of the loader: ``shuffle`` (True), ``seed`` (0), ``drop_last``
        (False), ``sampler``, ``collate_fn``, ``prefetch_factor``, ``timeout``, ``persistent_workers``
        (no effect for threads, which start at once), ``worker_init_fn`` and
        ``multiprocessing_context``.

    Returns
    -------
    torch.utils.data.DataLoader
        With ``pin_memory`` (True by default) batches are pinned if there is a CUDA device.
    """
    batch_size = as_integer("batch_size", batch_size, 1)
    num_workers = as_integer("num_workers", num_workers, 0)
    loader_options = {name: dataset_kwargs.pop(name) for name in _LOADER_OPTIONS & dataset_kwargs.keys()}
    # None is DataLoader's own default of each of them.
    options = {name: value for name, value in loader_options.items() if value is not None}
    split = {name: dataset_kwargs.pop(name) for name in ("shuffle", "seed") if name in dataset_kwargs}
    options |= {"batch_size": batch_size, "drop_last": dataset_kwargs.pop("drop_last", False)}
    persistent = dataset_kwargs.pop("persistent_workers", True)
    dataset = CombinedHDF5Dataset(hdf5_files, **dataset_kwargs)
    options["pin_memory"] = dataset.pin_memory and torch.cuda.is_available()
    if "sampler" not in options:
        ranks = {"rank": rank, "world_size": world_size, "drop_last": options["drop_last"]}
        sampler = options["sampler"] = OrderSampler(dataset, run_length=batch_size, **ranks, **split)
        sampler.advance_epochs()
    if num_workers > 0 and options.keys() & _PROCESS_OPTIONS:
        options = with_start_method(dataset, options)
        return DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent, **options)
    for name in _PROCESS_OPTIONS & options.keys():
        del options[name]  # without worker processes they have no effect
    return H5DataLoader(dataset, threads=min(num_workers, cpu_count()), **options)
