"""Bench `NAME`: measure ray_h5 against the plain ways to do the same, on generated files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.bench import BENCHES, BenchOptions, run
from tests.bench.against import NOTES as NOTES_AGAINST
from tests.bench.against import compare_versions
from tests.bench.measure import NOTES, cells, to_table


def main(argv: Sequence[str] | None = None) -> None:
    """Run one bench and print its lines."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHES), help="what to measure")
    parser.add_argument("--size", type=float, default=1.0, help="scales the workload (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="timed turns (default: %(default)s); fewer say little")
    parser.add_argument("--folder", help="the folder of the workloads (default: below the temporary folder)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print a JSON list of objects")
    output.add_argument(
        "--against", metavar="PATH", help="a checkout of an older version, which runs in turn with this"
    )
    arguments = parser.parse_args(argv)
    if not (arguments.size > 0 and arguments.turns > 0):
        parser.error("--size and --turns: expected numbers above 0")

    options = BenchOptions(arguments.size, arguments.turns, arguments.folder)
    if arguments.against is not None:
        if not Path(arguments.against, "ray_h5", "__init__.py").is_file():
            parser.error(f"--against {arguments.against}: expected a checkout, which has a folder ray_h5")
        print(compare_versions(arguments.name, options, arguments.against), NOTES_AGAINST, sep="\n\n")
        return
    # Beside the table, which needs all lines for its widths.
    show = partial(print, sep="  ", file=sys.stderr, flush=True)
    results = run(arguments.name, options, lambda result: show(*cells(result)[1:8]))
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2, allow_nan=False))
    else:
        print(to_table(results), NOTES, sep="\n\n")


if __name__ == "__main__":
    main()
