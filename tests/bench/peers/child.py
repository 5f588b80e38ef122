"""The process of one contestant: ``python -m tests.bench.peers.child CONTESTANT CASE SIZE FOLDER``.

It reads commands as lines of JSON from its input, and writes an answer each, of figures or of an error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from tests.bench.peers.contestants import CONTESTANTS, Contestant
from tests.bench.peers.problems import Problem, make_problem

__all__ = ["Tried", "try_out"]

_STRATA = 16
"""The parts of the files whose mixture in batches is measured."""

Rows = np.ndarray[Any, np.dtype[np.int64]]
Tried = dict[str, float]


def main() -> None:
    """Answer commands until the input ends."""
    name, case, size, folder = sys.argv[1:]
    # What libraries print goes to the error output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant, problem = CONTESTANTS[name], make_problem(case, folder, float(size))
    actions: Mapping[str, Callable[[Contestant, Problem, str], dict[str, float]]] = {
        "import": _import,
        "turn": turn,
        "try": try_out,
    }
    for line in chain([json.dumps({"do": "import", "out": ""})], sys.stdin):
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = actions[asked["do"]](contestant, problem, asked["out"])
        except Exception as exc:  # noqa: BLE001  whatever a library raises is an answer
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(answer), file=answers, flush=True)


def _import(contestant: Contestant, problem: Problem, _: str) -> dict[str, float]:
    importlib.import_module(contestant.module)
    if contestant.prepare is not None:
        contestant.prepare(problem)
    return {}


def turn(contestant: Contestant, problem: Problem, out: str) -> dict[str, float]:
    """Convert, and read an epoch from nothing and another one, without workers and with two.

    Returns
    -------
    dict
        Seconds of the conversion, and to the end of the first epoch with the faster number of workers; bytes written;
        and rows a second of the second epoch.
    """
    start = time.perf_counter()
    contestant.convert(problem, out)
    converted = time.perf_counter() - start
    first, steady, disk = [], [], 0
    for workers in (0, 2):
        start = time.perf_counter()
        batches = contestant.load(problem, out, workers)
        _count(batches, problem)
        first.append(time.perf_counter() - start)
        start = time.perf_counter()
        _count(batches, problem)
        steady.append(problem.rows / (time.perf_counter() - start))
        del batches
        disk = disk or _bytes_below(out)  # two workers read a store into a cache of their own
    return {
        "conversion": converted,
        "first": converted + min(first),
        "disk": float(disk),
        "steady 0": steady[0],
        "steady 2": steady[1],
    }


def _count(batches: Iterable[Any], problem: Problem) -> None:
    """Go through an epoch.

    Raises
    ------
    RuntimeError
        If it has not all rows.
    """
    rows = sum(len(batch[next(iter(_names(problem, batch)))]) for batch in batches)
    if rows != problem.rows:
        raise RuntimeError(f"an epoch has {rows} rows, expected {problem.rows}")


def _names(problem: Problem, batch: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of a batch, ours or short, each with its short name."""
    return {(name if name in batch else short): short for short, name in problem.names.items()}


def _bytes_below(folder: str) -> int:
    return sum(os.stat(os.path.join(above, name)).st_size for above, _, names in os.walk(folder) for name in names)


def try_out(contestant: Contestant, problem: Problem, out: str) -> Tried:
    """Try what a loader promises: each row once with its bytes, its mixture, the same order again, and resuming.

    Returns
    -------
    dict
        How well an epoch is mixed, 0 to 1; whether two workers change its order; and whether an epoch goes on exactly
        after half of it, without workers and with two.
    """
    known = _known(problem)
    orders = [_order(contestant.load(problem, out, workers), problem, known) for workers in (0, 2)]
    for order in orders:
        if not np.array_equal(np.sort(order), np.arange(problem.rows)):
            raise RuntimeError("an epoch does not deliver each row once")
    resumed = [
        _resumes(contestant, problem, out, workers, known, order) for workers, order in zip((0, 2), orders, strict=True)
    ]
    return {
        "quality": float(np.mean([_quality(order, problem.batch) for order in orders])),
        "same order": float(np.array_equal(orders[0], orders[1])),
        "resumes": float(all(resumed)),
    }


def _known(problem: Problem) -> dict[int, int]:
    """Return the number of each row, by the checksum of its bytes as plain h5py reads them."""
    samples = (sample for part in range(len(problem.parts)) for sample in problem.samples(part))
    return {_check(sample, problem): number for number, sample in enumerate(samples)}


def _check(sample: Mapping[str, Any], problem: Problem) -> int:
    found = 0
    for name, (dtype, shape) in problem.columns.items():
        values = np.ascontiguousarray(sample[name]).astype(dtype, copy=False)
        if values.shape != shape:
            raise RuntimeError(f"{name} has shape {values.shape}, expected {shape}")
        found = zlib.crc32(values.tobytes(), found)
    return found


def _order(batches: Iterable[Any], problem: Problem, known: Mapping[int, int]) -> Rows:
    """Return the numbers of the rows as they come.

    Raises
    ------
    RuntimeError
        If the bytes of a row are not those of any row.
    """
    order = []
    for batch in batches:
        columns = {short: np.asarray(batch[name]) for name, short in _names(problem, batch).items()}
        for row in range(len(next(iter(columns.values())))):
            number = known.get(_check({name: values[row] for name, values in columns.items()}, problem))
            if number is None:
                raise RuntimeError("the bytes of a row differ from those that h5py reads")
            order.append(number)
    return np.array(order)


def _resumes(
    contestant: Contestant, problem: Problem, out: str, workers: int, known: Mapping[int, int], order: Rows
) -> bool:
    """Return whether a new loader goes on where another one was left after half of its batches."""
    load = contestant.resumable or contestant.load
    broken: Any = load(problem, out, workers)
    if not hasattr(broken, "state_dict"):
        return False
    if contestant.resumable is not None:  # its order is another one
        order = _order(broken, problem, known)
        broken = load(problem, out, workers)
    half = max(1, problem.rows // problem.batch // 2)
    batches = iter(broken)
    seen = _order((next(batches) for _ in range(half)), problem, known)
    state = broken.state_dict()
    del batches, broken
    another: Any = load(problem, out, workers)
    another.load_state_dict(state)
    rest = _order(another, problem, known)
    return np.array_equal(np.concatenate([seen, rest]), order)


def _quality(order: Rows, batch: int) -> float:
    """Return how well rows of all parts of the files are mixed in batches: 0 in order, 1 as an exact shuffle does."""
    found, exact, none = (
        _distance(each, batch)
        for each in (order, np.random.default_rng(0).permutation(len(order)), np.arange(len(order)))
    )
    return float(np.clip((none - found) / (none - exact), 0, 1)) if none > exact else 1.0


def _distance(order: Rows, batch: int) -> float:
    """Return the mean total variation between the parts of the files in a batch and in all rows."""
    strata = order * _STRATA // len(order)
    whole = np.bincount(strata, minlength=_STRATA) / len(order)
    batches = np.array_split(strata, max(1, len(order) // batch))
    shares = [np.bincount(each, minlength=_STRATA) / len(each) for each in batches]
    return float(np.mean([np.abs(share - whole).sum() / 2 for share in shares]))


if __name__ == "__main__":
    main()
