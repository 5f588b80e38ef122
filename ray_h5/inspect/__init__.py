"""``ray-h5 inspect``: what files hold, what `read_h5` makes of them, and which layouts will hurt.

Importing this package is cheap; it looks at files only when it is told to.
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
    parser = subparsers.add_parser("inspect", help="show what files hold, and which layouts will hurt")
    add_files(parser)
    parser.add_argument(
        "--columns", nargs="+", metavar="NAME", help="what read_h5 is to read, a line each (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--shuffle", metavar="UNIT", help="what a shuffle would cost: auto, rows, chunks or files")
    parser.set_defaults(run=run)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add what says which files there are, and how they are opened."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or globs")
    parser.add_argument(
        "--file-extensions", nargs="+", metavar="ENDING", help="what to take from folders and globs (default: h5, hdf5)"
    )
    parser.add_argument("--ignore-missing-paths", action="store_true", help="leave out paths that do not exist")
    parser.add_argument("--group", default="/", help="the group whose datasets are the columns (default: %(default)s)")
    parser.add_argument(
        "--allow-external", action="append", default=[], metavar="FOLDER", help="where links may lead; may be repeated"
    )


def files_of(arguments: argparse.Namespace, **more: Any) -> FileOptions:
    """Return the files that `add_files` was told of."""
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
    """Do ``ray-h5 inspect``; the status is 1 where `read_h5` would refuse the files."""
    from ray_h5.inspect.report import inspect_files, to_dict
    from ray_h5.inspect.text import to_text

    report = inspect_files(files_of(arguments), arguments.shuffle, arguments.columns)
    print(json.dumps(to_dict(report), indent=2) if arguments.json else to_text(report, arguments.columns or ()))
    return 0 if report.ok else 1
