"""What the bench `peers` found: one JSON object a line, so that what is measured stays if the bench ends early.

``python -m tests.bench.peers.report peers.json`` prints the tables of docs/peers.md; with a page as a second argument
it writes them into that page, between its two marks.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tests.bench.measure import Result, figure
from tests.bench.peers.contestants import CONTESTANTS
from tests.bench.peers.table import to_wide_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

__all__ = ["Report", "about", "nearer_than_goal"]

_MARKS = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)
_REASON = 200
"""Letters of a reason that the tables show; the lines of JSON have it whole."""

_CPU = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)


@dataclass(slots=True)
class Report:
    """The records of a run.

    Attributes
    ----------
    about
        The machine, the versions, and the options of the run.
    results
        The figures, in the order of the cases.
    left_out
        Contestants that are not installed, or that failed: ``contestant``, ``reason``, and ``case`` unless it is all.
    seconds
        How long each case took.
    """

    about: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Take a record, as the bench yields it and as a line of its JSON says it."""
        ((kind, value),) = record.items()
        if kind == "result":
            self.results.append(Result(**{**value, "spread": tuple(value["spread"])}))
        elif kind == "left out":
            self.left_out += [value] if value not in self.left_out else []
        elif kind == "took":
            self.seconds[value["case"]] = value["seconds"]
        else:
            self.about = value

    @classmethod
    def load(cls, path: str) -> Self:
        """Return what the lines of a file say."""
        report = cls()
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                report.add(json.loads(line))
        return report

    def to_markdown(self) -> str:
        """Return the tables, and what a reader has to know of them."""
        options = f"`python -m tests.bench peers --size {self.about['size']:g} --turns {self.about['turns']}`"
        versions = ", ".join(f"{name} {each}" for name, each in self.about["versions"].items())
        took = ", ".join(f"{case} {seconds:.0f} s" for case, seconds in self.seconds.items())
        lines = [f"{options} on {self.about['machine']}.", "", to_wide_table(self.results), ""]
        if nearer := list(nearer_than_goal(self.results)):
            lines += ["Nearer than 5 times:", "", *(f"- {each}" for each in nearer), ""]
        lines.append(f"{versions}.")
        if took:
            lines += ["", f"The bench took: {took}."]
        if self.left_out:
            lines += ["", "Left out:", "", *(f"- {_left_out(each)}" for each in self.left_out)]
        return "\n".join(lines)


def _left_out(record: dict[str, str]) -> str:
    case = f" ({record['case']})" if record.get("case") else ""
    reason = " ".join(record["reason"].split())
    return f"{record['contestant']}{case}: {reason if len(reason) <= _REASON else reason[:_REASON] + ' ...'}"


def nearer_than_goal(results: Sequence[Result]) -> Iterator[str]:
    """Yield for each contestant that we miss the goal against how far the bare read is ahead of it."""
    floors = {(each.case.partition(",")[0], each.baseline): each for each in results if "of bare read" in each.case}
    for each in results:
        if each.ok is not False or each.goal is None or each.ratio is None:
            continue
        case = each.case.partition(",")[0]
        said = f"{case}, {each.baseline}: we are {figure(each.ratio)} times sooner"
        if (floor := floors.get((case, each.baseline))) is None or floor.theirs is None:
            yield said
        elif floor.theirs < each.goal:
            least = f"the bare read itself is {figure(floor.theirs)} times sooner"
            yield f"{said}; {each.goal:g} times lies above the floor: {least}"
        else:
            yield f"{said}, the bare read {figure(floor.theirs)} times"


def about(size: float, turns: int) -> dict[str, Any]:
    """Return the machine, the versions that are installed, and the options."""
    versions = {"Python": platform.python_version()}
    for package in ("torch", "torchdata", *(each.package for each in CONTESTANTS.values())):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue  # its contestant is left out by name
    return {"machine": _machine(), "versions": versions, "size": size, "turns": turns}


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = _CPU.search(file.read())
        name = found[1] if found else name
    return f"{cores} cores of {name}, {platform.system()}"


def main() -> None:
    """Print the tables of a run, or write them into a page."""
    text = Report.load(sys.argv[1]).to_markdown()
    if len(sys.argv) < 3:
        print(text)
        return
    with open(sys.argv[2], encoding="utf-8") as file:
        page = file.read()
    if not _MARKS.search(page):
        sys.exit(f"{sys.argv[2]}: expected the marks <!-- figures --> and <!-- end of figures -->")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(_MARKS.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page))


if __name__ == "__main__":
    main()
