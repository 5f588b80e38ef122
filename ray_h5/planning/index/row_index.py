"""The facts about all files that planning needs: row counts, the common schema, small columns."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.errors import NotHDF5Error, OptionError, RayH5Error, SchemaMismatchError
from ray_h5.hdf5.checks.changed_files import check_identity, check_state
from ray_h5.hdf5.layout import FileState
from ray_h5.hdf5.metadata.opening import open_h5
from ray_h5.hdf5.reading.arguments import as_names
from ray_h5.messages import few
from ray_h5.planning.index.common_schema import check_enums, common_columns
from ray_h5.planning.index.file_facts import FileFacts, Question, Scope, check_planned
from ray_h5.planning.index.file_table import FileTable
from ray_h5.planning.index.lookup import Lookup
from ray_h5.planning.index.sources import SourceTable
from ray_h5.planning.predicates.criteria import parse_virtual, read_for
from ray_h5.planning.predicates.evaluate import check_names
from ray_h5.planning.predicates.virtual_columns import virtual_spec
from ray_h5.planning.schema import Cast, ColumnSpec
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import check_regular_file, identity_now

logger = logging.getLogger(__name__)


_MAX_LOOKED_AT = 1000
"""As many files are looked at for an error to list all that are not HDF5."""


_MAX_LISTED = 5


_MAX_CARRIED_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """Row counts, schema and small columns of all files.

    Attributes
    ----------
    files : FileTable
        The files.
    columns : mapping of str to ColumnSpec
        The schema that they share, as they store it.
    chunk_rows : mapping of str to int
        Rows of a chunk of each column; of the file where they are most.
    lookup : Lookup
        How more is found out.
    cast : Cast
        What becomes of columns while they are read.
    """

    files: FileTable
    columns: Mapping[str, ColumnSpec]
    chunk_rows: Mapping[str, int]
    lookup: Lookup
    cast: Cast = field(default_factory=Cast)
    _found: dict[str, ColumnSpec] = field(default_factory=dict, repr=False)
    _values: dict[ColumnSpec, pa.ChunkedArray] = field(default_factory=dict, repr=False)
    _sources: list[SourceTable] = field(default_factory=list, repr=False)

    @property
    def num_rows(self) -> int:
        return self.files.num_rows

    @property
    def scope(self) -> Scope:
        return self.lookup.scope

    @property
    def chunk_group_rows(self) -> int:
        """Rows that are best read together: the most that a chunk of one of the wide columns holds.

        A column with less than a quarter of the widest one's bytes may be read more often than
        once; and the size of strings and lists is not known before they are read.
        """
        known = [spec for spec in self.columns.values() if spec.kind not in {"string", "list"}]
        columns = known or list(self.columns.values())
        widest = max(spec.row_bytes for spec in columns)
        return max(self.chunk_rows[spec.name] for spec in columns if 4 * spec.row_bytes >= widest)

    def find(self, names: Sequence[str]) -> dict[str, ColumnSpec]:
        """Return the specs of columns, also of such that are not among `columns`, and of virtual ones.

        Raises
        ------
        UnknownColumnError, SchemaMismatchError
            If a file does not have them, or not with as many rows as its other columns.
        """
        for name in names:
            if parse_virtual(name):
                self._found.setdefault(name, virtual_spec(name))
        absent = [name for name in names if name not in self.columns and name not in self._found]
        if absent:
            with self._noticing_changes():
                also = _build(self.files.all_paths(), tuple(absent), self.lookup, self.cast)
                _check_same_rows(self, also.files, absent)
            self._learn_sources(also.sources_of(absent))
            self._found.update(also.columns)
        return {name: self.columns.get(name) or self._found[name] for name in names}

    @property
    def delivered(self) -> dict[str, ColumnSpec]:
        """The specs of `columns`, and of others that are cast for predicates, as they are delivered."""
        return {name: self.cast(spec) for name, spec in self.find([*self.columns, *self.cast.dtypes]).items()}

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
        absent = tuple(spec for spec in columns if spec not in self._values)
        if len(absent) < len(columns):
            self._check_unchanged(self.sources_of(spec.name for spec in columns if spec not in absent))
        if absent:
            with self._noticing_changes():
                answers = self.lookup.ask(self.files.all_paths(), Question(tuple(self.columns), absent))
            self._check_current(answers, [spec.name for spec in absent])
            for column, _ in filter(None, (parse_virtual(spec.name) for spec in absent)):
                check_enums(answers, column)
            for spec in absent:
                self._values[spec] = _joined(answers, spec)
        return {spec.name: self._values[spec] for spec in columns}

    @property
    def looked_up(self) -> list[str]:
        """The columns whose values were looked up so far, by `small_columns`."""
        return list({spec.name: None for spec in self._values})

    def sources_of(self, names: Iterable[str]) -> SourceTable:
        """Return the other files that columns, and those that virtual ones are computed from, come from."""
        read = dict.fromkeys(each for name in names for each in read_for(name))
        return reduce(SourceTable.joined, (table.only(read) for table in self._sources), SourceTable())

    def _check_current(self, answers: Sequence[FileFacts], names: Sequence[str]) -> None:
        for file, facts in enumerate(answers):
            check_identity(facts.path, self.files.identity(file), facts.identity)
        read = dict.fromkeys([*self.columns, *(each for name in names for each in read_for(name))])
        self._learn_sources(SourceTable.of([facts.origins for facts in answers], read))

    def _learn_sources(self, found: SourceTable) -> None:
        """Add the sources of columns not looked at before; raise if those of the others changed."""
        for known in self._sources:
            known.check_same(found, self.files)
        new = found.only(name for name in found.columns if not any(name in known.columns for known in self._sources))
        if new.columns:
            self._sources.append(new)

    @contextlib.contextmanager
    def _noticing_changes(self) -> Iterator[None]:
        """Where the look at files fails, and one of them changed since the index was made, raise that."""
        try:
            yield
        except RayH5Error:
            self._check_unchanged(reduce(SourceTable.joined, self._sources, SourceTable()))
            raise

    def _check_unchanged(self, sources: SourceTable) -> None:
        """Look at each file, and at each source once; raise if one is not as it was."""
        for file, path in enumerate(self.files.all_paths()):
            check_identity(path, self.files.identity(file), FileIdentity.of(check_regular_file(path)))
        if any(identity_now(path) != state for path, state in map(sources.source, range(len(sources.paths)))):
            for file, path in enumerate(self.files.all_paths()):
                check_state(path, FileState(self.files.identity(file), sources.of_file(file)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Many values stay behind: another process reads those that it needs.
        few = sum(values.nbytes for values in self._values.values()) <= _MAX_CARRIED_BYTES
        values = self._values if few else {}
        found = (self._found, values, self._sources)
        return RowIndex, (self.files, self.columns, self.chunk_rows, self.lookup, self.cast, *found)


def build_index(
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    lookup: Lookup | None = None,
    cast: Cast | None = None,
) -> RowIndex:
    """Collect row counts and the common schema. No row is read.

    Parameters
    ----------
    paths : sequence of str
        The files, in the order of row ids.
    columns : sequence of str, optional
        The columns wanted; None takes all that can be read as rows.
    lookup : Lookup, optional
        How facts of files are found.
    cast : Cast, optional
        What becomes of columns while they are read: files need not agree on what is cast away.

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
    index = _build(paths, wanted, lookup or Lookup(), cast or Cast())
    index.find(list(index.cast.dtypes))  # raises for a column that no file has
    return index


def _build(paths: Sequence[str], columns: tuple[str, ...] | None, lookup: Lookup, cast: Cast) -> RowIndex:
    try:
        facts = lookup.ask(paths, Question(columns))
    except NotHDF5Error as exc:
        raise _list_others(paths, exc) from exc
    if columns is None:
        _say_what_is_left_out(facts)
    agreed = common_columns(facts, columns, lookup.scope, cast)
    files = FileTable.of(paths, [each.identity for each in facts], [each.num_rows(columns) for each in facts])
    chunk_rows = {name: max(each.columns[name].chunk_rows for each in facts) for name in agreed}
    sources = SourceTable.of([each.origins for each in facts], agreed)
    return RowIndex(files, agreed, chunk_rows, lookup, cast, _sources=[sources] if sources.columns else [])


def _list_others(paths: Sequence[str], first: NotHDF5Error) -> NotHDF5Error:
    """Return an error that also lists the others of several files that are not HDF5, up to a few."""
    found = list(islice(filter(None, map(_why_not_hdf5, paths[:_MAX_LOOKED_AT])), _MAX_LISTED + 1))
    if len(paths) == 1 or not found:  # of one file, of what a link in one leads to, or far behind
        return first
    listed = "\n".join(f"  {why}" for why in found[:_MAX_LISTED])
    more = "\n  and more" if len(found) > _MAX_LISTED else ""
    return NotHDF5Error(
        f"among the {len(paths)} files are some that are not HDF5:\n{listed}{more}\n"
        "Move them away, or name the others: by a glob that leaves these out, or one by one."
    )


def _why_not_hdf5(path: str) -> str | None:
    with contextlib.suppress(RayH5Error):  # what else is wrong with it is said once these are gone
        try:
            open_h5(path).close()
        except NotHDF5Error as exc:
            return str(exc)
    return None


def _say_what_is_left_out(facts: Sequence[FileFacts]) -> None:
    left_out = {name: why for each in facts for name, why in each.left_out}
    if left_out:
        shown = few([f"{name} ({why})" for name, why in left_out.items()], _MAX_LISTED)
        columns = left_out.keys() | {name for each in facts for name in each.listing or ()}
        logger.warning(
            "left out %d of %d columns: %s; name columns=[...] to choose", len(left_out), len(columns), shown
        )


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
    """Return a column of all files in memory of its own."""
    whole = pa.chunked_array([facts.values[spec] for facts in answers], spec.kept_type)
    return pa.chunked_array([whole.combine_chunks()], spec.kept_type)
