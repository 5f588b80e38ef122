"""Casts while columns are read: a value that the new dtype cannot hold is an error by default."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.errors import CastError, OptionError

Casting: TypeAlias = Literal["checked", "rounded", "unsafe"]
"""How values are cast: ``checked`` raises for a value that is lost, ``unsafe`` casts as numpy's ``astype``.

``rounded`` is checked, except that a float may round an integer. It is for datasets that make floats of all numbers.
"""

_PIECE = 1 << 16
"""Values that are looked at together: what is computed of them stays in the cache of the CPU."""

UNSAFE = 'casting="unsafe" casts all the same, as astype of numpy does'


def as_casting(casting: object) -> Casting:
    """Return the value of the argument `casting`."""
    if casting == "checked":
        return "checked"
    if casting == "unsafe":
        return "unsafe"
    expected = "expected 'checked', which raises for values that are lost, or 'unsafe', which casts as numpy's astype"
    raise OptionError(expected, option="casting", value=casting)


class LostValue(Exception):  # noqa: N818  it never leaves this package: FileReader makes a CastError of it
    """The value at a place of the output of a column cannot be cast to its dtype."""

    def __init__(self, out: CheckedOutput, place: int, value: Any) -> None:
        super().__init__(out.column, place, value)
        self.column, self.place, self.value = out.column, place, value
        self.address, self.length, self.dtype = out.address, len(out), out.dtype


class CheckedOutput(np.ndarray):
    """An output array that raises a `LostValue` when it is assigned a value that its dtype cannot hold.

    Each way to read a column assigns what is cast to its output. So the values are looked at once, chunk by chunk, and
    only those of rows that were asked for.
    """

    column = ""
    address = 0
    casting: Casting = "checked"

    def __array_finalize__(self, whole: Any) -> None:
        """Let a part of the array, or the array in another shape, check as the array does."""
        self.column, self.address = getattr(whole, "column", ""), getattr(whole, "address", 0)
        self.casting = getattr(whole, "casting", "checked")

    def __setitem__(self, where: Any, values: Any) -> None:
        values = np.asarray(values)
        listed = np.atleast_1d(values)
        step = max(1, _PIECE * len(listed) // max(1, listed.size))
        for start in range(0, 0 if not values.size or _within(values, self.dtype) else len(listed), step):
            is_lost = lost(part := listed[start : start + step], self.dtype, self.casting)
            if is_lost.any():
                at = np.unravel_index(int(np.argmax(is_lost)), is_lost.shape)
                rows = np.arange(len(self))[where[0] if isinstance(where, tuple) else where]
                # Values with fewer axes, such as a fill value, go to all rows.
                row = start + int(at[0]) if values.ndim == self.ndim else 0
                raise LostValue(self, int(np.atleast_1d(rows)[row]), part[at])
        # numpy warns of the imaginary parts, which are 0.
        super().__setitem__(where, values.real if self.dtype.kind != "c" else values)


def checked(column: str, out: np.ndarray, stored: np.dtype, casting: Casting) -> np.ndarray:
    """Return the output of a column of dtype `stored`, checked if some of its values may be lost there."""
    if stored == out.dtype or casting == "unsafe" or not {stored.kind, out.dtype.kind} <= set("biufc"):
        return out
    if keeps_all(stored, out.dtype):
        return out
    output = out.view(CheckedOutput)
    output.column, output.address, output.casting = column, out.ctypes.data, casting
    return output


def cast_error(where: str, value: Any, dtype: np.dtype) -> CastError:
    """Return the error for a value that is lost; `where` names file, column and row."""
    why = f"{_why(value, dtype)}. Choose a dtype that holds it; or {UNSAFE}."
    return CastError(f"{where}: the value {value} cannot be cast to {dtype}: {why}")


def lost(values: np.ndarray, dtype: np.dtype, casting: Casting = "checked") -> np.ndarray:
    """Return, as bools, which values `dtype` cannot hold.

    An integer must stay equal. A float may be rounded to another float, but not to infinity. As a boolean, each number
    but 0 is True.
    """
    kind, wanted = values.dtype.kind, dtype.kind
    if kind == "c":
        real, imaginary = values.real, values.imag
        if wanted == "c":
            return lost(real, _real(dtype)) | lost(imaginary, _real(dtype))
        return lost(real, dtype) | (imaginary != 0)
    dtype = _real(dtype)
    if "b" in (kind, dtype.kind):
        return np.isnan(values) if kind == "f" else np.zeros(values.shape, bool)
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            cast = values.astype(dtype)
            if kind == "f" or casting == "rounded":
                return np.isinf(cast) & np.isfinite(values)
            # A float is right that equals the integer which it was cast from; one outside has none to compare with.
            low, high = _limits(values.dtype)
            wide = cast.astype(np.float64) if cast.dtype.itemsize < np.dtype(np.float64).itemsize else cast
            inside = (wide >= float(low)) & (wide < float(high + 1))
            return ~(inside & (np.where(inside, wide, 0).astype(values.dtype) == values))
        low, high = _limits(dtype)
        if kind == "f":
            # Powers of 2 are exact in a float: compare with the first integer that is too large.
            exact = np.float64 if values.dtype.itemsize < np.dtype(np.float64).itemsize else values.dtype
            wide = values.astype(exact, copy=False)
            return ~((wide >= float(low)) & (wide < float(high + 1)) & (np.trunc(wide) == wide))
        is_lost = np.zeros(values.shape, bool)
        least, most = _limits(values.dtype)
        if low > least:
            is_lost |= values < low
        if high < most:
            is_lost |= values > high
        return is_lost


def _within(values: np.ndarray, dtype: np.dtype) -> bool:
    """Fast path: whether the smallest and the largest value show that none is lost. NaN shows nothing."""
    kind, wanted = values.dtype.kind, _real(dtype)
    if kind not in "iuf" or wanted.kind not in "iuf" or (kind == "f" and wanted.kind != "f"):
        return False
    if wanted.kind == "f":
        most = float(np.finfo(wanted).max) if kind == "f" else 2 ** (np.finfo(wanted).nmant + 1)
        low, high = -most, most
    else:
        low, high = _limits(wanted)
    return bool(low <= values.min().item() and values.max().item() <= high)


def keeps_all(stored: np.dtype, wanted: np.dtype) -> bool:
    """Return whether a dtype holds all values of another one. To numpy, int64 fits float64; not so here."""
    real, target = _real(stored), _real(wanted)
    if target.kind == "b":
        return stored.kind in "biu"
    if stored.kind == "c" and wanted.kind != "c":
        return False
    if real.kind in "iu" and target.kind == "f":
        return 8 * real.itemsize - (real.kind == "i") <= np.finfo(target).nmant + 1
    return bool(np.can_cast(real, target, "safe"))


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _real(dtype: np.dtype) -> np.dtype:
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def _why(value: Any, dtype: np.dtype) -> str:
    if isinstance(value, complex) and dtype.kind != "c":
        if value.imag:
            return "it has an imaginary part"
        value = value.real
    if dtype.kind == "b":
        return "it is neither true nor false"
    if dtype.kind in "iu":
        low, high = _limits(dtype)
        is_whole = not isinstance(value, (float, np.floating)) or float(value).is_integer()
        return f"{dtype} holds {low} to {high}" if is_whole else f"{dtype} holds whole numbers, {low} to {high}"
    if isinstance(value, (int, np.integer)) and abs(int(value)) <= float(np.finfo(dtype).max):
        return f"{dtype} holds whole numbers exactly only up to {2 ** (np.finfo(dtype).nmant + 1)}"
    return f"the largest value of {dtype} is {np.finfo(dtype).max}"
