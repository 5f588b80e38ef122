"""Which columns without offsets have a value for each step of an episode, and which are constants of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ray_h5.columns.columns import is_single
from ray_h5.columns.ragged.bounds import rows_key
from ray_h5.columns.row_table import RowTable
from ray_h5.errors import OptionError
from ray_h5.rows.windows import Windows


def has_steps(name: str, files: Iterable[tuple[str, RowTable]], windows: Windows) -> bool:
    """Return whether a column without offsets has a value for each step of the groups of files, as its lengths say.

    Raises
    ------
    OptionError
        If it is as long as some episodes alone.
    """
    if name in windows.constants or name in windows.per_step:
        return name in windows.per_step
    first: dict[bool, tuple[str, RowTable, int]] = {}
    for path, table in files:
        assert table.groups is not None
        joined = table.groups.columns[name]
        same = [joined.lengths == _entries(table, column) for column in {column.source for column in windows.columns}]
        fits = np.any(same, axis=0) & (not is_single(joined))
        for answer in (True, False):
            at = np.flatnonzero((fits == answer) & joined.is_there)
            if len(at):
                first.setdefault(answer, (path, table, int(at[0])))
    if len(first) > 1:
        shown = {answer: _shown(name, *episode, windows) for answer, episode in first.items()}
        raise OptionError(
            f"Windows: column {name!r} has no offsets, and is as long as some episodes alone: {shown[True]}, and "
            f"{shown[False]}. Pass Windows(..., constants=[{name!r}]) if it is a constant of each episode, or "
            f"per_step=[{name!r}] if it has a value for each step. If some lengths are wrong, leave it out by "
            "columns=[...], or choose other groups with the pattern."
        )
    return first.keys() == {True}


def _entries(table: RowTable, name: str) -> np.ndarray:
    """Return how many entries a column has in each group."""
    assert table.groups is not None
    rows = table.bounds.get(rows_key(name))
    return table.groups.columns[name].lengths if rows is None else rows.stops - rows.starts


def _shown(name: str, path: str, table: RowTable, group: int, windows: Windows) -> str:
    assert table.groups is not None
    counts = (int(_entries(table, column)[group]) for column in (name, windows.columns[0].source))
    where = f"{table.groups.names[group]!r} of {path}" if table.groups.names[group] else path
    return "{} entries for {} steps in {}".format(*counts, where)


def check_steps(
    paths: Sequence[str], tables: Sequence[RowTable | None], names: Iterable[str], windows: Windows
) -> None:
    """Raise `OptionError` for a column without offsets that has steps in some files, and is a constant in others."""
    files = [(path, table) for path, table in zip(paths, tables, strict=True) if table and table.groups]
    offsets = {name for column in windows.columns for name in (column.name, column.source)}
    for name in dict.fromkeys(names):
        there = [file for file in files if name not in offsets and rows_key(name) not in file[1].bounds]
        has_steps(name, [(p, t) for p, t in there if t.groups is not None and name in t.groups.columns], windows)
