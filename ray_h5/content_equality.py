"""Frozen dataclasses that hold arrays: equality by content, and a short repr."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

_PLAIN = frozenset({int, str, tuple, bool, bytes})
"""Types whose values are compared at once: most fields are of these."""


class ComparedByContent:
    """Base of frozen dataclasses with fields of arrays, made by ``@dataclass(frozen=True, eq=False, repr=False)``.

    The equality that a dataclass has compares fields with ``==``, which gives an array for arrays. Here two values are
    equal if the fields that are compared hold the same; NaN is the same as NaN. The repr shows the dtypes and shapes of
    arrays only: a plan may hold millions of row ids.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        if self is other:
            return True
        return all(one is two or _same(one, two) for one, two in zip(_parts(self), _parts(other), strict=True))

    def __hash__(self) -> int:
        return hash((type(self), *(_hashable(part) for part in _parts(self))))

    def __repr__(self) -> str:
        shown = (f"{field.name}={_shown(getattr(self, field.name))}" for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _parts(value: Any) -> Iterator[Any]:
    return (getattr(value, name) for name in _compared(type(value)))  # type: ignore[arg-type]


@cache
def _compared(of: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(of) if field.compare)


def _same(one: Any, other: Any) -> bool:
    if type(one) in _PLAIN:
        return bool(one == other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if type(one) is not type(other) or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        # NaN and NaT equal no value, and are fill values of many datasets.
        return np.array_equal(one, other) or (one.dtype.kind in "fcMmV" and one.tobytes() == other.tobytes())
    if isinstance(one, (pa.Array, pa.ChunkedArray)):
        return type(one) is type(other) and bool(one.equals(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other) or (isinstance(one, float) and one != one and other != other)


def _hashable(value: Any) -> Hashable:
    """Return what is equal for equal values. Arrays count by their shapes: to hash them would read them whole."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return str(value.type), len(value)
    return frozenset(value) if type(value) not in _PLAIN and isinstance(value, Mapping) else value


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} of shape {value.shape}>"
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return f"<{len(value)} of {value.type}>"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_shown(item)}' for name, item in value.items())}}}"
    return repr(value)
