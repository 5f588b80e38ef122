"""What is wanted of a column, as values; the names of the virtual columns that stand for them; and these in words.

An expression of pyarrow names columns, virtual ones too.
"""

from __future__ import annotations

import base64
import ctypes
import json
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import PredicateError
from ray_h5.manifest.value_type import ValueType
from ray_h5.read.casting import Casting

_PREFIX = "ray_h5:"
_IN_JSON = {bool, int, float, str, tuple}

_MOST = 300
"""Longer predicates are cut off."""

_INTEGER_BYTES = 4
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True, slots=True)
class AnyEqual:
    """A value at any time step; see `any_equal`.

    Attributes
    ----------
    value : int or float
        The value.
    valid : str, optional
        The column of the time steps that count.
    casts : tuple of (str, str, str)
        Columns that are delivered in another dtype than the files store: name, dtype, and how values are cast.
    """

    value: int | float
    valid: str | None = None
    casts: tuple[tuple[str, str, Casting], ...] = ()


@dataclass(frozen=True, slots=True)
class RowMask:
    """A mask that is stored in the file; see `row_mask`."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Values that a column is compared with. How depends on the type of the column: text may stand for times.

    Attributes
    ----------
    how : {"equal", "one_of", "between"}
        How they are compared.
    values : tuple
        The values, or the two ends, of which None is open.
    """

    how: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """One side of a fold of `kfold`, of rows that are drawn alone or of whole files.

    `digest` is of the names of the files; and, if rows are drawn, of the fold of each row. `files` has the numbers of
    the files on this side, in path order; None if rows are drawn.
    """

    k: int
    fold: int
    is_test: bool
    stratify: str | None
    seed: int
    num_rows: int
    num_files: int
    digest: str
    files: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """How long the row is of a column of varying shape, along its first axis: an integer."""


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """The different values of a column of several values a row, for classes.

    Rows are read in pieces. The first row of each has a list of the values that no earlier piece of its file has, and
    all other rows have an empty list. Values are of `dtype`, objects for text.
    """

    dtype: str


Derived = AnyEqual | RowMask | Compared | Fold | Length | FirstSeen
"""A criterion that is a column of its own: one boolean a row, its length, or new values, computed from the files."""

_KINDS = {criterion.__name__: criterion for criterion in (AnyEqual, RowMask, Compared, Fold, Length, FirstSeen)}


def virtual_name(column: str, criterion: Derived) -> str:
    """Return the name of the virtual column that a criterion stands for."""
    parts: list[Any] = [getattr(criterion, field.name) for field in fields(criterion)]
    for place, value in enumerate(parts):
        if isinstance(value, tuple) and not all(item is None or type(item) in _IN_JSON for item in value):
            # JSON lacks such values as times: these are an Arrow array, as text.
            batch, sink = pa.record_batch([pa.array(value)], [""]), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            parts[place] = {"arrow": base64.b64encode(sink.getvalue()).decode()}
    return _PREFIX + json.dumps([type(criterion).__name__, column, *parts])


@lru_cache(maxsize=256)
def parse_virtual(name: str) -> tuple[str, Derived | None]:
    """Return the column and the criterion that `virtual_name` was given; of any other name, itself and None."""
    if not name.startswith(_PREFIX):
        return name, None
    kind, column, *parts = json.loads(name.removeprefix(_PREFIX))
    return column, _KINDS[kind](*map(_of_json, parts))


def virtual_spec(name: str) -> ColumnSpec:
    """Return the spec of a virtual column."""
    criterion = parse_virtual(name)[1]
    if isinstance(criterion, FirstSeen):
        return ColumnSpec(name, ValueType("list", np.dtype(object), element=np.dtype(criterion.dtype)))
    is_length = isinstance(criterion, Length)
    return ColumnSpec(name, ValueType("number", np.dtype(np.int64)) if is_length else ValueType("bool", np.dtype(bool)))


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_of_json, value))
    if not isinstance(value, dict):
        return value
    with pa.ipc.open_stream(base64.b64decode(value["arrow"])) as stream:
        return tuple(value if value.is_valid else None for value in stream.read_all().column(0))


def read_for(name: str) -> list[str]:
    """Return the columns to read for a column of a predicate: of a virtual one, those that it is computed from."""
    return columns_read(*parse_virtual(name))


def columns_read(column: str, criterion: Derived | None) -> list[str]:
    """Return the columns that a criterion of a column is computed from."""
    if isinstance(criterion, Fold):
        return [] if criterion.stratify is None else [criterion.stratify]
    return [column, criterion.valid] if isinstance(criterion, AnyEqual) and criterion.valid is not None else [column]


# The names and words of an expression of pyarrow ------------------------------------------------------------------


def names_in(expression: pc.Expression) -> list[str]:
    """Return the fields that an expression refers to, each once; virtual columns, too.

    pyarrow does not list them. A serialized expression is an Arrow IPC file, and the metadata of its schema has an
    entry for each part of the expression. Keys occur more than once, so the dict that pyarrow makes of them lacks some.

    Raises
    ------
    PredicateError
        If pyarrow cannot serialize the expression, as with a field that has a number and no name.
    """
    try:
        (written,) = expression.__reduce__()[1]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise PredicateError(f"predicate: {expression}: the columns that it names are not known: {exc}") from exc
    columns: dict[str, None] = {}
    inner = 0  # names of fields of structures, which follow that of the column
    for key, value in _metadata(pa.ipc.open_file(written).schema):
        if key == "nested_field_ref":
            inner = -int(value)
        elif key == "field_ref" and inner > 0:
            inner -= 1
        elif key == "field_ref":
            columns[value] = None
            inner = -inner - 1 if inner else 0
    return [*columns]


def columns_of(expression: pc.Expression) -> list[str]:
    """Return the columns whose values an expression needs: of a comparison that `where` made, the compared one."""
    parsed = {name: parse_virtual(name) for name in names_in(expression)}
    return [*dict.fromkeys(column if isinstance(of, Compared) else name for name, (column, of) in parsed.items())]


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all metadata of a schema. In Arrow's C data interface, it is a count, and texts after their lengths."""
    capsule = schema.__arrow_c_schema__()  # the addresses are valid while it lives
    # The struct begins with pointers to the format, the name and the metadata.
    at = (ctypes.c_void_p * 3).from_address(_pointer(capsule, b"arrow_schema"))[2] or 0
    texts: list[str] = []
    for _ in range(2 * ctypes.c_int32.from_address(at).value if at else 0):
        at += _INTEGER_BYTES
        length = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + _INTEGER_BYTES, length).decode())
        at += length
    return list(zip(texts[::2], texts[1::2], strict=True))


def in_words(expression: pc.Expression) -> str:
    """Return a predicate as text of one line, for messages. Criteria of `where` are columns of their own in it."""
    text = str(expression)
    for name in names_in(expression):
        column, wanted = parse_virtual(name)
        if wanted is not None:
            words = criterion_in_words(column, wanted)
            text = text.replace(f"{name} == true", words).replace(name, words)
    text = " ".join(text.split()).replace("invert(", "not (")
    return text if len(text) <= _MOST else f"{text[: _MOST - 4]} ..."


def criterion_in_words(column: str, wanted: Derived) -> str:
    """Return a criterion of `where` as text."""
    if isinstance(wanted, RowMask):
        return f"{column} = row_mask()"
    if isinstance(wanted, AnyEqual):
        valid = "" if wanted.valid is None else f", valid={wanted.valid!r}"
        return f"{column} = any_equal({wanted.value}{valid})"
    if isinstance(wanted, Compared):
        first = wanted.values[:_MOST]
        values = [json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value) for value in first]
        if wanted.how == "between":
            return f"{column} = between({', '.join(values)})"
        if wanted.how == "one_of":
            return f"{column} in [{', '.join(values)}]"
        return f"{column} is null" if wanted.values == (None,) else f"{column} == {values[0]}"
    if isinstance(wanted, (Length, FirstSeen)):
        return f"{'the length' if isinstance(wanted, Length) else 'values'} of {column}"
    if wanted.files is not None:
        return f"{len(wanted.files)} of {wanted.num_files} files of kfold(group='path')"
    return f"fold {wanted.fold} of kfold(k={wanted.k}), {'its' if wanted.is_test else 'all other'} rows"
