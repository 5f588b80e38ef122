"""Batches of rows, read ahead in threads by calls of several batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from joblib import cpu_count

from ray_h5.loading.prefetch_threads import ahead, in_threads
from ray_h5.loading.rank_shares import Share
from ray_h5.order.block_layout import MAX_BLOCK_BYTES, RANGE_WINDOW_BYTES
from ray_h5.order.epoch_order import Order
from ray_h5.plan.block_rows import BlockRows
from ray_h5.plan.blocks import Block
from ray_h5.plan.row_source import RowSource
from ray_h5.read.native.library import Pool, pool_of
from ray_h5.storage.request_pool import Stop


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to make.

    Attributes
    ----------
    indices : list of int, or numpy.ndarray
        Which rows.
    drawn_by : tuple of int
        What the random numbers depend on beside the rows that functions of users draw for it.
    positions : numpy.ndarray, optional
        int64: where the rows are in the epoch, if that is known.
    """

    indices: Any
    drawn_by: tuple[int, ...] = ()
    positions: np.ndarray | None = None

    @property
    def seed(self) -> list[int]:
        """What the global generators of random numbers are seeded with before."""
        return [*self.drawn_by, *self.indices]

    def __len__(self) -> int:
        return len(self.indices)


class IndexedRows(Protocol):
    """Reads rows, given by their indices among the selected rows."""

    def checked(self, indices: Any) -> np.ndarray:
        """Return indices as int64 from 0 on, and those of later draws; raise an error for rows that there are not."""

    def new_arrays(self, count: int) -> dict[str, np.ndarray]:
        """Return arrays for `count` rows of each column."""

    def read_into(self, out: Mapping[str, np.ndarray], indices: np.ndarray) -> None:
        """Read rows into arrays, row i at place i."""


Made = TypeVar("Made")
Result = TypeVar("Result")


# How many batches that follow each other one call reads: at most so many batches, of so many bytes; and how many times
# as many the next call reads, up to these. A call with more rows finds more neighbours.

ROWS_ALONE = 256, 16 << 20, 4
"""Calls of 32 MiB read 1.04 times as fast from memory, and 0.85 times as fast from a disk (measured)."""

OF_SHARED_CHUNKS = 128, 40 << 20, 16
"""Where rows of chunks of many rows, or blocks, are shuffled: chunks are decoded once a call."""

OF_RANGES = 256, 80 << 20, 16
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


@dataclass(slots=True, eq=False)
class Call:
    """Batches whose rows are read at once, except the first rows of the first batch, if the call before read these.

    Attributes
    ----------
    batches : list
        The batches.
    num_read : int
        Rows of the first batch that the call before has read.
    ahead : sequence of int
        The first rows of the batch after these, which are read for the next call.
    """

    batches: list[Task] = field(default_factory=list)
    num_read: int = 0
    ahead: Sequence[int] = ()
    arrays_ahead: Future[dict[str, np.ndarray]] = field(default_factory=Future)
    _arrays_read: Future[dict[str, np.ndarray]] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def parts(self) -> list[slice]:
        """Where the rows of each batch are among those of the call."""
        stops = [0, *itertools.accumulate(map(len, self.batches))]
        return list(map(slice, stops, stops[1:]))

    def read(self, reader: IndexedRows) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the rows of all batches, and their arrays, which `reader` makes and fills."""
        done, count = self.num_read, sum(map(len, self.batches))
        indices = reader.checked(_joined([*(batch.indices for batch in self.batches), self.ahead]))
        arrays = reader.new_arrays(len(indices))
        reader.read_into({name: values[done:] for name, values in arrays.items()}, indices[done:])
        if self._arrays_read is not None:  # that call was begun before this one
            for name, values in self._arrays_read.result().items():
                arrays[name][:done] = values
            self._arrays_read = None
        self.arrays_ahead.set_result({name: values[count:] for name, values in arrays.items()})
        return indices[:count], {name: values[:count] for name, values in arrays.items()}


def _joined(parts: Iterable[Sequence[int] | np.ndarray]) -> np.ndarray:
    some = [np.asarray(part) for part in parts if len(part)]
    return np.concatenate(some) if some else np.empty(0, np.int64)


def in_windows(batches: Iterable[Task], window_rows: int) -> Iterator[Call]:
    """Yield the batches of each window; of one that lies in two windows, each call reads its rows of one of them."""
    call, window = Call(), -1
    for batch in batches:
        assert batch.positions is not None
        last = int(batch.positions[-1]) // window_rows  # positions of a rank ascend
        if last != window:
            if call.batches:
                num_here = int(np.count_nonzero(batch.positions // window_rows == window))
                call.ahead = batch.indices[:num_here]
                done, call = call, Call(num_read=num_here, _arrays_read=call.arrays_ahead if num_here else None)
                yield done
            window = last
        call.batches.append(batch)
    if call.batches:
        yield call


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Calls that threads do ahead: each reads some batches.

    Attributes
    ----------
    source : RowSource
        What is read.
    batches : iterator of Task
        The batches of an epoch. If `order` is known, so are their positions.
    num_batches : float
        How many there are; infinity if that is not known.
    batch_rows : int, optional
        Rows of a batch, if that is known.
    row_bytes : callable
        Returns the bytes of a row; None while they are not known.
    order : Order, optional
        The order of the rows; None if it is not known.
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
    batches: Iterator[Task]
    num_batches: float
    batch_rows: int | None
    row_bytes: Callable[[], int | None]
    order: Order | None
    prefetch_factor: int | None = None
    threads: int
    is_alone: bool = False
    timeout: float = 0
    what: Callable[[], str]
    stop: Stop

    def calls(self, pool: Pool | None = None) -> Iterator[Call]:
        """Yield the calls; `pool` runs their jobs, if there is one."""
        source, order, row_bytes = self.source, self.order, self.row_bytes() or math.inf
        bounds = ROWS_ALONE
        if source.has_ranges:
            bounds = OF_RANGES
        elif source.shares_chunks and order is not None and order.shuffle is not None:
            bounds = OF_SHARED_CHUNKS
        if bounds is ROWS_ALONE or self.prefetch_factor is not None:
            return self._growing(bounds, pool)
        if order is not None and (window_rows := order.window_rows) is not None:
            # A window that the user chose may have any number of rows.
            most = MAX_BLOCK_BYTES if order.range_chunks is None else RANGE_WINDOW_BYTES
            if window_rows * row_bytes <= most:
                return in_windows(self.batches, window_rows)  # the chunks of each window are decoded once
        if bounds is OF_SHARED_CHUNKS and self.batch_rows is not None:
            plan, nbytes = source.plan, self.num_batches * self.batch_rows * row_bytes
            is_few = plan.files.num_rows / plan.chunk_group_rows <= _FEW_CHUNKS * self.batch_rows
            if is_few and self.num_batches <= bounds[0] and nbytes <= bounds[1]:
                return filter(len, iter([Call(list(self.batches))]))
        return self._growing(bounds, pool)

    def _growing(self, bounds: tuple[int, int, int], pool: Pool | None) -> Iterator[Call]:
        """Yield calls of some batches each.

        The first calls are small, so that the first batch comes soon; the last ones too, so that threads end together.
        In a pool all threads end together, and each call reads more for many threads.
        """
        source, threads, prefetch_factor, left = self.source, self.threads, self.prefetch_factor, self.num_batches
        most_batches, most_bytes, growth = bounds
        count = 1 if bounds is ROWS_ALONE else prefetch_factor or 1
        least_bytes = LEAST_SHARED_BYTES if source.holds_chunks else LEAST_BYTES
        if source.call_bytes:  # many requests are in flight
            most_bytes, count, least_bytes = max(most_bytes, source.call_bytes), max(count, _FIRST_BATCHES), 0
        while some := list(itertools.islice(self.batches, count)):
            yield Call(some)
            left -= len(some)
            row_bytes = self.row_bytes()
            if row_bytes is None:
                continue
            batch_bytes, nbytes = max(1, len(some[0]) * row_bytes), most_bytes
            is_pooled = pool is not None and bool(source.is_compiled)
            if is_pooled:
                nbytes = max(nbytes, min(nbytes * threads // PLANNERS, _MOST_POOLED_BYTES))
            fitting, least = max(1, nbytes // batch_bytes), max(1, least_bytes // batch_bytes)
            grown = most_batches if source.call_bytes else max(growth * count, least)
            count = min(grown, prefetch_factor or min(most_batches, fitting))
            if threads > 1 and not is_pooled and left < math.inf:
                count = int(min(count, max(least, -(-left // threads))))

    def read(self, read: Callable[[Call], Result]) -> Iterator[Result]:
        """Yield what `read` returns for each call, in order."""
        threads, source = self.threads, self.source
        # A store is asked by each thread: more of them would be too many.
        is_alone = not threads or self.is_alone or bool(source.call_bytes)
        # On two CPUs, an epoch by three threads took 1.1 times as long as by two (measured).
        most = max(1, threads) if is_alone else threads + (threads < cpu_count())
        planners = min(PLANNERS, most)
        pool = None if is_alone else pool_of(threads, min(threads, cpu_count() - planners))

        def done(call: Call) -> Result:
            try:
                return read(call)
            except BaseException as exc:
                if not call.arrays_ahead.done():  # the next call waits for them
                    call.arrays_ahead.set_exception(exc)
                raise

        def at_once() -> int:
            return most if pool is None or source.is_compiled is False else planners

        with source.sharing_chunks():
            calls = self.calls(pool)
            if threads:
                yield from in_threads(
                    calls, done, most, at_once, self.stop, timeout=self.timeout, what=self.what, pool=pool
                )
            else:
                yield from map(done, calls)


def finished(reads: Iterator[list[Result]], finish: Callable[[Result], Made]) -> Iterator[Made]:
    """Yield batches as `finish` makes them. One of which it raises an error is not done, and no other is read."""
    try:
        for request in itertools.chain.from_iterable(reads):
            yield finish(request)
    finally:
        reads.close()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class BatchReader:
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
    """

    source: RowSource
    share: Share
    batch_rows: int
    threads: int = 2
    drop_last: bool = False
    make: Callable[[Block], Any] = lambda block: block
    finish: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        stop, plan, share = Stop(), self.source.plan, self.share
        full, rest = divmod(len(share), self.batch_rows)
        batches = share.batches(self.batch_rows, whole=self.drop_last)
        calls = Calls(
            source=self.source,
            batches=(Task(indices, positions=positions) for positions, indices in batches),
            num_batches=full + bool(rest and not self.drop_last),
            batch_rows=self.batch_rows,
            row_bytes=lambda: plan.row_bytes,
            order=share.order,
            threads=self.threads,
            what=plan.__repr__,
            stop=stop,
        )
        made = finished(calls.read(self._read), self.finish or (lambda batch: batch))
        return made if self.finish is None or not self.threads else ahead(made, stop)

    def _read(self, call: Call) -> list[Any]:
        """Read some batches by one call."""
        source, share, made = self.source, self.share, []
        indices, arrays = call.read(source)
        row_ids, _ = source.split(indices)
        keys = source.step_numbers(row_ids)
        for task, at in zip(call.batches, call.parts, strict=True):
            assert task.positions is not None
            of_batch = {name: values[at] for name, values in arrays.items()}
            rows = BlockRows(row_ids[at], of_batch, key_numbers=None if keys is None else keys[at])
            made.append(self.make(Block(rows, task.positions, share.start.epoch, share.order.seed)))
        return made
