"""Orders over a cache, also one that is too small for all rows: it keeps what it has. Requests are counted."""

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest

from ray_h5 import H5Dataset, Shuffle, loader
from tests.remote.kit import check_epoch, epoch_of, options_of, write

FILES, ROWS, ROW_BYTES = 2, 240, 32 << 10
ALL = FILES * ROWS
BATCH = 4


@pytest.fixture
def stored(bucket):
    """Two files of rows of 32 KiB, whose weights differ a lot."""
    for file in range(FILES):
        rows = np.arange(file * ROWS, (file + 1) * ROWS)
        with h5py.File(bucket / f"run_{file}.h5", "w", fs_strategy="page", fs_page_size=1 << 16) as out:
            out["id"], out["weight"] = rows, 1.0 / (rows % ROWS + 1)
            out.create_dataset("x", data=values_of(rows), chunks=(1, ROW_BYTES // 8))
    return bucket


def values_of(rows):
    return np.asarray(rows, np.uint64)[:, None] * np.uint64(ROW_BYTES) + np.arange(ROW_BYTES // 8, dtype=np.uint64)


class Epochs:
    """Epochs of a loader over a cache for a share of all rows, or without one; each value is checked."""

    def __init__(self, server, tmp_path, share, **options):
        cache = {}
        if share is not None:
            cache = {"cache_dir": str(tmp_path / "nvme"), "cache_bytes": int(ALL * ROW_BYTES * share) + 200_000}
        given = {"columns": ["x", "id"], "kept_bytes": 0, "threads": 1, **options}
        self.batches = loader("s3://bkt/*.h5", BATCH, storage_options=options_of(server, **cache), **given)
        self.batches.prefetch_factor = 4
        self.server = server

    def fetched(self):
        """Take one epoch, and return the megabytes that it fetched."""
        self.server.forget()
        for batch in self.batches:
            np.testing.assert_array_equal(batch["x"].numpy().astype(np.uint64), values_of(batch["id"]))
        return sum(each.nbytes for each in self.server.requests(method="GET")) / 1e6

    def requests(self):
        """Take one epoch, and return how many requests it made."""
        self.fetched()
        return len(self.server.requests(method="GET"))


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
def test_an_epoch_over_a_full_cache_makes_no_requests(server, tmp_path):
    for shuffle in (Shuffle("rows"), Shuffle(weights="weight", rows_per_epoch=2 * ALL)):
        epochs = Epochs(server, tmp_path, 1.2, shuffle=shuffle)
        epochs.fetched()
        for _ in range(4):  # rows of a small weight come late
            left = epochs.requests()
        assert left <= (0 if shuffle.weights is None else 12)


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_rows_that_come_once_an_epoch(server, tmp_path, share):
    """A cache for a share of the rows saves that share, also after the run ends and another one begins."""
    epochs = Epochs(server, tmp_path, share, shuffle=Shuffle("rows"))
    first, *later = [epochs.fetched() for _ in range(3)]
    later.append(Epochs(server, tmp_path, share, shuffle=Shuffle("rows", seed=1)).fetched())
    assert max(later) < (1.1 - share) * first


def test_a_small_cache_fetches_no_more_than_none(server, bucket, tmp_path):
    """What has no room is not fetched by whole blocks."""
    write(bucket / "run_0.h5", apart=70 << 10)
    fetched = []
    for cache in ({}, {"cache_dir": str(tmp_path / "nvme"), "cache_bytes": 100_000}):
        batches = epoch_of("s3://bkt/*.h5", server, 4, storage_options=options_of(server, **cache), threads=1)
        batches.prefetch_factor = 1
        for _ in range(3):
            server.forget()
            assert check_epoch(batches, len(batches.dataset)) is None
        fetched.append(sum(each.nbytes for each in server.requests(method="GET")))
    assert fetched[1] < 1.1 * fetched[0]


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
def test_a_small_cache_makes_no_more_requests_than_none(server, tmp_path):
    """Rows that are read together are joined, as far as they are without a cache, though some of them are on disk."""
    without, small = (Epochs(server, tmp_path, share, shuffle=Shuffle("rows")) for share in (None, 0.3))
    for epochs in (without, small):
        epochs.batches.prefetch_factor = 10
    most = without.requests()
    small.requests()
    assert max(small.requests() for _ in range(3)) <= most


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
def test_rows_for_training_and_for_validation_keep_their_room(server, tmp_path):
    """The same files, with a predicate each, in turn: neither may evict what the other needs."""
    split = pc.field("id") < 400
    both = [Epochs(server, tmp_path, 0.5, predicate=each) for each in (split, ~split)]
    fetched = [sum(epochs.fetched() for epochs in both) for _ in range(4)]
    assert max(fetched[1:]) < 0.65 * fetched[0]


@pytest.mark.usefixtures("stored")
def test_single_samples_come_from_the_disk(server, tmp_path):
    cache = {"cache_dir": str(tmp_path / "nvme"), "cache_bytes": "1GB"}
    dataset = H5Dataset("s3://bkt/*.h5", ["x", "id"], kept_bytes=0, storage_options=options_of(server, **cache))
    for _ in range(2):
        server.forget()
        for row in range(0, ALL, 9):
            np.testing.assert_array_equal(dataset[row].x.numpy().astype(np.uint64), values_of([row])[0])
    assert server.requests() == []
