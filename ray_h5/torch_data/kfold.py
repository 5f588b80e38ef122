"""Folds of cross-validation as predicates of plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from ray_h5.planning.files import FileOptions
from ray_h5.planning.kfold import fold_predicates
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike
from ray_h5.planning.predicates.criteria import where


def kfold(
    paths: PathLike | Sequence[PathLike],
    k: int,
    group: str = "guid",
    stratify: str | None = "cs_label",
    seed: int = 0,
    *,
    hdf5_group: str = "/",
    dtypes: Mapping[str, object] | None = None,
    allow_external: PathLike | Sequence[PathLike] = (),
    index_dir: PathLike | None = None,
    filesystem: object = None,
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
    dtypes, allow_external, index_dir, filesystem, file_extensions, ignore_missing_paths
        As for `H5Dataset`.

    Raises
    ------
    OptionError
        If there are fewer groups than folds, or `group` is no name.

    Examples
    --------
    >>> for train, valid in kfold("data/*.h5", 4):  # doctest: +SKIP
    ...     fit(H5Dataset("data/*.h5", predicate=train), H5Dataset("data/*.h5", predicate=valid))
    """
    files = FileOptions.of(
        paths,
        group=hdf5_group,
        dtypes=dtypes,
        allow_external=allow_external,
        index_dir=index_dir,
        filesystem=filesystem,
        file_extensions=file_extensions,
        ignore_missing_paths=ignore_missing_paths,
    )
    return fold_predicates(files, k, group, stratify, seed, where)
