"""The facts about all files that planning needs: row counts, the common schema, small columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.errors import (
    OptionError,
    SchemaMismatchError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.handles import check_identity
from ray_h5.hdf5.layout import ColumnLayout, FileIdentity, FileLayout
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.rows import common_rows
from ray_h5.planning.schema import ColumnSpec, scalar_to_arrow

logger = logging.getLogger(__name__)

_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Scope:
    """How every file is opened: the group, where its links may lead, and threads for a read."""

    group: str = "/"
    allow_external: tuple[str, ...] = ()
    threads: int = 1

    def open(self, path: str, expect: FileIdentity | None = None) -> RowReader:
        return RowReader(path, self.group, self.threads, self.allow_external, expect=expect)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the index keeps of one file."""

    path: str
    identity: FileIdentity
    num_rows: int
    columns: Mapping[str, ColumnSpec]


@dataclass(frozen=True, slots=True, eq=False)
class FileTable:
    """The files, as arrays: what grows with their number is not made of Python objects.

    Attributes
    ----------
    paths : pyarrow.StringArray
        Their paths, in the order of row ids.
    identities : numpy.ndarray
        int64 of shape (files, 4): the fields of `FileIdentity`.
    starts : numpy.ndarray
        int64 of shape (files + 1,): row id of each file's first row; the last entry is the
        number of rows.
    """

    paths: pa.StringArray
    identities: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, facts: Sequence[FileFacts]) -> FileTable:
        identities = [(f.identity.size, f.identity.mtime_ns, f.identity.ctime_ns, f.identity.inode) for f in facts]
        starts = np.concatenate([[0], np.cumsum([f.num_rows for f in facts], dtype=np.int64)])
        return cls(pa.array([f.path for f in facts], pa.string()), np.array(identities, np.int64), starts)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def path(self, file: int) -> str:
        return str(self.paths[file].as_py())

    def identity(self, file: int) -> FileIdentity:
        return FileIdentity(*self.identities[file].tolist())

    def where(self, row_id: int) -> str:
        """Say where a row is, for messages."""
        file = int(self.files_of(np.array([row_id]))[0])
        return f"{self.path(file)}, row {row_id - self.starts[file]}"

    def files_of(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the file of each row id."""
        return np.searchsorted(self.starts, row_ids, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """Row counts, schema and small columns of all files.

    Attributes
    ----------
    files : FileTable
        The files.
    columns : mapping of str to ColumnSpec
        The schema that they share.
    scope : Scope
        How they are opened.
    """

    files: FileTable
    columns: Mapping[str, ColumnSpec]
    scope: Scope
    _found: dict[str, ColumnSpec] = field(default_factory=dict, repr=False)
    _values: dict[ColumnSpec, pa.ChunkedArray] = field(default_factory=dict, repr=False)

    @property
    def num_rows(self) -> int:
        return self.files.num_rows

    def find(self, names: Sequence[str]) -> dict[str, ColumnSpec]:
        """Return the specs of columns, also of such that are not among `columns`.

        Raises
        ------
        UnknownColumnError, SchemaMismatchError
            If a file does not have them, or not with as many rows as its other columns.
        """
        absent = [name for name in names if name not in self.columns and name not in self._found]
        if absent:
            paths = self.files.paths.to_pylist()
            also = build_index(paths, absent, self.scope)
            _check_same_rows(self.files, also.files, absent)
            self._found.update(also.columns)
        return {name: self.columns.get(name) or self._found[name] for name in names}

    def small_columns(self, columns: Sequence[ColumnSpec]) -> dict[str, pa.ChunkedArray]:
        """Return scalar columns of all rows, as they are delivered; each is read once and kept."""
        absent = [spec for spec in columns if spec not in self._values]
        if absent:
            parts = [_read_scalars(self, file, absent) for file in range(len(self.files))]
            for i, spec in enumerate(absent):
                self._values[spec] = pa.chunked_array([part[i] for part in parts], type=spec.value_type)
        return {spec.name: self._values[spec] for spec in columns}

    def __reduce__(self) -> tuple[Any, ...]:
        # The values stay behind: another process reads those that it needs.
        return RowIndex, (self.files, self.columns, self.scope, self._found)


def build_index(
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    scope: Scope = Scope(),
    map_files: Callable[..., Iterable[FileFacts]] = map,
) -> RowIndex:
    """Collect row counts and the common schema. No row is read.

    Parameters
    ----------
    paths : sequence of str
        The files, in the order of row ids.
    columns : sequence of str, optional
        The columns wanted; None takes all that can be read as rows.
    scope : Scope
        How the files are opened.
    map_files : callable
        As the builtin ``map``; another one spreads the work.

    Raises
    ------
    RayH5Error
        If a file cannot be read.
    SchemaMismatchError
        If the files do not share one schema.
    """
    wanted = None if columns is None else list(dict.fromkeys(columns))
    if wanted == []:
        raise OptionError("columns: expected at least one name, found an empty list")
    facts = list(map_files(lambda path: file_facts(path, wanted, scope), paths))
    return RowIndex(FileTable.of(facts), _agreed_columns(facts, wanted, scope), scope)


def file_facts(path: str, columns: Sequence[str] | None, scope: Scope) -> FileFacts:
    """Look at one file. Columns that it lacks are left for the comparison of all files."""
    with scope.open(path) as reader:
        layouts: dict[str, ColumnLayout] = {}
        if columns is None:
            specs = _readable(reader.layout)
            layouts = {name: reader.columns[name] for name in specs}
        else:
            layouts = reader.find(columns, missing_ok=True)
            specs = {name: ColumnSpec.of(layout) for name, layout in layouts.items()}
        rows = common_rows(path, layouts) if layouts or columns is None else 0
        return FileFacts(path, reader.identity, rows, specs)


def _agreed_columns(facts: Sequence[FileFacts], columns: Sequence[str] | None, scope: Scope) -> dict[str, ColumnSpec]:
    expected: dict[str, ColumnSpec] = {}
    for name in facts[0].columns if columns is None else columns:
        found = next((each.columns[name] for each in facts if name in each.columns), None)
        if found is None:
            with scope.open(facts[0].path) as reader:
                reader.column(name)  # raises, with near names
        else:
            expected[name] = found
    wrong = [(each, difference) for each in facts if (difference := _difference(expected, each.columns))]
    if wrong:
        listed = "\n".join(f"  {each.path}: {difference}" for each, difference in wrong[:_MAX_LISTED])
        raise SchemaMismatchError(
            f"{len(wrong)} of {len(facts)} files do not have the columns that the others have:\n{listed}\n"
            "Choose columns that all files share with columns=[...], or leave those files out."
        )
    return expected


def _readable(layout: FileLayout) -> dict[str, ColumnSpec]:
    specs: dict[str, ColumnSpec] = {}
    left_out = dict(layout.refused)
    for name, column in layout.columns.items():
        try:
            specs[name] = ColumnSpec.of(column)
        except UnsupportedColumnError as exc:
            left_out[name] = exc
    for error in left_out.values():
        if not isinstance(error, UnsupportedColumnError):
            # A single value or a reference is no column of rows; but this one is, and is asked for.
            raise error
        logger.info("left out: %s", error)
    return specs


def _difference(expected: Mapping[str, ColumnSpec], found: Mapping[str, ColumnSpec]) -> str:
    notes = [f"column {name!r} is missing" for name in expected if name not in found]
    notes += [f"column {name!r} is in this file only" for name in found if name not in expected]
    notes += [
        f"column {name!r}: expected {expected[name]}, found {found[name]}"
        for name in expected
        if name in found and expected[name] != found[name]
    ]
    return "; ".join(notes)


def _check_same_rows(expected: FileTable, found: FileTable, names: Sequence[str]) -> None:
    for file in np.flatnonzero(np.any(expected.identities != found.identities, axis=1)).tolist():
        check_identity(expected.path(file), expected.identity(file), found.identity(file))
    for file in np.flatnonzero(expected.starts[1:] != found.starts[1:])[:1].tolist():
        wanted, has = (int(table.starts[file + 1] - table.starts[file]) for table in (expected, found))
        raise SchemaMismatchError(
            f"{expected.path(file)}: expected {wanted} rows, as its other columns have, found {has} in "
            f"{', '.join(names)}"
        )


def _read_scalars(index: RowIndex, file: int, specs: Sequence[ColumnSpec]) -> list[pa.Array]:
    path = index.files.path(file)
    rows = np.arange(index.files.starts[file + 1] - index.files.starts[file])
    arrays = {spec.name: np.empty(len(rows), spec.dtype) for spec in specs}
    with index.scope.open(path, index.files.identity(file)) as reader:
        reader.read_into(arrays, rows)
    return [scalar_to_arrow(arrays[spec.name], spec, lambda row: f"{path}, row {row}") for spec in specs]
