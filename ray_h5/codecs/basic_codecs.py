"""Codecs: each decodes one filter, bytes -> bytes, without libhdf5 and without the GIL.

A codec fills its output to the last byte or raises `DecodeError`. It writes nothing beyond its output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np

from ray_h5.manifest.layout import FilterStep

Bytes = np.ndarray
"""A 1-d array of uint8."""


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
