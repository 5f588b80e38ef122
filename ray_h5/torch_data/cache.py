"""Samples kept in memory, the ones used least recently dropped first."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np

from ray_h5.options import as_integer
from ray_h5.torch_data.kept import take_rows
from ray_h5.torch_data.rows import RowSource


class SampleCache:
    """Reads samples, and keeps a bounded number of them, least recently used first out.

    The samples lie in one array a column, so that a batch of them is gathered by one call a column.
    They are copied on their way in: a view would keep the whole batch that it was read with. Where
    the source keeps all rows anyway, there is no second copy: what is counted then are those.

    In another process, after a fork or by pickling, the cache starts empty; each worker fills its own.

    Parameters
    ----------
    source : RowSource
        What reads samples that are not here.
    max_samples : int
        Most samples kept here; 0 keeps none.

    Attributes
    ----------
    asked : int
        Samples that were asked for since the cache was made or cleared.
    hits : int
        Samples of these that were in memory.
    """

    def __init__(self, source: RowSource, max_samples: int) -> None:
        self.source = source
        self.max_samples = max_samples
        self._begin()

    @classmethod
    def bounded(cls, source: RowSource, cache_size: int, cache_bytes: int | None) -> SampleCache:
        """Return a cache of as many samples as both bounds allow.

        Raises
        ------
        OptionError
            If a bound is not an integer of 0 or more.
        """
        most = as_integer("cache_size", cache_size, 0)
        if cache_bytes is not None:
            most = min(most, as_integer("cache_bytes", cache_bytes, 0) // max(source.plan.row_bytes, 1))
        return cls(source, most)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._columns: dict[str, np.ndarray] = {}
        self._pid = os.getpid()
        self.asked = self.hits = 0

    @property
    def capacity(self) -> int:
        """Samples that can be in memory at once."""
        return self.source.num_rows if self.source.keeps_all else self.max_samples

    @property
    def nbytes(self) -> int:
        """Bytes of the samples here, and of all that the source keeps."""
        self._own()
        return len(self._slots) * self.source.plan.row_bytes + self.source.nbytes

    @property
    def hit_rate(self) -> float:
        """Share of the samples asked for so far that were in memory; 0 before the first."""
        return self.hits / max(1, self.asked)

    def read_into(self, out: Mapping[str, np.ndarray], indices: np.ndarray) -> None:
        """Fill arrays with samples, each from memory if it is there.

        Parameters
        ----------
        out : mapping of str to numpy.ndarray
            The batch, an array for each column of the samples.
        indices : numpy.ndarray
            int64: the samples wanted.
        """
        self._own()
        if self.source.keeps_all or not self.max_samples:
            self._count(len(indices), self.source.count_kept(indices))
            self.source.read_into(out, indices)
            return
        missing = self._fetch(indices, out)
        if len(missing):
            self.source.read_into(out, indices[missing], missing)
            self._add(indices, out, missing)

    def clear(self) -> None:
        """Forget all samples, and what was counted."""
        self._begin()

    def _count(self, asked: int, hits: int) -> None:
        with self._lock:
            self.asked += asked
            self.hits += hits

    def _fetch(self, indices: np.ndarray, out: Mapping[str, np.ndarray]) -> np.ndarray:
        """Copy the samples that are here to their places in `out`; return the places of the others."""
        with self._lock:
            slots = np.array([*map(self._slots.get, indices.tolist(), repeat(-1))], np.int64)
            here, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
            self.asked += len(indices)
            self.hits += len(here)
            deque(map(self._slots.move_to_end, indices[here].tolist()), maxlen=0)
            for name, array in out.items() if len(here) else ():
                if len(missing):
                    array[here] = self._columns[name][slots[here]]
                else:
                    take_rows(self._columns[name], slots, array)
        return missing

    def _add(self, indices: np.ndarray, out: Mapping[str, np.ndarray], places: np.ndarray) -> None:
        """Keep ``indices[places]``, whose values lie at `places` of `out`."""
        with self._lock:
            if not self._columns:
                self._make_room(out)
            places = places[max(0, len(places) - self.max_samples) :]
            slots = [self._slot_for(index) for index in indices[places].tolist()]
            for name, array in out.items():
                self._columns[name][slots] = array[places]

    def _make_room(self, like: Mapping[str, np.ndarray]) -> None:
        # A page of memory is taken when it is first written to: an unused slot costs nothing.
        self._columns = {
            name: np.empty((self.max_samples, *array.shape[1:]), array.dtype) for name, array in like.items()
        }

    def _slot_for(self, index: int) -> int:
        slots = self._slots
        slot = slots.get(index)
        if slot is not None:
            slots.move_to_end(index)
            return slot
        slot = len(slots)
        if slot >= self.max_samples:
            _, slot = slots.popitem(last=False)
        slots[index] = slot
        return slot

    def _own(self) -> None:
        # After a fork another thread of the parent may hold the lock for ever, and writing to the
        # samples would copy their pages.
        if self._pid != os.getpid():
            self._begin()

    def __len__(self) -> int:
        """Return how many samples are in memory."""
        self._own()
        everything = np.arange(self.source.num_rows if self.source.keeps_all else 0)
        return len(self._slots) + self.source.count_kept(everything)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCache, (self.source, self.max_samples)
