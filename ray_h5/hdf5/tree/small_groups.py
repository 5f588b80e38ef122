"""Small files of numbers, such as statistics: the attributes and datasets of each group, read at once."""

from __future__ import annotations

import os

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.files.file_bytes import filename_of
from ray_h5.hdf5.files.opening import open_h5, translated
from ray_h5.storage.local import absolute_path

Values = dict[str, np.ndarray]
"""Numbers by the names of the attributes and datasets that hold them."""

_MAX_BYTES = 64 << 20
"""What one dataset may hold: sizes are checked before memory is taken."""


def read_groups(path: str | os.PathLike[str]) -> tuple[Values, dict[str, Values]]:
    """Return the numbers of the root group of a file, and those of each group in it.

    A dataset hides an attribute of its name. Text, links to elsewhere and groups in groups are left out.

    Raises
    ------
    RayH5Error
        The leaf that says what is wrong with the file.
    """
    where = absolute_path(os.fspath(path))
    with open_h5(where) as file, translated(where, "reading"):
        groups = {name: found for name in file if isinstance(found := _own(file, name), h5py.Group)}
        return _values(file), {name: _values(group) for name, group in groups.items()}


def _own(group: h5py.Group, name: str) -> object:
    """Return what a group holds itself by a name; None for a link."""
    return group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None


def _values(group: h5py.Group) -> Values:
    found: Values = {}
    for name in group.attrs:
        if group.attrs.get_id(name).dtype.kind in "biuf":
            found[str(name)] = np.asarray(group.attrs[name])
    for name in group:
        dataset = _own(group, name)
        if isinstance(dataset, h5py.Dataset) and dataset.shape is not None and dataset.dtype.kind in "biuf":
            found[name] = _read(dataset)
    return found


def _read(dataset: h5py.Dataset) -> np.ndarray:
    where = f"{filename_of(dataset.file)}: {dataset.name}"
    if dataset.is_virtual or dataset.external:
        raise UnsupportedColumnError(f"{where}: expected values in this file, found a dataset that leads elsewhere")
    if dataset.nbytes > _MAX_BYTES:
        raise UnsupportedColumnError(f"{where}: expected at most {_MAX_BYTES} bytes, found {dataset.nbytes}")
    return np.asarray(dataset[()])
