"""Each decode step against libhdf5 and the plugins as encoders, and against damage of every kind."""

import functools
import itertools
import struct
import zlib

import h5py
import hdf5plugin
import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.codecs.basic_codecs import ByteShuffle, Codec
from ray_h5.codecs.filter_ids import BITSHUFFLE, BLOSC, BLOSC2, DEFLATE, FLETCHER32, LZ4, LZF, NBIT, SHUFFLE, SZIP, ZSTD
from ray_h5.codecs.pipeline import ChunkDecoder, DecodeError, decodes
from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.layout import FilterPipeline, FilterStep
from ray_h5.read.library_filters import decode_by_library
from tests.hdf5.h5kit import assert_same, by_h5py, replace_once
from tests.kit.files import save
from tests.properties import few


def szip(method, pixels_per_block):
    return {"compression": "szip", "compression_opts": (method, pixels_per_block)}


STREAMS = {
    "gzip": {"compression": "gzip"},
    "lzf": {"compression": "lzf"},
    "zstd": hdf5plugin.Zstd(),
    "zstd 19": hdf5plugin.Zstd(clevel=19),
    "zstd -5": {"compression": hdf5plugin.Zstd.filter_id, "compression_opts": (2**32 - 5,)},
    "lz4": hdf5plugin.LZ4(),
    "lz4 by 512": hdf5plugin.LZ4(nbytes=512),
    "lz4 by 100": hdf5plugin.LZ4(nbytes=100),
}
BLOSCS = {
    f"blosc {cname} {clevel} {shuffle}": hdf5plugin.Blosc(cname=cname, clevel=clevel, shuffle=shuffle)
    for cname, clevel, shuffle in [
        *itertools.product(["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"], [5], [0, 1, 2]),
        *itertools.product(["lz4"], [0, 1, 9], [1]),
    ]
}
BITSHUFFLES = {
    f"bitshuffle {cname} {nelems}": hdf5plugin.Bitshuffle(cname=cname, nelems=nelems)
    for cname, nelems in itertools.product(["none", "lz4", "zstd"], [0, 8, 64, 4096])
}
SZIPS = {f"szip {method} {block}": szip(method, block) for method in ("nn", "ec") for block in (2, 8, 10, 16, 32)}
FILTERS = {**STREAMS, **BLOSCS, **BITSHUFFLES, **SZIPS, "none": {}}


def values(dtype, count, few_values, seed=0):
    dtype = np.dtype(dtype)
    stored = np.random.default_rng(seed).integers(0, 3 if few_values else 256, count * dtype.itemsize, dtype="u1")
    return stored.view(dtype)


def pipeline_of(dataset):
    plist = dataset.id.get_create_plist()
    steps = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    return FilterPipeline(tuple(FilterStep(step[0], step[3].decode(), step[2]) for step in steps))


def stored_by_libhdf5(data, **options):
    """Return the pipeline, mask and bytes of `data` (1-d) as one chunk."""
    # Files in memory: libhdf5 is the encoder here.
    with h5py.File.in_memory() as file:
        dataset = file.create_dataset("x", data=data, chunks=data.shape, **options)
        mask, stored = dataset.id.read_direct_chunk((0,))
        return pipeline_of(dataset), mask, stored


def pipeline(*steps):
    return FilterPipeline(tuple(FilterStep(number, f"filter {number}", client_data) for number, client_data in steps))


def decode(pipe, stored, nbytes, mask=0, before=0x5A):
    """Decode between bytes that must stay as they are, in memory that held `before`; None if it does not decode."""
    guard = 64
    memory = np.full(nbytes + 2 * guard, before, "u1")
    memory[:guard] = memory[guard + nbytes :] = 0xAB
    try:
        decoder = ChunkDecoder(pipe, nbytes, decode_by_library)
        decoder.decode(np.frombuffer(stored, "u1"), mask, memory[guard : guard + nbytes])
    finally:
        assert np.all(memory[:guard] == 0xAB)
        assert np.all(memory[guard + nbytes :] == 0xAB)
    return memory[guard : guard + nbytes].tobytes()


# As libhdf5 and the plugins write --------------------------------------------------------------


def takes(options, dtype, count):
    """Whether HDF5 writes such a chunk: szip is for numbers of up to eight bytes, by a block or more."""
    szip_block = options["compression_opts"][1] if options.get("compression") == "szip" else 0
    return not szip_block or (np.dtype(dtype).kind in "uif" and count >= szip_block)


# Each filter alone, and in one of the surroundings by turns: what is around it does not look at what it is.
AROUND = itertools.cycle(["shuffle", "fletcher32", "shuffle, fletcher32"])


@pytest.mark.parametrize(
    ("name", "around"),
    [case for name, around in zip(FILTERS, AROUND, strict=False) for case in ((name, ""), (name, around))],
)
def test_chunks_of_every_element_size(name, around):
    options = {**FILTERS[name], "shuffle": "shuffle" in around, "fletcher32": "fletcher32" in around}
    # Few values, that compress, and many, by turns: each type and each count has both. Half of the pairs come alone.
    for i, dtype in enumerate(["u1", "<i2", "V3", ">f4", "f8", "V300"]):
        for few_values, count in enumerate([7, 64, 100, 1300], i):
            if (few_values // 2 + bool(around)) % 2 and takes(options, dtype, count):
                data = values(dtype, count, bool(few_values % 2))
                pipe, mask, stored = stored_by_libhdf5(data, **options)
                assert decode(pipe, stored, data.nbytes, mask) == data.tobytes(), (dtype, count, few_values)


# A shape for each filter, by turns: a multiple of eight elements, an odd number, few, many blocks.
SHAPES = itertools.cycle([(4, 24), (5, 33), (3, 11), (16, 500), (5, 33)])


@pytest.mark.parametrize(("name", "chunk"), [(name, next(SHAPES)) for name in FILTERS])
def test_files_equal_h5py(tmp_path, name, chunk):
    # Two whole chunks and one that sticks out, of random bytes and of bytes that repeat, by turns.
    shape = (2 * chunk[0] + 1, chunk[1])
    options = {"chunks": chunk, "shuffle": name in STREAMS, **FILTERS[name]}
    columns = {
        f"{dtype} {few_values}": values(dtype, shape[0] * shape[1], few_values).reshape(shape)
        for dtype, few_values in [("u1", False), (">i2", True), ("f4", False), ("f8", True)]
    }
    path = save(tmp_path / "a.h5", columns, **options)
    reader = RowReader(path, threads=2)
    rows = np.random.default_rng(0).permutation(shape[0])
    for column in columns:
        assert reader.columns[column].direct
        expected = by_h5py(path, column)
        assert_same(reader.read([column])[column], expected)
        assert_same(reader.read([column], rows)[column], expected[rows])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16, 255, 256, 300])
@pytest.mark.parametrize("nbytes", [0, 1, 299, 300, 1 << 18, (1 << 18) + 1, 600_007])
def test_shuffle_of_any_length(size, nbytes):
    data = np.frombuffer(np.random.default_rng(0).bytes(nbytes), "u1")
    whole = nbytes // size * size
    shuffled = np.concatenate([data[:whole].reshape(-1, size).T.reshape(-1), data[whole:]])
    out = np.zeros(nbytes, "u1")
    ByteShuffle(FilterStep(SHUFFLE, "shuffle", (size,))).decode(shuffled, out)
    assert out.tobytes() == data.tobytes()


def plist_of(*steps):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1000,))
    setters = {DEFLATE: lambda: plist.set_deflate(4), SHUFFLE: plist.set_shuffle, FLETCHER32: plist.set_fletcher32}
    for number, parameters in steps:
        setters.get(number, lambda n=number, p=parameters: plist.set_filter(n, h5py.h5z.FLAG_OPTIONAL, p))()
    return plist


ORDERS = [
    ((FLETCHER32, ()), (LZ4, ())),
    ((FLETCHER32, ()), (SHUFFLE, ()), (ZSTD, ())),
    ((FLETCHER32, ()), (SZIP, (32, 8))),
    ((SHUFFLE, ()), (FLETCHER32, ()), (BLOSC, ())),
    ((SHUFFLE, ()), (FLETCHER32, ()), (LZF, ()), (FLETCHER32, ())),
    ((BITSHUFFLE, (0, 0)), (DEFLATE, ())),
    ((BITSHUFFLE, (64, 0)), (FLETCHER32, ()), (LZF, ()), (FLETCHER32, ())),
    ((SHUFFLE, ()), (BITSHUFFLE, (0, 2))),
    ((SHUFFLE, ()), (BITSHUFFLE, (0, 3)), (FLETCHER32, ())),
    ((SHUFFLE, ()), (BITSHUFFLE, (0, 0)), (LZ4, (256,))),
]


@pytest.mark.parametrize("dtype", [h5py.h5t.STD_I32LE, h5py.h5t.IEEE_F64LE, h5py.h5t.STD_U8LE], ids=["i4", "f8", "u1"])
@pytest.mark.parametrize("steps", ORDERS, ids=str)
def test_orders_of_filters(tmp_path, steps, dtype):
    if steps[0][0] == FLETCHER32 and steps[1][0] == SZIP and dtype.get_size() == 8:
        pytest.skip("the checksum is half a pixel: libhdf5 does not get it back either")
    data = values(dtype.dtype, 3000, few_values=True)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((3000,))
        h5py.Dataset(h5py.h5d.create(file.id, b"x", dtype, space, plist_of(*steps)))[:] = data
    reader = RowReader(tmp_path / "a.h5")
    assert_same(reader.read(["x"], slice(None, None, -1))["x"], data[::-1].copy())


# Which parameters are decoded here -------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(DEFLATE, (0,))], True),
        ([(DEFLATE, (9,))], True),
        ([(DEFLATE, (10,))], False),
        ([(DEFLATE, ())], False),
        ([(DEFLATE, (4, 4))], False),
        ([(SHUFFLE, (4,))], True),
        ([(SHUFFLE, (0,))], False),
        ([(SHUFFLE, ())], False),
        ([(SZIP, (169, 8, 32, 64))], False),
        ([(SZIP, (169, 8, 32))], False),
        ([(SZIP, (169, 8, 24, 64))], False),
        ([(SZIP, (169, 7, 32, 64))], False),
        ([(SZIP, (169, 0, 32, 64))], False),
        ([(SZIP, (169, 34, 32, 64))], False),
        ([(SZIP, (169, 8, 32, 4))], False),
        ([(SZIP, (169, 8, 32, 1025))], False),
        ([(BITSHUFFLE, (0, 4, 4))], True),
        ([(BITSHUFFLE, (0, 4, 4, 0))], True),
        ([(BITSHUFFLE, (0, 4, 4, 64, 2))], True),
        ([(BITSHUFFLE, (0, 4, 4, 0, 3, 9))], True),
        ([(BITSHUFFLE, (0, 4))], False),
        ([(BITSHUFFLE, (0, 4, 0))], False),
        ([(BITSHUFFLE, (0, 4, 4, 12))], False),
        ([(BITSHUFFLE, (0, 4, 4, 0, 1))], False),
        ([(BITSHUFFLE, (0, 4, 4, 0, 4))], False),
        ([(BLOSC, ())], True),
        ([(LZ4, ())], True),
        ([(ZSTD, ())], True),
        ([(BLOSC2, ())], False),
        ([(NBIT, ())], False),
        ([(BITSHUFFLE, (0, 4, 4)), (ZSTD, ())], True),
        ([(BITSHUFFLE, (0, 4, 4, 0, 2)), (ZSTD, ())], False),
        ([(LZ4, ()), (ZSTD, ())], False),
        ([(ZSTD, ()), (SHUFFLE, (4,))], False),
        ([(ZSTD, ()), (FLETCHER32, ())], True),
        ([(NBIT, ()), (FLETCHER32, ())], False),
        ([(FLETCHER32, ()), (NBIT, ())], False),
        ([], True),
        ([(LZF, ())], True),
        ([(SHUFFLE, (4,)), (SHUFFLE, (4,)), (LZF, ())], True),
        ([(SHUFFLE, (4,)), (DEFLATE, (4,)), (FLETCHER32, ())], True),
        ([(FLETCHER32, ()), (SHUFFLE, (4,)), (DEFLATE, (4,))], True),
        ([(DEFLATE, (4,)), (FLETCHER32, ()), (FLETCHER32, ())], False),
        ([(DEFLATE, (4,)), (DEFLATE, (4,))], False),
        ([(DEFLATE, (4,)), (SHUFFLE, (4,))], False),
        ([(32768, ())], False),
    ],
    ids=str,
)
def test_pipelines_decoded_here(steps, expected):
    assert decodes(pipeline(*steps)) is expected


def test_a_pipeline_that_is_not_decoded_here():
    with pytest.raises(DecodeError, match=r"nbit with parameters \(1, 2\) cannot be undone"):
        decode(pipeline((NBIT, (1, 2))), b"1234", 4)


def test_a_step_says_how_it_decodes():
    with pytest.raises(NotImplementedError):
        Codec(FilterStep(0, "")).decode(np.zeros(1, "u1"), np.zeros(1, "u1"))


# Streams as others may write them --------------------------------------------------------------


def zstd_frame(data, *, tells_size):
    """Return a frame of one block that is stored as it is."""
    if tells_size:
        return imagecodecs.zstd_encode(data)
    return b"\x28\xb5\x2f\xfd\x00\x58" + (len(data) << 3 | 1).to_bytes(3, "little") + data


SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"
TEXT = bytes(range(200)) + bytes(100)


@pytest.mark.parametrize(
    "stored",
    [
        zstd_frame(TEXT, tells_size=True),
        zstd_frame(TEXT, tells_size=False),
        zstd_frame(TEXT[:100], tells_size=True) + zstd_frame(TEXT[100:], tells_size=True),
        zstd_frame(TEXT[:100], tells_size=False) + zstd_frame(TEXT[100:], tells_size=True),
        SKIPPABLE + zstd_frame(TEXT, tells_size=True) + SKIPPABLE,
    ],
    ids=["size told", "size not told", "two frames", "two of both kinds", "skippable frames"],
)
def test_zstd_frames(stored):
    assert decode(pipeline((ZSTD, ())), stored, len(TEXT)) == TEXT


def bitshuffled(data, size, block, compress):
    """Encode as the filter does, with a compressor of one's own for the blocks."""
    eight = 8 * size
    in_blocks = len(data) // eight * eight
    stored = struct.pack(">QI", len(data), block)
    for at in range(0, in_blocks, block):
        part = np.frombuffer(data[at : min(at + block, in_blocks)], f"V{size}")
        packed = compress(imagecodecs.bitshuffle_encode(part, blocksize=len(part)).tobytes())
        stored += struct.pack(">I", len(packed)) + packed
    return stored + data[in_blocks:]


@pytest.mark.parametrize("nbytes", [14, 16, 1000, 70_000, 200_002])
@pytest.mark.parametrize("block", [128, 512, 8192, 98_304])
@pytest.mark.parametrize("tells_size", [True, False])
def test_bitshuffle_of_zstd_frames(nbytes, block, tells_size):
    data = values("u1", nbytes, few_values=False).tobytes()
    if not tells_size and min(nbytes, block) > 60_000:
        pytest.skip("a zstd block holds less")
    stored = bitshuffled(data, 2, block, functools.partial(zstd_frame, tells_size=tells_size))
    assert decode(pipeline((BITSHUFFLE, (0, 4, 2, 0, 3))), stored, nbytes) == data


def lz4_of_its_own_size(nbytes):
    """Return data that LZ4 makes neither smaller nor larger."""
    noise = np.random.default_rng(0).bytes(nbytes)
    for repeated in range(4, 16):
        data = (noise[:16] + noise[:repeated] + noise[16:])[:nbytes]
        if len(imagecodecs.lz4_encode(data)) == nbytes:
            return data
    raise AssertionError


@pytest.mark.parametrize("where", ["first", "last", "partial"])
def test_lz4_blocks_of_their_own_size(where):
    # The layout is lz4's, for which such a block is stored as it is; for bitshuffle it is not.
    odd = lz4_of_its_own_size(128 if where != "partial" else 64)
    unshuffled = imagecodecs.bitshuffle_decode(np.frombuffer(odd, "u1"), blocksize=len(odd)).tobytes()
    data = unshuffled + bytes(128) if where == "first" else bytes(128) + unshuffled
    stored = bitshuffled(data, 1, 128, imagecodecs.lz4_encode)
    assert decode(pipeline((BITSHUFFLE, (0, 4, 1, 0, 2))), stored, len(data)) == data


@pytest.mark.parametrize("cname", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("nelems", [0, 4096, 1 << 20])
@pytest.mark.parametrize("few_values", [True, False])
def test_bitshuffle_of_chunks_larger_than_what_is_unpacked_at_a_time(cname, nelems, few_values):
    data = values("<u2", 700_003, few_values)
    pipe, mask, stored = stored_by_libhdf5(data, **hdf5plugin.Bitshuffle(cname=cname, nelems=nelems))
    assert decode(pipe, stored, data.nbytes, mask) == data.tobytes()


def test_block_size_is_the_one_of_the_chunk():
    data = values("u1", 1000, few_values=True).tobytes()
    for block in (32, 256, 1024):
        stored = bitshuffled(data, 4, block, imagecodecs.lz4_encode)
        assert decode(pipeline((BITSHUFFLE, (0, 4, 4, 64, 2))), stored, 1000) == data


# Damage ----------------------------------------------------------------------------------------

SHUFFLED = (BITSHUFFLE, (0, 4, 4, 0, 2))
LZ4_BLOCK = imagecodecs.lz4_encode(bytes(64))
SZIP_8 = (SZIP, (141, 8, 8, 64))
SZIP_64 = (SZIP, (141, 8, 64, 64))
ZSTD_TEXT = zstd_frame(TEXT, tells_size=True)
BLOSC_TEXT = imagecodecs.blosc_encode(TEXT, compressor="lz4", typesize=4)


def lz4_chunk(total, block, *blocks):
    return struct.pack(">QI", total, block) + b"".join(struct.pack(">I", len(part)) + part for part in blocks)


# step, decoded size, what is stored, what the message says
WRONG = [
    ((ZSTD, ()), 300, ZSTD_TEXT[:-1], "the zstd stream is damaged"),
    ((ZSTD, ()), 300, ZSTD_TEXT + b"x", "the zstd stream is damaged"),
    ((ZSTD, ()), 299, ZSTD_TEXT, "the zstd stream is damaged"),
    ((ZSTD, ()), 301, ZSTD_TEXT, "expected 301 decoded bytes, found 300"),
    ((ZSTD, ()), 300, SKIPPABLE, "expected 300 decoded bytes, found 0"),
    ((BLOSC, ()), 300, BLOSC_TEXT[:15], "expected a blosc header of 16 bytes, found 15 bytes in all"),
    ((BLOSC, ()), 300, BLOSC_TEXT[:-1], r"expected \d+ stored bytes, as the blosc header says, found \d+"),
    ((BLOSC, ()), 299, BLOSC_TEXT, "expected 299 decoded bytes, the blosc header says 300"),
    ((BLOSC, ()), 300, b"\x09" + BLOSC_TEXT[1:], "the blosc stream is damaged"),
    ((LZ4, ()), 64, lz4_chunk(64, 64, LZ4_BLOCK)[:11], "expected the lz4 header of 12 bytes, found 11 bytes in all"),
    ((LZ4, ()), 64, lz4_chunk(1 << 63, 64, LZ4_BLOCK), "expected 64 decoded bytes, the lz4 header says 9223372036854"),
    ((LZ4, ()), 64, lz4_chunk(64, 0, LZ4_BLOCK), "the lz4 header says that blocks are empty"),
    ((LZ4, ()), 64, lz4_chunk(64, 64), "lz4 block 0 of 1 ends after the 12 stored bytes"),
    ((LZ4, ()), 64, lz4_chunk(64, 64, LZ4_BLOCK)[:-1], "lz4 block 1 of 1 ends after"),
    ((LZ4, ()), 128, lz4_chunk(128, 64, LZ4_BLOCK), "lz4 block 1 of 2 ends after"),
    ((LZ4, ()), 64, lz4_chunk(64, 64, b""), "expected 64 decoded bytes, found 0"),
    ((LZ4, ()), 64, lz4_chunk(64, 64, b"\xff" * 9), "the lz4 stream is damaged"),
    ((LZ4, ()), 65, lz4_chunk(65, 65, LZ4_BLOCK), "expected 65 decoded bytes, found 64"),
    ((LZ4, ()), 96, lz4_chunk(96, 65, LZ4_BLOCK, LZ4_BLOCK), "the lz4 stream is damaged"),
    (SHUFFLED, 62, lz4_chunk(62, 64, LZ4_BLOCK), "62 bytes are no whole number of elements of 4 bytes"),
    (SHUFFLED, 64, lz4_chunk(60, 64, LZ4_BLOCK), "expected 64 decoded bytes, the bitshuffle header says 60"),
    (
        SHUFFLED,
        64,
        lz4_chunk(64, 36, LZ4_BLOCK),
        "expected blocks of a multiple of 32 bytes, the bitshuffle header say",
    ),
    (SHUFFLED, 68, lz4_chunk(68, 64, LZ4_BLOCK) + b"abc", "expected 4 bytes after the last block, found 3"),
    (SHUFFLED, 64, lz4_chunk(64, 64, b"\xff" * 9), "the lz4 stream is damaged"),
    (SHUFFLED, 96, lz4_chunk(96, 64, LZ4_BLOCK, b"x" * 32), "the lz4 stream is damaged"),
    (SHUFFLED, 96, lz4_chunk(96, 96, LZ4_BLOCK), "expected 96 decoded bytes, found 64"),
    ((BITSHUFFLE, (0, 4, 4)), 64, bytes(63), "expected 64 bit-shuffled bytes, found 63"),
    (
        (BITSHUFFLE, (0, 4, 4, 0, 3)),
        128,
        lz4_chunk(128, 64, zstd_frame(bytes(60), tells_size=False), zstd_frame(bytes(68), tells_size=False)),
        "expected 64 decoded bytes, found 60",
    ),
    ((BITSHUFFLE, (0, 4, 4, 0, 3)), 64, lz4_chunk(64, 64, ZSTD_TEXT), "the zstd stream is damaged"),
    (SZIP_8, 64, b"\x40\0\0", "expected 64 decoded bytes, szip says 64"),
    (SZIP_8, 64, b"\x41\0\0\0" + bytes(99), "expected 64 decoded bytes, szip says 65"),
    (SZIP_8, 64, b"\x40\0\0\0", "expected 64 decoded bytes, szip says 64"),
    (SZIP_64, 60, b"\x3c\0\0\0" + bytes(99), "60 bytes are no whole number of szip pixels"),
    ((FLETCHER32, ()), 4, b"abcd" + bytes(4), "the checksum is wrong"),
    ((FLETCHER32, ()), 4, b"abcd", "expected 4 bytes and a checksum of 4, found 4 in all"),
    ((SHUFFLE, (4,)), 8, b"1234567", "expected 8 shuffled bytes, found 7"),
    ((SHUFFLE, (0,)), 8, b"12345678", "shuffle"),  # libhdf5 refuses it as well: "invalid shuffle parameters"
    ((DEFLATE, (4,)), 300, zlib.compress(TEXT)[:-1], "the deflate stream is damaged"),
]


@pytest.mark.parametrize(("step", "nbytes", "stored", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_said(step, nbytes, stored, reason):
    with pytest.raises(DecodeError, match=reason):
        decode(pipeline(step), stored, nbytes)


COMPRESSING = [name for name in FILTERS if "none" not in name and name != "blosc lz4 0 1"]


@pytest.mark.parametrize("name", COMPRESSING)
def test_streams_that_hold_more_than_the_chunk(name):
    # A bomb of a few hundred or thousand bytes.
    pipe, mask, stored = stored_by_libhdf5(np.zeros(300_000, "u1"), **FILTERS[name])
    assert mask == 0
    with pytest.raises(DecodeError):
        decode(pipe, stored, 1000)


@pytest.mark.parametrize("name", COMPRESSING)
def test_streams_that_hold_less_than_the_chunk(name):
    for dtype in ("u1", "f4", "f8"):
        data = values(dtype, 1000, few_values=True)
        pipe, mask, stored = stored_by_libhdf5(data, **FILTERS[name])
        with pytest.raises(DecodeError):
            decode(pipe, stored, data.nbytes + 8, mask)


DAMAGED = {
    **FILTERS,
    "shuffle": {"shuffle": True},
    "gzip, shuffle": {"compression": "gzip", "shuffle": True},
    "zstd, shuffle, fletcher32": {**hdf5plugin.Zstd(), "shuffle": True, "fletcher32": True},
}


@functools.cache
def intact(name, dtype, count, few_values):
    data = values(dtype, count, few_values)
    return *stored_by_libhdf5(data, **DAMAGED[name]), data.nbytes


@st.composite
def damages(draw, stored):
    """Flip bits, cut, extend, replace and insert bytes, and write numbers where headers have them."""
    damaged = bytearray(stored)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(damaged) - 1, 0)) | st.integers(0, min(len(damaged), 24)))
        kind = draw(st.sampled_from(["flip", "cut", "extend", "replace", "insert", "number"]))
        some = draw(st.binary(min_size=1, max_size=8))
        if kind == "flip":
            damaged[at : at + 1] = bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in damaged[at : at + 1])
        elif kind == "cut":
            del damaged[at:]
        elif kind == "extend":
            damaged += some
        elif kind == "replace":
            damaged[at : at + len(some)] = some
        elif kind == "insert":
            damaged[at:at] = some
        else:
            number = draw(st.sampled_from([0, 1, 7, 255, 65_536, 2**31 - 1, 2**31, 2**32 - 1]))
            damaged[at : at + 4] = struct.pack(draw(st.sampled_from([">I", "<I"])), number)
    return bytes(damaged)


@pytest.mark.parametrize("family", sorted({name.split()[0].rstrip(",") for name in DAMAGED}))
@few(15)
@given(data=st.data())
def test_damage_is_found_or_harmless(family, data):
    name = data.draw(st.sampled_from([name for name in DAMAGED if name.startswith(family)]))
    case = data.draw(st.tuples(st.sampled_from(["u1", "f4", "f8"]), st.sampled_from([64, 100, 1300]), st.booleans()))
    pipe, mask, stored, nbytes = intact(name, *case)
    damaged = data.draw(damages(stored))
    outcomes = set()
    for before in (0x00, 0xFF):
        try:
            outcomes.add(decode(pipe, damaged, nbytes, mask, before))
        except DecodeError as exc:
            outcomes.add(str(exc))
    # Not a byte of what comes out was in memory before.
    assert len(outcomes) == 1


def test_a_compressor_that_blosc_does_not_know(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(64), chunks=(16,), **hdf5plugin.Blosc(cname="lz4"))
        parameters = file["x"].id.get_create_plist().get_filter(0)[2]
    assert_same(RowReader(path).read(["x"])["x"], np.arange(64))
    replace_once(path, np.array(parameters, "<u4").tobytes(), np.array([*parameters[:6], 255], "<u4").tobytes())
    with pytest.raises(OSError, match="filter returned failure"):
        by_h5py(path, "x")
    with pytest.raises(CorruptChunkError, match="libhdf5 cannot decode it"):
        RowReader(path).read(["x"])
