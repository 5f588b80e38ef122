"""Rows of varying shape -> one array, padded to the longest row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ray_h5.columns.schema import LENGTH, ColumnSpec
from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.messages import no_column
from ray_h5.options import is_number
from ray_h5.read.casting import cast_error, lost

PadLike: TypeAlias = "bool | float | Mapping[str, float] | None"
"""What a user writes: True for zeros, a number, or a number for each column; None or False for no padding."""


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
    def of(cls, pad: PadLike | Padding) -> Padding | None:
        """Return the value of an argument `pad`."""
        return pad if isinstance(pad, Padding) else None if pad is None or pad is False else cls(pad)

    def __repr__(self) -> str:
        return f"Padding({self._pad!r})"

    @property
    def names(self) -> list[str]:
        """The columns that have a value of their own."""
        return list(self._pad) if isinstance(self._pad, dict) else []

    def value(self, name: str, dtype: np.dtype | None = None) -> float | None:
        """Return what fills up rows of a column; None if it is not padded.

        One value for all columns is for those of numbers: text of a dtype that is given is not padded.
        """
        if not isinstance(self._pad, dict) and dtype is not None and dtype.kind not in "biufc":
            return None
        found = self._pad.get(name) if isinstance(self._pad, dict) else self._pad
        return None if found is None or found is False else 0.0 if found is True else found

    def check_names(self, columns: Collection[str]) -> None:
        """Raise `UnknownColumnError` if there is no column of a name."""
        for name in self.names:
            if name not in columns:
                raise UnknownColumnError(f"pad: {no_column([name], columns)}")

    def fills(self, columns: Mapping[str, ColumnSpec], *, named: bool = True) -> dict[str, float]:
        """Return what fills up each column of varying shape; columns that are not padded are left out.

        With `named`, columns that have a value of their own must be there.

        Raises
        ------
        UnknownColumnError
            If there is no column of a name.
        UnsupportedColumnError
            If a column holds no numbers, or does not have the value that fills it up; or the column of the lengths
            has the name of another one.
        """
        if named:
            self.check_names(columns)
        found = {}
        for name, spec in columns.items():
            if spec.element is None or spec.varying_shape is None:
                continue
            has_steps = spec.kind == "list" and bool(spec.row_shape)
            if (fill := self.fill(name, spec.element.base if has_steps else spec.element, columns)) is not None:
                found[name] = FillOfSteps(fill) if has_steps else fill
        return found

    def fill(self, name: str, dtype: np.dtype, columns: Collection[str]) -> float | None:
        """Return what fills up rows of a column of `columns`, checked as in `fills`; None if it is not padded."""
        found = self.value(name, dtype)
        if found is not None:
            _fill_of(name, found, dtype)
            check_length_name(name, columns)
        return found


class FillOfSteps(float):
    """What fills up a column whose rows are several arrays of varying length, such as windows of lists."""

    is_of_steps = True


def check_length_name(name: str, columns: Collection[str]) -> None:
    """Raise `UnsupportedColumnError` if there is a column with the name of the lengths of a padded one."""
    if name + LENGTH in columns:
        raise UnsupportedColumnError(
            f"pad: the lengths of column {name!r} would be column {name + LENGTH!r}, which there is already. "
            f"Leave one of them out with columns=[...], or {name!r} out of pad={{...}}."
        )


def cast_rows(
    rows: Sequence[np.ndarray | None], spec: ColumnSpec, where: Callable[[int], str] | None = None
) -> Sequence[np.ndarray | None]:
    """Return rows of varying shape in the dtype that they are delivered in, without further axes of one.

    Parameters
    ----------
    rows : sequence of numpy.ndarray
        The rows as they were read.
    spec : ColumnSpec
        The column.
    where : callable, optional
        Returns the place of row i of `rows`, its file and its number there, for messages.

    Raises
    ------
    CastError
        If a value is lost, unless the casting of the column is "unsafe".
    """
    element, axes = spec.element, len(spec.ragged_shape)
    if axes and any(row is not None and row.ndim > axes for row in rows):
        rows = [None if row is None else row.reshape(row.shape[:axes]) for row in rows]
    if element is None or all(row is None or row.dtype == element for row in rows):
        return rows
    found: list[np.ndarray | None] = []
    for i, row in enumerate(rows):
        if row is None:
            found.append(row)
            continue
        if row.dtype == object:
            if any(each is None for each in row):
                place = "" if where is None else f"{where(i)}: "
                raise UnsupportedColumnError(
                    f"{place}column {spec.name!r} has lists with missing values, which no array of numbers holds. "
                    "Leave it out of pad={...}, and a batch has a list of its rows; or out of columns=[...]."
                )
            found.append(row.astype(element))
            continue
        if spec.casting != "unsafe" and (wrong := lost(np.asarray(row), element, spec.casting)).any():
            place = "" if where is None else f"{where(i)}: "
            raise cast_error(f"{place}column {spec.name!r}", row[wrong][0], element)
        found.append(np.asarray(row).astype(element))
    return found


def pad_column(
    rows: np.ndarray, spec: ColumnSpec, fill: float, shape: tuple[int | None, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a column as one array, and their lengths, as `pad_rows` does.

    Parameters
    ----------
    rows : numpy.ndarray
        Objects: an array for each row, or several.
    spec : ColumnSpec
        The column.
    fill : float
        The value after the end of a shorter array.
    shape : tuple of (int or None)
        The shape of a row, with None for axes along which rows differ.
    """
    own = shape[rows.ndim - 1 :]
    element = None if spec.element is None else spec.element.base if rows.ndim > 1 else spec.element
    cast = cast_rows(list(rows.reshape(-1)), replace(spec, element=element))
    array, lengths = pad_rows(spec.name, cast, fill, element, len(own), own)
    return array.reshape(*rows.shape, *array.shape[1:]), lengths.reshape(*rows.shape, *lengths.shape[1:])


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
    value = _fill_of(name, fill, wanted)
    longest = _shapes(rows, count).max(axis=0, initial=0)
    out = np.full((len(rows), *longest.tolist()), value, wanted)
    for i, row in enumerate(rows):
        if row is not None:
            inside: Any = (i, *map(slice, row.shape))
            out[inside] = row
    return out, lengths_of(rows, count, ragged)


def lengths_of(rows: Sequence[Any], axes: int, ragged: tuple[int | None, ...] | None = None) -> np.ndarray:
    """Return the lengths of rows, arrays or tensors, as `pad_rows` does; of a row that is missing, 0."""
    shapes = _shapes(rows, axes)
    there = np.array([row is not None for row in rows], bool)
    one_axis = bool((shapes[there, 1:] == shapes[there][:1, 1:]).all()) if ragged is None else None not in ragged[1:]
    return shapes[:, 0].copy() if one_axis else shapes


def _shapes(rows: Sequence[Any], axes: int) -> np.ndarray:
    return np.array([(0,) * axes if row is None else row.shape for row in rows], np.int64).reshape(len(rows), axes)


def _fill_of(name: str, fill: float, dtype: np.dtype) -> np.ndarray:
    """Return what fills up rows, in their dtype; raise if the dtype does not have it."""
    if dtype.kind not in "biufc":
        raise UnsupportedColumnError(
            f"pad: column {name!r} holds text or other values that are no numbers; only numbers can be padded. Leave "
            "it out of pad={...}, and a batch has a list of its rows."
        )
    value = np.asarray(fill)
    value = value.astype(np.float64) if value.dtype == object else value  # an integer beyond int64
    if (dtype.kind == "b" and value not in (0, 1)) or lost(np.atleast_1d(value), dtype, "rounded").any():
        raise UnsupportedColumnError(
            f"pad: column {name!r} has dtype {dtype}, which cannot hold {fill}. Pass a value that it holds, as with "
            f"pad={{{name!r}: 0}}."
        )
    return value.astype(dtype)
