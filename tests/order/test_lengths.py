"""Rows by length: orders whose batches need little padding, and which have each row as often as without."""

import dataclasses
from itertools import pairwise

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_h5 import Position, Shuffle, balance
from ray_h5.errors import OptionError, PositionError, UnknownColumnError
from ray_h5.order.epoch_order import plain_order
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.shuffle_effect import shuffle_effect
from tests.order.kit import epoch_of, plan_of, resume

N = 2_000
SIZES = [700, 0, 1000, 300]
FRAMES = np.random.default_rng(0).integers(10, 500, N)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of 2000 rows with their lengths; chunks of 16 rows of `x`."""
    folder = tmp_path_factory.mktemp("lengths")
    paths, first = [], 0
    for i, rows in enumerate(SIZES):
        here = np.arange(first, first + rows)
        path = folder / f"f{i}.h5"
        with h5py.File(path, "w") as file:
            x = np.repeat(here[:, None], 8, axis=1).astype("f4")
            file.create_dataset("x", data=x, chunks=(16, 8), maxshape=(None, 8), compression="gzip")
            file["n_frames"] = FRAMES[here]
            file["seconds"] = (FRAMES[here] / 100).astype("f4")
            file["label"] = here % 3
            file["text"] = np.array(["a"] * rows, dtype=h5py.string_dtype())
            file["bad"] = np.where(here == 800, np.nan, here)
            file["below"] = here - 30
        paths.append(str(path))
        first += rows
    return paths


def padding_of(lengths, batch_size):
    """The part of padded batches that is padding."""
    batches = [lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size)]
    return 1 - lengths.sum() / sum(len(batch) * batch.max() for batch in batches)


@pytest.mark.parametrize("batch_size", [1, 8, 10, 16, 20, 24, 32, 64])
@pytest.mark.parametrize("unit", ["rows", "chunks"])
def test_batches_need_little_padding(files, unit, batch_size):
    random = epoch_of(plan_of(files, Shuffle("rows", 3)))
    sorted_ = epoch_of(plan_of(files, Shuffle(unit, 3, by_length="n_frames")))
    assert batch_size == 1 or padding_of(FRAMES[random], batch_size) >= 0.3
    assert padding_of(FRAMES[sorted_], batch_size) <= 0.05
    assert sorted(sorted_) == list(range(N))


def test_batches_are_shuffled_and_differ_from_epoch_to_epoch(files):
    plan = plan_of(files, Shuffle("rows", 3, by_length="n_frames", run_rows=20))
    means = [FRAMES[epoch_of(plan, epoch)].reshape(-1, 20).mean(axis=1) for epoch in range(3)]
    for one, other in (*pairwise(means), (means[0], np.arange(100)), (means[0][1:], means[0][:-1])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.4  # for all but one seed in 3,000
    batches = [{frozenset(each) for each in epoch_of(plan, epoch).reshape(-1, 20).tolist()} for epoch in range(2)]
    assert not batches[0] & batches[1]


@pytest.mark.parametrize("lengths", [FRAMES, FRAMES.tolist(), FRAMES / 1024, "n_frames"])
def test_lengths_are_a_column_or_an_array(files, lengths):
    expected = epoch_of(plan_of(files, Shuffle("rows", 3, by_length="n_frames")))
    assert epoch_of(plan_of(files, Shuffle("rows", 3, by_length=lengths))).tolist() == expected.tolist()


@pytest.mark.parametrize("window_rows", [None, 256])
def test_by_chunks_each_chunk_is_still_decoded_about_once(files, window_rows):
    plan = plan_of(files, Shuffle("chunks", 3, window_rows, by_length="n_frames"))
    blocks = layout_of(start_of(plan)).num_blocks
    decoded = sum(read_block(plan, start_of(plan), block).rows.stats.chunks_decoded for block in range(blocks))
    chunks = sum(-(-rows // 16) for rows in SIZES)
    assert chunks <= decoded <= chunks + blocks + 2  # a chunk may be in two windows
    assert shuffle_effect(plan).reads_per_byte < 1.1


def test_a_predicate_chooses_what_is_sorted(files):
    some = pc.field("label") == 1
    plan = plan_of(files, Shuffle("rows", 3, by_length="n_frames"), predicate=some)
    found = epoch_of(plan)
    assert sorted(found) == list(range(1, N, 3))
    assert padding_of(FRAMES[found], 8) <= 0.05
    by_array = plan_of(files, Shuffle("rows", 3, by_length=FRAMES), predicate=some)
    assert epoch_of(by_array).tolist() == found.tolist()
    assert plan_of(files, Shuffle("rows", by_length="bad"), predicate=pc.field("bad") < 700).num_positions == 700
    assert plan_of(files, Shuffle("rows", by_length="n_frames"), predicate=pc.field("label") == 9).num_positions == 0


@pytest.mark.parametrize(("rows", "window_rows"), [(128_000, 128_000), (128_001, 64_000)])
def test_all_rows_are_sorted_together_unless_they_are_many(rows, window_rows):
    assert plain_order(rows, Shuffle("rows", 3, by_length=np.ones(rows))).runs.window_rows == window_rows


def test_lengths_that_are_all_the_same_or_zero():
    for lengths in (np.zeros(500), np.full(500, 7)):
        found = plain_order(500, Shuffle(by_length=lengths)).selected_indices(np.arange(500), 0)
        assert sorted(found) == list(range(500))
        assert found.tolist() != sorted(found.tolist())


@given(st.integers(1, 400), st.integers(1, 500), st.integers(1, 500), st.integers(0, 3))
@settings(deadline=None)
def test_each_row_comes_once(rows, window_rows, run_rows, epoch):
    run_rows = min(run_rows, window_rows)
    lengths = np.random.default_rng(rows).integers(0, 9, rows)
    order = plain_order(rows, Shuffle("rows", 1, window_rows, by_length=lengths, run_rows=run_rows))
    found = order.selected_indices(np.arange(rows), epoch)
    assert sorted(found) == list(range(rows))
    some = np.random.default_rng(0).permutation(rows)[:9]
    assert order.selected_indices(some, epoch).tolist() == found[some].tolist()


def test_a_position_of_other_lengths_is_refused(files):
    shuffle = Shuffle("rows", 7, by_length="n_frames")
    position = dataclasses.replace(start_of(plan_of(files, shuffle), 1), rows=4)
    for other in (
        Shuffle("rows", 7),
        Shuffle("rows", 7, by_length="label"),
        Shuffle("rows", 7, by_length="n_frames", run_rows=8),
        Shuffle("rows", 7, 512, by_length="n_frames"),
    ):
        with pytest.raises(PositionError, match=r"What differs: by_length \(.* not \w+"):
            resume(plan_of(files, other), position)
    with pytest.raises(PositionError, match=r"by_length .* none, not .*with shuffle=Shuffle\('rows', seed=7\)"):
        resume(plan_of(files, shuffle), dataclasses.replace(start_of(plan_of(files, Shuffle("rows", 7)), 1), rows=4))
    old = dataclasses.replace(start_of(plan_of(files, Shuffle("rows", 7)), 1), rows=4).to_dict()
    del old["plan"]["lengths"]
    assert resume(plan_of(files, Shuffle("rows", 7)), Position.from_dict(old)).epoch == 1


@pytest.mark.parametrize(
    ("by_length", "said"),
    [
        ("bad", r"f2.h5, row 100: column 'bad' is nan: expected a length, a finite number of 0 or more"),
        ("below", r"f0.h5, row 0: column 'below' is -30: expected a length"),
        ("text", r"by_length='text': expected a column of numbers, found .*string"),
        ("x", r"by_length: column 'x' holds an array of shape \(8,\) a row; expected one value a row"),
        (np.ones(39), "by_length=<39 numbers>: expected 2000, one for each row of the files"),
    ],
)
def test_lengths_that_cannot_be_used(files, by_length, said):
    with pytest.raises(OptionError, match=said):
        plan_of(files, Shuffle("rows", by_length=by_length))


def test_a_column_that_is_not_there(files):
    with pytest.raises(UnknownColumnError, match="n_frame"):
        plan_of(files, Shuffle("rows", by_length="n_frame"))
    with pytest.raises(OptionError, match="only an H5Dataset knows its columns; pass by_length as an array"):
        plain_order(3, Shuffle(by_length="n_frames"))
    with pytest.raises(OptionError, match="expected 3, one for each row of the dataset"):
        plain_order(3, Shuffle(by_length=np.ones(4)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unit": "files", "by_length": "n"}, r"by_length='n'\): the rows of a file keep their order"),
        ({"by_length": 3}, "by_length: expected the name of a column with the length of each row"),
        ({"by_length": balance("a")}, "by_length: expected the name of a column"),
        ({"by_length": [3, -1]}, r"by_length\[1\]=-1: expected a finite number of 0 or more"),
        ({"by_length": [3, np.nan]}, r"by_length\[1\]=nan"),
        ({"run_rows": 8}, "run_rows=8: is used only with by_length"),
        ({"by_length": "n", "batch_values": np.inf}, "batch_values=inf: expected a number above 0, or None"),
        ({"by_length": "n", "batch_values": 0}, "batch_values=0: expected a number above 0, or None"),
        ({"by_length": "n", "run_rows": 0}, "run_rows=0: expected an integer of 1 or more, or None"),
        ({"by_length": "n", "run_rows": 9, "window_rows": 8}, "run_rows=9, window_rows=8: expected a window of many"),
    ],
)
def test_options_that_cannot_be_used(options, said):
    with pytest.raises(OptionError, match=said):
        Shuffle(**options)
