"""Permutations as functions of (seed, epoch, position). No memory grows with the size of the dataset."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError
from ray_h5.options import as_integer, is_number, takes_options
from ray_h5.splitmix import GOLDEN, mix_in_place

Unit = Literal["auto", "rows", "chunks", "files"]

_UNITS = ("auto", "rows", "chunks", "files")
_ROUNDS = 8
_TABLE_ROWS = 1 << 16
"""Up to this length a permutation is a table of at most half a megabyte."""

_PIECE = 1 << 14

_LENGTHS = "expected the name of a column with the length of each row, or an array with a number for each row"

_REPLACEMENT = "Weights draw each position independently. Shuffle(rows_per_epoch=n) draws no row twice before all came."


class UnusableRowsError(OptionError):
    """A selected row has a value that an option cannot use; a filter may leave the row out."""


@takes_options(instead={"replacement": _REPLACEMENT})
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shuffle(ComparedByContent):
    """How rows are drawn. Each epoch has another order.

    Parameters
    ----------
    unit : {"auto", "rows", "chunks", "files"}
        ``rows``: each position of an epoch is drawn from all selected rows. ``chunks``: chunk groups, which are
        neighbouring rows that share chunks, are drawn from all files; then rows are drawn within a window of
        `window_rows`. Each chunk is decoded about once. ``files``: files are drawn, and the rows of a file keep their
        order. ``auto``: ``rows`` if that costs little, because a chunk holds one row, the data is contiguous, or all
        chunks with selected rows are at most 32 MiB when decoded, which stay in memory; else ``chunks``.
    seed : int, optional
        Zero or more. None draws one: `seed` holds it, and `repr` shows it. A `Position`, and the state of a sampler,
        contain the seed. The run that resumes takes it over.
    window_rows : int, optional
        For ``chunks``: rows that are mixed with each other. By default about the rows of a block. With `by_length`:
        rows that are sorted together. By default all up to 128,000, and else 64,000; for ``chunks`` about the rows of
        a block, and 8192 or more.
    weights : str, array, Balance or dict, optional
        How often rows are drawn, each position independently; None draws each equally often. The name of a numeric
        column, or an array with a number for each row id, give each row a probability. `balance` of columns draws
        classes equally often, and a dict of shares by file, ``{"a/*.h5": 0.3, "b/*.h5": 0.7}``, files.
    rows_per_epoch : int, optional
        Rows of an epoch; by default the number of selected rows. Without weights, an epoch continues where the last
        one ended: all rows come before one comes again.
    by_length : str or array, optional
        The length of each row, as for `weights` by column. Rows of similar length then follow each other, so that a
        batch needs little padding: the rows of each window are sorted by length and cut into runs, and the runs are
        shuffled. Each row comes as often as without. A column of varying shape has the lengths of its rows.
    run_rows : int, optional
        With `by_length`: rows of a run. A multiple of the batch size is best: then no batch has rows of two runs. By
        default at most a fifth of a window, and 640: batches of 10, 16, 20, 32, 64, 80 or 128 rows divide that.
    batch_values : int or float, optional
        With `by_length`, in plain PyTorch: the lengths of the rows of a batch sum up to at most this, on each rank. The
        batches of `loader` and `OrderBatchSampler` are cut into smaller ones, the same on all ranks; their batch size
        is then the most rows of a batch. A longer row is a batch of its own.
    is_drawn : bool
        Whether a run that resumes replaces the seed by that of the run before. True if `seed` was None.

    Notes
    -----
    The same (files, columns, predicate, seed, epoch) give the same order in Ray and in plain
    PyTorch, whatever the number of tasks and workers.

    With weights and ``chunks``, each window of positions draws chunk groups by their summed weights, and then
    rows of these by weight. A row has the same probability at each position, but the rows of a window come from few
    chunks.
    """

    unit: Unit = "auto"
    seed: int | None = 0
    window_rows: int | None = None
    weights: Any = field(default=None, kw_only=True)
    rows_per_epoch: int | None = field(default=None, kw_only=True)
    by_length: Any = field(default=None, kw_only=True)
    run_rows: int | None = field(default=None, kw_only=True)
    batch_values: float | None = field(default=None, kw_only=True)
    is_drawn: bool = field(default=False, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.unit not in _UNITS:
            raise OptionError(f"Shuffle(unit={self.unit!r}): expected one of {', '.join(map(repr, _UNITS))}")
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(32))
            object.__setattr__(self, "is_drawn", True)
        object.__setattr__(self, "seed", as_integer("Shuffle: seed", self.seed, 0, instead=", or None"))
        rows = self.window_rows
        if rows is not None and self.unit in ("rows", "files") and self.by_length is None:
            raise OptionError(f"Shuffle(unit={self.unit!r}, window_rows={rows}): only chunks are mixed in windows")
        if rows is not None:
            object.__setattr__(self, "window_rows", as_integer("Shuffle: window_rows", rows, 1, instead=", or None"))
        count = self.rows_per_epoch
        if count is not None:
            count = as_integer("Shuffle: rows_per_epoch", count, 1, instead=", or None")
            object.__setattr__(self, "rows_per_epoch", count)
        if self.weights is not None:
            from ray_h5.order.draws.weights import as_weights, shown

            object.__setattr__(self, "weights", as_weights(self.weights))
            if self.unit == "files":
                raise OptionError(
                    f"Shuffle(unit='files', weights={shown(self.weights)}): weights draw rows; expected unit='rows' or "
                    "'chunks'"
                )
        self._check_lengths()

    def _check_lengths(self) -> None:
        run = self.run_rows
        if run is not None:
            run = as_integer("Shuffle: run_rows", run, 1, instead=", or None")
            object.__setattr__(self, "run_rows", run)
        values = self.batch_values
        if values is not None and not (is_number(values) and 0 < values < float("inf")):
            raise OptionError(f"Shuffle: batch_values={values!r}: expected a number above 0, or None")
        if self.by_length is None:
            if values is not None:
                raise OptionError(
                    f"Shuffle: batch_values={values}: is used only with by_length, which says what is summed"
                )
            if run is not None:
                raise OptionError(f"Shuffle: run_rows={run}: is used only with by_length")
            return
        from ray_h5.order.draws.weights import as_row_values, shown

        object.__setattr__(self, "by_length", as_row_values("by_length", self.by_length, _LENGTHS))
        if self.unit == "files":
            raise OptionError(
                f"Shuffle(unit='files', by_length={shown(self.by_length)}): the rows of a file keep their order; "
                "expected unit='rows' or 'chunks'"
            )
        if run is not None and self.window_rows is not None and run > self.window_rows:
            raise OptionError(
                f"Shuffle: run_rows={run}, window_rows={self.window_rows}: expected a window of many runs"
            )

    def once(self, unit: Unit | None = None) -> Shuffle:
        """Return the shuffle that has each selected row once an epoch, and knows no lengths; of another unit."""
        unit = unit or self.unit
        window = None if unit in ("rows", "files") else self.window_rows
        options: dict[str, Any] = {"weights": None, "rows_per_epoch": None, "by_length": None, "run_rows": None}
        options["batch_values"] = None
        return replace(self, unit=unit, window_rows=window, **options)

    def __repr__(self) -> str:
        parts = [f"unit={self.unit!r}, seed={self.seed}, window_rows={self.window_rows}"]
        # The hash of a plan contains this text: it does not change for orders without draws.
        if self.weights is not None:
            parts.append(f"weights={_shown(self.weights)}")
        if self.rows_per_epoch is not None:
            parts.append(f"rows_per_epoch={self.rows_per_epoch}")
        if self.by_length is not None:
            parts.append(f"by_length={_shown(self.by_length)}")
        if self.run_rows is not None:
            parts.append(f"run_rows={self.run_rows}")
        if self.batch_values is not None:
            parts.append(f"batch_values={self.batch_values}")
        return f"Shuffle({', '.join(parts)})"


def _shown(value: Any) -> str:
    from ray_h5.order.draws.weights import shown

    return shown(value)


def as_shuffle(shuffle: bool | str | Shuffle | None, seed: int | None = 0) -> Shuffle | None:
    """Return the value of an argument `shuffle`. True, and the name of a unit, use `seed`.

    Raises
    ------
    OptionError
        If it has a value that cannot be used, or a seed of its own beside another `seed`.
    """
    if shuffle is None or shuffle is False:
        return None
    if isinstance(shuffle, Shuffle):
        own = None if shuffle.is_drawn else shuffle.seed
        if seed not in (0, own):  # 0 is the default of the argument
            raise OptionError(f"seed={seed!r}: shuffle={shuffle} has a seed of its own, {own}; leave seed= out")
        return shuffle
    if shuffle is True:
        return Shuffle(seed=seed)
    if isinstance(shuffle, str):
        return Shuffle(cast("Unit", shuffle), seed)
    raise OptionError(
        f"shuffle={shuffle!r}: expected True, False, 'rows', 'chunks', 'files' or a Shuffle"
        + (f"; write Shuffle(weights={shuffle!r})" if type(shuffle).__name__ == "Balance" else "")
    )


RoundKeys: TypeAlias = tuple[int, ...]
"""Keys of the rounds of a permutation; see `make_key`."""


def make_key(*words: int) -> RoundKeys:
    """Return the round keys of a permutation.

    `numpy.random.SeedSequence` combines the words. A sum would give (seed 42, epoch 1) and (seed 43, epoch 0) the same
    order. It cuts words into 32 bits each, and missing words are zeros. So each word is preceded by its length:
    otherwise (5, 1, 0), (5, 1) and (5 + 2**32,) would have the same key.
    """
    if min(words) < 0:
        raise OptionError(f"a seed or an epoch is negative: {min(words)}; expected zero or more")
    entropy = [part for word in words for part in (-(-max(word.bit_length(), 1) // 32), word)]
    return tuple(np.random.SeedSequence(entropy).generate_state(_ROUNDS, np.uint64).tolist())


def permute(positions: np.ndarray, n: int, key: RoundKeys) -> np.ndarray:
    """Return the values of a permutation of ``range(n)`` at `positions`, without making the whole permutation.

    Up to 65,536 the permutation is a table: the order of keyed hashes. Above, it is a Feistel network of two halves
    of about sqrt(n) values each. Few results are `n` or more; these are permuted again until they are less (Black &
    Rogaway 2002, "Ciphers with arbitrary finite domains"; for halves of different sizes: Hoang & Rogaway 2010, "On
    generalized Feistel networks").

    Parameters
    ----------
    positions : numpy.ndarray
        Integers in ``range(n)``, of any shape.
    n : int
        Length of the permutation, at most 2**62.
    key : RoundKeys
        From `make_key`.

    Returns
    -------
    numpy.ndarray
        int64, of the shape of `positions`.

    Raises
    ------
    OptionError
        If a position is outside.
    """
    positions = _checked(positions, n)
    if n <= _TABLE_ROWS:
        return _table(n, key)[positions]
    return _walk(positions, n, key, backwards=False)


def unpermute(values: np.ndarray, n: int, key: RoundKeys) -> np.ndarray:
    """Return the positions that `permute` maps to `values`."""
    values = _checked(values, n)
    if n <= _TABLE_ROWS:
        table = _table(n, key)
        positions = np.empty(n, np.int64)
        positions[table] = np.arange(n)
        return positions[values]
    return _walk(values, n, key, backwards=True)


def _checked(positions: np.ndarray, n: int) -> np.ndarray:
    positions = np.asarray(positions)
    if positions.size and (positions.min() < 0 or positions.max() >= n):
        raise OptionError(f"permute: expected positions of 0 to {n - 1}, found {positions.min()} to {positions.max()}")
    return positions if positions.size else positions.astype(np.int64)


@lru_cache(maxsize=16)
def _table(n: int, key: RoundKeys) -> np.ndarray:
    hashes = np.arange(n, dtype=np.uint64)
    hashes *= np.uint64(GOLDEN)
    hashes += np.uint64(key[0])
    mix_in_place(hashes)
    hashes ^= np.uint64(key[1])
    table = np.argsort(mix_in_place(hashes))  # no two hashes are equal: any sort gives the same
    table.setflags(write=False)
    return table


def _walk(values: np.ndarray, n: int, key: RoundKeys, backwards: bool) -> np.ndarray:
    bits = (n - 1).bit_length() // 2
    upper = -(-n >> bits)
    found = np.asarray(values).astype(np.uint64).reshape(-1)
    # Piece by piece: the intermediate values stay in the cache of the processor.
    for start in range(0, len(found), _PIECE):
        piece = found[start : start + _PIECE]
        _feistel(piece, bits, upper, key, backwards)
        beyond = np.flatnonzero(piece >= n)
        while len(beyond):
            again = piece[beyond]
            _feistel(again, bits, upper, key, backwards)
            piece[beyond] = again
            beyond = beyond[again >= n]
    return found.astype(np.int64).reshape(np.shape(values))


def _feistel(values: np.ndarray, bits: int, upper: int, key: RoundKeys, backwards: bool) -> None:
    """Permute ``range(upper << bits)`` in place. The low half has `bits` bits, the high half has `upper` values."""
    shift, mask, size = np.uint64(bits), np.uint64((1 << bits) - 1), np.uint64(upper)
    low, high = values & mask, values >> shift
    for turn in reversed(range(_ROUNDS)) if backwards else range(_ROUNDS):
        if turn % 2 == 0:
            step = mix_in_place(high ^ np.uint64(key[turn]))
            low = (low - step if backwards else low + step) & mask
        else:
            step = _below(mix_in_place(low ^ np.uint64(key[turn])), size)
            # Modulo `size`, without a division. The numbers are unsigned: they must not become negative.
            high += size - step if backwards else step
            high -= np.where(high >= size, size, np.uint64(0))
    np.left_shift(high, shift, out=values)
    values |= low


def _below(hashes: np.ndarray, size: np.uint64) -> np.ndarray:
    """Map hashes evenly to ``range(size)``, for sizes below 2**32 (Lemire 2019, without rejection)."""
    hashes >>= np.uint64(32)
    hashes *= size
    hashes >>= np.uint64(32)
    return hashes
