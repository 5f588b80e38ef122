"""Folds of cross-validation as predicates of plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from ray_h5.planning.criteria import where
from ray_h5.planning.facts import Scope
from ray_h5.planning.folds import fold_groups, index_for
from ray_h5.planning.index import build_index
from ray_h5.planning.lookup import Lookup
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike, expand_paths


def kfold(
    paths: PathLike | Sequence[PathLike],
    k: int,
    group: str = "guid",
    stratify: str | None = "cs_label",
    seed: int = 0,
    *,
    hdf5_group: str = "/",
    allow_external: PathLike | Sequence[PathLike] = (),
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
) -> list[tuple[pc.Expression, pc.Expression]]:
    """Return `k` pairs of predicates: what to train on, and what to validate on.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        As for `H5Dataset`.
    k : int
        Folds.
    group : str
        A column; rows of one value, such as those of one patient, are never split.
    stratify : str, optional
        A column whose values each fold has in about the same shares.
    seed : int
        Draws the folds, the same as ``ray_h5.kfold`` does.
    hdf5_group : str
        The group of the files that column names are relative to.
    allow_external, file_extensions, ignore_missing_paths
        As for `H5Dataset`.

    Raises
    ------
    OptionError
        If there are fewer groups than folds.

    Examples
    --------
    >>> for train, valid in kfold("data/*.h5", 4):  # doctest: +SKIP
    ...     fit(H5Dataset("data/*.h5", predicate=train), H5Dataset("data/*.h5", predicate=valid))
    """
    lookup = Lookup(Scope.of(hdf5_group, allow_external))
    files = expand_paths(paths, file_extensions, ignore_missing_paths)
    index = index_for(lambda names: build_index(files, names, lookup), group, stratify)
    folds = fold_groups(index, k, group, stratify, seed)
    return [(where(**{group: train}), where(**{group: test})) for train, test in folds]
