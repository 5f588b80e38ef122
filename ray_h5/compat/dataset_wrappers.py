"""Datasets that standardise or augment the inputs of a dataset of (input, target) pairs."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterable, Mapping, Sized
from functools import reduce
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from ray_h5.errors import NonFiniteError, OptionError, SchemaMismatchError
from ray_h5.options import as_integer, names_options, require
from ray_h5.order.epoch_order import row_keys
from ray_h5.plan.row_source import check_indices
from ray_h5.torch_data.batched_dataset import BatchedDataset, Many
from ray_h5.torch_data.batches.tensors import Pair
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.noise import GaussianNoise
from ray_h5.transforms.spec_augment import SpecAugment

_EPSILON = 1e-8


@names_options
class WorkerSafeStandardizedDataset(BatchedDataset):
    """Some samples of a dataset, their inputs standardised with given moments.

    Compute the moments of training samples only, as `from_indices` does. Otherwise validation results depend on
    the validation samples themselves.

    Parameters
    ----------
    base_dataset : Dataset
        Of (input, target) pairs.
    indices : iterable of int
        The samples that this dataset has, in this order.
    mean, std : float
        The input becomes ``(x - mean) / (std + 1e-8)``.

    Raises
    ------
    OptionError
        If `std` is negative, or a moment is not one finite number.
    RowIndexError
        If an index is not in the dataset.
    """

    def __init__(self, base_dataset: Dataset[Any], indices: Iterable[int], mean: float, std: float) -> None:
        self.base_dataset = base_dataset
        self.indices = _chosen(base_dataset, indices, "indices")
        self.mean, self.std = _number("mean", mean), _number("std", std) + _EPSILON
        require(self.std >= _EPSILON, "std", std, "0 or more")
        # The part of the mean that float32 loses. For a large mean it may exceed the deviation.
        self._low = self.mean - float(np.float32(self.mean)) if abs(self.mean) <= np.finfo(np.float32).max else 0.0

    @classmethod
    def from_indices(
        cls, base_dataset: Dataset[Any], indices: Iterable[int], statistics_from: Iterable[int]
    ) -> WorkerSafeStandardizedDataset:
        """Return samples standardised with the moments of others: the training ones.

        Parameters
        ----------
        base_dataset : Dataset
            Of (input, target) pairs.
        indices : iterable of int
            The samples that the dataset has.
        statistics_from : iterable of int
            The samples whose inputs give mean and standard deviation, over all their values.

        Raises
        ------
        NonFiniteError
            If one of them has NaN or an infinity.
        """
        chosen = _chosen(base_dataset, statistics_from, "statistics_from")
        parts = []
        for index in chosen:
            values = _pair(base_dataset[index], cls)[0]
            try:
                parts.append(Moments.of(torch.as_tensor(values)[None]))
            except NonFiniteError as exc:
                raise NonFiniteError(
                    f"sample {index}: expected finite inputs, found NaN, an infinity or values too large to be "
                    "squared; leave such samples out of statistics_from"
                ) from exc
        if not parts:
            raise OptionError("statistics_from: expected at least one sample")
        moments = reduce(Moments.merge, parts)
        return cls(base_dataset, indices, moments.mean.item(), moments.std().item())

    def __len__(self) -> int:
        return len(self.indices)

    def row_ids(self, indices: Many) -> np.ndarray:
        """Return the row ids of samples, as the wrapped dataset has them."""
        return _row_ids(self.base_dataset, self._of_base(indices))

    def _of_base(self, indices: Many) -> list[int]:
        return [self.indices[i] for i in check_indices(indices, len(self), type(self).__name__).tolist()]

    def _several(self, indices: Many) -> list[Any]:
        return [self._standardised(sample) for sample in _samples(self.base_dataset, self._of_base(indices))]

    def _standardised(self, sample: Any) -> Pair:
        x, y = _pair(sample, self)
        if isinstance(x, torch.Tensor) and not (x.is_floating_point() or x.is_complex()):
            # Not in float32, torch's default for integers: it cannot represent all of them.
            return Pair((((x.double() - self.mean) / self.std).to(torch.get_default_dtype()), y))
        deviation = x - self.mean
        if self._low and str(getattr(x, "dtype", "")).endswith("float32"):
            deviation = deviation - self._low
        return Pair((deviation / self.std, y))


@names_options
class WorkerSafeAugmentedDataset(BatchedDataset):
    """A dataset whose inputs are augmented, each sample differently in each epoch.

    The augmentation is a function of (seed, epoch, row), as in Ray. Workers cannot draw the same, a run can be
    repeated, and the result for a row does not depend on the other rows that a predicate, a `Subset` or a
    `WorkerSafeStandardizedDataset` chose. In a dataset without row ids, the index takes the place of the row.

    Call `set_epoch` before each epoch. If it was never called, each read of a sample is augmented differently: by
    the seed that a `DataLoader` draws for its workers (without workers, torch's own), by the worker, and by how
    many samples it has read. So epochs differ too.

    Parameters
    ----------
    base_dataset : Dataset
        Of (input, target) pairs.
    augment_params : mapping
        Options of `SpecAugment`; ``noise_std`` and ``noise_p`` add Gaussian noise. The draws depend on
        ``column``: for the same draws as in Ray, pass the name of the column there. By default it is ``"x"``.
    training : bool
        False returns the samples unchanged.
    seed : int
        Zero or more.
    """

    def __init__(
        self, base_dataset: Dataset[Any], augment_params: Mapping[str, Any], training: bool = True, *, seed: int = 0
    ) -> None:
        self.base_dataset = base_dataset
        self.augment_params = copy.deepcopy(dict(augment_params))
        self.training = training
        self.seed = as_integer("seed", seed, 0)
        # In shared memory: persistent workers see the epoch that the training process sets.
        self._epoch = _shared(torch.full((1,), -1, dtype=torch.int64))
        self._reads = 0
        self._steps = _augmentations(self.augment_params)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, in all workers."""
        self._epoch[0] = as_integer("set_epoch: epoch", epoch, 0)

    def __len__(self) -> int:
        return len(cast("Sized", self.base_dataset))

    def row_ids(self, indices: Many) -> np.ndarray:
        """Return the row ids of samples, as the wrapped dataset has them."""
        return _row_ids(self.base_dataset, indices)

    def _several(self, indices: Many) -> list[Any]:
        wanted = check_indices(indices, len(self), type(self).__name__).tolist()
        rows, samples = self.row_ids(wanted).tolist(), _samples(self.base_dataset, wanted)
        if not self.training:
            return list(samples)
        made = []
        for row, sample in zip(rows, samples, strict=True):
            x, y = _pair(sample, self)
            key = self._key(row)
            for step in self._steps:
                x = step.apply(x, key)
            made.append(Pair((x, y)))
        return made

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _shared(self._epoch)  # a copy, also by pickle, is in the private memory of this process

    def _key(self, row: int) -> int:
        epoch = int(self._epoch[0])
        if epoch >= 0:
            return int(row_keys(np.array([row]), self.seed, epoch)[0])
        worker = get_worker_info()
        # A worker's seed is that of the loader, which draws it for each iteration, plus the number of the worker.
        drawn = torch.initial_seed() if worker is None else worker.seed - worker.id
        self._reads += 1
        words = [self.seed, drawn % 2**64, 0 if worker is None else worker.id + 1, self._reads, row]
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


def worker_init_fn(worker_id: int) -> None:
    """Seed random, numpy and torch of a loader's worker: the ``worker_init_fn`` of a `DataLoader`.

    A worker's torch seed is the seed that the loader drew for this iteration, plus `worker_id`. ``SeedSequence``
    combines it with `worker_id`; a sum could be the same for different workers and epochs.
    """
    words = np.random.SeedSequence([torch.initial_seed() % 2**64, worker_id]).generate_state(4, np.uint32)
    random.seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(int(words[2]))  # noqa: NPY002  transforms of users draw from it
    torch.manual_seed(int(words[3]) << 32 | int(words[2]))


def _chosen(dataset: Dataset[Any], indices: Iterable[int], where: str) -> list[int]:
    listed = indices if isinstance(indices, (np.ndarray, torch.Tensor)) else list(indices)
    return cast("list[int]", check_indices(listed, len(cast("Sized", dataset)), where).tolist())


def _number(name: str, value: Any) -> float:
    try:
        number = float("nan" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError):
        number = float("nan")
    require(np.isfinite(number), name, value, "one finite number; Scaler and Standardize have one a channel")
    return number


def _augmentations(params: Mapping[str, Any]) -> list[SpecAugment | GaussianNoise]:
    options = dict(params)
    column = options.pop("column", "x")
    noise = {name.removeprefix("noise_"): options.pop(name) for name in ("noise_std", "noise_p") if name in options}
    try:
        steps: list[SpecAugment | GaussianNoise] = [SpecAugment(column, **options)] if options or not noise else []
    except TypeError as exc:
        raise OptionError(f"augment_params: {exc}; expected options of SpecAugment, noise_std and noise_p") from exc
    return [*steps, GaussianNoise(column, **noise)] if noise else steps


def _shared(counter: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(RuntimeError):  # without shared memory workers cannot start either
        counter.share_memory_()
    return counter


def _pair(sample: Any, where: object) -> tuple[Any, Any]:
    """Return input and target of a sample. A mapping of two entries is no pair: iterating it yields its names."""
    parts = tuple(sample) if isinstance(sample, Iterable) and not isinstance(sample, (Mapping, str)) else ()
    if len(parts) != 2:
        name = where.__name__ if isinstance(where, type) else type(where).__name__
        shown = f" of {', '.join(map(repr, sample))}" if isinstance(sample, Mapping) else f" of {len(parts)}"
        raise SchemaMismatchError(
            f"{name}: expected samples that are (input, target) pairs, found {type(sample).__name__}{shown}; "
            "give the wrapped dataset a transform that returns a pair"
        )
    return parts[0], parts[1]


def _row_ids(dataset: Any, indices: Many) -> np.ndarray:
    if isinstance(dataset, Subset):
        return _row_ids(dataset.dataset, [int(dataset.indices[i]) for i in indices])
    if isinstance(dataset, BatchedDataset):
        return dataset.row_ids(indices)
    return check_indices(indices, len(dataset), type(dataset).__name__)


def _samples(dataset: Any, indices: list[int]) -> Iterable[Any]:
    fetch = getattr(dataset, "__getitems__", None)
    return cast("Iterable[Any]", fetch(indices) if callable(fetch) else (dataset[index] for index in indices))
