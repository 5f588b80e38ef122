"""Compound values whose fields lie in another order than listed: libhdf5 sorts the type of an open dataset."""

from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

from ray_h5 import Grid, Groups, H5Dataset, Patches, RowReader, Windows

ROWS = 40
VALUES = np.array(
    [(b"n%d" % i, i / 2, (b"t%d" % i, -i), b"g%d" % (i % 7)) for i in range(ROWS)],
    [("name", "S5"), ("x", "f8"), ("inner", [("text", "S4"), ("n", "i4")]), ("group", "S5")],
)


def text(size):
    """A text that ends in a zero, which libhdf5 converts for numpy."""
    made = h5t.C_S1.copy()
    made.set_size(size)
    return made


def unsorted_type():
    inner = h5t.create(h5t.COMPOUND, 8)
    inner.insert(b"text", 4, text(4))
    inner.insert(b"n", 0, h5t.STD_I32LE)
    made = h5t.create(h5t.COMPOUND, 26)
    for name, place, field in (
        (b"name", 21, text(5)),
        (b"x", 13, h5t.IEEE_F64LE),
        (b"inner", 5, inner),
        (b"group", 0, text(5)),
    ):
        made.insert(name, place, field)
    return made


def write(file, name, values, chunks=None):
    plist = h5p.create(h5p.DATASET_CREATE)
    if chunks:
        plist.set_chunk(chunks)
    parent = file.require_group(name.rpartition("/")[0] or "/")
    space = h5s.create_simple(values.shape)
    made = h5py.Dataset(h5d.create(parent.id, name.rpartition("/")[2].encode(), unsorted_type(), space, plist))
    made[...] = values


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write(file, "t", VALUES)
        write(file, "chunked", VALUES, (6,))
        write(file, "grid", VALUES.reshape(5, 8), (2, 3))
        for n in range(3):
            write(file, f"groups/{n}/t", VALUES[n : n + 4])
        layout = h5py.VirtualLayout((ROWS,), file["t"].dtype)
        layout[:] = h5py.VirtualSource(file["t"])
        file.create_virtual_dataset("virtual", layout)
    return tmp_path / "a.h5"


def assert_by_name(found, expected):
    if not expected.dtype.names:
        assert found.tolist() == expected.tolist()
    for name in expected.dtype.names or ():
        assert_by_name(found[name], expected[name])


KINDS = {
    "rows": ("t", {}, VALUES),
    "chunked": ("chunked", {}, VALUES),
    "virtual": ("virtual", {}, VALUES),
    "last axis": ("grid", {"axes": "reversed"}, VALUES.reshape(5, 8).T),
    "grid": ("grid", {"rows": Grid(2)}, VALUES),
    "groups": ("t", {"rows": Groups("groups/*")}, np.stack([VALUES[n : n + 4] for n in range(3)])),
    "patches": ("grid/x", {"rows": Patches({"grid": (1, 8)}, stride=(1, 8))}, VALUES["x"].reshape(5, 1, 8)),
    "windows": ("t", {"windows": Windows({"t": [0, 1]}, pad="drop")}, np.stack([VALUES[:-1], VALUES[1:]], axis=1)),
}  # fmt: skip


@pytest.mark.parametrize("sorted_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_of_h5py_that_is_open(path, kind, sorted_first):
    """The dataset is open in this process: reading through that handle sorts the type, before or after the plan."""
    column, options, expected = KINDS[kind]
    with h5py.File(path) as file:
        of_users = [file[name] for name in ("t", "chunked", "grid", "virtual", *(f"groups/{n}/t" for n in range(3)))]
        for each in of_users if sorted_first else ():
            assert each[()].dtype.names
        dataset = H5Dataset(path, [column], **options)
        for each in of_users:
            assert each[()].dtype.names
        for opened in (dataset, H5Dataset(path, [column], **options)):
            assert_by_name(np.stack(list(opened.read(np.arange(len(dataset)))[column])), expected)


def test_fields_of_an_open_dataset(path):
    with h5py.File(path) as file:
        table = file["t"]
        dataset = H5Dataset(path, ["t/name", "t/group", "t/inner/n"])
        assert table[()].dtype.names
        found = dataset.read(np.arange(ROWS))
    for name, expected in (
        ("t/name", VALUES["name"]),
        ("t/group", VALUES["group"]),
        ("t/inner/n", VALUES["inner"]["n"]),
    ):
        assert found[name].tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [slice(None), [3, 1, 38, 3], np.arange(0, ROWS, 3)])
def test_the_order_does_not_depend_on_what_was_read(path, rows):
    with RowReader(path) as reader:
        first = reader.read(["t"], rows)["t"]
        again = reader.read(["t"], rows)["t"]
    assert first.dtype.names == again.dtype.names == ("group", "inner", "x", "name")
    assert_by_name(first, VALUES[rows])
    assert_by_name(again, VALUES[rows])


def test_threads_that_share_a_dataset(path):
    dataset = H5Dataset(path, ["t"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: bytes(dataset[i % ROWS]["t"]["name"]), range(200)))
    assert found == [b"n%d" % (i % ROWS) for i in range(200)]


def test_complex_numbers_that_lie_in_another_order(tmp_path):
    """h5py reads them as fields at first, and as complex numbers once libhdf5 has sorted the type."""
    kind = h5t.create(h5t.COMPOUND, 8)
    kind.insert(b"i", 4, h5t.IEEE_F32BE)
    kind.insert(b"r", 0, h5t.IEEE_F32BE)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = h5py.Dataset(h5d.create(file.id, b"x", kind, h5s.create_simple((3,))))
        made[...] = np.array([(1, 2), (3, 4), (5, 6)], [("r", "f4"), ("i", "f4")])
    with h5py.File(tmp_path / "a.h5") as file:
        for _ in range(2):
            found = H5Dataset(tmp_path / "a.h5", ["x"]).read(np.arange(3))["x"]
            assert found.tolist() == [1 + 2j, 3 + 4j, 5 + 6j]
            assert len(file["x"][()]) == 3
