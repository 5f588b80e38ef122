"""Rows along several leading axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np

from ray_h5.errors import RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.file_reads import FileRead
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.column import SINGLE_VALUE
from ray_h5.hdf5.metadata.groups import GroupPattern
from ray_h5.hdf5.parts import Part
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading.coalesce import RowRange
from ray_h5.hdf5.reading.grid_column import GridAddress, is_in_order
from ray_h5.hdf5.segments import Segments
from ray_h5.messages import few
from ray_h5.planning.rows.columns import UnitColumn, ValuesColumn
from ray_h5.planning.rows.kinds import Grid
from ray_h5.planning.rows.space import Column, Listing, RowTable, Steps

_MOST_CONSTANT_BYTES = 1 << 20
"""A larger constant is read only if it is named: each row of a block has a copy."""


class GridRows:
    """One file whose leading axes are rows.

    Parameters
    ----------
    reader : RowReader
        The open file.
    kind : Grid
        How many axes, and which columns have other ones.
    """

    def __init__(self, reader: RowReader, kind: Grid) -> None:
        self._reader = reader
        self._kind = kind
        self._lengths: tuple[int, ...] | None = None
        self._singles: dict[str, Segments | None] = {}
        self._value_shapes: set[tuple[int, ...]] = set()

    @property
    def num_rows(self) -> int:
        return math.prod(self.lengths)

    @property
    def table(self) -> RowTable:
        return RowTable()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each row axis."""
        if self._lengths is None:
            self._lengths = self._common_lengths()
        return self._lengths

    def _common_lengths(self) -> tuple[int, ...]:
        """Return the lengths of the row axes: those of the columns with the most axes."""
        axes, own = self._kind.axes, self._kind.row_axes
        layouts = {name.strip("/"): each for name, each in self._reader.columns.items()}
        # Raises for a name that does not exist.
        self._reader.find([name for name in own if name not in layouts and self._single(name) is None])
        full = [
            each for name, each in layouts.items() if len(each.shape) >= axes and len(own.get(name, each.shape)) >= axes
        ]
        if not full:
            shapes = few([f"{name} {each.shape}" for name, each in layouts.items()])
            raise UnsupportedColumnError(
                f"{self._reader.path}: Grid(axes={axes}): no column has {axes} axes or more: {shapes}"
            )
        most = max(len(each.shape) for each in full)
        largest = [each for each in full if len(each.shape) == most or each.name.strip("/") in own]
        lengths = largest[0].shape[:axes]
        for each in largest:
            if each.shape[:axes] != lengths:
                raise SchemaMismatchError(
                    f"{self._reader.path}: Grid(axes={axes}): {largest[0].name!r} has shape {largest[0].shape}, and "
                    f"{each.name!r} has {each.shape}: their row axes differ. Say which row axes a column has, such as "
                    f"Grid({axes}, of={{{each.name!r}: ()}}) for a constant, or choose a group with group=."
                )
        self._value_shapes = {each.shape[axes:] for each in full if each.shape[:axes] == lengths}
        return tuple(lengths)

    def listing(self) -> Listing:
        columns, refused = [], dict(self._reader.layout.refused)
        for name, layout in self._reader.columns.items():
            try:
                axes = self._axes_of(layout)
            except RayH5Error as exc:
                refused[name] = exc
                continue
            if not axes and name.strip("/") not in self._kind.row_axes and _bytes(layout) > _MOST_CONSTANT_BYTES:
                refused[name] = UnsupportedColumnError(
                    f"{layout.where} is a constant of {_bytes(layout)} bytes, of which each row would have a copy. "
                    "Name it in columns=[...] to get it."
                )
                continue
            columns.append(name)
        for name in [name for name, error in refused.items() if _is_single(error)]:
            columns.append(name)
            del refused[name]
        added = [f"axis_{i}" for i in range(self._kind.axes)] if self._kind.include_axes else []
        return Listing((*added, *columns), refused)

    def prepare(self, names: Iterable[str]) -> None:
        """Do nothing: the reader describes columns one by one."""

    def column(self, name: str) -> Column:
        if (axis := self._axis_of(name)) is not None:
            return ValuesColumn(name, "number", lambda rows: np.unravel_index(rows, self.lengths)[axis], _INT64)
        if (single := self._single(name)) is not None:
            return self._one_value(name, single)
        layout = self._reader.find([name])[name]
        axes = self._axes_of(layout)
        if len(axes) == self._kind.axes:
            return UnitColumn(name, self._address(name), _unit(layout, len(axes)), None, self._chunk_rows(layout))
        if not axes:
            return self._whole(layout)
        return UnitColumn(
            name, self._address(name, axes), _unit(layout, len(axes)), lambda rows: self._along(rows, axes)
        )

    def _axis_of(self, name: str) -> int | None:
        number = name.removeprefix("axis_")
        is_axis = self._kind.include_axes and name != number and number.isdecimal() and int(number) < self._kind.axes
        return int(number) if is_axis else None

    def _along(self, rows: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Return the place of rows along some of the row axes."""
        cells = np.unravel_index(rows, self.lengths)
        return np.asarray(
            np.ravel_multi_index([cells[axis] for axis in axes], [self.lengths[axis] for axis in axes]), np.int64
        )

    def _address(self, name: str, axes: tuple[int, ...] | None = None) -> GridAddress | str:
        count = self._kind.axes if axes is None else len(axes)
        return name if count == 1 else GridAddress(name, count)

    def _axes_of(self, layout: ColumnLayout) -> tuple[int, ...]:
        """Return the row axes that a column has: as the user says, or the one reading that fits."""
        lengths, count = self.lengths, self._kind.axes
        if (named := layout.name.strip("/")) in self._kind.row_axes:
            axes = self._kind.row_axes[named]
            expected = tuple(lengths[axis] for axis in axes)
            if layout.shape[: len(axes)] != expected:
                raise SchemaMismatchError(
                    f"{layout.where} has shape {layout.shape}; of={{{layout.name!r}: {axes}}} says that it begins with "
                    f"{expected}"
                )
            return axes
        readings = [
            axes
            for size in range(min(count, len(layout.shape)) + 1)
            for axes in combinations(range(count), size)
            if layout.shape[:size] == tuple(lengths[axis] for axis in axes)
        ]
        # What is left of the shape should be of the axes that the values of other columns have.
        known = [axes for axes in readings if self._is_of_values(layout.shape[len(axes) :])]
        fits = known or [
            axes
            for axes in readings
            if axes and not any(axes == other[: len(axes)] for other in readings if len(other) > len(axes))
        ]
        if len(fits) == 1 and (known or layout.shape[0] not in layout.shape[len(fits[0]) :]):
            return fits[0]
        if not fits and len(layout.shape) == 1:
            return ()
        others = " or ".join(map(str, fits)) or "()"
        example = fits[0] if fits else ()
        raise UnsupportedColumnError(
            f"{layout.where} has shape {layout.shape}, where the row axes have {lengths} entries: it may have the row "
            f"axes {others}. Say which with Grid({count}, of={{{layout.name!r}: {example}}}); () stands for a constant."
        )

    def _is_of_values(self, shape: tuple[int, ...]) -> bool:
        """Return whether axes of these lengths are, in this order, among the axes of values of a column."""
        return any(_is_part(shape, whole) for whole in self._value_shapes) or not shape

    def _chunk_rows(self, layout: ColumnLayout) -> int:
        """Return the rows, in C order, that hold whole chunks."""
        if layout.chunk_shape is None:
            return 1
        axes = self._kind.axes
        if is_in_order(layout, axes):
            return layout.chunk_shape[axes - 1]
        return layout.chunk_shape[0] * math.prod(self.lengths[1:])

    def _whole(self, layout: ColumnLayout) -> ValuesColumn:
        """Return a constant: each row has all of the dataset."""
        known: list[np.ndarray] = []

        def values(rows: np.ndarray) -> np.ndarray:
            if not known:
                known.append(self._reader.read([layout.name])[layout.name])
            return np.broadcast_to(known[0], (len(rows), *known[0].shape))

        return ValuesColumn(layout.name, layout.kind, values, layout.dtype, layout.shape)

    def _single(self, name: str) -> Segments | None:
        """Return a dataset that has a single value, as one segment; None if it has axes, or does not exist."""
        if name not in self._singles:
            found = None
            try:
                self._reader.find([name], missing_ok=True)
            except UnsupportedColumnError as exc:
                if _is_single(exc) and not any(each in name for each in "*?["):
                    table, _ = self._reader.group_table(GroupPattern(name.strip("/"), name=name))
                    found = table.columns.get(name)
            self._singles[name] = found
        return self._singles[name]

    def _one_value(self, name: str, single: Segments) -> ValuesColumn:
        """Return a constant with a single value."""
        layout = single.unit
        if layout.kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(
                f"{layout.where} holds a single {layout.kind} value; expected a number or text"
            )
        known: list[np.ndarray] = []

        def values(rows: np.ndarray) -> np.ndarray:
            if not known:
                value = np.empty((1, *layout.row_shape), layout.dtype)
                part = Part(single, RowRange(0, 0, 1), value)
                self._reader.run(FileRead(self._reader, {name: value}, [0], None, [part]))
                known.append(value)
            return np.broadcast_to(known[0][0], (len(rows), *layout.row_shape))

        return ValuesColumn(name, layout.kind, values, layout.dtype, layout.row_shape)

    # Episodes: one index of all row axes but the last ------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        for name in names:
            layout = self._reader.find([name])[name]  # a single value has no axis, and is an error
            if self._kind.axes - 1 not in self._axes_of(layout):
                raise UnsupportedColumnError(
                    f"{layout.where} does not have the axis of time, which is row axis {self._kind.axes - 1}. Leave it "
                    "out of the offsets: each row then has the constant of its episode."
                )
        return np.full(math.prod(self.lengths[:-1]), self.lengths[-1], np.int64)

    def steps(self, name: str, lengths: np.ndarray) -> Steps | None:  # noqa: ARG002  as the other spaces have it
        if self._axis_of(name) is not None:
            return None
        if self._single(name) is not None:
            return None
        layout = self._reader.find([name])[name]
        axes = self._axes_of(layout)
        if self._kind.axes - 1 not in axes:
            return None
        episodes = np.arange(math.prod(self.lengths[:-1]), dtype=np.int64)
        chunk = layout.chunk_shape
        per_chunk = chunk[len(axes) - 1] if chunk is not None else 1
        starts = self._along(episodes * self.lengths[-1], axes)
        return Steps(self._address(name, axes), _unit(layout, len(axes)), starts, per_chunk)

    def is_step(self, name: str) -> bool:
        return self._axis_of(name) == self._kind.axes - 1

    def constant(self, name: str) -> Column:
        if (axis := self._axis_of(name)) is not None:
            return ValuesColumn(name, "number", lambda rows: np.unravel_index(rows, self.lengths[:-1])[axis], _INT64)
        if (single := self._single(name)) is not None:
            return self._one_value(name, single)
        layout = self._reader.find([name])[name]
        axes = self._axes_of(layout)
        if not axes:
            return self._whole(layout)
        per_episode = self.lengths[-1]
        return UnitColumn(
            name,
            self._address(name, axes),
            _unit(layout, len(axes)),
            lambda episodes: self._along(episodes * per_episode, axes),
        )

    def episode_names(self) -> np.ndarray:
        count = math.prod(self.lengths[:-1])
        return np.array([*(str(i).encode() for i in range(count)), None], object)[:-1]


_INT64 = np.dtype(np.int64)


def _is_single(error: Exception) -> bool:
    """Return whether a column is refused because it has a single value."""
    return str(error).endswith(SINGLE_VALUE)


def _is_part(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    left = iter(whole)
    return all(length in left for length in shape)


def _unit(layout: ColumnLayout, axes: int) -> ColumnLayout:
    return replace(layout, shape=(1, *layout.shape[axes:]), chunk_shape=None)


def _bytes(layout: ColumnLayout) -> int:
    return math.prod(layout.shape) * layout.stored_dtype.itemsize
