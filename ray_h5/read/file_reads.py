"""Reads of many files: planned and run together; and repeated, if an error of a disk may pass."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ray_h5.errors import RayH5Error, TransientIOError
from ray_h5.hdf5.files.opening import is_transient, lacks_descriptors
from ray_h5.read.casting import LostValue
from ray_h5.read.coalesced_reads import cost_of, run_fetched
from ray_h5.read.file_caches import max_open
from ray_h5.read.jobs import Asking, Job, ReadStats, Worker
from ray_h5.read.native.job_table import JobTable, new_times
from ray_h5.read.native.library import threads_of_loop
from ray_h5.read.open_file import forget_all
from ray_h5.read.read_parts import FileRead, lost_in
from ray_h5.storage.request_pool import each_waiting

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_WAITS_S = (0.1, 0.5, 2.0)
"""Waits before the second, third and fourth try after an error that may pass."""

JOINT_FILES = 256
"""Remote files that are read together at most: their chunk indexes are in memory."""


def run_reads(reads: Sequence[Callable[[], FileRead]], times: np.ndarray | None = None) -> ReadStats:
    """Run reads of many files together: what they need is planned once, and then read in one go.

    Parameters
    ----------
    reads : sequence of callable
        What opens a file and returns the read. It is called when it is needed: few files are open at a time.
    times : numpy.ndarray, optional
        How often earlier reads of these files waited; see `new_times`.

    Returns
    -------
    ReadStats
        What the reads have cost.
    """
    total = ReadStats()
    times = new_times() if times is None else times
    for together in opened_together(reads):
        try:
            stats = run_together(together, times) if len(together) > 1 else None
        except (OSError, RayH5Error):
            if together[0].reader.is_fetched:
                raise
            stats = None  # a reader repeats what may pass
        for read in together:
            if stats is None:
                before = replace(read.reader.stats)
                read.reader.run(read)
                total.add(read.reader.stats.since(before))
            elif read.finish is not None:
                read.finish()
        if stats is not None:
            total.add(stats)
    return total


def opened_together(reads: Sequence[Callable[[], FileRead]]) -> Iterator[list[FileRead]]:
    """Yield the reads that are planned and run together.

    Those of files on disks are as many as may have a descriptor. One file in a store after the other, each would wait
    for its first byte.
    """
    count = max_open()
    fetched: list[FileRead] = []
    for first in range(0, len(reads), count):
        is_last = first + count >= len(reads)
        opened = [reads[first]()]
        # What is not known of a file in a store is asked for when it is opened.
        each = each_waiting if opened[0].reader.is_fetched else map
        opened += each(lambda read: read(), reads[first + 1 : first + count])
        near = [read for read in opened if not read.reader.is_fetched]
        fetched += [read for read in opened if read.reader.is_fetched]
        if fetched and (is_last or len(fetched) > JOINT_FILES - count):
            yield fetched
            fetched = []
        if near:
            yield near


def run_together(reads: Sequence[FileRead], times: np.ndarray) -> ReadStats:
    """Run reads of open files, all on disks or all in stores: their ranges are planned, and each job runs once."""
    each = each_waiting if reads[0].reader.is_fetched else map
    try:
        jobs = [job for jobs in each(lambda read: read.reader.jobs_of(read), reads) for job in jobs]
        stats = run_all(jobs, reads[0].reader.threads, Worker(times, held=reads[0].held))
        for read in reads:
            while read.finish_steps:
                read.finish_steps.pop()()
    except LostValue as exc:
        raise lost_in([(read.reader.path, read.parts) for read in reads], exc) from None
    except (RayH5Error, OSError):
        # Chunks of a file that was rewritten may look damaged.
        list(each(lambda read: read.reader.opened.check_unchanged(read.sources), reads))
        raise
    # If a file was rewritten meanwhile, chunks at the old offsets may decode to full length.
    list(each(lambda read: read.reader.opened.check_unchanged(read.sources), reads))
    return stats


def run_all(jobs: Sequence[Job], threads: int, worker: Worker | None = None) -> ReadStats:
    """Run all jobs of a read, and return what they cost.

    A range of a file on a disk is read when its job runs. Ranges in a store are fetched, many at once, and a job runs
    when its own have arrived. The compiled loop decodes in up to `threads` threads.
    """
    worker = Worker() if worker is None else worker
    tables, fetched, asking, others = list[JobTable](), list[JobTable](), list[Asking](), list[Job]()
    for job in jobs:
        if isinstance(job, JobTable):
            (fetched if job.origins[0].byte_source.is_fetched else tables).append(job)
        elif isinstance(job, Asking):
            asking.append(job)
        else:
            others.append(job)
    del jobs  # each holds memory until it is done
    with threads_of_loop(threads) if threads > 1 else nullcontext():
        if tables:
            worker.run(tables[0] if len(tables) == 1 else JobTable.join(tables))
        for job in others:
            worker.run(job)
        if fetched:
            run_fetched(fetched, worker)
        if asking:
            each_waiting(lambda job: job(worker), asking)
    return worker.stats


def request_cost_of(reads: Sequence[Callable[[], FileRead]]) -> ReadStats:
    """Return what `run_reads` would ask a store for."""
    total = ReadStats()
    for together in opened_together(reads):
        jobs = each_waiting(lambda read: read.reader.jobs_of(read), together)
        total.add(cost_of([job for job in itertools.chain.from_iterable(jobs) if isinstance(job, JobTable)]))
    return total


def repeated(
    failed: OSError, action: Callable[[], Result], path: str, reopen: Callable[[], object], *, swmr: bool
) -> Result:
    """Return the result of `action`, which has failed: the file is opened again, and it is repeated.

    Parameters
    ----------
    failed : OSError
        The error of the first try. An error that does not pass is raised again.
    action : callable
        Reads the file.
    path : str
        The file, for messages.
    reopen : callable
        Makes the next try open the file again.
    swmr : bool
        Whether a writer may change the file meanwhile.

    Raises
    ------
    TransientIOError
        If it fails each time.
    """
    waits, has_forgotten = iter(_WAITS_S), False
    while True:
        if lacks_descriptors(failed) and not has_forgotten:
            # The files in the cache hold descriptors, and are only kept for later reads.
            forget_all()
            waits, has_forgotten = iter(_WAITS_S), True
        elif is_transient(failed, swmr) and (wait := next(waits, None)) is not None:
            logger.warning("%s: %s; opening it again in %.1f s", path, failed, wait)
            reopen()
            time.sleep(wait)
        else:
            break
        try:
            return action()
        except OSError as exc:
            failed = exc
    if not is_transient(failed):
        raise failed
    raise TransientIOError(
        f"{path}: still failing after {len(_WAITS_S) + 1} tries: {failed}. Check its file system; the read can be "
        "repeated."
    ) from failed
