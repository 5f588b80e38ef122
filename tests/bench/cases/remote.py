"""Bench `remote`: files in an object store, on a server of its own.

The server runs in another process on this machine: 60 ms to the first byte of each answer, 80 MB/s a stream, 400 MB/s
in all. `bound` is what such a link can give to requests of the size that ours are: the smaller of the total limit and
streams x rate x part / (part + rate x latency). Baselines that are slow read fewer rows; rates are compared. They are
left out if s3fs is not installed.

The cases named `plan` count requests. A round is requests that are sent together: the next ones wait for their answers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.read.reader import RowReader
from ray_h5.storage.fetching import fetched
from ray_h5.torch_data import H5Dataset, loader
from tests.bench.baselines.remote_reads import cat_ranges_rows, has_s3fs, row_extents, s3fs_h5py_rows
from tests.bench.measure import OURS, Result, run_turns
from tests.bench.remote_files import BUCKET, LAYOUTS, RemoteFiles, make_remote_files
from tests.bench.session import ray_session
from tests.bench.verify import count_rows, verify_rows
from tests.kit.fault_server import ServerProcess

if TYPE_CHECKING:
    from tests.bench import BenchOptions

__all__ = ["bench_remote"]

LATENCY_S = 0.06
RATE = 80e6
TOTAL = 400e6
_STREAMS = 64
_BATCH_SIZE = 64
_CAT_ROWS = 1_024
_H5PY_ROWS = 32
_KEY = f"{BUCKET}/rows.h5"
_S3FS, _CAT_RANGES = "s3fs + h5py", "fsspec cat_ranges"


def bench_remote(options: BenchOptions) -> list[Result]:
    """Measure whole columns and shuffled rows, and count the requests of planning.

    Raises
    ------
    RuntimeError
        If Ray is already running in this process, or an epoch does not deliver each row once.
    """
    files = make_remote_files(options.folder, options.size)
    results: list[Result] = []
    with _server(files) as server:
        case = _Rows(files, server, options.turns)
        results += case.whole_column() + case.shuffled()
        for name in LAYOUTS:
            results += _plan(server, name)
        results += _plan_many(server, files)
    return results


@contextmanager
def _server(files: RemoteFiles) -> Iterator[ServerProcess]:
    with ServerProcess(files.root, latency=LATENCY_S, rate=RATE, total=TOTAL) as server:
        yield server


def storage_options(server: ServerProcess) -> dict[str, Any]:
    """Return the options that lead to the server."""
    return {"endpoint": server.url, "region": "us-east-1", "skip_signature": True, "allow_http": True}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of 50 KB, one chunk each."""

    files: RemoteFiles
    server: ServerProcess
    turns: int

    @property
    def given(self) -> dict[str, Any]:
        return {"columns": ["signal", "label"], "storage_options": storage_options(self.server)}

    def whole_column(self) -> list[Result]:
        """Compare a read of the whole column with what the link can give, and with the baselines in order.

        The file is open: what that takes is counted by itself.
        """
        with RowReader(f"s3://{_KEY}", storage_options=storage_options(self.server)) as reader:
            self._read_column(reader)
            self.server.forget()
            contestants: dict[str, Callable[[], object]] = {OURS: partial(self._read_column, reader)}
            seconds = run_turns({**contestants, **self._baselines(shuffled=False)}, self.turns, warmups=0)
        ours = [self.files.rows / each for each in seconds[OURS]]
        bound = self._bound() / (self.files.rows_bytes / self.files.rows)
        case = "whole column"
        return [
            _rates(case, "bound", ours, [bound] * len(ours), 0.9),
            *self._against(case, ours, seconds, {_S3FS: 10.0, _CAT_RANGES: 2.0}),
        ]

    def shuffled(self) -> list[Result]:
        """Compare shuffled epochs of a loader and of Ray with shuffled batches of the baselines."""
        import ray_h5

        epoch = partial(loader, f"s3://{_KEY}", _BATCH_SIZE, shuffle=True, kept_bytes=0, **self.given)
        verify_rows([self.files.local("rows.h5")], ("signal", "label"), epoch())
        batches = epoch()
        contestants: dict[str, Callable[[], object]] = {
            OURS: partial(count_rows, batches, self.files.rows),
            **self._baselines(shuffled=True),
        }
        seconds = run_turns(contestants, self.turns, warmups=0)
        with ray_session(max(1 << 30, 3 * self.files.rows_bytes)):
            dataset = ray_h5.read_h5(f"s3://{_KEY}", shuffle=True, **self.given)
            theirs: dict[str, Callable[[], object]] = {
                OURS: lambda: count_rows(dataset.iter_torch_batches(batch_size=_BATCH_SIZE), self.files.rows)
            }
            by_ray = run_turns(theirs, self.turns)
        results = []
        for case, times in (("shuffled rows, loader", seconds[OURS]), ("shuffled rows, Ray", by_ray[OURS])):
            ours = [self.files.rows / each for each in times]
            results += self._against(case, ours, seconds, {_S3FS: 10.0, _CAT_RANGES: 2.0})
        return results

    def _read_column(self, reader: RowReader) -> None:
        found = reader.read(["signal"])["signal"]
        if len(found) != self.files.rows:
            raise RuntimeError(f"a column has {len(found)} rows, expected {self.files.rows}")

    def _baselines(self, *, shuffled: bool) -> dict[str, Callable[[], object]]:
        if not has_s3fs():
            return {}
        extents = row_extents(self.files.local("rows.h5"), "signal")
        counts = {name: min(count, self.files.rows) for name, count in self._rows_of().items()}
        rows = np.random.default_rng(0).permutation(self.files.rows) if shuffled else np.arange(self.files.rows)
        parts = {name: np.array_split(rows[:count], -(-count // _BATCH_SIZE)) for name, count in counts.items()}
        if not shuffled:
            parts[_CAT_RANGES] = [rows[: counts[_CAT_RANGES]]]
        return {
            _S3FS: partial(s3fs_h5py_rows, self.server.url, _KEY, "signal", parts[_S3FS]),
            _CAT_RANGES: partial(cat_ranges_rows, self.server.url, _KEY, extents, parts[_CAT_RANGES]),
        }

    @staticmethod
    def _rows_of() -> dict[str, int]:
        return {_S3FS: _H5PY_ROWS, _CAT_RANGES: _CAT_ROWS}

    def _against(
        self, case: str, ours: list[float], seconds: dict[str, list[float]], goals: dict[str, float]
    ) -> list[Result]:
        counts = self._rows_of()
        return [
            _rates(case, name, ours, [min(counts[name], self.files.rows) / each for each in seconds[name]], goal)
            for name, goal in goals.items()
            if name in seconds
        ]

    def _bound(self) -> float:
        """Return the bytes a second that the link can give to requests like those of the log."""
        asked = [each for each in self.server.log()["requests"] if each["status"] == 206]
        part = statistics.median(each["nbytes"] for each in asked)
        return min(TOTAL, _STREAMS * RATE * part / (part + RATE * LATENCY_S))


def _rates(case: str, baseline: str, ours: list[float], theirs: list[float], goal: float) -> Result:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    return Result(
        bench="remote",
        case=case,
        baseline=baseline,
        unit="rows/s",
        ours=statistics.median(ours),
        theirs=statistics.median(theirs),
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        goal=goal,
        ok=ratio >= goal,
    )


def _plan(server: ServerProcess, name: str) -> list[Result]:
    """Count what it takes to plan a file and to know all its chunks."""
    server.forget()
    before = fetched.value.rounds
    _planned(server, f"{name}.h5", ["a", "b", "c"])
    rounds = fetched.value.rounds - before
    asked = [each for each in server.log()["requests"] if each["method"] == "GET"]
    nbytes = sum(each["nbytes"] for each in asked)
    if name == "default":
        return [
            _count(f"plan {name}, one-row chunks", "rounds", rounds, 12),
            _count(f"plan {name}, one-row chunks", "MB", nbytes / 1e6, 10),
        ]
    return [_count(f"plan {name}", "requests", len(asked), 2)]


def _planned(server: ServerProcess, name: str, columns: list[str], index_dir: str | None = None) -> H5Dataset:
    options = storage_options(server)
    return H5Dataset(f"s3://{BUCKET}/{name}", columns=columns, storage_options=options, index_dir=index_dir)


def _plan_many(server: ServerProcess, files: RemoteFiles) -> list[Result]:
    """Count what it takes to plan many files, and to plan them again with their index on disk."""
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for case, goal in (("first time", 3.0), ("with index_dir", 0.0)):
            server.forget()
            start = time.perf_counter()
            _planned(server, "runs/*.h5", ["a", "b"], folder)
            taken = time.perf_counter() - start
            asked = server.log()["requests"]
            listings = sum("list-type" in each["query"] for each in asked)
            pages = -(-files.runs // 1000)
            many = f"plan {files.runs} files, {case}"
            results += [
                _count(many, "requests a file", (len(asked) - listings) / files.runs, goal),
                _count(many, "listings", listings, pages),
                _count(many, "s", taken, None),
            ]
    return results


def _count(case: str, unit: str, found: float, goal: float | None) -> Result:
    ok = None if goal is None else found <= goal
    return Result("remote", case, "-", unit, found, None, None, (found, found), goal, ok)
