"""Tables in CSV."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ray_h5.errors import OptionError, TableError
from ray_h5.hdf5.columns.dtypes import as_dtype
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_bytes import TableFile, Taken, check_names

_WRONG_TYPE = re.compile(r"In CSV column #(\d+): .*conversion error", re.DOTALL)
_BLOCK_BYTES = 16 << 20
_SHOWN_CHARACTERS = 80
_CELL_BYTES = 8
"""A number, or where a text begins."""

_EXACT = 2.0**53
"""Up to here, a float64 holds each integer."""

_BEYOND_INT64 = 2.0**63
_INTEGER = re.compile(r"\s*\+?(-?)0*([0-9]+)\s*")


def read_csv(file: TableFile, sidecar: Sidecar, taken: Taken) -> pa.Table:
    """Return a table of CSV. Its key columns are text; in other columns of text, an empty entry is null.

    Raises
    ------
    TableError, OptionError
        If it is no such table, is too large, or has other types than the user says.
    """
    types = {name: _arrow_type(name, given) for name, given in (sidecar.types or {}).items()}
    types.update(dict.fromkeys(sidecar.keys, pa.large_string()))
    delimiter = sidecar.delimiter or ("\t" if ".tsv" in os.path.basename(file.path).lower() else ",")
    try:
        _count(file, delimiter, taken)
    except (pa.ArrowException, OSError) as exc:
        raise _csv_error(file, delimiter, exc, wrong=False, column=None, types=types) from exc
    names: list[str] | None = None
    while True:
        wrong: list[Any] = []
        try:
            table = _parsed(file, delimiter, types, wrong)
        except UnicodeDecodeError as exc:
            raise _not_utf8(file, None) from exc
        except (pa.ArrowException, OSError) as exc:
            names = names or _header(file, delimiter)
            match = _WRONG_TYPE.match(str(exc))
            column = names[int(match[1])] if match and int(match[1]) < len(names) else None
            if wrong or column is None or column in types or "UTF8" in str(exc):
                raise _csv_error(file, delimiter, exc, wrong=bool(wrong), column=column, types=types) from exc
            types[column] = pa.large_string()  # a later value is no number: all of them are text
            continue
        check_names(file, table.column_names)
        for each in table.schema:
            if pa.types.is_binary(each.type):  # what Arrow makes of text in another encoding
                raise _not_utf8(file, each.name)
        # Arrow takes "12:30" for a time of day, which numpy and torch lack.
        times = [each.name for each in table.schema if pa.types.is_time(each.type)]
        if not times:
            _check_integers(file, delimiter, table, types)
            return _with_nulls(table, sidecar.keys)
        types.update(dict.fromkeys(times, pa.large_string()))


def _count(file: TableFile, delimiter: str, taken: Taken) -> None:
    """Raise if a table is too large, before more of it is in memory than a block, and for a store its stored bytes."""
    if file.state is not None and file.state.size > taken.max_bytes:
        taken.add(file, 0, file.state.size)
    mark, header = delimiter.encode(), 1
    with file.decoded() as stream:
        while block := stream.read(_BLOCK_BYTES):
            lines = block.count(b"\n")
            taken.add(file, lines - header, len(block) + _CELL_BYTES * (lines + block.count(mark)))
            header = 0


def _check_integers(file: TableFile, delimiter: str, table: pa.Table, types: dict[str, Any]) -> None:
    """Raise for integers that Arrow rounds: it makes floats of those that int64 does not hold, or beside floats."""
    floats = [each.name for each in table.schema if pa.types.is_float64(each.type) and each.name not in types]
    rounded = [name for name in floats if (pc.max(pc.abs(table[name])).as_py() or 0) >= _EXACT]
    texts = _parsed(file, delimiter, dict.fromkeys(rounded, pa.large_string()), [], columns=rounded) if rounded else {}
    for name in rounded:
        values = table[name].to_numpy()
        for at in np.flatnonzero(np.abs(values) >= _EXACT).tolist():
            found = _INTEGER.fullmatch(text := texts[name][at].as_py())
            if found and (abs(values[at]) >= _BEYOND_INT64 or found[1] + found[2] != f"{values[at]:.0f}"):
                raise TableError(
                    f"{file}, line {at + 2}: column {name!r} holds the integer {_shown(text.strip())}, beyond int64 or "
                    f"beside floats, which a float may round. Pass Sidecar(..., types={{{name!r}: str}}) to keep its "
                    "text, 'uint64' for integers from 0 to 2**64 - 1, or 'float64' to round."
                )


def _with_nulls(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return a table in which an empty entry has no value, also in columns of text; a key may be an empty text."""
    for place, each in enumerate(table.schema):
        if each.name not in keys and (pa.types.is_string(each.type) or pa.types.is_large_string(each.type)):
            is_empty = pc.equal(table[place], pa.scalar("", each.type))
            if pc.any(is_empty).as_py():
                table = table.set_column(place, each, pc.if_else(is_empty, pa.scalar(None, each.type), table[place]))
    return table


def _parsed(
    file: TableFile,
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
        file.for_csv(),
        pacsv.ReadOptions(use_threads=threads, block_size=_BLOCK_BYTES),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        pacsv.ConvertOptions(column_types=types, include_columns=list(columns)),
    )
    assert found.schema.names is not None  # a header in another encoding raises UnicodeDecodeError
    return found


def _header(file: TableFile, delimiter: str) -> list[str]:
    """Return the names of the columns; nothing if there are none."""
    try:
        options = pacsv.ParseOptions(delimiter=delimiter, invalid_row_handler=lambda _: "skip")
        convert = pacsv.ConvertOptions(check_utf8=False)
        with pacsv.open_csv(file.for_csv(), parse_options=options, convert_options=convert) as reader:
            return list(reader.schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return []


def _csv_error(
    file: TableFile, delimiter: str, exc: Exception, *, wrong: bool, column: str | None, types: dict[str, Any]
) -> TableError | OptionError:
    text = str(exc)
    if wrong:
        rows: list[Any] = []
        with contextlib.suppress(pa.ArrowException, OSError):
            _parsed(file, delimiter, types, rows, threads=False)  # only one thread counts lines
        row = rows[0]
        return TableError(
            f"{file}, line {row.number}: expected {row.expected_columns} fields, as the header has, found "
            f"{row.actual_columns}: {_shown(row.text)!r}. Write a field that contains {delimiter!r} in double quotes."
        )
    if "UTF8" in text:
        return _not_utf8(file, column)
    if "Empty CSV" in text:
        return TableError(f"{file}: is empty; expected a header and a line for each key")
    if column in types:
        return OptionError(f"{file}: column {column!r}: {text.partition('error ')[2] or text}; see types=")
    return TableError(f"{file}: cannot be read as CSV: {text}")


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARACTERS] + ("..." if len(text) > _SHOWN_CHARACTERS else "")


def _not_utf8(file: TableFile, column: str | None) -> TableError:
    what = "the header" if column is None else f"column {column!r}"
    return TableError(f"{file}: {what} is not UTF-8. Write the table again as UTF-8.")


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
