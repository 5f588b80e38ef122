"""Copies attributes and references from one file to another."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np

from ray_h5.hdf5.files.file_bytes import address_of


def encoded(name: str | bytes) -> bytes:
    """Return a name as libhdf5 has it. h5py gives names that are not UTF-8 as bytes."""
    return name.encode() if isinstance(name, str) else name


def dtype_of(id_: h5py.h5a.AttrID | h5py.h5d.DatasetID) -> np.dtype | None:
    """Return the dtype of an attribute or a dataset; None for a type that h5py cannot read, such as times of HDF5."""
    try:
        return np.dtype(id_.dtype)
    except (TypeError, ValueError):
        return None


class NamedTypes:
    """Types of a file that have names, and the same ones in its copy: netCDF4 opens no file whose types lost theirs.

    Parameters
    ----------
    names : mapping of object to str
        Their paths, by `address_of`.
    out : h5py.File, optional
        The copy; without one, types have no names.
    """

    def __init__(self, names: Mapping[Any, str] = MappingProxyType({}), out: h5py.File | None = None) -> None:
        self._names, self._out = names, out

    def of(self, id_: h5py.h5a.AttrID | h5py.h5d.DatasetID) -> h5py.h5t.TypeID:
        """Return the type of an attribute or a dataset, for its copy."""
        type_ = id_.get_type()
        path = self._path_of(type_)
        if path is None or self._out is None or path not in self._out:
            return type_.copy()
        return self._out[path].id

    def names_one_of(self, dataset: h5py.Dataset) -> bool:
        """Return whether a dataset, or one of its attributes, has a type with a name."""
        ids = (dataset.id, *(dataset.attrs.get_id(name) for name in dataset.attrs)) if self._names else ()
        return any(self._path_of(id_.get_type()) is not None for id_ in ids)

    def _path_of(self, type_: h5py.h5t.TypeID) -> str | None:
        return self._names.get(address_of(type_)) if self._names and type_.committed() else None


def copy_attribute(
    item: h5py.Group | h5py.Dataset,
    made: h5py.Group | h5py.Dataset,
    name: str,
    types: NamedTypes,
) -> None:
    """Copy an attribute with its exact type. References lead to the objects of the same names in the other file."""
    attribute = item.attrs.get_id(name)
    if name in made.attrs:
        del made.attrs[name]
    new = h5py.h5a.create(made.id, encoded(name), types.of(attribute), attribute.get_space())
    if attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return
    if refers(np.dtype(attribute.dtype)):
        values = np.asarray(item.attrs[name], None if attribute.shape else object)
        values = remapped(values, item.file, made.file).reshape(attribute.shape)
        new.write(np.ascontiguousarray(values, attribute.dtype))
        return
    if attribute.dtype.hasobject:
        values = np.empty(attribute.shape, attribute.dtype)
        attribute.read(values)
        new.write(values)
        return
    # As they are stored: a conversion would cut texts that end with a NUL in the file, and with none in numpy.
    type_ = attribute.get_type()
    raw = np.empty(attribute.shape, np.dtype((np.void, type_.get_size())))
    attribute.read(raw, mtype=type_)
    new.write(raw, mtype=type_)


def refers(dtype: np.dtype) -> bool:
    """Return whether values are, or contain, references."""
    if dtype.names is not None:
        return any(refers(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return refers(dtype.subdtype[0])
    vlen = h5py.check_vlen_dtype(dtype)
    return h5py.check_ref_dtype(dtype) is not None or (vlen is not None and refers(np.dtype(vlen)))


def remapped(values: Any, file: h5py.File, out: h5py.File) -> Any:
    """Return values with references to the same names in another file."""
    if isinstance(values, h5py.RegionReference):
        name = h5py.h5r.get_name(values, file.id) if values else None
        if name is None or name.decode() not in out:
            return h5py.RegionReference()
        region = h5py.h5r.get_region(values, file.id)
        return h5py.h5r.create(out.id, name, h5py.h5r.DATASET_REGION, region)
    if isinstance(values, h5py.Reference):
        name = h5py.h5r.get_name(values, file.id) if values else None
        return out[name].ref if name is not None and name.decode() in out else h5py.Reference()
    if not isinstance(values, (np.ndarray, np.void)):
        return values
    if values.dtype.names is not None:
        made = np.array(values, copy=True)
        for name in values.dtype.names:
            if refers(values.dtype[name]):
                made[name] = remapped(np.asarray(values[name]), file, out)
        return made
    if values.dtype != object or not isinstance(values, np.ndarray):
        return values
    made = np.empty(values.shape, values.dtype)
    for at in np.ndindex(values.shape):
        made[at] = remapped(values[at], file, out)
    return made
