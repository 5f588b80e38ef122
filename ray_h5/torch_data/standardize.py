"""Standardize columns of datasets of plain PyTorch: fitted on the rows of a dataset, used as its transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from joblib import cpu_count
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from ray_h5.errors import NotFittedError, UnknownColumnError
from ray_h5.loading.rank_shares import Share
from ray_h5.loading.read_calls import BatchReader
from ray_h5.messages import no_column
from ray_h5.options import takes_options_of
from ray_h5.order.epoch_order import Order
from ray_h5.plan.blocks import start_of
from ray_h5.plan.read_plan import ReadPlan, steps_plan
from ray_h5.plan.row_source import RowSource
from ray_h5.torch_data.batches.tensors import Sample
from ray_h5.torch_data.h5_data_loader import as_h5
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.scaler import Scaler, Standardization, with_column

_READ_BYTES = 16 << 20
"""Of the rows whose moments are computed at once."""


@takes_options_of(Standardization)
class Standardize(Standardization):
    """Standardize columns: (x - mean) / (std + epsilon), as `ray_h5.Standardize` does in Ray.

    Fit it on the training samples, then pass it as the transform of the datasets that are read.

    Parameters
    ----------
    **options
        Those of `Standardization`: what is standardized, and how.

    Examples
    --------
    >>> train = H5Dataset("data/*.h5", ["signal", "label"], train_rows)  # doctest: +SKIP
    >>> train.transform = Standardize(["signal"], axis=(0, 2)).fit(train)  # doctest: +SKIP
    >>> batches = loader(train, 64)  # doctest: +SKIP
    """

    def fit(self, data: Dataset[Any]) -> Standardize:
        """Read each sample once, and return this object with the moments of the columns.

        A step that several windows hold counts once where `axis` has the axis of the steps.

        Parameters
        ----------
        data : H5Dataset, a ConcatDataset or Subset of H5Datasets, or a loader of them
            The training samples, as they are read: transforms are left out.

        Raises
        ------
        UnknownColumnError
            If a column is missing.
        NonFiniteError
            If a value is infinite, or is NaN and `nan_policy` is "raise".
        NotFittedError
            If there are no samples.
        """
        moments: dict[str, Moments] = {}
        for plan, names in self._plans(data.dataset if isinstance(data, DataLoader) else data):
            for name, part in self._moments(plan, names):
                moments[name] = moments[name].merge(part) if name in moments else part
        if not moments:
            raise NotFittedError("the dataset has no samples; expected at least one to fit on")
        self._fit_to(moments)
        return self

    def __call__(self, sample: Mapping[str, Any]) -> Sample:
        """Return a sample with its columns standardized: the transform of a dataset."""
        return self._with(sample, Scaler.transform, batched=False)

    def transform_batch(self, batch: Mapping[str, Any]) -> Sample:
        """Return a batch with its columns standardized."""
        return self._with(batch, Scaler.transform, batched=True)

    def inverse_transform_batch(self, batch: Mapping[str, Any]) -> Sample:
        """Return a batch with its columns back in their own units."""
        return self._with(batch, Scaler.inverse, batched=True)

    def _with(self, values: Mapping[str, Any], step: Callable[..., Any], *, batched: bool) -> Sample:
        self._check_there(values)
        own = {name: values[name] for name in self.columns}
        return Sample({**values, **self._scaled(step, own, batched=batched)})

    def _plans(self, dataset: Dataset[Any]) -> Iterator[tuple[ReadPlan, list[str]]]:
        """Yield plans of rows, and the columns that are read by them."""
        for part in dataset.datasets if isinstance(dataset, ConcatDataset) else [dataset]:
            plan = as_h5(part).source.plan
            specs = {spec.name: spec for spec in plan.columns}
            if absent := [name for name in self.columns if name not in specs]:
                raise UnknownColumnError(no_column(absent, list(specs)))
            if plan.selection is not None:  # a Subset may have a row twice
                row_ids = np.unique(plan.selection)
                plan = replace(plan, selection=row_ids, order=Order(len(row_ids)))
            windows, offsets = plan.scope.windows, dict[str, tuple[int, ...]]()
            reduces_steps = self.axis is None or 1 in (self.axis if isinstance(self.axis, tuple) else (self.axis,))
            if windows is not None and windows.at is None and reduces_steps:
                offsets = {column.name: column.offsets for column in windows.every}
            groups: dict[tuple[int, ...] | None, list[str]] = {}
            for name in self.columns:
                groups.setdefault(offsets.get(name), []).append(name)
            for steps, names in groups.items():
                some = replace(plan, columns=tuple(specs[name] for name in names))
                yield some if steps is None else steps_plan(some, names), names

    def _moments(self, plan: ReadPlan, names: Sequence[str]) -> Iterator[tuple[str, Moments]]:
        """Yield the moments of some rows of each column, again and again."""
        share = Share.of(plan, start_of(plan))
        rows = max(1, _READ_BYTES // max(1, plan.row_bytes))
        of_bits = {spec.name for spec in plan.columns if spec.as_bfloat16}
        for block in BatchReader(RowSource(plan, 0), share, rows, min(2, cpu_count())):
            row_ids = block.rows.row_ids
            call = partial(Moments.of, axis=self.axis, nan_policy=self.nan_policy, row_ids=row_ids)
            for name in names:
                values = block.rows.arrays.get(name)
                if values is None:  # of a table beside the files
                    values = plan.beside.array(name, plan.files, row_ids)
                if name in of_bits:  # those of bfloat16 are the upper half of those of float32
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                yield name, with_column({name: values}, name, call)
