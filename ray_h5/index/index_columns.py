"""Virtual columns that need the index of all files: folds of rows and of files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError, PredicateError
from ray_h5.manifest.file_table import FileTable, digest_of
from ray_h5.predicates.virtual_names import FileFold, RowFold

if TYPE_CHECKING:
    from ray_h5.index.row_index import RowIndex


def passing_rows(index: RowIndex, criterion: RowFold | FileFold) -> pa.Array:
    """Return a boolean for each row of all files: whether it is in a fold.

    Raises
    ------
    PredicateError
        If the fold is of other files.
    """
    return _fold(index, criterion) if isinstance(criterion, RowFold) else _file_fold(index.files, criterion)


def fold_of_rows(index: RowIndex, k: int, stratify: str | None, seed: int) -> np.ndarray:
    """Return the fold of each row: folds of equal size, and with about the same shares of each value of `stratify`.

    Raises
    ------
    OptionError
        If there are fewer rows than folds.
    """
    rows = len(index.kept)
    if rows < k:
        raise OptionError(f"kfold: k={k}: there are only {rows} rows")
    order = index.kept[np.random.default_rng(seed).permutation(rows)]
    if stratify is not None:
        values = index.values([stratify], stored=True)[stratify]
        labels = values.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
        # Rows of one label follow each other, so they are dealt to the folds in turn.
        order = order[np.argsort(labels[order], kind="stable")]
    found = np.full(index.num_rows, -1)
    found[order] = np.arange(rows) % k
    return found


def digest_of_folds(index: RowIndex, folds: np.ndarray) -> str:
    """Return a digest of the names of the files, the rows of each, and the fold that `fold_of_rows` gives each row."""
    return digest_of(index.files.names_digest.encode() + index.files.starts.tobytes() + folds.tobytes())


def _fold(index: RowIndex, criterion: RowFold) -> pa.Array:
    if (index.num_rows, len(index.files)) != (criterion.num_rows, criterion.num_files):
        raise PredicateError(
            f"kfold(group=None): these folds are of {criterion.num_rows} rows in {criterion.num_files} files, found "
            f"{index.num_rows} rows in {len(index.files)} files. Read the files that kfold was given."
        )
    folds = fold_of_rows(index, criterion.k, criterion.stratify, criterion.seed)
    if digest_of_folds(index, folds) != criterion.digest:
        raise PredicateError(
            f"kfold(group=None): these folds are of {criterion.num_files} files with as many rows, but of other names, "
            "or with other numbers of rows in each; or a table leaves out other rows, or stratify has other values. "
            "Read the files, with the tables, that kfold was given."
        )
    return pa.array((folds == criterion.fold) == criterion.is_test)


def fold_of_files(files: FileTable, chosen: Sequence[int]) -> FileFold:
    """Return the criterion that rows of some files pass."""
    return FileFold(tuple(chosen), len(files), files.names_digest)


def _file_fold(files: FileTable, criterion: FileFold) -> pa.Array:
    if (len(files), files.names_digest) != (criterion.num_files, criterion.names):
        raise PredicateError(
            f"kfold(group='path'): these folds are of {criterion.num_files} files, found {len(files)} files"
            f"{'' if len(files) != criterion.num_files else ' of other names'}. Read the files that kfold was given."
        )
    passes = np.zeros(len(files), bool)
    passes[list(criterion.files)] = True
    return pa.array(np.repeat(passes, np.diff(files.starts)))
