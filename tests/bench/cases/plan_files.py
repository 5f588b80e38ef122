"""Planning of many files for the bench `plan`: CPU seconds and bytes of the plan, beside h5py's calls alone."""

from __future__ import annotations

import glob
import os
import pickle
import tempfile
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ray_h5.columns.schema import Cast
from ray_h5.index.file_opener import Scope
from ray_h5.index.lookup import Lookup
from ray_h5.index.row_index import RowIndex, build_index
from ray_h5.index.stored.joint import FOLDERS
from ray_h5.index.stored.memory import MEMORY
from ray_h5.read.open_files import forget_all
from ray_h5.rows.groups_and_grids import Files
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.bench import BenchOptions

_FILES = 4000
"""Files that are planned; seconds are scaled to the numbers of files below."""

_MANY, _BAGS = 100_000, 11_759
_MANY_S, _BAGS_S, _WARM_S = 45.0, 20.0, 1.0
_MOST_BYTES_A_FILE = 200
_H5PY = "h5py calls"


def bench_plan_files(options: BenchOptions) -> list[Result]:
    """Measure the planning of files of three columns, and of files that are rows, with and without an index."""
    count = max(70, round(_FILES * options.size))
    results = []
    for case, rows, files, most in (
        ("3 columns", None, _MANY, _MANY_S),
        ("a row each, 4 columns", Files(), _BAGS, _BAGS_S),
    ):
        paths = _files(options.folder, count, _write_columns if rows is None else _write_bag)
        plan = partial(_plan, paths, Lookup(Scope(rows=rows)))
        calls: dict[str, Callable[[], object]] = {OURS: plan, _H5PY: partial(_h5py_calls, paths)}
        scaled = _scaled(run_turns(calls, options.turns, clock=time.process_time), files / count)
        contest = Contest("plan", f"{files} files, {case}, CPU", scaled)
        results += [contest.within(most), contest.against(_H5PY, amount=files, unit="files/s", goal=None)]
        nbytes = len(pickle.dumps(plan())) / count
        results.append(Contest("plan", f"{case}, plan, a file", {OURS: [nbytes]}).within(_MOST_BYTES_A_FILE))
        results[-1] = replace(results[-1], unit="B")
        with tempfile.TemporaryDirectory() as index_dir:
            warm = partial(_plan, paths, Lookup(Scope(rows=rows), index_dir))
            warm()
            scaled = _scaled(run_turns({OURS: warm}, options.turns, clock=time.process_time), files / count)
        contest = Contest("plan", f"{files} files, {case}, CPU with index_dir", scaled)
        results.append(contest.within(_WARM_S if rows else None))
    return results


def _files(folder: str | None, count: int, write: Callable[[h5py.File, int], None]) -> list[str]:
    """Return the files of a case; make them unless an earlier call has made them."""

    def fill(target: str) -> None:
        for number in range(count):
            with h5py.File(os.path.join(target, f"{number:06d}.h5"), "w") as file:
                write(file, number)

    made = cached_folder(folder, f"plan-{'bags' if write is _write_bag else 'columns'}-{count}", fill)
    return sorted(glob.glob(os.path.join(glob.escape(made), "*.h5")))


def _write_columns(file: h5py.File, number: int) -> None:
    rows = 20 + number % 7
    values = np.random.default_rng(number).random((rows, 4, 3), np.float32)
    file.create_dataset("signal", data=values, chunks=(4, 4, 3), compression="gzip", shuffle=True)
    file["label"], file["time"] = np.arange(rows, dtype="u1"), np.arange(float(rows))


def _write_bag(file: h5py.File, number: int) -> None:
    entries = 20 + number * 37 % 53
    values = np.random.default_rng(number).random((entries, 8), np.float32)
    file.create_dataset("features", data=values, chunks=(16, 8), compression="gzip")
    file["coords"], file["label"], file["case"] = np.zeros((entries, 2), "i4"), number % 3, f"case_{number}"


def _plan(paths: Sequence[str], lookup: Lookup) -> RowIndex:
    """Return the index of files, as a new process finds it."""
    MEMORY.clear()
    FOLDERS.clear()
    forget_all()
    return build_index(paths, None, lookup, Cast())


def _h5py_calls(paths: Sequence[str]) -> None:
    """Ask of each dataset what a plan needs, by as few calls as h5py allows."""
    properties = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    properties.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    for path in paths:
        file = h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY, fapl=properties)
        root = h5py.h5o.open(file, b"/")
        names: list[bytes] = []
        root.links.iterate(names.append)
        for name in names:
            dataset = h5py.h5o.open(root, name)
            dataset.get_space().get_simple_extent_dims()
            dataset.get_type().encode()
            created = dataset.get_create_plist()
            created.get_nfilters()
            if created.get_layout() == h5py.h5d.CHUNKED:
                created.get_chunk()
        file.close()


def _scaled(seconds: dict[str, list[float]], factor: float) -> dict[str, list[float]]:
    return {name: [each * factor for each in turns] for name, turns in seconds.items()}
