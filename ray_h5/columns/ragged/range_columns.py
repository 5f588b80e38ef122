"""Values that are several units of others, as runs of these: ragged values, whole datasets, spans of time, steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.schema import TENSOR_KINDS
from ray_h5.columns.values import Reading, Values, read_dtype
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.indices import Indices, lengths_of, picked
from ray_h5.manifest.joined_arrays import JoinedValues
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request, by_part, request_of, units_of
from ray_h5.manifest.value_type import Kind, ValueType
from ray_h5.per_process import cached_property


def rows_a_chunk(bounds: Bounds, chunk_values: int) -> int:
    """Return how many rows a chunk of values holds in the mean."""
    return max(1, round(chunk_values * len(bounds) / bounds.total)) if bounds.total else 1


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The units of rows: those of row i are ``counts[i]`` consecutive ones, or as many that are listed.

    Attributes
    ----------
    begins : numpy.ndarray
        int64: the first unit of each row; or of shape ``(rows, width)``: its units.
    counts : numpy.ndarray, optional
        int64: the number of units of each row; None if each has one, without an axis, or if units are listed.
    places : numpy.ndarray
        int64: where each row goes along the first axis of an output.
    is_blank : numpy.ndarray, optional
        bool, in the shape of `begins`: which units stand for nothing; None for none.
    entries : RowEntries, optional
        The units that a row has of these; None for all.
    keys : numpy.ndarray, optional
        uint64: the key of each row, by which entries are drawn.
    """

    begins: np.ndarray
    counts: np.ndarray | None
    places: np.ndarray
    is_blank: np.ndarray | None = None
    entries: RowEntries | None = None
    keys: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> Runs:
        """Return the runs of some of the rows."""
        of_rows = {name: getattr(self, name) for name in ("begins", "counts", "places", "is_blank", "keys")}
        return replace(self, **{name: of[chosen] for name, of in of_rows.items() if of is not None})

    @property
    def has_axis(self) -> bool:
        """Whether the units of a row lie along an axis; otherwise it is one unit."""
        return self.counts is not None or self.begins.ndim > 1

    @property
    def lengths(self) -> np.ndarray:
        """int64: the units that each row has."""
        if self.counts is None:
            return np.full(len(self.begins), self.begins.shape[1] if self.has_axis else 1)
        return self.counts if self.entries is None else self.entries.counts(self.counts)

    def reading(self, values: Values, out: np.ndarray, at: np.ndarray, *, is_one_shape: bool = True) -> Reading:
        """Return the reading that puts the units of row i to place ``at[i]`` of an array and those after it."""
        begins, counts, keys = self.begins, self.counts, self.keys
        if counts is None and begins.ndim == 1:
            request = request_of(begins, at, keys)
        elif counts is None:
            steps = np.arange(begins.shape[1])
            keys = None if keys is None else np.repeat(keys, len(steps))  # one draw for all steps of a row
            request = request_of(begins.reshape(-1), (at[:, None] + steps).reshape(-1), keys)
        else:
            of, firsts, places = np.arange(len(begins)), begins, at
            if self.entries is not None:
                of, first, counts = self.entries.runs(counts, keys)
                before = Partition.of(counts).firsts
                of_row = before[np.searchsorted(of, of)]  # before the first run of the row
                firsts, places = begins[of] + first, at[of] + before - of_row
            if keys is not None and values.seed is not None:  # one draw for all units of a row
                request = request_of(units_of(firsts, counts), units_of(places, counts), np.repeat(keys[of], counts))
            else:
                request = Request(firsts, places, counts)
                request = request if counts.all() else request.select(counts > 0)
        is_read = len(request) and out.size
        reading = values.reading(request if is_one_shape else request.listed(), out) if is_read else Reading()
        if self.is_blank is None or not self.is_blank.any():
            return reading
        blank = (at[:, None] + np.arange(self.is_blank.shape[1]))[self.is_blank]

        def finish() -> None:
            nothing = np.empty((), out.dtype)  # numpy would take an array for several values
            nothing[()] = values.blank(out.dtype)
            out[blank] = nothing

        return reading.then(finish)

    def varying(self, values: Values, out: np.ndarray, unit_shape: tuple[int, ...] | None = None) -> Reading:
        """Return the reading of rows as arrays of their own, which are parts of one array.

        `unit_shape` is that of the units of these rows, if others have another one.
        """
        reading, flat, stops = self.end_to_end(values, unit_shape)

        def finish() -> None:
            begin = 0
            for place, end in zip(self.places.tolist(), stops.tolist(), strict=True):
                out[place] = flat[begin:end] if self.has_axis else flat[begin]
                begin = end

        return reading.then(finish)

    def end_to_end(
        self, values: Values, unit_shape: tuple[int, ...] | None = None
    ) -> tuple[Reading, np.ndarray, np.ndarray]:
        """Return the reading of the units of all rows into one array, that array, and where each row ends in it."""
        array, rows = values.array, Partition.of(self.lengths)
        shape = array.row_shape if unit_shape is None else unit_shape
        flat = empty((rows.num_units, *shape), array.dtype, f"column {array.name!r}")
        return self.reading(values, flat, rows.firsts, is_one_shape=unit_shape is None), flat, rows.starts[1:]


@dataclass(frozen=True, eq=False)
class OfUnits(Values, ABC):
    """Values of which each is one or several units of others, which may be units of others themselves.

    Attributes
    ----------
    name, path : str
        The column, and its file, for messages.
    content : Values
        The values of all units.
    joined : JoinedValues, optional
        The datasets that units are of, if they may differ in shape, or a group may lack its own.
    """

    name: str
    path: str
    content: Values
    joined: JoinedValues | None = field(default=None, kw_only=True)

    @property
    def seed(self) -> int | None:
        return self.content.seed

    @abstractmethod
    def runs_of(self, wanted: Request) -> Runs:
        """Return the units of values, which are listed."""

    def datasets_of(self, rows: np.ndarray) -> np.ndarray:
        """Return which of the joined datasets has each value; by default, each is a whole one."""
        return rows

    def shapes_of(self, joined: JoinedValues, lead: np.ndarray) -> np.ndarray:
        """Return the shape of the values of each dataset, which has the axes `lead` before those of a unit: int64."""
        content, shapes = self.content.array.row_shape, joined.shapes[:, 1:]
        is_one = joined.unit_shape is not None
        last = np.array(content if is_one else axes_of_fields(self.content, joined), np.int64)
        axes = [lead, shapes[:, : 0 if is_one else None], np.broadcast_to(last, (len(joined), len(last)))]
        return np.concatenate(axes, axis=1) * joined.is_there[:, None]

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        """Return the reading of values, in one of four ways.

        Values of a dataset that is not there are blank. Others::

            out                          values are read
            objects, one a value         as parts of one array, for each shape of a unit that datasets have
            a unit a value               to their places
            several units a value        to their places, which follow each other in memory
            the same, not contiguous     to an array of their own, and copied
        """
        wanted, joined, content = units.listed(), self.joined, self.content
        runs, of = self.runs_of(wanted), wanted.rows if joined is None else self.datasets_of(wanted.rows)
        if joined is not None and not (there := joined.is_there[of]).all():
            out[wanted.places[~there]] = None if out.dtype == object else content.blank(out.dtype)
            runs, of = runs.select(there), of[there]
        # Rows that are one unit of text are in an array of objects, too.
        if out.dtype == object and out.ndim == 1 and (runs.has_axis or content.array.kind in TENSOR_KINDS):
            if joined is None or joined.unit_shape is not None:
                return runs.varying(content, out)
            shapes, of_shape = np.unique(joined.shapes[of, 1:], axis=0, return_inverse=True)
            alike = [runs.select(np.flatnonzero(of_shape.reshape(-1) == at)) for at in range(len(shapes))]
            own = ((*shape, *axes_of_fields(content, joined)) for shape in shapes.tolist())
            return Reading.together([some.varying(content, out, shape) for some, shape in zip(alike, own, strict=True)])
        if not runs.has_axis:
            return runs.reading(content, out, runs.places)
        places, stacked = runs.places, out
        if not out.flags.c_contiguous:
            stacked = empty((len(places), *out.shape[1:]), read_dtype(content.array, out.dtype))
            places = np.arange(len(places))
        (rows, length), unit_shape = stacked.shape[:2], stacked.shape[2:]
        reading = runs.reading(content, stacked.reshape(rows * length, *unit_shape), places * length)
        if stacked is out:
            return reading

        def finish() -> None:
            out[runs.places] = stacked

        return reading.then(finish)


@dataclass(frozen=True, eq=False)
class Ranges(OfUnits):
    """Values of which each is consecutive units: a range of a longer array, a whole dataset, a span of time.

    Attributes
    ----------
    bounds : Bounds
        The units of each value; if `bounds_of` returns them, those of one that is as long as most.
    entries : RowEntries, optional
        The units of its range that a value has; None for all.
    bounds_of : callable, optional
        Returns the units of rows.
    is_column : bool
        Whether values are arrays of one shape if all have the same number of entries. What others are made of has one
        kind, whatever its bounds.
    """

    bounds: Bounds
    entries: RowEntries | None = None
    bounds_of: Callable[[np.ndarray], Bounds] | None = None
    is_column: bool = True

    @classmethod
    def whole(cls, name: str, path: str, content: Values, joined: JoinedValues) -> Ranges:
        """Return values of which each is a whole dataset, such as that of a group."""
        return cls(name, path, content, Bounds(joined.units.firsts, joined.units.starts[1:]), joined=joined)

    @property
    def seed(self) -> int | None:
        drawn = None if self.entries is None else self.entries.seed
        return self.content.seed if drawn is None else drawn

    @cached_property  # it looks at the lengths of all rows
    def array(self) -> ValueArray:
        array, joined, lengths = self.content.array, self.joined, self.bounds.stops - self.bounds.starts
        if self.entries is not None:
            # A group that lacks the column has none of the entries, though they are listed.
            there = np.ones(len(lengths), bool) if joined is None else joined.is_there
            whole, lengths = lengths, np.zeros(len(lengths), np.int64)
            lengths[there] = self.entries.counts(whole[there])
        return self._of_one_array(array, lengths) if joined is None else self._of_datasets(array, joined, lengths)

    def _of_one_array(self, array: ValueArray, lengths: np.ndarray) -> ValueArray:
        """Return the array of ranges of one array, given how many units each has."""
        chunk_rows = 1 if self.bounds_of is not None else rows_a_chunk(self.bounds, array.chunk_rows)
        count = None if self.entries is None else self._count_of_all(self.entries, lengths)
        if count is not None and array.kind in TENSOR_KINDS:
            shape_of_all = (len(lengths), count, *array.row_shape)
            return array_of_rows(self.name, array, shape_of_all, chunk_rows, array.path)
        if array.kind in {"list", "ragged"}:
            return lists_of_lists(self.name, array, len(lengths), chunk_rows)
        counts = lengths * math.prod(array.row_shape)
        return array_of_ragged_rows(self.name, array, counts, (None, *array.row_shape), chunk_rows)

    def _of_datasets(self, array: ValueArray, joined: JoinedValues, lengths: np.ndarray) -> ValueArray:
        """Return the array of whole datasets, or of entries of each, given how many units each has."""
        shapes = self.shapes_of(joined, lengths[:, None])
        shape = joined.layouts[0].row_shape if joined.single else common_shape(shapes[joined.is_there])
        lacks = not joined.is_there.all()
        if lacks and joined.single and array.kind not in {"string", "category", "optional"}:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {int(np.argmin(joined.is_there))} groups have it before one "
                "that lacks it, and a single value of numbers cannot be None. Choose other columns with columns=[...]."
            )
        if joined.single or (None not in shape and array.kind in TENSOR_KINDS and not lacks):
            return array_of_rows(self.name, array, (len(joined), *(int(n or 0) for n in shape)), 1, self.path)
        if array.kind in {"list", "ragged"}:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: datasets of arrays of varying length, one dataset a group, are "
                "lists of lists. Choose other columns with columns=[...]."
            )
        rows = array_of_ragged_rows(
            self.name, replace(array, path=self.path), shapes.prod(axis=1, dtype=np.float64), shape
        )
        return rows.with_type(replace(rows.type, nullable=rows.type.nullable or (lacks and rows.kind == "ragged")))

    def _count_of_all(self, entries: RowEntries, lengths: np.ndarray) -> int | None:
        """Return how many entries each value has; None if they differ, or may do so."""
        # Listed entries are there in each value, or it is an error: also a file without rows has this shape.
        if isinstance(entries.at, np.ndarray):
            return len(entries.at)
        is_alike = self.is_column and bool(len(lengths)) and bool((lengths == lengths[0]).all())
        return int(lengths[0]) if is_alike else None

    def runs_of(self, wanted: Request) -> Runs:
        bounds, at = self.bounds, wanted.rows
        if self.bounds_of is not None:
            bounds, at = self.bounds_of(at), np.arange(len(at))
        begins = bounds.starts[at]
        is_one = self.joined is not None and self.joined.single
        counts = None if is_one else bounds.stops[at] - begins
        return Runs(begins, counts, wanted.places, None, self.entries, wanted.keys)


@dataclass(frozen=True, eq=False)
class PickedRows(Values):
    """Parts of values that are arrays of their own, such as those of varying length in a file, which are read whole.

    Attributes
    ----------
    values : Values
        The whole values.
    entries : RowEntries, optional
        The entries that each has along its first axis; None for all.
    inner : tuple of (Along or None)
        The indices along its other axes; None for all.
    """

    values: Values
    entries: RowEntries | None
    inner: Indices = ()

    @property
    def seed(self) -> int | None:
        drawn = None if self.entries is None else self.entries.seed
        return self.values.seed if drawn is None else drawn

    @cached_property
    def array(self) -> ValueArray:
        whole, at = self.values.array, None if self.entries is None else self.entries.at
        inner = tuple(lengths_of(axes_of_entries(whole), self.inner))  # type: ignore[arg-type]
        assert whole.element is not None
        element, is_list = whole.element.base, whole.kind == "list"
        if isinstance(at, np.ndarray) and element.kind in "biufc" and len(whole.type.ragged_shape) <= 1 + len(inner):
            kind: Kind = "bool" if element.kind == "b" else "number"
            rows = array_of_rows(whole.name, whole, (whole.num_rows, len(at), *inner), whole.chunk_rows, whole.path)
            numbers = replace(rows.type, kind=kind, dtype=element, element=None, ragged_shape=(), nullable=False)
            return rows.with_type(numbers)
        if is_list:
            return whole.made(replace(whole.type, element=np.dtype((element, inner))), chunk_shape=None)
        return whole.made(replace(whole.type, ragged_shape=(None, *inner)))

    def blank(self, dtype: np.dtype) -> Any:
        return self.values.blank(dtype)

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted = units.listed()
        rows = np.empty(len(wanted), object)

        def finish() -> None:
            lengths = np.array([0 if row is None else len(row) for row in rows], np.int64)
            entries = None if self.entries is None else self.entries.of_each(lengths, wanted.keys)
            for i, (place, row) in enumerate(zip(wanted.places.tolist(), rows, strict=True)):
                kept = row if row is None or entries is None else np.asarray(row)[entries[i]]
                out[place] = kept if kept is None else picked(kept[None], (None, *self.inner))[0].copy()

        return self.values.reading(request_of(wanted.rows, keys=wanted.keys), rows).then(finish)


@dataclass(frozen=True, eq=False)
class OfParts(Values):
    """Values of several parts, such as groups, that are decoded in different ways.

    Attributes
    ----------
    name : str
        The column.
    parts : tuple of Values
        The values of each part, of one kind and shape. Those of datasets that attributes decode may differ in dtype.
        If `of` returns the values of a part, those of parts that stand for all.
    part_of : callable
        Returns the part of each unit, and its number among the units of that part.
    of : callable, optional
        Returns the values of a part, which are made when they are read.
    joined : JoinedValues, optional
        The shapes of these parts, if each is a whole dataset with other axes than are stored.
    units : Partition, optional
        The units of each part, if those of one follow those of the one before.
    """

    name: str
    parts: tuple[Values, ...]
    part_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    of: Callable[[int], Values] | None = None
    joined: JoinedValues | None = None
    units: Partition | None = None

    @classmethod
    def end_to_end(cls, name: str, parts: tuple[Values, ...], paths: Sequence[str]) -> OfParts:
        """Return the values of parts, those of one after those of the one before; `paths` are theirs, for messages.

        Raises
        ------
        SchemaMismatchError
            If they differ in kind, type or shape.
        """
        layouts = [part.array for part in parts]
        for path, layout in zip(paths, layouts, strict=True):
            if not _is_alike(layouts[0], layout):
                raise SchemaMismatchError(
                    f"{layout.path}: column {name!r}: its parts differ: {layouts[0].kind} of {_shown(layouts[0])} in "
                    f"{paths[0]!r}, and {layout.kind} of {_shown(layout)} in {path!r}. Choose those that agree with a "
                    "narrower pattern."
                )
        units = Partition.of(np.array([layout.num_rows for layout in layouts], np.int64))
        return cls(name, parts, units.local, units=units)

    @property
    def seed(self) -> int | None:
        return self.parts[0].seed

    @cached_property  # it makes the layout of each part
    def array(self) -> ValueArray:
        layouts = [part.array for part in self.parts]
        dtypes = {layout.dtype for layout in layouts}
        sources = dict.fromkeys(source for layout in layouts for source in layout.sources)
        of_all = next((layout for layout in layouts if layout.kind == "ragged"), layouts[0])
        type_ = replace(of_all.type, dtype=np.result_type(*dtypes) if len(dtypes) > 1 else of_all.dtype)
        is_direct = all(layout.direct for layout in layouts)
        array = of_all.made(type_, name=self.name, sources=tuple(sources), direct=is_direct)
        if self.units is None:
            return array
        shape = (
            common_shape(np.array([_lengths_of_axes(layout) for layout in layouts])) if array.type.ragged_shape else ()
        )
        sizes = np.array([layout.item_bytes for layout in layouts]), np.maximum(self.units.lengths, 1)
        type_ = replace(
            type_,
            ragged_shape=tuple(None if n is None or n < 0 else n for n in shape),
            enum=self._categories[0] if array.kind == "category" else type_.enum,
        )
        mean_bytes = round(np.average(sizes[0], weights=sizes[1]))
        return array.with_type(type_, num_rows=self.units.num_units, item_bytes=mean_bytes)

    @cached_property
    def _categories(self) -> tuple[tuple[tuple[str, int], ...], list[np.ndarray]]:
        """The categories of all parts, and for each part the code that each of its codes has among them."""
        known: dict[str, int] = {}
        codes = [[known.setdefault(name, len(known)) for name, _ in part.array.type.enum] for part in self.parts]
        return tuple(known.items()), [np.array([*of_part, -1]) for of_part in codes]  # -1 is a missing value

    def take(self, taken: Indices) -> Values:
        if self.of is not None:
            return Values.take(self, taken)
        return replace(self, parts=tuple(part.take(taken) for part in self.parts))

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted, readings = units.listed(), []
        parts, rows = self.part_of(wanted.rows)
        # Code 0 of one part is another category than code 0 of the next: codes are those of all categories together.
        are_codes = self.units is not None and self.array.kind == "category" and out.dtype.kind in "iu"
        for part, chosen in by_part(parts):
            keys = None if wanted.keys is None else wanted.keys[chosen]
            values, places = self.parts[part] if self.of is None else self.of(part), wanted.places[chosen]
            reading = values.reading(request_of(rows[chosen], places, keys), out)
            readings.append(
                reading.then(partial(_recode, out, places, self._categories[1][part])) if are_codes else reading
            )
        return Reading.together(readings)


def _recode(out: np.ndarray, places: np.ndarray, codes: np.ndarray) -> None:
    """Put the codes that all parts share in the place of those of one part."""
    out[places] = codes[out[places]]


def _is_alike(one: ValueArray, other: ValueArray) -> bool:
    """Return whether the rows of two layouts may follow each other; arrays of one shape and of several may."""
    held = one.type.held, other.type.held
    is_text = one.kind == "string" or (one.kind == "category" and {held[0].kind, held[1].kind} <= {*"OS"})
    kinds, same_shape = {one.kind, other.kind}, _same(one, other)
    if "ragged" in kinds:
        same_shape = len(_lengths_of_axes(one)) == len(_lengths_of_axes(other))
    is_kind = len(kinds) == 1 or ("ragged" in kinds and kinds <= {"ragged", *TENSOR_KINDS})
    return is_kind and (is_text or held[0] == held[1]) and same_shape


def _same(one: ValueArray, other: ValueArray) -> bool:
    return (one.row_shape, one.type.ragged_shape) == (other.row_shape, other.type.ragged_shape)


def _lengths_of_axes(layout: ValueArray) -> tuple[int, ...]:
    """Return the shape of a row, with -1 for axes along which rows differ."""
    return tuple(-1 if n is None else n for n in layout.type.shape)


def _shown(layout: ValueArray) -> str:
    return f"{layout.type.held} {layout.type.shape}"


def chunk_group_starts(bounds: Bounds, chunk_values: int, chunks: int) -> np.ndarray:
    """Return the first row of each run of rows that begin in the same `chunks` chunks of values; ascending.

    Empty rows are with the row before them.
    """
    groups = bounds.starts // (chunk_values * chunks)
    if not len(groups):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(groups[1:] > groups[:-1]) + 1])


def axes_of_fields(values: Values, joined: JoinedValues) -> tuple[int, ...]:
    """Return the axes that values have and their datasets lack: those of fields of compound values."""
    return values.array.row_shape[len(joined.layouts[0].row_shape) :]


def common_shape(shapes: np.ndarray) -> tuple[int | None, ...]:
    """Return the shape that rows share; None for an axis along which they differ."""
    if not len(shapes):
        return (None,) * shapes.shape[1]
    same = (shapes == shapes[0]).all(axis=0)
    return tuple(int(n) if alike else None for n, alike in zip(shapes[0], same, strict=True))


def array_of_rows(name: str, array: ValueArray, shape: tuple[int, ...], chunk_rows: int, path: str) -> ValueArray:
    """Return the array of rows of one shape that are made of values of `array`."""
    chunks = None if chunk_rows == 1 else (chunk_rows, *shape[1:])
    type_ = replace(array.type, row_shape=shape[1:])
    return array.made(type_, name=name, num_rows=shape[0], chunk_shape=chunks, path=path)


def axes_of_entries(array: ValueArray) -> tuple[int | None, ...]:
    """Return the axes that values of varying length have after their first one; None for one that varies, too."""
    if array.kind == "ragged":
        return array.type.ragged_shape[1:]
    own = () if array.element is None else array.element.shape
    return (*array.type.ragged_shape[1:], *own)


def element_of_lists(array: ValueArray) -> np.dtype:
    """Return the elements of arrays of varying length that are values of lists.

    Raises
    ------
    UnsupportedColumnError
        If they differ along several axes.
    """
    if None in array.type.ragged_shape[1:] and array.kind == "ragged":
        raise UnsupportedColumnError(
            f"{array.where} holds arrays that differ along several axes, {array.type.ragged_shape}; lists and windows "
            "take those that differ along their first axis alone. Leave the column out of the offsets."
        )
    assert array.element is not None
    own = () if array.kind == "list" else array.type.ragged_shape[1:]
    return np.dtype((array.element, tuple(int(n or 0) for n in own)))


def lists_of_lists(name: str, array: ValueArray, num_rows: int, chunk_rows: int) -> ValueArray:
    """Return the array of rows that are ranges of arrays of varying length: lists of lists."""
    rows = array_of_rows(name, array, (num_rows,), chunk_rows, array.path)
    levels = max(1, len(array.type.ragged_shape)) if array.kind == "list" else 1
    element, shape = element_of_lists(array), (None,) * (levels + 1)
    return rows.with_type(replace(rows.type, kind="list", element=element, ragged_shape=shape))


def array_of_ragged_rows(
    name: str, array: ValueArray, counts: np.ndarray, shape: tuple[int | None, ...], chunk_rows: int = 0
) -> ValueArray:
    """Return the array of rows that are arrays of several values, given how many each has.

    `chunk_rows` is how many rows a chunk of values holds; 0 for rows that are whole datasets, or steps of them.
    """
    mean = float(counts.mean()) if len(counts) else 0.0
    # Values that Arrow has no tensors of are lists: times, compound values, numbers that may be missing.
    is_category = array.kind == "category"
    is_text = array.kind == "string" or (is_category and array.element == np.dtype(object))
    as_list = array.kind not in {"number", "bool"} and not is_text and len(shape) == 1
    type_ = ValueType(
        "list" if as_list else "ragged",
        np.dtype(object),
        element=array.type.held,
        ragged_shape=() if as_list else shape,
        nullable=as_list and array.kind in {"category", "optional"},
        enum=() if is_category else array.type.enum,  # lists have values, whose codes each file may number otherwise
    )
    return ValueArray(
        name,
        type_,
        len(counts),
        chunk_shape=None if chunk_rows <= 1 else (chunk_rows,),
        item_bytes=max(1, round(mean * array.dtype.itemsize)),
        sources=array.sources,
        direct=array.direct,
        path=array.path,
    )
