"""Columns of which a value is a whole dataset: what a reference leads to, as in MATLAB's cells, or a text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.columns.conventions.reversed_columns import texts_of
from ray_h5.columns.dataset_columns import Datasets
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import OneAxis, Reading, Units, Values
from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.groups.groups import OF_VALUES
from ray_h5.manifest.joined_arrays import GroupTable, Texts
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import request_of


@dataclass(frozen=True, slots=True, eq=False)
class Referred(OneAxis):
    """Values of which each is a whole dataset, as text, or with its axes in reverse.

    Attributes
    ----------
    datasets : Datasets
        The datasets.
    array : ColumnLayout
        Kind, dtype and shape of the values.
    is_text : bool
        Whether a dataset is the characters of one text, as MATLAB and netCDF write it.
    """

    datasets: Datasets
    array: ColumnLayout
    is_text: bool = False

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        found = np.empty(len(wanted), object)
        reading = self.datasets.reading(request_of(wanted.rows), found)

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
    datasets = Datasets(name, path, Stored.of(joined), joined)
    said = table.attributes.get(OF_VALUES)
    if isinstance(said, Texts) and b"char" in said and joined.dtype.kind == "u":
        lines = np.flatnonzero((joined.shapes > 1).sum(axis=1) > 1)
        if len(lines):
            raise UnsupportedColumnError(
                f"{path}: column {name!r}, row {lines[0]}: characters of shape {tuple(joined.shapes[lines[0]])}; "
                "expected those of one line"
            )
        return _texts(datasets)
    if not is_reversed:
        return datasets
    layout = datasets.array
    shape, ragged_shape = (len(joined), *layout.row_shape[::-1]), layout.ragged_shape[::-1]
    return Referred(datasets, replace(layout, shape=shape, ragged_shape=ragged_shape))


def texts_of_characters(datasets: Datasets) -> Referred | None:
    """Return datasets of single bytes along one axis as one text each; None if they are something else."""
    joined, dtype = datasets.joined, datasets.content.array.dtype
    if joined.single or joined.shapes.shape[1] != 1 or dtype != np.dtype("S1") or datasets.entries is not None:
        return None
    return _texts(datasets)


def _texts(datasets: Datasets) -> Referred:
    whole = datasets.array
    text = ColumnLayout(
        whole.name, "string", whole.shape[:1], np.dtype(object), "contiguous", item_bytes=whole.item_bytes,
        path=whole.path,
    )  # fmt: skip
    return Referred(datasets, text, is_text=True)
