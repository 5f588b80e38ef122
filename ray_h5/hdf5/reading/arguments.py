"""Checks of the arguments of `RowReader`: rows, names of columns, output arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ray_h5.errors import OptionError, RowIndexError, SchemaMismatchError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.file_formats import is_of_matlab
from ray_h5.hdf5.reading.coalesce import Request, RowRange, request_of
from ray_h5.messages import common_pattern, few

Rows = slice | Sequence[int] | np.ndarray


_MAX_LISTED = 10
_FEW_LISTED = 3


_MAX_COPIED = 20

_MAX_DEPTH = 8
"""Depth to which groups are compared for the hint about groups with the same columns."""

_LEAST_GROUPS = 3
"""This many groups with one column may be samples; two, such as obs and next_obs, are more often parts of one."""


_MATLAB = (
    "MATLAB wrote this file, and its axes are reversed in HDF5: the last one is the row axis here. Pass "
    "axes='reversed' to read rows as MATLAB has them."
)


def as_rows(rows: Rows, num_rows: int, where: str) -> np.ndarray:
    """Return `rows` as an int64 array of row numbers, each checked to be below `num_rows`."""
    if isinstance(rows, slice):
        return np.arange(*_indices(rows, num_rows), dtype=np.int64)
    wanted = _one_axis("rows", rows, "iub", "a slice or a 1-d array of int or bool")
    if wanted.dtype.kind == "b":
        if len(wanted) != num_rows:
            raise RowIndexError(f"{where}: expected a mask of {num_rows} rows, found one of {len(wanted)}")
        return np.flatnonzero(wanted)
    # Checked before the cast: a number that int64 cannot hold would become another row.
    outside = (wanted < 0) | (wanted >= num_rows)
    if outside.any():
        numbers = f" (0 to {num_rows - 1})" if num_rows else ""
        raise RowIndexError(f"{where}: row {wanted[outside][0]} is not among its {num_rows} rows{numbers}")
    return wanted.astype(np.int64)


def as_request(rows: Rows, num_rows: int, where: str) -> Request:
    """Return a request for `rows`; errors as in `as_rows`."""
    if isinstance(rows, slice):
        start, stop, step = _indices(rows, num_rows)
        if step == 1:
            return RowRange(start, 0, max(0, stop - start))
    return request_of(as_rows(rows, num_rows, where))


def _indices(rows: slice, num_rows: int) -> tuple[int, int, int]:
    try:
        return rows.indices(num_rows)
    except (TypeError, ValueError) as exc:
        raise OptionError(f"rows={rows}: expected a slice of integers, of a step other than 0") from exc


def _one_axis(option: str, given: Any, kinds: str, expected: str) -> np.ndarray:
    try:
        found = np.asarray(given)
    except ValueError as exc:
        raise OptionError(f"{option}: expected {expected}, found lists of several lengths") from exc
    if found.ndim != 1 or (found.size and found.dtype.kind not in kinds):
        raise OptionError(f"{option}: expected {expected}, found {found.dtype} {found.shape}")
    return found


def as_places(places: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return `places` as an int64 array. Numbers that int64 cannot hold become negative; `check_fit` refuses them."""
    return _one_axis("places", places, "iu", "a 1-d array of int").astype(np.int64, copy=False)


def as_names(columns: Any, option: str = "columns") -> list[str]:
    """Return the names of columns that a user gave as `option`; a single string is an error."""
    if isinstance(columns, str):
        raise OptionError(f"{option}={columns!r}: expected a list of names, found one; write {option}=[{columns!r}]")
    names = list(columns) if isinstance(columns, Iterable) else [columns]
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"{option}: expected a list of names, such as 'signal' or 'obs/image', found {name!r}")
    return names


def check_fit(array: np.ndarray, layout: ColumnLayout, count: int, places: np.ndarray | None, where: str) -> None:
    """Raise `OptionError` unless `count` rows of a column fit into `places` of `array`."""
    if not isinstance(array, np.ndarray):
        raise OptionError(f"{where}: expected a numpy array to read into, found a {type(array).__name__}")
    last = count - 1 if places is None else int(places.max(initial=-1))
    if array.shape[1:] != layout.row_shape or array.ndim == 0 or last >= len(array):
        raise OptionError(
            f"{where}: expected an array of {last + 1} or more rows of shape {layout.row_shape}, found {array.shape}"
        )
    if not array.flags.writeable:
        raise OptionError(f"{where}: expected an array to read into, found one that cannot be written to; copy it")
    if places is not None and (len(places) != count or places.min(initial=0) < 0):
        raise OptionError(f"{where}: expected {count} places from 0 on, found {len(places)}: {places[:3]} ...")


class HasRows(Protocol):
    """A column with a number of rows."""

    @property
    def num_rows(self) -> int: ...


def common_rows(path: str, columns: Mapping[str, HasRows], head: Callable[[], bytes] | None = None) -> int:
    """Return the length of the first axis of `columns`, of the file at `path`.

    `head` returns the beginning of a file that cannot be opened by its path.

    Raises
    ------
    SchemaMismatchError
        If there are no columns, or columns of several lengths; the message lists them.
    """
    lengths: dict[int, list[str]] = {}
    for name, column in columns.items():
        lengths.setdefault(column.num_rows, []).append(name)
    if len(lengths) == 1:
        return next(iter(lengths))
    if not lengths:
        raise SchemaMismatchError(f"{path}: found no column; is group= the group that holds the datasets?")
    listed = [f"  {n} rows: {_to_copy(names)}" for n, names in sorted(lengths.items())]
    groups, have_rows = _like_groups(columns)
    most = _FEW_LISTED if groups else _MAX_LISTED  # of samples that are groups, each may have a length of its own
    if len(listed) > most:
        listed[most:] = [f"  and {len(listed) - most} more lengths"]
    hints = [
        "Choose columns of one length, as in one of these lines, or a group that holds only those with group=.",
        _hint_of_sparse(columns),
        _hint_of_like_groups(groups, have_rows),
        _MATLAB if is_of_matlab(path, None if head is None else head()) else "",
    ]
    found = f"{path}: expected columns with one common first axis, found {len(lengths)} lengths:"
    raise SchemaMismatchError("\n".join([found, *listed, *filter(None, hints)]))


def _to_copy(names: Sequence[str]) -> str:
    """Return the argument that reads these columns; of many, only their names are listed."""
    return f"columns={list(names)!r}" if len(names) <= _MAX_COPIED else few(names)


def _hint_of_sparse(columns: Iterable[str]) -> str:
    """Return a sentence about groups that hold a sparse matrix; empty if there are none."""
    names = set(columns)
    ends = [name.removesuffix("/indptr") for name in names if name.endswith("/indptr")]
    groups = sorted(each for each in ends if {f"{each}/data", f"{each}/indices"} <= names)
    if not groups:
        is_inside = {"data", "indices", "indptr"} <= names
        return (
            "These are parts of a sparse matrix: choose the group above with group=, and name this one with "
            "columns=[ray_h5.csr(...)]."
            if is_inside
            else ""
        )
    return (
        f"{few(list(map(repr, groups)), _FEW_LISTED)} holds a sparse matrix, whose rows are a column: "
        f"columns=[ray_h5.csr({groups[0]!r}), ...]."
    )


def _hint_of_like_groups(groups: Sequence[str], have_rows: bool) -> str:
    if not groups:
        return ""
    hint = (
        f"The groups {few(groups, _FEW_LISTED)} have the same columns. If each is a sample or an episode, pass "
        f"rows=ray_h5.Groups({common_pattern(groups)!r})."
    )
    if not have_rows:
        return hint
    return (
        f"{hint} If each has rows of its own, read each by itself, as with group={groups[0]!r}, and join them: "
        "ds.union(...) of what read_h5 returns, ConcatDataset for H5Dataset."
    )


def hint_of_groups_with(name: str, columns: Iterable[str]) -> str:
    """Return a sentence about groups of one parent that have a column `name`; empty if there are none."""
    ending = f"/{name}"
    parents: dict[str, list[str]] = {}
    for group in (each[: -len(ending)] for each in columns if each.endswith(ending)):
        parents.setdefault(group.rpartition("/")[0], []).append(group)
    groups = max(parents.values(), key=len, default=[])
    if len(groups) < _LEAST_GROUPS:
        return ""
    return (
        f" The groups {few(groups, _FEW_LISTED)} have it: if each is a sample or an episode, pass "
        f"rows=ray_h5.Groups({common_pattern(groups)!r})."
    )


def _like_groups(columns: Mapping[str, HasRows]) -> tuple[list[str], bool]:
    """Return groups of one parent with the same columns, of other lengths in each; and if a group has one length."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, column in columns.items():
        parts = name.split("/", _MAX_DEPTH)
        for depth in range(1, len(parts)):
            parent, group, rest = ("/".join(each) for each in (parts[: depth - 1], parts[:depth], parts[depth:]))
            found.setdefault(parent, {}).setdefault(group, {})[rest] = column.num_rows
    for parent in sorted(found, key=lambda name: (bool(name), name.count("/"))):
        alike: dict[frozenset[str], dict[str, dict[str, int]]] = {}
        for group, rows in found[parent].items():
            alike.setdefault(frozenset(rows), {})[group] = rows
        groups = max(alike.values(), key=len, default={})
        if any(rows != next(iter(groups.values())) for rows in groups.values()):
            return list(groups), all(len(set(rows.values())) == 1 for rows in groups.values())
    return [], False
