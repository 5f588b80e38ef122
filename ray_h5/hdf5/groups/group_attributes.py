"""One attribute of many groups -> an array."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.columns.value_types import numpy_lacks
from ray_h5.hdf5.tree.attributes import TextGuard
from ray_h5.manifest.joined_arrays import LACKS, Texts
from ray_h5.messages import near_names

_MAX_TEXT_BYTES = 1 << 20
"""Most bytes of an attribute of fixed length: a damaged type can claim 2 GiB."""


_MOST_FLOAT_BYTES = 8
"""Arrow and torch lack long doubles."""


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
    """

    def __init__(self, path: str, name: str, guard: TextGuard, *, missing_ok: bool) -> None:
        self.path, self.name, self.guard, self._missing_ok = path, name, guard, missing_ok
        self._values: list[Any] = []  # bytes, numbers of NumPy, or None
        self._lacks: tuple[str, Any] | None = None  # the last group that does
        self._type: h5py.h5t.TypeID | None = None
        self._stored_bytes = 0
        self._in_memory: h5py.h5t.TypeID | None = None
        self._value = np.zeros(())

    @classmethod
    def of(cls, file: h5py.File, path: str, names: Sequence[str], *, missing_ok: bool = False) -> list[GroupAttribute]:
        """Return what collects some attributes of the groups of a file."""
        guard = TextGuard(file)
        return [cls(path, name, guard, missing_ok=missing_ok) for name in names]

    def add(self, group: str, opened: Any) -> None:
        """Read the attribute of the next group or dataset."""
        try:
            attr = h5py.h5a.open(opened, self.name.encode())
        except (KeyError, UnicodeDecodeError):  # see `Trail._kind_of_link`
            self._lacks = group, opened
            if not self._missing_ok:
                raise self._lacking(*self._lacks) from None
            self.add_missing()
            return
        # Most have the type of the one before. The size shows that there is one value: h5py does not check that all
        # values fit into the array.
        if self._type is None or not attr.get_type().equal(self._type) or attr.get_storage_size() != self._stored_bytes:
            self._prepare(group, attr)
        if self._refers:
            self.guard.check(opened, group, self.name)
        attr.read(self._value, self._in_memory)
        self._values.append(_text(self._value[()]) if self._is_text else self._value[()])

    def _lacking(self, group: str, opened: Any) -> SchemaMismatchError:
        """Return the error for a group without the attribute."""
        near = near_names(self.name, _attribute_names(opened))
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
        if is_null or any(length != 1 for length in attribute.shape) or not _is_plain(dtype):
            has = "is empty" if is_null else f"has dtype {dtype} and shape {attribute.shape}"
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} {has}; expected one number or one text. Leave it "
                "out of attrs=[...]."
            )
        if dtype.itemsize > _MAX_TEXT_BYTES:
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} claims {dtype.itemsize} bytes; expected at most "
                f"{_MAX_TEXT_BYTES}"
            )
        self._refers = dtype.hasobject
        native = dtype.newbyteorder("=") if dtype.kind in "biuf" else dtype
        self._type, self._stored_bytes = attribute.get_type(), attribute.get_storage_size()
        self._in_memory = h5py.h5t.py_create(native)  # of strings: Python objects
        self._value = np.zeros((), native)
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


_OF_LIBRARIES = frozenset({"Conventions", "NX_class", "encoding-type", "encoding-version", "filetype", "history"})
"""Attributes that say how a file is written. PyTables and HDF5 write theirs in capitals, netCDF with ``_`` first."""


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
    for attribute in GroupAttribute.of(group.file, path, names):
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


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
