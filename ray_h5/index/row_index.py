"""The facts of all files that planning needs: row counts, the common schema, small columns."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.buffers import ROW_BYTES, check_claim
from ray_h5.columns.labels import Classes
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.range_columns import chunk_group_starts
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import TENSOR_KINDS, Cast, ColumnSpec
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError, PredicateError, RayH5Error, SchemaMismatchError, UnknownColumnError
from ray_h5.index.facts.common_schema import check_enums, check_known, common_columns
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts, Question, Sources, SourceTable, sources_of
from ray_h5.index.facts.scan_file import check_planned
from ray_h5.index.scan_files import (
    UNREADABLE,
    Found,
    Lookup,
    empty_files,
    error_of_unreadable,
    unreadable_files,
    warn_of_left_out,
    warn_of_unreadable,
)
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.manifest.file_state import FileState, check_same, check_sources
from ray_h5.manifest.file_table import FileTable, digest_of
from ray_h5.manifest.partition import Partition
from ray_h5.messages import few, near_names
from ray_h5.options import as_names
from ray_h5.predicates.evaluate import check_names, evaluate
from ray_h5.predicates.time_steps import check_steps as check_time_steps
from ray_h5.predicates.time_steps import rows_with_a_step
from ray_h5.predicates.virtual_names import (
    AnyEqual,
    Derived,
    Fold,
    Length,
    RowMask,
    columns_of,
    parse_virtual,
    read_for,
    virtual_name,
    virtual_spec,
)
from ray_h5.rows.kinds.clock import check_any_row, check_steps, steps_of_rows
from ray_h5.rows.kinds.timestamps import check_widths
from ray_h5.rows.patches_option import check_any_block
from ray_h5.rows.row_view import AnyReader
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.storage_of_path import storage_of
from ray_h5.tables.table_columns import TableColumn, TableColumns

logger = logging.getLogger(__name__)

_MAX_LISTED = 5


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
    found : Found
        What was looked up since: the one part that changes. It is no part of the value.
    tables : tuple of RowTable
        What is known of the rows of each file; empty if they lie along the first axis.
    beside : TableColumns
        Columns of tables beside the files and of attributes, which the rows have too.
    chosen : tuple of str
        The columns that are delivered, of files and of tables, in order; empty for `columns`.
    known : tuple of Manifest
        What is known of each file, so that remote ones are read without libhdf5; empty if all are local.
    varying : frozenset of str
        Columns along the first axis whose rows have one shape in each file, and differ from file to file.
    labels : tuple of Classes
        The classes of columns that are delivered as numbers. Predicates and weights see their values.
    """

    files: FileTable
    columns: Mapping[str, ColumnSpec]
    chunk_rows: Mapping[str, int]
    lookup: Lookup
    cast: Cast = field(default_factory=Cast)
    found: Found = field(default_factory=Found, repr=False, compare=False)
    tables: tuple[RowTable | None, ...] = field(default=(), repr=False, compare=False)
    beside: TableColumns = field(default_factory=TableColumns, repr=False)
    chosen: tuple[str, ...] = ()
    known: tuple[Manifest, ...] = field(default=(), repr=False, compare=False)
    varying: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    labels: tuple[Classes, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are delivered, in order."""
        return self.chosen or tuple(self.columns)

    @property
    def num_rows(self) -> int:
        return self.files.num_rows

    def check_claim(self, steps: int = 0) -> None:
        """Raise `OutOfMemoryError` if a list of all rows, or of some `steps`, takes far more memory than files have.

        Called before such a list is made; see `ray_h5.buffers.check_claim`.
        """
        states = [state for _, state in SourceTable.of(self.found.sources).of_files()]
        stored = self.files.nbytes + sum(state.size for state in states if state is not None)
        counts = self.files.rows.lengths
        largest = int(np.argmax(counts)) if len(counts) else 0
        where = f"{self.files.path(largest)} with {counts[largest]} rows: " if len(counts) else ""
        listed = f"{self.num_rows} rows" if steps <= self.num_rows else f"{steps} steps"
        check_claim(f"{where}planning needs a list of all {listed}", max(self.num_rows, steps) * ROW_BYTES, stored)

    def every_row(self) -> np.ndarray:
        """Return the ids of all rows; raise an `OutOfMemoryError` as `check_claim` does."""
        self.check_claim()
        return np.arange(self.num_rows)

    @property
    def num_kept(self) -> int:
        """How many rows no table leaves out."""
        return self.num_rows if self.beside.kept is None else len(self.beside.kept)

    @property
    def kept(self) -> np.ndarray:
        """The row ids that no table leaves out."""
        return self.every_row() if self.beside.kept is None else self.beside.kept

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
        """Whether rows of a column are ranges of a longer array; tables know of other columns, too."""
        chunked = [table.chunked_by.keys() for table in self.tables if table is not None and self.scope.has_ranges]
        return any(not self.columns.keys().isdisjoint(names) for names in chunked)

    def chunk_group_starts(self, chunks: int) -> np.ndarray | None:
        """Return the first row id of each chunk group, where the rows of the widest column are ranges; else None.

        Rows belong together that begin in the same `chunks` chunks of the array that they are ranges of.
        """
        if not self._has_ranges:
            return None
        widest = max(self._wide(), key=lambda spec: spec.row_bytes).name
        if self.chunk_rows[widest] == 1:
            return None
        if (ranges := self.ranges_of(widest)) is None:
            return None
        firsts = zip(ranges, self.files.starts.tolist(), strict=False)
        return np.concatenate([chunk_group_starts(*of_file, chunks) + first for of_file, first in firsts])

    def ranges_of(self, name: str) -> list[tuple[Bounds, int]] | None:
        """Return for each file the bounds of the rows of a column, and the chunk size of what they are ranges of.

        None if the rows of a file are no ranges.
        """
        ranges = [None if table is None else table.ranges_of(name) for table in self.tables]
        known = [of_file for of_file in ranges if of_file is not None]
        return known if len(known) == len(ranges) else None

    def rows_of_files(self) -> tuple[np.ndarray, Partition]:
        """Return the number that each row has among the rows of all files, and those of each file.

        With windows, the rows of files are their steps: some have no window.
        """
        windows = self.scope.windows
        if windows is None:
            return self.every_row(), self.files.rows
        tables = [RowTable() if table is None else table for table in self.tables]
        in_files = Partition.of(np.array([table.num_steps for table in tables], np.int64))
        self.check_claim(in_files.num_units)
        steps = [steps_of_rows(table, windows) + first for table, first in zip(tables, in_files.firsts, strict=True)]
        return np.concatenate([*steps, np.empty(0, np.int64)]), in_files

    def open(self, file: int) -> AnyReader:
        """Open a file, with what is known of it."""
        table, known = self.tables[file] if self.tables else None, self.known[file] if self.known else None
        return self.scope.open(self.files.path(file), FileState(self.files.identity(file)), table, known)

    def find(self, names: Sequence[str]) -> dict[str, ColumnSpec]:
        """Return the specs of columns. They may be virtual, or columns of the files that are not in `columns`.

        Raises
        ------
        UnknownColumnError, SchemaMismatchError
            If a file lacks one, or its other columns have another number of rows.
        """
        beside = self.columns_beside
        if not beside and self.columns.keys() >= {*names}:  # nothing else is asked, by whoever plans and reads
            return {name: self.columns[name] for name in names}
        virtual = {name: virtual_spec(name) for name in names if parse_virtual(name)[1]}
        of_tables = {name: column.row_spec for name, column in beside.items()}
        known = {**virtual, **self.found.columns, **self.columns, **of_tables}
        absent = [name for name in names if name not in known]
        if absent:
            with self._noticing_changes():
                try:
                    more = _build(self.files.all_paths(), tuple(absent), self.lookup, self.cast)
                except UnknownColumnError as exc:
                    if self._find_beside(absent):
                        return self.find(names)
                    raise UnknownColumnError(f"{exc}{columns_beside(self.beside.specs, absent)}") from None
                _check_same_rows(self, more.files, absent)
            self._add_sources(more.found.sources)
            self.found.add(columns=more.columns)
            known.update(more.columns)
        return {name: known[name] for name in names}

    @property
    def columns_beside(self) -> Mapping[str, TableColumn]:
        """Columns of tables: those that the tables list, and those that were looked up since."""
        return {**self.found.beside, **self.beside.columns}

    def _find_beside(self, names: Sequence[str]) -> bool:
        """Look up columns that no file has, and files beside do not list, such as categories; return if there is one.

        One of several names may be of the files: it is asked for again.
        """
        # Of lines of windows, it would have windows, too, which nobody asked for.
        of_rows = [column for column in self.beside.columns.values() if column.lines.around is None]
        for column in {id(column.table): column for column in of_rows}.values():
            found = {name: there for name in names if (there := column.table.find(name)) is not None}
            more = {name: TableColumn(column.table, *there, column.lines) for name, there in found.items()}
            if more:
                self.found.add(beside=more)
                return True
        return False

    @property
    def outputs(self) -> dict[str, ColumnSpec]:
        """The specs of all `names` as batches have them: labels are numbers."""
        numbered, delivered = {label.name: label for label in self.labels}, self.delivered
        specs = {name: delivered[name] for name in self.names}
        made = {
            name: self._made_of(spec, numbered[name].spec(spec)) for name, spec in specs.items() if name in numbered
        }
        return specs | made

    @property
    def delivered(self) -> dict[str, ColumnSpec]:
        """The specs, as they are delivered, of all `names` and of other columns that are cast for predicates."""
        known = {**self.columns, **self.beside.specs, **self.found.columns}
        names = [*self.names, *self.columns, *(name for name in self.cast.dtypes if name in known)]
        return {name: self._made_of(spec, self.cast(spec)) for name, spec in self.find(names).items()}

    def _made_of(self, stored: ColumnSpec, spec: ColumnSpec) -> ColumnSpec:
        """Return the spec of another type; of arrays that are made of lists, rows may be missing as lists may be."""
        lacks_rows = self.scope.may_lack and (stored.kind, spec.kind) == ("list", "ragged")
        return spec.with_type(nullable=True) if lacks_rows else spec

    def values(self, names: Iterable[str], *, stored: bool = False) -> dict[str, pa.ChunkedArray]:
        """Return columns of one value a row, of all rows; they may be virtual. Each is read once and kept.

        They are found where the first of these has them: tables beside the files, folds, the files themselves.

        Parameters
        ----------
        names : iterable of str
            The columns.
        stored : bool
            Whether to return values as the files store them. By default they are as they are delivered: cast.

        Raises
        ------
        UnknownColumnError, SchemaMismatchError
            As `find` does.
        StaleIndexError, MissingSourceError
            If a file, or another that the columns come from, is no longer as it was.
        PredicateError
            If a column holds an array a row, or has other values in each epoch.
        """
        specs = self.find(list(names))
        specs = specs if stored else {name: self.cast(spec) for name, spec in specs.items()}
        check_names(specs, specs)
        columns = {name: self._looked_up_as(spec) for name, spec in specs.items()}
        if there := [name for name, spec in columns.items() if spec in self.found.values]:
            self._check_unchanged(self.sources_of(there))
            beside = [self._beside(columns[name]) for name in there]
            for table in {id(column.table): column.table for column in beside if column is not None}.values():
                table.check_unchanged()
        values: dict[ColumnSpec, pa.ChunkedArray] = {}
        absent = dict.fromkeys(spec for spec in columns.values() if spec not in self.found.values)
        for spec in absent:
            _, criterion = parse_virtual(spec.name)
            column = self._beside(spec)
            if column is not None or isinstance(criterion, Fold):
                self.check_claim()
            if column is not None and criterion is not None and column.is_of_lines:
                values[spec] = pa.chunked_array([self._in_lines(column, criterion, spec.name)])
            elif column is not None:
                of_rows = column.cast(spec, column.of(self.files, None))
                nothing = False if spec.kind == "bool" else 0  # of a row without a line: no occurrence, and no length
                values[spec] = pa.chunked_array([of_rows if criterion is None else of_rows.fill_null(nothing)])
            elif isinstance(criterion, Fold):
                values[spec] = pa.chunked_array([self._in_fold(criterion)])
        if of_files := [spec for spec in absent if spec not in values]:  # each file checks its own claim
            values |= self._of_files(of_files)
        self.found.add(values=values)
        return {name: self.found.values[spec] for name, spec in columns.items()}

    def _beside(self, spec: ColumnSpec) -> TableColumn | None:
        """Return a column of a table, or what is computed of one whose values stay in files; None for others."""
        name, criterion = parse_virtual(spec.name)
        known = self.columns_beside
        column = known.get(name)
        if column is None or criterion is None or column.lines.around is not None:
            return column
        if not column.table.is_in_files:
            return column if isinstance(criterion, AnyEqual) else None
        if not isinstance(criterion, (AnyEqual, Length)):
            return None
        if isinstance(criterion, AnyEqual):
            valid = None if criterion.valid is None else known.get(criterion.valid)
            if criterion.valid is not None and (valid is None or valid.table is not column.table):
                raise PredicateError(
                    f"any_equal: column {name!r} is of {column.table.name}; expected valid={criterion.valid!r} of it"
                )
            casts = tuple((known[one].stored, dtype, how) for one, dtype, how in criterion.casts if one in known)
            criterion = replace(criterion, valid=None if valid is None else valid.stored, casts=casts)
        return replace(column, stored=virtual_name(column.stored, criterion), spec=spec)

    def _in_lines(self, column: TableColumn, criterion: Derived, name: str) -> pa.Array:
        """Return whether a value occurs in the line of a table that each row has, or in those of its steps."""
        named = parse_virtual(name)[0]
        where = f"{column.table.name}: any_equal: column {named!r}"
        if not isinstance(criterion, AnyEqual) or (column.table.is_in_files and not column.spec.is_scalar):
            raise PredicateError(f"{where} has windows of a table of {column.spec}; expected one number a line")
        columns = {one: self.columns_beside.get(one) for one in (named, criterion.valid) if one is not None}
        there = {one: of for one, of in columns.items() if of is not None and of.lines.is_like(column.lines)}
        if len(there) < len(columns):
            raise PredicateError(
                f"{where}: expected valid= with the same offsets in this table, found {criterion.valid!r}"
            )
        made = {one: of.with_row_spec(self.cast(of.row_spec)) for one, of in there.items()}
        check_time_steps(where, [(of.spec.kind, of.row_spec.row_shape) for of in made.values()], criterion)
        of_lines = {one: of.of_lines(there[one]) for one, of in made.items()}
        if column.lines.around is not None:
            of_lines = {one: values[:, None] for one, values in of_lines.items()}
        hits = rows_with_a_step(of_lines[named], of_lines.get(criterion.valid or ""), criterion.value)
        hits &= column.values.is_valid().to_numpy(zero_copy_only=False)
        # Those of steps that are padded with zeros, and of no line; see `Lines.have`.
        blank = made[named].spec.is_scalar and criterion.value == 0 and criterion.valid is None
        return pa.array(column.lines.have(self.files, None, np.concatenate([hits, [blank, False]])))

    def select(
        self, predicate: pc.Expression, added: Mapping[str, pa.Array] | None = None, *, stored: bool = False
    ) -> np.ndarray:
        """Return the row ids that pass a predicate and that no table leaves out, ascending.

        `added` are more columns; `stored` as in `values`.
        """
        names = [name for name in columns_of(predicate) if name not in (added or {})]
        try:
            passed = evaluate(predicate, {**self.values(names, stored=stored), **(added or {})}, self.num_rows)
            kept = self.beside.kept
            return passed if kept is None else np.intersect1d(passed, kept, assume_unique=True)
        except PredicateError as exc:
            # Predicates compare the integers of enums.
            (facts,) = self.lookup.ask([self.files.path(0)], Question(tuple(names)))
            enums = {
                name: few([f"{label}={value}" for label, value in facts.columns[name].enum])
                for name in names
                if name in facts.columns and facts.columns[name].enum and facts.columns[name].spec.kind == "number"
            }
            said = (f". {name!r} is an enum, whose integers are compared: {enum}" for name, enum in enums.items())
            raise PredicateError("".join([str(exc), *said])) from exc

    def fold_of_rows(self, k: int, stratify: str | None, seed: int) -> tuple[np.ndarray, str]:
        """Return the fold of each row, and a digest of it, of the names of the files, and of the rows of each.

        Folds have equal sizes, and about the same shares of each value of the column `stratify`.

        Raises
        ------
        OptionError
            If there are fewer rows than folds.
        """
        kept = self.kept
        if len(kept) < k:
            raise OptionError(f"kfold: k={k}: there are only {len(kept)} rows")
        order = kept[np.random.default_rng(seed).permutation(len(kept))]
        if stratify is not None:
            labels = self.values([stratify], stored=True)[stratify].combine_chunks()
            codes = labels.dictionary_encode().indices.fill_null(-1).to_numpy()
            # Rows of one label follow each other, so they are dealt to the folds in turn.
            order = order[np.argsort(codes[order], kind="stable")]
        folds = np.full(self.num_rows, -1)
        folds[order] = np.arange(len(kept)) % k
        return folds, digest_of(self.files.names_digest.encode() + self.files.starts.tobytes() + folds.tobytes())

    def _in_fold(self, fold: Fold) -> pa.Array:
        """Return whether each row is in a fold; raise a PredicateError if the fold is of other files."""
        files, of_files = self.files, fold.files is not None  # files may be read in rows of another kind
        counts, expected = (self.num_rows, len(files)), (fold.num_rows, fold.num_files)
        said, found = (f"{n} files" if of_files else f"{rows} rows in {n} files" for rows, n in (expected, counts))
        said = f"kfold(group={'path' if of_files else None!r}): these folds are of {said}"
        if counts[of_files:] != expected[of_files:]:
            raise PredicateError(f"{said}, found {found}. Read the files that kfold was given.")
        if fold.files is not None:
            digest = files.names_digest
            passes = files.rows.spread(np.isin(np.arange(len(files)), fold.files))
        else:
            fold_by_row, digest = self.fold_of_rows(fold.k, fold.stratify, fold.seed)
            passes = (fold_by_row == fold.fold) == fold.is_test
        if digest != fold.digest:
            why = "with other numbers of rows in each; or a table leaves out other rows, or stratify has other values"
            found = "as many of other names" if of_files else f"as many of other names, or {why}"
            raise PredicateError(f"{said}, found {found}. Read the files, with the tables, that kfold was given.")
        return pa.array(passes)

    def _looked_up_as(self, spec: ColumnSpec) -> ColumnSpec:
        """Return the column whose values are looked up.

        One that is computed file by file is computed from values as they are delivered.
        """
        (column, criterion), read = parse_virtual(spec.name), read_for(spec.name)
        if not isinstance(criterion, AnyEqual):
            return spec
        cast = [self.cast(spec) for spec in self.find([name for name in read if name in self.cast.dtypes]).values()]
        casts = tuple((spec.name, spec.dtype.str, spec.casting) for spec in cast if spec.kind in TENSOR_KINDS)
        return virtual_spec(virtual_name(column, replace(criterion, casts=casts)))

    def _of_files(self, columns: Sequence[ColumnSpec]) -> dict[ColumnSpec, pa.ChunkedArray]:
        names = [*self.columns] or [name for spec in columns for name in read_for(spec.name)]
        if self.scope.may_lack:  # the rows of a file are those of what it has
            in_rows = [spec.name for spec in columns if not isinstance(parse_virtual(spec.name)[1], RowMask)]
            names += [name for column in in_rows for name in read_for(column)]
        with self._noticing_changes():
            answers = self.lookup.ask(self.files.all_paths(), Question(tuple(dict.fromkeys(names)), tuple(columns)))
        for file, facts in enumerate(answers):
            check_same(facts.path, self.files.identity(file), facts.identity)
        check_known(answers, names, self.scope)
        read = dict.fromkeys([*self.columns, *(name for spec in columns for name in read_for(spec.name))])
        self._add_sources(sources_of([facts.sources for facts in answers], read))
        for column in [column for column, of in (parse_virtual(spec.name) for spec in columns) if of is not None]:
            check_enums(answers, column)
        # Copied into memory of their own.
        whole = {spec: pa.chunked_array([facts.values[spec] for facts in answers], spec.kept_type) for spec in columns}
        return {spec: pa.chunked_array([array.combine_chunks()], spec.kept_type) for spec, array in whole.items()}

    def sources_of(self, names: Iterable[str]) -> SourceTable:
        """Return the source files of columns, and of the columns that virtual ones are computed from."""
        known = self.found.sources
        return SourceTable.of({column: known[column] for name in names for column in read_for(name) if column in known})

    def _add_sources(self, sources: Sources) -> None:
        """Add the sources of columns; raise if those of columns that are known changed."""
        for name in (column for column in self.found.sources if column in sources):
            for file, (known, now) in enumerate(zip(self.found.sources[name], sources[name], strict=True)):
                if known != now:
                    check_sources(self.files.path(file), name, known, now, look=self._state_now)
        self.found.add(sources=sources)

    @contextlib.contextmanager
    def _noticing_changes(self) -> Iterator[None]:
        """If a look-up fails, and a file changed since the index was made, raise an error that says so."""
        try:
            yield
        except RayH5Error:
            self.check_unchanged()
            raise

    def check_unchanged(self) -> None:
        """Raise if a file, or another that values come from, changed since the index was made."""
        self._check_unchanged(SourceTable.of(self.found.sources))

    def _check_unchanged(self, sources: SourceTable) -> None:
        """Raise if a file or a source changed; looks at each of them once."""
        for file, path in enumerate(self.files.all_paths()):
            planned, storage = self.files.identity(file), storage_of(path, self.scope.storage)
            check_same(path, planned, storage.seen(path, planned) or storage.check(path))
        states = sources.of_files()
        if states and not all(each_waiting(lambda source: self._state_now(source[0]) == source[1], states)):
            for file, path in enumerate(self.files.all_paths()):
                state = FileState(self.files.identity(file), sources.of_file(file))
                state.check_now(path, self.lookup.scope.storage)

    def _state_now(self, path: str) -> Identity | None:
        return storage_of(path, self.lookup.scope.storage).identity(path)


def columns_beside(names: Collection[str], asked: Iterable[str]) -> str:
    """Return what an error about one of the columns `asked` lacks: those of tables and attributes, and near ones."""
    near = next(filter(None, (near_names(column, names, 0) for column in asked if column not in names)), "")
    return f" Columns of tables and attributes: {few(list(names))}.{near}" if names else ""


def build_index(
    paths: Sequence[str], columns: Sequence[str] | None = None, lookup: Lookup | None = None, cast: Cast | None = None
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
        return _build(paths, wanted, lookup, cast)
    except (*UNREADABLE, SchemaMismatchError) as exc:
        errors = unreadable_files(paths, lookup, Question(wanted)) if isinstance(exc, UNREADABLE) else {}
        rest = [path for path in paths if path not in errors]
        if lookup.leaves_out and errors and rest:
            warn_of_unreadable(errors, len(paths))
            return build_index(rest, columns, lookup, cast)
        error = error_of_unreadable(errors, exc, len(paths))
        # The cause may be files that hold nothing, which are left out with a warning.
        empty = empty_files(paths, lookup)
        filled = [path for path in paths if path not in empty]
        if not filled or not empty:
            raise error from error.__cause__
        try:
            index = _build(filled, wanted, lookup, cast)
        except (*UNREADABLE, SchemaMismatchError):
            raise error from None
        logger.warning(
            "left out %d of %d files, which are empty: %s; write them again, or leave them out",
            len(empty),
            len(paths),
            few([f"{path} ({why})" for path, why in empty.items()], _MAX_LISTED),
        )
        return index


def find_cast(index: RowIndex, names: Sequence[str]) -> None:
    """Look up columns that are cast; raise for one that no file has.

    One that is not delivered may have other rows, such as the values of a ragged column that is left out.
    """
    try:
        index.find(names)
    except UnknownColumnError:
        raise
    except SchemaMismatchError:
        for name in names if len(names) > 1 else ():
            find_cast(index, [name])


def _build(paths: Sequence[str], columns: tuple[str, ...] | None, lookup: Lookup, cast: Cast) -> RowIndex:
    facts, scope = lookup.ask(paths, Question(columns)), lookup.scope
    tables = tuple(one.table for one in facts)
    _check_steps_of(facts, columns, scope)
    if columns is None and any(one.left_out for one in facts):
        warn_of_left_out(facts)
    common = common_columns(facts, columns, scope, cast)
    counts = [_num_rows(one, columns, scope) for one in facts]
    files = FileTable.of(paths, [one.identity for one in facts], counts)
    in_files = {name: [one.columns[name] for one in facts if name in one.columns] for name in common}
    is_array = _rows_of_one_shape(common, in_files) if scope.by_axis else {}
    tables = _with_absent(tables, facts, common, counts, needed=any(map(any, is_array.values())))
    _check_any_row(paths, tables, files.num_rows, scope)
    known = tuple(one.known and one.known.without(scope.unread(one.columns, common)) for one in facts)
    return RowIndex(
        files,
        common,
        {name: max(column.chunk_rows for column in columns_of) for name, columns_of in in_files.items()},
        lookup,
        cast,
        Found(sources=sources_of([one.sources for one in facts], common)),
        tables,
        known=known if any(known) else (),
        varying=frozenset(name for name, in_file in is_array.items() if all(in_file)),
    )


def _check_steps_of(facts: Sequence[FileFacts], columns: tuple[str, ...] | None, scope: Scope) -> None:
    """Raise unless the steps of windows are numbered, or spaced in time, as the windows ask for."""
    rows, windows = scope.rows, scope.windows
    if windows is None:
        return
    paths, tables = [one.path for one in facts], tuple(one.table for one in facts)
    if windows.at is not None:
        check_widths(paths, tables, windows, columns)
    elif rows is not None and rows.episode:
        check_steps(paths, tables, [name for one in facts for name in one.chosen(columns)], windows)


def _check_any_row(paths: Sequence[str], tables: tuple[RowTable | None, ...], num_rows: int, scope: Scope) -> None:
    """Raise if no file has a block, or a window, and so no row."""
    if not num_rows and scope.rows is not None and scope.rows.is_block:
        check_any_block(paths, scope.rows)
    if scope.windows is not None:
        check_any_row(paths, tables, scope.windows)


def _rows_of_one_shape(
    common: Mapping[str, ColumnSpec], in_files: Mapping[str, Sequence[ColumnFacts]]
) -> dict[str, list[bool]]:
    """Return for each column of rows of varying shape whether those of each file have one shape.

    Such as images of another size in each file: arrays there, and arrays of their own in all files together.
    """
    ragged = [name for name, spec in common.items() if spec.kind == "ragged"]
    return {name: [column.spec.kind != "ragged" for column in in_files[name]] for name in ragged}


def _with_absent(
    tables: tuple[RowTable | None, ...],
    facts: Sequence[FileFacts],
    common: Mapping[str, ColumnSpec],
    counts: Sequence[int],
    *,
    needed: bool,
) -> tuple[RowTable | None, ...]:
    """Return the tables of files with the columns that each lacks; empty if no file needs one."""
    # Readers without a table do not deliver None, nor rows that are arrays of their own.
    alike: dict[int, dict[str, ColumnSpec]] = {}  # files with equal columns share these
    for one in facts:
        if id(one.columns) not in alike:
            alike[id(one.columns)] = {name: spec for name, spec in common.items() if name not in one.columns}
    absent = [alike[id(one.columns)] for one in facts]
    if needed or any(absent):
        of_files = zip(tables, absent, counts, strict=True)
        return tuple(
            replace(table or RowTable(), absent=lacks, lacking_rows=rows) if lacks else table or RowTable()
            for table, lacks, rows in of_files
        )
    return () if all(table is None for table in tables) else tables


def _num_rows(facts: FileFacts, columns: tuple[str, ...] | None, scope: Scope) -> int:
    try:
        return facts.num_rows(columns)
    except SchemaMismatchError:
        if chosen := facts.chosen(columns):  # how the file begins may say more
            with scope.open(facts.path, facts.state) as reader:
                reader.base.rows_of(chosen, facts.sources)
        raise


def _check_same_rows(index: RowIndex, files: FileTable, names: Sequence[str]) -> None:
    expected = index.files
    for file in expected.differ(files).tolist():
        check_same(expected.path(file), expected.identity(file), files.identity(file))
    wanted, has = expected.rows.lengths, files.rows.lengths
    for file in np.flatnonzero(wanted != has)[:1].tolist():
        with index.scope.open(expected.path(file), FileState(expected.identity(file))) as reader:
            check_planned(reader, next(iter(index.columns)), int(wanted[file]))
        raise SchemaMismatchError(
            f"{expected.path(file)}: expected {wanted[file]} rows, as its other columns have, found {has[file]} in "
            f"{', '.join(names)}. If it lists the rows of a split, choose them with row_mask()."
        )
