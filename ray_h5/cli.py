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
from pathlib import Path
from typing import Any, NoReturn

from ray_h5 import __version__
from ray_h5.errors import OptionError, RayH5Error
from ray_h5.inspect import FLAGS, add_files, add_inspect, files_of, options_of
from ray_h5.messages import counted, near_names, printable

_INTERRUPTED = 130
"""The exit status that shells use for a program that Ctrl-C ended."""


_FLAGS = {name: flag for name, flag in FLAGS.items() if name != "sidecar"} | {
    "shuffle": "--shuffle",
    "predicate_columns": "--values",
    "seconds": "--seconds",
    "batch_size": "--batch-size",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            "chunk_rows",
            "chunk_bytes",
            "codec",
            "page",
            "where",
            "shuffle_rows",
            "rows_per_file",
            "files",
            "drop",
            "resume",
            "overwrite",
        )
    },
}
"""The flags for arguments that messages name."""

_ARGUMENT = re.compile(
    rf"(?<![\w/.-])(?P<name>{'|'.join(_FLAGS)})="
    r"(?P<value>\[[^\]]*\]|\{[^}]*\}|'[^']*'|\"[^\"]*\"|-?\w+(?:\.\w+)?|)"
)

_SHUFFLE = re.compile(r"Shuffle\(unit='(?P<unit>[^']*)'\)")

_ROWS = re.compile(
    r"rows=ray_h5\.(?:Groups\('(?P<groups>[^']*)'(?:, key='(?P<key>[^']*)')?\)"
    r"|(?P<files>Files\(\))|Grid\((?P<grid>\d+)\))"
)

# Names that are no words of English.
_NAMED = re.compile(
    rf"(?<![\w/.='\"-])(?:{'|'.join(name for name in _FLAGS if '_' in name or name == 'dtypes')})\b(?![\w=/])"
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
        # An output may be a file in the place of a folder, or the disk full.
        return _failed(str(exc))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _as_flags(message: str) -> str:
    """Return a message with the flags of this command in place of arguments in Python."""
    message = message.replace("; any with file_extensions=None", "")  # no flag says None
    message = _SHUFFLE.sub(lambda found: f"--shuffle {shlex.quote(found['unit'])}", message)
    message = _ROWS.sub(_rows_flags, message)
    return _NAMED.sub(lambda found: _FLAGS[found[0]], _ARGUMENT.sub(_flag, message))


def _rows_flags(found: re.Match[str]) -> str:
    if found["groups"] is not None:
        key = f" --key {shlex.quote(found['key'])}" if found["key"] else ""
        return f"--groups {shlex.quote(found['groups'])}{key}"
    return "--each-file" if found["files"] else f"--grid {found['grid']}"


def _flag(found: re.Match[str]) -> str:
    flag, given = _FLAGS[found["name"]], found["value"]
    try:
        value = ast.literal_eval(given)
    except (ValueError, SyntaxError):
        # Columns that are made, such as ray_h5.joined(...), are for Python alone.
        return found[0] if "ray_h5." in given else f"{flag} {given}".rstrip()
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


class _Parser(argparse.ArgumentParser):
    """Offers the nearest name for a command or flag that it does not know."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:  # the command says so, which knows its flags
            (commands,) = [each.choices for each in self._actions if isinstance(each.choices, dict)]
            commands[found.command].error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            self.exit(2, self.format_help())
        if found := re.match(r"unrecognized arguments: --([\w-]+)", message):
            near = near_names(found[1], [each.lstrip("-") for each in self._option_string_actions], 0)
            message += "." + near.replace(" '", " '--")
        elif found := re.search(r"invalid choice: '(.*?)' \(", message):
            choices = re.findall(r"'([^']*)'", message[found.end() :])
            message += f".{near_names(found[1], choices, 0)}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ray-h5", description="Train from HDF5 files with Ray.")
    parser.add_argument("--version", action="version", version=f"ray-h5 {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    add_inspect(commands)
    _add_index(commands)
    _add_repack(commands)
    _add_bench(commands)
    return parser


def _add_index(commands: Any) -> None:
    index = commands.add_parser("index", help="collect ahead the facts that planning needs about files")
    add_files(index, required="index_dir")
    index.add_argument(
        "--values", nargs="+", metavar="NAME", default=[], help="scalar columns that predicates will name"
    )
    index.set_defaults(run=_index)


def _add_repack(commands: Any) -> None:
    repack = commands.add_parser("repack", help="rewrite files so that shuffled rows are read fast from them")
    add_files(repack)
    repack.add_argument("out", metavar="OUT", help="a folder, or a file if its name ends in .h5; or a URL: s3://...")
    how = repack.add_argument_group("layout (docs/writing.md; by default, arrays that are slow to read change)")
    how.add_argument("--auto", action="store_true", help="the default: mend what inspect complains of")
    how.add_argument("--chunk-bytes", metavar="BYTES", help="bytes of a chunk of each array, such as 1MiB")
    how.add_argument("--chunk-rows", type=int, metavar="ROWS", help="rows of a chunk of each array")
    how.add_argument("--codec", metavar="NAME", help="zstd, lz4, gzip, blosc, none or keep, of each array")
    how.add_argument("--page", metavar="BYTES", help="paged file space: metadata at the front, for files in stores")
    which = repack.add_argument_group("rows")
    which.add_argument("--where", metavar="TEXT", help="which rows: 'label == 1 and quality >= 0.5'")
    which.add_argument(
        "--rows", metavar="KIND", help="what a row is, as in Python: 'Groups(\"data/demo_*\")', 'Grid(2)'"
    )
    which.add_argument("--shuffle-rows", type=int, metavar="SEED", help="a random order over all outputs")
    which.add_argument("--rows-per-file", type=int, metavar="ROWS", help="rows of an output")
    which.add_argument("--files", type=int, metavar="COUNT", help="number of outputs")
    care = repack.add_argument_group("safety")
    care.add_argument("--drop", action="store_true", help="leave out what cannot be kept, such as links to other files")
    care.add_argument("--no-verify", action="store_true", help="do not read back what was written")
    care.add_argument("--no-measure", action="store_true", help="do not measure a shuffled epoch before and after")
    care.add_argument("--resume", action="store_true", help="go on with a repack that was interrupted")
    care.add_argument("--overwrite", action="store_true", help="replace outputs that are there")
    care.add_argument("--threads", type=int, metavar="COUNT", help="threads that decode and encode")
    repack.set_defaults(run=_repack)


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="how fast are these files: h5py, loader and Ray, in turn")
    add_files(bench)
    bench.add_argument("--batch-size", type=int, default=64, metavar="ROWS", help="rows of a batch (default: 64)")
    bench.add_argument("--seconds", type=float, default=2.0, help="time of each turn (default: %(default)s)")
    bench.add_argument("--no-ray", action="store_true", help="leave out Ray, which takes seconds to start")
    bench.set_defaults(run=_bench)


def _index(arguments: argparse.Namespace) -> int:
    if "://" in arguments.index_dir:
        raise OptionError(
            f"--dir {arguments.index_dir}: an index in a store is only read. Make it in a folder on a disk, and copy "
            "that folder into the store."
        )
    began = time.perf_counter()
    index = files_of(arguments).index()
    found = index.look_up(arguments.values)
    seconds = time.perf_counter() - began
    values = f", values of {', '.join(found)}" if found else ""
    print(
        f"{counted(len(index.files), 'file')}, {counted(index.num_rows, 'row')}, "
        f"{counted(len(index.columns), 'column')}{values}: {seconds:.1f} s"
    )
    print(f'use it with read_h5(..., index_dir="{arguments.index_dir}")')
    return 0


def _repack(arguments: argparse.Namespace) -> int:
    from ray_h5.writing.repack.repack import repack

    options = options_of(arguments)
    if arguments.rows is not None:
        if options["rows"] is not None:
            raise OptionError("--rows and --groups or --grid: expected one of them")
        options["rows"] = _row_kind(arguments.rows)
    names = (
        "chunk_bytes", "chunk_rows", "codec", "page", "where", "shuffle_rows", "rows_per_file", "files", "drop",
        "resume", "overwrite", "threads",
    )  # fmt: skip
    given = {name: getattr(arguments, name) for name in names}
    bar = _Bar(sys.stderr)
    try:
        found = repack(
            arguments.paths,
            arguments.out,
            **given,
            verify=not arguments.no_verify,
            measure=not arguments.no_measure,
            progress=bar,
            **options,
        )
    finally:
        bar.end()
    print("\n".join(map(printable, str(found).split("\n"))))
    return 0


def _row_kind(text: str) -> Any:
    """Return the row kind that a text says as in Python, such as ``Groups("data/demo_*", key="demo")``."""
    from ray_h5.index.suggested_calls import value_of
    from ray_h5.rows.groups_and_grids import Grid, Groups

    try:
        found = value_of(ast.parse(text.strip(), mode="eval").body)
    except RayH5Error:
        raise
    except (SyntaxError, ValueError, TypeError, KeyError):
        found = None
    if not isinstance(found, (Grid, Groups)):
        raise OptionError(f'--rows {text}: expected Groups("data/demo_*") or Grid(2), with values alone in brackets')
    return found


class _Bar:
    """A bar with rate and time left, on a terminal; nothing elsewhere."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._shows = stream, stream.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._shows or (now - self._last < 0.2 and done < total) or not total:
            return
        self._last, seconds = now, max(now - self._began, 1e-9)
        left = seconds * (total - done) / max(done, 1)
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        share = f"{100 * done // total:3d}%"
        self._stream.write(f"\r{bar} {share}  {done / seconds:,.0f} of {total:,} a second, {left:.0f} s left \033[K")
        self._stream.flush()

    def end(self) -> None:
        if self._shows:
            self._stream.write("\r\033[K")
            self._stream.flush()


def _bench(arguments: argparse.Namespace) -> int:
    from ray_h5.bench import measure, to_text

    first, *others = arguments.paths
    if not others and not any(mark in first for mark in "./*") and not Path(first).exists():
        raise OptionError(
            f"ray-h5 bench {first}: expected files, folders or globs, as in ray-h5 bench data/*.h5. "
            "The benches of this project on generated files are `python -m tests.bench NAME`, in a clone."
        )
    lines = measure(
        arguments.paths,
        batch_size=arguments.batch_size,
        seconds=arguments.seconds,
        with_ray=not arguments.no_ray,
        **options_of(arguments),
    )
    print(to_text(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
