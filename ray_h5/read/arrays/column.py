"""Columns: where the chunks are, what is selected of them, and how stored values become those of the output."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.files.metadata_replay import HeldBytes, replay
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.indices import picked
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, by_part
from ray_h5.manifest.takes import Take, rows_in_order
from ray_h5.per_process import cached_property
from ray_h5.read.arrays.chunk_source import ChunkSource
from ray_h5.read.arrays.chunk_table import ChunkTable, contiguous, partitions
from ray_h5.read.arrays.plan_boxes import MOST_BOXES, BoxPlanner
from ray_h5.read.arrays.plan_rows import row_jobs, row_parts
from ray_h5.read.jobs import Asking, Job, ReadStats, Worker, at_front, in_parts, index_of, staged
from ray_h5.read.native.job_table import NO_DESCRIPTOR, Field, JobTable
from ray_h5.read.stored_items import ReadAt, StoredItems

_MOST_BYTES, _MOST_ITEMS = 1 << 20, 1 << 14
"""Values that are in memory as they are stored, and stored items whose values are looked up together."""


@dataclass(frozen=True, eq=False)
class Column:
    """Reads rows of an array without libhdf5 and its lock.

    Values that are the bytes of the output as they are stored are read straight into it. Others are read about a
    mebibyte at a time, and then picked, converted and cast.

    Attributes
    ----------
    source : ChunkSource
        The array.
    take : Take
        What rows are.
    items : StoredItems, optional
        The stored items, of which values are made.
    """

    source: ChunkSource
    take: Take
    items: StoredItems | None = None

    @cached_property
    def planner(self) -> ChunkSource | BoxPlanner:
        """What plans the read of stored values: of whole rows one after the other, the array; otherwise, boxes."""
        source, take = self.source, self.take
        if max(take.axes, default=0) >= len(source.layout.shape):
            raise items_are_arrays(f"{source.path}: column {take.array!r}")
        if take.is_plain:
            layout = rows_in_order(source.layout, len(take.axes))
            if layout is not None and layout is not source.layout:
                source = source.over(layout)
            if layout is not None and source.grid.chunk_shape[1:] == layout.row_shape:  # chunks hold whole rows
                return source
        return BoxPlanner(self.source, replace(take, taken=take.taken[: len(source.layout.shape)]))

    @classmethod
    def joined(cls, readers: Iterable[object]) -> Column | None:
        """Return columns of whole rows that differ in their files and lengths alone as one; None for others."""
        sources, facts = list[ChunkSource](), set[tuple[object, ...]]()
        for column in readers:
            if not isinstance(column, Column) or column.items is not None or column.take != Take(column.take.array):
                return None
            source, layout = column.source, column.source.layout
            # It has values, in a file that has a descriptor.
            if not layout.row_bytes or source.is_unwritten or source.table.descriptor == NO_DESCRIPTOR:
                return None
            fill = None if layout.fill is None else layout.fill.tobytes()
            chunks = layout.storage, layout.chunk_shape, layout.pipeline
            facts.add((layout.stored_dtype, layout.row_shape, *chunks, fill))
            sources.append(source)
            if len(facts) > 1:
                return None
        return cls(whole := ChunkSource.joined(sources), Take(whole.layout.name)) if sources else None

    def as_row(self) -> Column:
        """Return the same array as one row of an array with one more axis."""
        return Column(self.source.as_row(), Take(self.take.array), self.items)

    def jobs(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""
        if not request.firsts.size or not out.nbytes:
            return []
        if not self.source.layout.direct:
            raise no_places(f"{self.source.path}: column {self.take.array!r}")
        planner, pick = self.planner, None
        shape: Sequence[int] = out.shape[1:]
        if isinstance(planner, BoxPlanner):
            dtype, reads, cut = planner.dtype, planner.jobs, planner.parts
            if planner.wide is not None:
                planner, shape, pick = planner.wide
                reads, cut = planner.jobs, planner.parts
        else:
            dtype, reads, cut = planner.layout.stored_dtype, partial(row_jobs, planner), partial(row_parts, planner)
        if pick is None and self.items is None and out.dtype == dtype and out.flags.c_contiguous:
            return reads(request, out)
        if pick is None and self.items is not None:
            shape = shape[: len(shape) - len(self.items.shape)]

        def put(part: Request, values: np.ndarray, read_at: ReadAt | None = None) -> None:
            values = values if pick is None else pick(values)
            if self.items is not None:
                values = self.items.values(values, read_at, part, self.source.where)
                of_items = self.take.taken[len(self.source.layout.shape) :]
                values = picked(values, (*[None] * (values.ndim - 1 - len(self.items.shape)), *of_items))
            out[index_of(part)] = values.reshape(part.num_rows, *out.shape[1:])

        at_once = max(1, _MOST_BYTES // max(1, planner.row_bytes))
        parts = cut(request, at_once if self.items is None else min(_MOST_ITEMS, at_once))
        if self.items is None or self.items.held is None:
            return staged(self.source.byte_source, reads, parts, np.empty((0, *shape), dtype), put)
        planned = []
        for part in parts:
            items = np.empty((part.num_rows, *shape), dtype)
            planned.append((part, items, reads(at_front(part), items)))
        return [Asking(self._ask, planned, put, self.items.held)]

    def _ask(
        self,
        parts: Sequence[tuple[Request, np.ndarray, list[Job]]],
        put: Callable[..., None],
        held: HeldBytes,
        worker: Worker,
    ) -> None:
        """Read parts from a store: first their items, and then what these refer to. Some may be in memory."""
        mine = Worker()  # others run at the same time
        for part, items, jobs in parts:
            # Blocks of this read alone: values are rarely needed twice, and metadata below them stays.
            data = HeldBytes(self.source.byte_source, held)
            data.fetch(sorted(span for job in jobs if isinstance(job, JobTable) for span in job.ranges))
            for job in jobs:
                if isinstance(job, JobTable):
                    arrived = [memoryview(data.read(*span)) for span in job.ranges]
                    job = job.in_memory(range(len(arrived)), arrived)  # noqa: PLW2901
                mine.run(job)
            replay(partial(put, part, items, data.read_on))
            mine.stats.add(ReadStats(data.requests, data.bytes_fetched))
        worker.stats.add(mine.stats)


def shared_jobs(columns: Sequence[Column], requests: Sequence[Request], outs: Sequence[np.ndarray]) -> list[Job]:
    """Return the work of several parts of a read that take boxes of one array: each chunk is decoded once."""
    planner, listed = columns[0].planner, [request for request in requests if request.counts is None]
    if isinstance(planner, BoxPlanner) and len(listed) == len(requests) and len(listed[0]) > MOST_BOXES:
        is_same = all(np.array_equal(request.rows, listed[0].rows) for request in listed[1:])
        cuts = (planner.parts(request, MOST_BOXES) for request in listed)
        several = list(zip(*cuts, strict=True)) if is_same else []
        if len(several) > 1:
            plans = [partial(shared_jobs, columns, parts_of_columns, outs) for parts_of_columns in several]
            return in_parts(planner.source.byte_source, plans)
    jobs = [
        job for column, request, out in zip(columns, requests, outs, strict=True) for job in column.jobs(request, out)
    ]
    # Chunks that are decoded into their places are of no other part.
    alike = [job for job in jobs if isinstance(job, JobTable) and not job.jobs[Field.DESTINATION].any()]
    if len(alike) < 2:
        return jobs
    return [*(job for job in jobs if job not in alike), JobTable.shared(alike)]


class JoinedColumn:
    """Reads units of a column that consists of many datasets: each class of datasets is one column.

    Parameters
    ----------
    joined : JoinedArray
        The datasets.
    like : sequence of (ChunkSource, StoredItems or None)
        An array like those of each class, and its stored items, if values are made of them.
    indexes_of : callable
        Lists the chunks of datasets, given their paths.
    chunks : ChunkIndex, optional
        The chunks of all datasets, if they are known.
    """

    def __init__(
        self,
        joined: JoinedArray,
        like: Sequence[tuple[ChunkSource, StoredItems | None]],
        indexes_of: Callable[[Sequence[str]], Sequence[ChunkIndex]],
        chunks: ChunkIndex | None = None,
    ) -> None:
        self.joined = joined
        self._like, self._indexes_of, self._chunks = like, indexes_of, chunks
        # There may be as many classes as datasets: each has its own datasets alone.
        self._datasets = dict(by_part(joined.class_of))
        self._numbers = np.empty(len(joined), np.int64)
        for datasets in self._datasets.values():
            self._numbers[datasets] = np.arange(len(datasets))
        self._columns: dict[int, Column] = {}
        self._taken: Take | None = None

    def select(self, take: Take) -> JoinedColumn:
        """Return the column of parts of units, or of boxes of one index of the first axis."""
        selected = copy.copy(self)
        selected._taken = replace(take, array=self.joined.name)
        return selected

    def jobs(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the units ``request.rows``."""
        if not len(request):
            return []
        if len(self._like) == 1 and not self._like[0][0].is_chunked:  # its rows are the units
            return self.column_of_class(0).jobs(request, out)
        # Boxes have one index of the first axis: of each, a dataset has the places along the others that they cut.
        inner = (
            1 if self._taken is None else math.prod(self._like[0][0].layout.shape[at] for at in self._taken.axes[1:])
        )
        runs, datasets = self.joined.units.times(inner).cut(request)
        jobs: list[Job] = []
        for number, chosen in by_part(self.joined.class_of[datasets]):
            column, some, arrays = self.column_of_class(number), runs.select(chosen), self._numbers[datasets[chosen]]
            table = column.source.table
            table.list_now(arrays)  # their numbers ascend
            shift = table.rows.starts[arrays] - self.joined.units.starts[datasets[chosen]]
            jobs += column.jobs(replace(some, firsts=some.firsts + shift * inner), out)
        return jobs

    def column_of_class(self, number: int) -> Column:
        """Return the datasets of a class as one column; of chunked ones, each begins with a chunk."""
        if number not in self._columns:
            source, items = self._like[number]
            self._columns[number] = Column(self._source(number, source), Take(self.joined.name), items)
        column = self._columns[number]
        return column if self._taken is None else replace(column, take=self._taken)

    def _source(self, number: int, like: ChunkSource) -> ChunkSource:
        """Return the datasets of a class as one array, given one like them."""
        joined, datasets = self.joined, self._datasets[number]
        lengths, paths = joined.lengths[datasets], joined.paths

        def array_of(array: int) -> tuple[str, ColumnLayout]:
            dataset = datasets[array]
            return like.path, replace(like.layout, name=paths[dataset], num_rows=int(joined.lengths[dataset]))

        def list_chunks(arrays: np.ndarray) -> Sequence[ChunkIndex]:
            return self._indexes_of([paths[dataset] for dataset in datasets[arrays]])

        rows, chunks = partitions(like.layout, lengths)
        index = None
        if not like.is_chunked:
            index = contiguous(joined.offsets[datasets], lengths * like.row_bytes)
        elif self._chunks is not None:
            index = self._chunks.renumbered(joined.chunk_numbers, datasets)
        table = ChunkTable(rows, chunks, like.table.files, index, list_chunks, array_of=array_of)
        layout = replace(like.layout, num_rows=rows.num_units, offset=None)
        return replace(like, layout=layout, table=table)


def no_places(where: str) -> UnsupportedColumnError:
    """Return the error of a column whose chunks are not found."""
    return UnsupportedColumnError(
        f"{where} is in a file with a user block, for which this libhdf5 does not say where chunks are. Install a "
        "newer h5py."
    )


def items_are_arrays(where: str) -> UnsupportedColumnError:
    """Return the error of a column of whose items axes would be cut."""
    return UnsupportedColumnError(
        f"{where} has items that are arrays, whose axes are none of rows or blocks. Write it as an array of numbers, "
        "with these axes after its own."
    )
