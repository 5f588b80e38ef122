"""Bench `groups`: a file with 10^5 datasets that are rows: finding them, and batches of 64 in random order.

Batches: the file is open, and ours knows its rows. `pread` reads the same bytes into one buffer, by a call for each
dataset. `bare compiled loop` reads them by one call of our loop a batch, and knows where they are: a floor.
`h5py by name` opens each dataset of one open file, reads it and stacks a batch. Each turn draws other rows.

Index: a process of its own finds the rows, with no attributes and with ten, and then again from `index_dir`, after it
did so for a file of two datasets: modules that are imported when they are used first are not in the seconds. Those of
`whole process` are all, from the start of the interpreter on. Seconds are those of the CPU; memory is the peak, with
the interpreter and all libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ray_h5.index.file_options import FileOptions
from ray_h5.read.kernel.run_tables import new_times
from ray_h5.rows.groups_and_grids import Groups
from ray_h5.storage.local import LocalFile
from tests.bench.baselines.group_reads import by_name, compiled_stacked, pread_stacked
from tests.bench.baselines.h5py_reads import Extent
from tests.bench.group_workloads import ATTRIBUTES, TRACE_PATTERN, GroupFile, make_traces
from tests.bench.measure import OURS, Contest, Result, run_turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ray_h5.rows.row_view import FileReader
    from tests.bench import BenchOptions

__all__ = ["bench_groups"]

_BATCH = 64
_BATCHES = 32
_COUNT = 100_000
_LARGE, _SMALL = (3, 6000), (256,)
_LARGE_COUNT = 10_000
_FLOOR = "bare compiled loop"
_INDEX_TURNS = 3
_MOST_SECONDS = {"no attributes": 20.0, "10 attributes": 60.0, "again, from index_dir": 2.0}
_MOST_MEGABYTES = 300.0
_INDEXING = """
import json, sys, time
from tests.bench.cases.groups import index_file, peak_bytes
first, given = json.loads(sys.argv[1])
index_file(*first)
start = time.process_time()
index_file(*given)
end = time.process_time()
print(json.dumps([end - start, end, peak_bytes()]))
"""


def bench_groups(options: BenchOptions) -> list[Result]:
    """Measure batches of datasets of 72 KB and of 1 KB, and what it takes to find 10^5 of them.

    Raises
    ------
    RuntimeError
        If our bytes differ from h5py's.
    """
    count = max(2 * _BATCH, round(_COUNT * options.size))
    large_count = max(2 * _BATCH, round(_LARGE_COUNT * options.size))
    large = make_traces(options.folder, large_count, _LARGE, attributes=False)
    small = make_traces(options.folder, count, _SMALL, attributes=False)
    labelled = make_traces(options.folder, count, _SMALL, attributes=True)
    few, few_labelled = (make_traces(options.folder, 2, _SMALL, attributes=each) for each in (False, True))
    return [
        *_read_batches(large, "batches of 72 KB", {"pread": 0.8, _FLOOR: None, "h5py by name": 8}, options.turns),
        *_read_batches(small, "batches of 1 KB", {"pread": None, _FLOOR: None, "h5py by name": 30}, options.turns),
        *_index(small, few, (), "no attributes"),
        *_index(labelled, few_labelled, ATTRIBUTES, "10 attributes"),
    ]


def _read_batches(made: GroupFile, case: str, goals: dict[str, float | None], turns: int) -> list[Result]:
    index = FileOptions.of(made.path, rows=Groups(TRACE_PATTERN)).index(["value"])
    names = index.tables[0].groups.names  # type: ignore[union-attr]
    draws = _draws(made.groups)
    descriptor = os.open(made.path, os.O_RDONLY)
    source, times = LocalFile.open(made.path), new_times()
    try:
        with index.scope.open(made.path, table=index.tables[0]) as reader, h5py.File(made.path) as file:
            extents = [Extent(file[name].id.get_offset(), file[name].id.get_storage_size()) for name in names]
            _verify(reader, file, names, next(draws)[0])
            offsets, size = np.array([each.offset for each in extents], np.int64), extents[0].size
            nbytes = _BATCH * size
            # The rows of each turn, and of the warm-up before them; every contestant takes them in this order.
            turn = [next(draws) for _ in range(turns + 1)]
            # Ours gets arrays, as the loaders make them; h5py and pread take Python's integers.
            arrays = [[np.array(rows) for rows in batches] for batches in turn]
            first, fourth, second, third = iter(arrays), iter(arrays), iter(turn), iter(turn)
            contestants = {
                OURS: lambda: [len(reader.read(["value"], rows)) for rows in next(first)],
                "pread": lambda: [
                    # Each batch is memory of its own, as those of the other contestants are.
                    pread_stacked(descriptor, [extents[i] for i in rows], np.empty(nbytes, np.uint8))  # type: ignore[func-returns-value]
                    for rows in next(second)
                ],
                _FLOOR: lambda: [len(compiled_stacked(source, offsets, size, rows, times)) for rows in next(fourth)],
                "h5py by name": lambda: [len(by_name(file, [names[i] for i in rows])) for rows in next(third)],
            }
            seconds = run_turns(contestants, turns)
    finally:
        os.close(descriptor)
    contest = Contest("groups", case, seconds)
    amount = _BATCHES * _BATCH
    return [contest.against(each, amount=amount, unit="rows/s", goal=goal) for each, goal in goals.items()]


def _draws(groups: int) -> Iterator[list[list[int]]]:
    """Yield batches of rows, drawn again each time."""
    rng = np.random.default_rng(groups)
    while True:
        yield [rng.choice(groups, _BATCH, replace=False).tolist() for _ in range(_BATCHES)]


def _verify(reader: FileReader, file: h5py.File, names: Sequence[str], rows: list[int]) -> None:
    if reader.read(["value"], rows)["value"].tobytes() != by_name(file, [names[i] for i in rows]).tobytes():
        raise RuntimeError(f"{file.filename}: the bytes of a batch differ from those that h5py reads")


def _index(made: GroupFile, few: GroupFile, attributes: Sequence[str], case: str) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        cold = [_indexed([few, made], attributes, None) for _ in range(_INDEX_TURNS)]
        _indexed([few, made], attributes, folder)
        again = [_indexed([few, made], attributes, folder) for _ in range(_INDEX_TURNS)]
    label = f"index of {made.groups} datasets"
    results: list[Result] = []
    for found, what, goal in (
        (cold, case, _MOST_SECONDS[case]),
        (again, f"{case}, from index_dir", _MOST_SECONDS["again, from index_dir"]),
    ):
        seconds, whole, peaks = ([each[i] for each in found] for i in range(3))
        results.append(Contest("groups", f"{label}, {what}", {OURS: seconds}).within(goal))
        results.append(Contest("groups", f"{label}, {what}, whole process", {OURS: whole}).within(goal))
        peak = max(peaks) / 1e6
        spread = (min(peaks) / 1e6, peak)
        ok = peak <= _MOST_MEGABYTES
        results.append(Result("groups", f"{label}, {what}, peak", "-", "MB", peak, None, None, spread, 300, ok))
    return results


def _indexed(
    files: Sequence[GroupFile], attributes: Sequence[str], index_dir: str | None
) -> tuple[float, float, float]:
    """Return the CPU seconds of a process for the rows of the last file, and in all, and the peak of its memory."""
    given = json.dumps([[each.path, list(attributes), index_dir] for each in files])
    command = [sys.executable, "-c", _INDEXING, given]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, whole, peak = json.loads(done.stdout)
    return seconds, whole, peak


def index_file(path: str, attributes: Sequence[str], index_dir: str | None) -> None:
    """Find the rows of a file of traces."""
    FileOptions.of(path, rows=Groups(TRACE_PATTERN, attrs=attributes), index_dir=index_dir).index()


def peak_bytes() -> int:
    """Return the most memory that this process had since it was started."""
    # Not `ru_maxrss`: that of a new process begins with the memory of the process that started it.
    with open("/proc/self/status") as status:
        (line,) = (each for each in status if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
