"""Bench `cold`: the first epoch of files that are not in memory, on workload `signals`.

Before each turn the kernel lets the pages of the files go (``POSIX_FADV_DONTNEED``, which needs no rights), outside of
the timed part. A turn makes its loader or opens its files, and reads all rows of three columns once: it is the first
epoch of a program that has imported its libraries.

`preads` and `preads, hints 64 ahead` are bare loops over the stored chunks, one call each, that decode nothing. They
know the chunks before the timing. `and decode` decodes each chunk into one buffer with the bare decoder: a floor for
what delivers values from one thread. In the `warm` cases the files are in the page cache, and hints could only cost
time: ours is compared with itself without hints. Where the system has no `posix_fadvise`, there is no result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

import h5py
import numpy as np

from ray_h5.errors import OptionError
from ray_h5.loading import row_source
from ray_h5.read.kernel.run_tables import HINTS_OFF, new_times
from ray_h5.read.reader import RowReader
from ray_h5.torch_data import loader
from ray_h5.torch_data.h5_data_loader import H5DataLoader
from tests.bench.baselines.h5py_reads import Decoder, Extent, chunk_decoders, scratch_buffer, stored_extents
from tests.bench.baselines.torch_loaders import plain_loader
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.verify import count_rows, verify_rows
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench import BenchOptions

__all__ = ["bench_cold"]

_COLUMNS = ("fhr_st", "target", "weight")
_BATCH_SIZE = 64
_PLAIN, _PREADS, _HINTED, _UNHINTED = "plain_loader", "preads", "preads, hints 64 ahead", "without hints"
_DECODED = f"{_HINTED}, and decode"
_AHEAD = 64


def bench_cold(options: BenchOptions) -> list[Result]:
    """Measure shuffled and sequential epochs, cold and warm.

    Raises
    ------
    OptionError
        If this system cannot let pages go.
    RuntimeError
        If an epoch does not deliver each row once, with the bytes that h5py reads.
    """
    if not hasattr(os, "posix_fadvise"):
        raise OptionError("bench cold needs os.posix_fadvise, which this system does not have; Linux has it")
    workload = make_workload("signals", options.folder, options.size)
    verify_rows(workload.paths, _COLUMNS, _loader(workload, shuffle=True, threads=2))
    results: list[Result] = []
    for threads in (2, 1):
        results += _shuffled(workload, threads, options.turns)
    for shuffle, is_cold in ((False, True), (True, False), (False, False)):
        results.append(_hints_cost(workload, options.turns, shuffle=shuffle, is_cold=is_cold))
    return results


def _shuffled(workload: Workload, threads: int, turns: int) -> list[Result]:
    reads = _Reads.of(workload)
    contestants: dict[str, Callable[[], object]] = {
        OURS: partial(_epoch, workload, shuffle=True, threads=threads),
        _PLAIN: partial(_plain_epoch, workload),
        _PREADS: partial(reads.run, 0),
        _HINTED: partial(reads.run, _AHEAD),
        _DECODED: partial(reads.run, _AHEAD, decodes=True),
    }
    seconds = run_turns(contestants, turns, before=partial(let_go, workload.paths))
    contest = Contest("cold", f"shuffled epoch, {_named(threads)}", seconds)
    goals = {_PLAIN: 3.0, _PREADS: None, _HINTED: 0.8, _DECODED: None}
    return [contest.against(each, amount=workload.rows, unit="rows/s", goal=goal) for each, goal in goals.items()]


def _hints_cost(workload: Workload, turns: int, *, shuffle: bool, is_cold: bool) -> Result:
    epoch = partial(_epoch, workload, shuffle=shuffle, threads=1)

    def unhinted() -> None:
        with _no_hints():
            epoch()

    before = partial(let_go, workload.paths) if is_cold else None
    seconds = run_turns({OURS: epoch, _UNHINTED: unhinted}, max(turns, 11), before=before)
    case = f"{'shuffled' if shuffle else 'sequential'} epoch, {'cold' if is_cold else 'warm'}"
    return Contest("cold", case, seconds).against(_UNHINTED, amount=workload.rows, unit="rows/s", goal=0.98)


def let_go(paths: tuple[str, ...]) -> None:
    """Let the pages of files go from the page cache; they must not be written to at the same time."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not written yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _named(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _loader(workload: Workload, *, shuffle: bool, threads: int) -> H5DataLoader:
    paths = list(workload.paths)
    return loader(paths, _BATCH_SIZE, columns=list(_COLUMNS), shuffle=shuffle, threads=threads, kept_bytes=0)


def _epoch(workload: Workload, *, shuffle: bool, threads: int) -> None:
    count_rows(_loader(workload, shuffle=shuffle, threads=threads), workload.rows)


def _plain_epoch(workload: Workload) -> None:
    batches = plain_loader(workload.paths, _COLUMNS, batch_size=_BATCH_SIZE, num_workers=0, shuffle=True)
    count_rows(batches, workload.rows)


@contextmanager
def _no_hints() -> Iterator[None]:
    """Make loaders that give no hints."""
    times = new_times()
    times[HINTS_OFF] = 1
    with mock.patch.object(row_source, "new_times", times.copy):
        yield


@dataclass(frozen=True, slots=True)
class _Reads:
    """The stored chunks of all rows in a random order of rows: file, extent and column of each."""

    paths: tuple[str, ...]
    extents: list[tuple[int, Extent, str]]
    decoders: dict[str, Decoder]

    @classmethod
    def of(cls, workload: Workload) -> _Reads:
        chunks = []
        for number, path in enumerate(workload.paths):
            with h5py.File(path, "r") as file:
                found = stored_extents(file, _COLUMNS)
            rows = zip(*found.values(), strict=True)
            chunks += [[(number, *each) for each in zip(row, found, strict=True)] for row in rows]
        order = np.random.default_rng(0).permutation(len(chunks)).tolist()
        decoders = chunk_decoders(RowReader(workload.paths[0]), _COLUMNS)
        return cls(workload.paths, [each for row in order for each in chunks[row]], decoders)

    def run(self, ahead: int, *, decodes: bool = False) -> None:
        """Read all; hint each `ahead` reads before, if that is not 0."""
        descriptors = [os.open(path, os.O_RDONLY) for path in self.paths]
        stored = np.empty(max(extent.size for _, extent, _ in self.extents), np.uint8)
        buffer = stored.data
        reads = [(descriptors[number], offset, size) for number, (offset, size, _), _ in self.extents]
        try:
            for hint in reads[:ahead]:
                os.posix_fadvise(*hint, os.POSIX_FADV_WILLNEED)
            for i, (descriptor, offset, size) in enumerate(reads):
                if ahead and i + ahead < len(reads):
                    os.posix_fadvise(*reads[i + ahead], os.POSIX_FADV_WILLNEED)
                os.preadv(descriptor, [buffer[:size]], offset)
                if decodes:
                    _, (_, _, mask), name = self.extents[i]
                    decoder, _, decoded, between = self.decoders[name]
                    if decoder is not None:
                        decoder.decode(stored[:size], mask, decoded, partial(scratch_buffer, between))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
