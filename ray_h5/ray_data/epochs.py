"""Which epoch an iteration is: set by name from anywhere in a job, or counted."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
from ray.data import DataContext

from ray_h5.errors import OptionError, PositionError
from ray_h5.hdf5.rows import near_names
from ray_h5.planning.plan import ReadPlan, Tail
from ray_h5.planning.position import Position, Stretch, plan_hash, resume
from ray_h5.ray_data.internals import running_dataset

logger = logging.getLogger(__name__)

_BOARD = "ray_h5_epochs"
_BOARDS: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Setting:
    """What `set_epoch` said.

    Attributes
    ----------
    epoch : int
        The epoch.
    position : Position, optional
        Where in it to begin.
    world_size : int
        Ranks that share it.
    turn : int
        Counts the calls for a name, so that each is obeyed once.
    """

    epoch: int
    position: Position | None = None
    world_size: int = 1
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """What an epoch that is being read is like; enough to tell a `Position` in it.

    Attributes
    ----------
    stretch : Stretch
        The epoch, and what was done of it before.
    seed, block_rows, plan_hash, tail
        As in `Position`.
    in_order : bool
        Whether Ray keeps the order of blocks, without which there is no position.
    rows_are_kept : bool
        Whether what workers get are the rows that are read, and not more or less of them.
    """

    stretch: Stretch
    seed: int
    block_rows: int
    plan_hash: str
    tail: Tail | None
    in_order: bool
    rows_are_kept: bool = True

    def position(self, rows: int) -> Position:
        """Return the position after `rows` rows a rank."""
        stretch = self.stretch
        if not self.rows_are_kept:
            rows = 0
        at = self.seed, stretch.epoch, rows, stretch.world_size, self.block_rows, self.plan_hash
        return Position(*at, stretch.done, self.tail)


class Board:
    """Where settings are kept, for all processes of a job: a named actor without a CPU."""

    def __init__(self) -> None:
        self._settings: dict[str, Setting | None] = {}
        self._running: dict[str, Running] = {}

    def register(self, name: str) -> None:
        self._settings.setdefault(name, None)

    def set(self, name: str, setting: Setting) -> list[str]:
        """Keep a setting; return the names there are, if this is none of them."""
        if name not in self._settings:
            return sorted(self._settings)
        last = self._settings[name]
        self._settings[name] = replace(setting, turn=last.turn + 1 if last is not None else 1)
        return []

    def get(self, name: str) -> Setting | None:
        return self._settings.get(name)

    def begin(self, name: str, running: Running) -> None:
        self._running[name] = running

    def running(self, name: str) -> Running | None:
        return self._running.get(name)


def open_board() -> Any:
    """Return the job's board, made if there is none yet; it lives as long as the process that made it.

    Ray ends an actor once the handle that made it is gone, whoever else found it by its name: here
    that would be with the first of several datasets. So the process keeps it, for one session of Ray.
    """
    context = ray.get_runtime_context()
    # A driver's own id is made of its job's, which is the same in each cluster that is started anew.
    session = context.get_node_id() + context.get_worker_id()
    if session not in _BOARDS:
        _BOARDS.clear()
        _BOARDS[session] = ray.remote(num_cpus=0)(Board).options(name=_BOARD, get_if_exists=True).remote()
    return _BOARDS[session]


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
        Where a run that ended was: the rows that it had done are not read again.
    world_size : int, optional
        Workers that share the dataset; inside a training loop that is known.

    Raises
    ------
    OptionError
        If no dataset has that name, or the epoch is none.
    PositionError
        If the position is none, or of another epoch.
    """
    check_name(name)
    if isinstance(epoch, bool) or not isinstance(epoch, (int, np.integer)) or epoch < 0:
        raise OptionError(f"set_epoch: epoch={epoch!r}: expected an integer of zero or more")
    epoch = int(epoch)
    if position is not None and not isinstance(position, Position):
        raise PositionError(
            f"set_epoch: position={position!r}: expected a Position; make one of what a checkpoint holds with "
            "Position.from_dict(...)"
        )
    if position is not None and position.epoch != epoch:
        raise PositionError(f"set_epoch: the position is of epoch {position.epoch}, not of {epoch}")
    world_size = world_size or _world_size()
    names = ray.get(_board().set.remote(name, Setting(epoch, position, world_size)))
    if names:
        raise _unknown(name, names)


def check_name(name: object) -> None:
    """Raise unless `name` can be the name of a dataset."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"name={name!r}: expected the name of a dataset, such as 'train'")


def running(name: str) -> Running:
    """Return what the epoch that a dataset is read in is like."""
    found = ray.get(_board().running.remote(name))
    if found is None:
        raise OptionError(f"dataset {name!r} has not been iterated yet")
    return found


@dataclass(slots=True)
class Epochs:
    """Counts the epochs of one datasource; shared by all that Ray derives from it.

    Attributes
    ----------
    name : str, optional
        The name that `set_epoch` takes.
    rows_are_kept : bool
        Whether nothing behind the reading changes the number of rows.
    """

    name: str | None = None
    rows_are_kept: bool = True
    _board: Any = None
    _obeyed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By dataset: the last setting obeyed, and the run that was."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
            self._board = open_board()
            ray.get(self._board.register.remote(self.name))

    def begin(self, plan: ReadPlan, context: DataContext) -> Stretch:
        """Return the epoch that this execution reads."""
        dataset, run = running_dataset(context)
        setting = ray.get(self._board.get.remote(self.name)) if self._board is not None else None
        if setting is None:
            stretch = Stretch(run)
        else:
            turn, first_run = self._obeyed.get(dataset, (-1, run))
            if turn != setting.turn:
                self._obeyed[dataset] = (setting.turn, run)
                first_run = run
            stretch = Stretch(setting.epoch + run - first_run, (), setting.world_size)
            if setting.position is not None and run == first_run:
                stretch = self._resumed(plan, setting.position, setting.world_size)
        logger.info("dataset %s: epoch %d, %d rows", self.name or dataset, stretch.epoch, stretch.cut(plan).num_rows)
        if self._board is not None:
            in_order = context.execution_options.preserve_order
            planned = plan.seed, plan.block_rows, plan_hash(plan), plan.tail
            found = Running(stretch, *planned, in_order, self.rows_are_kept)
            ray.get(self._board.begin.remote(self.name, found))
        return stretch

    def _resumed(self, plan: ReadPlan, position: Position, world_size: int) -> Stretch:
        if self.rows_are_kept:
            return resume(plan, position, world_size)
        logger.warning(
            "dataset %r: epoch %d begins anew instead of where it was left: operators behind the reading may change "
            "the number of rows, so that none of those that were read can be told to be done",
            self.name,
            position.epoch,
        )
        return Stretch(position.epoch, (), world_size)


def _board() -> Any:
    try:
        return ray.get_actor(_BOARD)
    except ValueError:
        raise OptionError(
            "set_epoch: no dataset of this job has a name; give it one: read_h5(..., name='train')"
        ) from None


def _unknown(name: str, names: list[str]) -> OptionError:
    return OptionError(f"set_epoch: no dataset is called {name!r}.{near_names(name, names)}")


def _world_size() -> int:
    """Return the number of training workers, if this is one of them."""
    from ray.train import get_context

    try:
        return int(get_context().get_world_size())
    except (RuntimeError, AttributeError):
        return 1
