"""What shuffles cost, and what a repack would give, from the same numbers as planning and repacking use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from ray_h5.errors import RayH5Error
from ray_h5.inspect.html.layout_picture import chunks_of_row
from ray_h5.inspect.table import size
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.read_plan import make_plan
from ray_h5.order.shuffle_cost import shuffle_effect
from ray_h5.writing.layouts import TINY_BYTES, TINY_CHUNKS, Layout, holds_many_rows

if TYPE_CHECKING:
    from ray_h5.index.row_index import RowIndex
    from ray_h5.inspect.report import ColumnReport

__all__ = ["repacks", "shuffles"]

_UNITS: tuple[Literal["rows", "chunks", "files"], ...] = ("rows", "chunks", "files")


def shuffles(index: RowIndex) -> Iterator[tuple[str, ...]]:
    """Yield a line for each shuffle: its unit, rows and chunks that are mixed, bytes read and how often."""
    columns = list(index.columns.values())
    chosen = make_plan(index, columns, shuffle=Shuffle("auto")).order.shuffle
    for unit in _UNITS:
        try:
            plan = make_plan(index, columns, shuffle=Shuffle(unit))
            effect = shuffle_effect(plan, index.chunk_group_rows)
        except RayH5Error as exc:
            yield unit, str(exc), "", "", ""
            continue
        if effect is None or not plan.num_rows:
            continue
        name = f"{unit} (the default here)" if chosen is not None and chosen.unit == unit else unit
        decoded = size(round(effect.reads_per_byte * plan.num_rows * plan.row_bytes))
        # Files are drawn, and the rows of each keep their order.
        window, mixed = ("-", "-") if unit == "files" else (f"{effect.window_rows:,}", f"{effect.chunks_mixed:,}")
        yield name, window, mixed, f"{effect.reads_per_byte:.1f}", decoded


def repacks(columns: Sequence[ColumnReport]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each column whose chunks a repack changes: rows of a chunk, bytes decoded for a row."""
    for column in columns:
        if column.chunk_shape is None or not column.rows or not column.real_bytes:
            continue
        row_bytes, rows, across = column.real_bytes // column.rows, column.chunk_shape[0], chunks_of_row(column)
        chunk_bytes = max(1, rows * row_bytes // across)
        is_tiny = chunk_bytes < TINY_BYTES and across * -(-column.rows // rows) >= TINY_CHUNKS
        is_large = bool(column.pipeline) and holds_many_rows(rows, chunk_bytes, column.rows)
        if not (is_tiny or is_large or across > 1):
            continue
        after = Layout().rows_of_chunk(row_bytes)
        now, then = rows * row_bytes, min(after, column.rows) * row_bytes
        gain = _gain(now, then, across * -(-column.rows // rows), -(-column.rows // after))
        before = f"{across} of {size(chunk_bytes)}"
        yield column.name, f"{rows:,}", f"{after:,}", before, f"1 of {size(then)}", gain


def _gain(now: int, then: int, chunks: int, fewer: int) -> str:
    if now > then:
        return f"{now / then:.3g} times less is decoded for a shuffled row"
    return f"{chunks / fewer:.3g} times fewer chunks to find"
