"""Virtual columns: one boolean a row, its length, or a list of new values, computed from columns of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ray_h5.buffers import empty, objects, zeros
from ray_h5.columns.labels import Value, different, levels_of
from ray_h5.errors import PredicateError
from ray_h5.manifest.layout import ValueArray
from ray_h5.predicates.time_steps import check_steps, rows_with_a_step
from ray_h5.predicates.virtual_names import AnyEqual, Derived, FirstSeen, Length, RowMask
from ray_h5.rows.row_view import AnyReader, RowView

_PIECE_BYTES = 16 << 20


def compute(reader: AnyReader, num_rows: int, column: str, criterion: Derived) -> np.ndarray:
    """Return a virtual column of one file, of shape (num_rows,).

    Raises
    ------
    PredicateError
        If the columns that it is computed from have other shapes than it needs.
    """
    if isinstance(criterion, RowMask):
        return _row_mask(reader, num_rows, column)
    if isinstance(criterion, AnyEqual):
        return _any_equal(reader, num_rows, column, criterion)
    layout = reader.find([column])[column]
    if isinstance(criterion, FirstSeen):
        return _first_seen(reader, num_rows, layout)
    assert isinstance(criterion, Length)  # the others are computed from the index
    # Lists of HDF5 have their lengths beside the values alone, so that they are read for these.
    if layout.row_shape:  # they differ from file to file alone
        return np.full(num_rows, layout.row_shape[0], np.int64)
    lengths = np.empty(num_rows, np.int64)
    for piece in _pieces(num_rows, [layout]):
        rows = empty((piece.stop - piece.start,), np.dtype(object), layout.where)
        reader.read_into({column: rows}, piece)
        lengths[piece] = [0 if row is None else len(row) for row in rows]
    return lengths


def _first_seen(reader: AnyReader, num_rows: int, layout: ValueArray) -> np.ndarray:
    lists, seen = objects([()] * num_rows), set[Value | None]()
    for piece in _pieces(num_rows, [layout]):
        values = empty((piece.stop - piece.start, *layout.row_shape), layout.dtype, layout.where)
        reader.read_into({layout.name: values}, piece)
        new = different(values, levels_of(layout)) - seen
        seen |= new
        lists[piece.start] = tuple(new)
    return lists


def _any_equal(reader: AnyReader, num_rows: int, column: str, criterion: AnyEqual) -> np.ndarray:
    names = [column] if criterion.valid is None else [column, criterion.valid]
    layouts = reader.find(names)
    dtypes = {name: np.dtype(dtype) for name, dtype, _ in criterion.casts}
    casting = {name: casting for name, _, casting in criterion.casts}
    forms = [("number" if name in dtypes else layouts[name].kind, layouts[name].row_shape) for name in names]
    check_steps(f"{reader.path}: any_equal({criterion.value!r}): column {column!r}", forms, criterion)
    for layout in layouts.values():
        if layout.num_rows != num_rows:
            raise PredicateError(
                f"{reader.path}: any_equal: column {layout.name!r} has {layout.num_rows} rows, the others {num_rows}"
            )
    is_true = empty((num_rows,), np.dtype(bool), layouts[column].where)
    for piece in _pieces(num_rows, list(layouts.values())):
        arrays = {
            name: empty((piece.stop - piece.start, *layout.row_shape), dtypes.get(name, layout.dtype), layout.where)
            for name, layout in layouts.items()
        }
        reader.read_into(arrays, piece, casting=casting)
        is_true[piece] = rows_with_a_step(arrays[column], arrays.get(criterion.valid or ""), criterion.value)
    return is_true


def _row_mask(reader: AnyReader, num_rows: int, column: str) -> np.ndarray:
    base = reader.base if isinstance(reader, RowView) else reader  # the mask is a dataset of the file, not of a row
    layout = base.find([column])[column]
    where = f"{reader.path}: row_mask: {column!r}"
    if isinstance(reader, RowView) and layout.kind == "string" and not layout.row_shape:
        return reader.rows_named(base.read_whole(column).tolist(), where)
    if any(length != 1 for length in layout.row_shape) or layout.dtype.kind not in "biu":
        raise PredicateError(
            f"{where} holds {layout.dtype} values of shape {layout.row_shape}; expected a boolean a row, or row numbers"
        )
    values = base.read_whole(column).reshape(-1)
    # A mask is about the rows of the file. With windows, these are the steps, of which not each has a window.
    windowed = reader if isinstance(reader, RowView) and reader.has_windows else None
    expected, what = (num_rows, "rows") if windowed is None else (windowed.num_steps, "steps")
    is_chosen = values.astype(bool)
    if layout.kind != "bool":
        outside = values[(values < 0) | (values >= expected)]
        if len(outside):
            raise PredicateError(f"{where} lists row {outside[0]}; the file has {expected} {what}")
        is_chosen = zeros((expected,), np.dtype(bool), where)
        is_chosen[values.astype(np.int64)] = True
        if np.count_nonzero(is_chosen) != len(values):
            raise PredicateError(
                f"{where} lists a row more than once; expected row numbers, each once. If its 0 and 1 say which rows "
                f"to take, choose them with where(**{{{column!r}: 1}})."
            )
    if len(is_chosen) != expected:
        raise PredicateError(f"{where} has {len(values)} entries; expected one for each of the {expected} {what}")
    return is_chosen if windowed is None else is_chosen[windowed.step_numbers(np.arange(num_rows))]


def _pieces(num_rows: int, layouts: Sequence[ValueArray]) -> Iterator[slice]:
    widest = max(layouts, key=lambda layout: layout.row_bytes)
    rows = _PIECE_BYTES // max(sum(layout.row_bytes for layout in layouts), 1)
    # Whole chunks: a chunk in two pieces would be decoded twice.
    step = max(1, -(-rows // widest.chunk_rows)) * widest.chunk_rows
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
