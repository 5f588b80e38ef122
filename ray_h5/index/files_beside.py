"""HDF5 files as a table beside the files: their rows are its lines."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.arrow_arrays import large_type
from ray_h5.columns.derived_columns import MadeColumn, RowPart, dataset_of, is_drawn, renamed, with_paths
from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import (
    CodecUnavailableError,
    ExternalDataError,
    MissingSourceError,
    OptionError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.index.facts.file_facts import ColumnFacts, Question
from ray_h5.index.row_index import RowIndex, build_index
from ray_h5.index.scan_files import Lookup
from ray_h5.manifest.file_state import FileState
from ray_h5.manifest.file_table import digest_of
from ray_h5.messages import few, near_names
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.tables.keys import RowKeys
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_bytes import TableFiles
from ray_h5.tables.table_files import Table

_PLACES = ("row_id", "row", "path")
"""Keys of rows that need no column: the number in all files and in its file, and the file."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FilesBeside(Table):
    """HDF5 files as a table. Values stay in the files; what has one value a line is read whole if planning names it.

    Attributes
    ----------
    index : RowIndex
        The files, with the columns that are asked for.
    sidecar : Sidecar
        What the user says.
    specs : mapping of str to ColumnSpec
        All columns that the rows have, by their names in the files.
    made : mapping of str to MadeColumn
        Columns that are made of these, by the names that they get, and how they are made of the files.
    """

    index: RowIndex
    sidecar: Sidecar
    specs: Mapping[str, ColumnSpec] = field(default_factory=dict)
    made: Mapping[str, MadeColumn] = field(default_factory=dict)

    is_in_files = True

    @classmethod
    def open(
        cls, sidecar: Sidecar, found: TableFiles, of: Sequence[str], lookup: Lookup, wanted: Sequence[str] | None
    ) -> FilesBeside:
        """Return the table beside files; raise errors as `build_index` does, and an UnknownColumnError for no key."""
        files, part_of, scope, of_files = found.files, found.part_of, lookup.scope, lookup
        paths = [file.path for file in files]
        scope = Scope(
            allow_external=scope.allow_external,
            threads=scope.threads,
            storage=scope.storage,
            decode_cf=scope.decode_cf,
        )
        states = {file.path: file.state for file in files if isinstance(file.state, ObjectIdentity)}
        lookup = replace(lookup, scope=scope, states=states, leaves_out=False)
        sidecar.check_no_csv(f"HDF5, {paths[0]}")
        columns = _columns_of(paths[0], lookup)
        prefix, of_columns = sidecar.prefix, [dataset_of(column) for column in of_files.scope.columns]
        unlisted = {*of_columns, *(wanted or ())}.difference(prefix + name for name in columns)
        stored = sorted(name.removeprefix(prefix) for name in unlisted if name.startswith(prefix))
        besides = [name for name in _found(paths[0], lookup, stored) if not in_files(of, of_files, prefix + name)]
        made = _made_of({*columns, *besides}, prefix, of, of_files)
        lookup = replace(lookup, scope=replace(scope, columns=tuple(made.values())))
        keys = _keys_in(paths[0], columns, sidecar)
        places = [key for key in sidecar.keys if key not in keys]
        rows = columns[keys[0]].num_rows if keys else None
        alike = {name: column.spec for name, column in columns.items() if rows in (None, column.num_rows)}
        plain = {*(wanted or ())}.difference(made)
        plain |= {dataset_of(column) for column in of_files.scope.columns if _is_whole(column)}
        asked = [*alike] if wanted is None else [name for name in (*columns, *besides) if prefix + name in plain]
        named = [*dict.fromkeys([*keys, *asked, *made])] or [*alike][:1]
        try:
            index = build_index(paths, named or None, lookup)
        except SchemaMismatchError as exc:
            advice = "Name columns of one length with columns=[...]."
            if wanted is not None:
                advice = f"{few(named)} are asked of these files. prefix='of/' gives its columns names such as 'of/x'."
            raise SchemaMismatchError(f"sidecar: {exc}\n{advice}") from exc
        specs = {**index.columns, **{name: spec for name, spec in alike.items() if name not in index.columns}}
        kinds = {name: spec.kept_type for name, spec in specs.items() if spec.has_one_value}
        if len(places) > 1 or sidecar.keys != sidecar.row_keys:  # otherwise rows join in order
            kinds |= {place: pa.large_string() if place == "path" else pa.int64() for place in places}
        numbers = {path: number for number, path in enumerate(index.files.all_paths())}
        tables = None
        if part_of is not None:
            tables = {path: numbers[paths[part]] for path, part in part_of.items() if paths[part] in numbers}
        parts = tuple((file, None) for file in files if file.path in numbers)
        name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return cls(name, pa.schema(kinds), parts, 0, tables, index=index, sidecar=sidecar, specs=specs, made=made)

    @property
    def is_by_number(self) -> bool:
        """Whether the key of a line is its number, and nothing else."""
        keys = self.sidecar.keys
        alone = self.part_of is None and (keys == ("row_id",) or (keys == ("row",) and len(self.index.files) == 1))
        return alone and keys[0] in self.types and keys[0] not in self.specs

    def check_unchanged(self) -> None:
        self.index.check_unchanged()

    def find(self, name: str) -> tuple[str, ColumnSpec] | None:
        stored = name.removeprefix(self.sidecar.prefix)
        if not name.startswith(self.sidecar.prefix) or stored in self.sidecar.keys:
            return None
        try:
            return stored, replace(self.index.find([stored])[stored], name=name)
        except UnknownColumnError:
            return None

    def lengths(self) -> np.ndarray:
        return self.index.files.rows.lengths

    def column(self, name: str) -> pa.ChunkedArray:
        files = self.index.files
        if name not in _PLACES or name in self.specs:
            values = self.index.values([name], stored=True)[name]
            return values.cast(large_type(values.type))
        if name == "path":
            return pa.chunked_array([self._paths().take(pa.array(files.rows.spread(np.arange(len(files)))))])
        rows = self.index.every_row()
        return pa.chunked_array([pa.array(rows if name == "row_id" else files.rows.local(rows)[1])])

    def _paths(self) -> pa.Array:
        texts = [path.decode("utf-8", "backslashreplace") for path in self.index.files.paths.to_pylist()]
        return pa.array(texts, pa.large_string())

    def paths_as(self, part: RowKeys) -> pa.Array:
        """Return the key ``path`` of each line as rows have it: they may name files by the last parts of the path."""
        texts, paths = part.values.unique().drop_null().cast(pa.large_string()), self._paths()
        found = RowKeys("path", paths, "path", part.by_tail).found_in(paths, texts, self.name)
        named = pa.chunked_array([texts, paths]).combine_chunks()
        numbers = np.where(found >= 0, found, len(texts) + np.arange(len(paths)))
        files = self.index.files
        return named.take(pa.array(numbers)).take(pa.array(files.rows.spread(np.arange(len(files)))))

    def said(self, name: str) -> str:
        files, spec = self.index.files, self.index.cast(self.specs[name])
        said = self.made.get(name, repr(name))
        return f"{said} {spec} of {files.names_digest}, rows {digest_of(files.starts.tobytes())}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}}


def _keys_in(path: str, columns: Mapping[str, ColumnFacts], sidecar: Sidecar) -> list[str]:
    """Return the keys that are columns of a file; the others say where a line is. Raise for one that is neither."""
    keys = []
    for key, on in zip(sidecar.keys, sidecar.row_keys, strict=True):
        if key in columns:
            if not columns[key].spec.has_one_value:
                raise SchemaMismatchError(
                    f"{path}: key {key!r} is {columns[key].spec}; expected one value a row. Pass a column of such "
                    "values as key=."
                )
            keys.append(key)
        elif key not in _PLACES:
            raise UnknownColumnError(
                f"{path}: no column {key!r}.{near_names(key, columns)} If {on!r} has the numbers of the rows "
                "there, pass Sidecar(..., key='row_id'); if their column has another name, pass it as key=."
            )
    return keys


def _found(path: str, lookup: Lookup, names: Sequence[str]) -> list[str]:
    """Return those of some names that a file has besides what it lists.

    They are fields of compound values, and what is encoded in groups, such as sparse matrices and categories.
    """
    try:
        (facts,) = lookup.ask([path], Question(tuple(names)))
    except UnsupportedColumnError:  # of one of them
        return [name for name in names if in_files([path], lookup, name)]
    return [name for name in names if name in facts.columns]


def _made_of(columns: Collection[str], prefix: str, of: Sequence[str], lookup: Lookup) -> dict[str, MadeColumn]:
    """Return what is made of columns of a table, and not of the files that it is beside, by the names that it gets."""
    made = dict[str, MadeColumn]()
    for column in lookup.scope.columns:
        dataset = dataset_of(column)
        is_there = dataset.startswith(prefix) and dataset.removeprefix(prefix) in columns
        if is_there and not _is_whole(column) and not in_files(of, lookup, dataset):
            own: MadeColumn = with_paths(column, lambda path: path.removeprefix(prefix))
            made[column.name] = renamed(own, column.name)
    for column in made.values():
        if is_drawn(column):
            raise OptionError(
                f"columns: {column}: entries are drawn of columns of the files, and this is one of a table. Leave "
                "random= out, and draw in transform=."
            )
    return made


def _is_whole(column: MadeColumn) -> bool:
    return isinstance(column, RowPart) and column.is_whole


def in_files(paths: Sequence[str], lookup: Lookup, name: str) -> bool:
    """Return whether files have something of a name."""
    try:
        (facts,) = lookup.ask(paths[:1], Question((name,)))
    except UnsupportedColumnError:
        return True
    return name in facts.columns


def _columns_of(path: str, lookup: Lookup) -> dict[str, ColumnFacts]:
    """Return the columns of a file that can be read."""
    try:
        (facts,) = lookup.ask([path], Question(None))
        return {name: facts.columns[name] for name in facts.listing or facts.columns}
    except (MissingSourceError, ExternalDataError, CodecUnavailableError):
        columns = {}  # it concerns one column
        state = FileState(lookup.states[path]) if path in lookup.states else None
        with lookup.scope.open(path, state) as reader:
            for name, layout in reader.layout.columns.items():
                with contextlib.suppress(RayH5Error):
                    columns[name] = ColumnFacts.of(layout)
        return columns
