"""Time contestants in turn, compare them, and print the results."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

OURS = "ray_h5"
"""The name of the contestant that is compared with the others."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a bench: medians over the turns, in `unit`; more is better, except in "s", "B" and "GB".

    `baseline` is "-" and `theirs` and `ratio` are None where the goal is an absolute figure. `ratio` is the median over
    the turns of ours / theirs in that turn. `spread` is the least and greatest ratio of a turn, or `ours`. `goal` is
    the least ratio, or the greatest `ours`; `ok` says whether it is reached: None without a goal, and for a workload of
    less than full size.
    """

    bench: str
    case: str
    baseline: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    spread: tuple[float, float]
    goal: float | None
    ok: bool | None


def compared(
    bench: str, case: str, seconds: Mapping[str, Sequence[float]], baseline: str, amount: float, unit: str, goal: Any
) -> Result:
    """Compare our seconds of each turn with those of a baseline; `amount` is the work of one turn, in `unit` x seconds.

    The ratio is the median of the ratios of each turn, not the ratio of the medians: contestants of one turn run
    seconds apart, so other load on the machine slows both about equally.
    """
    ours, theirs = seconds[OURS], seconds[baseline]
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    ratio, medians = statistics.median(ratios), [amount / statistics.median(each) for each in (ours, theirs)]
    ok = None if goal is None else ratio >= goal
    return Result(bench, case, baseline, unit, *medians, ratio, (min(ratios), max(ratios)), goal, ok)


def of_figures(bench: str, case: str, unit: str, values: Sequence[float], *, most: float | None = None) -> Result:
    """Return the line of figures without a baseline; `most` is the greatest median that is wanted."""
    middle = statistics.median(values)
    ok = None if most is None else middle <= most
    return Result(bench, case, "-", unit, middle, None, None, (min(values), max(values)), most, ok)


def run_turns(
    contestants: Mapping[str, Callable[[], object]],
    turns: int,
    warmups: int = 1,
    before: Callable[[], object] = gc.collect,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each timed turn, by contestant.

    Each turn runs every contestant once, after `before`, which collects garbage: otherwise that of one contestant may
    be collected during the timing of the next one. The order is rotated from turn to turn, and reversed in every
    second round of rotations, so that no contestant always runs after the same one. Results are deleted outside the
    timed part.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(-warmups, turns):
        for name in turn_order(list(contestants), turn):
            before()
            start = clock()
            result = contestants[name]()
            taken = clock() - start
            if turn >= 0:
                seconds[name].append(result if isinstance(result, Took) else taken)
            del result
    return seconds


def turn_order(names: list[str], turn: int) -> list[str]:
    """Return the order in which contestants run in a turn."""
    rounds, start = divmod(turn, len(names))
    rotated = names[start:] + names[:start]
    return rotated[::-1] if rounds % 2 else rotated


class Took(float):
    """Seconds that a contestant has measured itself; it returns them, and they count instead of those of its call."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table of cases: contestants that do the same work in turn.

    Parameters
    ----------
    name
        What is measured.
    files
        The files that are read.
    contestants
        Functions by name; `OURS` is ours.
    amount, unit
        The work of one call, in `unit` times seconds.
    goals
        Least ratio by baseline; for "-" the most seconds. A pair of names compares the first with the second,
        which is never `OURS`. None is no goal.
    warmups
        Turns before those that are timed.
    is_cold
        Whether the kernel lets the pages of the files go before each contestant.
    clock
        Returns seconds.
    """

    name: str
    files: Sequence[str]
    contestants: Mapping[str, Callable[[], object]]
    amount: float
    unit: str
    goals: Mapping[str | tuple[str, str], float | None]
    warmups: int = 1
    is_cold: bool = False
    clock: Callable[[], float] = time.perf_counter


def run_case(bench: str, case: Case, turns: int) -> tuple[list[Result], dict[str, list[float]]]:
    """Run the turns of a case; return its lines, and the seconds of each contestant."""
    before = partial(let_go, case.files) if case.is_cold else gc.collect
    seconds = run_turns(case.contestants, turns, case.warmups, before, case.clock)
    results = []
    for key, goal in case.goals.items():
        ours, baseline = key if isinstance(key, tuple) else (OURS, key)
        name = case.name if ours == OURS else f"{case.name}, {ours}"
        times = {**seconds, OURS: seconds[ours]}
        if baseline == "-":
            results.append(of_figures(bench, name, "s", times[OURS], most=goal))
        else:
            results.append(compared(bench, name, times, baseline, case.amount, case.unit, goal))
    return results, seconds


def let_go(paths: Sequence[str]) -> None:
    """Let the pages of files go from the page cache; they must not be written to at the same time."""
    gc.collect()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not written yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


NOTES = """\
ours, theirs: medians over the turns, in `unit`; more is better, except in s, B and GB
ratio: median over the turns of ours / theirs in the same turn: 2x is twice as fast
spread: least and greatest of the turns
goal: least ratio, or greatest figure where there is no baseline; not judged below --size 1"""


def to_table(results: Sequence[Result]) -> str:
    """Return the results as an aligned table, one line for each."""
    head = ("bench", "case", "baseline", "unit", "ours", "theirs", "ratio", "spread", "goal", "ok")
    return aligned([head, *map(cells, results)], texts=4)


def aligned(lines: Sequence[tuple[str, ...]], texts: int) -> str:
    """Return lines in columns: the first `texts` have words, and are aligned to the left; figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [f"{'<' if number < texts else '>'}{width}" for number, width in enumerate(widths)]
    return "\n".join("  ".join(map(format, line, sides)).rstrip() for line in lines)


def cells(result: Result) -> tuple[str, ...]:
    """Return what a line shows of a result."""
    sign, (least, most) = "<=" if result.baseline == "-" else ">=", result.spread
    return (
        *(result.bench, result.case, result.baseline, result.unit, figure(result.ours), figure(result.theirs)),
        "-" if result.ratio is None else f"{figure(result.ratio)}x",
        f"{figure(least)}..{figure(most)}",
        "-" if result.goal is None else f"{sign} {result.goal:g}",
        "-" if result.ok is None else ("yes" if result.ok else "NO"),
    )


def figure(value: float | None) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
