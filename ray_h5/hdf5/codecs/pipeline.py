"""Undo a filter pipeline: filter id -> decode step, without libhdf5 and without the GIL.

A filter that is not here is not an error: columns whose pipeline is not `decodes`-able are read
through h5py. To add one, write its step and register it in `CODECS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ray_h5.hdf5.codecs import filters
from ray_h5.hdf5.codecs.bitshuffle import Bitshuffle, Lz4
from ray_h5.hdf5.codecs.codec import Blosc, Bytes, ByteShuffle, Codec, DecodeError, Deflate, Fletcher32, Lzf, Szip, Zstd
from ray_h5.hdf5.layout import FilterPipeline, FilterStep

__all__ = ["ChunkDecoder", "DecodeError", "decodes"]

CODECS: dict[int, type[Codec]] = {
    filters.DEFLATE: Deflate,
    filters.SHUFFLE: ByteShuffle,
    filters.FLETCHER32: Fletcher32,
    filters.SZIP: Szip,
    filters.LZF: Lzf,
    filters.BLOSC: Blosc,
    filters.LZ4: Lz4,
    filters.BITSHUFFLE: Bitshuffle,
    filters.ZSTD: Zstd,
}


def decodes(pipeline: FilterPipeline) -> bool:
    """Whether every step is known here, and the size of what each yields can be told beforehand.

    What comes out of a compressor is of unknown size, so a chunk that went through another step
    after it can only be decoded into a buffer that is grown by trial: h5py does those.
    """
    steps = [_undo(step) for step in pipeline.steps]
    # The size of a checksum is known, so one may follow a compressor.
    last = len(steps) - 1 - (len(steps) > 1 and isinstance(steps[-1], Fletcher32))
    return None not in steps and all(step is not None and step.keeps_size for step in steps[:last])


def _undo(step: FilterStep) -> Codec | None:
    undo = CODECS.get(step.id)
    return undo(step) if undo is not None and undo.takes(step.client_data) else None


@dataclass(frozen=True, slots=True)
class _Stage:
    """A step, what it yields in bytes, and which buffer that goes to: another one than it is read from."""

    step: Codec
    size: int
    slot: int


class ChunkDecoder:
    """Decodes the chunks of one column.

    Parameters
    ----------
    pipeline : FilterPipeline
        A pipeline that `decodes`.
    chunk_bytes : int
        Size of a decoded chunk, in bytes.
    """

    def __init__(self, pipeline: FilterPipeline, chunk_bytes: int) -> None:
        self._pipeline = pipeline
        self._chunk_bytes = chunk_bytes
        self._all_skipped = pipeline.all_skipped
        self._stages: dict[int, tuple[_Stage, ...]] = {}

    def stores_raw(self, masks: np.ndarray) -> np.ndarray:
        """Tell for each filter mask (uint32) whether its chunk is stored as it is."""
        return (masks & self._all_skipped) == self._all_skipped

    def decode(self, data: Bytes, mask: int, out: Bytes, scratch: Callable[[int, int], Bytes]) -> None:
        """Decode one chunk.

        Parameters
        ----------
        data : numpy.ndarray
            The stored bytes.
        mask : int
            The chunk's filter mask: bit i set means that step i was skipped when it was written.
            Bits past the pipeline mean nothing.
        out : numpy.ndarray
            Receives exactly `chunk_bytes` bytes.
        scratch : callable
            ``scratch(slot, nbytes)`` lends a buffer for what passes between two steps.

        Raises
        ------
        DecodeError
            If the data do not decode to `chunk_bytes` bytes.
        """
        mask &= self._all_skipped
        stages = self._stages.get(mask)
        if stages is None:
            stages = self._stages[mask] = self._plan(mask)
        for stage in stages[:-1]:
            if isinstance(stage.step, Fletcher32):
                data = stage.step.check(data)
            else:
                between = scratch(stage.slot, stage.size)
                stage.step.decode(data, between)
                data = between
        if stages:
            stages[-1].step.decode(data, out)
        elif len(data) == len(out):
            out[:] = data
        else:
            raise DecodeError(f"expected {len(out)} bytes stored without filters, found {len(data)}")

    def _plan(self, mask: int) -> tuple[_Stage, ...]:
        """Return the stages of a chunk, in the order in which they are undone."""
        size, slot, stages = self._chunk_bytes, 0, list[_Stage]()
        for i, described in enumerate(self._pipeline.steps):
            if mask >> i & 1:
                continue
            step = _undo(described)
            if step is None:
                raise DecodeError(f"{described.name} with parameters {described.client_data} is not decoded here")
            stages.append(_Stage(step, size, slot))
            if isinstance(step, Fletcher32):
                size += 4
            else:
                slot = 1 - slot
        return tuple(reversed(stages))
