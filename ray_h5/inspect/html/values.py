"""One value of a column as a small picture, a line or a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from ray_h5.columns.varying.sparse_rows import SparseRow
from ray_h5.inspect.html.elements import Markup, image, joined, png, tag

__all__ = ["drawn"]

Array = np.ndarray[Any, Any]

_WIDTH, _HEIGHT = 160, 56
_MOST_PIXELS = 128
_MOST_LETTERS = 120
_MOST_IMAGE_BYTES = 300_000
_LEAST_SIDE = 4
"""Pictures are at least this high and wide."""

_MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}
_COLOURS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], float)
"""Five of viridis, from the least value to the greatest."""


def drawn(value: Any) -> Markup:
    """Return an image for a picture or a matrix, a line for a signal, and text for all else."""
    if isinstance(value, SparseRow):
        return _sparse(value)
    if value is None or isinstance(value, (str, bytes)):
        return _encoded(value) if isinstance(value, bytes) else _text("-" if value is None else value)
    array = np.asarray(value)
    if array.dtype.kind == "O" and array.ndim == 1 and len(array):
        return _text(", ".join(_short(each) for each in array[:8]))
    if array.dtype.kind == "c":
        array = np.abs(array)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        return _text(_short(array[()] if array.ndim == 0 else array.tolist()))
    if array.size == 0:
        return _text(f"empty {array.shape}")
    if array.ndim == 1:
        encoded = array.dtype == np.uint8 and _kind(array[:16].tobytes())
        return _encoded(array.tobytes()) if encoded else _line(array)
    return _picture(array)


def _short(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.6g}"
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _text(text: str) -> Markup:
    return tag("span", text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ...", class_="text")


def _kind(head: bytes) -> str:
    """Return the format of an encoded image, or nothing."""
    found = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    return "" if found == "webp" and head[8:12] != b"WEBP" else found


def _encoded(data: bytes) -> Markup:
    kind = _kind(data[:16])
    if not kind or kind == "bmp":
        return _text(_short(data))
    if len(data) > _MOST_IMAGE_BYTES:
        return _text(f"{kind}, {len(data)} bytes")
    return image(data, kind, f"{kind}, {len(data)} bytes")


def _line(array: Array) -> Markup:
    """Return a line; of many values the least and the greatest of each pixel are drawn."""
    values = array.astype(np.float64)
    if len(values) == 1:
        return _text(_short(array[0]))
    if len(values) > 2 * _WIDTH:
        parts = np.array_split(values, _WIDTH)
        values = np.array([each for part in parts for each in (part.min(), part.max())])
    known = np.isfinite(values)
    if not known.any():
        return _text(f"{len(array)} values, none of them finite")
    low, high = values[known].min(), values[known].max()
    # Half of each: differences of very large values overflow.
    span = (high / 2 - low / 2) or 1.0
    across = np.linspace(1, _WIDTH - 1, len(values))
    down = _HEIGHT - 3 - (_HEIGHT - 6) * np.where(known, (values / 2 - low / 2) / span, 0)
    pieces = np.split(np.arange(len(values)), np.flatnonzero(np.diff(known.astype(np.int8))) + 1)
    lines = [
        tag("polyline", points=" ".join(f"{across[at]:.1f},{down[at]:.1f}" for at in piece))
        for piece in pieces
        if known[piece[0]]
    ]
    return _svg(*lines, described=f"{len(array)} values, {_short(low)} to {_short(high)}")


def _svg(*inside: Markup, described: str) -> Markup:
    shape = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "width": _WIDTH, "height": _HEIGHT, "class_": "line"}
    return tag("svg", tag("title", described), *inside, role="img", **shape)


def _sparse(row: SparseRow) -> Markup:
    text = _text(f"{len(row)} entries")
    if not len(row):
        return text
    places = row.indices.astype(np.float64)
    values = np.abs(np.asarray(row.data, np.float64))
    chosen = np.linspace(0, len(row) - 1, min(len(row), 2 * _WIDTH)).astype(int)
    high = np.nanmax(values[chosen], initial=0.0) or 1.0
    across = 1 + (_WIDTH - 2) * places[chosen] / (places.max() or 1)
    lines = [
        tag("polyline", points=f"{x:.1f},{_HEIGHT} {x:.1f},{_HEIGHT - (_HEIGHT - 4) * value / high:.1f}")
        for x, value in zip(across, np.nan_to_num(values[chosen]), strict=True)
    ]
    return joined(_svg(*lines, described=f"{len(row)} entries"), text)


def _picture(array: Array) -> Markup:
    """Return an image: of colours, or of the first matrix."""
    shape = array.shape
    while array.ndim > 3:
        array = array[0]
    if array.ndim == 3 and _has_colours(array):
        colours = array if array.shape[-1] in {3, 4} else np.moveaxis(array, 0, -1)
        pixels = _smaller(colours[..., :3])
        bytes_ = pixels if pixels.dtype == np.uint8 else (np.nan_to_num(pixels).clip(0, 1) * 255).astype(np.uint8)
        return image(png(np.ascontiguousarray(bytes_)), "png", f"a picture of shape {shape}")
    if array.ndim == 3:
        array = array[..., 0] if array.shape[-1] == 1 else array[0]
    values = _smaller(array).astype(np.float64)
    known = np.isfinite(values)
    low, high = (values[known].min(), values[known].max()) if known.any() else (0.0, 0.0)
    share = np.where(known, (values / 2 - low / 2) / ((high / 2 - low / 2) or 1.0), 0)
    stops = np.linspace(0, 1, len(_COLOURS))
    pixels = np.stack([np.interp(share, stops, _COLOURS[:, channel]) for channel in range(3)], axis=-1)
    pixels[~known] = 128
    return image(png(pixels.astype(np.uint8)), "png", f"shape {shape}, {_short(low)} to {_short(high)}")


def _has_colours(array: Array) -> bool:
    if array.shape[-1] in {3, 4} and min(array.shape[:2]) >= _LEAST_SIDE:
        is_colour = True
    else:
        is_colour = array.shape[0] == 3 and min(array.shape[1:]) >= _LEAST_SIDE
    in_range = array.dtype == np.uint8 or bool(array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1)
    return is_colour and in_range


def _smaller(array: Array) -> Array:
    """Return some of the lines and columns of a large image."""
    steps = [-(-length // _MOST_PIXELS) for length in array.shape[:2]]
    return array[:: steps[0], :: steps[1]]
