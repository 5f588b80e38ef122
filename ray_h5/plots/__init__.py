"""Figures of rows, augmentation, shuffles and epochs.

Each function takes arrays and returns a `matplotlib.figure.Figure`. A notebook shows it, and
``figure.savefig("name.png")`` writes it; no window opens. matplotlib is in the extra ``plots``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.errors import MissingDependencyError, OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.options import as_integer
from ray_h5.shown_values import (
    Array,
    as_array,
    as_sample,
    colours_last,
    finite_range,
    is_picture,
    pixels,
    short_text,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["plot_augmentation", "plot_epochs", "plot_row", "plot_spread"]

MOST_LINES = 4
"""The most lines in a panel; a larger array of two axes is an image."""

_EXACT = "exact shuffle"
"""The order that the orders of a spread are compared with."""

_MOST_GROUPS, _MOST_NAMES = 64, 12
"""The most files or labels with a line of their own in an image of a spread, and of names beside it."""


def __dir__() -> list[str]:
    return __all__


def plot_row(row: Mapping[str, Any], *, title: str | None = None) -> Figure:
    """Show the columns of one row: arrays of one axis as lines, of two axes as images, scalars and strings as text.

    Parameters
    ----------
    row : mapping of str to array_like
        By column. Of an array of three axes (channels, freq, time) the first channel is shown. Pictures of
        shape (height, width, 3) are shown in colour, and those of shape (3, height, width) if they are bytes, or
        floats in 0 .. 1. Values beyond 0 .. 1 are scaled to it.
    title : str, optional
        A title above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    OptionError
        If the row has no columns, or one has more than three axes, as in a batch.
    MissingDependencyError
        If matplotlib is not installed; every function here raises it.
    """
    if not isinstance(row, Mapping) or not row:
        raise OptionError("the row has no columns; expected {column: array}, such as ds.take(1)[0]")
    arrays = {name: as_sample(value, name) for name, value in row.items()}
    shown = {name: array for name, array in arrays.items() if array.ndim and array.dtype.kind in "biuf"}
    # Lines break only between these texts: non-breaking spaces hold each text together.
    texts = [
        f"{name} = {short_text(array)}".replace(" ", "\xa0") for name, array in arrays.items() if name not in shown
    ]
    columns = 1 if len(shown) < 2 else 2
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(6 * columns, 2.4 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).ravel() if shown else []
    for panel, (name, array) in zip(panels, shown.items(), strict=False):
        draw(figure, panel, array, as_picture=is_picture(array))
        part = f", channel 0 of {array.shape[0]}" if array.ndim == 3 and not is_picture(array) else ""
        panel.set_title(wrapped(f"{name}  {array.shape} {array.dtype}{part}", 6), fontsize=10)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    # The texts have lines of their own above the panels.
    heading = "\n".join(wrapped(text, 6 * columns) for text in (title, ", ".join(texts)) if text)
    if heading:
        figure.suptitle(heading, fontsize=10)
        # A taller figure, so that these lines do not make the panels smaller.
        figure.set_figheight(figure.get_figheight() + 0.17 * heading.count("\n"))
    return with_literal_texts(figure)


def plot_augmentation(before: Any, after: Any, *, column: str = "") -> Figure:
    """Show a sample before and after augmentation on one scale, and the difference.

    Parameters
    ----------
    before, after : array_like, shape (time,), (freq, time) or (channels, freq, time)
        One sample; of several channels the first is shown. Pictures are shown as in `plot_row`; of their
        difference the mean over the colours.
    column : str
        The name of the column, for the title.

    Raises
    ------
    OptionError
        If they are batches of samples, or rows.
    SchemaMismatchError
        If the two differ in shape.
    UnsupportedColumnError
        If they are not real numbers.
    """
    if isinstance(before, Mapping):
        raise OptionError(f"before: expected the values of one column, found a row; pass before[{column or 'name'!r}]")
    first, second = as_sample(before, "before"), as_sample(after, "after")
    for array in (first, second):
        if array.dtype.kind not in "biuf":
            raise UnsupportedColumnError(f"dtype {array.dtype}: expected real numbers or booleans")
    if first.shape != second.shape:
        raise SchemaMismatchError(f"before has shape {first.shape}, after {second.shape}; expected the same")
    is_coloured = is_picture(first)
    change = second.astype(np.float64) - first.astype(np.float64)
    if is_coloured:
        change = (colours_last(second).astype(np.float64) - colours_last(first)).mean(axis=-1)
    figure = new_figure(13, 3.4)
    panels = figure.subplots(1, 3)
    for panel, array in zip(panels, (first, second), strict=False):
        draw(figure, panel, array, finite_range(first, second), as_picture=is_coloured)
    # Centred at 0: one colour for greater values, another for smaller, none for unchanged values.
    most = float(np.abs(change[np.isfinite(change)]).max(initial=0)) or 1.0
    draw(figure, panels[2], change, (-most, most), as_picture=False, cmap="RdBu_r")
    if is_coloured:
        panels[2].set(aspect="equal", ylim=panels[0].get_ylim())
    for panel, name in zip(panels, ("before", "after", "after - before"), strict=True):
        panel.set_title(name, fontsize=10)
    figure.suptitle(wrapped(f"{column}  {first.shape} {first.dtype}".strip(), 13), fontsize=10)
    return with_literal_texts(figure)


def plot_spread(
    orders: Mapping[str, Any], batch_size: int, *, what: str = "file", seed: int = 0, are_lengths: bool = False
) -> Figure:
    """Show how files or labels spread over the batches of orders, beside the batches of an exact shuffle.

    The images count rows by batch and file. The curves are the distance of each batch from the whole: half the sum of
    the differences between the shares of the files in the batch and in all rows (the total variation). It is 0 for a
    batch with the same shares as the whole. An exact shuffle is the best possible that has each row once; batches of
    balanced draws are at 0, and their whole has equal shares.

    With `are_lengths` the values are the lengths of rows. The curves are then the part of each batch that is padding,
    if its rows are padded to the longest of them.

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
    are_lengths : bool
        Whether the values are lengths of rows, numbers of 0 or more.

    Raises
    ------
    OptionError
        If there is no order, an order has fewer rows than a batch or the name of the exact shuffle, or a length is no
        number of 0 or more.
    """
    named = _checked_orders(orders, as_integer("batch_size", batch_size, 1), are_lengths)
    named[_EXACT] = np.random.default_rng(as_integer("seed", seed, 0)).permutation(next(iter(named.values())))
    values = np.unique(np.concatenate(list(named.values())))
    width = max(7.0, 3.0 * len(named))
    figure = new_figure(width, 6.4)
    grid = figure.add_gridspec(2, len(named), height_ratios=[3, 2])
    curves = figure.add_subplot(grid[1, :])
    # The values are the same in each panel, and stand beside the first.
    panels = [figure.add_subplot(grid[0, place]) for place in range(len(named))]
    images, lines = [], []
    for panel, (name, order) in zip(panels, named.items(), strict=True):
        numbers = np.searchsorted(values, order)
        images.append(_draw_counts(panel, numbers, values, batch_size))
        panel.set_title(wrapped(name, width / len(named) - 1), fontsize=10)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.tick_params(labelleft=panel is panels[0])
        curve = _padding(order, batch_size) if are_lengths else _distances(numbers, len(values), batch_size)
        label = wrapped(f"{name}, mean\xa0{curve.mean():.2f}", width / min(3, len(named)) - 0.5)
        lines.append(draw_line(curves, curve, label=label, linewidth=1.2))
    panels[0].set_ylabel(what if len(values) <= _MOST_GROUPS else f"{what}, in {_MOST_GROUPS} groups")
    most = max(int(image.get_array().max()) for image in images)
    for image in images:
        image.set_clim(0, most)
    figure.colorbar(images[-1], ax=panels, label="rows")
    curves.xaxis.get_major_locator().set_params(integer=True)
    curves.set(xlabel="batch", ylabel="padding" if are_lengths else "distance from the whole", ylim=(0, 1.02))
    # Below the panels: beside the curves it would make the images narrower too.
    add_legend(figure, lines, loc="outside lower center", ncols=min(3, len(named)))
    return with_literal_texts(figure)


def _checked_orders(orders: Mapping[str, Any], batch_size: int, are_lengths: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Return orders as arrays whose values can be sorted together: as strings, unless all of them are numbers."""
    if not isinstance(orders, Mapping) or not orders or _EXACT in orders:
        raise OptionError(f"orders: expected {{name: the file or label of each row}}, and no name {_EXACT!r}")
    named = {name: as_array(order).ravel() for name, order in orders.items()}
    if short := {name: len(order) for name, order in named.items() if len(order) < batch_size}:
        raise OptionError(f"batch_size={batch_size} and orders of {short} rows: expected at least a batch in each")
    are_numbers = all(order.dtype.kind in "biuf" for order in named.values())
    if not are_numbers and not are_lengths:
        return {name: np.array([short_text(value) for value in order]) for name, order in named.items()}
    for name, order in named.items() if are_lengths else ():
        wrong = order[~((order >= 0) & np.isfinite(order))] if are_numbers else order
        if len(wrong):
            raise OptionError(f"orders: {name!r}: expected lengths, numbers of 0 or more, found {wrong[0]}")
    return named


def _cells(numbers: np.ndarray[Any, Any], kinds: int, batch_size: int) -> np.ndarray[Any, Any]:
    """Return for each row of a whole batch its cell in a table of shape (batches, kinds)."""
    batches = len(numbers) // batch_size
    return np.repeat(np.arange(batches), batch_size) * kinds + numbers[: batches * batch_size]


def _distances(numbers: np.ndarray[Any, Any], kinds: int, batch_size: int) -> np.ndarray[Any, Any]:
    """Return the total variation between the shares of the values in each batch and in the whole: 0 to 1."""
    # Only cells with rows are listed: most values are in few batches. What a batch lacks has its share of the whole.
    cells, counts = np.unique(_cells(numbers, kinds, batch_size), return_counts=True)
    batches, present = np.divmod(cells, kinds)
    whole = (np.bincount(present, counts, kinds) / counts.sum())[present]
    return (1 + np.bincount(batches, np.abs(counts / batch_size - whole) - whole)) / 2


def _padding(lengths: np.ndarray[Any, Any], batch_size: int) -> np.ndarray[Any, Any]:
    """Return the part of each batch that is padding, if rows are padded to its longest: 0 to 1."""
    by_batch = lengths[: len(lengths) // batch_size * batch_size].reshape(-1, batch_size).astype(np.float64)
    longest = by_batch.max(axis=1)
    # Where all rows of a batch are empty, nothing is padded.
    return (longest - by_batch.mean(axis=1)) / np.where(longest > 0, longest, 1)


def _draw_counts(panel: Axes, numbers: np.ndarray[Any, Any], values: np.ndarray[Any, Any], batch_size: int) -> Any:
    """Draw an image of the rows by batch and value, with some of the values beside it; `numbers` are those of rows."""
    from matplotlib.colors import PowerNorm

    starts = np.unique(np.linspace(0, len(values), _MOST_GROUPS, endpoint=False).astype(int))
    if values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values))):
        panel.yaxis.get_major_locator().set_params(integer=True)  # the values are the numbers of the rows
    else:
        places = range(0, len(starts), -(-len(starts) // _MOST_NAMES))
        panel.set_yticks(list(places), [short_text(values[starts[place]]) for place in places], fontsize=8)
    group_of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    cells = _cells(group_of[numbers], len(starts), batch_size)
    grouped = np.bincount(cells, minlength=len(numbers) // batch_size * len(starts)).reshape(-1, len(starts)).T
    # Colours follow the roots of counts, because a shuffled batch has few rows of each value.
    return panel.imshow(grouped, aspect="auto", interpolation="nearest", origin="lower", norm=PowerNorm(0.5, vmin=0))


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
        lists = named.values() if isinstance(named, Mapping) else [None]
        if any(np.ndim(values) != 1 or np.asarray(values).dtype.kind not in "biuf" for values in lists):
            raise OptionError("expected {name: a list of numbers, an epoch each}", option=option, value=named)
    if any(not 0 <= part <= 1 for parts in waiting.values() for part in parts):
        raise OptionError("waiting: expected parts of the time of an epoch, 0 to 1 (seconds waited / seconds)")
    figure = new_figure(10, 3.6)
    speed, waits = figure.subplots(1, 2)
    for panel, runs, unit in ((speed, rows_per_second, 1), (waits, waiting, 100)):
        for name, figures in runs.items():
            panel.plot([unit * figure for figure in figures], marker="o", markersize=4, label=name)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if runs:
            add_legend(panel, panel.lines)
    speed.set(xlabel="epoch", ylabel="rows/s", title="speed")
    speed.set_ylim(bottom=0)
    waits.set(xlabel="epoch", ylabel="% of the epoch", title="waiting for data", ylim=(0, 100))
    return with_literal_texts(figure)


# Parts of figures ---------------------------------------------------------------------------------


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


def draw_line(panel: Axes, values: Array, **style: Any) -> Line2D:
    """Draw a line, or a dot for a single value, which gives no line."""
    (line,) = panel.plot(values, marker="o" if len(values) == 1 else None, **style)
    return line
