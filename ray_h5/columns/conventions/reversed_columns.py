"""Values whose axes are reversed in the file, and what MATLAB means by some of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.columns.stored_values import Decoded, Stored
from ray_h5.columns.values import flattened
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.layout import ColumnLayout, Kind
from ray_h5.read.arrays.selection import Selection

_COMPLEX = (("real", "imag"), ("r", "i"))


@dataclass(frozen=True, slots=True, eq=False)
class Reversed(Decoded):
    """Values of which units lie along the last axis of their dataset.

    Attributes
    ----------
    array : ColumnLayout
        Kind, dtype and shape of the values.
    is_text : bool
        Whether a unit is the characters of one text.
    """

    array: ColumnLayout
    is_text: bool = False

    def over(self, axes: int) -> Reversed:
        return self if axes == 1 else replace(self, values=self.values.over(axes), array=flattened(self.array, axes))

    def decoded(self, stored: np.ndarray, rows: np.ndarray) -> np.ndarray:  # noqa: ARG002  as CF has it
        if self.is_text:
            return texts_of(stored)
        if self.array.kind == "bool":
            stored = stored != 0
        if self.array.dtype.kind == "c" and stored.dtype.names:
            parts = next(names for names in _COMPLEX if set(names) == set(stored.dtype.names))
            found = np.empty(stored.shape, self.array.dtype)
            found.real, found.imag = stored[parts[0]], stored[parts[1]]
            stored = found
        return stored.reshape(len(stored), *self.array.row_shape)


def texts_of(values: np.ndarray) -> np.ndarray:
    """Return rows of UTF-16 units as texts in UTF-8."""
    units = np.ascontiguousarray(values.reshape(len(values), -1), "<u2")
    found = np.empty(len(values), object)
    found[:] = [row.tobytes().decode("utf-16-le", "replace").encode() for row in units]
    return found


def reversed_values(stored: ColumnLayout, matlab_class: str) -> Reversed:
    """Return the values of a dataset, given what MATLAB says of its type.

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

    def found(shape: tuple[int, ...], kind: Kind, dtype: np.dtype, is_text: bool = False) -> Reversed:
        plain = replace(stored, chunk_shape=None, offset=None, fill=None, direct=False)
        rows = Selection(stored.name, (len(stored.shape) - 1,), is_reversed=True)
        values = Stored(replace(plain, shape=stored.shape[::-1]), rows)
        return Reversed(values, replace(plain, kind=kind, shape=shape, stored_dtype=dtype, enum=()), is_text)

    kind, dtype = stored.kind, stored.dtype
    if matlab_class == "char" and dtype.kind == "u" and dtype.itemsize <= 2:
        return found(shape[:1], "string", np.dtype(object), is_text=True)
    if matlab_class == "logical" and dtype.kind in "iu":
        return found(shape, "bool", np.dtype(bool))
    if dtype.names is not None and set(dtype.names) in map(set, _COMPLEX):
        parts = {dtype[name] for name in dtype.names}
        if all(part.kind in "fiu" for part in parts):
            single = max(part.itemsize for part in parts) <= 4 and all(part.kind == "f" for part in parts)
            return found(shape, "number", np.dtype(np.complex64 if single else np.complex128))
    return found(shape, kind, dtype)
