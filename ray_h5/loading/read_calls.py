"""Calls of a reader: how many batches each reads, and threads that do them ahead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from joblib import cpu_count

from ray_h5.loading.ahead import in_threads
from ray_h5.loading.row_source import RowSource
from ray_h5.loading.shares import Share
from ray_h5.order.blocks import MAX_BLOCK_BYTES
from ray_h5.order.epoch_order import Order
from ray_h5.read.kernel.library import pool_of
from ray_h5.storage.stop import Stop

Batch = TypeVar("Batch", bound=Sized)
Made = TypeVar("Made")
Result = TypeVar("Result")


class CallBounds(NamedTuple):
    """How many batches that follow each other one call reads: a call with more rows finds more neighbours.

    Attributes
    ----------
    batches, nbytes : int
        At most so many batches, of so many bytes.
    growth : int
        How many times as many batches the next call reads, up to these.
    shared : bool
        Whether rows share chunks, which are decoded once a call: small calls decode them again.
    """

    batches: int
    nbytes: int
    growth: int
    shared: bool = True

    def hold(self, batches: float, batch_bytes: float) -> bool:
        """Return whether one call may read so many batches."""
        return batches <= self.batches and batches * batch_bytes <= self.nbytes


ROWS_ALONE = CallBounds(256, 16 << 20, 4, shared=False)
"""Calls of 32 MiB read 1.04 times as fast from memory, and 0.85 times as fast from a disk (measured)."""

OF_SHARED_CHUNKS = CallBounds(128, 40 << 20, 16)
"""Where rows of chunks of many rows, or blocks, are shuffled."""

OF_RANGES = CallBounds(256, 80 << 20, 16)
"""Where rows are ranges of longer arrays."""

LEAST_BYTES, LEAST_SHARED_BYTES = 1 << 20, 8 << 20
"""To plan a smaller call takes longer than to read its rows; or to copy them, where threads share decoded chunks."""

_MOST_POOLED_BYTES = 64 << 20
"""Of calls that are run in a pool."""

_FEW_CHUNKS = 4
"""Where there are at most so many chunks for each row of a batch, one batch decodes a fifth of them or more."""

PLANNERS = 3
"""Calls that are planned side by side for the threads of a pool."""

_FIRST_BATCHES = 4
"""Of files in stores: the first call is smaller, as it is waited for."""


@dataclass(frozen=True, slots=True)
class CallSizes:
    """How many batches each call reads.

    Attributes
    ----------
    row_bytes : callable
        Returns the bytes of a sample; None while they are not known.
    bounds : CallBounds
        What a call may read.
    call_bytes : int
        Bytes that a call reads at least, if files are in stores; 0 if they are on disks.
    prefetch_factor : int, optional
        The batches of a call; by default what the bytes allow.
    windows : callable, optional
        Returns the share of the epoch, once its first batch was taken: each window of its shuffle is read by one call,
        so that its chunks are decoded once.
    is_whole : bool
        Whether one call reads all batches.
    least_bytes : int
        Only the first call is smaller than that, if there are as many batches.
    """

    row_bytes: Callable[[], int | None]
    bounds: CallBounds = ROWS_ALONE
    call_bytes: int = 0
    prefetch_factor: int | None = None
    windows: Callable[[], Share] | None = None
    is_whole: bool = False
    least_bytes: int = LEAST_BYTES

    def calls(
        self, batches: Iterator[Batch], left: float, threads: int, are_pooled: Callable[[], bool] = lambda: False
    ) -> Iterator[list[Batch]]:
        """Yield the batches that each call reads; `left` is their number.

        The first calls are small, so that the first batch comes soon; the last ones too, so that threads end together.
        Where calls `are_pooled`, all threads end together, and each call reads more for many threads.
        """
        if self.windows is not None:
            yield from _in_windows(batches, self.windows)
            return
        if self.is_whole:
            yield from filter(None, [list(batches)])
            return
        most_batches, most_bytes, growth, shared = self.bounds
        count = self.prefetch_factor if shared and self.prefetch_factor else 1
        if self.call_bytes:
            most_bytes, count = max(most_bytes, self.call_bytes), max(count, _FIRST_BATCHES)
        while call := list(itertools.islice(batches, count)):
            yield call
            left -= len(call)
            row_bytes = self.row_bytes()
            if row_bytes is None:
                continue
            batch_bytes, nbytes, is_pooled = max(1, len(call[0]) * row_bytes), most_bytes, are_pooled()
            if is_pooled:
                nbytes = max(nbytes, min(nbytes * threads // PLANNERS, _MOST_POOLED_BYTES))
            fitting, least = max(1, nbytes // batch_bytes), max(1, self.least_bytes // batch_bytes)
            grown = most_batches if self.call_bytes else max(growth * count, least)
            count = min(grown, self.prefetch_factor or min(most_batches, fitting))
            if threads > 1 and not is_pooled:
                count = int(min(count, max(least, -(-left // threads))))


def _in_windows(batches: Iterator[Batch], of: Callable[[], Share]) -> Iterator[list[Batch]]:
    """Yield the batches of each window; one that lies in two windows comes with the later one."""
    share: Share | None = None
    call: list[Batch] = []
    stop = end = 0
    for batch in batches:
        if share is None:
            share = of()
            stop = share.rows
        stop += len(batch)
        if stop > end:
            if call:
                yield call
            call, end = [], share.window_end(stop - 1)
        call.append(batch)
    if call:
        yield call


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
            is_few = num_chunks <= _FEW_CHUNKS * self.batch_rows
            is_whole = is_few and bounds.hold(self.num_batches, self.batch_rows * row_bytes)
        least = 0 if source.call_bytes else LEAST_SHARED_BYTES if source.holds_chunks else LEAST_BYTES
        windows = self.share if by_window else None
        return CallSizes(self.row_bytes, bounds, source.call_bytes, prefetch_factor, windows, is_whole, least)

    def read(self, read: Callable[[list[Batch]], Result]) -> Iterator[Result]:
        """Yield what `read` returns for the batches of each call, in order."""
        with self.source.sharing_chunks():
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
