"""What planning needs to know of one file, and how it is found out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.external import PathLike, as_roots
from ray_h5.hdf5.layout import ColumnLayout, FileIdentity, FileLayout
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.rows import common_rows
from ray_h5.planning.criteria import parse_derived
from ray_h5.planning.derived import compute
from ray_h5.planning.schema import ColumnSpec, scalar_to_arrow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scope:
    """How every file is opened: the group, where its links may lead, and threads for a read."""

    group: str = "/"
    allow_external: tuple[str, ...] = ()
    threads: int = 1

    @classmethod
    def of(cls, group: str, allow_external: PathLike | Iterable[PathLike], threads: int = 1) -> Scope:
        """Return the scope that a user's arguments mean."""
        return cls(group, as_roots(allow_external), threads)

    def open(self, path: str, expect: FileIdentity | None = None) -> RowReader:
        return RowReader(path, self.group, self.threads, self.allow_external, expect=expect)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of one file.

    Attributes
    ----------
    spec : ColumnSpec
        As it is delivered.
    num_rows : int
        Length of its first axis.
    chunk_rows : int
        Rows that are fetched and decoded together; 1 where each row can be had alone.
    """

    spec: ColumnSpec
    num_rows: int
    chunk_rows: int

    @classmethod
    def of(cls, layout: ColumnLayout) -> ColumnFacts:
        return cls(ColumnSpec.of(layout), layout.num_rows, layout.chunk_shape[0] if layout.chunk_shape else 1)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of each file.

    Attributes
    ----------
    columns : tuple of str, optional
        The columns to look at; None for all that can be read as rows.
    values : tuple of ColumnSpec
        Scalar and virtual columns whose values are wanted.
    """

    columns: tuple[str, ...] | None = None
    values: tuple[ColumnSpec, ...] = ()


@dataclass(slots=True)
class FileFacts:
    """What is known of one file, in one state.

    Attributes
    ----------
    path : str
        The file.
    identity : FileIdentity
        Its state.
    columns : dict of str to ColumnFacts
        The columns looked at so far.
    listing : tuple of str, optional
        The names of all columns that can be read as rows, once they were asked for.
    sources : tuple of (str, FileIdentity)
        Other files that columns come from.
    values : dict of ColumnSpec to pyarrow.Array
        Scalar and virtual columns read so far, one value a row.
    """

    path: str
    identity: FileIdentity
    columns: dict[str, ColumnFacts] = field(default_factory=dict)
    listing: tuple[str, ...] | None = None
    sources: tuple[tuple[str, FileIdentity], ...] = ()
    values: dict[ColumnSpec, pa.Array] = field(default_factory=dict)

    def answers(self, question: Question) -> bool:
        """Whether nothing has to be read for `question`."""
        asked = question.columns if question.columns is not None else self.listing
        if asked is None or not all(name in self.columns for name in asked):
            return False
        return not question.values or not self.absent(question)

    def absent(self, question: Question) -> list[ColumnSpec]:
        """Return the columns whose values are asked for and not there, of as many rows as the others have.

        A file may have columns of several lengths; a mask is then of those that are read with it.
        """
        rows = self.num_rows(question.columns)
        return [spec for spec in question.values if spec not in self.values or len(self.values[spec]) != rows]

    def chosen(self, columns: Sequence[str] | None) -> dict[str, ColumnFacts]:
        """Return the columns asked for, as far as the file has them."""
        names = self.listing if columns is None else columns
        assert names is not None
        return {name: self.columns[name] for name in names if name in self.columns}

    def num_rows(self, columns: Sequence[str] | None) -> int:
        """Return the number of rows of the columns asked for.

        Raises
        ------
        SchemaMismatchError
            If they differ.
        """
        chosen = self.chosen(columns)
        return common_rows(self.path, chosen) if chosen or columns is None else 0


def learn(facts: FileFacts | None, path: str, question: Question, scope: Scope) -> FileFacts:
    """Find out what is not yet known of a file. Columns that it lacks are left for the comparison of all files."""
    with scope.open(path, facts.identity if facts is not None else None) as reader:
        if facts is None:
            facts = FileFacts(path, reader.identity)
        _learn_columns(facts, reader, question.columns)
        for spec in facts.absent(question) if question.values else ():
            facts.values[spec] = _values(facts, reader, spec, question.columns)
    return facts


def _learn_columns(facts: FileFacts, reader: RowReader, columns: Sequence[str] | None) -> None:
    if columns is not None:
        _note(facts, reader.find([name for name in columns if name not in facts.columns], missing_ok=True))
    elif facts.listing is None:
        layouts = _readable(reader.layout)
        _note(facts, layouts)
        facts.listing = tuple(layouts)


def _note(facts: FileFacts, layouts: Mapping[str, ColumnLayout]) -> None:
    facts.columns.update({name: ColumnFacts.of(layout) for name, layout in layouts.items()})
    sources = dict(facts.sources)
    for layout in layouts.values():
        sources.update(layout.sources)
    facts.sources = tuple(sources.items())


def _values(facts: FileFacts, reader: RowReader, spec: ColumnSpec, columns: Sequence[str] | None) -> pa.Array:
    rows = facts.num_rows(columns)
    if derived := parse_derived(spec.name):
        column, criterion = derived
        _note(facts, reader.find([column] if not criterion.reads else [column, criterion.reads]))
        return pa.array(compute(reader, rows, column, criterion))
    _note(facts, reader.find([spec.name]))
    found = facts.columns[spec.name].num_rows
    if found != rows:
        raise SchemaMismatchError(
            f"{facts.path}: expected {rows} rows, as its other columns have, found {found} in {spec.name!r}. If it "
            "lists the rows of a split, choose them with row_mask()."
        )
    array = np.empty(rows, spec.dtype)
    reader.read_into({spec.name: array}, np.arange(rows))
    return scalar_to_arrow(array, spec, lambda row: f"{facts.path}, row {row}")


def _readable(layout: FileLayout) -> Mapping[str, ColumnLayout]:
    found: dict[str, ColumnLayout] = {}
    left_out = dict(layout.refused)
    for name, column in layout.columns.items():
        try:
            ColumnSpec.of(column)
        except UnsupportedColumnError as exc:
            left_out[name] = exc
        else:
            found[name] = column
    for error in left_out.values():
        if not isinstance(error, UnsupportedColumnError):
            # A single value or a reference is no column of rows; but this one is, and is asked for.
            raise error
        logger.info("left out: %s", error)
    return found
