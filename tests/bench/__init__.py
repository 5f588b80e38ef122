"""Benches: ray_h5 against plain ways to do the same, on generated files, in one run on one machine.

A bench is a function that yields `Case`s, or `Result`s that it has measured itself. Importing this package is cheap: a
bench imports what it measures when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.bench.measure import Result


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of a bench.

    Parameters
    ----------
    size
        Scales the number of rows of every workload; the goals are meant for 1.0.
    turns
        Timed turns of each contestant.
    folder
        The folder of the workloads; by default a folder of this user below the system's temporary folder.
    """

    size: float = 1.0
    turns: int = 5
    folder: str | None = None


_MODULES = {
    "gpu": "gpu",
    "loading": "images loader shuffle",
    "peers": "peers",
    "planning": "plan",
    "ray_training": "draws filter ray train",
    "reading": "cold read",
    "rows_and_columns": "groups patches sparse windows",
    "stores_and_writing": "remote",
    "worldmodel": "worldmodel",
}
BENCHES = {name: module for module, names in _MODULES.items() for name in names.split()}
"""The benches, and the module of each, as ``python -m tests.bench NAME`` runs them."""


def run(name: str, options: BenchOptions, report: Callable[[Result], object] = lambda _: None) -> list[Result]:
    """Run the cases of a bench one after another, each with the seconds of the one before sent to it.

    `report` is called with each result when its case is done: a bench may take long.
    """
    from tests.bench.measure import Case, run_case

    cases = getattr(import_module(f"tests.bench.cases.{BENCHES[name]}"), f"bench_{name}")(options)
    results: list[Result] = []
    seconds: Any = None
    while True:
        try:
            made = cases.send(seconds)
        except StopIteration:
            break
        done, seconds = [made], None
        if isinstance(made, Case):
            if not results:
                os.sync()  # files that were just made are still being written, and the first turns take far longer
            done, seconds = run_case(name, made, options.turns)
        for result in done:
            # Smaller workloads measure what each call costs, not what the goals are about.
            results.append(result if options.size >= 1 else replace(result, ok=None))
            report(results[-1])
    return results
