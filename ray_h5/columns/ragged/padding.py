"""Rows of varying shape -> one array, padded to the longest row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.schema import LENGTH, ColumnSpec
from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.messages import no_column
from ray_h5.options import is_number
from ray_h5.read.casting import Casting, cast_error, lost

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
        if not all(isinstance(value, (bool, np.bool_)) or is_number(value) for value in values):
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

    def value(self, name: str, dtype: np.dtype | None = None, *, is_nullable: bool = False) -> float | None:
        """Return what fills up rows of a column; None if it is not padded.

        One value for all columns is for those of numbers: text of a dtype that is given is not padded, nor are lists
        whose values may be missing.
        """
        are_numbers = (dtype is None or dtype.kind in "biufc") and not is_nullable
        if not isinstance(self._pad, dict) and not are_numbers:
            return None
        fill = self._pad.get(name) if isinstance(self._pad, dict) else self._pad
        return None if fill is None or fill is False else 0.0 if fill is True else fill

    @property
    def names(self) -> list[str]:
        """The columns that have a value of their own."""
        return list(self._pad) if isinstance(self._pad, dict) else []

    def check_names(self, columns: Collection[str]) -> None:
        """Raise `UnknownColumnError` if there is no column of a name."""
        for name in self.names:
            if name not in columns:
                raise UnknownColumnError(f"pad: {no_column([name], columns)}")

    def fill(
        self,
        name: str,
        dtype: np.dtype,
        shape: tuple[int | None, ...],
        columns: Collection[str],
        steps: tuple[int, ...] = (),
        *,
        is_nullable: bool = False,
    ) -> Fill | None:
        """Return how arrays of `shape` of a column of `columns` are filled up; None if it is not padded.

        `is_nullable` says whether values of lists may be missing.

        Raises
        ------
        UnsupportedColumnError
            If the column holds no numbers, or does not have the value that fills it up; or the column of the lengths
            has the name of another one.
        """
        value = self.value(name, dtype, is_nullable=is_nullable)
        if value is None:
            return None
        _fill_of(name, value, dtype)
        check_length_name(name, columns)
        return Fill(value, dtype, shape, steps)


class Fill(NamedTuple):
    """How arrays of varying shape are filled up.

    Attributes
    ----------
    value : float
        The value after the end of a shorter array.
    dtype : numpy.dtype
        dtype of the arrays.
    shape : tuple of (int or None)
        The shape of an array, with None for axes along which arrays differ; empty if only arrays show it.
    steps : tuple of int
        The shape of a row that has several arrays, such as the steps of a window over lists.
    """

    value: float
    dtype: np.dtype
    shape: tuple[int | None, ...]
    steps: tuple[int, ...] = ()

    def padded(
        self,
        name: str,
        rows: Sequence[np.ndarray | None],
        outer: Sequence[int] | None = None,
        dtype: np.dtype | None = None,
        axes: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return arrays as one, and their lengths.

        Parameters
        ----------
        name : str
            The column, for messages.
        rows : sequence of numpy.ndarray or None
            Arrays with the same number of axes.
        outer : sequence of int, optional
            The shape around them, if a row has several. By default each is a row.
        dtype : numpy.dtype, optional
            dtype of the result, where functions of users changed that of the column.
        axes : int, optional
            Axes of an array, where functions of users changed them.

        Returns
        -------
        padded : numpy.ndarray
            Of shape ``(*outer, *longest)``, where `longest` is the largest length along each axis.
        lengths : numpy.ndarray
            int64 of shape `outer`: the length of each array along its first axis. If arrays of the column differ along
            other axes, of shape ``(*outer, axes)``: the whole shape of each.

        Raises
        ------
        UnsupportedColumnError
            If arrays hold no numbers, or the value is none of their dtype.
        """
        dtype, axes = dtype or self.dtype, len(self.shape) if axes is None else axes
        value = _fill_of(name, self.value, dtype)
        longest = _shapes(rows, axes).max(axis=0, initial=0)
        out = np.full((len(rows), *longest.tolist()), value, dtype)
        for i, row in enumerate(rows):
            if row is not None:
                inside: Any = (i, *map(slice, row.shape))
                out[inside] = row
        outer, lengths = (len(rows),) if outer is None else outer, lengths_of(rows, axes, self.shape or None)
        return out.reshape(*outer, *out.shape[1:]), lengths.reshape(*outer, *lengths.shape[1:])


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
    element, axes = spec.element and spec.element.base, len(spec.type.ragged_shape)
    if spec.kind == "ragged" and axes and any(row is not None and row.ndim > axes for row in rows):
        rows = [None if row is None else row.reshape(row.shape[:axes]) for row in rows]
    # Steps of a window, and lists of lists, are arrays of arrays.
    inner = len(spec.row_shape) + max(0, axes - 1) if spec.kind == "list" else 0
    if element is None or (not inner and all(row is None or row.dtype == element for row in rows)):
        return rows

    def place(i: int) -> str:
        return f"column {spec.name!r}" if where is None else f"{where(i)}: column {spec.name!r}"

    return [_cast(row, element, spec.casting, inner, partial(place, i)) for i, row in enumerate(rows)]


def _cast(
    row: np.ndarray | None, element: np.dtype, casting: Casting, inner: int, where: Callable[[], str]
) -> np.ndarray | None:
    """Return a row in the dtype of its elements; of arrays, with `inner` levels, one whose arrays are cast."""
    if row is None or row.dtype == element:
        return row
    if inner:
        return objects(_cast(each, element, casting, inner - 1, where) for each in row)
    if row.dtype == object and (missing := np.array([item is None for item in row.tolist()], bool)).any():
        if element.kind not in "fc":
            raise UnsupportedColumnError(
                f"{where()} has lists with missing values, which no array of {element} holds. Pass a float for it in "
                "dtypes={...}, where they are NaN; or leave the column out of pad={...}, and a batch has a list of its "
                "rows; or out of columns=[...]."
            )
        filled = np.full(len(row), np.nan, element)
        filled[~missing] = _cast(np.array(row[~missing].tolist()), element, casting, 0, where)
        return filled
    row = np.array(row.tolist()) if row.dtype == object else row
    if casting != "unsafe" and (wrong := lost(row, element, casting)).any():
        raise cast_error(where(), row[wrong][0], element)
    return row.astype(element)


def lengths_of(rows: Sequence[Any], axes: int, ragged: tuple[int | None, ...] | None = None) -> np.ndarray:
    """Return the lengths of rows, arrays or tensors, as `Fill.padded` does; of a row that is missing, 0."""
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
