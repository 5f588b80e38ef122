"""Tables in CSV."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from ray_h5.errors import OptionError, TableError
from ray_h5.hdf5.metadata.dtypes import as_dtype
from ray_h5.planning.tables.csv_integers import with_exact_integers
from ray_h5.planning.tables.sidecar import Sidecar
from ray_h5.planning.tables.table_bytes import TableFile, check_names

_WRONG_TYPE = re.compile(r"In CSV column #(\d+): .*conversion error", re.DOTALL)
_BLOCK_BYTES = 16 << 20
_SHOWN_CHARACTERS = 80


def read_csv(file: TableFile, sidecar: Sidecar) -> pa.Table:
    """Return a table of CSV. Its key columns are text.

    Raises
    ------
    TableError, OptionError
        If it is no such table, or has other types than the user says.
    """
    types = {name: _arrow_type(name, given) for name, given in (sidecar.types or {}).items()}
    types.update(dict.fromkeys(sidecar.keys, pa.large_string()))
    delimiter = sidecar.delimiter or ("\t" if ".tsv" in os.path.basename(file.path).lower() else ",")
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
            return with_exact_integers(table, list(types), partial(_texts, file, delimiter), file.path)
        types.update(dict.fromkeys(times, pa.large_string()))


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


def _texts(file: TableFile, delimiter: str, names: list[str]) -> pa.Table:
    """Return columns of a table as they are written."""
    return _parsed(file, delimiter, dict.fromkeys(names, pa.large_string()), [], columns=names)


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
        shown = row.text[:_SHOWN_CHARACTERS] + ("..." if len(row.text) > _SHOWN_CHARACTERS else "")
        return TableError(
            f"{file}, line {row.number}: expected {row.expected_columns} fields, as the header has, found "
            f"{row.actual_columns}: {shown!r}. Write a field that contains {delimiter!r} in double quotes."
        )
    if "UTF8" in text:
        return _not_utf8(file, column)
    if "Empty CSV" in text:
        return TableError(f"{file}: is empty; expected a header and a line for each key")
    if column in types:
        return OptionError(f"{file}: column {column!r}: {text.partition('error ')[2] or text}; see types=")
    return TableError(f"{file}: cannot be read as CSV: {text}")


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
