"""The share of an epoch that this process reads: ranks, and frameworks that split samples themselves."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from ray_h5.errors import OptionError
from ray_h5.options import as_integer


class Share(NamedTuple):
    """The share of one process."""

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

    def now(self) -> Share:
        """Return rank and world size at this time."""
        return resolve_rank(**self.asked)

    def share(self, sampler: object) -> Share:
        """Return the share of an iteration of `sampler`: all samples if accelerate splits them."""
        if not asked_by_accelerate():
            return self.now()
        if set(self.asked.values()) != {None} and self.now().world_size > 1:
            raise OptionError(
                f"{type(sampler).__name__} has rank and world_size, and accelerate splits the batches of a prepared "
                "loader over the ranks again: rows would be lost. Leave out rank and world_size."
            )
        return Share(0, 1)


def resolve_rank(rank: int | None, world_size: int | None) -> Share:
    """Return rank and world size; None stands for that of torch.distributed, if it is initialised.

    Raises
    ------
    OptionError
        If there is no such rank.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if distributed else 1
    if rank is None:
        rank = torch.distributed.get_rank() if distributed else 0
    rank, world_size = as_integer("rank", rank), as_integer("world_size", world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(f"rank={rank}, world_size={world_size}: expected a rank from 0 to world_size - 1")
    return Share(rank, world_size)


def asked_by_accelerate() -> bool:
    """Return whether a part of accelerate that splits samples over the ranks itself is on the call stack.

    A loader that accelerate prepared has its sampler inside a `BatchSamplerShard`, which takes every n-th batch of
    it, or a `DataLoaderDispatcher`, which reads in one process for all. Neither tells the sampler, which may have been
    made before accelerate was asked to prepare the loader: only the call stack shows it.
    """
    module = sys.modules.get("accelerate.data_loader")
    if module is None:
        return False
    kinds = (module.BatchSamplerShard, module.DataLoaderDispatcher)
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        # Not isinstance, which asks objects of others for their __class__.
        if issubclass(type(frame.f_locals.get("self")), kinds):
            return True
    return False
