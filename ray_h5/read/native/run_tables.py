"""Runs tables of jobs by the compiled loop; what it does not run, by the same steps in Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ray_h5.read.native.job_table import HINTED, PIPELINES, JobTable
from ray_h5.read.native.library import compiled_loop
from ray_h5.read.native.steps_in_python import run_in_python

DONE, NOT_RUN = 0, 3
"""The status of a job; loop.c has the others."""

COLD_ON, HINTS_OFF = 1, 2
"""Of `new_times`: whether bytes come from a disk or a server, so that hints help; whether none are given."""


def new_times() -> np.ndarray:
    """Return how often reads of some files waited: nothing is known yet. See `count_cold` in loop.c."""
    return np.zeros(3, np.int64)


def run_table(table: JobTable, times: np.ndarray) -> np.ndarray:
    """Run the jobs of a table; return once all are done.

    Parameters
    ----------
    table : JobTable
        The jobs.
    times : numpy.ndarray
        How often reads of these files waited, from `new_times`. Threads may share it.

    Returns
    -------
    numpy.ndarray
        int64: requests, bytes read, chunks decoded, hints; and up to which job hints were given.

    Raises
    ------
    CorruptChunkError, TruncatedFileError, TransientIOError
        As reads of a chunk in Python raise them.
    StaleIndexError
        If a job would read or write outside of the arrays of the table.
    """
    status, counts = run_compiled(table, times)
    if status.any():  # not done: what is outside of its array, what the loop does not decode, and what is damaged
        for begin, end in _ranges(status != DONE):
            run_in_python(table, begin, end, counts)
    return counts


def run_compiled(table: JobTable, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run the jobs of a table by the compiled loop alone: the status of each, 0 if it was run, and what it counts."""
    jobs, pieces, boxes, pipelines = table.jobs, table.pieces, table.boxes, PIPELINES.value.rows
    count, loop = len(table), compiled_loop()
    status, counts = np.full(count, NOT_RUN, np.int8), np.zeros(HINTED + 1, np.int64)
    if loop is None:
        return status, counts
    inside = np.array([(array.ctypes.data, array.nbytes) for array in table.keeps], np.int64)
    tables = (
        jobs.ctypes.data,
        jobs.shape[1],
        pieces.ctypes.data if pieces.size else 0,
        pieces.shape[1],
        pipelines.ctypes.data,
        boxes.ctypes.data if boxes.size else 0,
        inside.ctypes.data,
        len(inside),
    )
    state = status.ctypes.data, counts.ctypes.data, times.ctypes.data
    run, context, at = loop.library.ray_h5_run, loop.context, 0
    while at < count:  # the call returns early now and then, so that signals are seen
        done = run(context, *tables, at, count, *state)
        if done < 0:  # a job is outside of its array, of which the steps in Python say more
            status[at:] = NOT_RUN
            break
        at = done
    return status, counts


def _ranges(where: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the ranges of consecutive positions that are true."""
    edges = np.flatnonzero(np.diff(where, prepend=False, append=False)).tolist()
    return zip(edges[::2], edges[1::2], strict=True)
