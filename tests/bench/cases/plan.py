"""Bench `plan`: time and memory of the driver for planning an epoch, and CPU for planning many files."""

from __future__ import annotations

import resource
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec
from ray_h5.index.lookup import Lookup
from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.file_table import FileTable
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.read_plan import ReadPlan, make_plan
from ray_h5.order.remainder import Remainder
from ray_h5.ray_data.tasks import read_tasks
from tests.bench.cases.plan_files import bench_plan_files
from tests.bench.measure import OURS, Contest, Result, run_turns

if TYPE_CHECKING:
    from tests.bench import BenchOptions

__all__ = ["bench_plan"]

_FILES = 100_000
MOST_SECONDS = 10.0
_MOST_BYTES = 2 << 30
COLUMNS = {
    "signal": ColumnSpec("signal", "number", np.dtype("f4"), (43, 300)),
    "label": ColumnSpec("label", "number", np.dtype("u1"), ()),
}


def bench_plan(options: BenchOptions) -> list[Result]:
    """Measure the index of many files; then an epoch's planning, in seconds and in memory of the driver."""
    results = bench_plan_files(options)
    cases = {
        "10^8 rows, shuffled rows": (10**8, 1, None),
        "10^8 rows, shuffled chunks": (10**8, 16, None),
        # Before the case that needs the most memory: the peak of a process never falls.
        "10^10 rows, shuffled chunks": (10**10, 16, None),
        "10^8 rows, half selected, shuffled chunks": (10**8, 16, 2),
    }
    for case, (full, chunk_rows, every) in cases.items():
        rows = round(full * options.size)
        index = synthetic_index(rows, chunk_rows)
        selection = None if every is None else np.arange(0, index.num_rows, every)
        plan = make_plan(index, list(COLUMNS.values()), selection, Shuffle(seed=0))
        first = _one_block(plan, 0)
        with_tasks = rows <= 10**9  # more rows need more tasks than one driver can start
        seconds = run_turns({OURS: partial(_plan_epoch, index, selection, with_tasks)}, options.turns)
        what = "plan and tasks of an epoch" if with_tasks else "plan of an epoch, without tasks"
        results.append(Contest("plan", f"{case}, {what}", seconds).within(MOST_SECONDS))
        results.append(memory(f"{case}, memory of the process"))
        results.append(Contest("plan", f"{case}, a block's rows", {OURS: [first, _one_block(plan, 1)]}).within(None))
    return results


def synthetic_index(rows: int, chunk_rows: int) -> RowIndex:
    """Return a row index of files that do not exist, with about `rows` rows in all."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, max(2, 2 * rows // _FILES), _FILES)
    files = FileTable(
        pa.array([b"/data/recording_%06d.h5" % number for number in range(_FILES)], pa.large_binary()),
        np.zeros((_FILES, 4), np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
    )
    return RowIndex(files, COLUMNS, {"signal": chunk_rows, "label": 1024}, Lookup())


def _plan_epoch(index: RowIndex, selection: np.ndarray | None, with_tasks: bool) -> object:
    """Do the work of the driver for an epoch: the plan, and a task for each block."""
    plan = make_plan(index, list(COLUMNS.values()), selection, Shuffle(seed=0))
    if not with_tasks:
        return Remainder(3).block_layout(plan)
    return read_tasks(plan, plan, tuple(COLUMNS), Remainder(3))


def _one_block(plan: ReadPlan, epoch: int) -> float:
    start = time.perf_counter()
    Remainder(epoch).positions(plan, 7)
    plan.at(Remainder(epoch).positions(plan, 7), epoch)
    return time.perf_counter() - start


def memory(case: str, bench: str = "plan") -> Result:
    """Return the most memory that this process has had, against the limit of a driver."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Result(
        bench, case, "-", "GB", peak / 1e9, None, None, (peak / 1e9,) * 2, _MOST_BYTES / 1e9, peak <= _MOST_BYTES
    )
