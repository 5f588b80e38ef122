"""Decodes chunks: filter id -> codec, and the codecs of a whole filter pipeline; without libhdf5 and the GIL.

To add a codec, write its class and register it in `CODECS`; one in a module of its own is imported when a file needs
it. Pipelines with other filters are decoded by what the caller of `ChunkDecoder` passes.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, cast

import numpy as np

from ray_h5.codecs import filter_ids
from ray_h5.codecs.basic_codecs import (
    Bytes,
    ByteShuffle,
    Codec,
    DecodeError,
    Deflate,
    Fletcher32,
    Lzf,
    Zstd,
)
from ray_h5.manifest.layout import FilterPipeline, FilterStep

__all__ = ["ChunkDecoder", "DecodeError", "decodes"]

CODECS: dict[int, type[Codec] | str] = {
    filter_ids.DEFLATE: Deflate,
    filter_ids.SHUFFLE: ByteShuffle,
    filter_ids.FLETCHER32: Fletcher32,
    filter_ids.LZF: Lzf,
    filter_ids.BLOSC: "ray_h5.codecs.blosc:Blosc",
    filter_ids.LZ4: "ray_h5.codecs.bitshuffle:Lz4",
    filter_ids.BITSHUFFLE: "ray_h5.codecs.bitshuffle:Bitshuffle",
    filter_ids.ZSTD: Zstd,
}


Others: TypeAlias = Callable[[Sequence[FilterStep], Bytes, Bytes], None]


@lru_cache(maxsize=256)
def decodes(pipeline: FilterPipeline) -> bool:
    """Return whether there is a codec for every filter, and the size of each intermediate result is known.

    The output of a compressor has an unknown size. A filter after it (other than a checksum) would have to be decoded
    into a buffer of unknown size.
    """
    codecs = [_codec_of(step) for step in pipeline.steps]
    # The size of a checksum is known, so one may follow a compressor.
    last = len(codecs) - 1 - (len(codecs) > 1 and isinstance(codecs[-1], Fletcher32))
    return None not in codecs and all(codec is not None and codec.keeps_size for codec in codecs[:last])


def _codec_of(step: FilterStep) -> Codec | None:
    codec = CODECS.get(step.id)
    if isinstance(codec, str):
        codec = cast("type[Codec]", pkgutil.resolve_name(codec))
    return codec(step) if codec is not None and codec.takes(step.client_data) else None


@dataclass(frozen=True, slots=True)
class _Stage:
    """A codec, and the size of its output in bytes."""

    codec: Codec
    size: int


class ChunkDecoder:
    """Decodes the chunks of one column.

    Parameters
    ----------
    pipeline : FilterPipeline
        The filters.
    chunk_bytes : int
        Size of a decoded chunk, in bytes.
    others : callable, optional
        ``others(steps, data, out)`` undoes filters for which `decodes` is false.
    """

    def __init__(self, pipeline: FilterPipeline, chunk_bytes: int, others: Others | None = None) -> None:
        self.pipeline = pipeline
        self._others = others
        self._chunk_bytes = chunk_bytes
        self.all_skipped = pipeline.all_skipped
        self._stages: dict[int, tuple[_Stage, ...]] = {}

    def decode(self, data: Bytes, mask: int, out: Bytes) -> None:
        """Decode one chunk.

        Parameters
        ----------
        data : numpy.ndarray
            The stored bytes.
        mask : int
            The chunk's filter mask: if bit i is set, filter i was skipped when it was written. Bits
            past the pipeline are ignored.
        out : numpy.ndarray
            The output, of `chunk_bytes` bytes.

        Raises
        ------
        DecodeError
            If the data do not decode to `chunk_bytes` bytes.
        """
        mask &= self.all_skipped
        if self._others is not None and not decodes(used := self._used(mask)):
            self._others(used.steps, data, out)
            return
        stages = self._stages.get(mask)
        if stages is None:
            stages = self._stages[mask] = self._plan(mask)
        for stage in stages[:-1]:
            if isinstance(stage.codec, Fletcher32):  # checks, and returns a view without the checksum: no buffer
                data = stage.codec.check(data)
            else:
                between = np.empty(stage.size, np.uint8)
                stage.codec.decode(data, between)
                data = between
        if stages:
            stages[-1].codec.decode(data, out)
        elif len(data) == len(out):
            out[:] = data
        else:
            raise DecodeError(f"expected {len(out)} bytes stored without filters, found {len(data)}")

    def decode_rows(self, data: Bytes, mask: int, out: Bytes, least: int) -> None:
        """Decode one chunk, of which `least` bytes hold rows; other arguments and errors as of `decode`.

        Libraries other than libhdf5 may store no more of the last chunk. The rest of the output is then zeros.
        """
        try:
            self.decode(data, mask, out)
        except DecodeError:
            if least >= len(out):
                raise
            try:
                ChunkDecoder(self.pipeline, least, self._others).decode(data, mask, out[:least])
            except DecodeError:
                pass
            else:
                out[least:] = 0
                return
            raise

    def _used(self, mask: int) -> FilterPipeline:
        """Return the filters that a filter mask leaves."""
        if not mask:
            return self.pipeline
        return FilterPipeline(tuple(step for i, step in enumerate(self.pipeline.steps) if not mask >> i & 1))

    def _plan(self, mask: int) -> tuple[_Stage, ...]:
        """Return the stages of a chunk in decoding order: the last filter first."""
        size, stages = self._chunk_bytes, list[_Stage]()
        for i, step in enumerate(self.pipeline.steps):
            if mask >> i & 1:
                continue
            codec = _codec_of(step)
            if codec is None:
                raise DecodeError(f"{step.name} with parameters {step.client_data} is not decoded here")
            stages.append(_Stage(codec, size))
            if isinstance(codec, Fletcher32):
                size += 4  # filters after it were applied to the checksum as well
        return tuple(reversed(stages))
