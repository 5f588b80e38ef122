"""Means and deviations of fields from an HDF5 file, and fields standardised with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ray_h5.errors import SchemaMismatchError
from ray_h5.hdf5.tree.small_groups import Values, read_groups

_METADATA = "metadata"
_LOG_EPSILON = 1e-6
_EPSILON = 1e-8


@dataclass(frozen=True)
class FieldStats:
    """Mean and deviation of a field, one for each channel or one for all.

    Attributes
    ----------
    mean, std : numpy.ndarray
        Without an axis, or with one of channels.
    log_channels, asinh_channels : tuple of int
        Channels of which the logarithm, or the inverse hyperbolic sine, is standardised.
    log_epsilon : float
        Added before the logarithm.
    about : mapping
        ``shape`` and ``count``, if the file has them.
    """

    where: str
    mean: np.ndarray
    std: np.ndarray
    log_channels: tuple[int, ...] = ()
    asinh_channels: tuple[int, ...] = ()
    log_epsilon: float = _LOG_EPSILON
    about: Mapping[str, Any] = field(default_factory=dict)

    def check(self, column: str, row_shape: tuple[int, ...]) -> None:
        """Raise unless rows of this shape have these channels."""
        if self.mean.ndim and (not row_shape or self.mean.size != row_shape[0]):
            raise SchemaMismatchError(
                f"{self.where}: expected a mean and std for each channel of column {column!r}, or one for all, found "
                f"{self.mean.size} for rows of shape {row_shape}"
            )
        wrong = [each for each in (*self.log_channels, *self.asinh_channels) if not 0 <= each < self.mean.size]
        if wrong:
            raise SchemaMismatchError(
                f"{self.where}: expected channels from 0 to {self.mean.size - 1} to be transformed, found {wrong[0]}"
            )

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Return standardised values; axes of `values` are samples, channels, and any others."""
        # By NumPy: one thread of it is faster than torch (asinh 20 times), whose threads wait for each other where CPUs
        # are busy. As in torch, what is not finite gives no warning.
        with np.errstate(all="ignore"):
            for channels, transformed in ((self.log_channels, self._log), (self.asinh_channels, np.arcsinh)):
                if len(channels) == self.mean.size:
                    values = transformed(values)
                elif channels:
                    values = values.copy()
                    values[:, channels] = transformed(values[:, channels])
            mean, std = (self._beside(each, values) for each in (self.mean, self.std))
            values = values - mean
            values /= std + values.dtype.type(_EPSILON)
        return values

    def as_dict(self, dtype: torch.dtype) -> dict[str, Any]:
        """Return the statistics by the names that people know them by."""
        named: dict[str, Any] = {**self.about, "mean": self.mean[()], "std": self.std[()]}
        for name, values in (("mean_tensor", self.mean), ("std_tensor", self.std)):
            tensor = torch.from_numpy(np.asarray(values)).to(dtype)
            named[name] = tensor[:, None] if tensor.ndim else tensor
        transformed = {*self.log_channels, *self.asinh_channels}
        return named | {
            "uses_log_transform": bool(self.log_channels),
            "uses_asinh_transform": bool(self.asinh_channels),
            "regular_channels": [channel for channel in range(self.mean.size) if channel not in transformed],
            "log_channels": list(self.log_channels),
            "asinh_channels": list(self.asinh_channels),
        }

    def _log(self, values: np.ndarray) -> np.ndarray:
        positive = np.maximum(values, 0)
        positive += values.dtype.type(self.log_epsilon)
        return np.log(positive, out=positive)

    @staticmethod
    def _beside(values: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Return a value for each channel with the axes of `like`."""
        cast = values.astype(like.dtype)
        return cast.reshape(-1, *[1] * (like.ndim - 2)) if cast.ndim else cast


@dataclass(frozen=True)
class StatsFile:
    """What a file of statistics holds.

    Attributes
    ----------
    stats : dict of str to FieldStats
        By field.
    unusable : dict of str to str
        What is wrong with the groups of other fields; it matters only if one of these is standardised.
    trimmed : float or None
        The minutes that were trimmed before; None if unknown.
    """

    stats: dict[str, FieldStats] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    trimmed: float | None = None


def read_stats(path: str | os.PathLike[str]) -> StatsFile:
    """Return the statistics of each field in a file.

    A group for each field holds ``mean`` and ``std``, as datasets or attributes, or ``mean_scalar`` and ``std_scalar``.
    Attributes of the group say which channels are transformed: ``log_channels`` with ``uses_log_transform``,
    ``asinh_channels`` with ``uses_asinh_transform``, or ``order0_channels``, those that are not in log scale.

    Raises
    ------
    RayH5Error
        The leaf that says what is wrong with the file.
    """
    common, groups = read_groups(path)
    epsilon = float(common.get("log_epsilon", np.array(_LOG_EPSILON)).reshape(-1)[0])
    trimmed = common.get("trim_minutes")
    found = StatsFile(trimmed=None if trimmed is None else max(float(trimmed.reshape(-1)[0]), 0.0))
    for name, group in groups.items():
        if name == _METADATA:
            continue
        try:
            found.stats[name] = _field(f"{os.fspath(path)}: {name!r}", group, epsilon)
        except SchemaMismatchError as exc:
            found.unusable[name] = str(exc)
    return found


def _field(where: str, group: Values, epsilon: float) -> FieldStats:
    mean, std = (_moment(where, group, name) for name in ("mean", "std"))
    if mean.shape != std.shape or not np.isfinite([mean, std]).all() or (std < 0).any():
        raise SchemaMismatchError(
            f"{where}: expected a finite mean and a std of 0 or more for each channel, found mean {mean.tolist()} and "
            f"std {std.tolist()}"
        )
    log = _channels(group, "log_channels", "uses_log_transform")
    if "regular_channels" not in group and "log_channels" not in group and "order0_channels" in group:
        kept = set(_channels(group, "order0_channels"))
        log = tuple(channel for channel in range(mean.size) if channel not in kept)
    asinh = tuple(each for each in _channels(group, "asinh_channels", "uses_asinh_transform") if each not in log)
    about: dict[str, Any] = {}
    if "shape" in group:
        about["shape"] = tuple(group["shape"].reshape(-1).tolist())
    if "count" in group:
        about["count"] = group["count"].reshape(-1)[0]
    return FieldStats(where, mean, std, log, asinh, epsilon, about)


def _moment(where: str, group: Values, name: str) -> np.ndarray:
    """Return a mean or a deviation, without an axis or with one of channels."""
    values = group.get(f"{name}_scalar", group.get(name))
    if values is None or (values.ndim > 1 and values.size != len(values)):
        found = "none" if values is None else f"shape {values.shape}"
        raise SchemaMismatchError(
            f"{where}: expected {name!r} as one number, or one for each channel, found {found}; the group has "
            f"{', '.join(sorted(group)) or 'nothing'}"
        )
    values = values.astype(np.float64 if values.dtype.kind != "f" else values.dtype.newbyteorder("="))
    return values.reshape(()) if values.size == 1 else values.reshape(-1)


def _channels(group: Values, name: str, switch: str | None = None) -> tuple[int, ...]:
    """Return the channels of an attribute; none if its switch is off."""
    if name not in group or (switch in group and not group[switch].any()):
        return ()
    return tuple(int(channel) for channel in group[name].reshape(-1))
