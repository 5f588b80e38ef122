"""Tables in CSV and Parquet -> Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ray_h5.errors import TableError, UnknownColumnError
from ray_h5.messages import few, near_names
from ray_h5.planning.arrow import large_type
from ray_h5.planning.tables.csv_files import read_csv
from ray_h5.planning.tables.sidecar import Sidecar
from ray_h5.planning.tables.table_bytes import TableFile, check_names, find_tables
from ray_h5.storage.storages import Storage

_PARQUET = b"PAR1"


class Table(Protocol):
    """A table whose columns are read when they are asked for."""

    @property
    def name(self) -> str:
        """Its file, for messages."""

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of its columns."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column, in one chunk; strings have offsets of 64 bits."""


@dataclass(frozen=True, eq=False)
class MemoryTable:
    """A table in memory."""

    name: str
    table: pa.Table

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self.table.schema}

    def column(self, name: str) -> pa.ChunkedArray:
        return one_chunk(self.table[name])


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A table in Parquet files, of which no column is read before it is asked for."""

    name: str
    files: tuple[TableFile, ...]
    schema: pa.Schema
    _read: dict[str, pa.ChunkedArray] = field(default_factory=dict, repr=False)

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self.schema}

    def column(self, name: str) -> pa.ChunkedArray:
        if name not in self._read:
            wanted = self.schema.field(name).type
            parts = [_as_type(_read_parquet(file, name), name, wanted, file) for file in self.files]
            for file in self.files:
                file.check_unchanged()
            self._read[name] = one_chunk(pa.chunked_array([chunk for part in parts for chunk in part.chunks], wanted))
        return self._read[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}}  # another process reads what it needs


@dataclass(frozen=True, eq=False)
class WithColumn:
    """A table with one more column."""

    table: Table
    added: str
    values: pa.ChunkedArray

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {**self.table.types, self.added: self.values.type}

    def column(self, name: str) -> pa.ChunkedArray:
        return self.values if name == self.added else self.table.column(name)


def one_chunk(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in one chunk, decoded; strings get offsets of 64 bits."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    kind = pa.large_string() if pa.types.is_null(kind) else large_type(kind)
    column = column if column.type == kind else column.cast(kind)
    return pa.chunked_array([column.combine_chunks()], kind) if column.num_chunks != 1 else column


def open_table(sidecar: Sidecar, storage: Storage) -> Table:
    """Return a table: of Parquet the schema, of CSV everything. Key columns of CSV are read as text.

    `storage` is that of tables with a URL.

    Raises
    ------
    NotFoundError, NotReadableError
        If there is no such file.
    TableError
        If a file is no such table.
    UnknownColumnError
        If it lacks a key column.
    """
    files = find_tables(sidecar.path, storage)
    name = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    are_parquet = [file.beginning(len(_PARQUET)) == _PARQUET for file in files]
    if all(are_parquet):
        table: Table = _open_parquet(name, files)
    else:
        parts = [
            _whole_parquet(file) if is_one else read_csv(file, sidecar)
            for file, is_one in zip(files, are_parquet, strict=True)
        ]
        table = MemoryTable(name, _joined(name, files, parts))
    _check_keys(table, sidecar)
    return table


def _check_keys(table: Table, sidecar: Sidecar) -> None:
    for name in sidecar.types or ():
        if name not in table.types:
            raise UnknownColumnError(f"{table.name}: types: no column {name!r}.{near_names(name, table.types)}")
    for wanted, on in zip(sidecar.keys, sidecar.row_keys, strict=True):
        if wanted not in table.types and not (on in {"row", "row_id"} and len(sidecar.keys) == 1):
            one = next(iter(table.types), "")
            other = next((each for each in ";\t|" if len(table.types) == 1 and each in one), None)
            hint = (
                f" Its only column is {one!r}: pass delimiter={other!r}."
                if other
                else near_names(wanted, table.types)
                + f" Pass key=... if the column that on={on!r} joins has another name."
            )
            raise UnknownColumnError(f"{table.name}: no column {wanted!r}.{hint}")


def _open_parquet(name: str, files: Sequence[TableFile]) -> ParquetTable:
    schemas = [_parquet_schema(file) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        check_names(file, schema.names)
    return ParquetTable(name, tuple(files), _common_schema(name, files, schemas))


def _parquet_schema(file: TableFile) -> pa.Schema:
    try:
        return pq.read_schema(file.for_parquet())
    except (pa.ArrowException, OSError) as exc:
        raise TableError(f"{file}: cannot be read as Parquet: {exc}") from exc


def _read_parquet(file: TableFile, name: str) -> pa.ChunkedArray:
    try:
        # By its place: a dot in a name would be taken for a nested field.
        return pq.ParquetFile(file.for_parquet()).read(columns=[name]).column(name)
    except (pa.ArrowException, OSError, KeyError) as exc:
        raise TableError(f"{file}: column {name!r} cannot be read: {exc}") from exc


def _whole_parquet(file: TableFile) -> pa.Table:
    try:
        return pq.read_table(file.for_parquet())
    except (pa.ArrowException, OSError) as exc:
        raise TableError(f"{file}: cannot be read as Parquet: {exc}") from exc


def _common_schema(name: str, files: Sequence[TableFile], schemas: Sequence[pa.Schema]) -> pa.Schema:
    for file, schema in zip(files, schemas, strict=True):
        if set(schema.names) != set(schemas[0].names):
            differ = sorted(set(schema.names) ^ set(schemas[0].names))
            raise TableError(f"{file}: expected the columns of {files[0]}; only one of them has {few(differ)}")
    try:
        return pa.unify_schemas([each.remove_metadata() for each in schemas], promote_options="permissive")
    except pa.ArrowException as exc:
        raise TableError(f"{name}: the types of a column differ from table to table: {exc}") from exc


def _joined(name: str, files: Sequence[TableFile], parts: Sequence[pa.Table]) -> pa.Table:
    if len(parts) == 1:
        return parts[0]
    schema = _common_schema(name, files, [each.schema for each in parts])
    for place, each in enumerate(schema):
        kinds = {part.schema.field(each.name).type for part in parts}
        # Only integers that int64 lacks are uint64 in CSV.
        if pa.uint64() in kinds and pa.types.is_integer(each.type):
            schema = schema.set(place, each.with_type(pa.uint64()))
    columns = {
        each.name: pa.chunked_array(
            [
                chunk
                for file, part in zip(files, parts, strict=True)
                for chunk in _as_type(part[each.name], each.name, each.type, file).chunks
            ],
            each.type,
        )
        for each in schema
    }
    return pa.table(columns)


def _as_type(column: pa.ChunkedArray, name: str, kind: pa.DataType, file: TableFile) -> pa.ChunkedArray:
    """Return a column in the type that it has in all tables."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as exc:
        raise TableError(
            f"{file}: column {name!r} holds {column.type} here, and other tables make it {kind}, which cannot hold its "
            f"values: {exc}. Write it with one type in all tables."
        ) from exc
