"""The call of `read_h5` that reads what was inspected."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["call_of"]

_MOST_COLUMNS = 20


def call_of(function: str, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return a call as Python, with the options that were given.

    Parameters
    ----------
    function
        The function, such as ``ray_h5.read_h5``.
    paths, options
        What was inspected.
    columns
        Columns to name if the options name none; too many are not named.
    """
    given = {name: value for name, value in options.items() if value not in (None, (), [], {})}
    if "columns" not in given and 0 < len(columns) <= _MOST_COLUMNS:
        given = {"columns": list(columns), **given}
    if "storage_options" in given:
        # They may be secret.
        given["storage_options"] = dict.fromkeys(given["storage_options"], ...)
    arguments = [_value(paths[0] if len(paths) == 1 else list(paths))]
    arguments += [f"{name}={_value(value)}" for name, value in given.items()]
    return f"{function}(\n" + "".join(f"    {each},\n" for each in [*arguments, "shuffle=True"]) + ")"


def _value(value: Any) -> str:
    """Return a value as Python: of row kinds, windows and tables the fields that are not their defaults."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{each!r}: {_value(of)}" for each, of in value.items()) + "}"
    if value is ...:
        return "..."
    if not dataclasses.is_dataclass(value):
        return f"ray_h5.{value!r}" if type(value).__module__.startswith("ray_h5.") else repr(value)
    kept = [
        f"{field.name}={_value(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if field.init and getattr(value, field.name) != _default(field)
    ]
    return f"ray_h5.{type(value).__name__}({', '.join(kept)})"


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
