"""Plans reads of boxes of arrays: parts of rows, patches, grids, last axes, and fields of compound values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.indices import Along, picked
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, runs_between, units_of
from ray_h5.manifest.takes import Take
from ray_h5.per_process import cached_property
from ray_h5.read.arrays.chunk_source import ChunkSource, cut_between_chunks
from ray_h5.read.arrays.plan_rows import row_jobs
from ray_h5.read.jobs import Job, in_parts, staged
from ray_h5.read.native.job_table import BOX_FIELDS, NO_PIECES, RAW, Field, JobTable, Piece

_GAP_BYTES = 4096
"""Bytes between two parts of a box that are read with them: one read is faster than two."""

_NEAR_BYTES = 512
"""Bytes between two rows along the last axis that are read with them, and picked by numpy."""

_MOST_BYTES = 1 << 20
"""Bytes of one read, and of values that are put into their places afterwards."""

MOST_BOXES = 1 << 16
"""Boxes that are planned together."""

_NARROW_BYTES = 128
"""Of chunks that hold no more of a row, rows are read in order and put into their places by numpy (measured)."""

_MOST_PIECES = 64
"""Of a row that has more parts, what is between them is copied, too, and they are picked by numpy (measured)."""


class _Cells(NamedTuple):
    """Parts of chunks: the chunk of each, ascending; its shape; where it begins in the chunk and in the output."""

    numbers: np.ndarray
    lengths: np.ndarray
    sources: np.ndarray
    begins: np.ndarray

    def select(self, keep: np.ndarray | slice) -> _Cells:
        """Return the cells that a mask, a slice or an order keeps."""
        return _Cells(*(cells[keep] for cells in self))


class _Axis(NamedTuple):
    """One axis of an array, and what a box has of it.

    Attributes
    ----------
    extent, chunk, box : int
        The lengths of the array, of a chunk and of a box.
    stride : int
        How far neighbours are apart in a box of the output, in bytes.
    scale : int
        How many indices one index of the axis of the dataset is.
    runs : numpy.ndarray, optional
        The first and the count of each run that is taken; None for all.
    """

    extent: int
    chunk: int
    box: int
    stride: int
    scale: int = 1
    runs: np.ndarray | None = None

    def with_whole(self, inner: _Axis) -> _Axis:
        """Return this axis and the next one, which boxes and chunks have as a whole, as one."""
        by = inner.extent
        runs = None if self.runs is None else self.runs * by
        return _Axis(self.extent * by, self.chunk * by, self.box * by, inner.stride, self.scale * by, runs)


def _axes_of(layout: ColumnLayout, take: Take) -> tuple[list[_Axis], int]:
    """Return the axes of an array, the last one of bytes; and how many bytes a box has."""
    item, ndim = layout.stored_dtype.itemsize, len(layout.shape)
    extents, chunks = [*layout.shape, item], [*(layout.chunk_shape or layout.shape), item]
    taken = [*take.taken, *[None] * (ndim - len(take.taken)), take.of_value]
    box = [*take.box_shape(layout.shape), item if take.of_value is None else len(take.of_value)]
    strides, row_bytes = [1] * (ndim + 1), box[-1]
    for axis in range(ndim) if take.is_reversed else range(ndim - 1, -1, -1):
        strides[axis] = row_bytes
        row_bytes *= box[axis]
    if not take.shape:
        strides[take.axes[-1]] = row_bytes  # rows that follow each other are one box
    runs = [None if of_axis is None else of_axis.pieces for of_axis in taken]
    scales = [1] * (ndim + 1)
    return [*map(_Axis, extents, chunks, box, strides, scales, runs)], row_bytes


def _merged(axes: list[_Axis], cut: Sequence[int]) -> list[_Axis]:
    """Return as few axes as say the same: one that boxes and chunks have as a whole, and the one before it, are one.

    Channels 1 and 2 of an array (9, 3, 50) of f4 in chunks (4, 3, 50): the pixels are all there, and the channels not::

        extent     9   3   50    4         9   3 * 200 bytes
        box        1   2   50    4    ->   1   2 * 200
        stride   400 200    4    1       400   1
        runs           [1, 2]                  [200, 400]
    """
    merged = [*axes]
    while len(merged) > 1:
        *outer, before, last = merged
        is_whole = last.runs is None and len(outer) + 1 not in cut and last.chunk == last.extent
        if not is_whole or before.stride != last.extent * last.stride:
            break
        merged = [*outer, before.with_whole(last)]
    return merged


class BoxPlanner:
    """Plans rows that are boxes of an array; each chunk is fetched and decoded once.

    Of bytes that are stored as they are, only those of boxes are read, and what is in narrow gaps between them.

    Parameters
    ----------
    source : ChunkSource
        The array.
    take : Take
        Which boxes.

    Attributes
    ----------
    dtype : numpy.dtype
        What the values are, as they are stored.
    row_bytes : int
        Bytes of a box.

    The others describe the array and the boxes along as few axes as possible; the last axis is one of bytes.

    extents, chunk, box : numpy.ndarray
        int64: the shapes of the array, of a chunk, and of a box.
    chunk_strides, number_strides, strides : numpy.ndarray
        How far neighbours along each axis are apart: indices in a chunk, in bytes; chunks, in their numbers; indices of
        a box in the output, in bytes.
    origin : numpy.ndarray
        Where a box begins along axes that it does not cut.
    scales : numpy.ndarray
        How many indices one index of an axis of the dataset is here.
    runs : sequence of (numpy.ndarray or None)
        For each axis the first and the count of each run that is taken; None if they are one.
    takes_chunks : bool
        Whether the bytes of a chunk lie in the output as they do in the chunk.
    """

    def __init__(self, source: ChunkSource, take: Take) -> None:
        self.source, self.take = source, take
        self.dtype = source.layout.stored_dtype if take.dtype is None else take.dtype
        axes, self.row_bytes = _axes_of(source.layout, take)
        axes = _merged(axes, take.axes)
        self.extents, self.chunk, self.box, self.strides, self.scales = np.array(
            [[axis[at] for axis in axes] for at in range(5)], np.int64
        )
        self.chunk_strides = strides_of(self.chunk.tolist())
        self.number_strides = strides_of([-(-axis.extent // axis.chunk) if axis.chunk else 0 for axis in axes])
        runs = [axis.runs for axis in axes]
        self.origin = np.array([run[0, 0] if run is not None and len(run) else 0 for run in runs], np.int64)
        self.runs = [None if run is None or len(run) == 1 else run for run in runs]
        wide = self.chunk > 1
        self.takes_chunks = bool((self.strides[wide] == self.chunk_strides[wide]).all())

    def jobs(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the boxes ``request.rows``, as they are stored."""
        if lines := self._lines(request, out) or self._near_rows(request, out):
            return lines
        boxes = self._boxes(request, out)
        if len(boxes[0]) > MOST_BOXES and len(parts := list(self.parts(request, MOST_BOXES))) > 1:
            return in_parts(self.source.byte_source, [partial(self.jobs, part, out) for part in parts])
        cells = self._cells(*boxes)
        if self.source.is_chunked:
            return self._chunk_jobs(cells, out)
        if self.source.is_unwritten:
            self._fill(cells, out)
            return []
        table, arrays = self.source.table, None
        if len(table) > 1:
            arrays = table.rows.part_of(cells.sources // self.source.row_bytes)
        if arrays is not None and not (written := table.are_written(arrays)).all():
            self._fill(cells.select(~written), out)
            cells, arrays = cells.select(written), arrays[written]
        return self._raw_jobs(cells, *self.source.begins(arrays), out)

    # Rows -> boxes -> parts of chunks ---------------------------------------------------------

    def _boxes(self, request: Request, out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the boxes of rows: their corners and lengths, and where they begin in the output, in bytes.

        Rows that follow each other, and go to places that do, are one box.
        """
        take, layout = self.take, self.source.layout
        runs = request.listed() if take.shape else request.joined()
        if not take.shape:
            runs = runs.pieces(layout.shape[take.axes[-1]]) if len(take.axes) > 1 else self.source.table.cut(runs)[0]
        firsts, places = runs.firsts, runs.places
        corners, lengths = (np.repeat(bounds[None], len(firsts), axis=0) for bounds in (self.origin, self.box))
        for axis, at in zip(take.axes, np.unravel_index(firsts, take.extents(layout)), strict=True):
            corners[:, axis] = at * self.scales[axis]
        if not take.shape:
            lengths[:, take.axes[-1]] *= runs.lengths
        else:
            lengths = np.minimum(lengths, self.extents - corners)
        if take.shape and (outside := (lengths < self.box).any(axis=1)).any():
            out[places[outside]] = np.zeros((), out.dtype)  # now, and not in a job: these run side by side
        begins = places * self.row_bytes
        for axis, run in enumerate(self.runs):
            if run is not None:  # a box for each run of positions: these lie one after the other in the output
                corners, lengths, begins = (of.repeat(len(run), axis=0) for of in (corners, lengths, begins))
                times, ends = len(begins) // len(run), np.cumsum(run[:, 1])
                corners[:, axis], lengths[:, axis] = np.tile(run[:, 0], times), np.tile(run[:, 1], times)
                begins += np.tile((ends - run[:, 1]) * self.strides[axis], times)
        return corners, lengths, begins

    def _cells(self, corners: np.ndarray, lengths: np.ndarray, begins: np.ndarray) -> _Cells:
        """Return the parts of chunks that boxes touch; their chunks ascend."""
        if not self.source.is_chunked:
            return _Cells(np.zeros(len(begins), np.int64), lengths, corners @ self.chunk_strides, begins)
        first = corners // self.chunk
        touched = (corners + lengths - 1) // self.chunk - first + 1
        if (touched == 1).all():
            numbers, low = first @ self.number_strides, corners
        else:
            of, at = _indices_of(touched)
            first = first[of] + at
            numbers, corners = first @ self.number_strides, corners[of]
            low = np.maximum(corners, first * self.chunk)
            lengths = np.minimum(corners + lengths[of], (first + 1) * self.chunk) - low
            begins = begins[of] + (low - corners) @ self.strides
        cells = _Cells(numbers, lengths, (low - first * self.chunk) @ self.chunk_strides, begins)
        return cells if np.all(numbers[1:] >= numbers[:-1]) else cells.select(np.argsort(numbers, kind="stable"))

    def parts(self, request: Request, at_once: int) -> Iterator[Request]:
        """Yield parts of about `at_once` rows; the single indices of one chunk are in one part."""
        if request.is_range and self.take.axes == (0,) and not self.take.shape:
            yield from request.spans(self.source.layout.chunk_rows, self.row_bytes)
            return
        listed, chunk, numbers = request.listed(), self.source.layout.chunk_shape, None
        if chunk is not None and self.take.shape:
            at_once = max(1, len(listed))  # boxes of several chunks
        elif chunk is not None:
            lengths, sizes = self.take.extents(self.source.layout), [chunk[axis] for axis in self.take.axes]
            cells = [at // size for at, size in zip(np.unravel_index(listed.rows, lengths), sizes, strict=True)]
            counts = [-(-length // size) for length, size in zip(lengths, sizes, strict=True)]
            numbers = np.ravel_multi_index(cells, counts)
            if np.any(numbers[1:] < numbers[:-1]):
                listed = listed.select(order := np.argsort(numbers, kind="stable"))
                numbers = numbers[order]
        yield from cut_between_chunks(listed, at_once, numbers)

    # Parts of chunks -> jobs --------------------------------------------------------------------

    def _chunk_jobs(self, cells: _Cells, out: np.ndarray) -> list[Job]:
        starts, stops = runs_between(cells.numbers[1:] != cells.numbers[:-1])
        written, numbers, table = self.source.stored(cells.numbers[starts])
        counts = stops - starts
        if not written.all():
            unwritten = cells.select(units_of(starts[~written], counts[~written]))
            self._fill(unwritten.select(self._fill_rows(cells, unwritten, out)), out)
            starts, counts = starts[written], counts[written]
        jobs: list[Job] = []
        if (raw := table[Field.PIPELINE] == RAW).any():
            of_raw = cells.select(units_of(starts[raw], counts[raw]))
            files, bases = (table[field, raw].repeat(counts[raw]) for field in (Field.FILE, Field.OFFSET))
            jobs += self._raw_jobs(of_raw, files, bases, out)
            starts, counts, numbers, table = starts[~raw], counts[~raw], numbers[~raw], table.compress(~raw, axis=1)
        if len(numbers):
            # A chunk that lies in the output as it is stored is decoded into its place.
            whole = np.zeros(len(counts), bool)
            if self.takes_chunks:
                whole = (counts == 1) & (cells.lengths[starts] == self.chunk).all(axis=1)
            if counts.sum() < len(cells.numbers):
                cells = cells.select(units_of(starts, counts))
            jobs.append(self._table(table, numbers, counts, whole, cells, out))
        return jobs

    def _raw_jobs(self, cells: _Cells, files: np.ndarray | int, bases: np.ndarray | int, out: np.ndarray) -> list[Job]:
        """Return the work for parts of chunks, or of arrays, that are stored as they are in files from `bases` on."""
        if not len(cells.numbers):
            return []
        span = 0
        if self.source.table.file_of is not None:  # as one file, in which the bytes of each are far after the last ones
            ends = bases + cells.sources + (cells.lengths - 1) @ self.chunk_strides
            span = (int(ends.max() + _GAP_BYTES) // _MOST_BYTES + 1) * _MOST_BYTES
        return self._reads(cells, files * span + bases + np.zeros_like(cells.numbers), span, out)

    def _reads(self, cells: _Cells, bases: np.ndarray, span: int, out: np.ndarray) -> list[Job]:
        """Return the work for parts that are stored from `bases` on; of several files, each has `span` bytes there."""
        strides = self.chunk_strides
        inner, step = self._read_at_once(cells.lengths.max(axis=0).tolist())
        lengths, sources, begins = cells.lengths, bases + cells.sources, cells.begins
        if inner:
            steps = np.array([1] * (inner - 1) + [step], np.int64)
            parts = -(-lengths[:, :inner] // steps)
            ends = np.cumsum(parts.prod(axis=1))
            if (cuts := np.flatnonzero(np.diff(ends // MOST_BOXES)) + 1).size:
                some = [slice(*end) for end in itertools.pairwise([0, *cuts.tolist(), len(ends)])]
                plan = [partial(self._reads, cells.select(part), bases[part], span, out) for part in some]
                return in_parts(self.source.byte_source, plan)
            of, at = _indices_of(parts)
            at *= steps
            sources, begins = sources[of] + at @ strides[:inner], begins[of] + at @ self.strides[:inner]
            lengths, bases = lengths[of], bases[of]
            lengths[:, :inner] = np.minimum(lengths[:, :inner] - at, steps)
        read = _Cells(bases, lengths, sources, begins)
        if np.any(sources[1:] < sources[:-1]):
            read = read.select(np.argsort(sources, kind="stable"))
        ends = read.sources + (read.lengths - 1) @ strides + 1
        apart = read.sources[1:] - np.maximum.accumulate(ends)[:-1] > _GAP_BYTES
        apart |= read.numbers[1:] != read.numbers[:-1]
        apart |= read.sources[1:] // _MOST_BYTES != read.sources[:-1] // _MOST_BYTES
        starts, stops = runs_between(apart)
        table = np.zeros((len(Field), len(starts)), np.int64)
        firsts, counts = read.sources[starts], stops - starts
        table[Field.PIPELINE], table[Field.OFFSET] = RAW, firsts
        table[Field.SIZE] = table[Field.DECODED] = np.maximum.reduceat(ends, starts) - firsts
        if span:
            table[Field.FILE], table[Field.OFFSET] = np.divmod(firsts, span)
        plain = counts == 1
        plain[plain] = self._is_plain(read.lengths[starts[plain]])
        read = read._replace(sources=read.sources - np.repeat(firsts, counts))
        return [self._table(table, np.full(len(counts), -1), counts, plain, read, out)]

    def _read_at_once(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Return how many outer axes of parts of these lengths are not read as a whole, and how much of the last."""
        span, strides = 1, self.chunk_strides.tolist()
        for axis in range(len(lengths) - 1, -1, -1):
            if lengths[axis] > 1 and strides[axis] - span > _GAP_BYTES:
                return axis + 1, 1
            if (wide := span + (lengths[axis] - 1) * strides[axis]) > _MOST_BYTES and lengths[axis] > 1:
                return axis + 1, max(1, (_MOST_BYTES - span) // strides[axis] + 1)
            span = wide
        return 0, 1

    def _is_plain(self, lengths: np.ndarray) -> np.ndarray:
        """Return for parts of chunks whether they are one run of bytes, and one in the output."""
        by, to = self.chunk_strides, self.strides
        run, is_dense = lengths[:, -1], np.ones(len(lengths), bool)
        for axis in range(lengths.shape[1] - 2, -1, -1):
            is_dense &= (lengths[:, axis] == 1) | ((by[axis] == run) & (to[axis] == run))
            run = run * lengths[:, axis]
        return is_dense

    def _table(
        self,
        table: np.ndarray,
        numbers: np.ndarray,
        counts: np.ndarray,
        whole: np.ndarray,
        cells: _Cells,
        out: np.ndarray,
    ) -> JobTable:
        """Return jobs with the cells that are copied from each: `counts` of them, or none if the job itself has one."""
        begins = cells.begins + out.ctypes.data
        ends = np.cumsum(counts)
        np.multiply(begins[ends - counts], whole, out=table[Field.DESTINATION])
        counts = counts - whole
        if whole.any():
            copied = np.repeat(~whole, counts + whole)
            cells, begins = cells.select(copied), begins[copied]
            ends = np.cumsum(counts)
        table[Field.BEGIN], table[Field.END] = ends - counts, ends
        if not len(begins):
            return self.source.job_table(table, NO_PIECES, out, numbers)
        pieces = np.zeros((len(Piece), len(begins)), np.int64)
        pieces[Piece.SOURCE], pieces[Piece.DESTINATION] = cells.sources, begins
        boxes, pieces[Piece.BOX] = _boxes_of(cells.lengths, self.chunk_strides, self.strides)
        return self.source.job_table(table, pieces, out, numbers, boxes)

    def _fill_rows(self, cells: _Cells, unwritten: _Cells, out: np.ndarray) -> np.ndarray:
        """Fill each row that has several unwritten parts as a whole; jobs write its other parts later.

        Returns which of the unwritten parts are left: those of rows with one such part, of rows that are zero past the
        end of an axis, and parts that lie in several rows.
        """
        if not len(unwritten.begins) or self.take.of_value is not None:
            return np.ones(len(unwritten.begins), bool)
        rows, of = np.unique(cells.begins // self.row_bytes, return_inverse=True)
        of_unwritten = np.searchsorted(rows, unwritten.begins // self.row_bytes)
        is_filled = np.bincount(of, cells.lengths.prod(axis=1)) == self.row_bytes
        is_filled &= np.bincount(of_unwritten, minlength=len(rows)) > 1
        out[rows[is_filled]] = self.source.layout.fill_value
        return ~is_filled[of_unwritten]

    def _fill(self, cells: _Cells, out: np.ndarray) -> None:
        """Fill parts of chunks that were never written. Now, and not in a job."""
        value, values = self.source.layout.fill_value, out.reshape(-1).view(np.uint8)
        stored = np.frombuffer(value.tobytes(), np.uint8)
        sources, lengths, begins = (part.tolist() for part in (cells.sources, cells.lengths, cells.begins))
        for source, shape, begin in zip(sources, lengths, begins, strict=True):
            line = stored[(source + np.arange(shape[-1])) % len(stored)]
            as_strided(values[begin:], shape, self.strides.tolist())[...] = line

    # Values that are put into their places afterwards -----------------------------------------

    def _lines(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work for rows along the last axis that are close, and stored as they are; nothing for others.

        Lines of values are read with what is between the rows, which numpy picks: a piece for each value would take
        several times as long.
        """
        layout, source, take = self.source.layout, self.source, self.take
        *lead, length = layout.shape
        last = replace(take, is_reversed=False) == Take(take.array, (len(lead),))
        if source.offset == UNALLOCATED or not (last and lead and request.counts is None):  # chunks, or several arrays
            return []
        item = layout.stored_dtype.itemsize
        firsts, counts, picked = _near_runs(request.rows, _NEAR_BYTES // item)
        if 2 * len(firsts) > len(request):
            return []
        if len(firsts) > _MOST_PIECES:
            firsts, counts, picked = _near_runs(request.rows, _GAP_BYTES // item)
        begins, width = np.cumsum(counts) - counts, int(counts.sum())
        view = out.reshape(len(out), *lead[::-1]).T if take.is_reversed else np.moveaxis(out, 0, -1)
        values_of_lines = replace(source, layout=layout.with_shape((math.prod(layout.shape),)))

        def reads(part: Request, values: np.ndarray) -> list[Job]:
            lines = units_of(part.firsts, part.lengths)[:, None]
            places = np.arange(len(lines))[:, None] * width + begins
            near = Request((lines * length + firsts).ravel(), places.ravel(), np.tile(counts, len(lines)))
            return row_jobs(values_of_lines, near, values.reshape(-1))

        def put(part: Request, values: np.ndarray) -> None:
            lines = np.unravel_index(units_of(part.places, part.lengths), lead)
            view[(*(numbers[:, None] for numbers in lines), request.places)] = values[:, picked]

        parts = Request.range(0, 0, math.prod(lead)).spans(1, width * item)
        return staged(source.byte_source, reads, parts, np.empty((0, width), layout.stored_dtype), put)

    def _near_rows(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work for most rows of chunks that hold little of a row; nothing for others.

        Chunks of all rows and one column, say, of which rows are drawn: a piece for each value of each row would take
        longer than to decode them, and more memory than the values. So rows are read in the order of the file, with
        the few between them, and put into their places afterwards.
        """
        if not self.is_narrow or request.counts is not None or len(request) < MOST_BOXES // _MOST_PIECES:
            return []
        firsts, counts, picked = _near_runs(request.rows, _MOST_PIECES)
        few, num_rows = max(2, 32 // self._row_in_chunk) * len(request), 1 + np.count_nonzero(np.diff(picked))
        # A piece is planned in about 64 bytes: less than what is read between the rows.
        if int(counts.sum()) > few or num_rows < _MOST_PIECES * len(firsts):
            return []
        near = Request(firsts, np.cumsum(counts) - counts, counts)

        def put(_: Request, values: np.ndarray) -> None:
            out[request.places] = values[picked]

        return staged(self.source.byte_source, self.jobs, [near], np.empty((0, *out.shape[1:]), out.dtype), put)

    @property
    def _row_in_chunk(self) -> int:
        """Bytes of a row that a chunk holds."""
        layout = self.source.layout
        return math.prod((layout.chunk_shape or layout.shape)[1:]) * layout.stored_dtype.itemsize

    @cached_property
    def is_narrow(self) -> bool:
        """Whether rows are whole, and chunks hold little of each."""
        take, most = self.take, min(_NARROW_BYTES, self.row_bytes // 2)
        is_plain = take.axes == (0,) and not (take.shape or take.is_reversed)
        return is_plain and self.source.is_chunked and self._row_in_chunk <= most

    @cached_property
    def wide(self) -> tuple[BoxPlanner, Sequence[int], Callable[[np.ndarray], np.ndarray]] | None:
        """Of rows with many parts: longer runs with what is between, their shape, and what picks the parts.

        None for few parts. The shape has the axes of the array.
        """
        take, layout = self.take, self.source.layout
        many = math.prod(at.num_pieces for at in take.taken if at is not None)
        if many <= _MOST_PIECES or take.is_reversed:
            return None
        steps = strides_of([*layout.shape, layout.stored_dtype.itemsize]).tolist()
        wide, kept = list[Along | None](), list[Along | None]()
        for axis, at in enumerate(take.taken):
            gap = max(1, _GAP_BYTES // steps[axis]) if layout.chunk_shape is None else layout.chunk_shape[axis]
            near, places = (None, None) if at is None else _near(at, gap)
            wide.append(near)
            if take.shape or axis not in take.axes:  # rows have the axis
                kept.append(places)
        if tuple(wide) == take.taken:
            return None
        planner = BoxPlanner(self.source, replace(take, taken=tuple(wide)))
        shape = list(planner.take.box_shape(layout.shape))
        if not take.shape:
            shape = [length for axis, length in enumerate(shape) if axis not in take.axes]
        last = planner.row_bytes // (math.prod(shape) * planner.dtype.itemsize)
        return planner, (*shape, last), partial(picked, taken=tuple(kept))


def _near_runs(indices: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return runs that have these indices and those in gaps between them: firsts, lengths, and where each index is."""
    kept, of = np.unique(indices, return_inverse=True)
    starts, stops = runs_between(np.diff(kept) > gap)
    firsts, counts = kept[starts], kept[stops - 1] + 1 - kept[starts]
    places = kept + np.repeat(np.cumsum(counts) - counts - firsts, stops - starts)
    return firsts, counts, places[of.reshape(-1)]


def _near(at: Along, gap: int) -> tuple[Along, Along | None]:
    """Return longer runs that have these indices and those in gaps between them; and where these are; None for all."""
    low, counts, found = _near_runs(at.indices, gap)
    places = Along.of(found)
    return Along.of_runs(np.stack([low, counts], axis=1)), None if places.is_all_of(int(counts.sum())) else places


def _indices_of(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all indices of arrays of some shapes, in C order: the array that each is of, and the indices."""
    if (shapes == shapes[0]).all():  # mostly, and this takes less time
        inside = np.indices(shapes[0]).reshape(shapes.shape[1], -1).T
        return np.repeat(np.arange(len(shapes)), len(inside)), np.tile(inside, (len(shapes), 1))
    counts = shapes.prod(axis=1)
    of = np.repeat(np.arange(len(counts)), counts)
    numbers, shapes = units_of(np.zeros_like(counts), counts), shapes[of]
    indices = np.empty_like(shapes)
    for axis in range(shapes.shape[1] - 1, -1, -1):
        numbers, indices[:, axis] = np.divmod(numbers, shapes[:, axis])
    return of, indices


def strides_of(shape: Sequence[int]) -> np.ndarray:
    """Return how far indices along each axis of a C-contiguous array are apart."""
    return np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)


def _boxes_of(lengths: np.ndarray, sources: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the boxes of `JobTable` for pieces of these shapes, and the box of each piece.

    `sources` and `places` are how far indices are apart in the source and the destination; along the last axis by 1.
    """
    if (lengths == lengths[0]).all():
        shapes, of = lengths[:1], np.zeros(len(lengths), np.int64)
    else:  # as numbers: rows of a table take ten times as long to compare
        numbers = lengths @ strides_of((lengths.max(axis=0) + 1).tolist())
        _, first, of = np.unique(numbers, return_index=True, return_inverse=True)
        shapes = lengths[first]
    boxes = np.zeros((len(shapes), BOX_FIELDS), np.int64)
    by, to = sources.tolist(), places.tolist()
    for number, shape in enumerate(shapes.tolist()):
        # Axes that are one run in both places are copied as one.
        run, axis = shape[-1], len(shape) - 1
        while axis and (shape[axis - 1] == 1 or run == by[axis - 1] == to[axis - 1]):
            axis -= 1
            run *= shape[axis]
        kept = [inner_axis for inner_axis in range(axis) if shape[inner_axis] > 1]
        axes = [value for inner_axis in kept for value in (shape[inner_axis], by[inner_axis], to[inner_axis])]
        row = [len(kept), run, *axes]
        boxes[number, : len(row)] = row
    return boxes, of.reshape(-1)
