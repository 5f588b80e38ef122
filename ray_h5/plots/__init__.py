"""Figures of rows, augmentation, shuffles and epochs.

Each function takes arrays and returns a `matplotlib.figure.Figure`. A notebook shows it, and
``figure.savefig("name.png")`` writes it; no window opens. matplotlib is in the extra ``plots``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.options import as_integer
from ray_h5.plots.batch_spread import (
    MOST_GROUPS,
    check_lengths,
    comparable,
    counts,
    distances,
    grouped,
    padding,
)
from ray_h5.plots.drawing import (
    add_legend,
    as_array,
    draw,
    draw_counts,
    draw_line,
    name_values,
    new_figure,
    with_literal_texts,
)
from ray_h5.plots.pictures import check_one_row, check_one_sample, finite_range, is_picture
from ray_h5.plots.texts import short_text, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

__all__ = ["plot_augmentation", "plot_epochs", "plot_row", "plot_spread"]

_EXACT = "exact shuffle"
"""The order that the orders of a spread are compared with."""


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
        If the row has no columns, or is a batch of rows.
    MissingDependencyError
        If matplotlib is not installed; every function here raises it.
    """
    if not isinstance(row, Mapping) or not row:
        raise OptionError("the row has no columns; expected {column: array}, such as ds.take(1)[0]")
    arrays = {name: as_array(value) for name, value in row.items()}
    check_one_row(arrays)
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
        draw(figure, panel, array)
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
        If they are batches of samples.
    SchemaMismatchError
        If the two differ in shape.
    UnsupportedColumnError
        If they are not real numbers.
    """
    for name, given in (("before", before), ("after", after)):
        if isinstance(given, Mapping):
            raise OptionError(
                f"{name}: expected the values of one column, found a row of {len(given)} columns. Pass one of them, "
                f"such as {name}[{column or next(iter(given), 'signal')!r}]"
            )
    first, second = as_array(before), as_array(after)
    for array in (first, second):
        if array.dtype.kind not in "biuf":
            raise UnsupportedColumnError(f"dtype {array.dtype}: expected real numbers or booleans")
    if first.shape != second.shape:
        raise SchemaMismatchError(f"before has shape {first.shape}, after {second.shape}; expected the same")
    check_one_sample(first, "before")
    figure = new_figure(13, 3.4)
    panels = figure.subplots(1, 3)
    limits = finite_range([first, second])
    change = second.astype(np.float64) - first.astype(np.float64)
    in_colour = is_picture(first)
    if in_colour:
        change = change.mean(axis=-1 if first.shape[-1] == 3 else 0)
    for panel, array, name in zip(panels[:2], (first, second), ("before", "after"), strict=True):
        draw(figure, panel, array, limits, as_picture=in_colour)
        panel.set_title(name, fontsize=10)
    # Centred at 0: one colour for greater values, another for smaller, none for unchanged values.
    most = float(np.abs(change[np.isfinite(change)]).max(initial=0)) or 1.0
    draw(figure, panels[2], change, (-most, most), "RdBu_r")
    if in_colour:
        panels[2].images[0].axes.set(aspect="equal", ylim=panels[0].get_ylim())
    panels[2].set_title("after - before", fontsize=10)
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
    if not isinstance(orders, Mapping):
        raise OptionError("orders: expected {name: the file or label of each row}")
    if _EXACT in orders:
        raise OptionError(f"orders: {_EXACT!r} is what they are compared with; expected another name")
    batch_size, seed = as_integer("batch_size", batch_size), as_integer("seed", seed, 0)
    named = comparable({name: as_array(order).ravel() for name, order in orders.items()})
    if not named or batch_size < 1 or any(len(order) < batch_size for order in named.values()):
        found = {name: len(order) for name, order in named.items()}
        raise OptionError(f"batch_size={batch_size} and orders of {found} rows: expected at least a batch in each")
    if are_lengths:
        check_lengths(named)
    named[_EXACT] = np.random.default_rng(seed).permutation(next(iter(named.values())))
    values = np.unique(np.concatenate(list(named.values())))
    width = max(7.0, 3.0 * len(named))
    figure = new_figure(width, 6.4)
    grid = figure.add_gridspec(2, len(named), height_ratios=[3, 2])
    curves = figure.add_subplot(grid[1, :])
    most = 1
    images, lines = [], []
    for place, (name, order) in enumerate(named.items()):
        by_batch = counts(np.searchsorted(values, order), len(values), batch_size)
        panel = figure.add_subplot(grid[0, place])
        images.append(draw_counts(panel, grouped(by_batch)))
        most = max(most, int(grouped(by_batch).max()))
        panel.set_title(wrapped(name, width / len(named) - 1), fontsize=10)
        name_values(panel, values)
        if place:
            # The values are the same in each panel.
            panel.tick_params(labelleft=False)
        else:
            panel.set_ylabel(what if len(values) <= MOST_GROUPS else f"{what}, in {MOST_GROUPS} groups")
        curve = padding(order, batch_size) if are_lengths else distances(by_batch)
        label = wrapped(f"{name}, mean\xa0{curve.mean():.2f}", width / min(3, len(named)) - 0.5)
        lines.append(draw_line(curves, curve, label=label, linewidth=1.2))
        for axis in (panel.xaxis, curves.xaxis):
            axis.get_major_locator().set_params(integer=True)
    for image in images:
        image.set_clim(0, most)
    figure.colorbar(images[-1], ax=[image.axes for image in images], label="rows")
    curves.set(xlabel="batch", ylabel="padding" if are_lengths else "distance from the whole", ylim=(0, 1.02))
    # Below the panels: beside the curves it would make the images narrower too.
    add_legend(figure, lines, loc="outside lower center", ncols=min(3, len(named)))
    return with_literal_texts(figure)


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
    figure = new_figure(10, 3.6)
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
            add_legend(panel, panel.lines)
    return with_literal_texts(figure)
