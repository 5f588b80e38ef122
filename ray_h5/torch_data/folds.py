"""Folds of cross-validation, as predicates for plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow.compute as pc

from ray_h5.hdf5.reading.casting import Casting
from ray_h5.planning.files import FileOptions
from ray_h5.planning.kfold import fold_predicates
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike
from ray_h5.planning.predicates.criteria import where
from ray_h5.planning.rows.kinds import RowKind
from ray_h5.planning.rows.windows import Windows
from ray_h5.planning.tables.sidecar import Sidecar


def kfold(
    paths: PathLike | Sequence[PathLike],
    k: int,
    group: str | None = None,
    stratify: str | None = None,
    seed: int = 0,
    *,
    hdf5_group: str = "/",
    rows: RowKind | None = None,
    windows: Windows | None = None,
    sidecar: Sidecar | Sequence[Sidecar] | None = None,
    attrs: Sequence[str] | Mapping[str, str] = (),
    decode_cf: bool = False,
    axes: Literal["stored", "reversed"] = "stored",
    dtypes: Mapping[str, object] | None = None,
    casting: Casting = "checked",
    allow_external: PathLike | Sequence[PathLike] = (),
    index_dir: PathLike | None = None,
    filesystem: object = None,
    storage_options: Mapping[str, object] | None = None,
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
) -> list[tuple[pc.Expression, pc.Expression]]:
    """Return `k` pairs of predicates: the rows to train on, and those to validate on.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        As for `H5Dataset`.
    k : int
        Folds.
    group : str, optional
        A column. Rows with the same value, such as those of one patient, are in the same fold. None draws each row
        alone: rows that resemble each other are then in training and in validation.
    stratify : str, optional
        A column whose values occur in each fold in about the same proportions.
    seed : int
        Seed of the folds, which are the same as those of ``ray_h5.kfold``.
    hdf5_group : str
        The group of the files that column names are relative to.
    rows, windows
        What a row is, as for `read_h5`. ``group="episode"`` then keeps the windows of an episode together.
    sidecar, attrs, decode_cf, axes, dtypes, casting, allow_external, index_dir, filesystem, storage_options,
    file_extensions, ignore_missing_paths
        As for `H5Dataset`.

    Raises
    ------
    OptionError
        If `group` has fewer values than folds, or there are fewer rows.

    Examples
    --------
    >>> for train, valid in kfold("data/*.h5", 4, group="patient", stratify="label"):  # doctest: +SKIP
    ...     fit(H5Dataset("data/*.h5", predicate=train), H5Dataset("data/*.h5", predicate=valid))
    """
    files = FileOptions.of(
        paths,
        group=hdf5_group,
        rows=rows,
        windows=windows,
        sidecar=sidecar,
        attrs=attrs,
        decode_cf=decode_cf,
        axes=axes,
        dtypes=dtypes,
        casting=casting,
        allow_external=allow_external,
        index_dir=index_dir,
        filesystem=filesystem,
        storage_options=storage_options,
        file_extensions=file_extensions,
        ignore_missing_paths=ignore_missing_paths,
    )
    return fold_predicates(files, k, group, stratify, seed, where)
