"""Links and virtual datasets in files of a store: values of other files of the same store."""

import pickle
import random

import h5py
import numpy as np
import pytest
from pyarrow.fs import S3FileSystem

import ray_h5
from ray_h5 import RowReader
from ray_h5.errors import (
    CastError,
    CorruptFileError,
    ExternalDataError,
    MissingSourceError,
    NotFoundError,
    NotHDF5Error,
    OptionError,
    StaleIndexError,
    TruncatedFileError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.files import metadata_replay
from ray_h5.hdf5.files.external_policy import as_roots
from ray_h5.manifest.file_state import FileState
from ray_h5.read.open_file import forget_all
from ray_h5.torch_data import H5Dataset, kfold, loader
from tests.hdf5.h5kit import by_h5py
from tests.kit.files import save
from tests.kit.stores import forget_files
from tests.remote.kit import options_of

pytestmark = pytest.mark.usefixtures("nothing_stays")

N, PARTS = 25, 4
URL = "s3://bkt/m.h5"
ALLOWED = "s3://bkt/raw/"
ROWS = [7, 3, 3, 0, 19]
RNG = np.random.default_rng(0)


def source(path, number):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=RNG.random((N, 6)), chunks=(5, 6), compression="gzip")
        file.create_dataset("i", data=RNG.integers(-300, 300, (N, 2, 3), "i4"), chunks=(4, 1, 3))
        file["s"] = np.array([f"{number}-{row}" * (row % 5) for row in range(N)], object)
        file["row"] = np.arange(6) + number
        file["deep/y"] = np.arange(N) + 100 * number


def master(bucket, fill, name="m.h5", **options):
    with h5py.File(bucket / name, "w", **options) as file:
        fill(file)
    return bucket / name


@pytest.fixture
def raw(bucket):
    (bucket / "raw").mkdir()
    for number in range(PARTS):
        source(bucket / "raw" / f"p{number}.h5", number)
    return bucket / "raw"


def reader_of(server, url=URL, allow=ALLOWED, **options):
    return RowReader(url, allow_external=[allow] if allow else (), storage_options=options_of(server), **options)


def stacked(name, shape, dtype, where, count=PARTS):
    """Return a layout that has each source at `where(number)`."""
    layout = h5py.VirtualLayout(shape, dtype)
    for number in range(count):
        with h5py.File("raw/p0.h5") as file:
            layout[where(number)] = h5py.VirtualSource(f"raw/p{number}.h5", name, file[name].shape)
    return layout


def all_ways(file):
    file["link"] = h5py.ExternalLink("raw/p0.h5", "x")
    file["group"] = h5py.ExternalLink("./raw//p1.h5", "/deep")
    file["texts"] = h5py.ExternalLink("raw/../raw/p2.h5", "s")
    file["own"] = np.arange(N)
    text = h5py.string_dtype()
    virtual = {
        "rows": stacked("x", (4 * N, 6), "f8", lambda n: slice(n * N, n * N + N)),
        "gaps": stacked("x", (4 * N + 20, 6), "f8", lambda n: slice(n * (N + 3) + 2, n * (N + 3) + 2 + N)),
        "a row each": stacked("row", (7, 6), "i8", lambda n: n),
        "an item each": stacked("i", (PARTS, N, 2, 3), "i4", lambda n: n),
        "every other": stacked("x", (8 * N, 6), "f8", lambda n: slice(n, None, 8)),
        "strings": stacked("s", (4 * N + 5,), text, lambda n: slice(n * N, n * N + N)),
    }
    for name, layout in virtual.items():
        file.create_virtual_dataset(name, layout, fillvalue=None if name == "strings" else 7)
    listed = h5py.VirtualLayout((30, 6), "f8")
    listed[[3, 4, 9, 20]] = h5py.VirtualSource("raw/p3.h5", "x", (N, 6))[4:12:2]
    file.create_virtual_dataset("listed", listed)
    nested = h5py.VirtualLayout((10, 6), "f8")
    nested[2:8] = h5py.VirtualSource(".", "rows", (4 * N, 6))[N - 3 : N + 3]
    file.create_virtual_dataset("nested", nested, fillvalue=-1)


def test_groups_behind_links_may_have_names_of_pandas(server, raw, bucket):
    """What says that a group is a frame is asked of the group that the link leads to: libhdf5 follows no link."""
    with h5py.File(raw / "p0.h5", "a") as file:
        file["deep/axis0"], file["deep/_i_x/y"] = np.arange(N), np.arange(N)
        file["frame/axis0"], file["frame/block0_values"] = np.arange(3), np.ones((N, 3))
        file["frame"].attrs["pandas_type"] = "frame"
    master(bucket, lambda file: file.update({"g": h5py.ExternalLink("raw/p0.h5", "deep")}))
    with reader_of(server) as reader:
        assert sorted(reader.columns) == ["g/_i_x/y", "g/axis0", "g/y"]
    master(bucket, lambda file: file.update({"g": h5py.ExternalLink("raw/p0.h5", "frame")}), "n.h5")
    with (
        reader_of(server, "s3://bkt/n.h5") as reader,
        pytest.raises(UnsupportedColumnError, match="'g' is a DataFrame"),
    ):
        raise reader.layout.refused["g"]


@pytest.fixture
def every(raw, bucket, monkeypatch):  # noqa: ARG001  its files are there
    """A file with values in others, in each way."""
    monkeypatch.chdir(bucket)
    return master(bucket, all_ways)


def same(found, expected):
    assert found.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_values_are_those_that_h5py_reads(server, every, threads):
    with reader_of(server, threads=threads) as reader, h5py.File(every) as file:
        names = [*(set(file) - {"group"}), "group/y"]
        assert reader.layout.refused == {}
        assert set(reader.columns) == set(names)
        for name in names:
            whole = file[name][:]
            rows = [row % len(whole) for row in ROWS]
            same(reader.read([name])[name], whole)
            same(reader.read([name], rows)[name], whole[rows])
            same(reader.read([name], slice(2, 5))[name], whole[2:5])
            same(reader.read([name], slice(None, None, 3))[name], whole[::3])
        both = reader.read(["link", "group/y", "own", "texts"], ROWS)
        assert all((both[name] == file[name][:][ROWS]).all() for name in both)
    assert all(each.if_match for each in server.requests(method="GET"))


def test_values_are_cast_and_those_that_are_lost_are_named(server, every):
    reader = reader_of(server)
    with h5py.File(every) as file:
        for name in ("link", "rows", "a row each"):
            out = np.empty((3, *file[name].shape[1:]), "f4")
            reader.read_into({name: out}, [5, 1, 5])
            same(out, file[name][:][[5, 1, 5]].astype("f4"))
        with pytest.raises(CastError, match="an item each"):
            reader.read_into({"an item each": np.empty((4, *file["an item each"].shape[1:]), "i1")}, [0, 1, 2, 3])


def test_a_second_reader_that_is_told_asks_for_no_metadata(server, every):
    first = reader_of(server)
    names = sorted(set(first.columns) - {"texts", "strings"})
    known = pickle.loads(pickle.dumps(first.manifest(names)))
    assert sorted(known.columns) == sorted(first.columns)
    sources = {name: first.column(name).sources for name in names}
    forget_all()
    server.forget()
    second = reader_of(server, expect=FileState(first.identity, sources), known=known)
    assert second.find(names) == first.find(names)
    assert server.requests() == []
    with h5py.File(every) as file:
        for name in names:
            same(second.read([name], [3, 1])[name], file[name][:][[3, 1]])
    assert {each.method for each in server.requests()} == {"GET"}
    assert not [each for each in server.requests() if each.range.startswith("bytes=0-") and ".h5" in each.path]


def test_requests_are_few(server, bucket, raw, monkeypatch):
    monkeypatch.chdir(bucket)
    for number in range(PARTS, 40):
        source(raw / f"p{number}.h5", number)

    def fill(file):
        layout = stacked("x", (40 * N, 6), "f8", lambda n: slice(n * N, n * N + N), 40)
        file.create_virtual_dataset("x", layout)
        for number in range(40):
            file[f"link{number}"] = h5py.ExternalLink(f"raw/p{number}.h5", "deep/y")

    master(bucket, fill)
    server.latency = 0.05
    reader = reader_of(server)
    assert len(reader.columns) == 41
    # The state and the head of each file. A request that is made again, as on a machine that is busy, is the same one.
    for method in ("HEAD", "GET"):
        asked = [(each.path, each.range) for each in server.requests(method=method)]
        assert len({*asked}) == 41
        assert len(asked) <= 45
    server.forget()
    same(reader.read(["x"], [0, 700, 701])["x"], by_h5py(bucket / "m.h5", "x")[[0, 700, 701]])
    assert len(server.requests()) <= 3


def test_rows_along_several_axes(server, every, bucket):
    for name in ("link", "an item each"):
        with h5py.File(every) as file, h5py.File(bucket / f"{name}.h5", "w") as other:
            whole = file[name][:]
            other["x"] = h5py.ExternalLink("m.h5", name)
        options = {"rows": ray_h5.Grid(2), "allow_external": "s3://bkt", "storage_options": options_of(server)}
        data = H5Dataset(f"s3://bkt/{name}.h5", columns=["x"], **options)
        flat = whole.reshape(-1, *whole.shape[2:])
        assert len(data) == len(flat)
        rows = np.array([0, 17, len(flat) - 1, 5, 17])
        np.testing.assert_array_equal(data.read(rows)["x"], flat[rows])


# Chains, loops ----------------------------------------------------------------------------------


def link(path, name, other, dataset="x"):
    with h5py.File(path, "a") as file:
        file[name] = h5py.ExternalLink(other, dataset)


def test_a_chain(server, bucket, raw):
    for folder in ("b", "c"):
        (bucket / folder).mkdir()
    link(bucket / "m.h5", "x", "b/b.h5")
    link(bucket / "b" / "b.h5", "x", "../c/c.h5")
    link(bucket / "c" / "c.h5", "x", "../raw/p0.h5")
    link(bucket / "c" / "c.h5", "back", "../m.h5", "own")
    link(bucket / "m.h5", "back", "c/c.h5", "back")
    with h5py.File(bucket / "m.h5", "a") as file:
        file["own"] = np.arange(3)
    expected = by_h5py(raw / "p0.h5", "x")
    with reader_of(server, allow="s3://bkt") as reader:
        same(reader.read(["x"], ROWS)["x"], expected[ROWS])
        same(reader.read(["back"])["back"], np.arange(3))
        assert [path for path, _ in reader.column("x").sources] == [f"s3://bkt/{each}" for each in (
            "b/b.h5", "c/c.h5", "raw/p0.h5")]  # fmt: skip
    for allowed in (["s3://bkt/b", "s3://bkt/c/"], ["s3://bkt/b", "s3://bkt/raw"], ["s3://bkt/c", "s3://bkt/raw"]):
        with (
            RowReader(URL, allow_external=allowed, storage_options=options_of(server)) as reader,
            pytest.raises(ExternalDataError, match="outside allow_external"),
        ):
            reader.read(["x"])


def test_a_loop(server, bucket, raw):
    link(bucket / "m.h5", "x", "raw/loop.h5")
    link(raw / "loop.h5", "x", "../m.h5")
    with h5py.File(bucket / "m.h5", "a") as file:
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource("raw/loop.h5", "v", (3,))
        file.create_virtual_dataset("v", layout)
    with h5py.File(raw / "loop.h5", "a") as file:
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource("../m.h5", "v", (3,))
        file.create_virtual_dataset("v", layout)
    reader = reader_of(server)
    for name in ("x", "v"):
        with pytest.raises(MissingSourceError, match="loop"):
            reader.read([name])


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("other/p0.h5", ExternalDataError, r"s3://bkt/other/p0.h5, which is outside .*allow_external=\['s3://bkt/other/'\]"),
        ("raw2/p0.h5", ExternalDataError, "outside"),
        ("raw/../other.h5", ExternalDataError, "outside"),
        ("../bkt/raw/p0.h5", ExternalDataError, "above the top"),
        ("raw/../../../etc/passwd", ExternalDataError, "above the top"),
        ("/etc/passwd", ExternalDataError, "local disk"),
        ("file:///etc/passwd", ExternalDataError, "local disk"),
        ("C:\\data\\a.h5", ExternalDataError, "local disk"),
        ("s3://other/raw/p0.h5", ExternalDataError, "same bucket"),
        ("s3://bkt@other/raw/p0.h5", ExternalDataError, "same bucket"),
        ("gs://bkt/raw/p0.h5", ExternalDataError, "same bucket"),
        ("https://example.org/raw/p0.h5", ExternalDataError, "same bucket"),
        ("s3://bkt/raw/../../p0.h5", ExternalDataError, r"'\.\.'"),
        ("s3://bkt//raw/p0.h5", ExternalDataError, "empty part"),
        ("raw/none.h5", MissingSourceError, "s3://bkt/raw/none.h5, which does not exist"),
        ("raw/ü%41#?.h5", MissingSourceError, "does not exist"),
        ("raw", ExternalDataError, "does not exist|outside"),
        ("raw/..", MissingSourceError, "a folder"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("raw")
def test_names_that_are_refused(server, bucket, name, error, says):
    def fill(file):
        file["own"] = np.arange(3)
        file["link"] = h5py.ExternalLink(name, "x")
        layout = h5py.VirtualLayout((N, 6), "f8")
        layout[:] = h5py.VirtualSource(name.replace("%", "%%"), "x", (N, 6))
        file.create_virtual_dataset("virtual", layout)

    master(bucket, fill)
    server.forget()
    with reader_of(server) as reader:
        assert list(reader.columns) == ["own"]
        for column in reader.layout.refused:
            if name == "raw":
                continue
            with pytest.raises(error, match=says):
                reader.read([column])
    assert {each.path.split("/")[1] for each in server.requests()} == {"bkt"}


def test_absolute_urls_of_the_same_store(server, bucket, raw):
    def fill(file):
        file["x"] = h5py.ExternalLink("s3://bkt/raw/p0.h5", "x")
        file["y"] = h5py.ExternalLink("s3a://bkt/raw/p0.h5", "x")

    master(bucket, fill)
    expected = by_h5py(raw / "p0.h5", "x")
    same(reader_of(server).read(["x"])["x"], expected)
    same(reader_of(server, allow="s3a://bkt/raw").read(["y"])["y"], expected)
    with pytest.raises(ExternalDataError, match="outside"):
        reader_of(server, allow=None).read(["x"])


@pytest.mark.parametrize("name", ["ü", "日本", "a\N{COMBINING DIAERESIS}", "\U0001f600"])
def test_names_that_are_not_ascii(server, bucket, name):
    """h5py calls the files ``?``: another file, which is there, too."""
    for number, each in enumerate([name, "?" * len(name), "?"]):
        save(bucket / f"{each}.h5", {"x": np.arange(N) + 1000 * number})
    decoy = bucket / f"m{'?' * len(name)}.h5"
    for path in (bucket / f"m{name}.h5", decoy):
        layout = h5py.VirtualLayout((N,), "i8")
        layout[:] = h5py.VirtualSource(f"{name}.h5", "x", (N,))
        with h5py.File(path, "w") as file:
            file["link"] = h5py.ExternalLink(f"{name}.h5", "x")
            file.create_virtual_dataset("virtual", layout)
            file["own"] = np.arange(N) + (1 if path == decoy else 0)
    url = f"s3://bkt/m{name}.h5"
    with RowReader(url, allow_external="s3://bkt/", storage_options=options_of(server)) as reader:
        for column, values in reader.read(["link", "virtual", "own"]).items():
            assert values.tolist() == list(range(N)), column
    assert {each.path for each in server.requests()} == {f"/bkt/{name}.h5", f"/bkt/m{name}.h5"}


def test_https(server, bucket, raw):
    (raw / "a b#%41ü.h5").write_bytes((raw / "p0.h5").read_bytes())
    link(bucket / "m.h5", "x", "raw/a b#%41ü.h5")
    options = {"allow_http": True}
    with RowReader(
        f"{server.url}/bkt/m.h5", allow_external=f"{server.url}/bkt/raw?token=secret", storage_options=options
    ) as reader:
        assert len(reader.read(["x"])["x"]) == N
        assert "secret" not in repr(reader._access.policy)
    assert as_roots("ftp://user:secret@host/raw/") == ("ftp://host/raw",)


@pytest.mark.parametrize(
    "root", ["s3://bkt/a/../b", "s3:/bkt/raw", "s3://key:CANARY@bkt/raw", "s3:///raw", "s3://bkt//raw/./x"]
)
@pytest.mark.usefixtures("raw")
def test_roots_that_are_refused(server, bucket, root):
    link(bucket / "m.h5", "x", "raw/p0.h5")
    with pytest.raises(OptionError) as caught:
        reader_of(server, allow=root)
    assert "CANARY" not in str(caught.value)


@pytest.mark.usefixtures("raw")
def test_a_local_file_leads_to_no_store(server, bucket):
    link(bucket / "m.h5", "x", "s3://bkt/raw/p0.h5")
    with pytest.raises(ExternalDataError, match="in a store"):
        RowReader(bucket / "m.h5", allow_external=["s3://bkt", bucket]).read(["x"])
    assert server.requests() == []


@pytest.mark.usefixtures("raw")
def test_a_remote_file_leads_to_no_folder(server, bucket):
    link(bucket / "m.h5", "x", "raw/p0.h5")
    with pytest.raises(ExternalDataError, match="outside"):
        reader_of(server, allow=str(bucket)).read(["x"])


@pytest.mark.usefixtures("raw")
def test_mappings_that_are_not_read(server, bucket):
    any_length = h5py.h5s.UNLIMITED

    def endless(file, name, source, there, dataset=b"x"):
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        here = h5py.h5s.create_simple((4, 6), (any_length, 6))
        here.select_hyperslab((0, 0), (any_length, 1), (N, 1), (N, 6)) if "%b" in source else here.select_hyperslab(
            (0, 0), (1, 1), (1, 1), (any_length, 6)
        )
        made.set_virtual(here, source.encode(), dataset, there)
        h5py.h5d.create(file.id, name, h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((4, 6), (any_length, 6)), made)

    def fill(file):
        there = h5py.h5s.create_simple((N, 6), (any_length, 6))
        there.select_hyperslab((0, 0), (1, 1), (1, 1), (any_length, 6))
        endless(file, b"endless", "raw/p0.h5", there)
        endless(file, b"numbered", "raw/p%b.h5", h5py.h5s.create_simple((N, 6)))
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        here, corner = h5py.h5s.create_simple((10, 6)), h5py.h5s.create_simple((N, 6))
        for space in (here, corner):
            space.select_hyperslab((0, 0), (2, 6))
            space.select_hyperslab((2, 0), (2, 3), op=h5py.h5s.SELECT_OR)
        made.set_virtual(here, b"raw/p0.h5", b"x", corner)
        h5py.h5d.create(file.id, b"corner", h5py.h5t.NATIVE_DOUBLE, here, made)
        for name, step in (("over each other", 3), ("side by side", 2)):
            layout = h5py.VirtualLayout((N + 9, 6), "f8")
            for number in range(2):
                first = number * step
                where = slice(first, first + N) if step == 3 else np.s_[:N, first : first + 3]
                layout[where] = h5py.VirtualSource("raw/p0.h5", "x", (N, 6))[:, : 6 if step == 3 else 3]
            file.create_virtual_dataset(name, layout)
        file.create_dataset("text outside", (2,), h5py.string_dtype(), external=[("raw/p0.h5", 0, 32)])
        file.create_dataset("numbers outside", (2,), "i8", external=[("raw/p0.h5", 0, 16)])
        file["own"] = RNG.random((N, 6))
        endless(file, b"endless here", ".", there, b"own")
        nested = h5py.VirtualLayout((N, 6), "f8")
        nested[:] = h5py.VirtualSource(".", "over each other", (N + 9, 6))[:N]
        file.create_virtual_dataset("nested", nested)
        layout = h5py.VirtualLayout((N,), "i8")
        layout[:] = h5py.VirtualSource("raw/p0.h5", "s", (N,))
        file.create_virtual_dataset("text as numbers", layout)
        layout = h5py.VirtualLayout((N, 6), "f4")
        layout[:] = h5py.VirtualSource("raw/p0.h5", "x", (N, 6))
        file.create_virtual_dataset("rounded", layout)

    master(bucket, fill)
    reader = reader_of(server)
    refused = {name: type(error) for name, error in reader.layout.refused.items()}
    says = dict.fromkeys(["endless", "numbered", "corner"], "Copy its values")
    says |= {"text outside": "raw files", "numbers outside": "raw files"}
    assert refused == dict.fromkeys(says, UnsupportedColumnError)
    says["text as numbers"] = "another type"
    says |= dict.fromkeys(["over each other", "side by side", "nested"], "same values")
    for name, what in says.items():
        with pytest.raises(UnsupportedColumnError, match=what):
            reader.read([name])
    same(reader.read(["endless here"])["endless here"], reader.read(["own"])["own"])
    same(reader.read(["rounded"])["rounded"], by_h5py(bucket / "m.h5", "rounded"))


def test_a_source_of_another_shape(server, bucket, raw, monkeypatch):
    monkeypatch.chdir(bucket)
    master(bucket, all_ways_of_rows)
    save(raw / "p1.h5", {"x": RNG.random((N - 5, 6))})
    save(raw / "p2.h5", {"x": RNG.random((N, 5))})
    reader = reader_of(server)
    for name in ("part", "whole"):
        with pytest.raises(CorruptFileError, match="another shape"):
            reader.read([name])


def all_ways_of_rows(file):
    layout = h5py.VirtualLayout((N, 6), "f8")
    layout[:20] = h5py.VirtualSource("raw/p1.h5", "x", (N, 6))[5:]
    file.create_virtual_dataset("part", layout, fillvalue=3)
    layout = h5py.VirtualLayout((N, 6), "f8")
    layout[:] = h5py.VirtualSource("raw/p2.h5", "x", (N, 6))
    file.create_virtual_dataset("whole", layout)


def test_targets_that_are_damaged(server, bucket, raw):
    (raw / "empty.h5").write_bytes(b"")
    (raw / "junk.h5").write_bytes(b"<html>" * 100)
    (raw / "cut.h5").write_bytes((raw / "p0.h5").read_bytes()[:3000])
    with h5py.File(bucket / "m.h5", "w") as file:
        for name in ("empty", "junk", "cut"):
            file[name] = h5py.ExternalLink(f"raw/{name}.h5", "x")
        file["none"] = h5py.ExternalLink("raw/p0.h5", "none")
        file["ok"] = h5py.ExternalLink("raw/p0.h5", "x")
    reader = reader_of(server)
    assert list(reader.columns) == ["ok"]
    expected = {"empty": NotHDF5Error, "junk": NotHDF5Error, "cut": TruncatedFileError, "none": MissingSourceError}
    assert {name: type(error) for name, error in reader.layout.refused.items()} == expected


def test_groups_in_other_files(server, bucket, raw):
    with h5py.File(raw / "p1.h5", "a") as file:
        file["deep"].attrs["site"] = "A"
    link(bucket / "m.h5", "there", "raw/p1.h5", "deep")
    options = {"allow_external": ALLOWED, "storage_options": options_of(server)}
    data = H5Dataset(URL, group="there", attrs=["site"], **options)
    assert data.read(np.array([3]))["y"].tolist() == [103]
    assert data[3]["site"] == "A"
    with pytest.raises(UnsupportedColumnError, match="leads to another file"):
        H5Dataset(URL, rows=ray_h5.Groups("th*"), **options)


def test_a_file_system(bucket, raw):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    link(bucket / "m.h5", "x", "raw/p0.h5")
    for path in bucket.rglob("*.h5"):
        memory.pipe(f"/links/{path.relative_to(bucket)}", path.read_bytes())
    for wrong in (type(memory), S3FileSystem):
        with pytest.raises(OptionError, match=rf"found a class; write {wrong.__name__}\(\.\.\.\)"):
            H5Dataset("a.h5", ["x"], filesystem=wrong)
    options = {"columns": ["x"], "filesystem": memory, "kept_bytes": 0}
    data = H5Dataset("memory://links/m.h5", allow_external="memory://links/raw", **options)
    np.testing.assert_array_equal(data.read(np.array(ROWS))["x"], by_h5py(raw / "p0.h5", "x")[ROWS])
    with pytest.raises(ExternalDataError, match="outside"):
        H5Dataset("memory://links/m.h5", **options)
    source(raw / "p0.h5", 5)
    memory.pipe("/links/raw/p0.h5", (raw / "p0.h5").read_bytes())
    with pytest.raises(StaleIndexError, match=r"raw/p0\.h5"):
        data.read(np.array([1]))


# Changes ----------------------------------------------------------------------------------------

COLUMNS = ["link", "group/y", "own"]


@pytest.mark.usefixtures("every")
def test_a_source_that_changes_between_plan_and_read(server, raw):
    data = H5Dataset(URL, columns=COLUMNS, allow_external=ALLOWED, storage_options=options_of(server))
    source(raw / "p0.h5", 9)
    with pytest.raises(StaleIndexError, match=r"p0\.h5"):
        data.read(np.arange(3))
    # Made again, it has the new values.
    again = H5Dataset(URL, columns=COLUMNS, allow_external=ALLOWED, storage_options=options_of(server))
    np.testing.assert_array_equal(again.read(np.array([4, 2]))["link"], by_h5py(raw / "p0.h5", "x")[[4, 2]])
    forget_all()
    (raw / "p0.h5").unlink()
    with pytest.raises((StaleIndexError, NotFoundError), match=r"p0\.h5"):
        again.read(np.array([1]))


def test_a_warm_index(server, every, raw, tmp_path):
    options = {
        "columns": COLUMNS,
        "allow_external": ALLOWED,
        "storage_options": options_of(server),
        "index_dir": tmp_path / "i",
    }
    H5Dataset(URL, **options)
    forget_files()
    server.forget()
    data = H5Dataset(URL, **options)
    asked = [each for each in server.requests() if each.method == "GET" and not each.is_listing]
    assert asked == []
    # The states of the file and of its two sources.
    assert len(server.requests()) <= 3
    taken = data.read(np.array([4, 2]))
    with h5py.File(every) as file:
        np.testing.assert_array_equal(taken["link"], file["link"][:][[4, 2]])
        np.testing.assert_array_equal(taken["group/y"], file["group/y"][:][[4, 2]])
    source(raw / "p0.h5", 5)
    forget_files()
    with h5py.File(every) as file:  # the outdated index is made again
        np.testing.assert_array_equal(H5Dataset(URL, **options).read(np.array([4, 2]))["link"], file["link"][:][[4, 2]])


# The other ways in ------------------------------------------------------------------------------


def test_loader_predicates_and_folds(server, every):
    options = {"columns": COLUMNS, "allow_external": ALLOWED, "storage_options": options_of(server)}
    with h5py.File(every) as file:
        x, y = file["link"][:], file["group/y"][:]
    seen = []
    for batch in loader(URL, 4, shuffle=True, **options):
        rows = batch["own"].numpy()
        np.testing.assert_array_equal(batch["link"].numpy(), x[rows].astype(batch["link"].numpy().dtype))
        seen += rows.tolist()
    assert sorted(seen) == list(range(N))
    chosen = H5Dataset(URL, predicate=ray_h5.where(**{"group/y": ray_h5.between(105, 109)}), **options)
    assert chosen.read(np.arange(len(chosen)))["group/y"].tolist() == y[5:10].tolist()
    save(every.parent / "even.h5", {"x": h5py.ExternalLink("raw/p0.h5", "x")})
    del options["columns"]
    assert len(kfold("s3://bkt/even.h5", 3, **options)) == 3


# Any mappings -----------------------------------------------------------------------------------


def some(rng, length, count=None):
    """Return a slice of an axis, or a list of its indices, and how many indices it has."""
    step = rng.choice([1, 1, 2, 3])
    most = -(-length // step)
    count = rng.randint(1, most) if count is None else count
    first = rng.randint(0, length - 1 - (count - 1) * step)
    return slice(first, first + (count - 1) * step + 1, step), count


def mapped(rng, number, bucket):
    """Write a virtual dataset with some mappings of whole rows that are apart, and their sources."""
    shape = tuple(rng.randint(1, 9) for _ in range(rng.choice([1, 2, 2, 3])))
    dtype = rng.choice(["i4", "f8", "u1", "i2"])
    layout, taken = h5py.VirtualLayout(shape, dtype), np.zeros(shape[0], bool)
    for source_number in range(rng.randint(0, 6)):
        here, count = some(rng, shape[0])
        if shape[0] > 2 and rng.random() < 0.2:
            here, count = rng.choice([([0, 2], 2), ([1], 1), ([0, 1, 2], 3)])
        if taken[here].any():
            continue
        taken[here] = True
        if count == 1 and len(shape) > 1 and rng.random() < 0.5:
            source_shape, there = shape[1:], slice(None)  # all of the source is one row
        else:
            source_shape = (rng.randint(count, count + 3), *shape[1:])
            there = slice(first := rng.randint(0, source_shape[0] - count), first + count)
        values = np.array([rng.randint(0, 120) for _ in range(int(np.prod(source_shape)))], dtype)
        name = f"raw/s{number}_{source_number}.h5"
        with h5py.File(bucket / name, "w") as file:
            chunks = tuple(-(-n // 2) for n in source_shape) if rng.random() < 0.5 else None
            file.create_dataset("x", data=values.reshape(source_shape), chunks=chunks)
        layout[here] = h5py.VirtualSource(name, "x", source_shape, dtype=dtype)[there]
    fill = rng.choice([None, 7])
    return master(bucket, lambda file: file.create_virtual_dataset("x", layout, fillvalue=fill), f"v{number}.h5")


@pytest.mark.slow
@pytest.mark.usefixtures("raw")
def test_any_mappings(server, bucket, monkeypatch):
    monkeypatch.chdir(bucket)
    rng = random.Random(7)
    for number in range(60):
        path = mapped(rng, number, bucket)
        expected = by_h5py(path, "x")
        reader = reader_of(server, f"s3://bkt/{path.name}")
        rows = [rng.randrange(len(expected)) for _ in range(5)]
        same(reader.read(["x"])["x"], expected)
        same(reader.read(["x"], rows)["x"], expected[rows])


def test_many_sources_are_not_held_whole(server, bucket, monkeypatch):
    """The sources together are larger than what may be held; what says where their values are is at their ends."""
    count, rows = 12, 40_000
    (bucket / "raw").mkdir()
    layout = h5py.VirtualLayout((count * rows,), "f8")
    for number in range(count):
        save(bucket / "raw" / f"p{number}.h5", {"a": np.zeros(rows), "x": np.arange(rows) + 1e6 * number})
        layout[number * rows : (number + 1) * rows] = h5py.VirtualSource(f"raw/p{number}.h5", "x", (rows,))
    path = master(bucket, lambda file: file.create_virtual_dataset("x", layout))
    monkeypatch.setattr(metadata_replay, "_MAX_HELD_BYTES", most := 1 << 20)
    reader = reader_of(server)
    assert list(reader.columns) == ["x"]
    wanted = [3, 70_001, count * rows - 1]
    with h5py.File(path) as file:
        same(reader.read(["x"], wanted)["x"], file["x"][wanted])
    assert reader.opened.cached_bytes <= most
    assert sum(each.nbytes for each in server.requests()) <= count * (200 << 10), "of 626 KiB each"
