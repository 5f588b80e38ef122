"""The rows of a sparse matrix, and what the datasets of its group say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_h5.columns.derived_columns import Csr
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.range_columns import Ranges, Runs, array_of_ragged_rows, rows_a_chunk
from ray_h5.columns.schema import ColumnSpec
from ray_h5.columns.sparse_rows import Entries, dense_batch, first_outside, index_dtype, rows_of
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Reading, Values, read_units
from ray_h5.errors import CorruptFileError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.tree.encodings import matrix_shape
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import Encoding, ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request
from ray_h5.manifest.value_type import ValueType
from ray_h5.messages import near_names
from ray_h5.per_process import cached_property
from ray_h5.read.reader import FileReader

SPARSE = {"csr", "csc", "compressed"}
"""What groups of sparse matrices encode."""


_LISTED_WIDTH = 1 << 24
"""Up to this width, the place of each position is in a list; a file can claim any width."""


@dataclass(frozen=True, eq=False)
class SparseRows(Values):
    """The rows of a sparse matrix.

    Attributes
    ----------
    name : str
        Name.
    indices, data : Values
        The positions and values of all entries.
    bounds : Bounds
        The entries of each row.
    width : int
        Length of a row.
    dense : bool
        Whether batches are dense.
    at : numpy.ndarray, optional
        int64: the positions to deliver.
    path : str
        The file, for messages.
    """

    name: str
    indices: Values
    data: Values
    bounds: Bounds
    width: int
    dense: bool
    at: np.ndarray | None
    path: str

    @property
    def delivered_width(self) -> int:
        """Length of a row as it is delivered."""
        return self.width if self.at is None else len(self.at)

    @cached_property  # it sums the bounds of all rows
    def array(self) -> ValueArray:
        indices, data = self.indices.array, self.data.array
        chunk = rows_a_chunk(self.bounds, max(indices.chunk_rows, data.chunk_rows))
        entry = index_dtype(self.delivered_width).itemsize + data.dtype.itemsize
        share = self.delivered_width / max(self.width, 1)
        shape = (self.delivered_width,)
        type_ = ValueType("sparse", np.dtype(object), element=data.dtype, ragged_shape=shape, dense=self.dense)
        return ValueArray(
            self.name,
            type_,
            len(self.bounds),
            chunk_shape=None if chunk == 1 else (chunk,),
            item_bytes=max(1, round(self.bounds.total / max(len(self.bounds), 1) * entry * share)),
            sources=tuple(dict.fromkeys([*indices.sources, *data.sources])),
            direct=indices.direct and data.direct,
            path=self.path,
        )

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted = units.listed()
        rows, begins = wanted.rows, self.bounds.starts[wanted.rows]
        runs = Runs(begins, self.bounds.stops[rows] - begins, wanted.places)
        (of_indices, indices, ends), (of_data, data, _) = map(runs.end_to_end, (self.indices, self.data))

        def finish() -> None:
            indptr = np.concatenate([np.zeros(1, np.int64), ends])
            # What scatters a position outside the matrix would write elsewhere without an error.
            if (wrong := first_outside(indices, self.width)) is not None:
                at = int(np.searchsorted(indptr, wrong, side="right")) - 1
                dataset = self._dataset_of(int(begins[at] + wrong - indptr[at]))
                raise CorruptFileError(
                    f"{self.path}: column {self.name!r}, row {rows[at]}: {dataset!r} has {indices[wrong]}; "
                    f"expected positions from 0 to {self.width - 1}. Restore the file from a copy, or write it again."
                )
            entries = Entries(indices.astype(index_dtype(self.width), copy=False), data)
            if self.at is not None:
                places = self._places(entries.indices, self.at)
                is_taken = places >= 0
                entries = Entries(places[is_taken], data[is_taken])
                indptr = Partition.of(is_taken).starts[indptr]
            out[wanted.places] = rows_of(entries, indptr)

        return Reading.together([of_indices, of_data]).then(finish)

    def _dataset_of(self, entry: int) -> str:
        """Return the dataset that has the position of an entry."""
        joined = self.indices.address if isinstance(self.indices, Stored) else None
        return (
            joined.paths[int(joined.units.part_of(entry))]
            if isinstance(joined, JoinedArray)
            else self.indices.array.name
        )

    def _places(self, indices: np.ndarray, delivered: np.ndarray) -> np.ndarray:
        """Return the place of each position among those to deliver; -1 if it is not one of them."""
        dtype = index_dtype(len(delivered))
        if self.width <= _LISTED_WIDTH:
            place = np.full(self.width, -1, dtype)
            place[delivered] = np.arange(len(delivered))
            return place[indices]
        order = np.argsort(delivered)
        at = np.searchsorted(delivered, indices, sorter=order)
        place = order[np.minimum(at, len(order) - 1)]
        return np.where(delivered[place] == indices, place, -1).astype(dtype)


def dense_ranges(spans: Ranges) -> Decoded:
    """Return ranges of rows of a sparse matrix, as dense arrays of shape ``(rows, width)``."""
    spec = ColumnSpec.of(spans.content.array)

    def layout(_: ValueArray) -> ValueArray:
        return array_of_ragged_rows(
            spans.name,
            spans.content.array.with_type(replace(spans.content.array.type, kind="number", dense=False)),
            (spans.bounds.stops - spans.bounds.starts) * int(spec.type.ragged_shape[0] or 0),
            (None, *spec.type.ragged_shape),
        )

    def decode(stored: np.ndarray, *_: Any) -> np.ndarray:
        arrays = np.empty(len(stored), object)
        dense, begin = dense_batch(np.concatenate([np.empty(0, object), *stored]), spec), 0
        for at, of_row in enumerate(stored):
            arrays[at] = dense[begin : begin + len(of_row)]
            begin += len(of_row)
        return arrays

    return Decoded(spans, decode, layout, of_each_value=False)


def checked_encoding(reader: FileReader, made: Csr, name: str) -> Encoding | None:
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


def width_of(reader: FileReader, made: Csr, name: str, num_rows: int) -> int:
    """Return the length of a row: that of the axis which is not compressed."""
    where, encoding = f"{reader.path}: sparse matrix {name!r}", checked_encoding(reader, made, name)
    said_rows, said_width = made.shape or (None, None)
    width = said_width
    shape = () if encoding is None else encoding.shape or _shape_beside(reader, where, name)
    if encoding is not None and not shape and width is None:
        raise SchemaMismatchError(
            f"{where}: it has no attribute 'shape' and no dataset of this name, and nothing says how many columns it "
            f"has; pass columns=[csr({made.group!r}, shape=({num_rows}, ...))] with their number in the place of ..."
        )
    if encoding is not None and shape:
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


def says_sparse(reader: FileReader, group: str) -> bool:
    """Return whether a group says that it is a sparse matrix, and of which shape."""
    with suppress(RayH5Error):  # reading the matrix reports what is wrong
        encoding = reader.encoding(group)
        return encoding is not None and encoding.kind in SPARSE and bool(encoding.shape)
    return False


def _shape_beside(reader: FileReader, where: str, name: str) -> tuple[int, ...]:
    """Return the shape of a matrix that a dataset of its group holds; () if there is none."""
    if (layout := reader.find([f"{name}/shape"], missing_ok=True).get(f"{name}/shape")) is None:
        return ()
    if layout.shape != (2,) or layout.dtype.kind not in "iu":
        raise CorruptFileError(f"{where}: its shape is {layout.dtype} of shape {layout.shape}; expected two integers")
    stored_shape = reader.fact(layout.name, lambda: reader.read([layout.name])[layout.name], of_file=True)
    return matrix_shape(stored_shape, f"{where}: its shape")


def positions_of_names(
    reader: FileReader, where: str, wanted: tuple[Any, ...], length: int, column: Values
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
