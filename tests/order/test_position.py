import dataclasses
import json
import pickle

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Position, RayH5Error, Shuffle
from ray_h5.errors import OptionError, PositionError
from ray_h5.loading.rank_shares import Share
from ray_h5.manifest.file_table import FileTable
from ray_h5.order.block_layout import Left, Tail
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import Fingerprint
from ray_h5.order.remaining_blocks import layout_of, positions_of
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.scope import Scope
from tests.index.kit import plan_files, resume


def plan_of(num_rows, block_rows, shuffle=None, tail=None):
    files = FileTable.of(["/data/a.h5"], [_IDENTITY], [num_rows])
    return ReadPlan(files, (), Scope(), None, Order(num_rows, shuffle), block_rows, tail)


_IDENTITY = dataclasses.make_dataclass("Identity", ["size", "mtime_ns", "ctime_ns", "inode"])(1, 2, 3, 4)


PLAN = Fingerprint(1, 50, "ab", "cd", 20, "ef", "chunks", 16, 8)
LEFT = Left(((32, 40), (48, 400)))
GOOD = Position(3, 1, 40, 2, 8, PLAN, LEFT).to_dict()


def test_a_position_is_plain_values_there_and_back():
    tail = Tail("drop", 16)
    position = Position(3, 1, 40, 2, 8, PLAN, Left(((0, 40), (48, 400)), tail, ((400, 407),)), tail)
    state = position.to_dict()
    assert json.loads(json.dumps(state)) == state
    assert Position.from_dict(state) == position == Position.from_dict(position)
    assert Position.from_dict({**state, "plan_hash": "ab"}) == position  # the last version stored that, too
    assert Position.from_dict({**state, "plan": {**state["plan"], "parts": []}}) == position  # and that


def test_the_state_of_an_earlier_version_is_read_unless_its_run_had_resumed():
    state = {name: value for name, value in GOOD.items() if name != "left"}
    assert Position.from_dict({**state, "earlier": []}) == Position(3, 1, 40, 2, 8, PLAN)
    with pytest.raises(PositionError, match=r"of an earlier version saved.*set_epoch\(1\)"):
        Position.from_dict({**state, "earlier": [[8, 4, 8, None]]})


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        "x",
        {},
        {**GOOD, "more": 1},
        {key: value for key, value in GOOD.items() if key != "seed"},
        *({**GOOD, name: -1} for name in ("seed", "epoch", "rows", "world_size", "block_rows")),
        *({**GOOD, name: "1"} for name in ("seed", "epoch", "rows", "world_size", "block_rows")),
        *({**GOOD, name: 1.0} for name in ("epoch", "rows")),
        {**GOOD, "rows": True},
        {**GOOD, "world_size": 0},
        {**GOOD, "world_size": 2**40},
        {**GOOD, "tail": ["pad", 2**63]},
        {**GOOD, "tail": ["drop", 2**31]},
        {**GOOD, "block_rows": 0},
        {**GOOD, "plan": None},
        {**GOOD, "plan": 7},
        {**GOOD, "plan": {}},
        {**GOOD, "plan": {**GOOD["plan"], "more": 1}},
        *(
            {**GOOD, "plan": {**GOOD["plan"], name: "1"}}
            for name in ("num_files", "file_rows", "num_rows", "window_rows", "unit")
        ),
        *({**GOOD, "plan": {**GOOD["plan"], name: 1}} for name in ("names", "starts", "selection", "unit", "parts")),
        {**GOOD, "left": 7},
        {**GOOD, "left": []},
        {**GOOD, "left": {"ranges": [7], "dropped": []}},
        {**GOOD, "left": {"ranges": [[1, 2, 3]], "dropped": []}},
        {**GOOD, "left": {"ranges": [[2, 2]], "dropped": []}},
        {**GOOD, "left": {"ranges": [], "dropped": [[-1, 3]]}},
        {**GOOD, "left": {"ranges": [["a", 2]], "dropped": []}},
    ],
)
def test_what_is_no_position_is_refused(state):
    with pytest.raises(PositionError, match="Position: "):
        Position.from_dict(state)


def test_a_position_of_something_else_is_refused():
    plan = plan_of(50, 8, Shuffle("rows", 1))
    position = dataclasses.replace(start_of(plan, 0, 2), rows=16)
    assert sum(map(len, positions_by_rank(resume(plan, position, 2)))) == 18
    for other in (
        plan_of(51, 8, Shuffle("rows", 1)),
        plan_of(50, 8, Shuffle("rows", 2)),
        plan_of(50, 8),
        dataclasses.replace(plan, selection=np.arange(50)),
    ):
        with pytest.raises(
            PositionError, match="of other files, other data of rows, another predicate or another shuffle"
        ):
            resume(other, position, 2)
    with pytest.raises(PositionError, match="more rows done than the epoch has: 26 on each of 2 ranks, of 50"):
        resume(plan, dataclasses.replace(position, rows=26), 2)
    assert not positions_by_rank(resume(plan, dataclasses.replace(position, rows=25), 2))[0].size


@pytest.mark.parametrize(
    ("left", "tail", "says"),
    [
        ([[0, 2**62]], ["pad", 1], f"{2**62} positions up to {2**62} cannot be left of an epoch of 50 rows"),
        ([[2**62, 2**62 + 1]], ["pad", 1], "1 positions up to .* at most 1 of them come again"),
        ([[0, 51]], None, "51 positions up to 51 cannot be left of an epoch of 50 rows"),
        ([[0, 9], [2, 50]], None, "57 positions up to 50"),
        ([[3, 4]], None, "the 1 rows that are left of an epoch would come 70000 times to fill up 70000 rows"),
    ],
)
def test_what_cannot_be_left_of_an_epoch_is_refused(left, tail, says):
    plan = plan_of(50, 8, Shuffle("rows", 1), Tail("pad", 70_000))
    state = {**start_of(plan).to_dict(), "left": {"ranges": left, "dropped": []}, "tail": tail}
    with pytest.raises(PositionError, match=says):
        resume(plan, Position.from_dict(state), 1)


def test_a_tail_may_repeat_an_epoch_as_often_as_it_likes():
    plan = plan_of(3, 8, Shuffle("rows", 1), Tail("pad", 2**31 - 1))
    position = dataclasses.replace(start_of(plan), rows=2**30)
    start = resume(plan, position, 1)
    assert layout_of(start).num_rows - start.rows == 2**31 - 1 - 2**30
    assert len(positions_of(start, layout_of(start).blocks_left(start.rows)[0])) == 8


TAILS = st.one_of(st.none(), st.builds(Tail, st.sampled_from(["drop", "pad"]), st.integers(1, 40)))
tailed_runs = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(0, 40), TAILS), max_size=4)


def begun(plan, world_size, position):
    """Return where a run begins: at a position, or None for a whole epoch."""
    return start_of(plan, 0, world_size) if position is None else resume(plan, position, world_size)


def positions_by_rank(start):
    """Return what the tasks of Ray read of a run, by the ranks that take their blocks in turn."""
    blocks = {number: positions_of(start, number) for number in layout_of(start).blocks_left(start.rows)}
    assert all(map(len, blocks.values()))
    ranks = range(start.world_size)
    return [np.concatenate([[], *(b for i, b in blocks.items() if i % start.world_size == rank)]) for rank in ranks]


def run_some(start, rows):
    """Return the positions that ranks have had once each has done `rows` (or all there are), and the position."""
    shares = positions_by_rank(start)
    whole = min(map(len, shares))
    for rank, share in enumerate(shares):  # what a loader, and a worker that reads itself, read
        loaded = Share(Order(start.plan.epoch_rows), start, rank)
        assert loaded.positions(start.rows, loaded.num_rows).tolist() == share[:whole].tolist()
    had = np.concatenate([share[: min(rows, whole)] for share in shares])
    position = dataclasses.replace(start, rows=start.rows + min(rows, whole))
    return had, Position.from_dict(json.loads(json.dumps(position.to_dict())))


same_cut = st.tuples(st.integers(1, 5), st.integers(1, 12), TAILS).flatmap(
    lambda cut: st.lists(st.tuples(st.just(cut[0]), st.just(cut[1]), st.integers(0, 40), st.just(cut[2])), max_size=4)
)


@given(st.integers(1, 120), tailed_runs | same_cut)
def test_whatever_the_tails_of_runs_were_the_rest_is_each_row_once(num_rows, runs):
    had, position = [], None
    for world_size, block_rows, rows, tail in runs:
        plan = plan_of(num_rows, block_rows, Shuffle("rows", 1), tail)
        some, position = run_some(begun(plan, world_size, position), rows)
        had += some[some < num_rows].tolist()
    plan = plan_of(num_rows, 7, Shuffle("rows", 1))
    (rest,) = positions_by_rank(begun(plan, 1, position))
    assert sorted([*had, *rest.tolist()]) == list(range(num_rows))


@given(st.integers(1, 120), tailed_runs | same_cut, TAILS)
def test_runs_of_one_tail_do_together_what_one_run_does(num_rows, runs, tail):
    had, position = [], None
    for world_size, block_rows, rows, _ in runs:
        plan = plan_of(num_rows, block_rows, Shuffle("rows", 1), tail)
        some, position = run_some(begun(plan, world_size, position), rows)
        had += some.tolist()
    plan = plan_of(num_rows, 7, Shuffle("rows", 1), tail)
    (rest,) = positions_by_rank(begun(plan, 1, position))
    assert sorted([*had, *rest.tolist()]) == list(range(plan.num_positions))


@given(st.integers(1, 120), st.integers(1, 5), st.integers(1, 12), st.lists(st.integers(0, 30), max_size=4), TAILS)
def test_ranks_that_resume_alike_have_the_rows_that_they_would_have_had(num_rows, world_size, block_rows, steps, tail):
    plan = plan_of(num_rows, block_rows, Shuffle("rows", 1), tail)
    start = start_of(plan, 0, world_size)
    whole = positions_by_rank(start)
    for rows in steps:
        start = resume(plan, run_some(start, rows)[1], world_size)
    rests = [share[start.rows :].tolist() for share in whole]
    assert [share.tolist() for share in positions_by_rank(start)] == rests


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Files of 64 rows in chunks, one of them in other chunks, and one of fewer rows."""
    folder = tmp_path_factory.mktemp("written")

    def write(path, chunk=8, rows=64):
        (folder / path).parent.mkdir(exist_ok=True)
        with h5py.File(folder / path, "w") as file:
            file.create_dataset("x", data=np.zeros((rows, 64)), chunks=(chunk, 64))
            file["y"] = np.arange(rows)
        return str(folder / path)

    return {
        "one": [write("a/a.h5")],
        "moved": [write("b/a.h5")],
        "renamed": [write("a/b.h5")],
        "two": [write("a/a.h5"), write("a/c.h5")],
        "shorter": [write("c/a.h5", rows=40)],
        "repacked": [write("d/a.h5", chunk=16)],
        "swapped": [write("e/a.h5", rows=40), write("e/c.h5", rows=88)],
    }


CHUNKS = Shuffle("chunks", 1, 16)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"shuffle": Shuffle("chunks", 1240530706, 16)}, {}, "seed 1240530706, not 1"),
        ({"paths": "two"}, {}, "2 files, not 1; 128 rows in all, not 64"),
        ({}, {"paths": "renamed"}, "files of other names"),
        ({}, {"paths": "shorter"}, "64 rows in all, not 40"),
        ({"paths": "two"}, {"paths": "swapped"}, "files with other numbers of rows"),
        ({}, {"paths": "repacked"}, "chunks of 8 rows, not 16 (the widest column decides: columns= of the run before"),
        ({}, {"columns": ["y"]}, "chunks of 8 rows, not 1"),
        (
            {"predicate": pc.field("y") < 20},
            {"predicate": pc.field("y") < 10},
            "a predicate that selects 20 rows, not 10 rows",
        ),
        ({}, {"predicate": pc.field("y") < 10}, "a predicate that selects all 64 rows, not 10 rows"),
        (
            {"predicate": pc.field("y") < 10},
            {"predicate": pc.field("y") >= 54},
            "a predicate that selects 10 rows, but not the same",
        ),
        ({}, {"shuffle": Shuffle("rows", 1)}, "shuffled by chunks, not shuffled by rows"),
        ({"shuffle": Shuffle("files", 9)}, {"shuffle": None}, "shuffled by files, not in path order"),
        ({"shuffle": Shuffle("chunks", 1, 32)}, {}, "window_rows 32, not 16"),
        (
            {"shuffle": Shuffle("chunks", 2, 32), "paths": "two"},
            {},
            "seed 2, not 1; 2 files, not 1; 128 rows in all, not 64; window_rows 32, not 16",
        ),
    ],
)
def test_what_differs_is_named(written, before, now, expected):
    def plan_with(paths="one", shuffle=CHUNKS, **options):
        return plan_files(written[paths], shuffle=shuffle, **options)[1]

    plan = plan_with(**before)
    state = json.loads(json.dumps(dataclasses.replace(start_of(plan), rows=8).to_dict()))
    with pytest.raises(PositionError) as caught:
        resume(plan_with(**now), Position.from_dict(state), 1)
    assert f"What differs: {expected}" in str(caught.value)
    assert f"with shuffle={plan.fingerprint.shuffle(plan.order.seed)}, or start the epoch again" in str(caught.value)


def test_a_drawn_seed_gives_way_to_that_of_a_position(written):
    first, second = (plan_files(written["two"], shuffle=Shuffle(seed=None))[1] for _ in range(2))
    second = pickle.loads(pickle.dumps(second))
    assert first.order.seed != second.order.seed
    position = Position.from_dict(json.loads(json.dumps(dataclasses.replace(start_of(first, 2), rows=24).to_dict())))
    remainder = resume(second, position, 1)
    blocks = [read_block(second, remainder, i) for i in layout_of(remainder).blocks_left(remainder.rows)]
    assert np.concatenate([block.rows.row_ids for block in blocks]).tolist() == first.at(np.arange(24, 128), 2).tolist()
    assert {block.seed for block in blocks} == {first.order.seed}
    again = dataclasses.replace(remainder, rows=8)
    assert (again.seed, again.plan) == (first.order.seed, first.fingerprint)
    given = dataclasses.replace(position, seed=first.order.seed)
    with pytest.raises(PositionError, match=f"seed {first.order.seed}, not 5"):
        resume(plan_files(written["two"], shuffle=Shuffle(seed=5))[1], given, 1)


@given(st.integers(0, 60), st.integers(1, 25), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_tails(num_rows, tail_rows, world_size, block_rows, epoch):
    block_rows *= 4
    for rule in ("drop", "pad"):
        plan = plan_of(num_rows, block_rows, Shuffle("rows", 3), Tail(rule, tail_rows))
        remainder = start_of(plan, epoch, world_size)
        cut = layout_of(remainder)
        positions = np.concatenate([np.empty(0, int), *(positions_of(remainder, i) for i in range(cut.num_blocks))])
        assert positions.tolist() == list(range(plan.num_positions))
        assert plan.num_positions % tail_rows == 0
        assert abs(plan.num_positions - num_rows) < tail_rows
        ids = plan.at(positions, epoch)
        assert len(set(ids.tolist())) == min(num_rows, plan.num_positions)
        if rule == "pad" and num_rows:
            assert plan.num_positions >= num_rows
            assert ids[num_rows:].tolist() == np.resize(ids[:num_rows], plan.num_positions)[num_rows:].tolist()
        elif rule == "drop":
            assert plan.num_positions <= num_rows
        if tail_rows % world_size == 0:
            assert cut.unshared_rows == 0


@pytest.mark.parametrize(
    "arguments", [("keep", 4), ("drop", 0), ("drop", -1), ("pad", 2.0), ("pad", "4"), ("pad", True)]
)
def test_what_is_no_tail_is_refused(arguments):
    with pytest.raises(OptionError, match="expected 'drop' or 'pad', and 1 row or more"):
        Tail(*arguments)


def test_rows_that_are_done_are_not_read(five_files):
    """A file, all of whose rows are done, may be gone."""
    plan = plan_files(five_files, columns=["label"], block_rows=2)[1]
    position = Position(0, 0, 4, 1, 2, plan.fingerprint)
    with open(five_files[0], "w"):
        pass
    remainder = resume(plan, position, 1)
    found = [read_block(plan, remainder, i).rows for i in layout_of(remainder).blocks_left(remainder.rows)]
    assert np.concatenate([rows.row_ids for rows in found]).tolist() == list(range(4, 13))
    with pytest.raises(RayH5Error):
        read_block(plan, start_of(plan), 0)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_limit_takes_the_first_rows_of_a_block(num_rows, block_rows, block, limit):
    plan = plan_of(num_rows, block_rows)
    remainder = dataclasses.replace(start_of(plan), left=Left(((1, num_rows),)))
    if block < layout_of(remainder).num_blocks:
        assert positions_of(remainder, block, limit).tolist() == positions_of(remainder, block)[:limit].tolist()
