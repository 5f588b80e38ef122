"""Columns of which a row has some positions along its axes, or some fields of each compound value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import (
    Request,
    RowRequest,
    RowRuns,
    RunRequest,
    as_runs,
    request_of,
    units_of,
)
from ray_h5.read.arrays.direct_column import DirectColumn, strides_of
from ray_h5.read.jobs import Job, Staged, TableJob, Unplanned
from ray_h5.read.kernel.job_table import BOX_FIELDS, RAW, Field, Piece
from ray_h5.read.kernel.shared_jobs import shared
from ray_h5.storage.byte_source import ByteSource

if TYPE_CHECKING:
    from ray_h5.read.through_h5py.h5py_column import Library

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Positions along an axis, in the order of their delivery: the first of each run, and how many follow each other."""

_GAP_BYTES = 4096
"""Bytes between two parts of a row that are read with them: one read is faster than two."""

_MOST_BYTES = 1 << 20
_MOST_ROWS = 1 << 16
_MOST_PIECES = 64
"""Of a row that has more parts, what is between them is copied, too, and they are picked by numpy (measured)."""


@dataclass(frozen=True, slots=True)
class TakenAddress:
    """A dataset of which a row has some positions, and some bytes of each value.

    Attributes
    ----------
    name : str
        The dataset.
    axes : int
        How many of its leading axes are rows, in C order.
    taken : tuple of Runs
        For each axis of a row its positions, and for each value its bytes.
    dtype : numpy.dtype
        What these bytes are, as they are stored.
    """

    name: str
    axes: int
    taken: tuple[Runs, ...]
    dtype: np.dtype

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Lengths along the axes of a row as it is delivered; bytes along the last."""
        return tuple(sum(count for _, count in runs) for runs in self.taken)


def runs_of_positions(positions: np.ndarray) -> Runs:
    """Return positions as runs of those that follow each other."""
    if not len(positions):
        return ()
    runs = RowRuns.split(positions[1:] != positions[:-1] + 1)
    return tuple(zip(positions[runs.start].tolist(), (runs.stop - runs.start).tolist(), strict=True))


def by_byte(layout: ColumnLayout) -> ColumnLayout:
    """Return the layout of the bytes of an array: those of a value are one more axis."""
    item, chunk = layout.stored_dtype.itemsize, layout.chunk_shape
    return replace(
        layout,
        shape=(*layout.shape, item),
        chunk_shape=None if chunk is None else (*chunk, *layout.shape[len(chunk) :], item),
        stored_dtype=np.dtype(np.uint8),
        item_bytes=1,
    )


def bytes_of_fill(layout: ColumnLayout, of_value: Runs) -> np.ndarray:
    """Return some bytes of the value of rows that were never written."""
    fill = np.zeros((), layout.stored_dtype) if layout.fill is None else layout.fill
    stored = np.frombuffer(fill.tobytes(), np.uint8)
    return np.concatenate([stored[at : at + count] for at, count in of_value])


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The parts of a row that are copied, ascending by their chunk and by their place in it.

    Attributes
    ----------
    cells : numpy.ndarray
        The chunks of a row that hold them, each once.
    first, stop : numpy.ndarray
        Their parts.
    sources, places : numpy.ndarray
        Where a part is in a chunk (its first row), and in the delivered row, in bytes.
    sizes : numpy.ndarray
        The bytes from the first to the last byte of a part.
    kinds : numpy.ndarray
        The box of each part.
    boxes : numpy.ndarray
        As of `JobTable`.
    """

    cells: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    sources: np.ndarray
    places: np.ndarray
    sizes: np.ndarray
    kinds: np.ndarray
    boxes: np.ndarray


class TakenColumn(DirectColumn):
    """Reads parts of rows. Chunks that hold none of them are not fetched.

    Parameters
    ----------
    path, layout, byte_source, index
        As of `DirectColumn`.
    address : TakenAddress
        Which parts.
    """

    def __init__(
        self,
        path: str,
        layout: ColumnLayout,
        byte_source: ByteSource,
        index: ChunkIndex | None,
        address: TakenAddress,
    ) -> None:
        super().__init__(path, by_byte(layout), byte_source, index)
        self._values = layout
        self._address = address
        self._out_bytes = math.prod(address.out_shape)
        self.by_row = False

    @cached_property
    def _parts_of_row(self) -> _Parts:
        shape = self.layout.row_shape
        chunk = shape if self.layout.chunk_shape is None else self.grid.chunk_shape[1:]
        counts = [-(-n // c) if c else 0 for n, c in zip(shape, chunk, strict=True)]
        # Along each axis: chunk, place in it, length, place in the output.
        along = [_cut(runs, size) for runs, size in zip(self._address.taken, chunk, strict=True)]
        at = np.indices([each.shape[1] for each in along]).reshape(len(along), -1)
        found = [each[:, i] for each, i in zip(along, at, strict=True)]
        inner, outer = strides_of(chunk, 1), strides_of(self._address.out_shape, 1)
        cells, sources, places = (np.zeros(at.shape[1], np.int64) for _ in range(3))
        for (cell, source, _, place), count, one, other in zip(found, counts, inner, outer, strict=True):
            cells = cells * count + cell
            sources += source * one
            places += place * other
        order = np.lexsort((sources, cells))
        cells, sources, places = cells[order], sources[order], places[order]
        extents = np.stack([each[2] for each in found], axis=1)[order]
        sizes = ((extents - 1) * np.array(inner)).sum(axis=1) + 1
        unlike, kinds = np.unique(extents, axis=0, return_inverse=True)
        boxes = np.zeros((len(unlike), BOX_FIELDS), np.int64)
        for box, lengths in zip(boxes, unlike.tolist(), strict=True):
            row = _box(lengths, inner, outer)
            box[: len(row)] = row
        split = RowRuns.split(cells[1:] != cells[:-1])
        return _Parts(cells[split.start], split.start, split.stop, sources, places, sizes, kinds.reshape(-1), boxes)

    def lands_in_place(self, out: np.ndarray) -> bool:
        return out.dtype == self._address.dtype and bool(out.flags.c_contiguous)

    def reads_in_place(self, out: np.ndarray) -> bool:
        """Return whether the jobs copy parts from a chunk straight into `out`."""
        return self.lands_in_place(out) and self._wide is None and self._out_bytes > 0

    # `library` is as in the method of `DirectColumn`.
    def jobs(self, request: Request | RunRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the parts of ``request.rows``."""
        if not len(request) or not self._out_bytes:
            return []
        if self.index is None and self.layout.offset is None:
            out[request.listed().places] = self._fill_value(out)
            return []
        if not self.lands_in_place(out):
            return self._put_later(request, out, self._address, lambda values: values)
        if (wide := self._wide) is not None:
            return self._put_later(request, out, *wide)
        if later := self._planned_in_parts(request, out, library):
            return later
        runs = as_runs(request)
        if self.index is None:
            return self._span_jobs(runs.joined(), out)
        return self._taken_jobs(runs.pieces(self.grid.chunk_rows), out)

    def _fill_value(self, out: np.ndarray) -> np.ndarray:
        """Return the parts of a value that was never written, in the shape that `out` has them in."""
        assert self._values.fill is not None or self._values.offset is None
        values = bytes_of_fill(self._values, self._address.taken[-1]).view(self._address.dtype)
        return values.reshape(out.shape[len(self._address.taken) :])

    # Chunks ----------------------------------------------------------------------------------

    def _taken_jobs(self, runs: RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work for runs that are each in one chunk along the first axis; their chunks ascend."""
        assert self.index is not None
        grid, cells = self.grid, self._parts_of_row.cells
        along = runs.firsts // grid.chunk_rows
        split = RowRuns.split(along[1:] != along[:-1])
        numbers = (along[split.start, None] * grid.per_row + cells).reshape(-1)
        starts, stops = (np.repeat(each, len(cells)) for each in (split.start, split.stop))
        of = np.tile(np.arange(len(cells)), len(split.start))
        offsets, sizes, masks = self.index.locate(numbers)
        missing = offsets == UNALLOCATED
        if missing.any():
            # Now, and not in a job: these run side by side, and the written chunks go over it.
            fill = self._fill_value(out)
            for place, count in zip(runs.places.tolist(), runs.counts.tolist(), strict=True):
                out[place : place + count] = fill
            keep = ~missing
            numbers, starts, stops, of, offsets, sizes, masks = (
                each[keep] for each in (numbers, starts, stops, of, offsets, sizes, masks)
            )
        if not len(numbers):
            return []
        raw = self._decoder.stores_raw(masks)
        self._check_raw(numbers, offsets, sizes, raw)
        jobs = self._decoded(numbers, offsets, sizes, masks, raw)
        part_bytes = self._chunk_bytes // grid.chunk_rows
        pieces, boxes = self._pieces(jobs, runs, starts, stops, of, part_bytes, out)
        return [TableJob(self._table(jobs, pieces, out, numbers, boxes))]

    def _pieces(
        self,
        jobs: np.ndarray,
        runs: RunRequest,
        starts: np.ndarray,
        stops: np.ndarray,
        of: np.ndarray,
        row_bytes: int,
        out: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Set which pieces jobs have, and return them with their boxes; `of` is the chunk of a row that a job has."""
        parts = self._parts_of_row
        counts = stops - starts
        at, job = units_of(starts, counts), np.repeat(np.arange(len(starts)), counts)
        many = (parts.stop - parts.first)[of[job]]
        part = units_of(parts.first[of[job]], many)
        ends = np.cumsum(np.bincount(job, many, len(starts)).astype(np.int64))
        jobs[Field.END] = ends
        jobs[Field.BEGIN, 1:] = ends[:-1]
        run = np.repeat(at, many)
        within = runs.firsts[run] % self.grid.chunk_rows * row_bytes
        return self._boxed(within + parts.sources[part], runs.places[run], part, runs.counts[run], row_bytes, out)

    def _boxed(
        self,
        sources: np.ndarray,
        places: np.ndarray,
        part: np.ndarray,
        rows: np.ndarray,
        row_bytes: int,
        out: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pieces that each copy one part of consecutive rows, and their boxes."""
        known = self._parts_of_row
        pieces = np.zeros((len(Piece), len(part)), np.int64)
        pieces[Piece.SOURCE] = sources
        pieces[Piece.DESTINATION] = places * self._out_bytes + out.ctypes.data + known.places[part]
        boxes, kinds = known.boxes, known.kinds[part]
        pieces[Piece.BOX] = kinds
        if np.any(rows > 1):  # the rows of a run are the first axis of its box
            found, pieces[Piece.BOX] = np.unique(rows * len(boxes) + kinds, return_inverse=True)
            rows, of = np.divmod(found, len(boxes))
            axis = np.stack([rows, np.full_like(rows, row_bytes), np.full_like(rows, self._out_bytes)], axis=1)
            boxes = np.concatenate([boxes[of, :1] + 1, boxes[of, 1:2], axis, boxes[of, 2:-3]], axis=1)
        return pieces, boxes

    # Rows that are stored one after the other ------------------------------------------------

    def _span_jobs(self, runs: RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work that reads the bytes of a row from the first to the last of parts that are close."""
        parts, row_bytes = self._parts_of_row, self._row_bytes
        assert self.layout.offset is not None
        ends = np.maximum.accumulate(parts.sources + parts.sizes)
        split = RowRuns.split(parts.sources[1:] - ends[:-1] > _GAP_BYTES)
        low, high = parts.sources[split.start], ends[split.stop - 1]
        together = len(low) == 1 and row_bytes - (high[0] - low[0]) <= _GAP_BYTES
        runs = _cut_runs(runs, max(1, _MOST_BYTES // row_bytes) if together else 1)
        if len(runs) * len(parts.sources) > _MOST_ROWS and len(runs) > 1:
            some = max(1, _MOST_ROWS // len(parts.sources))
            cuts = [slice(at, at + some) for at in range(0, len(runs), some)]
            if len(cuts) > 1:
                return [Unplanned(self.byte_source, partial(self._span_jobs, runs.select(cut), out)) for cut in cuts]
        count = len(runs) * len(low)
        jobs = np.zeros((len(Field), count), np.int64)
        jobs[Field.FILE], jobs[Field.PIPELINE] = self.file, RAW
        jobs[Field.OFFSET] = (self.layout.offset + runs.firsts[:, None] * row_bytes + low).reshape(-1)
        jobs[Field.SIZE] = ((runs.counts[:, None] - 1) * row_bytes + (high - low)).reshape(-1)
        jobs[Field.DECODED] = jobs[Field.SIZE]
        many = np.tile(split.stop - split.start, len(runs))
        jobs[Field.END] = np.cumsum(many)
        jobs[Field.BEGIN, 1:] = jobs[Field.END, :-1]
        part = np.tile(np.arange(len(parts.sources)), len(runs))
        run = np.repeat(np.arange(len(runs)), len(parts.sources))
        sources = parts.sources[part] - np.tile(np.repeat(low, split.stop - split.start), len(runs))
        pieces, boxes = self._boxed(sources, runs.places[run], part, runs.counts[run], row_bytes, out)
        return [TableJob(self._table(jobs, pieces, out, np.full(count, -1), boxes))]

    # Parts that are put into their places afterwards -----------------------------------------

    @cached_property
    def _wide(self) -> tuple[TakenAddress, Callable[[np.ndarray], np.ndarray]] | None:
        """Of rows with many parts: longer runs with what is between, and what picks the parts; None for few."""
        many = math.prod(len(runs) for runs in self._address.taken[:-1])
        if many <= _MOST_PIECES:
            return None
        shape = self.layout.row_shape
        chunk = [1] * len(shape) if self.layout.chunk_shape is None else list(self.grid.chunk_shape[1:])
        bytes_of = strides_of(shape, 1)
        wide, picked = [], []
        for runs, size, step in zip(self._address.taken[:-1], chunk[:-1], bytes_of[:-1], strict=True):
            positions = np.concatenate([np.arange(at, at + count) for at, count in runs])
            gap = max(1, _GAP_BYTES // step)
            kept = np.unique(positions)
            is_chunked = self.layout.chunk_shape is not None
            far = np.diff(kept // size) > 1 if is_chunked else np.diff(kept) > gap
            split = RowRuns.split(far)
            low, counts = kept[split.start], kept[split.stop - 1] + 1 - kept[split.start]
            wide.append(tuple(zip(low.tolist(), counts.tolist(), strict=True)))
            picked.append(np.searchsorted(units_of(low, counts), positions))
        address = replace(self._address, taken=(*wide, self._address.taken[-1]))
        if address == self._address:
            return None

        def pick(values: np.ndarray) -> np.ndarray:
            for axis, at in enumerate(picked):
                if len(at) != values.shape[1 + axis] or (np.diff(at) != 1).any():
                    values = values.take(at, axis=1 + axis)
            return values

        return address, pick

    def of(self, address: TakenAddress) -> TakenColumn:
        """Return the reader of other parts of the same rows."""
        return TakenColumn(self._path, self._values, self._byte_source, self.index, address)

    def _put_later(
        self,
        request: Request | RunRequest,
        out: np.ndarray,
        address: TakenAddress,
        pick: Callable[[np.ndarray], np.ndarray],
    ) -> list[Job]:
        """Return the work that reads about a mebibyte of `address` after the other, and puts it into its places."""
        column = self.of(address)
        *lengths, of_value = address.out_shape
        shape = (*lengths, of_value // address.dtype.itemsize)
        jobs: list[Job] = []
        for rows in self._parts(request.listed(), max(1, _MOST_BYTES // max(1, column._out_bytes))):
            listed = rows.listed()
            moved = request_of(listed.rows, np.arange(len(listed), dtype=np.int64))
            put = partial(_put, out, listed.places, pick)
            jobs_into = partial(column.jobs, moved, library=None)  # type: ignore[arg-type]
            jobs.append(Staged(self.byte_source, jobs_into, (len(listed), *shape), address.dtype, put))
        return jobs


def shared_jobs(
    columns: Sequence[TakenColumn], requests: Sequence[RowRequest], outs: Sequence[np.ndarray], library: Library
) -> list[Job]:
    """Return the work of several parts of the rows of one dataset, which decodes each chunk once."""
    one = columns[0]
    is_same = all(np.array_equal(each.rows, requests[0].rows) for each in requests[1:])
    in_place = all(column.reads_in_place(out) for column, out in zip(columns, outs, strict=True))
    if not is_same or not in_place or one.index is None or not len(requests[0]):
        found = zip(columns, requests, outs, strict=True)
        return [job for column, request, out in found for job in column.jobs(request, out, library)]
    if len(requests[0]) > _MOST_ROWS:
        parts = [list(one._parts(request, _MOST_ROWS)) for request in requests]
        if len(parts[0]) > 1:
            several = zip(*parts, strict=True)
            return [
                Unplanned(one.byte_source, partial(shared_jobs, columns, _listed(each), outs, library))
                for each in several
            ]
    runs = [RunRequest(each.rows, each.places, np.ones(len(each), np.int64)) for each in requests]
    rows = one.grid.chunk_rows
    jobs: list[Job] = [
        job
        for column, each, out in zip(columns, runs, outs, strict=True)
        for job in column._taken_jobs(each.joined().pieces(rows), out)
    ]
    return sharing(jobs)


def sharing(jobs: list[Job]) -> list[Job]:
    """Return jobs of one dataset as one that decodes each chunk once; as they are, if some decode into their places."""
    tables = [job.table for job in jobs if isinstance(job, TableJob)]
    if not tables or len(tables) < len(jobs) or any(each.jobs[Field.DESTINATION].any() for each in tables):
        return jobs
    return [TableJob(shared(tables))]


def _listed(requests: Sequence[Request]) -> list[RowRequest]:
    return [each.listed() for each in requests]


def _put(out: np.ndarray, places: np.ndarray, pick: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> None:
    out[places] = pick(values).reshape(len(places), *out.shape[1:])


def _cut(runs: Runs, size: int) -> np.ndarray:
    """Return runs that are each in one chunk: its number, the place in it, the length, and the place in the output."""
    firsts, counts = np.array(runs, np.int64).reshape(-1, 2).T
    cut = RunRequest(firsts, np.cumsum(counts) - counts, counts)
    if len(firsts):
        first, last = firsts // size, (firsts + counts - 1) // size
        touched = last - first + 1
        chunks, begin = units_of(first, touched), np.repeat(firsts, touched)
        low = np.maximum(begin, chunks * size)
        high = np.minimum(begin + np.repeat(counts, touched), (chunks + 1) * size)
        cut = RunRequest(low, np.repeat(cut.places, touched) + low - begin, high - low)
    return np.stack([cut.firsts // max(1, size), cut.firsts % max(1, size), cut.counts, cut.places])


def _box(lengths: Sequence[int], inner: Sequence[int], outer: Sequence[int]) -> list[int]:
    """Return a box; axes that lie one after the other in the chunk and in the row are its innermost run."""
    run = lengths[-1]
    axes: list[int] = []
    for length, one, other in list(zip(lengths, inner, outer, strict=True))[-2::-1]:
        if length == 1:
            continue
        if not axes and one == other == run:
            run *= length
        else:
            axes = [length, one, other, *axes]
    return [len(axes) // 3, run, *axes]


def _cut_runs(runs: RunRequest, most: int) -> RunRequest:
    """Return the same rows as runs of at most so many."""
    if (runs.counts <= most).all():
        return runs
    parts = -(-runs.counts // most)
    at = units_of(np.zeros(len(parts), np.int64), parts) * most
    counts = np.minimum(np.repeat(runs.counts, parts) - at, most)
    return RunRequest(np.repeat(runs.firsts, parts) + at, np.repeat(runs.places, parts) + at, counts)
