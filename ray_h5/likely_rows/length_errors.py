"""What to do with columns whose first axes differ in length: the text of an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ray_h5.errors import SchemaMismatchError
from ray_h5.likely_rows.alike import pattern_of
from ray_h5.likely_rows.suggestions import suggestions
from ray_h5.likely_rows.tree import FileTree, Seen, integer_fields
from ray_h5.messages import few, near_names
from ray_h5.options import ADDED_BY

if TYPE_CHECKING:
    from ray_h5.manifest.file_state import SourceStates

_MAX_LISTED = 10
_FEW_LISTED = 3
_MAX_COPIED = 20

_LEAST_GROUPS = 3
"""This many groups with one column may be samples; two, such as obs and next_obs, are more often parts of one."""

HasRows: TypeAlias = Any
"""A column with rows: it has `shape` and `dtype`."""


def error_of_lengths(
    path: str,
    columns: Mapping[str, HasRows],
    lengths: Mapping[int, Sequence[str]],
    of_matlab: Callable[[], bool],
    sources: Mapping[str, SourceStates] | None = None,
) -> SchemaMismatchError:
    """Return the error of columns of several lengths, by their lengths; `sources` as for `common_rows`."""
    if not lengths:
        return SchemaMismatchError(
            f"{path}: found no column; is group= the group that holds the datasets? If each dataset is a sample, such "
            "as an image with a name, pass rows=ray_h5.Groups('*'); if each file is one, rows=ray_h5.Files()."
        )
    seen = {
        name: Seen(str(column.dtype), tuple(column.shape), integer_fields(column.dtype))
        for name, column in columns.items()
    }
    most = _FEW_LISTED if len(lengths) > _MAX_LISTED else _MAX_LISTED  # many samples have lengths of their own
    listed = [f"  {n} rows: {_to_copy(names)}" for n, names in sorted(lengths.items())]
    if len(listed) > most:
        listed[most:] = [f"  and {len(listed) - most} more lengths"]
    hint_of_sparse = (
        "These are parts of a sparse matrix: choose the group above with group=, and name this one with "
        "columns=[ray_h5.csr(...)]."
    )
    hints = [
        "Choose columns of one length, as in one of these lines, or a group that holds only those with group=.",
        hint_of_sparse if {"data", "indices", "indptr"} <= {*columns} else "",
        *(f"{_to_copy(names)}: from {few(list(paths))}." for paths, names in _by_file(columns, sources).items()),
    ]
    message = f"{path}: expected columns with one common first axis, found {len(lengths)} lengths:"
    error = SchemaMismatchError("\n".join([message, *listed, *filter(None, hints)]))
    error.suggestions = tuple(suggestions(FileTree(seen, of_matlab=of_matlab())))
    return error


def _by_file(
    columns: Mapping[str, HasRows], sources: Mapping[str, SourceStates] | None
) -> dict[tuple[str, ...], list[str]]:
    """Return the columns that come from other files, by these."""
    names_by_paths: dict[tuple[str, ...], list[str]] = {}
    for name, column in columns.items():
        states = getattr(column, "sources", ()) if sources is None else sources.get(name, ())
        if paths := tuple(path for path, _ in states):
            names_by_paths.setdefault(paths, []).append(name)
    return names_by_paths


def _to_copy(names: Sequence[str]) -> str:
    """Return the argument that reads these columns; of many, only their names are listed."""
    return f"columns={list(names)!r}" if len(names) <= _MAX_COPIED else few(names)


def groups_with(name: str, columns: Iterable[str]) -> list[str]:
    """Return the groups of one parent that have a column `name`; none if they are too few to be alike."""
    ending = f"/{name}"
    parents: dict[str, list[str]] = {}
    for group in (column[: -len(ending)] for column in columns if column.endswith(ending)):
        parents.setdefault(group.rpartition("/")[0], []).append(group)
    groups = max(parents.values(), key=len, default=[])
    return groups if len(groups) >= _LEAST_GROUPS else []


def hint_of(name: str, columns: Sequence[str], attributes: Sequence[str]) -> str:
    """Return sentences about a column that is not there: near names; an option that adds it; groups that have it."""
    near = near_names(name, columns)
    if name in attributes:
        return f"{near} {name!r} is an attribute: pass attrs=[{name!r}]."
    if (option := ADDED_BY.get(name)) is not None:
        return f"{near} {option}=True adds this column: pass it, and leave {name!r} out of columns=[...]."
    if not (groups := groups_with(name, columns)):
        return near
    return (
        f"{near} The groups {few(groups, _FEW_LISTED)} have it: if each is a sample or an episode, pass "
        f"rows=ray_h5.Groups({pattern_of(groups)!r}); for one of them alone, group={groups[0]!r}."
    )
