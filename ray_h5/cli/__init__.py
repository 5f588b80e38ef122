"""The command ``ray-h5``."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ray_h5 import __version__, inspect
from ray_h5.cli.flags import Command, Flag, file_flags, options_of
from ray_h5.errors import OptionError, RayH5Error
from ray_h5.messages import counted, printable
from ray_h5.read.native.build import loop_line

_Run = Callable[[Mapping[str, Any]], int]

_SETTINGS = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}

# The exit status that shells use for a program that Ctrl-C ended.
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files and columns may have letters that it lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with commands.make_context("ray-h5", list(sys.argv[1:] if argv is None else argv)) as ctx:
            try:
                return int(commands.invoke(ctx))
            except RayH5Error as exc:
                command = commands.commands[str(ctx.invoked_subcommand)]
                flags = {str(param.name): param.opts[0] for param in command.params if isinstance(param, Flag)}
                return _failed(f"{type(exc).__name__}: {_with_flags(exc, flags)}")
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except BrokenPipeError:
        # The reader of the output, such as head, has closed it. The rest goes nowhere, also at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as exc:
        # An output may be a file in the place of a folder, or the disk full.
        return _failed(str(exc))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _with_flags(error: RayH5Error, flags: Mapping[str, str]) -> str:
    """Return the message of an error, and the flags of the options that it names as they are in Python."""
    message = str(error)
    if isinstance(error, OptionError) and error.option:
        if error.option not in flags:  # of a row kind, such as Grid: axes
            return message
        message = f"{flags[error.option]} {error.value}: {error.reason}"
    known = {"rows": "--groups, --each-file, --grid or --patches", **flags}
    named = dict.fromkeys(re.findall(r"(?:^|[\s(,])(\w+)=", message))  # a name in a path or in quotes is none
    said = [f"{name}= is {known[name]}" for name in named if name in known]
    return f"{message}\nOn the command line {', '.join(said)}." if said else message


def _failed(message: str) -> int:
    # Messages may have several lines; names of files and columns in them may have any character.
    print("\n".join(map(printable, f"ray-h5: {message}".split("\n"))), file=sys.stderr)
    return 1


def _version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        print(f"ray-h5 {__version__}\n{loop_line()}")
        ctx.exit()


_VERSION = click.Option(
    ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)


@click.group(help="Train from HDF5 files with Ray.", context_settings=_SETTINGS, params=[_VERSION])
def commands() -> None:
    """Hold the commands."""


def _command(name: str, text: str, flags: Sequence[click.Parameter]) -> Callable[[_Run], None]:
    """Add a function to the commands; it gets the values of the flags by name."""

    def add(function: _Run) -> None:
        commands.add_command(Command(name, callback=lambda **values: function(values), params=list(flags), help=text))

    return add


_INSPECT = [
    Flag("as_json", "--json", is_flag=True, help="print one JSON object and nothing else"),
    Flag("--html", metavar="FILE", help="write a page with pictures of layouts and of a few rows, too"),
    Flag(
        "--shuffle",
        metavar="UNIT",
        help="show what a shuffle costs: auto, rows, chunks, files, balance:COLUMN, weights:COLUMN or by_length:COLUMN",
    ),
]


@_command("inspect", "Show what files hold, and which layouts are slow to read.", [*file_flags(), *_INSPECT])
def _inspect(arguments: Mapping[str, Any]) -> int:
    return inspect.run(arguments, options_of(arguments))


_VALUES = Flag("predicate_columns", "--values", metavar="NAME ...", help="scalar columns that predicates will name")


@_command("index", "Collect ahead the facts that planning needs about files.", [*file_flags("index_dir"), _VALUES])
def _index(arguments: Mapping[str, Any]) -> int:
    from ray_h5.index.file_options import FileOptions

    folder = arguments["index_dir"]
    if "://" in folder:
        raise OptionError(
            f"--dir {folder}: an index in a store is only read. Make it in a folder on a disk, and copy that folder "
            "into the store."
        )
    began = time.perf_counter()
    index = FileOptions.of(arguments["paths"], **options_of(arguments)).index()
    columns = index.values(arguments["predicate_columns"])
    seconds = time.perf_counter() - began
    values = f", values of {', '.join(columns)}" if columns else ""
    print(
        f"{counted(len(index.files), 'file')}, {counted(index.num_rows, 'row')}, "
        f"{counted(len(index.columns), 'column')}{values}: {seconds:.1f} s"
    )
    print(f'use it with read_h5(..., index_dir="{folder}")')
    return 0


_OUT = click.Argument(["out"], metavar="OUT")
_LAYOUT = "Layout (docs/writing.md; by default, arrays that are slow to read change)"
_REPACK = [
    Flag("--auto", section=_LAYOUT, is_flag=True, help="the default: mend what inspect complains of"),
    Flag("--chunk-bytes", section=_LAYOUT, metavar="BYTES", help="bytes of a chunk of each array, such as 1MiB"),
    Flag("--chunk-rows", section=_LAYOUT, type=int, metavar="ROWS", help="rows of a chunk of each array"),
    Flag("--codec", section=_LAYOUT, metavar="NAME", help="zstd, lz4, gzip, blosc, none or keep, of each array"),
    Flag("--page", section=_LAYOUT, metavar="BYTES", help="paged file space: metadata at the front, for stores"),
    Flag("--drop", section="Safety", is_flag=True, help="leave out what cannot be kept, such as links to other files"),
    Flag("--no-verify", section="Safety", is_flag=True, help="do not read back what was written"),
    Flag("--no-measure", section="Safety", is_flag=True, help="do not measure a shuffled epoch before and after"),
    Flag("--resume", section="Safety", is_flag=True, help="go on with a repack that was interrupted"),
    Flag("--overwrite", section="Safety", is_flag=True, help="replace outputs that are there"),
    Flag("--threads", section="Safety", type=int, metavar="COUNT", help="threads that decode and encode"),
]
_AS_IN_PYTHON = {str(flag.name) for flag in _REPACK} - {"auto", "no_verify", "no_measure"}


@_command(
    "repack",
    "Rewrite files so that shuffled rows are read fast. OUT is a folder, a file if its name ends in .h5, or s3://...",
    [*file_flags(rows=False)[:1], _OUT, *file_flags(rows=False)[1:], *_REPACK],
)
def _repack(arguments: Mapping[str, Any]) -> int:
    from ray_h5.writing.repack.repack import repack

    options = options_of(arguments)
    options |= {name: arguments[name] for name in _AS_IN_PYTHON}
    options |= {"verify": not arguments["no_verify"], "measure": not arguments["no_measure"]}
    with click.progressbar(length=1, show_pos=True, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        report = repack(arguments["paths"], arguments["out"], progress=progress, **options)
    print("\n".join(map(printable, str(report).split("\n"))))
    return 0


_BENCH = [
    Flag("--batch-size", type=int, default=64, show_default=True, metavar="ROWS", help="rows of a batch"),
    Flag("--seconds", type=float, default=2.0, show_default=True, help="time of each turn"),
    Flag("--no-ray", is_flag=True, help="leave out Ray, which takes seconds to start"),
]


@_command("bench", "How fast are these files: h5py, loader and Ray, in turn.", [*file_flags(), *_BENCH])
def _bench(arguments: Mapping[str, Any]) -> int:
    from ray_h5 import bench

    first, *others = arguments["paths"]
    if not others and not any(mark in first for mark in "./*") and not Path(first).exists():
        raise OptionError(
            f"ray-h5 bench {first}: expected files, folders or globs, as in ray-h5 bench data/*.h5. "
            "The benches of this project on generated files are `python -m tests.bench NAME`, in a clone."
        )
    how: dict[str, Any] = {"batch_size": arguments["batch_size"], "seconds": arguments["seconds"]}
    lines = bench.measure(arguments["paths"], **how, with_ray=not arguments["no_ray"], **options_of(arguments))
    print(bench.to_text(lines))
    return 0
