"""The report of ``ray-h5 inspect`` as one page of HTML, with pictures, that needs no other file and no network."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jinja2
import markupsafe
import numpy as np
from PIL import Image

from ray_h5 import __version__
from ray_h5.columns.sparse_rows import SparseRow
from ray_h5.errors import RayH5Error
from ray_h5.inspect.text import sections
from ray_h5.messages import counted, printable, size
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.shuffle_effect import shuffle_effect
from ray_h5.shown_values import finite_range, is_picture, pixels, short_text
from ray_h5.writing.layouts import Layout

if TYPE_CHECKING:
    from ray_h5.index.file_options import FileOptions
    from ray_h5.index.row_index import RowIndex
    from ray_h5.inspect.report import ColumnReport, Report

_MOST_COLUMNS, _NAMED_COLUMNS = 60, 20
_SAMPLES = 5
_MOST_ROW_BYTES = 16 << 20
_UNITS: tuple[Literal["rows", "chunks", "files"], ...] = ("rows", "chunks", "files")

Array = np.ndarray[Any, Any]

WIDTH, HEIGHT = 160, 56
_MOST_PIXELS, _MOST_LETTERS, _MOST_IMAGE_BYTES = 128, 120, 300_000
_MOST_CHUNKS = 12
_MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif", b"RIFF": "webp"}

Rows = list[tuple[Any, ...]]


def to_html(report: Report, files: FileOptions, paths: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return a report as a page of HTML that needs no other file and no network.

    A few rows of the first file are read. `paths` and `options` are what was asked for, for the call.
    """
    first = report.files[0]
    opened = dataclasses.replace(files, paths=[file.path for file in report.files])
    index = None if report.delivery is None else opened.index()
    columns = [column for column in first.columns if index is None or column.name in index.names] or list(first.columns)
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
        sections=list(sections(report, files.source.names or ())),
        tables=tables.items(),
        repack=f"ray-h5 repack {' '.join(map(shlex.quote, paths))} repacked/" if len(repacks) > 1 else "",
        layouts=[(column.name, Chunks.of(column)) for column in columns[:_MOST_COLUMNS]],
        width=WIDTH,
        height=HEIGHT,
    )


def _printable(value: Any) -> Any:
    """Escape what a terminal or browser would obey, as in the text."""
    is_text = isinstance(value, str) and not isinstance(value, markupsafe.Markup)
    return "\n".join(map(printable, value.split("\n"))) if is_text else value


def _arguments(paths: Sequence[str], options: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the arguments of a call as Python; a few columns are named if the options name none."""
    written = {name: value for name, value in options.items() if value not in (None, (), [], {})}
    is_plain = not {"attrs", "sidecar", "windows", "rows"} & written.keys()  # their columns come by themselves
    if "columns" not in written and is_plain and len(columns) <= _NAMED_COLUMNS:
        written = {"columns": list(columns), **written}
    if "storage_options" in written:
        # They may be secret.
        written["storage_options"] = dict.fromkeys(written["storage_options"], ...)
    lines = [_code(paths[0] if len(paths) == 1 else list(paths)), *(f"{k}={_code(v)}" for k, v in written.items())]
    return "\n" + "".join(f"    {line},\n" for line in [*lines, "shuffle=True"])


def _code(value: Any) -> str:
    """Return a value as Python: of row kinds, windows and tables the fields that are not their defaults."""
    if isinstance(value, list):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_code(item)}" for name, item in value.items()) + "}"
    if not dataclasses.is_dataclass(value):
        own = type(value).__module__.startswith("ray_h5.")
        return "..." if value is ... else f"ray_h5.{value!r}" if own else repr(value)
    values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    kept = [f"{name}={_code(value)}" for name, value in values.items() if value != defaults[name]]
    return f"ray_h5.{type(value).__name__}({', '.join(kept)})"


def _some_rows(index: RowIndex) -> Iterator[tuple[Any, ...]]:
    """Yield the values of a few rows of the first file that has some."""
    plan = make_plan(index, list(index.outputs.values()))
    counts = plan.files.rows.lengths
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
        effect = shuffle_effect(plan)
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


# Pictures -----------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """What is shown of a value: a text, or an image or lines that the text describes."""

    text: str
    image: str = ""
    lines: tuple[str, ...] = ()


class Chunks(NamedTuple):
    """The first chunks of a column: rows downwards, the chunks of a row beside each other."""

    down: int
    across: int
    height: int
    text: str

    @classmethod
    def of(cls, column: ColumnReport) -> Chunks:
        """Return the picture of a column; a column without chunks is one box."""
        if column.chunk_shape is None or not column.rows:
            said = f"{column.storage}: a row is read by itself" if column.storage else "chunks: see without rows="
            return cls(_MOST_CHUNKS, 1, 4, said if column.rows else "no rows")
        rows, across = max(1, column.chunk_shape[0]), chunks_of_row(column)
        shown = f"{counted(rows, 'row')} a chunk, {counted(across, 'chunk')} a row"
        height = min(40, max(3, round(4 + 12 * math.log10(rows))))
        return cls(min(-(-column.rows // rows), _MOST_CHUNKS), min(across, _MOST_CHUNKS), height, shown)


def chunks_of_row(column: ColumnReport) -> int:
    """Return over how many chunks a row is spread."""
    pairs = zip(column.row_shape, (column.chunk_shape or (1,))[1:], strict=False)
    return math.prod(-(-length // chunk) for length, chunk in pairs if length and chunk)


def drawn(value: Any) -> Drawn:
    """Return an image of a picture or a matrix, a line of a signal, and a text of all else."""
    if isinstance(value, SparseRow):
        return Drawn(f"{len(value)} entries")
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1 and _kind(value.tobytes()):
        value = value.tobytes()
    if isinstance(value, bytes):
        kind = _kind(value)
        text = f"{kind}, {len(value)} bytes" if kind else short_text(value, _MOST_LETTERS)
        return Drawn(text, _uri(value, kind) if kind and len(value) <= _MOST_IMAGE_BYTES else "")
    if value is None or isinstance(value, str):
        return Drawn("-" if value is None else short_text(value, _MOST_LETTERS))
    array = np.abs(value) if np.iscomplexobj(value) else np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size < 2:
        return Drawn(short_text(str(array.tolist()) if array.ndim else array, _MOST_LETTERS))
    return _line(array) if array.ndim == 1 else _picture(array)


def _kind(data: bytes) -> str:
    """Return the format of an encoded image that browsers show, or nothing."""
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), "")
    return "" if kind == "webp" and data[8:12] != b"WEBP" else kind


def _uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _scaled(array: Array) -> tuple[Array, str]:
    """Return values from 0 to 1, with NaN for those that are not finite; and their range."""
    values = array.astype(np.float64)
    values[~np.isfinite(values)] = np.nan
    if np.isnan(values).all():
        return values, "none finite"
    low, high = finite_range(values)
    # Half of each: differences of very large values overflow.
    return (values / 2 - low / 2) / ((high / 2 - low / 2) or 1.0), f"{short_text(low)} to {short_text(high)}"


def _line(array: Array) -> Drawn:
    """Return a line; of many values the least and the greatest of each pixel are drawn."""
    values, shown = _scaled(array)
    if len(values) > 2 * WIDTH:
        parts = np.array_split(values, WIDTH)
        values = np.array([bound.reduce(part) for part in parts for bound in (np.fmin, np.fmax)])
    across, down = np.linspace(1, WIDTH - 1, len(values)), HEIGHT - 3 - (HEIGHT - 6) * values
    gaps = np.flatnonzero(np.diff(np.isnan(values).astype(np.int8))) + 1
    pieces = [piece for piece in np.split(np.arange(len(values)), gaps) if not np.isnan(values[piece[0]])]
    lines = tuple(" ".join(f"{across[at]:.1f},{down[at]:.1f}" for at in piece) for piece in pieces)
    return Drawn(f"{len(array)} values, {shown}", lines=lines)


def _picture(array: Array) -> Drawn:
    """Return an image in colour, or of the first matrix in grey."""
    shape = array.shape
    if is_picture(array):
        picture, shown = _smaller(pixels(array)), "in colour"
        picture = picture if picture.dtype == np.uint8 else picture * 255
    else:
        while array.ndim > 2:
            array = array[..., 0] if array.shape[-1] == 1 else array[0]
        values, shown = _scaled(_smaller(array))
        picture = np.repeat(np.nan_to_num(values * 255, nan=128)[..., None], 3, axis=-1)
    return Drawn(f"shape {shape}, {shown}", _uri(png(picture.astype(np.uint8)), "png") if picture.size else "")


def _smaller(array: Array) -> Array:
    """Return some of the lines and columns of a large image."""
    steps = [max(1, -(-length // _MOST_PIXELS)) for length in array.shape[:2]]
    return array[:: steps[0], :: steps[1]]


def png(picture: Array) -> bytes:
    """Encode a picture of bytes, shape (height, width, 3)."""
    encoded = io.BytesIO()
    Image.fromarray(picture).save(encoded, "PNG")
    return encoded.getvalue()
