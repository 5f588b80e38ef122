"""What headers say of the values of datasets, without libhdf5: their attributes, and where their chunks are."""

from __future__ import annotations

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.columns.chunk_lists import checked_index
from ray_h5.hdf5.columns.chunk_tree import chunks_in_tree
from ray_h5.hdf5.files.plain_bytes import PlainBytes
from ray_h5.hdf5.format import CHUNKED, USUAL_ENTRIES, USUAL_WIDTHS, Attribute, FormatError, number
from ray_h5.hdf5.heap import DamagedHeapError, Heap
from ray_h5.hdf5.tree.attributes import PACKING
from ray_h5.hdf5.tree.known_headers import Key, KnownHeaders
from ray_h5.lru import LRU
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes

_INTEGER, _FLOAT, _STRING, _VARYING = 0, 1, 3, 9
_IN_PLACE = frozenset({_INTEGER, _FLOAT, _STRING})
"""Classes of types whose values are in the attribute itself."""

_TEXT = 1
"""What values of varying length are, if not sequences."""

_LEAST_TYPE_BYTES = 8
_UNITS = b"units"

_NOTED = frozenset(name.encode() for name in (*PACKING, "NAME", "units"))
"""The attributes that notes are made of."""

_known: LRU[ColumnNotes] = LRU(1024)


def known_notes(headers: KnownHeaders, name: str) -> ColumnNotes:
    """Return what libhdf5 said of a dataset with such a type and such attributes; raise `FormatError` if nothing."""
    known = _known.get(_key(headers, name))
    if known is None:
        raise FormatError
    return known


def learn_notes(headers: KnownHeaders, name: str, notes: ColumnNotes) -> None:
    """Take what libhdf5 says of a dataset for all that are like it."""
    _known.put(_key(headers, name), notes)


def _key(headers: KnownHeaders, name: str) -> Key:
    header = headers.header(name)
    return (*header.key, *(_alike(attribute, headers.plain) for attribute in header.attributes))


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


def chunk_index(headers: KnownHeaders, name: str, layout: ColumnLayout, file_bytes: int) -> ChunkIndex:
    """Return where the chunks of a dataset are; raise `FormatError` if libhdf5 has to list them, or to refuse them.

    Parameters
    ----------
    headers : KnownHeaders
        Of the file.
    name : str
        The dataset.
    layout : ColumnLayout
        Its layout.
    file_bytes : int
        The size of the file.
    """
    stored, plain = headers.header(name).stored, headers.plain
    if stored.kind != CHUNKED:
        raise FormatError("values that are not in chunks")
    listed = chunks_in_tree(plain.read, plain.end, USUAL_WIDTHS, stored, USUAL_ENTRIES)
    try:
        return checked_index(listed, layout, layout.where, file_bytes)
    except CorruptFileError as exc:
        raise FormatError(str(exc)) from None
