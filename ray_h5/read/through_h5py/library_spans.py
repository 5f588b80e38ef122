"""Rows -> byte ranges of the file, joined where they are close: arithmetic alone."""

from __future__ import annotations

import numpy as np

from ray_h5.manifest.row_requests import SPAN_BYTES, RowRuns

PAGE_BYTES = 4 << 10
"""Rows this close share a page of the disk: reading what is between them costs nothing."""

_FEW_ROWS = 32
"""From this many rows on, reading the range that contains them is no slower than selecting them (measured)."""

_SELECTED_ROW_BYTES = 1 << 10
"""Each row this large is read by a call of its own: libhdf5 splits a selection of rows chunk by chunk (measured)."""


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


def library_batches(
    rows: np.ndarray, spans: RowRuns, row_bytes: int, unasked_bytes: int, most_apart: int
) -> tuple[RowRuns, np.ndarray]:
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
    most_apart : int
        Rows between two spans of a batch at most.

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
    far = rows[spans.start[1:]] - rows[spans.stop[:-1] - 1] > most_apart
    batches = _limit(parts, full[1:] | full[:-1] | far)
    return RowRuns(spans.start[batches.start], spans.stop[batches.stop - 1]), full[batches.start]


def _limit(offsets: np.ndarray, breaks: np.ndarray) -> RowRuns:
    # Cut runs that are longer than a span, at multiples of a span from their starts.
    runs = RowRuns.split(breaks)
    first = np.repeat(offsets[runs.start], runs.stop - runs.start)
    part = (offsets - first) // SPAN_BYTES
    return RowRuns.split(breaks | (part[1:] != part[:-1]))
