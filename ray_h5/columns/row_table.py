"""What is found out once of the rows of a file: tables of its rows, and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.manifest.partition import Partition
from ray_h5.merged_facts import Facts

if TYPE_CHECKING:
    from ray_h5.columns.derived_columns import ColumnKey, Ragged
    from ray_h5.columns.schema import ColumnSpec
    from ray_h5.manifest.joined_arrays import GroupTable

Kind = TypeVar("Kind", bound=Facts)


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
    chunked_by : mapping of str to (Ragged or None, int)
        Of such columns, what says where rows begin and end, None for rows of equal values; and how many values a chunk
        of the longer array has, by which rows are best read.
    joined : mapping of ColumnKey to GroupTable
        The datasets of columns that consist of many, by what says which: a `joined`, or a dataset of references.
    absent : mapping of str to ColumnSpec
        Columns that other files have and this one lacks: its rows have no values of them.
    lacking_rows : int
        How many rows these are.
    of_kind : Facts, optional
        What the row kind alone needs: `Patches`, `Files`, or windows whose columns have times of their own.
    """

    groups: GroupTable | None = None
    episode_lengths: np.ndarray | None = None
    num_steps: int = 0
    bounds: Mapping[Ragged, Bounds] = field(default_factory=dict)
    rows: Mapping[str | ColumnKey, Partition] = field(default_factory=dict)
    chunked_by: Mapping[str, tuple[Ragged | None, int]] = field(default_factory=dict)
    joined: Mapping[ColumnKey, GroupTable] = field(default_factory=dict)
    absent: Mapping[str, ColumnSpec] = field(default_factory=dict)
    lacking_rows: int = 0
    # A class of the module of the row kind, which alone reads it: a field here would be stored, merged and compared for
    # all others, too.
    of_kind: Facts | None = None

    def found(self, kind: type[Kind]) -> Kind:
        """Return what a row kind found out of the rows; nothing yet if it found nothing."""
        return self.of_kind if isinstance(self.of_kind, kind) else kind()

    def ranges_of(self, name: str) -> tuple[Bounds, int] | None:
        """Return the bounds of the rows of a column, and the chunk size of what they are ranges of; None for others."""
        if name not in self.chunked_by:
            return None
        said, size = self.chunked_by[name]
        bounds = Bounds.of(Partition.of(self.lengths)) if said is None else self.bounds.get(said)
        return None if bounds is None else (bounds, size)

    @property
    def lengths(self) -> np.ndarray:
        """int64: the steps of each episode; empty without windows."""
        return np.empty(0, np.int64) if self.episode_lengths is None else self.episode_lengths


@dataclass(frozen=True, slots=True)
class Listing:
    """The columns of a file: names, and the errors of those that cannot be read."""

    names: tuple[str, ...]
    refused: Mapping[str, Exception] = field(default_factory=dict)
