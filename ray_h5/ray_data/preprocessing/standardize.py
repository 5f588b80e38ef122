"""`Standardize`, a preprocessor of Ray that scales columns by their mean and deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from ray.data import Dataset
from ray.data.preprocessor import Preprocessor, PreprocessorNotFittedException

from ray_h5.errors import NotFittedError, OptionError, SchemaMismatchError, UnknownColumnError
from ray_h5.messages import no_column
from ray_h5.options import as_integer, names_options
from ray_h5.ray_data.preprocessing.batch_formats import changed, names_of
from ray_h5.ray_data.preprocessing.fit_moments import fit_moments
from ray_h5.transforms.moments import Axis, NanPolicy
from ray_h5.transforms.scaler import ConstantPolicy, Scaler
from ray_h5.transforms.standardize_base import Standardization

__all__ = ["PreprocessorNotFittedError", "Standardize"]


class PreprocessorNotFittedError(NotFittedError, PreprocessorNotFittedException):
    """A preprocessor is used before it is fitted; both Ray's error of that name and a `RayH5Error`."""


@names_options
class Standardize(Standardization, Preprocessor):
    """Standardize columns: (x - mean) / (std + epsilon).

    `fit` reads each selected row once, without tail handling, in tasks that return only moments, in float64. Rows that
    the column ``is_padding`` marks do not count. Fit on the training split alone, or the validation split is no longer
    unseen. `transform` fuses into the tasks that read.

    Parameters
    ----------
    columns : sequence of str
        The columns, each of numbers or booleans.
    axis : int, tuple of int or None
        The axes that mean and deviation are taken over, as in numpy's ``mean`` of a batch; axis 0 is the rows. 0
        scales each element of a row separately, (0, 2) each channel of (n, channels, time); None uses one mean and
        one deviation for the whole column.
    epsilon : float
        Added to the deviation.
    nan_policy : {"raise", "omit"}
        A NaN raises an error while fitting, or is left out. `transform` keeps NaN. The error names the row if the
        dataset has the column ``row_id``.
    constant : {"raise", "one"}
        A deviation of 0 raises an error, or counts as 1, so that all values of the column become 0.
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
        self,
        columns: Sequence[str],
        *,
        axis: Axis = None,
        epsilon: float = 1e-8,
        nan_policy: NanPolicy = "raise",
        constant: ConstantPolicy = "raise",
        sample_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._set(columns, axis, epsilon, nan_policy, constant)
        self.sample_rows = None if sample_rows is None else as_integer("sample_rows", sample_rows, 1)
        self.seed = as_integer("seed", seed, 0)

    def transform(self, ds: Dataset, **options: Any) -> Dataset:
        """Return the dataset with its columns standardized; `options` are those of Ray's ``transform``."""
        self._check_schema(ds)
        return super().transform(ds, **options)

    def transform_batch(self, data: Any) -> Any:
        """Return a batch with its columns standardized, as for inference.

        Parameters
        ----------
        data : mapping of str to ndarray or tensor, pandas.DataFrame or pyarrow.Table
            A batch, or a mapping of one row; the result has the same type. Lists in a table become tensors.
        """
        return self._transform_arrow(data, batched=_is_batch(data))

    def inverse_transform_batch(self, data: Any) -> Any:
        """Return a batch with its fitted columns back in their own units.

        Parameters
        ----------
        data : mapping of str to ndarray or tensor, pandas.DataFrame or pyarrow.Table
            Standardized values of at least one of the fitted columns. The result has the same type.
        """
        if not self.scalers.keys() & set(names_of(data)):
            raise UnknownColumnError(no_column(self.columns, names_of(data)))
        return changed(data, self.columns, partial(self._scaled, Scaler.inverse, batched=_is_batch(data)))

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
        moments = fit_moments(
            ds, self.columns, self.axis, self.nan_policy, sample_rows=self.sample_rows, seed=self.seed
        )
        self._fit_to(moments)
        return self

    def _transform_arrow(self, batch: Any, *, batched: bool = True) -> Any:
        """Return a batch standardized; its other columns stay as they are, also those with missing values."""
        self._check_there(names_of(batch))
        return changed(batch, self.columns, partial(self._scaled, Scaler.transform, batched=batched))

    def _check_schema(self, ds: Dataset) -> None:
        """Raise here, where the schema is known, for what would be an error of Ray's in a task."""
        schema, scalers = ds.schema(fetch_if_missing=False), self.scalers
        if schema is None:
            return
        shapes = {name: getattr(type_, "shape", ()) for name, type_ in zip(schema.names, schema.types, strict=True)}
        for name in self.columns:
            if None in shapes.get(name, ()):
                raise SchemaMismatchError(
                    f"column {name!r}: its rows differ in shape, {shapes[name]} with None for axes that differ; "
                    f"expected the shape it was fitted on: {scalers[name].mean.shape} with 1 for reduced axes"
                )
        self._transform_arrow(
            {name: np.empty((0, *shape), np.float32) for name, shape in shapes.items() if None not in shape}
        )


def _is_batch(data: Any) -> bool:
    """Return whether `data` is certainly a batch; a mapping may be one row."""
    return not isinstance(data, Mapping)
