"""Facts of files <-> bytes, by msgspec: frozen values as lists that begin with the number of their class."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from ray_h5.columns.derived_columns import ColumnKey, Csr, Cut, Fields, JoinedColumn, Ragged, RowPart
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import ColumnSpec
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts
from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.manifest.indices import Along
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray, JoinedValues, Paths, Texts
from ray_h5.manifest.known_columns import KnownColumn, OtherColumn, PackedIndex, Redirect, num_chunks
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, Encoding, FilterPipeline, FilterStep, ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.value_type import ValueType
from ray_h5.rows.kinds.group_and_file_rows import LengthsOfColumns
from ray_h5.rows.kinds.patch_rows import PatchesFound
from ray_h5.rows.kinds.samples_around import Times, TimesOfColumns
from ray_h5.storage.byte_source import FileIdentity, ObjectIdentity

_CLASSES: tuple[Any, ...] = (
    Along, Bounds, ColumnFacts, ColumnKey, ColumnLayout, ColumnNotes, ColumnSpec, Csr, Cut, Encoding, Fields,
    FileIdentity, FilterPipeline, FilterStep, GroupTable, JoinedArray, JoinedColumn, JoinedValues, KnownColumn,
    Manifest, LengthsOfColumns, ObjectIdentity, OtherColumn, PackedIndex, Partition, PatchesFound, Paths, Ragged,
    Redirect, RowPart, RowTable, Texts, Times, TimesOfColumns, ValueArray, ValueType,
)  # fmt: skip
_FIELDS = {class_: tuple(one.name for one in fields(class_)) for class_ in _CLASSES}
_NUMBERS = {class_: number for number, class_ in enumerate(_CLASSES)}
_PAIRS, _ARRAY, _DTYPE, _POOLED, _TEXT = 123, 124, 125, 126, 127
_MARKS = {number: Ext(number, b"") for number in (*range(len(_CLASSES)), _PAIRS, _ARRAY, _DTYPE)}
_KEPT = ("columns", "sources", "listing", "left_out", "sought", "table", "known")
"""The facts that files may be alike in."""

VERSION = zlib.crc32(repr(["Arrow, None", *((class_.__name__, names) for class_, names in _FIELDS.items())]).encode())
"""Another version of the package has other classes or fields."""

FOREIGN = (
    msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError,
    SyntaxError,
)  # fmt: skip
"""The errors of bytes that are no facts; numpy raises a SyntaxError for the dtype ','."""


class FactsWriter:
    """Turns facts into bytes. What many of them share is in `pool` once."""

    def __init__(self) -> None:
        self.pool: list[bytes] = []
        self._numbers: dict[Any, int] = {}
        self._columns: dict[int, tuple[Any, Any]] = {}

    def facts(self, facts: FileFacts) -> bytes:
        """Return what a file may have in common with others."""
        if id(facts.columns) not in self._columns:  # files share the object
            self._columns[id(facts.columns)] = facts.columns, self._plain(facts.columns)
        sources = {self._plain(name): self._pooled(states) for name, states in facts.sources.items()}
        rest = [self._plain(getattr(facts, name)) for name in _KEPT[2:]]
        return msgspec.msgpack.encode([self._columns[id(facts.columns)][1], sources, *rest])

    def value(self, value: Any) -> bytes:
        """Return the bytes of one value."""
        return msgspec.msgpack.encode(self._plain(value))

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return value if _is_utf8(value) else Ext(_TEXT, os.fsencode(value))
        if value is None or kind in {bool, int, float, bytes}:
            return value
        if kind is tuple or kind is list:
            return [*map(self._plain, value)]
        if isinstance(value, Mapping):
            pairs = [*zip(map(self._plain, value), map(self._plain, value.values()), strict=True)]
            is_text = {type(name) for name, _ in pairs} <= {str}  # no other key is hashable once it is plain
            return dict(pairs) if is_text else [_MARKS[_PAIRS], pairs]
        if kind is np.ndarray:
            held = value.reshape(-1).tolist() if value.dtype.hasobject else value.tobytes()
            return [_MARKS[_ARRAY], self._plain(value.dtype), list(value.shape), self._plain(held)]
        if isinstance(value, np.dtype):
            return [_MARKS[_DTYPE], self._plain(dtype_parts(value))]
        if kind is ColumnSpec or kind is Texts:
            return self._pooled(value)
        return self._object(value)

    def _object(self, value: Any) -> list[Any]:
        number = _NUMBERS[type(value)]
        return [_MARKS[number], *(self._plain(getattr(value, name)) for name in _FIELDS[type(value)])]

    def _pooled(self, value: Any) -> Ext:
        # Texts are compared by identity. They stay in memory as long as the facts do.
        if value not in self._numbers:
            plain = self._plain(value) if type(value) is tuple else self._object(value)
            body = msgspec.msgpack.encode(plain)
            self._numbers[value] = len(self.pool)
            self.pool.append(body)
        return Ext(_POOLED, self._numbers[value].to_bytes(4, "big"))


class FactsReader:
    """Turns bytes into facts again; raises one of `FOREIGN` for bytes that are none."""

    def __init__(self, pool: Sequence[bytes]) -> None:
        self._pool = pool
        self._made: dict[int, Any] = {}

    def facts(self, data: bytes) -> dict[str, Any]:
        """Return the fields of `FileFacts` that `FactsWriter.facts` was given."""
        return dict(zip(_KEPT, self.value(data), strict=True))

    def value(self, data: bytes) -> Any:
        """Return the value that `FactsWriter.value` was given."""
        return self._value(_DECODER.decode(data))

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            if value and type(value[0]) is Ext and value[0].code != _POOLED:
                return self._object(value[0].code, value[1:])
            return tuple(map(self._value, value))
        if kind is dict:
            return {name: self._value(item) for name, item in value.items()}
        if kind is Ext:
            number = int.from_bytes(value.data, "big")
            if number not in self._made:
                self._made[number] = self.value(self._pool[number])
            return self._made[number]
        return value

    def _object(self, number: int, parts: list[Any]) -> Any:
        if number == _DTYPE:
            return dtype_of(parts[0])
        if number == _PAIRS:
            return dict(self._value(parts[0]))
        if number != _ARRAY:
            class_ = _CLASSES[number]
            return class_(**dict(zip(_FIELDS[class_], map(self._value, parts), strict=True)))
        kind, shape, held = self._value(parts[0]), parts[1], parts[2]
        if not kind.hasobject:
            return np.frombuffer(held, kind).reshape(shape)
        array = np.empty(len(held), object)
        array[:] = held
        return array.reshape(shape)


_DECODER = msgspec.msgpack.Decoder(
    ext_hook=lambda code, data: os.fsdecode(bytes(data)) if code == _TEXT else Ext(code, bytes(data))
)


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # a path in another encoding
        return False
    return True


def dtype_parts(dtype: np.dtype) -> Any:
    """Return a dtype as texts, lists and dicts; `dtype_of` returns it again."""
    if dtype.subdtype is not None:
        return [dtype_parts(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if dtype.names is None:
        return dtype.str
    offsets = [dtype.fields[name][1] for name in dtype.names] if dtype.fields else []
    formats = [dtype_parts(dtype[name]) for name in dtype.names]
    return {"names": list(dtype.names), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}


def dtype_of(parts: Any) -> np.dtype:
    """Return the dtype of `dtype_parts`."""
    if isinstance(parts, str):
        return np.dtype(parts)
    if isinstance(parts, list):
        return np.dtype((dtype_of(parts[0]), tuple(parts[1])))
    described: Any = {**parts, "formats": [dtype_of(part) for part in parts["formats"]]}
    return np.dtype(described)


# Where chunks and values are: these become addresses, so they are compared with the file ------------------------


def check_ranges(facts: FileFacts) -> None:
    """Raise a ValueError if chunks or values are said to be outside of their file."""
    sizes = {path: identity.size for path, identity in facts.others if identity is not None}
    sizes[facts.path] = facts.identity.size
    todo = [(facts.path, known) for known in facts.known.columns.values()]
    while todo:
        path, known = todo.pop()
        if path not in sizes:
            raise ValueError(f"{path} is no file that a column leads to")
        layout, size = known.layout, sizes[path]
        if known.index is not None:
            known.index.unpacked(num_chunks(layout), size)
        if layout.direct and layout.chunk_shape is None and layout.offset is not None and not layout.sources:
            ends = layout.offset + layout.num_rows * layout.row_bytes
            if not 0 <= layout.offset <= ends <= size:
                raise ValueError(f"column {layout.name!r}: values past the end of the file")
        others = () if known.redirect is None else known.redirect.columns
        todo += [(source.path, source.known) for source in others if source.known is not None]
    table, size = facts.table, facts.identity.size
    groups = [] if table is None else [*([] if table.groups is None else [table.groups]), *table.joined.values()]
    for joined in (column for group in groups for column in group.columns.values()):
        items = np.array([layout.stored_dtype.itemsize for layout in joined.layouts], np.float64)[joined.class_of]
        ends = joined.offsets + joined.shapes.astype(np.float64).prod(axis=1) * items
        if ((joined.offsets != UNALLOCATED) & ~((joined.offsets >= 0) & (ends <= size))).any():
            raise ValueError(f"column {joined.name!r}: a dataset past the end of the file")
        if joined.chunks is not None:
            joined.chunks.unpacked(joined.chunk_numbers.num_units, size)
