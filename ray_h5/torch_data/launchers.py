"""Programs that start and feed ranks: torchrun, accelerate and lightning, as a sampler sees them."""

from __future__ import annotations

import functools
import logging
import sys

logger = logging.getLogger(__name__)

_LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}


@functools.cache
def warn_of_torchrun(processes: str) -> None:
    """Warn once in a process that torchrun started among others, and that torch.distributed does not know."""
    if processes != "1":
        logger.warning(
            "torchrun started %s processes, and torch.distributed is not initialised: each of them reads all rows. "
            "Call torch.distributed.init_process_group() before, or pass rank= and world_size=.",
            processes,
        )


def is_below_accelerate() -> bool:
    """Return whether a part of accelerate that splits samples over the ranks itself is on the call stack.

    A loader that accelerate prepared has its sampler inside a `BatchSamplerShard`, which takes every n-th batch of
    it, or a `DataLoaderDispatcher`, which reads in one process for all. Neither tells the sampler, which may have been
    made before accelerate was asked to prepare the loader: only the call stack shows it.
    """
    module = sys.modules["accelerate.data_loader"]
    kinds = (module.BatchSamplerShard, module.DataLoaderDispatcher)
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        # Not isinstance, which asks objects of others for their __class__.
        if issubclass(type(frame.f_locals.get("self")), kinds):
            return True
    return False


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
