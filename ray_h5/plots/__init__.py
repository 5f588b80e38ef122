"""Figures of rows, augmentation, shuffles and epochs.

Each function takes arrays and returns a `matplotlib.figure.Figure`. A notebook shows it, and
``figure.savefig("name.png")`` writes it; no window opens. matplotlib is in the extra ``plots``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.errors import MissingDependencyError, OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.options import as_integer
from ray_h5.plots.spread import MOST_GROUPS, comparable, counts, distances, group_starts, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["plot_augmentation", "plot_epochs", "plot_row", "plot_spread"]

_MOST_LINES = 4
"""The most lines in a panel; a larger array of two axes is an image."""

_MOST_NAMES = 12
"""The most names beside an image of a spread."""

_EXACT = "exact shuffle"
"""The order that the orders of a spread are compared with."""

_LETTERS_AN_INCH = 10
"""For a heading of size 10: digits and most letters are narrower."""


def plot_row(row: Mapping[str, Any], *, title: str | None = None) -> Figure:
    """Show the columns of one row: arrays of one axis as lines, of two axes as images, scalars and strings as text.

    Parameters
    ----------
    row : mapping of str to array_like
        By column. Of an array of three axes (channels, freq, time) the first channel is shown. Pictures, (height,
        width, 3) or (3, height, width), are shown in colour if they are bytes, or floats in 0 .. 1.
    title : str, optional
        A title above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    OptionError
        If the row has no columns.
    MissingDependencyError
        If matplotlib is not installed; every function here raises it.
    """
    if not isinstance(row, Mapping) or not row:
        raise OptionError("the row has no columns; expected {column: array}, such as ds.take(1)[0]")
    arrays = {name: _as_array(value) for name, value in row.items()}
    shown = {name: array for name, array in arrays.items() if array.ndim and array.dtype.kind in "biuf"}
    # Lines break only between these texts: non-breaking spaces hold each text together.
    words = [f"{name} = {_short(array)}".replace(" ", "\xa0") for name, array in arrays.items() if name not in shown]
    columns = 1 if len(shown) < 2 else 2
    rows = max(1, math.ceil(len(shown) / columns))
    figure = _figure(6 * columns, 2.4 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (name, array) in zip(panels, shown.items(), strict=False):
        _draw(figure, panel, array)
        panel.set_title(_wrapped(f"{name}  {array.shape} {array.dtype}", 6), fontsize=10)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    # The texts have lines of their own above the panels.
    heading = "\n".join(_wrapped(text, 6 * columns) for text in (title, ", ".join(words)) if text)
    if heading:
        figure.suptitle(heading, fontsize=10)
        # A taller figure, so that these lines do not make the panels smaller.
        figure.set_figheight(figure.get_figheight() + 0.17 * heading.count("\n"))
    return _as_written(figure)


def plot_augmentation(before: Any, after: Any, *, column: str = "") -> Figure:
    """Show a sample before and after augmentation on one scale, and the difference.

    Parameters
    ----------
    before, after : array_like, shape (time,), (freq, time) or (channels, freq, time)
        One sample; of several channels the first is shown.
    column : str
        The name of the column, for the title.

    Raises
    ------
    SchemaMismatchError
        If the two differ in shape.
    UnsupportedColumnError
        If they are not real numbers.
    """
    first, second = _as_array(before), _as_array(after)
    for array in (first, second):
        if array.dtype.kind not in "biuf":
            raise UnsupportedColumnError(f"dtype {array.dtype}: expected real numbers or booleans")
    if first.shape != second.shape:
        raise SchemaMismatchError(f"before has shape {first.shape}, after {second.shape}; expected the same")
    figure = _figure(13, 3.4)
    panels = figure.subplots(1, 3)
    finite = np.concatenate([part[np.isfinite(part)].astype(np.float64) for part in (first, second)])
    limits = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    change = second.astype(np.float64) - first.astype(np.float64)
    for panel, array, name in zip(panels[:2], (first, second), ("before", "after"), strict=True):
        _draw(figure, panel, array, limits)
        panel.set_title(name, fontsize=10)
    # Centred at 0: one colour for greater values, another for smaller, none for unchanged values.
    most = float(np.abs(change[np.isfinite(change)]).max(initial=0)) or 1.0
    _draw(figure, panels[2], change, (-most, most), "RdBu_r")
    panels[2].set_title("after - before", fontsize=10)
    figure.suptitle(_wrapped(f"{column}  {first.shape} {first.dtype}".strip(), 13), fontsize=10)
    return _as_written(figure)


def plot_spread(orders: Mapping[str, Any], batch_size: int, *, what: str = "file", seed: int = 0) -> Figure:
    """Show how files or labels spread over the batches of orders, beside the batches of an exact shuffle.

    The images count rows by batch and file. The curves are the distance of each batch from the whole: half the sum of
    the differences between the shares of the files in the batch and in all rows (the total variation). It is 0 for a
    batch with the same shares as the whole. An exact shuffle is the best possible.

    Parameters
    ----------
    orders : mapping of str to array_like, shape (rows,)
        By name: the file or label of each row, in the order of delivery.
    batch_size : int
        Rows of a batch; an incomplete last batch is not counted.
    what : str
        The name of the values, for the axes.
    seed : int
        The seed of the exact shuffle, which is drawn from the rows of the first order.

    Raises
    ------
    OptionError
        If there is no order, or an order has fewer rows than a batch or the name of the exact shuffle.
    """
    if not isinstance(orders, Mapping):
        raise OptionError("orders: expected {name: the file or label of each row}")
    if _EXACT in orders:
        raise OptionError(f"orders: {_EXACT!r} is the order that they are compared with; expected another name")
    batch_size, seed = as_integer("batch_size", batch_size), as_integer("seed", seed, 0)
    named = comparable({name: _as_array(order).ravel() for name, order in orders.items()})
    if not named or batch_size < 1 or any(len(order) < batch_size for order in named.values()):
        found = {name: len(order) for name, order in named.items()}
        raise OptionError(f"batch_size={batch_size} and orders of {found} rows: expected at least a batch in each")
    named[_EXACT] = np.random.default_rng(seed).permutation(next(iter(named.values())))
    values = np.unique(np.concatenate(list(named.values())))
    width = max(7.0, 3.0 * len(named))
    figure = _figure(width, 6.4)
    grid = figure.add_gridspec(2, len(named), height_ratios=[3, 2])
    curves = figure.add_subplot(grid[1, :])
    most = 1
    images, lines = [], []
    for place, (name, order) in enumerate(named.items()):
        by_batch = counts(np.searchsorted(values, order), len(values), batch_size)
        panel = figure.add_subplot(grid[0, place])
        images.append(panel.imshow(grouped(by_batch), aspect="auto", interpolation="nearest", vmin=0, origin="lower"))
        most = max(most, int(grouped(by_batch).max()))
        panel.set_title(_wrapped(name, width / len(named) - 1), fontsize=10)
        panel.set_xlabel("batch")
        panel.set_ylabel(what if len(values) <= MOST_GROUPS else f"{what}s, in {MOST_GROUPS} groups")
        _name_values(panel, values)
        label = _wrapped(f"{name}, mean\xa0{distances(by_batch).mean():.2f}", width / min(3, len(named)) - 0.5)
        lines.append(_line(curves, distances(by_batch), label=label, linewidth=1.2))
        for axis in (panel.xaxis, curves.xaxis):
            axis.get_major_locator().set_params(integer=True)
    for image in images:
        image.set_clim(0, most)
    figure.colorbar(images[-1], ax=[image.axes for image in images], label="rows")
    curves.set(xlabel="batch", ylabel="distance from the whole", ylim=(0, 1.02))
    # Below the panels: beside the curves it would make the images narrower too.
    _add_legend(figure, lines, loc="outside lower center", ncols=min(3, len(named)))
    return _as_written(figure)


def plot_epochs(rows_per_second: Mapping[str, Sequence[float]], waiting: Mapping[str, Sequence[float]]) -> Figure:
    """Show the speed of each epoch, and the share of its time that the training loop waited for data.

    Parameters
    ----------
    rows_per_second : mapping of str to sequence of float
        By name of a run or loader: the speed of each epoch.
    waiting : mapping of str to sequence of float
        By name: the share of the time of each epoch that was spent waiting, 0 to 1.

    Raises
    ------
    OptionError
        If a share is not within 0 to 1, or an argument is not a mapping of lists of numbers.
    """
    for option, named in (("rows_per_second", rows_per_second), ("waiting", waiting)):
        if not isinstance(named, Mapping):
            raise OptionError(f"{option}: expected {{name: a figure an epoch}}, found {type(named).__name__}")
        for name, figures in named.items():
            if np.ndim(figures) != 1 or np.asarray(figures).dtype.kind not in "biuf":
                raise OptionError(
                    f"{option}: expected a list of numbers for {name!r}, an epoch each, found {figures!r}"
                )
    if any(not 0 <= part <= 1 for parts in waiting.values() for part in parts):
        raise OptionError("waiting: expected parts of the time of an epoch, 0 to 1 (seconds waited / seconds)")
    figure = _figure(10, 3.6)
    speed, waits = figure.subplots(1, 2)
    for name, figures in rows_per_second.items():
        speed.plot(range(len(figures)), figures, marker="o", markersize=4, label=name)
    for name, parts in waiting.items():
        waits.plot(range(len(parts)), [100 * part for part in parts], marker="o", markersize=4, label=name)
    speed.set(xlabel="epoch", ylabel="rows/s", title="speed")
    speed.set_ylim(bottom=0)
    waits.set(xlabel="epoch", ylabel="% of the epoch", title="waiting for data", ylim=(0, 100))
    for panel, runs in ((speed, rows_per_second), (waits, waiting)):
        panel.xaxis.get_major_locator().set_params(integer=True)
        if runs:
            _add_legend(panel, panel.lines)
    return _as_written(figure)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise MissingDependencyError(
            "ray_h5.plots needs matplotlib, which is not installed: pip install 'ray_h5[plots]'"
        ) from exc
    return Figure(figsize=(width, height), layout="constrained", dpi=100)


def _as_written(figure: Figure) -> Figure:
    """Return the figure with its texts shown literally: a dollar sign in a name starts no formula."""
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math") and "$" in artist.get_text()):
        text.set_parse_math(False)
    return figure


def _add_legend(where: Figure | Axes, lines: Sequence[Line2D], **style: Any) -> None:
    """Name the lines by their labels, including labels that begin with ``_``, which matplotlib leaves out."""
    legend = where.legend(handles=lines, labels=["line"] * len(lines), fontsize=9, **style)
    for text, line in zip(legend.get_texts(), lines, strict=True):
        text.set_text(line.get_label())


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return an array; `value` may be a tensor on a GPU, with a gradient, or of bfloat16, which numpy does not have."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    try:
        return np.asarray(value)
    except ValueError:
        # Rows of several lengths, which numpy holds as objects.
        return np.fromiter(value, dtype=object)


def _wrapped(text: object, width: float) -> str:
    """Break a heading into lines of at most `width` inches; also names without spaces."""
    lines = textwrap.wrap(str(text), max(8, int(width * _LETTERS_AN_INCH)))
    return "\n".join(lines).replace("\xa0", " ")


def _name_values(panel: Axes, values: np.ndarray[Any, Any]) -> None:
    """Write the values beside the rows of an image of counts; some of them where there are many."""
    if values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values))):
        panel.yaxis.get_major_locator().set_params(integer=True)  # the values are the numbers of the rows
        return
    starts = group_starts(len(values))
    places = range(0, len(starts), -(-len(starts) // _MOST_NAMES))
    panel.set_yticks(list(places), [_short(np.asarray(values[starts[place]])) for place in places], fontsize=8)


def _line(panel: Axes, values: np.ndarray[Any, Any], **style: Any) -> Line2D:
    """Draw a line, or a dot for a single value, which gives no line."""
    (line,) = panel.plot(values, marker="o" if len(values) == 1 else None, **style)
    return line


def _draw(
    figure: Figure,
    panel: Axes,
    array: np.ndarray[Any, Any],
    limits: tuple[float, float] | None = None,
    colours: str | None = None,
) -> None:
    picture = _as_picture(array) if limits is None else None
    if picture is not None:
        panel.imshow(picture)
        return
    flat = array
    while flat.ndim > 2:
        flat = flat[0]
    if flat.ndim == 2 and min(flat.shape) > 1 and flat.shape[0] > _MOST_LINES:
        low, high = limits or (None, None)
        values = flat.astype(np.float64)
        image = panel.imshow(
            values, aspect="auto", origin="lower", interpolation="nearest", vmin=low, vmax=high, cmap=colours
        )
        figure.colorbar(image, ax=panel)
        return
    for line in np.atleast_2d(flat):
        _line(panel, line.astype(np.float64), linewidth=1)
    if limits is not None and limits[0] < limits[1]:
        margin = 0.05 * (limits[1] - limits[0])
        panel.set_ylim(limits[0] - margin, limits[1] + margin)


def _as_picture(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return an array (height, width, 3) if it can be a picture, of bytes or of floats in 0 .. 1."""
    if array.ndim != 3 or array.size == 0 or 3 not in (array.shape[0], array.shape[-1]):
        return None
    picture = array if array.shape[-1] == 3 else np.moveaxis(array, 0, -1)
    if array.dtype == np.uint8 or (array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1):
        return picture
    return None


def _short(array: np.ndarray[Any, Any]) -> str:
    text = str(array.item()) if array.ndim == 0 else f"{array.dtype} {array.shape}"
    return text if len(text) <= 40 else f"{text[:37]}..."
