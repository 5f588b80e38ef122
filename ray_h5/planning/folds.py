"""Splits for cross-validation, whose groups never straddle."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ray_h5.errors import OptionError, SchemaMismatchError
from ray_h5.options import as_integer
from ray_h5.planning.index import RowIndex
from ray_h5.planning.predicate import check_names

Fold = tuple[list[Any], list[Any]]
"""Values to train on, and values to validate on."""


def index_for(build: Callable[[list[str]], RowIndex], group: str, stratify: str | None) -> RowIndex:
    """Return what `build` makes of the columns that folds are made of.

    Raises
    ------
    SchemaMismatchError
        If files lack one; where it is `stratify`, which has a default, the message says what to pass.
    """
    if stratify is None:
        return build([group])
    try:
        return build([group, stratify])
    except SchemaMismatchError as exc:
        build([group])  # raises, if it is this one
        raise type(exc)(
            f"kfold: stratify={stratify!r}, by whose values each fold is to be like the others: {exc} For kfold: pass "
            "stratify=None, or the name of a column that all of these files have."
        ) from exc


def fold_groups(index: RowIndex, k: int, group: str, stratify: str | None, seed: int) -> list[Fold]:
    """Return for each of `k` folds the groups to train on and those to validate on.

    Parameters
    ----------
    index : RowIndex
        The files.
    k : int
        Folds, 2 or more.
    group : str
        A scalar column: rows of one value stay together, such as those of a patient.
    stratify : str, optional
        A scalar column whose values each fold has in about the same shares.
    seed : int
        Draws the folds.

    Returns
    -------
    list of (list, list)
        Values of the column `group`.

    Raises
    ------
    OptionError
        If there are fewer groups than folds, or a row belongs to none; or too few to stratify them.
    """
    k, seed = as_integer("kfold: k", k, 2), as_integer("kfold: seed", seed, 0, instead=", below 2**32")
    if seed >= 2**32:  # which is as much as scikit-learn takes
        raise OptionError(f"kfold: seed={seed}: expected an integer of 0 or more, below 2**32")
    names = [group] if stratify is None else [group, stratify]
    specs = index.find(names)
    check_names(names, specs)
    columns = index.small_columns(list(specs.values()))
    absent = pc.sum(columns[group].is_null(nan_is_null=True)).as_py()
    if absent:
        raise OptionError(f"kfold: {absent} rows have no {group!r}")
    encoded = columns[group].combine_chunks().dictionary_encode()
    values, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    if len(values) < k:
        raise OptionError(f"kfold: k={k}: the column {group!r} has only {len(values)} different values")
    labels = None if stratify is None else columns[stratify].to_numpy()
    folds = [(np.unique(codes[train]), np.unique(codes[test])) for train, test in _split(codes, labels, k, seed)]
    if not all(len(test) for _, test in folds):
        raise OptionError(
            f"kfold: k={k}: {len(values)} groups are too few for {k} folds of like shares of {stratify!r}"
        )
    return [([values[i] for i in train], [values[i] for i in test]) for train, test in folds]


def _split(codes: np.ndarray, labels: np.ndarray | None, k: int, seed: int) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    rows = np.zeros(len(codes))
    if labels is None:
        return list(GroupKFold(k, shuffle=True, random_state=seed).split(rows, groups=codes))
    splitter = StratifiedGroupKFold(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # That a class has fewer rows than folds is no error: some folds then lack it.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return list(splitter.split(rows, np.unique(labels, return_inverse=True)[1], codes))
        except ValueError as exc:
            raise OptionError(f"kfold: k={k}: the folds cannot be stratified: {exc}") from exc
