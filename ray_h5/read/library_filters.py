"""Filters that libhdf5 undoes, in a dataset in memory: nbit, scaleoffset, szip, and those of plugins."""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache

import h5py
import hdf5plugin  # noqa: F401  libhdf5 finds the filters of others
import imagecodecs
import numpy as np

from ray_h5.codecs.basic_codecs import Bytes, ByteShuffle, DecodeError, Fletcher32, fill
from ray_h5.codecs.filter_ids import BZIP2, DEFLATE, FLETCHER32, NBIT, SCALEOFFSET, SHUFFLE, SZIP, UNCOMPRESSED
from ray_h5.manifest.layout import FilterStep

_NAME = b"fletcher32"
# The plugin for bzip2 never returns from a stream that is cut short.
_UNDONE_HERE = frozenset({BZIP2, DEFLATE, SHUFFLE, FLETCHER32})
_CHECKED = frozenset({NBIT, SCALEOFFSET, SZIP})
_SCALEOFFSET_HEADER_BYTES = 21
_ATOMIC, _ARRAY, _COMPOUND, _PLAIN = 1, 2, 3, 4
_DEEPEST = 32
_LARGEST_NUMBER = 8


def decode_by_library(steps: Sequence[FilterStep], data: Bytes, out: Bytes) -> None:
    """Undo filters that were applied in this order, those that can be here; raise `DecodeError` if that fails."""
    stored, most = data, 2 * len(out) + (64 << 10)
    # The filter that was applied last is undone first.
    for at in reversed(range(len(steps))):
        step, before = steps[at], steps[:at]
        if step.id in _UNDONE_HERE:
            stored = _undone(step, stored, most)
        elif all(step.id in UNCOMPRESSED for step in before):
            size = len(out) + 4 * sum(step.id == FLETCHER32 for step in before)
            between = np.empty(size, np.uint8) if before else out
            if reason := _wrong(step, stored, size):
                raise DecodeError(reason)
            stored = (_of_szip if step.id == SZIP else _by_library)([step], stored, between)
        elif {step.id for step in steps[: at + 1]} & _CHECKED:
            raise DecodeError(f"{'+'.join(step.name for step in steps[: at + 1])} is not decoded")
        else:  # the size in between is not known
            stored = _by_library(steps[: at + 1], stored, out)
            break
    if len(stored) != len(out):
        raise DecodeError(f"expected {len(out)} decoded bytes, found {len(stored)}")
    if stored is not out:
        out[:] = stored


def _of_szip(steps: Sequence[FilterStep], stored: Bytes, out: Bytes) -> Bytes:
    """Undo szip: four bytes with the decoded size, then coded pixels.

    libaec, which libhdf5 uses, passes on what is in its memory for missing pixels, if it drops the padding of lines or
    assembles bytes of pixels. So it only decodes, and the rest is done here.
    """
    options, block, bits, line = steps[0].client_data
    planes = bits // 8 if bits > 16 else 1  # pixels of 32 and 64 bits are coded as planes of bytes
    padded = -(-line // block) * block
    line_bytes, padded_bytes = (pixels * bits // planes // 8 for pixels in (line, padded))
    lines, rest = divmod(len(out), line_bytes)
    padded_out = np.empty(lines * padded_bytes + rest, np.uint8)
    parameters = {"pixels_per_block": block, "bits_per_pixel": bits // planes, "pixels_per_scanline": padded}
    decode, error = imagecodecs.szip_decode, imagecodecs.SzipError
    fill(padded_out, stored[4:], "szip", decode, error, options_mask=options, **parameters)
    if padded > line:
        whole = padded_out[: lines * padded_bytes].reshape(lines, padded_bytes)[:, :line_bytes]
        padded_out = np.concatenate([whole.reshape(-1), padded_out[lines * padded_bytes :]])
    out.reshape(-1, planes)[:] = padded_out.reshape(planes, -1).T
    return out


def _undone(step: FilterStep, stored: Bytes, most: int) -> Bytes:
    """Undo a filter of the end of a pipeline."""
    data = np.frombuffer(stored, np.uint8)
    if step.id == FLETCHER32:
        return Fletcher32(step).check(data)
    if step.id == SHUFFLE:
        if not ByteShuffle.takes(step.client_data):
            raise DecodeError(f"shuffle with parameters {step.client_data} cannot be undone")
        ByteShuffle(step).decode(data, out := np.empty_like(data))
        return out
    decoder = bz2.BZ2Decompressor() if step.id == BZIP2 else zlib.decompressobj()
    try:
        decoded = decoder.decompress(data.data, most)
    except (zlib.error, OSError) as exc:
        raise DecodeError(f"the {step.name} stream is damaged ({exc})") from exc
    if not decoder.eof:
        raise DecodeError(f"the {step.name} stream ends early, after {len(decoded)} decoded bytes")
    return np.frombuffer(decoded, np.uint8)


def _by_library(steps: Sequence[FilterStep], stored: Bytes, out: Bytes) -> Bytes:
    try:  # one chunk at a time: libhdf5 has one lock, and threads that wait for it would hold memory
        with h5py._objects.phil, h5py.File.in_memory(_image(tuple(steps), len(out))) as file:
            h5py.h5d.open(file.id, b"x").write_direct_chunk((0,), stored)
            h5py.h5d.open(file.id, b"x").read(h5py.h5s.ALL, h5py.h5s.ALL, out)
    except (OSError, RuntimeError, ValueError) as exc:
        raise DecodeError(f"libhdf5 cannot decode it ({exc})") from exc
    return out


@lru_cache(maxsize=64)
def _image(steps: tuple[FilterStep, ...], nbytes: int) -> bytes:
    """Return a file with a dataset of one chunk of bytes that has some filters.

    libhdf5 changes the parameters of some when it creates a dataset. So they are created as checksums, which take any
    parameters, and get their own numbers in the header of the dataset: in the oldest format it has no checksum.
    """
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((nbytes,))
    for step in steps:
        made.set_filter(FLETCHER32, h5py.h5z.FLAG_MANDATORY, step.client_data)
    with h5py.File.in_memory(libver="earliest") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((nbytes,)), made)
        file.flush()
        image = bytearray(file.id.get_file_image())
    at = 0
    for step in steps:
        at = image.index(_NAME, at + 1)
        struct.pack_into("<H", image, at - 8, step.id)  # before the name: number, bytes of the name, flags, parameters
    return bytes(image)


# libhdf5 (2.0) reads past the end of chunks that are too short for these -------------------------


def _wrong(step: FilterStep, stored: Bytes, nbytes: int) -> str | None:
    """Return what is wrong with a chunk that libhdf5 must not get."""
    parameters = step.client_data
    if step.id == SCALEOFFSET:
        return wrong_scaleoffset(stored, parameters, nbytes)
    if step.id == NBIT:
        return wrong_nbit(stored, parameters, nbytes)
    if step.id != SZIP:
        return None if len(stored) else "found no bytes"
    # The limits of libhdf5 when it writes.
    _, block, bits, line = parameters if len(parameters) == 4 else (0, 0, 0, 0)
    if bits not in {8, 16, 32, 64} or block not in range(2, 33, 2) or not block <= line <= 128 * block:
        return f"szip with parameters {parameters} is not decoded: HDF5 does not write them"
    if nbytes % (bits // 8):
        return f"{nbytes} bytes are no whole number of szip pixels"
    claimed = int.from_bytes(stored[:4], "little")
    return None if len(stored) > 4 and claimed == nbytes else f"expected {nbytes} decoded bytes, szip says {claimed}"


def wrong_scaleoffset(data: Bytes, parameters: Sequence[int], chunk_bytes: int) -> str | None:
    """Return what is wrong with a chunk of scaleoffset: too few bytes, or other parameters. None if nothing is.

    HDF5 File Format Specification, IV.A.2.l: parameter 2 is the number of values of a chunk, parameter 4 their size.
    """
    values, item_bytes = parameters[2:5:2] if len(parameters) == 20 else (0, 0)
    if not item_bytes or values * item_bytes != chunk_bytes or item_bytes > _LARGEST_NUMBER:
        return f"expected scaleoffset of {chunk_bytes} bytes, found the parameters {tuple(parameters)}"
    # The header begins with the number of bits a value, then the size and value of the minimum.
    bits = int.from_bytes(data[:4], "little")
    if len(data) < _SCALEOFFSET_HEADER_BYTES or bits > 8 * item_bytes:
        return f"expected a scaleoffset header of at most {8 * item_bytes} bits a value, found {bytes(data[:4])!r}"
    least = _SCALEOFFSET_HEADER_BYTES + -(-values * bits // 8)
    return None if len(data) >= least else f"expected {least} bytes of scaleoffset, found {len(data)}"


def wrong_nbit(data: Bytes, parameters: Sequence[int], chunk_bytes: int) -> str | None:
    """Return what is wrong with a chunk of nbit: too few bytes, or other parameters. None if nothing is.

    HDF5 File Format Specification, IV.A.2.l. The parameters are: their number, whether nothing was packed, the
    number of values, and the type. A type is a class, a size and its members. It may be missing if nothing was packed.
    """
    try:
        _, as_it_was, values, *_ = parameters
        if as_it_was:
            least = chunk_bytes
        else:
            item_bytes, (bits, _) = parameters[4], _kept_bits(parameters, 3)
            if values * item_bytes != chunk_bytes:
                return f"expected nbit of {chunk_bytes} bytes, found {values} values of {item_bytes} bytes"
            least = -(-values * bits // 8)
    except (ValueError, IndexError):
        return f"nbit with parameters {tuple(parameters)} cannot be undone"
    return None if len(data) >= least else f"expected {least} bytes of nbit, found {len(data)}"


def _kept_bits(parameters: Sequence[int], at: int, depth: int = 0) -> tuple[int, int]:
    """Return the number of bits that a value of the type at `at` keeps, and the position of the next type."""
    if depth > _DEEPEST:
        raise ValueError("a type inside itself")
    # The parameters come from the file, so any of them may be wrong: IndexError and ValueError are caught above.
    kind, size = parameters[at], parameters[at + 1]
    if kind == _PLAIN:
        return 8 * size, at + 2
    if kind == _ATOMIC:
        _, precision, offset = parameters[at + 2 : at + 5]
        if precision + offset > 8 * size:
            raise ValueError("more bits than the value has")
        return precision, at + 5
    if kind == _ARRAY:
        bits, after = _kept_bits(parameters, at + 2, depth + 1)
        return bits * (size // max(1, parameters[at + 3])), after
    if kind == _COMPOUND and parameters[at + 2] > 0:
        bits, after = 0, at + 3
        for _ in range(parameters[at + 2]):
            member_bits, after = _kept_bits(parameters, after + 1, depth + 1)
            bits += member_bits
        return bits, after
    raise ValueError(f"class {kind}")
