"""Rows -> byte ranges of the file, joined where they are close: arithmetic alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ray_h5.storage.local import DISK_COSTS

PAGE_BYTES = 4 << 10
"""Rows this close share a page of the disk: reading what is between them costs nothing."""

LARGE_READ_BYTES = 4 * PAGE_BYTES
"""Copying this many bytes takes longer than the call that reads them."""

_CHUNK_GAP_BYTES = DISK_COSTS.gap_bytes
"""Padding between two chunks that is read along with them. It is smaller than a chunk that was not asked for."""

_FEW_ROWS = 32
"""From this many rows on, reading the range that contains them is no slower than selecting them (measured)."""

_SELECTED_ROW_BYTES = 1 << 10
"""Each row this large is read by a call of its own: libhdf5 splits a selection of rows chunk by chunk (measured)."""

_SPAN_BYTES = DISK_COSTS.part_bytes[1]
"""About this much is read with one call; a larger chunk or row is read whole. These are the pieces that jobs are made
of. What a remote file is asked for is joined again, by the costs of that file; see `joint_reads`."""


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

    def places_of(self, at: np.ndarray) -> np.ndarray:
        """Return the places of the rows at positions `at`."""
        return self.places[at]

    def indices(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the rows in an array that begins with row `first`, and their places in the output."""
        return self.rows - first, self.places

    def by_chunk(self, chunk_rows: int) -> tuple[np.ndarray, RowRuns]:
        """Return the chunk of each run of rows that share one, and the runs."""
        chunks = self.rows // chunk_rows
        runs = RowRuns.split(chunks[1:] != chunks[:-1])
        return chunks[runs.start], runs

    def in_order(self, runs: RowRuns) -> np.ndarray:
        """Return for each run whether its rows and its places both increase by one."""
        return unbroken((np.diff(self.rows) == 1) & (np.diff(self.places) == 1), runs)

    def whole_chunks(self, runs: RowRuns, chunk_rows: int) -> np.ndarray:
        """Return for each run whether it is all rows of a chunk, in order."""
        return self.in_order(runs) & (runs.stop - runs.start == chunk_rows)


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

    def places_of(self, at: np.ndarray) -> np.ndarray:
        """Return the places of the rows at positions `at`."""
        return at + self.place

    def indices(self, first: int) -> tuple[slice, slice]:
        """Return the indices of the rows in an array that begins with row `first`, and their places in the output."""
        return slice(self.first - first, self.first - first + self.count), slice(self.place, self.place + self.count)

    def by_chunk(self, chunk_rows: int) -> tuple[np.ndarray, RowRuns]:
        """Return the chunk of each run of rows that share one, and the runs."""
        first, last = self.first // chunk_rows, (self.first + self.count - 1) // chunk_rows
        chunks = np.arange(first, last + 1, dtype=np.int64)
        edges = np.append(chunks, last + 1) * chunk_rows - self.first
        edges[0], edges[-1] = 0, self.count
        return chunks, RowRuns(edges[:-1], edges[1:])

    def in_order(self, runs: RowRuns) -> np.ndarray:
        """Return for each run whether its rows and its places both increase by one."""
        return np.ones(len(runs.start), bool)

    def whole_chunks(self, runs: RowRuns, chunk_rows: int) -> np.ndarray:
        """Return for each run whether it is all rows of a chunk."""
        return runs.stop - runs.start == chunk_rows


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
    def whole(cls, count: int) -> RowRuns:
        """Return the one range of `count` positions."""
        return cls(np.zeros(1, np.int64), np.full(1, count, np.int64))

    @classmethod
    def split(cls, breaks: np.ndarray) -> RowRuns:
        """Cut ``len(breaks) + 1`` positions: ``breaks[i]`` separates position i from i + 1."""
        cuts = np.flatnonzero(breaks) + 1
        return cls(np.concatenate([[0], cuts]), np.concatenate([cuts, [len(breaks) + 1]]))


def unbroken(steps: np.ndarray, runs: RowRuns) -> np.ndarray:
    """Return for each run whether all of its ``steps`` are true: bools, one between two neighbouring positions."""
    # The number of true steps in a run, as the difference of two cumulative counts.
    counted = np.concatenate([[0], np.cumsum(steps)])
    return counted[runs.stop - 1] - counted[runs.start] == runs.stop - runs.start - 1


def row_spans(offsets: np.ndarray, places: np.ndarray, row_bytes: int) -> RowRuns:
    """Join rows that are stored as they are into spans, each read with one call.

    Parameters
    ----------
    offsets : numpy.ndarray
        int64, ascending: where each row begins in the file.
    places : numpy.ndarray
        int64: where each row goes.
    row_bytes : int
        Size of a row.
    """
    steps = np.diff(offsets)
    # Rows in one span are at multiples of a row from its start, so that a span is viewed as an array of rows.
    breaks = (steps - row_bytes > PAGE_BYTES) | (steps % row_bytes != 0)
    if row_bytes >= PAGE_BYTES:
        # A row this large is read straight into its place, if necessary by a call of its own: a copy costs more.
        breaks |= (np.diff(places) != 1) & (steps != 0)
    return _limit(offsets, breaks)


def contiguous_spans(
    offsets: np.ndarray, begins: np.ndarray, sizes: np.ndarray, unit: int = 1
) -> list[tuple[int, int, int]]:
    """Join pieces that are consecutive in the file and in the output, and cut the result into mebibytes.

    Parameters
    ----------
    offsets, begins, sizes : numpy.ndarray
        int64: where each piece is in the file, where it goes in the output, and its size, in bytes.
    unit : int
        Bytes that stay together.

    Returns
    -------
    list of (int, int, int)
        Offset in the file, place in the output and size of each read.
    """
    at_once = max(1, _SPAN_BYTES // unit) * unit
    breaks = ((offsets + sizes)[:-1] != offsets[1:]) | ((begins + sizes)[:-1] != begins[1:])
    if breaks.all() and (sizes <= at_once).all():
        return list(zip(offsets.tolist(), begins.tolist(), sizes.tolist(), strict=True))
    joined = RowRuns.split(breaks)
    ends = (begins + sizes)[joined.stop - 1]
    return [
        (offset + at - begin, at, min(at_once, end - at))
        for offset, begin, end in zip(
            offsets[joined.start].tolist(), begins[joined.start].tolist(), ends.tolist(), strict=True
        )
        for at in range(begin, end, at_once)
    ]


def fetch_spans(offsets: np.ndarray, sizes: np.ndarray) -> RowRuns:
    """Join stored chunks into spans, each read with one call.

    Parameters
    ----------
    offsets, sizes : numpy.ndarray
        int64: place and size of each chunk, in the order in which they are decoded.
    """
    gaps = offsets[1:] - (offsets + sizes)[:-1]
    # Large chunks are fetched one by one: a call costs little beside their bytes, and threads share them evenly.
    return _limit(offsets, (gaps < 0) | (gaps > _CHUNK_GAP_BYTES) | (sizes[1:] > _SPAN_BYTES // 4))


def range_pieces(rows: RowRange, chunk_rows: int, row_bytes: int) -> Iterator[RowRange]:
    """Cut a range into pieces of about a mebibyte that end where chunks end."""
    at_once = max(1, _SPAN_BYTES // max(1, chunk_rows * row_bytes)) * chunk_rows
    end = rows.first + rows.count
    edges = [rows.first, *range(rows.first // at_once * at_once + at_once, end, at_once), end]
    for low, high in itertools.pairwise(edges):
        yield RowRange(low, rows.place + low - rows.first, high - low)


def library_spans(rows: np.ndarray, chunk_rows: int, row_bytes: int, gap_bytes: int = 0) -> RowRuns:
    """Join rows into ranges that libhdf5 reads in one call; no chunk is in two of them.

    Parameters
    ----------
    rows : numpy.ndarray
        int64, ascending.
    chunk_rows, row_bytes : int
        Rows of a chunk, bytes of a row.
    gap_bytes : int
        Largest gap between two joined rows. It applies to rows that are not in chunks.
    """
    steps = np.diff(rows)
    if chunk_rows == 1:
        return _limit(rows * row_bytes, steps > 1 + gap_bytes // max(row_bytes, 1))
    chunks = rows // chunk_rows
    steps_of_chunks = np.diff(chunks)
    breaks = (steps_of_chunks > 1) | ((steps_of_chunks == 1) & (steps != 1))
    return _limit(chunks * chunk_rows * row_bytes, breaks)


def library_batches(rows: np.ndarray, spans: RowRuns, row_bytes: int, unasked_bytes: int) -> tuple[RowRuns, np.ndarray]:
    """Join spans into batches, each read with one call: one span that is almost full, or the single rows of several.

    Parameters
    ----------
    rows : numpy.ndarray
        int64, ascending.
    spans : RowRuns
        The result of `library_spans` for them.
    row_bytes : int
        Bytes of a row.
    unasked_bytes : int
        Cost of a row that is read and dropped, as the number of bytes that could be copied meanwhile.

    Returns
    -------
    batches : RowRuns
        Ranges of positions in `rows`.
    full : numpy.ndarray
        bool: whether a batch is one span, and is read from its first row to its last.
    """
    counts = spans.stop - spans.start
    unasked = rows[spans.stop - 1] - rows[spans.start] + 1 - counts
    # libhdf5 selects a row in the time that it takes to copy a page.
    full = (counts >= _FEW_ROWS) & (unasked * unasked_bytes <= counts * PAGE_BYTES)
    full |= row_bytes >= _SELECTED_ROW_BYTES
    parts = np.concatenate([[0], np.cumsum(counts)])[:-1] * row_bytes
    batches = _limit(parts, full[1:] | full[:-1])
    return RowRuns(spans.start[batches.start], spans.stop[batches.stop - 1]), full[batches.start]


def _limit(offsets: np.ndarray, breaks: np.ndarray) -> RowRuns:
    # Cut runs that are longer than a span, at multiples of a span from their starts.
    runs = RowRuns.split(breaks)
    first = np.repeat(offsets[runs.start], runs.stop - runs.start)
    part = (offsets - first) // _SPAN_BYTES
    return RowRuns.split(breaks | (part[1:] != part[:-1]))
