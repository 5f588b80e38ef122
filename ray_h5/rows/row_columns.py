"""The rows of one file as a row kind has them: episodes, and columns, which take units of values that others decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from ray_h5.columns.column_resolver import Columns, Parts
from ray_h5.columns.file_columns import is_of_single_value
from ray_h5.columns.ragged.range_columns import (
    OfUnits,
    Runs,
    array_of_ragged_rows,
    array_of_rows,
    common_shape,
    element_of_lists,
)
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.schema import TENSOR_KINDS
from ray_h5.columns.sparse_rows import Entries, SparseRow, index_dtype
from ray_h5.columns.values import Decoded, Reading, Values
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedValues
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.per_process import cached_property

Numbers: TypeAlias = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class RowColumn:
    """A column as a row kind has it.

    Attributes
    ----------
    name : str
        Name.
    values : Values
        What has the value of each row: units of datasets, whole datasets, windows.
    units_of : callable, optional
        Returns which of these values each row has; None if they are equal.
    chunk_rows : int, optional
        Rows that are best read together; None if rows are the units of the array.
    draws_rows : bool
        Whether rows are drawn: those of later draws have numbers after those of all rows.
    """

    name: str
    values: Values
    units_of: Numbers | None = None
    chunk_rows: int | None = 1
    draws_rows: bool = False

    def layout(self, num_rows: int, path: str) -> ValueArray:
        array = self.values.array
        if self.chunk_rows is not None:
            array = array_of_rows(self.name, array, (num_rows, *array.row_shape), self.chunk_rows, path)
        drawn = self.draws_rows or self.values.seed is not None
        is_equal = (array.name, array.type.drawn) == (self.name, drawn)
        return array if is_equal else array.with_type(replace(array.type, drawn=drawn), name=self.name)

    def at(self, numbers_of: Numbers) -> RowColumn:
        """Return the column whose row i is row ``numbers_of(i)`` of this one."""
        units_of = self.units_of
        return replace(self, units_of=numbers_of if units_of is None else lambda rows: units_of(numbers_of(rows)))

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray, keys: np.ndarray | None = None) -> Reading:
        units = rows if self.units_of is None else self.units_of(rows)
        return self.values.reading(request_of(units, places, keys), out)


@dataclass(frozen=True, eq=False)
class Steps(OfUnits):
    """Values that are units at some places, such as the steps at offsets from one of an episode; or one unit.

    Attributes
    ----------
    width : int, optional
        Units of a value; None for one, without an axis.
    steps_of : callable
        Returns for rows: the units, and which of them are blank, of shape ``(rows, width)``.
    episodes_of : callable
        Returns the episode of each row.
    """

    width: int | None
    steps_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    episodes_of: Numbers

    @cached_property  # it looks at the shapes of all groups
    def array(self) -> ValueArray:
        array, lead = self.content.array, () if self.width is None else (self.width,)
        if self.joined is not None:
            return self._array_of_shapes(self.joined, array, np.array(lead, np.int64))
        layout = array_of_rows(self.name, array, (array.num_rows, *lead, *array.row_shape), 1, self.path)
        if array.kind != "ragged":
            return layout
        lists = replace(layout.type, kind="list", element=element_of_lists(array), ragged_shape=())
        return layout.with_type(lists)

    def _array_of_shapes(self, joined: JoinedValues, array: ValueArray, lead: np.ndarray) -> ValueArray:
        """Return the array of values that may differ in shape; they have the axes `lead` before those of a unit."""
        shapes = self.shapes_of(joined, np.broadcast_to(lead, (len(joined), len(lead))))
        shape = common_shape(shapes[joined.is_there])
        if not shape and array.kind in {"string", "category", "optional"}:
            return array
        if not shape or array.kind not in TENSOR_KINDS:
            lacks = "a group lacks it, and a single value cannot be None"
            differ = f"its steps differ in shape, or a group lacks it, and it holds {array.kind} values"
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {differ if shape else lacks}. Choose other columns with "
                "columns=[...]."
            )
        rows = array_of_ragged_rows(self.name, array, shapes.prod(axis=1, dtype=np.float64), shape)
        return rows.with_type(replace(rows.type, nullable=not joined.is_there.all()))

    def datasets_of(self, rows: np.ndarray) -> np.ndarray:
        return self.episodes_of(rows)

    def runs_of(self, wanted: Request) -> Runs:
        units, is_blank = self.steps_of(wanted.rows)
        if self.width is None:
            return Runs(units[:, 0], None, wanted.places, keys=wanted.keys)
        return Runs(units, None, wanted.places, is_blank, keys=wanted.keys)


def sparse_steps(steps: Steps) -> Decoded:
    """Return steps that are rows of a sparse matrix as one row of one: step after step."""

    def layout(_: ValueArray) -> ValueArray:
        array, width = steps.content.array, steps.width or 1
        rows = array_of_rows(steps.name, array, array.shape, 1, steps.path)
        type_ = replace(rows.type, ragged_shape=(width, *array.type.ragged_shape))
        return rows.with_type(type_, item_bytes=width * array.item_bytes)

    def decode(stored: np.ndarray, *_: Any) -> np.ndarray:
        windows, width = np.empty(len(stored), object), steps.content.array.type.ragged_shape[0] or 0
        for at, of_row in enumerate(stored):
            dtype = index_dtype(width * len(of_row))
            indices = np.concatenate([row.indices.astype(dtype) + step * width for step, row in enumerate(of_row)])
            data = np.concatenate([row.data for row in of_row])
            windows[at] = SparseRow(Entries(indices, data), 0, len(data))
        return windows

    return Decoded(steps, decode, layout, of_each_value=False)


def with_single_values(listing: Listing) -> Listing:
    """Return a listing in which datasets with a single value are columns, too."""
    singles = [name for name, error in listing.refused.items() if is_of_single_value(error)]
    refused = {name: error for name, error in listing.refused.items() if name not in singles}
    return Listing((*listing.names, *singles), refused)


class RowsOfKind(Protocol):
    """The rows of one file, and their columns."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def table(self) -> RowTable:
        """What was found out so far."""

    def listing(self) -> Listing:
        """Return the names of what may be columns; describing one raises the error if it cannot be read."""

    def adds(self, name: str) -> str | None:  # noqa: ARG002
        """Return what adds a column of this name to those of the file, with advice; None if the row kind does not."""
        return None

    def has(self, name: str) -> bool:
        """Return whether the file has a column of this name, or a group of it that is read."""

    def prepare(self, names: Iterable[str]) -> None:  # noqa: ARG002
        """Find out about columns, several at once; nothing where the reader describes them one by one."""
        return

    def column(self, name: str) -> RowColumn:
        """Return one column; raise `UnknownColumnError` if there is none."""

    def episode_names(self) -> np.ndarray:
        """Return a name for each group or episode, as bytes."""

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the group or episode of each row; of rows that are whole ones, the row itself."""
        return rows


class Episodes(RowsOfKind, Protocol):
    """The rows of one file that are also episodes, or recordings, for windows."""

    columns: Columns
    """The columns of the file, or of its groups."""

    def has(self, name: str) -> bool:
        return self.columns.is_there(name)

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        """Return the steps of each episode, given the columns that have offsets."""

    def steps(self, name: str) -> Parts:
        """Return where the steps of a column are; raise `UnknownColumnError` if there is none."""

    def constant(self, name: str) -> RowColumn | None:
        """Return a column without offsets with one row for each episode; None if it has a value for each step."""
