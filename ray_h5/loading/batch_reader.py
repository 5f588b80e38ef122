"""The batches of a share of an epoch, read ahead in threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from joblib import cpu_count

from ray_h5.buffers import Spec, empty
from ray_h5.loading.ahead import ahead, in_threads
from ray_h5.loading.read_calls import (
    FEW_CHUNKS,
    LEAST_BYTES,
    LEAST_SHARED_BYTES,
    OF_RANGES,
    OF_SHARED_CHUNKS,
    PLANNERS,
    ROWS_ALONE,
    CallSizes,
)
from ray_h5.loading.row_source import RowSource
from ray_h5.loading.shares import Share
from ray_h5.order.blocks import MAX_BLOCK_BYTES
from ray_h5.order.epoch_order import Order
from ray_h5.order.plan_reads import BlockRows
from ray_h5.order.remainder import Block
from ray_h5.read.kernel.library import pool_of
from ray_h5.storage.stop import Stop

Batch = TypeVar("Batch", bound=Sized)
Made = TypeVar("Made")
Result = TypeVar("Result")

NewArrays = Callable[[Mapping[str, Spec]], dict[str, np.ndarray]]
"""Returns uninitialised arrays of some shapes and dtypes."""


@dataclass(frozen=True, kw_only=True)
class Calls(Generic[Batch]):
    """Calls that threads do ahead: each reads some batches.

    Attributes
    ----------
    source : RowSource
        What is read.
    batches : callable
        Returns the batches of an epoch.
    num_batches : float
        How many there are.
    batch_rows : int, optional
        Rows of a batch, if that is known.
    row_bytes : callable
        Returns the bytes of a row; None while they are not known.
    order : Order, optional
        The order of the rows; None if it is not known.
    share : callable
        Returns the share that is read, once its first batch was taken.
    prefetch_factor : int, optional
        The batches of a call; by default what the bytes allow.
    threads : int
        Threads that read; 0 reads in the thread that asks.
    is_alone : bool
        Whether one thread has work of its own beside reading, such as decoding images: each call is then done by one.
    timeout : float
        Seconds to wait for a call; 0 waits for ever.
    what : callable
        Returns what is read, for messages.
    stop : Stop
        Ends requests that hang.
    """

    source: RowSource
    batches: Callable[[], Iterator[Batch]]
    num_batches: float
    batch_rows: int | None
    row_bytes: Callable[[], int | None]
    order: Order | None
    share: Callable[[], Share]
    prefetch_factor: int | None
    threads: int
    is_alone: bool = False
    timeout: float
    what: Callable[[], str]
    stop: Stop

    def calls(self, are_pooled: Callable[[], bool] = lambda: False) -> Iterator[list[Batch]]:
        """Yield the batches of each call; `are_pooled` returns whether calls are run in a pool."""
        return self._sizes().calls(self.batches(), self.num_batches, self.threads, are_pooled)

    def _sizes(self) -> CallSizes:
        source, order, prefetch_factor = self.source, self.order, self.prefetch_factor
        row_bytes = self.row_bytes() or math.inf
        bounds = ROWS_ALONE
        if source.has_ranges:
            bounds = OF_RANGES
        elif source.shares_chunks and order is not None and order.shuffle is not None:
            bounds = OF_SHARED_CHUNKS
        by_window = is_whole = False
        if bounds.shared and prefetch_factor is None and order is not None and order.window_rows is not None:
            by_window = order.range_chunks is not None or order.window_rows * row_bytes <= MAX_BLOCK_BYTES
        if bounds is OF_SHARED_CHUNKS and not by_window and prefetch_factor is None and self.batch_rows is not None:
            # A batch alone would decode a fifth of all chunks.
            num_chunks = source.plan.files.num_rows / source.plan.chunk_group_rows
            is_few = num_chunks <= FEW_CHUNKS * self.batch_rows
            is_whole = is_few and bounds.hold(self.num_batches, self.batch_rows * row_bytes)
        least = 0 if source.call_bytes else LEAST_SHARED_BYTES if source.holds_chunks else LEAST_BYTES
        windows = self.share if by_window else None
        return CallSizes(self.row_bytes, bounds, source.call_bytes, prefetch_factor, windows, is_whole, least)

    def read(self, read: Callable[[list[Batch]], Result]) -> Iterator[Result]:
        """Yield what `read` returns for the batches of each call, in order."""
        with self.source.sharing_chunks(self.threads):
            yield from self._read(read)

    def _read(self, read: Callable[[list[Batch]], Result]) -> Iterator[Result]:
        threads, source = self.threads, self.source
        # A store is asked by each thread: more of them would be too many.
        is_alone = not threads or self.is_alone or bool(source.call_bytes)
        # On two CPUs, an epoch by three threads took 1.1 times as long as by two (measured).
        most = max(1, threads) if is_alone else threads + (threads < cpu_count())
        planners = min(PLANNERS, most)
        pool = None if is_alone else pool_of(threads, min(threads, cpu_count() - planners))

        def are_pooled() -> bool:
            return pool is not None and bool(source.is_compiled)

        def at_once() -> int:
            return planners if are_pooled() or (pool is not None and source.is_compiled is None) else most

        calls = self.calls(are_pooled)
        if not threads:
            return map(read, calls)
        return in_threads(calls, read, most, at_once, self.stop, timeout=self.timeout, what=self.what, pool=pool)


def finished(reads: Iterator[list[Result]], finish: Callable[[Result], Made]) -> Iterator[Made]:
    """Yield batches as `finish` makes them. One of which it raises an error is not done, and no other is read."""
    try:
        for each in itertools.chain.from_iterable(reads):
            yield finish(each)
    finally:
        reads.close()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a batch."""

    positions: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class BatchReader(Generic[Made]):
    """The batches of a share of an epoch, read ahead in threads of this process.

    Each iteration reads the share from its beginning. A batch is a `Block`, with the columns of the files as arrays,
    its row ids, positions, epoch and seed, or what `make` and `finish` make of it. Columns of tables beside the files
    are not in it.

    Attributes
    ----------
    source : RowSource
        What reads rows. It has the open files and the rows in memory, and serves all epochs.
    share : Share
        Which rows.
    batch_rows : int
        Rows of a batch; the last one may have fewer.
    threads : int
        Threads that read; 0 reads in the thread that asks.
    drop_last : bool
        Whether a last batch that is smaller is left out.
    make : callable, optional
        Called with each batch in a thread that reads: in any order, several at a time.
    finish : callable, optional
        Called with what `make` returned, in order, one after the other, in one more thread that works ahead.
    size : callable
        Returns the bytes of what `finish` returned: at most 64 MiB of it wait.
    new_arrays : callable, optional
        Returns the arrays that are read into, such as pinned ones.
    prefetch_factor : int, optional
        Batches that one call reads; by default what is best for the files.
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    """

    source: RowSource
    share: Share
    batch_rows: int
    threads: int = 2
    drop_last: bool = False
    make: Callable[[Block], Any] | None = None
    finish: Callable[[Any], Made] | None = None
    size: Callable[[Any], int] = lambda _: 0
    new_arrays: NewArrays | None = None
    prefetch_factor: int | None = None
    timeout: float = 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.share), self.batch_rows)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[Made]:
        stop, plan = Stop(), self.source.plan
        calls = Calls(
            source=self.source,
            batches=self._batches,
            num_batches=len(self),
            batch_rows=self.batch_rows,
            row_bytes=lambda: plan.row_bytes,
            order=self.share.order,
            share=lambda: self.share,
            prefetch_factor=self.prefetch_factor,
            threads=self.threads,
            timeout=self.timeout,
            what=plan.__repr__,
            stop=stop,
        )
        batches = finished(calls.read(self._read), self.finish or (lambda batch: batch))
        return batches if self.finish is None or not self.threads else ahead(batches, self.size, stop)

    def _batches(self) -> Iterator[_Rows]:
        size = self.batch_rows
        least = size if self.drop_last else 1
        for positions, indices in self.share.pieces(size):
            for i in range(0, len(positions) - least + 1, size):
                yield _Rows(positions[i : i + size], indices[i : i + size])

    def _read(self, call: Sequence[_Rows]) -> list[Any]:
        """Read some batches by one call."""
        source, share = self.source, self.share
        indices = np.concatenate([batch.indices for batch in call])
        row_ids, _ = source.split(indices)
        specs = {each.name: ((len(indices), *each.row_shape), each.dtype) for each in source.plan.of_files}
        arrays = (
            {name: empty(*spec) for name, spec in specs.items()} if self.new_arrays is None else self.new_arrays(specs)
        )
        source.read_into(arrays, indices)
        keys, found, start = source.step_numbers(row_ids), [], 0
        for batch in call:
            here = slice(start, start + len(batch))
            of_batch = {name: values[here] for name, values in arrays.items()}
            rows = BlockRows(row_ids[here], of_batch, key_numbers=None if keys is None else keys[here])
            block = Block(rows, batch.positions, share.epoch, share.order.seed)
            found.append(block if self.make is None else self.make(block))
            start += len(batch)
        return found
