"""The columns of one file: what their names mean, and which units of them the file, or each of its groups, has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_h5.columns.derived_columns import Csr, Cut, JoinedColumn, MadeColumn, Positions, Ragged, RowEntries, RowPart
from ray_h5.columns.ragged.bounds import Bounds, ChunkedBy, bounds_in, check_bounds, rows_key
from ray_h5.columns.ragged.csr_groups import check_entries, check_types, checked_encoding, positions_of, width_of
from ray_h5.columns.ragged.range_columns import Ranges, SparseRows
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Taken, Values, read_units
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedArray, Paths
from ray_h5.manifest.layout import ColumnLayout, Encoding
from ray_h5.read.reader import RowReader


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The units of a column that a file has, or each of its groups: those of a group follow those of the one before.

    Attributes
    ----------
    values : Values
        The values of all units.
    starts, lengths : numpy.ndarray
        int64: the first unit, and the number of units, of each part.
    chunk_rows : int
        Units that are best read together.
    joined : JoinedArray, optional
        The datasets, if each group has its own.
    is_single : bool
        Whether each part has a single value, and no axis.
    """

    values: Values
    starts: np.ndarray
    lengths: np.ndarray
    chunk_rows: int = 1
    joined: JoinedArray | None = None
    is_single: bool = False

    @classmethod
    def of_file(cls, values: Values, *, is_single: bool = False) -> Parts:
        """Return the one part that a file is."""
        array = values.array
        count = 1 if is_single else array.num_rows
        return cls(values, np.zeros(1, np.int64), np.array([count], np.int64), array.chunk_rows, is_single=is_single)

    def read(self, reader: RowReader) -> list[np.ndarray]:
        """Return the values of each part, without axes of one."""
        units = read_units(reader, self.values, int(self.lengths.sum()))
        units = units.reshape(len(units)) if all(length == 1 for length in units.shape[1:]) else units
        return np.split(units, self.starts[1:])


class Columns(ABC):
    """The columns of one file, of which the file is one part, or each of its groups is one.

    Parameters
    ----------
    reader : RowReader
        The open file.
    columns : iterable of MadeColumn
        The columns that the user described.
    table : RowTable, optional
        What is known of the rows.
    decode_cf : bool
        Whether attributes of datasets say what their values mean.
    """

    def __init__(
        self, reader: RowReader, columns: Iterable[MadeColumn], table: RowTable | None, *, decode_cf: bool
    ) -> None:
        self.reader = reader
        self.path = reader.path
        self.made = {column.name: column for column in columns}
        self.decode_cf = decode_cf
        self.bounds: dict[str, Bounds] = {} if table is None else dict(table.bounds)
        self.chunked: dict[str, ChunkedBy] = {} if table is None else dict(table.chunked_by)
        self.path_of: Callable[[str], str] = lambda name: name

    @property
    def groups(self) -> Paths | None:
        """The groups that are parts; None for a file as a whole."""
        return None

    @abstractmethod
    def table(self, **others: Any) -> RowTable:
        """Return what was found out so far, with what a row kind knows."""

    @abstractmethod
    def listing(self) -> Listing:
        """Return which columns there are."""

    def prepare(self, names: Iterable[str]) -> None:  # noqa: B027
        """Find out about columns, several at once; nothing where the reader describes them one by one."""

    @abstractmethod
    def parts(self, name: str) -> Parts:
        """Return which units of a column each part has; raise `UnknownColumnError` if there is none."""

    @abstractmethod
    def datasets(self, name: str) -> tuple[Values, JoinedArray]:
        """Return the values of a column, and the datasets that have them, of which each part has a whole one."""

    def is_range(self, name: str) -> bool:  # noqa: ARG002
        """Return whether the rows of a column are ranges in each group; those of a file are its values."""
        return False

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether the parts have a dataset."""

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return for each part those attributes of a dataset that are short numbers or one text."""
        return [self.reader.values_of_attributes(self.dataset_below_field(name), attributes)]

    @abstractmethod
    def _plain_parts(self, name: str) -> Parts:
        """Return the parts of a dataset, however the user described a column of that name."""

    def _stored_parts(self, name: str) -> Parts:
        """Return the parts of a dataset as it is stored."""
        return Parts.of_file(Stored.of(self.reader.column(name)))

    def _named(self, name: str) -> Values:
        """Return a dataset of the file, such as names of positions."""
        return Stored.of(self.reader.column(name))

    def _encoding(self, path: str) -> Encoding | None:
        """Return what a group, or a dataset, of the file encodes; None if it does not, or is not there."""
        try:
            return self.reader.encoding(path)
        except RayH5Error:
            return None  # reading it as a dataset reports what is wrong

    # What the user describes ----------------------------------------------------------------------

    def whole(self, name: str) -> str | MadeColumn | None:
        """Return how a column is described, or the one that it is a part of; None for others."""
        column = self.made.get(name.strip("/"))
        return column.whole if isinstance(column, RowPart) else column

    def dataset_of(self, name: str) -> str:
        """Return the dataset, group or field that a column is of; of most, it has the name."""
        made = self.made.get(name.strip("/"))
        return self.path_of(name if made is None or isinstance(made, JoinedColumn) else made.dataset)

    def dataset_below_field(self, name: str) -> str:
        """Return the dataset that a column is of: of a field of compound values, the one above it."""
        dataset = self.dataset_of(name).strip("/")
        parts = dataset.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return next(filter(self.has, above), dataset)

    def part(self, name: str) -> RowPart | None:
        """Return the part that a column is; None for whole values."""
        made = self.made.get(name.strip("/"))
        return made if isinstance(made, RowPart) and not made.is_whole else None

    def of_units(self, name: str, values: Values) -> Values:
        """Return the parts of units that the user asks for; they are units of rows, or of steps."""
        if (made := self.part(name)) is None:
            return values
        if isinstance(values, SparseRows):
            return self._of_sparse(made, values)
        where = f"{self.path}: column {made.name!r}"
        if isinstance(values, Ranges):
            joined = values.joined
            if joined is not None and joined.single:
                raise UnsupportedColumnError(f"{where} has single values; {made} expects rows with axes")
            if joined is not None and joined.unit_shape is None and any(axis for axis, _ in made.axes):
                raise UnsupportedColumnError(
                    f"{where}: {made}: its rows differ in shape along axes after the first one. Choose groups that "
                    "agree with the pattern, or take parts of the first axis alone."
                )
            inner = {axis - 1: at for axis, at in made.axes if axis}  # the first axis is that of units
            content = self._taken(made, inner, values.content, first_axis=1)
            return replace(values, content=content, entries=made.entries(where))
        if made.random is not None and (values.array.kind in {"list", "ragged"} or not values.array.row_shape):
            raise UnsupportedColumnError(f"{where}: {made}: its rows have no axis to draw from")
        taken = self._taken(made, dict(made.axes), values)
        return taken if made.random is None else Taken(taken, entries=RowEntries(made.random, where))

    def of_blocks(
        self, name: str, array: ColumnLayout, cut: tuple[int, ...]
    ) -> tuple[tuple[np.ndarray | None, ...], RowEntries | None]:
        """Return the part of blocks: positions along each axis that these have as a whole, and what is drawn.

        Raises
        ------
        UnsupportedColumnError
            If a part is along an axis that blocks cut, those in `cut`.
        """
        if (made := self.part(name)) is None:
            return (), None
        asked = [*([] if made.random is None else [0]), *(axis for axis, _ in made.axes)]
        others = [axis for axis in range(len(array.shape)) if axis not in cut]
        for axis in asked:
            if axis not in others:
                raise UnsupportedColumnError(
                    f"{array.where} has shape {array.shape}, of which blocks cut the axes {list(cut)}; {made} takes "
                    f"parts of axis {axis}. Take parts of "
                    + (f"the axes {others}, which blocks have as a whole" if others else "arrays with channels")
                    + ", and choose other blocks with rows=Patches(...)."
                )
        taken = self._positions(made, dict(made.axes), array.shape)
        return taken, None if made.random is None else made.entries(array.where)

    def _taken(self, made: RowPart, axes: dict[int, Positions], values: Values, first_axis: int = 0) -> Values:
        shape = values.array.row_shape
        if not axes:
            return values
        if values.array.kind in {"list", "ragged"} or max(axes) >= len(shape):
            shown = f"rows of {values.array.kind} values" if values.array.kind in {"list", "ragged"} else f"{shape}"
            raise UnsupportedColumnError(
                f"{values.array.where}: {made} takes axis {max(axes) + first_axis} of rows; expected rows with so "
                f"many axes, found {shown}"
            )
        return values.take(self._positions(made, axes, shape, first_axis))

    def _positions(
        self, made: RowPart, axes: dict[int, Positions], shape: tuple[int, ...], first_axis: int = 0
    ) -> tuple[np.ndarray | None, ...]:
        """Return the positions along each axis of a shape; None for all."""
        taken: list[np.ndarray | None] = [None] * (max(axes, default=-1) + 1)
        for axis, at in axes.items():
            taken[axis] = self._along(f"part({made.name!r}, {{{axis + first_axis}: ...}})", made, at, shape[axis])
        return tuple(taken)

    def _along(self, what: str, made: RowPart, at: Positions, length: int) -> np.ndarray:
        """Return the positions along an axis of this length."""
        if isinstance(at, Cut):
            return at.positions(length)
        names = None if made.names is None else self.path_of(made.names)
        return positions_of(self.reader, what, at, names, length, self._named)

    def _of_sparse(self, made: RowPart, values: SparseRows) -> SparseRows:
        if [axis for axis, _ in made.axes] != [0] or made.random is not None:
            raise UnsupportedColumnError(
                f"{self.path}: column {made.name!r} has rows of a sparse matrix, which have axis 0 alone; found {made}"
            )
        at = self._along(f"part({made.name!r})", made, made.axes[0][1], values.delivered_width)
        return replace(values, at=at if values.at is None else values.at[at])

    # Rows that are ranges -------------------------------------------------------------------------

    def ragged(self, made: Ragged) -> Ranges:
        """Return the values of a column made by `ragged`; which rows each group has is known then."""
        content = self._plain_parts(made.content)
        if isinstance(content.values, (Ranges, SparseRows)):
            raise UnsupportedColumnError(
                f"{self.path}: ragged({made.content!r}): it has rows of varying length itself; expected a dataset"
            )

        def check(bounds: Bounds, length: int, part: int) -> None:
            check_bounds(bounds, made, length, self.where(part))

        if self.groups is None:
            self.chunked[made.name] = ChunkedBy(made.bounds_key, content.values.array.chunk_rows)
        return Ranges(made.name, self.path, content.values, self._bounds(made, made.name, content, check))

    def csr(self, made: Csr) -> SparseRows:
        """Return the rows of a sparse matrix, of a file or of each group, one group after the other."""
        name = made.group
        indices, data = (self._stored_parts(f"{name}/{index}") for index in ("indices", "data"))
        check_types(f"{self.path}: sparse matrix {name!r}", indices.values.array, data.values.array)

        def check(bounds: Bounds, length: int, part: int) -> None:
            where = f"{self.path}: sparse matrix {self._path(part, name)!r}"
            check_entries(where, bounds, length, int(data.lengths[part]))

        if self.groups is None:
            chunk_rows = max(indices.chunk_rows, data.chunk_rows)
            self.chunked[made.name] = ChunkedBy(made.rows.bounds_key, chunk_rows)
        bounds, take = self._bounds(made.rows, made.name, indices, check), None
        width = self._common_width(made, bounds)
        if made.take is not None:
            take = positions_of(self.reader, f"csr({name!r})", made.take, made.names, width, self._named)
        return SparseRows(name, indices.values, data.values, bounds, width, made.dense, take, self.path)

    def where(self, part: int) -> str:
        """Return which part is meant, for the beginning of a message."""
        return self.path if self.groups is None else f"{self.path}: group {self.groups[part]!r}"

    def _path(self, part: int, name: str) -> str:
        return name if self.groups is None else f"{self.groups[part]}/{name}"

    def _bounds(self, made: Ragged, name: str, content: Parts, check: Callable[[Bounds, int, int], None]) -> Bounds:
        """Return where the rows of a column begin and end in the units of its content, those of all parts.

        Which of them each group has is known then, too. `check` raises for the bounds in a part of some length.
        """
        key, of_groups = made.bounds_key, rows_key(name)
        if self.groups is None and key in self.bounds:  # columns with the same bounds may have other content
            check(self.bounds[key], int(content.lengths[0]), 0)
        elif key not in self.bounds or of_groups not in self.bounds:
            read = {option: self._plain_parts(dataset).read(self.reader) for option, dataset in made.given.items()}
            said = " and ".join(map(repr, made.given.values()))
            all_bounds = []
            for part, (first, length) in enumerate(zip(content.starts.tolist(), content.lengths.tolist(), strict=True)):
                own = {option: values[part] for option, values in read.items()}
                where = f"{self.where(part)}: column {made.name!r}, {said}"
                bounds = bounds_in(own, where, made.base, inclusive=made.inclusive)
                check(bounds, length, part)
                all_bounds.append(Bounds(bounds.starts + first, bounds.stops + first))
            nothing = np.empty(0, np.int64)
            starts, stops = (np.concatenate([nothing, *(getattr(part_bounds, end) for part_bounds in all_bounds)])
                             for end in ("starts", "stops"))  # fmt: skip
            self.bounds[key] = Bounds(starts, stops)
            if self.groups is not None:
                ends = np.cumsum(np.array([len(part_bounds) for part_bounds in all_bounds], np.int64))
                self.bounds[of_groups] = Bounds(np.concatenate([nothing, [0], ends])[:-1].astype(np.int64), ends)
        return self.bounds[key]

    def _common_width(self, made: Csr, bounds: Bounds) -> int:
        """Return the length of a row of a sparse matrix, which is one in all groups."""
        reader, name, groups = self.reader, made.group, self.groups
        if groups is None:
            encoding = checked_encoding(reader.path, made, name, reader.encoding(name))
            return width_of(reader, made, name, encoding, len(bounds))

        def widths() -> np.ndarray:
            rows, all_widths = self.bounds[rows_key(made.name)], []
            for part, count in enumerate((rows.stops - rows.starts).tolist()):
                path = self._path(part, name)
                encoding = checked_encoding(reader.path, made, path, reader.encoding(path))
                all_widths.append(width_of(reader, made, path, encoding, count))
            return np.array(all_widths, np.int64)

        key = f"{name}: widths in {groups[0]!r} and {len(groups) - 1} others; {made.shape}"
        of_groups = reader.fact(key, widths, of_file=True)
        if (differ := np.flatnonzero(of_groups != of_groups[0])).size:
            at = int(differ[0])
            raise SchemaMismatchError(
                f"{reader.path}: sparse matrix {name!r}: rows have length {of_groups[0]} in group {groups[0]!r}, and "
                f"{of_groups[at]} in {groups[at]!r}. Choose groups that agree with the pattern, or leave the column "
                "out."
            )
        return int(of_groups[0])


def is_single(joined: JoinedArray) -> bool:
    """Return whether each part has a single value of a column."""
    return joined.single or not joined.shapes.shape[1]
