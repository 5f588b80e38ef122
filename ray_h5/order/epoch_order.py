"""The order of an epoch: position -> selected index."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError
from ray_h5.hash_and_permute import make_key, mix_in_place, permute
from ray_h5.index.row_index import RowIndex
from ray_h5.lru import first_time
from ray_h5.manifest.row_requests import by_part
from ray_h5.order.block_layout import BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCKS, MIN_ROW_BYTES, RANGE_WINDOW_BYTES
from ray_h5.order.draws.chunk_groups import ChunkGroups
from ray_h5.order.draws.length_runs import LengthRuns, lengths_of, runs_of, sorted_window
from ray_h5.order.draws.shuffle import Shuffle, Unit
from ray_h5.order.draws.weighted_draws import Draws, check_length, make_draws

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

_WITHIN_WINDOW, _CHUNK_GROUPS, _ROWS, _ROW_KEYS = range(4)
"""The purposes of round keys: no two draws share a key."""

_words_of_keys = lru_cache(maxsize=8)(make_key)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Order(ComparedByContent):
    """The order of an epoch.

    Attributes
    ----------
    num_rows : int
        Selected rows.
    shuffle : Shuffle, optional
        With its unit decided and, for chunks, its window; None keeps the order of the files.
    chunk_groups : ChunkGroups, optional
        Rows that are drawn as a whole. Where files are drawn, each file is one chunk group.
    chunk_group_rows : int, optional
        Rows of a chunk group, where chunks are drawn.
    range_chunks : int, optional
        Chunks of a chunk group, where its rows are ranges: the last of them ends in a further chunk.
    draws : Draws, optional
        What the weights of the shuffle became; the shuffle has none then.
    runs : LengthRuns, optional
        What `by_length` of the shuffle became; the shuffle has none then.
    """

    num_rows: int
    shuffle: Shuffle | None = None
    chunk_groups: ChunkGroups | None = None
    chunk_group_rows: int | None = None
    range_chunks: int | None = None
    draws: Draws | None = None
    runs: LengthRuns | None = None

    @property
    def seed(self) -> int:
        """The seed of the shuffle; 0 without one."""
        return (self.shuffle and self.shuffle.seed) or 0

    @property
    def epoch_rows(self) -> int:
        """Rows of an epoch: the selected rows, unless the shuffle draws another number of rows."""
        drawn = None if self.shuffle is None else self.shuffle.rows_per_epoch
        return self.num_rows if drawn is None else drawn

    @property
    def window_rows(self) -> int | None:
        """Rows that are mixed with each other, where chunks are drawn."""
        return self.shuffle.window_rows if self.shuffle is not None else None

    def draw_numbers(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Return the number of the draw at each position, for rows whose values are drawn: int64.

        It is the epoch; if rows may come several times in an epoch, each position has a draw of its own.
        """
        if not self.may_repeat:
            return np.full(len(positions), epoch, np.int64)
        return epoch * self.epoch_rows + positions % self.epoch_rows

    @property
    def may_repeat(self) -> bool:
        """Whether an epoch may have a row more than once: if rows are drawn, or an epoch may lie in two passes."""
        return self.draws is not None or (self.epoch_rows > 0 and self.num_rows % self.epoch_rows != 0)

    def with_drawn_seed(self, seed: int | None) -> Order:
        """Return the order with the seed of the run that is resumed, if its own was drawn; else the order itself."""
        shuffle = self.shuffle
        if seed is None or shuffle is None or not shuffle.is_drawn or shuffle.seed == seed:
            return self
        return replace(self, shuffle=replace(shuffle, seed=seed))

    def selected_indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Return which of the selected rows an epoch has at some positions.

        Parameters
        ----------
        positions : numpy.ndarray
            int64, each in ``range(epoch_rows)``.
        epoch : int
            The epoch.

        Returns
        -------
        numpy.ndarray
            int64: ordinals among the selected rows, which are in path order.
        """
        if self.shuffle is None:
            return positions
        if self.runs is None:
            return self._by_shuffle(positions, epoch)
        base = partial(self._by_shuffle, epoch=epoch)
        return self.runs.selected_indices(positions, self.seed, epoch, self.epoch_rows, base)

    def _by_shuffle(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        assert self.shuffle is not None
        count = self.shuffle.rows_per_epoch
        if count is None:
            return self._permuted(positions, epoch)
        if (epoch + 1) * count >= 1 << 63:
            raise OptionError(f"epoch {epoch} of {count} rows each: the rows of all epochs cannot be counted")
        if self.draws is not None:
            return self.draws.selected_indices(positions, self.seed, epoch)
        # One long sequence of permutations, cut into epochs.
        passes, positions = np.divmod(positions + epoch * count, self.num_rows)
        permuted = np.empty_like(positions)
        for number, here in by_part(passes):
            permuted[here] = self._permuted(positions[here], number)
        return permuted

    def _permuted(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        if self.chunk_groups is None:
            return permute(positions, self.num_rows, make_key(self.seed, epoch, _ROWS))
        size = self.window_rows
        if size is not None:
            mixed = np.empty_like(positions)
            for window, here in by_part(positions // size):
                start = window * size
                length = min(size, self.num_rows - start)
                key = make_key(self.seed, epoch, _WITHIN_WINDOW, window)
                mixed[here] = start + permute(positions[here] - start, length, key)
            positions = mixed
        return self.chunk_groups.selected_indices(positions, make_key(self.seed, epoch, _CHUNK_GROUPS))


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
    return _drawn(order, shuffle, draws, lengths)


def plain_order(num_rows: int, shuffle: Shuffle | None) -> Order:
    """Return the order of a dataset of which only the number of rows is known: rows are drawn.

    Raises
    ------
    OptionError
        If the shuffle is not of rows, or its weights, or lengths, are no array with a number for each row.
    """
    if shuffle is not None and shuffle.unit not in ("auto", "rows"):
        raise OptionError(f"shuffle={shuffle.unit!r}: only an H5Dataset knows its {shuffle.unit}; use 'rows'")
    if shuffle is None or num_rows == 0:
        return Order(num_rows)
    draws, lengths = None, shuffle.by_length
    if shuffle.weights is not None:
        if not isinstance(shuffle.weights, np.ndarray):
            raise OptionError(
                f"{shuffle}: only an H5Dataset knows its columns and files. Choose its rows with predicate=, such as "
                "one of kfold, in place of a Subset; or pass weights as an array"
            )
        check_length(shuffle.weights, num_rows, "the dataset", "weights")
        draws = Draws.of(shuffle.weights)
    if lengths is not None:
        if not isinstance(lengths, np.ndarray):
            raise OptionError(f"{shuffle}: only an H5Dataset knows its columns; pass by_length as an array")
        check_length(lengths, num_rows, "the dataset", "by_length")
    return _drawn(Order(num_rows, shuffle.once("rows")), shuffle, draws, lengths)


def _drawn(order: Order, shuffle: Shuffle, draws: Draws | None, lengths: np.ndarray | None) -> Order:
    """Return an order with the rows of an epoch, the draws and the lengths that a shuffle says.

    Draws replace the weights of the shuffle: an array of them may be large.
    """
    assert order.shuffle is not None
    count = shuffle.rows_per_epoch or (None if draws is None else order.num_rows)
    if draws is not None and order.chunk_groups is not None:
        assert order.window_rows is not None
        assert order.chunk_group_rows is not None
        groups = max(1, round(order.window_rows / order.chunk_group_rows))
        draws = replace(draws, chunk_groups=order.chunk_groups, window_rows=order.window_rows, window_groups=groups)
    order = replace(order, shuffle=replace(order.shuffle, rows_per_epoch=count), draws=draws)
    if lengths is None:
        return order
    window = order.window_rows or shuffle.window_rows
    return replace(order, runs=runs_of(lengths, shuffle.run_rows, order.epoch_rows, window))


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
            "%s: a chunk holds values of %d rows, and %d rows fit into the memory of a read: an epoch decodes each "
            "chunk about %d times. Write chunks of fewer rows by ray_h5.repack(%r, 'repacked'), and read these files.",
            path,
            chunk_rows,
            window_rows,
            times,
            path,
        )


def _starts_of_chunks(index: RowIndex, selection: np.ndarray) -> np.ndarray:
    """Return the first selected index of each chunk group, then the number of selected rows."""
    starts, rows = index.files.starts, index.chunk_group_rows
    selected, lengths = np.diff(np.searchsorted(selection, starts)), np.diff(starts)
    first_chunk = np.concatenate([[0], np.cumsum(-(-lengths // rows))[:-1]])
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


def row_keys(row_ids: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return a key for the randomness of each row in an epoch.

    Parameters
    ----------
    row_ids : numpy.ndarray
        Integers.
    seed, epoch : int
        Zero or more.

    Returns
    -------
    numpy.ndarray
        uint64: a hash of (seed, epoch, row id), the same in every task and worker.
    """
    # Plain datasets need them batch by batch.
    first, second, *_ = _words_of_keys(seed, epoch, _ROW_KEYS)
    keys = np.asarray(row_ids).astype(np.uint64)
    keys += np.uint64(first)
    mix_in_place(keys)
    keys ^= np.uint64(second)
    return mix_in_place(keys)
