"""The command ``ray-h5``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ray_h5.errors import RayH5Error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except RayH5Error as exc:
        print(f"ray-h5: {type(exc).__name__}: {exc}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ray-h5", description="Train from HDF5 files with Ray.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    bench = commands.add_parser("bench", help="measure against the plain ways to do the same, on this machine")
    bench.add_argument("name", choices=["ray", "read"], help="what to measure")
    bench.add_argument("--size", type=float, default=1.0, help="scales the workload (default: %(default)s)")
    bench.add_argument("--turns", type=int, default=5, help="timed turns, 5 or more (default: %(default)s)")
    bench.add_argument("--folder", help="where the workloads are kept (default: below the temporary folder)")
    bench.add_argument("--json", action="store_true", help="print a list of objects and nothing else")
    bench.set_defaults(run=_bench)
    return parser


def _bench(arguments: argparse.Namespace) -> int:
    from ray_h5.bench import BENCHES, BenchOptions
    from ray_h5.bench.measure import to_json, to_table

    results = BENCHES[arguments.name](BenchOptions(arguments.size, arguments.turns, arguments.folder))
    print(to_json(results) if arguments.json else to_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
