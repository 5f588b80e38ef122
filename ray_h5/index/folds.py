"""Splits for cross-validation. Rows with one value of a column stay together."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.errors import OptionError, PredicateError, SchemaMismatchError, UnknownColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.index.scan_files import Spread, read_ahead
from ray_h5.options import as_integer, require, takes_options_of
from ray_h5.predicates.comparisons import encode
from ray_h5.predicates.criteria import where
from ray_h5.predicates.virtual_names import Fold
from ray_h5.rows.row_view import EPISODE
from ray_h5.source import OptionsOfFolds, Source
from ray_h5.storage.find_files import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

_EPISODES = (
    f" {EPISODE!r} is a column of rows=Groups(...) and of windows=Windows(...): pass kfold the rows= and windows= of "
    "read_h5 or H5Dataset."
)

logger = logging.getLogger(__name__)


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
        If `group` has fewer values than folds, a value is missing, or there are fewer rows.
    SchemaMismatchError, PredicateError
        If files lack a column, or it holds an array a row.

    Examples
    --------
    >>> for train, valid in kfold("data/*.h5", 4, group="patient", stratify="label"):  # doctest: +SKIP
    ...     fit(H5Dataset("data/*.h5", predicate=train), H5Dataset("data/*.h5", predicate=valid))
    """
    files = FileOptions.of(paths, group=hdf5_group, **options)
    return fold_predicates(files, k, group, stratify, seed, where)


def fold_predicates(
    files: FileOptions,
    k: int,
    group: str | None,
    stratify: str | None,
    seed: int,
    where: Callable[..., Any],
    spread: Spread = read_ahead,
) -> list[tuple[Any, Any]]:
    """Return what `kfold` does, with the predicates that `where` makes; `spread` looks at the files."""
    for option, name in (("group", group), ("stratify", stratify)):
        require(name is None or isinstance(name, str), f"kfold: {option}", name, "the name of a column, or None")
    k, seed = _checked(k, seed)
    is_path = group == "path"
    if is_path:  # a column of a table is no matter
        with contextlib.suppress(UnknownColumnError):
            is_path = "path" not in files.index(["path"], spread).columns
    if group is None or is_path:
        # Whichever columns are read later: a file has one number of rows.
        index = files.index(None, spread) if stratify is None else _with(files, "stratify", [stratify], spread)
        folds = _of_rows(index, k, stratify, seed) if group is None else _of_files(index, k, stratify, seed)
        return [(where(rows=train), where(rows=test)) for train, test in folds]
    index = _with(files, "group", [group], spread)
    index = index if stratify is None else _with(files, "stratify", [group, stratify], spread)
    values = fold_values(index, k, group, stratify, seed)
    return [(where(**{group: train}), where(**{group: test})) for train, test in values]


def _of_files(index: RowIndex, k: int, stratify: str | None, seed: int) -> list[tuple[Fold, Fold]]:
    """Return folds of whole files. They list the files."""
    codes = index.files.files_of(index.kept)
    folds = _folds(index, codes, k, stratify, seed, f"there are only {len(np.unique(codes))} files with rows")
    drawn = (None, seed, 0, len(index.files), index.files.names_digest)
    return [
        (Fold(k, i, False, *drawn, tuple(train.tolist())), Fold(k, i, True, *drawn, tuple(test.tolist())))
        for i, (train, test) in enumerate(folds)
    ]


def _of_rows(index: RowIndex, k: int, stratify: str | None, seed: int) -> list[tuple[Fold, Fold]]:
    """Return folds that are drawn row by row. They hold how rows are drawn, and no list of them."""
    _, digest = index.fold_of_rows(k, stratify, seed)
    drawn = (stratify, seed, index.num_rows, len(index.files), digest)
    return [(Fold(k, i, False, *drawn), Fold(k, i, True, *drawn)) for i in range(k)]


def _checked(k: int, seed: int) -> tuple[int, int]:
    k, seed = as_integer("kfold: k", k, 2), as_integer("kfold: seed", seed, 0, instead=", below 2**32")
    require(seed < 2**32, "kfold: seed", seed, "an integer of 0 or more, below 2**32")  # the limit of scikit-learn
    return k, seed


def _with(files: FileOptions, option: str, columns: list[str], spread: Spread) -> RowIndex:
    """Return the index of some columns. The last one is that of the option; it has one value a row."""
    name, of_rows = columns[-1], files.source.names or ()  # which say the rows of a file of several lengths
    try:
        index = files.index([*dict.fromkeys([*of_rows, *columns])], spread)
    except SchemaMismatchError as exc:
        hint = _EPISODES if name == EPISODE else " A column of a table needs sidecar= here, too."
        raise type(exc)(f"kfold: {option}={name!r}: {exc}{hint * isinstance(exc, UnknownColumnError)}") from None
    spec = index.find([name])[name]
    if not spec.has_one_value or pa.types.is_nested(spec.kept_type):
        held = f"values of type {spec.kept_type}" if spec.has_one_value else f"an array of shape {spec.shown_shape}"
        field = f"; name a field, such as {f'{name}/{spec.dtype.names[0]}'!r}" if spec.dtype.names else ""
        raise PredicateError(
            f"kfold: {option}={name!r}: the column holds {held} a row; expected a column with one value a row, "
            f"such as a patient or a class{field}"
        )
    if option == "stratify" and spec.dtype.kind == "f":
        values = index.values([name])[name]
        different = pc.count_distinct(values).as_py()
        if 2 * different > len(values) > 1:  # measurements, and no classes
            logger.warning(
                "kfold: stratify=%r has %d different values in %d rows: no fold has a share of each. Name a column of "
                "classes, or leave stratify out.",
                name,
                different,
                len(values),
            )
    return index


def fold_values(
    index: RowIndex, k: int, group: str, stratify: str | None, seed: int
) -> list[tuple[list[Any], list[Any]]]:
    """Return for each of `k` folds the values of the column `group` to train on and those to validate on."""
    k, seed = _checked(k, seed)
    column = index.values([group])[group].take(pa.array(index.kept))
    if absent := pc.sum(column.is_null(nan_is_null=True)).as_py():
        raise OptionError(f"kfold: {absent} rows have no {group!r}")
    values, codes = _encoded(column.combine_chunks(), group)
    folds = _folds(index, codes, k, stratify, seed, f"the column {group!r} has only {len(values)} different values")
    return [([values[i] for i in train], [values[i] for i in test]) for train, test in folds]


def _folds(
    index: RowIndex, codes: np.ndarray, k: int, stratify: str | None, seed: int, few: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each fold the codes to train on, and those to validate on; `few` says it if these are too few."""
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    if len(np.unique(codes)) < k:
        raise OptionError(f"kfold: k={k}: {few}")
    labels = None if stratify is None else _classes(index.values([stratify])[stratify].take(pa.array(index.kept)))
    splits: Iterable[tuple[np.ndarray, np.ndarray]]
    rows = np.zeros(len(codes))
    if labels is None:
        splits = GroupKFold(k, shuffle=True, random_state=seed).split(rows, groups=codes)
    else:
        with warnings.catch_warnings():
            # A class with fewer rows than folds is no error: some folds lack it.
            warnings.simplefilter("ignore", UserWarning)
            try:
                splits = list(StratifiedGroupKFold(k, shuffle=True, random_state=seed).split(rows, labels, codes))
            except ValueError as exc:
                raise OptionError(f"kfold: k={k}: the folds cannot be stratified: {exc}") from exc
    folds = [(np.unique(codes[train]), np.unique(codes[test])) for train, test in splits]
    if not all(len(test) for _, test in folds):
        raise OptionError(f"kfold: k={k}: {few}, too few for {k} folds with equal shares of {stratify!r}")
    return folds


def _classes(column: pa.ChunkedArray) -> np.ndarray:
    """Return the number of the class of each row, in the order of values; rows without a value are a class, too."""
    values = column.combine_chunks()
    has_value = values.is_valid().to_numpy(zero_copy_only=False)
    numbers = np.unique(values.drop_null().to_numpy(zero_copy_only=False), return_inverse=True)[1]
    codes = np.full(len(values), numbers.max(initial=-1) + 1)
    codes[has_value] = numbers
    return codes


def _encoded(column: pa.Array, name: str) -> tuple[list[Any], np.ndarray]:
    """Return the different values of a column, and the number of the value of each row."""
    try:
        encoded = encode(column)
    except pa.ArrowNotImplementedError as exc:
        raise OptionError(f"kfold: group={name!r}: values of type {column.type} cannot be compared") from exc
    dictionary = encoded.dictionary
    # Python's times have no nanoseconds.
    is_time = pa.types.is_temporal(dictionary.type)
    values = list(dictionary.to_numpy(zero_copy_only=False)) if is_time else dictionary.to_pylist()
    return values, encoded.indices.to_numpy()
