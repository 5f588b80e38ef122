"""Count, mean and sum of squared deviations of rows, in one pass; moments of parts can be merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.errors import NonFiniteError, OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hash_and_permute import is_tensor
from ray_h5.options import as_integer, is_integer, require

Axis: TypeAlias = "int | tuple[int, ...] | None"
"""The axes to reduce, as in numpy's ``mean`` over a batch of rows; None is all of them."""

NanPolicy: TypeAlias = Literal["raise", "omit"]

_BLOCK_VALUES = 262_144
"""Values converted to float64 at a time, so that they stay in the caches; measured."""

_MOST = 2.0**63
"""Counts are int64."""

_TOO_LARGE = "values are too large for their squares in float64; scale them first"


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of the rows of a column.

    Parameters
    ----------
    count : ndarray of int64
        Number of values. All three arrays have the shape of a row with 1 for each axis that was reduced, so that they
        broadcast against a row and against a batch of rows.
    mean : ndarray of float64
        Mean of the values.
    m2 : ndarray of float64
        Sum of the squared deviations from the mean.
    axis : tuple of int
        The axes of a batch that were reduced, 0 (the rows) among them.
    """

    count: np.ndarray[Any, np.dtype[np.int64]]
    mean: np.ndarray[Any, np.dtype[np.float64]]
    m2: np.ndarray[Any, np.dtype[np.float64]]
    axis: tuple[int, ...]

    def __post_init__(self) -> None:
        # For a scalar column numpy's arithmetic returns numbers instead of arrays, which torch does not take.
        for name in ("count", "mean", "m2"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))

    @classmethod
    def of(cls, batch: Any, axis: Axis = None, nan_policy: NanPolicy = "raise", row_ids: Any = None) -> Moments:
        """Return the moments of a batch of rows.

        Parameters
        ----------
        batch : ndarray or tensor, shape (n, ...)
            Numbers or booleans; computed in float64, which rounds integers beyond 2**53.
        axis : int, tuple of int or None
            The axes to reduce, as in numpy's ``mean``. It must include 0, the rows.
        nan_policy : {"raise", "omit"}
            Whether a NaN raises an error, or is left out. Infinity always raises an error.
        row_ids : ndarray, shape (n,), optional
            Ids of the rows, for the message of an error.

        Raises
        ------
        NonFiniteError
            If a value is infinite, or is NaN and not omitted, or values are too large to be squared.
        OptionError
            If `axis` or `nan_policy` cannot be used.
        UnsupportedColumnError
            If the values are not real numbers.
        """
        check_nan_policy(nan_policy)
        if is_tensor(batch):
            batch = batch.detach().cpu().resolve_conj().resolve_neg()
            # numpy does not have bfloat16 and float8; float32 has all their values.
            batch = (batch.float() if batch.is_floating_point() and batch.itemsize < 4 else batch).numpy()
        batch = np.asarray(batch)
        if batch.dtype.kind not in "biuf":
            raise UnsupportedColumnError(
                f"dtype {batch.dtype}: expected real numbers or booleans in rows of one shape. Leave it out; "
                "sparse rows, and rows that differ in shape, are scaled by a function of your own."
            )
        if batch.ndim == 0:
            raise OptionError("expected a batch of rows, got a scalar")
        plain = check_axis(axis)
        listed = tuple(range(batch.ndim) if plain is None else np.atleast_1d(plain).tolist())
        if outside := [number for number in listed if not -batch.ndim <= number < batch.ndim]:
            raise OptionError(
                f"axis={axis!r}: there is no axis {outside[0]} in a batch of {batch.ndim} axes; axis 0 is the rows"
            )
        axes = tuple(sorted({number % batch.ndim for number in listed}))
        if 0 not in axes:
            raise _without_rows(axis, listed)
        if batch.size == 0:
            kept = tuple(1 if axis in axes else batch.shape[axis] for axis in range(1, batch.ndim))
            return cls(np.zeros(kept, np.int64), np.zeros(kept), np.zeros(kept), axes)
        omit_nan = nan_policy == "omit" and batch.dtype.kind == "f"
        rows = max(1, _BLOCK_VALUES // batch[0].size)
        try:
            parts = (cls._of_block(batch[row : row + rows], axes, omit_nan) for row in range(0, len(batch), rows))
            return reduce(cls.merge, parts)
        except NonFiniteError:
            raise NonFiniteError(_non_finite_message(batch, nan_policy, row_ids)) from None

    @classmethod
    def _of_block(cls, block: np.ndarray[Any, Any], axes: tuple[int, ...], omit_nan: bool) -> Moments:
        """Return the moments of some rows: those of the deviations from one of the values, so that 0 stays 0."""
        # The first value may be NaN, the least one is not; it is 0 where all are NaN.
        first = block[tuple(slice(1) if axis in axes else slice(None) for axis in range(block.ndim))]
        origin = np.fmin.reduce(block, axis=axes, keepdims=True) if omit_nan else first
        origin = origin.astype(np.float64)
        count = np.full(origin.shape, block.size // origin.size, np.int64)
        # An overflow or a NaN shows in the result.
        with np.errstate(invalid="ignore", over="ignore"):
            origin = np.where(np.isnan(origin), 0, origin) if omit_nan else origin
            deviations = np.subtract(block, origin, dtype=np.float64)
            if omit_nan:
                missing = np.isnan(block)
                count -= missing.sum(axis=axes, keepdims=True)
                deviations[missing] = 0
            average = _sum(deviations, axes) / np.maximum(count, 1)
            # About the mean, from squares about `origin`; rounding may make it slightly negative.
            squares = _sum(np.square(deviations, out=deviations), axes)
            m2 = np.maximum(squares - count * np.square(average), 0)
        if not np.isfinite(m2).all():
            raise NonFiniteError(_TOO_LARGE)
        return cls(count[0], (origin + average)[0], m2[0], axes)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of values.

        Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances,
        COMPSTAT 1982.

        Raises
        ------
        SchemaMismatchError
            If the two differ in the shape of rows or in axes.
        NonFiniteError
            If the values of both together are too large to be squared.
        """
        if self.mean.shape != other.mean.shape or self.axis != other.axis:
            raise SchemaMismatchError(
                f"moments of shape {other.mean.shape} over axes {other.axis} cannot be merged with moments of shape "
                f"{self.mean.shape} over axes {self.axis}"
            )
        count = self.count + other.count
        # Where neither has a value both counts are 0, and so is the share.
        share = other.count / np.maximum(count, 1)
        # An overflow shows in the result. With this order of products a part without values adds 0 to a large mean.
        with np.errstate(invalid="ignore", over="ignore"):
            delta = other.mean - self.mean
            m2 = self.m2 + other.m2 + delta * (delta * (self.count * share))
            mean = self.mean + delta * share
        if not np.isfinite(m2).all():
            raise NonFiniteError(_TOO_LARGE)
        return Moments(count, mean, m2, self.axis)

    def std(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the standard deviation, as numpy's with ``ddof=0``; 0 where there are no values."""
        deviation: np.ndarray[Any, np.dtype[np.float64]] = np.sqrt(self.m2 / np.maximum(self.count, 1))
        return deviation

    def constant(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return where the standard deviation is 0. It is exactly 0 for values that are all the same."""
        return np.asarray(self.std() == 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the moments as lists and numbers, which JSON stores exactly."""
        arrays = {"count": self.count, "mean": self.mean, "m2": self.m2}
        flat = {name: array.ravel().tolist() for name, array in arrays.items()}
        return flat | {"shape": list(self.mean.shape), "axis": list(self.axis)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Moments:
        """Return the moments that `to_dict` was called on; a KeyError, TypeError or ValueError for another state."""
        shape, axis = tuple(state["shape"]), tuple(as_integer("axis", axis_number, 0) for axis_number in state["axis"])
        arrays = [np.array(state[name], dtype=np.float64).reshape(shape) for name in ("count", "mean", "m2")]
        count, mean, m2 = arrays
        # NaN is neither finite nor 0 or more.
        if not np.isfinite(arrays).all() or (count < 0).any() or (count != np.floor(count)).any() or (m2 < 0).any():
            raise OptionError("moments: expected counts of 0 or more, finite means, and finite m2 of 0 or more")
        if 0 not in axis or any(
            axis_number > mean.ndim or (axis_number and mean.shape[axis_number - 1] != 1) for axis_number in axis
        ):
            raise OptionError(f"axis {axis} of moments does not fit their shape {mean.shape}")
        # Counts are not taken from the floats above, which are exact only up to 2**53.
        if (count > _MOST).any() or ((counts := np.array(state["count"]).astype(np.int64)) < 0).any():
            raise OptionError("moments: expected counts below 2**63")
        return cls(counts.reshape(shape), mean, m2, axis)


def _sum(block: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return ``block.sum(axes, keepdims=True)``; most of it is a product with ones: BLAS takes half of numpy's time."""
    rows = np.ones(len(block)) @ block.reshape(len(block), -1)
    sums: np.ndarray[Any, Any] = rows.reshape(1, *block.shape[1:]).sum(axis=axes, keepdims=True)
    return sums


def check_axis(axis: Axis | list[int]) -> Axis:
    """Return axes as Python integers.

    Raises
    ------
    OptionError
        If they are not integers, or axis 0, the rows, is not among them for any shape of a batch.
    """
    if axis is None:
        return None
    listed = axis if isinstance(axis, (tuple, list)) else (axis,)
    if not all(is_integer(axis_number) for axis_number in listed):
        raise OptionError(f"axis={axis!r}: expected an integer, a tuple of integers, or None")
    plain = tuple(map(int, listed))
    # For some shape of a batch a negative axis is the axis of the rows.
    if 0 not in plain and all(axis_number > 0 for axis_number in plain):
        raise _without_rows(axis, plain)
    return plain if isinstance(axis, (tuple, list)) else plain[0]


def _without_rows(axis: object, listed: tuple[int, ...]) -> OptionError:
    advice = f"such as {(0, *listed)}" if listed else "0 for each element of a row separately, or None for all axes"
    return OptionError(f"axis={axis!r}: expected axis 0, the rows, among them, {advice}")


def check_nan_policy(nan_policy: str) -> None:
    """Raise an OptionError unless `nan_policy` is one of the two."""
    require(nan_policy in ("raise", "omit"), "nan_policy", nan_policy, "'raise' or 'omit'")


def _non_finite_message(batch: np.ndarray[Any, Any], nan_policy: str, row_ids: Any) -> str:
    nans, infinities = int(np.isnan(batch).sum()), int(np.isinf(batch).sum())
    places = np.argwhere(~np.isfinite(batch) if nan_policy == "raise" else np.isinf(batch))
    if len(places) == 0:
        return _TOO_LARGE
    row, *place = map(int, places[0])
    if row_ids is None:
        which = f"row {row} of its batch (read_h5(..., include_row_ids=True) shows which row that is)"
    else:
        which = f"the row with row_id {row_ids[row]}"
    at = f" at {tuple(place) if len(place) > 1 else place[0]}" if place else ""
    advice = "; nan_policy='omit' leaves NaN out" if nans and not infinities else "; remove such rows first"
    return (
        f"{nans} NaN and {infinities} infinite of {batch.size} values, the first, {batch[tuple(places[0])]}{at}, in "
        f"{which}{advice}"
    )
