"""Rows of several local files, or of many datasets, that are planned at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.row_requests import request_of
from ray_h5.manifest.takes import Take
from ray_h5.per_process import cached_property
from ray_h5.read.arrays.chunk_source import ChunkSource
from ray_h5.read.arrays.column import Column
from ray_h5.read.jobs import ReadStats
from ray_h5.read.native.job_table import (
    CHUNKS_DECODED,
    IN_PYTHON,
    NO_BOXES,
    NO_DESCRIPTOR,
    NO_PIECES,
    RAW,
    Field,
    JobTable,
    new_times,
)
from ray_h5.read.native.library import compiled_loop

if TYPE_CHECKING:
    from ray_h5.read.open_file_base import OpenFile

_MOST_INDEX_BYTES = 112 << 20
"""Bytes of the chunk indexes of all files and columns at most: those of 4 million chunks."""

_MOST_ROWS, _MOST_BYTES = 1 << 18, 1 << 20
"""Jobs are kept for at most that many rows of a column, of 72 bytes each, which are read by one request each."""


def alike(readers: Iterable[object]) -> list[Column]:
    """Return columns of whole rows if they differ in their files and lengths alone, and can be one; otherwise none."""
    columns, facts = list[Column](), set[tuple[object, ...]]()
    for column in readers:
        if not isinstance(column, Column) or column.items is not None or not isinstance(column.planner, ChunkSource):
            return []
        source, layout = column.source, column.source.layout
        # It has values, in a file that has a descriptor.
        if not layout.row_bytes or source.is_unwritten or source.table.descriptors[0] == NO_DESCRIPTOR:
            return []
        fill = None if layout.fill is None else layout.fill.tobytes()
        facts.add((layout.stored_dtype, layout.row_shape, layout.storage, layout.chunk_shape, layout.pipeline, fill))
        columns.append(column)
        if len(facts) > 1:
            return []
    return columns


class JobsOfRows:
    """The jobs of all rows of some columns, as one table.

    Fast path: rows are planned by one look-up, however many columns and files they have.

    Parameters
    ----------
    jobs : mapping of str to numpy.ndarray
        For each column, the jobs of all of its rows without destinations: int64 of shape (fields, rows).
    starts : mapping of str to numpy.ndarray
        For each column, the first row of each file.
    dtypes : mapping of str to numpy.dtype
        How the values of the columns are stored.
    """

    def __init__(
        self, jobs: Mapping[str, np.ndarray], starts: Mapping[str, np.ndarray], dtypes: Mapping[str, np.dtype]
    ) -> None:
        begins = np.cumsum([0, *(some.shape[1] for some in jobs.values())]).tolist()
        first = np.array([starts[name] + begin for name, begin in zip(jobs, begins, strict=False)], np.int64)
        row_bytes = np.array([some[Field.DECODED, :1].sum() for some in jobs.values()], np.int64)
        table = np.ascontiguousarray(np.concatenate([*jobs.values()], axis=1).T)
        self.dtypes = dtypes
        self._keeps = table, first, row_bytes
        # These, as arguments of the compiled loop.
        self._tables = (
            table.ctypes.data,
            len(table),
            first.ctypes.data,
            first.shape[1],
            len(jobs),
            row_bytes.ctypes.data,
        )
        self._times = new_times()

    @classmethod
    def of_files(cls, columns: Mapping[str, ChunkSource]) -> JobsOfRows | None:
        """Return those of columns of several files whose chunks are one row each; None if there are none."""
        jobs = {name: of_chunks for name, source in columns.items() if (of_chunks := _of_chunks(source)) is not None}
        starts = {name: columns[name].table.rows.firsts for name in jobs}
        return cls(jobs, starts, {name: columns[name].layout.stored_dtype for name in jobs}) if jobs else None

    @classmethod
    def of_datasets(cls, columns: Mapping[str, JoinedArray], out: Mapping[str, np.ndarray]) -> JobsOfRows | None:
        """Return those of columns whose rows are datasets, for arrays like `out`; None if not each row is one job."""
        jobs: dict[str, np.ndarray] = {}
        for name, joined in columns.items():
            like, layout = out[name], joined.layouts[0]
            size = like.itemsize * int(np.prod(like.shape[1:]))
            if len(joined.layouts) != 1 or layout.sources or not joined.is_there.all() or len(joined) > _MOST_ROWS:
                return None
            is_whole = layout.direct and layout.storage == "contiguous" and like.dtype == layout.stored_dtype
            if not is_whole or not 0 < size <= _MOST_BYTES or (joined.offsets == UNALLOCATED).any():
                return None
            if (joined.lengths * layout.row_bytes != size).any():
                return None
            jobs[name] = table = np.zeros((len(Field), len(joined)), np.int64)
            table[Field.FILE], table[Field.PIPELINE], table[Field.OFFSET] = NO_DESCRIPTOR, RAW, joined.offsets
            table[Field.SIZE] = table[Field.DECODED] = size
        if compiled_loop() is None:
            return None
        return cls(jobs, dict.fromkeys(jobs, np.zeros(1, np.int64)), {name: out[name].dtype for name in jobs})

    def table(
        self, files: np.ndarray | int, rows: np.ndarray, places: np.ndarray, out: Mapping[str, np.ndarray]
    ) -> JobTable | None:
        """Return the jobs that fill places of the arrays of these columns with rows.

        None for rows that are asked for twice and decoded once.
        """
        arrays = [out[name] for name in self.dtypes]
        if not all(
            a.dtype == dtype and a.flags.c_contiguous for a, dtype in zip(arrays, self.dtypes.values(), strict=True)
        ):
            return None
        count, addresses = len(rows), np.array([array.ctypes.data for array in arrays], np.int64)
        jobs = np.empty((len(Field), len(arrays) * count), np.int64)
        asked, loop = np.empty((3, count), np.int64), compiled_loop()
        asked[0], asked[1], asked[2] = files, rows, places
        assert loop is not None
        # In C: the steps of NumPy take 70 us a batch, after a read that left nothing of them in the processor's cache.
        at, by = asked.ctypes.data, asked.strides[0]
        tables = *self._tables, addresses.ctypes.data, at, at + by, at + 2 * by
        if not loop.library.ray_h5_plan_rows(*tables, count, jobs.ctypes.data):
            return None
        # Only the compiled loop runs them. What it does not decode is read file by file, which reports errors.
        return JobTable(jobs, NO_PIECES, NO_BOXES, np.zeros((2, jobs.shape[1]), np.int64), (), arrays)

    def read(self, descriptor: int | None, rows: np.ndarray, out: Mapping[str, np.ndarray]) -> ReadStats | None:
        """Fill arrays with rows of one file, and return what that has cost.

        None if the compiled loop did not read all of them: another reader says why.
        """
        count = len(rows)
        table = self.table(0, rows, np.arange(count), out) if count else None
        if table is None or descriptor is None:
            return None
        table.jobs[Field.FILE] = descriptor
        status, counts = table.run_compiled(self._times)
        return None if status.any() else ReadStats(*counts[: CHUNKS_DECODED + 1].tolist())


def _of_chunks(source: ChunkSource) -> np.ndarray | None:
    """Return the jobs of all chunks, if each chunk is one row and all of them are there."""
    index = source.table.index
    if index is None or not source.is_chunked or source.chunk_rows != 1 or source.chunk_bytes > _MOST_BYTES:
        return None
    if len(index.numbers) > _MOST_ROWS or not np.array_equal(index.numbers, np.arange(source.layout.num_rows)):
        return None
    try:
        _, _, jobs = source.stored(index.numbers)
    except CorruptChunkError:  # named by the read of that chunk
        return None
    return source.in_files(jobs)


@dataclass(frozen=True, eq=False)
class JointFiles:
    """Open files whose columns are read together.

    Attributes
    ----------
    columns : mapping of str to Column
        The columns that are alike in all files. Others are read file by file.
    whole : JobsOfRows, optional
        Those of them whose chunks are one row each.
    """

    columns: Mapping[str, Column]
    whole: JobsOfRows | None

    @cached_property
    def decodes_parts(self) -> bool:
        """Whether rows lie in chunks of several rows that have to be decoded."""
        sources = [column.source for column in self.columns.values()]
        return any(source.is_chunked and source.chunk_rows > 1 and source.layout.pipeline.steps for source in sources)

    @classmethod
    def of(cls, files: Sequence[OpenFile], like: Mapping[str, np.ndarray]) -> JointFiles | None:
        """Return files together, for arrays like these; None if the compiled loop reads no column of all files so."""
        if compiled_loop() is None:
            return None
        columns: dict[str, Column] = {}
        nbytes = 0
        for name, array in like.items():

            def reader(file: OpenFile, name: str = name) -> object:
                with file.library():
                    return file.reader(name) if file.column(name).direct else None

            columns_alike = alike(map(reader, files))
            one = columns_alike[0].source if columns_alike else None
            if one is None or array.dtype != one.layout.stored_dtype or not array.flags.c_contiguous:
                continue
            if one.is_chunked and one.pipeline == IN_PYTHON:
                continue
            nbytes += sum(column.source.table.nbytes for column in columns_alike)
            if nbytes > _MOST_INDEX_BYTES:
                break
            columns[name] = Column(ChunkSource.joined([column.source for column in columns_alike]), Take(name))
        whole = JobsOfRows.of_files({name: column.source for name, column in columns.items()})
        return cls(columns, whole) if columns else None

    def read(
        self, out: Mapping[str, np.ndarray], files: np.ndarray, rows: np.ndarray, places: np.ndarray, times: np.ndarray
    ) -> bool:
        """Read rows of files, given by their numbers, into ``out[column][places]``; return whether all were read.

        `times` has how often reads of the files waited.
        """
        rest, tables = dict(out), list[JobTable]()
        if self.whole is not None and (table := self.whole.table(files, rows, places, out)) is not None:
            tables.append(table)
            rest = {name: array for name, array in out.items() if name not in self.whole.dtypes}
        if rest and len(rows) > 1:
            order = np.lexsort((rows, files))  # once for all columns
            files, rows, places = files[order], rows[order], places[order]
        for name, array in rest.items():
            column = self.columns[name]
            jobs = column.jobs(request_of(column.source.table.rows.starts[files] + rows, places), array)
            planned = [job for job in jobs if isinstance(job, JobTable)]
            if len(planned) < len(jobs):  # some are of those that the loop does not read
                return False
            tables += planned
        return not tables or not JobTable.join(tables).run_compiled(times)[0].any()
