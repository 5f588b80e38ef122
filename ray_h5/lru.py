"""What this process keeps of what it found out: bounded, and safe to use from several threads and after a fork."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LRU(Generic[Value]):
    """The values used last, by their keys; for the life of the process.

    Parameters
    ----------
    most : int
        How many values are kept.
    most_bytes : int, optional
        How many bytes they may hold together.
    nbytes : callable, optional
        Returns the bytes that a value holds. What it returned when the value came is what counts.

    Attributes
    ----------
    total_bytes : int
        Bytes that the values hold.
    """

    def __init__(
        self, most: int, most_bytes: int | None = None, nbytes: Callable[[Value], int] = lambda _value: 0
    ) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._nbytes = nbytes
        self._start()
        os.register_at_fork(after_in_child=self._after_fork)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Value | None:
        """Return a value, if it is there."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def update(self, key: Hashable, change: Callable[[Value | None], Value]) -> Value:
        """Keep, and return, what `change` makes of the value that is there; meanwhile nobody else changes it."""
        with self._lock:
            known = self._kept[key][0] if key in self._kept else None
            value = change(known)
            if value is known:
                self._kept.move_to_end(key)
                return value
            self._remove(key)
            self._kept[key] = value, self._nbytes(value)
            self.total_bytes += self._kept[key][1]
            while len(self._kept) > self.most or (self.most_bytes is not None and self.total_bytes > self.most_bytes):
                self._remove(next(iter(self._kept)))
            return value

    def drop(self, key: Hashable, value: Value) -> None:
        """Forget a value, unless another one took its place."""
        with self._lock:
            if key in self._kept and self._kept[key][0] is value:
                self._remove(key)

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._kept.clear()
            self.total_bytes = 0

    def _remove(self, key: Hashable) -> None:
        if key in self._kept:
            self.total_bytes -= self._kept.pop(key)[1]

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.total_bytes = 0

    def _after_fork(self) -> None:
        # A lock that another thread held at the fork would never be free in the child.
        if self._lock.locked():
            self._start()  # that thread was in the midst of a change
        else:
            self._lock = threading.Lock()
