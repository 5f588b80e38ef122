"""The length of each selected row, by which a shuffle sorts: from shapes, without reading, where files say them."""

from __future__ import annotations

import numpy as np

from ray_h5.columns.derived_columns import RowPart
from ray_h5.index.row_index import RowIndex, build_index
from ray_h5.plan.weights_of_rows import row_values
from ray_h5.predicates.virtual_names import Length, virtual_name
from ray_h5.rows.kinds.group_and_file_rows import LengthsOfColumns
from ray_h5.tables.table_columns import one_array


def lengths_of(index: RowIndex, selection: np.ndarray | None, by_length: str | np.ndarray) -> np.ndarray:
    """Return the lengths of the selected rows: those of the shapes of a column, or numbers.

    Raises
    ------
    OptionError
        If a length is missing, negative, infinite or NaN, or the column holds no number a row.
    UnknownColumnError
        If there is no such column.
    """
    lengths = _of_shapes(index, by_length) if isinstance(by_length, str) else None
    if lengths is None:
        return row_values(index, selection, "by_length", by_length)
    return lengths if selection is None else lengths[selection]


def _of_shapes(index: RowIndex, name: str) -> np.ndarray | None:
    """Return the lengths of all rows of a column of varying shape; None for other columns."""
    spec, rows, windows = index.find([name])[name], index.scope.rows, index.scope.windows
    if windows is None and rows is not None and rows.episode and not spec.is_scalar and name in index.columns:
        row_lengths = _dataset_lengths(index, name)
        if row_lengths is None:  # it is not read: its shapes are not known yet
            row_lengths = _dataset_lengths(build_index(index.files.all_paths(), [name], index.lookup, index.cast), name)
        if row_lengths is not None:
            return row_lengths
    # A window has the same number of steps in each row: what varies is the shape of a step.
    is_window = windows is not None and windows.at is None and name in {column.name for column in windows.every}
    if spec.kind not in {"ragged", "list"} or spec.row_shape or is_window:
        return None
    row_lengths = _range_lengths(index, name) if index.scope.has_ranges else None
    if row_lengths is not None:
        return row_lengths
    lengths = virtual_name(name, Length())
    return one_array(index.values([lengths], stored=True)[lengths]).to_numpy()


def _range_lengths(index: RowIndex, name: str) -> np.ndarray | None:
    """Return the lengths of rows that are ranges of a longer array; None if those of a file are none."""
    made = next((column for column in index.scope.columns if column.name == name and isinstance(column, RowPart)), None)
    if not (ranges := index.ranges_of(name)):
        return None
    lengths = np.concatenate([bounds.stops - bounds.starts for bounds, _ in ranges])
    entries = None
    for part in [] if made is None else made.parts:
        entries = part.entries(f"column {name!r}", entries)
    return lengths if entries is None else entries.counts(lengths)


def _dataset_lengths(index: RowIndex, name: str) -> np.ndarray | None:
    lengths_of_files = []
    for table in index.tables:
        groups, of_file = (None, {}) if table is None else (table.groups, table.found(LengthsOfColumns).of)
        if name in of_file:
            lengths_of_files.append(np.array([of_file[name]], np.int64))
        elif groups is None or (joined := groups.values_of(name)) is None:
            return None
        else:
            lengths_of_files.append(joined.lengths)
    return np.concatenate(lengths_of_files) if lengths_of_files else None
