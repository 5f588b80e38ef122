"""Reads of many files: planned and run together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ray_h5.errors import RayH5Error
from ray_h5.read.casting import LostValue
from ray_h5.read.jobs import Asking, Job, ReadStats, Staged, TableJob, Unplanned, run_jobs
from ray_h5.read.kernel.run_tables import COLD_ON, new_times
from ray_h5.read.open_file import max_open
from ray_h5.read.read_parts import FileRead, lost_in

Item = TypeVar("Item")
Result = TypeVar("Result")

JOINT_FILES = 256
"""Remote files that are read together at most: their chunk indexes are in memory."""


@dataclass(slots=True)
class Later:
    """Reads that come after some others, for hints alone.

    Attributes
    ----------
    reads : sequence of callable
        As in `run_reads`.
    given : int
        How many of their byte ranges, from the first on, the storage was told of.
    """

    reads: Sequence[Callable[[], FileRead]] = ()
    given: int = 0


def run_reads(
    reads: Sequence[Callable[[], FileRead]],
    times: np.ndarray | None = None,
    *,
    given: int = 0,
    later: Later | None = None,
) -> ReadStats:
    """Run reads of many files together: what they need is planned once, and then read in one go.

    Parameters
    ----------
    reads : sequence of callable
        What opens a file and returns the read. It is called when it is needed: few files are open at a time.
    times : numpy.ndarray, optional
        How often earlier reads of these files waited; see `new_times`.
    given : int
        How many of the first byte ranges the storage was told of already.
    later : Later, optional
        What is read next. If reads wait, the last hints are about it.

    Returns
    -------
    ReadStats
        What the reads have cost.
    """
    stats = ReadStats()
    times = new_times() if times is None else times
    for together, is_last in opened_together(reads):
        stats.add(_run_batch(together, times, given, later if is_last else None))
        given = 0
    return stats


def opened_together(reads: Sequence[Callable[[], FileRead]]) -> Iterator[tuple[list[FileRead], bool]]:
    """Yield the reads that are planned and run together, and whether they are the last ones.

    Those of files on disks are as many as may have a descriptor. One file in a store after the other, each would wait
    for its first byte.
    """
    count = max_open()
    fetched: list[FileRead] = []
    for first in range(0, len(reads), count):
        is_last = first + count >= len(reads)
        opened = [reads[first]()]
        # What is not known of a file in a store is asked for when it is opened.
        opened += _each(_is_fetched(opened[0]), lambda read: read(), reads[first + 1 : first + count])
        near = [read for read in opened if not _is_fetched(read)]
        fetched += [read for read in opened if _is_fetched(read)]
        if fetched and (is_last or len(fetched) > JOINT_FILES - count):
            yield fetched, is_last and not near
            fetched = []
        if near:
            yield near, is_last


def _is_fetched(read: FileRead) -> bool:
    return read.reader.base.is_fetched


def _each(may_wait: bool, action: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of an action for each item; side by side if they wait for a store."""
    if not may_wait:
        return [action(item) for item in items]
    from ray_h5.storage.fetching import each_waiting

    return each_waiting(action, items)


def _run_batch(reads: Sequence[FileRead], times: np.ndarray, given: int, later: Later | None) -> ReadStats:
    """Run reads as one. After an error on a disk, run them one by one: a reader repeats what may pass."""
    if len(reads) == 1 and later is None:
        return _one_by_one(reads)
    try:
        stats, hinted = run_together(reads, times, given, later)
    except (LostValue, OSError, RayH5Error):
        if _is_fetched(reads[0]):
            raise
        return _one_by_one(reads)
    if later is not None:
        later.given = hinted
    for read in reads:
        if read.finish is not None:
            read.finish()
    return stats


def run_together(
    reads: Sequence[FileRead], times: np.ndarray, given: int = 0, later: Later | None = None
) -> tuple[ReadStats, int]:
    """Run reads of open files, all on disks or all in stores: their ranges are planned, and each job runs once.

    Returns
    -------
    ReadStats
        What the reads have cost.
    int
        How many hints were given about what comes later.
    """
    may_wait = _is_fetched(reads[0])
    try:
        with contextlib.ExitStack() as libraries:
            jobs = jobs_of_reads(reads, libraries)
            ahead = _hinted_jobs(later, libraries) if later is not None and times[COLD_ON] else []
            stats, hinted = run_all(jobs, reads[0].reader.base.threads, times, given, ahead)
        for read in reads:
            read.settle()
    except LostValue as exc:
        raise lost_in([(read.reader.base.path, read.parts) for read in reads], exc) from None
    except (RayH5Error, OSError):
        # Chunks of a file that was rewritten may look damaged.
        _each(may_wait, lambda read: read.reader.base.check_unchanged(read), reads)
        raise
    # If a file was rewritten meanwhile, chunks at the old offsets may decode to full length.
    _each(may_wait, lambda read: read.reader.base.check_unchanged(read), reads)
    return stats, hinted


def run_all(
    jobs: Sequence[Job], threads: int, times: np.ndarray | None = None, given: int = 0, later: Sequence[Job] = ()
) -> tuple[ReadStats, int]:
    """Run all jobs of a read.

    A range of a file on a disk is read when its job runs. Ranges in a store are fetched, many at once, and a job runs
    when its own have arrived. Parameters and results are those of `run_jobs`.
    """
    fetched, asking, others = kinds_of(jobs)
    stats, hinted = run_jobs(others, threads, times, given=given, later=later)
    if fetched:
        from ray_h5.read.remote.joint_reads import run_fetched

        stats.add(run_fetched(fetched, threads))
    for cost in _each(bool(asking), lambda job: job.ask(), asking):
        stats.add(cost)
    return stats, hinted


def kinds_of(jobs: Sequence[Job]) -> tuple[list[TableJob | Staged | Unplanned], list[Asking], list[Job]]:
    """Return the jobs whose ranges are fetched, those that ask a store themselves, and the others."""
    fetched: list[TableJob | Staged | Unplanned] = []
    asking: list[Asking] = []
    others: list[Job] = []
    for job in jobs:
        if isinstance(job, (TableJob, Staged, Unplanned)) and job.byte_source.is_fetched:
            fetched.append(job)
        elif isinstance(job, Asking):
            asking.append(job)
        else:
            others.append(job)
    return fetched, asking, others


def jobs_of_reads(reads: Sequence[FileRead], libraries: contextlib.ExitStack) -> list[Job]:
    """Return the work of reads; jobs that need libhdf5 have files open until `libraries` is closed."""
    found = _each(_is_fetched(reads[0]), lambda read: read.reader.base.jobs_of(read, libraries), reads)
    return [job for jobs in found for job in jobs]


def _one_by_one(reads: Sequence[FileRead]) -> ReadStats:
    stats = ReadStats()
    for read in reads:
        before = replace(read.reader.stats)
        read.run()
        stats.add(read.reader.stats.since(before))
    return stats


def _hinted_jobs(later: Later, libraries: contextlib.ExitStack) -> list[Job]:
    """Return the jobs on disks of reads that come later; none of a file that cannot be opened now: no error yet."""
    jobs: list[Job] = []
    for make in later.reads[: max_open()]:
        with contextlib.suppress(RayH5Error, OSError):
            read = make()
            if not _is_fetched(read):
                jobs += read.reader.base.jobs_of(read, libraries)
    return jobs
