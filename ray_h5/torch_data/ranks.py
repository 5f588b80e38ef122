"""The rank of this process, and frameworks that start ranks or split samples over them."""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import NamedTuple

import torch

from ray_h5.errors import OptionError
from ray_h5.options import as_integer

logger = logging.getLogger(__name__)

_LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}


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
                warn_of_torchrun(os.environ.get("WORLD_SIZE", "1"))
            return self.now()
        if is_asked and self.now().world_size > 1:
            raise OptionError(
                f"{type(sampler).__name__} has rank and world_size, and accelerate splits the batches of a prepared "
                "loader over the ranks again: rows would be lost. Leave out rank and world_size."
            )
        return OwnRank(0, 1)


def asked_by_accelerate() -> bool:
    """Return whether a part of accelerate asks that splits samples over the ranks itself.

    A loader that accelerate prepared has its sampler inside a `BatchSamplerShard`, which takes every n-th batch of
    it, or a `DataLoaderDispatcher`, which reads in one process for all. Neither tells the sampler, which may have been
    made before accelerate was asked to prepare the loader: only the call stack shows it.
    """
    if "accelerate.data_loader" not in sys.modules:
        return False
    module = sys.modules["accelerate.data_loader"]
    kinds = (module.BatchSamplerShard, module.DataLoaderDispatcher)
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        # Not isinstance, which asks objects of others for their __class__.
        if issubclass(type(frame.f_locals.get("self")), kinds):
            return True
    return False


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


@functools.cache
def warn_of_torchrun(processes: str) -> None:
    """Warn once in a process that torchrun started among others, and that torch.distributed does not know."""
    if processes != "1":
        logger.warning(
            "torchrun started %s processes, and torch.distributed is not initialised: each of them reads all rows. "
            "Call torch.distributed.init_process_group() before, or pass rank= and world_size=.",
            processes,
        )


@functools.cache
def _warn_of_lightning() -> None:
    logger.warning(
        "OrderSampler.state_dict: with num_workers, a DataLoader reads batches before lightning trains on them, and "
        "this state counts their rows as done: a run that resumes from it loses them. Use loader(...), whose state is "
        "that after the last batch delivered; lightning saves it by itself"
    )


def warn_of_lightning() -> None:
    """Warn once, inside an epoch, where lightning is there; torchdata's `StatefulDataLoader` counts rightly."""
    if _LIGHTNING & sys.modules.keys() and "torchdata.stateful_dataloader" not in sys.modules:
        _warn_of_lightning()
