"""What is found out once of the rows of a file: tables of its rows, times of samples, and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.manifest.partition import Partition
from ray_h5.merged_facts import Facts

if TYPE_CHECKING:
    from ray_h5.columns.derived_columns import ColumnKey, Ragged
    from ray_h5.columns.ragged.bounds import ChunkedBy
    from ray_h5.columns.schema import ColumnSpec
    from ray_h5.manifest.joined_arrays import GroupTable


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The times of the samples of a column in each recording, ascending: at a rate, or listed.

    Times that are integers stay integers.

    Attributes
    ----------
    counts : numpy.ndarray
        int64: the samples of each recording.
    starts : numpy.ndarray
        int64 or float64: the time of the first sample.
    steps : numpy.ndarray
        float64: the time of a sample; where times are listed, in the median.
    rates : numpy.ndarray
        float64: samples in a unit of time; empty where times are listed.
    listed : numpy.ndarray
        int64 or float64: the times of all samples, one recording after the other; empty for a rate.
    closest : numpy.ndarray
        float64: the least time between two listed samples that differ; infinite if there are none.
    resolution : numpy.ndarray
        float64: how far neighbouring floats are apart, of those that the file has near its times; 0 for integers.
    per_second : int
        The unit of times: datetimes are integers of so many a second. 1 for numbers, which offsets are added to.
    """

    counts: np.ndarray
    starts: np.ndarray
    steps: np.ndarray
    rates: np.ndarray = field(default_factory=lambda: np.empty(0))
    listed: np.ndarray = field(default_factory=lambda: np.empty(0))
    closest: np.ndarray = field(default_factory=lambda: np.empty(0))
    resolution: np.ndarray = field(default_factory=lambda: np.empty(0))
    per_second: int = 1

    @property
    def is_regular(self) -> bool:
        """Whether samples are at a rate."""
        return len(self.rates) == len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(value.nbytes for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray))


@dataclass(frozen=True, slots=True, eq=False)
class RowTable(Facts):
    """Facts about the rows of a file that are found once, and that every later reader of the file needs.

    Attributes
    ----------
    groups : GroupTable, optional
        The groups that are rows, or episodes.
    episode_lengths : numpy.ndarray, optional
        int64: the steps of each episode; or the entries of each row of equal values.
    num_steps : int
        With windows: steps of all episodes.
    bounds : mapping of Ragged to Bounds
        Where the rows of columns begin and end in longer arrays, by what says so: in those of their group, if there are
        several, since columns with the same bounds may have arrays of other lengths.
    rows : mapping of str or ColumnKey to Partition
        The rows that each group has of such a column, by column.
    chunked_by : mapping of str to ChunkedBy
        The bounds of such columns.
    chosen : numpy.ndarray, optional
        int64: with `Patches`, the blocks or cells that hold a class.
    chosen_counts : numpy.ndarray, optional
        int64: with `Patches` of groups, how many of these each group has.
    entries : mapping of str to int
        With `Files`, the length of the first axis of columns; with `Patches` that are drawn, what they are drawn in.
    joined : mapping of ColumnKey to GroupTable
        The datasets of columns that consist of many, by what says which: a `joined`, or a dataset of references.
    absent : mapping of str to ColumnSpec
        Columns that other files have and this one lacks: its rows have no values of them.
    lacking_rows : int
        How many rows these are.
    times : mapping of str to Times
        With windows whose columns have times of their own: these, by column.
    """

    groups: GroupTable | None = None
    episode_lengths: np.ndarray | None = None
    num_steps: int = 0
    bounds: Mapping[Ragged, Bounds] = field(default_factory=dict)
    rows: Mapping[str | ColumnKey, Partition] = field(default_factory=dict)
    chunked_by: Mapping[str, ChunkedBy] = field(default_factory=dict)
    chosen: np.ndarray | None = None
    entries: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[ColumnKey, GroupTable] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)
    chosen_counts: np.ndarray | None = None
    absent: Mapping[str, ColumnSpec] = field(default_factory=dict)
    lacking_rows: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        bounds = sum(bound.starts.nbytes + bound.stops.nbytes for bound in self.bounds.values())
        bounds += sum(array.nbytes for array in (self.chosen, self.chosen_counts) if array is not None)
        bounds += sum(rows.starts.nbytes for rows in self.rows.values())
        bounds += sum(array.nbytes for array in self.joined.values())
        bounds += sum(time.nbytes for time in self.times.values())
        return bounds + self.lengths.nbytes + (0 if self.groups is None else self.groups.nbytes)

    def ranges_of(self, name: str) -> tuple[Bounds, int] | None:
        """Return the bounds of the rows of a column, and the chunk size of what they are ranges of; None for others."""
        if (chunked := self.chunked_by.get(name)) is None:
            return None
        if chunked.bounds is None:
            return Bounds.of(Partition.of(self.lengths)), chunked.size
        bounds = self.bounds.get(chunked.bounds)
        return None if bounds is None else (bounds, chunked.size)

    @property
    def lengths(self) -> np.ndarray:
        """int64: the steps of each episode; empty without windows."""
        return np.empty(0, np.int64) if self.episode_lengths is None else self.episode_lengths


@dataclass(frozen=True, slots=True)
class Listing:
    """The columns of a file: names, and the errors of those that cannot be read."""

    names: tuple[str, ...]
    refused: Mapping[str, Exception] = field(default_factory=dict)
