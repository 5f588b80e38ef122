"""`Shuffle`: how rows are drawn; and its option `weights`: how often each of them is."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow.compute as pc

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError
from ray_h5.options import as_integer, is_number, names_options, require, takes_options

Unit = Literal["auto", "rows", "chunks", "files"]

_OPTIONS = ("weights", "rows_per_epoch", "by_length", "run_rows", "batch_values")
_UNITS = ("auto", "rows", "chunks", "files")
_LENGTHS = "expected the name of a column with the length of each row, or an array with a number for each row"

_MOST_ROWS = {"window_rows": (1 << 63) - 1, "rows_per_epoch": 1 << 40, "run_rows": 1 << 40}
"""Positions in an epoch are int64, and those of a run are made at once."""

_REPLACEMENT = "Weights draw each position independently. Shuffle(rows_per_epoch=n) draws no row twice before all came."

_SUM_TOLERANCE = 1e-6
"""Shares are written as decimals: 0.333333 three times is one."""

_EXPECTED = (
    "expected the name of a numeric column, an array with a number for each row, balance(column), or a dict of shares "
    "by file"
)


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
        for name in ("seed", "window_rows", "rows_per_epoch", "run_rows"):
            if (value := getattr(self, name)) is not None:
                least = 0 if name == "seed" else 1
                value = as_integer(f"Shuffle: {name}", value, least, instead=", or None")
                require(value <= (most := _MOST_ROWS.get(name, value)), f"Shuffle: {name}", value, f"at most {most}")
                object.__setattr__(self, name, value)
        rows = self.window_rows
        if rows is not None and self.unit in ("rows", "files") and self.by_length is None:
            raise OptionError(f"Shuffle(unit={self.unit!r}, window_rows={rows}): only chunks are mixed in windows")
        if self.weights is not None:
            object.__setattr__(self, "weights", as_weights(self.weights))
            if self.unit == "files":
                raise OptionError(
                    f"Shuffle(unit='files', weights={shown(self.weights)}): weights draw rows; expected unit='rows' or "
                    "'chunks'"
                )
        self._check_lengths()

    def _check_lengths(self) -> None:
        run, values = self.run_rows, self.batch_values
        is_sum = values is None or (is_number(values) and 0 < values < float("inf"))
        require(is_sum, "Shuffle: batch_values", values, "a number above 0, or None")
        if self.by_length is None:
            for name, value, why in (("batch_values", values, ", which says what is summed"), ("run_rows", run, "")):
                if value is not None:
                    raise OptionError(f"Shuffle: {name}={value}: is used only with by_length{why}")
            return
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
        others: dict[str, Any] = dict.fromkeys(_OPTIONS)
        return replace(self, unit=unit, window_rows=window, **others)

    def __repr__(self) -> str:
        values = {name: value for name in _OPTIONS if (value := getattr(self, name)) is not None}
        others = "".join(f", {name}={shown(value)}" for name, value in values.items())
        return f"Shuffle(unit={self.unit!r}, seed={self.seed}, window_rows={self.window_rows}{others})"


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


# Weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Balance:
    """Classes that are drawn by shares; see `balance`.

    Attributes
    ----------
    columns : tuple of str
        The columns whose values make the classes.
    shares : tuple of (class, share), optional
        The shares that were given. Other classes share the rest equally.
    """

    columns: tuple[str, ...]
    shares: tuple[tuple[Any, float], ...] = ()

    def __repr__(self) -> str:
        columns = self.columns[0] if len(self.columns) == 1 else list(self.columns)
        return f"balance({columns!r}{f', {dict(self.shares)!r}' if self.shares else ''})"


RowValues: TypeAlias = "str | np.ndarray"
"""A number for each row: a column, or a number for each row id."""

Weights: TypeAlias = "RowValues | Balance | Mapping[str, float] | None"
"""Checked weights: a column, a number for each row id, classes, or shares by file."""


@names_options
def balance(columns: str | Sequence[str], shares: Mapping[Any, float] | None = None) -> Balance:
    """Return weights that draw each class equally often, or by shares.

    Each position is drawn independently: a class by its share, and a row of this class. So a row may come several times
    in an epoch, and small batches have their shares about.

    Parameters
    ----------
    columns : str, or sequence of str
        The scalar column with the class of each row. Of several columns, each combination of values that occurs is
        a class.
    shares : mapping, optional
        Class to share: ``{"rare": 0.5}``. The other classes share the rest equally. Of several columns a class is a
        tuple of values.

    Raises
    ------
    OptionError
        If a share is no number from 0 to 1, or their sum is above 1.

    Examples
    --------
    >>> Shuffle(weights=balance("label"))  # doctest: +SKIP
    >>> Shuffle(weights=balance("label", {"rare": 0.5}), rows_per_epoch=10_000)  # doctest: +SKIP
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"balance({columns!r}): expected the name of a column, or a list of names")
    if len(set(names)) < len(names):
        raise OptionError(f"balance({columns!r}): a column is named twice")
    if shares is None:
        return Balance(names)
    if not isinstance(shares, Mapping) or not shares:
        raise OptionError(f"balance({columns!r}, {shares!r}): expected shares as a dict, such as {{'rare': 0.5}}")
    pairs = tuple((_as_class(value), _as_share(f"balance: {value!r}", share)) for value, share in shares.items())
    total = math.fsum(share for _, share in pairs)
    if total > 1 + _SUM_TOLERANCE:
        raise OptionError(f"balance({columns!r}, {dict(shares)!r}): expected shares with a sum of at most 1")
    return Balance(names, pairs)


def as_weights(weights: Any) -> Weights:
    """Return the checked value of the option `weights`.

    Raises
    ------
    OptionError
        If it cannot be used; it names the first weight that is negative, infinite or NaN.
    """
    if weights is None or isinstance(weights, Balance):
        return weights
    if not isinstance(weights, Mapping):
        return as_row_values("weights", weights, _EXPECTED)
    if not weights or not all(isinstance(pattern, str) for pattern in weights):
        raise OptionError(f"Shuffle: weights={weights!r}: expected patterns of paths, such as {{'a/*.h5': 0.3}}")
    shares = {pattern: _as_share(f"Shuffle: weights: {pattern!r}", share) for pattern, share in weights.items()}
    total = math.fsum(shares.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise OptionError(f"Shuffle: weights={dict(weights)!r}: expected shares with the sum 1, found {total:g}")
    return shares


def as_row_values(option: str, values: Any, expected: str) -> RowValues:
    """Return the checked value of an option that gives each row a number.

    Raises
    ------
    OptionError
        If it cannot be used; it names the first number that is negative, infinite or NaN.
    """
    if isinstance(values, str):
        return values
    if isinstance(values, pc.Expression) or hasattr(values, "to_pyarrow"):
        raise OptionError(f"Shuffle: {option}={values}: {expected}. Compute an expression, and pass it as an array.")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as exc:  # RuntimeError: of a tensor on a GPU, or with a gradient
        raise OptionError(f"Shuffle: {option}={type(values).__name__}: {expected}: {exc}") from exc
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        shown = f"a {type(values).__name__} of dtype {array.dtype} and shape {array.shape}"
        raise OptionError(f"Shuffle: {option}: {expected}, found {shown}")
    wrong = first_wrong(array)
    if wrong is not None:
        raise OptionError(f"Shuffle: {option}[{wrong}]={array[wrong]}: expected a finite number of 0 or more")
    return array


def first_wrong(weights: np.ndarray) -> int | None:
    """Return the place of the first weight that is negative, infinite or NaN; None if there is none."""
    if weights.dtype.kind in "ub" or not len(weights):
        return None
    is_good = weights >= 0  # false for NaN
    if weights.dtype.kind == "f":
        is_good &= weights < math.inf
    return None if is_good.all() else int(np.argmin(is_good))


def named_columns(weights: Weights) -> tuple[str, ...]:
    """Return the columns that weights, or lengths, are made from."""
    return weights.columns if isinstance(weights, Balance) else (weights,) if isinstance(weights, str) else ()


def shown(weights: Weights) -> str:
    """Return weights, or lengths, as a user writes them; an array by its length."""
    return f"<{len(weights)} numbers>" if isinstance(weights, np.ndarray) else repr(weights)


def _as_share(what: str, share: Any) -> float:
    if not is_number(share) or not 0 <= share <= 1:
        raise OptionError(f"{what}: share {share!r}: expected a number from 0 to 1")
    return float(share)


def _as_class(value: Any) -> Any:
    """Return a class as a value of Python: NumPy's scalars compare alike, but show otherwise."""
    if isinstance(value, tuple):
        return tuple(map(_as_class, value))
    return value.item() if isinstance(value, np.generic) else value
