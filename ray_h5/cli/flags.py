"""The options of `Source` as flags of the command line, with the texts of its docstring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import click

from ray_h5.errors import OptionError
from ray_h5.options import documented
from ray_h5.source import Source

_ROWS = "What a row is (docs/rows.md; by default an index of the first axis)"


class Flag(click.Option):
    """An option of a section of the help. If its metavar ends in `` ...``, several values may follow it."""

    def __init__(self, *flags: str, section: str = "Options", **how: Any) -> None:
        self.section = section
        self.takes_several = how.get("metavar", "").endswith(" ...")
        super().__init__(flags, **{"multiple": self.takes_several, **how})


class Command(click.Command):
    """A command whose flags may take several values, and whose help has sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        several = {name for flag in self.params if isinstance(flag, Flag) and flag.takes_several for name in flag.opts}
        # click reads a flag of several values before each value.
        words: list[str] = []
        flag = ""
        for place, word in enumerate(args):
            if word == "--":
                words += args[place:]
                break
            if word in several:
                if not args[place + 1 : place + 2] or args[place + 1].startswith("-"):
                    raise click.BadOptionUsage(word, f"Option '{word}' requires a value.")
                flag = word
                continue
            flag = "" if word.startswith("-") else flag
            words += [flag, word] if flag else [word]
        return super().parse_args(ctx, words)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _pair(
    example: str, convert: Callable[[str], Any] = str, split: Callable[[str, str], Sequence[str]] = str.rpartition
) -> Callable[[str], tuple[str, Any]]:
    """Return what makes a name and a value of ``NAME=VALUE``."""

    def parse(text: str) -> tuple[str, Any]:
        name, _, value = split(text, "=")
        try:
            if name:
                return name, convert(value)
        except (TypeError, ValueError):
            pass
        raise click.BadParameter(f"expected {example}, found {text!r}")

    return parse


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _offsets(text: str) -> range | tuple[int, ...]:
    return range(*map(int, text.split(":"))) if ":" in text else _lengths(text)


_OF_ROWS: Mapping[str, Mapping[str, Any]] = {
    "zip_files": {"metavar": "PATH ..."},
    "columns": {"metavar": "NAME ..."},
    "group": {"metavar": "NAME"},
    "sidecar": {"metavar": "PATH COLUMN[=KEY]", "nargs": 2, "multiple": True},
    "attrs": {"metavar": "NAME ..."},
    "decode_cf": {"is_flag": True},
    "axes": {"type": click.Choice(["stored", "reversed"])},
    "labels": {"metavar": "NAME=CLASSES ...", "type": _pair("NAME=auto or NAME=CLASS,CLASS, as in cell_type=auto")},
    "dtypes": {"metavar": "NAME=DTYPE ...", "type": _pair("NAME=DTYPE, such as image=float16")},
    "casting": {"type": click.Choice(["checked", "unsafe"])},
}
_OF_FILES: Mapping[str, Mapping[str, Any]] = {
    "index_dir": {"metavar": "FOLDER"},
    "allow_external": {"metavar": "FOLDER", "multiple": True},
    "storage_options": {
        "metavar": "NAME=VALUE",
        "multiple": True,
        "type": _pair("NAME=VALUE", lambda text: {"true": True, "false": False}.get(text.lower(), text), str.partition),
    },
    "cache_dir": {"metavar": "FOLDER"},
    "cache_bytes": {"metavar": "BYTES"},
    "file_extensions": {"metavar": "EXTENSION ..."},
    "ignore_missing_paths": {"is_flag": True},
    "ignore_unreadable_files": {"is_flag": True},
    "missing": {"type": click.Choice(["error", "null"])},
}
_SOURCE = {**_OF_ROWS, **_OF_FILES}
"""How the options of `Source` are written; `rows` and `windows` have several flags, `filesystem` is a Python object."""

_SHORTER = {"index_dir": ("--dir",), "storage_options": ("--storage-option",)}

_OF_WINDOWS = {
    "episode": ("COLUMN", "a column with one value for each episode"),
    "episode_ends": ("COLUMN", "a dataset with the ends of episodes"),
    "episode_flags": ("COLUMN ...", "columns that are true in the last step of an episode"),
    "episode_starts": ("COLUMN", "a dataset with the first rows of episodes"),
    "episode_lengths": ("COLUMN", "a dataset with the steps of each episode"),
    "episode_bounds": ("COLUMN", "a dataset with the first and last rows of episodes"),
    "per_step": ("COLUMN ...", "columns with a value for each step"),
    "constants": ("COLUMN ...", "columns that an episode has once"),
}


def file_flags(required: str = "", *, rows: bool = True) -> list[click.Parameter]:
    """Return the parameters that say which files are read, how they are opened, and unless `rows` is False, their rows.

    One option may be required.
    """
    defaults, entries = signature(Source).parameters, documented(Source)
    flags: list[click.Parameter] = [click.Argument(["paths"], nargs=-1, required=True, metavar="PATH...")]
    for name, how in (_SOURCE if rows else _OF_FILES).items():
        # The first part of the first sentence; python -OO has none.
        entry = " ".join(" ".join(entries.get(name, "").split("\n")[1:]).split())
        said = re.split(r"[.:;](?:\s|$)", entry)[0].replace("`", "")
        default = defaults[name].default
        shown = f" (default: {default if isinstance(default, str) else ', '.join(default)})" if default else ""
        names = (*_SHORTER.get(name, ()), _flag(name))
        flags.append(Flag(name, *names, help=said + shown, required=name == required, **how))
    return flags + _row_flags() if rows else flags


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _row_flags() -> list[click.Parameter]:
    """Return the parameters that say what a row is."""

    def flag(name: str, text: str, metavar: str = "", **how: Any) -> Flag:
        return Flag(name, _flag(name), section=_ROWS, help=text, **({"metavar": metavar} if metavar else {}), **how)

    groups = (
        "each HDF5 group that matches one of these, such as 'data/demo_*'; --attrs are its own. Or, for each column, "
        "the datasets that share names: --groups 'image=images/*' --groups 'mask=masks/*'"
    )
    shapes = _pair("ARRAY=LENGTH,LENGTH, such as raw=64,64,64", _lengths)
    steps = _pair("COLUMN=START:STOP or COLUMN=STEP,STEP, such as actions=0:16", _offsets)
    return [
        flag("groups", groups, "GLOB", multiple=True),
        flag("exclude", "groups that are left out of these, such as 'meta*'", "GLOB", multiple=True),
        flag("by", "rows that follow each other and have one value in this column", "COLUMN"),
        flag("each_file", "each file", is_flag=True),
        flag("key", "a column with the path of the group, or the name of the file", "NAME"),
        flag("patches", "a block of arrays, or with --groups of each", "ARRAY=SHAPE ...", type=shapes),
        flag("patch_stride", "steps between blocks of a grid: 32 or 32,32,16", "STEPS", type=_lengths),
        flag("per_file", "blocks that are drawn of each file", "COUNT", type=int),
        flag("grid", "an index of this many leading axes", "AXES", type=int),
        flag("windows", "a step of an episode", "COLUMN=STEPS ...", type=steps),
        flag("stride", "steps between windows", "STEPS", type=int, default=1),
        flag("pad", "edge, zero or drop; two are for beginning and end", "HOW ...", default=["edge"]),
        *(flag(name, text, metavar) for name, (metavar, text) in _OF_WINDOWS.items()),
    ]


def options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `Source` in what the parameters of `file_flags` returned."""
    from ray_h5.tables.sidecar import Sidecar

    # What makes an option of several values of a flag; others are lists.
    makers: dict[str, Callable[[Any], Any]] = {
        "dtypes": dict,
        "storage_options": dict,
        "labels": lambda pairs: {name: text if text == "auto" else text.split(",") for name, text in pairs},
        "sidecar": lambda tables: [Sidecar(path, **_key(columns)) for path, columns in tables],
    }
    chosen = {name: arguments[name] for name in _SOURCE if arguments.get(name) not in (None, (), False)}
    options = {
        name: makers.get(name, list)(value) if isinstance(value, tuple) else value for name, value in chosen.items()
    }
    if "grid" not in arguments:
        return options
    options["rows"], options["windows"] = _rows(arguments, options), None
    if arguments["windows"]:
        from ray_h5.rows.windows_option import Windows

        pad = arguments["pad"]
        how = {name: arguments[name] for name in ("stride", *_OF_WINDOWS) if arguments[name] not in (None, ())}
        options["windows"] = Windows(dict(arguments["windows"]), pad=pad[0] if len(pad) == 1 else pad, **how)
    return options


def _key(columns: str) -> dict[str, Any]:
    """Return what ``COLUMN`` or ``COLUMN=KEY`` says: a column of the files, and the column of the table."""
    on, _, key = columns.partition("=")
    return {"on": on, "key": key or None}


def _rows(arguments: Mapping[str, Any], options: dict[str, Any]) -> Any:
    """Return the row kind, or None; attributes of groups are taken out of `options`."""
    from ray_h5.rows.patches_option import Patches
    from ray_h5.rows.row_kind_options import Files, Grid, Groups

    kinds = [_flag(name) for name in ("groups", "by", "grid", "each_file", "patches") if arguments[name]]
    if len(kinds) > 1 and kinds != ["--groups", "--patches"]:
        raise OptionError(f"{' and '.join(kinds)}: a row is one or the other")
    if arguments["key"] and not {*kinds} & {"--groups", "--each-file", "--patches"}:
        raise OptionError("--key is of groups or files: pass --groups, --each-file or --patches too")
    for name in ("patch_stride", "per_file"):
        if arguments[name] is not None and not arguments["patches"]:
            raise OptionError(f"{_flag(name)} is of blocks: pass --patches too")
    globs, key, exclude = arguments["groups"], arguments["key"], arguments["exclude"]
    if exclude and not globs:
        raise OptionError("--exclude is of groups: pass --groups too")
    are_columns = [len(globs) > 1 and "=" in glob for glob in globs]
    if any(are_columns) and not all(are_columns):
        raise OptionError(f"--groups {' '.join(globs)}: expected globs, in quotes, or COLUMN=GLOB for each column")
    groups = dict(glob.split("=", 1) for glob in globs) if any(are_columns) else globs or None
    if arguments["patches"]:
        steps, shapes = arguments["patch_stride"], dict(arguments["patches"])
        stride = steps[0] if steps and len(steps) == 1 else steps
        return Patches(shapes, stride=stride, per_file=arguments["per_file"], key=key, groups=groups, exclude=exclude)
    if groups is not None:
        return Groups(groups, attrs=tuple(options.pop("attrs", ())), key=key, exclude=exclude)
    if arguments["by"]:
        return Groups(by=arguments["by"])
    if arguments["each_file"]:
        return Files(key=key)
    return None if arguments["grid"] is None else Grid(arguments["grid"])
