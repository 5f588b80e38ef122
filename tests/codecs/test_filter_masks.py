"""Chunks as files may have them: filters skipped, data damaged, pipelines of every kind."""

import ctypes
import zlib
from itertools import product

import h5py
import hdf5plugin
import imagecodecs
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.codecs.filter_ids import DEFLATE, FLETCHER32, LZF, SHUFFLE
from ray_h5.codecs.pipeline import DecodeError, Fletcher32
from ray_h5.errors import CodecUnavailableError, CorruptChunkError
from ray_h5.manifest.layout import FilterStep
from ray_h5.rows.row_kind_options import Groups
from tests.hdf5.h5kit import (
    assert_same,
    by_h5py,
    dataset_with,
    libhdf5,
    plist_with,
    random_rows,
    run_python,
    stored_chunks,
)

# Encoders of our own: what is written must not depend on what is tested -------------------------


def fletcher32(data):
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").tolist()
    low = high = 0
    for word in words:
        low = (low + word) % 65535
        high = (high + low) % 65535
    # Sums that end around to zero are written as 65535, unless nothing but zeros was added.
    low, high = (low or 65535, high or 65535) if any(words) else (0, 0)
    return (high << 16 | low).to_bytes(4, "little")


def shuffle(data, size):
    whole = len(data) // size * size
    return np.frombuffer(data[:whole], "u1").reshape(-1, size).T.tobytes() + data[whole:]


def encode(data, steps, mask, itemsize):
    for i, step in enumerate(steps):
        if mask >> i & 1:
            continue
        if step == DEFLATE:
            data = zlib.compress(data)
        elif step == LZF:
            data = imagecodecs.lzf_encode(data)
        elif step == SHUFFLE:
            data = shuffle(data, itemsize)
        else:
            data += fletcher32(data)
    return data


# Filter masks -----------------------------------------------------------------------------------

PIPELINES = [
    (DEFLATE,),
    (LZF,),
    (SHUFFLE,),
    (FLETCHER32,),
    (SHUFFLE, DEFLATE),
    (SHUFFLE, LZF),
    (DEFLATE, FLETCHER32),
    (FLETCHER32, DEFLATE),
    (SHUFFLE, DEFLATE, FLETCHER32),
    (SHUFFLE, LZF, FLETCHER32),
    (FLETCHER32, SHUFFLE, LZF),
    (FLETCHER32, SHUFFLE, FLETCHER32, DEFLATE),
]


@pytest.mark.parametrize("chunk", [(4, 6), (4, 3), (4, 8)], ids=["rows", "split", "larger"])
@pytest.mark.parametrize("steps", PIPELINES, ids=str)
def test_every_mask_in_a_file(tmp_path, steps, chunk):
    # One chunk row a mask, and one more with bits that mean nothing.
    masks = [*range(1 << len(steps)), (1 << len(steps)), 0xFFFFFFFF]
    rows = 4 * len(masks)
    values = np.arange(rows * 8, dtype="<i4").reshape(rows, 8) * 1_000_003
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plist = plist_with(chunk, steps)
        space = h5py.h5s.create_simple((rows, 6), (h5py.h5s.UNLIMITED,) * 2 if chunk[1] > 6 else (rows, 6))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, plist)
        for (i, mask), column in product(enumerate(masks), range(0, 6, chunk[1])):
            data = values[4 * i : 4 * i + 4, column : column + chunk[1]].tobytes()
            dataset.write_direct_chunk((4 * i, column), encode(data, steps, mask, 4), filter_mask=mask)
    reader = RowReader(tmp_path / "a.h5")
    order = np.random.default_rng(0).permutation(rows)
    assert_same(by_h5py(tmp_path / "a.h5", "x"), values[:, :6].copy())
    assert_same(reader.read(["x"])["x"], values[:, :6].copy())
    assert_same(reader.read(["x"], order)["x"], values[order, :6])


def partial_chunks_unfiltered(plist):
    library = libhdf5()
    if library is None or not hasattr(library, "H5Pset_chunk_opts"):
        pytest.skip("this libhdf5 does not offer H5Pset_chunk_opts")
    dont_filter_partial_chunks = 2
    assert library.H5Pset_chunk_opts(ctypes.c_int64(plist.id), dont_filter_partial_chunks) == 0
    return plist


@pytest.mark.parametrize("chunk", [(4, 6), (4, 5), (3, 4)])
@pytest.mark.parametrize("steps", [(DEFLATE,), (SHUFFLE, DEFLATE), (SHUFFLE,), (LZF,), (SHUFFLE, DEFLATE, FLETCHER32)])
def test_partial_chunks_may_be_unfiltered(tmp_path, steps, chunk):
    plist = partial_chunks_unfiltered(plist_with(chunk, steps))
    columns = {f"{dtype} {number}": values for dtype in ("i4", "S4")
               for number, values in enumerate([np.zeros((10, 6), dtype), random_rows((10, 6), dtype)])}  # fmt: skip
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for name, values in columns.items():
            dataset_with(file, name, (10, 6), plist, h5py.h5t.py_create(values.dtype))[:] = values
    reader = RowReader(tmp_path / "a.h5")
    for name, values in columns.items():
        assert_same(reader.read([name])[name], values)
        assert_same(reader.read([name], [9, 0, 9])[name], values[[9, 0, 9]])


@pytest.mark.parametrize("size", [None, 95])
def test_partial_chunks_are_unfiltered_where_libhdf5_lists_the_chunks_wrongly(tmp_path, size):
    values = random_rows((10, 6), "i4")
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        plist, type_id = partial_chunks_unfiltered(plist_with((4, 6), (DEFLATE,))), h5py.h5t.STD_I32LE
        space = h5py.h5s.create_simple((10, 6), (10, h5py.h5s.UNLIMITED))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", type_id, space, dcpl=plist))
        dataset[:] = values
        if size is not None:
            dataset.id.write_direct_chunk((8, 0), bytes(size))
    reader = RowReader(tmp_path / "a.h5")
    assert_same(reader.read(["x"], [7, 0])["x"], values[[7, 0]])
    if size is None:
        assert_same(reader.read(["x"])["x"], values)
    else:
        with pytest.raises(CorruptChunkError, match="chunk 2"):
            reader.read(["x"])


# Damage -----------------------------------------------------------------------------------------

FILTERS = {
    "raw": {},
    "gzip": {"compression": "gzip"},
    "lzf": {"compression": "lzf"},
    "shuffle": {"shuffle": True},
    "shuffle+gzip": {"compression": "gzip", "shuffle": True},
    "fletcher32": {"fletcher32": True},
    "gzip+fletcher32": {"compression": "gzip", "fletcher32": True},
}
CHUNK_BYTES = 4 * 6 * 4
WHOLE = bytes(range(CHUNK_BYTES))

# filters, what is stored in place of a chunk, what the message says
STORED = [
    ("raw", WHOLE[:-1], "expected 96 bytes stored without filters, found 95"),
    ("raw", WHOLE + b"x", "expected 96 bytes stored without filters, found 97"),
    ("gzip", zlib.compress(WHOLE[:-1]), "expected 96 decoded bytes, found 95"),
    ("gzip", zlib.compress(b""), "expected 96 decoded bytes, found 0"),
    ("gzip", zlib.compress(WHOLE + b"x"), "the deflate stream is damaged"),
    ("gzip", zlib.compress(bytes(1_000_000)), "the deflate stream is damaged"),
    ("gzip", zlib.compress(WHOLE)[:-4], "the deflate stream is damaged"),
    ("gzip", zlib.compress(WHOLE)[:-1] + b"\0", "the deflate stream is damaged"),
    ("gzip", b"\0", "the deflate stream is damaged"),
    ("gzip", WHOLE, "the deflate stream is damaged"),
    ("lzf", imagecodecs.lzf_encode(WHOLE[:-1]), "expected 96 decoded bytes, found 95"),
    ("lzf", imagecodecs.lzf_encode(WHOLE + b"x"), "the lzf stream is damaged"),
    ("lzf", imagecodecs.lzf_encode(bytes(1_000_000)), "the lzf stream is damaged"),
    ("lzf", imagecodecs.lzf_encode(WHOLE)[:-1], "the lzf stream is damaged"),
    ("shuffle", WHOLE[:-1], "expected 96 shuffled bytes, found 95"),
    ("shuffle", WHOLE + b"x", "expected 96 shuffled bytes, found 97"),
    ("shuffle+gzip", zlib.compress(WHOLE[:-4]), "expected 96 decoded bytes, found 92"),
    ("fletcher32", WHOLE + b"\0\0\0\0", "the checksum is wrong"),
    ("fletcher32", WHOLE, "expected 96 bytes and a checksum of 4, found 96 in all"),
    ("fletcher32", b"abc", "expected 96 bytes and a checksum of 4, found 3 in all"),
    ("gzip+fletcher32", b"abc", "expected a checksum of 4 bytes, found 3"),
    ("gzip+fletcher32", b"\0\0\0\0", "the deflate stream is damaged"),
    ("gzip+fletcher32", zlib.compress(WHOLE) + b"\0\0\0\0", "the checksum is wrong"),
]


@pytest.mark.parametrize("width", [6, 12], ids=["rows", "split"])
@pytest.mark.parametrize(("filters", "stored", "reason"), STORED, ids=lambda value: str(value)[:30])
def test_damaged_chunk(tmp_path, filters, stored, reason, width):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (40, width), "i4", chunks=(4, 6), **FILTERS[filters])
        dataset[:8] = dataset[12:] = 1
        dataset.id.write_direct_chunk((8, 0), stored)
    damaged = next(chunk for chunk in stored_chunks(path, "x") if chunk.chunk_offset == (8, 0))
    reader = RowReader(path)
    with pytest.raises(CorruptChunkError) as caught:
        reader.read(["x"], [0, 9, 39])
    begin, end = damaged.byte_offset, damaged.byte_offset + len(stored) - 1
    assert (
        str(caught.value)
        .removeprefix("s3:/")
        .startswith(
            f"{path}: column 'x', chunk {2 * width // 6} (rows 8 to 11, bytes {begin} to {end} of the file): {reason}"
        )
    )
    assert "restore it from a copy" in str(caught.value)
    # The rest stays readable, by the same reader.
    assert reader.read(["x"], [7, 12, 39])["x"].tolist() == [[1] * width] * 3


# Pipelines --------------------------------------------------------------------------------------


# name of the pipeline, how it is set, how it is shown
BY_LIBRARY = [
    ("deflate+deflate", lambda plist: (plist.set_deflate(4), plist.set_deflate(1))),
    ("deflate+shuffle", lambda plist: (plist.set_deflate(4), plist.set_shuffle())),
    ("deflate+fletcher32+deflate", lambda plist: (plist.set_deflate(4), plist.set_fletcher32(), plist.set_deflate(1))),
    ("scaleoffset", lambda plist: plist.set_scaleoffset(h5py.h5z.SO_INT, 0)),
    ("nbit", lambda plist: plist.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_OPTIONAL, ())),
    ("lz4+lz4", lambda plist: [plist.set_filter(hdf5plugin.LZ4.filter_id) for _ in range(2)]),
]


@pytest.mark.parametrize(("shown", "filters"), BY_LIBRARY, ids=[name for name, _ in BY_LIBRARY])
def test_pipelines_that_libhdf5_decodes(tmp_path, shown, filters):
    plist = plist_with((4, 8))
    filters(plist)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset_with(file, "x", (21, 8), plist)[:] = np.arange(168).reshape(21, 8)
    reader = RowReader(tmp_path / "a.h5", threads=2)
    for rows in (slice(None), [20, 0, 3, 20], slice(None, None, -5)):
        assert_same(reader.read(["x"], rows)["x"], by_h5py(tmp_path / "a.h5", "x", rows))
    assert reader.columns["x"].direct
    assert str(reader.columns["x"].pipeline) == shown
    assert reader.stats.chunks_decoded > 0


@pytest.mark.slow
def test_filters_of_hdf5plugin_need_no_import_by_the_user(tmp_path):
    child = run_python(
        "import sys, numpy as np\n"
        "if sys.argv[2] == 'write':\n"
        "    import h5py, hdf5plugin as hp\n"
        "    steps = {'blosc': hp.Blosc(), 'zstd': hp.Zstd(), 'lz4': hp.LZ4(), 'bitshuffle': hp.Bitshuffle(),\n"
        "             'blosc2': hp.Blosc2()}\n"
        "    with h5py.File(sys.argv[1], 'w') as file:\n"
        "        for name, step in steps.items():\n"
        "            values = np.arange(4000, dtype='f4').reshape(100, 40)\n"
        "            file.create_dataset(name, data=values, chunks=(30, 40), **step)\n",
        str(tmp_path / "a.h5"),
        "write",
    )
    assert child.returncode == 0, child.stderr
    child = run_python(
        "import sys, numpy as np\n"
        "from ray_h5 import RowReader\n"
        "reader = RowReader(sys.argv[1])\n"
        "for name, values in reader.read(list(reader.columns), [99, 0, 31, 30]).items():\n"
        "    assert str(reader.columns[name].pipeline) == name, reader.columns[name]\n"
        "    assert np.array_equal(values, np.arange(4000, dtype='f4').reshape(100, 40)[[99, 0, 31, 30]]), name\n"
        "    print(name)",
        str(tmp_path / "a.h5"),
    )
    assert child.returncode == 0, child.stderr
    assert sorted(child.stdout.split()) == ["bitshuffle", "blosc", "blosc2", "lz4", "zstd"]


def test_unknown_filter_is_named_before_rows_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset_with(file, "x", (8,), plist_with((4,), (31999,)))
        file["ok"] = np.arange(8)
    reader = RowReader(tmp_path / "a.h5")
    with pytest.raises(CodecUnavailableError) as caught:
        reader.column("x")
    for part in ("a.h5: column 'x'", "filter 31999", "hdf5plugin", "Install", "HDF5_PLUGIN_PATH"):
        assert part in str(caught.value)
    assert list(reader.columns) == ["ok"]
    assert isinstance(reader.layout.refused["x"], CodecUnavailableError)
    assert reader.read(["ok"], [7])["ok"].tolist() == [7]


# Steps ------------------------------------------------------------------------------------------


def as_array(data):
    return np.frombuffer(data, "u1")


@pytest.mark.parametrize("length", [1, 2, 3, 4, 255, 256, 100_001])
@pytest.mark.parametrize("value", [None, 0, 0xFF])
def test_fletcher32(length, value):
    data = bytes([value]) * length if value is not None else np.random.default_rng(0).bytes(length)
    stored = bytearray(data + fletcher32(data))
    out = np.zeros(length, "u1")
    step = Fletcher32(FilterStep(FLETCHER32, "fletcher32"))
    step.decode(as_array(bytes(stored)), out)
    assert out.tobytes() == data
    stored[length // 2] ^= 1
    with pytest.raises(DecodeError, match=r"the checksum is wrong: expected 0x[0-9a-f]{8}, found 0x[0-9a-f]{8}"):
        step.decode(as_array(bytes(stored)), out)


def test_raw_chunks_that_lie_in_the_file_the_other_way_round(tmp_path):
    values = random_rows((60, 3), "i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (60, 3), "i4", chunks=(5, 3))
        for row in range(55, -1, -5):
            dataset[row : row + 5] = values[row : row + 5]
            file.flush()
    assert np.diff([chunk.byte_offset for chunk in stored_chunks(tmp_path / "a.h5", "x")]).max() < 0
    reader = RowReader(tmp_path / "a.h5")
    for rows in (slice(None), slice(7, 41), [0, 12, 13, 50, 59], [59, 3, 3, 20]):
        assert_same(reader.read(["x"], rows)["x"], values[rows])
        out = {"x": np.zeros((len(values[rows]), 3), "f8")}
        reader.read_into(out, rows)
        assert_same(out["x"], values[rows].astype("f8"))


@pytest.mark.parametrize(("chunks", "stored"), [((3, 2), True), ((3, 2), False), ((3, 1), True)])
def test_a_last_chunk_without_filters_holds_its_rows_alone(tmp_path, chunks, stored):
    """As h5py, we read it; what lacks rows is an error."""
    values = np.arange(10, dtype="i4").reshape(5, 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("g/x", (5, 2), "i4", chunks=chunks)
        for row in (0, 3):
            for column in range(0, 2, chunks[1]):
                part = values[row : row + 3, column : column + chunks[1]][: None if stored or not row else 1]
                dataset.id.write_direct_chunk((row, column), np.ascontiguousarray(part).tobytes())
    for options, name in (({}, "g/x"), ({"rows": Groups("g")}, "x")):
        reader = RowReader(tmp_path / "a.h5", **options)
        if stored:
            assert np.array_equal(reader.read([name])[name].reshape(5, 2), values)
            assert np.array_equal(RowReader(tmp_path / "a.h5").read(["g/x"], [4, 1])["g/x"], values[[4, 1]])
        else:
            with pytest.raises(CorruptChunkError, match="bytes stored without filters, found"):
                reader.read([name])
