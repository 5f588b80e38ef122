"""Datasets that libraries write for themselves: they hold no rows."""

from __future__ import annotations

import re

import h5py

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.columns.value_types import without_rows
from ray_h5.hdf5.tree.attributes import is_bare_dimension, text_attribute

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
        self._frames: set[str] = set()

    def instead_of(self, name: str) -> list[tuple[str, UnsupportedColumnError]] | None:
        """Return what is listed instead of a dataset: an error for a frame of pandas; None for a dataset of its own."""
        if self._is_hidden(name):
            return []
        if (frame := self._frame_of(name)) is None:
            return None
        if frame in self._frames:
            return []
        self._frames.add(frame)
        return [(frame or name, self._error_of_frame(frame))]

    def _is_hidden(self, name: str) -> bool:
        """Return whether a dataset belongs to an index of PyTables, which pandas writes beside its tables."""
        match = _INDEX.match(name)
        return match is not None and self._attribute(match["group"], "CLASS") == "TINDEX"

    def _frame_of(self, name: str) -> str | None:
        """Return the group of a frame of pandas in the fixed format that a dataset is a part of."""
        match = _BLOCK.match(name)
        if match is None:
            return None
        group = match["group"] or ""
        return group if self._attribute(group, "pandas_type") in {"frame", "wide"} else None

    def _error_of_frame(self, group: str) -> UnsupportedColumnError:
        shown = group or self._root.name.strip("/")
        block = f"{group}/block0_values".lstrip("/")
        return UnsupportedColumnError(
            f"{self._path}: column {shown!r} is a DataFrame that pandas wrote in the fixed format: its columns are in "
            "blocks by type, and those of text are pickled. Write it with to_hdf(..., format='table', "
            f"data_columns=True); or read the numbers of a block with columns=[{block!r}]."
        )

    def why_no_rows(self, name: str, item: object) -> UnsupportedColumnError | None:
        """Return the error of a dataset that is described, and holds no rows; None for others."""
        if not isinstance(item, h5py.h5d.DatasetID) or not h5py.h5a.get_num_attrs(item):
            return None
        dataset = h5py.Dataset(item, readonly=True)
        where = f"{self._path}: column {name!r}"
        if text_attribute(dataset, "CLASS") == "DIMENSION_SCALE" and not _is_of_rows(dataset):
            if is_bare_dimension(dataset):
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
            item = self._root[group] if group else self._root
            self._attributes[key] = text_attribute(item, name) if isinstance(item, h5py.Group) else ""
        return self._attributes.get(key, "")


def _is_of_rows(scale: h5py.Dataset) -> bool:
    """Return whether a dimension scale is that of the first axis of a dataset."""
    if is_bare_dimension(scale):
        return False
    try:
        if not h5py.h5a.exists(scale.id, b"REFERENCE_LIST"):
            return True  # no dataset has it: it is a column of its own
        references = scale.attrs.get_id("REFERENCE_LIST")
        if len(references.shape) != 1 or references.shape[0] > _MOST_REFERENCES or not references.dtype.names:
            return False
        return bool((scale.attrs["REFERENCE_LIST"][references.dtype.names[1]] == 0).any())
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        return False
