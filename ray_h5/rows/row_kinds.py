"""What the rows of one file are, for each row kind: its columns, and its episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ray_h5.columns.row_table import Listing, RowTable

if TYPE_CHECKING:
    from ray_h5.columns.columns import Columns, Parts
    from ray_h5.rows.row_columns import RowColumn


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

    def column(self, name: str) -> RowColumn:
        """Return one column; raise `UnknownColumnError` if there is none."""

    def episode_names(self) -> np.ndarray:
        """Return a name for each group or episode, as bytes."""


class EpisodeRows:
    """Rows that each belong to an episode."""

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the episode of each row."""
        raise NotImplementedError


class Episodes(RowsOfKind, Protocol):
    """The rows of one file that are also episodes, or recordings, for windows."""

    columns: Columns
    """The columns of the file, or of its groups."""

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        """Return the steps of each episode, given the columns that have offsets."""

    def steps(self, name: str) -> Parts:
        """Return where the steps of a column are; raise `UnknownColumnError` if there is none."""

    def is_constant(self, name: str) -> bool:
        """Return whether a column without offsets has one value for each episode."""

    def constant(self, name: str) -> RowColumn:
        """Return a column with one row for each episode."""
