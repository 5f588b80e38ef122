"""Columns of one file as a row kind has them: which units a row takes, of values that are decoded elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.conventions.referred_columns import texts_of_characters
from ray_h5.columns.dataset_columns import (
    ColumnOfUnits,
    DatasetColumn,
    Numbers,
    after,
    axes_of_fields,
    layout_of_rows,
    ragged_layout,
    repeated,
)
from ray_h5.columns.stored_values import Stored, field_of
from ray_h5.columns.values import Reading, Values
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import request_of

if TYPE_CHECKING:
    from ray_h5.columns.varying.bounds import Bounds
    from ray_h5.columns.varying.range_columns import RaggedRows


@dataclass(frozen=True, slots=True, eq=False)
class RowColumn(ColumnOfUnits):
    """A column with one unit a row.

    Attributes
    ----------
    units_of : callable, optional
        Returns the unit of each row; None if they are equal.
    chunk_rows : int, optional
        Rows that are best read together; None if rows are the units of the array.
    """

    units_of: Numbers | None = None
    chunk_rows: int | None = 1

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        array = self.values.array
        if self.chunk_rows is None:
            return array if array.name == self.name else replace(array, name=self.name)
        return layout_of_rows(self.name, array, (num_rows, *array.row_shape), self.chunk_rows, path)

    def at(self, numbers_of: Numbers) -> RowColumn:
        """Return the column whose row i is row ``numbers_of(i)`` of this one."""
        return replace(self, units_of=after(self.units_of, numbers_of))

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        units = rows if self.units_of is None else self.units_of(rows)
        return self.values.reading(request_of(units, places), out)


@dataclass(frozen=True, slots=True, eq=False)
class StepColumn(ColumnOfUnits):
    """A column with one step of a dataset a row, where steps of datasets differ in shape, or a group lacks the column.

    Attributes
    ----------
    joined : JoinedArray
        Says which units a dataset has.
    step_of : callable
        Returns for rows: the dataset, and the step.
    """

    joined: JoinedArray
    step_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        array = self.values.array
        fields = axes_of_fields(self.values, self.joined)
        shape = (*self.joined.common_shape[1:], *fields)
        if not shape and array.kind in {"string", "category", "optional"}:
            return layout_of_rows(self.name, array, (num_rows,), 1, path)
        if not shape or array.kind not in {"number", "bool"}:
            lacks = "a group lacks it, and a single value cannot be None"
            differ = f"its steps differ in shape, or a group lacks it, and it holds {array.kind} values"
            raise UnsupportedColumnError(
                f"{path}: column {self.name!r}: {differ if shape else lacks}. Choose other columns with columns=[...]."
            )
        shapes = np.concatenate([self.joined.shapes[:, 1:], repeated(fields, len(self.joined))], axis=1)
        return ragged_layout(self.name, array, shapes, shape, num_rows, path)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        found, steps = self.step_of(rows)
        there = self.joined.is_there[found]
        out[places[~there]] = None if out.dtype == object else self.values.blank(out.dtype)
        found, units, places = found[there], (self.joined.starts[found] + steps)[there], places[there]
        if self.values.array.kind not in {"number", "bool"}:
            return self.values.reading(request_of(units, places), out) if len(units) else Reading()
        shapes, shape_of = np.unique(self.joined.shapes[found, 1:], axis=0, return_inverse=True)
        readings, filled = [], []
        for number, shape in enumerate(shapes.tolist()):
            chosen = np.flatnonzero(shape_of.reshape(-1) == number)
            fields = axes_of_fields(self.values, self.joined)
            values = empty((len(chosen), *shape, *fields), self.values.array.dtype, f"column {self.name!r}")
            readings.append(self.values.reading(request_of(units[chosen], np.arange(len(chosen))), values))
            filled.append((places[chosen].tolist(), values))

        return Reading.together(readings).then(partial(_put_each, filled, out))


@dataclass(frozen=True, slots=True, eq=False)
class WindowedColumn(ColumnOfUnits):
    """A column with several units a row, such as those at some offsets from a step of an episode.

    Rows of a sparse matrix are one such row, `width` times as long; other values get an axis.

    Attributes
    ----------
    width : int
        Units of a row.
    units_of : callable
        Returns for rows: the units, and as bools which of them are blank; both of shape ``(rows, width)``.
    chunk_rows : int
        Rows that are best read together.
    joined : JoinedArray, optional
        The episodes, if steps of one have another shape than those of another.
    """

    width: int
    units_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    chunk_rows: int = 1
    joined: JoinedArray | None = None

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        array, width = self.values.array, self.width
        if self.joined is not None:
            fields, count = axes_of_fields(self.values, self.joined), len(self.joined)
            steps = np.full((count, 1), width), self.joined.shapes[:, 1:], repeated(fields, count)
            shape = (width, *self.joined.common_shape[1:], *fields)
            return ragged_layout(self.name, array, np.concatenate(steps, axis=1), shape, num_rows, path)
        if array.kind == "sparse":
            found = layout_of_rows(self.name, array, (num_rows,), self.chunk_rows, path)
            return replace(found, ragged_shape=(width, *array.ragged_shape), item_bytes=width * array.item_bytes)
        found = layout_of_rows(self.name, array, (num_rows, width, *array.row_shape), self.chunk_rows, path)
        if array.kind != "ragged":
            return found
        if None in array.ragged_shape[1:]:
            raise UnsupportedColumnError(
                f"{path}: Windows: column {self.name!r} holds arrays that differ along several axes, "
                f"{array.ragged_shape}; windows take those that differ along their first axis alone. Leave the column "
                "out of the offsets."
            )
        assert array.element is not None
        element = np.dtype((array.element, tuple(int(n or 0) for n in array.ragged_shape[1:])))
        return replace(found, kind="list", element=element)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        units, blank = self.units_of(rows)
        if self.joined is not None:
            return self._by_shape(self.joined, units[:, 0], rows, places, out)
        units = units.reshape(-1)
        width, is_sparse = self.width, self.values.array.kind == "sparse"
        flat = out if is_sparse else out.reshape(out.shape[0] * width, *out.shape[2:])
        in_place = not is_sparse and (bool(np.shares_memory(flat, out)) or not out.size)
        into = flat if in_place else empty((len(units), *out.shape[2:]), out.dtype)
        there = (places[:, None] * width + np.arange(width)).reshape(-1) if in_place else np.arange(len(units))

        def finish() -> None:
            if blank.any():
                # One by one: numpy would take an array for several values.
                nothing = self.values.blank(out.dtype)
                for at in there[blank.reshape(-1)].tolist() if out.dtype == object else ():
                    for index in np.ndindex(into.shape[1:]):
                        into[(at, *index)] = nothing
                if out.dtype != object:
                    into[there[blank.reshape(-1)]] = nothing
            if is_sparse:
                from ray_h5.columns.varying.range_columns import joined_rows

                out[places] = joined_rows(into.reshape(len(rows), width), self.values.array.ragged_shape[0] or 0)
            elif not in_place:
                out[places] = into.reshape(len(rows), *out.shape[1:])

        return self.values.reading(request_of(units, there), into).then(finish)

    def _by_shape(
        self, joined: JoinedArray, units: np.ndarray, rows: np.ndarray, places: np.ndarray, out: np.ndarray
    ) -> Reading:
        """Return the reading of windows as arrays of their own: those of episodes of one shape together."""
        shapes = joined.shapes[joined.datasets_of(units), 1:]
        found, shape_of = np.unique(shapes, axis=0, return_inverse=True)
        readings, filled = [], []
        fields = axes_of_fields(self.values, joined)
        for number, shape in enumerate(found.tolist()):
            chosen = np.flatnonzero(shape_of.reshape(-1) == number)
            whole = (len(chosen), self.width, *shape, *fields)
            values = empty(whole, self.values.array.dtype, f"column {self.name!r}")
            readings.append(replace(self, joined=None).reading(rows[chosen], np.arange(len(chosen)), values))
            filled.append((places[chosen].tolist(), values))
        return Reading.together(readings).then(partial(_put_each, filled, out))


@dataclass(frozen=True, slots=True, eq=False)
class SpanColumn(ColumnOfUnits):
    """A column with all samples of a span of time, which are more in some rows than in others.

    Attributes
    ----------
    bounds_of : callable
        Returns the samples of rows.
    mean : float
        Samples of a row, about.
    """

    bounds_of: Callable[[np.ndarray], Bounds]
    mean: float

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        from ray_h5.columns.varying.bounds import Bounds

        count = np.array([max(1, round(self.mean))])
        one = self._ranges(Bounds(np.zeros(1, np.int64), count)).array
        return ColumnLayout(
            self.name, one.kind, (num_rows,), one.stored_dtype, "contiguous", element=one.element,
            ragged_shape=one.ragged_shape, enum=one.enum, item_bytes=one.item_bytes, sources=one.sources,
            direct=one.direct, path=path,
        )  # fmt: skip

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        request = request_of(np.arange(len(rows), dtype=np.int64), places)
        return self._ranges(self.bounds_of(rows)).reading(request, out)

    def _ranges(self, bounds: Bounds) -> RaggedRows:
        from ray_h5.columns.varying.range_columns import RaggedRows

        return RaggedRows(self.name, self.values, bounds)


Column: TypeAlias = RowColumn | DatasetColumn | StepColumn | WindowedColumn | SpanColumn


def is_plain(column: Column) -> bool:
    """Return whether a column is a dataset as it is stored, with its units as rows."""
    return isinstance(column, RowColumn) and isinstance(column.values, Stored) and column.chunk_rows is None


def text_or_whole(column: DatasetColumn, path: str, *, decode_cf: bool) -> RowColumn | DatasetColumn:
    """Return a column of whole datasets; with `decode_cf`, characters along one axis are a text."""
    text = texts_of_characters(column, path) if decode_cf else None
    return column if text is None else RowColumn(column.name, text)


def stored_part(column: Column) -> tuple[str, float] | None:
    """Return the dataset that a column is in, and the share of its bytes: of compound values, those of the field."""
    if not isinstance(column, RowColumn) or not isinstance(column.values, Stored):
        return None
    if not isinstance(column.values.address, str):
        return None
    whole, fields = column.values.layout, (column.values.field, *column.values.fields)
    bytes_of = [field_of(whole.stored_dtype, name)[0].itemsize for name in fields if name]
    return whole.name, sum(bytes_of) / whole.stored_dtype.itemsize if bytes_of else 1.0


def whole_joined_array(column: Column) -> JoinedArray | None:
    """Return the datasets of groups if row i is the one of group i, with its values as they are stored."""
    if not isinstance(column, DatasetColumn) or column.dataset_of is not None or column.entries is not None:
        return None
    return column.joined if isinstance(column.values, Stored) and column.values.is_all_of(column.joined) else None


def _put_each(filled: Sequence[tuple[list[int], np.ndarray]], out: np.ndarray) -> None:
    """Put rows of arrays into their places, each as an array of its own."""
    for into, values in filled:
        for place, value in zip(into, values, strict=True):
            out[place] = value


def with_keys(column: Column, keys: np.ndarray) -> Column:
    """Return a column whose entries are drawn by these keys, one for each place of the output of a read."""
    if isinstance(column, DatasetColumn) and column.entries is not None:
        return replace(column, entries=replace(column.entries, keys=keys))
    from ray_h5.columns.end_to_end import EndToEnd
    from ray_h5.columns.row_parts import DrawnEntries
    from ray_h5.columns.varying.range_columns import RaggedRows

    def drawn(values: Values) -> Values | None:
        if isinstance(values, (RaggedRows, DrawnEntries)) and values.entries is not None:
            return replace(values, entries=replace(values.entries, keys=keys))
        if isinstance(values, EndToEnd):
            parts = [each for each in map(drawn, values.parts) if each is not None]
            return replace(values, parts=tuple(parts)) if len(parts) == len(values.parts) else None
        return None

    if isinstance(column, RowColumn) and (found := drawn(column.values)) is not None:
        return replace(column, values=found)
    raise UnsupportedColumnError(
        f"column {column.name!r}: part(random=...) draws from rows; leave the column out of the offsets of Windows"
    )
