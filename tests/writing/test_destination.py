"""Folders that datasets are written to: whatever dies or fails, a reader finds one dataset or the other."""

import contextlib
import errno
import io
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace

import h5py
import pyarrow as pa
import pytest

import ray_h5
from ray_h5.errors import NotFoundError, OutputExistsError, RayH5Error, WriteFailedError
from ray_h5.storage.find_files import find_files
from ray_h5.storage.storage_of_path import storage_for
from ray_h5.storage.write_notes import WriteNote
from ray_h5.writing.disk_folder import DiskFolder
from ray_h5.writing.output_places import folder_of

OLD, NEW, MORE = [1, 2], [11, 12], [5000]
CALLS = ("link", "unlink", "rename", "replace", "mkdir", "rmdir", "fsync", "open", "stat", "lstat", "listdir")
BUCKETS = count()


def write(folder, values, mode="error", before_names=lambda: None):
    """Do what Ray does: a file for each value. What fails is told to the sink."""
    sink = ray_h5.H5Datasink(folder, mode=mode)
    try:
        sink.on_write_start()
        parts = [sink.write([pa.table({"x": [x]})], SimpleNamespace(task_idx=i)) for i, x in enumerate(values)]
        before_names()
        sink.on_write_complete(SimpleNamespace(write_returns=parts))
    except BaseException as exc:
        sink.on_write_failed(exc)
        raise


def read(folder):
    """Return the values of the files that count."""
    with contextlib.suppress(NotFoundError):
        return sorted(x for path in find_files(folder).paths for x in h5py.File(path)["x"][:].tolist())
    return []


class Interrupts:
    """Functions of `os` that do something before one of their calls."""

    def __init__(self, at, then):
        self.calls, self._at, self._then = 0, at, then
        for name in CALLS:
            setattr(os, name, self._around(getattr(os, name)))

    def _around(self, call):
        def called(*given, **named):
            self.calls += 1
            if self.calls == self._at:
                self._then()
            return call(*given, **named)

        return called


def in_child(work):
    """Run a function in a child; return how that ended."""
    if not (child := os.fork()):
        try:
            os._exit(work())
        finally:
            os._exit(99)
    return os.waitpid(child, 0)[1]


def overwritten(folder, at, then):
    """Overwrite a folder, with something before a call of the system; return the calls, or 0 if it failed."""
    interrupts = []
    try:
        write(folder, NEW, "overwrite", before_names=lambda: interrupts.append(Interrupts(at, then)))
    except (RayH5Error, OSError):
        return 0
    return min(interrupts[0].calls, 98)


def fails():
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    "then", [lambda: os.kill(os.getpid(), signal.SIGKILL), fails], ids=["killed", "an error of the disk"]
)
@pytest.mark.parametrize(
    "old", [pytest.param(OLD, id="in the place of another one", marks=pytest.mark.slow), pytest.param([], id="new")]
)
def test_a_dataset_that_stops_at_any_call_of_the_system(tmp_path, monkeypatch, old, then):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    seen = set()
    for at in count(1):
        folder = str(tmp_path / str(at))
        if old:
            write(folder, old)
        status = in_child(lambda folder=folder, at=at: overwritten(folder, at, then))
        found = read(folder)
        assert found in (old, NEW), at
        seen.add(tuple(found))
        write(folder, MORE, "append")
        assert sorted(x for name in os.listdir(folder) for x in h5py.File(f"{folder}/{name}")["x"][:].tolist()) == (
            found + MORE
        )
        if 0 < os.waitstatus_to_exitcode(status) < at:
            break
    assert at > 30
    assert seen == {tuple(old), tuple(NEW)}


@pytest.mark.parametrize("has_links", [True, False])
def test_a_reader_sees_one_dataset_while_others_are_written(tmp_path, monkeypatch, has_links):
    folder, ends = str(tmp_path), threading.Event()
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: fails())
    write(folder, [0] * 3)

    def writes():
        for turn in range(1, 25):
            write(folder, [turn] * 3, "overwrite")
        ends.set()

    with ThreadPoolExecutor(1) as pool:
        writer, turns = pool.submit(writes), 0
        while not ends.is_set() and not writer.done():
            names = find_files(folder).paths
            with contextlib.suppress(OSError):  # it is replaced by now
                assert len({h5py.File(name)["x"][0] for name in names}) == 1
                assert len(names) == 3
                turns += 1
        writer.result()
    assert turns


def test_of_overwrites_at_the_same_time_one_stays(tmp_path):
    for turn in range(10):
        folder, barrier = str(tmp_path / str(turn)), threading.Barrier(3, timeout=60)
        write(folder, OLD)

        def overwrites(number, folder=folder, barrier=barrier):
            barrier.wait()
            with contextlib.suppress(OutputExistsError):
                write(folder, [number] * 2, "overwrite")

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(overwrites, range(3)))
        first, *others = read(folder)
        assert others == [first]


def test_of_two_overwrites_one_looks_after_the_other_has_committed(tmp_path, monkeypatch):
    """Both have given their names, which differ, and found the old files alone: both datasets would count."""
    write(str(tmp_path), OLD)
    commit, is_first, is_second = DiskFolder._commit, threading.Event(), threading.Event()

    def late(*args):
        if not is_first.is_set():
            is_first.set()
            is_second.wait(0.5)
        is_second.set()
        commit(*args)

    monkeypatch.setattr(DiskFolder, "_commit", late)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(write, str(tmp_path), NEW, "overwrite")
        assert is_first.wait(30)
        with pytest.raises(OutputExistsError, match="something wrote there meanwhile"):
            write(str(tmp_path), MORE * 2, "overwrite")
        first.result()
    assert read(str(tmp_path)) == NEW


def test_a_file_that_somebody_makes_under_an_old_name_stays(tmp_path, monkeypatch):
    write(str(tmp_path), OLD)
    sink = ray_h5.H5Datasink(tmp_path, mode="overwrite")
    monkeypatch.setattr(sink._folder, "_remove", lambda _: fails())
    sink.on_write_start()
    parts = sink.write([pa.table({"x": NEW})], SimpleNamespace(task_idx=0))
    with pytest.raises(WriteFailedError, match=r"those that they replace cannot be removed.*\n.*note\.json") as caught:
        sink.on_write_complete(SimpleNamespace(write_returns=[parts]))
    sink.on_write_failed(caught.value)
    assert read(str(tmp_path)) == NEW
    (tmp_path / "part-0-0.h5").unlink()
    with h5py.File(tmp_path / "part-0-0.h5", "w") as file:
        file["x"] = [77]
    assert read(str(tmp_path)) == [*NEW, 77]
    write(str(tmp_path), MORE, "append")
    assert read(str(tmp_path)) == [*NEW, 77, *MORE]


DAMAGED = [b"", b"{}", b'{"files": {"../a.h5": null}}', b'{"files": {"a.h5": [[]]}}', b"[" * 9999]


@pytest.mark.parametrize("note", DAMAGED)
def test_a_damaged_note_is_an_error_by_name(tmp_path, note):
    write(str(tmp_path), OLD)
    (tmp_path / ".ray_h5-0123456789ab").mkdir()
    (tmp_path / ".ray_h5-0123456789ab/note.json").write_bytes(note)
    with pytest.raises(RayH5Error, match=r"note\.json: expected a list of files"):
        read(str(tmp_path))


@pytest.mark.parametrize("note", [b"", b"{}"])
def test_a_damaged_note_in_a_store_is_an_error_by_name(store, note):
    url = f"s3://bkt{next(BUCKETS)}/out"
    write(url, OLD)
    store[-1].put("out/.ray_h5-0123456789ab/note.json", note)
    with pytest.raises(RayH5Error, match=r"note\.json: expected a list of files"):
        read_store(url, store[-1])


@pytest.mark.parametrize("then", ["is removed", "changes"])
def test_a_note_in_a_store_that_another_write_changes_while_it_is_read(store, monkeypatch, then):
    url, note = f"s3://bkt{next(BUCKETS)}/out", "out/.ray_h5-0123456789ab/note.json"
    write(url, OLD)
    store[-1].put(note, WriteNote({"part-0-0.h5": None}, is_committed=False).as_bytes())
    kind, changes = type(store[-1]), [lambda: store[-1].delete(note)]
    if then == "changes":
        changes = [lambda: store[-1].put(note, WriteNote({"part-1-0.h5": None}, is_committed=True).as_bytes())]
    real = kind.get

    def get(self, key, *given, **named):
        if key == note and changes:
            changes.pop()()
        return real(self, key, *given, **named)

    monkeypatch.setattr(kind, "get", get)
    assert read_store(url, store[-1]) == (OLD if then == "is removed" else OLD[:1])
    assert not changes


def test_a_note_that_the_disk_does_not_read_is_an_error(tmp_path, monkeypatch):
    write(str(tmp_path), OLD)
    (tmp_path / ".ray_h5-0123456789ab").mkdir()
    assert read(str(tmp_path)) == OLD
    (tmp_path / ".ray_h5-0123456789ab/note.json").symlink_to("/dev/zero")
    assert read(str(tmp_path)) == OLD
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *given: fails() if "note.json" in str(path) else real(path, *given))
    with pytest.raises(RayH5Error, match=r"note\.json: reading the note of a write failed"):
        read(str(tmp_path))


@pytest.mark.parametrize("where", ["folder", "glob", "above", "link"])
def test_inputs_are_recognized_by_whatever_path(tmp_path, where):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    write(str(tmp_path / "data"), OLD)
    paths = {"folder": "data", "glob": "data/part-*.h5", "above": "data/../data", "link": "link"}[where]
    inputs = find_files(str(tmp_path / paths)).paths
    for target in ("data", "link", "link/../data"):
        folder = folder_of(tmp_path / target)
        assert folder.input_among(folder.names(), inputs, None)
    other = folder_of(tmp_path / "other")
    assert other.input_among(["part-0-0.h5"], inputs, None) is None


# Stores ------------------------------------------------------------------------------------------


def store_that_fails():
    import obstore.store

    class Store(obstore.store.MemoryStore):
        """A store of which one request fails, or all from one on, before or after it had its effect."""

        requests, first, last, has_effect = 0, 0, 0, False

        def _asked(self, name, *given, **named):
            type(self).requests += 1
            fails = self.first <= self.requests <= self.last
            answer = None
            if not fails or (self.has_effect and "list" not in name):
                answer = getattr(super(), name)(*given, **named)
            if fails:
                raise obstore.exceptions.GenericError("the store is out of order")
            return answer

    for name in ("put", "copy", "delete", "list_with_delimiter_async", "list", "head", "get"):
        setattr(Store, name, lambda self, *given, name=name, **named: self._asked(name, *given, **named))
    return Store()


@pytest.fixture
def store(monkeypatch):
    obstore = pytest.importorskip("obstore.store")
    made = []

    def new(*_, **__):
        made.append(store_that_fails())
        return made[-1]

    monkeypatch.setattr(obstore, "S3Store", new)
    return made


def read_store(url, store):
    with contextlib.suppress(NotFoundError):
        urls = find_files(url, storage=storage_for(None, [url])).paths
        keys = [url.partition("://")[2].partition("/")[2] for url in urls]
        return sorted(h5py.File(io.BytesIO(bytes(store.get(key).bytes())))["x"][0] for key in keys)
    return []


@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_an_overwrite_of_which_any_request_to_a_store_fails(store, has_effect, dies):
    seen = set()
    for at in count(1):
        url = f"s3://bkt{next(BUCKETS)}/out"
        write(url, OLD)
        kind = type(store[-1])
        begun = kind.requests
        kind.has_effect, kind.first, kind.last = has_effect, begun + at, begun + (10**9 if dies else at)
        try:
            write(url, NEW, "overwrite")
            ended = True
        except RayH5Error:
            ended = False
        is_last = kind.requests < kind.first
        kind.first = kind.last = 0
        found = read_store(url, store[-1])
        assert found in (OLD, NEW), at
        seen.add(tuple(found))
        assert not ended or found == NEW
        write(url, MORE, "append")
        assert read_store(url, store[-1]) == found + MORE
        write(url, OLD, "overwrite")
        assert read_store(url, store[-1]) == OLD
        if is_last:
            break
    assert at > 10
    assert seen == {tuple(OLD), tuple(NEW)}
    assert sorted(meta["path"] for page in store[-1].list() for meta in page if "/." in meta["path"]) == []


def test_objects_that_a_store_does_not_copy_go_through_this_process(store, monkeypatch):
    import obstore.exceptions

    from ray_h5.storage.stores import object_store

    url = f"s3://bkt{next(BUCKETS)}/out"
    write(url, OLD)

    def copy(*_, **__):
        raise obstore.exceptions.GenericError("larger than the maximum allowable size")

    monkeypatch.setattr(type(store[-1]), "copy", copy)
    with pytest.raises(RayH5Error, match="maximum allowable size"):
        write(url, NEW, "overwrite")
    assert read_store(url, store[-1]) == OLD
    monkeypatch.setattr(object_store, "_MOST_COPIED_BYTES", 100)
    write(url, NEW, "overwrite")
    assert read_store(url, store[-1]) == NEW


@pytest.mark.usefixtures("store")
def test_inputs_in_a_store():
    folder = folder_of("s3://bkt/out")
    for url, is_input in (
        ("s3a://anonymous@bkt/out/a.h5", True),
        ("s3://bkt/out/sub/a.h5", False),
        ("/out/a.h5", False),
    ):
        assert bool(folder.input_among(["a.h5"], [url], folder._storage)) == is_input
