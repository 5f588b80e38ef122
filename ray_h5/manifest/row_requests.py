"""Which rows are asked for, and where they go: as runs, which would be long as lists, or one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

SPAN_BYTES = 1 << 20
"""About this much is read with one call; a larger chunk or row is read whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Runs of consecutive rows, each of which goes to consecutive places of the output.

    A read of a whole column is one run: to list its rows would take longer than reading small values.

    Attributes
    ----------
    firsts, places : numpy.ndarray
        int64: the first row of each run, and its index along the output's first axis.
    counts : numpy.ndarray, optional
        int64: the rows of each run, above 0. None if each has one row: then they ascend, and may repeat.
    keys : numpy.ndarray, optional
        uint64: the key of each row, if they are listed, by which parts of it are drawn.
    """

    firsts: np.ndarray
    places: np.ndarray
    counts: np.ndarray | None = None
    keys: np.ndarray | None = None

    @classmethod
    def range(cls, first: int, place: int, count: int) -> Request:
        """Return a request for consecutive rows."""
        return cls(*np.array([[first], [place], [count]] if count > 0 else [[], [], []], np.int64))

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def num_rows(self) -> int:
        """How many rows are asked for."""
        return len(self.firsts) if self.counts is None else int(self.counts.sum())

    @property
    def is_range(self) -> bool:
        """Whether it is one run, and not a list of rows."""
        return self.counts is not None and len(self.counts) == 1

    @property
    def rows(self) -> np.ndarray:
        """The rows of a request that is listed."""
        assert self.counts is None
        return self.firsts

    def listed(self) -> Request:
        """Return the same rows one by one, ascending."""
        if self.counts is None:
            return self
        return Request(units_of(self.firsts, self.counts), units_of(self.places, self.counts)).ascending()

    def ascending(self) -> Request:
        """Return the same runs by their first rows: those of one chunk are neighbours, which is decoded once."""
        if (self.firsts[1:] >= self.firsts[:-1]).all():
            return self
        return self.select(np.argsort(self.firsts, kind="stable"))

    def select(self, keep: np.ndarray | slice) -> Request:
        """Return the runs that a mask, a slice or an order keeps."""
        counts, keys = (None if of is None else of[keep] for of in (self.counts, self.keys))
        return Request(self.firsts[keep], self.places[keep], counts, keys)

    def joined(self) -> Request:
        """Return the same rows with their first rows ascending, and runs joined that follow each other."""
        runs = self.ascending()
        counts = runs.lengths
        breaks = (runs.firsts + counts)[:-1] != runs.firsts[1:]
        breaks |= (runs.places + counts)[:-1] != runs.places[1:]
        if breaks.all() or not len(runs):
            return runs
        starts, stops = runs_between(breaks)
        ends = (runs.firsts + counts)[stops - 1]
        return Request(runs.firsts[starts], runs.places[starts], ends - runs.firsts[starts])

    @property
    def lengths(self) -> np.ndarray:
        """int64: the rows of each run."""
        return np.ones(self.firsts.size, np.int64) if self.counts is None else self.counts

    def spans(self, chunk_rows: int, row_bytes: int) -> Iterator[Request]:
        """Yield parts of one run, of about a mebibyte, that end where chunks end."""
        at_once = max(1, SPAN_BYTES // max(1, chunk_rows * row_bytes)) * chunk_rows
        first, place, end = int(self.firsts[0]), int(self.places[0]), int(self.firsts[0]) + self.num_rows
        edges = [first, *range(first // at_once * at_once + at_once, end, at_once), end]
        for low, high in itertools.pairwise(edges):
            yield Request.range(low, place + low - first, high - low)

    def pieces(self, chunk_rows: int) -> Request:
        """Return the same rows as runs that are each in one chunk; their chunks ascend."""
        first, last = self.firsts // chunk_rows, (self.firsts + self.lengths - 1) // chunk_rows
        return self.cut(first, last, lambda chunks: chunks * chunk_rows)

    def cut(self, first: np.ndarray, last: np.ndarray, begins: Callable[[np.ndarray], np.ndarray]) -> Request:
        """Return the same rows as runs that are each in one block of rows; their blocks ascend.

        Run i is in the blocks from ``first[i]`` to ``last[i]``; `begins` returns the first row of blocks.
        """
        touched = last - first + 1
        if (touched == 1).all():
            cut, chunks = self, first
        else:
            chunks, firsts = units_of(first, touched), np.repeat(self.firsts, touched)
            low = np.maximum(firsts, begins(chunks))
            high = np.minimum(firsts + np.repeat(self.lengths, touched), begins(chunks + 1))
            cut = Request(low, np.repeat(self.places, touched) + low - firsts, high - low)
        # Runs that overlap: the last chunk of one is after the first of the next.
        return cut if np.all(chunks[1:] >= chunks[:-1]) else cut.select(np.argsort(chunks, kind="stable"))

    def fill(self, out: np.ndarray, value: object) -> None:
        """Fill the places with one value."""
        if self.counts is None or (self.counts == 1).all():
            out[self.places] = value
            return
        for place, count in zip(self.places.tolist(), self.counts.tolist(), strict=True):
            out[place : place + count] = value


def request_of(rows: np.ndarray, places: np.ndarray | None = None, keys: np.ndarray | None = None) -> Request:
    """Return a request for `rows`, in any order, with their keys, if any; without `places`, row i goes to place i."""
    last = len(rows) - 1
    places = np.arange(last + 1, dtype=np.int64) if places is None else places
    if last <= 0:  # one row is in one part and in one chunk, wherever runs are cut
        return Request(rows, places, keys=keys)
    # Most arrays that are no range are recognised by their first and last number, without a look at the rest.
    is_range = keys is None and rows[-1] - rows[0] == last == places[-1] - places[0]
    if is_range and (rows[1:] > rows[:-1]).all() and (places[1:] > places[:-1]).all():
        return Request.range(int(rows[0]), int(places[0]), len(rows))
    return Request(rows, places, keys=keys).ascending()


def runs_between(breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of ``len(breaks) + 1`` positions start and stop: ``breaks[i]`` is between i and i + 1."""
    cuts = breaks.nonzero()[0] + 1
    return np.concatenate([[0], cuts]), np.concatenate([cuts, [len(breaks) + 1]])


def units_of(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return consecutive numbers: ``counts[i]`` of them from ``starts[i]`` on, for each i."""
    ends = counts.cumsum()
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
