"""When the rows of an epoch come next: what a full cache needs to know to decide what stays there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from ray_h5.hdf5.remote.row_places import RowPlaces
from ray_h5.planning.epoch.order import Order
from ray_h5.storage.disk_cache import BLOCK_BYTES, LATER, NEVER, RunningOrder

_MAX_ROWS = 4 << 20
"""Of larger epochs only the rows are known, not when they come. For each row of this many, 24 bytes are held."""

_ONCE = 1.0
"""When rows come of which only that is known: some time in this epoch, and in the next."""


_PATIENCE = 4
"""How many times as long as a row others have to wait that make room for it. With 1, twice as much is written, for 1 to
3 requests less in a hundred (simulated)."""


class ComingRows:
    """When each selected row comes next, in this epoch and the next one. Any thread may use it.

    Times are in epochs, from the beginning of the running one.

    Parameters
    ----------
    order : Order
        The order of an epoch.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        shuffle = order.shuffle
        # Otherwise the rows of a chunk come together, and each once.
        is_worth_it = order.may_repeat or (shuffle is not None and shuffle.unit == "rows")
        self._knows_when = is_worth_it and 0 < max(order.epoch_rows, order.num_rows) <= _MAX_ROWS
        self._lock = threading.Lock()
        self._epoch = self._begun = self._ended = 0
        self._at_once = 1
        self._next: tuple[_Next, _Next] | None = None

    @property
    def progress(self) -> object:
        """What is equal as long as all times are equal."""
        return (self._epoch, self._begun, self._ended) if self._knows_when else None

    def begin(self, epoch: int, done: int) -> None:
        """Begin an epoch, of which some rows are done already."""
        with self._lock:
            self._epoch, self._begun, self._ended = epoch, done, done
            self._next = None

    def advance(self, begun: int, ended: int) -> None:
        """Take how many rows of the epoch have been asked for, and how many of the first of them were read."""
        with self._lock:
            self._at_once = max(self._at_once, begun - self._begun)
            self._begun, self._ended = begun, ended

    def due(self, low: int, high: int) -> np.ndarray:
        """Return when the selected rows of a range come next; what is being read now counts."""
        if not self._knows_when:
            return np.full(high - low, _ONCE)
        with self._lock:
            due = self._looked_ahead()[0].after(self._ended)[low:high] / self.order.epoch_rows
        return np.where(due < LATER, due, LATER)

    def room(self, low: int, high: int) -> np.ndarray:
        """Return when other rows have to come, or later, to make room for these, once what is being read now was read.

        It pays for rows that come again in this epoch, if others wait for several times as long. Otherwise they give
        it only if they come neither in this epoch nor in the next.
        """
        if not self._knows_when:
            return np.full(high - low, LATER)
        rows = self.order.epoch_rows
        with self._lock:
            begun, at_once = min(self._begun, rows), self._at_once
            due = self._looked_ahead()[1].after(begun)[low:high].astype(np.int64)
        calls = (due - begun) // at_once + 1  # what is asked for at once comes at the same time
        found = np.where(due < rows, (begun + _PATIENCE * calls * at_once) / rows, LATER)
        found[due >= LATER * rows] = NEVER
        return np.minimum(found, LATER, where=found < NEVER, out=found)

    def _looked_ahead(self) -> tuple[_Next, _Next]:
        """Return where each row comes next, after the rows that were read, and after those that were asked for."""
        if self._next is None:
            rows = self.order.epoch_rows
            positions = np.arange(rows, dtype=np.int64)
            epochs = [self.order.selected_indices(positions, self._epoch + more) for more in range(2)]
            sequence = np.concatenate(epochs).astype(np.int32)
            by_row = np.argsort(sequence, kind="stable")
            again = np.flatnonzero(np.diff(sequence[by_row]) == 0)
            following = np.full(2 * rows, 2 * rows, np.int32)
            following[by_row[again]] = by_row[again + 1]
            self._next = (
                _Next(sequence, following, self.order.num_rows),
                _Next(sequence, following, self.order.num_rows),
            )
        return self._next


class _Next:
    """The first position of each row after a position that rises."""

    def __init__(self, sequence: np.ndarray, following: np.ndarray, num_rows: int) -> None:
        self._sequence, self._following = sequence, following
        self._position = 0
        self._first = np.full(num_rows, len(sequence), np.int32)
        self._first[sequence[::-1]] = np.arange(len(sequence), dtype=np.int32)[::-1]

    def after(self, position: int) -> np.ndarray:
        """Return the first position of each row, from `position` on."""
        passed = slice(self._position, min(position, len(self._sequence) // 2))
        # Of a row that came several times, the last time counts.
        self._first[self._sequence[passed]] = self._following[passed]
        self._position = max(self._position, passed.stop)
        return self._first


class BlocksDue:
    """When the blocks of a remote file are needed next, by one order: a `Due` of the cache.

    Parameters
    ----------
    coming : ComingRows
        When rows come.
    running : RunningOrder
        What says that the order is read.
    low, high : int
        The selected rows of the file.
    places : RowPlaces, optional
        Where these are; None if that is not known: then all blocks are needed.
    """

    def __init__(
        self, coming: ComingRows, running: RunningOrder, low: int, high: int, places: RowPlaces | None
    ) -> None:
        self._coming, self._running, self._low, self._high = coming, running, low, high
        self._places = places
        if places is None:
            return
        firsts = places.offsets // BLOCK_BYTES
        by_place = np.argsort(firsts, kind="stable")
        self._firsts = firsts[by_place]
        self._ends = -(-(places.offsets + places.sizes) // BLOCK_BYTES)[by_place]
        self._runs = np.stack([places.starts, places.stops], axis=1)[by_place]
        self._most_blocks = int((self._ends - self._firsts).max(initial=1))

    @property
    def progress(self) -> object:
        return self._coming.progress

    @property
    def nbytes(self) -> int:
        return 0 if self._places is None else 32 * len(self._firsts)

    def blocks(self, first: int, end: int) -> np.ndarray:
        """Return when some blocks are needed."""
        if self._places is None:
            return np.full(end - first, _ONCE if self._high > self._low else NEVER)
        return self._least(self._coming.due, first, end, slice(first - self._most_blocks, end), partial=True)

    def room(self, first: int, end: int) -> np.ndarray:
        """Return when others have to be needed, or later, to make room for rows that lie in some blocks as a whole."""
        if self._places is None:
            return np.full(end - first, LATER if self._high > self._low else NEVER)
        return self._least(self._coming.room, first, end, slice(first, end))

    def _least(
        self, of: Callable[[int, int], np.ndarray], first: int, end: int, begin: slice, *, partial: bool = False
    ) -> np.ndarray:
        """Return for each of some blocks the least number of its rows."""
        found = np.full(end - first, NEVER)
        here = slice(*np.searchsorted(self._firsts, [begin.start, begin.stop]).tolist())
        firsts, ends, runs = self._firsts[here], self._ends[here], self._runs[here]
        taken = (ends > first) if partial else (ends <= end)
        firsts, ends, runs = firsts[taken], ends[taken], runs[taken]
        if not len(firsts):
            return found
        low, high = int(runs[:, 0].min()), int(runs[:, 1].max())
        # The last entry lets a range end with the rows.
        numbers = np.append(of(self._low + low, self._low + high), NEVER)
        least = np.minimum.reduceat(numbers, (runs - low).reshape(-1))[::2]
        firsts, ends = np.maximum(firsts, first) - first, np.minimum(ends, end) - first
        counts = ends - firsts
        blocks = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        np.minimum.at(found, blocks, np.repeat(least, counts))
        return found
