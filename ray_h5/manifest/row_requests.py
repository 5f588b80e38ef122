"""Which rows are asked for, and where they go: listed, or as runs, which would be long as lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

SPAN_BYTES = 1 << 20
"""About this much is read with one call; a larger chunk or row is read whole."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """Rows of one file, ascending, and the place of each in the output; see `RowRange` for consecutive rows.

    Attributes
    ----------
    rows : numpy.ndarray
        int64, ascending, repeats allowed.
    places : numpy.ndarray
        int64: index along the output's first axis.
    """

    rows: np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first row, and the last one plus one."""
        return int(self.rows[0]), int(self.rows[-1]) + 1

    def listed(self) -> RowRequest:
        return self

    def packed(self) -> Request:
        """Return the same rows as a `RowRange` if they are one."""
        if _rises_by_one(self.rows) and _rises_by_one(self.places):
            return RowRange(int(self.rows[0]), int(self.places[0]), len(self.rows))
        return self

    def select(self, keep: np.ndarray | slice) -> RowRequest:
        """Return the part of the request that a mask or a slice keeps."""
        return RowRequest(self.rows[keep], self.places[keep])


@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive rows that go to consecutive places.

    A read of a whole column is one. Listing the numbers of its rows would take longer than reading small values.

    Attributes
    ----------
    first, place, count : int
        The first row, where it goes, and how many there are.
    """

    first: int
    place: int
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def bounds(self) -> tuple[int, int]:
        """The first row, and the last one plus one."""
        return self.first, self.first + self.count

    def listed(self) -> RowRequest:
        """Return the same rows one by one."""
        ahead = np.arange(self.count, dtype=np.int64)
        return RowRequest(ahead + self.first, ahead + self.place)

    def select(self, keep: np.ndarray | slice) -> Request:
        """Return the part of the request that a mask or a slice keeps."""
        if not isinstance(keep, slice) or keep.step not in {None, 1}:
            return self.listed().select(keep)
        start, stop, _ = keep.indices(self.count)
        return RowRange(self.first + start, self.place + start, max(0, stop - start))

    def pieces(self, chunk_rows: int, row_bytes: int) -> Iterator[RowRange]:
        """Yield pieces of about a mebibyte that end where chunks end."""
        at_once = max(1, SPAN_BYTES // max(1, chunk_rows * row_bytes)) * chunk_rows
        end = self.first + self.count
        edges = [self.first, *range(self.first // at_once * at_once + at_once, end, at_once), end]
        for low, high in itertools.pairwise(edges):
            yield RowRange(low, self.place + low - self.first, high - low)


Request = RowRequest | RowRange


def request_of(rows: np.ndarray, places: np.ndarray | None = None) -> Request:
    """Return a request for `rows`, given in any order; without `places`, row i goes to place i."""
    if _rises_by_one(rows) and (places is None or _rises_by_one(places)):
        return RowRange(int(rows[0]), 0 if places is None else int(places[0]), len(rows))
    if places is None:
        places = np.arange(len(rows), dtype=np.int64)
    if np.all(rows[1:] >= rows[:-1]):
        return RowRequest(rows, places)
    # Sorted, so that rows of one chunk are neighbours and each chunk is decoded once.
    order = np.argsort(rows, kind="stable")
    return RowRequest(rows[order], places[order])


def _rises_by_one(numbers: np.ndarray) -> bool:
    # Most other arrays are recognised by their first and last number, without a look at the rest.
    return bool(len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1 and np.all(numbers[1:] > numbers[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """Half-open ranges ``[start[i], stop[i])`` of positions in a request."""

    start: np.ndarray
    stop: np.ndarray

    @classmethod
    def split(cls, breaks: np.ndarray) -> RowRuns:
        """Cut ``len(breaks) + 1`` positions: ``breaks[i]`` separates position i from i + 1."""
        cuts = np.flatnonzero(breaks) + 1
        return cls(np.concatenate([[0], cuts]), np.concatenate([cuts, [len(breaks) + 1]]))


@dataclass(frozen=True, slots=True, eq=False)
class RunRequest:
    """Runs of consecutive rows, each of which goes to consecutive places.

    Attributes
    ----------
    firsts, places, counts : numpy.ndarray
        int64: the first row of each run, where it goes, and its length, above 0.
    """

    firsts: np.ndarray
    places: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.firsts)

    def listed(self) -> RowRequest:
        """Return the same rows one by one."""
        return request_of(units_of(self.firsts, self.counts), units_of(self.places, self.counts)).listed()

    def select(self, keep: np.ndarray | slice) -> RunRequest:
        """Return the runs that a mask, a slice or an order keeps."""
        return RunRequest(self.firsts[keep], self.places[keep], self.counts[keep])

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
        return self.cut(first, last, lambda chunks: chunks * chunk_rows)

    def cut(self, first: np.ndarray, last: np.ndarray, begins: Callable[[np.ndarray], np.ndarray]) -> RunRequest:
        """Return the same rows as runs that are each in one block of rows; their blocks ascend.

        Run i is in the blocks from ``first[i]`` to ``last[i]``; `begins` returns the first row of blocks.
        """
        touched = last - first + 1
        if (touched == 1).all():
            cut, chunks = self, first
        else:
            chunks, firsts = units_of(first, touched), np.repeat(self.firsts, touched)
            low = np.maximum(firsts, begins(chunks))
            high = np.minimum(firsts + np.repeat(self.counts, touched), begins(chunks + 1))
            cut = RunRequest(low, np.repeat(self.places, touched) + low - firsts, high - low)
        # Runs that overlap: the last chunk of one is after the first of the next.
        return cut if np.all(chunks[1:] >= chunks[:-1]) else cut.select(np.argsort(chunks, kind="stable"))

    def fill(self, out: np.ndarray, value: object) -> None:
        """Fill the places with one value."""
        for place, count in zip(self.places.tolist(), self.counts.tolist(), strict=True):
            out[place : place + count] = value


def as_runs(request: Request | RunRequest) -> RunRequest:
    """Return a request as runs with their first rows ascending."""
    if isinstance(request, RunRequest):
        return request.joined()
    if isinstance(request, RowRange):
        return RunRequest(*np.array([[request.first], [request.place], [request.count]]))
    return RunRequest(request.rows, request.places, np.ones(len(request), np.int64))


def units_of(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return consecutive numbers: ``counts[i]`` of them from ``starts[i]`` on, for each i."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)


def by_part(parts: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the parts that values belong to, ascending; and for each the places of its values, ascending too.

    One sort, however many parts there are: a mask a part would be a pass over all values for each of them.
    """
    order = np.argsort(parts, kind="stable")
    ordered = parts[order]
    cuts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    return [(int(ordered[start]), order[start:stop]) for start, stop in itertools.pairwise(cuts) if stop > start]
