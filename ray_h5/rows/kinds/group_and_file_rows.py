"""Rows that are whole: each group of a file, or each file; with windows, they are episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.column_resolver import Parts, are_single_values
from ray_h5.columns.conventions.matlab_columns import texts_of_characters
from ray_h5.columns.file_columns import THE_FILE, FileColumns
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import InMemory
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import ENDS, LACKS, GroupTable, Texts
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.rows.group_columns import GroupColumns
from ray_h5.rows.kinds.clock import has_steps
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_columns import Episodes, RowColumn, with_single_values
from ray_h5.rows.row_kind_options import NUM_SAMPLES, Files, Groups
from ray_h5.rows.windows_option import Windows

_OF_ROWS = {"list", "ragged", "sparse"}
"""Kinds of columns whose values are arrays of varying length already."""


class WholeRows(Episodes):
    """Parts of one file that are rows, or episodes: its groups, or the file itself.

    Parameters
    ----------
    columns : GroupColumns or FileColumns
        The columns of the parts.
    kind : Groups or Files
        The row kind.
    windows : Windows, optional
        Windows over the parts, which are episodes then.
    """

    def __init__(self, columns: GroupColumns | FileColumns, kind: Groups | Files, windows: Windows | None) -> None:
        self.columns: GroupColumns | FileColumns = columns
        self._kind = kind
        self._windows = windows
        self._is_timed = windows is not None and windows.at is not None  # columns have times of their own

    @property
    def num_rows(self) -> int:
        return 1 if self.columns.groups is None else len(self.columns.groups)

    @property
    def table(self) -> RowTable:
        if isinstance(self.columns, GroupColumns) or self._is_timed:
            return self.columns.table()
        # With windows, the lengths in all files say which columns have a value for each step.
        known = dict(self.columns.as_arrays)
        groups = None if self._windows is None else GroupTable(THE_FILE, known, {})
        entries = {name: int(joined_array.shapes[0, 0]) for name, joined_array in known.items()}
        return self.columns.table(groups=groups, entries=entries)

    def prepare(self, names: Iterable[str]) -> None:
        if isinstance(self.columns, GroupColumns):
            self.columns.look_at(path for name in names for path in self.columns.paths_of(name) if not self.adds(name))

    def adds(self, name: str) -> str | None:
        if isinstance(self.columns, GroupColumns):
            said = "key= or attrs= of Groups adds. Choose another key, or leave out the attribute"
            return said if name in self.columns.own else None
        return f"Files(key={self._kind.key!r}) adds. Choose another key" if name == self._kind.key else None

    def listing(self) -> Listing:
        listing = self.columns.listing()
        if isinstance(self.columns, GroupColumns):
            return listing
        listing, key = with_single_values(listing), [] if self._kind.key is None else [self._kind.key]
        return replace(listing, names=(*key, *listing.names))

    def column(self, name: str) -> RowColumn:
        columns = self.columns
        if isinstance(columns, GroupColumns) and name in columns.own:
            of_groups = columns.known.names.groups if name == self._kind.key else columns.known.attributes[name]
            if isinstance(ends := columns.known.attributes.get(ENDS + name), np.ndarray):
                return RowColumn(name, _of_arrays(name, columns.known, ends))
            if isinstance(lacks := columns.known.attributes.get(LACKS + name), np.ndarray):
                of_groups = np.where(lacks, np.array(None), of_groups.take(np.arange(len(lacks))))
            if isinstance(of_groups, Texts):
                return RowColumn(name, InMemory.of(name, of_groups.take, object))
            return RowColumn(name, InMemory.of(name, of_groups.__getitem__, of_groups.dtype, of_groups.shape[1:]))
        if isinstance(self._kind, Files) and name == self._kind.key:
            return name_column(name, columns.path, self._kind)
        values, joined = columns.datasets(name)
        if values.array.kind in _OF_ROWS and isinstance(columns, FileColumns):
            raise UnsupportedColumnError(
                f"{columns.path}: column {name!r} has values of varying length, a list for each index of its first "
                "axis: a row of Files would be rows of rows. Leave rows= out to read these rows one by one, or leave "
                "the column out with columns=[...]."
            )
        whole = columns.of_units(name, Ranges.whole(name, columns.path, values, joined))
        text = texts_of_characters(whole) if columns.decode_cf else None
        return RowColumn(name, text or whole)

    # Episodes: each part is one -----------------------------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        assert self._windows is not None
        names = list(names)
        self.prepare(names)
        times = {name: self._time_of(name) for name in names}
        first, lengths = next(iter(times.items()))
        for name, others in times.items():
            differ = np.flatnonzero(others != lengths)
            if len(differ) and self._windows.episode_length != "min":
                at = int(differ[0])
                raise SchemaMismatchError(
                    f"{self.columns.where(at)}: {first!r} has {lengths[at]} steps, and {name!r} has {others[at]}. Pass "
                    "episode_length='min' for a row at each step that both have; offsets reach the further entries of "
                    "the longer one, as from an action to the observation after it, and pad='drop' leaves out no step "
                    "that has all entries."
                )
            lengths = np.minimum(lengths, others)
        self._check_attribute(first, lengths)
        return lengths

    def _time_of(self, name: str) -> np.ndarray:
        """Return the steps that a column with offsets has in each part."""
        if self.columns.is_range(name):
            return self.steps(name).lengths
        values, joined = self.columns.datasets(name)
        if are_single_values(joined):
            raise UnsupportedColumnError(
                f"{self.columns.path}: Windows: column {name!r} has a single value in each episode, and no axis of "
                "time. Leave it out of the offsets: each row then has the value of its episode."
            )
        instead = "leave the column out of the offsets"
        if values.array.kind not in {"number", "bool"}:
            self.columns.check_one_shape(name, joined, "and are no numbers", instead)
        self.columns.check_all_have(name, joined, "has offsets", instead)
        return joined.lengths

    def _check_attribute(self, name: str, lengths: np.ndarray) -> None:
        """Raise unless groups have the number of steps that an attribute says, if it is one integer in each."""
        assert self._windows is not None
        known = self.columns.known.attributes if isinstance(self.columns, GroupColumns) else {}
        said, has_several = known.get(NUM_SAMPLES), ENDS + NUM_SAMPLES in known
        if not isinstance(said, np.ndarray) or said.dtype.kind not in "iu" or has_several or said.ndim > 1:
            return
        if self._windows.episode_length == "min":
            return
        differ = np.flatnonzero(said != lengths)
        if len(differ):
            at = int(differ[0])
            raise SchemaMismatchError(
                f"{self.columns.where(at)}: attribute {NUM_SAMPLES!r} says {said[at]} steps, and {name!r} has "
                f"{lengths[at]}. Pass episode_length='min' to go by the columns."
            )

    def steps(self, name: str) -> Parts:
        return self.columns.parts(name)

    def constant(self, name: str) -> RowColumn | None:
        assert self._windows is not None
        attributes = self._kind.attrs if isinstance(self._kind, Groups) else ()
        if name in {self._kind.key, *attributes, *self._windows.constants}:
            return self.column(name)
        if self.columns.is_range(name):
            return None
        _, joined = self.columns.datasets(name)
        if are_single_values(joined) or self._is_timed:
            is_constant = are_single_values(joined) and name not in self._windows.per_step
        else:
            is_constant = not has_steps(name, [(self.columns.path, self.table)], self._windows)
        return self.column(name) if is_constant else None

    def episode_names(self) -> np.ndarray:
        groups = self.columns.groups
        return objects([b""]) if groups is None else groups.groups.take(np.arange(len(groups)))


def _of_arrays(name: str, table: GroupTable, ends: np.ndarray) -> InMemory:
    """Return attributes that are arrays of several lengths, one after the other; None where a group has none."""
    values, lacks = (table.attributes[before + name] for before in ("", LACKS))
    assert isinstance(values, np.ndarray)
    assert isinstance(lacks, np.ndarray)

    def values_of(rows: np.ndarray) -> np.ndarray:
        begins = np.where(rows > 0, ends[rows - 1], 0).tolist()
        whole = zip(begins, ends[rows].tolist(), lacks[rows].tolist(), strict=True)
        return objects(None if is_none else values[a:b] for a, b, is_none in whole)

    mean = max(1, round(values.nbytes / max(len(ends), 1)))
    array = ColumnLayout(name, "ragged", (1,), np.dtype(object), "contiguous", item_bytes=mean, direct=True)
    array = replace(array, element=values.dtype, ragged_shape=(None,), nullable=bool(lacks.any()))
    return InMemory(array, values_of)


def name_column(
    name: str, path: str, kind: Files | Patches, units_of: Callable[[np.ndarray], np.ndarray] | None = None
) -> RowColumn:
    """Return a column with the name of a file, without its extension, after as many folders as `kind` says."""
    there = PurePosixPath(path)
    named = "/".join((*there.parts[:-1], there.stem)[-1 - kind._folders :])
    key = objects([named.encode("utf-8", "surrogateescape")])
    return RowColumn(name, InMemory.of(name, key.take, object), units_of)
