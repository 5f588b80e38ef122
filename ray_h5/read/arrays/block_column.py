"""Blocks of arrays with several axes: each chunk that blocks touch is fetched and decoded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRequest, RowRuns, RunRequest, units_of
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.taken_column import Runs, by_byte, bytes_of_fill
from ray_h5.read.jobs import Job, Staged, TableJob, Unplanned
from ray_h5.read.kernel.job_table import BOX_FIELDS, NO_BOXES, NO_PIECES, RAW, Field, JobTable, Piece
from ray_h5.read.through_h5py.h5py_column import Library
from ray_h5.storage.byte_source import ByteSource

_MOST_JOBS = 1 << 16
"""Byte ranges of contiguous arrays that are planned together."""

_GAP_BYTES = 4 << 10
"""Bytes between two lines of a block that are read with them."""


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """A column whose rows are blocks of an array.

    A row is the corner of its block, as a number: its place along `axes`, in C order. What a block has past the end of
    an axis is zero.

    Attributes
    ----------
    name : str
        The dataset.
    axes : tuple of int
        The axes that blocks cut; they have the others as a whole, or parts of them.
    shape : tuple of int
        The shape of a block along `axes`.
    taken : tuple of (Runs or None)
        The positions along each axis, of those that blocks do not cut; None for all.
    of_value : Runs
        The bytes of each value, of fields of compound values; empty for whole values.
    dtype : numpy.dtype, optional
        What these bytes are, as they are stored.
    """

    name: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    taken: tuple[Runs | None, ...] = ()
    of_value: Runs = ()
    dtype: np.dtype | None = None

    def by_byte(self, axes: int) -> BlockAddress:
        """Return the blocks of the same array of `axes` axes with the bytes of a value as one more axis."""
        return replace(self, taken=(*self.taken, *[None] * (axes - len(self.taken)), self.of_value))

    def extents(self, layout: ColumnLayout) -> tuple[int, ...]:
        """Return the lengths of the axes that blocks cut."""
        return tuple(layout.shape[axis] for axis in self.axes)

    def block_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a block of an array of some shape."""
        found = list(shape)
        for axis, length in zip(self.axes, self.shape, strict=True):
            found[axis] = length
        for axis, runs in enumerate(self.taken):
            if runs is not None:
                found[axis] = sum(count for _, count in runs)
        return tuple(found)

    def corners(self, rows: np.ndarray, layout: ColumnLayout) -> np.ndarray:
        """Return the corners of blocks along all axes of the array: int64 of shape (blocks, axes)."""
        found = np.zeros((len(rows), len(layout.shape)), np.int64)
        found[:, list(self.axes)] = np.stack(np.unravel_index(rows, self.extents(layout)), axis=1)
        return found

    def boxes(self, corners: np.ndarray, lengths: np.ndarray, places: np.ndarray) -> _Boxes:
        """Return the boxes of the array that blocks with these corners consist of: one each, if all is taken."""
        found = _Boxes(corners, lengths, np.zeros_like(corners), places)
        for axis, runs in enumerate(self.taken):
            if runs is not None:
                found = found.cut(axis, *np.array(runs, np.int64).reshape(-1, 2).T)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """Boxes of an array: their corners and lengths, where they begin in their blocks, and the places of these."""

    corners: np.ndarray
    lengths: np.ndarray
    begins: np.ndarray
    places: np.ndarray

    def cut(self, axis: int, firsts: np.ndarray, counts: np.ndarray) -> _Boxes:
        """Return the boxes of some runs of positions along an axis, which lie one after the other in a block."""
        parts = (self.corners, self.lengths, self.begins, self.places)
        found = _Boxes(*(np.repeat(each, len(firsts), axis=0) for each in parts))
        ends = np.cumsum(counts)
        for values, of_runs in ((found.corners, firsts), (found.lengths, counts), (found.begins, ends - counts)):
            values[:, axis] = np.tile(of_runs, len(self.places))
        return found

    def select(self, part: slice) -> _Boxes:
        return _Boxes(self.corners[part], self.lengths[part], self.begins[part], self.places[part])


class _Cells(NamedTuple):
    """Parts of chunks.

    Attributes
    ----------
    numbers : numpy.ndarray
        int64, ascending: the chunk of each.
    extents : numpy.ndarray
        Their shapes.
    sources : numpy.ndarray
        Where they begin in their chunks, in bytes.
    places : numpy.ndarray
        The blocks that they belong to, by their places in the output.
    inside, begins : numpy.ndarray
        Where they begin in these blocks, and in the output in bytes.
    """

    numbers: np.ndarray
    extents: np.ndarray
    sources: np.ndarray
    places: np.ndarray
    inside: np.ndarray
    begins: np.ndarray


class BlockColumn(DirectColumn):
    """Reads blocks without libhdf5.

    Parameters
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        The array; its `direct` is true.
    byte_source : ByteSource
        The bytes of the file.
    index : ChunkIndex, optional
        Its chunks; None for contiguous data.
    address : BlockAddress
        Which blocks.
    """

    def __init__(
        self,
        path: str,
        layout: ColumnLayout,
        byte_source: ByteSource,
        index: ChunkIndex | None,
        address: BlockAddress,
    ) -> None:
        self._dtype, self._fill_value = layout.stored_dtype, layout.fill
        if address.dtype is not None:
            self._dtype, self._fill_value = address.dtype, bytes_of_fill(layout, address.of_value)
            layout, address = by_byte(layout), address.by_byte(len(layout.shape))
        super().__init__(path, layout, byte_source, index)
        self._address = address
        self._item = layout.stored_dtype.itemsize
        self._shape = np.array(layout.shape, np.int64)
        self._block = np.array(address.block_shape(layout.shape), np.int64)
        self._block_bytes = int(self._block.prod()) * self._item

    def jobs(self, request: Request | RunRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the blocks ``request.rows``."""
        wanted = request.listed()
        if not len(wanted) or not out.size:
            return []
        if not self.lands_in_place(out):
            here = RowRequest(wanted.rows, np.arange(len(wanted), dtype=np.int64))
            *lengths, last = self._block.tolist()
            shape = (len(wanted), *lengths, last * self._item // self._dtype.itemsize)
            put = partial(_put, out, wanted.places)
            return [Staged(self.byte_source, partial(self.jobs, here, library=library), shape, self._dtype, put)]
        corners = self._address.corners(wanted.rows, self.layout)
        lengths = np.minimum(self._block, self._shape - corners)
        outside = (lengths < self._block).any(axis=1)
        # Now, and not in a job: these run side by side.
        out[wanted.places[outside]] = np.zeros((), out.dtype)
        boxes = self._address.boxes(corners, lengths, wanted.places)
        if self.index is None and self.layout.offset is None:
            self._fill(boxes.begins, boxes.lengths, boxes.places, out)
            return []
        return self._of_contiguous(boxes, out) if self.index is None else self._of_chunks(boxes, out)

    def lands_in_place(self, out: np.ndarray) -> bool:
        return out.dtype == self._dtype and bool(out.flags.c_contiguous)

    # Chunks -------------------------------------------------------------------------------------

    def _of_chunks(self, boxes: _Boxes, out: np.ndarray) -> list[Job]:
        assert self.index is not None
        cells = self._touched(boxes)
        runs = RowRuns.split(cells.numbers[1:] != cells.numbers[:-1])
        numbers = cells.numbers[runs.start]
        offsets, sizes, masks = self.index.locate(numbers)
        missing = offsets == UNALLOCATED
        if missing.any():
            at = units_of(runs.start[missing], (runs.stop - runs.start)[missing])
            self._fill(cells.inside[at], cells.extents[at], cells.places[at], out)
        keep = np.flatnonzero(~missing)
        if not len(keep):
            return []
        numbers, offsets, sizes, masks = numbers[keep], offsets[keep], sizes[keep], masks[keep]
        raw = self._decoder.stores_raw(masks)
        self._check_raw(numbers, offsets, sizes, raw)
        jobs = self._decoded(numbers, offsets, sizes, masks, raw)
        chunk = self._chunk
        # A chunk that is all of a block is decoded into its place.
        start, several = runs.start[keep], runs.stop[keep] - runs.start[keep]
        whole = (several == 1) & (cells.extents[start] == chunk).all(axis=1) & bool((chunk == self._block).all())
        np.multiply(cells.begins[start] + out.ctypes.data, whole, out=jobs[Field.DESTINATION])
        several = several - whole
        ends = np.cumsum(several)
        jobs[Field.BEGIN], jobs[Field.END] = ends - several, ends
        pieces, copied = NO_PIECES, NO_BOXES
        if ends[-1]:
            at = units_of(start, several)
            pieces = np.empty((len(Piece), len(at)), np.int64)
            pieces[Piece.SOURCE] = cells.sources[at]
            pieces[Piece.DESTINATION] = cells.begins[at] + out.ctypes.data
            copied, pieces[Piece.BOX] = self._copied(cells.extents[at], _strides(chunk, self._item))
            pieces[Piece.SIZE] = 0
        return [TableJob(self._table(jobs, pieces, out, numbers, copied))]

    @cached_property
    def _chunk(self) -> np.ndarray:
        return np.array(self._padded(self.grid.chunk_shape), np.int64)

    def _touched(self, boxes: _Boxes) -> _Cells:
        """Return the parts of chunks that boxes touch; their chunks ascend."""
        corners, lengths, chunk = boxes.corners, boxes.lengths, self._chunk
        counts_of = np.array(self._padded(self.grid.counts), np.int64)
        first, last = corners // chunk, (corners + lengths - 1) // chunk
        touched = last - first + 1
        counts = touched.prod(axis=1)
        of = np.repeat(np.arange(len(corners)), counts)
        cells = first[of] + _unraveled(units_of(np.zeros(len(counts), np.int64), counts), touched[of])
        numbers = (cells * _strides(counts_of, 1)).sum(axis=1)
        order = np.argsort(numbers, kind="stable")
        of, cells, numbers = of[order], cells[order], numbers[order]
        low = np.maximum(corners[of], cells * chunk)
        extents = np.minimum(corners[of] + lengths[of], (cells + 1) * chunk) - low
        sources = ((low - cells * chunk) * _strides(chunk, self._item)).sum(axis=1)
        inside, places = low - corners[of] + boxes.begins[of], boxes.places[of]
        begins = (inside * _strides(self._block, self._item)).sum(axis=1) + places * self._block_bytes
        return _Cells(numbers, extents, sources, places, inside, begins)

    def _padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape of the grid with the axes of an array type, which chunks do not cut."""
        extra = self.layout.shape[len(shape) :]
        return (*shape, *(extra if shape == self.grid.chunk_shape else (1,) * len(extra)))

    def _copied(self, extents: np.ndarray, source_strides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the boxes of `JobTable` for pieces with these extents, and the box of each piece."""
        # As numbers: rows of a table take ten times as long to compare.
        most = extents.max(axis=0) + 1
        numbers, of = np.unique((extents * _strides(most, 1)).sum(axis=1), return_inverse=True)
        found = np.stack(np.unravel_index(numbers, tuple(most)), axis=1)
        strides = _strides(self._block, self._item)
        boxes = np.zeros((len(found), BOX_FIELDS), np.int64)
        for number, extent in enumerate(found.tolist()):
            # Axes that are one run in both places are copied as one.
            run, axes = extent[-1] * self._item, len(extent) - 1
            while axes and run == source_strides[axes - 1] == strides[axes - 1]:
                axes -= 1
                run *= extent[axes]
            kept = [axis for axis in range(axes) if extent[axis] > 1]
            row = [
                len(kept),
                run,
                *(value for axis in kept for value in (extent[axis], source_strides[axis], strides[axis])),
            ]
            boxes[number, : len(row)] = row
        return boxes, of.reshape(-1)

    def _fill(self, begins: np.ndarray, extents: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """Fill the parts of blocks whose chunks were never written. Now, and not in a job."""
        fill = self._fill_value
        assert fill is not None
        values = out.reshape(len(out), -1).view(self.layout.stored_dtype).reshape(len(out), *self._block)
        for place, begin, extent in zip(places.tolist(), begins.tolist(), extents.tolist(), strict=True):
            at = slices(begin, extent)
            values[(place, *at)] = fill if self._address.dtype is None else fill[at[-1]]

    # Contiguous arrays --------------------------------------------------------------------------

    def _of_contiguous(self, boxes: _Boxes, out: np.ndarray) -> list[Job]:
        """Return the work that reads lines of boxes, or planes whose lines are close to each other."""
        assert self.layout.offset is not None
        axes, count = len(self._shape), len(boxes.places)
        file_strides, block_strides = _strides(self._shape, self._item), _strides(self._block, self._item)
        line = 1 if self._address.dtype is None else 2  # the bytes of a value are an axis
        gap = (self._shape[-line] - self._block[-line]) * file_strides[-line]
        inner = line + (axes > line and gap <= _GAP_BYTES)
        per_box = int(self._block[: axes - inner].prod())
        if count > 1 and per_box * count > _MOST_JOBS:
            step = max(1, _MOST_JOBS // per_box)
            parts = [boxes.select(slice(at, at + step)) for at in range(0, count, step)]
            return [Unplanned(self.byte_source, partial(self._of_contiguous, each, out)) for each in parts]
        counts = boxes.lengths[:, : axes - inner].prod(axis=1)
        of = np.repeat(np.arange(count), counts)
        lengths = boxes.lengths[of]
        cells = _unraveled(units_of(np.zeros(len(counts), np.int64), counts), lengths[:, : axes - inner])
        outer = ((boxes.corners[of, : axes - inner] + cells) * file_strides[: axes - inner]).sum(axis=1)
        offsets = (boxes.corners * file_strides)[of, axes - inner :].sum(axis=1) + outer + self.layout.offset
        places = boxes.places[of]
        begins = places * self._block_bytes + (boxes.begins * block_strides).sum(axis=1)[of]
        begins += (cells * block_strides[: axes - inner]).sum(axis=1) + out.ctypes.data
        inside = lengths[:, axes - inner :]
        sizes = ((inside - 1) * file_strides[axes - inner :]).sum(axis=1) + self._item
        # Boxes of one block that are close in one line or plane are read together.
        order = np.lexsort((offsets, outer, places)) if self._address.taken else np.argsort(offsets)
        offsets, sizes, begins, outer, places = (each[order] for each in (offsets, sizes, begins, outer, places))
        ends = offsets + sizes
        apart = (offsets[1:] - ends[:-1] > _GAP_BYTES) | (outer[1:] != outer[:-1]) | (places[1:] != places[:-1])
        extents = np.ones((len(offsets), axes), np.int64)
        extents[:, axes - inner :] = inside[order]
        return [TableJob(self._copies_of(RowRuns.split(apart), offsets, ends, begins, extents, out))]

    def _copies_of(
        self,
        split: RowRuns,
        offsets: np.ndarray,
        ends: np.ndarray,
        begins: np.ndarray,
        extents: np.ndarray,
        out: np.ndarray,
    ) -> JobTable:
        """Return the table that reads runs of byte ranges, each run at once, and copies boxes out of them."""
        jobs = np.zeros((len(Field), len(split.start)), np.int64)
        jobs[Field.FILE], jobs[Field.PIPELINE] = self.file, RAW
        jobs[Field.OFFSET] = offsets[split.start]
        jobs[Field.SIZE] = np.maximum.reduceat(ends, split.start) - jobs[Field.OFFSET]
        jobs[Field.DECODED] = jobs[Field.SIZE]
        numbers = np.full(len(split.start), -1)
        if len(offsets) == len(split.start) and (extents[:, :-1] == 1).all():
            jobs[Field.DESTINATION] = begins
            return self._table(jobs, NO_PIECES, out, numbers, NO_BOXES)
        jobs[Field.BEGIN], jobs[Field.END] = split.start, split.stop
        pieces = np.zeros((len(Piece), len(offsets)), np.int64)
        pieces[Piece.SOURCE] = offsets - np.repeat(jobs[Field.OFFSET], split.stop - split.start)
        pieces[Piece.DESTINATION] = begins
        copied, pieces[Piece.BOX] = self._copied(extents, _strides(self._shape, self._item))
        return self._table(jobs, pieces, out, numbers, copied)


def block_layout(layout: ColumnLayout, address: BlockAddress) -> ColumnLayout:
    """Return the layout of the blocks of an array: the first axis is the corners."""
    shape = (math.prod(address.extents(layout)), *address.block_shape(layout.shape))
    return replace(layout, shape=shape, chunk_shape=None, fill=None, offset=None)


def _unraveled(numbers: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """Return the place of each number in a shape of its own, in C order."""
    found = np.empty_like(shapes)
    for axis in range(shapes.shape[1] - 1, -1, -1):
        numbers, found[:, axis] = np.divmod(numbers, shapes[:, axis])
    return found


def _strides(shape: np.ndarray, item: int) -> np.ndarray:
    """Return the strides of a C-contiguous array, in bytes."""
    found = [item]
    for length in shape[:0:-1].tolist():
        found.append(found[-1] * length)
    return np.array(found[::-1], np.int64)


def slices(corner: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    """Return the selection of a block."""
    return tuple(slice(low, low + length) for low, length in zip(corner, lengths, strict=True))


def _put(out: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    out[places] = values.reshape(len(places), *out.shape[1:])
