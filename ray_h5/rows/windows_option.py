"""Windows of episodes, as a user writes them."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, is_integer, is_number, names_options, require

IS_PAD = "_is_pad"
"""Ending of the column that says which steps of a window are padding."""

Pad: TypeAlias = Literal["edge", "zero", "drop"]
_PADS = ("edge", "zero", "drop")
_MOST_SECONDS_OFF = 1e-4
"""How far an offset in seconds may be from a step: the tolerance of LeRobot's ``delta_timestamps``."""

_MOST_STEPS = 1 << 40
"""No file has episodes this long. Sums of steps and offsets below it fit into int64."""


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """A column of windows: the column that it is read from, and its offsets, in steps or in seconds.

    Or `span`: all samples from one second up to another.
    """

    name: str
    source: str
    offsets: tuple[Any, ...]
    span: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest offset."""
        return self.span or (min(self.offsets), max(self.offsets))


@names_options
class Windows:
    """A row is a step t of an episode, with the values of columns at some offsets from t.

    An episode is a group (over `Groups`), one index of all row axes but the last (over `Grid`), or rows of a file: all
    of them, those with one value of a column, or those between ends.

    Parameters
    ----------
    offsets : mapping of str to sequence of int or float
        The offsets of each column: ``{"obs/image": range(-1, 1), "actions": range(0, 16)}``. Such a column has the
        shape ``(len(offsets), *row_shape)``. It may be of a `Sidecar` with a line for each step. Another name for it:
        ``{"input": ("u", range(0, 4))}``. Columns without offsets have their value at t, or the constant of the
        episode; see `per_step`. Floats are seconds, and need `fps`.
    stride : int
        Steps from one row to the next in an episode, from its first valid t on.
    pad : {"edge", "zero", "drop"}, or a pair of them
        What stands for steps before and after an episode: its first or last step, zeros, or nothing, where windows that
        do not fit are no rows. A pair is for the beginning and the end. With ``"edge"`` and ``"zero"``, the boolean
        column ``<column>_is_pad`` says which steps are padding.
    episode : str, or mapping of str to object, optional
        A column with one value an episode, such as its number. Rows of an episode follow each other. With
        ``rows=Files()``, each file is a step, and an episode is the files with one value of the column, also of a
        `Sidecar` or an attribute; or of a ``"folder"``. They are in natural order of their names (``t_2`` before
        ``t_10``). Or ``{file: episode}`` with the last parts of paths, such as ``"2010/t_2"``, as many as tell the
        files apart.
    episode_ends : str, optional
        A dataset with the row after the last one of each episode, ascending.
    episode_flags : str or sequence of str, optional
        Columns that are true in the last step of an episode: ``["terminals", "timeouts"]``. The steps after the last
        flag are an episode, too.
    episode_starts, episode_lengths : str, optional
        A dataset with the first row of each episode, ascending from 0, where episodes follow each other without a gap;
        or a dataset with the number of steps of each.
    episode_bounds : str, optional
        A dataset with the first row of each episode and the row after its last one: pairs, of shape ``(episodes, 2)``.
        Steps outside all pairs are no rows.
    fps : float, optional
        Steps a second, for offsets in seconds. With `at`: rows a second, from the first to the last time of the first
        column with offsets; by default there is a row at each of its samples, or at each `stride`-th.
    at : str, or mapping of str to (str or pair of float), optional
        Columns have times of their own: the name of a dataset beside each column, such as ``"timestamps"``; a mapping
        names the dataset of each column (``{"speed": "behavior/t"}``), or its rate and its first time. Without such a
        dataset, the attributes of the column say its rate and start, as NWB and GWOSC write them. Offsets are seconds:
        of a list, the samples that are nearest to them, and padding where all are a sample's time away or more; of a
        slice, such as ``slice(-1, 1)``, all samples from then up to then. Offsets have the unit of times that are
        numbers. Integers and datetimes are compared exactly; floats are equal that differ by a millionth of a sample,
        or by their rounding. Each file is a recording; with `Groups`, each group is.
    holds : sequence of str
        With `at`: columns whose samples hold until the next one, such as masks and labels of longer spans.
    episode_length : {"min"}, optional
        Where columns of an episode differ in length, it has the steps of the shortest one; by default this is an error.
        Offsets reach the further entries of longer columns: with ``{"observations": [0, 1], "actions": [0]}``, T + 1
        observations and T actions are T transitions.
    per_step, constants : sequence of str
        Columns without offsets, over `Groups` and `Files`, that have a value for each step, or are a constant of each
        episode. By default a column has a value for each step if it has as many entries as each episode has steps, and
        is a constant if it has others in each. In between, naming it here is needed.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Windows({"actions": range(0, 4)}, stride=2, pad="drop")
    Windows({'actions': range(0, 4)}, stride=2, pad='drop')
    """

    def __init__(
        self,
        offsets: Mapping[str, Any],
        *,
        stride: int = 1,
        pad: Pad | tuple[Pad, Pad] = "edge",
        episode: str | Mapping[str, Any] | None = None,
        episode_ends: str | None = None,
        episode_flags: str | Sequence[str] | None = None,
        episode_starts: str | None = None,
        episode_lengths: str | None = None,
        episode_bounds: str | None = None,
        fps: float | None = None,
        at: str | Mapping[str, Any] | None = None,
        holds: Sequence[str] = (),
        episode_length: Literal["min"] | None = None,
        per_step: Sequence[str] = (),
        constants: Sequence[str] = (),
    ) -> None:
        expected = "{column: offsets}, such as {'actions': range(0, 16)}"
        require(isinstance(offsets, Mapping) and offsets, "Windows: offsets", offsets, expected)
        self.stride = as_integer("Windows: stride", stride, 1)
        pads = tuple(pad) if isinstance(pad, (tuple, list)) else (pad, pad)
        are_pads = len(pads) == 2 and all(isinstance(one, str) and one in _PADS for one in pads)
        expected = "'edge', 'zero' or 'drop', or a pair of them for the beginning and the end"
        require(are_pads, "Windows: pad", pad, expected)
        self.pad = cast("tuple[Pad, Pad]", pads)
        self.episode = dict(episode) if isinstance(episode, Mapping) else episode
        self.episode_ends, self.episode_bounds = episode_ends, episode_bounds
        self.episode_starts, self.episode_lengths = episode_starts, episode_lengths
        flags = [episode_flags] if isinstance(episode_flags, str) else episode_flags
        self.episode_flags = () if flags is None else _as_names("episode_flags", flags)
        require(flags is None or self.episode_flags, "Windows: episode_flags", [], "the names of one or more columns")
        require(fps is None or (is_number(fps) and 0 < fps < math.inf), "Windows: fps", fps, "a number above 0")
        require(episode_length in {None, "min"}, "Windows: episode_length", episode_length, "'min', or None")
        self.fps = fps
        self.episode_length: Literal["min"] | None = episode_length
        self.at: str | tuple[tuple[str, Any], ...] | None = _as_times(at)
        self.holds = _as_names("holds", holds)
        self.per_step, self.constants = _as_names("per_step", per_step), _as_names("constants", constants)
        self._check_episodes()
        pairs = {name: _source_of(name, value) for name, value in offsets.items()}
        self.columns = tuple(
            _window_column(name, *pair, fps) if at is None else _timed_column(name, *pair)
            for name, pair in pairs.items()
        )
        self.of_tables: tuple[WindowColumn, ...] = ()
        """Columns of tables beside the files: these have none of them; see `apart_from`."""
        self._counted = ""
        self._check_columns()
        self._said = {name: said if source == name else (source, said) for name, (source, said) in pairs.items()}

    def _check_episodes(self) -> None:
        for option, value in self.episodes.items():
            is_name = option == "episode_flags" or isinstance(value, str) or (self.of_files and option == "episode")
            require(is_name, f"Windows: {option}", value, "the name of a column")
        if len(options := [*self.episodes]) > 1:
            raise OptionError(f"Windows: {' and '.join(options)} both say where episodes end; pass one of them")
        if self.at is None:
            if self.holds:
                raise OptionError("Windows: holds= is used only with at=, where columns have times of their own")
            return
        if options := [*options, *(["episode_length"] if self.episode_length else [])]:
            raise OptionError(
                f"Windows: at= and {options[0]}=: each file is one recording, or each group with rows=Groups(...); "
                "leave one of both out"
            )
        if self.per_step:
            raise OptionError("Windows: at= and per_step=: with at=, columns have times of their own; leave it out")

    def _check_columns(self) -> None:
        if both := sorted({*self.per_step} & {*self.constants}):
            raise OptionError(f"Windows: {both[0]!r} is in per_step and in constants; a column is one of them")
        windowed = [name for column in self.columns for name in (column.name, column.source)]
        if named := [name for name in windowed if name in {*self.per_step, *self.constants}]:
            raise OptionError(f"Windows: {named[0]!r} has offsets; leave it out of per_step and constants")
        marks = {column.name + IS_PAD for column in self.columns} if self.marks_padding else set()
        if doubles := [column.name for column in self.columns if column.name in marks]:
            raise OptionError(f"Windows: {doubles[0]!r} is the column that marks padding of another one; rename it")

    @property
    def episodes(self) -> dict[str, Any]:
        """The option that says where episodes of rows along the first axis end, if any."""
        options_given = {
            "episode": self.episode,
            "episode_ends": self.episode_ends,
            "episode_flags": list(self.episode_flags) or None,
            "episode_starts": self.episode_starts,
            "episode_lengths": self.episode_lengths,
            "episode_bounds": self.episode_bounds,
        }
        return {option: value for option, value in options_given.items() if value is not None}

    @property
    def of_files(self) -> bool:
        """Whether episodes are several files, if files are rows: those of a folder, or as a mapping says."""
        return self.episode == "folder" or isinstance(self.episode, Mapping)

    @property
    def marks_padding(self) -> bool:
        """Whether there are columns ``<column>_is_pad``."""
        return self.pad != ("drop", "drop")

    @property
    def every(self) -> tuple[WindowColumn, ...]:
        """The columns of the files and of tables: a row is a step at which all of them have their offsets."""
        return self.columns + self.of_tables

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the files that say which steps there are."""
        own = tuple(dict.fromkeys(column.source for column in self.columns))
        return own or ((self._counted,) if self._counted else ())

    def apart_from(self, of_tables: Collection[str], counted: str) -> Windows:
        """Return the same windows of files that lack some columns with offsets: tables have these.

        The steps are those of `counted`, a column of the files, if no other one has offsets.
        """
        made = copy.copy(self)
        made.columns = tuple(column for column in self.columns if column.source not in of_tables)
        made.of_tables = tuple(column for column in self.columns if column.source in of_tables)
        made._counted = "" if made.columns else counted
        return made

    @property
    def not_in_files(self) -> tuple[str, ...]:
        """What the repr does not say of how files are opened: the columns of tables, and the one that counts steps."""
        return (*(column.source for column in self.of_tables), *(() if self.columns else self.sources))

    def single_steps(self) -> Windows:
        """Return windows with each step of each episode as a row of its own."""
        made = copy.copy(self)
        made.stride, made.pad, made.of_tables = 1, ("edge", "edge"), ()
        made._counted = "" if self.columns else self._counted
        made.columns = tuple(WindowColumn(column.name, column.source, (0,)) for column in self.columns)
        same = {column.name for column in made.columns if column.name == column.source}
        made._said = {c.name: [0] if c.name in same else (c.source, [0]) for c in made.columns}
        return made

    def is_blank(self, side: np.ndarray) -> np.ndarray:
        """Return which steps are zeros, given those that are before (-1) or after (1) their episode."""
        before, after = (pad == "zero" for pad in self.pad)
        return (before & (side < 0)) | (after & (side > 0))

    def of_episode(self, name: str | None) -> Windows:
        """Return the same windows of episodes that are equal values of a column; None for episodes that rows are."""
        made = copy.copy(self)
        made.episode = name
        made._check_episodes()
        return made

    def times_of(self, column: str) -> str | tuple[float, float]:
        """Return the dataset with the times of a column, beside it or in the file; or its rate and first time."""
        assert self.at is not None
        return self.at if isinstance(self.at, str) else dict(self.at).get(column, "")

    def _key(self) -> tuple[Any, ...]:
        values = (
            self.columns,
            self.of_tables,
            self._counted,
            self.stride,
            self.pad,
            repr(self.episodes),
            self.episode_length,
        )
        return (*values, self.per_step, self.constants, self.at, self.holds, self.fps if self.at is not None else None)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Windows) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        named: dict[str, Any] = {"per_step": (list(self.per_step), []), "constants": (list(self.constants), [])}
        return self._text(self._said, {"fps": (self.fps, None), **named})

    def in_steps(self) -> str:
        """Return what rows are, as text: the same for offsets that are the same steps, however they are written."""
        # With times, the first column says which rows there are.
        columns = self.columns if self.at is not None else sorted(self.every, key=lambda column: column.name)
        offsets = {column.name: (column.source, column.span or column.offsets) for column in columns}
        return self._text(offsets, {"fps": (self.fps, None)} if self.at is not None else {})

    def _text(self, offsets: Mapping[str, Any], more: Mapping[str, tuple[Any, Any]]) -> str:
        """Return windows as text, without the options that have their default; `more` has options and defaults."""
        options: dict[str, tuple[Any, Any]] = {
            "stride": (self.stride, 1),
            "pad": (self.pad[0] if self.pad[0] == self.pad[1] else self.pad, "edge"),
            **{option: (value, None) for option, value in self.episodes.items()},
            "at": (dict(self.at) if isinstance(self.at, tuple) else self.at, None),
            "holds": (list(self.holds), []),
            "episode_length": (self.episode_length, None),
            **more,
        }
        shown = [f"{name}={value!r}" for name, (value, default) in options.items() if value != default]
        return f"Windows({', '.join([repr(offsets), *shown])})"


def _as_names(option: str, names: Any) -> tuple[str, ...]:
    listed = (None,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    require(all(isinstance(name, str) for name in listed), f"Windows: {option}", names, "a list of names of columns")
    return tuple(dict.fromkeys(listed))


def _source_of(name: Any, steps: Any) -> tuple[str, Any]:
    """Return the column that a window is read from, and its offsets; of several, numbers of Python in a list or range.

    The repr names index files, and numpy shortens that of a long array.
    """
    if not isinstance(name, str):
        raise OptionError(f"Windows: expected the name of a column, found {name!r}")
    is_pair = isinstance(steps, tuple) and len(steps) == 2 and isinstance(steps[0], str)
    source, offsets = steps if is_pair else (name, steps)
    if isinstance(offsets, Iterable) and not isinstance(offsets, (str, range)):
        offsets = [offset.item() if getattr(offset, "ndim", None) == 0 else offset for offset in offsets]
    return source, offsets


def _each(offsets: Any) -> list[Any]:
    """Return offsets one by one; none if they are no numbers and no list."""
    return [*offsets] if isinstance(offsets, (list, range)) else [offsets] if is_number(offsets) else []


def _window_column(name: str, source: str, steps: Any, fps: float | None) -> WindowColumn:
    if is_integer(steps):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected one or more steps, found {steps!r}. Write [{steps}] for that one "
            "step" + (f", or range({steps}) for {steps} steps" if steps > 0 else "")
        )
    if not (listed := _each(steps)):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected one or more steps, such as range(0, 16) or [-1, 0], "
            f"found {steps!r}"
        )
    return WindowColumn(name, source, tuple(_as_steps(name, step, fps) for step in listed))


def _timed_column(name: str, source: str, offsets: Any) -> WindowColumn:
    """Return a column with times of its own."""
    if isinstance(offsets, slice):
        ends = (offsets.start, offsets.stop)
        if offsets.step is not None or not all(is_number(end) and math.isfinite(end) for end in ends):
            raise OptionError(f"Windows: offsets of {name!r}: {offsets!r}: expected slice(from, to), in seconds")
        if ends[0] >= ends[1]:
            raise OptionError(f"Windows: offsets of {name!r}: {offsets!r} is empty")
        return WindowColumn(name, source, (), (_as_time(ends[0]), _as_time(ends[1])))
    seconds = _each(offsets)
    if not seconds or not all(is_number(second) and math.isfinite(second) for second in seconds):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected seconds, such as [-0.1, 0], or slice(-1, 1) for all samples, "
            f"found {offsets!r}"
        )
    return WindowColumn(name, source, tuple(map(_as_time, seconds)))


def _as_time(value: Any) -> float:
    """Return a time as a float, or as an integer if a float cannot hold it."""
    return int(value) if is_integer(value) and int(float(value)) != value else float(value)


def _as_times(at: Any) -> Any:
    if at is None or (isinstance(at, str) and at.strip("/")):
        return at
    listed: list[tuple[str, Any]] = []
    for column, times in at.items() if isinstance(at, Mapping) else ():
        is_pair = isinstance(times, (tuple, list)) and len(times) == 2 and all(map(is_number, times))
        if is_pair and all(map(math.isfinite, times)) and times[0] > 0:
            listed.append((str(column), (float(times[0]), _as_time(times[1]))))
        elif isinstance(times, str) and times.strip("/"):
            listed.append((str(column), times))
        else:
            raise OptionError(
                f"Windows: at: {column!r}: {times!r}: expected a dataset, or (rate, first time): finite numbers, and a "
                "rate above 0"
            )
    require(listed, "Windows: at", at, "the name of a dataset, such as 'timestamps', or a mapping")
    return tuple(listed)


def _as_steps(name: str, offset: Any, fps: float | None) -> int:
    if not (is_integer(offset) if fps is None else is_number(offset) and math.isfinite(offset)):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected {'integers' if fps is None else 'seconds'}, found {offset!r}"
            + (". Offsets in seconds need fps=." if fps is None else "")
        )
    steps = int(offset) if fps is None else round(float(offset) * fps)
    if fps is not None and abs(float(offset) * fps - steps) / fps > _MOST_SECONDS_OFF:
        raise OptionError(
            f"Windows: offsets of {name!r}: {float(offset)} s is {float(offset) * fps:.4f} steps at fps={fps}; "
            f"expected a whole number of steps, such as {steps / fps:.4f} s"
        )
    if abs(steps) > _MOST_STEPS:
        raise OptionError(
            f"Windows: offsets of {name!r}: {offset!r} is beyond the end of any episode; expected at most {_MOST_STEPS}"
        )
    return steps


def as_windows(windows: Any) -> Windows | None:
    """Return the value of the argument `windows`."""
    if windows is None or isinstance(windows, Windows):
        return windows
    hint = f"; write Windows({windows!r})" if isinstance(windows, Mapping) else ""
    raise OptionError(f"windows={windows!r}: expected Windows(...){hint}")
