"""The row index of files with tables beside them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.columns.derived_columns import MadeColumn, RowPart, dataset_of
from ray_h5.columns.schema import Cast, ColumnSpec, is_text
from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.files_beside import FilesBeside, in_files
from ray_h5.index.row_index import RowIndex, build_index, columns_beside
from ray_h5.index.scan_files import UNREADABLE, Found, Lookup
from ray_h5.manifest.file_state import FileState
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.value_type import ValueType
from ray_h5.messages import counted, few
from ray_h5.options import as_names, require
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.kinds.steps_around import Around, FilesAround, StepsAround, pieces
from ray_h5.rows.row_kind_options import Grid
from ray_h5.rows.row_view import EPISODE, GROUP, RowView
from ray_h5.rows.windows_option import IS_PAD, WindowColumn, Windows
from ray_h5.scope import Scope
from ray_h5.tables.keys import LENGTH, RowKeys, Slices, by_tables, lines_by_number, lines_of, slices_of
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_bytes import TableFiles
from ray_h5.tables.table_columns import Lines, TableColumn, TableColumns, one_array, spec_of, spec_of_steps
from ray_h5.tables.table_files import Table, open_table

logger = logging.getLogger(__name__)

_STEPS = " Numbers of steps are on='step', or on=['path', 'step'] of files: those of H5Dataset(include_steps=True)."

_PLACES = ("path", "row", "row_id", "step")
_MAX_LISTED, _MAX_SHOWN = 10, 1000
_STEPS_AT_ONCE = 1 << 20


@dataclass(slots=True)
class _Beside:
    """A table beside the files: its columns by the names that they get, with their names in it.

    Key columns that are not asked for are `hidden`: what else has such a name is the column of the name. `slices` are
    the keys, if they name parts of datasets.
    """

    sidecar: Sidecar
    table: Table
    columns: dict[str, tuple[str, ColumnSpec]]
    hidden: set[str]
    slices: Slices | None

    @classmethod
    def of(cls, sidecar: Sidecar, paths: Sequence[str], lookup: Lookup, wanted: Sequence[str] | None) -> _Beside:
        found = TableFiles.of(sidecar, lookup.scope.storage, paths) if sidecar.paths else None
        if found is not None and found.are_hdf5:
            return cls._of_hdf5(sidecar, FilesBeside.open(sidecar, found, paths, lookup, wanted), wanted)
        table = open_table(sidecar, found)
        columns, left_out = dict[str, tuple[str, ColumnSpec]](), []
        # The files have such a key under the same name; pandas writes an index without a name.
        same = {"", *(key for key, on in zip(sidecar.keys, sidecar.row_keys, strict=True) if key == on)}
        for stored, kind in table.types.items():
            name = sidecar.prefix + stored
            if stored in same:
                continue
            if (spec := spec_of(name, kind)) is not None:
                columns[name] = stored, spec
            elif name in (wanted or ()):
                raise UnsupportedColumnError(
                    f"{table.name}: column {stored!r} has type {kind}, which numpy and torch lack. Write it as numbers "
                    "or as text, or leave it out of columns=[...]."
                )
            else:
                left_out.append(f"{stored} ({kind})")
        if left_out and wanted is None:
            logger.warning("%s: left out columns of types that numpy and torch lack: %s", table.name, few(left_out))
        keys = {name for name, (stored, _) in columns.items() if stored in sidecar.keys}
        return cls(sidecar, table, columns, keys.difference(wanted or ()), slices_of(sidecar, table))

    @classmethod
    def _of_hdf5(cls, sidecar: Sidecar, files: FilesBeside, wanted: Sequence[str] | None) -> _Beside:
        same = {key for key, on in zip(sidecar.keys, sidecar.row_keys, strict=True) if key == on}
        specs = [stored for stored in files.specs if stored not in same]
        named = {sidecar.prefix + stored: stored for stored in specs} | {stored: stored for stored in files.made}
        columns = {name: (stored, replace(files.specs[stored], name=name)) for name, stored in named.items()}
        # Of what nobody asks for, the columns of the files themselves go before.
        asked = {name for name in columns if name in wanted} if wanted is not None else {*columns}
        keys = {name for name, (stored, _) in columns.items() if stored in sidecar.keys and name not in (wanted or ())}
        return cls(sidecar, files, columns, {*columns} - asked | keys, None)

    @property
    def defaults(self) -> list[str]:
        """The columns that are delivered by default: those with one value a line, except the key."""
        others = {name: spec for name, (stored, spec) in self.columns.items() if stored not in self.sidecar.keys}
        if self.table.is_in_files:
            return [*others]
        return [name for name, spec in others.items() if spec.is_scalar and not spec.as_bytes]


def index_with_tables(
    paths: Sequence[str],
    columns: Sequence[str] | None,
    lookup: Lookup,
    cast: Cast,
    sidecars: Sequence[Sidecar],
    attrs: Mapping[str, str],
) -> RowIndex:
    """Return the index of files, and of the tables and attributes that join their rows.

    Raises
    ------
    RayH5Error
        As `build_index` does.
    TableError, SchemaMismatchError, OptionError
        If a table cannot be read or joined.
    """
    wanted = None if columns is None else list(dict.fromkeys(as_names(columns)))
    alone, sources = _not_in_files(paths, lookup)
    asked = None if wanted is None else [*dict.fromkeys([*wanted, *sources])]
    tables = [_Beside.of(sidecar, paths, alone if sources else lookup, asked) for sidecar in sidecars]
    stored_names = [name for table in tables for name in table.columns]
    lookup, attrs, renamed = _with_names(lookup, tables, attrs, asked or ())
    lookup.scope.check_rows_of_rows()
    lengths = [name + LENGTH for table in tables if table.slices for name in table.slices.columns_of(wanted or ())]
    named = [name for table in tables for name in table.columns if name not in table.hidden] + [*attrs, *lengths]
    if twice := sorted(name for name, count in Counter(named).items() if count > 1):
        raise OptionError(
            f"sidecar: the columns {few([repr(name) for name in twice])} are in more than one table or in attrs=; pass "
            "Sidecar(..., prefix='...') for different names"
        )
    of_windows = [name for name in sources if name in named]
    windows = [window for window in _windows_of(lookup.scope) if window.source in of_windows]
    named += [window.name for window in windows if window.name not in named]
    try:
        # If no column of the files is wanted, one that is a key says what rows are.
        joining = [key for table in tables if table.slices is None for key in table.sidecar.row_keys]
        keys = [key for key in joining if key not in (*_PLACES, GROUP)]
        made = {column.name for column in lookup.scope.columns}
        of_files = [] if wanted is None else [name for name in wanted if name not in named or name in made] or keys[:1]
        lookup = _apart_from(lookup, of_windows, of_files or _of_one_length(paths[0], alone))
        index = build_index(paths, of_files or None, lookup, cast)
    except UnknownColumnError as exc:
        if (error := _used_as_dataset(lookup, {*named, *stored_names})) is not None:
            raise error from None
        named += [name for table in tables if table.table.is_in_files for name in table.columns if name not in named]
        raise UnknownColumnError(f"{exc}{columns_beside(named, wanted or ())}") from None
    except SchemaMismatchError:
        for table in tables:
            _check_sliced(table.slices, paths, lookup)
        raise
    if there := _in_files(index, [*named, *renamed]):
        raise OptionError(
            f"columns {few([repr(name) for name in there])} are in the files and in "
            f"{few([one.table.name for one in tables]) or 'attrs='}. Give those of the table other names: "
            "Sidecar(..., prefix='table/'), or attrs={'new name': 'attribute'}."
        )
    of_tables, defaults, rows = _joined(index, tables, named, windows)
    of_attributes = _of_attributes(index, attrs, windows) if attrs else {}
    names = tuple(wanted) if wanted is not None else (*index.columns, *defaults, *of_attributes)
    return replace(index, beside=TableColumns(of_tables | of_attributes, rows), chosen=names)


def _used_as_dataset(lookup: Lookup, beside: Collection[str]) -> OptionError | None:
    """Return the error of a column of a table, or an attribute, where a dataset is expected; None if there is none."""
    if made := [column for column in lookup.scope.columns if dataset_of(column) in beside]:
        return OptionError(
            f"columns: {made[0]}: {dataset_of(made[0])!r} is a column of a table or an attribute, which "
            "is delivered as it is. Name it as a text, and take what you need of it in transform=; of tables in "
            "HDF5, columns are made as of files."
        )
    return None


def _windows_of(scope: Scope) -> tuple[WindowColumn, ...]:
    return () if scope.all_windows is None else scope.all_windows.columns


def _not_in_files(paths: Sequence[str], lookup: Lookup) -> tuple[Lookup, list[str]]:
    """Return the columns with offsets that the first file lacks, which tables may have; it is read without windows."""
    rows = lookup.scope.rows
    kind = rows.files if isinstance(rows, Frames) else rows
    alone = replace(lookup, scope=replace(lookup.scope, rows=kind, windows=None))
    sources = [*dict.fromkeys(window.source for window in _windows_of(lookup.scope))]
    absent = []
    for name in sources:
        try:
            is_there = in_files(paths, alone, name)
        except UNREADABLE:  # it is left out, or reported where it is read
            is_there = True
        except SchemaMismatchError:  # groups that differ are listed for the error of a name that none has
            is_there = False
        absent += [] if is_there else [name]
    return alone, absent


def _apart_from(lookup: Lookup, sources: Sequence[str], of_files: Sequence[str]) -> Lookup:
    """Return how files are read that lack some columns with offsets, since tables have these.

    `of_files` are columns of theirs: one counts the steps if no other one has offsets.
    """
    windows, rows = lookup.scope.all_windows, lookup.scope.rows
    if windows is None or not sources:
        return lookup
    if windows.at is not None:
        raise OptionError(
            f"Windows: at=: {sources[0]!r} is a column of a table or an attribute, which has no times of its own. "
            "Leave it out of the offsets: each row then has the value of its time."
        )
    # The lengths of episodes are those of columns with offsets; a grid has them from its axes, and files are steps.
    counted = [""]
    if not {*sources}.issuperset(window.source for window in windows.columns) or isinstance(rows, (Grid, Frames)):
        pass
    elif rows is not None:
        counted = [*windows.per_step]
    else:
        episode = [windows.episode] if isinstance(windows.episode, str) else []
        counted = [*windows.episode_flags, *episode, *of_files]
    if not counted:
        where = "columns=[...]" if rows is None else "Windows(..., per_step=[...])"
        raise OptionError(
            f"Windows: {few([repr(name) for name in sources])}: no column of the files has offsets, and these say how "
            f"many steps an episode has. Name one that has a value for each step with {where}."
        )
    return replace(lookup, scope=lookup.scope.with_windows(windows.apart_from(sources, counted[0])))


def _of_one_length(path: str, alone: Lookup) -> list[str]:
    """Return the columns of a file if all have one number of rows: each counts its steps."""
    if alone.scope.rows is not None:
        return []
    state = FileState(alone.states[path]) if path in alone.states else None
    with alone.scope.open(path, state) as reader:
        columns = reader.layout.columns
        return [*columns] if len({column.num_rows for column in columns.values()}) == 1 else []


def _joined(
    index: RowIndex, tables: Sequence[_Beside], named: Collection[str], windows: Sequence[WindowColumn]
) -> tuple[dict[str, TableColumn], list[str], np.ndarray | None]:
    """Join the lines of tables to rows.

    Returns their columns by name, those that are delivered by default, and the rows that have a line in each table of
    which lines may not be missing: int64, or None if all rows have.
    """
    hidden = [key for table in tables for key in table.hidden]
    taken = {*named, *(key for key in hidden if hidden.count(key) > 1 or _in_files(index, [key]))}
    by_name, defaults, kept = dict[str, TableColumn](), list[str](), list[np.ndarray]()
    for table in tables:
        table.columns = {name: column for name, column in table.columns.items() if name not in table.hidden & taken}
        mine = [window for window in windows if window.source in table.columns]
        of_slices, of_windows = dict[str, TableColumn](), dict[str, Lines]()
        if mine:
            lines, of_windows = _lines_of_steps(index, table, mine)
        else:
            lines, of_slices = _lines_of_table(index, table)
        by_name |= {name: TableColumn(table.table, *column, lines) for name, column in table.columns.items()}
        by_name |= of_slices | {
            name: _windowed(by_name[source], name, of_windows[name])
            for name, source in {window.name: window.source for window in mine}.items()
        }
        defaults += [*dict.fromkeys([*table.defaults, *of_slices, *of_windows])]
        if table.sidecar.missing == "drop":
            index.check_claim()
            lacks = [each.have(index.files, None) for each in (lines, *of_windows.values())]
            kept.append(np.flatnonzero(~np.logical_or.reduce(lacks)))
    rows = reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), kept) if kept else None
    return by_name, defaults, None if rows is None or len(rows) == index.num_rows else rows


def _windowed(column: TableColumn, name: str, lines: Lines) -> TableColumn:
    """Return windows of a column of a table; raise an `UnsupportedColumnError` if there can be none."""
    spec_of_steps(column.spec, lines.width)
    return replace(column, spec=replace(column.spec, name=name), lines=lines)


def _lines_of_steps(
    index: RowIndex, beside: _Beside, windows: Sequence[WindowColumn]
) -> tuple[Lines, dict[str, Lines]]:
    """Return the line of each row, and those of the steps around it by the names of windows.

    Lines are looked up once for each step; which steps are around a row is known where it is read.
    """
    steps, sidecar, table = _index_of_steps(index), beside.sidecar, beside.table
    _check_of_steps(index, steps, sidecar, table.name, windows[0].source)
    numbers = _lines(steps, sidecar, table).of(steps.files, None)
    now, by_offsets = _around(index, (0,)), {window.offsets: _around(index, window.offsets) for window in windows}
    # Steps without a window, or that no window reaches, need no line.
    is_used = np.zeros(len(numbers), bool)
    for around in (now, *by_offsets.values()) if (numbers < 0).any() else ():
        for row_ids in pieces(index.num_rows, None, _STEPS_AT_ONCE // len(around.column.offsets)):
            reached, side = around.of(index.files, row_ids)
            is_used[reached[~around.windows.is_blank(side)]] = True
    _check_missing(steps, sidecar, table, Lines(np.where(is_used, numbers, 0) if len(numbers) else numbers))
    of_rows = [now.of(index.files, row_ids)[0][:, 0] for row_ids in pieces(index.num_rows, None, _STEPS_AT_ONCE)]
    lines = Lines(numbers[np.concatenate([*of_rows, np.empty(0, np.int64)])])
    lines_by = {offsets: Lines(numbers, around=around) for offsets, around in by_offsets.items()}
    return lines, {window.name: lines_by[window.offsets] for window in windows}


def _around(index: RowIndex, offsets: tuple[int, ...]) -> Around:
    rows, windows, window = index.scope.rows, index.scope.windows, WindowColumn("", "", offsets)
    if isinstance(rows, Frames):
        return FilesAround(index.files, rows, window)
    assert windows is not None
    return StepsAround(index.tables, windows, window)


def _index_of_steps(index: RowIndex) -> RowIndex:
    """Return the index of the same files whose rows are all steps, without windows."""
    # No file is scanned: the lengths of episodes are known. Keys of steps are read as keys of rows are.
    scope, rows, windows = index.scope, index.scope.rows, index.scope.windows
    index.check_claim()
    if isinstance(rows, Frames):
        starts, scope = np.arange(len(index.files) + 1), replace(scope, rows=rows.files)
        columns = dict[str, ColumnSpec]()
    else:
        assert windows is not None
        own = StepsAround(index.tables, windows, windows.every[0])
        starts, scope = own.in_files.starts, replace(scope, windows=windows.single_steps())
        marks = {window.name + IS_PAD for window in windows.every}
        columns = {name: spec for name, spec in index.columns.items() if name not in marks}
    return replace(
        index,
        files=replace(index.files, starts=starts),
        lookup=replace(index.lookup, scope=scope),
        columns=columns,
        found=Found(),
        beside=TableColumns(),
        chosen=(),
    )


def _check_of_steps(index: RowIndex, steps: RowIndex, sidecar: Sidecar, table: str, source: str) -> None:
    """Raise unless each step of an episode has a line of its own."""
    rows, windows = index.scope.rows, index.scope.windows
    said = f"Windows: {source!r} is a column of {table}, joined by {few([repr(name) for name in sidecar.row_keys])}, "
    if "row_id" in sidecar.row_keys and steps.num_rows != index.num_rows:
        raise OptionError(
            f"{said}the numbers of windows, and not each step has one. Join it by the numbers of steps, on='step' or "
            "on=['path', 'step'], or leave it out of the offsets."
        )
    if isinstance(rows, Frames) or windows is None:
        return
    if all(_is_constant(steps, name, windows) for name in sidecar.row_keys):
        raise OptionError(
            f"{said}which has one value for each episode: it is the same at each step. Leave it out of the offsets: "
            "each row then has the value of its episode. Of a table with a line for each step, join by the step, too: "
            "on=['path', 'step']."
        )


def _is_constant(steps: RowIndex, name: str, windows: Windows) -> bool:
    """Return whether a key has one value for each episode."""
    part = _row_keys(steps, name)
    if part.kind != "value" or name in {EPISODE, windows.episode}:
        return part.kind != "number"
    with steps.open(0) as reader:
        return isinstance(reader, RowView) and reader.is_constant(name)


def _with_names(
    lookup: Lookup, tables: Sequence[_Beside], attrs: Mapping[str, str], wanted: Sequence[str]
) -> tuple[Lookup, Mapping[str, str], list[str]]:
    """Give columns of tables and attributes the names that a mapping of columns has for them.

    Returns what the files are asked for without these, the attributes, and the names that they had.
    """
    named, made, renamed = dict(attrs), list[MadeColumn](), list[str]()
    of_tables = {name for table in tables if isinstance(table.table, FilesBeside) for name in table.table.made}
    for column in lookup.scope.columns:
        if column.name in of_tables:
            continue
        name = column.of if isinstance(column, RowPart) and column.is_whole and isinstance(column.of, str) else ""
        of = [table for table in tables if name in table.columns]
        if not of and name not in named:
            made.append(column)
            continue
        renamed.append(name)
        for table in of:
            stored, spec = table.columns[name]
            table.columns[column.name] = stored, replace(spec, name=column.name)
        if not of:
            named[column.name] = named[name]
    for name in {*renamed}.difference(wanted):
        named.pop(name, None)
        for table in tables:
            table.columns.pop(name, None)
    return replace(lookup, scope=replace(lookup.scope, columns=tuple(made))), named, renamed


def _in_files(index: RowIndex, names: Sequence[str]) -> list[str]:
    """Return those of some names that something in the files has."""
    asked = tuple(name for name in names if name not in index.columns)
    in_files: Collection[str] = ()
    try:
        if asked and len(index.files):
            (first,) = index.lookup.ask([index.files.path(0)], Question(asked))
            in_files = first.columns
    except UnsupportedColumnError:
        return [*names] if len(names) == 1 else [name for name in names if _in_files(index, [name])]
    return [name for name in names if name in index.columns or name in in_files]


def _lines_of_table(index: RowIndex, beside: _Beside) -> tuple[Lines, dict[str, TableColumn]]:
    """Return the line of each row; and, of keys that name rows of a dataset, a column of where its last axis ends."""
    sidecar, table, slices = beside.sidecar, beside.table, beside.slices
    named = slices.columns_of(index.columns) if slices is not None and index.scope.by_axis else []
    if slices is None or len(named) != 1 or len(index.files) > 1:
        _check_sliced(slices, index.files.all_paths(), index.lookup)
        lines = _lines(index, sidecar, table)
        _check_missing(index, sidecar, table, lines)
        return lines, {}
    (column,) = named
    index.check_claim()
    lines = Lines(slices.lines(column, index.num_rows))
    _check_missing(index, replace(sidecar, on="row", key=sidecar.keys), table, lines)
    if not (shape := index.columns[column].row_shape):
        return lines, {}
    stops = pc.min_element_wise(slices.stops.fill_null(shape[-1]), shape[-1])
    spec = ColumnSpec(name := column + LENGTH, ValueType("number", np.dtype(np.int64)))
    return lines, {name: TableColumn(Table.of(table.name, {name: pa.chunked_array([stops])}), name, spec, lines)}


def _check_sliced(slices: Slices | None, paths: Sequence[str], lookup: Lookup) -> None:
    """Raise if the keys of a table name rows of several datasets of a file; the error prints how to read them."""
    if slices is None:
        return
    scope = replace(lookup.scope, rows=None, windows=None)
    with scope.open(paths[0]) as reader:
        columns = slices.columns_of(reader.layout.columns)
    if columns:
        raise slices.one_by_one(paths, scope.group, columns)


def _lines(index: RowIndex, sidecar: Sidecar, table: Table) -> Lines:
    first, files = sidecar.row_keys[0], index.files
    numbers = {("row",), ("row_id",), *([("step",)] if index.scope.windows is not None else [])}
    if sidecar.row_keys in numbers and sidecar.keys[0] not in table.types:
        return _lines_without_key(index, first, table)
    parts = [_row_keys(index, name) for name in sidecar.row_keys]
    if sidecar.match == "tail":
        parts = [replace(part, by_tail=is_text(part.values.type)) for part in parts]
        kinds_of = ", ".join(f"{part.name!r} of {part.values.type}" for part in parts)
        require(any(part.by_tail for part in parts), "Sidecar: match", "tail", f"a key of text, found {kinds_of}")
    if isinstance(table, FilesBeside) and table.is_by_number:  # without a list of all rows there
        return Lines(lines_by_number(_of_rows(parts, files.rows)[0], table.index.num_rows, table.name))
    keys, names = [one_array(table.column(name)) for name in sidecar.keys], sidecar.keys
    if isinstance(table, FilesBeside) and "path" in names and "path" not in table.specs:
        at = names.index("path")
        keys[at], parts[at] = table.paths_as(parts[at]), replace(parts[at], by_tail=False)
    if (part_of := table.part_of) is not None:  # the table of a file is a part of the key of its rows
        paths, counts = pa.array([str(file) for file, _ in table.parts], pa.large_string()), table.lengths()
        of_files = pa.array([part_of.get(path) for path in files.all_paths()], pa.int64())
        tables, in_tables = of_files.fill_null(-1).to_numpy(), Partition.of(counts)
        for at, part in enumerate(parts):
            of_rows = tables if part.kind == "path" else files.rows.spread(tables)
            parts[at], keys[at] = by_tables(part, keys[at], of_rows, in_tables, table.name)
        parts, names = [RowKeys("table", paths.take(of_files), "path"), *parts], ("table", *names)
        keys = [paths.take(pa.array(np.repeat(np.arange(len(counts)), counts))), *keys]
    kinds = {part.kind for part in parts}
    if kinds == {"path"}:
        return Lines(lines_of(parts, keys, names, table.name), True)
    if kinds <= {"path", "number"}:
        return _by_place(index, parts, keys, names, table)
    return Lines(lines_of(_of_rows(parts, files.rows), keys, names, table.name))


def _lines_without_key(index: RowIndex, on: str, table: Table) -> Lines:
    """Return the lines of a table that has one for each row, in order."""
    files = index.files
    rows, in_files = (index.every_row(), files.rows) if on == "row_id" else index.rows_of_files()
    if table.part_of is not None:
        return _lines_in_order(index, table, rows, in_files)
    count = int(table.lengths().sum())
    if on != "row_id" and len(files) > 1:
        raise UnknownColumnError(
            f"{table.name}: no column {on!r}, and there are {len(files)} files. Pass on=['path', {on!r}] and "
            "a table with both columns; or on='row_id' for lines in the order of the rows of all files."
        )
    if count != in_files.num_units:
        what, steps = ("", "") if index.scope.windows is None else (", one for each step", _STEPS)
        what, steps = (", one for each window", steps) if on == "row_id" and what else (what, "")
        raise SchemaMismatchError(
            f"{table.name}: has no column {on!r}, so its lines are the rows in order; expected "
            f"{in_files.num_units} lines{what}, found {count}.{steps}"
        )
    return Lines(rows)


def _lines_in_order(index: RowIndex, table: Table, rows: np.ndarray, in_files: Partition) -> Lines:
    """Return the lines of rows that are those of the table of their file, in order."""
    assert table.part_of is not None
    parts = np.array([table.part_of.get(path, -1) for path in index.files.all_paths()])
    found, expected = np.append(table.lengths(), 0)[parts], in_files.lengths
    for file in np.flatnonzero((parts >= 0) & (found != expected))[:1].tolist():
        what = "row" if index.scope.windows is None else "step"
        raise SchemaMismatchError(
            f"{table.parts[parts[file]][0]}: has no column 'row', so its lines are the {what}s of "
            f"{index.files.path(file)} in order; expected {expected[file]} lines, one for each {what}, found "
            f"{found[file]}."
        )
    files, local = in_files.local(rows)
    starts = np.append(Partition.of(table.lengths()).firsts, 0)
    return Lines(np.where(parts[files] >= 0, starts[parts[files]] + local, -1))


def _of_rows(parts: Sequence[RowKeys], in_files: Partition) -> list[RowKeys]:
    """Return parts of keys with a value for each row, also where files have one each."""
    file_of_row = pa.array(in_files.spread(np.arange(len(in_files))))
    return [replace(part, values=part.values.take(file_of_row)) if part.kind == "path" else part for part in parts]


def _by_place(
    index: RowIndex, parts: Sequence[RowKeys], keys: Sequence[pa.Array], names: Sequence[str], table: Table
) -> Lines:
    """Return the lines of rows by their numbers; warn of lines with numbers that no row has."""
    by_window = index.scope.windows is not None and any(part.name == "row_id" for part in parts)
    rows, in_files, every = index.every_row(), index.files.rows, parts
    if index.scope.windows is not None and not by_window:  # lines of steps without a window are not surplus
        rows, in_files = index.rows_of_files()
        steps = pa.array(in_files.local(np.arange(in_files.num_units))[1])
        every = [replace(part, values=steps) if part.kind == "number" else part for part in parts]
    lines = lines_of(_of_rows(every, in_files), keys, names, table.name)
    is_used = np.zeros(len(keys[0]), bool)
    is_used[lines[lines >= 0]] = True
    for part, key, name in zip(parts, keys, names, strict=True):
        if part.kind == "path":  # the table may have lines of other files
            encoded = key.dictionary_encode()
            of_files = lines_of([part], [encoded.dictionary], [name], table.name)
            is_used |= ~np.isin(encoded.indices.to_numpy(), of_files)
    if (surplus := np.flatnonzero(~is_used)).size:
        shown = [_shown([key[line] for key in keys]) for line in surplus[:_MAX_LISTED].tolist()]
        if by_window:
            raise SchemaMismatchError(
                f"{table.name}: {len(surplus)} of {len(is_used)} lines are of no row: 'row_id' counts windows, from 0 "
                f"to {in_files.num_units - 1}, and the table has {few(shown)}.{_STEPS}"
            )
        logger.warning(
            "%s: %d of %d lines are of no row, as the files have %s; their keys %s: %s",
            table.name,
            len(surplus),
            len(is_used),
            counted(in_files.num_units, "row" if index.scope.windows is None else "step"),
            ", ".join(map(repr, names)),
            ", ".join([*shown, *(["..."] if len(shown) < len(surplus) else [])]),
        )
    return Lines(lines[rows])


def _row_keys(index: RowIndex, name: str) -> RowKeys:
    """Return a part of the keys of rows: a column of the files or, if they have none of this name, a place."""
    files, kind = index.files, index.scope.rows
    try:
        values = one_array(index.values([name], stored=True)[name])
    except UnknownColumnError as exc:
        if name not in _PLACES or (name == "step" and index.scope.windows is None):
            others = "on= also takes 'path', 'row', 'row_id', and 'group' with rows=Groups(...)"
            other_name = f"If {name!r} is the column of the table, write key={name!r} and what it names as on=."
            raise UnknownColumnError(f"Sidecar: on={name!r}: {exc} Besides columns, {others}. {other_name}") from None
    else:
        if name == GROUP:  # unless the groups have a dataset of this name
            is_group = name not in index.columns
        else:
            is_group = kind is not None and kind.has_groups and name == getattr(kind, "key", None)
        return RowKeys(name, values, "group" if is_group else "value")
    if name == "path":
        texts = [path.decode("utf-8", "backslashreplace") for path in files.paths.to_pylist()]
        return RowKeys(name, pa.array(texts, pa.large_string()), "path")
    if name == "row_id":
        return RowKeys(name, pa.array(index.every_row()), "number")
    rows, in_files = index.rows_of_files()
    return RowKeys(name, pa.array(in_files.local(rows)[1]), "number")


def _check_missing(index: RowIndex, sidecar: Sidecar, table: Table, lines: Lines) -> None:
    """Raise if rows lack a line, unless they are left out or have no values; and if no row has one."""
    absent, total = lines.numbers < 0, len(lines.numbers)
    if lines.by_file:  # one without rows needs no line
        has_rows = index.files.rows.lengths > 0
        absent, total = absent & has_rows, int(has_rows.sum())
    count = int(absent.sum())
    if not count or (sidecar.missing != "error" and count < total):
        return
    what = "files" if lines.by_file else "rows"
    parts = [_row_keys(index, name) for name in sidecar.row_keys]
    if not all(part.kind == "path" for part in parts):
        parts = _of_rows(parts, index.files.rows)
    first = np.flatnonzero(absent)[:_MAX_SHOWN].tolist()
    keys = [*dict.fromkeys(_shown([part.values[row] for part in parts]) for row in first)][:_MAX_LISTED]
    if count == total:
        columns = [one_array(table.column(key)).slice(0, 3) for key in sidecar.keys]
        raise SchemaMismatchError(
            f"{table.name}: none of the {count} {what} has a line. Keys of the {what}: {few(keys)}. Keys of the table: "
            f"{few([_shown(column) for column in zip(*columns, strict=True)]) or 'none'}."
        )
    first_one = "" if lines.by_file else f"; the first is {index.files.where(int(first[0]))}"
    among = f"{len(keys)} of their keys" if len(keys) == _MAX_LISTED else "their keys"
    raise SchemaMismatchError(
        f"{table.name}: {count} of {total} {what} have no line; {among}: {few(keys)}{first_one}. Add lines for them; "
        "or pass Sidecar(..., missing='drop') to leave these rows out, or missing='null' for rows without values."
    )


def _shown(key: Sequence[pa.Scalar]) -> str:
    parts = tuple(part.as_py() for part in key)
    return repr(parts[0] if len(parts) == 1 else parts)


def _of_attributes(
    index: RowIndex, attrs: Mapping[str, str], windows: Sequence[WindowColumn]
) -> dict[str, TableColumn]:
    """Return attributes of the files: columns of a table with a line for each file, in types that hold all values."""
    wanted = tuple(dict.fromkeys(attrs.values()))
    facts = index.lookup.ask(index.files.all_paths(), Question(tuple(index.columns), wanted))
    columns = {}
    for name, attribute in attrs.items():
        by_file = [(file_facts.path, file_facts.values[attribute]) for file_facts in facts]
        kinds = {path: pa.types.is_large_string(values.type) for path, values in by_file}
        text, number = ([path for path in kinds if kinds[path] == said] for said in (True, False))
        if text and number:
            raise SchemaMismatchError(
                f"attribute {attribute!r} is a text in {text[0]} and a number in {number[0]}; leave it out of "
                "attrs=[...]"
            )
        if text:
            columns[name] = pa.chunked_array([values for _, values in by_file])
            continue
        arrays = [(path, values.to_numpy(zero_copy_only=False)) for path, values in by_file]
        dtype = np.result_type(*{array.dtype for _, array in arrays})
        for path, array in arrays:
            if array.dtype.kind in "iu" and array.astype(dtype).tolist() != array.tolist():
                raise SchemaMismatchError(
                    f"{path}: attribute {attribute!r} is {array[0]}, which {dtype} cannot hold, the dtype of all files "
                    "together; leave it out of attrs=[...]"
                )
        columns[name] = pa.chunked_array([pa.array(np.concatenate([array.astype(dtype) for _, array in arrays]))])
    table = Table.of("attributes of the files", columns)
    specs, lines = {name: spec_of(name, kind) for name, kind in table.types.items()}, Lines(np.arange(len(facts)), True)
    made = {name: TableColumn(table, name, spec, lines) for name, spec in specs.items() if spec is not None}
    for window in (window for window in windows if window.source in made):
        if not isinstance(index.scope.rows, Frames):
            raise OptionError(
                f"Windows: {window.source!r} is an attribute of the files, which is the same at each step. Leave it "
                "out of the offsets: each row then has the value of its file."
            )
        made[window.name] = _windowed(
            made[window.source], window.name, replace(lines, around=_around(index, window.offsets))
        )
    return made
