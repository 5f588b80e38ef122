"""Frozen dataclasses that hold arrays: equality by content, and a short repr."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa


class ComparedByContent:
    """Base of frozen dataclasses with fields of arrays, made by ``@dataclass(frozen=True, eq=False, repr=False)``.

    The equality that a dataclass has compares fields with ``==``, which gives an array for arrays. Here two values are
    equal if the fields that are compared hold the same. The repr shows the dtypes and shapes of arrays only: a plan
    may hold millions of row ids.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or all(map(_same, _parts(self), _parts(other)))

    def __hash__(self) -> int:
        return hash((type(self), *(_hashable(part) for part in _parts(self))))

    def __repr__(self) -> str:
        shown = (f"{field.name}={_shown(getattr(self, field.name))}" for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"


def _parts(value: Any) -> Iterator[Any]:
    return (getattr(value, field.name) for field in fields(value) if field.compare)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (pa.Array, pa.ChunkedArray)):
        return type(one) is type(other) and bool(one.equals(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _hashable(value: Any) -> Hashable:
    """Return what is equal for equal values. Arrays count by their shapes: to hash them would read them whole."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return str(value.type), len(value)
    return frozenset(value) if isinstance(value, Mapping) else value


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} of shape {value.shape}>"
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return f"<{len(value)} of {value.type}>"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_shown(item)}' for name, item in value.items())}}}"
    return repr(value)
