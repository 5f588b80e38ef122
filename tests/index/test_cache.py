import errno
import gc
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest

from ray_h5 import Groups, H5Dataset, Windows, any_equal, atomic, ragged, row_mask
from ray_h5.errors import OptionError, StaleIndexError
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import build_index
from ray_h5.index.scan_files import Lookup
from ray_h5.index.stored import facts_store, index_files
from ray_h5.index.stored.facts_as_bytes import FOREIGN, FactsReader, FactsWriter
from ray_h5.index.stored.facts_store import MEMORY, FactsStore
from ray_h5.scope import Scope
from ray_h5.torch_data import where
from tests.conftest import write_five_files
from tests.hdf5.h5kit import run_python
from tests.index.kit import plan_files
from tests.kit.files import save
from tests.rows.test_ranges_equal_numpy import random_matrix, write_matrix

PREDICATE = where(label=1, name=["p1", "p4", "p7"]) & ~where(steps=any_equal(5))


@pytest.fixture
def files(five_files):
    return with_steps(five_files)


def with_steps(paths):
    for path in paths:
        with h5py.File(path, "a") as file:
            file["steps"] = np.repeat(file["label"][:][:, None] + 3, 4, axis=1)
    return paths


@pytest.fixture
def kept(tmp_path, files):
    """A folder with the index of the files, and what they are planned to be."""
    folder = str(tmp_path / "index")
    return folder, planned(files, folder)


def planned(paths, folder):
    """Plan as a new process would: nothing is in memory."""
    MEMORY.clear()
    facts_store._LOADED.clear()
    index, plan = plan_files(paths, columns=["signal"], predicate=PREDICATE, index_dir=folder)
    return {
        "rows": index.files.starts.tolist(),
        "columns": index.columns,
        "chunk_rows": index.chunk_rows,
        "selection": plan.selection.tolist(),
        "identities": index.files.identities.tolist(),
    }


@pytest.fixture
def opened(monkeypatch):
    found = []
    really = Scope.open
    monkeypatch.setattr(
        Scope, "open", lambda self, path, *state: found.append(path.removeprefix("s3:/")) or really(self, path, *state)
    )
    return found


def files_of_index(folder):
    return sorted(Path(folder).iterdir())


def index_file(folder):
    (path,) = files_of_index(folder)
    return path


def seal(path, body):
    header = index_files._HEADER.pack(index_files._MAGIC, index_files.VERSION, len(body), index_files._checksum(body))
    path.write_bytes(header + body)


def cut_at(size):
    return lambda path: os.truncate(path, size)


def flip_at(where_):
    def spoil(path):
        data = bytearray(path.read_bytes())
        data[where_] ^= 1
        path.write_bytes(data)

    return spoil


def written_over(start, data):
    return lambda path: path.write_bytes(path.read_bytes()[:start] + data + path.read_bytes()[start + len(data) :])


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def a_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def a_link_to_itself(path):
    path.unlink()
    path.symlink_to(path)


def sealed_without_a_batch(path):
    with pa.ipc.new_stream(sink := pa.BufferOutputStream(), pa.schema([("a", pa.int8())])):
        pass
    seal(path, sink.getvalue().to_pybytes())


def sealed_wrongly(path):
    """As many zeros as a header says, whose checksum is wrong."""
    size = 200 << 20
    path.write_bytes(index_files._HEADER.pack(index_files._MAGIC, index_files.VERSION, size, bytes(16)))
    os.truncate(path, index_files._HEADER.size + size)


def sparse(path):
    """A hundred gigabytes, of which the disk has nothing, and a header that says so."""
    size = 100 << 30
    path.write_bytes(index_files._HEADER.pack(index_files._MAGIC, index_files.VERSION, size, bytes(16)))
    os.truncate(path, index_files._HEADER.size + size)


def of_another_scope(path):
    """Return an index file of files that were opened in another way."""
    folder = path.parent.parent / "other"
    folder.mkdir()
    save(folder / "a.h5", {"g/x": np.arange(3)})
    FileOptions.of(str(folder / "a.h5"), group="g", index_dir=folder / "index").index()
    return index_file(folder / "index").read_bytes()


SPOILT = {
    "a pipe": a_pipe,
    "a device": a_device,
    "sparse": sparse,
    "sparse, and cut": lambda path: os.truncate(path, 100 << 30),
    "zeros": lambda path: (os.truncate(path, 0), os.truncate(path, 2 << 30)),
    "zeros with a header": sealed_wrongly,
    "a link to itself": a_link_to_itself,
    "sealed without a batch": sealed_without_a_batch,
    "empty": cut_at(0),
    "cut in the magic": cut_at(5),
    "cut in the header": cut_at(20),
    "cut after the header": cut_at(index_files._HEADER.size),
    "cut in the body": cut_at(300),
    "cut at the end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a bit of the checksum": flip_at(25),
    "a bit of the body": flip_at(-40),
    "another magic": written_over(0, b"ray_h5iy"),
    "another version": written_over(8, b"\x01"),
    "another length": written_over(12, b"\x01\x02"),
    "text": lambda path: path.write_text("hello, this is not an index, and it is longer than its header is"),
    "of another scope": lambda path: path.write_bytes(of_another_scope(path)),
    "a folder": a_folder,
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"of": 1})),
    "sealed nothing": lambda path: seal(path, b""),
    "sealed text": lambda path: seal(path, b"hello" * 100),
    "sealed zeros": lambda path: seal(path, bytes(500)),
    "sealed half": lambda path: seal(path, path.read_bytes()[index_files._HEADER.size :][:700]),
    "deep": lambda path: seal(path, b"\x91" * 100_000),
}


def known_and(paths, folder):
    """Plan in a process that knows the files, with a folder."""
    return plan_files(paths, columns=["signal"], predicate=PREDICATE, index_dir=folder)[1].selection.tolist()


@pytest.mark.parametrize(
    "spoil", [Path.unlink, cut_at(20), flip_at(-40), a_folder], ids=["gone", "cut", "bit", "folder"]
)
def test_an_index_that_is_spoilt_meanwhile_is_restored(kept, files, opened, spoil):
    folder, expected = kept
    del opened[:]
    for _ in range(2):
        spoil(index_file(folder))
        assert known_and(files, folder) == [1, 4, 7]
    assert planned(files, folder) == expected
    assert opened == []


def test_facts_of_rows_that_are_known_already_stay(tmp_path):
    path, folder = str(tmp_path / "a.h5"), str(tmp_path / "index")
    with h5py.File(path, "w") as file:
        for name in "XY":
            write_matrix(file.create_group(name), random_matrix(50, 30), {"chunks": (8,)})
        for number in range(5):
            file[f"groups/{number}/x"], file[f"groups/{number}/y"] = [1, 2], [3]

    def table(columns, **options):
        return FileOptions.of(path, **options).index(columns).tables[0]

    groups = {"group": "groups", "rows": Groups("*")}
    for names, options in (("XY", {}), ("xy", groups)):
        MEMORY.clear()
        table([names[0]], index_dir=folder, **options)
        MEMORY.clear()
        table([names[1]], **options)
        table([names[1]], index_dir=folder, **options)  # what the process knows is stored
        MEMORY.clear()
        found = table([names[0]], index_dir=folder, **options)
        assert {*found.chunked_by} | {*(found.groups.columns if found.groups else ())} == {*names}
        assert all(said in found.bounds for said, _ in found.chunked_by.values())
        assert found.holds(table([names[1]], **options))


def test_two_processes_that_save_at_one_time_keep_the_facts_of_both(files, tmp_path):
    folder, scope = index_files.check_index_dir(tmp_path / "index"), Scope()
    found, stores = [], []
    for name in ("label", "score"):
        found.append(Lookup(scope).ask(files[:1], Question((name,)))[0])
        MEMORY.clear()
        stores.append(FactsStore(scope, folder))
        assert stores[-1].get(files[0]) is None  # it has looked at the folder
    for facts, store in zip(found, stores, strict=True):
        store.add(facts)
        store.save()
    assert len(files_of_index(folder)) == 2
    both = FactsStore(scope, folder)
    assert {*both.get(files[0]).columns} == {"label", "score"}
    both.add(both.get(files[0]))
    both.save()
    both.add(found[0])  # nothing is written again
    both.save()
    assert len(files_of_index(folder)) == 2


@pytest.mark.parametrize("most", [2, 100])
def test_many_runs_have_few_index_files(tmp_path, monkeypatch, opened, most):
    monkeypatch.setattr(facts_store, "_MOST_FILES", most)
    paths = [str(tmp_path / f"{i}.h5") for i in range(6)]
    for i, path in enumerate(paths):
        save(path, {"x": np.arange(i + 1)})
    for path in paths:
        MEMORY.clear()
        plan_files([path], index_dir=tmp_path / "index")
    assert len(files_of_index(tmp_path / "index")) <= most
    os.unlink(paths.pop())
    MEMORY.clear()
    opened.clear()
    assert plan_files(paths, index_dir=tmp_path / "index")[0].num_rows == 15
    assert opened == []


def test_an_index_that_is_there_is_not_read_again(kept, files, monkeypatch):
    folder, expected = kept
    planned(files, folder)
    used = []
    for module in (index_files, atomic):
        monkeypatch.setattr(module, "open", lambda *named: used.append(named), raising=False)
    assert known_and(files, folder) == expected["selection"]
    assert used == []


@pytest.fixture(scope="module")
def kept_for_all(tmp_path_factory):
    """Files and their index, for tests that leave both as they were."""
    files = with_steps(write_five_files(tmp_path_factory.mktemp("kept")))
    folder = str(tmp_path_factory.mktemp("index"))
    return files, folder, planned(files, folder)


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_what_cannot_be_trusted_is_made_anew(kept_for_all, opened, caplog, spoil):
    files, folder, expected = kept_for_all
    path = index_file(folder)
    spoil(path)
    caplog.clear()
    tracemalloc.start()
    with caplog.at_level(logging.INFO, "ray_h5"):
        assert planned(files, folder) == expected
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert [path.name in record.message for record in caplog.records] == [True], caplog.text
    assert "not used, and made again" in caplog.text
    assert {*files} <= set(opened)
    assert index_file(folder) != path
    del opened[:]
    assert planned(files, folder) == expected
    assert opened == []


@pytest.mark.parametrize("rows", [None, Groups("*")], ids=["axis", "groups"])
def test_names_that_are_not_utf_8_are_kept(tmp_path, rows):
    group, windows = ("", None) if rows is None else ("g/", Windows({"caf\udce9": [0]}))
    path = save(tmp_path / "a.h5", {f"{group}x": np.arange(4), f"{group}o": np.array([0, 1, 4])})
    options = {"rows": rows, "windows": windows, "index_dir": str(tmp_path / "index")}
    for _ in range(2):
        MEMORY.clear()
        dataset = H5Dataset(path, {"caf\udce9": ragged("x", offsets="o")}, **options)
        found = [row["caf\udce9"] if rows is None else row["caf\udce9"][0] for row in dataset]
        assert [values.tolist() for values in found] == [[0], [1, 2, 3]]


@pytest.mark.parametrize("text", [",", "x", "f99"])
def test_what_is_no_dtype_is_no_fact(text):
    data = FactsWriter().value(np.dtype("<f4")).replace(b"\xa3<f4", bytes([0xA0 + len(text)]) + text.encode())
    with pytest.raises(FOREIGN):
        FactsReader([]).value(data)


def wrong_index(path, folder, change):
    """Write an index file that says something else of a file."""
    (facts,) = Lookup(Scope()).ask([path], Question(("signal",)))
    store = FactsStore(Scope(), index_files.check_index_dir(folder))
    store.add(replace(facts, columns={"signal": change(facts.columns["signal"])}))
    store.save()
    MEMORY.clear()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": np.dtype("i4")}, r"planned as 4 rows of int32 \(2, 3\), found 4 of float32 \(2, 3\)"),
        ({"dtype": np.dtype(bool)}, "rows of bool"),
        ({"row_shape": (3, 2)}, r"rows of float32 \(3, 2\), found 4 of float32 \(2, 3\)"),
        ({"row_shape": ()}, "rows of float32, found"),
        ({}, "planned as 1099511627776 rows"),
    ],
)
@pytest.mark.parametrize("cast", [{}, {"signal": "float16"}])
def test_what_an_index_says_wrongly_is_an_error(tmp_path, files, change, says, cast):
    """Also where nothing in it is at odds with the rest; of a column that is cast, the dtype does not matter."""
    folder = str(tmp_path / "index")
    expected = H5Dataset(files[0], ["signal"], dtypes=cast)[0]
    wrong_index(files[0], folder, lambda column: replace(
        column, spec=column.spec.with_type(**change), num_rows=column.num_rows if change else 2**40))  # fmt: skip
    dataset = H5Dataset(files[0], ["signal"], dtypes=cast, index_dir=folder)
    if cast and "dtype" in change:
        assert dataset[0]["signal"].equal(expected["signal"])
        return
    if cast:
        says = "planned as"
    for _ in range(2):
        with pytest.raises(StaleIndexError, match=f"f0.h5: column 'signal': .*{says}.*entry in index_dir is wrong"):
            dataset[0]


@pytest.mark.parametrize("rows", [3, 2**40])
@pytest.mark.parametrize("predicate", [where(label=1), where(steps=any_equal(5)), where(mask=row_mask())])
def test_values_are_not_read_for_rows_that_only_an_index_has(tmp_path, files, rows, predicate):
    folder = str(tmp_path / "index")
    with h5py.File(files[0], "a") as file:
        file["mask"] = np.array([1, 2])
    expected = plan_files(files[:1], columns=["signal"], predicate=predicate)[1].selection.tolist()
    MEMORY.clear()
    wrong_index(files[0], folder, lambda column: replace(column, num_rows=rows))
    options = {"columns": ["signal"], "predicate": predicate, "index_dir": folder}
    with pytest.raises(StaleIndexError, match=r"f0.h5: column 'signal': .* entry in index_dir is wrong"):
        plan_files(files[:1], **options)
    # It is wrong in the memory of the process by then; a new one reads what was made again.
    MEMORY.clear()
    index_file(folder).unlink()
    assert plan_files(files[:1], **options)[1].selection.tolist() == expected


def test_an_index_that_would_be_too_large_is_not_kept(files, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(index_files, "_MAX_BODY_BYTES", 100)
    assert planned(files, str(tmp_path / "index"))["selection"] == [1, 4, 7]
    assert files_of_index(tmp_path / "index") == []
    assert "not stored: " in caplog.text


@pytest.mark.parametrize(
    ("mode", "owner", "says"),
    [
        (0o777, None, r"index_dir='.*': everybody can write there \(mode 777\)"),
        (0o1777, None, r"everybody can write there \(mode 1777\)"),
        (0o755, 12345, r"it belongs to another user \(uid 12345\)"),
        (0o755, None, None),
        (0o775, None, None),
    ],
)
def test_a_folder_that_others_can_change_is_told_of_once(files, tmp_path, caplog, mode, owner, says):
    folder = tmp_path / "shared"
    folder.mkdir()
    if owner is not None:
        _give(folder, owner)
    folder.chmod(mode)
    for _ in range(2):
        assert planned(files, str(folder))["selection"] == [1, 4, 7]
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(found) == (says is not None)
    assert says is None or re.search(says, found[0])


@pytest.mark.parametrize(("mode", "looked_at"), [(0o777, True), (0o1777, True), (0o755, False)])
def test_what_a_stranger_puts_where_everybody_can_write_is_not_used(kept, files, opened, caplog, mode, looked_at):
    folder, expected = kept
    _give(index_file(folder), 12345)
    Path(folder).chmod(mode)
    assert planned(files, folder) == expected
    assert (files[0] in opened) == looked_at
    assert ("another user put it there (uid 12345)" in caplog.text) == looked_at


def _give(path, owner):
    try:
        os.chown(path, owner, -1)
    except PermissionError:
        pytest.skip("only root gives files to others")


def test_a_folder_with_something_in_it_is_left(kept, files):
    folder, expected = kept
    path = index_file(folder)
    a_folder(path)
    (path / "mine").touch()
    assert planned(files, folder) == expected
    assert (path / "mine").exists()


def test_what_may_not_be_read_is_made_again(kept, files, monkeypatch, caplog):
    folder, expected = kept
    path = str(index_file(folder))

    def refusing(name, mode="r", **options):
        if name == path and mode == "rb":
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return open(name, mode, **options)

    facts_store._LOADED.clear()
    monkeypatch.setattr(index_files, "open", refusing, raising=False)
    assert planned(files, folder) == expected
    assert len({record.getMessage() for record in caplog.records}) == 1


def test_an_index_file_of_an_earlier_version_is_refused_by_name(files, tmp_path, caplog):
    (tmp_path / "index").mkdir()
    before = tmp_path / "index" / "a568070cb8e6fbae4b7001c0a7cb16e9.h5index"
    before.write_bytes(b"ray_h5ix" + bytes(100))
    for _ in range(2):
        assert planned(files, str(tmp_path / "index"))["selection"] == [1, 4, 7]
    assert caplog.text.count("an earlier version wrote it") == 1
    assert before.exists()


def test_a_file_that_changed_is_looked_at_again(kept, files, opened, caplog):
    folder, _expected = kept
    with h5py.File(files[2], "a") as file:
        file["label"][0] = 2  # p4
    with caplog.at_level(logging.INFO, "ray_h5"):
        found = planned(files, folder)
    assert found["selection"] == [1, 7]
    assert len(caplog.records) == 1
    assert f"{files[2]}: its facts in index_dir are outdated" in caplog.text
    assert set(opened) == {files[2]}
    os.utime(files[3])
    del opened[:]
    planned(files, folder)
    assert set(opened) == {files[3]}


def test_memory_is_bounded(files, monkeypatch):
    MEMORY.clear()
    monkeypatch.setattr(MEMORY, "max_items", 3)
    for _ in range(3):
        assert plan_files(files, predicate=PREDICATE)[1].selection.tolist() == [1, 4, 7]
        assert len(MEMORY) <= 3
    monkeypatch.setattr(MEMORY, "max_items", 100)
    monkeypatch.setattr(MEMORY, "max_bytes", 60)
    for predicate in (PREDICATE, where(score=1.0), PREDICATE):
        plan_files(files, predicate=predicate)
        assert 0 <= MEMORY.total_bytes <= 60
        assert sum(size for _, size in MEMORY._state.value.items.values()) == MEMORY.total_bytes
        assert len(MEMORY) < 5
    MEMORY.clear()
    assert MEMORY.total_bytes == 0


@pytest.mark.slow
def test_memory_holds_no_more_than_it_counts(tmp_path, monkeypatch):
    paths = [str(tmp_path / f"{i}.h5") for i in range(20)]
    for path in paths:
        save(path, {"s": np.arange(20_000)})
    MEMORY.clear()
    monkeypatch.setattr(MEMORY, "max_bytes", 2 * 161_000)
    gc.collect()  # of tests before this one
    before = pa.total_allocated_bytes()
    plan_files(paths, predicate=where(s=[3, 5]))
    gc.collect()
    assert pa.total_allocated_bytes() - before == 2 * 160_000
    assert 2 * 160_000 < MEMORY.total_bytes <= 2 * 161_000
    MEMORY.clear()


def test_threads_that_plan_at_one_time_do_not_disturb_each_other(tmp_path):
    paths = [str(tmp_path / f"{i}.h5") for i in range(12)]
    for path in paths:
        save(path, {f"s{column}": np.arange(10) for column in range(12)})
    found = []

    def plan(thread, turn):
        columns = [f"s{thread}", f"s{(thread * 7 + turn) % 12}"]
        predicate = where(**{f"s{(thread * 3 + 1) % 12}": [3, 5]})
        found.append(plan_files(paths, columns=columns, predicate=predicate)[1].num_rows)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(4):
            MEMORY.clear()
            threads = [threading.Thread(target=plan, args=(thread, turn)) for thread in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert found == [24] * 32
    # What one thread found out is not lost to another.
    assert {f"s{thread}" for thread in range(8)} <= FactsStore(Scope()).get(paths[0]).columns.keys()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, files):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/index"):
        with pytest.raises(OptionError, match=r"index_dir=.*nothing can be written there"):
            plan_files(files, index_dir=str(folder))


def test_an_index_in_a_folder_that_is_only_read(kept, files, monkeypatch, caplog):
    """As on a share that is mounted without the right to write: mkdir of a folder that is there is no error."""

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    folder, expected = kept
    before = sorted(os.listdir(folder))
    monkeypatch.setattr(index_files.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(index_files, "written_whole", refuse)
    assert planned(files, folder) == expected
    with h5py.File(files[0], "a") as file:  # its facts are found again, and not stored
        file["more"] = np.arange(len(file["label"]))
    for _ in range(2):
        assert len(H5Dataset(files[0], ["more"], index_dir=folder)) == len(H5Dataset(files[0], ["more"]))
    assert sorted(os.listdir(folder)) == before
    (said,) = (record.message for record in caplog.records if "only read" in record.message)
    assert said == f"index_dir={folder!r}: only read, not stored: Read-only file system"
    os.mkdir(folder + "2")
    with pytest.raises(OptionError, match="nothing can be written there: Read-only file system"):
        plan_files(files, index_dir=folder + "2")


def test_names_of_columns_may_be_texts_of_numpy(tmp_path, files):
    for names in (np.array(["label"]), {"label": np.str_("label")}, ["label"]):
        assert len(H5Dataset(files, names, index_dir=tmp_path / "index")) == len(H5Dataset(files, ["label"]))
    assert repr(Groups("g*", attrs=np.array(["n"]))) == repr(Groups("g*", attrs=["n"]))
    assert Groups("g*", attrs=None) == Groups("g*")


def test_an_empty_name_is_no_folder(files):
    with pytest.raises(OptionError, match=r"index_dir='': expected a folder"):
        plan_files(files, index_dir="")


def test_a_full_disk_leaves_what_was_there(kept, files, monkeypatch):
    folder, expected = kept
    before = {path.name: path.read_bytes() for path in files_of_index(folder)}
    os.utime(files[1])

    class Full:
        def __init__(self, *_):
            self.file = open(*_)  # noqa: SIM115  closed on leaving

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.file.write(bytes(data)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "open", Full, raising=False)
    with pytest.raises(OptionError, match=rf"index_dir='{folder}': .*cannot be written there: No space left"):
        planned(files, folder)
    assert {path.name: path.read_bytes() for path in files_of_index(folder)} == before
    monkeypatch.undo()
    assert planned(files, folder)["selection"] == expected["selection"]


@pytest.mark.slow
def test_writers_at_one_time_leave_whole_files(tmp_path, files):
    folder = str(tmp_path / "index")
    code = """
import sys
from ray_h5.predicates.criteria import where
from tests.index.kit import plan_files
from ray_h5.index.stored.facts_as_bytes import FOREIGN, FactsReader, FactsWriter
from ray_h5.index.stored.facts_store import MEMORY
for i in range(10):
    MEMORY.clear()
    for path in sys.argv[3:]:
        __import__("os").utime(path) if sys.argv[2] == "touch" else None
    try:
        plan_files(sys.argv[3:], columns=["signal"], predicate=where(label=1), index_dir=sys.argv[1])
    except Exception as exc:
        assert type(exc).__name__ == "StaleIndexError", exc
"""
    running = [subprocess.Popen([sys.executable, "-c", code, folder, kind, *files]) for kind in ("touch", "", "")]
    threads = [threading.Thread(target=build_index, args=(files, ["signal"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [each.wait(60) for each in running] == [0, 0, 0]
    for thread in threads:
        thread.join()
    assert {path.suffix for path in files_of_index(folder)} == {".h5index"}
    assert planned(files, folder)["selection"] == [1, 4, 7]


def test_facts_of_every_kind_of_column_are_kept(tmp_path):
    path, folder = str(tmp_path / "a.h5"), str(tmp_path / "index")
    columns = {
        "u": np.arange(3, dtype="u2"),
        "f": np.array([1, np.nan, -0.0], "f2"),
        "b": np.array([True, False, True]),
        "z": np.array([1j, 2, 3], "c8"),
        "s": np.array(["a", "ä", ""], dtype=h5py.string_dtype()),
        "pair": np.array([(1, 2.0), (3, 4.0), (5, 6)], dtype=[("one", "i4"), ("two", "f8")]),
        "opaque": np.array([b"abc", b"de\0", b""], "V3"),
        "x": np.zeros((3, 2, 2)),
    }
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
        file.create_dataset("lists", (3,), h5py.vlen_dtype(np.dtype("c8")))[1] = np.array([1j, 2])
    MEMORY.clear()

    def found():
        index, plan = plan_files([path], predicate=where(u=[0, 2], b=True, s=["a", ""]), index_dir=folder)
        scalars = [name for name, spec in index.columns.items() if spec.is_scalar]
        return (
            index.columns,
            plan.selection.tolist(),
            {name: str(values.combine_chunks()) for name, values in index.values(scalars).items()},
        )

    first = found()
    assert first[1] == [0, 2]
    MEMORY.clear()
    assert found() == first
    MEMORY.clear()
    facts = FactsStore(Scope(), folder).get(path)
    facts_store._LOADED.clear()
    again = FactsStore(Scope(), folder).get(path)
    assert (again.columns, again.listing, again.identity) == (facts.columns, facts.listing, facts.identity)
    assert {spec: str(values) for spec, values in again.values.items()} == {
        spec: str(values) for spec, values in facts.values.items()
    }


def test_a_change_between_index_and_values_is_an_error(files, tmp_path):
    index = build_index(files)
    with h5py.File(files[0], "a") as file:
        file["label"][0] = 9
    plan_files(files, predicate=where(label=1), index_dir=str(tmp_path / "index"))  # which learns of it
    with pytest.raises(StaleIndexError, match=r"f0\.h5: the file changed"):
        index.values(["label"])


@pytest.mark.parametrize("folder", ["s3://bucket/index", "file:///index"])
def test_a_url_is_no_folder(files, folder):
    with pytest.raises(OptionError, match=rf"index_dir='{folder}': expected a folder of the local file system"):
        plan_files(files, index_dir=folder)


def test_a_url_that_has_lost_a_slash_is_named(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for lost in (Path("s3://bucket/a.h5"), "gs:/bucket/a.h5", "https:/host/a.h5"):
        with pytest.raises(OptionError, match=r"a URL begins with \w+://"):
            H5Dataset(lost)
    with pytest.raises(OptionError, match="a URL begins with"):
        H5Dataset(files, index_dir=Path("s3://bucket/index"))
    (tmp_path / "s3:").symlink_to(Path(files[0]).parent)
    assert len(H5Dataset(f"s3:/{Path(files[0]).name}"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["categories", "groups", "layouts"])
def test_the_bytes_that_are_counted_are_those_that_are_held(tmp_path, kind):
    rows = None if kind == "categories" else Groups("demo_*")
    columns = ["obs/c"] if rows is None else None
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if kind == "categories":
            column = file.create_group("obs/c")
            column["codes"] = np.arange(30_000, dtype="i4")
            column["categories"] = np.array([f"name {i:8}" for i in range(30_000)], object)
            column.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
            file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
            frame = {"encoding-type": "dataframe", "encoding-version": "0.2.0", "column-order": ["c"], "_index": "i"}
            file["obs"].attrs.update(frame)
            file["obs/i"] = np.arange(30_000)
        for i in range(1000 if rows else 0):
            chunks = (1 + i % 50, 2) if kind == "layouts" else None
            file.create_dataset(f"demo_{i}/x", data=np.zeros((50, 2)), chunks=chunks)
    H5Dataset(tmp_path / "a.h5", columns=columns, rows=rows)  # what is imported and cached once
    MEMORY.clear()
    gc.collect()
    tracemalloc.start()
    H5Dataset(tmp_path / "a.h5", columns=columns, rows=rows)
    gc.collect()
    counted, held = MEMORY.total_bytes, tracemalloc.get_traced_memory()[0]
    MEMORY.clear()
    gc.collect()
    freed = held - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert freed / 2 < counted < freed * 3


@pytest.mark.slow  # starts two processes
def test_an_index_on_a_disk_is_read_without_pandas(tmp_path):
    save(tmp_path / "a.h5", {f"g{number}/x": np.arange(number + 1) for number in range(3)})
    code = """
import sys
from ray_h5.index.file_options import FileOptions
from ray_h5.rows.row_kind_options import Groups
index = FileOptions.of(sys.argv[1], rows=Groups("g*"), index_dir=sys.argv[2]).index()
print(index.num_rows, "pandas" in sys.modules)
"""
    folder = tmp_path / "index"
    first, again = (run_python(code, str(tmp_path / "a.h5"), str(folder)).stdout.split() for _ in range(2))
    assert first[0] == "3"
    assert again == ["3", "False"]
