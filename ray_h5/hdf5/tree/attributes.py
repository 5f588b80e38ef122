"""Attributes: what they say about the values of a column, and one of many groups as an array."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.format.file_bytes import FileBytes, address_of, filename_of
from ray_h5.hdf5.format.heap import Heap, reference_at
from ray_h5.hdf5.format.object_headers import Attribute, FormatError, MessageKind, number, object_header
from ray_h5.hdf5.format.value_types import character_bytes, numpy_lacks
from ray_h5.manifest.joined_arrays import ENDS, LACKS, Texts
from ray_h5.manifest.layout import ColumnNotes
from ray_h5.messages import near_names

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_MAX_NAME_BYTES = 256
_MAX_TEXT = 1 << 20
"""Most bytes of a text: a damaged type of fixed length can claim 2 GiB."""

_MOST_FLOAT_BYTES = 8
"""Arrow and torch lack long doubles."""

_OF_LIBRARIES = frozenset({"Conventions", "NX_class", "encoding-type", "encoding-version", "filetype", "history"})
"""Attributes that say how a file is written. PyTables and HDF5 write theirs in capitals, netCDF with ``_`` first."""

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
        if text := text_attribute(dataset, name):
            values[name] = text
        elif (array := _attribute(dataset, name, several_ok=True)) is not None and array.dtype.kind in "iuf":
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
        self._read, end, self._widths = FileBytes.of(file.id)
        self._heap = Heap(self._read, end, self._widths.length, key=object())
        self._opened: object = None
        self._stored: dict[bytes, bytes] = {}

    def check(self, opened: h5py.h5g.GroupID | h5py.h5d.DatasetID, where: str, name: str) -> None:
        """Raise `CorruptFileError` if an attribute of an open object claims a length that it cannot have."""
        try:
            if self._opened is not opened:
                _, messages = object_header(self._read, address_of(opened)[1], self._widths)
                bodies = [body for kind, _, body, _ in messages if kind == MessageKind.ATTRIBUTE]
                self._stored = {Attribute.of(body).name: body for body in bodies}
                self._opened = opened
            if (body := self._stored.get(name.encode())) is not None:
                self._check(body)
        except FormatError as exc:
            raise CorruptFileError(
                f"{self._path}: attribute {name!r} of {where!r} is damaged: {exc}. Restore the file from a copy, or "
                "leave the attribute out."
            ) from None

    def _check(self, body: bytes) -> None:
        attribute = Attribute.of(body)
        type_bytes = body[attribute.type_at : attribute.value_at]
        is_varying = not attribute.is_shared and number(type_bytes, 0, 1) & 0xF == _VARYING
        if is_varying and character_bytes(type_bytes) != 1:
            raise FormatError("its type is of varying length, and no text of bytes")
        if len(body) >= attribute.value_at + 8 + self._widths.address:
            self._heap.values([reference_at(body, attribute.value_at, self._widths.address)], 1)


def text_attribute(item: h5py.Group | h5py.Dataset, name: str, guard: TextGuard | None = None) -> str:
    """Return an attribute that is one text; an empty text if it is missing, or something else.

    `guard` is that of the file, if the caller reads attributes of many objects in it.
    """
    if not h5py.h5a.exists(item.id, name.encode()):
        return ""
    # Each property is asked for once, and no dtype: 10^5 groups may have such an attribute.
    attribute = h5py.h5a.open(item.id, name.encode())
    shape, kind = attribute.shape, attribute.get_type()
    if shape not in {(), (1,)} or kind.get_class() != h5py.h5t.STRING or attribute.get_storage_size() > _MAX_TEXT:
        return ""
    is_varying, charset = kind.is_variable_str(), "ascii" if kind.get_cset() == h5py.h5t.CSET_ASCII else "utf-8"
    if is_varying:
        (guard or TextGuard(item.file)).check(item.id, str(item.name), name)
    text = np.zeros(shape, h5py.string_dtype(charset, None if is_varying else kind.get_size()))
    attribute.read(text)
    return bytes(text.reshape(-1)[0] or b"").decode("utf-8", "surrogateescape" if is_varying else "backslashreplace")


def is_bare_dimension(dataset: h5py.Dataset) -> bool:
    """Return whether a dataset is a dimension of netCDF without a coordinate."""
    attribute = _attribute(dataset, "NAME")
    is_text = attribute is not None and attribute.dtype.kind == "S"
    return attribute is not None and is_text and bytes(attribute.reshape(-1)[0]).startswith(_BARE_DIMENSION)


def _attribute(dataset: h5py.Dataset, name: str, *, several_ok: bool = False) -> np.ndarray | None:
    """Return the value of an attribute; None if it is missing, or no short value; `several_ok` takes several, too."""
    try:
        if not h5py.h5a.exists(dataset.id, name.encode()):
            return None
        attribute = dataset.attrs.get_id(name)
        is_short = attribute.dtype.itemsize <= _MAX_NAME_BYTES and attribute.get_storage_size() <= _MAX_TEXT
        is_wanted = attribute.shape in {(), (1,)} or (several_ok and attribute.shape and 0 not in attribute.shape)
        if not (is_short and is_wanted) or attribute.dtype.kind not in "iufS":
            return None
        value = np.zeros(attribute.shape, attribute.dtype)
        attribute.read(value)
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        # The column is read without its attributes, so a damaged attribute must not hide it.
        return None
    return value


# Of many groups --------------------------------------------------------------------------


class GroupAttribute:
    """One attribute of all groups, as it is collected.

    Parameters
    ----------
    path : str
        The file, for messages.
    name : str
        The attribute.
    guard : TextGuard
        Refuses texts that claim more than the file has.
    missing_ok : bool
        Whether groups may lack it: those that hold a number have NaN then, and those that hold a text none.
    several_ok : bool
        Whether it may be an array of numbers.
    """

    def __init__(
        self, path: str, name: str, guard: TextGuard, *, missing_ok: bool = False, several_ok: bool = False
    ) -> None:
        self.path, self.name, self.guard, self._missing_ok = path, name, guard, missing_ok
        self._levels, self._last = name.count("../"), name.rpartition("../")[2]
        self._several_ok = several_ok
        self._values: list[Any] = []  # bytes, numbers of NumPy, or None
        self._lacks: tuple[str, Any] | None = None  # the last group that does
        self._type: h5py.h5t.TypeID | None = None
        self._stored_bytes = 0
        self._in_memory: h5py.h5t.TypeID | None = None
        self._value = np.zeros(())

    def add(self, group: str, opened: Any, above: Callable[[int], Any] = lambda _: None) -> None:
        """Read the attribute of the next group or dataset, or of a group some levels `above` it."""
        if not (self._values or self._levels or self._missing_ok) and (parent := above(1)) is not None:
            # What the first group lacks and the group above it has is meant, unless another group has it, too.
            has_own, is_above = (h5py.h5a.exists(one, self._last.encode()) for one in (opened, parent))
            self._levels = int(is_above and not has_own)
        if self._levels:
            if "../" not in self.name and h5py.h5a.exists(opened, self._last.encode()):
                raise SchemaMismatchError(
                    f"{self.path}: attribute {self.name!r} is one of {group!r}, which groups before it lack, and one "
                    f"of the group above them; write '../{self.name}' for that"
                )
            if (opened := above(self._levels)) is None:
                raise SchemaMismatchError(f"{self.path}: attrs={self.name!r}: no group is so far above {group!r}")
        try:
            attr = h5py.h5a.open(opened, self._last.encode())
        except (KeyError, UnicodeDecodeError):  # see `Trail.link`
            self._lacks = group, opened
            if not self._missing_ok:
                raise self._lacking(*self._lacks) from None
            self.add_missing()
            return
        # Most have the type of the one before. The size shows that there is one value: h5py does not check that all
        # values fit into the array.
        is_same = not self._value.ndim and self._type is not None and attr.get_type().equal(self._type)
        if not is_same or _stored_bytes(attr) != self._stored_bytes:
            self._prepare(group, attr)
        if self._refers:
            self.guard.check(opened, group, self._last)
        attr.read(self._value, self._in_memory)
        value: Any = self._value.copy() if self._value.ndim else self._value[()]
        if self._is_text:
            value = value.encode() if isinstance(value, str) else bytes(value)
        self._values.append(value)

    def _lacking(self, group: str, opened: Any) -> SchemaMismatchError:
        """Return the error for a group without the attribute."""
        near = near_names(self._last, _attribute_names(opened))
        is_name = self.name and "/" not in self.name  # libhdf5 fails for paths of groups that are not there
        if is_name and hasattr(opened, "links") and opened.links.exists(self.name.encode()):
            near = f" {self.name!r} is in the group itself: name it in columns=, not in attrs=.{near}"
        return SchemaMismatchError(f"{self.path}: {group!r} has no attribute {self.name!r}, which attrs= names.{near}")

    def add_missing(self) -> None:
        """Add a group that lacks the attribute."""
        self._values.append(None)

    def _prepare(self, group: str, attribute: h5py.h5a.AttrID) -> None:
        is_null = attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL
        try:
            dtype = attribute.dtype
        except (TypeError, ValueError) as exc:
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r}{numpy_lacks(attribute.get_type(), exc)} Or leave "
                "it out of attrs=[...]."
            ) from exc
        has_several = not is_null and any(length != 1 for length in attribute.shape)
        is_array = self._several_ok and dtype.kind in "biuf" and has_several
        if is_null or (has_several and not is_array) or not _is_plain(dtype):
            has = "is empty" if is_null else f"has dtype {dtype} and shape {attribute.shape}"
            expected = "one number or one text" + ", or numbers" * self._several_ok
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} {has}; expected {expected}. Leave it out of "
                "attrs=[...]."
            )
        if (nbytes := dtype.itemsize * (math.prod(attribute.shape) if is_array else 1)) > _MAX_TEXT:
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} claims {nbytes} bytes; expected at most {_MAX_TEXT}"
            )
        self._refers = dtype.hasobject
        native = dtype.newbyteorder("=") if dtype.kind in "biuf" else dtype
        self._type, self._stored_bytes = attribute.get_type(), _stored_bytes(attribute)
        self._in_memory = h5py.h5t.py_create(native)  # of strings: Python objects
        self._value = np.zeros(attribute.shape if is_array else (), native)
        self._is_text = dtype.kind not in "biuf"

    def values(self) -> dict[str, np.ndarray | Texts]:
        """Return the values of all groups, by the name of the attribute; of texts, which groups lack them, too."""
        there = [value for value in self._values if value is not None]
        if not there and self._lacks is not None:
            raise self._lacking(*self._lacks)
        are_texts = {isinstance(value, bytes) for value in there}
        if len(are_texts) > 1:
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} is a text in some groups and a number in others; leave it out"
            )
        lacks = np.array([value is None for value in self._values], bool)
        if any(np.ndim(value) for value in there):
            return self._arrays(there, lacks)
        if are_texts != {False}:
            texts: dict[str, np.ndarray | Texts] = {self.name: Texts.of([value or b"" for value in self._values])}
            return {**texts, LACKS + self.name: lacks} if lacks.any() else texts
        dtypes = {value.dtype for value in there}  # NaN stands for what groups lack
        dtype = np.result_type(*dtypes, *(np.float64 for kind in dtypes if lacks.any() and kind.kind != "f"))
        others = (value for value in there if value.dtype != dtype and value.dtype.kind in "iu")
        if any(value.astype(dtype).item() != value.item() for value in others):
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} has integers in some groups that {dtype} cannot hold, the "
                "dtype of all of them together; leave it out"
            )
        return {self.name: np.array([np.nan if value is None else value for value in self._values], dtype)}

    def _arrays(self, there: Sequence[Any], lacks: np.ndarray) -> dict[str, np.ndarray | Texts]:
        """Return arrays of one shape as one array; others one after the other, with where each ends."""
        arrays = list(map(np.atleast_1d, there))  # h5py cannot tell one number from a list of one
        dtype = np.result_type(*{array.dtype for array in arrays})
        if any(
            array.dtype.kind in "iu" and (array.astype(dtype).astype(array.dtype) != array).any() for array in arrays
        ):
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} has integers in some groups that {dtype} cannot hold, the "
                "dtype of all of them together; leave it out"
            )
        shapes = {array.shape for array in arrays}
        if len(shapes) == 1 and not lacks.any():
            return {self.name: np.stack(arrays).astype(dtype)}
        if wrong := [shape for shape in shapes if len(shape) > 1]:
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} has the shape {wrong[0]} in some groups and another one, or "
                "none, in others; arrays of one axis alone may differ. Leave it out of attrs=[...]."
            )
        lengths = np.zeros(len(lacks), np.int64)
        lengths[~lacks] = [len(array) for array in arrays]
        found: dict[str, np.ndarray | Texts] = {self.name: np.concatenate(arrays).astype(dtype)}
        return {**found, ENDS + self.name: np.cumsum(lengths), LACKS + self.name: lacks}


def _stored_bytes(attribute: h5py.h5a.AttrID) -> int:
    try:
        size: int = attribute.get_storage_size()
    except RuntimeError:  # libhdf5 says 0 of one without values, which h5py takes for a failure
        return 0
    return size


def attributes_of(group: h5py.Group, path: str, names: Sequence[str]) -> dict[str, np.ndarray | bytes]:
    """Return some attributes of one group: an array of one number each, or a text.

    Raises
    ------
    SchemaMismatchError, UnsupportedColumnError
        If it lacks one, or one is no single number or text.
    CorruptFileError
        If one claims more than the file has.
    """
    by_name: dict[str, np.ndarray | bytes] = {}
    guard = TextGuard(group.file)
    for attribute in [GroupAttribute(path, name, guard) for name in names]:
        attribute.add(str(group.name), group.id)
        values = attribute.values()[attribute.name]
        by_name[attribute.name] = values[0] if isinstance(values, Texts) else values
    return by_name


def _is_plain(dtype: np.dtype) -> bool:
    """Return whether values are numbers or texts."""
    is_float = dtype.kind == "f" and dtype.itemsize <= _MOST_FLOAT_BYTES
    return is_float or dtype.kind in "biuS" or h5py.check_string_dtype(dtype) is not None


def _attribute_names(opened: Any) -> list[str]:
    names: list[bytes] = []
    h5py.h5a.iterate(opened, names.append)
    return [name.decode("utf-8", "backslashreplace") for name in names]


def names_of_values(opened: h5py.Group | h5py.Dataset) -> list[str]:
    """Return the names of attributes with one number or one text, which ``attrs=`` makes columns; none is read.

    Those that libraries write for themselves are left out.
    """
    names = []
    for name in _attribute_names(opened.id):
        if name.startswith("_") or name in _OF_LIBRARIES or name.isupper():
            continue
        attribute = h5py.h5a.open(opened.id, name.encode("utf-8", "surrogateescape"))
        with contextlib.suppress(TypeError, ValueError):  # a type that numpy lacks
            is_null = attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL
            if not is_null and all(length == 1 for length in attribute.shape) and _is_plain(attribute.dtype):
                names.append(name)
    return names
