"""What type and attributes say about the values of a column; datasets that libraries write for themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.columns.value_types import without_rows
from ray_h5.hdf5.tree.encodings import text_attribute
from ray_h5.manifest.layout import ColumnNotes

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_MAX_NAME_BYTES = 256

# Of text with single spaces, and no part can match what the next one does: the time is linear in the length.
CF_TIME = re.compile(r"(?P<unit>[A-Za-z]+) since (?P<date>\d+-\d+-\d+)(?:(?: ?T ?| )(?P<time>[0-9:.]+))?"
                     r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?))?", re.IGNORECASE)  # fmt: skip
"""The units of times in the CF conventions."""


def notes_of(dataset: h5py.Dataset) -> ColumnNotes:
    """Return what the file says about the values of `dataset`."""
    packing = {name: text for name in _PACKING if (text := _number(dataset, name))}
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


_INDEX = re.compile(r"^(?P<group>(?:.*/)?_i_[^/]+)/")
_BLOCK = re.compile(r"^(?:(?P<group>.*)/)?(?:axis\d+|block\d+)(?:_\w+)?$")
_MOST_REFERENCES = 1 << 16
_MOST_GROUPS = 1 << 12


class Libraries:
    """Says of the datasets of a file which ones hold no rows.

    Parameters
    ----------
    path : str
        The file, for messages.
    root : h5py.Group
        The group that names are relative to.
    """

    def __init__(self, path: str, root: h5py.Group) -> None:
        self._path, self._root = path, root
        self._attributes: dict[tuple[str, str], str] = {}

    def is_hidden(self, name: str) -> bool:
        """Return whether a dataset belongs to an index of PyTables, which pandas writes beside its tables."""
        found = _INDEX.match(name)
        return found is not None and self._attribute(found["group"], "CLASS") == "TINDEX"

    def frame_of(self, name: str) -> str | None:
        """Return the group of a frame of pandas in the fixed format that a dataset is a part of."""
        found = _BLOCK.match(name)
        if found is None:
            return None
        group = found["group"] or ""
        return group if self._attribute(group, "pandas_type") in {"frame", "wide"} else None

    def error_of_frame(self, group: str) -> UnsupportedColumnError:
        """Return the error of such a frame."""
        shown = group or self._root.name.strip("/")
        block = f"{group}/block0_values".lstrip("/")
        return UnsupportedColumnError(
            f"{self._path}: column {shown!r} is a DataFrame that pandas wrote in the fixed format: its columns are in "
            "blocks by type, and those of text are pickled. Write it with to_hdf(..., format='table', "
            f"data_columns=True); or read the numbers of a block with columns=[{block!r}]."
        )

    def why_no_rows(self, name: str, found: h5py.h5d.DatasetID) -> UnsupportedColumnError | None:
        """Return the error of a dataset that is described, and holds no rows; None for others."""
        if not h5py.h5a.get_num_attrs(found):
            return None
        dataset = h5py.Dataset(found, readonly=True)
        where = f"{self._path}: column {name!r}"
        if text_attribute(dataset, "CLASS") == "DIMENSION_SCALE" and not _is_of_rows(dataset):
            if _is_bare(dataset):
                return without_rows(
                    f"{where} is a dimension of netCDF without a coordinate: it has a length and no values"
                )
            return without_rows(
                f"{where} is a dimension scale: coordinates of an axis that is not the row axis. Name it in "
                "columns=[...] to read it by itself."
            )
        if text_attribute(dataset, "PSEUDOATOM") == "object":
            return UnsupportedColumnError(
                f"{where} holds Python objects that PyTables pickled, which are never loaded. Write them as numbers "
                "or text."
            )
        return None

    def _attribute(self, group: str, name: str) -> str:
        key = group, name
        if key not in self._attributes and len(self._attributes) < _MOST_GROUPS:
            found = self._root[group] if group else self._root
            self._attributes[key] = text_attribute(found, name) if isinstance(found, h5py.Group) else ""
        return self._attributes.get(key, "")


def _is_bare(scale: h5py.Dataset) -> bool:
    return text_attribute(scale, "NAME").startswith("This is a netCDF dimension but not a netCDF variable")


def _is_of_rows(scale: h5py.Dataset) -> bool:
    """Return whether a dimension scale is that of the first axis of a dataset."""
    if _is_bare(scale):
        return False
    try:
        if not h5py.h5a.exists(scale.id, b"REFERENCE_LIST"):
            return True  # no dataset has it: it is a column of its own
        found = scale.attrs.get_id("REFERENCE_LIST")
        if len(found.shape) != 1 or found.shape[0] > _MOST_REFERENCES or not found.dtype.names:
            return False
        return bool((scale.attrs["REFERENCE_LIST"][found.dtype.names[1]] == 0).any())
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        return False
