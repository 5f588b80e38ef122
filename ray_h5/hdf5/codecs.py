"""Undo a filter pipeline: filter id -> decode step, without libhdf5 and without the GIL.

A step that is not here is not an error: columns whose pipeline is not `decodes`-able are read
through h5py. To add a filter, write its step and register it in `_STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import imagecodecs
import numpy as np

from ray_h5.hdf5.layout import FilterPipeline, FilterStep

Bytes = np.ndarray
"""A 1-d array of uint8."""


class DecodeError(ValueError):
    """A chunk does not decode; the reader knows which one and says so."""


class Deflate:
    """zlib streams, by libdeflate."""

    def __init__(self, step: FilterStep) -> None: ...

    def decode(self, data: Bytes, out: Bytes) -> None:
        try:
            _check_length(imagecodecs.deflate_decode(data, out=out), out)
        except imagecodecs.DeflateError as exc:
            raise DecodeError(f"the deflate stream is damaged ({exc})") from exc


class Lzf:
    """LZF as h5py writes it: a bare stream."""

    def __init__(self, step: FilterStep) -> None: ...

    def decode(self, data: Bytes, out: Bytes) -> None:
        try:
            _check_length(imagecodecs.lzf_decode(data, out=out), out)
        except imagecodecs.LzfError as exc:
            raise DecodeError(f"the lzf stream is damaged ({exc})") from exc


class Shuffle:
    """Byte shuffle. The element size is the filter's own parameter, not the column's dtype."""

    def __init__(self, step: FilterStep) -> None:
        self._size = step.client_data[0] if step.client_data else 1

    def decode(self, data: Bytes, out: Bytes) -> None:
        size = self._size
        if len(data) != len(out):
            raise DecodeError(f"expected {len(out)} shuffled bytes, found {len(data)}")
        whole = len(out) // size * size
        if size <= 1 or whole == 0:
            out[:] = data
            return
        # Bytes that do not fill an element are stored behind the shuffled ones, as they are.
        out[whole:] = data[whole:]
        if size in {2, 4, 8}:
            unsigned = f"u{size}"
            imagecodecs.byteshuffle_decode(data[:whole].view(unsigned), out=out[:whole].view(unsigned))
        else:
            np.copyto(out[:whole].reshape(-1, size), data[:whole].reshape(size, -1).T)


class Fletcher32:
    """Checksum in the last four bytes."""

    def __init__(self, step: FilterStep) -> None: ...

    def decode(self, data: Bytes, out: Bytes) -> None:
        if len(data) != len(out) + 4:
            raise DecodeError(f"expected {len(out)} bytes and a checksum of 4, found {len(data)} in all")
        self.check(data)
        out[:] = data[:-4]

    @staticmethod
    def check(data: Bytes) -> Bytes:
        """Return the data without its checksum, which is compared first."""
        if len(data) < 4:
            raise DecodeError(f"expected a checksum of 4 bytes, found {len(data)} bytes in all")
        body, stored = data[:-4], int.from_bytes(data[-4:].tobytes(), "little")
        found = imagecodecs.h5checksum_fletcher32(body) if len(body) else 0
        if found != stored:
            raise DecodeError(f"the checksum is wrong: expected {stored:#010x}, found {found:#010x}")
        return body


Step = Deflate | Lzf | Shuffle | Fletcher32

_STEPS: dict[int, Callable[[FilterStep], Step]] = {1: Deflate, 2: Shuffle, 3: Fletcher32, 32000: Lzf}
_SIZE_KEEPING = frozenset({2, 3})  # up to the checksum, whose size is known


def decodes(pipeline: FilterPipeline) -> bool:
    """Whether every step is known here, and the size of what each yields can be told beforehand.

    What comes out of a compressor is of unknown size, so a chunk that went through another step
    after it can only be decoded into a buffer that is grown by trial: h5py does those.
    """
    steps = pipeline.steps
    before_last = steps[:-1]
    trailing_checksum = len(steps) > 1 and steps[-1].id == 3
    if trailing_checksum:
        before_last = steps[:-2]
    return all(step.id in _STEPS for step in steps) and all(step.id in _SIZE_KEEPING for step in before_last)


@dataclass(frozen=True, slots=True)
class _Stage:
    step: Step
    out_bytes: int


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
        stages = self._stages.get(mask)
        if stages is None:
            stages = self._stages[mask] = self._plan(mask & self._all_skipped)
        if not stages:
            if len(data) != len(out):
                raise DecodeError(f"expected {len(out)} bytes stored without filters, found {len(data)}")
            out[:] = data
            return
        for i, stage in enumerate(stages[:-1]):
            if isinstance(stage.step, Fletcher32):
                data = stage.step.check(data)
                continue
            between = scratch(i % 2, stage.out_bytes)
            stage.step.decode(data, between)
            data = between
        stages[-1].step.decode(data, out)

    def _plan(self, mask: int) -> tuple[_Stage, ...]:
        size, stages = self._chunk_bytes, []
        for i, step in enumerate(self._pipeline.steps):
            if not mask >> i & 1:
                stages.append(_Stage(_STEPS[step.id](step), size))
                size += 4 if step.id == 3 else 0
        return tuple(reversed(stages))


def _check_length(decoded: np.ndarray, out: Bytes) -> None:
    # libhdf5 takes a short stream and leaves the rest of the chunk uninitialised.
    if len(decoded) != len(out):
        raise DecodeError(f"expected {len(out)} decoded bytes, found {len(decoded)}")
