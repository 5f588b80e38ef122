"""Values of netCDF whose attributes say what their values mean, by the CF conventions: packed numbers, times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_h5.columns.ragged.range_columns import OfParts
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Values, reshaped
from ray_h5.errors import CastError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.tree.attributes import CF_TIME, PACKING
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.value_type import Kind
from ray_h5.messages import few

CF_ATTRIBUTES = ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "dtype", "_Unsigned")

_SHOWN_CHARACTERS = 80
_SECOND = 1_000_000_000
_UNITS = {
    "day days d": 86_400 * _SECOND,
    "hour hours hr hrs h": 3_600 * _SECOND,
    "minute minutes min mins": 60 * _SECOND,
    "second seconds sec secs s": _SECOND,
    "millisecond milliseconds msec ms": 1_000_000,
    "microsecond microseconds us": 1_000,
    "nanosecond nanoseconds ns": 1,
}
_NANOSECONDS = {name: count for names, count in _UNITS.items() for name in names.split()}
_SINCE = re.compile(r"(?P<unit>[A-Za-z]+) since ", re.IGNORECASE)
_LONG_NAMES = {"days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds"}
_CALENDARS = {"standard", "gregorian", "proleptic_gregorian", ""}
_NAT, _LOW, _HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max
_SINGLE, _DOUBLE, _TIME = np.dtype(np.float32), np.dtype(np.float64), np.dtype("M8[ns]")
_OTHER_SIGN = str.maketrans("iu", "ui")
_FIRST_GREGORIAN = np.datetime64("1582-10-15", "D")


@dataclass(frozen=True, slots=True, eq=False)
class CF:
    """What attributes say that stored values stand for: numbers that are scaled, or times.

    Attributes
    ----------
    kind : {"number", "bool", "time"}
        The kind of the decoded values.
    dtype : numpy.dtype
        Their dtype.
    missing : tuple
        Stored values that stand for missing ones.
    scale, offset : float
        What stored values are multiplied by, and what is added.
    unit, origin : int
        For times: nanoseconds of a unit, and those from 1970 to the date that times are counted from.
    other_sign : bool
        Whether signed integers stand for unsigned ones, or unsigned ones for signed ones.
    is_short : bool
        For times: whether the name of the unit is short, such as ``hr``.
    packed : numpy.dtype
        For times: the dtype in which stored values are scaled.
    """

    kind: Kind
    dtype: np.dtype
    missing: tuple[Any, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    unit: int = 0
    origin: int = 0
    other_sign: bool = False
    is_short: bool = False
    packed: np.dtype = _DOUBLE

    def of(self, values: Stored) -> Decoded:
        """Return the values that stored ones stand for."""

        def layout(array: ValueArray) -> ValueArray:
            return array.made(replace(array.type, kind=self.kind, dtype=self.dtype, element=None, enum=()))

        return Decoded(values, lambda stored, rows, *_: self._decoded(values, stored, rows), layout)

    def _decoded(self, values: Stored, stored: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self.other_sign:
            stored = stored.view(stored.dtype.str.translate(_OTHER_SIGN))
        absent = np.zeros(stored.shape, bool)
        for value in self.missing:
            absent |= np.isnan(stored) if value != value else stored == value
        if self.kind == "bool":
            return stored.astype(bool)
        if self.kind == "time":
            return self._times(values, stored, absent, rows)
        scaled = stored.astype(self.dtype)
        if self.scale != 1:
            scaled *= self.dtype.type(self.scale)
        if self.offset:
            scaled += self.dtype.type(self.offset)
        if absent.any():
            scaled[absent] = np.nan
        return scaled

    def _times(self, values: Stored, stored: np.ndarray, absent: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return times as xarray decodes them, to the nanosecond."""
        if (self.scale, self.offset) != (1, 0):
            absent = absent | ~np.isfinite(stored)
            stored = np.where(absent, 0, stored).astype(self.packed) * self.packed.type(self.scale)
            stored += self.packed.type(self.offset)
        low, high = _LOW - self.origin, _HIGH - self.origin
        if stored.dtype.kind == "f":
            absent = absent | ~np.isfinite(stored)
            filled = np.where(absent, 0, stored).astype(np.float64)
            # xarray drops fractions of a nanosecond. Units with short names it leaves to cftime, which rounds to
            # microseconds.
            if self.is_short:
                since = np.rint(filled.astype(np.longdouble) * (self.unit / 1000)) * 1000
            else:
                since = np.trunc(filled * np.float64(self.unit))
            too_large = (since < max(low, _LOW)) | (since > min(high, _HIGH))
            numbers = np.where(too_large, 0, since).astype(np.int64)
        else:
            absent = absent | (stored == _NAT) if stored.dtype == np.int64 else absent
            filled = np.where(absent, 0, stored)
            too_large = (filled < -(-max(low, _LOW) // self.unit)) | (filled > min(high, _HIGH) // self.unit)
            numbers = np.where(too_large, 0, filled).astype(np.int64) * self.unit
        if too_large.any():
            row = int(rows[int(np.argwhere(too_large)[0][0])])
            raise CastError(
                f"{values.where(values.array.name, row)}: the time is not in the years 1678 to 2262, which "
                "nanoseconds hold. Read the column as it is stored, with decode_cf=False."
            )
        times = (numbers + self.origin).view("M8[ns]")
        times[absent] = np.datetime64("NaT", "ns")
        return times


def _texts_of_characters(values: Stored) -> Decoded:
    """Return texts that are stored as arrays of characters, strings of one byte, along the last axis."""

    def layout(array: ValueArray) -> ValueArray:
        if not array.row_shape:
            return array  # this axis is one of rows, too
        dtype = np.dtype(f"S{max(1, array.shape[-1])}")
        texts = reshaped(array, *array.row_shape[:-1])
        return texts.with_type(replace(texts.type, dtype=dtype), item_bytes=0)

    def decode(stored: np.ndarray, *_: Any) -> np.ndarray:
        if stored.ndim == 1:
            return stored
        if not stored.shape[-1]:
            return np.zeros(stored.shape[:-1], "S1")
        return np.ascontiguousarray(stored).view(f"S{stored.shape[-1]}")[..., 0]

    return Decoded(values, decode, layout, of_each_value=False)


def cf_values(values: Stored, said: Sequence[Mapping[str, Any]], class_of: np.ndarray) -> Values:
    """Return what attributes say that the values of datasets stand for.

    Parameters
    ----------
    values : Stored
        A dataset, or one a group.
    said : sequence of mapping
        The attributes that datasets have.
    class_of : numpy.ndarray
        int64: which of them each dataset has.

    Raises
    ------
    SchemaMismatchError
        If they make times of the values of some groups alone.
    UnsupportedColumnError
        If they say what cannot be decoded, such as times of a calendar that is not that of numpy.
    """
    layout, joined = values.array, values.address
    if layout.dtype == np.dtype("S1") and layout.row_shape:
        if isinstance(joined, JoinedArray) and joined.unit_shape is None:
            raise _refused(values.layout, "arrays of characters, of another length in other groups")
        return _texts_of_characters(values)
    meanings = [_meaning(layout, attributes) for attributes in said]
    if not any(meanings):
        return values
    parts = tuple(values if meaning is None else meaning.of(values) for meaning in meanings)
    if len(parts) == 1 or not isinstance(joined, JoinedArray):
        return parts[0]
    firsts = (joined.paths[int(np.argmax(joined.is_there & (class_of == at)))] for at in range(len(parts)))
    kinds = {part.array.kind: path for part, path in zip(parts, firsts, strict=True)}
    if len(kinds) > 1:
        raise SchemaMismatchError(
            f"{values.layout.where}: its attributes make {few([f'{k} values of {kinds[k]}' for k in sorted(kinds)])}. "
            "Choose groups that agree with the pattern, or read it as it is stored, with decode_cf=False."
        )
    return OfParts(layout.name, parts, lambda units: (class_of[joined.units.part_of(units)], units))


def text_of_attributes(attributes: Mapping[str, Any]) -> bytes:
    """Return attributes as a text that a table of groups holds: exact, also for floats."""
    pairs = {
        name: attribute if isinstance(attribute, str) else [attribute.dtype.str, attribute.tobytes().hex()]
        for name, attribute in sorted(attributes.items())
    }
    return json.dumps(pairs).encode()


def attributes_of_text(text: bytes) -> dict[str, Any]:
    """Return the attributes that `text_of_attributes` was given."""
    return {
        name: value if isinstance(value, str) else np.frombuffer(bytes.fromhex(value[1]), value[0])
        for name, value in json.loads(text).items()
    }


def _meaning(layout: ValueArray, attributes: Mapping[str, Any]) -> CF | None:
    """Return what attributes say that stored values stand for; None if they say nothing."""
    if layout.kind not in {"number", "bool"} or layout.dtype.kind not in "iuf":
        return None
    if attributes.get("dtype") == "bool" and layout.dtype.kind in "iu":
        return CF("bool", np.dtype(bool))
    other_sign = str(attributes.get("_Unsigned", "")).lower() == {"i": "true", "u": "false"}.get(layout.dtype.kind)
    stored = np.dtype(layout.dtype.str.translate(_OTHER_SIGN)) if other_sign else layout.dtype
    missing = tuple(_missing(attributes, layout.dtype, stored))
    scale, offset = (_number(attributes.get(name)) for name in ("scale_factor", "add_offset"))
    if not_a_number := [name for name in PACKING[:2] if name in attributes and _number(attributes[name]) is None]:
        raise _refused(layout, f"an attribute {not_a_number[0]!r} that is no number")
    factors = (1.0 if scale is None else float(scale)), (0.0 if offset is None else float(offset))
    units = " ".join(str(attributes.get("units", "")).split())
    since = CF_TIME.fullmatch(units)
    if since is not None:
        unit, origin = _unit_and_origin(layout, since, str(attributes.get("calendar", "")).lower())
        # xarray makes int64 of integers that may be missing, before it scales them.
        number = np.dtype(np.int64) if missing and stored.kind in "iu" else stored
        is_short = f"{since['unit'].lower().rstrip('s')}s" not in _LONG_NAMES
        packed = _float_dtype(number, scale, offset)
        return CF("time", _TIME, missing, *factors, unit, origin, other_sign, is_short, packed)
    if (begins := _SINCE.match(units)) is not None and begins["unit"].lower() in _NANOSECONDS:
        raise _unparsed(layout, units, "expected a date such as 2000-01-31, a time and a zone such as +05:30")
    if scale is None and offset is None and not missing:
        return None if not other_sign else CF("number", stored, other_sign=True)
    return CF("number", _float_dtype(stored, scale, offset), missing, *factors, other_sign=other_sign)


def _missing(attributes: Mapping[str, Any], in_file: np.dtype, stored: np.dtype) -> Iterator[Any]:
    for name in ("_FillValue", "missing_value"):
        for value in np.atleast_1d(attributes[name]) if name in attributes else ():
            if not isinstance(value, np.generic) or value.dtype.kind not in "iuf":
                continue
            same = value.astype(in_file).view(stored) if value.dtype.kind == in_file.kind != stored.kind else value
            yield same.astype(stored)[()] if stored.kind == "f" else same


def _number(value: Any) -> np.generic | None:
    array = np.atleast_1d(value) if value is not None else np.empty(0)
    return array[0] if array.size == 1 and array.dtype.kind in "iuf" else None


def _float_dtype(stored: np.dtype, scale: np.generic | None, offset: np.generic | None) -> np.dtype:
    """Return the dtype of decoded numbers, as xarray chooses it."""
    if scale is None and offset is None:
        return stored if stored.kind == "f" else _SINGLE if stored.itemsize <= 2 else _DOUBLE
    if scale is not None and offset is not None and scale.dtype == offset.dtype and scale.dtype in (_SINGLE, _DOUBLE):
        return _DOUBLE if stored.itemsize == 4 and stored.kind in "iu" else scale.dtype
    # A large offset could lose digits.
    return _SINGLE if offset is None and scale is not None and scale.dtype == _SINGLE else _DOUBLE


def _unit_and_origin(layout: ValueArray, since: re.Match[str], calendar: str) -> tuple[int, int]:
    """Return the nanoseconds of a unit, and those from 1970 to the date that times are counted from."""
    unit, units = _NANOSECONDS.get(since["unit"].lower()), since[0][:_SHOWN_CHARACTERS]
    if unit is None:
        raise _refused(layout, f"times in {units!r}; expected days, hours, minutes, seconds or parts of them")
    if calendar not in _CALENDARS:
        said = calendar[:_SHOWN_CHARACTERS]
        raise _refused(layout, f"times of the calendar {said!r}, which numpy, Arrow and torch lack")
    try:
        year, month, day = map(int, since["date"].split("-"))
        hours, minutes, seconds, *more = map(float, [*(since["time"] or "0").split(":"), 0, 0])
        date = np.datetime64(f"{min(year, 9999):04d}-{month:02d}-{day:02d}", "D")  # numpy would wrap around
        since_midnight = round((hours * 3600 + minutes * 60 + seconds) * _SECOND)
    except (ValueError, OverflowError) as exc:
        raise _unparsed(layout, units, str(exc)[:_SHOWN_CHARACTERS]) from exc
    if year > 9999 or len(more) > 2:
        raise _unparsed(layout, units, "expected hours, minutes and seconds, and a year of no more than four digits")
    if calendar != "proleptic_gregorian" and date < _FIRST_GREGORIAN:
        said = f"times in {units!r} of the calendar {calendar or 'standard'!r}, which is Julian before 1582-10-15"
        raise _refused(layout, f"{said}; numpy has the Gregorian calendar alone")
    ns = int(date.astype(np.int64)) * _NANOSECONDS["day"] + since_midnight
    if (zone := since["zone"] or "").startswith(("+", "-")):
        digits = zone[1:].replace(":", "")
        ahead = int(digits[:-2]) * 60 + int(digits[-2:]) if len(digits) > 2 else int(digits) * 60
        ns -= (1 if zone[0] == "+" else -1) * ahead * _NANOSECONDS["min"]
    if not _LOW <= ns <= _HIGH:
        raise _refused(layout, f"times in {units!r}, which is not in the years 1678 to 2262, which nanoseconds hold")
    return unit, ns


def _refused(layout: ValueArray, what: str) -> UnsupportedColumnError:
    """Return the error of a column that has something that is not decoded."""
    return UnsupportedColumnError(
        f"{layout.where} has {what}. Read it as it is stored, with decode_cf=False, or leave it out with columns=[...]."
    )


def _unparsed(layout: ValueArray, units: str, why: str) -> UnsupportedColumnError:
    return _refused(layout, f"times in {units[:_SHOWN_CHARACTERS]!r}, which cannot be parsed: {why}")
