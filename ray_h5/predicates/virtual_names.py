"""What is wanted of a column, as values; and the names of the virtual columns that stand for them."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any

from ray_h5.read.casting import Casting

_PREFIX = "ray_h5:"


@dataclass(frozen=True, slots=True)
class Between:
    """A closed range; see `between`."""

    low: Any
    high: Any


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
    """The rows of one fold of `kfold` without a group: those of the test, or the others.

    `digest` is of the files and of the fold of each row.
    """

    k: int
    fold: int
    is_test: bool
    stratify: str | None
    seed: int
    num_rows: int
    num_files: int
    digest: str

    reads = None


@dataclass(frozen=True, slots=True)
class FileFold:
    """The rows of some files: of one side of a fold of `kfold(group="path")`.

    Attributes
    ----------
    files : tuple of int
        The numbers of the files, in path order.
    num_files : int
        All files.
    names : str
        Digest of their names.
    """

    files: tuple[int, ...]
    num_files: int
    names: str

    reads = None


@dataclass(frozen=True, slots=True)
class Length:
    """How long the row is of a column of varying shape, along its first axis: an integer."""

    reads = None


Derived = AnyEqual | RowMask | DatedText | RowFold | FileFold | Length
"""A criterion that is a column of its own: one boolean a row, or its length, computed from the files."""


def virtual_name(column: str, criterion: Derived) -> str:
    """Return the name of the virtual column that a criterion stands for."""
    if isinstance(criterion, RowMask):
        return _PREFIX + json.dumps(["row_mask", column])
    if isinstance(criterion, Length):
        return _PREFIX + json.dumps(["length", column])
    if isinstance(criterion, DatedText):
        return _PREFIX + json.dumps(["dated", column, criterion.how, criterion.texts])
    if isinstance(criterion, FileFold):
        return _PREFIX + json.dumps(["file_fold", column, *astuple(criterion)])
    if isinstance(criterion, RowFold):
        return _PREFIX + json.dumps(["row_fold", column, *astuple(criterion)])
    return _PREFIX + json.dumps(["any_equal", column, criterion.value, criterion.valid, *criterion.casts])


def parse_virtual(name: str) -> tuple[str, Derived] | None:
    """Return the column and the criterion that `virtual_name` was given, or None for any other name."""
    if not name.startswith(_PREFIX):
        return None
    kind, column, *rest = json.loads(name.removeprefix(_PREFIX))
    if kind == "dated":
        return column, DatedText(rest[0], tuple(rest[1]))
    if kind == "file_fold":
        return column, FileFold(tuple(rest[0]), *rest[1:])
    if kind == "row_fold":
        return column, RowFold(*rest)
    if kind == "length":
        return column, Length()
    if kind == "row_mask":
        return column, RowMask()
    value, valid, *casts = rest
    return column, AnyEqual(value, valid, tuple((name, dtype, casting) for name, dtype, casting in casts))


def read_for(name: str) -> list[str]:
    """Return the columns to read for a column of a predicate: of a virtual one, those that it is computed from."""
    derived = parse_virtual(name)
    if derived is None:
        return [name]
    column, criterion = derived
    if isinstance(criterion, FileFold):
        return []
    if isinstance(criterion, RowFold):
        return [] if criterion.stratify is None else [criterion.stratify]
    return [column] if criterion.reads is None else [column, criterion.reads]
