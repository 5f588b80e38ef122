"""Benches of files in an object store, and of writing."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Generator
from functools import partial
from typing import Any

import ray_h5
from ray_h5 import RowReader
from ray_h5.storage.request_pool import fetched
from ray_h5.torch_data import H5Dataset
from tests.bench import BenchOptions
from tests.bench.baselines import epochs
from tests.bench.made_files import REMOTE_VALUES, make_bucket
from tests.bench.measure import OURS, Case, Result, Took, of_figures
from tests.kit.fault_server import ServerProcess

Cases = Generator[Case | Result, Any, None]

LINK = {"latency": 0.06, "rate": 80e6, "total": 400e6}
"""Seconds to the first byte of each answer, bytes a second of a stream, and of all."""


def bench_remote(options: BenchOptions) -> Cases:
    """Measure files on a server in another process on this machine, and count the requests of planning.

    `bound` is what such a link gives to requests of the size that ours are.
    """
    root, rows, runs = make_bucket(options.folder, options.size)
    local, row_bytes = os.path.join(root, "bench/rows.h5"), REMOTE_VALUES * 4
    with ServerProcess(root, **LINK) as server:
        store = {"endpoint": server.url, "region": "us-east-1", "skip_signature": True, "allow_http": True}
        with RowReader("s3://bench/rows.h5", storage_options=store) as reader:
            reader.read(["signal"])
            server.forget()
            contestants: dict[str, Any] = {
                OURS: lambda: epochs.count_rows([reader.read(["signal"])], rows),
                "bound": lambda: Took(rows * row_bytes / _bound(server)),
            }
            yield Case("whole column", [], contestants, rows, "rows/s", {"bound": 0.92})
        how: dict[str, Any] = {"columns": ["signal", "label"], "storage_options": store, "shuffle": True}
        of = partial(ray_h5.loader, "s3://bench/rows.h5", 64, kept_bytes=0, **how)
        epochs.verify_rows([local], ("signal", "label"), of())
        with epochs.ray_session(3 * rows * row_bytes):
            dataset = ray_h5.read_h5("s3://bench/rows.h5", **how)
            contestants = {
                OURS: partial(epochs.count_rows, of(), rows),
                "Ray": partial(epochs.ray_batches, dataset, rows),
            }
            yield Case("shuffled rows", [], contestants, rows, "rows/s", {"Ray": 1.0})
        yield from _plans(server, store, runs)


def _bound(server: ServerProcess) -> float:
    """Return the bytes a second that the link can give to requests like those of the log, by 64 streams."""
    part = statistics.median(each.nbytes for each in server.requests() if each.status == 206)
    return min(LINK["total"], 64 * LINK["rate"] * part / (part + LINK["rate"] * LINK["latency"]))


def _plans(server: ServerProcess, store: dict[str, Any], runs: int) -> Generator[Result, Any, None]:
    """Count what it takes to plan a file and to know all its chunks, and to plan many files.

    A round is requests that are sent together: the next ones wait for their answers.
    """

    def planned(name: str, columns: list[str], index_dir: str | None = None) -> float:
        server.forget()
        start = time.perf_counter()
        H5Dataset(f"s3://bench/{name}", columns=columns, storage_options=store, index_dir=index_dir)
        return time.perf_counter() - start

    for name in ("contiguous", "paged", "default"):
        before = fetched.value.rounds
        planned(f"{name}.h5", ["a", "b", "c"])
        rounds = fetched.value.rounds - before
        asked = [each for each in server.requests() if each.method == "GET"]
        if name == "default":
            megabytes = sum(each.nbytes for each in asked) / 1e6
            yield of_figures("remote", f"plan {name}, one-row chunks", "rounds", [rounds], most=12)
            yield of_figures("remote", f"plan {name}, one-row chunks", "MB", [megabytes], most=10)
        else:
            yield of_figures("remote", f"plan {name}", "requests", [len(asked)], most=2)
    with tempfile.TemporaryDirectory() as folder:
        for case, goal, most in (("first time", 3.0, 4.0), ("with index_dir", 0.0, None)):
            taken = planned("runs/*.h5", ["a", "b"], folder)
            asked = server.requests()
            listings = sum(each.is_listing for each in asked)
            many, requests = f"plan {runs} files, {case}", (len(asked) - listings) / runs
            yield of_figures("remote", many, "requests a file", [requests], most=goal)
            yield of_figures("remote", many, "listings", [listings], most=-(-runs // 1000))
            yield of_figures("remote", many, "s", [taken], most=most)
