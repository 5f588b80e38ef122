"""``ray-h5 inspect``: what files hold, what `read_h5` delivers from them, and which layouts are slow to read.

Importing this package is cheap: a command imports the modules that it needs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from ray_h5.planning.files import FileOptions

__all__ = ["add_files", "add_inspect", "files_of", "run"]


def add_inspect(subparsers: Any) -> None:
    """Add the command to the parsers of ``ray-h5``."""
    parser = subparsers.add_parser("inspect", help="show what files hold, and which layouts are slow to read")
    add_files(parser)
    parser.add_argument(
        "--columns", nargs="+", metavar="NAME", help="the columns for read_h5, each on a line of its own (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--shuffle",
        metavar="UNIT",
        help="show what a shuffle costs: auto, rows, chunks, files, balance:COLUMN, weights:COLUMN or by_length:COLUMN",
    )
    parser.set_defaults(run=run)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which files are read and how they are opened."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or globs")
    parser.add_argument(
        "--file-extensions",
        nargs="+",
        metavar="EXTENSION",
        help="which files to take from folders and globs (default: h5, hdf5, h5ad)",
    )
    parser.add_argument("--ignore-missing-paths", action="store_true", help="skip paths that do not exist")
    parser.add_argument("--group", default="/", help="the group whose datasets are the columns (default: %(default)s)")
    parser.add_argument(
        "--allow-external", action="append", default=[], metavar="FOLDER", help="where links may lead; may be repeated"
    )
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an entry of storage_options for files in stores, such as region=eu-west-1; may be repeated",
    )
    add_row_kinds(parser.add_argument_group("what a row is (docs/rows.md; by default an index of the first axis)"))


def add_row_kinds(group: argparse._ArgumentGroup) -> None:
    """Add the arguments that say what a row is."""
    group.add_argument("--groups", metavar="GLOB", help="each HDF5 group that matches, such as 'data/demo_*'")
    group.add_argument("--attrs", nargs="+", default=(), metavar="NAME", help="attributes of these groups as columns")
    group.add_argument("--key", metavar="NAME", help="a column with the path of the group")
    group.add_argument("--grid", type=int, metavar="AXES", help="an index of this many leading axes")
    group.add_argument(
        "--windows", nargs="+", metavar="COLUMN=STEPS", help="a step of an episode: actions=0:16, obs/image=-1,0"
    )
    group.add_argument("--stride", type=int, default=1, metavar="STEPS", help="steps between windows")
    group.add_argument("--pad", nargs="+", default=["edge"], help="edge, zero or drop; two are for beginning and end")
    group.add_argument("--episode", metavar="COLUMN", help="a column with one value for each episode")
    group.add_argument("--episode-ends", metavar="COLUMN", help="a dataset with the ends of episodes")


def _row_kinds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments `rows` and `windows` of `read_h5`."""
    from ray_h5.errors import OptionError
    from ray_h5.planning.rows.kinds import Grid, Groups
    from ray_h5.planning.rows.windows import Windows

    if arguments.groups is not None and arguments.grid is not None:
        raise OptionError("--groups and --grid: a row is one or the other")
    if arguments.groups is None and (arguments.attrs or arguments.key):
        raise OptionError("--attrs and --key are of groups: pass --groups too")
    rows: Any = None if arguments.grid is None else Grid(arguments.grid)
    if arguments.groups is not None:
        rows = Groups(arguments.groups, attrs=tuple(arguments.attrs), key=arguments.key)
    windows = None
    if arguments.windows:
        pad = arguments.pad[0] if len(arguments.pad) == 1 else tuple(arguments.pad)
        windows = Windows(
            dict(map(_window, arguments.windows)),
            stride=arguments.stride,
            pad=pad,
            episode=arguments.episode,
            episode_ends=arguments.episode_ends,
        )
    return {"rows": rows, "windows": windows}


def _window(given: str) -> tuple[str, Any]:
    """Return the column and the offsets of ``actions=0:16`` or ``image=-1,0``."""
    from ray_h5.errors import OptionError

    name, _, steps = given.rpartition("=")
    try:
        if ":" in steps:
            return name, range(*map(int, steps.split(":")))
        return name, [int(step) for step in steps.split(",")]
    except (ValueError, TypeError):
        raise OptionError(f"--windows {given}: expected COLUMN=START:STOP or COLUMN=STEP,STEP") from None


def storage_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the argument `storage_options` of `read_h5`."""
    from ray_h5.errors import OptionError

    found: dict[str, Any] = {}
    for each in arguments.storage_option:
        name, equals, value = each.partition("=")
        if not equals:
            raise OptionError(f"--storage-option {name}: expected NAME=VALUE")
        found[name] = {"true": True, "false": False}.get(value.lower(), value)
    return found or None


def files_of(arguments: argparse.Namespace, **more: Any) -> FileOptions:
    """Return the files of the arguments that `add_files` added."""
    from ray_h5.planning.files import FileOptions
    from ray_h5.planning.paths import DEFAULT_EXTENSIONS

    return FileOptions.of(
        arguments.paths,
        group=arguments.group,
        allow_external=arguments.allow_external,
        file_extensions=arguments.file_extensions or DEFAULT_EXTENSIONS,
        ignore_missing_paths=arguments.ignore_missing_paths,
        storage_options=storage_options(arguments),
        **_row_kinds(arguments),
        **more,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run ``ray-h5 inspect``; the exit status is 1 if `read_h5` would refuse the files."""
    from ray_h5.inspect.report import inspect_files, to_dict
    from ray_h5.inspect.text import to_text

    report = inspect_files(files_of(arguments), arguments.shuffle, arguments.columns)
    print(json.dumps(to_dict(report), indent=2) if arguments.json else to_text(report, arguments.columns or ()))
    return 0 if report.ok else 1
