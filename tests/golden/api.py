"""All public names: signatures, methods, errors, and flags of the command line, as text."""

import contextlib
import inspect
import io
import re
from importlib.metadata import entry_points

import ray_h5
from ray_h5 import errors, torch_data

COMMANDS = ("inspect", "repack")

ENTRANCES = ("H5Dataset", "H5Datasource", "build_index", "loader", "read_h5")
"""What takes the options that say which files are read, and how. They are listed once."""


def names_text():
    """Return what is public, a line each."""
    source = _source_options()
    lines = ["# the source options", "", *source, ""]
    for module in (ray_h5, torch_data):
        lines += [f"# {module.__name__}", ""]
        for name in module.__all__:
            value = getattr(module, name)
            if name != "RayH5Error" and value is getattr(errors, name, None):  # listed below
                continue
            if module is torch_data and getattr(ray_h5, name, None) is value and name in ray_h5.__all__:
                lines.append(f"{name}: as in ray_h5")
            else:
                entry = _entry(name, value)
                lines += [*_without(entry, [f"  {each}" for each in source]), ""]
    lines += ["# names of documents, in ray_h5 and ray_h5.torch_data, outside __all__", ""]
    for name in sorted(name for name, home in torch_data._NAMES.homes.items() if home.startswith("ray_h5.compat")):
        entry = _entry(name, getattr(torch_data, name))
        lines += [*_without(entry, [f"  {each}" for each in source]), ""]
    return "\n".join([*lines, "", "# errors", "", *_errors(), "", "# command line", "", *_flags(), ""])


def _source_options():
    """Return the options that all entrances have, with one default."""
    entries = [_signature(name, getattr(ray_h5, name)) for name in ENTRANCES]
    return [each.strip() for each in entries[0] if all(each in entry for entry in entries) and each.strip("( *)")]


def _without(entry, source):
    """Return the lines of an entry with one line instead of the source options, if it has all of them."""
    if not set(source) <= set(entry):
        return entry
    first = min(map(entry.index, source))
    return [*(each for each in entry[:first]), "  <source options>", *(e for e in entry[first:] if e not in source)]


def _entry(name, value):
    lines = _signature(name, value)
    if inspect.isclass(value):
        for key in sorted(vars_of(value)):
            member = inspect.getattr_static(value, key, None)
            if isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(member):
                lines.append("    ." + key + "".join(_signature("", getattr(value, key), one_line=True)))
            else:
                lines.append(f"    .{key}")
    return lines


def vars_of(cls):
    """Return the public names of a class that our classes define."""
    ours = [each for each in cls.__mro__ if each.__module__.startswith("ray_h5")]
    return {key for each in ours for key in [*vars(each), *getattr(each, "__annotations__", ())] if key[0] != "_"}


def _signature(name, value, one_line=False):
    """Return a signature, a parameter a line: a line that is added or removed is then one line of a difference."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # of a class in C
        return [name]
    shown, is_named = [], False
    for each in parameters:
        if each.name == "self" and one_line:
            continue
        if each.kind is each.KEYWORD_ONLY and not is_named:
            shown.append("*")
        is_named |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        shown.append(f"{stars}{each.name}{_default(each)}")
    if one_line or len(shown) < 5:
        return [f"{name}({', '.join(shown)})"]
    return [f"{name}(", *(f"  {each}" for each in shown), ")"]


def _default(parameter):
    if parameter.default is parameter.empty:
        return ""
    text = repr(parameter.default)
    return "=" + re.sub(r" at 0x[0-9a-f]+", "", text)


def _errors():
    """Return each public error with its bases."""
    known, waiting = set(), [ray_h5.RayH5Error]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        known |= {cls} if getattr(ray_h5, cls.__name__, None) is cls else set()
    return sorted(f"{cls.__name__}({', '.join(base.__name__ for base in cls.__bases__)})" for cls in known)


def _flags():
    """Return the flags of the commands, as their help shows them."""
    (command,) = entry_points(group="console_scripts", name="ray-h5")
    lines = []
    for name in COMMANDS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            command.load()([name, "--help"])
        flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", out.getvalue())))
        lines += [f"ray-h5 {name}", *(f"  {flag}" for flag in flags)]
    return lines
