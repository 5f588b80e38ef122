"""The columns of a file as a table of a bounded number of lines."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ray_h5.inspect.similar_columns import ColumnNode, merge_similar
from ray_h5.messages import printable

if TYPE_CHECKING:
    from ray_h5.inspect.report import ColumnReport

MAX_LINES = 60
_HEAD = ("column", "rows", "dtype", "row shape", "chunk rows", "filter pipeline", "stored", "real")


def table(columns: Sequence[ColumnReport], named: Collection[str]) -> Iterator[str]:
    """Yield the lines of a table of columns; columns that are `named` have a line of their own."""
    reports = {column.name: column for column in columns}
    lines = list(_lines(_chosen(reports, named)))
    shown, cut = lines[:MAX_LINES], lines[MAX_LINES:]
    cells = [_HEAD]
    for depth, node in shown:
        found = [reports[name] for name in node.columns]
        cells.append(("  " * depth + node.label, *(_cells(found) if found else [""] * (len(_HEAD) - 1))))
    text = [[printable(cell) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    for row in text:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    in_table = sum(len(node.columns) for _, node in shown)
    if cut or in_table < len(columns):
        yield f"  and {len(columns) - in_table} more; --columns NAME shows one"


def size(nbytes: int) -> str:
    """Return a number of bytes with three digits and a unit."""
    value, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{value:.3g} {units[0]}"


def _chosen(reports: Mapping[str, ColumnReport], named: Collection[str]) -> list[ColumnNode]:
    keys = {name: _key(report, named) for name, report in reports.items()}
    nodes = merge_similar(keys)
    if len(list(_lines(nodes))) > MAX_LINES:
        nodes = merge_similar(keys, any_name=True)
    found = {name: key for name, key in keys.items() if name in named}
    if found and len(list(_lines(nodes))) > MAX_LINES:
        return merge_similar(found)
    return nodes


def _key(column: ColumnReport, named: Collection[str]) -> Hashable:
    own_line = column.name if column.name in named else ""
    return column.dtype, column.row_shape, column.storage, column.pipeline, column.real_bytes is None, own_line


def _lines(nodes: Iterable[ColumnNode]) -> Iterator[tuple[int, ColumnNode]]:
    for top in nodes:
        for above, node in top.walk():
            yield len(above), node


def _cells(columns: Sequence[ColumnReport]) -> tuple[str, ...]:
    """Return the cells of a line for columns that are alike."""
    first = columns[0]
    real = [column.real_bytes for column in columns if column.real_bytes is not None]
    return (
        _range([column.rows for column in columns]),
        first.dtype,
        _axes(first.row_shape) or "-",
        _chunk_rows(columns),
        ", ".join(first.pipeline) or "-",
        size(sum(column.stored_bytes for column in columns)),
        size(sum(real)) if real else "?",
    )


def _chunk_rows(columns: Sequence[ColumnReport]) -> str:
    shapes = {column.chunk_shape for column in columns if column.chunk_shape is not None}
    if not shapes:
        return columns[0].storage
    rows, others = [shape[0] for shape in shapes], {shape[1:] for shape in shapes}
    # An array type adds axes to the row that chunks do not have.
    whole = all(each == columns[0].row_shape[: len(each)] for each in others)
    parts = _axes(others.pop()) if len(others) == 1 else "parts"
    return _range(rows) if whole else f"{_range(rows)} of {parts}"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}..{high}"


def _axes(shape: Sequence[int | None]) -> str:
    return " x ".join("?" if length is None else str(length) for length in shape)
