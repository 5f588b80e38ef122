"""Loaders made in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ray_h5.errors import OptionError
from ray_h5.options import as_integer
from ray_h5.planning.paths import PathLike
from ray_h5.torch_data.combined import CombinedHDF5Dataset
from ray_h5.torch_data.dataset import H5Dataset, check_options
from ray_h5.torch_data.machine import usable_cpus
from ray_h5.torch_data.order import ShuffleLike
from ray_h5.torch_data.samplers import OrderSampler
from ray_h5.torch_data.threaded import H5DataLoader

__all__ = ["H5DataLoader", "create_optimized_dataloader", "loader"]

logger = logging.getLogger(__name__)

_PROCESS_OPTIONS = frozenset({"multiprocessing_context", "worker_init_fn"})
_LOADER_OPTIONS = frozenset({"collate_fn", "prefetch_factor", "sampler", "timeout"}) | _PROCESS_OPTIONS

_INSTEAD = {
    "num_workers": "It reads in threads of this process: write threads=2; or, for processes, "
    "DataLoader(H5Dataset(paths), num_workers=2)."
}


def loader(
    source: H5Dataset | PathLike | Sequence[PathLike],
    batch_size: int = 64,
    *,
    shuffle: ShuffleLike = True,
    seed: int | None = 0,
    rank: int | None = None,
    world_size: int | None = None,
    drop_last: bool = False,
    threads: int | None = None,
    pin_memory: bool = False,
    collate_fn: Callable[[Sequence[Any]], Any] | None = None,
    **options: Any,
) -> H5DataLoader:
    """Return a loader that reads in threads of this process, several batches at a time.

    Parameters
    ----------
    source : H5Dataset, or paths
        What is read.
    batch_size : int
        Samples of a batch, on each rank.
    shuffle, seed, rank, world_size
        As in `OrderSampler`.
    drop_last : bool
        Leave out what does not fill a batch on each rank.
    threads : int, optional
        Threads that read; by default two, or one where this process has one CPU.
    pin_memory : bool
        Read into pinned memory, if there is a CUDA device.
    collate_fn : callable, optional
        Makes a batch of a list of samples.
    **options
        Of `H5Dataset`, if `source` is paths: ``columns``, ``predicate``, ``transform`` ...

    Returns
    -------
    H5DataLoader
        Yields dicts of tensors, whose entries are attributes too. ``set_epoch``, ``state_dict`` and
        ``load_state_dict`` are those of its sampler.

    Examples
    --------
    >>> batches = loader("data/*.h5", 64, columns=["signal", "label"])  # doctest: +SKIP
    >>> for epoch in range(3):  # doctest: +SKIP
    ...     batches.set_epoch(epoch)
    ...     for batch in batches:
    ...         train(batch.signal, batch.label)
    """
    batch_size = as_integer("batch_size", batch_size, 1)
    check_options("loader", options, loader, H5Dataset, instead=_INSTEAD)
    if isinstance(source, H5Dataset):
        if options:
            raise OptionError(f"{', '.join(options)}: the dataset is made already; give it these")
        dataset = source
    else:
        dataset = H5Dataset(source, **options)
    sampler = OrderSampler(
        dataset,
        shuffle=shuffle,
        seed=seed,
        rank=rank,
        world_size=world_size,
        drop_last=drop_last,
        stretch=batch_size,
    )
    # By name: a framework that makes the loader again puts in some of these by name.
    made = H5DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        threads=min(2, usable_cpus()) if threads is None else threads,
        drop_last=drop_last,
        pin_memory=pin_memory,
        collate_fn=collate_fn,
    )
    if not len(made):
        logger.warning(
            "loader: there is no batch: %d samples make none of %d on each rank with drop_last=True; lower batch_size",
            len(dataset),
            batch_size,
        )
    return made


def create_optimized_dataloader(
    hdf5_files: PathLike | Sequence[PathLike],
    batch_size: int = 64,
    num_workers: int = 4,
    rank: int | None = None,
    world_size: int | None = None,
    **dataset_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of a `CombinedHDF5Dataset` for one of several training processes.

    Call ``.sampler.set_epoch(epoch)`` before each epoch, with one process as with many. All ranks get
    equally many batches: where the samples do not go round, the first few of the epoch's order come
    twice, unless ``drop_last=True`` leaves out the last few.

    Parameters
    ----------
    hdf5_files : str or sequence of str
        The files.
    batch_size : int
        Samples of a batch, on each rank.
    num_workers : int
        Threads that read ahead, as many as this process has CPUs at most; 0 reads when a batch is
        asked for. With ``worker_init_fn`` or ``multiprocessing_context`` they are processes.
    rank, world_size : int, optional
        By default those of torch.distributed, or 0 of 1.
    **dataset_kwargs
        Of `CombinedHDF5Dataset`; and of the loader: ``shuffle`` (True), ``seed`` (0), ``drop_last``
        (False), ``sampler``, ``collate_fn``, ``prefetch_factor``, ``timeout``, ``persistent_workers``
        (threads are started for each epoch at no cost), ``worker_init_fn`` and
        ``multiprocessing_context``.

    Returns
    -------
    torch.utils.data.DataLoader
        With ``pin_memory`` (True by default) batches are pinned where there is a CUDA device.
    """
    batch_size = as_integer("batch_size", batch_size, 1)
    num_workers = as_integer("num_workers", num_workers, 0)
    found = {name: dataset_kwargs.pop(name) for name in _LOADER_OPTIONS & dataset_kwargs.keys()}
    # None is DataLoader's own default of each of them.
    options = {name: value for name, value in found.items() if value is not None}
    split = {name: dataset_kwargs.pop(name) for name in ("shuffle", "seed") if name in dataset_kwargs}
    drop_last = dataset_kwargs.pop("drop_last", False)
    persistent = dataset_kwargs.pop("persistent_workers", True)
    dataset = CombinedHDF5Dataset(hdf5_files, **dataset_kwargs)
    sampler = options.pop("sampler", None)
    if sampler is None:
        sampler = OrderSampler(
            dataset, rank=rank, world_size=world_size, drop_last=drop_last, stretch=batch_size, **split
        )
    pin_memory = dataset.pin_memory and torch.cuda.is_available()
    if num_workers > 0 and options.keys() & _PROCESS_OPTIONS:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=num_workers,
            drop_last=drop_last,
            pin_memory=pin_memory,
            persistent_workers=persistent,
            **options,
        )
    for name in _PROCESS_OPTIONS & options.keys():
        del options[name]  # without workers there is nothing that they would apply to
    threads = min(num_workers, usable_cpus())
    return H5DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        threads=threads,
        drop_last=drop_last,
        pin_memory=pin_memory,
        **options,
    )
