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
from ray_h5.torch_data.reading.row_cache import take_rows


class SampleCache:
    """A bounded cache of samples, least recently used first out.

    The samples lie in one array a column, so that a batch of them is gathered by one call a column.
    They are copied on their way in: a view would keep the whole batch that it was read with. In
    another process, after a fork or by pickling, the cache starts empty; each worker fills its own.

    Parameters
    ----------
    max_samples : int
        Most samples kept; 0 keeps none.

    Attributes
    ----------
    asked : int
        Samples that were asked for since the cache was made or cleared, whether it is on or not.
    hits, misses : int
        Samples of these that were found here, and that were not.
    """

    def __init__(self, max_samples: int) -> None:
        self.max_samples = max_samples
        self._begin()

    @classmethod
    def bounded(cls, cache_size: int, cache_bytes: int | None, sample_bytes: int) -> SampleCache:
        """Return a cache of as many samples as both bounds allow.

        Raises
        ------
        OptionError
            If a bound is not an integer of 0 or more.
        """
        most = as_integer("cache_size", cache_size, 0)
        if cache_bytes is not None:
            most = min(most, as_integer("cache_bytes", cache_bytes, 0) // max(sample_bytes, 1))
        return cls(most)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._columns: dict[str, np.ndarray] = {}
        self._pid = os.getpid()
        self.asked = self.hits = self.misses = 0

    @property
    def is_on(self) -> bool:
        """Whether anything can be kept."""
        return self.max_samples > 0

    @property
    def hit_rate(self) -> float:
        """Share of the look-ups so far that found their sample; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    def ask(self, count: int) -> None:
        """Count samples that are asked for."""
        self._own()
        with self._lock:
            self.asked += count

    def fetch(self, indices: np.ndarray, out: Mapping[str, np.ndarray]) -> np.ndarray:
        """Copy the samples that are here to their places in `out`; return the places of the others.

        Parameters
        ----------
        indices : numpy.ndarray
            int64: the samples wanted.
        out : mapping of str to numpy.ndarray
            The batch, an array for each column of the samples.
        """
        self._own()
        with self._lock:
            slots = np.array([*map(self._slots.get, indices.tolist(), repeat(-1))], np.int64)
            here, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
            self.hits += len(here)
            self.misses += len(missing)
            deque(map(self._slots.move_to_end, indices[here].tolist()), maxlen=0)
            for name, array in out.items() if len(here) else ():
                if len(missing):
                    array[here] = self._columns[name][slots[here]]
                else:
                    take_rows(self._columns[name], slots, array)
        return missing

    def add(self, indices: np.ndarray, out: Mapping[str, np.ndarray], places: np.ndarray) -> None:
        """Keep ``indices[places]``, whose values lie at `places` of `out`."""
        self._own()
        if not self.is_on or not len(places):
            return
        with self._lock:
            if not self._columns:
                self._make_room(out)
            places = places[max(0, len(places) - self.max_samples) :]
            slots = [self._slot_for(index) for index in indices[places].tolist()]
            for name, array in out.items() if slots else ():
                self._columns[name][slots] = array[places]

    def note(self, indices: np.ndarray) -> None:
        """Count and order samples as `fetch` and `add` do, where something else has their values in memory."""
        self._own()
        with self._lock:
            wanted = indices.tolist()
            hits = sum(map(self._slots.__contains__, wanted))
            self.hits += hits
            self.misses += len(wanted) - hits
            for index in wanted:
                self._slot_for(index)

    def clear(self) -> None:
        """Forget all samples, and what was counted."""
        self._begin()

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
        self._own()
        return len(self._slots)

    def __contains__(self, index: int) -> bool:
        self._own()
        return index in self._slots

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCache, (self.max_samples,)
