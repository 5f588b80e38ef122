"""Steps of a training loop, and how long the loop waits for its batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

__all__ = ["MakeStep", "Multiply", "Sleep", "synchronize", "waits_of"]

Step: TypeAlias = "Callable[[Any], object]"
MakeStep: TypeAlias = "Callable[[float, torch.device], Step]"
"""Makes a step that takes so many seconds on a device."""


class Sleep:
    """A step that leaves the CPU alone, as that of a program which waits for its GPU."""

    def __init__(self, seconds: float, _: torch.device) -> None:
        self._seconds = seconds

    def __call__(self, _: Any) -> None:
        time.sleep(self._seconds)


class Multiply:
    """A step that multiplies matrices for about so many seconds, and ends when a value is known, as ``loss.item()``.

    Parameters
    ----------
    seconds
        How long a step takes.
    device
        The device that computes.
    """

    def __init__(self, seconds: float, device: torch.device) -> None:
        size = 2048 if device.type == "cuda" else 64
        self._weights = torch.randn(size, size, device=device)
        self._repeats = 1
        for _ in range(5):  # the first ones also wake up the device
            took = min(self._timed() for _ in range(3))
            self._repeats = max(1, round(self._repeats * min(100, seconds / took)))

    def __call__(self, _: Any) -> None:
        self._multiply()

    def _timed(self) -> float:
        began = time.perf_counter()
        self._multiply()
        return time.perf_counter() - began

    def _multiply(self) -> float:
        for _ in range(self._repeats):
            found = torch.mm(self._weights, self._weights)
        return found[0, 0].item()


def waits_of(batches: Iterable[Any], step: Step, device: torch.device) -> tuple[float, float]:
    """Take the steps of an epoch; return the seconds to its first batch, and the share of the rest that it waits.

    A batch is there when its copy to the device has ended.
    """
    first = waited = 0.0
    asked = began = time.perf_counter()
    for batch in batches:
        synchronize(device)
        got = time.perf_counter()
        if first:
            waited += got - asked
        else:
            first, began = got - asked, got
        step(batch)
        asked = time.perf_counter()
    ended = time.perf_counter()
    return first, (waited + ended - asked) / ((ended - began) or 1)


def synchronize(device: torch.device) -> None:
    """Wait for what the current stream of a GPU has to do."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
