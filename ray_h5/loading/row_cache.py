"""Decoded rows that stay in memory. They take the place of the chunk cache that people give libhdf5."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ray_h5.hdf5.checks.changed_files import check_identity
from ray_h5.storage.byte_source import Identity, only_ctime_differs
from ray_h5.storage.storage_of_path import Storage, storage_of

_FIRST_SLOTS = 64
"""Rows that a cache of the rows used last has memory for at first."""

Read = Callable[[Mapping[Any, np.ndarray], np.ndarray, np.ndarray], None]
"""Reads some rows into ``out[column][places]``; called with (out, rows, places)."""


class RowCache:
    """Rows of some columns. Each row is held from the time when it was first read.

    Rows are copied in and out: nobody who gets one can change what is held.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        Row shape and dtype of each column.
    num_rows : int
        How many rows there are.

    Attributes
    ----------
    columns : dict of numpy.ndarray
        An array for all rows of each column, in the order in which they were held first.
    """

    def __init__(self, specs: Mapping[Any, tuple[tuple[int, ...], np.dtype]], num_rows: int) -> None:
        # A page of memory is allocated when it is first written to: rows that are never read cost nothing.
        self.columns = {name: np.empty((num_rows, *shape), dtype) for name, (shape, dtype) in specs.items()}
        self._is_held = np.zeros(num_rows, bool)
        # In the order in which rows come, so that shuffled rows fill one page after the other. Large pages are cleared
        # when they are first written to: 64 shuffled rows would take 64 of 2 MiB.
        self._slot_after = np.zeros(num_rows, np.int32 if num_rows < 2**31 else np.int64)
        self._num_slots, self._lock = 0, threading.Lock()

    def holds(self, rows: np.ndarray) -> np.ndarray:
        """Return, as bools, which of these rows are held."""
        return self._is_held[rows]

    def held_rows(self) -> np.ndarray:
        """Return the rows that are held, as int64."""
        return np.flatnonzero(self._is_held)

    def read_through(
        self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None, read: Read
    ) -> None:
        """Fill ``out[column][places]`` from memory; call `read` for the rows that are not held, and hold them.

        Parameters
        ----------
        out : mapping of numpy.ndarray
            Arrays of these columns.
        rows : numpy.ndarray
            int64.
        places : numpy.ndarray, optional
            int64; by default row i goes to place i.
        read : callable
            Reads the rows that are not held.
        """
        missing = ~self._take(out, rows, places)
        if not missing.any():
            return
        targets = (np.arange(len(rows)) if places is None else places)[missing]
        read(out, rows[missing], targets)
        if places is None and missing.all():  # without a copy of the batch
            self.add(rows, {name: out[name][: len(rows)] for name in self.columns})
        else:
            self.add(rows[missing], {name: out[name][targets] for name in self.columns})

    def add(self, rows: np.ndarray, values: Mapping[Any, np.ndarray]) -> None:
        """Hold rows. Rows that are held already are overwritten with the same values."""
        slots = self._slots_for(rows)
        for name, array in self.columns.items():
            array[slots] = _owned_rows(values[name])
        self._is_held[rows] = True

    def _slots_for(self, rows: np.ndarray) -> np.ndarray | slice:
        """Return where rows are, or will be, in the arrays."""
        with self._lock:
            new = np.sort(rows[self._slot_after[rows] == 0])
            is_first = np.append(True, new[1:] != new[:-1])[: len(new)]
            first, count = self._num_slots, int(np.count_nonzero(is_first))
            self._num_slots += count
            if count == len(rows):
                self._slot_after[rows] = np.arange(first + 1, first + count + 1)
                return slice(first, first + count)
            self._slot_after[new[is_first]] = np.arange(first + 1, first + count + 1)
            return self._slot_after[rows] - 1

    def _take(self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None) -> np.ndarray:
        """Copy the rows that are held to their places in `out`; return which these are, as bools."""
        is_held = self._is_held[rows]
        # Of rows that are not held, any slot.
        self._copy(out, self._slot_after[rows].astype(np.int64) - 1, is_held, places)
        return is_held

    def _copy(
        self, out: Mapping[Any, np.ndarray], slots: np.ndarray, is_held: np.ndarray, places: np.ndarray | None
    ) -> None:
        if not is_held.any():
            return
        whole = places is None and is_held.all()
        for name, array in self.columns.items():
            if whole and len(slots) == len(out[name]) and not array.dtype.hasobject:
                # Not "raise", the default: NumPy would fill a copy of `out` first.
                np.take(array, slots, axis=0, out=out[name], mode="clip")
            else:
                targets = np.arange(len(slots)) if places is None else places
                out[name][targets[is_held]] = _owned_rows(array[slots[is_held]])


class RecentRowCache(RowCache):
    """The rows of some columns that were used last; thread-safe.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        As of `RowCache`.
    max_rows : int
        How many rows are held. The least recently used one is dropped for a new one.
    """

    def __init__(self, specs: Mapping[Any, tuple[tuple[int, ...], np.dtype]], max_rows: int) -> None:
        super().__init__(specs, min(max_rows, _FIRST_SLOTS))
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._slots: OrderedDict[int, int] = OrderedDict()
        """Where in the arrays each row is, the least recently used one first."""

    def holds(self, rows: np.ndarray) -> np.ndarray:
        """Return, as bools, which of these rows are held. This does not count as a use."""
        return np.array([row in self._slots for row in rows.tolist()], bool)

    def held_rows(self) -> np.ndarray:
        """Return the rows that are held, as int64."""
        with self._lock:
            return np.fromiter(self._slots, np.int64, len(self._slots))

    def add(self, rows: np.ndarray, values: Mapping[Any, np.ndarray]) -> None:
        """Hold rows: of more than there is place for, the last ones."""
        rows = rows[-self._max_rows :]
        with self._lock:
            slots = [self._slot(row) for row in rows.tolist()]
            for name, array in self.columns.items():
                array[slots] = _owned_rows(values[name][-self._max_rows :])

    def _slot(self, row: int) -> int:
        """Return the place of a row that becomes the one used last, made free for it if it has none."""
        slot = self._slots.pop(row, None)
        if slot is None and len(self._slots) == self._max_rows:
            _, slot = self._slots.popitem(last=False)
        if slot is None:
            slot = len(self._slots)
            self._grow(slot + 1)
        self._slots[row] = slot
        return slot

    def _grow(self, least: int) -> None:
        # Memory for all rows at once may be more than the machine has, where few rows are ever read.
        for name, array in self.columns.items():
            if len(array) < least:
                grown = np.empty((min(2 * len(array), self._max_rows), *array.shape[1:]), array.dtype)
                grown[: len(array)] = array
                self.columns[name] = grown

    def _take(self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None) -> np.ndarray:
        with self._lock:
            slots = np.array([self._slots.get(row, -1) for row in rows.tolist()], np.int64)
            is_held = slots >= 0
            for row in rows[is_held].tolist():
                self._slots.move_to_end(row)
            self._copy(out, slots, is_held, places)
        return is_held


def _owned_rows(values: np.ndarray) -> np.ndarray:
    """Return values that share no memory with what their rows hold, such as arrays of varying length."""
    if not values.dtype.hasobject:
        return values
    if values.dtype != object:
        return copy.deepcopy(values)
    found = np.empty_like(values)
    for place, value in np.ndenumerate(values):
        found[place] = value if type(value) is str else owned(value)
    return found


def owned(value: Any) -> Any:
    """Return the value of one row with memory of its own."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    from ray_h5.columns.varying.sparse_rows import SparseRow

    return value.copy() if isinstance(value, SparseRow) else copy.deepcopy(value)


def check_file(path: str, expected: Identity, storage: Storage) -> Identity:
    """Raise a StaleIndexError if a file changed whose rows are held; return its state, of which the ctime may differ.

    A file that cannot be looked at raises no error here, but where it is opened, if it has to be.
    """
    try:
        found = storage_of(path, storage).seen(path, expected)
    except OSError:
        return expected
    if found is not None and found != expected:
        check_identity(path, expected, found)
    return found or expected


def is_unchanged(path: str, expected: Identity | None, storage: Storage) -> bool:
    """Return whether a file that columns come from is as it was; None stands for a file that did not exist.

    A file that cannot be looked at raises no error here, but where it is opened, if it has to be.
    """
    with contextlib.suppress(OSError):
        found = storage_of(path, storage).seen(path, expected)
        return found == expected or only_ctime_differs(expected, found)
    return True


def columns_that_fit(row_bytes: Mapping[Any, int], num_rows: int, max_bytes: int) -> list[Any]:
    """Return the columns with the smallest rows, all that fit together with all their rows into `max_bytes`."""
    found, left = [], max_bytes
    for name in sorted(row_bytes, key=lambda each: row_bytes[each]):
        left -= row_bytes[name] * num_rows
        if left < 0:
            break
        found.append(name)
    return found
