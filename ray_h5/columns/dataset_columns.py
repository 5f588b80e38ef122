"""Columns of which a row is a whole dataset of many, and what columns of several units a row share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.ragged.runs import Runs, by_shape
from ray_h5.columns.values import Reading, Values
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import request_of

Numbers: TypeAlias = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnOfUnits:
    """What each column of rows has.

    Attributes
    ----------
    name : str
        Name.
    values : Values
        The values of units.
    """

    name: str
    values: Values


@dataclass(frozen=True, slots=True, eq=False)
class DatasetColumn(ColumnOfUnits):
    """A column with one whole dataset a row.

    Attributes
    ----------
    joined : JoinedArray
        Says which units a dataset has.
    dataset_of : callable, optional
        Returns the dataset of each row; None if they are equal.
    entries : RowEntries, optional
        The units of a dataset that a row has; None for all.
    """

    joined: JoinedArray
    dataset_of: Numbers | None = None
    entries: RowEntries | None = None

    def at(self, numbers_of: Numbers) -> DatasetColumn:
        """Return the column whose row i is row ``numbers_of(i)`` of this one."""
        return replace(self, dataset_of=after(self.dataset_of, numbers_of))

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        array, shapes = self.values.array, self._shapes
        shape = self.joined.common_shape if self.joined.single else _common(shapes[self.joined.is_there])
        lacks = not self.joined.is_there.all()
        if lacks and self.joined.single and array.kind not in {"string", "category", "optional"}:
            raise UnsupportedColumnError(
                f"{path}: column {self.name!r}: {int(np.argmin(self.joined.is_there))} groups have it before one "
                "that lacks it, and a single value of numbers cannot be None. Choose other columns with columns=[...]."
            )
        if self.joined.single or (None not in shape and array.kind in {"number", "bool"} and not lacks):
            return layout_of_rows(self.name, array, (num_rows, *(int(n or 0) for n in shape)), 1, path)
        if array.kind == "list":
            raise UnsupportedColumnError(
                f"{path}: column {self.name!r}: datasets of arrays of varying length, one dataset a group, are lists "
                "of lists. Choose other columns with columns=[...]."
            )
        return ragged_layout(self.name, array, shapes, shape, num_rows, path)

    @property
    def _shapes(self) -> np.ndarray:
        """int64: the shape of each row as it is delivered."""
        stored, unit = self.joined.shapes, self.values.array.row_shape
        if self.joined.single:
            return stored
        lengths = stored[:, :1] if self.entries is None else self.entries.counts(stored[:, 0])[:, None]
        if self.joined.unit_shape is None:
            fields = axes_of_fields(self.values, self.joined)
            return np.concatenate([lengths, stored[:, 1:], repeated(fields, len(stored))], axis=1)
        return np.concatenate([lengths, repeated(unit, len(stored))], axis=1)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray, keys: np.ndarray | None = None) -> Reading:
        joined, datasets = self.joined, rows if self.dataset_of is None else self.dataset_of(rows)
        there = joined.is_there[datasets]
        if not there.all():
            out[places[~there]] = None if out.dtype == object else 0  # numbers are all there
            datasets, places, keys = datasets[there], places[there], None if keys is None else keys[there]
        if joined.single:
            request = request_of(joined.starts[datasets], places)
            return self.values.reading(request, out) if len(datasets) else Reading()
        runs = Runs(joined.starts[datasets], joined.lengths[datasets], places, datasets, self.entries, keys)
        if out.dtype != object or out.ndim > 1:
            return runs.stacked(self.values, out)
        if joined.unit_shape is not None:
            return runs.varying(self.values, out)
        fields = axes_of_fields(self.values, joined)
        return by_shape(
            joined.shapes[datasets, 1:],
            lambda chosen, shape: runs.select(chosen).varying(self.values, out, (*shape, *fields)),
        )


def axes_of_fields(values: Values, joined: JoinedArray) -> tuple[int, ...]:
    """Return the axes that values have and their datasets lack: those of fields of compound values."""
    return values.array.row_shape[len(joined.unit.row_shape) :]


def _common(shapes: np.ndarray) -> tuple[int | None, ...]:
    """Return the shape that rows share; None for an axis along which they differ."""
    if not len(shapes):
        return (None,) * shapes.shape[1]
    same = (shapes == shapes[0]).all(axis=0)
    return tuple(int(n) if alike else None for n, alike in zip(shapes[0], same, strict=True))


def repeated(shape: tuple[int, ...], count: int) -> np.ndarray:
    """Return a shape once for each of some rows."""
    return np.broadcast_to(np.array(shape, np.int64), (count, len(shape)))


def after(second: Numbers | None, first: Numbers) -> Numbers:
    """Return what gives the number of a number."""
    return first if second is None else lambda rows: second(first(rows))


def layout_of_rows(name: str, array: ColumnLayout, shape: tuple[int, ...], chunk_rows: int, path: str) -> ColumnLayout:
    """Return the layout of rows of one shape, which lie where `array` does, but are no dataset themselves."""
    chunks = None if chunk_rows == 1 else (chunk_rows, *shape[1:])
    rows = replace(array, name=name, shape=shape, chunk_shape=chunks, path=path)
    return replace(rows, offset=None, fill=None, user_block=0, lost_fields=())


def ragged_layout(
    name: str, array: ColumnLayout, shapes: np.ndarray, shape: tuple[int | None, ...], num_rows: int, path: str
) -> ColumnLayout:
    """Return the layout of rows that are arrays of several values; `shapes` are those of all datasets."""
    sizes = shapes.astype(np.float64).prod(axis=1) * array.stored_dtype.itemsize
    # Values that Arrow has no tensors of are lists: times, compound values, numbers that may be missing.
    is_text = array.kind == "string" or (array.kind == "category" and array.element == np.dtype(object))
    as_list = array.kind not in {"number", "bool"} and not is_text and len(shape) == 1
    return ColumnLayout(
        name,
        "list" if as_list else "ragged",
        (num_rows,),
        np.dtype(object),
        "contiguous",
        element=array.dtype if array.element is None else array.element,
        ragged_shape=() if as_list else shape,
        nullable=as_list and array.kind in {"category", "optional"},
        enum=() if array.kind == "category" else array.enum,
        item_bytes=int(sizes.mean()) if len(sizes) else 0,
        sources=array.sources,
        direct=array.direct,
        path=path,
    )
