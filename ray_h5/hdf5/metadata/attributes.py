"""What type and attributes say about the values of a column. Reading does not depend on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from ray_h5.hdf5.metadata.encodings import text_attribute

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_MAX_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class ColumnNotes:
    """What the file says about the values of a column.

    Attributes
    ----------
    packing : mapping of str to str
        Attributes of the CF conventions that convert stored values to physical ones, such as ``scale_factor``.
    enum : mapping of str to int
        The names of the values, if they are an enum.
    bare_dimension : bool
        Whether it is a dimension of netCDF without coordinates. It has a length and no values.
    """

    packing: Mapping[str, str] = field(default_factory=dict)
    enum: Mapping[str, int] = field(default_factory=dict)
    bare_dimension: bool = False

    @property
    def conversion(self) -> str:
        """What to do with stored values to get the values that the attributes mean; empty if nothing."""
        packing = self.packing
        compute = "value"
        if "scale_factor" in packing:
            compute += f" * {packing['scale_factor']}"
        if "add_offset" in packing:
            compute += f" + {packing['add_offset']}"
        missing = list(dict.fromkeys(packing[name] for name in ("_FillValue", "missing_value") if name in packing))
        todo = [f"compute {compute}"] if compute != "value" else []
        todo += [f"take {' and '.join(missing)} for missing"] if missing else []
        return ", and ".join(todo)


def notes_of(dataset: h5py.Dataset) -> ColumnNotes:
    """Return what the file says about the values of `dataset`."""
    packing = {name: text for name in _PACKING if (text := _number(dataset, name))}
    kind = dataset.id.get_type()  # h5py has no dtype for some
    members = (h5py.check_enum_dtype(kind.dtype) or {} if isinstance(kind, h5py.h5t.TypeEnumID) else {}).items()
    enum = dict(sorted(((str(name), int(value)) for name, value in members), key=lambda member: member[1]))
    return ColumnNotes(packing, enum, _is_bare_dimension(dataset))


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


def _number(dataset: h5py.Dataset, name: str) -> str:
    found = _attribute(dataset, name)
    if found is None or found.dtype.kind not in "iuf":
        return ""
    # xarray gives every float column the fill value NaN. That needs no advice.
    return "" if np.isnan(found).any() else str(found.reshape(-1)[0])


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
