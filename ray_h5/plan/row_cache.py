"""Decoded rows that stay in memory. They take the place of the chunk cache that people give libhdf5."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ray_h5.columns.sparse_rows import SparseRow

TABLE_BYTES = 4
"""Bytes that the table of the rows takes for each row, whether it is held or not."""

_FIRST_ROWS = 64
"""Rows of a column with a bound of its own for which there is memory at first."""

Read = Callable[[Mapping[Any, np.ndarray], np.ndarray, np.ndarray], None]
"""Reads some rows into ``out[column][places]``; called with (out, rows, places)."""


class RowCache:
    """The rows that were read first, of each column as many as its bound allows; thread-safe.

    Rows are copied in and out: nobody who gets one can change what is held.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        Row shape and dtype of each column.
    num_rows : int
        How many rows there are that may be held: the first ones. The table of them takes `TABLE_BYTES` for each.
    bounds : mapping of int, optional
        How many rows of a column are held, where that is not all.

    Attributes
    ----------
    columns : dict of numpy.ndarray
        The rows of each column that are held, in the order in which they were held first.
    hits, misses : int
        Rows that were asked for: those that were held with all columns asked for, and the others.
    """

    def __init__(
        self,
        specs: Mapping[Any, tuple[tuple[int, ...], np.dtype]],
        num_rows: int,
        bounds: Mapping[Any, int] | None = None,
    ) -> None:
        grows = {name: min(bound, num_rows) for name, bound in (bounds or {}).items()}
        self._bounds = {name: grows.get(name, num_rows) for name in specs}
        # A page of memory is allocated when it is first written to: rows that are never read cost nothing. Memory for
        # rows of any size may all the same be more than the machine has.
        self.columns = {
            name: np.empty((min(grows[name], _FIRST_ROWS) if name in grows else num_rows, *shape), dtype)
            for name, (shape, dtype) in specs.items()
        }
        # Where each row is held, counted from 1; negative while it is copied there; 0 if it is nowhere. In the order in
        # which rows come, so that shuffled rows fill one page after the other. Large pages are cleared when they are
        # first written to: 64 shuffled rows would take 64 of 2 MiB.
        self._slot_after = np.zeros(num_rows if specs else 0, np.int32 if num_rows < 2**31 else np.int64)
        self._num_slots, self._lock = 0, threading.Lock()
        self.hits = self.misses = 0

    def _slots_of(self, rows: np.ndarray) -> np.ndarray:
        """Return where rows are held; negative for those that are not."""
        inside = rows < len(self._slot_after)
        if inside.all():
            return self._slot_after[rows].astype(np.int64) - 1
        slots = np.full(len(rows), -1)
        slots[inside] = self._slot_after[rows[inside]] - 1
        return slots

    def holds(self, rows: np.ndarray, names: Sequence[Any]) -> np.ndarray:
        """Return, as bools, which of these rows are held with all these columns."""
        slots = self._slots_of(rows)
        return (slots >= 0) & (slots < min((self._bounds.get(name, 0) for name in names), default=0))

    def num_held(self, names: Sequence[Any]) -> int:
        """Return how many rows are held with all these columns."""
        return int(np.count_nonzero(self.holds(np.flatnonzero(self._slot_after), names)))

    def keeps_all(self, names: Sequence[Any], num_rows: int) -> bool:
        """Return whether every row of these columns stays once it was read."""
        return all(self._bounds.get(name, 0) == num_rows for name in names)

    def read_through(self, out: Mapping[Any, np.ndarray], rows: np.ndarray, read: Read) -> None:
        """Fill arrays from memory, row i at place i; call `read` for what is not held, and hold it.

        Parameters
        ----------
        out : mapping of numpy.ndarray
            Arrays of these columns, and of others, which are read.
        rows : numpy.ndarray
            int64.
        read : callable
            Reads the rows that are not held.
        """
        places = np.arange(len(rows))
        by_bound: dict[int, list[Any]] = {}
        for name in out:
            by_bound.setdefault(self._bounds.get(name, 0), []).append(name)
        if not self.columns:
            with self._lock:
                self.misses += len(rows)
            read(out, rows, places)
            return
        slots = self._slots_of(rows)
        is_held = slots >= 0
        hits = int(np.count_nonzero(is_held & (slots < min(by_bound, default=0))))
        to_read: list[tuple[np.ndarray, list[Any]]] = []
        for bound, names in by_bound.items():
            here = is_held & (slots < bound)
            if here.any():
                self._copy({name: out[name] for name in names}, slots, here)
            if to_read and np.array_equal(here, to_read[-1][0]):
                to_read[-1][1].extend(names)  # all columns are read by one call
            else:
                to_read.append((here, names))
        for here, names in to_read:
            if not here.all():
                missing = ~here
                read({name: out[name] for name in names}, rows[missing], places[missing])
        may_be_held = ~is_held & (rows < len(self._slot_after))
        if may_be_held.any():
            self._add(rows[may_be_held], out, places[may_be_held])
        with self._lock:
            self.hits += hits
            self.misses += len(rows) - hits

    def _add(self, rows: np.ndarray, out: Mapping[Any, np.ndarray], places: np.ndarray) -> None:
        """Hold rows; those that another thread holds meanwhile are overwritten with the same values."""
        with self._lock:
            table = self._slot_after
            new = rows[table[rows] == 0]
            numbers = -np.arange(1, len(new) + 1)
            table[new[::-1]] = numbers[::-1]
            new = new[table[new] == numbers]  # each row once
            table[new] = -np.arange(self._num_slots + 1, self._num_slots + len(new) + 1)
            self._num_slots += len(new)
            after = np.abs(table[rows])
            slots = after.astype(np.int64) - 1  # where rows are in the arrays
            for name, bound in self._bounds.items():
                fits, least, held = slots < bound, min(self._num_slots, bound), self.columns[name]
                if len(held) < least:
                    grown = np.empty((min(max(2 * len(held), least), bound), *held.shape[1:]), held.dtype)
                    grown[: len(held)] = held
                    self.columns[name] = grown
                self.columns[name][slots[fits]] = _owned_rows(out[name][places[fits]])
            table[rows] = after

    def _copy(self, out: Mapping[Any, np.ndarray], slots: np.ndarray, here: np.ndarray) -> None:
        """Copy the rows that are held to their places."""
        whole = here.all()
        for name, array in out.items():
            held = self.columns[name]
            if whole and not held.dtype.hasobject:
                # Not "raise", the default: NumPy would fill a copy of `out` first.
                np.take(held, slots, axis=0, out=array, mode="clip")
            else:
                array[here] = _owned_rows(held[slots[here]])


def _owned_rows(values: np.ndarray) -> np.ndarray:
    """Return values that share no memory with what their rows hold, such as arrays of varying length."""
    if not values.dtype.hasobject:
        return values
    if values.dtype != object:
        return copy.deepcopy(values)
    copied = np.empty_like(values)
    for place, value in np.ndenumerate(values):
        copied[place] = value if type(value) is str else owned(value)
    return copied


def owned(value: Any) -> Any:
    """Return the value of one row with memory of its own."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    return value.copy() if isinstance(value, SparseRow) else copy.deepcopy(value)
