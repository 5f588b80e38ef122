"""Blosc, version 1."""

from __future__ import annotations

import struct

import imagecodecs

from ray_h5.codecs.basic_codecs import Bytes, Codec, DecodeError, check_header, fill

_BLOSC_COMPRESSORS = range(6)
"""blosclz, lz4, lz4hc, snappy, zlib, zstd."""


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
