"""Frozen values <-> JSON and Arrow arrays, for index files: by the types of their fields, checked as they are read."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from ray_h5.arrow_arrays import numbers_of
from ray_h5.columns.times import Times
from ray_h5.columns.varying.bounds import Bounds, ChunkedBy
from ray_h5.manifest.joined_arrays import NOT_WRITTEN, GroupTable, JoinedArray, Texts
from ray_h5.manifest.known_columns import (
    Elsewhere,
    KnownColumn,
    OtherColumn,
    PackedIndex,
    num_chunks,
)
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, Encoding, Form, SourceStates
from ray_h5.storage.byte_source import Identity

_DTYPE = re.compile(r"[<>|][biufcmMOSUV]\d*(\[\w+\])?")
_UNIONS = {Union, types.UnionType}
_MOST = 1 << 64
_MAX_NESTED = 32
"""As many virtual datasets of virtual datasets are read."""


class Writer:
    """Turns values into JSON. Their arrays and bytes are put into `arrays`, each object once.

    Parameters
    ----------
    sources : mapping
        The numbers of other files, by path and state.
    """

    def __init__(self, sources: Mapping[tuple[str, Identity | None], int]) -> None:
        self.arrays: list[pa.Array] = []
        self._sources = sources
        self._known: dict[int, tuple[Any, int]] = {}

    def json(self, value: Any, hint: Any) -> Any:
        """Return a value whose type is `hint` as JSON."""
        if value is None or isinstance(value, (str, bool, int)):
            return value
        if get_origin(hint) in _UNIONS:
            hint = next(each for each in get_args(hint) if each is not types.NoneType)
        if hint == SourceStates:
            return [self._sources[each] for each in value]
        if isinstance(value, np.dtype):
            return dtype_to_json(value)
        if isinstance(value, bytes):
            return self._added(value, lambda: pa.array(np.frombuffer(value, np.uint8)))
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, Mapping):
            of = get_args(hint)[1]
            return {name: self.json(each, of) for name, each in value.items()}
        if isinstance(value, tuple):
            return [self.json(each, of) for each, of in zip(value, _items(hint, len(value)), strict=True)]
        of_type: Any = type(value)
        hints = _fields(of_type)
        given = {name: (getattr(value, name), of) for name, (of, default) in hints.items() if name != "path"}
        if isinstance(value, OtherColumn):
            given["path"] = value.path, str
        return {name: self.json(each, of) for name, (each, of) in given.items() if not _is(each, hints[name][1])}

    def _added(self, value: Any, make: Callable[[], pa.Array]) -> int:
        if id(value) not in self._known:
            self._known[id(value)] = value, len(self.arrays)
            self.arrays.append(make())
        return self._known[id(value)][1]

    def _array(self, array: np.ndarray) -> list[Any]:
        if array.dtype.hasobject:
            number = self._added(array, lambda: pa.array(array.reshape(-1).tolist(), pa.large_binary()))
        else:
            number = self._added(array, lambda: pa.array(np.frombuffer(array.tobytes(), np.uint8)))
        return [number, dtype_to_json(array.dtype), list(array.shape)]


class Reader:
    """Turns JSON into values again; raises a ValueError for what cannot be true.

    Parameters
    ----------
    arrays : sequence of pyarrow.Array
        What `Writer` put there.
    path : str
        The file.
    states : mapping of str to Identity or None
        The states of that file, and of those that its columns come from.
    sources : sequence of (str, Identity or None)
        Other files, by number.
    """

    def __init__(
        self,
        arrays: Sequence[pa.Array],
        path: str,
        states: Mapping[str, Identity | None],
        sources: Sequence[tuple[str, Identity | None]],
    ) -> None:
        self.arrays, self.path, self.states, self.sources = arrays, path, states, sources
        self.used: set[int] = set()
        self._texts: dict[tuple[int, int], Texts] = {}
        self._nested = 0

    def size_of(self, path: str) -> int:
        """Return the bytes of a file."""
        if (state := self.states[path]) is None:
            raise ValueError(f"{path} does not exist")
        return state.size

    def value(self, found: Any, hint: Any) -> Any:
        """Return a value of type `hint`."""
        if get_origin(hint) in _UNIONS:
            return self._one_of(found, get_args(hint))
        if hint == SourceStates:
            check(all(type(each) is int and each >= 0 for each in found), found, "sources")
            return tuple(self.sources[each] for each in found)
        if hint in {int, str, bool, types.NoneType}:
            expected = {types.NoneType: found is None, int: type(found) is int and abs(found) < _MOST}
            check(expected.get(hint, type(found) is hint), found, hint)
            return found
        if get_origin(hint) is Literal:
            check(type(found) is str and found in get_args(hint), found, hint)
            return found
        if hint is np.dtype:
            return dtype_from_json(found)
        if hint is bytes:
            return self._raw(found).tobytes()
        if hint is np.ndarray:
            return self._array(*found)
        if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
            _, of = get_args(hint)
            return {name: self.value(each, of) for name, each in found.items()}
        if get_origin(hint) is tuple:
            check(type(found) is list, found, hint)
            return tuple(self.value(each, of) for each, of in zip(found, _items(hint, len(found)), strict=True))
        return self._dataclass(found, hint)

    def _one_of(self, found: Any, hints: Sequence[Any]) -> Any:
        """Return a value of one of several types: JSON tells None, texts, arrays and other values apart."""
        kind = type(found)
        of = {type(None): types.NoneType, str: str, int: int}.get(kind)
        if of is None or of not in hints:
            others = [each for each in hints if each not in {types.NoneType, str, int}]
            arrays = [each for each in others if each is np.ndarray]
            of = arrays[0] if arrays and kind is list else next(each for each in others if each is not np.ndarray)
        return self.value(found, of)

    def _dataclass(self, found: dict[str, Any], hint: Any) -> Any:
        hints = _fields(hint)
        check(type(found) is dict and found.keys() <= hints.keys(), found, hint)
        if hint is Texts and (key := (found["data"], found["ends"][0])) in self._texts:
            return self._texts[key]
        self._nested += 1
        check(self._nested <= 8 * _MAX_NESTED, hint, "leads to itself")
        home = self.path
        if hint is OtherColumn:  # what is known of it is about its own file
            check(found["path"] in self.states, found["path"], "no file that a column leads to")
            self.path = found["path"]
        given = {name: self.value(each, hints[name][0]) for name, each in found.items()}
        self.path = home
        self._nested -= 1
        if hint is ColumnLayout:
            given["path"] = self.path
        value = hint(**given)
        if hint in _CHECKS:
            _CHECKS[hint](value, self)
        if hint is Texts:
            self._texts[key] = value
        return value

    def _stored(self, number: Any, kind: pa.DataType) -> pa.Array:
        check(type(number) is int and 0 <= number < len(self.arrays), number, "no number of an array")
        check(self.arrays[number].type == kind, self.arrays[number].type, f"expected {kind}")
        self.used.add(number)
        return self.arrays[number]

    def _raw(self, number: Any) -> np.ndarray:
        return numbers_of(self._stored(number, pa.uint8()))

    def _array(self, number: Any, dtype: Any, shape: Any) -> np.ndarray:
        kind = dtype_from_json(dtype)
        check(type(shape) is list and all(type(n) is int and n >= 0 for n in shape), shape, "a shape")
        if not kind.hasobject:
            return self._raw(number).view(kind).reshape(shape)
        check(kind.names is None, kind, "fields of objects")
        texts = self._stored(number, pa.large_binary()).to_pylist()
        found = np.empty(len(texts), object)
        found[:] = texts
        return found.reshape(shape)


@cache
def _fields(of: Any) -> dict[str, tuple[Any, Any]]:
    """Return the types of the fields of a dataclass, and their defaults."""
    if not is_dataclass(of):
        raise TypeError(f"{of} is stored in no index")
    hints = get_type_hints(of, vars(sys.modules[of.__module__]) | _NAMES)
    found = {}
    for each in fields(of):
        default = each.default if each.default_factory is NO_DEFAULT else each.default_factory()
        found[each.name] = hints[each.name], default
    return found


def _items(hint: Any, count: int) -> Sequence[Any]:
    args = get_args(hint)
    return [args[0]] * count if args[-1] is Ellipsis else args


def _is(value: Any, default: Any) -> bool:
    return value is default or (not isinstance(value, np.ndarray) and type(value) is type(default) and value == default)


def check(holds: Any, *what: Any) -> None:
    """Raise a ValueError unless something holds."""
    if not holds:
        raise ValueError(": ".join(f"{each}" for each in what))


def dtype_to_json(dtype: np.dtype) -> Any:
    """Return a dtype as JSON."""
    if dtype.subdtype is not None:
        element, shape = dtype.subdtype
        return {"element": dtype_to_json(element), "shape": list(shape)}
    if dtype.names is not None:
        offsets = [dtype.fields[name][1] for name in dtype.names] if dtype.fields else []
        parts = [dtype_to_json(dtype[name]) for name in dtype.names]
        return {"names": list(dtype.names), "formats": parts, "offsets": offsets, "itemsize": dtype.itemsize}
    return dtype.str


def dtype_from_json(found: Any) -> np.dtype:
    """Return the dtype that `dtype_to_json` was given."""
    if isinstance(found, str):
        # numpy reads much more than it writes.
        check(_DTYPE.fullmatch(found) and np.dtype(found).str == found, repr(found), "no dtype")
        return np.dtype(found)
    if "element" in found:
        return np.dtype((dtype_from_json(found["element"]), tuple(found["shape"])))
    parts: Any = {name: found[name] for name in ("names", "offsets", "itemsize")}
    parts["formats"] = [dtype_from_json(each) for each in found["formats"]]
    return np.dtype(parts)


# Where chunks and values are: these become addresses, so they are compared with the file ------------------------


def _check_column(known: KnownColumn, reader: Reader) -> None:
    layout, index = known.layout, known.index
    size = reader.size_of(reader.path)
    if index is not None:
        index.unpacked(num_chunks(layout), size)
    if layout.direct and layout.storage == "contiguous" and layout.offset is not None and not layout.sources:
        ends = layout.offset + layout.num_rows * layout.row_bytes
        check(0 <= layout.offset <= ends <= size, f"column {layout.name!r}", "values past the end of the file")


def _check_joined_array(joined: JoinedArray, reader: Reader) -> None:
    items = np.array([layout.stored_dtype.itemsize for layout in joined.layouts], np.float64)[joined.class_of]
    ends = joined.offsets + joined.shapes.astype(np.float64).prod(axis=1) * items
    size, written = reader.size_of(reader.path), joined.offsets != NOT_WRITTEN
    is_inside = (joined.offsets >= 0) & (ends <= size)
    check(is_inside[written].all(), f"column {joined.name!r}", "a dataset past the end of the file")
    if joined.chunks is not None:
        joined.chunks.unpacked(int(joined.first_chunks[-1]), size)


_CHECKS: dict[Any, Callable[[Any, Reader], None]] = {
    KnownColumn: _check_column,
    JoinedArray: _check_joined_array,
}
_NAMES = {
    each.__name__: each
    for each in (
        Bounds,
        ChunkedBy,
        ColumnNotes,
        Elsewhere,
        Encoding,
        GroupTable,
        KnownColumn,
        PackedIndex,
        JoinedArray,
        Times,
    )
} | {"Form": Form}
"""Types that are imported for annotations alone."""
