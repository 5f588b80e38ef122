"""Rows of varying shape -> one array, padded to the longest row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.reading.casting import cast_error, lost
from ray_h5.messages import no_column
from ray_h5.options import is_number
from ray_h5.planning.schema import ColumnSpec

PadLike: TypeAlias = "bool | float | Mapping[str, float] | None"
"""What a user writes: True for zeros, a number, or a number for each column; None or False for no padding."""

LENGTH = "_length"
"""Ending of the column with the lengths of padded rows."""


class Padding:
    """The values that fill up rows of varying shape.

    Parameters
    ----------
    pad : bool, float or mapping of str to float
        True stands for zeros.

    Raises
    ------
    OptionError
        If it is something else.
    """

    def __init__(self, pad: bool | float | Mapping[str, float]) -> None:
        values = pad.values() if isinstance(pad, Mapping) else [pad]
        if not all(isinstance(each, (bool, np.bool_)) or is_number(each) for each in values):
            raise OptionError(
                f"pad={pad!r}: expected True, a number, or a number for each column, such as {{'actions': 0.0}}"
            )
        self._pad = dict(pad) if isinstance(pad, Mapping) else pad

    @classmethod
    def of(cls, pad: PadLike) -> Padding | None:
        """Return the value of an argument `pad`."""
        return None if pad is None or pad is False else cls(pad)

    def __repr__(self) -> str:
        return f"Padding({self._pad!r})"

    def check(self, columns: Iterable[str], ragged: Iterable[str]) -> None:
        """Raise unless the columns that are named exist, and the names of lengths are free.

        Raises
        ------
        UnknownColumnError
            If there is no column of a name; the message lists near names.
        OptionError
            If a column has the name of the lengths of another one.
        """
        names = list(columns)
        missing = [name for name in self._pad if name not in names] if isinstance(self._pad, dict) else []
        if missing:
            raise UnknownColumnError(f"pad: {no_column(missing, names)}")
        for name in ragged:
            if self.value(name) is not None and name + LENGTH in names:
                raise OptionError(
                    f"pad: the lengths of column {name!r} would be column {name + LENGTH!r}, which there is already. "
                    f"Leave that one out with columns=[...], or name the columns to pad, such as pad={{'x': 0.0}}."
                )

    def value(self, name: str, element: np.dtype | None = None) -> float | None:
        """Return what fills up rows of a column; None if it is not padded, as text where no column is named."""
        if element is not None and element.kind not in "biufc" and not isinstance(self._pad, dict):
            return None
        found = self._pad.get(name) if isinstance(self._pad, dict) else self._pad
        return None if found is None or found is False else 0.0 if found is True else found


def cast_rows(rows: Sequence[np.ndarray | None], spec: ColumnSpec) -> Sequence[np.ndarray | None]:
    """Return rows of varying shape in the dtype that they are delivered in.

    Raises
    ------
    CastError
        If a value is lost, unless the casting of the column is "unsafe".
    """
    element = spec.element
    if element is None or all(row is None or row.dtype == element for row in rows):
        return rows
    found: list[np.ndarray | None] = []
    for row in rows:
        if row is None:
            found.append(row)
            continue
        if spec.casting != "unsafe" and (wrong := lost(np.asarray(row), element, spec.casting)).any():
            raise cast_error(f"column {spec.name!r}", row[wrong][0], element)
        found.append(np.asarray(row).astype(element))
    return found


def pad_rows(
    name: str,
    rows: Sequence[np.ndarray | None],
    fill: float,
    dtype: np.dtype | None = None,
    axes: int | None = None,
    ragged: tuple[int | None, ...] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as one array, and their lengths.

    Parameters
    ----------
    name : str
        The column, for messages.
    rows : sequence of numpy.ndarray or None
        Arrays with the same number of axes.
    fill : float
        The value after the end of a shorter row.
    dtype : numpy.dtype, optional
        dtype of the result; by default that of the first row.
    axes : int, optional
        Axes of a row, for when there are no rows.
    ragged : tuple of (int or None), optional
        The shape of a row, with None for axes along which rows of the column differ. By default what these rows show.

    Returns
    -------
    padded : numpy.ndarray
        Of shape ``(len(rows), *longest)``, where `longest` is the largest length along each axis.
    lengths : numpy.ndarray
        int64 of shape ``(len(rows),)``: the length of each row along its first axis. If rows differ along other axes,
        of shape ``(len(rows), axes)``: the whole shape of each row.

    Raises
    ------
    UnsupportedColumnError
        If rows hold no numbers, or `fill` is no value of their dtype.
    """
    known = next((row for row in rows if row is not None), np.empty(0, np.float32))
    wanted = known.dtype if dtype is None else dtype
    count = known.ndim if axes is None else axes
    # Where a group lacks the column, the length is 0.
    arrays = [np.empty((0,) * count, wanted) if row is None else row for row in rows]
    if wanted.kind not in "biufc":
        raise UnsupportedColumnError(f"pad: column {name!r} holds values of dtype {wanted}; only numbers can be padded")
    value = np.asarray(fill).astype(wanted)
    if wanted.kind in "iub" and value != fill:
        raise UnsupportedColumnError(f"pad: column {name!r} has dtype {wanted}, which cannot hold {fill}")
    shapes = np.array([row.shape for row in arrays], np.int64).reshape(len(rows), count)
    longest = shapes.max(axis=0, initial=0)
    out = np.full((len(rows), *longest.tolist()), value, wanted)
    for i, row in enumerate(arrays):
        inside: Any = (i, *map(slice, row.shape))
        out[inside] = row
    there = np.array([row is not None for row in rows], bool)
    one_axis = bool((shapes[there, 1:] == shapes[there][:1, 1:]).all()) if ragged is None else None not in ragged[1:]
    return out, shapes[:, 0].copy() if one_axis else shapes
