"""Parts of figures: panels, lines, images, legends and texts."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.errors import MissingDependencyError, OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Array = np.ndarray[Any, Any]

MOST_LINES = 4
"""The most lines in a panel; a larger array of two axes is an image."""

_ROW_AXES = 3
_LEAST_SIDE = 4
_MOST_LETTERS = 40
# For a heading of size 10: digits and most letters are narrower.
_LETTERS_AN_INCH = 10


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; its size is in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise MissingDependencyError(
            "ray_h5.plots needs matplotlib, which is not installed: pip install 'ray_h5[plots]'"
        ) from exc

    class ShownFigure(Figure):
        """A figure that a notebook shows by itself, without a line such as ``%matplotlib inline``."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return ShownFigure(figsize=(width, height), layout="constrained", dpi=100)


def with_literal_texts(figure: Figure) -> Figure:
    """Return the figure with its texts shown literally: a dollar sign in a name starts no formula."""
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math") and "$" in artist.get_text()):
        text.set_parse_math(False)
    return figure


def add_legend(where: Figure | Axes, lines: Sequence[Line2D], **style: Any) -> None:
    """Name the lines by their labels, including labels that begin with ``_``, which matplotlib leaves out."""
    legend = where.legend(handles=lines, labels=["line"] * len(lines), fontsize=9, **style)
    for text, line in zip(legend.get_texts(), lines, strict=True):
        text.set_text(line.get_label())


def as_array(value: Any) -> Array:
    """Return an array; `value` may be a tensor on a GPU, with a gradient, or of bfloat16, which numpy does not have."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    try:
        return np.asarray(value)
    except ValueError:
        # Rows of several lengths, which numpy holds as objects.
        return np.fromiter(value, dtype=object)


def as_sample(value: Any, name: str) -> Array:
    """Return the array of one value of a row.

    Raises
    ------
    OptionError
        If it has more axes than a row: it is a batch.
    """
    array = as_array(value)
    if array.ndim > _ROW_AXES:
        raise OptionError(f"{name}: expected one row of up to {_ROW_AXES} axes, found {array.shape}; pass {name}[0]")
    return array


def wrapped(text: object, width: float) -> str:
    """Break a heading into lines of at most `width` inches; also names without spaces."""
    lines = textwrap.wrap(str(text), max(8, int(width * _LETTERS_AN_INCH)))
    return "\n".join(lines).replace("\xa0", " ")


def short_text(value: Any) -> str:
    """Return a scalar as people write it, or dtype and shape of an array; at most 40 characters."""
    array = np.asarray(value)
    value = array[()]
    if array.ndim:
        text = f"{array.dtype} {array.shape}"
    elif array.dtype.kind == "f":
        text = str(float(value)) if float(value).is_integer() else f"{float(value):.6g}"
    elif array.dtype.kind == "M" or hasattr(value, "isoformat"):
        text = "NaT" if str(value) == "NaT" else str(value).replace("T", " ").partition(".000")[0]
        text = text.removesuffix(" 00:00:00").removesuffix(" 00:00")
    else:
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def is_picture(array: Array) -> bool:
    """Return whether an array is a picture.

    That is (height, width, 3), bytes of (height, width, 4), or (3, height, width) of bytes or of floats in 0 .. 1.
    Three channels of a signal come first too, so an array of that shape is one only if its values are.
    """
    if array.ndim != 3 or array.dtype.kind not in "biuf" or array.size == 0:
        return False
    if _has_colours_last(array):
        return True
    in_range = array.dtype == np.uint8 or bool(array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1)
    return array.shape[0] == 3 and in_range


def _has_colours_last(array: Array) -> bool:
    return array.shape[-1] in ((3, 4) if array.dtype == np.uint8 else (3,)) and min(array.shape[:2]) >= _LEAST_SIDE


def colours_last(array: Array) -> Array:
    """Return a picture as (height, width, 3)."""
    return array[..., :3] if _has_colours_last(array) else np.moveaxis(array, 0, -1)


def finite_range(*arrays: Array) -> tuple[float, float]:
    """Return the least and the greatest finite value; (0, 1) if there is none."""
    finite = np.concatenate([part[np.isfinite(part)].astype(np.float64) for part in arrays])
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def draw(
    figure: Figure,
    panel: Axes,
    array: Array,
    limits: tuple[float, float] | None = None,
    *,
    as_picture: bool,
    **style: Any,
) -> None:
    """Draw an array as a picture, an image or lines; `limits` are those of its values."""
    if as_picture:
        panel.imshow(pixels(array, limits))
        return
    while array.ndim > 2:
        array = array[0]
    if array.ndim == 2 and min(array.shape) > 1 and array.shape[0] > MOST_LINES:
        low, high = limits or (None, None)
        style = {"aspect": "auto", "origin": "lower", "interpolation": "nearest", **style}
        figure.colorbar(panel.imshow(array.astype(np.float64), vmin=low, vmax=high, **style), ax=panel)
        return
    for line in np.atleast_2d(array):
        draw_line(panel, line.astype(np.float64), linewidth=1)
    if limits is not None and limits[0] < limits[1]:
        margin = 0.05 * (limits[1] - limits[0])
        panel.set_ylim(limits[0] - margin, limits[1] + margin)


def pixels(array: Array, limits: tuple[float, float] | None = None) -> Array:
    """Return a picture as (height, width, 3), bytes or floats in 0 .. 1; values beyond are scaled, and NaN is black."""
    array = colours_last(array)
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float64)
    low, high = limits or finite_range(values)
    if low < 0 or high > 1:
        values = (values - low) / ((high - low) or 1.0)
    return np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)


def draw_line(panel: Axes, values: Array, **style: Any) -> Line2D:
    """Draw a line, or a dot for a single value, which gives no line."""
    (line,) = panel.plot(values, marker="o" if len(values) == 1 else None, **style)
    return line
