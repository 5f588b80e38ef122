"""What is seen of a file: its columns, their types and shapes, and what else says which rows it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

MAX_DEPTH = 32
"""Nested groups that become nodes of a tree; the rest of a deeper name is one node."""


class Seen(NamedTuple):
    """A column: its dtype as text, and its shape with the row axis; None for axes along which rows differ."""

    dtype: str
    shape: tuple[int | None, ...]

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


@dataclass(frozen=True, slots=True)
class FileTree:
    """What is seen of a file.

    Attributes
    ----------
    columns : mapping of str to Seen
        Its columns.
    others : tuple of str
        Names that are no columns: single values, and what cannot be read.
    files : int
        How many files there are; 0 if that is not known.
    rows_differ : bool
        Whether files have other numbers of rows.
    of_matlab : bool
        Whether MATLAB wrote it.
    single_values : bool
        Whether it has single values beside its columns.
    datasets : tuple of str, optional
        The columns that are datasets; None if all are. Columns of a frame are none.
    attributes_of : callable, optional
        Returns the attributes with one value of a group or dataset, given its path.
    of_cf : tuple of str
        Columns that are stored as the CF conventions of netCDF say: packed numbers, times.
    elsewhere : mapping of str to Seen
        Columns of other files that this one lacks, such as those of further samples.
    """

    columns: Mapping[str, Seen]
    others: tuple[str, ...] = ()
    files: int = 0
    rows_differ: bool = False
    of_matlab: bool = False
    single_values: bool = False
    of_cf: tuple[str, ...] = ()
    datasets: tuple[str, ...] | None = None
    attributes_of: Callable[[str], Sequence[str]] | None = None
    elsewhere: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def whole(self) -> Mapping[str, Seen]:
        """The columns that are datasets, which are rows of `Groups`, and pieces of `joined`."""
        if self.datasets is None:
            return self.columns
        return {name: self.columns[name] for name in self.datasets if name in self.columns}

    def of_all_files(self) -> FileTree:
        """Return the tree with the columns of the other files, too: a pattern has to match the samples of all."""
        if not self.elsewhere or self.datasets is not None:
            return self
        return replace(self, columns={**self.columns, **self.elsewhere}, elsewhere={})

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
