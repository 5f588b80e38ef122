"""Datasets whose headers say the same as one that libhdf5 described: they are described without it.

Files of one folder are mostly written by one program. Their headers then differ in names, lengths and addresses alone.
What type, fill value and filters mean is learnt from libhdf5, once in a process for all datasets with the same bytes.

Files are read that are as h5py writes them by default: superblock 0 or 1, groups with symbol tables, headers of version
1. Whatever else a file has, or what is not as it should be, raises `FormatError`: libhdf5 reads it, or says what is
wrong with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from ray_h5.errors import CorruptFileError, RayH5Error
from ray_h5.hdf5.columns.chunk_lists import checked_index, chunks_in_tree
from ray_h5.hdf5.columns.dataset_header import SINGLE_VALUE
from ray_h5.hdf5.format.file_bytes import ReadBytes, gather
from ray_h5.hdf5.format.heap import Heap, reference_at
from ray_h5.hdf5.format.object_headers import (
    CHUNKED,
    COMPACT,
    CONTIGUOUS,
    UNDEFINED,
    USUAL_ENTRIES,
    USUAL_WIDTHS,
    Attribute,
    FormatError,
    Layout,
    Message,
    MessageKind,
    data_layout,
    dataspace,
    group_entries,
    object_header,
    superblock,
)
from ray_h5.hdf5.format.value_types import without_rows
from ray_h5.hdf5.tree.attributes import PACKING
from ray_h5.hdf5.tree.tree import NAME_OF_LIBRARY, lost_fields
from ray_h5.hdf5.tree.walker import OF_MATLAB
from ray_h5.lru import LRU
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout, ColumnNotes
from ray_h5.manifest.value_type import ValueType

__all__ = ["KNOWN_NOTES", "FormatError", "KnownHeaders", "PlainBytes"]

_HEAD_BYTES = 4096
_MOST_BYTES = 1 << 20
_MOST_BYTES_OF_FILE = 1 << 24
"""Read of one file. A damaged file may lead to the same bytes again and again."""

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

_OWN = frozenset({"name", "type", "num_rows", "chunk_shape", "offset", "path"})
_known: LRU[tuple[tuple[int, ...], ValueType, dict[str, Any]]] = LRU(1024, 64 << 20, lambda _: LAYOUT_BYTES)
"""The axes that an array type adds to a shape, the type of a value, and the fields of a layout but those of one dataset
alone (`_OWN`)."""

KNOWN_NOTES: LRU[ColumnNotes] = LRU(1024)
"""What libhdf5 said of datasets, for all that are like them."""

_NUMBERS = frozenset({0, 1})
"""Classes of types: integers and floats."""

_IN_PLACE, _VARYING, _TEXT = frozenset({*_NUMBERS, 3}), 9, 1
"""Classes of types whose values are in the attribute itself (numbers, texts); of varying length; of text."""

_LEAST_TYPE_BYTES = 8
_UNITS = b"units"
_NOTED = frozenset(name.encode() for name in (*PACKING, "NAME", "units"))
"""The attributes that notes are made of."""

Key = tuple[object, ...]


class PlainBytes:
    """The bytes of a file whose superblock is known, by their address.

    Parameters
    ----------
    read_at : callable
        Returns the bytes of the file; an OSError of it is left to libhdf5, which meets it too.
    nbytes : int
        The size of the file.

    Raises
    ------
    FormatError
        If the superblock is another one, or the file is cut short.
    """

    def __init__(self, read_at: ReadBytes, nbytes: int) -> None:
        self._read_at = read_at
        block = superblock(read_at(0, _HEAD_BYTES))
        if block.version > 1 or block.tables[0] > 1 or block.end > nbytes:
            raise FormatError("a superblock of another version, or a file that is cut short")
        *versions, leaf, node, tree, driver = block.rest
        usual = 0, 0, UNDEFINED, UNDEFINED, USUAL_ENTRIES // 2
        if any(versions) or (block.flags, block.base, block.extension, driver, tree) != usual:
            raise FormatError("a superblock that h5py does not write by default")
        self.end, self.root = block.end, block.root
        self._most_symbols, self._most_leaves = 2 * leaf, 2 * node
        self._bytes_left = _MOST_BYTES_OF_FILE

    @classmethod
    def on_disk(cls, descriptor: int, nbytes: int) -> PlainBytes:
        """Return the bytes of an open file; raise `FormatError` also if a writer may have it open."""
        head = os.pread(descriptor, _HEAD_BYTES, 0)

        def read_at(address: int, count: int) -> bytes:
            is_there = address + count <= len(head)
            return head[address : address + count] if is_there else os.pread(descriptor, count, address)

        plain = cls(read_at, nbytes)
        try:
            # libhdf5 would refuse to open a file whose lock a writer holds.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError as exc:
            raise FormatError(str(exc)) from None
        return plain

    def read(self, address: int, count: int) -> bytes:
        """Return bytes, fewer at the end of the file."""
        if address + count > self.end:
            count = self.end - address
        if count <= 0:
            return b""
        self._bytes_left -= count
        if self._bytes_left < 0 or count > _MOST_BYTES:
            raise FormatError(f"{count} bytes at once, or more metadata than a file has")
        try:
            return self._read_at(address, count)
        except OSError as exc:
            raise FormatError(str(exc)) from None

    def messages(self, address: int) -> list[Message]:
        """Return the messages of the object header at an address."""
        claimed, messages = object_header(self.read, address, USUAL_WIDTHS)
        if len(messages) != claimed:
            raise FormatError("a header of another version, or of more messages than it says")
        # A shared message is elsewhere; some that are not known forbid to read on.
        for kind, flags, body, _ in messages:
            if flags > 1 or kind > MessageKind.FILE_SPACE or len(body) & 7:
                raise FormatError("a message that h5py does not write by default")
        return messages

    def entries(self, table: bytes) -> Iterator[tuple[str, int]]:
        """Yield name and address of each object of a group, given its symbol table message, in the order of names."""
        return group_entries(self.read, table, self._most_symbols, self._most_leaves)


class _DatasetHeader(NamedTuple):
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
    type_class : int
        The class of its type.
    """

    key: Key
    shape: tuple[int, ...]
    stored: Layout
    attributes: tuple[bytes, ...]
    type_class: int

    @classmethod
    def of(cls, messages: list[Message], *, strict: bool = False) -> _DatasetHeader:
        """Return what messages say; with `strict`, one whose attributes may say that it has no rows is not known."""
        kinds = [kind for kind, _, _, _ in messages]
        if not _OF_DATASETS.issuperset(kinds) or [*map(kinds.count, _ONCE)] != [1, 1, 1]:
            raise FormatError("no dataset, or one that is described in another way")
        bodies = {kind: body for kind, _, body, _ in messages}
        alike = [(kind, body) for kind, _, body, _ in messages if kind in _ALIKE]
        attributes = [body for kind, _, body, _ in messages if kind == _ATTRIBUTE]
        if strict and attributes and any(_attribute(body).name in _ROLES for body in attributes):
            raise FormatError("a dataset that may have no rows")
        shape, growing = dataspace(bodies[MessageKind.SPACE])
        stored = data_layout(bodies[MessageKind.LAYOUT], USUAL_WIDTHS)
        is_of_chunks = stored.kind == CHUNKED and len(stored.chunk_shape) == len(shape) + 1
        if stored.version != 3 or not (is_of_chunks or stored.kind in {COMPACT, CONTIGUOUS}):
            raise FormatError("values that are stored in another way")
        key = (*alike, stored.kind, len(shape), growing)
        return cls(key, shape, stored, tuple(attributes), bodies[MessageKind.TYPE][0] & 15)

    @property
    def is_plain(self) -> bool:
        """Whether its values are integers or floats, no enum, and it has no attributes: there is nothing to note."""
        return not self.attributes and self.type_class in _NUMBERS

    def layout(self, name: str, path: str, end: int) -> ColumnLayout:
        """Describe the dataset as a column of a file that ends at `end`."""
        known, stored = _known.get(self.key), self.stored
        if known is None:
            raise FormatError("a dataset unlike those that are known")
        array_shape, type_, like = known
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
        num_rows, *axes = self.shape + array_shape
        type_ = type_ if type_.row_shape == (row_shape := tuple(axes)) else replace(type_, row_shape=row_shape)
        own: dict[str, Any] = {"chunk_shape": chunk_shape, "offset": offset, "path": path}
        return ColumnLayout(name=name, type=type_, num_rows=num_rows, **own, **like)


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
        self._entries: dict[int, dict[str, int]] = {}
        self._found: dict[str, _DatasetHeader] = {}
        self._top = self._address_of(plain.root, group)
        entries = self._entries[self._top] = dict(plain.entries(_table(plain.messages(self._top), _CONVENTIONS)))
        # `ray_h5.hdf5.tree.encodings.form_of` may know the group that is read by the names in it.
        top = entries.keys()
        known = {"obs", "var", "X"}, {"matrix", "row_attrs", "col_attrs"}
        may_follow = not top.isdisjoint(OF_MATLAB) or any(top >= names for names in known)
        if not may_follow and "matrix" in top:
            table = _table_in(plain.messages(entries["matrix"]))
            may_follow = table is not None and "barcodes" in dict(plain.entries(table))
        if may_follow:
            raise FormatError("a file whose groups may encode columns")

    def _address_of(self, address: int, path: str) -> int:
        """Return the address of what is at a path below the group at an address."""
        for part in path.split("/"):
            if part in {"", "."}:
                continue
            if address not in self._entries:
                self._entries[address] = dict(self.plain.entries(_table(self.plain.messages(address))))
            if part not in self._entries[address]:
                raise FormatError
            address = self._entries[address][part]
        return address

    def describe(self) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
        """Return what `ray_h5.hdf5.tree.tree.H5Tree.describe` does."""
        columns: dict[str, ColumnLayout] = {}
        refused: dict[str, RayH5Error] = {}
        headers: dict[str, _DatasetHeader] = {}
        self._list(self._entries[self._top].items(), "", set(), headers)
        for name, header in headers.items():
            if header.shape:
                self._found[name] = header
                columns[name] = header.layout(name, self._path, self.plain.end)
                refused.update(lost_fields(columns[name]))
            else:
                refused[name] = without_rows(f"{self._path}: column {name!r} {SINGLE_VALUE}", is_single=True)
        return columns, refused

    def _list(
        self, entries: Iterable[tuple[str, int]], prefix: str, seen: set[int], headers: dict[str, _DatasetHeader]
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
                headers[prefix + name] = _DatasetHeader.of(messages, strict=True)
            else:
                self._list(self.plain.entries(table), f"{prefix}{name}/", seen, headers)

        gather(add, entries)

    def learn(self, columns: Mapping[str, ColumnLayout], is_unchanged: Callable[[], bool]) -> None:
        """Take what libhdf5 says of datasets, if the file is still as libhdf5 found it once their headers are read."""
        headers: dict[str, _DatasetHeader] = {}
        for name in columns:
            with contextlib.suppress(FormatError):
                headers[name] = self._header(name)
        for name, header in headers.items() if is_unchanged() else ():
            layout = columns[name]
            if not layout.sources and layout.storage in {"contiguous", "chunked"}:
                like = {field.name: getattr(layout, field.name) for field in fields(layout) if field.name not in _OWN}
                _known.put(header.key, (layout.shape[len(header.shape) :], layout.type, like))

    def column(self, name: str) -> ColumnLayout:
        """Return the layout of one column."""
        return self._header(name).layout(name, self._path, self.plain.end)

    def _header(self, name: str) -> _DatasetHeader:
        if name not in self._found:
            if name.startswith("//"):
                raise FormatError
            header = _DatasetHeader.of(self.plain.messages(self._address_of(self._top, name)))
            if not header.shape:
                raise FormatError
            self._found[name] = header
        return self._found[name]

    def chunk_index(self, name: str, layout: ColumnLayout) -> ChunkIndex:
        """Return where the chunks of a dataset are; `FormatError` if libhdf5 has to list them, or to refuse them."""
        stored = self._header(name).stored
        if stored.kind != CHUNKED:
            raise FormatError("values that are not in chunks")
        listed = chunks_in_tree(self.plain.read, self.plain.end, USUAL_WIDTHS, stored, USUAL_ENTRIES)
        try:
            return checked_index(listed, layout, layout.where, self.plain.end)
        except CorruptFileError as exc:
            raise FormatError(str(exc)) from None

    def noted(self, name: str) -> Key:
        """Return the type and the attributes of a dataset, as far as notes are made of them: a key of `KNOWN_NOTES`.

        It is empty where there is nothing to note.
        """
        header = self._header(name)
        if header.is_plain:
            return ()
        return (*header.key, *(_alike(attribute, self.plain) for attribute in header.attributes))


def _table_in(messages: Sequence[Message]) -> bytes | None:
    """Return the symbol table message of a group; None for another object."""
    return next((body for kind, _, body, _ in messages if kind == _SYMBOL_TABLE), None)


def _table(messages: Sequence[Message], forbidden: frozenset[bytes] = frozenset()) -> bytes:
    """Return the symbol table message of a group that has none of some attributes."""
    kinds = [kind for kind, _, _, _ in messages]
    names = [_attribute(body).name for kind, _, body, _ in messages if kind == _ATTRIBUTE] if forbidden else []
    if not _OF_GROUPS.issuperset(kinds) or kinds.count(_SYMBOL_TABLE) != 1 or not forbidden.isdisjoint(names):
        raise FormatError("no group, or one that may encode a column")
    return messages[kinds.index(_SYMBOL_TABLE)][2]


def _attribute(body: bytes) -> Attribute:
    attribute = Attribute.of(body)
    if attribute.is_shared:
        raise FormatError("an attribute whose type is elsewhere")
    return attribute


def _alike(body: bytes, plain: PlainBytes) -> tuple[bytes, int]:
    """Return what is the same in attributes that notes do not tell from each other."""
    attribute = _attribute(body)
    before = body[: attribute.value_at]
    if attribute.name not in _NOTED:
        return before, len(body)
    if not attribute.type_at + _LEAST_TYPE_BYTES <= attribute.value_at <= len(body):
        raise FormatError("an attribute whose type is cut off")
    of = body[attribute.type_at] & 15
    if of == _VARYING and attribute.name != _UNITS:
        return before, len(body)  # of values outside of the attribute, notes have the text of its units alone
    if of == _VARYING and body[attribute.type_at + 1] & 15 == _TEXT:
        (text,) = Heap(plain.read, plain.end, 8).values([reference_at(body, attribute.value_at, 8)], 1)
        if not text:
            raise FormatError("an attribute without a text")
        return before + text, len(body)
    if of not in _IN_PLACE:
        raise FormatError("an attribute of another type")
    return body, len(body)
