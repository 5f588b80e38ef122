"""Chunks that libhdf5 would read past or leave half empty are refused before it gets them."""

import bz2
import zlib

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import CorruptChunkError, CorruptFileError
from tests.hdf5.h5kit import assert_same, by_h5py, dataset_with, overwrite, plist_with, random_rows

DATA = np.arange(64, dtype="<i4").reshape(4, 16) * 1_000_003
RAW = DATA.tobytes()
FILTERS = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
    "scaleoffset": {"scaleoffset": 0},
    "scaleoffset, gzip": {"scaleoffset": 0, "compression": "gzip"},
    "bzip2": hdf5plugin.BZip2(),
}
USER_BLOCKS = [0, 512]


def scaleoffset_of(data):
    with h5py.File.in_memory() as file:
        dataset = file.create_dataset("x", data=data, chunks=data.shape, scaleoffset=0)
        return dataset.id.read_direct_chunk((0,) * data.ndim)[1]


@pytest.mark.parametrize("user_block", USER_BLOCKS)
@pytest.mark.parametrize("name", FILTERS)
def test_whole_chunks_are_let_through(tmp_path, name, user_block):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=user_block) as file:
        for column, data in {
            "few": np.random.default_rng(0).integers(0, 5, (23, 6)).astype("i4"),
            "many": random_rows((23, 6), "i4"),
            "same": np.full((23, 6), 7, "i4"),
            "wide": random_rows((23, 6), "i8"),
        }.items():
            file.create_dataset(column, data=data, chunks=(4, 4), **FILTERS[name])
            file.create_dataset(f"{column} partly", (23, 6), data.dtype, chunks=(4, 4), **FILTERS[name])[4:9] = data[
                4:9
            ]
    reader = RowReader(path)
    for column in reader.columns:
        for rows in (slice(None), [22, 3, 3]):
            assert_same(reader.read([column], rows)[column], by_h5py(path, column, rows))


PACKED = scaleoffset_of(DATA)

# filters as they are applied, what is stored, what the message says
BAD = {
    "short": ({}, RAW[:-4], "expected 256 (bytes stored without filters|stored bytes), found 252"),
    "short stream": (FILTERS["gzip"], zlib.compress(RAW[:-4]), "expected 256 decoded bytes, found 252"),
    "damaged stream": (FILTERS["gzip"], b"??" + zlib.compress(RAW)[2:], "the deflate stream is damaged"),
    "short shuffle": ({"shuffle": True}, RAW[:-4], "expected 256 (stored|shuffled) bytes, found 252"),
    "no checksum": (FILTERS["fletcher32"], b"abc", "expected 260 stored bytes|expected 256 bytes and a checksum"),
    "less than a checksum": (FILTERS["gzip, shuffle, fletcher32"], b"abc", "expected (more than 4|a checksum of 4)"),
    "deflate without its end": (
        FILTERS["scaleoffset, gzip"],
        zlib.compress(PACKED)[:-2],
        "the deflate stream ends early",
    ),
    "bzip2 cut": (FILTERS["bzip2"], bz2.compress(RAW)[:-3], "the bzip2 stream ends early"),
    "damaged bzip2": (FILTERS["bzip2"], b"??" + bz2.compress(RAW)[2:], "the bzip2 stream is damaged"),
    "short bzip2": (FILTERS["bzip2"], bz2.compress(RAW[:-4]), "expected 256 decoded bytes, found 252"),
    "scaleoffset cut": (FILTERS["scaleoffset"], PACKED[:-9], r"expected \d+ bytes of scaleoffset, found \d+"),
    "scaleoffset cut in its header": (FILTERS["scaleoffset"], PACKED[:20], "expected a scaleoffset header"),
    "scaleoffset of 33 bits": (FILTERS["scaleoffset"], b"\x21\0\0\0" + PACKED[4:], ".* at most 32 bits"),
}


@pytest.mark.parametrize("user_block", USER_BLOCKS)
@pytest.mark.parametrize("why", BAD)
def test_chunks_that_are_refused(tmp_path, why, user_block):
    filters, stored, message = BAD[why]
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=user_block) as file:
        dataset = file.create_dataset("x", (12, 16), "i4", chunks=(4, 16), **filters)
        dataset.id.write_direct_chunk((4, 0), stored)
    reader = RowReader(tmp_path / "a.h5")
    with pytest.raises(CorruptChunkError, match=rf"column 'x', chunk 1 \(rows 4 to 7.*: {message}"):
        reader.read(["x"])
    assert not reader.read(["x"], [0, 3])["x"].any(), "the others can be read"


SHUFFLE, DEFLATE = 2, 1


def shuffled(data):
    whole = len(data) // 4 * 4
    return np.frombuffer(data[:whole], "u1").reshape(-1, 4).T.tobytes() + data[whole:]


GOES_ON = {
    "damaged stream": (b"??", "the deflate stream is damaged"),
    "too long for its chunk": (shuffled(zlib.compress(bytes(300))), "expected 256 decoded bytes, found 300"),
}


@pytest.mark.parametrize("why", GOES_ON)
def test_pipelines_that_go_on_after_deflating(tmp_path, why):
    stored, message = GOES_ON[why]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = dataset_with(file, "x", (8, 16), plist_with((4, 16), (DEFLATE, SHUFFLE)))
        dataset[:4] = DATA
        dataset.id.write_direct_chunk((4, 0), stored)
    reader = RowReader(tmp_path / "a.h5")
    assert_same(reader.read(["x"], slice(4))["x"], DATA)
    with pytest.raises(CorruptChunkError, match=message):
        reader.read(["x"])


def test_a_shuffle_without_its_element_size(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset_with(file, "x", (4, 16), plist_with((4, 16), (DEFLATE, SHUFFLE)))[:] = DATA
    # The message of a filter: id, length of the name, flags, number of parameters, name, parameters.
    at = path.read_bytes().index(b"shuffle\0") + 8
    overwrite(path, at, bytes(4))
    with pytest.raises(CorruptChunkError, match=r"shuffle with parameters \(0,\) cannot be undone"):
        RowReader(path).read(["x"])


def test_skipped_filters_are_not_undone(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = dataset_with(file, "x", (12, 16), plist_with((4, 16), (DEFLATE, SHUFFLE)))
        dataset.id.write_direct_chunk((0, 0), RAW, filter_mask=3)
        dataset.id.write_direct_chunk((4, 0), zlib.compress(RAW), filter_mask=2)
        dataset.id.write_direct_chunk((8, 0), shuffled(RAW), filter_mask=1)
    assert_same(RowReader(tmp_path / "a.h5").read(["x"])["x"], np.tile(DATA, (3, 1)))


@pytest.mark.parametrize("compressed", [True, False])
def test_checksums_of_old_versions(tmp_path, compressed):
    # Before 1.6.3, each half of the sum came out the other way round on little-endian machines.
    filters = FILTERS["gzip, shuffle, fletcher32"] if compressed else FILTERS["fletcher32"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", data=DATA, chunks=(4, 16), **filters)
        _, stored = dataset.id.read_direct_chunk((0, 0))
        body, (a, b, c, d) = stored[:-4], stored[-4:]
        assert len({a, b, c, d}) > 1
        dataset.id.write_direct_chunk((0, 0), body + bytes([b, a, d, c]))
        for name, wrong in (("rotated", [c, d, a, b]), ("reversed", [d, c, b, a]), ("half", [b, a, c, d])):
            file.create_dataset(name, (4, 16), "i4", chunks=(4, 16), **filters)
            file[name].id.write_direct_chunk((0, 0), body + bytes(wrong))
    assert_same(RowReader(tmp_path / "a.h5").read(["x"])["x"], by_h5py(tmp_path / "a.h5", "x"))
    for name in ("rotated", "reversed", "half"):
        with pytest.raises(OSError, match=r"checksum|filter"):
            by_h5py(tmp_path / "a.h5", name)
        with pytest.raises(CorruptChunkError, match="the checksum is wrong"):
            RowReader(tmp_path / "a.h5").read([name])


def test_a_checksum_behind_a_pipeline_that_goes_on(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset_with(file, "x", (4, 16), plist_with((4, 16), (DEFLATE, SHUFFLE, 3)))[:] = DATA
    reader = RowReader(tmp_path / "a.h5")
    assert_same(reader.read(["x"])["x"], DATA)


def bits(type_id, precision, offset=0):
    type_id = type_id.copy()
    type_id.set_precision(precision)
    type_id.set_offset(offset)
    return type_id


def compound(size, **members):
    made = h5py.h5t.create(h5py.h5t.COMPOUND, size)
    for name, (offset, type_id) in members.items():
        made.insert(name.encode(), offset, type_id)
    return made


TWENTY, THIRTEEN = bits(h5py.h5t.STD_I32LE, 20), bits(h5py.h5t.STD_U16BE, 13, 2)
THREE_LETTERS = h5py.h5t.C_S1.copy()
THREE_LETTERS.set_size(3)
NBIT = {  # the type, and the bits that are kept of a value
    "20 bits": (TWENTY, 20),
    "all bits": (h5py.h5t.STD_I32LE, 32),
    "letters": (THREE_LETTERS, 24),
    "compound": (compound(16, a=(0, TWENTY), b=(6, THIRTEEN), c=(9, THREE_LETTERS)), 20 + 13 + 24),
    "compound of an array": (compound(14, a=(0, h5py.h5t.array_create(TWENTY, (3,)))), 60),
}


def nbit_file(path, type_id, *, deflated=False):
    """Write a chunk of 5 x 7 zeros, of two; return the parameters of nbit and what was stored."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((5, 7))
    plist.set_filter(5, 0, ())
    if deflated:
        plist.set_deflate(4)
    with h5py.File(path, "w") as file:
        dataset = dataset_with(file, "x", (10, 7), plist, type_id)
        dataset[:5] = np.zeros((5, 7), dataset.dtype)
        _, stored = dataset.id.read_direct_chunk((0, 0))
        return dataset.id.get_create_plist().get_filter(0)[2], stored


@pytest.mark.parametrize("name", NBIT)
def test_nbit_that_is_whole_and_that_is_cut(tmp_path, name):
    path, (type_id, kept) = tmp_path / "a.h5", NBIT[name]
    _, stored = nbit_file(path, type_id)
    # As text: what lies between the members of a compound is nobody's.
    assert str(RowReader(path).read(["x"], slice(5))["x"]) == str(by_h5py(path, "x", slice(5)))
    least = -(-35 * kept // 8)
    with h5py.File(path, "r+") as file:
        file["x"].id.write_direct_chunk((5, 0), stored[: least - 1])
    with pytest.raises(
        CorruptChunkError, match=rf"chunk 1 \(rows 5 to 9.*: expected {least} bytes of nbit, found {least - 1}"
    ):
        RowReader(path).read(["x"])


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (2, 36, "expected nbit of 140 bytes, found 36 values of 4 bytes"),
        (3, 9, "cannot be undone"),
        (3, 3, "cannot be undone"),
        (6, 33, "cannot be undone"),
    ],
)
def test_parameters_of_nbit_that_are_damaged(tmp_path, number, value, message):
    path = tmp_path / "a.h5"
    parameters, _ = nbit_file(path, TWENTY)
    as_stored = np.array(parameters, "<u4").tobytes()
    overwrite(path, path.read_bytes().index(as_stored) + 4 * number, value.to_bytes(4, "little"))
    with pytest.raises(CorruptChunkError, match=message):
        RowReader(path).read(["x"])


TEXTS = np.dtype([("number", "i4"), ("text", h5py.string_dtype())])


@pytest.mark.parametrize("user_block", USER_BLOCKS)
@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize(
    ("dtype", "item_bytes"),
    [("f4", 4), ("S4", 4), (">i4", 4), (h5py.string_dtype(), 16), (h5py.vlen_dtype("i4"), 16), (TEXTS, 20)],
    ids=["f4", "S4", ">i4", "strings", "lists", "compound"],
)
def test_an_edge_chunk_that_is_as_large_as_if_it_had_no_filters(tmp_path, dtype, item_bytes, options, user_block):
    # libhdf5 inflates the short stream in it, and returns what was in its buffer after that.
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=user_block) as file:
        dataset = file.create_dataset("x", (1500,), dtype, chunks=(1000,), **options)
        if item_bytes == 4:
            dataset[:] = np.arange(1500).astype(dtype)
        short = zlib.compress(bytes(40))
        dataset.id.write_direct_chunk((1000,), short + bytes(1000 * item_bytes - len(short)))
    with h5py.File(path) as file:
        expected = file["x"][:1000]
    reader = RowReader(path)
    assert list(map(repr, reader.read(["x"], slice(1000))["x"])) == list(map(repr, expected))
    for rows in ([1200], slice(None)):
        with pytest.raises(CorruptChunkError, match=r"chunk 1 \(rows 1000 to 1499"):
            reader.read(["x"], rows)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("name", ["scaleoffset", "scaleoffset, gzip"])
def test_parameters_of_scaleoffset_that_are_damaged(tmp_path, name, number):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=DATA, chunks=DATA.shape, **FILTERS[name])
        parameters = dataset.id.get_create_plist().get_filter(0)[2]
    as_stored = np.array(parameters, "<u4").tobytes()
    overwrite(path, path.read_bytes().index(as_stored) + 4 * number, b"\0\0\0\0")
    with pytest.raises(CorruptChunkError, match=r"expected scaleoffset of \d+ bytes, found the parameters"):
        RowReader(path).read(["x"])


def test_parameters_of_szip_that_are_damaged(tmp_path):
    """With some, libhdf5 passes on memory that libaec did not fill: other values at each read, with what was there."""
    path, values = tmp_path / "a.h5", (np.arange(24 * 32).reshape(24, 32) // 7).astype("i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(4, 32), compression="szip")
        as_stored = np.array(dataset.id.get_create_plist().get_filter(0)[2], "<u4").tobytes()
    stored = path.read_bytes()
    at, outcomes = stored.index(as_stored), set()

    def read(filler):
        left = [np.full(size, filler, "u1") for size in range(100, 60000, 640)]
        del left  # its memory is used again
        try:
            return RowReader(path).read(["x"])["x"].tobytes()
        except (CorruptChunkError, CorruptFileError) as exc:
            return type(exc)

    for bit in range(8 * len(as_stored)):
        overwrite(path, at + bit // 8, bytes([stored[at + bit // 8] ^ 1 << bit % 8]))
        found = read(65)
        assert found == read(66), f"bit {bit}"
        outcomes.add(found if isinstance(found, type) else found == values.tobytes())
        overwrite(path, at, as_stored)
    assert read(65) == values.tobytes()
    assert CorruptChunkError in outcomes


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("columns", [1, 6])
@pytest.mark.parametrize("kind", ["numbers", "text", "fields"])
def test_an_edge_chunk_that_holds_only_its_rows(tmp_path, kind, columns, shuffle):
    """As some writers store it; h5py reads it. What is shorter, or lies in the middle, is damaged."""
    values = np.arange(10 * columns, dtype="<i4").reshape(10, columns)
    values = {"numbers": values, "text": values.astype("S8"), "fields": values.view([("a", "<i2"), ("b", "<i2")])}[kind]
    path = tmp_path / "a.h5"

    def make(rows_of_last, short=8):
        with h5py.File(path, "w") as file:
            made = file.create_dataset(
                "x", values.shape, values.dtype, chunks=(4, columns), compression="gzip", shuffle=shuffle
            )
            for first in (0, 4, 8):
                stored = np.zeros((4, columns), values.dtype)
                stored[: len(values[first : first + 4])] = values[first : first + 4]
                stored = stored[:rows_of_last] if first == short else stored
                raw = np.frombuffer(stored.tobytes(), np.uint8)
                planes = raw.reshape(-1, values.dtype.itemsize).T.tobytes() if shuffle else raw.tobytes()
                made.id.write_direct_chunk((first, 0), zlib.compress(planes))

    for rows in (2, 4):
        make(rows)
        reader = RowReader(path)
        assert_same(reader.read(["x"])["x"], by_h5py(path, "x"))
        assert_same(reader.read(["x"], [1, 8, 9])["x"], values[[1, 8, 9]])
    for rows, short in ((1, 8), (3, 8), (2, 0)):
        make(rows, short)
        with pytest.raises(
            CorruptChunkError, match=rf"chunk {short // 4} .* expected \d+ decoded bytes|deflate stream"
        ):
            RowReader(path).read(["x"])


def test_types_of_nbit_without_end():
    from ray_h5.read.library_filters import wrong_nbit

    assert "cannot be undone" in wrong_nbit(b"", (0, 0, 35, *[2, 4] * 100), 140)


@pytest.mark.slow
def test_a_guard_looks_anew_while_a_writer_has_the_file(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset(
            "x", (12, 16), "i4", chunks=(4, 16), maxshape=(None, 16), **FILTERS["scaleoffset"]
        )
        dataset[:] = data = random_rows((12, 16), "i4")
    reader = RowReader(path, swmr=True)
    for _ in range(2):
        assert_same(reader.read(["x"], [9, 2])["x"], data[[9, 2]])
    with h5py.File(path, "a", libver="latest") as file:
        file["x"].id.write_direct_chunk((8, 0), PACKED[:20])
    with pytest.raises(CorruptChunkError, match="chunk 2"):
        RowReader(path, swmr=True).read(["x"], [9])
