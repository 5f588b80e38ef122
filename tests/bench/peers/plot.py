"""Draw what the bench `peers` printed as JSON: ``python -m tests.bench.peers.plot peers.json peers.png``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.bench.measure import OURS
from tests.bench.peers.contestants import BARE
from tests.bench.peers.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from tests.bench.measure import Result

__all__ = ["plot_first_epochs"]

_WIDTH, _BAR = 9.0, 0.3
_OURS, _FLOOR, _PEER = "#0b62c4", "#d9a441", "#9aa5b1"


def plot_first_epochs(results: Sequence[Result]) -> Figure:
    """Return a panel for each case: seconds to the end of the first epoch of each contestant."""
    from matplotlib.figure import Figure

    cases: dict[str, dict[str, float]] = {}
    for each in results:
        case, _, measure = each.case.rpartition(": ")
        if measure == "first epoch" and each.theirs is not None:
            cases.setdefault(case, {OURS: each.ours})[each.baseline] = each.theirs
    heights = [len(seconds) for seconds in cases.values()]
    figure = Figure(figsize=(_WIDTH, _BAR * sum(heights) + 0.55 * len(cases) + 0.5), layout="constrained", dpi=100)
    panels = figure.subplots(len(cases), 1, height_ratios=heights, squeeze=False)[:, 0]
    most = max(max(seconds.values()) for seconds in cases.values())
    least = min(min(seconds.values()) for seconds in cases.values())
    for panel, (case, seconds) in zip(panels, cases.items(), strict=True):
        names = list(seconds)
        colours = [_OURS if name.startswith(OURS) else _FLOOR if name == BARE else _PEER for name in names]
        panel.barh(names, list(seconds.values()), color=colours)
        for place, value in enumerate(seconds.values()):
            panel.text(value * 1.06, place, f"{value:.3g} s", va="center", fontsize=8)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("")
        panel.set_xlim(least / 2, most * 2.5)
        panel.invert_yaxis()
        panel.set_title(case, loc="left", fontsize=10)
        panel.tick_params(labelsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds to the end of the first epoch, conversion included (logarithmic)", fontsize=9)
    return figure


if __name__ == "__main__":
    plot_first_epochs(Report.load(sys.argv[1]).results).savefig(sys.argv[2], dpi=80)
