"""Moments of the columns of a dataset, in one pass; each task returns only the moments of its block."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.data.expressions import col

from ray_h5.errors import NotFittedError, RayH5Error, UnknownColumnError
from ray_h5.loading.origin_columns import IS_PADDING_SPEC, ROW_ID_SPEC
from ray_h5.messages import no_column
from ray_h5.ray_data.datasource import by_elements
from ray_h5.transforms.moments import Axis, Moments, NanPolicy
from ray_h5.transforms.standardize_base import with_column

if TYPE_CHECKING:
    import ray.data


def fit_moments(
    ds: ray.data.Dataset,
    columns: Sequence[str],
    axis: Axis,
    nan_policy: NanPolicy,
    *,
    sample_rows: int | None,
    seed: int,
) -> dict[str, Moments]:
    """Return the moments of columns over all rows of a dataset, each read once, or over a sample of its rows.

    Raises
    ------
    UnknownColumnError
        If a column is missing.
    NonFiniteError
        If a value is infinite, or is NaN and `nan_policy` is "raise".
    NotFittedError
        If there are no rows.
    """
    moments: dict[str, Moments] = {}
    # An axis of offsets that is reduced: each value counts once, not once for each window that has it.
    reduced = columns if axis is None or 1 in (axis if isinstance(axis, tuple) else (axis,)) else ()
    for once, names in by_elements(ds, columns, reduced):
        parts = _sampled(_selected(once, names), sample_rows, seed).map_batches(
            partial(_partial_moments, columns=names, axis=axis, nan_policy=nan_policy),
            batch_size=None,
            zero_copy_batch=True,
        )
        # One row for each block: merging them here moves a few numbers, whatever the size of the dataset.
        for row in parts.iter_rows():
            result = pickle.loads(row["found"])  # noqa: S301  of our own task
            if isinstance(result, RayH5Error):
                raise result
            for name, part in zip(names, result, strict=True):
                known = name in moments
                moments[name] = with_column(moments, name, partial(Moments.merge, other=part)) if known else part
    if not moments and sample_rows is not None and ds.take(1):
        raise NotFittedError(
            f"sample_rows={sample_rows}: none of the rows that were drawn was read. Either each execution has other "
            "rows, as after random_shuffle().limit(n): materialize() the dataset first; or the draw, which is by "
            "chance without a column row_id, was empty: use more sample_rows."
        )
    if not moments:
        raise NotFittedError("the dataset has no rows; expected at least one to fit on")
    return moments


def _selected(ds: ray.data.Dataset, columns: Sequence[str]) -> ray.data.Dataset:
    """Return the dataset with these columns alone, and the columns that identify and mark rows."""
    schema = ds.schema(fetch_if_missing=False)
    if schema is None:
        # The schema is unknown without running a task, so the tasks read all columns.
        return ds
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UnknownColumnError(no_column(missing, schema.names))
    return ds.select_columns(list(dict.fromkeys([*columns, *_identifying(schema.names)])))


def _identifying(names: Sequence[str]) -> list[str]:
    """Return the columns that identify rows and mark padding, of those that there are."""
    return [spec.name for spec in (ROW_ID_SPEC, IS_PADDING_SPEC) if spec.name in names]


def _sampled(ds: ray.data.Dataset, rows: int | None, seed: int) -> ray.data.Dataset:
    if rows is None:
        return ds
    schema = ds.schema()  # after a function of the user Ray runs a few rows to find it
    if schema is not None and ROW_ID_SPEC.name in schema.names:
        ids = _ids_of(ds.select_columns(_identifying(schema.names)))
        unique = np.unique(ids)
        # In a union of several reads one id may belong to several rows, and then does not identify a row.
        if len(unique) == len(ids):
            drawn = np.random.default_rng(seed).choice(unique, min(rows, len(unique)), replace=False)
            return ds.filter(expr=col(ROW_ID_SPEC.name).is_in(np.sort(drawn).tolist()))
    total = ds.count()
    return ds if total <= rows else ds.random_sample(rows / total, seed=seed)


def _ids_of(ds: ray.data.Dataset) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the row id of each row of a dataset."""
    batches = map(_without_padding, ds.iter_batches(batch_size=None))
    return np.concatenate([np.empty(0, np.int64), *(batch[ROW_ID_SPEC.name] for batch in batches)])


def _without_padding(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rows of a batch that are not padding. Data that is already in memory may have padding rows."""
    padding = batch.get(IS_PADDING_SPEC.name)
    if padding is None or padding.dtype != np.bool_ or padding.ndim != 1 or not padding.any():
        return batch
    return {name: values[~padding] for name, values in batch.items()}


def _row_ids(batch: Mapping[str, Any]) -> Any:
    """Return the row ids of a batch; None if it has none, or the user has a column of that name with other values."""
    ids = batch.get(ROW_ID_SPEC.name)
    return ids if ids is not None and ids.dtype.kind in "iu" and ids.ndim == 1 else None


def _partial_moments(
    batch: Mapping[str, Any], columns: Sequence[str], axis: Axis, nan_policy: NanPolicy
) -> dict[str, Any]:
    """Return the moments of a block as one row; or the error, as Ray would wrap an error that is raised."""
    batch = _without_padding(batch)
    moments: list[Moments] | RayH5Error
    try:
        call = partial(Moments.of, axis=axis, nan_policy=nan_policy, row_ids=_row_ids(batch))
        moments = [with_column(batch, name, call) for name in columns]
    except RayH5Error as exc:
        moments = exc
    return {"found": np.array([pickle.dumps(moments)], dtype=object)}
