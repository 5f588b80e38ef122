"""HDF5 filters by their registered ids: the only place that names them."""

from __future__ import annotations

from ray_h5.manifest.layout import FilterStep

# As they are registered with The HDF Group.
DEFLATE = 1
SHUFFLE = 2
FLETCHER32 = 3
SZIP = 4
NBIT = 5
SCALEOFFSET = 6
BZIP2 = 307
LZF = 32000
BLOSC = 32001
LZ4 = 32004
BITSHUFFLE = 32008
ZSTD = 32015
BLOSC2 = 32026

_NAMES = {
    DEFLATE: "deflate",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    SZIP: "szip",
    NBIT: "nbit",
    SCALEOFFSET: "scaleoffset",
    BZIP2: "bzip2",
    LZF: "lzf",
    BLOSC: "blosc",
    BLOSC2: "blosc2",
    LZ4: "lz4",
    BITSHUFFLE: "bitshuffle",
    ZSTD: "zstd",
}

UNCOMPRESSED = frozenset({SHUFFLE, FLETCHER32})
"""Filters that do not compress: their output has the size of their input, and the checksum of fletcher32."""

_BLOSC_CODECS = {
    BLOSC: ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"),
    BLOSC2: ("blosclz", "lz4", "lz4hc", "unused", "zlib", "zstd"),
}
_BITSHUFFLE_CODECS = {2: "bitshuffle lz4", 3: "bitshuffle zstd"}


def filter_name(filter_id: int, stored_name: bytes) -> str:
    """Return the name of a filter. If its id is not known here, that is the name that the file has for it."""
    return _NAMES.get(filter_id) or stored_name.decode("ascii", "replace") or f"filter {filter_id}"


def describe_filter(step: FilterStep) -> str:
    """Return the name of a filter with its codec and level: "deflate 4", "blosc lz4 5"."""
    data = step.client_data
    if step.id in {DEFLATE, ZSTD} and data:
        level = data[0] - (data[0] >> 31 << 32)  # client data are unsigned; Zstandard has levels below zero
        return f"{step.name} {level}"
    if step.id in _BLOSC_CODECS and len(data) > 6:
        codecs = _BLOSC_CODECS[step.id]
        codec = codecs[data[6]] if data[6] < len(codecs) else f"codec {data[6]}"
        return f"{step.name} {codec} {data[4]}"
    if step.id == BITSHUFFLE and len(data) > 4:
        return _BITSHUFFLE_CODECS.get(data[4], step.name)
    return step.name
