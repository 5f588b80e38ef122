"""Which samples of a file belong to which rank."""

from __future__ import annotations

import numpy as np

from ray_h5.errors import OptionError


def _balanced_contiguous_shard(total: int, world_size: int, rank: int) -> tuple[int, int]:
    """Return where a rank's share of neighbouring samples begins and ends.

    Parameters
    ----------
    total : int
        Samples of all ranks.
    world_size, rank : int
        Number of ranks, and the one that is asked for.

    Returns
    -------
    tuple of int
        Start and end (exclusive). Shares differ by one sample at most; the first ranks have the
        larger ones.

    Raises
    ------
    OptionError
        If `rank` is not below `world_size`, or `total` is negative.
    """
    _check(total, world_size, rank)
    each, rest = divmod(total, world_size)
    start = rank * each + min(rank, rest)
    return start, start + each + (rank < rest)


def _interleaved_indices(total: int, world_size: int, rank: int) -> np.ndarray:
    """Return every `world_size`-th sample from `rank` on, as an int64 array; arguments as above."""
    _check(total, world_size, rank)
    return np.arange(rank, total, world_size, dtype=np.int64)


def _check(total: int, world_size: int, rank: int) -> None:
    if total < 0 or world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(
            f"total={total}, world_size={world_size}, rank={rank}: expected no negative total, and a rank from 0 to "
            "world_size - 1"
        )
