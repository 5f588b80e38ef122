import h5py
import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Shuffle
from ray_h5.hash_and_permute import make_key
from ray_h5.order.draws.chunk_groups import ChunkGroups
from ray_h5.order.epoch_order import Order, row_keys
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from tests.index.kit import plan_files


def starts_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def listed(starts, size):
    """The groups that `ChunkGroups` of one size stand for, one by one."""
    found = [0]
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        found += [*range(start + size, stop, size)] + ([stop] if stop > start else [])
    return ChunkGroups(np.array(found))


file_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(file_sizes, st.integers(1, 45), st.integers(0, 5))
def test_even_groups_are_the_listed_ones(sizes, chunk_group_rows, seed):
    starts = starts_of(sizes)
    key = make_key(seed)
    positions = np.arange(starts[-1])
    found = ChunkGroups(starts, chunk_group_rows).selected_indices(positions, key)
    assert np.array_equal(np.sort(found), positions)
    assert np.array_equal(found, listed(starts, chunk_group_rows).selected_indices(positions, key))
    some = np.random.default_rng(seed).permutation(positions)[:7]
    assert np.array_equal(ChunkGroups(starts, chunk_group_rows).selected_indices(some, key), found[some])


def test_even_groups_beyond_the_table_are_the_listed_ones():
    starts = starts_of(np.random.default_rng(0).integers(0, 9, 60_000))
    positions = np.arange(starts[-1])
    found = ChunkGroups(starts, 3).selected_indices(positions, make_key(0))
    assert np.array_equal(np.sort(found), positions)
    assert np.array_equal(found, listed(starts, 3).selected_indices(positions, make_key(0)))


def test_even_groups_keep_nothing_of_the_size_of_the_data():
    starts = starts_of([10**9 + 3] * 10)
    positions = np.arange(7 * 10**9, 7 * 10**9 + 1000)
    found = ChunkGroups(starts, 64).selected_indices(positions, make_key(0))
    assert len(np.unique(found)) == 1000
    assert np.count_nonzero(np.diff(found) != 1) <= 1000 // 64 + 2


@given(file_sizes, st.integers(1, 20), st.integers(1, 60), st.integers(0, 3), st.booleans())
def test_each_row_comes_once_and_windows_mix_their_own_groups(sizes, chunk_group_rows, window, epoch, selects):
    starts = starts_of(sizes)
    rows = int(starts[-1])
    groups = listed(starts, chunk_group_rows)
    if selects:
        keep = np.flatnonzero(np.random.default_rng(rows).random(rows) < 0.5)
        starts_kept = np.unique(np.searchsorted(keep, groups.starts))
        rows, groups = len(keep), ChunkGroups(starts_kept)
    if not rows:
        return
    order = Order(rows, Shuffle("chunks", 5, window), groups)
    found = order.selected_indices(np.arange(rows), epoch)
    assert np.array_equal(np.sort(found), np.arange(rows))
    unmixed = groups.selected_indices(np.arange(rows), make_key(order.seed, epoch, 1))
    for start in range(0, rows, window):
        assert sorted(found[start : start + window]) == sorted(unmixed[start : start + window])
    some = np.random.default_rng(0).permutation(rows)[:9]
    assert np.array_equal(order.selected_indices(some, epoch), found[some])


def test_golden_keys_of_rows():
    assert row_keys(np.arange(3), 7, 1).tolist() == [11116909291287184014, 3832088241130506693, 17746457583447019140]
    assert row_keys(np.array([2]), 7, 1).tolist() == row_keys(np.arange(3), 7, 1).tolist()[2:]
    found = np.concatenate([row_keys(np.arange(20_000), seed, epoch) for seed in range(3) for epoch in range(3)])
    assert len(np.unique(found)) == len(found)


# Over files -------------------------------------------------------------------------------------

SIZES = [37, 0, 64, 5, 50]
CHUNK = 8


@pytest.fixture(scope="module")
def chunked(tmp_path_factory):
    """Files sorted by label, with chunks of 8 rows of `x`, and of 32 of the small `label`."""
    folder = tmp_path_factory.mktemp("chunked")
    paths, first = [], 0
    for i, rows in enumerate(SIZES):
        ids = np.arange(first, first + rows)
        with h5py.File(folder / f"f{i}.h5", "w") as file:
            data = np.repeat(ids[:, None], 16, axis=1).astype("f4")
            file.create_dataset("x", data=data, chunks=(CHUNK, 16), maxshape=(None, 16), compression="gzip")
            file.create_dataset("label", data=(ids // 40).astype("u1"), chunks=(32,), maxshape=(None,))
            file.create_dataset("one", data=data[:, :2], chunks=(1, 2), maxshape=(None, 2))
            file["flat"] = ids
        paths.append(str(folder / f"f{i}.h5"))
        first += rows
    return paths


def epoch_of(plan, epoch=0):
    blocks = [read_block(plan, start_of(plan, epoch), i) for i in range(layout_of(start_of(plan, epoch)).num_blocks)]
    for block in blocks:
        if "x" in block.rows.arrays:
            assert (block.rows.arrays["x"] == block.rows.row_ids[:, None]).all()
    return blocks


@pytest.mark.parametrize("predicate", [None, pc.field("label") == 1, pc.field("flat").isin([0, 3, 70, 71, 155])])
@pytest.mark.parametrize("window", [8, 24, 64])
def test_a_chunk_is_decoded_once_an_epoch(chunked, predicate, window):
    shuffle = Shuffle("chunks", 3, window)
    _, plan = plan_files(chunked, columns=["x"], predicate=predicate, shuffle=shuffle)
    assert plan.block_rows % window == 0
    ids = np.arange(sum(SIZES)) if plan.selection is None else plan.selection
    of = plan.files.files_of(ids)
    wanted = len({*zip(of.tolist(), ((ids - plan.files.starts[of]) // CHUNK).tolist(), strict=True)})
    for epoch in range(3):
        decoded = sum(block.rows.stats.chunks_decoded for block in epoch_of(plan, epoch))
        blocks = layout_of(start_of(plan)).num_blocks
        # A group that straddles two blocks is read by both.
        assert wanted <= decoded <= wanted + blocks - 1


def test_an_order_of_nothing(chunked):
    for unit in ("rows", "chunks", "files", "auto"):
        _, plan = plan_files(chunked, predicate=pc.field("label") == 99, shuffle=Shuffle(unit, 0))
        assert plan.num_rows == 0
        assert layout_of(start_of(plan)).num_blocks == 0
