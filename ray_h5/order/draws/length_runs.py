"""Rows of similar length near each other: windows of an order, sorted by length, in runs that are shuffled."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.hash_and_permute import hashed, make_key, permute, uniform
from ray_h5.lru import LRU
from ray_h5.manifest.row_requests import by_part

_NOISE, _RUNS, _SHORT_RUN = range(200, 203)
"""The purposes of keys; those of orders and draws are below."""

_JITTER = 0.02
"""Lengths count as up to this part longer when they are sorted, so that each epoch has other batches."""

_WINDOW_ROWS = 64_000
"""Rows that are sorted together by default: a multiple of `_RUN_ROWS`."""

_RUN_ROWS = 640
"""The longest default run. Batches of 10, 16, 20, 32, 64, 80 and 128 rows divide it."""

_LEAST_RUN_ROWS, _LEAST_RUNS = 5, 5

_BALANCING_STEPS = 8
"""How often a lower bound of a part is tried."""

_LOOKED_AT = 1 << 20
"""How many lengths are looked at for the size of a block."""

Base = Callable[[np.ndarray], np.ndarray]
"""The order that is sorted: positions of an epoch -> selected indices."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LengthRuns(ComparedByContent):
    """An order in which rows of similar length follow each other.

    The positions of an epoch are cut into windows. The rows that a window has in the order without lengths are sorted
    by length and cut into runs, and the runs are shuffled. A run is sorted upwards if a run of longer rows follows it,
    else downwards: a batch that has rows of two runs then has rows that differ less. A run with fewer rows than the
    others comes last; which rows it has is drawn.

    Attributes
    ----------
    lengths : numpy.ndarray
        Of the selected rows.
    window_rows : int
        Positions whose rows are sorted together.
    run_rows : int
        Rows of a run.
    token : str
        The key of a cache. It goes with copies to other processes.
    """

    lengths: np.ndarray
    window_rows: int
    run_rows: int
    token: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int, rows: int, base: Base) -> np.ndarray:
        """Return the selected index at each position of an epoch of `rows` rows."""
        selected = np.empty(len(positions), np.int64)
        for window, here in by_part(positions // self.window_rows):
            start, key = window * self.window_rows, (self.token, seed, epoch, window)
            if (ordered := _SORTED.get(key)) is None:  # a look-up alone is faster, and most batches find it
                window_positions = range(start, min(start + self.window_rows, rows))
                ordered = _SORTED.update(key, partial(self._sorted, base, window_positions, seed, epoch))
            selected[here] = ordered[positions[here] - start]
        return selected

    def digest(self) -> bytes:
        """Return a digest that is equal for equal lengths, windows and runs only, for the hash of a plan."""
        hasher = hashlib.blake2b(b"%d %d " % (self.window_rows, self.run_rows), digest_size=16)
        hasher.update(self.lengths.dtype.str.encode())
        hasher.update(np.ascontiguousarray(self.lengths).data)
        return hasher.digest()

    @property
    def longest_ratio(self) -> float:
        """About how much longer than the mean the rows of the longest run of a window are."""
        some = self.lengths[:: -(-len(self.lengths) // _LOOKED_AT)]
        mean = float(some.mean(dtype=np.float64))
        if not mean:
            return 1.0
        count = min(-(-len(some) * self.run_rows // self.window_rows), len(some))
        longest = np.partition(some, len(some) - count)[-count:]
        return float(longest.mean(dtype=np.float64)) / mean

    def _sorted(self, base: Base, window: range, seed: int, epoch: int, known: np.ndarray | None) -> np.ndarray:
        """Return the rows of a window of positions in their order; those that are `known`, if they are."""
        if known is not None:
            return known
        positions, number = np.arange(window.start, window.stop), window.start // self.window_rows
        rows, noise = base(positions), uniform(hashed(make_key(seed, epoch, _NOISE), positions))
        rows = rows[np.argsort(self.lengths[rows] * (1 + _JITTER * noise), kind="stable")]
        runs, rest = divmod(len(rows), self.run_rows)
        place = int(permute(np.zeros(1, np.int64), runs + 1, make_key(seed, epoch, _SHORT_RUN, number))[0])
        short = slice(place * self.run_rows, place * self.run_rows + rest)
        whole = np.delete(rows, short).reshape(runs, self.run_rows)
        drawn = permute(np.arange(runs), runs, make_key(seed, epoch, _RUNS, number))
        whole = whole[drawn]
        is_down = np.zeros(runs, bool)
        is_down[:-1] = drawn[1:] < drawn[:-1]
        whole[is_down] = whole[is_down, ::-1]
        return np.concatenate([whole.reshape(-1), rows[short]])


def cuts_of(lengths: np.ndarray, most: float) -> np.ndarray:
    """Return where runs of rows are cut so that the lengths of a part sum up to at most `most`: the ends of parts.

    Parameters
    ----------
    lengths : numpy.ndarray
        Of shape (runs, ranks, rows): each rank has its own rows, and all are cut at the same places.
    most : float
        The bound. A longer row is a part of its own. Parts of a run are as few as the bound allows, and about equally
        long.

    Returns
    -------
    numpy.ndarray
        int64, ascending: rows of one rank, through all runs, before which a part ends. Each run ends a part.
    """
    runs, _, rows = lengths.shape
    if not lengths.size:
        return np.empty(0, np.int64)
    sums = np.cumsum(np.pad(lengths.astype(np.float64), [(0, 0), (0, 0), (1, 0)]), axis=2)
    cuts = _cut(sums, np.full(runs, float(most)))
    several = np.flatnonzero(cuts[:, 0] < rows)  # those that a lower bound may cut more evenly
    sums, low, high = sums[several], np.full(len(several), most / 2), np.full(len(several), float(most))
    counts = np.count_nonzero(cuts[several] < rows, axis=1)
    for _ in range(_BALANCING_STEPS if len(several) else 0):
        middle = (low + high) / 2
        tried = _cut(sums, middle)
        is_as_few = np.count_nonzero(tried < rows, axis=1) == counts
        better = several[is_as_few]
        cuts[better] = tried[is_as_few, : cuts.shape[1]]  # the rest of these are ends of runs
        high, low = np.where(is_as_few, middle, high), np.where(is_as_few, low, middle)
    is_end = np.ones(cuts.shape, bool)
    is_end[:, 1:] = cuts[:, :-1] < rows  # after the end of a run it is repeated
    return (cuts + np.arange(runs)[:, None] * rows)[is_end]


def _cut(sums: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return the ends of the parts of each run, of shape (runs, parts); the end of the run fills the last ones up."""
    ends, at, rows = list[np.ndarray](), np.zeros(len(sums), np.int64), sums.shape[2] - 1
    while not ends or (at < rows).any():
        bounds = np.take_along_axis(sums, at[:, None, None], axis=2) + most[:, None, None]
        fitting = (sums <= bounds).all(axis=1).sum(axis=1) - 1
        at = np.minimum(np.maximum(fitting, at + 1), rows)
        ends.append(at)
    return np.stack(ends, axis=1)


_SORTED: LRU[np.ndarray] = LRU(4)
"""The rows of the last windows in their order: a window is many blocks or batches."""


def runs_of(lengths: np.ndarray, run_rows: int | None, rows: int, window_rows: int | None) -> LengthRuns:
    """Return runs of rows with these lengths, in epochs of `rows` rows; None stands for the defaults."""
    # At most one pass over the rows: the copies of a row would be next to each other.
    window = sorted_window(min(rows, len(lengths)), _WINDOW_ROWS) if window_rows is None else window_rows
    if lengths.dtype.kind != "f":  # in few bytes: tasks get a copy
        lengths = lengths.astype(np.min_scalar_type(int(lengths.max())), copy=False)
    if run_rows is None:
        # 5 times a power of two, so that batches of usual sizes, with two, five or ten in them, are inside one run.
        run_rows = _RUN_ROWS
        while run_rows > _LEAST_RUN_ROWS and _LEAST_RUNS * run_rows > min(window, rows):
            run_rows //= 2
    return LengthRuns(lengths, window, run_rows)


def sorted_window(rows: int, window_rows: int) -> int:
    """Return about `window_rows`; all `rows`, if they are not many more."""
    return rows if rows <= 2 * window_rows else window_rows
