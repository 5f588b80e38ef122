"""The messages of an object header, for what libhdf5 does not give out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import h5py

_CONTINUATION = 0x10
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


def messages(read: Callable[[int, int], bytes], address: int, widths: FileWidths) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each message of the object header at an address."""
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
            yield kind, body
            begin += 8 + length


def _messages_v2(
    read: Callable[[int, int], bytes], address: int, head: bytes, widths: FileWidths
) -> Iterator[tuple[int, bytes]]:
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
            yield kind, body
            begin += message_head + length


def _continued(body: bytes, widths: FileWidths) -> tuple[int, int]:
    return _number(body, 0, widths.address), _number(body, widths.address, widths.length)


def _number(data: bytes, begin: int, width: int) -> int:
    return int.from_bytes(data[begin : begin + width], "little")
