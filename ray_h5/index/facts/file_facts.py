"""The facts of one file that planning needs; and the sources of many: other files that their columns come from.

Columns come from other files by external links, virtual datasets or external storage.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import ColumnSpec
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import SchemaMismatchError
from ray_h5.manifest.file_manifest import NOTHING_KNOWN, Manifest
from ray_h5.manifest.file_state import FileState, SourceStates
from ray_h5.manifest.layout import ValueArray
from ray_h5.merged_facts import Facts, nbytes_of
from ray_h5.read.arguments import common_rows
from ray_h5.storage.byte_source import Identity

_MAX_LISTED = 5
_COLUMN_BYTES, _NAME_BYTES = 200, 160
"""What a column takes in memory, and a name of a category or of a value of an enum (measured)."""


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

    @property
    def dtype(self) -> np.dtype:
        """Dtype of its values."""
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its shape with the row axis; None for axes along which rows differ."""
        return self.num_rows, *(self.spec.type.shape)

    @classmethod
    def of(cls, layout: ValueArray) -> ColumnFacts:
        return cls(ColumnSpec.of(layout), layout.num_rows, layout.chunk_rows, layout.type.enum)


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out about each file.

    Attributes
    ----------
    columns : tuple of str, optional
        The columns to look at; None for all that can be read as rows.
    values : tuple of (ColumnSpec or str)
        Scalar and virtual columns whose values are wanted, and attributes of the group that names are relative to.
    """

    columns: tuple[str, ...] | None = None
    values: tuple[ColumnSpec | str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileFacts(Facts):
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
    sources : mapping of str to SourceStates
        The other files that columns come from; columns without any are left out.
    sought : SourceStates
        Other files that decide which columns there are; known with the listing.
    values : mapping of (ColumnSpec or str) to pyarrow.Array
        The values of scalar and virtual columns that were read, one value a row; and of attributes, one value each.
    table : RowTable, optional
        What is known of the rows, if they do not lie along the first axis.
    known : Manifest
        Of a remote file: what another process needs to know to read the columns without libhdf5.
    own_rows : int
        With ``missing="null"``, of a file that has none of the columns: its groups, or 1 if the file is the row.
    """

    path: str
    identity: Identity
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    listing: tuple[str, ...] | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    sources: Mapping[str, SourceStates] = field(default_factory=dict)
    sought: SourceStates = ()
    values: Mapping[ColumnSpec | str, pa.Array] = field(default_factory=dict)
    table: RowTable | None = None
    known: Manifest = NOTHING_KNOWN
    own_rows: int = 0

    @property
    def state(self) -> FileState:
        """The state of the file and of the sources of its columns."""
        return FileState(self.identity, self.sources)

    @property
    def others(self) -> SourceStates:
        """All other files that these facts depend on, each once."""
        return tuple(dict.fromkeys([*self.sought, *(state for states in self.sources.values() for state in states)]))

    @property
    def value_bytes(self) -> int:
        """Bytes in memory, about: of the values, of columns and their categories, of chunk indexes, and of the rows."""
        columns = sum(_COLUMN_BYTES + len(column.enum) * _NAME_BYTES for column in self.columns.values())
        return columns + self.known.nbytes + nbytes_of(self.table) + nbytes_of(self.values)

    def answers(self, question: Question) -> bool:
        """Return whether these facts answer `question`, so that nothing has to be read."""
        asked = question.columns if question.columns is not None else self.listing
        if asked is None or not all(name in self.columns for name in asked):
            return False
        return not question.values or not self.absent(question)

    def absent(self, question: Question) -> list[ColumnSpec | str]:
        """Return what is asked for and not known: columns for the number of rows of the other columns, and attributes.

        A file may have columns of several lengths. A mask belongs to the columns that it is read with.
        """
        rows = self.num_rows(question.columns)
        lengths = {key: 1 if isinstance(key, str) else rows for key in question.values}
        return [key for key, length in lengths.items() if key not in self.values or len(self.values[key]) != length]

    def chosen(self, columns: Sequence[str] | None) -> dict[str, ColumnFacts]:
        """Return those of the columns that the file has; None asks for all."""
        names = self.listing if columns is None else columns
        assert names is not None
        return {name: self.columns[name] for name in names if name in self.columns}

    def num_rows(self, columns: Sequence[str] | None) -> int:
        """Return the number of rows of the columns asked for; of all columns, as far as known, if it has none of these.

        Raises
        ------
        SchemaMismatchError
            If the columns have different numbers of rows.
        """
        chosen = self.chosen(columns)
        if not chosen and columns is not None:
            return self.own_rows if self.listing is None else self.num_rows(None)
        if not chosen and self.left_out:
            why = "; ".join(f"{name} ({reason})" for name, reason in self.left_out[:_MAX_LISTED])
            raise SchemaMismatchError(f"{self.path}: found no column that can be delivered: {why}")
        return common_rows(self.path, chosen, sources=self.sources)

    def described(self, layouts: Mapping[str, ValueArray], known: Mapping[str, ColumnFacts] | None = None) -> FileFacts:
        """Return these facts together with those of more columns: `known`, if the caller has them."""
        columns = {name: ColumnFacts.of(layout) for name, layout in layouts.items()} if known is None else known
        states = {**self.sources, **{name: layout.sources for name, layout in layouts.items()}}
        sources = {name: of_column for name, of_column in states.items() if of_column}
        return replace(self, columns={**self.columns, **columns}, sources=sources)

    def merged(self, later: FileFacts | None) -> FileFacts:
        """Return these facts and those found since; only the latter if the file changed."""
        if later is None:
            return self
        known = dict(self.others)
        if self.identity != later.identity or any(known.get(path, state) != state for path, state in later.others):
            return later
        listed = self if later.listing is None else later
        return replace(Facts.merged(self, later), left_out=listed.left_out, sought=listed.sought)

    def holds(self, other: FileFacts) -> bool:
        """Return whether all facts of `other` are here too, for the same state of the file."""
        return (
            self.identity == other.identity
            and set(self.others) >= set(other.others)
            and Facts.holds(self, other)
            and all(len(self.values[spec]) == len(values) for spec, values in other.values.items())
        )

    def sharing(self, shared: dict[Hashable, Any]) -> FileFacts:
        """Return these facts with the objects of `shared` for what other files say, too; what is new is added to it.

        A file that is like others then takes no more memory than its path and its state.
        """
        nothing = shared.setdefault("nothing", {})
        return replace(
            self,
            columns=shared.setdefault(("columns", *self.columns.items()), self.columns),
            listing=shared.setdefault(("listing", self.listing), self.listing),
            sources=self.sources or nothing,
            values=self.values or nothing,
            known=self.known or NOTHING_KNOWN,
        )

    def owned(self, known: FileFacts | None) -> FileFacts:
        """Return these facts with values that are copied, except values that `known` has already.

        A slice keeps all of its array in memory. A result of a Ray task keeps its place in the object store.
        """
        if not self.values:
            return self
        values, there = dict(self.values), {} if known is None else known.values
        for spec, array in self.values.items():
            if array is not there.get(spec):
                values[spec] = pa.concat_arrays([array[:0], array])  # of one array alone, it would return a view
        return replace(self, values=values)


# Sources of columns of many files --------------------------------------------------------------------------------

Sources: TypeAlias = Mapping[str, Sequence[SourceStates]]
"""By column, the sources that it has in each file. Columns without sources are left out."""


def sources_of(by_file: Sequence[Mapping[str, SourceStates]], names: Iterable[str]) -> Sources:
    """Return the sources of some columns, given those of the columns of each file."""
    wanted, states_by_name = set(names), dict[str, list[SourceStates]]()
    for file, sources in enumerate(by_file):
        for name in wanted.intersection(sources):
            states_by_name.setdefault(name, [()] * len(by_file))[file] = sources[name]
    return dict(sorted(states_by_name.items()))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SourceTable(ComparedByContent):
    """The sources of columns of many files. Each set of sources is there once.

    Attributes
    ----------
    sets : tuple of SourceStates
        The sets of sources. The first one has none.
    columns : mapping of str to numpy.ndarray
        For each column that has sources, int32 of shape (files,): the set of each file.
    """

    sets: tuple[SourceStates, ...] = ((),)
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: Sources) -> SourceTable:
        """Return the table of some columns."""
        sets: dict[SourceStates, int] = {(): 0}
        shared: dict[bytes, np.ndarray] = {}  # columns often have the same sources
        columns = {}
        for name, of_files in sources.items():
            numbers = np.array([sets.setdefault(states, len(sets)) for states in of_files], np.int32)
            columns[name] = shared.setdefault(numbers.tobytes(), numbers)
        return cls((*sets,), columns)

    def of_file(self, file: int) -> dict[str, SourceStates]:
        """Return the sources of the columns of one file, by column."""
        return {name: self.sets[numbers[file]] for name, numbers in self.columns.items() if numbers[file]}

    def of_files(self, files: Sequence[int] | slice = slice(None)) -> SourceStates:
        """Return the sources of some files, each once; by default of all."""
        sets = {number for numbers in self.columns.values() for number in np.unique(numbers[files]).tolist()}
        return tuple(dict.fromkeys(state for number in sorted(sets) for state in self.sets[number]))
