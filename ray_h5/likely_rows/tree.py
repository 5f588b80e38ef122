"""What is seen of a file: its columns, their types and shapes, and what else says which rows it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

MAX_DEPTH = 32
"""Nested groups that become nodes of a tree; the rest of a deeper name is one node."""


class Seen(NamedTuple):
    """A column: its dtype as text, and its shape with the row axis; None for axes along which rows differ.

    Of compound values, `fields` are those with one integer.
    """

    dtype: str
    shape: tuple[int | None, ...]
    fields: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.shape[0] or 0

    @property
    def is_text(self) -> bool:
        """Whether it holds text, by its dtype: ``string``, ``object``, ``|O``, ``|S5``."""
        return self.dtype.lstrip("<>|=")[:1] in {"s", "o", "O", "S", "U"}

    @property
    def values(self) -> int:
        """How many values it has, about."""
        count = 1
        for length in self.shape:
            count *= 1 if length is None else length
        return count


def integer_fields(dtype: np.dtype) -> tuple[str, ...]:
    """Return the fields of compound values that hold one integer."""
    return tuple(name for name in dtype.names or () if dtype[name].kind in "iu")


@dataclass(frozen=True, slots=True)
class FileTree:
    """What is seen of a file.

    Attributes
    ----------
    columns : mapping of str to Seen
        Its columns.
    files : int
        How many files there are; 0 if that is not known.
    rows_differ : bool
        Whether files have other numbers of rows.
    shapes_differ : bool
        Whether rows of a column have another shape in another file.
    of_matlab : bool
        Whether MATLAB wrote it.
    single_values : tuple of str
        Datasets with a single value, which are no columns.
    datasets : mapping of str to Seen, optional
        What may be rows of `Groups` or pieces of `joined`: datasets, also those of further files, which have samples of
        their own; None if these are the columns. Columns of a frame are no datasets.
    attributes_of : callable, optional
        Returns the attributes with one value of a group or dataset, given its path.
    is_sparse : callable, optional
        Returns whether a group says that it is a sparse matrix, with its shape, given its path.
    of_cf : tuple of str
        Columns that are stored as the CF conventions of netCDF say: packed numbers, times.
    """

    columns: Mapping[str, Seen]
    files: int = 0
    rows_differ: bool = False
    shapes_differ: bool = False
    of_matlab: bool = False
    single_values: tuple[str, ...] = ()
    of_cf: tuple[str, ...] = ()
    datasets: Mapping[str, Seen] | None = None
    attributes_of: Callable[[str], Sequence[str]] | None = None
    is_sparse: Callable[[str], bool] = lambda _: False

    @property
    def whole(self) -> Mapping[str, Seen]:
        """The `datasets`."""
        return self.columns if self.datasets is None else self.datasets

    @property
    def lengths(self) -> set[int]:
        """The lengths of first axes."""
        return {column.rows for column in self.columns.values()}


def nested(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of columns: a dict for each group, whose name ends with ``"/"``.

    A group may be a column too, and have others below it: the sparse matrix of a 10x file, and its barcodes.
    """
    tree: dict[str, Any] = {}
    for name, path in columns.items():
        *groups, last = name.split("/", MAX_DEPTH)
        here = tree
        for group in groups:
            here = here.setdefault(group + "/", {})
        here[last] = path
    return tree
