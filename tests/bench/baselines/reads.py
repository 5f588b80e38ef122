"""Plain h5py, and plain reads of the stored bytes, whose places are known."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from ray_h5.read.native.job_table import IN_PYTHON, PIPELINES, pipeline_number
from ray_h5.read.native.library import compiled_loop

Arrays = dict[str, np.ndarray[Any, Any]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


def verify_arrays(path: str, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    """Compare bytes, not values: a NaN equals itself and -0.0 is not 0.0."""
    for name, expected in theirs.items():
        array = ours[name]
        if (array.shape, array.dtype, array.tobytes()) != (expected.shape, expected.dtype, expected.tobytes()):
            raise RuntimeError(f"{path}: the values of {name!r} differ from those that h5py reads")


def drawn(read: Callable[[Any], object], draws: Sequence[Any]) -> Callable[[], object]:
    """Return a contestant that reads the next one of some draws, again and again, as the others do."""
    left = itertools.cycle(draws)
    return lambda: read(next(left))


def h5py_bulk(file: h5py.File, out: Arrays) -> None:
    """Read whole columns with ``read_direct`` into the arrays of `out`."""
    for name, array in out.items():
        file[name].read_direct(array)


def h5py_fancy(file: h5py.File, columns: Sequence[str], rows: Rows) -> Arrays:
    """Read distinct rows with ``d[sorted rows]``, as h5py needs them sorted, and put them in order."""
    if np.all(rows[1:] > rows[:-1]):
        return {name: file[name][rows] for name in columns}
    order = np.argsort(rows)
    inverse = np.argsort(order)
    return {name: file[name][rows[order]][inverse] for name in columns}


def slice_windows(file: Any, windows: Sequence[tuple[str, int, int]], offsets: Mapping[str, range]) -> Arrays:
    """Slice windows of episodes (group, step, length), and repeat steps at the ends, as robomimic does."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in offsets}
    for group, step, length in windows:
        for name, around in offsets.items():
            first, stop = step + around.start, step + around.stop
            values = file[f"{group}/{name}"][max(0, first) : min(stop, length)]
            before, after = max(0, -first), max(0, stop - length)
            if before or after:
                values = np.pad(values, ((before, after), *((0, 0),) * (values.ndim - 1)), mode="edge")
            columns[name].append(values)
    return {name: np.stack(values) for name, values in columns.items()}


class Extent(NamedTuple):
    """A byte range: offset and size, and the filter mask of the chunk."""

    offset: int
    size: int
    mask: int = 0


def extents_of(dataset: h5py.Dataset) -> list[Extent]:
    """Return the chunks of a dataset in the order of their rows, or its contiguous region."""
    if dataset.chunks is None:
        return [Extent(dataset.id.get_offset(), dataset.id.get_storage_size())]
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    chunks.sort(key=lambda chunk: chunk.chunk_offset)
    return [Extent(chunk.byte_offset, chunk.size, chunk.filter_mask) for chunk in chunks]


def read_into(descriptor: int, view: memoryview, offset: int) -> None:
    """Fill `view` with the bytes from `offset` on."""
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise EOFError(f"file ends at byte {offset}, {len(view)} bytes short")
        view = view[count:]
        offset += count


def pread(path: str, extents: Sequence[Extent]) -> np.ndarray:
    """Read extents one after another into a new buffer, each by one system call; decode nothing."""
    buffer = np.empty(sum(extent.size for extent in extents), np.uint8)
    view, position = buffer.data, 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for offset, size, _ in extents:
            read_into(descriptor, view[position : position + size], offset)
            position += size
    finally:
        os.close(descriptor)
    return buffer


class Decoder:
    """The bare decoder of a column: the compiled loop's, for one chunk after the other; none if nothing is decoded."""

    def __init__(self, layout: Any) -> None:
        self.nbytes = math.prod(layout.chunk_shape or layout.shape) * layout.stored_dtype.itemsize
        self._pipeline = IN_PYTHON
        if layout.chunk_shape is not None and layout.pipeline.steps:
            self._pipeline = pipeline_number(layout.pipeline)
        self.stored, self.out = (np.empty(self.nbytes * 2, np.uint8) for _ in range(2))

    def decode(self, size: int, mask: int) -> None:
        """Decode what `stored` has, into a buffer."""
        loop = compiled_loop()
        if self._pipeline != IN_PYTHON and loop is not None:
            arrays = PIPELINES.value.rows[self._pipeline], self.stored, self.out
            row, stored, out = (each.ctypes.data for each in arrays)
            assert loop.library.ray_h5_decode(loop.of_thread.value.address, row, mask, stored, size, out, self.nbytes)


def pread_decode(path: str, extents: Mapping[str, Sequence[Extent]], decoders: Mapping[str, Decoder]) -> None:
    """Read the extents of each column, each by one system call, and decode each into the same buffer."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for name, stored in extents.items():
            decoder = decoders[name]
            for offset, size, mask in stored:
                read_into(descriptor, decoder.stored[:size].data, offset)
                decoder.decode(size, mask)
    finally:
        os.close(descriptor)


class StoredChunks:
    """The stored chunks of columns that have one row a chunk; where they are is known."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        self._files = [os.open(path, os.O_RDONLY) for path in paths]  # until the bench ends
        self._rows: list[list[tuple[int, int, int]]] = []
        for descriptor, path in zip(self._files, paths, strict=True):
            with h5py.File(path, "r") as file:
                by_row = zip(*(extents_of(file[name]) for name in columns), strict=True)
                self._rows += [[(descriptor, each.offset, each.size) for each in row] for row in by_row]
        self._random = np.random.default_rng(0)

    def preads(self, ahead: int) -> None:
        """Read each chunk into one buffer, rows shuffled; hint each `ahead` reads before, if that is not 0."""
        reads = [read for row in self._random.permutation(len(self._rows)) for read in self._rows[row]]
        buffer = np.empty(max(size for _, _, size in reads), np.uint8)
        for hint in reads[:ahead]:
            os.posix_fadvise(*hint, os.POSIX_FADV_WILLNEED)
        for i, (file, offset, size) in enumerate(reads):
            if ahead and i + ahead < len(reads):
                os.posix_fadvise(*reads[i + ahead], os.POSIX_FADV_WILLNEED)
            os.preadv(file, [buffer[:size].data], offset)
