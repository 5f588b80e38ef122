"""Datasets that libraries write for themselves: they hold no rows."""

from __future__ import annotations

import contextlib
import re

import h5py

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.columns.value_types import without_rows
from ray_h5.hdf5.tree.attributes import is_bare_dimension, text_attribute
from ray_h5.storage.byte_source import MissingBytes

_INDEX, _BLOCK = re.compile("_i_."), re.compile(r"(?:axis|block)\d+(?:_\w+)?")
"""Names of groups and of datasets that PyTables and pandas may have written for themselves."""

_MOST_REFERENCES = 1 << 16


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
        self._frames: dict[str, bool] = {}  # frames of pandas in the fixed format, and whether their error is listed
        self.enters("", root)

    def enters(self, name: str, group: h5py.Group) -> bool:
        """Return whether a group is listed: one that is an index of PyTables, which pandas writes, is not."""
        with contextlib.suppress(MissingBytes):  # the listing is made again
            if text_attribute(group, "pandas_type") in {"frame", "wide"}:
                self._frames.setdefault(name, False)
            return not (_INDEX.match(name.rpartition("/")[2]) and text_attribute(group, "CLASS") == "TINDEX")
        return True

    def instead_of(self, name: str) -> list[tuple[str, UnsupportedColumnError]] | None:
        """Return what is listed instead of a dataset: an error for a frame of pandas; None for a dataset of its own."""
        frame, _, last = name.rpartition("/")
        if frame not in self._frames or not _BLOCK.fullmatch(last):
            return None
        is_listed, self._frames[frame] = self._frames[frame], True
        return [] if is_listed else [(frame or name, self._error_of_frame(frame))]

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
