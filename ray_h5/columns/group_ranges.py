"""Rows of varying length in many groups: where they are in the values of all groups, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ray_h5.columns.bounds import Bounds, bounds_in, check_bounds
from ray_h5.columns.user_columns import Ragged
from ray_h5.columns.values import Values, read_units
from ray_h5.errors import SchemaMismatchError
from ray_h5.manifest.joined_arrays import Paths, Segments
from ray_h5.read.reader import RowReader


def ragged_in_groups(
    reader: RowReader,
    made: Ragged,
    content: Segments,
    datasets: Mapping[str, tuple[Segments, Values]],
    groups: Paths,
) -> tuple[Bounds, Bounds]:
    """Return where the rows of all groups begin and end in the units of `content`, and which rows each group has.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : Ragged
        The column.
    content : Segments
        The values of rows.
    datasets : mapping of str to (Segments, Values)
        The datasets that say where rows begin and end, by option of `ragged`.
    groups : Paths
        The names of groups.

    Raises
    ------
    CorruptFileError, SchemaMismatchError
        If they are no bounds of rows in each group.
    """
    read = {}
    for option, (segments, values) in {**datasets, made.content: (content, None)}.items():
        if not segments.is_there.all():
            lacking = groups[int(np.argmin(segments.is_there))]
            raise SchemaMismatchError(
                f"{reader.path}: group {lacking!r} lacks {made.given.get(option, option)!r} of column {made.name!r}. "
                "Choose groups that have it with the pattern, or leave the column out."
            )
        if values is not None:
            read[option] = segments, read_units(reader, values, int(segments.starts[-1]))
    found = []
    for group, (first, length) in enumerate(zip(content.starts.tolist(), content.lengths.tolist(), strict=False)):
        own = {option: values[of.starts[group] : of.starts[group + 1]] for option, (of, values) in read.items()}
        path = f"{reader.path}: group {groups[group]!r}"
        bounds = bounds_in(own, made, f"{path}: column {made.name!r}, {' and '.join(map(repr, made.given.values()))}")
        check_bounds(bounds, made, length, path)
        found.append(Bounds(bounds.starts + first, bounds.stops + first))
    ends = np.cumsum(np.array([len(each) for each in found], np.int64))
    nothing = np.empty(0, np.int64)
    starts, stops = (np.concatenate([nothing, *parts]) for parts in
                     ([each.starts for each in found], [each.stops for each in found]))  # fmt: skip
    return Bounds(starts, stops), Bounds(np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)], ends)


def rows_key(name: str) -> str:
    """Return the key of the rows that each group has of a column, among the bounds of a file."""
    return f"rows of {name}"
