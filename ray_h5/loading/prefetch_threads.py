"""Work that threads do ahead of the thread that asks for its results: in order, and bounded."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar

import numpy as np

from ray_h5.errors import RayH5Error
from ray_h5.read.native.library import Pool
from ray_h5.storage.request_pool import Stop

Work = TypeVar("Work")
Result = TypeVar("Result")


class ReadTimeoutError(RayH5Error, RuntimeError, TimeoutError):
    """Nothing was read before the timeout of a loader; a RuntimeError, as a `DataLoader` raises it."""


AHEAD_ITEMS, AHEAD_BYTES = 8, 64 << 20
"""How many batches that transforms made wait at most: no other is begun while this many, or this many bytes, wait."""

_END: Any = object()


def _enter(own: set[int], stop: Stop) -> None:
    own.add(threading.get_ident())
    stop.enter()


class _Threads(Generic[Work, Result]):
    """Threads that do one item after the other; one that finds none left runs jobs of the others."""

    def __init__(
        self, items: Iterable[Work], work: Callable[[Work], Result], threads: int, stop: Stop, pool: Pool | None
    ) -> None:
        self._items, self._work, self._pool = iter(items), work, pool
        self._own, self._threads = set[int](), threads
        self._submitted, self._has_all = 0, False
        self.waiting: deque[Future[Result]] = deque()
        # Threads hold no reference to this object. Its items lead back to the iterator, which is freed while they work.
        self._executor = ThreadPoolExecutor(threads, "ray_h5_loader", initializer=_enter, initargs=(self._own, stop))

    def submit(self, most: int) -> None:
        """Let threads do other items, until so many are done or waited for."""
        while not self._has_all and len(self.waiting) < most:
            item = next(self._items, _END)
            if item is _END:
                self._has_all = True
                if self._pool is not None:
                    for _ in range(self._threads):
                        self._executor.submit(_help_others, self._pool, self._submitted + 1)
                return
            self._submitted += 1
            self.waiting.append(self._executor.submit(_do, self._work, self._pool, self._submitted, item))

    def end(self, *, wait: bool) -> bool:
        """Do no other item, and wait for those that were begun; return whether they have ended.

        No thread waits for itself: the garbage collector may call this in one of them.
        """
        if self._pool is not None:
            self._pool.end()
        wait = wait and threading.get_ident() not in self._own
        self._executor.shutdown(wait=wait, cancel_futures=True)
        return wait


def _do(work: Callable[[Work], Result], pool: Pool | None, number: int, item: Work) -> Result:
    if pool is not None:
        pool.enter(number)
    return work(item)


def _help_others(pool: Pool, number: int) -> None:
    pool.enter(number)
    pool.help()


def in_threads(
    items: Iterable[Work],
    work: Callable[[Work], Result],
    threads: int,
    at_once: Callable[[], int],
    stop: Stop,
    *,
    timeout: float = 0,
    what: Callable[[], str] = str,
    pool: Pool | None = None,
    close: Callable[[], None] | None = None,
) -> Iterator[Result]:
    """Yield what `work` returns for each item, in their order. Threads work ahead of the thread that asks.

    Parameters
    ----------
    items : iterable
        Taken in the thread that asks.
    work : callable
        Called in one of `threads` threads.
    at_once : callable
        Returns how many items are done side by side. One more is begun: a thread that is done has it at once.
    stop : Stop
        Ends requests that hang when the iteration ends early.
    timeout : float
        Seconds to wait for a result; 0 waits for ever. `what` returns what is read, for the message.
    pool : Pool, optional
        Runs jobs of the compiled loop.
    close : callable, optional
        Called when no thread works any more.

    Raises
    ------
    ReadTimeoutError
        If a result takes longer than `timeout`.
    """
    in_time, done, at_exit = True, False, sys.is_finalizing
    running = _Threads(items, work, threads, stop, pool)
    try:
        running.submit(at_once() + 1)
        while running.waiting:
            try:
                running.waiting[0].exception(timeout or None)  # an error of `work` is raised below
            except FutureTimeoutError:
                in_time = False
                raise ReadTimeoutError(
                    f"nothing was read in {timeout} seconds (timeout={timeout}), of {what()}: see whether their disk "
                    "or mount answers, or give it more time"
                ) from None
            result = running.waiting.popleft().result()
            running.submit(at_once() + 1)
            yield result
        done = True
    finally:
        if not done:
            stop.set()  # requests that hang
        # A read that hangs is not waited for. At exit the threads have ended already, and modules may be cleared.
        if not at_exit() and running.end(wait=in_time) and close is not None:
            close()


def ahead(items: Iterator[Result], stop: Stop) -> Iterator[Result]:
    """Yield some items in their order. One thread takes them, ahead of the thread that asks for them.

    At most `AHEAD_ITEMS` wait, and as many as fit into `AHEAD_BYTES` if they are as large as the largest so far. `stop`
    ends requests that hang when the iteration ends early.
    """
    largest: int | None = None
    has_ended = False

    def take(_: bool) -> Result:
        nonlocal largest, has_ended
        item = next(items, _END)
        if item is _END:
            has_ended = True
        else:
            largest = max(largest or 1, nbytes_of(item))
        return item

    def at_once() -> int:
        return 0 if largest is None else max(1, min(AHEAD_ITEMS, AHEAD_BYTES // largest)) - 1

    taken = in_threads(iter(lambda: has_ended, True), take, 1, at_once, stop, close=items.close)  # type: ignore[attr-defined]
    try:
        for item in taken:
            if item is not _END:
                yield item
    finally:
        taken.close()  # type: ignore[attr-defined]


def nbytes_of(value: Any) -> int:
    """Return the bytes of all tensors, arrays, tables and texts in a value; 0 for what is none of these."""
    if isinstance(value, Mapping):
        return sum(map(nbytes_of, value.values()))
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return sum(map(nbytes_of, value))
    if isinstance(value, (str, bytes)):
        return len(value)
    if str(getattr(value, "layout", "")) == "torch.sparse_csr":  # its own count is that of a dense tensor
        return sum(map(nbytes_of, (value.values(), value.col_indices(), value.crow_indices())))
    return int(getattr(value, "nbytes", 0))
