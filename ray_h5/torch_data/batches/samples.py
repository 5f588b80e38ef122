"""Samples, and batches that need no collating.

A `DataLoader` asks a map-style dataset that has ``__getitems__`` for all samples of a batch at once, and then stacks
them. Here a batch is read into one array for each column. ``default_collate`` returns these arrays as they are, as
tensors, unless a user changed the samples: it finds a function for our types in its map (see `_register`).
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from functools import partial
from itertools import takewhile
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ray_h5.columns.ragged.padding import Fill, lengths_of
from ray_h5.columns.schema import LENGTH
from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError
from ray_h5.lru import first_time
from ray_h5.messages import few, no_column
from ray_h5.torch_data.batches.shared_memory import pack, unpack
from ray_h5.torch_data.batches.tensors import (
    BatchArrays,
    Listed,
    Pair,
    Sample,
    fills_of,
    own_lengths,
    padded_later,
    row_tensor,
)
from ray_h5.transforms.image_transform import IS_NULL, DecodeImage

logger = logging.getLogger(__name__)


class Batch(MutableSequence[Any]):
    """The samples of a batch. Each is made when it is first looked at.

    A ``collate_fn`` may use it as a list: sort it, add or remove samples, change them.

    Parameters
    ----------
    source : object
        What samples are made of.
    count : int
        How many samples there are.
    part : callable
        Returns sample number i of the source; called with both.
    collate : callable, optional
        Returns the batch that is made of the source; by default it is the source itself.
    """

    def __init__(
        self, source: Any, count: int, part: Callable[[Any, int], Any], collate: Callable[[Any], Any] | None = None
    ) -> None:
        _register()
        self._source, self._count, self._part, self._collate = source, count, part, collate
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._changed: list[Any] | None = None

    @property
    def whole(self) -> Any:
        """The batch that ``default_collate`` would make of the samples as they were read."""
        return self._source if self._collate is None else self._collate(self._source)

    @property
    def is_whole(self) -> bool:
        """Whether the samples are those that were read, unchanged and in that order."""
        return self._changed is None and all(_is_same(sample, entries) for sample, entries in self._seen.values())

    def __len__(self) -> int:
        return self._count if self._changed is None else len(self._changed)

    def __getitem__(self, index: Any) -> Any:
        if self._changed is not None:
            return self._changed[index]
        at = range(self._count)[index]
        return [self._sample(i) for i in at] if isinstance(at, range) else self._sample(at)

    def _sample(self, i: int) -> Any:
        if i not in self._seen:
            sample = self._part(self._source, i)
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

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # as a worker sends them whose collate_fn returns the samples

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


def sample_of(fills: Mapping[str, Fill], whole: Mapping[str, Any], i: int) -> Sample:
    """Return sample number `i` of a batch of columns, whose rows are padded when a batch is made of it and others."""
    sample = Sample()
    for name, values in whole.items():
        row = _row(values, i)
        # A boolean of a sample is a bool, so that ``sample.flag is True`` works; that of a batch is a tensor.
        if isinstance(row, torch.Tensor) and row.dtype == torch.bool and row.ndim == 0:
            row = bool(row)
        sample[name] = row_tensor(row) if name in fills else row
    return padded_later(sample, fills)


def with_lengths(sample: Sample) -> Sample:
    """Return a sample with the lengths of the rows that are padded later, unless a transform has set them."""
    lengths, fills = {}, fills_of(sample)
    for name, fill in fills.items():
        flat = _flat([sample[name]], fill) if name in sample and name + LENGTH not in sample else None
        if flat is not None:  # by shapes alone: a row may be on another device
            rows, outer, _, axes = flat
            found = lengths_of(rows, axes, fill.shape)
            lengths[name + LENGTH] = torch.from_numpy(found.reshape(*outer, *found.shape[1:]))[0]
    sample.update(lengths)
    return padded_later(sample, fills, lengths)


def steps_of(transform: Any) -> tuple[tuple[DecodeImage, ...], tuple[Callable[[Any], Any], ...]]:
    """Return the decoders that a transform begins with, and its other functions, which change samples one by one."""
    steps = transform if isinstance(transform, (list, tuple)) else () if transform is None else (transform,)
    decoders = tuple(takewhile(lambda step: isinstance(step, DecodeImage), steps))
    return decoders, tuple(steps[len(decoders) :])


def check_transform(transform: Any, columns: Sequence[str]) -> None:
    """Raise unless a transform is a function of a sample, or a list of these, and its columns are there."""
    decoders, others = steps_of(transform)
    if not (decoders or others) or not all(map(callable, others)):
        raise OptionError(f"transform={transform!r}: expected a function of a sample, a list of them, or None")
    for decoder in decoders:
        if absent := [name for name in decoder.columns if name not in columns]:
            raise UnknownColumnError(f"DecodeImage: {no_column(absent, columns)}")


def decoded(
    decoders: Sequence[DecodeImage], arrays: BatchArrays, place: Callable[[int], str], *, skips: bool
) -> BatchArrays:
    """Return a batch with images decoded. With `skips`, rows without an image may be left out.

    `place` returns the file and the row of a sample, for messages.
    """
    made, failed = dict(arrays), np.zeros(len(arrays.indices), bool)
    for decoder in decoders:
        for name in decoder.columns:
            images, are_null = decoder.decode(arrays[name], lambda i: place(arrays.indices[i]), name, skips=skips)
            if images.dtype == object:  # of several sizes: tensors, as other columns are delivered
                for at, image in np.ndenumerate(images):
                    images[at] = None if image is None else torch.from_numpy(np.ascontiguousarray(image))
            made[name] = images
            if decoder.on_error == "null":
                made[name + IS_NULL] = are_null
            else:
                failed |= are_null
    if not failed.any():
        return BatchArrays(made, arrays.indices)
    return BatchArrays({name: values[~failed] for name, values in made.items()}, arrays.indices[~failed])


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


def transformed(steps: Sequence[Callable[[Any], Any]], sample: Sample, place: Callable[[], str]) -> Any:
    """Return what functions make of a sample: of a dict a `Sample`, whose rows are padded as those of `sample`.

    `place` returns the file and the row, for messages.
    """
    result: Any = sample
    try:
        for step in steps:
            result = step(result)
    except Exception as exc:
        if hasattr(exc, "add_note"):  # Python 3.10 has no notes
            exc.add_note(f"raised by the transform of {place()}")
        raise
    if result is None and first_time("transform", repr(steps)):
        logger.warning(
            "the transform of %s returned None: expected the sample, also where it was changed in place. If None means "
            "to leave a sample out, a collate_fn has to do it.",
            place(),
        )
    # A plain dict has no attributes, and default_collate does not name the column that it cannot stack.
    made = Sample(result) if type(result) is dict else result
    return with_lengths(padded_later(made, fills_of(sample))) if type(made) is Sample else made


def pair_of(whole: Sequence[Any], i: int) -> Pair:
    """Return pair number `i` of a batch of inputs and targets."""
    return Pair(_row(values, i) for values in whole)


def _row(values: Any, i: int) -> Any:
    value = values[i]
    return Listed(value) if type(value) is list else value


def _send(batch: Sample | Listed) -> tuple[Any, ...]:
    """Reduce a batch for a message to another process: in shared memory if it lies in a slot of this worker."""
    if get_worker_info() is not None and (packed := pack(list(batch.values() if isinstance(batch, Sample) else batch))):
        names = list(batch) if isinstance(batch, Sample) else None
        return _arrived, (names, fills_of(batch), own_lengths(batch), *packed)
    return batch.__reduce__()


def _arrived(names: list[str] | None, fills: Mapping[str, Fill], lengths: list[str], *packed: Any) -> Sample | Listed:
    values = unpack(*packed)
    return Listed(values) if names is None else padded_later(Sample(zip(names, values, strict=True)), fills, lengths)


def _collate_samples(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch) and batch.is_whole:
        return batch.whole
    fills: dict[str, Fill] = {}
    for sample in batch:  # rows of the dataset of a sample may have one length
        for name, fill in fills_of(sample).items():
            fills[name] = max(fill, fills.get(name, fill), key=lambda some: some.shape.count(None))
    made_anew = own_lengths(batch[0])
    rows = {name: [sample[name] for sample in batch] for name in batch[0] if name not in made_anew}
    return padded(rows, fills, partial(_stacked, collate_fn_map))


def padded(
    columns: Mapping[str, Any], fills: Mapping[str, Fill], stacked: Callable[[str, Any], Any] = lambda _, rows: rows
) -> Sample:
    """Return the batch of some rows: those of varying shape as one tensor, and their lengths.

    Parameters
    ----------
    columns : mapping of str to list or tensor
        The rows of each column.
    fills : mapping of str to Fill
        How rows are filled up, by column.
    stacked : callable
        Called with the name and the rows of the other columns, and of those that are no arrays of one dtype.
    """
    padded_sample = Sample()
    for name, rows in columns.items():
        if name in fills and isinstance(rows, torch.Tensor):  # all rows have one shape
            padded_sample[name] = rows
            padded_sample.setdefault(name + LENGTH, torch.full((len(rows),), rows.shape[1]))
            continue
        flat = _flat(rows, fills[name]) if name in fills else None
        if flat is None:
            padded_sample[name] = stacked(name, rows)
            continue
        values, outer, dtype, axes = flat
        if is_tensor := isinstance(dtype, torch.dtype):  # NumPy lacks bfloat16
            halves = dtype == torch.bfloat16
            values = [None if row is None else (row.float() if halves else row).numpy() for row in values]
        of_rows = next((row.dtype for row in values if row is not None), None) if is_tensor else dtype
        array, lengths = map(torch.from_numpy, fills[name].padded(name, values, outer, of_rows, axes))
        padded_sample[name] = array.to(dtype) if is_tensor else array
        if name + LENGTH not in columns:  # a transform may have set them
            padded_sample[name + LENGTH] = lengths
    return padded_sample


def _flat(rows: Any, fill: Fill) -> tuple[list[Any], list[int], Any, int] | None:
    """Return the arrays of rows, of which steps have several, the shape around them, their one dtype, and axes."""
    outer = [len(rows)]
    for axis in fill.steps:
        if not all(isinstance(several, list) and len(several) == axis for several in rows):
            return None
        rows, outer = [row for several in rows for row in several], [*outer, axis]
    try:
        kinds = set(map(attrgetter("dtype", "ndim"), [row for row in rows if row is not None]))
    except AttributeError:
        return None
    dtype, axes = kinds.pop() if kinds else (fill.dtype, len(fill.shape))
    return None if kinds or not axes else (rows, outer, dtype, axes)


def _stacked(collate_fn_map: Any, name: str, values: list[Any]) -> Any:
    """Return the values of a column of a batch."""
    for value in values:  # one that is missing, a time, compound or opaque
        is_other = isinstance(value, np.ndarray) and value.dtype.kind not in "biufc"
        if is_other or value is None or isinstance(value, (np.void, np.datetime64, np.timedelta64)):
            return values  # as in a batch without a transform; default_collate raises
    try:
        return collate(values, collate_fn_map=collate_fn_map)
    except RuntimeError:
        shapes = sorted({tuple(value.shape) for value in values if isinstance(value, (torch.Tensor, np.ndarray))})
        if len(shapes) < 2:
            raise
        raise SchemaMismatchError(
            f"column {name!r}: samples of shapes {few([*map(str, shapes)], 5)} do not make one tensor; "
            "crop or pad them to one shape in a transform, or keep them as a list with a collate_fn"
        ) from None


def _collate_lists(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  torch's name
    return list(batch)


def _collate_pairs(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch) and batch.is_whole:
        return Listed(batch.whole)
    return [collate(values, collate_fn_map=collate_fn_map) for values in zip(*batch, strict=True)]


def _register() -> None:
    """Teach ``default_collate`` our samples, by the extension point that torch documents for it.

    The map is global to the process. So it is changed when the first `Batch` is made, not at import.
    """
    if Sample in default_collate_fn_map:
        return
    default_collate_fn_map[Pair] = _collate_pairs
    default_collate_fn_map[Listed] = _collate_lists
    # Only a message to another process carries a slot. A copy or a file has values of its own.
    for kind in (Sample, Listed):
        ForkingPickler.register(kind, _send)
    default_collate_fn_map[Sample] = _collate_samples  # last: another thread takes this as a sign that all is done
