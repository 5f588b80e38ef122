"""Row kinds as a user writes them: groups as rows, leading axes as rows, windows of episodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.hdf5.metadata.groups import GroupPattern
from ray_h5.options import as_integer, is_integer, is_number

Pad: TypeAlias = Literal["edge", "zero", "drop"]
_PADS = ("edge", "zero", "drop")
_MOST_SECONDS_OFF = 1e-4
"""How far an offset in seconds may be from a step: the tolerance of LeRobot's ``delta_timestamps``."""

_MOST_STEPS = 1 << 40
"""No file has episodes this long. Sums of steps and offsets below it fit into int64."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Each HDF5 group that matches a pattern is a row, or each dataset that does.

    The datasets of a group are its columns: ``actions``, ``obs/eef``. Rows may differ in length. If datasets match,
    they are one column.

    Parameters
    ----------
    pattern : str
        A glob over paths in the file, below `group`: ``*`` stands for any text in one name, ``**`` for any number of
        groups.
    attrs : sequence of str
        Attributes of the groups that are columns: each holds one number or one text.
    key : str, optional
        Name of a column with the path of the group.
    order : {"name", "creation"}
        The order of rows in a file: by name, where ``demo_2`` is before ``demo_10``, or as they were made, if the file
        records that.
    name : str
        The column, if the pattern matches datasets.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Groups("data/demo_*", attrs=("num_samples",), key="demo")
    Groups(pattern='data/demo_*', attrs=('num_samples',), key='demo', order='name', name='value')
    """

    pattern: str
    attrs: Sequence[str] = ()
    key: str | None = None
    order: Literal["name", "creation"] = "name"
    name: str = "value"

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern.strip("/"):
            raise OptionError(f"Groups: pattern={self.pattern!r}: expected a glob over paths, such as 'data/demo_*'")
        if isinstance(self.attrs, str):
            raise OptionError(f"Groups: attrs={self.attrs!r}: expected a list of names; write attrs=[{self.attrs!r}]")
        object.__setattr__(self, "attrs", tuple(self.attrs))
        for each in self.attrs:
            if not isinstance(each, str):
                raise OptionError(f"Groups: attrs: expected names of attributes, found {each!r}")
        if self.key is not None and not (isinstance(self.key, str) and self.key):
            raise OptionError(f"Groups: key={self.key!r}: expected the name of a column")
        own = [*self.attrs, *([] if self.key is None else [self.key])]
        if len(set(own)) < len(own):
            raise OptionError(f"Groups: attrs={self.attrs}, key={self.key!r}: expected names that differ")
        if self.order not in {"name", "creation"}:
            raise OptionError(f"Groups: order={self.order!r}: expected 'name' or 'creation'")
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"Groups: name={self.name!r}: expected the name of a column")

    @property
    def in_file(self) -> GroupPattern:
        """The part of it that decides what is read from a file."""
        return GroupPattern(self.pattern, self.order, tuple(self.attrs), self.name)


@dataclass(frozen=True, slots=True)
class Grid:
    """The leading axes of datasets together are the rows, in C order.

    With ``axes=2``, a dataset of shape (trajectory, time, x, y) has trajectory * time rows of shape (x, y).

    Parameters
    ----------
    axes : int
        How many leading axes are rows.
    of : mapping of str to sequence of int, optional
        Row axes of columns that do not have all of them: ``{"dimensions/time": (1,), "dimensions/x": ()}`` says that
        a row has the value at its index of axis 1, or the whole dataset, which is a constant of the file.
    include_axes : bool
        Add the columns ``axis_0``, ``axis_1``, ...: the index of a row along each axis.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.
    """

    axes: int
    of: Mapping[str, Sequence[int]] | None = None
    include_axes: bool = False
    _of: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", as_integer("Grid: axes", self.axes, 1))
        given = {} if self.of is None else self.of
        if not isinstance(given, Mapping):
            raise OptionError(f"Grid: of={given!r}: expected {{column: row axes}}, such as {{'time': (1,)}}")
        known = []
        for name, axes in given.items():
            if not isinstance(name, str):
                raise OptionError(f"Grid: of={given!r}: expected names of columns, found {name!r}")
            wanted: tuple[Any, ...] = tuple(axes) if isinstance(axes, Iterable) else (axes,)
            if list(wanted) != sorted({each for each in wanted if isinstance(each, int) and 0 <= each < self.axes}):
                raise OptionError(
                    f"Grid: of={{{name!r}: {axes!r}}}: expected row axes from 0 to {self.axes - 1}, ascending, such as "
                    "(1,); () for a constant"
                )
            known.append((name.strip("/"), wanted))
        object.__setattr__(self, "_of", tuple(known))
        object.__setattr__(self, "of", None if self.of is None else dict(known))

    def __hash__(self) -> int:
        return hash((self.axes, self._of, self.include_axes))

    @property
    def row_axes(self) -> dict[str, tuple[int, ...]]:
        """The row axes of the columns that were named."""
        return dict(self._of)


RowKind: TypeAlias = Groups | Grid


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """A column of windows: the column that it is read from, and its offsets in steps."""

    name: str
    source: str
    offsets: tuple[int, ...]


class Windows:
    """A row is a step t of an episode, with the values of columns at some offsets from t.

    An episode is a group (over `Groups`), one index of all row axes but the last (over `Grid`), or rows of a file: all
    of them, those with one value of a column, or those between ends.

    Parameters
    ----------
    offsets : mapping of str to sequence of int or float
        The offsets of each column: ``{"obs/image": range(-1, 1), "actions": range(0, 16)}``. Such a column has the
        shape ``(len(offsets), *row_shape)``. Another name for it: ``{"input": ("u", range(0, 4))}``. Columns without
        offsets have their value at t, or the constant of the episode. Floats are seconds, and need `fps`.
    stride : int
        Steps from one row to the next in an episode, from its first valid t on.
    pad : {"edge", "zero", "drop"}, or a pair of them
        What stands for steps before and after an episode: its first or last step, zeros, or nothing, where windows that
        do not fit are no rows. A pair is for the beginning and the end. With ``"edge"`` and ``"zero"``, the boolean
        column ``<column>_is_pad`` says which steps are padding.
    episode : str, optional
        A column with one value an episode. Rows of an episode follow each other.
    episode_ends : str, optional
        A dataset with the row after the last one of each episode, ascending.
    fps : float, optional
        Steps a second, for offsets in seconds.
    episode_length : {"min"}, optional
        Use the shortest column where columns of an episode differ in length; by default this is an error.

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
        episode: str | None = None,
        episode_ends: str | None = None,
        fps: float | None = None,
        episode_length: Literal["min"] | None = None,
    ) -> None:
        if not isinstance(offsets, Mapping) or not offsets:
            raise OptionError(
                f"Windows: offsets={offsets!r}: expected {{column: offsets}}, such as {{'actions': range(0, 16)}}"
            )
        self.stride = as_integer("Windows: stride", stride, 1)
        self.pad = _as_pads(pad)
        for option, value in (("episode", episode), ("episode_ends", episode_ends)):
            if value is not None and not isinstance(value, str):
                raise OptionError(f"Windows: {option}={value!r}: expected the name of a column")
        if episode is not None and episode_ends is not None:
            raise OptionError("Windows: episode and episode_ends both say where episodes end; pass one of them")
        self.episode, self.episode_ends = episode, episode_ends
        if fps is not None and not (is_number(fps) and 0 < fps < math.inf):
            raise OptionError(f"Windows: fps={fps!r}: expected a number above 0")
        if episode_length not in {None, "min"}:
            raise OptionError(f"Windows: episode_length={episode_length!r}: expected 'min', or None")
        self.fps = fps
        self.episode_length: Literal["min"] | None = episode_length
        self.columns = tuple(_window_column(name, given, fps) for name, given in offsets.items())
        self._given = dict(offsets)

    @property
    def least(self) -> int:
        """The lowest offset of all columns."""
        return min(min(each.offsets) for each in self.columns)

    @property
    def most(self) -> int:
        """The highest offset of all columns."""
        return max(max(each.offsets) for each in self.columns)

    @property
    def marks_padding(self) -> bool:
        """Whether there are columns ``<column>_is_pad``."""
        return self.pad != ("drop", "drop")

    def single_steps(self) -> Windows:
        """Return windows with each step of each episode as a row of its own."""
        return Windows(
            {each.name: (each.source, [0]) for each in self.columns},
            episode=self.episode,
            episode_ends=self.episode_ends,
            episode_length=self.episode_length,
        )

    def _key(self) -> tuple[Any, ...]:
        return (self.columns, self.stride, self.pad, self.episode, self.episode_ends, self.episode_length)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Windows) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        pad = self.pad[0] if self.pad[0] == self.pad[1] else self.pad
        shown = [repr(self._given)]
        options: dict[str, tuple[Any, Any]] = {
            "stride": (self.stride, 1),
            "pad": (pad, "edge"),
            "episode": (self.episode, None),
        }
        options |= {"episode_ends": (self.episode_ends, None), "fps": (self.fps, None)}
        options |= {"episode_length": (self.episode_length, None)}
        shown += [f"{name}={value!r}" for name, (value, default) in options.items() if value != default]
        return f"Windows({', '.join(shown)})"


def _as_pads(pad: Any) -> tuple[Pad, Pad]:
    pads = tuple(pad) if isinstance(pad, (tuple, list)) else (pad, pad)
    if len(pads) != 2 or not all(isinstance(each, str) and each in _PADS for each in pads):
        raise OptionError(
            f"Windows: pad={pad!r}: expected 'edge', 'zero' or 'drop', or a pair of them for the beginning and the end"
        )
    return cast("tuple[Pad, Pad]", pads)


def _window_column(name: Any, given: Any, fps: float | None) -> WindowColumn:
    if not isinstance(name, str):
        raise OptionError(f"Windows: expected the name of a column, found {name!r}")
    source = name
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        source, given = given
    if is_integer(given):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected one or more steps, found {given!r}. Write [{given}] for that one "
            f"step" + (f", or range({given}) for {given} steps" if given > 0 else "")
        )
    try:
        found = list(given)
    except TypeError:
        found = []
    if not found or isinstance(given, str):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected one or more steps, such as range(0, 16) or [-1, 0], "
            f"found {given!r}"
        )
    return WindowColumn(name, source, tuple(_as_steps(name, each, fps) for each in found))


def _as_steps(name: str, offset: Any, fps: float | None) -> int:
    if isinstance(offset, (bool, np.bool_)):
        raise OptionError(f"Windows: offsets of {name!r}: expected steps, found {offset!r}")
    steps = _steps(name, offset) if fps is None else _steps_of_seconds(name, offset, fps)
    if abs(steps) > _MOST_STEPS:
        raise OptionError(
            f"Windows: offsets of {name!r}: {offset!r} is beyond the end of any episode; expected at most {_MOST_STEPS}"
        )
    return steps


def _steps(name: str, offset: Any) -> int:
    try:
        return operator.index(offset)
    except TypeError:
        raise OptionError(
            f"Windows: offsets of {name!r}: expected integers, found {offset!r}. Offsets in seconds need fps=."
        ) from None


def _steps_of_seconds(name: str, offset: Any, fps: float) -> int:
    if not is_number(offset) or not math.isfinite(offset):
        raise OptionError(f"Windows: offsets of {name!r}: expected seconds, found {offset!r}")
    seconds = float(offset)
    steps = round(seconds * fps)
    if abs(seconds * fps - steps) / fps > _MOST_SECONDS_OFF:
        raise OptionError(
            f"Windows: offsets of {name!r}: {seconds} s is {seconds * fps:.4f} steps at fps={fps}; expected a whole "
            f"number of steps, such as {steps / fps:.4f} s"
        )
    return steps


def as_kind(rows: Any) -> RowKind | None:
    """Return the value of the argument `rows`."""
    if rows is None or isinstance(rows, (Groups, Grid)):
        return rows
    hint = f"; write Groups({rows!r})" if isinstance(rows, str) else f"; write Grid({rows})" if is_integer(rows) else ""
    raise OptionError(f"rows={rows!r}: expected Groups(...) or Grid(...){hint}")


def as_windows(windows: Any) -> Windows | None:
    """Return the value of the argument `windows`."""
    if windows is None or isinstance(windows, Windows):
        return windows
    hint = f"; write Windows({windows!r})" if isinstance(windows, Mapping) else ""
    raise OptionError(f"windows={windows!r}: expected Windows(...){hint}")


def as_row_options(rows: Any, windows: Any) -> tuple[RowKind | None, Windows | None]:
    """Return the values of the arguments `rows` and `windows`.

    Raises
    ------
    OptionError
        If one is something else, or both say where episodes end.
    """
    kind, found = as_kind(rows), as_windows(windows)
    if kind is None or found is None:
        return kind, found
    for option, value in (("episode", found.episode), ("episode_ends", found.episode_ends)):
        if value is not None:
            unit = "each group" if isinstance(kind, Groups) else "each index of all row axes but the last"
            raise OptionError(
                f"Windows: {option}={value!r}: over rows={type(kind).__name__}(...), {unit} is an episode; leave "
                f"{option} out"
            )
    return kind, found
