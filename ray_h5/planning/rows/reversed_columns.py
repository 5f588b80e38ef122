"""Columns whose axes are reversed in the file, and what MATLAB means by some of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.layout import ColumnLayout, Kind
from ray_h5.hdf5.parts import Part
from ray_h5.hdf5.reading.coalesce import request_of
from ray_h5.hdf5.reading.last_axis import LastAxis
from ray_h5.planning.rows.columns import Reading

_COMPLEX = (("real", "imag"), ("r", "i"))


@dataclass(frozen=True, slots=True, eq=False)
class ReversedColumn:
    """A column whose rows lie along the last axis of its dataset.

    Attributes
    ----------
    stored : ColumnLayout
        The dataset.
    shape : tuple of int
        Rows, and the shape of a row.
    kind : {"number", "bool", "string", "struct"}
        The kind of its values.
    dtype : numpy.dtype
        Their dtype.
    is_text : bool
        Whether a row is the characters of one text.
    """

    stored: ColumnLayout
    shape: tuple[int, ...]
    kind: Kind
    dtype: np.dtype
    is_text: bool = False

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  as the other columns have it
        return replace(
            self.stored,
            kind=self.kind,
            shape=self.shape,
            stored_dtype=self.dtype,
            chunk_shape=None,
            offset=None,
            fill=None,
            enum=(),
            direct=False,
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        row_shape = self.stored.shape[-2::-1]
        values = empty((len(rows), *row_shape), self.stored.dtype, self.stored.where)
        part = Part(LastAxis(self.stored.name), request_of(rows), values)

        def finish() -> None:
            out[places] = self._decoded(values)

        return Reading([part], finish)

    def _decoded(self, values: np.ndarray) -> np.ndarray:
        if self.is_text:
            return _texts(values)
        if self.kind == "bool":
            values = values != 0
        if self.dtype.kind == "c" and values.dtype.names:
            parts = next(names for names in _COMPLEX if set(names) == set(values.dtype.names))
            found = np.empty(values.shape, self.dtype)
            found.real, found.imag = values[parts[0]], values[parts[1]]
            values = found
        return values.reshape(len(values), *self.shape[1:])


def _texts(values: np.ndarray) -> np.ndarray:
    """Return rows of UTF-16 units as texts in UTF-8."""
    units = np.ascontiguousarray(values.reshape(len(values), -1), "<u2")
    found = np.empty(len(values), object)
    found[:] = [row.tobytes().decode("utf-16-le", "replace").encode() for row in units]
    return found


def reversed_column(stored: ColumnLayout, matlab_class: str) -> ReversedColumn:
    """Return the column of a dataset, given what MATLAB says of its type.

    Raises
    ------
    UnsupportedColumnError
        If its values are of varying length.
    """
    if stored.stored_dtype.hasobject or stored.kind == "list":
        if len(stored.shape) == 1:
            raise UnsupportedColumnError(
                f"{stored.where} has values of varying length, which axes='reversed' does not read; read it without."
            )
        raise UnsupportedColumnError(
            f"{stored.where} has values of varying length along several axes, which no row has"
        )
    shape = stored.shape[::-1]
    if len(shape) == 2 and shape[1] == 1 and matlab_class:
        shape = shape[:1]  # a vector of MATLAB, which has no arrays of one axis
    kind, dtype = stored.kind, stored.dtype
    if matlab_class == "char" and dtype.kind == "u" and dtype.itemsize <= 2:
        return ReversedColumn(stored, shape[:1], "string", np.dtype(object), is_text=True)
    if matlab_class == "logical" and dtype.kind in "iu":
        return ReversedColumn(stored, shape, "bool", np.dtype(bool))
    if dtype.names is not None and set(dtype.names) in map(set, _COMPLEX):
        parts = {dtype[name] for name in dtype.names}
        if all(part.kind in "fiu" for part in parts):
            single = max(part.itemsize for part in parts) <= 4 and all(part.kind == "f" for part in parts)
            return ReversedColumn(stored, shape, "number", np.dtype(np.complex64 if single else np.complex128))
    return ReversedColumn(stored, shape, kind, dtype)
