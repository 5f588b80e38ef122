"""How the chunks of a column hold its rows, as a picture: rows downwards, the chunks of a row beside each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ray_h5.inspect.html.elements import Markup, tag

if TYPE_CHECKING:
    from ray_h5.inspect.report import ColumnReport

__all__ = ["chunks_of_row", "layout_picture"]

_MOST_DOWN, _MOST_ACROSS = 12, 12
_CELL = 12
_LEAST, _MOST = 3, 40
"""Heights of a box: of chunks of a row, and of chunks of 1000 rows or more."""


def layout_picture(column: ColumnReport) -> Markup:
    """Return the chunks of the first rows; those that are decoded for one row are filled."""
    if column.chunk_shape is None or not column.rows:
        boxes = [_box(0, 0, 96, 60, is_read=False), _box(0, 28, 96, 3, is_read=True)]
        return _svg(boxes, 96, 60, f"{column.storage}: a row is read by itself" if column.rows else "no rows")
    rows, across = max(1, column.chunk_shape[0]), chunks_of_row(column)
    down = -(-column.rows // rows)
    height = min(_MOST, max(_LEAST, round(4 + 12 * math.log10(rows))))
    shown, beside = min(down, _MOST_DOWN), min(across, _MOST_ACROSS)
    width = max(_CELL, 96 // beside)
    boxes = [
        _box(place * width, line * height, width - 1, height - 1, is_read=line == shown // 2)
        for line in range(shown)
        for place in range(beside)
    ]
    more = [f"{shown} of {down} lines of chunks are shown"] if shown < down else []
    more += [f"{beside} of {across} chunks of a row are shown"] if beside < across else []
    said = f"{_many(rows, 'row')} a chunk, {_many(across, 'chunk')} a row"
    return _svg(boxes, beside * width, shown * height, "; ".join([said, *more]))


def chunks_of_row(column: ColumnReport) -> int:
    """Return over how many chunks a row is spread."""
    if column.chunk_shape is None:
        return 1
    pairs = zip(column.row_shape, column.chunk_shape[1:], strict=False)
    return math.prod(-(-length // chunk) for length, chunk in pairs if length and chunk)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _box(x: int, y: int, width: int, height: int, *, is_read: bool) -> Markup:
    return tag("rect", x=x, y=y, width=width, height=height, class_="read" if is_read else "chunk")


def _svg(boxes: list[Markup], width: int, height: int, described: str) -> Markup:
    picture = tag(
        "svg",
        tag("title", described),
        *boxes,
        viewBox=f"-1 -1 {width + 2} {height + 2}",
        width=width + 2,
        height=height + 2,
        class_="layout",
        role="img",
    )
    return tag("figure", picture, tag("figcaption", described))
