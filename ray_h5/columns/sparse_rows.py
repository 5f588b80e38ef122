"""Rows of sparse matrices: as they travel, as compressed rows (CSR), and as dense arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import RowIndexError
from ray_h5.manifest.partition import Partition
from ray_h5.read.casting import cast_error, lost
from ray_h5.read.native.dense_rows import dense_rows

_DENSE = "column {!r}: dense rows of a sparse matrix"


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The entries of many rows, one row after the other.

    Attributes
    ----------
    indices : numpy.ndarray
        int32 or int64: the position of each entry in its row, inside the row.
    data : numpy.ndarray
        Its value.
    """

    indices: np.ndarray
    data: np.ndarray


class SparseRow:
    """One row of a sparse matrix: the positions and values of its entries, as views of the entries of many rows."""

    __slots__ = ("entries", "start", "stop")

    def __init__(self, entries: Entries, start: int, stop: int) -> None:
        self.entries, self.start, self.stop = entries, start, stop

    @property
    def indices(self) -> np.ndarray:
        """Position of each entry, in the order of the file: not sorted, and maybe repeated."""
        return self.entries.indices[self.start : self.stop]

    @property
    def data(self) -> np.ndarray:
        """Value of each entry."""
        return self.entries.data[self.start : self.stop]

    def __len__(self) -> int:
        return self.stop - self.start

    def copy(self) -> SparseRow:
        """Return the same row with memory of its own."""
        return SparseRow(Entries(self.indices.copy(), self.data.copy()), 0, len(self))

    def __repr__(self) -> str:
        return f"SparseRow(indices={self.indices}, data={self.data})"


def rows_of(entries: Entries, indptr: np.ndarray) -> np.ndarray:
    """Return rows as an array of objects; row i has the entries from ``indptr[i]`` to ``indptr[i + 1]``."""
    bounds = indptr.tolist()
    rows = map(SparseRow, repeat(entries), bounds[:-1], bounds[1:])
    return np.fromiter(rows, object, len(indptr) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class SparseBatch:
    """Some rows as compressed rows.

    Attributes
    ----------
    indptr : numpy.ndarray
        int64: row i has the entries from ``indptr[i]`` to ``indptr[i + 1]``.
    indices, data : numpy.ndarray
        As of `Entries`.
    width : int
        Length of a row.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    width: int

    @classmethod
    def of(cls, rows: np.ndarray, spec: ColumnSpec, where: Callable[[int], str] | None = None) -> SparseBatch:
        """Return rows of a column in the dtype that they are delivered in. Nothing is copied if they are neighbours.

        `where` names the place of row i, for messages.
        """
        assert spec.element is not None
        width, (starts, stops), entries = _width(spec), _bounds(rows), _entries(rows)
        indptr = Partition.of(stops - starts).starts
        if not entries:
            return cls(indptr, np.empty(0, index_dtype(width)), np.empty(0, spec.element), width)
        if len(entries) == 1 and (starts[1:] == stops[:-1]).all():
            (only,) = entries
            part = slice(int(starts[0]), int(stops[-1]))
            indices, data = only.indices[part], only.data[part]
        else:
            indices = np.concatenate([row.indices for row in rows])
            data = np.concatenate([row.data for row in rows])
        if data.dtype != spec.element:
            if spec.casting != "unsafe" and (wrong := np.flatnonzero(lost(data, spec.element, spec.casting))).size:
                row = int(np.searchsorted(indptr, wrong[0], side="right")) - 1
                place = "" if where is None else f"{where(row)}: "
                raise cast_error(f"{place}column {spec.name!r}", data[wrong[0]], spec.element)
            data = data.astype(spec.element)
        return cls(indptr, indices, data, width)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """``indptr``, ``indices``, ``data`` and ``width``."""
        return self.indptr, self.indices, self.data, self.width

    def canonical(self) -> SparseBatch:
        """Return the same rows with ascending positions; the values of a position that repeats are added.

        Raises
        ------
        RowIndexError
            If a position is outside its row.
        """
        # numpy and torch would write outside of a row without an error.
        if (at := first_outside(self.indices, self.width)) is not None:
            raise RowIndexError(f"sparse rows: expected positions from 0 to {self.width - 1}, found {self.indices[at]}")
        rises, ends = self.indices[1:] > self.indices[:-1], self.indptr[1:-1]
        rises[ends[(ends > 0) & (ends < len(self.indices))] - 1] = True
        if rises.all():
            return self
        of = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        order = np.lexsort((self.indices, of))
        of, indices, data = of[order], self.indices[order], self.data[order]
        new = np.concatenate([[True], (of[1:] != of[:-1]) | (indices[1:] != indices[:-1])])
        first = np.flatnonzero(new)
        added = np.add.reduceat(data, first, dtype=data.dtype)
        counts = np.bincount(of[first], minlength=len(self))
        return SparseBatch(Partition.of(counts).starts, indices[first], added, self.width)

    def to_dense(self, name: str = "X") -> np.ndarray:
        """Return an array of shape ``(rows, width)``; the values of a position that repeats are added.

        `name` is that of the column, for messages.

        Raises
        ------
        RowIndexError
            If a position is outside its row.
        OutOfMemoryError
            If the shape that a file claims for the matrix takes more memory than there is.
        """
        bounds = self.indptr[:-1], self.indptr[1:]
        return dense_rows(*bounds, self.indices, self.data, self.width, _DENSE.format(name))


def dense_batch(rows: np.ndarray, spec: ColumnSpec) -> np.ndarray:
    """Return rows of a column as `SparseBatch.to_dense` does; entries of one read are not copied before."""
    entries = _entries(rows)
    if len(entries) != 1 or entries[0].data.dtype != spec.element:
        return SparseBatch.of(rows, spec).to_dense(spec.name)
    (only,) = entries
    return dense_rows(*_bounds(rows), only.indices, only.data, _width(spec), _DENSE.format(spec.name))


def _width(spec: ColumnSpec) -> int:
    return math.prod(int(n or 0) for n in spec.type.ragged_shape)


def _bounds(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the entries of each row begin and end: int64."""
    count = len(rows)
    starts = np.fromiter([row.start for row in rows], np.int64, count)
    return starts, np.fromiter([row.stop for row in rows], np.int64, count)


def _entries(rows: np.ndarray) -> list[Entries]:
    """Return the entries that rows are parts of."""
    return [*{id(row.entries): row.entries for row in rows}.values()]


def first_outside(indices: np.ndarray, width: int) -> int | None:
    """Return the place of the first position that is outside a row; None if there is none."""
    # Without a sign, a negative number is larger than all others: one look at them finds both.
    if not len(indices) or int(indices.view(f"u{indices.itemsize}").max()) < width:
        return None
    return int(np.flatnonzero((indices < 0) | (indices >= width))[0])


def index_dtype(width: int) -> np.dtype:
    """Return the dtype of positions in rows of a length."""
    return np.dtype(np.int32 if width <= np.iinfo(np.int32).max else np.int64)


def cast_sparse(rows: np.ndarray, spec: ColumnSpec, where: Callable[[int], str]) -> None:
    """Cast rows in place, where it is known which rows they are.

    Raises
    ------
    CastError
        If a value is lost, unless the casting of the column is "unsafe".
    """
    if not len(rows) or rows[0].data.dtype == spec.element:
        return
    cast = SparseBatch.of(rows, spec, where)
    rows[:] = rows_of(Entries(cast.indices, cast.data), cast.indptr)
