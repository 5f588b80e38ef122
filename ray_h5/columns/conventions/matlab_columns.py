"""What MATLAB stores in its way: axes in reverse, texts and complex numbers; cells, whose values are whole datasets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Values, flattened
from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.groups.matching_groups import OF_VALUES
from ray_h5.manifest.joined_arrays import GroupTable, Texts
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.arrays.selection import Selection

_COMPLEX = (("real", "imag"), ("r", "i"))


@dataclass(frozen=True, slots=True, eq=False)
class Rearranged(Decoded):
    """Values of another shape or type than those that are stored: of units along the last axis, of blocks of pandas.

    Attributes
    ----------
    array : ColumnLayout
        Kind, dtype and shape of the values.
    is_text : bool
        Whether a unit is the characters of one text.
    """

    of_each_value = False

    array: ColumnLayout
    is_text: bool = False

    def over(self, axes: int) -> Rearranged:
        return self if axes == 1 else replace(self, values=self.values.over(axes), array=flattened(self.array, axes))

    def decoded(self, stored: np.ndarray, *_: Any) -> np.ndarray:
        if self.is_text:
            return texts_of(stored)
        if self.array.kind == "bool":
            stored = stored != 0
        if self.array.kind == "time":  # stored as the integers that numpy has for times, with NaT as the least one
            stored = stored.view(self.array.dtype)
        if self.array.dtype.kind == "c" and stored.dtype.names:
            parts = next(names for names in _COMPLEX if set(names) == set(stored.dtype.names))
            numbers = np.empty(stored.shape, self.array.dtype)
            numbers.real, numbers.imag = stored[parts[0]], stored[parts[1]]
            stored = numbers
        return stored.reshape(len(stored), *self.array.row_shape)


def texts_of(values: np.ndarray) -> np.ndarray:
    """Return rows of UTF-16 units as texts in UTF-8."""
    units = np.ascontiguousarray(values.reshape(len(values), -1), "<u2")
    texts = np.empty(len(values), object)
    texts[:] = [row.tobytes().decode("utf-16-le", "replace").encode() for row in units]
    return texts


def reversed_values(stored: ColumnLayout, matlab_class: str) -> Rearranged:
    """Return the values of a dataset, given what MATLAB says of its type.

    Raises
    ------
    UnsupportedColumnError
        If its values are of varying length.
    """
    if stored.stored_dtype.hasobject or stored.kind == "list":
        raise UnsupportedColumnError(
            f"{stored.where} has values of varying length along several axes, which no row has"
        )
    shape = stored.shape[::-1]
    if len(shape) == 2 and shape[1] == 1 and matlab_class:
        shape = shape[:1]  # a vector of MATLAB, which has no arrays of one axis

    kind, dtype = stored.kind, stored.dtype
    is_text = matlab_class == "char" and dtype.kind == "u" and dtype.itemsize <= 2
    if is_text:
        shape, kind, dtype = shape[:1], "string", np.dtype(object)
    elif matlab_class == "logical" and dtype.kind in "iu":
        kind, dtype = "bool", np.dtype(bool)
    elif dtype.names is not None and set(dtype.names) in map(set, _COMPLEX):
        parts = {dtype[name] for name in dtype.names}
        if all(part.kind in "fiu" for part in parts):
            is_single = all(part.kind == "f" and part.itemsize <= 4 for part in parts)
            kind, dtype = "number", np.dtype(np.complex64 if is_single else np.complex128)
    plain = replace(stored, chunk_shape=None, offset=None, fill=None, direct=False)
    rows = Selection(stored.name, (len(stored.shape) - 1,), is_reversed=True)
    values = Stored(replace(plain, shape=stored.shape[::-1]), rows)
    return Rearranged(values, replace(plain, kind=kind, shape=shape, stored_dtype=dtype, enum=()), is_text)


@dataclass(frozen=True, slots=True, eq=False)
class Referred(Decoded):
    """Values of which each is a whole dataset, as text, or with its axes in reverse.

    Attributes
    ----------
    array : ColumnLayout
        Kind, dtype and shape of the values.
    is_text : bool
        Whether a dataset is the characters of one text, as MATLAB and netCDF write it.
    """

    of_each_value = False

    array: ColumnLayout
    is_text: bool = False

    def decoded(self, stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, *_: Any) -> np.ndarray:
        decoded = np.empty((len(rows), *(() if dtype.hasobject else self.array.row_shape)), dtype)
        for at, value in enumerate(stored):
            if value is None or not self.is_text:
                decoded[at] = value if value is None else value.T
            else:
                is_bytes = value.dtype.kind == "S"
                decoded[at] = value.tobytes().rstrip(b"\0") if is_bytes else texts_of(value[None])[0]
        return decoded


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
        return Stored.end_to_end(name, joined)
    datasets = Ranges.whole(name, path, Stored.of(joined), joined)
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


def texts_of_characters(values: Values) -> Referred | None:
    """Return datasets of single bytes along one axis as one text each; None if they are something else."""
    if not isinstance(values, Ranges) or (joined := values.joined) is None or values.entries is not None:
        return None
    is_text = not joined.single and joined.shapes.shape[1] == 1 and values.content.array.dtype == np.dtype("S1")
    return _texts(values) if is_text else None


def _texts(datasets: Ranges) -> Referred:
    whole, dtype = datasets.array, np.dtype(object)
    item_bytes, path = whole.item_bytes, whole.path
    text = ColumnLayout(whole.name, "string", whole.shape[:1], dtype, "contiguous", item_bytes=item_bytes, path=path)
    return Referred(datasets, text, is_text=True)
