"""A report for people."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import takewhile

from ray_h5.hdf5.rows import printable
from ray_h5.inspect.report import ColumnReport, Delivery, FileReport, Report

_MAX_LISTED = 10
_HEAD: tuple[str, ...] = ("column", "rows", "dtype", "row shape", "chunk rows", "filter pipeline", "stored", "real")


def to_text(report: Report) -> str:
    """Return the report as text: one file as a tree, several as a summary and the first of them."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    first = report.files[0]
    if len(report.files) + len(report.unreadable) > 1:
        yield from _summary(report)
        yield ""
    yield from _tree(first)
    yield from _section("Cannot be read:", [f"{each.name}: {each.error}: {each.message}" for each in first.refused])
    yield from _section("Advice:", [f"{each.name}: {text}" for each in first.columns for text in each.advice])
    if report.problem is not None:
        yield from _section("read_h5 refuses this:", [f"{report.problem.error}: {report.problem.message}"])
    if report.delivery is not None:
        yield from _section("read_h5 makes of it:", list(_delivered(report.delivery)))
    if report.shuffle is not None:
        yield from _section("Shuffled:", [report.shuffle])


def _summary(report: Report) -> Iterator[str]:
    names = {file.path: [(each.name, each.dtype, each.row_shape) for each in file.columns] for file in report.files}
    alike = sum(columns == names[report.files[0].path] for columns in names.values())
    stored = sum(file.file_bytes for file in report.files)
    yield f"{len(report.files)} files, {_size(stored)}; {alike} have the columns of the first, which is shown below"
    listed = [f"{each.name}: {each.error}: {each.message}" for each in report.unreadable[:_MAX_LISTED]]
    yield from _section(f"{len(report.unreadable)} files cannot be opened:", listed)


def _tree(file: FileReport) -> Iterator[str]:
    below = "" if file.group == "/" else f", below {file.group}"
    yield f"{printable(file.path)}: {_size(file.file_bytes)}, {len(file.columns)} columns{below}"
    table = [_HEAD]
    above: list[str] = []
    for column in file.columns:
        *groups, last = column.name.split("/")
        depths = range(_common(above, groups), len(groups))
        table += [("  " * depth + groups[depth] + "/", *[""] * (len(_HEAD) - 1)) for depth in depths]
        table += [("  " * len(groups) + last, *_cells(column))]
        above = groups
    shown = [[printable(cell) for cell in row] for row in table]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    for row in shown:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    alike = takewhile(operator.truth, map(operator.eq, first, second))
    return sum(alike)


def _cells(column: ColumnReport) -> tuple[str, ...]:
    return (
        str(column.rows),
        column.dtype,
        _axes(column.row_shape) or "-",
        _chunk_rows(column),
        ", ".join(column.pipeline) or "-",
        _size(column.stored_bytes),
        "?" if column.real_bytes is None else _size(column.real_bytes),
    )


def _chunk_rows(column: ColumnReport) -> str:
    if column.chunk_shape is None:
        return column.storage
    rows, *others = column.chunk_shape
    # A type that is itself an array adds axes to the row that chunks do not have.
    whole = tuple(others) == column.row_shape[: len(others)]
    return str(rows) if whole else f"{rows} of {_axes(others)}"


def _delivered(delivery: Delivery) -> Iterator[str]:
    yield f"{delivery.rows} rows of {_size(delivery.row_bytes)}, in {delivery.blocks} blocks of {delivery.block_rows}"
    yield ", ".join(f"{name}: {kind}" for name, kind in delivery.columns.items())


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield title
        # What errors say may have lines of its own, and names any character.
        yield from ("  " + printable(part) for line in lines for part in line.split("\n"))


def _axes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _size(nbytes: int) -> str:
    size, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{size:.3g} {units[0]}"
