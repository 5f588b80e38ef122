import dataclasses
import pickle
import re

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import OptionError, StaleIndexError
from ray_h5.index.row_index import build_index
from ray_h5.order.block_layout import Tail, choose_block_rows
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.position import Position
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan import read_plan as planning
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.torch_data import loader
from tests.index.kit import resume


def make_plan(paths, block_rows, selection=None, columns=("signal", "label")):
    index = build_index(paths, columns)
    return planning.make_plan(index, list(index.columns.values()), selection, block_rows=block_rows)


@pytest.mark.parametrize("block_rows", [1, 2, 3, 5, 13, 100])
@pytest.mark.parametrize("selection", [None, np.array([0, 3, 4, 5, 11, 12]), np.empty(0, np.int64)])
def test_blocks_hold_each_selected_row_once_in_order(five_files, block_rows, selection):
    plan = pickle.loads(pickle.dumps(make_plan(five_files, block_rows, selection)))
    expected = np.arange(13) if selection is None else selection
    cut = layout_of(start_of(plan))
    blocks = [read_block(plan, start_of(plan), block).rows for block in range(cut.num_blocks)]
    sizes = [len(block.row_ids) for block in blocks]
    assert sizes == [stop - start for start, stop in map(cut.bounds, range(cut.num_blocks))]
    assert all(size == block_rows for size in sizes[:-1])
    ids = np.concatenate([block.row_ids for block in blocks]) if blocks else np.empty(0)
    assert ids.tolist() == expected.tolist()
    for block in blocks:
        assert block.arrays["signal"].shape == (len(block.row_ids), 2, 3)
        assert (block.arrays["signal"] == block.row_ids[:, None, None]).all()
        assert (block.arrays["label"] == block.row_ids % 3).all()


def test_no_columns_opens_no_file(five_files, tmp_path):
    plan = make_plan(five_files, 4)
    bare = dataclasses.replace(plan, columns=())
    for path in five_files:
        (tmp_path / path).unlink()
    assert read_block(bare, start_of(bare), 0).rows.row_ids.tolist() == [0, 1, 2, 3]


def test_a_tail_that_leaves_nothing_is_refused(five_files):
    index = build_index(five_files, ["label"])

    def plan(rule, rows, selection=None):
        return planning.make_plan(index, list(index.columns.values()), selection, tail=Tail(rule, rows))

    assert plan("drop", 13).num_positions == 13
    assert plan("pad", 14).num_positions == 14
    assert plan("drop", 14, np.empty(0, np.int64)).num_positions == 0
    for selection, rows in ((None, 13), (np.arange(5), 5)):
        says = f"tail='drop', tail_rows=14: only {rows} rows are selected, and all of them are dropped. Lower tail_rows"
        with pytest.raises(OptionError, match=says):
            plan("drop", 14, selection)


def test_what_is_left_of_an_epoch_may_be_less_than_a_step(five_files):
    index = build_index(five_files, ["label"])
    plan = planning.make_plan(index, list(index.columns.values()), block_rows=4, tail=Tail("drop", 4))
    shorter = planning.make_plan(index, list(index.columns.values()), block_rows=5, tail=Tail("drop", 5))
    position = Position(0, 0, 12, 1, 4, plan.fingerprint, tail=plan.tail)
    for each in (plan, shorter):
        start = resume(each, position, 1)
        assert not layout_of(start).blocks_left(start.rows)


def test_a_file_that_changed_after_planning_is_refused(five_files):
    plan = make_plan(five_files, 13)
    with h5py.File(five_files[4], "a") as file:
        file["label"][0] = 7
    with pytest.raises(StaleIndexError, match=r"f4.h5: the file changed between planning and reading"):
        read_block(plan, start_of(plan), 0)


@given(st.integers(0, 10**7), st.integers(0, 10**10))
def test_blocks_are_sized_by_bytes(row_bytes, num_rows):
    rows = choose_block_rows(row_bytes, num_rows, None, None)
    assert rows >= 1
    assert rows & (rows - 1) == 0
    assert rows == 1 or rows * row_bytes <= 1.5 * (64 << 20)
    held = max(row_bytes, 64)  # of narrow rows their numbers take more than their values
    if held * num_rows > 1 << 30:
        assert rows * held * 3 >= 64 << 20 or rows == 1
    assert rows == 1 or rows * held <= 1.5 * (64 << 20)
    if 8 <= num_rows < 100:
        assert 2 <= num_rows / rows <= 8
    assert choose_block_rows(1 << 30, num_rows, None, None) == 1


def test_a_user_decides():
    assert choose_block_rows(10, 1000, 7, None) == 7
    assert choose_block_rows(10, 1000, None, 7) == 143
    assert choose_block_rows(10, 7, None, 7) == choose_block_rows(10, 0, None, 7) == 1
    assert choose_block_rows(8, 2**53 + 1, None, 1) == 2**53 + 1
    assert choose_block_rows(10, 1000, np.int32(7), None) == 7
    for arguments in [(0, None), (None, 0), (5, 5), (2.5, None), ("3", None), (None, True)]:
        with pytest.raises(OptionError):
            choose_block_rows(10, 1000, *arguments)


@pytest.mark.parametrize(("chunks", "is_said"), [((300_000, 1), True), ((100_000, 1), False), ((300_000, 256), True)])
def test_chunks_of_more_rows_than_a_window_are_said_before_the_epoch(tmp_path, caplog, chunks, is_said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (600_000, 256), "f4", chunks=chunks)
    loader(tmp_path / "a.h5", 64, shuffle=True)
    said = "a chunk holds values of 300000 rows, and .* holds 131072 rows: .* each chunk about 2 times.*repack"
    assert bool(re.search(said, caplog.text)) == is_said
    caplog.clear()
    loader(tmp_path / "a.h5", 64, shuffle=Shuffle("chunks", window_rows=1000))
    assert "a chunk holds" not in caplog.text
