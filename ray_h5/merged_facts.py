"""What is known of one state of a file becomes more: values that are merged, and compared with what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self


class Facts:
    """Base of frozen dataclasses of what is known of one state of a file: None, 0 and a missing key are not known."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def merged(self, later: Self | None) -> Self:
        """Return what is known here, and what was found since, of the same state of the file."""
        if later is None:
            return self
        both = {name: _merged(getattr(self, name), getattr(later, name)) for name in self.__dataclass_fields__}
        return replace(self, **both)

    def holds(self, other: Self) -> bool:
        """Return whether all that `other` knows of the same state of the file is here too."""
        return all(_holds(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)


def nbytes_of(value: Any) -> int:
    """Return the bytes of the arrays that a value has, those of its fields, or those of the values of a dict."""
    held, nbytes = [value], 0
    while held:
        one = held.pop()
        if isinstance(one, dict):
            held += one.values()
        elif (own := getattr(one, "nbytes", None)) is not None:
            nbytes += own
        elif fields := getattr(one, "__dataclass_fields__", ()):
            held += [getattr(one, name) for name in fields]
    return nbytes


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, int) and value == 0)


def _merged(mine: Any, later: Any) -> Any:
    if isinstance(later, Facts):
        return later if mine is None else mine.merged(later)
    if isinstance(later, Mapping):
        known, later = mine or {}, dict(later)  # other threads add to it; a list of its items is not made at once
        inner = {name: value for name, value in later.items() if isinstance(value, (Facts, Mapping))}
        return {**known, **later, **{name: _merged(known.get(name), value) for name, value in inner.items()}}
    return later if _is_known(later) else mine


def _holds(mine: Any, other: Any) -> bool:
    if isinstance(other, Facts):
        return mine is not None and mine.holds(other)
    if isinstance(other, Mapping):
        return mine is not None and all(name in mine and _holds(mine[name], value) for name, value in other.items())
    return not _is_known(other) or _is_known(mine)
