"""Virtual columns that need the index of all files: folds of rows and of files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError, PredicateError
from ray_h5.manifest.file_table import FileTable, digest_of
from ray_h5.predicates.virtual_names import FileFold, RowFold


def passing_rows(
    files: FileTable, kept: np.ndarray, labels_of: Callable[[str], pa.ChunkedArray], criterion: RowFold | FileFold
) -> pa.Array:
    """Return a boolean for each row of all files: whether it is in a fold. `kept` are the rows that tables leave.

    Raises
    ------
    PredicateError
        If the fold is of other files.
    """
    if isinstance(criterion, FileFold):
        return _file_fold(files, criterion)
    return _fold(files, kept, None if criterion.stratify is None else labels_of(criterion.stratify), criterion)


def fold_of_rows(files: FileTable, kept: np.ndarray, labels: pa.ChunkedArray | None, k: int, seed: int) -> np.ndarray:
    """Return the fold of each row: folds of equal size, and with about the same shares of each label.

    Raises
    ------
    OptionError
        If there are fewer rows than folds.
    """
    if len(kept) < k:
        raise OptionError(f"kfold: k={k}: there are only {len(kept)} rows")
    order = kept[np.random.default_rng(seed).permutation(len(kept))]
    if labels is not None:
        codes = labels.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
        # Rows of one label follow each other, so they are dealt to the folds in turn.
        order = order[np.argsort(codes[order], kind="stable")]
    folds = np.full(files.num_rows, -1)
    folds[order] = np.arange(len(kept)) % k
    return folds


def digest_of_folds(files: FileTable, folds: np.ndarray) -> str:
    """Return a digest of the names of the files, the rows of each, and the fold that `fold_of_rows` gives each row."""
    return digest_of(files.names_digest.encode() + files.starts.tobytes() + folds.tobytes())


def _fold(files: FileTable, kept: np.ndarray, labels: pa.ChunkedArray | None, criterion: RowFold) -> pa.Array:
    if (files.num_rows, len(files)) != (criterion.num_rows, criterion.num_files):
        raise PredicateError(
            f"kfold(group=None): these folds are of {criterion.num_rows} rows in {criterion.num_files} files, found "
            f"{files.num_rows} rows in {len(files)} files. Read the files that kfold was given."
        )
    folds = fold_of_rows(files, kept, labels, criterion.k, criterion.seed)
    if digest_of_folds(files, folds) != criterion.digest:
        raise PredicateError(
            f"kfold(group=None): these folds are of {criterion.num_files} files with as many rows, but of other names, "
            "or with other numbers of rows in each; or a table leaves out other rows, or stratify has other values. "
            "Read the files, with the tables, that kfold was given."
        )
    return pa.array((folds == criterion.fold) == criterion.is_test)


def _file_fold(files: FileTable, criterion: FileFold) -> pa.Array:
    if (len(files), files.names_digest) != (criterion.num_files, criterion.names):
        raise PredicateError(
            f"kfold(group='path'): these folds are of {criterion.num_files} files, found {len(files)} files"
            f"{'' if len(files) != criterion.num_files else ' of other names'}. Read the files that kfold was given."
        )
    passes = np.isin(np.arange(len(files)), criterion.files)
    return pa.array(np.repeat(passes, np.diff(files.starts)))
