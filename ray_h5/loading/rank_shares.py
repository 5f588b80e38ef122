"""Which rows of an epoch a rank reads: one rule for plain PyTorch and for Ray.

The positions that are left of an epoch are cut into blocks, and ranks take the blocks in turn. Blocks are whole windows
of a shuffle by chunks wherever these fit, so that each chunk is decoded by one rank only. With blocks of 4 positions,
2 ranks and 22 positions::

    positions   0 1 2 3 | 4 5 6 7 | 8 9 . . | 12 . . . | 16 17 18 | 19 20 21
    rank              0 |       1 |       0 |        1 |        0 |        1

The blocks of the last round share what is left evenly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ray_h5.order.block_layout import BlockLayout
from ray_h5.order.epoch_order import Order
from ray_h5.order.position import Position
from ray_h5.order.remaining_blocks import layout_of, left_of
from ray_h5.per_process import cached_property
from ray_h5.plan.read_plan import ReadPlan

if TYPE_CHECKING:
    from typing_extensions import Self

INDICES_AT_ONCE = 1 << 14
"""How many indices are computed by one call."""


class Place(NamedTuple):
    """Where in an epoch a sample is."""

    seed: int = 0
    """The seed of the order."""
    epoch: int = 0
    draw: int = -1
    """Which draw of the epoch it is, if an epoch may draw a row several times; else -1."""
    is_padding: bool = False
    """Whether it comes again only so that all ranks have equally many."""
    drawn: int = 0
    """Which draw of values that are drawn is meant, of those of all epochs; 0 if the index says it: `Share.indices`."""


class Placed(int):
    """The index of a sample that says where in an epoch it is, for what depends on that.

    Samplers yield it for a dataset that asks for it. Loaders, collators and workers pass it on: it is an integer.
    """

    place: Place

    def __new__(cls, index: int, place: Place = Place()) -> Self:  # noqa: B008  frozen
        made = super().__new__(cls, index)
        made.place = place
        return made

    def at(self, index: int) -> Placed:
        """Return another index of the same place, as a `Subset` has it."""
        return Placed(index, self.place)

    def __sub__(self, first: int) -> Placed:
        """Return the index in one of several datasets, as a `ConcatDataset` computes it."""
        return self.at(int(self) - first)

    def among(self, num_rows: int) -> int:
        """Return the index among rows whose values are drawn, which says the draw; see `Share.indices`."""
        drawn = self.place.drawn
        return int(self) % num_rows - (drawn + 1) * num_rows if drawn else int(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Placed, (int(self), self.place)


class PlacedIndices(Sequence[int]):
    """The indices of a `Subset`: that of a `Placed` is one, too."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        found = self.indices[index]
        return index.at(int(found)) if isinstance(index, Placed) else found

    def __eq__(self, other: object) -> bool:
        return bool(self.indices == (other.indices if isinstance(other, PlacedIndices) else other))

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def __array__(self, *options: Any, **named: Any) -> np.ndarray:
        return np.asarray(self.indices).__array__(*options, **named)

    def __repr__(self) -> str:
        return repr(self.indices)


_OF_EACH = "is_padding", "drawn"
"""What `Places` always has an array of."""


@dataclass(frozen=True, slots=True, eq=False)
class Places(Sequence[int]):
    """Indices of samples that say where in an epoch they are: those of a batch, in arrays; each of them is a `Placed`.

    Attributes
    ----------
    indices : numpy.ndarray
        int64.
    seed, epoch : int
        Those of all of them.
    draws : numpy.ndarray, optional
        int64: which draw of the epoch each is, if an epoch may draw a row several times.
    is_padding : numpy.ndarray
        bool.
    drawn : numpy.ndarray
        int64: see `Place`.
    """

    indices: np.ndarray
    seed: int
    epoch: int
    draws: np.ndarray | None
    is_padding: np.ndarray
    drawn: np.ndarray

    @classmethod
    def parts_of(cls, asked: Sequence[Sequence[int]]) -> Iterator[tuple[Any, Places]]:
        """Yield the indices of some batches by epoch, nearly always one, and where they are among all of them."""
        first, *others = asked
        if isinstance(first, Places) and all(isinstance(each, Places) and first._joins(each) for each in others):
            yield slice(None), first._with(asked) if others else first
            return
        by_epoch = defaultdict[Any, list[tuple[int, Placed]]](list)
        for place, given in enumerate(index for indices in asked for index in indices):
            index = given if isinstance(given, Placed) else Placed(given)
            where = index.place
            by_epoch[where.seed, where.epoch, where.draw < 0].append((place, index))
        for (seed, epoch, is_once), listed in by_epoch.items():
            places = [index.place for _, index in listed]
            draws = None if is_once else np.array([where.draw for where in places])
            is_padding, drawn = (np.array([getattr(where, name) for where in places]) for name in _OF_EACH)
            at, indices = np.array([place for place, _ in listed]), np.array([int(index) for _, index in listed])
            yield at, cls(indices, seed, epoch, draws, is_padding, drawn)

    def _joins(self, other: Places) -> bool:
        is_drawn = self.draws is not None, other.draws is not None
        return (self.seed, self.epoch) == (other.seed, other.epoch) and is_drawn[0] == is_drawn[1]

    def _with(self, parts: Any) -> Places:
        """Return all indices of some parts, of which this is one."""
        draws = None if self.draws is None else np.concatenate([part.draws for part in parts])
        indices, *of_each = (np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", *_OF_EACH))
        return Places(indices, self.seed, self.epoch, draws, *of_each)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, at: Any) -> Any:
        draws = None if self.draws is None else self.draws[at]
        if isinstance(at, slice):
            return Places(self.indices[at], self.seed, self.epoch, draws, self.is_padding[at], self.drawn[at])
        draw = -1 if draws is None else int(draws)
        place = Place(self.seed, self.epoch, draw, bool(self.is_padding[at]), int(self.drawn[at]))
        return Placed(int(self.indices[at]), place)

    def __iter__(self) -> Iterator[Placed]:
        draws = [-1] * len(self) if self.draws is None else self.draws.tolist()
        each = zip(self.indices.tolist(), draws, self.is_padding.tolist(), self.drawn.tolist(), strict=True)
        return (Placed(index, Place(self.seed, self.epoch, *of_place)) for index, *of_place in each)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.indices, dtype, copy=copy)


@dataclass(frozen=True)
class Share:
    """The rows that one rank reads of what is left of an epoch.

    Attributes
    ----------
    order : Order
        The order of the epoch.
    start : Position
        Where the run begins, or is now: which positions it reads, in which blocks, and how many rows this rank has
        done. Without a tail, the last rows that do not divide among the ranks are left out.
    rank : int
        The rank.
    is_drawn : bool
        Whether the values of rows are drawn, and differ from epoch to epoch.
    """

    order: Order
    start: Position
    rank: int = 0
    is_drawn: bool = False

    @classmethod
    def of(cls, plan: ReadPlan, start: Position, rank: int = 0) -> Share:
        """Return what a rank reads of a plan: the rows of the blocks that it takes in turn with the others."""
        return cls(plan.order.with_drawn_seed(start.seed), start, rank, plan.is_drawn)

    @cached_property
    def layout(self) -> BlockLayout:
        """How the positions of the run are cut into blocks."""
        return layout_of(self.start)

    @property
    def num_rows(self) -> int:
        """Rows of this rank, with those that are done."""
        return self.layout.num_rows // self.start.world_size

    def __len__(self) -> int:
        """Return how many rows this rank still has to read."""
        return max(0, self.num_rows - self.start.rows)

    def positions(self, start: int, stop: int) -> np.ndarray:
        """Return the positions in the epoch of rows `start` to `stop` of this rank: int64.

        Positions of a tail that is padded are `epoch_rows` or more: they stand for rows that come again.
        """
        return left_of(self.start).positions(self.layout.rows_of(self.rank, start, stop))

    def positions_of_all(self, start: int, stop: int) -> np.ndarray:
        """Return the positions of rows `start` to `stop` of each rank: of shape (ranks, rows)."""
        ranks = np.arange(self.start.world_size)[:, None]
        return left_of(self.start).positions(self.layout.rows_of(ranks, start, stop))

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """Return the selected indices at some positions: int64.

        Of values that are drawn, they also say which draw is meant: negative ones below ``-num_rows`` stand for later
        draws than 0; see `split_draws`.
        """
        selected = self.order.selected_indices(positions % self.order.epoch_rows, self.start.epoch)
        if not self.is_drawn:
            return selected
        draws = self.order.draw_numbers(positions, self.start.epoch)
        return np.where(draws > 0, selected - (draws + 1) * self.order.num_rows, selected)

    def placed(self, positions: np.ndarray, indices: np.ndarray) -> Places:
        """Return indices of rows at some positions, which say where they are in the epoch."""
        rows, order, epoch = self.order.epoch_rows, self.order, self.start.epoch
        draws = positions % rows if order.may_repeat else None
        drawn = np.zeros_like(positions) if self.is_drawn else order.draw_numbers(positions, epoch)
        return Places(indices, order.seed, epoch, draws, positions >= rows, drawn)

    def pieces(self, rows: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions and selected indices of what is left to read, some thousand at once: a multiple of `rows`."""
        at_once = max(1, INDICES_AT_ONCE // rows) * rows
        for first in range(self.start.rows, self.num_rows, at_once):
            positions = self.positions(first, min(first + at_once, self.num_rows))
            yield positions, self.indices(positions)

    def batches(self, rows: int, *, whole: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions and selected indices of batches of `rows`; with `whole`, of no smaller one at the end."""
        for positions, indices in self.pieces(rows):
            for i in range(0, len(positions) - (rows - 1 if whole else 0), rows):
                yield positions[i : i + rows], indices[i : i + rows]
