"""Values of many datasets: one dataset each, or all end to end; and the layouts of rows that are several units."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.columns.derived_columns import JoinedColumn, RowEntries
from ray_h5.columns.ragged.runs import Runs, by_shape
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import OneAxis, Reading, Units, Values, keyed
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import by_part, request_of


@dataclass(frozen=True, slots=True, eq=False)
class Datasets(OneAxis):
    """Values of which each is a whole dataset, such as that of a group.

    Attributes
    ----------
    name, path : str
        The column, and its file, for messages.
    content : Values
        The values of the units of all datasets.
    joined : JoinedArray
        Says which units a dataset has.
    entries : RowEntries, optional
        The units of a dataset that a value has; None for all.
    """

    name: str
    path: str
    content: Values
    joined: JoinedArray
    entries: RowEntries | None = None

    @property
    def array(self) -> ColumnLayout:
        array, shapes, joined = self.content.array, self._shapes, self.joined
        shape = joined.common_shape if joined.single else _common(shapes[joined.is_there])
        lacks = not joined.is_there.all()
        if lacks and joined.single and array.kind not in {"string", "category", "optional"}:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {int(np.argmin(joined.is_there))} groups have it before one "
                "that lacks it, and a single value of numbers cannot be None. Choose other columns with columns=[...]."
            )
        if joined.single or (None not in shape and array.kind in {"number", "bool"} and not lacks):
            return layout_of_rows(self.name, array, (len(joined), *(int(n or 0) for n in shape)), 1, self.path)
        if array.kind == "list":
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: datasets of arrays of varying length, one dataset a group, are "
                "lists of lists. Choose other columns with columns=[...]."
            )
        return ragged_layout(self.name, array, shapes, shape, self.path)

    @property
    def _shapes(self) -> np.ndarray:
        """int64: the shape of each value as it is delivered."""
        stored, unit = self.joined.shapes, self.content.array.row_shape
        if self.joined.single:
            return stored
        lengths = stored[:, :1] if self.entries is None else self.entries.counts(stored[:, 0])[:, None]
        if self.joined.unit_shape is None:
            fields = axes_of_fields(self.content, self.joined)
            return np.concatenate([lengths, stored[:, 1:], repeated(fields, len(stored))], axis=1)
        return np.concatenate([lengths, repeated(unit, len(stored))], axis=1)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted, joined = units.listed(), self.joined
        datasets, places, keys = wanted.rows, wanted.places, wanted.keys
        there = joined.is_there[datasets]
        if not there.all():
            out[places[~there]] = None if out.dtype == object else 0  # numbers are all there
            datasets, places, keys = datasets[there], places[there], None if keys is None else keys[there]
        if joined.single:
            request = request_of(joined.starts[datasets], places)
            return self.content.reading(request, out) if len(datasets) else Reading()
        runs = Runs(joined.starts[datasets], joined.lengths[datasets], places, self.entries, keys)
        if out.dtype != object or out.ndim > 1:
            return runs.stacked(self.content, out)
        if joined.unit_shape is not None:
            return runs.varying(self.content, out)
        fields = axes_of_fields(self.content, joined)
        return by_shape(
            joined.shapes[datasets, 1:],
            lambda chosen, shape: runs.select(chosen).varying(self.content, out, (*shape, *fields)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class EndToEnd(OneAxis):
    """Values of several datasets, one after the other.

    Attributes
    ----------
    name : str
        The column.
    parts : tuple of Values
        The values of each dataset, of one kind and shape. Those of datasets that attributes decode may differ in dtype.
    starts : numpy.ndarray
        int64: the first unit of each dataset, and the end of the last one.
    """

    name: str
    parts: tuple[Values, ...]
    starts: np.ndarray

    @property
    def array(self) -> ColumnLayout:
        layouts = [layout.array for layout in self.parts]
        dtypes = {layout.dtype for layout in layouts}
        sources = dict.fromkeys(source for layout in layouts for source in layout.sources)
        return replace(
            layouts[0],
            name=self.name,
            shape=(int(self.starts[-1]), *layouts[0].row_shape),
            stored_dtype=np.result_type(*dtypes) if len(dtypes) > 1 else layouts[0].stored_dtype,
            sources=tuple(sources),
            direct=all(layout.direct for layout in layouts),
            fill=None,
            offset=None,
        )

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        keys = wanted.keys
        of = np.searchsorted(self.starts, wanted.rows, side="right") - 1
        readings = []
        for part, chosen in by_part(of):
            own = None if keys is None else keys[chosen]
            request = keyed(wanted.rows[chosen] - self.starts[part], wanted.places[chosen], own)
            readings.append(self.parts[part].reading(request, out))
        return Reading.together(readings)


def joined_values(path: str, made: JoinedColumn, table: GroupTable) -> Values:
    """Return the values of several datasets of a file, end to end, given those that match the pattern of a column."""
    joined = table.columns.get(made.name)
    if joined is None:
        raise UnsupportedColumnError(f"{path}: {made}: these are groups, such as {table.names[0]!r}, and not datasets")
    shape = joined.unit_shape
    if shape is None or joined.single:
        held = "single values" if joined.single else "rows of several shapes"
        raise UnsupportedColumnError(
            f"{path}: {made}: the datasets have {held}; expected rows of one shape. For a row a dataset, pass "
            f"rows=ray_h5.Groups({made.pattern!r})."
        )
    layout = replace(joined.unit, name=made.name, shape=(int(joined.starts[-1]), *shape))
    return Stored(layout, joined, name=made.name)


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


def layout_of_rows(name: str, array: ColumnLayout, shape: tuple[int, ...], chunk_rows: int, path: str) -> ColumnLayout:
    """Return the layout of rows of one shape, which lie where `array` does, but are no dataset themselves."""
    chunks = None if chunk_rows == 1 else (chunk_rows, *shape[1:])
    rows = replace(array, name=name, shape=shape, chunk_shape=chunks, path=path)
    return replace(rows, offset=None, fill=None, user_block=0, lost_fields=())


def ragged_layout(
    name: str, array: ColumnLayout, shapes: np.ndarray, shape: tuple[int | None, ...], path: str
) -> ColumnLayout:
    """Return the layout of rows that are arrays of several values, given the shape of each."""
    sizes = shapes.astype(np.float64).prod(axis=1) * array.stored_dtype.itemsize
    # Values that Arrow has no tensors of are lists: times, compound values, numbers that may be missing.
    is_text = array.kind == "string" or (array.kind == "category" and array.element == np.dtype(object))
    as_list = array.kind not in {"number", "bool"} and not is_text and len(shape) == 1
    return ColumnLayout(
        name,
        "list" if as_list else "ragged",
        (len(shapes),),
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
