"""The cursor: epochs and positions as a model with plain numbers has them. No file is read."""

import itertools
import logging
import sys
import types
from dataclasses import replace

import pytest

from ray_h5 import Position, Shuffle
from ray_h5.errors import OptionError, PositionError
from ray_h5.loading import cursor as module
from ray_h5.loading.cursor import Counted, Cursor
from ray_h5.order.block_layout import Left, Tail
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import Fingerprint

ROWS = 40
PLAN = Fingerprint(0, ROWS, "", "", ROWS, "", "rows", None, None)


def whole(epoch, **changes):
    """Where an epoch begins: 2 ranks, which take blocks of 4 rows in turn."""
    return Position(**{"seed": 3, "epoch": epoch, "rows": 0, "world_size": 2, "block_rows": 4, "plan": PLAN, **changes})


def made(*, advances=False, seed=3):
    return Cursor(Order(ROWS, Shuffle("rows", seed=seed)), PLAN, advances=advances)


def where(position):
    return position.epoch, position.rows


def test_rows_are_counted_from_where_an_iteration_began():
    cursor = Cursor(Order(ROWS, Shuffle("rows", seed=3)), PLAN)
    assert cursor.position() == Position(3, 0, 0, 1, 1, PLAN)  # before anything is asked
    assert not cursor.is_ahead
    run = start, _ = cursor.begin(whole), 0
    assert start == cursor.position() == whole(0)
    assert not cursor.is_ahead
    before = run
    for rows in (3, 2, 5):
        run = cursor.advance(rows, run)
    assert where(cursor.position()) == where(cursor.position(run)) == (0, 10)
    assert where(cursor.position(before)) == (0, 0)  # each iteration counts for itself
    cursor.end()
    assert cursor.position() == Position(3, 0, 0, 1, 1, PLAN)


@pytest.mark.parametrize("advances", [False, True])
def test_which_epoch_is_next(advances):
    cursor = made(advances=advances)
    for epoch in range(3):
        cursor.is_ahead = True
        start = cursor.begin(whole)
        assert start.epoch == cursor.epoch == (epoch if advances else 0)
        assert not cursor.is_ahead
        cursor.advance(4, (start, 0))
        assert where(cursor.position()) == (start.epoch, 4)
        if epoch != 1:  # an iteration that is left counts, too
            cursor.end()
            assert where(cursor.position()) == ((epoch + 1) if advances else 0, 0)
    cursor.set_epoch(7)
    assert [cursor.begin(whole).epoch for _ in range(3)] == ([7, 8, 9] if advances else [7, 7, 7])
    cursor.advance(1, (whole(7), 0))  # one that began before is iterated further
    assert cursor.epoch == 7
    with pytest.raises(OptionError, match="set_epoch: epoch"):
        cursor.set_epoch(-1)
    cursor.set_epoch(0)
    assert where(cursor.position()) == (0, 0)


def test_a_position_stays_if_its_epoch_is_set():
    cursor, at = made(), whole(2, rows=8)
    for then, expected in (
        (lambda: None, at),
        (lambda: cursor.set_epoch(2), at),
        (lambda: cursor.set_epoch(3), Position(3, 3, 0, 1, 1, PLAN)),
        (lambda: cursor.set(2), Position(3, 2, 0, 1, 1, PLAN)),
        (lambda: cursor.set(whole(4, rows=4)), whole(4, rows=4)),
    ):
        cursor.resume(at.to_dict())
        then()
        assert cursor.position() == expected
    cursor.resume(at)
    run = cursor.advance(2, (cursor.begin(whole), 8))
    assert where(cursor.position(run)) == where(cursor.position()) == (2, 10)
    cursor.set_epoch(2)
    assert where(cursor.position()) == (2, 10)
    cursor.set_epoch(3)
    assert where(cursor.position()) == (3, 0)
    cursor.advance(2, run)
    cursor.set(2)
    assert where(cursor.position()) == (2, 0)
    cursor.resume(at)
    assert cursor.position(run) != cursor.position() == at
    assert cursor.begin(whole).rows == 8
    assert cursor.begin(whole).rows == 0  # the position was used


LEFT = Left(((16, ROWS),))
RESUMED = [
    ({"rows": 8}, None, whole(2, rows=8)),
    ({"rows": 8}, 4, whole(2, rows=8)),
    ({"rows": 7}, None, whole(2, rows=7)),
    ({"rows": 8}, 3, whole(2, left=LEFT)),  # it ended within a batch
    ({"rows": 4, "world_size": 4}, None, whole(2, left=LEFT)),
    ({"rows": 8, "block_rows": 8}, 4, whole(2, left=LEFT)),
    ({"rows": 8, "tail": Tail("drop", 4)}, 4, whole(2, left=LEFT)),
]


@pytest.mark.parametrize(("changes", "batch_rows", "expected"), RESUMED)
def test_a_run_is_continued_or_what_is_left_is_cut_again(changes, batch_rows, expected):
    cursor = made()
    cursor.resume(whole(2, **changes))
    start = cursor.begin(whole, batch_rows)
    assert start == expected
    assert where(cursor.position()) == where(start)


def test_a_seed_that_was_drawn_is_replaced():
    cursor = made(seed=None)
    cursor.resume(whole(0, seed=77))
    assert cursor.order.seed == 77
    with pytest.raises(PositionError, match="seed 77, not 3"):
        made().resume(whole(0, seed=77))
    with pytest.raises(PositionError, match="What differs"):
        made().resume(whole(0, plan=replace(PLAN, file_rows=41)))


@pytest.fixture
def said(monkeypatch):
    """What ranks say of themselves, as in the store that they share."""
    said = {}
    monkeypatch.setattr(module, "first_said", lambda key, own, ranks: said.setdefault((key, ranks), own))
    yield said
    module._BEGUN.clear()


def test_ranks_agree_about_the_seed(said):
    first = made()
    for _ in range(2):
        first.agree((0, 2))
    assert [*said.values()] == ["3 0"]  # it is said once
    module._BEGUN.clear()  # another process
    same, other = made(), made(seed=4)
    same.agree((1, 2))
    module._BEGUN.clear()
    with pytest.raises(OptionError, match="seed 3 on rank 0, seed 4 on rank 1"):
        other.agree((1, 2))
    module._BEGUN.clear()
    with pytest.raises(OptionError, match="orders of their own"):
        other.agree((1, 2))  # each time, until it agrees
    made(seed=4).agree((0, 2))  # the next loader of the same rows may have another one
    assert [*said.values()] == ["3 0", "4 0"]


def test_without_a_store_each_rank_agrees_with_itself():
    made(seed=4).agree((1, 2))


def test_an_iteration_counts_the_items_that_were_asked_for():
    cursor = made(advances=True)

    def iteration(items, at=0):
        return Counted(cursor, lambda: (cursor.begin(whole), iter(items[at:])), len)

    first = iteration([[0, 1, 2], [3, 4], [5]])
    assert cursor.run is None  # it begins when its first item is asked for
    states = [first.state_dict()] + [(next(first), first.state_dict())[1] for _ in range(2)]
    assert [(state["epoch"], state["rows"]) for state in states] == [(0, 0), (0, 3), (0, 5)]
    second = iteration([[6] * 4])
    assert next(second) == [6] * 4
    assert first.state_dict() == states[2]
    assert second.state_dict()["epoch"] == 1
    assert [*first] == [[5]]
    assert where(Position.from_dict(first.state_dict())) == (0, 6)  # it stays at the end
    assert [*itertools.islice(second, 5)] == []
    assert where(cursor.position()) == (2, 0)

    resumed = iteration([[9] * 4])
    resumed.load_state_dict({**states[2], "rows": 8})
    assert where(cursor.position()) == (2, 0)  # it may never be iterated over
    assert resumed.state_dict()["rows"] == 8
    next(resumed)
    assert (resumed.state_dict()["epoch"], resumed.state_dict()["rows"]) == (0, 12)
    next(resumed, None)
    assert resumed.state_dict()["rows"] == 12


def lightning(monkeypatch, loop):
    """Call functions as the loop of lightning does: it has the batches that it counted in its own frames."""
    monkeypatch.setitem(sys.modules, "lightning.pytorch", types.ModuleType("lightning.pytorch"))
    names = {"__name__": "lightning.pytorch.loops.fit_loop"}
    exec("def run(self, called): return called()", names)
    return lambda called: names["run"](loop, called)


def loop_after(batches):
    current = types.SimpleNamespace(ready=batches)
    progress = types.SimpleNamespace(current=current)
    return types.SimpleNamespace(epoch_loop=types.SimpleNamespace(batch_progress=progress))


@pytest.mark.parametrize(
    ("rows", "done", "batch_rows", "tail", "is_said"),
    [
        (8, 2, 4, None, False),  # 20 rows a rank: 5 batches, of which 2 are done
        (8, 1, 4, None, True),
        (8, 1, 8, None, False),  # 3 batches of at most 8 rows
        (8, 2, 8, None, True),
        (8, 1, 8, Tail("drop", 2), False),  # the last one is not whole: 2 batches, of which 1 is done and 1 left
        (4, 1, 8, None, False),  # cut again, as it ended within a batch: 2 of 3 are left
        (4, 1, 8, Tail("drop", 2), True),  # 2 of 2
        (4, 1, 8, Tail("pad", 2), False),
        (8, None, 4, None, False),
    ],
)
def test_lightning_counts_batches_that_are_left_out(monkeypatch, caplog, rows, done, batch_rows, tail, is_said):
    loop = types.SimpleNamespace() if done is None else loop_after(done)
    call, cursor = lightning(monkeypatch, loop), made()
    cursor.resume(whole(0, rows=rows, tail=tail))
    with caplog.at_level(logging.WARNING, "ray_h5"):
        call(lambda: cursor.begin(lambda epoch: whole(epoch, tail=tail), batch_rows))
    assert [record.getMessage()[:20] for record in caplog.records] == ["lightning counts on "] * is_said


def test_nobody_else_is_told_about_lightning(monkeypatch, caplog):
    cursor = made()
    call = lightning(monkeypatch, loop_after(1))
    cursor.resume(whole(0, rows=8))
    call(lambda: cursor.begin(whole))  # of unknown batches
    cursor.resume(whole(0, rows=8))
    cursor.begin(whole, 4)  # not from its loop
    cursor.set_epoch(1)
    call(lambda: cursor.begin(whole, 4))  # a whole epoch
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    cursor.resume(whole(0, rows=8))
    call(lambda: cursor.begin(whole, 4))
    assert not caplog.records
