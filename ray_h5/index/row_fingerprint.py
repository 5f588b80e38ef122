"""What the rows of an index hold, as short texts: a run that goes on with an epoch compares them."""

from __future__ import annotations

from ray_h5.columns.schema import Cast
from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.file_table import digest_of, digest_of_names

_MOST_CHARACTERS = 300
"""Longer texts end in a digest: `take=` of `csr` may list thousands of genes."""


def data_of_rows(index: RowIndex) -> dict[str, str]:
    """Return what decides the values of a row of given files, by the name of the option that says it.

    Options that change no value stay out, such as threads and caches. Files themselves are compared by their names and
    rows: they may have been moved, or written with other chunks.
    """
    scope = index.scope
    data = {
        "columns": _columns(index),
        "group": scope.group.strip("/"),
        "rows": "" if scope.rows is None else repr(scope.rows),
        "windows": "" if scope.windows is None else scope.windows.in_steps(),
        "decode_cf": "True" if scope.decode_cf else "",
        "axes": scope.axes if scope.axes != "stored" else "",
        "labels": ", ".join(f"{label.name!r}: {label.by_value}" for label in index.labels),
        "zip_files": f"with names of digest {digest_of_names(_beside(index))}" if scope.zipped else "",
        "drawn in": _drawn_in(index),
        "tables": _tables(index),
    }
    return {option: _short(text) for option, text in data.items() if text}


def _columns(index: RowIndex) -> str:
    """Return the columns that are delivered: how they are made, and their types with the casts of the user."""
    # H5Dataset casts types that torch lacks, and Ray does not: a run may go on in the other one.
    cast, made = Cast(index.cast.dtypes), {column.name: column for column in index.scope.columns}
    specs = index.find(index.names)
    return ", ".join(f"{made.get(name, name)!r} {cast(specs[name])}" for name in sorted(index.names))


def _beside(index: RowIndex) -> list[bytes]:
    return [index.scope.beside(path).encode("utf-8", "surrogateescape") for path in index.files.all_paths()]


def _drawn_in(index: RowIndex) -> str:
    """Return what blocks are drawn in, in each file: of arrays of other lengths, the same draws are other blocks."""
    is_drawn, cut = index.scope.rows is not None and index.scope.rows.is_drawn, len(index.files.folder)
    pairs = zip(index.files.all_paths(), index.tables, strict=True) if is_drawn else []
    return "; ".join(f"{path[cut:]} {entry}" for path, table in pairs if table is not None for entry in table.entries)


def _tables(index: RowIndex) -> str:
    """Return a digest of the values that rows have of each column of a table."""
    there = index.beside.columns.keys() & {*index.names}
    return ", ".join(f"{name!r} of digest {index.beside.digest(name)}" for name in sorted(there))


def _short(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS - 50]} ... (of digest {digest_of(text.encode('utf-8', 'surrogateescape'))})"
