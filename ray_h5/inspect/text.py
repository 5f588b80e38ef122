"""The report of `ray-h5 inspect` as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ray_h5.hdf5.columns.column import SINGLE_VALUE
from ray_h5.inspect.report import ColumnReport, Delivery, FileReport, Report, Unreadable
from ray_h5.inspect.similar_columns import leaves, merge_similar
from ray_h5.inspect.store_cost import lines_of
from ray_h5.inspect.table import MAX_LINES, size, table
from ray_h5.messages import counted, few, printable

_MAX_CHARS = 4000
_MAX_MEMBERS = 16


def to_text(report: Report, columns: Sequence[str] = ()) -> str:
    """Return the report as text: a summary of several files, and the first file as a tree.

    Columns that are alike share a line, and a section has a bounded number of lines. Each of `columns` has a line.
    """
    return "\n".join(_lines(report, frozenset(name.strip("/") for name in columns)))


def _lines(report: Report, named: Collection[str]) -> Iterator[str]:
    first = report.files[0]
    if len(report.files) + len(report.unreadable) > 1:
        yield from _summary(report)
        yield ""
    columns = first.columns
    yield from _tree(first, columns, named)
    refused = first.refused
    yield from _single_values(refused)
    if first.attributes:
        many = counted(len(first.attributes), "attribute")
        yield f"{many} with one value, which attrs=[...] makes columns: {few(first.attributes)}"
    yield from _section("Cannot be read:", _refused(first.path, refused))
    yield from _section("Left out by read_h5 and H5Dataset:", _left_out(first.path, columns))
    yield from _section("Names of values:", _together([(each.name, _members(each)) for each in columns if each.enum]))
    advice = _together([(each.name, text) for each in columns for text in each.advice])
    mended = ["ray-h5 repack writes files with such chunks: see docs/writing.md."] if _is_mended(columns) else []
    yield from _section("Advice:", [*(each.as_call for each in report.suggestions), *advice, *mended])
    if report.problem is not None:
        yield from _section("read_h5 refuses this:", [_said(report.problem, [file.path for file in report.files])])
    if report.delivery is not None:
        files = "the others, with ignore_unreadable_files=True" if report.unreadable else "it"
        yield from _section(f"read_h5 makes of {files}:", list(_delivered(report.delivery)))
    if report.shuffle is not None:
        yield from _section("Shuffled:", [report.shuffle])
    if report.store is not None:
        yield from _section("In the store:", list(lines_of(report.store)))


def _summary(report: Report) -> Iterator[str]:
    names = {file.path: [(each.name, each.dtype, each.row_shape) for each in file.columns] for file in report.files}
    alike = sum(columns == names[report.files[0].path] for columns in names.values())
    stored = sum(file.file_bytes for file in report.files)
    if len(report.files) == 1:
        have = "it is shown below"
    else:
        who = {1: "no other has", len(report.files): "all have"}.get(alike, f"{alike} have")
        have = f"{who} the columns of the first, which is shown below"
    yield f"{counted(len(report.files), 'file')}, {size(stored)}; {have}"
    listed = [f"{printable(each.name)}: {_said(each, [each.name])}" for each in report.unreadable]
    yield from _section(f"{counted(len(report.unreadable), 'file')} cannot be opened:", listed)


def _tree(file: FileReport, columns: Sequence[ColumnReport], named: Collection[str]) -> Iterator[str]:
    below = "" if file.group == "/" else f", below {printable(file.group)}"
    yield f"{printable(file.path)}: {size(file.file_bytes)}, {counted(len(columns), 'column')}{below}"
    yield from table(columns, named)


def _is_mended(columns: Iterable[ColumnReport]) -> bool:
    """Return whether some advice is about chunks."""
    return any("rite " in text and "chunk" in text for each in columns for text in each.advice)


def _single_values(refused: Sequence[Unreadable]) -> Iterator[str]:
    names = [each.name for each in refused if each.message.endswith(SINGLE_VALUE)]
    if names:
        are = "which is no column" if len(names) == 1 else "which are no columns"
        many = f"{counted(len(names), 'single value')}, {are}"
        yield f"{many}: {few([name for name, _ in leaves(merge_similar(dict.fromkeys(names)))])}"


def _refused(path: str, refused: Sequence[Unreadable]) -> list[str]:
    return _together(
        [
            (each.name, f"{each.error}: {_reason(path, each.name, each.message)}")
            for each in refused
            if not each.message.endswith(SINGLE_VALUE)
        ]
    )


def _left_out(path: str, columns: Sequence[ColumnReport]) -> list[str]:
    return _together([(each.name, _reason(path, each.name, each.left_out)) for each in columns if each.left_out])


def _members(column: ColumnReport) -> str:
    return few([f"{name}={value}" for name, value in column.enum.items()], _MAX_MEMBERS)


def _reason(path: str, name: str, message: str) -> str:
    """Return a message without the file and column that it begins with: the line names them already."""
    return message.removeprefix(f"{path}: ").removeprefix(f"column {name!r} ")


def _together(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line for all columns with the same text; for columns that are alike, numbers in it may differ."""
    found: dict[str, dict[str, str]] = {}
    for name, text in said:
        pattern = re.sub("[0-9]+", "#", text.replace(repr(name), "#"))
        found.setdefault(pattern, {})[name] = text
    lines: dict[str, list[str]] = {}
    for texts in found.values():
        for label, node in leaves(merge_similar(dict.fromkeys(texts))):
            differ = len({texts[name] for name in node.columns}) > 1
            text = texts[node.columns[0]] + (" (Said of the first; the others are alike.)" if differ else "")
            lines.setdefault(text, []).append(label)
    return [f"{few(labels)}: {text}" for text, labels in lines.items()]


def _delivered(delivery: Delivery) -> Iterator[str]:
    blocks = f"{counted(delivery.blocks, 'block')} of {delivery.block_rows}"
    yield f"{counted(delivery.rows, 'row')} of {size(delivery.row_bytes)}, in {blocks}"
    found = list(leaves(merge_similar(delivery.columns)))
    if len(found) > MAX_LINES:
        found = list(leaves(merge_similar(delivery.columns, any_name=True)))
    shown = [_delivered_as(name, node.columns, delivery) for name, node in found[:MAX_LINES]]
    more = sum(len(node.columns) for _, node in found[MAX_LINES:])
    yield ", ".join(shown) + (f", and {more} more" if more else "")


def _delivered_as(name: str, columns: Sequence[str], delivery: Delivery) -> str:
    many = f" ({len(columns)} columns)" if len(columns) > 1 else ""
    return f"{name}: {delivery.columns[columns[0]]}{many}"


def _said(trouble: Unreadable, paths: Iterable[str]) -> str:
    message = trouble.message
    for path in paths:
        message = message.replace(path, printable(path))
    return f"{trouble.error}: {message}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield title
    # Messages may have several lines, and names any character.
    parts = [printable(part) for line in lines for part in line.split("\n")]
    yield from (f"  {_cut(part)}" for part in parts[:MAX_LINES])
    if len(parts) > MAX_LINES:
        yield f"  and {len(parts) - MAX_LINES} more"


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]} ... and {len(line) - _MAX_CHARS} characters more"
