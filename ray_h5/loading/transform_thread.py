"""What one thread makes ahead for another one, bounded."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from ray_h5.storage.stop import Stop

Result = TypeVar("Result")

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
