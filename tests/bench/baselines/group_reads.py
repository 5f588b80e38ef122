"""Groups and windows of episodes by plain h5py, and by plain reads of the stored bytes."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.buffers import empty
from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.manifest.layout import FilterPipeline
from ray_h5.read.kernel.job_table import NO_BOXES, NO_PIECES, RAW, Field, JobTable, Origin
from ray_h5.read.kernel.run_tables import run_table
from tests.bench.baselines.h5py_reads import Extent, read_into, scratch_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import h5py

    from ray_h5.storage.local import LocalFile
    from tests.bench.baselines.h5py_reads import Arrays, Decoder

__all__ = ["by_name", "compiled_stacked", "dataset_extents", "decode_extents", "pread_stacked", "slice_windows"]


def by_name(file: h5py.File, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Read datasets of one shape by their names, and stack them."""
    return np.stack([file[name][()] for name in names])


def pread_stacked(descriptor: int, extents: Sequence[Extent], buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Read extents one after another into the buffer, each by one system call."""
    view, position = buffer.data, 0
    for offset, size, _ in extents:
        read_into(descriptor, view[position : position + size], offset)
        position += size


def compiled_stacked(
    source: LocalFile,
    offsets: np.ndarray[Any, Any],
    nbytes: int,
    rows: np.ndarray[Any, Any],
    times: np.ndarray[Any, Any],
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read stored datasets of one size by one call of the compiled loop; `offsets` has where each of them begins."""
    out = empty((len(rows), nbytes), np.dtype(np.uint8))
    jobs = np.zeros((len(Field), len(rows)), np.int64)
    assert source.descriptor is not None
    jobs[Field.FILE], jobs[Field.PIPELINE] = source.descriptor, RAW
    jobs[Field.OFFSET], jobs[Field.SIZE], jobs[Field.DECODED] = offsets[rows], nbytes, nbytes
    jobs[Field.DESTINATION] = out.ctypes.data + np.arange(len(rows)) * nbytes
    origin = Origin(len(rows), source, ChunkDecoder(FilterPipeline(), nbytes), lambda _, reason: ValueError(reason))
    run_table(JobTable(jobs, NO_PIECES, NO_BOXES, [origin], [out]), times)
    return out


def slice_windows(file: h5py.File, windows: Iterable[tuple[str, int, int]], offsets: Mapping[str, range]) -> Arrays:
    """Slice windows of episodes, and repeat the first and last step where they stick out, as robomimic does.

    Parameters
    ----------
    file
        The open file.
    windows
        Group, step and length of the episode of each.
    offsets
        Consecutive offsets of each column.
    """
    found: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in offsets}
    for group, step, length in windows:
        for name, around in offsets.items():
            first, stop = step + around.start, step + around.stop
            values = file[f"{group}/{name}"][max(0, first) : min(stop, length)]
            before, after = max(0, -first), max(0, stop - length)
            if before or after:
                widths = ((before, after), *((0, 0),) * (values.ndim - 1))
                values = np.pad(values, widths, mode="edge")
            found[name].append(values)
    return {name: np.stack(values) for name, values in found.items()}


def dataset_extents(dataset: h5py.Dataset) -> list[Extent]:
    """Return the chunks of a dataset in the order of their rows."""
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    chunks.sort(key=lambda chunk: chunk.chunk_offset)
    return [Extent(chunk.byte_offset, chunk.size, chunk.filter_mask) for chunk in chunks]


def decode_extents(path: str, extents: Mapping[str, Sequence[Extent]], decoders: Mapping[str, Decoder]) -> Arrays:
    """Read the extents of each column, each by one system call, and decode each into its place in a new array."""
    arrays: Arrays = {}
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for name, found in extents.items():
            decoder, stored, decoded, between = decoders[name]
            assert decoder is not None
            out = arrays[name] = np.empty((len(found), len(decoded)), np.uint8)
            scratch = partial(scratch_buffer, between)
            for row, (offset, size, mask) in zip(out, found, strict=True):
                read_into(descriptor, stored[:size].data, offset)
                decoder.decode(stored[:size], mask, row, scratch)
    finally:
        os.close(descriptor)
    return arrays
