"""Undo a filter pipeline: filter id -> decode step, without libhdf5 and without the GIL.

A filter that is not here is not an error: columns whose pipeline is not `decodes`-able are read
through h5py. To add one, write its step and register it in `_STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ray_h5.hdf5.bitshuffle import Bitshuffle, Lz4
from ray_h5.hdf5.layout import FilterPipeline, FilterStep
from ray_h5.hdf5.steps import Blosc, Bytes, DecodeError, Deflate, Fletcher32, Lzf, Shuffle, Step, Szip, Zstd

__all__ = ["ChunkDecoder", "DecodeError", "decodes"]

_STEPS: dict[int, type[Step]] = {
    1: Deflate,
    2: Shuffle,
    3: Fletcher32,
    4: Szip,
    32000: Lzf,
    32001: Blosc,
    32004: Lz4,
    32008: Bitshuffle,
    32015: Zstd,
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


def _undo(step: FilterStep) -> Step | None:
    undo = _STEPS.get(step.id)
    return undo(step) if undo is not None and undo.takes(step.client_data) else None


Decode = Callable[[Bytes, Bytes], None]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A step that does not yield the chunk yet.

    Attributes
    ----------
    decode : callable, optional
        Fills the buffer that the next step reads; None for a checksum, which is looked at and left off.
    slot : int
        The buffer, which is not the one read from.
    head : int
        Bytes that the next step wants in front of its data.
    size : int
        Bytes that this step yields.
    """

    decode: Decode | None
    slot: int
    head: int
    size: int


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
        self._all_skipped = (1 << len(pipeline.steps)) - 1
        self._plans: dict[int, tuple[tuple[_Stage, ...], Decode]] = {}

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
        plan = self._plans.get(mask)
        if plan is None:
            plan = self._plans[mask] = self._plan(mask)
        stages, decode_last = plan
        for stage in stages:
            if stage.decode is None:
                data = Fletcher32.check(data)
                continue
            between = scratch(stage.slot, stage.head + stage.size)
            stage.decode(data, between[stage.head :] if stage.head else between)
            data = between
        decode_last(data, out)

    def _plan(self, mask: int) -> tuple[tuple[_Stage, ...], Decode]:
        steps, sizes = self._applied(mask)
        if not steps:
            return (), _copy
        stages: list[_Stage] = []
        slot, head = 0, 0
        for step, following, size in zip(steps, steps[1:], sizes, strict=False):
            if isinstance(step, Fletcher32):
                head = 0
                stages.append(_Stage(None, slot, head, size))
            else:
                decode, slot, head = _entry(step, head), 1 - slot, following.head
                stages.append(_Stage(decode, slot, head, size))
        return tuple(stages), _entry(steps[-1], head)

    def _applied(self, mask: int) -> tuple[list[Step], list[int]]:
        """Return the steps of a chunk in the order in which they are undone, and what each yields in bytes."""
        size, steps, sizes = self._chunk_bytes, [], []
        for i, described in enumerate(self._pipeline.steps):
            if mask >> i & 1:
                continue
            step = _undo(described)
            if step is None:
                raise DecodeError(f"{described.name} with parameters {described.client_data} is not decoded here")
            steps.append(step)
            sizes.append(size)
            size += 4 * isinstance(step, Fletcher32)
        return steps[::-1], sizes[::-1]


def _entry(step: Step, head: int) -> Decode:
    return step.decode_behind_head if head else step.decode


def _copy(data: Bytes, out: Bytes) -> None:
    if len(data) != len(out):
        raise DecodeError(f"expected {len(out)} bytes stored without filters, found {len(data)}")
    out[:] = data
