"""Lengths that values of varying length claim are compared with what the file has before memory is taken for them."""

import itertools
import json
import re
import struct
import zlib
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.errors import CorruptChunkError, CorruptFileError
from ray_h5.hdf5.format import heap
from ray_h5.hdf5.format.file_bytes import FileBytes, widths_of
from ray_h5.hdf5.format.object_headers import object_header
from ray_h5.hdf5.format.value_types import item_bytes
from ray_h5.hdf5.groups.matching_groups import GroupPattern
from tests.hdf5.h5kit import assert_same, by_h5py, overwrite, plist_with, run_python
from tests.properties import few

CLAIMED = 0x7FFF_FFF0
BYTES = 1357
"""The length of the value that is damaged, which no other number of the files is."""

TEXT = h5py.string_dtype()
DTYPES = {
    "text": TEXT,
    "bytes": h5py.string_dtype("ascii"),
    "list": h5py.vlen_dtype(np.dtype("u1")),
    "list of float64": h5py.vlen_dtype(np.dtype("f8")),
    "compound": np.dtype([("a", "u1"), ("s", TEXT), ("b", ">i2"), ("t", TEXT), ("in", [("c", "i4"), ("u", TEXT)])]),
    "compound of arrays": np.dtype([("a", "i4"), ("s", TEXT, (2, 2)), ("b", "u1")]),
    "array": np.dtype((TEXT, (3,))),
}
STORAGES = {
    "contiguous": {},
    "compact": {},
    "external": {},
    "chunks": {"chunks": (4, 2)},
    "gzip": {"chunks": (4, 2), "compression": "gzip"},
    "gzip, shuffle": {"chunks": (4, 2), "compression": "gzip", "shuffle": True},
    "fletcher32": {"chunks": (4, 2), "fletcher32": True},
    "lzf": {"chunks": (4, 2), "compression": "lzf"},
    "shuffled after gzip": {"chunks": (4, 2), "steps": (1, 2)},
    "blosc2": {"chunks": (4, 2), **hdf5plugin.Blosc2()},
    "grows along the second axis": {"chunks": (4, 2), "compression": "gzip", "maxshape": (10, None)},
    "grows": {"chunks": (4, 2), "maxshape": (None, 3), "compression": "gzip"},
    "one row a chunk": {"chunks": (1, 2)},
}
SHAPE, BAD = (10, 3), (6, 1)


def value_of(dtype, length):
    """Return a value; those of varying length in it have about some length."""
    if dtype.subdtype is not None:
        element, shape = dtype.subdtype
        values = np.empty(shape, element)
        for at in np.ndindex(shape):
            values[at] = value_of(element, length + sum(at))
        return values
    if dtype.names is not None:
        return tuple(value_of(dtype[name], length + i) for i, name in enumerate(dtype.names, start=-1))
    if h5py.check_string_dtype(dtype) is not None:
        return "x" * length
    element = h5py.check_vlen_dtype(dtype)
    return 7 if element is None else np.arange(length).astype(element)


def create(file, name, shape, dtype, storage, folder):
    options = dict(STORAGES[storage])
    chunks = options.pop("chunks", None)
    if storage == "external":
        raw = folder / "raw.bin"
        raw.write_bytes(b"")
        options["external"] = [(str(raw), 24, 100), (str(raw), 200, h5py.h5f.UNLIMITED)]
    if storage == "compact":
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        type_id, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
        return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), type_id, space, plist))
    chunks = None if chunks is None else chunks[: len(shape)]
    maxshape = options.pop("maxshape", None)
    if "steps" in options:
        options["dcpl"] = plist_with(chunks, options.pop("steps"))
    return file.create_dataset(
        name, shape, dtype, chunks=chunks, maxshape=None if maxshape is None else maxshape[: len(shape)], **options
    )


def made(path, dtype, storage, *, libver=None, sizes=None, shape=SHAPE, bad=BAD, **options):
    """Write a file of which one value has `BYTES` elements."""
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_userblock(options.get("userblock_size", 0))
    if sizes is not None:
        plist.set_sizes(*sizes)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    if libver is not None:
        access.set_libver_bounds(libver, h5py.h5f.LIBVER_LATEST)
    with h5py.File(h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_TRUNC, plist, access)) as file:
        dataset = create(file, "x", shape, dtype, storage, path.parent)
        values = np.empty(shape, dtype)
        lengths = options.get("lengths", [2, 0, 4, 3, 9])
        for number, at in enumerate(np.ndindex(shape)):
            values[at] = value_of(dtype, BYTES if at == bad else lengths[number % len(lengths)])
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, values, h5py.h5t.py_create(dtype))
        for i in range(options.get("attributes", 0)):
            dataset.attrs[f"attribute{i}"] = np.arange(50)
    return path


def opaque_twin(file, dataset):
    width = item_bytes(dataset.id.get_type(), widths_of(dataset.file.id).address)
    plist = dataset.id.get_create_plist()
    plist.set_fill_value(np.zeros((), f"V{width}"))
    space = h5py.h5s.create_simple(dataset.chunks)
    return h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(np.dtype(f"V{width}")), space, plist))


def damaged(path, claimed=CLAIMED):
    """Let the value of `BYTES` elements claim others."""
    with h5py.File(path, "r+") as file:
        dataset = file["x"]
        if dataset.chunks is not None:
            chunks = []
            dataset.id.chunk_iter(lambda chunk: chunks.append(chunk.chunk_offset))
            corners = itertools.product(*(range(0, n, c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)))
            for corner in corners:
                mask, stored = dataset.id.read_direct_chunk(corner)
                with h5py.File.in_memory() as memory:
                    twin = opaque_twin(memory, dataset)
                    twin.id.write_direct_chunk((0,) * twin.ndim, stored, mask)
                    del twin  # libhdf5 (2.0) takes the mask for 0 as long as it is open
                    data, dtype = memory["x"][()].tobytes(), memory["x"].dtype
                    changed = re.sub(reference(BYTES), struct.pack("<I", claimed), data, count=1, flags=re.DOTALL)
                    if changed == data:
                        continue
                    if mask:  # libhdf5 skips shuffle for references alone, not for those of the twin
                        stored = zlib.compress(changed)
                    else:
                        memory["x"][...] = np.frombuffer(changed, dtype).reshape(dataset.chunks)
                        memory.flush()
                        mask, stored = memory["x"].id.read_direct_chunk((0,) * dataset.ndim)
                dataset.id.write_direct_chunk(corner, stored, mask)
                return path
            raise AssertionError("no value to damage")
        raw = path if not dataset.external else Path(dataset.external[0][0])
        address = h5py.h5o.get_info(dataset.id).addr + file.userblock_size
        is_compact = dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
    found = re.search(reference(BYTES), raw.read_bytes(), re.DOTALL)
    overwrite(raw, found.start(), struct.pack("<I", claimed))
    if is_compact:
        renew_checksum(raw, address, found.start())
    return path


def renew_checksum(path, address, changed):
    """Let the checksum of a block of an object header fit; those of the first version have none."""
    data = path.read_bytes()
    block = data.rfind(b"OCHK", 0, changed)
    if data[address : address + 4] != b"OHDR":
        return
    if block < address:
        flags = data[address + 5]
        begin, width = address + 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10), 1 << (flags & 3)
        block, end = address, begin + width + int.from_bytes(data[begin : begin + width], "little")
        assert checksum(data[block:end]) != int.from_bytes(data[end : end + 4], "little")
        overwrite(path, end, struct.pack("<I", checksum(data[block:end])))
        return
    raise AssertionError("the checksum of a later block is not made here")


def checksum(data):
    """Return Jenkins' lookup3 of some bytes, as libhdf5 takes it of metadata."""

    def turn(x, k):
        return (x << k | x >> (32 - k)) & 0xFFFF_FFFF

    a = b = c = (0xDEAD_BEEF + len(data)) & 0xFFFF_FFFF
    while len(data) > 12:
        x, y, z = struct.unpack("<3I", data[:12])
        a, b, c = (a + x) & 0xFFFF_FFFF, (b + y) & 0xFFFF_FFFF, (c + z) & 0xFFFF_FFFF
        for k in (4, 6, 8, 16, 19, 4):
            a = ((a - c) & 0xFFFF_FFFF) ^ turn(c, k)
            c = (c + b) & 0xFFFF_FFFF
            a, b, c = b, c, a
        data = data[12:]
    x, y, z = struct.unpack("<3I", data.ljust(12, b"\0"))
    a, b, c = (a + x) & 0xFFFF_FFFF, (b + y) & 0xFFFF_FFFF, (c + z) & 0xFFFF_FFFF
    for k in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - turn(b, k)) & 0xFFFF_FFFF
        a, b, c = b, c, a
    return b


def reference(length):
    # After a length comes an address; after the same number as the size of a heap object come zeros.
    return struct.pack("<I", length) + rb"(?!\0\0\0\0)"


MEASURE = r"""
import json, re, sys
from ray_h5.errors import RayH5Error
from ray_h5 import RowReader
import numpy, pyarrow

def resident(key):
    return 1024 * int(re.search(key + r":\s+(\d+)", open("/proc/self/status").read())[1])

report = {}
for path in json.loads(sys.argv[1]):
    reader = RowReader(path, allow_external=["/"])
    reader.read(["x"], [0])
    open("/proc/self/clear_refs", "w").write("5")
    before = resident("VmRSS")
    found = ""
    for rows in (slice(None), [8, 6], [9]):
        try:
            reader.read(["x"], rows)
        except RayH5Error as exc:
            found = f"{type(exc).__name__}: {exc}" if rows != [9] else found + "ROW 9"
    report[path] = [found, resident("VmHWM") - before]
print(json.dumps(report))
"""


def measured(paths):
    done = run_python(MEASURE, json.dumps([str(path) for path in paths]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_refused(found, peak, claimed, path):
    assert found.startswith("CorruptChunkError"), path
    assert re.search(
        r"column 'x'.*row 6.* claims \d+ bytes in object \d+ of the heap at byte \d+, found \d+ bytes", found
    )
    assert f"claims {claimed} bytes" in found
    assert str(path) in found
    assert "ROW 9" not in found
    assert peak < 32 << 20


def test_a_claimed_length_takes_no_memory(tmp_path):
    paths = []
    for dtype, storage in itertools.product(DTYPES, STORAGES):
        if storage in {"fletcher32", "blosc2"} and DTYPES[dtype].kind == "O":
            continue  # libhdf5 does not take it for references alone, only for what has some in it
        folder = tmp_path / dtype / storage
        folder.mkdir(parents=True)
        paths.append(damaged(made(folder / "a.h5", DTYPES[dtype], storage)))
    for path, (found, peak) in measured(paths).items():
        assert_refused(found, peak, CLAIMED * (8 if "float64" in path else 1), path)


FILES = {
    "a user block": {"userblock_size": 1024},
    "addresses of four bytes": {"sizes": (4, 4)},
    "addresses of four bytes, lengths of two": {"sizes": (4, 2)},
    "the first version": {"libver": h5py.h5f.LIBVER_EARLIEST},
    "the first version, a user block": {"libver": h5py.h5f.LIBVER_EARLIEST, "userblock_size": 512},
    "the last version": {"libver": h5py.h5f.LIBVER_LATEST},
}


def test_files_of_all_kinds(tmp_path):
    paths, storages = [], ("contiguous", "compact", "external", "gzip", "chunks")
    for kind, storage, dtype in itertools.product(FILES, storages, ("list", "compound")):
        folder = tmp_path / f"{kind} {storage} {dtype}"
        folder.mkdir()
        paths.append(made(folder / "a.h5", DTYPES[dtype], storage, **FILES[kind]))
        assert_equals_h5py(paths[-1])
        damaged(paths[-1])
    for path, (found, peak) in measured(paths).items():
        assert_refused(found, peak, CLAIMED, path)


def assert_equals_h5py(path, rows=slice(None)):
    found, expected = RowReader(path, allow_external=["/"]).read(["x"], rows)["x"], by_h5py(path, "x", rows)
    assert found.shape == expected.shape
    assert repr(found.tolist()) == repr(expected.tolist())


@pytest.mark.parametrize("storage", ["contiguous", "compact", "gzip"])
@pytest.mark.parametrize("name", ["link", "virtual"])
def test_values_in_other_files(tmp_path, storage, name):
    source = damaged(made(tmp_path / "s.h5", TEXT, storage))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink(source.name, "x")
        layout = h5py.VirtualLayout((10, 3), TEXT)
        layout[:6] = h5py.VirtualSource(source.name, "x", (10, 3))[:6]
        layout[6:] = h5py.VirtualSource(source.name, "x", (10, 3))[6:]
        file.create_virtual_dataset("virtual", layout)
    reader = RowReader(tmp_path / "a.h5", allow_external=[tmp_path])
    assert len(reader.read([name], [0, 3])[name]) == 2
    with pytest.raises(CorruptChunkError, match=rf"s\.h5.*row 6.* claims {CLAIMED} bytes"):
        reader.read([name], [6])
    assert len(reader.read([name], [3])[name]) == 1


@pytest.mark.parametrize(
    ("storage", "claimed"), [*zip(STORAGES, itertools.cycle([BYTES + 1, BYTES - 1, 1 << 20]), strict=False)]
)
def test_small_claims_are_named_too(tmp_path, storage, claimed):
    """libhdf5 refuses these itself, and does not say which value it is."""
    path = damaged(made(tmp_path / "a.h5", DTYPES["compound"], storage), claimed)
    reader = RowReader(path, allow_external=[tmp_path])
    with pytest.raises(
        CorruptChunkError, match=rf"column 'x'.*row 6.*claims {claimed} bytes in object \d+ .*found {BYTES} bytes"
    ):
        reader.read(["x"])
    assert len(reader.read(["x"], [9])["x"]) == 1


def test_a_value_of_no_bytes_may_claim_any_length(tmp_path):
    """Its address is 0, and libhdf5 does not look at the rest."""
    path = made(tmp_path / "a.h5", TEXT, "contiguous")
    with h5py.File(path) as file:
        at = file["x"].id.get_offset() + 16 * 1
        assert file["x"][0, 1] == b""
    overwrite(path, at, struct.pack("<IQI", CLAIMED, 0, 0))
    assert_equals_h5py(path)


@pytest.mark.parametrize("place", [1 << 40, 0xFFFF_FFFF_FFFF_FFFF, 8, 0x7FFF_FFFF_FFFF_FFF0])
def test_references_to_no_heap(tmp_path, place):
    path = made(tmp_path / "a.h5", TEXT, "contiguous")
    with h5py.File(path) as file:
        at = file["x"].id.get_offset() + 16 * 19
    overwrite(path, at, struct.pack("<IQI", CLAIMED, place, 1))
    reader = RowReader(path)
    with pytest.raises(CorruptChunkError, match=rf"row 6.*the heap at byte {place} is damaged: expected a collection"):
        reader.read(["x"])


def test_what_lies_past_the_end_of_a_column_is_no_value(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=[["a", "b", "c"]] * 5, chunks=(4, 2), maxshape=(None, None))
        _, stored = dataset.id.read_direct_chunk((4, 2))
        dataset.id.write_direct_chunk((4, 2), stored[:16] + struct.pack("<IQI", CLAIMED, 1 << 40, 1) * 7)
    assert_equals_h5py(path)


def test_messages_of_headers_in_several_blocks(tmp_path):
    for libver in (h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST):
        path = made(tmp_path / "a.h5", TEXT, "compact", libver=libver, attributes=7)
        with h5py.File(path) as file:
            dataset = file["x"]
            header, count = h5py.h5o.get_info(dataset.id).addr, len(dataset.attrs)
            read, _, widths = FileBytes.of(dataset.file.id)
            found = [kind for kind, _, _, _ in object_header(read, header, widths)[1]]
        assert found.count(8) == 1
        assert count == 7
        assert 0x10 in found  # it goes on elsewhere
        assert_equals_h5py(path)


@few(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    storage=st.sampled_from(sorted(STORAGES)),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    width=st.integers(2, 4),
    options=st.sampled_from(sorted(FILES)),
    data=st.data(),
)
def test_whole_values_are_read_as_h5py_reads_them(tmp_path, dtype, storage, lengths, width, options, data):
    if DTYPES[dtype].kind == "O" and storage in {"fletcher32", "blosc2"}:
        return
    shape = (max(4, -(-len(lengths) // width)), width)
    if "second" in storage:
        shape = (min(shape[0], 10), width)
    if storage == "grows":
        shape = (shape[0], min(width, 3))
    path = made(tmp_path / "a.h5", DTYPES[dtype], storage, **{**FILES[options], "shape": shape, "lengths": lengths})
    assert_equals_h5py(path)
    assert_equals_h5py(path, data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=9)))


# Collections of the global heap ------------------------------------------------------------------


def with_heap(path, change, storage="contiguous", **options):
    """Write texts, one attribute, and change the collection that has them: ``change(data, begin, objects)``.

    `objects` are the places of its objects; the last one is its free space.
    """
    with h5py.File(path, "w", **options) as file:
        dataset = create(file, "x", (10,), TEXT, storage, path.parent)
        dataset[:] = ["x" * (number + 50) for number in range(10)]
        file.attrs["name"] = "hello"
    data = bytearray(path.read_bytes())
    begin = data.index(b"GCOL")
    at, objects = begin + 16, []
    while at < begin + struct.unpack_from("<Q", data, begin + 8)[0]:
        number, size = struct.unpack_from("<H6xQ", data, at)
        objects.append(at)
        at += size if number == 0 else 16 + -(-size // 8) * 8
    change(data, begin, objects)
    path.write_bytes(data)
    return path


def size_of(number, size):
    return lambda data, _, objects: struct.pack_into("<Q", data, objects[number] + 8, size)


HEAPS = {
    "no free space": (size_of(-1, 0), "object 0 has 0 bytes"),
    "free space past its end": (size_of(-1, 1 << 20), "object 0 has 1048576 bytes"),
    "an object that wraps around": (size_of(3, 2**64 - 16), "object 4 has 18446744073709551600 bytes"),
    "an object past its end": (size_of(9, 900_000), "object 10 has 900000 bytes"),
    "longer than the file": (lambda data, at, _: struct.pack_into("<Q", data, at + 8, 1 << 40), "past the end of the"),
    "another signature": (lambda data, at, _: data.__setitem__(at, 0), "expected a collection of values there"),
}


@pytest.mark.parametrize("storage", ["contiguous", "compact", "gzip"])
@pytest.mark.parametrize("why", HEAPS)
def test_collections_in_which_libhdf5_gets_lost(tmp_path, why, storage):
    """libhdf5 (2.0) walks through some of them for ever."""
    change, said = HEAPS[why]
    path = with_heap(tmp_path / "a.h5", change, storage)
    with pytest.raises(CorruptChunkError, match=rf"the value cannot be read: .*heap at byte \d+ is damaged: .*{said}"):
        RowReader(path).read(["x"], [0])
    with pytest.raises(CorruptFileError, match=rf"attribute 'name' of '/' is damaged: .*{said}"):
        RowReader(path).attributes(["name"])


def test_texts_that_encode_are_looked_at(tmp_path):
    def fill(path, change):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(4)
            file["x"].attrs["units"] = "days since 2000-01-01"
        data = bytearray(path.read_bytes())
        at = data.index(b"GCOL")
        struct.pack_into("<Q", data, at + 16 + 16 + 24 + 8, change)  # the free space after one text
        path.write_bytes(data)
        return RowReader(path)

    free = 4096 - 16 - 16 - 24
    assert fill(tmp_path / "a.h5", free).values_of_attributes("x", ["units"]) == {"units": "days since 2000-01-01"}
    with pytest.raises(CorruptFileError, match=r"attribute 'units' of '/x' is damaged: .*object 0 has 0 bytes"):
        fill(tmp_path / "b.h5", 0).values_of_attributes("x", ["units"])


def test_texts_of_many_groups_ask_for_each_collection_once(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(300):
            file[f"data/x{number}"] = np.arange(2.0)
            file[f"data/x{number}"].attrs.update(first=f"first {number}", second=f"second {number}")
    walked = []
    walk = heap.Heap._walked
    monkeypatch.setattr(heap.Heap, "_walked", lambda self, address: walked.append(address) or walk(self, address))
    table, _ = RowReader(tmp_path / "a.h5").group_table(GroupPattern("data/*", attrs=("first", "second")))
    for name, texts in table.attributes.items():
        assert list(texts) == [f"{name} {number}".encode() for number in range(300)]
    assert walked
    assert len(walked) == len(set(walked)) < 100


def test_a_text_that_claims_much_in_a_whole_collection_is_an_error(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            file[f"data/x{number}"] = np.arange(2.0)
            file[f"data/x{number}"].attrs["name"] = "n" * (BYTES if number == 2 else 5)
    data = path.read_bytes()
    overwrite(path, data.index(struct.pack("<IQ", BYTES, data.index(b"GCOL"))), struct.pack("<I", CLAIMED))
    with pytest.raises(CorruptFileError, match=rf"attribute 'name' of 'data/x2' is damaged: it claims {CLAIMED} bytes"):
        RowReader(path).group_table(GroupPattern("data/*", attrs=("name",)))


def test_each_collection_is_walked_through_once(tmp_path, monkeypatch):
    path = with_heap(tmp_path / "a.h5", lambda *_: None, "one row a chunk")
    walked = []
    walk = heap.Heap._walked
    monkeypatch.setattr(heap.Heap, "_walked", lambda self, address: walked.append(address) or walk(self, address))
    reader = RowReader(path)
    for row in range(10):
        assert_same(reader.read(["x"], [row])["x"], by_h5py(path, "x")[[row]])
    assert len(walked) == 1


@pytest.mark.parametrize("storage", ["contiguous", "gzip"])
@pytest.mark.parametrize("written", [True, False])
def test_a_type_of_varying_length_that_does_not_exist(tmp_path, storage, written):
    """libhdf5 (2.0) ends the process that reads it."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = create(file, "x", (10,), h5py.vlen_dtype(np.dtype("f4")), storage, tmp_path)
        if written:
            dataset[3] = np.arange(5)
    data = (tmp_path / "a.h5").read_bytes()
    kind = struct.pack("<BBBBI", 0x19, 0, 0, 0, 16)  # class 9 of version 1: a sequence of 16 bytes in the file
    assert data.count(kind) == 1
    overwrite(tmp_path / "a.h5", data.index(kind) + 1, b"\2")
    with pytest.raises(CorruptFileError, match="column 'x' has a type that is damaged: it is of varying"):
        RowReader(tmp_path / "a.h5").read(["x"])


@pytest.mark.parametrize("where", ["contiguous", "gzip", "an attribute"])
def test_a_text_whose_characters_claim_to_be_large(tmp_path, where):
    """libhdf5 (2.0) takes as much memory for each: 512 MiB, in a file of 6 KiB."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        if where == "an attribute":
            file["data/x"] = np.arange(2.0)
            file["data/x"].attrs["name"] = "text"
        else:
            create(file, "x", (10,), TEXT, where, tmp_path)[:] = ["text"] * 10
    data = path.read_bytes()
    kind = struct.pack("<B3xI", 0x10, 1)  # an integer of one byte, after a text of 16 bytes
    at = data.index(struct.pack("<I", 16) + kind) + 4
    overwrite(path, at, struct.pack("<B3xI", 0x13, 512 << 20))
    read = lambda: RowReader(path).read(["x"])  # noqa: E731
    if where == "an attribute":
        read = lambda: RowReader(path).group_table(GroupPattern("data/*", attrs=("name",)))  # noqa: E731
    with pytest.raises(CorruptFileError, match=r"damaged: it(s type)? is of varying length"):
        read()
