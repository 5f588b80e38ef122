"""A bounded cache that drops the least recently used values; thread-safe and fork-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from ray_h5.per_process import PerProcess

Value = TypeVar("Value")


class LRU(Generic[Value]):
    """A mapping that keeps the most recently used values. After a fork, the cache of the child is empty.

    Parameters
    ----------
    max_items : int
        The largest number of values. It may be changed; the next `put` applies it.
    max_bytes : int, optional
        The largest number of bytes of all values. It may be changed, too.
    nbytes : callable, optional
        Returns the bytes of a value. It is called each time the value is stored.
    keeps_last : bool
        Whether the value that was stored last stays even if it alone holds more than `max_bytes`.
    """

    def __init__(
        self,
        max_items: int,
        max_bytes: int | None = None,
        nbytes: Callable[[Value], int] = lambda _value: 0,
        *,
        keeps_last: bool = False,
    ) -> None:
        self.max_items, self.max_bytes = max_items, max_bytes
        self._nbytes = nbytes
        self._least = int(keeps_last)
        self._state: PerProcess[_State[Value]] = PerProcess(_State)

    def __len__(self) -> int:
        return len(self._state.value.items)

    def __contains__(self, key: Hashable) -> bool:
        """Return whether a key has a value. This does not count as a use."""
        return key in self._state.value.items

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
            state.remove(key)
            nbytes = self._nbytes(value)
            state.items[key] = value, nbytes
            state.total_bytes += nbytes
            self._bound(state)
            return value

    def measure(self, key: Hashable, value: Value, more: int | None = None) -> None:
        """Count the bytes of a value again, or `more` bytes of it, unless the key has another one by now."""
        state = self._state.value
        with state.lock:
            known = state.items.get(key)
            if known is not None and known[0] is value:
                nbytes = self._nbytes(value) if more is None else known[1] + more
                state.items[key] = value, nbytes
                state.total_bytes += nbytes - known[1]
                self._bound(state)

    def _bound(self, state: _State[Value]) -> None:
        while len(state.items) > self.max_items:
            state.remove(next(iter(state.items)))
        while self.max_bytes is not None and state.total_bytes > self.max_bytes and len(state.items) > self._least:
            state.remove(next(iter(state.items)))

    def trim(self) -> None:
        """Apply the bounds now."""
        state = self._state.value
        with state.lock:
            self._bound(state)

    def drop(self, key: Hashable, value: Value) -> None:
        """Remove a value, unless the key has another one now."""
        state = self._state.value
        with state.lock:
            if key in state.items and state.items[key][0] is value:
                state.remove(key)

    def remove(self, which: Callable[[Any, Value], bool]) -> list[Value]:
        """Remove, and return, the values of which a function says so; it is called with each key and its value."""
        state = self._state.value
        with state.lock:
            gone = [(key, value) for key, (value, _) in state.items.items() if which(key, value)]
            for key, _ in gone:
                state.remove(key)
        return [value for _, value in gone]

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


_ASKED: LRU[frozenset[str]] = LRU(10_000)


def first_time(*key: Hashable) -> bool:
    """Return whether this process asks for the first time with a key, of the last ten thousand: to say it once."""
    return bool(not_asked([""], *key))


def not_asked(names: Sequence[str], *key: Hashable) -> list[str]:
    """Return those of some names that this process asks for the first time with a key, of the last ten thousand."""
    new: list[str] = []

    def with_new(known: frozenset[str] | None) -> frozenset[str]:
        new.extend(name for name in names if known is None or name not in known)
        return frozenset(names).union(known or ())

    _ASKED.update(hash(key), with_new)
    return new
