"""Which epoch an iteration is: set by name from anywhere in a job, or counted.

Ray asks a datasource for its tasks each time that it executes, and tells it neither the dataset nor the epoch.
`running_dataset` finds the dataset, and how often it was executed: where nothing was set, that is the epoch. Who sets
one and who executes are different processes, so a `Setting` lies on the `Board`, which tells the turns of a name
apart, and by a token the datasets that had it. From the run at which a dataset first sees a setting it counts on;
copies of a dataset count their runs each by itself, so they note that run (`Epochs._obeyed`) and not the board. A
position is used up by the first of all of them, which the board decides. What then begins is told to the board, for
who asks where the epoch is. A dataset that a process reads the whole of has all this in the process (`_OWN`), for
others may be elsewhere in it; but its turn, and whether its position is used up, is the board's to say.
"""

from __future__ import annotations

import copy
import logging
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.data import DataContext

from ray_h5.errors import OptionError, PositionError
from ray_h5.hdf5.rows import near_names
from ray_h5.options import as_integer
from ray_h5.planning.plan import ReadPlan
from ray_h5.planning.position import Position, Stretch, position_of, resume
from ray_h5.ray_data.internals import running_dataset

logger = logging.getLogger(__name__)

_BOARD = "ray_h5_epochs"
_BOARDS: dict[str, Any] = {}
_OWN: dict[str, Own] = {}
_READ_HERE: dict[str, str] = {}
"""By name: the token of the dataset that this process read, or was sent, last. A new cluster learns it from here."""


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
    token : str
        The dataset that had the name then; see `Epochs`.
    seed : int, optional
        The seed of the run that the dataset resumed last, for this epoch and those after it.
    """

    epoch: int
    position: Position | None = None
    world_size: int = 1
    turn: int = 0
    token: str = ""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """What an epoch that is being read is like; enough to tell a `Position` in it.

    Attributes
    ----------
    start : Position
        Where it begins.
    in_order : bool
        Whether Ray keeps the order of blocks, without which there is no position.
    rows_are_kept : bool
        Whether what workers get are the rows that are read, and not more or less of them.
    """

    start: Position
    in_order: bool
    rows_are_kept: bool

    def position(self, rows: int) -> Position:
        """Return the position after `rows` rows a rank."""
        return replace(self.start, rows=rows) if self.rows_are_kept else self.start


@dataclass(slots=True)
class Own:
    """What was said in this process of a dataset that it reads by itself, and what its epoch is like."""

    setting: Setting
    running: Running | None = None


class Board:
    """Where settings are kept, for all processes of a job: a named actor without a CPU."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}
        self._settings: dict[str, Setting] = {}
        self._running: dict[str, Running] = {}
        self._begun: set[tuple[str, int]] = set()

    def register(self, name: str, token: str) -> None:
        """Let a name mean a dataset, and no longer one that had it before."""
        self._tokens[name] = token
        self._running.pop(name, None)

    def set(self, name: str, setting: Setting, token: str | None) -> Setting | list[str]:
        """Keep a setting and return it as it is kept; or return the names there are, if this is none of them.

        A name that the board does not know gets the `token` of the dataset that the caller has by it.
        """
        if token is not None:
            self._tokens.setdefault(name, token)
        if name not in self._tokens:
            return sorted(self._tokens)
        last = self._settings.get(name)
        turn, token = 1 if last is None else last.turn + 1, self._tokens[name]
        seed = last.seed if last is not None and last.token == token else None
        if setting.position is not None:
            seed = setting.position.seed
        self._settings[name] = replace(setting, turn=turn, token=token, seed=seed)
        return self._settings[name]

    def get(self, name: str, token: str) -> tuple[Setting | None, str]:
        """Return the last setting of a name, and the token of the dataset that has it now: `token` if there is none."""
        return self._settings.get(name), self._tokens.setdefault(name, token)

    def may_go_on(self, name: str, turn: int, peeks: bool) -> bool:
        """Tell whether an iteration begins at the position of a setting: the first one does, and those that peek."""
        is_first = (name, turn) not in self._begun
        if not peeks:
            self._begun.add((name, turn))
        return is_first

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
        Where a run that ended was: the next iteration, of the dataset or of what is made of it, does not read the
        rows again that were done. It is for that one alone; ``take`` and ``schema`` do not use it up. Where the
        dataset drew its seed, as by ``shuffle=True``, that of the position takes its place, in later epochs too.
    world_size : int, optional
        Workers that share the dataset; inside a training loop that is known.

    Notes
    -----
    A name is that of the dataset that was read last by it, of its copies, and of what is made of them: to
    run a cell of a notebook again replaces the dataset. One that had the name before is an error to iterate
    from then on.

    Raises
    ------
    OptionError
        If no dataset has that name, the epoch is no integer of 0 or more, or the world size no integer of 1 or more.
    PositionError
        If the position is no `Position`, or of another epoch.
    """
    _OWN.pop(name, None)
    _set(name, epoch, position, world_size)


def set_own_epoch(name: str, epoch: int, position: Position | None = None) -> None:
    """Say it of a dataset that this process reads the whole of; arguments and errors as in `set_epoch`.

    Other workers that do so may be in another epoch, or in another place of it: they do not wait for each other.
    """
    _OWN[name] = Own(_set(name, epoch, position, 1))


def _set(name: str, epoch: int, position: Position | None, world_size: int | None) -> Setting:
    check_name(name)
    epoch = as_integer("set_epoch: epoch", epoch, 0)
    world_size = _world_size() if world_size is None else as_integer("set_epoch: world_size", world_size, 1)
    if position is not None and not isinstance(position, Position):
        raise PositionError(
            f"set_epoch: position={position!r}: expected a Position; make one of what a checkpoint holds with "
            "Position.from_dict(...)"
        )
    if position is not None and position.epoch != epoch:
        raise PositionError(f"set_epoch: the position is of epoch {position.epoch}, not of {epoch}")
    found = ray.get(_board(name).set.remote(name, Setting(epoch, position, world_size), _READ_HERE.get(name)))
    if not isinstance(found, Setting):
        raise _unknown(name, found)
    return found


def check_name(name: object) -> None:
    """Raise unless `name` can be the name of a dataset."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"name={name!r}: expected the name of a dataset, such as 'train'")


def running(name: str) -> Running:
    """Return what the epoch that a dataset is read in is like."""
    own = _OWN.get(name)
    found = own.running if own is not None else ray.get(_board(name).running.remote(name))
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
    token : str
        Tells the dataset, wherever copies of it are, from others that were read by the same name.
    """

    name: str | None = None
    rows_are_kept: bool = True
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _obeyed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By dataset: the last setting obeyed, and the run that was."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
            _READ_HERE[self.name] = self.token
            ray.get(open_board().register.remote(self.name, self.token))

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (self.name, self.rows_are_kept, self.token, self._obeyed)

    def with_rows_changed(self) -> Epochs:
        """Return the same for a dataset behind whose reading the number of rows changes."""
        clone = copy.copy(self)
        clone.rows_are_kept, clone._obeyed = False, dict(self._obeyed)
        return clone

    def begin(self, plan: ReadPlan, context: DataContext) -> Stretch:
        """Return the epoch that this execution reads."""
        dataset, run, peeks = running_dataset(context)
        setting = self._setting()
        if setting is None:
            stretch = Stretch(run)
        else:
            turn, first_run = self._obeyed.get(dataset, (-1, run))
            if turn != setting.turn:
                self._obeyed[dataset] = (setting.turn, run)
                first_run = run
            stretch = Stretch(setting.epoch + run - first_run, (), setting.world_size, setting.seed)
            if setting.position is not None and run == first_run and self._goes_on(setting, peeks):
                stretch = self._resumed(plan, setting.position, setting.world_size)
        logger.info("dataset %s: epoch %d, %d rows", self.name or dataset, stretch.epoch, stretch.cut(plan).num_rows)
        if self.name is not None:
            in_order = context.execution_options.preserve_order
            self._tell(Running(position_of(plan, stretch), in_order, self.rows_are_kept))
        return stretch

    def _setting(self) -> Setting | None:
        """Return what was said of this dataset, if anything was."""
        if self.name is None:
            return None
        setting, token = ray.get(open_board().get.remote(self.name, self.token))
        own = _OWN.get(self.name or "")
        setting = own.setting if own is not None else setting
        if setting is None or setting.token == self.token:
            return setting
        if token != self.token:
            raise OptionError(
                f"dataset {self.name!r}: another one was read by that name, and set_epoch({self.name!r}, ...) is for "
                "the one read last, which is not this one. Give each a name of its own: read_h5(..., name=)."
            )
        # It was said of the dataset that had the name before.
        return None

    def _goes_on(self, setting: Setting, peeks: bool) -> bool:
        return bool(ray.get(open_board().may_go_on.remote(self.name, setting.turn, peeks)))

    def _tell(self, found: Running) -> None:
        """Let it be known what the epoch that begins is like."""
        own = _OWN.get(self.name or "")
        if own is not None:
            own.running = found
        else:
            ray.get(open_board().begin.remote(self.name, found))

    def _resumed(self, plan: ReadPlan, position: Position, world_size: int) -> Stretch:
        if self.rows_are_kept:
            return resume(plan, position, world_size)
        logger.warning(
            "dataset %r: epoch %d begins anew instead of where it was left: operators behind the reading may change "
            "the number of rows, so that none of those that were read can be told to be done",
            self.name,
            position.epoch,
        )
        return Stretch(position.epoch, (), world_size, position.seed)


def _sent(name: str | None, rows_are_kept: bool, token: str, obeyed: dict[str, tuple[int, int]]) -> Epochs:
    """Return what was pickled, which does not take the name from a dataset that was read by it since."""
    epochs = Epochs(None, rows_are_kept, token, obeyed)
    epochs.name = name
    if name is not None:
        _READ_HERE.setdefault(name, token)
    return epochs


def _board(name: str) -> Any:
    try:
        return open_board() if name in _READ_HERE else ray.get_actor(_BOARD)
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
