"""Files that are one row each: all datasets of a file are values of that row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.dataset_columns import DatasetColumn
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import InMemory
from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray, Paths, Texts
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.reader import RowReader
from ray_h5.rows.groups_and_grids import Files
from ray_h5.rows.kinds.step_columns import has_steps
from ray_h5.rows.patches import Patches
from ray_h5.rows.row_columns import RowColumn, text_or_whole
from ray_h5.rows.row_kinds import EpisodesOfFile, Steps
from ray_h5.rows.windows import Windows

_OF_ROWS = {"list", "ragged", "sparse"}
"""Kinds of columns whose values are arrays of varying length already."""


class FileRows(EpisodesOfFile):
    """One file that is one row, or one episode.

    Parameters
    ----------
    reader : RowReader
        The open file.
    columns : FileColumns
        Its columns.
    kind : Files
        The row kind.
    table : RowTable, optional
        What is known.
    windows : Windows, optional
        Windows over the files, which are episodes then.
    """

    def __init__(
        self, reader: RowReader, columns: FileColumns, kind: Files, table: RowTable | None, windows: Windows | None
    ) -> None:
        super().__init__(reader, columns, windows)
        self._path = reader.path
        self._kind = kind
        known = None if table is None else table.groups
        self._known: dict[str, JoinedArray] = {} if known is None else dict(known.columns)

    @property
    def num_rows(self) -> int:
        return 1

    @property
    def table(self) -> RowTable:
        if self._is_timed:
            return self._columns.table()
        # With windows, the lengths in all files say which columns have a value for each step.
        groups = None if self._windows is None else GroupTable(_PATH, dict(self._known), {})
        entries = {name: int(joined.shapes[0, 0]) for name, joined in self._known.items()}
        return self._columns.table(groups=groups, entries=entries)

    def listing(self) -> Listing:
        found = self._columns.listing()
        columns, refused = list(found.names), dict(found.refused)
        for name in [*found.names, *found.refused]:
            try:
                single = self._columns.single(name) if name in refused else None
                if name in refused and single is None and self._columns.bytes_of(name) is None:
                    continue
                if not self._has_steps_of_rows(name):
                    self.column(name)
            except UnsupportedColumnError as exc:
                refused[name] = exc
                columns = [each for each in columns if each != name]
            else:
                if refused.pop(name, None) is not None:
                    columns.append(name)
        if (key := self._kind.key) is not None:
            if key in columns:
                raise OptionError(
                    f"{self._path}: {key!r} is a dataset of the file, and the name in Files(key={key!r}). Choose "
                    "another key."
                )
            columns = [key, *columns]
        return Listing(tuple(columns), refused)

    def column(self, name: str) -> RowColumn | DatasetColumn:
        if name == self._kind.key:
            return name_column(name, self._path, self._kind)
        if (single := self._columns.single(name)) is not None:
            return RowColumn(name, single)
        if (data := self._columns.bytes_of(name)) is not None:
            return DatasetColumn(name, Stored.of(data), data)
        values = self._columns.values(name)
        if values.array.kind in _OF_ROWS:
            raise UnsupportedColumnError(
                f"{self._path}: column {name!r} has values of varying length, a list for each index of its first axis: "
                "a row of Files would be rows of rows. Leave rows= out to read these rows one by one, or leave the "
                "column out with columns=[...]."
            )
        joined = self._joined(name, values.array)
        values, entries = self._columns.described.of_datasets(name, values, joined)
        column = DatasetColumn(name, values, joined, entries=entries)
        return text_or_whole(column, self._path, decode_cf=self._columns.decode_cf)

    def _has_steps_of_rows(self, name: str) -> bool:
        """Return whether the rows of a file are steps of a column: whole rows of varying length are none of `Files`."""
        if self._windows is None or self._is_timed or self._columns.single(name) is not None:
            return False
        return self._columns.values(name).array.kind in _OF_ROWS

    def _joined(self, name: str, array: ColumnLayout) -> JoinedArray:
        """Return a column as a joined array of one dataset, which it is."""
        if name not in self._known:
            shapes, none = np.array([array.shape], np.int64), np.array([-1])
            self._known[name] = JoinedArray(name, _PATH, (array,), np.zeros(1, np.int32), shapes, none)
        return self._known[name]

    # Episodes: each file is one -----------------------------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        assert self._windows is not None
        found: dict[str, int] = {}
        for name in names:
            joined = None if self._columns.single(name) is not None else self._listed(name)
            if joined is None:
                raise UnsupportedColumnError(
                    f"{self._path}: Windows: column {name!r} has a single value, and no axis of time. Leave it out of "
                    "the offsets: each row then has the value of its file."
                )
            found[name] = int(joined.lengths[0])
        first = next(iter(found))
        for name, length in found.items():
            if length != found[first] and self._windows.episode_length != "min":
                raise SchemaMismatchError(
                    f"{self._path}: {first!r} has {found[first]} steps, and {name!r} has {length}. Pass "
                    "episode_length='min' to use the steps that both have."
                )
        return np.array([min(found.values())], np.int64)

    def _listed(self, name: str) -> JoinedArray:
        return self._joined(name, self._columns.values(name).array)

    def steps(self, name: str) -> Steps:
        return self._recording(name)

    def is_constant(self, name: str) -> bool:
        assert self._windows is not None
        if name == self._kind.key or self._columns.single(name) is not None or self._is_timed:
            return name == self._kind.key or self._columns.single(name) is not None
        self._listed(name)
        table = RowTable(GroupTable(_PATH, self._known, {}))
        return not has_steps(name, [(self._path, table)], self._windows)

    def constant(self, name: str) -> RowColumn | DatasetColumn:
        return self.column(name)

    def episode_names(self) -> np.ndarray:
        return objects([b""])


_PATH = Paths(Texts.of([b""]))


def name_column(
    name: str, path: str, kind: Files | Patches, units_of: Callable[[np.ndarray], np.ndarray] | None = None
) -> RowColumn:
    """Return a column with the name of a file, without its extension, after as many folders as `kind` says."""
    there = PurePosixPath(path)
    named = "/".join((*there.parts[:-1], there.stem)[-1 - kind._folders :])
    key = objects([named.encode("utf-8", "surrogateescape")])
    return RowColumn(name, InMemory.of(name, "string", lambda rows: key[rows], np.dtype(object)), units_of)
