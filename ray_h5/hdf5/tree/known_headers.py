"""Datasets whose headers say the same as one that libhdf5 described: they are described without it.

Files of one folder are mostly written by one program. Their headers then differ in names, lengths and addresses alone.
What type, fill value and filters mean is learnt from libhdf5, once in a process for all datasets with the same bytes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ray_h5.errors import CorruptFileError, RayH5Error
from ray_h5.hdf5.columns.chunk_lists import checked_index, chunks_in_tree
from ray_h5.hdf5.columns.dataset_header import SINGLE_VALUE
from ray_h5.hdf5.columns.value_types import without_rows
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.hdf5.files.plain_bytes import PlainBytes
from ray_h5.hdf5.format import (
    CHUNKED,
    COMPACT,
    CONTIGUOUS,
    USUAL_ENTRIES,
    USUAL_WIDTHS,
    Attribute,
    FormatError,
    Layout,
    Message,
    MessageKind,
    data_layout,
    dataspace,
    number,
)
from ray_h5.hdf5.heap import DamagedHeapError, Heap
from ray_h5.hdf5.tree.attributes import PACKING
from ray_h5.hdf5.tree.tree import NAME_OF_LIBRARY, lost_fields
from ray_h5.hdf5.tree.walker import OF_MATLAB
from ray_h5.lru import LRU
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout, ColumnNotes

_SAY_NOTHING = frozenset(
    {MessageKind.NOTHING, MessageKind.CONTINUATION, MessageKind.COMMENT, MessageKind.TIME, MessageKind.OLD_TIME}
)
_ALIKE = frozenset({MessageKind.TYPE, MessageKind.OLD_FILL, MessageKind.FILL, MessageKind.FILTERS})
_ATTRIBUTE, _SYMBOL_TABLE = MessageKind.ATTRIBUTE, MessageKind.SYMBOL_TABLE
_OF_GROUPS = _SAY_NOTHING | {_ATTRIBUTE, _SYMBOL_TABLE}
_ONCE = (MessageKind.SPACE, MessageKind.LAYOUT, MessageKind.TYPE)
_OF_DATASETS = _SAY_NOTHING | _ALIKE | {*_ONCE, _ATTRIBUTE}

_CONVENTIONS = frozenset({b"encoding-type", b"pandas_type", b"PYTABLES_FORMAT_VERSION"})
"""Attributes of the group that is read which say that its datasets are more than columns."""

_ROLES = frozenset({b"CLASS", b"PSEUDOATOM"})
"""Attributes of a dataset that may say that it holds no rows."""

_MOST_CHUNK_BYTES = 1 << 32
_MOST_OBJECTS, _MOST_DEPTH, _MOST_PREFIX = 1 << 12, 1 << 6, 1 << 12

_OWN = frozenset({"name", "shape", "chunk_shape", "offset", "path"})
_known: LRU[tuple[tuple[int, ...], dict[str, Any]]] = LRU(1024, 64 << 20, lambda _: LAYOUT_BYTES)
"""The axes that a type adds to a shape, and the fields of a layout that are not of one dataset alone (`_OWN`)."""

_known_notes: LRU[ColumnNotes] = LRU(1024)

_IN_PLACE, _VARYING, _TEXT = frozenset({0, 1, 3}), 9, 1
"""Classes of types whose values are in the attribute itself (integers, floats, texts); of varying length; of text."""

_LEAST_TYPE_BYTES = 8
_UNITS = b"units"
_NOTED = frozenset(name.encode() for name in (*PACKING, "NAME", "units"))
"""The attributes that notes are made of."""

Key = tuple[object, ...]


class DatasetHeader(NamedTuple):
    """What the header of a dataset says.

    Attributes
    ----------
    key : tuple
        What it has in common with other datasets.
    shape : tuple of int
        Its dataspace.
    stored : Layout
        How its values are stored.
    attributes : tuple of bytes
        Its attributes.
    """

    key: Key
    shape: tuple[int, ...]
    stored: Layout
    attributes: tuple[bytes, ...]

    def layout(self, name: str, path: str, end: int) -> ColumnLayout:
        """Describe the dataset as a column of a file that ends at `end`."""
        known, stored = _known.get(self.key), self.stored
        if known is None:
            raise FormatError("a dataset unlike those that are known")
        array_shape, like = known
        chunk_shape, offset = None, stored.address
        if stored.kind == CHUNKED:
            chunk_shape, offset = stored.chunk_shape[:-1], None
            fits = (
                stored.chunk_shape[-1] == like["item_bytes"] and 0 < math.prod(stored.chunk_shape) < _MOST_CHUNK_BYTES
            )
        else:
            needed = math.prod(self.shape) * like["item_bytes"]
            is_written = offset is not None or like["storage"] == "compact"
            fits = not is_written or (needed <= stored.nbytes and (offset or 0) + stored.nbytes <= end)
        if not fits:
            raise FormatError("chunks or values of another size than their type says")  # libhdf5 says what is wrong
        shape = self.shape + array_shape
        return ColumnLayout(name=name, shape=shape, chunk_shape=chunk_shape, offset=offset, path=path, **like)

    def learn(self, layout: ColumnLayout) -> None:
        """Take what libhdf5 says of the dataset for all that are like it."""
        if not layout.sources and layout.storage in {"contiguous", "chunked"}:
            like = {field.name: getattr(layout, field.name) for field in fields(layout) if field.name not in _OWN}
            _known.put(self.key, (layout.shape[len(self.shape) :], like))


class KnownHeaders:
    """The datasets of one file, described without libhdf5. Whatever is not known raises `FormatError`.

    Parameters
    ----------
    path : str
        The file, for messages.
    group : str
        The group that names are relative to.
    plain : PlainBytes
        Its bytes.
    """

    def __init__(self, path: str, group: str, plain: PlainBytes) -> None:
        self._path = path
        self.plain = plain
        self._groups: dict[int, dict[str, int]] = {}
        self._found: dict[str, DatasetHeader] = {}
        top = self.plain.root
        for part in _parts(group):
            top = _found(self._entries(top), part)
        self._top = dict(self.plain.entries(_table(self.plain.messages(top), _CONVENTIONS)))
        if self._may_follow_a_convention():
            raise FormatError("a file whose groups may encode columns")

    def _may_follow_a_convention(self) -> bool:
        """Return whether `ray_h5.hdf5.tree.encodings.form_of` may know the group that is read by its names."""
        top = self._top.keys()
        if not top.isdisjoint(OF_MATLAB) or top >= {"obs", "var", "X"} or top >= {"matrix", "row_attrs", "col_attrs"}:
            return True
        table = _table_in(self.plain.messages(self._top["matrix"])) if "matrix" in top else None
        return table is not None and "barcodes" in dict(self.plain.entries(table))

    def describe(self) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
        """Return what `ray_h5.hdf5.tree.tree.H5Tree.describe` does."""
        columns: dict[str, ColumnLayout] = {}
        refused: dict[str, RayH5Error] = {}
        headers: dict[str, DatasetHeader] = {}
        self._list(self._top.items(), "", set(), headers)
        for name, header in headers.items():
            if header.shape:
                self._found[name] = header
                columns[name] = header.layout(name, self._path, self.plain.end)
                refused.update(lost_fields(columns[name]))
            else:
                refused[name] = without_rows(f"{self._path}: column {name!r} {SINGLE_VALUE}", is_single=True)
        return columns, refused

    def learn(self, columns: Mapping[str, ColumnLayout], is_unchanged: Callable[[], bool]) -> None:
        """Take what libhdf5 says of datasets, if the file is still as libhdf5 found it once their headers are read."""
        headers: dict[str, DatasetHeader] = {}
        for name in columns:
            with contextlib.suppress(FormatError):
                headers[name] = self.header(name)
        if is_unchanged():
            for name, header in headers.items():
                header.learn(columns[name])

    def column(self, name: str) -> ColumnLayout:
        """Return the layout of one column."""
        return self.header(name).layout(name, self._path, self.plain.end)

    def header(self, name: str) -> DatasetHeader:
        """Return what the header of a column says."""
        if name in self._found:
            return self._found[name]
        parts = _parts(name)
        if not parts or name.startswith("//"):
            raise FormatError
        entries = self._top
        for part in parts[:-1]:
            entries = self._entries(_found(entries, part))
        header = _dataset(self.plain.messages(_found(entries, parts[-1])))
        if not header.shape:
            raise FormatError
        self._found[name] = header
        return header

    def notes(self, name: str) -> ColumnNotes:
        """Return what libhdf5 said of a dataset with such a type and such attributes."""
        if (known := _known_notes.get(self._noted(name))) is None:
            raise FormatError("a dataset unlike those that are known")
        return known

    def learn_notes(self, name: str, notes: ColumnNotes) -> None:
        """Take what libhdf5 says of a dataset for all that are like it."""
        _known_notes.put(self._noted(name), notes)

    def _noted(self, name: str) -> Key:
        header = self.header(name)
        return (*header.key, *(_alike(attribute, self.plain) for attribute in header.attributes))

    def chunk_index(self, name: str, layout: ColumnLayout) -> ChunkIndex:
        """Return where the chunks of a dataset are; `FormatError` if libhdf5 has to list them, or to refuse them."""
        stored = self.header(name).stored
        if stored.kind != CHUNKED:
            raise FormatError("values that are not in chunks")
        listed = chunks_in_tree(self.plain.read, self.plain.end, USUAL_WIDTHS, stored, USUAL_ENTRIES)
        try:
            return checked_index(listed, layout, layout.where, self.plain.end)
        except CorruptFileError as exc:
            raise FormatError(str(exc)) from None

    def _entries(self, address: int) -> dict[str, int]:
        """Return name and address of each object of the group at an address, in the order of their names."""
        if address not in self._groups:
            self._groups[address] = dict(self.plain.entries(_table(self.plain.messages(address))))
        return self._groups[address]

    def _list(
        self, entries: Iterable[tuple[str, int]], prefix: str, seen: set[int], headers: dict[str, DatasetHeader]
    ) -> None:
        """Add the datasets below a group, in the order of `ray_h5.hdf5.tree.tree.H5Tree`."""
        if len(prefix) > _MOST_PREFIX or prefix.count("/") > _MOST_DEPTH:
            raise FormatError

        def add(entry: tuple[str, int]) -> None:
            name, address = entry
            if NAME_OF_LIBRARY.match(name) or address in seen:
                raise FormatError("an object with several names, which may be a loop")
            seen.add(address)
            if len(seen) > _MOST_OBJECTS:
                raise FormatError
            messages = self.plain.messages(address)
            if (table := _table_in(messages)) is None:
                headers[prefix + name] = _dataset(messages, strict=True)
            else:
                self._list(self.plain.entries(table), f"{prefix}{name}/", seen, headers)

        gather(add, entries)


def _table_in(messages: Sequence[Message]) -> bytes | None:
    """Return the symbol table message of a group; None for another object."""
    return next((body for kind, _, body, _ in messages if kind == _SYMBOL_TABLE), None)


def _table(messages: Sequence[Message], forbidden: frozenset[bytes] = frozenset()) -> bytes:
    """Return the symbol table message of a group that has none of some attributes."""
    kinds = [kind for kind, _, _, _ in messages]
    names = [_name_of(body) for kind, _, body, _ in messages if kind == _ATTRIBUTE] if forbidden else []
    if not _OF_GROUPS.issuperset(kinds) or kinds.count(_SYMBOL_TABLE) != 1 or not forbidden.isdisjoint(names):
        raise FormatError("no group, or one that may encode a column")
    return messages[kinds.index(_SYMBOL_TABLE)][2]


def _found(entries: Mapping[str, int], name: str) -> int:
    if name not in entries:
        raise FormatError
    return entries[name]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in {"", "."}]


def _dataset(messages: list[Message], *, strict: bool = False) -> DatasetHeader:
    """Read the header of a dataset; with `strict`, one whose attributes may say that it has no rows is not known."""
    kinds = [kind for kind, _, _, _ in messages]
    if not _OF_DATASETS.issuperset(kinds) or [*map(kinds.count, _ONCE)] != [1, 1, 1]:
        raise FormatError("no dataset, or one that is described in another way")
    bodies = {kind: body for kind, _, body, _ in messages}
    alike = [(kind, body) for kind, _, body, _ in messages if kind in _ALIKE]
    attributes = [body for kind, _, body, _ in messages if kind == _ATTRIBUTE]
    if strict and attributes and any(_name_of(body) in _ROLES for body in attributes):
        raise FormatError("a dataset that may have no rows")
    shape, growing = dataspace(bodies[MessageKind.SPACE])
    stored = data_layout(bodies[MessageKind.LAYOUT], USUAL_WIDTHS)
    is_of_chunks = stored.kind == CHUNKED and len(stored.chunk_shape) == len(shape) + 1
    if stored.version != 3 or not (is_of_chunks or stored.kind in {COMPACT, CONTIGUOUS}):
        raise FormatError("values that are stored in another way")
    return DatasetHeader((*alike, stored.kind, len(shape), growing), shape, stored, tuple(attributes))


def _name_of(body: bytes) -> bytes:
    attribute = Attribute.of(body)
    if attribute.is_shared:
        raise FormatError("an attribute whose type is elsewhere")
    return attribute.name


def _alike(body: bytes, plain: PlainBytes) -> tuple[bytes, int]:
    """Return what is the same in attributes that notes do not tell from each other."""
    attribute = Attribute.of(body)
    if attribute.is_shared:
        raise FormatError("an attribute whose type is elsewhere")
    before = body[: attribute.value_at]
    if attribute.name not in _NOTED:
        return before, len(body)
    if not attribute.type_at + _LEAST_TYPE_BYTES <= attribute.value_at <= len(body):
        raise FormatError("an attribute whose type is cut off")
    of = body[attribute.type_at] & 15
    if of == _VARYING and (attribute.name != _UNITS or body[attribute.type_at + 1] & 15 == _TEXT):
        # Of values outside of the attribute, notes have the text of its units alone.
        text = _text_at(body[attribute.value_at :], plain) if attribute.name == _UNITS else b""
        return before + text, len(body)
    if of not in _IN_PLACE:
        raise FormatError("an attribute of another type")
    return body, len(body)


def _text_at(reference: bytes, plain: PlainBytes) -> bytes:
    """Return the text in the global heap that a reference leads to."""
    length, address, at = (number(reference, begin, width) for begin, width in ((0, 4), (4, 8), (12, 4)))
    try:
        (text,) = Heap(plain.read, plain.end, 8).values([(length, address, at)], 1)
    except DamagedHeapError as exc:
        raise FormatError(str(exc)) from None
    if not text:
        raise FormatError("an attribute without a text")
    return text
