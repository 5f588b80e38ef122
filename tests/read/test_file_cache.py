"""Readers and their files: processes, threads, the cache, and the rows that can be asked for."""

import gc
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import OptionError, RayH5Error, RowIndexError, StaleIndexError
from ray_h5.hdf5.tree import tree
from ray_h5.read import file_caches, open_file
from ray_h5.read.jobs import ReadStats
from ray_h5.read.open_file import FileOnDisk
from tests.hdf5.h5kit import assert_same, in_fork, open_descriptors, random_rows, run_python
from tests.kit.files import save

VALUES = random_rows((40, 30), "i4")
NAMES = np.array([f"row {i}".encode() for i in range(40)], object)
STORAGES = {
    "gzip": {"chunks": (4, 30), "compression": "gzip"},
    "raw": {"chunks": (4, 30)},
    "contiguous": {},
}


@pytest.fixture
def path(tmp_path):
    """Write a file with one column that we decode and one that h5py reads."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=VALUES, **STORAGES["gzip"])
        file.create_dataset("s", data=NAMES)
    return str(tmp_path / "a.h5")


@pytest.fixture
def empty_cache():
    open_file.forget_all()


def in_cache():
    return [opened.path for opened in file_caches.FILES.values()]


def opened_by(reader):
    return reader._opened.value


def replace(path, values):
    os.replace(save(path + ".new", {"x": values, "s": NAMES}), path)


# Processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_fork(path, threads):
    reader = RowReader(path, threads=threads)
    first = reader.read(["x", "s"], [3, 1])
    held = opened_by(reader)
    rows = list(range(39, -1, -1))
    found = in_fork(lambda: (reader.read(["x", "s"], rows), opened_by(reader) is held))
    assert_same(found[0]["x"], VALUES[rows])
    assert_same(found[0]["s"], NAMES[rows])
    assert not found[1], "the child has handles of its own"
    # The parent goes on with its own.
    assert opened_by(reader) is held
    assert_same(reader.read(["x"], [3, 1])["x"], first["x"])


def test_fork_while_the_parent_reads_on(path):
    reader = RowReader(path)
    reader.read(["x"])
    stop, wrong = threading.Event(), []

    def check(i):
        if not np.array_equal(reader.read(["x"], [i % 40])["x"], VALUES[[i % 40]]):
            wrong.append(i)

    def read_on():
        i = 0
        while not stop.is_set():
            check(i := i + 1)

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        for _ in range(3):
            assert in_fork(lambda: [check(i) for i in range(60)] and wrong) == []
    finally:
        stop.set()
        thread.join()
    assert wrong == []


def test_fork_does_not_wait_for_locks_of_the_parent(path):
    reader = RowReader(path)
    reader.read(["x"])
    held = opened_by(reader)
    locked, done = threading.Event(), threading.Event()

    def hold():
        with held._lock, file_caches.FILES._state.value.lock:
            locked.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(20)
    try:
        found = in_fork(lambda: (reader.read(["x"], [5])["x"], RowReader(path).read(["s"], [5])["s"]))
    finally:
        done.set()
        thread.join()
    assert_same(found[0], VALUES[[5]])
    assert_same(found[1], NAMES[[5]])


def test_pickle_into_a_new_interpreter(path, tmp_path):
    reader = RowReader(path, expect=RowReader(path).identity)
    (tmp_path / "reader.pickle").write_bytes(pickle.dumps(reader))
    child = run_python(
        "import pickle, sys\n"
        "reader = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(reader.read(['x'], [7, 3])['x'].tobytes().hex())",
        str(tmp_path / "reader.pickle"),
    )
    assert child.returncode == 0, child.stderr
    assert bytes.fromhex(child.stdout) == VALUES[[7, 3]].tobytes()


def test_pickled_reader_remembers_what_it_expects(path):
    pickled = pickle.dumps(RowReader(path, expect=RowReader(path).identity))
    replace(path, VALUES + 1)
    copy = pickle.loads(pickled)
    for look in (lambda: copy.read(["x"]), lambda: copy.read(["x"]), lambda: copy.columns, lambda: copy.identity):
        with pytest.raises(StaleIndexError, match="the file changed between planning and reading"):
            look()


# The cache ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("empty_cache")
def test_no_more_files_stay_open_than_said(tmp_path):
    most = file_caches.MAX_OPEN_FILES
    paths = [save(tmp_path / f"{i}.h5", {"x": np.arange(i, i + 4)}, **STORAGES["contiguous"]) for i in range(most + 20)]
    gc.collect()
    before = open_descriptors()
    for i, path in enumerate(paths):
        with RowReader(path) as reader:
            assert reader.read(["x"])["x"].tolist() == [i, i + 1, i + 2, i + 3]
    del reader
    gc.collect()
    assert open_descriptors() - before == most
    assert len(in_cache()) == most
    # Those that were let go of are opened again.
    for i in (0, 5, most + 19):
        assert RowReader(paths[i]).read(["x"], [0])["x"].tolist() == [i]
    gc.collect()
    assert open_descriptors() - before == most


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    ("descriptors", "most", "expected"),
    [(None, None, 64), (1024, None, 64), (256, None, 64), (100, None, 25), (3, None, 1), (None, 256, 256), (100, 7, 7)],
)
def test_a_cache_takes_a_quarter_of_the_descriptors(monkeypatch, descriptors, most, expected):
    monkeypatch.setattr(file_caches, "max_open_files", lambda: descriptors)
    assert file_caches.max_open(most) == expected


@pytest.mark.parametrize(
    ("mebibytes", "files", "kept"), [(100, 1, 2), (1, 100, 2), (1, 1, 4), (100, 100, 1), (0, 0, 4)]
)
def test_joint_columns_count_by_their_index_and_by_their_files(monkeypatch, mebibytes, files, kept):
    class Table(list):
        nbytes = mebibytes << 20

    monkeypatch.setattr(file_caches, "max_open_files", lambda: None)
    column = SimpleNamespace(source=SimpleNamespace(table=Table(range(files))))
    file_caches.JOINT_COLUMNS.clear()
    for number in range(4):
        file_caches.JOINT_COLUMNS.put(number, [column] if mebibytes else [])
    assert len([*file_caches.JOINT_COLUMNS.values()]) == kept
    file_caches.JOINT_COLUMNS.clear()


@pytest.mark.parametrize("cache", [file_caches.FILES, file_caches.OTHERS])
def test_files_count_by_their_indexes_and_the_last_one_stays(cache):
    open_file.forget_all()
    for mebibytes, kept in ((100, 1), (100, 2), (100, 2), (300, 1), (1, 1)):
        cache.put(object(), SimpleNamespace(cached_bytes=mebibytes << 20))
        assert len(cache) == kept
    open_file.forget_all()
    assert not len(cache)


def test_a_file_is_forgotten_with_those_that_it_leads_to(tmp_path, path):
    open_file.forget_all()
    paths = [save(tmp_path / f"source{number}.h5", {"x": VALUES + number}, **STORAGES["gzip"]) for number in range(2)]
    stack = h5py.VirtualLayout((80, 30), "i4")
    for number, source in enumerate(paths):
        stack[40 * number : 40 * number + 40] = h5py.VirtualSource(source, "x", VALUES.shape)
    with h5py.File(tmp_path / "both.h5", "w") as file:
        file.create_virtual_dataset("v", stack)
    both = RowReader(tmp_path / "both.h5", allow_external=[tmp_path])
    assert_same(both.read(["v"], [79, 3])["v"], np.stack([VALUES[39] + 1, VALUES[3]]))
    RowReader(path).read(["x"])
    assert sorted(file.path for file in file_caches.OTHERS.values()) == paths
    assert len(file_caches.JOINT_COLUMNS) == 1
    open_file.forget(lambda paths: [each.endswith("both.h5") for each in paths])
    assert in_cache() == [path]
    assert (len(file_caches.OTHERS), len(file_caches.JOINT_COLUMNS)) == (0, 0)
    assert_same(both.read(["v"], [79, 3])["v"], np.stack([VALUES[39] + 1, VALUES[3]]))  # what it holds stays open


def test_readers_of_evicted_files_read_on(tmp_path, monkeypatch):
    monkeypatch.setattr(file_caches, "MAX_OPEN_FILES", 2)
    paths = [save(tmp_path / f"{i}.h5", {"x": np.arange(i, i + 4)}) for i in range(6)]
    readers = [RowReader(path) for path in paths]
    for i, reader in enumerate(readers * 2):
        assert reader.read(["x"], [1])["x"].tolist() == [i % 6 + 1]


def replaced_and_still_open():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("(deleted)" in os.readlink(link) for link in links if os.path.lexists(link))


@pytest.mark.usefixtures("empty_cache")
def test_files_that_were_replaced_do_not_stay_open(path):
    gc.collect()
    before = replaced_and_still_open()
    for i in range(20):
        replace(path, VALUES + i)
        assert_same(RowReader(path).read(["x"], [1])["x"], VALUES[[1]] + i)
    gc.collect()
    assert replaced_and_still_open() == before
    assert len(in_cache()) == 1


@pytest.mark.usefixtures("empty_cache")
def test_a_second_reader_opens_nothing(path, monkeypatch):
    RowReader(path).read(["x"])
    opened = []
    monkeypatch.setattr(tree, "open_h5", opened.append)
    second = RowReader(path)
    assert_same(second.read(["x"])["x"], VALUES)
    assert opened == []


@pytest.mark.usefixtures("empty_cache")
def test_reading_leaves_no_descriptor_behind(path):
    reader = RowReader(path)
    reader.read(["x", "s"])
    gc.collect()
    before = open_descriptors()
    for _ in range(20):
        reader.read(["x", "s"], [1])
        assert set(reader.columns) == {"x", "s"}
        with pytest.raises(RayH5Error):
            reader.column("gone")
    assert open_descriptors() == before


@pytest.mark.usefixtures("empty_cache")
def test_failing_to_open_leaves_no_descriptor_behind(tmp_path):
    (tmp_path / "text.h5").write_text("text" * 1000)
    cut = save(tmp_path / "cut.h5", {"x": np.zeros(1000)})
    os.truncate(cut, 5000)
    gc.collect()
    before = open_descriptors()
    for name in ("text.h5", "cut.h5", "gone.h5") * 5:
        with pytest.raises(RayH5Error):
            RowReader(tmp_path / name)
    gc.collect()
    assert open_descriptors() == before


@pytest.mark.usefixtures("empty_cache")
def test_groups_and_policies_do_not_share_a_file(tmp_path):
    save(tmp_path / "a.h5", {"x": [1, 2], "group/x": [3, 4]})
    for _ in range(2):
        assert RowReader(tmp_path / "a.h5").read(["x"])["x"].tolist() == [1, 2]
        assert RowReader(tmp_path / "a.h5", group="group").read(["x"])["x"].tolist() == [3, 4]
    assert len(in_cache()) == 2


# Threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_a_reader(tmp_path, storage, threads):
    path = save(tmp_path / "a.h5", {"x": VALUES, "y": VALUES + 1}, **STORAGES[storage])
    reader = RowReader(path, threads=threads)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        rng = np.random.default_rng(0)
        wanted = [rng.integers(0, 40, 60) for _ in range(60)]
        with ThreadPoolExecutor(4) as pool:
            for rows, found in zip(wanted, pool.map(lambda rows: reader.read(["x", "y"], rows), wanted), strict=True):
                assert_same(found["x"], VALUES[rows])
                assert_same(found["y"], VALUES[rows] + 1)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("other", ["opens it again", "closes it"])
def test_a_thread_lets_go_of_the_file_meanwhile(path, monkeypatch, other):
    reader = RowReader(path)
    reader.read(["x"])
    check_unchanged, left = FileOnDisk.check_unchanged, [None]

    def let_go_and_check(opened, *sources):
        # The reader has its file in hand, and has read nothing yet.
        if left:
            left.clear()
            reader._reopen() if other == "opens it again" else reader.close()
        check_unchanged(opened, *sources)

    monkeypatch.setattr(FileOnDisk, "check_unchanged", let_go_and_check)
    try:
        assert_same(reader.read(["x"], [5])["x"], VALUES[[5]])
    except OptionError as exc:
        assert other == "closes it"
        assert "closed" in str(exc)  # noqa: PT017  either is right
    assert not left


def test_a_file_is_opened_while_a_thread_finds_its_columns(tmp_path):
    path = save(tmp_path / "a.h5", {f"x{number}": [number] for number in range(1000)})
    reader = RowReader(path)
    with eager_switches(), ThreadPoolExecutor(1) as pool:
        finds = pool.submit(lambda: [reader.find([f"x{number}"]) for number in range(1000)])
        while not finds.done():
            RowReader(path)  # the cache counts the bytes of what is known of the file
    finds.result()


FORKS = """
import os, signal, sys, threading, warnings
from ray_h5 import RowReader
warnings.simplefilter("ignore")  # of a fork while threads run
sys.setswitchinterval(1e-6)
paths, has_ended = sys.argv[1:], threading.Event()
def read(number):
    while not has_ended.is_set():
        number += 1
        RowReader(paths[number % len(paths)]).read(["x"])
threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(RowReader(paths[5]).read(["x"])["x"].tolist() != [5])
    if status := os.waitpid(child, 0)[1]:
        break
has_ended.set()
for thread in threads:
    thread.join()
sys.exit(status)
"""


def test_a_process_is_forked_while_threads_open_files(tmp_path):
    # More than stay open, and of a format that libhdf5 is asked about.
    paths = [save(tmp_path / f"{number}.h5", {"x": [number]}, libver="latest") for number in range(100)]
    done = run_python(FORKS, *paths)
    assert done.returncode == 0, done.stderr


def test_no_count_is_lost():
    total, each = ReadStats(), ReadStats(1, 2, 3)
    with eager_switches(), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [total.add(each) for _ in range(1000)], range(8)))
    assert total == ReadStats(8_000, 16_000, 24_000)


@contextmanager
def eager_switches():
    """Python's threads take turns after a microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("threads", [1, 2, 16, 100])
def test_more_threads_than_work(path, threads):
    reader = RowReader(path, threads=threads)
    assert_same(reader.read(["x"], [3])["x"], VALUES[[3]])
    assert_same(reader.read(["x", "s"])["x"], VALUES)


def test_an_error_in_a_thread_is_the_readers(tmp_path):
    path = save(tmp_path / "a.h5", {"x": VALUES}, **STORAGES["gzip"])
    with h5py.File(path, "r+") as file:
        file["x"].id.write_direct_chunk((36, 0), b"????")
    before = threading.active_count()
    with pytest.raises(RayH5Error, match="rows 36 to 39"):
        RowReader(path, threads=3).read(["x"])
    assert threading.active_count() == before


# Closing and options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda reader: reader.read(["x"]),
        lambda reader: reader.read(["x"], []),
        lambda reader: reader.read([], [0]),
        lambda reader: reader.find([]),
        lambda reader: reader.read_into({"x": np.empty((1, 30), "i4")}, np.array([0])),
        lambda reader: reader.columns,
        lambda reader: reader.column("x"),
        lambda reader: reader.identity,
        lambda reader: reader.num_rows,
    ],
)
def test_use_after_close(path, use):
    with RowReader(path) as reader:
        reader.read(["x"])
    with pytest.raises(OptionError, match=r"a\.h5: this reader is closed; make a new one"):
        use(reader)
    reader.close()


@pytest.mark.parametrize("threads", [0, -1, None, "2", 1.5, True])
def test_threads_that_are_none(path, threads):
    with pytest.raises(OptionError, match=f"threads={threads!r}: expected an integer of 1 or more") as caught:
        RowReader(path, threads=threads)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("path", [None, 3, ["a.h5"]])
def test_paths_that_are_none(path):
    with pytest.raises(OptionError, match=r"path=.*: expected the path of one file"):
        RowReader(path)


@pytest.mark.parametrize("allow_external", [None, 3, [None]])
def test_folders_that_are_none(path, allow_external):
    with pytest.raises(OptionError, match=r"allow_external=.*: expected folders"):
        RowReader(path, allow_external=allow_external)


@pytest.mark.parametrize("option", ["expect", "known", "zip_file", "swmr"])
@pytest.mark.parametrize("value", [5, [1], {}, object()])
def test_options_of_other_types(path, option, value):
    with pytest.raises(OptionError, match=rf"^{option}=.*: expected "):
        RowReader(path, **{option: value})
    with RowReader(path) as reader, pytest.raises(OptionError, match=r"^out=.*: expected an array for each column"):
        reader.read_into(value or 5, [0])


@pytest.mark.parametrize("columns", [None, 1, b"x", [1], ["x", b"s"], [["x"]], [None]])
def test_names_that_are_none(path, columns):
    reader = RowReader(path)
    for look in (reader.read, reader.find, reader.stored_bytes, reader.notes):
        with pytest.raises(OptionError, match="expected a list of names"):
            look(columns)


# Rows --------------------------------------------------------------------------------------------

BAD_ROWS = [
    ([-1], RowIndexError, "row -1 is not among its 40 rows (0 to 39)"),
    ([0, 40], RowIndexError, "row 40 is not among its 40 rows (0 to 39)"),
    ([0, 2**62, -5], RowIndexError, f"row {2**62} is not among its 40 rows"),
    (np.array([2**64 - 1], "u8"), RowIndexError, f"row {2**64 - 1} is not among its 40 rows"),
    (np.array([2**63 + 3], "u8"), RowIndexError, f"row {2**63 + 3} is not among its 40 rows"),
    (np.zeros(39, bool), RowIndexError, "expected a mask of 40 rows, found one of 39"),
    (np.zeros(41, bool), RowIndexError, "expected a mask of 40 rows, found one of 41"),
    ([True, False], RowIndexError, "expected a mask of 40 rows, found one of 2"),
    ([0.0, 1.0], OptionError, "expected a slice or a 1-d array of int or bool, found float64 (2,)"),
    (["1"], OptionError, "expected a slice or a 1-d array of int or bool"),
    ([[0, 1], [2, 3]], OptionError, "found int64 (2, 2)"),
    (np.zeros((40, 1), bool), OptionError, "found bool (40, 1)"),
    (3, OptionError, "found int64 ()"),
    (None, OptionError, "expected a slice or a 1-d array"),
    ([2**70], OptionError, "expected a slice or a 1-d array"),
    ({1, 2}, OptionError, "expected a slice or a 1-d array"),
    ([[1], [1, 2]], OptionError, "expected a slice or a 1-d array of int or bool, found lists of several lengths"),
    (slice(None, None, 0), OptionError, "expected a slice of integers, of a step other than 0"),
    (slice(1.5, 3), OptionError, "rows=slice(1.5, 3, None): expected a slice of integers"),
]


@pytest.mark.parametrize(("rows", "leaf", "message"), BAD_ROWS, ids=lambda value: str(value)[:20])
def test_rows_that_are_none(path, rows, leaf, message):
    reader = RowReader(path)
    with pytest.raises(leaf) as caught:
        reader.read(["x"], rows)
    assert message in str(caught.value)
    if leaf is RowIndexError:
        assert isinstance(caught.value, IndexError)
        assert str(caught.value).startswith(f"{path}: ")
    assert reader.stats == ReadStats(), "nothing was read"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        (np.array([], "i8"), []),
        ((3, 1), [3, 1]),
        (range(5, 0, -2), [5, 3, 1]),
        (np.array([7], "u1"), [7]),
        (np.array([1, 2, 3, 4])[::-2], [4, 2]),
        (slice(100, 200), []),
        (slice(-2, None), [38, 39]),
        (slice(3, -30, 3), [3, 6, 9]),
        (np.arange(40) % 20 == 1, [1, 21]),
    ],
    ids=str,
)
def test_rows_of_every_kind(path, rows, expected):
    found = RowReader(path).read(["x", "s"], rows)
    assert_same(found["x"], VALUES[expected])
    assert_same(found["s"], NAMES[expected])


def test_no_columns(path):
    assert RowReader(path).read([], [1]) == {}


NO_FIT = [
    ("rows below", (2, 30), [0, -1], None, RowIndexError),
    ("rows above", (2, 30), [0, 40], None, RowIndexError),
    ("too few rows", (1, 30), [0, 1], None, OptionError),
    ("narrower", (2, 29), [0, 1], None, OptionError),
    ("wider", (2, 60), [0, 1], None, OptionError),
    ("another axis", (2, 15, 2), [0, 1], None, OptionError),
    ("an axis less", (60,), [0, 1], None, OptionError),
    ("places above", (2, 30), [0, 1], [1, 2], OptionError),
    ("places below", (2, 30), [0, 1], [-1, 0], OptionError),
    ("fewer places", (2, 30), [0, 1], [1], OptionError),
]


@pytest.mark.parametrize("storage", STORAGES)
def test_read_into_refuses_what_does_not_fit(tmp_path, storage):
    # Rows go to their places as bytes: where the shape is another one, they would land in others.
    reader = RowReader(save(tmp_path / "a.h5", {"x": VALUES}, **STORAGES[storage]))
    for why, shape, rows, places, leaf in NO_FIT:
        out = np.zeros(shape, "i4")
        with pytest.raises(leaf):
            reader.read_into({"x": out}, np.array(rows), None if places is None else np.array(places))
        assert not out.any(), why


@pytest.mark.parametrize("places", [[2, 0], np.array([2, 0], "u8"), np.array([2, 0], "i2"), range(2, -1, -2)], ids=str)
def test_places_of_every_kind(path, places):
    out = np.zeros((3, 30), "i4")
    RowReader(path).read_into({"x": out}, [5, 9], places)
    assert_same(out, np.stack([VALUES[9], np.zeros(30, "i4"), VALUES[5]]))


@pytest.mark.parametrize("places", [[2.0, 0.0], [True, False], [[2, 0]], 3, "x", [[1], [1, 2]], [2**63, 0]], ids=str)
def test_places_that_are_none(path, places):
    out = np.zeros((3, 30), "i4")
    with pytest.raises(OptionError, match="places"):
        RowReader(path).read_into({"x": out}, [5, 9], places)
    assert not out.any()


def test_a_list_is_no_array_to_read_into(path):
    with pytest.raises(OptionError, match="column 'x': expected a numpy array to read into, found a list"):
        RowReader(path).read_into({"x": [[0] * 30] * 3}, [0, 1])


@pytest.mark.parametrize("storage", STORAGES)
def test_columns_without_rows(tmp_path, storage):
    path = save(tmp_path / "a.h5", {"x": np.zeros((0, 30), "f4")}, maxshape=(None, 30) if STORAGES[storage] else None)
    reader = RowReader(path)
    assert reader.num_rows == 0
    for rows in ([], slice(None), np.zeros(0, bool)):
        assert reader.read(["x"], rows)["x"].shape == (0, 30)
    with pytest.raises(RowIndexError, match=r"row 0 is not among its 0 rows$"):
        reader.read(["x"], [0])


def test_results_belong_to_the_caller(path):
    reader = RowReader(path)
    first = reader.read(["x"], [1, 2])["x"]
    first[:] = 0
    assert_same(reader.read(["x"], [1, 2])["x"], VALUES[[1, 2]])
    large = [reader.read(["x"], np.arange(4000) % 40)["x"] for _ in range(3)]
    assert all(each.flags.writeable and each.flags.c_contiguous for each in large)
    large[0][:] = 0
    assert_same(large[1], VALUES[np.arange(4000) % 40])


def test_another_name_of_a_column_is_not_listed(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.arange(3), "obs/y": np.arange(3)})
    reader = RowReader(path)
    assert sorted(reader.columns) == ["obs/y", "x"]
    assert list(reader.read(["/x", "./obs/y"])) == ["/x", "./obs/y"]
    assert sorted(RowReader(path).columns) == sorted(reader.columns) == ["obs/y", "x"]


def test_an_array_that_cannot_be_written_to_is_no_place_to_read_into(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(4)})
    out = np.zeros(4, np.int64)
    out.flags.writeable = False
    with pytest.raises(OptionError, match="found one that cannot be written to"):
        RowReader(tmp_path / "a.h5").read_into({"x": out}, slice(None))
