"""Which columns without offsets have a value for each step of an episode, and which are constants of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ray_h5.columns.row_table import RowTable
from ray_h5.columns.varying.bounds import rows_key
from ray_h5.errors import OptionError
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray
from ray_h5.messages import few
from ray_h5.rows.windows import Windows


def is_single(joined: JoinedArray) -> bool:
    """Return whether each group has a single value of a column."""
    return joined.single or not joined.shapes.shape[1]


def fits_steps(table: RowTable, name: str, windows: Windows) -> np.ndarray:
    """Return for each group whether a column has as many entries as a column with offsets; bool."""
    groups = table.groups
    assert groups is not None
    joined = groups.columns[name]
    if is_single(joined):
        return np.zeros(len(groups), bool)
    sources = {each.source for each in windows.columns}
    same = [joined.lengths == _entries(table, source) for source in sources]
    return np.asarray(np.any(same, axis=0) & joined.is_there)


def _entries(table: RowTable, name: str) -> np.ndarray:
    """Return how many entries a column has in each group."""
    assert table.groups is not None
    rows = table.bounds.get(rows_key(name))
    return table.groups.columns[name].lengths if rows is None else rows.stops - rows.starts


def constants_over_all(
    paths: Sequence[str], tables: Sequence[RowTable | None], names: Iterable[str], windows: Windows
) -> list[str]:
    """Return the columns without offsets that are constants, though they look like steps in some file.

    Raises
    ------
    OptionError
        If the lengths in all files do not say what a column is.
    """
    known_of = [
        (path, table, table.groups) for path, table in zip(paths, tables, strict=True) if table and table.groups
    ]
    offsets = (name for each in windows.columns for name in (each.name, each.source))
    known = {*windows.per_step, *windows.constants, *offsets}
    constants, unclear = [], []
    for name in names:
        is_known = name in known or any(rows_key(name) in table.bounds for _, table, _ in known_of)
        there = [] if is_known else [each for each in known_of if name in each[2].columns]
        fits = [fits_steps(table, name, windows)[groups.columns[name].is_there] for _, table, groups in there]
        found = np.concatenate([*fits, np.empty(0, bool)])
        if not found.any():
            continue
        entries = np.concatenate([each.columns[name].lengths[each.columns[name].is_there] for _, _, each in there])
        is_fixed = (entries == entries[0]).all()
        if found.all() and is_fixed:
            unclear.append((name, int(entries[0])))
        elif is_fixed:
            constants += [name] if any(each.all() for each in fits) else []
        elif not found.all():
            raise _mixed(name, there, windows)
    if unclear:
        name, count = unclear[0]
        listed = [each for each, _ in unclear]
        raise OptionError(
            f"Windows: column {name!r} has no offsets, and {count} entries in each group, as episodes have steps: it "
            "may have a value for each step, or be a constant of the episode. Pass "
            f"Windows(..., per_step={listed}), or constants=[...] with those that are constants; or read episodes of "
            f"several lengths. Found in {few(paths)}."
        )
    return constants


def _mixed(name: str, there: Sequence[tuple[str, RowTable, GroupTable]], windows: Windows) -> OptionError:
    """Return the error for a column whose lengths vary, and fit the steps of some groups alone."""
    shown = {}
    for path, table, groups in there:
        for fits in (True, False):
            at = np.flatnonzero((fits_steps(table, name, windows) == fits) & groups.columns[name].is_there)
            if len(at) and fits not in shown:
                steps = _entries(table, windows.columns[0].source)[at[0]]
                entries = groups.columns[name].lengths[at[0]]
                shown[fits] = f"{entries} entries for {steps} steps in {groups.names[int(at[0])]!r} of {path}"
    return OptionError(
        f"Windows: column {name!r} has no offsets, and lengths that vary: {shown[True]}, and {shown[False]}. Pass "
        f"Windows(..., constants=[{name!r}]) if it is a constant of each episode. If it has a value for each step, its "
        "lengths are wrong: leave it out by columns=[...], or choose other groups with the pattern."
    )
