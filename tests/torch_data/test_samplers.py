import io
import itertools
import json
import subprocess
import sys
from itertools import chain

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from ray_h5.errors import OptionError, PositionError
from ray_h5.torch_data import EpochShuffleSampler, H5Dataset, OrderBatchSampler, OrderSampler, Shuffle, loader, where

from .conftest import ids_of

N = 23


def epoch_shuffle(**options):
    return EpochShuffleSampler(N, seed=options.get("seed", 0), shuffle=options.get("shuffle", True))


def order(**options):
    return OrderSampler(range(N), **options)


def order_batch(**options):
    return OrderBatchSampler(range(N), 4, **options)


def flat(yielded):
    return [i for each in yielded for i in (each if isinstance(each, list) else [each])]


class SamplerContract:
    """What every sampler holds; a class for each says how to make one."""

    make = None

    def test_each_sample_once_an_epoch_and_otherwise_in_each(self):
        sampler = self.make()
        epochs = []
        for epoch in range(4):
            sampler.set_epoch(epoch)
            yielded = list(sampler)
            assert len(sampler) == len(yielded)
            epochs.append(flat(yielded))
        assert all(sorted(each) == list(range(N)) for each in epochs)
        assert len(set(map(tuple, epochs))) == 4
        again = self.make()
        again.set_epoch(2)
        assert flat(again) == epochs[2]
        assert flat(again) == epochs[2]  # whoever forgets set_epoch gets the same again

    def test_seeds_combine(self):
        first, second = self.make(seed=42), self.make(seed=43)
        first.set_epoch(1)
        assert flat(first) != flat(second)

    def test_without_shuffle(self):
        assert flat(self.make(shuffle=False)) == list(range(N))

    def test_resume_from_every_step(self):
        sampler = self.make(seed=5)
        sampler.set_epoch(3)
        whole = list(sampler)
        for done in range(len(whole) + 1):
            running = self.make(seed=5)
            running.set_epoch(3)
            head = list(itertools.islice(running, done))
            state = running.state_dict()
            resumed = self.make(seed=5)
            resumed.load_state_dict(state)
            assert resumed.epoch == 3
            resumed.set_epoch(3)  # as a training loop does, for the epoch that it goes on with
            tail = list(resumed)
            assert head + tail == whole
            assert list(resumed) == whole

    def test_after_its_end_a_whole_epoch_follows(self):
        sampler, resumed = self.make(seed=5), self.make(seed=5)
        whole = list(sampler)
        resumed.load_state_dict(sampler.state_dict())
        assert list(resumed) == whole

    def test_the_state_of_the_last_step_is_kept_for_its_epoch_alone(self):
        sampler, resumed = self.make(seed=5), self.make(seed=5)
        sampler.set_epoch(3)
        state = [sampler.state_dict() for _ in sampler][-1]
        for epoch, left in ((3, 0), (4, N)):
            resumed.load_state_dict(state)
            resumed.set_epoch(epoch)
            assert len(flat(resumed)) == left

    def test_a_state_of_something_else_is_refused(self):
        state = self.make(seed=1).state_dict()
        with pytest.raises(PositionError, match="expected the state of a sampler of"):
            self.make(seed=2).load_state_dict(state)
        with pytest.raises(PositionError):
            self.make(seed=1).load_state_dict({})
        with pytest.raises(PositionError, match=r"expected the dict that state_dict\(\) returned, found a NoneType"):
            self.make(seed=1).load_state_dict(None)

    @pytest.mark.parametrize("wrong", [None, -3, 1.5, "2"])
    @pytest.mark.parametrize("name", ["epoch", "done", "within"])
    def test_a_state_that_lacks_something_or_has_it_wrong_is_refused(self, name, wrong):
        sampler = self.make()
        state = sampler.state_dict()
        state = {**state, name: wrong} if wrong is not None else {n: each for n, each in state.items() if n != name}
        with pytest.raises(PositionError, match=f"load_state_dict: {name}=.*expected an integer|inside a batch"):
            sampler.load_state_dict(state)
        assert sorted(flat(sampler)) == list(range(N))

    def test_another_epoch_drops_the_state(self):
        sampler = self.make()
        list(itertools.islice(sampler, 2))
        resumed = self.make()
        resumed.load_state_dict(sampler.state_dict())
        resumed.set_epoch(1)
        assert sorted(flat(resumed)) == list(range(N))

    @pytest.mark.parametrize("epoch", [-1, 1.5, None, True])
    def test_no_epoch(self, epoch):
        with pytest.raises(OptionError, match="set_epoch"):
            self.make().set_epoch(epoch)


class TestEpochShuffle(SamplerContract):
    make = staticmethod(epoch_shuffle)

    @pytest.mark.parametrize("data_len", [-1, 2.5, None])
    def test_bad_input(self, data_len):
        with pytest.raises(OptionError, match="data_len"):
            EpochShuffleSampler(data_len)

    def test_nothing(self):
        assert list(EpochShuffleSampler(0)) == []


class TestOrder(SamplerContract):
    make = staticmethod(order)


class TestOrderBatch(SamplerContract):
    make = staticmethod(order_batch)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("stretch", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 23, 30])
def test_ranks_part_an_epoch(world_size, stretch, drop_last, rows):
    samplers = [
        OrderSampler(range(rows), seed=7, rank=rank, world_size=world_size, drop_last=drop_last, stretch=stretch)
        for rank in range(world_size)
    ]
    parts = [list(each) for each in samplers]
    assert {len(part) for part in parts} == {len(samplers[0])}
    together = [i for part in parts for i in part]
    if drop_last:
        assert len(together) == len(set(together)) == rows // world_size * world_size
    else:
        assert set(together) == set(range(rows))
        assert len(together) < rows + world_size


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (5, 5), (2, 5), (5, 1)])
def test_ranks_resume_as_many_or_others_do(before, after):
    def ranks(count):
        return [OrderBatchSampler(range(200), 4, seed=3, rank=rank, world_size=count) for rank in range(count)]

    for steps in range(200 // 4 // before):
        running = ranks(before)
        done = [i for each in running for batch in itertools.islice(each, steps) for i in batch]
        states = [each.state_dict() for each in running]
        assert all(state == states[0] for state in states)
        resumed = ranks(after)
        for each in resumed:
            each.load_state_dict(states[0])
        rest = [i for each in resumed for batch in each for i in batch]
        assert set(done) | set(rest) == set(range(200))
        # Ranks that the rest does not go round among repeat a few, as at the end of any epoch.
        assert len(done) + len(rest) - 200 == -(200 - len(done)) % after


@given(
    st.integers(0, 30),
    st.tuples(st.integers(1, 5), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 4)),
    st.integers(0, 30),
)
def test_what_one_split_has_not_done_another_does(rows, before, after, steps):
    """Also after the last step, when padded ranks have done more than there is; past it, a whole epoch is left."""

    def batches(ranks, batch_size):
        return [OrderBatchSampler(range(rows), batch_size, seed=3, rank=r, world_size=ranks) for r in range(ranks)]

    running, resumed = batches(*before), batches(*after)
    done = {i for each in running for batch in itertools.islice(each, steps) for i in batch}
    left = set(range(rows)) - (done if steps <= len(running[0]) else set())
    for each in resumed:
        each.load_state_dict(running[0].state_dict())
    rest = [i for each in resumed for i in flat(each)]
    assert set(rest) >= left
    assert len(rest) == -(-len(left) // after[0]) * after[0]


def test_a_state_from_inside_a_stretch_needs_the_same_stretch():
    sampler = OrderSampler(range(20), world_size=2, rank=0, stretch=5)
    list(itertools.islice(sampler, 3))
    with pytest.raises(PositionError, match="inside a run of 5"):
        OrderSampler(range(20), stretch=4).load_state_dict(sampler.state_dict())
    with pytest.raises(PositionError, match="between batches"):
        OrderBatchSampler(range(20), 5, rank=0, world_size=2).load_state_dict(sampler.state_dict())


def test_the_order_is_that_of_planning(files):
    dataset = H5Dataset(files, ["fhr_st", "guid"])
    for shuffle in ("rows", "chunks", "files", Shuffle("chunks", seed=4, window_rows=8)):
        sampler = OrderSampler(dataset, shuffle=shuffle, seed=4)
        sampler.set_epoch(2)
        found = list(sampler)
        assert sorted(found) == list(range(60))
        wanted = dataset.epoch_order(shuffle if isinstance(shuffle, Shuffle) else Shuffle(shuffle, 4))
        assert found == wanted.selected_indices(np.arange(60), 2).tolist()


def test_states_hold_plain_values_whatever_options_are_of_numpy(files):
    """For JSON, and for what torch.load takes from a checkpoint that it does not trust."""
    three, true = np.int64(3), np.bool_(True)
    dataset = H5Dataset(files, ["fhr_st"], where(cs_label=True))
    for sampler in (
        EpochShuffleSampler(np.int64(5), seed=three),
        EpochShuffleSampler(5, seed=three, shuffle=true),
        EpochShuffleSampler(5, seed=three, shuffle=np.bool_(False)),
        OrderSampler(range(5), seed=three, stretch=three, rank=np.int64(0), world_size=three),
        OrderBatchSampler(range(5), three, shuffle=Shuffle("rows", seed=three)),
        OrderSampler(dataset, shuffle="chunks"),
        OrderSampler(dataset, shuffle=Shuffle("chunks", window_rows=three)),
    ):
        sampler.set_epoch(three)
        next(iter(sampler))
        state = sampler.state_dict()
        assert json.loads(json.dumps(state)) == state
        kept = io.BytesIO()
        torch.save(state, kept)
        kept.seek(0)
        sampler.load_state_dict(torch.load(kept, weights_only=True))


def test_golden_order():
    """Whoever changes the order of an epoch changes every run that somebody wants to repeat."""
    sampler = OrderSampler(range(10), seed=1)
    sampler.set_epoch(1)
    epoch_shuffle = EpochShuffleSampler(10, seed=1)
    epoch_shuffle.set_epoch(1)
    assert list(sampler) == list(epoch_shuffle) == [6, 8, 5, 2, 7, 9, 4, 0, 1, 3]


def test_bad_input():
    for options in ({"rank": 2, "world_size": 2}, {"world_size": 0}, {"rank": -1, "world_size": 1}):
        with pytest.raises(OptionError, match="expected a rank"):
            OrderSampler(range(5), **options)
    for options in ({"rank": "0", "world_size": 2}, {"rank": 0, "world_size": 2.0}):
        with pytest.raises(OptionError, match="expected an integer"):
            OrderSampler(range(5), **options)
    with pytest.raises(OptionError, match="stretch=0"):
        OrderSampler(range(5), stretch=0)
    with pytest.raises(OptionError, match="batch_size=0"):
        OrderBatchSampler(range(5), 0)
    with pytest.raises(OptionError, match="only an H5Dataset"):
        OrderSampler(range(5), shuffle="chunks")
    with pytest.raises(OptionError, match="shuffle=3"):
        OrderSampler(range(5), shuffle=3)
    with pytest.raises(OptionError, match="unit='nonsense'"):
        OrderSampler(range(5), shuffle="nonsense")


def test_drop_last_leaves_out_part_of_a_batch():
    sampler = OrderBatchSampler(range(23), 4, drop_last=True, shuffle=False)
    assert len(sampler) == 5
    assert list(map(len, sampler)) == [4] * 5


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls what torch deprecates
@pytest.mark.parametrize("batch_sampler", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_resumes_in_the_middle_of_an_epoch(files, workers, batch_sampler):
    dataset = H5Dataset(files, ["fhr_st"])

    def make():
        if batch_sampler:
            sampler = OrderBatchSampler(dataset, 8, seed=9)
            return sampler, StatefulDataLoader(dataset, batch_sampler=sampler, num_workers=workers)
        sampler = OrderSampler(dataset, seed=9)
        return sampler, StatefulDataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers)

    sampler, loader = make()
    sampler.set_epoch(1)
    whole = [ids_of(batch) for batch in loader]
    for done in (1, 4, 7) if workers else range(1, 8):
        _, loader = make()
        loader.sampler.set_epoch(1) if not batch_sampler else loader.batch_sampler.set_epoch(1)
        batches = iter(loader)
        head = [ids_of(next(batches)) for _ in range(done)]
        state = loader.state_dict()
        del batches, loader
        _, resumed = make()
        resumed.load_state_dict(state)
        assert head + [ids_of(batch) for batch in resumed] == whole


def split(kind, rows, drop_last):
    """Options of a loader of batches of 4, whose epoch is one rank's or one of several."""
    if kind == "torch":
        return {"batch_size": 4, "shuffle": True, "drop_last": drop_last}
    if kind == "batches":
        return {"batch_sampler": OrderBatchSampler(range(rows), 4, drop_last=drop_last)}
    sampler = EpochShuffleSampler(rows) if kind == "shuffle" else OrderSampler(range(rows), stretch=kind)
    return {"batch_size": 4, "sampler": sampler, "drop_last": drop_last}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("kind", ["torch", "batches", "shuffle", 1, 4])
@pytest.mark.parametrize(
    ("workers", "rows", "drop_last"), [(0, 20, False), (0, 23, False), (0, 23, True), (1, 20, False), (2, 23, False)]
)
def test_torchdata_resumes_at_the_end_of_an_epoch(kind, workers, rows, drop_last):
    def make():
        return StatefulDataLoader(list(range(rows)), num_workers=workers, **split(kind, rows, drop_last))

    loader = make()
    states, delivered = [], []
    for batch in loader:
        delivered.append(batch.tolist())
        states.append(loader.state_dict())
    assert len(delivered) == (6 if rows == 23 and not drop_last else 5)
    for left in (0,) if workers else (0, 1):
        resumed = make()
        resumed.load_state_dict(states[-1 - left])
        assert [each.tolist() for each in resumed] == delivered[len(delivered) - left :]
        assert len(list(resumed)) == len(delivered), "a whole epoch follows"
    resumed = make()
    resumed.load_state_dict(loader.state_dict())  # between epochs
    assert len(list(resumed)) == len(delivered)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_loader_resumes_at_the_end_of_an_epoch(files, threads, drop_last, world_size):
    dataset = H5Dataset(files, ["fhr_st"])

    def make(ranks=world_size):
        return loader(dataset, 7, drop_last=drop_last, threads=threads, rank=0, world_size=ranks)

    batches = make()
    batches.set_epoch(2)
    whole = [ids_of(batch) for batch in batches]
    between = batches.state_dict()
    following = [ids_of(batch) for batch in batches]
    assert following != whole
    batches.set_epoch(2)
    state = [batches.state_dict() for _ in batches][-1]
    resumed = make()
    for epoch, expected in ((2, []), (3, whole)):
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert len(list(resumed)) == len(expected)
        assert len(list(resumed)) == len(whole), "a whole epoch follows"
    resumed.load_state_dict(between)
    assert [ids_of(batch) for batch in resumed] == following
    others = make(3)
    others.load_state_dict(state)
    full, rest = divmod(max(60 - state["done"], 0), 3 * 7)
    assert len(list(others)) == full + bool(rest and not drop_last)


def test_a_plain_dataloader_takes_them(files):
    dataset = H5Dataset(files, ["fhr_st"])
    sampler = OrderBatchSampler(dataset, 7)
    found = [ids_of(batch) for batch in DataLoader(dataset, batch_sampler=sampler)]
    assert found == list(OrderBatchSampler(dataset, 7))


@pytest.mark.parametrize(
    "sampler",
    [
        OrderSampler(range(N), seed=1, stretch=4),
        OrderBatchSampler(range(N), 4, seed=1),
        EpochShuffleSampler(N, seed=1),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_look_ahead_in_the_middle_of_an_epoch_loses_nothing(sampler):
    """Such as ``next(iter(loader))`` inside the loop over that loader, for a batch to show."""
    whole = list(sampler)
    for done in range(1, len(whole)):
        running = iter(sampler)
        head = list(itertools.islice(running, done))
        list(itertools.islice(iter(sampler), 3))
        head.append(next(running))
        state = sampler.state_dict()
        assert head + list(running) == whole
        sampler.load_state_dict(state)
        assert list(sampler) == whole[done + 1 :]


def test_a_rest_that_is_too_little_for_a_step_of_other_ranks_is_dropped():
    alone = OrderBatchSampler(range(25), 1, drop_last=True)
    alone.set_epoch(2)
    done = list(itertools.islice(alone, 5))
    state = alone.state_dict()
    several = [OrderBatchSampler(range(25), 7, drop_last=True, rank=rank, world_size=3) for rank in range(3)]
    for sampler in several:
        sampler.load_state_dict(state)
        assert list(sampler) == [], "20 rows are left, and a step takes 21; those that are done do not come again"
        sampler.set_epoch(3)
        assert len(list(sampler)) == 1
    alone.load_state_dict(state)
    assert sorted(flat(done) + flat(alone)) == list(range(25))


FIRST = """
import itertools, json, sys
from ray_h5.torch_data import OrderBatchSampler, OrderSampler, Shuffle, loader

kind, path = sys.argv[1:]
made = {
    "sampler": lambda: OrderSampler(range(100), seed=None, stretch=8),
    "batches": lambda: OrderBatchSampler(range(100), 8, shuffle=Shuffle(seed=None)),
    "loader": lambda: loader(path, 8, seed=None, threads=1),
}[kind]()
taken = list(itertools.islice(made, 24 if kind == "sampler" else 3))
print(json.dumps([made.state_dict(), taken if kind != "loader" else [batch["y"].tolist() for batch in taken]]))
"""


@pytest.mark.parametrize("kind", ["sampler", "batches", "loader"])
def test_a_new_process_resumes_with_the_seed_that_the_first_one_drew(kind, tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("y", data=np.arange(100), chunks=(4,))
    program = [sys.executable, "-c", FIRST, kind, path]
    ended = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    state, had = json.loads(ended.stdout)
    made = {
        "sampler": lambda seed: OrderSampler(range(100), seed=seed, stretch=8),
        "batches": lambda seed: OrderBatchSampler(range(100), 8, seed=seed),
        "loader": lambda seed: loader(path, 8, seed=seed, threads=1),
    }[kind]

    def taken(of):
        return [batch["y"].tolist() for batch in of] if kind == "loader" else list(of)

    resumed, same = made(None), made(state["shuffle"][1])
    resumed.load_state_dict(state)
    assert had + taken(resumed) == taken(same)
    for each in (resumed, same):
        each.set_epoch(1)
    assert taken(resumed) == taken(same)
    assert resumed.state_dict() == same.state_dict()
    with pytest.raises(PositionError, match=f"What differs: seed {state['shuffle'][1]}, not 7"):
        made(7).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_loader_resumes_with_the_seed_that_was_drawn():
    def batches():
        return StatefulDataLoader(list(range(100)), batch_size=8, sampler=OrderSampler(range(100), seed=None))

    first, second = batches(), batches()
    iteration = iter(first)
    had = [next(iteration).tolist() for _ in range(3)]
    second.load_state_dict(first.state_dict())
    rest = [batch.tolist() for batch in second]
    assert rest == [batch.tolist() for batch in iteration]
    assert sorted(chain(*had, *rest)) == list(range(100))
    assert [batch.tolist() for batch in second] == [batch.tolist() for batch in first]


def test_each_rank_would_draw_a_shuffle_of_its_own():
    drawn = Shuffle(seed=None)
    with pytest.raises(OptionError, match=f"give all of them one seed, such as {drawn.seed}"):
        OrderSampler(range(100), shuffle=drawn, rank=1, world_size=2)
    assert repr(drawn) == f"Shuffle(unit='auto', seed={drawn.seed}, window_rows=None)"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_rows": 90}, "num_rows 90, not 100"),
        ({"shuffle": ["rows", 8, None]}, "seed 8, not 7"),
        ({"shuffle": ["chunks", 8, 32]}, "unit 'chunks', not 'rows'; seed 8, not 7; window_rows 32, not None"),
        ({"shuffle": None}, r"shuffle None, not \['rows', 7, None\]"),
    ],
)
def test_what_differs_is_named(change, expected):
    sampler = OrderSampler(range(100), seed=7)
    with pytest.raises(PositionError, match=f"What differs: {expected}$"):
        sampler.load_state_dict({**sampler.state_dict(), **change})


@pytest.mark.parametrize("seed", [-1, "7", 1.5, True])
def test_what_is_no_seed_is_refused(seed):
    sampler = OrderSampler(range(100), seed=None)
    with pytest.raises(PositionError, match="load_state_dict: seed="):
        sampler.load_state_dict({**sampler.state_dict(), "shuffle": ["rows", seed, None]})
    sampler.load_state_dict({**sampler.state_dict()})
