"""Reads of columns whose values are in other files -> reads of the datasets that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.known_columns import Elsewhere
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RunRequest, request_of
from ray_h5.manifest.selections import Along, size_of
from ray_h5.manifest.selections import Selection as Indices
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.joint_columns import JointColumn, are_alike
from ray_h5.read.arrays.selection import Selection
from ray_h5.read.jobs import Job
from ray_h5.read.open_file import OpenFile
from ray_h5.read.read_parts import Address, Part

Spread = tuple[OpenFile, Part]
"""A part of a read, and the file that it is a part of."""


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
        if isinstance(part.address, Selection):
            address = replace(part.address, name=column.name)
        return [(file.file_of(column.path), Part(address, part.request, part.out))]
    if not isinstance(part.address, str):
        raise UnsupportedColumnError(
            f"{layout.where} is virtual; in a file in a store, rows of such columns lie along the first axis. Copy it "
            "into the file with h5repack, or read it from a local disk."
        )
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


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """One mapping, with its source.

    Attributes
    ----------
    path, name, layout
        The source.
    here : Along
        The rows of the virtual dataset that it has.
    there : Along, optional
        The row of the source for each of them; None if all of the source is one row, as in a stack of frames.
    """

    path: str
    name: str
    layout: ColumnLayout
    here: Along
    there: Along | None


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
        blocks = all(each.there is not None and _is_block(each.here) for each in self.sources)
        return bool(self.sources) and blocks and bool((self.bounds[1:, 0] >= self.bounds[:-1, 1]).all())

    @classmethod
    def of(cls, file: HasVirtual, elsewhere: Elsewhere, layout: ColumnLayout) -> VirtualColumn:
        layouts = gather(lambda column: _layout_of(file.file_of(column.path), column.name), elsewhere.columns)
        sources = []
        for number, here, there in elsewhere.mappings:
            column, found = elsewhere.columns[number], layouts[number]
            taken = there or tuple(map(Along.all_of, found.shape[: _axes(found, layout, len(here))]))
            _check(layout, found, here, taken)
            rows = None if found.shape == layout.row_shape else taken[0]
            sources.append(_Source(column.path, column.name, found, here[0], rows))
        bounds = np.array([(each.here.begin, each.here.end) for each in sources], np.int64).reshape(-1, 2)
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
            is_block = source.there is not None and _is_block(source.there)
            if not is_block or not isinstance(column, DirectColumn) or not are_alike([column, *columns[:1]]):
                return []
            columns.append(column)
        return [JointColumn(columns)]

    @cached_property
    def _shifts(self) -> np.ndarray:
        """The row of a source, less that of the stack, for each mapping."""
        return np.array([each.there.begin - each.here.begin for each in self.sources if each.there], np.int64)

    def joint_jobs(self, joint: JointColumn, part: Part) -> list[Job]:
        """Return the work of a part of a read of a stack."""
        request, out = part.request.listed(), part.out
        owner = np.searchsorted(self.bounds[:, 0], request.rows, side="right") - 1
        if (alone := (owner < 0) | (request.rows >= self.bounds[owner, 1])).any():
            out[request.places[alone]] = self.fill
            request, owner = request.select(~alone), owner[~alone]
        rows = request.rows + (joint.starts[owner] + self._shifts[owner])
        return joint.jobs(request_of(rows, request.places), out)

    def paths_of(self, request: Request | RunRequest) -> set[str]:
        """Return the files that rows come from, as far as these are on one axis."""
        return {self.sources[number].path for number, _, _ in self._near(request.listed().rows)}

    def parts(self, file: HasVirtual, part: Part, after: list[Callable[[], None]]) -> Iterator[Spread]:
        """Yield the parts that fill the output; `after` repeats rows that were asked for several times."""
        request, out = part.request.listed(), part.out
        has_values = np.zeros(len(request), bool)
        for number, low, high in self._near(request.rows):
            source = self.sources[number]
            at = source.here.places(request.rows[low:high])
            (taken,) = np.nonzero(at >= 0)
            if not taken.size:
                continue
            if has_values[taken + low].any():
                raise UnsupportedColumnError(
                    f"{self.layout.where} is virtual, and two of its mappings have the same rows, which is not read "
                    "without libhdf5. Write it again with mappings that are apart."
                )
            has_values[taken + low] = True
            places = request.places[taken + low]
            if source.there is not None:
                rows, into = request_of(source.there.at(at[taken]), places), out
            else:
                rows, into = request_of(np.arange(source.layout.num_rows)), out[places[0]]
                if len(places) > 1:
                    after.append(partial(_repeat_row, out, places))
            yield file.file_of(source.path), Part(source.name, rows, into)
        if not has_values.all():
            out[request.places[~has_values]] = self.fill

    def _near(self, rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Yield the mappings that may have some of `rows` (ascending), and which part of these."""
        first, stop = np.searchsorted(rows, self.bounds.T)
        for number in np.flatnonzero(first < stop).tolist():
            yield number, int(first[number]), int(stop[number])


def _repeat_row(out: np.ndarray, places: np.ndarray) -> None:
    out[places[1:]] = out[places[0]]


def _is_block(along: Along) -> bool:
    return len(along) == along.end - along.begin


def _layout_of(file: OpenFile, name: str) -> ColumnLayout:
    with file.library() as library:
        return file.column(name, library)


def _axes(found: ColumnLayout, layout: ColumnLayout, axes: int) -> int:
    """Return how many axes a source has, without those of an array type."""
    return len(found.shape) - (len(layout.shape) - axes)


def _check(layout: ColumnLayout, found: ColumnLayout, here: Indices, there: Indices) -> None:
    """Raise unless the values that a mapping selects in a source can be those that it selects in the column."""
    leads = f"{layout.where} leads to {found.where}"
    if (layout.kind, layout.dtype) != (found.kind, found.dtype):
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
    # Either rows of the source are rows of the column, or all of the source is one row.
    is_row = len(here[0]) == 1 and found.shape == layout.row_shape
    is_by_row = found.row_shape == layout.row_shape and len(here[0]) == len(there[0])
    first = 0 if is_row else 1
    whole = [*zip(here[1:], layout.shape[1:], strict=False), *zip(there[first:], found.shape[first:], strict=False)]
    if not (is_row or is_by_row) or not all(each.is_all_of(length) for each, length in whole):
        raise UnsupportedColumnError(
            f"{layout.where} is virtual, and has parts of rows of {found.where}, which are not read in a file in a "
            "store: expected mappings of whole rows. Copy it into the file with h5repack, or read it from a local disk."
        )


def _fill(elsewhere: Elsewhere, layout: ColumnLayout) -> Any:
    if elsewhere.fill is not None:
        return elsewhere.fill
    if layout.element is None:
        return b""
    fill = np.empty((), object)
    fill[()] = np.empty(0, layout.element)
    return fill
