"""The way from rows to batches: read, checked, with columns that say where rows are from, decoded, padded, as tensors.

Whatever delivers samples goes this way: `H5Dataset` for a `DataLoader` or a user, the threads and the workers of
`loader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ray_h5.columns.ragged.padding import Fill, cast_rows
from ray_h5.columns.schema import ColumnSpec, check_utf8
from ray_h5.columns.sparse_rows import cast_sparse
from ray_h5.errors import OptionError
from ray_h5.loading.origin_columns import ORIGINS, Origin
from ray_h5.loading.rank_shares import Placed, Places
from ray_h5.loading.read_calls import Call
from ray_h5.plan.row_cache import owned
from ray_h5.plan.row_source import RowSource
from ray_h5.torch_data.batches.samples import Batch, decoded, padded, sample_of, transformed, with_lengths
from ray_h5.torch_data.batches.tensors import BatchArrays, Sample, new_arrays, rows_of, to_torch
from ray_h5.transforms.image_transform import DecodeImage


@dataclass(frozen=True, eq=False)
class Batcher:
    """Makes batches of rows.

    ::

        indices ─> new_arrays, read_into ─> decoded ─> collate: a batch of tensors
                   (a call: `read`)                 └> samples: those of a batch, changed by functions of a user

    It holds nothing that users wrote, so that threads may have it.

    Attributes
    ----------
    source : RowSource
        What reads rows.
    specs : mapping of str to ColumnSpec
        The columns of the files, and of tables beside them.
    origins : tuple of str
        The columns that say where samples are from.
    fills : mapping of str to Fill
        How rows of varying shape are filled up when a batch is made, by column.
    decoders : tuple of DecodeImage
        What decodes images, before functions of a user change samples.
    name : str
        The class of the dataset, for messages.
    pinned : bool
        Whether to read into pinned memory.
    """

    source: RowSource
    specs: Mapping[str, ColumnSpec]
    origins: tuple[str, ...]
    fills: Mapping[str, Fill]
    decoders: tuple[DecodeImage, ...]
    name: str
    pinned: bool = False

    # Rows -> arrays -------------------------------------------------------------------------------

    def read(self, call: Call) -> list[BatchArrays]:
        """Read some batches by one call, and return the arrays of each."""
        indices, arrays = call.read(self)
        arrays |= self.origin_arrays(indices, [task.indices for task in call.batches])
        batches = [BatchArrays({name: values[at] for name, values in arrays.items()}, indices[at]) for at in call.parts]
        return [self.decoded(batch) for batch in batches]

    def checked(self, indices: Any) -> np.ndarray:
        """Return indices as int64 from 0 on, and those of later draws; raise an error if there is no such sample."""
        if self.source.is_closed:
            raise OptionError(f"{self.name}: this dataset is closed; make a new one")
        if self.source.is_drawn and isinstance(indices, (list, Places)):
            rows = self.source.plan.num_rows
            indices = [index.among(rows) if isinstance(index, Placed) else index for index in indices]
        return self.source.checked(indices, self.name)

    def new_arrays(self, count: int) -> dict[str, np.ndarray]:
        """Return arrays for `count` rows of each column."""
        return new_arrays(self.source.batch_specs(count), pinned=self.pinned)

    def read_into(self, out: Mapping[str, np.ndarray], indices: np.ndarray) -> None:
        """Read rows into arrays, row i at place i; values that are no numbers are checked here, and cast."""
        self.source.read_into(out, indices)
        for name, spec in self.specs.items():
            if spec.dtype.hasobject or spec.dtype.kind == "S":
                self._finish(out[name], spec, indices)

    def _finish(self, values: np.ndarray, spec: ColumnSpec, indices: np.ndarray) -> None:
        """Check and cast values of a column that are no numbers here, where it is known which rows they are."""

        def where(i: int) -> str:
            return self.place(indices[i])

        if spec.kind == "sparse":
            cast_sparse(values, spec, where)
            return
        if spec.kind == "list":
            # h5py reads a row once that is asked for twice. A transform that changes one of both must not change both.
            by_row = np.argsort(indices, kind="stable")
            for place in by_row[1:][np.diff(indices[by_row]) == 0].tolist():
                values[place] = owned(values[place])
        if (spec.element or spec.dtype).kind in "OS":
            if not spec.as_bytes and spec.name not in images_of(self.decoders):
                check_utf8(values, spec.name, where)
        elif spec.kind == "ragged" or (spec.kind == "list" and spec.name in self.source.plan.cast):
            for i, row in enumerate(cast_rows(list(values), spec, where)):
                values[i] = row

    def place(self, index: int) -> str:
        """Return the file of a sample and its row there, for messages."""
        return self.source.plan.files.where(int(self.source.split(np.array([index]))[0][0]))

    def arrays(self, indices: np.ndarray, asked: Any) -> dict[str, np.ndarray]:
        """Return the arrays of some samples, which were checked; `asked` has them as a sampler gave them."""
        arrays = self.new_arrays(len(indices))
        self.read_into(arrays, indices)
        return arrays | self.origin_arrays(indices, [asked])

    def origin_arrays(self, indices: np.ndarray, asked: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        """Return the columns that say where samples are from; `asked` has batches of indices as a sampler gave them."""
        if not self.origins:
            return {}
        row_ids, names = self.source.split(indices)[0], {*self.origins}
        steps = self.source.step_numbers(row_ids) if names & {"step", "row_key"} else None
        made = {name: np.empty(len(row_ids), ORIGINS[name].spec.dtype) for name in self.origins}
        for at, origin in self._origins(row_ids, steps, asked):
            for name, values in made.items():
                values[at] = np.asarray(origin.column(name), values.dtype)
        return made

    def _origins(
        self, row_ids: np.ndarray, steps: np.ndarray | None, asked: Sequence[Sequence[int]]
    ) -> Iterator[tuple[Any, Origin]]:
        """Yield where rows are from; those of each epoch, nearly always one, and their places."""
        if not any(ORIGINS[name].of_epoch for name in self.origins):
            yield slice(None), Origin(self.source.plan, row_ids, steps)
            return
        for at, places in Places.parts_of(asked):
            of_rows = None if steps is None else steps[at]
            epoch = places.seed, places.epoch, places.draws, places.is_padding
            yield at, Origin(self.source.plan, row_ids[at], of_rows, *epoch)

    def decoded(self, arrays: BatchArrays, *, skips: bool = True) -> BatchArrays:
        """Return samples that were read with their images decoded; with `skips`, some may be left out."""
        return decoded(self.decoders, arrays, self.place, skips=skips) if self.decoders else arrays

    # Arrays -> samples and batches ----------------------------------------------------------------

    def samples(self, arrays: Mapping[str, np.ndarray], steps: Sequence[Callable[[Any], Any]]) -> Sequence[Any]:
        """Return the samples that lie in some arrays, changed by functions of a user."""
        count, fills = len(next(iter(arrays.values()))), self.fills
        sample = partial(sample_of, fills)
        if not steps:
            pad = partial(padded, fills=fills) if fills else None
            return Batch(self.whole(arrays), count, lambda whole, i: with_lengths(sample(whole, i)), pad)
        indices = getattr(arrays, "indices", None)

        def place(i: int) -> str:
            return f"sample {i} of a batch" if indices is None else self.place(indices[i])

        batch = Batch(self.whole(arrays), count, sample)
        return [transformed(steps, row, partial(place, i)) for i, row in enumerate(batch)]

    def collate(self, arrays: Mapping[str, np.ndarray]) -> Sample:
        """Return the batch that lies in some arrays."""
        return padded(self.whole(arrays), self.fills) if self.fills else self.whole(arrays)

    def whole(self, arrays: Mapping[str, np.ndarray]) -> Sample:
        """Return the batch that lies in some arrays, its rows of varying shape not padded yet."""
        whole, images = Sample(), images_of(self.decoders)
        for name, array in arrays.items():
            spec = None if name in images else self.specs.get(name)
            if spec is not None and name in self.fills and not (spec.is_tensor or spec.as_bfloat16):
                whole[name] = rows_of(array, spec)
            else:
                whole[name] = to_torch(array, spec)
        return whole


def images_of(decoders: Sequence[DecodeImage]) -> dict[str, DecodeImage]:
    """Return the columns that are delivered as images, and not as they are read, and what decodes them."""
    return {name: decoder for decoder in decoders for name in decoder.columns} if decoders else {}
