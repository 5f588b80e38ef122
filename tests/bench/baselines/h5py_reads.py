"""Plain h5py, and plain reads of the stored bytes, as a competent user writes them."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder, decodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ray_h5.read.reader import RowReader

__all__ = [
    "Arrays",
    "Decoder",
    "Extent",
    "Rows",
    "chunk_decoders",
    "empty_columns",
    "h5py_bulk",
    "h5py_fancy",
    "pread",
    "pread_decode",
    "read_into",
    "scratch_buffer",
    "stored_extents",
]

Arrays = dict[str, np.ndarray[Any, Any]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


class Extent(NamedTuple):
    """A byte range of a column: offset and size in bytes, and the filter mask of the chunk."""

    offset: int
    size: int
    mask: int = 0


def empty_columns(file: h5py.File, columns: Sequence[str]) -> Arrays:
    """Return uninitialised arrays for whole columns."""
    return {name: np.empty(file[name].shape, file[name].dtype) for name in columns}


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


def stored_extents(file: h5py.File, columns: Sequence[str]) -> dict[str, list[Extent]]:
    """Return the byte ranges of each column: its chunks in row order, or the contiguous region."""
    extents: dict[str, list[Extent]] = {}
    for name in columns:
        dataset = file[name]
        if dataset.chunks is None:
            extents[name] = [Extent(dataset.id.get_offset(), dataset.id.get_storage_size())]
            continue
        chunks: list[Any] = []
        dataset.id.chunk_iter(chunks.append)
        chunks.sort(key=lambda chunk: chunk.chunk_offset)
        extents[name] = [Extent(chunk.byte_offset, chunk.size, chunk.filter_mask) for chunk in chunks]
    return extents


class Decoder(NamedTuple):
    """The bare decoder of a column, and buffers for its input, its output and steps between."""

    decoder: ChunkDecoder | None
    stored: np.ndarray[Any, Any]
    decoded: np.ndarray[Any, Any]
    between: tuple[np.ndarray[Any, Any], ...]


def chunk_decoders(reader: RowReader, columns: Sequence[str]) -> dict[str, Decoder]:
    """Return the decoders and buffers that `pread_decode` needs for the columns of a file."""
    decoders = {}
    for name in columns:
        layout = reader.column(name)
        nbytes = math.prod(layout.chunk_shape or layout.shape) * layout.stored_dtype.itemsize
        filtered = layout.chunk_shape is not None and layout.pipeline.steps and decodes(layout.pipeline)
        decoder = ChunkDecoder(layout.pipeline, nbytes) if filtered else None
        stored, decoded, *between = (np.empty(nbytes * 2, np.uint8) for _ in range(4))
        decoders[name] = Decoder(decoder, stored, decoded[:nbytes], tuple(between))
    return decoders


def pread(path: str, extents: Sequence[Extent], buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Read the extents one after another into the buffer, each by one system call; decode nothing.

    Neighbouring chunks are not joined: this is the limit of a reader that reads one chunk at a time.

    Raises
    ------
    EOFError
        If the file ends inside an extent.
    """
    view = buffer.data
    position = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for offset, size, _ in extents:
            read_into(descriptor, view[position : position + size], offset)
            position += size
    finally:
        os.close(descriptor)


def pread_decode(path: str, extents: Mapping[str, Sequence[Extent]], decoders: Mapping[str, Decoder]) -> None:
    """Read the extents of each column, each by one system call, and decode each into the same buffer."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for name, found in extents.items():
            decoder, stored, decoded, between = decoders[name]
            for offset, size, mask in found:
                read_into(descriptor, stored[:size].data, offset)
                if decoder is not None:
                    decoder.decode(stored[:size], mask, decoded, partial(scratch_buffer, between))
    finally:
        os.close(descriptor)


def scratch_buffer(buffers: tuple[np.ndarray[Any, Any], ...], slot: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Return the buffer that a decoder asks for between two steps."""
    return buffers[slot][:nbytes]


def read_into(descriptor: int, view: memoryview, offset: int) -> None:
    """Fill `view` with the bytes from `offset` on."""
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise EOFError(f"file ends at byte {offset}, {len(view)} bytes short")
        view = view[count:]
        offset += count
