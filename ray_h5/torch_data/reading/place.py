"""How far an iteration of a loader is with its reads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ray_h5.planning.epoch.coming import ComingRows
from ray_h5.torch_data.samplers import OrderSampler


class IterationPlace:
    """How far one iteration of a sampler is with its reads, ahead of what is delivered.

    Parameters
    ----------
    sampler : OrderSampler
        The sampler, before its iteration begins.
    coming : ComingRows
        What is told.
    """

    def __init__(self, sampler: OrderSampler, coming: ComingRows) -> None:
        self._sampler, self._coming = sampler, coming
        self._lock = threading.Lock()
        self._begun: int | None = None
        self._running: set[int] = set()

    @contextlib.contextmanager
    def reading(self, count: int) -> Iterator[None]:
        """Note that this rank reads so many more samples now."""
        with self._lock:
            if self._begun is None:
                epoch, self._begun = self._sampler.place
                self._coming.begin(epoch, self._begun)
            start = self._begun
            self._begun += count * self._sampler.world_size
            self._running.add(start)
            self._coming.advance(self._begun, min(self._running))
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(start)
                self._coming.advance(self._begun, min(self._running, default=self._begun))
