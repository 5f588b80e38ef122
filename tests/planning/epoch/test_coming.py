"""When rows come next: the same as a search through the order itself."""

import numpy as np
import pytest

from ray_h5 import Shuffle
from ray_h5.hdf5.remote.row_places import RowPlaces
from ray_h5.planning.epoch.coming import BlocksDue, ComingRows
from ray_h5.planning.epoch.order import plain_order
from ray_h5.storage.disk_cache import BLOCK_BYTES, LATER, NEVER

ROWS = 40


def order_of(kind):
    weights = 1 / np.arange(1, ROWS + 1)
    shuffles = {
        "rows": Shuffle("rows", seed=3),
        "weights": Shuffle(weights=weights, seed=3),
        "fewer": Shuffle(weights=weights, seed=3, rows_per_epoch=17),
    }
    return plain_order(ROWS, shuffles[kind])


def next_of(order, epoch, position):
    """Return the position of the next time of each row, in this epoch and the next."""
    count = order.epoch_rows
    both = [order.selected_indices(np.arange(count), epoch + more).tolist() for more in range(2)]
    sequence = both[0] + both[1]
    return [next((at for at in range(position, 2 * count) if sequence[at] == row), 2 * count) for row in range(ROWS)]


@pytest.mark.parametrize("kind", ["rows", "weights", "fewer"])
def test_when_rows_come(kind):
    order = order_of(kind)
    coming, count = ComingRows(order), order.epoch_rows
    for epoch in range(3):
        coming.begin(epoch, 2)
        for ended in range(2, count + 1, 3):
            begun = min(ended + 5, count)
            coming.advance(begun, ended)
            expected = np.array(next_of(order, epoch, ended)) / count
            np.testing.assert_allclose(coming.due(0, ROWS), expected)
            np.testing.assert_allclose(coming.due(3, 9), expected[3:9])
            again = np.array(next_of(order, epoch, begun))
            room = coming.room(0, ROWS)
            assert (room[again == 2 * count] == NEVER).all()
            assert (room[(again >= count) & (again < 2 * count)] == LATER).all()
            assert (room[again < count] > again[again < count] / count).all()


def test_rows_that_come_once_an_epoch_make_no_room_for_each_other():
    coming = ComingRows(order_of("rows"))
    for done in range(0, ROWS + 1, 8):
        coming.advance(done, done)
        read = coming.due(0, ROWS) >= 1
        assert (coming.room(0, ROWS)[read] == LATER).all()
        assert coming.due(0, ROWS).max() < LATER


def test_orders_that_are_too_large_or_come_in_chunks():
    for order in (plain_order(ROWS, None), plain_order(5_000_000, Shuffle("rows"))):
        coming = ComingRows(order)
        assert coming.progress is None
        assert (coming.due(0, 10) == 1).all()
        assert (coming.room(0, 10) == LATER).all()


@pytest.mark.parametrize("seed", range(5))
def test_blocks(seed):
    random = np.random.default_rng(seed)
    starts = np.sort(random.choice(ROWS, 12, replace=False))
    stops = np.append(starts[1:], ROWS)
    sizes = random.integers(1, 4 * BLOCK_BYTES, 12)
    offsets = random.permutation(12) * 4 * BLOCK_BYTES + random.integers(0, BLOCK_BYTES, 12)
    coming = ComingRows(order_of("weights"))
    coming.begin(0, 0)
    coming.advance(11, 6)
    due = BlocksDue(coming, None, 0, ROWS, RowPlaces(starts, stops, offsets, sizes))
    rows, room = coming.due(0, ROWS), coming.room(0, ROWS)
    for first, end in [(0, 60), (5, 9), (20, 21)]:
        expected, whole = np.full(end - first, NEVER), np.full(end - first, NEVER)
        for start, stop, offset, size in zip(starts, stops, offsets, sizes, strict=True):
            low, high = offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES)
            for block in range(max(low, first), min(high, end)):
                expected[block - first] = min(expected[block - first], rows[start:stop].min())
                if low >= first and high <= end:
                    whole[block - first] = min(whole[block - first], room[start:stop].min())
        np.testing.assert_array_equal(due.blocks(first, end), expected)
        np.testing.assert_array_equal(due.room(first, end), whole)
