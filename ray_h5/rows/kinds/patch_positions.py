"""Blocks of the arrays of a file, or of one group of it: on a grid, or drawn."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Taken, Values, read_units
from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hash_and_permute import below, mix, word_at
from ray_h5.manifest.file_table import digest_of
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.messages import few
from ray_h5.rows.patches_option import Patches

_CELLS = 4
"""Along each axis, a block is as long as so many of the cells that `where_any` looks at."""

_PART_VALUES = 1 << 20
"""Values that `where_any` looks at together."""


class Blocks:
    """Blocks of the arrays of one file, or of one group of it.

    Parameters
    ----------
    columns : FileColumns
        The columns of the file, or of the group.
    kind : Patches
        Which blocks.
    chosen : numpy.ndarray, optional
        The blocks or cells that hold a class, if they are known.
    name : str
        The name of the file, which draws depend on.
    group : str
        The group, if `kind` has several.
    """

    def __init__(
        self, columns: FileColumns, kind: Patches, chosen: np.ndarray | None, name: str, group: str = ""
    ) -> None:
        self.columns = columns
        self.kind = kind
        self._known = chosen
        self._name = name
        self._group = group
        self._path = f"{columns.path}: group {group!r}" if group else columns.path
        self._found: tuple[dict[str, tuple[int, ...]], tuple[int, ...]] | None = None

    def of_group(self, columns: FileColumns, group: str, chosen: np.ndarray | None) -> Blocks:
        """Return the blocks of one group of the file."""
        return Blocks(columns, self.kind, chosen, self._name, group)

    @property
    def num_rows(self) -> int:
        if self.kind.per_file is None:
            return math.prod(self._counts) if self.kind.where_any is None else len(self.chosen)
        if not math.prod(self._arrays[1]):
            return 0
        return self.kind.per_file if self.kind.where_any is None or len(self.chosen) else 0

    @property
    def drawn_in(self) -> dict[str, int]:
        """The arrays that blocks are drawn in, with their lengths, and how many blocks; empty on a grid."""
        if self.kind.per_file is None:
            return {}
        where = f"{self._group}{':' * bool(self._group)}{', '.join(map(repr, self.kind.arrays))} of {self._arrays[1]}"
        if self.kind.where_any is not None:
            where += f" at places of digest {digest_of(self.chosen.data)}"
        return {where + (f" in chunks of {self._aligned_to.tolist()}" if self.kind.align else ""): self.num_rows}

    @property
    def axes(self) -> Mapping[str, tuple[int, ...]]:
        """The axes of each array that blocks cut."""
        return self._arrays[0]

    def _values(self, name: str) -> Values:
        try:
            return self.columns.values(name)
        except UnknownColumnError:
            groups, pattern = ([], "") if self._group else self.columns.groups_with(name)
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
        array = self._values(name).array
        return [f"{name}/{field}" for field in array.dtype.names or ()] if array.kind == "struct" else []

    def _array_of(self, name: str) -> str | None:
        """Return the array in `shapes` that a column is of: the one of its dataset; None if it is of none."""
        if name in self.kind.shapes:
            return name
        own = self._dataset_of(name)
        return next((shape for shape in self.kind.shapes if self._dataset_of(shape) == own), None)

    def _dataset_of(self, name: str) -> str:
        stored = _stored(self._values(name))
        return (self.columns.dataset_of(name) if stored is None else stored.layout.name).strip("/")

    def values(self, name: str) -> Values:
        """Return the blocks of a column. Their units are places along the axes that blocks cut; see `units`."""
        values, of = self._values(name), self._array_of(name.strip("/"))
        if of is None:
            raise UnsupportedColumnError(
                f"{values.array.where} has shape {values.array.shape}, and is not in shapes= of Patches; name it there "
                "with the shape of a block, or leave it out with columns=[...]"
            )
        stored = _stored(values)
        if stored is None or not isinstance(stored.address, str) or values.array.kind not in {"number", "bool"}:
            fields = self.fields(name)
            raise UnsupportedColumnError(
                f"{values.array.where} holds {values.array.kind} values; blocks are of arrays of numbers or booleans"
                + (f". Name its fields: columns=[{fields[0]!r}]" if fields else "")
            )
        axes, layout = self._arrays[0][of], stored.layout
        taken, drawn = self._part(name, values.array, axes)
        own = len(layout.shape)  # fields add others
        cut = stored.boxes(axes, self.kind.block, taken[:own])
        blocks: Values = replace(values, values=cut) if isinstance(values, CF) else cut
        if not taken[own:] and drawn is None:
            return blocks
        return Taken(blocks, (*[None] * own, *taken[own:]) if taken[own:] else (), drawn)

    def _part(
        self, name: str, array: ColumnLayout, cut: tuple[int, ...]
    ) -> tuple[tuple[np.ndarray | None, ...], RowEntries | None]:
        """Return the part of blocks that the user asks for: positions along axes that they have whole, and draws."""
        if (made := self.columns.part(name)) is None:
            return (), None
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

    @property
    def _arrays(self) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
        """The axes of each array that blocks cut, and their lengths."""
        if self._found is None:
            names = [*self.kind.shapes]
            if self.kind.where_any is not None and self._array_of(self.kind.where_any[0]) is None:
                names.append(self.kind.where_any[0])
            values = {name: self._values(name) for name in names}
            # Fields add axes, which are no axes of the array.
            stored = {name: _stored(column_stored) for name, column_stored in values.items()}
            self._found = self._matched(
                {
                    name: values[name].array if column_stored is None else column_stored.layout
                    for name, column_stored in stored.items()
                }
            )
        return self._found

    def _matched(self, layouts: Mapping[str, ColumnLayout]) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
        path, count, axes_given = self._path, len(self.kind.block), self.kind.axes or {}
        axes = {name: tuple(cut) for name, cut in axes_given.items()}
        for name, layout in layouts.items():
            if len(layout.shape) < count or (name in axes_given and max(axes_given[name]) >= len(layout.shape)):
                raise SchemaMismatchError(
                    f"{path}: Patches: {name!r} has shape {layout.shape}, and blocks have the shape {self.kind.block}"
                    + (f" along its axes {axes_given[name]}" if name in axes_given else "")
                )
            if len(layout.shape) == count:
                axes.setdefault(name, tuple(range(count)))
        if not axes:
            name, layout = next(iter(layouts.items()))
            last = tuple(range(len(layout.shape) - count, len(layout.shape)))
            raise OptionError(
                f"{path}: Patches: {name!r} has shape {layout.shape}, and blocks have {count} axes. Say which of "
                f"its axes they cut: axes={{{name!r}: {last}}} for the last ones"
            )
        first = next(iter(axes))
        extents = tuple(layouts[first].shape[axis] for axis in axes[first])
        for name, layout in layouts.items():
            fits = [
                some
                for some in combinations(range(len(layout.shape)), count)
                if tuple(layout.shape[axis] for axis in some) == extents and axes.get(name, some) == some
            ]
            if not fits:
                raise SchemaMismatchError(
                    f"{path}: Patches: {first!r} has the lengths {extents} along the axes that blocks cut; {name!r} "
                    f"has shape {layout.shape}. Choose arrays of one shape"
                    + (", or say which axes blocks cut with axes=" if len(layout.shape) > count else "")
                )
            if len(fits) > 1:
                raise OptionError(
                    f"{path}: Patches: {name!r} has shape {layout.shape}, and blocks may cut the axes {fits[0]} or "
                    f"{fits[1]}: say which with axes={{{name!r}: {fits[0]}}}"
                )
            axes[name] = fits[0]
        if self.kind.pad == "inside" and any(n < size for n, size in zip(extents, self.kind.block, strict=True)):
            raise SchemaMismatchError(
                f"{path}: Patches: {first!r} has the lengths {extents}, shorter than a block of {self.kind.block}. "
                "Pass pad='zero' for zeros past its end, smaller blocks, or leave the file out."
            )
        return axes, extents

    # Corners --------------------------------------------------------------------------------------

    @property
    def _strides(self) -> tuple[int, ...]:
        stride = self.kind.stride
        return self.kind.block if stride is None or isinstance(stride, int) else tuple(stride)

    @property
    def _counts(self) -> tuple[int, ...]:
        """Blocks of the grid along each axis."""
        sizes = zip(self._arrays[1], self.kind.block, self._strides, strict=True)
        # With strides longer than blocks, the last one may be past the end: it is moved inside, or it is none.
        most = math.inf if self.kind.pad == "inside" else 0
        return tuple(int(min(1 + max(0, -(-(n - size) // step)), max(-(-n // step), most))) for n, size, step in sizes)

    @property
    def _last(self) -> np.ndarray:
        """The last corner along each axis whose block is inside the array; 0 if none is."""
        return np.maximum(np.array(self._arrays[1]) - self.kind.block, 0)

    def corners(self, rows: np.ndarray) -> np.ndarray:
        """Return the corners of blocks; rows of a later draw are numbered after those of the one before."""
        if self.kind.per_file is not None:
            return self._drawn(rows)
        along = np.unravel_index(rows if self.kind.where_any is None else self.chosen[rows], self._counts)
        return np.stack([self._corners_along(axis)[index_along] for axis, index_along in enumerate(along)], axis=-1)

    def _corners_along(self, axis: int) -> np.ndarray:
        """Return the indices along an axis at which the blocks of the grid begin."""
        corners = np.arange(self._counts[axis]) * self._strides[axis]
        return np.minimum(corners, self._last[axis]) if self.kind.pad == "inside" else corners

    def _drawn(self, rows: np.ndarray) -> np.ndarray:
        axes, last = len(self.kind.block), self._last
        low, counts = np.zeros_like(last), last + 1
        if self.kind.align:
            step = self._aligned_to
            return below(self._hashes(rows, axes), last // step + 1) * step
        if self.kind.where_any is None:
            return below(self._hashes(rows, axes), counts)
        hashes = self._hashes(rows, axes + 1)
        picked = self.chosen[below(hashes[:, :1], np.array([len(self.chosen)]))[:, 0]]
        cell = self._cell
        begins = np.stack(np.unravel_index(picked, self._cells), axis=-1) * cell
        ends = np.minimum(begins + cell, self._arrays[1])
        low = np.maximum(ends - self.kind.block, 0)
        return low + below(hashes[:, 1:], np.minimum(begins, last) - low + 1)

    def _hashes(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return random words for rows: uint64 of shape (rows, count). They depend on the names of file and group."""
        name = zlib.crc32(self._name.encode("utf-8", "surrogateescape"))
        name = zlib.crc32(self._group.encode("utf-8", "surrogateescape"), name)
        first, second = word_at(np.array([self.kind.seed, name], np.uint64), np.ones(2))
        words = rows.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
        return mix(word_at(first, words) ^ second)

    @property
    def _aligned_to(self) -> np.ndarray:
        name = next(iter(self.kind.shapes))
        axes = self._arrays[0][name]
        chunk = self._values(name).array.chunk_shape
        return np.array([1 if chunk is None else chunk[axis] for axis in axes])

    def units(self, rows: np.ndarray) -> np.ndarray:
        """Return the corners of blocks as numbers, their places along the axes that blocks cut in C order."""
        corners = self.corners(rows)
        return np.asarray(np.ravel_multi_index(tuple(corners.T), self._arrays[1]), np.int64)

    # Blocks that hold a class ---------------------------------------------------------------------

    @property
    def _cell(self) -> np.ndarray:
        return np.maximum(np.array(self.kind.block) // _CELLS, 1)

    @property
    def _cells(self) -> tuple[int, ...]:
        return tuple((-(-np.array(self._arrays[1]) // self._cell)).tolist())

    @property
    def chosen(self) -> np.ndarray:
        """The blocks of the grid that hold a class, or the cells: int64."""
        if self._known is None:
            self._known = self._holding()
        return self._known

    def _holding(self) -> np.ndarray:
        assert self.kind.where_any is not None
        name, classes = self.kind.where_any
        values = self._values(name)
        if values.array.kind not in {"number", "bool"}:
            raise UnsupportedColumnError(f"{values.array.where} holds {values.array.kind} values; expected classes")
        self.columns.reader.check_claim([values.array], math.prod(values.array.shape))
        axes, extents = self._arrays[0][self._array_of(name) or name], self._arrays[1]
        if self.kind.per_file is not None:
            sizes, lows = self._cell, [np.arange(n) * size for n, size in zip(self._cells, self._cell, strict=True)]
        else:
            sizes, lows = np.array(self.kind.block), [self._corners_along(axis) for axis in range(len(axes))]
        windows = [(low, np.minimum(low + n, end)) for low, n, end in zip(lows, sizes, extents, strict=True)]
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


def _stored(values: Values) -> Stored | None:
    """Return values as they are stored; None for those of several datasets."""
    stored = values.values if isinstance(values, CF) else values
    return stored if isinstance(stored, Stored) else None


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
