"""Standardization of one column: (x - mean) / (std + epsilon), and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.errors import (
    ConstantColumnError,
    NonFiniteError,
    NotFittedError,
    SchemaMismatchError,
    UnsupportedColumnError,
)
from ray_h5.hash_and_permute import is_tensor
from ray_h5.messages import few
from ray_h5.options import is_number, require
from ray_h5.transforms.moments import Moments

ConstantPolicy: TypeAlias = Literal["raise", "one"]

_BLOCK_VALUES = 65_536
"""Values scaled at a time, so that they stay in a core's cache."""


def check_scaling(epsilon: float, constant: str) -> None:
    """Raise an OptionError unless the options of a Scaler can be used."""
    require(is_number(epsilon) and 0 <= epsilon < float("inf"), "epsilon", epsilon, "0 or more, and finite")
    require(constant in ("raise", "one"), "constant", constant, "'raise' or 'one'")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scaler:
    """The standardization of one column, from its moments.

    Parameters
    ----------
    moments : Moments
        Moments of the rows to fit on. Take the rows of the training split, or validation leaks into training.
    epsilon : float
        Added to the standard deviation.
    constant : {"raise", "one"}
        Whether a deviation of 0 raises an error, or counts as 1, so that all these values become 0.

    Raises
    ------
    ConstantColumnError
        If a deviation is 0 and `constant` is "raise".
    NonFiniteError
        If all values at a place of the row are NaN.
    NotFittedError
        If there are no values.
    OptionError
        If an option cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> scaler = Scaler(Moments.of(np.array([[1.0, 2.0], [3.0, 4.0]])), epsilon=0)
    >>> scaler.transform(np.array([2.5, 3.5]))
    array([0.        , 0.89442719])
    """

    moments: Moments
    epsilon: float = 1e-8
    constant: ConstantPolicy = "raise"
    mean: np.ndarray[Any, np.dtype[np.float64]] = field(init=False, repr=False)
    scale: np.ndarray[Any, np.dtype[np.float64]] = field(init=False, repr=False)
    _fits: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_scaling(self.epsilon, self.constant)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        empty = self.moments.count == 0
        if empty.size and empty.all():
            raise NotFittedError("no value was counted: the data has no rows, or only NaN; fit on rows with values")
        if empty.any():
            raise NonFiniteError(f"all values are NaN at {_places(self.moments, empty)}; leave these out of the column")
        constant = self.moments.constant()
        if self.constant == "raise" and constant.any():
            value = float(self.moments.mean[constant].flat[0])
            where = f"all values are {value:g}"
            if constant.size > 1:
                where = f"all values are the same at {_places(self.moments, constant)}; the first is {value:g}"
            raise ConstantColumnError(
                f"standard deviation 0: {where}; expected values that differ; leave these out, reduce over more axes, "
                "or use constant='one', which makes them 0"
            )
        object.__setattr__(self, "mean", self.moments.mean)
        object.__setattr__(self, "scale", np.where(constant, 1.0, self.moments.std() + self.epsilon))
        # A scale that becomes 0 or infinite in float32 makes all values NaN.
        least, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
        fits = (self.scale >= least) & (self.scale <= most) & (abs(self.mean) <= most)
        object.__setattr__(self, "_fits", bool(fits.all()))

    def transform(self, array: Any, *, batched: bool = False) -> Any:
        """Return (array - mean) / (std + epsilon).

        Parameters
        ----------
        array : ndarray or tensor
            One row, or a batch of rows. Axes that were reduced may have another length than the rows fitted on.
        batched : bool
            Accept only a batch. Without this, a batch whose rows lack an axis may look like one row.

        Returns
        -------
        ndarray or tensor
            A new array of the same shape, of the same floating dtype, or of float32 for integers and booleans.

        Raises
        ------
        SchemaMismatchError
            If the rows have another shape than those it was fitted on.
        """
        return self._scaled(array, batched, forward=True)

    def inverse(self, array: Any, *, batched: bool = False) -> Any:
        """Return array * (std + epsilon) + mean; arguments, result and errors as in `transform`."""
        return self._scaled(array, batched, forward=False)

    @property
    def summary(self) -> str:
        """Mean and standard deviation in a few words; of several, the lowest and the highest."""
        return f"mean {_range_of(self.mean)}, std {_range_of(self.moments.std())}"

    def __repr__(self) -> str:
        return f"Scaler({self.summary}, axis={self.moments.axis})"

    def _check_shape(self, shape: tuple[int, ...], batched: bool) -> None:
        """Raise unless an array has a shape of the rows that it was fitted on."""
        expected, reduced = self.mean.shape, self.moments.axis
        # An axis that was reduced has length 1 in `expected`, and may have any length here.
        row = shape[len(shape) - len(expected) :]
        fits = all(
            length == size if axis not in reduced else size in (1, length)
            for axis, (size, length) in enumerate(zip(expected, row, strict=False), 1)
        )
        if len(shape) - len(expected) not in ((1,) if batched else (0, 1)) or not fits:
            wanted = ["any" if axis in reduced else str(size) for axis, size in enumerate(expected, 1)]
            either = "one axis more, for a batch of them" if batched else "that, or one axis more for a batch of them"
            raise SchemaMismatchError(
                f"shape {shape} does not fit: fitted on rows of shape ({', '.join(wanted)}), so expected {either}; fit "
                "again if the rows have changed"
            )

    def _scaled(self, array: Any, batched: bool, *, forward: bool) -> Any:
        """Return an array or a tensor, or a number as one, scaled or with the scaling undone."""
        of_torch = is_tensor(array)
        array = array if of_torch else np.asarray(array)
        self._check_shape(tuple(array.shape), batched)
        kind = array.dtype.kind if not of_torch else "f" if array.is_floating_point() else "i"
        if of_torch and array.is_complex():
            kind = "c"
        if kind not in "biuf":
            raise UnsupportedColumnError(f"dtype {array.dtype}: expected real numbers or booleans")
        # float32 holds float16 and integers of up to 16 bits exactly, and other integers not.
        is_short = array.dtype.itemsize <= (4 if kind == "f" else 2)
        work = np.float32 if is_short and self._fits else np.float64
        # The mean in two parts: rounding to float32 is off by 6e-8 of it, which is several units for a mean of 1e8.
        upper: Any = self.mean.astype(work)
        parts: list[Any] = [upper, np.asarray(self.mean - upper, dtype=work), self.scale.astype(work)]
        if of_torch:
            import torch

            parts = [torch.from_numpy(part).to(array.device) for part in parts]
            values = _step(array.to(parts[0].dtype, copy=True), parts, forward)
            return values.to(array.dtype if array.is_floating_point() else torch.float32)
        out = np.empty(array.shape, dtype=array.dtype if array.dtype.kind == "f" else np.float32)
        if array.ndim == self.mean.ndim:
            out[...] = _step(array.astype(work), parts, forward)
            return out
        # In blocks of rows, so that the three passes over the values stay in the cache.
        rows = max(1, _BLOCK_VALUES // max(1, array[:1].size))
        for row in range(0, len(array), rows):
            out[row : row + rows] = _step(array[row : row + rows].astype(work), parts, forward)
        return out


def _range_of(values: np.ndarray[Any, Any]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if values.size == 1 else f"{low:.4g} to {high:.4g} at {values.size} places"


def _step(values: Any, parts: Sequence[Any], forward: bool) -> Any:
    """Scale values in place, or undo it, by the two parts of the mean and the scale."""
    upper, lower, scale = parts
    if forward:
        values -= upper
        values -= lower
        values /= scale
    else:
        values *= scale
        values += lower
        values += upper
    return values


def _places(moments: Moments, mask: np.ndarray[Any, Any]) -> str:
    """Return text that names places of a row by their indices along the axes that are not reduced."""
    kept = [axis - 1 for axis in range(1, mask.ndim + 1) if axis not in moments.axis]
    if not kept:
        return "every place"
    places = [tuple(int(place[axis]) for axis in kept) for place in np.argwhere(mask)]
    shown = few([str(place[0] if len(place) == 1 else place) for place in places], 8)
    return f"{len(places)} of {mask.size} places along axis {', '.join(str(axis + 1) for axis in kept)}: {shown}"
