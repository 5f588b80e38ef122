"""The figures of ``python -m tests.bench peers`` as a table: a line for each contestant of a case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.measure import OURS, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.measure import Result

__all__ = ["to_notes", "to_wide_table"]

_HEADS = {
    "conversion": "convert, s",
    "extra disk": "disk, MB",
    "first epoch": "first epoch, s",
    "of bare read": "of bare read",
    "0 workers": "rows/s, 0",
    "2 workers": "rows/s, 2",
    "memory": "memory, MB",
    "shuffle quality": "shuffle",
    "same order": "same order",
    "resumes exactly": "resumes",
}
_TRIED = ("same order", "resumes exactly")


def to_wide_table(results: Sequence[Result]) -> str:
    """Return the results as Markdown tables, one for each case."""
    cases: dict[str, dict[str, dict[str, Result]]] = {}
    for each in results:
        case, _, measure = each.case.rpartition(": ")
        cases.setdefault(case, {}).setdefault(each.baseline, {})[measure] = each
    return "\n\n".join(f"{case}\n\n{_table(contestants)}" for case, contestants in cases.items())


def _table(contestants: dict[str, dict[str, Result]]) -> str:
    head = ["", *_HEADS.values(), "we are sooner"]
    lines = [head]
    if contestants:
        first = next(iter(contestants.values()))
        lines.append([OURS, *(_cell(name, first[name].ours if name in first else None) for name in _HEADS), ""])
    for name, measures in contestants.items():
        sooner = measures["first epoch"]
        assert sooner.ratio is not None
        times = f"{figure(sooner.ratio)}x ({figure(sooner.spread[0])} .. {figure(sooner.spread[1])})"
        lines.append(
            [name, *(_cell(each, measures[each].theirs if each in measures else None) for each in _HEADS), times]
        )
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return "\n".join([rows[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rows[1:]])


def _cell(measure: str, value: float | None) -> str:
    if measure == "of bare read" and value is not None:
        return f"{figure(value)}x"
    if measure in _TRIED:
        return "yes" if value else "no"
    if measure in {"conversion", "extra disk"} and (value or 0) < 1e-3:
        return "-"
    return figure(value)


def to_notes() -> str:
    """Return what the columns mean."""
    notes = {
        "convert, disk": "what is written; of a store, what its reader keeps on the disk, too",
        "first epoch": "from nothing to the end of the first epoch, conversion included, libraries imported",
        "of bare read": "first epoch / that of the bare read, which reads and decodes each chunk once",
        "rows/s, 0 and 2": "the second epoch, without workers and with two (threads of ray_h5)",
        "memory": "the most that all its processes hold, without pages of files",
        "shuffle": "how well the parts of the files are mixed in batches: 0 in order, 1 as an exact shuffle",
        "same order": "tried: two workers deliver the order of none",
        "resumes": "tried: a new loader goes on exactly after half an epoch, without workers and with two",
        "we are sooner": "seconds to the end of the first epoch, theirs / ours: median (least .. greatest turn)",
    }
    return "\n".join(f"{what}: {said}" for what, said in notes.items())
