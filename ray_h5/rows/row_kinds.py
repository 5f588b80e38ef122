"""What the rows of one file are, for each row kind: its columns, and its episodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ray_h5.columns.row_table import Listing, RowTable

if TYPE_CHECKING:
    from ray_h5.columns.dataset_columns import DatasetColumn
    from ray_h5.columns.values import Values
    from ray_h5.manifest.joined_arrays import JoinedArray
    from ray_h5.rows.row_columns import Column, RowColumn


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Where the steps of episodes are: a unit for each step.

    Attributes
    ----------
    values : Values
        The values of units.
    starts : numpy.ndarray
        int64: the first unit of each episode.
    chunk_rows : int
        Steps that are best read together.
    joined : JoinedArray, optional
        The datasets, if each episode has its own.
    """

    values: Values
    starts: np.ndarray
    chunk_rows: int = 1
    joined: JoinedArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Where the samples of a column are: a unit for each.

    Attributes
    ----------
    values : Values
        The values of units.
    starts, lengths : numpy.ndarray
        int64: the first unit and the number of units of each recording.
    joined : JoinedArray, optional
        The datasets, if each recording has its own.
    is_single : bool
        Whether each recording has a single value, and no axis.
    """

    values: Values
    starts: np.ndarray
    lengths: np.ndarray
    joined: JoinedArray | None = None
    is_single: bool = False


class RowsOfKind(Protocol):
    """The rows of one file, and their columns."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def table(self) -> RowTable:
        """What was found out so far."""

    def listing(self) -> Listing:
        """Return the columns."""

    def prepare(self, names: Iterable[str]) -> None:  # noqa: ARG002
        """Find out about columns, several at once; nothing where the reader describes them one by one."""
        return

    def column(self, name: str) -> Column:
        """Return one column; raise `UnknownColumnError` if there is none."""

    def episode_names(self) -> np.ndarray:
        """Return a name for each group or episode, as bytes."""


class EpisodeRows:
    """Rows that each belong to an episode."""

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the episode of each row."""
        raise NotImplementedError


class Episodes(RowsOfKind, Protocol):
    """The rows of one file that are also episodes, for windows."""

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        """Return the steps of each episode, given the columns that have offsets."""

    def steps(self, name: str, lengths: np.ndarray) -> Steps | None:
        """Return where the steps of a column are; None if the column is a constant of each episode."""

    def is_step(self, name: str) -> bool:  # noqa: ARG002  that of a grid uses it
        """Return whether a column is the number of the step itself."""
        return False

    def constant(self, name: str) -> RowColumn | DatasetColumn:
        """Return a column with one row for each episode; where each column has steps, there is none."""
        raise AssertionError(name)
