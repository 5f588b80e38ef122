"""Virtual columns that need the index of all files: text compared with times, and folds of single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError, PredicateError
from ray_h5.planning.predicates.criteria import time_expression
from ray_h5.planning.predicates.evaluate import check_names, passing
from ray_h5.planning.predicates.wanted import DatedText, RowFold

if TYPE_CHECKING:
    from ray_h5.planning.index.row_index import RowIndex

IndexDerived = (DatedText, RowFold)
"""Criteria whose virtual columns are not computed file by file."""


def compute_from_index(index: RowIndex, column: str, criterion: DatedText | RowFold) -> pa.ChunkedArray:
    """Return a virtual column: a boolean for each row of all files.

    Raises
    ------
    PredicateError
        If the column cannot be compared with text, or a fold is of other files.
    """
    if isinstance(criterion, RowFold):
        return pa.chunked_array([_fold(index, criterion)])
    values = _values(index, column)
    return compared(column, criterion, values).fill_null(False)


def compared(column: str, criterion: DatedText, values: Any) -> pa.ChunkedArray:
    """Return for each value whether it passes: as a time in a column of times, and else as text."""
    return passing(time_expression(column, criterion, values.type), {column: values}, len(values))


def fold_of_rows(index: RowIndex, k: int, stratify: str | None, seed: int) -> np.ndarray:
    """Return the fold of each row: folds of equal size, and with about the same shares of each value of `stratify`.

    Raises
    ------
    OptionError
        If there are fewer rows than folds.
    """
    kept = index.joined.kept
    rows = index.num_rows if kept is None else len(kept)
    if rows < k:
        raise OptionError(f"kfold: k={k}: there are only {rows} rows")
    order = np.random.default_rng(seed).permutation(rows)
    order = order if kept is None else kept[order]
    if stratify is not None:
        labels = _values(index, stratify).combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
        # Rows of one label follow each other, so they are dealt to the folds in turn.
        order = order[np.argsort(labels[order], kind="stable")]
    found = np.full(index.num_rows, -1)
    found[order] = np.arange(rows) % k
    return found


def _fold(index: RowIndex, criterion: RowFold) -> pa.Array:
    if (index.num_rows, len(index.files)) != (criterion.num_rows, criterion.num_files):
        raise PredicateError(
            f"kfold(group=None): these folds are of {criterion.num_rows} rows in {criterion.num_files} files, found "
            f"{index.num_rows} rows in {len(index.files)} files. Read the files that kfold was given."
        )
    folds = fold_of_rows(index, criterion.k, criterion.stratify, criterion.seed)
    return pa.array((folds == criterion.fold) == criterion.is_test)


def _values(index: RowIndex, column: str) -> pa.ChunkedArray:
    """Return the values of a column as the files store them: the same, whatever a dataset casts."""
    specs = index.find([column])
    check_names([column], specs)
    return index.small_columns(list(specs.values()))[column]
