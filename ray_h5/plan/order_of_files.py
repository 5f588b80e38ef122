"""The order of an epoch of files: what is drawn, and how many rows a window mixes, by their chunks."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from ray_h5.index.row_index import RowIndex
from ray_h5.lru import first_time
from ray_h5.manifest.partition import Partition
from ray_h5.messages import counted
from ray_h5.order.block_layout import BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCKS, MIN_ROW_BYTES, RANGE_WINDOW_BYTES
from ray_h5.order.draws.chunk_groups import ChunkGroups
from ray_h5.order.draws.length_runs import sorted_window
from ray_h5.order.draws.shuffle import Shuffle, Unit
from ray_h5.order.epoch_order import Order, with_draws
from ray_h5.plan.lengths_of_rows import lengths_of
from ray_h5.plan.weights_of_rows import make_draws

logger = logging.getLogger(__name__)

_RANGE_CHUNKS = 4
"""Chunks of a chunk group whose rows are ranges. The last row ends in a further chunk, so with 1 nearly each chunk is
decoded twice; with 4, a quarter of them."""

_RANGE_GROUPS = 64
"""Such chunk groups that a window mixes, if memory allows it."""

_SMALL_BYTES = 32 << 20
"""Half of what a process keeps of decoded chunks during an epoch, in plain PyTorch. Each block of Ray decodes them."""

_LEAST_SORTED = 8192
"""Rows that are sorted by length together, at least: a window has to be many batches."""


def make_order(index: RowIndex, selection: np.ndarray | None, shuffle: Shuffle | None) -> Order:
    """Return the order of an epoch, with its unit decided.

    It depends on the index, the selection and the shuffle. It does not depend on the columns that are read, nor on
    blocks.
    """
    num_rows = index.num_rows if selection is None else len(selection)
    if shuffle is None or num_rows == 0:
        return Order(num_rows)
    unit, starts = _unit(index, selection, shuffle), index.files.starts
    if unit == "chunks":
        order = _of_chunks(index, selection, num_rows, shuffle)
    else:
        first_rows = np.unique(starts if selection is None else np.searchsorted(selection, starts))
        order = Order(num_rows, shuffle.once(unit), ChunkGroups(first_rows) if unit == "files" else None)
    draws = None if shuffle.weights is None else make_draws(index, selection, shuffle.weights)
    lengths = None if shuffle.by_length is None else lengths_of(index, selection, shuffle.by_length)
    return with_draws(order, shuffle, draws, lengths)


def _unit(index: RowIndex, selection: np.ndarray | None, shuffle: Shuffle) -> Unit:
    """Return what is drawn: rows if each can be read alone, all are kept, or classes or files have shares."""
    if shuffle.unit != "auto":
        return shuffle.unit
    if shuffle.window_rows is not None and shuffle.by_length is None:
        return "chunks"  # the user says how many rows are mixed
    # Rows of a class or file are often neighbours: few chunks have rows of few of them.
    if not isinstance(shuffle.weights, (str, np.ndarray, type(None))) or index.chunk_group_rows == 1:
        return "rows"
    # Rows cost no more if all chunks with selected rows stay in memory once they are decoded.
    most = _SMALL_BYTES // _row_bytes(index)
    if index.num_rows <= most:
        return "rows"
    if selection is None or len(selection) > most or index.chunk_group_starts(_RANGE_CHUNKS) is not None:
        return "chunks"
    groups = len(_starts_of_chunks(index, selection)) - 1
    return "rows" if groups * index.chunk_group_rows <= most else "chunks"


def _of_chunks(index: RowIndex, selection: np.ndarray | None, num_rows: int, shuffle: Shuffle) -> Order:
    """Return the order in which chunk groups are drawn, and rows within windows of them."""
    starts, group_rows = index.chunk_group_starts(_RANGE_CHUNKS), index.chunk_group_rows
    window = shuffle.window_rows or _window(index, num_rows, are_ranges=starts is not None)
    if shuffle.by_length is not None and shuffle.window_rows is None:
        window = sorted_window(num_rows, max(window, _LEAST_SORTED))
    if shuffle.window_rows is None and starts is None:
        _warn_of_large_chunks(index, group_rows, window)
    shuffle = replace(shuffle.once("chunks"), window_rows=window)
    if starts is not None:  # rows are ranges, and these the first row ids of chunk groups
        cuts = starts
        if selection is not None:
            group = np.searchsorted(starts, selection, side="right")
            cuts = np.concatenate([[0], np.flatnonzero(group[1:] != group[:-1]) + 1])
        group_rows = max(1, round(index.num_rows / max(len(starts), 1)))
        return Order(num_rows, shuffle, ChunkGroups(np.append(cuts, num_rows)), group_rows, _RANGE_CHUNKS)
    groups = (index.files.starts, group_rows) if selection is None else (_starts_of_chunks(index, selection), None)
    return Order(num_rows, shuffle, ChunkGroups(*groups), group_rows)


def _warn_of_large_chunks(index: RowIndex, chunk_rows: int, window_rows: int) -> None:
    """Say what an epoch costs if a window of the shuffle, which fits into memory, has rows of a part of a chunk."""
    times, path = chunk_rows // window_rows, index.files.path(0)
    if times > 1 and first_time("large chunks", index.scope.group, *index.columns, *index.files.all_paths()):
        logger.warning(
            "%s: a chunk holds values of %s, and the memory of a read holds %s: an epoch decodes each chunk about %d "
            "times. Write chunks of fewer rows by ray_h5.repack(%r, 'repacked'), and read these files.",
            path,
            counted(chunk_rows, "row"),
            counted(window_rows, "row"),
            times,
            path,
        )


def _starts_of_chunks(index: RowIndex, selection: np.ndarray) -> np.ndarray:
    """Return the first selected index of each chunk group, then the number of selected rows."""
    starts, rows = index.files.starts, index.chunk_group_rows
    selected, lengths = np.diff(np.searchsorted(selection, starts)), np.diff(starts)
    first_chunk = Partition.of(-(-lengths // rows)).firsts
    chunk = selection - np.repeat(starts[:-1], selected)
    chunk //= rows
    chunk += np.repeat(first_chunk, selected)
    return np.concatenate([[0], np.flatnonzero(chunk[1:] != chunk[:-1]) + 1, [len(selection)]])


def _row_bytes(index: RowIndex) -> int:
    return max(sum(column.row_bytes for column in index.columns.values()), MIN_ROW_BYTES)


def _window(index: RowIndex, num_rows: int, *, are_ranges: bool) -> int:
    """Return how many rows a window mixes: those of 16 chunks or more, if a block can hold them.

    Rows that are ranges are kept as they are read: a window mixes as many chunk groups as fit into memory.
    """
    row_bytes, group_rows = _row_bytes(index), index.chunk_group_rows
    if are_ranges:
        group_rows *= _RANGE_CHUNKS
        wanted = max(BLOCK_BYTES // row_bytes, _RANGE_GROUPS * group_rows)
        # A small file is cut into several blocks, but no smaller than a chunk group.
        rows = min(wanted, RANGE_WINDOW_BYTES // row_bytes, max(num_rows // MIN_BLOCKS, min(2 * group_rows, num_rows)))
        return 1 << max(rows, 1).bit_length() - 1
    most, chunks = MAX_BLOCK_BYTES // row_bytes, 16 * group_rows
    rows = min(max(min(BLOCK_BYTES // row_bytes, num_rows // MIN_BLOCKS), chunks), most, num_rows)
    window = 1 << max(rows, 1).bit_length() - 1
    return window if window >= chunks or 2 * window > min(most, num_rows) else 2 * window
