"""Options: those that several functions share, and checks of numbers in options and checkpoints."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar, cast

from ray_h5.call_errors import missing, refusal
from ray_h5.errors import OptionError, PositionError

DEFAULT_EXTENSIONS = ("h5", "hdf5", "h5ad")
"""Files that are taken from directories and globs."""

ADDED_BY = {
    "path": "include_paths",
    "row_id": "include_row_ids",
    "row_key": "include_row_keys",
    "step": "include_steps",
    "is_padding": "include_padding",
}
"""Columns that say where a row comes from, and the options that add them."""

_Taker = TypeVar("_Taker", bound=Callable[..., Any])


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether `value` is a real number that fits a float, NaN and infinity included; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def as_integer(name: str, value: object, least: int | None = None, *, instead: str = "") -> int:
    """Return an option as an integer of Python, which JSON and Ray accept.

    Raises
    ------
    OptionError
        If it is no integer, or less than `least`. `instead` is appended to the message.
    """
    if not is_integer(value) or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise OptionError(f"expected an integer{bound}{instead}", option=name, value=value)
    return int(value)


def require(holds: object, option: str, value: object, expected: str) -> None:
    """Raise an OptionError, ``option=value: expected ...``, unless `holds` is true."""
    if not holds:
        raise OptionError(f"expected {expected}", option=option, value=value)


def as_names(columns: Any, option: str = "columns") -> list[str]:
    """Return the names of columns that a user gave as `option`; a single string is an error, and so is a mapping."""
    if isinstance(columns, str):
        advice = f"expected a list of names, found one; write {option.rpartition(': ')[2]}=[{columns!r}]"
        raise OptionError(advice, option=option, value=columns)
    is_list = isinstance(columns, Iterable) and not isinstance(columns, Mapping)  # keys would be taken for names
    names = list(columns) if is_list else [columns]
    if odd := [name for name in names if not isinstance(name, str)]:
        raise OptionError(f"{option}: expected a list of names, such as 'signal' or 'obs/image', found {odd[0]!r}")
    return list(map(str, names))  # Python's text: subclasses, such as numpy's, are in no index file


_BYTES = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-zA-Z]*)\s*")
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{binary}b": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgtp", start=1)
    for binary in ("", "i")
}


def as_bytes(name: str, value: object) -> int:
    """Return an option that is a number of bytes, or a text such as ``"200GB"`` or ``"1.5 TiB"``.

    Raises
    ------
    OptionError
        If it is neither, or less than one byte.
    """
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match[2].lower() in _UNITS:
        value = int(float(match[1]) * _UNITS[match[2].lower()])
    if not is_integer(value) or value < 1:
        raise OptionError("expected a number of bytes, or a text such as '200GB' or '50GiB'", option=name, value=value)
    return int(value)


def check_count(what: str, value: object, least: int) -> None:
    """Raise a PositionError unless a value in a position is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PositionError(f"{what}={value!r}: expected an integer of {least} or more")


def takes_options_of(
    donor: Callable[..., Any], *, instead: Mapping[str, str] | None = None
) -> Callable[[_Taker], _Taker]:
    """Let a function or class with ``**options`` list the options of another one in its signature and docstring.

    An unknown option is then an `UnknownOptionError` that offers the nearest name, as ``**options`` would take it.

    Parameters
    ----------
    donor : callable
        Its parameters with a default are the options, unless the function has parameters of the same names. Its
        docstring has the entries of all parameters that the docstring of the function lacks.
    instead : mapping of str to str, optional
        Advice for options that have another name here; those of these names are left out.
    """
    instead = instead or {}

    def listing(taker: _Taker) -> _Taker:
        own = inspect.signature(_called(taker))
        parameters = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        by_position = [one for one in parameters if one.kind is not Parameter.KEYWORD_ONLY]
        more = [
            one.replace(kind=Parameter.KEYWORD_ONLY)
            for name, one in inspect.signature(donor).parameters.items()
            if one.default is not Parameter.empty and name not in own.parameters and name not in instead
        ]
        signature = own.replace(parameters=[*by_position, *more, *parameters[len(by_position) :]])
        checked = _checking(taker, signature.parameters, instead)
        _called(checked).__signature__ = signature
        # The entries of the docstring, in the order of the signature.
        entries = {**documented(donor), **documented(taker)}
        section = "\n".join(dict.fromkeys(entries[name] for name in signature.parameters if name in entries))
        text = inspect.cleandoc(taker.__doc__ or "")  # python -OO has none
        checked.__doc__ = _PARAMETERS.sub(lambda _: section, text, count=1) or None
        return cast("_Taker", checked)

    return listing


def names_options(taker: _Taker) -> _Taker:
    """Make an unknown option of a function or class an `UnknownOptionError` that says what to write instead.

    Without it, Python raises a TypeError that repeats the name.
    """
    return takes_options(instead={})(taker)


def takes_options(*, instead: Mapping[str, str]) -> Callable[[_Taker], _Taker]:
    """Do what `names_options` does, with advice for options that went or have another name here."""
    return lambda taker: _checking(taker, inspect.signature(_called(taker)).parameters, instead)


def _called(taker: Any) -> Any:
    return cast("Any", taker).__init__ if isinstance(taker, type) else taker


def _checking(taker: Any, known: Mapping[str, Parameter], instead: Mapping[str, str]) -> Any:
    """Return `taker`, or for a function one in its place, which takes options of these names alone.

    If it takes any name, whatever it passes them to checks them.
    """
    any_name = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values())
    called = _called(taker)
    kinds = [parameter.kind for parameter in inspect.signature(called, follow_wrapped=False).parameters.values()]
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    most = sys.maxsize if Parameter.VAR_POSITIONAL in kinds else sum(kind in by_position for kind in kinds)
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    own = enumerate(inspect.signature(called).parameters.values())
    needed = {one.name: at for at, one in own if one.default is one.empty and one.kind not in variable}

    @functools.wraps(called)
    def checked(*arguments: Any, **options: Any) -> Any:
        if len(arguments) > most or not (any_name or options.keys() <= known.keys()):
            raise refusal(taker.__name__, known, instead, options, len(arguments) - most)
        if absent := [name for name, at in needed.items() if at >= min(len(arguments), most) and name not in options]:
            raise missing(taker.__name__, absent, documented(taker if isinstance(taker, type) else checked))
        return called(*arguments, **options)

    if not isinstance(taker, type):
        return checked
    taker.__init__ = checked  # type: ignore[misc]
    return taker


_PARAMETERS = re.compile(r"(?<=\nParameters\n----------\n).*?(?=\n\n[A-Z][a-z ]+\n---|\Z)", re.DOTALL)


def documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return the entries of the section "Parameters" of a docstring, by name; several names may have one entry."""
    section = _PARAMETERS.search(inspect.cleandoc(function.__doc__ or ""))
    entries = re.split(r"\n(?=\S)", section[0]) if section else []
    return {name: entry for entry in entries for name in re.split(r" : |\n", entry)[0].split(", ")}
