"""Tells a cache on a disk which rows of its files come next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ray_h5.hdf5.open_files import MAX_INDEX_BYTES
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.remote.row_places import places_of
from ray_h5.lru import LRU
from ray_h5.planning.epoch.coming import BlocksDue, ComingRows
from ray_h5.planning.epoch.order import Order
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.rows.view import FileReader
from ray_h5.storage.disk_cache import CachedGetter

_MAX_FILES = 1 << 16


class Following:
    """What a cache is told of one order. It is forgotten with this object.

    Parameters
    ----------
    plan : ReadPlan
        The rows.
    order : Order
        The order in which they are read.
    cached : CachedGetter
        One of the files, as the cache has it.
    """

    def __init__(self, plan: ReadPlan, order: Order, cached: CachedGetter) -> None:
        self.coming = ComingRows(order)
        self._plan = plan
        self._running = cached.running(_name(plan, order))
        self._told: LRU[BlocksDue] = LRU(_MAX_FILES, MAX_INDEX_BYTES, lambda due: due.nbytes)
        self._told_unread = False

    @classmethod
    def of(cls, plan: ReadPlan, order: Order) -> Following | None:
        """Return what tells the cache of an order; None if no bytes of these files stay on a disk."""
        remote = (file for file in range(len(plan.files)) if plan.files.is_remote(file))
        cached = next((_cached(plan, file) for file in remote), None)
        return None if cached is None else cls(plan, order, cached)

    def tell(self, files: Iterable[int], reader_of: Callable[[int], FileReader]) -> None:
        """Tell the cache of the rows of some files, which were just read, if it has no room for all of them."""
        for file in files:
            if file in self._told or not self._plan.files.is_remote(file):
                continue
            reader = reader_of(file)
            cached = reader.base.opened.byte_source.cached
            if cached is None or not cached.is_full:
                return
            self._tell_unread()
            low, high = self._selected(file)
            places = None
            if isinstance(reader, RowReader):
                rows = self._plan.row_ids(np.arange(low, high)) - self._plan.files.starts[file]
                places = places_of(reader.opened, [each.name for each in self._plan.of_files], rows)
            self._follow(cached, file, BlocksDue(self.coming, self._running, low, high, places))

    def _tell_unread(self) -> None:
        """Tell the cache which files have no selected rows."""
        if self._told_unread:
            return
        self._told_unread = True
        selection, starts = self._plan.selection, self._plan.files.starts
        if selection is None:
            return
        for file in np.flatnonzero(np.diff(np.searchsorted(selection, starts)) == 0).tolist():
            if self._plan.files.is_remote(file) and (cached := _cached(self._plan, file)) is not None:
                self._follow(cached, file, BlocksDue(self.coming, self._running, 0, 0, None))

    def _follow(self, cached: CachedGetter, file: int, due: BlocksDue) -> None:
        self._told.put(file, due)
        cached.follow(due)

    def _selected(self, file: int) -> tuple[int, int]:
        """Return the range of the selected rows of a file."""
        low, high = self._plan.files.starts[file : file + 2].tolist()
        if self._plan.selection is None:
            return low, high
        found: list[int] = np.searchsorted(self._plan.selection, [low, high]).tolist()
        return found[0], found[1]


def _cached(plan: ReadPlan, file: int) -> CachedGetter | None:
    source = plan.scope.storage.open(plan.files.path(file), plan.files.identity(file))
    return source.cached


def _name(plan: ReadPlan, order: Order) -> str:
    """Return a name that no other order has, nor another choice of rows or columns."""
    seed = order.shuffle and order.shuffle.seed
    parts = [replace(plan, order=order).hash, str(seed), *(each.name for each in plan.columns)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
