"""``ray-h5 bench peers``: other formats and libraries, from HDF5 files to the end of the first epoch, and after it.

Each contestant is a process of its own. Each turn asks one after another: convert, an epoch from nothing, another
epoch. At the end each contestant is tried: its rows are compared with those that h5py reads, two workers with none,
and a resumed epoch with a whole one. Contestants whose library is not installed are left out:
``pip install 'ray_h5[peers]'``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import site
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from ray_h5.bench.measure import OURS, Result, turn_order
from ray_h5.bench.peers.contestants import CONTESTANTS
from ray_h5.bench.peers.memory import PeakMemory
from ray_h5.bench.peers.problems import PROBLEMS, make_problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ray_h5.bench import BenchOptions

__all__ = ["bench_peers"]

_GOAL = 5.0
_PATIENCE_S = 10
_UNITS = {
    "first epoch": "s",
    "conversion": "s",
    "extra disk": "MB",
    "0 workers": "rows/s",
    "2 workers": "rows/s",
    "memory": "MB",
    "shuffle quality": "of 1",
    "resumes exactly": "of 1",
    "same order": "of 1",
}


def bench_peers(options: BenchOptions) -> list[Result]:
    """Measure all cases.

    Raises
    ------
    RuntimeError
        If a contestant fails, or delivers other rows than h5py.
    """
    return [result for case in PROBLEMS for result in _measure(case, options)]


def _measure(case: str, options: BenchOptions) -> list[Result]:
    problem = make_problem(case, options.folder, options.size)
    names = [name for name, each in CONTESTANTS.items() if case in each.cases and is_installed(name)]
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    running: dict[str, _Process] = {}
    try:
        for name in names:
            running[name] = _Process(name, case, options.size, os.path.dirname(os.path.dirname(problem.paths[0])))
        for turn in range(options.turns):
            for name in turn_order(names, turn):
                turns[name].append(running[name].turn())
        tried = {name: running[name].tried() for name in names}
    finally:
        for each in running.values():
            each.stop()
    label = f"{case}, {problem.rows} rows of {problem.row_bytes / 1e3:.3g} kB"
    found = {name: _measures(turns[name], tried[name]) for name in names}
    return [
        _result(f"{label}: {measure}", name, measure, found[OURS][measure], values)
        for name in names
        if name != OURS
        for measure, values in found[name].items()
    ]


def is_installed(name: str) -> bool:
    """Return whether the library of a contestant is installed."""
    return importlib.util.find_spec(CONTESTANTS[name].module) is not None


def _measures(turns: Sequence[Mapping[str, float]], tried: Mapping[str, float]) -> dict[str, list[float]]:
    """Return the figures of each turn, by measure."""
    of_turns = {
        "first epoch": "first",
        "conversion": "conversion",
        "extra disk": "disk",
        "0 workers": "steady 0",
        "2 workers": "steady 2",
        "memory": "memory",
    }
    of_trial = {"shuffle quality": "quality", "resumes exactly": "resumes", "same order": "same order"}
    return {
        **{measure: [each[key] for each in turns] for measure, key in of_turns.items()},
        **{measure: [tried[key]] * len(turns) for measure, key in of_trial.items()},
    }


def _result(case: str, baseline: str, measure: str, ours: list[float], theirs: list[float]) -> Result:
    """Compare by the ratio in which more is better for us, if it means something."""
    unit, middle = _UNITS[measure], statistics.median(ours)
    if unit == "s" and middle > 1e-3:
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    elif unit == "rows/s":
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    else:
        ratios = []
    ratio = statistics.median(ratios) if ratios else None
    goal = _GOAL if measure == "first epoch" and CONTESTANTS[baseline].package != OURS else None
    return Result(
        bench="peers",
        case=case,
        baseline=baseline,
        unit=unit,
        ours=middle,
        theirs=statistics.median(theirs),
        ratio=ratio,
        spread=(min(ratios), max(ratios)) if ratios else (min(theirs), max(theirs)),
        goal=goal,
        ok=None if goal is None or ratio is None else ratio >= goal,
    )


class _Process:
    """A contestant in a process of its own."""

    def __init__(self, name: str, case: str, size: float, workloads: str) -> None:
        self._name = f"{name}, {case}"
        self._folder = tempfile.mkdtemp(prefix="peers-", dir=workloads)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by stop
        self._out = ""
        child = [sys.executable, "-m", "ray_h5.bench.peers.child", name, case, str(size), workloads]
        # Some libraries keep copies of what they read below the home of the user.
        # TMPDIR stays: sockets of workers lie there, and the system allows them about 100 letters.
        own = {"HOME": self._folder, "PYTHONUSERBASE": site.getuserbase()}
        environment = {**os.environ, **own, "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(  # noqa: S603  this very Python
            child,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env=environment,
        )
        self._answer()

    def turn(self) -> dict[str, float]:
        """Run a turn in an empty folder; the folder of the turn before goes."""
        shutil.rmtree(self._out, ignore_errors=True)
        self._out = tempfile.mkdtemp(dir=self._folder)
        with PeakMemory(self._process.pid) as peak:
            found = self._ask("turn")
        return {**found, "disk": found["disk"] / 1e6, "memory": peak.nbytes / 1e6}

    def tried(self) -> dict[str, float]:
        """Try what the loader promises, with what the last turn has written."""
        return self._ask("try")

    def _ask(self, what: str) -> dict[str, float]:
        assert self._process.stdin is not None
        print(json.dumps({"do": what, "out": self._out}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            self._errors.seek(0)
            raise RuntimeError(f"{self._name}: {answer['error']}\n{self._errors.read()[-2000:]}")
        return answer

    def stop(self) -> None:
        """End it, and remove what it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # threads of some libraries do not end
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)
