"""Samples of several `H5Dataset`s as one dataset: what a `ConcatDataset`, a `Subset` or both of them chose."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from ray_h5.buffers import empty
from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import OptionError, SchemaMismatchError
from ray_h5.index.row_data import data_of_rows
from ray_h5.manifest.row_requests import by_part
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import Fingerprint, fingerprint
from ray_h5.torch_data.batched_dataset import BatchedDataset, Many, check_indices
from ray_h5.torch_data.batches.tensors import Sample
from ray_h5.torch_data.dataset import H5Dataset

if TYPE_CHECKING:
    from ray_h5.columns.varying.padding import PadLike


class PartOfBatch(NamedTuple):
    """The samples of a batch that are of one dataset."""

    dataset: H5Dataset
    places: np.ndarray
    """Where in the batch they are, ascending."""
    arrays: dict[str, np.ndarray]


class JoinedDataset(BatchedDataset):
    """The samples of a `ConcatDataset` or `Subset` of `H5Dataset`s, in the same order.

    A batch is read by one call for each dataset that it has samples of.

    Parameters
    ----------
    source : ConcatDataset or Subset
        Of `H5Dataset`s, or again of such ones.

    Raises
    ------
    OptionError
        If another dataset is in it, or a subclass that makes samples itself.
    """

    def __init__(self, source: Dataset[Any]) -> None:
        self.source = source
        parts, self._positions = _flat(source)
        for part in parts:
            if isinstance(part, H5Dataset) and part.is_drawn:
                raise OptionError(
                    f"{part}: its rows draw other values in each epoch (Patches with per_file=, or part with random=). "
                    "Inside another dataset they would be the same in each. Pass all files to one H5Dataset, with a "
                    "predicate for a part of them; or pass blocks on a grid, with stride=."
                )
        self._parts = _padded_alike(parts)
        self._stops = np.cumsum([len(part) for part in self._parts])

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample, as it is read; the most of all datasets."""
        return max((part.row_bytes for part in self._parts), default=0)

    @property
    def call_bytes(self) -> int:
        """Bytes that a loader asks for at once, as the dataset of which these are most says."""
        return max((part.call_bytes for part in self._parts), default=0)

    @property
    def is_transformed(self) -> bool:
        """Whether a dataset has a transform."""
        return any(part.is_transformed for part in self._parts)

    @property
    def is_repeatable(self) -> bool:
        """Whether all transforms are of this package: they draw no numbers from global generators."""
        return all(part.is_repeatable for part in self._parts)

    @property
    def decodes(self) -> bool:
        """Whether a dataset decodes images of batches where these are read."""
        return any(part.decodes for part in self._parts)

    @property
    def skips_rows(self) -> bool:
        """Whether a dataset leaves out rows whose images cannot be decoded."""
        return any(part.skips_rows for part in self._parts)

    @property
    def is_compiled(self) -> bool | None:
        """Whether the compiled loop does most of the work of a call; None before all datasets were read."""
        found = [part.source.is_compiled for part in self._parts]
        return None if None in found and False not in found else all(found)

    @property
    def has_own_samples(self) -> bool:
        """Whether a dataset is a subclass that makes samples or batches itself."""
        return any(part.has_own_samples for part in self._parts)

    def __len__(self) -> int:
        return len(self._positions)

    def fingerprint(self, order: Order) -> Fingerprint:
        """Return the order, and the files and rows of each dataset; samplers put them into their states."""
        parts = self._by_part(np.arange(len(self)))
        chosen = [(self._parts[number], rows) for number, _, rows in parts]
        found = [
            fingerprint(part.index.files, part.row_ids(rows), Order(len(rows)), data_of_rows(part.index))
            for part, rows in chosen
        ]
        return fingerprint(None, None, order, parts=found)

    def _several(self, indices: Many) -> Sequence[Any]:
        wanted = check_indices(indices, len(self), type(self).__name__)
        samples: list[Any] = [None] * len(wanted)
        for part, places, rows in self._by_part(wanted):
            found = self._parts[part].__getitems__(rows)
            for place, sample in zip(places, found, strict=len(found) == len(places)):
                samples[place] = sample
        return samples

    def read_batches(self, batches: Sequence[Sequence[int]], *, pinned: bool = False) -> list[list[PartOfBatch]]:
        """Read some batches, each dataset by one call; with `pinned`, into pinned memory."""
        bounds = np.cumsum([0, *map(len, batches)])
        found: list[list[PartOfBatch]] = [[] for _ in batches]
        for number, places, rows in self._by_part(np.concatenate([np.asarray(each, np.int64) for each in batches])):
            part = self._parts[number]
            arrays = part.read(rows, part.new_pinned(len(rows)) if pinned else None)
            cuts = np.searchsorted(places, bounds)
            for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
                if stop > start:
                    mine = {name: values[start:stop] for name, values in arrays.items()}
                    here, kept = part.decoded(mine, rows[start:stop])
                    there = places[start:stop] - bounds[i]
                    found[i].append(PartOfBatch(part, there if kept is None else there[kept], dict(here)))
        return [_closed_up(parts) for parts in found]

    @property
    def takes_hints(self) -> bool:
        """Whether reads of any part wait, so that `will_read` does something."""
        return any(each.source.takes_hints for each in self._parts)

    def will_read(self, indices: np.ndarray) -> None:
        """Take the hint that these samples are read next."""
        for part, _, rows in self._by_part(indices):
            self._parts[part].source.will_read(rows)

    @contextlib.contextmanager
    def sharing_chunks(self, threads: int = 1) -> Iterator[None]:
        """Keep decoded chunks in memory until the end of an epoch that so many threads read."""
        with contextlib.ExitStack() as parts:
            for each in self._parts:
                parts.enter_context(each.source.sharing_chunks(threads))
            yield

    def samples(self, parts: Sequence[PartOfBatch]) -> Sequence[Any]:
        """Return the samples of a batch that `read_batches` returned, transformed."""
        if len(parts) == 1:
            return parts[0].dataset.samples(parts[0].arrays)
        samples: list[Any] = [None] * _count(parts)
        for part in parts:
            for place, sample in zip(part.places, part.dataset.samples(part.arrays), strict=True):
                samples[place] = sample
        return samples

    def collate(self, parts: Sequence[PartOfBatch]) -> Any:
        """Return the batch that a `DataLoader` would make of the samples in `parts`, transforms left out."""
        wholes = [part.dataset.collate(part.arrays) for part in parts]
        if len(wholes) == 1:
            return wholes[0]
        count, places = _count(parts), [part.places for part in parts]
        fills = parts[0].dataset._fills
        return Sample(
            (name, _merged([each[name] for each in wholes], places, count, fills.get(name, 0))) for name in wholes[0]
        )

    def samples_by_part(self) -> Iterator[tuple[H5Dataset, np.ndarray]]:
        """Yield each dataset that has samples here, and their indices in it."""
        for part, _, rows in self._by_part(np.arange(len(self))):
            yield self._parts[part], rows

    def with_padding(self, pad: PadLike) -> JoinedDataset:
        """Return the same samples, with another option `pad` of each dataset."""
        other = copy.copy(self)
        other._parts = _padded_alike([part.with_padding(pad) for part in self._parts])
        return other

    def check_alike(self) -> None:
        """Raise a SchemaMismatchError unless batches of all datasets have the same columns, dtypes and shapes."""
        described = [_described(part) for part in self._parts]
        for number, found in enumerate(described):
            for name in dict.fromkeys([*described[0], *found]):
                first, here = (each.get(name, "missing") for each in (described[0], found))
                if first != here:
                    raise SchemaMismatchError(
                        f"datasets 0 and {number} of the {type(self.source).__name__} do not make one batch: column "
                        f"{name!r} is {first} in {self._parts[0]}, and {here} in {self._parts[number]}; choose columns="
                        "[...] and dtypes={...} that all of them have, or pad=True for rows that differ in length"
                    )

    def _by_part(self, indices: np.ndarray) -> Iterable[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the number of each dataset that has samples among these, their places, and their indices there."""
        positions = self._positions[indices]
        parts = np.searchsorted(self._stops, positions, side="right")
        for part, places in by_part(parts):
            yield part, places, positions[places] - (self._stops[part] - len(self._parts[part]))

    def __repr__(self) -> str:
        return f"{type(self.source).__name__}({len(self)} samples of {', '.join(map(repr, self._parts))})"


def _flat(dataset: Dataset[Any]) -> tuple[list[H5Dataset], np.ndarray]:
    """Return all datasets in `dataset`, and where its samples are in their concatenation."""
    if isinstance(dataset, H5Dataset):
        return [dataset], np.arange(len(dataset))
    if isinstance(dataset, JoinedDataset):
        return dataset._parts, dataset._positions
    if _is(dataset, Subset):
        parts, positions = _flat(dataset.dataset)
        return parts, positions[check_indices(dataset.indices, len(positions), "Subset")]
    if _is(dataset, ConcatDataset):
        found: list[H5Dataset] = []
        joined, total = [np.empty(0, np.int64)], 0
        for each in dataset.datasets:
            parts, positions = _flat(each)
            found += parts
            joined.append(positions + total)
            total += sum(map(len, parts))
        return found, np.concatenate(joined)
    if isinstance(dataset, (list, tuple)):
        raise OptionError("loader: expected one dataset or paths, found several datasets; pass ConcatDataset([...])")
    if isinstance(dataset, DataLoader):
        raise OptionError("loader: expected a dataset or paths, found a DataLoader; pass its dataset")
    # A DataLoader takes no sampler for a dataset that has its own order.
    sampler = "" if isinstance(dataset, IterableDataset) else ", sampler=OrderSampler(dataset)"
    raise OptionError(
        f"expected an H5Dataset, or a ConcatDataset or Subset of H5Datasets, found {type(dataset).__name__}. For any "
        f"other dataset write DataLoader(dataset, batch_size{sampler})"
    )


def _padded_alike(parts: list[H5Dataset]) -> list[H5Dataset]:
    """Return datasets which pad a column if its rows differ in shape in one of them, or between them."""
    by_part = [part.row_shapes() for part in parts]
    found: dict[str, tuple[int | None, ...]] = {}
    for name in by_part[0] if by_part else ():
        shapes = [of_part[name] for of_part in by_part if name in of_part]
        if len(shapes) == len(parts) and len({len(shape) for shape in shapes}) == 1:
            merged = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
            if None in merged:
                found[name] = merged
    return [part.padded_as(found) for part in parts] if found else parts


def _closed_up(parts: list[PartOfBatch]) -> list[PartOfBatch]:
    """Return the parts of a batch without the places of samples that were left out."""
    there = np.sort(np.concatenate([part.places for part in parts])) if parts else np.empty(0, np.int64)
    if len(there) and there[-1] == len(there) - 1:
        return parts
    return [part._replace(places=np.searchsorted(there, part.places)) for part in parts if len(part.places)]


def _is(dataset: Dataset[Any], kind: type[Any]) -> bool:
    """Return whether a dataset is of a kind whose samples no subclass makes itself."""
    methods = ("__getitem__", "__getitems__", "__len__")
    return isinstance(dataset, kind) and all(
        getattr(type(dataset), name, None) is getattr(kind, name, None) for name in methods
    )


def _count(parts: Sequence[PartOfBatch]) -> int:
    return sum(len(part.places) for part in parts)


def _merged(columns: Sequence[Any], places: Sequence[np.ndarray], count: int, fill: float) -> Any:
    """Return the values of a column of several datasets in the order of the batch; padded ones to the longest."""
    if isinstance(columns[0], torch.Tensor) and columns[0].layout == torch.sparse_csr:
        from ray_h5.transforms.sparse_tensors import merged_csr

        return merged_csr(columns, places)
    if isinstance(columns[0], torch.Tensor):
        # By NumPy: torch splits even small copies over its threads, which wait for each other where CPUs are busy.
        arrays = [_bits(values) for values in columns]
        shapes = {values.shape[1:] for values in arrays}
        if len(shapes) > 1:
            longest = tuple(map(max, zip(*shapes, strict=True)))
            array = np.full((count, *longest), fill, arrays[0].dtype)
        else:
            array = empty((count, *shapes.pop()), arrays[0].dtype)
        for values, here in zip(arrays, places, strict=True):
            inside: Any = (here, *map(slice, values.shape[1:]))
            array[inside] = values
        return torch.from_numpy(array).view(columns[0].dtype)
    merged: list[Any] = [None] * count
    for column, here in zip(columns, places, strict=True):
        for place, value in zip(here, column, strict=True):
            merged[place] = value
    return merged


def _listed(spec: ColumnSpec | None) -> str:
    """Return what a list holds, as text. The lengths of rows may differ from dataset to dataset."""
    return "a list" if spec is None else f"a list of {spec.element} arrays of {len(spec.ragged_shape)} axes"


def _bits(values: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor as an array; of bfloat16, which NumPy lacks, their bits."""
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def _described(part: H5Dataset) -> dict[str, str]:
    """Return the columns of batches of a dataset, each with its dtype and shape as text."""
    none = np.empty(0, np.int64)
    empty = part.collate(part.decoded(part.read(none), none)[0])
    found = {}
    for name, values in empty.items():
        if not isinstance(values, torch.Tensor):
            found[name] = _listed(None if part._is_decoded(name) else part._ragged.get(name))
            continue
        shape = f"padded to {values.ndim - 1} axes" if name in part._fills else str(tuple(values.shape[1:]))
        found[name] = f"{str(values.dtype).removeprefix('torch.')} {shape}"
    return found
