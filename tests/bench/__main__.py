"""Bench `NAME`: measure ray_h5 against the plain ways to do the same, on generated files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from tests.bench import BENCHES, BenchOptions
from tests.bench.measure import notes, to_json, to_table


def main(argv: Sequence[str] | None = None) -> None:
    """Run one bench and print its lines."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHES), help="what to measure")
    parser.add_argument("--size", type=float, default=1.0, help="scales the workload (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="timed turns, 5 or more (default: %(default)s)")
    parser.add_argument("--folder", help="the folder of the workloads (default: below the temporary folder)")
    parser.add_argument("--case", action="append", default=[], help="of `peers`: this case alone; may be repeated")
    parser.add_argument("--goals", action="store_true", help="show what this version is to reach, too")
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects; of `peers` lines")
    arguments = parser.parse_args(argv)
    options = BenchOptions(arguments.size, arguments.turns, arguments.folder, tuple(arguments.case))
    if arguments.name == "peers":
        _print_peers(options, as_json=arguments.json)
        return
    if arguments.case:
        parser.error(f"--case: {arguments.name} measures all its cases; leave it out")
    results = BENCHES[arguments.name](options)
    if arguments.json:
        print(to_json(results))
    else:
        goals = arguments.goals
        print(to_table(results, goals=goals), notes(results, arguments.size, goals=goals), sep="\n\n")


def _print_peers(options: BenchOptions, *, as_json: bool) -> None:
    """Print each record as a line of JSON as soon as it is known; or tables at the end, also if it ends early."""
    from tests.bench.cases.peers import records
    from tests.bench.peers.report import Report
    from tests.bench.peers.table import to_notes

    report = Report()
    try:
        for record in records(options):
            report.add(record)
            if as_json:
                print(json.dumps(record), flush=True)
    finally:
        if report.results and not as_json:
            print(report.to_markdown(), to_notes(), sep="\n\n")


if __name__ == "__main__":
    main()
