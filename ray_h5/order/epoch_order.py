"""The order of an epoch: position -> selected index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError
from ray_h5.hash_and_permute import make_key, mix_in_place, permute
from ray_h5.manifest.row_requests import by_part
from ray_h5.order.draws.chunk_groups import ChunkGroups
from ray_h5.order.draws.length_runs import LengthRuns, runs_of
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.draws.weighted_draws import Draws, check_length

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
    return with_draws(Order(num_rows, shuffle.once("rows")), shuffle, draws, lengths)


def with_draws(order: Order, shuffle: Shuffle, draws: Draws | None, lengths: np.ndarray | None) -> Order:
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


def split_draws(indices: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of ``range(length)``, and the draws, that indices of samplers stand for."""
    draws = np.where(indices < 0, -(indices // max(length, 1)) - 1, 0)
    return np.where(indices < 0, indices % max(length, 1), indices), draws
