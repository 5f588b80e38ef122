"""What type and attributes say about the values of a column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.manifest.layout import ColumnNotes

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_MAX_NAME_BYTES = 256
_MAX_TEXT = 1 << 20

# Of text with single spaces, and no part can match what the next one does: the time is linear in the length.
CF_TIME = re.compile(r"(?P<unit>[A-Za-z]+) since (?P<date>\d+-\d+-\d+)(?:(?: ?T ?| )(?P<time>[0-9:.]+))?"
                     r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{1,2})?)| 0{1,2}(?::?0{1,2})?)?",
                     re.IGNORECASE)  # fmt: skip
"""The units of times in the CF conventions. A zone without a sign is zero."""


def notes_of(dataset: h5py.Dataset) -> ColumnNotes:
    """Return what the file says about the values of `dataset`."""
    packing = {name: text for name in PACKING if (text := _number(dataset, name))}
    kind = dataset.id.get_type()  # h5py has no dtype for some
    members = (h5py.check_enum_dtype(kind.dtype) or {} if isinstance(kind, h5py.h5t.TypeEnumID) else {}).items()
    enum = dict(sorted(((str(name), int(value)) for name, value in members), key=lambda member: member[1]))
    return ColumnNotes(packing, enum, _is_bare_dimension(dataset), _time_units(dataset))


def short_attributes(dataset: h5py.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """Return attributes that are a few numbers, as arrays, or one text."""
    found: dict[str, Any] = {}
    for name in names:
        text = text_attribute(dataset, name)
        array = None if text else _attribute(dataset, name)
        if text:
            found[name] = text
        elif array is not None and array.dtype.kind in "iuf":
            found[name] = array.reshape(-1).astype(array.dtype.newbyteorder("="))
    return found


def text_attribute(found: h5py.Group | h5py.Dataset, name: str) -> str:
    """Return an attribute that is one text; an empty text if it is missing, or something else."""
    if not h5py.h5a.exists(found.id, name.encode()):
        return ""
    attribute = found.attrs.get_id(name)
    if attribute.shape not in {(), (1,)} or attribute.get_type().get_class() != h5py.h5t.STRING:
        return ""
    if attribute.get_storage_size() > _MAX_TEXT:
        return ""
    if attribute.dtype.hasobject:
        from ray_h5.hdf5.checks.attributes import TextGuard

        guard = TextGuard(found.file)
        guard.look_at(found.id)
        guard.check(str(found.name), name)
    value: Any = found.attrs[name]
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _number(dataset: h5py.Dataset, name: str) -> str:
    found = _attribute(dataset, name)
    if found is None or found.dtype.kind not in "iuf":
        return ""
    # xarray gives every float column the fill value NaN. That needs no advice.
    return "" if np.isnan(found).any() else str(found.reshape(-1)[0])


def _time_units(dataset: h5py.Dataset) -> str:
    """Return what a dataset counts, if its values are times; months and years have no fixed length."""
    if dataset.id.get_type().get_class() not in {h5py.h5t.INTEGER, h5py.h5t.FLOAT}:
        return ""
    units = " ".join(text_attribute(dataset, "units").split())
    found = CF_TIME.fullmatch(units)
    return "" if found is None or found["unit"].lower().startswith(("month", "year")) else units


def _is_bare_dimension(dataset: h5py.Dataset) -> bool:
    found = _attribute(dataset, "NAME")
    return found is not None and found.dtype.kind == "S" and bytes(found.reshape(-1)[0]).startswith(_BARE_DIMENSION)


def _attribute(dataset: h5py.Dataset, name: str) -> np.ndarray | None:
    """Return the value of an attribute; None if it is missing, or is no short single value."""
    try:
        if not h5py.h5a.exists(dataset.id, name.encode()):
            return None
        found = dataset.attrs.get_id(name)
        if found.shape not in {(), (1,)} or found.dtype.kind not in "iufS" or found.dtype.itemsize > _MAX_NAME_BYTES:
            return None
        value = np.zeros(found.shape, found.dtype)
        found.read(value)
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        # The column is read without its attributes, so a damaged attribute must not hide it.
        return None
    return value
