"""One value of a column as an image, a line or a text, and the chunks of a column, for the page of `inspect`."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ray_h5.columns.ragged.sparse_rows import SparseRow
from ray_h5.messages import counted
from ray_h5.shown_values import finite_range, is_picture, pixels

if TYPE_CHECKING:
    from ray_h5.inspect.report import ColumnReport

Array = np.ndarray[Any, Any]

WIDTH, HEIGHT = 160, 56
_MOST_PIXELS, _MOST_LETTERS, _MOST_IMAGE_BYTES = 128, 120, 300_000
_MOST_CHUNKS = 12
_MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif", b"RIFF": "webp"}


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
            return cls(_MOST_CHUNKS, 1, 4, f"{column.storage}: a row is read by itself" if column.rows else "no rows")
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
    if value is None or isinstance(value, (str, bytes)):
        return _encoded(value) if isinstance(value, bytes) else Drawn("-" if value is None else _short(value))
    array = np.abs(value) if np.iscomplexobj(value) else np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size < 2:
        return Drawn(_short(array.tolist()))
    return _line(array) if array.ndim == 1 else _picture(array)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ..."


def _kind(data: bytes) -> str:
    """Return the format of an encoded image that browsers show, or nothing."""
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), "")
    return "" if kind == "webp" and data[8:12] != b"WEBP" else kind


def _encoded(data: bytes) -> Drawn:
    kind = _kind(data)
    text = f"{kind}, {len(data)} bytes" if kind else _short(data)
    return Drawn(text, _uri(data, kind) if kind and len(data) <= _MOST_IMAGE_BYTES else "")


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
    return (values / 2 - low / 2) / ((high / 2 - low / 2) or 1.0), f"{_short(low)} to {_short(high)}"


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
        found, shown = _smaller(pixels(array)), "in colour"
        found = found if found.dtype == np.uint8 else found * 255
    else:
        while array.ndim > 2:
            array = array[..., 0] if array.shape[-1] == 1 else array[0]
        values, shown = _scaled(_smaller(array))
        found = np.repeat(np.nan_to_num(values * 255, nan=128)[..., None], 3, axis=-1)
    return Drawn(f"shape {shape}, {shown}", _uri(png(found.astype(np.uint8)), "png") if found.size else "")


def _smaller(array: Array) -> Array:
    """Return some of the lines and columns of a large image."""
    steps = [max(1, -(-length // _MOST_PIXELS)) for length in array.shape[:2]]
    return array[:: steps[0], :: steps[1]]


def png(picture: Array) -> bytes:
    """Encode a picture of bytes, shape (height, width, 3)."""
    height, width, _ = picture.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, width * 3)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
