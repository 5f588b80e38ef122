"""One bench with two versions of the package in turn: what a change costs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import BenchOptions
from tests.bench.measure import aligned, figure, turn_order

_HERE = Path(__file__).resolve()
_SCRIPT = _HERE.with_name("own_seconds.py")

NOTES = """\
before, now: seconds of the fastest turn of a process, of a thousand where the bench counts; medians over the processes
ratio: median over the turns of now / before in the same turn: below 1 is faster now
spread: least and greatest of the turns
cpu: the same of the seconds of the CPU, of the process and of its children, but not of those of Ray"""

Figures = dict[str, tuple[float, ...]]
"""By line, the seconds of the clock, and those of the CPU where the bench does not measure itself."""


def compare_versions(name: str, options: BenchOptions, checkout: str) -> str:
    """Return the table of a bench of this checkout and of an older one, each turn in a process of its own for each.

    Each checkout has its own cases, as these import what is inside the package; lines that both have are compared.
    """
    roots = {"now": _HERE.parents[2], "before": Path(checkout).resolve()}
    figures: dict[str, list[Figures]] = {version: [] for version in roots}
    for turn in range(options.turns):
        for version in turn_order([*roots], turn):
            figures[version].append(_run_in(roots[version], name, options))
    return to_table(figures["now"], figures["before"])


def _run_in(root: Path, name: str, options: BenchOptions) -> Figures:
    arguments = [name, repr(options.size), *([] if options.folder is None else [os.path.abspath(options.folder)])]
    # By its path: the older checkout may not have it. Its folder is not where modules are imported from.
    run = f"import runpy; runpy.run_path({str(_SCRIPT)!r}, run_name='__main__')"
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", run, *arguments], cwd=root, env=env, stdout=subprocess.PIPE, check=True, text=True
    )
    return {line: tuple(seconds) for line, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def to_table(now: Sequence[Figures], before: Sequence[Figures]) -> str:
    """Return the lines that both versions have in each turn, as an aligned table."""
    lines = [("case", "before", "now", "ratio", "spread", "cpu", "spread")]
    for line in now[0]:
        if all(line in figures for figures in (*now, *before)):
            pairs = [(mine[line], theirs[line]) for mine, theirs in zip(now, before, strict=True)]
            medians = [statistics.median(pair[version][0] for pair in pairs) for version in (1, 0)]
            lines.append((line, *map(figure, medians), *_ratio(pairs, 0), *_ratio(pairs, 1)))
    return aligned(lines, texts=1)


def _ratio(pairs: Sequence[tuple[tuple[float, ...], tuple[float, ...]]], clock: int) -> tuple[str, str]:
    ratios = [mine[clock] / theirs[clock] for mine, theirs in pairs if len(mine) > clock and theirs[clock]]
    if not ratios:
        return "-", "-"
    return f"{figure(statistics.median(ratios))}x", f"{figure(min(ratios))}..{figure(max(ratios))}"
