"""Rows that are blocks of arrays in several groups of a file, which may differ in shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.end_to_end import EndToEnd
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.made_columns import MadeColumn
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import InMemory
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.groups.groups import GroupPattern
from ray_h5.hdf5.tree.tree import FROM_ROOT
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray
from ray_h5.manifest.layout import ColumnLayout, Encoding, FileLayout, Form
from ray_h5.manifest.row_requests import by_part
from ray_h5.read.reader import RowReader
from ray_h5.rows.kinds.patch_rows import PatchRows, tried
from ray_h5.rows.patches import Patches
from ray_h5.rows.row_columns import RowColumn
from ray_h5.rows.row_kinds import EpisodeRows, RowsOfKind

Item = TypeVar("Item")


class GroupReader:
    """A file, with names below one of its groups. Layouts have whole paths, by which the file reads them.

    Parameters
    ----------
    reader : RowReader
        The open file. It does whatever is not of names.
    group : str
        The group.
    paths : mapping of str to str
        The datasets of names that are in no one group; empty if all are below `group`.
    """

    form: Form = ""
    """A group follows no convention of whole files."""

    def __init__(self, reader: RowReader, group: str, paths: Mapping[str, str]) -> None:
        self._reader = reader
        self._group = group
        self._paths = paths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def _path(self, name: str) -> str:
        return self._paths.get(name) or (name if name.startswith(FROM_ROOT) else f"{self._group}/{name.strip('/')}")

    def _below(self, paths: Mapping[str, Item]) -> dict[str, Item]:
        if self._paths:
            return {name: paths[path] for name, path in self._paths.items() if path in paths}
        begin = f"{self._group}/"
        return {path[len(begin) :]: each for path, each in paths.items() if path.startswith(begin)}

    @property
    def layout(self) -> FileLayout:
        found = self._reader.layout
        return replace(found, columns=self._below(found.columns), refused=self._below(found.refused))

    def find(self, names: Sequence[str], *, missing_ok: bool = False) -> dict[str, ColumnLayout]:
        found = self._reader.find([self._path(name) for name in names], missing_ok=missing_ok)
        return {name: found[path] for name in names if (path := self._path(name)) in found}

    def column(self, name: str) -> ColumnLayout:
        return self.find([name])[name]

    def encoding(self, name: str) -> Encoding | None:
        found, begin = self._reader.encoding(self._path(name)), f"{self._group}/"
        if found is None:
            return None
        return replace(found, values=found.values.removeprefix(begin), other=found.other.removeprefix(begin))

    def single(self, name: str) -> JoinedArray | None:
        return self._reader.single(self._path(name))

    def group_table(
        self, pattern: GroupPattern, columns: Sequence[str] | None = None
    ) -> tuple[GroupTable, Mapping[str, RayH5Error]]:
        assert isinstance(pattern.pattern, str)
        return self._reader.group_table(replace(pattern, pattern=self._path(pattern.pattern)), columns)

    def read_whole(self, name: str, value_bytes: int = 0) -> np.ndarray:
        return self._reader.read_whole(self._path(name), value_bytes)

    def fact(self, key: str, make: Callable[[], np.ndarray], *, of_file: bool = False) -> np.ndarray:
        return self._reader.fact(f"{self._group}: {key}", make, of_file=of_file)


class PatchesOfGroups(EpisodeRows, RowsOfKind):
    """Blocks of the arrays of the groups of one file: those of a group follow those of the group before.

    Parameters
    ----------
    reader : RowReader
        The open file.
    kind : Patches
        Which groups, and which blocks.
    table : RowTable, optional
        What is known.
    columns : sequence of MadeColumn
        The columns that the user described.
    decode_cf : bool
        Whether attributes of datasets say what their values mean.
    name : str
        The name of the file, which draws depend on.
    """

    def __init__(
        self,
        reader: RowReader,
        kind: Patches,
        table: RowTable | None,
        columns: Sequence[MadeColumn] = (),
        *,
        decode_cf: bool = False,
        name: str,
    ) -> None:
        self._reader = reader
        self._kind = kind
        self._name = name
        self._made = columns
        self._decode_cf = decode_cf
        self._known = RowTable() if table is None else table
        self._table = self._known.groups

    # The groups, and the rows of each -----------------------------------------------------------

    @property
    def _groups(self) -> GroupTable:
        if self._table is None:
            table = self._found([*self._mapping])
            if table.columns and not self._mapping:
                name = next(iter(self._kind.arrays))
                raise UnsupportedColumnError(
                    f"{self._reader.path}: Patches: groups={self._kind.groups!r} matches datasets, such as "
                    f"{table.names[0]!r}; expected a pattern of groups, whose datasets are named in shapes=. For "
                    f"blocks of these datasets, pass groups={ {name: self._kind.groups}!r}"
                )
            self._table = table
        return self._table

    @property
    def _mapping(self) -> Mapping[str, str]:
        """The patterns of datasets, by name; empty if a pattern is of groups."""
        return self._kind.groups if isinstance(self._kind.groups, Mapping) else {}

    def _found(self, names: Sequence[str]) -> GroupTable:
        """Return the groups with their datasets of these names."""
        given = self._kind.groups
        assert given is not None
        pattern = GroupPattern(given if isinstance(given, str) else tuple(given.items()))
        try:
            table, _ = self._reader.group_table(pattern, names)
        except SchemaMismatchError as exc:  # None stands for no value of a row, and blocks have all of them
            said, given, _ = str(exc).partition("; or pass missing=")
            if not given:
                raise
            raise SchemaMismatchError(f"{said}.") from None
        return table

    @cached_property
    def _parts(self) -> list[PatchRows]:
        """The blocks of each group."""
        names = list(self._groups.names)
        joined = {name: self._groups.columns[name] for name in self._mapping}
        paths = [{name: each.paths[row] for name, each in joined.items()} for row in range(len(names))]
        if self._reader.learns:  # what a store is asked of all groups is asked together
            with contextlib.suppress(RayH5Error):  # reported for each group
                asked = [
                    of_group.get(each, f"{name}/{each}")
                    for name, of_group in zip(names, paths, strict=True)
                    for each in self._kind.arrays
                ]
                self._reader.find(asked, missing_ok=True)
        chosen: Sequence[np.ndarray | None] = [None] * len(names)
        if self._known.chosen is not None and self._known.chosen_counts is not None:
            chosen = np.split(self._known.chosen, np.cumsum(self._known.chosen_counts)[:-1])
        return [self._part(*each) for each in zip(names, paths, chosen, strict=True)]

    def _part(self, group: str, paths: Mapping[str, str], chosen: np.ndarray | None) -> PatchRows:
        below = cast("RowReader", GroupReader(self._reader, group, paths))
        columns = FileColumns(below, self._made, decode_cf=self._decode_cf, looks_first=False)
        return PatchRows(self._reader, columns, self._kind, chosen, self._name, group)

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first row of each group, and the number of rows: int64."""
        counts = [0]
        for group, part in enumerate(self._parts):
            try:
                counts.append(part.num_rows)
            except UnknownColumnError as exc:
                if not group:
                    raise
                raise self._odd_group(exc) from None
        return np.cumsum(np.array(counts, np.int64))

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    def _odd_group(self, error: UnknownColumnError) -> SchemaMismatchError:
        """Return the error of a group that lacks an array which the first one has."""
        return SchemaMismatchError(f"{error} Choose groups that agree with groups= of Patches.")

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the group of each row, and its number there; rows of a later draw follow those of the one before."""
        draws, rows = np.divmod(rows, max(self.num_rows, 1))
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        return groups, rows - self._starts[groups] + draws * np.diff(self._starts)[groups]

    def _of_parts(self, rows: np.ndarray, of: Callable[[int, np.ndarray], np.ndarray], *shape: int) -> np.ndarray:
        """Return numbers of rows, which `of` returns for a group and rows of it: int64."""
        found = np.empty((len(rows), *shape), np.int64)
        groups, own = self._places(rows)
        for group, places in by_part(groups):
            found[places] = of(group, own[places])
        return found

    @property
    def table(self) -> RowTable:
        drawn_in = {said: count for part in self._parts for said, count in part.drawn_in.items()}
        if self._kind.where_any is None:
            return RowTable(self._groups, entries=drawn_in)
        chosen = [part.chosen for part in self._parts]
        counts = np.array([len(each) for each in chosen], np.int64)
        return RowTable(self._groups, chosen=np.concatenate(chosen), entries=drawn_in, chosen_counts=counts)

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._places(rows)[0]

    def episode_names(self) -> np.ndarray:
        return self._groups.names.groups.take(np.arange(len(self._groups)))

    # Columns --------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        found = self._parts[0].listing()
        columns, errors = tried(found.names, self.column, self._kind)
        refused = {**found.refused, **errors}
        for name, group in ({} if self._mapping else self._of_others(found)).items():
            refused[name] = self._error_of(name, group)
        return Listing((*columns,), refused)

    def _of_others(self, first: Listing) -> dict[str, int]:
        """Return the names of what other groups have and the first one lacks, and the first group with each."""
        known, numbers = {*first.names, *first.refused}, {group: at for at, group in enumerate(self._groups.names)}
        found: dict[str, int] = {}
        layout = self._reader.layout
        for path in (*layout.columns, *layout.refused):
            at = path.find("/")
            while at >= 0 and path[:at] not in numbers:
                at = path.find("/", at + 1)
            if at < 0 or (name := path[at + 1 :]) in known:
                continue
            if not any(each.startswith(f"{name}/") for each in known):  # compound values, of which fields are columns
                found.setdefault(name, numbers[path[:at]])
        return found

    def _error_of(self, name: str, group: int) -> RayH5Error:
        try:
            self._parts[group].column(name)
        except RayH5Error as exc:
            return exc
        names = self._groups.names
        return SchemaMismatchError(
            f"{self._reader.path}: group {names[0]!r} lacks {name!r}, which group {names[group]!r} has. Choose "
            "groups that agree with groups= of Patches, or leave the column out with columns=[...]."
        )

    def column(self, name: str) -> RowColumn:
        if name == Patches.corner:
            axes = len(self._kind.block)

            def corners(rows: np.ndarray) -> np.ndarray:
                return self._of_parts(rows, lambda group, own: self._parts[group].corners(own), axes)

            return RowColumn(name, InMemory.of(name, "number", corners, np.dtype(np.int64), (axes,)))
        if name == self._kind.key:
            names = self._groups.names.groups
            values = InMemory.of(name, "string", names.take, np.dtype(object))
            return RowColumn(name, values, self.episodes_of)
        if (single := self._single(name)) is not None:
            return RowColumn(name, Stored.of(single), self.episodes_of)
        return self._joined(name)

    def _single(self, name: str) -> JoinedArray | None:
        """Return a dataset with a single value in each group; None for others."""
        first = self._parts[0]
        dataset = first.dataset_of(name)
        if dataset in self._mapping and not self._groups.columns[dataset].single:
            return None
        if dataset not in self._groups.columns:
            if not first.has_single(name):
                return None
            first.column(name)  # a part of a single value is an error
            self._table = self._groups.merged(self._found([dataset]))
        found = self._groups.columns.get(dataset)
        if found is None or not found.single:
            raise UnsupportedColumnError(
                f"{self._reader.path}: {name!r} has a single value in group {self._groups.names[0]!r}, and not in all "
                "others. Choose groups that agree with groups= of Patches, or leave it out with columns=[...]."
            )
        return found

    def _joined(self, name: str) -> RowColumn:
        """Return a column of blocks."""
        columns = [self._parts[0].column(name)]
        for part in self._parts[1:]:
            try:
                columns.append(part.column(name))
            except UnknownColumnError as exc:
                raise self._odd_group(exc) from None
        self._check_alike(name, columns)
        starts = np.cumsum(np.array([0, *(each.values.array.num_rows for each in columns)], np.int64))

        def units_of(rows: np.ndarray) -> np.ndarray:
            return self._of_parts(rows, lambda group, own: starts[group] + self._parts[group].units(own))

        return RowColumn(name, EndToEnd(name, tuple(each.values for each in columns), starts), units_of)

    def _check_alike(self, name: str, columns: Sequence[RowColumn]) -> None:
        """Raise unless the blocks of all groups have one dtype and shape. Attributes may make others of a dtype."""
        first, names = columns[0].values.array, self._groups.names
        is_decoded = first.kind == "number" and any(isinstance(each.values, CF) for each in columns)
        for group, column in enumerate(columns):
            each, axes = column.values.array, self._parts[group].axes
            if axes != self._parts[0].axes:
                other = next(array for array in axes if axes[array] != self._parts[0].axes[array])
                raise OptionError(
                    f"{self._reader.path}: Patches: blocks cut the axes {self._parts[0].axes[other]} of {other!r} in "
                    f"group {names[0]!r}, and {axes[other]} in {names[group]!r}: say which with "
                    f"axes={{{other!r}: {self._parts[0].axes[other]}}}"
                )
            same = each.kind == first.kind and each.row_shape == first.row_shape and each.enum == first.enum
            if not same or (each.dtype != first.dtype and not is_decoded):
                raise SchemaMismatchError(
                    f"{self._reader.path}: column {name!r}: group {names[0]!r} has blocks of {first.dtype} of shape "
                    f"{first.row_shape}, and group {names[group]!r} of {each.dtype} of shape {each.row_shape}. Choose "
                    "groups that agree with groups= of Patches, or leave the column out with columns=[...]."
                )
