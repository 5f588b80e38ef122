"""Which epoch an iteration is: set by name from anywhere in a job, or counted.

Ray asks a datasource for its tasks each time that it executes, and tells it neither the dataset nor the epoch.
`running_execution` finds the dataset, and how often it was executed: where nothing was set, that is the epoch.
`set_epoch` and the execution run in different processes, so a `Setting` lies on the `Board`: for a dataset, which a
token tells from others, or for the process that executes it, where that is known. From the run at which a dataset
first sees a setting it counts on; copies of a dataset count their runs each by itself, so they note that run
(`Epochs._obeyed`) and not the board. A position is used up by the first execution that hands out the rows that are
left; the board decides which one that is.
"""

from __future__ import annotations

import copy
import logging
import uuid
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from ray.data import DataContext, DataIterator

from ray_h5.errors import OptionError, PositionError
from ray_h5.messages import near_names
from ray_h5.options import as_integer
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.epoch.position import Position, Remainder, position_of, resume
from ray_h5.ray_data.board import Board, Running, Setting
from ray_h5.ray_data.certainty import why_no_position
from ray_h5.ray_data.internals import (
    Execution,
    cluster_id,
    executing_process,
    process_id,
    running_execution,
    trainer_shard,
    trial_id,
    workers_that_share,
)

logger = logging.getLogger(__name__)

_HERE: WeakValueDictionary[str, Epochs] = WeakValueDictionary()
"""By name: what this process read last or, if it read none, got first."""
_SWEPT: set[str] = set()
"""Clusters in which this process has looked for what ended jobs left."""


def set_epoch(name: str, epoch: int, *, position: Position | None = None, world_size: int | None = None) -> None:
    """Say which epoch the next iteration of a dataset is.

    One call before the epoch begins is enough, by the driver or by any worker of a training run;
    more calls that say the same do no harm. Iterations after that one count on from it.

    Parameters
    ----------
    name : str
        What the dataset was called by ``read_h5(..., name=)``.
    epoch : int
        Zero or more.
    position : Position, optional
        Where a run that ended was: the next iteration, of the dataset or of what is made of it, does not read the
        rows again that were done. It is for that one alone: ``take`` and ``schema`` do not use it up; nor do
        ``count``, aggregations and writing, which have the whole epoch. Where the dataset drew its seed, as by
        ``shuffle=True``, that of the position takes its place, in later epochs too.
    world_size : int, optional
        Workers that share the dataset; inside a training loop that is known.

    Notes
    -----
    A name is that of the dataset that was read last by it, of its copies, and of what is made of them: to
    run a cell of a notebook again replaces the dataset. One that had the name before is an error to iterate
    from then on. In a process that read a dataset by that name itself, such as a trial of a tuning run, the name
    means that one; in a training loop, the one that the trainer has by it.

    Raises
    ------
    OptionError
        If no dataset has that name, the epoch is no integer of 0 or more, or the world size no integer of 1 or more.
    PositionError
        If the position is no `Position`, or of another epoch. When the dataset is iterated, if the position is of other
        rows, or the dataset is combined with others or itself, as by ``union`` and ``zip``.
    """
    check_name(name)
    shard = trainer_shard(name)
    if shard is not None:
        set_for_shard(name, shard, epoch, position, world_size)
        return
    setting = _setting(epoch, position, world_size)
    board, here = _board_with(name), process_id()
    read_here = board.token(name, here)
    token = read_here or board.last(name)
    if token is None:
        raise _unknown(name, board)
    board.set((token,), replace(setting, by_name_alone=read_here is None))
    if trial_id() is not None:
        # Trials that share a dataset run at their own pace; what one executes itself is its own.
        board.set((here, name), setting)
    else:
        board.unset((here, name))


def set_own_epoch(name: str, epoch: int, position: Position | None = None) -> None:
    """Say it of a dataset that this process reads the whole of; arguments and errors as in `set_epoch`.

    Other workers that do so may be in another epoch, or in another place of it: they do not wait for each other.
    """
    _set_in(process_id(), name, _setting(epoch, position, 1))


def set_for_shard(
    name: str, shard: DataIterator, epoch: int, position: Position | None = None, world_size: int | None = None
) -> None:
    """Say it of what a trainer has by a name, and of no other dataset with that name."""
    workers = workers_that_share(shard) or 1
    setting = _setting(epoch, position, workers if world_size is None else world_size)
    _set_in(executing_process(shard), name, setting)


def _set_in(process: str, name: str, setting: Setting) -> None:
    check_name(name)
    board = _board_with(name)
    if board.last(name) is None:
        raise _unknown(name, board)
    board.set((process, name), setting)


def _board_with(name: str) -> Board:
    """Return the board of this job, with the dataset of this process on it: it may be of a cluster that has ended."""
    known = _HERE.get(name)
    if known is not None:
        known.register()
    return Board.here()


def _setting(epoch: int, position: Position | None, world_size: int | None) -> Setting:
    epoch = as_integer("set_epoch: epoch", epoch, 0)
    world_size = _world_size() if world_size is None else as_integer("set_epoch: world_size", world_size, 1)
    if position is not None and not isinstance(position, Position):
        raise PositionError(
            f"set_epoch: position={position!r}: expected a Position; make one of what a checkpoint holds with "
            "Position.from_dict(...)"
        )
    if position is not None and position.epoch != epoch:
        raise PositionError(f"set_epoch: the position is of epoch {position.epoch}, not of {epoch}")
    return Setting(epoch, position, world_size, uuid.uuid4().hex)


def check_name(name: object) -> None:
    """Raise unless `name` can be the name of a dataset."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"name={name!r}: expected the name of a dataset, such as 'train'")


def running(name: str, process: str | None = None) -> Running:
    """Return the state of the epoch that a dataset is read in; of the one that a process executes, if it is given."""
    board = _board_with(name)
    token = board.token(name, process_id()) or board.last(name)
    place = (process, name) if process is not None else (token,) if token is not None else None
    found = None if place is None else board.running(place)
    if found is None:
        raise OptionError(f"dataset {name!r} has not been iterated yet")
    return found


@dataclass(eq=False)
class Epochs:
    """Counts the epochs of one datasource; shared by all that Ray derives from it.

    Attributes
    ----------
    name : str, optional
        The name that `set_epoch` takes.
    rows_are_kept : bool
        False where the user was told that a run that resumes begins its epoch again.
    token : str
        Tells the dataset, wherever copies of it are, from others that were read by the same name.
    """

    name: str | None = None
    rows_are_kept: bool = True
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _job: str = ""
    _cluster: str = ""
    _reader: str = ""
    """The process that read it."""
    _obeyed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By dataset: the last setting obeyed, and the run that was."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
            _HERE[self.name] = self
            self.register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.name is not None:
            _HERE.setdefault(self.name, self)

    def with_rows_changed(self) -> Epochs:
        """Return the same for a dataset behind whose reading the number of rows changes."""
        clone = copy.copy(self)
        clone.rows_are_kept, clone._obeyed = False, dict(self._obeyed)
        return clone

    def begin(self, plan: ReadPlan, context: DataContext) -> Remainder:
        """Return the epoch that this execution reads."""
        execution = running_execution(context)
        setting = self._setting()
        seed = self._seed_of_run(plan, setting)
        remainder = Remainder(execution.run, seed=seed)
        if setting is not None:
            remainder = self._obey(plan, setting, execution, seed)
        dataset = self.name or execution.dataset
        logger.info("dataset %s: epoch %d, %d rows", dataset, remainder.epoch, remainder.block_layout(plan).num_rows)
        if self.name is not None and execution.iterates:
            in_order = context.execution_options.preserve_order
            why = why_no_position(self.name, plan, remainder.world_size, execution, context, self.rows_are_kept)
            found = Running(position_of(plan, remainder), in_order, self.rows_are_kept, why)
            self.register().begin((self.token,), found)
            self.register().begin((process_id(), self.name), found)
        return remainder

    def register(self) -> Board:
        """Return the board of the job that read the dataset, or of this one, if that was in another cluster."""
        assert self.name is not None
        cluster = cluster_id()
        if self._cluster != cluster:
            board = Board.here()
            self._job, self._cluster, self._reader = board.job, cluster, process_id()
            board.register(self.name, self._reader, self.token)
            if cluster not in _SWEPT:
                _SWEPT.add(cluster)
                board.sweep()
        return Board(self._job)

    def _setting(self) -> Setting | None:
        """Return what was said of this dataset, if anything was."""
        if self.name is None:
            return None
        board = self.register()
        setting = board.get((process_id(), self.name))
        if setting is not None:
            return setting
        heir, last = board.token(self.name, self._reader), board.last(self.name)
        for token in {heir, last} - {self.token, None}:
            other = board.get((token or "",))
            if other is not None and (token == heir or other.by_name_alone):
                raise OptionError(
                    f"dataset {self.name!r}: another one was read by that name, and set_epoch({self.name!r}, ...) is "
                    "for the one read last, which is not this one. Give each a name of its own: read_h5(..., name=)."
                )
        return board.get((self.token,))

    def _seed_of_run(self, plan: ReadPlan, setting: Setting | None) -> int | None:
        """Return the seed of the run that the dataset resumed, for its later epochs too; None if its own was not drawn.

        It is kept for this process, and for the next one that executes the dataset.
        """
        shuffle = plan.order.shuffle
        if self.name is None or shuffle is None or not shuffle.is_drawn:
            return None
        board, places = self.register(), [(process_id(), self.token), (self.token,)]
        if setting is None or setting.position is None:
            return next((seed for place in places if (seed := board.seed(place)) is not None), None)
        for place in places:
            board.keep_seed(place, setting.position.seed)
        return setting.position.seed

    def _obey(self, plan: ReadPlan, setting: Setting, execution: Execution, seed: int | None) -> Remainder:
        """Return the epoch of an execution that a setting is for: the one that was set, or one counted on from it."""
        obeyed, first_run = self._obeyed.get(execution.dataset, ("", execution.run))
        if obeyed != setting.id:
            first_run = execution.run
        remainder = Remainder(setting.epoch + execution.run - first_run, (), setting.world_size, seed)
        # What is counted, aggregated or written is the whole epoch, and leaves the position to the iteration.
        if setting.position is not None and execution.run == first_run and execution.iterates:
            remainder = self._begun_at(setting, setting.position, plan, execution) or remainder
        self._obeyed[execution.dataset] = (setting.id, first_run)  # not where it raised: that was no epoch
        return remainder

    def _begun_at(self, setting: Setting, position: Position, plan: ReadPlan, execution: Execution) -> Remainder | None:
        """Return what is left of the epoch at a position; None if another execution has used it up."""
        board = self.register()
        if board.is_used_up(setting):
            is_of_plan = position.plan_hash == plan.with_drawn_seed(position.seed).hash
            if position.done and is_of_plan and not execution.peeks:
                logger.warning(
                    "dataset %r: an earlier iteration went on at the position that set_epoch was given; this one, of "
                    "another dataset made of the same, has the whole of epoch %d",
                    self.name,
                    position.epoch,
                )
            return None
        rest = self._resumed(plan, position, setting.world_size, execution)
        return rest if execution.peeks or board.use_up(setting) else None

    def _resumed(self, plan: ReadPlan, position: Position, world_size: int, execution: Execution) -> Remainder:
        if not self.rows_are_kept:
            logger.warning(
                "dataset %r: epoch %d begins anew instead of where it was left: operators behind the reading may "
                "change the number of rows, so that none of those that were read can be told to be done",
                self.name,
                position.epoch,
            )
            return Remainder(position.epoch, (), world_size, position.seed)
        if execution.combiners and position.done:
            raise PositionError(
                f"dataset {self.name!r}: set_epoch was given a position, which is for one iteration of this dataset "
                f"alone; found an execution that combines it by {', '.join(execution.combiners)}. Iterate the dataset, "
                "or a map of it, first; or call set_epoch without position, and the combination has the whole epoch."
            )
        return resume(plan, position, world_size)


def _unknown(name: str, board: Board) -> OptionError:
    names = board.names()
    if not names:
        return OptionError("set_epoch: no dataset of this job has a name; give it one: read_h5(..., name='train')")
    return OptionError(f"set_epoch: no dataset is called {name!r}.{near_names(name, names)}")


def _world_size() -> int:
    """Return the number of training workers, if this is one of them."""
    from ray.train import get_context

    try:
        return int(get_context().get_world_size())
    except (RuntimeError, AttributeError, DeprecationWarning):  # the last one is raised in a trial of Ray Tune
        return 1
