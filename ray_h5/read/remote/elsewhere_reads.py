"""Reads of columns whose values are in other files -> reads of the datasets that have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import h5py
import numpy as np

from ray_h5.buffers import empty
from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.known_columns import Elsewhere
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRequest, RunRequest, by_part, request_of
from ray_h5.manifest.selections import Along, Selection, size_of
from ray_h5.read.arrays.block_column import BlockAddress
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.grid_column import GridAddress
from ray_h5.read.arrays.joint_columns import JointColumn, are_alike
from ray_h5.read.arrays.last_axis import LastAxis
from ray_h5.read.jobs import Job
from ray_h5.read.open_file import OpenFile
from ray_h5.read.read_parts import Address, Part

Spread = tuple[OpenFile, Part]
"""A part of a read, and the file that it is a part of."""

_MOST_SPARE_BYTES = 1 << 30
"""A source of which few values of each row are selected is read by whole rows, as far as this is enough."""

_FIELDS = "iuf"


class HasVirtual(Protocol):
    """A file with columns whose values are in other files."""

    virtual: dict[str, VirtualColumn]
    """Those that are virtual, once they were read."""

    def file_of(self, path: str) -> OpenFile:
        """Return the file at a path that values come from."""


def spread(
    file: HasVirtual, part: Part, elsewhere: Elsewhere, layout: ColumnLayout, after: list[Callable[[], None]]
) -> list[Spread]:
    """Return the parts of other files that fill the output of a part.

    What is left to do once they are read is added to `after`. The last of it is done first.
    """
    if elsewhere.how == "link":
        (column,) = elsewhere.columns
        address: Address = column.name
        if not isinstance(part.address, str):
            address = replace(part.address, name=column.name)  # type: ignore[arg-type]  # of one dataset
        return [(file.file_of(column.path), Part(address, part.request, part.out))]
    if isinstance(part.address, (LastAxis, BlockAddress)):
        raise UnsupportedColumnError(
            f"{layout.where} is virtual; in a file in a store, rows of such columns lie along the first axis. Copy it "
            "into the file with h5repack, or read it from a local disk."
        )
    if isinstance(part.address, GridAddress):
        part = _slabs(part, layout, after)
    return list(virtual_of(file, elsewhere, layout).parts(file, part, after))


def virtual_of(file: HasVirtual, elsewhere: Elsewhere, layout: ColumnLayout) -> VirtualColumn:
    """Return a virtual column of a file; it stays in memory."""
    # What it takes to make one grows with the mappings, and there may be thousands.
    if (virtual := file.virtual.get(layout.name)) is None:
        virtual = file.virtual[layout.name] = VirtualColumn.of(file, elsewhere, layout)
    return virtual


def leads_to(layout: ColumnLayout, other: OpenFile) -> str:
    """Return the beginning of an error of a file that has values of a column."""
    return f"{layout.path}: column {layout.name!r} leads to {other.path}"


def _slabs(part: Part, layout: ColumnLayout, after: list[Callable[[], None]]) -> Part:
    """Return the part that reads all that some indices of the first axis have, for rows along several axes."""
    assert isinstance(part.address, GridAddress)
    request, out = part.request.listed(), part.out
    per_slab = math.prod(layout.shape[1 : part.address.axes])
    slabs, at = np.unique(request.rows // per_slab, return_inverse=True)
    nbytes = len(slabs) * per_slab * math.prod(layout.shape[part.address.axes :]) * layout.dtype.itemsize
    if nbytes > max(_MOST_SPARE_BYTES, 4 * out.nbytes):
        raise UnsupportedColumnError(
            f"{layout.where} is virtual: {len(request)} rows along {part.address.axes} axes take all that "
            f"{len(slabs)} indices of the first axis have, {nbytes} bytes. Read fewer rows at once, in the order of "
            "the first axis; or copy the column into the file with h5repack."
        )
    found = empty((len(slabs), *layout.shape[1:]), layout.dtype, layout.where)
    rows = found.reshape(-1, *layout.shape[part.address.axes :])

    def finish() -> None:
        out[request.places] = rows[at * per_slab + request.rows % per_slab]

    after.append(finish)
    return Part(part.address.name, request_of(slabs), found)


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """One mapping, with its source."""

    path: str
    name: str
    layout: ColumnLayout
    here: Selection
    there: Selection
    is_whole: bool

    @property
    def by_row(self) -> bool:
        """Whether each row of the virtual dataset comes from one row of the source."""
        return len(self.here[0]) == len(self.there[0])

    @property
    def sizes(self) -> tuple[int, int]:
        """How many values of a row are selected, here and there."""
        return size_of(self.here[1:]), max(1, size_of(self.there[1:]))


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

    @cached_property
    def is_stack(self) -> bool:
        """Whether its mappings are blocks of whole rows, one after the other."""
        blocks = all(len(each.here[0]) == each.here[0].end - each.here[0].begin for each in self.sources)
        apart = bool((self.bounds[1:, 0] >= self.bounds[:-1, 1]).all())
        return bool(self.sources) and blocks and apart and all(each.is_whole for each in self.sources)

    @classmethod
    def of(cls, file: HasVirtual, elsewhere: Elsewhere, layout: ColumnLayout) -> VirtualColumn:
        layouts = gather(lambda column: _layout_of(file.file_of(column.path), column.name), elsewhere.columns)
        sources = []
        for number, here, there in elsewhere.mappings:
            column, found = elsewhere.columns[number], layouts[number]
            taken = there or tuple(map(Along.all_of, found.shape[: _axes(found, layout, len(here))]))
            _check(layout, found, here, taken)
            is_whole = _is_whole(layout, found, here, taken)
            sources.append(_Source(column.path, column.name, found, here, taken, is_whole))
        bounds = np.array([(each.here[0].begin, each.here[0].end) for each in sources], np.int64).reshape(-1, 2)
        return cls(layout, sources, bounds, _fill(elsewhere, layout))

    def joint(self, file: HasVirtual) -> JointColumn | None:
        """Return the sources of a stack as one column, if they are alike and each mapping is a block of its source."""
        known = OpenFile.joint_columns.get(self)
        if known is None:
            known = self._joined(file) if self.is_stack else []
            OpenFile.joint_columns.put(self, known)
        return known[0] if known else None

    def _joined(self, file: HasVirtual) -> list[JointColumn]:
        columns: list[DirectColumn] = []
        for source in self.sources:
            other = file.file_of(source.path)
            with other.library() as there:
                column = other.reader_for(leads_to(self.layout, other), source.name, there)
            is_block = len(source.there[0]) == source.there[0].end - source.there[0].begin
            if not is_block or not isinstance(column, DirectColumn) or not are_alike([column, *columns[:1]]):
                return []
            columns.append(column)
        return [JointColumn(columns)]

    @cached_property
    def _shifts(self) -> np.ndarray:
        """The row of a source, less that of the stack, for each mapping."""
        return np.array([each.there[0].begin - each.here[0].begin for each in self.sources], np.int64)

    def joint_jobs(self, joint: JointColumn, part: Part) -> list[Job]:
        """Return the work of a part of a read of a stack."""
        request, out = part.request.listed(), part.out
        owner = np.searchsorted(self.bounds[:, 0], request.rows, side="right") - 1
        if (alone := (owner < 0) | (request.rows >= self.bounds[owner, 1])).any():
            out[request.places[alone]] = self.fill
            request, owner = request.select(~alone), owner[~alone]
        rows = request.rows + (joint.starts[owner] + self._shifts[owner])
        return joint.jobs(request_of(rows, request.places), out, None)  # type: ignore[arg-type]  # without libhdf5

    def paths_of(self, request: Request | RunRequest) -> set[str]:
        """Return the files that rows come from, as far as these are on one axis."""
        return {self.sources[number].path for number, _, _ in self._near(request.listed().rows)}

    def parts(self, file: HasVirtual, part: Part, after: list[Callable[[], None]]) -> Iterator[Spread]:
        """Yield the parts that fill the output, or arrays from which `after` fills it."""
        request, out = part.request.listed(), part.out
        if self.is_stack:
            yield from self._blocks(file, request, out)
            return
        owner, is_mixed = self._owners(request.rows)
        if (alone := owner < 0).any():
            out[request.places[alone]] = self.fill
        whole = np.flatnonzero(~is_mixed & ~alone)
        for number, chosen in by_part(owner[whole]):
            source = self.sources[number]
            mine = request.select(whole[chosen])
            rows = source.there[0].at(source.here[0].places(mine.rows))
            yield file.file_of(source.path), Part(source.name, request_of(rows, mine.places), out)
        if is_mixed.any():
            yield from self._mixed(file, request.select(is_mixed), out, after)

    def _blocks(self, file: HasVirtual, request: RowRequest, out: np.ndarray) -> Iterator[Spread]:
        """Yield the parts of a stack."""
        found = 0
        for number, low, high in self._near(request.rows):
            source = self.sources[number]
            rows = source.there[0].at(request.rows[low:high] - source.here[0].begin)
            found += high - low
            yield file.file_of(source.path), Part(source.name, request_of(rows, request.places[low:high]), out)
        if found < len(request):
            first = np.searchsorted(self.bounds[:, 0], request.rows, side="right") - 1
            alone = (first < 0) | (request.rows >= self.bounds[first, 1])
            out[request.places[alone]] = self.fill

    def _owners(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mapping that has each row, or -1; and which rows are put together of parts."""
        owner, is_mixed = np.full(len(rows), -1, np.int64), np.zeros(len(rows), bool)
        for number, low, high in self._near(rows):
            source = self.sources[number]
            taken = np.flatnonzero(source.here[0].places(rows[low:high]) >= 0) + low
            is_mixed[taken] |= (owner[taken] >= 0) | (not source.is_whole)
            owner[taken] = number
        return owner, is_mixed

    def _near(self, rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Yield the mappings that may have some of `rows` (ascending), and which part of these."""
        first, stop = np.searchsorted(rows, self.bounds.T)
        for number in np.flatnonzero(first < stop).tolist():
            yield number, int(first[number]), int(stop[number])

    def _mixed(
        self, file: HasVirtual, request: RowRequest, out: np.ndarray, after: list[Callable[[], None]]
    ) -> Iterator[Spread]:
        """Yield parts whose values are put together row by row."""
        rows, at = np.unique(request.rows, return_inverse=True)
        block = empty((len(rows), *self.layout.row_shape), self.layout.dtype, self.layout.where)
        block[...] = self.fill
        is_taken = np.zeros(block.shape, bool)
        found: list[_Found] = []
        for source in [self.sources[number] for number, _, _ in self._near(rows)]:
            places = source.here[0].places(rows)
            if (taken := np.flatnonzero(places >= 0)).size:
                values = _Found.of(source, taken, places[taken], block.nbytes)
                if is_taken[values.where].any():
                    raise UnsupportedColumnError(
                        f"{self.layout.where} is virtual, and two of its mappings have the same values, which is not "
                        "read in a file in a store. Write it again with mappings that are apart."
                    )
                is_taken[values.where] = True
                found.append(values)
                if (needed := values.part) is not None:
                    yield file.file_of(source.path), needed

        def finish() -> None:
            for each in found:
                each.put(block)
            out[request.places] = block[at]

        after.append(finish)


@dataclass(slots=True, eq=False)
class _Found:
    """Rows of a source, and the rows of a virtual dataset that they have values of.

    Attributes
    ----------
    source : _Source
        The source.
    rows : numpy.ndarray
        The places of the latter in the block that is put together.
    at : numpy.ndarray
        For each of them, the place in the mapping.
    taken : numpy.ndarray
        The places in the selection of the source whose rows are read.
    values : numpy.ndarray
        Their rows.
    """

    source: _Source
    rows: np.ndarray
    at: np.ndarray
    taken: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, source: _Source, rows: np.ndarray, at: np.ndarray, most: int) -> _Found:
        """Return what rows of a mapping need; `most` are the bytes of the block that is put together."""
        layout, taken = source.layout, at
        if not source.by_row:
            per_row, per_source_row = source.sizes
            firsts, lasts = at * per_row // per_source_row, ((at + 1) * per_row - 1) // per_source_row
            runs = [np.arange(low, high + 1) for low, high in zip(firsts, lasts, strict=True)]
            taken = np.unique(np.concatenate(runs))
        nbytes = len(taken) * layout.row_bytes
        if nbytes > max(_MOST_SPARE_BYTES, 4 * most):
            raise UnsupportedColumnError(
                f"{layout.where}: a virtual column needs {nbytes} bytes of it for {len(rows)} rows, because its "
                "mappings take few values of each row. Copy its values into one dataset, row by row."
            )
        return cls(source, rows, at, taken, empty((len(taken), *layout.row_shape), layout.dtype, layout.where))

    @property
    def part(self) -> Part | None:
        """What reads the values, if there are any."""
        request = request_of(self.source.there[0].at(self.taken))
        return Part(self.source.name, request, self.values) if self.values.size else None

    @property
    def where(self) -> tuple[np.ndarray, ...]:
        """Where the selected values are in the block."""
        return np.ix_(self.rows, *(each.all() for each in self.source.here[1:]))

    def put(self, block: np.ndarray) -> None:
        """Put the selected values into the rows of a block."""
        source, extra = self.source, block.shape[len(self.source.here) :]
        chosen = _taken(self.values, source.there[1:])
        if not source.by_row:
            per_row, per_source_row = source.sizes
            flat = chosen.reshape(len(self.taken), per_source_row, *extra)
            points = self.at[:, None] * per_row + np.arange(per_row)
            chosen = flat[np.searchsorted(self.taken, points // per_source_row), points % per_source_row]
        wanted = (len(self.rows), *map(len, source.here[1:]), *extra)
        block[self.where] = _converted(chosen.reshape(wanted), block.dtype)


def _taken(values: np.ndarray, selection: Selection) -> np.ndarray:
    """Return selected values of each row."""
    for axis, each in enumerate(selection, start=1):
        if not each.is_all_of(values.shape[axis]):
            values = np.take(values, each.all(), axis=axis)
    return values


def _converted(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers as libhdf5 converts them: it clips what does not fit."""
    if values.dtype == dtype:
        return values
    size = max(values.dtype.itemsize, dtype.itemsize)
    buffer = np.zeros(values.size * size, np.uint8)
    buffer[: values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    h5py.h5t.convert(h5py.h5t.py_create(values.dtype), h5py.h5t.py_create(dtype), values.size, buffer)
    return buffer[: values.size * dtype.itemsize].view(dtype).reshape(values.shape)


def _layout_of(file: OpenFile, name: str) -> ColumnLayout:
    with file.library() as library:
        return file.column(name, library)


def _axes(found: ColumnLayout, layout: ColumnLayout, axes: int) -> int:
    """Return how many axes a source has, without those of an array type."""
    return len(found.shape) - (len(layout.shape) - axes)


def _check(layout: ColumnLayout, found: ColumnLayout, here: Selection, there: Selection) -> None:
    """Raise unless the values that a mapping selects in a source can be those that it selects in the column."""
    leads = f"{layout.where} leads to {found.where}"
    numbers = {layout.kind, found.kind} == {"number"} and {layout.dtype.kind, found.dtype.kind} <= set(_FIELDS)
    if layout.kind != found.kind or (layout.dtype != found.dtype and not numbers):
        raise UnsupportedColumnError(
            f"{leads}, which has values of another type: expected {layout.dtype}, found {found.dtype}. Write the "
            "virtual dataset again with the type of its sources."
        )
    inside = all(each.end <= length for each, length in zip(here, layout.shape, strict=False))
    inside &= all(each.end <= length for each, length in zip(there, found.shape, strict=False))
    if (
        not inside
        or layout.shape[len(here) :] != found.shape[len(there) :]
        or size_of(here) != size_of(there)
        or not there
    ):
        raise CorruptFileError(
            f"{leads}, which has another shape than the virtual dataset says, {found.shape}: there would be no values "
            "for some rows. Write the virtual dataset again for its source."
        )


def _is_whole(layout: ColumnLayout, found: ColumnLayout, here: Selection, there: Selection) -> bool:
    """Return whether whole rows of a source are whole rows of the column."""
    return (
        layout.dtype == found.dtype
        and layout.row_shape == found.row_shape
        and len(here[0]) == len(there[0])
        and all(each.is_all_of(length) for each, length in zip(here[1:], layout.row_shape, strict=False))
        and all(each.is_all_of(length) for each, length in zip(there[1:], found.row_shape, strict=False))
    )


def _fill(elsewhere: Elsewhere, layout: ColumnLayout) -> Any:
    if elsewhere.fill is not None:
        return elsewhere.fill
    if layout.element is None:
        return b""
    fill = np.empty((), object)
    fill[()] = np.empty(0, layout.element)
    return fill
