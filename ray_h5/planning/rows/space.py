"""What the rows of one file are, for each row kind: its columns, and its episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.parts import Address
from ray_h5.hdf5.segments import GroupTable
from ray_h5.planning.rows.bounds import Bounds, ChunkedBy
from ray_h5.planning.rows.cf_columns import CFColumn
from ray_h5.planning.rows.coded_columns import CategoryColumn, FieldColumn, OptionalColumn, PlainColumn
from ray_h5.planning.rows.columns import SegmentColumn, UnitColumn, ValuesColumn, WindowedColumn
from ray_h5.planning.rows.range_columns import CsrColumn, RaggedColumn
from ray_h5.planning.rows.reversed_columns import ReversedColumn

Column: TypeAlias = (
    ValuesColumn
    | UnitColumn
    | SegmentColumn
    | WindowedColumn
    | PlainColumn
    | FieldColumn
    | CategoryColumn
    | OptionalColumn
    | RaggedColumn
    | CsrColumn
    | CFColumn
    | ReversedColumn
)


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """Facts about the rows of a file that are found once, and that every later reader of the file needs.

    Attributes
    ----------
    groups : GroupTable, optional
        The groups that are rows, or episodes.
    episode_lengths : numpy.ndarray, optional
        int64: the steps of each episode.
    num_steps : int
        With windows: steps of all episodes.
    bounds : mapping of str to Bounds
        Where the rows of columns begin and end in longer arrays, by the datasets that say so.
    chunked_by : mapping of str to ChunkedBy
        The bounds of such columns.
    """

    groups: GroupTable | None = None
    episode_lengths: np.ndarray | None = None
    num_steps: int = 0
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    chunked_by: Mapping[str, ChunkedBy] = field(default_factory=dict)

    def holds(self, other: RowTable) -> bool:
        """Return whether all bounds of another table are here too."""
        return self.bounds.keys() >= other.bounds.keys() and self.chunked_by.keys() >= other.chunked_by.keys()

    @property
    def nbytes(self) -> int:
        """Bytes of the bounds."""
        return sum(each.starts.nbytes + each.stops.nbytes for each in self.bounds.values())

    @property
    def lengths(self) -> np.ndarray:
        """int64: the steps of each episode; empty without windows."""
        return np.empty(0, np.int64) if self.episode_lengths is None else self.episode_lengths


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Where the steps of episodes are: a unit for each step.

    Attributes
    ----------
    address : Address
        The dataset, or datasets.
    stored : ColumnLayout
        A layout with the type and shape of a unit.
    starts : numpy.ndarray
        int64: the first unit of each episode.
    chunk_rows : int
        Steps that are best read together.
    """

    address: Address
    stored: ColumnLayout
    starts: np.ndarray
    chunk_rows: int = 1


@dataclass(frozen=True, slots=True)
class Listing:
    """The columns of a file: names, and the errors of those that cannot be read."""

    names: tuple[str, ...]
    refused: Mapping[str, Exception] = field(default_factory=dict)


class Space(Protocol):
    """The rows of one file, and their columns."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def table(self) -> RowTable:
        """What was found out so far."""

    def listing(self) -> Listing:
        """Return the columns."""

    def prepare(self, names: Iterable[str]) -> None:
        """Find out about columns, several at once."""

    def column(self, name: str) -> Column:
        """Return one column; raise `UnknownColumnError` if there is none."""

    def episode_names(self) -> np.ndarray:
        """Return a name for each group or episode, as bytes."""


class Episodes(Space, Protocol):
    """The rows of one file that are also episodes, for windows."""

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        """Return the steps of each episode, given the columns that have offsets."""

    def steps(self, name: str, lengths: np.ndarray) -> Steps | None:
        """Return where the steps of a column are; None if the column is a constant of each episode."""

    def is_step(self, name: str) -> bool:
        """Return whether a column is the number of the step itself."""

    def constant(self, name: str) -> Column:
        """Return a column with one row for each episode."""
