"""A `DataLoader` that reads ahead in threads of the training process: no worker processes, no copies between them."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ray_h5.errors import OptionError, RayH5Error
from ray_h5.options import as_integer
from ray_h5.torch_data.batched import is_changed
from ray_h5.torch_data.dataset import H5Dataset
from ray_h5.torch_data.kept import read_alone
from ray_h5.torch_data.samplers import OrderBatchSampler, OrderSampler, check_between_batches

_READ_BYTES = 16 << 20
"""Batches that follow each other are read together, up to this size: each call finds more rows side by side."""

_MOST_TOGETHER = 16

_Read = tuple[int, Any]
"""Of a batch: how many samples it has, and what was read of them."""


class ReadTimeoutError(RayH5Error, RuntimeError, TimeoutError):
    """Nothing was read in the time that a loader was given; a RuntimeError, as a `DataLoader` raises then."""


class H5DataLoader(DataLoader[Any]):
    """A `DataLoader` of an `H5Dataset` that reads ahead in threads.

    What is not ours runs in the thread that asks for batches, one after the other, as in a `DataLoader`
    without workers: the dataset's transform, `collate_fn`, and the methods of a subclass.

    Parameters
    ----------
    dataset : H5Dataset
        The samples.
    batch_size : int, optional
        Samples of a batch. None, as in a `DataLoader`, for a sampler whose items are batches themselves, or for single
        samples; each is then read when it is asked for.
    sampler : Sampler of int, optional
        Which samples, in which order. The state of an `OrderSampler` whose stretch is a batch tells
        what was delivered, not what was read ahead.
    shuffle, batch_sampler, generator
        As those of `DataLoader`; a framework that puts in samplers of its own asks for them.
    threads : int
        Threads that read; 0 reads in the thread that asks for batches, when it asks.
    prefetch_factor : int, optional
        Batches read ahead for each thread; by default as many as make up 16 MiB.
    drop_last : bool
        Leave out the last batch if it is smaller than the others.
    pin_memory : bool
        Read into pinned memory.
    collate_fn : callable, optional
        Makes a batch of samples, in place of the tensors that were read.
    timeout : float
        Seconds to wait for what is read; 0 waits for ever.
    """

    def __init__(
        self,
        dataset: H5Dataset,
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
        super().__init__(
            dataset,
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
        """Return where the iteration is, as `OrderSampler.state_dict`: after the last batch delivered.

        Raises
        ------
        OptionError
            If the sampler is no `OrderSampler` whose stretch is a batch.
        """
        return self._order().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken."""
        order = self._order()
        check_between_batches(state)
        order.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        if self.batch_sampler is None:
            return (self._pinned(self.collate_fn(self.dataset[item])) for item in self.sampler)
        finish: Callable[[Any], Any]
        if is_changed(self.dataset):
            reads: Iterable[list[_Read]] = map(self._not_read, self._groups())
            finish = self._from_subclass
        else:
            ours = self._collates and self.dataset.transform is None
            read = partial(self._read, self._whole if ours else _as_it_is)
            reads = self._in_threads(read) if self.threads else map(read, self._groups())
            finish = _as_it_is if ours else self._from_samples
        batches = itertools.chain.from_iterable(reads)
        ordered = self._ordered
        counted = batches if ordered is None else ordered.counted(batches, _count)
        return (finish(read) for _, read in counted)

    @property
    def _ordered(self) -> OrderSampler | None:
        """The sampler that tells batches ahead, and is told what was delivered; None of any other kind."""
        if isinstance(self.sampler, OrderSampler) and self.sampler.stretch == self.batch_size:
            return self.sampler
        return self.batch_sampler.sampler if type(self.batch_sampler) is OrderBatchSampler else None

    def _order(self) -> OrderSampler:
        ordered = self._ordered
        if ordered is None:
            # Any other sampler can only tell what was read ahead, which is more than what was delivered.
            stretch = f" of stretch={self.sampler.stretch}" if isinstance(self.sampler, OrderSampler) else ""
            raise OptionError(
                f"{type(self.sampler).__name__}{stretch} has no state that tells what was delivered; an "
                f"OrderSampler(dataset, stretch={self.batch_size}) has"
            )
        return ordered

    def _groups(self) -> Iterator[list[list[int]]]:
        """Yield lists of batches to be read together; the first ones are short, so that the first batch is soon."""
        batches = self._index_batches()
        together = 1
        while group := list(itertools.islice(batches, together)):
            yield group
            most = max(1, _READ_BYTES // max(1, len(group[0]) * self.dataset.row_bytes))
            together = min(2 * together, self.prefetch_factor or min(_MOST_TOGETHER, most))

    def _index_batches(self) -> Iterator[list[int]]:
        ordered = self._ordered
        if ordered is not None:
            return ordered.stretches(whole=self.batch_sampler.drop_last)
        # A generator, for an iterator of others may start from its beginning when iter() is called on it, as that of
        # lightning's wrapper for predictions does.
        return (batch for batch in self.batch_sampler)

    def _in_threads(self, read: Callable[[list[list[int]]], list[_Read]]) -> Iterator[list[_Read]]:
        waiting: deque[Future[list[_Read]]] = deque()
        groups, in_time = self._groups(), True
        at_exit = sys.is_finalizing
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ray_h5_loader", initializer=read_alone)
        try:
            for group in itertools.islice(groups, self.threads + 1):
                waiting.append(pool.submit(read, group))
            while waiting:
                in_time = bool(wait([waiting[0]], self.timeout or None).done)
                if not in_time:
                    raise ReadTimeoutError(
                        f"nothing was read in {self.timeout} seconds (timeout={self.timeout}), of "
                        f"{len(self.dataset)} samples of {self.dataset}: see whether their disk or mount answers, or "
                        "give it more time"
                    )
                batches = waiting.popleft().result()
                for group in itertools.islice(groups, 1):
                    waiting.append(pool.submit(read, group))
                yield batches
        finally:
            # What hangs is not waited for. At exit the threads have ended already, and modules may be cleared.
            if not at_exit():
                pool.shutdown(wait=in_time, cancel_futures=True)

    def _read(self, make: Callable[[dict[str, np.ndarray]], Any], group: list[list[int]]) -> list[_Read]:
        """Read some batches by one call, and make something of the arrays of each."""
        dataset: H5Dataset = self.dataset
        indices = np.array([index for batch in group for index in batch], np.int64)
        arrays = dataset.read(indices, dataset.new_pinned(len(indices)) if self._pins else None)
        stops = itertools.accumulate(map(len, group))
        return [
            (len(batch), make({name: values[stop - len(batch) : stop] for name, values in arrays.items()}))
            for batch, stop in zip(group, stops, strict=True)
        ]

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.cuda.is_available()

    def _whole(self, arrays: dict[str, np.ndarray]) -> Any:
        return self._pinned(self.dataset.collate(arrays))

    def _from_samples(self, arrays: dict[str, np.ndarray]) -> Any:
        return self._pinned(self.collate_fn(self.dataset.samples(arrays)))

    def _from_subclass(self, indices: list[int]) -> Any:
        return self._pinned(self.collate_fn(self.dataset.__getitems__(indices)))

    def _not_read(self, group: list[list[int]]) -> list[_Read]:
        return [(len(batch), batch) for batch in group]

    def _pinned(self, batch: Any) -> Any:
        """Pin what was not read into pinned memory: what was cast since, or made by a transform."""
        return pin_memory(batch) if self._pins else batch


def _as_it_is(read: Any) -> Any:
    return read


def _count(read: _Read) -> int:
    return read[0]
