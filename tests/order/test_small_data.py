"""Data that fit into memory are shuffled by rows, larger ones mix chunks as the pages say, and a line says how much."""

import dataclasses

import h5py
import numpy as np
import pytest

from ray_h5.index.file_options import FileOptions
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.order_of_files import make_order
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.shuffle_effect import describe, shuffle_effect
from ray_h5.torch_data import Grid, Groups, H5Dataset, Shuffle, loader, ragged, where
from tests.index.kit import plan_files


def write(path, rows, chunk, width=1, value=None):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (rows, width), "f4", chunks=(chunk, width), compression="gzip")
        labels = np.arange(rows) if value is None else np.full(rows, value)
        file.create_dataset("label", data=labels, chunks=(rows,))
    return str(path)


def test_a_shuffle_of_sorted_files_mixes_all_classes(tmp_path):
    for number in range(6):
        write(tmp_path / f"{number}.h5", 666, 64, 128, number)
    loaded = loader(tmp_path, 64, shuffle=True, seed=3, drop_last=True)
    for _ in range(2):
        batches = [batch["label"].numpy() for batch in loaded]
        assert all({*batch.tolist()} == set(range(6)) for batch in batches)
    dataset = H5Dataset(tmp_path)
    orders = [dataset.epoch_order(Shuffle(unit, 3)) for unit in ("auto", "rows")]
    assert orders[0] == orders[1]
    # Whoever says chunks, or a window, has them.
    assert dataset.epoch_order(Shuffle("chunks", 3)).shuffle.unit == "chunks"
    assert dataset.epoch_order(Shuffle(seed=3, window_rows=256)).window_rows == 256


def test_rows_that_just_fit_into_memory_are_small_data(tmp_path):
    path = write(tmp_path / "a.h5", 64, 4, 1 << 18)  # rows of 1 MiB, of which 32 fit
    datasets = [H5Dataset(path, ["x"], where(label=list(range(count)))) for count in (28, 32, 33)]
    assert [each.epoch_order(Shuffle(seed=1)).shuffle.unit for each in datasets] == ["rows", "rows", "chunks"]


def test_what_is_said_of_a_shuffle_counts_the_selected_rows(tmp_path):
    path = write(tmp_path / "a.h5", 64 << 10, 64, 512)
    for step, mixed in ((1, 16), (8, 128)):
        chosen = np.arange(0, 64 << 10, step)
        index, plan = plan_files([path], shuffle=Shuffle("chunks", 1, window_rows=1024))
        order = make_order(index, chosen, Shuffle("chunks", 1, window_rows=1024))
        plan = dataclasses.replace(plan, selection=chosen, order=order, block_rows=1024)
        effect = shuffle_effect(plan)
        assert (effect.chunks_mixed, effect.window_rows, effect.reads_per_byte) == (mixed, 1024, 1.0)
        assert f"{len(chosen)} of 65536 rows" in describe(plan)
    index, plan = plan_files([path], shuffle=Shuffle("rows", 1))
    first = np.arange(640)
    plan = dataclasses.replace(plan, selection=first, order=make_order(index, first, Shuffle("rows", 1)))
    assert shuffle_effect(plan).chunks_mixed == 10


COSTS = [
    (Shuffle("rows", 1), 16),
    (Shuffle("rows", 1), 400),
    (Shuffle("chunks", 1, window_rows=64), 64),
    (Shuffle("chunks", 1, window_rows=160), 40),
    (Shuffle("chunks", 1, window_rows=160), 10),
    (Shuffle("chunks", 1, window_rows=400), 80),
    (Shuffle("rows", 1, weights=np.ones(400), rows_per_epoch=800), 40),
]


@pytest.mark.parametrize(("shuffle", "block_rows"), COSTS)
@pytest.mark.parametrize("columns", [["x"], [ragged("values", offsets="offsets")]], ids=["rows", "ranges"])
def test_what_is_said_of_a_shuffle_is_what_it_costs(tmp_path, columns, shuffle, block_rows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (400, 8), "f4", chunks=(10, 8), compression="gzip")[...] = 1
        file.create_dataset("values", data=np.ones(3600), chunks=(90,), compression="gzip")
        file["offsets"] = np.r_[0, np.arange(1, 400) * 9 + 4, 3600]
    index = FileOptions.of(tmp_path / "a.h5", columns=columns).index()
    plan = make_plan(index, list(index.outputs.values()), shuffle=shuffle, block_rows=block_rows)
    remainder = start_of(plan)
    blocks = [read_block(plan, remainder, i).rows for i in range(layout_of(remainder).num_blocks)]
    decoded = sum(block.stats.chunks_decoded for block in blocks)
    expected = decoded / 40 * 400 / plan.epoch_rows  # of 40 chunks
    assert shuffle_effect(plan).reads_per_byte == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("rows", [None, Grid(2), Groups("g*")])
def test_large_rows_that_are_not_chunked_are_drawn_one_by_one(tmp_path, rows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ["u"] if rows is None or isinstance(rows, Grid) else [f"g{i}/u" for i in range(8)]:
            file.create_dataset(name, (64, 64, 4096), "f4")  # never written
    assert H5Dataset(tmp_path, ["u"], rows=rows).epoch_order(Shuffle()).shuffle.unit == "rows"
