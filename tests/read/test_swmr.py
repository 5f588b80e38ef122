"""Files that a writer in SWMR mode has open, or had when it died."""

import contextlib
import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import CorruptChunkError, WriterActiveError
from ray_h5.read import file_reads
from tests.hdf5.h5kit import assert_same, by_h5py, program, run_python
from tests.kit.files import save

STORAGES = {
    "raw": {},
    "gzip": {"compression": "gzip", "shuffle": True},
    "lzf": {"compression": "lzf", "fletcher32": True},
    "one row a chunk": {"chunks": (1, 30), "compression": "lzf"},
    "split": {"chunks": (4, 7), "compression": "gzip"},
}

WRITER = """
import sys, h5py, numpy as np

def rows(start, stop):
    return (np.arange(start, stop)[:, None] * 1000 + np.arange(30)).astype("i4")

path, options = sys.argv[1], eval(sys.argv[2])
file = h5py.File(path, "w", libver="latest")
x = file.create_dataset("x", (0, 30), "i4", maxshape=(None, 30), **{"chunks": (4, 30), **options})
s = file.create_dataset("s", (0,), "S4", maxshape=(None,), chunks=(4,))
file.swmr_mode = True
for line in sys.stdin:
    count = int(line)
    n = len(x)
    for dataset, values in ((x, rows(n, n + count)), (s, [b"%d" % i for i in range(n, n + count)])):
        dataset.resize(n + count, axis=0)
        dataset[n:] = values
    x.flush()
    s.flush()
    print(n + count, flush=True)
"""


def rows(start, stop):
    return (np.arange(start, stop)[:, None] * 1000 + np.arange(30)).astype("i4")


@contextlib.contextmanager
def writer(path, options):
    """Run a writer; yield what lets it add rows and flush them."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), repr(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def add(count):
        process.stdin.write(f"{count}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        yield add
    finally:
        process.communicate(timeout=60)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.h5")


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_as_of_opening(path, storage):
    with writer(path, STORAGES[storage]) as add:
        assert add(6) == 6
        with pytest.raises(WriterActiveError, match="swmr=True"):
            RowReader(path)
        first = RowReader(path, swmr=True)
        assert first.num_rows == 6
        assert_same(first.read(["x"])["x"], rows(0, 6))
        for added in (7, 9, 30):
            # The last chunk is written again, and many follow it.
            assert add(added - first.num_rows if added == 7 else added) > 0
            found = first.read(["x", "s"], [5, 0, 2])
            assert_same(found["x"], rows(0, 6)[[5, 0, 2]])
            assert found["s"].tolist() == [b"5", b"0", b"2"]
        assert first.num_rows == 6
        later = RowReader(path, swmr=True)
        assert later.num_rows == 46
        assert_same(later.read(["x"])["x"], rows(0, 46))
        assert_same(pickle.loads(pickle.dumps(first)).read(["x"], [5])["x"], rows(5, 6))
    assert_same(RowReader(path).read(["x"])["x"], by_h5py(path, "x"))


def test_columns_looked_at_before_rows_were_added_and_chunks_after(path):
    with writer(path, STORAGES["gzip"]) as add:
        add(6)
        reader = RowReader(path, swmr=True)
        add(50)
        assert_same(reader.read(["x"])["x"], rows(0, 6))
        assert reader.read(["s"])["s"].tolist() == [b"%d" % i for i in range(6)]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_writer_that_does_not_wait(path, storage):
    with writer(path, STORAGES[storage]) as add:
        add(10)
        done = threading.Event()

        def write_on():
            for _ in range(150):
                add(3)
            done.set()

        thread = threading.Thread(target=write_on)
        thread.start()
        seen = []
        while not done.is_set():
            reader = RowReader(path, swmr=True)
            found = reader.read(["x"])["x"]
            seen.append(len(found))
            # Rows that the writer has not flushed yet may be there as the fill value.
            written = found.any(axis=1)
            assert_same(found[written], rows(0, len(found))[written])
            assert written[: seen[0]].all()
        thread.join()
        assert seen == sorted(seen)
        assert_same(RowReader(path, swmr=True).read(["x"])["x"], rows(0, 460))


def test_a_writer_that_died(path):
    dead = WRITER.replace("print(", "import os; os._exit(0); print(")
    subprocess.run([sys.executable, "-c", dead, path, "{}"], input="9\n", text=True, check=True)
    with pytest.raises(WriterActiveError):
        RowReader(path)
    assert_same(RowReader(path, swmr=True).read(["x"])["x"], rows(0, 9))


def test_a_writer_that_is_not_in_swmr_mode(path):
    code = "import sys, h5py\nfile = h5py.File(sys.argv[1], 'w')\nfile['x'] = range(5)\nfile.flush()"
    with program(code, path), pytest.raises(WriterActiveError):
        RowReader(path, swmr=True)


def test_a_chunk_that_is_read_while_it_is_written_is_read_again(path, monkeypatch):
    monkeypatch.setattr(file_reads, "_WAITS_S", (0.0, 0.0))
    save(path, {"x": rows(0, 9)}, chunks=(4, 30), compression="gzip")
    reader = RowReader(path, swmr=True)
    jobs_of, torn = reader.jobs_of, [1, 1]

    def tear(*arguments):
        if torn:
            torn.pop()
            raise CorruptChunkError("half of one and half of another")
        return jobs_of(*arguments)

    monkeypatch.setattr(reader, "jobs_of", tear)
    assert_same(reader.read(["x"])["x"], rows(0, 9))
    torn += [1, 1, 1]
    with pytest.raises(CorruptChunkError, match="half of one"):
        reader.read(["x"])
    monkeypatch.setattr(reader, "_access", replace(reader._access, swmr=False))
    torn += [1]
    with pytest.raises(CorruptChunkError, match="half of one"):
        reader.read(["x"])
    assert not torn


def test_writer_that_dies_is_no_reason_to_say_swmr(path):
    # Whoever does not ask for it gets no half-written file.
    run_python(
        "import sys, h5py, os\nf = h5py.File(sys.argv[1], 'w', libver='latest')\nf['x'] = [1]\nf.flush()\nos._exit(0)",
        path,
    )
    with pytest.raises(WriterActiveError, match="h5clear"):
        RowReader(path)
