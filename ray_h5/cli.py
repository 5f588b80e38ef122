"""The command ``ray-h5``."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
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


_FLAGS = {
    "columns": "--columns",
    "group": "--group",
    "shuffle": "--shuffle",
    "dtypes": "--dtypes",
    "casting": "--casting",
    "allow_external": "--allow-external",
    "file_extensions": "--file-extensions",
    "ignore_missing_paths": "--ignore-missing-paths",
    "index_dir": "--dir",
    "predicate_columns": "--values",
    "size": "--size",
    "turns": "--turns",
    "folder": "--folder",
}
"""The flags for arguments that messages name."""

_ARGUMENT = re.compile(
    rf"(?<![\w/.-])(?P<name>{'|'.join(_FLAGS)})="
    r"(?P<value>\[[^\]]*\]|\{[^}]*\}|'[^']*'|\"[^\"]*\"|-?\w+(?:\.\w+)?|)"
)

_SHUFFLE = re.compile(r"Shuffle\(unit='(?P<unit>[^']*)'\)")

_NAMED = re.compile(
    r"(?<![\w/.='\"-])(?:dtypes|index_dir|allow_external|ignore_missing_paths|file_extensions)\b(?![\w=/])"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except RayH5Error as exc:
        return _failed(f"{type(exc).__name__}: {_as_flags(str(exc))}")
    except BrokenPipeError:
        # The reader of the output, such as head, has closed it. The rest goes nowhere, also at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as exc:
        # A bench writes files: the folder may be a file, or the disk full.
        return _failed(str(exc))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _as_flags(message: str) -> str:
    """Return a message with the flags of this command in place of arguments in Python."""
    message = message.replace("; any with file_extensions=None", "")  # no flag says None
    message = _SHUFFLE.sub(lambda found: f"--shuffle {shlex.quote(found['unit'])}", message)
    return _NAMED.sub(lambda found: _FLAGS[found[0]], _ARGUMENT.sub(_flag, message))


def _flag(found: re.Match[str]) -> str:
    flag, given = _FLAGS[found["name"]], found["value"]
    try:
        value = ast.literal_eval(given)
    except (ValueError, SyntaxError):
        return f"{flag} {given}".rstrip()
    if value is True or value is None:
        return flag
    if isinstance(value, dict):
        return " ".join([flag, *(shlex.quote(f"{name}={dtype}") for name, dtype in value.items())])
    several = value if isinstance(value, (list, tuple)) else [value]
    return " ".join([flag, *("NAME ..." if each is ... else shlex.quote(str(each)) for each in several)])


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
    index.add_argument(
        "--casting",
        choices=["checked", "unsafe"],
        default="checked",
        help="the casting of read_h5 (default: %(default)s)",
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
    casts = {"dtypes": dict(arguments.dtypes), "casting": arguments.casting}
    index = files_of(arguments, **casts, index_dir=arguments.dir).index(arguments.columns)
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
