"""Decoded chunks that stay in memory from one read to the next: rows share them that overlap, or are shorter."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ray_h5.buffers import empty
from ray_h5.lru import LRU
from ray_h5.read.jobs import Job, Staged, TableJob, Unplanned
from ray_h5.read.kernel.job_table import IN_MEMORY, RAW, Field, JobTable
from ray_h5.storage.byte_source import ByteSource, Identity

After = list[Callable[[], None]]
"""What is left to do when all jobs are done."""


class HeldChunks:
    """The decoded chunks that were used last. Threads may share it; after a fork it is empty.

    Parameters
    ----------
    max_bytes : int
        Bytes of all chunks. It may be changed.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._chunks: LRU[np.ndarray] = LRU(sys.maxsize, max_bytes, lambda chunk: chunk.nbytes)
        self._columns: dict[tuple[Hashable, ...], int] = {}
        self._numbers = itertools.count()

    @property
    def total_bytes(self) -> int:
        """Bytes of the chunks that are there."""
        return self._chunks.total_bytes

    def resize(self, max_bytes: int) -> None:
        """Change the bound, and drop chunks if they are more."""
        self._chunks.max_bytes = max_bytes
        self._chunks.trim()

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()

    def sharing(self, job: Job, path: str, source: ByteSource, identity: Identity, after: After) -> Job:
        """Return the same work without decoding chunks that are held.

        Parameters
        ----------
        job : callable
            The work.
        path, source, identity
            The file. Chunks of other files are not held.
        after : list of callable
            Gets what holds the chunks that are decoded, once all work is done.
        """

        def each(jobs: Sequence[Job]) -> list[Job]:
            return [self.sharing(other, path, source, identity, after) for other in jobs]

        if not self._chunks.max_bytes:
            return job
        if isinstance(job, TableJob) and len(job.table.origins) == 1 and job.table.origins[0].byte_source is source:
            return replace(job, table=self._shared(job.table, (path, identity), after))
        if isinstance(job, Staged):
            return replace(job, jobs_into=lambda staged: each(job.jobs_into(staged)))
        if isinstance(job, Unplanned):
            return replace(job, jobs_of=lambda: each(job.jobs_of()))
        return job

    def _shared(self, table: JobTable, file: tuple[str, Identity], after: After) -> JobTable:
        jobs = table.jobs
        # Chunks that are decoded into their places are needed once.
        is_decoded = (jobs[Field.PIPELINE] != RAW) & (jobs[Field.DESTINATION] == 0) & (jobs[Field.FILE] >= 0)
        # Datasets of a damaged file may claim the same bytes, each in its way.
        column = self._columns.setdefault((*file, table.origins[0].decoder.pipeline), next(self._numbers))
        fields = jobs[[Field.OFFSET, Field.SIZE, Field.MASK, Field.DECODED]][:, is_decoded].T.tolist()
        new: dict[tuple[int, ...], np.ndarray] = {}
        keeps, left = list(table.keeps), self._chunks.max_bytes or 0
        for job, each in zip(np.flatnonzero(is_decoded).tolist(), fields, strict=True):
            key, size = (column, *each), each[-1]
            if (chunk := self._chunks.get(key)) is not None:
                jobs[Field.FILE, job], jobs[Field.PIPELINE, job] = IN_MEMORY, RAW
                jobs[Field.OFFSET, job], jobs[Field.SIZE, job] = chunk.ctypes.data, size
            elif size <= left:
                left -= size
                chunk = new[key] = empty((size,), np.dtype(np.uint8))
                jobs[Field.DESTINATION, job] = chunk.ctypes.data
            else:
                continue
            keeps.append(chunk)
        after.append(partial(self._hold, new))
        return replace(table, keeps=keeps)

    def _hold(self, chunks: dict[tuple[int, ...], np.ndarray]) -> None:
        for key, chunk in chunks.items():
            self._chunks.put(key, chunk)
