"""The column of a sparse matrix, from the datasets of its group."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ray_h5.errors import CorruptFileError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.file_reads import FileRead
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.encodings import Encoding, matrix_shape
from ray_h5.hdf5.reader import RowReader
from ray_h5.messages import near_names
from ray_h5.planning.rows.bounds import Bounds, ChunkedBy
from ray_h5.planning.rows.column_kinds import Csr
from ray_h5.planning.rows.range_columns import CsrColumn
from ray_h5.planning.rows.space import Column


def csr_column(
    reader: RowReader,
    made: Csr,
    encoding: Encoding | None,
    offsets: Callable[[str], tuple[str, Bounds]],
    column: Callable[[str], Column],
) -> tuple[CsrColumn, ChunkedBy]:
    """Return the column of a sparse matrix, and what its rows are ranges of.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : Csr
        The column, as the user describes it.
    encoding : Encoding, optional
        What the group says of itself.
    offsets : callable
        Returns for the dataset of offsets a key and the bounds of rows.
    column : callable
        Returns another column of the file, such as names of genes.
    """
    path, name = reader.path, made.group
    if encoding is None or encoding.kind not in {"csr", "csc", "compressed"}:
        said = "" if encoding is None else f" ({encoding.said})"
        raise UnsupportedColumnError(
            f"{path}: csr({name!r}): {name!r}{said} is no sparse matrix: expected a group of data, indices, indptr "
            "and a shape"
        )
    if encoding.kind == "csc":
        raise UnsupportedColumnError(
            f"{path}: {name!r} is a {encoding.said}: it is compressed along its columns: each row is spread "
            "over all of it. Write it again compressed along its rows: adata.X = adata.X.tocsr(), then write_h5ad."
        )
    key, bounds = offsets(f"{name}/indptr")
    indices, data = reader.column(f"{name}/indices"), reader.column(f"{name}/data")
    width = _width(reader, name, encoding, len(bounds))
    _check_entries(path, name, indices, data, bounds)
    chunked = ChunkedBy(key, max(indices.chunk_rows, data.chunk_rows))
    take = _take(reader, made, width, column)
    return CsrColumn(name, indices, data, bounds, width, made.dense, take, path), chunked


def _check_entries(path: str, name: str, indices: ColumnLayout, data: ColumnLayout, bounds: Bounds) -> None:
    where = f"{path}: sparse matrix {name!r}"
    if indices.row_shape or indices.dtype.kind not in "iu":
        raise CorruptFileError(f"{where}: indices are {indices.dtype} of shape {indices.shape}; expected integers")
    if data.row_shape or data.kind not in {"number", "bool"}:
        raise UnsupportedColumnError(f"{where}: data are {data.kind} of shape {data.shape}; expected numbers")
    if len(bounds) and bounds.starts[0] != 0:
        raise CorruptFileError(f"{where}: indptr begins with {bounds.starts[0]}; expected 0")
    end = int(bounds.stops[-1]) if len(bounds) else 0
    if not indices.num_rows == data.num_rows >= end:
        raise CorruptFileError(
            f"{where}: indptr ends with {end}, and there are {indices.num_rows} indices and {data.num_rows} "
            "values; expected equal numbers"
        )


def _width(reader: RowReader, name: str, encoding: Encoding, num_rows: int) -> int:
    """Return the length of a row: that of the axis which is not compressed."""
    where = f"{reader.path}: sparse matrix {name!r}"
    shape = encoding.shape
    if not shape:
        layout = reader.column(f"{name}/shape")
        if layout.shape != (2,) or layout.dtype.kind not in "iu":
            raise CorruptFileError(
                f"{where}: its shape is {layout.dtype} of shape {layout.shape}; expected two integers"
            )
        shape = matrix_shape(reader.read([layout.name])[layout.name], f"{where}: its shape")
    if encoding.kind == "csr":
        rows, width = shape
    else:
        # It does not say which axis is compressed. 10x has genes x cells, compressed along the cells.
        rows, width = shape if shape[0] == num_rows else shape[::-1]
    if rows != num_rows:
        raise CorruptFileError(
            f"{where}: its shape is {shape}, and indptr has {num_rows + 1} entries; expected one more than rows"
        )
    return width


def _take(reader: RowReader, made: Csr, width: int, column: Callable[[str], Column]) -> np.ndarray | None:
    if made.take is None:
        return None
    if made.names is None:
        positions = np.array(made.take, np.int64)
        if int(positions.max()) >= width:
            raise UnknownColumnError(
                f"{reader.path}: csr({made.group!r}): take lists {positions.max()}; a row has positions from "
                f"0 to {width - 1}"
            )
        return positions
    return _named(reader, made, width, column(made.names))


def _named(reader: RowReader, made: Csr, width: int, column: Column) -> np.ndarray:
    """Return the positions of names."""
    assert made.take is not None
    assert made.names is not None
    where = f"{reader.path}: csr({made.group!r}, names={made.names!r})"
    layout = column.layout(0, reader.path)
    if layout.num_rows != width or layout.row_shape:
        raise UnsupportedColumnError(
            f"{where}: it has the shape {layout.shape}; expected a name for each of {width} positions"
        )
    values = np.empty(width, object)
    reading = column.reading(np.arange(width), np.arange(width), values)
    reader.run(FileRead(reader, {made.names: values}, [], None, reading.parts, reading.finish))
    texts = [each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else str(each) for each in values]
    places: dict[str, int] = {}
    wanted = set(made.take)
    for place, text in enumerate(texts):
        if text in wanted and places.setdefault(text, place) != place:
            raise UnsupportedColumnError(f"{where}: {text!r} is the name of positions {places[text]} and {place}")
    absent = [each for each in made.take if each not in places]
    if absent:
        raise UnknownColumnError(
            f"{where}: {len(absent)} of {len(made.take)} names are not there, such as {absent[0]!r}."
            f"{near_names(str(absent[0]), texts)}"
        )
    return np.array([places[str(each)] for each in made.take], np.int64)
