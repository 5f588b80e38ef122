"""Files that are made to harm: what they lead to is not opened, and none costs more than its size allows."""

import itertools
import os
import pickle
import struct
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader, repack
from ray_h5.errors import (
    CorruptFileError,
    ExternalDataError,
    MissingSourceError,
    OutOfMemoryError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.groups.matching_groups import GroupPattern
from ray_h5.hdf5.tree import walker
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.measure import inspect_files
from ray_h5.inspect.text import to_text
from ray_h5.torch_data import (
    Grid,
    H5Dataset,
    RayH5Error,
    Sidecar,
    Windows,
    any_equal,
    csr,
    kfold,
    ragged,
    row_mask,
    where,
)
from tests.hdf5.h5kit import assert_same, by_h5py, in_fork, overwrite, plist_with, run_python
from tests.kit.files import save
from tests.read.test_varying_values import checksum

UNLIMITED = h5py.h5s.UNLIMITED
ROWS = np.arange(4)


def space_of(shape, start, stride, count, block):
    space = h5py.h5s.create_simple(shape, (UNLIMITED,) * len(shape))
    space.select_hyperslab(start, count, stride, block)
    return space


def virtual_column(file, name, mappings, rows=4):
    """Make a virtual column of mappings: the selected rows here, a file, a dataset, the selected rows there."""
    plist = plist_with()
    for here, source, dataset, there in mappings:
        plist.set_virtual(here, os.fsencode(source), dataset.encode(), there)
    whole = h5py.h5s.create_simple((rows,), (UNLIMITED,))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_I64LE, whole, plist)


def counted(source, dataset="x"):
    """Return a mapping to sources that are counted, each of which has the next four rows."""
    here = space_of((4,), (0,), (4,), (UNLIMITED,), (4,))
    return here, source, dataset, h5py.h5s.create_simple((4,))


def growing(source, dataset="x"):
    """Return a mapping to all rows that a source has, now or later."""
    spaces = [space_of((4,), (0,), (1,), (UNLIMITED,), (1,)) for _ in range(2)]
    return spaces[0], source, dataset, spaces[1]


def fixed(source, dataset="x"):
    return h5py.h5s.create_simple((4,)), source, dataset, h5py.h5s.create_simple((4,))


# What is outside is not opened -------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder of pipes, the current folder: a process that opens one waits for ever."""
    for folder in ("inside", "outside"):
        (tmp_path / folder).mkdir()
    for name in ("pipe0.h5", "pipe.h5"):
        os.mkfifo(tmp_path / "outside" / name)
    monkeypatch.chdir(tmp_path / "outside")
    return tmp_path / "outside"


NAMES = ["../outside/pipe.h5", "{outside}/pipe.h5", "pipe.h5"]
COUNTED = [name.replace("pipe", "pipe%b") for name in NAMES]
LOOKS = {
    "columns": lambda path: list(RowReader(path).columns),
    "a column": lambda path: RowReader(path).column("x"),
    "read": lambda path: RowReader(path).read(["x"], [0]),
    "inspect": lambda path: to_text(inspect_files(FileOptions.of([path]))),
}


def looked(path, look):
    """Return what is seen in a process of its own, or the error."""
    try:
        return in_fork(lambda: LOOKS[look](path), timeout_s=10)
    except ExternalDataError as exc:
        return exc


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mapping", [counted, growing, fixed])
def test_sources_outside_are_not_opened(outside, mapping, nested):
    names = COUNTED if mapping is counted else NAMES
    for name in names:
        path = str(outside.parent / "inside" / f"{len(name)}.h5")
        with h5py.File(path, "w", libver="latest") as file:
            file["ok"] = ROWS
            virtual_column(file, "hidden" if nested else "x", [mapping(name.format(outside=outside))])
            if nested:
                virtual_column(file, "x", [growing(".", "hidden")])
        for look in LOOKS if name == names[0] and not nested else ["read"]:
            found = looked(path, look)
            if look in {"a column", "read"}:
                assert isinstance(found, ExternalDataError), (name, look)
            else:
                assert "ExternalDataError" in found if look == "inspect" else found == ["ok"]


def test_a_counted_source_that_is_a_pipe_is_not_opened(outside):
    # Where it may be read, and is not the first one.
    path = str(outside / "a.h5")
    with h5py.File(path, "w", libver="latest") as file:
        file["d0"] = ROWS
        file["d1"] = h5py.ExternalLink("pipe.h5", "/x")
        virtual_column(file, "x", [counted(".", "d%b")])
    with pytest.raises(RayH5Error, match=r"pipe\.h5: expected a file, found a pipe"):
        in_fork(lambda: RowReader(path, allow_external=[outside]).read(["x"]), timeout_s=10)


# What a small file makes large ---------------------------------------------------------------------


def within(action, seconds=20):
    """Do `action`, and say that it took no longer: what this is for takes hours or for ever."""
    began = time.monotonic()
    found = action()
    assert time.monotonic() - began < seconds
    return found


def nested_columns(path, levels, mappings):
    with h5py.File(path, "w", libver="latest") as file:
        file["d0"] = ROWS
        for level in range(1, levels + 1):
            virtual_column(file, f"d{level}", [make(f"d{level - 1}") for make in mappings])


def halves(first):
    """Return a function that makes a mapping of two of four rows, in no blocks: each may need all of its source."""
    rows = [0, 1, 3] if first else [2]

    def mapping(dataset):
        spaces = [h5py.h5s.create_simple((4,)) for _ in range(2)]
        for space in spaces:
            space.select_none()
            for row in rows:
                space.select_hyperslab((row,), (1,), op=h5py.h5s.SELECT_OR)
        return spaces[0], ".", dataset, spaces[1]

    return mapping


@pytest.mark.parametrize("levels", [3, 16, 20])
def test_virtual_columns_of_virtual_columns(tmp_path, levels):
    path = tmp_path / "a.h5"
    nested_columns(path, levels, [halves(True), halves(False)])
    reader = RowReader(path)
    assert len(within(lambda: reader.columns)) == levels + 1
    for rows in ([3], slice(None)):
        assert_same(within(lambda: reader.read([f"d{levels}"], rows)[f"d{levels}"]), ROWS[rows])  # noqa: B023
    assert_same(by_h5py(path, f"d{levels}"), ROWS)


@pytest.mark.parametrize("name", ["a", "z"])
def test_virtual_columns_of_more_ways_than_libhdf5_has_time_for(tmp_path, name):
    # Named first or last: the others are looked at after it, or before.
    path = tmp_path / "a.h5"
    nested_columns(path, 40, [halves(True), halves(False)])
    with h5py.File(path, "r+", libver="latest") as file:
        virtual_column(file, name, [fixed(".", "d40")])
    layout = within(lambda: RowReader(path).layout)
    assert {f"d{level}" for level in range(21)} <= set(layout.columns)
    assert isinstance(layout.refused["d40"], CorruptFileError)
    for column in ("d40", name):
        with pytest.raises(CorruptFileError, match=r"on more than \d+ ways, through virtual datasets of|more than 32"):
            within(lambda: RowReader(path).read([column], [0]))  # noqa: B023


def test_virtual_columns_one_over_the_other(tmp_path):
    path = tmp_path / "a.h5"
    nested_columns(path, 40, [lambda dataset: fixed(".", dataset)])
    layout = RowReader(path).layout
    assert set(layout.columns) == {f"d{level}" for level in range(33)}
    assert_same(RowReader(path).read(["d32"])["d32"], ROWS)
    with pytest.raises(CorruptFileError, match="column 'd40' comes from more than 32 nested virtual datasets"):
        RowReader(path).read(["d40"])
    assert all(isinstance(error, CorruptFileError) for error in layout.refused.values())


def test_links_of_links(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ok"] = ROWS
        file["l30"] = h5py.SoftLink("/")
        for number in range(30):
            file[f"l{number}"] = h5py.SoftLink("/".join([f"l{number + 1}"] * 2))
        file["long"] = h5py.SoftLink("/".join(["l30"] * 30000))
    layout = within(lambda: RowReader(tmp_path / "a.h5").layout)
    assert "ok" in layout.columns
    with pytest.raises(MissingSourceError, match="leads through more than 32 links: a loop"):
        within(lambda: RowReader(tmp_path / "a.h5").read(["l0/ok"]))


def linked_groups(levels, columns=1):
    """Make groups one in the other, each by two names."""

    def fill(file):
        file["ok"] = ROWS
        group = file
        for _ in range(levels):
            below = group.create_group("a")
            group["b"] = below
            group = below
        for number in range(columns):
            group[f"x{number}"] = ROWS + number

    return fill


def filled(path, fill):
    with h5py.File(path, "w", libver="latest") as file:
        fill(file)
    return path


def test_groups_of_more_names_than_there_is_time_for(tmp_path):
    path = filled(tmp_path / "a.h5", linked_groups(40, 100))
    with pytest.raises(CorruptFileError, match=r"more than \d+ names below group"):
        within(lambda: RowReader(path).columns)
    assert RowReader(path).read(["a/" * 40 + "x0"], [1])["a/" * 40 + "x0"].tolist() == [1]


def deep_groups(path, depth):
    """Make groups one in the other, and a column in the last."""
    with h5py.File(path, "w", libver="latest") as file:
        group = file.id
        for _ in range(depth):
            group = h5py.h5g.create(group, b"g")
        h5py.Group(group)["x"] = ROWS
        file["ok"] = ROWS
    return str(path)


def test_groups_deeper_than_is_listed(tmp_path, monkeypatch):
    opened = []
    listed = walker.listed
    monkeypatch.setattr(walker, "listed", lambda *args: opened.append(1) or listed(*args))
    path = deep_groups(tmp_path / "a.h5", 6000)
    with pytest.raises(CorruptFileError, match="more than 2048 nested groups below group '/', too many"):
        RowReader(path).columns  # noqa: B018  they are found when asked for
    assert len(opened) < 2100
    assert RowReader(path).read(["ok"], [1])["ok"].tolist() == [1]
    with pytest.raises(CorruptFileError, match=r"leads through more than 4096 groups"):
        RowReader(path).column("g/" * 6000 + "x")


@pytest.mark.parametrize(("depth", "twins"), [(1000, 1), (60, 8)])
def test_deep_groups_are_inspected(tmp_path, depth, twins):
    path = deep_groups(tmp_path / "a.h5", depth)
    with h5py.File(path, "r+", libver="latest") as file:
        for twin in range(1, twins):
            file.copy("g", f"g{twin}")
    report = inspect_files(FileOptions.of([path]))
    text = to_text(report)
    assert len(report.files[0].columns) == 1 + twins
    assert "2 columns" in text or "8 columns" in text
    assert len(text) < 20_000


# Sizes that a file claims --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"chunks": (1, 1 << 20)}])
def test_rows_larger_than_any_memory(tmp_path, options):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", (4, 1 << 58), "f4", **options)
        file["ok"] = ROWS
    reader = RowReader(tmp_path / "a.h5")
    with pytest.raises(OutOfMemoryError, match=r"cannot have the memory for values of float32 of shape \(1, 28823"):
        reader.read(["x"], [0])
    assert reader.read(["ok"], [1])["ok"].tolist() == [1]


def categories(file):
    group = file.create_group("obs/label")
    group.attrs["encoding-type"] = "categorical"
    group["codes"] = np.zeros(4, "i1")
    group.create_dataset("categories", (1 << 19,), h5py.string_dtype())


def matrix(file):
    group = file.create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": [(1 << 24) - 1, 10]})
    group.create_dataset("indptr", (1 << 24,), "i8", chunks=(1 << 10,))
    group["indices"], group["data"] = np.zeros(0, "i4"), np.zeros(0, "f4")


def values(dtype, rows=1 << 23):
    return lambda file: [file.create_dataset(name, (rows,), dtype) for name in ("x", "y")]


@pytest.mark.parametrize(
    ("fill", "options"),
    [
        (matrix, {"columns": [csr("X")]}),
        (categories, {"columns": ["obs/label"]}),
        (values("i8", 1 << 24), {"columns": [ragged("x", offsets="y")]}),
        (values("i8", 1 << 24), {"columns": [ragged("x", starts="x", counts="y")]}),
        (values("i1"), {"predicate": where(x=0)}),
        (values(h5py.string_dtype(), 1 << 21), {"predicate": where(x="")}),
        (values("i1"), {"predicate": where(x=any_equal(0))}),
        (values("?"), {"predicate": where(x=row_mask())}),
        (values("i8", 1 << 24), {"windows": Windows({"x": [0]}, episode_ends="y")}),
        (values("u1", 1 << 24), {"columns": [ragged("x", offsets="y")]}),
        (values("?", 1 << 24), {"windows": Windows({"x": [0]}, episode_flags=["y"])}),
    ],
)
def test_values_that_were_never_written_and_that_planning_needs(tmp_path, fill, options):
    path = filled(tmp_path / "a.h5", fill)
    assert path.stat().st_size < 10_000
    with pytest.raises(OutOfMemoryError, match=r"a.h5: column '.*planning needs all of its values, which take about"):
        len(H5Dataset(path, **options))


@pytest.mark.parametrize("predicate", [where(label=1), where(label=any_equal(1))])
def test_rows_that_were_never_written_of_a_file_that_lacks_a_column(tmp_path, predicate):
    filled(tmp_path / "a.h5", values("i1", 1 << 45))
    save(tmp_path / "b.h5", {"x": np.zeros(2, "i1"), "label": np.arange(2)})
    with pytest.raises(OutOfMemoryError, match=r"a.h5: column '.*planning needs all of its values"):
        len(H5Dataset(str(tmp_path / "*.h5"), ["x"], predicate=predicate, missing="null"))


@pytest.mark.parametrize("rows", [1 << 23, 1 << 45])
@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (kfold, {"k": 2}),
        (kfold, {"k": 2, "group": "path"}),
        (H5Dataset, {"include_row_ids": True, "predicate": where(row_id=1)}),
        (H5Dataset, {"rows": Grid(2), "windows": Windows({"x": [0]})}),
        (H5Dataset, {"windows": Windows({"x": [0]}, stride=7), "sidecar": Sidecar("t.csv", on="row", missing="null")}),
        (H5Dataset, {"sidecar": Sidecar("t.csv", on="row", missing="null")}),
        (H5Dataset, {"sidecar": Sidecar("t.csv", on="path", key="file", missing="drop")}),
        (H5Dataset, {"sidecar": Sidecar("t.csv", on="path", key="file"), "predicate": where(v=1)}),
        (H5Dataset, {"sidecar": Sidecar("t.csv", on="name", missing="null")}),
    ],
)
def test_lists_of_rows_that_were_never_written(tmp_path, monkeypatch, plan, options, rows):
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "a.h5", lambda file: file.create_dataset("x", (rows, 3), "i1", chunks=(1 << 18, 3)))
    Path("t.csv").write_text('row,file,v,name\n1,a.h5,1,"x$1,:3"\n')
    with pytest.raises(OutOfMemoryError, match=rf"a.h5.* {rows} .* about \d+ bytes of memory|{rows}, 3.* episodes"):
        len(plan("a.h5", **options))
    assert len(H5Dataset("a.h5")) == rows


def test_rows_that_other_files_hold_are_no_mere_claims(tmp_path):
    rows = 1 << 23  # a list of them takes 128 MiB
    save(tmp_path / "source.h5", {"x": np.ones(rows, "i1")})
    layout = h5py.VirtualLayout((rows,), "i1")
    layout[:] = h5py.VirtualSource(tmp_path / "source.h5", "x", (rows,))
    path = filled(tmp_path / "a.h5", lambda file: file.create_virtual_dataset("x", layout))
    assert path.stat().st_size < 10_000
    (tmp_path / "t.csv").write_text("row,v\n7,1\n")
    table = Sidecar(tmp_path / "t.csv", on="row", missing="drop")
    assert H5Dataset(path, ["x", "v"], sidecar=table, allow_external=tmp_path)[0] == {"x": 1, "v": 1}


# Names ---------------------------------------------------------------------------------------------


def test_rows_of_more_written_and_unwritten_chunks(tmp_path):
    """What was never written is filled by one assignment, and the chunks that were written go over it."""
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for name, options in {"raw": {}, "gzip": {"compression": "gzip"}, "swapped": {"dtype": ">f4"}}.items():
            dataset = file.create_dataset(
                name, (6, 40, 1000), **{"dtype": "f4", **options}, chunks=(2, 3, 10), fillvalue=2.5
            )
            dataset[1, 5, :30] = 7
            dataset[4, :, 995] = 8
    for name in ("raw", "gzip", "swapped"):
        expected = by_h5py(tmp_path / "a.h5", name)
        for threads, rows in itertools.product((1, 2), ([1], [5, 1, 4, 1], slice(None), slice(1, 5))):
            reader = RowReader(tmp_path / "a.h5", threads=threads)
            assert reader.columns[name].direct
            assert_same(reader.read([name], rows)[name], expected[rows])


@pytest.mark.parametrize("criterion", [{"x": 1}, {"y": any_equal(1)}, {"m": row_mask()}, {"x": row_mask()}])
def test_more_rows_than_any_memory(tmp_path, criterion):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for name, dtype, row_shape in (("x", "i4", ()), ("y", "f4", (4,)), ("m", "?", ())):
            file.create_dataset(name, (1 << 48, *row_shape), dtype)
    assert H5Dataset(tmp_path / "a.h5")[1 << 47]["x"] == 0
    with pytest.raises(OutOfMemoryError, match=rf"a.h5: .*{next(iter(criterion))}'.*planning needs all of its values"):
        len(H5Dataset(tmp_path / "a.h5", predicate=where(**criterion)))


def test_names_that_are_not_utf8_are_listed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ok"] = ROWS
        h5py.h5d.create(file.id, b"caf\xe9", h5py.h5t.STD_I64LE, h5py.h5s.create_simple((4,)))
        group = h5py.h5g.create(file.id, b"gr\xfcn")
        h5py.Group(group)["x"] = ROWS
        file.id.links.create_soft(b"so\xe9ft", b"/ok")
        file.id.links.create_soft(b"leads", b"/caf\xe9")
        h5py.h5t.STD_I64LE.copy().commit(file.id, b"type\xe9")
    reader = RowReader(tmp_path / "a.h5")
    assert list(reader.columns) == ["ok"]
    refused = reader.layout.refused
    assert set(refused) == {"caf\\xe9", "gr\\xfcn", "so\\xe9ft", "leads"}
    assert all(isinstance(error, UnsupportedColumnError) for error in refused.values())
    assert "has a name that is not UTF-8" in str(refused["caf\\xe9"])
    assert "no column below it can be read" in str(refused["gr\\xfcn"])
    assert r"leads to b'/caf\xe9', a name that is not UTF-8" in str(refused["leads"])
    text = to_text(inspect_files(FileOptions.of([str(tmp_path / "a.h5")])))
    assert "caf\\xe9" in text
    text.encode()
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["/"].move(b"caf\xe9", "new name")  # as the message says
    assert set(RowReader(tmp_path / "a.h5").columns) == {"ok", "new name"}


NASTY = "\x1b[31mred\x07\r\x9b\u202e"


def assert_plain(text):
    assert all(each.isprintable() for each in text.replace("\n", "")), ascii(text)
    assert "red" in text


@pytest.mark.parametrize("kind", ["external link", "group link", "virtual", "storage", "soft", "column", "group"])
def test_control_characters_of_names_reach_no_message(tmp_path, kind):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["ok"] = ROWS
        if kind == "external link":
            file["x"] = h5py.ExternalLink(f"/{NASTY}/\ngone.h5", NASTY)
        elif kind == "group link":
            file["x"] = h5py.ExternalLink("../secret.h5", NASTY)
        elif kind == "virtual":
            virtual_column(file, "x", [fixed(f"{NASTY}.h5", NASTY)])
        elif kind == "storage":
            file.create_dataset("x", (4,), "i8", external=[(f"/{NASTY}.bin", 0, 32)])
        elif kind == "soft":
            file["x"] = h5py.SoftLink(NASTY)
        else:
            file[f"{NASTY}\n/x" if kind == "group" else f"{NASTY}\n"] = 1.0
    refused = RowReader(tmp_path / "a.h5").layout.refused
    assert refused
    for error in refused.values():
        if kind != "group link":
            assert_plain(str(error))
        assert "\n" not in str(error)
        assert str(error) == str(pickle.loads(pickle.dumps(error)))


def test_control_characters_of_paths_reach_no_message_and_no_repr(tmp_path):
    path = str(tmp_path / f"{NASTY}.h5")
    with h5py.File(path, "w") as file:
        file[f"{NASTY}x"] = ROWS
    assert_plain(repr(RowReader(path)))
    dataset = H5Dataset(path)
    assert_plain(repr(dataset))
    assert_plain(str(dataset))
    with pytest.raises(RayH5Error) as caught:
        RowReader(path).read(["gone"])
    assert_plain(str(caught.value))
    os.truncate(path, 700)
    with pytest.raises(RayH5Error) as caught:
        RowReader(path).read(["gone"])
    assert_plain(str(caught.value))


# Descriptors -----------------------------------------------------------------------------------------


FEW_DESCRIPTORS = """
import os, resource, sys
import numpy as np
from ray_h5.torch_data.dataset import H5Dataset

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
dataset = H5Dataset(sys.argv[1], kept_bytes=0)
assert dataset.read(np.arange(150))["x"].tolist() == list(range(150))
# Others take what is left: files that are only kept for the next read are let go.
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(62 - len(os.listdir("/proc/self/fd")))]
assert len(taken) > 10
assert dataset.read(np.arange(10))["x"].tolist() == list(range(10))
"""


@pytest.mark.slow
def test_more_files_than_descriptors(tmp_path):
    for number in range(150):
        save(tmp_path / f"{number}.h5", {"x": [number]})
    done = run_python(FEW_DESCRIPTORS, str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [(1 << 62) + 1, (1 << 63) + 5, (1 << 64) - 2])
@pytest.mark.parametrize("field", range(4))
def test_mappings_that_select_more_than_any_dataset_has(tmp_path, field, value):
    """A hyperslab in a file: its first row, the stride, how many blocks, and their rows."""
    path, rows = str(tmp_path / "a.h5"), 1 << 40
    with h5py.File(path, "w", libver="latest") as file:
        there = file.create_dataset("s", (rows,), "u1", chunks=(1 << 20,))
        layout = h5py.VirtualLayout((rows,), "u1")
        layout[1 << 35 : (1 << 35) + 21 : 3] = h5py.VirtualSource(there)[1 << 36 : (1 << 36) + 35 : 5]
        file.create_virtual_dataset("x", layout)
    whole = Path(path).read_bytes()
    stored = struct.pack("<4Q", 1 << 35, 3, 7, 1)
    at, begin = whole.index(stored) + 8 * field, whole.rindex(b"\1\1\0\0\0\0\0\0\0", 0, whole.index(stored))
    (size,) = struct.unpack_from("<Q", whole, begin - 8)
    block = bytearray(whole[begin : begin + size - 4])
    assert struct.unpack_from("<I", whole, begin + size - 4)[0] == checksum(bytes(block))
    struct.pack_into("<Q", block, at - begin, value)
    overwrite(path, begin, block + struct.pack("<I", checksum(bytes(block))))

    def read():
        with pytest.raises(RayH5Error) as caught:
            RowReader(path).read(["x"], [0, 1 << 35, rows - 1])
        return str(caught.value)

    assert path in in_fork(read)


def free_space(block):
    """Return where free space begins after the first object of a heap."""
    return 32 + (struct.unpack_from("<Q", block, 24)[0] + 7 & ~7)


DAMAGED_MAPPINGS = {
    "more mappings than bytes": lambda block: struct.pack_into("<Q", block, 33, 1 << 23),
    "a larger object": lambda block: struct.pack_into("<Q", block, 24, 4080),
    "free space of no bytes": lambda block: struct.pack_into("<Q", block, free_space(block) + 8, 0),
}


def damage_mappings(path, damage):
    whole = Path(path).read_bytes()
    begin = whole.index(b"GCOL")
    block = bytearray(whole[begin : begin + 4096])
    (size,) = struct.unpack_from("<Q", block, 24)
    assert struct.unpack_from("<I", block, 28 + size)[0] == checksum(bytes(block[32 : 28 + size]))
    DAMAGED_MAPPINGS[damage](block)
    struct.pack_into("<I", block, 28 + size, checksum(bytes(block[32 : 28 + size])))
    overwrite(path, begin, block)


@pytest.mark.parametrize("how", ["listed", "of a group", "g/x", "soft"])
@pytest.mark.parametrize("damage", DAMAGED_MAPPINGS)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_damaged_mappings_that_libhdf5_reads_without_end(tmp_path, libver, damage, how):
    """libhdf5 reads the mappings of a virtual dataset when it opens it."""
    path = str(tmp_path / "a.h5")
    save(tmp_path / "b.h5", {"x": ROWS})
    with h5py.File(path, "w", libver=libver) as file:
        file["a"] = h5py.ExternalLink("b.h5", "x")  # it is followed first
        file["s"] = file["g/y"] = ROWS
        layout = h5py.VirtualLayout((4,), ROWS.dtype)
        layout[:] = h5py.VirtualSource(file["s"])
        file.create_virtual_dataset("g/x", layout)
        file["soft"] = h5py.SoftLink("/g/x")
    damage_mappings(path, damage)

    def read():
        reader = RowReader(path, allow_external=[tmp_path])
        if how == "listed":
            return str(reader.layout.refused["g/x"])
        with pytest.raises(CorruptFileError) as caught:
            _ = reader.group_table(GroupPattern("g/x")) if how == "of a group" else reader.read([how], [0])
        return str(caught.value)

    assert "mappings of virtual dataset" in in_fork(read)


@pytest.mark.parametrize("name", [b"matrix", b"obs", b"#refs#", b"\xff"])
@pytest.mark.parametrize("damage", DAMAGED_MAPPINGS)
def test_damaged_mappings_of_what_a_library_may_have_written(tmp_path, damage, name):
    """Some objects are looked at by their names, to find out who wrote the file."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w", libver="latest") as file:
        file["var"] = file["X"] = ROWS
        file["cells"] = np.array([file["X"].ref], h5py.ref_dtype)
        layout = h5py.VirtualLayout((4,), ROWS.dtype)
        layout[:] = h5py.VirtualSource(file["X"])
        file.create_virtual_dataset(name, layout)
    damage_mappings(path, damage)

    def read():
        reader = RowReader(path)
        assert reader.form == ""
        reason = ""
        try:
            reader.group_table(GroupPattern("cells"))
        except CorruptFileError as exc:
            reason = str(exc)
        return "".join(map(str, [*reader.layout.refused.values(), reason]))

    assert "mappings of virtual dataset" in in_fork(read)


@pytest.mark.parametrize("damage", DAMAGED_MAPPINGS)
def test_a_group_that_is_not_there_beside_damaged_mappings(tmp_path, damage):
    """The error is of the group, and says which ones there are."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["obs/y"] = ROWS
        layout = h5py.VirtualLayout((4,), ROWS.dtype)
        layout[:] = h5py.VirtualSource(file["obs/y"])
        file.create_virtual_dataset("x", layout)
    damage_mappings(path, damage)

    def read():
        with pytest.raises(UnknownColumnError) as caught:
            RowReader(path, group="osb").columns  # noqa: B018  raises
        return str(caught.value)

    assert "group='osb' names no group. Did you mean 'obs'?" in in_fork(read)


@pytest.mark.parametrize("damage", DAMAGED_MAPPINGS)
def test_damaged_mappings_in_a_file_to_repack(tmp_path, damage):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout = h5py.VirtualLayout((4,), ROWS.dtype)
        file["y"] = ROWS
        layout[:] = h5py.VirtualSource(file["y"])
        file.create_virtual_dataset("g/x", layout)
    damage_mappings(tmp_path / "a.h5", damage)

    def copy():
        with pytest.raises(CorruptFileError) as caught:
            repack([tmp_path / "a.h5"], tmp_path / "out", drop=True)
        return str(caught.value)

    assert "mappings of virtual dataset 'g/x'" in in_fork(copy)


@pytest.mark.parametrize("of", ["block0_items", "block0_values", "axis1", "table"])
def test_frames_of_pandas_lead_to_no_other_file(tmp_path, of):
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.array([(b"secret",)], [("index", "S6")])
        file["x"].attrs.update(kind="datetime64", value_type="secret", index_kind="datetime64")
        file["names"] = np.array([b"secret"])
        file["names"].attrs["kind"] = "string"
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        frame = file.create_group("g")
        frame.attrs["pandas_type"] = "frame_table" if of == "table" else "frame"
        frame["block0_values"], frame["block0_items"] = ROWS, np.array([b"a"])
        frame["block0_items"].attrs["kind"] = "string"
        if of in frame:
            del frame[of]
        frame[of] = h5py.ExternalLink("../secret.h5", "names" if of == "block0_items" else "x")
    reader = RowReader(tmp_path / "in" / "a.h5")
    if of == "table":
        with pytest.raises(CorruptFileError, match="has no dataset 'table'"):
            reader.encoding("g")
        return
    text = reader.encoding("g").text
    assert "secret" not in text
    assert "datetime64" not in text


def test_a_virtual_dataset_of_no_mappings(tmp_path):
    save(tmp_path / "a.h5", {"x": h5py.VirtualLayout((4,), ROWS.dtype)}, fillvalue=7)
    assert RowReader(tmp_path / "a.h5").read(["x"], [0, 3])["x"].tolist() == [7, 7]
