"""Bench of the plan of an epoch, by seconds and memory of the driver, and CPU for many files."""

from __future__ import annotations

import pickle
import resource
import tempfile
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.columns.schema import Cast, ColumnSpec
from ray_h5.index.row_index import RowIndex, build_index
from ray_h5.index.scan_files import Lookup
from ray_h5.index.stored import facts_store
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.value_type import ValueType
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.remaining_blocks import layout_of, positions_of
from ray_h5.plan.blocks import start_of
from ray_h5.plan.read_plan import make_plan
from ray_h5.ray_data.tasks import read_tasks
from ray_h5.read.open_file import forget_all
from ray_h5.rows.row_kind_options import Files
from ray_h5.scope import Scope
from tests.bench import BenchOptions
from tests.bench.made_files import make_many
from tests.bench.measure import OURS, Case, Result, of_figures, run_turns

Cases = Generator[Case | Result, Any, None]

COLUMNS = {
    "signal": ColumnSpec("signal", ValueType("number", np.dtype("f4"), (43, 300))),
    "label": ColumnSpec("label", ValueType("number", np.dtype("u1"))),
}


def bench_plan(options: BenchOptions) -> Cases:
    """Measure the index of many files; then an epoch's planning, in seconds and in memory of the driver."""
    yield from _many_files(options)
    # The case that needs the most memory comes last: the peak of a process never falls.
    for name, full, chunk_rows, every in (
        ("10^8 rows, shuffled rows", 10**8, 1, None),
        ("10^8 rows, shuffled chunks", 10**8, 16, None),
        ("10^10 rows, shuffled chunks", 10**10, 16, None),
        ("10^8 rows, half selected, shuffled chunks", 10**8, 16, 2),
    ):
        index = synthetic_index(round(full * options.size), chunk_rows)
        selection = None if every is None else np.arange(0, index.num_rows, every)
        with_tasks = index.num_rows <= 10**9  # more rows need more tasks than one driver can start
        what = "plan and tasks of an epoch" if with_tasks else "plan of an epoch, without tasks"
        contestants = {OURS: partial(_plan_epoch, index, selection, with_tasks)}
        yield Case(f"{name}, {what}", [], contestants, index.num_rows, "rows/s", {"-": 10.0})
        yield peak_memory("plan", name)


def synthetic_index(rows: int, chunk_rows: int) -> RowIndex:
    """Return a row index of 100,000 files that do not exist, with about `rows` rows in all."""
    lengths = np.random.default_rng(0).integers(0, max(2, 2 * rows // 100_000), 100_000)
    files = FileTable(
        pa.array([b"/data/recording_%06d.h5" % number for number in range(100_000)], pa.large_binary()),
        np.zeros((100_000, 4), np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
    )
    return RowIndex(files, COLUMNS, {"signal": chunk_rows, "label": 1024}, Lookup())


def _plan_epoch(index: RowIndex, selection: np.ndarray | None, with_tasks: bool) -> object:
    """Do the work of the driver for an epoch: the plan, the rows of a block, and a task for each block."""
    plan = make_plan(index, list(COLUMNS.values()), selection, Shuffle(seed=0))
    plan.at(positions_of(start_of(plan, 3), 7), 3)
    if not with_tasks:
        return layout_of(start_of(plan, 3))
    return read_tasks(plan, plan, tuple(COLUMNS), start_of(plan, 3))


def peak_memory(bench: str, case: str) -> Result:
    """Return the most memory that this process has had, against the limit of a driver."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return of_figures(bench, f"{case}, memory of the process", "GB", [peak / 1e9], most=(2 << 30) / 1e9)


def _many_files(options: BenchOptions) -> Generator[Result, Any, None]:
    """Measure 4000 files, of three columns and of one row each; seconds are scaled to more files."""
    count = max(70, round(4000 * options.size))
    for case, rows, files, most in (
        ("3 columns", None, 100_000, 45.0),
        ("a row each, 4 columns", Files(), 11_759, 20.0),
    ):
        paths = make_many(options.folder, count, bags=rows is not None)
        plan = partial(_index, paths, Lookup(Scope(rows=rows)))
        with tempfile.TemporaryDirectory() as index_dir:
            again = partial(_index, paths, Lookup(Scope(rows=rows), index_dir))
            again()
            contestants = {OURS: plan, "again": again}
            seconds = run_turns(contestants, options.turns, clock=time.process_time)
        scaled = {name: [each * files / count for each in turns] for name, turns in seconds.items()}
        yield of_figures("plan", f"{files} files, {case}, CPU", "s", scaled[OURS], most=most)
        most_again = None if rows is None else 1.0
        yield of_figures("plan", f"{files} files, {case}, CPU with index_dir", "s", scaled["again"], most=most_again)
        yield of_figures("plan", f"{case}, plan, a file", "B", [len(pickle.dumps(plan())) / count], most=200)


def forget() -> None:
    """Forget what this process knows of files, as a new one knows nothing."""
    MEMORY.clear()
    facts_store._LOADED.clear()
    forget_all()


def _index(paths: Sequence[str], lookup: Lookup) -> RowIndex:
    """Return the index of files, as a new process makes it."""
    forget()
    return build_index(paths, None, lookup, Cast())
