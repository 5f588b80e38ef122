"""SpecAugment: masks over spans of time and bands of frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from ray_h5.buffers import empty
from ray_h5.errors import MaskTooLargeError, OptionError, UnsupportedColumnError
from ray_h5.hash_and_permute import Words, below, words_of
from ray_h5.manifest.row_requests import units_of
from ray_h5.options import as_integer, is_integer, is_number, names_options
from ray_h5.transforms.augmentation import Augmentation, chance, kind_of, on_device_of

_Span: TypeAlias = "tuple[int, Any, Any]"
"""One mask of each row: its axis, and where it starts and how wide it is, (n,) of int64 each."""


@names_options
@dataclass(frozen=True)  # without slots: Ray derives from a class that it is given, and sets an attribute
class SpecAugment(Augmentation):
    """Mask spans of time and bands of frequency of spectrograms.

    Park et al., SpecAugment (Interspeech 2019), section 2, without time warping: the width of a mask is uniform on
    0 .. param, its start uniform on 0 .. size - width. The masks of one axis leave at least one position unmasked.

    Parameters
    ----------
    column : str
        The column, of shape (n, freq, time) or (n, channels, freq, time) in a batch. Samples need no axis for masks
        whose number or width is 0, so (n, time) is enough for time masks alone.
    time_mask_param, freq_mask_param : int
        Greatest width of a mask, in positions of its axis.
    num_time_masks, num_freq_masks : int
        Number of masks of each sample; 0 masks nothing along the axis.
    mask_value : float or "mean"
        The value of masked positions; the dtype of the column must be able to hold it. "mean" is the mean of the sample
        before masking, without NaN, rounded to the nearest integer for integer dtypes.
    p : float
        The probability that a row is augmented at all.
    time_axis, freq_axis : int
        The axes in one sample; negative axes count from the end.
    salt : int
        Another salt gives a second SpecAugment of the same column other draws.

    Raises
    ------
    OptionError
        If an option cannot be used.
    MaskTooLargeError
        When it is applied, if a param is greater than the axis.
    UnsupportedColumnError
        When it is applied, if the column has too few axes, or a dtype that is not real or cannot hold `mask_value`.
    """

    kind: ClassVar[str] = "SpecAugment"

    column: str
    time_mask_param: int = 40
    freq_mask_param: int = 15
    num_time_masks: int = 1
    num_freq_masks: int = 1
    mask_value: float | Literal["mean"] = 0.0
    p: float = 0.8
    time_axis: int = -1
    freq_axis: int = -2
    salt: int = 0

    def __post_init__(self) -> None:
        self._check_options()
        least = dict.fromkeys(("time_mask_param", "freq_mask_param", "num_time_masks", "num_freq_masks"), 0)
        for name, bound in {**least, "time_axis": None, "freq_axis": None, "salt": None}.items():
            # Python integers: those of numpy overflow, and JSON does not take them.
            object.__setattr__(self, name, as_integer(name, getattr(self, name), bound))
        value = self.mask_value
        if not (is_number(value) or isinstance(value, bool) or (isinstance(value, str) and value == "mean")):
            raise OptionError(f"mask_value={value!r}: expected a real number or 'mean'")
        if value != "mean":
            # Integers stay integers: floats hold them exactly only up to 2**53.
            object.__setattr__(self, "mask_value", int(value) if is_integer(value) else float(value))
        if self._masks_axis("time") and self._masks_axis("freq") and self.time_axis == self.freq_axis:
            raise OptionError(f"time_axis={self.time_axis} and freq_axis={self.freq_axis} are the same axis")

    def _masks_axis(self, name: str) -> bool:
        """Return whether there may be masks along the axis."""
        return bool(getattr(self, f"num_{name}_masks") and getattr(self, f"{name}_mask_param"))

    def _changes(self, array: Any) -> bool:
        if kind_of(array) not in "biuf" or array.dtype.itemsize > 8:
            raise UnsupportedColumnError(
                f"SpecAugment({self.column!r}): the column has dtype {array.dtype}, expected real numbers of up to 64 "
                "bits, or booleans"
            )
        if self.mask_value != "mean" and not _holds(array.dtype, self.mask_value):
            raise UnsupportedColumnError(
                f"SpecAugment({self.column!r}): the column has dtype {array.dtype}, which cannot hold "
                f"mask_value={self.mask_value!r}; use a value that it can hold, or cast the column first, such as with "
                "read_h5(..., dtypes={...: 'float32'})"
            )
        axes = self._axis("time", array.shape), self._axis("freq", array.shape)
        if axes[0] == axes[1] and axes[0] is not None:
            raise OptionError(f"time_axis={self.time_axis} and freq_axis={self.freq_axis} are the same axis")
        return self.p > 0 and axes != (None, None) and 0 not in array.shape

    def _axis(self, name: str, shape: Sequence[int]) -> int | None:
        """Return the axis of a batch, checked against the masks; None where there are no masks along it."""
        if not self._masks_axis(name):
            return None
        axis: int = getattr(self, f"{name}_axis")
        param: int = getattr(self, f"{name}_mask_param")
        num_axes = len(shape) - 1
        if not -num_axes <= axis < num_axes:
            raise UnsupportedColumnError(
                f"SpecAugment({self.column!r}): {name}_axis={axis}, but a sample has shape {tuple(shape[1:])}"
            )
        batch_axis = axis % num_axes + 1
        if param > shape[batch_axis]:
            raise MaskTooLargeError(
                f"SpecAugment({self.column!r}): {name}_mask_param={param} is greater than axis {axis} of the "
                f"samples, which has length {shape[batch_axis]} (shape {tuple(shape[1:])}); use at most "
                f"{shape[batch_axis]}, or num_{name}_masks=0"
            )
        return batch_axis

    def _draw(self, states: Words, shape: Sequence[int]) -> list[_Span]:
        """Return the masks along the axes of time and frequency."""
        words = words_of(states, 0, 1 + 2 * (self.num_time_masks + self.num_freq_masks))
        chosen = chance(words[:, 0], self.p)
        first, spans = 1, []
        for name in ("time", "freq"):
            axis, number = self._axis(name, shape), getattr(self, f"num_{name}_masks")
            if axis is not None:
                param = getattr(self, f"{name}_mask_param")
                left: Any = chosen * (shape[axis] - 1)  # positions that may still be masked
                for word in range(first, first + 2 * number, 2):
                    width = below(words[:, word], param + 1)
                    # Rows that are not chosen have no positions left, as rows whose masks have used all.
                    width = width - (width - left) * (width > left)
                    spans.append((axis, below(words[:, word + 1], shape[axis] + 1 - width), width))
                    left = left - width
            first += 2 * number
        return spans

    def _of_array(self, array: np.ndarray[Any, Any], drawn: list[_Span]) -> np.ndarray[Any, Any]:
        fill = _means(array) if self.mask_value == "mean" else None
        out = empty(array.shape, array.dtype)
        out[...] = array
        for axis, start, width in drawn:
            # One assignment for the masked positions of all rows. A boolean mask would be as large as the array.
            rows = np.repeat(np.arange(len(array)), width)
            positions = units_of(start, width)
            filled = self.mask_value if fill is None else fill[rows].reshape(-1, *[1] * (array.ndim - 2))
            np.moveaxis(out, axis, 1)[rows, positions] = filled
        return out

    def _of_tensor(self, array: Any, drawn: list[_Span]) -> Any:
        import torch

        masked = torch.zeros([1] * array.ndim, dtype=torch.bool, device=array.device)
        for axis, *places in drawn:
            start, width = on_device_of(array, *places)
            positions = torch.arange(array.shape[axis], device=array.device)
            inside = (positions >= start[:, None]) & (positions < (start + width)[:, None])
            shape = [size if axis == axis_number else 1 for axis_number, size in enumerate(array.shape[1:], 1)]
            masked = masked | inside.reshape(len(array), *shape)
        value = self.mask_value
        if value != "mean":
            # torch takes Python integers of up to 64 bits alone; the mask_value of a floating tensor may be greater.
            return array.masked_fill(masked, float(value) if array.is_floating_point() else value)
        if array.is_floating_point():
            means = torch.nanmean(array, dim=tuple(range(1, array.ndim)), dtype=torch.float64, keepdim=True)
        else:
            means = torch.from_numpy(_means(array.cpu().numpy())).reshape(-1, *[1] * (array.ndim - 1))
        return torch.where(masked, means.to(array), array)


def _holds(dtype: Any, value: float) -> bool:
    """Return whether a dtype of numpy or torch can hold the value; floating dtypes may round it."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return bool(value in (0, 1))
    if name == "bfloat16":
        name = "float32"  # it has the same range
    dtype_ = np.dtype(name)
    if dtype_.kind == "f":
        return not math.isfinite(value) or abs(value) <= float(np.finfo(dtype_).max)
    return math.isfinite(value) and value == int(value) and np.iinfo(dtype_).min <= value <= np.iinfo(dtype_).max


def _means(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the mean of each sample, without NaN."""
    axes = tuple(range(1, array.ndim))
    means = np.asarray(array.mean(axis=axes, dtype=np.float64))
    if array.dtype.kind != "f":
        # Limited as Python integers: float64 rounds the greatest of 64 bits up, beyond the range of the dtype.
        limits = zip(np.rint(means), array.min(axis=axes), array.max(axis=axes), strict=True)
        return np.array([min(max(int(mean), int(low)), int(high)) for mean, low, high in limits], array.dtype)
    for row in np.flatnonzero(np.isnan(means)):
        known = array[row][~np.isnan(array[row])]
        means[row] = known.mean(dtype=np.float64) if known.size else np.nan
    return means.astype(array.dtype)
