"""What the rows of one file are, for each row kind: its columns, and its episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.errors import UnsupportedColumnError

if TYPE_CHECKING:
    from ray_h5.columns.dataset_columns import DatasetColumn
    from ray_h5.columns.file_columns import FileColumns
    from ray_h5.columns.values import Values
    from ray_h5.manifest.joined_arrays import JoinedArray
    from ray_h5.read.reader import RowReader
    from ray_h5.rows.row_columns import Column, RowColumn
    from ray_h5.rows.windows import Windows


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Where the steps, or samples, of a column are: a unit for each.

    Attributes
    ----------
    values : Values
        The values of units.
    starts, lengths : numpy.ndarray
        int64: the first unit and the number of units of each episode.
    chunk_rows : int
        Steps that are best read together.
    joined : JoinedArray, optional
        The datasets, if each episode has its own.
    is_single : bool
        Whether each episode has a single value, and no axis.
    """

    values: Values
    starts: np.ndarray
    lengths: np.ndarray
    chunk_rows: int = 1
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
    """The rows of one file that are also episodes, or recordings, for windows."""

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        """Return the steps of each episode, given the columns that have offsets."""

    def steps(self, name: str) -> Steps:
        """Return where the steps of a column are; raise `UnknownColumnError` if there is none."""

    def is_constant(self, name: str) -> bool:
        """Return whether a column without offsets has one value for each episode."""

    def constant(self, name: str) -> RowColumn | DatasetColumn:
        """Return a column with one row for each episode."""

    def dataset_of(self, name: str) -> str:
        """Return the dataset that a column is of."""

    def has(self, name: str) -> bool:
        """Return whether the episodes have a dataset."""

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return for each episode those attributes of a dataset that are short numbers or one text."""


class EpisodesOfFile(Episodes):
    """Episodes of a file whose columns lie along axes of its datasets.

    Parameters
    ----------
    reader : RowReader
        The open file.
    columns : FileColumns
        Its columns.
    windows : Windows, optional
        The windows over them.
    """

    def __init__(self, reader: RowReader, columns: FileColumns, windows: Windows | None = None) -> None:
        self._reader = reader
        self._columns = columns
        self._windows = windows

    def dataset_of(self, name: str) -> str:
        return self._columns.described.dataset_of(name)

    def has(self, name: str) -> bool:
        try:
            return self._columns.single(name) is not None or bool(self._reader.find([name], missing_ok=True))
        except UnsupportedColumnError:
            return False

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        return [self._reader.values_of_attributes(dataset_of_field(self, name), attributes)]

    @property
    def _is_timed(self) -> bool:
        """Whether columns have times of their own."""
        return self._windows is not None and self._windows.at is not None

    def _recording(self, name: str) -> Steps:
        """Return the samples of a column of a file that is one recording, or one episode."""
        single = self._columns.single(name)
        values = self._columns.described.of_units(name, self._columns.values(name)) if single is None else single
        count = 1 if single is not None else values.array.num_rows
        lengths = np.array([count], np.int64)
        return Steps(values, np.zeros(1, np.int64), lengths, values.array.chunk_rows, is_single=single is not None)


def dataset_of_field(episodes: Episodes, name: str) -> str:
    """Return the dataset that a column is of: of a field of compound values, the one above it."""
    found = episodes.dataset_of(name).strip("/")
    parts = found.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return next(filter(episodes.has, above), found)
