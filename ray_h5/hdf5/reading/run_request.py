"""Runs of consecutive rows, which would take long to list row by row: whole datasets, or rows of varying length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.hdf5.reading.coalesce import RowRequest, RowRuns, request_of


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

    def select(self, keep: np.ndarray | slice) -> RunRequest:
        """Return the runs that a mask, a slice or an order keeps."""
        segments = None if self.segments is None else self.segments[keep]
        return RunRequest(self.firsts[keep], self.places[keep], self.counts[keep], segments)

    def joined(self) -> RunRequest:
        """Return the same rows with their first rows ascending, and runs joined that follow each other."""
        runs = self
        if np.any(self.firsts[1:] < self.firsts[:-1]):
            runs = self.select(np.argsort(self.firsts, kind="stable"))
        breaks = (runs.firsts + runs.counts)[:-1] != runs.firsts[1:]
        breaks |= (runs.places + runs.counts)[:-1] != runs.places[1:]
        if breaks.all() or not len(runs):
            return runs
        joined = RowRuns.split(breaks)
        ends = (runs.firsts + runs.counts)[joined.stop - 1]
        return RunRequest(runs.firsts[joined.start], runs.places[joined.start], ends - runs.firsts[joined.start])

    def pieces(self, chunk_rows: int) -> RunRequest:
        """Return the same rows as runs that are each in one chunk; their chunks ascend."""
        first, last = self.firsts // chunk_rows, (self.firsts + self.counts - 1) // chunk_rows
        touched = last - first + 1
        if (touched == 1).all():
            cut, chunks = self, first
        else:
            chunks, firsts = units_of(first, touched), np.repeat(self.firsts, touched)
            low = np.maximum(firsts, chunks * chunk_rows)
            high = np.minimum(firsts + np.repeat(self.counts, touched), (chunks + 1) * chunk_rows)
            cut = RunRequest(low, np.repeat(self.places, touched) + low - firsts, high - low)
        # Runs that overlap: the last chunk of one is after the first of the next.
        return cut if np.all(chunks[1:] >= chunks[:-1]) else cut.select(np.argsort(chunks, kind="stable"))

    # What `TouchedChunks` asks a request: its positions are pieces of runs, each in one chunk. -------------------

    def by_chunk(self, chunk_rows: int) -> tuple[np.ndarray, RowRuns]:
        """Return the chunk of each group of pieces that share one, and the groups."""
        chunks = self.firsts // chunk_rows
        groups = RowRuns.split(chunks[1:] != chunks[:-1])
        return chunks[groups.start], groups

    def whole_chunks(self, groups: RowRuns, chunk_rows: int) -> np.ndarray:
        """Return for each group of pieces whether it is all rows of a chunk, in order."""
        return (groups.stop - groups.start == 1) & (self.counts[groups.start] == chunk_rows)

    def places_of(self, at: np.ndarray) -> np.ndarray:
        """Return the places of the first rows of the pieces at positions `at`."""
        return self.places[at]

    def fill(self, out: np.ndarray, value: object) -> None:
        """Fill the places with one value."""
        for place, count in zip(self.places.tolist(), self.counts.tolist(), strict=True):
            out[place : place + count] = value


def units_of(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return consecutive numbers: ``counts[i]`` of them from ``starts[i]`` on, for each i."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
