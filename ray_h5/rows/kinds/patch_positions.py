"""Blocks of the arrays of a file, or of one group of it: on a grid, or drawn."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ray_h5.columns.blocks_end_to_end import BlocksEndToEnd, can_be_cut, num_axes
from ray_h5.columns.derived_columns import RowEntries, joined_in
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Taken, Values, read_units
from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hash_and_permute import below, mix, word_at
from ray_h5.manifest.indices import Indices
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.messages import few
from ray_h5.per_process import cached_property
from ray_h5.rows.patches_option import Patches

_CELLS = 4
"""Along each axis, a block is as long as so many of the cells that `where_any` looks at."""

_PART_VALUES = 1 << 20
"""Values that `where_any` looks at together."""


class Blocks:
    """The arrays of one file, or of one group of it, that blocks are of.

    Parameters
    ----------
    columns : FileColumns
        The columns of the file, or of the group.
    kind : Patches
        Which blocks.
    chosen : numpy.ndarray, optional
        The blocks or cells that hold a class, if they are known.
    name : str
        The group, if `kind` has several.
    """

    def __init__(self, columns: FileColumns, kind: Patches, chosen: np.ndarray | None, name: str = "") -> None:
        self.columns, self.kind, self.name = columns, kind, name
        self._known = chosen
        self._path = f"{columns.path}: group {name!r}" if name else columns.path

    @property
    def extents(self) -> tuple[int, ...]:
        """The lengths of the axes that blocks cut."""
        name, axes = next(iter(self.axes.items()))
        return lengths_along(self._layouts[name].shape, axes)

    @property
    def chunk(self) -> tuple[int, ...]:
        """The lengths of chunks of the first array along the axes that blocks cut."""
        name = next(iter(self.kind.shapes))
        chunk = self.values_of(name).array.chunk_shape
        return tuple(1 if chunk is None else chunk[axis] for axis in self.axes[name])

    def values_of(self, name: str) -> Values:
        """Return the whole values of a column."""
        try:
            return self.columns.values(name)
        except UnknownColumnError:
            groups, pattern = ([], "") if self.name else self.columns.groups_with(name)
            if not groups:
                raise
            raise UnknownColumnError(
                f"{self._path}: no {name!r} below the group that is read. The groups {few(groups)} have it: for blocks "
                f"of all of them, pass groups={pattern!r} to Patches; for those of one, pass group={groups[0]!r}."
            ) from None

    # Arrays ---------------------------------------------------------------------------------------

    def single(self, name: str) -> Values | None:
        """Return a dataset that has a single value, as one unit; None for others."""
        single = self.columns.single(name)
        return None if single is None else self.columns.of_units(name, single)

    def fields(self, name: str) -> list[str]:
        """Return the columns of an array of compound values that blocks cut; none for other names."""
        if name not in self.kind.shapes:
            return []
        array = self.values_of(name).array
        return [f"{name}/{field}" for field in array.dtype.names or ()] if array.kind == "struct" else []

    def is_array(self, name: str) -> bool:
        """Return whether a column is of an array that blocks cut."""
        return self._array_of(name) is not None

    def _array_of(self, name: str) -> str | None:
        """Return the array in `shapes` that a column is of: the one of its dataset; None if it is of none."""
        if name in self.kind.shapes:
            return name
        own = self._dataset_of(name)
        return next((shape for shape in self.kind.shapes if self._dataset_of(shape) == own), None)

    def _dataset_of(self, name: str) -> str:
        stored = _stored(self.values_of(name))
        return (self.columns.dataset_of(name) if stored is None else stored.layout.name).strip("/")

    def values(self, name: str) -> Values:
        """Return the blocks of a column. Their units are places along the axes that blocks cut, as of `Positions`."""
        values, of = self.values_of(name), self._array_of(name.strip("/"))
        if of is None:
            raise UnsupportedColumnError(
                f"{values.array.where} has shape {values.array.shape}, and is not in shapes= of Patches; name it there "
                "with the shape of a block, or leave it out with columns=[...]"
            )
        stored, is_joined = _stored(values), joined_in(self.columns.made.get(name.strip("/"), "")) is not None
        is_one = stored is not None and isinstance(stored.address, str)
        if not (can_be_cut(values) if is_joined else is_one) or values.array.kind not in {"number", "bool"}:
            fields = self.fields(name)
            raise UnsupportedColumnError(
                f"{values.array.where} holds {values.array.kind} values; blocks are of arrays of numbers or booleans"
                + (f". Name its fields: columns=[{fields[0]!r}]" if fields else "")
            )
        axes, own = self.axes[of], len(self._layouts[of].shape)  # fields add others
        taken, drawn = self._part(name, values.array, axes)
        if is_joined:
            blocks = BlocksEndToEnd.of(values, axes, self.kind.block, taken[:own])
        else:
            assert stored is not None
            cut = stored.boxes(axes, self.kind.block, taken[:own])
            blocks = replace(values, values=cut) if isinstance(values, Decoded) else cut
        if not taken[own:] and drawn is None:
            return blocks
        return Taken(blocks, (*[None] * own, *taken[own:]) if taken[own:] else (), drawn)

    def _part(self, name: str, array: ValueArray, cut: tuple[int, ...]) -> tuple[Indices, RowEntries | None]:
        """Return the part of blocks that the user asks for: indices along axes that they have whole, and draws."""
        if (made := self.columns.part(name)) is None:
            return (), None
        if len(made.parts) > 1:
            raise UnsupportedColumnError(f"{array.where}: {made}: of blocks, one part() is taken; write it as one")
        asked = [*([] if made.random is None else [0]), *(axis for axis, _ in made.axes)]
        others = [axis for axis in range(len(array.shape)) if axis not in cut]
        if wrong := [axis for axis in asked if axis not in others]:
            raise UnsupportedColumnError(
                f"{array.where} has shape {array.shape}, of which blocks cut the axes {list(cut)}; {made} takes "
                f"parts of axis {wrong[0]}. Take parts of "
                + (f"the axes {others}, which blocks have as a whole" if others else "arrays with channels")
                + ", and choose other blocks with rows=Patches(...)."
            )
        taken = self.columns.positions(made, dict(made.axes), array.shape)
        return taken, None if made.random is None else made.entries(array.where)

    def values_or_single(self, name: str) -> Values:
        """Return the blocks of a column, or its single value."""
        try:
            return self.values(name)
        except UnsupportedColumnError:
            if (single := self.single(name)) is None:
                raise
            return single

    @cached_property
    def _layouts(self) -> dict[str, ValueArray]:
        """The arrays that say which blocks there are, without the axes that fields add."""
        names, layouts = [*self.kind.shapes], dict[str, ValueArray]()
        if self.kind.where_any is not None and self._array_of(self.kind.where_any[0]) is None:
            names.append(self.kind.where_any[0])
        for name in names:
            values = self.values_of(name)
            array = values.array
            layouts[name] = array.with_shape(array.shape[: num_axes(values)])
        return layouts

    @cached_property
    def axes(self) -> dict[str, tuple[int, ...]]:
        """The axes of each array that blocks cut."""
        return axes_of(self.kind, {name: layout.shape for name, layout in self._layouts.items()}, self._path)

    # Blocks that hold a class ---------------------------------------------------------------------

    @cached_property
    def chosen(self) -> np.ndarray:
        """The blocks of the grid that hold a class, or the cells: int64."""
        if self._known is not None:
            return self._known
        assert self.kind.where_any is not None
        name, classes = self.kind.where_any
        values = self.values_of(name)
        if values.array.kind not in {"number", "bool"}:
            raise UnsupportedColumnError(f"{values.array.where} holds {values.array.kind} values; expected classes")
        self.columns.reader.check_claim([values.array], math.prod(values.array.shape))
        extents = np.array(self.extents)
        if self.kind.per_file is not None:
            (sizes, counts), last = cells_of(self.kind, extents), extents
            steps = sizes
        else:
            sizes, counts, steps = np.array(self.kind.block), grid_of(self.kind, extents), strides_of(self.kind)
            last = np.maximum(extents - sizes, 0) if self.kind.pad == "inside" else extents
        lows = [np.minimum(np.arange(n) * step, end) for n, step, end in zip(counts, steps, last, strict=True)]
        windows = [(low, np.minimum(low + n, end)) for low, n, end in zip(lows, sizes, extents, strict=True)]
        axes = self.axes[self._array_of(name) or name]
        return np.flatnonzero(any_in_windows(self._of_classes(values, classes, axes), windows))

    def _of_classes(self, values: Values, classes: Sequence[int], axes: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield which values are of a class, for some indices after the other along the first axis that blocks cut."""
        array, whole = values.array, None
        rows = max(1, _PART_VALUES // max(1, math.prod(array.row_shape)))
        rows = -(-rows // array.chunk_rows) * array.chunk_rows
        others = tuple(axis for axis in range(len(array.shape)) if axis not in axes)
        for first in range(0, array.num_rows, rows):
            part = read_units(self.columns.reader, values, min(rows, array.num_rows - first), first)
            is_wanted: np.ndarray = np.logical_or.reduce(np.isin(part, classes), axis=others)
            if 0 in axes:
                yield is_wanted
            else:
                whole = is_wanted if whole is None else whole | is_wanted
        if whole is not None:
            yield whole


class Positions:
    """Where blocks are in the arrays of a file, or of each of its groups: on a grid, or drawn.

    The blocks of a group follow those of the group before; so do the places in its arrays.

    Parameters
    ----------
    kind : Patches
        Which blocks.
    extents : numpy.ndarray
        int64 of shape (groups, axes): the lengths of the axes that blocks cut, in each group, or in the file.
    names : sequence of str
        The file, and then its groups, which draws depend on; an empty text for a file as a whole.
    chunks : numpy.ndarray, optional
        The lengths of chunks along these axes, if corners are where chunks begin.
    chosen : (numpy.ndarray, Partition), optional
        The blocks or cells that hold a class, of all groups, and those of each.
    """

    def __init__(
        self,
        kind: Patches,
        extents: np.ndarray,
        names: Iterable[str],
        chunks: np.ndarray | None = None,
        chosen: tuple[np.ndarray, Partition] | None = None,
    ) -> None:
        self._kind, self._block, self._extents, self._chunks = kind, np.array(kind.block), extents, chunks
        self._last = np.maximum(extents - self._block, 0)
        self._counts, sizes = grid_of(kind, extents), extents.prod(axis=1)
        self._chosen, self._held = chosen or (np.empty(0, np.int64), Partition.of(self._counts.prod(axis=1)))
        held = self._held.lengths
        if kind.per_file is not None:
            held = np.where((sizes > 0) & ((held > 0) | (chosen is None)), kind.per_file, 0)
        self.rows = Partition.of(held)
        """The rows of each group."""
        self.of_places = Partition.of(sizes)
        """The places of each group."""
        if kind.per_file is not None:
            file, *groups = (name.encode("utf-8", "surrogateescape") for name in names)
            digests = [zlib.crc32(group, zlib.crc32(file)) for group in groups]
            states = np.array([np.full(len(digests), kind.seed), digests], np.uint64)
            self._first_words, self._second_words = word_at(states, np.ones(states.shape))

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the group of each row, and its number there; rows of a later draw follow those of the one before."""
        draws, rows = np.divmod(rows, max(self.rows.num_units, 1))
        groups, numbers = self.rows.local(rows)
        return groups, numbers + draws * self.rows.lengths_of(groups)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the corners of blocks as numbers: places along the axes that blocks cut, in C order."""
        groups, numbers = self.of(rows)
        corners = self._corners_of(groups, numbers)
        places = np.zeros(len(rows), np.int64)
        for axis in range(corners.shape[1]):
            places = places * self._extents[groups, axis] + corners[:, axis]
        return self.of_places.starts[groups] + places

    def corners(self, rows: np.ndarray) -> np.ndarray:
        """Return the corners of blocks: int64, of shape (rows, axes)."""
        return self._corners_of(*self.of(rows))

    def _corners_of(self, groups: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        last = self._last[groups]
        if self._kind.per_file is not None:
            return self._drawn(groups, numbers, last)
        if self._kind.where_any is not None:
            numbers = self._chosen[self._held.starts[groups] + numbers]
        corners = _unraveled(numbers, self._counts[groups]) * strides_of(self._kind)
        return np.minimum(corners, last) if self._kind.pad == "inside" else corners

    def _drawn(self, groups: np.ndarray, numbers: np.ndarray, last: np.ndarray) -> np.ndarray:
        axes = len(self._block)
        if self._chunks is not None:
            step = self._chunks[groups]
            return below(self._words(groups, numbers, axes), last // step + 1) * step
        if self._kind.where_any is None:
            return below(self._words(groups, numbers, axes), last + 1)
        words, (cell, cells) = self._words(groups, numbers, axes + 1), cells_of(self._kind, self._extents[groups])
        picked = self._held.starts[groups] + below(words[:, 0], self._held.lengths_of(groups))
        begins = _unraveled(self._chosen[picked], cells) * cell
        low = np.maximum(np.minimum(begins + cell, self._extents[groups]) - self._block, 0)
        return low + below(words[:, 1:], np.minimum(begins, last) - low + 1)

    def _words(self, groups: np.ndarray, numbers: np.ndarray, count: int) -> np.ndarray:
        """Return random words for rows: uint64 of shape (rows, count)."""
        at = numbers.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
        return mix(word_at(self._first_words[groups][:, None], at) ^ self._second_words[groups][:, None])


def strides_of(kind: Patches) -> np.ndarray:
    """Return the steps between the blocks of a grid, along each axis."""
    return np.array(kind.block if kind.stride is None else kind.stride)


def grid_of(kind: Patches, extents: np.ndarray) -> np.ndarray:
    """Return how many blocks a grid has along axes of these lengths."""
    strides = strides_of(kind)
    counts = 1 + np.maximum(0, -(-(extents - kind.block) // strides))
    # With strides longer than blocks, the last one may be past the end: it is moved inside, or it is none.
    return counts if kind.pad == "inside" else np.minimum(counts, -(-extents // strides))


def cells_of(kind: Patches, extents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shape of the cells that are drawn from, and how many there are along axes of these lengths."""
    cell = np.maximum(np.array(kind.block) // _CELLS, 1)
    return cell, -(-extents // cell)


def _unraveled(numbers: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """Return the index of each number in an array of the shape beside it, in C order."""
    index = np.empty(shapes.shape, np.int64)
    for axis in reversed(range(shapes.shape[1])):
        numbers, index[:, axis] = np.divmod(numbers, shapes[:, axis])
    return index


def lengths_along(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of some axes of a shape."""
    return tuple(shape[axis] for axis in axes)


def axes_of(kind: Patches, shapes: Mapping[str, tuple[int, ...]], path: str) -> dict[str, tuple[int, ...]]:
    """Return the axes that blocks cut of arrays of these shapes.

    `path` is the file, and the group if there are several, for messages.

    Raises
    ------
    SchemaMismatchError, OptionError
        If blocks do not fit the arrays, or several axes fit.
    """
    count, said = len(kind.block), kind.axes or {}
    may_cut: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if len(shape) < count or (name in said and max(said[name]) >= len(shape)):
            raise SchemaMismatchError(
                f"{path}: Patches: {name!r} has shape {shape}, and blocks have the shape {kind.block}"
                + (f" along its axes {said[name]}" if name in said else "")
            )
        may_cut[name] = [tuple(said[name])] if name in said else [*combinations(range(len(shape)), count)]
    first = next((name for name in (*said, *shapes) if len(may_cut[name]) == 1), None)
    if first is None:
        name, shape = next(iter(shapes.items()))
        last = tuple(range(len(shape) - count, len(shape)))
        raise OptionError(
            f"{path}: Patches: {name!r} has shape {shape}, and blocks have {count} axes. Say which of its axes they "
            f"cut: axes={{{name!r}: {last}}} for the last ones"
        )
    axes, extents = dict[str, tuple[int, ...]](), lengths_along(shapes[first], may_cut[first][0])
    for name, shape in shapes.items():
        fits = [some for some in may_cut[name] if lengths_along(shape, some) == extents]
        if not fits:
            raise SchemaMismatchError(
                f"{path}: Patches: {first!r} has the lengths {extents} along the axes that blocks cut; {name!r} has "
                f"shape {shape}. Choose arrays of one shape"
                + (", or say which axes blocks cut with axes=" if len(shape) > count else "")
            )
        if len(fits) > 1:
            raise OptionError(
                f"{path}: Patches: {name!r} has shape {shape}, and blocks may cut the axes {fits[0]} or {fits[1]}: say "
                f"which with axes={{{name!r}: {fits[0]}}}"
            )
        axes[name] = fits[0]
    if kind.pad == "inside" and any(n < size for n, size in zip(extents, kind.block, strict=True)):
        raise SchemaMismatchError(
            f"{path}: Patches: {first!r} has the lengths {extents}, shorter than a block of {kind.block}. Pass "
            "pad='zero' for zeros past its end, choose smaller blocks, or leave it out."
        )
    return axes


def _stored(values: Values) -> Stored | None:
    """Return values as they are stored; None for those of several datasets."""
    if isinstance(values, Decoded) and values.of_each_value and values.array.kind in {"number", "bool", "time"}:
        values = values.values  # numbers that are packed are cut before they are decoded
    return values if isinstance(values, Stored) else None


def any_in_windows(parts: Iterable[np.ndarray], windows: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return which boxes of a grid hold a true value.

    Parameters
    ----------
    parts : iterable of numpy.ndarray
        An array of bool, in parts along its first axis.
    windows : sequence of (numpy.ndarray, numpy.ndarray)
        Where boxes begin and end along each axis, ascending.
    """
    (low, high), *others = windows
    boxes = [np.zeros((0, *(len(window) for window, _ in others)), bool)]
    kept, begin, done = boxes[0], 0, 0  # of the boxes that are not done, from index `begin` on
    for part in parts:
        held = part
        for axis, (lows, highs) in enumerate(others, start=1):
            held = _any_along(held, axis, lows, highs)
        kept = np.concatenate([kept, held])
        ready = int(np.searchsorted(high, begin + len(kept), side="right"))
        boxes.append(_any_along(kept, 0, low[done:ready] - begin, high[done:ready] - begin))
        passed = len(kept) if ready == len(low) else min(int(low[ready]) - begin, len(kept))
        kept, begin, done = kept[passed:], begin + passed, ready
    return np.concatenate(boxes)


def _any_along(is_wanted: np.ndarray, axis: int, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
    """Return whether there is a true value from each low index to each high one along an axis."""
    before = np.zeros([n + (at == axis) for at, n in enumerate(is_wanted.shape)], np.int32)
    np.cumsum(is_wanted, axis=axis, out=before.swapaxes(0, axis)[1:].swapaxes(0, axis))
    is_in_block: np.ndarray = before.take(highs, axis) > before.take(lows, axis)
    return is_in_block
