"""What is wanted of a column, as values; and the names of the virtual columns that stand for them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec
from ray_h5.read.casting import Casting

_PREFIX = "ray_h5:"
_IN_JSON = {bool, int, float, str, tuple}


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


Derived = AnyEqual | RowMask | Compared | Fold | Length
"""A criterion that is a column of its own: one boolean a row, or its length, computed from the files."""


_KINDS = {criterion.__name__: criterion for criterion in (AnyEqual, RowMask, Compared, Fold, Length)}


def virtual_name(column: str, criterion: Derived) -> str:
    """Return the name of the virtual column that a criterion stands for."""
    parts = [getattr(criterion, field.name) for field in fields(criterion)]
    return _PREFIX + json.dumps([type(criterion).__name__, column, *map(_as_json, parts)])


@lru_cache(maxsize=256)
def parse_virtual(name: str) -> tuple[str, Derived] | None:
    """Return the column and the criterion that `virtual_name` was given, or None for any other name."""
    if not name.startswith(_PREFIX):
        return None
    kind, column, *parts = json.loads(name.removeprefix(_PREFIX))
    return column, _KINDS[kind](*map(_of_json, parts))


def virtual_spec(name: str) -> ColumnSpec:
    """Return the spec of a virtual column."""
    _, criterion = parse_virtual(name) or ("", None)
    if isinstance(criterion, Length):
        return ColumnSpec(name, "number", np.dtype(np.int64), ())
    return ColumnSpec(name, "bool", np.dtype(bool), ())


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it; of values that it lacks, such as times, the Arrow array as text."""
    if not isinstance(value, tuple) or all(item is None or type(item) in _IN_JSON for item in value):
        return value
    batch = pa.record_batch([pa.array(value)], [""])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return {"arrow": base64.b64encode(sink.getvalue()).decode()}


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_of_json, value))
    if not isinstance(value, dict):
        return value
    with pa.ipc.open_stream(base64.b64decode(value["arrow"])) as stream:
        return tuple(value if value.is_valid else None for value in stream.read_all().column(0))


def read_for(name: str) -> list[str]:
    """Return the columns to read for a column of a predicate: of a virtual one, those that it is computed from."""
    derived = parse_virtual(name)
    if derived is None:
        return [name]
    column, criterion = derived
    if isinstance(criterion, Fold):
        return [] if criterion.stratify is None else [criterion.stratify]
    return [column, criterion.valid] if isinstance(criterion, AnyEqual) and criterion.valid is not None else [column]
