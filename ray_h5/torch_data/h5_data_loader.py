"""`loader` and `H5DataLoader`: a `DataLoader` that reads ahead in threads, without copies between processes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from joblib import cpu_count
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from ray_h5.device import as_device, to_device
from ray_h5.errors import OptionError
from ray_h5.loading.cursor import Begun
from ray_h5.loading.loader_registry import loader_of
from ray_h5.loading.prefetch_threads import ahead, nbytes_of
from ray_h5.loading.read_calls import Call, Calls, Task, finished
from ray_h5.options import as_integer, names_options, takes_options_of
from ray_h5.order.position import PositionLike
from ray_h5.storage.find_files import PathLike
from ray_h5.storage.request_pool import Stop
from ray_h5.torch_data.batches.batcher import Batcher
from ray_h5.torch_data.batches.processes import NOTHING, Workers
from ray_h5.torch_data.batches.samples import seeded, steps_of
from ray_h5.torch_data.batches.tensors import Listed, Sample
from ray_h5.torch_data.dataset import DatasetOptions, H5Dataset, warn_of_equal_draws
from ray_h5.torch_data.derived_samplers import OrderBatchSampler
from ray_h5.torch_data.ranks import resolve_rank
from ray_h5.torch_data.samplers import OrderSampler, ShuffleLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.columns.derived_columns import Columns

logger = logging.getLogger(__name__)

_Made: TypeAlias = tuple[Task, Any]
"""A task, and the arrays of its samples, or the batch that is made of them."""


def as_h5(dataset: Dataset[Any]) -> H5Dataset:
    """Return the samples of a dataset, in the same order, as an `H5Dataset`.

    Raises
    ------
    OptionError
        If it is none, nor a `Subset` of one.
    """
    if isinstance(dataset, H5Dataset):
        return dataset
    own = ("__getitem__", "__getitems__", "__len__")  # a subclass may make samples itself
    if isinstance(dataset, Subset) and all(getattr(type(dataset), name) is getattr(Subset, name) for name in own):
        return as_h5(dataset.dataset)._chosen(dataset.indices)
    if isinstance(dataset, (str, os.PathLike)):
        raise OptionError(f"expected a dataset, found the path {str(dataset)!r}; write H5Dataset({str(dataset)!r})")
    if isinstance(dataset, DataLoader):
        raise OptionError("loader: expected a dataset or paths, found a DataLoader; pass its dataset")
    if isinstance(dataset, (ConcatDataset, list, tuple)):
        raise OptionError(
            f"loader: expected one dataset or paths, found {type(dataset).__name__} of several datasets. Pass all "
            "paths to one H5Dataset, whose predicate chooses rows; Shuffle(weights={'lab/*.h5': 0.3}) mixes files by "
            "shares. For datasets with different transforms write DataLoader(ConcatDataset(datasets), batch_size)"
        )
    # A DataLoader takes no sampler for a dataset that has its own order.
    sampler = "" if isinstance(dataset, IterableDataset) else ", sampler=OrderSampler(dataset)"
    raise OptionError(
        f"expected an H5Dataset, or a Subset of one, found {type(dataset).__name__}. For any other dataset write "
        f"DataLoader(dataset, batch_size{sampler})"
    )


@names_options
class H5DataLoader(DataLoader[Any]):
    """A `DataLoader` of an `H5Dataset` that reads ahead in threads.

    What users wrote (the dataset's transform, `collate_fn`, the methods of a subclass) runs in the thread that asks for
    batches, or in `workers`. Before each batch, the generators of `random`, NumPy and torch (on the CPU) are seeded by
    the seed, the epoch and the samples, and set back after it: the same seeds give the same data, with threads, with
    processes and after a resume, and the training loop draws for itself. Images are decoded in the threads that read.

    Parameters
    ----------
    dataset : H5Dataset, or a Subset of one
        The samples. The `dataset` of the loader is then an H5Dataset of these samples, in the same order.
    batch_size : int, optional
        Samples of a batch. None, as in a `DataLoader`, for a sampler that yields whole batches, or for single
        samples; each is then read when it is asked for.
    sampler : Sampler of int, optional
        Which samples, in which order. The state of an `OrderSampler` whose `run_length` is `batch_size` is that after
        the last batch delivered; batches that were read ahead do not count.
    shuffle, batch_sampler, generator
        As in `DataLoader`; frameworks that make the loader again with samplers of their own pass them.
    threads : int
        Threads that read ahead; 0 reads in the thread that asks for a batch, when it asks. Files on disks are read and
        decoded by all of them together, one call after the other; up to 3 plan the calls, one more than `threads` if
        there is a CPU for it.
    workers : int
        Processes that read and make batches instead, for transforms that hold Python's lock. Order, errors and state
        are the same. Each has its own copy of the dataset and its transform, and stays until the loader is gone. Each
        makes 2 batches ahead, or 1 where all of them together would have more than 256 MiB.
    transforms_ahead : bool
        Let one more thread run the transform and `collate_fn` ahead, in order: at most 8 batches that they made wait,
        and no other is begun while 64 MiB wait. Its random numbers are not seeded, as the training loop draws from the
        same generators at the same time: the same seeds give other data, and other numbers in the loop, in each run.
    prefetch_factor : int, optional
        Batches that one call reads; by default up to 256 of 16 MiB together, or 64 MiB for many threads; where rows of
        chunks of many rows are shuffled, those of a window of the shuffle of at most 128 MiB, or 320 MiB where rows
        are ranges of longer arrays. At most 5 calls are read or wait; two more than threads, if Python has to decode
        or arrange values. With `workers`, batches that each makes ahead.
    drop_last : bool
        Leave out the last batch if it is smaller than the others.
    pin_memory : bool
        Read into pinned memory.
    device : device, str or int, optional
        Where batches go, such as ``"cuda"``; ``"auto"`` is the accelerator that torch finds. They are read into pinned
        memory, and their copies to a GPU run ahead; where functions of a user make batches in the thread that asks,
        each copy begins there, and goes on while the GPU computes. By default batches stay where they are made.
    collate_fn : callable, optional
        Makes a batch of a list of samples.
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    """

    # Not in `vars` of a loader: ignite passes all that it finds there when it makes the loader again.
    num_workers, pin_memory_device, worker_init_fn, persistent_workers, in_order = 0, "", None, False, True

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        sampler: Iterable[int] | None = None,
        *,
        threads: int = 0,
        workers: int = 0,
        shuffle: bool | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        timeout: float = 0,
        transforms_ahead: bool = False,
        device: str | int | torch.device | None = None,
    ) -> None:
        threads, workers = as_integer("threads", threads, 0), as_integer("workers", workers, 0)
        if workers and batch_size is None and batch_sampler is None:
            raise OptionError(f"workers={workers}: they make batches; expected a batch_size, found None")
        if prefetch_factor is not None:
            prefetch_factor = as_integer("prefetch_factor", prefetch_factor, 1, instead=", or None")
        target = None if device is None else as_device(device)
        super().__init__(
            as_h5(dataset),
            batch_size=batch_size,
            sampler=sampler,
            shuffle=shuffle,
            batch_sampler=batch_sampler,
            generator=generator,
            drop_last=drop_last,
            pin_memory=pin_memory or (target is not None and target.type == "cuda"),
            collate_fn=collate_fn,
            timeout=timeout,
        )
        for name in vars(self).keys() & vars(H5DataLoader).keys():
            delattr(self, name)  # options of `DataLoader` that this class does not take
        self.threads, self.workers, self.transforms_ahead = threads, workers, transforms_ahead
        self.device = target
        self._processes = Workers()
        self.prefetch_factor = prefetch_factor
        self._collates = collate_fn is None
        self._decoded_bytes = [0]
        """Bytes of a sample whose images are decoded, as far as it is known; threads that read note it here."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the sampler, or of the batch sampler, if it has epochs."""
        for sampler in (self.sampler, self.batch_sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch delivered; see `OrderSampler.state_dict`.

        Raises
        ------
        OptionError
            If the sampler is no `OrderSampler` whose `run_length` is the batch size.
        """
        return self._order().state_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        """Let the next iteration continue where `state` was taken; see `OrderSampler.load_state_dict`."""
        self._order().load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        if self.batch_sampler is None:
            one_by_one = (self._delivered(self.collate_fn(self.dataset[item])) for item in self.sampler)
            return one_by_one if self.device is None else to_device(one_by_one, self.device, in_thread=False)
        ordered, (decoders, _) = self._ordered, steps_of(self.dataset.transform)
        if ordered is not None and ordered.world_size > 1 and any(decoder.on_error == "skip" for decoder in decoders):
            raise OptionError(
                f"on_error='skip' of DecodeImage leaves out batches without an image, and {ordered.world_size} ranks "
                "would then have different numbers of batches. Pass on_error='null', and leave out the rows that the "
                "column <column>_is_null marks in the loss; or choose the rows that can be decoded by a predicate."
            )
        made = self._made(self._tasks()) if ordered is None else ordered.counted(self._begin, lambda pair: len(pair[0]))
        return (batch for _, batch in made if batch is not NOTHING)

    def _begin(self) -> Begun[_Made]:
        """Begin an epoch of an ordered sampler; return where, and what `_made` yields."""
        start, tasks = self._order().tasks(whole=self.batch_sampler.drop_last)
        return start, self._made(tasks)

    def _made(self, tasks: Iterator[Task]) -> Iterator[_Made]:
        """Yield each task with its batch; NOTHING for a batch whose images were all skipped.

        Threads read arrays side by side. What users wrote runs in `finish`: in order, one at a time.
        """
        dataset, stop, is_ahead = self.dataset, Stop(), False
        steps = steps_of(dataset.transform)[1]
        (batcher, samples), makes_samples = dataset._makers(), dataset.has_own_samples
        batcher = replace(batcher, pinned=self._pins)
        collate = batcher.collate if type(dataset).collate is H5Dataset.collate else dataset.collate
        # The arrays are the batch, unless a subclass makes samples of them.
        is_plain = self._collates and not steps and type(dataset).samples is H5Dataset.samples

        def from_arrays(_: Task, arrays: Any) -> Any:
            made = collate(arrays) if is_plain else self.collate_fn(samples(arrays))
            return self._delivered(made)

        def by_user(task: Task, arrays: Any) -> Any:
            """Make a batch by what users wrote, which may draw random numbers."""
            with seeded(task.seed):
                if makes_samples:
                    return self._delivered(self.collate_fn(dataset.__getitems__(list(task.indices))))
                return from_arrays(task, arrays)

        reads: Iterator[list[_Made]]
        finish: Callable[[Task, Any], Any] = by_user
        if self.workers:
            rows = self.batch_size if self._ordered is None else self._ordered.run_length
            reads = ([made] for made in self._processes.batches(self, rows or 1, tasks, self._what))
            finish, is_ahead = (lambda _, batch: self._delivered(batch)), self._pins
        elif makes_samples:
            # A subclass makes samples or batches in its own way, maybe not safe in threads: nothing is read ahead.
            reads = ([(task, None)] for task in tasks)
        else:
            # Many batches are read at once. Dense ones would take many times the memory of the entries of their rows.
            is_dense = any(spec.kind == "sparse" and spec.type.dense for spec in dataset.source.plan.columns)
            is_made = is_plain and not is_dense
            # Threads hold nothing that users wrote: a transform may lead back to the object that iterates, and an
            # iterator that is left is freed while a thread reads, too.
            read = partial(_read, batcher, self._decoded_bytes, from_arrays if is_made else None)
            reads = self._calls(tasks, stop).read(read)
            if is_made:
                return self._moved(finished(reads, lambda made: made), in_thread=self.threads > 0)
            # Transforms of this package draw no numbers from global generators.
            is_own = all(type(step).__module__.startswith("ray_h5.") for step in steps)
            if self.transforms_ahead or (self._collates and is_own):
                finish, is_ahead = from_arrays, self.threads > 0
        made = finished(reads, lambda item: item if item[1] is NOTHING else (item[0], finish(*item)))
        made = ahead(made, stop) if is_ahead else made
        return self._moved(made, in_thread=self.workers > 0 or (self.threads > 0 and finish is not by_user))

    def _moved(self, made: Iterator[_Made], *, in_thread: bool) -> Iterator[_Made]:
        return made if self.device is None else to_device(made, self.device, in_thread=in_thread)

    def __len__(self) -> int:
        if self._ordered is None:
            return super().__len__()
        # accelerate makes a loader of another class of one that it prepares.
        return self._ordered._num_runs_unprepared(whole=self.batch_sampler.drop_last)

    @property
    def _ordered(self) -> OrderSampler | None:
        """The sampler if it counts batches when they are delivered, not when they are read ahead; else None."""
        if isinstance(self.sampler, OrderSampler) and self.sampler.run_length == self.batch_size:
            return self.sampler
        return self.batch_sampler.sampler if type(self.batch_sampler) is OrderBatchSampler else None

    def _order(self) -> OrderSampler:
        ordered = self._ordered
        if ordered is None:
            # Any other sampler counts what was read ahead, which is more than what was delivered.
            sampler = self.sampler
            shown = f" of run_length={sampler.run_length}" if isinstance(sampler, OrderSampler) else ""
            raise OptionError(
                f"{type(sampler).__name__}{shown} has no state after the last batch delivered; expected an "
                f"OrderSampler(dataset, run_length={self.batch_size})"
            )
        return ordered

    def _calls(self, tasks: Iterator[Task], stop: Stop) -> Calls:
        dataset, ordered, has_images = self.dataset, self._ordered, bool(steps_of(self.dataset.transform)[0])
        decoded, of_rows = self._decoded_bytes, dataset.row_bytes
        try:
            # Batches of bounded length are counted by cutting all of them.
            is_cut = ordered is not None and ordered.batch_values is not None
            num_batches: float = math.inf if is_cut else len(self)
        except TypeError:
            num_batches = math.inf  # of a sampler without a length

        def row_bytes() -> int | None:
            """Return the bytes of a sample; None while those of decoded images are not known."""
            return None if has_images and not decoded[0] else max(of_rows, decoded[0])

        return Calls(
            source=dataset.source,
            batches=tasks,
            num_batches=num_batches,
            batch_rows=self.batch_size,
            row_bytes=row_bytes,
            order=None if ordered is None else ordered.order,
            prefetch_factor=self.prefetch_factor,
            threads=self.threads,
            is_alone=has_images,
            timeout=self.timeout,
            what=self._what,
            stop=stop,
        )

    def _tasks(self) -> Iterator[Task]:
        """Yield a task for each batch of a sampler of torch."""
        drawn: int | None = None
        for number, batch in enumerate(self.batch_sampler):
            if drawn is None:  # after the sampler has drawn for itself, as a `DataLoader` draws a seed for each epoch
                drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
                if self.dataset._draws_equally(batch):
                    warn_of_equal_draws(self.dataset)
            yield Task(batch, (drawn, number))

    def _what(self) -> str:
        return f"{len(self.dataset)} samples of {self.dataset}"

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.cuda.is_available()

    def _delivered(self, batch: Any) -> Any:
        """Return a batch with ``to`` and ``pin_memory``, unless `collate_fn` made it.

        Tensors that were not read into pinned memory are pinned: those that were cast, or that a transform made.
        """
        batch = pin_memory(batch) if self._pins else batch
        if self._collates and type(batch) in (list, dict):
            return Listed(batch) if type(batch) is list else Sample(batch)
        return batch

    def __repr__(self) -> str:
        sampler = self._ordered
        shuffle = None if sampler is None else sampler.order.shuffle
        how = f"workers={self.workers}" if self.workers else f"threads={self.threads}"
        order = f"sampler={type(self.sampler).__name__}" if sampler is None else "shuffle=False"
        if shuffle is not None:
            order = f"shuffle={shuffle.unit!r}, seed={shuffle.seed}"
        size = self.batch_size if sampler is None else sampler.run_length
        return f"{type(self).__name__}({len(self.dataset)} rows, batch_size={size}, {order}, {how}: {self.dataset!r})"


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
    device: str | int | torch.device | None = None,
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
    device : device, str or int, optional
        Where batches go, such as ``"cuda"`` or ``"auto"``; copies to a GPU run ahead; see `H5DataLoader`.
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
    how: dict[str, Any] = {"workers": workers, "pin_memory": pin_memory, "collate_fn": collate_fn, "device": device}
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


def _read(batcher: Batcher, decoded: list[int], make: Callable[[Task, Any], Any] | None, call: Call) -> list[_Made]:
    """Read some batches by one call; return the arrays of each, or what `make` returns for them.

    `decoded` gets the bytes of a sample whose images are decoded.
    """
    read = batcher.read(call)
    if batcher.decoders:
        decoded[0] = max(decoded[0], nbytes_of(read) // max(1, sum(map(len, call.batches))))
    made: list[_Made] = []
    for task, arrays in zip(call.batches, read, strict=True):
        is_skipped = len(task) > 0 and not len(arrays.indices)  # as all of its images: it is not delivered
        batch = arrays if is_skipped or make is None else make(task, arrays)
        made.append((task, NOTHING if is_skipped else batch))
    return made


def plain_batches(rows: Any, batch_size: int, workers: int) -> DataLoader[Any]:
    """Return shuffled batches of a Dataset of dicts, as torch alone makes them; what it cannot stack stays a list."""

    def collated(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            try:
                batch[name] = default_collate(values)
            except (TypeError, RuntimeError):
                batch[name] = values
        return batch

    # They live on: of a small dataset, the start of processes would be measured at each epoch.
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(rows, batch_size, shuffle=True, collate_fn=collated, **options)
