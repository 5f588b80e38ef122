"""The rows of one file as a row kind has them: episodes, and columns, which take units of values that others decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.column_resolver import Columns, Parts
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.ragged.runs import axes_of_fields, by_shape, layout_of_rows, ragged_layout
from ray_h5.columns.ragged.sparse_rows import Entries, SparseRow, index_dtype
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, field_of
from ray_h5.columns.values import Reading, Units, Values, keyed, read_apart
from ray_h5.errors import UnsupportedColumnError
from ray_h5.hash_and_permute import word_at
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout

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
    """

    name: str
    values: Values
    units_of: Numbers | None = None
    chunk_rows: int | None = 1

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        array = self.values.array
        if self.chunk_rows is None:
            return array if array.name == self.name else replace(array, name=self.name)
        return layout_of_rows(self.name, array, (num_rows, *array.row_shape), self.chunk_rows, path)

    def at(self, numbers_of: Numbers) -> RowColumn:
        """Return the column whose row i is row ``numbers_of(i)`` of this one."""
        units_of = self.units_of
        return replace(self, units_of=numbers_of if units_of is None else lambda rows: units_of(numbers_of(rows)))

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray, keys: np.ndarray | None = None) -> Reading:
        units = rows if self.units_of is None else self.units_of(rows)
        return self.values.reading(keyed(units, places, keys), out)


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Values):
    """Values of which each is several units, such as the steps at some offsets from one of an episode; or is one.

    Rows of a sparse matrix are one such row, `width` times as long; other values get an axis.

    Attributes
    ----------
    name, path : str
        The column, and its file, for messages.
    content : Values
        The values of units.
    width : int, optional
        Units of a value; None for one, without an axis.
    units_of : callable
        Returns for rows: the units, and as bools which of them are blank; both of shape ``(rows, width)``.
    joined : JoinedArray, optional
        The datasets of episodes, if their steps differ in shape, or an episode lacks the column.
    episodes_of : callable, optional
        With `joined`: returns the episode of each row.
    """

    name: str
    path: str
    content: Values
    width: int | None
    units_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    joined: JoinedArray | None = None
    episodes_of: Numbers | None = None

    @property
    def array(self) -> ColumnLayout:
        array, width = self.content.array, self.width
        if self.joined is not None:
            return self._array_of_shapes(self.joined)
        assert width is not None
        if array.kind == "sparse":
            layout = layout_of_rows(self.name, array, (1,), 1, self.path)
            return replace(layout, ragged_shape=(width, *array.ragged_shape), item_bytes=width * array.item_bytes)
        layout = layout_of_rows(self.name, array, (1, width, *array.row_shape), 1, self.path)
        if array.kind != "ragged":
            return layout
        if None in array.ragged_shape[1:]:
            raise UnsupportedColumnError(
                f"{self.path}: Windows: column {self.name!r} holds arrays that differ along several axes, "
                f"{array.ragged_shape}; windows take those that differ along their first axis alone. Leave the column "
                "out of the offsets."
            )
        assert array.element is not None
        element = np.dtype((array.element, tuple(int(n or 0) for n in array.ragged_shape[1:])))
        return replace(layout, kind="list", element=element)

    def _array_of_shapes(self, joined: JoinedArray) -> ColumnLayout:
        array, fields = self.content.array, axes_of_fields(self.content, joined)
        shape = (*self._lead, *joined.common_shape[1:], *fields)
        if not shape and array.kind in {"string", "category", "optional"}:
            return layout_of_rows(self.name, array, (1,), 1, self.path)
        if not shape or array.kind not in {"number", "bool"}:
            lacks = "a group lacks it, and a single value cannot be None"
            differ = f"its steps differ in shape, or a group lacks it, and it holds {array.kind} values"
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {differ if shape else lacks}. Choose other columns with "
                "columns=[...]."
            )
        counts = joined.shapes[:, 1:].prod(axis=1, dtype=np.float64) * math.prod((*self._lead, *fields))
        return ragged_layout(self.name, replace(array, path=self.path), counts, shape)

    @property
    def _lead(self) -> tuple[int, ...]:
        """The axes that a value has before those of a step."""
        return () if self.width is None else (self.width,)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        rows, places = wanted.rows, wanted.places
        steps, blank = self.units_of(rows)
        if (joined := self.joined) is None:
            return self._stacked(steps, blank, places, out, wanted.keys)
        assert self.episodes_of is not None
        episodes = self.episodes_of(rows)
        there = joined.is_there[episodes]
        if not there.all():
            out[places[~there]] = None if out.dtype == object else self.content.blank(out.dtype)
            episodes, steps, blank, places = episodes[there], steps[there], blank[there], places[there]
        if self.content.array.kind not in {"number", "bool"}:
            return self._stacked(steps, blank, places, out) if len(steps) else Reading()
        fields, dtype = axes_of_fields(self.content, joined), self.content.array.dtype

        def of_shape(chosen: np.ndarray, shape: tuple[int, ...]) -> Reading:
            def read(values: np.ndarray) -> Reading:
                return self._stacked(steps[chosen], blank[chosen], np.arange(len(chosen)), values)

            return read_apart(read, (*self._lead, *shape, *fields), places[chosen], out, dtype)

        return by_shape(joined.shapes[episodes, 1:], of_shape)

    def _stacked(
        self, units: np.ndarray, blank: np.ndarray, places: np.ndarray, out: np.ndarray, keys: np.ndarray | None = None
    ) -> Reading:
        """Return the reading of units, of shape ``(rows, width)``, that all have one shape."""
        count, width, is_sparse = *units.shape, self.content.array.kind == "sparse"
        # Each step of a row draws by itself.
        keys = None if keys is None else word_at(keys[:, None], np.arange(width)).reshape(-1)
        unit_shape = out.shape[1 + len(self._lead) :]
        flat = out if is_sparse else out.reshape(out.shape[0] * width, *unit_shape)
        in_place = not is_sparse and (bool(np.shares_memory(flat, out)) or not out.size)
        into = flat if in_place else empty((count * width, *unit_shape), out.dtype)
        there = (places[:, None] * width + np.arange(width)).reshape(-1) if in_place else np.arange(count * width)

        def finish() -> None:
            if blank.any():
                # One by one: numpy would take an array for several values.
                nothing = self.content.blank(out.dtype)
                for at in there[blank.reshape(-1)].tolist() if out.dtype == object else ():
                    for index in np.ndindex(into.shape[1:]):
                        into[(at, *index)] = nothing
                if out.dtype != object:
                    into[there[blank.reshape(-1)]] = nothing
            if is_sparse:
                out[places] = _joined_rows(into.reshape(count, width), self.content.array.ragged_shape[0] or 0)
            elif not in_place:
                out[places] = into.reshape(count, *out.shape[1:])

        return self.content.reading(keyed(units.reshape(-1), there, keys), into).then(finish)


def _joined_rows(windows: np.ndarray, width: int) -> np.ndarray:
    """Return rows of a sparse matrix, several a window, as one row a window: step after step, each `width` long."""
    joined = np.empty(len(windows), object)
    for at, rows in enumerate(windows):
        dtype = index_dtype(width * len(rows))
        indices = np.concatenate([row.indices.astype(dtype) + step * width for step, row in enumerate(rows)])
        data = np.concatenate([row.data for row in rows])
        joined[at] = SparseRow(Entries(indices, data), 0, len(data))
    return joined


def is_plain(column: RowColumn) -> bool:
    """Return whether a column is a dataset as it is stored, with its units as rows."""
    return isinstance(column.values, Stored) and column.chunk_rows is None


def stored_part(column: RowColumn) -> tuple[str, float] | None:
    """Return the dataset that a column is in, and the share of its bytes: of compound values, those of the field."""
    if not isinstance(column.values, Stored) or not isinstance(column.values.address, str):
        return None
    whole = column.values.layout
    bytes_of = [field_of(whole.stored_dtype, name)[0].itemsize for name in column.values.fields]
    return whole.name, sum(bytes_of) / whole.stored_dtype.itemsize if bytes_of else 1.0


def whole_joined_array(column: RowColumn) -> JoinedArray | None:
    """Return the datasets of groups if row i is the one of group i, with its values as they are stored."""
    values = column.values
    if not isinstance(values, Ranges) or column.units_of is not None or values.entries is not None:
        return None
    joined, content = values.joined, values.content
    return joined if joined is not None and isinstance(content, Stored) and content.is_all_of(joined) else None


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
