"""Bench `read`: one thread, one process, without Ray.

`all` and `rows` are epochs of a training run, which reads the same files again and again: every contestant keeps them
open, and ours has looked up its chunks before. `first` is a program that reads a file once: every contestant opens it
in the timed part. The files are in the page cache.

Memory: in `all`, all contestants fill the same buffers in each turn (ours with ``read_into``, h5py with
``read_direct``). In `first` and `rows`, ours and `h5py_fancy` return new arrays, deleted before the next file.

`pread` is the lower limit where nothing is decoded: one call for each stored chunk. `pread+decode` is the limit with
decoding: the same calls, and the bare decoder for each chunk. The rest of our time is the look-up and placing of rows.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import h5py
import hdf5plugin  # noqa: F401  lets h5py read the filter pipelines of the workloads
import numpy as np

from ray_h5.hdf5.files.access import ExternalPolicy
from ray_h5.read.open_files import open_file
from ray_h5.read.reader import RowReader
from tests.bench.baselines.h5py_reads import (
    chunk_decoders,
    empty_columns,
    h5py_bulk,
    h5py_fancy,
    pread,
    pread_decode,
    stored_extents,
)
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.bench import BenchOptions
    from tests.bench.baselines.h5py_reads import Arrays, Rows

__all__ = ["bench_read"]

_FRACTIONS = (3, 8)


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files of one layout, and the goals for reading them.

    Attributes
    ----------
    label
        The first words of the name of each result.
    workload
        The workload that the files belong to.
    paths
        The files.
    columns
        The columns to read.
    all_goals
        Least ratio to `h5py_bulk` by number of threads.
    rows_goal
        Least ratio to `h5py_fancy`.
    floor_goal
        Least ratio to `pread`, where nothing is decoded.
    """

    label: str
    workload: Workload
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    all_goals: Mapping[int, float | None]
    rows_goal: float
    floor_goal: float | None = None

    @property
    def file_rows(self) -> int:
        """Rows of each file."""
        return self.workload.rows // len(self.workload.paths)

    def megabytes(self, rows: int) -> float:
        """Return the decoded size of `rows` rows."""
        return rows * self.workload.row_bytes(self.columns) / 1e6


def bench_read(options: BenchOptions) -> list[Result]:
    """Measure `all`, `first` and `rows` on the workloads `signals`, `flat` and `images`.

    The figures are MB/s of decoded bytes. Before a case is timed, our bytes are compared with those of h5py.

    Raises
    ------
    RuntimeError
        If our bytes differ from h5py's.
    """
    results: list[Result] = []
    for file_set in _file_sets(options):
        results += _read_all(file_set, options.turns)
        results += _read_first(file_set, options.turns)
        for fraction in _FRACTIONS:
            drawn = _draw_rows(file_set, fraction)
            ascending = {path: np.sort(rows) for path, rows in drawn.items()}
            for order, rows in (("sorted", ascending), ("random", drawn)):
                results.append(_read_rows(file_set, rows, f"rows 1/{fraction} {order}", options.turns))
    return results


def _file_sets(options: BenchOptions) -> list[FileSet]:
    signals, flat, images = (
        make_workload(name, options.folder, options.size) for name in ("signals", "flat", "images")
    )
    pair = ("image_u1", "image_f4")
    file_sets = [
        FileSet("signals", signals, signals.paths, ("fhr_st", "target", "weight"), {1: 1.5, 2: None}, 20, 0.8),
        FileSet("flat", flat, flat.paths, pair, {1: 1.5, 2: None}, 20, 0.8),
    ]
    for path, layout in zip(images.paths, images.layouts, strict=True):
        label = f"images {layout.chunk_rows} {layout.pipeline}"
        all_goals, rows_goal, floor_goal = _image_goals(layout.pipeline)
        file_sets.append(FileSet(label, images, (path,), pair, all_goals, rows_goal, floor_goal))
    return file_sets


def _image_goals(pipeline: str) -> tuple[dict[int, float | None], float, float | None]:
    if pipeline == "none":
        return {1: 1.5, 2: None}, 20, 0.8
    if pipeline == "shuffle+gzip":
        return {1: 2, 2: 3.5}, 5, None
    return {1: 1.1, 2: 1.8}, 10 if pipeline in {"lz4", "blosc"} else 5, None


def _draw_rows(file_set: FileSet, fraction: int) -> dict[str, Rows]:
    rng = np.random.default_rng([fraction, file_set.workload.rows])
    count = max(1, file_set.file_rows // fraction)
    return {path: rng.choice(file_set.file_rows, count, replace=False).astype(np.int64) for path in file_set.paths}


def _read_all(file_set: FileSet, turns: int) -> list[Result]:
    with ExitStack() as stack:
        files = {path: stack.enter_context(h5py.File(path, "r")) for path in file_set.paths}
        readers = {
            threads: [stack.enter_context(RowReader(path, threads=threads)) for path in file_set.paths]
            for threads in file_set.all_goals
        }
        extents = {path: stored_extents(file, file_set.columns) for path, file in files.items()}
        stored = {path: [each for column in found.values() for each in column] for path, found in extents.items()}
        decoders = chunk_decoders(readers[1][0], file_set.columns)
        buffer = np.empty(max(sum(each.size for each in found) for found in stored.values()), np.uint8)
        arrays = empty_columns(next(iter(files.values())), file_set.columns)
        rows = np.arange(file_set.file_rows)
        for path, reader in zip(file_set.paths, readers[1], strict=True):
            h5py_bulk(files[path], arrays)
            _verify(path, reader.read(file_set.columns), arrays)

        def ours(threads: int) -> None:
            for reader in readers[threads]:
                reader.read_into(arrays, rows)

        contestants: dict[str, Callable[[], object]] = {
            OURS: partial(ours, 1),
            "two threads": partial(ours, 2),
            "h5py_bulk": lambda: [h5py_bulk(file, arrays) for file in files.values()],  # type: ignore[func-returns-value]
            "pread": lambda: [pread(path, stored[path], buffer) for path in files],  # type: ignore[func-returns-value]
            "pread+decode": lambda: [pread_decode(path, extents[path], decoders) for path in files],  # type: ignore[func-returns-value]
        }
        seconds = run_turns(contestants, turns)
    one = Contest("read", f"{file_set.label} all", seconds)
    two = Contest("read", f"{file_set.label} all, 2 threads", {**seconds, OURS: seconds["two threads"]})
    amount = file_set.megabytes(file_set.file_rows * len(file_set.paths))
    return [
        one.against("h5py_bulk", amount=amount, unit="MB/s", goal=file_set.all_goals[1]),
        two.against("h5py_bulk", amount=amount, unit="MB/s", goal=file_set.all_goals[2]),
        one.against("pread", amount=amount, unit="MB/s", goal=file_set.floor_goal),
        one.against("pread+decode", amount=amount, unit="MB/s", goal=None),
    ]


def _read_first(file_set: FileSet, turns: int) -> list[Result]:
    with h5py.File(file_set.paths[0], "r") as file:
        arrays = empty_columns(file, file_set.columns)
    contestants = {
        OURS: lambda: [_read_first_time(path, file_set.columns) for path in file_set.paths],
        "h5py_bulk": lambda: [_bulk_first_time(path, arrays) for path in file_set.paths],
    }
    amount = file_set.megabytes(file_set.file_rows * len(file_set.paths))
    contest = Contest("read", f"{file_set.label} first", run_turns(contestants, turns))
    return [contest.against("h5py_bulk", amount=amount, unit="MB/s", goal=None)]


def _bulk_first_time(path: str, arrays: Arrays) -> Arrays:
    with h5py.File(path, "r") as file:
        h5py_bulk(file, arrays)
    return arrays


def _read_first_time(path: str, columns: tuple[str, ...]) -> Arrays:
    """Read all rows, and close the file, which our cache of open files would keep open."""
    with RowReader(path, threads=1) as reader:
        arrays = reader.read(columns, slice(None))
        open_file(reader.path, "/", ExternalPolicy.of(())).forget()
    return arrays


def _read_rows(file_set: FileSet, rows: Mapping[str, Rows], case: str, turns: int) -> Result:
    with ExitStack() as stack:
        files = {path: stack.enter_context(h5py.File(path, "r")) for path in file_set.paths}
        readers = {path: stack.enter_context(RowReader(path, threads=1)) for path in file_set.paths}
        for path in file_set.paths:
            theirs = h5py_fancy(files[path], file_set.columns, rows[path])
            _verify(path, readers[path].read(file_set.columns, rows[path]), theirs)
        contestants = {
            OURS: lambda: [len(reader.read(file_set.columns, rows[path])) for path, reader in readers.items()],
            "h5py_fancy": lambda: [len(h5py_fancy(file, file_set.columns, rows[path])) for path, file in files.items()],
        }
        seconds = run_turns(contestants, turns)
    amount = file_set.megabytes(sum(map(len, rows.values())))
    contest = Contest("read", f"{file_set.label} {case}", seconds)
    return contest.against("h5py_fancy", amount=amount, unit="MB/s", goal=file_set.rows_goal)


def _verify(path: str, ours: Arrays, theirs: Arrays) -> None:
    """Compare bytes, not values: a NaN equals itself and -0.0 is not 0.0."""
    for name, expected in theirs.items():
        found = ours[name]
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise RuntimeError(
                f"{path}: column {name!r} read as {found.dtype}{found.shape}, "
                f"h5py gives {expected.dtype}{expected.shape}"
            )
        if found.tobytes() != expected.tobytes():
            raise RuntimeError(f"{path}: the bytes of column {name!r} differ from those that h5py reads")
