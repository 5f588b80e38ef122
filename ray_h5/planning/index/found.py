"""What a row index has looked up since it was made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa

from ray_h5.fork import PerProcess
from ray_h5.planning.index.sources import SourceTable
from ray_h5.planning.schema import ColumnSpec

_MAX_CARRIED_BYTES = 32 << 20
"""Values up to this size are pickled. Of more, another process reads what it needs."""


@dataclass(frozen=True, slots=True)
class Found:
    """Columns, values and sources that were looked up.

    Attributes
    ----------
    columns : mapping of str to ColumnSpec
        Virtual columns, and columns that are not in the schema of the index.
    values : mapping of ColumnSpec to pyarrow.ChunkedArray
        The values of small columns, of all rows.
    sources : tuple of SourceTable
        The other files that columns come from; no column is in two tables.
    """

    columns: Mapping[str, ColumnSpec] = field(default_factory=dict)
    values: Mapping[ColumnSpec, pa.ChunkedArray] = field(default_factory=dict)
    sources: tuple[SourceTable, ...] = ()

    @property
    def all_sources(self) -> SourceTable:
        """The sources of all columns."""
        return reduce(SourceTable.joined, self.sources, SourceTable())

    def with_columns(self, columns: Mapping[str, ColumnSpec]) -> Found:
        return Found({**self.columns, **columns}, self.values, self.sources)

    def with_values(self, values: Mapping[ColumnSpec, pa.ChunkedArray]) -> Found:
        return Found(self.columns, {**self.values, **values}, self.sources)

    def with_sources(self, found: SourceTable) -> Found:
        """Add the sources of columns that no table has yet."""
        new = found.only(name for name in found.columns if not any(name in known.columns for known in self.sources))
        return Found(self.columns, self.values, (*self.sources, new)) if new.columns else self


class FoundCell:
    """Holds the present `Found` of a row index. Threads add to it one after the other; readers never see half a change.

    Attributes
    ----------
    value : Found
        What was found so far.
    """

    def __init__(self, value: Found | None = None) -> None:
        self.value = value or Found()
        self._lock = PerProcess(threading.Lock)

    def update(self, change: Callable[[Found], Found]) -> None:
        """Replace the value by what `change` returns for it."""
        with self._lock.value:
            self.value = change(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        value = self.value
        is_small = sum(values.nbytes for values in value.values.values()) <= _MAX_CARRIED_BYTES
        return FoundCell, (value if is_small else Found(value.columns, {}, value.sources),)
