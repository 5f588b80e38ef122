"""Rows that are blocks of arrays of a file, or of several groups of it, which may differ in shape."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.ragged.range_columns import OfParts
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import Decoded, InMemory, Values
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import GroupTable
from ray_h5.per_process import cached_property
from ray_h5.rows.kinds.group_and_file_rows import name_column
from ray_h5.rows.kinds.patch_positions import Blocks, Positions
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_columns import RowColumn, RowsOfKind


class PatchRows(RowsOfKind):
    """Blocks of the arrays of one file, or of its groups: those of a group follow those of the group before.

    Parameters
    ----------
    whole : Blocks
        The arrays of the file as one part.
    table : RowTable, optional
        What is known.
    name : str
        The name of the file, which draws depend on.
    """

    def __init__(self, whole: Blocks, table: RowTable | None, name: str) -> None:
        self._whole, self._columns, self._kind, self._name = whole, whole.columns, whole.kind, name
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
        """The arrays of each part."""
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
        blocks = zip(columns, chosen, names, strict=True)
        return [Blocks(part, self._kind, of_part, name) for part, of_part, name in blocks]

    def _of_each(self, name: str, of: Callable[[Blocks, str], Any]) -> list[Any]:
        """Return what `of` returns of a column in each part."""
        values: list[Any] = []
        for part in self._parts:
            try:
                values.append(of(part, name))
            except UnknownColumnError:
                layout = self._columns.reader.layout
                paths = {*layout.columns, *layout.refused} if self._kind.has_groups else ()
                having = (part for part in self._parts if f"{part.name}/{name.strip('/')}" in paths)
                other = self._parts[0] if values else next(having, None)
                if other is None:
                    raise
                of(other, name)  # it may have an error of its own
                raise SchemaMismatchError(
                    f"{self._columns.path}: group {part.name!r} lacks {name!r}, which group {other.name!r} has. Choose "
                    "groups that agree with groups= of Patches, or leave the column out with columns=[...]."
                ) from None
        return values

    # Rows -----------------------------------------------------------------------------------------

    @cached_property
    def _positions(self) -> Positions:
        """Where the blocks of all parts are."""
        for name in self._kind.arrays:
            self._of_each(name, Blocks.values_of)
        return Positions(self._kind, self._parts, self._name)

    @property
    def num_rows(self) -> int:
        return int(self._positions.starts[-1])

    @property
    def table(self) -> RowTable:
        rows = zip(self._parts, np.diff(self._positions.starts).tolist(), strict=True)
        drawn_in = {part.drawn_in: count for part, count in rows} if self._kind.is_drawn else {}
        table = self._columns.table(entries=drawn_in, groups=self._groups if self._kind.has_groups else None)
        if (chosen := self._positions.chosen) is None:
            return table
        counts = np.array([len(of_part) for of_part in chosen], np.int64) if self._kind.has_groups else None
        return replace(table, chosen=np.concatenate(chosen), chosen_counts=counts)

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._positions.of(rows)[0]

    def episode_names(self) -> np.ndarray:
        if not self._kind.has_groups:
            return objects([b""])
        return self._groups.names.groups.take(np.arange(len(self._groups)))

    # Columns --------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        listing, first = Listing(self._names()), self._parts[0]
        own = [Patches.corner, *([] if self._kind.key is None else [self._kind.key])]
        _ = self._positions  # of arrays that all parts have
        for name in self._kind.shapes:
            if not first.fields(name):
                self.column(name)  # whose error is none of a column that is left out
        arrays = dict.fromkeys([*listing.names, *self._kind.shapes])
        names = (field for array in arrays for field in first.fields(array) or [array])
        return Listing((*own, *names))

    def _names(self) -> tuple[str, ...]:
        """Return the names of what may be columns: first those of the first group."""
        if not self._kind.has_groups:
            listing = self._columns.listing()
            return (*listing.names, *listing.refused)
        layout, first = self._columns.reader.layout, self._parts[0]
        paths = [*layout.columns, *layout.refused]
        if self._mapping:
            return tuple(name for name in self._mapping if first.columns.path_of(name) in paths)
        names: dict[str, list[str]] = {group: [] for group in self._groups.names}
        for path in paths:
            above = itertools.accumulate(path.split("/")[:-1], "{}/{}".format)
            if (group := next((group for group in above if group in names), None)) is not None:
                names[group].append(path[len(group) + 1 :])
        return tuple(dict.fromkeys(itertools.chain(*names.values())))

    def adds(self, name: str) -> str | None:
        said = "Patches adds. Pass another key=, or choose a group without that dataset with group="
        return said if name in {Patches.corner, self._kind.key} else None

    def has(self, name: str) -> bool:
        if not self._kind.has_groups or name in self._columns.made:
            return self._columns.is_there(name)
        known = self._mapping or self._columns.group_table(self._kind.groups or {}, [name]).columns
        return name in known

    def column(self, name: str) -> RowColumn:
        if name == Patches.corner:
            corners = InMemory.of(name, self._positions.corners, np.int64, (len(self._kind.block),))
            return RowColumn(name, corners, draws_rows=self._kind.is_drawn)
        if name == self._kind.key:
            if not self._kind.has_groups:
                return name_column(name, self._columns.path, self._kind, np.zeros_like)
            return RowColumn(name, InMemory.of(name, self._groups.names.groups.take, object), self.episodes_of)
        if (single := self._single(name)) is not None:
            return RowColumn(name, single, self.episodes_of)
        positions = self._positions  # of arrays that all parts have
        blocks = self._of_each(name, Blocks.values_or_single)
        self._check_alike(name, blocks)
        values = OfParts(name, (*blocks,), positions.part_of) if len(blocks) > 1 else blocks[0]
        return RowColumn(name, values, positions.places, draws_rows=self._kind.is_drawn)

    def _single(self, name: str) -> Values | None:
        """Return a dataset with a single value in each part; None for others."""
        if not self._kind.has_groups:
            return self._parts[0].single(name)
        dataset = self._columns.dataset_of(name).strip("/")
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
        return self._columns.decoded(joined_array)

    def _check_alike(self, name: str, blocks: Sequence[Values]) -> None:
        """Raise unless the blocks of all groups have one dtype and shape. Attributes may make others of a dtype."""
        first = blocks[0].array
        is_decoded = first.kind == "number" and any(isinstance(block, Decoded) for block in blocks)
        for group, column in enumerate(blocks[1:], start=1):
            other, axes, names = column.array, self._parts[group].axes, self._groups.names
            if axes != self._parts[0].axes:
                array = next(array for array in axes if axes[array] != self._parts[0].axes[array])
                raise OptionError(
                    f"{self._columns.path}: Patches: blocks cut the axes {self._parts[0].axes[array]} of {array!r} in "
                    f"group {names[0]!r}, and {axes[array]} in {names[group]!r}: say which with "
                    f"axes={{{array!r}: {self._parts[0].axes[array]}}}"
                )
            same = other.kind == first.kind and other.row_shape == first.row_shape and other.enum == first.enum
            if not same or (other.dtype != first.dtype and not is_decoded):
                raise SchemaMismatchError(
                    f"{self._columns.path}: column {name!r}: group {names[0]!r} has blocks of {first.dtype} of shape "
                    f"{first.row_shape}, and group {names[group]!r} of {other.dtype} of shape {other.row_shape}. "
                    "Choose groups that agree with groups= of Patches, or leave the column out with columns=[...]."
                )
