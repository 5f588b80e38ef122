"""Decodes chunks: filter id -> codec, and the codecs of a whole filter pipeline; without libhdf5 and the GIL.

To add a codec, write its class and register it in `CODECS`. Pipelines with other filters are decoded by what the caller
of `ChunkDecoder` passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ray_h5.codecs import filter_ids
from ray_h5.codecs.basic_codecs import (
    Bitshuffle,
    Blosc,
    Bytes,
    ByteShuffle,
    Codec,
    DecodeError,
    Deflate,
    Fletcher32,
    Lz4,
    Lzf,
    Zstd,
)
from ray_h5.manifest.layout import FilterPipeline, FilterStep

__all__ = ["ChunkDecoder", "DecodeError", "decodes"]

CODECS: dict[int, type[Codec]] = {
    filter_ids.DEFLATE: Deflate,
    filter_ids.SHUFFLE: ByteShuffle,
    filter_ids.FLETCHER32: Fletcher32,
    filter_ids.LZF: Lzf,
    filter_ids.BLOSC: Blosc,
    filter_ids.LZ4: Lz4,
    filter_ids.BITSHUFFLE: Bitshuffle,
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
    return codec(step) if codec is not None and codec.takes(step.client_data) else None


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
        self._stages: dict[int, list[tuple[Codec, int]] | None] = {}

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
        if mask not in self._stages:
            self._stages[mask] = self._plan(mask)
        stages = self._stages[mask]
        if stages is None:
            assert self._others is not None
            self._others(self._steps(mask), data, out)
            return
        for codec, size in stages[:-1]:
            if isinstance(codec, Fletcher32):  # checks, and returns a view without the checksum: no buffer
                data = codec.check(data)
            else:
                between = np.empty(size, np.uint8)
                codec.decode(data, between)
                data = between
        if stages:
            stages[-1][0].decode(data, out)
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

    def _steps(self, mask: int) -> tuple[FilterStep, ...]:
        """Return the filters that a filter mask leaves."""
        return tuple(step for i, step in enumerate(self.pipeline.steps) if not mask >> i & 1)

    def _plan(self, mask: int) -> list[tuple[Codec, int]] | None:
        """Return the codecs of a chunk in decoding order, the last filter first, and the sizes of their output.

        Return None for filters that `others` undoes.
        """
        steps, size, stages = self._steps(mask), self._chunk_bytes, list[tuple[Codec, int]]()
        if self._others is not None and not decodes(FilterPipeline(steps)):
            return None
        for step in steps:
            codec = _codec_of(step)
            if codec is None:
                raise DecodeError(f"{step.name} with parameters {step.client_data} is not decoded here")
            stages.append((codec, size))
            if isinstance(codec, Fletcher32):
                size += 4  # filters after it were applied to the checksum as well
        return stages[::-1]
