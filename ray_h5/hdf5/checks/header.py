"""The messages of an object header, for what libhdf5 does not give out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import h5py

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.files.file_bytes import address_of, filename_of, reader_of

_CONTINUATION = 0x10
_DATA_LAYOUT = 8
_MAX_BLOCKS = 1 << 12
"""Blocks of one header that are read; a header whose blocks lead to each other has no end."""


@dataclass(frozen=True, slots=True)
class FileWidths:
    """Bytes of an address and of a length in a file."""

    address: int
    length: int

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> FileWidths:
        return cls(*map(int, dataset.file.id.get_create_plist().get_sizes()))


def data_layout(dataset: h5py.Dataset) -> tuple[bytes, int]:
    """Return the message that says how values are stored, and its address; nothing if there is none."""
    read, _ = reader_of(dataset)
    found = messages(read, address_of(dataset.id)[1], FileWidths.of(dataset))
    return next(((body, at) for kind, body, at in found if kind == _DATA_LAYOUT), (b"", 0))


def compact_offset(dataset: h5py.Dataset, user_block: int) -> int:
    """Return where the values of a compact dataset begin in the file: they are in its header."""
    body, address = data_layout(dataset)
    begin, size = 4, int.from_bytes(body[2:4], "little")
    if body[:1] < b"\3":
        begin = 12 + 4 * int.from_bytes(body[1:2], "little")
        size = int.from_bytes(body[begin - 4 : begin], "little")
    if len(body) < begin + size or size != dataset.id.get_storage_size():
        raise CorruptFileError(
            f"{filename_of(dataset.file)}: {dataset.name!r} has {dataset.id.get_storage_size()} bytes in its header, "
            f"found {len(body) - begin}. Restore the file from a copy."
        )
    return user_block + address + begin


def leaves_partial_chunks(dataset: h5py.Dataset) -> bool:
    """Return whether chunks that extend past the end of an axis are unfiltered (H5Pset_chunk_opts)."""
    body, _ = data_layout(dataset)
    return body[:1] >= b"\4" and body[1:2] == b"\2" and bool(body[2] & 1)


def in_extensible_array(dataset: h5py.Dataset) -> bool:
    """Return whether the index of the chunks of a dataset is an extensible array."""
    body, _ = data_layout(dataset)
    at = 5 + body[3] * body[4] if len(body) > 5 else 0  # after the shape of a chunk
    return body[:1] >= b"\4" and body[1:2] == b"\2" and body[at : at + 1] == b"\4"


def messages(read: Callable[[int, int], bytes], address: int, widths: FileWidths) -> Iterator[tuple[int, bytes, int]]:
    """Yield type and body of each message of the object header at an address, and where the body begins."""
    head = read(address, 32)
    if head[:4] == b"OHDR":
        yield from _messages_v2(read, address, head, widths)
        return
    blocks = [(address + 16, int.from_bytes(head[8:12], "little"))]
    for at, size in blocks:  # it grows
        block = read(at, size)
        begin = 0
        while begin + 8 <= len(block):
            kind, length = _number(block, begin, 2), _number(block, begin + 2, 2)
            body = block[begin + 8 : begin + 8 + length]
            if kind == _CONTINUATION and len(blocks) < _MAX_BLOCKS:
                blocks.append(_continued(body, widths))
            yield kind, body, at + begin + 8
            begin += 8 + length


def _messages_v2(
    read: Callable[[int, int], bytes], address: int, head: bytes, widths: FileWidths
) -> Iterator[tuple[int, bytes, int]]:
    flags = head[5]
    begin = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    size = int.from_bytes(read(address + begin, width), "little")
    blocks = [(address + begin + width, size)]
    message_head = 4 + 2 * bool(flags & 4)
    for at, size in blocks:  # it grows
        block = read(at, size)
        begin = 0
        while begin + message_head <= len(block):
            kind, length = block[begin], _number(block, begin + 1, 2)
            body = block[begin + message_head : begin + message_head + length]
            if kind == _CONTINUATION and len(blocks) < _MAX_BLOCKS:
                offset, count = _continued(body, widths)
                blocks.append((offset + 4, count - 8))  # without "OCHK" and the checksum
            yield kind, body, at + begin + message_head
            begin += message_head + length


def _continued(body: bytes, widths: FileWidths) -> tuple[int, int]:
    return _number(body, 0, widths.address), _number(body, widths.address, widths.length)


def _number(data: bytes, begin: int, width: int) -> int:
    return int.from_bytes(data[begin : begin + width], "little")
