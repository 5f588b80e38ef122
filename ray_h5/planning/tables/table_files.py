"""Tables in CSV and Parquet -> Arrow columns."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ray_h5.errors import OptionError, StaleIndexError, TableError, UnknownColumnError
from ray_h5.hdf5.metadata.dtypes import as_dtype
from ray_h5.messages import few, near_names
from ray_h5.planning.arrow import large_type
from ray_h5.planning.paths import expand_paths, list_paths
from ray_h5.planning.tables.csv_integers import with_exact_integers
from ray_h5.planning.tables.sidecar import Sidecar
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import identity_now

_EXTENSIONS = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "pq")
_WRONG_TYPE = re.compile(r"In CSV column #(\d+): .*conversion error", re.DOTALL)
_BLOCK_BYTES = 16 << 20
_SHOWN_CHARACTERS = 80


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
    paths: tuple[str, ...]
    identities: tuple[FileIdentity | None, ...]
    schema: pa.Schema
    _read: dict[str, pa.ChunkedArray] = field(default_factory=dict, repr=False)

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self.schema}

    def column(self, name: str) -> pa.ChunkedArray:
        if name not in self._read:
            wanted = self.schema.field(name).type
            parts = [_as_type(_read_parquet(path, name), name, wanted, path) for path in self.paths]
            for path, identity in zip(self.paths, self.identities, strict=True):
                if identity_now(path) != identity:
                    raise StaleIndexError(f"{path}: the table changed since its keys were read; make the dataset again")
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


def open_table(sidecar: Sidecar) -> Table:
    """Return a table: of Parquet the schema, of CSV everything. Key columns of CSV are read as text.

    Raises
    ------
    NotFoundError, NotReadableError
        If there is no such file.
    TableError
        If a file is no such table.
    UnknownColumnError
        If it lacks a key column.
    """
    paths = expand_paths(list_paths(sidecar.path), _EXTENSIONS, ignore_missing_paths=False)
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    are_parquet = [_is_parquet(path) for path in paths]
    if all(are_parquet):
        table: Table = _open_parquet(name, paths)
    else:
        parts = [
            _whole_parquet(p) if is_one else _read_csv(p, sidecar) for p, is_one in zip(paths, are_parquet, strict=True)
        ]
        table = MemoryTable(name, _joined(name, paths, parts))
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


def _is_parquet(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _open_parquet(name: str, paths: Sequence[str]) -> ParquetTable:
    identities = tuple(map(identity_now, paths))
    schemas = [_parquet_schema(path) for path in paths]
    for path, schema in zip(paths, schemas, strict=True):
        _check_names(path, schema.names)
    return ParquetTable(name, tuple(paths), identities, _common_schema(name, paths, schemas))


def _parquet_schema(path: str) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as exc:
        raise TableError(f"{path}: cannot be read as Parquet: {exc}") from exc


def _read_parquet(path: str, name: str) -> pa.ChunkedArray:
    try:
        # By its place: a dot in a name would be taken for a nested field.
        return pq.ParquetFile(path).read(columns=[name]).column(name)
    except (pa.ArrowException, OSError, KeyError) as exc:
        raise TableError(f"{path}: column {name!r} cannot be read: {exc}") from exc


def _whole_parquet(path: str) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as exc:
        raise TableError(f"{path}: cannot be read as Parquet: {exc}") from exc


def _common_schema(name: str, paths: Sequence[str], schemas: Sequence[pa.Schema]) -> pa.Schema:
    for path, schema in zip(paths, schemas, strict=True):
        if set(schema.names) != set(schemas[0].names):
            differ = sorted(set(schema.names) ^ set(schemas[0].names))
            raise TableError(f"{path}: expected the columns of {paths[0]}; only one of them has {few(differ)}")
    try:
        return pa.unify_schemas([each.remove_metadata() for each in schemas], promote_options="permissive")
    except pa.ArrowException as exc:
        raise TableError(f"{name}: the types of a column differ from table to table: {exc}") from exc


def _joined(name: str, paths: Sequence[str], parts: Sequence[pa.Table]) -> pa.Table:
    if len(parts) == 1:
        return parts[0]
    schema = _common_schema(name, paths, [each.schema for each in parts])
    for place, each in enumerate(schema):
        kinds = {part.schema.field(each.name).type for part in parts}
        # Only integers that int64 lacks are uint64 in CSV.
        if pa.uint64() in kinds and pa.types.is_integer(each.type):
            schema = schema.set(place, each.with_type(pa.uint64()))
    columns = {
        each.name: pa.chunked_array(
            [
                chunk
                for path, part in zip(paths, parts, strict=True)
                for chunk in _as_type(part[each.name], each.name, each.type, path).chunks
            ],
            each.type,
        )
        for each in schema
    }
    return pa.table(columns)


def _as_type(column: pa.ChunkedArray, name: str, kind: pa.DataType, path: str) -> pa.ChunkedArray:
    """Return a column in the type that it has in all tables."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as exc:
        raise TableError(
            f"{path}: column {name!r} holds {column.type} here, and other tables make it {kind}, which cannot hold its "
            f"values: {exc}. Write it with one type in all tables."
        ) from exc


def _read_csv(path: str, sidecar: Sidecar) -> pa.Table:
    types = {name: _arrow_type(name, given) for name, given in (sidecar.types or {}).items()}
    types.update(dict.fromkeys(sidecar.keys, pa.large_string()))
    delimiter = sidecar.delimiter or ("\t" if ".tsv" in os.path.basename(path).lower() else ",")
    names: list[str] | None = None
    while True:
        wrong: list[Any] = []
        try:
            table = _parsed(path, delimiter, types, wrong)
        except UnicodeDecodeError as exc:
            raise _not_utf8(path, None) from exc
        except (pa.ArrowException, OSError) as exc:
            names = names or _header(path, delimiter)
            match = _WRONG_TYPE.match(str(exc))
            column = names[int(match[1])] if match and int(match[1]) < len(names) else None
            if wrong or column is None or column in types or "UTF8" in str(exc):
                raise _csv_error(path, delimiter, exc, wrong=bool(wrong), column=column, types=types) from exc
            types[column] = pa.large_string()  # a later value is no number: all of them are text
            continue
        _check_names(path, table.column_names)
        for each in table.schema:
            if pa.types.is_binary(each.type):  # what Arrow makes of text in another encoding
                raise _not_utf8(path, each.name)
        # Arrow takes "12:30" for a time of day, which numpy and torch lack.
        times = [each.name for each in table.schema if pa.types.is_time(each.type)]
        if not times:
            return with_exact_integers(table, list(types), partial(_texts, path, delimiter), path)
        types.update(dict.fromkeys(times, pa.large_string()))


def _parsed(
    path: str,
    delimiter: str,
    types: dict[str, Any],
    wrong: list[Any],
    *,
    threads: bool = True,
    columns: Sequence[str] = (),
) -> pa.Table:
    def refuse(row: Any) -> str:
        wrong.append(row)
        return "error"

    found = pacsv.read_csv(
        path,
        pacsv.ReadOptions(use_threads=threads, block_size=_BLOCK_BYTES),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        pacsv.ConvertOptions(column_types=types, include_columns=list(columns)),
    )
    assert found.schema.names is not None  # a header in another encoding raises UnicodeDecodeError
    return found


def _texts(path: str, delimiter: str, names: list[str]) -> pa.Table:
    """Return columns of a table as they are written."""
    return _parsed(path, delimiter, dict.fromkeys(names, pa.large_string()), [], columns=names)


def _header(path: str, delimiter: str) -> list[str]:
    """Return the names of the columns; nothing if there are none."""
    try:
        options = pacsv.ParseOptions(delimiter=delimiter, invalid_row_handler=lambda _: "skip")
        convert = pacsv.ConvertOptions(check_utf8=False)
        with pacsv.open_csv(path, parse_options=options, convert_options=convert) as reader:
            return list(reader.schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return []


def _csv_error(
    path: str, delimiter: str, exc: Exception, *, wrong: bool, column: str | None, types: dict[str, Any]
) -> TableError | OptionError:
    text = str(exc)
    if wrong:
        rows: list[Any] = []
        with contextlib.suppress(pa.ArrowException, OSError):
            _parsed(path, delimiter, types, rows, threads=False)  # only one thread counts lines
        row = rows[0]
        shown = row.text[:_SHOWN_CHARACTERS] + ("..." if len(row.text) > _SHOWN_CHARACTERS else "")
        return TableError(
            f"{path}, line {row.number}: expected {row.expected_columns} fields, as the header has, found "
            f"{row.actual_columns}: {shown!r}. Write a field that contains {delimiter!r} in double quotes."
        )
    if "UTF8" in text:
        return _not_utf8(path, column)
    if "Empty CSV" in text:
        return TableError(f"{path}: is empty; expected a header and a line for each key")
    if column in types:
        return OptionError(f"{path}: column {column!r}: {text.partition('error ')[2] or text}; see types=")
    return TableError(f"{path}: cannot be read as CSV: {text}")


def _not_utf8(path: str, column: str | None) -> TableError:
    what = "the header" if column is None else f"column {column!r}"
    return TableError(f"{path}: {what} is not UTF-8. Write the table again as UTF-8.")


def _check_names(path: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise TableError(f"{path}: the columns {few([repr(name) for name in twice])} are there more than once")


def _arrow_type(name: str, wanted: Any) -> pa.DataType:
    if isinstance(wanted, pa.DataType):
        return wanted
    if wanted is str or wanted in ("str", "string"):
        return pa.large_string()
    dtype = as_dtype(wanted, f"column {name!r} in types")
    if dtype.kind in "US":
        return pa.large_string()
    try:
        return pa.from_numpy_dtype(np.dtype(dtype))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as exc:
        raise OptionError(f"Sidecar: types={{{name!r}: {wanted!r}}}: {exc}") from exc
