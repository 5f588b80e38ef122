"""Rows of a row kind, read as `FileReader` reads rows along the first axis."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ray_h5.buffers import empty, objects
from ray_h5.columns.derived_columns import MadeColumn, RowPart
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.labels import Classes, levels_of
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import TENSOR_KINDS
from ray_h5.columns.stored_values import Stored, field_of
from ray_h5.columns.values import InMemory, NoValues, Reading, keys_of
from ray_h5.errors import OptionError, PredicateError, RayH5Error, UnknownColumnError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnNotes, FileLayout, ValueArray
from ray_h5.messages import few, near_names
from ray_h5.options import as_names, require
from ray_h5.per_process import cached_property
from ray_h5.read.arguments import Rows, as_places, as_rows, check_fit, fitted
from ray_h5.read.casting import Casting, LostValue
from ray_h5.read.joint_columns import JointColumns
from ray_h5.read.native.job_table import new_times
from ray_h5.read.read_parts import FileRead, outputs
from ray_h5.read.reader import FileReader
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.group_columns import GroupColumns
from ray_h5.rows.kinds.equal_value_rows import EqualValueRows
from ray_h5.rows.kinds.first_axis_rows import AxisRows
from ray_h5.rows.kinds.grid_rows import GridRows
from ray_h5.rows.kinds.group_and_file_rows import FrameRows, WholeRows
from ray_h5.rows.kinds.patch_positions import Blocks
from ray_h5.rows.kinds.patch_rows import PatchesFound, PatchRows
from ray_h5.rows.kinds.window_rows import WindowRows
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_columns import Episodes, RowColumn, RowsOfKind
from ray_h5.rows.row_kind_options import Files, Grid, Groups, RowKind
from ray_h5.rows.windows_option import Windows
from ray_h5.storage.byte_source import Identity

if TYPE_CHECKING:
    from typing_extensions import Self

EPISODE = "episode"
"""A column that names the group or episode of each row, for `kfold` and predicates. No file needs to have it."""


GROUP = "group"
"""A column with the path of the group of each row, for tables beside the files. No file needs to have it."""


class RowView:
    """The rows of one file, as a row kind defines them.

    It has the methods of `FileReader` that planning uses.

    Parameters
    ----------
    reader : FileReader
        The file.
    kind : Groups or Grid, optional
        The row kind; None for rows along the first axis.
    windows : Windows, optional
        Windows over them.
    table : RowTable, optional
        What is known of the rows.
    columns : sequence of Ragged or Csr
        Columns that are made of several datasets, as the user says.
    labels : sequence of Classes
        Columns that are delivered as numbers of classes.
    name : str
        The name of the file, which draws depend on; by default the last part of its path.
    is_planned : bool
        Whether a plan says what is read, so that its names were compared with those of the file.
    open_file : callable, optional
        Opens other files as rows, of whose values windows are.
    """

    def __init__(
        self,
        reader: FileReader,
        kind: RowKind | None,
        windows: Windows | None,
        table: RowTable | None = None,
        columns: Sequence[MadeColumn] = (),
        *,
        decode_cf: bool = False,
        is_reversed: bool = False,
        labels: Sequence[Classes] = (),
        name: str = "",
        is_planned: bool = False,
        open_file: Callable[[str], Any] | None = None,
    ) -> None:
        columns_of_file = FileColumns(reader, columns, table, decode_cf=decode_cf, is_reversed=is_reversed)
        options: dict[str, Any] = {"decode_cf": decode_cf, "is_reversed": is_reversed, "labels": labels, "name": name}
        options |= {"is_planned": is_planned, "open_file": open_file}
        self._made_of = functools.partial(RowView, reader, kind, windows, table, columns, **options)
        self._is_planned = is_planned
        self._name = name or reader.path.rpartition("/")[2]
        self.base, self.path, self.stats = reader, reader.path, reader.stats
        self._labels = {label.name: label for label in labels}
        self._made = columns_of_file.made
        self._layouts: dict[str, ValueArray] = {}
        self._columns: dict[str, tuple[RowColumn, ValueArray]] = {}  # with layouts before values become classes
        self._whole: dict[tuple[str, ...], JointColumns | None] = {}
        self._times = new_times()
        self._rows: RowsOfKind
        if isinstance(kind, Frames):
            self._rows = FrameRows(WholeRows(columns_of_file, kind.files, None), kind, open_file or _alone)
        else:
            self._rows = _rows_of_kind(columns_of_file, kind, windows, table, self._name)
        self._steps = self._rows if isinstance(self._rows, WindowRows) else None
        self._kind = RowKind() if kind is None else kind
        lacking = RowTable() if table is None else table
        self._absent, self._lacking_rows = lacking.absent, lacking.lacking_rows
        self._by_axis = kind is None and windows is None

    @property
    def identity(self) -> Identity:
        return self.base.identity

    @property
    def table(self) -> RowTable:
        """What was found out about the rows."""
        return replace(self._rows.table, num_steps=self.num_steps)

    @cached_property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def layout(self) -> FileLayout[ValueArray]:
        """The columns, and the errors of those that cannot be read."""
        listing = self._rows.listing()
        columns: dict[str, ValueArray] = {}
        refused: dict[str, Exception] = dict(listing.refused)
        for name in listing.names:
            self._check_added(name)
            try:
                columns[name] = self._layouts.get(name) or self._described(name)
            except RayH5Error as exc:
                refused[name] = exc
        return FileLayout(self.path, self.base.group, self.identity, columns, refused, self.base.sought)

    @property
    def columns(self) -> Mapping[str, ValueArray]:
        return self.layout.columns

    def column(self, name: str) -> ValueArray:
        """Return the array of one column."""
        return self.find([name])[name]

    def find(self, names: Sequence[str], *, missing_ok: bool = False) -> dict[str, ValueArray]:
        """Return the arrays of columns, by name; `missing_ok` leaves out names that do not exist."""
        layouts: dict[str, ValueArray] = {}
        wanted = as_names(names)
        if unknown := [name for name in wanted if name not in self._layouts and name not in {EPISODE, GROUP}]:
            self._rows.prepare([name for name in unknown if name not in self._absent and not self._added_as(name)])
        for name in wanted:
            try:
                layouts[name] = self._layouts.get(name) or self._described(name)
            except UnknownColumnError:
                if not missing_ok:
                    raise
        return layouts

    def _described(self, name: str) -> ValueArray:
        """Return the array of a column that is asked for first."""
        self._check_added(name)
        asked = self._added_as(name) or name
        try:
            column = self._none_of(name) or self._rows.column(asked)
        except UnknownColumnError:
            if asked != EPISODE and not (asked == GROUP and self._kind.has_groups):
                raise
            column = self._episode(asked)
        column = replace(column, name=name)
        layout, classes = column.layout(self._rows.num_rows, self.path), self._labels.get(name)
        self._columns[name] = column, layout
        self._layouts[name] = layout if classes is None else classes.layout(layout)
        return self._layouts[name]

    def _added_as(self, name: str) -> str | None:
        """Return the column that the row kind adds, to which the user gives another name."""
        made = self._made.get(name)
        if not isinstance(made, RowPart) or not made.is_whole or not isinstance(of := made.of, str):
            return None
        return of if of in {EPISODE, GROUP} or self._rows.adds(of) is not None else None

    def _none_of(self, name: str) -> RowColumn | None:
        """Return a column that other files have and this one lacks; None for others."""
        if (spec := self._absent.get(name)) is None:
            return None
        return RowColumn(name, NoValues.of(spec, self._lacking_rows, self.path), chunk_rows=None)

    def _check_added(self, name: str) -> None:
        """Raise `OptionError` if a name is that of a column which the row kind adds, and of one in the file."""
        # A reader of a plan would look for the name in each group again, and ask a store: planning has compared it.
        if not self._is_planned and (adds := self._rows.adds(name)) is not None and self._rows.has(name):
            raise OptionError(f"{self.path}: {name!r} is a column of the file, and one that {adds}.")

    def _episode(self, name: str) -> RowColumn:
        """Return the group or episode of each row; in the column of this name, after the path of the file."""
        if not (self._kind.has_groups or self._kind.episode or self.has_windows):
            raise UnknownColumnError(f"{self.path}: no column {EPISODE!r}; it is for Groups, Files and Windows")
        before = f"{self.path}:".encode() if name == EPISODE and not isinstance(self._kind, Frames) else b""
        texts = objects(before + episode for episode in self._rows.episode_names())
        return RowColumn(name, InMemory.of(name, texts.take, object), self._rows.episodes_of)

    def read(self, columns: Sequence[str], rows: Rows = slice(None)) -> dict[str, np.ndarray]:
        """Read rows of columns, as `FileReader.read`."""
        layouts = self.find(columns)
        wanted = as_rows(rows, self._rows_of(layouts), self.path)
        out = {
            name: empty((len(wanted), *layout.row_shape), layout.dtype, layout.where)
            for name, layout in layouts.items()
        }
        if isinstance(rows, slice) or not self._read_whole(out, wanted):
            self.base.run(self._planned(out, wanted, np.arange(len(wanted), dtype=np.int64)))
        return out

    def _read_whole(self, out: Mapping[str, np.ndarray], rows: np.ndarray) -> bool:
        """Fast path of `read` for rows that are whole datasets: the same result with a tenth of the calls.

        False if the rows must be read as others are, which also repeats what may pass and says what is wrong.
        """
        names = tuple(out)
        if names not in self._whole:
            self._whole[names] = self._whole_datasets(out)
        whole = self._whole[names]
        if whole is None:
            return False
        try:
            file = self.base.opened
            descriptor = file.byte_source.descriptor
            asked = np.zeros((3, len(rows)), np.int64)
            asked[0], asked[2] = rows, np.arange(len(rows))
            cost = None if descriptor is None else whole.read(out, asked, self._times, descriptor)
            file.check_unchanged()
        except (OSError, RayH5Error):
            return False
        if cost is not None:
            self.base.stats.add(cost)
        return cost is not None

    def _whole_datasets(self, out: Mapping[str, np.ndarray]) -> JointColumns | None:
        """Return what reads rows that are whole datasets of groups, with their values as they are stored, or None."""
        if not out or not self._kind.has_groups or self.base.threads != 1 or self.base.is_fetched:
            return None
        whole: dict[str, JoinedArray] = {}
        for name in out:
            column, _ = self._columns[name]
            values = column.values
            if not isinstance(values, Ranges) or column.units_of is not None or values.entries is not None:
                return None
            joined, content = values.joined, values.content
            if joined is None or not isinstance(content, Stored) or content.address is not joined:
                return None
            if content.fields or content.taken:
                return None
            whole[name] = joined
        return None if self._labels.keys() & out.keys() else JointColumns.of_datasets(self.base.opened, whole, out)

    def _rows_of(self, layouts: Mapping[str, ValueArray]) -> int:
        """Return the number of rows; columns along the first axis may differ in it."""
        return self.base.rows_of(layouts) if self._by_axis and layouts else self.num_rows

    def read_into(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        *,
        casting: Casting | Mapping[str, Casting] = "checked",
    ) -> None:
        """Read rows into existing arrays, as `FileReader.read_into`."""
        require(isinstance(out, Mapping), "out", out, "an array for each column, by name")
        if out:
            self.base.run(self.planned(out, rows, places, casting=casting))

    def planned(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        *,
        casting: Casting | Mapping[str, Casting] = "checked",
        draws: np.ndarray | None = None,
    ) -> FileRead:
        """Return the read that `read_into` does, to be done later, as `FileReader.planned`.

        `draws` has the draw of each row, if row kinds draw their values: int64, from 0 on.
        """
        layouts = self.find(list(out))
        wanted = as_rows(rows, self._rows_of(layouts), self.path)
        there = np.arange(len(wanted), dtype=np.int64) if places is None else as_places(places)
        arrays: dict[str, np.ndarray] = {}
        for name, array in out.items():
            row_shape = layouts[name].row_shape
            if _takes_arrays(array, layouts[name]):
                row_shape, arrays[name] = row_shape[: array.ndim - 1], array  # an array for each row, or step of it
            else:
                arrays[name] = fitted(array, row_shape)
            check_fit(arrays[name], row_shape, len(wanted), there, f"{self.path}: column {name!r}")
        return self._planned(outputs(arrays, layouts, casting), wanted, there, draws)

    def _planned(
        self, arrays: Mapping[str, np.ndarray], wanted: np.ndarray, there: np.ndarray, draws: np.ndarray | None = None
    ) -> FileRead:
        """Return the read of `wanted[i]` to place `there[i]` of arrays."""
        if not len(wanted):
            return FileRead(self.base, [])
        with self._naming_rows(arrays, wanted, there):
            readings = [self._reading(name, wanted, there, array, draws) for name, array in arrays.items()]
        reading = Reading.together(readings)

        def finish() -> None:
            with self._naming_rows(arrays, wanted, there):
                reading.finish()

        return FileRead(self.base, [part for part in reading.parts if len(part.request)], finish)

    def _reading(
        self, name: str, rows: np.ndarray, places: np.ndarray, out: np.ndarray, draws: np.ndarray | None
    ) -> Reading:
        (column, layout), classes, keys = self._columns[name], self._labels.get(name), None
        if (seed := column.values.seed) is not None:
            keys = keys_of(self._name, seed, rows, np.zeros_like(rows) if draws is None else draws)
        drawn = rows if draws is None or not column.draws_rows else rows + draws * self.num_rows
        if classes is None and not _takes_arrays(out, layout):
            return column.reading(drawn, places, out, keys)
        every = np.arange(len(rows), dtype=np.int64)
        values = empty((len(rows), *layout.row_shape), layout.dtype, layout.where)

        def finish() -> None:
            found = values
            if classes is not None:
                found = classes.of(values, lambda i: f"{self.path}, row {rows[i]}", levels_of(layout))
            if not _takes_arrays(out, self._layouts[name]):
                out[places] = found
                return
            for place, value in zip(places.tolist(), found, strict=True):
                for step in np.ndindex(out.shape[1:]):  # they have another shape in another file: arrays of their own
                    out[(place, *step)] = value[step]

        return column.reading(drawn, every, values, keys).then(finish)

    @contextlib.contextmanager
    def _naming_rows(self, arrays: Mapping[str, np.ndarray], wanted: np.ndarray, there: np.ndarray) -> Iterator[None]:
        """Name the file, the column and the row of a value that its array cannot hold."""
        try:
            yield
        except LostValue as exc:
            row = wanted[there == exc.place * len(arrays[exc.column]) // exc.length][0]
            where = f"{self.path}: column {exc.column!r}, row {row}"
            raise exc.error(where) from None

    @property
    def has_windows(self) -> bool:
        """Whether rows are windows of steps."""
        return self._steps is not None

    def is_constant(self, name: str) -> bool:
        """Return whether a column has one value for each episode, and none for each step."""
        self.find([name])
        return self._steps is not None and self._steps.is_constant(name)

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return what masks and tables name, and row keys are made from: the step in the file, or the row itself."""
        return rows if self._steps is None else self._steps.step_numbers(rows)

    @property
    def num_steps(self) -> int:
        """How many numbers `step_numbers` can return."""
        return self.num_rows if self._steps is None else self._steps.num_steps

    def stored_bytes(self, columns: Sequence[str]) -> dict[str, int]:
        """Return how many bytes columns take in the file: those that are a dataset, or a field of its values."""
        self.find(columns)
        of: dict[str, tuple[str, float]] = {}
        for name in columns if self._by_axis else ():
            values = self._columns[name][0].values
            if isinstance(values, Stored) and isinstance(values.address, str):
                whole = values.layout.stored_dtype
                of_fields = [field_of(whole, field)[0].itemsize for field in values.fields]
                of[name] = values.layout.name, sum(of_fields) / whole.itemsize if of_fields else 1.0
        stored = self.base.stored_bytes([dataset for dataset, _ in of.values()])
        return {name: round(stored[dataset] * share) for name, (dataset, share) in of.items()}

    def notes(self, columns: Sequence[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about columns that are datasets; nothing about the others."""
        nothing = {name: ColumnNotes() for name in columns}
        if not self._by_axis:
            return nothing
        self.find(columns)
        stored = [name for name in columns if isinstance(self._columns[name][0].values, Stored)]
        # Fields of compound values are no datasets.
        return {**nothing, **self.base.notes(list(self.base.find(stored, missing_ok=True)))}

    def rows_named(self, names: Sequence[bytes], where: str) -> np.ndarray:
        """Return, as bools, which rows are these groups, or belong to them.

        Raises
        ------
        PredicateError
            If there is no such group, or a name is given twice.
        """
        known = [name.decode("utf-8", "surrogateescape") for name in self._rows.episode_names()]
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(known):
            numbers.setdefault(name.rpartition("/")[2], []).append(number)
        numbers |= {name: [number] for number, name in enumerate(known)}
        is_wanted = np.zeros(len(known), bool)
        for listed in names:
            matching = numbers.get(name := listed.decode("utf-8", "surrogateescape").strip("/"), [])
            if len(matching) != 1:
                several = f"several groups are: {few([known[number] for number in matching])}"
                wrong = several if matching else f"is no group of rows.{near_names(name, known)}"
                raise PredicateError(f"{where} lists {name!r}, which {wrong}")
            if is_wanted[matching[0]]:
                raise PredicateError(f"{where} lists {name!r} more than once")
            is_wanted[matching[0]] = True
        return is_wanted[self._rows.episodes_of(np.arange(self.num_rows))]

    def close(self) -> None:
        self.base.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_of, ()

    def __repr__(self) -> str:
        options = zip(("rows", "windows"), self._made_of.args[1:3], strict=True)
        said = [f"{name}={value!r}" for name, value in options if value is not None]
        return f"RowReader({', '.join([repr(self.path), *said])})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _alone(path: str) -> Any:
    raise AssertionError(f"{path}: episodes of several files are known where these are listed")


def _takes_arrays(out: object, layout: ValueArray) -> bool:
    """Return whether an array takes rows of numbers or booleans, or their steps, as arrays of their own."""
    if layout.kind not in TENSOR_KINDS or not isinstance(out, np.ndarray) or out.dtype != object:
        return False
    return 0 < out.ndim <= len(layout.row_shape)


AnyReader: TypeAlias = FileReader | RowView
"""Reads the rows of one file."""


def _rows_of_kind(
    columns: FileColumns,
    kind: RowKind | None,
    windows: Windows | None,
    table: RowTable | None,
    name: str,
) -> RowsOfKind:
    """Return the rows of a file as a row kind defines them; `name` is that of the file, which draws depend on."""
    if isinstance(kind, Patches):
        chosen = None if table is None else table.found(PatchesFound).chosen
        return PatchRows(Blocks(columns, kind, chosen), table, name)
    rows: Episodes
    if isinstance(kind, Groups) and kind.by is not None:
        return EqualValueRows(columns, kind, table)
    if isinstance(kind, Groups):
        rows = WholeRows(GroupColumns(columns, kind, table, of_steps=windows is not None), kind, windows)
    elif isinstance(kind, Grid):
        rows = GridRows(columns, kind)
    elif isinstance(kind, Files):
        rows = WholeRows(columns, kind, windows)
    else:
        rows = AxisRows(columns, windows, table)
    return rows if windows is None else WindowRows(rows, windows, table)
