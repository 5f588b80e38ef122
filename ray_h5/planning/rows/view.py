"""Rows of a row kind, read as `RowReader` reads rows along the first axis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ray_h5.errors import CastError, PredicateError, RayH5Error, UnknownColumnError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.file_reads import FileRead
from ray_h5.hdf5.layout import ColumnLayout, FileLayout
from ray_h5.hdf5.metadata.attributes import ColumnNotes
from ray_h5.hdf5.parts import outputs
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading.ahead import Extents
from ray_h5.hdf5.reading.arguments import Rows, as_names, as_places, as_rows, check_fit
from ray_h5.hdf5.reading.casting import Casting, LostValue
from ray_h5.hdf5.reading.jobs import ReadStats
from ray_h5.messages import few, near_names
from ray_h5.planning.rows.axis_rows import AxisRows
from ray_h5.planning.rows.coded_columns import PlainColumn
from ray_h5.planning.rows.column_kinds import RangeColumn
from ray_h5.planning.rows.columns import SegmentColumn, ValuesColumn
from ray_h5.planning.rows.file_rows import FileRows
from ray_h5.planning.rows.grid_rows import GridRows
from ray_h5.planning.rows.group_rows import GroupRows
from ray_h5.planning.rows.kinds import Grid, Groups, RowKind
from ray_h5.planning.rows.space import Column, Episodes, RowTable, Space
from ray_h5.planning.rows.window_rows import WindowRows
from ray_h5.planning.rows.windows import Windows
from ray_h5.storage.byte_source import Identity

if TYPE_CHECKING:
    from typing_extensions import Self

EPISODE = "episode"
"""A column that names the group or episode of each row, for `kfold` and predicates. No file needs to have it."""


GROUP = "group"
"""A column with the path of the group of each row, for tables beside the files. No file needs to have it."""


class RowView:
    """The rows of one file, as a row kind defines them.

    It has the methods of `RowReader` that planning uses.

    Parameters
    ----------
    reader : RowReader
        The file.
    kind : Groups or Grid, optional
        The row kind; None for rows along the first axis.
    windows : Windows, optional
        Windows over them.
    table : RowTable, optional
        What is known of the rows.
    columns : sequence of Ragged or Csr
        Columns that are made of several datasets, as the user says.
    """

    def __init__(
        self,
        reader: RowReader,
        kind: RowKind | None,
        windows: Windows | None,
        table: RowTable | None = None,
        columns: Sequence[RangeColumn] = (),
        *,
        decode_cf: bool = False,
        is_reversed: bool = False,
    ) -> None:
        self._reader = reader
        self._layouts: dict[str, ColumnLayout] = {}
        self._columns: dict[str, Column] = {}
        self._space: Space = _space_of(
            reader, kind, windows, table, columns, decode_cf=decode_cf, is_reversed=is_reversed
        )
        self._rows_are_groups = isinstance(kind, Groups)

    @property
    def path(self) -> str:
        return self._reader.path

    @property
    def identity(self) -> Identity:
        return self._reader.identity

    @property
    def stats(self) -> ReadStats:
        return self._reader.stats

    @property
    def base(self) -> RowReader:
        """The reader of the file."""
        return self._reader

    @property
    def table(self) -> RowTable:
        """What was found out about the rows."""
        return replace(self._space.table, num_steps=self.num_steps)

    @property
    def num_rows(self) -> int:
        return self._space.num_rows

    @property
    def layout(self) -> FileLayout:
        """The columns, and the errors of those that cannot be read."""
        listing = self._space.listing()
        columns: dict[str, ColumnLayout] = {}
        refused: dict[str, Exception] = dict(listing.refused)
        for name in listing.names:
            try:
                columns[name] = self._described(name)
            except RayH5Error as exc:
                refused[name] = exc
        return FileLayout(self.path, self._reader.group, self.identity, columns, refused)

    @property
    def columns(self) -> Mapping[str, ColumnLayout]:
        return self.layout.columns

    def column(self, name: str) -> ColumnLayout:
        """Return the layout of one column."""
        return self.find([name])[name]

    def find(self, names: Sequence[str], *, missing_ok: bool = False) -> dict[str, ColumnLayout]:
        """Return the layouts of columns, by name; `missing_ok` leaves out names that do not exist."""
        found: dict[str, ColumnLayout] = {}
        wanted = as_names(names)
        self._space.prepare(name for name in wanted if name not in {EPISODE, GROUP})
        for name in wanted:
            try:
                found[name] = self._described(name)
            except UnknownColumnError:
                if not missing_ok:
                    raise
        return found

    def _described(self, name: str) -> ColumnLayout:
        if name not in self._layouts:
            column = self._find(name)
            self._columns[name] = column
            self._layouts[name] = column.layout(self._space.num_rows, self.path)
        return self._layouts[name]

    def _find(self, name: str) -> Column:
        try:
            return self._space.column(name)
        except UnknownColumnError:
            if name == EPISODE or (name == GROUP and self._rows_are_groups):
                return self._episode(name, f"{self.path}:".encode() if name == EPISODE else b"")
            raise

    def _episode(self, name: str, prefix: bytes) -> ValuesColumn:
        texts = np.array([*(prefix + each for each in self._space.episode_names()), None], object)[:-1]
        if isinstance(space := self._space, WindowRows):
            return ValuesColumn(name, "string", lambda rows: texts[space.episodes_of(rows)], np.dtype(object))
        if isinstance(self._space, GroupRows):
            return ValuesColumn(name, "string", lambda rows: texts[rows], np.dtype(object))
        raise UnknownColumnError(f"{self.path}: no column {EPISODE!r}; it is for Groups and Windows")

    def read(self, columns: Sequence[str], rows: Rows = slice(None)) -> dict[str, np.ndarray]:
        """Read rows of columns, as `RowReader.read`."""
        layouts = self.find(columns)
        wanted = as_rows(rows, self._rows_of(layouts), self.path)
        out = {name: empty((len(wanted), *each.row_shape), each.dtype, each.where) for name, each in layouts.items()}
        self._reader.run(self._planned(out, out, wanted, None, wanted, np.arange(len(wanted), dtype=np.int64)))
        return out

    def _rows_of(self, layouts: Mapping[str, ColumnLayout]) -> int:
        """Return the number of rows; columns along the first axis may differ in it."""
        return self._reader.rows_of(layouts) if isinstance(self._space, FileRows) and layouts else self.num_rows

    def read_into(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        planned: FileRead | None = None,
        *,
        casting: Casting | Mapping[str, Casting] = "checked",
    ) -> None:
        """Read rows into existing arrays, as `RowReader.read_into`."""
        if out:
            self._reader.run(self.planned(out, rows, places, casting=casting) if planned is None else planned)

    def planned(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        *,
        casting: Casting | Mapping[str, Casting] = "checked",
    ) -> FileRead:
        """Return the read that `read_into` does, to be done later, as `RowReader.planned`."""
        layouts = self.find(list(out))
        wanted = as_rows(rows, self._rows_of(layouts), self.path)
        there = np.arange(len(wanted), dtype=np.int64) if places is None else as_places(places)
        for name, array in out.items():
            layout = layouts[name]
            if (
                isinstance(self._columns[name], SegmentColumn)
                and isinstance(array, np.ndarray)
                and array.dtype == object
            ):
                layout = replace(layout, shape=(self.num_rows,))  # an array for each row
            check_fit(array, layout, len(wanted), there, f"{self.path}: column {name!r}")
        return self._planned(out, outputs(out, layouts, casting), rows, places, wanted, there)

    def _planned(
        self,
        out: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None,
        wanted: np.ndarray,
        there: np.ndarray,
    ) -> FileRead:
        """Return the read of `wanted[i]` to place `there[i]` of `arrays`, which are checked views of `out`."""
        if not len(wanted):
            return FileRead(self, out, rows, places, [])
        with self._naming_columns():
            readings = [self._columns[name].reading(wanted, there, array) for name, array in arrays.items()]
        parts = [part for reading in readings for part in reading.parts if len(part.request)]
        finishes = [reading.finish for reading in readings if reading.finish is not None]

        def finish() -> None:
            with self._naming_columns():
                for each in finishes:
                    each()

        return FileRead(self, out, rows, places, parts, finish)

    @contextlib.contextmanager
    def _naming_columns(self) -> Iterator[None]:
        """Name the file and the column of a value that its array cannot hold."""
        try:
            yield
        except LostValue as exc:
            where = f"{self.path}: column {exc.column!r}"
            raise CastError(f"{where}: the value {exc.value} cannot be cast to its dtype in dtypes=") from None

    def plan(self, read: FileRead) -> Extents:
        """Plan the jobs of a read that comes later."""
        return self._reader.plan(read)

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return what the row keys of rows are made from: the step of the episode, or the row itself."""
        return self._space.step_numbers(rows) if isinstance(self._space, WindowRows) else rows

    @property
    def num_steps(self) -> int:
        """How many numbers `step_numbers` can return."""
        return self._space.num_steps if isinstance(self._space, WindowRows) else self.num_rows

    def stored_bytes(self, columns: Sequence[str]) -> dict[str, int]:
        """Return how many bytes columns take: those of their values."""
        return {
            name: layout.num_rows * (layout.item_bytes or layout.row_bytes)
            for name, layout in self.find(columns).items()
        }

    def notes(self, columns: Sequence[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about columns that are datasets; nothing about the others."""
        if not isinstance(self._space, FileRows):
            return {name: ColumnNotes() for name in columns}
        self.find(columns)
        plain = [name for name in columns if isinstance(self._columns[name], PlainColumn)]
        return {**{name: ColumnNotes() for name in columns}, **self._reader.notes(plain)}

    def rows_named(self, names: Sequence[bytes], where: str) -> np.ndarray:
        """Return, as bools, which rows are these groups, or belong to them.

        Raises
        ------
        PredicateError
            If there is no such group, or a name is given twice.
        """
        known = self._space.episode_names().tolist()
        numbers = {name: number for number, name in enumerate(known)}
        by_last: dict[bytes, list[int]] = {}
        for number, name in enumerate(known):
            by_last.setdefault(name.rsplit(b"/", 1)[-1], []).append(number)
        wanted: set[int] = set()
        for given in names:
            name = given.strip(b"/")
            found = [numbers[name]] if name in numbers else by_last.get(name, [])
            if len(found) != 1:
                several = f"several groups are: {few([_text(known[each]) for each in found])}"
                near = near_names(_text(name), [_text(each) for each in known])
                raise PredicateError(
                    f"{where} lists {_text(name)!r}, which {several if found else f'is no group of rows.{near}'}"
                )
            number = found[0]
            if number in wanted:
                raise PredicateError(f"{where} lists {_text(name)!r} more than once")
            wanted.add(number)
        is_wanted = np.isin(np.arange(len(known)), list(wanted))
        rows = np.arange(self.num_rows)
        return is_wanted[self._space.episodes_of(rows) if isinstance(self._space, WindowRows) else rows]

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


FileReader: TypeAlias = RowReader | RowView
"""Reads the rows of one file."""


def _space_of(
    reader: RowReader,
    kind: RowKind | None,
    windows: Windows | None,
    table: RowTable | None,
    columns: Sequence[RangeColumn],
    *,
    decode_cf: bool,
    is_reversed: bool,
) -> Space:
    space: Episodes
    if kind is None and windows is None:
        return FileRows(reader, columns, table, decode_cf=decode_cf, is_reversed=is_reversed)
    if isinstance(kind, Groups):
        space = GroupRows(reader, kind, table, None if windows is None else windows.episode_length)
    elif isinstance(kind, Grid):
        space = GridRows(reader, kind)
    else:
        assert windows is not None
        space = AxisRows(reader, windows, table)
    return space if windows is None else WindowRows(space, windows, reader.path)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
