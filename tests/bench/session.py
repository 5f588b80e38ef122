"""A Ray cluster that a bench starts and stops."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import ray
import ray.data

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ray_session"]


@contextmanager
def ray_session(store_bytes: int) -> Iterator[None]:
    """Start Ray without output, write to all of its object store once, and shut it down at the end.

    The first write to a page of shared memory takes many times as long as later ones.
    """
    if ray.is_initialized():
        raise RuntimeError("Ray is already running in this process; the bench starts its own: shut it down first")
    ray.init(
        address="local",
        object_store_memory=store_bytes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        touched = ray.put(np.ones(int(store_bytes * 0.9), np.uint8))
        del touched
        yield
    finally:
        ray.shutdown()
