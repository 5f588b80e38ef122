"""What files hold beside the rows of columns; it is kept where rows are chosen or ordered."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.hdf5.files.opening import open_h5
from ray_h5.messages import few
from ray_h5.writing.attributes import copy_attribute, dtype_of, refers
from ray_h5.writing.objects import copy_object
from ray_h5.writing.output import writing


class Rest:
    """What files hold beside the rows of columns: attributes, and objects without rows.

    Parameters
    ----------
    sources : sequence of str
        Local files whose rows go into one file.
    columns : mapping of str to str
        The columns by their name in the output: their paths in the sources; empty for those of several arrays.
    group : str
        The group whose columns they are.
    left_out : collection of str
        Names of attributes that no longer hold for values, such as those of packed numbers.
    """

    def __init__(
        self, sources: Sequence[str], columns: Mapping[str, str], group: str = "/", left_out: Collection[str] = ()
    ) -> None:
        self._sources, self._columns, self._group = sources, columns, group
        self._left_out = frozenset(left_out)
        self.only_columns = False
        self.unread: Mapping[str, int] = {}
        """What may have rows and is no column, and the rows of the columns."""
        self.lost: list[str] = []

    def keep(self, out: h5py.File | None, *, attributes_alone: bool = False) -> list[str]:
        """Copy it to a file; return what is lost. Without a file, only return that."""
        self.lost = []
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open_h5(path)) for path in self._sources[:1]]
            first = files[0][self._group]
            self._attributes("the file" if self._group == "/" else self._group, first, "", out)
            if attributes_alone:
                below: list[str] = []
                first.visititems(lambda name, found: below.append(name) if {*found.attrs} - self._left_out else None)
                self.lost += [f"attributes of {few(sorted(map(repr, below)))}"] if below else []
                return self.lost
            for name, path in self._columns.items():
                if path and path in first:
                    self._attributes(repr(name), first[path], path, None if out is None else out[name])
            inside = {f"{path or name}/" for name, path in self._columns.items()}
            if not self.only_columns:
                self._objects(first, out, inside)
        return self.lost

    def _attributes(self, what: str, found: Any, path: str, made: Any) -> None:
        """Copy the attributes that all sources have alike."""
        names = [name for name in found.attrs if name not in self._left_out]
        different = self._different(found, names, path) if names and len(self._sources) > 1 else set()
        for name in names:
            dtype = dtype_of(found.attrs.get_id(name))
            has_references = dtype is None or refers(dtype)
            if name in different:
                self.lost.append(f"attribute {name!r} of {what}, which differs in other files")
            elif name == "DIMENSION_LIST":
                self.lost.append(f"the scales of the axes of {what}")
            elif has_references and name not in _OF_SCALES:
                self.lost.append(f"attribute {name!r} of {what}, a reference")
            elif not has_references and made is not None and name not in _OF_SCALES:
                with writing(made.file.filename):
                    copy_attribute(found, made, name)

    def _different(self, found: Any, names: Sequence[str], path: str) -> set[str]:
        different: set[str] = set()
        for other in self._sources[1:]:
            with open_h5(other) as file:
                group = file[self._group]
                there = group[path] if path and path in group else group
                for name in set(names) - different:
                    if name not in there.attrs or not _alike(found.attrs[name], there.attrs[name]):
                        different.add(name)
        return different

    def _objects(self, first: h5py.Group, out: h5py.File | None, inside: set[str]) -> None:
        """Copy what is no column, if all rows come from one file."""
        taken = set(self._columns.values()) | set(self._columns)

        def look(name: str, found: Any) -> None:
            if name in taken or any(name.startswith(each) for each in inside):
                return
            is_group = isinstance(found, h5py.Group)
            above = next((each for each in self.unread if f"{name}/".startswith(f"{each}/")), None)
            if above is not None and (is_group or above != name or found.shape[:1] == (self.unread[name],)):
                self.lost += [f"{name!r}, whose rows cannot be read"] if above == name else []
                return
            if is_group and not len(found.attrs):
                return
            dtype = dtype_of(found.id) if isinstance(found, h5py.Dataset) else np.dtype("u1")
            if len(self._sources) > 1 or dtype is None or refers(dtype):
                self.lost.append(f"attributes of group {name!r}" if is_group else repr(name))
            elif out is not None:
                with writing(out.filename):
                    if is_group:
                        made = out.require_group(name)
                        # A table of AnnData is a group of columns here, which have encodings of their own.
                        is_table = any(column.startswith(f"{name}/") for column in taken)
                        for each in found.attrs:
                            dtype = dtype_of(found.attrs.get_id(each))
                            if dtype is None or refers(dtype) or (is_table and each in self._left_out):
                                continue
                            copy_attribute(found, made, each)
                    else:
                        copy_object(found, out, name)
                        for each in list(found.attrs):
                            dtype = dtype_of(found.attrs.get_id(each))
                            if dtype is not None and refers(dtype):
                                del out[name].attrs[each]  # what it refers to is in the other file

        first.visititems(look)


_OF_SCALES = frozenset({"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates"})
"""Attributes that connect arrays with the scales of their axes; rows that are chosen or ordered have others."""


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        if isinstance(one, (np.ndarray, np.generic)) and not one.dtype.hasobject
        else bool(np.all(one == other))
    )


def texts_of_columns(path: str, names: Iterable[str], group: str = "/") -> dict[str, np.dtype]:
    """Return the dtypes of columns of texts of fixed length, as h5py has them."""
    with open_h5(path) as file:
        found = {name: file[group].get(name) for name in names}
        return {
            name: each.dtype
            for name, each in found.items()
            if isinstance(each, h5py.Dataset) and each.dtype.kind == "S"
        }


def enum_dtype(values: Mapping[str, int], dtype: np.dtype) -> np.dtype:
    """Return the dtype of integers that have names."""
    return h5py.enum_dtype(dict(values), dtype)
