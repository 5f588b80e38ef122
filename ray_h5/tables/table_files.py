"""Tables in CSV and Parquet -> Arrow columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ray_h5.arrow_arrays import large_type
from ray_h5.columns.schema import ColumnSpec, is_text
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import TableError, UnknownColumnError
from ray_h5.messages import few, near_names
from ray_h5.tables.csv_files import read_csv, without_words
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_bytes import TableBudget, TableFile, TableFiles, check_names

_PARQUET = b"PAR1"
_BATCH_ROWS = 1 << 16
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}


@dataclass(frozen=True, eq=False, repr=False)
class Table(ComparedByContent):
    """A table whose columns are made when they are asked for.

    Attributes
    ----------
    name : str
        Its file, for messages.
    schema : pyarrow.Schema
        Its columns.
    parts : tuple of (TableFile, pyarrow.Table or None)
        Its files, one after the other. What CSV holds is in memory; of Parquet, columns are read.
    max_bytes : int
        The most bytes of columns that are read.
    part_of : mapping of str to int, optional
        Where files have a table each: the part of each file that has one.
    """

    name: str
    schema: pa.Schema
    parts: tuple[tuple[TableFile, pa.Table | None], ...] = field(repr=False)
    max_bytes: int = 0
    part_of: Mapping[str, int] | None = None
    _read: dict[str, pa.ChunkedArray] = field(default_factory=dict, compare=False, repr=False)

    is_in_files: ClassVar[bool] = False
    """Whether values stay in files when a plan is made."""

    @classmethod
    def of(cls, name: str, columns: Mapping[str, pa.ChunkedArray]) -> Table:
        """Return a table of some columns in memory."""
        table = pa.table(dict(columns))
        return cls(name, table.schema, ((TableFile(name, None), table),))

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of its columns."""
        return {field.name: field.type for field in self.schema}

    def said(self, name: str) -> str:  # noqa: ARG002  an overriding method needs it
        """Return what says which values a column has, beside the values in memory; an empty text if they do."""
        return ""

    def check_unchanged(self) -> None:
        """Raise if values that stay in files changed."""

    def find(self, name: str) -> tuple[str, ColumnSpec] | None:  # noqa: ARG002  an overriding method needs it
        """Return a column that rows get under a name, and is not among those that files list; None if there is none."""
        return None

    def lengths(self) -> np.ndarray:
        """Return the number of lines of each part: int64."""
        counts = [_parquet_rows(file) if table is None else table.num_rows for file, table in self.parts]
        return np.array(counts, np.int64)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column, in one chunk; strings have offsets of 64 bits."""
        if name not in self._read:
            budget = TableBudget(0, self.max_bytes, bytes=sum(table.nbytes for table in [*self._read.values()]))
            wanted = _decoded_type(self.schema.field(name).type)
            chunks: list[pa.Array] = []
            for file, table in self.parts:
                column = _read_parquet(file, name, budget) if table is None else table[name]
                try:
                    chunks += column.cast(wanted).chunks
                except pa.ArrowInvalid as exc:
                    raise TableError(
                        f"{file}: column {name!r} holds {column.type} here, and other tables make it {wanted}, which "
                        f"cannot hold its values: {exc}. Write it with one type in all tables."
                    ) from exc
            for file, table in self.parts:
                if table is None:
                    file.check_unchanged()
            self._read[name] = pa.chunked_array([pa.chunked_array(chunks, wanted).combine_chunks()], wanted)
        return self._read[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}}  # another process reads what it needs


def _decoded_type(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.large_string() if pa.types.is_null(kind) or pa.types.is_string_view(kind) else large_type(kind)


def open_table(sidecar: Sidecar, found: TableFiles | None) -> Table:
    """Return a table: of Parquet the schema, of CSV everything. Key columns of CSV are read as text.

    `found` are its files; None stands for a table in memory.

    Raises
    ------
    NotFoundError, NotReadableError
        If there is no such file.
    TableError
        If a file is no such table, or it is too large.
    UnknownColumnError
        If it lacks a key column.
    """
    if found is None:
        table = _in_memory(sidecar)
        _check_keys(table, sidecar)
        return table
    files = found.files
    name = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    assert isinstance(sidecar.max_bytes, int)
    budget = TableBudget(sidecar.max_rows, sidecar.max_bytes)
    parts, schemas = [], []
    for file in files:
        is_parquet = file.opened().read(len(_PARQUET)) == _PARQUET
        if is_parquet and sidecar.names is not None:
            raise TableError(f"{file}: names= is for CSV without a header, and this is Parquet; leave names= out")
        part = None if is_parquet else read_csv(file, sidecar, budget)
        parts.append((file, part))
        schemas.append(_parquet_schema(file, budget) if part is None else part.schema)
    for column in schemas[0].names if len(files) > 1 else ():
        kinds = [is_text(schema.field(column).type) if column in schema.names else None for schema in schemas]
        for number, (file, part) in enumerate(parts):
            if part is not None and kinds[number] and False in kinds:
                parts[number] = file, (part := without_words(part, column))
                schemas[number] = part.schema
    for file, schema in zip(files, schemas, strict=True):
        if set(schema.names) != set(schemas[0].names):
            differ = sorted(set(schema.names) ^ set(schemas[0].names))
            raise TableError(f"{file}: expected the columns of {files[0]}; only one of them has {few(differ)}")
    try:
        common = pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")
    except pa.ArrowException as exc:
        raise TableError(f"{name}: the types of a column differ from table to table: {exc}") from exc
    table = Table(name, common, tuple(parts), budget.max_bytes, found.part_of)
    _check_keys(table, sidecar)
    return table


def _in_memory(sidecar: Sidecar) -> Table:
    assert isinstance(sidecar.path, pa.Table)
    assert isinstance(sidecar.max_bytes, int)
    file, table = TableFile("the table in memory", None), sidecar.path
    TableBudget(sidecar.max_rows, sidecar.max_bytes).add(file, table.num_rows, table.nbytes)
    check_names(file, table.column_names)
    return Table(file.path, table.schema, ((file, table),), sidecar.max_bytes)


def _check_keys(table: Table, sidecar: Sidecar) -> None:
    for name in sidecar.types or ():
        if name not in table.types:
            raise UnknownColumnError(f"{table.name}: types: no column {name!r}.{near_names(name, table.types)}")
    for wanted, on in zip(sidecar.keys, sidecar.row_keys, strict=True):
        if wanted not in table.types and not (on in {"row", "row_id", "step"} and len(sidecar.keys) == 1):
            one = next(iter(table.types), "")
            other = next((delimiter for delimiter in ";\t|" if len(table.types) == 1 and delimiter in one), None)
            hint = f" Its only column is {one!r}: pass delimiter={other!r}."
            if other is None:
                near = near_names(wanted, table.types)
                hint = f"{near} Pass key=... if the column that on={on!r} joins has another name."
            raise UnknownColumnError(f"{table.name}: no column {wanted!r}.{hint}")


def _parquet_schema(file: TableFile, budget: TableBudget) -> pa.Schema:
    try:
        metadata = pq.read_metadata(file.opened())
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as exc:
        raise TableError(f"{file}: cannot be read as Parquet: {exc}") from exc
    budget.add(file, metadata.num_rows, 0)
    check_names(file, schema.names)
    return schema


def _parquet_rows(file: TableFile) -> int:
    return int(pq.read_metadata(file.opened()).num_rows)


def _read_parquet(file: TableFile, name: str, budget: TableBudget) -> pa.ChunkedArray:
    """Return a column, which is counted before it is taken. Parquet stores equal values once."""
    try:
        opened = pq.ParquetFile(file.opened())
        kind = opened.schema_arrow.field(name).type
        if _has_lengths(kind):  # it stays numbers of a dictionary until it is counted
            opened = pq.ParquetFile(file.opened(), metadata=opened.metadata, read_dictionary=[name])
        stored = 0  # the bytes that the values take at least, by what the file says of them
        for group in map(opened.metadata.row_group, range(opened.metadata.num_row_groups)):
            for column in map(group.column, range(opened.metadata.num_columns)):
                if column.path_in_schema == name or column.path_in_schema.startswith(f"{name}."):
                    width = _WIDTHS.get(column.physical_type, 0)
                    stored += max(column.num_values * width, column.total_uncompressed_size)
        TableBudget(budget.max_rows, budget.max_bytes, bytes=budget.bytes).add(file, 0, stored)
        parts = []
        for batch in opened.iter_batches(_BATCH_ROWS, columns=[name]):
            budget.add(file, 0, _decoded_bytes(batch.column(name)))
            parts.append(batch.column(name).cast(_decoded_type(kind)))
        return pa.chunked_array(parts, _decoded_type(kind))
    except (pa.ArrowException, OSError, KeyError) as exc:
        raise TableError(f"{file}: column {name!r} cannot be read: {exc}") from exc


def _decoded_bytes(column: pa.Array) -> int:
    """Return the bytes of a column whose values stand for themselves."""
    if not pa.types.is_dictionary(column.type):
        return column.nbytes
    lengths = pc.binary_length(column.dictionary) if _has_lengths(column.dictionary.type) else None
    of_values = 0 if lengths is None else pc.sum(lengths.cast(pa.int64()).take(column.indices)).as_py() or 0
    return of_values + 8 * len(column)


def _has_lengths(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
