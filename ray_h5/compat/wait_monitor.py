"""Measures how long a training loop waits for its batches."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from torch.utils.data import DataLoader, Dataset

from ray_h5.errors import OptionError
from ray_h5.system import resident_bytes

logger = logging.getLogger(__name__)


class DataLoaderPerformanceMonitor:
    """Measures loaders.

    Attributes
    ----------
    metrics : dict
        ``batch_loading_times``: seconds of each wait; ``memory_usage``: resident bytes of this
        process after each batch; ``gpu_utilization``: percent, where there is a CUDA device and
        torch can ask for it. All measurements since the monitor was made.
    """

    def __init__(self) -> None:
        names = ("batch_loading_times", "gpu_utilization", "memory_usage")
        self.metrics: dict[str, list[float]] = {name: [] for name in names}

    def time_batch_loading(self, dataloader: Iterable[Any], num_batches: int = 10) -> dict[str, float]:
        """Measure the wait for each batch, during which a training step would be idle.

        The first wait includes the start of the workers and the opening of files. It counts, and is also
        returned by itself.

        Parameters
        ----------
        dataloader : iterable
            The loader.
        num_batches : int
            Batches to take, at most.

        Returns
        -------
        dict
            ``mean_batch_time``, ``std_batch_time``, ``total_time`` and ``first_batch_time`` in seconds,
            ``batches`` and ``memory_mb``.

        Raises
        ------
        OptionError
            If the loader yields no batch.
        """
        if num_batches < 1:
            raise OptionError(f"num_batches={num_batches}: expected 1 or more")
        waits: list[float] = []
        start, batches = time.perf_counter(), iter(dataloader)
        while len(waits) < num_batches:
            try:
                batch = next(batches)
            except StopIteration:
                break
            waits.append(time.perf_counter() - start)
            del batch
            self.metrics["memory_usage"].append(float(resident_bytes()))
            # The library that asks the driver may not be installed.
            with contextlib.suppress(ModuleNotFoundError, RuntimeError):
                if torch.cuda.is_available():
                    self.metrics["gpu_utilization"].append(float(torch.cuda.utilization()))
            start = time.perf_counter()
        if not waits:
            raise OptionError("time_batch_loading: the loader yielded no batch; is drop_last=True for a small dataset?")
        self.metrics["batch_loading_times"] += waits
        return {
            "mean_batch_time": float(np.mean(waits)),
            "std_batch_time": float(np.std(waits)),
            "total_time": float(np.sum(waits)),
            "first_batch_time": waits[0],
            "batches": len(waits),
            "memory_mb": resident_bytes() / 2**20,
        }

    def benchmark_configurations(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        configurations: Iterable[dict[str, Any]] | None = None,
        *,
        num_batches: int = 10,
    ) -> dict[str, dict[str, Any]]:
        """Measure a dataset with several configurations of `DataLoader`; the log says which one is running.

        Parameters
        ----------
        dataset : Dataset
            The samples.
        batch_size : int
            Samples of a batch.
        configurations : iterable of dict, optional
            Options of `DataLoader`; by default from no workers up to one for each CPU.
        num_batches : int
            Batches to take of each.

        Returns
        -------
        dict of str to dict
            For ``config_1``, ``config_2`` ... the options, and the result of `time_batch_loading`.
        """
        results: dict[str, dict[str, Any]] = {}
        chosen: list[dict[str, Any]] = list(configurations or ())
        if configurations is None:
            chosen = [{"num_workers": 0, "pin_memory": False}]
            more = {"pin_memory": torch.cuda.is_available(), "persistent_workers": True}
            settings = ((1, 2), (2, 2), (4, 2), (8, 4), (12, 6))
            chosen += [{"num_workers": n, "prefetch_factor": few, **more} for n, few in settings if n <= cpu_count()]
        for number, options in enumerate(chosen, start=1):
            logger.info("configuration %d of %d: %s", number, len(chosen), options)
            loader = DataLoader(dataset, batch_size=batch_size, **options)
            results[f"config_{number}"] = {**options, **self.time_batch_loading(loader, num_batches)}
            del loader
            gc.collect()  # ends its persistent workers before the next loader is measured
        return results
