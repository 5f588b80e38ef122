"""Integers of CSV that Arrow would read as floats, and so would round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.errors import TableError

_EXACT = 2.0**53
"""Up to here, a float64 holds each integer."""

_INTEGER = r"^[-+]?[0-9]+$"


def with_exact_integers(
    table: pa.Table, typed: Sequence[str], texts_of: Callable[[list[str]], pa.Table], path: str
) -> pa.Table:
    """Return a table whose integers are as they are written. Arrow makes floats of those that int64 does not hold.

    Parameters
    ----------
    table : pyarrow.Table
        The table, with the types that Arrow chose.
    typed : sequence of str
        Columns whose types the user chose.
    texts_of : callable
        Returns columns of the table as text.
    path : str
        The file, for messages.

    Raises
    ------
    TableError
        If no type of 64 bits holds the integers of a column.
    """
    rounded = [
        each.name
        for each in table.schema
        if pa.types.is_float64(each.type) and each.name not in typed and _is_large(table[each.name])
    ]
    texts = texts_of(rounded) if rounded else None
    for name in rounded:
        assert texts is not None
        found = _exact(texts[name], table[name], path, name)
        table = table.set_column(table.column_names.index(name), name, found)
    return table


def _is_large(floats: pa.ChunkedArray) -> bool:
    return bool((pc.max(pc.abs(floats)).as_py() or 0) >= _EXACT)


def _exact(texts: pa.ChunkedArray, floats: pa.ChunkedArray, path: str, name: str) -> pa.ChunkedArray:
    """Return the numbers of a column as integers, if all are; otherwise the floats, if they round no integer."""
    texts = pc.if_else(floats.is_null(), None, pc.utf8_trim_whitespace(texts))
    are_integers = pc.fill_null(pc.match_substring_regex(texts, _INTEGER), True)
    if pc.all(are_integers).as_py() is False:
        _check_not_rounded(texts.filter(are_integers), floats.filter(are_integers), path, name)
        return floats
    digits = pc.replace_substring_regex(texts, r"^\+", "")
    for kind in (pa.int64(), pa.uint64()):
        try:
            return digits.cast(kind)
        except pa.ArrowInvalid:
            continue
    values = [int(each) for each in digits.drop_null().to_pylist()]
    what = f"integers from {min(values)} to {max(values)}, which no type of 64 bits holds"
    raise _refused(path, name, what)


def _check_not_rounded(texts: pa.ChunkedArray, floats: pa.ChunkedArray, path: str, name: str) -> None:
    large = np.flatnonzero(np.abs(floats.fill_null(0).to_numpy()) >= _EXACT)
    for at in large.tolist():
        if int(text := texts[at].as_py()) != int(floats[at].as_py()):
            raise _refused(path, name, f"floats, and the integer {text}, which a float would round")


def _refused(path: str, name: str, what: str) -> TableError:
    return TableError(
        f"{path}: column {name!r} holds {what}. Pass types={{{name!r}: str}} to Sidecar to keep their text, or "
        f"types={{{name!r}: 'float64'}} to round them."
    )
