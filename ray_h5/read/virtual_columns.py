"""Columns whose values are in other datasets, in other files or the same: reads of these fill their output."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.known_columns import Elsewhere, OtherColumn
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import RowRuns, request_of, units_of
from ray_h5.manifest.selections import ENDLESS, Along, size_of
from ray_h5.manifest.selections import Selection as Indices
from ray_h5.read.arrays.columns_of_files import are_alike, joint_column, parts_of
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.selection import Runs, Selection, runs_of_positions
from ray_h5.read.casting import keeps_all
from ray_h5.read.jobs import Job
from ray_h5.read.read_parts import Address, Part
from ray_h5.read.stored_items import converted

After = list[Callable[[], None]]
"""What is left to do once parts are read. The last of it is done first."""

_COPY = "Copy the values into the file with h5repack."


FileOf = Callable[[str], Any]
"""Returns the `OpenFile` at a path that values come from."""

Run = tuple[int, int, int, int]
"""Indices along an axis: the place of the first in a selection, how many, the first in a range, and their distance."""

Spread = tuple[str, Part]
"""A part of a read, and the path of the file that it is a part of."""


def linked(part: Part, elsewhere: Elsewhere, layout: ColumnLayout) -> Spread:
    """Return the same part of the dataset that a link leads to."""
    (column,) = elsewhere.columns
    address = replace(part.address, name=column.name) if isinstance(part.address, Selection) else column.name
    return column.path, Part(address, part.request, part.out, part.where or layout.where)


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """One mapping, with its source.

    Attributes
    ----------
    path, address, layout
        The source.
    here, there : tuple of Along
        What is selected along each axis of the virtual dataset, and of the source.
    axes : dict of int to int
        Axes of the virtual dataset, and those of the source that they are; along others, one index is selected.
    """

    path: str
    address: Address
    layout: ColumnLayout
    here: Indices
    there: Indices
    axes: dict[int, int]

    @classmethod
    def of(
        cls, file: FileOf, column: OtherColumn, selections: tuple[Indices, Indices | None], layout: ColumnLayout
    ) -> _Source:
        """Return a mapping of a virtual dataset, given what it selects here and there."""
        address, source = file(column.path).source_column(column.name)
        here, there = selections
        inner = len(layout.shape) - len(here)  # the axes of an array type
        shape = source.shape[: len(source.shape) - inner]
        there = there or tuple(map(Along.all_of, shape))
        here, there = _ended(here, there, layout.shape, shape)
        leads = f"{layout.where} leads to {source.where}"
        kinds = {layout.dtype.kind, source.dtype.kind}
        converts = kinds <= set("iufc") or (kinds <= set("biufc") and keeps_all(source.dtype, layout.dtype))
        if layout.kind != source.kind or not (converts or layout.dtype == source.dtype):
            raise UnsupportedColumnError(
                f"{leads}, which has values of another type: expected {layout.dtype}, found {source.dtype}. Write the "
                "virtual dataset again with the type of its sources."
            )
        extents = [*zip(here, layout.shape, strict=False), *zip(there, shape, strict=False)]
        inner_shapes = layout.shape[len(here) :], source.shape[len(shape) :]
        if (
            len(there) != len(shape)
            or size_of(here) != size_of(there)
            or inner_shapes[0] != inner_shapes[1]
            or any(along.end > length for along, length in extents)
        ):
            raise CorruptFileError(
                f"{leads}, which has another shape than the virtual dataset says, {source.shape}: there would be no "
                "values for some rows. Write the virtual dataset again for its source."
            )
        axes = _lined_up([len(indices) for indices in here], [len(indices) for indices in there])
        if axes is None:
            raise UnsupportedColumnError(
                f"{leads}, whose values have other axes there: expected {tuple(map(len, here))}, found "
                f"{tuple(map(len, there))}. {_COPY}"
            )
        return cls(column.path, address, source, here, there, axes)

    def positions(self, taken: Sequence[Run]) -> list[np.ndarray]:
        """Return the indices along each axis of the source, given the places along those of the virtual dataset."""
        places = [np.zeros(1, np.int64)] * max(1, len(self.there))
        for here, there in self.axes.items():
            first, count, _, _ = taken[here]
            places[there] = np.arange(first, first + count)
        return [along.at(at) for along, at in zip(self.there, places, strict=True)] if self.there else places

    def taken(self, positions: Sequence[np.ndarray]) -> Address:
        """Return the address of what is taken at some indices of the axes after the first."""
        runs = [
            None if len(position) == n and (np.diff(position) == 1).all() else runs_of_positions(position)
            for position, n in zip(positions[1:], self.layout.row_shape, strict=False)
        ]
        if not isinstance(self.address, str) or all(run is None for run in runs):
            return self.address
        return Selection(self.address, taken=(None, *runs))

    @property
    def is_block_of_rows(self) -> bool:
        """Whether it is a block of whole rows, of rows of a plain source that follow each other."""
        return (
            self.layout.direct
            and self.axes == {axis: axis for axis in range(len(self.there))}
            and len(self.here) == len(self.there)
            and all(len(indices[0]) == indices[0].end - indices[0].begin for indices in (self.here, self.there))
            and all(indices.is_all_of(n) for indices, n in zip(self.there[1:], self.layout.row_shape, strict=False))
        )


def _ended(here: Indices, there: Indices, shape: Sequence[int], shape_there: Sequence[int]) -> tuple[Indices, Indices]:
    """Return selections as far as both datasets go: those without an end have as many indices as both have."""

    def most(selection: Indices, shape: Sequence[int]) -> int:
        """Return how many indices an endless selection has along its axis; any number, if it has none."""
        return min(
            (
                max(0, -(-(n - indices.first) // indices.stride))
                for indices, n in zip(selection, shape, strict=False)
                if indices.is_endless
            ),
            default=ENDLESS,
        )

    count = min(most(here, shape), most(there, shape_there))
    both = [
        [replace(indices, count=count) if indices.is_endless else indices for indices in selection]
        for selection in (here, there)
    ]
    return tuple(both[0]), tuple(both[1])


def _lined_up(here: Sequence[int], there: Sequence[int]) -> dict[int, int] | None:
    """Return which axes of two selections of these lengths are the same; None if some are not."""
    if list(here) == list(there):
        return {axis: axis for axis in range(len(here))}
    long, other = ([axis for axis, length in enumerate(lengths) if length != 1] for lengths in (here, there))
    if [here[axis] for axis in long] != [there[axis] for axis in other]:
        return None
    return dict(zip(long, other, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Box:
    """Values of a virtual dataset that are read: any indices along one axis, and a range along each of the others.

    Attributes
    ----------
    axis : int
        The axis.
    indices, places : numpy.ndarray
        The indices along it, ascending, and where each goes along this axis of `out`.
    ranges : sequence of (int, int)
        The ranges along all axes.
    out : numpy.ndarray
        It has the axes of the dataset.
    """

    axis: int
    indices: np.ndarray
    places: np.ndarray
    ranges: Sequence[tuple[int, int]]
    out: np.ndarray


def _boxes_of(part: Part, layout: ColumnLayout) -> Iterator[_Box]:
    """Yield the boxes of a part of a read."""
    selection = part.address if isinstance(part.address, Selection) else Selection(layout.name)
    request, out, axes = part.request.listed(), part.out, range(len(layout.shape))
    corners = selection.corners(request.rows, layout)
    if selection.shape:
        shape = selection.box_shape(layout.shape)
        for place, corner in zip(request.places.tolist(), corners.tolist(), strict=True):
            ranges = [(low, min(low + n, most)) for low, n, most in zip(corner, shape, layout.shape, strict=True)]
            if any(high - low < n for (low, high), n in zip(ranges, shape, strict=True)):
                out[place] = np.zeros((), out.dtype)
            rows = np.arange(*ranges[0])
            inside = out[place].reshape(shape)[tuple(slice(high - low) for low, high in ranges)]
            yield _Box(0, rows, rows - corner[0], ranges, inside)
        return
    last, single = selection.axes[-1], sorted(selection.axes[:-1])
    rest = tuple(layout.shape[axis] for axis in axes if axis not in selection.axes)
    # The axes of the dataset, in its order: that of the rows is `last`.
    values = out.reshape(len(out), *rest[::-1]).T if selection.is_reversed else np.moveaxis(out, 0, -1)
    values = np.moveaxis(values, -1, [axis for axis in axes if axis not in single].index(last))
    values = np.expand_dims(values, tuple(single))
    lines = request.rows // max(1, layout.shape[last])
    runs = RowRuns.split(lines[1:] != lines[:-1])
    for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
        ranges = [(0, length) for length in layout.shape]
        for axis in single:
            ranges[axis] = int(corners[start, axis]), int(corners[start, axis]) + 1
        yield _Box(last, corners[start:stop, last], request.places[start:stop], ranges, values)


@dataclass(frozen=True, eq=False)
class VirtualColumn:
    """A virtual dataset.

    Attributes
    ----------
    layout : ColumnLayout
        The dataset.
    sources : sequence of _Source
        Its mappings.
    bounds : numpy.ndarray
        int64 of shape (mappings, 2): the first row of each, and the last one plus one.
    fill : object
        The value where no mapping is.
    """

    layout: ColumnLayout
    sources: Sequence[_Source]
    bounds: np.ndarray
    fill: Any

    @classmethod
    def of(cls, file: FileOf, elsewhere: Elsewhere, layout: ColumnLayout) -> VirtualColumn:
        def source(mapping: tuple[int, Indices, Indices | None]) -> _Source:
            return _Source.of(file, elsewhere.columns[mapping[0]], mapping[1:], layout)

        sources = [mapping for mapping in gather(source, elsewhere.mappings) if size_of(mapping.here)]
        bounds = np.array([(source.here[0].begin, source.here[0].end) for source in sources], np.int64).reshape(-1, 2)
        return cls(layout, sources, bounds, _fill(elsewhere, layout))

    @cached_property
    def paths(self) -> frozenset[str]:
        """The files that values come from."""
        return frozenset(source.path for source in self.sources)

    @cached_property
    def _parted(self) -> list[int]:
        """The axes along which a mapping has not all indices."""
        shape = self.layout.shape
        return [
            axis
            for axis, length in enumerate(shape)
            if not all(axis >= len(source.here) or source.here[axis].is_all_of(length) for source in self.sources)
        ]

    def joint(self, file: FileOf) -> DirectColumn | None:
        """Return the sources of a stack as one column, if they are alike and each mapping is a block of its source."""
        if not (self._are_apart and all(source.is_block_of_rows for source in self.sources)):
            return None
        columns: list[DirectColumn] = []
        for source in self.sources:
            column = file(source.path).reader(source.address, self.layout.where)
            if not isinstance(column, DirectColumn) or not are_alike([column, *columns[:1]]):
                return None
            columns.append(column)
        return joint_column(columns) if columns[0].source.layout.dtype == self.layout.dtype else None

    @cached_property
    def _are_apart(self) -> bool:
        """Whether each row is of one mapping at most, and mappings are in the order of their rows."""
        return len(self.sources) > 0 and bool((self.bounds[1:, 0] >= self.bounds[:-1, 1]).all())

    def _mappings_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of the mapping that has each row, if they are apart; -1 for none."""
        mappings = np.searchsorted(self.bounds[:, 0], rows, side="right") - 1
        return np.where((mappings >= 0) & (rows < self.bounds[mappings, 1]), mappings, -1)

    @cached_property
    def _shifts(self) -> np.ndarray:
        """The row of a source, less that of the stack, for each mapping."""
        return np.array([source.there[0].begin - source.here[0].begin for source in self.sources], np.int64)

    def joint_jobs(self, joint: DirectColumn, part: Part) -> list[Job]:
        """Return the work of a part of a read of a stack."""
        request, out = part.request.listed(), part.out
        owner = self._mappings_of(request.rows)
        if (alone := owner < 0).any():
            out[request.places[alone]] = self.fill
            request, owner = request.select(~alone), owner[~alone]
        rows = request.rows + (parts_of(joint).starts[owner] + self._shifts[owner])
        return joint.jobs(request_of(rows, request.places), out)

    def paths_of(self, part: Part) -> set[str]:
        """Return the files that the values of a part may come from."""
        if self._are_apart and isinstance(part.address, str):
            numbers = self._mappings_of(part.request.listed().rows)
            return {self.sources[number].path for number in {*numbers.tolist()} - {-1}}
        return {self.sources[number].path for box in _boxes_of(part, self.layout) for number in self._near(box)}

    def cut(self, part: Part, most: int) -> list[Part]:
        """Return parts of a part that come from about `most` files each, of a virtual dataset that stacks them."""
        rows = part.request.listed()
        edges = np.searchsorted(rows.rows, np.sort(self.bounds[:, 0])[most::most]).tolist()
        cuts = [(low, high) for low, high in itertools.pairwise([0, *edges, len(rows)]) if low < high]
        return [replace(part, request=rows.select(slice(*cut))) for cut in cuts]

    def parts(self, part: Part, after: After) -> Iterator[Spread]:
        """Yield the parts that fill the output; what is left to do once they are read is added to `after`."""
        selection, out, pick = part.address, part.out, partial(_taken, ())
        if isinstance(selection, Selection) and any(selection.taken):
            pick, selection = partial(_taken, selection.taken), replace(selection, taken=())
        if out.dtype != self.layout.dtype or selection is not part.address:
            # Values are those of the column before they are cast, and all positions of a box before some are taken.
            shape, request, single = out.shape[1:], part.request.listed(), tuple[int, ...]()
            if isinstance(selection, Selection) and selection is not part.address:
                shape = selection.box_shape(self.layout.shape)
                single = () if selection.shape else tuple(1 + axis for axis in selection.axes)
            values = np.empty((len(request), *shape), self.layout.dtype)
            after.append(partial(_put, out, request.places, values, pick))
            # Boxes of one index have no axis of it in their output.
            part = replace(part, address=selection, request=request_of(request.rows), out=values.squeeze(single))
        for box in _boxes_of(part, self.layout):
            yield from self._parts_of(box, part.where or self.layout.where, after)

    def _near(self, box: _Box) -> list[int]:
        """Return the mappings that may have some of the rows of a box."""
        if box.axis == 0:
            first, stop = np.searchsorted(box.indices, self.bounds.T)
            return np.flatnonzero(first < stop).tolist()
        low, high = box.ranges[0]
        return np.flatnonzero((self.bounds[:, 0] < high) & (self.bounds[:, 1] > low)).tolist()

    def _parts_of(self, box: _Box, where: str, after: After) -> Iterator[Spread]:
        axes = [box.axis, *(axis for axis in range(len(self.layout.shape)) if axis != box.axis)]
        lengths = [high - low if axis in self._parted else 1 for axis, (low, high) in enumerate(box.ranges)]
        has_values = np.zeros([len(box.indices), *(lengths[axis] for axis in axes[1:])], bool)
        for number in self._near(box):
            source = self.sources[number]
            for at, index, spread in _pieces(source, box, where, after):
                within: Any = (at, *(index[axis] if axis in self._parted else slice(None) for axis in axes[1:]))
                if has_values[within].any():
                    raise UnsupportedColumnError(
                        f"{self.layout.where} is virtual, and two of its mappings have the same values, which is not "
                        f"read without libhdf5. Write it again with mappings that are apart. {_COPY}"
                    )
                has_values[within] = True
                yield spread
        if not has_values.all():
            missing = ~has_values.all(axis=tuple(range(1, has_values.ndim)))
            np.moveaxis(box.out, box.axis, 0)[box.places[missing]] = self.fill


def _pieces(source: _Source, box: _Box, where: str, after: After) -> Iterator[tuple[np.ndarray, list[slice], Spread]]:
    """Yield the parts that read what a source has of a box.

    With each come the numbers of its indices in the box, and where it is along each axis of the output.
    """
    places_here = source.here[box.axis].places(box.indices)
    (at,) = np.nonzero(places_here >= 0)
    if not at.size:
        return
    in_box = [[(0, high - low, 0, 1)] for low, high in box.ranges]  # the axes of an array type are read as a whole
    for axis, along in enumerate(source.here):
        in_box[axis] = _within(along, *box.ranges[axis])
    is_by_row, repeats = source.axes.get(box.axis) == 0, False
    runs = [at]
    if box.axis not in source.axes:  # one index: it is read once, and repeated where it was asked for again
        repeats = len(at) > 1
    elif not is_by_row:
        split = RowRuns.split((np.diff(places_here[at]) != 1) | (np.diff(box.places[at]) != 1))
        runs = [at[a:b] for a, b in zip(split.start.tolist(), split.stop.tolist(), strict=True)]
    for some in runs:
        count = len(some) if box.axis in source.axes else 1
        in_box[box.axis] = [(int(places_here[some[0]]), count, int(box.places[some[0]]), 1)]
        for taken in itertools.product(*in_box):
            index = [slice(begin, begin + (n - 1) * step + 1, step) for _, n, begin, step in taken]
            whole = [*index[: box.axis], slice(None), *index[box.axis + 1 :]]
            if repeats:
                after.append(partial(_repeat, np.moveaxis(box.out[tuple(whole)], box.axis, 0), box.places[at]))
            view = _axes_of(source, box.out[tuple(whole if is_by_row else index)])
            positions = source.positions(taken)
            rows = request_of(positions[0])
            if is_by_row:
                rows = request_of(source.there[0].at(places_here[some]), box.places[some])
            if not keeps_all(source.layout.dtype, view.dtype):
                places = box.places[some] if is_by_row else slice(None)
                stored = np.empty(view[places].shape, source.layout.dtype)
                after.append(partial(_convert, stored, view, places))
                rows, view = request_of(rows.listed().rows), stored
            part = Part(source.taken(positions), rows, view, where)
            yield some, index, (source.path, part)


def _within(along: Along, low: int, high: int) -> list[Run]:
    """Return the indices of a selection that are in a range, as runs at equal distances."""
    if not along.listed and (along.count == 1 or along.block == 1):
        step, count = (1, along.block) if along.count == 1 else (along.stride, along.count)
        begin, stop = max(0, -((along.first - low) // step)), min(count, (high - 1 - along.first) // step + 1)
        return [(begin, stop - begin, along.first + begin * step - low, step)] if begin < stop else []
    places = along.places(np.arange(low, high))
    (at,) = np.nonzero(places >= 0)
    edges = [0, *(np.flatnonzero(np.diff(at) != 1) + 1).tolist(), len(at)]
    return [(int(places[at[a]]), b - a, int(at[a]), 1) for a, b in itertools.pairwise(edges) if a < b]


def _axes_of(source: _Source, view: np.ndarray) -> np.ndarray:
    """Return values of a virtual dataset with the axes of a source: a view, also of a single value."""
    view = view[(*(slice(None) if axis in source.axes else 0 for axis in range(len(source.here))), ...)]
    axes = source.axes.values()
    return view[tuple(slice(None) if axis in axes else None for axis in range(max(1, len(source.there))))]


def _put(out: np.ndarray, places: np.ndarray, values: np.ndarray, pick: Callable[[np.ndarray], np.ndarray]) -> None:
    out[places] = pick(values).reshape(len(places), *out.shape[1:])


def _taken(taken: Sequence[Runs | None], values: np.ndarray) -> np.ndarray:
    """Return the positions that are taken along the axes of boxes."""
    for axis, runs in enumerate(taken):
        if runs is not None:
            values = values.take(units_of(*np.array(runs, np.int64).reshape(-1, 2).T), axis=1 + axis)
    return values


def _convert(stored: np.ndarray, view: np.ndarray, places: Any) -> None:
    """Put values of a source into a virtual dataset of another type, as libhdf5 converts them."""
    source, to = (h5py.h5t.py_create(array.dtype) for array in (stored, view))
    items = np.ascontiguousarray(stored).reshape(-1, 1).view(np.uint8)
    view[places] = converted(source, to, view.dtype, items).reshape(stored.shape)


def _repeat(out: np.ndarray, places: np.ndarray) -> None:
    out[places[1:]] = out[places[0]]


def _fill(elsewhere: Elsewhere, layout: ColumnLayout) -> Any:
    if elsewhere.fill is not None:
        return elsewhere.fill
    if layout.element is not None:
        fill = np.empty((), object)
        fill[()] = np.empty(0, layout.element)
        return fill
    return b"" if layout.dtype.names is None else _empty(layout.dtype)


def _empty(dtype: np.dtype) -> Any:
    """Return a compound value of zeros and empty texts."""
    value = np.zeros((), dtype)
    for name in dtype.names or ():
        field = dtype[name].base
        value[name] = b"" if field.kind == "O" else _empty(field)
    return value
