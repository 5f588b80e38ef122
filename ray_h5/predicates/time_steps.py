"""Columns of time steps that `any_equal` looks at: numbers of shape (T,), or one-hot of shape (T, C)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ray_h5.errors import PredicateError
from ray_h5.predicates.virtual_names import AnyEqual

_Length = TypeVar("_Length", int, int | None)


def occurs(values: np.ndarray, valid: np.ndarray | None, column: str, criterion: AnyEqual) -> np.ndarray:
    """Return for each row of an array whether a value occurs in it, as is computed for files.

    Raises
    ------
    PredicateError
        If the array has another shape than `any_equal` needs.
    """
    arrays = [array for array in (values, valid) if array is not None]
    forms = [("number" if array.dtype.kind in "biuf" else str(array.dtype), array.shape[1:]) for array in arrays]
    check_steps(f"any_equal({criterion.value!r}): column {column!r}", forms, criterion)
    return rows_with_a_step(values, valid, criterion.value)


def rows_with_a_step(values: np.ndarray, valid: np.ndarray | None, wanted: float) -> np.ndarray:
    """Return for each row whether a value, or a class of one-hot steps, occurs in a step that `valid` marks."""
    values = values.reshape(len(values), *step_shape(values.shape[1:]))
    with np.errstate(over="ignore"):  # a value that is too large for the dtype becomes infinite
        hits = values[:, :, int(wanted)] != 0 if values.ndim == 3 else values == wanted
    if valid is not None:
        hits = hits & (valid.reshape(len(valid), *step_shape(valid.shape[1:])) > 0)
    return hits.any(axis=1) if hits.ndim == 2 else hits


def step_shape(shape: tuple[_Length, ...]) -> tuple[_Length, ...]:
    """Return the shape of a row. (T, 1) is (T,): values, and not one-hot."""
    return shape[:1] if shape[1:] == (1,) else shape


def check_steps(where: str, forms: Sequence[tuple[str, tuple[int, ...]]], criterion: AnyEqual) -> None:
    """Raise unless `any_equal` compares a column of a kind and shape of rows, and the second one marks its steps."""
    (kind, row_shape), *marks = forms
    shape = step_shape(row_shape)
    if kind not in {"number", "bool"} or len(shape) > 2:
        held = f"one {kind} value a row" if not shape else f"{kind} values of shape {shape} a row"
        held = {"ragged": "rows that differ in length", "list": "lists", "sparse": "sparse rows"}.get(kind, held)
        raise PredicateError(f"{where} holds {held}; expected numbers of shape (T,), or one-hot of shape (T, C)")
    if len(shape) == 2 and not (float(criterion.value).is_integer() and 0 <= criterion.value < shape[1]):
        raise PredicateError(f"{where} is one-hot of {shape[1]} classes; expected a class from 0 to {shape[1] - 1}")
    for kind, row_shape in marks:
        if step_shape(row_shape) != shape[:1] or kind not in {"number", "bool"}:
            raise PredicateError(
                f"{where} has {shape[:1]} time steps a row; expected numbers of that shape in {criterion.valid!r}, "
                f"found {kind} values of shape {row_shape}"
            )
