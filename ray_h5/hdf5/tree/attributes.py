"""What type and attributes say about the values of a column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.columns.chunk_lists import widths_of
from ray_h5.hdf5.columns.value_types import character_bytes
from ray_h5.hdf5.files.file_bytes import address_of, filename_of, reader_of
from ray_h5.hdf5.format import Attribute, FormatError, MessageKind, number, object_header
from ray_h5.hdf5.heap import DamagedHeapError, Heap
from ray_h5.manifest.layout import ColumnNotes

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_MAX_NAME_BYTES = 256
_MAX_TEXT = 1 << 20
_VARYING = 9

# Of text with single spaces, and no part can match what the next one does: the time is linear in the length.
CF_TIME = re.compile(r"(?P<unit>[A-Za-z]+) since (?P<date>\d+-\d+-\d+)(?:(?: ?T ?| )(?P<time>[0-9:.]+))?"
                     r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{1,2})?)| 0{1,2}(?::?0{1,2})?)?",
                     re.IGNORECASE)  # fmt: skip
"""The units of times in the CF conventions. A zone without a sign is zero."""


def notes_of(dataset: h5py.Dataset) -> ColumnNotes:
    """Return what the file says about the values of `dataset`."""
    packing: dict[str, str] = {}
    for name in PACKING:
        value = _attribute(dataset, name)
        # xarray gives every float column the fill value NaN. That needs no advice.
        if value is not None and value.dtype.kind in "iuf" and not np.isnan(value).any():
            packing[name] = str(value.reshape(-1)[0])
    kind = dataset.id.get_type()  # h5py has no dtype for some
    members = (h5py.check_enum_dtype(kind.dtype) or {} if isinstance(kind, h5py.h5t.TypeEnumID) else {}).items()
    enum = dict(sorted(((str(name), int(value)) for name, value in members), key=lambda member: member[1]))
    units = ""
    if kind.get_class() in {h5py.h5t.INTEGER, h5py.h5t.FLOAT}:
        units = " ".join(text_attribute(dataset, "units").split())
        match = CF_TIME.fullmatch(units)
        # Months and years have no fixed length.
        units = "" if match is None or match["unit"].lower().startswith(("month", "year")) else units
    return ColumnNotes(packing, enum, is_bare_dimension(dataset), units)


def short_attributes(dataset: h5py.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """Return attributes that are a few numbers, as arrays, or one text."""
    values: dict[str, Any] = {}
    for name in names:
        text = text_attribute(dataset, name)
        array = None if text else _attribute(dataset, name)
        if text:
            values[name] = text
        elif array is not None and array.dtype.kind in "iuf":
            values[name] = array.reshape(-1).astype(array.dtype.newbyteorder("="))
    return values


class TextGuard:
    """Refuses texts of varying length, in attributes of one file, that claim more than the file has.

    Attributes that an object has in other places than its header (libhdf5 moves them there from the ninth on, in files
    of its newer formats) have a checksum, and are not looked at.

    Parameters
    ----------
    file : h5py.File
        The open file.
    """

    def __init__(self, file: h5py.File) -> None:
        self._path = filename_of(file)
        self._read, end = reader_of(file)
        self._widths = widths_of(file)
        self._heap = Heap(self._read, end, self._widths.length, key=object())
        self._opened: object = None
        self._stored: dict[bytes, tuple[Attribute, bytes]] = {}

    def check(self, opened: h5py.h5g.GroupID | h5py.h5d.DatasetID, where: str, name: str) -> None:
        """Raise `CorruptFileError` if an attribute of an open object claims a length that it cannot have."""
        try:
            if self._opened is not opened:
                _, messages = object_header(self._read, address_of(opened)[1], self._widths)
                bodies = [body for kind, _, body, _ in messages if kind == MessageKind.ATTRIBUTE]
                self._stored = {
                    attribute.name: (attribute, body) for body in bodies if (attribute := Attribute.of(body))
                }
                self._opened = opened
            if (stored := self._stored.get(name.encode())) is not None:
                self._check(*stored)
        except (FormatError, DamagedHeapError) as exc:
            raise CorruptFileError(
                f"{self._path}: attribute {name!r} of {where!r} is damaged: {exc}. Restore the file from a copy, or "
                "leave the attribute out."
            ) from None

    def _check(self, attribute: Attribute, body: bytes) -> None:
        type_bytes, width = body[attribute.type_at : attribute.value_at], self._widths.address
        is_varying = not attribute.is_shared and number(type_bytes, 0, 1) & 0xF == _VARYING
        if is_varying and character_bytes(type_bytes) != 1:
            raise FormatError("its type is of varying length, and no text of bytes")
        if len(body) >= attribute.value_at + 8 + width:
            parts = (0, 4), (4, width), (4 + width, 4)
            length, address, at = (number(body, attribute.value_at + begin, nbytes) for begin, nbytes in parts)
            self._heap.values([(length, address, at)], 1)


def text_attribute(item: h5py.Group | h5py.Dataset, name: str) -> str:
    """Return an attribute that is one text; an empty text if it is missing, or something else."""
    if not h5py.h5a.exists(item.id, name.encode()):
        return ""
    attribute = item.attrs.get_id(name)
    if attribute.shape not in {(), (1,)} or attribute.get_type().get_class() != h5py.h5t.STRING:
        return ""
    if attribute.get_storage_size() > _MAX_TEXT:
        return ""
    if attribute.dtype.hasobject:
        TextGuard(item.file).check(item.id, str(item.name), name)
    value: Any = item.attrs[name]
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def is_bare_dimension(dataset: h5py.Dataset) -> bool:
    """Return whether a dataset is a dimension of netCDF without a coordinate."""
    attribute = _attribute(dataset, "NAME")
    return (
        attribute is not None
        and attribute.dtype.kind == "S"
        and bytes(attribute.reshape(-1)[0]).startswith(_BARE_DIMENSION)
    )


def _attribute(dataset: h5py.Dataset, name: str) -> np.ndarray | None:
    """Return the value of an attribute; None if it is missing, or is no short single value."""
    try:
        if not h5py.h5a.exists(dataset.id, name.encode()):
            return None
        attribute = dataset.attrs.get_id(name)
        if (
            attribute.shape not in {(), (1,)}
            or attribute.dtype.kind not in "iufS"
            or attribute.dtype.itemsize > _MAX_NAME_BYTES
        ):
            return None
        value = np.zeros(attribute.shape, attribute.dtype)
        attribute.read(value)
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        # The column is read without its attributes, so a damaged attribute must not hide it.
        return None
    return value
