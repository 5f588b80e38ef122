"""The units of rows as runs, and what a read of them fills: an array in which rows are stacked, or an array a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.values import Reading, Values, read_apart
from ray_h5.manifest.row_requests import Request


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The units of rows: those of row i are ``counts[i]`` consecutive ones, from ``begins[i]`` on.

    Attributes
    ----------
    begins, counts : numpy.ndarray
        int64: the first unit, and the number of units.
    places : numpy.ndarray
        int64: where each row goes along the first axis of an output.
    entries : RowEntries, optional
        The units that a row has of these; None for all.
    keys : numpy.ndarray, optional
        uint64: the key of each row, by which entries are drawn.
    """

    begins: np.ndarray
    counts: np.ndarray
    places: np.ndarray
    entries: RowEntries | None = None
    keys: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> Runs:
        """Return the runs of some of the rows."""
        keys = None if self.keys is None else self.keys[chosen]
        begins, counts, places = self.begins[chosen], self.counts[chosen], self.places[chosen]
        return replace(self, begins=begins, counts=counts, places=places, keys=keys)

    @property
    def lengths(self) -> np.ndarray:
        """int64: the units that each row has."""
        return self.counts if self.entries is None else self.entries.counts(self.counts)

    def request(self, at: np.ndarray) -> Request:
        """Return the request that puts the units of row i to place ``at[i]`` and those after it."""
        if self.entries is None:
            runs = Request(self.begins, at, self.counts)
            return runs if self.counts.all() else runs.select(self.counts > 0)
        of, firsts, counts = self.entries.runs(self.counts, self.keys)
        before = np.cumsum(counts) - counts
        of_row = before[np.searchsorted(of, of)]  # before the first run of the row
        return Request(self.begins[of] + firsts, at[of] + before - of_row, counts)

    def stacked(self, values: Values, out: np.ndarray) -> Reading:
        """Return the reading of rows of one length into an array: row i is ``out[places[i]]``."""
        if not out.size:
            return Reading()
        length = out.shape[1]
        if out.flags.c_contiguous:
            return values.reading(self.request(self.places * length), out.reshape(-1, *out.shape[2:]))
        request = self.request(np.arange(len(self.places)) * length)
        return read_apart(
            lambda apart: values.reading(request, apart.reshape(-1, *out.shape[2:])), out.shape[1:], self.places, out
        )

    def varying(self, values: Values, out: np.ndarray, unit_shape: tuple[int, ...] | None = None) -> Reading:
        """Return the reading of rows as arrays of their own, which are parts of one array.

        `unit_shape` is that of the units of these rows, if others have another one.
        """
        array, stops = values.array, np.cumsum(self.lengths)
        shape = array.row_shape if unit_shape is None else unit_shape
        flat = empty((int(stops[-1]) if len(stops) else 0, *shape), array.dtype, f"column {array.name!r}")
        request = self.request(stops - self.lengths)
        is_read = len(request) and (unit_shape is None or flat.size)
        reading = values.reading(request if unit_shape is None else request.listed(), flat) if is_read else Reading()

        def finish() -> None:
            begin = 0
            for place, end in zip(self.places.tolist(), stops.tolist(), strict=True):
                out[place] = flat[begin:end]
                begin = end

        return reading.then(finish)


def by_shape(shapes: np.ndarray, read: Callable[[np.ndarray, tuple[int, ...]], Reading]) -> Reading:
    """Return the readings of rows whose units have these shapes, those of one shape together.

    `read` returns the reading of some of the rows, given which and the shape of their units.
    """
    distinct, shape_of = np.unique(shapes, axis=0, return_inverse=True)
    of = shape_of.reshape(-1)
    return Reading.together(
        [read(np.flatnonzero(of == at), tuple(shape)) for at, shape in enumerate(distinct.tolist())]
    )
