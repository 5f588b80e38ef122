"""Virtual columns that need the index of all files: folds of rows and of files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError, PredicateError
from ray_h5.manifest.file_table import FileTable, digest_of
from ray_h5.predicates.virtual_names import Fold


def passing_rows(
    files: FileTable, kept: np.ndarray, labels_of: Callable[[str], pa.ChunkedArray], fold: Fold
) -> pa.Array:
    """Return a boolean for each row of all files: whether it is in a fold. `kept` are the rows that tables leave.

    Raises
    ------
    PredicateError
        If the fold is of other files.
    """
    of_files = fold.files is not None  # files may be read in rows of another kind
    counts, expected = (files.num_rows, len(files)), (fold.num_rows, fold.num_files)
    said, found = (f"{n} files" if of_files else f"{rows} rows in {n} files" for rows, n in (expected, counts))
    said = f"kfold(group={'path' if of_files else None!r}): these folds are of {said}"
    if counts[of_files:] != expected[of_files:]:
        raise PredicateError(f"{said}, found {found}. Read the files that kfold was given.")
    if fold.files is not None:
        digest = files.names_digest
        passes = np.repeat(np.isin(np.arange(len(files)), fold.files), np.diff(files.starts))
    else:
        labels = None if fold.stratify is None else labels_of(fold.stratify)
        fold_by_row = fold_of_rows(files, kept, labels, fold.k, fold.seed)
        digest = digest_of_folds(files, fold_by_row)
        passes = (fold_by_row == fold.fold) == fold.is_test
    if digest != fold.digest:
        why = "with other numbers of rows in each; or a table leaves out other rows, or stratify has other values"
        names = "of other names" if of_files else f"of other names, or {why}"
        raise PredicateError(f"{said}, found as many {names}. Read the files, with the tables, that kfold was given.")
    return pa.array(passes)


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
