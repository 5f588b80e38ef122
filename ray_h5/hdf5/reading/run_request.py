"""Runs of consecutive rows: whole datasets of a segmented column, which would take long to list row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.hdf5.reading.coalesce import RowRequest, request_of


@dataclass(frozen=True, slots=True, eq=False)
class RunRequest:
    """Runs of consecutive rows, each of which goes to consecutive places.

    Attributes
    ----------
    firsts, places, counts : numpy.ndarray
        int64: the first row of each run, where it goes, and its length, above 0.
    segments : numpy.ndarray, optional
        int64: the segment that each run is in, where the caller knows it.
    """

    firsts: np.ndarray
    places: np.ndarray
    counts: np.ndarray
    segments: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.firsts)

    def listed(self) -> RowRequest:
        """Return the same rows one by one."""
        return request_of(units_of(self.firsts, self.counts), units_of(self.places, self.counts)).listed()

    def select(self, keep: np.ndarray) -> RunRequest:
        """Return the runs that a mask keeps."""
        segments = None if self.segments is None else self.segments[keep]
        return RunRequest(self.firsts[keep], self.places[keep], self.counts[keep], segments)


def units_of(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return consecutive numbers: ``counts[i]`` of them from ``starts[i]`` on, for each i."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
