"""Casts while columns are read: a value that the new dtype cannot hold is an error by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.errors import CastError, OptionError

Casting: TypeAlias = Literal["checked", "rounded", "unsafe"]
"""How values are cast: ``checked`` raises for a value that is lost, ``unsafe`` casts as numpy's ``astype``.

``rounded`` is checked, except that a float may round an integer. It is for datasets that make floats of all numbers.
"""

_PIECE = 1 << 16
"""Values that are looked at together: what is computed of them stays in the cache of the CPU."""

_NUMBERS, _TEXTS, _DATES, _DURATIONS = {*"biufc"}, {*"SU"}, {*"Miu"}, {*"miu"}
"""Kinds of dtypes whose values may be cast to each other: each value is looked at."""

UNSAFE = 'casting="unsafe" casts all the same, as astype of numpy does'


def as_casting(casting: object) -> Casting:
    """Return the value of the argument `casting`."""
    if casting == "checked":
        return "checked"
    if casting == "unsafe":
        return "unsafe"
    expected = "expected 'checked', which raises for values that are lost, or 'unsafe', which casts as numpy's astype"
    raise OptionError(expected, option="casting", value=casting)


class LostValue(Exception):  # noqa: N818  it never leaves this package; users get its `error`
    """The value at a place of the output of a column cannot be cast to its dtype."""

    def __init__(self, out: CheckedOutput, place: int, value: Any) -> None:
        super().__init__(out.column, place, value)
        self.column, self.place, self.value = out.column, place, value
        self.address, self.length, self.dtype = out.address, len(out), out.dtype
        self.field, self.casting = out.field, out.casting

    def error(self, where: str) -> CastError:
        """Return the error for the value; `where` names file, column and row."""
        where += f", field {self.field!r}" if self.field else ""
        return cast_error(where, self.value, self.dtype, self.casting)


class CheckedOutput(np.ndarray):
    """An output array that raises a `LostValue` when it is assigned a value that its dtype cannot hold.

    Each way to read a column assigns what is cast to its output. So the values are looked at once, chunk by chunk, and
    only those of rows that were asked for. Fields of compound values are assigned by name; numpy does so by position.
    """

    column = ""
    address = 0
    casting: Casting = "checked"
    field = ""

    def __array_finalize__(self, whole: Any) -> None:
        """Let a part of the array, a field, or the array in another shape, check as the array does."""
        self.column, self.address = getattr(whole, "column", ""), getattr(whole, "address", 0)
        self.casting, self.field = getattr(whole, "casting", "checked"), getattr(whole, "field", "")

    def __setitem__(self, where: Any, values: Any) -> None:
        values = np.asarray(values)
        if self.dtype.names is not None:
            for name in self.dtype.names:
                part = self[name].view(CheckedOutput)
                part.field = f"{self.field}/{name}" if self.field else name
                part[where] = values[name]
            return
        if not {values.dtype.kind, self.dtype.kind} <= _NUMBERS and self.dtype.kind != "O" and values.size:
            cast, is_lost = _cast_others(values, self.dtype, self.casting)
            self._raise_first(where, values, is_lost)
            super().__setitem__(where, cast)
            return
        listed = np.atleast_1d(values)
        step = max(1, _PIECE * len(listed) // max(1, listed.size))
        is_safe = not values.size or self.casting == "unsafe" or self.dtype.kind == "O" or _within(values, self.dtype)
        for start in range(0, 0 if is_safe else len(listed), step):
            self._raise_first(where, values, lost(listed[start : start + step], self.dtype, self.casting), start)
        # numpy warns of the imaginary parts, which are 0.
        super().__setitem__(where, values.real if values.dtype.kind == "c" != self.dtype.kind else values)

    def _raise_first(self, where: Any, values: np.ndarray, is_lost: np.ndarray, start: int = 0) -> None:
        """Raise for the first of some values, from `start` on, that is lost, if one is."""
        if not is_lost.any():
            return
        at = np.unravel_index(int(np.argmax(is_lost)), is_lost.shape)
        rows = np.arange(len(self))[where[0] if isinstance(where, tuple) else where]
        # Values with fewer axes, such as a fill value, go to all rows.
        row = start + int(at[0]) if values.ndim == self.ndim else 0
        value = values[(start + at[0], *at[1:])] if values.ndim else values[()]
        raise LostValue(self, int(np.atleast_1d(rows)[row]), value)


def checked(column: str, out: np.ndarray, stored: np.dtype, casting: Casting, where: str) -> np.ndarray:
    """Return the output of a column of dtype `stored`, checked if some of its values may be lost there.

    `where` names file and column.

    Raises
    ------
    CastError
        If no value of the column can be cast to the dtype of the array.
    """
    wanted = out.dtype
    are_numbers = {stored.kind, wanted.kind} <= _NUMBERS
    if stored == wanted or wanted.kind == "O" or (are_numbers and (casting == "unsafe" or keeps_all(stored, wanted))):
        return out
    if why := _why_none(stored, wanted, casting):
        expected = f"expected an array of {stored}, or of a dtype that holds such values"
        raise CastError(f"{where}: {expected}, found {wanted}: {why}.")
    output = out.view(CheckedOutput)
    output.column, output.address, output.casting = column, out.ctypes.data, casting
    return output


def assign(out: np.ndarray, values: np.ndarray, column: str, casting: Casting, where: Callable[[int], str]) -> None:
    """Cast the rows of a column to the first rows of an array; `where` names the place of row i.

    Raises
    ------
    CastError
        If a value is lost, unless the casting is "unsafe".
    """
    try:
        checked(column, out, values.dtype, casting, f"column {column!r}")[: len(values)] = values
    except LostValue as exc:
        raise exc.error(f"{where(exc.place)}: column {column!r}") from None


def _why_none(stored: np.dtype, wanted: np.dtype, casting: Casting) -> str:
    """Return why a dtype can hold no value of another one; empty if it may hold some."""
    if wanted.kind == "O":
        return ""
    if stored.names is not None and wanted.names is not None:
        return next(filter(None, (_why_no_field(stored, wanted, name, casting) for name in wanted.names)), "")
    kinds = {stored.kind, wanted.kind}
    if "V" in kinds:  # compound values, opaque ones
        return "" if stored == wanted else "one of the two has fields" if kinds == {"V"} else "the kinds differ"
    if wanted.kind in "mM" and np.datetime_data(wanted)[0] == "generic":
        return f"it has no unit; write one, such as {wanted}[ns]"
    groups = _NUMBERS, _TEXTS, _DATES, _DURATIONS
    is_known = casting == "unsafe" or stored.kind == "O" or any(kinds <= group for group in groups)
    return "" if is_known else "the kinds differ"


def _why_no_field(stored: np.dtype, wanted: np.dtype, name: str, casting: Casting) -> str:
    if name not in (stored.names or ()):
        return f"there is no field {name!r}"
    of, to = stored[name], wanted[name]
    if of.shape != to.shape:
        return f"field {name!r} has shape {of.shape}, not {to.shape}"
    why = _why_none(of.base, to.base, casting)
    return why and f"field {name!r}: {why}"


def _cast_others(values: np.ndarray, dtype: np.dtype, casting: Casting) -> tuple[np.ndarray, np.ndarray]:
    """Cast texts, times and objects to another dtype; return them, and which of them it cannot hold."""
    if values.dtype.kind == dtype.kind == "S":
        return values, np.char.str_len(values) > (dtype.itemsize if casting != "unsafe" else values.dtype.itemsize)
    if {values.dtype.kind, dtype.kind} <= _DATES | _DURATIONS:
        cast = values.astype(dtype)
        back = cast.astype(values.dtype)  # NaT equals itself as an integer
        return cast, (back.astype(np.int64) != values.astype(np.int64)) & (casting != "unsafe")
    cast, is_lost = np.zeros(values.shape, dtype), np.zeros(values.shape, bool)
    for at in np.ndindex(values.shape):
        try:
            cast[at] = _item(values[at], dtype, casting)
        except (TypeError, ValueError, OverflowError):
            is_lost[at] = True
    return cast, is_lost


def _item(value: Any, dtype: np.dtype, casting: Casting) -> Any:
    """Return one value for an array of a dtype; raises a ValueError if that cannot hold it."""
    is_unsafe = casting == "unsafe"
    if dtype.kind in "SU" and isinstance(value, (bytes, str)):
        text: bytes | str = value
        if dtype.kind == "S" and isinstance(value, str):
            text = value.encode("utf-8", "surrogateescape")
        elif dtype.kind == "U" and isinstance(value, bytes):
            text = value.decode()
        if not is_unsafe and len(text) > _text_length(dtype):
            raise ValueError
        return text
    if is_unsafe:
        return value
    if value is None and dtype.kind in "fc":
        return np.nan
    array = np.asarray(value)
    if array.ndim or not ({array.dtype.kind, dtype.kind} <= _NUMBERS) or lost(array, dtype, casting):
        raise ValueError
    return array.real if dtype.kind != "c" else array


def cast_error(where: str, value: Any, dtype: np.dtype, casting: Casting = "checked") -> CastError:
    """Return the error for a value that is lost; `where` names file, column and row."""
    otherwise = "" if casting == "unsafe" else f"; or {UNSAFE}"
    why = f"{_why(value, dtype)}. Choose a dtype that holds it{otherwise}."
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


def _text_length(dtype: np.dtype) -> int:
    return dtype.itemsize // (4 if dtype.kind == "U" else 1)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _real(dtype: np.dtype) -> np.dtype:
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def _why(value: Any, dtype: np.dtype) -> str:
    if dtype.kind == "U" and isinstance(value, bytes) and "\ufffd" in value.decode(errors="replace"):
        return "expected bytes that are UTF-8"
    if dtype.kind in "SU":
        return f"expected a text of at most {_text_length(dtype)} {'bytes' if dtype.kind == 'S' else 'characters'}"
    if dtype.kind in "mM" or not isinstance(value, (int, float, complex, np.number, np.bool_)):
        return f"{dtype} holds no such value"
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
