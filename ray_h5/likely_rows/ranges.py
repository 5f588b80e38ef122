"""Rows of varying length that lie one after the other, and the integers that say where each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ray_h5.likely_rows.shapes import main_columns
from ray_h5.likely_rows.tree import Seen
from ray_h5.likely_rows.usual_names import BOUNDS, COUNTS, OFFSETS, STARTS, last, words
from ray_h5.messages import counted


class _Bounds(NamedTuple):
    """Datasets with the bounds of each row, the option that names them, and how many rows there are."""

    names: tuple[str, ...]
    option: str
    rows: int


def ragged_columns(columns: Mapping[str, Seen]) -> Iterator[tuple[str, list[str]]]:
    """Yield what says where rows are, and the entries of ``columns=``.

    Whether the rows are all of the values is for the caller to find out: only reading shows it.
    """
    if indexed := [name for name in columns if _is_indexed(columns, name)]:
        yield _with_index(columns, indexed)
        return
    known = [*_bounds(columns)]
    for bounds in known:
        content = _values_of(columns, bounds, is_alone=len(known) == 1)
        if not content:
            continue
        length, content_names = main_columns(content)
        ragged = [f"ray_h5.ragged({name!r}, {bounds.option})" for name in sorted(content_names)]
        of_bounds = {name for bounds_of_rows in known for name in bounds_of_rows.names}
        beside = sorted(
            repr(name) for name, column in columns.items() if column.rows == bounds.rows and name not in of_bounds
        )
        rows = counted(bounds.rows, "row")
        said = f"{' and '.join(bounds.names)}: these may say where each of {rows} is among {length} values"
        yield said, [*ragged, *beside]


def _values_of(columns: Mapping[str, Seen], bounds: _Bounds, *, is_alone: bool) -> dict[str, Seen]:
    """Return the columns in which bounds may say where rows are: those of their own group, or of their own source.

    ``INDEX/camera/first`` is about ``INSTRUMENT/camera/image``. Only without other bounds may values be anywhere.
    """
    longer = {name: seen for name, seen in columns.items() if seen.rows > bounds.rows + 1 and name not in bounds.names}
    own = _group(bounds.names[0])
    source = own.partition("/")[2]
    near = {name: column for name, column in longer.items() if _group(name) == own}
    of_source = {name: column for name, column in longer.items() if source and _group(name).partition("/")[2] == source}
    return near or of_source or (longer if is_alone else {})


def _with_index(columns: Mapping[str, Seen], indexed: Sequence[str]) -> tuple[str, list[str]]:
    """Return those of one group that have as many rows as the largest one."""
    first = max(indexed, key=lambda name: columns[name].values)
    rows = columns[f"{first}_index"].rows
    beside = [name for name in indexed if _group(name) == _group(first) and columns[f"{name}_index"].rows == rows]
    taken = {dataset for name in beside for dataset in (name, f"{name}_index")}
    said = f"{first}_index has the end of each row of {first}, of {counted(columns[first].rows, 'value')}"
    ragged = (f"ray_h5.ragged({name!r}, ends={name + '_index'!r})" for name in beside)
    others = columns.keys() - taken
    plain = [name for name in columns if name in others and (_group(name), columns[name].rows) == (_group(first), rows)]
    return said, [*ragged, *map(repr, plain)]


def _is_indexed(columns: Mapping[str, Seen], name: str) -> bool:
    """Return whether a column has the ends of its rows beside it, as NWB writes them."""
    ends = columns.get(f"{name}_index")
    return ends is not None and _is_integer(ends, 1) and not name.endswith("_index")


def _bounds(columns: Mapping[str, Seen]) -> Iterator[_Bounds]:
    for name, column in columns.items():
        said = {*words(last(name))}
        if said & OFFSETS and _is_integer(column, 1):
            yield _Bounds((name,), f"offsets={name!r}", column.rows - 1)
        if said & BOUNDS and _is_integer(column, 2) and column.shape[1] == 2:
            yield _Bounds((name,), f"bounds={name!r}", column.rows)
        if said & STARTS and _is_integer(column, 1):
            for other, seen in columns.items():
                counts = COUNTS & {*words(last(other))} and _is_integer(seen, 1)
                if counts and seen.rows == column.rows and _group(other) == _group(name):
                    yield _Bounds((name, other), f"starts={name!r}, counts={other!r}", column.rows)


def _group(name: str) -> str:
    return name.rpartition("/")[0]


def _is_integer(seen: Seen, axes: int) -> bool:
    return len(seen.shape) == axes and seen.dtype.lstrip("<>|=")[:1] in {"i", "u"}
