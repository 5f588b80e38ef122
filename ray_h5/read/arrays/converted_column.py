"""Columns whose values are made here of stored items: text and arrays of varying length, types that numpy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.hdf5.files.metadata_replay import HeldBytes, replay
from ray_h5.hdf5.heap import DamagedHeapError, Heap
from ray_h5.manifest.row_requests import Request
from ray_h5.read.arrays.plan_rows import at_front, index_of, staged_parts
from ray_h5.read.jobs import Asking, Job, ReadStats, TableJob, Worker
from ray_h5.read.stored_items import StoredItems
from ray_h5.storage.byte_source import ByteSource

_MOST_BYTES = 1 << 20
_MOST_ROWS = 1 << 14
"""Stored items that are in memory at the same time, and rows whose values are looked up together."""


Reads: TypeAlias = Callable[[Any, np.ndarray], list[Job]]
"""``reads(request, items)`` returns the work that fills ``items[request.places]`` with ``request.rows``."""

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Returns bytes of a file, given their offset and number."""

Parts: TypeAlias = Callable[[Request, int], Iterator[Request]]
"""Yields parts of a request of about so many rows; no chunk is in two of them."""


@dataclass(frozen=True, slots=True, eq=False)
class HeapReader:
    """Reads the heap of a file.

    Attributes
    ----------
    byte_source : ByteSource
        The bytes of the file.
    user_block : int
        Where addresses begin.
    length_bytes, key
        As of `Heap`.
    held : HeldBytes, optional
        What is in memory of a file in a store.
    """

    byte_source: ByteSource
    user_block: int
    length_bytes: int
    key: object
    held: HeldBytes | None

    def heap(self, read_at: ReadAt | None = None) -> Heap:
        """Return the heap; `read_at` reads bytes of the file at an offset."""
        read, end = read_at or self._read, self.byte_source.size - self.user_block

        def at_address(address: int, count: int) -> bytes:
            # Memory is taken for all that is asked for.
            return read(self.user_block + address, count) if (count := min(count, end - address)) > 0 else b""

        return Heap(at_address, end, self.length_bytes, self.key, asks_for_all=self.held is not None)

    def _read(self, offset: int, count: int) -> bytes:
        data = bytearray(count)
        self.byte_source.read_into(offset, memoryview(data))
        return bytes(data)


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedColumn:
    """Reads the stored items of a column, and makes its values of them.

    The values of varying length are in other places of the file: these are read once the items are there. In a store,
    a job asks for the items and then for the values; some of what it asks for may be in memory.

    Attributes
    ----------
    path : str
        The file, for messages.
    items : StoredItems
        The stored items of the column.
    reads : callable
        Reads them.
    byte_source : ByteSource
        What they are in.
    heap : HeapReader
        Reads what they refer to.
    parts : callable, optional
        Makes parts of a request, which are read one after the other.
    """

    path: str
    items: StoredItems
    reads: Reads
    byte_source: ByteSource
    heap: HeapReader
    parts: Parts | None = None

    def jobs(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""
        if not len(request) or not out.size:
            return []
        dtype, shape = self.items.layout.stored_dtype, out.shape[1 : out.ndim - len(self.items.shape)]
        at_once = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, dtype.itemsize * math.prod(shape))))
        if self.parts is None:
            parts = [request if request.is_range else request.listed()]
        else:
            parts = list(self.parts(request, at_once))
        if self.heap.held is None:
            put = partial(self._put, out, None)
            return staged_parts(self.byte_source, self.reads, parts, np.empty((0, *shape), dtype), put)
        planned = []
        for part in parts:
            items = np.empty((part.num_rows, *shape), dtype)
            planned.append((part, items, self.reads(at_front(part), items)))
        return [Asking(partial(self._ask, planned, out))]

    def _ask(self, parts: Sequence[tuple[Request, np.ndarray, list[Job]]], out: np.ndarray) -> ReadStats:
        """Read parts from a store: first their items, and then what these refer to."""
        total = ReadStats()
        for part, items, jobs in parts:
            # Blocks of this read alone: values are rarely needed twice, and metadata below them stays.
            data = HeldBytes(self.byte_source, self.heap.held)
            data.fetch(sorted(span for job in jobs if isinstance(job, TableJob) for span in job.table.ranges))
            worker = Worker()
            for job in jobs:
                if isinstance(job, TableJob):
                    arrived = [memoryview(data.read(*span)) for span in job.table.ranges]
                    TableJob(job.table.in_memory(range(len(arrived)), arrived), job.then)(worker)
                else:
                    job(worker)
            replay(partial(self._put, out, data.read_on, part, items))
            total.add(worker.stats)
            total.add(ReadStats(data.requests, data.bytes_fetched))
        return total

    def _put(self, out: np.ndarray, read_at: ReadAt | None, part: Request, items: np.ndarray) -> None:
        heap = self.heap.heap(read_at)
        # All rows at once; only if that fails, row by row, to name the one that is damaged.
        try:
            values = self.items.values(items.reshape(-1), heap)
        except DamagedHeapError:
            for row, item in zip(part.listed().rows.tolist(), items, strict=True):
                try:
                    self.items.values(item.reshape(-1), heap)
                except DamagedHeapError as exc:
                    raise CorruptChunkError(
                        f"{self.path}: column {self.items.layout.name!r}, row {row}: a value of varying length is "
                        f"damaged: {exc}. Restore the file from a copy."
                    ) from None
            raise
        out[index_of(part)] = values.reshape(len(items), *out.shape[1:])
