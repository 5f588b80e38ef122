"""What to write, as values: arguments of `read_h5`, whose `repr` is what a user writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Arguments: TypeAlias = Mapping[str, Any]
"""Arguments by name. Their values may have a `Made` anywhere inside."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a class or function of ray_h5 makes: it stands below all of them, and names it.

    Attributes
    ----------
    name : str
        The name in `ray_h5`.
    values : tuple
        The arguments by place.
    options : mapping of str to object
        The arguments by name.
    """

    name: str
    values: tuple[Any, ...] = ()
    options: Arguments = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ray_h5.{self.name}({', '.join([*map(repr, self.values), *filter(None, [written(self.options)])])})"


def made(name: str, /, *values: Any, **options: Any) -> Made:
    """Return what a class or function of ray_h5 makes of these arguments."""
    return Made(name, values, options)


def written(arguments: Arguments) -> str:
    """Return arguments as they are written.

    >>> written({"rows": made("Groups", "mol_*"), "columns": ["coords"]})
    "rows=ray_h5.Groups('mol_*'), columns=['coords']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def value_of(value: Any, makers: Mapping[str, Callable[..., Any]]) -> Any:
    """Return what a value of `Arguments` stands for: `makers` has the classes and functions by name."""
    if isinstance(value, Made):
        options = {name: value_of(option, makers) for name, option in value.options.items()}
        return makers[value.name](*(value_of(each, makers) for each in value.values), **options)
    if isinstance(value, list):
        return [value_of(each, makers) for each in value]
    if isinstance(value, dict):
        return {name: value_of(each, makers) for name, each in value.items()}
    return value
