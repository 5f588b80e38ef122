"""Rows along several leading axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations

import numpy as np

from ray_h5.buffers import ROW_BYTES, objects
from ray_h5.columns.column_resolver import Parts
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import InMemory, rows_of_chunks
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.globs import is_glob
from ray_h5.manifest.layout import ValueArray
from ray_h5.messages import few
from ray_h5.per_process import cached_property
from ray_h5.rows.row_columns import Episodes, RowColumn, with_single_values
from ray_h5.rows.row_kind_options import Grid

_MOST_CONSTANT_BYTES = 1 << 20
"""A larger constant is read only if it is named: each row of a block has a copy."""


class GridRows(Episodes):
    """One file whose leading axes are rows.

    Parameters
    ----------
    columns : FileColumns
        Its columns.
    kind : Grid
        How many axes, and which columns have other ones.
    """

    def __init__(self, columns: FileColumns, kind: Grid) -> None:
        self.columns: FileColumns = columns
        self._kind = kind
        said = kind.row_axes  # of datasets, and so of the columns of these that have names of their own
        self._row_axes = {
            name: said[column.dataset] for name, column in columns.made.items() if column.dataset in said
        } | {name: axes for name, axes in said.items() if not is_glob(name)}

    @property
    def num_rows(self) -> int:
        return math.prod(self.lengths)

    @property
    def table(self) -> RowTable:
        return self.columns.table()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each row axis."""
        return self._lengths_and_values[0]

    @cached_property
    def _lengths_and_values(self) -> tuple[tuple[int, ...], set[tuple[int, ...]]]:
        """The length of each row axis, and the shapes that values may have."""
        key = f"{self._kind}: lengths for {self._kind.named}"
        padded_lengths = self.columns.reader.fact(key, lambda: _padded(self._common_lengths()))
        lengths, *values = (tuple(padded[padded >= 0].tolist()) for padded in padded_lengths)
        return lengths, {*values}

    def _common_lengths(self) -> list[tuple[int, ...]]:
        """Return the lengths of the row axes, and the shapes that values may have.

        They are those of all columns if they agree, otherwise of those that are asked for.
        """
        own = self._row_axes
        layouts = {name.strip("/"): self.columns.values(name).array for name in self.columns.listing().names}
        for name in (*own, *self._kind.named):
            if name in layouts or self._axis_of(name) is not None:
                continue
            try:
                if self.columns.single(name) is None:
                    layouts[name] = self.columns.values(name).array  # of a column that is made of several datasets
            except UnknownColumnError:
                # Columns of tables, attributes and windows are in no file. Others are refused where they are read.
                if name in own:
                    raise
        named = self._full({name: layouts[name] for name in self._kind.named if name in layouts})
        full = self._full(layouts)
        try:
            lengths = self._lengths_of(full, layouts)
            for column in named:
                self._axes_in(column, lengths, self._values_of(full, lengths))
        except RayH5Error:  # the columns that are asked for do not have these row axes
            if not named:
                raise
            lengths = self._lengths_of(named, layouts)
        return [lengths, *sorted(self._values_of(full, lengths))]

    def _full(self, layouts: Mapping[str, ValueArray]) -> list[ValueArray]:
        """Return the columns that may have all row axes."""
        axes, own = self._kind.axes, self._row_axes
        return [of for name, of in layouts.items() if len(of.shape) >= axes and len(own.get(name, of.shape)) >= axes]

    def _lengths_of(self, full: Sequence[ValueArray], layouts: Mapping[str, ValueArray]) -> tuple[int, ...]:
        """Return the lengths of the row axes: those of the columns with the most axes."""
        axes = self._kind.axes
        if not full:
            shapes = few([f"{name} {layout.shape}" for name, layout in layouts.items()])
            raise UnsupportedColumnError(
                f"{self.columns.path}: Grid(axes={axes}): no column has {axes} axes or more: {shapes}"
            )
        most = max(len(layout.shape) for layout in full)
        largest = [layout for layout in full if len(layout.shape) == most or layout.name.strip("/") in self._row_axes]
        lengths = largest[0].shape[:axes]
        for other in largest:
            if other.shape[:axes] != lengths:
                raise SchemaMismatchError(
                    f"{self.columns.path}: Grid(axes={axes}): {largest[0].name!r} has shape {largest[0].shape}, and "
                    f"{other.name!r} has {other.shape}: their row axes differ. Say which row axes a column has, such "
                    f"as Grid({axes}, of={{{other.name!r}: ()}}) for a constant, choose columns that agree with "
                    "columns=[...], or a group with group=."
                )
        return tuple(lengths)

    def _values_of(self, full: Sequence[ValueArray], lengths: tuple[int, ...]) -> set[tuple[int, ...]]:
        axes = self._kind.axes
        return {layout.shape[axes:] for layout in full if layout.shape[:axes] == lengths}

    def listing(self) -> Listing:
        listing = self.columns.listing()
        columns, refused = [], dict(listing.refused)
        for name in listing.names:
            layout = self.columns.values(name).array
            try:
                is_constant = not self._axes_of(layout)
            except RayH5Error:  # reported where the column is described
                is_constant = False
            nbytes = math.prod(layout.shape) * layout.dtype.itemsize
            if not is_constant or name.strip("/") in self._row_axes or nbytes <= _MOST_CONSTANT_BYTES:
                columns.append(name)
                continue
            refused[name] = UnsupportedColumnError(
                f"{layout.where} is a constant of {nbytes} bytes, of which each row would have a copy. Name it in "
                "columns=[...] to get it."
            )
        listing = with_single_values(Listing((*columns,), refused))
        added = [f"axis_{i}" for i in range(self._kind.axes)] if self._kind.include_axes else []
        return replace(listing, names=(*added, *listing.names))

    def adds(self, name: str) -> str | None:
        said = "include_axes=True of Grid adds. Leave include_axes out, or name the columns with columns=[...]"
        return None if self._axis_of(name) is None else said

    def column(self, name: str) -> RowColumn:
        if (axis := self._axis_of(name)) is not None:
            return RowColumn(name, InMemory.of(name, lambda rows: np.unravel_index(rows, self.lengths)[axis], np.int64))
        if (single := self.columns.single(name)) is not None:
            return RowColumn(name, single, np.zeros_like)
        values = self.columns.values(name)
        axes = self._axes_of(values.array)
        over = values.over(len(axes)) if axes else InMemory.constant(self.columns.reader, values)
        over = self.columns.of_units(name, over)
        if len(axes) == self._kind.axes:
            return RowColumn(name, over, None, rows_of_chunks(values.array, self._kind.axes))
        return RowColumn(name, over, (lambda rows: self._along(rows, axes)) if axes else None)

    def _axis_of(self, name: str) -> int | None:
        number = name.removeprefix("axis_")
        is_axis = self._kind.include_axes and name != number and number.isdecimal() and int(number) < self._kind.axes
        return int(number) if is_axis else None

    def _along(self, rows: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Return the place of rows along some of the row axes."""
        cells, lengths = np.unravel_index(rows, self.lengths), [self.lengths[axis] for axis in axes]
        return np.asarray(np.ravel_multi_index([cells[axis] for axis in axes], lengths), np.int64)

    def _axes_of(self, layout: ValueArray) -> tuple[int, ...]:
        """Return the row axes that a column has: as the user says, or the one reading that fits."""
        return self._axes_in(layout, *self._lengths_and_values)

    def _axes_in(
        self, layout: ValueArray, lengths: tuple[int, ...], value_shapes: Collection[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Return the row axes that a column has, given the lengths of all, and the shapes that values may have."""
        if (named := layout.name.strip("/")) in self._row_axes:
            axes = self._row_axes[named]
            expected = tuple(lengths[axis] for axis in axes)
            if layout.shape[: len(axes)] != expected:
                raise SchemaMismatchError(
                    f"{layout.where} has shape {layout.shape}; of={{{layout.name!r}: {axes}}} says that it begins with "
                    f"{expected}"
                )
            return axes
        known, fits = _readings(layout.shape, lengths, {*value_shapes, ()})
        if len(fits) == 1 and (known or layout.shape[0] not in layout.shape[len(fits[0]) :]):
            return fits[0]
        if not fits and len(layout.shape) == 1:
            return ()
        others = " or ".join(map(str, fits)) or "()"
        example = fits[0] if fits else ()
        raise UnsupportedColumnError(
            f"{layout.where} has shape {layout.shape}, where the row axes have {lengths} entries: it may have the row "
            f"axes {others}. Say which with Grid({len(lengths)}, of={{{layout.name!r}: {example}}}); () stands for a "
            "constant."
        )

    # Episodes: one index of all row axes but the last ------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        episodes = math.prod(self.lengths[:-1])
        for name in names:
            layout = self.columns.values(name).array  # a single value has no axis, and is an error
            if self._kind.axes - 1 not in self._axes_of(layout):
                raise UnsupportedColumnError(
                    f"{layout.where} does not have the axis of time, which is row axis {self._kind.axes - 1}. Leave it "
                    "out of the offsets: each row then has the constant of its episode."
                )
            self.columns.reader.check_claim([layout], episodes * ROW_BYTES, "episodes")
        return np.full(episodes, self.lengths[-1], np.int64)

    def steps(self, name: str) -> Parts:
        episodes = np.arange(math.prod(self.lengths[:-1]), dtype=np.int64)
        length, lengths = self.lengths[-1], np.full(len(episodes), self.lengths[-1], np.int64)
        if self._axis_of(name) is not None:
            number = InMemory.of(name, lambda units: units % length, np.int64)
            return Parts(number, episodes * length, lengths)
        values = self.columns.values(name)
        axes = self._axes_of(values.array)
        chunk = values.array.chunk_shape
        per_chunk = chunk[len(axes) - 1] if chunk is not None else 1
        starts = self._along(episodes * length, axes) if length else np.zeros_like(episodes)  # no steps, so no units
        return Parts(self.columns.of_units(name, values.over(len(axes))), starts, lengths, per_chunk)

    def constant(self, name: str) -> RowColumn | None:
        time, axis, per_episode = self._kind.axes - 1, self._axis_of(name), self.lengths[-1]
        if axis is None and self.columns.single(name) is None:
            is_of_steps = time in self._axes_of(self.columns.values(name).array)
        else:
            is_of_steps = axis == time
        return None if is_of_steps else self.column(name).at(lambda episodes: episodes * per_episode)

    def episode_names(self) -> np.ndarray:
        return objects(str(i).encode() for i in range(math.prod(self.lengths[:-1])))


def _padded(shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return shapes as an array, with -1 after the end of each."""
    most = max(map(len, shapes))
    return np.array([[*shape, *[-1] * (most - len(shape))] for shape in shapes], np.int64)


def _readings(
    shape: tuple[int, ...], lengths: tuple[int, ...], value_shapes: Collection[tuple[int, ...]]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the row axes that a shape may begin with: of known values, and those that are most likely.

    With row axes of lengths (4, 9), and values of shape (2,) in other columns::

        shape    begins with        known     likely
        (4, 9)   (), (0,), (0, 1)   (0, 1)    (0, 1)    nothing is left: a value is a number
        (4, 2)   (), (0,)           (0,)      (0,)      what is left is a value of other columns
        (4, 7)   (), (0,)                     (0,)      what is left is no value of others: the most axes
        (7,)     ()                                     no row axis: a constant
    """
    sizes = range(min(len(lengths), len(shape)) + 1)
    axes_of = chain.from_iterable(combinations(range(len(lengths)), size) for size in sizes)
    begins = [axes for axes in axes_of if shape[: len(axes)] == tuple(lengths[axis] for axis in axes)]
    known = [axes for axes in begins if any(_is_part(shape[len(axes) :], whole) for whole in value_shapes)]
    longer = [axes[:size] for axes in begins for size in range(len(axes))]
    return known, known or [axes for axes in begins if axes and axes not in longer]


def _is_part(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether axes of these lengths are, in this order, among those of a whole shape."""
    left = iter(whole)
    return all(length in left for length in shape)
