"""The chunk index: what libhdf5 lists is checked before it is used."""

import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import CorruptChunkError, CorruptFileError, StaleIndexError
from ray_h5.hdf5.columns import chunk_lists
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index
from ray_h5.hdf5.format.object_headers import CHUNKED, Layout
from ray_h5.manifest.chunk_index import MAX_CHUNK_BYTES, ChunkIndex
from ray_h5.manifest.known_columns import PackedIndex
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.value_type import ValueType
from tests.hdf5.h5kit import assert_same, by_h5py, overwrite, plist_with, stored_chunks
from tests.kit.files import save

# Made-up lists -----------------------------------------------------------------------------------

FILE_BYTES = 10_000


def layout(shape=(10, 6), chunk_shape=(4, 3), dtype="<i4"):
    type_ = ValueType("number", np.dtype(dtype), shape[1:])
    return ColumnLayout("x", type_, shape[0], chunk_shape, storage="chunked")


def chunk(corner, offset, size=48, mask=0):
    return h5py.h5d.StoreInfo(corner, mask, offset, size)


def index_of(chunks, described=None, file_bytes=FILE_BYTES):
    def chunk_iter(callback):
        return next((answer for each in chunks if (answer := callback(each)) is not None), None)

    dataset = SimpleNamespace(id=SimpleNamespace(chunk_iter=chunk_iter), maxshape=(None, None))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunk_lists, "layout_of", lambda _: (Layout(4, CHUNKED), None))  # there are no nodes
        return build_chunk_index(dataset, described or layout(), "a.h5", lambda: file_bytes)


GOOD = [chunk((0, 0), 1000), chunk((0, 3), 1048), chunk((8, 3), 5000, 10, 2)]
HUGE = 2**64 - 1

BAD = {
    "not aligned along the rows": ([chunk((2, 0), 1000)], r"a chunk at \(2, 0\), where no chunk of \(4, 3\)"),
    "not aligned along a later axis": ([chunk((4, 1), 1000)], r"a chunk at \(4, 1\)"),
    "below the last row": ([chunk((12, 0), 1000)], r"a chunk at \(12, 0\)"),
    "beyond a later axis": ([chunk((0, 6), 1000)], r"a chunk at \(0, 6\)"),
    "far beyond": ([chunk((2**63, 0), 1000)], "a chunk at"),
    "the second one": ([*GOOD, chunk((0, 4), 3000)], r"a chunk at \(0, 4\)"),
    "too few axes": ([chunk((0,), 1000), chunk((3,), 2000)], "axes|a chunk at"),
    "too many axes": ([chunk((0, 3, 4), 1000), chunk((0, 4, 3), 2000)], "axes|a chunk at"),
    "listed twice": ([*GOOD, chunk((8, 3), 3000)], "listed twice"),
    "out of order": ([*GOOD, chunk((4, 0), 3000)], "out of its order"),
    "no bytes": ([*GOOD[:2], chunk((4, 0), 3000, 0)], "no bytes"),
    "past the end of the file": (
        [*GOOD, chunk((4, 0), 9990, 11)],
        "11 bytes at offset 9990, past the file's end at 10000",
    ),
    "begins past the end of the file": ([chunk((0, 0), 10_001, 5)], "past the file's end"),
    "an offset near the last possible": ([chunk((0, 0), HUGE - 1)], "past the file's end"),
    "an offset that wraps around with its size": ([chunk((0, 0), HUGE - 10, 48)], "past the file's end"),
    "a size near the largest possible": ([*GOOD, chunk((4, 0), 3000, HUGE)], "past the file's end"),
    "over another one": ([*GOOD[:2], chunk((4, 0), 1047)], "overlap"),
    "over another one, and before it": ([chunk((0, 0), 4990), GOOD[2]], "overlap"),
    "inside another one": ([chunk((0, 0), 1000, 500), chunk((0, 3), 1100, 10)], "overlap"),
    "at the place of another one": ([chunk((0, 0), 1000), chunk((0, 3), 1000)], "overlap"),
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_lists_that_cannot_be_true(why):
    chunks, message = BAD[why]
    with pytest.raises(CorruptFileError, match=rf"^a\.h5: column 'x': its chunk index is damaged: found .*({message})"):
        index_of(chunks)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (layout((2**40,), (2**32,)), "a chunk of 17179869184 bytes"),
        (layout((2**40,), (MAX_CHUNK_BYTES // 4,)), "a chunk of 4294967296 bytes"),
        (layout((2**62, 2**62), (1, 1)), "more chunks than can be numbered"),
        (layout((2**32, 2**32), (1, 1)), "more chunks than can be numbered"),
    ],
)
def test_columns_that_cannot_be_true(described, message):
    with pytest.raises(CorruptFileError, match=message):
        index_of([], described)


def test_stored_size_is_bounded():
    # No filter makes a chunk of 48 bytes larger than HDF5's own limit for any chunk.
    with pytest.raises(CorruptFileError, match="chunk index is damaged"):
        index_of([chunk((0, 0), 1000, MAX_CHUNK_BYTES + 1)], file_bytes=2**40)


# Real indexes ------------------------------------------------------------------------------------

ANY = h5py.h5s.UNLIMITED

# kind, signature in the file, libver, shape, largest shape, chunk, early allocation
KINDS = [
    ("single chunk", None, "latest", (10, 6), (10, 6), (10, 6), False),
    ("implicit", None, "latest", (10, 6), (10, 6), (4, 3), True),
    ("fixed array", b"FAHD", "latest", (10, 6), (10, 6), (4, 3), False),
    ("fixed array, may grow", b"FAHD", "latest", (10, 6), (30, 20), (4, 3), False),
    ("fixed array, one chunk larger than the column", b"FAHD", "latest", (3, 2), (10, 6), (10, 6), False),
    ("fixed array, paged", b"FADB", "latest", (1500, 2), (1500, 2), (1, 2), False),
    ("extensible array", b"EAHD", "latest", (10, 6), (ANY, 6), (4, 3), False),
    ("extensible array, later axis may grow", b"EAHD", "latest", (10, 6), (ANY, 20), (4, 3), False),
    ("extensible array, super blocks", b"EASB", "latest", (1500, 2), (ANY, 2), (1, 2), False),
    ("extensible array, along a later axis", b"EAHD", "latest", (10, 6), (10, ANY), (4, 3), False),
    ("extensible array, along a middle axis", b"EAHD", "latest", (6, 4, 4), (6, ANY, 4), (2, 3, 2), False),
    ("B-tree, version 2", b"BTHD", "latest", (10, 6), (ANY, ANY), (4, 3), False),
    ("B-tree, version 2, two levels", b"BTIN", "latest", (1500, 2), (ANY, ANY), (1, 2), False),
    ("B-tree, version 1", b"TREE", "earliest", (10, 6), (10, 6), (4, 3), False),
    ("B-tree, version 1, may grow", b"TREE", "earliest", (10, 6), (ANY, ANY), (4, 3), False),
    ("B-tree, version 1, along a later axis", b"TREE", "earliest", (10, 6), (10, ANY), (4, 3), False),
    ("B-tree, version 1, two levels", b"TREE", "earliest", (1500, 2), (1500, 2), (1, 2), False),
]  # fmt: skip


# Filtered chunks differ in size, so no implicit index finds them.
FILTERED = [
    (kind, steps)
    for kind in KINDS
    for steps in [(), (2, 1, 3)]
    if not steps or (kind[0] != "implicit" and kind[3][0] < 100)
]


@pytest.mark.parametrize(
    ("kind", "steps"), FILTERED, ids=[f"{kind[0]}, {len(steps)} filters" for kind, steps in FILTERED]
)
def test_every_kind_of_index(tmp_path, kind, steps):
    _, signature, libver, shape, largest, chunk_shape, early = kind
    values = np.arange(np.prod(shape), dtype="<i4").reshape(shape) * 1_000_003
    plist = plist_with(chunk_shape, steps)
    plist.set_fill_value(np.array(-5, "i4"))
    if early:
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    written = {
        "all": np.s_[:],
        "left columns": np.s_[:, : shape[1] // 2],
        "corner": np.s_[shape[0] // 2 :, shape[1] // 2 :],
        "none": np.s_[:0],
    }
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        space = h5py.h5s.create_simple(shape, largest)
        for name, part in written.items():
            dataset = h5py.Dataset(h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_I32LE, space, plist))
            dataset[part] = values[part]
    stored = Path(tmp_path / "a.h5").read_bytes()
    assert signature is None or signature in stored
    assert signature or not re.search(b"FAHD|EAHD|BTHD|TREE", stored)
    reader = RowReader(tmp_path / "a.h5", threads=2)
    rows = np.random.default_rng(0).permutation(shape[0])[:50]
    for name in written:
        expected = by_h5py(tmp_path / "a.h5", name)
        assert_same(reader.read([name])[name], expected)
        assert_same(reader.read([name], rows)[name], expected[rows])


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("largest", [(ANY, ANY), (ANY, 6)])
@pytest.mark.parametrize("shape", [(3, 6), (30, 6), (0, 6)])
def test_columns_that_were_resized(tmp_path, libver, largest, shape):
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        maxshape = tuple(None if n == ANY else n for n in largest)
        dataset = file.create_dataset("x", (10, 6), "i4", maxshape=maxshape, chunks=(4, 3), fillvalue=3)
        dataset[:] = np.arange(60).reshape(10, 6)
        dataset.resize(shape)
    assert_same(RowReader(tmp_path / "a.h5").read(["x"])["x"], by_h5py(tmp_path / "a.h5", "x"))


# Damaged ones ------------------------------------------------------------------------------------
# B-trees of version 1 carry no checksum: libhdf5 believes whatever they say.


@pytest.fixture
def tree(tmp_path):
    """Write a column of five chunks, and return its path and the offset of each key of its B-tree.

    A key is the stored size (4 bytes), the filter mask (4) and the corner with one axis more
    (8 each); after it comes the address of the chunk.
    """
    path = save(
        tmp_path / "a.h5", {"x": np.arange(200).reshape(20, 10)}, "earliest", chunks=(4, 10), compression="gzip"
    )
    data = Path(path).read_bytes()
    keys = []
    for each in stored_chunks(path, "x"):
        key = struct.pack("<IIQQQ", each.size, 0, *each.chunk_offset, 0) + struct.pack("<Q", each.byte_offset)
        assert data.count(key) == 1
        keys.append(data.index(key))
    return path, keys


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (32, struct.pack("<Q", 2**40), "past the file's end"),
        (32, struct.pack("<Q", 10), None),
        (0, struct.pack("<I", 2**31), "past the file's end"),
        (0, struct.pack("<I", 0), "no bytes"),
        (8, struct.pack("<Q", 10), None),
    ],
    ids=["address past the end", "address of something else", "size past the end", "size zero", "corner off the grid"],
)
def test_damaged_tree(tree, at, value, message):
    path, keys = tree
    overwrite(path, keys[2] + at, value)
    with pytest.raises((CorruptFileError, CorruptChunkError)) as caught:
        RowReader(path).read(["x"])
    assert path in str(caught.value)
    assert "column 'x'" in str(caught.value)
    if message:
        assert type(caught.value) is CorruptFileError
        assert caught.match(message)


def test_a_corner_within_a_value(tree):
    """h5py delivers fill values for it: libhdf5 lists the chunk, and does not find it."""
    path, keys = tree
    overwrite(path, keys[2] + 24, struct.pack("<Q", 1 << 40))
    assert not by_h5py(path, "x", [8]).any()
    with pytest.raises(CorruptFileError, match="lists and does not find"):
        RowReader(path).read(["x"])


def test_damaged_checksummed_index(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.arange(100), "y": np.arange(100)}, "latest", chunks=(4,))
    data = Path(path).read_bytes()
    overwrite(path, data.index(b"FADB") + 30, b"\xff\xff")
    reader = RowReader(path)
    with pytest.raises(CorruptFileError, match=r"a\.h5: reading the chunk index of column 'x' failed"):
        reader.read(["x"], [0])
    assert reader.read(["y"], [99])["y"].tolist() == [99]


KEY_BYTES, ENTRIES = 24, 64
NODE_BYTES = 24 + ENTRIES * (KEY_BYTES + 8) + KEY_BYTES


def node_of(level, children, keys):
    """Return a node of a chunk index of version 1, of a column with one axis: keys lie between the children."""
    head = b"TREE" + struct.pack("<BBHQQ", 1, level, len(children), HUGE, HUGE)
    packed = [struct.pack("<IIQQ", 16, 0, key, 0) for key in keys]
    entries = b"".join(key + struct.pack("<Q", child) for key, child in zip(packed, children, strict=False))
    return (head + entries + packed[-1]).ljust(NODE_BYTES, b"\0")


def with_nodes(path, rows, nodes):
    """Write a column of int32 in chunks of 4 rows whose index is these nodes; each is made of what is at their places.

    ``nodes(at)`` returns the nodes: the first one begins at ``at(0)``.
    """
    with h5py.File(path, "w") as file:
        room = file.create_dataset("room", (8 * NODE_BYTES,), "u1", fillvalue=1)
        room[:] = 1
        x = file.create_dataset("x", (rows,), "i4", chunks=(4,))
        x[:4] = 7
        begin, chunk = room.id.get_offset(), x.id.get_chunk_info(0).byte_offset
    data = Path(path).read_bytes()
    old = data.index(b"TREE\1")
    made = nodes(lambda number: begin + number * NODE_BYTES, chunk)
    overwrite(path, begin, b"".join(made))
    assert data.count(struct.pack("<Q", old)) == 1
    overwrite(path, data.index(struct.pack("<Q", old)), struct.pack("<Q", begin))
    return str(path)


@pytest.mark.parametrize("leaf", [1, 0])
def test_nodes_that_lead_to_one_node_many_times(tmp_path, leaf):
    """Each of five nodes leads to the next one 64 times: libhdf5 lists 64**5 chunks, or as many empty nodes."""
    keys = [4 * each for each in range(ENTRIES + 1)]

    def nodes(at, chunk):
        inner = [node_of(5 - level, [at(level + 1)] * ENTRIES, keys) for level in range(5)]
        return [*inner, node_of(0, [chunk] * leaf, keys[: leaf + 1])]

    path = with_nodes(tmp_path / "a.h5", 4 * ENTRIES, nodes)
    assert by_h5py(path, "x", [0]).tolist() == [7 * leaf]
    with pytest.raises(CorruptFileError, match=r"column 'x': its chunk index is damaged: found two ways to the node"):
        RowReader(path).read(["x"], [0])
    with pytest.raises(CorruptFileError, match="two ways to the node"):
        RowReader(path).stored_bytes(["x"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([0, 8, 16], None),
        ([0, 4, 16], "in the node at byte .* that libhdf5 lists and does not find"),
        ([4, 8, 16], "lists and does not find"),
        ([0, 8, 12], "lists and does not find"),
        ([0, 16, 8], "out of its order"),
    ],
)
def test_keys_by_which_chunks_are_not_found(tmp_path, keys, message):
    """libhdf5 looks below the keys: h5py delivers fill values for chunks that are below others."""

    def nodes(at, _):
        chunks = [at(7) + 16 * number for number in range(4)]
        leaves = [node_of(0, chunks[:2], [0, 4, 8]), node_of(0, chunks[2:], [8, 12, 16])]
        return [node_of(1, [at(1), at(2)], keys), *leaves]

    path = with_nodes(tmp_path / "a.h5", 16, nodes)
    if message is None:
        assert_same(RowReader(path).read(["x"])["x"], by_h5py(path, "x"))
        return
    assert 0 in by_h5py(path, "x")[[0, 4, 8, 12]]
    with pytest.raises(CorruptFileError, match=message):
        RowReader(path).read(["x"])


def test_an_index_of_more_than_the_file(monkeypatch):
    """The listing ends once it is clear that it cannot be true."""
    taken = []
    monkeypatch.setattr(chunk_lists, "_LOOKED_AT", 16)

    def chunks():
        for number in range(10**9):
            taken.append(number)
            yield chunk((0, 0), 1000)

    with pytest.raises(CorruptFileError, match="chunks of more bytes than the file"):
        index_of(chunks())
    assert len(taken) < 1000
    monkeypatch.setattr(chunk_lists, "_MAX_UNWRITTEN", 100)
    with pytest.raises(CorruptFileError, match="more than 100 chunks that were never written"):
        index_of(chunk((0, 0), None) for _ in range(10**9))


@pytest.mark.parametrize("count", [3, 5, -1, 1 << 33, 1 << 62])
def test_a_packed_index_that_claims_another_count_takes_no_memory(count):
    numbers = np.arange(4)
    packed = PackedIndex.of(ChunkIndex(numbers, numbers * 100, numbers + 1, numbers.astype("u4")))
    assert packed.chunks("a.h5: column 'x'", 4, 1 << 40).sizes.tolist() == [1, 2, 3, 4]
    for most in (4, 1 << 63):
        with pytest.raises(StaleIndexError, match=r"a\.h5: column 'x': its entry in index_dir is wrong"):
            replace(packed, count=count).chunks("a.h5: column 'x'", most, 1 << 40)


def test_a_damaged_chunk_index_does_not_end_the_process(tmp_path):
    """libhdf5 2.0 is asked for the size of a B-tree that is damaged: the process ends with a segmentation fault."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", (300, 50), "u4", chunks=(1, 50), maxshape=(None, None))[:] = 1
    damaged = bytearray(path.read_bytes())
    at = damaged.find(b"BTHD")
    damaged[at + 9 : at + 11] = 66, 2  # sizes of nodes and of records
    path.write_bytes(damaged)
    code = f"from ray_h5 import RowReader; RowReader({str(path)!r}).read(['x'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "CorruptFileError" in ended.stderr
