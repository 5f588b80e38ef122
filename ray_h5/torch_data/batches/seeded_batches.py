"""The batches that a loader makes: which samples, and the random numbers that what users wrote draws for them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ray_h5.loading.read_calls import Task

if TYPE_CHECKING:
    from ray_h5.torch_data.samplers import OrderSampler


def tasks_of(
    ordered: OrderSampler | None, batches: Iterable[list[int]], generator: torch.Generator | None
) -> Iterator[Task]:
    """Yield a task for each batch of an epoch.

    Its seed is a function of the order's seed, the epoch and the samples, so that random numbers depend neither on
    which thread or process makes the batch nor on where a run was resumed. Of another sampler, the seed is drawn from
    `generator`, as a `DataLoader` draws one for each epoch.
    """
    if ordered is None:
        drawn = None
        for number, batch in enumerate(batches):
            if drawn is None:  # after the sampler has drawn for itself
                drawn = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
            yield Task(batch, (drawn, number))
        return
    drawn_by: tuple[int, ...] = ()
    for batch in batches:
        drawn_by = drawn_by or (ordered.order.seed, ordered.epoch)  # known once the epoch has begun
        yield Task(batch, drawn_by)


def seed_generators(seed: Sequence[int]) -> None:
    """Seed the global generators of torch (on the CPU), `random` and NumPy."""
    words = np.random.SeedSequence([int(word) % (1 << 64) for word in seed]).generate_state(4)
    torch.default_generator.manual_seed(int(words[0]) << 32 | int(words[1]))
    random.seed(int(words[2]))
    np.random.seed(int(words[3]))  # noqa: NPY002  the generator that functions of users draw from


@contextlib.contextmanager
def seeded(seed: Sequence[int]) -> Iterator[None]:
    """Seed the global generators, and set them back at the end: the training loop draws from them, too."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    seed_generators(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002
