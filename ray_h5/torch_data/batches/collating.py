"""Batches that need no collating, and how a worker sends them to the training process.

A `DataLoader` asks a map-style dataset that has ``__getitems__`` for all samples of a batch at once, and then stacks
them. Here a batch is read into one array for each column. ``default_collate`` returns these arrays as they are, as
tensors, unless a user changed the samples: it finds a function for our types in its map (see `_register`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ray_h5.columns.schema import LENGTH
from ray_h5.errors import SchemaMismatchError
from ray_h5.torch_data.batches.samples import Batch, Pair, Sample, fills_of, is_of_steps

_MAX_LISTED = 5


def batch_of(arrays: Mapping[Any, np.ndarray], whole: Any, part: Callable[[Any, int], Any]) -> Batch:
    """Return the samples in some arrays. `whole` is the batch made of the arrays."""
    _register()
    slot = None
    if get_worker_info() is not None:
        from ray_h5.torch_data.batches.shared_memory import slot_of

        slot = next((found for array in arrays.values() if (found := slot_of(array)) is not None), None)
    return Batch(whole, len(next(iter(arrays.values()))), part, slot)


def _register() -> None:
    """Teach ``default_collate`` our samples, by the extension point that torch documents for it.

    The map is global to the process. So it is changed when the first batch is made, by `batch_of`, not at import.
    """
    if Sample in default_collate_fn_map:
        return
    default_collate_fn_map[Pair] = _collate_pairs
    # Only a message to another process carries a slot. A copy or a file has values of its own.
    ForkingPickler.register(SentSample, _send_sample)
    ForkingPickler.register(SentPair, _send_pair)
    default_collate_fn_map[Sample] = _collate_samples  # last: another thread takes this as a sign that all is done


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
            if not is_of_steps(fills, name) and all(
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
    """Return rows as one tensor, and their lengths, as `ray_h5.columns.padding.pad_rows` does.

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


def _stacked(name: str, values: list[Any], collate_fn_map: Any) -> Any:
    try:
        return collate(values, collate_fn_map=collate_fn_map)
    except RuntimeError:
        shapes = sorted({tuple(np.shape(each)) for each in values})
        if len(shapes) < 2:
            raise
        raise SchemaMismatchError(
            f"column {name!r}: samples of shapes {', '.join(map(str, shapes[:_MAX_LISTED]))} do not make one tensor; "
            "crop or pad them to one shape in a transform, or keep them as a list with a collate_fn"
        ) from None


def _collate_pairs(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch) and batch.is_whole:
        return list(batch.whole) if batch.slot is None else SentPair(batch.whole, batch.slot)
    return [collate(values, collate_fn_map=collate_fn_map) for values in zip(*batch, strict=True)]
