"""Rows of varying length in many groups: where they are in the values of all groups, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ray_h5.columns.made_columns import Csr, Ragged
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Values, read_units
from ray_h5.columns.varying.bounds import Bounds, bounds_in, check_bounds, rows_key
from ray_h5.columns.varying.csr_groups import check_entries, check_types, checked_encoding, taken_positions, width_of
from ray_h5.columns.varying.range_columns import SparseRows
from ray_h5.errors import SchemaMismatchError
from ray_h5.manifest.joined_arrays import JoinedArray, Paths
from ray_h5.read.reader import RowReader


def ragged_in_groups(
    reader: RowReader,
    made: Ragged,
    content: JoinedArray,
    datasets: Mapping[str, tuple[JoinedArray, Values | None]],
    groups: Paths,
    check: Callable[[Bounds, int, int], None] | None = None,
) -> tuple[Bounds, Bounds]:
    """Return where the rows of all groups begin and end in the units of `content`, and which rows each group has.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : Ragged
        The column.
    content : JoinedArray
        The values of rows.
    datasets : mapping of str to (JoinedArray, Values)
        The datasets that say where rows begin and end, by option of `ragged`.
    groups : Paths
        The names of groups.
    check : callable, optional
        Raises for bounds in a group that has so many values, given its number, unless `check_bounds` does.

    Raises
    ------
    CorruptFileError, SchemaMismatchError
        If they are no bounds of rows in each group.
    """
    read = {}
    for option, (joined, values) in {**datasets, made.content: (content, None)}.items():
        if not joined.is_there.all():
            lacking = groups[int(np.argmin(joined.is_there))]
            raise SchemaMismatchError(
                f"{reader.path}: group {lacking!r} lacks {made.given.get(option, option)!r} of column {made.name!r}. "
                "Choose groups that have it with the pattern, or leave the column out."
            )
        if values is not None:
            read[option] = joined, read_units(reader, values, int(joined.starts[-1]))
    found = []
    for group, (first, length) in enumerate(zip(content.starts.tolist(), content.lengths.tolist(), strict=False)):
        own = {option: values[of.starts[group] : of.starts[group + 1]] for option, (of, values) in read.items()}
        path = f"{reader.path}: group {groups[group]!r}"
        bounds = bounds_in(own, made, f"{path}: column {made.name!r}, {' and '.join(map(repr, made.given.values()))}")
        if check is None:
            check_bounds(bounds, made, length, path)
        else:
            check(bounds, length, group)
        found.append(Bounds(bounds.starts + first, bounds.stops + first))
    ends = np.cumsum(np.array([len(each) for each in found], np.int64))
    nothing = np.empty(0, np.int64)
    starts, stops = (np.concatenate([nothing, *parts]) for parts in
                     ([each.starts for each in found], [each.stops for each in found]))  # fmt: skip
    return Bounds(starts, stops), Bounds(np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)], ends)


def sparse_in_groups(
    reader: RowReader,
    made: Csr,
    parts: Mapping[str, JoinedArray],
    groups: Paths,
    known: dict[str, Bounds],
    column: Callable[[str], Values],
) -> SparseRows:
    """Return the rows of a sparse matrix in each group, one group after the other.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : Csr
        The column.
    parts : mapping of str to JoinedArray
        The datasets of matrices: ``data``, ``indices`` and ``indptr``.
    groups : Paths
        The names of groups.
    known : dict of str to Bounds
        Bounds that are known; those of the column are added.
    column : callable
        Returns another column of the file, such as names of positions.

    Raises
    ------
    CorruptFileError, SchemaMismatchError, UnsupportedColumnError
        If they are no matrices of one width.
    """
    indices, data = (Stored.of(parts[each]) for each in ("indices", "data"))
    path, name = reader.path, made.group
    check_types(f"{path}: sparse matrix {name!r}", indices.array, data.array)
    offsets = Ragged(f"{name}/indices", offsets=f"{name}/indptr")
    if rows_key(made.name) not in known:

        def check(bounds: Bounds, length: int, group: int) -> None:
            where = f"{path}: sparse matrix {f'{groups[group]}/{name}'!r}"
            check_entries(where, bounds, length, int(parts["data"].lengths[group]))

        datasets = {"offsets": (parts["indptr"], Stored.of(parts["indptr"])), "data": (parts["data"], None)}
        found = ragged_in_groups(reader, offsets, parts["indices"], datasets, groups, check)
        known[offsets.bounds_key], known[rows_key(made.name)] = found
    width = _common_width(reader, made, groups, known[rows_key(made.name)])
    bounds = known[offsets.bounds_key]
    take = taken_positions(reader, made, width, column)
    return SparseRows(name, indices, data, bounds, width, made.dense, take, path)


def _common_width(reader: RowReader, made: Csr, groups: Paths, rows: Bounds) -> int:
    """Return the length of a row, which is one in all groups; `rows` are those of each group."""
    path, name = reader.path, made.group

    def widths() -> np.ndarray:
        found = []
        for group, count in enumerate((rows.stops - rows.starts).tolist()):
            each = f"{groups[group]}/{name}"
            encoding = checked_encoding(path, made, each, reader.encoding(each))
            found.append(width_of(reader, made, each, encoding, count))
        return np.array(found, np.int64)

    key = f"{name}: widths in {groups[0]!r} and {len(groups) - 1} others; {made.shape}"
    of_groups = reader.fact(key, widths, of_file=True)
    if (differ := np.flatnonzero(of_groups != of_groups[0])).size:
        at = int(differ[0])
        raise SchemaMismatchError(
            f"{path}: sparse matrix {name!r}: rows have length {of_groups[0]} in group {groups[0]!r}, and "
            f"{of_groups[at]} in {groups[at]!r}. Choose groups that agree with the pattern, or leave the column out."
        )
    return int(of_groups[0])
