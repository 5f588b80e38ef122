"""The calls of a loader: how many batches each reads, and the threads that run them."""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ray_h5.errors import RayH5Error
from ray_h5.read.kernel.library import Pool
from ray_h5.storage.stop import Stop

Call: TypeAlias = "list[list[int]]"
"""The indices of some batches, which are read together."""

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

    def hold(self, batches: float, batch_bytes: int) -> bool:
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

PLANNERS = 3
"""Calls that are planned side by side for the threads of a pool."""

_FIRST_BATCHES = 4
"""Of files in stores: the first call is smaller, as it is waited for."""


NOTHING = object()
"""Stands for a batch without rows."""


class ReadTimeoutError(RayH5Error, RuntimeError, TimeoutError):
    """Nothing was read before the timeout of a loader; a RuntimeError, as a `DataLoader` raises it."""


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
    window_batches : float, optional
        The batches of a window of the order, or of a small epoch: it is read at once, and its chunks are decoded once.
    done : callable
        Returns how many batches of the epoch were done before the first one that comes, once that was taken.
    least_bytes : int
        Only the first call is smaller than that, if there are as many batches.
    """

    row_bytes: Callable[[], int | None]
    bounds: CallBounds = ROWS_ALONE
    call_bytes: int = 0
    prefetch_factor: int | None = None
    window_batches: float | None = None
    done: Callable[[], float] = lambda: 0.0
    least_bytes: int = LEAST_BYTES

    def calls(
        self, batches: Iterator[list[int]], left: float, threads: int, are_pooled: Callable[[], bool] = lambda: False
    ) -> Iterator[Call]:
        """Yield the batches that each call reads; `left` is their number.

        The first calls are small, so that the first batch comes soon; the last ones too, so that threads end together.
        Where calls `are_pooled`, all threads end together, and each call reads more for many threads.
        """
        if self.window_batches is not None:
            yield from _in_windows(batches, self.window_batches, self.done)
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


def _in_windows(batches: Iterator[list[int]], window: float, done: Callable[[], float]) -> Iterator[Call]:
    """Yield the batches of each window; one that lies in two windows comes with the later one."""
    call = list(itertools.islice(batches, 1))
    stops = (math.floor(number * window) for number in itertools.count(1))
    at = done()
    while call:
        stop = next(each for each in stops if each > at)
        call += itertools.islice(batches, math.ceil(stop - at) - 1)
        yield call
        at += len(call)
        call = list(itertools.islice(batches, 1))


def with_later(calls: Iterable[Call], distance: Callable[[], int]) -> Iterator[tuple[Call, Call | None]]:
    """Yield each call and the one that comes `distance` later: that is the first that no thread has begun."""
    calls, window = iter(calls), deque[Call]()
    while True:
        while len(window) <= distance() and (call := next(calls, None)) is not None:
            window.append(call)
        if not window:
            return
        call = window.popleft()
        yield call, window[distance() - 1] if len(window) >= distance() else None


def has_rows(arrays: Any) -> bool:
    """Return whether a batch has rows: arrays of an `H5Dataset`, or parts of several."""
    if isinstance(arrays, Mapping):
        return any(len(values) for values in arrays.values()) or not arrays
    return any(len(part.places) for part in arrays)


def indices_of(call: Call) -> np.ndarray:
    """Return the indices of all batches of a call: int64."""
    return np.array([index for batch in call for index in batch], np.int64)


class _Calls(Generic[Result]):
    """Calls that threads do one after the other; who finds none left runs jobs of the last ones."""

    def __init__(self, work: Callable[[Call, Call | None], Result], stop: Stop, pool: Pool | None) -> None:
        self._work, self._stop, self.pool = work, stop, pool
        self.threads = set[int]()
        self.submitted = self._begun = 0
        self.all_submitted = False

    def enter(self) -> None:
        """Let the calling thread do calls."""
        self.threads.add(threading.get_ident())
        self._stop.enter()

    def do(self, number: int, call: Call, later: Call | None) -> Result:
        """Do a call."""
        self._begun = number
        if self.pool is not None:
            self.pool.enter(number)
        return self._work(call, later)

    def help_others(self, _: Future[Result]) -> None:
        """Run jobs of other threads in a thread that has done a call, if no call is left for it."""
        none_left = self.all_submitted and self._begun == self.submitted
        if self.pool is not None and none_left and threading.get_ident() in self.threads:
            self.pool.help()


def in_threads(
    calls: Iterator[tuple[Call, Call | None]],
    work: Callable[[Call, Call | None], Result],
    threads: int,
    at_once: Callable[[], int],
    timeout: float,
    what: Callable[[], str],
    stop: Stop,
    pool: Pool | None = None,
) -> Iterator[Result]:
    """Yield what `work` returns for each call, in their order. Threads work ahead of that.

    `at_once` returns how many calls they do side by side, of at most `threads`. `stop` ends requests that hang when
    the iteration ends early. With a `pool`, jobs of the compiled loop are run there.

    Raises
    ------
    ReadTimeoutError
        If a result takes longer than `timeout` seconds, if that is not 0. `what` returns what is read, for the message.
    """
    waiting: deque[Future[Result]] = deque()
    in_time, done, at_exit, found = True, False, sys.is_finalizing, _Calls(work, stop, pool)

    def ahead() -> None:
        # One call more than are done side by side: a thread that is done has the next one at once.
        while not found.all_submitted and len(waiting) <= at_once():
            each = next(calls, None)
            if each is None:
                found.all_submitted = True
                return
            found.submitted += 1
            waiting.append(executor.submit(found.do, found.submitted, *each))
            waiting[-1].add_done_callback(found.help_others)

    executor = ThreadPoolExecutor(threads, thread_name_prefix="ray_h5_loader", initializer=found.enter)
    try:
        ahead()
        while waiting:
            try:
                waiting[0].exception(timeout or None)  # an error of `work` is raised below
            except FutureTimeoutError:
                in_time = False
                raise ReadTimeoutError(
                    f"nothing was read in {timeout} seconds (timeout={timeout}), of {what()}: see whether their disk "
                    "or mount answers, or give it more time"
                ) from None
            result = waiting.popleft().result()
            ahead()
            yield result
        done = True
    finally:
        if not done:
            stop.set()  # requests that hang
        # A read that hangs is not waited for, and no thread waits for itself: the garbage collector may run this in one
        # of them. At exit the threads have ended already, and modules may be cleared.
        if not at_exit():
            if pool is not None:
                pool.end()
            executor.shutdown(wait=in_time and threading.get_ident() not in found.threads, cancel_futures=True)
