"""The page: what the text of ``ray-h5 inspect`` says, and pictures of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5 import __version__
from ray_h5.errors import RayH5Error
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.inspect.html.call import call_of
from ray_h5.inspect.html.costs import repacks, shuffles
from ray_h5.inspect.html.elements import Markup, tag
from ray_h5.inspect.html.layout_picture import layout_picture
from ray_h5.inspect.html.style import STYLE
from ray_h5.inspect.html.values import drawn
from ray_h5.inspect.report import ColumnReport, Report
from ray_h5.inspect.table import size
from ray_h5.inspect.text import to_text
from ray_h5.order.read_plan import make_plan

__all__ = ["to_html"]

_MOST_COLUMNS = 60
_SAMPLES = 5
_MOST_ROW_BYTES = 16 << 20
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_html(report: Report, files: FileOptions, paths: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return a report as a page of HTML that needs no other file and no network.

    Parameters
    ----------
    report : Report
        What `inspect_files` found.
    files : FileOptions
        The files. A few rows of the first one are read.
    paths, options
        What was asked for, for the call.
    """
    first = report.files[0]
    index = None if report.delivery is None else replace(files, paths=[each.path for each in report.files]).index()
    columns = [each for each in first.columns if index is None or each.name in index.names] or list(first.columns)
    shown = columns[:_MOST_COLUMNS]
    stored = size(sum(each.file_bytes for each in report.files))
    many = "1 file" if len(report.files) == 1 else f"{len(report.files)} files"
    body = [
        tag("h1", first.path if len(report.files) == 1 else f"{many}: {first.path} ..."),
        tag("p", f"{many}, {stored}. Columns and pictures are of the first file.", class_="faint"),
        *_call(report, paths, options, columns),
        *_said(to_text(report, [each.name for each in shown])),
        *_table(shown, len(columns)),
        *([] if index is None else _rows(index)),
        *_layouts(shown),
        *([] if index is None else _shuffles(index)),
        *_repack(shown, paths),
        tag("p", f"Made by ray-h5 {__version__}.", class_="faint"),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", f"ray-h5 inspect {first.path}"),
        tag("style", Markup(STYLE)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def _call(
    report: Report, paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[ColumnReport]
) -> Iterable[Markup]:
    yield tag("h2", "The call")
    if report.delivery is None:
        yield tag("p", "read_h5 refuses these files with these options: see below.", class_="bad")
        return
    names = [each.name for each in columns if each.name in report.delivery.columns]
    if len(names) < len(report.delivery.columns):
        names = []  # columns of tables, attributes and windows come by themselves if none is named
    ray = call_of("ds = ray_h5.read_h5", paths, options, names)
    torch = call_of("batches = ray_h5.torch_data.loader", paths, options, names)
    yield tag("pre", f"import ray_h5\n\n{ray}")
    yield tag("p", "Or in plain PyTorch, without Ray:")
    yield tag("pre", f"import ray_h5.torch_data\n\n{torch}")


def _said(text: str) -> Iterable[Markup]:
    """Yield the sections of the text, except its table: a line without a space before it that ends in a colon."""
    title, lines = "", []
    for line in [*text.split("\n"), "end:"]:
        if line.startswith("  "):
            lines.append(line[2:])
        elif line.endswith(":"):
            if title and lines:
                yield tag("h2", title)
                yield tag("ul", *(tag("li", each) for each in lines))
            title, lines = line[:-1], []
        else:
            title, lines = "", []


def _grid(head: Sequence[str], lines: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> Markup:
    """Return a table; cells in the columns `numbers` are aligned to the right."""
    classes: list[dict[str, str]] = [{"class_": "number"} if place in numbers else {} for place in range(len(head))]
    top = tag("tr", *(tag("th", name, scope="col", **classes[place]) for place, name in enumerate(head)))
    rows = [
        tag(
            "tr",
            tag("th", line[0], scope="row"),
            *(tag("td", cell, **classes[place]) for place, cell in enumerate(line[1:], 1)),
        )
        for line in lines
    ]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *rows)), class_="wide")


def _table(columns: Sequence[ColumnReport], count: int) -> Iterable[Markup]:
    yield tag("h2", "Columns")
    head = ("column", "dtype", "row shape", "rows", "storage", "rows a chunk", "filters", "stored", "real")
    lines = [
        (
            each.name,
            each.dtype,
            " x ".join("?" if length is None else str(length) for length in each.row_shape) or "-",
            f"{each.rows:,}",
            each.storage,
            "-" if each.chunk_shape is None else f"{each.chunk_shape[0]:,}",
            ", ".join(each.pipeline) or "-",
            size(each.stored_bytes),
            "?" if each.real_bytes is None else size(each.real_bytes),
        )
        for each in columns
    ]
    yield _grid(head, lines, (3, 5, 7, 8))
    if len(columns) < count:
        yield tag("p", f"And {count - len(columns)} more: --columns NAME shows one.", class_="faint")


def _layouts(columns: Sequence[ColumnReport]) -> Iterable[Markup]:
    yield tag("h2", "Layout")
    yield tag(
        "p",
        "Rows are downwards, and the chunks of a row beside each other; each box is a chunk. Orange is what is decoded "
        "for one row.",
        class_="faint",
    )
    yield tag("div", *(tag("div", tag("b", each.name), layout_picture(each)) for each in columns), class_="layouts")


def _rows(index: RowIndex) -> Iterable[Markup]:
    """Yield a few rows of the first file that has some."""
    plan = make_plan(index, list(index.outputs.values()))
    counts = np.diff(plan.files.starts)
    if not counts.any():
        return
    file = int(np.flatnonzero(counts)[0])
    rows = np.unique(np.linspace(0, counts[file] - 1, _SAMPLES).astype(np.int64))
    yield tag("h2", "Some rows")
    lines: list[Sequence[str]] = []
    try:
        with plan.open(file) as reader:
            lines += [
                (each.name, str(each), *_cells(reader, each.name, each.row_bytes, rows))
                for each in plan.of_files[:_MOST_COLUMNS]
            ]
    except RayH5Error as exc:
        yield tag("p", f"{type(exc).__name__}: {exc}", class_="bad")
    yield _grid(("column", "", *(f"row {row:,}" for row in rows.tolist())), lines)


def _cells(reader: Any, name: str, row_bytes: int, rows: np.ndarray[Any, Any]) -> Sequence[str]:
    if row_bytes > _MOST_ROW_BYTES:
        return [f"{size(row_bytes)}: not shown", *[""] * (len(rows) - 1)]
    try:
        return [drawn(value) for value in reader.read([name], rows)[name]]
    except RayH5Error as exc:
        return [f"{type(exc).__name__}: {exc}", *[""] * (len(rows) - 1)]


def _shuffles(index: RowIndex) -> Iterable[Markup]:
    lines = list(shuffles(index))
    if not lines:
        return
    yield tag("h2", "What a shuffle costs")
    head = ("shuffle by", "rows mixed", "chunks mixed", "each byte is read, times", "decoded in an epoch")
    yield _grid(head, lines, (1, 2, 3, 4))


def _repack(columns: Sequence[ColumnReport], paths: Sequence[str]) -> Iterable[Markup]:
    yield tag("h2", "What a repack would give")
    lines = list(repacks(columns))
    if not lines:
        yield tag("p", "Nothing: chunks have a size that is good for shuffled rows.")
        return
    head = ("column", "rows a chunk", "after", "decoded for a row", "after", "so that")
    yield _grid(head, lines, (1, 2, 3, 4))
    yield tag("pre", f"ray-h5 repack {' '.join(map(shlex.quote, paths))} repacked/")
