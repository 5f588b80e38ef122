"""Rows that are blocks of arrays of a file, or of several groups of it, which may differ in shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.ragged.range_columns import OfParts
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import InMemory, Values
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import GroupTable
from ray_h5.manifest.row_requests import by_part
from ray_h5.rows.kinds.group_and_file_rows import name_column
from ray_h5.rows.kinds.patch_positions import Blocks
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_columns import EpisodeRows, RowColumn, RowsOfKind


class PatchRows(EpisodeRows, RowsOfKind):
    """Blocks of the arrays of one file, or of its groups: those of a group follow those of the group before.

    Parameters
    ----------
    whole : Blocks
        The blocks of the file as one part.
    table : RowTable, optional
        What is known.
    """

    def __init__(self, whole: Blocks, table: RowTable | None) -> None:
        self._whole, self._columns, self._kind = whole, whole.columns, whole.kind
        self._known = RowTable() if table is None else table
        self._table = self._known.groups

    # Parts: the file, or its groups ---------------------------------------------------------------

    @property
    def _groups(self) -> GroupTable:
        if self._table is None:
            table = self._columns.group_table(self._kind.groups or {}, [*self._mapping])
            if table.columns and not self._mapping:
                name = next(iter(self._kind.arrays))
                raise UnsupportedColumnError(
                    f"{self._columns.path}: Patches: groups={self._kind.groups!r} matches datasets, such as "
                    f"{table.names[0]!r}; expected a pattern of groups, whose datasets are named in shapes=. For "
                    f"blocks of these datasets, pass groups={ {name: self._kind.groups}!r}"
                )
            self._table = table
        return self._table

    @property
    def _mapping(self) -> Mapping[str, str]:
        """The patterns of datasets, by name; empty if a pattern is of groups."""
        return self._kind.groups if isinstance(self._kind.groups, Mapping) else {}

    @cached_property
    def _parts(self) -> list[Blocks]:
        """The blocks of each part."""
        if not self._kind.has_groups:
            return [self._whole]
        names = list(self._groups.names)
        of_mapping = {name: self._groups.columns[name].paths for name in self._mapping}
        columns = [
            self._columns.below(group, {name: paths[row] for name, paths in of_mapping.items()})
            for row, group in enumerate(names)
        ]
        if self._columns.reader.is_fetched:  # what a store is asked of all groups is asked together
            asked = [of_group.path_of(array) for of_group in columns for array in self._kind.arrays]
            with contextlib.suppress(RayH5Error):  # reported for each group
                self._columns.reader.find(asked, missing_ok=True)
        chosen: Sequence[np.ndarray | None] = [None] * len(names)
        if self._known.chosen is not None and self._known.chosen_counts is not None:
            chosen = np.split(self._known.chosen, np.cumsum(self._known.chosen_counts)[:-1])
        return [self._whole.of_group(*part) for part in zip(columns, names, chosen, strict=True)]

    def _of_each(self, of: Callable[[Blocks], Any]) -> list[Any]:
        """Return something of each part."""
        values = []
        for part in self._parts:
            try:
                values.append(of(part))
            except UnknownColumnError as exc:
                if not values:
                    raise
                raise SchemaMismatchError(f"{exc} Choose groups that agree with groups= of Patches.") from None
        return values

    # Rows -----------------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first row of each part, and the number of rows: int64."""
        counts = [0, *self._of_each(lambda part: part.num_rows)]
        return np.cumsum(np.array(counts, np.int64))

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    @property
    def table(self) -> RowTable:
        drawn_in = {said: count for part in self._parts for said, count in part.drawn_in.items()}
        table = self._columns.table(entries=drawn_in, groups=self._groups if self._kind.has_groups else None)
        if self._kind.where_any is None:
            return table
        chosen = [part.chosen for part in self._parts]
        counts = np.array([len(chosen_rows) for chosen_rows in chosen], np.int64) if self._kind.has_groups else None
        return replace(table, chosen=np.concatenate(chosen), chosen_counts=counts)

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the part of each row, and its number there; rows of a later draw follow those of the one before."""
        draws, rows = np.divmod(rows, max(self.num_rows, 1))
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        return parts, rows - self._starts[parts] + draws * np.diff(self._starts)[parts]

    def _of_parts(self, rows: np.ndarray, of: Callable[[int, np.ndarray], np.ndarray], *shape: int) -> np.ndarray:
        """Return numbers of rows, which `of` returns for a part and rows of it: int64."""
        if len(self._parts) == 1:
            return of(0, rows)
        units = np.empty((len(rows), *shape), np.int64)
        parts, own = self.places(rows)
        for part, places in by_part(parts):
            units[places] = of(part, own[places])
        return units

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self.places(rows)[0]

    def episode_names(self) -> np.ndarray:
        if not self._kind.has_groups:
            return objects([b""])
        return self._groups.names.groups.take(np.arange(len(self._groups)))

    # Columns --------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        names = self._names()
        own = [Patches.corner, *([] if self._kind.key is None else [self._kind.key])]
        if doubles := [name for name in own if name in names]:
            raise OptionError(
                f"{self._columns.path}: {doubles[0]!r} is a dataset of the file, and a column that Patches adds. Pass "
                "another key=, or choose a group without that dataset with group=."
            )
        columns, refused = [*own], dict[str, Exception]()
        first, known = self._parts[0], dict.fromkeys([*names, *self._kind.shapes])
        for name in (field for array in known for field in first.fields(array) or [array]):
            try:
                self.column(name)
            except RayH5Error as exc:
                if name in self._kind.shapes:
                    raise
                refused[name] = exc
            else:
                columns.append(name)
        if self._kind.has_groups and not self._mapping:
            others = self._of_others({*columns, *refused})
            refused |= {name: self._error_of(name, group) for name, group in others.items()}
        return Listing((*columns,), refused)

    def _names(self) -> list[str]:
        """Return the names of what may be columns."""
        if not self._kind.has_groups:
            listing = self._columns.listing()
            return [*listing.names, *listing.refused]
        layout, first = self._columns.reader.layout, self._parts[0]
        paths = [*layout.columns, *layout.refused]
        if self._mapping:
            return [name for name in self._mapping if first.columns.path_of(name) in paths]
        begin = f"{self._groups.names[0]}/"
        return [path[len(begin) :] for path in paths if path.startswith(begin)]

    def _of_others(self, known: set[str]) -> dict[str, int]:
        """Return the names of what other groups have and the first one lacks, and the first group with each."""
        numbers = {group: at for at, group in enumerate(self._groups.names)}
        others: dict[str, int] = {}
        layout = self._columns.reader.layout
        for path in (*layout.columns, *layout.refused):
            at = path.find("/")
            while at >= 0 and path[:at] not in numbers:
                at = path.find("/", at + 1)
            if at < 0 or (name := path[at + 1 :]) in known:
                continue
            if not any(
                column.startswith(f"{name}/") for column in known
            ):  # compound values, of which fields are columns
                others.setdefault(name, numbers[path[:at]])
        return others

    def _error_of(self, name: str, group: int) -> RayH5Error:
        try:
            _ = self._parts[group].single(name) or self._parts[group].values(name)
        except RayH5Error as exc:
            return exc
        names = self._groups.names
        return SchemaMismatchError(
            f"{self._columns.path}: group {names[0]!r} lacks {name!r}, which group {names[group]!r} has. Choose "
            "groups that agree with groups= of Patches, or leave the column out with columns=[...]."
        )

    def column(self, name: str) -> RowColumn:
        if name == Patches.corner:
            axes = len(self._kind.block)

            def corners(rows: np.ndarray) -> np.ndarray:
                return self._of_parts(rows, lambda part, own: self._parts[part].corners(own), axes)

            return RowColumn(name, InMemory.of(name, corners, np.int64, (axes,)))
        if name == self._kind.key:
            if not self._kind.has_groups:
                return name_column(name, self._columns.path, self._kind, np.zeros_like)
            return RowColumn(name, InMemory.of(name, self._groups.names.groups.take, object), self.episodes_of)
        if (single := self._single(name)) is not None:
            return RowColumn(name, single, self.episodes_of)
        blocks = self._of_each(lambda part: part.values(name))
        self._check_alike(name, blocks)
        starts = np.cumsum(np.array([0, *(block.array.num_rows for block in blocks)], np.int64))

        def units_of(rows: np.ndarray) -> np.ndarray:
            return self._of_parts(rows, lambda part, own: starts[part] + self._parts[part].units(own))

        return RowColumn(name, OfParts.end_to_end(name, blocks, starts) if len(blocks) > 1 else blocks[0], units_of)

    def _single(self, name: str) -> Values | None:
        """Return a dataset with a single value in each part; None for others."""
        if not self._kind.has_groups:
            return self._parts[0].single(name)
        made = self._columns.made.get(name.strip("/"))
        dataset = (name if made is None else made.dataset).strip("/")
        if dataset in self._mapping and not self._groups.columns[dataset].single:
            return None
        if dataset not in self._groups.columns:
            if self._parts[0].single(name) is None:  # a part of a single value is an error
                return None
            self._table = self._groups.merged(self._columns.group_table(self._kind.groups or {}, [dataset]))
        joined_array = self._groups.columns.get(dataset)
        if joined_array is None or not joined_array.single:
            raise UnsupportedColumnError(
                f"{self._columns.path}: {name!r} has a single value in group {self._groups.names[0]!r}, and not in all "
                "others. Choose groups that agree with groups= of Patches, or leave it out with columns=[...]."
            )
        return Stored.of(joined_array)

    def _check_alike(self, name: str, blocks: Sequence[Values]) -> None:
        """Raise unless the blocks of all groups have one dtype and shape. Attributes may make others of a dtype."""
        first = blocks[0].array
        is_decoded = first.kind == "number" and any(isinstance(block, CF) for block in blocks)
        for group, column in enumerate(blocks[1:], start=1):
            each, axes, names = column.array, self._parts[group].axes, self._groups.names
            if axes != self._parts[0].axes:
                other = next(array for array in axes if axes[array] != self._parts[0].axes[array])
                raise OptionError(
                    f"{self._columns.path}: Patches: blocks cut the axes {self._parts[0].axes[other]} of {other!r} in "
                    f"group {names[0]!r}, and {axes[other]} in {names[group]!r}: say which with "
                    f"axes={{{other!r}: {self._parts[0].axes[other]}}}"
                )
            same = each.kind == first.kind and each.row_shape == first.row_shape and each.enum == first.enum
            if not same or (each.dtype != first.dtype and not is_decoded):
                raise SchemaMismatchError(
                    f"{self._columns.path}: column {name!r}: group {names[0]!r} has blocks of {first.dtype} of shape "
                    f"{first.row_shape}, and group {names[group]!r} of {each.dtype} of shape {each.row_shape}. Choose "
                    "groups that agree with groups= of Patches, or leave the column out with columns=[...]."
                )
