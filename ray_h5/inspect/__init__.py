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
        "--shuffle", metavar="UNIT", help="show what a shuffle costs: auto, rows, chunks, files or balance:COLUMN"
    )
    parser.set_defaults(run=run)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which files are read and how they are opened."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or globs")
    parser.add_argument(
        "--file-extensions",
        nargs="+",
        metavar="EXTENSION",
        help="which files to take from folders and globs (default: h5, hdf5)",
    )
    parser.add_argument("--ignore-missing-paths", action="store_true", help="skip paths that do not exist")
    parser.add_argument("--group", default="/", help="the group whose datasets are the columns (default: %(default)s)")
    parser.add_argument(
        "--allow-external", action="append", default=[], metavar="FOLDER", help="where links may lead; may be repeated"
    )


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
        **more,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run ``ray-h5 inspect``; the exit status is 1 if `read_h5` would refuse the files."""
    from ray_h5.inspect.report import inspect_files, to_dict
    from ray_h5.inspect.text import to_text

    report = inspect_files(files_of(arguments), arguments.shuffle, arguments.columns)
    print(json.dumps(to_dict(report), indent=2) if arguments.json else to_text(report, arguments.columns or ()))
    return 0 if report.ok else 1
