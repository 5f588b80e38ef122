"""A `DataLoader` that reads ahead in threads of the training process: no worker processes, no copies between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory

from ray_h5.errors import OptionError
from ray_h5.hdf5.reading.turn import turn_of_this_thread
from ray_h5.options import as_integer
from ray_h5.torch_data.batch_sampler import OrderBatchSampler, check_between_batches
from ray_h5.torch_data.dataset import H5Dataset
from ray_h5.torch_data.joined import JoinedDataset, as_h5
from ray_h5.torch_data.reading.calls import Call, CallSizes, in_threads, indices_of, with_later
from ray_h5.torch_data.reading.moving import movable
from ray_h5.torch_data.reading.place import IterationPlace
from ray_h5.torch_data.samplers import OrderSampler

_ReadBatch = tuple[int, Any]
"""How many samples a batch has, and their arrays, or a tensor or dict made of them."""

_NOTHING = object()
"""Stands for a batch without rows."""


class H5DataLoader(DataLoader[Any]):
    """A `DataLoader` of an `H5Dataset` that reads ahead in threads.

    The dataset's transform, `collate_fn` and the methods of a subclass run in the thread that asks for batches, one
    after the other, as in a `DataLoader` without workers.

    Parameters
    ----------
    dataset : H5Dataset, or a ConcatDataset or Subset of H5Datasets
        The samples. The `dataset` of the loader is then one of these samples, in the same order.
    batch_size : int, optional
        Samples of a batch. None, as in a `DataLoader`, for a sampler that yields whole batches, or for single
        samples; each is then read when it is asked for.
    sampler : Sampler of int, optional
        Which samples, in which order. The state of an `OrderSampler` whose `run_length` is `batch_size` is that after
        the last batch delivered; batches that were read ahead do not count.
    shuffle, batch_sampler, generator
        As in `DataLoader`; frameworks that make the loader again with samplers of their own pass them.
    threads : int
        Threads that read ahead; 0 reads in the thread that asks for a batch, when it asks.
    prefetch_factor : int, optional
        Batches that one call of a thread reads; by default up to 16 of 16 MiB together.
    drop_last : bool
        Leave out the last batch if it is smaller than the others.
    pin_memory : bool
        Read into pinned memory.
    collate_fn : callable, optional
        Makes a batch of a list of samples.
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        sampler: Iterable[int] | None = None,
        *,
        threads: int = 0,
        shuffle: bool | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        timeout: float = 0,
    ) -> None:
        threads = as_integer("threads", threads, 0)
        if prefetch_factor is not None:
            prefetch_factor = as_integer("prefetch_factor", prefetch_factor, 1, instead=", or None")
        read = as_h5(dataset)
        if isinstance(read, JoinedDataset) and collate_fn is None and not (read.is_transformed or read.has_own_samples):
            read.check_alike()
        super().__init__(
            read,
            batch_size=batch_size,
            sampler=sampler,
            shuffle=shuffle,
            batch_sampler=batch_sampler,
            generator=generator,
            drop_last=drop_last,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
            timeout=timeout,
        )
        self.threads = threads
        self.prefetch_factor = prefetch_factor
        self._collates = collate_fn is None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the sampler, or of the batch sampler, if it has epochs."""
        for each in (self.sampler, self.batch_sampler):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch delivered; see `OrderSampler.state_dict`.

        Raises
        ------
        OptionError
            If the sampler is no `OrderSampler` whose `run_length` is the batch size.
        """
        return self._order().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where `state` was taken."""
        order = self._order()
        check_between_batches(state)
        order.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        if self.batch_sampler is None:
            return (self._delivered(self.collate_fn(self.dataset[item])) for item in self.sampler)
        # Threads read arrays alone. What users wrote runs in `finish`, in the thread that asks for batches.
        finish: Callable[[Any], Any]
        if self.dataset.has_own_samples:
            # A subclass makes samples or batches in its own way, maybe not safe in threads: nothing is read ahead.
            reads: Iterable[list[_ReadBatch]] = map(self._not_read, self._calls())
            finish = self._from_subclass
        else:
            is_plain = self._collates and not self.dataset.is_transformed  # the arrays are the batch
            # Many batches are read at once. Dense ones would take many times the memory of the entries of their rows.
            is_made = is_plain and not self._grows
            read = partial(self._read, self._whole if is_made else _unchanged)
            reads = self._reads(self._followed(read))
            finish = _unchanged if is_made else self._whole if is_plain else self._from_samples
        batches = itertools.chain.from_iterable(reads)
        ordered = self._ordered
        counted = batches if ordered is None else ordered.counted(batches, _count)
        return (finish(read) for _, read in counted if read is not _NOTHING)

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
            found = f" of run_length={sampler.run_length}" if isinstance(sampler, OrderSampler) else ""
            raise OptionError(
                f"{type(sampler).__name__}{found} has no state after the last batch delivered; expected an "
                f"OrderSampler(dataset, run_length={self.batch_size})"
            )
        return ordered

    def _calls(self) -> Iterator[Call]:
        dataset = self.dataset
        has_ranges = isinstance(dataset, H5Dataset) and dataset.has_ranges
        window = self._window_batches if has_ranges else None
        sizes = CallSizes(dataset.row_bytes, has_ranges, dataset.is_remote, self.prefetch_factor, window)
        return sizes.calls(self._index_batches(), self._num_batches(), self.threads)

    @property
    def _grows(self) -> bool:
        """Whether batches take more memory than what is read for them."""
        return isinstance(self.dataset, H5Dataset) and self.dataset.has_dense_batches

    @property
    def _window_batches(self) -> int | None:
        """The batches of a window of rows that are ranges of longer arrays; None without windows."""
        ordered = self._ordered
        if ordered is None or self.prefetch_factor is not None:
            return None
        order = ordered.order
        if order.range_chunks is None or order.window_rows is None:
            return None
        return max(1, order.window_rows // (ordered.run_length * ordered.world_size))

    def _num_batches(self) -> float:
        try:
            return len(self)
        except TypeError:
            return math.inf  # of a sampler without a length

    def _index_batches(self) -> Iterator[list[int]]:
        ordered = self._ordered
        if ordered is not None:
            return ordered.runs(whole=self.batch_sampler.drop_last)
        # A generator: iter() of another iterator may start it from its beginning, as that of lightning's wrapper for
        # predictions does.
        return (batch for batch in self.batch_sampler)

    def _reads(self, read: Callable[[Call], list[_ReadBatch]]) -> Iterator[list[_ReadBatch]]:
        calls, threads = with_later(self._calls(), max(1, self.threads)), self.threads
        if not threads:
            return (self._announced(read, *each) for each in calls)

        def work(call: Call, later: Call | None) -> list[_ReadBatch]:
            if self.dataset.is_remote:  # threads wait for the network side by side
                return self._announced(read, call, later)
            # One thread at a time plans and reads small rows: see `Turn`.
            with turn_of_this_thread().kept():
                return self._announced(read, call, later)

        return in_threads(calls, work, threads, self.timeout, lambda: f"{len(self.dataset)} samples of {self.dataset}")

    def _followed(self, read: Callable[[Call], list[_ReadBatch]]) -> Callable[[Call], list[_ReadBatch]]:
        """Return what also lets a cache on a disk know how far the epoch is."""
        ordered = self._ordered
        coming = self.dataset.follow(ordered.order) if ordered and isinstance(self.dataset, H5Dataset) else None
        if ordered is None or coming is None:
            return read
        place = IterationPlace(ordered, coming)

        def followed(call: Call) -> list[_ReadBatch]:
            with place.reading(sum(map(len, call))):
                return read(call)

        return followed

    def _announced(
        self,
        read: Callable[[Call], list[_ReadBatch]],
        call: Call,
        later: Call | None,
    ) -> list[_ReadBatch]:
        """Read some batches; `later` is what this thread reads next."""
        if later is not None:
            self.dataset.will_read(indices_of(later))
        return read(call)

    def _read(self, make: Callable[[Any], Any], call: Call) -> list[_ReadBatch]:
        """Read some batches by one call, and pass the arrays of each to `make`."""
        read = self.dataset.read_batches(call, pinned=self._pins)
        # A batch whose images were all skipped is not delivered.
        return [
            (len(batch), make(arrays) if not batch or _has_rows(arrays) else _NOTHING)
            for batch, arrays in zip(call, read, strict=True)
        ]

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.cuda.is_available()

    def _whole(self, arrays: Any) -> Any:
        return self._delivered(self.dataset.collate(arrays))

    def _from_samples(self, arrays: Any) -> Any:
        return self._delivered(self.collate_fn(self.dataset.samples(arrays)))

    def _from_subclass(self, indices: list[int]) -> Any:
        return self._delivered(self.collate_fn(self.dataset.__getitems__(indices)))

    def _not_read(self, call: Call) -> list[_ReadBatch]:
        return [(len(batch), batch) for batch in call]

    def _delivered(self, batch: Any) -> Any:
        """Return a batch with ``to`` and ``pin_memory``, unless `collate_fn` made it.

        Tensors that were not read into pinned memory are pinned: those that were cast, or that a transform made.
        """
        batch = pin_memory(batch) if self._pins else batch
        return movable(batch) if self._collates else batch

    def __repr__(self) -> str:
        sampler = self._ordered
        shuffle = None if sampler is None else sampler.order.shuffle
        order = f"sampler={type(self.sampler).__name__}" if sampler is None else "shuffle=False"
        if shuffle is not None:
            order = f"shuffle={shuffle.unit!r}, seed={shuffle.seed}"
        size = self.batch_size if sampler is None else sampler.run_length
        return (
            f"{type(self).__name__}({len(self.dataset)} rows, batch_size={size}, {order}, threads={self.threads}: "
            f"{self.dataset!r})"
        )


def _has_rows(arrays: Any) -> bool:
    """Return whether a batch has rows: arrays of an `H5Dataset`, or parts of several."""
    if isinstance(arrays, Mapping):
        return any(len(values) for values in arrays.values()) or not arrays
    return any(len(part.places) for part in arrays)


def _unchanged(read: Any) -> Any:
    return read


def _count(read: _ReadBatch) -> int:
    return read[0]
