"""A whole training run as a machine: begin, save, crash, resume elsewhere, with files and options that change."""

import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ray_h5.torch_data import PositionError, StaleIndexError, loader
from tests.properties import few
from tests.training_runs.data import FOLDS, KINDS, PER_FILE, Data, File
from tests.training_runs.ranks import OF_PROCESSES, OF_RAY, OF_TORCH, Leg, ranks_of, samples_of

STEPS = st.sampled_from([0, 1, 1, 2, 3, 4, 99])
"""The last one is more than an epoch has."""

WORLDS = st.sampled_from([1, 1, 2, 3, 5])
HOW = {
    "world": WORLDS,
    "batch": st.integers(1, 5),
    "drop_last": st.sampled_from([False, False, True]),
    "threads": st.sampled_from([0, 0, 1, 2]),
    "has_index": st.booleans(),
    "kept_bytes": st.sampled_from([None, 0, 200]),
}
SELECTIONS = {"another predicate", "a fold", "another fold", "folds of another seed"}
"""What may select the same rows by chance."""


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
        self.steps, self.legs = [], []
        self.wholes = {}

    def reference(self, leg=Leg()):  # noqa: B008  frozen
        """Return the steps of this epoch if nothing happens, which have each selected row once, or drawn positions."""
        if leg not in self.wholes:
            ranks, steps = ranks_of(self.data, leg, epoch=self.epoch), []
            while (keys := ranks.step()) is not None:
                steps.append(keys)
            self.wholes[leg] = steps
            if leg.mode in OF_TORCH:
                count = sum(len(each[0]) for each in steps) if leg.mode == "sampler" else len(steps)
                assert {len(each) for each in ranks.holders} == {count}
                end = ranks.state()
                assert end["epoch"] == self.epoch + leg.advances
                again = ranks_of(self.data, leg, end)
                assert (again.step() is not None) == bool(steps), "after the end of an epoch a whole one follows"
            if leg.world == 1 and not leg.drop_last:
                self.check_once(flat(steps), ranks.rows)
        return self.wholes[leg]

    def check_once(self, keys, rows):
        numbers = [number for number, *_ in keys]
        if self.data.kind == "patches":
            assert Counter(numbers) == dict.fromkeys(rows, PER_FILE)
        elif self.data.shuffle[0] == "weights":
            assert len(numbers) == len(rows)
            assert set(numbers) <= set(rows)
        else:
            assert sorted(numbers) == sorted(rows)

    def has_rows(self):
        return self.holds_rows(self.data)

    # Running ------------------------------------------------------------------------------------

    @precondition(lambda self: self.has_rows())
    @rule(mode=st.sampled_from(OF_TORCH), saves=st.booleans(), steps=STEPS, **HOW)
    def begin_or_resume(self, mode, saves, steps, **how):
        """Ranks that run are killed, after their last save or some steps later."""
        if saves and self.ranks is not None:
            self.save()
        self.begin(self.leg_of(mode, **how))
        self.take(steps, goes_on=True)

    def leg_of(self, mode, *, world, batch, drop_last, has_index, block_rows=None, **options):
        options |= {"index_dir": f"{self.folder}.index"} if has_index else {}
        return Leg(mode, 1 if mode == "local" else world, batch, drop_last, block_rows, options)

    def begin(self, leg):
        self.ranks, self.is_stale = ranks_of(self.data, leg, self.state, self.epoch), False
        self.steps, self.legs = map(list, self.saved)
        self.legs.append(leg)

    @precondition(lambda self: self.ranks is not None)
    @rule(steps=STEPS, goes_on=st.booleans())
    def take(self, steps, goes_on):
        for _ in range(steps):
            try:
                keys = self.ranks.step()
            except StaleIndexError:
                assert self.is_stale
                self.ranks = None
                return
            if keys is None:
                self.finish()
                if goes_on and not self.is_stale:
                    self.go_on(None if self.ranks.leg.advances else self.epoch)
                else:
                    self.ranks = None
                return
            self.account(keys)

    @precondition(lambda self: self.ranks is not None)
    @rule(to=st.sampled_from([None, None, 0, 1, 2, 5]))
    def leave_the_epoch(self, to):
        """The same loaders begin another epoch: one that is said, or that which follows."""
        if not self.ranks.has_begun:  # what was loaded stays
            self.ranks.begin(None)
            return
        self.new_epoch(self.epoch + self.ranks.leg.advances if to is None else to)
        self.go_on(to)

    def go_on(self, epoch):
        self.ranks.begin(epoch)
        self.legs.append(self.ranks.leg)

    def account(self, keys):
        """Note rows as delivered. Ranks that stay as many get the steps of a run that nothing interrupts."""
        self.steps.append(keys)
        if len({leg.like for leg in self.legs}) == 1:
            assert self.steps == self.reference(self.legs[0].like)[: len(self.steps)]
        if all(leg.world == 1 for leg in self.legs):
            done = flat(self.steps)
            assert done == flat(self.reference())[: len(done)]

    def finish(self):
        done, expected = Counter(flat(self.steps)), Counter(flat(self.reference()))
        lost, again = map(sum, zip(*(leg.lost for leg in self.legs), strict=True))
        assert (done - expected).total() <= again, done - expected
        assert (expected - done).total() <= lost, expected - done
        assert set(done) <= set(expected)
        self.new_epoch(self.epoch + 1)

    @precondition(lambda self: self.ranks is not None)
    @rule()
    def save(self):
        if self.ranks.has_state:
            self.state, self.saved = self.ranks.state(), (list(self.steps), list(self.legs))

    @precondition(lambda self: self.ranks is not None)
    @rule()
    def crash(self):
        self.ranks = None

    @precondition(lambda self: self.ranks is None and self.has_rows())
    @rule(
        one_in=st.integers(0, 9),
        mode=st.sampled_from(["loader", "batch sampler"]),
        world=WORLDS,
        batch=st.integers(1, 4),
        steps=st.integers(1, 3),
    )
    def process_is_killed(self, one_in, mode, world, batch, steps):
        """Another process goes on, and is killed; of what it says after each step, the last word is the checkpoint."""
        if one_in != 7:
            return  # a process takes as long as ten steps
        leg = Leg(mode, world, batch)
        self.steps, self.legs = map(list, self.saved)
        self.legs.append(leg)
        for said in said_by_a_killed_process(lambda: ranks_of(self.data, leg, self.state, self.epoch), steps):
            if said is None:
                self.finish()
                return
            keys, self.state = said
            self.account(keys)
            self.saved = list(self.steps), list(self.legs)

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
            ranks_of(other, Leg(batch=3), self.state, self.epoch)
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

    @precondition(lambda self: self.ranks is not None and self.ranks.dataset is not None and not self.is_stale)
    @rule(batch=st.integers(1, 4), steps=st.integers(1, 3))
    def another_loader_reads_the_same_dataset(self, batch, steps):
        ordered = iter(loader(self.ranks.dataset, batch, shuffle=False, threads=0, rank=0, world_size=1))
        keys = [self.ranks.checked(row) for _ in range(steps) for row in samples_of(next(ordered, {}))]
        if self.data.kind != "patches":
            assert [key for key, *_ in keys] == list(self.ranks.rows)[: len(keys)]

    @precondition(lambda self: self.ranks is not None and self.ranks.dataset is not None)
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


class RunWithRay(TrainingRun):
    """Also with what reads a Ray dataset in this process, and as its tasks do."""

    @precondition(lambda self: self.has_rows())
    @rule(
        mode=st.sampled_from(OF_RAY),
        saves=st.booleans(),
        steps=STEPS,
        block_rows=st.sampled_from([None, 1, 2, 5]),
        **HOW,
    )
    def begin_or_resume_in_ray(self, mode, saves, steps, block_rows, **how):
        is_refused = len(self.data.rows()) < how["world"]  # as there is no row for each rank
        if block_rows is None and (is_refused or self.data.shuffle[0] == "length"):
            block_rows = how["batch"]  # loaders of files cut what comes by length into batches
        self.begin_or_resume(mode, saves, steps, block_rows=block_rows, **how)


class LongRun(RunWithRay):
    """Also with processes that read, and with processes of Ray: both take seconds."""

    @precondition(lambda self: self.ranks is None and self.has_rows())
    @rule(
        one_in=st.integers(0, 19),
        mode=st.sampled_from(OF_PROCESSES),
        world=st.sampled_from([1, 2]),
        batch=st.integers(1, 5),
        steps=st.integers(1, 4),
        block_rows=st.integers(1, 9),
    )
    def take_of_processes(self, one_in, mode, world, batch, steps, block_rows):
        if one_in == 7:
            self.begin(Leg(mode, world, batch, block_rows=None if mode == "processes" else block_rows))
            self.take(steps, goes_on=True)


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
TestTrainingRun.settings = settings(few(25), stateful_step_count=20)


@pytest.mark.usefixtures("ray_local")
class TestRunWithRay(RunWithRay.TestCase):
    settings = settings(few(25), stateful_step_count=20)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
class TestLongRun(LongRun.TestCase):
    settings = settings(few(2000), stateful_step_count=30)
