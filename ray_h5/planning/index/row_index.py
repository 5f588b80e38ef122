"""The facts of all files that planning needs: row counts, the common schema, small columns."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np
import pyarrow as pa

from ray_h5.errors import NotHDF5Error, OptionError, RayH5Error, SchemaMismatchError
from ray_h5.hdf5.checks.changed_files import check_identity, check_state
from ray_h5.hdf5.layout import FileState
from ray_h5.hdf5.reading.arguments import as_names
from ray_h5.hdf5.remote.known_columns import KnownColumn
from ray_h5.planning.by_content import ComparedByContent
from ray_h5.planning.index.common_schema import check_enums, common_columns
from ray_h5.planning.index.file_facts import FileFacts, Question
from ray_h5.planning.index.file_table import FileTable
from ray_h5.planning.index.found import Found, FoundCell
from ray_h5.planning.index.learn import check_planned
from ray_h5.planning.index.left_out import empty_files, list_others, warn_of_empty, warn_of_left_out
from ray_h5.planning.index.lookup import Lookup
from ray_h5.planning.index.scope import Scope
from ray_h5.planning.index.sources import SourceTable
from ray_h5.planning.predicates.evaluate import check_names
from ray_h5.planning.predicates.index_columns import IndexDerived, compute_from_index
from ray_h5.planning.predicates.virtual_columns import virtual_spec
from ray_h5.planning.predicates.wanted import parse_virtual, read_for
from ray_h5.planning.rows.range_columns import chunk_group_starts
from ray_h5.planning.rows.space import RowTable
from ray_h5.planning.rows.window_rows import check_any_row
from ray_h5.planning.schema import Cast, ColumnSpec
from ray_h5.planning.tables.joined import Joined
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.fetching import each_waiting
from ray_h5.storage.local import check_regular_file
from ray_h5.storage.storages import storage_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowIndex(ComparedByContent):
    """Row counts, schema and small columns of all files.

    Attributes
    ----------
    files : FileTable
        The files.
    columns : mapping of str to ColumnSpec
        The schema that they share, as they store it.
    chunk_rows : mapping of str to int
        Rows of a chunk of each column; the largest of all files.
    lookup : Lookup
        How more is looked up.
    cast : Cast
        The casts while columns are read.
    found : FoundCell
        What was looked up since: the one part that changes. It is no part of the value.
    tables : tuple of RowTable
        What is known of the rows of each file; empty if they lie along the first axis.
    joined : Joined
        Tables beside the files, whose columns the rows have too.
    chosen : tuple of str
        The columns that are delivered, of files and of tables, in order; empty for `columns`.
    known : tuple of mapping of str to KnownColumn
        What is known of the columns of each file, so that remote ones are read without libhdf5; empty if all are local.
    """

    files: FileTable
    columns: Mapping[str, ColumnSpec]
    chunk_rows: Mapping[str, int]
    lookup: Lookup
    cast: Cast = field(default_factory=Cast)
    found: FoundCell = field(default_factory=FoundCell, repr=False, compare=False)
    tables: tuple[RowTable | None, ...] = field(default=(), repr=False, compare=False)
    joined: Joined = field(default_factory=Joined, repr=False)
    chosen: tuple[str, ...] = ()

    known: tuple[Mapping[str, KnownColumn], ...] = field(default=(), repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are delivered, in order."""
        return self.chosen or tuple(self.columns)

    @property
    def num_rows(self) -> int:
        return self.files.num_rows

    @property
    def scope(self) -> Scope:
        return self.lookup.scope

    @property
    def chunk_group_rows(self) -> int:
        """Rows that are best read together: the largest number of rows that a chunk of a wide column holds.

        Columns with less than a quarter of the bytes of the widest one do not count: to read them more than once is
        cheap. The size of strings and lists is not known before they are read.
        """
        return max(self.chunk_rows[spec.name] for spec in self._wide())

    def _wide(self) -> list[ColumnSpec]:
        """Return the columns whose chunks count."""
        unknown = {"string", "list"} if self._has_ranges else {"string", "list", "ragged"}
        known = [spec for spec in self.columns.values() if spec.kind not in unknown]
        columns = known or list(self.columns.values())
        widest = max(spec.row_bytes for spec in columns)
        return [spec for spec in columns if 4 * spec.row_bytes >= widest]

    @property
    def _has_ranges(self) -> bool:
        """Whether rows of a column are ranges of a longer array."""
        return any(table is not None and table.chunked_by for table in self.tables)

    def chunk_group_starts(self, chunks: int) -> np.ndarray | None:
        """Return the first row id of each chunk group, where the rows of the widest column are ranges; else None.

        Rows belong together that begin in the same `chunks` chunks of the array that they are ranges of.
        """
        if not self._has_ranges:
            return None
        widest = max(self._wide(), key=lambda spec: spec.row_bytes).name
        if self.chunk_rows[widest] == 1:
            return None
        found = []
        for table, first in zip(self.tables, self.files.starts.tolist(), strict=False):
            chunked = None if table is None else table.chunked_by.get(widest)
            if table is None or chunked is None or chunked.key not in table.bounds:
                return None
            found.append(chunk_group_starts(table.bounds[chunked.key], chunked.size, chunks) + first)
        return np.concatenate(found)

    def find(self, names: Sequence[str]) -> dict[str, ColumnSpec]:
        """Return the specs of columns. They may be virtual, or columns of the files that are not in `columns`.

        Raises
        ------
        UnknownColumnError, SchemaMismatchError
            If a file lacks one, or its other columns have another number of rows.
        """
        known = {**{name: virtual_spec(name) for name in names if parse_virtual(name)}, **self.found.value.columns}
        known.update(self.columns)
        known.update(self.joined.specs)
        absent = [name for name in names if name not in known]
        if absent:
            with self._noticing_changes():
                more = _build(self.files.all_paths(), tuple(absent), self.lookup, self.cast)
                _check_same_rows(self, more.files, absent)
            self._add_sources(more.sources_of(absent))
            self.found.update(lambda found: found.with_columns(more.columns))
            known.update(more.columns)
        return {name: known[name] for name in names}

    @property
    def delivered(self) -> dict[str, ColumnSpec]:
        """The specs, as they are delivered, of all `names` and of other columns that are cast for predicates."""
        names = [*self.names, *self.columns, *self.cast.dtypes]
        return {name: self.cast(spec) for name, spec in self.find(names).items()}

    def look_up(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Return the values of columns that predicates may name, as they are delivered; see `small_columns`.

        Raises
        ------
        PredicateError
            If one holds an array a row.
        """
        specs = {name: self.cast(spec) for name, spec in self.find(names).items()}
        check_names(names, specs)
        return self.small_columns(list(specs.values()))

    def small_columns(self, columns: Sequence[ColumnSpec]) -> dict[str, pa.ChunkedArray]:
        """Return scalar and virtual columns of all rows, as they are delivered; each is read once and kept.

        Raises
        ------
        StaleIndexError, MissingSourceError
            If a file, or another that the columns come from, is no longer as it was.
        """
        self._compute(columns)
        known = self.found.value.values
        absent = tuple(spec for spec in columns if spec not in known)
        if len(absent) < len(columns):
            self._check_unchanged(self.sources_of(spec.name for spec in columns if spec not in absent))
        if absent:
            with self._noticing_changes():
                answers = self.lookup.ask(self.files.all_paths(), Question(tuple(self.columns), absent))
            self._check_current(answers, [spec.name for spec in absent])
            for column, _ in filter(None, (parse_virtual(spec.name) for spec in absent)):
                check_enums(answers, column)
            new = {spec: _joined(answers, spec) for spec in absent}
            self.found.update(lambda found: found.with_values(new))
            known = {**known, **new}
        return {spec.name: known[spec] for spec in columns}

    def _compute(self, columns: Sequence[ColumnSpec]) -> None:
        """Find the virtual columns that are not computed file by file."""
        beside = self.joined.specs
        for spec in columns:
            if spec.name in beside and spec not in self.found.value.values:
                found = {spec: self.joined.of_all_rows(spec, self.files)}
                self.found.update(partial(Found.with_values, values=found))
            column, criterion = parse_virtual(spec.name) or ("", None)
            if isinstance(criterion, IndexDerived) and spec not in self.found.value.values:
                values = compute_from_index(self, column, criterion)
                self.found.update(partial(Found.with_values, values={spec: values}))

    @property
    def looked_up(self) -> list[str]:
        """The columns whose values were looked up so far, by `small_columns`."""
        return list({spec.name: None for spec in self.found.value.values})

    def sources_of(self, names: Iterable[str]) -> SourceTable:
        """Return the source files of columns, and of the columns that virtual ones are computed from."""
        read = dict.fromkeys(each for name in names for each in read_for(name))
        # Tables without these columns stay out: their files are not looked at.
        tables = (table.only(read) for table in self.found.value.sources)
        return reduce(SourceTable.joined, tables, SourceTable())

    def _check_current(self, answers: Sequence[FileFacts], names: Sequence[str]) -> None:
        for file, facts in enumerate(answers):
            check_identity(facts.path, self.files.identity(file), facts.identity)
        read = dict.fromkeys([*self.columns, *(each for name in names for each in read_for(name))])
        self._add_sources(SourceTable.of([facts.origins for facts in answers], read))

    def _add_sources(self, sources: SourceTable) -> None:
        """Add the sources of columns that are new; raise if those of the other columns changed."""
        for known in self.found.value.sources:
            known.check_same(sources, self.files, self._state_now)
        self.found.update(lambda found: found.with_sources(sources))

    @contextlib.contextmanager
    def _noticing_changes(self) -> Iterator[None]:
        """If a look-up fails, and a file changed since the index was made, raise an error that says so."""
        try:
            yield
        except RayH5Error:
            self._check_unchanged(self.found.value.all_sources)
            raise

    def _check_unchanged(self, sources: SourceTable) -> None:
        """Raise if a file or a source changed; looks at each of them once."""
        for file, path in enumerate(self.files.all_paths()):
            if not self.files.is_remote(file):  # each read of a remote file says which state it wants
                check_identity(path, self.files.identity(file), FileIdentity.of(check_regular_file(path)))
        found = [sources.source(number) for number in range(len(sources.paths))]
        if not all(each_waiting(lambda each: self._state_now(each[0]) == each[1], found)):
            for file, path in enumerate(self.files.all_paths()):
                state = FileState(self.files.identity(file), sources.of_file(file))
                check_state(path, state, self.lookup.scope.storage)

    def _state_now(self, path: str) -> Identity | None:
        return storage_of(path, self.lookup.scope.storage).identity(path)


def build_index(
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    lookup: Lookup | None = None,
    cast: Cast | None = None,
    beside: Collection[str] = (),
) -> RowIndex:
    """Collect row counts and the common schema. No row is read.

    Parameters
    ----------
    paths : sequence of str
        The files, in the order of row ids.
    columns : sequence of str, optional
        The columns to read; None takes all that can be read as rows.
    lookup : Lookup, optional
        How facts of files are looked up.
    cast : Cast, optional
        The casts while columns are read. The dtypes of columns that are cast may differ between files.
    beside : collection of str
        Columns that are not in the files.

    Raises
    ------
    RayH5Error
        If a file cannot be read.
    SchemaMismatchError
        If the files do not share one schema.
    """
    if not paths:
        raise OptionError("paths: expected at least one file, found none")
    wanted = None if columns is None else tuple(dict.fromkeys(as_names(columns)))
    if wanted == ():
        raise OptionError("columns: expected at least one name, found an empty list")
    lookup, cast = lookup or Lookup(), cast or Cast()
    try:
        index = _build(paths, wanted, lookup, cast)
    except (NotHDF5Error, SchemaMismatchError) as exc:
        index = _without_empty(paths, wanted, lookup, cast, exc)
    index.find([name for name in index.cast.dtypes if name not in beside])  # raises for a column that no file has
    return index


def _build(paths: Sequence[str], columns: tuple[str, ...] | None, lookup: Lookup, cast: Cast) -> RowIndex:
    try:
        facts = lookup.ask(paths, Question(columns))
    except NotHDF5Error as exc:
        raise list_others(paths, exc, lookup.scope) from exc
    if columns is None:
        warn_of_left_out(facts)
    common = common_columns(facts, columns, lookup.scope, cast)
    files = FileTable.of(
        paths, [each.identity for each in facts], [_num_rows(each, columns, lookup.scope) for each in facts]
    )
    chunk_rows = {name: max(each.columns[name].chunk_rows for each in facts) for name in common}
    sources = SourceTable.of([each.origins for each in facts], common)
    tables = tuple(each.table for each in facts) if any(each.table is not None for each in facts) else ()
    if lookup.scope.windows is not None:
        check_any_row(paths, tables, lookup.scope.windows)
    known = tuple({name: each.known[name] for name in common if name in each.known} for each in facts)
    found = FoundCell(Found().with_sources(sources))
    return RowIndex(files, common, chunk_rows, lookup, cast, found, tables, known=known if any(known) else ())


def _num_rows(facts: FileFacts, columns: tuple[str, ...] | None, scope: Scope) -> int:
    try:
        return facts.num_rows(columns)
    except SchemaMismatchError:
        if is_url(facts.path) and (chosen := facts.chosen(columns)):  # how the file begins may say more
            with scope.open(facts.path, facts.state) as reader:
                reader.base.rows_of(chosen)
        raise


def _without_empty(
    paths: Sequence[str], wanted: tuple[str, ...] | None, lookup: Lookup, cast: Cast, refused: RayH5Error
) -> RowIndex:
    """Return the index of the files that hold something, with a warning about the others.

    A file is empty without a byte, or without a dataset. Raises `refused` if none is, or the others cannot be read
    either.
    """
    empty = empty_files(paths, lookup)
    filled = [path for path in paths if path not in empty]
    if not filled or not empty:
        raise refused
    try:
        index = _build(filled, wanted, lookup, cast)
    except (NotHDF5Error, SchemaMismatchError):
        raise refused from None
    warn_of_empty(empty, len(paths))
    return index


def _check_same_rows(index: RowIndex, found: FileTable, names: Sequence[str]) -> None:
    expected = index.files
    for file in np.flatnonzero(np.any(expected.identities != found.identities, axis=1)).tolist():
        check_identity(expected.path(file), expected.identity(file), found.identity(file))
    wanted, has = np.diff(expected.starts), np.diff(found.starts)
    for file in np.flatnonzero(wanted != has)[:1].tolist():
        with index.scope.open(expected.path(file), FileState(expected.identity(file))) as reader:
            check_planned(reader, next(iter(index.columns)), int(wanted[file]))
        raise SchemaMismatchError(
            f"{expected.path(file)}: expected {wanted[file]} rows, as its other columns have, found {has[file]} in "
            f"{', '.join(names)}. If it lists the rows of a split, choose them with row_mask()."
        )


def _joined(answers: Sequence[FileFacts], spec: ColumnSpec) -> pa.ChunkedArray:
    """Return a column of all files, copied into memory of its own."""
    whole = pa.chunked_array([facts.values[spec] for facts in answers], spec.kept_type)
    return pa.chunked_array([whole.combine_chunks()], spec.kept_type)
