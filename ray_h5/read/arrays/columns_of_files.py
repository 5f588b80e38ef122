"""Columns of several local files as one: rows of all of them are planned at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import request_of
from ray_h5.read.arrays.chunk_source import ChunkSource, Parts, joined_indexes
from ray_h5.read.arrays.jobs_of_rows import JobsOfRows
from ray_h5.read.arrays.plan_rows import DirectColumn
from ray_h5.read.jobs import TableJob
from ray_h5.read.native.job_table import (
    IN_PYTHON,
    NO_DESCRIPTOR,
    JobTable,
    pipeline_number,
)
from ray_h5.read.native.library import compiled_loop
from ray_h5.read.native.run_tables import run_compiled

if TYPE_CHECKING:
    from ray_h5.read.open_file import OpenFile

MOST_CHUNKS = 1 << 22
"""Chunks of all files and columns at most; each takes 36 bytes."""


def joint_column(columns: Sequence[DirectColumn]) -> DirectColumn:
    """Return a column that is alike in several files, with rows of all of them; see `alike`."""
    sources = [column.source for column in columns]
    indexes = [source.index for source in sources if source.index is not None]
    whole = ChunkSource.joined(
        sources[0],
        np.array([source.layout.num_rows for source in sources], np.int64),
        lambda file: (sources[file].path, sources[file].layout),
        partial(joined_indexes, indexes) if indexes else None,
        offsets=np.array([UNALLOCATED if source.layout.offset is None else source.layout.offset for source in sources]),
        descriptors=np.array([source.file for source in sources], np.int64),
        byte_sources={source.file: source.byte_source for source in sources},  # their descriptors stay open
    )
    return DirectColumn(whole)


def alike(readers: Iterable[object]) -> list[DirectColumn]:
    """Return columns of whole rows if they differ in their files and lengths alone, and can be one; otherwise none."""
    columns: list[DirectColumn] = []
    for column in readers:
        if not isinstance(column, DirectColumn) or not _is_plain(column.source):
            return []
        columns.append(column)
        if _facts(column.source.layout) != _facts(columns[0].source.layout):
            return []
    return columns


def _is_plain(source: ChunkSource) -> bool:
    """Return whether an array has values, in a file that has a descriptor."""
    return source.layout.row_bytes > 0 and not source.is_unwritten and source.file != NO_DESCRIPTOR


def _facts(layout: ColumnLayout) -> tuple[object, ...]:
    fill = None if layout.fill is None else layout.fill.tobytes()
    return layout.stored_dtype, layout.row_shape, layout.storage, layout.chunk_shape, layout.pipeline, fill


def _alike(files: Sequence[OpenFile], name: str) -> list[DirectColumn]:
    """Return a column of each file; none if they are not alike, or the compiled loop does not read them."""

    def reader(file: OpenFile) -> object:
        with file.library():
            return file.reader(name) if file.column(name).direct else None

    columns = alike(map(reader, files))
    sources = [column.source for column in columns[:1]]
    is_read = all(one.index is None or pipeline_number(one.layout.pipeline) != IN_PYTHON for one in sources)
    return columns if is_read else []


def parts_of(column: DirectColumn) -> Parts:
    """Return the files of a joint column."""
    assert column.source.parts is not None
    return column.source.parts


@dataclass(frozen=True, slots=True, eq=False)
class JointFiles:
    """Open files whose columns are read together.

    Attributes
    ----------
    columns : mapping of str to DirectColumn
        The columns that are alike in all files. Others are read file by file.
    whole : JobsOfRows, optional
        Those of them whose chunks are one row each.
    """

    columns: Mapping[str, DirectColumn]
    whole: JobsOfRows | None

    @property
    def decodes_parts(self) -> bool:
        """Whether rows lie in chunks of several rows that have to be decoded."""
        sources = [column.source for column in self.columns.values()]
        return any(
            source.index is not None and source.grid.chunk_rows > 1 and source.layout.pipeline.steps
            for source in sources
        )

    @classmethod
    def of(cls, files: Sequence[OpenFile], like: Mapping[str, np.ndarray]) -> JointFiles | None:
        """Return files together, for arrays like these; None if the compiled loop reads no column of all files so."""
        if compiled_loop() is None:
            return None
        columns: dict[str, DirectColumn] = {}
        chunks = 0
        for name, array in like.items():
            columns_alike = _alike(files, name)
            if not columns_alike or not columns_alike[0].lands_in_place(array):
                continue
            chunks += sum(
                len(column.source.index.numbers) for column in columns_alike if column.source.index is not None
            )
            if chunks > MOST_CHUNKS:
                break
            columns[name] = joint_column(columns_alike)
        if not columns:
            return None
        return cls(columns, JobsOfRows.of_files({name: column.source for name, column in columns.items()}))

    def read(
        self,
        out: Mapping[str, np.ndarray],
        files: np.ndarray,
        rows: np.ndarray,
        places: np.ndarray,
        times: np.ndarray,
    ) -> bool:
        """Read rows of files, given by their numbers, into ``out[column][places]``; return whether all were read.

        `times` has how often reads of the files waited.
        """
        tables = self._tables(files, rows, places, out)
        planned = [table for table in tables if table is not None]
        return len(planned) == len(tables) and not run_compiled(JobTable.join(planned), times)[0].any()

    def _tables(
        self, files: np.ndarray, rows: np.ndarray, places: np.ndarray, out: Mapping[str, np.ndarray]
    ) -> list[JobTable | None]:
        """Return the jobs that fill arrays with rows; None for those that the loop does not read."""
        whole = None if self.whole is None else self.whole.table(files, rows, places, out)
        tables = [] if whole is None else [whole]
        done = () if whole is None or self.whole is None else self.whole.dtypes
        rest = {name: array for name, array in out.items() if name not in done}
        if rest:
            order = np.lexsort((rows, files))  # once for all columns
            files, rows, places = files[order], rows[order], places[order]
        return tables + [_table(self.columns[name], files, rows, places, array) for name, array in rest.items()]


def _table(
    column: DirectColumn, files: np.ndarray, rows: np.ndarray, places: np.ndarray, out: np.ndarray
) -> JobTable | None:
    """Return the jobs that fill ``out[places]`` with rows of files; None if the loop does not read all of them."""
    if not column.lands_in_place(out):
        return None
    jobs = column.jobs(request_of(parts_of(column).starts[files] + rows, places), out)
    return jobs[0].table if len(jobs) == 1 and isinstance(jobs[0], TableJob) else None
