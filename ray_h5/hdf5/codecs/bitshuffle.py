"""Undo lz4 and bitshuffle, which store their blocks alike.

Decoded size (8 bytes) and block size (4 bytes), then each block behind its stored size (4 bytes),
all big-endian. Bitshuffle adds the elements that are left over when they are taken by eights.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import imagecodecs
import numpy as np

from ray_h5.hdf5.codecs.codec import Bytes, Codec, DecodeError, check_header, fill
from ray_h5.hdf5.layout import FilterStep

_HEADER = struct.Struct(">QI")
_STORED_BYTES = struct.Struct(">I")
_GROUP_BYTES = 1 << 19
"""What is unpacked before it is unshuffled, in bytes. Less was slower by measurement, more is more memory."""


class Lz4(Codec):
    """LZ4 blocks; one that LZ4 does not make smaller is stored as it is."""

    def decode(self, data: Bytes, out: Bytes) -> None:
        block = _block_bytes("lz4", data, out)
        sizes = _stored_sizes("lz4", data, block, len(out))
        fill(out, data[: _end(sizes)], "lz4", imagecodecs.lz4h5_decode, imagecodecs.Lz4h5Error)


class Bitshuffle(Codec):
    """Bit shuffle by blocks, each of them compressed by LZ4, by Zstandard or not at all."""

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
        return size > 0 and block % 8 == 0 and compression in {0, *_UNPACK}

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
        left_over = data[end : end + len(out) - in_blocks]
        if in_blocks + len(left_over) != len(out):
            raise DecodeError(f"expected {len(out) - in_blocks} bytes behind the last block, found {len(left_over)}")
        out[in_blocks:] = left_over
        self._decode_groups(data, sizes, block, out[:in_blocks])

    def _decode_groups(self, data: Bytes, sizes: list[int], block: int, out: Bytes) -> None:
        group = max(_GROUP_BYTES // block, 1)
        buffer = np.empty(min(group * block, len(out)), np.uint8)
        unpack, position = _UNPACK[self._compression], _HEADER.size
        for first in range(0, len(sizes), group):
            some = sizes[first : first + group]
            end = position + len(some) * _STORED_BYTES.size + sum(some)
            unshuffled = out[first * block : (first + group) * block]
            shuffled = buffer[: len(unshuffled)]
            unpack(data[position:end], some, block, shuffled)
            self._unshuffle(shuffled, block // self._size, unshuffled)
            position = end

    def _unshuffle(self, data: Bytes, block: int, out: Bytes) -> None:
        # The size of an element is taken from the array, and its length is counted in them.
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
    """Return the stored sizes of the blocks of `decoded_bytes`, all of which lie within `data`."""
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
        raise DecodeError(f"{name} block {len(sizes)} of {count} ends behind the {len(data)} stored bytes")
    return sizes


def _end(sizes: list[int]) -> int:
    return _HEADER.size + len(sizes) * _STORED_BYTES.size + sum(sizes)


def _streams(data: Bytes, sizes: list[int]) -> list[memoryview]:
    """Return the blocks without the sizes in front of them."""
    stored, position, streams = data.data, 0, []
    for size in sizes:
        begin = position + _STORED_BYTES.size
        position = begin + size
        streams.append(stored[begin:position])
    return streams


def _unpack_lz4(data: Bytes, sizes: list[int], block: int, out: Bytes) -> None:
    last = len(out) - (len(sizes) - 1) * block
    if block in sizes or sizes[-1] == last:
        # Blocks that LZ4 does not make smaller: bitshuffle compresses them all the same, lz4's own layout does not.
        _unpack_each(_streams(data, sizes), block, out, "lz4", imagecodecs.lz4_decode, imagecodecs.Lz4Error)
        return
    framed = np.empty(_HEADER.size + len(data), np.uint8)
    _HEADER.pack_into(framed.data, 0, len(out), block)
    framed[_HEADER.size :] = data
    fill(out, framed, "lz4", imagecodecs.lz4h5_decode, imagecodecs.Lz4h5Error)


def _unpack_zstd(data: Bytes, sizes: list[int], block: int, out: Bytes) -> None:
    streams = _streams(data, sizes)
    last = _zstd_frame(len(out) - (len(sizes) - 1) * block)
    frame = _zstd_frame(block)
    # Frames that tell their size decode in one call as they would one by one, several times as fast.
    if all(stream[: len(frame)] == frame for stream in streams[:-1]) and streams[-1][: len(last)] == last:
        fill(out, b"".join(streams), "zstd", imagecodecs.zstd_decode, imagecodecs.ZstdError)
    else:
        _unpack_each(streams, block, out, "zstd", imagecodecs.zstd_decode, imagecodecs.ZstdError)


def _unpack_each(
    streams: list[memoryview],
    block: int,
    out: Bytes,
    name: str,
    decode: Callable[..., Bytes],
    error: type[Exception],
) -> None:
    for i, stream in enumerate(streams):
        fill(out[i * block : (i + 1) * block], stream, name, decode, error)


def _zstd_frame(decoded_bytes: int) -> bytes:
    """Return how a frame of `decoded_bytes` begins if it tells that and nothing else of itself."""
    magic = b"\x28\xb5\x2f\xfd"
    if decoded_bytes < 256:
        return magic + b"\x20" + decoded_bytes.to_bytes(1, "little")
    if decoded_bytes < 256 + 65536:
        return magic + b"\x60" + (decoded_bytes - 256).to_bytes(2, "little")
    return magic + b"\xa0" + decoded_bytes.to_bytes(4, "little")


_UNPACK = {2: _unpack_lz4, 3: _unpack_zstd}
