"""Decodes lz4 and bitshuffle, which store their blocks in the same way.

The header is the decoded size (8 bytes) and the block size (4 bytes). Then each block follows after its
stored size (4 bytes). All are big-endian. Bitshuffle works on groups of eight elements; the remaining ones
are stored at the end, as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np

from ray_h5.codecs.basic_codecs import Bytes, Codec, DecodeError, check_header, fill
from ray_h5.manifest.layout import FilterStep

_HEADER = struct.Struct(">QI")
_STORED_BYTES = struct.Struct(">I")


class Lz4(Codec):
    """LZ4 blocks. A block that LZ4 cannot make smaller is stored as it is."""

    def decode(self, data: Bytes, out: Bytes) -> None:
        block = _block_bytes("lz4", data, out)
        sizes = _stored_sizes("lz4", data, block, len(out))
        fill(out, data[: _end(sizes)], "lz4", imagecodecs.lz4h5_decode, imagecodecs.Lz4h5Error)


class Bitshuffle(Codec):
    """Bit shuffle of blocks, each compressed by LZ4 or Zstandard, or not compressed."""

    def __init__(self, step: FilterStep) -> None:
        self._size = step.client_data[2]
        self._element = np.dtype((np.void, self._size))
        self._block, self._compression, *_ = (*step.client_data[3:], 0, 0)
        self.keeps_size = self._compression == 0

    @staticmethod
    def takes(client_data: tuple[int, ...]) -> bool:
        if len(client_data) < 3:
            return False
        size, block, compression, *_ = (*client_data[2:], 0, 0)
        return size > 0 and block % 8 == 0 and max(size, block) < 1 << 31 and compression in {0, *_UNPACK}

    def decode(self, data: Bytes, out: Bytes) -> None:
        if len(out) % self._size:
            raise DecodeError(f"{len(out)} bytes are no whole number of elements of {self._size} bytes")
        if self._compression:
            self._decode_blocks(data, out)
        elif len(data) == len(out):
            self._unshuffle(data, self._block, out)
        else:
            raise DecodeError(f"expected {len(out)} bit-shuffled bytes, found {len(data)}")

    def _decode_blocks(self, data: Bytes, out: Bytes) -> None:
        block, eight = _block_bytes("bitshuffle", data, out), 8 * self._size
        if block % eight:
            raise DecodeError(f"expected blocks of a multiple of {eight} bytes, the bitshuffle header says {block}")
        in_blocks = len(out) // eight * eight
        sizes = _stored_sizes("bitshuffle", data, block, in_blocks)
        end = _end(sizes)
        remainder = data[end : end + len(out) - in_blocks]
        if in_blocks + len(remainder) != len(out):
            raise DecodeError(f"expected {len(out) - in_blocks} bytes after the last block, found {len(remainder)}")
        out[in_blocks:] = remainder
        shuffled, at = np.empty(in_blocks, np.uint8), _HEADER.size
        for number, stored_bytes in enumerate(sizes):
            at += _STORED_BYTES.size
            part = shuffled[number * block : (number + 1) * block]
            fill(part, data[at : at + stored_bytes], *_UNPACK[self._compression])
            at += stored_bytes
        self._unshuffle(shuffled, block // self._size, out[:in_blocks])

    def _unshuffle(self, data: Bytes, block: int, out: Bytes) -> None:
        # imagecodecs takes the size of an element from the dtype, and the block size in elements.
        out, data = out.view(self._element), data.view(self._element)
        fill(out, data, "bitshuffle", imagecodecs.bitshuffle_decode, imagecodecs.BitshuffleError, blocksize=block)


def _block_bytes(name: str, data: Bytes, out: Bytes) -> int:
    if len(data) < _HEADER.size:
        raise DecodeError(f"expected the {name} header of {_HEADER.size} bytes, found {len(data)} bytes in all")
    decoded_bytes, block = _HEADER.unpack_from(data.data)
    check_header(name, decoded_bytes, out)
    if not block:
        raise DecodeError(f"the {name} header says that blocks are empty")
    return int(block)


def _stored_sizes(name: str, data: Bytes, block: int, decoded_bytes: int) -> list[int]:
    """Return the stored sizes of the blocks of `decoded_bytes`; raise unless all blocks are within `data`."""
    stored, size_at, sizes = data.data, _STORED_BYTES.unpack_from, list[int]()
    position, last = _HEADER.size, len(data) - _STORED_BYTES.size
    count = -(-decoded_bytes // block)
    for _ in range(count):
        if position > last:
            break
        (size,) = size_at(stored, position)
        sizes.append(size)
        position += 4 + size
    if len(sizes) < count or position > len(data):
        raise DecodeError(f"{name} block {len(sizes)} of {count} ends after the {len(data)} stored bytes")
    return sizes


def _end(sizes: list[int]) -> int:
    return _HEADER.size + len(sizes) * _STORED_BYTES.size + sum(sizes)


_UNPACK: dict[int, tuple[str, Callable[..., Any], type[Exception]]] = {
    2: ("lz4", imagecodecs.lz4_decode, imagecodecs.Lz4Error),
    3: ("zstd", imagecodecs.zstd_decode, imagecodecs.ZstdError),
}
"""What `fill` takes for the blocks of each compression."""
