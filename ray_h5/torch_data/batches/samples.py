"""Samples, and batches of them that are arrays already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, SupportsIndex, overload

import torch

from ray_h5.columns.schema import LENGTH
from ray_h5.torch_data.batched_dataset import check_index
from ray_h5.torch_data.batches.tensors import Movable


class Sample(Movable, dict[str, Any]):
    """A dict whose entries are attributes too: ``sample.target`` is ``sample["target"]``.

    ``batch.to(device)`` and ``batch.pin_memory()`` return a copy whose tensors are there. A name that is a method, such
    as ``items`` or ``to``, is reached by its key only.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this sample has no {name!r}; it has {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def copy(self) -> Sample:
        """Return a sample with the same values."""
        return Sample(self)


class UnpaddedSample(Sample):
    """A sample whose rows are padded when a batch is made of it and others, after transforms."""

    def __init__(self, values: Mapping[str, Any], fills: Mapping[str, float]) -> None:
        super().__init__(values)
        self.__dict__["fills"] = dict(fills)

    def copy(self) -> UnpaddedSample:
        """Return a sample with the same values."""
        return UnpaddedSample(self, fills_of(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return UnpaddedSample, (dict(self), fills_of(self))


class Pair(Movable, tuple[Any, ...]):
    """An (input, target) pair."""

    __slots__ = ()


class Batch(MutableSequence[Any]):
    """The samples of a batch. Each is made when it is first looked at.

    A ``collate_fn`` may use it as a list: sort it, add or remove samples, change them.

    Attributes
    ----------
    whole : Sample or Pair
        The batch that ``default_collate`` would make of the samples as they were read.
    slot : object, optional
        The slot of shared memory that it lies in, in a loader worker.
    """

    def __init__(self, whole: Any, count: int, part: Callable[[Any, int], Any], slot: Any = None) -> None:
        self.whole = whole
        self.slot = slot
        self._count = count
        self._part = part
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._changed: list[Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the samples are those that were read, unchanged and in that order."""
        return self._changed is None and all(_is_same(sample, entries) for sample, entries in self._seen.values())

    def __len__(self) -> int:
        return self._count if self._changed is None else len(self._changed)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if self._changed is not None:
            return self._changed[index]
        if isinstance(index, slice):
            return [self._sample(i) for i in range(*index.indices(self._count))]
        return self._sample(check_index(index, self._count, "this batch"))

    def __iter__(self) -> Iterator[Any]:
        if self._changed is not None:
            return iter(self._changed)
        return (self._sample(i) for i in range(self._count))

    def _sample(self, i: int) -> Any:
        if i not in self._seen:
            sample = self._part(self.whole, i)
            self._seen[i] = sample, list(sample.items()) if isinstance(sample, dict) else None
        return self._seen[i][0]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._as_list()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._as_list()[index]

    def insert(self, index: int, value: Any) -> None:
        """Put a sample before another one."""
        self._as_list().insert(index, value)

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Sort the samples, as ``list.sort``."""
        self._as_list().sort(key=key, reverse=reverse)

    def copy(self) -> list[Any]:
        """Return the samples as a list."""
        return list(self)

    def __add__(self, others: list[Any]) -> list[Any]:
        return [*self, *others]

    def __radd__(self, others: list[Any]) -> list[Any]:
        return [*others, *self]

    def _as_list(self) -> list[Any]:
        if self._changed is None:
            self._changed = list(self)
        return self._changed


def _is_same(sample: Any, entries: list[tuple[str, Any]] | None) -> bool:
    """Return whether a dict has exactly these entries. Other samples cannot be changed."""
    if entries is None:
        return True
    return len(sample) == len(entries) and all(
        name == was and value is held for (name, value), (was, held) in zip(sample.items(), entries, strict=True)
    )


def sample_of(whole: Mapping[str, Any], i: int) -> Sample:
    """Return sample number `i` of a batch of columns."""
    return Sample((name, _value(values, i)) for name, values in whole.items())


def unpadded_sample_of(whole: Mapping[str, Any], i: int, fills: Mapping[str, float]) -> UnpaddedSample:
    """Return sample number `i` of a batch of columns, without the padding of the columns in `fills`."""
    sample = UnpaddedSample(sample_of(whole, i), fills)
    for name in fills:
        length = sample[name + LENGTH]
        if is_of_steps(fills, name):
            longest = slice(int(length.max()) if length.numel() else 0)
            sample[name] = sample[name][(slice(None),) * length.ndim + (longest,)]
            continue
        shape = [int(length)] if length.ndim == 0 else [int(n) for n in length]
        sample[name] = sample[name][tuple(map(slice, shape))]
    return sample


def is_of_steps(fills: Mapping[str, float], name: str) -> bool:
    """Return whether the rows of a padded column are several arrays: they have a length each."""
    return getattr(fills[name], "is_of_steps", False)


def fills_of(sample: Any) -> Mapping[str, float]:
    """Return what the rows of a sample are filled up with when a batch is made, by column."""
    return sample.__dict__["fills"] if isinstance(sample, UnpaddedSample) else {}


def transformed(transform: Callable[[Any], Any], sample: Sample) -> Any:
    """Return what a transform makes of a sample: of a dict a `Sample`, whose rows are padded as those of `sample`."""
    fills = fills_of(sample)
    lengths = {name: sample[name + LENGTH] for name in fills if not is_of_steps(fills, name)}
    found = transform(sample)
    if not isinstance(found, dict):
        return found
    for name, length in lengths.items():
        row: Any = found.get(name)
        is_kept = found.get(name + LENGTH) is length  # one that the transform set itself stays
        if is_kept and isinstance(row, torch.Tensor) and row.ndim:
            found[name + LENGTH] = torch.tensor(row.shape if length.ndim else len(row))
    if fills_of(sample) and (type(found) is dict or type(found) is Sample):
        return UnpaddedSample(found, fills_of(sample))
    # A plain dict has no attributes, and default_collate does not name the column that it cannot stack.
    return Sample(found) if type(found) is dict else found


def pair_of(whole: Sequence[Any], i: int) -> Pair:
    """Return pair number `i` of a batch of inputs and targets."""
    return Pair(values[i] for values in whole)


def _value(values: Any, i: int) -> Any:
    # A boolean of a sample is a bool, so that ``sample.flag is True`` works; that of a batch is a tensor.
    if isinstance(values, torch.Tensor) and values.dtype == torch.bool and values.ndim == 1:
        return bool(values[i])
    return values[i]
