"""What headers say of the values of datasets, without libhdf5: their attributes, and where their chunks are."""

from __future__ import annotations

import struct

import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.checks.chunk_tree import USUAL_ENTRIES, ChunkTree
from ray_h5.hdf5.checks.header import FileWidths
from ray_h5.hdf5.columns.chunk_lists import ListedChunks, checked_index
from ray_h5.hdf5.files.object_headers import NotPlainError, PlainBytes
from ray_h5.hdf5.tree.attributes import PACKING
from ray_h5.hdf5.tree.known_headers import Key, KnownHeaders, attribute_name
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
_REFERENCE = struct.Struct("<IQI")
_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HxxxxxxQ")

_NOTED = frozenset(name.encode() for name in (*PACKING, "NAME", "units"))
"""The attributes that notes are made of."""

_known: LRU[ColumnNotes] = LRU(1024)


def known_notes(headers: KnownHeaders, name: str) -> ColumnNotes:
    """Return what libhdf5 said of a dataset with such a type and such attributes; raise `NotPlainError` if nothing."""
    found = _known.get(_key(headers, name))
    if found is None:
        raise NotPlainError
    return found


def learn_notes(headers: KnownHeaders, name: str, notes: ColumnNotes) -> None:
    """Take what libhdf5 says of a dataset for all that are like it."""
    _known.put(_key(headers, name), notes)


def _key(headers: KnownHeaders, name: str) -> Key:
    header = headers.header(name)
    return (*header.key, *(_alike(each, headers.plain) for each in header.attributes))


def _alike(attribute: bytes, plain: PlainBytes) -> tuple[bytes, int]:
    """Return what is the same in attributes that notes do not tell from each other."""
    name = attribute_name(attribute)
    sizes = struct.unpack_from("<HHH", attribute, 2)
    if attribute[0] == 1:
        sizes = tuple(-(-size // 8) * 8 for size in sizes)
    kind = (9 if attribute[0] == 3 else 8) + sizes[0]
    values = kind + sizes[1] + sizes[2]
    if name not in _NOTED:
        return attribute[:values], len(attribute)
    if not kind + _LEAST_TYPE_BYTES <= values <= len(attribute):
        raise NotPlainError
    of = attribute[kind] & 15
    if of == _VARYING and (name != _UNITS or attribute[kind + 1] & 15 == _TEXT):
        # Of values outside of the attribute, notes have the text of its units alone.
        text = _text_at(attribute[values:], plain) if name == _UNITS else b""
        return attribute[:values] + text, len(attribute)
    if of not in _IN_PLACE:
        raise NotPlainError
    return attribute, len(attribute)


def _text_at(reference: bytes, plain: PlainBytes) -> bytes:
    """Return the text in the global heap that a reference leads to. All of its collection is as libhdf5 expects it."""
    if len(reference) < _REFERENCE.size:
        raise NotPlainError
    length, address, number = _REFERENCE.unpack_from(reference)
    signature, version, nbytes = _COLLECTION.unpack(plain.read(address, _COLLECTION.size))
    if signature != b"GCOL" or version != 1 or nbytes % 8:
        raise NotPlainError
    found = plain.read(address, nbytes)
    at, text = _COLLECTION.size, None
    while at < nbytes:
        if at + _OBJECT.size > nbytes:
            break  # room for no object
        of, size = _OBJECT.unpack_from(found, at)
        end = at + size if of == 0 else at + _OBJECT.size + -(-size // 8) * 8  # 0 is the room that is left
        if end > nbytes or end <= at or (of == number and text is not None):
            raise NotPlainError
        if of == number and of:
            text = found[at + _OBJECT.size : at + _OBJECT.size + size]
        at = end
    if text is None or not 0 < length <= len(text):
        raise NotPlainError
    return text[:length]


def chunk_index(headers: KnownHeaders, name: str, layout: ColumnLayout, file_bytes: int) -> ChunkIndex:
    """Return where the chunks of a dataset are; raise `NotPlainError` if libhdf5 has to list them, or to refuse them.

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
    header, plain = headers.header(name), headers.plain
    if header.chunk_shape is None:
        raise NotPlainError
    shape = np.array([*header.chunk_shape, header.nbytes], np.uint64)
    tree = ChunkTree(plain.read, plain.end, FileWidths(8, 8), shape, keeps=True)
    if not shape.all() or (header.offset is not None and tree.wrong(header.offset)):
        raise NotPlainError
    keys = np.concatenate([each for _, each in tree.nodes] or [np.empty(0, tree.entry)])
    if (keys["at"] % shape).any() or any(len(each) > USUAL_ENTRIES + 1 for _, each in tree.nodes):
        raise NotPlainError  # libhdf5 refuses such a node
    found = np.concatenate([each[:-1] for level, each in tree.nodes if level == 0] or [keys])
    masks, offsets, sizes = (found[name].astype(np.uint64) for name in ("mask", "child", "size"))
    try:
        return checked_index(ListedChunks(found["at"][:, :-1], masks, offsets, sizes), layout, layout.where, file_bytes)
    except CorruptFileError:
        raise NotPlainError from None
