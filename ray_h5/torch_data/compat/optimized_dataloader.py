"""`create_optimized_dataloader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from joblib import cpu_count
from torch.utils.data import DataLoader

from ray_h5.options import as_integer, names_options
from ray_h5.storage.find_files import PathLike
from ray_h5.torch_data.compat.combined_dataset import CombinedHDF5Dataset
from ray_h5.torch_data.compat.dataloader_factory import with_start_method
from ray_h5.torch_data.h5_data_loader import H5DataLoader
from ray_h5.torch_data.samplers import OrderSampler

_PROCESS_OPTIONS = frozenset({"multiprocessing_context", "worker_init_fn"})
_LOADER_OPTIONS = frozenset({"collate_fn", "prefetch_factor", "sampler", "timeout"}) | _PROCESS_OPTIONS


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
