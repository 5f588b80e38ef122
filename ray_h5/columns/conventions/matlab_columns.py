"""What MATLAB stores in its way: axes in reverse, texts and complex numbers; cells, whose values are whole datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.ragged.range_columns import OfParts, Ranges
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Values, reshaped
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.groups.column_of_groups import MATLAB_EMPTY
from ray_h5.hdf5.groups.matching_groups import MATLAB_CLASS
from ray_h5.manifest.joined_arrays import MISSING, GroupTable, JoinedArray, JoinedValues, Texts
from ray_h5.manifest.layout import ColumnLayout, ValueArray
from ray_h5.manifest.takes import Take
from ray_h5.manifest.value_type import Kind, ValueType

_COMPLEX = (("real", "imag"), ("r", "i"))


def rearranged(
    values: Values, kind: Kind, dtype: np.dtype, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]], name: str = ""
) -> Decoded:
    """Return values of another kind, dtype or shape than those that are stored: of MATLAB, of blocks of pandas.

    `shape_of` returns the shape of a row, given that of a stored one. Text may be stored as units of UTF-16.
    """

    def layout(array: ValueArray) -> ValueArray:
        rows = reshaped(array, *shape_of(array.row_shape))
        return rows.with_type(replace(rows.type, kind=kind, dtype=dtype), name=name or array.name)

    def decode(stored: np.ndarray, *_: Any) -> np.ndarray:
        if kind == "string" and stored.dtype.kind == "u":
            return texts_of(stored)
        if kind == "bool":
            stored = stored != 0
        if kind == "time":  # stored as the integers that numpy has for times, with NaT as the least one
            stored = stored.view(dtype)
        if dtype.kind == "c" and stored.dtype.names:
            parts = next(names for names in _COMPLEX if set(names) == set(stored.dtype.names))
            numbers = np.empty(stored.shape, dtype)
            numbers.real, numbers.imag = stored[parts[0]], stored[parts[1]]
            stored = numbers
        return stored.reshape(len(stored), *shape_of(stored.shape[1:]))

    return Decoded(values, decode, layout, of_each_value=False)


def texts_of(values: np.ndarray) -> np.ndarray:
    """Return rows of UTF-16 units as texts in UTF-8."""
    units = np.ascontiguousarray(values.reshape(len(values), -1), "<u2")
    texts = np.empty(len(values), object)
    texts[:] = [row.tobytes().decode("utf-16-le", "replace").encode() for row in units]
    return texts


def reversed_values(stored: ColumnLayout, said: Mapping[str, Any], *, is_vector: bool | None = None) -> Values:
    """Return the values of a dataset with the axes in the opposite order, given what MATLAB says of its type.

    Those of one axis are as they are stored. MATLAB has no such arrays: its vectors have a second one, which rows lack;
    `is_vector` says so of datasets that are read as one column.

    Raises
    ------
    UnsupportedColumnError
        If its values are of varying length, or there are none.
    """
    matlab_class = str(said.get(MATLAB_CLASS, ""))
    if len(stored.shape) < 2:
        if MATLAB_EMPTY in said:
            raise UnsupportedColumnError(
                f"{stored.where} is an empty array of MATLAB: the file holds its shape, and it has no rows"
            )
        return Stored.of(stored)
    if stored.stored_dtype.hasobject or stored.kind == "list":
        raise UnsupportedColumnError(
            f"{stored.where} has values of varying length along several axes, which no row has"
        )
    shape, kind, dtype = stored.shape[::-1], stored.kind, stored.dtype
    is_text = matlab_class == "char" and dtype.kind == "u" and dtype.itemsize <= 2
    is_vector = len(shape) == 2 and shape[1] == 1 and bool(matlab_class) if is_vector is None else is_vector
    is_one = is_text or is_vector
    if is_text:
        kind, dtype = "string", np.dtype(object)
    elif matlab_class == "logical" and dtype.kind in "iu":
        kind, dtype = "bool", np.dtype(bool)
    elif dtype.names is not None and set(dtype.names) in map(set, _COMPLEX):
        parts = {dtype[name] for name in dtype.names}
        if all(part.kind in "fiu" for part in parts):
            is_single = all(part.kind == "f" and part.itemsize <= 4 for part in parts)
            kind, dtype = "number", np.dtype(np.complex64 if is_single else np.complex128)
    return rearranged(reversed_axes(stored), kind, dtype, lambda row_shape: () if is_one else row_shape)


def reversed_axes(stored: ColumnLayout) -> Stored:
    """Return the values of a dataset with its axes in the opposite order; those of one axis as they are stored."""
    if len(stored.shape) < 2:
        return Stored.of(stored)
    plain = stored.with_shape(stored.shape[::-1], chunk_shape=None)
    plain = plain.with_type(replace(plain.type, enum=()), direct=False)
    rows = Take(stored.name, (len(stored.shape) - 1,), is_reversed=True)
    return Stored(plain, rows)


def reversed_groups(joined: JoinedArray, said: Sequence[Mapping[str, Any]], class_of: np.ndarray) -> OfParts:
    """Return the values of datasets, one a group, each with its axes in the opposite order.

    Parameters
    ----------
    joined : JoinedArray
        The datasets as they are stored.
    said : sequence of mapping
        What MATLAB says of them.
    class_of : numpy.ndarray
        int64: which of these each dataset has.

    Raises
    ------
    UnsupportedColumnError, SchemaMismatchError
        As `reversed_values` does; and if groups hold values of several kinds.
    """
    is_none = joined.is_there & np.array([MATLAB_EMPTY in one for one in said], bool)[class_of]
    there, shapes = np.flatnonzero(joined.is_there & ~is_none), joined.shapes[:, ::-1].copy()
    if not len(there):
        raise UnsupportedColumnError(f"{joined.unit.path}: column {joined.name!r} has empty arrays of MATLAB alone")
    shapes[is_none] = (0, *shapes[there[0], 1:])
    are_columns = shapes.shape[1] == 2 and bool((shapes[there, 1] == 1).all())
    is_vector = are_columns and all(MATLAB_CLASS in one for one in said)

    def of(group: int) -> Values:
        shape, known = tuple(joined.shapes[group].tolist()), joined.layouts[joined.class_of[group]]
        layout = known.with_shape(shape, name=joined.paths[group], chunk_shape=None)
        return reversed_values(layout, said[class_of[group]], is_vector=is_vector)

    alike = np.stack([joined.class_of[there], class_of[there]])
    firsts = there[np.unique(alike, axis=1, return_index=True)[1]].tolist()
    parts = tuple(map(of, firsts))
    arrays = {part.array.kind: group for part, group in zip(parts, firsts, strict=True)}
    if len(arrays) > 1:
        (kind, group), (other, at), *_ = arrays.items()
        raise SchemaMismatchError(
            f"{joined.unit.path}: column {joined.name!r}: MATLAB says {kind} values in {joined.paths[group]!r}, and "
            f"{other} values in {joined.paths[at]!r}. Choose groups that agree with the pattern, or leave it out with "
            "columns=[...]."
        )
    # What is left of the axes: vectors have one, and a row of characters is one text.
    array, num_axes = parts[0].array, 1 + len(parts[0].array.row_shape)
    is_single = array.kind == "string" and bool((shapes[there, 0] == 1).all())
    shapes = shapes[:, : 0 if is_single else num_axes]
    has = there if is_single else np.flatnonzero(joined.is_there)  # no text is None beside single ones
    units, of_shape = np.unique(shapes[has, 1:], axis=0, return_inverse=True)
    of_group = np.full(len(joined), MISSING, np.int32)
    of_group[has] = of_shape.reshape(-1)
    layouts = tuple(reshaped(array, *unit) for unit in units.tolist())
    whole = JoinedValues(joined.name, joined.paths, layouts, of_group, shapes, is_single)
    return OfParts(joined.name, parts, whole.units.local, of, joined=whole)


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
    said = table.attributes.get(MATLAB_CLASS)
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

    def layout(array: ValueArray) -> ValueArray:
        type_ = array.type
        turned = replace(type_, row_shape=type_.row_shape[::-1], ragged_shape=type_.ragged_shape[::-1])
        return array.with_type(turned, num_rows=len(joined))

    def decode(stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, _: Any) -> np.ndarray:
        shape = () if dtype.hasobject else stored.shape[:0:-1]
        decoded = np.empty((len(rows), *shape), dtype)
        for at, value in enumerate(stored):
            decoded[at] = value if value is None else value.T
        return decoded

    return Decoded(datasets, decode, layout, of_each_value=False)


def _text_of(value: np.ndarray) -> bytes:
    """Return characters as one text: bytes, or units of UTF-16."""
    return value.tobytes().rstrip(b"\0") if value.dtype.kind == "S" else texts_of(value[None])[0]


def texts_of_characters(values: Values) -> Decoded | None:
    """Return datasets of single bytes along one axis as one text each; None if they are something else."""
    if not isinstance(values, Ranges) or (joined := values.joined) is None or values.entries is not None:
        return None
    is_text = not joined.single and joined.shapes.shape[1] == 1 and values.content.array.dtype == np.dtype("S1")
    return _texts(values) if is_text else None


def texts_of_letters(ranges: Ranges) -> Ranges | Decoded:
    """Return ranges of single bytes of text as one text each, as vaex writes them; others as they are."""
    array = ranges.content.array
    is_text = array.dtype == np.dtype("S1") and not array.row_shape
    return _texts(ranges, np.ndarray.tobytes) if is_text else ranges


def _texts(datasets: Ranges, text_of: Callable[[np.ndarray], bytes] = _text_of) -> Decoded:
    """Return datasets of characters as one text each, as MATLAB and netCDF write them."""

    def layout(array: ValueArray) -> ValueArray:
        type_, nbytes = ValueType("string", np.dtype(object)), array.item_bytes
        return ValueArray(array.name, type_, array.num_rows, item_bytes=nbytes, path=array.path)

    def decode(stored: np.ndarray, *_: Any) -> np.ndarray:
        return objects(None if value is None else text_of(value) for value in stored)

    return Decoded(datasets, decode, layout, of_each_value=False)
