"""Windows of episodes, as a user writes them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, is_integer, is_number

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
        marks = {each.name + IS_PAD for each in self.columns} if self.marks_padding else set()
        if doubles := [each.name for each in self.columns if each.name in marks]:
            raise OptionError(f"Windows: {doubles[0]!r} is the column that marks padding of another one; rename it")
        # The repr names index files, and numpy shortens that of a long array.
        self._given = {name: _plain(given) for name, given in offsets.items()}

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
            "step" + (f", or range({given}) for {given} steps" if given > 0 else "")
        )
    try:
        found = [given] if is_number(given) else list(given)
    except TypeError:
        found = []
    if not found or isinstance(given, str):
        raise OptionError(
            f"Windows: offsets of {name!r}: expected one or more steps, such as range(0, 16) or [-1, 0], "
            f"found {given!r}"
        )
    return WindowColumn(name, source, tuple(_as_steps(name, each, fps) for each in found))


def _plain(given: Any) -> Any:
    """Return offsets as a user would write them: numbers of Python, in a list."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return (given[0], _plain(given[1]))
    if isinstance(given, range) or is_number(given):
        return given
    return [each.item() if isinstance(each, np.generic) else each for each in given]


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


def as_windows(windows: Any) -> Windows | None:
    """Return the value of the argument `windows`."""
    if windows is None or isinstance(windows, Windows):
        return windows
    hint = f"; write Windows({windows!r})" if isinstance(windows, Mapping) else ""
    raise OptionError(f"windows={windows!r}: expected Windows(...){hint}")
