"""Columns of several local files, or of many datasets, whose rows are planned at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.row_requests import request_of
from ray_h5.per_process import cached_property
from ray_h5.read.arrays.chunk_source import ChunkSource
from ray_h5.read.arrays.column import Column, JoinedColumn
from ray_h5.read.arrays.plan_boxes import BoxPlanner
from ray_h5.read.jobs import ReadStats
from ray_h5.read.native.job_table import CHUNKS_DECODED, IN_PYTHON, NO_BOXES, NO_PIECES, Field, JobTable
from ray_h5.read.native.library import compiled_loop

if TYPE_CHECKING:
    from ray_h5.read.open_file_base import OpenFile

_MOST_INDEX_BYTES = 112 << 20
"""Bytes of the chunk indexes of all files and columns at most: those of 4 million chunks."""

_MOST_ROWS, _MOST_BYTES = 1 << 18, 1 << 20
"""Jobs are kept for at most that many rows of a column, of 72 bytes each, which are read by one request each."""


class JointColumns:
    """Columns that are read together: a row is a row of one of many arrays, which are the same in all columns.

    Fast path: rows of columns of which each row is one chunk are planned by one look-up, however many columns and
    arrays they have. Others are planned a column after the other, and all are read by one call of the compiled loop.

    Parameters
    ----------
    columns : mapping of str to Column
        The columns, each of many arrays.
    like : mapping of str to numpy.ndarray
        Arrays of the shapes and dtypes of rows that are read.
    """

    def __init__(self, columns: Mapping[str, Column], like: Mapping[str, np.ndarray]) -> None:
        self.columns = columns
        jobs = {
            name: of_rows
            for name, column in columns.items()
            if (of_rows := _jobs_of_rows(column.source, like[name])) is not None
        }
        self.planned = {name: columns[name].source.layout.stored_dtype for name in jobs}
        """The columns whose jobs are kept, as each row is one chunk; and how their values are stored."""
        if jobs:
            begins = np.cumsum([0, *(some.shape[1] for some in jobs.values())]).tolist()
            tables = [columns[name].source.table for name in jobs]
            first = np.array([of.chunks.firsts + at for of, at in zip(tables, begins, strict=False)], np.int64)
            row_bytes = np.array([some[Field.DECODED, 0] for some in jobs.values()], np.int64)
            table = np.ascontiguousarray(np.concatenate([*jobs.values()], axis=1).T)
            self._keeps = table, first, row_bytes
            # These, as arguments of the compiled loop.
            addresses = table.ctypes.data, first.ctypes.data, row_bytes.ctypes.data
            self._tables = addresses[0], len(table), addresses[1], first.shape[1], len(jobs), addresses[2]

    @classmethod
    def of_files(cls, files: Sequence[OpenFile], like: Mapping[str, np.ndarray]) -> JointColumns | None:
        """Return the columns that are alike in all files, whose rows the compiled loop reads; None if there are none.

        Others are read file by file.
        """
        if compiled_loop() is None:
            return None
        columns: dict[str, Column] = {}
        nbytes = 0
        for name, array in like.items():

            def reader(file: OpenFile, name: str = name) -> object:
                with file.library():
                    return file.reader(name) if file.column(name).direct else None

            column = Column.joined(map(reader, files))
            if column is None or array.dtype != column.source.layout.stored_dtype or not array.flags.c_contiguous:
                continue
            is_narrow = isinstance(column.planner, BoxPlanner) and column.planner.is_narrow
            if is_narrow or (column.source.is_chunked and column.source.pipeline == IN_PYTHON):
                continue
            nbytes += column.source.table.nbytes
            if nbytes > _MOST_INDEX_BYTES:
                break
            columns[name] = column
        return cls(columns, like) if columns else None

    @classmethod
    def of_datasets(
        cls, file: OpenFile, columns: Mapping[str, JoinedArray], like: Mapping[str, np.ndarray]
    ) -> JointColumns | None:
        """Return columns of which each row is a whole dataset of a file; None if not each is one job."""
        made: dict[str, Column] = {}
        for name, joined in columns.items():
            is_whole = len(joined.layouts) == 1 and joined.is_there.all() and len(joined) <= _MOST_ROWS
            if not is_whole or joined.layouts[0].sources or not joined.layouts[0].direct or compiled_loop() is None:
                return None
            reader = file.reader(joined)
            assert isinstance(reader, JoinedColumn)
            made[name] = reader.column_of_class(0)
        found = cls(made, like)
        found.columns = {}  # they would keep the file open
        return found if len(found.planned) == len(made) else None

    @cached_property
    def decodes_parts(self) -> bool:
        """Whether rows lie in chunks of several rows that have to be decoded."""
        sources = [column.source for column in self.columns.values()]
        return any(source.is_chunked and source.chunk_rows > 1 and source.layout.pipeline.steps for source in sources)

    def read(
        self, out: Mapping[str, np.ndarray], asked: np.ndarray, times: np.ndarray, descriptor: int | None = None
    ) -> ReadStats | None:
        """Fill places of arrays with rows, and return what that has cost.

        Parameters
        ----------
        out : mapping of str to numpy.ndarray
            Arrays like those that the columns were made for.
        asked : numpy.ndarray
            int64 of shape (3, rows): the number of an array, a row of it, and where that goes. A dataset that is a row
            of the output is row 0 of itself.
        times : numpy.ndarray
            How often reads of the files waited.
        descriptor : int, optional
            That of the file, if it may have been opened again since.

        Returns
        -------
        ReadStats or None
            None if the compiled loop did not read all of them: another reader says why.
        """
        tables, rest = list[JobTable](), dict(out)
        if self.planned and (table := self._planned_at_once(out, asked)) is not None:
            if descriptor is not None:
                table.jobs[Field.FILE] = descriptor
            tables, rest = [table], {name: out[name] for name in out if name not in self.planned}
        if rest.keys() - self.columns.keys():
            return None
        if rest:
            arrays, rows, places = asked[:, np.lexsort(asked[1::-1])]  # once for all columns
        for name, array in rest.items():
            column = self.columns[name]
            jobs = column.jobs(request_of(column.source.table.rows.starts[arrays] + rows, places), array)
            planned = [job for job in jobs if isinstance(job, JobTable)]
            if len(planned) < len(jobs):  # some are of those that the loop does not read
                return None
            tables += planned
        if not tables:
            return ReadStats()
        status, counts = JobTable.join(tables).run_compiled(times)
        return None if status.any() else ReadStats(*counts[: CHUNKS_DECODED + 1].tolist())

    def _planned_at_once(self, out: Mapping[str, np.ndarray], asked: np.ndarray) -> JobTable | None:
        """Return the jobs of columns of which each row is a chunk; None for rows asked for twice and decoded once."""
        filled = [out[name] for name in self.planned]
        stored = self.planned.values()
        if not all(a.dtype == dtype and a.flags.c_contiguous for a, dtype in zip(filled, stored, strict=True)):
            return None
        count, addresses = asked.shape[1], np.array([array.ctypes.data for array in filled], np.int64)
        jobs = np.empty((len(Field), len(filled) * count), np.int64)
        loop = compiled_loop()
        assert loop is not None
        # In C: the steps of NumPy take 70 us a batch, after a read that left nothing of them in the processor's cache.
        at, by = asked.ctypes.data, asked.strides[0]
        tables = *self._tables, addresses.ctypes.data, at, at + by, at + 2 * by
        if not loop.library.ray_h5_plan_rows(*tables, count, jobs.ctypes.data):
            return None
        # Only the compiled loop runs them. What it does not decode is read file by file, which reports errors.
        return JobTable(jobs, NO_PIECES, NO_BOXES, np.zeros((2, jobs.shape[1]), np.int64), (), filled)


def _jobs_of_rows(source: ChunkSource, like: np.ndarray) -> np.ndarray | None:
    """Return the jobs of all chunks, if each chunk is one row of an array like this, and all of them are there."""
    index, row_bytes = source.table.index, math.prod(like.shape[1:]) * like.itemsize
    if index is None or (source.is_chunked and source.chunk_rows != 1) or not 0 < row_bytes <= _MOST_BYTES:
        return None
    if not len(index.numbers) == source.table.chunks.num_units <= _MOST_ROWS:
        return None
    try:
        written, _, jobs = source.stored(index.numbers)
    except CorruptChunkError:  # named by the read of that chunk
        return None
    is_row = written.all() and like.dtype == source.layout.stored_dtype and (jobs[Field.DECODED] == row_bytes).all()
    return source.in_files(jobs) if is_row else None
