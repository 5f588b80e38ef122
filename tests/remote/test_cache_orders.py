"""A cache that is too small for all rows: it has those that the order needs first. Requests are counted."""

import gc

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest

from ray_h5 import Shuffle
from ray_h5.torch_data import H5Dataset, loader
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

    def __init__(self, server, tmp_path, share, name="nvme", knows_order=True, **options):
        cache = {}
        if share is not None:
            cache = {"cache_dir": str(tmp_path / name), "cache_bytes": int(ALL * ROW_BYTES * share) + 200_000}
        given = {"columns": ["x", "id"], "kept_bytes": 0, "threads": 1, **options}
        self.batches = loader("s3://bkt/*.h5", BATCH, storage_options=options_of(server, **cache), **given)
        self.batches.prefetch_factor = 4
        if not knows_order:
            self.batches.dataset.follow = lambda _: None
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


@pytest.mark.usefixtures("stored")
def test_an_epoch_over_a_full_cache_makes_no_requests(server, tmp_path):
    for shuffle in (Shuffle("rows"), Shuffle(weights="weight", rows_per_epoch=2 * ALL)):
        epochs = Epochs(server, tmp_path, 1.2, shuffle=shuffle)
        epochs.fetched()
        for _ in range(4):  # rows of a small weight come late
            left = epochs.requests()
        assert left <= (0 if shuffle.weights is None else 12)
    assert epochs.batches.sampler.order.may_repeat


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_rows_that_come_once_an_epoch(server, tmp_path, share):
    keeps = Epochs(server, tmp_path, share, "keeps", knows_order=False, shuffle=Shuffle("rows"))
    knows = Epochs(server, tmp_path, share, "knows", shuffle=Shuffle("rows"))
    kept, known = ([epochs.fetched() for _ in range(4)] for epochs in (keeps, knows))
    assert sum(known[1:]) < 1.05 * sum(kept[1:])


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


@pytest.mark.usefixtures("stored")
def test_a_small_cache_makes_no_more_requests_than_none(server, tmp_path):
    """Rows that are read together are joined, as far as they are without a cache, though some of them are on disk."""
    without, small = (Epochs(server, tmp_path, share, shuffle=Shuffle("rows")) for share in (None, 0.3))
    for epochs in (without, small):
        epochs.batches.prefetch_factor = 10
    most = without.requests()
    small.requests()
    assert max(small.requests() for _ in range(3)) <= most


@pytest.mark.usefixtures("stored")
def test_rows_of_large_weights_stay(server, tmp_path):
    shuffle = Shuffle(weights="weight")
    keeps = Epochs(server, tmp_path, 0.15, "keeps", knows_order=False, shuffle=shuffle)
    knows = Epochs(server, tmp_path, 0.15, "knows", shuffle=shuffle)
    kept, known = ([epochs.requests() for _ in range(5)] for epochs in (keeps, knows))
    assert sum(known[2:]) < 0.85 * sum(kept[2:])


@pytest.mark.usefixtures("stored")
def test_other_rows_take_the_room_of_those_that_are_not_read_any_more(server, tmp_path):
    first = Epochs(server, tmp_path, 0.5, predicate=pc.field("id") < 300)
    first.fetched()
    del first
    gc.collect()
    second = Epochs(server, tmp_path, 0.5, predicate=pc.field("id") >= 260)
    assert second.fetched() > 1
    assert 0 in (second.fetched() for _ in range(12))  # it does not look for room all the time


@pytest.mark.usefixtures("stored")
def test_other_columns_take_the_room_of_those_that_are_not_read_any_more(server, tmp_path, stored):
    for path in stored.glob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.create_dataset("y", data=file["x"][:], chunks=file["x"].chunks)
    first = Epochs(server, tmp_path, 1.1, columns=["y", "x", "id"])
    first.fetched()
    del first
    gc.collect()
    second = Epochs(server, tmp_path, 1.1)
    assert 0 in (second.fetched() for _ in range(12))


@pytest.mark.usefixtures("stored")
def test_rows_for_training_and_for_validation_keep_their_room(server, tmp_path):
    """The same files, with a predicate each, in turn: neither may evict what the other needs."""
    split = pc.field("id") < 400
    both = [Epochs(server, tmp_path, 0.5, predicate=each) for each in (split, ~split)]
    fetched = [sum(epochs.fetched() for epochs in both) for _ in range(4)]
    assert max(fetched[1:]) < 0.65 * fetched[0]


@pytest.mark.usefixtures("stored")
def test_two_loaders_at_once(server, tmp_path):
    shuffles = Shuffle(weights="weight"), Shuffle("rows", seed=5)
    both = [Epochs(server, tmp_path, 0.3, shuffle=shuffle).batches for shuffle in shuffles]
    for _ in range(3):
        for batches in zip(*both, strict=True):
            for batch in batches:
                np.testing.assert_array_equal(batch["x"].numpy().astype(np.uint64), values_of(batch["id"]))


@pytest.mark.usefixtures("stored")
def test_an_iteration_that_is_left_and_a_resumed_one(server, tmp_path):
    epochs = Epochs(server, tmp_path, 0.3, shuffle=Shuffle(weights="weight"))
    epochs.fetched()
    iterator = iter(epochs.batches)
    for _ in range(20):
        next(iterator)
    state = epochs.batches.state_dict()
    del iterator
    epochs.batches.load_state_dict(state)
    assert sum(len(batch["id"]) for batch in epochs.batches) == ALL - 20 * BATCH
    epochs.fetched()


@pytest.mark.usefixtures("stored")
def test_single_samples_come_from_the_disk(server, tmp_path):
    cache = {"cache_dir": str(tmp_path / "nvme"), "cache_bytes": "1GB"}
    dataset = H5Dataset("s3://bkt/*.h5", ["x", "id"], kept_bytes=0, storage_options=options_of(server, **cache))
    for _ in range(2):
        server.forget()
        for row in range(0, ALL, 9):
            np.testing.assert_array_equal(dataset[row].x.numpy().astype(np.uint64), values_of([row])[0])
    assert server.requests() == []
