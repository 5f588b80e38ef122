"""`BatchReader` delivers the rows of a share, whatever reads them: h5py is the oracle."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ray_h5 import Shuffle, Windows
from ray_h5.index.file_options import FileOptions
from ray_h5.loading.rank_shares import Share
from ray_h5.loading.read_calls import BatchReader
from ray_h5.order.block_layout import Tail
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.row_source import RowSource
from tests.hdf5.h5kit import by_h5py
from tests.index.kit import resume

ROWS = 700


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number, rows in enumerate((300, 0, 400)):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            values = np.random.default_rng(number).random((rows, 5))
            file.create_dataset(
                "x", data=values, chunks=(16, 5) if rows else None, compression="gzip" if rows else None
            )
            file["label"] = np.arange(rows) % 7
            file["name"] = [f"{number}/{row}" for row in range(rows)] or np.empty(0, h5py.string_dtype())
    return [folder / f"{number}.h5" for number in range(3)]


def plan_of(paths, columns=("x", "label"), shuffle=None, tail=None, block_rows=None, selection=None, **options):
    index = FileOptions.of(paths, columns=list(columns), **options).index()
    return make_plan(index, list(index.outputs.values()), selection, shuffle, block_rows, tail=tail)


def stored(paths, name):
    return np.concatenate([each for path in paths if len(each := by_h5py(path, name))])


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [None, Shuffle("rows", 3), Shuffle("chunks", 3, window_rows=64)])
def test_each_row_comes_once_as_h5py_reads_it(paths, shuffle, threads):
    plan = plan_of(paths, ("x", "label", "name"), shuffle)
    source = RowSource(plan, 0)
    for epoch in (0, 1):
        share = Share.of(plan, start_of(plan, epoch))
        reader = BatchReader(source, share, 48, threads)
        blocks = list(reader)
        assert [len(block.positions) for block in blocks] == [48] * 14 + [28]
        assert np.concatenate([block.positions for block in blocks]).tolist() == [*range(ROWS)]
        row_ids = np.concatenate([block.rows.row_ids for block in blocks])
        assert row_ids.tolist() == plan.at(np.arange(ROWS), epoch).tolist()
        for name in ("x", "label", "name"):
            values = np.concatenate([block.rows.arrays[name] for block in blocks])
            assert np.array_equal(values, stored(paths, name)[row_ids]), name
        assert {(block.epoch, block.seed) for block in blocks} == {(epoch, plan.order.seed)}


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("rule", ["drop", "pad"])
def test_ranks_have_the_rows_of_the_blocks_that_ray_hands_out_in_turn(paths, world_size, rule):
    plan = plan_of(paths, shuffle=Shuffle("chunks", 1, window_rows=32), tail=Tail(rule, 20), block_rows=64)
    remainder = start_of(plan, 2, world_size)
    layout = layout_of(remainder)
    for rank in range(world_size):
        blocks = [read_block(plan, remainder, number) for number in range(rank, layout.num_blocks, world_size)]
        read = list(BatchReader(RowSource(plan, 0), Share.of(plan, remainder, rank), 10))
        for values in (lambda block: block.positions, lambda block: block.rows.arrays["x"]):
            assert np.array_equal(np.concatenate([*map(values, read)]), np.concatenate([*map(values, blocks)]))


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_share_goes_on_after_rows_that_are_done(paths, world_size):
    plan = plan_of(paths, shuffle=Shuffle("rows", None), tail=Tail("pad", 30), block_rows=64)
    source, whole = RowSource(plan), start_of(plan, 1, world_size)
    for rank in range(world_size):
        rows = [block.rows.row_ids.tolist() for block in BatchReader(source, Share.of(plan, whole, rank), 20)]
        for done in range(0, len(rows), 3):
            again = BatchReader(source, Share.of(plan, replace(whole, rows=20 * done), rank), 20)
            assert [block.rows.row_ids.tolist() for block in again] == rows[done:]
    left = resume(plan, replace(whole, rows=40), 3)
    shares = [Share.of(plan, left, rank) for rank in range(3)]
    of_ranks = [np.concatenate([block.rows.row_ids for block in BatchReader(source, each, 7)]) for each in shares]
    before = np.concatenate([plan.at(Share.of(plan, whole, rank).positions(0, 40), 1) for rank in range(world_size)])
    padding = sum(map(len, of_ranks)) + len(before) - ROWS
    assert 0 <= padding < 30
    assert {*before.tolist(), *np.concatenate(of_ranks).tolist()} == {*range(ROWS)}


def test_what_is_made_of_batches_comes_in_their_order(paths):
    plan = plan_of(paths)
    reader = BatchReader(
        RowSource(plan),
        Share.of(plan, start_of(plan)),
        64,
        threads=3,
        drop_last=True,
        make=lambda block: block.rows.arrays["label"].sum(),
        finish=float,
    )
    labels = stored(paths, "label")
    assert list(reader) == [float(labels[first : first + 64].sum()) for first in range(0, 640, 64)]


def test_windows_have_the_numbers_of_their_steps(paths):
    plan = plan_of(paths, columns=["x"], block_rows=ROWS, windows=Windows({"x": range(-2, 3)}, stride=3))
    share = Share.of(plan, start_of(plan))
    for block in BatchReader(RowSource(plan), share, 50):
        expected = read_block(plan, start_of(plan), 0).rows
        here = block.positions
        assert np.array_equal(block.rows.numbers, expected.numbers[here])
        assert np.array_equal(block.rows.arrays["x"], expected.arrays["x"][here])
