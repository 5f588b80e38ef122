"""Samples, and batches that need no collating.

A `DataLoader` asks a map-style dataset that has ``__getitems__`` for all samples of a batch at once, and then stacks
them. Here a batch is read into one array for each column. ``default_collate`` returns these arrays as they are, as
tensors, unless a user changed the samples: it finds a function for our types in its map (see `_register`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, MutableSequence, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ray_h5.columns.schema import LENGTH
from ray_h5.errors import SchemaMismatchError
from ray_h5.lru import first_time
from ray_h5.torch_data.batched_dataset import check_index
from ray_h5.torch_data.batches.tensors import Pair, Sample

logger = logging.getLogger(__name__)

_MAX_LISTED = 5


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


class ListRow(list[Any]):
    """The value of a sample that is a list in its column, such as several texts. A batch is a list of these.

    Of other lists, such as those that a transform makes, ``default_collate`` makes one list of their first entries, one
    of the second ones, and so on.
    """


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


def batch_of(arrays: Mapping[Any, np.ndarray], whole: Any, part: Callable[[Any, int], Any]) -> Batch:
    """Return the samples in some arrays. `whole` is the batch made of the arrays."""
    _register()
    slot = None
    if get_worker_info() is not None:
        from ray_h5.torch_data.batches.shared_memory import slot_of

        slot = next((found for array in arrays.values() if (found := slot_of(array)) is not None), None)
    return Batch(whole, len(next(iter(arrays.values()))), part, slot)


def sample_of(whole: Mapping[str, Any], i: int) -> Sample:
    """Return sample number `i` of a batch of columns."""
    return Sample((name, _value(values, i)) for name, values in whole.items())


def unpadded_sample_of(whole: Mapping[str, Any], i: int, fills: Mapping[str, float]) -> UnpaddedSample:
    """Return sample number `i` of a batch of columns, without the padding of the columns in `fills`."""
    sample = UnpaddedSample(sample_of(whole, i), fills)
    for name in fills:
        length = sample[name + LENGTH]
        if _is_of_steps(fills, name):
            longest = slice(int(length.max()) if length.numel() else 0)
            sample[name] = sample[name][(slice(None),) * length.ndim + (longest,)]
            continue
        shape = [int(length)] if length.ndim == 0 else [int(n) for n in length]
        sample[name] = sample[name][tuple(map(slice, shape))]
    return sample


def _is_of_steps(fills: Mapping[str, float], name: str) -> bool:
    """Return whether the rows of a padded column are several arrays: they have a length each."""
    return getattr(fills[name], "is_of_steps", False)


def fills_of(sample: Any) -> Mapping[str, float]:
    """Return what the rows of a sample are filled up with when a batch is made, by column."""
    return sample.__dict__["fills"] if isinstance(sample, UnpaddedSample) else {}


def transformed(transform: Callable[[Any], Any], sample: Sample, place: Callable[[], str]) -> Any:
    """Return what a transform makes of a sample: of a dict a `Sample`, whose rows are padded as those of `sample`.

    `place` returns the file and the row, for messages.
    """
    fills = fills_of(sample)
    lengths = {name: sample[name + LENGTH] for name in fills if not _is_of_steps(fills, name)}
    try:
        found = transform(sample)
    except Exception as exc:
        if hasattr(exc, "add_note"):  # Python 3.10 has no notes
            exc.add_note(f"raised by the transform of {place()}")
        raise
    if found is None and first_time("transform", repr(transform)):
        logger.warning(
            "the transform of %s returned None: expected the sample, also where it was changed in place. If None means "
            "to leave a sample out, a collate_fn has to do it.",
            place(),
        )
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
    return Pair(_row(values, i) for values in whole)


def _value(values: Any, i: int) -> Any:
    # A boolean of a sample is a bool, so that ``sample.flag is True`` works; that of a batch is a tensor.
    if isinstance(values, torch.Tensor) and values.dtype == torch.bool and values.ndim == 1:
        return bool(values[i])
    return _row(values, i)


def _row(values: Any, i: int) -> Any:
    value = values[i]
    return ListRow(value) if type(value) is list else value


class SentSample(Sample):
    """A batch in a worker's slot. In the training process it arrives as a `Sample`."""

    def __init__(self, values: Mapping[str, Any], slot: Any) -> None:
        super().__init__(values)
        self.__dict__["slot"] = slot

    def __reduce__(self) -> tuple[Any, ...]:
        return Sample, (dict(self),)


class SentPair(list[Any]):
    """A batch of inputs and targets in a worker's slot. In the training process it arrives as a list."""

    def __init__(self, values: Sequence[Any], slot: Any) -> None:
        super().__init__(values)
        self.slot = slot

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _send_sample(sample: SentSample) -> tuple[Any, ...]:
    slot = sample.__dict__["slot"]
    if slot.is_sent:
        return sample.__reduce__()
    from ray_h5.torch_data.batches.shared_memory import pack

    return _arrived_sample, (list(sample), *pack(list(sample.values()), slot))


def _send_pair(pair: SentPair) -> tuple[Any, ...]:
    from ray_h5.torch_data.batches.shared_memory import pack, unpack

    return pair.__reduce__() if pair.slot.is_sent else (unpack, pack(list(pair), pair.slot))


def _arrived_sample(names: list[str], *packed: Any) -> Sample:
    from ray_h5.torch_data.batches.shared_memory import unpack

    return Sample(zip(names, unpack(*packed), strict=True))


def _collate_samples(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch) and batch.is_whole:
        return batch.whole if batch.slot is None else SentSample(batch.whole, batch.slot)
    found = Sample()
    fills: dict[str, float] = {}
    for each in batch:
        fills.update(fills_of(each))
    for name in batch[0]:
        if name in found:
            continue  # the lengths of padded rows
        values = [each[name] for each in batch]
        if name in fills and _have_axes(values):
            lengths = [each.get(name + LENGTH) for each in batch]
            # The lengths of samples say whether rows of the column differ along several axes; those here may agree.
            axes = {each.ndim for each in lengths if isinstance(each, torch.Tensor)}
            found[name], measured = _padded(values, fills[name], axes)
            if not _is_of_steps(fills, name) and all(
                length is None or _is_length(length, row) for length, row in zip(lengths, values, strict=True)
            ):
                found[name + LENGTH] = measured
        if name not in found:
            found[name] = _stacked(name, values, collate_fn_map)
    return found


def _have_axes(values: Sequence[Any]) -> bool:
    """Return whether all values are tensors, or arrays, of one dtype with one number of axes, and at least one axis."""
    arrays = all(isinstance(each, (torch.Tensor, np.ndarray)) for each in values)
    return arrays and values[0].ndim > 0 and len({(type(each), each.dtype, each.ndim) for each in values}) == 1


def _is_length(length: Any, row: torch.Tensor | np.ndarray) -> bool:
    """Return whether an entry of a sample is the length of its row, and not what a transform set."""
    if not isinstance(length, torch.Tensor):
        return False
    return length.tolist() in (len(row), list(row.shape))


def _padded(values: Sequence[Any], fill: float, axes: Collection[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as one tensor, and their lengths, as `ray_h5.columns.varying.padding.pad_rows` does.

    `axes` has the number of axes that the lengths of single rows have.
    """
    rows = [torch.as_tensor(each) for each in values]
    shapes = torch.tensor([row.shape for row in rows])
    out = rows[0].new_full((len(rows), *shapes.amax(dim=0).tolist()), fill)
    for i, row in enumerate(rows):
        out[(i, *map(slice, row.shape))] = row
    agree = bool((shapes[:, 1:] == shapes[:1, 1:]).all())
    one_axis = set(axes) == {0} if set(axes) in ({0}, {1}) else agree
    return out, shapes[:, 0].clone() if one_axis else shapes


def _is_in_no_tensor(value: Any) -> bool:
    """Return whether a batch holds a value in a list: one that is missing, a time, compound or opaque."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "biufc"
    return value is None or isinstance(value, (np.void, np.datetime64, np.timedelta64))


def _stacked(name: str, values: list[Any], collate_fn_map: Any) -> Any:
    if any(map(_is_in_no_tensor, values)):
        return values  # as in a batch without a transform; default_collate raises
    try:
        return collate(values, collate_fn_map=collate_fn_map)
    except RuntimeError:
        shapes = sorted({tuple(each.shape) for each in values if isinstance(each, (torch.Tensor, np.ndarray))})
        if len(shapes) < 2:
            raise
        raise SchemaMismatchError(
            f"column {name!r}: samples of shapes {', '.join(map(str, shapes[:_MAX_LISTED]))} do not make one tensor; "
            "crop or pad them to one shape in a transform, or keep them as a list with a collate_fn"
        ) from None


def _collate_lists(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  torch's name
    return list(batch)


def _collate_pairs(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch) and batch.is_whole:
        return list(batch.whole) if batch.slot is None else SentPair(batch.whole, batch.slot)
    return [collate(values, collate_fn_map=collate_fn_map) for values in zip(*batch, strict=True)]


def _register() -> None:
    """Teach ``default_collate`` our samples, by the extension point that torch documents for it.

    The map is global to the process. So it is changed when the first batch is made, by `batch_of`, not at import.
    """
    if Sample in default_collate_fn_map:
        return
    default_collate_fn_map[Pair] = _collate_pairs
    default_collate_fn_map[ListRow] = _collate_lists
    # Only a message to another process carries a slot. A copy or a file has values of its own.
    ForkingPickler.register(SentSample, _send_sample)
    ForkingPickler.register(SentPair, _send_pair)
    default_collate_fn_map[Sample] = _collate_samples  # last: another thread takes this as a sign that all is done
