"""Bench `peers`: other formats and libraries, from HDF5 files to the end of the first epoch, and after it.

Each contestant is a process of its own. Each turn asks one after another: convert, an epoch from nothing, another
epoch. At the end each contestant is tried: its rows are compared with those that h5py reads, two workers with none,
and a resumed epoch with a whole one. Contestants whose library is not installed are left out:
``pip install 'ray_h5[peers]'``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import site
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ray_h5.errors import OptionError
from ray_h5.messages import near_names
from tests.bench.cases.remote import LATENCY_S, RATE, TOTAL
from tests.bench.measure import OURS, Result, turn_order
from tests.bench.peers.contestants import BARE, CONTESTANTS
from tests.bench.peers.memory import PeakMemory
from tests.bench.peers.problems import PROBLEMS, make_problem
from tests.bench.peers.report import Report, about
from tests.kit.fault_server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.bench import BenchOptions

__all__ = ["bench_peers", "records"]

_GOAL = 5.0
_PATIENCE_S = 10
_LIMIT_S = 600
"""How long a contestant may take for one answer: a turn, or all that is tried."""

_WORDS = 500
"""How much of the errors of a process that ended is shown."""

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
    "of bare read": "x",
}


def bench_peers(options: BenchOptions) -> list[Result]:
    """Measure all cases and return their figures; `records` yields these and more.

    Raises
    ------
    RuntimeError
        If ours fails, or delivers other rows than h5py.
    """
    report = Report()
    for each in records(options):
        report.add(each)
    return report.results


def records(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """Measure cases, and yield what `Report.add` takes, as soon as it is known.

    Raises
    ------
    OptionError
        If a case is unknown.
    RuntimeError
        At the end, if ours fails, or delivers other rows than h5py.
    """
    for case in options.cases:
        if case not in PROBLEMS:
            raise OptionError(f"--case {case}: expected {', '.join(PROBLEMS)}.{near_names(case, PROBLEMS)}")
    yield {"about": about(options.size, options.turns)}
    for name, each in CONTESTANTS.items():
        if not is_installed(name):
            yield {"left out": {"contestant": name, "reason": f"not installed: pip install {each.package}"}}
    failed = []
    for case in options.cases or PROBLEMS:
        start = time.perf_counter()
        for record in _measure(case, options):
            failed += [record] if record.get("left out", {}).get("contestant") == OURS else []
            yield record
        yield {"took": {"case": case, "seconds": time.perf_counter() - start}}
    if failed:
        raise RuntimeError("; ".join("{case}: {reason}".format(**each["left out"]) for each in failed))


def _measure(case: str, options: BenchOptions) -> Iterator[dict[str, Any]]:
    """Yield the figures of a case. A contestant that fails is left out by name, and the others go on."""
    problem = make_problem(case, options.folder, options.size)
    root = os.path.dirname(os.path.dirname(problem.paths[0]))
    running: dict[str, _Process] = {}
    turns: dict[str, list[dict[str, float]]] = {}
    tried: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        environment = _store_environment(stack, root) if problem.store else {}
        for name in [name for name, each in CONTESTANTS.items() if case in each.cases and is_installed(name)]:
            running[name] = _Process(name, case, options.size, root, environment)
            stack.callback(running[name].stop)
            turns[name] = []
        steps: list[Callable[[str], object]] = [lambda name: running[name].ready()]
        steps += [lambda name: turns[name].append(running[name].turn())] * options.turns
        steps += [lambda name: tried.update({name: running[name].tried()})]
        for number, step in enumerate(steps):
            for name in turn_order(list(running), number):
                try:
                    step(name)
                except RuntimeError as exc:
                    running.pop(name).stop()
                    yield {"left out": {"contestant": name, "case": case, "reason": str(exc)}}
            if OURS not in running:
                return
    label = f"{case}, {problem.rows} rows of {problem.row_bytes / 1e3:.3g} kB"
    found = {name: _measures(turns[name], tried[name]) for name in running}
    if BARE in found:
        floor = found[BARE]["first epoch"]
        for measures in found.values():
            pairs = zip(measures["first epoch"], floor, strict=True)
            measures["of bare read"] = [seconds / bare for seconds, bare in pairs]
    ours = found.pop(OURS)
    for name, measures in found.items():
        for measure, values in measures.items():
            result = _result(f"{label}: {measure}", name, measure, ours[measure], values)
            yield {"result": asdict(result if options.size >= 1 else replace(result, ok=None))}


def _store_environment(stack: ExitStack, root: str) -> dict[str, str]:
    """Start the server of a folder, and return what leads clients of S3 to it."""
    server = stack.enter_context(ServerProcess(root, latency=LATENCY_S, rate=RATE, total=TOTAL))
    secrets = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}  # the server checks none
    where = {"AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**secrets, **where, "S3_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true"}


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

    def __init__(self, name: str, case: str, size: float, workloads: str, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="peers-", dir=workloads)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by stop
        self._out = ""
        child = [sys.executable, "-m", "tests.bench.peers.child", name, case, str(size), workloads]
        # Some libraries keep copies of what they read below the home of the user.
        # TMPDIR stays: sockets of workers lie there, and the system allows them about 100 letters.
        own = {"HOME": self._folder, "PYTHONUSERBASE": site.getuserbase(), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            child,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **own, **environment},
        )

    def ready(self) -> None:
        """Wait until its libraries are imported."""
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
        with contextlib.suppress(BrokenPipeError):  # the answer says that it has ended
            print(json.dumps({"do": what, "out": self._out}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        limit, start = threading.Timer(_LIMIT_S, self._kill), time.monotonic()
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        is_late = time.monotonic() - start >= _LIMIT_S
        ended = f"no answer within {_LIMIT_S} s" if is_late else f"its process has ended: {self._last_words()}"
        answer: dict[str, Any] = json.loads(line) if line else {"error": ended}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-_WORDS:]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with all that it started

    def stop(self) -> None:
        """End it, and remove what it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S)
        self._kill()  # threads of some libraries do not end
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)
