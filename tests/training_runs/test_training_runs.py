"""A whole training run as a machine: begin, save, crash, resume elsewhere, with files and options that change."""

import json
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch.utils.data import DataLoader

from ray_h5.torch_data import H5Dataset, OrderBatchSampler, OrderSampler, PositionError, StaleIndexError, loader
from tests.properties import few
from tests.training_runs.data import BLOCK, FOLDS, KINDS, PARTS, PER_FILE, Data, File

WORLDS = st.sampled_from([1, 1, 2, 3, 5])
ENTRANCES = ["loader", "batch sampler", "sampler"]
SELECTIONS = {"another predicate", "a fold", "another fold", "folds of another seed"}
"""What may select the same rows by chance."""


def samples_of(batch):
    """Return the rows of a batch as dicts of arrays."""
    columns = {name: list(values) for name, values in batch.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_array(value):
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


class Ranks:
    """The ranks of a run, in one process: each has a loader or sampler over a dataset of its own or a common one."""

    def __init__(self, data, entrance, world, batch, *, drop_last=False, threads=0, options=None, state=None, epoch=0):
        self.data, self.world, self.batch, self.drop_last = data, world, batch, drop_last
        self.rows, self.entrance = data.rows(), entrance
        self.dataset = H5Dataset(data.folder, predicate=data.filter(), **data.options(), **(options or {}))
        given = {"shuffle": data.as_shuffle(), "world_size": world}
        read_by = {"threads": threads, "workers": int(entrance == "workers")}
        self.holders, self.iterators = [], []
        self.has_state = False
        """Whether a state can be asked for: a sampler that is asked for more than there is has come to its end."""
        for rank in range(world):
            if entrance in ("loader", "workers"):
                holder = batches = loader(self.dataset, batch, rank=rank, drop_last=drop_last, **given, **read_by)
            elif entrance == "batch sampler":
                holder = OrderBatchSampler(self.dataset, batch, rank=rank, drop_last=drop_last, **given)
                batches = DataLoader(self.dataset, batch_sampler=holder)
            else:
                holder = OrderSampler(self.dataset, rank=rank, drop_last=drop_last, run_length=batch, **given)
                batches = None
            holder.set_epoch(epoch)
            if state is not None:
                holder.load_state_dict(state)
            self.holders.append(holder)
            self.iterators.append(iter(batches) if batches is not None else self._by_indices(holder))

    def _by_indices(self, sampler):
        indices = iter(sampler)
        while wanted := [index for _, index in zip(range(self.batch), indices, strict=False)]:
            yield [self.dataset[index] for index in wanted]

    def step(self):
        """Take a batch of each rank; return the keys of their rows, or None at the end of the epoch."""
        taken = [next(iterator, None) for iterator in self.iterators]
        assert len({batch is None for batch in taken}) == 1, "ranks have different numbers of batches"
        if taken[0] is None:
            return None
        self.has_state = self.entrance != "sampler" or len(taken[0]) == self.batch
        rows = [batch if isinstance(batch, list) else samples_of(batch) for batch in taken]
        assert len({len(each) for each in rows}) == 1, "ranks have batches of different sizes"
        return [[self.checked(row) for row in each] for each in rows]

    def checked(self, sample):
        """Return the key of a row, once its values are those of the files as they were planned."""
        if self.data.kind == "patches":
            number, corner = int(sample["number"]), tuple(sample["corner"].tolist())
            expected = self.rows[number][tuple(slice(at, at + size) for at, size in zip(corner, BLOCK, strict=True))]
            assert np.array_equal(as_array(sample["x"]), expected)
            return number, corner
        key = int(sample["id"])
        for name, whole in self.rows[key].items():
            found = as_array(sample[name])
            is_part = name == "x" and self.data.part_seed is not None  # entries that are drawn keep their order
            expected = whole[np.isin(whole, found)] if is_part else whole
            assert not is_part or len(found) == min(PARTS, len(whole))
            assert found.shape == np.shape(expected), (key, name)
            assert np.array_equal(found, expected), (key, name, found, expected)
        return key

    def state(self):
        states = [json.loads(json.dumps(each.state_dict())) for each in self.holders]
        assert all(state == states[0] for state in states), "ranks have different states"
        return states[0]


class TrainingRun(RuleBasedStateMachine):
    """The model is the files, and the steps that were done when the last state was saved."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="run")
        self.folders, self.moves = [self.folder], 0
        self.ranks = None
        self.is_stale = False

    def teardown(self):
        self.ranks = None
        for folder in [*self.folders, f"{self.folder}.index"]:
            shutil.rmtree(folder, ignore_errors=True)

    # Files --------------------------------------------------------------------------------------

    @initialize(
        kind=st.sampled_from(KINDS),
        sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
        chunk=st.sampled_from([0, 1, 3, 8]),
        predicate=st.booleans(),
        has_table=st.booleans(),
        fold=st.sampled_from([None, None, 0, 1]),
        has_parts=st.booleans(),
        shuffle=st.one_of(
            st.just(("none",)),
            st.tuples(st.sampled_from(["rows", "chunks", "files"]), st.integers(0, 3), st.sampled_from([4, 9])),
            st.tuples(st.just("weights"), st.just("w"), st.integers(0, 3)),
            st.tuples(st.just("length"), st.integers(0, 3)),
        ),
    )
    def make_files(self, kind, sizes, chunk, predicate, has_table, fold, has_parts, shuffle):
        if kind == "patches" or sum(sizes) < FOLDS:
            fold = None
        if kind == "patches":
            predicate, shuffle = False, shuffle if shuffle[0] in ("none", "rows", "files") else ("rows", 1, 4)
        has_table &= kind in ("axis", "ragged")
        files = tuple(File(i, size, chunk=chunk) for i, size in enumerate(sizes))
        data = Data(self.folder, kind, files, predicate=predicate, shuffle=shuffle, table=0 if has_table else None)
        self.data = data = replace(data, fold=fold, part_seed=0 if has_parts and kind == "groups" else None)
        self.write_difference(replace(data, files=()), data)
        self.new_epoch(0)

    def new_epoch(self, epoch):
        self.epoch, self.state, self.saved = epoch, None, ([], [])
        self.steps, self.segments = [], []
        self.wholes = {}

    def reference(self, world=1, batch=7, drop_last=False, entrance="loader"):
        """Return the steps of this epoch if nothing happens, which have each selected row once, or drawn positions."""
        asked = world, batch, drop_last, entrance
        if asked not in self.wholes:
            ranks, steps = Ranks(self.data, entrance, world, batch, drop_last=drop_last, epoch=self.epoch), []
            while (keys := ranks.step()) is not None:
                steps.append(keys)
            self.wholes[asked] = steps
            count = sum(len(each[0]) for each in steps) if entrance == "sampler" else len(steps)
            assert {len(each) for each in ranks.holders} == {count}
            end = ranks.state()
            assert end["epoch"] == self.epoch + (entrance == "loader"), "iterations of loaders advance"
            again = Ranks(self.data, entrance, world, batch, drop_last=drop_last, state=end)
            assert (again.step() is not None) == bool(steps), "after the end of an epoch a whole one follows"
            if world == 1 and not drop_last:
                self.check_once(flat(steps), ranks.rows)
        return self.wholes[asked]

    def check_once(self, keys, rows):
        if self.data.kind == "patches":
            assert Counter(number for number, _ in keys) == dict.fromkeys(rows, PER_FILE)
        elif self.data.shuffle[0] == "weights":
            assert len(keys) == len(rows)
            assert set(keys) <= set(rows)
        else:
            assert sorted(keys) == sorted(rows)

    def has_rows(self):
        return self.holds_rows(self.data)

    # Running ------------------------------------------------------------------------------------

    @precondition(lambda self: self.ranks is None and self.has_rows())
    @rule(
        entrance=st.sampled_from(ENTRANCES),
        world=WORLDS,
        batch=st.integers(1, 5),
        threads=st.sampled_from([0, 0, 1, 2]),
        drop_last=st.sampled_from([False, False, True]),
        has_index=st.booleans(),
        kept=st.sampled_from([None, 0, 200]),
    )
    def begin_or_resume(self, entrance, world, batch, threads, drop_last, has_index, kept):
        options = {"kept_bytes": kept} | ({"index_dir": f"{self.folder}.index"} if has_index else {})
        self.ranks = Ranks(
            self.data,
            entrance,
            world,
            batch,
            drop_last=drop_last,
            threads=threads,
            options=options,
            state=self.state,
            epoch=self.epoch,
        )
        self.is_stale = False
        self.steps, self.segments = map(list, self.saved)
        self.segments.append((world, batch, drop_last, entrance if drop_last else "loader"))

    @precondition(lambda self: self.ranks is not None)
    @rule(steps=st.integers(1, 4))
    def take(self, steps):
        for _ in range(steps):
            try:
                keys = self.ranks.step()
            except StaleIndexError:
                assert self.is_stale
                self.ranks = None
                return
            if keys is None:
                self.ranks = None
                self.finish()
                return
            self.account(keys)

    def account(self, keys):
        """Note rows as delivered. Ranks that stay as many get the steps of a run that nothing interrupts."""
        self.steps.append(keys)
        if len(set(self.segments)) == 1:
            assert self.steps == self.reference(*self.segments[0])[: len(self.steps)]
        if all(world == 1 for world, *_ in self.segments):
            done = flat(self.steps)
            assert done == flat(self.reference())[: len(done)]

    def finish(self):
        done, expected = Counter(flat(self.steps)), Counter(flat(self.reference()))
        padding = sum(world - 1 for world, _, drops, _ in self.segments if not drops)
        dropped = sum(world * batch - 1 for world, batch, drops, _ in self.segments if drops)
        assert (done - expected).total() <= padding, done - expected
        assert (expected - done).total() <= dropped, expected - done
        assert set(done) <= set(expected)
        self.new_epoch(self.epoch + 1)

    @precondition(lambda self: self.ranks is not None and self.ranks.has_state)
    @rule()
    def save(self):
        self.state, self.saved = self.ranks.state(), (list(self.steps), list(self.segments))

    @precondition(lambda self: self.ranks is not None)
    @rule()
    def crash(self):
        self.ranks = None

    @precondition(lambda self: self.ranks is None and self.has_rows())
    @rule(one_in=st.integers(0, 9), world=WORLDS, batch=st.integers(1, 4), steps=st.integers(1, 3))
    def process_is_killed(self, one_in, world, batch, steps):
        """Another process goes on, and is killed; of what it says after each step, the last word is the checkpoint."""
        if one_in != 7:
            return  # a process takes as long as ten steps
        self.steps, self.segments = map(list, self.saved)
        self.segments.append((world, batch, False, "loader"))
        for said in said_by_a_killed_process(
            lambda: Ranks(self.data, "loader", world, batch, state=self.state, epoch=self.epoch), steps
        ):
            if said is None:
                self.finish()
                return
            keys, self.state = said
            self.account(keys)
            self.saved = list(self.steps), list(self.segments)

    # What must be refused -----------------------------------------------------------------------

    @precondition(lambda self: self.ranks is None and self.state is not None)
    @rule(data=st.data())
    def other_data_is_refused(self, data):
        changed = self.data.refused()
        name = data.draw(st.sampled_from(sorted(changed)))
        other = changed[name]
        if name in SELECTIONS and other.rows().keys() == self.data.rows().keys():
            return
        if not self.holds_rows(other) or (other.fold is not None and len(other.ids()) < FOLDS):
            return
        self.write_difference(self.data, other)
        with pytest.raises(PositionError):
            Ranks(other, "loader", 1, 3, state=self.state, epoch=self.epoch)
        self.write_difference(other, self.data)

    # What happens meanwhile ---------------------------------------------------------------------

    @rule(at=st.integers(0, 9), in_place=st.booleans())
    def rewrite_a_file(self, at, in_place):
        """Its values are others; what was planned before delivers the old ones, or an error."""
        at %= len(self.data.files)
        file = self.data.files[at]
        file = replace(file, version=file.version + 1)
        files = (*self.data.files[:at], file, *self.data.files[at + 1 :])
        self.data = replace(self.data, files=files)
        time.sleep(0.005)  # the clock of file systems
        self.data.write(file, in_place=in_place)
        self.is_stale = self.ranks is not None

    @precondition(lambda self: self.ranks is None and len(self.data.files) < 4)
    @rule(rows=st.integers(1, 5))
    def add_a_file(self, rows):
        added = replace(self.data.files[0], number=len(self.data.files), rows=rows)
        self.write_difference(self.data, other := replace(self.data, files=(*self.data.files, added)))
        self.data = other
        self.new_epoch(self.epoch + 1)

    @precondition(lambda self: self.ranks is None)
    @rule()
    def move_the_folder(self):
        moved = f"{self.folder}.{self.moves}"
        self.moves += 1
        os.rename(self.data.folder, moved)
        self.folders.append(moved)
        self.data = replace(self.data, folder=moved)

    @precondition(lambda self: self.ranks is not None and not self.is_stale)
    @rule(batch=st.integers(1, 4), steps=st.integers(1, 3))
    def another_loader_reads_the_same_dataset(self, batch, steps):
        ordered = iter(loader(self.ranks.dataset, batch, shuffle=False, threads=0, rank=0, world_size=1))
        keys = [self.ranks.checked(row) for _ in range(steps) for row in samples_of(next(ordered, {}))]
        if self.data.kind != "patches":
            assert keys == list(self.ranks.rows)[: len(keys)]

    @precondition(lambda self: self.ranks is not None)
    @rule()
    def let_go_of_memory(self):
        self.ranks.dataset.release()

    @rule()
    def remove_the_index(self):
        shutil.rmtree(f"{self.folder}.index", ignore_errors=True)

    @precondition(lambda self: self.ranks is None)
    @rule(epoch=st.integers(0, 5))
    def set_epoch(self, epoch):
        self.new_epoch(epoch)

    def holds_rows(self, data):
        return data.kind == "patches" or bool(data.rows())

    def write_difference(self, before, after):
        """Let the files of a folder be those of `after`."""
        kept = set(before.files)
        for file in after.files:
            if file not in kept:
                after.write(file)
        numbers = {file.number for file in after.files}
        for file in before.files:
            if file.number not in numbers:
                before.path(file.number).unlink()
        if after.table is not None:
            after.write_table()


class LongRun(TrainingRun):
    """Also with processes that read, and with Ray: both take seconds."""

    @precondition(lambda self: self.ranks is None and self.has_rows())
    @rule(one_in=st.integers(0, 9), world=st.sampled_from([1, 2]), batch=st.integers(1, 5), steps=st.integers(1, 4))
    def take_of_workers(self, one_in, world, batch, steps):
        if one_in == 7:
            self.begin_or_resume("workers", world, batch, 0, drop_last=False, has_index=False, kept=None)
            self.take(steps)

    @precondition(lambda self: self.ranks is None and self.has_rows())
    @rule(one_in=st.integers(0, 5), block_rows=st.integers(1, 9))
    def finish_in_ray(self, one_in, block_rows):
        """Tasks of Ray deliver what is left of the epoch, in the order of one rank."""
        if one_in != 3:
            return
        import ray_h5

        data, shuffle = self.data, self.data.as_shuffle()
        ds = ray_h5.read_h5(data.folder, shuffle=shuffle or None, block_rows=block_rows, **data.options())
        if (predicate := data.filter(ray_h5)) is not None:
            ds = ds.filter(expr=predicate)
        ray_h5.set_epoch(ds, self.epoch, position=self.state)
        self.steps, self.segments = map(list, self.saved)
        self.segments.append((1, block_rows, False, "ray"))
        rows = Ranks(data, "loader", 1, 1)
        for batch in ds.iter_torch_batches(batch_size=None, collate_fn=ray_h5.TorchCollate()):
            self.steps.append([[rows.checked(sample) for sample in samples_of(batch)]])
        if all(world == 1 for world, *_ in self.segments):
            assert flat(self.steps) == flat(self.reference())
        self.finish()


def flat(steps):
    return [key for ranks in steps for rank in ranks for key in rank]


def said_by_a_killed_process(make, steps):
    """Yield (keys, state) of each step that a process takes before it is killed; None if its epoch ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            ranks = make()
            said = [(keys, ranks.state()) if (keys := ranks.step()) is not None else None for _ in range(steps)]
        except BaseException:  # noqa: BLE001  the parent raises it
            said = [traceback.format_exc()]
        with os.fdopen(writing, "wb") as out:
            pickle.dump(said[: said.index(None) + 1] if None in said else said, out)
            out.flush()
            time.sleep(600)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as said:
            heard = pickle.load(said)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for each in heard:
        assert not isinstance(each, str), each
        yield each


TestTrainingRun = TrainingRun.TestCase
TestTrainingRun.settings = settings(few(50), stateful_step_count=20)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
class TestLongRun(LongRun.TestCase):
    settings = settings(few(2000), stateful_step_count=30)
