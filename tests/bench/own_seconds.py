"""Run a bench of the checkout that is the working folder, without its baselines; print the seconds of each line.

`tests.bench.against` runs this also in older checkouts, of which it takes what each of them has.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.bench import BenchOptions, measure, run

_TURNS = 3
"""The fastest one counts: the others met other work of the machine."""


def own_figures(name: str, options: BenchOptions) -> dict[str, list[float]]:
    """Return for each line the seconds of the clock, and those of the CPU unless the bench measures itself."""
    found: dict[str, list[float]] = {}

    def timed(_: str, case: measure.Case, turns: int) -> tuple[list[measure.Result], Mapping[str, Sequence[float]]]:
        ours = {measure.OURS, *(key[0] for key in case.goals if isinstance(key, tuple))}
        contestants = {each: work for each, work in case.contestants.items() if each in ours}
        both: Any = _clock_and_cpu  # an array of two is subtracted as a number is
        seconds = measure.run_turns(contestants, turns, case.warmups, clock=both)
        for each, taken in seconds.items():
            line = case.name if each == measure.OURS else f"{case.name}, {each}"
            found[line] = np.min([np.ravel(one) for one in taken], axis=0).tolist()
        return [], {each: [float(np.ravel(one)[0]) for one in taken] for each, taken in seconds.items()}

    measure.run_case = timed
    results = run(name, options)
    return found | dict(_of_results(results))


def _clock_and_cpu() -> np.ndarray[Any, Any]:
    usages = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in usages)])


def _of_results(results: Sequence[measure.Result]) -> Iterator[tuple[str, list[float]]]:
    for result in results:
        if result.unit == "s":
            yield result.case, [result.ours]
        elif result.unit.endswith("/s") and result.ours:
            yield result.case, [1000 / result.ours]


if __name__ == "__main__":
    _name, _size, *_folder = sys.argv[1:]
    _figures = own_figures(_name, BenchOptions(float(_size), _TURNS, *_folder))
    print("\n" + json.dumps(_figures))
