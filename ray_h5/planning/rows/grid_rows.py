"""Rows along several leading axes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ray_h5.errors import RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading.grid_column import GridAddress, is_in_order
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
    names : tuple of str, optional
        The columns that were asked for; None for all.
    """

    def __init__(self, reader: RowReader, kind: Grid, names: tuple[str, ...] | None) -> None:
        self._reader = reader
        self._kind = kind
        self._asked = names
        self._lengths: tuple[int, ...] | None = None

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
        axes, named = self._kind.axes, self._kind.row_axes
        layouts = self._reader.columns if self._asked is None else self._reader.find(self._asked, missing_ok=True)
        partial = {name for name, own in named.items() if len(own) < axes}
        found = Counter(
            each.shape[:axes] for name, each in layouts.items() if len(each.shape) >= axes and name not in partial
        )
        if not found and self._asked is not None:
            found = Counter(each.shape[:axes] for each in self._reader.columns.values() if len(each.shape) >= axes)
        if not found:
            shapes = ", ".join(f"{name} {each.shape}" for name, each in list(layouts.items())[:5])
            raise UnsupportedColumnError(
                f"{self._reader.path}: Grid(axes={axes}): no column has {axes} axes or more: {shapes}"
            )
        (lengths, _), *_ = found.most_common(1)
        return tuple(lengths)

    def listing(self) -> Listing:
        columns, refused = [], dict(self._reader.layout.refused)
        for name, layout in self._reader.columns.items():
            try:
                axes = self._axes_of(layout)
            except RayH5Error as exc:
                refused[name] = exc
                continue
            if not axes and name not in self._kind.row_axes and _bytes(layout) > _MOST_CONSTANT_BYTES:
                refused[name] = UnsupportedColumnError(
                    f"{layout.where} is a constant of {_bytes(layout)} bytes, of which each row would have a copy. "
                    "Name it in columns=[...] to get it."
                )
                continue
            columns.append(name)
        added = [f"axis_{i}" for i in range(self._kind.axes)] if self._kind.include_axes else []
        return Listing((*added, *columns), refused)

    def prepare(self, names: Iterable[str]) -> None:
        """Do nothing: the reader describes columns one by one."""

    def column(self, name: str) -> Column:
        if (axis := self._axis_of(name)) is not None:
            return ValuesColumn(name, "number", lambda rows: np.unravel_index(rows, self.lengths)[axis], _INT64)
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
        if layout.name in self._kind.row_axes:
            axes = self._kind.row_axes[layout.name]
            expected = tuple(lengths[axis] for axis in axes)
            if layout.shape[: len(axes)] != expected:
                raise SchemaMismatchError(
                    f"{layout.where} has shape {layout.shape}; of={{{layout.name!r}: {axes}}} says that it begins with "
                    f"{expected}"
                )
            return axes
        if layout.shape[:count] == lengths:
            return tuple(range(count))
        fits = [(axis,) for axis in range(count) if layout.shape[:1] == (lengths[axis],)]
        if len(fits) > 1:
            raise UnsupportedColumnError(
                f"{layout.where} has shape {layout.shape}, and may have row axis "
                f"{' or '.join(str(axis) for (axis,) in fits)}: both have {layout.shape[0]} entries. Say which with "
                f"Grid({count}, of={{{layout.name!r}: {fits[0]}}})."
            )
        if fits and layout.num_rows in layout.shape[1:]:
            raise UnsupportedColumnError(
                f"{layout.where} has shape {layout.shape}, of which more than one axis may be a row axis. Say which "
                f"with Grid({count}, of={{{layout.name!r}: {fits[0]}}})."
            )
        return fits[0] if fits else ()

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

    # Episodes: one index of all row axes but the last ------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        for name in names:
            layout = self._reader.find([name])[name]
            if self._kind.axes - 1 not in self._axes_of(layout):
                raise UnsupportedColumnError(
                    f"{layout.where} does not have the axis of time, which is row axis {self._kind.axes - 1}. Leave it "
                    "out of the offsets: each row then has the constant of its episode."
                )
        return np.full(math.prod(self.lengths[:-1]), self.lengths[-1], np.int64)

    def steps(self, name: str, lengths: np.ndarray) -> Steps | None:  # noqa: ARG002  as the other spaces have it
        if self._axis_of(name) is not None:
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

    def constant(self, name: str) -> Column:
        if (axis := self._axis_of(name)) is not None:
            last = self._kind.axes - 1
            if axis == last:
                return ValuesColumn(name, "number", lambda rows: rows, _INT64)  # replaced by the step
            return ValuesColumn(name, "number", lambda rows: np.unravel_index(rows, self.lengths[:-1])[axis], _INT64)
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


def _unit(layout: ColumnLayout, axes: int) -> ColumnLayout:
    return replace(layout, shape=(1, *layout.shape[axes:]), chunk_shape=None)


def _bytes(layout: ColumnLayout) -> int:
    return math.prod(layout.shape) * layout.stored_dtype.itemsize
