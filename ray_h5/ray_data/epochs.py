"""Which epoch an execution of a dataset reads: the one that `set_epoch` said, or the next one.

Each execution asks the datasource for tasks. The datasource and its copies, which Ray makes when it pushes filters and
columns into the reading, share one `Epochs`. Ray does not say what an execution is for until all tasks are made:
`Epochs.begin` therefore begins a copy of the cursor, and `Epochs.started`, called a moment later in the same thread,
lets it take the place of the cursor, unless rows are only counted or looked at.

The datasets of a trainer that its workers share are executed in the *coordinator*, an actor of Ray. There `set_epoch`
leaves what each rank asks for, and `begin` compares it: it runs once all ranks wait for their first batch.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import ray
from ray.data import DataContext, DataIterator, Dataset

from ray_h5.errors import OptionError, PositionError
from ray_h5.loading.cursor import Cursor
from ray_h5.options import as_integer, names_options
from ray_h5.order.position import Position, PositionLike
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import start_of
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.ray_data.ray_internals import (
    Execution,
    datasources,
    execution_of,
    is_split,
    of_dataset,
    wait_for_limits,
    world_rank,
)

logger = logging.getLogger(__name__)

Resumes: TypeAlias = Literal["at its rows", "at its epoch", "nowhere"]
"""Where a run resumes: at the rows that it has done; at the beginning of its epoch, because functions may change the
number of rows, of which the user was warned; nowhere, because blocks may come to workers in any order."""

Setting: TypeAlias = "int | Position"
"""The epoch of the next iteration; or the position at which it begins, if not at the first row of an epoch."""


def as_setting(epoch: int, position: PositionLike | None) -> Setting:
    """Return what the arguments of `set_epoch` mean."""
    epoch = as_integer("set_epoch: epoch", epoch, 0)
    if position is None:
        return epoch
    checked = Position.from_dict(position)
    if checked.epoch != epoch:
        raise PositionError(f"set_epoch: the position is of epoch {checked.epoch}, not of {epoch}")
    return checked


def in_words(setting: Setting) -> str:
    """Return a text for a message, which is the same for equal settings alone."""
    if not isinstance(setting, Position):
        return f"epoch {setting}"
    rows = f" after {setting.rows} rows of each of {setting.world_size} ranks" if setting.has_begun else ""
    # A digest, as Ray broadcasts up to a kilobyte; and of sorted names, which a checkpoint in JSON may have.
    state = json.dumps(setting.to_dict(), sort_keys=True)
    return f"epoch {setting.epoch}{rows}, of digest {hashlib.sha256(state.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class RunningEpoch:
    """Where the running epoch of a dataset began, for workers, which count the rows that they get."""

    start: Position
    resumes: Resumes

    def position(self, rows: int) -> Position:
        """Return the position after `rows` rows a rank.

        Raises
        ------
        PositionError
            If the rows of a rank do not show which rows are done.
        """
        if self.resumes == "nowhere":
            raise PositionError(
                "workers may receive blocks in any order, so that no position shows which rows are done. Pass "
                "dataset_config=ray_h5.data_config() to the trainer."
            )
        return self.start if self.resumes == "at its epoch" else replace(self.start, rows=self.start.rows + rows)


@dataclass(eq=False)
class Epochs:
    """The epochs of one `read_h5`: a cursor for each dataset made from it, which hands out rows in tasks."""

    world_size: int = 1
    """Ranks that share an epoch."""
    resumes: Resumes = "nowhere"
    """`data_config` says it when it gives the dataset to the workers."""
    running: RunningEpoch | None = None
    """The one that was begun last."""
    _setting: Setting = 0
    _seed: int | None = None
    """The seed of the run that was resumed, for later epochs too; None if that of the plan counts."""
    _cursors: dict[Hashable, Cursor] = field(default_factory=dict)
    """Where each dataset is that was executed since the setting."""
    _asked: dict[str, tuple[int, Setting]] = field(default_factory=dict)
    """By shard: the workers that share the dataset, and what this one asked for the next epoch."""
    _begun: dict[Hashable, Cursor] = field(default_factory=dict)
    """Where each is once the execution has started whose tasks are being made."""

    def for_workers(self, world_size: int, is_resumable: bool = True) -> Epochs:
        """Return a copy for a trainer whose workers receive whole blocks in turn, from the epoch that is set on."""
        clone = copy.copy(self)
        clone._cursors, clone._asked, clone._begun = {}, {}, {}
        clone.world_size, clone.resumes = world_size, "at its rows" if is_resumable else "at its epoch"
        return clone

    def set(self, setting: Setting) -> None:
        """Set the epoch of the next execution."""
        self._setting = setting
        self._cursors.clear()
        self._asked.clear()
        self._begun.clear()

    def ask(self, shard: str, workers: int, setting: Setting) -> None:
        """Leave what one of several ranks asks for."""
        self._asked[shard] = workers, setting

    def begin(self, plan: ReadPlan, key: Hashable, context: DataContext) -> Position:
        """Return where this execution begins in which epoch; `key` tells apart what one `read_h5` executes."""
        if self._asked:
            asked, workers = dict(sorted(self._asked.items())), max(workers for workers, _ in self._asked.values())
            self._asked.clear()  # also if they do not agree: the next execution begins without them
            words = {shard: in_words(setting) for shard, (_, setting) in asked.items()}
            check_agreement(words, workers, max(0, workers - len(words)))
            self.set(next(iter(asked.values()))[1])
        # The same dataset may be there twice, as in a union with itself: it is in one epoch.
        if key not in self._begun:
            self._begun[key] = self._ahead(plan, key)
        start = self._begun[key].position()
        if Executions not in context.custom_execution_callback_classes:
            self.started(key, Execution())
            return start
        if context is not _BEGUN.context:  # an execution that failed before it started is forgotten
            _BEGUN.context, _BEGUN.executions = context, ()
        _BEGUN.executions += ((self, key),)
        return start

    def cursor(self, plan: ReadPlan) -> Cursor:
        """Return a cursor at the setting, of which each iteration is the next epoch."""
        cursor = Cursor(plan.order.with_drawn_seed(self._seed), plan.fingerprint, advances=True)
        cursor.set(self._setting)
        return cursor

    def _ahead(self, plan: ReadPlan, key: Hashable) -> Cursor:
        """Return the cursor of what is executed next, its iteration begun; the cursor itself stays where it is."""
        cursor = copy.copy(self._cursors.get(key)) or self.cursor(plan)
        if self.resumes == "at its epoch" and (loaded := cursor.loaded) is not None:
            if loaded.has_begun:
                logger.warning(
                    "epoch %d begins again instead of at the position: operators after the reading may change the "
                    "number of rows, so that it is not known which rows are done",
                    loaded.epoch,
                )
            cursor.loaded = None
        cursor.begin(lambda epoch: start_of(plan, epoch, self.world_size, cursor.order.seed))
        return cursor

    def started(self, key: Hashable, execution: Execution) -> None:
        """Let an execution, whose tasks `begin` has made, be an epoch, now that it is known what it does."""
        cursor = self._begun.pop(key, None)
        if cursor is None:
            return  # a dataset that is there twice has started
        start = cursor.position()
        if start.has_begun and (others := execution.combiners or execution.reducers):
            raise PositionError(
                "set_epoch was given a position, which is for one iteration of this dataset alone; found an execution "
                f"with {', '.join(others)}. Iterate the dataset, or a map of it, first; or call set_epoch without "
                "position. A mixture of files that resumes is one read_h5 of all of them, with shares: "
                "shuffle=Shuffle(weights={'a/*.h5': 0.3, 'b/*.h5': 0.7})."
            )
        if execution.is_look or execution.reducers:
            return
        self._cursors[key] = cursor
        if isinstance(self._setting, Position):  # it is that of the first execution alone
            self._seed, self._setting = start.seed, self._setting.epoch
        say_begun(start)
        self.running = RunningEpoch(start, self.resumes)


def check_agreement(asked: Mapping[str, str], workers: int, silent: int = 0) -> None:
    """Raise an OptionError if workers ask for different epochs or positions; `silent` of them ask for none."""
    first, *rest = asked.values()
    if not silent and all(answer == first for answer in rest):
        return
    said = [f"{name} for {answer}" for name, answer in asked.items()]
    raise OptionError(
        f"the {workers} workers that share a dataset ask for different epochs or positions of it: "
        f"{', '.join(said + [f'{silent} others for nothing'] * bool(silent))}. Pass the same epoch and position to "
        "train_batches or set_epoch in all of them, also the position of a checkpoint that rank 0 alone has loaded."
    )


def say_begun(start: Position) -> None:
    """Say that an epoch begins, and which rows of the rest of one no worker gets."""
    rows = layout_of(start).num_rows - start.rows * start.world_size
    if start.has_begun:
        warn_of_lost_rows(f"the rest of epoch {start.epoch}", rows, start.world_size)
    logger.debug("epoch %d, %d rows", start.epoch, rows)


def warn_of_lost_rows(what: str, rows: int, world_size: int) -> None:
    """Warn of the last rows of an epoch, or of the rest of one, that do not divide among workers."""
    said = (
        "%s: the last %d of %d rows do not divide among %d workers, and are left out of each epoch. Choose what "
        "happens to them: read_h5(..., tail='drop' or 'pad', tail_rows=workers * batch size)."
    )
    if lost := rows % world_size:
        logger.warning(said, what, lost, rows, world_size)


class _Begun(threading.local):
    """The executions whose tasks this thread is making, all with one context."""

    context: DataContext | None = None
    executions: tuple[tuple[Epochs, Hashable], ...] = ()


_BEGUN = _Begun()


class Executions:
    """A callback of Ray, which makes one for each execution and calls it once the datasources have made their tasks."""

    def before_execution_starts(self, executor: Any) -> None:
        begun, _BEGUN.executions = _BEGUN.executions, ()
        execution = execution_of(executor)
        for sink in execution.datasinks:
            if hasattr(sink, "check_inputs"):  # one of this package
                sink.check_inputs([source for source in execution.datasources if hasattr(source, "inputs")])
        for epochs, key in begun:
            epochs.started(key, execution)
        wait_for_limits(executor)

    def on_execution_step(self, executor: Any) -> None: ...

    def after_execution_succeeds(self, executor: Any) -> None: ...

    def after_execution_fails(self, executor: Any, error: Exception) -> None: ...


# What users call --------------------------------------------------------------------------------------


@names_options
def set_epoch(dataset: Dataset | DataIterator, epoch: int, position: PositionLike | None = None) -> None:
    """Set the epoch that the next iteration of a dataset reads.

    Later iterations count on from it. On the driver it is for all that is made from the same `read_h5`. In a training
    loop all workers that share a dataset call it, with the same arguments; `train_batches` does that.

    Parameters
    ----------
    dataset : ray.data.Dataset or ray.data.DataIterator
        A dataset of `read_h5`, or one made from it; in a training loop the shard of it,
        ``ray.train.get_dataset_shard("train")``.
    epoch : int
        Zero or more.
    position : Position or dict, optional
        Where an earlier run ended: what ``train_batches(...).position()`` returned, or the ``state_dict()`` of a loader
        or sampler of plain PyTorch. The next iteration does not read again the rows that are done. ``take`` and
        ``schema`` do not use the position up. Where the dataset drew its seed, as with ``shuffle=True``, it takes over
        the seed of the position, for later epochs too.

    Raises
    ------
    OptionError
        If it is no dataset of `read_h5`, or the epoch is not an integer of 0 or more. When the dataset is iterated: if
        workers that share it asked for different epochs or positions.
    PositionError
        If the position is none, or is of another epoch. When the dataset is iterated: if the position is of other rows,
        or the dataset is combined with others, counted, aggregated or written.

    Examples
    --------
    >>> ds = ray_h5.read_h5("data/*.h5", shuffle=True)  # doctest: +SKIP
    >>> set_epoch(ds, 3)  # doctest: +SKIP
    """
    setting = as_setting(epoch, position)
    if not isinstance(dataset, (Dataset, DataIterator)):
        found_type = repr(dataset) if isinstance(dataset, str) else f"a {type(dataset).__name__}"
        raise OptionError(
            f"set_epoch: expected a dataset of read_h5, or a shard of one, found {found_type}. Datasets have no names: "
            "write set_epoch(ds, 3), or in a training loop set_epoch(ray.train.get_dataset_shard('train'), 3)."
        )
    if not ask_for(dataset, setting):
        raise OptionError(
            "set_epoch: the dataset reads no files by read_h5: either it is of something else, or it is in memory, as "
            "by materialize(), where each epoch is the same"
        )


def ask_for(dataset: Dataset | DataIterator, setting: Setting) -> int:
    """Set the epoch of a dataset or shard, and return of how many `read_h5` it consists."""
    if (cursor := _own_cursor(dataset)) is not None:
        cursor.set(setting)
        return 1
    if not is_split(dataset):
        return len(_at_epochs(dataset, Epochs.set, setting))
    rank = world_rank()
    name = f"shard {ray.get_runtime_context().get_worker_id()[:8]}-{id(dataset):x}" if rank is None else f"rank {rank}"
    return len(_at_epochs(dataset, Epochs.ask, name, int(dataset.world_size()), setting))


def running_epoch(dataset: Dataset | DataIterator) -> RunningEpoch | None:
    """Return the epoch that a dataset, or that of a shard, has begun last; None if it has begun none."""
    if (cursor := _own_cursor(dataset)) is not None:
        return None if cursor.run is None else RunningEpoch(cursor.run[0], "at its rows")
    return next(iter(_at_epochs(dataset, attrgetter("running"))), None)


def _at_epochs(dataset: Dataset | DataIterator, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return `function` of the epochs of each `read_h5` in a dataset or shard, in the process that counts them."""

    def at_each(ds: Dataset) -> list[Any]:
        # All copies of a datasource share its epochs, also those that Ray makes when it pushes filters down.
        counted = [getattr(datasource, "epochs", None) for datasource in datasources(ds, optimized=False)]
        return [function(epochs, *arguments) for epochs in counted if isinstance(epochs, Epochs)]

    return of_dataset(dataset, at_each)


def _own_cursor(dataset: Dataset | DataIterator) -> Cursor | None:
    """Return the cursor of a shard that its worker reads itself; None for others."""
    cursor = getattr(dataset, "cursor", None)
    return cursor if isinstance(cursor, Cursor) else None
