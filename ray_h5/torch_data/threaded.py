"""A `DataLoader` that reads ahead in threads of the training process: no worker processes, no copies between them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from ray_h5.errors import OptionError
from ray_h5.torch_data.dataset import H5Dataset
from ray_h5.torch_data.samplers import OrderSampler, check_between_batches

_READ_BYTES = 16 << 20
"""Batches that follow each other are read together, up to this size: each call finds more rows side by side."""

_MOST_TOGETHER = 16


class H5DataLoader(DataLoader[Any]):
    """A `DataLoader` of an `H5Dataset` that reads ahead in threads.

    Parameters
    ----------
    dataset : H5Dataset
        The samples.
    batch_size : int
        Samples of a batch.
    sampler : Sampler of int
        Which samples, in which order. The state of an `OrderSampler` whose stretch is a batch tells
        what was delivered, not what was read ahead.
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
        Seconds to wait for a batch; 0 waits for ever.
    """

    def __init__(
        self,
        dataset: H5Dataset,
        batch_size: int,
        sampler: Iterable[int],
        *,
        threads: int,
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        timeout: float = 0,
    ) -> None:
        if threads < 0 or (prefetch_factor is not None and prefetch_factor < 1):
            raise OptionError(
                f"threads={threads}, prefetch_factor={prefetch_factor}: expected 0 or more, and 1 or more"
            )
        super().__init__(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            drop_last=drop_last,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
        )
        self.threads = threads
        self.batch_timeout = timeout
        self._plain = collate_fn is None and dataset.transform is None
        batch_bytes = max(1, batch_size * dataset.row_bytes)
        self._together = prefetch_factor or max(1, min(_MOST_TOGETHER, _READ_BYTES // batch_bytes))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the sampler, if it has epochs."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

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
        reads = self._in_threads() if self.threads else map(self._read, self._groups())
        batches = itertools.chain.from_iterable(reads)
        return (batch for _, batch in (self._order().counted(batches, _count) if self._ahead else batches))

    def _order(self) -> OrderSampler:
        if not self._ahead:
            # Any other sampler can only tell what was read ahead, which is more than what was delivered.
            stretch = f" of stretch={self.sampler.stretch}" if isinstance(self.sampler, OrderSampler) else ""
            raise OptionError(
                f"{type(self.sampler).__name__}{stretch} has no state that tells what was delivered; an "
                f"OrderSampler(dataset, stretch={self.batch_size}) has"
            )
        return cast("OrderSampler", self.sampler)

    def _groups(self) -> Iterator[list[list[int]]]:
        """Yield lists of batches to be read together; the first ones are short, so that the first batch is soon."""
        batches = self._index_batches()
        for power in itertools.count():
            group = list(itertools.islice(batches, min(1 << power, self._together)))
            if not group:
                return
            yield group

    def _index_batches(self) -> Iterator[list[int]]:
        if not self._ahead:
            return iter(self.batch_sampler)
        full = self.batch_size if self.drop_last else 1
        return (batch for batch in self._order().stretches() if len(batch) >= (full or 1))

    @property
    def _ahead(self) -> bool:
        """Whether the sampler tells batches ahead, and is told what was delivered."""
        return isinstance(self.sampler, OrderSampler) and self.sampler.stretch == self.batch_size

    def _in_threads(self) -> Iterator[list[tuple[int, Any]]]:
        waiting: deque[Future[list[tuple[int, Any]]]] = deque()
        groups = self._groups()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ray_h5_loader")
        try:
            for group in itertools.islice(groups, self.threads + 1):
                waiting.append(pool.submit(self._read, group))
            while waiting:
                batches = waiting.popleft().result(self.batch_timeout or None)
                for group in itertools.islice(groups, 1):
                    waiting.append(pool.submit(self._read, group))
                yield batches
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, group: list[list[int]]) -> list[tuple[int, Any]]:
        dataset: H5Dataset = self.dataset
        indices = np.array([index for batch in group for index in batch], np.int64)
        out = dataset.new_pinned(len(indices)) if self.pin_memory and torch.cuda.is_available() else None
        arrays = dataset.read(indices, out)
        stops = list(itertools.accumulate(map(len, group)))
        parts = [
            {name: values[stop - len(batch) : stop] for name, values in arrays.items()}
            for batch, stop in zip(group, stops, strict=True)
        ]
        return [(len(batch), self._batch(part)) for batch, part in zip(group, parts, strict=True)]

    def _batch(self, arrays: Mapping[str, np.ndarray]) -> Any:
        dataset: H5Dataset = self.dataset
        return dataset.collate(arrays) if self._plain else self.collate_fn(dataset.samples(arrays))


def _count(batch: tuple[int, Any]) -> int:
    return batch[0]
