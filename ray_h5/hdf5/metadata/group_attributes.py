"""One attribute of many groups -> an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.checks.attributes import TextGuard
from ray_h5.messages import near_names

_MAX_TEXT_BYTES = 1 << 20
"""Most bytes of an attribute of fixed length: a damaged type can claim 2 GiB."""


@dataclass(slots=True, eq=False)
class Attribute:
    """One attribute of all groups, as it is collected."""

    path: str
    name: str
    guard: TextGuard | None
    _values: list[Any] = field(default_factory=list)
    _is_text: bool = False
    _read: Callable[[h5py.h5a.AttrID], Any] | None = None
    _type: h5py.h5t.TypeID | None = None

    def add(self, group: str, opened: Any) -> None:
        name = self.name.encode()
        if not h5py.h5a.exists(opened, name):
            raise SchemaMismatchError(
                f"{self.path}: {group!r} has no attribute {self.name!r}, which attrs= names."
                f"{near_names(self.name, _attribute_names(opened))}"
            )
        found = h5py.h5a.open(opened, name)
        if found.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} is empty; expected one number or one text"
            )
        if self._type is None or not found.get_type().equal(self._type):
            self._prepare(group, found)
        assert self._read is not None
        if self._is_text and self.guard is not None:
            self.guard.check(group, self.name)
        self._values.append(self._read(found))

    def _prepare(self, group: str, found: h5py.h5a.AttrID) -> None:
        dtype = found.dtype
        if found.shape not in {(), (1,)} or not _is_plain(dtype):
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} has dtype {dtype} and shape {found.shape}; "
                "expected one number or one text"
            )
        if dtype.itemsize > _MAX_TEXT_BYTES:
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} claims {dtype.itemsize} bytes; expected at most "
                f"{_MAX_TEXT_BYTES}"
            )
        self._type = found.get_type()
        self._is_text = dtype.hasobject
        native = dtype.newbyteorder("=") if dtype.kind in "biuf" else dtype

        def read(attribute: h5py.h5a.AttrID) -> Any:
            value = np.zeros(attribute.shape, native)
            attribute.read(value)
            return value.reshape(-1)[0]

        self._read = read

    def values(self) -> np.ndarray:
        texts = [isinstance(value, (bytes, str)) for value in self._values]
        if all(texts):
            return np.array([_text(value) for value in self._values] + [None], object)[:-1]
        if any(texts):
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} is a text in some groups and a number in others; leave it out"
            )
        dtype = np.result_type(*{value.dtype for value in self._values})
        values = np.array(self._values, dtype)
        if values.tolist() != [value.item() for value in self._values] and not np.isnan(values).any():
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} has integers in some groups that {dtype} cannot hold, the dtype "
                "of all of them together; leave it out"
            )
        return values


def _is_plain(dtype: np.dtype) -> bool:
    """Return whether values are numbers or texts."""
    return dtype.kind in "biufS" or h5py.check_string_dtype(dtype) is not None


def _attribute_names(opened: Any) -> list[str]:
    names: list[bytes] = []
    h5py.h5a.iterate(opened, names.append)
    return [name.decode("utf-8", "backslashreplace") for name in names]


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
