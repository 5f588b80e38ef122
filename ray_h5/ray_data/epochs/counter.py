"""Count the epochs of a dataset, from 0 or from the epoch that was set for it.

Each time that Ray executes a dataset it asks the datasource for tasks, and passes neither the dataset nor the epoch.
`running_execution` finds the dataset and how often it was executed. Where no epoch was set, that count is the epoch.

`set_epoch` and the execution run in different processes, so settings live in the `JobStore`. A setting belongs to a
dataset, which its token identifies, or to the process that executes the dataset, where that process is known. The
execution that first sees a setting reads its epoch; later ones count on. Copies of a dataset count their executions
separately, so each copy remembers that first execution (`EpochCounter._applied`), and the store does not.

The first execution that hands out the rows that a position leaves uses the position up. The store decides which one.
"""

from __future__ import annotations

import copy
import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import ray.data
from ray.data import DataContext, DataIterator

from ray_h5.errors import OptionError, PositionError
from ray_h5.order.read_plan import ReadPlan
from ray_h5.order.remainder import Remainder, position_of, resume
from ray_h5.ray_data.internals.cluster import cluster_id, process_id
from ray_h5.ray_data.internals.executions import DatasetExecution, running_execution

if TYPE_CHECKING:  # a dataset without a name needs none of it
    from ray_h5.order.position import Position
    from ray_h5.ray_data.epochs.job_store import EpochSetting, JobStore

logger = logging.getLogger(__name__)

_COUNTERS: WeakValueDictionary[str, EpochCounter] = WeakValueDictionary()
"""By name: the dataset that this process read last or, if it read none, received first."""
_CLEANED_CLUSTERS: set[str] = set()
"""Clusters in which this process has deleted the entries of ended jobs."""


def check_name(name: object) -> None:
    """Raise unless `name` can be the name of a dataset."""
    if isinstance(name, str) and name:
        return
    if isinstance(name, (ray.data.Dataset, DataIterator)):  # its repr is a table
        raise OptionError(
            f"name: expected the name of a dataset, such as 'train', found a {type(name).__name__}. Give it a name: "
            "ds = read_h5(..., name='train'), and TorchTrainer(datasets={'train': ds}). Then write 'train' here."
        )
    raise OptionError(f"name={name!r}: expected the name of a dataset, such as 'train'")


def store_with(name: str) -> JobStore:
    """Return the store of this job, which has this process's dataset of that name in it.

    The dataset may have been registered in a cluster that has ended; it is then registered in this one.
    """
    from ray_h5.ray_data.epochs.job_store import JobStore

    counter = _COUNTERS.get(name)
    if counter is not None:
        counter.register()
    return JobStore.here()


@dataclass(eq=False)
class EpochCounter:
    """Counts the epochs of one datasource; shared by all datasources that Ray derives from it.

    Attributes
    ----------
    name : str, optional
        The name that `set_epoch` takes.
    is_resumable : bool
        False where a run that resumes begins its epoch again; the user was warned.
    token : str
        Identifies the dataset, and its copies in other processes, among those that were read with the same name.
    """

    name: str | None = None
    is_resumable: bool = True
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _job: str = ""
    _cluster: str = ""
    _reader: str = ""
    """The process that read the dataset."""
    _applied: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By dataset: the id of the last setting applied, and the first execution that it was applied to."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
            _COUNTERS[self.name] = self
            self.register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.name is not None:
            # A dataset that this process read itself keeps the name.
            _COUNTERS.setdefault(self.name, self)

    def as_not_resumable(self) -> EpochCounter:
        """Return a copy that is marked as not resumable."""
        clone = copy.copy(self)
        # The copy counts its own executions from here on.
        clone.is_resumable, clone._applied = False, dict(self._applied)
        return clone

    def begin(self, plan: ReadPlan, context: DataContext) -> Remainder:
        """Return the epoch, or the remainder of it, that this execution reads."""
        execution = running_execution(context)
        setting = self._setting()
        seed = self._resumed_seed(plan, setting)
        if setting is None:
            remainder = Remainder(execution.run, seed=seed)
        else:
            remainder = self._apply(plan, setting, execution, seed)
        dataset = self.name or execution.dataset
        logger.debug("dataset %s: epoch %d, %d rows", dataset, remainder.epoch, remainder.block_layout(plan).num_rows)
        if self.name is not None and execution.iterates:
            from ray_h5.ray_data.epochs.job_store import RunningEpoch
            from ray_h5.ray_data.epochs.resumable import why_not_resumable

            why = why_not_resumable(self.name, plan, remainder.world_size, execution, context, self.is_resumable)
            running = RunningEpoch(position_of(plan, remainder), self.is_resumable, why)
            store = self.register()
            store.put_running((self.token,), running)
            store.put_running((process_id(), self.name), running)
        return remainder

    def register(self) -> JobStore:
        """Return the store of the job that read the dataset; of this job, if that was in another cluster."""
        from ray_h5.ray_data.epochs.job_store import JobStore

        assert self.name is not None
        # A dataset may outlive its cluster: by ray.shutdown and ray.init, or by Dataset.serialize_lineage.
        cluster = cluster_id()
        if self._cluster != cluster:
            store = JobStore.here()
            self._job, self._cluster, self._reader = store.job, cluster, process_id()
            store.register(self.name, self._reader, self.token)
            if cluster not in _CLEANED_CLUSTERS:
                _CLEANED_CLUSTERS.add(cluster)
                store.delete_ended_jobs()
        return JobStore(self._job)

    def _setting(self) -> EpochSetting | None:
        """Return the setting of this dataset, if there is one; raise if it is of a newer dataset with this name."""
        if self.name is None:
            return None
        store = self.register()
        # A setting for this process, from a trainer or a trial, is for no other dataset of the name.
        setting = store.setting((process_id(), self.name))
        if setting is not None:
            return setting
        # Otherwise the setting is of this dataset, unless a later read has taken over its name.
        successor, last = store.token(self.name, self._reader), store.last_token(self.name)
        for token in {successor, last}:
            if token is None or token == self.token:
                continue
            other = store.setting((token,))
            # A process that read no dataset of the name sets the one that was read last, and may mean this one.
            if other is not None and (token == successor or other.by_name_alone):
                raise OptionError(
                    f"dataset {self.name!r}: another one was read by that name, and set_epoch({self.name!r}, ...) is "
                    "for the one read last, which is not this one. Give each a name of its own: read_h5(..., name=)."
                )
        return store.setting((self.token,))

    def _resumed_seed(self, plan: ReadPlan, setting: EpochSetting | None) -> int | None:
        """Return the seed of the run that the dataset resumed, for later epochs too; None if its own seed counts.

        It is stored for this process, and for the next process that executes the dataset.
        """
        shuffle = plan.order.shuffle
        if self.name is None or shuffle is None or not shuffle.is_drawn:
            return None
        store, places = self.register(), [(process_id(), self.token), (self.token,)]
        if setting is None or setting.position is None:
            return next((seed for place in places if (seed := store.seed(place)) is not None), None)
        for place in places:
            store.put_seed(place, setting.position.seed)
        return setting.position.seed

    def _apply(self, plan: ReadPlan, setting: EpochSetting, execution: DatasetExecution, seed: int | None) -> Remainder:
        """Return the epoch of an execution that a setting is for: the epoch that was set, or one counted on from it."""
        applied, first_run = self._applied.get(execution.dataset, ("", execution.run))
        if applied != setting.id:
            first_run = execution.run  # the first execution that sees this setting
        remainder = Remainder(setting.epoch + execution.run - first_run, (), setting.world_size, seed)
        # Counting, aggregating and writing read the whole epoch, and leave the position to the next iteration.
        if setting.position is not None and execution.run == first_run and execution.iterates:
            remainder = self._take_position(setting, setting.position, plan, execution) or remainder
        # Last, so that an execution that raises counts as no epoch.
        self._applied[execution.dataset] = (setting.id, first_run)
        return remainder

    def _take_position(
        self, setting: EpochSetting, position: Position, plan: ReadPlan, execution: DatasetExecution
    ) -> Remainder | None:
        """Return the remainder of the epoch after a position; None if another execution has used the position up."""
        store = self.register()
        if store.is_used_up(setting):
            order = plan.order.with_drawn_seed(position.seed)
            is_of_plan = (position.plan, position.seed) == (plan.fingerprint, order.seed)
            if position.done and is_of_plan and not execution.peeks:
                logger.warning(
                    "dataset %r: an earlier iteration went on at the position that set_epoch was given; this one, of "
                    "another dataset made from the same one, reads the whole of epoch %d",
                    self.name,
                    position.epoch,
                )
            return None
        # Taken only after the remainder is known: an error leaves the position to the next iteration.
        remainder = self._resume(plan, position, setting.world_size, execution)
        return remainder if execution.peeks or store.use_up(setting) else None

    def _resume(self, plan: ReadPlan, position: Position, world_size: int, execution: DatasetExecution) -> Remainder:
        if not self.is_resumable:
            logger.warning(
                "dataset %r: epoch %d begins again instead of at the position: operators after the reading may change "
                "the number of rows, so that it is not known which rows are done",
                self.name,
                position.epoch,
            )
            return Remainder(position.epoch, (), world_size, position.seed)
        if execution.combiners and position.done:
            raise PositionError(
                f"dataset {self.name!r}: set_epoch was given a position, which is for one iteration of this dataset "
                f"alone; found an execution that combines it by {', '.join(execution.combiners)}. Iterate the dataset, "
                "or a map of it, first; or call set_epoch without position, and the combination has the whole epoch. A "
                "mixture of files that resumes is one read_h5 of all of them, with shares: "
                "shuffle=Shuffle(weights={'a/*.h5': 0.3, 'b/*.h5': 0.7})."
            )
        remainder = resume(plan, position, world_size)
        layout = remainder.block_layout(plan)
        if layout.unshared_rows and not execution.peeks:
            logger.warning(
                "dataset %r: the last %d of the %d rows that epoch %d still has do not divide among %d workers, and "
                "are left out of it. Resume with a number of workers that divides them; or deliver them, by "
                "read_h5(..., tail='pad', tail_rows=workers * batch size).",
                self.name,
                layout.unshared_rows,
                layout.num_rows,
                position.epoch,
                world_size,
            )
        return remainder
