"""Codecs: each decodes one filter, bytes -> bytes, without libhdf5 and without the GIL.

A codec fills its output to the last byte or raises `DecodeError`. It writes nothing beyond its output.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np

from ray_h5.manifest.layout import FilterStep

Bytes = np.ndarray
"""A 1-d array of uint8."""

_BLOSC_COMPRESSORS = range(6)
"""blosclz, lz4, lz4hc, snappy, zlib, zstd."""

_HEADER = struct.Struct(">QI")
_STORED_BYTES = struct.Struct(">I")
"""Of lz4 and bitshuffle, which store their blocks in the same way: the header is the decoded size and the block size.
Then each block follows after its stored size. All are big-endian."""


class DecodeError(ValueError):
    """A chunk cannot be decoded. The reader adds which one."""


class Codec:
    """Decodes one filter of a pipeline.

    Parameters
    ----------
    step : FilterStep
        A filter whose client data `takes` accepts.

    Attributes
    ----------
    keeps_size : bool
        Whether the filter keeps the number of bytes. A checksum does not count.
    """

    keeps_size: bool = False

    def __init__(self, step: FilterStep) -> None: ...

    @staticmethod
    def takes(client_data: tuple[int, ...]) -> bool:  # noqa: ARG004  most codecs need no parameters
        """Return whether the output of a filter with these parameters can be decoded here."""
        return True

    def decode(self, data: Bytes, out: Bytes) -> None:
        """Decode `data` into `out`."""
        raise NotImplementedError


class Deflate(Codec):
    """zlib streams, by libdeflate."""

    @staticmethod
    def takes(client_data: tuple[int, ...]) -> bool:
        # Decoding does not use the level, but libhdf5 refuses to decode without one.
        return len(client_data) == 1 and client_data[0] <= 9

    def decode(self, data: Bytes, out: Bytes) -> None:
        fill(out, data, "deflate", imagecodecs.deflate_decode, imagecodecs.DeflateError)


class Lzf(Codec):
    """LZF as h5py writes it: a bare stream."""

    def decode(self, data: Bytes, out: Bytes) -> None:
        fill(out, data, "lzf", imagecodecs.lzf_decode, imagecodecs.LzfError)


class Zstd(Codec):
    """Zstandard: one or more frames, with or without their decoded size."""

    def decode(self, data: Bytes, out: Bytes) -> None:
        fill(out, data, "zstd", imagecodecs.zstd_decode, imagecodecs.ZstdError)


class Blosc(Codec):
    """Blosc, version 1. Its header has the sizes, the compressor and the shuffle, which it undoes itself."""

    @staticmethod
    def takes(client_data: tuple[int, ...]) -> bool:
        # The filter of libhdf5 refuses a compressor that it does not know, for decoding too.
        return len(client_data) < 7 or client_data[6] in _BLOSC_COMPRESSORS

    def decode(self, data: Bytes, out: Bytes) -> None:
        if len(data) < 16:
            raise DecodeError(f"expected a blosc header of 16 bytes, found {len(data)} bytes in all")
        decoded_bytes, _, stored_bytes = struct.unpack_from("<III", data.data, 4)
        check_header("blosc", decoded_bytes, out)
        # blosc is not given the size of its input. It would read past the end if the header says so.
        if stored_bytes > len(data):
            raise DecodeError(f"expected {stored_bytes} stored bytes, as the blosc header says, found {len(data)}")
        fill(out, data, "blosc", imagecodecs.blosc_decode, imagecodecs.BloscError)


class Lz4(Codec):
    """LZ4 blocks. A block that LZ4 cannot make smaller is stored as it is."""

    def decode(self, data: Bytes, out: Bytes) -> None:
        block = _block_bytes("lz4", data, out)
        sizes = _stored_sizes("lz4", data, block, len(out))
        fill(out, data[: _end(sizes)], "lz4", imagecodecs.lz4h5_decode, imagecodecs.Lz4h5Error)


class Bitshuffle(Codec):
    """Bit shuffle of blocks, each compressed by LZ4 or Zstandard, or not compressed.

    It works on groups of eight elements. The remaining ones are stored at the end, as they are.
    """

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


class Fletcher32(Codec):
    """Checksum in the last four bytes."""

    keeps_size = True

    def decode(self, data: Bytes, out: Bytes) -> None:
        if len(data) != len(out) + 4:
            raise DecodeError(f"expected {len(out)} bytes and a checksum of 4, found {len(data)} in all")
        out[:] = self.check(data)

    @staticmethod
    def check(data: Bytes) -> Bytes:
        """Return the data without its checksum, which is compared first."""
        if len(data) < 4:
            raise DecodeError(f"expected a checksum of 4 bytes, found {len(data)} bytes in all")
        body, stored = data[:-4], int.from_bytes(data[-4:].tobytes(), "little")
        checksum = imagecodecs.h5checksum_fletcher32(body) if len(body) else 0
        # HDF5 before 1.6.3 added words in the byte order of the machine, which swaps the bytes of each half.
        if stored not in {checksum, (checksum & 0x00FF00FF) << 8 | checksum >> 8 & 0x00FF00FF}:
            raise DecodeError(f"the checksum is wrong: expected {stored:#010x}, found {checksum:#010x}")
        return body


class ByteShuffle(Codec):
    """Byte shuffle. The element size is the filter's own parameter, not the column's dtype."""

    keeps_size = True

    def __init__(self, step: FilterStep) -> None:
        (self._size,) = step.client_data

    @staticmethod
    def takes(client_data: tuple[int, ...]) -> bool:
        return len(client_data) == 1 and client_data[0] > 0

    def decode(self, data: Bytes, out: Bytes) -> None:
        if len(data) != len(out):
            raise DecodeError(f"expected {len(out)} shuffled bytes, found {len(data)}")
        length = len(data) // self._size
        whole = length * self._size
        np.copyto(out[:whole].reshape(length, self._size), data[:whole].reshape(self._size, length).T)
        # Bytes that do not fill an element are stored after the planes, as they are.
        out[whole:] = data[whole:]


def fill(
    out: Bytes,
    data: Bytes | memoryview | bytes,
    name: str,
    decode: Callable[..., Any],
    error: type[Exception],
    **parameters: int,
) -> None:
    """Fill `out` to the last byte with a decoder of imagecodecs."""
    try:
        decoded = decode(data, **parameters, out=out)
    except (error, ValueError, OverflowError) as exc:  # ValueError: sizes that overflow the decoder's integers
        raise DecodeError(f"the {name} stream is damaged ({exc})") from exc
    # libhdf5 would accept a short stream and leave the rest of the chunk uninitialised.
    if len(decoded) != len(out):
        raise DecodeError(f"expected {len(out)} decoded bytes, found {len(decoded)}")


def check_header(name: str, decoded_bytes: int, out: Bytes) -> None:
    """Raise unless the decoded size in the header of a stream is that of `out`."""
    if decoded_bytes != len(out):
        raise DecodeError(f"expected {len(out)} decoded bytes, the {name} header says {decoded_bytes}")


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
