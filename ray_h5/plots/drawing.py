"""Parts of figures: panels, lines, images, legends and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.errors import MissingDependencyError
from ray_h5.plots.batch_spread import group_starts
from ray_h5.plots.pictures import is_picture, picture
from ray_h5.plots.texts import short_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

MOST_LINES = 4
"""The most lines in a panel; a larger array of two axes is an image."""

_MOST_NAMES = 12
"""The most names beside an image of a spread."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; its size is in inches."""
    try:
        import matplotlib.figure  # noqa: F401

        from ray_h5.plots.figure import ShownFigure
    except ImportError as exc:
        raise MissingDependencyError(
            "ray_h5.plots needs matplotlib, which is not installed: pip install 'ray_h5[plots]'"
        ) from exc
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


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return an array; `value` may be a tensor on a GPU, with a gradient, or of bfloat16, which numpy does not have."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    try:
        return np.asarray(value)
    except ValueError:
        # Rows of several lengths, which numpy holds as objects.
        return np.fromiter(value, dtype=object)


def name_values(panel: Axes, values: np.ndarray[Any, Any]) -> None:
    """Write the values beside the rows of an image of counts; some of them where there are many."""
    if values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values))):
        panel.yaxis.get_major_locator().set_params(integer=True)  # the values are the numbers of the rows
        return
    starts = group_starts(len(values))
    places = range(0, len(starts), -(-len(starts) // _MOST_NAMES))
    panel.set_yticks(list(places), [short_text(np.asarray(values[starts[place]])) for place in places], fontsize=8)


def draw_counts(panel: Axes, counts: np.ndarray[Any, Any]) -> AxesImage:
    """Draw an image of counts; colours follow their roots, because a shuffled batch has few rows of each value."""
    from matplotlib.colors import PowerNorm

    return panel.imshow(counts, aspect="auto", interpolation="nearest", origin="lower", norm=PowerNorm(0.5, vmin=0))


def draw_line(panel: Axes, values: np.ndarray[Any, Any], **style: Any) -> Line2D:
    """Draw a line, or a dot for a single value, which gives no line."""
    (line,) = panel.plot(values, marker="o" if len(values) == 1 else None, **style)
    return line


def draw(
    figure: Figure,
    panel: Axes,
    array: np.ndarray[Any, Any],
    limits: tuple[float, float] | None = None,
    colours: str | None = None,
    *,
    as_picture: bool | None = None,
) -> None:
    """Draw an array as a picture, an image or lines; `limits` are those of its values."""
    if as_picture if as_picture is not None else colours is None and is_picture(array):
        panel.imshow(picture(array, limits))
        return
    flat = array
    while flat.ndim > 2:
        flat = flat[0]
    if flat.ndim == 2 and min(flat.shape) > 1 and flat.shape[0] > MOST_LINES:
        low, high = limits or (None, None)
        values = flat.astype(np.float64)
        image = panel.imshow(
            values, aspect="auto", origin="lower", interpolation="nearest", vmin=low, vmax=high, cmap=colours
        )
        figure.colorbar(image, ax=panel)
        return
    for line in np.atleast_2d(flat):
        draw_line(panel, line.astype(np.float64), linewidth=1)
    if limits is not None and limits[0] < limits[1]:
        margin = 0.05 * (limits[1] - limits[0])
        panel.set_ylim(limits[0] - margin, limits[1] + margin)
