"""The rows of one file as a row kind has them: episodes, and columns, which take units of values that others decode."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.column_resolver import Columns, Parts
from ray_h5.columns.file_columns import is_single
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.ragged.runs import axes_of_fields, by_shape, layout_of_rows, ragged_layout
from ray_h5.columns.ragged.sparse_rows import Entries, SparseRow, index_dtype
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, field_of
from ray_h5.columns.values import Reading, Values, keyed, read_apart
from ray_h5.errors import OptionError, UnsupportedColumnError
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
class Steps:
    """The units of rows, which are several each, one after the other along an axis of a row.

    Attributes
    ----------
    units, is_blank : numpy.ndarray
        int64 and bool, of shape ``(rows, width)``: the units, and which of them are blank.
    places : numpy.ndarray
        int64: where each row goes along the first axis of an output.
    keys : numpy.ndarray, optional
        uint64: the key of each row, by which entries are drawn.
    """

    units: np.ndarray
    is_blank: np.ndarray
    places: np.ndarray
    keys: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> Steps:
        """Return the steps of some of the rows."""
        keys = None if self.keys is None else self.keys[chosen]
        return Steps(self.units[chosen], self.is_blank[chosen], self.places[chosen], keys)

    def apart(self) -> Steps:
        """Return the steps of the same rows, which go to an array of their own."""
        return replace(self, places=np.arange(len(self.places)))

    def stacked(self, values: Values, out: np.ndarray, lead: tuple[int, ...]) -> Reading:
        """Return the reading of rows of one shape, which begins with the axes `lead`: of the steps, or none."""
        (count, width), is_sparse = self.units.shape, values.array.kind == "sparse"
        if not (is_sparse or out.flags.c_contiguous):
            return read_apart(lambda own: self.apart().stacked(values, own, lead), out.shape[1:], self.places, out)
        keys = self.keys
        if keys is not None and lead:  # each step of a row draws by itself
            keys = word_at(keys[:, None], np.arange(width)).reshape(-1)
        first = np.arange(count) if is_sparse else self.places
        places = (first[:, None] * width + np.arange(width)).reshape(-1)
        rows, unit_shape = (count, ()) if is_sparse else (len(out), out.shape[1 + len(lead) :])
        into = empty((rows * width,), out.dtype) if is_sparse else out.reshape(rows * width, *unit_shape)

        def finish() -> None:
            if self.is_blank.any():
                nothing = np.empty((), out.dtype)  # numpy would take an array for several values
                nothing[()] = values.blank(out.dtype)
                into[places[self.is_blank.reshape(-1)]] = nothing
            if is_sparse:
                out[self.places] = _joined_rows(into.reshape(count, width), values.array.ragged_shape[0] or 0)

        return values.reading(keyed(self.units.reshape(-1), places, keys), into).then(finish)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepColumn(RowColumn):
    """A column of which a row is several units, such as the steps at some offsets from one of an episode; or one.

    Rows of a sparse matrix are one such row, `width` times as long; other values get an axis.

    Attributes
    ----------
    width : int, optional
        Units of a row; None for one, without an axis.
    steps_of : callable
        Returns for rows: the units, and which of them are blank, as `Steps` has them.
    joined : JoinedArray, optional
        The datasets of episodes, if their steps differ in shape, or an episode lacks the column.
    episodes_of : callable
        Returns the episode of each row.
    """

    width: int | None
    steps_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    joined: JoinedArray | None
    episodes_of: Numbers

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        array, lead, chunk_rows = self.values.array, self._lead, self.chunk_rows or 1
        if self.joined is not None:
            array, lead = self._array_of_shapes(self.joined, path), ()
        is_sparse, width = array.kind == "sparse", self.width or 1
        shape = (num_rows, *(() if is_sparse else lead), *array.row_shape)
        layout = layout_of_rows(self.name, array, shape, chunk_rows, path)
        if is_sparse:
            return replace(layout, ragged_shape=(width, *array.ragged_shape), item_bytes=width * array.item_bytes)
        if array.kind != "ragged" or self.joined is not None:
            return layout
        if None in array.ragged_shape[1:]:
            raise UnsupportedColumnError(
                f"{path}: Windows: column {self.name!r} holds arrays that differ along several axes, "
                f"{array.ragged_shape}; windows take those that differ along their first axis alone. Leave the column "
                "out of the offsets."
            )
        assert array.element is not None
        element = np.dtype((array.element, tuple(int(n or 0) for n in array.ragged_shape[1:])))
        return replace(layout, kind="list", element=element)

    def _array_of_shapes(self, joined: JoinedArray, path: str) -> ColumnLayout:
        array = self.values.array
        shape = self._row_shape(joined, joined.common_shape[1:])
        if not shape and array.kind in {"string", "category", "optional"}:
            return array
        if not shape or array.kind not in {"number", "bool"}:
            lacks = "a group lacks it, and a single value cannot be None"
            differ = f"its steps differ in shape, or a group lacks it, and it holds {array.kind} values"
            raise UnsupportedColumnError(
                f"{path}: column {self.name!r}: {differ if shape else lacks}. Choose other columns with columns=[...]."
            )
        if joined.unit_shape is None:
            counts = joined.shapes[:, 1:].prod(axis=1, dtype=np.float64) * math.prod(self._row_shape(joined, ()))
        else:
            counts = joined.is_there * float(math.prod(shape))
        return ragged_layout(self.name, array, counts, shape)

    def _row_shape(self, joined: JoinedArray, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the shape of a row of a dataset with steps of a shape; parts are taken of steps of one shape alone."""
        is_one = joined.unit_shape is not None
        of_step = self.values.array.row_shape if is_one else (*shape, *axes_of_fields(self.values, joined))
        return *self._lead, *of_step

    @property
    def _lead(self) -> tuple[int, ...]:
        """The axes that a row has before those of a step."""
        return () if self.width is None else (self.width,)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray, keys: np.ndarray | None = None) -> Reading:
        steps, values, joined = Steps(*self.steps_of(rows), places, keys), self.values, self.joined
        if joined is None:
            return steps.stacked(values, out, self._lead)
        episodes = self.episodes_of(rows)
        if not (there := joined.is_there[episodes]).all():
            out[places[~there]] = None if out.dtype == object else values.blank(out.dtype)
            steps, episodes = steps.select(there), episodes[there]
        if values.array.kind not in {"number", "bool"}:
            return steps.stacked(values, out, self._lead) if len(episodes) else Reading()

        def of_shape(chosen: np.ndarray, shape: tuple[int, ...]) -> Reading:
            of_row, own = self._row_shape(joined, shape), steps.select(chosen)
            read = functools.partial(own.apart().stacked, values, lead=self._lead)
            return read_apart(read, of_row, own.places, out, values.array.dtype)

        return by_shape(joined.shapes[episodes, 1:], of_shape)


def _joined_rows(windows: np.ndarray, width: int) -> np.ndarray:
    """Return rows of a sparse matrix, several a window, as one row a window: step after step, each `width` long."""
    joined = np.empty(len(windows), object)
    for at, rows in enumerate(windows):
        dtype = index_dtype(width * len(rows))
        indices = np.concatenate([row.indices.astype(dtype) + step * width for step, row in enumerate(rows)])
        data = np.concatenate([row.data for row in rows])
        joined[at] = SparseRow(Entries(indices, data), 0, len(data))
    return joined


def check_added(path: str, added: Iterable[str], listing: Listing, what: str) -> None:
    """Raise `OptionError` if a column that a row kind adds has the name of a dataset; `what` says which adds it."""
    if doubles := [name for name in added if name in listing.names]:
        raise OptionError(f"{path}: {doubles[0]!r} is a dataset of the file, and a column that {what}")


def with_single_values(listing: Listing) -> Listing:
    """Return a listing in which datasets with a single value are columns, too."""
    singles = [name for name, error in listing.refused.items() if is_single(error)]
    refused = {name: error for name, error in listing.refused.items() if name not in singles}
    return Listing((*listing.names, *singles), refused)


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
        """Return the names of what may be columns; describing one raises the error if it cannot be read."""

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

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        """Return the steps of each episode, given the columns that have offsets."""

    def steps(self, name: str) -> Parts:
        """Return where the steps of a column are; raise `UnknownColumnError` if there is none."""

    def constant(self, name: str) -> RowColumn | None:
        """Return a column without offsets with one row for each episode; None if it has a value for each step."""
