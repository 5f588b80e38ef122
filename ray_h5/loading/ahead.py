"""Work that threads do ahead of the thread that asks for its results: in order, and bounded."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

from ray_h5.errors import RayH5Error
from ray_h5.read.kernel.library import Pool
from ray_h5.storage.stop import Stop

Work = TypeVar("Work")
Result = TypeVar("Result")


class ReadTimeoutError(RayH5Error, RuntimeError, TimeoutError):
    """Nothing was read before the timeout of a loader; a RuntimeError, as a `DataLoader` raises it."""


AHEAD_ITEMS, AHEAD_BYTES = 8, 64 << 20
"""How many batches that transforms made wait at most: no other is begun while this many, or this many bytes, wait."""


def ahead(items: Iterator[Result], size: Callable[[Result], int], stop: Stop) -> Iterator[Result]:
    """Yield some items in their order. One thread takes them, ahead of the thread that asks for them.

    It takes no other while `AHEAD_ITEMS`, or `AHEAD_BYTES` by their `size`, wait. `stop` ends requests that hang when
    the iteration ends early.
    """
    made, at_exit, own = _Ahead(items, size), sys.is_finalizing, set[int]()
    pool = ThreadPoolExecutor(1, "ray_h5_transform", initializer=lambda: own.add(threading.get_ident()))
    found: tuple[Result, int] | None = None
    try:
        while True:
            if begins := made.begins():
                made.follow(pool.submit(made.fill))
            if found is not None:
                yield found[0]
            elif not begins and made.has_ended():
                return
            found = made.take()
    finally:
        made.is_closed = True
        if made.is_filling:
            stop.set()
        if not at_exit():
            # The garbage collector may run this in that thread, which ends when it returns to `fill`.
            is_own = threading.get_ident() in own
            pool.shutdown(wait=not is_own, cancel_futures=True)
            if not is_own:
                items.close()  # type: ignore[attr-defined]


class _Ahead(Generic[Result]):
    """Items that one thread takes and another one gets, bounded."""

    def __init__(self, items: Iterator[Result], size: Callable[[Result], int]) -> None:
        self._items, self._size = items, size
        self._waiting: deque[tuple[Result, int]] = deque()
        self._held, self._changed = 0, threading.Condition()
        self._filling: Future[bool] | None = None
        self.is_filling = self.is_closed = self._has_all = False

    def begins(self) -> bool:
        """Return whether `fill` is to be called, and note that it will be."""
        with self._changed:
            begins = not self.is_filling and not self._has_all and self._has_room()
            self.is_filling = self.is_filling or begins
        return begins

    def follow(self, filling: Future[bool]) -> None:
        """Let `take` and `has_ended` wait for a call of `fill`."""
        self._filling = filling
        filling.add_done_callback(self._end)

    def fill(self) -> bool:
        """Take items while there is room; return whether that were all. A thread that waits would block an exit."""
        while True:
            with self._changed:
                if self.is_closed or not self._has_room():
                    self.is_filling = False
                    return False
            try:
                item = next(self._items)
            except StopIteration:
                return True
            nbytes = self._size(item)
            with self._changed:
                self._held += nbytes
                self._waiting.append((item, nbytes))
                self._changed.notify()

    def take(self) -> tuple[Result, int] | None:
        """Return the next item, with its size; None when there will be none until `fill` is called again."""
        with self._changed:
            while not self._waiting and self.is_filling:
                self._changed.wait()
            if not self._waiting:
                return None
            found = self._waiting.popleft()
            self._held -= found[1]
        return found

    def has_ended(self) -> bool:
        """Return whether all items were taken; an error comes after the items that were taken before it."""
        assert self._filling is not None
        return self._filling.result()

    def _has_room(self) -> bool:
        return not self._waiting or (len(self._waiting) < AHEAD_ITEMS and self._held < AHEAD_BYTES)

    def _end(self, filling: Future[bool]) -> None:
        with self._changed:
            if filling.cancelled() or filling.exception() or filling.result():
                self._has_all, self.is_filling = True, False
            self._changed.notify()


def with_later(calls: Iterable[Work], distance: Callable[[], int]) -> Iterator[tuple[Work, Work | None]]:
    """Yield each call and the one that comes `distance` later: that is the first that no thread has begun."""
    calls, window = iter(calls), deque[Work]()
    while True:
        while len(window) <= distance() and (call := next(calls, None)) is not None:
            window.append(call)
        if not window:
            return
        call = window.popleft()
        yield call, window[distance() - 1] if len(window) >= distance() else None


class _Calls(Generic[Work, Result]):
    """Calls that threads do one after the other; who finds none left runs jobs of the last ones."""

    def __init__(self, work: Callable[[Work, Work | None], Result], stop: Stop, pool: Pool | None) -> None:
        self._work, self._stop, self.pool = work, stop, pool
        self.threads = set[int]()
        self.submitted = self._begun = 0
        self.all_submitted = False

    def enter(self) -> None:
        """Let the calling thread do calls."""
        self.threads.add(threading.get_ident())
        self._stop.enter()

    def do(self, number: int, call: Work, later: Work | None) -> Result:
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
    calls: Iterator[tuple[Work, Work | None]],
    work: Callable[[Work, Work | None], Result],
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
