"""Reads of many files in their order: each is planned before it runs where hints need its byte ranges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ray_h5.hdf5.parts import lost_in
from ray_h5.hdf5.reading.ahead import Extents, ReadAhead, ReadTimes
from ray_h5.hdf5.reading.casting import LostValue
from ray_h5.hdf5.reading.jobs import Job, ReadStats
from ray_h5.hdf5.remote.joint_reads import JobFailure, cost_of, run_remote_jobs
from ray_h5.hdf5.remote.passes import PlannedRead, plan_read, read_through_h5py
from ray_h5.storage.fetching import each_waiting

if TYPE_CHECKING:
    from ray_h5.hdf5.open_files import OpenFile
    from ray_h5.hdf5.parts import Part
    from ray_h5.hdf5.reader import RowReader
    from ray_h5.hdf5.reading.arguments import Rows


JOINT_FILES = 256
"""Remote files that are read together at most: their chunk indexes are in memory."""


class ReadsRows(Protocol):
    """What reads rows of one file."""

    @property
    def base(self) -> RowReader:
        """The reader of the file."""

    @property
    def stats(self) -> ReadStats:
        """What reads have cost."""

    def read_into(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        planned: FileRead | None = None,
    ) -> None:
        """Read rows into arrays."""

    def plan(self, read: FileRead) -> Extents:
        """Plan the jobs of a read that comes later."""


class FileRead:
    """A read of rows of one file into arrays.

    Parameters
    ----------
    reader : RowReader, or what reads rows as it does
        The file.
    out, rows, places
        The arguments of `RowReader.read_into`.
    parts : sequence of Part
        What is read for each column, checked.
    finish : callable, optional
        What is left to do once all parts are read.

    Attributes
    ----------
    ahead : ReadAhead, optional
        Knows what is read next, also from other files. By default it knows this read alone.
    """

    __slots__ = ("_file", "_jobs", "ahead", "finish", "out", "parts", "places", "reader", "rows")

    def __init__(
        self,
        reader: ReadsRows,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None,
        parts: Sequence[Part],
        finish: Callable[[], None] | None = None,
    ) -> None:
        self.reader, self.out, self.rows, self.places = reader, out, rows, places
        self.parts, self.finish = parts, finish
        self.ahead: ReadAhead | None = None
        self._file: OpenFile | None = None
        self._jobs: dict[int, list[Job]] = {}

    def run(self, ahead: ReadAhead) -> None:
        """Fill the arrays."""
        self.ahead = ahead
        self.reader.read_into(self.out, self.rows, self.places, self)

    def jobs_of(self, file: OpenFile) -> dict[int, list[Job]]:
        """Return the jobs that are planned, by the number of the part; none if the file was opened again since."""
        if self._file is not file:
            self._file, self._jobs = file, {}
        return self._jobs


@dataclass(slots=True)
class Later:
    """Reads that come after some others: what opens each file and returns its read, for hints alone.

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
    times: ReadTimes | None = None,
    *,
    remote: Sequence[bool] = (),
    given: int = 0,
    later: Later | None = None,
) -> ReadStats:
    """Run reads of many files. Those of remote files run together.

    Others run one after the other. Hints about the next one begin before one ends.

    Parameters
    ----------
    reads : sequence of callable
        What opens a file and returns the read. It is called when it is needed: few files are open at a time.
    times : ReadTimes, optional
        The times of earlier reads of these files.
    remote : sequence of bool
        For each read, whether its file is remote; by default none is.
    given : int
        How many of the first byte ranges the storage was told of already.
    later : Later, optional
        What is read next. The last hints are about it.

    Returns
    -------
    ReadStats
        What all reads of these readers have cost.
    """
    stats = ReadStats()
    if any(remote):
        _run_remote([read for read, is_remote in zip(reads, remote, strict=True) if is_remote], stats)
        reads = [read for read, is_remote in zip(reads, remote, strict=True) if not is_remote]
    opened: dict[int, FileRead] = {}

    def read_of(number: int) -> FileRead:
        if number not in opened:
            opened[number] = reads[number]()
        return opened[number]

    mine = [partial(_extents, partial(read_of, number)) for number in range(len(reads))]
    coming = itertools.chain(mine, (partial(_extents, each) for each in (later.reads if later else ())))
    ahead = ReadAhead(times, coming, given)
    for number in range(len(reads)):
        read_of(number).run(ahead)
        stats.add(opened.pop(number).reader.stats)
    if later is not None:
        later.given = ahead.given_later
    return stats


def _run_remote(reads: Sequence[Callable[[], FileRead]], stats: ReadStats) -> None:
    """Run reads of remote files, many together: one file after the other, each would wait for its first byte."""
    for first in range(0, len(reads), JOINT_FILES):
        # What is not known of a file is asked for when it is opened.
        opened = each_waiting(lambda read: read(), reads[first : first + JOINT_FILES])
        stats.add(run_joint(opened, opened[0].reader.base.threads))


def run_joint(reads: Sequence[FileRead], threads: int) -> ReadStats:
    """Run reads of remote files: what they need is fetched together, and each job runs when its bytes have arrived."""
    try:
        files = [read.reader.base.opened for read in reads]
        each_waiting(lambda file: file.check_unchanged(()), files)
        planned = _planned(files, reads)
        stats = run_remote_jobs([job for each in planned for job in each.jobs], threads)
        through_h5py = [(number, *each) for number, of in enumerate(planned) for each in of.through_h5py]
        for found in each_waiting(lambda each: _rest(*each), through_h5py):
            stats.add(found)
        files += dict.fromkeys(file for each in planned for file in each.others)
        each_waiting(lambda file: file.check_unchanged(()), files)
        for number, each in enumerate(planned):
            _finish(each, number)
    except JobFailure as exc:
        failed, error = reads[exc.read], exc.error
        if isinstance(error, LostValue):
            error = lost_in(failed.reader.base.path, error, failed.parts)
        raise error from None
    for read in reads:
        if read.finish is not None:
            read.finish()
    return stats


def joint_cost(reads: Sequence[FileRead]) -> ReadStats:
    """Return what `run_joint` would ask a store for, without the columns that h5py reads."""
    files = [read.reader.base.opened for read in reads]
    return cost_of([job for each in _planned(files, reads) for job in each.jobs])


def _planned(files: Sequence[OpenFile], reads: Sequence[FileRead]) -> list[PlannedRead]:
    return each_waiting(lambda number: plan_read(files[number], reads[number].parts, number), range(len(reads)))


def _rest(number: int, file: OpenFile, part: Part) -> ReadStats:
    try:
        return read_through_h5py(file, part)
    except LostValue as exc:
        raise JobFailure(number, exc) from exc


def _finish(planned: PlannedRead, number: int) -> None:
    try:
        planned.finish()
    except LostValue as exc:
        raise JobFailure(number, exc) from exc


def _extents(read: Callable[[], FileRead]) -> Extents:
    planned = read()
    return planned.reader.plan(planned)
