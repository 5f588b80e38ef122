"""Parts of rows: positions along their axes, and entries along the first axis of rows of varying length."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from weakref import WeakMethod

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.conventions.coded_columns import Category, Optional
from ray_h5.columns.made_columns import Cut, JoinedColumn, MadeColumn, Positions, RowEntries, RowPart
from ray_h5.columns.ragged.csr_groups import positions_of
from ray_h5.columns.ragged.range_columns import RaggedRows, SparseRows
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Taken, Values
from ray_h5.errors import UnsupportedColumnError
from ray_h5.hashing import word_at
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.reader import RowReader


def keys_of(name: str, seed: int, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return a key for each row of a file and its draw: uint64. They depend on the name of the file."""
    of_file = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    first, second = word_at(np.array([seed, of_file], np.uint64), np.ones(2))
    return word_at(word_at(first, rows) ^ second, draws)


class Described:
    """The columns of a file that the user describes, and the parts of values that are asked for.

    Parameters
    ----------
    reader : RowReader
        The file.
    columns : iterable of MadeColumn
        The columns.
    column : method
        Of the owner: returns another column of the file, such as names of positions.
    """

    def __init__(self, reader: RowReader, columns: Iterable[MadeColumn], column: Callable[[str], Values]) -> None:
        self._reader = reader
        self.made = {each.name: each for each in columns}
        # Its owner has this object: a strong reference would be a circle, which keeps what libhdf5 has open.
        self._column = WeakMethod(column)

    def whole(self, name: str) -> str | MadeColumn | None:
        """Return how a column is described, or the one that it is a part of; None for others."""
        given = self.made.get(name.strip("/"))
        return given.whole if isinstance(given, RowPart) else given

    def dataset_of(self, name: str) -> str:
        """Return the dataset, group or field that a column is of; of most, it has the name."""
        made = self.made.get(name.strip("/"))
        return name if made is None or isinstance(made, JoinedColumn) else made.dataset

    def part(self, name: str) -> RowPart | None:
        """Return the part that a column is; None for whole values."""
        made = self.made.get(name.strip("/"))
        return made if isinstance(made, RowPart) and not made.is_whole else None

    def of_units(self, name: str, values: Values) -> Values:
        """Return the parts of units that the user asks for; they are units of rows, or of steps."""
        if (made := self.part(name)) is None:
            return values
        if isinstance(values, SparseRows):
            return self._of_sparse(made, values)
        where = f"{self._reader.path}: column {made.name!r}"
        if isinstance(values, RaggedRows):
            content = self._inner(made, values.content)
            return replace(values, content=content, entries=entries_of(made, where))
        if made.random is not None and (values.array.kind in {"list", "ragged"} or not values.array.row_shape):
            raise UnsupportedColumnError(f"{where}: {made}: its rows have no axis to draw from")
        taken = self._taken(made, dict(made.axes), values)
        return taken if made.random is None else Taken(taken, entries=RowEntries(made.random, where))

    def of_datasets(self, name: str, values: Values, joined: JoinedArray) -> tuple[Values, RowEntries | None]:
        """Return the parts of rows that are whole datasets: values, and entries of their first axis."""
        if (made := self.part(name)) is None:
            return values, None
        where = f"{self._reader.path}: column {made.name!r}"
        if joined.single:
            raise UnsupportedColumnError(f"{where} has single values; {made} expects rows with axes")
        if joined.unit_shape is None and any(axis for axis, _ in made.axes):
            raise UnsupportedColumnError(
                f"{where}: {made}: its rows differ in shape along axes after the first one. Choose groups that agree "
                "with the pattern, or take parts of the first axis alone."
            )
        return self._inner(made, values), entries_of(made, where)

    def of_blocks(
        self, name: str, array: ColumnLayout, cut: tuple[int, ...]
    ) -> tuple[tuple[np.ndarray | None, ...], RowEntries | None]:
        """Return the part of blocks: positions along each axis that these have as a whole, and what is drawn.

        Raises
        ------
        UnsupportedColumnError
            If a part is along an axis that blocks cut, those in `cut`.
        """
        if (made := self.part(name)) is None:
            return (), None
        asked = [*([] if made.random is None else [0]), *(axis for axis, _ in made.axes)]
        others = [axis for axis in range(len(array.shape)) if axis not in cut]
        for axis in asked:
            if axis not in others:
                raise UnsupportedColumnError(
                    f"{array.where} has shape {array.shape}, of which blocks cut the axes {list(cut)}; {made} takes "
                    f"parts of axis {axis}. Take parts of "
                    + (f"the axes {others}, which blocks have as a whole" if others else "arrays with channels")
                    + ", and choose other blocks with rows=Patches(...)."
                )
        taken = self._positions(made, dict(made.axes), array.shape)
        return taken, None if made.random is None else entries_of(made, array.where)

    def _inner(self, made: RowPart, values: Values) -> Values:
        """Return the parts along the axes of rows after the first one, which is that of units."""
        return self._taken(made, {axis - 1: at for axis, at in made.axes if axis}, values, first_axis=1)

    def _taken(self, made: RowPart, axes: dict[int, Positions], values: Values, first_axis: int = 0) -> Values:
        shape = values.array.row_shape
        if not axes:
            return values
        if values.array.kind in {"list", "ragged"} or max(axes) >= len(shape):
            found = f"rows of {values.array.kind} values" if values.array.kind in {"list", "ragged"} else f"{shape}"
            raise UnsupportedColumnError(
                f"{values.array.where}: {made} takes axis {max(axes) + first_axis} of rows; expected rows with so "
                f"many axes, found {found}"
            )
        return take(values, self._positions(made, axes, shape, first_axis))

    def _positions(
        self, made: RowPart, axes: dict[int, Positions], shape: tuple[int, ...], first_axis: int = 0
    ) -> tuple[np.ndarray | None, ...]:
        """Return the positions along each axis of a shape; None for all."""
        taken: list[np.ndarray | None] = [None] * (max(axes, default=-1) + 1)
        for axis, at in axes.items():
            taken[axis] = self._along(f"part({made.name!r}, {{{axis + first_axis}: ...}})", made, at, shape[axis])
        return tuple(taken)

    def _along(self, what: str, made: RowPart, at: Positions, length: int) -> np.ndarray:
        """Return the positions along an axis of this length."""
        if isinstance(at, Cut):
            return at.positions(length)
        column = self._column()
        assert column is not None, "the owner asks"
        return positions_of(self._reader, what, at, made.names, length, column)

    def _of_sparse(self, made: RowPart, values: SparseRows) -> SparseRows:
        if [axis for axis, _ in made.axes] != [0] or made.random is not None:
            raise UnsupportedColumnError(
                f"{self._reader.path}: column {made.name!r} has rows of a sparse matrix, which have axis 0 alone; "
                f"found {made}"
            )
        at = self._along(f"part({made.name!r})", made, made.axes[0][1], values.delivered_width)
        return replace(values, take=at if values.take is None else values.take[at])


def entries_of(made: RowPart, where: str) -> RowEntries | None:
    """Return what a part takes of the first axis of rows of varying length; None for all."""
    at = dict(made.axes).get(0)
    if made.random is not None:
        return RowEntries(made.random, where)
    if at is None or isinstance(at, Cut):
        return None if at is None else RowEntries(at, where)
    if isinstance(at[0], str):
        raise UnsupportedColumnError(
            f"{where}: rows of varying length have no names along axis 0; part() got {at[0]!r}"
        )
    return RowEntries(np.array(at, np.int64), where)


def take(values: Values, taken: tuple[np.ndarray | None, ...]) -> Values:
    """Return values with some positions along the axes of a unit: of what is stored, where that is possible."""
    if isinstance(values, (Stored, Taken)):
        return values.take(taken)
    if isinstance(values, CF) and isinstance(stored := values.values.take(taken), Stored):
        return replace(values, values=stored)
    if isinstance(values, Category) and isinstance(codes := values.codes.take(taken), Stored):
        return replace(values, codes=codes)
    if isinstance(values, Optional):
        stored, mask = values.values.take(taken), values.mask.take(taken)
        if isinstance(stored, Stored) and isinstance(mask, Stored):
            return replace(values, values=stored, mask=mask)
    return Taken(values, taken)
