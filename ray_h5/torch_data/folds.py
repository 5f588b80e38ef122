"""Folds of cross-validation, as predicates for plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ray_h5.index.file_options import FileOptions
from ray_h5.index.folds import fold_predicates
from ray_h5.options import takes_options_of
from ray_h5.predicates.criteria import where
from ray_h5.source import OptionsOfFolds, Source
from ray_h5.storage.find_files import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options_of(Source)
def kfold(
    paths: PathLike | Sequence[PathLike],
    k: int,
    group: str | None = None,
    stratify: str | None = None,
    seed: int = 0,
    *,
    hdf5_group: str = "/",
    **options: Unpack[OptionsOfFolds],
) -> list[tuple[pc.Expression, pc.Expression]]:
    """Return `k` pairs of predicates: the rows to train on, and those to validate on.

    Parameters
    ----------
    k : int
        Folds.
    group : str, optional
        A column. Rows with the same value, such as those of one patient, are in the same fold. None draws each row
        alone: rows that resemble each other are then in training and in validation. ``"episode"`` keeps the rows of an
        episode together, with `rows` or `windows`; ``"path"`` those of a file.
    stratify : str, optional
        A column whose values occur in each fold in about the same proportions.
    seed : int
        Seed of the folds, which are the same as those of ``ray_h5.kfold``.
    hdf5_group : str
        The HDF5 group that names are relative to.
    **options
        The options of `ray_h5.source.Source`.

    Raises
    ------
    OptionError
        If `group` has fewer values than folds, or there are fewer rows.

    Examples
    --------
    >>> for train, valid in kfold("data/*.h5", 4, group="patient", stratify="label"):  # doctest: +SKIP
    ...     fit(H5Dataset("data/*.h5", predicate=train), H5Dataset("data/*.h5", predicate=valid))
    """
    files = FileOptions.of(paths, group=hdf5_group, **options)
    return fold_predicates(files, k, group, stratify, seed, where)
