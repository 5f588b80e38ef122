"""Which rows are read, and in which order: a frozen value, made on the driver and executed in tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.schema import TENSOR_KINDS, Cast, ColumnSpec
from ray_h5.columns.values import blank_of
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError, SchemaMismatchError, StaleIndexError
from ray_h5.index.facts.file_facts import SourceTable
from ray_h5.index.facts.scan_file import wrong_index
from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.file_state import FileState, check_same
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.partition import Partition
from ray_h5.order.block_layout import MAX_BLOCK_BYTES, RANGE_WINDOW_BYTES, Tail, choose_block_rows
from ray_h5.order.draws.shuffle import Shuffle, named_columns
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import Fingerprint, fingerprint
from ray_h5.per_process import cached_property
from ray_h5.plan.data_of_rows import data_of_rows
from ray_h5.plan.order_of_files import make_order
from ray_h5.predicates.virtual_names import read_for
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.kinds.steps_around import FilesAround, StepsAround, pieces
from ray_h5.rows.windows_option import IS_PAD, WindowColumn
from ray_h5.scope import Scope
from ray_h5.storage.storage_of_path import storage_of
from ray_h5.tables.table_columns import ABSENT, Lines, TableColumns

if TYPE_CHECKING:
    from ray_h5.columns.row_table import RowTable
    from ray_h5.index.files_beside import FilesBeside  # it imports readers of tables, which take long
    from ray_h5.manifest.file_manifest import Manifest
    from ray_h5.rows.row_view import AnyReader


_STEPS_AT_ONCE = 1 << 20
"""Steps of windows whose numbers are looked up together."""


@dataclass(frozen=True, eq=False, repr=False)
class RowsBeside(ComparedByContent):
    """Rows of files beside the files, which rows take by number.

    Rows 0, 1, 2 and 3 of these lines have the values of rows 5, 2 and 5 there, and none::

        lines 5 2 5 -1  ->  reads 2 5  ->  columns 5 2 5 None

    Attributes
    ----------
    plan : ReadPlan
        The columns that are delivered, by their names there; all rows are selected.
    names : mapping of str to str
        The name there of each column.
    lines : Lines
        The row there of each row.
    """

    plan: ReadPlan
    names: Mapping[str, str]
    lines: Lines

    def fill(
        self,
        out: Mapping[str, np.ndarray],
        files: FileTable,
        row_ids: np.ndarray,
        read: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    ) -> None:
        """Fill arrays of columns with the values of some rows of `files`.

        `read` returns the columns of some rows of the other files, each of which it gets once, ascending.
        """
        lines = self.lines.of(files, row_ids)
        has_line, is_blank = lines >= 0, lines < ABSENT
        numbers, places = np.unique(lines[has_line], return_inverse=True)
        numbers = numbers.astype(np.int64)
        if not out:
            self._check_unchanged(numbers)
            return
        values = read(numbers)
        for name, array in out.items():
            found = values[self.names[name]][places]
            # Tensors of which some are missing are objects, each an array.
            array[has_line] = objects(list(found)) if found.ndim > array.ndim - lines.ndim + 1 else found
            if is_blank.any():
                array[is_blank] = self._blank(name, array.dtype)
            if (lacks := lines == ABSENT).any():
                where = partial(files.where, int(row_ids[int(np.argmax(lacks)) // self.lines.width]))
                array[lacks] = self.no_value(name, array.dtype, where)

    def _blank(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return what a step that is padded with zeros has in an array of a column."""
        (spec,) = [spec for spec in self.plan.columns if spec.name == self.names[name]]
        nothing = np.empty((), dtype)
        nothing[()] = blank_of(spec.type, dtype)
        return nothing

    def _check_unchanged(self, numbers: np.ndarray) -> None:
        """Raise if one of the files that have some rows changed: their values decided which rows are selected."""
        storage, files = self.plan.scope.storage, self.plan.files
        for file in np.unique(files.files_of(numbers)).tolist():
            path, state = files.path(file), files.identity(file)
            check_same(path, state, storage_of(path, storage).seen(path, state))

    def no_value(self, name: str, dtype: np.dtype, where: Callable[[], str]) -> Any:
        """Return what stands for no value in an array of a column; raise a SchemaMismatchError if nothing can."""
        if (classes := {label.name: label for label in self.plan.scope.labels}.get(self.names[name])) is not None:
            return classes.of(np.array([None], object), lambda _: where())[0]
        if dtype.hasobject:
            return None
        if dtype.kind in "fcmM":
            return np.array("NaT", dtype) if dtype.kind in "mM" else np.nan
        raise self.lacking(name, where())

    def lacking(self, name: str, where: str) -> SchemaMismatchError:
        """Return the error for a row without a value in a column whose arrays cannot say so."""
        (spec,) = [spec for spec in self.plan.columns if spec.name == self.names[name]]
        leave_out = (
            f"or leave such rows out with the predicate ~where(**{{{name!r}: None}}), "
            if spec.is_scalar and self.lines.around is None
            else ""
        )
        return SchemaMismatchError(
            f"{where}: column {name!r} of {self.plan.files.path(0)} has no row for this row, and {spec} cannot say "
            f"so. To go on, leave rows without one out with missing='drop', {leave_out}or pass "
            f"dtypes={{{name!r}: 'float64'}}, which has NaN."
        )

    def first_without(self, files: FileTable, selection: np.ndarray | None) -> int | None:
        """Return the first selected row without a row there."""
        places = np.flatnonzero(self.lines.have(files, selection))[:1].tolist()
        return None if not places else places[0] if selection is None else int(selection[places[0]])

    def with_none(self, columns: Sequence[ColumnSpec], where: Callable[[], str]) -> list[ColumnSpec]:
        """Return columns for rows of which some, as at `where`, have none here: of arrays that cannot say so, Nones."""
        made = list(columns)
        for place, spec in enumerate(columns):
            if spec.name in self.names:
                try:
                    self.no_value(spec.name, spec.dtype, where)
                except SchemaMismatchError:
                    if (with_none := spec.with_none) is None or self.lines.around is not None:
                        raise
                    made[place] = with_none
        return made


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours(ComparedByContent):
    """Values of the files before and after that of a row, of windows over files: each is read once a call.

    Rows 4 and 5 with offsets -1 and 0 are read from three files::

        files 3 4, 4 5  ->  reads 3 4 5  ->  windows (3 4) (4 5)

    Attributes
    ----------
    plan : ReadPlan
        The columns that windows are of; each file is a row.
    names : mapping of str to str
        The column that each window is of; for one that marks padding, an empty text.
    windows : mapping of str to WindowColumn
        The windows, by the names of all these columns.
    kind : Frames
        Which files are neighbours.
    """

    plan: ReadPlan
    names: Mapping[str, str]
    windows: Mapping[str, WindowColumn]
    kind: Frames

    @classmethod
    def of(cls, plan: ReadPlan) -> Iterator[Neighbours]:
        """Yield the neighbours that columns of a plan come from; those of one column in two types are apart."""
        kind = plan.scope.rows
        if not isinstance(kind, Frames):
            return
        files = replace(plan.files, starts=np.arange(len(plan.files) + 1))
        scope = replace(plan.scope, rows=kind.files, labels=())
        labels, by_name = {label.name for label in plan.scope.labels}, {one.name: one for one in kind.windows.columns}
        rest = {
            spec.name: replace(spec.with_type(row_shape=spec.row_shape[1:]), name=by_name[spec.name].source)
            for spec in plan.of_files
            if spec.name in by_name and spec.kind in TENSOR_KINDS and not (spec.type.drawn or spec.name in labels)
        }
        marks = {spec.name for spec in plan.of_files if spec.name.removesuffix(IS_PAD) in by_name} - by_name.keys()
        while rest:
            specs = {spec.name: spec for spec in reversed(rest.values())}
            names = {name: spec.name for name, spec in rest.items() if specs[spec.name] == spec}
            rest = {name: spec for name, spec in rest.items() if name not in names}
            named = {**names, **({} if rest else dict.fromkeys(marks, ""))}
            windows = {name: by_name[name if of else name.removesuffix(IS_PAD)] for name, of in named.items()}
            of_files = ReadPlan(
                files,
                tuple(specs.values()),
                scope,
                None,
                Order(len(files)),
                1,
                sources=plan.sources,
                cast=frozenset(specs),
                tables=plan.tables,
                known=plan.known,
            )
            yield cls(of_files, named, windows, kind)

    def fill(
        self,
        out: Mapping[str, np.ndarray],
        files: FileTable,
        row_ids: np.ndarray,
        read: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    ) -> None:
        """Fill arrays of columns as `RowsBeside.fill` does; `read` returns the columns of some files."""
        of_rows = files.files_of(row_ids)
        around = {name: self._around.around(of_rows, self.windows[name]) for name in out}
        wanted = [numbers for name, (numbers, _) in around.items() if self.names[name]]
        distinct = np.unique(np.concatenate([*(numbers.reshape(-1) for numbers in wanted), np.empty(0, np.int64)]))
        values = read(distinct) if wanted else {}
        for name, array in out.items():
            numbers, side = around[name]
            if not (source := self.names[name]):
                array[:] = side != 0
                continue
            np.take(values[source], np.searchsorted(distinct, numbers), axis=0, out=array, mode="clip")
            array[self.kind.windows.is_blank(side)] = 0

    @cached_property
    def _around(self) -> FilesAround:
        return FilesAround(self.plan.files, self.kind, self.kind.windows.every[0])


@dataclass(frozen=True, eq=False, repr=False)
class ReadPlan(ComparedByContent):
    """Which rows are read, in which order, and in blocks of which size.

    Attributes
    ----------
    files : FileTable
        The files.
    columns : tuple of ColumnSpec
        The columns to read.
    scope : Scope
        How the files are opened.
    selection : numpy.ndarray, optional
        int64: the selected row ids, ascending, or in the order of a `Subset`; None selects all.
    order : Order
        The order of an epoch.
    block_rows : int
        Rows of a block; the last blocks may have fewer.
    tail : Tail, optional
        The treatment of the last rows; None keeps them.
    sources : SourceTable
        The other files that hold values of the columns, or values that the selection was made from.
    cast : frozenset of str
        The columns that are cast while they are read. The others have the dtypes that files store.
    tables : tuple of RowTable
        What is known of the rows of each file; empty if they lie along the first axis.
    beside : TableColumns
        The columns that come from tables beside the files.
    files_beside : tuple of (RowsBeside or Neighbours)
        Those that come from rows of other files.
    known : tuple of Manifest
        What is known of each file, so that remote ones are read without libhdf5; empty if all are local.
    data : mapping of str to str
        What a row holds, by option; see `data_of_rows`.
    chunk_rows : mapping of str to int
        Rows of a chunk of each column that is read from the files; the largest of all files.
    chunk_group_rows : int
        Rows that are best read together, since they share chunks; see `RowIndex.chunk_group_rows`.
    """

    files: FileTable
    columns: tuple[ColumnSpec, ...]
    scope: Scope
    selection: np.ndarray | None
    order: Order
    block_rows: int
    tail: Tail | None = None
    sources: SourceTable = field(default_factory=SourceTable)
    cast: frozenset[str] = frozenset()
    tables: tuple[RowTable | None, ...] = field(default=(), compare=False)
    beside: TableColumns = field(default_factory=TableColumns)
    files_beside: tuple[RowsBeside | Neighbours, ...] = ()
    known: tuple[Manifest, ...] = field(default=(), compare=False, repr=False)
    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    chunk_rows: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    chunk_group_rows: int = field(default=1, compare=False, repr=False)

    @property
    def of_files(self) -> tuple[ColumnSpec, ...]:
        """The columns that are read from the files."""
        if not self.files_beside:
            return self.as_arrays
        beside = {name for rows in self.files_beside for name in rows.names}
        return tuple(column for column in self.as_arrays if column.name not in beside)

    @property
    def as_arrays(self) -> tuple[ColumnSpec, ...]:
        """The columns that are read: of the files, and of files beside them."""
        beside = self.beside.columns
        return tuple(column for column in self.columns if column.name not in beside) if beside else self.columns

    def without_value(self) -> SchemaMismatchError | None:
        """Return the error for a row without a value, in a column whose arrays cannot say so; None if there is none."""
        if (error := self.beside.without_value(self.files, self.selection)) is not None:
            return error
        delivered = {spec.name: spec for spec in self.columns}
        for rows in self.files_beside:
            if isinstance(rows, Neighbours):
                continue
            stored = {spec.name: spec for spec in rows.plan.columns}
            for name, there in rows.names.items():
                row = rows.first_without(self.files, self.selection)
                if row is not None and delivered[name].kind != stored[there].kind:
                    return rows.lacking(name, self.files.where(row))
        return None

    @property
    def num_rows(self) -> int:
        """Selected rows."""
        return self.files.num_rows if self.selection is None else len(self.selection)

    @property
    def epoch_rows(self) -> int:
        """Rows of an epoch without its tail: the selected rows, unless the shuffle draws another number of rows."""
        return self.order.epoch_rows

    @property
    def num_positions(self) -> int:
        """Positions of an epoch: its rows, and the tail."""
        return self.epoch_rows if self.tail is None else self.tail.apply(self.epoch_rows)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return sum(column.row_bytes for column in self.columns)

    @cached_property
    def read_options(self) -> dict[str, Any]:
        """Options of `FileReader.read_into`: how columns are cast, if not all casts are checked."""
        casting = {column.name: column.casting for column in self.of_files if column.casting != "checked"}
        return {"casting": casting} if casting else {}

    def state(self, file: int) -> FileState:
        """Return the state of a file when the plan was made."""
        return FileState(self.files.identity(file), self.sources.of_file(file))

    def files_read(self, row_ids: np.ndarray) -> set[int]:
        """Return the files that rows are read from: their own, and those of their windows."""
        touched, rows = {*self.files.files_of(row_ids).tolist()}, self.scope.rows
        if not isinstance(rows, Frames):
            return touched
        paths = {path for file in touched for path in rows.neighbours(self.files.path(file))}
        return touched | {self._numbers[path] for path in paths & self._numbers.keys()}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.files.all_paths())}

    def open(self, file: int) -> AnyReader:
        """Open a file. Raise if it, or a source of its columns, changed since the plan was made."""
        table, known = self.tables[file] if self.tables else None, self.known[file] if self.known else None
        path = self.files.path(file)
        name = path.removeprefix(self._folder) if self.is_drawn else ""
        reader = self.scope.open(path, self.state(file), table, known, is_planned=True, name=name)
        self.check(file, reader)
        return reader

    @cached_property
    def _folder(self) -> str:
        return self.files.folder

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """All that decides which row has which position and what it holds, except the seed.

        Files count by their names and rows. The folder that all of them are in does not count: it may be mounted
        elsewhere.
        """
        return fingerprint(self.files, self.selection, self.order, self.data)

    def with_drawn_seed(self, seed: int | None) -> ReadPlan:
        """Return the plan with the seed of a run that is resumed. A seed that the user gave stays."""
        order = self.order.with_drawn_seed(seed)
        return self if order is self.order else replace(self, order=order)

    def check(self, file: int, reader: AnyReader) -> None:
        """Raise unless a file holds what the plan was made for. An index on disk may be wrong about it.

        Raises
        ------
        StaleIndexError
            With what was expected and what was found.
        """
        rows = int(self.files.starts[file + 1] - self.files.starts[file])
        planned_columns = {column.name: column for column in self.of_files}
        for name, layout in reader.find(list(planned_columns)).items():
            expected = planned_columns[name]
            spec = ColumnSpec.of(layout)
            if layout.num_rows != rows or not expected.is_read_from(spec, name in self.cast):
                planned = f"{rows} rows of {expected}"
                raise StaleIndexError(wrong_index(layout, planned, f"{layout.num_rows} of {spec}"))

    @cached_property
    def steps(self) -> Partition:
        """With windows, the steps of each file. Row keys are made from their numbers."""
        return Partition.of(np.array([0 if table is None else table.num_steps for table in self.tables], np.int64))

    @cached_property
    def is_drawn(self) -> bool:
        """Whether each epoch has other values of the same rows."""
        return any(column.type.drawn for column in self.columns)

    def row_ids(self, selected: np.ndarray) -> np.ndarray:
        """Return the row ids of some selected indices."""
        return selected if self.selection is None else self.selection[selected]

    def at(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Return the row ids at some positions of an epoch. Positions of a tail begin the order again."""
        return self.row_ids(self.order.selected_indices(positions % self.epoch_rows, epoch))


def make_plan(
    index: RowIndex,
    columns: Sequence[ColumnSpec],
    selection: np.ndarray | None = None,
    shuffle: Shuffle | None = None,
    block_rows: int | None = None,
    num_blocks: int | None = None,
    tail: Tail | None = None,
    selected_by: Iterable[str] | None = None,
) -> ReadPlan:
    """Return the plan for some rows and columns.

    Parameters
    ----------
    index : RowIndex
        The files.
    columns : sequence of ColumnSpec
        The columns to read.
    selection : numpy.ndarray, optional
        int64: the selected row ids, ascending; None selects all.
    shuffle : Shuffle, optional
        The order; None keeps the order of the files.
    block_rows, num_blocks : int, optional
        Rows of a block, or the number of blocks; by default blocks are sized by their bytes.
    tail : Tail, optional
        The treatment of the last rows.
    selected_by : iterable of str, optional
        The columns whose values decide the selection; None for all whose values were looked up.

    Raises
    ------
    OptionError
        If rows are selected, and the tail drops all of them.
    """
    if (kept := index.beside.kept) is not None:  # tables leave out other rows
        selection = kept if selection is None else np.intersect1d(selection, kept, assume_unique=True)
    order = make_order(index, selection, shuffle)
    if selected_by is None:
        selected_by = [spec.name for spec in index.found.values]
    named = () if selection is None else selected_by
    if shuffle is not None and (shuffle.weights is not None or shuffle.by_length is not None):
        named = [*named, *named_columns(shuffle.weights), *named_columns(shuffle.by_length)]
    files_beside = _files_beside(index, columns, named)
    for beside_rows in files_beside:
        if (row := beside_rows.first_without(index.files, selection)) is not None:
            columns = beside_rows.with_none(columns, partial(index.files.where, row))
    columns = tuple(columns)
    num_rows = order.epoch_rows
    positions = num_rows if tail is None else tail.apply(num_rows)
    if tail is not None and num_rows and not positions:
        chosen = "selected" if num_rows == order.num_rows else "in an epoch"
        raise OptionError(
            f"tail='drop', tail_rows={tail.rows}: only {num_rows} rows are {chosen}, and all of them are dropped. "
            "Lower tail_rows (workers * batch size), or pass tail='pad'."
        )
    rows = block_rows_of(order, sum(column.row_bytes for column in columns), positions, block_rows, num_blocks)
    sources = index.sources_of([*(column.name for column in columns), *named])
    # Columns that are cast, or may be: their dtypes in the files do not matter. A subclass may cast any column.
    changed = (c.name for c in columns if c.name not in index.columns or index.columns[c.name].dtype != c.dtype)
    cast = {*index.cast.dtypes, *changed} if type(index.cast) is Cast else {column.name for column in columns}
    beside = index.beside.planned(columns, index.files, selection, index.labels)
    scope = replace(index.scope, labels=index.labels)
    unread = index.scope.unread(index.columns, [column.name for column in columns])
    known = tuple(manifest.without(unread) for manifest in index.known)
    chunk_rows = {column.name: index.chunk_rows[column.name] for column in columns if column.name in index.chunk_rows}
    plan = ReadPlan(
        index.files,
        columns,
        scope,
        selection,
        order,
        rows,
        tail,
        sources,
        frozenset(cast),
        index.tables,
        beside,
        files_beside,
        known,
        data_of_rows(index),
        chunk_rows,
        index.chunk_group_rows,
    )
    return replace(plan, files_beside=(*files_beside, *Neighbours.of(plan)))


def _files_beside(index: RowIndex, columns: Sequence[ColumnSpec], named: Iterable[str]) -> tuple[RowsBeside, ...]:
    """Return the rows of other files that columns come from, or `named` columns, whose values decided the rows."""
    beside, planned = index.columns_beside, []
    wanted = [spec for spec in columns if spec.name in beside and beside[spec.name].table.is_in_files]
    used = [*(spec.name for spec in wanted), *(name for each in named for name in read_for(each) if name in beside)]
    in_files = [beside[name] for name in used if beside[name].table.is_in_files]
    for column in {(id(column.table), id(column.lines)): column for column in in_files}.values():
        table, lines = cast("FilesBeside", column.table), column.lines
        mine = {
            spec.name: spec for spec in wanted if beside[spec.name].lines is lines and beside[spec.name].table is table
        }
        names = {name: beside[name].stored for name in mine}
        labels = tuple(replace(label, name=names[label.name]) for label in index.labels if label.name in names)
        specs = {
            names[name]: replace(beside[name].with_row_spec(spec).spec, name=names[name]) for name, spec in mine.items()
        }
        small = lines.numbers.astype(np.min_scalar_type(-max(1, table.index.num_rows)))
        plan = make_plan(replace(table.index, labels=labels), [*specs.values()])
        rows = RowsBeside(plan, names, replace(lines, numbers=small))
        planned.append(rows)
    return tuple(planned)


def block_rows_of(
    order: Order, row_bytes: int, num_rows: int, block_rows: int | None = None, num_blocks: int | None = None
) -> int:
    """Return how many of `num_rows` rows a block holds: whole windows of the shuffle, if memory allows it.

    Each chunk is then read by one task, or one rank, only. The other arguments are those of `choose_block_rows`.
    """
    # The longest rows are in one block, if rows come by length.
    most_bytes = row_bytes if order.runs is None else round(row_bytes * order.runs.longest_ratio)
    rows = choose_block_rows(most_bytes, num_rows, block_rows, num_blocks)
    window = order.window_rows
    most = MAX_BLOCK_BYTES if order.range_chunks is None else RANGE_WINDOW_BYTES
    if window is None or block_rows is not None or num_blocks is not None or window * row_bytes > most:
        return rows
    return -(-max(rows, window) // window) * window


def steps_plan(plan: ReadPlan, names: Collection[str]) -> ReadPlan:
    """Return a plan whose rows are the steps that columns of windows hold in the selected rows, each once.

    Windows overlap, and moments count each value once.

    Parameters
    ----------
    plan : ReadPlan
        A plan with windows.
    names : collection of str
        Columns with the same offsets.
    """
    windows = plan.scope.windows
    assert windows is not None
    (offsets,) = {column.offsets for column in windows.every if column.name in names}
    around = StepsAround(plan.tables, windows, WindowColumn("", "", offsets))
    numbers = [np.empty(0, np.int64)]
    for row_ids in pieces(plan.files.num_rows, plan.selection, _STEPS_AT_ONCE // len(offsets)):
        steps, side = around.of(plan.files, row_ids)
        numbers.append(np.unique(steps[~windows.is_blank(side)]))  # zeros are no values; a first step for others is
    steps, single = np.unique(np.concatenate(numbers)), windows.single_steps()

    def of_step(spec: ColumnSpec) -> ColumnSpec:
        return spec.with_type(row_shape=(1, *spec.row_shape[1:])) if spec.name in names else spec

    of_tables = {name: column for name, column in plan.beside.columns.items() if name in names}
    beside = {name: replace(column, lines=column.lines.of_steps(single)) for name, column in of_tables.items()}
    rows = [rows for rows in plan.files_beside if isinstance(rows, RowsBeside) and rows.names.keys() & {*names}]
    return replace(
        plan,
        files=replace(plan.files, starts=around.in_files.starts),
        columns=tuple(of_step(spec) for spec in plan.columns if spec in plan.of_files or spec.name in names),
        scope=replace(plan.scope, windows=single),
        selection=steps,
        order=Order(len(steps)),
        beside=replace(plan.beside, columns=beside),
        files_beside=tuple(replace(each, lines=each.lines.of_steps(single)) for each in rows),
    )
