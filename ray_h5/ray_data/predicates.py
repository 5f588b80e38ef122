"""Predicates as expressions of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.data.expressions import Expr, col

from ray_h5.planning.criteria import build_where
from ray_h5.planning.files import Files
from ray_h5.planning.folds import fold_predicates
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike
from ray_h5.ray_data.tasks import in_tasks


class RayFields:
    """Builds expressions of Ray."""

    def column(self, name: str) -> Expr:
        return col(name)

    def is_in(self, value: Expr, values: list[Any]) -> Expr:
        return value.is_in(values)

    def is_null(self, name: str) -> Expr:
        return col(name).is_null()


def where(**criteria: Any) -> Expr:
    """Return the predicate that all criteria hold, for ``Dataset.filter(expr=...)``.

    Parameters
    ----------
    **criteria
        What to compare columns with, as for `ray_h5.torch_data.where`, which says how.

    Returns
    -------
    ray.data.expressions.Expr
        It can be combined with others by ``&``, ``|`` and ``~``.

    Raises
    ------
    PredicateError
        If there is no criterion, or one of another kind.

    Notes
    -----
    `any_equal` and `row_mask` work where Ray pushes the filter into the reading: before ``map_batches``, not behind it.

    Examples
    --------
    >>> ds.filter(expr=where(cs_label=True, epoch=between(10, 50)))  # doctest: +SKIP
    """
    return build_where(criteria, RayFields())


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
) -> list[tuple[Expr, Expr]]:
    """Return `k` pairs of predicates: what to train on, and what to validate on.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        As for `read_h5`.
    k : int
        Folds.
    group : str
        A column; rows of one value, such as those of one patient, are never split.
    stratify : str, optional
        A column whose values each fold has in about the same shares.
    seed : int
        Draws the folds.
    hdf5_group : str
        The group of the files that column names are relative to.
    dtypes, allow_external, index_dir, filesystem, file_extensions, ignore_missing_paths
        As for `read_h5`.

    Raises
    ------
    OptionError
        If there are fewer groups than folds, or `group` is no name.
    """
    files = Files.of(
        paths, hdf5_group, dtypes, allow_external, index_dir, filesystem, file_extensions, ignore_missing_paths
    )
    return fold_predicates(files, k, group, stratify, seed, RayFields(), in_tasks)
