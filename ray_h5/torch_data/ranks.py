"""The rank of this process, and frameworks that start ranks or split samples over them."""

from __future__ import annotations

import logging
import os
import sys
from typing import NamedTuple

import torch

from ray_h5.errors import OptionError
from ray_h5.loading.cursor import LIGHTNING, Cursor
from ray_h5.lru import first_time
from ray_h5.options import as_integer

logger = logging.getLogger(__name__)


class OwnRank(NamedTuple):
    """The rank of this process, and how many ranks there are."""

    rank: int
    world_size: int


def resolve_rank(rank: int | None, world_size: int | None, begins: Cursor | None = None) -> OwnRank:
    """Return rank and world size; None stands for that of torch.distributed, if it is initialised.

    If an epoch of a cursor `begins`, processes of torchrun that torch.distributed does not know are warned, and those
    that it knows compare their seeds.

    Raises
    ------
    OptionError
        If there is no such rank, or another rank has another seed.
    """
    distributed, is_given = _is_distributed(), world_size is not None
    if begins is not None and rank is None and not is_given:
        _warn_of_torchrun()
    of_torch = OwnRank(0, 1)
    if distributed:
        of_torch = OwnRank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if world_size is None:
        world_size = of_torch.world_size
    if rank is None:
        rank = of_torch.rank
    rank, world_size = as_integer("rank", rank), as_integer("world_size", world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        alone = "" if is_given or distributed else ". Pass world_size= too: torch.distributed is not initialised here"
        raise OptionError(f"rank={rank}, world_size={world_size}: expected a rank from 0 to world_size - 1{alone}")
    own = OwnRank(rank, world_size)
    if begins is not None and world_size > 1 and own == of_torch:
        begins.agree(own)
    return own


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def has_accelerator() -> bool:
    """Return whether this process has an `Accelerator`, which splits the loaders that it prepares over the ranks."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.is_initialized())


def split_by_accelerate() -> tuple[bool, int | None]:
    """Return whether a loader that accelerate prepared asks for samples now, and its epoch if it has one.

    Such a loader has the sampler inside a `BatchSamplerShard`, which takes every n-th batch of it, or is a
    `DataLoaderDispatcher`, which reads in one process for all. One of both is among the callers, also while accelerate
    makes a loader that has workers and a state. A loader that skips batches does not pass its epoch to the sampler.
    """
    is_split, frame = False, sys._getframe() if has_accelerator() else None
    while frame is not None:
        module, asks = sys.modules["accelerate.data_loader"], frame.f_locals.get("self")
        is_split = is_split or issubclass(type(asks), (module.BatchSamplerShard, module.DataLoaderDispatcher))
        if is_split and issubclass(type(asks), module.DataLoaderStateMixin):
            return True, getattr(asks, "iteration", None)
        frame = frame.f_back
    return is_split, None


def _warn_of_torchrun() -> None:
    """Warn once in a process that torchrun started among others, and that torch.distributed does not know."""
    run, processes = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("WORLD_SIZE", "1")
    if run is not None and processes != "1" and not _is_distributed() and first_time("torchrun", run):
        logger.warning(
            "torchrun started %s processes, and torch.distributed is not initialised: each of them reads all rows. "
            "Call torch.distributed.init_process_group() before, or pass rank= and world_size=.",
            processes,
        )


def warn_of_lightning() -> None:
    """Warn once, inside an epoch, where lightning is there; torchdata's `StatefulDataLoader` counts rightly."""
    loggers = LIGHTNING & sys.modules.keys()
    if loggers and "torchdata.stateful_dataloader" not in sys.modules and first_time("lightning", *sorted(loggers)):
        logger.warning(
            "OrderSampler.state_dict: with num_workers, a DataLoader reads batches before lightning trains on them, "
            "and this state counts their rows as done: a run that resumes from it loses them. Use loader(...), whose "
            "state is that after the last batch delivered; lightning saves it by itself"
        )
