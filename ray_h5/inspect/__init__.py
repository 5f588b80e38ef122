"""``ray-h5 inspect``: what files hold, what `read_h5` delivers from them, and which layouts are slow to read.

Importing this package is cheap: a command imports the modules that it needs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import SUPPRESS, ArgumentTypeError
from inspect import signature
from typing import TYPE_CHECKING, Any

from ray_h5.messages import printable
from ray_h5.options import documented
from ray_h5.source import Source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ray_h5.index.file_options import FileOptions

__all__ = ["FLAGS", "add_files", "add_inspect", "files_of", "options_of", "run"]


def add_inspect(subparsers: Any) -> None:
    """Add the command to the parsers of ``ray-h5``."""
    parser = subparsers.add_parser("inspect", help="show what files hold, and which layouts are slow to read")
    add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures of layouts and of a few rows, too")
    parser.add_argument(
        "--shuffle",
        metavar="UNIT",
        help="show what a shuffle costs: auto, rows, chunks, files, balance:COLUMN, weights:COLUMN or by_length:COLUMN",
    )
    parser.set_defaults(run=run)


def _cast(text: str) -> tuple[str, str]:
    name, _, dtype = text.rpartition("=")
    if not name:
        raise ArgumentTypeError(f"expected NAME=DTYPE, such as image=float16, found {text!r}")
    return name, dtype


def _labels(text: str) -> tuple[str, str | list[str]]:
    name, _, classes = text.rpartition("=")
    if not name:
        raise ArgumentTypeError(f"expected NAME=auto or NAME=CLASS,CLASS, such as cell_type=auto, found {text!r}")
    return name, classes if classes == "auto" else classes.split(",")


_FLAGS: dict[str, dict[str, Any]] = {
    "zip_files": {"nargs": "+", "metavar": "PATH"},
    "columns": {"nargs": "+", "metavar": "NAME"},
    "group": {"metavar": "NAME"},
    "sidecar": {"nargs": 2, "action": "append", "metavar": ("PATH", "COLUMN")},
    "attrs": {"nargs": "+", "metavar": "NAME"},
    "decode_cf": {"action": "store_true"},
    "axes": {"choices": ["stored", "reversed"]},
    "labels": {"nargs": "+", "metavar": "NAME=CLASSES", "type": _labels},
    "dtypes": {"nargs": "+", "metavar": "NAME=DTYPE", "type": _cast},
    "casting": {"choices": ["checked", "unsafe"]},
    "index_dir": {"metavar": "FOLDER"},
    "allow_external": {"action": "append", "metavar": "FOLDER"},
    "storage_options": {"action": "append", "metavar": "NAME=VALUE"},
    "cache_dir": {"metavar": "FOLDER"},
    "cache_bytes": {"metavar": "BYTES"},
    "file_extensions": {"nargs": "+", "metavar": "EXTENSION"},
    "ignore_missing_paths": {"action": "store_true"},
    "ignore_unreadable_files": {"action": "store_true"},
}
"""How the options of `Source` are written; `rows` and `windows` have several flags, `filesystem` is a Python object."""

FLAGS = {name: f"--{name.replace('_', '-')}" for name in _FLAGS} | {
    "index_dir": "--dir",
    "storage_options": "--storage-option",
}
"""The flags of the options of `Source`."""


def add_files(parser: argparse.ArgumentParser, *, required: str = "") -> None:
    """Add the arguments that say which files are read and how they are opened; one option may be required."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or globs")
    defaults, entries = signature(Source).parameters, documented(Source)
    for name, how in _FLAGS.items():
        # The first part of the first sentence; python -OO has none.
        said = re.split(r"[.:;](?:\s|$)", " ".join(entries.get(name, "").split("\n")[1:]))[0].strip().replace("`", "")
        default = defaults[name].default
        shown = f" (default: {default if isinstance(default, str) else ', '.join(default)})" if default else ""
        flags = dict.fromkeys([FLAGS[name], f"--{name.replace('_', '-')}"])
        needs: dict[str, Any] = {"required": True} if name == required else {}
        parser.add_argument(*flags, dest=name, default=SUPPRESS, help=said + shown, **how, **needs)
    add_row_kinds(parser.add_argument_group("what a row is (docs/rows.md; by default an index of the first axis)"))


def add_row_kinds(group: argparse._ArgumentGroup) -> None:
    """Add the arguments that say what a row is."""
    group.add_argument(
        "--groups",
        action="append",
        metavar="GLOB",
        help="each HDF5 group that matches, such as 'data/demo_*'; --attrs are its own. Or, for each column, the "
        "datasets that share names: --groups 'image=images/*' --groups 'mask=masks/*'",
    )
    group.add_argument("--each-file", action="store_true", help="each file")
    group.add_argument("--key", metavar="NAME", help="a column with the path of the group, or the name of the file")
    group.add_argument(
        "--patches", nargs="+", metavar="ARRAY=SHAPE", help="a block of arrays, or with --groups of each: raw=64,64,64"
    )
    group.add_argument("--patch-stride", metavar="STEPS", help="steps between blocks of a grid: 32 or 32,32,16")
    group.add_argument("--per-file", type=int, metavar="COUNT", help="blocks that are drawn of each file")
    group.add_argument("--grid", type=int, metavar="AXES", help="an index of this many leading axes")
    group.add_argument(
        "--windows", nargs="+", metavar="COLUMN=STEPS", help="a step of an episode: actions=0:16, obs/image=-1,0"
    )
    group.add_argument("--stride", type=int, default=1, metavar="STEPS", help="steps between windows")
    group.add_argument("--pad", nargs="+", default=["edge"], help="edge, zero or drop; two are for beginning and end")
    group.add_argument("--episode", metavar="COLUMN", help="a column with one value for each episode")
    group.add_argument("--episode-ends", metavar="COLUMN", help="a dataset with the ends of episodes")
    group.add_argument(
        "--episode-flags", nargs="+", metavar="COLUMN", help="columns that are true in the last step of an episode"
    )
    group.add_argument("--episode-starts", metavar="COLUMN", help="a dataset with the first rows of episodes")
    group.add_argument("--episode-lengths", metavar="COLUMN", help="a dataset with the steps of each episode")
    group.add_argument("--episode-bounds", metavar="COLUMN", help="a dataset with the first and last rows of episodes")
    group.add_argument("--per-step", nargs="+", default=(), metavar="COLUMN", help="columns with a value for each step")
    group.add_argument("--constants", nargs="+", default=(), metavar="COLUMN", help="columns that an episode has once")


def _row_kinds(arguments: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with `rows` and `windows`; the attributes may be of groups."""
    from ray_h5.errors import OptionError

    given = {"--groups": arguments.groups, "--grid": arguments.grid, "--each-file": arguments.each_file or None}
    given["--patches"] = arguments.patches
    chosen = [flag for flag, value in given.items() if value is not None]
    if len(chosen) > 1 and chosen != ["--groups", "--patches"]:
        raise OptionError(f"{' and '.join(chosen)}: a row is one or the other")
    if arguments.groups is None and not arguments.each_file and arguments.patches is None and arguments.key:
        raise OptionError("--key is of groups or files: pass --groups, --each-file or --patches too")
    for flag, value in (("--patch-stride", arguments.patch_stride), ("--per-file", arguments.per_file)):
        if value is not None and arguments.patches is None:
            raise OptionError(f"{flag} is of blocks: pass --patches too")
    rows = _rows(arguments, options)
    return {**options, "rows": rows, "windows": _windows(arguments) if arguments.windows else None}


def _rows(arguments: argparse.Namespace, options: dict[str, Any]) -> Any:
    """Return the row kind, or None; attributes of groups are taken out of `options`."""
    from ray_h5.rows.groups_and_grids import Files, Grid, Groups

    if arguments.groups is not None and arguments.patches is None:
        return Groups(_pattern(arguments.groups), attrs=tuple(options.pop("attrs", ())), key=arguments.key)
    if arguments.each_file:
        return Files(key=arguments.key)
    if arguments.patches is not None:
        from ray_h5.rows.patches import Patches

        shapes = dict(map(_shape, arguments.patches))
        steps = None if arguments.patch_stride is None else _shape(f"stride={arguments.patch_stride}")[1]
        stride = steps[0] if steps is not None and len(steps) == 1 else steps
        groups = None if arguments.groups is None else _pattern(arguments.groups)
        return Patches(shapes, stride=stride, per_file=arguments.per_file, key=arguments.key, groups=groups)
    return None if arguments.grid is None else Grid(arguments.grid)


def _pattern(given: Sequence[str]) -> str | dict[str, str]:
    """Return the pattern of ``--groups``: one glob, or globs of columns."""
    from ray_h5.errors import OptionError

    if len(given) == 1:
        return given[0]
    if not all("=" in each for each in given):
        raise OptionError(f"--groups {' '.join(given)}: expected one glob, in quotes, or COLUMN=GLOB for each column")
    return dict(each.split("=", 1) for each in given)


def _windows(arguments: argparse.Namespace) -> Any:
    from ray_h5.rows.windows import Windows

    return Windows(
        dict(map(_window, arguments.windows)),
        stride=arguments.stride,
        pad=arguments.pad[0] if len(arguments.pad) == 1 else tuple(arguments.pad),
        episode=arguments.episode,
        episode_ends=arguments.episode_ends,
        episode_flags=arguments.episode_flags,
        episode_starts=arguments.episode_starts,
        episode_lengths=arguments.episode_lengths,
        episode_bounds=arguments.episode_bounds,
        per_step=arguments.per_step,
        constants=arguments.constants,
    )


def _shape(given: str) -> tuple[str, tuple[int, ...]]:
    """Return the array and the shape of ``raw=64,64,64``."""
    from ray_h5.errors import OptionError

    name, _, shape = given.rpartition("=")
    try:
        return name, tuple(int(each) for each in shape.split(","))
    except ValueError:
        raise OptionError(f"--patches {given}: expected ARRAY=LENGTH,LENGTH, such as raw=64,64,64") from None


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


def _storage_options(given: Sequence[str]) -> dict[str, Any]:
    """Return the option `storage_options`."""
    from ray_h5.errors import OptionError

    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise OptionError(f"--storage-option {name}: expected NAME=VALUE")
        found[name] = {"true": True, "false": False}.get(value.lower(), value)
    return found


def files_of(arguments: argparse.Namespace) -> FileOptions:
    """Return the files of the arguments that `add_files` added."""
    from ray_h5.index.file_options import FileOptions

    return FileOptions.of(arguments.paths, **options_of(arguments))


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Source` in the arguments that `add_files` added."""
    from ray_h5.tables.sidecar import Sidecar

    convert: dict[str, Callable[[Any], Any]] = {
        "sidecar": lambda tables: [Sidecar(path, on=column) for path, column in tables],
        "labels": dict,
        "dtypes": dict,
        "storage_options": _storage_options,
    }
    options = {
        name: convert[name](value) if name in convert else value
        for name, value in vars(arguments).items()
        if name in _FLAGS
    }
    return _row_kinds(arguments, options)


def run(arguments: argparse.Namespace) -> int:
    """Run ``ray-h5 inspect``; the exit status is 1 if `read_h5` refuses the files, and no call is suggested."""
    from ray_h5.inspect.report import inspect_files, to_dict
    from ray_h5.inspect.text import to_text

    files = files_of(arguments)
    _check_page(arguments.html, files.paths)
    report = inspect_files(files, arguments.shuffle)
    print(json.dumps(to_dict(report), indent=2) if arguments.json else to_text(report, files.columns or ()))
    if arguments.html is not None:
        from ray_h5.inspect.html.page import to_html

        page = to_html(report, files, arguments.paths, options_of(arguments))
        with open(arguments.html, "w", encoding="utf-8") as file:
            file.write(page)
        print(f"ray-h5: the page is in {printable(os.path.abspath(arguments.html))}", file=sys.stderr)
    is_read = report.ok or (files.leaves_out and report.problem is None)
    return 0 if is_read or (files.columns is None and report.has_call) else 1


def _check_page(page: str | None, paths: Sequence[str]) -> None:
    """Raise if the page would replace one of the files."""
    from ray_h5.errors import OptionError

    if page is not None and os.path.realpath(page) in map(os.path.realpath, paths):
        raise OptionError(
            f"--html {page}: this is one of the files that are read; expected another name, such as a.html"
        )
