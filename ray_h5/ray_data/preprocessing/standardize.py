"""`Standardize`, a preprocessor of Ray that scales columns by their mean and deviation."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import Dataset, Schema
from ray.data.expressions import col
from ray.data.preprocessor import Preprocessor, PreprocessorNotFittedException

from ray_h5.errors import (
    NotFittedError,
    OptionError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.loading.origin_columns import IS_PADDING_SPEC, ROW_ID_SPEC
from ray_h5.messages import no_column
from ray_h5.options import as_integer, takes_options_of
from ray_h5.ray_data.arrow.batch_formats import changed, names_of
from ray_h5.ray_data.arrow.blocks import is_bfloat16
from ray_h5.ray_data.datasource import by_elements
from ray_h5.transforms.moments import Axis, Moments, NanPolicy
from ray_h5.transforms.scaler import Scaler, Standardization, with_column


class PreprocessorNotFittedError(NotFittedError, PreprocessorNotFittedException):
    """A preprocessor is used before it is fitted; both Ray's error of that name and a `RayH5Error`."""


@takes_options_of(Standardization)
class Standardize(Standardization, Preprocessor):
    """Standardize columns: (x - mean) / (std + epsilon).

    `fit` reads each selected row once, without tail handling, in tasks that return only moments, in float64. Rows that
    the column ``is_padding`` marks do not count. Fit on the training split alone, or the validation split is no longer
    unseen. `transform` fuses into the tasks that read.

    Parameters
    ----------
    **options
        Those of `Standardization`: what is standardized, and how.
    nan_policy : {"raise", "omit"}
        A NaN raises an error while fitting, or is left out. `transform` keeps NaN. The error names the row if the
        dataset has the column ``row_id``.
    sample_rows : int, optional
        Fit on that many rows, drawn at random. The number is exact, and the other rows are not read, if the dataset
        has the column ``row_id`` (``read_h5(..., include_row_ids=True)``) and each id once; a union of two reads has
        ids twice. Otherwise the number is approximate.
    seed : int
        The seed of that draw.

    Raises
    ------
    OptionError
        If an option cannot be used.

    Notes
    -----
    Its methods raise `PreprocessorNotFittedError` before `fit`, `UnknownColumnError` where a column is missing, and
    `SchemaMismatchError` where rows have another shape than those it was fitted on. `fit` raises `ConstantColumnError`
    and `NonFiniteError`, see `constant` and `nan_policy`.

    Examples
    --------
    >>> train, test = ds.train_test_split(0.1)  # doctest: +SKIP
    >>> standardize = Standardize(["signal"], axis=(0, 2)).fit(train)  # doctest: +SKIP
    >>> train, test = standardize.transform(train), standardize.transform(test)  # doctest: +SKIP
    """

    _names = (*Standardization._names, "sample_rows", "seed")
    _not_fitted = PreprocessorNotFittedError

    def __init__(
        self, columns: Sequence[str], *, sample_rows: int | None = None, seed: int = 0, **options: Any
    ) -> None:
        Preprocessor.__init__(self)
        Standardization.__init__(self, columns, **options)
        self.sample_rows = None if sample_rows is None else as_integer("sample_rows", sample_rows, 1)
        self.seed = as_integer("seed", seed, 0)

    def transform(self, ds: Dataset, **options: Any) -> Dataset:
        """Return the dataset with its columns standardized; `options` are those of Ray's ``transform``."""
        schema, scalers = ds.schema(fetch_if_missing=False), self.scalers
        if schema is not None:  # what would be an error of Ray's in a task is raised here
            _check_numbers(schema, self.columns)
            types = zip(schema.names, schema.types, strict=True)
            shapes = {name: getattr(type_, "shape", ()) for name, type_ in types}
            for name in self.columns:
                if None in shapes.get(name, ()):
                    raise SchemaMismatchError(
                        f"column {name!r}: its rows differ in shape, {shapes[name]} with None for axes that differ; "
                        f"expected the shape it was fitted on: {scalers[name].mean.shape} with 1 for reduced axes"
                    )
            fixed = {name: shape for name, shape in shapes.items() if None not in shape}
            self._transform_arrow({name: np.empty((0, *shape), np.float32) for name, shape in fixed.items()})
        return super().transform(ds, **options)

    def transform_batch(self, data: Any) -> Any:
        """Return a batch with its columns standardized, as for inference.

        Parameters
        ----------
        data : mapping of str to ndarray or tensor, pandas.DataFrame or pyarrow.Table
            A batch, or a mapping of one row; the result has the same type. Lists in a table become tensors.
        """
        return self._transform_arrow(data, batched=not isinstance(data, Mapping))

    def inverse_transform_batch(self, data: Any) -> Any:
        """Return a batch with its fitted columns back in their own units.

        Parameters
        ----------
        data : mapping of str to ndarray or tensor, pandas.DataFrame or pyarrow.Table
            Standardized values of at least one of the fitted columns. The result has the same type.
        """
        if not self.scalers.keys() & set(names_of(data)):
            raise UnknownColumnError(no_column(self.columns, names_of(data)))
        return changed(data, self.columns, partial(self._scaled, Scaler.inverse, batched=not isinstance(data, Mapping)))

    # What Ray calls --------------------------------------------------------------------------

    def _get_transform_config(self) -> dict[str, Any]:
        # Ray cannot know that rows are kept; with this a run can resume within an epoch.
        return {"udf_modifying_row_count": False}

    def _fit(self, ds: Dataset) -> Standardize:
        if not isinstance(ds, Dataset):
            raise OptionError(
                f"Standardize.fit: expected a ray.data.Dataset, such as read_h5 returns, found {type(ds).__name__}; "
                "without Ray, ray_h5.torch_data.Standardize fits an H5Dataset or a loader"
            )
        # An axis of offsets that is reduced: each value counts once, not once for each window that has it.
        axes = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        reduced = self.columns if self.axis is None or 1 in axes else ()
        moments: dict[str, Moments] = {}
        for once, names in by_elements(ds, self.columns, reduced):
            parts = _sampled(_selected(once, names), self.sample_rows, self.seed).map_batches(
                partial(_partial_moments, columns=names, axis=self.axis, nan_policy=self.nan_policy),
                batch_size=None,
                zero_copy_batch=True,
            )
            # One row for each block: merging them here moves a few numbers, whatever the size of the dataset.
            for row in parts.iter_rows():
                result = pickle.loads(row["moments"])  # noqa: S301  of our own task
                if isinstance(result, RayH5Error):
                    raise result
                for name, part in zip(names, result, strict=True):
                    known = name in moments
                    moments[name] = with_column(moments, name, partial(Moments.merge, other=part)) if known else part
        if not moments and self.sample_rows is not None and ds.take(1):
            raise NotFittedError(
                f"sample_rows={self.sample_rows}: none of the rows that were drawn was read. Either each execution has "
                "other rows, as after random_shuffle().limit(n): materialize() the dataset first; or the draw, which "
                "is by chance without a column row_id, was empty: use more sample_rows."
            )
        if not moments:
            raise NotFittedError("the dataset has no rows; expected at least one to fit on")
        self._fit_to(moments)
        return self

    def _transform_arrow(self, batch: Any, *, batched: bool = True) -> Any:
        """Return a batch standardized; its other columns stay as they are, also those with missing values."""
        self._check_there(names_of(batch))
        return changed(batch, self.columns, partial(self._scaled, Scaler.transform, batched=batched))


# Moments of a dataset --------------------------------------------------------------------------------


def _selected(ds: Dataset, columns: Sequence[str]) -> Dataset:
    """Return the dataset with these columns alone, and the columns that identify and mark rows."""
    schema = ds.schema(fetch_if_missing=False)
    if schema is None:
        # The schema is unknown without running a task, so the tasks read all columns.
        return ds
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UnknownColumnError(no_column(missing, schema.names))
    _check_numbers(schema, columns)
    return ds.select_columns(list(dict.fromkeys([*columns, *_identifying(schema.names)])))


def _check_numbers(schema: Schema, columns: Sequence[str]) -> None:
    """Raise if a column has bits of bfloat16: NumPy and Arrow, which tasks work with, take them for integers."""
    fields = schema.base_schema if isinstance(schema.base_schema, pa.Schema) else ()
    if bits := [field.name for field in fields if field.name in columns and is_bfloat16(field)]:
        raise UnsupportedColumnError(
            f"Standardize: column {bits[0]!r} holds bits of bfloat16, which NumPy and Arrow lack: standardize tensors "
            "in the training loop, or with ray_h5.torch_data.Standardize"
        )


def _identifying(names: Sequence[str]) -> list[str]:
    """Return the columns that identify rows and mark padding, of those that there are."""
    return [spec.name for spec in (ROW_ID_SPEC, IS_PADDING_SPEC) if spec.name in names]


def _sampled(ds: Dataset, rows: int | None, seed: int) -> Dataset:
    if rows is None:
        return ds
    schema = ds.schema()  # after a function of the user Ray runs a few rows to find it
    if schema is not None and ROW_ID_SPEC.name in schema.names:
        of_rows = ds.select_columns(_identifying(schema.names)).iter_batches(batch_size=None)
        ids = np.concatenate([np.empty(0, np.int64), *(_without_padding(part)[ROW_ID_SPEC.name] for part in of_rows)])
        unique = np.unique(ids)
        # In a union of several reads one id may belong to several rows, and then does not identify a row.
        if len(unique) == len(ids):
            drawn = np.random.default_rng(seed).choice(unique, min(rows, len(unique)), replace=False)
            return ds.filter(expr=col(ROW_ID_SPEC.name).is_in(np.sort(drawn).tolist()))
    total = ds.count()
    return ds if total <= rows else ds.random_sample(rows / total, seed=seed)


def _without_padding(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rows of a batch that are not padding. Data that is already in memory may have padding rows."""
    padding = batch.get(IS_PADDING_SPEC.name)
    if padding is None or padding.dtype != np.bool_ or padding.ndim != 1 or not padding.any():
        return batch
    return {name: values[~padding] for name, values in batch.items()}


def _partial_moments(
    batch: Mapping[str, Any], columns: Sequence[str], axis: Axis, nan_policy: NanPolicy
) -> dict[str, Any]:
    """Return the moments of a block as one row; or the error, as Ray would wrap an error that is raised."""
    batch = _without_padding(batch)
    ids = batch.get(ROW_ID_SPEC.name)
    if ids is not None and (ids.dtype.kind not in "iu" or ids.ndim != 1):
        ids = None  # a column of the user, with other values
    moments: list[Moments] | RayH5Error
    try:
        call = partial(Moments.of, axis=axis, nan_policy=nan_policy, row_ids=ids)
        moments = [with_column(batch, name, call) for name in columns]
    except RayH5Error as exc:
        moments = exc
    return {"moments": np.array([pickle.dumps(moments)], dtype=object)}
