"""Loaders of torch and torchdata, with the options that all contestants of the bench `peers` have."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.bench.peers.problems import Problem

__all__ = ["SEED", "shuffled", "stateful", "worker_options"]

SEED = 7


def worker_options(workers: int) -> dict[str, Any]:
    """Return the options of a DataLoader with some workers, which stay for the epoch after."""
    return {"num_workers": workers, "persistent_workers": workers > 0}


def shuffled(dataset: Any, problem: Problem, workers: int, **options: Any) -> DataLoader[Any]:
    """Return a DataLoader of a dataset, shuffled."""
    order = torch.Generator().manual_seed(SEED)
    return DataLoader(dataset, problem.batch, shuffle=True, generator=order, **worker_options(workers), **options)


def stateful(load: Callable[..., DataLoader[Any]]) -> Callable[[Problem, str, int], Iterable[Any]]:
    """Return a function that makes the same loader with torchdata's drop-in replacement of a DataLoader."""

    def made(problem: Problem, out: str, workers: int) -> Iterable[Any]:
        plain = load(problem, out, workers)
        if importlib.util.find_spec("torchdata") is None:
            return plain
        from torchdata.stateful_dataloader import StatefulDataLoader

        order = torch.Generator().manual_seed(SEED)
        how: dict[str, Any] = {"collate_fn": plain.collate_fn, "generator": order, "shuffle": True}
        if workers:
            how["multiprocessing_context"] = plain.multiprocessing_context
        return StatefulDataLoader(plain.dataset, problem.batch, **worker_options(workers), **how)

    return made
