"""What is wanted of a column, as values; and the names of the virtual columns that stand for them."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any

_PREFIX = "ray_h5:"


@dataclass(frozen=True, slots=True)
class Between:
    """A closed range; see `between`."""

    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class AnyEqual:
    """A value at any time step; see `any_equal`."""

    value: int | float
    valid: str | None = None

    @property
    def reads(self) -> str | None:
        """The other column that is read."""
        return self.valid


@dataclass(frozen=True, slots=True)
class RowMask:
    """A mask that is stored in the file; see `row_mask`."""

    reads = None


@dataclass(frozen=True, slots=True)
class DatedText:
    """Text that may stand for times: the type of the column decides.

    Attributes
    ----------
    how : {"equal", "one_of", "between"}
        How it is compared.
    texts : tuple of str or None
        The values, or the two ends.
    """

    how: str
    texts: tuple[str | None, ...]

    reads = None


@dataclass(frozen=True, slots=True)
class RowFold:
    """The rows of one fold of `kfold` without a group: those of the test, or the others."""

    k: int
    fold: int
    is_test: bool
    stratify: str | None
    seed: int
    num_rows: int
    num_files: int

    reads = None


Derived = AnyEqual | RowMask | DatedText | RowFold
"""A criterion that is a column of its own: one boolean a row, computed from the files."""


def virtual_name(column: str, criterion: Derived) -> str:
    """Return the name of the virtual column that a criterion stands for."""
    if isinstance(criterion, RowMask):
        return _PREFIX + json.dumps(["row_mask", column])
    if isinstance(criterion, DatedText):
        return _PREFIX + json.dumps(["dated", column, criterion.how, criterion.texts])
    if isinstance(criterion, RowFold):
        return _PREFIX + json.dumps(["row_fold", column, *astuple(criterion)])
    return _PREFIX + json.dumps(["any_equal", column, criterion.value, criterion.valid])


def parse_virtual(name: str) -> tuple[str, Derived] | None:
    """Return the column and the criterion that `virtual_name` was given, or None for any other name."""
    if not name.startswith(_PREFIX):
        return None
    kind, column, *rest = json.loads(name.removeprefix(_PREFIX))
    if kind == "dated":
        return column, DatedText(rest[0], tuple(rest[1]))
    if kind == "row_fold":
        return column, RowFold(*rest)
    return column, RowMask() if kind == "row_mask" else AnyEqual(*rest)


def read_for(name: str) -> list[str]:
    """Return the columns to read for a column of a predicate: of a virtual one, those that it is computed from."""
    derived = parse_virtual(name)
    if derived is None:
        return [name]
    column, criterion = derived
    if isinstance(criterion, RowFold):
        return [] if criterion.stratify is None else [criterion.stratify]
    return [column] if criterion.reads is None else [column, criterion.reads]
