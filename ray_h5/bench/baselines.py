"""Plain h5py, and plain reads of the stored bytes, the way a competent user writes them."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import imagecodecs
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Extent", "Rows", "empty_columns", "h5py_bulk", "h5py_fancy", "pread", "pread_decode", "stored_extents"]

Arrays = dict[str, np.ndarray[Any, Any]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


class Extent(NamedTuple):
    """Where some bytes of a column are stored.

    Attributes
    ----------
    offset, size
        In bytes.
    decoded
        Bytes that they decode to, if they are stored compressed.
    """

    offset: int
    size: int
    decoded: int | None = None


def empty_columns(file: h5py.File, columns: Sequence[str]) -> Arrays:
    """Return uninitialised arrays that whole columns fit into."""
    return {name: np.empty(file[name].shape, file[name].dtype) for name in columns}


def h5py_bulk(file: h5py.File, out: Arrays) -> None:
    """Read whole columns with ``read_direct`` into the arrays of `out`."""
    for name, array in out.items():
        file[name].read_direct(array)


def h5py_fancy(file: h5py.File, columns: Sequence[str], rows: Rows) -> Arrays:
    """Read distinct rows with ``d[sorted rows]``, which is the order h5py asks for, and put them in order."""
    if np.all(rows[1:] > rows[:-1]):
        return {name: file[name][rows] for name in columns}
    order = np.argsort(rows)
    inverse = np.argsort(order)
    return {name: file[name][rows[order]][inverse] for name in columns}


def stored_extents(file: h5py.File, columns: Sequence[str]) -> list[Extent]:
    """Return where the stored bytes of the columns are: the chunks in row order, or the contiguous region."""
    extents: list[Extent] = []
    for name in columns:
        dataset = file[name]
        if dataset.chunks is None:
            extents.append(Extent(dataset.id.get_offset(), dataset.id.get_storage_size()))
            continue
        chunks: list[Any] = []
        dataset.id.chunk_iter(chunks.append)
        chunks.sort(key=lambda chunk: chunk.chunk_offset)
        whole = math.prod(dataset.chunks) * dataset.dtype.itemsize
        extents += [Extent(chunk.byte_offset, chunk.size, None if chunk.filter_mask else whole) for chunk in chunks]
    return extents


def pread(path: str, extents: Sequence[Extent], buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Read the extents, a system call each, one behind the other into the buffer; decode nothing.

    Chunks that lie side by side are not joined: this is the floor of a reader that takes one at a time.

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
            _read_into(descriptor, view[position : position + size], offset)
            position += size
    finally:
        os.close(descriptor)


def pread_decode(path: str, extents: Sequence[Extent], buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Read the extents as `pread` does, and undo LZF, the one compression of these workloads, where it is."""
    pread(path, extents, buffer)
    position = 0
    for _, size, decoded in extents:
        if decoded is not None:
            imagecodecs.lzf_decode(buffer[position : position + size], out=np.empty(decoded, np.uint8))
        position += size


def _read_into(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise EOFError(f"file ends at byte {offset}, {len(view)} bytes short")
        view = view[count:]
        offset += count
