"""Bench `peers`: other formats and libraries, from HDF5 files to the end of the first epoch, and after it.

Each contestant is a process of its own. Before the turns its rows are compared with those that h5py reads; one that
fails there is left out by name, and so is one that is not installed. In a turn it converts the files and reads an epoch
from nothing, without workers and with two; the faster counts. Then there are epochs after it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import h5py
import numpy as np

from ray_h5.columns.user_columns import csr
from ray_h5.rows.patches import Patches
from tests.bench import BenchOptions
from tests.bench.baselines.epochs import count_rows
from tests.bench.baselines.peers import PEERS, Problem
from tests.bench.cases.stores_and_writing import LINK
from tests.bench.files import SIGNALS, make_workload
from tests.bench.made_files import GENES, make_cells, make_volume
from tests.bench.measure import OURS, Case, Took
from tests.kit.fault_server import ServerProcess

_CASES = ("signals", "images", "cells", "patches", "store")


def bench_peers(options: BenchOptions) -> Generator[Case, Any, None]:
    """Measure seconds to the end of the first epoch, conversion included, and rows a second of later ones."""
    for case in _CASES:
        problem = _problem(case, options.folder, options.size)
        root = os.path.dirname(os.path.dirname(problem.paths[0]))
        with ExitStack() as stack:
            environment = _store_environment(stack, root) if problem.store else {}
            running: dict[str, _Process] = {}
            for name, peer in PEERS.items():
                if case not in peer.cases:
                    continue
                if importlib.util.find_spec(peer.module) is None:
                    print(f"{case}: {name} is left out: {peer.module} is not installed", file=sys.stderr)
                    continue
                process = _Process(name, case, options, root, environment)
                stack.callback(process.stop)
                try:
                    process.ask("verify")
                    running[name] = process
                except RuntimeError as exc:
                    if name == OURS:
                        raise
                    print(f"{case}: {name} is left out: {exc}", file=sys.stderr)
            others = [name for name in running if not name.startswith(OURS)]
            goals: dict[Any, float | None] = dict.fromkeys(running.keys() - {OURS})
            first = {name: partial(each.ask, "first") for name, each in running.items()}
            label = f"{case}, {problem.rows} rows"
            five = {**goals, **dict.fromkeys(others, 5.0 if case != "store" else 1.2)}
            yield Case(f"{label}, first epoch", problem.paths, first, problem.rows, "rows/s", five, warmups=0)
            for workers in ("0", "2"):
                later = {name: partial(each.ask, workers) for name, each in running.items()}
                name = f"{label}, later epochs, {workers} workers"
                yield Case(name, problem.paths, later, problem.rows, "rows/s", goals, warmups=0)


def _problem(case: str, folder: str | None, size: float) -> Problem:
    """Return a case; its files are made unless an earlier call has made them."""
    if case == "cells":
        path, cells = make_cells(folder, max(0.0004, 0.01 * size), gzip=True)
        return Problem((path,), cells, 64, {"X": ("float32", (GENES,))}, _cell, {"columns": [csr("X")]})
    if case == "patches":
        steps = max(2, 1 + round(4 * size ** (1 / 3)))
        path = make_volume(folder, ((64 + (steps - 1) * 32) / 320) ** 3)
        names, block = ("raw", "label"), (64,) * 3
        options = {"columns": list(names), "rows": Patches(dict.fromkeys(names, block), stride=32)}
        columns = {"raw": ("uint16", block), "label": ("uint8", block)}
        return Problem((path,), steps**3, 8, columns, partial(_block, steps), options)
    made = make_workload("images" if case == "images" else "signals", folder, size * (0.1 if case == "store" else 1))
    names = ("image_u1",) if case == "images" else SIGNALS
    paths = tuple(made.paths_of(16, "shuffle+zstd")) if case == "images" else made.paths
    columns = {name: (np.dtype(made.columns[name][1]).name, made.columns[name][0]) for name in names}
    problem = Problem(paths, made.file_rows, 64, columns, partial(_row, names), {"columns": list(names)})
    return replace(problem, store=os.path.dirname(os.path.dirname(paths[0]))) if case == "store" else problem


def _row(names: tuple[str, ...], file: h5py.File, index: int) -> dict[str, Any]:
    return {name: file[name][index] for name in names}


def _cell(file: h5py.File, index: int) -> dict[str, Any]:
    start, stop = file["X/indptr"][index : index + 2].tolist()
    counts = np.zeros(GENES, np.float32)
    counts[file["X/indices"][start:stop]] = file["X/data"][start:stop]
    return {"X": counts}


def _block(steps: int, file: h5py.File, index: int) -> dict[str, Any]:
    corner = [int(each) * 32 for each in np.unravel_index(index, (steps,) * 3)]
    cut = tuple(slice(low, low + 64) for low in corner)
    return {name: file[name][cut] for name in ("raw", "label")}


def _store_environment(stack: ExitStack, root: str) -> dict[str, str]:
    """Start the server of a folder, and return what leads clients of S3 to it."""
    url = stack.enter_context(ServerProcess(root, **LINK)).url
    names = {"AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    secrets = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}  # the server checks none
    return {**names, **secrets, "AWS_DEFAULT_REGION": "us-east-1"}


class _Process:
    """A contestant in a process of its own."""

    def __init__(self, name: str, case: str, options: BenchOptions, root: str, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="peers-", dir=root)
        told = json.dumps([name, case, options.folder, options.size, self._folder])
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        # Some libraries keep copies of what they read below the home of the user.
        own = {"HOME": self._folder, "PYTHONWARNINGS": "ignore", **environment}
        command = [sys.executable, "-m", "tests.bench.cases.peers", told]
        self._process = subprocess.Popen(command, **pipes, env={**os.environ, **own})

    def ask(self, what: str) -> Took:
        """Return the seconds of what it does."""
        with contextlib.suppress(BrokenPipeError):  # the answer says that it has ended
            print(what, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        seconds, error = json.loads(line) if line else (None, "its process has ended")
        if seconds is None:
            raise RuntimeError(error)
        return Took(seconds)

    def stop(self) -> None:
        """End it, and remove what it wrote."""
        self._process.kill()  # threads of some libraries do not end
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Served:
    """What the process of a contestant does: each method returns seconds."""

    def __init__(self, name: str, case: str, folder: str | None, size: float, out: str) -> None:
        self._peer, self._problem, self._folder = PEERS[name], _problem(case, folder, size), out
        self._loaders: dict[int, Iterable[Any]] = {}

    def verify(self) -> float:
        """Compare the rows of an epoch with those that h5py reads."""
        self.first()
        checks = [_bytes_of(row) for batch in self._loaders[2] for row in _rows_of(batch)]
        if sorted(checks) != sorted(_bytes_of(row) for row in self._problem.every()):
            raise RuntimeError("an epoch does not deliver each row once, with the bytes that h5py reads")
        return 0.0

    def first(self) -> float:
        """Convert, and read an epoch from nothing with the faster number of workers."""
        self._loaders.clear()
        out = tempfile.mkdtemp(dir=self._folder)
        start = time.perf_counter()
        if self._peer.convert is not None:
            self._peer.convert(self._problem, out)
        converted = time.perf_counter() - start
        taken = []
        for workers in (0, 2):
            start = time.perf_counter()
            self._loaders[workers] = self._peer.load(self._problem, out, workers)
            count_rows(self._loaders[workers], self._problem.rows)
            taken.append(time.perf_counter() - start)
        return converted + min(taken)

    def later(self, workers: int) -> float:
        """Read another epoch."""
        start = time.perf_counter()
        count_rows(self._loaders[workers], self._problem.rows)
        return time.perf_counter() - start


def _rows_of(batch: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    columns = {name: np.asarray(values) for name, values in batch.items()}
    return ({name: values[i] for name, values in columns.items()} for i in range(len(next(iter(columns.values())))))


def _bytes_of(row: Mapping[str, Any]) -> int:
    return hash(tuple(np.ascontiguousarray(row[name]).tobytes() for name in sorted(row)))


def _serve() -> None:
    """Answer the lines of the input until it ends: by seconds, or by the text of an error."""
    # What libraries print goes to the error output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    served = _Served(*json.loads(sys.argv[1]))
    actions = {
        "verify": served.verify,
        "first": served.first,
        "0": partial(served.later, 0),
        "2": partial(served.later, 2),
    }
    for line in sys.stdin:
        try:
            answer: Any = actions[line.strip()](), ""
        except Exception as exc:  # noqa: BLE001  whatever a library raises is an answer
            answer = None, f"{type(exc).__name__}: {exc}"
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
