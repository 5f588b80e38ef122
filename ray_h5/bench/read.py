"""``ray-h5 bench read``: one thread, one process, without Ray.

`all` and `rows` are the epochs of a training run, which comes back to the same files again and again: every
contestant keeps them open, and ours has found its chunks before. `first` is a program that takes a file
once: every contestant opens it in the timed part. The files lie in the page cache.

Memory: in `all`, everybody fills the same buffers again and again (ours with ``read_into``, h5py with
``read_direct``). In `first` and `rows`, ours and `h5py_fancy` return new arrays, dropped before the next
file, and what their allocators make of that is theirs to gain or lose.

`pread` is the floor where nothing is to be decoded: one call a stored chunk. `pread+decode` is the floor
where something is: the same calls, and the bare decoder on each chunk that was stored compressed.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ray_h5.bench.baselines import (
    empty_columns,
    h5py_bulk,
    h5py_fancy,
    pread,
    pread_decode,
    stored_extents,
)
from ray_h5.bench.measure import OURS, Contest, Result, run_turns
from ray_h5.bench.workloads import Workload, make_workload
from ray_h5.hdf5.handles import forget, open_file
from ray_h5.hdf5.parser import ExternalPolicy
from ray_h5.hdf5.reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ray_h5.bench import BenchOptions
    from ray_h5.bench.baselines import Arrays, Rows

__all__ = ["bench_read"]

_COLUMNS = {"signals": ("fhr_st", "target", "weight"), "flat": ("image_u1", "image_f4")}
_FRACTIONS = (3, 8)


def bench_read(options: BenchOptions) -> list[Result]:
    """Measure `all` and `rows` on the workloads `signals` and `flat`.

    The figures are MB/s of decoded bytes. Before a case is timed, what we deliver is compared with what
    h5py delivers.

    Raises
    ------
    RuntimeError
        If our bytes differ from h5py's.
    """
    results: list[Result] = []
    for name, columns in _COLUMNS.items():
        workload = make_workload(name, options.folder, options.size)
        results += _read_all(workload, columns, options.turns)
        for fraction in _FRACTIONS:
            drawn = _draw_rows(workload, fraction)
            ascending = {path: np.sort(rows) for path, rows in drawn.items()}
            for order, rows in (("sorted", ascending), ("random", drawn)):
                case = f"{name} rows 1/{fraction} {order}"
                results.append(_read_rows(workload, columns, rows, case, options.turns))
    return results


def _draw_rows(workload: Workload, fraction: int) -> dict[str, Rows]:
    rng = np.random.default_rng([fraction, workload.rows])
    file_rows = workload.rows // len(workload.paths)
    count = max(1, file_rows // fraction)
    return {path: rng.choice(file_rows, count, replace=False).astype(np.int64) for path in workload.paths}


def _read_all(workload: Workload, columns: tuple[str, ...], turns: int) -> list[Result]:
    with ExitStack() as stack:
        files = {path: stack.enter_context(h5py.File(path, "r")) for path in workload.paths}
        readers = {path: stack.enter_context(RowReader(path, threads=1)) for path in workload.paths}
        extents = {path: stored_extents(file, columns) for path, file in files.items()}
        buffer = np.empty(max(sum(each.size for each in found) for found in extents.values()), np.uint8)
        arrays = empty_columns(next(iter(files.values())), columns)
        rows = np.arange(len(arrays[columns[0]]))
        for path, reader in readers.items():
            h5py_bulk(files[path], arrays)
            _verify(path, reader.read(columns), arrays)

        def ours() -> None:
            for reader in readers.values():
                reader.read_into(arrays, rows)

        def bulk() -> None:
            for file in files.values():
                h5py_bulk(file, arrays)

        def floor(read: Callable[..., None]) -> None:
            for path in files:
                read(path, extents[path], buffer)

        floors = {"pread": partial(floor, pread), "pread+decode": partial(floor, pread_decode)}
        seconds = run_turns({OURS: ours, "h5py_bulk": bulk, **floors}, turns)
    first = run_turns(
        {
            OURS: lambda: [_read_anew(path, columns) for path in workload.paths],
            "h5py_bulk": lambda: [_bulk_anew(path, arrays) for path in workload.paths],
        },
        turns,
    )
    amount = workload.rows * workload.row_bytes(columns) / 1e6
    compare = partial(Contest("read", f"{workload.name} all", seconds).against, amount=amount, unit="MB/s")
    once = Contest("read", f"{workload.name} first", first)
    return [
        compare("h5py_bulk", goal=1.5),
        compare("pread", goal=0.8),
        compare("pread+decode", goal=None),
        once.against("h5py_bulk", amount=amount, unit="MB/s", goal=None),
    ]


def _bulk_anew(path: str, arrays: Arrays) -> Arrays:
    with h5py.File(path, "r") as file:
        h5py_bulk(file, arrays)
    return arrays


def _read_anew(path: str, columns: tuple[str, ...]) -> Arrays:
    """Read all rows, and take the file out of the cache in which ours keeps it open for the next read."""
    with RowReader(path, threads=1) as reader:
        arrays = reader.read(columns, slice(None))
        forget(open_file(reader.path, "/", ExternalPolicy.of(())))
    return arrays


def _read_rows(workload: Workload, columns: tuple[str, ...], rows: Mapping[str, Rows], case: str, turns: int) -> Result:
    with ExitStack() as stack:
        files = {path: stack.enter_context(h5py.File(path, "r")) for path in workload.paths}
        readers = {path: stack.enter_context(RowReader(path, threads=1)) for path in workload.paths}
        for path in workload.paths:
            theirs = h5py_fancy(files[path], columns, rows[path])
            _verify(path, readers[path].read(columns, rows[path]), theirs)

        def ours() -> None:
            for path, reader in readers.items():
                reader.read(columns, rows[path])

        def fancy() -> None:
            for path, file in files.items():
                h5py_fancy(file, columns, rows[path])

        seconds = run_turns({OURS: ours, "h5py_fancy": fancy}, turns)
    amount = sum(map(len, rows.values())) * workload.row_bytes(columns) / 1e6
    return Contest("read", case, seconds).against("h5py_fancy", amount=amount, unit="MB/s", goal=20)


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
