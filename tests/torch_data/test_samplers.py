import io
import itertools
import json
import sys
import types
from itertools import chain

import h5py
import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from ray_h5 import H5Dataset, OrderBatchSampler, OrderSampler, Shuffle, WeightedSampler, loader, ragged
from ray_h5.errors import OptionError, PositionError
from ray_h5.loading import cursor
from ray_h5.torch_data import EpochShuffleSampler, where

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
        with pytest.raises(PositionError, match="What differs: seed 1, not 2"):
            self.make(seed=2).load_state_dict(state)
        with pytest.raises(PositionError):
            self.make(seed=1).load_state_dict({})
        with pytest.raises(PositionError, match=r"expected a Position, or the dict of .* found None"):
            self.make(seed=1).load_state_dict(None)

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


def test_bad_input():
    wrong = [{"rank": 2, "world_size": 2}, {"world_size": 0}, {"rank": -1, "world_size": 1}, {"rank": 1}]
    for options in [*wrong, {"rank": "0", "world_size": 2}, {"stretch": 0}, {"shuffle": "chunks"}, {"shuffle": 3}]:
        with pytest.raises(OptionError):
            OrderSampler(range(5), **options)
    with pytest.raises(OptionError, match="batch_size=0"):
        OrderBatchSampler(range(5), 0)


def test_ranks_of_torchrun_that_torch_does_not_know_are_warned_of_once(monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of this test")
    monkeypatch.setenv("WORLD_SIZE", "2")
    list(OrderSampler(range(9), rank=0, world_size=1))
    sampler = OrderSampler(range(9))
    assert (len(sampler), sampler.rank) == (9, 0)
    assert not caplog.messages, "a framework such as lightning initialises torch.distributed after loaders are made"
    assert len(list(sampler)) == len(list(sampler)) == 9
    (said,) = caplog.messages
    assert said.startswith("torchrun started 2 processes, and torch.distributed is not initialised")


def test_callers_may_hide_their_class():
    """Loaders of accelerate are looked for among the callers, and a proxy may have no class yet."""

    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("there is nothing behind this proxy")

        def rows(self):
            return list(OrderSampler(range(9), shuffle=False))

    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True)
    try:
        assert Proxy().rows() == list(range(9))
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("kind", ["pytorch_lightning", "lightning.pytorch", "another"])
def test_a_state_of_what_was_read_ahead_is_warned_of_where_lightning_is(monkeypatch, caplog, kind):
    monkeypatch.setitem(sys.modules, kind, sys)
    monkeypatch.delitem(sys.modules, "torchdata.stateful_dataloader", raising=False)
    for made, done in ((OrderSampler(range(9)), 0), (OrderSampler(range(9)), 10), (OrderBatchSampler(range(9), 2), 2)):
        list(itertools.islice(iter(made), done))
        made.state_dict()
    assert not caplog.messages
    taken = iter(sampler := OrderSampler(range(9)))
    list(itertools.islice(taken, 4))
    for _ in range(2):
        sampler.state_dict()
    assert len(caplog.messages) == (kind != "another")


@pytest.mark.parametrize(
    ("batch_size", "world_size", "done", "is_told"),
    [(4, 1, 10, False), (8, 1, 10, True), (2, 1, 10, True), (4, 2, 10, True), (4, 1, 0, True)],
)
def test_lightning_counts_other_batches_than_there_are(monkeypatch, caplog, batch_size, world_size, done, is_told):
    """It ends an epoch after the number of batches of a whole one, and counts those of the run before."""

    def batches(size, ranks):
        return OrderBatchSampler(range(100), size, rank=0, world_size=ranks)

    begun, resumed = batches(4, 1), batches(batch_size, world_size)
    list(itertools.islice(begun, 10))
    resumed.load_state_dict(begun.state_dict())
    names = {"__name__": "lightning.pytorch.loops.fit_loop"}
    exec("def run(self, batches): return list(batches)", names)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", sys)
    progress = types.SimpleNamespace(current=types.SimpleNamespace(ready=done))
    loop = types.SimpleNamespace(epoch_loop=types.SimpleNamespace(batch_progress=progress))
    for said in (is_told, False):  # the next epoch is a whole one
        caplog.clear()
        names["run"](loop, resumed)
        assert ("lightning counts on from" in caplog.text) == said


def split(kind, rows, drop_last):
    """Options of a loader of batches of 4, whose epoch is one rank's or one of several."""
    if kind == "torch":
        return {"batch_size": 4, "shuffle": True, "drop_last": drop_last}
    if kind == "batches":
        return {"batch_sampler": OrderBatchSampler(range(rows), 4, drop_last=drop_last)}
    sampler = EpochShuffleSampler(rows) if kind == "shuffle" else OrderSampler(range(rows), stretch=kind)
    return {"batch_size": 4, "sampler": sampler, "drop_last": drop_last}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    ("kind", "workers", "rows", "drop_last"),
    [
        *itertools.product(["torch", "batches", "shuffle", 1, 4], [0], [20], [False]),
        *itertools.product(["torch", "batches", "shuffle", 1, 4], [0], [23], [False, True]),
        ("torch", 1, 20, False),
        ("batches", 2, 23, False),
        (4, 2, 23, False),
    ],
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
    for left in (0, 2) if workers else range(len(states)):
        resumed = make()
        resumed.load_state_dict(states[-1 - left])
        assert [each.tolist() for each in resumed] == delivered[len(delivered) - left :]
        assert len(list(resumed)) == len(delivered), "a whole epoch follows"
    resumed = make()
    resumed.load_state_dict(loader.state_dict())  # between epochs
    assert len(list(resumed)) == len(delivered)


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


def test_another_one_resumes_with_the_seed_that_the_first_one_drew(files):
    def make(seed):
        return loader(files, 8, seed=seed, threads=1, columns=["fhr_st"])

    def taken(of):
        return [ids_of(batch) for batch in of]

    first = make(None)
    had, state = taken(itertools.islice(first, 3)), first.state_dict()
    resumed, same = make(None), make(state["seed"])
    resumed.load_state_dict(state)
    assert had + taken(resumed) == taken(same)
    for each in (resumed, same):
        each.set_epoch(1)
    assert taken(resumed) == taken(same)
    assert resumed.state_dict() == same.state_dict()
    with pytest.raises(PositionError, match=f"What differs: seed {state['seed']}, not 7"):
        make(7).load_state_dict(state)


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


def test_a_state_is_of_the_chunk_groups_of_ranges(tmp_path):
    states = []
    for counts in (np.full(60, 10), np.r_[np.full(30, 2), np.full(30, 18)]):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["ends"] = np.cumsum(counts)
            file.create_dataset("x", data=np.zeros(600), chunks=(20,))
        sampler = OrderSampler(H5Dataset(tmp_path / "a.h5", [ragged("x", ends="ends")]), shuffle="chunks")
        states.append(sampler.state_dict())
    with pytest.raises(PositionError, match=r"What differs: .*chunks"):
        sampler.load_state_dict(states[0])


def test_two_seeds_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(9)
    samples = H5Dataset(tmp_path / "a.h5")
    for make in (OrderSampler, OrderBatchSampler, loader):
        sizes = () if make is OrderSampler else (2,)
        for seed in (5, None):
            with pytest.raises(OptionError, match=f"seed={seed}: shuffle=Shuffle.* has a seed of its own, 3; leave"):
                make(samples, *sizes, shuffle=Shuffle(seed=3), seed=seed)
        make(samples, *sizes, shuffle=Shuffle(seed=3), seed=3)
        make(samples, *sizes, shuffle=Shuffle(seed=3))
    with pytest.raises(OptionError, match="seed=5: generator= has a seed of its own, 3; leave seed= out"):
        WeightedSampler(np.ones(9), 9, generator=torch.Generator().manual_seed(3), seed=5)


@pytest.mark.parametrize("batch_values", [None, 40])
def test_a_loader_is_never_one_that_accelerate_prepared(tmp_path, batch_values, monkeypatch):
    """Which is of another class: the steps of a trainer that takes a loader as it is are those of a rank."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(100)
    lengths = None if batch_values is None else np.arange(100) % 20
    shuffle = Shuffle("rows", 1, by_length=lengths, batch_values=batch_values)
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True)
    try:
        for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
            monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
        made = loader(tmp_path / "a.h5", 4, shuffle=shuffle, columns=["n"])
        count, batches = len(made), list(made)
        assert count == len(batches)
        assert sum(len(batch["n"]) for batch in batches) == 50
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def as_rank(tmp_path, monkeypatch):
    """Let this process be one rank of two after the other, which share a store."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    def become(rank):
        cursor._BEGUN.clear()
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)

    yield become
    torch.distributed.destroy_process_group()


def begin(kind, rows, seed):
    """Begin an epoch of 40 rows as one of the ranks; return the rows of the first batches."""
    if kind == "loader":
        return [int(i) for batch in loader(H5Dataset(rows, ["n"]), 4, seed=seed) for i in batch["n"]]
    if kind == "weights":
        return list(WeightedSampler(np.ones(40), 40, seed=seed))
    given = {"rank": torch.distributed.get_rank(), "world_size": 2} if kind == "given" else {}
    return list(OrderSampler(range(40), seed=seed, **given))


@pytest.mark.parametrize("kind", ["loader", "sampler", "weights", "given"])
def test_ranks_with_seeds_of_their_own_are_told(as_rank, tmp_path, kind):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(40)
    shares = []
    for rank in (1, 0):
        as_rank(rank)
        shares += begin(kind, tmp_path / "a.h5", 5)
        begin(kind, tmp_path / "a.h5", 6)  # another loader of the same rows
    assert kind == "weights" or sorted(shares) == list(range(40))
    as_rank(0)
    said = (
        r"orders of their own: seed 5 on rank 1, seed 7 on rank 0\..* one rank alone makes, pass rank=0, world_size=1"
    )
    with pytest.raises(OptionError, match=said):
        begin(kind, tmp_path / "a.h5", 7)


def test_one_rank_alone_and_shares_of_its_own_are_not_compared(as_rank):
    for rank in (0, 1):
        as_rank(rank)
        assert sorted(OrderSampler(range(40), seed=rank, rank=0, world_size=1)) == list(range(40))
        assert sorted(EpochShuffleSampler(40, seed=rank)) == list(range(40))
        assert len(list(OrderSampler(range(40 + rank), seed=rank))) == 20 + rank
