"""Bench `repack`: what a repack gains, and what it costs; `write_h5` against `write_parquet`.

`large chunks` and `middle chunks` are files of rows of 344 KB, gzip, 300 and 48 rows a chunk. A turn reads batches
of 16 random rows, ours from the repacked file; the other side is the same reading from the file as it was.

`repack` is without reading back. It is compared with a loop that decodes each chunk and does nothing else, with one
that encodes each new chunk and does nothing else, with h5repack where it is installed, and, where no chunk
changes, with the copy of a file. All of these wait until the disk has the file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import ray.data
from joblib import cpu_count

import ray_h5
from ray_h5.buffers import as_bytes
from ray_h5.codecs.encode import Encoder
from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.manifest.layout import FilterPipeline
from ray_h5.torch_data.dataset import H5Dataset
from ray_h5.writing.output import steps_of, sync
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.workloads import cached_folder, make_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench import BenchOptions

__all__ = ["bench_repack"]

_VALUES = 86_000
_ROWS = 1200
_CHUNKS = {"large chunks": (300, 20.0), "middle chunks": (48, 5.0)}
_BATCH_ROWS, _BATCHES = 16, 3
_COLUMNS = ["fhr_st", "target", "weight"]
_LEAST_STORE_BYTES = 1 << 30


def bench_repack(options: BenchOptions) -> list[Result]:
    """Measure shuffled rows before and after a repack, its speed, and `write_h5`.

    Raises
    ------
    RuntimeError
        If Ray is already running in this process, or rows differ after a repack.
    """
    results: list[Result] = []
    rows = max(16, round(_ROWS * options.size))
    folder = cached_folder(options.folder, f"repack-v1-rows{rows}", partial(_write, rows))
    with tempfile.TemporaryDirectory(prefix="repack.", dir=Path(folder).parent) as out:
        for case, (_, goal) in _CHUNKS.items():
            results.append(_shuffled(case, os.path.join(folder, f"{case}.h5"), out, rows, goal, options.turns))
        path = os.path.join(folder, "large chunks.h5")
        results += _speed(path, out, rows, options.turns)
        results.append(_verbatim(path, out, rows, options.turns))
        results.append(_written(options, out))
    return results


def _write(rows: int, folder: str) -> None:
    rng = np.random.default_rng(0)
    for case, (chunk_rows, _) in _CHUNKS.items():
        chunk = min(chunk_rows, rows)
        with h5py.File(os.path.join(folder, f"{case}.h5"), "w") as file:
            x = file.create_dataset(
                "x",
                (rows, _VALUES),
                "f4",
                chunks=(chunk, _VALUES),
                compression="gzip",
                compression_opts=1,
                shuffle=True,
            )
            for start in range(0, rows, chunk):
                count = min(chunk, rows - start)
                x[start : start + count] = np.round(30 * rng.standard_normal((count, _VALUES))) / 8
            file["id"] = np.arange(rows)


def _megabytes(rows: int) -> float:
    return rows * _VALUES * 4 / 1e6


def _shuffled(case: str, path: str, out: str, rows: int, goal: float, turns: int) -> Result:
    fast = os.path.join(out, "shuffled.h5")
    ray_h5.repack(path, fast, overwrite=True)
    before, after = (H5Dataset(each, ["x", "id"], kept_bytes=0) for each in (path, fast))
    orders = [np.random.default_rng(turn).permutation(rows)[: _BATCH_ROWS * _BATCHES] for turn in range(2)]
    for name, values in before.read(orders[0]).items():
        if values.tobytes() != after.read(orders[0])[name].tobytes():
            raise RuntimeError(f"{path}: column {name!r} differs after a repack")

    def batches(dataset: H5Dataset) -> None:
        for start in range(0, len(orders[1]), _BATCH_ROWS):
            dataset.read(orders[1][start : start + _BATCH_ROWS])

    contestants: dict[str, Callable[[], object]] = {
        OURS: partial(batches, after),
        "not repacked": partial(batches, before),
    }
    contest = Contest("repack", f"{case}, shuffled rows", run_turns(contestants, turns))
    for dataset in (before, after):
        dataset.close()
    return contest.against("not repacked", amount=len(orders[1]), unit="rows/s", goal=goal)


def _speed(path: str, out: str, rows: int, turns: int) -> list[Result]:
    fast, other = os.path.join(out, "fast.h5"), os.path.join(out, "h5repack.h5")
    threads = cpu_count()
    with h5py.File(path) as file:
        x = file["x"]
        stored = [x.id.read_direct_chunk((start, 0))[1] for start in range(0, rows, x.chunks[0])]
        values = np.ascontiguousarray(x[: x.chunks[0]])
        decoder = ChunkDecoder(FilterPipeline(steps_of(x.id.get_create_plist())), values.nbytes)
    encoder = Encoder("zstd", 4)

    def decoded(data: bytes) -> None:
        out = np.empty(values.nbytes, np.uint8)
        decoder.decode(np.frombuffer(data, np.uint8), 0, out, lambda _, size: np.empty(size, np.uint8))

    def decode() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decoded, stored))

    def encode() -> None:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(0, rows, len(values)):
                list(pool.map(lambda row: encoder.encode(as_bytes(row)), values))

    def h5repack() -> None:
        command = ["h5repack", "-l", f"x:CHUNK=1x{_VALUES}", "-f", "x:SHUF", "-f", "x:GZIP=4", path, other]
        subprocess.run(command, check=True, capture_output=True)
        sync(other)

    contestants: dict[str, Callable[[], object]] = {
        OURS: lambda: ray_h5.repack(path, fast, overwrite=True, verify=False),
        "decode alone": decode,
        "encode alone": encode,
    }
    if shutil.which("h5repack"):
        contestants["h5repack"] = h5repack
    seconds = run_turns(contestants, turns)
    slower = max(("decode alone", "encode alone"), key=lambda name: sorted(seconds[name])[turns // 2])
    contest = Contest("repack", "large chunks, new chunks", seconds)
    goals = {slower: 0.5, "h5repack": 5.0}
    return [
        contest.against(name, amount=_megabytes(rows), unit="MB/s", goal=goals.get(name))
        for name in contestants
        if name != OURS
    ]


def _verbatim(path: str, out: str, rows: int, turns: int) -> Result:
    copy, same = os.path.join(out, "copy.h5"), os.path.join(out, "same.h5")

    def cp() -> None:
        shutil.copyfile(path, copy)
        sync(copy)

    contestants: dict[str, Callable[[], object]] = {
        OURS: lambda: ray_h5.repack(
            path, same, chunk_rows=min(_CHUNKS["large chunks"][0], rows), codec="keep", overwrite=True, verify=False
        ),
        "cp": cp,
    }
    contest = Contest("repack", "large chunks, same chunks", run_turns(contestants, turns))
    return contest.against("cp", amount=Path(path).stat().st_size / 1e6, unit="MB/s", goal=0.7)


def _written(options: BenchOptions, out: str) -> Result:
    workload = make_workload("signals", options.folder, options.size)
    amount = workload.rows * workload.row_bytes(tuple(_COLUMNS))
    target = os.path.join(out, "written")
    with ray_session(max(_LEAST_STORE_BYTES, 4 * amount)):
        ds = ray_h5.read_h5(list(workload.paths), columns=_COLUMNS).materialize()

        def parquet(ds: ray.data.Dataset) -> None:
            ds.write_parquet(f"{target}-parquet", mode="overwrite")

        contestants: dict[str, Callable[[], object]] = {
            OURS: lambda: ray_h5.write_h5(ds, target, mode="overwrite"),
            "write_parquet": lambda: parquet(ds),
        }
        contest = Contest("repack", "signals, write_h5", run_turns(contestants, options.turns))
    return contest.against("write_parquet", amount=amount / 1e6, unit="MB/s", goal=0.7)
