"""Columns whose rows are ranges of longer arrays, of a file or of each of its groups, and where these begin and end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_h5.columns.made_columns import Csr, Ragged
from ray_h5.columns.ragged.bounds import Bounds, bounds_in, check_bounds, rows_key
from ray_h5.columns.ragged.csr_groups import check_entries, check_types, checked_encoding, taken_positions, width_of
from ray_h5.columns.ragged.range_columns import RaggedRows, SparseRows
from ray_h5.columns.values import Values, read_units
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import Paths
from ray_h5.manifest.layout import Encoding
from ray_h5.read.reader import RowReader


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The datasets of one name: that of a file, or one a group. Their units follow each other.

    Attributes
    ----------
    values : Values
        The values of all units.
    starts, lengths : numpy.ndarray
        int64: the first unit, and the number of units, of each dataset.
    """

    values: Values
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of_file(cls, values: Values) -> Parts:
        """Return the one dataset of a file."""
        return cls(values, np.zeros(1, np.int64), np.array([values.array.num_rows], np.int64))

    def read(self, reader: RowReader) -> list[np.ndarray]:
        """Return the values of each dataset, without axes of one."""
        found = read_units(reader, self.values, int(self.lengths.sum()))
        found = found.reshape(len(found)) if all(length == 1 for length in found.shape[1:]) else found
        return np.split(found, self.starts[1:])


class Ranges:
    """Makes such columns of one file.

    Parameters
    ----------
    reader : RowReader
        The open file.
    groups : Paths, optional
        The groups that each have such rows; None for a file as a whole, which is one part.
    parts_of : callable
        Returns the datasets of a name, however the user described a column of that name.
    known : dict of str to Bounds
        What is known of bounds; what is found is added.
    column : callable
        Returns another column of the file, such as names of positions.
    """

    def __init__(
        self,
        reader: RowReader,
        groups: Paths | None,
        parts_of: Callable[[str], Parts],
        known: dict[str, Bounds],
        column: Callable[[str], Values],
    ) -> None:
        self._reader, self._groups, self._parts_of, self._known = reader, groups, parts_of, known
        self._column = column

    def ragged(self, made: Ragged, content: Parts) -> RaggedRows:
        """Return the values of a column made by `ragged`; which rows each group has is known then."""
        if isinstance(content.values, (RaggedRows, SparseRows)):
            raise UnsupportedColumnError(
                f"{self._reader.path}: ragged({made.content!r}): it has rows of varying length itself; expected a "
                "dataset"
            )

        def check(bounds: Bounds, length: int, part: int) -> None:
            check_bounds(bounds, made, length, self._where(part))

        return RaggedRows(made.name, content.values, self._bounds(made, made.name, content, check))

    def csr(self, made: Csr, indices: Parts, data: Parts) -> SparseRows:
        """Return the rows of a sparse matrix, of a file or of each group, one group after the other."""
        reader, name = self._reader, made.group
        check_types(f"{reader.path}: sparse matrix {name!r}", indices.values.array, data.values.array)

        def check(bounds: Bounds, length: int, part: int) -> None:
            where = f"{reader.path}: sparse matrix {self._path(part, name)!r}"
            check_entries(where, bounds, length, int(data.lengths[part]))

        bounds = self._bounds(rows_of_csr(made), made.name, indices, check)
        width = self._common_width(made, bounds)
        take = taken_positions(reader, made, width, self._column)
        return SparseRows(name, indices.values, data.values, bounds, width, made.dense, take, reader.path)

    def _where(self, part: int) -> str:
        return self._reader.path if self._groups is None else f"{self._reader.path}: group {self._groups[part]!r}"

    def _path(self, part: int, name: str) -> str:
        return name if self._groups is None else f"{self._groups[part]}/{name}"

    def _bounds(self, made: Ragged, name: str, content: Parts, check: Callable[[Bounds, int, int], None]) -> Bounds:
        """Return where the rows of a column begin and end in the units of its content, those of all parts.

        Which of them each group has is known then, too. `check` raises for the bounds in a part of some length.
        """
        key, of_groups = made.bounds_key, rows_key(name)
        if self._groups is None and key in self._known:  # columns with the same bounds may have other content
            check(self._known[key], int(content.lengths[0]), 0)
        elif key not in self._known or of_groups not in self._known:
            read = {option: self._parts_of(each).read(self._reader) for option, each in made.given.items()}
            said = " and ".join(map(repr, made.given.values()))
            found = []
            for part, (first, length) in enumerate(zip(content.starts.tolist(), content.lengths.tolist(), strict=True)):
                own = {option: values[part] for option, values in read.items()}
                bounds = bounds_in(own, made, f"{self._where(part)}: column {made.name!r}, {said}")
                check(bounds, length, part)
                found.append(Bounds(bounds.starts + first, bounds.stops + first))
            nothing = np.empty(0, np.int64)
            starts, stops = (np.concatenate([nothing, *(getattr(each, end) for each in found)])
                             for end in ("starts", "stops"))  # fmt: skip
            self._known[key] = Bounds(starts, stops)
            if self._groups is not None:
                ends = np.cumsum(np.array([len(each) for each in found], np.int64))
                self._known[of_groups] = Bounds(np.concatenate([nothing, [0], ends])[:-1].astype(np.int64), ends)
        return self._known[key]

    def _common_width(self, made: Csr, bounds: Bounds) -> int:
        """Return the length of a row of a sparse matrix, which is one in all groups."""
        reader, name, groups = self._reader, made.group, self._groups
        if groups is None:
            encoding = checked_encoding(reader.path, made, name, reader.encoding(name))
            return width_of(reader, made, name, encoding, len(bounds))

        def widths() -> np.ndarray:
            rows, found = self._known[rows_key(made.name)], []
            for part, count in enumerate((rows.stops - rows.starts).tolist()):
                each = self._path(part, name)
                encoding = checked_encoding(reader.path, made, each, reader.encoding(each))
                found.append(width_of(reader, made, each, encoding, count))
            return np.array(found, np.int64)

        key = f"{name}: widths in {groups[0]!r} and {len(groups) - 1} others; {made.shape}"
        of_groups = reader.fact(key, widths, of_file=True)
        if (differ := np.flatnonzero(of_groups != of_groups[0])).size:
            at = int(differ[0])
            raise SchemaMismatchError(
                f"{reader.path}: sparse matrix {name!r}: rows have length {of_groups[0]} in group {groups[0]!r}, and "
                f"{of_groups[at]} in {groups[at]!r}. Choose groups that agree with the pattern, or leave the column "
                "out."
            )
        return int(of_groups[0])


def rows_of_csr(made: Csr) -> Ragged:
    """Return what says where the rows of a sparse matrix begin and end."""
    return Ragged(f"{made.group}/indices", offsets=f"{made.group}/indptr")


def rows_of_awkward(path: str, name: str, encoding: Encoding) -> Ragged:
    """Return the column that an array of awkward with one level of lists is; `path` is the file."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        form: Any = json.loads(encoding.text)
        if form["class"] == "ListOffsetArray" and form["content"]["class"] == "NumpyArray":
            content, offsets = f"{form['content']['form_key']}", f"{form['form_key']}"
            return Ragged(f"{name}/{content}-data", f"{name}/{offsets}-offsets", called=name)
    raise UnsupportedColumnError(
        f"{path}: {name!r} is an awkward array of another form than one level of lists of numbers. Write it as such "
        "arrays, or leave it out with columns=[...]."
    )
