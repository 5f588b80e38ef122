"""The share of an epoch that this process reads: ranks, and frameworks that split samples themselves."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import torch

from ray_h5.errors import OptionError
from ray_h5.options import as_integer


class OwnRank(NamedTuple):
    """The rank of this process, and how many ranks there are."""

    rank: int
    world_size: int


class Ranks:
    """Rank and world size as the user gave them. Those left out are asked of torch.distributed at each use.

    Frameworks make loaders before and after they initialise torch.distributed, so the values at the time when a
    sampler is made may not be those at the time when it is used.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        self.asked = {"rank": rank, "world_size": world_size}
        self.now()  # raises errors where the arguments are given

    def now(self) -> OwnRank:
        """Return rank and world size at this time."""
        return resolve_rank(**self.asked)

    def share(self, sampler: object) -> OwnRank:
        """Return the share of an iteration of `sampler`: all samples if accelerate splits them."""
        is_asked = set(self.asked.values()) != {None}
        if not asked_by_accelerate():
            if "TORCHELASTIC_RUN_ID" in os.environ and not is_asked and not _is_distributed():
                from ray_h5.torch_data.launchers import warn_of_torchrun

                warn_of_torchrun(os.environ.get("WORLD_SIZE", "1"))
            return self.now()
        if is_asked and self.now().world_size > 1:
            raise OptionError(
                f"{type(sampler).__name__} has rank and world_size, and accelerate splits the batches of a prepared "
                "loader over the ranks again: rows would be lost. Leave out rank and world_size."
            )
        return OwnRank(0, 1)


def asked_by_accelerate() -> bool:
    """Return whether a part of accelerate asks that splits samples over the ranks itself."""
    if "accelerate.data_loader" not in sys.modules:
        return False
    from ray_h5.torch_data.launchers import is_below_accelerate

    return is_below_accelerate()


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def resolve_rank(rank: int | None, world_size: int | None) -> OwnRank:
    """Return rank and world size; None stands for that of torch.distributed, if it is initialised.

    Raises
    ------
    OptionError
        If there is no such rank.
    """
    distributed, is_given = _is_distributed(), world_size is not None
    if world_size is None:
        world_size = torch.distributed.get_world_size() if distributed else 1
    if rank is None:
        rank = torch.distributed.get_rank() if distributed else 0
    rank, world_size = as_integer("rank", rank), as_integer("world_size", world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        alone = "" if is_given or distributed else ". Pass world_size= too: torch.distributed is not initialised here"
        raise OptionError(f"rank={rank}, world_size={world_size}: expected a rank from 0 to world_size - 1{alone}")
    return OwnRank(rank, world_size)
