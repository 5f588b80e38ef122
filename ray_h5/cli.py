"""The command ``ray-h5``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from ray_h5 import __version__
from ray_h5 import bench as benches
from ray_h5.errors import RayH5Error
from ray_h5.inspect import add_files, add_inspect, files_of
from ray_h5.messages import printable

_INTERRUPTED = 130
"""The exit status that shells use for a program that Ctrl-C ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except RayH5Error as exc:
        return _failed(f"{type(exc).__name__}: {exc}")
    except BrokenPipeError:
        # The reader of the output, such as head, has closed it. The rest goes nowhere, also at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as exc:
        # A bench writes files: the folder may be a file, or the disk full.
        return _failed(str(exc))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _failed(message: str) -> int:
    # Messages may have several lines; names of files and columns in them may have any character.
    print("\n".join(map(printable, f"ray-h5: {message}".split("\n"))), file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ray-h5", description="Train from HDF5 files with Ray.")
    parser.add_argument("--version", action="version", version=f"ray-h5 {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_inspect(commands)
    _add_index(commands)
    _add_bench(commands)
    return parser


def _add_index(commands: Any) -> None:
    index = commands.add_parser("index", help="collect ahead the facts that planning needs about files")
    add_files(index)
    index.add_argument("--dir", required=True, help="the folder to store them in: the index_dir of read_h5")
    index.add_argument("--columns", nargs="+", metavar="NAME", help="the columns (default: all)")
    index.add_argument(
        "--values", nargs="+", metavar="NAME", default=[], help="scalar columns that predicates will name"
    )
    index.add_argument(
        "--dtypes", nargs="+", type=_cast, default=[], metavar="NAME=DTYPE", help="the dtypes of read_h5"
    )
    index.set_defaults(run=_index)


def _cast(text: str) -> tuple[str, str]:
    name, _, dtype = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"expected NAME=DTYPE, such as image=float16, found {text!r}")
    return name, dtype


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure against plain ways to do the same, on this machine")
    bench.add_argument("name", choices=sorted(benches.BENCHES), help="what to measure")
    bench.add_argument("--size", type=float, default=1.0, help="scales the workload (default: %(default)s)")
    bench.add_argument("--turns", type=int, default=5, help="timed turns, 5 or more (default: %(default)s)")
    bench.add_argument("--folder", help="the folder of the workloads (default: below the temporary folder)")
    bench.add_argument("--json", action="store_true", help="print a JSON list of objects and nothing else")
    bench.set_defaults(run=_bench)


def _index(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    index = files_of(arguments, dtypes=dict(arguments.dtypes), index_dir=arguments.dir).index(arguments.columns)
    found = index.look_up(arguments.values)
    seconds = time.perf_counter() - began
    values = f", values of {', '.join(found)}" if found else ""
    print(f"{len(index.files)} files, {index.num_rows} rows, {len(index.columns)} columns{values}: {seconds:.1f} s")
    print(f'use it with read_h5(..., index_dir="{arguments.dir}")')
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from ray_h5.bench import BenchOptions
    from ray_h5.bench.measure import notes, to_json, to_table

    results = benches.BENCHES[arguments.name](BenchOptions(arguments.size, arguments.turns, arguments.folder))
    if arguments.json:
        print(to_json(results))
    else:
        print(to_table(results), notes(results, arguments.size), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
