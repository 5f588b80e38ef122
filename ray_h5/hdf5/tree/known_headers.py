"""Datasets whose headers say the same as one that libhdf5 described: they are described without it.

Files of one folder are mostly written by one program. Their headers then differ in names, lengths and addresses alone.
What type, fill value and filters mean is learnt from libhdf5, once in a process for all datasets with the same bytes.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ray_h5.errors import RayH5Error
from ray_h5.hdf5.columns.column import SINGLE_VALUE
from ray_h5.hdf5.columns.value_types import without_rows
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.hdf5.files.object_headers import SYMBOL_TABLE, UNDEFINED, Message, NotPlainError, PlainBytes
from ray_h5.hdf5.tree.tree import NAME_OF_LIBRARY, lost_fields
from ray_h5.lru import LRU
from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout

_SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS, _ATTRIBUTE = 0x01, 0x03, 0x04, 0x05, 0x08, 0x0B, 0x0C
_NIL, _CONTINUATION, _COMMENT, _TIME, _OLD_TIME = 0x00, 0x10, 0x0D, 0x12, 0x0E
_SAY_NOTHING = frozenset({_NIL, _CONTINUATION, _COMMENT, _TIME, _OLD_TIME})
_ALIKE = frozenset({_TYPE, _OLD_FILL, _FILL, _FILTERS})

_CONVENTIONS = frozenset({b"encoding-type", b"pandas_type", b"PYTABLES_FORMAT_VERSION"})
"""Attributes of the group that is read which say that its datasets are more than columns."""

_ROLES = frozenset({b"CLASS", b"PSEUDOATOM"})
"""Attributes of a dataset that may say that it holds no rows."""

_MOST_CHUNK_BYTES = 1 << 32
_MOST_OBJECTS, _MOST_DEPTH, _MOST_PREFIX = 1 << 12, 1 << 6, 1 << 12
_COMPACT, _CONTIGUOUS, _CHUNKED = range(3)

_NAMES_OF_CONVENTIONS = frozenset({"obs", "matrix", "#refs#", "#subsystem#"})
"""Names in the group that is read that say the same."""

_known: LRU[ColumnLayout] = LRU(1024, 64 << 20, lambda _: LAYOUT_BYTES)

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class DatasetHeader:
    """What the header of a dataset says.

    Attributes
    ----------
    key : tuple
        What it has in common with other datasets.
    shape : tuple of int
        Its dataspace.
    chunk_shape : tuple of int, optional
        Shape of a chunk.
    offset : int, optional
        Where contiguous values, or the index of chunks, begin; None if nothing was written.
    nbytes : int
        Bytes of contiguous or compact values; in chunks, of one value.
    attributes : tuple of bytes
        Its attributes.
    """

    key: Key
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...] | None
    offset: int | None
    nbytes: int
    attributes: tuple[bytes, ...]

    def layout(self, name: str, path: str, end: int) -> ColumnLayout:
        """Describe the dataset as a column of a file that ends at `end`."""
        like = _known.get(self.key)
        if like is None:
            raise NotPlainError
        if self.chunk_shape is not None:
            fits = self.nbytes == like.item_bytes and 0 < math.prod(self.chunk_shape) * self.nbytes < _MOST_CHUNK_BYTES
        else:
            needed = math.prod(self.shape) * like.item_bytes
            is_written = self.offset is not None or like.storage == "compact"
            fits = not is_written or (needed <= self.nbytes and (self.offset or 0) + self.nbytes <= end)
        if not fits:
            raise NotPlainError  # libhdf5 says what is wrong
        return ColumnLayout(
            name=name,
            kind=like.kind,
            shape=(*self.shape, *like.shape[len(self.shape) :]),
            stored_dtype=like.stored_dtype,
            storage=like.storage,
            chunk_shape=self.chunk_shape,
            pipeline=like.pipeline,
            offset=self.offset if self.chunk_shape is None else None,
            fill=like.fill,
            element=like.element,
            enum=like.enum,
            item_bytes=like.item_bytes,
            direct=like.direct,
            file_type=like.file_type,
            odd_type=like.odd_type,
            lost_fields=like.lost_fields,
            path=path,
        )

    def learn(self, found: ColumnLayout) -> None:
        """Take what libhdf5 says of the dataset for all that are like it."""
        if not found.sources and found.storage in {"contiguous", "chunked"}:
            _known.put(self.key, found)


class KnownHeaders:
    """The datasets of one file, described without libhdf5. Whatever is not known raises `NotPlainError`.

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
        if not _NAMES_OF_CONVENTIONS.isdisjoint(self._top):
            raise NotPlainError

    def describe(self) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
        """Return what `ray_h5.hdf5.tree.tree.describe` does."""
        columns: dict[str, ColumnLayout] = {}
        refused: dict[str, RayH5Error] = {}
        for name, header in self._headers().items():
            if header.shape:
                self._found[name] = header
                columns[name] = header.layout(name, self._path, self.plain.end)
                refused.update(lost_fields(columns[name]))
            else:
                refused[name] = without_rows(f"{self._path}: column {name!r} {SINGLE_VALUE}")
        return columns, refused

    def learn(self, columns: Mapping[str, ColumnLayout], is_unchanged: Callable[[], bool]) -> None:
        """Take what libhdf5 says of datasets, if the file is still as libhdf5 found it once their headers are read."""
        headers: dict[str, DatasetHeader] = {}
        for name in columns:
            with contextlib.suppress(NotPlainError):
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
            raise NotPlainError
        entries = self._top
        for part in parts[:-1]:
            entries = self._entries(_found(entries, part))
        header = _dataset(self.plain.messages(_found(entries, parts[-1])))
        if not header.shape:
            raise NotPlainError
        self._found[name] = header
        return header

    def _entries(self, address: int) -> dict[str, int]:
        """Return name and address of each object of the group at an address, in the order of their names."""
        if address not in self._groups:
            self._groups[address] = dict(self.plain.entries(_table(self.plain.messages(address))))
        return self._groups[address]

    def _headers(self) -> dict[str, DatasetHeader]:
        """Return what the headers of all datasets say, by name."""
        found: dict[str, DatasetHeader] = {}
        self._list(self._top.items(), "", set(), found)
        return found

    def _list(
        self, entries: Iterable[tuple[str, int]], prefix: str, seen: set[int], found: dict[str, DatasetHeader]
    ) -> None:
        """Add the datasets below a group, in the order of `ray_h5.hdf5.tree.tree.H5Tree`."""
        if len(prefix) > _MOST_PREFIX or prefix.count("/") > _MOST_DEPTH:
            raise NotPlainError

        def add(entry: tuple[str, int]) -> None:
            name, address = entry
            if NAME_OF_LIBRARY.match(name) or address in seen:
                raise NotPlainError  # an object with several names may be a loop
            seen.add(address)
            if len(seen) > _MOST_OBJECTS:
                raise NotPlainError
            messages = self.plain.messages(address)
            table = next((each.body for each in messages if each.kind == SYMBOL_TABLE), None)
            if table is None:
                found[prefix + name] = _dataset(messages, strict=True)
            else:
                self._list(self.plain.entries(table), f"{prefix}{name}/", seen, found)

        gather(add, entries)


def _table(messages: Iterable[Message], forbidden: frozenset[bytes] = frozenset()) -> bytes:
    """Return the symbol table message of a group that has none of some attributes."""
    table = None
    for message in messages:
        if message.kind == SYMBOL_TABLE and table is None:
            table = message.body
        elif message.kind == _ATTRIBUTE:
            if forbidden and attribute_name(message.body) in forbidden:
                raise NotPlainError
        elif message.kind not in _SAY_NOTHING:
            raise NotPlainError
    if table is None:
        raise NotPlainError
    return table


def _found(entries: Mapping[str, int], name: str) -> int:
    if name not in entries:
        raise NotPlainError
    return entries[name]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in {"", "."}]


def _dataset(messages: list[Message], *, strict: bool = False) -> DatasetHeader:
    """Read the header of a dataset; with `strict`, one whose attributes may say that it has no rows is not known."""
    alike: list[object] = []
    attributes: list[bytes] = []
    space = layout = None
    for message in messages:
        kind = message.kind
        if kind in _ALIKE:
            alike += (kind, message.body)
        elif kind == _SPACE and space is None:
            space = message.body
        elif kind == _LAYOUT and layout is None:
            layout = message.body
        elif kind == _ATTRIBUTE:
            if strict and attribute_name(message.body) in _ROLES:
                raise NotPlainError
            attributes.append(message.body)
        elif kind not in _SAY_NOTHING:
            raise NotPlainError
    if space is None or layout is None or alike.count(_TYPE) != 1:
        raise NotPlainError
    shape, growing = _shape(space)
    stored, chunk_shape, offset, nbytes = _stored(layout, len(shape))
    return DatasetHeader((*alike, stored, len(shape), growing), shape, chunk_shape, offset, nbytes, tuple(attributes))


def _shape(body: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a dataspace, and the axes that can grow."""
    version, rank, flags = body[0], body[1], body[2]
    begin = {1: 8, 2: 4}.get(version, 0)
    is_null = version == 2 and body[3] == 2
    if not begin or flags & ~1 or is_null or rank > 32 or len(body) < begin + 8 * rank * (1 + flags):
        raise NotPlainError
    shape = struct.unpack_from(f"<{rank}Q", body, begin)
    if not flags:
        return shape, ()
    most = struct.unpack_from(f"<{rank}Q", body, begin + 8 * rank)
    if any(length > limit for length, limit in zip(shape, most, strict=True)):
        raise NotPlainError
    return shape, tuple(axis for axis, limit in enumerate(most) if limit == UNDEFINED)


def _stored(body: bytes, rank: int) -> tuple[int, tuple[int, ...] | None, int | None, int]:
    """Return how values are stored, the shape of a chunk, where values or their index begin, and their bytes."""
    if len(body) < 4 or body[0] != 3:
        raise NotPlainError
    stored = body[1]
    if stored == _COMPACT:
        nbytes = int.from_bytes(body[2:4], "little")
        return stored, None, None, nbytes
    if stored == _CONTIGUOUS and len(body) >= 18:
        offset, nbytes = struct.unpack_from("<QQ", body, 2)
        return stored, None, _address(offset), nbytes
    if stored == _CHUNKED and body[2] == rank + 1 and len(body) >= 11 + 4 * body[2]:
        offset, *chunk_shape, nbytes = struct.unpack_from(f"<Q{rank + 1}I", body, 3)
        return stored, tuple(chunk_shape), _address(offset), nbytes
    raise NotPlainError


def _address(found: int) -> int | None:
    return None if found == UNDEFINED else found


def attribute_name(body: bytes) -> bytes:
    """Return the name of an attribute."""
    if len(body) < 9 or body[0] not in {1, 2, 3} or (body[0] > 1 and body[1]):
        raise NotPlainError
    begin = 9 if body[0] == 3 else 8
    return body[begin : begin + int.from_bytes(body[2:4], "little")].partition(b"\0")[0]
