"""The facts of one file that planning needs, and how they are found."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError, SchemaMismatchError, StaleIndexError, UnsupportedColumnError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.layout import ColumnLayout, FileLayout, FileState, SourceStates
from ray_h5.hdf5.metadata.access import as_roots
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading.arguments import common_rows
from ray_h5.hdf5.remote.known_columns import KnownColumn
from ray_h5.planning.index.sources import Origin
from ray_h5.planning.predicates.criteria import RowMask, parse_virtual, read_for
from ray_h5.planning.predicates.virtual_columns import compute
from ray_h5.planning.rows.column_kinds import RangeColumn
from ray_h5.planning.rows.kinds import RowKind, check_episodes
from ray_h5.planning.rows.space import RowTable
from ray_h5.planning.rows.view import FileReader, RowView
from ray_h5.planning.rows.windows import Windows
from ray_h5.planning.schema import ColumnSpec, scalar_to_arrow
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.local import LOCAL, PathLike
from ray_h5.storage.storages import Storage

logger = logging.getLogger(__name__)

_WHY_CHARACTERS = 100
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class Scope:
    """How every file is opened.

    Attributes
    ----------
    group : str
        The group that column names are relative to.
    allow_external : tuple of str
        The folders that links may lead to.
    threads : int
        Threads for a read.
    rows, windows
        The row kind.
    storage : Storage
        Where files with a URL are.
    columns : tuple of RangeColumn
        The columns that the user described: they are made of several datasets.
    """

    group: str = "/"
    allow_external: tuple[str, ...] = ()
    threads: int = 1
    rows: RowKind | None = None
    windows: Windows | None = None
    storage: Storage = LOCAL
    columns: tuple[RangeColumn, ...] = ()
    decode_cf: bool = False
    axes: str = "stored"

    @classmethod
    def of(
        cls,
        group: str,
        allow_external: PathLike | Iterable[PathLike],
        threads: int = 1,
        rows: RowKind | None = None,
        windows: Windows | None = None,
        storage: Storage = LOCAL,
        columns: Sequence[RangeColumn] = (),
        decode_cf: bool = False,
        axes: str = "stored",
    ) -> Scope:
        """Return the scope for the arguments of a user."""
        check_episodes(rows, windows)
        if columns and (rows is not None or windows is not None):
            kind = rows if windows is None else windows
            raise OptionError(
                f"columns: {columns[0]} is for rows along the first axis; leave it out, or {kind}, which says what a "
                "row is"
            )
        if not isinstance(decode_cf, (bool, np.bool_)):
            raise OptionError(f"decode_cf={decode_cf!r}: expected True or False")
        if decode_cf and (rows is not None or windows is not None):
            kind = rows if windows is None else windows
            raise OptionError(
                f"decode_cf=True: is for rows along the first axis; leave it out, or {kind}, which says what a row is"
            )
        if axes not in {"stored", "reversed"}:
            raise OptionError(f"axes={axes!r}: expected 'stored' or 'reversed'")
        if axes == "reversed" and (rows is not None or windows is not None or columns or decode_cf):
            other = next(each for each in (rows, windows, *columns, "decode_cf=True") if each is not None)
            raise OptionError(f"axes='reversed': rows lie along the last axis; leave it out, or {other}")
        made = tuple(columns)
        return cls(group, as_roots(allow_external), threads, rows, windows, storage, made, bool(decode_cf), axes)

    @property
    def by_axis(self) -> bool:
        """Whether rows lie along the first axis."""
        return self.rows is None and self.windows is None

    def open(
        self,
        path: str,
        expect: FileState | None = None,
        table: RowTable | None = None,
        known: Mapping[str, KnownColumn] | None = None,
    ) -> FileReader:
        """Open a file; `table` has what is known of its rows, and `known` of columns of a remote file."""
        reader = RowReader(
            path,
            self.group,
            self.threads,
            self.allow_external,
            expect=expect,
            storage_options=self.storage,
            known=known,
        )
        # A remote file of which columns are known is not opened here.
        plain = self.by_axis and table is None and not self.columns and not self.decode_cf
        plain = plain and self.axes == "stored"
        if plain and (known or not reader.form):
            return reader
        return RowView(
            reader,
            self.rows,
            self.windows,
            table,
            self.columns,
            decode_cf=self.decode_cf,
            is_reversed=self.axes == "reversed",
        )


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of one file.

    Attributes
    ----------
    spec : ColumnSpec
        The column as it is delivered.
    num_rows : int
        Length of its first axis.
    chunk_rows : int
        Rows that are fetched and decoded together; 1 if each row can be read alone.
    enum : tuple of (str, int)
        The names of the integers of an enum.
    """

    spec: ColumnSpec
    num_rows: int
    chunk_rows: int
    enum: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, layout: ColumnLayout) -> ColumnFacts:
        return cls(ColumnSpec.of(layout), layout.num_rows, layout.chunk_rows, layout.enum)


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out about each file.

    Attributes
    ----------
    columns : tuple of str, optional
        The columns to look at; None for all that can be read as rows.
    values : tuple of ColumnSpec
        Scalar and virtual columns whose values are wanted.
    attributes : tuple of str
        Attributes of the group that names are relative to.
    """

    columns: tuple[str, ...] | None = None
    values: tuple[ColumnSpec, ...] = ()
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts of one file, in one state. The value is frozen, as threads share it: new facts make a new value.

    Attributes
    ----------
    path : str
        The file.
    identity : Identity
        Its state.
    columns : mapping of str to ColumnFacts
        The columns that were looked at.
    listing : tuple of str, optional
        The names of all columns that can be read as rows; None if they are not known yet.
    left_out : tuple of (str, str)
        Columns with rows that cannot be read, and why; known with the listing.
    origins : tuple of Origin
        The other files that columns come from.
    sought : SourceStates
        Other files that decide which columns there are; known with the listing.
    values : mapping of ColumnSpec to pyarrow.Array
        The values of scalar and virtual columns that were read, one value a row.
    table : RowTable, optional
        What is known of the rows, if they do not lie along the first axis.
    attributes : mapping of str to pyarrow.Array
        The attributes that were read, one value each.
    known : mapping of str to KnownColumn
        Of a remote file: layouts and chunk indexes of the columns that are read without libhdf5.
    """

    path: str
    identity: Identity
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    listing: tuple[str, ...] | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    origins: tuple[Origin, ...] = ()
    sought: SourceStates = ()
    values: Mapping[ColumnSpec, pa.Array] = field(default_factory=dict)
    table: RowTable | None = None
    attributes: Mapping[str, pa.Array] = field(default_factory=dict)
    known: Mapping[str, KnownColumn] = field(default_factory=dict)

    @property
    def state(self) -> FileState:
        """The state of the file and of the sources of its columns."""
        return FileState(self.identity, {name: origin.sources for origin in self.origins for name in origin.columns})

    @property
    def sources(self) -> SourceStates:
        """All other files that these facts depend on, each once."""
        return tuple(dict.fromkeys([*self.sought, *(each for origin in self.origins for each in origin.sources)]))

    @property
    def value_bytes(self) -> int:
        """Bytes of the values, of chunk indexes, and of what is known of the rows."""
        packed = (len(index.data) for each in self.known.values() for index in each.indexes)
        table = 0 if self.table is None else self.table.nbytes
        return sum(array.nbytes for array in self.values.values()) + sum(packed) + table

    def answers(self, question: Question) -> bool:
        """Return whether these facts answer `question`, so that nothing has to be read."""
        asked = question.columns if question.columns is not None else self.listing
        if asked is None or not all(name in self.columns for name in asked):
            return False
        if not self.attributes.keys() >= set(question.attributes):
            return False
        return not question.values or not self.absent(question)

    def absent(self, question: Question) -> list[ColumnSpec]:
        """Return the columns whose values are asked for and not known for the number of rows of the other columns.

        A file may have columns of several lengths. A mask belongs to the columns that it is read with.
        """
        rows = self.num_rows(question.columns)
        return [spec for spec in question.values if spec not in self.values or len(self.values[spec]) != rows]

    def chosen(self, columns: Sequence[str] | None) -> dict[str, ColumnFacts]:
        """Return those of the columns that the file has; None asks for all."""
        names = self.listing if columns is None else columns
        assert names is not None
        return {name: self.columns[name] for name in names if name in self.columns}

    def num_rows(self, columns: Sequence[str] | None) -> int:
        """Return the number of rows of the columns asked for.

        Raises
        ------
        SchemaMismatchError
            If the columns have different numbers of rows.
        """
        chosen = self.chosen(columns)
        if not chosen and columns is None and self.left_out:
            why = "; ".join(f"{name} ({reason})" for name, reason in self.left_out[:_MAX_LISTED])
            raise SchemaMismatchError(f"{self.path}: found no column that can be delivered: {why}")
        return common_rows(self.path, chosen) if chosen or columns is None else 0

    def described(self, layouts: Mapping[str, ColumnLayout]) -> FileFacts:
        """Return these facts together with those of more columns."""
        columns = {name: ColumnFacts.of(layout) for name, layout in layouts.items()}
        sources = {**self.state.sources, **{name: layout.sources for name, layout in layouts.items()}}
        return replace(self, columns={**self.columns, **columns}, origins=Origin.grouped(sources))

    def merged(self, found: FileFacts) -> FileFacts:
        """Return these facts and those found since; only the latter if the file changed."""
        sources = dict(self.sources)
        if self.identity != found.identity or any(sources.get(path, state) != state for path, state in found.sources):
            return found
        known = self if found.listing is None else found
        return replace(
            found,
            columns={**self.columns, **found.columns},
            listing=known.listing,
            left_out=known.left_out,
            origins=_merged(self.origins, found.origins),
            sought=known.sought,
            values={**self.values, **found.values},
            table=found.table or self.table,
            attributes={**self.attributes, **found.attributes},
            known={**self.known, **found.known},
        )

    def holds(self, other: FileFacts) -> bool:
        """Return whether all facts of `other` are here too, for the same state of the file."""
        return (
            self.identity == other.identity
            and set(self.sources) == set(other.sources)
            and (self.listing is not None or other.listing is None)
            and self.columns.keys() >= other.columns.keys()
            and self.values.keys() >= other.values.keys()
            and (other.table is None or (self.table is not None and self.table.holds(other.table)))
            and self.attributes.keys() >= other.attributes.keys()
            and self.known.keys() >= other.known.keys()
            and all(len(self.values[spec]) == len(values) for spec, values in other.values.items())
        )

    def owned(self, known: FileFacts | None) -> FileFacts:
        """Return these facts with values that are copied, except values that `known` has already.

        A slice keeps all of its array in memory. A result of a Ray task keeps its place in the object store.
        """
        there = {} if known is None else known.values
        values = {spec: array if array is there.get(spec) else _copied(array) for spec, array in self.values.items()}
        return replace(self, values=values)


def _merged(known: tuple[Origin, ...], found: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """Return the origins of all columns; `found` itself if it has all, as other files share that object."""
    sources = {name: origin.sources for origin in (*known, *found) for name in origin.columns}
    grouped = Origin.grouped(sources)
    return found if grouped == found else grouped


def _copied(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array[:0], array])  # of one array alone, it would return a view


def learn(
    facts: FileFacts | None, path: str, question: Question, scope: Scope, listed: Identity | None = None
) -> FileFacts:
    """Return the known facts of a file together with the answers to a question.

    A column that the file lacks is no error here: the comparison of all files reports it. `listed` is the state of a
    remote file in a listing.
    """
    if facts is not None:
        state: FileState | None = facts.state
    else:
        state = None if listed is None else FileState(listed)
    table = None if facts is None else facts.table
    try:
        return _learn(facts, path, question, scope, state, table)
    except UnsupportedColumnError as exc:
        if not exc.is_encoded or table is not None:
            raise
    return _learn(facts, path, question, scope, state, RowTable())  # a column is a group; the file does not say so


def _learn(
    facts: FileFacts | None,
    path: str,
    question: Question,
    scope: Scope,
    state: FileState | None,
    table: RowTable | None,
) -> FileFacts:
    with scope.open(path, state, table, None if facts is None else facts.known) as reader:
        if facts is None:
            reader.base.look_again()
        facts = _learn_columns(facts or FileFacts(path, reader.identity), reader, question.columns)
        for spec in facts.absent(question) if question.values else ():
            facts = _learn_values(facts, reader, spec, question.columns)
        facts = _learn_attributes(facts, reader, question.attributes)
        return facts if isinstance(reader, RowReader) else replace(facts, table=reader.table)


def check_planned(reader: FileReader, column: str, rows: int) -> None:
    """Raise unless a column has the number of rows that was planned. The file did not change since.

    Raises
    ------
    StaleIndexError
        If not: only a wrong index on disk can be the cause.
    """
    found = reader.find([column])[column]
    if found.num_rows != rows:
        raise StaleIndexError(wrong_index(found, f"{rows} rows", f"{found.num_rows}"))


def wrong_index(layout: ColumnLayout, planned: str, found: str) -> str:
    """Return the message for a column that is not what an index on disk says."""
    return (
        f"{layout.where}: planned as {planned}, found {found}, in a file that did not change. Its entry in "
        "index_dir is wrong: delete that folder, and build the index again."
    )


def _learn_columns(facts: FileFacts, reader: FileReader, columns: Sequence[str] | None) -> FileFacts:
    if columns is not None:
        new = [name for name in columns if name not in facts.columns]
        return _knowing(facts.described(found := reader.find(new, missing_ok=True)), reader, list(found))
    if facts.listing is not None:
        return facts
    layout = reader.layout
    layouts, left_out = _readable(layout)
    others = (column.sources for name, column in layout.columns.items() if name not in layouts)
    sought = tuple(dict.fromkeys([*layout.sought, *(each for sources in others for each in sources)]))
    facts = replace(facts.described(layouts), listing=tuple(layouts), left_out=left_out, sought=sought)
    return _knowing(facts, reader, list(layouts))


def _knowing(facts: FileFacts, reader: FileReader, names: Sequence[str]) -> FileFacts:
    """Return the facts of a remote file with what reads of its columns need."""
    if not is_url(facts.path) or isinstance(reader, RowView):
        return facts
    return replace(facts, known={**facts.known, **reader.known_columns(names)})


def _learn_values(facts: FileFacts, reader: FileReader, spec: ColumnSpec, columns: Sequence[str] | None) -> FileFacts:
    rows = facts.num_rows(columns)
    for name in list(facts.chosen(columns))[:1]:
        check_planned(reader, name, rows)
    derived = parse_virtual(spec.name)
    # A mask is a dataset of the file, also where rows are groups.
    is_mask = derived is not None and isinstance(derived[1], RowMask)
    finder = reader.base if is_mask and isinstance(reader, RowView) else reader
    facts = facts.described(finder.find(read_for(spec.name)))
    values = _stored(facts, reader, spec, rows) if derived is None else pa.array(compute(reader, rows, *derived))
    return replace(facts, values={**facts.values, spec: values})


def _learn_attributes(facts: FileFacts, reader: FileReader, names: Sequence[str]) -> FileFacts:
    absent = [name for name in names if name not in facts.attributes]
    if not absent:
        return facts
    base = reader.base if isinstance(reader, RowView) else reader
    found = dict(facts.attributes)
    for name, value in base.attributes(absent).items():
        try:
            found[name] = pa.array([value.decode()] if isinstance(value, bytes) else value)
        except UnicodeDecodeError:
            raise UnsupportedColumnError(
                f"{facts.path}: attribute {name!r} holds {value!r}, which is not UTF-8; leave it out of attrs=[...]"
            ) from None
        if isinstance(value, bytes):
            found[name] = found[name].cast(pa.large_string())
    return replace(facts, attributes=found)


def _stored(facts: FileFacts, reader: FileReader, spec: ColumnSpec, rows: int) -> pa.Array:
    found = facts.columns[spec.name].num_rows
    if found != rows:
        raise SchemaMismatchError(
            f"{facts.path}: expected {rows} rows, as its other columns have, found {found} in {spec.name!r}. If it "
            "lists the rows of a split, choose them with row_mask()."
        )
    stored = facts.columns[spec.name].spec
    if not spec.is_read_from(stored, True):
        raise SchemaMismatchError(f"{facts.path}: column {spec.name!r}: expected {spec}, found {stored}")
    array = empty((rows,), spec.dtype, f"{facts.path}: column {spec.name!r}")
    reader.read_into({spec.name: array}, slice(None), casting=spec.casting)
    return scalar_to_arrow(array, spec, lambda row: f"{facts.path}, row {row}", spec.kept_type)


def _readable(layout: FileLayout) -> tuple[Mapping[str, ColumnLayout], tuple[tuple[str, str], ...]]:
    """Return the columns that can be delivered, and why the others cannot."""
    found: dict[str, ColumnLayout] = {}
    refused = {}
    for name, error in layout.refused.items():
        if not isinstance(error, UnsupportedColumnError):
            raise error  # it may be a column of rows, and all columns are asked for
        refused[name] = error
    for name, column in layout.columns.items():
        try:
            ColumnSpec.of(column)
        except UnsupportedColumnError as exc:
            refused[name] = exc
        else:
            found[name] = column
    for error in refused.values():
        logger.debug("left out: %s", error)  # a warning says it once for all files
    return found, tuple((name, _why(name, error)) for name, error in refused.items() if error.has_rows)


def _why(name: str, error: Exception) -> str:
    """Return the reason in an error about a column, in a few words."""
    message = str(error)
    said = message.partition(f"column {name!r}")[2] or message
    return shorten(re.split("; |[.] ", said, maxsplit=1)[0].strip(" ,"), _WHY_CHARACTERS, placeholder=" ...")
