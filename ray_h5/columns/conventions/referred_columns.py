"""Columns of which a value is a whole dataset: what a reference leads to, as in MATLAB's cells, or a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_h5.columns.conventions.reversed_columns import texts_of
from ray_h5.columns.dataset_columns import DatasetColumn
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import OneAxis, Reading, Units, Values
from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.groups.groups import OF_VALUES
from ray_h5.manifest.joined_arrays import GroupTable, Texts
from ray_h5.manifest.layout import ColumnLayout


@dataclass(frozen=True, slots=True, eq=False)
class Referred(OneAxis):
    """Values of which each is a whole dataset.

    Attributes
    ----------
    column : DatasetColumn
        The datasets.
    array : ColumnLayout
        Kind, dtype and shape of the values.
    is_text : bool
        Whether a dataset is the characters of one text, as MATLAB and netCDF write it.
    is_reversed : bool
        Whether the axes of a value are those of its dataset in reverse.
    """

    column: DatasetColumn
    array: ColumnLayout
    is_text: bool = False
    is_reversed: bool = False

    def blank(self, dtype: np.dtype) -> Any:
        if self.array.kind != "ragged":
            return OneAxis.blank(self, dtype)
        return np.empty((0, *(int(n or 0) for n in self.array.ragged_shape[1:])), self.array.element)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        if not self.is_text and not self.is_reversed:
            return self.column.reading(wanted.rows, wanted.places, out)
        found = np.empty(len(wanted), object)
        reading = self.column.reading(wanted.rows, np.arange(len(wanted)), found)

        def finish() -> None:
            for place, value in zip(wanted.places.tolist(), found, strict=True):
                if value is None or not self.is_text:
                    out[place] = value if value is None else value.T
                else:
                    is_bytes = value.dtype.kind == "S"
                    out[place] = value.tobytes().rstrip(b"\0") if is_bytes else texts_of(value[None])[0]

        return reading.then(finish)


def referred_values(path: str, name: str, table: GroupTable, *, is_reversed: bool) -> Values:
    """Return the values of a column of references, given the datasets that they lead to.

    Raises
    ------
    UnsupportedColumnError
        If they lead to groups, or to texts of several lines.
    """
    joined = table.columns.get(name)
    if joined is None:
        raise UnsupportedColumnError(
            f"{path}: column {name!r}: its references lead to groups: pass rows=ray_h5.Groups({name!r}) for a row a "
            f"group, such as {table.names[0]!r}."
        )
    if joined.single:
        return Stored(replace(joined.unit, name=name, shape=(len(joined), *joined.unit.row_shape)), joined)
    column = DatasetColumn(name, Stored.of(joined), joined)
    layout = column.layout(len(joined), path)
    said = table.attributes.get(OF_VALUES)
    if isinstance(said, Texts) and b"char" in said and joined.dtype.kind == "u":
        lines = np.flatnonzero((joined.shapes > 1).sum(axis=1) > 1)
        if len(lines):
            raise UnsupportedColumnError(
                f"{path}: column {name!r}, row {lines[0]}: characters of shape {tuple(joined.shapes[lines[0]])}; "
                "expected those of one line"
            )
        return _texts(column, layout)
    if is_reversed:
        layout = replace(layout, shape=(len(joined), *layout.row_shape[::-1]), ragged_shape=layout.ragged_shape[::-1])
    return Referred(column, layout, is_reversed=is_reversed)


def texts_of_characters(column: DatasetColumn, path: str) -> Referred | None:
    """Return datasets of single bytes along one axis as one text each; None if they are something else."""
    joined, dtype = column.joined, column.values.array.dtype
    if joined.single or joined.shapes.shape[1] != 1 or dtype != np.dtype("S1") or column.entries is not None:
        return None
    return _texts(column, column.layout(len(joined), path))


def _texts(column: DatasetColumn, layout: ColumnLayout) -> Referred:
    shape, nbytes = (len(column.joined),), layout.item_bytes
    text = ColumnLayout(
        column.name, "string", shape, np.dtype(object), "contiguous", item_bytes=nbytes, path=layout.path
    )
    return Referred(column, text, is_text=True)
