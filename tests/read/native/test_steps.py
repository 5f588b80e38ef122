"""Tables of jobs: the compiled loop and the steps in Python do the same, and count the same."""

import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import StaleIndexError, TransientIOError, TruncatedFileError
from ray_h5.read.jobs import Worker
from ray_h5.read.native import job_table as table
from ray_h5.read.native import steps_in_python as steps
from ray_h5.read.native.job_table import (
    COLD_ON,
    HINTED,
    HINTS,
    HINTS_OFF,
    IN_MEMORY,
    NO_BOXES,
    NO_PIECES,
    PLAIN,
    RAW,
    Field,
    JobTable,
    Origin,
    Piece,
    new_times,
)
from ray_h5.read.native.library import compiled_loop
from ray_h5.storage.local import LocalFile
from tests.hdf5.h5kit import assert_same

STORED = np.random.default_rng(0).integers(0, 256, 1 << 15, dtype=np.uint8)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel") / "bytes"
    path.write_bytes(STORED.tobytes())
    return LocalFile.open(str(path))


def copies(source, ranges, out):
    """Return a table that copies byte ranges one after the other into `out`."""
    jobs = np.zeros((len(Field), len(ranges)), np.int64)
    offsets, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
    jobs[Field.FILE], jobs[Field.PIPELINE] = source.descriptor, RAW
    jobs[Field.OFFSET], jobs[Field.SIZE], jobs[Field.DECODED] = offsets, sizes, sizes
    jobs[Field.DESTINATION] = out.ctypes.data + np.cumsum(sizes) - sizes
    return JobTable(
        jobs, NO_PIECES, NO_BOXES, np.zeros((2, len(ranges)), np.int64), [Origin(source, None, None, None)], [out]
    )


def in_python(made):
    steps.run_in_python(made, 0, len(made), np.zeros(4, np.int64))


def in_loop(made):
    Worker().run_table(made)


@given(
    st.lists(st.tuples(st.integers(0, 20000), st.sampled_from([1, 4, 100, 4095, 4096, 5000])), min_size=1),
    st.booleans(),
)
def test_ranges_are_copied_and_counted_alike(source, ranges, ascending):
    ranges = sorted(ranges) if ascending else ranges
    expected = np.concatenate([STORED[offset : offset + size] for offset, size in ranges])
    counted = []
    for compiled in (True, False):
        out = np.zeros(len(expected), np.uint8)
        made = copies(source, ranges, out)
        if compiled:
            counts = Worker().run_table(made)
        else:
            steps.run_in_python(made, 0, len(made), counts := np.zeros(4, np.int64))
        assert_same(out, expected)
        counted.append(counts[:3].tolist())
    assert counted[0] == counted[1]


def test_boxes_and_pieces(source):
    block = STORED[1000 : 1000 + 120].reshape(2, 3, 4, 5)
    for runner in (in_loop, in_python):
        out = np.zeros((2, 4, 6, 7), np.uint8)
        jobs = np.zeros((len(Field), 1), np.int64)
        jobs[:, 0] = [source.descriptor, 1000, 120, RAW, 0, 120, 0, 0, 3]
        boxes = np.zeros((1, table.BOX_FIELDS), np.int64)
        boxes[0, :8] = [2, 5, 3, 20, 42, 4, 5, 7]
        pieces = np.zeros((len(Piece), 3), np.int64)
        at = out.ctypes.data
        pieces[:, 0] = [0, at, 0, 0]
        pieces[:, 1] = [60, at + out[0].nbytes, 0, 0]
        pieces[:, 2] = [7, at + out[0].nbytes - 3, 3, PLAIN]
        runner(JobTable(jobs, pieces, boxes, np.zeros((2, 1), np.int64), [Origin(source, None, None, None)], [out]))
        expected = np.zeros_like(out)
        expected[:, :3, :4, :5] = block
        expected[0].reshape(-1)[-3:] = block.reshape(-1)[7:10]
        assert_same(out, expected)


def test_hints_are_given_once_while_reads_wait(source):
    if compiled_loop() is None or not hasattr(os, "posix_fadvise"):
        pytest.skip("no hints")
    ranges = [(i * 5000, 50) for i in range(6)]  # too far apart to be read together
    times = new_times()
    times[:2] = 512, 1  # reads have waited
    out = np.zeros(10000, np.uint8)
    first = copies(source, ranges, out)
    counts = Worker(times).run_table(first)
    assert 0 < counts[HINTS] < counts[HINTED] == 6
    times[COLD_ON], times[HINTS_OFF] = 1, 1
    assert Worker(times).run_table(first)[HINTS] == 0
    assert Worker().run_table(first)[HINTS] == 0


def test_hints_go_on_after_small_rows_that_lie_in_pages_of_others(source):
    """A call reads a column of large rows, then one of small rows, which take no time. The next call has large ones."""
    if compiled_loop() is None or not hasattr(os, "posix_fadvise"):
        pytest.skip("no hints")
    times = new_times()
    times[:2] = 8192, 1
    small = copies(source, [(24000 - i * 40, 8) for i in range(600)], np.zeros(4800, np.uint8))
    assert Worker(times).run_table(small)[HINTS] > 0
    assert times[COLD_ON]
    large = copies(source, [(26000 - i * 4200, 4096) for i in range(7)], np.zeros(7 * 4096, np.uint8))
    for _ in range(2000):
        Worker(times).run_table(large)
        if not times[COLD_ON]:
            return
    pytest.fail("hints about bytes that are in memory never end")


def test_a_read_past_the_end_is_the_named_error(source):
    out = np.zeros(20, np.uint8)
    made = copies(source, [(0, 10), (len(STORED) - 5, 10)], out)
    with pytest.raises(TruncatedFileError, match=f"expected 10 bytes at offset {len(STORED) - 5}, found 5"):
        Worker().run_table(made)
    assert_same(out[:10], STORED[:10])


def test_a_read_that_fails_in_the_loop_is_tried_again_in_python_and_then_named():
    out = np.zeros(20, np.uint8)
    made = copies(LocalFile.open("/proc/self/mem"), [(0, 20)], out)  # nothing is at its beginning
    with pytest.raises(TransientIOError, match=os.strerror(errno.EIO)):
        Worker().run_table(made)


def test_a_file_without_a_descriptor_is_read_by_its_methods(source, monkeypatch):
    monkeypatch.setattr(LocalFile, "descriptor", table.NO_DESCRIPTOR)
    out = np.zeros(10, np.uint8)
    counts = Worker().run_table(copies(source, [(7, 10)], out))
    assert_same(out, STORED[7:17])
    assert counts[:2].tolist() == [1, 10]


JOB, BOX_PIECE, PIECE, BOX = range(4)


@pytest.mark.parametrize("runner", [in_loop, in_python])
@pytest.mark.parametrize(
    ("which", "field", "by"),
    [
        (JOB, Field.DESTINATION, 1),
        (JOB, Field.DESTINATION, -241),
        (JOB, Field.DESTINATION, 1 << 62),
        (JOB, Field.SIZE, 1),
        (BOX_PIECE, Piece.SOURCE, 1),
        (BOX_PIECE, Piece.DESTINATION, 121),
        (BOX_PIECE, Piece.DESTINATION, -121),
        (PIECE, Piece.SOURCE, 1),
        (PIECE, Piece.SOURCE, -61),
        (PIECE, Piece.DESTINATION, 301),
        (PIECE, Piece.DESTINATION, -1),
        (PIECE, Piece.SIZE, 1),
        (PIECE, Piece.SIZE, -61),
        (BOX, 1, 1),  # bytes of a run
        (BOX, 1, -6),
        (BOX, 2, 1),  # runs
        (BOX, 3, 1),  # between them, in the chunk
        (BOX, 4, 121),  # between them, in the array
        (BOX, 4, 1 << 62),
    ],
)
def test_nothing_outside_of_an_array_is_written_or_read(source, runner, which, field, by):
    """An array of 360 bytes: a job fills the last third, a box the middle, and a piece the first half of the first."""
    memory = np.full(1080, 7, np.uint8)
    out, stored = memory[360:720], STORED[1000:1120].copy()
    at = out.ctypes.data
    jobs = np.zeros((len(Field), 2), np.int64)
    jobs[:, 0] = [source.descriptor, 1000, 120, RAW, 0, 120, at + 240, 0, 0]
    jobs[:, 1] = [IN_MEMORY, stored.ctypes.data, 120, RAW, 0, 120, 0, 0, 2]
    boxes = np.zeros((1, table.BOX_FIELDS), np.int64)
    boxes[0, :5] = [1, 5, 24, 5, 5]
    pieces = np.zeros((len(Piece), 2), np.int64)
    pieces[:, 0] = [0, at + 120, 0, 0]
    pieces[:, 1] = [60, at, 60, PLAIN]
    made = JobTable(jobs, pieces, boxes, np.zeros((2, 2), np.int64), [Origin(source, None, None, None)], [out, stored])
    runner(made)
    assert_same(out, np.concatenate([stored[60:], np.full(60, 7, np.uint8), stored, stored]))
    tables = [jobs[:, 0], pieces[:, 0], pieces[:, 1], boxes[0]]
    tables[which][field] += by
    memory[:] = 7
    with pytest.raises(StaleIndexError, match="bytes do not fit"):
        runner(made)
    assert (memory[:360] == 7).all()
    assert (memory[720:] == 7).all()
