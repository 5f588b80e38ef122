"""Decodes lz4 and bitshuffle, which store their blocks in the same way.

The header is the decoded size (8 bytes) and the block size (4 bytes). Then each block follows after its
stored size (4 bytes). All are big-endian. Bitshuffle works on groups of eight elements; the remaining ones
are stored at the end, as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import imagecodecs
import numpy as np

from ray_h5.codecs.codec import Bytes, Codec, DecodeError, check_header, fill
from ray_h5.manifest.layout import FilterStep

_HEADER = struct.Struct(">QI")
_STORED_BYTES = struct.Struct(">I")
_BATCH_BYTES = 1 << 19
"""Bytes that are decompressed before they are unshuffled. Less was slower (measured), more needs more memory."""


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
        self._decode_batches(data, sizes, block, out[:in_blocks])

    def _decode_batches(self, data: Bytes, sizes: list[int], block: int, out: Bytes) -> None:
        batch = max(_BATCH_BYTES // block, 1)  # blocks
        buffer = np.empty(min(batch * block, len(out)), np.uint8)
        unpack, position = _UNPACK[self._compression], _HEADER.size
        for first in range(0, len(sizes), batch):
            some = sizes[first : first + batch]
            end = position + len(some) * _STORED_BYTES.size + sum(some)
            unshuffled = out[first * block : (first + batch) * block]
            shuffled = buffer[: len(unshuffled)]
            unpack(data[position:end], some, block, shuffled)
            self._unshuffle(shuffled, block // self._size, unshuffled)
            position = end

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


def _streams(data: Bytes, sizes: list[int]) -> list[memoryview]:
    """Return the blocks without their stored sizes."""
    stored, position, streams = data.data, 0, []
    for size in sizes:
        begin = position + _STORED_BYTES.size
        position = begin + size
        streams.append(stored[begin:position])
    return streams


def _unpack_lz4(data: Bytes, sizes: list[int], block: int, out: Bytes) -> None:
    last = len(out) - (len(sizes) - 1) * block
    if block in sizes or sizes[-1] == last:
        # A block as large as its data is stored as it is in lz4's own layout, but compressed in bitshuffle's.
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
    # Frames with their decoded size can be decoded in one call, several times as fast as one by one.
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
    """Return the header of a frame that has its decoded size and no other field."""
    magic = b"\x28\xb5\x2f\xfd"
    if decoded_bytes < 256:
        return magic + b"\x20" + decoded_bytes.to_bytes(1, "little")
    if decoded_bytes < 256 + 65536:
        return magic + b"\x60" + (decoded_bytes - 256).to_bytes(2, "little")
    return magic + b"\xa0" + decoded_bytes.to_bytes(4, "little")


_UNPACK = {2: _unpack_lz4, 3: _unpack_zstd}
