"""Rows that are blocks of arrays of a file, or of several groups of it, which may differ in shape."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.ragged.range_columns import OfParts, Ranges
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import Decoded, InMemory, Values
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.lru import LRU
from ray_h5.manifest.file_table import digest_of
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.merged_facts import Facts
from ray_h5.per_process import cached_property
from ray_h5.rows.kinds.group_and_file_rows import name_column
from ray_h5.rows.kinds.patch_positions import Blocks, Positions, axes_of, lengths_along
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_columns import RowColumn, RowsOfKind
from ray_h5.rows.row_kind_options import group_pattern

_MOST_MADE = 1 << 10
"""Groups whose arrays are known to a reader at a time."""

_MOST_PLACES = float(1 << 63) * (1 - 1e-9)
"""Places that int64 numbers, less what sums of floats may be wrong by."""

_HERE = frozenset({"contiguous", "chunked", "compact"})
"""How datasets are stored whose values are in the file itself."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """How blocks cut the arrays of each part.

    Attributes
    ----------
    ways : sequence of dict
        The axes that are cut, by array: each way once.
    way_of, extents : numpy.ndarray
        int64: the way of each part, and the lengths of these axes, of shape (parts, axes).
    """

    ways: Sequence[Mapping[str, tuple[int, ...]]]
    way_of: np.ndarray
    extents: np.ndarray

    @classmethod
    def of(cls, ways: Sequence[Mapping[str, tuple[int, ...]]], extents: Sequence[tuple[int, ...]]) -> _Cut:
        """Return how blocks cut parts, given the way and the extents of each."""
        different: list[Mapping[str, tuple[int, ...]]] = []
        for way in ways:
            if way not in different:
                different.append(way)
        return cls(different, np.array([different.index(way) for way in ways]), np.array(extents, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class PatchesFound(Facts):
    """What is found out once of the blocks of a file.

    Attributes
    ----------
    chosen : numpy.ndarray, optional
        int64: the blocks or cells that hold a class.
    counts : numpy.ndarray, optional
        int64: with groups, how many of these each group has.
    drawn_in : mapping of str to int
        What blocks are drawn in, and how many are.
    """

    chosen: np.ndarray | None = None
    counts: np.ndarray | None = None
    drawn_in: Mapping[str, int] = field(default_factory=dict)


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
        self._has_groups = whole.kind.has_groups
        self._known = PatchesFound() if table is None else table.found(PatchesFound)
        self._table = None if table is None else table.groups
        self._made: LRU[Blocks] = LRU(_MOST_MADE)

    # Parts: the file, or its groups ---------------------------------------------------------------

    @property
    def _groups(self) -> GroupTable:
        if self._table is None:
            arrays = [self._columns.dataset_of(name).strip("/") for name in self._kind.arrays]
            self._table = table = self._look_at([*self._mapping] or arrays)
            if not self._mapping and any(not joined.paths.below for joined in table.columns.values()):
                name = next(iter(self._kind.arrays))
                raise UnsupportedColumnError(
                    f"{self._columns.path}: Patches: groups={self._kind.groups!r} matches datasets, such as "
                    f"{table.names[0]!r}; expected a pattern of groups, whose datasets are named in shapes=. For "
                    f"blocks of these datasets, pass groups={ {name: self._kind.groups}!r}"
                )
        return self._table

    def _look_at(self, names: Sequence[str]) -> GroupTable:
        """Return the groups with datasets of these names; without them where groups do not agree, or in a store.

        What is wrong is reported where each group is looked at by itself.
        """
        if not self._mapping and self._columns.reader.is_fetched:  # a manifest has the datasets of each group
            return self._table_of([])
        try:
            return self._table_of(names)
        except RayH5Error:
            if self._mapping:
                raise
            return self._table_of([])

    def _table_of(self, names: Sequence[str]) -> GroupTable:
        """Return the groups, with datasets of these names."""
        return self._columns.group_table(group_pattern(self._kind.groups, exclude=tuple(self._kind.exclude)), names)

    @property
    def _mapping(self) -> Mapping[str, str]:
        """The patterns of datasets, by name; empty if a pattern is of groups."""
        return self._kind.groups if isinstance(self._kind.groups, Mapping) else {}

    @property
    def _num_parts(self) -> int:
        return len(self._groups) if self._has_groups else 1

    def _part(self, number: int) -> Blocks:
        """Return the arrays of one part. It is made when it is asked for: a batch has blocks of few groups."""
        if not self._has_groups:
            return self._whole
        if (part := self._made.get(number)) is None:
            group = self._groups.names[number]
            paths = {name: self._groups.columns[name].paths[number] for name in self._mapping}
            known, chosen = self._known_chosen, None
            if known is not None:
                chosen = known[0][known[1].starts[number] : known[1].starts[number + 1]]
            part = Blocks(self._columns.below(group, paths), self._kind, chosen, group)
            self._made.put(number, part)
        return part

    @cached_property
    def _known_chosen(self) -> tuple[np.ndarray, Partition] | None:
        chosen, counts = self._known.chosen, self._known.counts
        return None if chosen is None or counts is None else (chosen, Partition.of(counts))

    def _each(self) -> Iterator[Blocks]:
        if self._has_groups and self._columns.reader.is_fetched:  # what a store is asked of all is asked together
            parts = map(self._part, range(self._num_parts))
            paths = (part.columns.path_of(array) for part in parts for array in self._kind.arrays)
            with contextlib.suppress(RayH5Error):  # reported for each group
                self._columns.reader.find([*paths], missing_ok=True)
        return map(self._part, range(self._num_parts))

    def _of_each(self, name: str, of: Callable[[Blocks, str], Any], numbers: Iterable[int] | None = None) -> list[Any]:
        """Return what `of` returns of a column in each part, or in some."""
        values: list[Any] = []
        for part in self._each() if numbers is None else map(self._part, numbers):
            try:
                values.append(of(part, name))
            except UnknownColumnError:
                layout = self._columns.reader.layout
                paths = {*layout.columns, *layout.refused} if self._has_groups else ()
                having = (part for part in self._each() if f"{part.name}/{name.strip('/')}" in paths)
                other = self._part(0) if values else next(having, None)
                if other is None:
                    raise
                of(other, name)  # it may have an error of its own
                raise SchemaMismatchError(
                    f"{self._columns.path}: group {part.name!r} lacks {name!r}, which group {other.name!r} has. Choose "
                    "groups that agree with groups= of Patches, or leave the column out with columns=[...]."
                ) from None
        return values

    def _joined(self, name: str) -> JoinedArray | None:
        """Return the datasets of a column in all groups, if they are known as one array; None if each is looked at."""
        if not self._has_groups or self._columns.decode_cf:
            return None
        path, known = self._columns.dataset_of(name).strip("/"), self._groups.columns
        levels = itertools.accumulate(path.split("/"), "{}/{}".format)  # a field is below its dataset
        joined = next((known[above] for above in levels if above in known), None)
        if joined is None or joined.single or not joined.is_there.all():
            return None
        return joined if all(of.storage in _HERE and not of.sources for of in joined.layouts) else None

    # Rows -----------------------------------------------------------------------------------------

    @cached_property
    def _cut(self) -> _Cut:
        """Which axes blocks cut in each part, and their lengths."""
        arrays = {name: self._joined(name) for name in self._kind.arrays}
        known = {name: joined for name, joined in arrays.items() if joined is not None}
        if len(known) == len(arrays):
            return self._cut_of_groups(known)
        for name in arrays:
            self._of_each(name, Blocks.values_of)
        each = [(part.axes, part.extents) for part in self._each()]
        return _Cut.of([axes for axes, _ in each], [extents for _, extents in each])

    def _cut_of_groups(self, arrays: Mapping[str, JoinedArray]) -> _Cut:
        """Return how blocks cut the arrays of groups. Groups of equal shapes are looked at once."""
        # Classes of `where_any` may be those of an array in shapes, under the name of a field.
        own = {id(arrays[name]) for name in self._kind.shapes}
        shapes = {
            name: joined.shapes for name, joined in arrays.items() if name in self._kind.shapes or id(joined) not in own
        }
        rows = np.concatenate([*shapes.values()], axis=1)
        _, firsts, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        cuts: dict[int, tuple[dict[str, tuple[int, ...]], tuple[int, ...]]] = {}
        for first in sorted(firsts.tolist()):  # an error names the first group
            where = f"{self._columns.path}: group {self._groups.names[first]!r}"
            way = axes_of(self._kind, {name: tuple(all_of[first].tolist()) for name, all_of in shapes.items()}, where)
            name, axes = next(iter(way.items()))
            cuts[first] = way, lengths_along(shapes[name][first], axes)
        ways, lengths = zip(*(cuts[first] for first in firsts.tolist()), strict=True)
        cut, of = _Cut.of(ways, lengths), of.reshape(-1)
        return _Cut(cut.ways, cut.way_of[of], cut.extents[of])

    @cached_property
    def _chosen(self) -> tuple[np.ndarray, Partition] | None:
        """The blocks or cells of all parts that hold a class, and those of each."""
        if self._kind.where_any is None:
            return None
        if (known := self._known_chosen) is not None:
            return known
        chosen = [part.chosen for part in self._each()]
        return np.concatenate(chosen), Partition.of(np.array([*map(len, chosen)], np.int64))

    @cached_property
    def _chunks(self) -> np.ndarray | None:
        """The lengths of chunks of the first array along the axes that blocks cut, in each part."""
        if not self._kind.align:
            return None
        name = next(iter(self._kind.shapes))
        if (joined := self._joined(name)) is None:
            return np.array([part.chunk for part in self._each()], np.int64)
        whole = [layout.chunk_shape or (1,) * joined.shapes.shape[1] for layout in joined.layouts]
        axes = np.array([way[name] for way in self._cut.ways])[self._cut.way_of]
        return np.take_along_axis(np.array(whole, np.int64)[joined.class_of], axes, axis=1)

    @cached_property
    def _positions(self) -> Positions:
        """Where the blocks of all parts are."""
        extents, names = self._cut.extents, self._groups.names if self._has_groups else [""]
        if extents.prod(axis=1, dtype=np.float64).sum() > _MOST_PLACES:
            raise UnsupportedColumnError(
                f"{self._columns.path}: Patches: arrays of {tuple(extents[0].tolist())} have more places for blocks "
                "than can be numbered. Leave the file out."
            )
        return Positions(self._kind, extents, [self._name, *names], self._chunks, self._chosen)

    @property
    def num_rows(self) -> int:
        return self._positions.rows.num_units

    @property
    def table(self) -> RowTable:
        found = PatchesFound(drawn_in=dict(self._drawn_in()) if self._kind.is_drawn else {})
        if self._chosen is not None:
            chosen, held = self._chosen
            found = replace(found, chosen=chosen, counts=held.lengths if self._has_groups else None)
        return self._columns.table(of_kind=found, groups=self._groups if self._has_groups else None)

    def _drawn_in(self) -> Iterator[tuple[str, int]]:
        """Yield the arrays that blocks of each part are drawn in, with their lengths, and how many are drawn."""
        rows, names = self._positions.rows.lengths.tolist(), self._groups.names if self._has_groups else [""]
        arrays = ", ".join(map(repr, self._kind.arrays))
        for number, (name, extents) in enumerate(zip(names, self._cut.extents.tolist(), strict=True)):
            text = f"{name}{':' * bool(name)}{arrays} of {tuple(extents)}"
            if self._chosen is not None:
                flat, held = self._chosen
                text += f" at places of digest {digest_of(flat[held.starts[number] : held.starts[number + 1]].data)}"
            chunks = "" if self._chunks is None else f" in chunks of {self._chunks[number].tolist()}"
            yield text + chunks, rows[number]

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._positions.of(rows)[0]

    def episode_names(self) -> np.ndarray:
        if not self._has_groups:
            return objects([b""])
        return self._groups.names.groups.take(np.arange(len(self._groups)))

    # Columns --------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        listing, first = Listing(self._names()), self._part(0)
        own = [Patches.corner, *([] if self._kind.key is None else [self._kind.key])]
        _ = self._positions  # of arrays that all parts have
        for name in self._kind.shapes:
            if not first.fields(name):
                self.column(name)  # whose error is none of a column that is left out
        arrays = dict.fromkeys([*listing.names, *self._kind.shapes])
        names = [field for array in arrays for field in first.fields(array) or [array]]
        refused: dict[str, Exception] = {}
        for name in names:
            if (array := self._axes_alone(name)) is not None:
                refused[name] = UnsupportedColumnError(
                    f"{array.where} has shape {array.shape}, with fewer axes than blocks. Name it in columns=[...] to "
                    "get all of it with each block."
                )
        return Listing((*own, *(name for name in names if name not in refused)), refused)

    def _names(self) -> tuple[str, ...]:
        """Return the names of what may be columns: first those of the first group."""
        if not self._has_groups:
            listing = self._columns.listing()
            return (*listing.names, *listing.refused)
        layout, first = self._columns.reader.layout, self._part(0)
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
        if not self._has_groups or name in self._columns.made:
            return self._columns.is_there(name)
        known = self._mapping or self._table_of([name]).columns
        return name in known

    def column(self, name: str) -> RowColumn:
        if name == Patches.corner:
            corners = InMemory.of(name, self._positions.corners, np.int64, (len(self._kind.block),))
            return RowColumn(name, corners, draws_rows=self._kind.is_drawn)
        if name == self._kind.key:
            if not self._has_groups:
                return name_column(name, self._columns.path, self._kind, np.zeros_like)
            return RowColumn(name, InMemory.of(name, self._groups.names.groups.take, object), self.episodes_of)
        if (whole := self._single(name) or self._constant(name)) is not None:
            return RowColumn(name, whole, self.episodes_of)
        positions = self._positions  # of arrays that all parts have
        numbers = self._alike(name)
        blocks = self._of_each(name, Blocks.values_or_single, numbers)
        self._check_alike(name, blocks, numbers)

        def of(number: int) -> Values:
            return self._part(number).values_or_single(name)

        is_one = self._num_parts == 1
        values = blocks[0] if is_one else OfParts(name, (*blocks,), positions.of_places.local, of)
        return RowColumn(name, values, positions.places, draws_rows=self._kind.is_drawn)

    def _axes_alone(self, name: str) -> ValueArray | None:
        """Return the array of a dataset in the first part that has fewer axes than blocks; None for others."""
        first = self._part(0)
        try:
            array = first.values_of(name).array
        except (UnknownColumnError, UnsupportedColumnError):
            return None  # reported as a column of blocks
        return array if len(array.shape) < len(self._kind.block) and not first.is_array(name) else None

    def _constant(self, name: str) -> Values | None:
        """Return a dataset with fewer axes than blocks, such as a target of each volume: each block has all of it."""
        if self._axes_alone(name) is None:
            return None
        columns, dataset = self._columns, self._columns.dataset_of(name).strip("/")
        if not self._has_groups:
            values = self._whole.values_of(name)
            joined = columns.joined(values)
        else:
            if dataset not in self._groups.columns:
                self._table = self._groups.merged(self._table_of([dataset]))
            if dataset not in self._groups.columns:
                return None  # encoded, or a field
            joined = self._groups.columns[dataset]
            values = columns.decoded(joined)
        return columns.of_units(name, Ranges.whole(name, columns.path, values, joined))

    def _alike(self, name: str) -> Sequence[int]:
        """Return parts whose blocks stand for those of all: one of each type and shape."""
        if (joined := self._joined(name)) is None:
            return range(self._num_parts)
        types = [repr((of.kind, of.stored_dtype, of.type.enum, of.odd_type, of.pipeline)) for of in joined.layouts]
        _, type_of = np.unique(types, return_inverse=True)
        cut, lengths = self._cut, joined.shapes.copy()
        of_array = next((array for array in self._kind.shapes if self._joined(array) is joined), None)
        for number, way in enumerate(cut.ways):
            if of_array is not None:  # blocks are of one length along the axes that they cut
                lengths[np.ix_(cut.way_of == number, way[of_array])] = 0
        rows = np.column_stack([type_of.reshape(-1)[joined.class_of], cut.way_of, lengths])
        return sorted(np.unique(rows, axis=0, return_index=True)[1].tolist())

    def _single(self, name: str) -> Values | None:
        """Return a dataset with a single value in each part; None for others."""
        if not self._has_groups:
            return self._whole.single(name)
        dataset = self._columns.dataset_of(name).strip("/")
        known = self._groups.columns.get(dataset)
        if known is not None and not known.single:
            return None
        # What is known of single values is in a plan, and a store is not asked for it again.
        if (known is None or self._columns.part(name) is not None) and self._part(0).single(name) is None:
            return None  # a part of a single value is an error
        if known is None:
            self._table = self._groups.merged(self._table_of([dataset]))
        joined_array = self._groups.columns.get(dataset)
        if joined_array is None or not joined_array.single:
            raise UnsupportedColumnError(
                f"{self._columns.path}: {name!r} has a single value in group {self._groups.names[0]!r}, and not in all "
                "others. Choose groups that agree with groups= of Patches, or leave it out with columns=[...]."
            )
        return self._columns.decoded(joined_array)

    def _check_alike(self, name: str, blocks: Sequence[Values], numbers: Sequence[int]) -> None:
        """Raise unless the blocks of all groups have one dtype and shape. Attributes may make others of a dtype."""
        first, ways, names = blocks[0].array, self._cut.ways, self._groups.names if self._has_groups else [""]
        is_decoded = first.kind == "number" and any(isinstance(block, Decoded) for block in blocks)
        for group, column in zip(numbers, blocks, strict=True):
            other, axes, expected = column.array, ways[self._cut.way_of[group]], ways[self._cut.way_of[0]]
            if axes != expected:
                array = next(array for array in axes if axes[array] != expected[array])
                raise OptionError(
                    f"{self._columns.path}: Patches: blocks cut the axes {expected[array]} of {array!r} in group "
                    f"{names[0]!r}, and {axes[array]} in {names[group]!r}: say which with "
                    f"axes={{{array!r}: {expected[array]}}}"
                )
            same = (
                other.kind == first.kind and other.row_shape == first.row_shape and other.type.enum == first.type.enum
            )
            if not same or (other.dtype != first.dtype and not is_decoded):
                raise SchemaMismatchError(
                    f"{self._columns.path}: column {name!r}: group {names[0]!r} has blocks of {first.dtype} of shape "
                    f"{first.row_shape}, and group {names[group]!r} of {other.dtype} of shape {other.row_shape}. "
                    "Choose groups that agree with groups= of Patches, or leave the column out with columns=[...]."
                )
