"""The rows of a sparse matrix, from the datasets of its group."""

from __future__ import annotations

from typing import Any

import numpy as np

from ray_h5.columns.derived_columns import Csr
from ray_h5.columns.values import Values, read_units
from ray_h5.errors import CorruptFileError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.tree.encodings import matrix_shape
from ray_h5.manifest.layout import Encoding
from ray_h5.messages import near_names
from ray_h5.read.reader import RowReader

SPARSE = {"csr", "csc", "compressed"}
"""What groups of sparse matrices encode."""


def checked_encoding(reader: RowReader, made: Csr, name: str) -> Encoding | None:
    """Return what a group encodes; None if only the user says so.

    Raises `UnsupportedColumnError` unless it is a matrix that is compressed by rows.
    """
    path, encoding = reader.path, reader.encoding(name)
    if encoding is None and made.shape is not None:
        return None
    if encoding is None or encoding.kind not in SPARSE:
        said = "" if encoding is None else f" ({encoding.said})"
        raise UnsupportedColumnError(
            f"{path}: csr({made.group!r}): {name!r}{said} is no sparse matrix: expected a group of data, indices, "
            "indptr and a shape; or pass csr(..., shape=(rows, columns))"
        )
    if encoding.kind == "csc":
        raise UnsupportedColumnError(
            f"{path}: {name!r} is a {encoding.said}: it is compressed along its columns: each row is spread "
            "over all of it. Write it again compressed along its rows: adata.X = adata.X.tocsr(), then write_h5ad."
        )
    return encoding


def width_of(reader: RowReader, made: Csr, name: str, num_rows: int) -> int:
    """Return the length of a row: that of the axis which is not compressed."""
    where, encoding = f"{reader.path}: sparse matrix {name!r}", checked_encoding(reader, made, name)
    said_rows, said_width = made.shape or (None, None)
    width = said_width
    if encoding is not None:
        shape = encoding.shape
        if not shape:
            layout = reader.column(f"{name}/shape")
            if layout.shape != (2,) or layout.dtype.kind not in "iu":
                raise CorruptFileError(
                    f"{where}: its shape is {layout.dtype} of shape {layout.shape}; expected two integers"
                )
            stored_shape = reader.fact(layout.name, lambda: reader.read([layout.name])[layout.name], of_file=True)
            shape = matrix_shape(stored_shape, f"{where}: its shape")
        # Some do not say which axis is compressed. 10x has genes x cells, compressed along the cells.
        rows, width = shape if encoding.kind == "csr" or shape[0] == num_rows else shape[::-1]
        if rows != num_rows:
            raise CorruptFileError(
                f"{where}: its shape is {shape}, and indptr has {num_rows + 1} entries; expected one more than rows"
            )
    if width is None or said_rows not in {None, num_rows} or said_width not in {None, width}:
        raise SchemaMismatchError(
            f"{reader.path}: {made}: expected the shape {(num_rows, width)}, which the matrix {name!r} has in the file"
        )
    return width


def positions_of_names(
    reader: RowReader, where: str, wanted: tuple[Any, ...], length: int, column: Values
) -> np.ndarray:
    """Return the positions of names along an axis of this length, which a column names.

    Raises
    ------
    UnknownColumnError, UnsupportedColumnError
        If there are no such names, or two positions have one of them.
    """
    layout = column.array
    if layout.num_rows != length or layout.row_shape:
        raise UnsupportedColumnError(
            f"{where}: it has the shape {layout.shape}; expected a name for each of {length} positions"
        )
    values = read_units(reader, column).tolist()
    texts = [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value) for value in values]
    places: dict[str, int] = {}
    known = set(wanted)
    for place, text in enumerate(texts):
        if text in known and places.setdefault(text, place) != place:
            raise UnsupportedColumnError(f"{where}: {text!r} is the name of positions {places[text]} and {place}")
    absent = [name for name in wanted if name not in places]
    if absent:
        raise UnknownColumnError(
            f"{where}: {len(absent)} of {len(wanted)} names are not there, such as {absent[0]!r}."
            f"{near_names(str(absent[0]), texts)}"
        )
    return np.array([places[str(name)] for name in wanted], np.int64)
