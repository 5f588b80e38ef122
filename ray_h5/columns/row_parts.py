"""Parts of rows: positions along their axes, and entries along the first axis of rows of varying length."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.conventions.coded_columns import Category, Optional
from ray_h5.columns.made_columns import Cut, Positions, RowPart
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Taken, Values
from ray_h5.columns.varying.csr_groups import positions_of
from ray_h5.columns.varying.range_columns import RaggedRows, SparseRows
from ray_h5.columns.varying.runs import RowEntries
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


def taken_of(reader: RowReader, made: RowPart, values: Values, column: Callable[[str], Values]) -> Values:
    """Return the parts of units that a user asks for.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : RowPart
        Which parts.
    values : Values
        The whole units.
    column : callable
        Returns another column of the file, such as names of positions.
    """
    if isinstance(values, SparseRows):
        return _of_sparse(reader, made, values, column)
    where = f"{reader.path}: column {made.name!r}"
    if isinstance(values, RaggedRows):
        inner = {axis - 1: at for axis, at in made.axes if axis}
        content = _taken(reader, made, inner, values.content, column, first_axis=1)
        return replace(values, content=content, entries=entries_of(made, where))
    if made.random is not None and (values.array.kind in {"list", "ragged"} or not values.array.row_shape):
        raise UnsupportedColumnError(f"{where}: {made}: its rows have no axis to draw from")
    taken = _taken(reader, made, dict(made.axes), values, column)
    return taken if made.random is None else Taken(taken, entries=RowEntries(made.random, where))


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


def dataset_part(
    reader: RowReader, made: RowPart, whole: Values, joined: JoinedArray, column: Callable[[str], Values]
) -> tuple[Values, RowEntries | None]:
    """Return the parts of rows that are whole datasets: values, and entries along their first axis, that of units."""
    where = f"{reader.path}: column {made.name!r}"
    if joined.single:
        raise UnsupportedColumnError(f"{where} has single values; {made} expects rows with axes")
    inner = {axis - 1: at for axis, at in made.axes if axis}
    if inner and joined.unit_shape is None:
        raise UnsupportedColumnError(
            f"{where}: {made}: its rows differ in shape along axes after the first one. Choose groups that agree with "
            "the pattern, or take parts of the first axis alone."
        )
    return _taken(reader, made, inner, whole, column, first_axis=1), entries_of(made, where)


def _taken(
    reader: RowReader,
    made: RowPart,
    axes: dict[int, Positions],
    values: Values,
    column: Callable[[str], Values],
    first_axis: int = 0,
) -> Values:
    shape = values.array.row_shape
    if not axes:
        return values
    if values.array.kind in {"list", "ragged"} or max(axes) >= len(shape):
        found = f"rows of {values.array.kind} values" if values.array.kind in {"list", "ragged"} else f"{shape}"
        raise UnsupportedColumnError(
            f"{values.array.where}: {made} takes axis {max(axes) + first_axis} of rows; expected rows with so many "
            f"axes, found {found}"
        )
    return take(values, _positions(reader, made, axes, shape, column, first_axis))


def _positions(
    reader: RowReader,
    made: RowPart,
    axes: dict[int, Positions],
    shape: tuple[int, ...],
    column: Callable[[str], Values],
    first_axis: int = 0,
) -> tuple[np.ndarray | None, ...]:
    """Return the positions along each axis of a shape; None for all."""
    taken: list[np.ndarray | None] = [None] * (max(axes, default=-1) + 1)
    for axis, at in axes.items():
        what = f"part({made.name!r}, {{{axis + first_axis}: ...}})"
        taken[axis] = (
            at.positions(shape[axis])
            if isinstance(at, Cut)
            else positions_of(reader, what, at, made.names, shape[axis], column)
        )
    return tuple(taken)


def taken_of_blocks(
    reader: RowReader, made: RowPart, array: ColumnLayout, cut: tuple[int, ...], column: Callable[[str], Values]
) -> tuple[np.ndarray | None, ...]:
    """Return the positions along the axes of an array that blocks have as a whole, those in `cut` being theirs.

    Raises
    ------
    UnsupportedColumnError
        If a part is along an axis that blocks cut.
    """
    asked = [*([] if made.random is None else [0]), *(axis for axis, _ in made.axes)]
    others = [axis for axis in range(len(array.shape)) if axis not in cut]
    for axis in asked:
        if axis not in others:
            raise UnsupportedColumnError(
                f"{array.where} has shape {array.shape}, of which blocks cut the axes {list(cut)}; {made} takes parts "
                f"of axis {axis}. Take parts of "
                + (f"the axes {others}, which blocks have as a whole" if others else "arrays with channels")
                + ", and choose other blocks with rows=Patches(...)."
            )
    return _positions(reader, made, dict(made.axes), array.shape, column)


def _of_sparse(reader: RowReader, made: RowPart, values: SparseRows, column: Callable[[str], Values]) -> SparseRows:
    if [axis for axis, _ in made.axes] != [0] or made.random is not None:
        raise UnsupportedColumnError(
            f"{reader.path}: column {made.name!r} has rows of a sparse matrix, which have axis 0 alone; found {made}"
        )
    at, width = made.axes[0][1], values.delivered_width
    positions = (
        at.positions(width)
        if isinstance(at, Cut)
        else positions_of(reader, f"part({made.name!r})", at, made.names, width, column)
    )
    return replace(values, take=positions if values.take is None else values.take[positions])


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
