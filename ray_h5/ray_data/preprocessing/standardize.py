"""`Standardize`, a preprocessor of Ray that scales columns by their mean and deviation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from ray.data import Dataset
from ray.data.preprocessor import Preprocessor, PreprocessorNotFittedException

from ray_h5.errors import (
    CorruptFileError,
    NotFittedError,
    OptionError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
)
from ray_h5.messages import no_column
from ray_h5.options import as_integer, names_options
from ray_h5.ray_data.preprocessing.batch_formats import changed, names_of, with_column
from ray_h5.ray_data.preprocessing.fit_moments import fit_moments
from ray_h5.transforms.moments import Axis, NanPolicy, check_axis, check_nan_policy
from ray_h5.transforms.scaler import ConstantPolicy, Scaler, check_scaling
from ray_h5.transforms.scaler_files import read_scalers, save_scalers

if TYPE_CHECKING:
    import os

__all__ = ["PreprocessorNotFittedError", "Standardize"]


_MAX_SHOWN = 4
"""The most columns whose fitted values are shown."""


class PreprocessorNotFittedError(NotFittedError, PreprocessorNotFittedException):
    """A preprocessor is used before it is fitted; both Ray's error of that name and a `RayH5Error`."""


@names_options
class Standardize(Preprocessor):
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
        check_scaling(epsilon, constant)
        check_nan_policy(nan_policy)
        self.columns = _names(columns)
        self.axis = check_axis(axis)
        self.epsilon = float(epsilon)
        self.nan_policy: NanPolicy = nan_policy
        self.constant: ConstantPolicy = constant
        self.sample_rows = None if sample_rows is None else as_integer("sample_rows", sample_rows, 1)
        self.seed = as_integer("seed", seed, 0)
        self.stats_: dict[str, Scaler] = {}

    @property
    def scalers(self) -> dict[str, Scaler]:
        """The fitted scalers by column. They work without Ray."""
        self._check_fitted()
        return dict(self.stats_)

    def transform(self, ds: Dataset, **options: Any) -> Dataset:
        """Return the dataset with its columns standardized; `options` are those of Ray's ``transform``."""
        self._check_fitted()
        self._check_schema(ds)
        return super().transform(ds, **options)

    def transform_batch(self, data: Any) -> Any:
        """Return a batch with its columns standardized, as for inference.

        Parameters
        ----------
        data : mapping of str to ndarray or tensor, pandas.DataFrame or pyarrow.Table
            A batch, or a mapping of one row; the result has the same type. Lists in a table become tensors.
        """
        self._check_fitted()
        self._check_there(names_of(data))
        return changed(data, self.columns, partial(self._scaled, Scaler.transform, batched=_is_batch(data)))

    def inverse_transform_batch(self, data: Any) -> Any:
        """Return a batch with its fitted columns back in their own units.

        Parameters
        ----------
        data : mapping of str to ndarray or tensor, pandas.DataFrame or pyarrow.Table
            Standardized values of at least one of the fitted columns. The result has the same type.
        """
        self._check_fitted()
        if not set(self.columns) & set(names_of(data)):
            raise UnknownColumnError(no_column(self.columns, names_of(data)))
        return changed(data, self.columns, partial(self._scaled, Scaler.inverse, batched=_is_batch(data)))

    def to_dict(self) -> dict[str, Any]:
        """Return options and fitted moments as types of JSON, without loss."""
        return {**self._options(), "scalers": {name: each.to_dict() for name, each in self.stats_.items()}}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Standardize:
        """Return the preprocessor that `to_dict` was called on.

        Raises
        ------
        OptionError
            If `state` is not a result of `to_dict`.
        """
        try:
            options = {name: value for name, value in state.items() if name != "scalers"}
            return cls._made(options, {name: Scaler.from_dict(each) for name, each in state["scalers"].items()})
        except (AttributeError, KeyError, TypeError, RayH5Error) as exc:
            raise OptionError(f"expected a result of Standardize.to_dict, found something else: {exc}") from exc

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Standardize:
        """Return the preprocessor that `to_json` was called on; an OptionError if `text` is something else."""
        try:
            state = json.loads(text)
        except (TypeError, ValueError) as exc:
            raise OptionError(f"expected a result of Standardize.to_json, found no JSON: {exc}") from exc
        return cls.from_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to an npz file, without pickle. `load_scalers` of `ray_h5.transforms.scaler_files` needs no Ray."""
        self._check_fitted()
        save_scalers(path, self.stats_, self._options())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Standardize:
        """Read a file of `save`; NotFoundError if it is missing, CorruptFileError if it is something else."""
        scalers, options = read_scalers(path)
        try:
            return cls._made(options, scalers)
        except (TypeError, OptionError) as exc:
            raise CorruptFileError(
                f"{path}: expected a file of Standardize.save, found scalers of something else ({exc}); "
                "ray_h5.transforms.scaler_files.load_scalers reads them"
            ) from exc

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
        self.stats_ = {
            name: with_column(moments, name, partial(Scaler, epsilon=self.epsilon, constant=self.constant))
            for name in self.columns
        }
        return self

    def _transform_arrow(self, batch: pa.Table | Mapping[str, Any]) -> Any:
        """Return a batch standardized; its other columns stay as they are, also those with missing values."""
        self._check_there(names_of(batch))
        return changed(batch, self.columns, partial(self._scaled, Scaler.transform, batched=True))

    def _scaled(self, step: Callable[..., Any], arrays: Mapping[str, Any], *, batched: bool) -> dict[str, Any]:
        calls = {name: partial(step, self.stats_[name], batched=batched) for name in arrays}
        return {name: with_column(arrays, name, call) for name, call in calls.items()}

    def _check_fitted(self) -> None:
        if not self.stats_:
            raise PreprocessorNotFittedError(f"{self!r} has not been fitted; call fit(training_dataset) first")

    def _check_there(self, found: Iterable[str]) -> None:
        """Raise an UnknownColumnError unless all columns are found."""
        names = list(found)
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise UnknownColumnError(no_column(missing, names))

    def _check_schema(self, ds: Dataset) -> None:
        """Raise here, where the schema is known, for what would be an error of Ray's in a task."""
        schema = ds.schema(fetch_if_missing=False)
        if schema is None:
            return
        shapes = {name: getattr(found, "shape", ()) for name, found in zip(schema.names, schema.types, strict=True)}
        for name in self.columns:
            if None in shapes.get(name, ()):
                raise SchemaMismatchError(
                    f"column {name!r}: its rows differ in shape, {shapes[name]} with None for axes that differ; "
                    f"expected the shape it was fitted on: {self.stats_[name].mean.shape} with 1 for reduced axes"
                )
        self._transform_arrow(
            {name: np.empty((0, *shape), np.float32) for name, shape in shapes.items() if None not in shape}
        )

    def _options(self) -> dict[str, Any]:
        names = ("columns", "axis", "epsilon", "nan_policy", "constant", "sample_rows", "seed")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _made(cls, options: Mapping[str, Any], scalers: dict[str, Scaler]) -> Standardize:
        made = cls(**options)
        if scalers and set(scalers) != set(made.columns):
            raise OptionError(f"columns are {made.columns}, but there are scalers for {list(scalers)}")
        made.stats_ = scalers
        return made

    def __repr__(self) -> str:
        fitted = "; ".join(f"{name}: {scaler.summary}" for name, scaler in list(self.stats_.items())[:_MAX_SHOWN])
        more = f"; and {len(self.stats_) - _MAX_SHOWN} more" if len(self.stats_) > _MAX_SHOWN else ""
        return f"Standardize({self.columns!r}, axis={self.axis!r}, {fitted + more or 'not fitted'})"


def _is_batch(data: Any) -> bool:
    """Return whether `data` is certainly a batch; a mapping may be one row."""
    return not isinstance(data, Mapping)


def _names(columns: Any) -> list[str]:
    """Return names of columns as a list of Python strings."""
    listed = list(columns) if isinstance(columns, (list, tuple, np.ndarray)) and np.ndim(columns) else []
    if not listed or not all(isinstance(name, str) for name in listed):
        raise OptionError(f"columns={columns!r}: expected a list of at least one name")
    if len(set(listed)) < len(listed):
        raise OptionError(f"columns={columns!r}: expected each name once")
    return list(map(str, listed))
