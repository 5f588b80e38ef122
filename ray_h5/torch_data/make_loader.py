"""`loader`: an `H5DataLoader` with its dataset and its sampler, by one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from joblib import cpu_count
from torch.utils.data import DataLoader, Dataset

from ray_h5.errors import OptionError
from ray_h5.loading.loader_registry import loader_of
from ray_h5.options import as_integer, takes_options_of
from ray_h5.storage.find_files import PathLike
from ray_h5.torch_data.dataset import DatasetOptions, H5Dataset
from ray_h5.torch_data.h5_data_loader import H5DataLoader, as_h5
from ray_h5.torch_data.ranks import resolve_rank
from ray_h5.torch_data.samplers import OrderSampler, ShuffleLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.columns.derived_columns import Columns

logger = logging.getLogger(__name__)


class LoaderOptions(DatasetOptions, total=False):
    """The options of `H5Dataset`."""

    columns: Columns | None


@takes_options_of(
    H5Dataset,
    instead={
        "num_workers": "Threads of this process read: threads=. For processes, pass workers=.",
        "sampler": "Write DataLoader(H5Dataset(...), batch_size, sampler=sampler).",
    },
)
def loader(
    source: Dataset[Any] | PathLike | Sequence[PathLike],
    batch_size: int = 64,
    *,
    shuffle: ShuffleLike = True,
    seed: int | None = 0,
    rank: int | None = None,
    world_size: int | None = None,
    drop_last: bool = False,
    threads: int | None = None,
    workers: int = 0,
    pin_memory: bool = False,
    collate_fn: Callable[[Sequence[Any]], Any] | None = None,
    transforms_ahead: bool = False,
    **options: Unpack[LoaderOptions],
) -> H5DataLoader:
    """Return a loader that reads in threads of this process, several batches at a time.

    Each iteration is the next epoch, and another order if it is shuffled: the first one epoch 0. ``set_epoch`` chooses
    the epoch of the next iteration. All ranks have to begin equally many iterations, or to call ``set_epoch``.

    Parameters
    ----------
    source : H5Dataset, a Subset of one, a Ray dataset of `read_h5`, or paths
        The samples. The options of `H5Dataset` are for paths, except `pad`.
    batch_size : int
        Samples of a batch, on each rank.
    shuffle, seed, rank, world_size
        As in `OrderSampler`.
    drop_last : bool
        Leave out the last samples, which do not fill a batch on each rank.
    threads : int, optional
        Threads that read; by default two, or one where this process has one CPU. Transforms and `collate_fn` run in the
        thread that asks; with 0 everything does.
    workers : int
        Processes that read and make batches instead of threads, for transforms that hold Python's lock; see
        `H5DataLoader`.
    pin_memory : bool
        Read into pinned memory, if there is a CUDA device.
    collate_fn : callable, optional
        Makes a batch of a list of samples.
    transforms_ahead : bool
        Let one more thread run transforms and `collate_fn` ahead. Random numbers are then not repeated; see
        `H5DataLoader`.
    **options
        The options of `H5Dataset`.

    Returns
    -------
    H5DataLoader
        Yields dicts of tensors, whose entries are attributes too; ``to(device)`` and ``pin_memory()`` move all of them.
        ``set_epoch``, ``state_dict`` and ``load_state_dict`` are those of its sampler.

    Examples
    --------
    >>> batches = loader("data/*.h5", 64, columns=["signal", "label"])  # doctest: +SKIP
    >>> for epoch in range(3):  # doctest: +SKIP
    ...     for batch in batches:
    ...         train(batch.signal, batch.label)
    """
    names = isinstance(batch_size, (str, list, tuple))
    hint = f". Columns are an option by name: loader(paths, columns={batch_size!r})" if names else ""
    batch_size = as_integer("batch_size", batch_size, 1, instead=hint)
    order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "rank": rank, "world_size": world_size}
    how: dict[str, Any] = {"workers": workers, "pin_memory": pin_memory, "collate_fn": collate_fn}
    how |= {"drop_last": drop_last, "transforms_ahead": transforms_ahead}
    threads = min(2, cpu_count()) if threads is None else threads
    if (of_ray := loader_of(source, batch_size, resolve_rank, threads=threads, **order, **how, **options)) is not None:
        return cast("H5DataLoader", of_ray)
    several = isinstance(source, (list, tuple)) and any(isinstance(part, Dataset) for part in source)
    if not several and not isinstance(source, (Dataset, DataLoader)):
        dataset = H5Dataset(cast("Any", source), **options)
    else:
        if others := [name for name in options if name != "pad"]:
            raise OptionError(f"{', '.join(others)}: the dataset is made already; these are options of H5Dataset(...)")
        dataset = as_h5(cast("Any", source))  # raises for a loader or several
        dataset = dataset if options.get("pad") is None else dataset.with_padding(options["pad"])
    sampler = OrderSampler(dataset, drop_last=drop_last, run_length=batch_size, **order)
    sampler.advance_epochs()
    # By name: a framework that makes the loader again replaces some of these by name.
    made = H5DataLoader(dataset, batch_size=batch_size, sampler=sampler, threads=threads, **how)
    if not len(dataset):
        logger.warning("loader: there is no batch: %r has no samples", dataset)
    elif not len(made):
        why = "loader: there is no batch: %d samples make none of %d on each rank with drop_last=True; lower batch_size"
        logger.warning(why, len(dataset), batch_size)
    return made
