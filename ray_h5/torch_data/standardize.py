"""Standardize columns of datasets of plain PyTorch: fitted on the rows of a dataset, used as its transform."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from joblib import cpu_count
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from ray_h5.errors import CorruptFileError, NotFittedError, OptionError, RayH5Error, UnknownColumnError
from ray_h5.loading.batch_reader import BatchReader
from ray_h5.loading.row_source import RowSource
from ray_h5.loading.shares import Share
from ray_h5.messages import no_column
from ray_h5.options import names_options
from ray_h5.order.epoch_order import Order
from ray_h5.order.read_plan import ReadPlan
from ray_h5.order.remainder import Block
from ray_h5.order.window_steps import steps_plan
from ray_h5.torch_data.batches.tensors import Sample
from ray_h5.torch_data.subsets import as_h5
from ray_h5.transforms.moments import Axis, Moments, NanPolicy, check_axis, check_nan_policy
from ray_h5.transforms.scaler import ConstantPolicy, Scaler, check_scaling
from ray_h5.transforms.scaler_files import read_scalers, save_scalers

_READ_BYTES = 16 << 20
"""Of the rows whose moments are computed at once."""

_Value = TypeVar("_Value")


@names_options
class Standardize:
    """Standardize columns: (x - mean) / (std + epsilon), as `ray_h5.Standardize` does in Ray.

    Fit it on the training samples, then pass it as the transform of the datasets that are read.

    Parameters
    ----------
    columns : sequence of str
        The columns, each of numbers or booleans.
    axis : int, tuple of int or None
        The axes that mean and deviation are taken over, as in numpy's ``mean`` of a batch; axis 0 is the rows. 0
        scales each element of a row separately, (0, 2) each channel of (n, channels, time); None uses one mean and one
        deviation for the whole column.
    epsilon : float
        Added to the deviation.
    nan_policy : {"raise", "omit"}
        A NaN raises an error while fitting, or is left out. Samples keep NaN.
    constant : {"raise", "one"}
        A deviation of 0 raises an error, or counts as 1, so that all values of the column become 0.

    Examples
    --------
    >>> train = H5Dataset("data/*.h5", ["signal", "label"], train_rows)  # doctest: +SKIP
    >>> train.transform = Standardize(["signal"], axis=(0, 2)).fit(train)  # doctest: +SKIP
    >>> batches = loader(train, 64)  # doctest: +SKIP
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        axis: Axis = None,
        epsilon: float = 1e-8,
        nan_policy: NanPolicy = "raise",
        constant: ConstantPolicy = "raise",
    ) -> None:
        check_scaling(epsilon, constant)
        check_nan_policy(nan_policy)
        listed = list(columns) if isinstance(columns, (list, tuple)) else []
        if not listed or not all(isinstance(name, str) for name in listed) or len(set(listed)) < len(listed):
            raise OptionError(f"columns={columns!r}: expected a list of names, each once")
        self.columns, self.axis, self.epsilon = listed, check_axis(axis), float(epsilon)
        self.nan_policy: NanPolicy = nan_policy
        self.constant: ConstantPolicy = constant
        self._scalers: dict[str, Scaler] = {}

    @property
    def scalers(self) -> dict[str, Scaler]:
        """The fitted scalers by column."""
        if not self._scalers:
            raise NotFittedError(f"{self!r} has not been fitted; call fit(training_dataset) first")
        return dict(self._scalers)

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
        self._scalers = {
            name: _of_column(name, partial(Scaler, moments[name], self.epsilon, self.constant)) for name in self.columns
        }
        return self

    def __call__(self, sample: Mapping[str, Any]) -> Sample:
        """Return a sample with its columns standardized: the transform of a dataset."""
        return Sample({**sample, **self._scaled(sample, Scaler.transform, batched=False)})

    def transform_batch(self, batch: Mapping[str, Any]) -> Sample:
        """Return a batch with its columns standardized."""
        return Sample({**batch, **self._scaled(batch, Scaler.transform, batched=True)})

    def inverse_transform_batch(self, batch: Mapping[str, Any]) -> Sample:
        """Return a batch with its columns back in their own units."""
        return Sample({**batch, **self._scaled(batch, Scaler.inverse, batched=True)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to an npz file, without pickle; `ray_h5.Standardize.load` reads it, too."""
        names = ("columns", "axis", "epsilon", "nan_policy", "constant")
        save_scalers(path, self.scalers, {name: getattr(self, name) for name in names})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Standardize:
        """Read a file of `save`, or of `ray_h5.Standardize.save`."""
        scalers, options = read_scalers(path)
        try:
            made = cls(**{name: value for name, value in options.items() if name not in ("sample_rows", "seed")})
        except (TypeError, OptionError) as exc:
            raise CorruptFileError(
                f"{path}: expected a file of Standardize.save, found scalers of something else ({exc})"
            ) from exc
        made._scalers = scalers
        return made

    def __repr__(self) -> str:
        fitted = "; ".join(f"{name}: {scaler.summary}" for name, scaler in self._scalers.items()) or "not fitted"
        return f"Standardize({self.columns!r}, axis={self.axis!r}, {fitted})"

    def _scaled(self, values: Mapping[str, Any], step: Callable[..., Any], *, batched: bool) -> dict[str, Any]:
        if absent := [name for name in self.columns if name not in values]:
            raise UnknownColumnError(no_column(absent, list(values)))
        calls = {name: partial(step, each, values[name], batched=batched) for name, each in self.scalers.items()}
        return {name: _of_column(name, call) for name, call in calls.items()}

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
            of_steps = self._by_offsets(plan)
            for names in of_steps.values():
                yield steps_plan(replace(plan, columns=tuple(specs[name] for name in names)), names), names
            others = [name for name in self.columns if not any(name in names for names in of_steps.values())]
            if others:
                yield replace(plan, columns=tuple(specs[name] for name in others)), others

    def _by_offsets(self, plan: ReadPlan) -> dict[tuple[int, ...], list[str]]:
        """Return the columns of windows whose steps are reduced, by their offsets."""
        windows, found = plan.scope.windows, dict[tuple[int, ...], list[str]]()
        is_reduced = self.axis is None or 1 in (self.axis if isinstance(self.axis, tuple) else (self.axis,))
        if windows is None or not is_reduced or windows.at is not None:
            return found
        for each in windows.columns:
            if each.name in self.columns:
                found.setdefault(each.offsets, []).append(each.name)
        return found

    def _moments(self, plan: ReadPlan, names: Sequence[str]) -> Iterator[tuple[str, Moments]]:
        """Yield the moments of some rows of each column, again and again."""
        share = Share(Order(plan.num_rows), 0, max(1, plan.num_rows))
        rows = max(1, _READ_BYTES // max(1, plan.row_bytes))
        blocks: BatchReader[Block] = BatchReader(RowSource(plan, 0), share, rows, min(2, cpu_count()))
        for block in blocks:
            row_ids = block.rows.row_ids
            for name in names:
                values = block.rows.arrays.get(name)
                if values is None:  # of a table beside the files
                    assert plan.joined is not None
                    values = plan.joined.array(name, plan.files, row_ids)
                yield name, _of_column(name, partial(Moments.of, values, self.axis, self.nan_policy, row_ids))


def _of_column(name: str, call: Callable[[], _Value]) -> _Value:
    """Return what a call returns; its errors name the column."""
    try:
        return call()
    except RayH5Error as exc:
        raise type(exc)(f"column {name!r}: {exc}") from exc
