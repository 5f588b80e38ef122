"""Ray Data and Ray Train; the only package that imports Ray, which `where` and `kfold` do when they are called."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from ray_h5.index import folds
from ray_h5.index.file_options import FileOptions
from ray_h5.options import takes_options_of
from ray_h5.predicates.criteria import as_criteria
from ray_h5.source import OptionsOfFolds
from ray_h5.storage.find_files import PathLike

if TYPE_CHECKING:
    from ray.data.expressions import Expr
    from typing_extensions import Unpack


def where(*unnamed: object, **criteria: Any) -> Expr:
    """Return the predicate that is true where all criteria hold, for ``Dataset.filter(expr=...)``.

    Parameters
    ----------
    **criteria
        Values to compare columns with, as described in `ray_h5.torch_data.where`.

    Returns
    -------
    ray.data.expressions.Expr
        Combine it with others by ``&``, ``|`` and ``~``.

    Raises
    ------
    PredicateError
        If there is no criterion, or a value that is not one.

    Notes
    -----
    Before ``map_batches`` Ray pushes the filter into the reading. After it Ray filters the blocks, and the same rows
    pass; `any_equal` then reads the column of the block. `row_mask` works only before ``map_batches``.

    Examples
    --------
    >>> ds.filter(expr=where(cs_label=True, epoch=between(10, 50)))  # doctest: +SKIP
    """
    from ray_h5.ray_data.ray_expressions import as_expr

    return reduce(and_, map(as_expr, as_criteria(criteria, unnamed)))


@takes_options_of(folds.kfold)
def kfold(
    paths: PathLike | Sequence[PathLike],
    k: int,
    group: str | None = None,
    stratify: str | None = None,
    seed: int = 0,
    *,
    hdf5_group: str = "/",
    **options: Unpack[OptionsOfFolds],
) -> list[tuple[Expr, Expr]]:
    """Return `k` pairs of predicates, for ``Dataset.filter(expr=...)``: the rows to train on, and those to validate on.

    Parameters
    ----------
    **options
        The options of `ray_h5.torch_data.kfold`.

    Raises
    ------
    OptionError
        If `group` has fewer values than there are folds, or there are fewer rows.
    """
    from ray_h5.ray_data.tasks import in_tasks

    files = FileOptions.of(paths, group=hdf5_group, **options)
    return folds.fold_predicates(files, k, group, stratify, seed, where, in_tasks)
