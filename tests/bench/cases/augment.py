"""Bench `augment`: SpecAugment and GaussianNoise on batches, and their cost in an epoch through Ray.

The baseline is plain PyTorch: ``__getitem__`` makes a SpecAugment for each sample, which clones the sample and masks it
with torch's generator; ``randn_like`` makes the noise, and the samples are stacked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

import ray_h5
from ray_h5.order.epoch_order import row_keys
from ray_h5.transforms.noise import GaussianNoise
from ray_h5.transforms.spec_augment import SpecAugment
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.verify import count_rows
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import ray.data

    from ray_h5.transforms.augmentation import Augmentation
    from tests.bench import BenchOptions

__all__ = ["bench_augment"]

_SHAPES = ((64, 1, 224, 313), (64, 43, 300))
_BATCHES = 50
"""Batches of a turn. With fewer, most of the time depends on what the other contestant left in the caches."""
_COLUMN = "fhr_st"
_BATCH_SIZE = 64
_LEAST_STORE_BYTES = 1 << 30
_GOAL = 10.0
_SHARE = 0.1
"""The greatest share of an epoch that augmentation may take."""


def bench_augment(options: BenchOptions) -> list[Result]:
    """Measure batches against a loop over samples, and epochs with augmentation against those without.

    Raises
    ------
    RuntimeError
        If Ray is already running in this process.
    """
    # As in a worker process of a DataLoader.
    torch.set_num_threads(1)
    results = [result for shape in _SHAPES for result in _batches(shape, options.turns)]
    workload = make_workload("signals", options.folder, options.size)
    epoch_bytes = workload.rows * workload.row_bytes((_COLUMN,))
    with ray_session(max(_LEAST_STORE_BYTES, 4 * epoch_bytes)):
        results.append(_epochs(workload, options.turns))
    return results


def _batches(shape: tuple[int, ...], turns: int) -> list[Result]:
    """Compare on batches in memory: each transform alone, and both together."""
    array = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    cases: Mapping[str, tuple[Augmentation, ...]] = {
        "SpecAugment": (SpecAugment("x"),),
        "GaussianNoise": (GaussianNoise("x"),),
        "both": (SpecAugment("x"), GaussianNoise("x")),
    }
    name = "x".join(map(str, shape))
    results = []
    for case, augmentations in cases.items():
        plain = [_PLAIN[type(each).__name__] for each in augmentations]
        contestants = {OURS: partial(_ours, array, augmentations), "per sample": partial(_per_sample, array, plain)}
        contest = Contest("augment", f"{case} {name}", run_turns(contestants, turns))
        results.append(contest.against("per sample", amount=_BATCHES * len(array), unit="rows/s", goal=_GOAL))
    return results


def _ours(array: np.ndarray[Any, Any], augmentations: tuple[Augmentation, ...]) -> None:
    for batch in range(_BATCHES):
        keys = row_keys(np.arange(len(array)) + batch * len(array), 0, 0)
        made = array
        for augmentation in augmentations:
            made = augmentation.apply_batch(made, keys)


def _per_sample(array: np.ndarray[Any, Any], plain: list[Callable[[], Callable[[torch.Tensor], torch.Tensor]]]) -> None:
    samples = torch.from_numpy(array)
    for _ in range(_BATCHES):
        made = []
        for sample in samples:
            for make in plain:
                # A new object for each sample, as in a worker-safe Dataset.
                sample = make()(sample)  # noqa: PLW2901
            made.append(sample)
        default_collate(made)


@dataclass
class _PlainSpecAugment:
    time_mask_param: int = 40
    freq_mask_param: int = 15
    p: float = 0.8

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        if torch.rand(()) >= self.p:
            return sample
        sample = sample.clone()
        freqs, times = sample.shape[-2:]
        width = int(torch.randint(0, self.freq_mask_param + 1, ()))
        start = int(torch.randint(0, freqs - width + 1, ()))
        sample[..., start : start + width, :] = 0.0
        width = int(torch.randint(0, self.time_mask_param + 1, ()))
        start = int(torch.randint(0, times - width + 1, ()))
        sample[..., start : start + width] = 0.0
        return sample


@dataclass
class _PlainGaussianNoise:
    std: float = 0.02
    p: float = 0.8

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        return sample + torch.randn_like(sample) * self.std if torch.rand(()) < self.p else sample


_PLAIN: Mapping[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "SpecAugment": _PlainSpecAugment,
    "GaussianNoise": _PlainGaussianNoise,
}


def _epochs(workload: Workload, turns: int) -> Result:
    """Compare epochs with both transforms, fused into the tasks that read, with epochs without."""
    plain = ray_h5.read_h5(list(workload.paths), columns=[_COLUMN], include_row_keys=True)
    augmented = plain
    for augmentation in (SpecAugment(_COLUMN), GaussianNoise(_COLUMN)):
        # Whole blocks: cutting them into batches and joining them again takes Ray longer than the augmentation.
        augmented = augmented.map_batches(augmentation, batch_size=None, zero_copy_batch=True)
    contestants = {
        OURS: partial(_epoch, augmented, workload.rows),
        "not augmented": partial(_epoch, plain, workload.rows),
    }
    contest = Contest("augment", "signals epoch, both", run_turns(contestants, turns))
    return contest.against("not augmented", amount=workload.rows, unit="rows/s", goal=1 - _SHARE)


def _epoch(dataset: ray.data.Dataset, rows: int) -> None:
    count_rows(dataset.iter_torch_batches(batch_size=_BATCH_SIZE), rows)
