"""Runs of consecutive rows: whole datasets of a segmented column, which would take long to list row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ray_h5.hdf5.buffers import as_bytes
from ray_h5.hdf5.reading.coalesce import Request, RowRange, contiguous_spans, request_of
from ray_h5.hdf5.reading.jobs import Job, Worker
from ray_h5.storage.byte_source import ByteSource

_JOB_BYTES = 1 << 20
"""One job reads about this much, so that threads share the work evenly."""


@dataclass(frozen=True, slots=True, eq=False)
class RunRequest:
    """Runs of consecutive rows, each of which goes to consecutive places.

    Attributes
    ----------
    firsts, places, counts : numpy.ndarray
        int64: the first row of each run, where it goes, and its length, above 0.
    """

    firsts: np.ndarray
    places: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.firsts)

    def listed(self) -> Request:
        """Return the same rows one by one."""
        return request_of(units_of(self.firsts, self.counts), units_of(self.places, self.counts))

    def select(self, keep: np.ndarray) -> RunRequest:
        """Return the runs that a mask keeps."""
        return RunRequest(self.firsts[keep], self.places[keep], self.counts[keep])

    def ranges(self) -> Iterator[RowRange]:
        """Yield the runs."""
        for each in zip(self.firsts.tolist(), self.places.tolist(), self.counts.tolist(), strict=True):
            yield RowRange(*each)


def units_of(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return consecutive numbers: ``counts[i]`` of them from ``starts[i]`` on, for each i."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)


def copy_runs(
    source: ByteSource, offsets: np.ndarray, request: RunRequest, row_bytes: int, out: np.ndarray
) -> list[Job]:
    """Return the work that copies runs as they are stored into `out`, which has their dtype and is C-contiguous.

    Parameters
    ----------
    source : ByteSource
        The file.
    offsets : numpy.ndarray
        int64: where each run begins in the file.
    request : RunRequest
        The runs.
    row_bytes : int
        Bytes of a row.
    out : numpy.ndarray
        The output.
    """
    order = np.argsort(offsets, kind="stable")
    begins, sizes = request.places[order] * row_bytes, request.counts[order] * row_bytes
    spans = list(contiguous_spans(offsets[order], begins, sizes))
    ends = np.cumsum([size for _, _, size in spans]) // _JOB_BYTES
    cuts = [0, *(np.flatnonzero(ends[1:] != ends[:-1]) + 1).tolist(), len(spans)]
    flat = as_bytes(out).data
    return [partial(_read_spans, source, spans[a:b], flat) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]


def _read_spans(source: ByteSource, spans: list[tuple[int, int, int]], flat: memoryview, worker: Worker) -> None:
    # One job reads many spans: a job for each takes twice as long for datasets of 1 KiB (CPU seconds).
    for offset, begin, size in spans:
        source.read_into(offset, flat[begin : begin + size])
    worker.stats.requests += len(spans)
    worker.stats.bytes_read += sum(size for _, _, size in spans)
