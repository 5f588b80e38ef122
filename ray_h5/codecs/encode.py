"""Encodes chunks: the name of a codec -> HDF5 filters, and their bytes; without libhdf5 and the GIL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import imagecodecs
import numpy as np

from ray_h5.codecs import filter_ids
from ray_h5.codecs.basic_codecs import Bytes
from ray_h5.errors import OptionError
from ray_h5.manifest.layout import FilterStep

CodecName: TypeAlias = Literal["none", "lz4", "zstd", "gzip", "blosc"]

CODEC_NAMES = ("none", "lz4", "zstd", "gzip", "blosc")

_ZSTD_LEVEL = 1
_GZIP_LEVEL = 4
_BLOSC_LEVEL = 5
_BLOSC_LZ4 = 1
_SHUFFLED_BYTES = 16
"""Byte planes of larger values, such as long texts of fixed length, are short, and compress no better."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes chunks of values of one size.

    Attributes
    ----------
    codec : str
        ``none``, ``lz4``, ``zstd``, ``gzip`` or ``blosc``. All but ``none`` come after a byte shuffle.
    item_bytes : int
        Size of a value.
    checksum : bool
        Whether stored chunks end in a checksum (fletcher32).
    """

    codec: CodecName
    item_bytes: int
    checksum: bool = False

    @property
    def _shuffles(self) -> bool:
        return self.codec != "none" and 1 < self.item_bytes <= _SHUFFLED_BYTES

    @property
    def steps(self) -> tuple[FilterStep, ...]:
        """The filters, as a file lists them."""
        checksums = (FilterStep(filter_ids.FLETCHER32, "fletcher32", ()),) if self.checksum else ()
        return self._codec_steps + checksums

    @property
    def _codec_steps(self) -> tuple[FilterStep, ...]:
        if self.codec == "none":
            return ()
        if self.codec == "blosc":
            # As its plugin completes them: versions of filter and format, size of a value, codec.
            data = (2, 2, self.item_bytes, 0, _BLOSC_LEVEL, int(self._shuffles), _BLOSC_LZ4)
            return (FilterStep(filter_ids.BLOSC, "blosc", data),)
        last = {
            "gzip": FilterStep(filter_ids.DEFLATE, "deflate", (_GZIP_LEVEL,)),
            "lz4": FilterStep(filter_ids.LZ4, "lz4", (0,)),
            "zstd": FilterStep(filter_ids.ZSTD, "zstd", (_ZSTD_LEVEL,)),
        }[self.codec]
        shuffle = FilterStep(filter_ids.SHUFFLE, "shuffle", (self.item_bytes,))
        return (shuffle, last) if self._shuffles else (last,)

    def encode(self, data: Bytes) -> tuple[Any, int]:
        """Return the stored bytes of a chunk, and its filter mask. A chunk that would grow is stored as it is."""
        stored, mask = self._encoded(data)
        if not self.checksum:
            return stored, mask
        stored = np.frombuffer(stored, np.uint8)
        checksum = imagecodecs.h5checksum_fletcher32(stored)
        return np.concatenate([stored, np.frombuffer(checksum.to_bytes(4, "little"), np.uint8)]), mask

    def _encoded(self, data: Bytes) -> tuple[Any, int]:
        if self.codec == "none":
            return data, 0
        if self.codec == "blosc":
            encoded: Any = imagecodecs.blosc_encode(
                data,
                level=_BLOSC_LEVEL,
                compressor="lz4",
                shuffle=int(self._shuffles),
                typesize=min(self.item_bytes, 255),
                numthreads=1,
            )
            return (encoded, 0) if len(encoded) < len(data) else (data, 1)
        # The first bytes of all values, then their second bytes, and so on.
        planes = np.ascontiguousarray(data.reshape(-1, self.item_bytes).T).reshape(-1) if self._shuffles else data
        if self.codec == "zstd":
            encoded = imagecodecs.zstd_encode(planes, level=_ZSTD_LEVEL)
        elif self.codec == "lz4":
            encoded = imagecodecs.lz4h5_encode(planes)
        else:
            encoded = imagecodecs.deflate_encode(planes, level=_GZIP_LEVEL)
        return (encoded, 0) if len(encoded) < len(data) else (data, (1 << len(self._codec_steps)) - 1)


def as_codec(value: object, *others: str) -> str:
    """Return the value of the argument `codec`; `others` are further names that it may have."""
    if isinstance(value, str) and value in (*CODEC_NAMES, *others):
        return value
    raise OptionError(f"codec={value!r}: expected one of {', '.join((*CODEC_NAMES, *others))}")
