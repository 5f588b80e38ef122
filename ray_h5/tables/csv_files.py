"""Tables in CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ray_h5.columns.schema import is_text
from ray_h5.errors import OptionError, TableError
from ray_h5.hdf5.format.value_types import as_dtype
from ray_h5.storage.local import LOCAL
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_bytes import TableBudget, TableFile, check_names

_BLOCK_BYTES, _PART_BYTES = 256 << 20, 16 << 20
_SHOWN_CHARACTERS = 80
_CELL_BYTES = 8
"""A number, or where a text begins."""

_EXACT = 2.0**53
"""Up to here, a float64 holds each integer."""

_NO_NUMBERS = pa.array(["", "NaN", "nan", "-NaN", "-nan"], pa.large_string())
"""A column of these alone has no values: they are no text of a person."""

_MISFIT = re.compile(r"column #(\d+): Row #(\d+): CSV conversion error to (.*?): invalid value '(.*)'", re.DOTALL)
"""What Arrow says of an entry that its column cannot hold."""

_INTEGER = re.compile(r"\s*[+-]?\d+\s*")


def read_csv(file: TableFile, sidecar: Sidecar, budget: TableBudget) -> pa.Table:
    """Return a table of CSV. Its key columns are text; in other columns of text, an empty entry is null.

    Raises
    ------
    TableError, OptionError
        If it is no such table, is too large, or has other types than the user says.
    """
    types = {name: _arrow_type(name, kind) for name, kind in (sidecar.types or {}).items()}
    types.update(dict.fromkeys(sidecar.keys, pa.large_string()))
    parsed = partial(_parsed, file, sidecar, refused := list[Any]())
    if file.state is not None and file.state.size > budget.max_bytes:
        budget.add(file, 0, file.state.size)
    try:
        table = parsed(types, budget)
        check_names(file, table.column_names)
        # Arrow takes "12:30" for a time of day, which numpy and torch lack; and makes floats of integers beyond int64,
        # and of those beside floats. It keeps no text of such columns: it is read again, of these alone.
        times = [field.name for field in table.schema if pa.types.is_time(field.type)]
        floats = [field.name for field in table.schema if pa.types.is_float64(field.type) and field.name not in types]
        rounded = [name for name in floats if (pc.max(pc.abs(table[name])).as_py() or 0) >= _EXACT]
        # To Arrow, NA is missing if no line says another text, and text if one does.
        absent = [field.name for field in table.schema if pa.types.is_null(field.type) and field.name not in types]
        again = dict.fromkeys([*times, *rounded, *absent], pa.large_string())
        texts = parsed(again, TableBudget(1 << 62, 1 << 62), [*again]) if again else table
        if again and file.storage is LOCAL:  # of those in a store, both passes have the same bytes
            file.check_unchanged()
    except UnicodeDecodeError as exc:
        raise _not_utf8(file, "the header") from exc
    except (pa.ArrowException, OSError) as exc:
        raise _csv_error(file, exc, refused, sidecar) from exc
    for field in table.schema:
        if pa.types.is_binary(field.type):  # what Arrow makes of text in another encoding
            raise _not_utf8(file, f"column {field.name!r}")
    for name in rounded:
        _check_integers(file, name, texts[name], table[name], 2 if sidecar.names is None else 1)
    columns = dict(zip(table.column_names, table.columns, strict=True)) | {name: texts[name] for name in times}
    said = [name for name in absent if not pc.all(pc.is_in(texts[name], _NO_NUMBERS), min_count=0).as_py()]
    columns |= {name: texts[name] for name in said}
    for name in {name for name, column in columns.items() if is_text(column.type)}.difference(sidecar.keys):
        columns[name] = pc.if_else(pc.equal(columns[name], ""), None, columns[name])
    return pa.table(columns)


class _Counted(io.RawIOBase):
    """The bytes of a table, which are counted before they are parsed."""

    def __init__(self, file: TableFile, delimiter: str, budget: TableBudget, *, has_header: bool) -> None:
        self._file, self._budget, self._mark, self._header = file, budget, delimiter.encode(), int(has_header)
        self._stream = file.decoded()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = []
        while size and (part := self._stream.read(_PART_BYTES if size < 0 else min(size, _PART_BYTES))):
            lines = part.count(b"\n")
            cells = lines + part.count(self._mark)
            self._budget.add(self._file, lines - self._header, len(part) + _CELL_BYTES * cells)
            parts.append(part)
            size, self._header = size - len(part), 0
        return b"".join(parts)


def _parsed(
    file: TableFile,
    sidecar: Sidecar,
    refused: list[Any],
    types: Mapping[str, pa.DataType],
    budget: TableBudget,
    columns: Sequence[str] = (),
) -> pa.Table:
    """Return the table, or some of its columns. A line with another number of fields is put into `refused`."""

    def refuse(row: Any) -> str:
        refused.append(row)
        return "error"

    delimiter, names = _delimiter(file, sidecar), sidecar.names
    table = pacsv.read_csv(
        _Counted(file, delimiter, budget, has_header=names is None),
        # Types follow from the first block: all of the table, if it is not very large. Only one thread counts lines.
        pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        pacsv.ConvertOptions(column_types=types, include_columns=list(columns)),
    )
    assert table.schema.names is not None  # a header in another encoding raises UnicodeDecodeError
    return table


def _delimiter(file: TableFile, sidecar: Sidecar) -> str:
    return sidecar.delimiter or ("\t" if ".tsv" in os.path.basename(file.path).lower() else ",")


def _csv_error(file: TableFile, exc: Exception, refused: Sequence[Any], sidecar: Sidecar) -> TableError:
    delimiter = _delimiter(file, sidecar)
    if refused:
        row, said = refused[0], "the header" if sidecar.names is None else "names="
        fields = f"expected {row.expected_columns} fields, as {said} has, found {row.actual_columns}"
        quoted = f"Write a field that contains {delimiter!r} in double quotes."
        return TableError(f"{file}, line {row.number}: {fields}: {_shown(row.text)!r}. {quoted}")
    names = list(sidecar.names or ())
    with contextlib.suppress(OSError, pa.ArrowException, csv.Error):  # then columns have the numbers that Arrow says
        head = io.StringIO(file.decoded().read(_PART_BYTES).decode("utf-8-sig", errors="replace"), newline="")
        names = names or next(csv.reader(head, delimiter=delimiter), [])
    if (misfit := _MISFIT.search(str(exc))) is None:
        return TableError(f"{file}: cannot be read as CSV: {exc}. Write it again, text as UTF-8.")
    number, line, kind, value = misfit.groups()
    name = names[int(number)] if int(number) < len(names) else f"#{number}"
    source = "as types= says" if name in (sidecar.types or ()) else "as the lines before it"
    return TableError(
        f"{file}, line {line}: column {name!r}: expected {kind}, {source}, found {_shown(value)!r}. Correct the entry, "
        f"or choose a type that all entries have: Sidecar(..., types={{{name!r}: str}}) keeps their text."
    )


def _check_integers(file: TableFile, name: str, texts: pa.ChunkedArray, values: pa.ChunkedArray, first: int) -> None:
    """Raise for an integer of a column of floats that is rounded."""
    for line, (text, value) in enumerate(zip(texts.to_pylist(), values.to_pylist(), strict=True), start=first):
        if text and _INTEGER.fullmatch(text) and (abs(value) >= 2.0**63 or int(text) != value):
            raise TableError(
                f"{file}, line {line}: column {name!r} holds the integer {_shown(text.strip())}, beyond int64 or "
                f"beside floats, which a float64 may round. Pass Sidecar(..., types={{{name!r}: str}}) to keep its "
                "text, 'uint64' for integers from 0 to 2**64 - 1, or 'float64' to round."
            )


def without_words(table: pa.Table, name: str) -> pa.Table:
    """Return a table in which a column of text has no values, if all of its entries are words such as ``NA``.

    Another table has numbers in this column.
    """
    words = pa.array(pacsv.ConvertOptions().null_values, pa.large_string())
    column = table[name]
    if not pc.all(pc.fill_null(pc.is_in(column.cast(pa.large_string()), words), True)).as_py():
        return table
    return table.set_column(table.column_names.index(name), name, pa.nulls(len(column)))


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARACTERS] + ("..." if len(text) > _SHOWN_CHARACTERS else "")


def _not_utf8(file: TableFile, what: str) -> TableError:
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
