"""The sections of the report of ``ray-h5 inspect``, which its text and its page show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ray_h5.inspect.report import ColumnReport, Delivery, FileReport, Report, Unreadable
from ray_h5.inspect.similar_columns import leaves, merge_similar, walk
from ray_h5.inspect.store_cost import StoreReport
from ray_h5.messages import counted, few, printable, size

MAX_LINES = 60
# A file that opens with more has its metadata in many places.
_FEW_REQUESTS, _FEW_ROUNDS = 8, 3
_PAGES = [1 << 20, 2 << 20, 4 << 20, 8 << 20]
_MAX_CHARS = 4000
_MAX_MEMBERS = 16
_MAX_VALUES = 4
_HEAD = ("column", "rows", "dtype", "row shape", "chunk rows", "filter pipeline", "stored", "real")


class Section(NamedTuple):
    """A heading, and a table or lines below it; all are printable, and bounded in number."""

    title: str
    lines: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()


def to_text(report: Report, columns: Sequence[str] = ()) -> str:
    """Return the report as text: a summary of several files, and the first file as a tree.

    Columns that are alike share a line, and a section has a bounded number of lines. Each of `columns` has a line.
    """
    lines: list[str] = []
    for section in sections(report, columns):
        widths = [max(map(len, column)) for column in zip(*section.table, strict=True)]
        rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in section.table]
        lines += [section.title, *(f"  {line}" for line in (*rows, *section.lines))]
    return "\n".join(lines)


def sections(report: Report, columns: Sequence[str] = ()) -> Iterator[Section]:
    """Yield the sections of a report, in order; each of `columns` has a row of the table."""
    first = report.files[0]
    if len(report.files) + len(report.unreadable) > 1:
        yield Section(_summary(report))
        listed = [f"{printable(file.name)}: {_said(file, [file.name])}" for file in report.unreadable]
        yield from _section(f"{counted(len(report.unreadable), 'file')} cannot be opened:", listed)
        yield Section("")
    yield _tree(first, frozenset(name.strip("/") for name in columns))
    yield from _notes(first)
    yield from _section("Attributes that differ:", _differing(report.files))
    refused = [column for column in first.refused if not column.is_single]
    reasons = [(col.name, f"{col.error}: {_reason(first, col.name, col.message)}") for col in refused]
    yield from _section("Cannot be read:", _together(reasons))
    left_out = [(col.name, _reason(first, col.name, col.left_out)) for col in first.columns if col.left_out]
    yield from _section("Left out by read_h5 and H5Dataset:", _together(left_out))
    named = {column.name: [f"{name}={value}" for name, value in column.enum.items()] for column in first.columns}
    members = [(name, few(values, _MAX_MEMBERS)) for name, values in named.items() if values]
    yield from _section("Names of values:", _together(members))
    advice = [suggestion.as_call for suggestion in report.suggestions]
    advice += _together((column.name, text) for column in first.columns for text in column.advice)
    if any(column.is_slow for column in first.columns):
        advice.append("ray-h5 repack writes files with such chunks: see docs/writing.md.")
    yield from _section("Advice:", advice)
    if report.problem is not None:
        yield from _section("read_h5 refuses this:", [_said(report.problem, [file.path for file in report.files])])
    if report.delivery is not None:
        files = "the others, with ignore_unreadable_files=True" if report.unreadable else "it"
        yield from _section(f"read_h5 makes of {files}:", list(_delivered(report.delivery)))
    yield from _section("Shuffled:", [report.shuffle] if report.shuffle is not None else [])
    yield from _section("In the store:", [] if report.store is None else list(_of_store(report.store)))


def _section(title: str, lines: Sequence[str]) -> Iterator[Section]:
    # Messages may have several lines, and names any character.
    parts = [printable(part) for line in lines for part in line.split("\n")]
    shown = [
        part if len(part) <= _MAX_CHARS else f"{part[:_MAX_CHARS]} ... and {len(part) - _MAX_CHARS} characters more"
        for part in parts[:MAX_LINES]
    ]
    if len(parts) > MAX_LINES:
        shown.append(f"and {len(parts) - MAX_LINES} more")
    if parts:
        yield Section(title, shown)


def _said(trouble: Unreadable, paths: Iterable[str]) -> str:
    message = trouble.message
    for path in paths:
        message = message.replace(path, printable(path))
    return f"{trouble.error}: {message}"


def _summary(report: Report) -> str:
    # Of rows that are files or groups, the shape is that of one of them.
    shapes = [[(col.name, col.dtype, col.storage and col.row_shape) for col in file.columns] for file in report.files]
    names = [[column[:2] for column in file] for file in shapes]
    alike = names.count(names[0])
    who = {1: "no other has", len(names): "all have"}.get(alike, f"{alike} have")
    others = alike - shapes.count(shapes[0])
    other = f" ({others} with rows of other shapes)" if others else ""
    have = "it is" if len(names) == 1 else f"{who} the columns of the first{other}, which is"
    nbytes = size(sum(file.file_bytes for file in report.files))
    return f"{counted(len(names), 'file')}, {nbytes}; {have} shown below"


# The table of columns ------------------------------------------------------------------------------


def _tree(file: FileReport, named: Collection[str]) -> Section:
    """Return the table of columns; those that are `named` have a row of their own."""
    reports = {column.name: column for column in file.columns}
    keys = {name: _key(column, named) for name, column in reports.items()}
    nodes = [(len(above), node) for above, node in walk(merge_similar(keys, MAX_LINES))]
    chosen = {name: key for name, key in keys.items() if name in named}
    if chosen and len(nodes) > MAX_LINES:  # those that are named have a line at least
        nodes = [(len(above), node) for above, node in walk(merge_similar(chosen))]
    shown = nodes[:MAX_LINES]
    table: list[tuple[str, ...]] = [_HEAD]
    for depth, node in shown:
        cells = _cells([reports[name] for name in node.columns]) if node.columns else ("",) * (len(_HEAD) - 1)
        table.append(tuple(map(printable, ("  " * depth + node.label, *cells))))
    below = "" if file.group == "/" else f", below {printable(file.group)}"
    title = f"{printable(file.path)}: {size(file.file_bytes)}, {counted(len(reports), 'column')}{below}"
    more = len(reports) - sum(len(node.columns) for _, node in shown)
    return Section(title, [f"and {more} more; --columns NAME shows one"] if more else [], table)


def _key(column: ColumnReport, named: Collection[str]) -> Hashable:
    own_line = column.name if column.name in named else ""
    return column.dtype, column.row_shape, column.storage, column.pipeline, column.real_bytes is None, own_line


def _cells(columns: Sequence[ColumnReport]) -> tuple[str, ...]:
    """Return the cells of a row for columns that are alike."""
    first = columns[0]
    return (
        _range([column.rows for column in columns]),
        first.dtype,
        _axes(first.row_shape) or "-",
        _chunk_rows(columns),
        ", ".join(first.pipeline) or ("-" if first.storage else "?"),
        _size(column.stored_bytes for column in columns),
        _size(column.real_bytes for column in columns),
    )


def _size(many: Iterable[int | None]) -> str:
    known = [nbytes for nbytes in many if nbytes is not None]
    return size(sum(known)) if known else "?"


def _chunk_rows(columns: Sequence[ColumnReport]) -> str:
    shapes = {column.chunk_shape for column in columns if column.chunk_shape is not None}
    if not shapes:
        return columns[0].storage or "?"
    rows, others = [shape[0] for shape in shapes], {shape[1:] for shape in shapes}
    # An array type adds axes to the row that chunks do not have.
    whole = all(other == columns[0].row_shape[: len(other)] for other in others)
    parts = _axes(others.pop()) if len(others) == 1 else "parts"
    return _range(rows) if whole else f"{_range(rows)} of {parts}"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}..{high}"


def _axes(shape: Sequence[int | None]) -> str:
    return " x ".join("?" if length is None else str(length) for length in shape)


# What is said of columns ---------------------------------------------------------------------------


def _notes(file: FileReport) -> Iterator[Section]:
    names = [column.name for column in file.refused if column.is_single]
    if names:
        are = "which is no column" if len(names) == 1 else "which are no columns"
        shown = few([name for name, _ in leaves(merge_similar(dict.fromkeys(names)))])
        yield Section(f"{counted(len(names), 'single value')}, {are}: {shown}")
    if file.attributes:
        many = counted(len(file.attributes), "attribute")
        yield Section(f"{many} with one value, which attrs=[...] makes columns: {few(file.attributes)}")


def _differing(files: Sequence[FileReport]) -> list[str]:
    """Return a line for each attribute that some files lack, or have another value of."""
    lines, having = [], Counter(name for file in files for name in file.attributes)
    for name, count in having.items():
        values = Counter(file.values[name] for file in files if name in file.values)
        said = [f"{value} ({counted(many, 'file')})" for value, many in values.most_common()]
        if len(values) == values.total() > _MAX_VALUES:
            said = [f"another value in each file, such as {next(iter(values))}"]
        lacking = [f"none ({counted(len(files) - count, 'file')})"] if count < len(files) else []
        if lacking or len(values) > 1:
            lines.append(f"{name}: {few([*said, *lacking], _MAX_VALUES)}")
    return lines


def _reason(file: FileReport, name: str, message: str) -> str:
    """Return a message without the file and column that it begins with: the line names them already."""
    return message.removeprefix(f"{file.path}: ").removeprefix(f"column {name!r} ")


def _together(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line for all columns with the same text; for columns that are alike, numbers in it may differ."""
    by_pattern: dict[str, dict[str, str]] = {}
    for name, text in said:
        pattern = re.sub("[0-9]+", "#", text.replace(repr(name), "#"))
        by_pattern.setdefault(pattern, {})[name] = text
    lines: dict[str, list[str]] = {}
    for texts in by_pattern.values():
        for label, node in leaves(merge_similar(dict.fromkeys(texts))):
            differ = len({texts[name] for name in node.columns}) > 1
            text = texts[node.columns[0]] + (" (Said of the first; the others are alike.)" if differ else "")
            lines.setdefault(text, []).append(label)
    return [f"{few(labels)}: {text}" for text, labels in lines.items()]


def _delivered(delivery: Delivery) -> Iterator[str]:
    blocks = f"{counted(delivery.blocks, 'block')} of {delivery.block_rows}"
    yield f"{counted(delivery.rows, 'row')} of {size(delivery.row_bytes)}, in {blocks}"
    nodes = list(leaves(merge_similar(delivery.columns, MAX_LINES)))
    shown = [
        f"{name}: {delivery.columns[node.columns[0]]}"
        + (f" ({len(node.columns)} columns)" if len(node.columns) > 1 else "")
        for name, node in nodes[:MAX_LINES]
    ]
    more = sum(len(node.columns) for _, node in nodes[MAX_LINES:])
    yield ", ".join(shown) + (f", and {more} more" if more else "")


def _of_store(report: StoreReport) -> Iterator[str]:
    """Yield what files in a store cost."""
    cost = report.opening
    yield (
        f"opened with {counted(cost.requests, 'request')} of {size(cost.nbytes)} in all, in "
        f"{counted(cost.rounds, 'round')} ({report.path}); none with index_dir, from the second run on"
    )
    for epoch in report.epochs:
        yield (
            f"an epoch {epoch.order}: about {counted(epoch.requests, 'request')}, {size(epoch.nbytes)}, "
            f"{epoch.waste:.1f} times the bytes of the rows"
        )
    if cost.requests > _FEW_REQUESTS or cost.rounds > _FEW_ROUNDS:
        # Each page is fetched by a request of its own: one that holds all metadata is best.
        page = next((page_bytes for page_bytes in _PAGES if page_bytes >= cost.nbytes), _PAGES[-1])
        yield (
            f"its metadata is in many places. To gather it in pages: `h5repack -S PAGE -G {page} in.h5 out.h5`, or "
            f'write with h5py.File(path, "w", fs_strategy="page", fs_page_size={page})'
        )
