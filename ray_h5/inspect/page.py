"""The report of ``ray-h5 inspect`` as one page of HTML, with pictures, that needs no other file and no network."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
import markupsafe
import numpy as np

from ray_h5 import __version__
from ray_h5.errors import RayH5Error
from ray_h5.inspect.pictures import HEIGHT, WIDTH, Chunks, chunks_of_row, drawn
from ray_h5.inspect.store_cost import size
from ray_h5.inspect.text import sections
from ray_h5.messages import printable
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.read_plan import make_plan
from ray_h5.order.shuffle_cost import shuffle_effect
from ray_h5.writing.layouts import Layout

if TYPE_CHECKING:
    from ray_h5.index.file_options import FileOptions
    from ray_h5.index.row_index import RowIndex
    from ray_h5.inspect.report import ColumnReport, Report

_MOST_COLUMNS, _NAMED_COLUMNS = 60, 20
_SAMPLES = 5
_MOST_ROW_BYTES = 16 << 20
_UNITS: tuple[Literal["rows", "chunks", "files"], ...] = ("rows", "chunks", "files")

Rows = list[tuple[Any, ...]]


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
    opened = dataclasses.replace(files, paths=[each.path for each in report.files])
    index = None if report.delivery is None else opened.index()
    columns = [each for each in first.columns if index is None or each.name in index.names] or list(first.columns)
    repacks = list(_repacks(columns))
    tables: dict[str, Rows] = {}
    if index is not None and index.num_rows:
        tables["Some rows"], tables["What a shuffle costs"] = list(_some_rows(index)), list(_shuffles(index))
    if len(repacks) > 1:
        tables["What a repack would give"] = repacks
    page = jinja2.Environment(autoescape=True, finalize=_printable).from_string(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    )
    return page.render(
        path=first.path,
        version=__version__,
        arguments="" if report.delivery is None else _arguments(paths, options, list(report.delivery.columns)),
        sections=list(sections(report, files.columns or ())),
        tables=tables.items(),
        repack=f"ray-h5 repack {' '.join(map(shlex.quote, paths))} repacked/" if len(repacks) > 1 else "",
        layouts=[(each.name, Chunks.of(each)) for each in columns[:_MOST_COLUMNS]],
        width=WIDTH,
        height=HEIGHT,
    )


def _printable(value: Any) -> Any:
    """Escape what a terminal or browser would obey, as in the text."""
    is_text = isinstance(value, str) and not isinstance(value, markupsafe.Markup)
    return "\n".join(map(printable, value.split("\n"))) if is_text else value


def _arguments(paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the arguments of a call as Python; a few columns are named if the options name none."""
    given = {name: value for name, value in options.items() if value not in (None, (), [], {})}
    is_plain = not {"attrs", "sidecar", "windows", "rows"} & given.keys()  # their columns come by themselves
    if "columns" not in given and is_plain and len(columns) <= _NAMED_COLUMNS:
        given = {"columns": list(columns), **given}
    if "storage_options" in given:
        # They may be secret.
        given["storage_options"] = dict.fromkeys(given["storage_options"], ...)
    lines = [_code(paths[0] if len(paths) == 1 else list(paths)), *(f"{k}={_code(v)}" for k, v in given.items())]
    return "\n" + "".join(f"    {line},\n" for line in [*lines, "shuffle=True"])


def _code(value: Any) -> str:
    """Return a value as Python: of row kinds, windows and tables the fields that are not their defaults."""
    if isinstance(value, list):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_code(each)}" for name, each in value.items()) + "}"
    if not dataclasses.is_dataclass(value):
        own = type(value).__module__.startswith("ray_h5.")
        return "..." if value is ... else f"ray_h5.{value!r}" if own else repr(value)
    given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    kept = [f"{name}={_code(each)}" for name, each in given.items() if each != defaults[name]]
    return f"ray_h5.{type(value).__name__}({', '.join(kept)})"


def _some_rows(index: RowIndex) -> Iterator[tuple[Any, ...]]:
    """Yield the values of a few rows of the first file that has some."""
    plan = make_plan(index, list(index.outputs.values()))
    counts = np.diff(plan.files.starts)
    file = int(np.flatnonzero(counts)[0])
    rows = np.unique(np.linspace(0, counts[file] - 1, _SAMPLES).astype(np.int64))
    yield "column", "", *(f"row {row:,}" for row in rows.tolist())
    with plan.open(file) as reader:
        for spec in plan.of_files[:_MOST_COLUMNS]:
            try:
                is_small = spec.row_bytes <= _MOST_ROW_BYTES
                values = reader.read([spec.name], rows)[spec.name] if is_small else ()
                shown: list[Any] = [*map(drawn, values)] or [f"{size(spec.row_bytes)}: not shown"]
            except RayH5Error as exc:
                shown = [f"{type(exc).__name__}: {exc}"]
            yield spec.name, str(spec), *shown, *[""] * (len(rows) - len(shown))


def _shuffles(index: RowIndex) -> Iterator[tuple[str, ...]]:
    """Yield what shuffles cost, as planning sees it."""
    yield "shuffle by", "rows mixed", "chunks mixed", "each byte is read, times", "decoded in an epoch"
    columns = list(index.columns.values())
    chosen = make_plan(index, columns, shuffle=Shuffle("auto")).order.shuffle
    for unit in _UNITS:
        plan = make_plan(index, columns, shuffle=Shuffle(unit))
        effect = shuffle_effect(plan, index.chunk_group_rows)
        if effect is None:
            continue
        name = f"{unit} (the default here)" if chosen is not None and chosen.unit == unit else unit
        # Files are drawn, and the rows of each keep their order.
        mixed = ("-", "-") if unit == "files" else (f"{effect.window_rows:,}", f"{effect.chunks_mixed:,}")
        decoded = size(round(effect.reads_per_byte * plan.num_rows * plan.row_bytes))
        yield name, *mixed, f"{effect.reads_per_byte:.1f}", decoded


def _repacks(columns: Sequence[ColumnReport]) -> Iterator[tuple[str, ...]]:
    """Yield what a repack changes: rows of a chunk, bytes decoded for a row, and chunks."""
    yield "column", "rows a chunk", "after", "decoded for a row", "after", "chunks", "after"
    for column in columns:
        if column.is_slow and column.chunk_shape is not None and column.real_bytes:
            row_bytes, rows = column.real_bytes // column.rows, column.chunk_shape[0]
            after, chunks = Layout().rows_of_chunk(row_bytes), chunks_of_row(column) * -(-column.rows // rows)
            decoded = size(rows * row_bytes), size(min(after, column.rows) * row_bytes)
            yield column.name, f"{rows:,}", f"{after:,}", *decoded, f"{chunks:,}", f"{-(-column.rows // after):,}"
