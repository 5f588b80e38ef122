"""RowReader over files in a store: the values that h5py reads, in few requests."""

import gc
import pickle
import sys
import threading
import time

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import NotFoundError, NotHDF5Error, OptionError, RowIndexError, StaleIndexError, UnknownColumnError
from ray_h5.hdf5.files import metadata_replay
from ray_h5.hdf5.files.metadata_replay import HeldBytes
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.storage.stores.object_store import ObjectStorage
from ray_h5.storage.stores.options import StoreOptions
from tests.kit.stores import served

pytest.importorskip("obstore")

ROWS = [5, 3, 3, 90, 41]
RNG = np.random.default_rng(0)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "bkt").mkdir()
    with served(tmp_path) as server:
        yield server


def written(tmp_path, fill, name="a.h5", **options):
    with h5py.File(tmp_path / "bkt" / name, "w", **options) as file:
        fill(file)
    return tmp_path / "bkt" / name


def all_kinds(file):
    n = 100
    file["plain"] = RNG.random((n, 5)).astype(">f4")
    file.create_dataset("rows", data=RNG.random((n, 40)), chunks=(1, 40))
    file.create_dataset("gzip", data=RNG.integers(0, 9, (n, 40)), chunks=(7, 13), compression="gzip", shuffle=True)
    file.create_dataset("lzf", data=RNG.integers(0, 9, (n, 3)), chunks=(10, 3), compression="lzf", fletcher32=True)
    file.create_dataset("scaled", data=RNG.integers(0, 9, (n, 3)), chunks=(10, 3), scaleoffset=0)
    file["text"] = np.array([f"row {i} " * (i % 9) for i in range(n)], object)
    text = np.array([f"row {i} " * (i % 300) for i in range(n)], object)
    file.create_dataset("chunked_text", data=text, chunks=(9,), compression="gzip", dtype=h5py.string_dtype())
    file["fixed"] = np.array([b"ab", b"c"] * (n // 2))
    lists = file.create_dataset("lists", (n,), h5py.vlen_dtype(np.int32), chunks=(11,))
    for i in range(n):
        lists[i] = np.arange(i % 7)
    file["struct"] = np.array([(i, i / 2) for i in range(n)], [("a", "i4"), ("b", "f8")])
    file.create_dataset("partly", (n, 4), "f4", chunks=(10, 4), fillvalue=3)[20:30] = 1
    file.create_dataset("never", (n, 2), "i8", chunks=(10, 2))
    file["deep/er/label"] = np.arange(n)


def same(found, expected):
    if found.dtype == object:
        return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    return np.array_equal(found, expected)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_the_values_that_h5py_reads(server, tmp_path, libver):
    path = written(tmp_path, all_kinds, libver=libver)
    for url in ("s3://bkt/a.h5", f"{server.url}/bkt/a.h5"):
        options = server.options if url.startswith("s3") else {"allow_http": True}
        with RowReader(url, storage_options=options) as reader, RowReader(path) as local, h5py.File(path) as file:
            assert dict(reader.columns) == dict(local.columns)
            for name in reader.columns:
                assert same(reader.read([name], ROWS)[name], local.read([name], ROWS)[name]), name
                assert same(reader.read([name])[name], file[name][:]), name
            both = reader.read(list(reader.columns), np.arange(0, 100, 7))
            assert all(same(both[name], file[name][::7]) for name in both)
    assert all(each.if_match for each in server.requests() if each.range)


def test_one_request_a_read_and_large_chunks_in_parts(server, tmp_path):
    data = RNG.integers(0, 2**62, (4, 1_500_000))  # chunks of 12 MB: larger than a request
    path = written(
        tmp_path, lambda file: file.create_dataset("x", data=data, chunks=(1, 1_500_000), compression="gzip")
    )
    for threads in (1, 3):
        with RowReader("s3://bkt/a.h5", threads=threads, storage_options=server.options) as reader:
            assert same(reader.read(["x"], [3, 0])["x"], data[[3, 0]])
    assert path.stat().st_size > 40 << 20
    assert max(each.nbytes for each in server.requests()) <= 8 << 20


def test_open_costs_two_requests_and_each_range_is_fetched_once(server, tmp_path):
    data = RNG.random((20_000, 100))
    written(tmp_path, lambda file: file.create_dataset("x", data=data))
    reader = RowReader("s3://bkt/a.h5", storage_options=server.options)
    assert [each.method for each in server.requests()] == ["HEAD", "GET"]
    assert reader.num_rows == 20_000
    assert len(server.requests()) == 2
    assert same(reader.read(["x"])["x"], data)
    assert sum(each.nbytes for each in server.requests()[2:]) == data.nbytes
    reader.read(["x"], [5])
    assert server.requests()[-1].nbytes == 800


def test_a_read_that_learns_nothing_does_not_count_what_is_known(server, tmp_path, monkeypatch):
    written(tmp_path, all_kinds)
    reader = RowReader("s3://bkt/a.h5", storage_options=server.options)
    reader.read(["rows"], [1])
    counted, nbytes = [], Manifest.nbytes
    monkeypatch.setattr(Manifest, "nbytes", property(lambda known: counted.append(1) or nbytes.fget(known)))
    reader.read(["rows"], [2])
    assert not counted  # it looks at each column that is known
    reader.read(["gzip"], [2])
    assert counted


@pytest.mark.parametrize(
    ("make", "most_rounds"),
    [
        ({"libver": "earliest"}, 2),
        ({"libver": "latest"}, 2),
        ({"fs_strategy": "page", "fs_page_size": 1 << 20}, 2),
    ],
)
def test_rounds_of_a_file_of_many_small_chunks(server, tmp_path, make, most_rounds, monkeypatch):
    rounds: list[int] = []
    fetch = metadata_replay.fetch
    monkeypatch.setattr(metadata_replay, "fetch", lambda *given: rounds.append(len(given[0])) or fetch(*given))

    def fill(file):
        sets = [file.create_dataset(name, (3000, 512), "f8", chunks=(1, 512)) for name in "abc"]
        for row in range(3000):
            for each in sets:
                each.id.write_direct_chunk((row, 0), np.full(512, float(row)))

    path = written(tmp_path, fill, **make)
    reader = RowReader("s3://bkt/a.h5", storage_options=server.options)
    known = reader.manifest(["a", "b", "c"]).columns
    assert [each.index.count for each in known.values()] == [3000] * 3
    assert len(rounds) <= most_rounds
    assert sum(each.nbytes for each in server.requests()) < 0.1 * path.stat().st_size
    assert same(reader.read(["b"], [2999, 7])["b"][:, 0], np.array([2999.0, 7]))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_levels_of_a_chunk_index_are_rounds(server, tmp_path, libver, monkeypatch):
    """The nodes of a level are asked for together, though libhdf5 reads the first of them with all below it first."""
    rounds: list[int] = []
    fetch = metadata_replay.fetch
    monkeypatch.setattr(metadata_replay, "fetch", lambda *given: rounds.append(len(given[0])) or fetch(*given))

    def fill(file):
        shape = (None, None) if libver == "latest" else None  # two axes that grow: a B-tree of version 2
        sets = [file.create_dataset(name, (12_000, 50), "f8", chunks=(1, 50), maxshape=shape) for name in "ab"]
        for each in sets:
            for row in range(12_000):
                each.id.write_direct_chunk((row, 0), np.full(50, float(row)))

    written(tmp_path, fill, libver=libver)
    reader = RowReader("s3://bkt/a.h5", storage_options=server.options)
    assert [each.index.count for each in reader.manifest(["a", "b"]).columns.values()] == [12_000] * 2
    assert len(rounds) <= 5
    assert same(reader.read(["b"], [11_999, 7])["b"][:, 0], np.array([11_999.0, 7]))


def test_a_file_that_changes_is_noticed(server, tmp_path):
    written(tmp_path, all_kinds)
    reader = RowReader("s3://bkt/a.h5", storage_options=server.options)
    reader.read(["rows"], ROWS)
    written(tmp_path, all_kinds)
    with pytest.raises(StaleIndexError, match="changed between planning and reading"):
        reader.read(["rows"], ROWS)
    assert len(RowReader("s3://bkt/a.h5", storage_options=server.options).read(["rows"], ROWS)["rows"]) == 5


def test_errors_as_of_local_files(server, tmp_path):
    path = written(tmp_path, all_kinds)
    (tmp_path / "bkt" / "page.h5").write_bytes(b"<html>no file</html>" * 9)
    (tmp_path / "bkt" / "empty.h5").write_bytes(b"")
    whole = path.read_bytes()
    (tmp_path / "bkt" / "cut.h5").write_bytes(whole[: len(whole) // 2])

    def said(open_one, name):
        try:
            open_one(name).read(["rows"])
        except OSError as exc:
            return type(exc)
        return None

    def remote(name):
        return RowReader(f"s3://bkt/{name}", storage_options=server.options)

    def local(name):
        return RowReader(tmp_path / "bkt" / name)

    for name in ("page.h5", "empty.h5", "cut.h5"):
        assert said(remote, name) is said(local, name) is not None, name
    with pytest.raises(NotHDF5Error, match="web page"):
        remote("page.h5")
    with pytest.raises(NotFoundError):
        remote("none.h5")
    with pytest.raises(UnknownColumnError, match="Did you mean 'plain'"):
        remote("a.h5").read(["plane"])
    with pytest.raises(RowIndexError):
        remote("a.h5").read(["plain"], [100])
    with pytest.raises(OptionError, match="swmr"):
        RowReader("s3://bkt/a.h5", swmr=True, storage_options=server.options)


def test_blocks_that_another_thread_drops_while_they_are_read(server, tmp_path):
    data = RNG.integers(0, 256, 9 << 20, np.uint8).tobytes()
    (tmp_path / "bkt" / "a.h5").write_bytes(data)
    store = ObjectStorage(StoreOptions.of(server.options, ["s3://bkt/a.h5"]))
    held = HeldBytes(store.open("s3://bkt/a.h5", store.check("s3://bkt/a.h5")))
    server.forget()

    def drop(_request):
        # The second of two requests drops what the first one has fetched.
        if len(server.requests()) == 2:
            time.sleep(0.2)
            held.drop()

    server.before_answer = drop
    assert held.read(0, len(data)) == data
    assert len(server.requests()) == held.requests == 2


def let_others_run(*_):
    """Be called by collections of garbage, as functions of Hypothesis are."""
    time.sleep(0)


def test_a_reader_is_sent_to_another_process_while_a_thread_finds_columns(server, tmp_path):
    names = [f"x{number}" for number in range(1500)]
    written(tmp_path, lambda file: [file.create_dataset(name, data=[0]) for name in names])
    reader = RowReader("s3://bkt/a.h5", storage_options=server.options)
    finds = threading.Thread(target=lambda: [reader.find([name]) for name in names])
    finds.start()
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(let_others_run)
    try:
        while finds.is_alive():
            pickle.dumps(reader)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_run)
        finds.join()
    assert pickle.loads(pickle.dumps(reader)).find(names).keys() == {*names}
