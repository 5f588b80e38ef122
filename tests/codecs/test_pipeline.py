"""Compressors beyond HDF5's own: as libhdf5 decodes them, and never more than the chunk holds."""

import itertools

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5.codecs.pipeline import ChunkDecoder, DecodeError
from ray_h5.errors import CorruptChunkError
from ray_h5.read.library_filters import decode_by_library
from ray_h5.read.reader import RowReader
from tests.hdf5.h5kit import assert_same, by_h5py, dataset_with, in_fork, plist_with, stored_chunks

ROWS = 21
DTYPES = ["u1", ">i4", "f8", "c16"]
# Elements a chunk: a multiple of eight, none of eight, many blocks of the smallest block size.
CHUNKS = [(4, 16), (5, 13), (21, 300)]


def szip(mask, block):
    return {"compression": "szip", "compression_opts": (mask, block)}


FILTERS = {
    "blosc": hdf5plugin.Blosc(),
    "blosc of lz4, bit shuffle": hdf5plugin.Blosc(cname="lz4", shuffle=hdf5plugin.Blosc.BITSHUFFLE),
    "blosc of zstd, no shuffle": hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.NOSHUFFLE),
    "blosc of zlib": hdf5plugin.Blosc(cname="zlib", clevel=1),
    "zstd": hdf5plugin.Zstd(),
    "lz4": hdf5plugin.LZ4(),
    "lz4 by small blocks": hdf5plugin.LZ4(nbytes=128),
    "bitshuffle of lz4": hdf5plugin.Bitshuffle(),
    "bitshuffle of lz4 by small blocks": hdf5plugin.Bitshuffle(nelems=8),
    "bitshuffle of zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    "bitshuffle of zstd by small blocks": hdf5plugin.Bitshuffle(nelems=16, cname="zstd"),
    "bitshuffle alone": hdf5plugin.Bitshuffle(cname="none"),
    "szip, nearest neighbour": szip("nn", 8),
    "szip, entropy": szip("ec", 32),
    "shuffle and zstd": {**hdf5plugin.Zstd(), "shuffle": True},
    "lz4 and a checksum": {**hdf5plugin.LZ4(), "fletcher32": True},
    "shuffle, szip and a checksum": {**szip("nn", 4), "shuffle": True, "fletcher32": True},
}
BY_LIBRARY = {
    "blosc2": hdf5plugin.Blosc2(),
    "bzip2": hdf5plugin.BZip2(),
    "lz4 twice": None,
}


def values_of(dtype, few_values, row_shape):
    rng = np.random.default_rng(0)
    count = ROWS * int(np.prod(row_shape))
    stored = rng.integers(0, 3 if few_values else 256, count * np.dtype(dtype).itemsize, dtype=np.uint8)
    return stored.view(dtype).reshape(ROWS, *row_shape)


def can_hold(filters, dtype, chunk):
    if filters.get("compression") != "szip":
        return True
    # HDF5 has no szip of complex numbers, nor of chunks that are smaller than a block.
    return np.dtype(dtype).kind != "c" and chunk[0] * chunk[1] >= filters["compression_opts"][1]


def write_all(path, filters):
    with h5py.File(path, "w") as file:
        for (i, chunk), dtype, few_values in itertools.product(enumerate(CHUNKS), DTYPES, [True, False]):
            if can_hold(filters, dtype, chunk):
                data = values_of(dtype, few_values, (chunk[1] + i,))
                file.create_dataset(f"{dtype} {chunk} {few_values}", data=data, chunks=chunk, **filters)


@pytest.mark.parametrize("name", FILTERS)
def test_own_path_equals_h5py(tmp_path, name):
    write_all(tmp_path / "a.h5", FILTERS[name])
    reader = RowReader(tmp_path / "a.h5", threads=2)
    assert reader.columns
    for column, layout in reader.columns.items():
        assert layout.direct, column
        for rows in (slice(None), [20, 0, 7, 7]):
            assert_same(reader.read([column], rows)[column], by_h5py(tmp_path / "a.h5", column, rows))
    # Partial chunks that come out at their full size by chance may be unfiltered: libhdf5 decides.
    assert reader.stats.chunks_decoded > reader.stats.h5py_reads


@pytest.mark.parametrize("name", BY_LIBRARY)
def test_others_are_decoded_by_libhdf5(tmp_path, name):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if filters := BY_LIBRARY[name]:
            file.create_dataset("x", data=values_of("f4", True, (16,)), chunks=(4, 16), **filters)
        else:
            dataset_with(file, "x", (ROWS, 16), plist_with((4, 16), (32004, 32004)))[:] = values_of("i4", True, (16,))
    reader = RowReader(tmp_path / "a.h5")
    for rows in (slice(None), [20, 0, 7, 7]):
        assert_same(reader.read(["x"], rows)["x"], by_h5py(tmp_path / "a.h5", "x", rows))
    assert reader.columns["x"].direct
    assert reader.stats.h5py_reads == 0


@pytest.mark.parametrize("name", FILTERS)
def test_streams_that_end_early(tmp_path, name):
    filters = FILTERS[name]
    chunk = CHUNKS[0]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values_of("f4", True, (16,)), chunks=chunk, **filters)
    whole = stored_chunks(tmp_path / "a.h5", "x")[1]
    with h5py.File(tmp_path / "a.h5", "r") as file:
        _, stored = file["x"].id.read_direct_chunk(whole.chunk_offset)
    stored = bytes(stored)
    for kept in {1, 4, 12, len(stored) // 2, len(stored) - 1}:
        with h5py.File(tmp_path / f"{kept}.h5", "w") as file:
            dataset = file.create_dataset("x", (ROWS, 16), "f4", chunks=chunk, **filters)
            dataset.id.write_direct_chunk(whole.chunk_offset, stored[:kept])
        with pytest.raises(
            CorruptChunkError, match=r"column 'x', chunk 1 \(rows 4 to 7, bytes \d+ to \d+ of the file\)"
        ):
            RowReader(tmp_path / f"{kept}.h5").read(["x"])


def decoded(decoder, stored, size, before):
    """Decode into memory that held `before`, between bytes that must stay as they are."""
    buffers = [np.full(2 * size + 200, before, "u1"), np.full(2 * size + 200, before, "u1")]
    memory = np.full(size + 200, before, "u1")
    memory[:100] = memory[-100:] = 0xAB
    try:
        decoder.decode(stored, 0, memory[100:-100], lambda slot, nbytes: buffers[slot][:nbytes])
    except DecodeError:
        return None
    finally:
        assert np.all(memory[:100] == 0xAB)
        assert np.all(memory[-100:] == 0xAB)
    return memory[100:-100].tobytes()


DAMAGED = {
    **FILTERS,
    "gzip": {"compression": "gzip"},
    "lzf": {"compression": "lzf"},
    "shuffle and gzip": {"compression": "gzip", "shuffle": True},
    "shuffle and lzf": {"compression": "lzf", "shuffle": True},
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("chunk", CHUNKS[:2], ids=str)
def test_damage_lets_no_memory_through(tmp_path, name, chunk):
    # Where a damaged stream decodes at all, each byte comes from it: not from what the memory held before.
    filters = DAMAGED[name]
    if not can_hold(filters, "f4", chunk):
        chunk = CHUNKS[0]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", data=values_of("f4", True, (chunk[1],)), chunks=chunk, **filters)
        mask, stored = dataset.id.read_direct_chunk((0, 0))
    assert mask == 0
    size = chunk[0] * chunk[1] * 4
    decoder = ChunkDecoder(RowReader(tmp_path / "a.h5").columns["x"].pipeline, size, decode_by_library)
    intact = np.frombuffer(stored, "u1")

    def outcomes():
        rng = np.random.default_rng(0)
        wrong = []
        for i in range(100):
            noise = intact.copy()
            # Headers are where lies do most harm: damage them in half of the tries.
            reach = min(24, len(noise)) if i % 2 else len(noise)
            noise[rng.integers(0, reach, rng.integers(1, 4))] = rng.integers(0, 256)
            if i % 5 == 0:
                noise = noise[: rng.integers(1, len(noise) + 1)]
            found = {decoded(decoder, noise, size, before) for before in (0x00, 0xFF)}
            if len(found) > 1:
                wrong.append(noise.tobytes().hex())
        return wrong

    expected = by_h5py(tmp_path / "a.h5", "x", slice(chunk[0])).tobytes()
    assert decoded(decoder, intact, size, 0x55) == expected
    # In a child: a decoder may crash.
    assert in_fork(outcomes) == []
