"""A bounded cache that drops the least recently used values; thread-safe and fork-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ray_h5.fork import PerProcess

__all__ = ["LRU"]

Value = TypeVar("Value")


class LRU(Generic[Value]):
    """A mapping that keeps the most recently used values. After a fork, the cache of the child is empty.

    Parameters
    ----------
    max_items : int
        The largest number of values.
    max_bytes : int, optional
        The largest number of bytes of all values.
    nbytes : callable, optional
        Returns the bytes of a value. It is called when the value is stored.
    """

    def __init__(
        self, max_items: int, max_bytes: int | None = None, nbytes: Callable[[Value], int] = lambda _value: 0
    ) -> None:
        self.max_items, self.max_bytes = max_items, max_bytes
        self._nbytes = nbytes
        self._state: PerProcess[_State[Value]] = PerProcess(_State)

    def __len__(self) -> int:
        return len(self._state.value.items)

    @property
    def total_bytes(self) -> int:
        """Bytes of all values."""
        return self._state.value.total_bytes

    def get(self, key: Hashable) -> Value | None:
        """Return the value of a key; None if there is none."""
        state = self._state.value
        with state.lock:
            if key not in state.items:
                return None
            state.items.move_to_end(key)
            return state.items[key][0]

    def values(self) -> list[Value]:
        """Return all values, the least recently used first."""
        state = self._state.value
        with state.lock:
            return [value for value, _ in state.items.values()]

    def put(self, key: Hashable, value: Value) -> None:
        """Store a value."""
        self.update(key, lambda _: value)

    def update(self, key: Hashable, change: Callable[[Value | None], Value]) -> Value:
        """Replace the value of a key by what `change` returns for it, and return that. Other threads wait."""
        state = self._state.value
        with state.lock:
            known = state.items[key][0] if key in state.items else None
            value = change(known)
            if value is known:
                state.items.move_to_end(key)
                return value
            state.remove(key)
            state.items[key] = value, self._nbytes(value)
            state.total_bytes += state.items[key][1]
            while len(state.items) > self.max_items or (
                self.max_bytes is not None and state.total_bytes > self.max_bytes
            ):
                state.remove(next(iter(state.items)))
            return value

    def drop(self, key: Hashable, value: Value) -> None:
        """Remove a value, unless the key has another one now."""
        state = self._state.value
        with state.lock:
            if key in state.items and state.items[key][0] is value:
                state.remove(key)

    def clear(self) -> None:
        """Remove all values."""
        self._state.renew()


class _State(Generic[Value]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.total_bytes = 0

    def remove(self, key: Hashable) -> None:
        if key in self.items:
            self.total_bytes -= self.items.pop(key)[1]
