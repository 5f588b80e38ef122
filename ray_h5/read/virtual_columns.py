"""Columns whose values are in other datasets, in other files or the same: reads of these fill their output."""

# An example: rows 0 and 3 of a virtual dataset of 4 x 5 are read: a box of 2 x 5. Columns 0 and 1 are all of the
# dataset a; of the others, rows 2 and 3 are rows 5 and 6 of b.
#     row 0   a a . . .   -> out[0]      part of a: rows 0 and 3, to places 0 and 1 of out[:, 0:2]
#     row 3   a a b b b   -> out[1]      part of b: row 6, to place 1 of out[:, 2:5]
# No mapping has the last values of row 0. So out[0] is filled as a whole, before the parts are read.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.format.file_bytes import gather
from ray_h5.hdf5.format.value_types import empty_record
from ray_h5.manifest.indices import Along, size_of
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.known_columns import OtherColumn, Redirect
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.manifest.takes import Take
from ray_h5.read.arrays.column import Column, items_are_arrays
from ray_h5.read.casting import keeps_all
from ray_h5.read.jobs import Job
from ray_h5.read.read_parts import ColumnAddress, Part
from ray_h5.read.stored_items import converted
from ray_h5.storage.byte_source import Identity

FinishSteps = list[Callable[[], None]]
"""What is left to do once parts are read. The last of it is done first."""

_COPY = "Copy the values into the file with h5repack."

_Selected: TypeAlias = "tuple[Along, ...]"
"""What a mapping selects, along each axis."""

FileOf = Callable[[str], Any]  # the `OpenFile` at a path that values come from


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
        Axes of the virtual dataset, and those of the source that they are, in the same order; along others, one index
        is selected.
    """

    path: str
    address: str | JoinedArray
    layout: ColumnLayout
    here: _Selected
    there: _Selected
    axes: dict[int, int]

    @classmethod
    def of(
        cls, file: FileOf, column: OtherColumn, mapping: tuple[_Selected, _Selected | None], layout: ColumnLayout
    ) -> _Source:
        """Return a mapping of a virtual dataset, given what it selects here and there."""
        address, source = file(column.path).source_column(column.name)
        here, there = mapping
        shape = source.shape[: len(source.shape) - len(layout.shape) + len(here)]  # without axes of an array type
        lengths = *layout.shape[: len(here)], *shape
        here, there = _with_ends(here, there or tuple(map(Along.all_of, shape)), lengths)
        _check_type(layout, source)
        inner = layout.shape[len(here) :]
        is_fitting = len(there) == len(shape) and size_of(here) == size_of(there)
        is_inside = all(along.end <= n for along, n in zip((*here, *there), lengths, strict=False))
        if not (is_fitting and is_inside) or inner != source.shape[len(shape) :]:
            raise CorruptFileError(
                f"{_leads(layout, source)}, which has another shape than the virtual dataset says, {source.shape}: "
                "there would be no values for some rows. Write the virtual dataset again for its source."
            )
        here, there = (*here, *map(Along.all_of, inner)), (*there, *map(Along.all_of, inner))
        axes = _axes_between([*map(len, here)], [*map(len, there)], _leads(layout, source))
        return cls(column.path, address, source, here, there, axes)

    @property
    def is_one_row(self) -> bool:
        """Whether the whole source is one row of the virtual dataset, as datasets are that are stacked."""
        shape = self.layout.shape
        return (
            len(self.there) == len(self.here) - 1
            and len(self.here[0]) == 1
            and all(along.is_all_of(n) for along, n in zip(self.there, shape, strict=True))
        )

    def wanted(self, common: _Common) -> _Wanted:
        """Return what a box has of the source.

        Of b in the example above, row 3 of the virtual dataset is place 1 of the mapping, and its columns are places 0
        to 2: row 6, and columns 0 to 2, which are all.
        """
        # Along axes of the source alone, it has one index.
        there: list[np.ndarray | Along] = [along.one(0) for along in self.there]
        for axis, axis_there in self.axes.items():
            along, at = self.there[axis_there], common.places[axis]
            there[axis_there] = along.take(at) if isinstance(at, Along) else along.at(at)
        shape, others = self.layout.shape, {axis: at for axis, at in enumerate(there) if isinstance(at, Along)}
        rows = {axis: at for axis, at in enumerate(there) if isinstance(at, np.ndarray)}
        of_rows = bool(rows)
        if not of_rows:  # all rows of the box are the same, or it has one
            rows = {0: others.pop(0).indices}
        numbers = np.asarray(np.ravel_multi_index(tuple(rows.values()), [shape[axis] for axis in rows]))
        address: ColumnAddress = self.address
        taken = {axis: at for axis, at in others.items() if not at.is_all_of(shape[axis])}
        if taken or [*rows] != [0]:
            address = Take(self.address, tuple(rows), taken=tuple(map(taken.get, range(max(taken, default=-1) + 1))))
        return _Wanted(address, numbers, (len(numbers), *map(len, others.values())), of_rows)


def _leads(layout: ColumnLayout, source: ColumnLayout) -> str:
    return f"{layout.where} leads to {source.where}"


def _with_ends(here: _Selected, there: _Selected, lengths: Sequence[int]) -> tuple[_Selected, _Selected]:
    """Return what a mapping selects: without an end, it has as many indices as both datasets have; see `lengths`."""
    endless = [(along, n) for along, n in zip((*here, *there), lengths, strict=False) if along.is_endless]
    if not endless:
        return here, there
    count = min(max(0, -(-(n - along.first) // along.stride)) for along, n in endless)
    ended = [replace(along, count=count) if along.is_endless else along for along in (*here, *there)]
    return tuple(ended[: len(here)]), tuple(ended[len(here) :])


def _check_type(layout: ColumnLayout, source: ColumnLayout) -> None:
    """Raise unless the values of a source are those of a virtual dataset, or converted as libhdf5 does."""
    kinds = {layout.dtype.kind, source.dtype.kind}
    converts = kinds <= set("iufc") or (kinds <= set("biufc") and keeps_all(source.dtype, layout.dtype))
    if layout.kind != source.kind or not (converts or layout.dtype == source.dtype):
        raise UnsupportedColumnError(
            f"{_leads(layout, source)}, which has values of another type: expected {layout.dtype}, found "
            f"{source.dtype}. Write the virtual dataset again with the type of its sources."
        )


def _axes_between(here: list[int], there: list[int], leads: str) -> dict[int, int]:
    """Return which axis of a source each axis of a virtual dataset is, given how many indices are selected along each.

    Axes of one index are on one side alone where both differ in their number: of a source (5, 3) that is one row of a
    stack, ``[1, 5, 3]`` here and ``[5, 3]`` there, they are 1 -> 0 and 2 -> 1.
    """
    if here == there:
        return {axis: axis for axis in range(len(here))}
    long, long_there = ([axis for axis, n in enumerate(lengths) if n != 1] for lengths in (here, there))
    if [here[axis] for axis in long] != [there[axis] for axis in long_there]:
        raise UnsupportedColumnError(
            f"{leads}, whose values have other axes there: expected {tuple(here)}, found {tuple(there)}. {_COPY}"
        )
    return dict(zip(long, long_there, strict=True))


class _Box(NamedTuple):
    """Values of a virtual dataset that are read: rows, each of one index along some axes, and all alike along others.

    Attributes
    ----------
    corners : dict of int to numpy.ndarray
        The axes along which each row has an index, and that of each.
    others : dict of int to Along
        The other axes, and the indices that all rows have.
    places : numpy.ndarray
        Where rows go along the first axis of `out`.
    out : numpy.ndarray
        Its further axes are the others.
    """

    corners: dict[int, np.ndarray]
    others: dict[int, Along]
    places: np.ndarray
    out: np.ndarray

    def common(self, here: Sequence[Along], near: np.ndarray) -> _Common:
        """Return what a mapping has of some rows, given what it selects."""
        of_rows = {axis: here[axis].places(at[near]) for axis, at in self.corners.items()}
        rows = np.flatnonzero(reduce(np.minimum, of_rows.values()) >= 0)
        both = {axis: at.common(here[axis]) for axis, at in self.others.items()}
        places = {axis: at[rows] for axis, at in of_rows.items()} | {axis: of for axis, (_, of) in both.items()}
        return _Common(near[rows], {axis: at for axis, (at, _) in both.items()}, places)

    def view(self, common: _Common, wanted: _Wanted) -> np.ndarray | None:
        """Return the part of the output that has what is wanted of a source, in its shape; None if it is no view."""
        keys = [at.key for at in common.others.values()]
        if not all(isinstance(key, slice) for key in keys):
            return None
        if wanted.of_rows:  # axes of one index are left out, or added: it is still a view
            part = self.out[(slice(None), *keys)]
            return part.reshape(len(part), *wanted.shape[1:])
        if len(common.rows) > 1:
            return None
        place = self.places[common.rows[0]]
        return self.out[(slice(place, place + 1), *keys)].reshape(wanted.shape)


class _Common(NamedTuple):
    """What a mapping has of a box.

    Attributes
    ----------
    rows : numpy.ndarray
        Rows of the box.
    others : dict of int to Along
        Places among the indices of the box along its other axes.
    places : dict of int to (numpy.ndarray or Along)
        Along each axis, the places of these among the indices of the mapping; of rows, one a row.
    """

    rows: np.ndarray
    others: dict[int, Along]
    places: dict[int, np.ndarray | Along]

    def key(self, axes: Sequence[int]) -> tuple[Any, ...]:
        """Return what takes these of an array of marks, which has one for all indices along other axes than `axes`."""
        along = [at if axis in axes else Along.all_of(1) for axis, at in self.others.items()]
        keys = [at.key for at in along]
        if all(isinstance(key, slice) for key in keys):
            return self.rows, *keys
        return np.ix_(self.rows, *(at.indices for at in along))


class _Wanted(NamedTuple):
    """What is read of a source.

    Attributes
    ----------
    address : ColumnAddress
        What rows of the source are.
    rows : numpy.ndarray
        Their numbers.
    shape : tuple of int
        How many there are, and how many indices each has along the other axes of the source.
    of_rows : bool
        Whether these are the rows of the box, one each; otherwise they are all of each row of the box.
    """

    address: ColumnAddress
    rows: np.ndarray
    shape: tuple[int, ...]
    of_rows: bool


def _boxes_of(part: Part, layout: ColumnLayout) -> Iterator[_Box]:
    """Yield the boxes of a part of a read."""
    take = part.address if isinstance(part.address, Take) else Take(layout.name)
    request, out, shape = part.request.listed(), part.out, layout.shape
    corners = take.corners(request.rows, layout)
    taken = [*take.taken, *[None] * (len(shape) - len(take.taken))]
    others = {
        axis: Along.all_of(length) if at is None else at
        for axis, (length, at) in enumerate(zip(shape, taken, strict=True))
        if axis not in take.axes
    }
    if not take.shape:
        out = np.moveaxis(out.T, -1, 0) if take.is_reversed else out
        yield _Box({axis: corners[:, axis] for axis in take.axes}, others, request.places, out)
        return
    box_shape = take.box_shape(shape)
    for place, corner in zip(request.places.tolist(), corners.tolist(), strict=True):
        inside = {
            axis: Along.range(corner[axis], min(box_shape[axis], shape[axis] - corner[axis])) for axis in take.axes
        }
        whole = [{**others, **inside}[axis] for axis in range(len(shape))]
        lengths = [*map(len, whole)]
        if lengths != [*box_shape]:
            out[place] = np.zeros((), out.dtype)
        box = out[place].reshape(box_shape)[tuple(map(slice, lengths))]
        first, *rest = whole
        yield _Box({0: first.indices}, dict(enumerate(rest, 1)), np.arange(lengths[0]), box)


class VirtualColumn:
    """A virtual dataset.

    Parameters
    ----------
    file : callable
        Opens the files that values come from.
    redirect : Redirect
        The mappings.
    layout : ColumnLayout
        The dataset.
    """

    def __init__(self, file: FileOf, redirect: Redirect, layout: ColumnLayout) -> None:
        made = gather(lambda of: _Source.of(file, redirect.columns[of[0]], of[1:], layout), redirect.mappings)
        sources = [source for source in made if size_of(source.here)]
        self._file, self.layout, self.sources = file, layout, sources
        self._fill = _fill_of(redirect, layout)
        self._ndim = len(layout.shape) - np.ndim(self._fill)  # without the axes of items
        self._paths = {source.path for source in sources}
        # The first row of each mapping, and the last one plus one. Between them are rows that no mapping has.
        bounds = np.array([(source.here[0].begin, source.here[0].end) for source in sources], np.int64).reshape(-1, 2)
        self._bounds = bounds
        self._edges = Partition(np.concatenate([[0], bounds.reshape(-1), [layout.num_rows]]))
        # Whether each row is of one mapping at most, and mappings are in the order of their rows.
        self._are_apart = len(sources) > 0 and bool((bounds[1:, 0] >= bounds[:-1, 1]).all())
        # The row of a source, less that of the stack.
        shifts = [(0 if source.is_one_row else source.there[0].begin) - source.here[0].begin for source in sources]
        self._shifts = np.array(shifts, np.int64)
        # The axes along which a mapping has not all indices.
        self._parted = [
            axis
            for axis, length in enumerate(layout.shape)
            if not all(source.here[axis].is_all_of(length) for source in sources)
        ]

    def joint(self) -> Column | None:
        """Return the sources of a stack as one column, if they are alike and each mapping is a block of its source."""
        if not self._are_apart or not all(
            source.layout.direct
            and (source.is_one_row or [*source.axes.items()] == [(axis, axis) for axis in range(len(source.there))])
            and all(len(rows) == rows.end - rows.begin for rows in (source.here[0], source.there[0]))
            and all(along.is_all_of(n) for along, n in zip(source.there[1:], source.layout.row_shape, strict=True))
            for source in self.sources
        ):
            return None

        def reader(source: _Source) -> Any:
            column = self._file(source.path).reader(source.address, self.layout.where)
            return column.as_row() if source.is_one_row and isinstance(column, Column) else column

        joint = Column.joined(map(reader, self.sources))
        # Rows of the stack may be wider than those of its sources.
        is_whole = joint is not None and self.layout.row_shape == joint.source.layout.row_shape
        return joint if is_whole and joint is not None and self.layout.dtype == joint.source.layout.dtype else None

    def states_of(self, paths: set[str]) -> list[tuple[str, Identity | None]]:
        """Return the states that files have to have if values of these are read.

        Others decide which sources there are: a path without a file is one where libhdf5 looks first.
        """
        return [state for state in self.layout.sources if state[0] in paths or state[0] not in self._paths]

    def joint_jobs(self, joint: Column, request: Request, out: np.ndarray) -> tuple[list[Job], set[str]]:
        """Return the work that reads rows of a stack, given its sources as one column, and the files that have them."""
        runs, at = self._edges.cut(request)  # mappings are at odd places
        if (alone := at % 2 == 0).any():
            runs.select(alone).fill(out, self._fill)
            runs, at = runs.select(~alone), at[~alone]
        numbers = at // 2
        firsts = runs.firsts + (joint.source.table.rows.starts[numbers] + self._shifts[numbers])
        paths = {self.sources[number].path for number in {*numbers.tolist()}}
        return joint.jobs(replace(runs, firsts=firsts), out), paths

    def cut(self, part: Part, most: int) -> list[Part]:
        """Return parts of a part that come from about `most` files each, of a virtual dataset that stacks them."""
        rows = part.request.listed()
        edges = np.searchsorted(rows.rows, np.sort(self._bounds[:, 0])[most::most]).tolist()
        cuts = [(low, high) for low, high in itertools.pairwise([0, *edges, len(rows)]) if low < high]
        return [replace(part, request=rows.select(slice(*cut))) for cut in cuts]

    def parts(self, part: Part, steps: FinishSteps) -> Iterator[tuple[str, Part]]:
        """Yield paths, and the parts of reads of these that fill the output; add what is left to do then to `steps`."""
        if (out := part.out).dtype != self.layout.dtype:  # values are those of the column before they are cast
            request = part.request.listed()
            values = np.empty((len(request), *out.shape[1:]), self.layout.dtype)
            steps.append(partial(out.__setitem__, request.places, values))
            part = replace(part, request=request_of(request.rows), out=values)
        where = part.where or self.layout.where
        if isinstance(part.address, Take) and max(part.address.axes) >= self._ndim:
            raise items_are_arrays(where)
        for box in _boxes_of(part, self.layout):
            # One mark is enough along axes where each mapping has all indices.
            marked = [len(at) if axis in self._parted else 1 for axis, at in box.others.items()]
            has_values = np.zeros((len(box.places), *marked), bool)
            for source, near in self._sources_of(box):
                common = box.common(source.here, near)
                if not (len(common.rows) and all(map(len, common.others.values()))):
                    continue
                at = common.key(self._parted)
                if has_values[at].any():
                    raise UnsupportedColumnError(
                        f"{self.layout.where} is virtual, and two of its mappings have the same values, which is not "
                        f"read without libhdf5. Write it again with mappings that are apart. {_COPY}"
                    )
                has_values[at] = True
                yield source.path, _part_of(source, box, common, where, steps)
            if not has_values.all():
                box.out[box.places[~has_values.reshape(len(has_values), -1).all(axis=1)]] = self._fill

    def _sources_of(self, box: _Box) -> Iterator[tuple[_Source, np.ndarray]]:
        """Yield the mappings that may have values of a box, each with the rows that it may have.

        There may be many mappings, and many rows: each looks at those between its ends alone.
        """
        if (first := box.corners.get(0)) is None:
            pieces = box.others[0].pieces
            begin, end = (pieces[:, 0].min(), pieces.sum(axis=1).max()) if len(pieces) else (0, 0)
            for number in np.flatnonzero((self._bounds[:, 0] < end) & (self._bounds[:, 1] > begin)).tolist():
                yield self.sources[number], np.arange(len(box.places))
            return
        order = np.argsort(first, kind="stable")
        low, high = np.searchsorted(first, self._bounds.T, sorter=order)
        for number in np.flatnonzero(low < high).tolist():
            yield self.sources[number], np.sort(order[low[number] : high[number]])


def _part_of(source: _Source, box: _Box, common: _Common, where: str, steps: FinishSteps) -> Part:
    """Return the part that reads what a source has of a box; of other values than those of `out`, they are put later.

    Of b in the example above, `common` has row 1, as row 3 is the second of rows 2 and 3 of b's mapping, and columns 2
    to 4 of the box, which are places 0 to 2 of the mapping.
    """
    wanted, places = source.wanted(common), box.places[common.rows]
    view = box.view(common, wanted) if keeps_all(source.layout.dtype, box.out.dtype) else None
    if view is not None:
        return Part(wanted.address, request_of(wanted.rows, places if wanted.of_rows else None), view, where)
    values = np.empty(wanted.shape, source.layout.dtype)
    lengths = [len(at) if axis in source.axes else 1 for axis, at in common.others.items()]
    index = np.ix_(places, *(at.indices for at in common.others.values()))
    steps.append(partial(_put, box.out, index, values, [len(places) if wanted.of_rows else 1, *lengths]))
    return Part(wanted.address, request_of(wanted.rows), values, where)


def _put(out: np.ndarray, index: tuple[np.ndarray, ...], values: np.ndarray, shape: Sequence[int]) -> None:
    """Put values of a source into a virtual dataset; those of another type as libhdf5 converts them."""
    if not keeps_all(values.dtype, out.dtype):
        source, to = (h5py.h5t.py_create(array.dtype) for array in (values, out))
        values = converted(source, to, out.dtype, values.reshape(-1, 1).view(np.uint8))
    out[index] = values.reshape(shape)


def _fill_of(redirect: Redirect, layout: ColumnLayout) -> Any:
    if redirect.fill is not None:
        return redirect.fill
    if layout.element is not None:
        fill = np.empty((), object)
        fill[()] = np.empty(0, layout.element)
        return fill
    return b"" if layout.dtype.names is None else empty_record(layout.dtype)
