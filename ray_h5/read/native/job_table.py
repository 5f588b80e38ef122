"""Flat tables of jobs: which bytes of which file, how they are decoded, and where their values go."""

# A job reads and decodes one chunk. A piece copies some of its values to their place. A box is a piece that is not one
# run of bytes. An example: rows 3 and 4 of an array of 8 x 6 bytes, stored in chunks of 2 x 3, are read into `out`.
#              chunk 2    chunk 3                   job: chunk   SIZE   DECODED   pieces: SOURCE   DESTINATION   SIZE
#     row 2   . . .     . . .                            2        6        6             3          out + 0        3
#     row 3   x x x     x x x   -> out[0]                3        6        6             3          out + 3        3
#             ------------------                         4        6        6             0          out + 6        3
#     row 4   x x x     x x x   -> out[1]                5        6        6             0          out + 9        3
#     row 5   . . .     . . .
#              chunk 4    chunk 5
# The last two bytes of both rows of chunk 2 would be one piece with a box: SOURCE 1, and a box of one axis: runs of 2
# bytes; count 2; source stride 3 (a row of the chunk); destination stride 6 (a row of `out`).

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from ray_h5.codecs import filter_ids
from ray_h5.codecs.pipeline import ChunkDecoder, decodes
from ray_h5.manifest.layout import FilterPipeline, FilterStep
from ray_h5.per_process import PerProcess
from ray_h5.read.native.library import compiled_loop
from ray_h5.storage.byte_source import ByteSource, Span


class Field(IntEnum):
    """The rows of a table of jobs; the same numbers are in loop.c."""

    FILE = 0  # descriptor, or IN_MEMORY, or NO_DESCRIPTOR
    OFFSET = 1  # in the file; of bytes in memory, their address
    SIZE = 2  # stored bytes
    PIPELINE = 3  # row of the table of pipelines, or RAW, or IN_PYTHON
    MASK = 4  # filter mask
    DECODED = 5  # bytes after decoding
    DESTINATION = 6  # address; 0 for scratch memory
    BEGIN = 7  # first piece
    END = 8  # last piece plus one


class Piece(IntEnum):
    """The rows of a table of pieces: what is copied from the values of a job."""

    SOURCE = 0  # offset among the values, in bytes
    DESTINATION = 1  # address
    SIZE = 2  # bytes
    BOX = 3  # row of the table of boxes, or PLAIN


IN_MEMORY = -1
NO_DESCRIPTOR = -2
RAW = -1
IN_PYTHON = -2
PLAIN = -1

REQUESTS, BYTES_READ, CHUNKS_DECODED, HINTS, HINTED = range(5)
"""What a run counts; and up to which job hints were given."""

DONE, NOT_RUN = 0, 3
"""The status of a job; loop.c has the others."""

COLD_ON, HINTS_OFF = 1, 2
"""Of `new_times`: whether bytes come from a disk or a server, so that hints help; whether none are given."""

MAX_BOX_AXES = 32
"""As many as HDF5 allows."""

BOX_FIELDS = 2 + 3 * MAX_BOX_AXES
MAX_STEPS = 8
_PIPELINE_FIELDS = 1 + 2 * MAX_STEPS
_MAX_PIPELINES = 4096
"""Most pipelines that a process keeps: files could have any number of them. Further ones are decoded in Python."""

NO_PIECES = np.empty((len(Piece), 0), np.int64)
NO_BOXES = np.empty((0, BOX_FIELDS), np.int64)

_LOOP_CODECS = ("SHUFFLE", "FLETCHER32", "LZF", "DEFLATE", "ZSTD", "LZ4", "BLOSC", "BITSHUFFLE")
_NUMBERS = {getattr(filter_ids, name): number for number, name in enumerate(_LOOP_CODECS, 1)}
"""HDF5 filter ids -> the codecs of loop.c."""


def new_times() -> np.ndarray:
    """Return how often reads of some files waited: nothing is known yet. See `count_cold` in loop.c."""
    return np.zeros(3, np.int64)


class _Pipelines:
    """The filter pipelines of this process that the compiled loop decodes, as a table."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers: dict[tuple[int, ...], int] = {}
        self.rows = np.zeros((16, _PIPELINE_FIELDS), np.int64)


PIPELINES: PerProcess[_Pipelines] = PerProcess(_Pipelines)
"""Their `rows` are the table: int64 of shape (pipelines, fields)."""


def pipeline_number(pipeline: FilterPipeline) -> int:
    """Return the row of a pipeline in the table; `IN_PYTHON` if the compiled loop does not decode it."""
    if (row := _pipeline_row(pipeline)) is None:
        return IN_PYTHON
    known = PIPELINES.value
    with known.lock:
        if row not in known.numbers:
            number = len(known.numbers)
            if number == _MAX_PIPELINES:
                return IN_PYTHON
            if number == len(known.rows):  # a copy: a running loop reads the old one
                known.rows = np.concatenate([known.rows, np.zeros_like(known.rows)])
            known.rows[number, : len(row)] = row
            known.numbers[row] = number
        return known.numbers[row]


@functools.lru_cache(maxsize=256)
def _pipeline_row(pipeline: FilterPipeline) -> tuple[int, ...] | None:
    loop = compiled_loop()
    if loop is None or len(pipeline.steps) > MAX_STEPS or not decodes(pipeline):
        return None
    if not all(step.id in loop.decodes for step in pipeline.steps):
        return None
    return len(pipeline.steps), *(value for step in pipeline.steps for value in _codec_of(step))


def _codec_of(step: FilterStep) -> tuple[int, int]:
    """Return the codec of a step in loop.c, and its parameter there."""
    number, data = _NUMBERS[step.id], step.client_data
    if step.id == filter_ids.BITSHUFFLE:
        element, block, compression = (*data[2:5], 0, 0)[:3]
        return number + (compression - 1 if compression else 0), element | block << 32
    return number, data[0] if step.id == filter_ids.SHUFFLE else 0


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """A column of a file that jobs come from: for the steps in Python, and for errors.

    Attributes
    ----------
    byte_source : ByteSource
        The file; the first of several.
    decoder : ChunkDecoder
        Decodes its chunks in Python.
    corrupt : callable
        ``corrupt(number, reason)`` returns the error for a damaged chunk.
    least : callable
        ``least(number)`` returns how many bytes of a chunk hold its rows: some writers store no more of the last chunk.
    byte_sources : mapping of int to ByteSource
        Several files on disks, by their descriptors.
    file_key : hashable, optional
        Says which file it is, in which state, if decoded chunks may stay in memory; see `HeldChunks`.
    """

    byte_source: ByteSource
    decoder: ChunkDecoder
    corrupt: Callable[[int, str], Exception]
    least: Callable[[int], int]
    byte_sources: Mapping[int, ByteSource] = field(default_factory=dict)
    file_key: Hashable = None


@dataclass(frozen=True, slots=True, eq=False)
class JobTable:
    """Jobs that depend on no other job, as arrays.

    Attributes
    ----------
    jobs : numpy.ndarray
        int64 of shape (fields, jobs); see `Field`.
    pieces : numpy.ndarray
        int64 of shape (fields, pieces); see `Piece`.
    boxes : numpy.ndarray
        int64 of shape (boxes, fields): pieces with several axes. Number of axes, bytes of the innermost run;
        then count, source stride and destination stride of each axis, in bytes.
    chunks : numpy.ndarray
        int64 of shape (2, jobs): the origin of each job, and the number of its chunk there.
    origins : sequence of Origin
        The columns that the jobs come from.
    keeps : sequence of numpy.ndarray
        The arrays that destinations are in, and stored bytes.
    then : tuple of callable
        What is done once all jobs have run.
    """

    jobs: np.ndarray
    pieces: np.ndarray
    boxes: np.ndarray
    chunks: np.ndarray
    origins: Sequence[Origin]
    keeps: Sequence[np.ndarray]
    then: tuple[Callable[[], None], ...] = ()

    def __len__(self) -> int:
        return self.jobs.shape[1]

    @property
    def byte_source(self) -> ByteSource:
        """The file that is read; the first one, if there are several."""
        return self.origins[0].byte_source

    @property
    def ranges(self) -> list[Span]:
        """The byte range of each job."""
        return list(zip(self.jobs[Field.OFFSET].tolist(), self.jobs[Field.SIZE].tolist(), strict=True))

    def run_compiled(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run the jobs by the compiled loop alone: the status of each, and what it counts.

        `times` has how often reads of these files waited, from `new_times`. Threads may share it.
        """
        jobs, pieces, pipelines = self.jobs, self.pieces, PIPELINES.value.rows
        count, loop = jobs.shape[1], compiled_loop()
        status, counts = np.full(count, NOT_RUN, np.int8), np.zeros(HINTED + 1, np.int64)
        if loop is None:
            return status, counts
        inside = np.array([(array.ctypes.data, array.nbytes) for array in self.keeps], np.int64)
        to_copy, boxes = (array.ctypes.data if array.size else 0 for array in (pieces, self.boxes))
        planned = jobs.ctypes.data, count, to_copy, pieces.shape[1], pipelines.ctypes.data, boxes
        state = status.ctypes.data, counts.ctypes.data, times.ctypes.data
        run, context, at = loop.library.ray_h5_run, loop.of_thread.value.address, 0
        while at < count:  # the call returns early now and then, so that signals are seen
            done = run(context, *planned, inside.ctypes.data, len(inside), at, count, *state)
            if done < 0:  # a job is outside of its array, of which the steps in Python say more
                status[at:] = NOT_RUN
                break
            at = done
        return status, counts

    def in_memory(self, numbers: Sequence[int], data: Sequence[memoryview]) -> JobTable:
        """Return the table of some jobs whose bytes have arrived."""
        jobs, held = np.take(self.jobs, numbers, axis=1), [np.frombuffer(part, np.uint8) for part in data]
        if np.any(jobs[Field.SIZE] > list(map(len, held))):
            raise AssertionError("a job has fewer bytes than it reads")
        jobs[Field.FILE] = IN_MEMORY
        jobs[Field.OFFSET] = [array.ctypes.data for array in held]
        return replace(self, jobs=jobs, chunks=self.chunks[:, numbers], keeps=[*self.keeps, *held])

    def origin_of(self, job: int) -> tuple[Origin, int]:
        """Return the origin of a job, and the number of its chunk there."""
        origin, number = self.chunks[:, job].tolist()
        return self.origins[origin], number

    @classmethod
    def join(cls, tables: Sequence[JobTable]) -> JobTable:
        """Return the jobs of several tables as one."""
        if len(tables) == 1:
            return tables[0]
        jobs = np.concatenate([table.jobs for table in tables], axis=1)
        pieces = np.concatenate([table.pieces for table in tables], axis=1)
        chunks = np.concatenate([table.chunks for table in tables], axis=1)
        boxes = [table.boxes for table in tables if len(table.boxes)]
        first = piece = box = origin = 0
        for table in tables:
            stop, next_piece = first + len(table), piece + table.pieces.shape[1]
            if piece:
                jobs[Field.BEGIN :, first:stop] += piece
            if box:
                pieces[Piece.BOX, piece:next_piece] += box * (table.pieces[Piece.BOX] != PLAIN)
            chunks[0, first:stop] += origin
            first, piece, box, origin = stop, next_piece, box + len(table.boxes), origin + len(table.origins)
        return cls(
            jobs,
            pieces,
            np.concatenate(boxes) if boxes else NO_BOXES,
            chunks,
            [origin for table in tables for origin in table.origins],
            [array for table in tables for array in table.keeps],
            tuple(step for table in tables for step in table.then),
        )

    @classmethod
    def shared(cls, tables: Sequence[JobTable]) -> JobTable:
        """Return the jobs of several tables as one, where jobs with the same bytes are one job with the pieces of each.

        All are of one file, and none has a destination of its own.
        """
        whole = cls.join(tables)
        jobs = whole.jobs
        order = np.lexsort((jobs[Field.SIZE], jobs[Field.OFFSET]))
        new = np.ones(len(order), bool)
        new[1:] = np.any(np.diff(jobs[Field.OFFSET : Field.SIZE + 1, order]) != 0, axis=0)
        first = order[new]
        counts = (jobs[Field.END] - jobs[Field.BEGIN])[order]
        begins = jobs[Field.BEGIN, order]
        ends = np.cumsum(counts)
        # The loop needs arrays in C order, which indexing does not return.
        pieces = whole.pieces.take(np.arange(ends[-1]) + np.repeat(begins - (ends - counts), counts), axis=1)
        once = jobs.take(first, axis=1)
        once[Field.END] = ends[np.flatnonzero(np.append(new[1:], True))]
        once[Field.BEGIN] = np.concatenate([[0], once[Field.END, :-1]])
        return replace(whole, jobs=once, pieces=pieces, chunks=whole.chunks.take(first, axis=1))
